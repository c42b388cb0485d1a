"""Multi-round: the releases of one client over a whole run, combined.

An example that recurs is in many releases; noise is fresh in each, the example is not. Every release gives each
candidate a log-likelihood ratio: how much more probable the release is with this candidate in it than with another of
its label. Ratios of different rounds add up.

* *Schedule known*: the ratios of the rounds in which the example took part are summed. No server knows this much.
* *Schedule unknown*: every round counts, with the probability that it held the example as public knowledge gives it
  (batch size over size of the client's data): sum of log(1 - q + q * exp(ratio)).

Responses and covariance are simulated anew in every round, as in ``matched.py``, with one pair of opposite noise and
public companions of any label: of the labels behind a release nothing is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from ..errors import AttackError
from ..mechanism.distortion import draw_bounds
from ..mechanism.noise import standard_noise
from ..randomness import experiment_key, uniform
from .filter import Filter
from .limiter import Limiter
from .simulate import chunk, pieces, respond
from .view import Public, Server, View, check, check_public

LIMIT, FLOOR = 1, 1e-2  # which of limiter.LIMITS, and the floor of the noise: no round can afford to tune them

WINDOW = 50
"""Rounds whose random numbers are drawn together."""


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
    *,
    around: int = 64,
    seed: int = 0,
) -> Combined:
    """Combine a stream of releases, a few at a time: memory does not grow with the run.

    ``candidates`` ``[Q, ...]`` with ``labels`` ``[Q]`` are images that the attacker holds; ``choices`` ``[X, K]`` are
    the candidates for each of X examples, ``chance`` the probability that a given example is in a given release.
    """
    public = check_public(server, public, None)
    if not 0 < chance < 1:
        raise AttackError(f"Expected the chance of taking part in (0, 1), got {chance}.", "Batch over client size.")
    total = {name: torch.zeros_like(choices, dtype=torch.float64) for name in ("known", "unknown", "single")}
    rounds = torch.zeros(len(choices), dtype=torch.int64, device=choices.device)
    seen = 0
    groups = [(labels == label).nonzero().flatten() for label in labels.unique()]
    for one, companions, drawn in _with_draws(server, observations, len(public[1]), around, seed):
        score = round_scores(server, one, public, candidates, labels, companions, drawn)
        for same in groups:  # against the mean candidate of the same label
            score[same] -= score[same].logsumexp(0) - math.log(len(same))
        ratio = score[choices]
        outside = torch.full_like(ratio, math.log1p(-chance))
        total["unknown"] += torch.logaddexp(outside, ratio + math.log(chance))
        seen += 1
        if one.present is not None:
            here = one.present.unsqueeze(1)
            total["known"] += torch.where(here, ratio, 0)
            total["single"] = torch.where(here & (rounds == 0).unsqueeze(1), ratio, total["single"])
            rounds += one.present
    return Combined(total["known"], total["unknown"], total["single"], rounds, seen)


def _with_draws(
    server: Server, observations: Iterable[Observation], images: int, around: int, seed: int
) -> Iterator[tuple[Observation, Tensor, Tensor | None]]:
    """Every observation with public companions ``[around + 1, E]`` and noise ``[1, P]``, drawn for many at a time."""
    keys = [experiment_key(seed, f"attack/rounds/{purpose}") for purpose in ("companions", "noise")]
    mechanism, source = server.protection.mechanism, iter(observations)
    while window := list(islice(source, WINDOW)):
        for one in window:
            check(server, View(one.previous.unsqueeze(0), one.released.unsqueeze(0)), needs_labels=False)
        like, rounds = window[0].previous, [one.round for one in window]
        numbers = uniform([keys[0]], [0], rounds, (around + 1) * server.examples, torch.float64)[:, 0].to(like.device)
        companions = (numbers * images).long().view(len(window), around + 1, server.examples)
        drawn: list[Tensor | None] = [None] * len(window)
        if mechanism.distorts:
            numbers = uniform([keys[1]], [0], rounds, server.batched.layout.size, like.dtype, like.device)
            drawn = list(standard_noise(numbers, mechanism.noise))
        yield from zip(window, companions, drawn, strict=True)


def round_scores(
    server: Server,
    one: Observation,
    public: Public,
    candidates: Tensor,
    labels: Tensor,
    companions: Tensor,
    drawn: Tensor | None,
) -> Tensor:
    """Log-likelihoods ``[Q]`` of one release, up to a constant."""
    start, around = one.previous, len(companions) - 1
    chosen = torch.cat([companions[:around], companions[around:].expand(len(candidates), -1)])
    batch, known = public[0][chosen], public[1][chosen]  # companions among themselves, then around every candidate
    batch[around:, 0], known[around:, 0] = candidates, labels
    result = _paired(server, start, batch, known, drawn)
    half = None if drawn is None else draw_bounds(drawn, server.protection)[0]
    centre = result[:around].mean(0)
    filter = Filter(result[:around] - centre, Limiter(half, start), around - 1)
    products = filter.products((one.released - start - centre).unsqueeze(0), (result[around:] - centre).unsqueeze(0))
    return filter.likelihood(products, min(LIMIT, len(filter.limiter) - 1), FLOOR)[0]


def _paired(server: Server, start: Tensor, images: Tensor, labels: Tensor, drawn: Tensor | None) -> Tensor:
    """Updates ``[R, P]`` averaged over one pair of opposite noise that all share."""
    signs = 1 if drawn is None else 2
    parts = []
    for some in pieces(len(images), chunk(server, start) // 2, start.device):
        both = None
        if drawn is not None:
            both = torch.cat([drawn.expand(len(some), -1), -drawn.expand(len(some), -1)])
        result = respond(server, start, torch.cat([images[some]] * signs), torch.cat([labels[some]] * signs), both)
        parts.append(result.view(signs, len(some), -1).mean(0))
    return torch.cat(parts).sub_(start)
