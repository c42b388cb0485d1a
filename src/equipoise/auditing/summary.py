"""An audit in words: the verdict, a small table, and what is proved, measured and not claimed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..mechanism.registry import MECHANISMS
from ..mechanism.schedule import defence_label
from .cells import OWN, POSITIVE
from .results import FEW, NON_MEMBERS, THINGS, place_of

WIDTH = 80
MOST = 20
"""Lines of the table: whoever wants more reads ``Audit.rows``."""
Content = Mapping[str, Any]
Row = Mapping[str, Any]
Place = tuple[Any, ...]
Controls = dict[Place, Row]
"""By what a row has in common with its controls, role and kind of control."""
GIVEN, UNKNOWN = "given", "unknown"
"""What ``targets`` says of updates of one's own, with their real examples and without."""
FAILED = "*"
FAILED_WORDS = "control failed: the attack gets little without distortion too, so a low figure is no evidence."


def thing_of(content: Content) -> str:
    """What one input is called: an example of updates of one's own, else by the kind of the data.

    >>> thing_of({"targets": "public", "kind": "table"}), thing_of({"targets": "public"})
    ('record', 'image')
    """
    return "example" if content.get("targets") == GIVEN else THINGS[content.get("kind", "image")]


def counted(number: int, word: str) -> str:
    """
    >>> counted(1, "update"), counted(3, "update")
    ('1 update', '3 updates')
    """
    return f"{number} {word}" + ("" if number == 1 else "s")


def percent(value: float) -> str:
    """
    >>> percent(0.875), percent(0.004), percent(0)
    ('88 %', '0.4 %', '0 %')
    """
    return f"{100 * value:.1f} %" if 0 < value < 0.095 else f"{100 * value:.0f} %"


@dataclass(frozen=True)
class Metric:
    """A number by which an attack is judged, and the words around it."""

    name: str
    column: str
    form: Callable[[float], str]
    words: str = ""  # what the attack does, around the number; none for a metric that stands in tables alone
    more: bool = True  # whether more is worse for the client
    short: bool = True  # whether it stands in the short table of a summary, too

    def after(self, attack: str) -> str:
        """The metric of an attack in few words.

        >>> METRICS[0].after("lti"), METRICS[7].after("labels")
        ('lti identified', 'labels right')
        """
        return self.column if self.column.startswith(attack) else f"{attack} {self.column}"

    def result(self, row: Row) -> str:
        """The number, marked where the attack's control failed; that there are too few to tell, of membership."""
        return self.plain(row) + (f" {FAILED}" if row.get("control_failed") and not self._few(row) else "")

    def plain(self, row: Row) -> str:
        """The number alone; a dash where a row has none."""
        if self._few(row):
            return "too few"
        return "-" if row.get(self.name) is None else self.form(row[self.name])

    def _few(self, row: Row) -> bool:
        return self.name in OF_MEMBERS and row.get(NON_MEMBERS) is not None

    def interval(self, row: Row) -> str:
        """The 95 % interval; empty where a row has none."""
        ends = None if self._few(row) else interval_of(row, self.name)
        return "" if ends is None else f"{self.form(ends[0]).removesuffix(' %')} to {self.form(ends[1])}"

    def chance(self, row: Row, control: Row | None) -> str:
        """What chance gives: one candidate of all, or a row's negative control; empty where there is neither."""
        if self.name in AMONG_CANDIDATES and "chance" in row:
            return str(row["chance"])
        return "" if control is None or control.get(self.name) is None else self.form(control[self.name])


OF_MEMBERS = ("membership_auc", "membership_tpr")
AMONG_CANDIDATES = ("identification", "verified")
"""Metrics of picking one of several candidates, where chance is one of all."""


def _two_places(value: float) -> str:
    return f"{value:.2f}"


METRICS = (
    Metric("identification", "identified", percent, "identifies {} of the examples"),
    Metric("mse", "MSE", lambda value: f"{value:.3g}", "reconstructs the inputs with an MSE of {}", more=False),
    Metric("ssim", "SSIM", _two_places, short=False),
    Metric("error_sd", "error in SD", _two_places, "reconstructs the inputs to {} standard deviations", more=False),
    Metric("correlation", "correlation", _two_places, short=False),
    Metric("membership_auc", "AUC", _two_places, "tells members from others with an AUC of {}"),
    Metric("membership_tpr", "TPR@1%", percent),
    Metric("labels", "labels right", percent, "gets {} of the labels right"),
    Metric("leakage", "leakage score", _two_places, short=False),
    Metric("verified", "verify right guess", percent, "verifies {} of the guesses, granted the other examples"),
    Metric("accepted", "verify right accepted", percent),
    Metric("accepted_wrongly", "verify wrong accepted", lambda value: f"{100 * value:.2g} %", more=False),
)
"""In the order in which they are said; the first that an attack has is its own."""
ERRORS = ("mse", "error_sd")
"""How far a reconstruction is from its original: in pictures, and in tables."""
SAID = tuple(metric for metric in METRICS if metric.words)


