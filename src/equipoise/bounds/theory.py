"""The paper's bounds as functions of their constants, and what they bound, measured on tensors.

==================================  ====================================  ==================================
result of the paper                 right-hand side                       measured by
==================================  ====================================  ==================================
thm distortion_stationarity_mt      ``distortion_bounds``                 ``follow``, ``stationarity``
cor convex_suboptimality_mt         ``convex_gap_bound``                  the objective at the last iterate
lem the_gap_of_f_W (one step)       ``one_step_bound``                    a round, repeated
thm converge_rate_mt                ``gradient_norm_bound``, ``..limit``  the gradient norms of a run
lem bound_for_privacy_leakage       ``leakage_score``, ``leakage_bound``  the distances of an attack
remark, conditional preservation    ``preserved``                         the intensity of every release
==================================  ====================================  ==================================

Each function refuses step sizes for which its result says nothing, with a ``ConfigError`` that names the largest one
allowed. The constants come from ``estimates.py``; nothing here says that an assumption holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConfigError
from ..mechanism.budget import LeakageBudget
from ..mechanism.distortion import learn_distortion
from ..mechanism.intensity import STABILISER, intensity, scale_clip

Gradient = Callable[[Tensor], Tensor]
"""``[R, P] -> [R, P]``."""
Loss = Callable[[Tensor], Tensor]
"""``[R, P] -> [R]``."""
SHORT = 1e-4
"""A step below this part of the distortion's norm says nothing about smoothness."""


def _check(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"Expected {name}={value!r} to be a finite number >= 0.", "Measure it again.")


def _check_step(name: str, step: float, limit: float, strict: bool) -> None:
    if not 0 < step <= limit or (strict and step == limit):
        sign = "<" if strict else "<="
        raise ConfigError(
            f"Expected 0 < {name}={step:.6g} {sign} {limit:.6g}: the result says nothing about other step sizes.",
            f"Use a smaller {name}.",
        )


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise ConfigError(f"Expected {name}={count!r} to be >= 1.", "A bound on an average needs something to average.")


# -- the inner problem: Algorithm 2 on the annulus -----------------------------------------------------------------


def slack(dtype: torch.dtype) -> float:
    """How far from a sphere, relative to its radius, rounding may leave a projected point.

    >>> slack(torch.float32), slack(torch.float64)
    (1e-05, 1e-09)
    """
    return 1e-9 if dtype == torch.float64 else 1e-5


def stationarity(
    gradient: Tensor, alpha: Tensor, lower: Tensor, upper: Tensor, tolerance: float | None = None
) -> Tensor:
    """``dist(0, gradient + N_A(alpha))`` for the annulus A (eq. l2_annular_feasible_set): ``[R, P] -> [R]``.

    N_A is the limiting normal cone: ``{0}`` inside, the outward ray on the outer sphere, the inward ray on the inner
    one, the whole radial line where the two coincide. A point within ``tolerance`` of a sphere, relative to its
    radius, counts as on it (``slack`` of the dtype unless given). Outside A the cone is empty and the distance
    infinite; a row that is not finite has distance NaN.

    >>> alpha, one = torch.tensor([[0.0, 1.0]]), torch.ones(1)
    >>> [stationarity(torch.tensor([[3.0, s]]), alpha, one, 2 * one).item() for s in (4.0, -4.0)]
    [3.0, 5.0]
    """
    near = slack(alpha.dtype) if tolerance is None else tolerance
    size = intensity(alpha)
    radial = (gradient * alpha).sum(-1) / size.clamp_min(STABILISER)
    across = intensity(gradient - (radial / size.clamp_min(STABILISER)).unsqueeze(-1) * alpha)
    inner, outer = size <= lower * (1 + near), size >= upper * (1 - near)
    absorbed = (inner & (radial >= 0)) | (outer & (radial <= 0))  # on both: either way, so the whole line
    found = torch.where(absorbed, across, intensity(gradient))
    outside = (size < lower * (1 - near)) | (size > upper * (1 + near))
    return torch.where(torch.isfinite(size), torch.where(outside, torch.inf, found), torch.nan)


@dataclass(frozen=True)
class StationarityBounds:
    """Bounds on the averages over m = 1..M."""

    residual: float  # of |R_m|^2: E_M
    stationarity: float  # of s(alpha_{m+1})^2


