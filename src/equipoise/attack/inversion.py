"""Attacks that search for inputs whose simulated update matches the release, many targets at once.

Each is a cost per target; ``descent.py`` has the loop that all of them share.

==========  ================================================================  =======================================
attack      matches                                                           reference
==========  ================================================================  =======================================
invgrad     the direction of the gradient, with total variation               Geiping et al., NeurIPS 2020; the paper's
dlg         the gradient in L2, labels searched for too                       Zhu et al., NeurIPS 2019
idlg        the gradient in L2, labels from the last layer                    Zhao et al., 2020
likelihood  the update under the mechanism's noise, with an image prior       Balunovic et al., ICLR 2022
unrolled    likewise, but through the local steps *and* the learner's steps   forward simulation, differentiated
==========  ================================================================  =======================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..mechanism.clipping import clip_gradient, clipped_mean
from ..mechanism.distortion import draw_bounds
from ..mechanism.intensity import STABILISER, intensity, scale_clip
from ..randomness import experiment_key, standard_noise, uniform
from .descent import Inversion, Search, Watch, optimise
from .labels import last_layer_labels
from .view import Server, View, check

# -- the attacks -----------------------------------------------------------------------------------------------


def invgrad(
    server: Server,
    view: View,
    search: Search | None = None,
    watch: Watch | None = None,
    on_iteration: Callable[[int], None] | None = None,
) -> Inversion:
    """Inverting Gradients: one cosine over all parameters."""
    check(server, view)
    return optimise(server, view, partial(_cosine, server), search or Search(), watch, on_iteration)


def dlg(
    server: Server,
    view: View,
    search: Search | None = None,
    watch: Watch | None = None,
    on_iteration: Callable[[int], None] | None = None,
) -> Inversion:
    """Deep Leakage from Gradients: inputs and label probabilities together, from the L2 distance of gradients."""
    check(server, view, needs_labels=False)
    search = search or DLG
    return optimise(server, View(view.previous, view.released), partial(_squared, server), search, watch, on_iteration)


def idlg(
    server: Server,
    view: View,
    search: Search | None = None,
    watch: Watch | None = None,
    on_iteration: Callable[[int], None] | None = None,
) -> Inversion:
    """Improved DLG: labels are read off the last layer first."""
    check(server, view, needs_labels=False)
    labels = last_layer_labels(server, view)
    known = replace(view, labels=labels)
    found = optimise(server, known, partial(_squared, server), search or DLG, watch, on_iteration)
    return replace(found, labels=labels)


def likelihood(
    server: Server,
    view: View,
    search: Search | None = None,
    watch: Watch | None = None,
    on_iteration: Callable[[int], None] | None = None,
) -> Inversion:
    """Most probable inputs: the likelihood of the noise (L1 for Laplace, L2 for Gaussian) and a prior on images."""
    check(server, view)
    cost = partial(_likelihood, server, _noise_likelihood(server, view.released))
    return optimise(server, view, cost, search or MAP, watch, on_iteration, _differences(server))


def unrolled(
    server: Server,
    view: View,
    search: Search | None = None,
    watch: Watch | None = None,
    on_iteration: Callable[[int], None] | None = None,
) -> Inversion:
    """Most probable inputs under a forward simulation of the local steps and of every step of the learner."""
    check(server, view)
    cost = partial(_unrolled, server, _noise_likelihood(server, view.released))
    return optimise(server, view, cost, search or MAP, watch, on_iteration, _differences(server))


DLG = Search(iterations=300, lr=1.0, signed=False, tv=0.0, boxed=False, decay=False, optimiser="lbfgs")
MAP = Search(iterations=800, lr=0.1, signed=False, tv=3.0)
"""Here ``tv`` is the rate of a Laplace prior on the differences of neighbouring pixels, in normalised units."""


# -- costs -------------------------------------------------------------------------------------------------------


def _gradient(server: Server, images: Tensor, labels: Tensor, view: View) -> tuple[Tensor, Tensor]:
    """The gradient at ``images`` and the one that the release shows if it is a single step, or a sum of few."""
    found = server.batched.differentiable(view.previous, images, labels)
    return found, view.update / (-server.eta * server.local_steps)


def _cosine(server: Server, images: Tensor, labels: Tensor, view: View) -> Tensor:
    found, against = server.batched.differentiable(view.previous, images, labels), view.update  # opposite directions
    size = (_dot(found, found) * _dot(against, against)).sqrt()
    return 1 + _dot(found, against) / size.clamp_min(1e-30)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Row by row; as a matrix product its backward pass is one too."""
    return torch.bmm(one.unsqueeze(1), other.unsqueeze(2)).flatten()


