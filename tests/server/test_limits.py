"""Bounds on what is finite and well formed: the size of an update, and the part of one client in a round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import ConfigError
from equipoise.mechanism.noise import NOISES
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.registry import MECHANISMS, get_mechanism
from equipoise.server.limits import Limits, largest_distortion, size, wrong_norm

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6)


@given(numbers, numbers)
def test_the_size_is_the_norm_of_numpy_in_double_precision(one: list[float], two: list[float]) -> None:
    tensors = {"a": torch.tensor(one), "b": torch.tensor([two]).bfloat16()}
    flat = np.concatenate([tensor.double().numpy().ravel() for tensor in tensors.values()])
    assert size(tensors) == pytest.approx(float(np.linalg.norm(flat)), rel=1e-12)
    twice = {name: 2 * tensor.double() for name, tensor in tensors.items()}
    assert size(twice, tensors) == pytest.approx(float(np.linalg.norm(flat)), rel=1e-12)


@pytest.mark.parametrize("value", [3e38, 1e200, 1.2e308, 5e-324, 0.0])
def test_no_square_overflows_on_the_way(value: float) -> None:
    tensor = torch.tensor([value, 0.0, -value / 2], dtype=torch.float64)
    assert size({"w": tensor}) == pytest.approx(math.hypot(value, value / 2), rel=1e-12)


def test_a_difference_beyond_all_floats_is_infinite_and_beyond_every_bound() -> None:
    far = {"w": torch.tensor([1.7e308], dtype=torch.float64)}
    near = {"w": -far["w"]}
    assert size(far, near) == math.inf
    assert wrong_norm(far, near, 1e308) is not None
    assert wrong_norm(far, near, math.inf) is None


def test_whole_numbers_and_empty_tensors_have_no_size() -> None:
    """The counter of a batch norm grows with every step, whatever the size of the model."""
    assert size({"count": torch.tensor(10**9), "none": torch.zeros(0), "w": torch.tensor([2.0])}) == 2.0


def test_the_automatic_bound_is_as_documented() -> None:
    assert Limits().norm({"w": torch.zeros(3)}) == 100.0
    assert Limits().norm({"w": torch.tensor([3.0, 4.0])}, 4.0) == 1000.0
    assert Limits(max_norm=7.0).norm({"w": torch.tensor([3.0, 4.0])}, 4.0) == 7.0


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 10**6) | st.floats(1e-3, 1e7), max_size=9), st.floats(1, 99))
def test_whoever_is_too_heavy_exceeds_the_lower_median_so_many_times(weights: dict[str, float], ratio: float) -> None:
    heavy = Limits(max_weight_ratio=ratio).heavy(weights)
    ordered = sorted(weights.values())
    middle = ordered[(len(ordered) - 1) // 2] if ordered else 0.0
    assert set(heavy) == {client for client, weight in weights.items() if weight > ratio * middle}
    assert 2 * len(heavy) <= len(weights), "never more than half"


@pytest.mark.parametrize(
    "options",
    [
        {"max_weight": -1.0},
        {"max_weight": math.nan},
        {"max_norm": -1.0},
        {"max_norm": True},
        {"max_weight_ratio": 0.99},
        {"max_weight_ratio": math.nan},
        {"max_weight_ratio": None},
    ],
    ids=str,
)
def test_impossible_limits_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Expected {next(iter(options))}="):
        Limits(**options)


# --- the distortion that was asked for ------------------------------------------------------------------------

BUDGETS = {"pl-identical": 0.98, "pl-learn": 0.98, "ls-static": 80.0, "ls-learn": 80.0, "gs-static": 80.0,
           "gs-learn": 80.0, "laplace-dp": 10.0}  # fmt: skip


@pytest.mark.parametrize("name", BUDGETS)
def test_the_bound_on_a_distortion_is_not_below_what_is_drawn(name: str) -> None:
    """Static noise of 4,000 numbers, and for those that learn the farthest that their annulus allows."""
    mechanism, settings, count = get_mechanism(name), ProtectionSettings(), 4000
    measure = settings.measure(name)
    assert measure is not None
    scale = measure.lower(BUDGETS[name])
    drawn = torch.distributions.Laplace(0.0, 1.0) if mechanism.noise == "laplace" else torch.distributions.Normal(0, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        noise = drawn.sample((count,)).double()
    assert float(noise.var()) == pytest.approx(NOISES[mechanism.noise].variance, rel=0.2)
    order = 1 if mechanism.norm == "l1" else 2
    intensity = scale if mechanism.on_sphere else scale * float(torch.linalg.vector_norm(noise, order))
    farthest = intensity * (measure.factor if mechanism.learns else 1.0)
    if not mechanism.learns and not mechanism.on_sphere:
        farthest = scale * float(noise.norm())
    bound = largest_distortion(settings, mechanism, [BUDGETS[name]], count)
    assert 0.95 * farthest <= bound <= 10 * farthest


def test_the_loosest_bound_of_several_budgets_counts() -> None:
    settings, mechanism = ProtectionSettings(), get_mechanism("pl-identical")
    alone = largest_distortion(settings, mechanism, [0.9], 10)
    assert largest_distortion(settings, mechanism, [0.98, 0.9, 0.99], 10) == alone


def test_without_distortion_there_is_none() -> None:
    assert largest_distortion(ProtectionSettings(), MECHANISMS["none"], [], 10) == 0.0


def test_what_shapes_the_update_adds_no_more_than_its_noise_where_the_risk_is_one() -> None:
    """Two fifths of 1,000 coordinates with a deviation of 0.08; pruning adds nothing."""
    settings = ProtectionSettings(eta=0.1)
    assert largest_distortion(settings, MECHANISMS["pruning"], [0.001], 1000) == 0.0
    assert largest_distortion(settings, MECHANISMS["outpost"], [1.25], 1000) == pytest.approx(0.08 * 20)
