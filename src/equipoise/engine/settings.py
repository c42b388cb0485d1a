"""What a sweep is: settings shared by all its federations (``federation.py`` has what differs between them).

Plain dataclasses without third-party imports, so that a machine with torch and numpy alone can run them;
``runs/config.py`` fills them from TOML and flags and reports type errors.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any, Literal

from ..errors import ConfigError, EquipoiseError, closest, expected, is_number, is_whole, raise_all
from ..mechanism import protection
from ..mechanism.noise import NOISES
from ..mechanism.protection import Leakage, ProtectionSettings, step_problems
from ..mechanism.registry import MECHANISMS, checked, get_mechanism
from ..mechanism.run_budget import GaussianSettings
from ..mechanism.schedule import schedule_starts
from ..models.bundled import MODELS
from ..models.routes import NAMES
from . import data_settings
from .data_settings import DataSettings
from .federation import Federation
from .recommended import recipe_of


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What the server does with the releases: Algorithm 1 around them."""

    rounds: int = 5000  # T; fitted
    participants: int | None = None  # clients drawn per round; None: all of them
    sampling: Literal["uniform", "passes"] = "uniform"  # Alg. 1, l. 5; or passes without replacement
    model: str = "lenet-zhu"  # a bundled name; or module:callable, which is imported only where a user names it
    init: Literal["uniform", "torch"] = "uniform"  # of a bundled model; "torch": as the model draws it itself
    init_bound: float = 0.5  # U(-0.5, 0.5); fitted
    server_rate: float | Literal["auto"] = 1.0  # W += rate * (mean - W); "auto": min(1, 1/expected L2 distortion)
    server_momentum: float = 0.0  # W += v, where v = momentum * v + rate * (mean - W)
    min_clients: int = 1  # a round with fewer accepted releases is void


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What is recorded, and where it runs: none of it changes a release."""

    evaluate_every: int = 250  # rounds between evaluations
    full_every: int = 0  # rounds between full-client records (utility loss, gradient norm); 0: never
    expected_draws: int = 16  # draws for the expected utility loss of static scale mechanisms, at full records
    snapshots: list[int] = field(default_factory=lambda: [0, 200, 2000])  # rounds to keep; the last is kept too
    chunk: int = 0  # clients worked on at once; 0: from memory and device
    route: Literal["auto", "measured", "layers", "vmap", "loop", "threads"] = "auto"  # how gradients are computed
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    threads: int = 0  # CPU threads; 0: torch's default. Bitwise resume needs the same number
    ledger: bool = True  # whether a run keeps a ledger of its releases
    release_limit: int | None = None  # most releases of a client; a run ends before the round that would pass it


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Shared by all federations of a sweep, in four groups. The defaults are the paper's, or fitted to its tables.

    In TOML, JSON and ``--set`` all keys lie side by side; ``Settings.flat`` takes them like that.

    >>> settings = Settings.flat(rounds=2000, eta=0.05)
    >>> settings.training.rounds, settings.protection.eta, settings == Settings.flat(**settings.plain())
    (2000, 0.05, True)
    """

    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    protection: ProtectionSettings = field(default_factory=ProtectionSettings)
    run: RunSettings = field(default_factory=RunSettings)

    @classmethod
    def flat(cls, **keys: Any) -> Settings:
        """Settings from keys of all groups; the others keep their defaults.

        Args:
            keys: by their names in TOML; ``leakage`` as a ``Leakage`` or a mapping.

        Returns:
            The settings. Values are not checked here: ``Sweep`` and ``check_settings`` do.
        """
        return cls().replace(**keys)

    def replace(self, **keys: Any) -> Settings:
        """The same with other values for some keys of any group."""
        for name, kind in TABLES.items():
            if isinstance(keys.get(name), Mapping):
                keys[name] = kind(**keys[name])
        if unknown := sorted(set(keys) - set(GROUP_OF)):
            raise unknown_key(unknown[0], list(GROUP_OF))
        groups = {name: {k: v for k, v in keys.items() if GROUP_OF[k] == name} for name in GROUPS}
        return Settings(**{name: replace(getattr(self, name), **mine) for name, mine in groups.items()})

    def plain(self) -> dict[str, Any]:
        """All keys side by side, in numbers, words, lists and mappings: what JSON and TOML hold."""
        return {key: value for group in asdict(self).values() for key, value in group.items()}

    def _tuned_rate(self, federation: Federation) -> float:
        """The server's step for ``gaussian-dp``: from the noise on the mean of all clients."""
        own = self.for_run().protection
        every = own.scales(federation.mechanism, federation.budget, range(1, self.training.rounds + 1))
        noise = math.hypot(*(math.hypot(*scales) / len(scales) for scales in every)) / own.eta
        return recipe_of(self.training.model).rate(noise, self.training.server_momentum) / own.eta

    def for_run(self) -> Settings:
        """The same, with the rounds that the budget of a whole run is for: all of them unless the settings say."""
        own = self.protection.gaussian
        return self.replace(gaussian=replace(own, rounds=self.training.rounds)) if own.rounds is None else self

    def with_sigmas(self, federations: Sequence[Federation]) -> Settings:
        """The same with all noise multipliers that follow from budgets: whoever runs it needs no accounting."""
        values = {
            float(value) for fed in federations if get_mechanism(fed.mechanism).whole_run for value in fed.budgets
        }
        if not values:
            return self
        own = self.for_run().protection.gaussian
        return self.replace(gaussian=replace(own, sigmas=[[value, own.sigma(value)] for value in sorted(values)]))

    def snapshot_rounds(self) -> list[int]:
        return sorted({t for t in self.run.snapshots if 0 <= t <= self.training.rounds} | {self.training.rounds})

    def evaluated(self) -> list[int]:
        """Rounds after which every federation is evaluated: multiples of ``evaluate_every``, full records, the last."""
        regular = range(self.run.evaluate_every, self.training.rounds + 1, self.run.evaluate_every)
        return sorted({*regular, *self.fully_recorded(), self.training.rounds})

    def fully_recorded(self) -> list[int]:
        if not self.run.full_every:
            return []
        return sorted(
            {1, *range(self.run.full_every, self.training.rounds + 1, self.run.full_every), self.training.rounds}
        )

    def server_rates(self, federation: Federation, rounds: Sequence[int], parameters: int) -> list[float]:
        """The server's step for every round: as set, or damped by the size of one client's distortion.

        Damping is post-processing of the releases. It is the simplest baseline that any learned distortion should beat.

        >>> Settings.flat(server_rate="auto").server_rates(Federation("mnist", "pl-identical", 0.98), [1], 13426)
        [0.125003...]
        """
        if self.training.server_rate != "auto":
            return [float(self.training.server_rate)] * len(rounds)
        mechanism = get_mechanism(federation.mechanism)
        if mechanism.whole_run:
            return [self._tuned_rate(federation)] * len(rounds)
        if mechanism.shaping is not None:  # how large its noise is depends on the weights
            return [1.0] * len(rounds)
        spread = math.sqrt(NOISES[mechanism.noise].variance * parameters)  # expected L2 norm of standard noise
        per_unit = 1.0 if mechanism.on_sphere else spread
        sizes = [per_unit * sum(row) / len(row) for row in self.protection.scales(mechanism, federation.budget, rounds)]
        return [min(1.0, 1 / size) if size > 0 else 1.0 for size in sizes]


