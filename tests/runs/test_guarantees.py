"""``guarantee.json``: the epsilon of the mechanism, held against the noise of the run, which is seeded and has none.

What each entry of a claim says is in ``tests/privacy/test_claim.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import BudgetError
from equipoise.privacy.gaussian import noise_multiplier
from equipoise.runs.config import Config, SweepBlock
from equipoise.runs.guarantees import FILE, guarantees, not_covered
from equipoise.runs.run import Run
from tests.engine.sweeps import small, sweep_of
from tests.runs.small_run import strict


def gaussian(budget: Any, seed: int = 1) -> Federation:
    return Federation("few", "gaussian-dp", budget, seed=seed)


def claim(few: Dataset, *federations: Federation, **change: Any) -> dict[str, Any]:
    found = guarantees(sweep_of(few, list(federations), small(), **change))
    assert found is not None
    return found


def test_a_seeded_run_says_that_it_has_none(few: Dataset) -> None:
    found = claim(few, gaussian(2.0))
    assert found["holds"] is False
    assert found["reason"] == "a seeded run has none; this is the epsilon of the mechanism"
    assert "seeded experiments: they have no guarantee" in found["exclusions"]


def test_the_claim_is_that_of_the_settings_of_the_run(few: Dataset) -> None:
    own = {"clip": 0.5, "divisor": 40.0, "delta": 1e-6, "noise_schedule": {"rounds": [1, 3], "values": [1.0, 2.0]}}
    found = claim(few, gaussian(2.0), gaussian=own)
    expected = {
        "epsilon": 2.0, "delta": 1e-6, "rounds": 5, "clip": 0.5, "divisor": 40.0, "unit": "record",
        "sampling_rate": 1.0, "noise_schedule": [[1.0, 2], [2.0, 3]], "mechanism": "gaussian-dp",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["coordinates"] == sum(part.numel() for part in small().parameters())
    assert found["sigma"] == noise_multiplier(2.0, 1e-6, 5, 1.0, ((1.0, 2), (2.0, 3)))
    assert "add" in found["relation"]
    assert found["limits"]["identification"]


def test_what_was_measured_on_private_rows_is_not_covered(few: Dataset) -> None:
    measured = replace(few, name="scans\x1b", fitted=("mean and std (say mean=, std=)",))
    line = "scans?: measured on private rows: mean and std (say mean=, std=)"
    assert claim(measured, gaussian(2.0))["exclusions"][-1] == line
    assert not any("measured" in said for said in claim(few, gaussian(2.0))["exclusions"])
    for name, lines in (("gaussian-dp", [line]), ("laplace-dp", [line]), ("pl-learn", [])):
        federation = Federation("few", name, 0.98)
        more = {"clip_norm": "l1"} if name == "laplace-dp" else {}
        assert not_covered(sweep_of(measured, [federation], small(), **more)) == lines


def test_rounds_that_the_budget_is_for_are_claimed_and_not_those_trained(few: Dataset) -> None:
    assert claim(few, gaussian(2.0), gaussian={"rounds": 30})["rounds"] == 30


def test_one_claim_for_each_epsilon_of_seeds_and_clients(few: Dataset) -> None:
    found = claim(few, gaussian(4.0), gaussian(4.0, seed=2), gaussian([1.0, 4.0, 8.0, 1.0]), Federation("few", "none"))
    assert [part["epsilon"] for part in found["claims"]] == [1.0, 4.0, 8.0]
    assert found["schema"] == found["claims"][0]["schema"]
    sigmas = [part["sigma"] for part in found["claims"]]
    assert sigmas == sorted(sigmas, reverse=True)
    assert not any(part["holds"] for part in found["claims"])


def test_other_mechanisms_get_no_claim(few: Dataset) -> None:
    others = [Federation("few", "pl-learn", 0.98), Federation("few", "laplace-dp", 200), Federation("few", "none")]
    assert guarantees(sweep_of(few, others, small())) is None


def test_less_noise_than_the_budget_needs_is_not_claimed(few: Dataset) -> None:
    enough = noise_multiplier(2.0, 1e-5, 5)
    assert claim(few, gaussian(2.0), gaussian={"sigmas": [[2.0, enough * 1.1]]})["sigma"] == enough * 1.1
    with pytest.raises(BudgetError, match="has the noise multiplier"):
        claim(few, gaussian(2.0), gaussian={"sigmas": [[2.0, enough * 0.99]]})


def test_groups_are_the_unit_where_the_data_has_them() -> None:
    draw = torch.Generator().manual_seed(0)
    images, labels = torch.rand(16, 1, 28, 28, generator=draw), torch.arange(16) % 10
    data = from_tensors((images, labels, torch.arange(16) // 2), (images, labels), (images, labels), classes=10)
    sweep = Sweep(Settings.flat(rounds=2), [gaussian(2.0)], {"few": data}, small())
    found = guarantees(sweep)
    assert found is not None
    assert found["unit"] == "group"


def test_a_run_folder_holds_the_claim(config: Config, tiny: Path, tmp_path: Path) -> None:
    own = replace(
        config, settings=config.settings.replace(rounds=2), sweep=[SweepBlock([str(tiny)], ["gaussian-dp"], [8.0])]
    )
    Run(tmp_path / "run", own).execute()
    found = strict((tmp_path / "run" / FILE).read_text())
    assert (found["epsilon"], found["rounds"], found["holds"]) == (8.0, 2, False)


def test_a_run_without_such_a_budget_has_no_such_file(whole: Path) -> None:
    assert not (whole / FILE).exists()
