"""What a seeded run writes into its ledger: a line per federation and round; and where a limit on releases ends it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..engine.draws import Draws
from ..engine.sweep import Sweep
from ..engine.tables import Tables
from ..ledger.lines import Entry
from ..mechanism.registry import get_mechanism
from ..mechanism.schedule import schedule


def round_entries(sweep: Sweep, rounds: Sequence[int], done: Tables) -> Iterator[Entry]:
    """What some rounds recorded, federations in the caller's order.

    Where the bounds follow from each draw (LS, GS), the tables hold its scale alone, and the bounds are null. So is the
    intensity of laplace-dp: its guarantee covers the release, and not the norm of the noise beside it.
    """
    who = sweep.draws.participants(rounds).tolist()  # [rounds][seeds][slots]
    scales, sizes, accepted = (part.cpu().tolist() for part in (done.scale, done.intensity, done.accepted))
    about = []
    for place in sweep.in_order(range(len(sweep.federations))):
        fed = sweep.federations[place]
        mechanism, seed = get_mechanism(fed.mechanism), sweep.draws.seeds.index(fed.seed)
        measure = sweep.settings.protection.measure(mechanism)
        factor = None if mechanism.distorts and not mechanism.on_sphere else 1.0 if measure is None else measure.factor
        about.append((place, mechanism, seed, factor, _budgets(fed.budget, rounds, sweep.settings.protection.clients)))
    for i, round_number in enumerate(rounds):
        for federation, (place, mechanism, seed, factor, budgets) in enumerate(about):
            releases = []
            for client, scale, size, good in zip(
                who[i][seed], scales[i][place], sizes[i][place], accepted[i][place], strict=True
            ):
                row: Entry = {"client": str(client), "intensity": size, "accepted": good}
                if factor is not None:
                    row["lower"], row["upper"] = scale, factor * scale
                else:
                    row["lower"], row["upper"], row["scale"] = None, None, scale
                if mechanism.formal:
                    row["intensity"] = None
                if not good:
                    row["reason"] = "out of bounds" if mechanism.distorts and math.isfinite(size) else "not finite"
                releases.append(row)
            yield {
                "kind": "round", "federation": federation, "round": round_number, "mechanism": mechanism.name,
                "budget": budgets[i], "norm": mechanism.norm if mechanism.distorts else None, "releases": releases,
            }  # fmt: skip


def _budgets(budget: Any, rounds: Sequence[int], clients: int) -> list[Any]:
    """What is in force in every round: a number, one for each client where they differ, or None."""
    if budget is None:
        return [None] * len(rounds)
    return [row[0] if len(set(row)) == 1 else row for row in schedule(budget, rounds, clients, "budget")]


def last_round(draws: Draws, rounds: int, limit: int | None) -> int:
    """The last of ``rounds`` with no client past the limit on releases; the seeds say who takes part."""
    if limit is None or limit >= rounds:
        return rounds
    if draws.slots == draws.clients:
        return limit
    counts = [Counter[int]() for _ in draws.seeds]
    for round_number in range(1, rounds + 1):
        for count, clients in zip(counts, draws.participants([round_number])[0].tolist(), strict=True):
            count.update(clients)
            if max(count[client] for client in clients) > limit:
                return round_number - 1
    return rounds
