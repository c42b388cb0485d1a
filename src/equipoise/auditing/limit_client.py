"""A client of a mechanism with the budget of a whole run, played with public records and the mechanism's own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..attack.known_others import Terms
from ..mechanism.linear_units import on_head
from ..mechanism.noised_sum import update_per_gradient
from ..mechanism.protection import Protection
from ..mechanism.records import of_units
from ..mechanism.release import release
from ..mechanism.units import EachRecord, Pool, Records, Units, unit_gradients
from ..models.batched import Batched
from ..randomness import Words, experiment_key, keyed_words
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
        return cls((on_head if linear else EachRecord)(batched, records, classes), protection, eta, seed)

    def terms(self, round_number: int) -> Terms:
        return terms_of(self.protection(round_number), self.eta)

    def units(self, weights: Tensor, rows: Tensor) -> Tensor:
        clip, records = self.terms(1).clip, self.pool.records
        if isinstance(self.pool, EachRecord):
            return unit_gradients(self.pool.batched, weights, records.images[rows], records.labels[rows], clip)
        alone, _ = self.pool.total(list(rows.view(-1, 1)), weights.expand(len(rows), -1), clip)
        return alone * self.pool.grid(clip).step

    def releases(
        self, weights: Tensor, data: Sequence[Tensor], streams: Sequence[int], round_number: int
    ) -> tuple[Tensor, Sequence[Tensor]]:
        protection = self.protection(round_number)
        start, words = weights.expand(len(data), -1).contiguous(), self._words(streams, round_number)
        objective = of_units(Units(self.pool, data))
        released = release([objective], start, words, self.eta, protection, utility=False)
        again = zip(data, self._words(streams, round_number), strict=True)  # the same words: the same batches
        took_part = [self.pool.records.sampled(rows, protection.sampling_rate, source) for rows, source in again]
        return released.parameters, took_part

    def _words(self, streams: Sequence[int], round_number: int) -> list[Words]:
        key = experiment_key(self.seed, "audit/noise")
        return [keyed_words(key, stream, round_number) for stream in streams]
