"""Membership: was this example part of the update? Three scores, higher for members.

==============  ==============================================================================================
loss            how much the release lowers the example's loss
first           <previous - released, gradient at the previous weights>: the step an example would have caused
last            <previous - released, gradient at the released weights>: sees a learner, whose steps end there
==============  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .simulate import chunk
from .view import Server, View, check, check_labels

SCORES = ("loss", "first", "last")


def membership(
    server: Server, view: View, images: Tensor, labels: Tensor, on_release: Callable[[int], None] | None = None
) -> dict[str, Tensor]:
    """Scores ``[N, K]`` of K examples ``[N, K, ...]`` with labels ``[N, K]`` for every release."""
    check(server, view, needs_labels=False)
    check_labels(labels, tuple(images.shape[:2]), server.classes)
    found = {name: view.released.new_empty(images.shape[:2]) for name in SCORES}
    width = max(1, chunk(server, view.released) // (images.shape[1] + images.shape[1] % 2))
    for start in range(0, len(view), width):
        rows = slice(start, start + width)
        mine, x, y = view.rows(rows), images[rows], labels[rows]
        count, many = len(mine), x.shape[1]
        objective = server.batched.at(x.flatten(0, 1).unsqueeze(1), y.flatten().unsqueeze(1))  # one example a replica
        before = mine.previous.repeat_interleave(many, dim=0)
        after = mine.released.repeat_interleave(many, dim=0)
        down = (before - after).unsqueeze(1)  # [n*K, 1, P]
        found["loss"][rows] = (objective.loss(before) - objective.loss(after)).view(count, many)
        for name, weights in (("first", before), ("last", after)):
            inner = down @ objective.gradient(weights).unsqueeze(2)
            found[name][rows] = inner.view(count, many)
        if on_release:
            on_release(count)
    return {name: torch.nan_to_num(score) for name, score in found.items()}
