"""SPECs of several parts: each computed once, whole or not at all, by whichever process comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise import compute as module
from equipoise.auditing.store import unpacked
from equipoise.compute import DONE, compute_audit, compute_parts, main, run_spec
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, to_dict
from equipoise.errors import CheckpointError, ConfigError, StorageError
from equipoise.files import locked
from tests.audit_helpers import EFFORT, interrupt, write_pictures
from tests.helpers import contents

SETTINGS = Settings.flat(rounds=2, evaluate_every=2, model="mlp", init="torch", batch=2, steps=2, public_fraction=0.6)
AUDIT = {**EFFORT, "releases": 2, "attacks": ["matched"], "snapshots": [0]}
REPLAY = {"examples": 4, "decoys": 4, "around": 4, "unknown": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_pictures(tmp_path_factory.mktemp("data") / "pictures"))


def sweep_of(data: str, *seeds: int) -> dict[str, Any]:
    return to_dict(SETTINGS, [Federation(data, "none", None, seed) for seed in seeds or (1,)])


@pytest.fixture
def spec(data: str) -> dict[str, Any]:
    """One part of every kind."""
    alone = to_dict(SETTINGS.replace(clients=1), [Federation(data, "none", None, 1)])
    parts = {
        "trained": sweep_of(data), "attacked": {**sweep_of(data), "audit": AUDIT},
        "replayed": {**sweep_of(data), "multi_round": REPLAY}, "alone": {**alone, "public": [8]},
    }  # fmt: skip
    return {"parts": parts, "commit": "abc"}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that are computed, in order."""
    seen: list[str] = []
    genuine = module.run_spec

    def watched(spec: Any, out: Path) -> bool:
        if "parts" not in spec:
            seen.append(out.name)
        return genuine(spec, out)

    monkeypatch.setattr(module, "run_spec", watched)
    return seen


def done_of(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / DONE).read_text())
    return result


# --- each part once -----------------------------------------------------------------------------------------------


