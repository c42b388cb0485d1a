"""What protects a release: the settings as a user writes them, and the numbers of one round that follow from them.

``Protection`` is what ``release`` needs in one round. ``ProtectionSettings`` holds all that one release depends on; its
methods ``of_rows`` (for numbers at hand) and ``at`` (for a client and a round) are the places that make one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from ..errors import ConfigError, expected, is_finite, is_number, is_whole, raise_all, too_low
from . import run_budget
from .budget import Measure
from .intensity import Norm
from .noise import NOISES
from .registry import Mechanism, get_mechanism
from .run_budget import GaussianSettings, check_budget
from .schedule import Schedule, schedule, schedule_starts, value_at


@dataclass(frozen=True)
class Protection:
    """Everything that protects R clients in one round; numbers, or one per row as ``[R]``."""

    mechanism: Mechanism
    scale: Tensor | float  # lower bound of the intensity (PL) or noise scale (LS, GS)
    _: KW_ONLY
    factor: float = 2.0  # upper = factor * lower
    steps: int = 10  # M
    gamma: Tensor | float = 0.1  # step size of the learner
    negative_norm: Tensor | float = 1e-5  # lambda
    clip: float | None = None
    clip_norm: Norm = "l2"
    least_relative: float = 0.0  # L2 norm of the noise, as expected, over that of the update; 0: any
    batch: int | None = None  # what laplace-dp divides its sum by: a public number, not that of the records at hand
    sampling_rate: float = 1.0  # of gaussian-dp, likewise
    divisor: float | None = None

    def noise_norm(self, size: float) -> float:
        """The L2 norm that noise of one client in ``size`` coordinates has: exactly (PL), or as its variance has it.

        Of a mechanism that shapes the update: the most that it can have.
        """
        scale, shaping = float(self.scale), self.mechanism.shaping
        size = size if shaping is None else shaping.noised * size
        return scale if self.mechanism.on_sphere else scale * (NOISES[self.mechanism.noise].variance * size) ** 0.5


Buffers = Literal["received", "noised", "refused"]
"""What is sent of a model's buffers, such as running statistics: the values that came, whatever was fitted; fitted ones
under the noise of the whole; or nothing at all where they were fitted."""
NO_PROTECTION = Protection(get_mechanism("none"), 0.0)


@dataclass(frozen=True)
class Leakage:
    """The constants of the paper's leakage score (see ``LeakageBudget``)."""

    D: float = 56.0
    c_a: float = 0.56
    c_res: float = 0.01
    p: float = 0.5
    iterations: int = 1600


