"""What a Flower run asks of its clients, read from its run config, and what a node lets be asked of it.

Run config (``[tool.flwr.app.config.equipoise]``, the same for all):

====================  ==============================================================================================
mechanism, budget     as everywhere; a list or a schedule is written as JSON in a string: ``budget = "[0.96, 0.98]"``
eta, steps, lr, ...   the settings of a release, by their names in ``Settings``; ``leakage.D`` and so on
weight                the metric that weighs a reply; ``num-examples`` unless told otherwise
metrics               other metrics that may be sent along, with commas between them; none unless told otherwise
release-limit         the most releases of one client; 0 for no limit
out                   for the server app: the folder of its run; empty for none
====================  ==============================================================================================

Node config (``flower-supernode --node-config``), for the operator of a node, who need not trust the run config:

==============================  ====================================================================================
partition-id                    the number of the client, where budgets or data depend on it
equipoise.mechanisms            the mechanisms that this node takes part with, with commas between them
equipoise.budget-at-most        a run that asks for a looser budget is refused
equipoise.release-limit         the most releases of this node, over all runs; needs a ledger
equipoise.ledger                a file in which this node counts its own releases, over all runs and restarts
equipoise.verbose-errors        true: the node's log quotes errors of the app, which may quote private data
==============================  ====================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..engine.settings import Settings, check_settings
from ..errors import BudgetError, ConfigError, LimitError, closest, is_count, is_finite
from ..mechanism.protection import Leakage
from ..mechanism.registry import Mechanism, checked
from ..mechanism.registry import mechanism as find
from ..mechanism.schedule import Schedule, schedule, schedule_starts

PREFIX = "equipoise."
WEIGHT = "num-examples"
RESERVED = ("experiment", "round", "accepted", "refused", "void", "evaluation")
"""Keys that a line of the server's metrics has anyway."""
OF_A_RELEASE = (
    "eta", "steps", "lr", "negative_norm", "factor", "sensitivity", "clip", "clip_norm", "clients",
)  # fmt: skip
_LEAKAGE = tuple(f"leakage.{part.name}" for part in fields(Leakage))
_OTHER = ("mechanism", "budget", "weight", "metrics", "release_limit", "out")
_OF_A_NODE = ("mechanisms", "budget_at_most", "release_limit", "ledger", "verbose_errors")


@dataclass(frozen=True)
class Terms:
    """What one run asks of a client's release, and allows beside it."""

    mechanism: Mechanism
    budget: Schedule | None
    settings: Settings
    weight: str = WEIGHT
    metrics: tuple[str, ...] = ()
    release_limit: int | None = None
    out: Path | None = None

    def budgets(self, round_number: int) -> list[float]:
        """The budgets that the clients of a round may have; empty without distortion."""
        if self.budget is None:
            return []
        clients = len(self.budget) if isinstance(self.budget, list) else self.settings.clients
        return schedule(self.budget, [round_number], clients, "budget")[0]

    def budget_of(self, round_number: int, client: int) -> float | None:
        """The budget of one client in one round, or the loosest where it has no number of its own."""
        row = self.budgets(round_number)
        return None if not row else row[client] if client < len(row) else max(row)


def read_terms(run_config: Mapping[str, Any]) -> Terms:
    """The run's terms; unknown keys, wrong types and a missing mechanism are errors.

    >>> found = read_terms({"equipoise.mechanism": "pl-learn", "equipoise.budget": 0.98, "num-server-rounds": 3})
    >>> found.mechanism.name, found.budget, found.settings.steps
    ('pl-learn', 0.98, 10)
    """
    given = _own(run_config, (*OF_A_RELEASE, *_LEAKAGE, *_OTHER), "run config")
    if not given.get("mechanism"):
        raise ConfigError(
            "The run config names no mechanism.", 'Set equipoise.mechanism, for example to "pl-learn", or to "none".'
        )
    constants = {key.removeprefix("leakage."): _value(given[key]) for key in _LEAKAGE if key in given}
    plain = {key: _value(given[key]) for key in OF_A_RELEASE if key in given}
    settings = Settings(**plain, leakage=Leakage(**constants))
    check_settings(settings)
    budget = _value(given.get("budget"))
    budget = None if budget == "" else budget
    found = Terms(
        mechanism=checked(given["mechanism"], budget),
        budget=budget,
        settings=settings,
        weight=str(given.get("weight") or WEIGHT),
        metrics=_words(given.get("metrics", "")),
        release_limit=_limit(given.get("release_limit", 0)),
        out=_path("out", given.get("out")),
    )
    _check_budget(found)
    _check_metrics(found)
    return found


