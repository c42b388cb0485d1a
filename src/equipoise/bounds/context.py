"""What the parts share: the run as it was, at chosen weights, and the form of what is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..engine.evaluation import full_gradient, score
from ..engine.sweep import Sweep
from ..errors import ConfigError
from ..models.batched import Batched
from ..statistics import interval
from .estimates import Estimate, mean_of

Status = Literal["held", "violated", "not checkable", "not covered"]
Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it, in seconds on a slow machine."""
Row = dict[str, Any]


@dataclass(frozen=True)
class BoundsOptions:
    """How closely to look. The defaults suit two CPU cores and a minute or two."""

    rounds: list[int] | None = None  # snapshots; None: all there are
    subproblems: int = 16  # inner trajectories per federation and snapshot
    repeats: int = 16  # rounds drawn afresh from a snapshot, for the one-step lemma
    samples: int = 64  # mini-batch gradients, for their variance
    examples: int = 256  # drawn afresh for every such round, to measure F before and after it
    power: int = 12  # power iterations for a curvature
    short: int = 6  # rounds of the short run with a smaller eta, where the run's own is too large
    targets: int = 8  # releases attacked per federation and snapshot; 0: no attack
    iterations: int | None = None  # of the attack; None: leakage.iterations of the run
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be measured, all problems at once."""
        least = {"subproblems": 2, "repeats": 2, "samples": 2, "examples": 1, "power": 1, "short": 1, "targets": 0}
        wrong = []
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None and part.name in ("rounds", "iterations"):
                continue
            if part.name == "rounds":
                if not isinstance(value, list) or not value or not all(type(when) is int for when in value):
                    wrong.append(f"rounds={value!r} (a list of rounds)")
            elif type(value) is not int:
                wrong.append(f"{part.name}={value!r} (a whole number)")
            elif value < least.get(part.name, 2 if part.name == "iterations" else 0):
                wrong.append(f"{part.name}={value} (at least {least.get(part.name, 2)})")
        if type(self.targets) is int and self.targets == 1:
            wrong.append("targets=1 (0, or at least 2: one release has no interval)")
        if wrong:
            raise ConfigError(f"Impossible options: {', '.join(wrong)}.", "See bounds.BoundsOptions.")


# -- the run -------------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """A sweep and the weights of its snapshots, all in the order of ``sweep.federations``."""

    sweep: Sweep
    weights: dict[int, Tensor]  # round -> [F, P]
    final: tuple[int, Tensor]  # the last snapshot, asked for or not: theorem converge_rate_mt is about the whole run
    options: BoundsOptions
    progress: Progress | None = None

    def tell(self, what: str, amount: float) -> None:
        if self.progress:
            self.progress(what, amount)

    def about(self, index: int, when: int | None) -> Row:
        return {**asdict(self.sweep.federations[index]), "round": when}

    @cached_property
    def twin(self) -> Batched:
        """The model in float64."""
        return Batched(copy.deepcopy(self.sweep.batched.model).double(), device=self.sweep.device)

    @cached_property
    def smooth(self) -> bool:
        """Whether every layer is twice continuously differentiable; of layers unknown here, nobody says so."""
        known = (nn.Sequential, nn.Flatten, nn.Linear, nn.Conv2d, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity)
        return all(isinstance(part, known) for part in self.sweep.batched.model.modules())

    def federations(self, dataset: str) -> list[int]:
        return [i for i, fed in enumerate(self.sweep.federations) if fed.dataset == dataset]

    def examples(self, dataset: str) -> Tensor:
        """Rows of all training examples: F averages over them."""
        return torch.cat(self.sweep.parts[dataset]).to(self.sweep.device)

    def losses(self, params: Tensor, rows: Mapping[str, Tensor] | None = None) -> Tensor:
        """F of every federation's model ``[F, P] -> [F]`` in float64, over all examples or given ones."""
        out = torch.zeros(len(params), dtype=torch.float64, device=params.device)
        for name in self.sweep.parts:
            mine, chosen = self.federations(name), (rows or {}).get(name)
            chosen = self.examples(name) if chosen is None else chosen
            found = score(self.sweep.batched, params[mine], self.sweep.images[chosen], self.sweep.labels[chosen])[1]
            out[mine] = found.double().mean(1)
        return out

    def gradients(self, params: Tensor, rows: Mapping[str, Tensor] | None = None) -> Tensor:
        """grad F, likewise: ``[F, P] -> [F, P]``."""
        out = torch.zeros_like(params)
        for name in self.sweep.parts:
            mine, chosen = self.federations(name), (rows or {}).get(name)
            chosen = self.examples(name) if chosen is None else chosen
            images, labels = self.sweep.images[chosen], self.sweep.labels[chosen]
            out[mine] = full_gradient(self.sweep.batched, params[mine], images, labels)
        return out


# -- figures, assumptions, rows ------------------------------------------------------------------------------------


def figure(value: float | None, count: int, kind: str, error: float | None = None) -> Row:
    """A number with what it was made from."""
    return {"value": value, "count": count, "kind": kind, "error": error, "low": None, "high": None}


def average(values: Tensor) -> Row:
    """The mean of independent numbers with its standard error and Student's 95 % interval."""
    found: Estimate = mean_of(values)
    low, high = interval(values.detach().double().flatten().tolist()) or (None, None)
    return figure(found.value, found.count, "mean", found.error) | {"low": low, "high": high}


def largest(values: Tensor) -> Row:
    return figure(float(values.max()), values.numel(), "largest")


def smallest(values: Tensor) -> Row:
    return figure(float(values.min()), values.numel(), "smallest")


def given(value: float | None) -> Row:
    """A setting, or what follows from settings by arithmetic."""
    return figure(value, 1, "given")


def assumption(name: str, status: Status, note: str = "", **figures: Row | None) -> Row:
    return {"name": name, "status": status, "note": note, "figures": figures}


def compared(name: str, value: Row, limit: Row, strict: bool, note: str = "") -> Row:
    """The assumption that a number is below (at most) a limit."""
    low, high = value["value"], limit["value"]
    return assumption(name, "held" if low < high or (not strict and low == high) else "violated", note,
                      value=value, limit=limit)  # fmt: skip


def row(
    about: Row,
    result: str,
    quantity: str,
    setting: str,
    *,
    status: str | None = None,
    reason: str = "",
    bound: Row | None = None,
    measured: Row | None = None,
    holds: bool | None = None,
    margin: float | None = None,
    constants: dict[str, Row] | None = None,
    assumptions: Sequence[Row] = (),
    **more: Any,
) -> Row:
    """One result at one place: ``status`` follows from the assumptions unless given.

    ``margin`` is the smallest ratio of bound to measurement, and the bound holds where it is at least 1.
    """
    broken = [one["name"] for one in assumptions if one["status"] == "violated"]
    return {
        **about, "result": result, "quantity": quantity, "setting": setting,
        "status": status or ("does not apply" if broken else "applies"),
        "reason": reason or ("violated: " + "; ".join(broken) if broken else ""),
        "bound": bound, "measured": measured, "holds": holds, "margin": margin,
        "constants": constants or {}, "assumptions": list(assumptions), **more,
    }  # fmt: skip
