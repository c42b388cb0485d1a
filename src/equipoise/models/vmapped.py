"""The route of ``torch.func``: one call for all replicas of any model that it can run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from .layout import Layout
from .objective import Inputs, Loss, Objective, arguments, map_inputs, mean_loss
from .recurrent import decomposed
from .tensors import places


class Vmapped:
    """Losses and gradients by ``vmap`` over the replicas.

    ``fixed`` holds values of frozen parameters and buffers; those it does not name are the model's own.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: Loss | None, fixed: Mapping[str, Tensor]):
        self.model, self.layout, self._loss = decomposed(model), layout, loss
        self._fixed, self._places = dict(fixed), places(model)

    def at(self, inputs: Inputs, labels: Tensor) -> Objective:
        def loss(params: Tensor) -> Tensor:
            with torch.no_grad():
                result: Tensor = vmap(self._value)(params, inputs, labels)
            return result

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            result: Tensor = vmap(grad(self._value))(params, inputs, labels).detach()
            return result if out is None else out.copy_(result)

        return Objective(loss, gradient)

    def each(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        one = vmap(grad(self._value), in_dims=(None, 0, 0))
        single = map_inputs(lambda part: part.unsqueeze(2), inputs)
        result: Tensor = vmap(one)(params, single, labels.unsqueeze(2))
        return result.detach()

    def outputs(self, params: Tensor, inputs: Inputs) -> Tensor:
        with torch.no_grad():
            result: Tensor = vmap(self._call)(params, inputs)
        return result

    def differentiable(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        outcome: Tensor = vmap(grad(self._value))(params, inputs, labels)
        return outcome

    def _call(self, flat: Tensor, inputs: Inputs) -> Tensor:
        tensors = {s.name: flat[s.start : s.stop].view(s.shape) for s in self.layout.slots}
        put = {place: tensor for name, tensor in {**self._fixed, **tensors}.items() for place in self._places[name]}
        given, named = arguments(inputs)
        result: Tensor = functional_call(self.model, put, given, named, tie_weights=False)  # ``places`` has tied them
        return result

    def _value(self, flat: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        return mean_loss(self._loss, self._call(flat, inputs), labels)
