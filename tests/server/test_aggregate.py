"""The embedded engine's server: running sums that agree with the intake's mean, however the clients are grouped."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.server.aggregate import Total
from equipoise.server.intake import Intake


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
def test_the_batched_form_agrees_with_the_intake(
    sweep: tuple[Tensor, Tensor, Tensor, Tensor], rate: float, least: int
) -> None:
    released, distortion, share, accepted = sweep
    previous = torch.ones(released.shape[0], released.shape[2])
    new, size = summed(previous, sweep, []).step(previous, rate, least)
    for f in range(len(released)):
        intake = Intake({"w": previous[f]}, round_number=1, max_norm=math.inf, max_weight_ratio=math.inf)
        for k in range(released.shape[1]):
            update = released[f, k] if accepted[f, k] else torch.full_like(released[f, k], math.nan)
            reason = intake.offer(str(k), {"w": update}, float(share[f, k]), 1)
            assert (reason is None) == bool(accepted[f, k])
        expected = intake.close(rate, least)
        torch.testing.assert_close(new[f], expected.parameters["w"], rtol=1e-6, atol=1e-6)
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
