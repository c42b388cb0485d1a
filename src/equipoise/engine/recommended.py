"""Settings that suit a mechanism better than the paper's: what a user gets who sets a budget and nothing else.

Those of ``gaussian-dp`` were chosen on public images, by stand-in clients, never on clients' or test data
(docs/tuning_gaussian_dp.md). ``runs/config.py`` takes them for keys that nobody has set, where all mechanisms of a
sweep are of that kind; in Python, ``recommended`` gives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..mechanism.registry import MECHANISMS
from ..models.bundled import DEFAULT
from ..models.inputs import Kind


@dataclass(frozen=True)
class Recipe:
    """How one model is trained by ``gaussian-dp``: constants, and the server's rate as a function of the noise.

    ``drift`` is the standard deviation by which the noise of a whole run may move every weight: with less noise in each
    round, steps are longer. ``largest_rate`` is the longest that was seen to train well.
    """

    rounds: int
    clip: float
    momentum: float
    init: str
    drift: float
    largest_rate: float

    def rate(self, noise: float, momentum: float) -> float:
        """The server's rate where all noise on the mean of the clients, over the run, has this standard deviation.

        >>> recipe = RECIPES["scatter-linear"]
        >>> round(recipe.rate(0.08, 0.8), 2), recipe.rate(0.0, 0.8)
        (0.55, 12.0)
        """
        wandering = noise / (1 - momentum)  # of every weight, at rate 1
        return min(self.largest_rate, self.drift / wandering) if wandering > 0 else self.largest_rate


RECIPES = {
    "scatter-linear": Recipe(rounds=50, clip=1.0, momentum=0.8, init="torch", drift=0.22, largest_rate=12.0),
    "lenet-zhu": Recipe(rounds=200, clip=1.0, momentum=0.8, init="uniform", drift=0.34, largest_rate=1.6),
    "lenet-tanh": Recipe(rounds=100, clip=1.0, momentum=0.8, init="torch", drift=0.107, largest_rate=2.0),
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


def recommended_model(mechanisms: Iterable[str], kind: Kind = "image") -> str:
    """The model for data of a kind, where nobody names one; for pictures, one that suits a guarantee if all have one.

    >>> recommended_model(["none", "gaussian-dp"]), recommended_model(["gaussian-dp", "pl-learn"])
    ('scatter-linear', 'lenet-zhu')
    >>> recommended_model(["gaussian-dp"], "table")
    'mlp'
    """
    known = [name for name in mechanisms if name != "none"]
    private = known and all(name in MECHANISMS and MECHANISMS[name].whole_run for name in known)
    return "scatter-linear" if private and kind == "image" else DEFAULT[kind]


def recommended_for(mechanisms: Iterable[str], model: str) -> dict[str, Any]:
    """The same for a sweep: nothing, unless one set of settings suits all of its mechanisms."""
    known = [recommended(name, model) for name in dict.fromkeys(mechanisms) if name != "none"]
    return known[0] if known and all(keys == known[0] for keys in known) else {}
