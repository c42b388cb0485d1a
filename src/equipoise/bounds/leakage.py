"""Lemma bound_for_privacy_leakage and the remark on its preservation, against InvGrad on releases of public images.

All federations and snapshots are attacked in one batch. The matching residual of every iteration is read off the
gradients that the attack computes anyway; distances come from ``scoring.Trace``, as in an audit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attack.descent import Search
from ..attack.invgrad import invgrad
from ..attack.simulate import chunk, pieces
from ..attack.view import Server, View
from ..auditing import scores
from ..auditing.cells import Cell, server_of
from ..auditing.examine import released
from ..auditing.options import Options
from ..auditing.scoring import Trace
from ..auditing.targets import Materials, Targets, build_targets
from ..errors import AttackError, ConfigError, DataError, ModelError
from ..mechanism.budget import LeakageBudget
from ..mechanism.intensity import intensity
from ..mechanism.protection import NO_PROTECTION
from ..mechanism.registry import mechanism
from ..mechanism.schedule import schedule
from ..models.batched import Batched
from .context import Row, Scene, Status, assumption, average, compared, given, largest, row, smallest
from .estimates import Envelope, envelope, stretches
from .theory import leakage_bound, leakage_score, leakage_step_bound, preserved

LEMMA, REMARK = "privacy_leakage", "conditional_preservation"
QUANTITY, SCORE = "invgrad", "score"
CONFIGURED, ESTIMATED, STEP = "as configured", "estimated", "step of the proof"
LOOKS = 8
"""Iterations at which examples are set beside their reconstructions one by one."""


class Listening:
    """A ``Batched`` that shows the gradients an attack asks for; everything else is the original's."""

    def __init__(self, batched: Batched, heard: Callable[[Tensor], None]):
        self._batched, self._heard = batched, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batched, name)

    def differentiable(self, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        found = self._batched.differentiable(params, images, labels)
        self._heard(found.detach())
        return found


class Listener:
    """Residuals ``r_i`` ``[I, N]`` (eq. aggregate_matching_residual) of an attack under way.

    The first gradient that is asked for after iteration i is the one at its images: by iteration i + 1, or by the
    final look at the cost.
    """

    def __init__(self, server: Server, view: View, iterations: int):
        self.server = replace(server, batched=Listening(server.batched, self._heard))  # type: ignore[arg-type]
        self.view, self.eta = view, server.eta
        self.residuals = torch.zeros(iterations, len(view), dtype=torch.float64, device=view.released.device)
        self._waiting: tuple[Tensor, int] | None = None

    def watch(self, rows: Tensor, iteration: int) -> None:
        self._waiting = rows.to(self.residuals.device), iteration

    def _heard(self, gradient: Tensor) -> None:
        if self._waiting is not None:
            rows, iteration = self._waiting
            apart = self.view.update[rows] + self.eta * gradient[: len(rows)]
            self.residuals[iteration - 1, rows] = intensity(apart).double()
        self._waiting = None


@dataclass(frozen=True)
class Attacked:
    """What InvGrad made of the releases of one dataset: N rows, ``cells`` of equal size one after the other."""

    cells: list[tuple[int, int]]  # (federation, round)
    beta: Tensor  # [N] |alpha|_2 as it arrives
    leakage: Tensor  # [N]
    beyond: Tensor  # [N] share of distances beyond D
    farthest: Tensor  # [N] largest distance seen
    ratios: Tensor  # [pairs, N] |d1 - d2| / |g(d1) - g(d2)|, original against reconstruction
    public: Tensor  # [cells, pairs] likewise, public images of one label
    residuals: Tensor  # [I, N]
    alive: Tensor  # [N] bool: the attack's cost stayed finite

    def of(self, place: int) -> slice:
        size = len(self.beta) // len(self.cells)
        return slice(place * size, (place + 1) * size)


def leakage_rows(scene: Scene) -> list[Row]:
    """The rows of all federations and snapshots."""
    rows, s = [], scene.sweep.settings
    for name, dataset in scene.sweep.datasets.items():
        cells = [(i, when) for i in scene.federations(name) for when in scene.weights]
        why = ""
        if s.local_steps > 1:
            why = "several local steps: the update is no mean of single gradients"
        elif not scene.options.targets:
            why = "no attack was asked for"
        elif dataset.public is None:
            why = "the dataset has no public images to attack"
        attacked = None
        if not why:
            try:
                attacked = attack(scene, name, cells)
            except (AttackError, ModelError, DataError, ConfigError) as error:  # too few public images, no gradients
                why = str(error)
        for place, (index, when) in enumerate(cells):
            if attacked is None:
                status: Status = "not covered" if s.local_steps > 1 else "not checkable"
                check = assumption("update is one mean gradient", status, why) if s.local_steps > 1 else None
                rows.append(
                    row(scene.about(index, when), LEMMA, QUANTITY, CONFIGURED, status=status, reason=why,
                        assumptions=[check] if check else [])
                )  # fmt: skip
            else:
                rows += _rows(scene, attacked, place, index, when)
    return rows


# -- attacking -----------------------------------------------------------------------------------------------------


def attack(scene: Scene, name: str, cells: list[tuple[int, int]]) -> Attacked:
    """InvGrad on ``targets`` releases of every cell, all with the same images and standard noise.

    Starting points are keyed by row, so those of the first cell are an audit's, and the others' are their own.
    """
    sweep, options = scene.sweep, scene.options
    s, dataset = sweep.settings, sweep.datasets[name]
    materials = Materials.of(dataset).to(sweep.device, sweep.dtype)
    plain = server_of(s, dataset, sweep.batched, NO_PROTECTION)
    effort = Options(releases=options.targets, candidates=2, others=1, seed=options.seed)
    targets = build_targets(materials, plain, effort)
    previous, out, clean = [], [], []
    for index, when in cells:
        fed, weights = sweep.federations[index], scene.weights[when][index]
        server = replace(plain, protection=s.at(fed.mechanism, fed.budget, when + 1))
        bare = replace(server, protection=replace(server.protection, mechanism=_bare(fed.mechanism)))
        out.append(released(Cell(weights, server, {}), targets, effort))
        clean.append(released(Cell(weights, bare, {}), targets, effort))
        previous.append(weights.expand(options.targets, -1))
    labels = targets.labels.repeat(len(cells), 1)
    view = View(torch.cat(previous), torch.cat(out), labels)
    truth = targets.images.repeat(len(cells), *[1] * (targets.images.dim() - 1))
    beta = intensity((view.released - torch.cat(clean)).double())
    public = torch.stack([_public_ratios(plain, materials, scene.weights[when][i]) for i, when in cells])
    return _run(scene, plain, view, truth, targets, cells, beta, public)


def _bare(name: str) -> Any:
    """The mechanism without its distortion: clipping, where it clips, stays."""
    return replace(mechanism(name), measure=None, learns=False)


def _run(
    scene: Scene,
    server: Server,
    view: View,
    truth: Tensor,
    targets: Targets,
    cells: list[tuple[int, int]],
    beta: Tensor,
    public: Tensor,
) -> Attacked:
    iterations = scene.options.iterations or scene.sweep.settings.leakage.iterations
    trace, listener = Trace(truth, scene.sweep.settings.leakage.D), Listener(server, view, iterations)
    looks = sorted({max(1, round(iterations * (j + 1) / LOOKS)) for j in range(LOOKS)} | {1})
    ratios = torch.full((len(looks) * server.examples, len(view)), torch.nan, dtype=torch.float64)
    farthest = torch.zeros(len(view), dtype=torch.float64, device=truth.device)

    def watch(rows: Tensor, iteration: int, images: Tensor) -> None:
        listener.watch(rows, iteration)
        trace.watch(rows, iteration, images)
        own = (images - truth[rows.to(truth.device)]).flatten(2).norm(dim=2).max(1).values.double()
        farthest[rows.to(truth.device)] = torch.maximum(farthest[rows.to(truth.device)], own)
        if iteration in looks:
            place = looks.index(iteration) * server.examples
            found = _own_ratios(server, view.rows(rows.to(truth.device)), images, truth[rows.to(truth.device)])
            ratios[place : place + server.examples, rows] = found.cpu()
        scene.tell("invgrad", len(rows) / 1700)

    search = Search(iterations=iterations, seed=scene.options.seed)
    result = invgrad(listener.server, view, search, watch)
    cost = torch.cdist(result.images.flatten(2), truth.flatten(2)).square() / server.pixels
    assigned = scores.match(cost, targets.labels.repeat(len(cells), 1))
    leakage, beyond = trace.leakage(assigned)
    assert result.stopped is not None
    return Attacked(
        cells, beta.cpu(), leakage.double().cpu(), beyond.double().cpu(), farthest.cpu(), ratios, public.cpu(),
        listener.residuals.cpu(), (result.stopped == 0).cpu(),
    )  # fmt: skip


def _each(server: Server, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """``g(d) - W`` of single examples ``[n, ...]`` at weights ``[n, P]``: ``[n, P]``."""
    parts = []
    for some in pieces(len(images), chunk(server, weights), images.device):
        objective = server.batched.at(images[some].unsqueeze(1), labels[some].unsqueeze(1))
        parts.append(-server.eta * objective.gradient(weights[some].contiguous()))
    return torch.cat(parts)


def _own_ratios(server: Server, view: View, images: Tensor, truth: Tensor) -> Tensor:
    """Of every original with its reconstruction: ``[E, n]``."""
    assert view.labels is not None
    count, labels = images.shape[1], view.labels.flatten()
    weights = view.previous.repeat_interleave(count, dim=0)
    flat, real = images.flatten(0, 1), truth.flatten(0, 1)
    found = stretches(
        flat.flatten(1), _each(server, weights, flat, labels), real.flatten(1), _each(server, weights, real, labels)
    )
    return found.view(-1, count).t()


def _public_ratios(server: Server, materials: Materials, weights: Tensor, count: int = 32) -> Tensor:
    """Of pairs of public images with one label: ``[pairs]``."""
    images, labels = materials.targets[0], materials.targets[1]
    order = labels.argsort(stable=True)
    one, other = order[:-1], order[1:]
    same = (labels[one] == labels[other]).nonzero().flatten()
    same = same[torch.linspace(0, max(len(same) - 1, 0), min(count, len(same)), device=same.device).long()]
    if not len(same):
        return torch.full((1,), torch.nan, dtype=torch.float64)
    rows = torch.cat([one[same], other[same]])
    moved = _each(server, weights.expand(len(rows), -1), images[rows], labels[rows])
    first, second = moved.chunk(2)
    return stretches(images[one[same]].flatten(1), first, images[other[same]].flatten(1), second)


# -- reporting -----------------------------------------------------------------------------------------------------


def _rows(scene: Scene, attacked: Attacked, place: int, index: int, when: int) -> list[Row]:
    mine = attacked.of(place)
    alive = attacked.alive[mine]
    about, iterations = scene.about(index, when), len(attacked.residuals)
    if not bool(alive.any()):
        return [row(about, LEMMA, QUANTITY, CONFIGURED, status="not checkable", reason="the attack's cost overflowed")]
    beta, leakage = attacked.beta[mine][alive], attacked.leakage[mine][alive]
    residuals = attacked.residuals[:, mine][:, alive]
    pairs = torch.cat([attacked.ratios[:, mine][:, alive].flatten(), attacked.public[place].flatten()])
    pairs = pairs[~torch.isnan(pairs)]
    s = scene.sweep.settings
    grown = envelope(residuals, s.leakage.p)
    score = LeakageBudget(**(asdict(s.leakage) | {"iterations": iterations}))
    measured = average(leakage)
    constants = {
        "beta": average(beta), "c_a": smallest(pairs), "c_b": largest(pairs),
        "p (fitted)": average(grown.slope), "c_2 for p": largest(grown.smallest),
        "mean r_i": average(residuals.mean(0)), "D seen": largest(attacked.farthest[mine][alive]),
        "D": given(s.leakage.D), "p": given(s.leakage.p), "I": given(iterations),
    }  # fmt: skip
    held = _assumptions(scene, attacked, mine, alive, grown, score, pairs, beta)
    common: dict[str, Any] = {"measured": measured, "constants": constants, "most": float(leakage.max())}
    scored = isinstance(s.measure(scene.sweep.federations[index].mechanism), LeakageBudget)
    rows = [
        _score_row(about, scored, score, beta, leakage, held, common),
        _estimated_row(about, scene, grown, pairs, beta, leakage, iterations, held, common),
    ]
    least = float(pairs.min())
    steps = torch.tensor([
        leakage_step_bound(least, s.leakage.D, float(b), float(r))
        for b, r in zip(beta, residuals.mean(0), strict=True)
    ])  # fmt: skip
    rows.append(row(
        about, LEMMA, QUANTITY, STEP, bound=average(steps), holds=bool((leakage <= steps).all()),
        note="needs c_a alone, no envelope; one that is 1 or more says nothing",
        assumptions=[_lower_side(pairs, given(least), "by its estimate")], **common,
    ))  # fmt: skip
    return [*rows, *_remark(scene, about, index, when, score, beta, held)]


def _score_row(
    about: Row, scored: bool, score: LeakageBudget, beta: Tensor, leakage: Tensor, held: list[Row], common: Any
) -> Row:
    bounds = torch.tensor([score.leakage(float(b)) for b in beta], dtype=torch.float64)
    below: dict[str, Any] = {"bound": average(bounds), "holds": bool((leakage <= bounds).all())}
    if not scored:
        reason = "this mechanism's budget is no leakage score; evaluated at the measured L2 norm"
        return row(about, LEMMA, QUANTITY, CONFIGURED, status="not covered", reason=reason, assumptions=held,
                   **below, **common)  # fmt: skip
    return row(about, LEMMA, QUANTITY, CONFIGURED, assumptions=held, **below, **common)


def _estimated_row(
    about: Row, scene: Scene, grown: Envelope, pairs: Tensor, beta: Tensor, leakage: Tensor, iterations: int,
    held: list[Row], common: Any,
) -> Row:  # fmt: skip
    """The lemma with constants under which its assumptions hold for these very releases."""
    s, bound, holds = scene.sweep.settings.leakage, None, None
    least, most, needed = float(pairs.min()), float(pairs.max()), float(grown.smallest.max())
    threshold = float("inf")
    if 0 < least <= most < float("inf") and needed > 0:
        score = leakage_score(s.D, least, most, needed, s.p, iterations)
        threshold = score.threshold
        found = [leakage_bound(score, float(b)) for b in beta]
        known = torch.tensor([value for value in found if value is not None], dtype=torch.float64)
        if len(known) == len(beta):
            bound, holds = average(known), bool((leakage <= known).all())
    checks = [
        _lower_side(pairs, given(least), "by its estimate"),
        assumption("residual envelope", "held", "by its estimate", c_2=largest(grown.smallest)),
        compared("beta >= threshold", given(threshold), smallest(beta), strict=False),
        *[one for one in held if one["name"] == "distances <= D"],
    ]
    return row(about, LEMMA, QUANTITY, ESTIMATED, bound=bound, holds=holds, assumptions=checks, **common)


def _lower_side(pairs: Tensor, limit: Row, note: str) -> Row:
    return compared("bi-Lipschitz, c_a", limit, smallest(pairs), strict=False, note=note)


def _assumptions(
    scene: Scene, attacked: Attacked, mine: slice, alive: Tensor, grown: Envelope, score: LeakageBudget,
    pairs: Tensor, beta: Tensor,
) -> list[Row]:  # fmt: skip
    """Of the lemma with the run's own constants, on the releases attacked."""
    far, beyond = attacked.farthest[mine][alive], attacked.beyond[mine][alive]
    allowed = score.c_res * score.iterations**score.p
    return [
        _lower_side(pairs, given(score.c_a), "the smallest ratio seen errs from above: a violation is certain"),
        assumption(
            "bi-Lipschitz, c_b", "not checkable" if bool(torch.isfinite(pairs).all()) else "violated",
            "the settings give c_2*c_b/c_a as one number" if bool(torch.isfinite(pairs).all())
            else "two inputs share one update: no c_b exists",
            c_b=largest(pairs),
        ),
        compared("residual envelope", largest(grown.total), given(allowed), strict=False,
                 note="sum of r_i <= c_res*I^p, which allows for the largest c_2: that of c_b = c_a"),
        compared("beta >= threshold", given(score.threshold), smallest(beta), strict=False),
        assumption("distances <= D", "held" if float(far.max()) <= score.D else "violated",
                   D=given(score.D), farthest=largest(far), share_beyond=average(beyond)),
    ]  # fmt: skip


def _remark(
    scene: Scene, about: Row, index: int, when: int, score: LeakageBudget, beta: Tensor, held: list[Row]
) -> list[Row]:
    fed, s = scene.sweep.federations[index], scene.sweep.settings
    if not isinstance(s.measure(fed.mechanism), LeakageBudget):
        why = "the remark is about the leakage score's own budgets"
        check = assumption("budget of the leakage score", "not covered", why)
        return [row(about, REMARK, SCORE, CONFIGURED, status="not covered", reason=why, assumptions=[check])]
    promised = schedule(fed.budget, [when + 1], s.clients, "budget")[0][0]
    own = LeakageBudget(**asdict(s.leakage))  # the map that set the bounds knows the run's own horizon
    found = torch.tensor([own.leakage(float(b)) for b in beta], dtype=torch.float64)
    rounding = 1 - 1e-4  # that of a release's norm, see release.py
    return [row(
        about, REMARK, SCORE, CONFIGURED, bound=given(promised), measured=largest(found),
        holds=all(preserved(own, promised, float(b) / rounding) for b in beta),
        constants={"lower": given(own.lower(promised)), "beta": smallest(beta)}, assumptions=held,
        note="what the score promises; it bounds leakage only where the lemma applies",
    )]  # fmt: skip
