"""Inverting Gradients (Geiping et al., NeurIPS 2020), the paper's attack: match the direction of the gradient.

One cosine over all parameters, with total variation as the image prior; ``descent.py`` has the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .attack import UNWATCHED, Attack, Hooks, Knowledge, Option, Work
from .descent import Search, optimise, search_work
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


def _run(server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks) -> Inversion:
    return invgrad(server, view, _search(options), hooks)


def _search(options: Mapping[str, Any]) -> Search:
    return Search(**{name: options[name] for name in (*OPTIONS, "seed")})


def _work(server: Server, labels: Tensor, knowledge: Knowledge, options: Mapping[str, Any]) -> Work:
    return search_work(_search(options), len(labels))


OPTIONS = {
    "iterations": Option(1600, least=1),  # as the paper
    "lr": Option(1.0),
    "signed": Option(True),
    "tv": Option(1e-5),
    "restarts": Option(1, least=1),
}
INVGRAD = Attack("invgrad", _run, frozenset({"inferred labels"}), options=OPTIONS, work=_work)
