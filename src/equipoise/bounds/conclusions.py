"""What ``equipoise bounds`` says first: for every result of the paper, whether it applies to this run and holds.

Results are cited by their numbers in Zhang et al. (arXiv:2305.15148). Rows of all rounds and seeds of one defence are
taken together; ``bounds.json`` and ``bounds.html`` have each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..mechanism.schedule import schedule_text
from .leakage import ESTIMATED, LEMMA, STEP
from .rows import CONFIGURED, Row
from .summary import CITATIONS, RESULTS, grouped, worst


@dataclass(frozen=True)
class Conclusion:
    """What became of one result of the paper over a whole run."""

    result: str
    applies: bool  # to some defence of the run as it was configured, wherever that was looked at
    verdict: str

    def sentence(self) -> str:
        return f"{CITATIONS[self.result]} ({RESULTS[self.result]}): {self.verdict}"


def defence_label(row: Row, with_dataset: bool = True) -> str:
    """
    >>> defence_label({"dataset": "data/mnist", "mechanism": "pl-learn", "budget": 0.98})
    'mnist pl-learn @ 0.98'
    """
    budget = "" if row["budget"] is None else f" @ {schedule_text(row['budget'])}"
    return f"{Path(row['dataset']).name} {row['mechanism']}{budget}" if with_dataset else f"{row['mechanism']}{budget}"


def conclusions(rows: list[Row]) -> list[Conclusion]:
    """One conclusion for every result, in the order of the reports."""
    return [
        _conclusion(result, grouped(own, lambda row: defence_label(row, _several_datasets(rows))))
        for result, own in grouped(rows, lambda row: row["result"]).items()
    ]


def headline(found: list[Conclusion]) -> str:
    """One sentence over all of them."""
    applying = [CITATIONS[one.result] for one in found if one.applies]
    if not applying:
        return "No result of the paper applies to this run as it was configured."
    others = "" if len(applying) == len(found) else "; the others do not apply"
    return f"As this run was configured, {_listed(applying)} {'apply' if len(applying) > 1 else 'applies'}{others}."


def overview(rows: list[Row]) -> list[Row]:
    """For every result, quantity and defence of the run as configured: the range of both sides, and the verdict."""
    kept = [
        row for row in rows
        if row["setting"] == CONFIGURED and row["status"] != "not covered" and (row["bound"] or row["measured"])
    ]  # fmt: skip
    return [
        {
            "result": result, "quantity": quantity, "defence": label,
            "bound": _ends(several, "bound"), "measured": _ends(several, "measured"), "holds": _holds(several),
            "status": _one_or_several(row["status"] for row in several),
        }
        for (result, quantity, label), several in grouped(
            kept, lambda row: (row["result"], row["quantity"], defence_label(row, _several_datasets(rows)))
        ).items()
    ]  # fmt: skip


def violations(rows: list[Row]) -> list[Row]:
    """Assumptions of the run as configured that were violated: for every defence, the round at which it was worst."""
    checks = [
        {
            **check,
            "result": row["result"],
            "round": row["round"],
            "defence": defence_label(row, _several_datasets(rows)),
        }
        for row in rows
        if row["setting"] == CONFIGURED and row["status"] == "does not apply"
        for check in row["assumptions"]
        if check["status"] == "violated"
    ]
    return [
        {**worst(several), "results": list(dict.fromkeys(check["result"] for check in several))}
        for several in grouped(checks, lambda check: (check["name"], check["defence"])).values()
    ]


# -- words ---------------------------------------------------------------------------------------------------------


def _conclusion(result: str, defences: dict[str, list[Row]]) -> Conclusion:
    """Defences with the same verdict are named together."""
    verdicts = grouped(
        ({"label": label, "verdict": _as_configured(rows), "rows": rows} for label, rows in defences.items()),
        lambda one: one["verdict"],
    )
    parts = []
    for (how, why), mine in sorted(verdicts.items(), key=lambda item: ORDER.index(item[0][0])):
        every = len(mine) == len(defences) > 1
        names = "any defence of this run" if every and how == NOT_STATED else _listed([one["label"] for one in mine])
        seen = _seen(result, [row for one in mine for row in one["rows"] if row["setting"] == CONFIGURED])
        parts.append(f"{how} {names}{f' ({why})' if why else ''}{f'; {seen}' if seen else ''}.")
    everything = [row for rows in defences.values() for row in rows]
    parts += [
        f"{setting[0].upper()}{setting[1:]}: {seen}."
        for setting, rows in grouped(
            everything, lambda row: OTHERWISE.get(row["setting"], f"with {row['setting']}")
        ).items()
        if rows[0]["setting"] != CONFIGURED and (seen := _seen(result, rows))
    ]
    text = " ".join(part[0].upper() + part[1:] for part in parts)
    return Conclusion(result, any(how == APPLIES for how, _ in verdicts), text[0].lower() + text[1:])


ORDER = APPLIES, DOES_NOT, NOT_CHECKABLE, NOT_STATED = (
    "applies to", "does not apply to", "not checkable for", "not stated for"
)  # fmt: skip
OTHERWISE = {
    ESTIMATED: "with constants estimated on these releases",
    STEP: "a step of its proof, which needs c_a alone",
}
"""How settings other than the run's own are introduced; the rest name a smaller step."""


def _as_configured(rows: list[Row]) -> tuple[str, str]:
    """Whether a result applies to one defence, and why not."""
    rows = [row for row in rows if row["setting"] == CONFIGURED]
    for status, how in (("not covered", NOT_STATED), ("not checkable", NOT_CHECKABLE)):
        reasons = [row["reason"] for row in rows if row["status"] == status]
        if len(reasons) == len(rows):
            return how, "; ".join(dict.fromkeys(reasons))
    checks = [check for row in rows if row["status"] == "does not apply" for check in row["assumptions"]]
    broken = dict.fromkeys(check["name"] for check in checks if check["status"] == "violated")
    return (DOES_NOT, f"violated: {', '.join(broken)}") if broken else (APPLIES, "")


def _seen(result: str, rows: list[Row]) -> str:
    """Whether the inequality was seen to hold, whatever its assumptions; empty where it was not evaluated."""
    known = [row for row in rows if row["holds"] is not None and row["status"] != "not covered"]
    if not known:
        return ""
    failed = sum(not row["holds"] for row in known)
    if failed:
        return f"its inequality failed in {failed} of {len(known)} places"
    empty = sum(row["bound"]["value"] >= 1 for row in known) if result == LEMMA else 0
    if empty:
        share = "" if empty == len(known) else f" in {empty} of {len(known)} places"
        return f"its inequality held and says nothing{share}, since a bound of 1 or more bounds no leakage"
    return (
        f"its inequality held in {'both' if len(known) == 2 else f'all {len(known)}'} places"
        if len(known) > 1
        else ("its inequality held")
    )


def _several_datasets(rows: list[Row]) -> bool:
    return len({row["dataset"] for row in rows}) > 1


def _holds(rows: list[Row]) -> str:
    known = [row["holds"] for row in rows if row["holds"] is not None]
    if not known:
        return "-"
    return "yes" if all(known) else f"no ({known.count(False)} of {len(known)})"


def _ends(rows: list[Row], side: str) -> tuple[float, float] | None:
    values = [row[side]["value"] for row in rows if row[side] is not None and row[side]["value"] is not None]
    return (min(values), max(values)) if values else None


def _one_or_several(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
