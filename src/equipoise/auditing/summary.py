"""An audit in words: what the strongest attacks got, a small table, and what is proved, measured and not claimed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..mechanism.schedule import defence_label
from .cells import OWN, POSITIVE
from .results import ENOUGH, FEW

WIDTH = 80
MOST = 20
"""Lines of the table: whoever wants more reads ``Audit.rows``."""
Content = Mapping[str, Any]
Row = Mapping[str, Any]
Place = tuple[Any, ...]
GIVEN, UNKNOWN = "given", "unknown"
"""What ``targets`` says of updates of one's own, with their real examples and without."""


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
    words: str = ""  # what the attack does, around the number; none for a metric that stands in tables of runs alone
    more: bool = True  # whether more is worse for the client

    def after(self, attack: str) -> str:
        """The metric of an attack in few words.

        >>> METRICS[0].after("lti"), METRICS[4].after("labels")
        ('lti identified', 'labels right')
        """
        return self.column if self.column.startswith(attack) else f"{attack} {self.column}"

    def interval(self, row: Row) -> str:
        """The 95 % interval; empty where a row has none."""
        ends = interval_of(row, self.name)
        return "" if ends is None else f"{self.form(ends[0]).removesuffix(' %')} to {self.form(ends[1])}"

    def chance(self, row: Row, control: Row | None) -> str:
        """What chance gives: one candidate of all, or a row's negative control; empty where there is neither."""
        if self.name == "identification" and "chance" in row:
            return str(row["chance"])
        return "" if control is None or control.get(self.name) is None else self.form(control[self.name])


def _two_places(value: float) -> str:
    return f"{value:.2f}"


METRICS = (
    Metric("identification", "identified", percent, "identifies {} of the examples"),
    Metric("mse", "MSE", lambda value: f"{value:.3g}", "reconstructs the inputs with an MSE of {}", more=False),
    Metric("ssim", "SSIM", _two_places),
    Metric("membership_auc", "AUC", _two_places, "tells members from others with an AUC of {}"),
    Metric("labels", "labels right", percent, "gets {} of the labels right"),
    Metric("leakage", "leakage score", _two_places),
)
"""In the order in which they are said; the first that an attack has is its own."""
SAID = tuple(metric for metric in METRICS if metric.words)


def interval_of(row: Row, metric: str) -> tuple[float, float] | None:
    """The 95 % interval of a number in a row; that of the AUC is the best score's."""
    name = f"auc_{row.get('membership_score')}" if metric == "membership_auc" else metric
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return None if low is None or high is None else (low, high)


def headline(content: Content) -> str:
    """The strongest result in a few words; none where nothing was scored.

    >>> row = {"attack": "lti", "role": "own", "mechanism": "none", "identification": 0.5}
    >>> headline({"attacks": [row]})
    'lti identifies 50 % of the examples'
    """
    for metric in SAID:
        row = _strongest(_scored(content), metric)
        if row is not None:
            few = f" ({FEW})" if row.get("evidence") == FEW else ""
            return f"{row['attack']} {metric.words.format(metric.form(row[metric.name]))}{few}"
    return "nothing scored"


def summary_text(content: Content) -> str:
    """Sentences, then a table of at most 80 columns, then the claims."""
    claims = [
        textwrap.fill(f"{kind.capitalize()}: {' '.join(words)}", WIDTH, subsequent_indent="  ")
        for kind, words in content.get("claims", {}).items()
    ]
    said = [textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in _sentences(content)]
    return "\n".join([*said, "", *_table(content), "", *claims]).replace("\n\n\n", "\n\n")


# -- sentences -----------------------------------------------------------------------------------------------------


def _sentences(content: Content) -> Iterator[str]:
    yield f"Attacked: {content.get('attacked', content.get('targets', 'releases'))}."
    rows = _scored(content)
    for metric in SAID:
        row = _strongest(rows, metric)
        if row is not None:
            yield f"{_where(content, row)}{row['attack']} {_result(content, row, metric)}"
    for row in content.get("attacks", []):
        if "guess" in row:
            yield f"The attacker takes the labels to be {row['guess']}."
    if content.get("targets") == UNKNOWN:
        yield "Nothing is scored: no truth was given to hold the results against."
    yield from remarks(content)


def remarks(content: Content) -> Iterator[str]:
    """What has to be said beside the numbers: releases combined, too few of them, attacks left out, interruption."""
    yield from _combined(content)
    few = [row["targets"] for row in _scored(content) if row.get("evidence") == FEW]
    if few:
        yield f"{FEW.capitalize()}: {counted(min(few), 'release')}, and a result takes {ENOUGH}."
    left_out = content.get("left_out", {})
    for why in dict.fromkeys(left_out.values()):
        yield f"Left out: {', '.join(name for name in left_out if left_out[name] == why)} ({why})."
    yield from content.get("notes", [])
    if not content.get("complete", True):
        yield "Interrupted: these are the parts that were finished."


def _result(content: Content, row: Row, metric: Metric) -> str:
    """What an attack got, how sure that is, what guessing gets, and what it gets where nothing is distorted."""
    value = metric.form(row[metric.name])
    interval, scores = metric.interval(row), _scores(row) if metric.name == "membership_auc" else 0
    asides = (
        f"95 % interval {interval}" if interval else "",
        f"best of {scores} scores" if scores > 1 else "",
        _chance(content, row, metric),
    )
    aside = "; ".join(part for part in asides if part)
    said = metric.words.format(value) + (f" ({aside})" if aside else "") + "."
    bare = _beside(content, row, POSITIVE, "positive")
    if bare is not None and bare.get(metric.name) is not None:
        said += f" Without the distortion it is {metric.form(bare[metric.name])}."
    guess = _best_guess(content, row)
    if metric.name == "mse" and guess is not None and row["mse"] > guess[1]:
        said += " That is worse than guessing: the attack failed, which does not show that the inputs are safe."
    return said