@dataclass(frozen=True, kw_only=True)
class ProtectionSettings:
    """All that one release depends on, the local step included: a guarantee is about both.

    The defaults are the paper's, or chosen by fit where it is silent.

    >>> ProtectionSettings(eta=0.05, clip=None).at("pl-learn", 0.98, round_number=1).scale
    7.99975...
    """

    clients: int = 4  # K
    batch: int = 4
    local_steps: int = 1
    eta: float = 0.1  # local learning rate; fitted
    steps: int = 10  # M
    gamma: Any = 0.1  # step size of the learner: a number, one per client, or a schedule
    negative_norm: Any = 1e-5  # lambda of the paper: likewise
    factor: float = 2.0  # upper bound = factor * lower bound
    sensitivity: float = 10.0  # S of the Laplace and Gaussian scale; fitted, not a proved bound
    clip: float | None = 500.0  # gradient clip of the LS and GS mechanisms; of laplace-dp per example, always in L1
    clip_norm: Norm = "l2"
    buffers: Buffers = "received"  # what `protect` sends of them: as received, noised, or refused where they changed
    leakage: Leakage = field(default_factory=Leakage)
    gaussian: GaussianSettings = field(default_factory=GaussianSettings)

    def measure(self, name: str | Mechanism) -> Measure | None:
        """The measure that calibrates a mechanism under these settings."""
        kind = get_mechanism(name).measure_kind
        if kind is None:
            return None
        measure = kind.build(self)
        if measure.bounds_draw != kind.bounds_draw:
            raise ConfigError(
                f"The measure {kind.name!r} has bounds_draw={measure.bounds_draw}, its kind says {kind.bounds_draw}.",
                "Give the MeasureKind the measure's own bounds_draw.",
            )
        return measure

    def with_divisor(self, divisor: float) -> ProtectionSettings:
        """The same, where ``gaussian-dp`` divides by another public number."""
        result = replace(self, gaussian=replace(self.gaussian, divisor=divisor))
        check_protection(result)
        return result

    def derived_sensitivity(self) -> float:
        """How far, in L1, replacing one example moves one local step on gradients clipped example by example.

        >>> ProtectionSettings(eta=0.1, clip=500.0, batch=4).derived_sensitivity()
        25.0
        """
        if self.clip is None or self.local_steps > 1:
            raise ConfigError(
                f"A sensitivity is derived for one local step with a clip, got local_steps={self.local_steps} and "
                f"clip={'none' if self.clip is None else self.clip}.",
                "For laplace-dp set local_steps = 1 and a clip (the bound on the L1 norm of an example's gradient).",
            )
        return 2 * self.eta * self.clip / self.batch

    def scales(self, name: str | Mechanism, budget: Schedule | None, rounds: Sequence[int]) -> list[list[float]]:
        """Lower intensity bound (PL) or noise scale (LS, GS) for every round and client; 0 without distortion."""
        measure = self.measure(name)
        if measure is None:
            return [[0.0] * self.clients for _ in rounds]
        if get_mechanism(name).whole_run:
            check_budget(budget)
        rows = schedule(budget, rounds, self.clients, "budget")
        known = {value: measure.lower(value) for value in {value for row in rows for value in row}}
        relative = self._relative(name, rounds)
        return [[known[value] * noise for value in row] for row, noise in zip(rows, relative, strict=True)]

    def _relative(self, name: str | Mechanism, rounds: Sequence[int]) -> list[float]:
        """The noise of some rounds, relative to that which the budget asks for."""
        return self.gaussian.relative(list(rounds)) if get_mechanism(name).whole_run else [1.0] * len(rounds)

    def of_rows(
        self, name: str | Mechanism, scale: Tensor | float, gamma: Tensor | float, negative_norm: Tensor | float
    ) -> Protection:
        """What protects releases with the given noise scale, gamma and lambda: numbers, or one per row."""
        measure, own = self.measure(name), self.gaussian
        whole_run = {"clip": own.clip, "sampling_rate": own.sampling_rate, "divisor": own.divisor}
        return Protection(
            get_mechanism(name), scale, gamma=gamma, negative_norm=negative_norm, steps=self.steps,
            factor=self.factor if measure is None else measure.factor,  # a measure of the user's has its own
            clip_norm=self.clip_norm, batch=self.batch,
            **(whole_run if get_mechanism(name).whole_run else {"clip": self.clip}),
        )  # fmt: skip

    def at(self, name: str | Mechanism, budget: Schedule | None, round_number: int, client: int = 0) -> Protection:
        """What protects one client in one round."""

        def now(value: Schedule | None, what: str) -> float:
            return value_at(value, round_number, client, self.clients, what)

        measure = self.measure(name)
        if get_mechanism(name).whole_run:
            check_budget(budget)
        scale = 0.0 if measure is None else measure.lower(now(budget, "budget"))
        scale *= self._relative(name, [round_number])[0]
        return self.of_rows(name, scale, now(self.gamma, "gamma"), now(self.negative_norm, "negative_norm"))


# -- what can be wrong ---------------------------------------------------------------------------------------------


def step_problems(mechanism: str, settings: ProtectionSettings) -> Iterator[ConfigError]:
    """A budget of a whole run is for one noised sum a round."""
    if settings.local_steps != 1:
        yield ConfigError(
            f"The mechanism {mechanism!r} makes exactly one local step, got {settings.local_steps}.",
            "Use local_steps = 1.",
        )


