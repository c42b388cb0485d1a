"""What the tests of audits share: small images of four classes, a server that faces a defence, and cheap options."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from equipoise.attack.view import Server
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.targets import Materials, Targets, build_targets
from tests.attack import candidates

SHAPE, CLASSES = candidates.SHAPE, candidates.CLASSES
MEAN, SCALE = 0.3, 0.5
"""Normalisation of the images: pixels in [0, 1] have become (pixel - 0.3) / 0.5."""
TWINS = ["static, equal lower bound", "static, equal final norm"]
QUICK = AuditOptions(
    attacks=["matched", "lti", "membership", "labels"], releases=24, label_sets=2, candidates=20, others=6, samples=200,
    around=16, iterations=4, pictures=2,
)  # fmt: skip


def images_of(labels: Tensor, seed: int) -> Tensor:
    """Images with something of their class and much of their own, normalised."""
    return (candidates.images_of(labels, seed) - MEAN) / SCALE


def part(count: int, seed: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % classes
    return images_of(labels, seed), labels


@cache
def materials(classes: int = CLASSES) -> Materials:
    return Materials(part(800, 1, classes), part(400, 2, classes), lambda x: x * SCALE + MEAN)


def server_of(name: str = "none", scale: float = 0.0, batch: int = 4, **protection: Any) -> tuple[Server, Tensor]:
    """A server that faces a mechanism, and the weights it has sent."""
    ends = {"low": (0 - MEAN) / SCALE, "high": (1 - MEAN) / SCALE}
    return candidates.server_of(name, scale, batch, protection=protection, **ends)


def targets_of(options: AuditOptions = QUICK, batch: int = 4) -> Targets:
    return build_targets(materials(), server_of(batch=batch)[0], options)
