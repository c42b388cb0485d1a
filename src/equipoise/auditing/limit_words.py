"""Measured rates beside proved limits, in plain sentences and as the cells of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..privacy.guarantee import percent_up
from .limit_comparison import AUC, IDENTIFICATION, LEVEL, TPR
from .results import ENOUGH, FEW
from .summary import counted, named

Row = Mapping[str, Any]
SAID = 0.01
"""The false positive rate at which sentences tell membership; the table has all."""
MOST = 6
"""Federations that have sentences of their own."""
ATTACKER = "an attacker who knows the mechanism and all other records of the client"
SAME = "the same attacker"
HEAD = ("attack", "scope", "measured", "95 % interval", "limit", "alarm")
"""Of the table."""
COLUMNS = (
    "Proved limits: what no attacker exceeds who knows every other record of the client, the weights, clip, noise and "
    "sampling rate, with the record or without it (add/remove), on average over candidates that are equally likely "
    "beforehand. Measured: what that attacker got from releases of the mechanism's own code with public records, at "
    "the weights of the run. The other records are subtracted exactly, so a few of them stand for all. A limit is one "
    "of the average over many games: the figure of a few, and its interval, may lie above it by chance. alarm: from "
    "here on a figure would contradict the proof, in a test of all figures together."
)
OTHERS_LEFT_OUT = (
    "Not played on {}, and compared with no limit: {}. Such attacks are made for small batches whose other records are "
    "unknown, and no limit is proved for that game."
)


def rate(value: float) -> str:
    """
    >>> rate(0.0061), rate(0.0494), rate(0.5), rate(1), rate(0)
    ('0.61 %', '4.9 %', '50 %', '100 %', '0 %')
    """
    return f"{100 * value:.2g} %" if value < 0.0995 else f"{100 * value:.0f} %"


def limit_verdict(rows: Sequence[Row]) -> list[str]:
    """What the games came to, the whole run first; then whether anything is above its limit."""
    said: list[str] = []
    for mine in list(_by_federation(rows).values())[:MOST]:
        name = _name(mine[0], rows)
        for whole in (True, False):
            for row, chosen in _told([row for row in mine if (row["scope"] == "run") == whole]):
                said.append(f"{name}: {_sentence(row, chosen, SAME if said else ATTACKER)} {_against(row)}")
    return [*_few(rows), *said, *_judgement(rows)]


def _few(rows: Sequence[Row]) -> Iterator[str]:
    fewest = min((row["games"] for row in rows if row["evidence"] == FEW), default=None)
    if fewest is not None:
        yield f"{FEW.capitalize()}: {counted(fewest, 'game')}, and a result takes {ENOUGH}. Read the rest as examples."


def _told(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Identification, and membership at one rate: of several rounds the one that got most of its limit."""
    for some in ([row for row in rows if row["measure"] == IDENTIFICATION],
                 [row for row in rows if row["measure"] == TPR and row["fpr"] == SAID]):  # fmt: skip
        if some:
            worst = max(some, key=lambda row: row["measured"] / (row["limit"] or 1.0))
            yield worst, f"; the largest of {len(some)} rounds" if len(some) > 1 else ""


def _sentence(row: Row, chosen: str, who: str) -> str:
    """In counts: a rate of a few games beside a limit would read as a contradiction."""
    if row["scope"] == "run":
        seen = f"from all {row['rounds']} releases of a run"
    else:
        when = f"after {counted(row['round'], 'round')}" if row["round"] else "at the first round"
        seen = f"from one release {when}"
    games = f"{_count(row['found'])} of {row['games']} games"
    if row["measure"] == IDENTIFICATION:
        did = f"picked the right one of {row['candidates']} candidates in {games}"
    else:
        did = f"noticed the record in {games} with it, at {rate(row['fpr'])} false alarms"
    return f"{seen}, {who} {did} ({rate(row['measured'])}; 95 % interval {_ends(row)}{chosen})."


