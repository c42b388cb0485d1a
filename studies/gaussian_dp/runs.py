"""Runs on stand-in clients: the settings that are tuned, how much noise they get, folds, and batches of runs."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from trainers import Conv, Linear, Numbers, train

DATASETS, FOLDS, RECORDS, DELTA = ("mnist", "fmnist"), 5, 3000, 1e-5
BATCH = {"scatter-linear": 2048, "lenet-zhu": 96, "lenet-tanh": 96}


@dataclass(frozen=True)
class Setting:
    """What is tuned. ``rate`` is that of the server; ``scale`` is the norm of scatter-linear's features."""

    model: str
    rounds: int
    clip: float
    momentum: float
    rate: float
    init: str = "zero"
    scale: float = 1.0
    decay: float = 0.0


@dataclass(frozen=True)
class Level:
    """How much noise: epsilon of the whole run, for clients with ``divisor`` records each."""

    epsilon: float
    clients: int = 4
    divisor: int = 1000

    def noise(self, rounds: int) -> float:
        """Standard deviation of the noise of the clients' mean, in clips: sigma / (divisor sqrt(clients))."""
        return noise_multiplier(self.epsilon, rounds) / (self.divisor * math.sqrt(self.clients))


@cache
def noise_multiplier(epsilon: float, rounds: int) -> float:
    """sigma of a run with every record in every round: Gaussian differential privacy with mu = sqrt(rounds) / sigma.

    >>> round(noise_multiplier(1.0, 1), 4)
    3.7306
    """
    low, high = 1e-3, 100.0
    while high - low > 1e-9:
        mu = (low + high) / 2
        low, high = (mu, high) if _delta(mu, epsilon) < DELTA else (low, mu)
    return math.sqrt(rounds) / low


def _delta(mu: float, epsilon: float) -> float:
    return _below(mu / 2 - epsilon / mu) - math.exp(epsilon) * _below(-mu / 2 - epsilon / mu)


def _below(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@cache
def images(dataset: str, device: str) -> tuple[Tensor, Tensor]:
    """The 3,000 public images ``[N, 28, 28]`` that attackers train on, and their labels."""
    from equipoise import load

    split = load(dataset).public_attack
    return split.inputs[:, 0].to(device), split.labels.to(device)


@cache
def features(dataset: str, device: str) -> Tensor:
    """Scattering features ``[N, 3969]`` of norm 1."""
    from equipoise.models.scattering import Scattering

    model = Scattering((1, 28, 28)).to(device)
    parts = [model(part.unsqueeze(1)) for part in images(dataset, device)[0].split(250)]
    return torch.nn.functional.normalize(torch.cat(parts), dim=1)


def fold(number: int, device: str) -> Tensor:
    """True for the records that are held out: a fifth in a row, in which all classes are equally often."""
    return torch.arange(RECORDS, device=device) * FOLDS // RECORDS == number


Run = tuple[Setting, Level, str, int]
"""With dataset and fold."""


def numbers(runs: list[Run], device: str) -> Numbers:
    rows = [(s.rate, s.momentum, s.clip, level.noise(s.rounds), s.decay) for s, level, _, _ in runs]
    return Numbers(*(torch.tensor(column, device=device) for column in zip(*rows, strict=True)))


def batch(runs: list[Run], seed: int, device: str) -> tuple[Tensor, Tensor]:
    """Accuracies of runs that share model, rounds and init (and, for scatter-linear, the dataset)."""
    setting, _, dataset, _ = runs[0]
    made: Linear | Conv
    if setting.model == "scatter-linear":
        held_out = torch.stack([fold(f, device) for *_, f in runs], 1)
        scale = torch.tensor([s.scale for s, *_ in runs], device=device)
        made = Linear(features(dataset, device), images(dataset, device)[1], held_out, scale)
    else:
        parts: list[list[Tensor]] = [[], [], [], []]
        for _, _, name, f in runs:
            x, y = images(name, device)
            out = fold(f, device)
            for part, value in zip(parts, (x[~out], y[~out], x[out], y[out]), strict=True):
                part.append(value)
        x, y, held, truth = map(torch.stack, parts)
        activation = "tanh" if setting.model == "lenet-tanh" else "sigmoid"
        made = Conv(x, y, (held, truth), activation, setting.init)
    return train(made, numbers(runs, device), setting.rounds, torch.Generator(device).manual_seed(seed))


def evaluate(pairs: list[tuple[Setting, Level]], folds: int, seeds: int, device: str) -> list[dict[str, Any]]:
    """A row for every pair and dataset: accuracies over folds and seeds, in %."""
    groups = defaultdict(list)
    for (s, level), dataset, f in itertools.product(pairs, DATASETS, range(folds)):
        groups[s.model, s.rounds, s.init, dataset if s.model == "scatter-linear" else ""].append((s, level, dataset, f))
    found: dict[tuple[Setting, Level, str], list[tuple[float, float]]] = defaultdict(list)
    for seed in range(seeds):
        for (model, *_), runs in groups.items():
            for start in range(0, len(runs), BATCH[model]):
                part = runs[start : start + BATCH[model]]
                last, averaged = batch(part, 1000 * seed + start, device)
                for run, *values in zip(part, last.tolist(), averaged.tolist(), strict=True):
                    found[run[:3]].append((values[0], values[1]))
    return [
        {
            **asdict(setting),
            **asdict(level),
            "dataset": dataset,
            "folds": folds,
            "seeds": seeds,
            "accuracies": [round(100 * value, 2) for value, _ in values],
            "averaged": [round(100 * value, 2) for _, value in values],
        }
        for (setting, level, dataset), values in found.items()
    ]
