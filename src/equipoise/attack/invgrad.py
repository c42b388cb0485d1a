"""Inverting Gradients (Geiping et al., NeurIPS 2020), the paper's attack: match the direction of the gradient.

One cosine over all parameters, with total variation as the image prior; ``descent.py`` has the loop.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .attack import UNWATCHED, Hooks, Option
from .descent import Search, inverting, optimise
from .results import Inversion
from .view import Server, View, check

SEARCH = Search()
"""As the paper."""


def invgrad(server: Server, view: View, search: Search = SEARCH, hooks: Hooks = UNWATCHED) -> Inversion:
    """Inputs whose gradient points where the release does; the labels are granted."""
    check(server, view)
    return optimise(server, view, partial(_cosine, server), search, hooks)


def _cosine(server: Server, images: Tensor, labels: Tensor, view: View) -> Tensor:
    result, against = server.batched.differentiable(view.previous, images, labels), view.update  # opposite directions
    size = (_dot(result, result) * _dot(against, against)).sqrt()
    return 1 + _dot(result, against) / size.clamp_min(1e-30)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Row by row; as a matrix product its backward pass is one too."""
    return torch.bmm(one.unsqueeze(1), other.unsqueeze(2)).flatten()


OPTIONS = {
    "iterations": Option(1600, least=1),
    "lr": Option(1.0, least=1e-9),
    "signed": Option(True),
    "tv": Option(1e-5, least=0),
}
"""As the paper."""
INVGRAD = inverting("invgrad", invgrad, SEARCH, OPTIONS)