def _against(row: Row) -> str:
    """How many the limit allows, and how many would contradict the proof."""
    if row["limit"] is None:
        return f"Its limit was not computed ({row.get('no_limit', 'none is proved')})."
    most = f"about {_count(row['limit'] * row['games'])} on average"
    if row["above"]:
        return f"That is ABOVE ITS PROVED LIMIT of {percent_up(row['limit'])}, which allows {most}."
    if row["control_failed"]:
        return "That says nothing, as even without noise little was found."
    limit = f"The proved limit of {percent_up(row['limit'])} allows {most}"
    if row["noticed_from"] is None:
        return f"{limit}; in so few games no count would contradict the proof."
    return f"{limit}; {round(row['noticed_from'] * row['games'])} or more would contradict the proof."


def _count(number: float) -> str:
    """
    >>> _count(3.0), _count(2.5), _count(0.613), _count(1234.4)
    ('3', '2.5', '0.6', '1,234')
    """
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.1g}" if number < 1 else f"{number:.2g}"


def _judgement(rows: Sequence[Row]) -> Iterator[str]:
    judged = [row for row in rows if row.get("above") is not None]
    if not judged:
        return
    above = sum(row["above"] for row in judged)
    rule = f"one-sided, {LEVEL:.0%} error for all together".replace("%", " %")
    if above:
        yield (
            f"{counted(above, 'figure')} of {len(judged)} above the proved limit ({rule}): this code may not do what "
            "the proof assumes. Chance alone says so of honest code in up to 1 of 20 audits."
        )
        return
    higher = sum(row["measured"] > row["limit"] for row in judged)
    are = "is above it," if higher == 1 else "are above it, each"
    by_chance = f"; {higher} {are} by no more than chance allows" if higher else ""
    yield f"None of {counted(len(judged), 'figure')} is significantly above its limit ({rule}){by_chance}."


def left_out(attacks: Sequence[str], mechanisms: Sequence[str]) -> str:
    """Which attacks have no comparison, and why."""
    return OTHERS_LEFT_OUT.format(", ".join(dict.fromkeys(mechanisms)), ", ".join(attacks))


# -- the table ---------------------------------------------------------------------------------------------------------


def limit_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each federation, and below it what stands in the columns ``HEAD``."""
    lines: list[tuple[str, ...]] = []
    for mine in _by_federation(rows).values():
        lines.append((_name(mine[0], rows),))
        lines += [_line(row) for row in mine]
    return lines


def _line(row: Row) -> tuple[str, ...]:
    what = {IDENTIFICATION: "identified", AUC: "AUC"}.get(row["measure"]) or f"{rate(row['fpr'])} FPR"
    scope = f"{row['rounds']} rounds" if row["scope"] == "run" else f"round {row['round']}"
    form = (lambda value: f"{value:.2f}") if row["measure"] == AUC else rate
    limit = "-" if row["limit"] is None else percent_up(row["limit"])
    mark = " ABOVE" if row.get("above") else " *" if row["control_failed"] else ""
    start = "-" if row.get("noticed_from") is None else form(row["noticed_from"])
    return f" {row['attack']} {what}", scope, form(row["measured"]) + mark, _ends(row, form), limit, start


def _ends(row: Row, form: Any = rate) -> str:
    if row["low"] is None:
        return "-"
    return f"{form(row['low']).removesuffix(' %')} to {form(row['high'])}"


def _by_federation(rows: Sequence[Row]) -> dict[Any, list[Row]]:
    result: dict[Any, list[Row]] = {}
    for row in rows:
        result.setdefault((row["dataset"], row["mechanism"], str(row["budget"]), row["seed"]), []).append(row)
    return result


def _name(row: Row, rows: Sequence[Row]) -> str:
    """A federation, with its dataset and seed where there are several, and its client where these differ."""
    return named(row, rows) + (f", client {row['client']}" if "client" in row else "")
