"""M and gamma swept: the paper's own setting and static noise among the others."""

from __future__ import annotations

import pytest

from equipoise.reproduction.artefacts.registry import needs
from equipoise.reproduction.artefacts.sweeps import SWEEPS
from equipoise.reproduction.claims import Tables
from tests.reproduction.synthetic import LEARNED, SCALE, STATIC, World, pick, records_of


def test_sweeps_have_the_papers_setting_and_static_noise_among_them(synthetic: Tables) -> None:
    cells = synthetic["sweeps"]["cells"]
    mine = [c for c in cells if (c["family"], c["dataset"]) == ("LS", "mnist")]
    assert [(c["setting"], c["value"], c["paper"]) for c in mine] == [
        ("M", 0, False), ("M", 1, False), ("M", 3, False), ("M", 10, True), ("gamma", 0.01, False),
        ("gamma", 0.1, True), ("gamma", 1, False),
    ]  # fmt: skip
    assert pick(mine, setting="M", value=0.0)["mean"] == pytest.approx(100 * STATIC[1])
    assert pick(mine, setting="M", value=10.0)["mean"] == pytest.approx(100 * LEARNED[1])


def test_every_value_is_that_of_its_own_group() -> None:
    result = {"M=1": 0.11, "M=3": 0.33, "gamma=0.01": 0.01, "gamma=1": 0.99, "paper": 0.5}
    assert set(needs(["sweeps"], SCALE)) == set(result)
    cells = SWEEPS.score(records_of(World(accuracy=lambda fed, group: result.get(group, 0.0))))["cells"]
    mine = [c for c in cells if (c["family"], c["dataset"]) == ("PL", "fmnist")]
    assert [c["mean"] for c in mine] == pytest.approx([50, 11, 33, 50, 1, 50, 99])


def test_a_sweep_has_no_verdict(synthetic: Tables) -> None:
    assert not SWEEPS.judged
    assert not any("agrees" in cell for cell in synthetic["sweeps"]["cells"])
    (table,) = SWEEPS.tables(synthetic["sweeps"])
    assert "verdict" not in table.head
