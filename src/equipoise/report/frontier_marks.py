"""What the frontier's picture shows: settings of defences with their accuracy and their leakage, by data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from ..errors import DataError, is_finite
from ..privacy.guarantee import percent_up

Role = Literal["recommended", "paper", "alternative", "baseline"]
ROLES = ("recommended", "paper", "alternative", "baseline")
REMEDY = "Leave that mark out, or measure it again."


@dataclass(frozen=True)
class Mark:
    """One setting of a defence. Marks of a family are joined by a line, in the order in which they are given.

    Accuracy, leakage and the proved limit on leakage are shares; ``leakage`` is the share of records that the strongest
    attack identifies among candidates. ``strength`` is what the setting is called, such as "ε 2" or "PL 0.98".
    """

    family: str
    strength: str
    accuracy: float
    accuracy_interval: tuple[float, float] | None
    leakage: float
    leakage_interval: tuple[float, float] | None
    _: KW_ONLY
    proved: float | None = None
    role: Role = "baseline"
    chosen: bool = False

    def told(self) -> str:
        """All that is known of the mark in one line.

        >>> Mark("gaussian-dp", "ε 2", 0.93, (0.926, 0.934), 0.0125, None, proved=0.019).told()
        'gaussian-dp, ε 2: accuracy 93 % (92.6 to 93.4 %), leakage 1.25 %, proved: never above 1.9 %'
        """
        known = [_measured("accuracy", self.accuracy, self.accuracy_interval)]
        known.append(_measured("leakage", self.leakage, self.leakage_interval))
        known += [f"proved: never above {percent_up(self.proved)}"] if self.proved is not None else []
        return f"{self.family}, {self.strength}: {', '.join(known)}"


@dataclass(frozen=True)
class Panel:
    """A data set: its marks, the leakage that blind guessing has, and the accuracy without any protection.

    ``choice`` is what a mark is called that is ``chosen``.
    """

    title: str
    marks: Sequence[Mark]
    chance: float
    unprotected: float | None
    choice: str = "chosen"

    def families(self) -> dict[str, list[Mark]]:
        """The marks of every family, families in the order in which they appear."""
        result: dict[str, list[Mark]] = {}
        for mark in self.marks:
            result.setdefault(mark.family, []).append(mark)
        return result


def percent(share: float) -> str:
    """
    >>> percent(0.005), percent(0.9534), percent(1.0)
    ('0.5 %', '95.3 %', '100 %')
    """
    return f"{100 * share:.3g} %"


def _measured(name: str, value: float, interval: tuple[float, float] | None) -> str:
    around = f" ({100 * interval[0]:.3g} to {percent(interval[1])})" if interval else ""
    return f"{name} {percent(value)}{around}"


def check(panels: Sequence[Panel]) -> None:
    """Raise for what cannot be drawn: nothing at all, shares that are none, a family with two roles.

    >>> check([Panel("MNIST", [Mark("none", "", float("nan"), None, 1.0, None)], 0.005, None)])
    Traceback (most recent call last):
    equipoise.errors.DataError: Expected accuracy=nan of none on MNIST to be a share between 0 and 1. Leave that...
    """
    if not panels:
        raise DataError("There is no data set to draw.", "Give at least one panel.")
    roles: dict[str, str] = {}
    for panel in panels:
        if not panel.marks:
            raise DataError(f"There is nothing to draw for {panel.title}.", "Leave the panel out, or give it marks.")
        if not is_finite(panel.chance) or not 0 < panel.chance < 1:
            raise DataError(
                f"Expected chance={panel.chance!r} on {panel.title} to lie between 0 and 1.",
                "Give what blind guessing finds: 1 over the number of candidates.",
            )
        if panel.unprotected is not None:
            _share("unprotected", panel.unprotected, panel.title, "Give None where it was not measured.")
        for mark in panel.marks:
            _check_mark(mark, panel.title)
            if roles.setdefault(mark.family, mark.role) != mark.role:
                raise DataError(
                    f"{mark.family} is called both {roles[mark.family]} and {mark.role}.",
                    "Give all marks of a family one role: its line has one colour.",
                )


def _check_mark(mark: Mark, title: str) -> None:
    of = f"{mark.family}, {mark.strength} on {title}" if mark.strength else f"{mark.family} on {title}"
    if mark.role not in ROLES:
        raise DataError(
            f"Expected role={mark.role!r} of {of} to be one of {', '.join(ROLES)}.", "Give it one of these."
        )
    if not mark.family.strip():
        raise DataError(f"A mark on {title} has no family.", "Say which defence it is a setting of.")
    _share("accuracy", mark.accuracy, of, REMEDY)
    _share("leakage", mark.leakage, of, REMEDY)
    if mark.proved is not None:
        _share("proved", mark.proved, of, "Give None where nothing is proved.")
    for name in ("accuracy_interval", "leakage_interval"):
        interval = getattr(mark, name)
        if interval is not None:
            for end in interval:
                _share(f"an end of {name}", end, of, "Give None where there is no interval.")
            if not interval[0] <= interval[1]:
                raise DataError(f"Expected {name}={interval!r} of {of} to rise.", "Give its lower end first.")


def _share(name: str, value: Any, of: str, remedy: str) -> None:
    if not is_finite(value) or not 0 <= value <= 1:
        raise DataError(f"Expected {name}={value!r} of {of} to be a share between 0 and 1.", remedy)


def common_floor(panels: Sequence[Panel]) -> float:
    """Where all accuracy axes begin: a multiple of 10 % below what is recommended and what the paper does.

    Marks of others below it stand at the edge; where no family has such a role, there is room for all marks.
    """
    marks = [mark for panel in panels for mark in panel.marks]
    important = [mark for mark in marks if mark.role != "baseline" or mark.chosen] or marks
    least = min(mark.accuracy for mark in important)
    return min(max(math.floor(10 * (least - 0.01)), 0), 8) / 10
