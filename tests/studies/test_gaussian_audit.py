"""The study that attacks recommended runs of gaussian-dp: its SPECs need torch and numpy alone, its table the claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import equipoise
from tests.audit_helpers import write_pictures
from tests.helpers import load_script, single_threaded

HERE = Path(__file__).parents[2] / "studies" / "gaussian_dp"
BLOCKED = ("scipy", "dp_accounting", "pydantic", "rich", "typer", "safetensors", "plotly")
BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""
study = load_script(HERE / "audit.py")
TINY = {"rounds": 3, "snapshots": [0, 2], "public_fraction": 0.6, "evaluate_every": 3, "clients": 2}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A tiny variant of every SPEC, computed by a Python that has none of the other packages."""
    folder = tmp_path_factory.mktemp("audit")
    data = str(write_pictures(folder / "data", train=200))
    (folder / "sitecustomize.py").write_text(BLOCKER)
    design = study.Design(
        models=("mlp",), datasets=(data,), epsilons=(2.0, 8.0), planted=(data, 4.0), games=40, among=20, change=TINY
    )
    environment = {**single_threaded(), "PYTHONPATH": f"{folder}:{Path(equipoise.__file__).parents[1]}"}
    for name, spec in design.specs().items():
        (folder / f"{name}.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "equipoise.compute", str(folder / f"{name}.json"), str(folder / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, ""), name
    return [folder / name for name in design.specs()]


@pytest.fixture(scope="module")
def table(played: list[Path]) -> dict[str, Any]:
    result: dict[str, Any] = study.table(played)
    return result


@pytest.mark.slow
def test_honest_cells_are_below_their_limits_and_too_little_noise_is_noticed(table: dict[str, Any]) -> None:
    assert (table["honest_above"], table["honest_controls_failed"], table["noticed"]) == (0, 0, True)
    cells = table["cells"]
    assert len(cells) == 5 * (2 * 2 + 2 + 1)  # snapshots and runs of two federations, and the planted one
    assert table["compared"] == sum(cell["compared"] for cell in cells) == 4 * 7
    assert {cell["measure"] for cell in cells if not cell["compared"]} == {"membership_auc"}
    (found,) = [cell for cell in cells if cell["noise"] == study.QUARTER and cell["measure"] == "identification"]
    assert found["above"]
    assert found["sigma_added"] == pytest.approx(found["sigma_claimed"] / 4)
    assert found["measured"] > 3 * found["limit"]


@pytest.mark.slow
def test_limits_are_those_of_the_claim(table: dict[str, Any], played: list[Path]) -> None:
    """The planted run by itself says that its noise is in order: only the claim tells that it is not."""
    own = json.loads((played[2] / "multi_round.json").read_text())["limits"]
    assert not any(row.get("above") for row in own)
    runs = {cell["epsilon"]: cell for cell in table["cells"]
            if cell["scope"] == "whole run" and cell["measure"] == "identification"}  # fmt: skip
    for epsilon, cell in runs.items():
        budget = equipoise.guarantee(epsilon=epsilon, delta=1e-5, rounds=3, candidates=20)
        assert cell["limit"] == pytest.approx(budget.identification.run, rel=1e-6)
    assert study.lines(table)[-1].endswith("noticed too little noise: True")


@pytest.mark.slow
def test_all_comparisons_of_the_table_share_one_error_rate(table: dict[str, Any]) -> None:
    rates = {cell["error_rate"] for cell in table["cells"] if cell["measure"] == "identification"}
    assert rates == {0.05 / 28}


def test_the_specs_are_those_of_the_rules() -> None:
    specs = study.Design().specs()
    kinds = ("releases", "runs-mnist", "runs-fmnist", "quarter-of-noise")
    assert list(specs) == [f"{model}-{kind}" for model in ("scatter-linear", "lenet-zhu") for kind in kinds]
    each = [1.0, 2.0, 4.0, 8.0]
    for name, spec in specs.items():
        effort = spec.get("audit") or spec["multi_round"]
        assert (effort["games"], effort["among"]) == (500, 200)
        cells = {"releases": each * 2, "noise": [21.96], "mnist": each, "fmnist": each}[name.split("-")[-1]]
        assert [fed["budget"] for fed in spec["federations"]] == pytest.approx(cells, abs=0.01)
        assert spec["settings"]["gaussian"]["rounds"] == spec["settings"]["rounds"]
    assert specs["scatter-linear-releases"]["audit"]["snapshots"] == [0, 2, 20]


def test_single_releases_with_too_little_noise_are_played_at_epsilon_8() -> None:
    specs = study.Design().release_specs()
    assert list(specs) == ["scatter-linear", "lenet-zhu"]
    for spec in specs.values():
        assert spec["audit"]["snapshots"] == [0]
        assert 8.0 in dict(map(tuple, spec["settings"]["gaussian"]["sigmas"]))
        (worth, added), (_, claimed) = spec["settings"]["gaussian"]["sigmas"]
        assert (worth > 8, added) == (True, pytest.approx(claimed / 4))


def test_the_committed_single_releases_were_noticed() -> None:
    content = study.read()["planted"]
    assert content["noticed"]
    assert content["compared"] == 8
    assert {cell["scope"] for cell in content["cells"]} == {"one release"}
    above = {(cell["measure"], cell["fpr"]) for cell in content["cells"] if cell["above"]}
    assert above == {("identification", None), ("membership_tpr", 0.1)}
