"""``equipoise flower``: a new app for people and for machines, and a demo that refuses what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.flower import demo as shell
from tests.helpers import Command, document

FOUND = {
    "mechanism": "pl-learn", "budget": 0.98, "accuracy": {"0": 0.1, "3": 0.9}, "refused": {"2": {"node 1": "is late"}},
    "releases": {"asked": 12, "accepted": 11, "clients": 4}, "run": "run", "claim": "nothing", "seconds": 1.0,
    "audit": "equipoise audit run",
}  # fmt: skip


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
    assert asked == [(2, 3, True, False)]
    assert "test accuracy 10.0% -> 90.0%" in done.out
    assert "refused in round 2: node 1: is late" in done.out
    assert "11 of 12 releases by 4 clients" in done.out
    assert "what could its server see? in the folder of the app: equipoise audit run" in done.out
    assert document(command("flower", "demo", "--json")) == FOUND


def test_the_demo_refuses_too_few_nodes(command: Command) -> None:
    assert command("flower", "demo", "--nodes", "1").code == 11