GROUPS: dict[str, type] = {
    "data": DataSettings, "training": TrainingSettings, "protection": ProtectionSettings, "run": RunSettings
}  # fmt: skip
TABLES: dict[str, type] = {"leakage": Leakage, "gaussian": GaussianSettings}
"""Keys that are tables of their own."""
GROUP_OF = {part.name: name for name, group in GROUPS.items() for part in fields(group)}
"""The group of every key."""
FORMER = {"lr": "gamma", "alpha": "dirichlet"}
"""Keys that files of schema 1 may hold under an earlier name."""
LEARNING_RATE = (
    "The learning rate of a client is 'eta'; what folders of schema 1 call 'lr' is 'gamma', the step of learned noise."
)
"""Whoever writes ``lr`` today means the learning rate."""


LATER = {
    "route": "auto", "server_momentum": 0.0, "gaussian": asdict(GaussianSettings()), "buffers": "received",
    **data_settings.LATER,
}  # fmt: skip
"""Keys that came later: with these values a run is what it was without them."""


def unknown_key(key: str, known: list[str], prefix: str = "") -> ConfigError:
    """
    >>> str(unknown_key("alpha", [])), str(unknown_key("rouns", ["rounds"]))
    ("Unknown key 'alpha'. It is called 'dirichlet' now.", "Unknown key 'rouns'. Did you mean 'rounds'?")
    >>> str(unknown_key("delta", ["eta"]))  # its own name in a table is nearer than another name
    "Unknown key 'delta'. Did you mean 'gaussian.delta'?"
    """
    tables = {} if prefix else TABLES
    inner = [f"{name}.{key}" for name, kind in tables.items() if key in (part.name for part in fields(kind))]
    if key == "lr":
        now = LEARNING_RATE
    elif key in FORMER:
        now = f"It is called {FORMER[key]!r} now."
    else:
        now = f"Did you mean {inner[0]!r}?" if inner else closest(key, known).strip()
    return ConfigError(f"Unknown key {prefix + key!r}.", now or "Remove it.")


