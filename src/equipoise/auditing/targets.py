"""What is attacked: batches of public records that play the private ones.

Targets, decoys and non-members come from one exchangeable pool: before a release is made, nothing tells the record that
will be in it from those that will not. No record is a target or a non-member twice, so that releases are independent
and an interval over releases is one over records too; a small pool gives fewer releases. All defences see the same
ones. Where labels are no classes, an example has decoys of any label, and each of them its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..attack.attack import Knowledge
from ..attack.view import Server
from ..data.dataset import Dataset
from ..data.splits import Split, distinct, mixed
from ..errors import DataError
from ..models.inputs import placed
from ..randomness import experiment_key, uniform
from .options import AuditOptions
from .table_scores import Columns

FEWEST = 4
"""Public inputs of a label from which targets of one's own can be told apart: two to simulate with, two as decoys."""

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Materials:
    """Records of one dataset, by what they serve for; labels alike. ``to_pixels``, of images, undoes normalisation."""

    attack: Pair | None  # public, for the attacker to simulate with; None: it has none
    pool: Pair  # targets, decoys and non-members
    to_pixels: Callable[[Tensor], Tensor]

    @cached_property
    def columns(self) -> Columns:
        """Of the records that the attacker may know; where it knows none, of those that are attacked."""
        return Columns.of((self.attack or self.pool)[0])

    def to(self, device: torch.device, dtype: torch.dtype) -> Materials:
        def moved(pair: Pair) -> Pair:
            return placed(pair[0], device, dtype), pair[1].to(device)

        return Materials(None if self.attack is None else moved(self.attack), moved(self.pool), self.to_pixels)

    @classmethod
    def of(cls, dataset: Dataset, private: bool = False) -> Materials:
        """The public parts of a dataset, by what they serve for; a ``private`` pool is all that the clients hold.

        No image is in them twice: it would be a decoy of itself.
        """
        dataset = replace(dataset, public=dataset.public and _once(dataset.public))
        attack, pool = dataset.public_attack, _once(dataset.train) if private else dataset.public_pool
        return cls((attack.inputs, attack.labels), (pool.inputs, pool.labels), dataset.pixels)


def _once(split: Split) -> Split:
    rows = distinct(split.inputs)
    return split if len(rows) == len(split) else mixed(split.take(rows))


def repeats(dataset: Dataset, private: bool = False) -> int:
    """How many images ``Materials.of`` leaves out because they equal another."""
    splits = [split for split in (dataset.public, dataset.train if private else None) if split is not None]
    return sum(len(split) - len(distinct(split.inputs)) for split in splits)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """N batches of E images to be attacked, as rows of ``pool``."""

    pool: Tensor  # [Q, ...]
    pool_labels: Tensor  # [Q]
    labels: Tensor  # [N, E]
    choices: Tensor  # [N, E, W]: each image among candidates of its label, in one list for all of it in a batch
    left_out: Tensor  # [N, E, W] bool: columns that do not count, so that K are left: others of the batch, repetitions
    place: Tensor  # [N, E]: the column of the image itself
    impostor: Tensor  # [N, E]: the column of another one, which chance is measured by; meaningless if K = 1
    asked: Tensor  # [N, O]: images of which membership is asked, of the labels of the batch
    member: Tensor  # [N, O] bool: whether they are in the batch; the same number in every row
    label_sets: int

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def truth(self) -> Tensor:
        """``[N, E]``"""
        return self.choices.gather(2, self.place.unsqueeze(2)).squeeze(2)

    @cached_property
    def false(self) -> Tensor:
        """``[N, E]``: the impostors."""
        return self.choices.gather(2, self.impostor.unsqueeze(2)).squeeze(2)

    @property
    def inputs(self) -> Tensor:
        return self.pool[self.truth]

    @property
    def candidates(self) -> int:
        """Among how many an image is sought: K, the columns that count."""
        return int((~self.left_out[0, 0]).sum())

    def counted(self, values: Tensor) -> Tensor:
        """Of values for all candidates ``[N, E, W]`` those that count: ``[N, E, K]``."""
        return values[~self.left_out].view(*values.shape[:2], -1)

    def column(self, place: Tensor) -> Tensor:
        """Where a column ``[N, E]`` that counts stands among those that do."""
        return (~self.left_out).cumsum(2).gather(2, place.unsqueeze(2)).squeeze(2) - 1

    @property
    def others(self) -> int:
        """Non-members of every release."""
        return int((~self.member[:1]).sum())

    @cached_property
    def recurring(self) -> bool:
        """Whether an image is a target twice: then releases are not independent, and there are no intervals."""
        return self.truth.numel() != len(self.truth.unique())

    @cached_property
    def others_recurring(self) -> bool:
        """Whether an image is a non-member twice: then membership has no intervals."""
        outside = self.asked[~self.member]
        return len(outside) != len(outside.unique())

    def to(self, device: torch.device) -> Targets:
        """The same with all indices where the pool is."""
        return replace(self, **{
            part.name: getattr(self, part.name).to(device) for part in fields(self) if part.name != "label_sets"
        })  # fmt: skip

    def knowledge(self, public: Pair | None) -> Knowledge:
        """What the attacker holds."""
        return Knowledge(
            public, self.pool, self.pool_labels, choices=self.choices, asked=self.asked, companions=self.truth
        )