def _scores(row: Row) -> int:
    """How many scores compared members and others."""
    return sum(name.startswith("auc_") and not name.endswith(("_low", "_high")) for name in row)


def _chance(content: Content, row: Row, metric: Metric) -> str:
    """What is got without looking at the update."""
    if metric.name == "mse":
        guess = _best_guess(content, row)
        return "" if guess is None else f"guessing {guess[0].replace('_', ' ')}: {metric.form(guess[1])}"
    number = _chance_number(content, row, metric)
    return f"by chance {number}" if number else ""


def _chance_number(content: Content, row: Row, metric: Metric) -> str:
    if metric.name == "mse":
        guess = _best_guess(content, row)
        return "" if guess is None else metric.form(guess[1])
    return metric.chance(row, _beside(content, row, OWN, "negative"))


def _best_guess(content: Content, row: Row) -> tuple[str, float] | None:
    guesses = content.get("baselines", {}).get(row.get("dataset", GIVEN), {})
    return min(((name, guess["mse"]) for name, guess in guesses.items()), key=lambda one: one[1], default=None)


def _combined(content: Content) -> Iterator[str]:
    rows = content.get("multi_round", [])
    for row in rows:
        few = f" ({FEW})" if row["evidence"] == FEW else ""
        yield (
            f"{defence_label(row['mechanism'], row['budget'])}, over {row['rounds']} rounds: an image of the client is "
            f"in {row['releases_per_example']:.3g} releases on average ({row['releases_per_example_least']} to "
            f"{row['releases_per_example_most']}). Among {row['candidates']} candidates, {row['targets']} images are "
            f"identified in {_share(row, 'one_release')} of cases from one of these releases, in "
            f"{_share(row, 'schedule_known')} from all that hold the image if the schedule is granted, and in "
            f"{_share(row, 'schedule_unknown')} from all {row['rounds']} if it is not{few}. Without distortion: "
            f"{', '.join(_share(row, f'{name}_undistorted') for name in COMBINED)}. With a decoy in the image's place: "
            f"{', '.join(_share(row, f'{name}_decoy') for name in COMBINED)}; by chance {row['chance']}."
        )
        if row["control_failed"]:
            yield (
                "Control failed: without distortion this attack did not work well enough either, so a low figure is no "
                "evidence of protection."
            )
        if row["note"]:
            yield row["note"]
    if rows:
        yield f"Intervals over combined releases cover {rows[0]['interval_over']}."


COMBINED = ("one_release", "schedule_known", "schedule_unknown")
"""From which releases an image of the client was looked for."""


def _share(row: Row, name: str) -> str:
    """
    >>> _share({"identification_x": 0.5, "identification_x_low": 0.4, "identification_x_high": 0.62}, "x")
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


def _place(row: Row) -> Place:
    """Which defence, at which weights, attacked how."""
    return (*_defended(row), row.get("round"), row["attack"])


def _defended(row: Row) -> Place:
    return row.get("dataset"), row["mechanism"], str(row.get("budget")), row.get("seed")


def _beside(content: Content, row: Row, role: str, control: str) -> Row | None:
    """The control of a row."""
    return next(
        (
            other
            for other in content.get("attacks", [])
            if (other.get("role"), other.get("control")) == (role, control) and _place(other) == _place(row)
        ),
        None,
    )


def _where(content: Content, row: Row) -> str:
    """Which of several defences and rounds a sentence is about."""
    rows = _scored(content)
    several = len({_defended(one) for one in rows}) > 1
    parts = [defence_label(row["mechanism"], row["budget"])] if row["mechanism"] != "none" or several else []
    parts += [f"at round {row['round']}"] if row.get("round") is not None else []
    return f"{' '.join(parts)}: " if parts else ""


# -- the table -----------------------------------------------------------------------------------------------------


def _table(content: Content) -> list[str]:
    """A line for every defence and attack, at the round where it got most; all metrics, if there is one defence."""
    rows = _scored(content)
    single = len({_place(row)[:-1] for row in rows}) == 1
    lines: list[tuple[str, ...]] = []
    for place in dict.fromkeys((_defended(row), row["attack"]) for row in rows):
        mine = [row for row in rows if (_defended(row), row["attack"]) == place]
        strongest = [(metric, row) for metric in SAID if (row := _strongest(mine, metric)) is not None]
        lines += [_line(content, row, metric, single) for metric, row in (strongest if single else strongest[:1])]
    if not lines:
        return []
    head = ("attack", "measure", "result", "95 % interval", "undistorted", "guessing")
    head = head if single else ("defence", "round", "attack", "result", "95 % interval", "guessing")
    shown = [head, *lines[:MOST]]
    widths = [max(len(line[i]) for line in shown) for i in range(len(head))]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(head) - 1))
    drawn = ["  ".join(_cell(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in shown]
    more = [f"... and {len(lines) - MOST} more: see rows."] if len(lines) > MOST else []
    return [drawn[0], "-" * max(map(len, drawn)), *drawn[1:], *more]


def _line(content: Content, row: Row, metric: Metric, single: bool) -> tuple[str, ...]:
    value, interval = metric.form(row[metric.name]), metric.interval(row) or "-"
    chance = _chance_number(content, row, metric) or "-"
    if not single:
        label, what = defence_label(row["mechanism"], row["budget"]), metric.after(row["attack"])
        return label, str(row.get("round", "-")), what, value, interval, chance
    bare = _beside(content, row, POSITIVE, "positive")
    plain = "-" if bare is None or bare.get(metric.name) is None else metric.form(bare[metric.name])
    return row["attack"], metric.column, value, interval, plain, chance


def _cell(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"
