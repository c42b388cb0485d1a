"""Label inference: which labels, and how many of each, are behind a release.

``last_layer_labels`` is the classic: the gradient of the last layer's bias is the mean of (probability - label).
``infer_labels`` learns the map from release to label counts on simulated releases of public records, so it knows the
mechanism; it reads the last layer's row sums and bias, in which noise averages out. ``count_labels`` does the same
where an example has any number of yes-or-no labels. Values of a regression are not inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError, ModelError
from ..models.layout import Slot
from ..randomness import experiment_key, uniform
from .attack import Attack, Hooks, Knowledge, Option, Work, held
from .results import LabelCounts, LabelGuesses
from .simulate import gradients, simulate
from .view import Public, Server, View, check, check_public, groups_of_weights


def last_layer(server: Server) -> tuple[Slot, Slot | None]:
    """The weights ``[classes, features]`` and the bias ``[classes]`` of the last layer."""
    slots = server.batched.layout.slots
    for index in range(len(slots) - 1, -1, -1):
        if len(slots[index].shape) == 2 and slots[index].shape[0] == server.classes:
            after = slots[index + 1 :]
            bias = next((slot for slot in after if slot.shape == (server.classes,)), None)
            return slots[index], bias
    raise ModelError(
        f"The model has no last linear layer with {server.classes} outputs, from which labels could be read.",
        "Give the labels.",
    )


def last_layer_labels(server: Server, view: View) -> Tensor:
    """Labels ``[N, E]``, sorted, from the last layer of single-step updates."""
    check(server, view, needs_labels=False)
    weight, bias = last_layer(server)
    gradient = view.update / (-server.eta * server.local_steps)
    if bias is not None:
        shown = gradient[:, bias.start : bias.stop]  # [N, C]: mean of probability - label
        inputs = _anything(server, gradient)
        starts, place = torch.unique(view.previous, dim=0, return_inverse=True)
        chance = (
            server.batched.outputs(starts, inputs.expand(len(starts), *inputs.shape[1:])).softmax(-1).mean(1)[place]
        )
        counts = (chance - shown) * server.examples
    else:
        rows = gradient[:, weight.start : weight.stop].view(len(view), *weight.shape).sum(2)
        counts = -rows / rows.abs().sum(1, keepdim=True).clamp_min(1e-30) * server.examples
    return decode(counts, server.examples)


def _anything(server: Server, like: Tensor) -> Tensor:
    """Inputs ``[1, 64, ...]`` of their range that show nothing."""
    numbers = uniform([experiment_key(0, "attack/labels")], [0], [0], 64 * server.pixels, like.dtype)[0, 0]
    inputs = numbers.view(1, 64, *server.shape).to(like.device)
    low, high = (torch.as_tensor(edge, dtype=inputs.dtype, device=inputs.device) for edge in (server.low, server.high))
    inputs = low + inputs * (high - low)
    return inputs.round().long() if server.tokens else inputs


def infer_labels(
    server: Server,
    view: View,
    public: Public,
    samples: int = 2000,
    seed: int = 0,
    on_release: Callable[[int], None] | None = None,
) -> Tensor:
    """Labels ``[N, E]``, sorted, from a ridge regression of label counts on simulated releases."""
    check(server, view, needs_labels=False)
    images, classes = check_public(server, public, None)
    known = classes.unique()
    result = torch.empty(len(view), server.examples, dtype=torch.int64, device=view.released.device)
    for rows, previous in groups_of_weights(view):
        key = experiment_key(seed, "attack/label draws")
        numbers = uniform([key], [0], [0], samples * server.examples, torch.float64)[0, 0].to(known.device)
        drawn = known[(numbers * len(known)).long()].view(samples, server.examples)
        updates, _ = simulate(server, previous, (images, classes), drawn, seed, "labels", on_release)
        counts = torch.nn.functional.one_hot(drawn, server.classes).sum(1).to(updates.dtype)
        counted = _ridge(_features(server, updates), counts)(_features(server, view.released[rows] - previous))
        result[rows] = decode(counted, server.examples)
    return result


def count_labels(
    server: Server,
    view: View,
    public: Public,
    samples: int = 2000,
    seed: int = 0,
    on_release: Callable[[int], None] | None = None,
) -> Tensor:
    """How many examples ``[N, k]`` of each release have each yes-or-no label, by the same regression."""
    check(server, view, needs_labels=False)
    public, table = check_public(server, public, None), server.indicators
    if table is None:
        raise DataError(
            "These labels are values, and what is counted are classes or yes-or-no labels.", "Leave labels out."
        )
    counts = torch.empty(len(view), table.shape[1], dtype=torch.int64, device=view.released.device)
    drawn = torch.zeros(samples, server.examples, dtype=torch.int64, device=view.released.device)
    for rows, previous in groups_of_weights(view):
        updates, chosen = simulate(server, previous, public, drawn, seed, "labels", on_release)
        known = table[public[1][chosen]].sum(1).to(updates.dtype)
        counted = _ridge(_features(server, updates), known)(_features(server, view.released[rows] - previous))
        counts[rows] = counted.round().clamp(0, server.examples).long()
    return counts


def decode(counts: Tensor, examples: int) -> Tensor:
    """The multiset of ``examples`` labels nearest to counts ``[N, classes]``: take the largest, one by one."""
    left, results = counts.clone(), []
    for _ in range(examples):
        label = left.argmax(1)
        results.append(label)
        left.scatter_add_(1, label.unsqueeze(1), -torch.ones_like(left[:, :1]))
    return torch.stack(results, dim=1).sort(dim=1).values


def _features(server: Server, updates: Tensor) -> Tensor:
    weight, bias = last_layer(server)
    rows = updates[:, weight.start : weight.stop].view(len(updates), *weight.shape).sum(2)
    return rows if bias is None else torch.cat([rows, updates[:, bias.start : bias.stop]], dim=1)


def _ridge(features: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
    """Linear regression on standardised features with a small penalty: there are far fewer features than rows."""
    centre, spread = features.mean(0), features.std(0).clamp_min(1e-30)
    x, mean = ((features - centre) / spread).double(), targets.mean(0)
    inner = x.T @ x
    inner.diagonal().add_(1e-3 * len(x))
    weights = torch.linalg.solve(inner, x.T @ (targets - mean).double())
    return lambda new: (((new - centre) / spread).double() @ weights).to(new.dtype) + mean


def _run(
    server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks
) -> LabelGuesses | LabelCounts:
    bare = View(view.previous, view.released)  # the labels are what it looks for
    given = (server, bare, held(knowledge, "public"), options["samples"], options["seed"], hooks.step)
    return LabelGuesses(infer_labels(*given)) if server.targets is None else LabelCounts(count_labels(*given))


def _work(server: Server, labels: Tensor, knowledge: Knowledge, options: Mapping[str, Any]) -> Work:
    return Work(options["samples"], gradients(server))


SAMPLES = {"samples": Option(500, least=10)}
LABELS = Attack("labels", _run, frozenset({"public", "truth"}), SAMPLES, _work, frozenset({"counts"}))
