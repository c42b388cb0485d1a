"""What a server does with the releases of a round: check each, refuse by name, average the rest.

``Intake`` is for releases of unknown origin; the embedded engine, whose releases are rows of its own tensors, uses the
batched ``aggregate.Total``. Your own loop and the Flower strategy use this one.

Guarantees:

* ``offer`` never raises for anything that a client can send; it returns the reason of a refusal, or None;
* a refused release has no influence on the mean, and an accepted one is finite and has the agreed form, so nothing
  is broadcast, cast or filled in;
* an accepted update is no longer than ``max_norm``, and no accepted weight is more than ``max_weight_ratio`` times the
  median of the round (``limits.py``);
* the mean is taken in float64, one release at a time: memory grows with the number of different weights, not with that
  of clients, and not at all with ``max_weight_ratio=math.inf``;
* with fewer than ``min_clients`` accepted releases the round is void, and the model stays as it was.

What it cannot see: an update of the agreed form that is wrong within these bounds. Robust aggregation is for that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ..errors import ReleaseError, is_number, is_whole, printable
from .limits import MAX_WEIGHT, MAX_WEIGHT_RATIO, ROUNDING, Limits, wrong_norm


@dataclass(frozen=True)
class Aggregate:
    """The new global tensors, who was counted, and why the others were not.

    >>> Aggregate({"w": torch.zeros(2)}, accepted=["a"], refused={"b": "not finite"}).void
    False
    """

    parameters: dict[str, Tensor]
    accepted: list[str]
    refused: dict[str, str]
    void: bool = False


class _Mean:
    """A weighted mean of named tensors in float64. It runs between its parts, so that nothing can overflow."""

    def __init__(self, like: Mapping[str, Tensor]):
        self.mass = Fraction(0)  # exact: no sum of weights overflows, however large they may be
        self.tensors = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in like.items()}

    def add(self, tensors: Mapping[str, Tensor], weight: Fraction) -> None:
        self.mass += weight
        share = float(weight / self.mass)
        for name, mean in self.tensors.items():
            mean.mul_(1 - share).add_(tensors[name].detach().to(mean.device, torch.float64) * share)


class Intake:
    """One round of a server whose global tensors are ``previous``.

    Make one for every round, ``offer`` it every release that arrives, and ``close`` it.

    Args:
        previous: the global parameters that were sent out, as a state dict; releases must have the same form.
        round_number: the number of the round; a release that names another one is refused.
        clients: those that were asked; None: anyone may answer.
        max_weight: the largest weight that is believed.
        max_norm: the largest L2 norm of an update, floating entries alone; None: 100 times (L2 norm of ``previous`` +
            ``distortion`` + 1); ``math.inf``: any.
        max_weight_ratio: the largest weight in medians of the round's weights. Known when all releases are there, so
            ``close`` refuses by it (``settle``, for servers that average by other means); ``math.inf``: any.
        distortion: the expected L2 norm of what the clients were asked to add; part of the automatic ``max_norm``.
        averages: False only checks, for servers that average by other means.

    >>> intake = Intake({"w": torch.zeros(2)}, round_number=1)
    >>> intake.offer("a", {"w": torch.ones(2)}, weight=30, round_number=1)
    >>> intake.offer("b", {"w": torch.ones(1)}, weight=10, round_number=1)
    "tensor 'w' has shape (1,), expected (2,)"
    >>> intake.offer("c", {"w": torch.full((2,), 3e38)}, weight=10, round_number=1)
    'has an update of L2 norm 4.24264e+38, expected at most 100'
    >>> intake.close().parameters["w"].tolist()
    [1.0, 1.0]
    """

    def __init__(
        self,
        previous: Mapping[str, Tensor],
        round_number: int,
        *,
        clients: Collection[str] | None = None,
        max_weight: float = MAX_WEIGHT,
        max_norm: float | None = None,
        max_weight_ratio: float = MAX_WEIGHT_RATIO,
        distortion: float = 0.0,
        averages: bool = True,
    ):
        if not previous or not all(isinstance(t, Tensor) and torch.isfinite(t).all() for t in previous.values()):
            raise ReleaseError("Expected the global parameters to be finite tensors.", "Start from a healthy model.")
        self.previous = {name: tensor.detach() for name, tensor in previous.items()}
        self.round_number, self.clients, self.averages = round_number, clients, averages
        self.limits = Limits(max_weight, max_norm, max_weight_ratio)
        self.max_norm = self.limits.norm(self.previous, distortion)
        self.bytes = sum(tensor.nbytes for tensor in previous.values())
        self.refused: dict[str, str] = {}
        self._weights: dict[str, float] = {}  # of all releases that were good by themselves
        self._heavy: dict[str, str] = {}
        self._mean = _Mean(self.previous) if self.limits.max_weight_ratio == math.inf else None  # of what has arrived
        self._held: dict[str, dict[str, Tensor]] = {}  # else all of it: who is too heavy is known at the end

    @property
    def accepted(self) -> list[str]:
        """Who is counted, in the order of arrival."""
        return [client for client in self._weights if client not in self._heavy]

    def offer(self, client: str, update: object, weight: object, round_number: object) -> str | None:
        """Count a release, or say why not.

        Args:
            client: who sent it; its first good release counts, and an earlier refusal is then forgotten.
            update: the parameters, as a state dict. May be anything: it is checked.
            weight: how many examples stand behind it.
            round_number: the round that the release says it is for.

        Returns:
            None if it was counted, else the reason for the refusal.
        """
        reason = self.refusal(client, update, weight, round_number)
        if reason is not None:
            self.refused[client] = reason
            return reason
        self.refused.pop(client, None)
        self._weights[client] = weight  # type: ignore[assignment]  # a number: just checked
        if self.averages:
            if self._mean is None:
                self._held[client] = {name: tensor.detach().clone() for name, tensor in update.items()}  # type: ignore[attr-defined]
            else:
                self._mean.add(update, Fraction(weight))  # type: ignore[arg-type, call-overload]
        return None

    def refusal(self, client: str, update: object, weight: object, round_number: object) -> str | None:
        """Why a release cannot be counted, or None; changes nothing."""
        return (
            self.wrong_client(client)
            or wrong_round(round_number, self.round_number)
            or wrong_weight(weight, self.limits.max_weight)
            or wrong_tensors(update, self.previous, self.bytes)
            or _wrong_whole(update, self.previous)  # type: ignore[arg-type]  # tensors: just checked
            or wrong_norm(update, self.previous, self.max_norm)  # type: ignore[arg-type]  # tensors: just checked
        )

    def wrong_client(self, client: str) -> str | None:
        """Why nothing of this client can be counted, or not any more."""
        if self.clients is not None and client not in self.clients:
            return "was not asked in this round"
        return "sent a second release in this round; the first counts" if client in self._weights else None

    def settle(self) -> dict[str, str]:
        """Refuse the releases that are too heavy among those that have arrived; the reasons, by client."""
        self._heavy = self.limits.heavy(self._weights)
        self.refused |= self._heavy
        return self._heavy

    def close(self, rate: float = 1.0, min_clients: int = 1) -> Aggregate:
        """The step towards the mean, ``W + rate * (mean - W)``; no step if too few releases were accepted.

        Args:
            rate: the size of the step; 1 is the plain mean, less damps the noise of the releases.
            min_clients: with fewer accepted releases the round is void.

        Returns:
            The new global parameters, who was counted, and why the others were not.
        """
        if not (isinstance(rate, int | float) and math.isfinite(rate) and rate > 0):
            raise ReleaseError(f"Expected rate={rate!r} to be a finite number > 0.", "1 is the plain mean.")
        self.settle()
        if len(self.accepted) < max(min_clients, 1):
            return Aggregate(dict(self.previous), self.accepted, self.refused, void=True)
        moved = {}
        for name, mean in self._averaged().tensors.items():
            old = self.previous[name].to(torch.float64)
            moved[name] = (mean if rate == 1 else old + rate * (mean - old)).to(self.previous[name].dtype)
            if not torch.isfinite(moved[name]).all():
                raise ReleaseError(f"The new tensor {name!r} is not finite in its own precision.", "Lower the rate.")
        wrong = wrong_norm(moved, self.previous, self.max_norm * ROUNDING)
        if wrong is not None:
            raise ReleaseError(f"The new model {wrong}.", "Lower the rate.")
        return Aggregate(moved, self.accepted, self.refused)

    def _averaged(self) -> _Mean:
        """The mean of all releases that are not too heavy."""
        if self._mean is not None:
            return self._mean
        result = _Mean(self.previous)
        for client in self.accepted:
            result.add(self._held[client], Fraction(self._weights[client]))
        return result


def wrong_round(actual: object, expected: int) -> str | None:
    """
    >>> wrong_round(3, 4)
    'is for round 3, a stale one; round 4 is open'
    """
    if not is_whole(actual):
        return f"names no round: {short(actual)}"
    if actual != expected:
        age = "stale" if actual < expected else "future"
        return f"is for round {short(actual)}, a {age} one; round {expected} is open"
    return None


def wrong_weight(weight: object, most: float) -> str | None:
    """
    >>> wrong_weight(1e12, 1e7)
    'has weight 1000000000000.0, expected a number > 0 and <= 1e+07'
    """
    good = is_number(weight) and 0 < weight <= most and weight != math.inf
    return None if good else f"has weight {short(weight)}, expected a number > 0 and <= {most:g}"


def wrong_tensors(update: object, like: Mapping[str, Tensor], agreed: int) -> str | None:
    """
    >>> wrong_tensors({"w": torch.tensor([float("nan")])}, {"w": torch.zeros(1)}, 4)
    "tensor 'w': 1 of 1 numbers are not finite"
    """
    if not isinstance(update, Mapping):
        return f"is {type(update).__name__}, not named tensors"
    others = [f"{short(name)} is {type(t).__name__}" for name, t in update.items() if not isinstance(t, Tensor)]
    if others:
        return f"holds something that is not a tensor: {others[0]}"
    return wrong_form({name: Form.of(tensor) for name, tensor in update.items()}, like, agreed) or _not_finite(update)


def _wrong_whole(update: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> str | None:
    """Counters and indices are nobody's to train: an honest client sends them back as they came."""
    for name, tensor in like.items():
        if (
            not tensor.is_floating_point()
            and not tensor.is_complex()
            and not torch.equal(update[name].cpu(), tensor.cpu())
        ):
            return f"tensor {name!r} is not as it was sent"
    return None


