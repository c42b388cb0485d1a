"""Time averages of squared gradient norms, between budgets and between parts of the training."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.engine.federation import Federation
from equipoise.reproduction.artefacts.gradient_norm import GRADIENT_NORM, MIDDLE_AND_END, running_average
from equipoise.reproduction.plan import FULL, QUICK, Scale
from tests.reproduction.synthetic import World, pick, records_of, wobble

UNEVEN = np.array([0, 1, 2, 3, 5, 8, 50, 100])


def test_the_running_average_of_a_constant_is_the_constant() -> None:
    assert running_average(UNEVEN, np.full((2, 8), 7.0)) == pytest.approx(np.full((2, 8), 7.0))


def test_the_running_average_of_a_line_is_half_of_it_however_the_rounds_are_spaced() -> None:
    result = running_average(UNEVEN, UNEVEN[None].astype(float))
    assert result[0] == pytest.approx(UNEVEN / 2)
    assert running_average(UNEVEN, UNEVEN[None] + 4.0)[0] == pytest.approx(UNEVEN / 2 + 4)


def test_dense_samples_of_the_first_rounds_do_not_count_for_more() -> None:
    values = np.where(UNEVEN < 8, 100.0, 0.0)[None]
    area = 5 * 100 + 3 * 50  # constant up to round 5, then falling to zero at round 8
    assert running_average(UNEVEN, values)[0, -1] == pytest.approx(area / 100)
    assert values.mean() > 5 * area / 100, "a plain mean would be another number"


def test_gradient_norms_of_neighbouring_budgets_and_the_rebound() -> None:
    def gradients(fed: Federation) -> tuple[list[int], list[float]]:
        level = {600: 3.0, 800: 2.0, 1000: 1.0}[fed.budget] + wobble(fed.seed)
        rounds = list(range(0, 101, 10))
        late = [0.25 * (fed.dataset == "mnist") * (round_number > 90) * (fed.budget == 600) for round_number in rounds]
        return rounds, [level + more for more in late]

    table = GRADIENT_NORM.score(records_of(World(gradients=gradients)))
    assert len(table["cells"]) == 6
    what = [cell["what"] for cell in table["cells"][:3]]
    assert what == ["600 above 800", "800 above 1000", "rebound at 600: last tenth above the middle"]
    assert pick(table["cells"], dataset="fmnist", what=what[0])["mean"] == pytest.approx(1.0)
    assert pick(table["cells"], dataset="mnist", what=what[0])["mean"] == pytest.approx(1.0 + 0.25 * 5 / 100)
    assert pick(table["cells"], dataset="mnist", what=what[2])["mean"] == pytest.approx(0.25)
    assert pick(table["cells"], dataset="mnist", what=what[2])["agrees"] is True
    assert pick(table["cells"], dataset="fmnist", what=what[2])["agrees"] is False
    average = pick(table["averages"], dataset="fmnist", budget=800)
    assert average["average"]["mean"] == average["second_half"]["mean"] == pytest.approx(2.0)


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_gradients_are_sampled_in_the_middle_and_in_the_end(scale: Scale) -> None:
    """The rebound is a difference of two means; neither may be a mean of nothing."""
    round_number = [*range(0, scale.rounds, scale.gradient_every), scale.rounds]
    for low, high in MIDDLE_AND_END:
        assert any(low * scale.rounds < t <= high * scale.rounds for t in round_number)


def test_the_second_half_of_the_training_has_a_column_of_its_own() -> None:
    def falling(fed: Federation) -> tuple[list[int], list[float]]:
        return [0, 50, 100], [8.0, 4.0, 2.0]

    _, averages = GRADIENT_NORM.tables(GRADIENT_NORM.score(records_of(World(gradients=falling))))
    assert averages.rows[0] == ["mnist", "600", "4.500 ± 0.000", "3.000 ± 0.000"]
