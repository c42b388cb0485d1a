"""The most probable inputs under a forward simulation of the local steps *and* of every step of the learner.

It works where the noise is small enough for a gradient to find its way through all of those steps.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..mechanism.clipping import clip_gradient, clipped_mean
from ..mechanism.distortion import draw_bounds, learn_distortion
from ..mechanism.noised_sum import update_per_mean
from ..mechanism.shaping import shaped
from .attack import UNWATCHED, Hooks
from .descent import Search, inverting, optimise
from .likelihood import SEARCH, Likelihood, differences, noise_likelihood
from .results import Inversion
from .simulate import gradients
from .view import Server, View, check


def unrolled(server: Server, view: View, search: Search = SEARCH, hooks: Hooks = UNWATCHED) -> Inversion:
    """Most probable inputs under a forward simulation of the local steps and of every step of the learner."""
    check(server, view)
    cost = partial(_unrolled, server, noise_likelihood(server, view.released))
    return optimise(server, view, cost, search, hooks, differences(server))


def _unrolled(server: Server, nll: Likelihood, images: Tensor, labels: Tensor, view: View) -> Tensor:
    update, protection = view.update, server.protection
    standard = update if protection.mechanism.on_sphere else update / max(float(protection.scale), 1e-30)
    return nll(update - drift(server, view.previous, images, labels, standard), update)


def drift(server: Server, previous: Tensor, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
    """What training and learning add to ``previous + initial distortion``, as a differentiable function of the inputs.

    ``release.release`` in a form that autograd can follow; a test holds the two equal for every mechanism.
    """
    protection, mechanism, local = server.protection, server.protection.mechanism, previous
    for step in range(server.local_steps):
        part = slice(step * server.batch, (step + 1) * server.batch)
        x, y = images[:, part], labels[:, part]
        if mechanism.per_example and protection.clip is not None:
            slope = _clipped_examples(server, local, x, y, protection.clip)
            rate = update_per_mean(server.eta, server.batch, protection)
        else:
            slope, rate = server.batched.differentiable(local, x, y), server.eta
        if protection.clip is not None and mechanism.clips:
            slope = clip_gradient(slope, protection.clip, protection.clip_norm)[0]
        local = local - rate * slope
    if mechanism.shaping is not None:
        return shaped(previous, local, torch.zeros_like(local), protection, server.batched.layout.stretches) - previous
    if not mechanism.learns:
        return local - previous
    start, lower, upper = draw_bounds(noise, protection)
    alpha = learn_distortion(
        lambda params: server.batched.differentiable(params, x, y), local, start, lower, upper,
        norm=mechanism.norm, steps=protection.steps, gamma=protection.gamma, negative_norm=protection.negative_norm,
    )  # fmt: skip
    return local + alpha - start - previous


def _clipped_examples(server: Server, params: Tensor, images: Tensor, labels: Tensor, clip: float) -> Tensor:
    """The mean of the examples' gradients, each clipped, as ``release.local_step`` takes it."""
    x, y = images.flatten(0, 1).unsqueeze(1), labels.flatten(0, 1).unsqueeze(1)
    each = server.batched.differentiable(params.repeat_interleave(server.batch, dim=0), x, y)
    return clipped_mean(each.unflatten(0, (-1, server.batch)), clip, server.protection.mechanism.norm)[0]


UNROLLED = inverting("unrolled", unrolled, SEARCH, gradients=gradients)
