"""Lemma D.1 and Remark 1 of Zhang et al. (arXiv:2305.15148), against InvGrad on releases of public images.

The lemma bounds the leakage of a release by its score; the remark says that a budget fixes the score.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import AttackError, ConfigError, DataError, ModelError
from ..mechanism.budget import LeakageBudget
from ..mechanism.schedule import value_at
from .attacked_releases import AttackedReleases, attack_releases
from .context import BoundsContext
from .estimates import Envelope, envelope
from .rows import CONFIGURED, Row, assumption, average, compared, given, largest, not_covered, result_row, smallest
from .theory import leakage_bound, leakage_score, leakage_step_bound, preserved

LEMMA, REMARK = "privacy_leakage", "conditional_preservation"
QUANTITY, SCORE = "invgrad", "score"
ESTIMATED, STEP = "estimated", "step of the proof"


def leakage_rows(context: BoundsContext) -> list[Row]:
    """The rows of all federations and snapshots."""
    rows = []
    for name in context.sweep.datasets:
        cells = [(index, at) for index in context.sweep.federations_on(name) for at in context.snapshots]
        if context.sweep.settings.protection.local_steps > 1:
            why = "several local steps: the update is no mean of single gradients"
            check = "update is one mean gradient"
            rows += [
                not_covered(context.about(*cell), *result, check, why)
                for cell in cells for result in ((LEMMA, QUANTITY), (REMARK, SCORE))
            ]  # fmt: skip
            continue
        attacked = _attacked(context, name, cells)
        for place, (index, round_number) in enumerate(cells):
            about = context.about(index, round_number)
            if isinstance(attacked, str):
                rows += _unchecked(context, about, attacked)
            else:
                rows += _rows(context, about, attacked, place)
    return rows


def _attacked(context: BoundsContext, name: str, cells: list[tuple[int, int]]) -> AttackedReleases | str:
    """What the attack found, or why there was none."""
    if not context.options.targets:
        return "no attack was asked for"
    if context.sweep.datasets[name].public is None:
        return "the dataset has no public images to attack"
    try:
        return attack_releases(context, name, cells)
    except (AttackError, ModelError, DataError, ConfigError) as error:  # too few public images, no gradients
        return str(error)


def _unchecked(context: BoundsContext, about: Row, reason: str) -> list[Row]:
    """The lemma and the remark without an attack: the remark stands on the lemma."""
    lemma, remark = (
        result_row(about, *result, CONFIGURED, status="not checkable", reason=reason)
        for result in ((LEMMA, QUANTITY), (REMARK, SCORE))
    )
    return [lemma, remark if _scored(context, about) else _no_remark(about)]


def _scored(context: BoundsContext, about: Row) -> bool:
    """Whether the mechanism's budget is a leakage score."""
    return isinstance(context.sweep.settings.protection.measure(about["mechanism"]), LeakageBudget)


@dataclass(frozen=True)
class Releases:
    """One federation at one snapshot: N releases whose attack stayed finite."""

    beta: Tensor  # [N]
    leakage: Tensor  # [N]
    beyond: Tensor  # [N]
    farthest: Tensor  # [N]
    residuals: Tensor  # [I, N]
    pairs: Tensor  # [pairs] ratios of inputs to updates

    @classmethod
    def of(cls, attacked: AttackedReleases, cell: int) -> Releases:
        mine = attacked.of(cell)
        alive = attacked.alive[mine]
        beta, leakage, beyond, farthest = (
            values[mine][alive] for values in (attacked.beta, attacked.leakage, attacked.beyond, attacked.farthest)
        )
        pairs = torch.cat([attacked.ratios[:, mine][:, alive].flatten(), attacked.public[cell].flatten()])
        residuals = attacked.residuals[:, mine][:, alive]
        return cls(beta, leakage, beyond, farthest, residuals, pairs[~torch.isnan(pairs)])


def _rows(context: BoundsContext, about: Row, attacked: AttackedReleases, cell: int) -> list[Row]:
    seen, s = Releases.of(attacked, cell), context.sweep.settings
    if not len(seen.beta):
        return _unchecked(context, about, "the attack's cost overflowed")
    iterations, grown = len(seen.residuals), envelope(seen.residuals, s.protection.leakage.p)
    constants = {
        "beta": average(seen.beta), "c_a": smallest(seen.pairs), "c_b": largest(seen.pairs),
        "p (fitted)": average(grown.slope), "c_2 for p": largest(grown.smallest),
        "mean r_i": average(seen.residuals.mean(0)), "D seen": largest(seen.farthest),
        "D": given(s.protection.leakage.D), "p": given(s.protection.leakage.p), "I": given(iterations),
    }  # fmt: skip
    common: dict[str, Any] = {
        "measured": average(seen.leakage), "constants": constants, "most": float(seen.leakage.max())
    }  # fmt: skip
    score = LeakageBudget(**(asdict(s.protection.leakage) | {"iterations": iterations}))
    held = _assumptions(seen, grown, score)
    scored = _scored(context, about)
    return [
        _configured(about, seen, score, scored, held, common),
        _estimated(about, seen, grown, score, held, common),
        _proof_step(about, seen, score, common),
        _remark(context, about, seen, held) if scored else _no_remark(about),
    ]


# -- the lemma -----------------------------------------------------------------------------------------------------


