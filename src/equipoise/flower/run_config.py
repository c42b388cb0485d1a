"""What a Flower run asks of its clients, read from its run config.

``[tool.flwr.app.config.equipoise]``, the same for all:

====================  ==============================================================================================
mechanism, budget     as everywhere; a list or a schedule is written as JSON in a string: ``budget = "[0.96, 0.98]"``
eta, gamma, ...       the settings of a release, by their names in ``Settings``; ``leakage.D`` and so on
gaussian.delta, ...   of a run with gaussian-dp, whose budget is the epsilon of all its rounds: delta, clip,
                      sampling_rate, rounds, noise_schedule; divisor and noise multiplier are the node's own
metrics               metrics that are sent along, with commas between them, if every node's policy lets them; none
                      unless told otherwise
release-limit         the most releases of one client; 0 for no limit
out                   for the server app: the folder of its run; empty for none
audit.model, ...      what an audit of the server's folder is told: see ``audit_terms.py``
====================  ==============================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, closest, is_count
from ..mechanism.protection import Leakage, ProtectionSettings, check_buffers, check_protection
from ..mechanism.registry import Mechanism, checked
from ..mechanism.run_budget import GaussianSettings
from ..mechanism.schedule import Schedule, schedule, schedule_starts
from ..runs.deployment import DATASET
from .audit_terms import KEYS as AUDIT_KEYS
from .audit_terms import AuditTerms, read_audit_terms
from .whole_run import check_whole_run

if TYPE_CHECKING:
    from ..runs.config import Config

PREFIX = "equipoise."
WEIGHT = "num-examples"
"""The metric that weighs a reply, as FedAvg has it."""
MOST_VALUES = 100_000
"""Budgets of a schedule times clients: a few words must not keep a node busy."""
RESERVED = ("experiment", "round", "accepted", "refused", "void", "evaluation")
"""Keys that a line of the server's metrics has anyway."""
OF_A_RELEASE = tuple(
    part.name for part in fields(ProtectionSettings) if part.name not in ("batch", "local_steps", "leakage", "gaussian")
)
"""Settings of a release that a run may set; what a client trains on is its own."""
_LEAKAGE = tuple(f"leakage.{part.name}" for part in fields(Leakage))
_GAUSSIAN = tuple(f"gaussian.{name}" for name in ("delta", "clip", "sampling_rate", "rounds", "noise_schedule"))
_AUDIT = tuple(f"audit.{name}" for name in AUDIT_KEYS)
_OTHER = ("mechanism", "budget", "metrics", "release_limit", "out")


@dataclass(frozen=True)
class Terms:
    """What one run asks of a client's release, and allows beside it."""

    mechanism: Mechanism
    budget: Schedule | None
    settings: ProtectionSettings
    metrics: tuple[str, ...] = ()
    release_limit: int | None = None
    out: Path | None = None
    _: KW_ONLY
    audit: AuditTerms = field(default_factory=AuditTerms)

    def budgets(self, round_number: int) -> list[float]:
        """The budgets that the clients of a round may have; empty without distortion."""
        if self.budget is None:
            return []
        clients = len(self.budget) if isinstance(self.budget, list) else self.settings.clients
        return schedule(self.budget, [round_number], clients, "budget")[0]

    def budget_of(self, round_number: int, client: int) -> float | None:
        """The budget of one client in one round, or the loosest where it has no number of its own."""
        row = self.budgets(round_number)
        return None if not row else row[client] if client < len(row) else max(row)

    def config(self, rounds: int, dtype: str) -> Config:
        """What an auditor of the server's folder needs, in the form of every run folder's config.toml."""
        from ..engine.settings import Settings  # a client, whose every message costs a process, never comes here
        from ..runs.config import Config, SweepBlock

        clients = len(self.budget) if isinstance(self.budget, list) else self.settings.clients
        asked = replace(
            self.settings, clients=clients, batch=self.audit.batch, local_steps=self.audit.local_steps,
            buffers="received",  # an audit looks at trained parameters alone
        )  # fmt: skip
        settings = replace(Settings(), protection=asked).replace(
            rounds=rounds, snapshots=list(self.audit.snapshots), dtype=dtype, release_limit=self.release_limit
        )
        budgets = [] if self.budget is None else [self.budget]
        block = SweepBlock(datasets=[DATASET], mechanisms=[self.mechanism.name], budgets=budgets, seeds=[0])
        return Config(settings, [block], self.audit.deployment)


