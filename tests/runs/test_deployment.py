"""What a deployment's config.toml says of its clients: written, read back, and refused where it makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.errors import CheckpointError, ConfigError
from equipoise.runs.config import resolve, stored
from equipoise.runs.deployment import DATASET, Deployment
from equipoise.runs.folder import RunFolder
from equipoise.runs.run import Run
from tests.audit_helpers import deployed
from tests.helpers import contents

STATES = {0: {"weight": torch.zeros(2, 3), "seen": torch.tensor(7)}, 4: {"weight": torch.ones(2, 3)}}
TOLD: dict[str, Any] = {"model": "my_app.task:Net", "classes": 10, "mean": [0.5, 0.25], "std": [1.0, 2.0]}


def test_the_run_folder_reads_what_the_server_wrote(tmp_path: Path) -> None:
    run = RunFolder(deployed(tmp_path, STATES, TOLD, eta=0.05, local_steps=3))
    assert run.config.deployment == Deployment(**TOLD)
    assert (run.config.settings.protection.eta, run.config.settings.protection.local_steps) == (0.05, 3)
    (federation,) = run.config.federations()
    assert (federation.dataset, federation.mechanism, federation.budget) == (DATASET, "pl-learn", 0.98)
    assert run.snapshots() == [0, 4]
    state = run.state(0)
    assert state["seen"].item() == 7
    assert state["weight"].shape == (2, 3)


def test_only_what_a_server_knows_is_written(tmp_path: Path) -> None:
    text = (deployed(tmp_path, STATES) / "config.toml").read_text()
    for unknown in ("partition", "init", "sampling", "server_rate", "public_fraction", "device"):
        assert f"{unknown} =" not in text
    assert stored(tmp_path / "config.toml").deployment == Deployment()


def test_a_run_of_the_engine_is_no_deployment(tmp_path: Path) -> None:
    config = resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["none"]})
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert stored(tmp_path / "config.toml").deployment is None
    assert "partition =" in config.to_toml()


def test_training_does_not_take_the_folder_of_a_deployment(tmp_path: Path) -> None:
    before = contents(deployed(tmp_path, STATES))
    config = resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["none"]})
    with pytest.raises(CheckpointError, match="not a run folder"):
        Run(tmp_path, config, fresh=True).execute()
    assert contents(tmp_path) == before


def test_the_missing_snapshots_of_a_deployment_are_its_servers_to_write(tmp_path: Path) -> None:
    deployed(tmp_path, STATES)
    for path in (tmp_path / "snapshots").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="has no snapshots") as caught:
        RunFolder(tmp_path).snapshots()
    assert "equipoise.audit.snapshots" in caught.value.remedy


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"model": ""}, "to be a name"),
        ({"model": 3}, "to be a name"),
        ({"model": "my_app.task:Net; touch /tmp/here #"}, "to be a name"),
        ({"model": "x:y\x1b[2K"}, "to be a name"),
        ({"model": "x:y\n"}, "to be a name"),
        ({"model": "--help"}, "to be a name"),
        ({"classes": 1}, "classes=1"),
        ({"classes": 10**9}, "classes=1000000000"),
        ({"classes": 2.5}, r"classes=2\.5"),
        ({"mean": 0.5}, "mean and std together"),
        ({"mean": [], "std": 1.0}, r"mean=\[\]"),
        ({"mean": "bright", "std": 1.0}, "mean='bright'"),
        ({"mean": 0.0, "std": [1.0, "x"]}, "std="),
        ({"mean": 0.1, "std": 1e-300}, "std=1e-300"),
        ({"mean": 0.1, "std": [1.0, 1e30]}, r"std=\[1\.0, 1e\+30\]"),
        ({"mean": 0.1, "std": float("nan")}, "std=nan"),
    ],
)
def test_what_makes_no_sense_is_refused(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Deployment(**told).check()


@pytest.mark.parametrize("table", ["modle = 'x'", "classes = 'ten'", "classes = 1", "mean = true"])
def test_a_table_that_no_server_writes_is_refused(tmp_path: Path, table: str) -> None:
    path = deployed(tmp_path, STATES) / "config.toml"
    path.write_text(f"{path.read_text()}{table}\n")
    with pytest.raises(ConfigError):
        stored(path)


def test_a_configuration_file_for_training_has_no_such_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Unknown key 'deployment'"):
        resolve(deployed(tmp_path, STATES) / "config.toml")


def test_a_deployment_has_one_federation(tmp_path: Path) -> None:
    path = deployed(tmp_path, STATES) / "config.toml"
    path.write_text(path.read_text().replace("budgets = [0.98]", "budgets = [0.98, 0.9]"))
    with pytest.raises(ConfigError, match=r"Expected one federation beside \[deployment\], got 2"):
        stored(path)
