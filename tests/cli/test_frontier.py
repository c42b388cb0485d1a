"""``equipoise frontier``: what it shows, plans, takes over and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from equipoise import files
from equipoise.choosing import frontier as record
from equipoise.choosing import frontier_plan, frontier_store
from equipoise.choosing.frontier_store import FILE, PARTS
from equipoise.errors import StorageError
from tests.choosing.frontier_parts import (
    accuracy,
    as_planned,
    cell,
    everywhere,
    folder,
    part,
    run_row,
    scopes,
    spec,
    values,
)
from tests.helpers import Command, Done, contents, document, entry_point

DRAWN = ["frontier-dark.svg", "frontier-narrow-dark.svg", "frontier-narrow.svg", "frontier.svg"]


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Finished parts of two kinds, as compute leaves them."""
    asked = {**spec(("pl-learn", 0.98)), "audit": {}}
    learned = {"mechanism": "pl-learn", "budget": 0.98}
    whole = everywhere(0.4, **learned)
    folder(tmp_path / "out" / "stages", asked, whole, audit={"accuracy": accuracy(asked)})
    folder(tmp_path / "out" / "run", spec(("pl-learn", 0.98)), multi_round={"attacks": [run_row(**learned)]})
    as_planned(monkeypatch, tmp_path / "out")
    return tmp_path / "out"


def told(done: Done) -> str:
    assert done.code == 0, done
    return " ".join(done.out.split())


