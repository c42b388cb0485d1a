"""What is tried: settings around the recommended recipe of each model that fits the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..data.dataset import Dataset
from ..engine.recommended import recipe_of, recommended
from ..errors import ConfigError, DataError, EquipoiseError
from ..models.bundled import build
from ..models.named import Factory, model_of

BEST = "best"
MODELS_FOR = {"image": ("scatter-linear", "lenet-tanh", "lenet-zhu"), "table": ("mlp",)}
"""Models that ``best`` compares, the one that is most likely to win first."""
MULTIPLIERS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
ROUNDS = (25, 50, 100)
CLIPS = (0.5, 1.0)
MOMENTA = (0.5, 0.8)
FIXED = {"rounds": "rounds", "server_momentum": "momentum", "server_rate": "rate", "gaussian.clip": "clip"}
"""Settings that a user may fix, and what of a candidate each is."""


@dataclass(frozen=True)
class Candidate:
    """One way to train with ``gaussian-dp``: a model and what the server and the clip do."""

    model: str
    rounds: int
    clip: float
    momentum: float
    multiplier: float = 1.0  # of the rate that the recipe's rule gives
    rate: float | None = None  # instead of that rule, where a user fixed it

    @property
    def recommended(self) -> bool:
        """Whether this is what a user gets who names the model and a budget alone."""
        return self == recipe(self.model)

    def changes(self) -> str:
        """What differs from the recipe, in words.

        >>> recipe("scatter-linear").changes(), Candidate("scatter-linear", 25, 1.0, 0.8, 1.4).changes()
        ('recommended', '25 rounds, rate x 1.4')
        """
        own, told = recipe(self.model), []
        if self.rounds != own.rounds:
            told.append(f"{self.rounds} rounds")
        if self.rate is not None:
            told.append(f"rate {self.rate:g}")
        elif self.multiplier != 1:
            told.append(f"rate x {self.multiplier:g}")
        if self.clip != own.clip:
            told.append(f"clip {self.clip:g}")
        if self.momentum != own.momentum:
            told.append(f"momentum {self.momentum:g}")
        return ", ".join(told) or "recommended"

    def label(self) -> str:
        return f"{self.model}, {self.changes()}"

    def keys(self) -> dict[str, Any]:
        """Its settings by their names, all but the rate, which follows from the noise."""
        own = recommended("gaussian-dp", self.model)
        own |= {"model": self.model, "rounds": self.rounds, "server_momentum": self.momentum, "server_rate": "auto"}
        return {**own, "gaussian": {"clip": self.clip}, "evaluate_every": self.rounds, "snapshots": []}


def recipe(model: str) -> Candidate:
    """The recommended settings of a model.

    >>> recipe("lenet-tanh")
    Candidate(model='lenet-tanh', rounds=100, clip=1.0, momentum=0.8, multiplier=1.0, rate=None)
    """
    own = recipe_of(model)
    return Candidate(model, own.rounds, own.clip, own.momentum)


def candidates(models: Sequence[str], fixed: Mapping[str, Any], *, quick: bool) -> list[Candidate]:
    """All that is tried: the recipe of the first model and what lies around it, and a few of every other model.

    The others are slow to train, and were never seen to win; what a user fixed is fixed in all.

    >>> found = candidates(["scatter-linear", "lenet-zhu"], {}, quick=True)
    >>> len(found), sum(candidate.model == "lenet-zhu" for candidate in found), found[0].recommended
    (19, 1, True)
    >>> {candidate.rounds for candidate in candidates(["mlp"], {"rounds": 30}, quick=False)}
    {30}
    """
    result: dict[Candidate, None] = {}
    for model in models:
        around = _around(model, quick) if model == models[0] else _slow(model, quick)
        for candidate in around:
            result[replace(candidate, **{FIXED[key]: value for key, value in fixed.items() if key in FIXED})] = None
    return list(result if "server_rate" not in fixed else {replace(one, multiplier=1.0): None for one in result})


def _around(model: str, quick: bool) -> Iterator[Candidate]:
    own = recipe(model)
    yield own
    for rounds in ROUNDS:
        for multiplier in (0.5, 0.7, 1.0, 1.4, 2.0) if quick else MULTIPLIERS:
            yield replace(own, rounds=rounds, multiplier=multiplier)
    for rounds in (50,) if quick else ROUNDS:
        for momentum, clip in ((m, c) for m in MOMENTA for c in CLIPS):
            for multiplier in (1.0,) if quick else (0.7, 1.0, 1.4):
                yield replace(own, rounds=rounds, momentum=momentum, clip=clip, multiplier=multiplier)


def _slow(model: str, quick: bool) -> Iterator[Candidate]:
    own = recipe(model)
    if quick:
        yield replace(own, rounds=min(own.rounds, 50))
        return
    yield own
    for rounds in (50, 100):
        for multiplier in (0.7, 1.0, 1.4):
            yield replace(own, rounds=rounds, multiplier=multiplier)


def models_for(wanted: str, dataset: Dataset, code: Factory | None = None) -> tuple[list[str], list[tuple[str, str]]]:
    """The models to compare, and those that cannot be built for the data, with the reason."""
    if dataset.kind == "tokens":
        raise DataError(
            f"The dataset {dataset.name!r} holds tokens; settings for these were never tried, and nothing is "
            "recommended.",
            "Use pictures or a table, or train with settings of your own: equipoise train --mechanism gaussian-dp.",
        )
    if dataset.classes < 2:
        raise DataError(
            f"The dataset {dataset.name!r} has one class: any model is always right.", "Name another --set target=."
        )
    if wanted != BEST:
        model_of(wanted if code is None else code, dataset.shape, dataset.classes)
        return [wanted], []
    fits, unfit = [], []
    for model in MODELS_FOR[dataset.kind]:
        try:
            build(model, dataset.shape, dataset.classes)
            fits.append(model)
        except EquipoiseError as error:
            unfit.append((model, error.cause))
    if not fits:
        raise ConfigError(f"No bundled model fits: {unfit[0][1]}", "Name your own: --model module:callable.")
    return fits, unfit
