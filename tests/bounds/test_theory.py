"""The paper's bounds on problems whose constants are known in closed form, and on the same with bugs planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from equipoise.bounds.theory import (
    convex_gap_bound,
    distortion_bounds,
    gap_bound,
    gradient_norm_bound,
    gradient_norm_limit,
    leakage_bound,
    leakage_score,
    leakage_step_bound,
    one_step_bound,
    preserved,
)
from equipoise.bounds.trajectory import follow
from equipoise.errors import BudgetError, ConfigError
from equipoise.mechanism import distortion
from equipoise.mechanism.budget import LeakageBudget
from tests.bounds.problems import (
    PROBLEMS,
    STEPS,
    Problem,
    check_distortion,
    flipped,
    logistic,
    numbers,
    true_clip,
    without_upper,
)

# --- Theorem 5.1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_the_theorem_holds_for_every_number_of_steps(name: str, share: float) -> None:
    problem = PROBLEMS[name]
    gamma = share / problem.smoothness
    seen = problem.run(gamma)
    check_distortion(problem, seen, gamma)
    check_distortion(problem, seen, gamma, error=0.0)  # the inexact form is the weaker one
    assert bool((seen.phi.min(0).values >= problem.infimum - 1e-9).all())
    assert float(seen.projection.max()) < 1e-12
    assert float(seen.lipschitz.max()) <= problem.smoothness * (1 + 1e-9)
    assert float(seen.descent.max()) <= problem.smoothness * (1 + 1e-9)


@pytest.mark.parametrize("name", ["quadratic, pulled outwards", "quadratic with a negative norm", "logistic"])
@pytest.mark.parametrize("error", [0.05, 1.0])
@pytest.mark.parametrize("kind", ["random", "against"])
def test_the_theorem_holds_with_planted_gradient_errors(name: str, error: float, kind: str) -> None:
    problem = PROBLEMS[name]
    gamma = 0.5 / problem.smoothness
    draws = torch.nn.functional.normalize(numbers(300, *problem.init.shape, seed=10), dim=2) * error
    step = iter(range(300))

    def wrong(w: Tensor) -> Tensor:
        true = problem.gradient(w)
        if kind == "against":
            return true - error * torch.nn.functional.normalize(true, dim=1)
        return true + draws[next(step)]

    seen = problem.run(gamma, steps=300, gradient=wrong)
    assert torch.allclose(seen.error, torch.full_like(seen.error, error**2), rtol=1e-6)
    check_distortion(problem, seen, gamma, error=error)


def test_the_exact_bounds_fail_where_the_gradient_is_not_exact() -> None:
    problem = PROBLEMS["quadratic"]
    gamma = 0.5 / problem.smoothness
    fixed = torch.nn.functional.normalize(numbers(*problem.init.shape, seed=9), dim=1)
    seen = problem.run(gamma, gradient=lambda w: problem.gradient(w) + fixed)
    check_distortion(problem, seen, gamma, error=1.0)
    with pytest.raises(AssertionError, match="stationarity"):
        check_distortion(problem, seen, gamma)
    with pytest.raises(AssertionError):
        check_distortion(problem, seen, gamma, error=0.02)


# --- constants of the formulas ----------------------------------------------------------------------------------


def test_the_constants_of_the_inner_theorem() -> None:
    gap, gamma, smooth, steps, nu = 3.0, 0.2, 2.0, 7, 0.3
    left = 1 - smooth * gamma
    e_m = 4 * gap / (gamma * left * steps) + 4 * nu**2 / left**2
    result = distortion_bounds(gap, gamma, smooth, steps, nu)
    assert result.residual == pytest.approx(e_m)
    assert result.stationarity == pytest.approx(2 * (1 + smooth * gamma) ** 2 * e_m + 2 * nu**2)
    exact = distortion_bounds(gap, gamma, smooth, steps)
    assert exact.residual == pytest.approx(2 * gap / (gamma * left * steps))
    assert exact.stationarity == pytest.approx(2 * (1 + smooth * gamma) ** 2 * gap / (gamma * left * steps))


@pytest.mark.parametrize("gamma", [0.5, 0.6, 0.0, -1.0, math.nan])
def test_step_sizes_that_the_inner_theorem_does_not_cover(gamma: float) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        distortion_bounds(1.0, gamma, 2.0, 3)


@pytest.mark.parametrize(
    "change", [{"gap": -1.0}, {"gap": math.nan}, {"smoothness": math.inf}, {"error": -1.0}, {"steps": 0}]
)
def test_impossible_constants_are_refused(change: dict[str, float]) -> None:
    given = {"gap": 1.0, "gamma": 0.1, "smoothness": 2.0, "steps": 3, "error": 0.1} | change
    with pytest.raises(ConfigError, match=next(iter(change))):
        distortion_bounds(**given)  # type: ignore[arg-type]


def test_the_gap_is_bounded_by_proof() -> None:
    problem = logistic()
    init = problem.init
    bound = gap_bound(problem.loss(init), init, problem.upper, 0.2)
    seen = follow(
        problem.gradient,
        problem.loss,
        torch.zeros_like(init),
        init,
        problem.lower,
        problem.upper,
        steps=300,
        gamma=0.5,
        negative_norm=0.2,
    )
    assert bool((seen.phi[0] - seen.phi.min(0).values <= bound).all())
    assert torch.allclose(bound, problem.loss(init) + 0.2 * (2.0 - 0.5))


# --- the convex corollary ---------------------------------------------------------------------------------------


def convex(inside: bool) -> tuple[Problem, Tensor]:
    """An ill-conditioned bowl on a ball, its minimum inside or outside; and the best point of the ball."""
    eigen = torch.logspace(-2, 1, 8, dtype=torch.float64)
    centre = torch.nn.functional.normalize(numbers(1, 8, seed=15), dim=1) * (0.5 if inside else 3.0)
    best = centre
    if not inside:  # |best| = 1, by bisection on the multiplier of the constraint
        low, high = 0.0, 1e3
        for _ in range(200):
            middle = (low + high) / 2
            best = eigen * centre / (eigen + middle)
            low, high = (middle, high) if float(best.norm()) > 1 else (low, middle)
    zero = torch.zeros(1).double()
    init = true_clip(numbers(1, 8, seed=16), zero + 1, zero + 1)
    problem = Problem(
        lambda w: eigen * (w - centre), lambda w: (eigen * (w - centre).square()).sum(1) / 2,
        init, zero, zero + 1, float(eigen.max()), zero,
    )  # fmt: skip
    return problem, best


def check_convex(problem: Problem, best: Tensor, gamma: float, claimed: float) -> None:
    distance = float((problem.init - best).square().sum())
    assert distance <= 4.0  # so that the bound by the squared diameter holds where this one does
    seen = problem.run(gamma)
    least = float(problem.loss(best) - problem.loss(torch.zeros_like(best)))
    for m in range(1, STEPS + 1):
        gap = float(seen.phi[m]) - least
        assert -1e-9 <= gap <= convex_gap_bound(distance, gamma, claimed, m) + 1e-9, m


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_the_convex_corollary_holds_for_every_number_of_steps(inside: bool, share: float) -> None:
    problem, best = convex(inside)
    check_convex(problem, best, share / problem.smoothness, problem.smoothness)


def test_the_convex_corollary_fails_with_steps_too_large() -> None:
    problem, best = convex(inside=True)
    gamma = 2.5 / problem.smoothness
    with pytest.raises(ConfigError, match="gamma"):
        convex_gap_bound(1.0, gamma, problem.smoothness, 1)
    with pytest.raises(AssertionError):
        check_convex(problem, best, gamma, claimed=problem.smoothness / 3)


@pytest.mark.parametrize("broken", [flipped, without_upper])
def test_the_convex_corollary_fails_with_a_broken_projection(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Tensor]
) -> None:
    problem, best = convex(inside=False)
    monkeypatch.setattr(distortion, "scale_clip", broken)
    with pytest.raises(AssertionError):
        check_convex(problem, best, 1 / problem.smoothness, problem.smoothness)


def test_the_constant_of_the_convex_corollary() -> None:
    assert convex_gap_bound(3.0, 0.25, 4.0, 6) == pytest.approx(3.0 / (2 * 0.25 * 6))


# --- the outer problem: a noisy quadratic, in expectation and without sampling ----------------------------------

HESSIAN = torch.linspace(0.1, 2.0, 6, dtype=torch.float64)
NOISE = torch.linspace(
    0.2, 0.7, 6, dtype=torch.float64
)  # standard deviations of the gradient, coordinate by coordinate
VARIANCE, SMOOTHNESS = float(NOISE.square().sum()), 2.0


def expected(mean: Tensor, spread: Tensor, weight: Tensor) -> float:
    """E of sum weight*W^2 where W has the given mean and variance."""
    return float((weight * (mean.square() + spread)).sum())


def outer_run(eta: float, shift: Tensor, rounds: int) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of W_0 .. W_T under W <- W - eta*(H W + noise) + shift."""
    mean, spread = torch.full((6,), 3.0).double(), torch.zeros(6).double()
    states = [(mean, spread)]
    for _ in range(rounds):
        mean = (1 - eta * HESSIAN) * mean + shift
        spread = (1 - eta * HESSIAN).square() * spread + eta**2 * NOISE.square()
        states.append((mean, spread))
    return states


