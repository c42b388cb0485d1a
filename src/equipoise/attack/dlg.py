"""Deep Leakage from Gradients (Zhu et al., NeurIPS 2019) and its improvement (Zhao et al., 2020): match it in L2.

``dlg`` searches for label probabilities too; ``idlg`` reads the labels off the last layer first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from .attack import UNWATCHED, Hooks
from .descent import Search, inverting, optimise
from .labels import last_layer_labels
from .results import Inversion
from .view import Server, View, check

SEARCH = Search(iterations=300, lr=1.0, signed=False, tv=0.0, boxed=False, decay=False, optimiser="lbfgs")


def dlg(server: Server, view: View, search: Search = SEARCH, hooks: Hooks = UNWATCHED) -> Inversion:
    """Deep Leakage from Gradients: inputs and label probabilities together, from the L2 distance of gradients."""
    check(server, view, needs_labels=False)
    return optimise(server, View(view.previous, view.released), partial(_squared, server), search, hooks)


def idlg(server: Server, view: View, search: Search = SEARCH, hooks: Hooks = UNWATCHED) -> Inversion:
    """Improved DLG: labels are read off the last layer first."""
    check(server, view, needs_labels=False)
    labels = last_layer_labels(server, view)
    known = replace(view, labels=labels)
    result = optimise(server, known, partial(_squared, server), search, hooks)
    return replace(result, labels=labels)


def _squared(server: Server, images: Tensor, labels: Tensor, view: View) -> Tensor:
    """Against the gradient that the release shows if it is a single step, or a sum of few."""
    result = server.batched.differentiable(view.previous, images, labels)
    target = view.update / (-server.eta * server.local_steps)
    return (result - target).square().sum(1)


DLG = inverting("dlg", dlg, SEARCH, needs=(), labels=("classes",))
IDLG = inverting("idlg", idlg, SEARCH, needs=(), labels=("classes",))
