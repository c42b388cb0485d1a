"""What a sweep is: settings shared by all its federations, and what differs between them.

Plain dataclasses without third-party imports, so that a machine with torch and numpy alone can run them;
``config.py`` fills them from TOML and flags and reports type errors.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..data.dataset import Dataset
from ..data.loading import BUNDLED, load
from ..errors import ConfigError, EquipoiseError, closest
from ..mechanism.budget import LeakageBudget, Measure, schedule, schedule_starts
from ..mechanism.intensity import Norm
from ..mechanism.registry import Mechanism, measure, mechanism
from ..models.bundled import MODELS


@dataclass(frozen=True)
class Leakage:
    """The constants of the paper's leakage score (see ``LeakageBudget``)."""

    D: float = 56.0
    c_a: float = 0.56
    c_res: float = 0.01
    p: float = 0.5
    iterations: int = 1600


@dataclass(frozen=True)
class Settings:
    """Shared by all federations of a sweep. The defaults are the paper's, or chosen by fit where it is silent."""

    rounds: int = 5000  # T; fitted
    clients: int = 4  # K
    participants: int | None = None  # clients drawn per round; None: all of them
    batch: int = 4
    local_steps: int = 1
    sampling: Literal["uniform", "passes"] = "uniform"  # Alg. 1, l. 5; or passes without replacement
    eta: float = 0.1  # local learning rate; fitted
    model: str = "lenet-zhu"
    init: Literal["uniform", "torch"] = "uniform"
    init_bound: float = 0.5  # U(-0.5, 0.5); fitted
    partition: Literal["identical", "iid", "dirichlet", "shards"] = "identical"
    alpha: float = 0.5  # of the Dirichlet partition
    shards: int = 2  # per client
    sizes: list[float] | None = None  # relative client sizes; None: equal
    partition_seed: int = 0
    validation_fraction: float = 1 / 6  # of a folder's training files; bundled data have fixed splits
    public_fraction: float = 0.0  # likewise
    steps: int = 10  # M
    lr: Any = 0.1  # gamma: a number, one per client, or a schedule
    negative_norm: Any = 1e-5  # lambda: likewise
    factor: float = 2.0  # upper bound = factor * lower bound
    sensitivity: float = 10.0  # S of the Laplace and Gaussian scale; fitted, not a proved bound
    clip: float | None = 500.0  # gradient clip of the LS and GS mechanisms; of laplace-dp per example, always in L1
    clip_norm: Norm = "l2"
    leakage: Leakage = field(default_factory=Leakage)
    server_rate: float | Literal["auto"] = 1.0  # W += rate * (mean - W); "auto": min(1, 1/expected L2 distortion)
    min_clients: int = 1
    evaluate_every: int = 250
    full_every: int = 0  # rounds between full-client records (utility loss, gradient norm); 0: never
    expected_draws: int = 16  # draws for the expected utility loss of static scale mechanisms, at full records
    snapshots: list[int] = field(default_factory=lambda: [0, 200, 2000])  # and the last round
    chunk: int = 0  # clients worked on at once; 0: from memory and device
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    threads: int = 0  # CPU threads; 0: torch's default. Bitwise resume needs the same number
    ledger: bool = True  # whether a run keeps a ledger of its releases
    release_limit: int | None = None  # most releases of a client; a run ends before the round that would pass it

    def measure(self, name: str | Mechanism) -> Measure | None:
        """The measure that calibrates a mechanism under these settings."""
        kind = mechanism(name).measure
        if kind is None or not isinstance(kind, str):
            return kind
        leakage = LeakageBudget(**asdict(self.leakage), factor=self.factor)
        sensitivity = self.derived_sensitivity() if kind == "epsilon" else self.sensitivity
        return measure(kind, leakage=leakage, sensitivity=sensitivity, factor=self.factor)

    def derived_sensitivity(self) -> float:
        """How far, in L1, replacing one example moves one local step on gradients clipped example by example.

        >>> Settings(eta=0.1, clip=500.0, batch=4).derived_sensitivity()
        25.0
        """
        if self.clip is None or self.local_steps > 1:
            raise ConfigError(
                f"A sensitivity is derived for one local step with a clip, got local_steps={self.local_steps} and "
                f"clip={'none' if self.clip is None else self.clip}.",
                "For laplace-dp set local_steps = 1 and a clip (the bound on the L1 norm of an example's gradient).",
            )
        return 2 * self.eta * self.clip / self.batch

    def load(self, dataset: str) -> Dataset:
        """A bundled dataset, or a folder split as these settings say."""
        if dataset in BUNDLED:
            return load(dataset)
        return load(dataset, validation_fraction=self.validation_fraction, public_fraction=self.public_fraction)

    def snapshot_rounds(self) -> list[int]:
        return sorted({t for t in self.snapshots if 0 <= t <= self.rounds} | {self.rounds})

    def evaluated(self) -> list[int]:
        """Rounds after which every federation is evaluated: multiples of ``evaluate_every``, full records, the last."""
        regular = range(self.evaluate_every, self.rounds + 1, self.evaluate_every)
        return sorted({*regular, *self.fully_recorded(), self.rounds})

    def fully_recorded(self) -> list[int]:
        if not self.full_every:
            return []
        return sorted({1, *range(self.full_every, self.rounds + 1, self.full_every), self.rounds})


