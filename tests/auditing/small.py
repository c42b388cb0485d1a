"""What the tests of audits share: small images of four classes, a server that faces a defence, and cheap options."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from equipoise.attack.view import Server
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.targets import Materials, Targets, build_targets
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP

SHAPE, CLASSES = (1, 6, 6), 4
MEAN, SCALE = 0.3, 0.5
"""Normalisation of the images: pixels in [0, 1] have become (pixel - 0.3) / 0.5."""
TWINS = ["static, equal lower bound", "static, equal final norm"]
QUICK = AuditOptions(
    attacks=["matched", "lti", "membership", "labels"], releases=24, label_sets=2, candidates=20, others=6, samples=200,
    around=16, iterations=4, pictures=2,
)  # fmt: skip


def images_of(labels: Tensor, seed: int) -> Tensor:
    """Images with something of their class and much of their own, normalised."""
    patterns = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(77))
    own = torch.rand(*labels.shape, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return (0.3 * patterns[labels] + 0.7 * own - MEAN) / SCALE


def part(count: int, seed: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % classes
    return images_of(labels, seed), labels


@cache
def materials(classes: int = CLASSES) -> Materials:
    return Materials(part(800, 1, classes), part(400, 2, classes), lambda x: x * SCALE + MEAN)


def server_of(name: str = "none", scale: float = 0.0, batch: int = 4, **protection: Any) -> tuple[Server, Tensor]:
    """A server that faces a mechanism, and the weights it has sent."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = MLP(SHAPE, CLASSES, hidden=8)
    guarded = Protection(get_mechanism(name), scale, **{"steps": 3, **protection})
    server = Server(
        Batched(model), SHAPE, CLASSES, batch, low=(0 - MEAN) / SCALE, high=(1 - MEAN) / SCALE, protection=guarded
    )
    return server, server.batched.layout.flatten(model.state_dict())


def targets_of(options: AuditOptions = QUICK, batch: int = 4) -> Targets:
    return build_targets(materials(), server_of(batch=batch)[0], options)
