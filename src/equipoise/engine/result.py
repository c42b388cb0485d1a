"""The content of ``result.json``: what a sweep came to, federation by federation."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..environment import environment
from ..errors import is_finite
from ..mechanism.claims import of_budgets

if TYPE_CHECKING:
    from .metrics import Row
    from .sweep import Sweep


def result(sweep: Sweep, rows: list[Row]) -> dict[str, Any]:
    """All that a finished sweep says of itself.

    Args:
        sweep: After its last round.
        rows: Those of every evaluated round, one after the other, federations in the caller's order; the last round is
            needed, earlier ones have the full records that are averaged.
    """
    return {
        "schema": 1,
        "experiment": "seeded",
        "claim": of_budgets([fed.mechanism for fed in sweep.federations], seeded=True),
        "federations": federation_results(sweep, rows),
        "environment": environment(sweep.device),
    }


def federation_results(sweep: Sweep, rows: list[Row]) -> list[Row]:
    """The final result of every federation, in the caller's order; ``rows`` as in ``result``."""
    results, tally, s, count = [], sweep.state.tally, sweep.settings, len(sweep.federations)
    for place, i in enumerate(sweep.in_order(range(count))):
        mine = rows[place::count]
        results.append(
            {
                **sweep.about(sweep.federations[i]),
                "rounds": sweep.state.round,
                "eta": s.protection.eta,
                "server": {"rule": "mean", "rate": s.training.server_rate},
                "accuracy": mine[-1]["accuracy"],
                "client_accuracy": mine[-1]["client_accuracy"],
                "best_validation_round": int(tally.best_round[i]),
                "accuracy_at_best_validation": float(tally.best_accuracy[i]),
                "mean_utility_loss": float(tally.total[i, 0]) / max(1.0, float(tally.total[i, 1])),
                "final_utility_loss": float(tally.last_utility[i].nanmean()),
                **full_utility_loss(mine),
                "final_intensity": mine[-1]["intensity_last"],
                "final_noise_to_update": mine[-1].get("noise_to_update"),
                "releases_accepted": int(tally.total[i, 1]),
                "releases_refused": int(tally.total[i, 2]),
            }
        )
    return results


def full_utility_loss(rows: list[Row]) -> Row:
    """The utility loss on clients' full data, eq. (4) of Zhang et al. (arXiv:2305.15148), over one federation's rows.

    Every full record counts as the mean of its finite values over clients. Without any, the numbers are null.

    >>> full_utility_loss([{"full_utility_loss": [0.25, 0.75]}, {"accuracy": 0.5}, {"full_utility_loss": [1.0, 2.0]}])
    {'full_records': 2, 'mean_full_utility_loss': 1.0, 'final_full_utility_loss': 1.5}
    >>> full_utility_loss([{"accuracy": 0.5}])["mean_full_utility_loss"] is None
    True
    """
    known = [[value for value in row.get("full_utility_loss", []) if is_finite(value)] for row in rows]
    records = [fmean(values) for values in known if values]
    mean, last = (fmean(records), records[-1]) if records else (None, None)
    return {"full_records": len(records), "mean_full_utility_loss": mean, "final_full_utility_loss": last}