def present_names(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file of schema 1 under their present names."""
    if twice := [old for old, new in FORMER.items() if old in keys and new in keys]:
        raise ConfigError(f"{twice[0]!r} and {FORMER[twice[0]]!r} are one setting.", f"Remove {twice[0]!r}.")
    return {FORMER.get(key, key): value for key, value in keys.items()}


def named_as_before(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys under their names of schema 1: a digest must not change with a name."""
    before = {new: old for old, new in FORMER.items()}
    return {before.get(key, key): value for key, value in keys.items()}


# -- what can be wrong ---------------------------------------------------------------------------------------------

INTEGERS = {
    "rounds": 1, "min_clients": 1, "evaluate_every": 1, "full_every": 0, "expected_draws": 2, "chunk": 0, "threads": 0,
    **data_settings.INTEGERS,
}  # fmt: skip
"""Whole numbers with the least that each may be."""
NUMBERS = ("init_bound", "server_momentum", *data_settings.NUMBERS)
CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""The name of code that builds a model."""
CHOICES = {
    "sampling": ("uniform", "passes"),
    "init": ("uniform", "torch"),
    "dtype": ("float32", "float64"),
    "route": ("auto", "measured", *NAMES),
}


def check(settings: Settings, federations: list[Federation]) -> None:
    """Raise one ``ConfigError`` that lists every problem."""
    raise_all(problems(settings, federations))


def check_settings(settings: Settings) -> None:
    """The part of ``check`` that concerns no federation."""
    check(settings, [Federation(mechanism="none")])


def problems(settings: Settings, federations: list[Federation]) -> list[EquipoiseError]:
    """Everything that is of the wrong type or out of range, at once."""
    own, others = settings.protection, _side_by_side(settings)
    wrong: list[EquipoiseError] = [*protection.type_problems(own), *_types(others)]
    if wrong:
        return wrong
    wrong = [*protection.range_problems(own), *_ranges(others)]
    said = {_about(problem) for problem in wrong} - {""}
    of_federations = _federation_problems(settings.for_run(), federations)
    return [*wrong, *(problem for problem in of_federations if _about(problem) not in said)]


def _about(problem: EquipoiseError) -> str:
    """The setting that a problem is about, without its table: a budget's noise depends on it, and says so again."""
    found = re.search(r"Expected (?:\w+\.)?(\w+)=", problem.cause)
    return found[1] if found else ""


def _side_by_side(settings: Settings) -> Any:
    """The keys of all groups as attributes of one object."""
    return SimpleNamespace(**{key: getattr(getattr(settings, group), key) for key, group in GROUP_OF.items()})


def whole(value: Any) -> bool:
    """A whole number that a float can hold."""
    return is_whole(value) and is_number(value)


def _types(s: Any) -> Iterator[ConfigError]:
    yield from protection.wrong_types(s, INTEGERS, NUMBERS, CHOICES)
    if type(s.ledger) is not bool:
        yield expected("ledger", s.ledger, "true or false")
    if s.server_rate != "auto" and not is_number(s.server_rate):
        yield expected("server_rate", s.server_rate, "a number or 'auto'")
    for name in ("participants", "release_limit"):
        if getattr(s, name) is not None and not whole(getattr(s, name)):
            yield expected(name, getattr(s, name), "a whole number or none")
    for name in ("device", "model"):
        if not isinstance(getattr(s, name), str):
            yield expected(name, getattr(s, name), "a word")
    if not isinstance(s.snapshots, list) or not all(whole(round_number) for round_number in s.snapshots):
        yield expected("snapshots", s.snapshots, "a list of rounds")
    yield from data_settings.type_problems(s)


def _ranges(s: Any) -> Iterator[ConfigError]:
    yield from protection.too_small(s, INTEGERS)
    damped = () if s.server_rate == "auto" else ("server_rate",)
    yield from protection.not_positive(s, ("init_bound", *damped))
    if not 0 <= s.server_momentum < 1:
        yield expected("server_momentum", s.server_momentum, "in [0, 1)")
    if s.threads > (os.cpu_count() or 1):
        yield expected("threads", s.threads, f"at most the {os.cpu_count()} of this machine")
    if s.release_limit is not None and s.release_limit < 1:
        yield expected("release_limit", s.release_limit, ">= 1, or none")
    if s.release_limit is not None and not s.ledger:
        cause = "Expected ledger=true with release_limit: the ledger counts the releases."
        yield ConfigError(cause, "Set ledger to true.")
    if s.participants is not None and not 1 <= s.participants <= s.clients:
        yield expected("participants", s.participants, f"in 1..clients={s.clients}")
    if s.participants not in (None, s.clients) and s.sampling == "passes":
        yield ConfigError(
            "Expected sampling='uniform' with participants: a client that is not drawn would skip part of its pass.",
            "Set sampling to 'uniform', or participants to none.",
        )
    if s.min_clients > (s.participants or s.clients):
        yield expected("min_clients", s.min_clients, f"at most {s.participants or s.clients}, those of a round")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", s.device):
        yield expected("device", s.device, "'cpu', 'cuda' or 'cuda:N'")
    yield from data_settings.range_problems(s)
    if s.model not in MODELS and not CODE.fullmatch(s.model):
        remedy = f"Known: {', '.join(MODELS)}; or module:callable, for example my_app.task:Net."
        yield ConfigError(f"Unknown model {s.model!r}.{closest(s.model, list(MODELS))}", remedy)
    if any(round_number < 0 for round_number in s.snapshots):
        yield expected("snapshots", s.snapshots, "rounds >= 0")


def _federation_problems(given: Settings, federations: list[Federation]) -> Iterator[EquipoiseError]:
    settings, whole_run = given.protection, [fed for fed in federations if _whole_run(fed.mechanism)]
    if whole_run and given.training.rounds > (settings.gaussian.rounds or 0) > 0:
        yield ConfigError(
            f"The budget of {whole_run[0].mechanism} is for gaussian.rounds={settings.gaussian.rounds}, fewer than the "
            f"rounds={given.training.rounds} of the run.",
            "Leave gaussian.rounds out: the budget is then for all rounds.",
        )
    if whole_run:
        yield from step_problems(whole_run[0].mechanism, settings)
    if settings.buffers != "received":
        yield expected(
            "buffers", settings.buffers, "'received' in a sweep", "Leave it out; it is a setting of protect."
        )
    if not federations:
        yield ConfigError("The sweep is empty.", "Name at least one mechanism, and a budget for all but 'none'.")
    for fed in federations:
        if not whole(fed.seed):
            yield expected("seed", fed.seed, "a whole number", "Give whole numbers, for example --seed 1,2.")
        try:
            checked(fed.mechanism, fed.budget)
            settings.scales(fed.mechanism, fed.budget, schedule_starts(fed.budget))
        except EquipoiseError as error:
            yield type(error)(f"{fed.dataset} {fed.mechanism}: {error.cause}", error.remedy)
    seen = [repr(fed) for fed in federations]
    if len(set(seen)) != len(seen):
        twice = len(seen) - len(set(seen))
        what = f"{twice} federation{'' if twice == 1 else 's'}"
        yield ConfigError(f"The sweep holds {what} twice.", "Name every budget and seed once.")


def _whole_run(name: Any) -> bool:
    return isinstance(name, str) and name in MECHANISMS and MECHANISMS[name].whole_run


# -- the plain form ------------------------------------------------------------------------------------------------


def to_dict(settings: Settings, federations: list[Federation]) -> dict[str, Any]:
    """The plain form that ``from_dict`` reads back: JSON and TOML can hold it."""
    return {"settings": settings.with_sigmas(federations).plain(), "federations": [asdict(fed) for fed in federations]}


def from_dict(spec: dict[str, Any]) -> tuple[Settings, list[Federation]]:
    """Settings and federations from their plain form; unknown keys are refused."""
    if not isinstance(spec, dict) or not isinstance(spec.get("federations"), list):
        raise ConfigError("Expected an object with 'settings' and 'federations'.", "See engine.settings.to_dict.")
    unknown = sorted(set(spec) - {"settings", "federations"})
    if unknown:
        raise ConfigError(f"Unknown key {unknown[0]!r}.", "Known: settings, federations.")
    try:
        settings = Settings.flat(**present_names(dict(spec.get("settings", {}))))
        federations = [Federation(**row) for row in spec["federations"]]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Unknown or misplaced keys: {error}.", "They belong to another version.") from error
    check(settings, federations)
    return settings, federations
