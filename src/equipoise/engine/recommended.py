"""Settings that suit a mechanism better than the paper's: what a user gets who sets a budget and nothing else.

Those of ``gaussian-dp`` were chosen on public images, by stand-in clients, never on clients' or test data
(docs/tuning_gaussian_dp.md). ``runs/config.py`` takes them for keys that nobody has set, where all mechanisms of a
sweep are of that kind; in Python, ``recommended`` gives them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..mechanism.registry import MECHANISMS


@dataclass(frozen=True)
class Recipe:
    """How one model is trained by ``gaussian-dp``: constants, and the server's rate as a function of the noise.

    ``rates`` are pairs (relative noise, rate), rising in the noise, between which logarithms are interpolated. The
    relative noise is that of the mean of all clients: sigma / (sampling_rate * divisor * sqrt(clients)).
    """

    rounds: int
    clip: float
    momentum: float
    init: str
    rates: tuple[tuple[float, float], ...]

    def rate(self, noise: float) -> float:
        """
        >>> recipe = Recipe(50, 0.5, 0.9, "torch", ((0.001, 20.0), (0.004, 5.0)))
        >>> recipe.rate(0.002), recipe.rate(1.0)
        (10.0, 5.0)
        """
        known = [math.log(at) for at, _ in self.rates]
        rates = [math.log(rate) for _, rate in self.rates]
        at = min(max(math.log(noise), known[0]), known[-1])
        right = min(max(bisect.bisect_left(known, at), 1), len(known) - 1)
        share = (at - known[right - 1]) / (known[right] - known[right - 1])
        return math.exp(rates[right - 1] + share * (rates[right] - rates[right - 1]))


RECIPES = {
    "scatter-linear": Recipe(50, 0.5, 0.9, "torch", ((0.002, 26.0), (0.0035, 13.0), (0.007, 6.0), (0.0135, 6.0))),
    "lenet-zhu": Recipe(200, 1.0, 0.9, "uniform", ((0.004, 2.0), (0.03, 0.5))),
    "lenet-tanh": Recipe(200, 1.0, 0.9, "torch", ((0.004, 2.0), (0.03, 0.5))),
}
"""By model; another one gets that of lenet-tanh."""


def recipe_of(model: str) -> Recipe:
    return RECIPES.get(model, RECIPES["lenet-tanh"])


def recommended(mechanism: str, model: str = "lenet-zhu") -> dict[str, Any]:
    """Settings, by their keys, with which a mechanism trains a model well; {} where the defaults are those.

    >>> recommended("gaussian-dp", "scatter-linear")["rounds"], recommended("pl-learn")
    (50, {})
    """
    if mechanism not in MECHANISMS or not MECHANISMS[mechanism].whole_run:
        return {}
    recipe = recipe_of(model)
    return {
        "rounds": recipe.rounds,
        "eta": 1.0,
        "init": recipe.init,
        "server_rate": "auto",
        "server_momentum": recipe.momentum,
        "evaluate_every": max(1, recipe.rounds // 5),
        "snapshots": [0, recipe.rounds // 25, recipe.rounds * 2 // 5],
        "gaussian": {"clip": recipe.clip},
    }


def recommended_for(mechanisms: Iterable[str], model: str) -> dict[str, Any]:
    """The same for a sweep: nothing, unless one set of settings suits all of its mechanisms."""
    known = [recommended(name, model) for name in dict.fromkeys(mechanisms) if name != "none"]
    return known[0] if known and all(keys == known[0] for keys in known) else {}
