"""The accuracies and audits of recommended gaussian-dp runs that pages show are those of the committed results."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "gaussian_dp"
accuracy, audit = load_script(HERE / "accuracy.py"), load_script(HERE / "audit.py")


def rows(study: ModuleType) -> list[list[str]]:
    """The cells of the table that stands on the page."""
    lines = study.part(study.read()).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


@pytest.mark.parametrize("study", [accuracy, audit])
def test_a_page_says_what_its_results_say(study: ModuleType) -> None:
    page = study.PAGE.read_text(encoding="utf-8")
    assert study.filled(page, study.read()) == page


@pytest.mark.parametrize("study", [accuracy, audit])
def test_a_changed_result_or_page_would_be_noticed(study: ModuleType) -> None:
    page, content = study.PAGE.read_text(encoding="utf-8"), study.read()
    for number, cell in enumerate(content["cells"]):
        if cell.get("scope", "whole run") != "whole run" or cell.get("measure", "identification") != "identification":
            continue
        changed = copy.deepcopy(content)
        changed["cells"][number]["accuracy" if "accuracy" in cell else "measured"] += 0.01
        assert study.filled(page, changed) != page, cell
    begin = page.index(study.part(content))
    wrong = page[:begin] + re.sub(r"\d\.\d", "0.0", page[begin:], count=1)
    assert wrong != page
    assert study.filled(wrong, content) == page


def test_accuracies_stand_under_their_epsilon() -> None:
    shown = {(row[0].split(",")[0], row[1]): row[2:] for row in rows(accuracy)[1:]}
    assert rows(accuracy)[0][2:] == ["no protection", "epsilon 1", "epsilon 2", "epsilon 4", "epsilon 8"]
    assert len(shown) == 6
    for cell in accuracy.read()["cells"]:
        place = [None, 1.0, 2.0, 4.0, 8.0].index(cell["epsilon"])
        told = shown[cell["model"], accuracy.WORDS[cell["dataset"]]][place]
        assert float(told.split(" ± ")[0]) == pytest.approx(100 * np.mean(cell["accuracies"]), abs=0.051)
        assert float(told.split(" ± ")[1]) == pytest.approx(50 * np.ptp(cell["interval"]), abs=0.051)


def test_rates_of_twins_are_the_best_of_those_that_were_tried() -> None:
    twins = [cell for cell in accuracy.read()["cells"] if cell["mechanism"] == "none"]
    assert len(twins) == 6
    for cell in twins:
        tried = dict(map(tuple, cell["validation_by_rate"]))
        assert max(tried, key=lambda rate: tried[rate]) == cell["twin_rate"]
        assert tried[cell["twin_rate"]] == cell["validation"]
        assert set(tried) >= set(accuracy.RATES[:6])


def test_a_table_has_one_twin_and_what_chose_it(tmp_path: Path) -> None:
    for rate, validation in ((0.1, 0.7), (0.2, 0.9), (0.05, 0.8)):
        folder = tmp_path / f"{rate}"
        folder.mkdir()
        settings = {"model": "mlp", "eta": rate, "gaussian": {"sigmas": []}}
        row = {"dataset": "mnist", "mechanism": "none", "budget": None, "rounds": 3, "accuracy": validation - 0.1}
        result = {"spec": {"settings": settings}, "federations": [row, row], "environment": {}}
        (folder / "result.json").write_text(json.dumps(result))
        np.savez(folder / "curves.npz", validation_accuracy=np.array([[0.0, validation]] * 2))
    (cell,) = accuracy.table(sorted(tmp_path.iterdir()))
    assert (cell["twin_rate"], cell["accuracy"]) == (0.2, pytest.approx(0.8))
    assert cell["validation_by_rate"] == [[0.05, 0.8], [0.1, 0.7], [0.2, 0.9]]


def whole_runs() -> list[dict[str, Any]]:
    cells = audit.read()["cells"]
    return [cell for cell in cells if (cell["scope"], cell["measure"]) == ("whole run", "identification")]


def test_audited_rates_stand_under_their_epsilon_and_over_their_limit() -> None:
    shown = {(row[0], row[1]): row[2:] for row in rows(audit)[1:]}
    (limits,) = [row[2:] for row in rows(audit) if row[0].startswith("**proved limit")]
    assert len(whole_runs()) == 18
    for cell in whole_runs():
        place = [1.0, 2.0, 4.0, 8.0].index(cell["epsilon"])
        model = cell["model"] if cell["noise"] == audit.HONEST else f"{cell['model']}, a quarter of the noise"
        told = shown[model, audit.WORDS[cell["dataset"]]][place]
        rate, low, high = map(float, re.findall(r"\d+\.\d", told))
        assert [rate, low, high] == pytest.approx([100 * cell[k] for k in ("measured", "low", "high")], abs=0.051)
        assert told.endswith("noticed") == cell["above"] == (cell["noise"] == audit.QUARTER)
        limit = float(re.findall(r"[\d.]+", limits[place])[0])
        assert 100 * cell["limit"] <= limit < 101 * cell["limit"] + 0.01


def test_a_verdict_says_what_was_counted() -> None:
    content = audit.read()
    assert "264 comparisons" in audit.part(content)
    assert "none with the noise" in " ".join(audit.part(content).split())
    worse = " ".join(audit.part({**content, "honest_above": 2, "noticed": False}).split())
    assert "2 with the noise that is claimed" in worse
    assert "were **not** all noticed" in worse
