"""Raw files are read only when they are of this version and scale; what two of them say about one federation merges."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.engine.federation import Federation
from equipoise.engine.settings import from_dict
from equipoise.errors import CheckpointError
from equipoise.reproduction.artefacts.registry import ARTEFACTS, needs
from equipoise.reproduction.plan import FULL, Scale, digest, settings_of, without
from equipoise.reproduction.records import Records, read
from tests.helpers import contents
from tests.reproduction.synthetic import SCALE, content

Content = dict[str, Any]


def store(folder: Path, *files: Content) -> Path:
    folder.mkdir(exist_ok=True)
    for file in files:
        (folder / f"{file['name']}.json").write_text(json.dumps(file))
    return folder


def one(name: str, *rows: tuple[Federation, list[str], Content], group: str = "paper", **more: Any) -> Content:
    """A raw file with the given federations."""
    return {
        **content(name, scale=replace(SCALE, seeds=(1,))), "scale": content(name)["scale"], "group": group,
        "measures": [measures for _, measures, _ in rows],
        "federations": [
            {"dataset": f.dataset, "mechanism": f.mechanism, "budget": f.budget, "seed": f.seed, **record}
            for f, _, record in rows
        ],
        **more,
    }  # fmt: skip


CELL, OTHER = Federation("mnist", "ls-learn", 200, 1), Federation("mnist", "ls-learn", 200, 2)


def test_records_come_by_cell_in_the_order_of_seeds(tmp_path: Path) -> None:
    rows = [(replace(CELL, seed=seed), ["accuracy"], {"accuracy": seed / 10}) for seed in (3, 1, 2)]
    result = read([store(tmp_path, one("a", *rows))], SCALE)
    assert result.accuracies("mnist", "ls-learn", 200) == pytest.approx([10, 20, 30])
    assert result.accuracies("mnist", "ls-learn", 200, "damped") == []
    assert result.accuracies("fmnist", "ls-learn", 200) == []
    assert [row["seed"] for row in result.by_seed("mnist", "ls-learn", 200)] == [1, 2, 3]


def test_everything_that_was_measured_is_known_and_nothing_else(tmp_path: Path) -> None:
    raw = read([store(tmp_path, content("a"), content("b", group="damped"))], SCALE)
    left = without(needs(ARTEFACTS, SCALE), raw.measured)
    assert set(left) == {"eleven-steps", "M=1", "M=3", "gamma=0.01", "gamma=1"}
    assert raw.baselines["mnist"]["black"]["mse"] == 1.2
    assert {origin["name"]: origin["federations"] for origin in raw.origins} == {
        "a": len(content("a")["federations"]), "b": len(content("b", group="damped")["federations"])
    }  # fmt: skip
    for origin in raw.origins:
        assert {"name", "group", "commit", "version", "seconds", "environment", "federations"} == set(origin)


def test_every_trained_federation_has_an_accuracy(tmp_path: Path) -> None:
    result = read([store(tmp_path, one("a", (CELL, ["tensors"], {"accuracy": 0.5})))], SCALE)
    assert result.measured == {"paper": {CELL: {"tensors", "accuracy"}}}


@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")], ids=["larger first by name", "larger last by name"])
def test_of_two_jobs_with_one_federation_the_larger_counts_and_measurements_merge(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    large, small = names
    result = read(
        [
            store(
                tmp_path,
                one(
                    large,
                    (CELL, ["accuracy", "inversion"], {"accuracy": 0.7, "inversion": "large"}),
                    (OTHER, ["accuracy"], {"accuracy": 0.8}),
                ),
                one(small, (CELL, ["tensors"], {"accuracy": 0.1, "tensors": "small"})),
            )
        ],
        SCALE,
    )
    first, second = result.by_seed("mnist", "ls-learn", 200)
    assert (first["accuracy"], first["inversion"], first["tensors"]) == (0.7, "large", "small")
    assert second["accuracy"] == 0.8
    assert result.measured["paper"][CELL] == {"accuracy", "inversion", "tensors"}


def test_inversions_are_means_over_clients_and_images_by_seed(tmp_path: Path) -> None:
    rows = [
        (
            OTHER,
            ["inversion"],
            {"accuracy": 0.5, "inversion": {"mse": [[5.0, 5.0], [5.0, 5.0]], "leakage": [0.5, 0.7]}},
        ),
        (CELL, ["inversion"], {"accuracy": 0.5, "inversion": {"mse": [[1.0, 2.0], [3.0, 4.0]], "leakage": [0.1, 0.3]}}),
    ]
    result = read([store(tmp_path, one("a", *rows))], SCALE)
    assert result.inversion("mnist", "ls-learn", 200, "mse") == [2.5, 5.0]
    assert result.inversion("mnist", "ls-learn", 200, "leakage") == pytest.approx([0.2, 0.6])
    assert result.inversion("fmnist", "ls-learn", 200, "mse") == []


def test_several_folders_are_one(tmp_path: Path) -> None:
    folders = [
        store(tmp_path / "a", one("a", (CELL, [], {"accuracy": 0.1}))),
        store(tmp_path / "b", one("b", (OTHER, [], {"accuracy": 0.2}))),
    ]
    assert read(folders, SCALE).accuracies("mnist", "ls-learn", 200) == pytest.approx([10, 20])


def test_a_scale_other_than_full_is_quick() -> None:
    assert not Records("full").quick
    assert Records("quick").quick


# --- what is refused -------------------------------------------------------------------------------------------------


def changed(**change: Any) -> Callable[[Content], Content]:
    return lambda file: {**file, **change}


def scaled(**change: Any) -> Callable[[Content], Content]:
    return lambda file: {**file, "scale": {**file["scale"], **change}}


def first(**change: Any) -> Callable[[Content], Content]:
    return lambda file: {**file, "federations": [{**file["federations"][0], **change}, *file["federations"][1:]]}


def lacking(key: str) -> Callable[[Content], Content]:
    return lambda file: {k: v for k, v in file.items() if k != key}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(version="9.9.9"), "version 9.9.9"),
        (changed(schema=2), "schema 2"),
        (scaled(name="quick"), "scale 'quick'"),
        (scaled(rounds=4999), "other settings than 'full'"),
        (scaled(seeds=[1, 2]), "other settings than 'full'"),
        (scaled(iterations=1), "other settings than 'full'"),
        (changed(scale=[]), "other settings than 'full'"),
        (changed(measures=[]), "damaged: federations and measures"),
        (changed(federations={}), "damaged: federations and measures"),
        (first(accuracy=None), "damaged: federation 0 has no accuracy"),
        (changed(federations=[7] * 162), "damaged: federation 0 is not a record"),
        *((lacking(key), "not a raw result") for key in ("schema", "version", "scale")),
        *((lacking(key), f"damaged: it lacks '{key}'") for key in ("federations", "measures", "commit")),
        *(
            (lacking(key), f"damaged: it lacks '{key}'")
            for key in ("name", "group", "seconds", "environment", "settings")
        ),
        (changed(group="nobody"), "damaged: there is no group 'nobody'"),
        (changed(settings={"eta": 99}), "damaged: it was made with another"),
        (lambda raw: {**raw, "settings": {**raw["settings"], "eta": 99}}, "damaged: it was made with another eta"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_left_alone(
    tmp_path: Path, change: Callable[[Content], Content], said: str
) -> None:
    (tmp_path / "one.json").write_text(json.dumps(change(content("one"))))
    store(tmp_path, content("whole"))
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=said) as caught:
        read([tmp_path], SCALE)
    assert "one.json" in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"schema": 1}', "\x00"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"one.json is not a raw result"):
        read([tmp_path], SCALE)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"There is no folder .*nowhere with raw results"):
        read([tmp_path / "nowhere"], SCALE)


# --- the committed records -------------------------------------------------------------------------------------------


def test_the_committed_records_are_all_that_every_artefact_needs(committed_records: Records) -> None:
    assert without(needs(ARTEFACTS, FULL), committed_records.measured) == {}


@pytest.fixture(scope="module")
def committed_files(committed: Path) -> list[Content]:
    return [json.loads(path.read_text()) for path in sorted((committed / "raw").glob("*.json"))]


def test_the_committed_records_are_of_the_jobs_that_they_name(committed: Path, committed_files: list[Content]) -> None:
    """Settings, measurements or federations that were edited by hand have another digest."""
    for path, file in zip(sorted((committed / "raw").glob("*.json")), committed_files, strict=True):
        keys = ("dataset", "mechanism", "budget", "seed")
        job = {**file, "federations": [{key: row[key] for key in keys} for row in file["federations"]]}
        assert digest(job) == file["digest"]
        assert path.stem == file["name"] == f"{file['group'].replace('=', '-')}-{file['digest'][:8]}"
        assert file["commit"]
        assert not file["commit"].endswith("-dirty")


def test_the_committed_records_were_made_with_the_settings_of_their_group(committed_files: list[Content]) -> None:
    for file in committed_files:
        settings, _ = from_dict({"settings": file["settings"], "federations": [{"mechanism": "none"}]})
        assert settings == settings_of(FULL, file["group"], settings.run.device)


def test_every_committed_federation_was_trained_to_the_end(committed_records: Records) -> None:
    rows = [row for cell in committed_records.cells.values() for row in cell.values()]
    assert len(rows) > 1000
    for row in rows:
        assert row["rounds"] == 5000
        assert row["releases_accepted"] + row["releases_refused"] == 4 * 5000
        assert 0 <= row["accuracy"] <= 1


def test_at_least_sixteen_batches_were_attacked_in_every_cell(committed_records: Records) -> None:
    for dataset, mechanism, budget in {(f.dataset, f.mechanism, f.budget) for f in needs(["cap"], FULL)["paper"]}:
        rows = committed_records.by_seed(dataset, mechanism, budget)
        assert sum(len(row["inversion"]["mse"]) for row in rows) >= 16
        assert all(len(batch) == 4 for row in rows for batch in row["inversion"]["mse"])


def test_the_scale_of_the_committed_records_is_the_one_of_today(committed_files: list[Content]) -> None:
    for file in committed_files:
        made = {key: tuple(v) if isinstance(v, list) else v for key, v in file["scale"].items()}
        assert Scale(**made) == FULL


def test_the_guesses_of_the_larger_job_count(tmp_path: Path) -> None:
    small = content("small")
    small |= {"federations": small["federations"][:1], "measures": small["measures"][:1], "baselines": {"mnist": {}}}
    store(tmp_path, small)
    store(tmp_path, content("large"))
    assert read([tmp_path], SCALE).baselines == content("large")["baselines"]