def strictly(text: str) -> Any:
    """JSON without NaN and infinities, which other readers refuse."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


# -- where things stand ------------------------------------------------------------------------------------------------


def test_the_status_as_json_is_the_committed_record(command: Command, tmp_path: Path) -> None:
    done = command("frontier", "--status", "--json")
    assert (done.code, done.err) == (0, "")
    result = strictly(done.out)
    assert {"commit", "cells", "equal_accuracy"} <= set(result)
    assert result == record.status(record.committed())
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_without_options_it_says_the_same(command: Command, tmp_path: Path) -> None:
    assert command("frontier").out == command("frontier", "--status").out
    assert list(tmp_path.iterdir()) == []


def test_every_cell_has_one_line_in_80_columns(command: Command) -> None:
    lines = command("frontier").out.splitlines()
    rows = [line for line in lines if line.startswith((" mnist ", " fmnist "))]
    equal = record.status(record.committed())["equal_accuracy"]
    assert len(rows) == len(equal) == 20
    for line, row in zip(rows, equal, strict=True):
        family, budget = row["cell"].split()
        words = line.split()
        assert words[:3] == [row["dataset"], family[:2].upper(), budget]
        assert words[3] == f"{100 * row['learner_accuracy']:.1f}"
        if row["choice"]:
            run = row["by_scope"]["run"]
            assert words[5] == f"{100 * run['learner_identification']:.1f}"
            assert words[7:9] == [f"{row['epsilon']:g}", f"{100 * row['accuracy']:.1f}"]
            assert words[10] == f"{100 * run['identification']:.1f}"
            assert 100 * row["proved"] <= float(words[12]) < 101 * row["proved"], "rounded up"
    assert all(len(line) <= 80 for line in lines if "/" not in line)


def test_it_says_what_the_columns_are(command: Command) -> None:
    text = told(command("frontier"))
    assert "gaussian-dp at epsilon; found: records identified over the whole run" in text
    assert "found is what our attacks got, a floor; proved is what no attack exceeds, on average" in text
    assert (
        "At 20 of the paper's 20 budgets, gaussian-dp on scatter-linear is in the mean at least as accurate as the "
        "paper's learned noise on LeNetZhu, and attackers identify at most a fifth as many records" in text
    )


def test_a_record_of_ones_own_is_shown_and_what_it_misses_named(command: Command, tmp_path: Path) -> None:
    learners = [
        {"dataset": "mnist", "mechanism": "pl-learn", "budget": budget, "accuracy": 0.75} for budget in (0.96, 0.98)
    ]
    rows = [*scopes(), *scopes(mechanism="gaussian-dp", budget=1, accuracy=0.7), cell(budget=0.96)]
    own = {"schema": 1, "commit": "abc", "cells": rows, "equal_accuracy": record.equal_accuracy(rows, learners)}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / record.FILE).write_text(json.dumps(own))
    text = told(command("frontier", "--out", "mine"))
    assert "At 0 of the paper's 2 budgets" in text
    assert "Missed: MNIST, pl-learn 0.96. Missed: MNIST, pl-learn 0.98." in text
    assert "mnist PL 0.98 75.0 % 50.0 % - - - -" in text, "the learner's whole run was measured"
    assert "mnist PL 0.96 75.0 % 50.0 % - - - -" in text
    assert "pictures: none until a setting is whole" in text


def test_no_results_are_refused(command: Command, tmp_path: Path) -> None:
    done = command("frontier", "--status", "--out", "nowhere")
    assert done.code != 0
    assert "There are no results in nowhere" in done.err
    assert list(tmp_path.iterdir()) == []


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [("--status", "--plan", "x.json"), ("--status", "--from", "out"), ("--plan", "x.json", "--from", "out"),
     ("--status", "--plan", "x.json", "--from", "out"), ("--again", "--status"), ("--again", "--from", "out"),
     ("--again", "--plan", "x.json")],
)  # fmt: skip
def test_what_it_can_do_excludes_the_rest(command: Command, tmp_path: Path, options: tuple[str, ...]) -> None:
    done = command("frontier", *options)
    assert done.code != 0
    assert "exclude each other" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--status",), ("--from", "out")])
def test_quick_is_for_plans(command: Command, tmp_path: Path, options: tuple[str, ...]) -> None:
    done = command("frontier", "--quick", *options)
    assert done.code != 0
    assert "--quick is for --plan" in done.err
    assert list(tmp_path.iterdir()) == []


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_a_plan_has_the_parts_that_are_not_there(command: Command, tmp_path: Path) -> None:
    planned = frontier_plan.parts("cpu")
    names = list(planned)
    frontier_store.write(values([], **{name: part(spec()) for name in names[2:]}), tmp_path / "mine")
    done = command("frontier", "--plan", "x.json", "--out", "mine", "--json")
    assert document(done) == {"parts": 2, "spec": "x.json"}
    written = json.loads((tmp_path / "x.json").read_text())
    assert set(written) == {"commit", "parts"}
    assert written["parts"] == json.loads(json.dumps({name: planned[name] for name in names[:2]}))
    assert "2 parts that are not there yet (about 1 min on one H200" in told(
        command("frontier", "--plan", "x.json", "--out", "mine")
    )


def test_a_plan_for_an_empty_folder_has_all_parts(command: Command, tmp_path: Path) -> None:
    assert document(command("frontier", "--plan", "x.json", "--out", "mine", "--json", "--device", "cuda"))[
        "parts"
    ] == len(frontier_plan.parts())
    parts = json.loads((tmp_path / "x.json").read_text())["parts"]
    assert {part["settings"]["device"] for part in parts.values()} == {"cuda"}
    assert not (tmp_path / "mine").exists()


def test_a_plan_for_a_folder_that_is_full_says_so(command: Command, tmp_path: Path) -> None:
    names = list(frontier_plan.parts())
    frontier_store.write(values([], **{name: part(spec()) for name in names}), tmp_path / "mine")
    assert "nothing is left to compute" in told(command("frontier", "--plan", "x.json", "--out", "mine"))
    frontier_store.write(values([], **{name: part(spec()) for name in names[1:]}), tmp_path / "mine")
    assert "1 part that is not there yet" in told(command("frontier", "--plan", "x.json", "--out", "mine"))


def test_a_quick_plan_tries_all_parts(command: Command, tmp_path: Path) -> None:
    """Whatever is there: its results are taken over by nobody."""
    names = list(frontier_plan.parts())
    frontier_store.write(values([], **{name: part(spec()) for name in names}), tmp_path / "mine")
    done = command("frontier", "--plan", "x.json", "--quick", "--out", "mine")
    assert "seconds each" in told(done)
    parts = json.loads((tmp_path / "x.json").read_text())["parts"]
    assert list(parts) == names
    assert max(part["settings"]["rounds"] for part in parts.values()) == 8


def test_a_plan_needs_a_file(command: Command, tmp_path: Path) -> None:
    done = command("frontier", "--plan", ".")
    assert done.code != 0
    assert "it is a folder" in done.err


def test_a_plan_beside_damaged_values_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / FILE).write_bytes(b"PK")
    done = command("frontier", "--plan", "x.json", "--out", "mine")
    assert done.code != 0
    assert "cannot be read" in done.err
    assert not (tmp_path / "x.json").exists()


# -- taking over -------------------------------------------------------------------------------------------------------


def test_finished_parts_become_values_record_and_pictures(command: Command, tmp_path: Path, out: Path) -> None:
    done = command("frontier", "--from", out, "--out", "mine", "--json")
    result = document(done)
    assert sorted(contents(tmp_path / "mine")) == [*DRAWN[:3], "frontier.json", "frontier.svg", FILE]
    assert [row["scope"] for row in result["cells"]] == [0, 4, 40, 100, "run"]
    assert [row["identification"] for row in result["cells"]] == pytest.approx([0.4] * 4 + [0.5])
    assert all(row["choice"] is None for row in result["equal_accuracy"])
    assert "MNIST" in (tmp_path / "mine" / "frontier.svg").read_text()
    text = (tmp_path / "mine" / record.FILE).read_text()
    assert strictly(text) == result
    assert len([line for line in text.splitlines() if line.startswith("  {")]) == 5 + 20, "a line for each"
    assert document(command("frontier", "--status", "--out", "mine", "--json")) == result


def test_what_comes_later_joins_what_is_there(command: Command, tmp_path: Path, out: Path) -> None:
    command("frontier", "--from", out, "--out", "at once")
    (tmp_path / "later").mkdir()
    (out / "run").rename(tmp_path / "later" / "run")
    assert len(document(command("frontier", "--from", out, "--out", "mine", "--json"))["cells"]) == 4
    assert not (tmp_path / "mine" / "frontier.svg").exists(), "nothing is whole without the run"
    assert len(document(command("frontier", "--from", "later", "--out", "mine", "--json"))["cells"]) == 5
    assert contents(tmp_path / "mine") == contents(tmp_path / "at once")
    command("frontier", "--from", out, "--from", "later", "--out", "both")
    assert contents(tmp_path / "both") == contents(tmp_path / "at once")
    command("frontier", "--from", out, "--out", "mine")
    assert contents(tmp_path / "mine") == contents(tmp_path / "at once"), "once more changes nothing"


def test_a_folder_without_parts_changes_nothing(command: Command, tmp_path: Path, out: Path) -> None:
    (tmp_path / "empty").mkdir()
    command("frontier", "--from", out, "--out", "mine")
    before = contents(tmp_path / "mine")
    for sources in (["empty"], [out, "empty"]):
        for into in ("mine", "new"):
            options = [word for source in sources for word in ("--from", source)]
            done = command("frontier", *options, "--out", into)
            assert done.code != 0
            assert "no finished parts in empty" in " ".join(done.err.split())
    assert contents(tmp_path / "mine") == before
    assert not (tmp_path / "new").exists()


def test_damaged_values_are_not_written_over(command: Command, tmp_path: Path, out: Path) -> None:
    command("frontier", "--from", out, "--out", "mine")
    (tmp_path / "mine" / FILE).write_bytes(b"PK")
    before = contents(tmp_path / "mine")
    done = command("frontier", "--from", out, "--out", "mine")
    assert done.code != 0
    assert "cannot be read" in done.err
    assert contents(tmp_path / "mine") == before


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Make the disk refuse the nth file, and all files after it."""
    whole, left = files.write_bytes, [0]

    def write(path: Path, content: bytes, mode: int = 0o666) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StorageError(f"Cannot write {path.name}: no space is left.", "Free some space.")
        whole(path, content, mode)

    def stop(number: int | None) -> None:
        left[0] = 1000 if number is None else number
        for place in (files, frontier_store):
            monkeypatch.setattr(place, "write_bytes", write)

    return stop


