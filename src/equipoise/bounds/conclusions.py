"""What ``equipoise bounds`` says first: for every result of the paper, what became of its assumptions and inequality.

Constants are estimated from below, so an assumption that was not seen to fail may still fail: nothing here says that a
result applies or holds. Results are cited by their numbers in Zhang et al. (arXiv:2305.15148). Rows of all rounds and
seeds of one defence are taken together; ``bounds.json`` and ``bounds.html`` have each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .leakage import ESTIMATED, LEMMA, STEP
from .rows import CONFIGURED, IN_PART, Row
from .summary import CITATIONS, RESULTS, defence_label, grouped, worst_checks

ORDER = NOT_SEEN, SOME_DO_NOT, DOES_NOT, NOT_CHECKED, NOT_STATED = (
    "no assumption was seen to fail for", "does not apply to some subproblems of", "does not apply to",
    "not checked for", "not stated for",
)  # fmt: skip
BROKEN = ("does not apply", IN_PART)
OTHERWISE = {
    ESTIMATED: "with constants estimated on these releases",
    STEP: "a step of its proof, which needs c_a alone",
}
"""How settings other than the run's own are introduced; the rest name a smaller step."""


@dataclass(frozen=True)
class Conclusion:
    """What became of one result of the paper over a whole run."""

    result: str
    outcomes: dict[str, tuple[str, str]]  # for every defence as it was configured, one of ORDER, and why
    verdict: str

    def sentence(self) -> str:
        return f"{CITATIONS[self.result]} ({RESULTS[self.result]}): {self.verdict}"


def conclusions(rows: list[Row]) -> list[Conclusion]:
    """One conclusion for every result, in the order of the reports."""
    label = _labels(rows)
    return [
        _conclusion(result, grouped(own, label)) for result, own in grouped(rows, lambda row: row["result"]).items()
    ]


def headline(conclusions: list[Conclusion]) -> str:
    """One sentence over all of them: which results had no assumption seen to fail, and what became of the others."""
    results: dict[tuple[str, str], list[str]] = {}
    for one in conclusions:
        reasons = [(how, why if how == NOT_CHECKED else "") for how, why in one.outcomes.values()]
        for reason, labels in _alike(dict(zip(one.outcomes, reasons, strict=True))).items():
            everywhere = len(labels) == len(reasons) and reason[0] != NOT_SEEN
            named = CITATIONS[one.result] + ("" if everywhere else f" (for {_listed(labels)})")
            results.setdefault(reason, []).append(named)
    parts = [_clause(how, why, results[how, why]) for how, why in sorted(results, key=_place)]
    return f"As this run was configured, {'; '.join(parts)}."


def overview(rows: list[Row]) -> list[Row]:
    """For every result, quantity and defence of the run as configured: the range of both sides, and the verdict."""
    kept = [
        row for row in rows
        if row["setting"] == CONFIGURED and row["status"] != "not covered" and (row["bound"] or row["measured"])
    ]  # fmt: skip
    label = _labels(rows)
    return [
        {
            "result": result, "quantity": quantity, "defence": defence, "verdict": verdict(several),
            "bound": _ends(several, "bound"), "measured": _ends(several, "measured"),
        }
        for (result, quantity, defence), several in grouped(
            kept, lambda row: (row["result"], row["quantity"], label(row))
        ).items()
    ]  # fmt: skip


def verdict(rows: list[Row]) -> str:
    """What became of one inequality in the cell of a table; with its condition, where an assumption was violated."""
    conditions = {"not covered": "not stated", "not checkable": "not checked"}
    broken, places, unit = _broken(rows)
    parts = [_share("does not apply", broken, places, unit)] if broken else []
    for status, words in conditions.items():
        count = sum(row["status"] == status for row in rows)
        if count:
            parts.append(_share(words, count, len(rows), ""))
    failed, known = _failed(rows)
    if known:
        share = f" in {failed} of {known}" if known > 1 else ""
        parts.append(f"violated{share}" if failed else "not violated")
    return "; ".join(parts) or "-"


def violations(rows: list[Row]) -> list[Row]:
    """Assumptions of the run as configured that were violated: for every defence, the round at which it was worst."""
    label = _labels(rows)
    checks = [
        {**check, "result": row["result"], "round": row["round"], "defence": label(row)}
        for row in rows
        if row["setting"] == CONFIGURED and row["status"] in BROKEN
        for check in row["assumptions"]
        if check["status"] == "violated"
    ]
    return worst_checks(checks, lambda check: (check["name"], check["defence"]))


# -- words ---------------------------------------------------------------------------------------------------------


def _conclusion(result: str, defences: dict[str, list[Row]]) -> Conclusion:
    """Defences with the same outcome are named together."""
    configured = {label: [row for row in rows if row["setting"] == CONFIGURED] for label, rows in defences.items()}
    outcomes = {label: _assumptions(rows) for label, rows in configured.items()}
    parts = []
    for (how, why), labels in sorted(_alike(outcomes).items(), key=lambda item: _place(item[0])):
        every = len(labels) == len(defences) > 1
        names = "any defence of this run" if every and how == NOT_STATED else _listed(labels)
        seen = _inequality(result, [row for label in labels for row in configured[label]])
        parts.append(f"{how} {names}{f' ({why})' if why else ''}{f'; {seen}' if seen else ''}.")
    parts += _other_settings(result, [row for rows in defences.values() for row in rows])
    text = " ".join(part[0].upper() + part[1:] for part in parts)
    return Conclusion(result, outcomes, text[0].lower() + text[1:])