@dataclass(frozen=True)
class Federation:
    """What may differ between the federations of one sweep."""

    dataset: str = "mnist"
    mechanism: str = "pl-learn"
    budget: Any = None  # a number, one per client, or a schedule; None for the mechanism "none"
    seed: int = 1

    def label(self) -> str:
        budget = "" if self.budget is None else f" @ {self.budget}"
        return f"{self.dataset} {self.mechanism}{budget} (seed {self.seed})"


MOST_CLIENTS = 1_000_000
"""Of one federation; every table has a column for each."""


def problems(settings: Settings, federations: list[Federation]) -> list[str]:
    """Everything that is of the wrong type or out of range, at once."""
    wrong = list(_types(settings))
    if not wrong and settings.clients > MOST_CLIENTS:
        wrong = [f"Expected clients={settings.clients!r} to be at most {MOST_CLIENTS}."]
    return wrong or [*_ranges(settings), *_federation_problems(settings, federations)]


INTEGERS = (
    "rounds", "clients", "batch", "local_steps", "shards", "partition_seed", "steps", "min_clients", "evaluate_every",
    "full_every", "expected_draws", "chunk", "threads",
)  # fmt: skip
NUMBERS = ("eta", "init_bound", "alpha", "factor", "sensitivity", "validation_fraction", "public_fraction")
FLAGS = ("ledger",)
CHOICES = {
    "sampling": ("uniform", "passes"),
    "init": ("uniform", "torch"),
    "partition": ("identical", "iid", "dirichlet", "shards"),
    "clip_norm": ("l1", "l2"),
    "dtype": ("float32", "float64"),
}


def _number(value: Any, kind: Any = (int, float)) -> bool:
    """Of the kind, and no larger than a float can hold."""
    known = isinstance(value, kind) and not isinstance(value, bool)
    return known and (isinstance(value, float) or abs(value) <= sys.float_info.max)


def _types(s: Settings) -> Iterator[str]:
    for name in INTEGERS:
        if not _number(getattr(s, name), int):
            yield f"Expected {name}={getattr(s, name)!r} to be a whole number."
    for name in NUMBERS:
        if not _number(getattr(s, name)):
            yield f"Expected {name}={getattr(s, name)!r} to be a number."
    for name in FLAGS:
        if not isinstance(getattr(s, name), bool):
            yield f"Expected {name}={getattr(s, name)!r} to be true or false."
    for name, allowed in CHOICES.items():
        if getattr(s, name) not in allowed:
            yield f"Expected {name}={getattr(s, name)!r} to be one of {', '.join(allowed)}."
    if s.clip is not None and not _number(s.clip):
        yield f"Expected clip={s.clip!r} to be a number or none."
    if s.server_rate != "auto" and not _number(s.server_rate):
        yield f"Expected server_rate={s.server_rate!r} to be a number or 'auto'."
    if s.participants is not None and not _number(s.participants, int):
        yield f"Expected participants={s.participants!r} to be a whole number or none."
    if s.release_limit is not None and not _number(s.release_limit, int):
        yield f"Expected release_limit={s.release_limit!r} to be a whole number or none."
    for name in ("device", "model"):
        if not isinstance(getattr(s, name), str):
            yield f"Expected {name}={getattr(s, name)!r} to be a word."
    if not isinstance(s.snapshots, list) or not all(_number(when, int) for when in s.snapshots):
        yield f"Expected snapshots={s.snapshots!r} to be a list of rounds."
    if s.sizes is not None and not (isinstance(s.sizes, list) and all(_number(size) for size in s.sizes)):
        yield f"Expected sizes={s.sizes!r} to be a list of numbers or none."


