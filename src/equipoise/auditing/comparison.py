"""The rows of ``audit.json`` side by side: a defence, its static twins, no protection, and chance.

Rounds ascend; no protection comes first, then budgets from strict to loose, static before learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..mechanism.registry import MECHANISMS
from ..mechanism.schedule import defence_label
from .cells import EQUAL_LOWER, EQUAL_NORM, OWN, POSITIVE, static_name
from .results import NON_MEMBERS, candidates_of, place_of
from .summary import AMONG_CANDIDATES, METRICS, OF_MEMBERS, Metric, interval_of, remarks

Row = dict[str, Any]
BESIDE = (EQUAL_LOWER, EQUAL_NORM, POSITIVE)
"""Roles of the rows that a defence is compared with, beside its negative control."""
STATIC, NONE, NEGATIVE = "static, own trajectory", "none, own trajectory", "negative"
"""Other federations of the run, and the negative control."""
MORE, LESS, UNCLEAR = "more", "less", "no clear difference"
JUDGED = ("identification", "membership_auc", "labels")
"""Metrics by which defences are compared: an error in pixels says more of the attack than of the defence."""


class Defence(NamedTuple):
    """A federation of an audited run."""

    dataset: str | None
    label: str  # mechanism and budget
    seed: int | None


Sides = dict[str, Row]
"""Rows of one attack on one defence by role: "own", "negative", one of ``BESIDE``, or another federation's own."""


def strictness(mechanism: str, budget: Any) -> tuple[Any, ...]:
    """Where a defence stands: none first, then each kind of budget from strict to loose, static before learned.

    >>> names = [("pl-learn", 0.98), ("pl-identical", 0.995), ("none", None), ("pl-identical", 0.98)]
    >>> sorted(names, key=lambda one: strictness(*one))
    [('none', None), ('pl-identical', 0.98), ('pl-learn', 0.98), ('pl-identical', 0.995)]
    """
    known = MECHANISMS.get(mechanism)
    value = budget["values"][0] if isinstance(budget, Mapping) else budget  # of a schedule, the start
    value = max(value) if isinstance(value, list | tuple) else value  # of clients, the loosest: that one is attacked
    kind = "" if known is None else str(known.measure)
    learns = known is not None and known.learns
    return mechanism != "none", kind, -1.0 if value is None else float(value), learns, mechanism, str(budget)


def side_by_side(rows: list[Row]) -> dict[Any, dict[Defence, dict[str, Sides]]]:
    """The rows of ``audit.json`` by round, defence, attack and role. Negative controls of twins are left out."""
    result: dict[Any, dict[Defence, dict[str, Sides]]] = {}
    own = {place_of(row): row for row in rows if row["role"] == OWN and row.get("control") is None}
    for row in sorted(rows, key=_order):
        negative = row.get("control") == "negative"
        if negative and row["role"] != OWN:
            continue
        defence = Defence(row.get("dataset"), defence_label(row["mechanism"], row["budget"]), row.get("seed"))
        sides = result.setdefault(row["round"], {}).setdefault(defence, {}).setdefault(row["attack"], {})
        sides[NEGATIVE if negative else row["role"]] = row
        if row["role"] == OWN and not negative:
            sides |= _others(row, own)
    return result


def _others(row: Row, own: Mapping[Any, Row]) -> Sides:
    """What the same attack got from other federations of the run at the same round."""
    if row["mechanism"] == "none":
        return {POSITIVE: row}
    plain = own.get(place_of({**row, "mechanism": "none", "budget": None}))
    static = static_name(row["mechanism"]) if row["mechanism"] in MECHANISMS else None
    sibling = own.get(place_of({**row, "mechanism": static})) if static else None
    return {name: other for name, other in ((NONE, plain), (STATIC, sibling)) if other is not None}


def _order(row: Row) -> tuple[Any, ...]:
    first = row["round"] if row.get("round") is not None else -1
    return first, str(row.get("dataset")), strictness(row["mechanism"], row["budget"]), row.get("seed") or 0


