"""What ``equipoise choose`` prints: three sentences, the trade-off with the choice marked, and what was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..choosing.limit import CANDIDATES
from ..files import write_text
from ..privacy.guarantee import percent_up
from . import display
from .choose_files import PICTURE

if TYPE_CHECKING:
    from ..choosing.decision import Decision, Rejected

SHOWN = 8
"""Candidates that the table has; --json and choice.json have all."""
BARS = {80: 12, 100: 24}
"""Characters for an accuracy of 100 %, by the columns that a terminal has at least."""


def show(found: Decision, *, wanted: bool = False) -> None:
    """All of it, the answer first; ``wanted``: files will follow."""
    print_ = display.console.print
    print_()
    if not found.met:
        print_(f"Nothing meets the limit. {found.shortfall}\n", markup=False, highlight=False, style="bold")
    for number, sentence in enumerate(found.sentences()):
        print_(sentence + "\n", markup=False, highlight=False, style="bold" if number == 0 and found.met else "")
    if found.curve:
        _show_curve(found)
    _show_rejected(found)
    if found.met and not wanted:
        display.note(
            "--out FOLDER writes this as choice.toml for train, flower.toml for an app, policy.toml for a node."
        )


def show_written(found: Decision, written: Sequence[Path]) -> None:
    """Which files there are, and what to do with them."""
    print_, folder = display.console.print, written[0].parent
    print_(f"written to {folder}: {', '.join(path.name for path in written)}", markup=False, highlight=False)
    if found.met:
        print_(f"try it: equipoise train --config {folder / 'choice.toml'}", markup=False, highlight=False)


def _show_curve(found: Decision) -> None:
    """The choice beside what a stricter or looser budget would give, and beside no protection."""
    numbers = ("epsilon", "accuracy", "95% interval", "identified at most")
    table = display.table("the same settings at other budgets", ("", *numbers, " "), numbers=numbers)
    for point in found.curve:
        mark = "chosen" if point.epsilon == found.budget and found.met else ""
        cells = (f"{point.epsilon:g}", f"{point.accuracy:.1%}", display.share_range(*point.interval))
        display.add_row(table, mark, *cells, percent_up(point.identified), _bar(point.accuracy))
    display.add_row(table, "", "none", f"{found.unprotected:.1%}", "", "", _bar(found.unprotected))
    display.console.print(table)
    display.note(
        "identified at most: of 200 records, by any attacker, over the whole run; proved. Accuracy: on "
        f"{found.expected.records:,} {found.expected.what} that chose nothing; fewer runs beside the choice."
    )


def _bar(share: float) -> str:
    room = max((bar for columns, bar in BARS.items() if display.console.width >= columns), default=0)
    return "━" * round(room * share)


def _show_rejected(found: Decision) -> None:
    numbers = ("accuracy", "runs")
    table = display.table("rejected", ("candidate", *numbers, "why"), numbers=numbers)
    for one in _some(found.rejected):
        accuracy = "" if one.accuracy is None else f"{one.accuracy:.1%}"
        display.add_row(table, one.what, accuracy, str(one.seeds) if one.seeds else "", one.why)
    display.console.print(table)
    tried = [one for one in found.rejected if one not in _some(found.rejected)]
    if tried:
        display.note(
            f"and {len(tried)} more that were behind; --json has all. Accuracy here: on the records that choose."
        )
    else:
        display.note("Accuracy here: on the records that choose, of one or more seeded runs.")


def _some(rejected: Sequence[Rejected]) -> list[Rejected]:
    """The first candidates, and all that is told in words alone or of another mechanism."""
    behind = [one for one in rejected if one.why.startswith("behind after")]
    return [one for one in rejected if one not in behind[SHOWN // 2 :]]


def picture(found: Decision, folder: Path) -> Path | None:
    """The trade-off as a picture in the folder; None for noise without a curve."""
    if not found.curve:
        return None
    from ..report.frontier_picture import Mark, Panel  # type: ignore[import-not-found,unused-ignore]
    from ..report.frontier_picture import picture as drawn

    marks = [
        Mark(
            family=found.mechanism, strength=f"ε {point.epsilon:g}", accuracy=point.accuracy,
            accuracy_interval=point.interval, leakage=point.identified, leakage_interval=None, proved=point.identified,
            role="recommended", chosen=found.met and point.epsilon == found.budget,
        )
        for point in found.curve
    ]  # fmt: skip
    panel = Panel(title=found.label, marks=marks, chance=1 / CANDIDATES, unprotected=found.unprotected)
    told = f"{found.settings.training.model}, {found.settings.protection.clients} clients"
    caption = f"Leakage: what is proved that no attacker exceeds over the whole run, of {CANDIDATES} records. {told}."
    path = folder / PICTURE
    write_text(path, drawn([panel], dark=False, narrow=False, caption=caption))
    return path
