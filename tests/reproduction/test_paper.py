"""The numbers of the paper are whole, and the grid of the plan is theirs."""

from __future__ import annotations

from equipoise.reproduction.paper import PRINTED, paper
from equipoise.reproduction.plan import BUDGETS, DATASETS
from tests.reproduction.synthetic import TENSORS


def test_the_papers_numbers_are_whole() -> None:
    result = paper()
    for table in ("accuracy", "mse", "ssim"):
        for family in ("LS", "PL"):
            for dataset in DATASETS:
                for key in PRINTED:
                    assert len(result[table][family][dataset][key]) == 5
    static, learned = PRINTED
    assert result["accuracy"]["LS"]["mnist"][static] == [8.92, 67.98, 83.28, 87.26, 92.04]
    assert result["mse"]["PL"]["fmnist"][learned] == [2.09, 2.07, 1.91, 1.87, 1.84]
    assert result["ssim_at_most"] == {
        family: max(v for name in DATASETS for row in result["ssim"][family][name].values() for v in row)
        for family in ("LS", "PL")
    }
    listed = [name for verdict in ("amplified", "reduced", "kept") for name in result["layers"][verdict]]
    assert sorted(listed) == sorted(TENSORS)


def test_the_budgets_are_the_papers() -> None:
    for family in ("LS", "PL"):
        for table in ("accuracy", "mse", "ssim"):
            assert list(BUDGETS[family]) == paper()[table][family]["budgets"]
