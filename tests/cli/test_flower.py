"""``equipoise flower``: a new app for people and for machines, and a demo that refuses what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.flower import demo as shell
from equipoise.flower.policy import read_policy
from equipoise.ledger.account import Account
from equipoise.ledger.account_report import proved_limits
from equipoise.ledger.reservation import Reserved
from equipoise.privacy.guarantee import percent_up
from tests.helpers import Command, document
from tests.ledger.entries import of_run, reservation

FOUND = {
    "mechanism": "pl-learn", "budget": 0.98, "accuracy": {"0": 0.1, "3": 0.9}, "refused": {"2": {"node 1": "is late"}},
    "releases": {"asked": 12, "accepted": 11, "clients": 4}, "run": "run", "claim": "nothing", "seconds": 1.0,
    "audit": "equipoise audit run", "reserved": {},
}  # fmt: skip
TERMS = "epsilon 2, delta 1e-05 (add/remove, unit: record)"


def test_a_new_app_says_what_to_do_next(command: Command, tmp_path: Path) -> None:
    done = command("flower", "new", "my-app")
    assert done.code == 0
    assert "flwr run my-app simulation" in done.out
    assert (tmp_path / "my-app" / "my_app" / "task.py").is_file()
    again = command("flower", "new", "my-app", "--json")
    assert again.code == 17, "a folder that is not empty is not written into"
    assert document(again)["error"]["type"] == "StorageError"


def test_a_new_app_as_json_lists_its_files(command: Command, tmp_path: Path) -> None:
    result = document(command("flower", "new", "other-app", "--json"))
    assert all((tmp_path / result["folder"] / name).is_file() for name in result["files"])


def test_the_demo_tells_what_the_servers_files_hold(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def demo(out: Path, nodes: int, rounds: int, say: object, *, tls: bool, simulation: bool) -> dict[str, object]:
        asked.append((nodes, rounds, tls, simulation))
        return FOUND

    monkeypatch.setattr(shell, "demo", demo)
    done = command("flower", "demo", "--nodes", "2", "--tls")
    assert asked == [(2, 5, True, False)]
    assert "test accuracy 10.0% -> 90.0%" in done.out
    assert "refused in round 2: node 1: is late" in done.out
    assert "11 of 12 releases by 4 clients" in done.out
    assert "what could its server see? in the folder of the app: equipoise audit run" in done.out
    assert "reserved: nothing, as simulated nodes keep no ledger" in done.out
    assert document(command("flower", "demo", "--json")) == FOUND


def test_the_demo_ends_with_what_each_node_reserved_and_what_that_proves(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policies = shell.node_policies(tmp_path / "nodes", 2)
    for policy in policies.values():
        own = read_policy(policy)
        assert own.ledger is not None
        assert own.account is not None
        with Account.open(own.ledger, own.account) as account:
            account.reserve(reservation("7"))
            account.append(of_run("7"))
    reserved = {f"node {number}": shell.account_of(policy) for number, policy in policies.items()}
    monkeypatch.setattr(shell, "demo", lambda *_, **__: {**FOUND, "budget": 2.0, "reserved": reserved})
    lines = command("flower", "demo").out.splitlines()
    for number in (0, 1):
        told = f"node {number} has reserved {TERMS} for the whole run; its policy leaves epsilon 6, delta 4e-05 for"
        assert len([line for line in lines if line.startswith(told)]) == 1
    (proved,) = [line for line in lines if line.startswith("proved, for any attacker: ")]
    limits = proved_limits(Reserved(reservation("7"), "now"))["identification"]
    assert f"Run 7: {TERMS}, 1 of 3 rounds used (epsilon" in proved
    assert f"one of 200 equally likely candidates with at most {percent_up(limits['run'])} (blindly: 0.5 %)" in proved
    assert f"from one release, at most {percent_up(limits['release'])}" in proved


def test_the_demo_refuses_too_few_nodes(command: Command) -> None:
    assert command("flower", "demo", "--nodes", "1").code == 11
