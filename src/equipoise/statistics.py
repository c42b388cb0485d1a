"""Ranks, membership scores, and how sure a number is: Student's intervals over seeds, others over releases.

Releases are what is independent; the images inside one share its noise. Every bootstrap here resamples whole releases,
and its percentiles are those that make up for few of them; rates get an interval that is not empty at 0 and 1.
``studies/coverage`` shows how often these intervals hold what they should.

==========================  ==========================================================================
edge case                   result
==========================  ==========================================================================
NaN score of the truth      the worst rank
NaN score of a decoy        below every score that is a number
ties                        half a win in AUC and rank; an even chance each of being first
non-finite AUC, TPR         ``DataError``
one seed or release         no interval (None)
==========================  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .errors import ConfigError, DataError

Array = npt.NDArray[Any]
Values = Tensor | npt.ArrayLike
Interval = tuple[float, float]

ROOM = 1 << 22
"""Numbers that one piece of a longer computation may hold."""
FPR = 0.01
"""The false positive rate at which the true positive rate is told."""


def interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Student's interval of the mean; None for one value: one seed has no interval.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    from scipy.stats import t as student

    if len(values) < 2:
        return None
    half = float(student.ppf((1 + level) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


# --- ranks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ranking:
    """Where the truth came among the candidates: how many decoys scored ``better``, and how many ``tied`` with it."""

    better: Tensor  # [...] int64
    tied: Tensor  # [...] int64

    @property
    def rank(self) -> Tensor:
        """0 is best; a tie counts half, so a constant score of K candidates has rank (K - 1) / 2."""
        return self.better + self.tied.double() / 2

    @property
    def first(self) -> Tensor:
        """The probability of being named first when ties are broken at random."""
        return (self.better == 0).double() / (self.tied + 1)

    @property
    def log(self) -> Tensor:
        """log(1 + rank), which tells rank 0 from 5 better than 500 from 505."""
        return self.rank.log1p()


def ranks(scores: Tensor, truth: int | Tensor = 0) -> Ranking:
    """The place of candidate ``truth`` among K, higher scores being better: ``[..., K]`` -> ``[...]``.

    ``truth`` is a column for all, or one for each.

    >>> ranking = ranks(torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]))
    >>> ranking.rank.tolist(), ranking.first.tolist()
    ([0.0, 0.5, 2.0], [1.0, 0.5, 0.0])
    """
    column = torch.as_tensor(truth, device=scores.device).expand(scores.shape[:-1]).unsqueeze(-1)
    own = scores.gather(-1, column)
    better, tied = (scores > own).sum(-1), (scores == own).sum(-1) - 1
    lost = torch.isnan(own.squeeze(-1))
    return Ranking(better.masked_fill(lost, scores.shape[-1] - 1), tied.masked_fill(lost, 0))


# --- membership --------------------------------------------------------------------------------------------


def auc(members: Values, others: Values) -> float:
    """The probability that a member scores above a non-member, ties counting half.

    >>> auc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    inside, outside = _scores("members", members), _scores("others", others)
    below, upto = (np.searchsorted(outside, inside, side) for side in ("left", "right"))
    return float((below + upto).mean()) / (2 * len(outside))


def auc_by_release(members: Values, others: Values) -> Array:
    """What each of N releases adds to ``auc``: ``[N]``, its mean, from ``[N, a]`` members and ``[N, b]`` others.

    A release counts by where its members stand among all others and its others among all members, so that two attacks
    on the same releases can be compared release by release.

    >>> auc_by_release([[2.0], [3.0]], [[1.0], [2.0]]).tolist()
    [0.875, 0.875]
    """
    inside, outside = as_array(members), as_array(others)
    above = _places(inside, np.sort(outside, axis=None)).mean(1)  # share of all others that a member is above
    below = 1 - _places(outside, np.sort(inside, axis=None)).mean(1)  # share of all members that an other is below
    result: Array = above + below - above.mean()
    return result