@pytest.mark.parametrize("number", range(6))
def test_a_crash_between_files_is_not_shown_as_a_whole(
    command: Command, tmp_path: Path, out: Path, stop_at: Callable[[int | None], None], number: int
) -> None:
    """After any of the six files, over results that were there; the same command heals it."""
    (tmp_path / "later").mkdir()
    (out / "run").rename(tmp_path / "later" / "run")
    command("frontier", "--from", out, "--out", "mine")
    stop_at(number)
    done = command("frontier", "--from", "later", "--out", "mine")
    assert done.code != 0
    assert "no space is left" in done.err
    stop_at(None)
    done = command("frontier", "--status", "--out", "mine")
    assert done.code != 0
    assert "not whole" in done.err
    assert "--from" in done.err
    assert "equipoise frontier --again" in done.err
    assert list(frontier_store.read(tmp_path / "mine").about[PARTS]) == ["run", "stages"][not number :]
    assert command("frontier", "--from", "later", "--out", "mine").code == 0
    command("frontier", "--from", out, "--from", "later", "--out", "at once")
    assert contents(tmp_path / "mine") == contents(tmp_path / "at once")


@pytest.mark.parametrize("number", range(1, 6))
def test_the_values_alone_heal_a_crash(
    command: Command, tmp_path: Path, out: Path, stop_at: Callable[[int | None], None], number: int
) -> None:
    """Where they were written; the folders of the parts need not be there any more."""
    command("frontier", "--from", out, "--out", "at once")
    stop_at(number)
    assert command("frontier", "--from", out, "--out", "mine").code != 0
    stop_at(None)
    out.rename(tmp_path / "gone")
    (tmp_path / "mine" / DRAWN[0]).write_text("an old one")
    result = document(command("frontier", "--again", "--out", "mine", "--json"))
    assert contents(tmp_path / "mine") == contents(tmp_path / "at once")
    assert result == record.status(tmp_path / "at once")


def test_pictures_of_what_is_not_there_any_more_go(command: Command, tmp_path: Path, out: Path) -> None:
    """Where nothing is whole, those that lie there are of other results."""
    command("frontier", "--from", out, "--out", "mine")
    found = frontier_store.read(tmp_path / "mine")
    found.about[PARTS] = {"stages": found.about[PARTS]["stages"]}
    frontier_store.write(found, tmp_path / "mine")
    assert "pictures: none until a setting is whole" in told(command("frontier", "--again", "--out", "mine"))
    assert sorted(contents(tmp_path / "mine")) == ["frontier.json", FILE]


def test_nothing_is_made_again_of_nothing(command: Command, tmp_path: Path) -> None:
    done = command("frontier", "--again", "--out", "nowhere")
    assert done.code != 0
    assert f"There is no {FILE} in nowhere" in done.err
    assert list(tmp_path.iterdir()) == []


def test_it_works_in_a_wide_terminal_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = entry_point(tmp_path, monkeypatch, capfd, columns=120)("frontier").out.splitlines()
    assert len([line for line in lines if line.startswith((" mnist ", " fmnist "))]) == 20
    assert max(len(line) for line in lines if "/" not in line) > 100, "sentences use the width"
