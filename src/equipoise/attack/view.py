"""The attacker's position: the server of the federation, honest in its protocol and curious about the releases.

Labels are numbers ``[N, E]`` throughout. They are classes, or, where ``Server.targets`` says what each stands for, the
rows of that table: yes-or-no labels, or values of a regression. Candidates of an example share its *stratum*: its class
where labels are classes, and else the one that all examples have, so that nothing but the update tells them apart.

``Server`` is what it knows before any release: model and loss, the mechanism's public description, the settings of
local training, the range of the inputs. ``View`` is what it sees of N releases. Every attack takes these two, and
public data where it says so; nothing in this package can reach private data (``tests/test_rooms.py`` holds it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError, ModelError, ReleaseError
from ..mechanism.protection import NO_PROTECTION, Protection
from ..models.batched import Batched
from ..models.inputs import Kind, placed

Public = tuple[Tensor, Tensor]
"""Inputs ``[N, ...]`` and labels ``[N]`` that belong to no client."""


@dataclass(frozen=True)
class Server:
    """What the server knows before any release. ``protection`` holds one number per entry, not one per row.

    >>> from equipoise import LeNetZhu
    >>> Server(Batched(LeNetZhu()), shape=(1, 28, 28), classes=10, batch=4, local_steps=2).examples
    8
    """

    batched: Batched  # model and loss
    shape: tuple[int, ...]  # of one input
    classes: int
    batch: int
    low: Tensor | float = 0.0  # range of the inputs after normalisation; numbers, or [C, 1, 1], or [F] of a table
    high: Tensor | float = 1.0
    _: KW_ONLY
    eta: float = 0.1
    protection: Protection = NO_PROTECTION
    local_steps: int = 1
    tokens: bool = False  # whether inputs are whole numbers that stand for tokens
    targets: Tensor | None = None  # [T, ...]: what each label number stands for; None: labels are classes

    @property
    def examples(self) -> int:
        """Examples behind one release."""
        return self.batch * self.local_steps

    @property
    def kind(self) -> Kind:
        """What one input is."""
        if self.tokens:
            return "tokens"
        return "image" if len(self.shape) == 3 else "table"

    @property
    def label_numbers(self) -> int:
        """How many different labels there are."""
        return self.classes if self.targets is None else len(self.targets)

    @property
    def indicators(self) -> Tensor | None:
        """The table of targets as ``[T, k]`` zeros and ones, if it holds nothing else: yes-or-no labels."""
        return None if self.targets is None else indicators_of(self.targets)

    def strata(self, labels: Tensor) -> Tensor:
        """Which examples are exchanged for one another: those of a class, or all where labels are no classes."""
        return labels if self.targets is None else torch.zeros_like(labels)

    def stratified(self, view: View) -> View:
        """The releases with strata for labels, for an attack that uses nothing else of them."""
        if self.targets is None:
            return view
        strata = torch.zeros(len(view), self.examples, dtype=torch.int64, device=view.released.device)
        return replace(view, labels=strata)

    @property
    def pixels(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class View:
    """What the server sees of N releases.

    >>> View(torch.zeros(3, 7), torch.ones(3, 7)).update.sum().item()
    21.0
    """

    previous: Tensor  # [N, P]: the weights it had sent
    released: Tensor  # [N, P]: the weights that came back
    labels: Tensor | None = None  # [N, E]: known only where the threat model grants them

    def __len__(self) -> int:
        return len(self.released)

    @cached_property
    def update(self) -> Tensor:
        """``[N, P]``: what every release adds to the weights it started from."""
        return self.released - self.previous

    def copy(self) -> View:
        """The same in memory of its own; weights that all releases share stay one row."""
        shared = len(self) > 0 and self.previous.stride(0) == 0
        previous = self.previous[:1].clone().expand_as(self.previous) if shared else self.previous.clone()
        return View(previous, self.released.clone(), None if self.labels is None else self.labels.clone())

    def rows(self, index: Tensor | slice) -> View:
        return View(self.previous[index], self.released[index], None if self.labels is None else self.labels[index])


def indicators_of(targets: Tensor) -> Tensor | None:
    """Targets ``[T]`` or ``[T, ...]`` as ``[T, k]``, if they are zeros and ones.

    >>> indicators_of(torch.tensor([1.0, 0.0])).shape, indicators_of(torch.tensor([0.5]))
    (torch.Size([2, 1]), None)
    """
    if not bool(((targets == 0) | (targets == 1)).all()):
        return None
    return targets.flatten(1) if targets.dim() > 1 else targets.unsqueeze(1)


def check(server: Server, view: View, needs_labels: bool = True) -> None:
    """Refuse what no attack can work on; every message names the release and the remedy."""
    size = server.batched.layout.size
    for name in ("previous", "released"):
        tensor = getattr(view, name)
        if not isinstance(tensor, Tensor) or tensor.dim() != 2 or tensor.shape[1] != size or not len(tensor):
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ReleaseError(
                f"Expected the {name} weights as [N, {size}] with N >= 1, got {shape}.",
                "Flatten them with the layout of this very model.",
            )
        bad = (~torch.isfinite(tensor).all(1)).nonzero().flatten().tolist()
        if bad:
            raise ReleaseError(
                f"The {name} weights are not finite in release(s) {', '.join(map(str, bad[:8]))}.",
                "Leave these out: the aggregation refuses them too.",
            )
    if view.previous.shape != view.released.shape:
        raise ReleaseError(
            f"{len(view.previous)} sets of previous weights for {len(view.released)} releases.", "Give one for each."
        )
    if server.examples < 1:
        raise DataError("A release of no examples cannot be attacked: the batch is empty.", "Give the batch size.")
    if view.labels is None:
        if needs_labels:
            raise DataError(
                "This attack is granted the labels, and the view has none.",
                "Give them, or infer them first with attack.labels.infer_labels.",
            )
        return
    check_labels(view.labels, (len(view), server.examples), server.label_numbers)


def even(server: Server, count: int) -> int:
    """How many replicas to run so that ``count`` of them round alike whatever their number.

    CPU kernels do for every even number where the examples of a release are a multiple of four, else for every eight.
    """
    step = 2 if server.examples % 4 == 0 else 8
    return -(-count // step) * step


def check_labels(labels: Tensor, shape: tuple[int, ...], classes: int) -> None:
    if not isinstance(labels, Tensor) or tuple(labels.shape) != shape or labels.dtype != torch.int64:
        got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(
            f"Expected int64 labels of shape {shape}, got {got}.", "Give one label for every example behind a release."
        )
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            f"Expected labels in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}.",
            "The model has that many outputs.",
        )


def check_differentiable(server: Server, previous: Tensor, soft: bool = False) -> None:
    """Refuse a model whose gradient says nothing about its input, before an optimiser is started on it."""
    like, size = previous[:1], server.examples * server.pixels
    images = torch.linspace(0.05, 0.95, size, dtype=like.dtype, device=like.device)
    images = images.view(1, server.examples, *server.shape).requires_grad_()
    labels = torch.zeros(1, server.examples, dtype=torch.int64, device=like.device)
    if soft:  # the attack searches for labels too
        labels = torch.full((1, server.examples, server.classes), 1 / server.classes).to(like)
    remedy = "Gradient matching needs second derivatives; use lti, matched or membership, which do not."
    try:
        result = server.batched.differentiable(like, images, labels)
        slope = torch.autograd.grad(result.square().sum(), images, allow_unused=True)[0]
    except (RuntimeError, AssertionError, TypeError, ValueError, IndexError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        what = " with label probabilities, which dlg needs" if soft else ""
        raise ModelError(f"The model's gradient cannot be differentiated{what}: {cause}", remedy) from error
    if slope is None or not bool((slope != 0).any()):
        raise ModelError("The model's gradient does not depend on its inputs.", remedy)


def check_pair(public: Any) -> None:
    """Refuse what is no public data of any model: finite inputs ``[Q, ...]``, or tokens, with a label for each."""
    pair = isinstance(public, tuple | list) and len(public) == 2
    if not pair or not all(isinstance(part, Tensor) for part in public):
        raise DataError("Expected the public data as a pair of tensors (inputs, labels).", "Give public=(x, y).")
    inputs, labels = public
    if not is_input(inputs):
        raise DataError(
            f"Expected the public inputs as floating point, or as int64 tokens, got {inputs.dtype}.",
            "Normalise them as the inputs of the model are.",
        )
    if inputs.dim() < 2 or labels.dim() < 1 or len(labels) != len(inputs):
        raise DataError(
            f"Expected public inputs [Q, ...] with labels [Q] or [Q, k], got {tuple(inputs.shape)} and {labels.dtype} "
            f"{tuple(labels.shape)}.",
            "Give one label for every input.",
        )
    if not len(inputs):
        raise DataError("There are no public inputs.", "Give some, or leave public out.")
    if not bool(torch.isfinite(inputs).all()):
        raise DataError("The public inputs are not finite.", "Remove NaN and Inf.")


def is_input(inputs: Tensor) -> bool:
    """Whether a tensor can hold inputs: floating-point numbers, or tokens.

    >>> is_input(torch.zeros(2, 3)), is_input(torch.zeros(2, 3, dtype=torch.int64)), is_input(torch.zeros(2, 3).bool())
    (True, True, False)
    """
    return inputs.is_floating_point() or inputs.dtype == torch.int64


def check_public(server: Server, public: Public, labels: Tensor | None) -> Public:
    """Public data with at least one input of every label that is asked for, in the precision of the weights."""
    check_pair(public)
    images, classes = public
    if tuple(images.shape[1:]) != tuple(server.shape):
        raise DataError(
            f"Expected public inputs of shape {server.shape}, got {tuple(images.shape[1:])}.",
            "Give data of the model's own shape.",
        )
    check_labels(classes, (len(images),), server.label_numbers)
    asked, there = (set() if part is None else set(server.strata(part).unique().tolist()) for part in (labels, classes))
    missing = sorted(asked - there)
    if missing:
        raise DataError(
            f"No public input has label {missing[0]}, which a release was trained on.", "Give some of every label."
        )
    like = next(server.batched.model.parameters())
    return placed(images, like.device, like.dtype), classes.to(like.device)


def groups_of_weights(view: View) -> Iterator[tuple[Tensor, Tensor]]:
    """Releases that started from the same weights: (rows ``[n]``, weights ``[P]``)."""
    if view.previous.stride(0) == 0 or len(view) == 1:
        yield torch.arange(len(view), device=view.released.device), view.previous[0]
        return
    starts, place = torch.unique(view.previous, dim=0, return_inverse=True)
    for number, start in enumerate(starts):
        yield (place == number).nonzero().flatten(), start


def groups(server: Server, view: View) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Likewise with the same labels in every local step: (rows ``[n]``, weights ``[P]``, labels ``[E]``).

    Labels are sorted within each step. Whatever an attack learns from simulation serves a whole group.
    """
    assert view.labels is not None
    ordered = ordered_labels(server, view.labels)
    for rows, previous in groups_of_weights(view):
        sets, place = torch.unique(ordered[rows], dim=0, return_inverse=True)
        for number, labels in enumerate(sets):
            yield rows[place == number], previous, labels


def ordered_labels(server: Server, labels: Tensor) -> Tensor:
    """``[N, E]`` sorted within each local step: releases with equal rows are of one group."""
    result: Tensor = labels.unflatten(1, (server.local_steps, -1)).sort(dim=2).values.flatten(1)
    return result


def restore_order(server: Server, images: Tensor, labels: Tensor) -> Tensor:
    """``[n, E, ...]`` in the order of ``groups`` -> the order of ``labels`` ``[n, E]``."""
    steps = labels.unflatten(1, (server.local_steps, -1))
    first = torch.arange(0, labels.shape[1], steps.shape[2], device=labels.device).view(1, -1, 1)
    place = (steps.argsort(dim=2, stable=True).argsort(dim=2) + first).flatten(1)
    return images.gather(1, place.view(*place.shape, *[1] * (images.dim() - 2)).expand_as(images))
