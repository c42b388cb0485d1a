"""What the demo trains and draws; the command itself is tested in ``tests/cli/test_demo.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.errors import ConfigError
from equipoise.report import demonstration
from equipoise.report.demonstration import ATTACK, demo_config, demo_page
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.helpers import write_dataset


def test_three_ways_to_train_are_compared_at_two_budgets() -> None:
    config = demo_config(24)
    assert [(fed.mechanism, fed.budget) for fed in config.federations()] == [
        ("none", None), ("pl-identical", 0.97), ("pl-identical", 0.99), ("pl-learn", 0.97), ("pl-learn", 0.99)
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="rounds=0"):
        demo_config(0)


def test_the_page_shows_every_federation(tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "tiny"))
    sweep = {"mechanisms": ["none", "pl-learn"], "budgets": [0.98], "datasets": [data]}
    Run(tmp_path / "run", resolve(overrides={"rounds": 2}, sweep=sweep)).execute()
    page = demo_page(tmp_path / "run", 2)
    assert page == tmp_path / "run" / "accuracy.html"
    assert "pl-learn, budget 0.98 (seed 1)" in page.read_text(encoding="utf-8")


def test_the_audit_of_a_demo_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Written:
        def save(self, folder: Path) -> None:
            asked.append(folder)

    def audit_run(folder: Path, options: object, **more: object) -> Written:
        asked.append(options)
        return Written()

    monkeypatch.setattr(demonstration, "audit_run", audit_run)
    demonstration.demo_audit(tmp_path, None)
    assert asked[0].attacks == ATTACK["attacks"]  # type: ignore[attr-defined]
    assert asked[1] == tmp_path
