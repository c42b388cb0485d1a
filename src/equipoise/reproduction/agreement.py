"""Means with intervals, and the rule by which a cell agrees with the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, sqrt
from statistics import mean, stdev
from typing import Any, Literal

from scipy.stats import spearmanr
from scipy.stats import t as student

from ..statistics import interval

Cell = dict[str, Any]
"""What ``spread`` says of some values, with whatever belongs beside it: where it was measured, the paper's value."""
State = Literal["holds", "fails", "not shown"]
"""What data say of a claim: the intervals show it, they contradict it, or they do neither."""
REACH = {"accuracy": (3.0, 10.0), "mse": (0.1, 0.33), "ssim": (1.0, 3.3), "cap": (0.1, 0.33)}
"""The least and the most that a prediction interval is taken to reach to each side, by quantity.

Accuracy and SSIM are in points; MSE and CAP in normalised units, in which uniform noise scores 3.3 on MNIST. The limits
are the same 3 % and 10 % of what the quantity spans, except for SSIM: no value of the paper is above 7 points, so a
third of those limits is used.
"""


def spread(values: Sequence[float]) -> Cell:
    """Mean, standard deviation and 95 % interval of the mean over seeds.

    >>> spread([1.0, 3.0])["mean"], spread([1.0])["interval"]
    (2.0, None)
    """
    deviation = stdev(values) if len(values) > 1 else None
    return {"mean": mean(values), "sd": deviation, "interval": interval(values), "seeds": len(values)}


def reach(values: Sequence[float], quantity: str) -> float:
    """Half the 95 % prediction interval for one further seed, between the limits of the quantity.

    >>> reach([50.0, 50.0], "accuracy"), reach([20.0, 80.0], "accuracy")
    (3.0, 10.0)
    """
    least, most = REACH[quantity]
    if len(values) < 2:
        return least
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) * sqrt(1 + 1 / len(values))
    return min(most, max(least, half))


def compared(values: Sequence[float], paper: float, quantity: str) -> Cell:
    """A cell: ours over seeds, the paper's value, and whether that lies in the prediction interval."""
    half = reach(values, quantity)
    gap = mean(values) - paper
    return {
        **spread(values),
        "values": list(values),
        "paper": paper,
        "difference": gap,
        "reach": half,
        "agrees": abs(gap) <= half,
    }


def rule(quantity: str, unit: str) -> str:
    """By which a cell of ``compared`` agrees, in words."""
    least, most = REACH[quantity]
    return (
        "A cell agrees when the paper's value lies in the 95 % prediction interval for one further seed, taken at "
        f"least {least:g} and at most {most:g} {unit} to each side."
    )


def paired(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Differences of values of the same seeds.

    >>> paired([3.0, 5.0], [1.0, 2.0])
    [2.0, 3.0]
    """
    return [a - b for a, b in zip(one, other, strict=True)]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, with ties.

    >>> rank_correlation([1, 2, 3], [9, 5, 1])
    -1.0
    """
    return float(round(spearmanr(one, other).statistic, 12))


def above(cell: Cell, level: float = 0.0) -> bool:
    """Whether the whole 95 % interval lies above a level."""
    return cell["interval"] is not None and cell["interval"][0] > level


def below(cell: Cell, level: float = 0.0) -> bool:
    """Whether the whole 95 % interval lies below a level."""
    return cell["interval"] is not None and cell["interval"][1] < level


def between(cell: Cell, low: float = -inf, high: float = inf) -> State:
    """Whether a mean lies between two levels, by its 95 % interval.

    It holds where the whole interval lies between them, fails where the whole interval lies beyond one of them, and is
    not shown otherwise: an interval that holds or touches a level decides nothing, and one seed has no interval.

    >>> [between({"interval": ends}, low=0.0) for ends in ((0.1, 0.3), (-0.3, -0.1), (0.0, 0.3), None)]
    ['holds', 'fails', 'not shown', 'not shown']
    """
    if cell["interval"] is None:
        return "not shown"
    start, end = cell["interval"]
    if low < start and end < high:
        return "holds"
    return "fails" if end < low or start > high else "not shown"


def told(state: State) -> Cell:
    """What a cell says of a claim that an interval judges: the paper's, so one that holds agrees with it.

    >>> told("not shown")
    {'agrees': False, 'state': 'not shown'}
    """
    return {"agrees": state == "holds", "state": state}


def together(states: Iterable[State]) -> State:
    """Of a claim about several cells: one that fails refutes it, and all must hold to show it.

    >>> together(["holds", "not shown"]), together(["holds", "not shown", "fails"]), together(["holds", "holds"])
    ('not shown', 'fails', 'holds')
    """
    seen = set(states)
    if "fails" in seen:
        return "fails"
    return "holds" if seen == {"holds"} else "not shown"