@dataclass(frozen=True)
class Form:
    """What is known of a tensor before its numbers are read."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kind: str = "dense"

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        if tensor.is_nested:
            return cls((), str(tensor.dtype).removeprefix("torch."), 0, "other")  # it has no shape
        dense = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized
        size = tensor.numel() * tensor.element_size() if dense else 0
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), size, "dense" if dense else "other")


def wrong_form(actual: Mapping[str, Form], like: Mapping[str, Tensor], agreed: int) -> str | None:
    """Names, sizes, shapes and types: all that can be checked without looking at a number."""
    if not actual:
        return "is empty"
    size = sum(form.bytes for form in actual.values())
    if size > 2 * agreed:  # first of all, so that nothing huge is looked at closely
        return f"has {size} bytes, {agreed} are agreed"
    missing, extra = sorted(set(like) - set(actual)), [name for name in actual if name not in like]
    if missing:
        return f"lacks tensor {missing[0]!r}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
    if extra:
        return f"has an extra tensor {short(extra[0])}" + (f" and {len(extra) - 1} more" if extra[1:] else "")
    for name, form in actual.items():
        expected = Form.of(like[name])
        if form.kind != expected.kind:
            return f"tensor {name!r} is not dense"
        if form.shape != expected.shape:
            return f"tensor {name!r} has shape {short(form.shape)}, expected {expected.shape}"
        if form.dtype != expected.dtype:
            return f"tensor {name!r} has dtype {short(form.dtype, quote=False)}, expected {expected.dtype}"
    return None


def _not_finite(update: Mapping[str, Tensor]) -> str | None:
    for name, tensor in update.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            return f"tensor {name!r}: {bad} of {tensor.numel()} numbers are not finite"
    return None


def short(value: object, quote: bool = True, most: int = 80) -> str:
    """A value of unknown origin, fit for one line of a log."""
    if is_whole(value) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str):
        value = value[: most + 1]  # before anything is made of it
    try:
        text = repr(value) if quote else str(value)
    except Exception as error:  # its own code, whatever that may raise
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    text = printable(text)
    return text if len(text) <= most else text[: most - 3] + "..."