def interval_of(row: Row, metric: str) -> tuple[float, float] | None:
    """The 95 % interval of a number in a row."""
    low, high = row.get(f"{metric}_low"), row.get(f"{metric}_high")
    return None if low is None or high is None else (low, high)


def headline(content: Content) -> str:
    """The strongest result in a few words, of those whose control worked if there are any; none where none was scored.

    >>> row = {"attack": "lti", "role": "own", "mechanism": "none", "identification": 0.5}
    >>> headline({"attacks": [row]})
    'lti identifies 50 % of the examples'
    """
    for metric in SAID:
        rows = [row for row in _scored(content) if row.get(metric.name) is not None]
        row = _strongest([row for row in rows if not row.get("control_failed")] or rows, metric)
        if row is not None:
            few = f" ({FEW})" if row.get("evidence") == FEW else ""
            return f"{row['attack']} {metric.words.format(metric.form(row[metric.name]))}{few}"
    return "nothing scored"


def summary_text(content: Content, first: Sequence[str] = ()) -> str:
    """The verdict, then a table of at most 80 columns, what has to be said beside it, and the claims.

    ``first`` are the lines of a table that comes before.
    """
    claims = [f"{kind.capitalize()}: {' '.join(words)}" for kind, words in content.get("claims", {}).items()]
    attacked = f"Attacked: {content.get('attacked', content.get('targets', 'releases'))}."
    parts = [[*content.get("verdict", []), attacked], list(first), _table(content), list(remarks(content)), claims]
    return "\n\n".join("\n".join(wrapped(line) for line in part) for part in parts if part)


