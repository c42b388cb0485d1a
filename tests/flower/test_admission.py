"""What a message asks for is judged by the policy and by what was released before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord

from equipoise.errors import ConfigError, LimitError, PolicyError
from equipoise.flower.admission import admitted, counting
from equipoise.ledger.account import Account
from tests.flower.messages import RUN, asking, context
from tests.flower.policies import easy, node

RECORD = {"round": 1, "mechanism": "pl-identical", "norm": "l2", "lower": 8.0, "upper": 8.0, "intensity": 8.0}


def test_budgets_and_settings_of_the_client_are_those_of_the_run() -> None:
    run = {**RUN, "equipoise.budget": "[0.96, 0.98]", "equipoise.eta": 0.5}
    result = admitted(asking(round_number=3), context(run, {"partition-id": 1}))
    assert (result.client, result.round_number, result.budget, result.settings.eta) == (1, 3, 0.98, 0.5)
    assert (result.epsilon, result.bounds) == (0.0, easy()["pl-identical"])


def test_under_a_formal_guarantee_the_policys_divisor_divides(tmp_path: Path) -> None:
    own = node(tmp_path / "p.toml", weight=1)
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 0.5}
    result = admitted(asking(), context(run, own))
    assert (result.settings.batch, result.epsilon) == (7, 0.5)


@pytest.mark.parametrize("with_ledger", [False, True])
def test_releases_are_counted_and_limited(with_ledger: bool, tmp_path: Path) -> None:
    kept: dict[str, Any] = {}
    if with_ledger:
        Account.create(tmp_path / "l.jsonl", "a1b2")
        kept = {"experiment": None, "account": "a1b2", "ledger": "l.jsonl"}
    about = context(RUN, node(tmp_path / "p.toml", most_releases=2, **kept))
    admission = admitted(asking(), about)
    for number in (1, 2):
        with counting(admission, about) as counted:
            counted.charge(admission)
            counted.note(admission, RECORD)
        assert about.state["equipoise"]["releases"] == number
        assert ("head" in about.state["equipoise"]) == with_ledger
    with counting(admission, about) as counted, pytest.raises(PolicyError, match="released 2 times in all"):
        counted.permit(admission)


def test_the_runs_own_limit_ends_it_too() -> None:
    about = context({**RUN, "equipoise.release-limit": 1})
    admission = admitted(asking(), about)
    with counting(admission, about) as counted:
        counted.charge(admission)
    with counting(admission, about) as counted, pytest.raises(LimitError, match="1 times in this run"):
        counted.permit(admission)


def test_a_state_that_makes_no_sense_is_an_error() -> None:
    about = context()
    about.state["equipoise"] = ConfigRecord({"releases": -1})
    with pytest.raises(ConfigError), counting(admitted(asking(), about), about):
        pass