def _configured(
    about: Row, seen: Releases, score: LeakageBudget, scored: bool, held: list[Row], common: dict[str, Any]
) -> Row:
    """The score with the run's own constants."""
    bounds = torch.tensor([score.leakage(float(beta)) for beta in seen.beta], dtype=torch.float64)
    why = "" if scored else "this mechanism's budget is no leakage score; evaluated at the measured L2 norm"
    return result_row(
        about, LEMMA, QUANTITY, CONFIGURED, status="not covered" if why else None, reason=why,
        bound=average(bounds), holds=bool((seen.leakage <= bounds).all()), assumptions=held, **common,
    )  # fmt: skip


def _estimated(
    about: Row, seen: Releases, grown: Envelope, own: LeakageBudget, held: list[Row], common: dict[str, Any]
) -> Row:
    """The lemma with constants under which its assumptions hold for these very releases."""
    bound, holds, threshold = None, None, float("inf")
    c_a, c_b, c_2 = float(seen.pairs.min()), float(seen.pairs.max()), float(grown.smallest.max())
    if 0 < c_a <= c_b < float("inf") and c_2 > 0:
        score = leakage_score(own.D, c_a, c_b, c_2, own.p, own.iterations)
        threshold = score.threshold
        result = [leakage_bound(score, float(beta)) for beta in seen.beta]
        known = torch.tensor([value for value in result if value is not None], dtype=torch.float64)
        if len(known) == len(seen.beta):
            bound, holds = average(known), bool((seen.leakage <= known).all())
    checks = [
        _lower_side(seen.pairs, c_a, "by its estimate"),
        assumption("residual envelope", "held", "by its estimate", c_2=largest(grown.smallest)),
        compared("beta >= threshold", given(threshold), smallest(seen.beta), strict=False),
        *[check for check in held if check["name"] == "distances <= D"],
    ]
    return result_row(about, LEMMA, QUANTITY, ESTIMATED, bound=bound, holds=holds, assumptions=checks, **common)


def _proof_step(about: Row, seen: Releases, score: LeakageBudget, common: dict[str, Any]) -> Row:
    """The inequality inside the proof, which needs c_a alone."""
    c_a, residuals = float(seen.pairs.min()), seen.residuals.mean(0)
    bounds = torch.tensor([
        leakage_step_bound(c_a, score.D, float(beta), float(residual))
        for beta, residual in zip(seen.beta, residuals, strict=True)
    ])  # fmt: skip
    return result_row(
        about, LEMMA, QUANTITY, STEP, bound=average(bounds), holds=bool((seen.leakage <= bounds).all()),
        note="needs c_a alone, no envelope; one that is 1 or more says nothing",
        assumptions=[_lower_side(seen.pairs, c_a, "by its estimate")], **common,
    )  # fmt: skip


def _lower_side(pairs: Tensor, c_a: float, note: str) -> Row:
    return compared("bi-Lipschitz, c_a", given(c_a), smallest(pairs), strict=False, note=note)


def _assumptions(seen: Releases, grown: Envelope, score: LeakageBudget) -> list[Row]:
    """Assumptions D.1 and D.2 and the threshold, with the run's own constants, on the releases attacked."""
    allowed, finite = score.c_res * score.iterations**score.p, bool(torch.isfinite(seen.pairs).all())
    return [
        _lower_side(seen.pairs, score.c_a, "the smallest ratio seen errs from above: a violation is certain"),
        assumption(
            "bi-Lipschitz, c_b", "not checkable" if finite else "violated",
            "the settings give c_2*c_b/c_a as one number" if finite else "two inputs share one update: no c_b exists",
            c_b=largest(seen.pairs),
        ),
        compared("residual envelope", largest(grown.total), given(allowed), strict=False,
                 note="sum of r_i <= c_res*I^p, which allows for the largest c_2: that of c_b = c_a"),
        compared("beta >= threshold", given(score.threshold), smallest(seen.beta), strict=False),
        assumption("distances <= D", "held" if float(seen.farthest.max()) <= score.D else "violated",
                   D=given(score.D), farthest=largest(seen.farthest), share_beyond=average(seen.beyond)),
    ]  # fmt: skip


# -- the remark ----------------------------------------------------------------------------------------------------


def _remark(context: BoundsContext, about: Row, seen: Releases, held: list[Row]) -> Row:
    """Whether every release keeps its budget, by the score."""
    s = context.sweep.settings
    promised = value_at(about["budget"], about["round"] + 1, 0, s.protection.clients, "budget")
    own = LeakageBudget(**asdict(s.protection.leakage))  # the map that set the bounds knows the run's own horizon
    result = torch.tensor([own.leakage(float(beta)) for beta in seen.beta], dtype=torch.float64)
    rounding = 1 - 1e-4  # that of a release's norm, see release.py
    return result_row(
        about, REMARK, SCORE, CONFIGURED, bound=given(promised), measured=largest(result),
        holds=all(preserved(own, promised, float(beta) / rounding) for beta in seen.beta),
        constants={"lower": given(own.lower(promised)), "beta": smallest(seen.beta)}, assumptions=held,
        note="what the score promises; it bounds leakage only where the lemma applies",
    )  # fmt: skip


def _no_remark(about: Row) -> Row:
    why = "the remark is about the leakage score's own budgets"
    return not_covered(about, REMARK, SCORE, "budget of the leakage score", why)
