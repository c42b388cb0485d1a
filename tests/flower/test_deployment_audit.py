"""A run of Flower, audited: in this process with the example app, by the documented commands, and deployed for real."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.common.config import flatten_dict

from equipoise.auditing.run_audit import audit_run
from equipoise.cli import app as cli
from equipoise.errors import ConfigError, DataError
from equipoise.flower import demo
from equipoise.flower.new_app import new_app
from tests.audit_helpers import cheap
from tests.flower.messages import network, nodes, start
from tests.flower.policies import PROTECT_APP
from tests.flower.servers import validated
from tests.flower.test_quickstart import Loopback

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
EFFORT = ["--attack", "labels", "--targets", "2", "--set", "samples=10", "--set", "label_sets=1"]
"""What a test adds to a documented command, so that it takes seconds."""


def public(count: int = 60, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 2, 2, generator=generator), torch.arange(count) % classes


def test_a_server_folder_is_audited_with_public_data_and_the_model(tmp_path: Path) -> None:
    validated(tmp_path, **{"equipoise.audit.batch": 2}).start(nodes(), ArrayRecord(start()), 3)
    result = audit_run(tmp_path, cheap(attacks=["matched", "membership", "labels"]), public=public(), model=network)
    assert {row["round"] for row in result.rows} == {0, 1, 3}
    own = [row for row in result.rows if row["role"] == "own"]
    assert {row["attack"] for row in own} == {"matched", "membership", "labels"}
    assert all((row["mechanism"], row["budget"]) == ("pl-identical", 0.98) for row in own)
    assert "releases of 1 local step of 2 examples at eta 0.1" in result.content["notes"][0]
    assert {path.name for path in result.save(tmp_path)} == {"audit.json"}
    validated(tmp_path).start(nodes(), ArrayRecord(start()), 4)  # an audit does not keep the server from going on


def test_what_is_lacking_is_told_with_the_flag_that_gives_it(tmp_path: Path) -> None:
    validated(tmp_path).start(nodes(), ArrayRecord(start()), 1)
    with pytest.raises(DataError, match="--public PATH"):
        audit_run(tmp_path, cheap(), model=network)
    with pytest.raises(ConfigError, match=r"--model my_app\.task:Net"):
        audit_run(tmp_path, cheap(), public=public())
    with pytest.raises(DataError, match="fewer than 4 examples of class 2"):
        audit_run(tmp_path, cheap(), public=public(classes=2), model=network)


# --- the example app, and the commands of the page ----------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a new app, in which one round was trained on few images."""
    folder = tmp_path / "my_app"
    new_app(folder, PROTECT_APP)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    text = (folder / "my_app" / "task.py").read_text()
    few = text.replace("partition(train.labels, clients)[client]", "partition(train.labels, clients)[client][:64]")
    assert few != text
    (folder / "my_app" / "task.py").write_text(few)
    config = flatten_dict(tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    config |= {"num-server-rounds": 2, "local-epochs": 1, "equipoise.out": str(folder / "run")}
    modules = [name for name in sys.modules if name.partition(".")[0] == "my_app"]
    for name in modules:
        monkeypatch.delitem(sys.modules, name)
    client, server = (import_module(f"my_app.{side}_app").app for side in ("client", "server"))
    server(Loopback(client, config), Context(1, 1, {}, RecordDict(), config))
    return folder


def documented() -> list[list[str]]:
    """The audit commands of the section "Audit a deployment"."""
    section = PAGE.read_text(encoding="utf-8").split("## Audit a deployment\n")[1].split("\n## ")[0]
    block = re.findall(r"```\n(.*?)```", section, re.DOTALL)[0]
    lines = [line.partition("  #")[0] for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("equipoise audit ")]


def command(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> int:
    monkeypatch.setattr(sys, "argv", ["equipoise", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


@pytest.mark.slow
def test_the_documented_commands_audit_the_example_app(
    app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = documented()
    assert len(commands) == 2
    np.savez(app / "scans.npz", images=torch.rand(80, 28, 28).numpy(), labels=np.arange(80) % 10)
    for _, *arguments in commands:
        assert command(monkeypatch, [*arguments, *EFFORT]) == 0, capsys.readouterr().err
        said = capsys.readouterr().out
        assert "the server cannot know it" in " ".join(said.split())
    content = json.loads((app / "run" / "audit.json").read_text())
    assert {row["mechanism"] for row in content["attacks"]} == {"pl-identical"}
    assert command(monkeypatch, ["audit", "run", *EFFORT]) == DataError.exit_code
    assert "--public PATH" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="stray processes are found by /proc")
@pytest.mark.parametrize("simulation", [False, True], ids=["deployment", "simulation"])
def test_what_the_demo_leaves_can_be_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], simulation: bool
) -> None:
    result: dict[str, Any] = demo.demo(tmp_path / "out", 2, 2, lambda text: None, simulation=simulation)
    monkeypatch.chdir(tmp_path / "out" / "flower_app")
    for name in [name for name in sys.modules if name.partition(".")[0] == "flower_app"]:
        monkeypatch.delitem(sys.modules, name)
    _, *arguments = shlex.split(result["audit"])
    assert command(monkeypatch, [*arguments, "--attack", "matched", "--targets", "4"]) == 0, capsys.readouterr().err
    content = json.loads((Path(result["run"]) / "audit.json").read_text())
    assert {row["round"] for row in content["limits"]} == {0, 1, 2}
    assert {row["dataset"] for row in content["limits"]} == {"deployment"}
    assert content["attacks"] == [], "no attack without a proved limit to hold it against"
