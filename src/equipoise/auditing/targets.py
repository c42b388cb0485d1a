"""What is attacked: batches of public images that play the private ones.

``Targets`` come with the candidates and non-members they are told apart from. All defences see the same targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attack.attack import Knowledge
from ..attack.simulate import Companions
from ..attack.view import Server
from ..data.dataset import Dataset
from ..errors import ConfigError
from .options import AuditOptions

FEWEST = 4
"""Public inputs of a label from which targets of one's own can be told apart: two to simulate with, two as decoys."""


@dataclass(frozen=True)
class Materials:
    """Public images of one dataset, by what they serve for; labels alike. ``to_pixels`` undoes the normalisation."""

    attack: tuple[Tensor, Tensor] | None  # None: the attacker has no public images
    candidates: tuple[Tensor, Tensor]
    targets: tuple[Tensor, Tensor]
    to_pixels: Callable[[Tensor], Tensor]

    def to(self, device: torch.device, dtype: torch.dtype) -> Materials:
        def moved(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return pair[0].to(device, dtype), pair[1].to(device)

        attack = None if self.attack is None else moved(self.attack)
        return Materials(attack, moved(self.candidates), moved(self.targets), self.to_pixels)

    @classmethod
    def of(cls, dataset: Dataset, private: bool = False) -> Materials:
        """The public parts of a dataset, by what they serve for; ``private`` targets are the clients' own."""
        targets = dataset.train if private else dataset.public_targets
        attack, candidates, held = (
            (part.images, part.labels) for part in (dataset.public_attack, dataset.public_candidates, targets)
        )
        return cls(attack, candidates, held, dataset.pixels)


@dataclass(frozen=True, kw_only=True)
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

    def knowledge(self, public: tuple[Tensor, Tensor] | None) -> Knowledge:
        """What the attacker holds: the truth stands first among the choices, an impostor second."""
        first = torch.stack([self.truth, self.impostor], dim=2)
        return Knowledge(
            public, self.pool, self.pool_labels,
            choices=torch.cat([first, self.decoys], dim=2),
            asked=torch.cat([self.truth, self.impostor, self.others], dim=1),
        )  # fmt: skip


def build_targets(materials: Materials, server: Server, options: AuditOptions) -> Targets:
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
    return Targets(
        pool=pool, pool_labels=pool_labels, truth=truth, labels=asked, impostor=impostor, decoys=decoys, others=others,
        label_sets=len({tuple(s.tolist()) for s in sets}),
    )  # fmt: skip


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


def given_targets(
    images: Tensor, labels: Tensor, public: tuple[Tensor, Tensor] | None, low: float, high: float, options: AuditOptions
) -> tuple[Targets, Materials]:
    """Targets around given inputs; half of the public data serve as decoys and non-members, half for the attacks.

    Where a label of the targets has fewer than ``FEWEST`` public inputs, all serve the attacks: there are no decoys.
    """
    count, examples = labels.shape
    own = images.flatten(0, 1), labels.flatten()
    place = torch.arange(count * examples, device=labels.device).view(count, examples)
    sets = len(labels.sort(1).values.unique(dim=0))

    def to_pixels(values: Tensor) -> Tensor:
        return (values - low) / max(high - low, 1e-30)

    if public is None or min(int((public[1] == label).sum()) for label in labels.unique()) < FEWEST:
        targets = Targets(
            pool=own[0], pool_labels=own[1], truth=place, labels=labels, impostor=place,
            decoys=place[..., None][..., :0], others=place[:, :0], label_sets=sets,
        )  # fmt: skip
        return targets, Materials(public, own, own, to_pixels)
    order = public[1].argsort(stable=True)  # label after label, so that both halves have some of each
    attack, decoys = ((public[0][rows], public[1][rows]) for rows in (order[::2], order[1::2]))
    of = [(decoys[1] == label).nonzero().flatten() for label in range(int(labels.max()) + 1)]
    width = min(min(len(of[label]) for label in labels.unique().tolist()), options.candidates)
    table = torch.stack([rows[:width] if len(rows) >= width else rows.new_zeros(width) for rows in of])[labels]
    offset = len(decoys[0])
    targets = Targets(
        pool=torch.cat([decoys[0], own[0]]),
        pool_labels=torch.cat([decoys[1], own[1]]),
        truth=place + offset,
        labels=labels,
        impostor=table[..., 0],
        decoys=table[..., 1:],
        others=table[..., 1:].transpose(1, 2).flatten(1)[:, : options.others],  # all labels in turn
        label_sets=sets,
    )
    return targets, Materials(attack, decoys, own, to_pixels)
