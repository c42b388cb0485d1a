"""The documented diff turns a plain Flower app into a protected one: applied to the letter, then run."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.config import flatten_dict
from flwr.supercore.task_identity import TaskIdentity

from equipoise.errors import FleetError
from equipoise.flower.client_guard import REFUSED
from equipoise.flower.policy import VARIABLE

POLICY = "policy.toml"
PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
PLAIN = Path(__file__).parent / "quickstart"
NODES = [11, 12, 13]


def documented() -> dict[str, list[str]]:
    """The changed lines of every file, as the page has them."""
    blocks = re.findall(r"```diff\n # (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return {name: [line for line in body.splitlines() if line[:1] in "+-"] for name, body in blocks}


def documented_policy(path: Path) -> Path:
    """The one file that the page adds, as it has it, after the commands that the page has before the node is started.

    Who works with others in one group has umask 002: their new files can be written by all of it.
    """
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(rf"```toml\n# {POLICY}\n(.*?)```", page, re.DOTALL)
    (before,) = re.findall(rf"```\n([^`]*){VARIABLE}=\$PWD/{POLICY} flower-superlink", page)
    usual = os.umask(0o002)
    try:
        path.write_text(text)
        subprocess.run(["sh", "-e", "-c", before], cwd=path.parent, check=True)
    finally:
        os.umask(usual)
    return path


def patched(folder: Path, skip: str = "") -> Path:
    """A copy of the plain app with the documented lines changed; without those that contain ``skip``."""
    shutil.copytree(PLAIN, folder)
    for name, lines in documented().items():
        text = (folder / name).read_text(encoding="utf-8")
        old = None
        for line in lines:
            if line.startswith("-"):
                old = line[1:]
                assert text.count(f"{old}\n") == 1, f"the plain app has no line {old!r}"
            elif skip and skip in line:
                old = None
            elif old is not None:
                text, old = text.replace(f"{old}\n", f"{line[1:]}\n"), None
            else:
                text = f"{line[1:]}\n{text}" if line.startswith("+from") else f"{text}{line[1:]}\n"
        (folder / name).write_text(text, encoding="utf-8")
    return folder


class Loopback:
    """A grid that calls the client app of every node in this process."""

    def __init__(self, app: Any, run_config: dict[str, Any]):
        self.app, self.sent = app, []
        self.contexts = {
            node: Context(1, node, {"partition-id": i, "num-partitions": len(NODES)}, RecordDict(), run_config)
            for i, node in enumerate(NODES)
        }

    def get_node_ids(self) -> list[int]:
        return list(NODES)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            TaskIdentity.node_id = node
            reply = self.app(message, self.contexts[node])
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        TaskIdentity.node_id = 1
        self.sent += replies
        return replies


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("task", None)
    torch.manual_seed(0)
    config = flatten_dict(tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    client = runpy.run_path(str(folder / "client_app.py"))["app"]
    server = runpy.run_path(str(folder / "server_app.py"))["app"]
    grid = Loopback(client, config)
    context = Context(1, 1, {}, RecordDict(), config)
    server(grid, context)
    trained = [reply for reply in grid.sent if reply.metadata.message_type == "train"]
    evaluated = [reply for reply in grid.sent if reply.metadata.message_type == "evaluate"]
    assert len(trained) == 3 * len(NODES)
    return SimpleNamespace(sent=trained, evaluated=evaluated, final=context.state.get("final"))


def test_the_plain_app_runs_and_sends_whatever_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PLAIN, tmp_path / "plain")
    result = run(tmp_path / "plain", monkeypatch)
    assert all("train_loss" in reply.content["metrics"] for reply in result.sent)
    assert len(result.evaluated) == 3 * len(NODES)
    assert all("eval_loss" in reply.content["metrics"] for reply in result.evaluated)


def test_two_lines_and_a_third_protect_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [line for name, lines in documented().items() for line in lines if name.endswith(".py")]
    assert len([line for line in changed if line.startswith("+") and "import" not in line]) == 3
    monkeypatch.setenv(VARIABLE, str(documented_policy(tmp_path / POLICY)))
    result = run(patched(tmp_path / "app"), monkeypatch)
    assert result.evaluated == [], "evaluation on clients is off"
    for reply in result.sent:
        metrics = reply.content["metrics"]
        assert metrics["equipoise.lower"] == pytest.approx(7.99975, rel=1e-5)
        assert metrics["equipoise.lower"] <= metrics["equipoise.intensity"] <= 2 * metrics["equipoise.lower"] * 1.0001
        assert "train_loss" not in metrics, "held back: nobody allowed it"
    final = result.final.to_torch_state_dict()
    assert set(final) == {"conv.weight", "conv.bias", "fc.weight", "fc.bias"}
    assert all(torch.isfinite(tensor).all() for tensor in final.values())


@pytest.mark.parametrize("without", ["protect", "policy"])
def test_without_protect_or_a_policy_nothing_is_sent(
    without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(documented_policy(tmp_path / POLICY)))
    if without == "policy":
        monkeypatch.delenv(VARIABLE)
    app = patched(tmp_path / "app", skip="protect(model" if without == "protect" else "")
    with pytest.raises(FleetError, match=re.escape(REFUSED)):
        run(app, monkeypatch)