SHIFTS = {"none": torch.zeros(6).double(), "random": numbers(6, seed=17) / 10, "uphill": torch.full((6,), 0.4).double()}


def check_outer(eta: float, shift: Tensor, smoothness: float, variance: float, distortion: float) -> None:
    states = outer_run(eta, shift, 400)
    losses = [expected(*state, HESSIAN) / 2 for state in states]
    slopes = [expected(*state, HESSIAN.square()) for state in states]
    for t in range(1, len(states)):
        right = one_step_bound(losses[t - 1] - losses[t], eta, smoothness, variance, distortion)
        assert eta / 2 * slopes[t - 1] <= right + 1e-12, ("one step", t)
        mean = sum(slopes[:t]) / t
        for fall in (losses[0] - losses[t], losses[0]):  # F_* = 0
            assert mean <= gradient_norm_bound(fall, t, eta, smoothness, variance, distortion) + 1e-12, ("average", t)
    late = [expected(*state, HESSIAN.square()) for state in outer_run(eta, shift, 6000)[-50:]]
    assert sum(late) / len(late) <= gradient_norm_limit(eta, smoothness, variance, distortion), "limit"


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_the_one_step_lemma_and_the_average_hold_for_every_round(shift: str, share: float) -> None:
    planted = SHIFTS[shift]
    check_outer(share / (4 * SMOOTHNESS), planted, SMOOTHNESS, VARIANCE, float(planted.square().sum()))


