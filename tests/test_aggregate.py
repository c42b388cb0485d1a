"""The server: a weighted mean of what passes every check, named reasons for the rest, the same in batched form."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from equipoise.aggregate import Total, aggregate, refusal
from equipoise.errors import ReleaseError

weights = st.floats(1e-6, 1e6)


@st.composite
def cohorts(draw: Any) -> tuple[Tensor, list[float]]:
    """Releases ``[K, P]`` float32 and a positive weight each."""
    clients, size = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    values = draw(arrays.arrays(np.float32, (clients, size), elements=st.floats(-100, 100, width=32)))
    return torch.from_numpy(values), draw(st.lists(weights, min_size=clients, max_size=clients))


def named(values: Any) -> dict[str, Any]:
    return {f"client-{i}": value for i, value in enumerate(values)}


# --- the weighted mean -------------------------------------------------------------------------------------


@given(cohorts())
def test_the_mean_is_that_of_numpy_in_double_precision(cohort: tuple[Tensor, list[float]]) -> None:
    releases, given_weights = cohort
    result = aggregate(torch.zeros(releases.shape[1]), named(releases), named(given_weights))
    expected = np.average(releases.double().numpy(), axis=0, weights=given_weights)
    assert result.parameters.double().numpy() == pytest.approx(expected, abs=1e-9, rel=1e-6)
    assert result.parameters.dtype == torch.float32
    assert result.accepted == list(named(releases))
    assert not result.refused
    assert not result.void


@given(cohorts(), st.floats(0.01, 3.0))
def test_the_server_rate_is_a_step_towards_the_mean(cohort: tuple[Tensor, list[float]], rate: float) -> None:
    releases, given_weights = (cohort[0].double(), cohort[1])
    previous = torch.linspace(-1, 1, releases.shape[1], dtype=torch.float64)
    mean = aggregate(previous, named(releases), named(given_weights)).parameters
    moved = aggregate(previous, named(releases), named(given_weights), rate=rate).parameters
    torch.testing.assert_close(moved, previous + rate * (mean - previous), rtol=1e-9, atol=1e-9)


@given(cohorts(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(cohort: tuple[Tensor, list[float]], random: Any) -> None:
    releases, given_weights = named(cohort[0]), named(cohort[1])
    names = list(releases)
    random.shuffle(names)
    previous = torch.zeros(cohort[0].shape[1])
    one = aggregate(previous, releases, given_weights)
    two = aggregate(previous, {n: releases[n] for n in names}, {n: given_weights[n] for n in reversed(names)})
    torch.testing.assert_close(one.parameters, two.parameters, rtol=1e-6, atol=1e-9)


@given(cohorts())
def test_the_scale_of_the_weights_does_not_matter(cohort: tuple[Tensor, list[float]]) -> None:
    releases, given_weights = cohort
    previous = torch.zeros(releases.shape[1])
    one = aggregate(previous, named(releases), named(given_weights))
    two = aggregate(previous, named(releases), named(1024 * w for w in given_weights))
    assert torch.equal(one.parameters, two.parameters)


@pytest.mark.parametrize("weight", [1e308, 5e-324, 2**1000])
def test_extreme_but_finite_weights_still_average(weight: float) -> None:
    releases = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    result = aggregate(torch.zeros(2), releases, {"a": weight, "b": weight})
    assert result.parameters.tolist() == [2.0, 3.0]


def test_inputs_are_not_modified_and_the_result_is_detached() -> None:
    previous, one = torch.zeros(2), torch.ones(2, requires_grad=True)
    result = aggregate(previous, {"a": one, "b": torch.tensor([3.0, 3.0])}, {"a": 1, "b": 1})
    assert result.parameters.tolist() == [2.0, 2.0]
    assert not result.parameters.requires_grad
    assert previous.tolist() == [0.0, 0.0]
    assert one.tolist() == [1.0, 1.0]


# --- refusals ----------------------------------------------------------------------------------------------

GOOD = torch.tensor([1.0, 2.0, 3.0])
BAD_RELEASES: dict[str, tuple[Any, str]] = {
    "nan": (torch.tensor([1.0, math.nan, 3.0]), "1 of 3 parameters are not finite"),
    "inf": (torch.tensor([math.inf, 1.0, -math.inf]), "2 of 3 parameters are not finite"),
    "short": (torch.zeros(2), "has shape (2,), expected (3,)"),
    "long": (torch.zeros(4), "has shape (4,), expected (3,)"),
    "broadcastable scalar": (torch.tensor(1.0), "has shape (), expected (3,)"),
    "broadcastable vector": (torch.ones(1), "has shape (1,), expected (3,)"),
    "broadcastable matrix": (torch.ones(1, 3), "has shape (1, 3), expected (3,)"),
    "empty": (torch.zeros(0), "has shape (0,), expected (3,)"),
    "double": (GOOD.double(), "has dtype torch.float64, expected torch.float32"),
    "half": (GOOD.half(), "has dtype torch.float16, expected torch.float32"),
    "whole numbers": (torch.tensor([1, 2, 3]), "has dtype torch.int64, expected torch.float32"),
    "complex": (GOOD.to(torch.complex64), "has dtype torch.complex64, expected torch.float32"),
    "list": ([1.0, 2.0, 3.0], "is list, not a tensor"),
    "array": (np.ones(3, np.float32), "is ndarray, not a tensor"),
    "nothing": (None, "is NoneType, not a tensor"),
    "text": ("weights", "is str, not a tensor"),
}
BAD_WEIGHTS: list[Any] = [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, True, False, "1", None, [1.0], 10**400]


@pytest.mark.parametrize("kind", BAD_RELEASES)
def test_a_malformed_release_is_refused_by_name_and_reason(kind: str) -> None:
    bad, reason = BAD_RELEASES[kind]
    result = aggregate(torch.zeros(3), {"good": GOOD, kind: bad}, {"good": 2.0, kind: 5.0})
    assert result.refused == {kind: reason}
    assert result.accepted == ["good"]
    assert torch.equal(result.parameters, GOOD), "the mean of those that are left"
    assert refusal(bad, torch.zeros(3), 1.0) == reason


@pytest.mark.parametrize("weight", BAD_WEIGHTS, ids=lambda w: str(w)[:8])
def test_a_malformed_weight_is_refused_by_name(weight: Any) -> None:
    result = aggregate(torch.zeros(3), {"good": GOOD, "odd": 9 * GOOD}, {"good": 1, "odd": weight})
    assert list(result.refused) == ["odd"]
    assert "expected a finite number > 0" in result.refused["odd"]
    assert torch.equal(result.parameters, GOOD)


def test_a_missing_weight_is_refused() -> None:
    result = aggregate(torch.zeros(3), {"a": GOOD, "b": GOOD}, {"a": 1.0})
    assert result.refused == {"b": "has weight None, expected a finite number > 0"}


def test_a_good_release_has_no_reason() -> None:
    assert refusal(GOOD, torch.zeros(3), 1) is None
    assert refusal(GOOD, torch.zeros(3), 0.5) is None


# --- void rounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("good", "least", "void"), [(0, 1, True), (1, 1, False), (1, 2, True), (2, 2, False), (0, 0, True)]
)
def test_too_few_releases_leave_the_model_unchanged(good: int, least: int, void: bool) -> None:
    previous = torch.tensor([7.0, 8.0, 9.0])
    releases = {f"good-{i}": GOOD for i in range(good)} | {"bad": torch.full((3,), math.nan)}
    result = aggregate(previous, releases, dict.fromkeys(releases, 1.0), min_clients=least)
    assert result.void == void
    assert torch.equal(result.parameters, previous if void else GOOD)
    assert len(result.accepted) == good
    assert list(result.refused) == ["bad"]


@pytest.mark.parametrize("previous", [torch.zeros(2, 3), torch.tensor(1.0), torch.tensor([1.0, math.nan, 2.0])])
def test_a_broken_global_model_is_an_error(previous: Tensor) -> None:
    with pytest.raises(ReleaseError, match="finite vector"):
        aggregate(previous, {"a": GOOD}, {"a": 1.0})


# --- the batched form --------------------------------------------------------------------------------------


@st.composite
def sweeps(draw: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Releases and distortions ``[F, K, P]``, weights and acceptance ``[F, K]``."""
    f, k, p = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 5))
    local = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    released, distortion = (torch.randn(f, k, p, generator=local) * 10 for _ in range(2))
    accepted = torch.rand(f, k, generator=local) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return released, distortion, torch.rand(f, k, generator=local) + 0.01, accepted


