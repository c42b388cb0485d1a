"""What the rows of an audit show, as ranked statements; ``verdict.py`` says them.

What is worse than no protection comes first, then learned distortion that leaks more than static noise, then how much
each defence still leaks. A difference is called one where a 95 % interval says so: the paired one where it was
measured, else two that do not overlap. Attacks whose control failed are compared with nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .advice import next_steps
from .cells import POSITIVE
from .comparison import JUDGED, MORE, NONE, TWIN, Reading, readings
from .results import FEW
from .summary import UNKNOWN

Content = Mapping[str, Any]
TOO_FEW, UNSCORED, WORSE, LEARNED, TALLY = "too few", "unscored", "worse than none", "learned leaks more", "tally"
STRONGEST, RANKING, ALSO, PIXELS, CONTROL, NEXT = "strongest", "ranking", "also", "pixels", "control failed", "next"


@dataclass(frozen=True)
class Statement:
    """Something that the rows show, and the readings it rests on, the worst first."""

    kind: str
    readings: tuple[Reading, ...] = ()
    steps: tuple[str, ...] = ()  # what to do next


def statements(content: Content) -> list[Statement]:
    """What the rows show, in the order in which it is said."""
    every = list(readings(content))
    few = [row["targets"] for row in content.get("attacks", []) if row.get("evidence") == FEW]
    found = [Statement(TOO_FEW, tuple(every[:1]))] if few and content.get("targets") != UNKNOWN else []
    if content.get("targets") == UNKNOWN:
        return [Statement(UNSCORED)]
    compared = list(_compared(every))
    found += [*compared, *_strongest(every, any(one.kind in (WORSE, LEARNED) for one in compared))]
    pixels = min(readings(content, ("mse",)), key=lambda one: (not one.distorts, one.value), default=None)
    if pixels is not None:
        found += [*([] if every else [Statement(STRONGEST, (pixels,))]), Statement(PIXELS, (pixels,))]
    failed = tuple(one for one in readings(content, (*JUDGED, "mse")) if one.failed)
    found += [Statement(CONTROL, failed)] if failed else []
    steps = next_steps(content, every)
    return [*found, *([Statement(NEXT, steps=steps)] if steps else [])]


def _compared(every: list[Reading]) -> Iterator[Statement]:
    """Against no protection, where it is worse, and against static noise of equal budget."""
    worse = [one for one in every if MORE in (one.against(POSITIVE), one.against(NONE))]
    if worse := [one for one in worse if one.distorts]:
        yield Statement(WORSE, tuple(sorted(worse, key=lambda one: (_rank(one), -_excess(one)))))
    pairs = [one for one in every if one.learns and not one.failed and one.against(TWIN)]
    if more := [one for one in pairs if one.against(TWIN) == MORE]:
        yield Statement(LEARNED, tuple(sorted(more, key=lambda one: (_rank(one), (one.beside(TWIN) or 0) - one.value))))
    if pairs:
        yield Statement(TALLY, tuple(pairs))


def _strongest(every: list[Reading], led: bool) -> Iterator[Statement]:
    """By the first metric the worst of each defence, or of the one there is; by the others the worst of all.

    Where a comparison has ``led``, its example stands for the worst of all.
    """
    defended = [one for one in every if one.distorts] or every
    for place, name in enumerate(dict.fromkeys(one.metric.name for one in sorted(defended, key=_rank))):
        strongest = max((one for one in defended if one.metric.name == name), key=lambda one: one.value)
        if place:
            yield Statement(ALSO, (strongest,))
            continue
        worst: dict[Any, Reading] = {}
        for one in sorted((one for one in every if one.metric.name == name), key=lambda one: -one.value):
            worst.setdefault(one.defence[:2], one)
        if not led or len(worst) == 1:
            yield Statement(STRONGEST, (strongest,))
        if len(worst) > 1:
            yield Statement(RANKING, tuple(worst.values()))


def _rank(one: Reading) -> int:
    return JUDGED.index(one.metric.name)


def _excess(one: Reading) -> float:
    """By how much more than without protection."""
    return one.value - min(one.beside(role) or 0.0 for role in (POSITIVE, NONE) if one.against(role) == MORE)
