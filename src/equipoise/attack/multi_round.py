"""Multi-round: the releases of one client over a whole run, combined.

An example that recurs is in many releases; noise is fresh in each, the example is not. Every release gives each
candidate a log-likelihood, as in ``matched.py``: its response is simulated anew at the weights of every round, among
public companions of any label. Of the labels behind a release nothing is assumed. Log-likelihoods of rounds add up.

* *One release*: the first that holds the example.
* *Schedule known*: the log-likelihoods of the rounds in which the example took part are summed. No server knows this.
* *Schedule unknown*: every round counts, with the probability that it held the example as public knowledge gives it
  (batch size over size of the client's data): sum of log(1 - q + q * ratio), where ratio compares the candidate with
  the mean of all *other* candidates. With the mean of all, no ratio would exceed their number, and a release that
  shows a candidate beyond doubt would count little more than one that shows nothing.

All candidates share their companions; what these add is taken off by simulating the same public images with these
companions and with others. Responses without distortion serve all rounds, for they cost one gradient a local step.
Where the mechanism does more than add noise, its own (under pairs of opposite noise, as in ``matched.py``) are
simulated for one release and the known schedule, in the rounds and for the labels that need them: a whole run of them
would cost twenty times as much. Whether they would find more over an unknown schedule is open: a trial with 33 images
of a learner did not tell.
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
from ..randomness import experiment_key, uniform
from .filter import Filter
from .limiter import Limiter
from .simulate import noise, respond_all, undistorted
from .view import Public, Server, View, check, check_public

LIMIT, FLOOR = 1, 1e-2  # which of limiter.LIMITS, and the floor of the noise: no round can afford to tune them
DRAWS = 8
"""Draws of noise from which its scale is taken: it is the same in every round."""
WINDOW = 50
"""Rounds whose random numbers are drawn together."""


@dataclass(frozen=True)
class Observation:
    """One round of one client: what the server sees, and what only experiments know."""

    round: int
    previous: Tensor  # [P]
    released: Tensor  # [P]
    present: Tensor  # [X] bool: which examples took part
    undistorted: Tensor  # [P]: the same release without its distortion, for the positive control


@dataclass(frozen=True)
class Candidates:
    """Images that the attacker holds: K of them for each of X examples."""

    images: Tensor  # [Q, ...]
    labels: Tensor  # [Q]
    choices: Tensor  # [X, K]: rows of the images; all of an example's candidates have its label

    @property
    def kinds(self) -> Tensor:
        """The label of every example, ``[X]``."""
        return self.labels[self.choices[:, 0]]


@dataclass(frozen=True)
class Scores:
    """Log-likelihoods ``[T, Q]``, up to a constant in every round, of Q candidates in T releases."""

    own: Tensor
    undistorted: Tensor  # of the same releases without their distortion
    learned: Tensor | None  # with the learner simulated; 0 where no example of the candidate's label took part
    present: Tensor  # [T, X]


@dataclass(frozen=True)
class Combined:
    """Log-likelihoods ``[X, K]`` of the candidates for X examples."""

    single: Tensor  # in the first release that holds the example
    known: Tensor  # in all of those together
    unknown: Tensor  # in all releases, weighted by the chance that they hold it
    elsewhere: Tensor  # in as many releases that do not hold it


def multi_round(
    server: Server,
    observations: Iterable[Observation],
    public: Public,
    candidates: Candidates,
    *,
    around: int = 32,
    pairs: int = 1,
    seed: int = 0,
    every: bool = True,
) -> Scores:
    """Score a stream of releases; of each one number per candidate is kept.

    The companions' covariance is taken from ``around`` batches in every round; a learner is simulated under ``pairs``
    pairs of opposite noise. ``every``: releases that hold no example count too, as an unknown schedule needs.
    """
    scoring = Scoring(server, public, candidates, around=around, pairs=pairs, seed=seed, every=every)
    scoring.add(observations)
    return scoring.scores()


class Scoring:
    """``multi_round`` for releases that come a few at a time."""

    def __init__(
        self, server: Server, public: Public, candidates: Candidates, *, around: int, pairs: int, seed: int, every: bool
    ):
        self.server, self.images, self.around, self.seed = server, len(public[1]), around, seed
        self.bench = _Bench(server, check_public(server, public, None), candidates, around, pairs, seed)
        self.every = every
        self.limiter: Limiter | None = None
        self.own, self.plain, self.learned, self.present = (
            list[Tensor](),
            list[Tensor](),
            list[Tensor](),
            list[Tensor](),
        )

    def add(self, observations: Iterable[Observation]) -> None:
        """Some more releases, in the order of their rounds."""
        for one, companions in _with_companions(self.server, observations, self.images, self.around, self.seed):
            self._score(one, companions)

    def _score(self, one: Observation, companions: Tensor) -> None:
        bench, mechanism = self.bench, self.server.protection.mechanism
        self.limiter = limiter = self.limiter or _limiter(self.server, one.previous, self.seed)
        which = None if self.every else bench.asked(one)
        result = bench.undistorted(one, companions, which)
        if self.every or mechanism.adds:  # with the schedule known, the mechanism is simulated instead
            self.own.append(bench.scored(one.released - one.previous, result, limiter, which))
        self.plain.append(bench.scored(one.undistorted - one.previous, result, None, which))
        if not mechanism.adds and not mechanism.draws:  # what was withheld is exactly 0, and all else is as it was
            update = one.released - one.previous
            self.learned.append(bench.scored(update, result, None, which, shown=update != 0))
        elif not mechanism.adds:
            self.learned.append(bench.of_the_mechanism(one, companions, limiter))
        self.present.append(one.present)

    def scores(self) -> Scores:
        if not self.present:
            raise AttackError("There are no releases to combine.", "Give at least one round.")
        plain, learned = torch.stack(self.plain), torch.stack(self.learned) if self.learned else None
        own = torch.stack(self.own) if self.own else torch.zeros_like(plain)
        return Scores(own, plain, learned, torch.stack(self.present))


# -- one round -----------------------------------------------------------------------------------------------------


def _with_companions(
    server: Server, observations: Iterable[Observation], images: int, around: int, seed: int
) -> Iterator[tuple[Observation, Tensor]]:
    """Every observation with public companions ``[around + 1, E]``, drawn for many at a time."""
    key, source = experiment_key(seed, "attack/rounds/companions"), iter(observations)
    while window := list(islice(source, WINDOW)):
        previous, released = (torch.stack([getattr(one, name) for one in window]) for name in ("previous", "released"))
        check(server, View(previous, released), needs_labels=False)
        numbers = uniform([key], [0], [one.round for one in window], (around + 1) * server.examples, torch.float64)
        places = (numbers[:, 0].to(previous.device) * images).long()
        yield from zip(window, places.view(len(window), around + 1, server.examples), strict=True)


def _limiter(server: Server, like: Tensor, seed: int) -> Limiter:
    """The noise of the mechanism, which is the same in every round."""
    drawn = noise(server, experiment_key(seed, "attack/rounds/scale"), torch.arange(DRAWS), like)
    return Limiter(None if drawn is None else draw_bounds(drawn, server.protection)[0], like)


class _Bench:
    """Simulated releases of one round, and what they say of each candidate."""

    def __init__(self, server: Server, public: Public, candidates: Candidates, around: int, pairs: int, seed: int):
        self.server, self.public, self.candidates = server, public, candidates
        self.around, self.pairs, self.key = around, pairs, experiment_key(seed, "attack/rounds/noise")
        self.plain = undistorted(server)

    def batches(self, companions: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        """Batches ``[R, E, ...]`` to simulate, and their labels.

        First ``around`` public images with companions of their own, then the same with those that the candidates have,
        then the candidates (all, or those in ``which``).
        """
        images, labels = self.candidates.images, self.candidates.labels
        if which is not None:
            images, labels = images[which], labels[which]
        own, shared = companions[: self.around], companions[self.around :]
        chosen = torch.cat([own, shared.expand(self.around + len(images), -1)])
        batch, known = self.public[0][chosen], self.public[1][chosen]
        batch[self.around :, 0] = torch.cat([self.public[0][own[:, 0]], images])
        known[self.around :, 0] = torch.cat([self.public[1][own[:, 0]], labels])
        return batch, known

    def undistorted(self, one: Observation, companions: Tensor, which: Tensor | None = None) -> Tensor:
        """Simulated updates ``[R, P]`` of these batches without distortion."""
        return _updates(self.plain, one.previous, *self.batches(companions, which), None)

    def defended(self, one: Observation, companions: Tensor, which: Tensor, limiter: Limiter) -> tuple[Tensor, Limiter]:
        """Likewise by the mechanism itself, averaged over noise of both signs; and what is known of its noise."""
        drawn = noise(self.server, self.key, torch.arange(self.pairs), one.previous, tag=one.round)
        assert drawn is not None
        batch, known = self.batches(companions, which)
        signed = torch.cat([drawn, -drawn]).split(1)
        parts = [_updates(self.server, one.previous, batch, known, each) for each in signed]
        halves = parts[0][: self.around], parts[self.pairs][: self.around]  # under opposite noise
        if self.server.protection.mechanism.shaping is not None:  # how much noise there is depends on the update
            limiter = Limiter((halves[0] - halves[1]) / 2, one.previous)
        return sum(parts[1:], parts[0]) / len(parts), limiter

    def asked(self, one: Observation) -> Tensor:
        """The candidates whose label an example of this round has."""
        candidates = self.candidates
        return torch.isin(candidates.labels, candidates.kinds[one.present]).nonzero().flatten()

    def of_the_mechanism(self, one: Observation, companions: Tensor, limiter: Limiter) -> Tensor:
        """Log-likelihoods ``[Q]`` of the candidates whose label an example of this round has; 0 for the others."""
        which = self.asked(one)
        if not len(which):
            return torch.zeros(len(self.candidates.labels), dtype=torch.float64, device=one.previous.device)
        result, known = self.defended(one, companions, which, limiter)
        return self.scored(one.released - one.previous, result, known, which)

    def scored(
        self, update: Tensor, result: Tensor, limiter: Limiter | None, which: Tensor | None,
        shown: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Likelihoods of all candidates ``[Q]``, of which those in ``which`` were simulated: 0 for the others."""
        values = self.likelihoods(update, result, limiter, shown)
        if which is None:
            return values
        score = torch.zeros(len(self.candidates.labels), dtype=torch.float64, device=update.device)
        score[which] = values.double()
        return score

    def likelihoods(
        self, update: Tensor, result: Tensor, limiter: Limiter | None, shown: Tensor | None = None
    ) -> Tensor:
        """Log-likelihoods ``[.]`` of an update under the last of the simulated ones, up to a constant.

        Without a limiter nothing is distorted, and a share of the companions' variance stands for the noise, the same
        in all coordinates: late in a run companions leave many of them as they are, and an image that moves one of
        these would, in units of its own, outvote all other coordinates and all other rounds.
        """
        centre, around = result[: self.around].mean(0), self.around
        spread = result[:around] - centre
        limiter = Limiter(None, update) if limiter is None else limiter
        filter = Filter(spread, limiter, around - 1)
        responses = result[2 * around :] - result[around : 2 * around].mean(0)
        shown = None if shown is None else shown.unsqueeze(0)
        products = filter.products((update - centre).unsqueeze(0), responses.unsqueeze(0), shown)
        return filter.likelihood(products, min(LIMIT, len(limiter) - 1), FLOOR)[0]


