"""The checks a user can run: each finds the fault that it is there for, and none hides another's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.engine import doctor
from equipoise.environment import VERSION, environment
from equipoise.errors import DataError, EquipoiseError, StorageError
from equipoise.models.batched import Batched
from equipoise.models.objective import Objective


def test_every_check_is_made_and_its_outcome_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(error: Exception) -> Any:
        def look() -> str:
            raise error

        return look

    checks = {
        "good": lambda: "all is well",
        "typed": broken(DataError("The file is corrupt.", "Install again.")),
        "system": broken(OSError("no such device")),
        "torch": broken(RuntimeError("out of memory")),
        "last": lambda: "still looked at",
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)
    result = doctor.examine()
    assert [(check["name"], check["ok"], check["detail"]) for check in result["checks"]] == [
        ("good", True, "all is well"),
        ("typed", False, "The file is corrupt. Install again."),
        ("system", False, "no such device"),
        ("torch", False, "out of memory"),
        ("last", True, "still looked at"),
    ]
    assert result["environment"] == environment()


def test_a_fault_of_the_checks_themselves_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"broken": lambda: {}["absent"]})
    with pytest.raises(KeyError):
        doctor.examine()


def test_versions_and_device_are_named() -> None:
    assert doctor.CHECKS["versions"]().startswith(f"equipoise {VERSION}, Python ")
    assert f"{torch.get_num_threads()} CPU thread(s)" in doctor.CHECKS["device"]()


def test_the_bundled_data_are_whole() -> None:
    assert doctor.CHECKS["bundled data"]() == "hashes right: mnist 4,000 training images, fmnist 4,000 training images"


def test_wrong_gradients_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.CHECKS["arithmetic"]().startswith("batched gradients equal autograd to ")
    genuine = Batched.at

    def off(self: Batched, x: Tensor, y: Tensor) -> Objective:
        right = genuine(self, x, y)
        return Objective(right.loss, lambda params: right.gradient(params) * (1 + 1e-6))

    monkeypatch.setattr(Batched, "at", off)
    with pytest.raises(EquipoiseError, match="Batched gradients differ from autograd by"):
        doctor.CHECKS["arithmetic"]()


def test_the_speed_is_that_of_training() -> None:
    result = re.fullmatch(r"(\d+) rounds/s of PL-Learn, one federation of 4 clients", doctor.CHECKS["speed"]())
    assert result
    assert int(result[1]) > 0


def test_a_folder_that_cannot_be_written_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor.CHECKS["disk"]() == "the current folder is writable"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"

    def refused(*_: object) -> None:
        raise StorageError("Cannot write probe: Read-only file system.")

    monkeypatch.setattr(doctor, "write_text", refused)
    with pytest.raises(StorageError):
        doctor.CHECKS["disk"]()
    assert list(tmp_path.iterdir()) == []


def test_extras_are_those_that_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"flwr", "dp_accounting"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name in there else None)
    assert doctor.CHECKS["optional extras"]() == "data no, flower yes, paper no"
