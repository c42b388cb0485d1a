"""Theorem distortion_stationarity_mt and its convex corollary, on the inner trajectories that a run's clients take.

The subproblems are those of the rounds after a snapshot: the clients' own mini-batches, noise and settings. Where gamma
is too large for the theorem, the same subproblems are learned again with gamma = 1/(2*L_alpha), and labelled so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..mechanism.distortion import draw_bounds
from ..mechanism.registry import Mechanism
from ..mechanism.release import local_step
from ..mechanism.schedule import schedule, schedule_starts
from ..models.batched import Objective
from .context import Row, Scene, assumption, average, compared, figure, given, largest, row, smallest
from .estimates import curvature, in_annulus, ratios
from .theory import Trajectory, distortion_bounds, follow, gap_bound, slack

THEOREM, COROLLARY = "distortion_stationarity", "convex_suboptimality"
QUANTITIES = {"residual": "mean |R_m|^2", "stationarity": "mean s(alpha)^2"}
OWN, SMALLER = "as configured", "gamma = 1/(2 L)"


@dataclass(frozen=True)
class Problems:
    """R subproblems of one federation at one snapshot."""

    objective: Objective  # of the implementation
    exact: Objective  # in float64
    local: Tensor  # [R, P]
    init: Tensor  # [R, P]
    lower: Tensor  # [R]
    upper: Tensor  # [R]
    steps: int
    lr: Tensor  # [R]
    negative_norm: Tensor  # [R]

    def run(self, lr: Tensor, visit: list[Tensor] | None = None) -> Trajectory:
        """Learn all distortions; ``visit`` receives the iterate half-way."""

        def keep(step: int, alpha: Tensor) -> None:
            if visit is not None and step == (self.steps + 1) // 2:
                visit.append(alpha)

        gradient = partial(self.objective.gradient, out=torch.empty_like(self.local))
        return follow(
            gradient, self.exact.loss, self.local, self.init, self.lower, self.upper, self.steps,
            lr.unsqueeze(-1), self.negative_norm.unsqueeze(-1), self.exact.gradient, keep,
        )  # fmt: skip


def inner_rows(scene: Scene, index: int, when: int) -> list[Row]:
    """The rows of one federation at one snapshot."""
    about, kind, s = scene.about(index, when), _kind(scene, index), scene.sweep.settings
    rows = [_corollary(scene, about)]
    reason = _uncovered(kind, s.steps)
    problems = None if reason else subproblems(scene, index, when)
    if problems is not None and bool((problems.lr <= 0).any()):
        reason = "gamma is zero for some client: nothing is learned"
    if reason or problems is None:
        name = "exact Euclidean projection" if kind.learns and s.steps else "inner trajectory"
        check = assumption(name, "not covered", reason)
        whole: dict[str, Any] = {"status": "not covered", "reason": reason, "assumptions": [check]}
        return [row(about, THEOREM, what, OWN, **whole) for what in QUANTITIES.values()] + rows
    middle: list[Tensor] = []
    seen = problems.run(problems.lr, middle)
    points = [problems.init, *middle, seen.last]
    smoothness = _smoothness(scene, problems, points, [seen])
    found = _rows(scene, about, problems, seen, problems.lr, smoothness, OWN)
    scene.tell(f"{scene.sweep.federations[index].label()} at {when}: inner loop", 2.0)
    if bool((problems.lr * smoothness["value"] >= 1).any()):
        gamma = 0.5 / smoothness["value"]
        lr = torch.full_like(problems.lr, gamma)
        again = problems.run(lr)
        wider = _smoothness(scene, problems, [again.last], [seen, again])
        both = figure(max(wider["value"], smoothness["value"]), wider["count"] + smoothness["count"], "largest")
        found += _rows(scene, about, problems, again, lr, both, SMALLER)
        scene.tell(f"{scene.sweep.federations[index].label()} at {when}: smaller gamma", 1.0)
    return found + rows


def _corollary(scene: Scene, about: Row) -> Row:
    """What the convex corollary asks for, and why no run of a network on the annulus meets it."""
    s = scene.sweep.settings
    weighted = schedule_starts(s.negative_norm)
    most = max(max(part) for part in schedule(s.negative_norm, weighted, s.clients, "negative_norm"))
    single = s.dtype != "float64"
    return row(
        about, COROLLARY, "f - min f", OWN, status="not covered",
        reason="the annulus has a hole and a network's loss is not convex",
        assumptions=[
            assumption("convex feasible set", "violated", "the annulus has a hole"),
            assumption("convex objective", "violated", "a network's loss is not convex in its weights"),
            assumption("no negative norm", "violated" if most > 0 else "held", negative_norm=given(most)),
            assumption("exact gradient", "violated" if single else "held", f"gradients are {s.dtype}"),
        ],
    )  # fmt: skip


def _kind(scene: Scene, index: int) -> Mechanism:
    return next(b.kind for b in scene.sweep.blocks if b.federations.start <= index < b.federations.stop)


def _uncovered(kind: Mechanism, steps: int) -> str:
    if not kind.learns or steps == 0:
        return "nothing is learned: there is no inner trajectory"
    if kind.norm != "l2":
        return "the L1 map is radial, not a Euclidean projection"
    if not kind.on_sphere:
        return "stated for an annulus fixed before the draw; here each draw sets its own"
    return ""


def subproblems(scene: Scene, index: int, when: int) -> Problems:
    """What the clients of a federation would learn on in the rounds after ``when``, batch by batch."""
    params = scene.weights[when]
    sweep, kind, most = scene.sweep.at(when, params), _kind(scene, index), scene.options.subproblems
    s, fed, slots = sweep.settings, sweep.federations[index], sweep.draws.slots
    rounds = list(range(when + 1, when + 1 + -(-most // slots)))
    tables = sweep.tables(rounds)
    streams = [sweep.draws.seeds.index(fed.seed) * slots + slot for slot in range(slots)]
    place = [sweep.draws.streams * list(sweep.datasets).index(fed.dataset) + stream for stream in streams]
    examples = tables.batches[:, place].flatten(0, 1)[:most]  # [R, L*B]
    count = len(examples)

    def rows(table: Tensor) -> Tensor:
        return table[:, index].flatten()[:count]

    protection = s.protection(kind, rows(tables.scale), rows(tables.lr), rows(tables.negative_norm))
    x, y = sweep.images[examples], sweep.labels[examples]
    parts = [slice(i * s.batch, (i + 1) * s.batch) for i in range(s.local_steps)]
    objectives = [sweep.batched.at(x[:, part], y[:, part]) for part in parts]
    local, _ = local_step(objectives, params[index].expand(count, -1).contiguous(), s.eta, protection)
    noise = sweep.draw(rounds, kind.noise, streams).flatten(0, 1)[:count]
    init, lower, upper = draw_bounds(noise, protection)
    exact = scene.twin.at(x[:, parts[-1]].double(), y[:, parts[-1]])
    return Problems(
        objectives[-1], exact, local, init, lower, upper, s.steps, rows(tables.lr), rows(tables.negative_norm)
    )


def _smoothness(scene: Scene, problems: Problems, points: list[Tensor], seen: list[Trajectory]) -> Row:
    """L_alpha from below: Hessians at iterates, pairs in the annulus, and every step that was taken.

    The negative norm adds at most lambda/lower to the loss's own; the steps are measured on phi as a whole.
    """
    base, gradient = problems.local.double(), problems.exact.gradient
    low, high = problems.lower.double(), problems.upper.double()
    extra = (problems.negative_norm / problems.lower).double()
    found = [
        curvature(gradient, base + point.double(), scene.options.power, seed=scene.options.seed + i)[0] + extra
        for i, point in enumerate(points)
    ]
    pair = [in_annulus(base, low, high, scene.options.seed + i) for i in (101, 102)]
    found += [ratios(gradient, base + pair[0], base + pair[1]) + extra]
    found += [ratios(gradient, base + points[-1].double(), base + pair[0]) + extra]
    for one in seen:
        found += [one.lipschitz.flatten(), one.descent.flatten()]
    return largest(torch.cat(found))


def _rows(
    scene: Scene, about: Row, problems: Problems, seen: Trajectory, lr: Tensor, smoothness: Row, setting: str
) -> list[Row]:
    error = figure(float(seen.error.max().sqrt()), seen.error.numel(), "largest")
    gap = gap_bound(
        problems.exact.loss(problems.local.double() + problems.init.double()),
        problems.init.double(), problems.upper.double(), problems.negative_norm.double(),
    )  # fmt: skip
    held = _assumptions(scene, problems, seen, lr, smoothness, error)
    evaluable = bool((lr * smoothness["value"] < 1).all())
    limit = 1 / smoothness["value"] if smoothness["value"] else float("inf")
    constants = {
        "L_alpha": smoothness, "nu_alpha": error, "Delta_phi": largest(gap), "gamma": largest(lr),
        "largest gamma": given(limit), "M": given(problems.steps),
    }  # fmt: skip
    rows = []
    for name, quantity in QUANTITIES.items():
        sums = getattr(seen, name).cumsum(0)  # [M, R]
        means = sums / torch.arange(1, len(sums) + 1, device=sums.device).unsqueeze(1)
        common: dict[str, Any] = {"measured": average(means[-1]), "constants": constants, "assumptions": held}
        if not evaluable:
            rows.append(row(about, THEOREM, quantity, setting, **common, curve={"measured": means.mean(1).tolist()}))
            continue
        inexact, exact = (_table(gap, lr, smoothness["value"], len(sums), nu, name) for nu in (error["value"], None))
        bound = inexact.to(means)
        rows.append(
            row(
                about, THEOREM, quantity, setting, **common,
                bound=average(bound[-1]), holds=bool((means <= bound).all()), margin=_margin(bound, means),
                exact_gradient_bound=average(exact[-1]),
                curve={"measured": means.mean(1).tolist(), "bound": bound.mean(1).tolist()},
            )
        )  # fmt: skip
    return rows


def _table(gap: Tensor, lr: Tensor, smoothness: float, steps: int, error: float | None, name: str) -> Tensor:
    """The bound of every subproblem for every number of steps up to M: ``[M, R]``."""
    columns = list(zip(gap.tolist(), lr.tolist(), strict=True))
    return torch.tensor(
        [
            [getattr(distortion_bounds(g, gamma, smoothness, m, error), name) for g, gamma in columns]
            for m in range(1, steps + 1)
        ],
        dtype=torch.float64,
    )


def _margin(bound: Tensor, measured: Tensor) -> float | None:
    ratio = bound / measured.clamp_min(1e-300)
    return float(ratio.min()) if bool(torch.isfinite(measured).all()) else 0.0


def _assumptions(
    scene: Scene, problems: Problems, seen: Trajectory, lr: Tensor, smoothness: Row, error: Row
) -> list[Row]:
    limit = given(1 / smoothness["value"] if smoothness["value"] else float("inf"))
    allowed = slack(problems.init.dtype)
    apart = largest(seen.projection)
    start = largest((torch.linalg.vector_norm(problems.init.double(), dim=1) / problems.lower.double() - 1).abs())
    smooth = assumption(
        "smooth objective on the annulus",
        "held" if scene.smooth else "violated",
        "every layer is smooth and the annulus compact; the value of L_alpha is an estimate from below"
        if scene.smooth
        else "a layer is not known to be smooth: no L_alpha need exist",
        L_alpha=smoothness,
    )
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
        smooth,
        compared("gamma < 1/L_alpha", largest(lr), limit, strict=True,
                 note="L_alpha errs from below: a violation is certain, the contrary is not"),
        assumption("gradient error <= nu_alpha", "held", "by its estimate: the largest error seen", nu_alpha=error),
    ]  # fmt: skip
