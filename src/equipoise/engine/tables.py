"""How a sweep is laid out: blocks of clients that run together, and the tables of a few rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from .. import workers
from ..mechanism.registry import Mechanism, get_mechanism
from ..mechanism.schedule import schedule
from .draws import Draws
from .federation import Federation
from .settings import Settings

REUSED = 24 << 20
"""Blocks of memory up to about this size are kept by C libraries for the next use, larger ones are asked for anew."""
LENGTH = 50
"""Rounds that share tables: these stay small, and a GPU is rarely interrupted."""


@dataclass(frozen=True)
class Block:
    """Clients worked on together: some slots of consecutive federations with one mechanism."""

    federations: slice
    slots: slice
    mechanism: Mechanism
    rows: Tensor  # [R] stream of every client, see Draws
    data: Tensor  # [R] its row of the batch table: stream + streams * dataset
    paired: bool = True  # whether kernels see several replicas at once

    def noise(self, table: Tensor) -> Tensor:
        """The rows of a table ``[streams, P]`` that belong to these clients; not copied where they lie together."""
        if self.span is None:
            return table.index_select(0, self.rows)
        return table[self.span]

    def start(self, params: Tensor) -> Tensor:
        """The global model of every client ``[R, P]``, from those of all federations; of one federation a view."""
        mine, width = params[self.federations], self.shape[1]
        if self.paired or len(mine) > 1:
            return self.even(mine.repeat_interleave(width, dim=0))
        return mine.expand(width, -1)

    @cached_property
    def span(self) -> slice | None:
        """Their streams as one stretch, if they are one."""
        first = int(self.rows[0])
        alike = torch.equal(self.rows, torch.arange(first, first + len(self.rows), device=self.rows.device))
        return slice(first, first + len(self.rows)) if alike else None

    @property
    def shape(self) -> tuple[int, int]:
        return self.federations.stop - self.federations.start, self.slots.stop - self.slots.start

    def even(self, rows: Tensor) -> Tensor:
        """``rows`` with the last one repeated if their number is odd and replicas share kernels.

        CPU kernels round alike for every even number of replicas, and differently for odd ones. Learning
        amplifies such differences ten-thousandfold in twenty rounds, so without this a result would depend on
        the chunk size.
        """
        return torch.cat([rows, rows[-1:]]) if self.paired and len(self.rows) % 2 else rows


def blocks(
    federations: list[Federation],
    datasets: list[str],
    draws: Draws,
    chunk: int,
    device: torch.device,
    paired: bool = True,
) -> Iterator[Block]:
    """Cut the sweep into blocks of at most ``chunk`` clients: whole federations, or part of one."""
    first = 0
    while first < len(federations):
        name = federations[first].mechanism
        alike = next((i for i in range(first, len(federations)) if federations[i].mechanism != name), len(federations))
        stop = first + _even_share(alike - first, max(1, chunk // draws.slots))
        width = _even_share(draws.slots, chunk)
        for start in range(0, draws.slots, width):
            slots = slice(start, min(start + width, draws.slots))
            rows = torch.tensor(
                [
                    draws.seeds.index(fed.seed) * draws.slots + slot
                    for fed in federations[first:stop]
                    for slot in range(slots.start, slots.stop)
                ]
            )
            shift = torch.tensor([datasets.index(fed.dataset) for fed in federations[first:stop]])
            data = rows + draws.streams * shift.repeat_interleave(slots.stop - slots.start)
            yield Block(slice(first, stop), slots, get_mechanism(name), rows.to(device), data.to(device), paired)
        first = stop


def _even_share(total: int, most: int) -> int:
    """The size of equal parts of ``total``, each at most ``most``: no small remainder is left over."""
    return -(-total // -(-total // most))


def default_chunk(parameters: int, pixels: int, dtype: torch.dtype, device: torch.device, paired: bool = True) -> int:
    """As many clients at once as keep the arithmetic busy, within half a GiB on CPU and 8 GiB on a GPU.

    Where replicas do not share kernels, no more than ``REUSED`` bytes of parameters, and one for each worker.
    """
    number = torch.finfo(dtype).bits // 8
    if not paired:
        return max(workers.count(), min(96, REUSED // (number * parameters)))
    most, room = (96, 512 << 20) if device.type == "cpu" else (4096, 8 << 30)
    each = number * (10 * parameters + 60 * pixels)  # gradients, distortions; activations
    return max(2, min(most, room // each) // 2 * 2)  # even, see Block.even


@dataclass(kw_only=True)
class Tables:
    """Tables for S rounds, and what the rounds record. F federations, K slots."""

    batches: Tensor  # [S, datasets*streams, L*B]
    scale: Tensor  # [S, F, K]
    gamma: Tensor  # [S, F, K]
    negative_norm: Tensor  # [S, F, K]
    weights: Tensor  # [S, F, K]
    clients: Tensor  # [S, F, K]: who has each slot
    server_rate: Tensor  # [S, F]
    utility_loss: Tensor  # [S, F, K], written round by round; likewise the rest
    intensity: Tensor
    clipped: Tensor
    accepted: Tensor
    distortion: Tensor  # [S, F]: |Delta_t|

    def copy_(self, other: Tables) -> None:
        """Take over tables of at most the same length."""
        for part in fields(self):
            value = getattr(other, part.name)
            getattr(self, part.name)[: len(value)].copy_(value)

    def head(self, length: int) -> Tables:
        """A copy of the first ``length`` rounds."""
        return Tables(**{part.name: getattr(self, part.name)[:length].clone() for part in fields(self)})


def build_tables(
    rounds: list[int],
    settings: Settings,
    federations: list[Federation],
    draws: Draws,
    *,
    parts: dict[str, list[Tensor]],
    shares: dict[str, Tensor],
    parameters: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tables:
    """The tables of the given rounds. ``parts`` and ``shares`` say who owns what, per dataset."""
    who = draws.participants(rounds)[:, [draws.seeds.index(fed.seed) for fed in federations]]  # [S, F, K]
    shape = who.shape

    def table(per_federation: list[list[list[float]]]) -> Tensor:
        values = torch.tensor(per_federation, dtype=torch.float64).transpose(0, 1)  # [S, F, clients]
        return values.gather(2, who).to(device, dtype)

    def shared(name: str) -> Tensor:
        return table(
            [schedule(getattr(settings.protection, name), rounds, settings.protection.clients, name)] * len(federations)
        )

    def blank(*size: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.zeros(size, dtype=kind, device=device)

    rates = [settings.server_rates(fed, rounds, parameters) for fed in federations]
    whole_run = all(get_mechanism(fed.mechanism).whole_run for fed in federations)  # these draw their own batches
    size = 0 if whole_run else settings.protection.batch * settings.protection.local_steps
    batches = [draws.batches(rounds, size, part, settings.training.sampling) for part in parts.values()]
    return Tables(
        batches=torch.cat(batches, dim=1).to(device),
        scale=table([settings.protection.scales(fed.mechanism, fed.budget, rounds) for fed in federations]),
        gamma=shared("gamma"),
        negative_norm=shared("negative_norm"),
        weights=table([[shares[fed.dataset].tolist()] * len(rounds) for fed in federations]),
        clients=who.contiguous().to(device),
        server_rate=torch.tensor(rates, dtype=torch.float64).t().contiguous().to(device),
        utility_loss=blank(*shape),
        intensity=blank(*shape),
        clipped=blank(*shape),
        accepted=blank(*shape, kind=torch.bool),
        distortion=blank(*shape[:2]),
    )
