"""The games that limits are proved for, played with a mechanism's own releases.

A client holds a few public records and one *target*, which is in its data in one release and not in another. The
attacker of ``attack/known_others.py`` knows all but the target, and subtracts it exactly: how many others there are
changes nothing, so there are few. Targets are the records of a random part of the public pool, each of them once; the
candidates that a target is hidden among are drawn from that same part, whatever their labels, so that each of them is
as likely as any other to be the one. Games with different targets have different noise: they are independent.

A game of one release is one call of ``Play.add``; a whole run is one for each of its rounds, at the weights that the
run itself had there, with the same target in the data of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor

from ..attack.known_others import Terms, log_ratios, residuals
from ..attack.simulate import ROOM, pieces
from ..errors import DataError
from ..statistics import Array, ranks
from .limit_comparison import IDENTIFICATION, RATES
from .results import Outcome
from .targets import Materials

OTHERS = 7
"""Records of the client beside the target."""


class Client(Protocol):
    """What a game needs of a mechanism. Records are called by their rows in the game's ``images``."""

    def units(self, weights: Tensor, rows: Tensor) -> Tensor:
        """``[n, P]``: the clipped gradient of every record, as a release adds it up."""

    def releases(
        self, weights: Tensor, data: Sequence[Tensor], streams: Sequence[int], round_number: int
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """What R clients with these records release, ``[R, P]``, each with the noise of its stream; and which of its
        records took part."""


@dataclass(frozen=True)
class Game:
    """Who is in the data, and whom the attacker considers: rows of ``images``, of which the first Q are candidates."""

    images: Tensor  # [Q + O, ...]
    labels: Tensor  # [Q + O]
    others: Tensor  # [O]: the last rows; the client's own, known to the attacker
    truth: Tensor  # [N]
    choices: Tensor  # [N, K]
    place: Tensor  # [N]: the column of the truth
    impostor: Tensor  # [N]: the column of another

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def size(self) -> int:
        """Of the part of the pool that is played with, Q."""
        return len(self.labels) - len(self.others)

    @property
    def candidates(self) -> int:
        return self.choices.shape[1]


def deal(materials: Materials, games: int, among: int, seed: int) -> Game:
    """Distinct targets, each among candidates of the same random part of the pool; fewer of both where it is small."""
    (images, labels), public = materials.pool, materials.attack
    games, among = min(games, len(labels)), min(among, len(labels))
    if among < 2 or public is None or len(public[1]) < OTHERS:
        raise DataError(
            f"There are too few public records to play with: {len(labels)} as candidates and "
            f"{0 if public is None else len(public[1])} as others.",
            f"Give at least two candidates and {OTHERS} others.",
        )
    generator = torch.Generator().manual_seed(seed)
    part = torch.randperm(len(labels), generator=generator)[: max(games, among)].to(labels.device)
    truth = torch.arange(games)
    order = torch.rand(games, len(part), generator=generator)
    order[truth, truth] = 2.0  # the truth is no decoy of its own
    choices = torch.cat([truth.unsqueeze(1), order.argsort(1)[:, : among - 1]], dim=1)
    shuffled = torch.rand(games, among, generator=generator).argsort(1)
    place = shuffled.argmin(1)
    impostor = (place + 1 + torch.randint(among - 1, (games,), generator=generator)) % among
    known = torch.randperm(len(public[1]), generator=generator)[:OTHERS].to(public[1].device)
    others = len(part) + torch.arange(OTHERS)
    return Game(
        torch.cat([images[part], public[0][known]]), torch.cat([labels[part], public[1][known]]),
        *(t.to(labels.device) for t in (others, truth, choices.gather(1, shuffled), place, impostor)),
    )  # fmt: skip


@dataclass
class Play:
    """A game under way: log-likelihood ratios that add up from release to release."""

    game: Game
    client: Client
    inside: Tensor = field(init=False)  # [N, Q]: of all candidates, from releases with the truth
    clean: Tensor = field(init=False)  # likewise, had there been no noise
    outside: Tensor = field(init=False)  # [N, Q], from releases without anyone
    strength: Tensor = field(init=False)  # [N]: |u|^2 / sigma^2 of the truth

    def __post_init__(self) -> None:
        zeros = torch.zeros(3, len(self.game), self.game.size, dtype=torch.float64, device=self.game.labels.device)
        (self.inside, self.clean, self.outside), self.strength = zeros, zeros[0, :, 0].clone()

    def add(
        self, weights: Tensor, terms: Terms, round_number: int, step: Callable[[int], None] = lambda count: None
    ) -> None:
        """One more release of every client, with its target and without it; ``step`` is told of every few."""
        game, known = self.game, self.client.units(weights, self.game.others)
        blocks = self._blocks(weights, terms)
        squares = torch.cat([block.square().sum(1) for block in blocks()])
        for rows in pieces(len(game), _rows(weights), game.labels.device):
            both = (self._residuals(weights, terms, known, rows, round_number, present=one) for one in (True, False))
            seen = (*both, _picked(blocks(), game.truth[rows]))
            for table, vectors in zip((self.inside, self.outside, self.clean), seen, strict=True):
                products = torch.cat([vectors @ block.T for block in blocks()], dim=1)
                table[rows] += log_ratios(products, squares, terms)
            step(len(rows))
        self.strength += squares[game.truth] / terms.sigma**2

    def _residuals(
        self, weights: Tensor, terms: Terms, known: Tensor, rows: Tensor, round_number: int, *, present: bool
    ) -> Tensor:
        """What the attacker sees of releases with the target, or of others without it: each has noise of its own."""
        game, streams = self.game, [2 * row + present for row in rows.tolist()]
        mine = game.truth[rows].unsqueeze(1) if present else game.truth.new_empty(len(rows), 0)
        data = list(torch.cat([game.others.expand(len(rows), -1), mine], dim=1))
        released, took_part = self.client.releases(weights, data, streams, round_number)
        return residuals(weights, released, self._present(took_part, known) @ known, terms)

    def _present(self, took_part: Sequence[Tensor], known: Tensor) -> Tensor:
        """Which of the others took part in each release, ``[R, O]``: granted to the attacker, too."""
        everyone, device = torch.cat(list(took_part)), known.device
        owner = torch.arange(len(took_part)).repeat_interleave(torch.tensor([len(row) for row in took_part])).to(device)
        other = everyone >= self.game.size  # the last rows
        result = torch.zeros(len(took_part), len(known), dtype=known.dtype, device=device)
        result[owner[other], everyone[other] - self.game.size] = 1.0
        return result

    def _blocks(self, weights: Tensor, terms: Terms) -> Callable[[], Iterator[Tensor]]:
        """The gradients of all candidates in units of C, ``[some, P]`` at a time: kept where they are few."""
        rows = list(pieces(self.game.size, _rows(weights), self.game.labels.device))

        def compute() -> Iterator[Tensor]:
            return (self.client.units(weights, some).double() / terms.clip for some in rows)

        if 8 * self.game.size * weights.numel() > ROOM[weights.device.type]:
            return compute
        kept = list(compute())
        return lambda: iter(kept)

    def outcome(self, about: dict[str, Any], attack: str) -> Outcome:
        """What the attacker came to, game by game.

        Thresholds are taken from releases without anyone, those of every second game, and the ratios of all candidates
        there: whatever the mechanism does, they know nothing of the other releases.
        """
        game, mine = self.game, self.game.truth.unsqueeze(1)
        own, clean = (ranks(table.gather(1, game.choices), game.place) for table in (self.inside, self.clean))
        left_out = self.inside.scatter(1, mine, torch.nan).gather(1, game.choices)
        decoy = ranks(left_out, game.impostor)
        calibrating = self.outside[::2].flatten().sort().values
        thresholds = [calibrating[max(0, ceil((1 - rate) * len(calibrating)) - 1)] for rate in RATES]
        values = {
            IDENTIFICATION: own.first, "log_rank": own.log, "undistorted": clean.first,
            "members": self.inside.gather(1, mine).squeeze(1), "others": self.outside.gather(1, mine).squeeze(1),
            "thresholds": torch.stack(thresholds).expand(len(game), -1), "strength": self.strength,
        }  # fmt: skip
        negative = {IDENTIFICATION: decoy.first, "log_rank": decoy.log}
        return Outcome(about, attack, _arrays(values), _arrays(negative), notes={"candidates": game.candidates})


def _arrays(values: dict[str, Tensor]) -> dict[str, Array]:
    return {name: value.cpu().numpy() for name, value in values.items()}


def _rows(weights: Tensor) -> int:
    """How many vectors as long as the weights are worked on at once."""
    return max(1, min(256, ROOM[weights.device.type] // (24 * (OTHERS + 1) * weights.numel())))


def _picked(blocks: Iterator[Tensor], rows: Tensor) -> Tensor:
    """Rows ``[R]`` of a table that comes in blocks: ``[R, P]``."""
    start, parts = 0, []
    for block in blocks:
        here = (rows >= start) & (rows < start + len(block))
        parts.append((here, block[rows[here] - start]))
        start += len(block)
    result = parts[0][1].new_empty(len(rows), parts[0][1].shape[1])
    for here, part in parts:
        result[here] = part
    return result
