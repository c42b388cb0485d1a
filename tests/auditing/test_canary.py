"""The canary audit: honest code passes, planted bugs fail, and its scores are the likelihood ratios they should be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from equipoise.auditing.canary import Canary, canary_audit, judged, scores
from tests.helpers import load_script

FOLDER = Path(__file__).parents[2] / "studies" / "gaussian_dp"


@cache
def study() -> ModuleType:
    return load_script(FOLDER / "canary.py")


BUGS = [bug for bug in study().BUGS if bug.meant]
SMALL = {name: number for number, name in enumerate(study().SETTINGS)}


def cases(values: Iterable[Any], sampled: Callable[[Any], bool]) -> list[Any]:
    """Runs of all records have the same sums, computed once; each batch of a run that samples has its own."""
    return [pytest.param(value, marks=[pytest.mark.slow] * sampled(value)) for value in values]


@pytest.mark.parametrize("setting", cases(SMALL, lambda name: name == "sampled"))
def test_honest_code_passes(setting: str) -> None:
    found = canary_audit(study().SETTINGS[setting], seed=SMALL[setting])
    assert not found["fails"]
    assert found["runs"] == 250


@pytest.mark.parametrize(
    "bug", cases(BUGS, lambda bug: bug.setting == "sampled"), ids=[f"{bug.name}, {bug.setting}" for bug in BUGS]
)
def test_a_planted_bug_fails(bug: Any) -> None:
    with bug.plant():
        assert canary_audit(study().SETTINGS[bug.setting], seed=1)["fails"]


@pytest.mark.parametrize("rate", cases([1.0, 0.25], lambda rate: rate < 1))
def test_scores_are_those_of_the_dominating_pair(rate: float) -> None:
    """Means and deviations with the canary and without it, against ones drawn from the two distributions themselves."""
    canary = Canary(sampling_rate=rate, runs=600)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, 20_000, canary.rounds, generator=generator, dtype=torch.float64) * canary.sigma
    drawn[0] += (torch.rand(20_000, canary.rounds, generator=generator) < rate).double()
    expected = (1 - rate + rate * ((2 * drawn - 1) / (2 * canary.sigma**2)).exp()).log().sum(2)
    for got, wanted in zip(scores(canary, 7), expected, strict=True):
        spread = float(wanted.std())
        assert abs(float(got.mean() - wanted.mean())) < 4.5 * spread / math.sqrt(600)
        assert float(got.std()) == pytest.approx(spread, rel=0.15)


def test_a_canary_that_the_clip_shortens_is_worth_no_more() -> None:
    one, three = (scores(Canary(length=length, runs=50), 3)[0] for length in (1.0, 3.0))
    torch.testing.assert_close(one, three, atol=1e-2, rtol=0)


def test_the_limit_is_that_of_the_claim() -> None:
    canary = Canary()
    inside, outside = (torch.arange(500.0) for _ in range(2))
    assert not judged(canary, inside, outside)["fails"]
    apart = judged(canary, inside + 1000, outside)
    assert apart["fails"]
    assert apart["tpr_lower"] > apart["limit"] > apart["fpr_upper"]
    assert judged(canary, torch.full((500,), math.inf), torch.full((500,), -math.inf))["fails"]


def test_the_half_that_chooses_the_threshold_does_not_judge() -> None:
    """A lucky first half is not confirmed by the second."""
    inside, outside = torch.zeros(500), torch.zeros(500)
    inside[::2] = 1.0
    assert not judged(Canary(), inside, outside)["fails"]
