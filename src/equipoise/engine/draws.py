"""Who takes part and which examples they see, for a few rounds at a time.

Streams are (seed, slot) pairs: slot j of a round is the j-th participating client. All tables are keyed by
(seed, client, round), so they do not depend on how rounds or federations are grouped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import DataError
from ..mechanism.noise import standard_noise
from ..randomness import Key, Words, experiment_key, keyed_words, subset, uniform

DRAWN = 2 << 20


class Draws:
    """Participants, mini-batches and noise of a sweep with the given seeds."""

    def __init__(self, seeds: Sequence[int], clients: int, participants: int | None):
        self.seeds, self.clients = list(seeds), clients
        self.slots = clients if participants is None else participants
        self._keys = {p: [experiment_key(s, p) for s in self.seeds] for p in ("batch", "noise", "participants", "pass")}

    @property
    def streams(self) -> int:
        return len(self.seeds) * self.slots

    def participants(self, rounds: Sequence[int]) -> Tensor:
        """Client of every slot, ascending: ``[rounds, seeds, slots]``."""
        if self.slots == self.clients:
            return torch.arange(self.clients).expand(len(rounds), len(self.seeds), -1)
        numbers = uniform(self._keys["participants"], [0] * len(self.seeds), rounds, self.slots, torch.float64)
        everyone = torch.full(numbers.shape[:2], self.clients)
        return subset(numbers, everyone).sort(-1).values

    def batches(self, rounds: Sequence[int], size: int, parts: list[Tensor], sampling: str) -> Tensor:
        """Example indices ``[rounds, streams, size]`` into the training set that ``parts`` divides."""
        smallest = min(len(part) for part in parts)
        if smallest < size:
            raise DataError(
                f"A client has {smallest} examples, fewer than the {size} of one round.",
                "Use a smaller batch, fewer local steps or fewer clients; or deal the examples more evenly: "
                "partition=identical, or a larger dirichlet.",
            )
        clients = self.participants(rounds).flatten(1)  # [rounds, streams]
        draw = self._uniform_batches if sampling == "uniform" else self._passes
        place = draw(rounds, clients, size, parts)  # position within the client's own examples
        starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
        return torch.cat(parts)[starts[clients].unsqueeze(-1) + place]

    def _uniform_batches(self, rounds: Sequence[int], clients: Tensor, size: int, parts: list[Tensor]) -> Tensor:
        sizes = torch.tensor([len(part) for part in parts])
        numbers = self._per_stream("batch", rounds, clients, size, torch.float64)
        return subset(numbers, sizes[clients])

    def _passes(self, rounds: Sequence[int], clients: Tensor, size: int, parts: list[Tensor]) -> Tensor:
        """Every pass visits a fresh permutation of the client's examples; a remainder below one batch is dropped."""
        place = torch.empty(*clients.shape, size, dtype=torch.int64)
        orders: dict[tuple[int, int, int], Tensor] = {}
        for i, round_number in enumerate(rounds):
            for j, client in enumerate(clients[i].tolist()):
                count = len(parts[client])
                number, step = divmod(round_number - 1, count // size)
                seed = j // self.slots
                order = orders.get((seed, client, number))
                if order is None:
                    keys = uniform([self._keys["pass"][seed]], [client], [number], count, torch.float64)
                    order = orders[seed, client, number] = keys[0, 0].argsort(stable=True)
                place[i, j] = order[step * size : (step + 1) * size]
        return place

    def noise(
        self,
        rounds: Sequence[int],
        rows: Sequence[int],
        count: int,
        family: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """Standard noise of the given streams: ``[rounds, rows, count]``."""
        clients = self.participants(rounds).flatten(1)[:, list(rows)]
        keys = [self._keys["noise"][row // self.slots] for row in rows]
        return standard_noise(_by_client(keys, clients, rounds, count, dtype, device), family)

    def fill(self, out: Tensor, rounds: Sequence[int], rows: Sequence[int], family: str, widest: int) -> Tensor:
        """The same noise, written into ``out`` ``[rounds, rows, count]`` by parts: a GPU's generator needs eight times
        the memory of what it draws at once, which is that of ``widest`` streams, or ``DRAWN`` numbers."""
        width = max(1, max(DRAWN // out.shape[2], widest) // len(rounds))
        for start in range(0, len(rows), width):
            part = out[:, start : start + width]
            part.copy_(self.noise(rounds, rows[start : start + width], out.shape[2], family, out.dtype, out.device))
        return out

    def words(self, round_number: int, rows: Sequence[int]) -> list[Words]:
        """What a formal mechanism draws its noise from: a source for each of the given streams."""
        clients = self.participants([round_number]).flatten(1)[0].tolist()
        return [keyed_words(self._keys["noise"][row // self.slots], clients[row], round_number) for row in rows]

    def _per_stream(
        self, purpose: str, rounds: Sequence[int], clients: Tensor, count: int, dtype: torch.dtype
    ) -> Tensor:
        keys = [key for key in self._keys[purpose] for _ in range(self.slots)]
        return _by_client(keys, clients, rounds, count, dtype, torch.device("cpu"))


def _by_client(
    keys: list[Key], clients: Tensor, rounds: Sequence[int], count: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """``uniform`` where the client behind a stream may change from round to round."""
    if len(rounds) == 1 or bool((clients == clients[0]).all()):
        return uniform(keys, clients[0].tolist(), rounds, count, dtype, device)
    return torch.cat(
        [
            uniform(keys, row.tolist(), [round_number], count, dtype, device)
            for row, round_number in zip(clients, rounds, strict=True)
        ]
    )