def summed(previous: Tensor, sweep: tuple[Tensor, Tensor, Tensor, Tensor], cuts: list[int]) -> Total:
    """The same releases, added in runs of clients that end at ``cuts``."""
    total = Total(previous)
    released = sweep[0]
    edges = sorted({0, released.shape[1], *(c for c in cuts if c < released.shape[1])})
    for start, stop in pairwise(edges):
        total.add(slice(0, len(released)), *(part[:, start:stop] for part in sweep))
    return total


@given(sweeps(), st.sampled_from([1.0, 0.3]), st.integers(1, 3))
def test_the_batched_form_agrees_with_aggregate(
    sweep: tuple[Tensor, Tensor, Tensor, Tensor], rate: float, least: int
) -> None:
    released, distortion, share, accepted = sweep
    previous = torch.ones(released.shape[0], released.shape[2])
    new, size = summed(previous, sweep, []).step(previous, rate, least)
    for f in range(len(released)):
        kept = {str(k): released[f, k] for k in range(released.shape[1]) if accepted[f, k]}
        masses = {name: float(share[f, int(name)]) for name in kept}
        expected = aggregate(previous[f], kept, masses, rate, least)
        torch.testing.assert_close(new[f], expected.parameters, rtol=1e-6, atol=1e-6)
        if expected.void:
            assert torch.equal(new[f], previous[f])
        else:
            delta = np.average(
                distortion[f, accepted[f]].double().numpy(), axis=0, weights=share[f, accepted[f]].double().numpy()
            )
            assert float(size[f]) == pytest.approx(float(np.linalg.norm(delta)), rel=1e-4, abs=1e-4)


