"""``equipoise data check``: a few lines for people, one document for machines; and training from the same files."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from equipoise.data import loading
from tests.data.folders import write_pictures
from tests.data.test_csv_files import ROWS, write
from tests.helpers import Command, document

SAID = ("--set", "target=state", "--set", "group=person", "--set", "public_fraction=0.2")


def test_a_table_in_a_few_lines(command: Command, tmp_path: Path) -> None:
    rows = [f"{30 + n % 7},{'ab'[n % 2]},{n // 2},{('well', 'ill')[n // 2 % 2]}" for n in range(120)]
    done = command("data", "check", write(tmp_path / "people.csv", rows), *SAID, "--set", "clients=2")
    assert (done.code, done.err) == (0, "")
    first, classes, clients, normalisation, guessed, measured = done.out.splitlines()
    assert first.startswith("people.csv: 3 numbers a row; ")
    assert "no public rows" not in first
    assert classes.startswith("classes, of train: ill (")
    assert clients.startswith("clients, dealt by identical: 2 with ")
    assert "groups: " in clients
    assert "none" not in clients
    assert normalisation.startswith("normalisation: mean 3")
    assert "test part: the last 0.167 of each class (say test_fraction=)" in guessed
    assert "target" not in guessed, "that was said"
    assert "those of the public part (say mean=, std=)" in guessed
    assert measured == "measured on private rows: categories of column 'town' (store them as numbers)"


def test_the_same_as_json(command: Command, tmp_path: Path) -> None:
    found = document(command("data", "check", write(tmp_path / "people.csv"), "--set", "target=state", "--json"))
    assert found["kind"] == "table"
    assert [one["name"] for one in found["classes"]] == ["ill", "well"]
    assert sum(found["clients"]["rows"]) == found["rows"]["train"]


def test_a_table_without_groups_is_told_of_them(command: Command, tmp_path: Path) -> None:
    out = command("data", "check", write(tmp_path / "people.csv"), "--set", "target=state").out
    assert "groups: none (say group= where a person has several rows)\n" in out


def test_pictures_and_tokens_have_their_own_words(command: Command, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets", {"": {"cat": 24, "dog": 24}})
    out = command("data", "check", "pets").out
    assert "pets: pictures of 3 x 6 x 5 (channels, height, width); 34 train" in out
    assert "no public rows, so no audit (say public_fraction=0.1)" in out
    assert "groups: none\n" in out, "no hint to a setting that pictures do not take"
    out = command("data", "check", "generated-text", "--set", "clients=12").out
    assert "sequences of 24 tokens, 400 token numbers with padding" in out
    assert "normalisation: none, as these are tokens" in out
    assert out.endswith("guessed: nothing\n")
    assert "and 4 more rows" in out


def test_names_do_not_steer_a_terminal(command: Command, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets", {"": {"cat": 24, "dog\x1b[2J": 24}})
    assert "dog?[2J (17)" in command("data", "check", "pets").out
    write(tmp_path / "a.csv", [f"{n % 7},{('x', 'y')[n % 2]}" for n in range(60)], "age,st\x1b]0;ate\x07")
    outputs = [command("data", "check", "a.csv").out]
    assert "target: column 'st" in outputs[0]
    outputs.append(
        command("train", "--dataset", "a.csv", "--mechanism", "none", "--rounds", "1", "--set", "model=mlp").out
    )
    assert "guessed target: column 'st" in outputs[1]
    assert not any(mark in out for out in outputs for mark in "\x1b\x07")


def test_a_test_part_with_fewer_rows_than_clients_has_no_accuracy_of_each(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "people.csv")
    assert command("data", "check", path, "--set", "clients=8").code == 0
    trained = ("train", "--dataset", path, "--mechanism", "none", "--rounds", "1", "--set", "batch=1")
    said = "6 rows to test on are fewer than the clients, so no client has an accuracy of its own"
    assert said in " ".join(command(*trained, "--set", "clients=8").out.split())
    assert said not in " ".join(command(*trained, "--set", "clients=3").out.split())


@pytest.mark.parametrize("arguments", [("absent",), ("people.csv", "--set", "target=stat")])
def test_what_cannot_be_read_is_an_error_with_its_code(command: Command, tmp_path: Path, arguments: tuple[str]) -> None:
    write(tmp_path / "people.csv")
    done = command("data", "check", *arguments)
    assert done.code == 12
    assert "Did you mean 'state'" in done.err or "neither a bundled dataset" in done.err


def test_a_table_trains_and_says_what_was_guessed(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "people.csv", [row.replace(f",{n // 2},", f",{n},") for n, row in enumerate(ROWS)])
    arguments = ("--mechanism", "none", "--rounds", "2", "--set", "model=mlp", "--set", "group=person", "--out", "run")
    done = command("train", "--dataset", "people.csv", *arguments)
    assert done.code == 0, done.err
    assert "people.csv: guessed target: column 'state', the last (say target=)" in done.out
    assert "people.csv has no public rows" in done.out
    assert 'group = "person"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize("model", ["mlp", None])
def test_training_and_looking_read_the_data_once(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str | None
) -> None:
    write(tmp_path / "people.csv")
    read: list[Path] = []
    of_files = loading.contents_of
    monkeypatch.setattr(loading, "contents_of", lambda path, *more: read.append(path) or of_files(path, *more))
    said = ("--set", f"model={model}") if model else ()
    arguments = ("--mechanism", "none", "--rounds", "2", *said, "--out", "run")
    assert command("train", "--dataset", "people.csv", *arguments).code == 0
    assert len(read) == 1
    gc.collect()
    assert not loading._folders_in_use, "private rows live no longer than a command"
    assert command("data", "check", "people.csv").code == 0
    assert len(read) == 2


def test_a_guarantee_says_what_it_does_not_cover(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "people.csv", [f"{30 + n % 7},{n % 5},{n // 3 % 2}" for n in range(90)], "age,level,state")
    common = ("--mechanism", "gaussian-dp", "--budget", "2", "--rounds", "2", "--set", "model=mlp", "--out")
    done = command("train", "--dataset", "people.csv", *common, "run")
    assert done.code == 0, done.err
    line = "people.csv: measured on private rows: mean and std of the columns (say mean=, std="
    assert done.out.count(f"not covered by the guarantee: {line}") == 1
    assert line in (tmp_path / "run" / "guarantee.json").read_text()
    done = command("train", "--dataset", "people.csv", *common, "other", "--set", "mean=[33,2]", "--set", "std=[2,1]")
    assert done.code == 0, done.err
    assert "not covered" not in done.out
    assert "measured" not in (tmp_path / "other" / "guarantee.json").read_text()


def test_the_bundled_table_trains(command: Command) -> None:
    arguments = ("--mechanism", "none", "--set", "rounds=20", "--set", "model=mlp", "--set", "eta=0.5", "--json")
    result = document(command("train", "--dataset", "breast-cancer", *arguments))
    assert result["federations"][0]["accuracy"] > 0.8