def build_targets(materials: Materials, server: Server, options: AuditOptions) -> Targets:
    """Batches over all labels, none of whose images occurs twice, with decoys and non-members of the same pool.

    Where the pool is too small for all that the options ask for, there are fewer non-members, then fewer releases, then
    fewer candidates.
    """
    labels, generator = materials.pool[1].cpu(), torch.Generator().manual_seed(options.seed)
    sets = label_sets(_usable(materials, server), server.batch, server.local_steps, options.label_sets, generator)
    counts = torch.bincount(labels)

    def batches(releases: int) -> Tensor:
        return sets[torch.arange(releases) % len(sets)]

    releases = most(options.releases, lambda n: room(counts, batches(n), 1, options.seed))
    others = most(options.others, lambda n: room(counts, batches(releases), n, options.seed))
    wanted = with_others(batches(releases), others, options.seed)
    labels = some_of(labels, wanted, server.examples, options.candidates, generator)
    dealt = deal(labels, wanted, generator)
    truth, outside = dealt.split([server.examples, others], dim=1)
    known = labels[truth]
    lists = among(labels, truth, known, options.candidates, generator)
    everyone, member = shuffled(truth, outside, generator)
    return Targets(
        pool=materials.pool[0], pool_labels=materials.pool[1], labels=known, **lists._asdict(), asked=everyone,
        member=member, label_sets=min(releases, len({tuple(row) for row in sets.tolist()})),
    ).to(materials.pool[1].device)  # fmt: skip