@given(sweeps(), st.lists(st.integers(1, 6), max_size=4))
def test_grouping_clients_changes_no_bit(sweep: tuple[Tensor, Tensor, Tensor, Tensor], cuts: list[int]) -> None:
    previous = torch.zeros(sweep[0].shape[0], sweep[0].shape[2])
    one, two = summed(previous, sweep, []), summed(previous, sweep, cuts)
    assert torch.equal(one.sum, two.sum)
    assert torch.equal(one.mass, two.mass)
    assert torch.equal(one.count, two.count)
    for a, b in zip(one.step(previous, 0.7, 1), two.step(previous, 0.7, 1), strict=True):
        assert torch.equal(a, b)


@given(sweeps())
def test_grouping_federations_changes_no_bit(sweep: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    previous = torch.zeros(sweep[0].shape[0], sweep[0].shape[2])
    whole, parts = summed(previous, sweep, []), Total(previous)
    for f in range(len(previous)):
        parts.add(slice(f, f + 1), *(part[f : f + 1] for part in sweep))
    for a, b in zip(whole.step(previous, 1.0, 1), parts.step(previous, 1.0, 1), strict=True):
        assert torch.equal(a, b)


def test_what_is_refused_counts_for_nothing_even_if_it_is_not_finite() -> None:
    previous = torch.zeros(2, 2)
    released = torch.tensor([[[1.0, 2.0], [math.nan, math.inf]], [[math.nan, 0.0], [math.inf, 0.0]]])
    accepted = torch.tensor([[True, False], [False, False]])
    total = Total(previous)
    total.add(slice(0, 2), released, released, torch.full((2, 2), 0.5), accepted)
    new, size = total.step(previous + 5, 1.0, 1)
    assert new.tolist() == [[1.0, 2.0], [5.0, 5.0]], "the second federation keeps its model"
    assert size.tolist() == pytest.approx([math.sqrt(5), 0.0])
    assert total.count.tolist() == [1, 0]


def test_too_few_accepted_releases_leave_a_federation_unchanged() -> None:
    previous = torch.tensor([[9.0], [9.0]])
    total = Total(previous)
    accepted = torch.tensor([[True, True, False], [True, False, False]])
    total.add(slice(0, 2), torch.ones(2, 3, 1), torch.zeros(2, 3, 1), torch.ones(2, 3), accepted)
    assert total.step(previous, 1.0, 2)[0].tolist() == [[1.0], [9.0]]


def test_every_federation_may_have_its_own_rate() -> None:
    previous = torch.tensor([[0.0], [0.0], [0.0]])
    total = Total(previous)
    total.add(slice(0, 3), torch.full((3, 2, 1), 4.0), torch.zeros(3, 2, 1), torch.ones(3, 2), torch.ones(3, 2) > 0)
    new, _ = total.step(previous, torch.tensor([1.0, 0.5, 0.25]), 1)
    assert new.tolist() == [[4.0], [2.0], [1.0]]
