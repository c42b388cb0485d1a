"""Membership: was this example part of the update? Three scores, higher for members.

==============  ==============================================================================================
loss            how much the release lowers the example's loss
first           <previous - released, gradient at the previous weights>: the step an example would have caused
last            <previous - released, gradient at the released weights>: sees a learner, whose steps end there
==============  ==============================================================================================

With public data a score is set against those of public images with the same label under the same release: minus their
mean, over their standard deviation. What all images of a label have in common, the noise of the release above all, then
no longer hides the difference between members and others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .attack import Attack, Hooks, Knowledge, Work, held
from .results import MembershipScores
from .simulate import Companions, chunk
from .view import Public, Server, View, check, check_labels, check_public

SCORES = ("loss", "first", "last")
REFERENCES = 16


def membership(
    server: Server,
    view: View,
    images: Tensor,
    labels: Tensor,
    public: Public | None = None,
    seed: int = 0,
    on_release: Callable[[int], None] | None = None,
) -> dict[str, Tensor]:
    """Scores ``[N, K]`` of K examples ``[N, K, ...]`` with labels ``[N, K]`` for every release."""
    check(server, view, needs_labels=False)
    if len(images) != len(view) or tuple(images.shape[2:]) != tuple(server.shape):
        raise DataError(
            f"Expected examples of shape [{len(view)}, K, {', '.join(map(str, server.shape))}], got "
            f"{list(images.shape)}.",
            "Give the examples to be asked about for every release.",
        )
    check_labels(labels, tuple(images.shape[:2]), server.classes)
    if public is None:
        return _scores(server, view, images, labels, on_release)
    public = check_public(server, public, labels)
    known, place = _labels_of(labels, server.classes)  # [N, m]: the labels of every row; which of them each example has
    rows = torch.arange(len(labels) * REFERENCES, device=labels.device)
    asked = known.repeat_interleave(REFERENCES, dim=0)
    chosen = Companions(public, seed, "membership").draw(asked, rows).view(len(labels), REFERENCES * known.shape[1])
    seen = torch.cat([images, public[0][chosen]], dim=1)
    result = _scores(server, view, seen, torch.cat([labels, public[1][chosen]], dim=1), on_release)

    def calibrated(score: Tensor) -> Tensor:
        own, others = (
            score[:, : labels.shape[1]],
            score[:, labels.shape[1] :].unflatten(1, (REFERENCES, known.shape[1])),
        )
        mean, spread = others.mean(1).gather(1, place), others.std(1).gather(1, place)
        standard: Tensor = (own - mean) / spread.clamp_min(1e-30)
        return standard

    return {name: calibrated(score) for name, score in result.items()}


def _labels_of(labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The distinct labels of every row ``[N, m]`` (the first repeated where there are fewer), and where each stands."""
    there = torch.zeros(len(labels), classes, dtype=torch.int64, device=labels.device).scatter_(1, labels, 1)
    order = there.argsort(dim=1, descending=True, stable=True)[:, : int(there.sum(1).max())]
    known = torch.where(there.gather(1, order) > 0, order, order[:, :1])
    place = (labels.unsqueeze(2) == known.unsqueeze(1)).to(torch.int8).argmax(2)
    return known, place


def _scores(
    server: Server, view: View, images: Tensor, labels: Tensor, on_release: Callable[[int], None] | None
) -> dict[str, Tensor]:
    result = {name: view.released.new_empty(images.shape[:2]) for name in SCORES}
    width = max(1, chunk(server, view.released) // (images.shape[1] + images.shape[1] % 2))
    for start in range(0, len(view), width):
        rows = slice(start, start + width)
        mine, x, y = view.rows(rows), images[rows], labels[rows]
        count, many = len(mine), x.shape[1]
        objective = server.batched.at(x.flatten(0, 1).unsqueeze(1), y.flatten().unsqueeze(1))  # one example a replica
        before = mine.previous.repeat_interleave(many, dim=0)
        after = mine.released.repeat_interleave(many, dim=0)
        down = (before - after).unsqueeze(1)  # [n*K, 1, P]
        result["loss"][rows] = (objective.loss(before) - objective.loss(after)).view(count, many)
        for name, weights in (("first", before), ("last", after)):
            inner = down @ objective.gradient(weights).unsqueeze(2)
            result[name][rows] = inner.view(count, many)
        if on_release:
            on_release(count)
    return result


def _run(
    server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks
) -> MembershipScores:
    candidates, labels, asked, public = (
        held(knowledge, name) for name in ("candidates", "candidate_labels", "asked", "public")
    )
    result = membership(server, view, candidates[asked], labels[asked], public, options["seed"], hooks.step)
    return MembershipScores(result)


def _work(server: Server, labels: Tensor, knowledge: Knowledge, options: Mapping[str, Any]) -> Work:
    seen = held(knowledge, "asked").shape[1] + REFERENCES * server.examples  # two gradients and two losses of each
    return Work(len(labels), 3 * seen / server.batch)


MEMBERSHIP = Attack("membership", _run, frozenset({"public", "candidates"}), work=_work)
