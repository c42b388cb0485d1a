"""What a budget asks of the distortion, with the scale that it needs to be read by."""

from __future__ import annotations

from typing import Any

import torch

from ..data.bundle import BUNDLED
from ..data.loading import load
from ..errors import ConfigError
from ..mechanism.budget import LeakageBudget
from ..mechanism.claims import of_budgets
from ..mechanism.protection import ProtectionSettings
from ..mechanism.registry import MECHANISMS, checked, get_mechanism

IMAGES = [name for name, about in BUNDLED.items() if about.kind == "image"]
"""The score is for pictures."""


def calibration(settings: ProtectionSettings, name: str, budget: float | None) -> dict[str, Any]:
    """Intensity bounds or noise scale of a budget; for the leakage score also what guesses reach that use no update.

    A mechanism that learns nothing has one intensity: its upper bound is its lower one.

    >>> calibration(ProtectionSettings(), "ls-static", 80.0)["scale"]
    0.125
    """
    mechanism, measure = get_mechanism(name), settings.measure(name)
    if measure is None:
        others = ", ".join(known.name for known in MECHANISMS.values() if known.distorts)
        raise ConfigError(f"The mechanism {name!r} has no budget to calibrate.", f"Choose one that has: {others}.")
    checked(mechanism, budget)
    assert budget is not None  # by the line above
    low, draws, factor = measure.lower(budget), measure.bounds_draw, measure.factor if mechanism.learns else 1.0
    low, high = float(f"{low:.12g}"), float(f"{factor * low:.12g}")  # without the last bits of 1 - budget
    scored = isinstance(measure, LeakageBudget)
    return {
        "mechanism": name,
        "budget": budget,
        "lower": None if draws else low,
        "upper": None if draws else high,
        "scale": low if draws else None,
        "norm": mechanism.norm,
        "learns": mechanism.learns,
        "shaping": None if mechanism.shaping is None else mechanism.shaping.scale,
        "guesses": {dataset: guess_scores(dataset, settings.leakage.D) for dataset in IMAGES} if scored else None,
        "claim": of_budgets([mechanism]),
    }


def guess_scores(name: str, diameter: float) -> dict[str, float]:
    """The paper's leakage score of two guesses that use no update: black, and the mean of the class.

    Measured on the public images that play private ones in audits; the class means come from other public images.
    """
    data = load(name)
    targets, known = data.public_pool, data.public_attack
    centre = torch.stack([known.inputs[known.labels == label].mean(0) for label in range(data.classes)])
    black = known.inputs.min().expand_as(targets.inputs)

    def leakage(guess: torch.Tensor) -> float:
        return 1 - float((guess - targets.inputs).flatten(1).norm(dim=1).mean()) / diameter

    return {"black": leakage(black), "class_mean": leakage(centre[targets.labels])}