def _check_metrics(terms: Terms) -> None:
    if terms.mechanism.formal and terms.metrics:
        raise ConfigError(
            f"With {terms.mechanism.name!r} no metrics may be sent: its guarantee does not cover them.",
            "Leave equipoise.metrics empty.",
        )
    taken = sorted({*RESERVED, terms.weight}.intersection(terms.metrics))
    if taken:
        raise ConfigError(f"The metric {taken[0]!r} has a meaning of its own.", "Rename it in your app.")


def _check_budget(terms: Terms) -> None:
    """Every part of a schedule, where the app starts: not in the middle of a run, on every client."""
    measure = terms.settings.measure(terms.mechanism)
    if measure is None:
        return
    for round_number in schedule_starts(terms.budget):
        row = terms.budgets(round_number)
        if not row:
            raise ConfigError("The list of budgets is empty.", "Give one for each client.")
        for budget in row:
            measure.lower(budget)


@dataclass(frozen=True)
class NodeLimits:
    """What the operator of a node allows."""

    mechanisms: tuple[str, ...] = ()
    budget_at_most: float | None = None
    release_limit: int | None = None
    ledger: Path | None = None

    def permit(self, terms: Terms, budget: float | None, here: int, ever: int) -> None:
        """Raise unless this node, after ``here`` releases in this run and ``ever`` in all, may release once more."""
        if self.mechanisms and terms.mechanism.name not in self.mechanisms:
            raise ConfigError(
                f"This node does not take part with the mechanism {terms.mechanism.name!r}.",
                f"It allows: {', '.join(self.mechanisms)}.",
            )
        if self.budget_at_most is not None and (budget is None or budget > self.budget_at_most):
            raise BudgetError(
                f"This node allows budgets up to {self.budget_at_most:g}, the run asks for {budget!r}.",
                "Ask for a stricter budget, or leave this node out.",
            )
        for limit, releases, what in ((terms.release_limit, here, "in this run"), (self.release_limit, ever, "in all")):
            if limit is not None and releases >= limit:
                raise LimitError(
                    f"This client has released {releases} times {what}; the limit is {limit}.",
                    "Budgets of single releases do not add up to a budget of all; raise the limit if you accept more.",
                )


def read_limits(node_config: Mapping[str, Any]) -> NodeLimits:
    """The node's own terms.

    >>> read_limits({"partition-id": 0, "equipoise.budget-at-most": 0.98}).budget_at_most
    0.98
    """
    given = _own(node_config, _OF_A_NODE, "node config")
    bound = given.get("budget_at_most")
    if bound is not None and not is_finite(bound):
        raise ConfigError(f"Expected equipoise.budget-at-most={bound!r} to be a number.", "For example 0.98.")
    names = _words(given.get("mechanisms", ""))
    for name in names:
        find(name)
    ledger, limit = _path("ledger", given.get("ledger")), _limit(given.get("release_limit", 0))
    if limit is not None and ledger is None:
        raise ConfigError(
            "A node's equipoise.release-limit needs equipoise.ledger, which counts over runs and restarts.",
            "Name a file in a folder of the node's own.",
        )
    return NodeLimits(names, bound, limit, ledger)


def _own(config: Mapping[str, Any], known: tuple[str, ...], where: str) -> dict[str, Any]:
    """Our keys of a flat Flower config, with ``_`` for ``-``."""
    found = {}
    for key, value in config.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX).replace("-", "_")
        if name not in known:
            raise ConfigError(
                f"Unknown key {key!r} in the {where}.{closest(name, list(known))}", "See docs/deployment.md."
            )
        found[name] = value
    return found


def _value(given: Any) -> Any:
    """A Flower config holds only numbers, words and yes or no: lists and schedules come as JSON in a string."""
    if not isinstance(given, str):
        return given
    if given == "none":
        return None
    try:
        return json.loads(given) if given[:1] in ("[", "{") else given
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Expected {given[:80]!r} to be JSON: {error}.", 'For example "[0.96, 0.98]".') from error


def _words(given: Any) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(given or "").split(",") if word.strip())


def _path(name: str, given: Any) -> Path | None:
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"Expected equipoise.{name}={given!r} to be a path.", "Leave it out for none.")
    return Path(given) if given else None


def _limit(given: Any) -> int | None:
    if not is_count(given):
        raise ConfigError(f"Expected equipoise.release-limit={given!r} to be a whole number >= 0.", "0 is no limit.")
    return given or None