def wrapped(line: str, width: int = WIDTH) -> str:
    """A sentence in lines; a number keeps its percent sign, and a defence its budget.

    >>> wrapped("pl-learn @ 0.98 leaks 90 % at the first round.", 25).splitlines()
    ['pl-learn @ 0.98 leaks', '  90 % at the first', '  round.']
    """
    if len(line) <= width:
        return line
    kept = line.replace(" %", "\0%").replace(" @ ", "\0@\0")
    lines = textwrap.wrap(kept, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def remarks(content: Content) -> Iterator[str]:
    """What has to be said beside the numbers: releases combined, norms given away, attacks left out, interruption."""
    yield from _combined(content)
    yield from _given_away(content)
    left_out = content.get("left_out", {})
    for why in dict.fromkeys(left_out.values()):
        yield f"Left out: {', '.join(name for name in left_out if left_out[name] == why)} ({why})."
    yield from content.get("notes", [])


def _given_away(content: Content) -> Iterator[str]:
    """Which defences give the norm of their noise away, unless it was measured what that is worth."""
    rows = _scored(content)
    names = dict.fromkeys(row["mechanism"] for row in rows)
    exact = [name for name in names if name in MECHANISMS and MECHANISMS[name].fixed_norm]
    if exact and not any(row.get("verified") is not None for row in rows):
        yield (
            f"The budget of {', '.join(exact)} fixes the norm of its noise exactly: a server that knows the other "
            "examples of a batch can verify any guess at one. The attack verify measures it."
        )


def _combined(content: Content) -> Iterator[str]:
    rows, thing = content.get("multi_round", []), THINGS[content.get("kind", "image")]
    for row in rows:
        few = f" ({FEW})" if row["evidence"] == FEW else ""
        yield (
            f"{defence_label(row['mechanism'], row['budget'])}, over {row['rounds']} rounds: {with_article(thing)} of "
            f"the client is in {row['releases_per_example']:.3g} releases on average "
            f"({row['releases_per_example_least']} to {row['releases_per_example_most']}). Among {row['candidates']} "
            f"candidates, {row['targets']} {thing}s are identified in {share(row, 'one_release')} of cases from one of "
            f"these releases, in {share(row, 'schedule_known')} from all that hold the {thing} if the schedule is "
            f"granted, and in {share(row, 'schedule_unknown')} from all {row['rounds']} if it is not{few}. "
            f"Without distortion: {', '.join(share(row, f'{name}_undistorted') for name in COMBINED)}. "
            f"With a decoy in the {thing}'s place: {', '.join(share(row, f'{name}_decoy') for name in COMBINED)}; "
            f"by chance {row['chance']}."
        )
        if failed := failed_control(row):
            yield (
                f"{failed.capitalize()}: without distortion this attack was not shown to work well enough, so a low "
                "figure is no evidence of protection."
            )
        if row["note"]:
            yield row["note"]
    if rows:
        yield f"Intervals over combined releases cover {rows[0]['interval_over']}."


def with_article(thing: str) -> str:
    """
    >>> with_article("image"), with_article("record")
    ('an image', 'a record')
    """
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


SCHEDULES = {"schedule_known": "granted", "schedule_unknown": "unknown"}
"""Whether it is known which releases hold an example, and what that is called."""
COMBINED = ("one_release", *SCHEDULES)
"""From which releases an example of the client was looked for."""


def failed_control(row: Row, among: Sequence[str] = tuple(SCHEDULES)) -> str:
    """Of combined releases: that the control failed, and under which of several schedules; else nothing.

    >>> failed_control({"control_failed_schedule_known": False, "control_failed_schedule_unknown": True})
    'control failed where the schedule is unknown'
    """
    failed = [name for name in among if row[f"control_failed_{name}"]]
    if len(failed) in (0, len(among)):
        return "control failed" if failed else ""
    return f"control failed where the schedule is {SCHEDULES[failed[0]]}"


def share(row: Row, name: str) -> str:
    """
    >>> share({"identification_x": 0.5, "identification_x_low": 0.4, "identification_x_high": 0.62}, "x")
    '50 % (40 to 62 %)'
    """
    value, low, high = (row[f"identification_{name}{end}"] for end in ("", "_low", "_high"))
    interval = "" if low is None else f" ({percent(low).removesuffix(' %')} to {percent(high)})"
    return percent(value) + interval


# -- rows ----------------------------------------------------------------------------------------------------------


def _scored(content: Content) -> list[Row]:
    """What the attacks got from the releases themselves: no static twin, no control."""
    rows = content.get("attacks", [])
    return [row for row in rows if row.get("role") == OWN and row.get("control") is None]


def _strongest(rows: list[Row], metric: Metric) -> Row | None:
    able = [row for row in rows if row.get(metric.name) is not None]
    return (max if metric.more else min)(able, key=lambda row: row[metric.name], default=None)


def best_guess(content: Content, row: Row) -> tuple[str, float] | None:
    """The guess without any update that comes closest to the inputs, and its error."""
    guesses = content.get("baselines", {}).get(row.get("dataset", GIVEN), {})
    errors = ((name, guess[error]) for name, guess in guesses.items() for error in ERRORS if error in guess)
    return min(errors, key=lambda one: one[1], default=None)


def _defended(row: Row) -> Place:
    return row.get("dataset"), row["mechanism"], str(row.get("budget")), row.get("seed")


def _controls(content: Content) -> Controls:
    """The controls of all rows, the first of each."""
    found: Controls = {}
    for row in content.get("attacks", []):
        if row.get("control") is not None:
            found.setdefault((place_of(row), row.get("role"), row["control"]), row)
    return found


# -- the table -----------------------------------------------------------------------------------------------------

HEAD = ("attack", "round", "result", "95 % interval", "undistorted", "guessing")


def _table(content: Content) -> list[str]:
    """Below every defence what each attack got, at the round where it got most."""
    rows, controls = _scored(content), _controls(content)
    lines: list[tuple[str, ...]] = []
    for place in dict.fromkeys(map(_defended, rows)):
        mine = [row for row in rows if _defended(row) == place]
        lines.append((named(mine[0], rows),))
        for attack in dict.fromkeys(row["attack"] for row in mine):
            several = [row for row in mine if row["attack"] == attack]
            tried = [(metric, _strongest(several, metric)) for metric in METRICS if metric.short]
            lines += [_line(content, controls, row, metric) for metric, row in tried if row is not None]
    if not lines:
        return []
    shown = lines[:MOST]
    more = [f"... and {len(lines) - MOST} more: see rows."] if len(lines) > MOST else []
    failed = [f"{FAILED}: {FAILED_WORDS}"] if any(cell.endswith(FAILED) for line in shown for cell in line) else []
    return [*drawn_table(HEAD, shown), *more, *failed]


def drawn_table(head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines below a head, in columns; a line of one cell is a title."""
    shown = [head, *lines]
    widths = [max(len(line[i]) for line in shown if len(line) > i and len(line) > 1) for i in range(len(head))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in shown]
    drawn = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in drawn]
    return [drawn[0], "-" * max(map(len, drawn)), *drawn[1:]]


def named(row: Row, rows: Sequence[Row]) -> str:
    """A defence, with its dataset and seed where there are several."""
    several = [name for name in ("dataset", "seed") if len({one.get(name) for one in rows}) > 1]
    said = {"dataset": row.get("dataset"), "seed": f"seed {row.get('seed')}"}
    return ", ".join([defence_label(row["mechanism"], row["budget"]), *(str(said[name]) for name in several)])


def _line(content: Content, controls: Controls, row: Row, metric: Metric) -> tuple[str, ...]:
    bare = row if row["mechanism"] == "none" else controls.get((place_of(row), POSITIVE, "positive"))
    plain = "-" if bare is None else metric.plain(bare)
    place = "-" if row.get("round") is None else str(row["round"])
    name, chance = f"  {metric.after(row['attack'])}", _chance(content, controls, row, metric) or "-"
    return name, place, metric.result(row), metric.interval(row) or "-", plain, chance


def _chance(content: Content, controls: Controls, row: Row, metric: Metric) -> str:
    """What is got without looking at the update."""
    if metric.name in ERRORS:
        guess = best_guess(content, row)
        return "" if guess is None else metric.form(guess[1])
    return metric.chance(row, controls.get((place_of(row), OWN, "negative")))
