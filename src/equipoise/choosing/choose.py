"""``choose``: from a dataset, a model, the number of clients and one limit to what can be deployed.

Everything is tried by stand-in clients on public records (``standins.py``), by successive halving (``halving.py``) over
sweeps of many runs (``trials.py``). It is a seeded experiment: the same seed gives the same decision.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, TypedDict, Unpack

from ..data.dataset import Dataset
from ..engine.datasets import load_dataset
from ..engine.settings import Settings
from ..errors import ConfigError, EquipoiseError, closest, expected, is_whole
from ..models.named import Factory
from ..runs.config import resolve
from .candidates import BEST, FIXED, models_for
from .chooser import LOWEST, Chooser, Progress, Search, Silent
from .decision import Decision, Expected, Point, Rejected
from .limit import limit_of, proved
from .others import LEARNED, STATIC, Unproved, measured, unprotected
from .standins import StandIns, of_dataset, rounded, units_of
from .trials import Trial

UNPROVED = {STATIC: "static noise", LEARNED: "the paper's learner"}
CHOSEN_HERE = ("rounds", "sigmas")
"""Of [gaussian]: what follows from the choice."""
NO_SETTINGS = {
    "model": "Name it by --model.",
    "eta": "It is 1, and the server's rate is chosen; fix that by server_rate.",
    "init": "It follows from the model.",
    "evaluate_every": "Change it in choice.toml.",
    "snapshots": "Change them in choice.toml.",
}
"""What would change nothing, and what to do instead."""
PLAIN_ROUNDS = 150
"""That training without protection has at least: nothing is lost by more."""
STATIC_ROUNDS = {True: 300, False: 1500}
"""That noise without a guarantee is trained for; with --quick fewer."""


@dataclass(kw_only=True)
class Choosing:
    """A choice that is being made: what was asked, and the search so far, for whoever interrupts it."""

    source: str
    dataset: Dataset
    search: Search
    records: int | None  # of a client; None: they follow from the dataset
    private: bool = False
    measured_only: bool = False
    unfit: list[tuple[str, str]] = field(default_factory=list)
    progress: Progress = field(default_factory=Silent)

    def __post_init__(self) -> None:
        clients = self.search.settings.protection.clients
        self.counted = self.records is None
        records = self.records or max(1, rounded(units_of(self.dataset.train)[1] // clients))
        self.stand_ins: StandIns = of_dataset(self.dataset, clients, records, private=self.private)
        self._refuse_what_any_guess_reaches()
        self.chooser = Chooser(self.search, self.stand_ins, self.progress)
        self.began = time.monotonic()
        self.plain: list[float] = []
        self.others: list[Rejected] = []

    def _refuse_what_any_guess_reaches(self) -> None:
        limit, share = self.search.limit, self.stand_ins.largest_class
        if limit.kind == "accuracy" and limit.value <= share:
            raise ConfigError(
                f"Expected accuracy={limit.value:g} to be above {share:.3g}, which always naming the largest class of "
                f"{self.dataset.name!r} reaches.",
                "Give what would be of use, for example --accuracy 0.9.",
            )

    def run(self) -> Decision:
        """The whole search."""
        search, chooser = self.search, self.chooser
        unproved = search.limit.kind == "identification"
        chooser.plan(self._more_seconds(unproved), self._notes())
        epsilon, met = chooser.epsilon, True
        if search.limit.kind == "accuracy":
            chosen, met = chooser.for_accuracy()
        else:
            chosen = chooser.halve_at(epsilon or LOWEST)
        chooser.trials.run([chosen], chooser.most)
        chooser.leader = chosen
        curve = chooser.curve(chosen)
        self._train_plain(chosen)
        found = self._decision(chosen, curve, met and (epsilon is not None or search.limit.kind == "accuracy"))
        other = self._unproved(found, chosen) if unproved else None
        self.others += self._without_guarantee() if not unproved else []
        return replace(other or found, rejected=self._rejected(chosen, other), seconds=time.monotonic() - self.began)

    def so_far(self) -> str | None:
        """The best so far, in words, for whoever interrupts."""
        trained = {trial: one for trial, one in self.chooser.trials.scores.items() if one.choosing}
        leader = self.chooser.leader or max(trained, key=lambda one: mean(trained[one].choosing.values()), default=None)
        if leader not in trained or leader is None:
            return None
        score = trained[leader]
        share, runs = mean(score.choosing.values()), len(score.choosing)
        rate = self.chooser.trials.server_rate(leader)
        return (
            f"best so far, not decided: gaussian-dp with epsilon {leader.epsilon:g}, {leader.candidate.label()} "
            f"(server rate {rate:.4g}): {share:.1%} in {runs} run{'' if runs == 1 else 's'} on {self.stand_ins.what}"
        )

    # -- the plan ----------------------------------------------------------------------------------------------------

    def _notes(self) -> list[str]:
        notes = [f"{model} does not fit: {cause}" for model, cause in self.unfit]
        if self.counted:
            notes.append(
                f"no --records: the divisor {self.stand_ins.records:,}, which is published, follows from the number of "
                "training records, rounded down; no epsilon covers that."
            )
        if self.dataset.fitted:
            told = "; ".join(self.dataset.fitted)
            notes.append(f"warning: not covered by any epsilon, as it was measured on private rows: {told}.")
        if self.private:
            notes.append(
                "warning: this tunes on clients' own training records; the settings that are chosen tell something "
                "about them, and no epsilon covers that."
            )
        return notes

    def _more_seconds(self, unproved: bool) -> float:
        return 5.0 + (60.0 if unproved and self.search.quick else 240.0 if unproved else 0.0)

    # -- what is not searched ----------------------------------------------------------------------------------------

    def _train_plain(self, chosen: Trial) -> None:
        candidate, seeds = chosen.candidate, range(len(self.stand_ins.folds))
        own = self.search.settings
        self.plain = unprotected(
            self.stand_ins, own, candidate.model, max(PLAIN_ROUNDS, candidate.rounds),
            code=self.search.code, seeds=seeds,
        )  # fmt: skip

    def _without_guarantee(self) -> Iterator[Rejected]:
        for name, what in UNPROVED.items():
            yield Rejected(f"{name} ({what})", "no epsilon can be stated: nothing is proved of it")

    def _unproved(self, found: Decision, chosen: Trial) -> Decision | None:
        """Noise without a proof, measured; returned where it is clearly better and that was agreed to."""
        best: Unproved | None = None
        proved_ = self.chooser.on_choosing(self.chooser.trials.scores[chosen])
        for name, what in UNPROVED.items():
            label = f"{name} ({what})"
            if self.dataset.public is None:
                self.others.append(Rejected(label, "cannot be measured without public records"))
                continue
            if name == LEARNED and self.search.quick:
                self.others.append(Rejected(label, "nothing is proved of it, and --quick does not measure it"))
                continue
            try:
                one = measured(
                    self.dataset, self.stand_ins, self.search.settings, name, self.search.limit.value,
                    rounds=STATIC_ROUNDS[self.search.quick], seeds=self.chooser.few,
                    on_step=self.progress,
                )  # fmt: skip
            except EquipoiseError as error:
                self.others.append(Rejected(label, f"could not be measured: {error.cause}"))
                continue
            better = one.accuracy > proved_.high
            if better and self.measured_only and (best is None or one.accuracy > best.accuracy):
                best = one
            else:
                self.others.append(self._why_not(label, one, better))
        return None if best is None else self._of_unproved(best, found)

    def _why_not(self, label: str, one: Unproved, better: bool) -> Rejected:
        words = (
            f"{one.identified:.1%} identified among {one.candidates} in one release, measured, at budget "
            f"{one.budget:g}; a whole run is"
        )
        agreed = "; more accurate: --measured-only-ok would choose it" if better and not self.measured_only else ""
        worse = "" if better else "; not more accurate by more than the interval"
        return Rejected(label, f"{words} not bounded{agreed}{worse}", one.accuracy, len(one.choosing))

    def _of_unproved(self, one: Unproved, found: Decision) -> Decision:
        keys = {
            "model": one.model, "rounds": STATIC_ROUNDS[self.search.quick],
            "server_rate": "auto", "server_momentum": 0.0,
            "init": "uniform" if self.dataset.kind == "image" else "torch", "evaluate_every": 50, "snapshots": [],
            "batch": min(44, self.stand_ins.per_client) if one.mechanism == STATIC else found.settings.protection.batch,
        }  # fmt: skip
        told = Expected.of(list(one.accuracies), self.stand_ins.reported, self.stand_ins.what)
        return replace(
            found, settings=self.search.settings.replace(**keys), mechanism=one.mechanism, budget=one.budget,
            sigma=None,
            expected=told, identified=one.identified, met=True, shortfall="", curve=[], changes="recommended",
        )  # fmt: skip

    # -- the decision ------------------------------------------------------------------------------------------------

    def _decision(self, chosen: Trial, curve: list[Trial], met: bool) -> Decision:
        trials, search, own = self.chooser.trials, self.search, self.stand_ins
        settings = trials.real(chosen.candidate).replace(server_rate=float(f"{trials.server_rate(chosen):.6g}"))
        gaussian = settings.protection.gaussian
        expected_ = Expected.of(list(trials.scores[chosen].reporting.values()), own.reported, own.what)
        largest = own.largest_class
        shortfall = "" if met else self._shortfall(chosen, expected_)
        if met and search.limit.kind == "accuracy" and expected_.low < search.limit.value:
            met, shortfall = False, self._not_confirmed(chosen, expected_)
        if met and expected_.accuracy - (expected_.high - expected_.accuracy) <= largest:
            met = False
            shortfall = (
                f"{search.limit.words()} leaves nothing to learn from: {expected_.words()} is no better than always "
                f"naming the largest class ({largest:.1%})."
            )
        rounds = max(1, chosen.candidate.rounds // 5)
        return Decision(
            met=met, limit=search.limit, dataset=self.source, mechanism="gaussian-dp", budget=chosen.epsilon,
            settings=settings.replace(
                gaussian=replace(gaussian, rounds=None), evaluate_every=rounds, snapshots=[0, rounds * 2]
            ),
            sigma=gaussian.sigma(chosen.epsilon), records=own.records, expected=expected_,
            unprotected=mean(self.plain), identified=proved(chosen.epsilon, gaussian, chosen.candidate.rounds),
            rejected=[], curve=[self._point(trial) for trial in curve], shortfall=shortfall, largest_class=largest,
            unit=own.unit, not_covered=self.dataset.fitted,
            private=self.private, quick=search.quick, seed=search.seed, changes=chosen.candidate.changes(),
        )  # fmt: skip

    def _not_confirmed(self, chosen: Trial, found: Expected) -> str:
        """The records that are reported can refuse a choice; another is not made on them."""
        return (
            f"On the records that choose, epsilon {chosen.epsilon:g} is sure to reach {self.search.limit.words()}; on "
            f"those that are kept for the report it is not: {found.words()}. Ask for less, or give more public records."
        )

    def _shortfall(self, chosen: Trial, found: Expected) -> str:
        limit = self.search.limit
        if limit.kind == "accuracy":
            return (
                f"No epsilon up to {chosen.epsilon:g} is sure to reach {limit.words()} on the records that choose; on "
                f"those that are reported, {chosen.epsilon:g} gave {found.words()}."
            )
        return f"No epsilon is so small that {limit.words()} is proved."

    def _point(self, trial: Trial) -> Point:
        accuracies = list(self.chooser.trials.scores[trial].reporting.values())
        gaussian = self.chooser.trials.real(trial.candidate).protection.gaussian
        found = Expected.of(accuracies, self.stand_ins.reported, self.stand_ins.what)
        identified = proved(trial.epsilon, gaussian, trial.candidate.rounds)
        return Point(trial.epsilon, found.accuracy, (found.low, found.high), identified)

    def _rejected(self, chosen: Trial, other: Decision | None) -> list[Rejected]:
        """Every candidate that was tried, the better ones first, then other mechanisms."""
        tried = self.chooser.outcome.scores if self.chooser.outcome else {}
        ranked = sorted((one for one in tried if one.candidate != chosen.candidate or other), key=_by(tried))
        rows = []
        for trial in ranked:
            values = tried[trial]
            why = "less accurate than the choice" if trial == chosen else self.chooser.why(trial, chosen)
            rows.append(Rejected(trial.candidate.label(), why, mean(values) if values else None, len(values)))
        rows += [Rejected(model, f"does not fit: {cause}") for model, cause in self.unfit]
        rows += self._too_strict(chosen)
        rows += [Rejected(*one) for one in self.chooser.not_played]
        rows += [Rejected("out of reach", self.chooser.left_out)] if self.chooser.left_out else []
        none = "no protection at all; on the records that are reported"
        return [*rows, *self.others, Rejected("none", none, mean(self.plain), len(self.plain))]

    def _too_strict(self, chosen: Trial) -> Iterator[Rejected]:
        """Of a limit on accuracy, the stricter budgets at which the choice was tried with all seeds."""
        if self.search.limit.kind != "accuracy":
            return
        for trial, score in self.chooser.trials.scores.items():
            tried = len(score.reporting) >= len(self.chooser.most)
            if tried and trial.candidate == chosen.candidate and trial.epsilon < chosen.epsilon:
                reached = mean(score.choosing.values())
                why = f"the same settings at epsilon {trial.epsilon:g} are not sure to reach the limit"
                yield Rejected(f"epsilon {trial.epsilon:g}", why, reached, len(score.choosing))


def _by(tried: Mapping[Trial, list[float]]) -> Any:
    return lambda trial: (-len(tried[trial]), -mean(tried[trial]) if tried[trial] else 0.0)


# -- what is asked ----------------------------------------------------------------------------------------------------


class Asked(TypedDict, total=False):
    """What may be asked of ``choose``, beside the dataset: exactly one limit, and how to search."""

    epsilon: float | None  # limit: of the whole run
    identification: float | None  # limit: share of records that any attacker may pick out of 200, over the whole run
    accuracy: float | None  # limit: the least
    model: str  # a bundled one, "best", or what ``code`` is called
    code: Factory | None  # builds a model of one's own
    clients: int
    records: int | None  # of a client: a number that may be public
    quick: bool
    on_private_records: bool  # where nothing is public; no epsilon covers it
    measured_only: bool  # accept noise of which nothing is proved
    seed: int
    settings: Mapping[str, Any] | None  # that are fixed, by their keys
    progress: Progress | None


def choosing(dataset: Dataset | str | Path, **asked: Unpack[Asked]) -> Choosing:
    """What ``choose`` runs, checked: see there."""
    _refuse_unknown(asked)
    limit = limit_of(asked.get("epsilon"), asked.get("identification"), asked.get("accuracy"))
    seed, code = asked.get("seed", 1), asked.get("code")
    if not is_whole(seed) or seed < 0:
        raise expected("seed", seed, "a whole number >= 0", "For example --seed 1.")
    given = {**(asked.get("settings") or {}), "clients": asked.get("clients", 4)}
    own = _settings(given, dataset)
    data = dataset if isinstance(dataset, Dataset) else load_dataset(own, str(dataset))
    models, unfit = models_for(asked.get("model", BEST), data, code)
    search = Search(
        limit=limit, settings=own, models=models, fixed=_fixed(given), quick=asked.get("quick", False), seed=seed,
        code=code,
    )  # fmt: skip
    return Choosing(
        source=data.name if isinstance(dataset, Dataset) else str(dataset), dataset=data, search=search,
        records=_records(asked.get("records"), given, own),
        private=asked.get("on_private_records", False) and data.public is None,
        measured_only=asked.get("measured_only", False), unfit=unfit, progress=asked.get("progress") or Silent(),
    )  # fmt: skip


def choose(dataset: Dataset | str | Path, **asked: Unpack[Asked]) -> Decision:
    """What to deploy under one limit: mechanism, model, budget, rounds, rate, and what accuracy to expect of it.

    Args:
        dataset: as ``load`` takes it, or one that is loaded. Candidates are tried on its public part alone.
        asked: exactly one limit, ``epsilon``, ``identification`` or ``accuracy``; and ``model``, ``code``, ``clients``,
            ``records``, ``quick``, ``on_private_records``, ``measured_only``, ``seed``, ``settings``, ``progress``, as
            ``Asked`` has them and docs/choose.md says.

    Returns:
        The decision. Where nothing meets the limit, its ``met`` is false, and it holds what comes nearest.

    >>> found = choose("breast-cancer", epsilon=8, quick=True, settings={"rounds": 4, "server_momentum": 0.8})
    >>> found.mechanism, found.settings.training.model, found.settings.training.rounds
    ('gaussian-dp', 'mlp', 4)
    """
    return choosing(dataset, **asked).run()


def _refuse_unknown(asked: Mapping[str, Any]) -> None:
    known = list(Asked.__annotations__)
    for key in asked:
        if key not in known:
            raise ConfigError(f"Unknown argument {key!r}.{closest(key, known)}", f"Known: {', '.join(known)}.")


def _settings(given: Mapping[str, Any], dataset: Dataset | str | Path) -> Settings:
    name = "mnist" if isinstance(dataset, Dataset) else str(dataset)
    for key in CHOSEN_HERE:
        if f"gaussian.{key}" in _flat(given):
            raise ConfigError(f"gaussian.{key} follows from what is chosen.", "Leave it out; rounds can be fixed.")
    for key, remedy in NO_SETTINGS.items():
        if key in given:
            raise ConfigError(f"{key} is no setting of choose.", remedy)
    return resolve(
        overrides={**given, "model": "mlp"}, sweep={"datasets": [name], "mechanisms": ["gaussian-dp"], "budgets": [1.0]}
    ).settings


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """A table of [gaussian] as keys with a dot, which may be given too."""
    nested = given.get("gaussian")
    return {**given, **({f"gaussian.{key}": one for key, one in nested.items()} if isinstance(nested, Mapping) else {})}


def _fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a user fixed of the candidates."""
    return {key: value for key, value in _flat(given).items() if key in FIXED and value != "auto"}


def _records(records: int | None, given: Mapping[str, Any], settings: Settings) -> int | None:
    """Records of a client: as said, or the divisor that was set."""
    divisor = _flat(given).get("gaussian.divisor")
    if records is not None and divisor is not None:
        raise ConfigError(
            f"Both records={records!r} and gaussian.divisor={divisor!r} were given: the divisor is the records.",
            "Give --records alone.",
        )
    if records is not None:
        if not is_whole(records) or records < 1:
            raise expected(
                "records", records, "a whole number >= 1", "How many a client has, for example --records 1000."
            )
        return records
    if divisor is None:
        return None
    own = settings.protection.gaussian.divisor
    if own < 1 or own != int(own):
        raise expected("gaussian.divisor", divisor, "a whole number >= 1", "Give --records: how many a client has.")
    return int(own)