def _alike(outcomes: dict[str, tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """The defences that share an outcome."""
    alike: dict[tuple[str, str], list[str]] = {}
    for label, outcome in outcomes.items():
        alike.setdefault(outcome, []).append(label)
    return alike


def _place(outcome: tuple[str, str]) -> int:
    return ORDER.index(outcome[0])


def _assumptions(rows: list[Row]) -> tuple[str, str]:
    """What became of the assumptions for one defence, and why."""
    statuses = {row["status"] for row in rows}
    if statuses & set(BROKEN):
        broken, places, unit = _broken(rows)
        return SOME_DO_NOT if unit and broken < places else DOES_NOT, _violated(rows)
    if "applies" in statuses:
        return NOT_SEEN, _unchecked(rows)
    how, status = (NOT_CHECKED, "not checkable") if "not checkable" in statuses else (NOT_STATED, "not covered")
    return how, "; ".join(dict.fromkeys(row["reason"] for row in rows if row["status"] == status))


def _violated(rows: list[Row]) -> str:
    """``violated: gamma < 1/L_alpha``, with the number of places where it was not so at all of them."""
    broken = [row for row in rows if row["status"] in BROKEN]
    names = dict.fromkeys(
        check["name"] for row in broken for check in row["assumptions"] if check["status"] == "violated"
    )
    count, places, unit = _broken(rows)
    where = "" if count == places and not unit else f" in {'all' if count == places else f'{count} of'} {places}"
    return f"violated{where and where + (unit or ' places')}: {', '.join(names)}" if names else ""


def _broken(rows: list[Row]) -> tuple[int, int, str]:
    """At how many places an assumption was violated, of how many, and what these are called if not places.

    Rows on several subproblems count each of them, once for all the inequalities of a result.
    """
    split = [row for row in rows if "subproblems" in row]
    if not split:
        return sum(row["status"] in BROKEN for row in rows), len(rows), ""
    parts = [row["subproblems"] for row in split if row["quantity"] == split[0]["quantity"]]
    return sum(part["count"] - part["covered"] for part in parts), sum(part["count"] for part in parts), " subproblems"


def _failed(rows: list[Row]) -> tuple[int, int]:
    """How often the inequality was violated, of how many times that it was evaluated."""
    known = [
        row.get("subproblems") or {"violated": not row["holds"], "checked": 1}
        for row in rows
        if row["holds"] is not None
    ]
    return sum(part["violated"] for part in known), sum(part["checked"] for part in known)


def _share(words: str, count: int, places: int, unit: str) -> str:
    return words if count == places else f"{words} in {count} of {places}{unit}"


def _unchecked(rows: list[Row]) -> str:
    missing = [row["reason"] for row in rows if row["status"] != "applies"]
    return (
        f"not checked in {len(missing)} of {len(rows)} places: {'; '.join(dict.fromkeys(missing))}" if missing else ""
    )


def _inequality(result: str, rows: list[Row]) -> str:
    """Whether the inequality was violated, whatever its assumptions; empty where it was not evaluated."""
    known = [row for row in rows if row["holds"] is not None and row["status"] != "not covered"]
    if not known:
        return ""
    failed, count = _failed(known)
    unit = "checks" if any("subproblems" in row for row in known) else "places"
    if failed:
        return f"its inequality was violated in {failed} of {count} {unit}"
    empty = sum(row["bound"]["value"] >= 1 for row in known) if result == LEMMA else 0
    if empty:
        share = "" if empty == len(known) else f" in {empty} of {len(known)} places"
        return f"its inequality was not violated and says nothing{share}, since a bound of 1 or more bounds no leakage"
    return "its inequality was not violated" + (f" in any of {count} {unit}" if count > 1 else "")


def _other_settings(result: str, rows: Iterable[Row]) -> list[str]:
    """What became of the inequality with a smaller step, or with other constants."""
    parts = []
    for setting, several in grouped(rows, lambda row: row["setting"]).items():
        seen = _inequality(result, several)
        if setting != CONFIGURED and seen:
            broken = _violated(several)
            words = OTHERWISE.get(setting, f"with {setting}") + (f" ({broken})" if broken else "")
            parts.append(f"{words}: {seen}.")
    return parts


def _clause(how: str, why: str, results: list[str]) -> str:
    """One part of the headline."""
    listed = _listed(results)
    if how == NOT_SEEN:
        return f"no assumption of {listed} was seen to fail"
    if how in (DOES_NOT, SOME_DO_NOT):
        return f"assumptions of {listed} were violated{' in some subproblems' if how == SOME_DO_NOT else ''}"
    if how == NOT_CHECKED:
        return f"{listed} {'were' if len(results) > 1 else 'was'} not checked ({why})"
    return f"the paper does not state {listed} here"


def _labels(rows: list[Row]) -> Callable[[Row], str]:
    """How defences are named: with their dataset, where there are several."""
    several = len({row["dataset"] for row in rows}) > 1
    return lambda row: defence_label(row, several)


def _ends(rows: list[Row], side: str) -> tuple[float, float] | None:
    values = [row[side]["value"] for row in rows if row[side] is not None and row[side]["value"] is not None]
    return (min(values), max(values)) if values else None


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
