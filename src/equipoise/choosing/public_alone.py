"""Training on public records alone, without any client: what a public pool gives without anyone's data.

Whoever has labelled public records of the task should beat this before asking a client for anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..data.dataset import Dataset
from ..engine.datasets import load_datasets
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..errors import ConfigError, DataError, is_whole


def public_alone(
    settings: Settings,
    federations: list[Federation],
    numbers: list[int],
    datasets: dict[str, Dataset] | None = None,
) -> list[dict[str, Any]]:
    """The accuracy of models that saw nothing but so many public records, each seed another draw of them.

    ``tuning_accuracy`` is that on other public records, by which a rate may be chosen.

    >>> rows = public_alone(Settings.flat(rounds=2, clients=1), [Federation("mnist", "none")], [20])
    >>> rows[0]["public"], 0 <= rows[0]["accuracy"] <= 1
    (20, True)
    """
    _check(settings, federations, numbers)
    given = datasets or load_datasets(settings, (federation.dataset for federation in federations))
    rows: list[dict[str, Any]] = []
    for count in numbers:
        own = {f"{fed.dataset} {fed.seed}": alone(given[fed.dataset], count, fed.seed) for fed in federations}
        named = [replace(fed, dataset=f"{fed.dataset} {fed.seed}") for fed in federations]
        once = settings.replace(evaluate_every=settings.training.rounds, snapshots=[])
        last = [event.rows for event in Sweep(once, named, own).run() if event.rows][-1]
        rows += [
            {
                "dataset": fed.dataset, "seed": fed.seed, "public": count, "accuracy": row["accuracy"],
                "tuning_accuracy": row["validation_accuracy"],
            }
            for fed, row in zip(federations, last, strict=True)
        ]  # fmt: skip
    return rows


def alone(dataset: Dataset, count: int, seed: int) -> Dataset:
    """A dataset whose training records are so many of the public ones, and whose validation records are others."""
    public = dataset.public_attack
    if count > len(public):
        raise DataError(
            f"The dataset {dataset.name!r} has {len(public)} public records to train on, fewer than {count}.",
            "Ask for fewer.",
        )
    order = torch.randperm(len(public), generator=torch.Generator().manual_seed(seed))
    return replace(dataset, train=public.take(order[:count]), validation=dataset.public_tuning)


def _check(settings: Settings, federations: list[Federation], numbers: Any) -> None:
    if not isinstance(numbers, list) or not numbers or not all(is_whole(count) and count > 0 for count in numbers):
        raise ConfigError(f"Expected public={numbers!r} to be a list of numbers of records.", "For example [200].")
    if settings.protection.clients != 1 or any(federation.mechanism != "none" for federation in federations):
        raise ConfigError(
            "Training on public records alone has one client and no protection.", "Use clients=1, and 'none'."
        )
