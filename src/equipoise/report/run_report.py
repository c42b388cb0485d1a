"""What is said of a finished run: means over seeds, and what it proves, measures and does not claim."""

from __future__ import annotations

from statistics import mean
from typing import Any

from ..errors import is_finite
from ..mechanism.claims import FINITE, PROVED, of_budgets
from ..mechanism.registry import get_mechanism
from ..statistics import interval


def means_over_seeds(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per dataset, mechanism and budget: means over its seeds, and Student's 95 % interval of the accuracy.

    Args:
        results: The ``federations`` of a ``result.json``.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in results:
        groups.setdefault((row["dataset"], row["mechanism"], str(row["budget"])), []).append(row)
    return [
        {
            **{name: same[0][name] for name in ("dataset", "mechanism", "budget")},
            "seeds": len(same),
            "accuracy": mean(row["accuracy"] for row in same),
            "interval": interval([row["accuracy"] for row in same]),
            "accuracy_at_best_validation": mean(row["accuracy_at_best_validation"] for row in same),
            "utility_loss": _mean_of_known([row["mean_utility_loss"] for row in same]),
        }
        for same in groups.values()
    ]


FORMAL_PROVED, GUARANTEE = "the epsilon of the mechanism, in the arithmetic of this machine", ": see `guarantee.json`"


def _mean_of_known(values: list[float | None]) -> float | None:
    known = [value for value in values if is_finite(value)]
    return mean(known) if known else None


def run_claims(results: list[dict[str, Any]]) -> dict[str, str]:
    """What a run proves and measures, what its budgets are worth, and what it does not claim."""
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in results))
    formal = [name for name in mechanisms if get_mechanism(name).formal]
    known = "seed" if len(formal) == len(mechanisms) else "mechanism"
    if formal and known == "mechanism":
        known += f", or the seed of {', '.join(formal)}"
    return {
        **_proved(mechanisms),
        "measured": "accuracy and utility loss, on these seeds; `equipoise audit` measures what attacks get",
        "budgets": of_budgets(mechanisms, seeded=True),
        "not claimed": f"protection against an attacker who knows the {known}",
    }


def _proved(mechanisms: list[str]) -> dict[str, str]:
    """What is proved, and of which mechanisms where it is not the same of all."""
    of: dict[str, list[str]] = {}
    bare = False  # nothing is distorted: there are no bounds to lie within
    for mechanism in map(get_mechanism, mechanisms):
        if not (mechanism.distorts or mechanism.formal):
            bare = True
            continue
        words = PROVED if mechanism.shaping is None else FINITE
        words = FORMAL_PROVED + GUARANTEE * mechanism.whole_run if mechanism.formal else words
        of.setdefault(words, []).append(mechanism.name)
    if len(of) == 1 and (PROVED in of or not bare):
        return {"proved": next(iter(of))}
    return {f"proved of {', '.join(names)}": words for words, names in of.items()}