def _ranges(s: Settings) -> Iterator[str]:
    at_least = dict.fromkeys(INTEGERS, 1) | dict(steps=0, full_every=0, chunk=0, threads=0, partition_seed=0)
    at_least["expected_draws"] = 2
    for name, least in at_least.items():
        if getattr(s, name) < least:
            yield f"Expected {name}={getattr(s, name)!r} to be >= {least}."
    for name in ("eta", "init_bound", "alpha") + (() if s.server_rate == "auto" else ("server_rate",)):
        if not (math.isfinite(getattr(s, name)) and getattr(s, name) > 0):
            yield f"Expected {name}={getattr(s, name)!r} to be a finite number > 0."
    constants = {"sensitivity": s.sensitivity, "factor": s.factor}
    for name, value in (constants | {f"leakage.{key}": value for key, value in asdict(s.leakage).items()}).items():
        if not _number(value) or not math.isfinite(value):  # config.toml could not hold it
            yield f"Expected {name}={value!r} to be a finite number."
    if s.threads > (os.cpu_count() or 1):
        yield f"Expected threads={s.threads!r} to be at most the {os.cpu_count()} of this machine."
    if s.release_limit is not None and s.release_limit < 1:
        yield f"Expected release_limit={s.release_limit!r} to be >= 1, or none."
    if s.release_limit is not None and not s.ledger:
        yield "Expected ledger=true with release_limit: the ledger counts the releases."
    if s.participants is not None and not 1 <= s.participants <= s.clients:
        yield f"Expected participants={s.participants!r} to lie in 1..clients={s.clients}."
    if s.participants not in (None, s.clients) and s.sampling == "passes":
        yield "Expected sampling='uniform' with participants: a client that is not drawn would skip part of its pass."
    if s.min_clients > (s.participants or s.clients):
        yield f"Expected min_clients={s.min_clients!r} to be at most {s.participants or s.clients}, those of a round."
    if s.clip is not None and not (math.isfinite(s.clip) and s.clip > 0):
        yield f"Expected clip={s.clip!r} to be a finite number > 0, or none."
    if s.sizes is not None and (len(s.sizes) != s.clients or not all(0 < size < math.inf for size in s.sizes)):
        yield f"Expected sizes={s.sizes!r} to hold one positive number for each of {s.clients} clients."
    if not re.fullmatch(r"cpu|cuda(:\d+)?", s.device):
        yield f"Expected device={s.device!r} to be 'cpu', 'cuda' or 'cuda:N'."
    if s.model not in MODELS:
        yield f"Unknown model {s.model!r}.{closest(s.model, list(MODELS))} Known: {', '.join(MODELS)}."
    if any(when < 0 for when in s.snapshots):
        yield f"Expected snapshots={s.snapshots!r} to be rounds >= 0."
    for name in ("lr", "negative_norm") if s.clients >= 1 else ():
        try:
            value = getattr(s, name)
            rows = schedule(value, schedule_starts(value), s.clients, name)
            if min(min(row) for row in rows) < 0:
                yield f"Expected {name}={value!r} to be >= 0."
        except ConfigError as error:
            yield str(error)


