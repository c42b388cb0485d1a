"""What the account of a node shows of guarantees: reserved, used so far, left under a policy, and the proved limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..errors import ConfigError, LedgerError
from ..privacy import CANDIDATES as CANDIDATES
from ..privacy.claim import guarantee_claim
from ..privacy.gaussian import epsilon_of
from ..privacy.guarantee import guarantee, percent_up
from ..privacy.limits import MARGIN, limit
from .account import is_formal, is_whole_run, single_epsilon, units
from .ledger import Reset, Summary
from .reservation import RELATION, SINGLE_RELATION, Reserved, sums

Bounds = Mapping[str, Mapping[str, Any]]
"""What a policy says of each mechanism."""


def printable(text: str) -> str:
    r"""A name from a file, without anything that a terminal would obey.

    >>> printable("pl-learn"), printable("\x1b[2J")
    ('pl-learn', "'\\x1b[2J'")
    """
    return text if text.isprintable() and len(text) <= 40 else ascii(text[:40])


def account_part(summary: Summary, policy: Bounds | None = None) -> dict[str, Any]:
    """The parts of a report that only the account of a node has; fit for JSON.

    ``policy`` has the bounds by mechanism; with it, what is left under each.
    """
    epsilon, delta = sums(summary.runs.values())
    single = single_epsilon(summary)
    total = {"epsilon": _number(epsilon + single), "delta": delta}
    return {
        "reserved": {"epsilon": epsilon, "delta": delta, "runs": [_run(run) for run in summary.runs.values()]},
        "single_releases": {"epsilon": _number(single), "delta": 0.0},
        "total": {**total, "relation": RELATION, "units": sorted(units(summary))},
        "left": None if policy is None else _left(epsilon + single, delta, policy),
        "without_guarantee": without_guarantee(summary),
        "resets": [asdict(reset) for reset in summary.resets],
    }


def without_guarantee(summary: Summary) -> dict[str, int]:
    """Releases by mechanisms that have none, by name.

    >>> without_guarantee(Summary())
    {}
    """
    result: dict[str, int] = {}
    for (name, _), times in sorted(summary.total().budgets.items(), key=lambda item: item[0][0]):
        if not is_formal(name):
            result[name] = result.get(name, 0) + times
    return result


def _number(value: float) -> float | None:
    """None where JSON has no number: an epsilon that is not known is infinite."""
    return value if math.isfinite(value) else None


def _run(run: Reserved) -> dict[str, Any]:
    terms = {name: value for name, value in run.terms.entry().items() if name != "kind"}
    return {**terms, "at": run.at, "used": run.used, "spent_so_far": spent_so_far(run), "limits": proved_limits(run)}


def spent_so_far(run: Reserved) -> float | None:
    """The epsilon of the rounds that were used, at the delta of the run: a progress figure, all of it stays reserved.

    None where it cannot be computed here.
    """
    terms = run.terms
    if run.used == 0:
        return 0.0
    try:
        return epsilon_of(terms.sigma, terms.delta, run.used, terms.sampling_rate, schedule=terms.first(run.used))
    except ConfigError:  # an extra is missing
        return None


def _left(epsilon: float, delta: float, policy: Bounds) -> dict[str, Any]:
    """Under each mechanism's own limits on all runs together; never below 0."""
    result = {}
    for name, bounds in policy.items():
        if "most-total-epsilon" in bounds:
            left = {"epsilon": max(0.0, bounds["most-total-epsilon"] - epsilon)}
            if "most-total-delta" in bounds:
                left["delta"] = max(0.0, bounds["most-total-delta"] - delta)
            result[name] = left
    return result


def proved_limits(run: Reserved) -> dict[str, Any]:
    """What any attacker reaches at most who sees the whole run, or one release, and knows all other records."""
    terms = run.terms
    try:
        found = guarantee(
            sigma=terms.sigma, delta=terms.delta, rounds=terms.rounds, sampling_rate=terms.sampling_rate,
            unit=terms.unit, schedule=terms.noise_schedule,
        ).plain()  # fmt: skip
    except ConfigError as error:  # an extra is missing
        return {"remedy": error.remedy}
    return {key: found[key] for key in ("identification", "membership_tpr", "advantage")}


def claim_of(runs: Sequence[Mapping[str, Any]], run: str) -> dict[str, Any]:
    """``guarantee.json`` of one of the ``runs`` of a report: what is claimed if the node made its releases by it."""
    known = {row["run"]: row for row in runs}
    if run not in known:
        names = ", ".join(map(printable, known)) or "none; a run of equipoise train has guarantee.json in its folder"
        raise LedgerError(f"The ledger has no reservation for the run {printable(run)}.", f"Reserved: {names}.")
    terms = ("epsilon", "delta", "rounds", "sigma", "divisor", "sampling_rate", "unit")
    schedule = tuple((float(size), int(count)) for size, count in known[run]["noise_schedule"])
    return guarantee_claim(**{name: known[run][name] for name in terms}, schedule=schedule)


