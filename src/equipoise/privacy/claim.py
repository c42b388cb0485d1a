"""``guarantee.json``: what is claimed for one run, on what grounds, and what is not, for programs and auditors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..errors import BudgetError, expected, is_finite, is_whole
from .gaussian import Noise, delta_of
from .guarantee import guarantee

SCHEMA = "equipoise/guarantee/1"
SEEDED = "a seeded run has none; this is the epsilon of the mechanism"
DRAW_ERROR = 1e-223
"""Total variation between one draw of the noise and what is assumed of it, given uniform words."""

ARITHMETIC = (
    "Each unit's clipped gradient is rounded towards zero to whole numbers of grid steps, whose norm is then held "
    "against the clip.",
    "Integers are added without rounding. Where their sum is rounded down to a coarser grid, one unit can move it by "
    "1/16,000 of the clip more, and the noise is larger by as much.",
    "The noise is a continuous Gaussian rounded to the nearest whole number of steps: rounding is post-processing, so "
    "that the accounting of the continuous Gaussian applies unchanged.",
    "Received weights are added after the noise; whatever the server put there is post-processing.",
    "Of the sampler it is assumed that its draws are independent, and each within draw_error of the rounded Gaussian "
    "in total variation, given uniform words; (1 + e^epsilon) * coordinates * rounds * draw_error comes on top of "
    "delta.",
)
ALONE_LINEAR = (
    "For the linear head of this run a unit's clipped gradient depends on that unit and public things alone, bit for "
    "bit."
)
ALONE_ASSUMED = (
    "That a unit's clipped gradient depends on that unit and public things alone is not proved for this model: see the "
    "assumption about the gradient of a record."
)
ASSUMPTIONS = (
    "The machine's float64 arithmetic is that of IEEE 754, and torch.special.ndtri errs by less than 1.9e-13.",
    "The operating system's entropy is uniform, and nobody else learns it.",
    "The model, its frozen features, its loss and every setting are public and were chosen without looking at the "
    "private data.",
    "Units are what the data says they are: a record is one row, a group is what the group column names.",
    "No more than the stated number of releases is made under this claim; sampling rate, noise multiplier and noise "
    "schedule were fixed before the first. The noise of a release is that many of its own clips.",
)
LINEAR = "The features of a record are a function of that record: the feature network neither remembers nor draws."
EACH_RECORD = (
    "The gradient of a record has the same bits whatever records are computed beside it: tried on made-up records "
    "before the first release, and not proved."
)
MOST_COORDINATES = 10**12
"""What is assumed of a release whose size is not known."""
NEGLIGIBLE = 1e-3
"""What the sampler adds to delta may be at most this share of it."""
EXCLUSIONS = (
    "tuning on private data",
    "several records of one person, without a group column",
    "the size of the data set, where a policy or the divisor tells it",
    "a person with records at several clients",
    "timing",
    "evaluation metrics and anything else sent beside the releases",
    "seeded experiments: they have no guarantee",
)


def guarantee_claim(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    sigma: float,
    divisor: float,
    clip: float | None = None,
    coordinates: int | None = None,
    sampling_rate: float = 1.0,
    schedule: Noise | None = None,
    unit: str = "record",
    linear: bool = False,
    seeded: bool = False,
    not_covered: Iterable[str] = (),
) -> dict[str, Any]:
    """The content of ``guarantee.json``.

    Args:
        epsilon: of the whole run, as budgeted.
        delta: of the whole run, as budgeted.
        rounds: releases that the budget is for, T.
        sigma: noise multiplier that the run uses.
        divisor: the public stand-in for the number of units.
        clip: L2 norm that a unit's gradient is clipped to, where it is known; the noise is so many of these.
        coordinates: numbers in one release, P, where it is known.
        sampling_rate: q.
        schedule: relative noise, as pairs (multiplier, number of rounds).
        unit: "record" or "group".
        linear: whether the model is a linear head on features, for which more is proved.
        seeded: whether the noise followed from a seed, so that nothing is claimed.
        not_covered: what else is not, of this run.

    Returns:
        A document of JSON's own types.

    Raises:
        BudgetError: where ``sigma`` is less noise than the budget needs: nothing is claimed that does not hold.

    >>> claim = guarantee_claim(
    ...     epsilon=2.0, delta=1e-5, rounds=50, sigma=14.09839, clip=0.5, divisor=1000, coordinates=39700, seeded=True
    ... )
    >>> claim["holds"], claim["reason"]
    (False, 'a seeded run has none; this is the epsilon of the mechanism')
    """
    _check(clip, divisor, coordinates)
    actual = delta_of(sigma, epsilon, rounds, sampling_rate, schedule)
    if actual > delta:
        raise BudgetError(
            f"Noise multiplier {sigma:g} has delta {actual:.3g} at epsilon {epsilon:g}, more than {delta:g}.",
            "Use the one that noise_multiplier gives.",
        )
    added = _added(epsilon, (coordinates or MOST_COORDINATES) * rounds * DRAW_ERROR)
    if added > NEGLIGIBLE * delta:
        raise BudgetError(f"At epsilon {epsilon:g} nothing can be claimed.", "Take a smaller one; 1 to 8 are usual.")
    found = guarantee(
        sigma=sigma, delta=delta, rounds=rounds, sampling_rate=sampling_rate, unit=unit, schedule=schedule
    ).plain()
    return {
        "schema": SCHEMA,
        "holds": not seeded,
        "reason": SEEDED if seeded else "by the proof in docs/gaussian_dp.md, under the assumptions below",
        "mechanism": "gaussian-dp",
        "unit": unit,
        "relation": found["relation"],
        "epsilon": float(epsilon),
        "delta": float(delta),
        "sampling_rate": found["sampling_rate"],
        "sampling": "all units in every release" if sampling_rate == 1 else "Poisson",
        "sigma": found["sigma"],
        "rounds": rounds,
        "noise_schedule": [[float(relative), count] for relative, count in schedule or ((1.0, rounds),)],
        "clip": None if clip is None else float(clip),
        "divisor": float(divisor),
        "coordinates": coordinates,
        "arithmetic": {
            "draw_error": DRAW_ERROR,
            "added_to_delta": added,
            "statements": [ARITHMETIC[0], ALONE_LINEAR if linear else ALONE_ASSUMED, *ARITHMETIC[1:]],
        },
        "assumptions": [*ASSUMPTIONS, LINEAR if linear else EACH_RECORD],
        "exclusions": [*EXCLUSIONS, *not_covered],
        "limits": {
            "game": f"with the {unit} or without it; candidates exchangeable beforehand; the attacker knows all others",
            **{key: found[key] for key in ("identification", "membership_tpr", "advantage")},
        },
    }


def _check(clip: float | None, divisor: float, coordinates: int | None) -> None:
    for name, value in (("clip", clip), ("divisor", divisor)):
        if value is not None and (not is_finite(value) or value <= 0):
            raise expected(name, value, "a finite number > 0")
    if coordinates is not None and (not is_whole(coordinates) or coordinates < 1):
        raise expected("coordinates", coordinates, "a whole number >= 1", "Give the number of values in a release.")


def _added(epsilon: float, error: float) -> float:
    """What noise that is wrong with a small probability adds to delta."""
    return (1 + math.exp(min(epsilon, 700.0))) * error
