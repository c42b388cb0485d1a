"""``guarantee.json`` of a run folder: what is claimed for the federations whose budget is that of a whole run."""

from __future__ import annotations

from typing import Any

from ..engine.sweep import Sweep
from ..errors import printable
from ..mechanism.registry import get_mechanism
from ..privacy.claim import guarantee_claim

FILE = "guarantee.json"


def not_covered(sweep: Sweep) -> list[str]:
    """What was measured on private rows before a mechanism saw any: one row more changes the gradients of all."""
    formal = {fed.dataset for fed in sweep.federations if get_mechanism(fed.mechanism).formal}
    return [
        f"{printable(data.name)}: measured on private rows: {printable(what)}"
        for name, data in sweep.datasets.items()
        if name in formal
        for what in data.fitted
    ]


def guarantees(sweep: Sweep) -> dict[str, Any] | None:
    """The claim of a seeded sweep, or one for each epsilon in it; None where no budget is that of a whole run.

    Every epsilon is held against the noise that was used: ``guarantee_claim`` refuses to state a smaller one.
    """
    whole_run = [fed for fed in sweep.federations if get_mechanism(fed.mechanism).whole_run]
    if not whole_run:
        return None
    own, grouped = sweep.settings.protection.gaussian, sweep.pool.records.groups is not None
    claims = [
        guarantee_claim(
            epsilon=epsilon, delta=own.delta, rounds=own.rounds or sweep.settings.training.rounds,
            sigma=own.sigma(epsilon), clip=own.clip, divisor=own.divisor, coordinates=sweep.batched.layout.size,
            sampling_rate=own.sampling_rate, schedule=own.noise(), unit="group" if grouped else "record",
            linear=sweep.on_features, seeded=True, not_covered=not_covered(sweep),
        )
        for epsilon in sorted({float(value) for fed in whole_run for value in fed.budgets})
    ]  # fmt: skip
    return claims[0] if len(claims) == 1 else {"schema": claims[0]["schema"], "claims": claims}
