"""The most probable inputs under the mechanism's noise and a prior on images (Balunovic et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ..mechanism.distortion import draw_bounds
from ..mechanism.noise import NOISES, standard_noise
from ..randomness import experiment_key, uniform
from .attack import UNWATCHED, Hooks
from .descent import Search, inverting, optimise
from .results import Inversion
from .view import Server, View, check

SEARCH = Search(iterations=800, lr=0.1, signed=False, tv=3.0)
"""Here ``tv`` is the rate of a Laplace prior on the differences of neighbouring pixels, in normalised units."""


def likelihood(server: Server, view: View, search: Search = SEARCH, hooks: Hooks = UNWATCHED) -> Inversion:
    """Most probable inputs: the likelihood of the noise (L1 for Laplace, L2 for Gaussian) and a prior on images."""
    check(server, view)
    cost = partial(_likelihood, server, noise_likelihood(server, view.released))
    return optimise(server, view, cost, search, hooks, differences(server))


def _likelihood(server: Server, nll: Likelihood, images: Tensor, labels: Tensor, view: View) -> Tensor:
    result = server.batched.differentiable(view.previous, images, labels)
    update = view.update
    return nll(update + server.eta * server.local_steps * result, update)


Likelihood = Callable[[Tensor, Tensor], Tensor]
"""(residuals ``[R, P]``, updates ``[R, P]``) -> negative log-likelihood ``[R]``."""


def noise_likelihood(server: Server, like: Tensor) -> Likelihood:
    """That of the mechanism's noise; without noise a thousandth of the update stands in for its scale."""
    protection = server.protection
    if not protection.mechanism.draws:

        def quiet(rest: Tensor, update: Tensor) -> Tensor:
            scale = 1e-3 * update.abs().mean(1, keepdim=True)
            return (rest / scale.clamp_min(1e-12)).square().sum(1) / 2

        return quiet
    key, size = experiment_key(0, "attack/scale"), server.batched.layout.size
    numbers = uniform([key], [0], [0], size, like.dtype, like.device)[0]
    drawn = draw_bounds(standard_noise(numbers, protection.mechanism.noise), protection)[0]
    family = NOISES[protection.mechanism.noise]
    scale = family.scale(drawn)
    return lambda rest, update: family.misfit(rest, scale)


def differences(server: Server) -> float:
    """How many differences of neighbouring pixels the two means of ``total_variation`` stand for, about."""
    return float(server.examples * server.pixels)


LIKELIHOOD = inverting("likelihood", likelihood, SEARCH)
