"""Per-replica losses and gradients of any ``nn.Module``, for R sets of parameters at once.

``Batched(model)`` fixes the flat layout of the parameters; ``at(inputs, labels)`` fixes a mini-batch per replica and
returns an ``Objective`` whose ``gradient`` maps ``[R, P] -> [R, P]``. Several routes lead there (``routes.py``), with
the same numbers up to rounding: tests compare them pairwise in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from .features import FeatureModel
from .objective import Inputs, Loss, Objective, filled_up, map_inputs
from .routes import SHARED, Name, built, default_route


class Batched:
    """A model whose parameters are rows of a matrix.

    Args:
        model: any module.
        loss: of a batch, from what the model returns and the labels; cross-entropy unless given.
        device: where the model is.
        route: how losses and gradients are computed; that which ``default_route`` names unless given.
        fixed: values of frozen parameters and buffers; those it does not name are the model's own.

    >>> from equipoise.models.bundled import LeNetZhu
    >>> batched = Batched(LeNetZhu())
    >>> objective = batched.at(torch.zeros(2, 4, 1, 28, 28), torch.zeros(2, 4, dtype=torch.int64))
    >>> objective.gradient(torch.zeros(2, batched.layout.size)).shape
    torch.Size([2, 13426])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None = None,
        device: torch.device | str = "cpu",
        *,
        route: Name | None = None,
        fixed: Mapping[str, Tensor] | None = None,
    ):
        self.model, self.device, self.loss = model, torch.device(device), loss
        self.route: Name = route or default_route(model, loss, self.device)
        self._route = built(self.route, model, loss, self.device, dict(fixed or {}))
        self.layout = self._route.layout

    def at(self, inputs: Inputs, labels: Tensor) -> Objective:
        """Fix a mini-batch ``[R, B, ...]``, ``[R, B]`` for every replica."""
        objective = self._route.at(inputs, labels)
        objective.per_example = partial(self._per_example, inputs, labels)
        objective.stretches = self.layout.stretches
        return objective

    def each(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        """The gradient of every example by itself: ``[R, P]``, ``[R, B, ...]``, ``[R, B]`` -> ``[R, B, P]``."""
        return self._route.each(params, inputs, labels)

    def outputs(self, params: Tensor, inputs: Inputs) -> Tensor:
        """``[R, P]``, ``[R, B, ...]`` -> ``[R, B, classes]``."""
        return self._route.outputs(params, inputs)

    def differentiable(self, params: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """The gradient ``[R, P]`` as a function that autograd can differentiate once more.

        With respect to ``params``, ``inputs`` and, where they are probabilities ``[R, B, classes]``, ``labels``.
        """
        return self._route.differentiable(params, inputs, labels)

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may compute at once: on a CPU, where no module of the user's is called."""
        return self.device.type == "cpu" and self.route == "layers" and not isinstance(self.model, FeatureModel)

    def _per_example(self, inputs: Inputs, labels: Tensor, params: Tensor) -> tuple[Tensor, ...]:
        if self.route not in SHARED:
            return self.each(params, inputs, labels).unbind(1)
        # Every example is a replica with a batch of one: no other example can have a part in its gradient. CPU kernels
        # round such replicas alike if they lie at multiples of 16 bytes and there are 8, 16, ... of them.
        examples = labels.shape[1] + -labels.shape[1] % 4
        alone = self._route.at(map_inputs(_apart, inputs), _apart(labels))
        result = alone.gradient(filled_up(params, 0, 2).repeat_interleave(examples, dim=0))
        return result.view(-1, examples, params.shape[1])[: len(labels), : labels.shape[1]].unbind(1)


def _apart(part: Tensor) -> Tensor:
    """``[R, B, ...]``, filled up to even R and B a multiple of 4, as batches of one: ``[R * B, 1, ...]``."""
    return filled_up(filled_up(part, 1, 4), 0, 2).flatten(0, 1).unsqueeze(1)
