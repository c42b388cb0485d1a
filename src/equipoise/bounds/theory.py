"""The right-hand sides of the results of Zhang et al. (arXiv:2305.15148), as functions of their constants.

==============  =========================  ======================================  =================================
result          in bounds.json             right-hand side                         left-hand side
==============  =========================  ======================================  =================================
Theorem 5.1     distortion_stationarity    ``distortion_bounds``                   ``trajectory.follow``
Corollary 5.1   convex_suboptimality       ``convex_gap_bound``                    the objective at the last iterate
Lemma C.1       one_step                   ``one_step_bound``                      a round, repeated
Theorem 5.2     converge_rate              ``gradient_norm_bound``, its ``limit``  the gradient norms of a run
Lemma D.1       privacy_leakage            ``leakage_score``, ``leakage_bound``    the distances of an attack
Remark 1        conditional_preservation   ``preserved``                           the intensity of every release
==============  =========================  ======================================  =================================

Each function refuses step sizes for which its result says nothing, with a ``ConfigError`` that names the largest one
allowed. The constants come from ``estimates.py``; nothing here says that an assumption holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..errors import ConfigError
from ..mechanism.budget import LeakageBudget
from ..mechanism.intensity import intensity


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


def check_count(name: str, count: int) -> None:
    if count < 1:
        raise ConfigError(f"Expected {name}={count!r} to be >= 1.", "A bound on an average needs something to average.")


# -- the inner problem: Algorithm 2 on the annulus -----------------------------------------------------------------


@dataclass(frozen=True)
class StationarityBounds:
    """Bounds on the averages over m = 1..M."""

    residual: float  # of |R_m|^2: E_M
    stationarity: float  # of s(alpha_{m+1})^2


def distortion_bounds(
    gap: float, gamma: float, smoothness: float, steps: int, error: float | None = None
) -> StationarityBounds:
    """Theorem 5.1: how far from stationary the inner loop can be, on average over its steps.

    Args:
        gap: Delta_phi, what the objective can still fall by.
        gamma: the step size, below 1 / smoothness.
        smoothness: L_alpha.
        steps: M.
        error: nu_alpha; without it the gradient is exact, and the constants are the better ones that the theorem ends
            with.

    Returns:
        Bounds on the mean squares of the residual and of the distance from stationarity.

    >>> distortion_bounds(gap=1.0, gamma=0.5, smoothness=1.0, steps=4)
    StationarityBounds(residual=2.0, stationarity=4.5)
    >>> distortion_bounds(gap=1.0, gamma=0.5, smoothness=1.0, steps=4, error=0.5)
    StationarityBounds(residual=8.0, stationarity=36.5)
    >>> distortion_bounds(gap=1.0, gamma=1.0, smoothness=1.0, steps=4)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Expected 0 < gamma=1 < 1: ...
    """
    _check(gap=gap, smoothness=smoothness, error=error or 0.0)
    check_count("steps", steps)
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
    """Corollary 5.1, from |alpha_1 - alpha*|^2 or a squared diameter.

    For a convex set and a convex objective without a negative norm: no annulus with a hole, and no network.

    >>> convex_gap_bound(squared_distance=4.0, gamma=0.5, smoothness=2.0, steps=8)
    0.5
    """
    _check(squared_distance=squared_distance, smoothness=smoothness)
    check_count("steps", steps)
    _check_step("gamma", gamma, 1 / smoothness if smoothness else math.inf, strict=False)
    return squared_distance / (2 * gamma * steps)


# -- the outer problem: Algorithm 1 --------------------------------------------------------------------------------


def one_step_bound(decrease: float, eta: float, smoothness: float, variance: float, distortion: float) -> float:
    """Lemma C.1: a bound on eta/2 * E|grad F(W_{t-1})|^2.

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
    """Theorem 5.2: a bound on the average of E|grad F(W_{t-1})|^2 over T rounds.

    ``decrease`` is F(W_0) - E[F(W_T)], or F(W_0) - F_*; ``distortion`` is the average of E|Delta_t|^2.

    >>> gradient_norm_bound(decrease=1.0, rounds=8, eta=0.25, smoothness=1.0, variance=4.0, distortion=2.0)
    83.0
    """
    check_count("rounds", rounds)
    remains = gradient_norm_limit(eta, smoothness, variance, distortion)
    return 2 * decrease / (eta * rounds) + remains


def gradient_norm_limit(eta: float, smoothness: float, variance: float, distortion: float) -> float:
    """Theorem 5.2, its last display: what remains as T grows, where ``distortion`` = rho^2 >= E|Delta_t|^2.

    >>> gradient_norm_limit(eta=0.25, smoothness=1.0, variance=4.0, distortion=2.0)
    82.0
    """
    _check(smoothness=smoothness, variance=variance, distortion=distortion)
    _check_step("eta", eta, 1 / (4 * smoothness) if smoothness else math.inf, strict=False)
    return 2 * smoothness * eta * variance + 2 * (1 / eta**2 + smoothness / eta) * distortion


# -- leakage -------------------------------------------------------------------------------------------------------


def leakage_score(D: float, c_a: float, c_b: float, c_2: float, p: float, iterations: int) -> LeakageBudget:
    """The score of Lemma D.1 with its four constants; ``.threshold`` is the least beta that the lemma allows.

    >>> round(leakage_score(D=56, c_a=0.5, c_b=1.0, c_2=0.005, p=0.5, iterations=1600).threshold, 9)
    0.0005
    """
    if not 0 < c_a <= c_b < math.inf:
        raise ConfigError(f"Expected 0 < c_a={c_a!r} <= c_b={c_b!r} < inf.", "Measure both on the same pairs.")
    return LeakageBudget(D=D, c_a=c_a, c_res=c_2 * c_b / c_a, p=p, iterations=iterations)


def leakage_bound(score: LeakageBudget, beta: float) -> float | None:
    """Lemma D.1; None below the threshold, where it says nothing.

    >>> score = leakage_score(D=10, c_a=1.0, c_b=1.0, c_2=4.0, p=0.5, iterations=16)
    >>> leakage_bound(score, 3.0), leakage_bound(score, 1.9)
    (0.9, None)
    """
    return score.leakage(beta) if beta >= score.threshold else None


def leakage_step_bound(c_a: float, D: float, beta: float, mean_residual: float) -> float:
    """The inequality inside the proof of Lemma D.1 that needs no envelope: leakage <= 1 - c_a*(beta - mean r_i)/D.

    >>> leakage_step_bound(c_a=0.5, D=10.0, beta=4.0, mean_residual=2.0)
    0.9
    """
    return 1 - c_a * (beta - mean_residual) / D


def preserved(score: LeakageBudget, budget: float, beta: float) -> bool:
    """Remark 1: whether an intensity beta satisfies the max-form lower bound of a budget.

    If so, and if the lemma's conditions hold, leakage <= score.leakage(beta) <= budget.

    >>> [preserved(LeakageBudget(), 0.96, b) for b in (15.9, 16.0)]
    [False, True]
    """
    return beta >= score.lower(budget)
