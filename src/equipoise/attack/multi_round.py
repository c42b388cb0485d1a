"""Multi-round: the releases of one client over a whole run, combined.

An example that recurs is in many releases; noise is fresh in each, the example is not. Every release gives each candidate
a log-likelihood ratio: how much more probable the release is with this candidate in it than with another of its label.
Ratios of different rounds add up.

* *Schedule known*: the ratios of the rounds in which the example took part are summed. No server knows this much; it is
  the upper bound of what combining can give.
* *Schedule unknown*: every round counts, with the probability that it held the example as public knowledge gives it (batch
  size over size of the client's data): sum of log(1 - q + q * exp(ratio)).

Responses and covariance are simulated anew in every round, as in ``matched.py``, with one pair of opposite noise and
public companions of any label: of the labels behind a release nothing is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AttackError
from ..randomness import experiment_key, uniform
from ..release import draw_bounds
from .limit import Limiter
from .matched import Filter
from .simulate import chunk, noise, pieces, respond
from .view import Public, Server, View, check, check_public

LIMIT, FLOOR = 1, 1e-2  # which of limit.LIMITS, and the floor of the noise: no round can afford to tune them


@dataclass(frozen=True)
class Observation:
    """One round of one client, as the server sees it, and, for the upper bound, which examples took part."""

    round: int
    previous: Tensor  # [P]
    released: Tensor  # [P]
    present: Tensor | None = None  # [X] bool: examples whose schedule is taken as known


@dataclass(frozen=True)
class Combined:
    """Log-likelihood ratios ``[X, K]`` of the candidates for X examples."""

    known: Tensor  # summed over the rounds in which the example took part
    unknown: Tensor  # over all rounds, weighted by the chance that it took part
    single: Tensor  # of the first of its rounds alone
    rounds: Tensor  # [X]: how many rounds the example took part in
    seen: int  # rounds in all


def multi_round(
    server: Server,
    observations: Iterable[Observation],
    public: Public,
    candidates: Tensor,
    labels: Tensor,
    choices: Tensor,
    chance: float,
    around: int = 64,
    seed: int = 0,
) -> Combined:
    """Combine a stream of releases, one at a time: memory does not grow with the run.

    ``candidates`` ``[Q, ...]`` with ``labels`` ``[Q]`` are images that the attacker holds; ``choices`` ``[X, K]`` are the
    candidates for each of X examples, ``chance`` the probability that a given example is in a given release.
    """
    public = check_public(server, public, None)
    if not 0 < chance < 1:
        raise AttackError(f"Expected the chance of taking part in (0, 1), got {chance}.", "Batch over client size.")
    total = {name: torch.zeros_like(choices, dtype=torch.float64) for name in ("known", "unknown", "single")}
    rounds = torch.zeros(len(choices), dtype=torch.int64, device=choices.device)
    seen = 0
    for one in observations:
        check(server, View(one.previous.unsqueeze(0), one.released.unsqueeze(0)), needs_labels=False)
        ratio = round_ratios(server, one, public, candidates, labels, around, seed)[choices]
        outside = torch.full_like(ratio, math.log1p(-chance))
        total["unknown"] += torch.logaddexp(outside, ratio + math.log(chance))
        seen += 1
        if one.present is not None:
            here = one.present.unsqueeze(1)
            total["known"] += torch.where(here, ratio, 0)
            total["single"] = torch.where(here & (rounds == 0).unsqueeze(1), ratio, total["single"])
            rounds += one.present
    return Combined(total["known"], total["unknown"], total["single"], rounds, seen)


def round_ratios(
    server: Server, one: Observation, public: Public, candidates: Tensor, labels: Tensor, around: int, seed: int
) -> Tensor:
    """Log-likelihood ratios ``[Q]`` of one release against the mean candidate of the same label."""
    start, device = one.previous, one.previous.device
    key = experiment_key(seed, "attack/rounds/companions")
    numbers = uniform([key], [0], [one.round], (around + 1) * server.examples, torch.float64)[0, 0].to(device)
    drawn = (numbers * len(public[1])).long().view(around + 1, server.examples)
    chosen = torch.cat([drawn[:around], drawn[around:].expand(len(candidates), -1)])  # companions alone; candidates
    batch, known = public[0][chosen], public[1][chosen]
    batch[around:, 0], known[around:, 0] = candidates, labels
    found, half = _paired(server, start, batch, known, one.round, seed)
    centre = found[:around].mean(0)
    filter = Filter(found[:around] - centre, Limiter(half, start), around - 1)
    products = filter.products((one.released - start - centre).unsqueeze(0), (found[around:] - centre).unsqueeze(0))
    score = filter.likelihood(products, min(LIMIT, len(filter.limiter) - 1), FLOOR)[0]
    for label in labels.unique():
        same = labels == label
        score[same] -= score[same].logsumexp(0) - math.log(int(same.sum()))
    return score


def _paired(
    server: Server, start: Tensor, images: Tensor, labels: Tensor, when: int, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Updates ``[R, P]`` averaged over one pair of opposite noise that all share, and the noise as it is drawn."""
    key = experiment_key(seed, "attack/rounds/noise")
    drawn = noise(server, key, torch.zeros(1, dtype=torch.int64), start, tag=when)
    if drawn is None:
        return _responses(server, start, images, labels, None), None
    both = torch.cat([drawn.expand(len(images), -1), -drawn.expand(len(images), -1)])
    found = _responses(server, start, torch.cat([images, images]), torch.cat([labels, labels]), both)
    return found.view(2, len(images), -1).mean(0), draw_bounds(drawn, server.protection)[0]


def _responses(server: Server, start: Tensor, images: Tensor, labels: Tensor, drawn: Tensor | None) -> Tensor:
    parts = [
        respond(server, start, images[some], labels[some], None if drawn is None else drawn[some])
        for some in pieces(len(images), chunk(server, start), start.device)
    ]
    return torch.cat(parts).sub_(start)