def test_every_part_has_a_folder_with_what_it_is_and_that_it_is_whole(spec: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "out")]) == 0
    files = {
        "trained": {"result.json", "curves.npz"}, "attacked": {"audit.json", "audit.npz"},
        "replayed": {"multi_round.json"}, "alone": {"public.json"},
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(files)
    for name, expected in files.items():
        assert set(contents(tmp_path / "out" / name)) == expected | {DONE}
        done = done_of(tmp_path / "out" / name)
        assert (done["schema"], done["commit"], done["spec"]) == (1, "abc", spec["parts"][name])
        assert done["seconds"] > 0


def test_a_part_is_what_its_spec_is_alone(spec: dict[str, Any], tmp_path: Path) -> None:
    few = {"parts": {"alone": spec["parts"]["alone"]}}
    assert compute_parts(few, tmp_path / "parts")
    assert run_spec(few["parts"]["alone"], tmp_path / "single")
    both = [json.loads((path / "public.json").read_text()) for path in (tmp_path / "parts/alone", tmp_path / "single")]
    assert both[0]["federations"] == both[1]["federations"]
    assert both[0]["spec"] == both[1]["spec"]


def test_what_is_there_is_not_computed_again(spec: dict[str, Any], tmp_path: Path, counted: list[str]) -> None:
    first = {**spec, "parts": {name: spec["parts"][name] for name in ("trained", "alone")}}
    assert compute_parts(first, tmp_path)
    (tmp_path / "trained" / DONE).write_text(json.dumps({"spec": spec["parts"]["trained"], "mark": "as it was"}))
    (tmp_path / "trained" / ".lock").unlink()
    before = contents(tmp_path)
    assert counted == ["trained", "alone"]
    assert compute_parts(first, tmp_path)
    assert counted == ["trained", "alone"]
    assert contents(tmp_path) == before
    assert not (tmp_path / "trained" / ".lock").exists(), "nor is its folder touched"
    assert compute_parts(spec, tmp_path)
    assert counted == ["trained", "alone", "attacked", "replayed"], "the others are added"
    (tmp_path / "alone" / DONE).unlink()
    assert compute_parts(spec, tmp_path)
    assert counted[4:] == ["alone"], "without it a part is not there, whatever else is"


def test_done_is_written_last(spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[list[str]] = []
    genuine = module.write_json

    def watched(path: Path, value: Any) -> None:
        if path.name == DONE:
            there.append(sorted(contents(path.parent)))
        genuine(path, value)

    monkeypatch.setattr(module, "write_json", watched)
    assert compute_parts(spec, tmp_path)
    assert there == [
        ["curves.npz", "result.json"], ["audit.json", "audit.npz"], ["multi_round.json"], ["public.json"],
    ]  # fmt: skip


# --- several processes --------------------------------------------------------------------------------------------


def test_a_part_that_another_process_is_at_is_left_out(
    spec: dict[str, Any], tmp_path: Path, counted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"parts": {name: spec["parts"][name] for name in ("trained", "alone")}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = [str(tmp_path / "spec.json"), str(tmp_path / "out")]
    with locked(tmp_path / "out" / "trained"):
        assert main(command) == 130, "not all of them are there"
        assert counted == ["alone"]
        assert not contents(tmp_path / "out" / "trained")
    assert "1 of 2 parts are there" in capsys.readouterr().out
    assert main(command) == 0
    assert counted == ["alone", "trained"]


def test_a_part_that_was_finished_while_its_lock_was_waited_for_is_not_computed_again(
    spec: dict[str, Any], tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the lock another process may finish it."""
    genuine, content = module.locked, json.dumps({"spec": spec["parts"]["alone"]})

    def late(folder: Path) -> Any:
        folder.mkdir(parents=True)
        (folder / DONE).write_text(content)
        return genuine(folder)

    monkeypatch.setattr(module, "locked", late)
    assert compute_parts({"parts": {"alone": spec["parts"]["alone"]}}, tmp_path)
    assert counted == []
    assert contents(tmp_path) == {f"alone/{DONE}": content.encode()}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": 1}'])
def test_a_last_file_that_says_nothing_is_none(
    content: str, spec: dict[str, Any], tmp_path: Path, counted: list[str]
) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / DONE).write_text(content)
    assert compute_parts({"parts": {"alone": spec["parts"]["alone"]}}, tmp_path)
    assert counted == ["alone"]
    assert done_of(tmp_path / "alone")["spec"] == spec["parts"]["alone"]


def test_what_is_there_of_another_spec_is_refused_before_anything_is_computed(
    spec: dict[str, Any], tmp_path: Path, counted: list[str]
) -> None:
    alone = spec["parts"]["alone"]
    assert compute_parts({"parts": {"alone": alone}}, tmp_path)
    before = contents(tmp_path)
    changed = {**alone, "public": [4]}
    with pytest.raises(ConfigError, match=r"part 'alone' was computed from another SPEC.*[Rr]emove its folder") as told:
        compute_parts({"parts": {"first": alone, "alone": changed}}, tmp_path)
    assert "another OUT" in told.value.remedy
    assert counted == ["alone"], "that of the first time"
    assert contents(tmp_path) == before
    assert not (tmp_path / "first").exists()


def test_a_part_is_locked_while_it_is_computed(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(spec: Any, out: Path) -> bool:
        with pytest.raises(CheckpointError), locked(out):
            raise AssertionError("two processes at one part")
        return True

    monkeypatch.setattr(module, "run_spec", tried)
    assert compute_parts(spec, tmp_path)


def test_a_part_that_fails_stops_no_other(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is an unreadable file taken for another process; the first error decides the exit code."""
    tried, whole = [], module.run_spec

    def damaged(given: Any, out: Path) -> bool:
        if "parts" in given:
            return whole(given, out)
        tried.append(out.name)
        if out.name == "trained":
            raise CheckpointError("The raw file cannot be read.", "Remove it.")
        if out.name == "replayed":
            raise ConfigError("Another cause.", "Another remedy.")
        return True

    monkeypatch.setattr(module, "run_spec", damaged)
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "out")]) == CheckpointError.exit_code
    assert tried == list(spec["parts"])
    there = {path.parent.name for path in (tmp_path / "out").glob(f"*/{DONE}")}
    assert there == {"attacked", "alone"}
    shown = capsys.readouterr()
    assert "2 of 4 parts are there" in shown.out
    first = "part trained: The raw file cannot be read. Remove it."
    assert [line for line in shown.err.splitlines() if "part " in line] == [
        f"error in {first}", "error in part replayed: Another cause. Another remedy.",
        f"failed: {first}", "failed: part replayed: Another cause. Another remedy.",
    ]  # fmt: skip


def test_whoever_stops_it_after_an_error_learns_of_both(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(given: Any, out: Path) -> bool:
        if out.name == "trained":
            raise ConfigError("A cause.", "A remedy.")
        return False

    monkeypatch.setattr(module, "run_spec", stopped)
    assert not compute_parts(spec, tmp_path), "130"
    assert capsys.readouterr().err.count("part trained: A cause. A remedy.") == 2
    assert not (tmp_path / "replayed").exists()


def test_a_link_in_the_place_of_a_part_is_not_written_through(
    spec: dict[str, Any], tmp_path: Path, counted: list[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "alone").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="alone in the folder out is a link"):
        compute_parts({"parts": {"first": spec["parts"]["alone"], "alone": spec["parts"]["alone"]}}, tmp_path / "out")
    assert not counted
    assert not contents(tmp_path / "elsewhere")


# --- ended in the middle ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("trained", "result"), ("trained", "write_bytes"), ("attacked", "packed"), ("replayed", "replayed_all"),
        ("alone", "public_alone"),
    ],
)  # fmt: skip
def test_a_part_that_was_killed_is_computed_the_next_time(
    name: str, inner: str, spec: dict[str, Any], tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    spec = {"parts": {"before": spec["parts"]["alone"], "killed": spec["parts"][name], "after": spec["parts"]["alone"]}}
    assert compute_parts({"parts": {"before": spec["parts"]["before"]}}, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, inner, killed)
        with pytest.raises(KeyboardInterrupt):
            compute_parts(spec, tmp_path)
    assert counted == ["before", "killed"]
    assert not (tmp_path / "killed" / DONE).exists()
    assert not (tmp_path / "after").exists()
    assert compute_parts(spec, tmp_path), "its lock went with it"
    assert counted == ["before", "killed", "killed", "after"]
    assert done_of(tmp_path / "killed")["spec"] == spec["parts"]["killed"]


def test_an_audit_that_was_stopped_is_no_whole_part(
    spec: dict[str, Any], tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes what it found until then, which is worth having, and is not what was asked for."""
    spec = {"parts": {"attacked": spec["parts"]["attacked"], "alone": spec["parts"]["alone"]}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = [str(tmp_path / "spec.json"), str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        interrupt(patch, 1)
        assert main(command) == 130
    stopped = json.loads((tmp_path / "out" / "attacked" / "audit.json").read_text())
    assert stopped["complete"] is False
    assert not (tmp_path / "out" / "attacked" / DONE).exists()
    assert counted == ["attacked"], "whoever stopped it wants the others to wait, too"
    assert main(command) == 0
    assert json.loads((tmp_path / "out" / "attacked" / "audit.json").read_text())["complete"] is True
    assert done_of(tmp_path / "out" / "attacked")["spec"] == spec["parts"]["attacked"]


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "", ".", "..", ".hidden", "a/b", "/etc", "a/", "a\0b", "a\nb"])
def test_a_name_that_is_no_folder_below_is_refused_before_anything_is_computed(
    name: str, spec: dict[str, Any], tmp_path: Path, counted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"parts": {"good": spec["parts"]["alone"], name: spec["parts"]["alone"]}}
    (tmp_path / "spec.json").write_text(json.dumps(content))
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "out")]) == 11
    assert f"A part cannot be called {name!r}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]
    assert not counted


@pytest.mark.parametrize("parts", [None, [1], "all"], ids=str)
def test_parts_that_are_no_table_are_refused(parts: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected 'parts' in the SPEC to be an object"):
        compute_parts({"parts": parts}, tmp_path)


def test_a_part_that_is_no_spec_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected 'one' in the SPEC to be an object"):
        compute_parts({"parts": {"one": [1]}}, tmp_path)
    assert not contents(tmp_path)


# --- seeds that are attacked, values that are kept ----------------------------------------------------------------


def audited(data: str, out: Path, **more: Any) -> dict[str, Any]:
    return compute_audit({**sweep_of(data, 1, 2, 3), "audit": {**AUDIT, **more}}, out)


def test_only_federations_of_some_seeds_are_attacked_and_all_have_an_accuracy(data: str, tmp_path: Path) -> None:
    whole = audited(data, tmp_path / "whole", snapshots=[0, 2])
    result = audited(data, tmp_path / "some", snapshots=[0, 2], seeds=[3, 1])
    assert {row["seed"] for row in whole["attacks"]} == {1, 2, 3}
    assert [row for row in whole["attacks"] if row["seed"] != 2] == result["attacks"], "at their own weights"
    assert result["accuracy"] == whole["accuracy"]
    assert [(row["seed"], row["round"]) for row in result["accuracy"]] == [(s, t) for t in (0, 2) for s in (1, 2, 3)]
    stored = unpacked((tmp_path / "some" / "audit.npz").read_bytes()).outcomes
    assert {one.about["seed"] for one in stored} == {1, 3}
    assert result["spec"]["audit"]["seeds"] == [3, 1]


def test_only_the_values_that_are_to_be_kept_are_written(data: str, tmp_path: Path) -> None:
    effort = {"attacks": ["matched", "membership"], "seeds": [2]}
    whole = audited(data, tmp_path / "whole", **effort)
    result = audited(data, tmp_path / "few", **effort, keep=["log_rank", "members", "others"])
    assert result["attacks"] == whole["attacks"], "the rows are of all values"
    every, few = (unpacked((tmp_path / name / "audit.npz").read_bytes()).outcomes for name in ("whole", "few"))
    assert {one.attack: set(one.values) for one in few} == {
        "matched": {"log_rank"}, "membership": {"members", "others"},
    }  # fmt: skip
    for one, other in zip(every, few, strict=True):
        assert set(other.values) <= set(one.values)
        assert set(other.negative) == set(one.negative) & {"log_rank", "members", "others"}
        assert other.pictures is None
    assert result["spec"]["audit"]["keep"] == ["log_rank", "members", "others"]


@pytest.mark.parametrize("seeds", [[4], [1, 4], [], 1, "1", [[1]]], ids=str)
def test_seeds_that_no_federation_has_are_refused(data: str, seeds: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Expected seeds=.* to be a list of seeds that federations have"):
        audited(data, tmp_path / "out", seeds=seeds)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", ["members", [1], {"members": 1}], ids=str)
def test_what_is_no_list_of_names_is_refused_before_anything_is_trained(data: str, keep: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Expected keep=.* to be a list of names"):
        audited(data, tmp_path / "out", keep=keep)
    assert not (tmp_path / "out").exists()
