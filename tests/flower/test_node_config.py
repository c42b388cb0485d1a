"""What a node lets be asked of it: its config is read, and refused where it is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import BudgetError, ConfigError, LimitError
from equipoise.flower.node_config import NodeLimits, read_limits
from equipoise.flower.run_config import read_terms

RUN = {"equipoise.mechanism": "pl-learn", "equipoise.budget": 0.98}


def with_(**changed: Any) -> dict[str, Any]:
    """The run config with ``_`` for ``-`` and for the dot of a part."""
    return {**RUN, **{f"equipoise.{key}": value for key, value in changed.items()}}


def test_a_node_allows_everything_unless_told_otherwise() -> None:
    assert read_limits({"partition-id": 3}) == NodeLimits()
    NodeLimits().permit(read_terms(RUN), 0.98, 10**9, 10**9)


def test_the_node_config_is_read() -> None:
    config = {"mechanisms": "pl-learn, ls-learn", "budget-at-most": 0.97, "release-limit": 5, "ledger": "a/b.jsonl"}
    result = read_limits({f"equipoise.{key}": value for key, value in config.items()})
    assert result == NodeLimits(("pl-learn", "ls-learn"), 0.97, 5, Path("a/b.jsonl"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"budget-at-mots": 1.0}, "Did you mean 'budget_at_most'"),
        ({"mechanism": "pl-learn"}, "Did you mean 'mechanisms'"),
        ({"mechanisms": "pl-lern"}, "Did you mean 'pl-learn'"),
        ({"budget-at-most": "0.98"}, "to be a number"),
        ({"budget-at-most": True}, "to be a number"),
        ({"budget-at-most": math.nan}, "to be a number"),
        ({"budget-at-most": 10**400}, "to be a number"),
        ({"release-limit": -1}, "release-limit=-1"),
        ({"release-limit": 3}, "release-limit needs equipoise.ledger"),
        ({"release-limit": 3, "ledger": ""}, "release-limit needs equipoise.ledger"),
        ({"ledger": 1}, "equipoise.ledger=1"),
    ],
)
def test_a_wrong_node_config_is_an_error_and_not_a_missing_limit(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_limits({f"equipoise.{key}": value for key, value in changed.items()})
    assert words in str(caught.value)


def test_a_node_refuses_other_mechanisms() -> None:
    node = NodeLimits(mechanisms=("ls-learn",))
    with pytest.raises(ConfigError, match="does not take part with the mechanism 'pl-learn'"):
        node.permit(read_terms(RUN), 0.98, 0, 0)
    NodeLimits(mechanisms=("ls-learn", "pl-learn")).permit(read_terms(RUN), 0.98, 0, 0)


@pytest.mark.parametrize(("budget", "fine"), [(0.97, True), (0.96, True), (0.9701, False), (None, False)])
def test_a_node_refuses_looser_budgets_and_none_at_all(budget: float | None, fine: bool) -> None:
    node = NodeLimits(budget_at_most=0.97)
    if fine:
        node.permit(read_terms(RUN), budget, 0, 0)
    else:
        with pytest.raises(BudgetError, match=r"allows budgets up to 0\.97"):
            node.permit(read_terms(RUN), budget, 0, 0)


@pytest.mark.parametrize(
    ("own", "of_the_run", "here", "ever", "words"),
    [
        (3, None, 0, 3, "released 3 times in all; the limit is 3"),
        (None, 3, 3, 3, "released 3 times in this run; the limit is 3"),
        (5, 3, 3, 4, "released 3 times in this run; the limit is 3"),
        (3, 5, 0, 4, "released 4 times in all; the limit is 3"),
        (3, 3, 2, 2, None),
        (5, 3, 2, 4, None),
        (None, 3, 2, 99, None),
        (3, None, 2, 2, None),
    ],
)
def test_each_limit_counts_its_own(
    own: int | None, of_the_run: int | None, here: int, ever: int, words: str | None
) -> None:
    """The run's limit counts the releases in this run, the node's all of them."""
    terms = read_terms(with_(release_limit=of_the_run or 0))
    node = NodeLimits(release_limit=own)
    if words is None:
        node.permit(terms, 0.98, here, ever)
    else:
        with pytest.raises(LimitError, match=words):
            node.permit(terms, 0.98, here, ever)
