"""The documented change from Flower's LocalDpMod to gaussian-dp: both apps run, and the node reserves what it says."""

from __future__ import annotations

import json
import math
import re
import runpy
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.config import flatten_dict

from equipoise.flower.policy_file import init_policy
from equipoise.ledger.report import ledger_report
from equipoise.privacy.gaussian import epsilon_of
from tests.flower.test_quickstart import NODES, PLAIN, Loopback

PAGE = Path(__file__).parents[2] / "docs" / "from_flower_mods.md"
ROUNDS = 3


def hunks(name: str) -> list[tuple[str, str]]:
    """The old and the new text of every run of lines that a diff changes."""
    (body,) = re.findall(rf"```diff\n # {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    groups = re.findall(r"(?:^[+-].*\n)+", body, re.MULTILINE)
    sides = [["".join(f"{line}\n" for line in re.findall(rf"^\{sign}(.*)", group, re.M)) for sign in "-+"]
             for group in groups]  # fmt: skip
    return [(old, new) for old, new in sides]


def before(folder: Path) -> Path:
    """The plain app with Flower's mod."""
    shutil.copytree(PLAIN, folder)
    path = folder / "client_app.py"
    (imported, _), (made, _), *_ = hunks(path.name)
    text = path.read_text(encoding="utf-8").replace("app = ClientApp()\n", made)
    path.write_text(f"{imported}{text}", encoding="utf-8")
    return folder


def after(folder: Path) -> Path:
    """The same app with every documented line changed."""
    before(folder)
    for name in ("client_app.py", "server_app.py", "pyproject.toml"):
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in hunks(name):
            assert not old or text.count(old) == 1, f"the app has no lines {old!r}"
            at_the_top = not old and new.startswith("from")
            text = text.replace(old, new) if old else f"{new}{text}" if at_the_top else f"{text}{new}"
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, policies: dict[int, Path] | None = None) -> list[Message]:
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("task", None)
    torch.manual_seed(0)
    config = flatten_dict(tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    client, server = (runpy.run_path(str(folder / f"{name}_app.py"))["app"] for name in ("client", "server"))
    grid = Loopback(client, config)
    for node, path in (policies or {}).items():
        grid.contexts[node].node_config["equipoise.policy"] = str(path)
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return [reply for reply in grid.sent if reply.metadata.message_type == "train"]


def test_the_app_before_the_change_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = run(before(tmp_path / "app"), monkeypatch)
    assert len(replies) == ROUNDS * len(NODES)
    assert all("train_loss" in reply.content["metrics"] for reply in replies), "a loss leaves beside the noise"


def test_the_change_reserves_the_whole_run_on_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {node: init_policy(tmp_path / str(node), "scans-2024", budget=2.0, releases=500) for node in NODES}
    replies = run(after(tmp_path / "app"), monkeypatch, policies)
    assert len(replies) == ROUNDS * len(NODES)
    for reply in replies:
        assert not reply.has_error()
        assert "train_loss" not in reply.content["metrics"]
    for path in policies.values():
        ledger = path.parent / "ledger.jsonl"
        lines: list[dict[str, Any]] = [json.loads(line) for line in ledger.read_text().splitlines()]
        assert [line["kind"] for line in lines] == ["account", "reserve", *["asked", "answered"] * ROUNDS]
        reserved = ledger_report(ledger)["reserved"]
        assert (reserved["epsilon"], reserved["delta"], reserved["runs"][0]["used"]) == (2.0, 1e-5, ROUNDS)


def test_what_the_page_says_of_the_mods_epsilon() -> None:
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / 2
    apart = [epsilon_of(sigma / distance, 1e-5, 50) for distance in (1, 2)]
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    told = re.search(r'50 rounds of "epsilon 2" are (\d+) \(add/remove\), or (\d+) \(one update for another\)', page)
    assert told is not None
    assert [int(number) for number in told.groups()] == [round(epsilon) for epsilon in apart]