# -- sentences -----------------------------------------------------------------------------------------------------


def proved(summary: Summary) -> list[str]:
    """What the reservations prove, if the node made its releases by them."""
    if not summary.runs:
        return []
    epsilon, delta = sums(summary.runs.values())
    about = ", ".join(sorted({run.terms.unit for run in summary.runs.values()}))
    words = [
        f"Reserved for {len(summary.runs)} run(s): epsilon {epsilon:g}, delta {delta:g} in all ({RELATION}, unit: "
        f"{about}): simple sums, which hold for runs that were chosen one after the other. What a run does not use "
        "stays reserved."
    ]
    single = single_epsilon(summary)
    if single and math.isfinite(single):
        words.append(
            f"With single releases of epsilon {single:g} in all ({SINGLE_RELATION}): epsilon {epsilon + single:g}, "
            f"delta {delta:g} ({RELATION})."
        )
    words += [limit_sentence(run) for run in summary.runs.values()]
    if len(summary.runs) > 1 or single:
        most = percent_up(limit_of_all(summary))
        words.append(f"Whoever sees all of that together picks the right one of {CANDIDATES} with at most {most}.")
    return words


def limit_of_all(summary: Summary) -> float:
    """The most that any attacker who sees all runs and single releases reaches among ``CANDIDATES``.

    By the sums of epsilon and delta; where all units take part in every round, by the exact law too, if it says less.
    """
    runs, single = summary.runs.values(), single_epsilon(summary)
    epsilon, delta = sums(runs)
    found = min(1.0, (math.exp(min(epsilon + single, 700.0)) / CANDIDATES + delta) * MARGIN)
    if single or any(run.terms.sampling_rate < 1 for run in runs):
        return found
    noise = tuple((run.terms.sigma * size, n) for run in runs for size, n in run.terms.noise_schedule)
    least = min(size for size, _ in noise)
    relative = tuple((size / least, n) for size, n in noise)
    try:
        return min(found, limit(1 / CANDIDATES, least, sum(n for _, n in noise), schedule=relative))
    except ConfigError:  # too many rounds, or too unlike
        return found


def limit_sentence(run: Reserved) -> str:
    """The limits of one run in words."""
    limits, terms = proved_limits(run), run.terms
    head = (
        f"Run {printable(terms.run)}: epsilon {terms.epsilon:g}, delta {terms.delta:g} ({terms.relation}, unit: "
        f"{terms.unit}), {run.used} of {terms.rounds} rounds used{_spent(run)}."
    )
    if "remedy" in limits:
        return f"{head} Its limits are not computed: {limits['remedy']}"
    found = limits["identification"]
    return (
        f"{head} Whoever sees all of it and knows all other records picks the right one of {found['candidates']} "
        f"equally likely candidates with at most {percent_up(found['run'])} (blindly: "
        f"{percent_up(1 / found['candidates'])}); from one release, at most {percent_up(found['release'])}."
    )


def _spent(run: Reserved) -> str:
    found = spent_so_far(run)
    return "" if found is None or run.used in (0, run.terms.rounds) else f" (epsilon {found:.3g} so far)"


def not_claimed(summary: Summary) -> list[str]:
    """What the account cannot say of its data set."""
    words = [_reset_sentence(reset) for reset in summary.resets]
    others = without_guarantee(summary)
    has_guarantee = bool(summary.runs) or any(is_formal(name) for name, _ in summary.total().budgets)
    if others and has_guarantee:
        listed = ", ".join(map(printable, others))
        words.append(
            f"No guarantee holds for this data set as a whole: {sum(others.values())} releases by {listed} have none."
        )
    if len(units(summary)) > 1:
        words.append("A sum over guarantees of different units: those of records say nothing of groups.")
    if math.isinf(single_epsilon(summary)):
        words.append("An epsilon in all: a release states none, or belongs to no run.")
    if any(is_whole_run(name) for name, _ in summary.total().budgets):
        words.append("That rounds which were not used lower what is reserved: the number of them is a progress figure.")
    return words


def _reset_sentence(reset: Reset) -> str:
    return (
        f"Anything about {reset.releases} releases before the reset of {printable(reset.at)} (reserved then: epsilon "
        f"{reset.epsilon:g}, delta {reset.delta:g}), for which the operator gave the reason: {reset.reason!r}. What "
        "was released stays released."
    )
