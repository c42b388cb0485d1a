"""Which route a sweep takes to its gradients: by rule, as measured, or as set."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..errors import ModelError
from ..models.check import check_model
from ..models.inputs import placed
from ..models.routes import Name, default_route, measured_route
from .settings import Settings


def route_of(
    settings: Settings, network: nn.Module, data: Dataset, *, clients: int, alone: bool
) -> tuple[Name, dict[Name, float]]:
    """The route that the settings ask for, and the seconds that each one took where they were measured.

    ``auto`` follows a rule of model, device, mini-batch and clients, so that equal settings give equal bits on equal
    machines. ``measured`` tries all of them on some of the data, which takes a second or two, once in a process.

    Args:
        settings: of the sweep.
        network: the model, where it will run.
        data: of which the first records are tried.
        clients: how many of one federation take part in a round.
        alone: whether every example is looked at by itself.
    """
    asked, batch, device = settings.run.route, settings.protection.batch, torch.device(settings.run.device)
    inputs = placed(data.train.inputs[:batch], device, next(network.parameters()).dtype)
    some = inputs[: 1 if alone else 2]
    if asked == "measured":
        check_model(network, some, data.classes, takes_loss=False)
        labels, replicas = data.train.labels[:batch].to(device), min(clients, settings.run.chunk or 64)
        return _measured(network, inputs, labels, replicas=replicas, alone=alone)
    route = check_model(network, some, data.classes, route=None if asked == "auto" else asked, takes_loss=False)
    if asked == "auto" and route == "loop" and device.type == "cpu":
        route = default_route(network, None, device, batch=batch, replicas=clients)
    return route, {}


Measured = tuple[Name, dict[Name, float]]
_MEASURED: dict[tuple[object, ...], Measured] = {}
"""What was measured in this process."""


def _measured(network: nn.Module, inputs: Tensor, labels: Tensor, *, replicas: int, alone: bool) -> Measured:
    where = str(inputs.device), torch.get_num_threads()
    key = (type(network), repr(network), inputs.shape, inputs.dtype, *where, replicas, alone)
    if key not in _MEASURED:
        _, took = measured_route(network, None, inputs, labels, replicas=replicas, alone=alone)
        serving = (name for name in sorted(took, key=took.__getitem__) if _serves(name, network, inputs[:2]))
        _MEASURED[key] = next(serving, "loop"), took
    return _MEASURED[key]


def _serves(name: Name, network: nn.Module, inputs: Tensor) -> bool:
    try:
        return check_model(network, inputs, route=name) == name
    except ModelError:
        return False