def test_a_distortion_left_out_is_found() -> None:
    with pytest.raises(AssertionError, match="one step"):
        check_outer(1 / (4 * SMOOTHNESS), SHIFTS["uphill"], SMOOTHNESS, VARIANCE, 0.0)


def test_the_constants_of_the_outer_bounds() -> None:
    fall, rounds, eta, smooth, var, size = 1.5, 9, 0.05, 3.0, 0.7, 0.4
    step = fall + smooth * eta**2 * var + (1 / eta + smooth) * size
    assert one_step_bound(fall, eta, smooth, var, size) == pytest.approx(step)
    limit = 2 * smooth * eta * var + 2 * (1 / eta**2 + smooth / eta) * size
    assert gradient_norm_limit(eta, smooth, var, size) == pytest.approx(limit)
    assert gradient_norm_bound(fall, rounds, eta, smooth, var, size) == pytest.approx(2 * fall / (eta * rounds) + limit)
    # summed over rounds and divided by eta*T/2, the lemma is the theorem
    assert 2 / (eta * rounds) * (rounds * (step - fall) + fall) == pytest.approx(
        gradient_norm_bound(fall, rounds, eta, smooth, var, size)
    )


@pytest.mark.parametrize("eta", [0.1, 0.0, -0.1, math.nan])
def test_step_sizes_that_the_outer_bounds_do_not_cover(eta: float) -> None:
    for call in (
        lambda: one_step_bound(1.0, eta, 3.0, 1.0, 1.0),
        lambda: gradient_norm_limit(eta, 3.0, 1.0, 1.0),
        lambda: gradient_norm_bound(1.0, 2, eta, 3.0, 1.0, 1.0),
    ):
        with pytest.raises(ConfigError, match="eta"):
            call()
    assert one_step_bound(1.0, 1 / 12, 3.0, 1.0, 1.0) > 0  # the largest one allowed
    with pytest.raises(ConfigError, match="rounds=0"):
        gradient_norm_bound(1.0, 0, 0.01, 3.0, 1.0, 1.0)


# --- leakage: an isometry, so that c_a = c_b = 1/eta ------------------------------------------------------------

ETA, DIAMETER, HORIZON = 0.5, 400.0, 100


def linear_attack(residuals: Tensor, beta: float) -> tuple[float, float]:
    """Leakage of an attacker whose matching residuals are planted, as near to the truth as they allow; and their sum.

    g(d) = W - eta*Q d with an orthogonal Q: a residual of r leaves the guess at distance |beta - r| / eta or more.
    """
    turn = torch.linalg.qr(numbers(12, 12, seed=18))[0]
    truth, away = numbers(12, seed=19), torch.nn.functional.normalize(numbers(1, 12, seed=20), dim=1)[0]
    released = -ETA * turn @ truth + beta * away
    distances, seen = [], []
    for r in residuals.tolist():
        guess = turn.t() @ (-(released - r * away) / ETA)
        seen.append(float((-ETA * turn @ guess - released).norm()))
        distances.append(float((guess - truth).norm()))
    return 1 - sum(distances) / len(distances) / DIAMETER, sum(seen)


