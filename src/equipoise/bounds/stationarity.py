"""Theorem 5.1 and Corollary 5.1 of Zhang et al. (arXiv:2305.15148), on the distortions that a run's clients learn.

Where gamma is too large for the theorem, the same subproblems are learned again with gamma = 1/(2*L_alpha), and
labelled so. The corollary is about convex problems, which no run of a network on an annulus is.
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
    Row,
    assumption,
    average,
    compared,
    figure,
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
SMALLER = "gamma = 1/(2 L)"


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
    if bool((problems.gamma * smoothness["value"] >= 1).any()):
        gamma = torch.full_like(problems.gamma, 0.5 / smoothness["value"])
        again = problems.learn(gamma)
        wider = problems.smoothness([again.last], [learned, again], context.options)
        both = figure(max(wider["value"], smoothness["value"]), wider["count"] + smoothness["count"], "largest")
        rows += _theorem(context, about, problems, again, gamma, both, SMALLER)
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
    context: BoundsContext, about: Row, problems: Subproblems, learned: Trajectory, gamma: Tensor, smoothness: Row,
    setting: str,
) -> list[Row]:  # fmt: skip
    """Both bounds of the theorem on distortions learned with step sizes ``gamma``."""
    error = figure(float(learned.error.max().sqrt()), learned.error.numel(), "largest")
    init, upper = problems.init.double(), problems.upper.double()
    gap = gap_bound(problems.exact.loss(problems.local.double() + init), init, upper, problems.negative_norm.double())
    limit = given(1 / smoothness["value"] if smoothness["value"] else float("inf"))
    common: dict[str, Any] = {
        "constants": {
            "L_alpha": smoothness, "nu_alpha": error, "Delta_phi": largest(gap), "gamma": largest(gamma),
            "largest gamma": limit, "M": given(problems.steps),
        },
        "assumptions": _assumptions(problems, learned, gamma, limit, smoothness, error, context.smooth),
    }  # fmt: skip
    covered = bool((gamma * smoothness["value"] < 1).all())
    rows = []
    for name, quantity in QUANTITIES.items():
        sums = getattr(learned, name).cumsum(0)  # [M, R]
        means = sums / torch.arange(1, len(sums) + 1, device=sums.device).unsqueeze(1)
        sides: dict[str, Any] = {"measured": average(means[-1]), "curve": {"measured": means.mean(1).tolist()}}
        if covered:
            known = (name, gap, gamma, smoothness["value"], len(sums))
            bound, exact = (_bounds(*known, nu_alpha).to(means) for nu_alpha in (error["value"], None))
            sides |= {
                "bound": average(bound[-1]), "holds": bool((means <= bound).all()), "margin": _margin(bound, means),
                "exact_gradient_bound": average(exact[-1]),
            }  # fmt: skip
            sides["curve"]["bound"] = bound.mean(1).tolist()
        rows.append(result_row(about, THEOREM, quantity, setting, **sides, **common))
    return rows


def _bounds(name: str, gap: Tensor, gamma: Tensor, smoothness: float, steps: int, error: float | None) -> Tensor:
    """The bound of every subproblem for every number of steps up to M: ``[M, R]``."""
    columns = list(zip(gap.tolist(), gamma.tolist(), strict=True))
    return torch.tensor(
        [
            [getattr(distortion_bounds(delta, step, smoothness, m, error), name) for delta, step in columns]
            for m in range(1, steps + 1)
        ],
        dtype=torch.float64,
    )


def _margin(bound: Tensor, measured: Tensor) -> float:
    ratio = bound / measured.clamp_min(1e-300)
    return float(ratio.min()) if bool(torch.isfinite(measured).all()) else 0.0


def _assumptions(
    problems: Subproblems, learned: Trajectory, gamma: Tensor, limit: Row, smoothness: Row, error: Row, smooth: bool
) -> list[Row]:
    """Assumption 5.1 and what the theorem says of the steps; ``smooth`` is whether every layer is known to be."""
    allowed, apart = slack(problems.init.dtype), largest(learned.projection)
    start = largest((intensity(problems.init.double()) / problems.lower.double() - 1).abs())
    return [
        assumption(
            "0 < lower < upper", "held" if bool((problems.lower < problems.upper).all()) else "violated",
            lower=smallest(problems.lower), upper=largest(problems.upper),
        ),
        assumption(
            "exact Euclidean projection", "held" if apart["value"] <= allowed else "violated",
            f"up to rounding: {allowed:g} of the norm", apart=apart,
        ),
        assumption("start in the annulus", "held" if start["value"] <= allowed else "violated", apart=start),
        assumption("phi bounded below", "held", "cross-entropy is never negative: phi >= -loss - lambda*upper"),
        assumption(
            "smooth objective on the annulus", "held" if smooth else "violated",
            "every layer is smooth and the annulus compact; the value of L_alpha is an estimate from below"
            if smooth else "a layer is not known to be smooth: no L_alpha need exist",
            L_alpha=smoothness,
        ),
        compared("gamma < 1/L_alpha", largest(gamma), limit, strict=True,
                 note="L_alpha errs from below: a violation is certain, the contrary is not"),
        assumption("gradient error <= nu_alpha", "held", "by its estimate: the largest error seen", nu_alpha=error),
    ]  # fmt: skip
