"""The ledger of a run: the one its checkpoint saw, or an error; and a limit on releases that holds through crashes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.errors import CheckpointError, ConfigError, LedgerError, LimitError
from equipoise.ledger.ledger import verify
from equipoise.runs.config import Config
from equipoise.runs.run import Run
from tests.helpers import contents
from tests.runs.small_run import FEDERATIONS, ROUNDS, assert_same, changed, interrupted_in, lines_of


def test_the_result_names_the_head_of_the_ledger(whole: Path) -> None:
    note = json.loads((whole / "result.json").read_text())["ledger"]
    result = verify(whole / "ledger.jsonl", note["head"], note["entries"])
    assert (result.entries, result.beyond) == (1 + ROUNDS * len(FEDERATIONS), 0)
    assert {one.asked for one in result.counts.values()} == {ROUNDS}
    assert len(result.counts) == 4 * len(FEDERATIONS)


def test_without_a_ledger_the_run_is_the_same(whole: Path, config: Config, tmp_path: Path) -> None:
    result = Run(tmp_path, changed(config, ledger=False)).execute()
    assert "ledger" not in result
    one, two = contents(tmp_path), contents(whole)
    same = set(two) - {"ledger.jsonl", "config.toml", "result.json", "checkpoint/latest.json"}
    assert set(one) == set(two) - {"ledger.jsonl"}
    assert [name for name in same if one[name] != two[name]] == []


@pytest.mark.parametrize("first", [False, True])
def test_a_ledger_is_not_begun_or_ended_in_the_middle(config: Config, tmp_path: Path, first: bool) -> None:
    interrupted_in(tmp_path, changed(config, ledger=first), 5)
    with pytest.raises(CheckpointError, match=f"begun {'with' if first else 'without'} a ledger") as caught:
        Run(tmp_path, changed(config, ledger=not first)).execute()
    assert f"--set ledger={str(first).lower()}" in caught.value.remedy
    Run(tmp_path, changed(config, ledger=first)).execute()


@pytest.mark.parametrize("damage", ["deleted", "shortened", "edited", "written anew"])
def test_a_ledger_that_does_not_fit_the_checkpoint_is_an_error(config: Config, tmp_path: Path, damage: str) -> None:
    interrupted_in(tmp_path / "run", config, 5)
    path = tmp_path / "run" / "ledger.jsonl"
    content = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    elif damage == "shortened":
        path.write_bytes(content[: -len(content) // 2])
    elif damage == "edited":
        path.write_bytes(content.replace(b'"round":2', b'"round":7', 1))
    else:  # a whole chain of the same length, of another experiment
        interrupted_in(tmp_path / "other", replace(config, sweep=[replace(b, seeds=[2]) for b in config.sweep]), 5)
        other = (tmp_path / "other" / "ledger.jsonl").read_bytes()
        path.write_bytes(other + b" " * (len(content) - len(other)))
    result = path.read_bytes() if damage in ("shortened", "edited") else None
    with pytest.raises(LedgerError):
        Run(tmp_path / "run", config).execute()
    assert result is None or path.read_bytes() == result, "it is left as it was found"


def test_the_limit_ends_the_run_before_the_round_that_would_pass_it(config: Config, tmp_path: Path) -> None:
    limited = changed(config, release_limit=3)
    with pytest.raises(LimitError) as caught:
        Run(tmp_path / "limited", limited).execute()
    assert caught.value.cause == (
        "Client 0 of federation 0 was asked for 3 release(s); round 4 would pass the limit of 3."
    )
    result = json.loads((tmp_path / "limited" / "result.json").read_text())
    assert result["stopped"] == {"round": 3, "of": ROUNDS, "release_limit": 3}
    assert [row["rounds"] for row in result["federations"]] == [3] * 3
    Run(tmp_path / "short", changed(config, rounds=3)).execute()
    one, two = contents(tmp_path / "limited"), contents(tmp_path / "short")
    assert set(one) == set(two)
    same = set(one) - {"config.toml", "result.json", "checkpoint/latest.json"}
    assert [name for name in same if one[name] != two[name]] == []

    trained: list[int] = []
    with pytest.raises(LimitError):  # again: the same, without training
        Run(tmp_path / "limited", limited).execute(on_round=trained.append)
    assert trained == []
    assert contents(tmp_path / "limited") == one


def test_a_higher_limit_goes_on_to_the_same_models_and_releases(whole: Path, config: Config, tmp_path: Path) -> None:
    with pytest.raises(LimitError):
        Run(tmp_path, changed(config, release_limit=3)).execute()
    run = Run(tmp_path, changed(config, release_limit=ROUNDS))
    assert "stopped" not in run.execute()
    assert run.resumed_from == 3
    one, two = contents(tmp_path), contents(whole)
    for name in ("model.safetensors", "ledger.jsonl", f"snapshots/round-{ROUNDS:06d}.safetensors"):
        assert one[name] == two[name]


def test_a_lower_limit_than_what_was_done_ends_it_at_once(config: Config, tmp_path: Path) -> None:
    late = changed(config, evaluate_every=5)
    interrupted_in(tmp_path, late, 5)
    with pytest.raises(LimitError, match=r"asked for 3 release\(s\); round 4 would pass the limit of 2"):
        Run(tmp_path, changed(late, release_limit=2)).execute()
    assert not (tmp_path / "result.json").exists(), "nothing was evaluated yet"
    Run(tmp_path, late).execute()


def test_releases_after_the_checkpoint_are_forgotten_and_repeated(
    whole: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.engine.sweep.LENGTH", 1)
    interrupted_in(tmp_path, config, 2)
    assert len(lines_of(tmp_path)) == 1 + len(FEDERATIONS), "the first round, after the checkpoint of round 0"
    run = Run(tmp_path, config)
    run.execute()
    assert run.resumed_from == 0
    assert_same(tmp_path, whole)


def test_a_limit_that_is_just_enough_stops_nothing(whole: Path, config: Config, tmp_path: Path) -> None:
    Run(tmp_path, changed(config, release_limit=ROUNDS)).execute()
    one, two = contents(tmp_path), contents(whole)
    assert one.pop("config.toml") != two.pop("config.toml")
    assert one == two


def test_a_limited_run_that_is_interrupted_ends_with_the_same_bits(config: Config, tmp_path: Path) -> None:
    limited = changed(config, release_limit=2, participants=2)
    for name in ("whole", "interrupted"):
        if name == "interrupted":
            interrupted_in(tmp_path / name, limited, 2)
        with pytest.raises(LimitError):
            Run(tmp_path / name, limited).execute()
    assert_same(tmp_path / "interrupted", tmp_path / "whole")
    counts = verify(tmp_path / "whole" / "ledger.jsonl").counts
    assert max(one.asked for one in counts.values()) == 2


def test_a_limit_needs_a_ledger(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the ledger counts the releases"):
        Run(tmp_path, changed(config, release_limit=3, ledger=False))
