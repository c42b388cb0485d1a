"""LearnDistortion against a literal row-by-row Algorithm 2, and where the answer is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.mechanism.distortion import as_drawn, draw_bounds, learn_distortion, on_inner_sphere, update
from equipoise.mechanism.intensity import Norm, intensity
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import MECHANISMS

Gradient = Callable[[list[float]], list[float]]


def literal(
    gradient: Gradient,
    base: list[float],
    alpha: list[float],
    lower: float,
    upper: float,
    norm: Norm,
    steps: int,
    gamma: float,
    coefficient: float,
) -> list[float]:
    """Algorithm 2, l. 12-18, for one distortion, in plain Python."""
    for _ in range(steps):
        g = gradient([w + a for w, a in zip(base, alpha, strict=True)])
        euclid = math.sqrt(sum(a * a for a in alpha))
        total = [gi - coefficient * a / euclid for gi, a in zip(g, alpha, strict=True)]
        trial = [a - gamma * t for a, t in zip(alpha, total, strict=True)]
        size = sum(abs(a) for a in trial) if norm == "l1" else math.sqrt(sum(a * a for a in trial))
        factor = lower / size if size < lower else upper / size if size > upper else 1.0
        alpha = [factor * a for a in trial]
    return alpha


def waves(w: Tensor) -> Tensor:
    """A non-convex, non-separable gradient: of sum(sin(3 w)) / 3 + (sum w)^2 / 20."""
    return torch.cos(3 * w) + w.sum(-1, keepdim=True) / 10


def waves_of_a_row(w: list[float]) -> list[float]:
    return [math.cos(3 * x) + sum(w) / 10 for x in w]


@settings(max_examples=60)
@given(
    st.sampled_from(["l1", "l2"]),
    st.integers(1, 5),
    st.integers(2, 7),
    st.integers(1, 12),
    st.integers(0, 2**31),
)
def test_the_batched_learner_is_algorithm_2_row_by_row(norm: Norm, r: int, p: int, steps: int, seed: int) -> None:
    local = torch.Generator().manual_seed(seed)
    base = torch.randn(r, p, dtype=torch.float64, generator=local)
    noise = torch.randn(r, p, dtype=torch.float64, generator=local)
    lower = 0.1 + 3 * torch.rand(r, dtype=torch.float64, generator=local)
    if norm == "l2":
        init, lower, upper = on_inner_sphere(noise, lower)
    else:
        init, lower, upper = as_drawn(noise)
    gamma = torch.rand(r, 1, dtype=torch.float64, generator=local)
    coefficient = torch.rand(r, 1, dtype=torch.float64, generator=local)
    learned = learn_distortion(
        waves, base, init, lower, upper, norm=norm, steps=steps, gamma=gamma, negative_norm=coefficient
    )
    for i in range(r):
        expected = literal(
            waves_of_a_row, base[i].tolist(), init[i].tolist(), lower[i].item(), upper[i].item(),
            norm, steps, gamma[i].item(), coefficient[i].item(),
        )  # fmt: skip
        assert learned[i].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


# --- closed forms ------------------------------------------------------------------------------------------


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def test_the_minimum_inside_the_annulus_is_found() -> None:
    """Minimise |w - c|^2 / 2 over alpha, W = base + alpha: alpha = c - base, here of norm 1.5 in [1, 2]."""
    base = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    goal = base + torch.tensor([[0.9, 1.2]], dtype=torch.float64)
    init = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    learned = learn_distortion(
        lambda w: w - goal, base, init, one(1.0), one(2.0), steps=200, gamma=0.2, negative_norm=0.0
    )
    torch.testing.assert_close(learned, goal - base, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("away", "radius"), [(0.2, 1.0), (9.0, 2.0)])
def test_a_minimum_outside_is_projected_onto_the_annulus(away: float, radius: float) -> None:
    direction = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    init = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    learned = learn_distortion(
        lambda w: w - away * direction,
        torch.zeros_like(init),
        init,
        one(1.0),
        one(2.0),
        norm="l2",
        steps=1000,
        gamma=0.2,
        negative_norm=0.0,
    )
    torch.testing.assert_close(learned, radius * direction, rtol=0, atol=1e-9)


def test_the_negative_norm_term_alone_grows_the_l2_norm_by_gamma_lambda_a_step() -> None:
    init = torch.tensor([[3.0, 4.0], [-6.0, 8.0]], dtype=torch.float64)
    for norm in ("l1", "l2"):
        lower = intensity(init, norm)
        grown = learn_distortion(
            torch.zeros_like, init, init, lower, 2 * lower, norm=norm, steps=7, gamma=0.5, negative_norm=0.1
        )
        torch.testing.assert_close(intensity(grown), intensity(init) + 7 * 0.5 * 0.1, rtol=1e-12, atol=0)
        unit = init / intensity(init).unsqueeze(-1)
        torch.testing.assert_close(grown / intensity(grown).unsqueeze(-1), unit, rtol=1e-12, atol=0)


def test_the_negative_norm_term_ends_on_the_outer_sphere() -> None:
    init = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    grown = learn_distortion(torch.zeros_like, init, init, one(5.0), one(10.0), steps=3, gamma=1.0, negative_norm=1e3)
    torch.testing.assert_close(grown, 2 * init)


def test_the_gradient_is_taken_at_the_distorted_model() -> None:
    """With gradient W the first step is alpha - gamma * (base + alpha), not alpha - gamma * alpha."""
    base, init = torch.tensor([[10.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    learned = learn_distortion(lambda w: w, base, init, one(0.1), one(100.0), steps=1, gamma=0.5, negative_norm=0.0)
    torch.testing.assert_close(learned, torch.tensor([[-5.0, 0.5]]).double())


# --- rows, steps, side effects -----------------------------------------------------------------------------


def test_every_row_has_its_own_step_size_and_coefficient() -> None:
    init = torch.ones(3, 4, dtype=torch.float64)
    bounds = torch.full((3,), 0.01).double(), torch.full((3,), 100.0).double()
    gamma, coefficient = torch.tensor([[0.0], [0.125], [0.25]]).double(), torch.tensor([[9.0], [0.0], [1.0]]).double()
    learned = learn_distortion(torch.ones_like, init, init, *bounds, steps=1, gamma=gamma, negative_norm=coefficient)
    expected = torch.tensor([1.0, 1 - 0.125, 1 - 0.25 + 0.25 * 1.0 / 2.0]).double()  # |init|_2 = 2
    torch.testing.assert_close(learned, expected.unsqueeze(-1).expand(3, 4))


def test_without_steps_the_initial_distortion_comes_back() -> None:
    init = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    size = intensity(init)
    assert torch.equal(learn_distortion(waves, init, init, size, 2 * size, steps=0), init)


def test_no_input_is_modified(generator: torch.Generator) -> None:
    base, init = torch.randn(3, 5, generator=generator), torch.randn(3, 5, generator=generator)
    gamma, coefficient = torch.rand(3, 1, generator=generator), torch.rand(3, 1, generator=generator)
    lower = intensity(init)
    given_tensors = [base, init, lower, 2 * lower, gamma, coefficient]
    kept = [t.clone() for t in given_tensors]
    learn_distortion(waves, *given_tensors[:4], steps=5, gamma=gamma, negative_norm=coefficient)
    assert all(torch.equal(a, b) for a, b in zip(given_tensors, kept, strict=True))


def test_a_gradient_that_returns_the_same_tensor_every_time_is_not_corrupted() -> None:
    constant = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    kept = constant.clone()
    init = torch.tensor([[5.0, 5.0, 5.0]], dtype=torch.float64)
    learned = learn_distortion(
        lambda w: constant, init, init, one(0.1), one(1e3), steps=4, gamma=0.5, negative_norm=0.0
    )
    assert torch.equal(constant, kept)
    torch.testing.assert_close(learned, init - 4 * 0.5 * kept)


def test_a_gradient_that_writes_into_one_buffer_is_fine() -> None:
    """The engine's own gradient function does that, to save memory."""
    init = torch.tensor([[5.0, 1.0]], dtype=torch.float64)
    buffer = torch.empty_like(init)
    learned = learn_distortion(
        lambda w: torch.mul(w, 0.5, out=buffer),
        0 * init,
        init,
        one(0.1),
        one(1e3),
        norm="l2",
        steps=3,
        gamma=0.2,
        negative_norm=0.0,
    )
    torch.testing.assert_close(learned, init * 0.9**3)


