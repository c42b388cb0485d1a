"""Errors of table rows in standard deviations: independent of units, and honest about columns that do not vary."""

from __future__ import annotations

import pytest
import torch

from equipoise.auditing.table_scores import Columns, by_column, correlation, error_sd, nearness

UNITS = torch.tensor([1.0, 1000.0, 1e-3])


def rows(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_no_unit_and_no_offset_of_a_column_changes_an_error(shift: float) -> None:
    known, guess, truth = rows(400), rows(2, 4, seed=2), rows(2, 4, seed=3)
    plain, moved = Columns.of(known), Columns.of(known * UNITS + shift)
    expected = error_sd(plain.standard(guess), plain.standard(truth))
    actual = error_sd(moved.standard(guess * UNITS + shift), moved.standard(truth * UNITS + shift))
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


def test_the_mean_of_every_column_is_off_by_one_deviation_and_correlates_with_nothing() -> None:
    known = rows(2000)
    columns = Columns.of(known)
    truth, guess = columns.standard(known.unsqueeze(0)), columns.standard(known.mean(0).expand(1, 2000, 3))
    assert float(error_sd(guess, truth).square().mean()) == pytest.approx(1.0, rel=1e-6)
    assert float(correlation(guess, truth).abs().max()) < 1e-6
    assert correlation(truth, truth) == pytest.approx(torch.ones(1, 2000))
    assert correlation(-truth, truth) == pytest.approx(-torch.ones(1, 2000))


def test_a_column_that_does_not_vary_is_left_out() -> None:
    known = rows(50)
    known[:, 1] = 7.0
    columns, truth = Columns.of(known), known.view(5, 10, 3)
    guess = truth.clone()
    guess[..., 1], guess[..., 2] = 1e9, truth[..., 2] + 2 * known[:, 2].std(correction=0)
    mine, real = columns.standard(guess), columns.standard(truth)
    assert by_column(mine, real, columns) == [0.0, None, pytest.approx(2.0, rel=1e-3)]
    assert error_sd(mine, real) == pytest.approx(torch.full((5, 10), 2**0.5, dtype=torch.float64))


def test_the_nearest_candidate_is_the_one_that_was_guessed() -> None:
    pool = rows(6)
    columns, choices = Columns.of(pool), torch.tensor([[[0, 1, 2], [3, 4, 5]]])
    values = nearness(columns.standard(pool[[1, 5]].unsqueeze(0)), columns.standard(pool, 1), choices)
    assert values.argmax(-1).tolist() == [[1, 2]]
    assert values.max(-1).values.tolist() == [[0, 0]]


def test_records_of_more_axes_are_flattened() -> None:
    series = rows(10, 4)  # ten series of four times three numbers
    assert Columns.of(series).standard(series.unsqueeze(0)).shape == (1, 10, 12)
