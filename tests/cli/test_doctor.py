"""``equipoise doctor``: every check by name, and an exit code."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from equipoise.engine import doctor
from equipoise.errors import DataError
from tests.helpers import Command, contents, document


def test_the_doctor_finds_nothing_wrong_here(command: Command, tmp_path: Path) -> None:
    result = document(command("doctor", "--json"))
    assert [check["name"] for check in result["checks"] if not check["ok"]] == []
    assert {check["name"] for check in result["checks"]} == set(doctor.CHECKS)
    assert result["environment"]["equipoise"] == version("equipoise")
    assert contents(tmp_path) == {}, "the probe of the disk leaves nothing"


def test_the_doctor_names_what_is_wrong(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise DataError("mnist.npz is truncated.", "Reinstall.")

    monkeypatch.setattr(doctor, "CHECKS", {"versions": lambda: "fine", "bundled data": broken})
    done = command("doctor")
    assert done.code == 1
    assert "ok   versions: fine" in done.out
    assert "FAIL bundled data: mnist.npz is truncated. Reinstall." in done.out
    result = command("doctor", "--json")
    assert result.code == 1
    assert [check["ok"] for check in document(result)["checks"]] == [True, False]