def distortion_bounds(
    gap: float, gamma: float, smoothness: float, steps: int, error: float | None = None
) -> StationarityBounds:
    """thm distortion_stationarity_mt, eq. nonconvex_step_stationarity and eq. nonconvex_normal_stationarity.

    ``gap`` is Delta_phi, ``smoothness`` L_alpha, ``error`` nu_alpha. Without ``error`` the gradient is exact and the
    constants are those of eq. exact_nonconvex_step_stationarity and eq. exact_nonconvex_normal_stationarity.

    >>> distortion_bounds(gap=1.0, gamma=0.5, smoothness=1.0, steps=4)
    StationarityBounds(residual=2.0, stationarity=4.5)
    >>> distortion_bounds(gap=1.0, gamma=0.5, smoothness=1.0, steps=4, error=0.5)
    StationarityBounds(residual=8.0, stationarity=36.5)
    >>> distortion_bounds(gap=1.0, gamma=1.0, smoothness=1.0, steps=4)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Expected 0 < gamma=1 < 1: ...
    """
    _check(gap=gap, smoothness=smoothness, error=error or 0.0)
    _check_count("steps", steps)
    _check_step("gamma", gamma, 1 / smoothness if smoothness else math.inf, strict=True)
    left = 1 - smoothness * gamma
    if error is None:
        residual = 2 * gap / (gamma * left * steps)
        return StationarityBounds(residual, (1 + smoothness * gamma) ** 2 * residual)
    residual = 4 * gap / (gamma * left * steps) + 4 * error**2 / left**2
    return StationarityBounds(residual, 2 * (1 + smoothness * gamma) ** 2 * residual + 2 * error**2)


def gap_bound(loss: Tensor, alpha: Tensor, upper: Tensor, negative_norm: Tensor | float) -> Tensor:
    """An upper bound on Delta_phi for a loss that is never negative; ``loss`` is that of the model at alpha_1.

    phi(a) = loss(base + a) - loss(base) - lambda*|a| is at least -loss(base) - lambda*upper on the annulus, by proof;
    so phi(alpha_1) - inf phi <= loss(base + alpha_1) + lambda*(upper - |alpha_1|).

    >>> gap_bound(torch.tensor([2.0]), torch.tensor([[3.0, 4.0]]), torch.tensor([10.0]), 0.1)
    tensor([2.5000])
    """
    return loss + negative_norm * (upper - intensity(alpha))


def convex_gap_bound(squared_distance: float, gamma: float, smoothness: float, steps: int) -> float:
    """cor convex_suboptimality_mt, eq. per_round_suboptimality: from |alpha_1 - alpha*|^2 or a squared diameter.

    For a convex set and a convex objective without a negative norm: no annulus with a hole, and no network.

    >>> convex_gap_bound(squared_distance=4.0, gamma=0.5, smoothness=2.0, steps=8)
    0.5
    """
    _check(squared_distance=squared_distance, smoothness=smoothness)
    _check_count("steps", steps)
    _check_step("gamma", gamma, 1 / smoothness if smoothness else math.inf, strict=False)
    return squared_distance / (2 * gamma * steps)


@dataclass(frozen=True)
class Trajectory:
    """Algorithm 2 on R subproblems, as numbers per step; of the iterates only the last is kept."""

    phi: Tensor  # [M + 1, R] at alpha_1 .. alpha_{M+1}
    residual: Tensor  # [M, R] |R_m|^2
    stationarity: Tensor  # [M, R] s(alpha_{m+1})^2
    error: Tensor  # [M, R] |G_m - grad phi(alpha_m)|^2
    lipschitz: Tensor  # [M, R] |grad phi(alpha_{m+1}) - grad phi(alpha_m)| / |alpha_{m+1} - alpha_m|
    descent: Tensor  # [M, R] the L that eq. restricted_smooth_descent needs; both are 0 where the step was SHORT
    projection: Tensor  # [M, R] distance of alpha_{m+1} from the float64 projection, relative to its norm
    last: Tensor  # [R, P]


