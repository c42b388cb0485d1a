"""The loss that one round's distortion adds: averages over time, their difference, and thinned curves."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.engine.federation import Federation
from equipoise.reproduction.artefacts.stepwise import STEPWISE, time_average
from equipoise.reproduction.claims import Tables
from equipoise.reproduction.plan import DATASETS
from tests.reproduction import synthetic as syn
from tests.reproduction.synthetic import World, pick, records_of, wobble


def test_the_stepwise_loss_on_both_kinds_of_data(synthetic: Tables) -> None:
    cells = synthetic["stepwise"]["cells"]
    assert [(cell["dataset"], cell["measured_on"]) for cell in cells] == [
        (dataset, where) for dataset in DATASETS for where in ("its mini-batch", "all its data")
    ]
    for cell in cells:
        # on all data 2.5 in round 1 and 0.5 in rounds 3, 5 and 6: two units above a triangle of two rounds, of five
        static, rounds = (0.4, 5) if cell["measured_on"] == "its mini-batch" else (0.5 + 2 * 2 / 2 / 5, 4)
        assert cell["rounds"] == rounds
        assert cell["mean"] == pytest.approx(-0.3)
        assert cell["ls-static"]["mean"] == pytest.approx(static)
        assert cell["ls-learn"]["mean"] == pytest.approx(static - 0.3)
        assert cell["agrees"] is True
        assert cell["from_a_twentieth_on"]["mean"] == pytest.approx(-0.3)
        swings = (
            [np.std([2.0, 0, 0, 0])] if rounds == 4 else [np.std([wobble(s), 0] * 2 + [wobble(s)]) for s in syn.SEEDS]
        )
        assert cell["ls-static"]["fluctuation"]["mean"] == pytest.approx(np.mean(swings))
    curve = pick(synthetic["stepwise"]["curves"], dataset="mnist", mechanism="ls-static")
    assert curve["rounds"] == [1, 2, 3, 4, 5]
    assert curve["full_rounds"] == [1, 3, 5, 6]
    assert curve["full"] == pytest.approx([2.5, 0.5, 0.5, 0.5])


def test_the_first_twentieth_of_the_rounds_is_told_apart() -> None:
    """Learning is ten units better in rounds 1 to 5 of 100 and one unit worse ever after."""

    def loss(fed: Federation) -> tuple[list[float], list[float]]:
        gap = [
            (-10.0 if round_number <= 5 else 1.0) * fed.mechanism.endswith("learn") for round_number in range(1, 101)
        ]
        return [value + wobble(fed.seed) * (round_number % 2) for round_number, value in enumerate(gap)], [0.0] * 4

    for cell in STEPWISE.score(records_of(World(stepwise=loss)))["cells"]:
        if cell["measured_on"] == "its mini-batch":
            assert cell["mean"] == pytest.approx((4 * -10 + 0.5 * (-10 + 1) + 94 * 1) / 99)
            assert cell["from_a_twentieth_on"]["mean"] == pytest.approx(1.0)
            assert cell["ls-learn"]["fluctuation"]["mean"] < 1e-3


def test_a_lower_mean_over_contradicting_seeds_is_not_lower() -> None:
    def loss(fed: Federation) -> tuple[list[float], list[float]]:
        shift = (wobble(fed.seed, 1.0) - 0.1) * fed.mechanism.endswith("learn")
        return [shift] * 5, [shift] * 4

    for cell in STEPWISE.score(records_of(World(stepwise=loss)))["cells"]:
        assert cell["mean"] == pytest.approx(-0.1)
        assert cell["agrees"] is False


def test_the_average_over_time_does_not_depend_on_the_spacing() -> None:
    rounds = np.array([1, 2, 3, 5, 8, 50, 101])
    assert time_average(rounds, np.full((2, 7), 3.0)) == pytest.approx([3.0, 3.0])
    assert time_average(rounds, rounds[None].astype(float)) == pytest.approx([51.0])
    assert time_average(np.array([4]), np.array([[7.0], [8.0]])) == pytest.approx([7.0, 8.0])


@pytest.mark.parametrize(
    ("count", "points", "step"), [(5, 5, 1), (499, 499, 1), (500, 250, 2), (5000, 250, 20), (5019, 250, 20)]
)
def test_a_long_curve_is_thinned_to_means_of_blocks(count: int, points: int, step: int) -> None:
    values = np.arange(1, count + 1, dtype=float)  # the value of a round is its number
    records = records_of(World(stepwise=lambda fed: (values.tolist(), [0.0] * 4)))
    curve = STEPWISE.score(records)["curves"][0]
    assert curve["rounds"] == list(range(step, points * step + 1, step)), "a block is named by its last round"
    assert curve["mean"] == pytest.approx([round_number - (step - 1) / 2 for round_number in curve["rounds"]])


def test_the_table_sets_learned_beside_static(synthetic: Tables) -> None:
    (table,) = STEPWISE.tables(synthetic["stepwise"])
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["measured on"] == "its mini-batch"
    assert (row["static"][:5], row["learned"][:5], row["difference"][:6]) == ("0.400", "0.100", "-0.300")
