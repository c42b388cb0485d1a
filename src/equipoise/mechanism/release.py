"""The only exit from a client: clip, step, distort, check, record. Nothing else builds a ``Release``.

One call serves R clients (``[R, P]``), each with its own bounds; one client is R = 1. The engine, the
``protect`` call and every adapter use this same function.

Guarantees, for every row that ``accepted`` marks:

* the release is finite;
* its distortion as it arrives, ``parameters - local``, has an intensity between ``lower`` and ``upper`` up to
  rounding (1e-4 relative in float32); for a static mechanism it is the noise itself. Of a mechanism that shapes the
  update nothing is asked: both bounds are the intensity that came out.

A row that fails is marked, never repaired: the aggregation leaves it out by name.

A formal mechanism is another matter: what one record adds is bounded exactly (``grid``, ``l2_grid``), the noise is
drawn there, and nothing is checked afterwards, as whether a release is accepted would tell of data or noise. Every row
that starts from finite parameters is released, and is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, ModelError
from ..models.layout import Stretches
from ..models.objective import Objective
from ..privacy.discrete_laplace import discrete_laplace
from ..randomness import Words
from .clipping import clip_gradient, clipped_mean
from .distortion import draw_bounds, learn_distortion
from .grid import LARGEST_SUM, Grid, added
from .intensity import intensity
from .noised_sum import noised_sum, update_per_mean
from .protection import Protection
from .registry import Mechanism
from .shaping import shaped

Noise = Tensor | Sequence[Words] | None
"""Standard noise ``[R, P]``; for a formal mechanism, which draws integers, a source of words for every row."""


@dataclass(frozen=True)
class Record:
    """What is known of R releases, without the data behind them. All ``[R]``."""

    lower: Tensor  # the intensity asked for (0 where there is no distortion)
    upper: Tensor
    intensity: Tensor  # the intensity realised
    clipped: Tensor  # share of local steps (per-example mechanisms: of examples) in which the gradient clip acted
    utility_loss: Tensor  # loss(released) - loss(undistorted) on the mini-batch, signed; NaN if not asked for
    accepted: Tensor  # bool: finite and within bounds


@dataclass(frozen=True)
class Release:
    """R protected models and their records. Only this file constructs one."""

    parameters: Tensor  # [R, P]
    record: Record

    def first(self, count: int) -> Release:
        """The first ``count`` of the R releases."""
        record = Record(*(getattr(self.record, part.name)[:count] for part in fields(self.record)))
        return Release(self.parameters[:count], record)


def _examples(
    objectives: Sequence[Objective], protection: Protection
) -> tuple[Callable[[Tensor], Iterable[Tensor]], float]:
    """The gradients of single examples, and the clip: what a mechanism with ``per_example`` cannot do without."""
    name, each = protection.mechanism.name, objectives[-1].per_example
    if len(objectives) != 1:
        raise ConfigError(
            f"The mechanism {name!r} makes exactly one local step, got {len(objectives)}: the sensitivity of more is "
            "not derived.",
            "Use local_steps = 1.",
        )
    if protection.clip is None:
        raise ConfigError(f"The mechanism {name!r} needs a clip: without one its sensitivity is infinite.", "Set clip.")
    if each is None:
        raise ModelError(f"The mechanism {name!r} needs the gradient of every example.", "Use Batched.at.")
    return each, protection.clip


def local_step(
    objectives: Sequence[Objective], start: Tensor, eta: float, protection: Protection
) -> tuple[Tensor, Tensor]:
    """Algorithm 1, l. 6: one step per mini-batch; the undistorted models and the share of clipped steps.

    For a formal mechanism: what its step on the grid comes to, before that rounds it.
    """
    if protection.mechanism.per_example:
        each, clip = _examples(objectives, protection)
        gradients = torch.stack([*each(start)], 1)
        mean, acted = clipped_mean(gradients, clip, protection.mechanism.norm)
        return start - update_per_mean(eta, gradients.shape[1], protection) * mean, acted
    local, clipped = start, start.new_zeros(start.shape[0])
    for objective in objectives:
        gradient = objective.gradient(local)
        if protection.clip is not None and protection.mechanism.clips:
            gradient, acted = clip_gradient(gradient, protection.clip, protection.clip_norm)
            clipped = clipped + acted / len(objectives)
        gradient = gradient.mul_(eta)
        local = torch.sub(local, gradient, out=gradient)
    return local, clipped


def release(
    objectives: Sequence[Objective],
    start: Tensor,
    noise: Noise,
    eta: float,
    protection: Protection,
    utility: bool = True,
) -> Release:
    """Algorithm 1, l. 6-8, for R clients: train locally, distort, check.

    ``noise`` is standard noise ``[R, P]`` of the mechanism's family (None for ``none``), or for a formal mechanism the
    words that it is drawn from. The last mini-batch is the one the distortion is learned on. ``utility=False`` saves
    two forward passes.
    """
    return observed_release(objectives, start, noise, eta, protection, utility)[0]


def observed_release(
    objectives: Sequence[Objective],
    start: Tensor,
    noise: Noise,
    eta: float,
    protection: Protection,
    utility: bool = True,
) -> tuple[Release, Tensor]:
    """``release`` and the distortion ``[R, P]`` behind it: for experiments, which may look inside a client."""
    if protection.mechanism.whole_run:
        return _of_units(objectives, start, noise, eta, protection)
    if protection.mechanism.formal:
        return _formal(objectives, start, noise, eta, protection, utility)
    local, clipped = _trained(objectives, start, eta, protection)
    return _distorted(objectives[-1], start, local, noise, protection, clipped, utility)


def updated_release(
    objective: Objective, start: Tensor, noise: Noise, eta: float, protection: Protection
) -> tuple[Release, Tensor]:
    """``release`` of one local step by a mechanism without a guarantee, and the model ``[R, P]`` before its noise."""
    local, clipped = _trained([objective], start, eta, protection)
    return _distorted(objective, start, local, noise, protection, clipped, utility=True)[0], local


def _trained(
    objectives: Sequence[Objective], start: Tensor, eta: float, protection: Protection
) -> tuple[Tensor, Tensor]:
    local, clipped = local_step(objectives, start, eta, protection)
    return shortened(start, local, protection), clipped


def shortened(start: Tensor, local: Tensor, protection: Protection) -> Tensor:
    """``local`` so near to ``start`` that the noise is as large beside the update as is asked for."""
    if not protection.least_relative or not protection.mechanism.distorts:
        return local
    most = protection.noise_norm(start.shape[-1]) / protection.least_relative
    return start + clip_gradient(local - start, most, "l2")[0]


def _of_units(
    objectives: Sequence[Objective], start: Tensor, noise: Noise, eta: float, protection: Protection
) -> tuple[Release, Tensor]:
    """The mechanism draws its own batch and noise; docs/gaussian_dp.md has the proof. Losses would take all records."""
    units = objectives[-1].units
    if len(objectives) != 1 or units is None or noise is None or isinstance(noise, Tensor):
        raise ConfigError(
            f"The mechanism {protection.mechanism.name!r} makes one local step on all records and draws its own noise.",
            "Use local_steps = 1, an objective with units, and a source of words for every row.",
        )
    released, alpha, clipped = noised_sum(units, start, noise, eta, protection)
    loss = torch.full_like(clipped, float("nan"))
    size = intensity(alpha, protection.mechanism.norm)
    return Release(released, Record(size, size, size, clipped, loss, torch.isfinite(start).all(-1))), alpha


def _formal(
    objectives: Sequence[Objective], start: Tensor, noise: Noise, eta: float, protection: Protection, utility: bool
) -> tuple[Release, Tensor]:
    """Sum and noise as integers, the received parameters last; docs/laplace_dp.md has the proof."""
    each, clip = _examples(objectives, protection)
    if protection.batch is None or noise is None or isinstance(noise, Tensor):
        raise ConfigError(
            f"The mechanism {protection.mechanism.name!r} divides by a public number and draws its own noise.",
            "Give Protection a batch, and a source of words for every row.",
        )
    grid = Grid.of(eta, clip, protection.batch, start.shape[-1])
    total, clipped, count = torch.zeros_like(start, dtype=torch.int64), start.new_zeros(len(start)), 0
    for gradients in each(start):
        count += 1
        if count * grid.bound > LARGEST_SUM:
            raise ConfigError(f"{count} examples of one batch cannot be added exactly.", "Use a smaller batch.")
        whole, acted = grid.steps(gradients, eta, clip, protection.batch)
        total, clipped = total + whole, clipped + acted
    scales = torch.as_tensor(protection.scale, dtype=torch.float64).expand(len(start)).tolist()
    rows = zip(scales, noise, strict=True)
    drawn = [discrete_laplace(grid.noise_scale(scale), start.shape[-1], words) for scale, words in rows]
    integers = torch.from_numpy(np.stack(drawn)).to(start.device)
    released = added(start, (total + integers).clamp(-2 * LARGEST_SUM, 2 * LARGEST_SUM), grid)
    alpha = added(torch.zeros_like(start), integers, grid)
    loss = torch.full_like(clipped, float("nan"))
    if utility:
        loss = objectives[-1].loss(released) - objectives[-1].loss(added(start, total, grid))
    size = intensity(alpha, protection.mechanism.norm)
    share = clipped / max(count, 1)
    record = Record(size, size * protection.factor, size, share, loss, torch.isfinite(start).all(-1))
    return Release(released, record), alpha


def distort_given(
    objective: Objective,
    start: Tensor,
    local: Tensor,
    noise: Tensor | None,
    protection: Protection,
    utility: bool = True,
) -> Release:
    """Algorithm 1, l. 7-8, for models ``[R, P]`` that were trained elsewhere, from ``start``."""
    check_trained_elsewhere(protection.mechanism)
    local = shortened(start, local, protection)
    return _distorted(objective, start, local, noise, protection, local.new_zeros(len(local)), utility)[0]


def static_release(local: Tensor, noise: Tensor | None, protection: Protection) -> Release:
    """``distort_given`` without learning or losses, for finite models ``[R, P]``, in the memory of its arguments.

    A model of 10^8 parameters then needs room for itself and its noise, and no more. Where there is noise, ``local``
    holds the distortion afterwards, as it arrives.
    """
    none = local.new_zeros(len(local))
    unknown = torch.full_like(none, float("nan"))
    if noise is None:
        return Release(local, Record(none, none, none, none, unknown, torch.ones_like(none, dtype=torch.bool)))
    alpha, lower, upper = draw_bounds(noise, protection, out=noise)  # Algorithm 1, l. 7
    released = torch.add(local, alpha, out=alpha)
    size = intensity(torch.sub(released, local, out=local), protection.mechanism.norm)  # as it arrives
    within = _within(size, lower, upper)
    return Release(released, Record(lower, upper, size, none, unknown, within))


def shaped_release(
    start: Tensor, local: Tensor, noise: Tensor | None, protection: Protection, stretches: Stretches
) -> Release:
    """``static_release`` of a mechanism that shapes the update; ``local`` holds the distortion afterwards."""
    none = local.new_zeros(len(local))
    released = shaped(start, local, noise, protection, stretches)
    size = intensity(torch.sub(released, local, out=local), protection.mechanism.norm)
    unknown = torch.full_like(none, float("nan"))
    return Release(released, Record(size, size, size, none, unknown, torch.isfinite(size)))


def shorten(start: Tensor, local: Tensor, protection: Protection) -> Tensor:
    """``shortened`` in the memory of ``local``."""
    if protection.least_relative and protection.mechanism.distorts:
        most = protection.noise_norm(start.shape[-1]) / protection.least_relative
        size = intensity(local.sub_(start), "l2")
        local.mul_((most / size.clamp_min(most)).unsqueeze(-1)).add_(start)
    return local


def check_trained_elsewhere(mechanism: Mechanism) -> None:
    """Refuse a mechanism whose guarantee is about the local step too."""
    if mechanism.per_example:
        raise ConfigError(
            f"The mechanism {mechanism.name!r} cannot distort a model that was trained elsewhere: how far one example "
            "could have moved it is not known.",
            "Call protected_step, which makes the local step itself.",
        )


def _distorted(
    objective: Objective, start: Tensor, local: Tensor, noise: Noise, protection: Protection, clipped: Tensor,
    utility: bool,
) -> tuple[Release, Tensor]:  # fmt: skip
    none = torch.zeros_like(clipped)
    if not protection.mechanism.distorts:
        record = Record(none, none, none, clipped, none, torch.isfinite(local).all(-1))
        return Release(local, record), torch.zeros_like(local)
    if protection.mechanism.shaping is not None:
        assert noise is None or isinstance(noise, Tensor)
        released = shaped(start, local, noise, protection, objective.stretches)
        alpha = released - local
        lower = upper = size = intensity(alpha, protection.mechanism.norm)  # nothing was asked of it
    else:
        assert isinstance(noise, Tensor)
        alpha, lower, upper = _added(objective, local, noise, protection)
        released = local + alpha
        size = intensity(released - local, protection.mechanism.norm)  # as it arrives, not as it was meant
    within = _within(size, lower, upper)
    loss = torch.full_like(none, float("nan"))
    if utility:
        loss = objective.loss(released) - objective.loss(local)  # eq. 4, on the mini-batch: f-hat of eq. 15
    return Release(released, Record(lower, upper, size, clipped, loss, within)), alpha


def _added(objective: Objective, local: Tensor, noise: Tensor, protection: Protection) -> tuple[Tensor, Tensor, Tensor]:
    """The distortions ``[R, P]``, as drawn or learned, and their bounds."""
    alpha, lower, upper = draw_bounds(noise, protection)  # Algorithm 1, l. 7
    if protection.mechanism.learns:
        alpha = learn_distortion(
            partial(objective.gradient, out=torch.empty_like(local)), local, alpha, lower, upper,
            norm=protection.mechanism.norm, steps=protection.steps,
            gamma=_column(protection.gamma), negative_norm=_column(protection.negative_norm),
        )  # fmt: skip
    return alpha, lower, upper


def _within(size: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    slack = 1e-4 if size.dtype == torch.float32 else 1e-9  # rounding of the norm itself
    inside = (size >= lower * (1 - slack)) & (size <= upper * (1 + slack))  # false for NaN
    return inside & torch.isfinite(size)  # then all that it was measured on is finite, too


def _column(value: Tensor | float) -> Tensor | float:
    return value.unsqueeze(-1) if isinstance(value, Tensor) and value.dim() == 1 else value