def test_a_row_that_diverges_does_not_touch_its_neighbours() -> None:
    init = torch.tensor([[3.0, 4.0], [3.0, 4.0]], dtype=torch.float64)
    size = intensity(init)
    sick = learn_distortion(lambda w: w * torch.tensor([[1.0], [math.nan]]), init, init, size, 2 * size, steps=3)
    well = learn_distortion(lambda w: w, init[:1], init[:1], size[:1], 2 * size[:1], steps=3)
    assert torch.equal(sick[:1], well)
    assert not torch.isfinite(sick[1]).any()


# --- where it starts ---------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.floats(1e-3, 1e3), st.floats(1.0, 5.0))
def test_pl_starts_on_the_inner_sphere_in_the_direction_of_the_noise(seed: int, lower: float, factor: float) -> None:
    noise = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    init, low, high = on_inner_sphere(noise, noise.new_full((2,), lower), factor)
    torch.testing.assert_close(intensity(init), noise.new_full((2,), lower), rtol=1e-12, atol=0)
    torch.testing.assert_close(init / lower, noise / intensity(noise).unsqueeze(-1), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(high, low * factor)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_ls_starts_at_the_draw_with_bounds_from_that_draw(norm: Norm) -> None:
    noise = torch.tensor([[3.0, -4.0], [1.0, 0.0]])
    init, lower, upper = as_drawn(noise, 1.5, norm)
    assert torch.equal(init, noise)
    assert lower.tolist() == ([7.0, 1.0] if norm == "l1" else [5.0, 1.0])
    torch.testing.assert_close(upper, 1.5 * lower)


# --- from standard noise and a budget ----------------------------------------------------------------------


def test_the_bounds_of_a_draw_follow_from_the_kind_of_budget() -> None:
    """PL: the budget is the intensity itself, whatever was drawn. LS and GS: the scale of the draw."""
    noise, scale = torch.tensor([[3.0, -4.0], [0.0, 2.0]]), torch.tensor([10.0, 0.5])
    expected = {
        "pl-learn": ([[6.0, -8.0], [0.0, 0.5]], [10.0, 0.5]),
        "ls-learn": ([[30.0, -40.0], [0.0, 1.0]], [70.0, 1.0]),
        "gs-static": ([[30.0, -40.0], [0.0, 1.0]], [50.0, 1.0]),
        "laplace-dp": ([[30.0, -40.0], [0.0, 1.0]], [70.0, 1.0]),
    }
    for name, (init, lower) in expected.items():
        actual = draw_bounds(noise, Protection(MECHANISMS[name], scale, factor=3.0))
        torch.testing.assert_close(actual[0], torch.tensor(init))
        torch.testing.assert_close(actual[1], torch.tensor(lower))
        torch.testing.assert_close(actual[2], 3 * torch.tensor(lower))


def test_one_scale_serves_every_row_and_takes_the_type_of_the_noise() -> None:
    for dtype in (torch.float32, torch.float64):
        noise = torch.ones(3, 4, dtype=dtype)
        for name in ("pl-identical", "ls-static"):
            single = draw_bounds(noise, Protection(MECHANISMS[name], 0.1))
            each = draw_bounds(noise, Protection(MECHANISMS[name], torch.full((3,), 0.1, dtype=dtype)))
            for one, two in zip(single, each, strict=True):
                assert one.dtype == dtype
                assert torch.equal(one, two)
    assert torch.equal(noise, torch.ones_like(noise)), "the noise itself stays as it is"


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_buffers_change_no_bit_of_the_plain_update(norm: Norm, generator: torch.Generator) -> None:
    """The loop that runs reuses two tensors; ``update`` is Algorithm 2 as it is written."""
    base, init, pull = (torch.randn(3, 40, generator=generator) for _ in range(3))
    lower = intensity(init, norm)
    steps = {"gamma": torch.tensor([[0.1], [0.5], [0.01]]), "negative_norm": 0.3}
    alpha = init
    for _ in range(6):
        alpha = update(alpha, (base + alpha) * pull, lower, 2 * lower, norm, **steps)
    result = learn_distortion(lambda w: w * pull, base, init, lower, 2 * lower, norm=norm, steps=6, **steps)
    assert torch.equal(result, alpha)
    followed = learn_distortion(
        lambda w: w * pull, base.clone().requires_grad_(), init, lower, 2 * lower, norm=norm, steps=6, **steps
    )
    assert torch.equal(result, followed.detach())
    assert followed.requires_grad
