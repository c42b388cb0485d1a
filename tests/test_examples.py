"""Examples: the one with a guarantee says what it makes true; from data to audit, each in one short file."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.auditing.options import AuditOptions
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.mechanism.protect import Protected, protected_step
from examples import gaussian_dp, pictures_folder, table_groups, text_classification

ROUNDS, RECORDS = 3, 200


@pytest.mark.slow
def test_gaussian_dp_trains_and_says_what_is_guaranteed(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def seen(model: Any, state: Any, records: Any, mechanism: str, budget: float, **about: Any) -> Protected:
        gaussian = about["settings"].gaussian
        asked.append((len(records[1]), mechanism, budget, gaussian.rounds, gaussian.delta, about["experiment_seed"]))
        return protected_step(model, state, records, mechanism, budget, **about | {"experiment_seed": 1})

    train, test = ((part.inputs[: 4 * RECORDS], part.labels[: 4 * RECORDS]) for part in (mnist.train, mnist.test))
    monkeypatch.setattr(gaussian_dp, "load", lambda name: from_tensors(train, test, test, classes=10))
    monkeypatch.setattr(gaussian_dp, "protected_step", seen)
    monkeypatch.setattr(gaussian_dp, "RECORDS", RECORDS)
    gaussian_dp.main(ROUNDS)
    said = capsys.readouterr().out
    (accuracy,) = re.findall(r"test accuracy after 3 rounds: ([\d.]+)%", said)
    assert float(accuracy) > 25  # chance is 10
    assert "sees every one of the 3 releases" in said
    assert "epsilon 2 at delta 1e-05 for the whole run, relation add/remove, unit record" in said
    assert asked == [(RECORDS, "gaussian-dp", 2.0, ROUNDS, 1e-5, None)] * (4 * ROUNDS)  # all records, and nobody's seed


SMALL = AuditOptions(
    attacks=["matched"], candidates=6, releases=4, others=4, around=4, tuning=2, games=20, among=10, pictures=0
)
FROM_DATA_TO_AUDIT = [pictures_folder, text_classification, table_groups]


@pytest.mark.parametrize("example", [gaussian_dp, *FROM_DATA_TO_AUDIT], ids=lambda module: module.__name__)
def test_an_example_is_short(example: Any) -> None:
    assert len(Path(example.__file__).read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.parametrize(
    ("example", "arguments", "words"),
    [
        (pictures_folder, ["absent"], "neither a bundled dataset"),
        (table_groups, ["rows.csv", "sick", "person"], "has no column 'sick'"),
        (text_classification, ["rows.csv", "note", "state"], "has no column 'note'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_told_without_a_traceback(
    example: Any,
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "rows.csv").write_text("age,person,state\n1,2,well\n3,4,ill\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example.__file__, *arguments])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(example.__file__, run_name="__main__")
    assert str(caught.value.code).startswith("error: ")
    assert words in str(caught.value.code)


def test_pictures_from_a_folder_with_unequal_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures_folder.write_folder(tmp_path / "pictures", 60)
    pictures_folder.main(folder, tmp_path / "run", rounds=5, options=SMALL)
    said = capsys.readouterr().out
    (sizes,) = re.findall(r"pictures of each client: ([\d, ]+)", said)
    assert len(set(sizes.split(", "))) > 1, "clients are unequal"
    assert [line.split(":")[0] for line in said.splitlines() if ": test accuracy" in line] == ["none", "pl-identical"]
    assert "matched identified" in said


def test_text_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = text_classification.write_messages(tmp_path / "messages.csv", 400)
    fewer = {"releases": 2, "others": 2, "label_sets": 1, "anchors": 2, "trials": 4}  # each of sixteen sequences
    options = AuditOptions(**{**SMALL.plain(), **fewer})
    text_classification.main(file, tmp_path / "run", "message", "topic", rounds=2, options=options)
    said = capsys.readouterr().out
    assert re.search(r"^none: test accuracy", said, re.M)
    assert "matched identified" in said


def test_a_table_with_groups_and_budgets_of_each_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table_groups.write_visits(tmp_path / "visits.csv", 150)
    table_groups.main(file, tmp_path / "run", "outcome", "patient", rounds=4, options=SMALL)
    said = capsys.readouterr().out
    assert "at epsilons [1.0, 2.0, 4.0, 8.0] for 4 rounds together" in said
    claims = json.loads((tmp_path / "run" / "guarantee.json").read_text(encoding="utf-8"))["claims"]
    assert [(claim["epsilon"], claim["unit"], claim["holds"]) for claim in claims] == [
        (epsilon, "group", False) for epsilon in table_groups.EPSILONS
    ]
