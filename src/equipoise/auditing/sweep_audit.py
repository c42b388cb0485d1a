"""Every federation of a sweep, attacked at the weights of chosen rounds: needs torch and numpy alone.

For each federation and round: its own mechanism; for a learned one also its two static twins at the same weights (equal
lower bound, equal final norm); and undistorted releases as the positive control. A cell that occurs twice is attacked
once. Federations whose budget is that of a whole run are another matter: ``limits_audit.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..attack.attack import Work
from ..attack.registry import SHARING, find
from ..attack.view import Server
from ..data.dataset import Dataset
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..mechanism.protection import NO_PROTECTION
from ..mechanism.registry import get_mechanism
from ..models.batched import Batched
from ..statistics import Array
from .cells import OWN, Planned, federation_cell, planned_cells, server_of, static_name
from .comparison import STATIC
from .examine import Progress, attack_cell
from .limits_audit import LimitsAudit, limits_audit
from .options import AuditOptions
from .plan import Plan, Stopwatch, work_of
from .results import Findings, Outcome, differences, mark_controls, rows_of, summary
from .scoring import baselines
from .store import Store, fingerprint, source, unknown_code
from .targets import Materials, Targets, build_targets
from .unfinished import Place, Unfinished, unfinished

PROBED = 32
"""Public records by whose outputs and gradient a model is told from another."""
Outcomes = dict[tuple[int, int, str], list[Outcome]]
"""By federation, round and role."""


@dataclass(kw_only=True)
class CellAudit:
    """One cell: what was found in it before, and what each attack will take."""

    dataset: str
    planned: Planned
    names: dict[str, str]  # by attack: all that its outcome depends on, as a digest; none for code that has no version
    probe: dict[str, Array]  # how the model answers at these weights
    found: dict[str, Outcome]  # by attack
    seconds: dict[str, float]  # of one step, by attack
    left: dict[str, float]  # seconds, by attack

    def missing(self, attacks: list[str]) -> list[str]:
        return [name for name in attacks if name not in self.found]


@dataclass(kw_only=True)
class SweepAudit:
    """An audit under way: what is attacked, and what was found so far."""

    settings: Settings
    federations: list[Federation]
    servers: dict[str, Server]  # by dataset; facing no defence
    materials: dict[str, Materials]
    targets: dict[str, Targets]
    options: AuditOptions
    weights: dict[int, Tensor]  # by round: [F, P]
    progress: Progress | None
    store: Store | None
    private: bool = False
    read: int = 0  # results that were in the store
    probes: dict[Any, dict[str, Array]] = field(default_factory=dict)  # by dataset and weights
    outcomes: Outcomes = field(default_factory=dict)
    cells: dict[Any, CellAudit] = field(default_factory=dict)  # by dataset, defence and weights: attacked once
    occurrences: list[tuple[int, int, Planned]] = field(default_factory=list)  # federation, round, cell: as planned

    def _occurrences(self) -> Iterator[tuple[int, int, Planned]]:
        """Every federation at every round, with its twins and controls."""
        for round_number, params in self.weights.items():
            for index, federation in enumerate(self.federations):
                name = federation.dataset
                own = federation_cell(self.settings, federation, round_number, params[index], self.servers[name])
                for planned in planned_cells(own, self.materials[name], self.options):
                    yield index, round_number, planned

    def plan(self) -> Plan:
        """Look up what is there, and count what is not."""
        watch, common = Stopwatch(), {name: self._common(name) for name in self.targets}
        self.occurrences = list(self._occurrences())
        for index, _, planned in self.occurrences:
            name = self.federations[index].dataset
            if (name, *planned.key) not in self.cells:
                self.cells[name, *planned.key] = self._cell(name, planned, common[name], watch)
        cells = self.cells.values()
        self.read = sum(len(cell.found) for cell in cells)
        return Plan(
            federations=len(self.federations), snapshots=len(self.weights), cells=len(cells),
            there=sum(not cell.missing(self.options.attacks) for cell in cells), attacks=self.options.attacks,
            releases=max(map(len, self.targets.values()), default=0),
            seconds=sum(sum(cell.left.values()) for cell in cells), remarks=self._remarks(),
            kind=next((server.kind for server in self.servers.values()), "image"),
        )  # fmt: skip

    def _remarks(self) -> list[str]:
        if self.store is None:
            return []
        codes = [
            unknown_code(find(one), cell.planned.server.protection.mechanism)
            for cell in self.cells.values() for one in self.options.attacks
        ]  # fmt: skip
        own = ", ".join(dict.fromkeys(code for code in codes if code is not None))
        each = f"Computed each time, because the code is not this package's: {own}."
        return [*self.store.remarks(), *([each] if own else [])]

    def _common(self, name: str) -> str:
        """A digest of what all cells of a dataset depend on."""
        server, materials, targets = self.servers[name], self.materials[name], self.targets[name]
        like = next(iter(self.weights.values()))
        facts = [getattr(server, part) for part in ("shape", "classes", "batch", "low", "high", "eta", "local_steps")]
        ends = like.new_tensor([0.0, 1.0]).view(2, *[1] * len(server.shape))  # spread over the channels there are
        pixels = materials.to_pixels(ends) if server.kind == "image" else server.kind
        return fingerprint(
            repr(server.batched.model), str(like.dtype), like.device.type, self.settings.protection.leakage.D,
            facts, materials.attack, targets, pixels, self.options.seed, self.options.pictures,
        )  # fmt: skip

    def _cell(self, name: str, planned: Planned, common: str, watch: Stopwatch) -> CellAudit:
        attacks, settings = {one: find(one) for one in self.options.attacks}, self.options.settings
        names, probe, found = dict[str, str](), dict[str, Array](), dict[str, Outcome]()
        if self.store is not None and self.store.key:
            mechanism, releases = planned.server.protection.mechanism, len(self.targets[name])
            place = (name, planned.key[0])
            if place not in self.probes:
                self.probes[place] = self._probe(name, planned.weights)
            probe = self.probes[place]
            names = {
                one: fingerprint(common, planned.key, one, {key: settings[key] for key in attack.options}, source())
                for one, attack in attacks.items() if unknown_code(attack, mechanism) is None
            }  # fmt: skip
            stored = {one: self.store.get(called, one, releases, probe) for one, called in names.items()}
            found = {one: outcome for one, outcome in stored.items() if outcome is not None}
        work = {
            one: work_of(one, planned.server, self.targets[name], self.materials[name], self.options)
            for one in attacks if one not in found
        }  # fmt: skip
        for one in [one for one in work if one in SHARING][1:]:  # what the first of them simulates serves all
            work[one] = Work(0, 0.0)
        pace = watch.seconds(planned.server, planned.weights) if work else 0.0
        algebra = watch.per_product(planned.weights)
        return CellAudit(
            dataset=name, planned=planned, names=names, probe=probe, found=found,
            seconds={one: pace * each.gradients for one, each in work.items()},
            left={one: pace * each.total + algebra * each.products for one, each in work.items()},
        )  # fmt: skip

    def _probe(self, name: str, weights: Tensor) -> dict[str, Array]:
        """How the model answers public records: code that is not ours, and fixed tensors, have no other description."""
        public, server = self.materials[name].attack, self.servers[name]
        assert public is not None
        batched, params = server.batched, weights.unsqueeze(0)
        rows = torch.arange(max(1, PROBED // server.batch) * server.batch) % len(public[1])
        answers: dict[str, list[Tensor]] = {"outputs": [], "gradient": []}
        for some in rows.view(-1, 1, server.batch):  # one by one: a large model takes no more room than in an attack
            images, labels = (part[some.to(part.device)] for part in public)
            slope = batched.at(images, labels).gradient(params)[0]
            slots = [slope[slot.start : slot.stop].double() for slot in batched.layout.slots]
            answers["outputs"].append(batched.outputs(params, images)[0].double())
            answers["gradient"].append(torch.stack([torch.stack([slot.norm(), slot.sum()]) for slot in slots]))
        return {kind: torch.stack(several).cpu().numpy() for kind, several in answers.items()}

    def run(self) -> None:
        """Attack every cell."""
        for occurrence in self.occurrences:
            self.attack(*occurrence)

    def attack(self, index: int, round_number: int, planned: Planned) -> None:
        """One federation at the weights after one round, or one of its twins and controls."""
        federation = self.federations[index]
        cell = self.cells[federation.dataset, *planned.key]
        where = f"{federation.label()} at {round_number}, {planned.about['role']}"
        if cell.missing(self.options.attacks):
            self._attack(cell, where)
        outcomes = (cell.found[name] for name in self.options.attacks)
        self.outcomes[index, round_number, planned.about["role"]] = [
            replace(one, about={**planned.about, "lower": one.about["lower"]}) for one in outcomes
        ]

    def _attack(self, cell: CellAudit, where: str) -> None:
        made = cell.planned.make()
        about = {**made.about, "lower": float(made.server.protection.scale)}
        made, same = replace(made, about=about), self.cells.get((cell.dataset, *made.key()), cell)

        def told(attack: str, steps: float) -> None:
            seconds = cell.left[attack] if steps == inf else min(steps * cell.seconds[attack], cell.left[attack])
            cell.left[attack] -= seconds
            if self.progress is not None:
                self.progress(f"{where}: {attack}", seconds)

        def keep(outcome: Outcome) -> None:
            cell.found[outcome.attack] = outcome
            if self.store is not None and outcome.attack in cell.names and outcome.values:
                self.store.put(cell.names[outcome.attack], self._kept(outcome), cell.probe)
            told(outcome.attack, inf)  # what was not told of in steps

        for one in set(same.found) - set(cell.found):  # a twin that equals the other
            keep(replace(same.found[one], about=about))
        if missing := cell.missing(self.options.attacks):
            attack_cell(
                made, self.targets[cell.dataset], self.materials[cell.dataset],
                replace(self.options, attacks=missing), self.settings.protection.leakage.D, told, keep, forgiving=True,
            )  # fmt: skip

    def _kept(self, outcome: Outcome) -> Outcome:
        """What of it may lie in the folder: no reconstruction of a client's own record."""
        if not self.private:
            return outcome
        return replace(outcome, pictures=None, about={**outcome.about, "private": True})

    def findings(self) -> Findings:
        outcomes = [one for several in self.outcomes.values() for one in several]
        rows = [row for one in outcomes for row in rows_of(one, self.targets[one.about["dataset"]], self.options.seed)]
        mark_controls(rows)
        guesses = {name: self._guesses(name) for name in self.targets}
        gaps = list(learned_against_static(self.federations, self.outcomes, self.options.seed))
        computed = sum(len(cell.found) for cell in self.cells.values()) - self.read
        return Findings(rows, gaps, guesses, outcomes, self.targets, read=self.read, computed=computed)

    def places(self) -> list[Place]:
        """Every federation at every round, and whether it was attacked there."""
        own = [(index, number) for index, number, planned in self.occurrences if planned.about["role"] == OWN]
        return [(self.federations[index], number, (index, number, OWN) in self.outcomes) for index, number in own]

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
    on_features: bool = False,
    store: Store | None = None,
    planned: Callable[[Plan], None] = lambda plan: None,
) -> Findings:
    """Attack all federations at ``weights``: round -> ``[F, P]``, in the order of ``federations``.

    ``planned`` is told what will be done before it begins; ``progress`` then gets seconds of that plan. What is
    finished goes into ``store`` at once, and what was found there before is not computed again. ``on_features``: the
    model is the head of one with frozen features, and the data are these.
    """
    options.check()
    whole = [get_mechanism(federation.mechanism).whole_run for federation in federations]
    limits = limits_audit(
        settings, [fed for fed, mine in zip(federations, whole, strict=True) if mine], datasets, batched,
        {number: params[torch.tensor(whole)] for number, params in weights.items()}, options,
        private=private, on_features=on_features, store=store, progress=progress,
    )  # fmt: skip
    left = [fed for fed, mine in zip(federations, whole, strict=True) if not mine]
    own = {number: params[~torch.tensor(whole)] for number, params in weights.items()}
    others = _sweep_audit(settings, left, datasets, batched, own, options, progress, private=private, store=store)
    planned(_together(others, limits))
    undone = None
    try:
        limits.run()
        others.run()
    except KeyboardInterrupt:  # what was finished is worth keeping
        undone = _unfinished(others, limits)
    findings = others.findings()
    computed = sum(cell.found is not None for cell in limits.cells) - limits.read
    return replace(
        findings, limits=limits.rows(), limit_outcomes=limits.outcomes(), read=findings.read + limits.read,
        computed=findings.computed + computed, unfinished=undone,
    )  # fmt: skip