def _updates(server: Server, start: Tensor, images: Tensor, labels: Tensor, drawn: Tensor | None) -> Tensor:
    """Simulated updates ``[R, P]``; all share the noise ``[1, P]``."""

    def shared(rows: Tensor) -> Tensor | None:
        return None if drawn is None else drawn.expand(len(rows), -1)

    return respond_all(server, start, images, labels, shared).sub_(start)


# -- all rounds ----------------------------------------------------------------------------------------------------


def against_others(scores: Tensor) -> Tensor:
    """Log-ratios ``[T, Q]`` of each candidate to the mean of all other candidates of the round.

    >>> against_others(torch.tensor([[0.0, 0.0, 1000.0]]).double()).round().tolist()
    [[-999.0, -999.0, 1000.0]]
    """
    largest, place = scores.max(1, keepdim=True)
    share = (scores - largest).exp()
    # the sum of the others: for the largest itself without it from the start, as a difference would cancel
    others = (share.sum(1, keepdim=True) - share).log() + largest
    rest = scores.scatter(1, place, -math.inf).logsumexp(1, keepdim=True)
    return scores - others.scatter(1, place, rest) + math.log(scores.shape[1] - 1)


def combine(
    scores: Tensor, learned: Tensor | None, present: Tensor, choices: Tensor, chance: float, *, seed: int = 0
) -> Combined:
    """Add up the log-likelihoods ``[T, Q]`` of all rounds for examples that took part in the rounds ``[T, X]``.

    ``learned`` are those with the learner simulated, for rounds that hold the example; ``choices`` ``[X, K]`` are the
    candidates for each example, ``chance`` the probability that a given example is in a given release.
    """
    if not 0 < chance < 1:
        raise AttackError(f"Expected the chance of taking part in (0, 1), got {chance}.", "Batch over client size.")
    scores = scores.double()
    scores = scores - scores.mean(1, keepdim=True)  # a constant of the round says nothing, and large ones cost digits
    ratio = against_others(scores)
    weighted = torch.logaddexp(torch.full_like(ratio, math.log1p(-chance)), ratio + math.log(chance)).sum(0)
    held = scores if learned is None else learned.double()
    first = present & (present.cumsum(0) == 1)
    single, known, elsewhere = (
        (rounds.T.double() @ table).gather(1, choices)
        for rounds, table in ((first, held), (present, held), (_elsewhere(present, seed), scores))
    )
    return Combined(single, known, weighted[choices], elsewhere)


def _elsewhere(present: Tensor, seed: int) -> Tensor:
    """For every example as many random rounds as it took part in, all among those in which it did not."""
    order = torch.rand(present.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    place = order.to(present.device).masked_fill(present, 2.0).argsort(0).argsort(0)
    return (place < present.sum(0)) & ~present
