"""What the tests of audits of one's own updates share: a small network, its gradient, and the pictures in an SVG."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor, nn

from equipoise.auditing.audit import Audit
from equipoise.auditing.options import AuditOptions
from tests.audit_helpers import cheap

SHAPE, CLASSES = (1, 6, 6), 3
State = dict[str, Tensor]
Call = Callable[..., Audit]


def network(seed: int = 1, inputs: int = 36) -> nn.Sequential:
    """A small sigmoid network; its parameters come from a generator of its own."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 12), nn.Sigmoid(), nn.Linear(12, CLASSES))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_((torch.rand(tensor.shape, generator=generator) - 0.5) / 2)
    return model


def gradient_of(model: nn.Module, x: Tensor, y: Tensor, loss: Any = nn.functional.cross_entropy) -> State:
    result = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
    return {name: part for (name, _), part in zip(model.named_parameters(), result, strict=True)}


def moved(model: nn.Module, gradient: State, eta: float = 0.1) -> State:
    return {name: tensor.detach() - eta * gradient[name] for name, tensor in model.named_parameters()}


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def own(result: Audit) -> list[dict[str, Any]]:
    """What the attacks got from the update itself: no static twin, no control."""
    return [row for row in result.rows if row["role"] == "own" and row["control"] is None]


def searched(iterations: int = 300, **change: Any) -> AuditOptions:
    return cheap(attacks=["invgrad"], iterations=iterations, **change)


def refuse(constant: str) -> Any:
    """For ``json.loads``: infinities and NaN are no JSON."""
    raise AssertionError(f"{constant} is not JSON")


def images_of(drawn: str) -> list[bytes]:
    """The PNG files inside an SVG."""
    root = ElementTree.fromstring(drawn)
    result = root.iter("{http://www.w3.org/2000/svg}image")
    return [base64.b64decode(part.attrib["href"].partition("base64,")[2], validate=True) for part in result]
