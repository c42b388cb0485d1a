"""What a sweep is between two rounds, and what it shows of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from .metrics import Tally
from .tables import Block, Tables


@dataclass
class State:
    """Everything that must survive between rounds: F federations, P parameters."""

    round: int
    params: Tensor  # [F, P]
    tally: Tally
    velocity: Tensor | None = None  # [F, P], of a server with momentum

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, beside the number of the round."""
        moving = {} if self.velocity is None else {"velocity": self.velocity}
        sums = {part.name: getattr(self.tally, part.name) for part in fields(self.tally)}
        return {"params": self.params, **moving, **sums}

    def restore(self, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``tensors`` gave; ``ValueError`` and no change where these are of another sweep."""
        if _forms(tensors) != _forms(self.tensors()):
            kept, (federations, here) = tensors.get("params", torch.empty(0)), self.params.shape
            if kept.dim() == 2 and len(kept) == federations and kept.shape[1] != here:
                raise ValueError(f"its model has {kept.shape[1]:,} parameters, and this one {here:,}")
            raise ValueError("it holds other federations")
        self.round, self.params = round_number, tensors["params"].to(self.params.device)
        if self.velocity is not None:
            self.velocity = tensors["velocity"].to(self.params.device)
        for part in fields(self.tally):
            setattr(self.tally, part.name, tensors[part.name])


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Event:
    """A point of the run at which it can be stopped and resumed."""

    round: int
    rows: list[dict[str, Any]]  # one per federation, in the caller's order; empty if not evaluated here
    snapshot: bool  # whether the settings ask for a snapshot of the global models here


@dataclass(frozen=True)
class Preview:
    """What the R clients of one block would do in a round."""

    block: Block
    released: Tensor  # [R, P]
    distortion: Tensor  # [R, P]
    noise: Tensor | None  # [R, P], standard; None without distortion, and where integers are drawn
    tables: Tables  # of that round alone

    def rows(self) -> list[tuple[int, int]]:
        """(federation, slot) of every client; slots are clients where all of them take part."""
        slots = range(self.block.slots.start, self.block.slots.stop)
        federations = range(self.block.federations.start, self.block.federations.stop)
        return [(federation, slot) for federation in federations for slot in slots]
