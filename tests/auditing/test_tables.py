"""A run on a table from a CSV file, audited: what is said of it are words for rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from equipoise.auditing.audit import Audit
from equipoise.auditing.plan import Plan
from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.store import Store
from tests.audit_helpers import cheap, train_run

COLUMNS, ROWS = 5, 240


def write_table(file: Path) -> Path:
    local = torch.Generator().manual_seed(3)
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow([*(f"column{number}" for number in range(COLUMNS)), "outcome"])
        for row in torch.randn(ROWS, COLUMNS, generator=local).tolist():
            table.writerow([*(f"{value:.4f}" for value in row), "ill" if row[0] + row[1] > 0 else "well"])
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("table")
    return train_run(place / "run", write_table(place / "visits.csv"), ("none", "pl-identical"), target="outcome")


def audited(run: Path, plans: list[Plan], store: Store | None = None, *, private: bool = False) -> Audit:
    options = cheap(attacks=["matched", "lti", "labels"])
    return audit_run(run, options, [0], private, store=store, planned=plans.append)


def test_nothing_about_a_table_speaks_of_images_or_pictures(run: Path, tmp_path: Path) -> None:
    plans: list[Plan] = []
    for _ in range(2):  # the second one is read from the store
        result = audited(run, plans, Store(tmp_path), private=True)
    said = " ".join([*plans[0].remarks, *plans[1].remarks, *result.content["notes"], result.summary()])
    assert "results were read from the folder" in said
    assert "image" not in said
    assert "icture" not in said


def test_how_many_public_records_it_takes_is_said(run: Path) -> None:
    options = cheap(attacks=["matched", "membership"], releases=20, others=1, label_sets=1)
    result = audit_run(run, options, [0])
    got = {row["targets"] for row in result.rows}.pop()
    there = result.content["public_inputs"]
    assert got < 20
    assert f"set more public records apart: {there} gave {got} releases, about " in result.content["verdict"][-1]
    outside = {row.get("non_members") for row in result.rows if row["attack"] == "membership"}
    assert outside == {got}, "one for each release"


def test_a_table_that_the_folder_names_gives_public_records(run: Path) -> None:
    plans: list[Plan] = []
    audited(run, plans)
    (plan,) = plans
    assert any("visits.csv" in remark for remark in plan.remarks)
    assert (
        "Public records are taken from these: where the folder is not yours, name others with --public PATH."
        in plan.remarks
    )
