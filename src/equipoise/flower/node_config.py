"""What the operator of a node lets be asked of it, who need not trust the run config.

Node config (``flower-supernode --node-config``):

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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BudgetError, ConfigError, LimitError, is_finite
from ..mechanism.registry import get_mechanism as find
from .run_config import Terms, limit, own_keys, path, words

KEYS = ("mechanisms", "budget_at_most", "release_limit", "ledger", "verbose_errors")


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
        for most, releases, what in ((terms.release_limit, here, "in this run"), (self.release_limit, ever, "in all")):
            if most is not None and releases >= most:
                raise LimitError(
                    f"This client has released {releases} times {what}; the limit is {most}.",
                    "Budgets of single releases do not add up to a budget of all; raise the limit if you accept more.",
                )


def read_limits(node_config: Mapping[str, Any]) -> NodeLimits:
    """The node's own terms.

    >>> read_limits({"partition-id": 0, "equipoise.budget-at-most": 0.98}).budget_at_most
    0.98
    """
    given = own_keys(node_config, KEYS, "node config")
    bound = given.get("budget_at_most")
    if bound is not None and not is_finite(bound):
        raise ConfigError(f"Expected equipoise.budget-at-most={bound!r} to be a number.", "For example 0.98.")
    names = words(given.get("mechanisms", ""))
    for name in names:
        find(name)
    ledger, most = path("ledger", given.get("ledger")), limit(given.get("release_limit", 0))
    if most is not None and ledger is None:
        raise ConfigError(
            "A node's equipoise.release-limit needs equipoise.ledger, which counts over runs and restarts.",
            "Name a file in a folder of the node's own.",
        )
    return NodeLimits(names, bound, most, ledger)
