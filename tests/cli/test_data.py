"""``equipoise data check``: five lines for people, one document for machines; and training from the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.folders import write_pictures
from tests.data.test_csv_files import ROWS, write
from tests.helpers import Command, document

SAID = ("--set", "target=state", "--set", "group=person", "--set", "public_fraction=0.2")


def test_a_table_in_five_lines(command: Command, tmp_path: Path) -> None:
    rows = [f"{30 + n % 7},{'ab'[n % 2]},{n // 2},{('well', 'ill')[n // 2 % 2]}" for n in range(120)]
    done = command("data", "check", write(tmp_path / "people.csv", rows), *SAID, "--set", "clients=2")
    assert (done.code, done.err) == (0, "")
    first, classes, clients, normalisation, guessed = done.out.splitlines()
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


def test_the_same_as_json(command: Command, tmp_path: Path) -> None:
    found = document(command("data", "check", write(tmp_path / "people.csv"), "--set", "target=state", "--json"))
    assert found["kind"] == "table"
    assert [one["name"] for one in found["classes"]] == ["ill", "well"]
    assert sum(found["clients"]["rows"]) == found["rows"]["train"]


def test_pictures_and_tokens_have_their_own_words(command: Command, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets", {"": {"cat": 24, "dog": 24}})
    out = command("data", "check", "pets").out
    assert "pets: pictures of 3 x 6 x 5 (channels, height, width); 34 train" in out
    assert "no public rows, so no audit (say public_fraction=0.1)" in out
    assert "groups: none" in out
    out = command("data", "check", "generated-text", "--set", "clients=12").out
    assert "sequences of 24 tokens, 400 token numbers with padding" in out
    assert "normalisation: none, as these are tokens" in out
    assert out.endswith("guessed: nothing\n")
    assert "and 4 more rows" in out


def test_a_part_that_is_too_small_for_its_clients_is_named(command: Command, tmp_path: Path) -> None:
    done = command("data", "check", write(tmp_path / "people.csv"), "--set", "clients=5")
    assert done.code == 12
    assert "Of the validation part: Expected clients=5 to be <= the 4 rows." in done.err
    assert "validation_fraction" in done.err


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


def test_the_bundled_table_trains(command: Command) -> None:
    arguments = ("--mechanism", "none", "--set", "rounds=20", "--set", "model=mlp", "--set", "eta=0.5", "--json")
    result = document(command("train", "--dataset", "breast-cancer", *arguments))
    assert result["federations"][0]["accuracy"] > 0.8