def test_the_leakage_lemma_holds_where_the_envelope_does() -> None:
    p, round_number = 0.5, torch.arange(1, HORIZON + 1, dtype=torch.float64)
    for c_2 in (0.1, 1.0, 5.0):
        residuals = c_2 * (round_number**p - (round_number - 1) ** p)  # sums to c_2 * i^p at every horizon
        score = leakage_score(DIAMETER, 1 / ETA, 1 / ETA, c_2, p, HORIZON)
        for beta in (score.threshold, 2 * score.threshold, 20.0):
            leakage, total = linear_attack(residuals, beta)
            assert total == pytest.approx(c_2 * HORIZON**p)
            bound = leakage_bound(score, beta)
            assert bound is not None
            assert leakage <= bound
            step = leakage_step_bound(1 / ETA, DIAMETER, beta, total / HORIZON)
            assert leakage <= step + 1e-12
            assert step <= bound + 1e-12  # the proof weakens it further


def test_the_step_of_the_proof_is_tight() -> None:
    """Constant residuals along the distortion itself meet it with equality."""
    leakage, total = linear_attack(torch.full((10,), 3.0).double(), beta=8.0)
    assert leakage == pytest.approx(leakage_step_bound(1 / ETA, DIAMETER, 8.0, total / 10))


def test_an_attacker_outside_the_envelope_breaks_the_score() -> None:
    beta, p = 20.0, 0.5
    promised = leakage_score(DIAMETER, 1 / ETA, 1 / ETA, 0.01, p, HORIZON)
    leakage, total = linear_attack(torch.full((HORIZON,), beta).double(), beta)  # it finds the truth
    assert leakage == pytest.approx(1.0)
    assert leakage > promised.leakage(beta)
    own = leakage_score(DIAMETER, 1 / ETA, 1 / ETA, total / HORIZON**p, p, HORIZON)
    assert leakage_bound(own, beta) is None  # with the c_2 that it takes, the lemma says nothing
    assert beta < own.threshold


def test_the_threshold_and_the_score_of_the_lemma() -> None:
    D, c_a, c_b, c_2, p, horizon = 30.0, 0.4, 1.2, 0.8, 0.3, 50
    score = leakage_score(D, c_a, c_b, c_2, p, horizon)
    threshold = 2 * c_2 * c_b / c_a * horizon ** (p - 1)
    assert score.threshold == pytest.approx(threshold)
    assert leakage_bound(score, threshold * (1 - 1e-9)) is None
    value = 1 - (c_a * 5.0 + c_2 * c_b * horizon ** (p - 1)) / (4 * D)
    assert leakage_bound(score, 5.0) == pytest.approx(value)
    assert leakage_step_bound(c_a, D, 5.0, 2.0) == pytest.approx(1 - c_a * 3.0 / D)


@pytest.mark.parametrize("chi", [0.5, 0.96, 0.995, 0.99999])
def test_the_lower_bound_of_the_remark_preserves_the_budget(chi: float) -> None:
    D, c_a, c_b, c_2, p, horizon = 56.0, 0.56, 1.0, 0.0056, 0.5, 1600
    score = leakage_score(D, c_a, c_b, c_2, p, horizon)
    decay = horizon ** (p - 1)
    lower = max(2 * c_2 * c_b / c_a * decay, (4 * D * (1 - chi) - c_2 * c_b * decay) / c_a)
    assert score.lower(chi) == pytest.approx(lower)
    assert preserved(score, chi, lower * (1 + 1e-9))
    assert not preserved(score, chi, lower * (1 - 1e-6))
    bound = leakage_bound(score, lower)
    assert bound is not None
    assert bound <= chi + 1e-12
    assert score == LeakageBudget(D=D, c_a=c_a, c_res=c_2 * c_b / c_a, p=p, iterations=horizon)


def test_impossible_leakage_constants_are_refused() -> None:
    for c_a, c_b in ((2.0, 1.0), (0.0, 1.0), (1.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ConfigError, match="c_a"):
            leakage_score(56, c_a, c_b, 1.0, 0.5, 10)
    with pytest.raises(BudgetError, match="p="):
        leakage_score(56, 1.0, 1.0, 1.0, 1.0, 10)


def test_the_example_runs_and_shows_both_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "theorem.py"))
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines[1:]] == [1, 3, 10, 30, 100, 300]
