"""What the demo trains and draws; the command itself is tested in ``tests/cli/test_demo.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.engine.recommended import recommended
from equipoise.errors import ConfigError, StorageError
from equipoise.report import demonstration
from equipoise.report.demonstration import (
    ATTACK,
    GAMES,
    MARK,
    attack_paper,
    demo_page,
    paper_config,
    play_recommended,
    prepare,
    recommended_config,
)
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.helpers import contents, write_dataset


def test_three_ways_of_the_paper_at_one_budget() -> None:
    config = paper_config(24)
    assert [(fed.mechanism, fed.budget) for fed in config.federations()] == [
        ("none", None), ("pl-identical", 0.98), ("pl-learn", 0.98)
    ]  # fmt: skip
    assert (config.settings.training.model, config.settings.training.rounds) == ("lenet-zhu", 24)
    with pytest.raises(ConfigError, match="rounds=0"):
        paper_config(0)


def test_the_recommended_way_has_the_recommended_settings() -> None:
    config = recommended_config()
    assert [(fed.mechanism, fed.budget) for fed in config.federations()] == [("gaussian-dp", 2.0)]
    training, known = config.settings.training, recommended("gaussian-dp", "scatter-linear")
    assert training.model == "scatter-linear"
    assert training.rounds == known["rounds"]
    assert training.server_momentum == known["server_momentum"]


def test_both_games_hide_a_record_among_as_many() -> None:
    assert ATTACK["candidates"] == GAMES["among"]


def test_the_page_shows_every_federation(tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "tiny"))
    sweep = {"mechanisms": ["none", "pl-learn"], "budgets": [0.98], "datasets": [data]}
    Run(tmp_path / "run", resolve(overrides={"rounds": 2}, sweep=sweep)).execute()
    page = demo_page(tmp_path / "run", 2)
    assert page == tmp_path / "run" / "accuracy.html"
    assert "pl-learn, budget 0.98 (seed 1)" in page.read_text(encoding="utf-8")


def test_the_audits_of_a_demo_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Written:
        def save(self, folder: Path) -> None:
            asked.append(folder)

    def audit_run(folder: Path, options: object, **more: object) -> Written:
        asked.append(options)
        return Written()

    monkeypatch.setattr(demonstration, "audit_run", audit_run)
    attack_paper(tmp_path / "a")
    play_recommended(tmp_path / "b")
    assert [asked[0].attacks, asked[2].attacks] == [ATTACK["attacks"], GAMES["attacks"]]
    assert [asked[1], asked[3]] == [tmp_path / "a", tmp_path / "b"]


def test_only_what_a_demo_made_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prepare(out) == (out / "paper", out / "recommended")
    assert {path.name for path in out.iterdir()} == {MARK}, "runs make their own folders"
    (out / "paper").mkdir()
    prepare(out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="other things than a demo"):
        prepare(out)


@pytest.mark.parametrize("name", ["config.toml", "paper/config.toml", "recommended/model.safetensors"])
def test_a_folder_without_the_mark_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_text("somebody's run")
    before = contents(tmp_path)
    with pytest.raises(StorageError, match="nothing was touched"):
        prepare(tmp_path / "out")
    assert contents(tmp_path) == before


def test_a_file_and_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="other things"):
        prepare(tmp_path / "file")
    prepare(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "paper").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="paper in the folder out is a link"):
        prepare(tmp_path / "out")
