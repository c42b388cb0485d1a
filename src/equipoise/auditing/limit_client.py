"""A client of a mechanism with the budget of a whole run, played with public records and the mechanism's own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..attack.known_others import Terms
from ..mechanism.linear_units import on_head
from ..mechanism.noised_sum import update_per_gradient
from ..mechanism.protection import Protection
from ..mechanism.records import of_units
from ..mechanism.release import release
from ..mechanism.units import EachRecord, Pool, Records, Units
from ..models.batched import Batched
from ..randomness import Key, Words, experiment_key, first_words, keyed_words
from .limit_games import Game


def terms_of(protection: Protection, eta: float) -> Terms:
    """What is public of a release under this protection."""
    assert protection.clip is not None
    rate = update_per_gradient(eta, protection)
    sigma = float(protection.scale) / (rate * protection.clip)
    return Terms(clip=protection.clip, sigma=sigma, rate=rate, sampling_rate=protection.sampling_rate)


@dataclass(frozen=True)
class PlayedClient:
    """Releases by ``release.release``, with noise keyed by the audit's seed."""

    pool: Pool
    protection: Callable[[int], Protection]  # of a round
    eta: float
    seed: int

    @classmethod
    def of(
        cls, batched: Batched, game: Game, classes: int, *, linear: bool,
        protection: Callable[[int], Protection], eta: float, seed: int,
    ) -> PlayedClient:  # fmt: skip
        """``linear``: the model is a linear head, and the records are features."""
        records = Records(game.images, game.labels)
        pool = on_head(batched, records, classes) if linear else EachRecord(batched, records, classes)
        if isinstance(pool, EachRecord):
            pool.slots = len(game.others) + 1
        return cls(pool, protection, eta, seed)

    def terms(self, round_number: int) -> Terms:
        return terms_of(self.protection(round_number), self.eta)

    def units(self, weights: Tensor, rows: Tensor) -> Tensor:
        clip = self.terms(1).clip
        return self.pool.each(rows, weights.view(1, -1), clip) * self.pool.grid(clip).step

    def releases(
        self, weights: Tensor, data: Sequence[Tensor], streams: Sequence[int], round_number: int
    ) -> tuple[Tensor, Sequence[Tensor]]:
        protection, key = self.protection(round_number), experiment_key(self.seed, "audit/noise")
        start = weights.expand(len(data), -1).contiguous()
        objective = of_units(Units(self.pool, data))
        words = words_of(key, streams, round_number, weights)
        released = release([objective], start, words, self.eta, protection, utility=False).parameters
        if protection.sampling_rate == 1:
            return released, data
        again = (keyed_words(key, stream, round_number) for stream in streams)  # the same words: the same batches
        pairs = zip(data, again, strict=True)
        return released, [self.pool.records.sampled(rows, protection.sampling_rate, source) for rows, source in pairs]


def words_of(key: Key, streams: Sequence[int], round_number: int, like: Tensor) -> list[Words]:
    """``keyed_words`` of every stream; on a GPU the first of them, one per weight, are computed there, all at once."""
    if like.device.type == "cpu":
        return [keyed_words(key, stream, round_number) for stream in streams]
    table = first_words(key, streams, round_number, like.numel(), like.device).cpu().numpy().view(np.uint64)
    return [
        Ahead(row, partial(keyed_words, key, stream, round_number)) for row, stream in zip(table, streams, strict=True)
    ]


class Ahead:
    """``Words`` whose first ones are at hand; the whole sequence is begun again when more are asked for."""

    def __init__(self, first: NDArray[np.uint64], begin: Callable[[], Words]):
        self.first, self.begin, self.used = first, begin, 0
        self.more: Words | None = None

    def __call__(self, count: int) -> NDArray[np.uint64]:
        if self.more is None and self.used + count <= len(self.first):
            self.used += count
            return self.first[self.used - count : self.used]
        if self.more is None:
            self.more = self.begin()
            self.more(self.used)
        return self.more(count)