def _places(scores: Array, among: Array) -> Array:
    """The share of ``among`` that every score exceeds, ties counting half."""
    low, high = (np.searchsorted(among, scores, side) for side in ("left", "right"))
    result: Array = (low + high) / (2 * among.size)
    return result


def tpr_at(members: Values, others: Values, fpr: float = FPR) -> float:
    """The share of members above the lowest threshold that at most a share ``fpr`` of the others is above.

    Only real thresholds count, without interpolation: with fewer than ``1 / fpr`` others, none may be above.

    >>> tpr_at([1.0, 2.0, 3.0, 4.0], [0.0, 1.5, 2.5, 0.5], fpr=0.25)
    0.75
    """
    inside, outside = _scores("members", members), _scores("others", others)
    allowed = _allowed(fpr, len(outside))
    if allowed >= len(outside):
        return 1.0
    return float((inside > outside[-1 - allowed]).mean())


def _scores(what: str, values: Values) -> Array:
    """As a sorted vector of finite numbers."""
    array = as_array(values).ravel()
    if len(array) == 0:
        raise DataError(f"Expected at least one score of {what}, got none.", "Score members and others.")
    check_finite(f"scores of {what}", array)
    return np.sort(array)


def _allowed(fpr: float, count: int) -> int:
    """How many of the others may be above the threshold; the tiny term makes 0.29 of 100 count as 29."""
    if not 0 <= fpr <= 1:
        raise ConfigError(f"Expected fpr={fpr} to be between 0 and 1.", "0.01 is usual.")
    return math.floor(fpr * count + 1e-9)


def as_array(values: Values) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def check_finite(what: str, array: Array) -> None:
    bad = array[~np.isfinite(array)]
    if len(bad):
        raise DataError(
            f"Expected finite {what}, got {bad[0]} among {array.size}.", "Repair or leave out what gave that value."
        )


# --- intervals over releases -------------------------------------------------------------------------------


def bootstrap(values: Values, draws: int = 1000, seed: int = 0) -> Interval | None:
    """Bootstrap interval of the mean of N releases, ``values`` ``[N, ...]``; None for fewer than two.

    The same N, draws and seed resample the same releases, here and in ``bootstrap_auc``, so that two intervals can be
    compared.

    >>> low, high = bootstrap(np.arange(100.0))
    >>> 40 < low < 49.5 < high < 60
    True
    """
    array = as_array(values)
    check_finite("values", array)
    count = len(array)
    if count < 2:
        return None
    each = array.reshape(count, -1).mean(1)
    means = [weights @ each / count for weights in _resampled(count, draws, seed, count)]
    return _percentiles(np.concatenate(means), count)


def bootstrap_auc(
    members: Values, others: Values, draws: int = 1000, seed: int = 0
) -> tuple[Interval, Interval] | None:
    """Intervals of ``auc`` and of ``tpr_at``, from ``[N, a]`` members and ``[N, b]`` others of N releases.

    Both are shares, so their intervals are those of a rate with the variance that a bootstrap shows. A release is drawn
    with all of its members and others. None for fewer than two.

    >>> scores = np.arange(40.0).reshape(20, 2)
    >>> [(round(low, 2), high) for low, high in bootstrap_auc(scores + 100, scores)]
    [(0.88, 1.0), (0.88, 1.0)]
    """
    inside, outside = _pairs(members, others)
    if len(inside) < 2:
        return None
    sorted_in, from_in = _by_score("members", inside)
    sorted_out, from_out = _by_score("others", outside)
    below, upto = (np.searchsorted(sorted_out, sorted_in, side) for side in ("left", "right"))
    allowed = _allowed(FPR, outside.size)
    areas: list[Array] = []
    rates: list[Array] = []
    # Resampling gives every release a weight, and N releases the total weight of N, whatever was drawn.
    for weights in _resampled(len(inside), draws, seed, 2 * inside.size + outside.size):
        heavy_in, heavy_out = weights[:, from_in], _sums(weights[:, from_out])
        wins = (heavy_in * (heavy_out[:, below] + heavy_out[:, upto])).sum(1)
        areas.append(wins / (2 * inside.size * outside.size))
        place = (heavy_out[:, 1:] < outside.size - allowed).sum(1)  # of the highest of the others not allowed above
        upto_threshold = np.searchsorted(sorted_in, sorted_out[place], "right")
        missed = np.take_along_axis(_sums(heavy_in), upto_threshold[:, None], 1)[:, 0]
        rates.append((inside.size - missed) / inside.size)
    few = min(inside.size, outside.size)
    one, two = (
        share_interval(share, float(np.concatenate(drawn).var()), len(inside), size)
        for share, drawn, size in ((auc(inside, outside), areas, few), (tpr_at(inside, outside), rates, inside.size))
    )
    return one, two