@dataclass(frozen=True)
class _Seen:
    """One iterate in float64: phi, the gradient of the loss there, and that of phi."""

    alpha: Tensor  # [R, P]
    phi: Tensor  # [R]
    slope: Tensor  # [R, P]
    full: Tensor  # [R, P]


def follow(
    gradient: Gradient,
    loss: Loss,
    base: Tensor,
    init: Tensor,
    lower: Tensor,
    upper: Tensor,
    steps: int,
    lr: Tensor | float,
    negative_norm: Tensor | float = 0.0,
    exact: Gradient | None = None,
    visit: Callable[[int, Tensor], None] | None = None,
) -> Trajectory:
    """Run ``learn_distortion`` one step at a time on the L2 annulus, and measure every step in float64.

    ``gradient`` is the implementation's, ``exact`` and ``loss`` the objective's own in float64 (``exact`` is
    ``gradient`` unless given). ``visit`` sees (m, alpha_{m+1}) and must not keep it.

    >>> one, start = torch.ones(1).double(), torch.tensor([[0.0, 2.0]]).double()
    >>> bowl = lambda w: w.square().sum(1) / 2
    >>> seen = follow(lambda w: w, bowl, torch.zeros(1, 2).double(), start, one, 2 * one, steps=3, lr=0.5)
    >>> seen.phi.flatten().tolist(), seen.stationarity.flatten().tolist()
    ([2.0, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0])
    """
    _check_count("steps", steps)
    bounds, near, ground = (lower.double(), upper.double()), slack(init.dtype), base.double()
    gamma, pull = (_column(torch.as_tensor(value, dtype=torch.float64)) for value in (lr, negative_norm))
    gamma, pull = gamma.to(ground.device), pull.to(ground.device)
    truth, origin, used = exact or gradient, loss(ground), torch.empty_like(init)

    def listened(point: Tensor) -> Tensor:
        return used.copy_(gradient(point)).clone()

    def look(alpha: Tensor) -> _Seen:
        here = alpha.double()
        size = intensity(here).unsqueeze(-1).clamp_min(STABILISER)
        slope = truth(ground + here)
        value = loss(ground + here) - origin - (pull * size).expand(len(here), 1)[:, 0]
        return _Seen(here, value, slope, slope - pull * here / size)

    alpha = init
    seen = look(alpha)
    values, rows = [seen.phi], []
    for step in range(1, steps + 1):
        alpha = learn_distortion(
            listened, base, alpha, lower, upper, norm="l2", steps=1, gamma=lr, negative_norm=negative_norm
        )
        after = look(alpha)
        rows.append(_measured(seen, after, used.double() - seen.slope, gamma, bounds, near))
        values.append(after.phi)
        seen = after
        if visit:
            visit(step, alpha)
    residual, apart, error, lipschitz, descent, projection = torch.stack(rows, dim=1)
    return Trajectory(torch.stack(values), residual, apart, error, lipschitz, descent, projection, alpha)


def _measured(
    before: _Seen, after: _Seen, error: Tensor, gamma: Tensor, bounds: tuple[Tensor, Tensor], near: float
) -> Tensor:
    """The rows of a ``Trajectory`` for one step."""
    move = after.alpha - before.alpha
    still = intensity(move) <= SHORT * intensity(before.alpha)  # the ratios would show rounding, not smoothness
    length = intensity(move).masked_fill(still, 1.0)
    target = scale_clip(before.alpha - gamma * (before.full + error), *bounds, "l2")
    bend = intensity(after.full - before.full) / length
    climb = 2 * (after.phi - before.phi - (before.full * move).sum(-1)) / length.square()
    return torch.stack(
        [
            intensity(move / gamma).square(),
            stationarity(after.full, after.alpha, *bounds, near).square(),
            intensity(error).square(),
            bend.masked_fill(still, 0.0),
            climb.masked_fill(still, 0.0),
            intensity(after.alpha - target) / intensity(target),
        ]
    )


def _column(value: Tensor) -> Tensor:
    return value.view(-1, 1) if value.dim() == 1 else value


# -- the outer problem: Algorithm 1 --------------------------------------------------------------------------------


