"""Every federation of a sweep, attacked at the weights of chosen rounds: needs torch and numpy alone.

For each federation and round: its own mechanism; for a learned one also its two static twins at the same weights (equal
lower bound, equal final norm); and undistorted releases as the positive control. A cell that occurs twice is attacked
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from ..attack.view import Server
from ..data.dataset import Dataset
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..mechanism.protection import NO_PROTECTION
from ..mechanism.registry import get_mechanism
from ..models.batched import Batched
from .cells import OWN, Cell, federation_cell, server_of, static_name, with_controls
from .examine import Progress, attack_cell, told_where
from .options import AuditOptions
from .results import Findings, Outcome, differences, mark_controls, rows_of, summary
from .scoring import baselines
from .targets import Materials, Targets, build_targets

Outcomes = dict[tuple[int, int, str], list[Outcome]]
"""By federation, round and role."""


@dataclass(kw_only=True)
class SweepAudit:
    """An audit under way: what is attacked, and what was found so far."""

    settings: Settings
    federations: list[Federation]
    servers: dict[str, Server]  # by dataset; facing no defence
    materials: dict[str, Materials]
    targets: dict[str, Targets]
    options: AuditOptions
    progress: Progress | None
    outcomes: Outcomes = field(default_factory=dict)
    known: dict[Any, list[Outcome]] = field(default_factory=dict)  # by defence and weights: attacked once

    def attack(self, index: int, round_number: int, weights: Tensor) -> None:
        """One federation at the weights after one round, with its twins and controls."""
        federation = self.federations[index]
        name = federation.dataset
        own = federation_cell(self.settings, federation, round_number, weights, self.servers[name])
        for cell in with_controls(own, self.materials[name], self.options):
            where = f"{federation.label()} at {round_number}, {cell.role}"
            about = cell.about | {"lower": float(cell.server.protection.scale)}
            outcomes = self._attacked(name, cell, where)
            self.outcomes[index, round_number, cell.role] = [replace(one, about=about) for one in outcomes]

    def _attacked(self, name: str, cell: Cell, where: str) -> list[Outcome]:
        key = (name, *cell.key())
        if key not in self.known:
            told, diameter = told_where(self.progress, where), self.settings.protection.leakage.D
            self.known[key] = attack_cell(cell, self.targets[name], self.materials[name], self.options, diameter, told)
        return self.known[key]

    def findings(self, complete: bool) -> Findings:
        outcomes = [one for several in self.outcomes.values() for one in several]
        rows = [row for one in outcomes for row in rows_of(one, self.targets[one.about["dataset"]], self.options.seed)]
        mark_controls(rows)
        guesses = {name: self._guesses(name) for name in self.targets}
        gaps = list(learned_against_static(self.federations, self.outcomes, self.options.seed))
        return Findings(rows, gaps, guesses, outcomes, self.targets, complete)

    def _guesses(self, name: str) -> dict[str, Any]:
        result = baselines(
            self.targets[name], self.materials[name], self.servers[name], self.settings.protection.leakage.D
        )
        return {guess: summary(values) for guess, values in result.items()}


def audit_sweep(
    settings: Settings,
    federations: list[Federation],
    datasets: dict[str, Dataset],
    batched: Batched,
    weights: dict[int, Tensor],
    options: AuditOptions,
    progress: Progress | None = None,
    *,
    private: bool = False,
) -> Findings:
    """Attack all federations at ``weights``: round -> ``[F, P]``, in the order of ``federations``."""
    options.check()
    like = next(iter(weights.values()))
    servers = {name: server_of(settings, data, batched, NO_PROTECTION) for name, data in datasets.items()}
    materials = {name: Materials.of(data, private).to(like.device, like.dtype) for name, data in datasets.items()}
    targets = {name: build_targets(materials[name], servers[name], options) for name in datasets}
    audit = SweepAudit(
        settings=settings, federations=federations, servers=servers, materials=materials, targets=targets,
        options=options, progress=progress,
    )  # fmt: skip
    complete = True
    try:
        for round_number, params in weights.items():
            for index in range(len(federations)):
                audit.attack(index, round_number, params[index])
    except KeyboardInterrupt:  # what was finished is worth keeping
        complete = False
    return audit.findings(complete)


def learned_against_static(federations: list[Federation], result: Outcomes, seed: int) -> Iterator[dict[str, Any]]:
    """What learning adds to the leakage: each learned mechanism against static noise, attack by attack."""
    for (index, round_number, role), outcomes in result.items():
        federation = federations[index]
        if role != OWN or not get_mechanism(federation.mechanism).learns:
            continue
        against = {
            name: several
            for (i, number, name), several in result.items()
            if (i, number) == (index, round_number) and name.startswith("static")
        }
        sibling = replace(federation, mechanism=static_name(federation.mechanism) or "")
        if round_number > 0 and sibling in federations:  # at round 0 all federations of a seed have the same weights
            against["static, own trajectory"] = result.get((federations.index(sibling), round_number, OWN), [])
        for name, others in against.items():
            for one, other in zip(outcomes, others, strict=False):  # an interrupted audit lacks some
                gap = differences(one, other, seed)
                if gap:
                    yield {**asdict(federation), "round": round_number, "attack": one.attack, "against": name, **gap}
