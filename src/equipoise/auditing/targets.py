"""What is attacked, and how hard: batches of public images that play the private ones.

``Targets`` come with the candidates and non-members they are told apart from. All defences see the same targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from ..attack import Effort, Search, Server
from ..attack.inversion import DLG, MAP
from ..attack.matched import Given
from ..attack.simulate import Companions
from ..errors import ConfigError, closest

ATTACKS = ("invgrad", "dlg", "idlg", "likelihood", "unrolled", "lti", "matched", "membership", "labels")


@dataclass(frozen=True)
class Options:
    """How hard to attack. The defaults suit two CPU cores and minutes."""

    attacks: list[str] = field(default_factory=lambda: ["invgrad", "lti", "matched", "membership", "labels"])
    releases: int = 32
    label_sets: int = 3
    candidates: int = 200  # for identification, the truth among them
    others: int = 20  # non-members per release
    seed: int = 0
    iterations: int = 1600  # of invgrad; as the paper
    lr: float = 1.0
    signed: bool = True
    tv: float = 1e-5
    restarts: int = 1
    samples: int = 500  # simulated releases per label set, for lti and labels
    given: Given = "nothing"  # what matched conditions its responses on
    pairs: int = 2
    anchors: int = 4
    around: int = 32
    tuning: int = 16
    trials: int = 32
    companions: int = 4
    nulls: int = 16
    twins: bool = True  # whether a learned mechanism is set beside static noise at the same weights
    pictures: int = 2  # releases whose reconstructions are kept

    def check(self) -> None:
        plain = Options()
        for part in fields(self):
            value, kind = getattr(self, part.name), type(getattr(plain, part.name))
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(
                    f"Expected {part.name}={value!r} to be of type {kind.__name__}.", "See targets.Options."
                )
        for name in self.attacks:
            if not isinstance(name, str):
                raise ConfigError(f"Expected attacks={self.attacks!r} to be names.", f"Known: {', '.join(ATTACKS)}.")
            if name not in ATTACKS:
                raise ConfigError(
                    f"Unknown attack {name!r}.{closest(name, list(ATTACKS))}", f"Known: {', '.join(ATTACKS)}."
                )
        small = [name for name in MINIMA if getattr(self, name) < MINIMA[name]]
        if small:
            wrong = ", ".join(f"{name}={getattr(self, name)} (at least {MINIMA[name]})" for name in small)
            raise ConfigError(f"Too small: {wrong}.", "Raise them, or leave them out.")
        if self.given not in ("nothing", "release", "best"):
            raise ConfigError(f"Expected given={self.given!r} to be nothing, release or best.", "See attack.matched.")

    def effort(self) -> Effort:
        names = ("pairs", "anchors", "around", "tuning", "trials", "nulls")
        return Effort(**{name: getattr(self, name) for name in names}, given=self.companions)

    def search(self, attack: str) -> Search:
        own = {"dlg": DLG, "idlg": DLG, "likelihood": MAP, "unrolled": MAP}.get(attack)
        if own is not None:
            return replace(own, restarts=self.restarts, seed=self.seed)
        names = ("iterations", "lr", "signed", "tv", "restarts", "seed")
        return Search(**{name: getattr(self, name) for name in names})


MINIMA = {
    "releases": 2, "label_sets": 1, "candidates": 2, "others": 1, "iterations": 1, "restarts": 1, "samples": 10,
    "pairs": 1, "anchors": 1, "around": 4, "tuning": 2, "trials": 2, "companions": 1, "nulls": 2, "pictures": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Materials:
    """Public images of one dataset, by what they serve for; labels alike. ``to_pixels`` undoes the normalisation."""

    attack: tuple[Tensor, Tensor]
    candidates: tuple[Tensor, Tensor]
    targets: tuple[Tensor, Tensor]
    to_pixels: Callable[[Tensor], Tensor]

    def to(self, device: torch.device, dtype: torch.dtype) -> Materials:
        def moved(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return pair[0].to(device, dtype), pair[1].to(device)

        return Materials(moved(self.attack), moved(self.candidates), moved(self.targets), self.to_pixels)


@dataclass(frozen=True)
class Targets:
    """N batches to be attacked. ``pool`` holds candidates and targets; the rest are its rows."""

    pool: Tensor  # [Q, ...]
    pool_labels: Tensor  # [Q]
    truth: Tensor  # [N, E]
    labels: Tensor  # [N, E]
    impostor: Tensor  # [N, E]: images of another batch with the same labels
    decoys: Tensor  # [N, E, K - 1]
    others: Tensor  # [N, O]: non-members of the same labels
    label_sets: int

    @property
    def images(self) -> Tensor:
        return self.pool[self.truth]


def build_targets(materials: Materials, server: Server, options: Options) -> Targets:
    """Batches of target images over several label sets, each with impostors, decoys and non-members."""
    images, labels = materials.targets
    known = labels.unique()
    generator = torch.Generator().manual_seed(options.seed)
    sets = []
    for _ in range(options.label_sets):
        if len(known) >= server.examples:  # distinct labels, where there are enough
            chosen = known.cpu()[torch.randperm(len(known), generator=generator)[: server.examples]]
        else:
            chosen = known.cpu()[torch.randint(len(known), (server.examples,), generator=generator)]
        sets.append(chosen.sort().values)
    asked = torch.stack([sets[i % len(sets)] for i in range(options.releases)]).to(images.device)
    rows = torch.arange(options.releases, device=images.device)
    offset = len(materials.candidates[0])
    truth = _dealt(labels, asked, generator) + offset
    impostor = _dealt(labels, asked, generator) + offset
    decoys = _decoys(materials.candidates[1], asked, options.candidates - 1, generator)
    spread = asked[:, torch.arange(options.others, device=asked.device) % server.examples]
    others = Companions(materials.candidates, options.seed, "audit/others").draw(spread, rows)
    pool = torch.cat([materials.candidates[0], images])
    pool_labels = torch.cat([materials.candidates[1], labels])
    impostor = _outside(impostor - offset, truth - offset, labels) + offset
    return Targets(pool, pool_labels, truth, asked, impostor, decoys, others, len({tuple(s.tolist()) for s in sets}))


def _dealt(labels: Tensor, asked: Tensor, generator: torch.Generator) -> Tensor:
    """Images with the labels ``asked`` ``[N, E]``: each once, in random order, before any is used again."""
    out = torch.empty_like(asked)
    for label in asked.unique().tolist():
        own = (labels == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator).to(own.device)]
        here = asked == label
        out[here] = own[torch.arange(int(here.sum()), device=own.device) % len(own)]
    return out


def _outside(rows: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
    """``rows`` ``[N, E]``, each moved on to the next image of its label until it is in no place of its ``batch``."""
    order = labels.argsort(stable=True)
    place, count = order.argsort(), torch.bincount(labels)
    start = (count.cumsum(0) - count)[labels[rows]]
    for _ in range(batch.shape[1]):
        inside = (rows.unsqueeze(2) == batch.unsqueeze(1)).any(2)
        following = order[start + (place[rows] - start + 1) % count[labels[rows]]]
        rows = torch.where(inside, following, rows)
    return rows


def _decoys(labels: Tensor, asked: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The same ``count`` random candidates for all targets of a label: ``[N, E, count]``, fewer if there are fewer."""
    most = int(torch.bincount(labels, minlength=int(asked.max()) + 1)[asked].min())
    if most < 1:
        raise ConfigError("A label of the targets has no candidate images.", "Give public data of every label.")
    table = torch.zeros(int(asked.max()) + 1, min(count, most), dtype=torch.int64, device=asked.device)
    for label in asked.unique().tolist():
        own = (labels == label).nonzero().flatten()
        order = torch.randperm(len(own), generator=generator).to(own.device)
        table[label] = own[order[: table.shape[1]]]
    return table[asked]