def one_step_bound(decrease: float, eta: float, smoothness: float, variance: float, distortion: float) -> float:
    """lem the_gap_of_f_W_for_adjancent_w_mt, eq. one_step_stationarity: a bound on eta/2 * E|grad F(W_{t-1})|^2.

    ``decrease`` is E[F(W_{t-1}) - F(W_t)], ``smoothness`` L_F, ``variance`` sigma_g^2, ``distortion`` E|Delta_t|^2.

    >>> one_step_bound(decrease=1.0, eta=0.25, smoothness=1.0, variance=4.0, distortion=2.0)
    11.25
    """
    _check(smoothness=smoothness, variance=variance, distortion=distortion)
    _check_step("eta", eta, 1 / (4 * smoothness) if smoothness else math.inf, strict=False)
    return decrease + smoothness * eta**2 * variance + (1 / eta + smoothness) * distortion


def gradient_norm_bound(
    decrease: float, rounds: int, eta: float, smoothness: float, variance: float, distortion: float
) -> float:
    """thm converge_rate_mt, eq. converge_rate_mt: a bound on the average of E|grad F(W_{t-1})|^2 over T rounds.

    ``decrease`` is F(W_0) - E[F(W_T)], or F(W_0) - F_*; ``distortion`` is the average of E|Delta_t|^2.

    >>> gradient_norm_bound(decrease=1.0, rounds=8, eta=0.25, smoothness=1.0, variance=4.0, distortion=2.0)
    83.0
    """
    _check_count("rounds", rounds)
    remains = gradient_norm_limit(eta, smoothness, variance, distortion)
    return 2 * decrease / (eta * rounds) + remains


def gradient_norm_limit(eta: float, smoothness: float, variance: float, distortion: float) -> float:
    """thm converge_rate_mt, last display: what remains as T grows, where ``distortion`` = rho^2 >= E|Delta_t|^2.

    >>> gradient_norm_limit(eta=0.25, smoothness=1.0, variance=4.0, distortion=2.0)
    82.0
    """
    _check(smoothness=smoothness, variance=variance, distortion=distortion)
    _check_step("eta", eta, 1 / (4 * smoothness) if smoothness else math.inf, strict=False)
    return 2 * smoothness * eta * variance + 2 * (1 / eta**2 + smoothness / eta) * distortion


# -- leakage -------------------------------------------------------------------------------------------------------


def leakage_score(D: float, c_a: float, c_b: float, c_2: float, p: float, iterations: int) -> LeakageBudget:
    """The score of lem bound_for_privacy_leakage with its four constants; ``.threshold`` is the lemma's on beta.

    >>> round(leakage_score(D=56, c_a=0.5, c_b=1.0, c_2=0.005, p=0.5, iterations=1600).threshold, 9)
    0.0005
    """
    if not 0 < c_a <= c_b < math.inf:
        raise ConfigError(f"Expected 0 < c_a={c_a!r} <= c_b={c_b!r} < inf.", "Measure both on the same pairs.")
    return LeakageBudget(D=D, c_a=c_a, c_res=c_2 * c_b / c_a, p=p, iterations=iterations)


def leakage_bound(score: LeakageBudget, beta: float) -> float | None:
    """lem bound_for_privacy_leakage, eq. direct_privacy_upper_bound; None below the threshold, where there is none.

    >>> score = leakage_score(D=10, c_a=1.0, c_b=1.0, c_2=4.0, p=0.5, iterations=16)
    >>> leakage_bound(score, 3.0), leakage_bound(score, 1.9)
    (0.9, None)
    """
    return score.leakage(beta) if beta >= score.threshold else None


def leakage_step_bound(c_a: float, D: float, beta: float, mean_residual: float) -> float:
    """The inequality inside the lemma's proof that needs no envelope: leakage <= 1 - c_a*(beta - mean r_i)/D.

    >>> leakage_step_bound(c_a=0.5, D=10.0, beta=4.0, mean_residual=2.0)
    0.9
    """
    return 1 - c_a * (beta - mean_residual) / D


def preserved(score: LeakageBudget, budget: float, beta: float) -> bool:
    """Remark on conditional preservation: whether an intensity beta satisfies the max-form lower bound of a budget.

    If so, and if the lemma's conditions hold, leakage <= score.leakage(beta) <= budget.

    >>> [preserved(LeakageBudget(), 0.96, b) for b in (15.9, 16.0)]
    [False, True]
    """
    return beta >= score.lower(budget)