def _unfinished(others: SweepAudit, limits: LimitsAudit) -> Unfinished:
    """What an interruption left undone."""
    played = [(cell.setting.federation, cell.round, cell.found is not None) for cell in limits.cells]
    cells = others.cells.values()
    finished = sum(not cell.missing(limits.options.attacks) for cell in cells) + sum(there for _, _, there in played)
    return unfinished(len(cells) + len(played), finished, [*others.places(), *played])


def _together(others: SweepAudit, limits: LimitsAudit) -> Plan:
    """What both kinds of federations take."""
    plan, seconds = others.plan(), limits.plan()
    return replace(
        plan, attacks=limits.options.attacks, seconds=plan.seconds + seconds, there=plan.there + limits.read,
        limited=len(limits.cells), games=max((len(cell.setting.game) for cell in limits.cells), default=0),
    )  # fmt: skip


def _sweep_audit(
    settings: Settings, federations: list[Federation], datasets: dict[str, Dataset], batched: Batched,
    weights: dict[int, Tensor], options: AuditOptions, progress: Progress | None, *, private: bool, store: Store | None,
) -> SweepAudit:  # fmt: skip
    like = next(iter(weights.values()))
    datasets = {fed.dataset: datasets[fed.dataset] for fed in federations}
    servers = {name: server_of(settings, data, batched, NO_PROTECTION) for name, data in datasets.items()}
    materials = {name: Materials.of(data, private).to(like.device, like.dtype) for name, data in datasets.items()}
    targets = {name: build_targets(materials[name], servers[name], options) for name in datasets}
    return SweepAudit(
        settings=settings, federations=federations, servers=servers, materials=materials, targets=targets,
        options=options, weights=weights, progress=progress, store=store, private=private,
    )  # fmt: skip


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
            against[STATIC] = result.get((federations.index(sibling), round_number, OWN), [])
        for name, others in against.items():
            for one, other in zip(outcomes, others, strict=False):  # an interrupted audit lacks some
                gap = differences(one, other, seed)
                if gap:
                    yield {**asdict(federation), "round": round_number, "attack": one.attack, "against": name, **gap}
