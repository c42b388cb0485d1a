"""Stand-in clients made of public records: what settings are chosen on, so that no client's record is looked at.

The records are cut in eight, alike in their classes: two parts are kept for the accuracy that is reported at the end,
the others train the stand-in clients and are what candidates are compared on. Few records take turns at that (folds).

A stand-in has fewer records, n, than the client of the real federation, N. In both, the sum of the gradients is
divided by their number, so its mean is as long; but gaussian-dp adds a standard deviation of sigma C / N to the mean
of a real client, and would add sigma C / n to that of a stand-in: more than will be added. Stand-ins therefore get
the noise multiplier sigma n / N, which is sigma C / N on their mean. ``budget`` says so in the one way that the
engine takes: the epsilon that so little noise is worth to the stand-ins, with the multiplier beside it. That epsilon
is of no interest to anybody else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..data.splits import Split, mixed
from ..engine.datasets import dealt
from ..engine.settings import Settings
from ..errors import DataError
from ..mechanism.run_budget import GaussianSettings
from ..privacy.gaussian import SIGMAS

PARTS = 8
"""Of all records; two of them are reported on."""
REPORTED = 2
ENOUGH = 2000
"""Records from which on nothing takes turns: three parts in eight of them train, one and a half choose."""
LEAST = 80
"""Records that choosing takes at least: ten in each part."""


@dataclass(frozen=True)
class StandIns:
    """Public records as a federation: by fold a dataset whose validation part chooses and whose test part reports."""

    folds: dict[str, Dataset]
    per_client: int  # n, records of a stand-in client
    records: int  # N, records of a real one
    clients: int
    private: bool  # whether these are clients' own records after all
    unit: str = "record"  # "group" where the data name whose each record is

    @property
    def name(self) -> str:
        return next(iter(self.folds.values())).name

    @property
    def what(self) -> str:
        return "training records of the clients" if self.private else "public records"

    @property
    def reported(self) -> int:
        """Records that accuracies are reported on."""
        return len(next(iter(self.folds.values())).test)

    @property
    def compared(self) -> int:
        """Records that candidates are compared on: those of all folds, which take turns."""
        return sum(len(fold.validation) for fold in self.folds.values())

    @property
    def largest_class(self) -> float:
        """The accuracy of always naming it, on the records that are reported on."""
        labels = next(iter(self.folds.values())).test.labels
        return float(torch.bincount(labels).max()) / len(labels)

    def smallest(self, settings: Settings) -> int:
        """Records of the client that has the fewest, as the settings deal them."""
        return min(len(part) for fold in self.folds.values() for part in dealt(settings, fold)[0])

    def fold(self, seed: int) -> str:
        """Whose turn it is."""
        return list(self.folds)[seed % len(self.folds)]

    def sigma(self, real: GaussianSettings, epsilon: float) -> float:
        """The noise multiplier of a stand-in whose mean gets the noise of a real client's."""
        return real.sigma(epsilon) * self.per_client / real.divisor

    def budget(self, real: GaussianSettings, epsilon: float) -> tuple[float, GaussianSettings]:
        """What to ask of a stand-in, in place of ``epsilon`` under the ``real`` settings.

        >>> from equipoise import GaussianSettings, load
        >>> stand_ins = of_dataset(load("mnist"), clients=4, records=1000)
        >>> real = GaussianSettings(rounds=50, divisor=1000)
        >>> worth, own = stand_ins.budget(real, 2.0)
        >>> own.divisor, round(own.sigma(worth) / own.divisor, 6) == round(real.sigma(2.0) / 1000, 6)
        (750, True)
        """
        own = replace(real, divisor=self.per_client, sigmas=[])
        sigma = self.sigma(real, epsilon)
        if sigma < SIGMAS[0]:
            raise DataError(
                f"Stand-in clients have {self.per_client:,} records each, far fewer than the {real.divisor:,.0f} of a "
                f"client: the noise of epsilon {epsilon:g} is nothing to them, and nothing can be said of it.",
                "Give more public records, a smaller --records, more rounds, or a smaller epsilon.",
            )
        worth = own.epsilon(sigma)
        return worth, replace(own, sigmas=[[worth, sigma]])


def of_dataset(dataset: Dataset, clients: int, records: int, *, private: bool = False) -> StandIns:
    """Stand-ins of the public part of a dataset; ``private``: of what clients train on, where there is no public part.

    >>> from equipoise import load
    >>> stand_ins = of_dataset(load("breast-cancer"), clients=4, records=50)
    >>> len(stand_ins.folds), stand_ins.per_client, stand_ins.reported
    (6, 31, 50)
    """
    source = dataset.train if private else dataset.public
    if source is None:
        raise DataError(
            f"The dataset {dataset.name!r} has no public {dataset.train.word} to choose on.",
            "Set some apart that belong to no client: --set public_fraction=0.2. Or tune on the clients' own training "
            "records, which no epsilon covers: --on-private-records.",
        )
    unit, rows = units_of(source)
    least = max(LEAST, PARTS * clients)
    if rows < least:
        raise DataError(
            f"The dataset {dataset.name!r} has {rows} {'training' if private else 'public'} records, too few to choose "
            f"on: {clients} clients take at least {least}.",
            "Give more files" + ("." if private else ", or set more apart: --set public_fraction=0.3."),
        )
    part = unit * PARTS // rows  # stretches: neighbours differ in their class, so every second row need not
    test = source.take(part < REPORTED)
    if rows >= ENOUGH:
        cuts = [(part >= PARTS // 2, (part >= REPORTED) & (part < PARTS // 2))]
    else:
        cuts = [((part >= REPORTED) & (part != turn), part == turn) for turn in range(REPORTED, PARTS)]
    most = min(min(len(unit[train].unique()) for train, _ in cuts) // clients, records)
    folds = {}
    for number, (train, held) in enumerate(cuts, 1):
        name = dataset.name if len(cuts) == 1 else f"{dataset.name}, fold {number}"
        kept = torch.isin(unit, unit[train].unique()[: most * clients])
        folds[name] = replace(dataset, train=source.take(kept), validation=source.take(held), test=test, public=None)
    return StandIns(folds, most, records, clients, private, "record" if dataset.train.groups is None else "group")


def units_of(split: Split) -> tuple[Tensor, int]:
    """A number for every row, alike for rows that belong together, and how many different ones there are.

    Rows are numbered so that every stretch has its share of each class.
    """
    if split.groups is not None:
        found, place = torch.unique(split.groups, return_inverse=True)
        return place, len(found)
    order = mixed(Split(torch.arange(len(split)).unsqueeze(1).float(), split.labels)).inputs[:, 0].long()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return place, len(order)


def rounded(records: int) -> int:
    """Records of a client, rounded down: two leading digits, below 100 one, as two would be the exact number.

    >>> rounded(1000), rounded(57), rounded(1234)
    (1000, 50, 1200)
    """
    digits = len(str(records))
    step: int = 10 ** max(0, digits - (1 if digits < 3 else 2))
    return records // step * step
