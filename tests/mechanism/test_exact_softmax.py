"""The softmax: right to a few units in the last place, and the same bits wherever a row lies."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.mechanism.exact_softmax import _LOG2_HIGH, _LOG2_LOW, exp, softmax

ULP = Fraction(1, 2**52)


def by_decimal(row: list[float]) -> list[Decimal]:
    """The softmax of the very floats, to 50 digits; nothing lies further than 700 below the largest."""
    with localcontext() as context:
        context.prec = 50
        values = [Decimal(value) for value in row]
        powers = [max(value - max(values), Decimal(-700)).exp() for value in values]
        return [power / sum(powers) for power in powers]


def error(found: float, truth: Decimal) -> Fraction:
    return abs(Fraction(found) / Fraction(truth) - 1)


def right(row: list[float], found: list[float]) -> bool:
    """A few units in the last place, and what the rounded difference from the largest logit comes to."""
    allowed = [(6 + Fraction(min(700.0, max(row) - value))) * ULP for value in row]
    truths = by_decimal(row)
    return all(error(f, truth) < most for f, truth, most in zip(found, truths, allowed, strict=True))


def rows_of(count: int, classes: int, generator: torch.Generator) -> Tensor:
    spread = torch.logspace(-3, 2.5, count, dtype=torch.float64).unsqueeze(1)
    return torch.randn(count, classes, generator=generator, dtype=torch.float64) * spread


# -- the right numbers ---------------------------------------------------------------------------------------------


def test_powers_are_right_to_a_few_units_in_the_last_place() -> None:
    x = torch.cat(
        [torch.linspace(-700, 0, 900, dtype=torch.float64), -torch.logspace(-20, 2, 200, dtype=torch.float64)]
    )
    with localcontext() as context:
        context.prec = 50
        worst = max(error(found, Decimal(at).exp()) for at, found in zip(x.tolist(), exp(x).tolist(), strict=True))
    assert worst < 4 * ULP


@pytest.mark.parametrize("classes", [1, 2, 3, 7, 10, 11, 64])
def test_a_softmax_is_right_to_a_few_units_in_the_last_place(classes: int, generator: torch.Generator) -> None:
    logits = rows_of(40, classes, generator)
    for row, found in zip(logits.tolist(), softmax(logits).tolist(), strict=True):
        assert right(row, found)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=12))
def test_any_finite_logits_give_shares_that_add_up_to_one(row: list[float]) -> None:
    found = softmax(torch.tensor(row, dtype=torch.float64)).tolist()
    assert all(0 < share <= 1 for share in found)
    assert abs(sum(map(Fraction, found)) - 1) < len(row) * ULP
    assert right(row, found)


def test_the_first_part_of_ln_2_is_so_short_that_its_multiples_are_exact() -> None:
    for k in (1, 677, 1010):
        assert Fraction(k * _LOG2_HIGH) == k * Fraction(_LOG2_HIGH)
    with localcontext() as context:
        context.prec = 40
        assert abs(Decimal(_LOG2_HIGH) + Decimal(_LOG2_LOW) - Decimal(2).ln()) < Decimal("1e-25")


# -- what no library fixes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 10, 17])
def test_a_row_has_the_same_bits_alone_and_anywhere_among_others(classes: int, generator: torch.Generator) -> None:
    logits = rows_of(67, classes, generator)
    alone = torch.stack([softmax(row) for row in logits])
    assert torch.equal(softmax(logits), alone)
    turned = torch.randperm(67, generator=generator)
    assert torch.equal(softmax(logits[turned]), alone[turned])
    for shift in range(1, 9):  # other places in a vector of the processor
        assert torch.equal(softmax(logits[shift:]), alone[shift:])
    assert torch.equal(softmax(logits.T.contiguous().T), alone)
    assert torch.equal(softmax(logits.view(67, 1, classes)).view(67, classes), alone)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0])
def test_no_companion_shows_in_the_bits_of_a_row(value: float, generator: torch.Generator) -> None:
    logits = rows_of(33, 10, generator)
    before = softmax(logits)
    logits[::2] = value
    assert torch.equal(softmax(logits)[1::2], before[1::2])


def test_the_bits_are_those_of_single_numbers_of_python(generator: torch.Generator) -> None:
    """Python's floats are IEEE 754's: the same steps, one number at a time, give the same bits."""
    row = (torch.randn(10, generator=generator, dtype=torch.float64) * 9).tolist()
    powers = [python_exp(value - max(row)) for value in row]
    sums = powers
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [*(sums[i] + sums[half + i] for i in range(half)), *sums[2 * half :]]
    assert softmax(torch.tensor(row, dtype=torch.float64)).tolist() == [power / sums[0] for power in powers]


def python_exp(x: float) -> float:
    x = max(x, -700.0)
    k = math.floor(x * (1 / math.log(2)) + 0.5)
    r = (x - k * _LOG2_HIGH) - k * _LOG2_LOW
    result = 1 / math.factorial(14)
    for degree in range(13, -1, -1):
        result = result * r + 1 / math.factorial(degree)
    return math.ldexp(result, k)


# -- the edges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_gives_no_numbers(value: float) -> None:
    assert softmax(torch.tensor([0.0, value, 1.0], dtype=torch.float64)).isnan().all()


def test_minus_infinity_is_far_below_the_rest() -> None:
    found = softmax(torch.tensor([0.0, -math.inf, 0.0], dtype=torch.float64)).tolist()
    assert found[0] == found[2] == 0.5
    assert 0 < found[1] < 1e-300


def test_below_700_all_powers_are_alike_and_normal_numbers() -> None:
    low = exp(torch.tensor([-700.0, -701.0, -1e308, -math.inf], dtype=torch.float64)).tolist()
    assert len(set(low)) == 1
    assert low[0] > 2.3e-308, "numbers below are flushed to zero on some machines"
