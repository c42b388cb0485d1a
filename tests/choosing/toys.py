"""A table that a linear model learns in a few rounds, with a public part: choosing on it takes a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from equipoise.choosing.choose import choosing
from equipoise.choosing.decision import Decision
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.data.splits import Split

FAST: dict[str, Any] = {"rounds": 3, "server_momentum": 0.5, "gaussian.clip": 1.0}
"""Settings that leave five candidates: the multiples of the rate."""


def toy(public: int = 160, train: int = 200, name: str = "toy", classes: int = 2) -> Dataset:
    def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % classes
        spread = torch.randn(count, 4, generator=generator)
        return spread + 3 * torch.nn.functional.one_hot(labels, 4), labels

    given = {"public": rows(public, 3)} if public else {}
    return from_tensors(rows(train, 1), rows(40, 2), rows(40, 4), classes=classes, name=name, **given)


def poisoned(data: Dataset) -> Dataset:
    """The same with nothing but NaN where clients' records are, and labels that no model has."""

    def spoilt(split: Split) -> Split:
        return Split(torch.full_like(split.inputs, torch.nan), torch.full_like(split.labels, -1), split.groups)

    return replace(data, train=spoilt(data.train), validation=spoilt(data.validation), test=spoilt(data.test))


def chosen(data: Dataset | None = None, **asked: Any) -> Decision:
    fixed = {**FAST, **asked.pop("settings", {})}
    return choosing(toy() if data is None else data, quick=True, settings=fixed, **asked).run()


class Told:
    """Keeps what progress is told."""

    def __init__(self) -> None:
        self.text, self.seconds = "", 0.0
        self.remarks: list[str] = []
        self.steps: list[tuple[str, float]] = []

    def planned(self, text: str, seconds: float, remarks: Any = ()) -> None:
        self.text, self.seconds, self.remarks = text, seconds, list(remarks)

    def __call__(self, what: str, seconds: float) -> None:
        self.steps.append((what, seconds))
