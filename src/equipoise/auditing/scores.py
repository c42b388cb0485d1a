"""What a reconstruction, a ranking or a membership score is worth, and how sure that is.

Images are ``[..., C, H, W]`` and give one score for each leading index, in the dtype and on the device they came in.
Leading axes broadcast: ``mse(guess[:, :, None], truth[:, None])`` is the cost of every guess against every truth.

Releases are what is independent; the images inside one share its noise. Every interval here resamples whole releases.

==========================  ==========================================================================
edge case                   result
==========================  ==========================================================================
guess equals truth          PSNR is inf, SSIM is 1
NaN in an image             its own score is NaN, no other
NaN score of the truth      the worst rank
NaN score of a decoy        below every score that is a number
ties                        half a win in AUC and rank; an even chance each of being first
non-finite AUC, TPR, cost   ``DataError``
one release                 no interval (None)
==========================  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ConfigError, DataError

Array = npt.NDArray[Any]
Values = Tensor | npt.ArrayLike
Interval = tuple[float, float]

SIGMA, RADIUS = 1.5, 5  # scikit-image cuts the Gaussian off at int(3.5 * 1.5 + 0.5) pixels
ROOM = 1 << 22
"""Numbers that one piece of a longer computation may hold."""
ENUMERATED = 6
"""The most images whose orders are all tried; 7 images have 5,040 of them."""
ENOUGH = 20
"""Releases below which a result says too little to be called one."""


# --- images ------------------------------------------------------------------------------------------------


def mse(guess: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of every image: ``[..., C, H, W]`` -> ``[...]``.

    >>> mse(torch.zeros(2, 1, 2, 2), torch.full((1, 2, 2), 3.0))
    tensor([9., 9.])
    """
    _check_images(guess, truth)
    return (guess - truth).square().mean((-3, -2, -1))


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of pixels in [0, 1]; inf where both are equal.

    >>> psnr(torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.1))
    tensor(20.)
    """
    _check_pixels(guess, truth)
    return -10 * mse(guess, truth).log10()


def ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity of pixels in [0, 1], as scikit-image defines it.

    This is ``skimage.metrics.structural_similarity`` with ``gaussian_weights=True, sigma=1.5, data_range=1,
    channel_axis=0`` and its default ``use_sample_covariance=True``: a Gaussian window of 11 pixels, averaged over the
    places where it lies inside the image. Other libraries give other numbers.

    >>> round(float(ssim(torch.full((1, 11, 11), 0.5), torch.full((1, 11, 11), 1.0))), 6)
    0.800016
    """
    _check_pixels(guess, truth)
    leading, shape = np.broadcast_shapes(guess.shape[:-3], truth.shape[:-3]), guess.shape[-3:]
    if min(shape[1:]) < 2 * RADIUS + 1:
        raise DataError(
            f"Expected images of at least 11 x 11 pixels for SSIM, got {shape[1]} x {shape[2]}.",
            "Score smaller images with mse or psnr.",
        )
    x, y = (images.expand(*leading, *shape).reshape(-1, *shape) for images in (guess, truth))
    step = max(1, ROOM // (5 * math.prod(shape)))
    pieces = [_ssim(x[i : i + step], y[i : i + step]) for i in range(0, len(x), step)]
    return (torch.cat(pieces) if pieces else x.new_empty(0)).reshape(leading)


def _ssim(x: Tensor, y: Tensor) -> Tensor:
    mean_x, mean_y, xx, yy, xy = _blurred(torch.stack([x, y, x * x, y * y, x * y]))
    window = (2 * RADIUS + 1) ** 2
    unbiased = window / (window - 1)  # scikit-image's sample covariance
    var_x, var_y = unbiased * (xx - mean_x * mean_x), unbiased * (yy - mean_y * mean_y)
    both = unbiased * (xy - mean_x * mean_y)
    c1, c2 = 0.01**2, 0.03**2
    top = (2 * mean_x * mean_y + c1) * (2 * both + c2)
    bottom = (mean_x * mean_x + mean_y * mean_y + c1) * (var_x + var_y + c2)
    scores: Tensor = (top / bottom).mean((-3, -2, -1))
    return scores


def _blurred(maps: Tensor) -> Tensor:
    """Gaussian means where the whole window fits: ``[..., H, W]`` -> ``[..., H - 10, W - 10]``.

    A sum of shifted slices and not ``conv2d``: by default cuDNN convolves float32 in TF32, whose ten bits are too few
    for the variances, which are differences of nearly equal numbers.
    """
    weights = [math.exp(-0.5 * (offset / SIGMA) ** 2) for offset in range(-RADIUS, RADIUS + 1)]
    total = sum(weights)
    for dim in (-2, -1):
        size = maps.shape[dim] - 2 * RADIUS
        blurred = maps.narrow(dim, 0, size) * (weights[0] / total)
        for start, weight in enumerate(weights[1:], 1):
            blurred = blurred.add(maps.narrow(dim, start, size), alpha=weight / total)
        maps = blurred
    return maps


def _check_images(guess: Tensor, truth: Tensor) -> None:
    if guess.ndim < 3 or guess.shape[-3:] != truth.shape[-3:]:
        raise DataError(
            f"Expected images of one shape, got {list(guess.shape[-3:])} and {list(truth.shape[-3:])}.",
            "Give both as [..., C, H, W].",
        )
    if not guess.is_floating_point() or not truth.is_floating_point():
        raise DataError(
            f"Expected float images, got {guess.dtype} and {truth.dtype}.", "Convert: images.float() / 255."
        )


def _check_pixels(*images: Tensor) -> None:
    for image in images:
        # Undoing a normalisation may leave [0, 1] by rounding; NaN passes and makes its own score NaN.
        if bool(((image < -1e-5) | (image > 1 + 1e-5)).any()):
            raise DataError(
                f"Expected pixels in [0, 1], got {float(image.nan_to_num(0.5).min()):g} "
                f"to {float(image.nan_to_num(0.5).max()):g}.",
                "Undo the normalisation and clamp: data.pixels(images).clamp(0, 1).",
            )


# --- which guess is of which truth -------------------------------------------------------------------------


def match(cost: Tensor, labels: Tensor) -> Tensor:
    """The guess for every truth at the least summed cost, among guesses of its label: ``[N, E, E]`` -> ``[N, E]``.

    ``cost[n, i, j]`` is that of guess i for truth j. Guess i was made for ``labels[n, i]``, the label of truth i, so
    that only images of one label can have changed places. The optimum is exact; of equally good orders of up to
    six images the first one is taken, beginning with no change.

    >>> cost = torch.tensor([[[5.0, 1.0], [1.0, 5.0]]])
    >>> match(cost, torch.tensor([[3, 3]])), match(cost, torch.tensor([[3, 4]]))
    (tensor([[1, 0]]), tensor([[0, 1]]))
    """
    if cost.ndim != 3 or cost.shape[1] != cost.shape[2] or labels.shape != cost.shape[:2]:
        raise DataError(
            f"Expected a cost [N, E, E] and labels [N, E], got {list(cost.shape)} and {list(labels.shape)}."
        )
    if not bool(torch.isfinite(cost).all()):
        row = int((~torch.isfinite(cost)).flatten(1).any(1).nonzero()[0])
        raise DataError(f"Expected finite costs, got others in row {row}.", "Leave out reconstructions that diverged.")
    size = labels.shape[1]
    ordered = labels.sort(1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero().squeeze(1)
    assigned = torch.arange(size, device=cost.device).expand(len(cost), -1).contiguous()
    if len(repeated) == 0:
        return assigned
    labels = labels[repeated]
    allowed = cost[repeated].masked_fill(labels[:, :, None] != labels[:, None, :], math.inf)
    assigned[repeated] = _by_enumeration(allowed) if size <= ENUMERATED else _by_assignment(allowed)
    return assigned


def _by_enumeration(cost: Tensor) -> Tensor:
    size = cost.shape[1]
    orders = torch.tensor(list(permutations(range(size))), device=cost.device)  # [E!, E]
    truths = torch.arange(size, device=cost.device)
    step = max(1, ROOM // orders.numel())
    best = [cost[i : i + step, orders, truths].sum(-1).argmin(1) for i in range(0, len(cost), step)]
    return orders[torch.cat(best)]


def _by_assignment(cost: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    rows = [linear_sum_assignment(row.T)[1] for row in cost.detach().cpu().double().numpy()]
    return torch.from_numpy(np.stack(rows)).to(cost.device, torch.int64)


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


def ranks(scores: Tensor, truth: int = 0) -> Ranking:
    """The place of candidate ``truth`` among K, higher scores being better: ``[..., K]`` -> ``[...]``.

    >>> ranking = ranks(torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]))
    >>> ranking.rank.tolist(), ranking.first.tolist()
    ([0.0, 0.5, 2.0], [1.0, 0.5, 0.0])
    """
    own = scores[..., truth].unsqueeze(-1)
    better, tied = (scores > own).sum(-1), (scores == own).sum(-1) - 1
    lost = torch.isnan(own.squeeze(-1))
    return Ranking(better.masked_fill(lost, scores.shape[-1] - 1), tied.masked_fill(lost, 0))


def identification(ranking: Ranking) -> float:
    """The share of truths that are named first; guessing among K candidates gives 1 / K.

    >>> identification(ranks(torch.zeros(7, 4)))
    0.25
    """
    return float(ranking.first.mean())


# --- membership --------------------------------------------------------------------------------------------


def auc(members: Values, others: Values) -> float:
    """The probability that a member scores above a non-member, ties counting half.

    >>> auc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    inside, outside = _scores("members", members), _scores("others", others)
    below, upto = (np.searchsorted(outside, inside, side) for side in ("left", "right"))
    return float((below + upto).mean()) / (2 * len(outside))


def tpr_at(members: Values, others: Values, fpr: float = 0.01) -> float:
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
    array = _array(values).ravel()
    if len(array) == 0:
        raise DataError(f"Expected at least one score of {what}, got none.", "Score members and others.")
    _check_finite(f"scores of {what}", array)
    return np.sort(array)


def _allowed(fpr: float, count: int) -> int:
    """How many of the others may be above the threshold; the tiny term makes 0.29 of 100 count as 29."""
    if not 0 <= fpr <= 1:
        raise ConfigError(f"Expected fpr={fpr} to be between 0 and 1.", "0.01 is usual.")
    return math.floor(fpr * count + 1e-9)


def _array(values: Values) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _check_finite(what: str, array: Array) -> None:
    bad = array[~np.isfinite(array)]
    if len(bad):
        raise DataError(
            f"Expected finite {what}, got {bad[0]} among {array.size}.", "Repair or leave out what gave that value."
        )


# --- intervals over releases -------------------------------------------------------------------------------


def bootstrap(
    values: Values,
    statistic: Callable[[Array], Any] = np.mean,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval | None:
    """Percentile interval of a statistic of N releases, ``values`` ``[N, ...]``; None for fewer than two.

    ``statistic`` takes an array of the shape of ``values``. The same N, draws and seed
    resample the same releases, here and in ``bootstrap_auc``, so that two intervals can be compared.

    >>> low, high = bootstrap(np.arange(100.0))
    >>> 40 < low < 49.5 < high < 60
    True
    """
    array = _array(values)
    _check_finite("values", array)
    count = len(array)
    if count < 2:
        return None
    found: list[Array] = []
    for weights in _resampled(count, draws, seed, count):
        if statistic is np.mean:
            found.append(weights @ array.reshape(count, -1).mean(1) / count)
        else:
            found.append(np.array([float(statistic(array[np.repeat(np.arange(count), row)])) for row in weights]))
    return _percentiles(np.concatenate(found), level)


def bootstrap_auc(
    members: Values,
    others: Values,
    draws: int = 1000,
    seed: int = 0,
    fpr: float = 0.01,
    level: float = 0.95,
) -> tuple[Interval, Interval] | None:
    """Percentile intervals of ``auc`` and of ``tpr_at``, from ``[N, a]`` members and ``[N, b]`` others of N releases.

    A release is drawn with all of its members and others. None for fewer than two.

    >>> scores = np.arange(40.0).reshape(20, 2)
    >>> bootstrap_auc(scores + 100, scores)
    ((1.0, 1.0), (1.0, 1.0))
    """
    inside, outside = _array(members), _array(others)
    if inside.ndim != 2 or outside.ndim != 2 or len(inside) != len(outside) or 0 in (*inside.shape, *outside.shape):
        raise DataError(
            f"Expected members [N, a] and others [N, b] of the same N releases, got {list(inside.shape)} and "
            f"{list(outside.shape)}."
        )
    if len(inside) < 2:
        return None
    sorted_in, from_in = _by_score("members", inside)
    sorted_out, from_out = _by_score("others", outside)
    below, upto = (np.searchsorted(sorted_out, sorted_in, side) for side in ("left", "right"))
    allowed = _allowed(fpr, outside.size)
    areas: list[Array] = []
    rates: list[Array] = []
    # Resampling gives every release a weight, and N releases the total weight of N, whatever was drawn.
    for weights in _resampled(len(inside), draws, seed, 2 * inside.size + outside.size):
        heavy_in, heavy_out = weights[:, from_in], _sums(weights[:, from_out])
        wins = (heavy_in * (heavy_out[:, below] + heavy_out[:, upto])).sum(1)
        areas.append(wins / (2 * inside.size * outside.size))
        if allowed >= outside.size:
            rates.append(np.ones(len(weights)))
            continue
        place = (heavy_out[:, 1:] < outside.size - allowed).sum(1)  # of the highest of the others not allowed above
        upto_threshold = np.searchsorted(sorted_in, sorted_out[place], "right")
        missed = np.take_along_axis(_sums(heavy_in), upto_threshold[:, None], 1)[:, 0]
        rates.append((inside.size - missed) / inside.size)
    return _percentiles(np.concatenate(areas), level), _percentiles(np.concatenate(rates), level)


def _by_score(what: str, values: Array) -> tuple[Array, Array]:
    """All scores in ascending order, and the release each is from."""
    _check_finite(f"scores of {what}", values)
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


def _percentiles(found: Array, level: float) -> Interval:
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# --- one number for utility and privacy --------------------------------------------------------------------


def cap(accuracies: Values, errors: Values) -> float:
    """Calibrated Averaged Performance: the mean over budgets of accuracy times reconstruction error.

    ``CAP(g, a) = 1/m Σ_s Acc(g_s, x) * Rerr(x, x̂_s)`` for a mechanism g at m budgets s against an attack a.
    Accuracies are fractions; errors are the MSE in normalised units, as the paper's own tables have it.

    >>> cap([0.5, 1.0], [2.0, 3.0])
    2.0
    """
    accuracy, error = _array(accuracies).ravel(), _array(errors).ravel()
    if len(accuracy) != len(error) or len(error) == 0:
        raise DataError(f"Expected one error for each accuracy, got {len(error)} and {len(accuracy)}.")
    _check_finite("accuracies", accuracy)
    _check_finite("errors", error)
    if accuracy.min() < 0 or accuracy.max() > 1:
        raise DataError(
            f"Expected accuracies between 0 and 1, got {accuracy.min():g} to {accuracy.max():g}.",
            "Divide percentages by 100.",
        )
    return float((accuracy * error).mean())


def verdict(releases: int) -> str:
    """Whether that many releases are enough to speak of a result.

    >>> verdict(19), verdict(20)
    ('insufficient evidence', 'ok')
    """
    return "ok" if releases >= ENOUGH else "insufficient evidence"
