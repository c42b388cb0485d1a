"""Which route a sweep takes to its gradients: by rule, as measured, or as set."""

from __future__ import annotations

import torch
from torch import nn

from ..data.dataset import Dataset
from ..models.routes import Name, default_route, measured_route
from .settings import Settings


def route_of(settings: Settings, network: nn.Module, data: Dataset, *, clients: int, alone: bool) -> Name:
    """The route that the settings ask for.

    ``auto`` follows a rule of model, device and mini-batch, so that equal settings give equal bits on equal machines.
    ``measured`` tries all of them on some of the data, which takes a second or two.

    Args:
        settings: of the sweep.
        network: the model, where it will run.
        data: of which the first records are tried.
        clients: how many take part in a round.
        alone: whether every example is looked at by itself.
    """
    asked, batch = settings.run.route, 1 if alone else settings.protection.batch
    device = torch.device(settings.run.device)
    if asked == "auto":
        return default_route(network, None, device, batch=batch, replicas=None if alone else clients)
    if asked != "measured":
        return asked
    like = next(network.parameters())
    inputs, labels = data.train.inputs[:batch].to(device), data.train.labels[:batch].to(device)
    inputs = inputs.to(like.dtype) if inputs.is_floating_point() else inputs
    return measured_route(network, None, inputs, labels, replicas=min(clients, settings.run.chunk or 64))[0]