def bootstrap_tpr(members: Values, others: Values, draws: int = 1000, seed: int = 0) -> Interval | None:
    """The second interval of ``bootstrap_auc``, bit for bit, from the highest scores alone: ten times faster."""
    inside, outside = _pairs(members, others)
    if len(inside) < 2:
        return None
    (high_in, from_in), (high_out, from_out) = _by_score("members", -inside), _by_score("others", -outside)
    allowed, caught = _allowed(FPR, outside.size), []
    for weights in _resampled(len(inside), draws, seed, 2 * inside.size + outside.size):
        few = 4 * allowed + 64
        while (above := np.cumsum(weights[:, from_out[:few]], axis=1))[:, -1].min() <= allowed < outside.size:
            few *= 2
        count = np.searchsorted(high_in, high_out[(above <= allowed).sum(1)])  # members above the threshold
        heavy = _sums(weights[:, from_in[: count.max()]])
        caught.append(np.take_along_axis(heavy, count[:, None], 1)[:, 0])
    variance = float((np.concatenate(caught) / inside.size).var())
    return share_interval(tpr_at(inside, outside), variance, len(inside), inside.size)


def _pairs(members: Values, others: Values) -> tuple[Array, Array]:
    inside, outside = as_array(members), as_array(others)
    if inside.ndim != 2 or outside.ndim != 2 or len(inside) != len(outside) or 0 in (*inside.shape, *outside.shape):
        raise DataError(
            f"Expected members [N, a] and others [N, b] of the same N releases, got {list(inside.shape)} and "
            f"{list(outside.shape)}."
        )
    return inside, outside


def _by_score(what: str, values: Array) -> tuple[Array, Array]:
    """All scores in ascending order, and the release each is from."""
    check_finite(f"scores of {what}", values)
    order = np.argsort(values, axis=None)
    return values.ravel()[order], order // values.shape[1]


def _sums(weights: Array) -> Array:
    """Running sums along the second axis, from 0."""
    sums: Array = np.zeros((len(weights), weights.shape[1] + 1), dtype=weights.dtype)
    np.cumsum(weights, axis=1, out=sums[:, 1:])
    return sums


