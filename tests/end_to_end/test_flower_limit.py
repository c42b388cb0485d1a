"""Real SuperNodes that are asked for one run too many: refused by their own ledgers, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import FleetError
from equipoise.flower.fleet import Fleet
from equipoise.flower.new_app import new_app
from equipoise.flower.policy_file import init_policy
from equipoise.ledger.ledger import Summary, verify

pytestmark = pytest.mark.slow


def node_ledgers(folder: Path) -> list[Summary]:
    return [verify(folder / str(number) / "ledger.jsonl") for number in range(2)]


def test_nodes_refuse_the_run_that_would_pass_their_limit(tmp_path: Path) -> None:
    app, nodes = tmp_path / "flower_app", tmp_path / "nodes"
    new_app(app)
    policies = [init_policy(nodes / str(number), f"mnist-{number}", "gaussian-dp", 2.0) for number in range(2)]
    for policy in policies:  # room for one run and a half
        text = policy.read_text()
        assert text.count("most-total-epsilon = 8.0") == 1
        policy.write_text(text.replace("most-total-epsilon = 8.0", "most-total-epsilon = 3.0"))

    def config(number: int) -> dict[str, Any]:
        return {"equipoise.policy": str(policies[number])}

    def settings(run: str) -> dict[str, Any]:
        out = {"equipoise.out": str(tmp_path / run)}
        return {"num-server-rounds": 1, "equipoise.gaussian.rounds": 2, "min-nodes": 2, **out}

    with Fleet(tmp_path / "logs-1", nodes=2, node_config=config) as fleet:
        fleet.run(app, settings("first"), timeout=240)
    first = node_ledgers(nodes)
    for account in first:
        (run,) = account.runs.values()
        assert (run.used, run.terms.rounds, run.terms.epsilon) == (1, 2, 2.0)
    with (
        Fleet(tmp_path / "logs-2", nodes=2, node_config=config) as fleet,
        pytest.raises(FleetError),
    ):
        fleet.run(app, settings("second"), timeout=240)
    assert [account.head for account in node_ledgers(nodes)] == [account.head for account in first]
    said = "".join(path.read_text(errors="replace") for path in (tmp_path / "logs-2").glob("*"))
    assert "epsilon 2 is spent or reserved; 2 more would pass most-total-epsilon = 3" in said
