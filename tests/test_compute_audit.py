"""``python -m equipoise.compute`` with attacks: what it writes, what it refuses, and that torch and numpy suffice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise
from equipoise import compute as compute_module
from equipoise.auditing import limits_audit, replay
from equipoise.auditing.results import summary
from equipoise.auditing.store import unpacked
from equipoise.compute import compute_audit, compute_multi_round, main
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, to_dict
from tests.audit_helpers import EFFORT, write_pictures
from tests.helpers import single_threaded
from tests.test_compute_alone import BLOCKER

SETTINGS = Settings.flat(rounds=2, evaluate_every=2, model="mlp", init="torch", batch=2, steps=2, public_fraction=0.6)
REPLAY = {"examples": 4, "decoys": 4, "around": 4}
CHEAP = {**EFFORT, "releases": 2}


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    data = str(write_pictures(tmp_path_factory.mktemp("data") / "pictures"))
    return to_dict(SETTINGS, [Federation(data, "pl-learn", 0.98), Federation(data, "none")])


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that has torch and numpy, and nothing else of what we use."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return {**single_threaded(), "PYTHONPATH": f"{folder}:{Path(equipoise.__file__).parents[1]}"}


def run(folder: Path, spec: dict[str, Any], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "equipoise.compute", str(folder / "spec.json"), str(folder / "out")]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any], bare: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    done = run(folder, {**spec, "audit": {**CHEAP, "snapshots": [2, 0]}}, bare)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert " rows in " in done.stdout
    return folder / "out"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any], bare: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("replayed")
    done = run(folder, {**spec, "multi_round": REPLAY}, bare)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder / "out"


def test_an_audit_writes_results_and_values_and_nothing_else(audited: Path) -> None:
    assert sorted(path.name for path in audited.iterdir()) == ["audit.json", "audit.npz"]


def test_the_rows_are_those_of_the_rounds_that_were_asked_for(audited: Path, spec: dict[str, Any]) -> None:
    result = json.loads((audited / "audit.json").read_text(), parse_constant=refuse)
    assert (result["schema"], result["experiment"]) == (1, "seeded")
    named = [{**federation, "dataset": "pictures"} for federation in spec["federations"]]
    assert result["spec"] == {**spec, "federations": named, "audit": {**CHEAP, "snapshots": [0, 2]}}
    assert {row["round"] for row in result["attacks"]} == {0, 2}
    assert {row["attack"] for row in result["attacks"]} == set(result["options"]["attacks"])
    roles = {"own", "static, equal lower bound", "static, equal final norm", "undistorted"}
    assert {row["role"] for row in result["attacks"] if row["mechanism"] == "pl-learn"} == roles
    assert {row["role"] for row in result["attacks"] if row["mechanism"] == "none"} == {"own"}
    assert result["differences"]
    assert set(result["seconds"]) == {"training", "all"}


def test_a_spec_with_the_older_names_is_read(tmp_path: Path, spec: dict[str, Any]) -> None:
    """``given`` was ``condition_on``, and ``rounds`` a list of what are called snapshots."""
    effort = {**CHEAP, "attacks": ["labels"]}
    result = compute_audit({**spec, "audit": {**effort, "rounds": [1], "given": "best"}}, tmp_path)
    assert {row["round"] for row in result["attacks"]} == {1}
    assert result["options"]["condition_on"] == "best"
    assert result["spec"]["audit"] == {**effort, "snapshots": [1], "condition_on": "best"}


def test_no_path_of_a_dataset_is_written(audited: Path, replayed: Path, spec: dict[str, Any]) -> None:
    place = str(Path(spec["federations"][0]["dataset"]).parent)
    for path in (audited / "audit.json", replayed / "multi_round.json"):
        text = path.read_text()
        assert place not in text
        assert {row["dataset"] for row in json.loads(text)["attacks"]} == {"pictures"}
    stored = unpacked((audited / "audit.npz").read_bytes())
    assert {one.about["dataset"] for one in stored.outcomes} == {"pictures"}
    assert set(stored.arrays) == {"pictures/truth", "pictures/labels"}
    with np.load(audited / "audit.npz", allow_pickle=False) as arrays:
        assert place not in str(arrays["index"])


def test_the_values_per_release_give_the_rows(audited: Path) -> None:
    result = json.loads((audited / "audit.json").read_text())
    outcomes = unpacked((audited / "audit.npz").read_bytes()).outcomes
    rows = [row for row in result["attacks"] if row["control"] != "negative"]
    width = next(int(row["chance"].split()[-1]) for row in rows if "chance" in row)
    for one, row in zip(outcomes, rows, strict=True):
        assert {**one.about, "attack": one.attack}.items() <= row.items()
        again = summary(one.values, result["options"]["seed"], candidates=width)
        assert again.items() <= row.items(), "the intervals, too"
    negative = [row for row in result["attacks"] if row["control"] == "negative"]
    for one, row in zip(outcomes, negative, strict=True):
        again = summary(one.negative, result["options"]["seed"], candidates=width - 1)
        assert again.items() <= row.items()


def test_no_image_and_no_weight_is_written(audited: Path, replayed: Path) -> None:
    """A picture has 144 numbers and the model 9,540: no array holds as many for a release."""
    with np.load(audited / "audit.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].size <= 2 * 4 for name in arrays.files)

    def longest(value: Any) -> int:
        if isinstance(value, dict):
            return max((longest(item) for item in value.values()), default=0)
        if isinstance(value, list):
            numbers = sum(isinstance(item, int | float) for item in value)
            return max([numbers, *(longest(item) for item in value)])
        return 0

    assert longest(json.loads((audited / "audit.json").read_text())) <= 8
    assert longest(json.loads((replayed / "multi_round.json").read_text())) <= 8


def test_a_replay_writes_one_file(replayed: Path, spec: dict[str, Any]) -> None:
    assert sorted(path.name for path in replayed.iterdir()) == ["multi_round.json"]
    result = json.loads((replayed / "multi_round.json").read_text(), parse_constant=refuse)
    named = [{**federation, "dataset": "pictures"} for federation in spec["federations"]]
    assert result["spec"] == {**spec, "federations": named, "multi_round": REPLAY}
    assert [row["mechanism"] for row in result["attacks"]] == ["pl-learn", "none"]
    for row in result["attacks"]:
        assert (row["rounds"], row["candidates"]) == (2, 5)
        assert 1 <= row["targets"] <= 4
        assert row["evidence"] == "insufficient evidence"
        assert 0 <= row["identification_schedule_unknown"] <= 1


def failure(folder: Path, spec: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (folder / "spec.json").write_text(json.dumps(spec))
    code = main([str(folder / "spec.json"), str(folder / "out")])
    out, err = capsys.readouterr()
    if code:
        assert out == ""
        assert err.startswith("error: ")
        assert not list(folder.glob("out/*.json"))
    return code, err


@pytest.mark.parametrize(
    ("audit", "words"),
    [
        ({"sampels": 20}, "sampels"),
        ({"attacks": ["invgard"]}, "Did you mean 'invgrad'"),
        ({"samples": 1}, "samples=1"),
        ({"condition_on": "much"}, "condition_on"),
        ({"snapshots": [3]}, "0..2"),
        ({"snapshots": [0, -1]}, "0..2"),
        ({"snapshots": []}, "snapshots"),
        ({"snapshots": ["1"]}, "snapshots"),
        ({"snapshots": [0, "1"]}, "snapshots"),
        ({"snapshots": 1}, "snapshots"),
        ({"samples": "20"}, "samples"),
        ({"releases": 2.5}, "releases"),
        (None, "audit"),
        ([1], "audit"),
    ],
    ids=str,
)
def test_an_audit_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], audit: Any, words: str
) -> None:
    given = {**CHEAP, **audit} if isinstance(audit, dict) else audit
    code, err = failure(tmp_path, {**spec, "audit": given}, capsys)
    assert code == 11
    assert words in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"roundz": 1}, "roundz"),
        ({"rounds": 3}, "rounds"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": "2"}, "rounds"),
        ({"client": 9}, "client"),
        ({"pairs": 0}, "pairs"),
        (None, "multi_round"),
    ],
    ids=str,
)
def test_a_replay_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], change: Any, words: str
) -> None:
    given = {**REPLAY, **change} if isinstance(change, dict) else change
    code, err = failure(tmp_path, {**spec, "multi_round": given}, capsys)
    assert code == 11
    assert words in err


def test_both_at_once_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any]) -> None:
    code, err = failure(tmp_path, {**spec, "audit": CHEAP, "multi_round": REPLAY}, capsys)
    assert code == 11
    assert "multi_round" in err


def test_data_without_public_images_are_a_data_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any]
) -> None:
    private = {**spec, "settings": {**spec["settings"], "public_fraction": 0.0}, "audit": CHEAP}
    code, err = failure(tmp_path, private, capsys)
    assert code == 12
    assert "public" in err


# --- several federations, and the known schedule alone ------------------------------------------------------------


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, int]]]:
    """The federations that are replayed together, in order."""
    seen: list[list[tuple[str, int]]] = []
    genuine = compute_module.replayed_all

    def watched(settings: Settings, federations: list[Federation], rounds: int, **how: Any) -> list[dict[str, Any]]:
        seen.append([(federation.mechanism, federation.seed) for federation in federations])
        return genuine(settings, federations, rounds, **how)

    monkeypatch.setattr(compute_module, "replayed_all", watched)
    return seen


def test_federations_of_one_seed_are_replayed_together(
    tmp_path: Path, spec: dict[str, Any], groups: list[list[tuple[str, int]]]
) -> None:
    data = spec["federations"][0]["dataset"]
    federations = [
        Federation(data, name, budget, seed)
        for name, budget in (("pl-identical", 0.98), ("none", None)) for seed in (1, 2)
    ]  # fmt: skip
    several = {**to_dict(SETTINGS, federations), "multi_round": {**REPLAY, "unknown": False, "rounds": 2, "seed": 5}}
    result = compute_multi_round(several, tmp_path)
    assert groups == [[("pl-identical", 1), ("none", 1)], [("pl-identical", 2), ("none", 2)]]
    alone = {
        (federation.mechanism, federation.seed): replay.replayed(
            SETTINGS, federation, 2, **REPLAY, unknown=False, seed=5
        )
        for federation in federations
    }
    assert len(result["attacks"]) == 4
    for row in result["attacks"]:
        expected = {**alone.pop((row["mechanism"], row["seed"])), "dataset": "pictures"}
        assert row == {name: pytest.approx(value) if isinstance(value, float) else value
                       for name, value in expected.items()}  # fmt: skip
        assert row["dataset"] == "pictures"
        assert not any("unknown" in name for name in row), "the schedule is known"
        assert 0 <= row["membership_tpr_schedule_known"] <= 1
    assert not alone
    assert json.loads((tmp_path / "multi_round.json").read_text())["attacks"] == json.loads(
        json.dumps(result["attacks"])
    )


def test_a_group_that_is_done_is_kept_when_the_next_one_fails(
    tmp_path: Path, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = spec["federations"][0]["dataset"]
    genuine, asked = compute_module.replayed_all, list[int]()

    def second_fails(settings: Settings, federations: list[Federation], rounds: int, **how: Any) -> Any:
        asked.append(federations[0].seed)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return genuine(settings, federations, rounds, **how)

    monkeypatch.setattr(compute_module, "replayed_all", second_fails)
    several = to_dict(SETTINGS, [Federation(data, "none", None, seed) for seed in (1, 2)])
    with pytest.raises(KeyboardInterrupt):
        compute_multi_round({**several, "multi_round": {**REPLAY, "unknown": False}}, tmp_path)
    rows = json.loads((tmp_path / "multi_round.json").read_text())["attacks"]
    assert [row["seed"] for row in rows] == [1]


def test_a_budget_of_a_whole_run_is_played_for_alone(
    tmp_path: Path, spec: dict[str, Any], groups: list[list[tuple[str, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = spec["federations"][0]["dataset"]
    played: list[tuple[Any, int]] = []
    genuine = limits_audit.replayed_limits

    def watched(settings: Settings, federation: Federation, rounds: int, options: Any) -> Any:
        played.append((federation.budget, options.games))
        return genuine(settings, federation, rounds, options)

    monkeypatch.setattr(compute_module, "replayed_limits", watched)
    federations = [Federation(data, "gaussian-dp", 2.0), Federation(data, "none"), Federation(data, "gaussian-dp", 8.0)]
    effort = {**REPLAY, "unknown": False, "games": 4, "among": 3}
    result = compute_multi_round({**to_dict(SETTINGS, federations), "multi_round": effort}, tmp_path)
    assert played == [(2.0, 4), (8.0, 4)]
    assert groups == [[("none", 1)]]
    assert {row["budget"] for row in result["limits"]} == {2.0, 8.0}
    assert [row["mechanism"] for row in result["attacks"]] == ["none"]
