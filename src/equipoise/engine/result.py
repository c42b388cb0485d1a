"""The content of ``result.json``: what a sweep came to, federation by federation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..environment import environment
from ..mechanism.claims import of_budgets

if TYPE_CHECKING:
    from .metrics import Row
    from .sweep import Sweep


def result(sweep: Sweep, last: list[Row]) -> dict[str, Any]:
    """All that a finished sweep says of itself; ``last`` are the rows of its last round, in the caller's order."""
    return {
        "schema": 1,
        "experiment": "seeded",
        "claim": of_budgets([fed.mechanism for fed in sweep.federations], seeded=True),
        "federations": federation_results(sweep, last),
        "environment": environment(sweep.device),
    }


def federation_results(sweep: Sweep, last: list[Row]) -> list[Row]:
    """The final result of every federation, in the caller's order; ``last`` are the rows of the last round."""
    results, tally, s = [], sweep.state.tally, sweep.settings
    for i, row in zip(sweep.in_order(range(len(last))), last, strict=True):
        fed = sweep.federations[i]
        results.append(
            {
                **asdict(fed),
                "rounds": sweep.state.round,
                "eta": s.protection.eta,
                "server": {"rule": "mean", "rate": s.training.server_rate},
                "accuracy": row["accuracy"],
                "client_accuracy": row["client_accuracy"],
                "best_validation_round": int(tally.best_round[i]),
                "accuracy_at_best_validation": float(tally.best_accuracy[i]),
                "mean_utility_loss": float(tally.total[i, 0]) / max(1.0, float(tally.total[i, 1])),
                "final_utility_loss": float(tally.last_utility[i].nanmean()),
                "final_intensity": row["intensity_last"],
                "releases_accepted": int(tally.total[i, 1]),
                "releases_refused": int(tally.total[i, 2]),
            }
        )
    return results
