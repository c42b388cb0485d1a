"""A job gives the same records however often it is killed, and writes nothing that should stay inside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise
from equipoise.engine.federation import Federation
from equipoise.engine.full_record import squared_gradients
from equipoise.engine.sweep import Sweep
from equipoise.errors import CheckpointError, ConfigError
from equipoise.reproduction import job as work
from equipoise.reproduction import measures
from equipoise.reproduction.plan import SCHEMA, VERSION, Needs, Scale, jobs, settings_of
from equipoise.reproduction.records import read
from tests.helpers import contents, single_threaded
from tests.reproduction.conftest import Small, small_data

TINY = Scale(
    name="tiny", seeds=(1, 2), rounds=7, evaluate_every=3, curve_every=2, gradient_every=3, full_every=3,
    iterations=2, attacked=2, pictured=2, inner_steps=(1,), inner_rates=(0.01,), baselines=False,
)  # fmt: skip
GROUP = "M=1"  # learning costs little
EVERYTHING = {"accuracy", "clients", "utility", "gradients", "inversion", "pictures", "tensors"}
WANTED: Needs = {
    GROUP: {  # mechanisms and datasets mixed: the engine reorders them
        Federation("mnist", "ls-learn", 200, 1): EVERYTHING,
        Federation("fmnist", "none", None, 1): {"accuracy", "inversion", "pictures"},
        Federation("mnist", "ls-static", 200, 1): {"utility", "clients"},
        Federation("fmnist", "ls-learn", 200, 2): {"accuracy", "utility", "gradients", "tensors"},
    }
}
TRAINING, ATTACK = "training", "attacking"
Job = dict[str, Any]

pytestmark = pytest.mark.usefixtures("_small")


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@pytest.fixture(scope="module")
def job() -> Job:
    (result,) = jobs(WANTED, TINY, "cpu", "abc1234")
    return result


@pytest.fixture(scope="module")
def whole(job: Job, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw file of a job that nothing interrupted."""
    with small_data(small):
        return work.run(job, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def raw(whole: Path) -> Job:
    result: Job = json.loads(whole.read_text())
    return result


@pytest.fixture(scope="module")
def halfway(job: Job, small: Small, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of a job that was killed in round 5."""
    folder = tmp_path_factory.mktemp("halfway")
    with small_data(small), pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "CHECKPOINT_SECONDS", 0.0)
        killed(job, folder, TRAINING, 5)
    (path,) = folder.iterdir()
    assert path.name == f".{job['name']}.npz"
    return path.read_bytes()


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint whenever one is possible."""
    monkeypatch.setattr(work, "CHECKPOINT_SECONDS", 0.0)


def killer(what: str, round_number: int) -> work.Report:
    def report(doing: str, done: int, total: int) -> None:
        if what in doing and done >= round_number:
            raise Killed

    return report


def killed(job: Job, folder: Path, what: str, round_number: int) -> None:
    with pytest.raises(Killed):
        work.run(job, folder, killer(what, round_number))


def told_rounds(job: Job, folder: Path) -> list[int]:
    """Run to the end; the rounds that were trained."""
    rounds: list[int] = []

    def report(doing: str, done: int, total: int) -> None:
        if TRAINING in doing:
            assert total == TINY.rounds
            rounds.append(done)

    work.run(job, folder, report)
    return rounds


def but_time(path: Path) -> Job:
    result = json.loads(path.read_text())
    assert result.pop("seconds") >= 0
    return result


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_job_writes_one_file_and_no_checkpoint_stays(whole: Path, job: Job, raw: Job) -> None:
    assert [path.name for path in whole.parent.iterdir()] == [f"{job['name']}.json"]
    assert (raw["schema"], raw["version"], raw["experiment"]) == (SCHEMA, VERSION, "seeded")
    for key in ("name", "group", "commit", "scale", "settings", "measures"):
        assert raw[key] == job[key]
    assert raw["environment"]["equipoise"] == VERSION
    keys = ("dataset", "mechanism", "budget", "seed")
    assert [{key: row[key] for key in keys} for row in raw["federations"]] == job["federations"]


def test_every_federation_has_what_was_asked_of_it_and_no_more(raw: Job) -> None:
    for row, names in zip(raw["federations"], WANTED[GROUP].values(), strict=True):
        assert EVERYTHING & set(row) == {"accuracy", *names}


def test_the_file_is_one_that_raw_reads(whole: Path) -> None:
    result = read([whole.parent], TINY)
    assert result.measured == {GROUP: {fed: {*names, "accuracy"} for fed, names in WANTED[GROUP].items()}}


def test_the_numbers_are_the_engines(raw: Job, small: Small) -> None:
    """Federations that are reordered for the batch come back under their own names."""
    for federation, row in zip(WANTED[GROUP], raw["federations"], strict=True):
        sweep = Sweep(settings_of(TINY, GROUP, "cpu"), [federation], small)
        history = [event.rows[0] for event in sweep.run() if event.rows]
        assert row["accuracy"] == pytest.approx(history[-1]["accuracy"], rel=1e-5)
        assert row["client_accuracy"] == pytest.approx(history[-1]["client_accuracy"], rel=1e-5)
        assert row["curve"]["rounds"] == [line["round"] for line in history] == [3, 6, 7]
        assert row["curve"]["accuracy"] == pytest.approx([line["accuracy"] for line in history], rel=1e-5)
        squared = [line["distortion_norm_squared"] for line in history]
        assert row["curve"]["distortion_norm_squared"] == pytest.approx(squared, rel=1e-4)
        if "utility" in row:
            losses = [line["utility_loss_last"] for line in history]
            ends = [row["utility"]["values"][round_number - 1] for round_number in (3, 6, 7)]
            assert ends == pytest.approx([sum(one) / 4 for one in losses], rel=1e-3, abs=1e-6)


def test_every_measurement_is_made_on_the_federation_that_it_stands_under(raw: Job, small: Small) -> None:
    """By training each federation alone, to the end, and measuring there."""
    for federation, row in zip(WANTED[GROUP], raw["federations"], strict=True):
        sweep = Sweep(settings_of(TINY, GROUP, "cpu"), [federation], small)
        sweep.train(TINY.rounds)
        if "clients" in row:
            (curves,) = measures.client_curves(sweep)
            assert row["clients"]["values"][-1]["training_loss"] == pytest.approx(curves["training_loss"], rel=1e-4)
            assert row["clients"]["values"][-1]["accuracy"] == pytest.approx(curves["accuracy"], rel=1e-5)
        if "gradients" in row:
            assert row["gradients"]["values"][-1] == pytest.approx(squared_gradients(sweep)[0], rel=1e-3)
        if "utility" in row:
            assert row["utility"]["full"][-1] == pytest.approx(measures.full_utility(sweep)[0], rel=1e-3, abs=1e-5)
        if "tensors" in row:
            (sizes,) = measures.tensor_sizes(sweep)
            for name, result in row["tensors"]["values"][-1].items():
                assert np.array(result["size"]) == pytest.approx(np.array(sizes[name]["size"]), rel=1e-3)
        if federation.mechanism == "none":
            (one,), _ = measures.inversions(sweep, TINY, lambda what, done, total: None)
            assert np.array(row["inversion"]["mse"]) == pytest.approx(np.array(one["mse"]), rel=1e-2)


def test_series_are_measured_where_the_scale_says(raw: Job) -> None:
    row = raw["federations"][0]
    assert row["clients"]["rounds"] == [0, 2, 4, 6, 7]
    assert row["gradients"]["rounds"] == [0, 1, 2, 3, 5, 6, 7]
    assert row["tensors"]["rounds"] == [0, 7], "before the first round and after the last, of 0, 200, 1000, last"
    assert row["utility"]["full_rounds"] == [1, 2, 3, 4, 6, 7, 8], "the coming round's, at rounds 0, 1, 2, 3, 5, 6, 7"
    assert len(row["utility"]["values"]) == TINY.rounds
    assert [len(row[name]["values"]) for name in ("clients", "gradients", "tensors")] == [5, 7, 2]
    assert [len(clients) for clients in row["utility"]["full"]] == [4] * 7
    assert [len(point["accuracy"]) for point in row["clients"]["values"]] == [4] * 5


def test_as_many_releases_are_attacked_as_the_scale_says(raw: Job) -> None:
    row = raw["federations"][0]
    assert [len(batch) for batch in row["inversion"]["mse"]] == [4] * TINY.attacked
    assert [len(batch) for batch in row["inversion"]["ssim"]] == [4] * TINY.attacked
    assert len(row["inversion"]["leakage"]) == TINY.attacked
    assert [len(batch) for batch in row["pictures"]["mse"]] == [4] * TINY.pictured
    assert set(raw["baselines"]) == set(raw["originals"]) == {"mnist", "fmnist"}


# --- what is not written ---------------------------------------------------------------------------------------------


def numbers(value: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every list of numbers (nested ones as a whole), with the keys that lead to it and its size."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, (*where, key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for item in value:
            yield from numbers(item, where)
    elif isinstance(value, list):
        yield where, len(_flat(value))


def _flat(value: Any) -> list[Any]:
    return [part for item in value for part in _flat(item)] if isinstance(value, list) else [value]


def test_nothing_that_is_written_is_as_large_as_a_model_or_an_image_but_pictures(raw: Job) -> None:
    """13,426 weights; 784 pixels an image."""
    result = list(numbers(raw))
    pictures = {where for where, size in result if size >= 784}
    assert pictures == {("federations", "pictures", "pixels"), ("originals", "mnist", "pixels"),
                        ("originals", "fmnist", "pixels")}  # fmt: skip
    assert {size for where, size in result if where in pictures} == {4 * 784}, "one batch each"
    assert {where[-1] for where, _ in result} <= {
        "seeds", "inner_steps", "inner_rates", "snapshots", "measures", "client_accuracy", "final_intensity", "rounds",
        "accuracy", "distortion_norm_squared", "training_loss", "values", "full_rounds", "full", "size", "mean",
        "deviation", "mse", "ssim", "leakage", "pixels", "sigmas",
    }  # fmt: skip


def test_pictures_are_of_public_images_alone(raw: Job, small: Small) -> None:
    for name, data in small.items():
        public, private = (data.pixels(part.inputs).mul(255).round().int() for part in (data.public, data.train))
        for image in torch.tensor(raw["originals"][name]["pixels"], dtype=torch.int32):
            assert bool((public == image).flatten(1).all(1).any())
            assert not bool((private == image).flatten(1).all(1).any())


def test_pixels_are_bytes(raw: Job) -> None:
    for pixels in [row["pictures"]["pixels"] for row in raw["federations"] if "pictures" in row]:
        assert np.array(pixels).shape == (4, 1, 28, 28)
        assert {type(value) for value in _flat(pixels)} == {int}
        assert 0 <= np.min(pixels) <= np.max(pixels) <= 255


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1 / 3, 0.333333), (1234567.0, 1234570.0), (float("nan"), None), (float("inf"), None), (5, 5), (True, True),
        (1e-9, 1e-9), ({"a": [1 / 3, (2 / 3,)]}, {"a": [0.333333, [0.666667]]}), (None, None), ("x", "x"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_to_six_digits(value: Any, written: Any) -> None:
    assert work.rounded(value) == written
    assert type(work.rounded(value)) is type(written)


# --- killed ----------------------------------------------------------------------------------------------------------


def test_two_runs_give_the_same_records(whole: Path, job: Job, tmp_path: Path) -> None:
    assert told_rounds(job, tmp_path) == list(range(1, 8))
    assert but_time(work.raw_path(job, tmp_path)) == but_time(whole)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize(
    ("what", "round_number", "again"),
    [
        (TRAINING, 2, [2, 3, 4, 5, 6, 7]),
        (TRAINING, 5, [5, 6, 7]),
        (TRAINING, 7, [7]),
        (ATTACK, 1, []),
    ],
)
def test_killed_at_any_time_it_goes_on_to_the_same_records(
    whole: Path, job: Job, tmp_path: Path, what: str, round_number: int, again: list[int]
) -> None:
    killed(job, tmp_path, what, round_number)
    assert not work.raw_path(job, tmp_path).exists()
    assert told_rounds(job, tmp_path) == again
    assert but_time(work.raw_path(job, tmp_path)) == but_time(whole)
    assert [path.name for path in tmp_path.iterdir()] == [whole.name]


def test_what_was_trained_is_kept_before_the_attack_begins(job: Job, tmp_path: Path) -> None:
    """The attack takes long; whatever the clock says, no round is trained twice because of it."""
    killed(job, tmp_path, ATTACK, 1)
    told: list[str] = []

    def report(doing: str, done: int, total: int) -> None:
        told.append(doing)
        raise Killed

    with pytest.raises(Killed):
        work.run(job, tmp_path, report)
    assert ATTACK in told[0]


@pytest.mark.usefixtures("_always")
def test_killed_again_and_again(whole: Path, job: Job, tmp_path: Path) -> None:
    for what, round_number in ((TRAINING, 3), (TRAINING, 3), (TRAINING, 6), (ATTACK, 1), ("on fmnist", 1)):
        killed(job, tmp_path, what, round_number)
    assert told_rounds(job, tmp_path) == []
    assert but_time(work.raw_path(job, tmp_path)) == but_time(whole)
    for row in json.loads(work.raw_path(job, tmp_path).read_text())["federations"]:
        if "utility" in row:
            assert len(row["utility"]["values"]) == TINY.rounds
            assert row["utility"]["full_rounds"] == [1, 2, 3, 4, 6, 7, 8]


@pytest.mark.usefixtures("_always")
def test_rounds_between_measurements_are_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job that stops nowhere but every LENGTH rounds: its step-wise series is complete, each round once."""
    monkeypatch.setattr(work, "LENGTH", 2)
    monkeypatch.setattr(work, "EARLY", ())
    scale = replace(TINY, evaluate_every=7, full_every=7)
    wanted: Needs = {"paper": {Federation("mnist", "ls-static", 200, 1): {"utility"}}}
    (small,) = jobs(wanted, scale, "cpu")
    expected = but_time(work.run(small, tmp_path / "whole"))
    killed(small, tmp_path / "killed", TRAINING, 4)
    killed(small, tmp_path / "killed", TRAINING, 5)
    rounds: list[int] = []
    actual = but_time(work.run(small, tmp_path / "killed", lambda what, done, total: rounds.append(done)))
    assert rounds == [5, 6, 7]
    assert actual == expected
    assert len(actual["federations"][0]["utility"]["values"]) == 7


def test_checkpoints_are_made_by_the_clock(tmp_path: Path) -> None:
    (quick,) = jobs({GROUP: {Federation("mnist", "none", None, 1): {"accuracy"}}}, TINY, "cpu")
    killed(quick, tmp_path, TRAINING, 7)
    assert list(tmp_path.iterdir()) == [], "twenty seconds have not passed"


@pytest.mark.usefixtures("_always")
def test_the_time_before_the_kill_counts(tmp_path: Path) -> None:
    (quick,) = jobs({GROUP: {Federation("mnist", "none", None, 1): {"accuracy"}}}, TINY, "cpu")
    killed(quick, tmp_path, TRAINING, 7)
    path = tmp_path / f".{quick['name']}.npz"
    notes, arrays = opened(path)
    assert notes["seconds"] > 0
    np.savez(path, notes=np.array(json.dumps({**notes, "seconds": 1000.0})), **arrays)
    assert json.loads(work.run(quick, tmp_path).read_text())["seconds"] >= 1000


def test_a_job_goes_on_where_other_threads_and_chunks_are_set(
    whole: Path, job: Job, halfway: bytes, tmp_path: Path
) -> None:
    (tmp_path / f".{job['name']}.npz").write_bytes(halfway)
    other = {**job, "settings": {**job["settings"], "chunk": 4}, "commit": "other"}
    assert told_rounds(other, tmp_path) == [5, 6, 7]
    actual, expected = (json.loads(path.read_text()) for path in (work.raw_path(job, tmp_path), whole))
    assert actual["federations"] == expected["federations"]


# --- the checkpoint --------------------------------------------------------------------------------------------------


def opened(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Notes and arrays; nothing in it needs pickle."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    notes = json.loads(str(arrays.pop("notes")))
    return notes, arrays


def test_the_checkpoint_is_plain_arrays(job: Job, halfway: bytes, tmp_path: Path) -> None:
    (tmp_path / "state.npz").write_bytes(halfway)
    notes, arrays = opened(tmp_path / "state.npz")
    assert notes["round"] == 4
    assert arrays["params"].shape == (4, 13426)
    assert all(array.dtype.kind in "fi" for array in arrays.values())


def test_a_checkpoint_with_pickled_objects_is_refused(job: Job, tmp_path: Path) -> None:
    class Mine:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    np.savez(tmp_path / f".{job['name']}.npz", notes=np.array(Mine(), dtype=object), allow_pickle=True)
    with pytest.raises(CheckpointError, match="cannot be read"):
        work.run(job, tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_checkpoint_of_another_job_is_refused(job: Job, halfway: bytes, tmp_path: Path) -> None:
    (other,) = jobs(WANTED, replace(TINY, iterations=3), "cpu")
    assert other["name"] != job["name"]
    (tmp_path / f".{other['name']}.npz").write_bytes(halfway)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="belongs to another job"):
        work.run(other, tmp_path)
    assert contents(tmp_path) == before


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda content: b"not an archive",
    "half of it": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "flipped": lambda content: content[:2000] + bytes([content[2000] ^ 255]) + content[2001:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(job: Job, halfway: bytes, tmp_path: Path, damage: str) -> None:
    (tmp_path / f".{job['name']}.npz").write_bytes(DAMAGES[damage](halfway))
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        work.run(job, tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("lacks", ["params", "notes", "round", "series"])
def test_a_checkpoint_that_lacks_something_is_refused(job: Job, halfway: bytes, tmp_path: Path, lacks: str) -> None:
    path = tmp_path / f".{job['name']}.npz"
    path.write_bytes(halfway)
    notes, arrays = opened(path)
    notes.pop(lacks, None)
    arrays = {"notes": np.array(json.dumps(notes)), **arrays}
    arrays.pop(lacks, None)
    np.savez(path, **arrays)
    with pytest.raises(CheckpointError):
        work.run(job, tmp_path)


# --- existing results ------------------------------------------------------------------------------------------------


def test_a_job_whose_file_exists_is_not_computed_again(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = work.raw_path(job, tmp_path)
    path.write_text("as it was")

    def refuse(*arguments: Any) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr(work, "JobRun", refuse)
    assert work.run(job, tmp_path) == path
    assert contents(tmp_path) == {path.name: b"as it was"}


@pytest.mark.parametrize("key", ["name", "group", "scale", "settings", "federations", "measures", "version", "commit"])
def test_a_job_that_lacks_something_is_an_error(job: Job, tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"lacks '{key}'"):
        work.run({name: value for name, value in job.items() if name != key}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", ".hidden", "", 7, "a/b"])
def test_the_name_of_a_job_leads_nowhere_else(job: Job, tmp_path: Path, name: Any) -> None:
    with pytest.raises(ConfigError, match="name of a job"):
        work.run({**job, "name": name}, tmp_path / "OUT")
    assert list(tmp_path.iterdir()) == []


def test_a_job_with_measures_for_other_federations_is_an_error(job: Job, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="list of measures for each"):
        work.run({**job, "measures": job["measures"][1:]}, tmp_path)


def test_a_job_with_an_unknown_scale_is_an_error(job: Job, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scale is not readable"):
        work.run({**job, "scale": {**job["scale"], "speed": 9}}, tmp_path)


# --- with torch and numpy alone --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_needs_torch_and_numpy_alone() -> None:
    blocked = (
        "pydantic",
        "rich",
        "typer",
        "click",
        "safetensors",
        "scipy",
        "plotly",
        "skimage",
        "jinja2",
        "matplotlib",
    )
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
        "import equipoise.compute, equipoise.reproduction.plan, equipoise.reproduction.job"
    )
    environment = {**single_threaded(), "PYTHONPATH": str(Path(equipoise.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