def _squared(server: Server, images: Tensor, labels: Tensor, view: View) -> Tensor:
    found, target = _gradient(server, images, labels, view)
    return (found - target).square().sum(1)


def _likelihood(server: Server, nll: Likelihood, images: Tensor, labels: Tensor, view: View) -> Tensor:
    found = server.batched.differentiable(view.previous, images, labels)
    update = view.update
    return nll(update + server.eta * server.local_steps * found, update)


def _unrolled(server: Server, nll: Likelihood, images: Tensor, labels: Tensor, view: View) -> Tensor:
    update, protection = view.update, server.protection
    standard = update if protection.mechanism.on_sphere else update / max(float(protection.scale), 1e-30)
    return nll(update - drift(server, view.previous, images, labels, standard), update)


def drift(server: Server, previous: Tensor, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
    """What training and learning add to ``previous + initial distortion``, as a differentiable function of the inputs.

    ``release.release`` in a form that autograd can follow; a test holds the two equal for every mechanism.
    """
    protection, kind, local = server.protection, server.protection.mechanism, previous
    for step in range(server.local_steps):
        part = slice(step * server.batch, (step + 1) * server.batch)
        x, y = images[:, part], labels[:, part]
        if kind.per_example and protection.clip is not None:
            slope = _clipped_examples(server, local, x, y, protection.clip)
        else:
            slope = server.batched.differentiable(local, x, y)
        if protection.clip is not None and kind.clips:
            slope = clip_gradient(slope, protection.clip, protection.clip_norm)[0]
        local = local - server.eta * slope
    if not kind.learns:
        return local - previous
    start, lower, upper = draw_bounds(noise, protection)
    alpha = start
    for _ in range(protection.steps):
        slope = server.batched.differentiable(local + alpha, x, y)
        size = intensity(alpha, "l2").clamp_min(STABILISER).unsqueeze(-1)
        alpha = alpha * (1 + protection.lr * protection.negative_norm / size) - protection.lr * slope
        alpha = scale_clip(alpha, lower, upper, kind.norm)
    return local + alpha - start - previous


def _clipped_examples(server: Server, params: Tensor, images: Tensor, labels: Tensor, clip: float) -> Tensor:
    """The mean of the examples' gradients, each clipped, as ``release.local_step`` takes it."""
    x, y = images.flatten(0, 1).unsqueeze(1), labels.flatten(0, 1).unsqueeze(1)
    each = server.batched.differentiable(params.repeat_interleave(server.batch, dim=0), x, y)
    return clipped_mean(each.unflatten(0, (-1, server.batch)), clip, server.protection.mechanism.norm)[0]


Likelihood = Callable[[Tensor, Tensor], Tensor]
"""(residuals ``[R, P]``, updates ``[R, P]``) -> negative log-likelihood ``[R]``."""


def _noise_likelihood(server: Server, like: Tensor) -> Likelihood:
    """That of the mechanism's noise; without noise a thousandth of the update stands in for its scale."""
    protection = server.protection
    if not protection.mechanism.distorts:

        def quiet(rest: Tensor, update: Tensor) -> Tensor:
            scale = 1e-3 * update.abs().mean(1, keepdim=True)
            return (rest / scale.clamp_min(1e-12)).square().sum(1) / 2

        return quiet
    key, size = experiment_key(0, "attack/scale"), server.batched.layout.size
    numbers = uniform([key], [0], [0], size, like.dtype, like.device)[0]
    drawn = draw_bounds(standard_noise(numbers, protection.mechanism.noise), protection)[0]
    if protection.mechanism.noise == "laplace":
        scale = float(drawn.abs().mean())
        return lambda rest, update: rest.abs().sum(1) / scale
    scale = float(drawn.square().mean().sqrt())
    return lambda rest, update: (rest / scale).square().sum(1) / 2


def _differences(server: Server) -> float:
    """How many differences of neighbouring pixels the two means of ``total_variation`` stand for, about."""
    return float(server.examples * server.pixels)