def _resampled(count: int, draws: int, seed: int, width: int) -> Iterator[Array]:
    """How often each of ``count`` releases is drawn, ``[some, count]`` at a time, ``draws`` in all."""
    random = np.random.Generator(np.random.PCG64(seed))
    step = max(1, ROOM // width)
    for start in range(0, draws, step):
        yield random.multinomial(count, np.full(count, 1 / count), size=min(step, draws - start))


def _percentiles(result: Array, count: int) -> Interval:
    """Percentiles further out than those of 95 %, by as much as Student's interval of ``count`` values is wider.

    A plain percentile interval of n values is too short by about sqrt(1 - 1/n) and by z instead of t: Hesterberg, What
    Teachers Should Know About the Bootstrap (2015), section 3.
    """
    tail = (1 - NormalDist().cdf(student(count - 1) * math.sqrt(count / (count - 1)))) if count > 2 else 0.0
    low, high = np.quantile(result, [tail, 1 - tail])
    return float(low), float(high)


def student(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's distribution, by its expansion in 1 / freedom (Cornish and Fisher).

    Right to 0.1 % from 5 degrees of freedom on: a machine without scipy has intervals too.

    >>> round(student(31), 3), round(student(10**9), 3)
    (2.04, 1.96)
    """
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def rate_interval(values: Values) -> Interval | None:
    """Interval of a rate, from the shares ``[N, E]`` that E examples of N releases each add to it; None for N < 2.

    Agresti and Coull's interval with the number of independent examples that the spread between releases shows
    (Kish's design effect). Unlike a bootstrap it says something where nothing or all was found.

    >>> low, high = rate_interval(np.zeros((32, 4)))
    >>> low, round(high, 3)
    (0.0, 0.038)
    """
    array = as_array(values)
    check_finite("shares", array)
    count, total = len(array), array.size
    if count < 2:
        return None
    rate = float(array.mean())
    between = float(array.reshape(count, -1).mean(1).var()) / count  # the variance that a bootstrap would show
    alone = rate * (1 - rate) / total  # the same, were all examples independent
    return share_interval(rate, max(between, alone * (count - 1) / count), count, total)


def grouped_interval(values: Values, groups: Values) -> Interval | None:
    """Interval of a rate from the shares ``[X]`` of examples in groups ``[X]``; those of a group are not independent.

    None for fewer than six groups: their spread says too little.

    >>> shares, groups = np.arange(40) % 10 < 4, np.arange(40) % 10
    >>> [round(end, 2) for end in grouped_interval(shares, groups)]
    [0.14, 0.73]
    >>> [round(end, 2) for end in rate_interval(shares)]
    [0.26, 0.56]
    """
    array, (names, place) = as_array(values), np.unique(as_array(groups), return_inverse=True)
    check_finite("shares", array)
    count, total = len(names), array.size
    if count < 6:
        return None
    rate = float(array.mean())
    between = float((np.bincount(place, array - rate) ** 2).sum()) / total**2
    alone = rate * (1 - rate) / total
    return share_interval(rate, max(between, alone * (count - 1) / count), count, total)


def bounded_interval(values: Values, most: float) -> Interval | None:
    """Interval of the mean of numbers ``[N, E]`` between 0 and ``most``, as that of a share; None for N < 2.

    Where most of them lie at an end, as log-ranks do when nearly all images are found, a bootstrap's is too short.

    >>> low, high = bounded_interval(np.zeros((32, 4)), math.log(200))
    >>> low, round(high, 3)
    (0.0, 0.2)
    """
    array = as_array(values) / most
    check_finite("values", array)
    if len(array) < 2:
        return None
    each = np.clip(array, 0.0, 1.0).reshape(len(array), -1).mean(1)
    variance = float(each.var()) / len(each)
    variance = variance if variance > 1e-12 else 0.0  # equal numbers differ by rounding
    low, high = share_interval(float(each.mean()), variance, len(each), array.size)
    return float(low * most), float(high * most)


def share_interval(share: float, variance: float, count: int, size: int) -> Interval:
    """Agresti and Coull's interval of a share: that of as many independent trials as ``variance`` is worth.

    ``variance`` is a bootstrap's over ``count`` releases, too small by one of them; where it is zero, and at the
    edges at most, the share counts as one of ``size`` trials.
    """
    t, variance = student(count - 1), variance * count / (count - 1)
    trials = share * (1 - share) / variance if variance > 0 and 0 < share < 1 else size
    if min(share, 1 - share) < 2 / size:  # a variance made of so few cases is itself unsure
        trials = min(trials, size)
    heavier = trials + t**2
    middle = (share * trials + t**2 / 2) / heavier
    half = t * math.sqrt(middle * (1 - middle) / heavier)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
