"""What is not ``gaussian-dp``: no protection, to say what protection costs, and noise for which nothing is proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from ..data.dataset import Dataset
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..errors import DataError
from ..mechanism.constants import mark_told
from ..models.named import Factory
from .model_calibration import ModelCalibration
from .standins import StandIns
from .trials import Rates, Step

PLAIN_RATES = (0.3, 1.0, 3.0)
"""Of the server, for plain gradient steps on all records."""
STATIC, LEARNED = "pl-identical", "pl-learn"
STATIC_BATCH = 44
"""Records of a release with static noise: the gradients that one with learned noise computes."""
PAPERS = {"image": "lenet-zhu", "table": "mlp"}
"""The model that these are trained with."""


@dataclass(frozen=True)
class Unproved:
    """Noise that is judged by a measurement of one release: no limit on the whole run is known."""

    mechanism: str
    model: str
    budget: float
    identified: float  # expected share, of one release, by the matched filter
    candidates: int
    accuracies: tuple[float, ...]  # on the records that are reported, by seed
    choosing: tuple[float, ...]  # on the records that choose, by seed

    @property
    def accuracy(self) -> float:
        """What it is compared by: on the records that choose."""
        return mean(self.choosing)


def unprotected(
    stand_ins: StandIns, settings: Settings, model: str, rounds: int, *,
    seeds: Sequence[int], code: Factory | None = None,
) -> list[float]:  # fmt: skip
    """Accuracies on the reported records without protection, at the rate that is best on those that choose."""
    own = settings.replace(
        model=model, rounds=rounds, evaluate_every=rounds, snapshots=[], batch=stand_ins.smallest(settings), eta=1.0,
        server_rate=1.0, server_momentum=0.8, init="uniform" if model == PAPERS["image"] else "torch",
    )  # fmt: skip
    federations = [
        Federation(stand_ins.fold(seed), "none", None, 10_000 * place + seed)
        for place in range(len(PLAIN_RATES))
        for seed in seeds
    ]
    sweep = Rates(own, federations, {fed.dataset: stand_ins.folds[fed.dataset] for fed in federations}, code)
    sweep.multiples = [rate for rate in PLAIN_RATES for _ in seeds]
    rows = [event.rows for event in sweep.run() if event.rows][-1]
    by_rate = [rows[place * len(seeds) : (place + 1) * len(seeds)] for place in range(len(PLAIN_RATES))]
    best = max(by_rate, key=lambda some: mean(row["validation_accuracy"] for row in some))
    return [row["accuracy"] for row in best]


def measured(
    dataset: Dataset, stand_ins: StandIns, settings: Settings, mechanism: str, most: float, *,
    rounds: int, seeds: Sequence[int], on_step: Step = lambda what, seconds: None,
) -> Unproved:  # fmt: skip
    """Unproved noise at the loosest budget that is expected to keep one release below ``most``, and what it trains to.

    Only the public part of the dataset is looked at. Raises ``DataError`` or ``ConfigError`` where it is too small to
    measure so little, ``DataError`` where no budget asks for so much noise.
    """
    model = PAPERS[dataset.kind if dataset.kind in PAPERS else "table"]
    keys: dict[str, Any] = {
        "model": model, "init": "uniform" if dataset.kind == "image" else "torch", "rounds": rounds, "snapshots": [],
        "evaluate_every": rounds, "server_rate": "auto", "server_momentum": 0.0,
    }  # fmt: skip
    own = settings.replace(**keys, **({"batch": STATIC_BATCH} if mechanism == STATIC else {}))
    own = own.replace(batch=min(own.protection.batch, stand_ins.smallest(settings)))
    assert dataset.public is not None  # stand-ins come from it
    shown = replace(dataset, train=dataset.public, validation=dataset.public, test=dataset.public)
    sweep = Sweep(own, [Federation(dataset.name, "none", None, seeds[0])], {dataset.name: shown})
    calibration = ModelCalibration(own, mechanism, sweep, sweep.models()[0], "the first weights")
    seen = calibration.identification(candidates=200, trials=128)
    seen.on_release = lambda amount: on_step(f"measuring {mechanism}", 0.0)
    budget = calibration.budget_for(most, seen, lambda step: on_step(f"measuring {mechanism}", 0.0))["budget"]
    if budget is None:
        raise DataError(f"No budget of {mechanism} asks for so much noise.", "Use gaussian-dp.")
    identified = seen.rate(own.protection.at(mechanism, budget, 1))
    federations = [Federation(stand_ins.fold(seed), mechanism, budget, seed) for seed in seeds]
    used = {fed.dataset: stand_ins.folds[fed.dataset] for fed in federations}
    training = Sweep(own, federations, used)
    mark_told(training.batched.model, mechanism)  # its constants are of no interest to who does not choose it
    rows = [event.rows for event in training.run(lambda t: on_step(f"training {mechanism}", 0.0)) if event.rows][-1]
    accuracies, chosen_by = (tuple(row[key] for row in rows) for key in ("accuracy", "validation_accuracy"))
    return Unproved(mechanism, model, budget, identified, seen.candidates, accuracies, chosen_by)