# -- what differs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """What one attack got from one defence by one metric, and what it is held against."""

    defence: Defence
    round: int | None
    attack: str
    metric: Metric
    sides: Sides
    gaps: Mapping[str, Row]  # paired differences to static noise, by what they are against

    @property
    def key(self) -> tuple[Any, ...]:
        return self.defence, self.round, self.attack, self.metric.name

    @property
    def own(self) -> Row:
        return self.sides[OWN]

    @property
    def value(self) -> float:
        return float(self.own[self.metric.name])

    @property
    def distorts(self) -> bool:
        return bool(self.own["mechanism"] != "none")

    @property
    def learns(self) -> bool:
        known = MECHANISMS.get(self.own["mechanism"])
        return known is not None and known.learns

    @property
    def formal(self) -> bool:
        known = MECHANISMS.get(self.own["mechanism"])
        return known is not None and known.formal

    @property
    def failed(self) -> bool:
        """Whether the same attack did not work without distortion, or gave numbers that are none.

        A low figure is then no evidence.
        """
        return bool(self.own.get("control_failed") or self.own.get("not_finite"))

    @property
    def doubtful(self) -> bool:
        """Whether it ``failed`` and does not leak clearly more than another side either."""
        return self.failed and MORE not in (self.against(POSITIVE), self.against(EQUAL_LOWER))

    def beside(self, role: str) -> float | None:
        """What the same attack got there, by the same metric."""
        value = self.sides.get(role, {}).get(self.metric.name)
        return None if value is None else float(value)

    def against(self, role: str) -> str | None:
        """Whether this defence leaks more or less than another: paired where that was measured, else by intervals.

        None where nothing can be said: scores were not finite, or nothing differs clearly and a control failed. A clear
        difference stands even then: learning can leak where an undistorted gradient is almost zero.
        """
        if self.beside(role) is None:
            return None
        both = self.own, self.sides[role]
        if any(row.get("not_finite") for row in both):
            return None
        gap = interval_of(self.gaps.get(role, {}), self.metric.name)
        if gap is None:
            mine, other = (interval_of(row, self.metric.name) for row in both)
            gap = None if mine is None or other is None else (mine[0] - other[1], mine[1] - other[0])
        if gap is None or gap[0] <= 0 <= gap[1]:
            return None if any(row.get("control_failed") for row in both) else UNCLEAR
        return MORE if (gap[0] > 0) == self.metric.more else LESS

    @property
    def chance(self) -> float | None:
        """What guessing gets: one candidate of all, an even AUC, or the negative control."""
        if self.metric.name in AMONG_CANDIDATES and "chance" in self.own:
            return 1 / candidates_of(self.own)
        if self.metric.name == "membership_auc":
            return 0.5
        return self.beside(NEGATIVE) if self.metric.more else None

    @property
    def above_chance(self) -> bool:
        """Whether the interval lies above what guessing gets; without an interval, the number itself."""
        ends = interval_of(self.own, self.metric.name)
        return self.chance is None or (self.value if ends is None else ends[0]) > self.chance

    @property
    def vacuous(self) -> bool:
        """Whether guessing gets as many labels as the attack, without distortion too: then labels tell nothing.

        An even guess has all labels of an even batch right.
        """
        if self.metric.name != "labels" or self.chance is None or self.above_chance:
            return False
        bare = self.sides.get(POSITIVE, self.own)
        ends = interval_of(bare, self.metric.name)
        got = bare.get(self.metric.name) if ends is None else ends[0]
        return got is not None and got <= self.chance

    @property
    def too_few(self) -> int | None:
        """How many non-members there were where these are too few to speak of membership."""
        return self.own.get(NON_MEMBERS) if self.metric.name in OF_MEMBERS else None


def readings(content: Mapping[str, Any], names: tuple[str, ...] = JUDGED) -> Iterator[Reading]:
    """All that was measured of the defences themselves, in the order of ``side_by_side``."""
    gaps: dict[Any, dict[str, Row]] = {}
    for gap in content.get("differences", []):
        gaps.setdefault(place_of(gap), {})[gap["against"]] = gap
    for round_number, defences in side_by_side(content.get("attacks", [])).items():
        for defence, attacks in defences.items():
            for attack, sides in attacks.items():
                for metric in METRICS:
                    if metric.name in names and sides.get(OWN, {}).get(metric.name) is not None:
                        paired = gaps.get(place_of(sides[OWN]), {})
                        yield Reading(defence, round_number, attack, metric, sides, paired)


# -- beside the numbers --------------------------------------------------------------------------------------------


def _error(guess: Mapping[str, Any]) -> str:
    """
    >>> _error({"mse": 0.5}), _error({"error_sd": 1.0})
    ('MSE 0.50', 'error 1.00 SD')
    """
    return f"MSE {guess['mse']:.2f}" if "mse" in guess else f"error {guess['error_sd']:.2f} SD"


def notes(content: dict[str, Any]) -> list[str]:
    """Baselines and evidence: what has to be said beside the numbers."""
    lines: list[str] = []
    for dataset, guesses in content["baselines"].items():
        words = [
            f"{name.replace('_', ' ')}: {_error(row)}" + (f", score {row['leakage']:.2f}" if "leakage" in row else "")
            for name, row in guesses.items()
        ]
        if words:
            lines.append(f"guesses that use no update ({dataset}): " + "; ".join(words))
    promised = sorted({row["promised_leakage"] for row in content["attacks"] if "promised_leakage" in row})
    if promised and any("leakage" in row for row in content["attacks"]):
        lines.append(f"score promised by the budgets: at most {', '.join(f'{value:g}' for value in promised)}")
    for row in content.get("cap", []):
        lines.append(f"CAP of {row['mechanism']} against {row['attack']}, round {row['round']}: {row['cap']:.3f}")
    if any(row["attack"] == "matched" for row in content["attacks"]):
        pairs, how = (content["options"][name] for name in ("pairs", "condition_on"))
        lines.append(
            f"effort of matched: pairs={pairs}, condition_on={how}; pairs=8 or condition_on=best find more in learned "
            "releases, and take longer"
        )
    return [*lines, *remarks(content)]
