"""What the tests of attacks with candidates share: releases whose every example is hidden among decoys of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from equipoise.attack.attack import Attack, Hooks, Knowledge
from equipoise.attack.matched import MATCHED
from equipoise.attack.membership import MEMBERSHIP
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import NO_PROTECTION, Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.statistics import auc, ranks
from tests.attack.inversions import seeded

SHAPE, CLASSES, CANDIDATES = (1, 6, 6), 4, 20
LITTLE: Mapping[str, Any] = {
    "pairs": 2, "anchors": 4, "around": 16, "tuning": 16, "trials": 32, "companions": 2, "nulls": 8,
    "condition_on": "nothing", "seed": 0,
}  # fmt: skip


def images_of(labels: Tensor, seed: int) -> Tensor:
    """Images with something of their class and much of their own."""
    patterns = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(77))
    own = torch.rand(*labels.shape, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return 0.3 * patterns[labels] + 0.7 * own


def server_of(
    name: str = "none", scale: float = 0.0, batch: int = 4, *, dtype: torch.dtype = torch.float32,
    protection: Mapping[str, Any] = MappingProxyType({}), **about: Any,
) -> tuple[Server, Tensor]:  # fmt: skip
    """A server that faces a mechanism, and the weights it has sent."""
    model = seeded(lambda: MLP(SHAPE, CLASSES, hidden=8), seed=4).to(dtype)
    guarded = Protection(get_mechanism(name), scale, **{"steps": 3, **protection})
    server = Server(Batched(model), SHAPE, CLASSES, batch, protection=guarded, **about)
    return server, server.batched.layout.flatten(model.state_dict())


LABELS = torch.arange(320) % CLASSES
PUBLIC = (images_of(LABELS, 9), LABELS)


def found_by(scores: Tensor) -> float:
    """How often the truth, which comes first, has the best score."""
    return float(ranks(scores).first.mean())


@dataclass(frozen=True)
class Case:
    server: Server
    view: View
    candidates: Tensor  # [Q, ...]
    candidate_labels: Tensor  # [Q]
    choices: Tensor  # [N, E, K]: the truth comes first
    asked: Tensor  # [N, O]: the members come first
    public: tuple[Tensor, Tensor] = PUBLIC

    def knowledge(self) -> Knowledge:
        return Knowledge(self.public, self.candidates, self.candidate_labels, choices=self.choices, asked=self.asked)

    def _run(self, attack: Attack, options: Mapping[str, Any], hooks: Hooks | None) -> Tensor:
        knowledge = attack.granted(self.knowledge())
        return attack.run(self.server, self.view, knowledge, {**LITTLE, **options}, hooks or Hooks()).values  # type: ignore

    def scores(self, hooks: Hooks | None = None, **options: Any) -> Tensor:
        """By ``matched``: ``[N, E, K]``."""
        return self._run(MATCHED, options, hooks)

    def identified(self, **options: Any) -> float:
        result = self.scores(**options)
        assert torch.isfinite(result).all()
        return found_by(result)

    def ratios(self, hooks: Hooks | None = None, **options: Any) -> Tensor:
        """By ``membership``: ``[N, O]``."""
        return self._run(MEMBERSHIP, options, hooks)

    def area(self, **options: Any) -> float:
        result = self.ratios(**options)
        assert torch.isfinite(result).all()
        return auc(result[:, : self.server.examples], result[:, self.server.examples :])

    def responses(self, images: Tensor, labels: Tensor) -> Tensor:
        """Undistorted updates ``[U, P]`` of batches of one image each."""
        quiet, weights = replace(self.server, protection=NO_PROTECTION), self.view.previous[0]
        return respond(quiet, weights, images.unsqueeze(1), labels.unsqueeze(1), None) - weights

    def chance(self, deviations: float = 4.0) -> float:
        """What guessing does not exceed."""
        p, n = 1 / CANDIDATES, self.choices[..., 0].numel()
        return p + deviations * math.sqrt(p * (1 - p) / n)


def case(
    batch: int,
    count: int,
    name: str = "none",
    scale: float = 0.0,
    labels: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    local_steps: int = 1,
    eta: float = 0.1,
) -> Case:
    """Releases of ``local_steps`` batches, every example among 19 decoys of its own."""
    server, weights = server_of(name, scale, batch, dtype=dtype, eta=eta, local_steps=local_steps)
    kind, local, drawn = server.protection.mechanism, torch.Generator().manual_seed(6), None
    labels = torch.arange(server.examples).expand(count, -1) % CLASSES if labels is None else labels
    if kind.draws:
        drawn = standard_noise(torch.rand(count, len(weights), generator=local), kind.noise).to(dtype)
    each = labels.unsqueeze(2).expand(-1, -1, CANDIDATES)
    candidates = images_of(each, 8).to(dtype)
    released = respond(server, weights, candidates[:, :, 0], labels, drawn)
    choices = torch.arange(labels.numel() * CANDIDATES).view(*labels.shape, CANDIDATES)
    asked = choices[..., :6].transpose(1, 2).flatten(1)  # the members, then others in the order of their labels
    view = View(weights.expand(count, -1), released, labels)
    return Case(server, view, candidates.flatten(0, 2), each.flatten(), choices, asked)