def _usable(materials: Materials, server: Server) -> Tensor:
    """Labels of which there are enough examples in the pool for a batch and a decoy, and some to simulate with."""
    labels = materials.pool[1].cpu()
    counts = torch.bincount(labels)
    known = counts.nonzero().flatten()
    if materials.attack is not None:
        known = known[torch.isin(known, materials.attack[1].cpu())]
    while len(known):
        least = -(-server.batch // len(known)) * server.local_steps + 1
        if bool((counts[known] >= least).all()):
            return known
        known = known[counts[known] >= least]
    raise DataError(
        f"There are too few public examples to play batches of {server.examples}, with decoys, from one pool.",
        "Give more public examples of every label.",
    )


def label_sets(known: Tensor, batch: int, steps: int, count: int, generator: torch.Generator) -> Tensor:
    """``[count, steps * batch]`` labels: over all sets every label is dealt about equally often, and no step has one
    twice before it has all. Sorted within a step.
    """
    deck: list[int] = []
    rows = []
    for _ in range(count * steps):
        hand = known.repeat(batch // len(known)).tolist()
        rest: list[int] = []
        while len(hand) + len(rest) < batch:
            free = [label for label in deck if label not in rest]
            if not free:
                deck += known[torch.randperm(len(known), generator=generator)].tolist()
                continue
            rest.append(free[0])
            deck.remove(free[0])
        rows.append(sorted(hand + rest))
    return torch.tensor(rows).view(count, steps * batch)


def with_others(labels: Tensor, count: int, seed: int) -> Tensor:
    """Labels of batches ``[N, E]``, and behind them of ``count`` non-members each, with about the mix of the batches:
    every label of the batch as often as it goes, and for the rest those at random places of it.
    """
    examples = labels.shape[1]
    key = experiment_key(seed, "audit/others")
    numbers = uniform([key], [0], [0], labels.numel(), torch.float64)[0, 0].view(labels.shape)
    turns, rest = torch.arange(count - count % examples) % examples, numbers.argsort(1)[:, : count % examples]
    return torch.cat([labels, labels[:, turns], labels.gather(1, rest)], dim=1)


def _evenly(labels: Tensor, count: int) -> Tensor:
    """Likewise with the rest at fixed places: by these it is counted how many there can be."""
    examples, turns = labels.shape[1], torch.arange(count)
    return torch.cat([labels, labels[:, turns % examples if count > examples else turns * examples // count]], dim=1)


def room(counts: Tensor, labels: Tensor, others: int, seed: int) -> bool:
    """Whether there are enough images of every label for batches with so many non-members each."""
    return fits(counts, _evenly(labels, others)) and fits(counts, with_others(labels, others, seed))


def fits(counts: Tensor, asked: Tensor) -> bool:
    """Whether there are enough images of every label to play each of ``asked`` by one of its own."""
    return bool((torch.bincount(asked.flatten(), minlength=len(counts)) <= counts).all())


def most(limit: int, possible: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` that is possible; 1 if none is."""
    return max(1, bisect_left(range(1, limit + 1), True, key=lambda n: not possible(n)))


def some_of(labels: Tensor, asked: Tensor, examples: int, candidates: int, generator: torch.Generator) -> Tensor:
    """``labels`` ``[Q]``, where only as many random images of each keep theirs as serve: no attack pays for the rest.

    That is one for each of ``asked`` ``[N, A]``, whose first ``examples`` are batches, and enough for every member of a
    batch to have its candidates.
    """
    nobody = int(labels.max()) + 1
    kept = torch.full_like(labels, nobody)
    for label in asked.unique().tolist():
        own = (labels == label).nonzero().flatten()
        together = int((asked[:, :examples] == label).sum(1).max())
        size = max(int((asked == label).sum()), candidates - 1 + together)
        kept[own[torch.randperm(len(own), generator=generator)[:size]]] = label
    return kept


def deal(labels: Tensor, asked: Tensor, generator: torch.Generator) -> Tensor:
    """Rows with the labels ``asked`` ``[N, A]`` in random order, none twice unless there are too few of a label."""
    out = torch.empty_like(asked)
    for label in asked.unique().tolist():
        own = (labels == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        here = asked == label
        out[here] = own[torch.arange(int(here.sum())) % len(own)]
    return out


class Lists(NamedTuple):
    """Candidates, as ``Targets`` has them."""

    choices: Tensor
    left_out: Tensor
    place: Tensor
    impostor: Tensor


def among(labels: Tensor, truth: Tensor, known: Tensor, width: int, generator: torch.Generator) -> Lists:
    """Each image ``truth`` ``[N, E]`` of label ``known`` among random others of that label that are not in its batch.

    Images of one label in a batch have one list, which holds all of them: from lists of their own, each would be told
    by being the one that the others lack. At the place of one of them the others do not count. Lists with fewer such
    images than the longest repeat their first candidates, which do not count either. Every image is sought among K
    candidates: ``width``, or less if a label has fewer.

    ``labels`` ``[Q]`` are those of the decoys' pool; a truth beyond its end is not from there.
    """
    rows, examples = torch.arange(len(truth)).unsqueeze(1), torch.arange(truth.shape[1])
    same = known.unsqueeze(2) == known.unsqueeze(1)  # [N, E, E]
    first, twin = (table.int().argmax(2) for table in (same, truth.unsqueeze(2) == truth.unsqueeze(1)))
    images = same & (twin == examples).unsqueeze(1)  # an image that is in a batch twice is in the list once
    mates = images.sum(2)
    rank = images.cumsum(2).gather(2, twin.unsqueeze(2)).squeeze(2) - 1
    inside = same & (truth < len(labels)).unsqueeze(1)
    free = torch.bincount(labels, minlength=int(known.max()) + 1)[known] - inside.sum(2)
    width = min(width, 1 + int(free.min()))
    choices = torch.empty(*truth.shape, width - 1 + int(mates.max()), dtype=torch.int64)
    for label in known.unique().tolist():
        own = (labels == label).nonzero().flatten()
        release, example = ((known == label) & (first == examples)).nonzero().unbind(1)
        order = torch.rand(len(release), len(own), generator=generator)
        order[(own.view(1, -1, 1) == truth[release].unsqueeze(1)).any(2)] = 2.0  # nobody of the batch is a decoy
        columns = mates[release, example].unsqueeze(1) + torch.arange(width - 1)
        choices[release.unsqueeze(1), example.unsqueeze(1), columns] = own[order.argsort(1)[:, : width - 1]]
    choices[rows, first, rank] = truth
    columns = torch.arange(choices.shape[2])
    length = (mates + width - 1).unsqueeze(2)
    order = torch.rand(choices.shape, generator=generator).masked_fill(columns >= length, 2.0).argsort(2)
    order = order.gather(2, columns % length)[rows, first]
    left_out = (columns >= length) | ((order < mates.unsqueeze(2)) & (order != rank.unsqueeze(2)))
    place = (order == rank.unsqueeze(2)).int().argmax(2)
    turns = (place.unsqueeze(2) + 1 + columns) % len(columns)  # from the next column on, to the place itself
    which = torch.randint(max(1, width - 1), truth.shape, generator=generator)
    nth = (~left_out.gather(2, turns)).cumsum(2) == which.unsqueeze(2) + 1
    impostor = turns.gather(2, nth.int().argmax(2, keepdim=True)).squeeze(2)
    return Lists(choices[rows, first].gather(2, order), left_out, place, impostor)


def shuffled(members: Tensor, others: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Members ``[N, E]`` and others ``[N, O]`` in random order, and which are members."""
    everyone = torch.cat([members, others], dim=1)
    order = torch.rand(everyone.shape, generator=generator).argsort(1)
    return everyone.gather(1, order), order < members.shape[1]


def given_targets(
    images: Tensor, labels: Tensor, public: Pair | None, low: float, high: float, options: AuditOptions,
    strata: Callable[[Tensor], Tensor] = lambda labels: labels,
) -> tuple[Targets, Materials]:  # fmt: skip
    """Targets around given inputs; half of the public data serve as decoys and non-members, half for the attacks.

    ``strata`` tells by their labels which examples are exchanged for one another (``Server.strata``).
    Where a label of the targets has fewer than ``FEWEST`` public inputs, all serve the attacks: there are no decoys.
    Public inputs equal neither each other nor a target. The pool is in random order: no place in it tells a target.
    """
    own = images.flatten(0, 1), labels.flatten()
    first = _first_places(*own).view(labels.shape)  # an input that was trained on twice is one input
    known, device = strata(labels).cpu(), labels.device
    sets = len(known.sort(1).values.unique(dim=0))

    def to_pixels(values: Tensor) -> Tensor:
        return (values - low) / max(high - low, 1e-30)

    if public is None or _fewest(strata(public[1]), known) < FEWEST:
        zero, none = torch.zeros_like(first), first[:, :0]
        targets = Targets(
            pool=own[0], pool_labels=own[1], labels=labels, choices=first.unsqueeze(2),
            left_out=zero.bool().unsqueeze(2), place=zero, impostor=zero, asked=none, member=none.bool(),
            label_sets=sets,
        )  # fmt: skip
        return targets, Materials(public, own, to_pixels)
    generator = torch.Generator().manual_seed(options.seed)
    order = strata(public[1]).argsort(stable=True)  # label after label, so that both halves have some of each
    attack, decoys = ((public[0][rows], public[1][rows]) for rows in (order[::2], order[1::2]))
    held = strata(decoys[1]).cpu()
    counts = torch.bincount(held, minlength=int(known.max()) + 1)
    examples, seed = known.shape[1], options.seed
    others = most(
        options.others,
        lambda n: all(fits(counts, t[:, examples:]) for t in (_evenly(known, n), with_others(known, n, seed))),
    )
    outside = deal(held, with_others(known, others, seed)[:, examples:], generator)
    truth = first.cpu() + len(held)
    lists = among(held, truth, known, options.candidates, generator)
    asked, member = shuffled(truth, outside, generator)
    once = first.flatten().unique()  # a second row of the same input would tell that it is a target
    order = torch.randperm(len(held) + len(once), generator=generator)
    place_of = torch.empty(len(held) + len(own[1]), dtype=torch.int64)
    place_of[torch.cat([torch.arange(len(held)), len(held) + once.cpu()])[order]] = torch.arange(len(order))
    targets = Targets(
        pool=torch.cat([decoys[0], own[0][once]])[order.to(device)],
        pool_labels=torch.cat([decoys[1], own[1][once]]).cpu()[order], labels=labels.cpu(),
        **lists._replace(choices=place_of[lists.choices])._asdict(), asked=place_of[asked], member=member,
        label_sets=sets,
    )  # fmt: skip
    return targets.to(device), Materials(attack, decoys, to_pixels)


def _fewest(there: Tensor, wanted: Tensor) -> int:
    """Of how many there are least, among the labels that are wanted."""
    return min(int((there == label).sum()) for label in wanted.unique().tolist())


def _first_places(images: Tensor, labels: Tensor) -> Tensor:
    """For every image with its label ``[Q]``, the first row that holds the same."""
    _, same = torch.unique(torch.cat([images.flatten(1), labels.unsqueeze(1)], dim=1), dim=0, return_inverse=True)
    rows = torch.arange(len(same), device=same.device)
    return torch.full_like(rows, len(rows)).scatter_reduce(0, same, rows, "amin")[same]