def check_buffers(settings: ProtectionSettings, mechanism: Mechanism, *, step: bool) -> None:
    """Refuse buffers that a release cannot have; ``step``: it makes the local step itself."""
    if settings.buffers == "received":
        return
    if mechanism.formal or step:
        what = f"The guarantee of {mechanism.name!r}" if mechanism.formal else "A step from what was received"
        raise ConfigError(
            f"{what} covers trained parameters alone, got buffers={settings.buffers!r}.",
            "Leave buffers out: they are sent as received.",
        )
    if settings.buffers == "noised" and mechanism.learns:
        raise ConfigError(
            f"{mechanism.name!r} could learn to put its noise where the loss does not look: buffers cannot be noised.",
            "Use a static mechanism, such as 'pl-identical', or leave buffers out: they are sent as received.",
        )
    if settings.buffers == "noised" and mechanism.shaping is not None:
        raise ConfigError(
            f"{mechanism.name!r} shapes the update of what is trained: fitted buffers could leave without any noise.",
            "Leave buffers out: they are sent as received.",
        )


INTEGERS = {"clients": 1, "batch": 1, "local_steps": 1, "steps": 0}
"""Whole numbers with the least that each may be."""
NUMBERS = ("eta", "factor", "sensitivity")
CHOICES = {"clip_norm": ("l1", "l2"), "buffers": ("received", "noised", "refused")}
MOST_CLIENTS = 1_000_000
"""Of one federation; every table has a column for each."""


def check_protection(settings: ProtectionSettings) -> None:
    """Raise one ``ConfigError`` that lists every problem."""
    if not isinstance(settings, ProtectionSettings):
        raise ConfigError(
            f"Expected the settings of a release, got {type(settings).__name__}.",
            "Pass ProtectionSettings, or the .protection of your Settings.",
        )
    raise_all(list(type_problems(settings)) or range_problems(settings))


def type_problems(s: ProtectionSettings) -> Iterator[ConfigError]:
    """Everything of the wrong type; nothing else can be said of such settings."""
    yield from wrong_types(s, INTEGERS, NUMBERS, CHOICES)
    if s.clip is not None and not is_number(s.clip):
        yield expected("clip", s.clip, "a number or none")
    yield from run_budget.type_problems(s.gaussian)
    if is_whole(s.clients) and s.clients > MOST_CLIENTS:
        yield expected("clients", s.clients, f"at most {MOST_CLIENTS}")


def wrong_types(
    settings: Any, integers: Iterable[str], numbers: Iterable[str], choices: Mapping[str, Sequence[str]]
) -> Iterator[ConfigError]:
    """Fields that are not the whole numbers, numbers or words that they should be."""
    for name in integers:
        if not is_whole(getattr(settings, name)) or not is_number(getattr(settings, name)):
            yield expected(name, getattr(settings, name), "a whole number")
    for name in numbers:
        if not is_number(getattr(settings, name)):
            yield expected(name, getattr(settings, name), "a number")
    for name, allowed in choices.items():
        if getattr(settings, name) not in allowed:
            yield expected(name, getattr(settings, name), f"one of {', '.join(allowed)}")


def too_small(settings: Any, least: Mapping[str, int]) -> Iterator[ConfigError]:
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            yield too_low(name, getattr(settings, name), bound)


def not_positive(settings: Any, names: Iterable[str]) -> Iterator[ConfigError]:
    for name in names:
        if not (is_finite(getattr(settings, name)) and getattr(settings, name) > 0):
            yield expected(name, getattr(settings, name), "a finite number > 0")


def range_problems(s: ProtectionSettings) -> Iterator[ConfigError]:
    """Everything out of range, in settings of the right types."""
    yield from too_small(s, INTEGERS)
    yield from not_positive(s, ("eta",))
    constants = {"sensitivity": s.sensitivity, "factor": s.factor}
    for name, value in (constants | {f"leakage.{key}": value for key, value in asdict(s.leakage).items()}).items():
        if not is_finite(value):  # config.toml could not hold it
            yield expected(name, value, "a finite number")
    if s.clip is not None and not (is_finite(s.clip) and s.clip > 0):
        yield expected("clip", s.clip, "a finite number > 0, or none")
    yield from run_budget.range_problems(s.gaussian)
    for name in ("gamma", "negative_norm") if s.clients >= 1 else ():
        try:
            value = getattr(s, name)
            rows = schedule(value, schedule_starts(value), s.clients, name)
            if min(min(row) for row in rows) < 0:
                yield expected(name, value, ">= 0")
        except ConfigError as error:
            yield error
