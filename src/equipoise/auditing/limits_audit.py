"""Federations whose budget is that of a whole run, held against what is proved of them: needs torch and numpy alone.

Their releases hold all records of a client, or a Poisson part of them: the usual attacks, on small batches with unknown
companions, would play another game. Here the games are those of the proof, at the weights of every attacked round
(``matched`` and ``membership``) and over the whole run (``multi-round``), with the attacker that knows most.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from ..attack.registry import MULTI_ROUND
from ..data.dataset import Dataset
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..mechanism.protection import Protection
from ..models.batched import Batched
from ..models.features import FeatureModel, features_of
from ..models.named import Factory
from ..statistics import Array
from .cells import loosest_client, per_client
from .examine import Progress
from .limit_client import PlayedClient
from .limit_comparison import rows_of
from .limit_games import Game, Play, deal
from .options import AuditOptions
from .results import Outcome
from .store import Store, fingerprint, source
from .targets import Materials

PLAYED = ("matched", "membership")
"""Attacks whose questions the game of one release answers."""
TIMED = 16
"""Games that are played to measure how long one takes."""
Step = Callable[[int], None]


@dataclass(frozen=True)
class Setting:
    """One federation as games see it: its data, and the client with the least noise."""

    settings: Settings
    federation: Federation
    batched: Batched
    classes: int
    game: Game
    linear: bool  # whether the model is a linear head, and the game's records are features

    def protection(self, round_number: int) -> Protection:
        own, fed = self.settings.protection, self.federation
        return own.at(fed.mechanism, fed.budget, round_number, loosest_client(own, fed, round_number))

    def client(self, seed: int) -> PlayedClient:
        return PlayedClient.of(
            self.batched, self.game, self.classes, linear=self.linear,
            protection=self.protection, eta=self.settings.protection.eta, seed=seed,
        )  # fmt: skip

    def about(self, round_number: int | None) -> dict[str, Any]:
        about = {**asdict(self.federation), "round": round_number}
        if per_client(self.settings.protection, self.federation):
            about["client"] = loosest_client(self.settings.protection, self.federation, (round_number or 0) + 1)
        return about


def setting_of(
    settings: Settings, federation: Federation, batched: Batched, data: Dataset, options: AuditOptions, *,
    private: bool = False, on_features: bool = False,
) -> Setting:  # fmt: skip
    """Deal a game for a federation, from public records or from the clients' own.

    ``on_features``: the model is the head of one with frozen features, and the data are these.
    """
    own, model = next(batched.model.parameters()), batched.model
    game = deal(Materials.of(data, private).to(own.device, own.dtype), options.games, options.among, options.seed)
    if isinstance(model, FeatureModel):
        game = replace(game, images=features_of(model, game.images))
        batched, on_features = Batched(model.head_model(), device=batched.device), True
    return Setting(settings.for_run(), federation, batched, data.classes, game, on_features)


def release_terms(client: PlayedClient, round_number: int) -> dict[str, Any]:
    """What the limit of one release depends on. Where all units take part, the record is known to be in it."""
    terms = client.terms(round_number)
    scope = "release_known" if terms.sampling_rate == 1 else "release"
    return {"sigma": terms.sigma, "rounds": 1, "sampling_rate": terms.sampling_rate, "scope": scope}


def run_terms(client: PlayedClient, rounds: int) -> dict[str, Any]:
    """Likewise of the first ``rounds`` releases together."""
    each = [client.terms(number) for number in range(1, rounds + 1)]
    base = each[0].sigma
    noise = Counter(round(terms.sigma / base, 12) for terms in each)
    return {
        "sigma": base, "rounds": rounds, "sampling_rate": each[0].sampling_rate, "scope": "run",
        "schedule": [[level, count] for level, count in sorted(noise.items())],
    }  # fmt: skip


# -- one release -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LimitCell:
    """One federation at the weights after one round."""

    setting: Setting
    round: int
    weights: Tensor  # [P]
    seed: int
    name: str = ""  # all that its outcome depends on, as a digest
    probe: dict[str, Array] = field(default_factory=dict)  # how the model answers at these weights
    found: Outcome | None = None
    seconds: float = 0.0  # that it will take

    def play(self, step: Step) -> Outcome:
        client = self.setting.client(self.seed)
        running = Play(self.setting.game, client)
        running.add(self.weights, client.terms(self.round + 1), self.round + 1, step)
        about = {**self.setting.about(self.round), "lower": client.terms(self.round + 1).sigma}
        return running.outcome(about, PLAYED[0])

    def rows(self, attacks: Sequence[str]) -> list[dict[str, Any]]:
        if self.found is None:
            return []
        own = replace(self.found, about=self.setting.about(self.round))
        return rows_of(own, release_terms(self.setting.client(self.seed), self.round + 1), attacks, self.seed)


@dataclass(kw_only=True)
class LimitsAudit:
    """The games of all federations and rounds: what was found before, and what is to be played."""

    cells: list[LimitCell]
    options: AuditOptions
    store: Store | None = None
    progress: Progress | None = None
    read: int = 0

    def plan(self) -> float:
        """Look up what is there; the seconds that the rest will take."""
        pace: dict[int, float] = {}
        for cell in self.cells:
            if self.store is not None and self.store.key:
                client, game = cell.setting.client(cell.seed), cell.setting.game
                cell.probe = {"norms": client.units(cell.weights, game.others).norm(dim=1).cpu().numpy()}
                cell.name = fingerprint(
                    "limits", cell.weights, asdict(client.terms(cell.round + 1)), client.eta, cell.round, game,
                    cell.seed, repr(cell.setting.batched.model), str(cell.weights.dtype), cell.weights.device.type,
                    source(),
                )  # fmt: skip
                cell.found = self.store.get(cell.name, PLAYED[0], len(game), cell.probe)
            if cell.found is None:
                place = id(cell.setting.batched)
                if place not in pace:
                    pace[place] = seconds_per_game(cell.setting, cell.weights, cell.seed)
                cell.seconds = pace[place] * len(cell.setting.game)
        self.read = sum(cell.found is not None for cell in self.cells)
        return sum(cell.seconds for cell in self.cells)

    def run(self) -> None:
        """Play what is missing."""
        for cell in self.cells:
            if cell.found is None:
                self._play(cell)

    def _play(self, cell: LimitCell) -> None:
        each = cell.seconds / len(cell.setting.game)
        label = f"{cell.setting.federation.label()} at {cell.round}: with the record and without it"

        def told(count: int) -> None:
            if self.progress is not None:
                self.progress(label, count * each)

        cell.found = cell.play(told)
        if self.store is not None and cell.name:
            self.store.put(cell.name, cell.found, cell.probe)

    def rows(self) -> list[dict[str, Any]]:
        return [row for cell in self.cells for row in cell.rows(self.options.attacks)]

    def outcomes(self) -> list[Outcome]:
        return [
            replace(cell.found, about=cell.setting.about(cell.round)) for cell in self.cells if cell.found is not None
        ]


def limits_audit(
    settings: Settings,
    federations: list[Federation],
    datasets: dict[str, Dataset],
    batched: Batched,
    weights: dict[int, Tensor],
    options: AuditOptions,
    *,
    private: bool = False,
    on_features: bool = False,
    store: Store | None = None,
    progress: Progress | None = None,
) -> LimitsAudit:
    """The games of these federations at ``weights``: round -> ``[F, P]``; none where no attack asks for one."""
    cells = []
    if federations and set(PLAYED) & set(options.attacks):
        dealt: dict[str, Setting] = {}
        for index, fed in enumerate(federations):
            if fed.dataset not in dealt:
                dealt[fed.dataset] = setting_of(
                    settings, fed, batched, datasets[fed.dataset], options, private=private, on_features=on_features
                )
            setting = replace(dealt[fed.dataset], federation=fed)
            cells += [
                LimitCell(setting=setting, round=number, weights=params[index], seed=options.seed)
                for number, params in weights.items()
            ]
    return LimitsAudit(cells=cells, options=options, store=store, progress=progress)


def seconds_per_game(setting: Setting, weights: Tensor, seed: int) -> float:
    """How long one game of one release takes here, about: a few are played."""
    game = setting.game
    few = replace(game, **{name: getattr(game, name)[:TIMED] for name in ("truth", "choices", "place", "impostor")})
    client = setting.client(seed)
    started = time.perf_counter()
    Play(few, client).add(weights, client.terms(1), 1)
    return (time.perf_counter() - started) / len(few)


# -- a whole run -------------------------------------------------------------------------------------------------------


def replayed_limits(
    settings: Settings,
    federation: Federation,
    rounds: int,
    options: AuditOptions,
    *,
    datasets: dict[str, Dataset] | None = None,
    model: nn.Module | Factory | None = None,
    on_round: Step | None = None,
) -> list[dict[str, Any]]:
    """The game over the first ``rounds`` of a run: its seeded training once more, and a release of every game's clients
    at the weights of every round."""
    sweep = Sweep(settings, [federation], datasets, model)
    data = sweep.datasets[federation.dataset]
    setting = setting_of(settings, federation, sweep.batched, data, options, on_features=sweep.on_features)
    client = setting.client(options.seed)
    running = Play(setting.game, client)
    for number in range(1, rounds + 1):
        running.add(sweep.state.params[0].clone(), client.terms(number), number)
        sweep.train(number)
        if on_round:
            on_round(number)
    outcome = running.outcome({**setting.about(None), "rounds": rounds}, MULTI_ROUND)
    return rows_of(outcome, run_terms(client, rounds), [MULTI_ROUND], options.seed)
