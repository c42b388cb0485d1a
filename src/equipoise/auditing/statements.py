"""What the rows of an audit show, as ranked statements; ``verdict.py`` says them.

What is worse than no protection comes first, then learned distortion that leaks more than static noise, then how much
each defence still leaks, then what leaks more than the run's own unprotected federation, whose weights differ. A
difference is called one where a 95 % interval says so: the paired one where it was measured, else two that do not
overlap. A failed control voids low figures and "no clear difference", and no difference that is clear; what is cited
comes from cells whose controls worked, where there are any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .advice import next_steps
from .cells import EQUAL_LOWER, POSITIVE
from .comparison import JUDGED, MORE, NONE, UNCLEAR, Reading, readings
from .results import FEW, candidates_of
from .summary import ERRORS, SCHEDULES, UNKNOWN, Content

TOO_FEW, UNSCORED, WORSE, LEARNED, TALLY = "too few", "unscored", "worse than none", "learned leaks more", "tally"
STRONGEST, RANKING, ALSO, PIXELS, CONTROL, NEXT = "strongest", "ranking", "also", "pixels", "control failed", "next"
COMBINED, BROKEN, UNPROTECTED = "combined releases", "not finite", "more than the unprotected run"
VERIFIED, NO_BETTER, LACKING = "guesses verified", "no clear difference from none", "too few non-members"


@dataclass(frozen=True)
class Statement:
    """Something that the rows show, and the readings it rests on, the worst first."""

    kind: str
    readings: tuple[Reading, ...] = ()
    steps: tuple[str, ...] = ()  # what to do next
    combined: Mapping[str, Any] | None = None  # a row of ``multi_round``
    cells: tuple[int, ...] = ()  # of how many each reading is the largest
    largest: Reading | None = None  # the largest figure, where the one that is cited is another


def statements(content: Content) -> list[Statement]:
    """What the rows show, in the order in which it is said."""
    measured = list(readings(content))
    every = [one for one in measured if one.too_few is None]
    few = [row["targets"] for row in content.get("attacks", []) if row.get("evidence") == FEW]
    found = [Statement(TOO_FEW, tuple(every[:1]))] if few and content.get("targets") != UNKNOWN else []
    if content.get("targets") == UNKNOWN:
        return [Statement(UNSCORED)]
    compared = list(_compared(every))
    found += [*compared, *_combined(content, alone=not content.get("attacks"))]
    found += _strongest(every, any(one.kind in (WORSE, LEARNED) for one in compared))
    if lacking := tuple(one for one in measured if one.too_few is not None):
        found += [Statement(LACKING, lacking[:1])]
    if unclear := _no_better(every):
        found += [Statement(NO_BETTER, unclear)]
    if above := _more_than(every, NONE):
        found += [Statement(UNPROTECTED, above)]
    pixels = min(readings(content, ERRORS), key=lambda one: (not one.distorts, one.value), default=None)
    if pixels is not None:
        found += [*([] if every else [Statement(STRONGEST, (pixels,))]), Statement(PIXELS, (pixels,))]
    found += _verified(content)
    for kind, name in ((CONTROL, "control_failed"), (BROKEN, "not_finite")):
        scored = readings(content, (*JUDGED, *ERRORS, "verified"))
        doubtful = tuple(one for one in scored if one.own.get(name) and one.too_few is None and not one.vacuous)
        found += [Statement(kind, doubtful)] if doubtful else []
    steps = next_steps(content, measured)
    return [*found, *([Statement(NEXT, steps=steps)] if steps else [])]


def _compared(every: list[Reading]) -> Iterator[Statement]:
    """Against no protection, where it is worse, and against static noise of equal budget."""
    if worse := _more_than(every, POSITIVE):
        yield Statement(WORSE, worse, largest=_larger(every, worse[0]))
    learned = [one for one in every if one.learns]
    if more := _more_than(learned, EQUAL_LOWER):
        yield Statement(LEARNED, more, largest=None if worse else _larger(every, more[0]))
    if any(one.against(EQUAL_LOWER) for one in learned):
        yield Statement(TALLY, tuple(one for one in learned if one.beside(EQUAL_LOWER) is not None))


def _more_than(every: list[Reading], role: str) -> tuple[Reading, ...]:
    """What clearly leaks more than another side, where controls worked first, then by the widest gap.

    At round 0 no weights differ from another run's.
    """
    more = [one for one in every if one.distorts and one.against(role) == MORE and (one.round or role != NONE)]
    return tuple(sorted(more, key=lambda one: (one.failed, _rank(one), (one.beside(role) or 0.0) - one.value)))


def _larger(every: list[Reading], one: Reading) -> Reading | None:
    """The largest figure of any defence, where it is another one than ``one``, which differs most clearly."""
    largest = max((two for two in every if two.distorts and two.metric == one.metric), key=lambda two: two.value)
    return None if one.metric.form(largest.value) == one.metric.form(one.value) else largest


def _no_better(every: list[Reading]) -> tuple[Reading, ...]:
    """What shows no clear difference from no protection at a later round, in the images that ``matched`` identifies."""
    later = [one for one in every if one.distorts and one.round and one.attack == "matched"]
    unclear = [one for one in later if one.metric.name == JUDGED[0] and one.against(POSITIVE) == UNCLEAR]
    return tuple(sorted(unclear, key=lambda one: (one.round or 0, -one.value)))


def found_in(row: Mapping[str, Any]) -> list[str]:
    """The schedules under which many rounds clearly tell more than chance, and more than of a decoy.

    Such a rate stands even where the attack fails without distortion: that voids low figures alone.
    """
    chance = 1 / candidates_of(row)
    ends = {name: (row[f"identification_{name}_low"], row[f"identification_{name}_decoy_high"]) for name in SCHEDULES}
    return [name for name, (low, decoy) in ends.items() if low is not None and low > max(chance, decoy)]


def _combined(content: Content, alone: bool) -> Iterator[Statement]:
    """Many rounds together, where they tell more than chance, or where nothing else was measured: the worst defence."""
    rows = content.get("multi_round", [])
    rows = [row for row in rows if row["mechanism"] != "none"] or rows
    told = [row for row in rows if found_in(row)] or (rows if alone else [])
    if told:
        worst = max(told, key=lambda row: max(row[f"identification_{name}"] for name in found_in(row) or SCHEDULES))
        yield Statement(COMBINED, combined=worst)


def _strongest(every: list[Reading], led: bool) -> Iterator[Statement]:
    """By the first metric the worst of each defence, or of the one there is; by the others the worst of all.

    Where a comparison has ``led``, its example stands for the worst of all.
    """
    defended = [one for one in every if one.distorts] or every
    for place, name in enumerate(dict.fromkeys(one.metric.name for one in sorted(defended, key=_rank))):
        alike = [one for one in defended if one.metric.name == name]
        alike = [one for one in alike if not one.vacuous] or alike
        strongest = min(alike, key=_order)
        if place:
            yield Statement(ALSO, (strongest,), cells=(len(alike),))
            continue
        ranked: dict[Any, list[Reading]] = {}
        for one in sorted((one for one in every if one.metric.name == name), key=_order):
            ranked.setdefault(one.defence[:2], []).append(one)
        if not led or len(ranked) == 1:
            largest = max(alike, key=lambda one: one.value)
            yield Statement(
                STRONGEST,
                (strongest,),
                cells=(len(alike),),
                largest=None if largest.doubtful == strongest.doubtful else largest,
            )
        if len(ranked) > 1:
            mine = ranked.values()
            yield Statement(RANKING, tuple(one[0] for one in mine), cells=tuple(map(len, mine)))


def _verified(content: Content) -> Iterator[Statement]:
    """Guesses that were checked: never ranked beside other attacks, none of which is granted the rest of a batch."""
    every = list(readings(content, ("verified",)))
    defended = [one for one in every if one.distorts] or every
    if defended:
        yield Statement(VERIFIED, (max(defended, key=lambda one: one.value),), cells=(len(defended),))


def _order(one: Reading) -> tuple[bool, float]:
    """What is cited first: the largest figure where the control worked, or where it does not matter."""
    return one.doubtful, -one.value


def _rank(one: Reading) -> int:
    return JUDGED.index(one.metric.name)
