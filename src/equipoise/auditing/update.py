"""What was sent, and what is really behind it: the update that is audited, and the truth it is scored against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attack.view import Server, View, check_labels, is_input
from ..errors import ConfigError, DataError, ModelError, ReleaseError
from ..mechanism.protection import Protection, ProtectionSettings, check_protection
from ..mechanism.registry import Mechanism, checked
from ..models.batched import Batched
from ..models.inputs import placed
from ..models.objective import Loss
from ..models.received import Received

State = Mapping[str, Tensor]
"""A state dict: names with tensors; it may hold more than the trainable ones."""


@dataclass(frozen=True, eq=False)
class Update:
    """An update as the server got it, and what is public about it: how it was trained and protected.

    Several updates of one model are lists of state dicts.

    Args:
        model: The module that was trained. Which parameters are trainable counts, their values do not.
        before: The state that the server had sent; one state dict may serve a list of updates. Frozen parameters and
            buffers that it does not hold are taken from the model.
        after: The parameters that came back.
        gradient: The gradient that came back, in place of ``after``.
        mechanism: What distorted the update, by its name; ``"none"`` for a plain one.
        budget: The budget of the mechanism; of a schedule, that of the first round holds.
        settings: All else that the release depends on, ``eta`` and ``local_steps`` above all.
        loss: ``loss(outputs, labels)`` of the training, a mean over the batch; by default cross-entropy. Labels that
            are no classes (a regression, multi-hot rows) need theirs.

    >>> model = nn.Linear(4, 2)
    >>> Update(model, model.state_dict(), model.state_dict(), mechanism="pl-learn", budget=0.98)
    Update(mechanism='pl-learn', budget=0.98, settings=None)
    """

    model: nn.Module = field(repr=False)
    before: State | Sequence[State] = field(repr=False)
    after: State | Sequence[State] | None = field(default=None, repr=False)
    _: KW_ONLY
    gradient: State | Sequence[State] | None = field(default=None, repr=False)
    mechanism: str | Mechanism = "none"
    budget: Any = None
    settings: ProtectionSettings | None = None
    loss: Loss | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ConfigError(
                f"Expected the model to be a torch.nn.Module, got {type(self.model).__name__}.",
                "Give the module whose parameters were trained.",
            )
        if (self.after is None) == (self.gradient is None):
            raise ConfigError("Expected either the state after the update or a gradient.", "Give after= or gradient=.")
        check_protection(self.terms)
        checked(self.mechanism, self.budget)

    @property
    def terms(self) -> ProtectionSettings:
        """The settings, or their defaults."""
        return ProtectionSettings() if self.settings is None else self.settings

    @property
    def several(self) -> bool:
        """Whether this is a list of updates."""
        return not isinstance(self.after if self.gradient is None else self.gradient, Mapping)

    def protection(self, batch: int) -> Protection:
        """What protected the update, whose local steps took ``batch`` examples each."""
        terms = replace(self.terms, batch=batch)
        return terms.at(checked(self.mechanism, self.budget), self.budget, 1)

    def fixed(self) -> dict[str, Tensor]:
        """The frozen parameters and buffers that the server had sent: the client's loss was taken with these."""
        trained = {name: p for name, p in self.model.named_parameters(remove_duplicate=False) if p.requires_grad}
        rest = self.model.state_dict().keys() - trained.keys()
        first, *others = (
            Received(self.model, trained | {name: state[name].clone() for name in rest & state.keys()}).fixed()
            for state in _listed(self.before)
        )
        for other in others:
            unlike = [name for name in first.keys() | other.keys() if not _same(first.get(name), other.get(name))]
            if unlike:
                raise ReleaseError(
                    f"The updates started from different values of {min(unlike)!r}, which is not trained.",
                    "Audit them one by one, or those together that share their buffers and frozen parameters.",
                )
        return first

    def view(self, batched: Batched, like: Tensor) -> View:
        """Weights before and after, a row per update, in the precision of ``like`` and on its device."""

        def flat(states: Any) -> Tensor:
            return torch.stack([batched.layout.flatten(state).to(like.device, like.dtype) for state in _listed(states)])

        start, sent = flat(self.before), flat(self.after if self.gradient is None else self.gradient)
        if len(start) not in (1, len(sent)):
            raise ReleaseError(f"{len(start)} states before {len(sent)} updates.", "Give one for each, or one for all.")
        start = start.expand(len(sent), -1)
        return View(start, sent if self.gradient is None else start - self.terms.eta * sent)


def _listed(states: Any) -> list[State]:
    listed = [states] if isinstance(states, Mapping) else states
    if not isinstance(listed, Sequence) or not all(isinstance(state, Mapping) for state in listed):
        raise ModelError("Expected a state dict, or a list of them.", "Pass model.state_dict().")
    if not listed:
        raise ReleaseError("There is no update to audit.", "Give at least one state dict.")
    return list(listed)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


@dataclass(frozen=True, eq=False)
class Truth:
    """The real examples behind the updates, to score attacks against."""

    inputs: Tensor = field(repr=False)  # [N, E, ...]
    labels: Tensor = field(repr=False)  # [N, E]; of labels that are no classes, as given, [N, E, k]

    @classmethod
    def of(cls, pair: Any) -> Truth:
        """A pair (inputs ``[E, ...]`` or ``[N, E, ...]``, a label for each of them), as a caller gives it."""
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError("Expected the truth as a pair (inputs, labels).", "Give truth=(x, y).")
        inputs, labels = pair
        if not isinstance(inputs, Tensor) or not is_input(inputs) or inputs.dim() < 2:
            raise DataError(
                "Expected the inputs of the truth as a floating-point tensor [E, ...] or [N, E, ...], or int64 tokens.",
                "Use torch.as_tensor(inputs).float().",
            )
        if not isinstance(labels, Tensor) or labels.dim() < 1:
            raise DataError(
                "Expected the labels of the truth as a tensor [E] or [N, E].", "Use torch.as_tensor(labels)."
            )
        if not bool(torch.isfinite(inputs).all()):
            raise DataError("The truth is not finite.", "Remove NaN and Inf.")
        return cls(inputs, labels)

    def at(self, server: Server, view: View) -> Truth:
        """The same as ``[N, E, ...]`` and ``[N, E]``, like the weights; pictures within the range that is assumed."""
        shape = (len(view), server.examples, *server.shape)
        inputs = placed(self.inputs, view.released.device, view.released.dtype)
        inputs = inputs.unsqueeze(0) if inputs.dim() == len(shape) - 1 else inputs
        labels = self.labels.to(view.released.device)
        labels = labels.expand(len(view), -1) if labels.dim() == 1 else labels
        check_labels(labels, shape[:2], server.label_numbers)
        if tuple(inputs.shape) != shape:
            raise DataError(
                f"Expected a truth of {shape[0]} update(s) of {shape[1]} examples as [{shape[0]}, {shape[1]}, ...] in "
                f"the shape of the public inputs, if any, got {tuple(inputs.shape)}.",
                "Give one batch per update, as the model takes them.",
            )
        if server.tokens or isinstance(server.low, Tensor):  # a row beyond the range of its columns is a rare one
            return Truth(inputs, labels)
        low, high = float(server.low), float(server.high)
        slack = 0.01 * (high - low)
        if float(inputs.min()) < low - slack or float(inputs.max()) > high + slack:
            raise DataError(
                f"Part of the truth lies outside {low:.3g}..{high:.3g}.",
                "Give Attacker(bounds=(low, high)): the range that the attacker takes the inputs to be in.",
            )
        return Truth(inputs, labels)
