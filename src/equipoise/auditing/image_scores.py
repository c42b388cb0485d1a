"""What a reconstruction is worth, and which guess is of which truth.

Images are ``[..., C, H, W]`` and give one score for each leading index, in the dtype and on the device they came in.
Leading axes broadcast: ``mse(guess[:, :, None], truth[:, None])`` is the cost of every guess against every truth.

==========================  ==========================================================================
edge case                   result
==========================  ==========================================================================
guess equals truth          PSNR is inf, SSIM is 1
NaN in an image             its own score is NaN, no other
non-finite cost             ``DataError``
==========================  ==========================================================================
"""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..statistics import ROOM, Values, as_array, check_finite

SIGMA, RADIUS = 1.5, 5  # scikit-image cuts the Gaussian off at int(3.5 * 1.5 + 0.5) pixels
ENUMERATED = 6
"""The most images whose orders are all tried; 7 images have 5,040 of them."""


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


def arranged(guess: Tensor, truth: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Guesses ``[N, E, ...]`` in the order of the truths that they match best, and that order ``[N, E]``."""
    pixels = truth[0, 0].numel()
    cost = torch.cdist(guess.flatten(2), truth.flatten(2)).square() / pixels
    assigned = match(cost, labels)
    wide = assigned.view(*assigned.shape, *[1] * (truth.dim() - 2)).expand_as(truth)
    return guess.gather(1, wide), assigned


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


# --- one number for utility and privacy --------------------------------------------------------------------


def cap(accuracies: Values, errors: Values) -> float:
    """Calibrated Averaged Performance: the mean over budgets of accuracy times reconstruction error.

    ``CAP(g, a) = 1/m Σ_s Acc(g_s, x) * Rerr(x, x̂_s)`` for a mechanism g at m budgets s against an attack a.
    Accuracies are fractions; errors are the MSE in normalised units, as the paper's own tables have it.

    >>> cap([0.5, 1.0], [2.0, 3.0])
    2.0
    """
    accuracy, error = as_array(accuracies).ravel(), as_array(errors).ravel()
    if len(accuracy) != len(error) or len(error) == 0:
        raise DataError(f"Expected one error for each accuracy, got {len(error)} and {len(accuracy)}.")
    check_finite("accuracies", accuracy)
    check_finite("errors", error)
    if accuracy.min() < 0 or accuracy.max() > 1:
        raise DataError(
            f"Expected accuracies between 0 and 1, got {accuracy.min():g} to {accuracy.max():g}.",
            "Divide percentages by 100.",
        )
    return float((accuracy * error).mean())