def _federation_problems(settings: Settings, federations: list[Federation]) -> Iterator[str]:
    if not federations:
        yield "The sweep is empty. Name at least one mechanism, and a budget for all but 'none'."
    for fed in federations:
        if not _number(fed.seed, int):
            yield f"Expected seed={fed.seed!r} to be a whole number."
        try:
            if not mechanism(fed.mechanism).distorts:
                if fed.budget is not None:
                    yield f"The mechanism 'none' takes no budget, got {fed.budget!r}."
                continue
            if fed.budget is None:
                yield f"The mechanism {fed.mechanism!r} needs a budget."
                continue
            scales(settings, fed, schedule_starts(fed.budget))
        except EquipoiseError as error:
            yield f"{fed.dataset} {fed.mechanism}: {error}"
    seen = [repr(fed) for fed in federations]
    if len(set(seen)) != len(seen):
        yield f"The sweep holds {len(seen) - len(set(seen))} federation(s) twice."


def check_settings(settings: Settings) -> None:
    """The part of ``check`` that concerns no federation."""
    _raise_all(problems(settings, [Federation(mechanism="none")]))


def check(settings: Settings, federations: list[Federation]) -> None:
    """Raise one ``ConfigError`` that lists every problem."""
    _raise_all(list(dict.fromkeys(problems(settings, federations))))


def _raise_all(found: list[str]) -> None:
    if found:
        head = f"{len(found)} problem(s) in the settings:"
        raise ConfigError("\n".join([head, *(f"  - {line}" for line in found)]))


def scales(settings: Settings, federation: Federation, rounds: list[int]) -> list[list[float]]:
    """Lower intensity bound (PL) or noise scale (LS, GS) for every round and client; 0 without distortion."""
    kind = settings.measure(federation.mechanism)
    if kind is None:
        return [[0.0] * settings.clients for _ in rounds]
    rows = schedule(federation.budget, rounds, settings.clients, "budget")
    known = {budget: kind.lower(budget) for budget in {budget for row in rows for budget in row}}
    return [[known[budget] for budget in row] for row in rows]


def server_rates(settings: Settings, federation: Federation, rounds: list[int], parameters: int) -> list[float]:
    """The server's step for every round: as set, or damped by the size of one client's distortion.

    Damping is post-processing of the releases. It is the simplest baseline that any learned distortion should beat.

    >>> server_rates(Settings(server_rate="auto"), Federation("mnist", "pl-identical", 0.98), [1], 13426)
    [0.125003...]
    """
    if settings.server_rate != "auto":
        return [float(settings.server_rate)] * len(rounds)
    kind = mechanism(federation.mechanism)
    spread = math.sqrt((2 if kind.noise == "laplace" else 1) * parameters)  # expected L2 norm of standard noise
    per_unit = 1.0 if kind.on_sphere else spread
    sizes = [per_unit * sum(row) / len(row) for row in scales(settings, federation, rounds)]
    return [min(1.0, 1 / size) if size > 0 else 1.0 for size in sizes]


def to_dict(settings: Settings, federations: list[Federation]) -> dict[str, Any]:
    """The plain form that ``from_dict`` reads back: JSON and TOML can hold it."""
    return {"settings": asdict(settings), "federations": [asdict(fed) for fed in federations]}


def from_dict(spec: dict[str, Any]) -> tuple[Settings, list[Federation]]:
    """Settings and federations from their plain form; unknown keys are refused."""
    if not isinstance(spec, dict) or not isinstance(spec.get("federations"), list):
        raise ConfigError("Expected an object with 'settings' and 'federations'.", "Write it with settings.to_dict.")
    unknown = sorted(set(spec) - {"settings", "federations"})
    if unknown:
        raise ConfigError(f"Unknown key {unknown[0]!r}.", "Known: settings, federations.")
    try:
        raw = dict(spec.get("settings", {}))
        settings = Settings(leakage=Leakage(**raw.pop("leakage", {})), **raw)
        federations = [Federation(**row) for row in spec["federations"]]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Unknown or misplaced keys: {error}.", "They belong to another version.") from error
    check(settings, federations)
    return settings, federations