def read_terms(run_config: Mapping[str, Any]) -> Terms:
    """The run's terms; unknown keys, wrong types and a missing mechanism are errors.

    >>> result = read_terms({"equipoise.mechanism": "pl-learn", "equipoise.budget": 0.98, "num-server-rounds": 3})
    >>> result.mechanism.name, result.budget, result.settings.steps
    ('pl-learn', 0.98, 10)
    """
    given = own_keys(run_config, (*OF_A_RELEASE, *_LEAKAGE, *_GAUSSIAN, *_AUDIT, *_OTHER), "run config")
    if not given.get("mechanism"):
        raise ConfigError(
            "The run config names no mechanism.", 'Set equipoise.mechanism, for example to "pl-learn", or to "none".'
        )
    plain = {key: _value(given[key]) for key in OF_A_RELEASE if key in given}
    settings = ProtectionSettings(
        **plain, leakage=Leakage(**_part("leakage", _LEAKAGE, given)),
        gaussian=GaussianSettings(**_part("gaussian", _GAUSSIAN, given)),
    )  # fmt: skip
    check_protection(settings)
    budget = _value(given.get("budget"))
    budget = None if budget == "" else budget
    result = Terms(
        mechanism=checked(given["mechanism"], budget),
        budget=budget,
        settings=settings,
        metrics=words(given.get("metrics", "")),
        release_limit=limit(given.get("release_limit", 0)),
        out=path("out", given.get("out")),
        audit=read_audit_terms(_part("audit", _AUDIT, given)),
    )
    check_buffers(settings, result.mechanism, step=False)
    _check_budget(result)
    _check_metrics(result)
    return result


def _part(name: str, keys: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys below one name, without it."""
    return {key.removeprefix(f"{name}."): _value(given[key]) for key in keys if key in given}


def _check_metrics(terms: Terms) -> None:
    if terms.mechanism.formal and terms.metrics:
        raise ConfigError(
            f"With {terms.mechanism.name!r} no metrics may be sent: its guarantee does not cover them.",
            "Leave equipoise.metrics empty.",
        )
    taken = sorted({*RESERVED, WEIGHT}.intersection(terms.metrics))
    if taken:
        raise ConfigError(f"The metric {taken[0]!r} has a meaning of its own.", "Rename it in your app.")


def _check_budget(terms: Terms) -> None:
    """Every part of a schedule, where the app starts: not in the middle of a run, on every client."""
    if terms.mechanism.whole_run:
        check_whole_run(terms.mechanism.name, terms.budget, terms.settings.gaussian, terms.settings.eta)
        return
    measure = terms.settings.measure(terms.mechanism)
    if measure is None:
        return
    starts = schedule_starts(terms.budget)
    if len(starts) * terms.settings.clients > MOST_VALUES:
        raise ConfigError(
            f"The budgets of {len(starts)} parts of a schedule and {terms.settings.clients} clients are too many.",
            f"Use at most {MOST_VALUES} in all.",
        )
    for round_number in starts:
        row = terms.budgets(round_number)
        if not row:
            raise ConfigError("The list of budgets is empty.", "Give one for each client.")
        for budget in row:
            measure.lower(budget)


def own_keys(config: Mapping[str, Any], known: tuple[str, ...], where: str) -> dict[str, Any]:
    """Our keys of a flat Flower config, with ``_`` for ``-``."""
    result = {}
    for key, value in config.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX).replace("-", "_")
        if name not in known:
            raise ConfigError(
                f"Unknown key {key!r} in the {where}.{closest(name, list(known))}",
                "Known: " + ", ".join(PREFIX + one.replace("_", "-") for one in known) + ".",
            )
        result[name] = value
    return result


def _value(given: Any) -> Any:
    """A Flower config holds only numbers, words and yes or no: lists and schedules come as JSON in a string."""
    if not isinstance(given, str):
        return given
    if given == "none":
        return None
    try:
        return json.loads(given) if given[:1] in ("[", "{") else given
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Expected {given[:80]!r} to be JSON: {error}.", 'For example "[0.96, 0.98]".') from error


def words(given: Any) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(given or "").split(",") if word.strip())


def path(name: str, given: Any) -> Path | None:
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"Expected equipoise.{name}={given!r} to be a path.", "Leave it out for none.")
    return Path(given) if given else None


def limit(given: Any) -> int | None:
    if not is_count(given):
        raise ConfigError(f"Expected equipoise.release-limit={given!r} to be a whole number >= 0.", "0 is no limit.")
    return given or None
