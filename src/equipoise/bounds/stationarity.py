"""Theorem 5.1 and Corollary 5.1 of Zhang et al. (arXiv:2305.15148), on the distortions that a run's clients learn.

Every subproblem is checked with constants of its own: whether gamma is below 1/L_alpha for one batch says nothing about
another. Where gamma is too large for any, all are learned again, each with at most 1/(2*L_alpha), and labelled so. The
corollary is about convex problems, which no run of a network on an annulus is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..mechanism.intensity import intensity
from ..mechanism.registry import Mechanism, get_mechanism
from ..mechanism.schedule import schedule, schedule_starts
from .context import BoundsContext
from .rows import (
    CONFIGURED,
    IN_PART,
    Row,
    assumption,
    average,
    figure,
    for_each,
    given,
    largest,
    not_covered,
    result_row,
    smallest,
)
from .subproblems import Subproblems, subproblems
from .theory import distortion_bounds, gap_bound
from .trajectory import Trajectory, slack

THEOREM, COROLLARY = "distortion_stationarity", "convex_suboptimality"
QUANTITIES = {"residual": "mean |R_m|^2", "stationarity": "mean s(alpha)^2"}
SMALLER = "gamma <= 1/(2 L)"


def stationarity_rows(context: BoundsContext, index: int, round_number: int) -> list[Row]:
    """The rows of one federation at one snapshot, the theorem's and the corollary's."""
    about, fed, s = context.about(index, round_number), context.sweep.federations[index], context.sweep.settings
    mechanism = get_mechanism(fed.mechanism)
    reason = _uncovered(mechanism, s.protection.steps)
    problems = None if reason else subproblems(context, index, round_number)
    if problems is not None and bool((problems.gamma <= 0).any()):
        reason = "gamma is zero for some client: nothing is learned"
    if reason or problems is None:
        name = "exact Euclidean projection" if mechanism.learns and s.protection.steps else "inner trajectory"
        rows = [not_covered(about, THEOREM, quantity, name, reason) for quantity in QUANTITIES.values()]
        return [*rows, _corollary(context, about)]
    middle: list[Tensor] = []
    learned = problems.learn(problems.gamma, middle)
    smoothness = problems.smoothness([problems.init, *middle, learned.last], [learned], context.options)
    rows = _theorem(context, about, problems, learned, problems.gamma, smoothness, CONFIGURED)
    context.tell(f"{fed.label()} at {round_number}: inner loop", 2.0)
    own = smoothness.amax(0)  # [R]
    if bool((problems.gamma * own >= 1).any()):
        gamma = torch.minimum(problems.gamma, (0.5 / own).to(problems.gamma))
        again = problems.learn(gamma)
        wider = problems.smoothness([again.last], [learned, again], context.options)
        rows += _theorem(context, about, problems, again, gamma, torch.cat([smoothness, wider]), SMALLER)
        context.tell(f"{fed.label()} at {round_number}: smaller gamma", 1.0)
    return [*rows, _corollary(context, about)]


def _uncovered(mechanism: Mechanism, steps: int) -> str:
    """Why the theorem does not cover a mechanism; empty where it does."""
    if not mechanism.learns or steps == 0:
        return "nothing is learned: there is no inner trajectory"
    if mechanism.norm != "l2":
        return "the L1 map is radial, not a Euclidean projection"
    if not mechanism.on_sphere:
        return "stated for an annulus fixed before the draw; here each draw sets its own"
    return ""


def _corollary(context: BoundsContext, about: Row) -> Row:
    """What the convex corollary asks for, and why no run of a network on the annulus meets it."""
    s = context.sweep.settings
    weights = schedule(
        s.protection.negative_norm, schedule_starts(s.protection.negative_norm), s.protection.clients, "negative_norm"
    )
    most, single = max(max(row) for row in weights), s.run.dtype != "float64"
    return result_row(
        about, COROLLARY, "f - min f", CONFIGURED, status="not covered",
        reason="the annulus has a hole and a network's loss is not convex",
        assumptions=[
            assumption("convex feasible set", "violated", "the annulus has a hole"),
            assumption("convex objective", "violated", "a network's loss is not convex in its weights"),
            assumption("no negative norm", "violated" if most > 0 else "held", negative_norm=given(most)),
            assumption("exact gradient", "violated" if single else "held", f"gradients are {s.run.dtype}"),
        ],
    )  # fmt: skip


# -- the theorem ---------------------------------------------------------------------------------------------------


def _theorem(
    context: BoundsContext, about: Row, problems: Subproblems, learned: Trajectory, gamma: Tensor, smoothness: Tensor,
    setting: str,
) -> list[Row]:  # fmt: skip
    """Both bounds of the theorem on distortions learned with step sizes ``gamma``, each with constants of its own."""
    own, error = smoothness.amax(0), learned.error.amax(0).sqrt()  # [R]
    init, upper = problems.init.double(), problems.upper.double()
    gap = gap_bound(problems.exact.loss(problems.local.double() + init), init, upper, problems.negative_norm.double())
    constants = {
        "L_alpha": figure(float(own.max()), smoothness.numel(), "largest"), "nu_alpha": largest(error),
        "Delta_phi": largest(gap), "gamma": largest(gamma), "largest gamma": smallest(1 / own),
        "M": given(problems.steps),
    }  # fmt: skip
    checks, covered = _assumptions(problems, learned, gamma, own, error, context.smooth)
    whole = "applies" if bool(covered.all()) else IN_PART if bool(covered.any()) else "does not apply"
    rows = []
    for name, quantity in QUANTITIES.items():
        sides = _sides(name, learned, gap, gamma, own, error)
        sides["subproblems"]["covered"] = int(covered.sum())
        row = result_row(
            about, THEOREM, quantity, setting, status=whole, constants=constants, assumptions=checks, **sides
        )
        rows.append(row)
    return rows


def _sides(name: str, learned: Trajectory, gap: Tensor, gamma: Tensor, own: Tensor, error: Tensor) -> dict[str, Any]:
    """Both sides of one inequality, in the subproblems that have a bound; the measured one alone where none has."""
    sums = getattr(learned, name).cumsum(0)  # [M, R]
    means = sums / torch.arange(1, len(sums) + 1, device=sums.device).unsqueeze(1)
    bounded = gamma * own < 1
    shown = means[:, bounded] if bool(bounded.any()) else means
    counts = {"count": len(own), "checked": int(bounded.sum()), "violated": 0}
    sides: dict[str, Any] = {
        "measured": average(shown[-1]), "curve": {"measured": shown.mean(1).tolist()},
        "subproblems": {**counts, "L_alpha": own.tolist(), "gamma": gamma.tolist()},
    }  # fmt: skip
    if not bool(bounded.any()):
        return sides
    known = [part[bounded].tolist() for part in (gap, gamma, own, error)]
    bound, exact = (_bounds(name, len(sums), known, noisy).to(means) for noisy in (True, False))
    broken = ~(shown <= bound).all(0)  # a measurement that is no number breaks it too
    sides["subproblems"]["violated"] = int(broken.sum())
    sides["curve"]["bound"] = bound.mean(1).tolist()
    return sides | {
        "bound": average(bound[-1]), "holds": not bool(broken.any()), "margin": _margin(bound, shown),
        "exact_gradient_bound": average(exact[-1]),
    }  # fmt: skip


def _bounds(name: str, steps: int, known: list[list[float]], noisy: bool) -> Tensor:
    """The bound of every subproblem for every number of steps up to M, ``[M, R]``; ``noisy`` as its gradients were."""
    columns = list(zip(*known, strict=True))
    return torch.tensor(
        [
            [
                getattr(distortion_bounds(delta, step, smooth, m, error if noisy else None), name)
                for delta, step, smooth, error in columns
            ]
            for m in range(1, steps + 1)
        ],
        dtype=torch.float64,
    )


def _margin(bound: Tensor, measured: Tensor) -> float:
    ratio = bound / measured.clamp_min(1e-300)
    return float(ratio.min()) if bool(torch.isfinite(measured).all()) else 0.0


def _assumptions(
    problems: Subproblems, learned: Trajectory, gamma: Tensor, own: Tensor, error: Tensor, smooth: bool
) -> tuple[list[Row], Tensor]:
    """Assumption 5.1 and what the theorem says of the steps; and the subproblems in which none was seen to fail.

    ``own`` and ``error`` are L_alpha and nu_alpha of each; ``smooth`` is whether every layer is known to be.
    """
    allowed, apart = slack(problems.init.dtype), learned.projection.amax(0)
    start = (intensity(problems.init.double()) / problems.lower.double() - 1).abs()
    worst = int((gamma * own).argmax())
    held = {
        "annulus": (problems.lower > 0) & (problems.lower < problems.upper),
        "projection": apart <= allowed, "start": start <= allowed, "gamma": gamma * own < 1,
    }  # fmt: skip
    checks = [
        for_each("0 < lower < upper", held["annulus"], lower=smallest(problems.lower), upper=largest(problems.upper)),
        for_each(
            "exact Euclidean projection", held["projection"], f"up to rounding: {allowed:g} of the norm",
            apart=largest(apart),
        ),
        for_each("start in the annulus", held["start"], apart=largest(start)),
        assumption("phi bounded below", "held", "cross-entropy is never negative: phi >= -loss - lambda*upper"),
        assumption(
            "smooth objective on the annulus", "held" if smooth else "violated",
            "every layer is smooth and the annulus compact; the value of L_alpha is an estimate from below"
            if smooth else "a layer is not known to be smooth: no L_alpha need exist",
            L_alpha=largest(own),
        ),
        for_each(
            "gamma < 1/L_alpha", held["gamma"], "L_alpha errs from below: a violation is certain, the contrary is not",
            value=figure(float(gamma[worst]), len(own), "worst"),
            limit=figure(float(1 / own[worst]), len(own), "worst"),
        ),
        assumption(
            "gradient error <= nu_alpha", "held", "by its estimate: the largest error seen", nu_alpha=largest(error)
        ),
    ]  # fmt: skip
    return checks, torch.stack(list(held.values())).all(0) & smooth
