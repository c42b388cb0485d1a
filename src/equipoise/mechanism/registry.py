"""The named mechanisms and the measures behind their budgets, as data: what is drawn, what bounds it, what is learned.

==============  ===========  ========  =========================================  ========  =====
name            noise        norm      bounds                                     learned   clip
==============  ===========  ========  =========================================  ========  =====
none            -            -         -                                          -         no
pl-identical    Laplace      L2        fixed at ``lower``                         no        no
pl-learn        Laplace      L2        ``[lower, factor*lower]``                  yes       no
ls-static       Laplace      L1        as drawn                                   no        yes
ls-learn        Laplace      L1        ``[h(draw), factor*h(draw)]``              yes       yes
gs-static       Gaussian     L2        as drawn                                   no        yes
gs-learn        Gaussian     L2        ``[h(draw), factor*h(draw)]``              yes       yes
laplace-dp      Laplace      L1        as drawn                                   no        each
gaussian-dp     Gaussian     L2        as drawn                                   no        each
pruning         -            L2        none: the update itself is shaped          no        no
outpost         Gaussian     L2        none: the update itself is shaped          no        no
==============  ===========  ========  =========================================  ========  =====

``gs-*`` are not in the paper; they show that a mechanism is only a row of this table. Neither are the two rows whose
budget is a guarantee of differential privacy rather than a score. ``gaussian-dp`` is the one to deploy: it takes all
records of a client, clips the gradient of each, and its budget is the epsilon of a whole run (docs/gaussian_dp.md).
``laplace-dp`` is the simple example: one batch, one release, one epsilon (docs/laplace_dp.md).

``pruning`` and ``outpost`` are defences of the literature to compare with (docs/defences.md). They change the update
itself (``shaping.py``): their budgets are a share of coordinates and the inverse of a noise level, and promise nothing.

What is learned on a private batch gives single records of it away: ``pl-learn``, ``ls-learn``, ``gs-learn``; their
measured leak: docs/frontier.md.

A known weakness of ``pl-identical``, which is as the paper has it: its noise has exactly the norm that follows from the
public budget, so a server that knows the other examples of a batch can verify any guess at one (studies/norm).

To add one, ``register`` a ``Mechanism``; for a budget of a new kind, ``register`` a ``MeasureKind`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigError, closest
from .budget import GaussianBudget, LaplaceBudget, LeakageBudget, Measure
from .intensity import Norm
from .noise import NOISES
from .outpost import OUTPOST, OutpostBudget
from .pruning import PRUNING, ShareBudget
from .run_budget import RunBudget
from .shaping import Shaping

if TYPE_CHECKING:
    from .protection import ProtectionSettings


Known = TypeVar("Known")


def _find(name: Any, known: Mapping[str, Known], what: str) -> Known:
    if not isinstance(name, str):
        raise ConfigError(f"Expected {what}={name!r} to be a name.", f"Known: {', '.join(known)}.")
    if name not in known:
        raise ConfigError(f"Unknown {what} {name!r}.{closest(name, list(known))}", f"Known: {', '.join(known)}.")
    return known[name]


@dataclass(frozen=True)
class MeasureKind:
    """One kind of budget: how the settings configure its measure, and what its budgets mean.

    >>> from equipoise import ProtectionSettings
    >>> kind = MeasureKind("scale", lambda settings: LaplaceBudget(settings.sensitivity), bounds_draw=True)
    >>> kind.build(ProtectionSettings()).lower(80)
    0.125
    """

    name: str
    build: Callable[[ProtectionSettings], Measure]
    bounds_draw: bool = False  # the budget fixes the scale of the draw (LS, GS) rather than the intensity itself (PL)
    formal: bool = False  # the budget is an epsilon, proved; not for measures of your own
    whole_run: bool = False  # of a whole run, rather than of one release
    proved_for: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # what a mechanism must be
    grid: tuple[float, ...] = ()  # budgets worth trying, strict ones first


MEASURES: dict[str, MeasureKind] = {
    kind.name: kind
    for kind in (
        MeasureKind(
            "leakage", lambda s: LeakageBudget(**asdict(s.leakage), factor=s.factor),
            grid=(0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995),
        ),
        MeasureKind(
            "laplace", lambda s: LaplaceBudget(s.sensitivity, s.factor), bounds_draw=True,
            grid=(20, 40, 60, 80, 140, 200, 400, 800),
        ),
        MeasureKind(
            "gaussian", lambda s: GaussianBudget(s.sensitivity, s.factor), bounds_draw=True,
            grid=(20, 40, 60, 80, 140, 200, 400, 800),
        ),
        MeasureKind(
            "epsilon", lambda s: LaplaceBudget(s.derived_sensitivity(), s.factor), bounds_draw=True, formal=True,
            proved_for=MappingProxyType(
                {"noise": "laplace", "norm": "l1", "learns": False, "clips": False, "per_example": True}
            ),
            grid=(0.1, 1, 10, 100, 1000),
        ),
        MeasureKind(
            "epsilon-delta", lambda s: RunBudget(s.gaussian, s.eta), bounds_draw=True, formal=True, whole_run=True,
            proved_for=MappingProxyType(
                {"noise": "gaussian", "norm": "l2", "learns": False, "clips": False, "per_example": True}
            ),
            grid=(0.5, 1, 2, 4, 8),
        ),
        MeasureKind(
            "share", lambda s: ShareBudget(), bounds_draw=True,
            grid=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
        ),
        MeasureKind(
            "outpost", lambda s: OutpostBudget(s.eta, s.local_steps), bounds_draw=True,
            grid=(0.0125, 0.05, 0.125, 0.25, 0.5, 1.25),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Mechanism:
    """What a client adds to its update: which noise, how its budget is meant, whether it is learned.

    >>> Mechanism("gaussian-annulus", "leakage", noise="gaussian", learns=True).on_sphere
    True
    """

    name: str
    measure: str | Measure | None  # by name, configured through the settings; or an object of the user's
    noise: str = "laplace"  # a family of ``noise.py``
    norm: Norm = "l2"
    learns: bool = False
    clips: bool = False  # the gradient of a mini-batch
    per_example: bool = False  # clips the gradient of every example instead, in ``norm``; then exactly one local step
    _: KW_ONLY
    shaping: Shaping | None = None  # changes the update itself, with or without noise of its own

    def __post_init__(self) -> None:
        _find(self.noise, NOISES, "noise")
        if self.measure is not None and not isinstance(self.measure, str | Measure):
            raise ConfigError(
                f"The measure of {self.name!r} lacks leakage, lower, factor or bounds_draw.",
                "See the Measure protocol.",
            )
        kind = self.measure_kind
        if self.shaping is not None and (self.learns or self.per_example or kind is None or self.on_sphere):
            raise ConfigError(
                f"The mechanism {self.name!r} shapes the update: it cannot learn or clip example by example, and "
                "needs a measure with bounds_draw=True.",
                "Leave out shaping, or the rest.",
            )
        proved = {} if kind is None else kind.proved_for
        if any(getattr(self, name) != value for name, value in proved.items()):
            needed = ", ".join(f"{name}={value!r}" for name, value in proved.items())
            raise ConfigError(
                f"The measure {self.measure!r} of {self.name!r} is proved for {needed}, and for nothing else.",
                "Use these, or another measure.",
            )

    @property
    def measure_kind(self) -> MeasureKind | None:
        """The kind of its budget; None where there is none."""
        if self.measure is None:
            return None
        if isinstance(self.measure, str):
            return _find(self.measure, MEASURES, "measure")
        own = self.measure
        return MeasureKind(type(own).__name__, lambda settings: own, own.bounds_draw)

    @property
    def distorts(self) -> bool:
        return self.measure is not None

    @property
    def draws(self) -> bool:
        """Whether noise is drawn for a release.

        >>> [name for name, mechanism in MECHANISMS.items() if not mechanism.draws]
        ['none', 'pruning']
        """
        return self.distorts and (self.shaping is None or self.shaping.noised > 0)

    @property
    def adds(self) -> bool:
        """Whether a release is the plain update (clipped, where it clips) and noise that does not depend on it.

        >>> [name for name, mechanism in MECHANISMS.items() if not mechanism.adds]
        ['pl-learn', 'ls-learn', 'gs-learn', 'pruning', 'outpost']
        """
        return not self.learns and self.shaping is None

    @property
    def plain(self) -> Mechanism:
        """The same without any distortion: clipping, where it clips, stays."""
        return replace(self, measure=None, learns=False, shaping=None)

    @property
    def formal(self) -> bool:
        """Whether the budget is a guarantee of differential privacy rather than a score.

        What is said beside such a release must not undo the guarantee: no size of its noise, no metrics of its data.
        """
        kind = self.measure_kind
        return kind is not None and kind.formal

    @property
    def whole_run(self) -> bool:
        """Whether the budget is that of a whole run, rather than of one release.

        >>> [name for name, mechanism in MECHANISMS.items() if mechanism.whole_run]
        ['gaussian-dp']
        """
        kind = self.measure_kind
        return kind is not None and kind.whole_run

    @property
    def on_sphere(self) -> bool:
        """Whether the budget bounds the intensity itself (PL) rather than the scale of the draw (LS, GS)."""
        kind = self.measure_kind
        return kind is not None and not kind.bounds_draw

    @property
    def fixed_norm(self) -> bool:
        """Whether all noise has the L2 norm that the budget asks for: then it verifies any guess at a batch.

        >>> [name for name, mechanism in MECHANISMS.items() if mechanism.fixed_norm]
        ['pl-identical']
        """
        return self.on_sphere and not self.learns


MECHANISMS: dict[str, Mechanism] = {
    m.name: m
    for m in (
        Mechanism("none", None),
        Mechanism("pl-identical", "leakage"),
        Mechanism("pl-learn", "leakage", learns=True),
        Mechanism("ls-static", "laplace", norm="l1", clips=True),
        Mechanism("ls-learn", "laplace", norm="l1", learns=True, clips=True),
        Mechanism("gs-static", "gaussian", noise="gaussian", clips=True),
        Mechanism("gs-learn", "gaussian", noise="gaussian", learns=True, clips=True),
        Mechanism("laplace-dp", "epsilon", norm="l1", per_example=True),
        Mechanism("gaussian-dp", "epsilon-delta", noise="gaussian", per_example=True),
        Mechanism("pruning", "share", shaping=PRUNING),
        Mechanism("outpost", "outpost", noise="gaussian", shaping=OUTPOST),
    )
}

New = TypeVar("New", Mechanism, MeasureKind)


def register(new: New) -> New:
    """Add a mechanism, or a kind of measure, to those that sweeps and ``protect`` know by name.

    >>> register(Mechanism("mine", LaplaceBudget(sensitivity=2.0), norm="l1")).name
    'mine'
    >>> get_mechanism("mine").learns
    False
    """
    if isinstance(new, MeasureKind):
        _refuse_taken(new.name, MEASURES, "measure")
        if new.formal:
            raise ConfigError(
                f"The measure {new.name!r} cannot be registered as formal: a guarantee needs a proof in this package.",
                "Register it as a score: formal=False.",
            )
        MEASURES[new.name] = new
        return new
    _refuse_taken(new.name, MECHANISMS, "mechanism")
    MECHANISMS[new.name] = new
    return new


def get_mechanism(name: str | Mechanism) -> Mechanism:
    """Look a mechanism up by name.

    >>> get_mechanism("pl-learn").learns
    True
    """
    return name if isinstance(name, Mechanism) else _find(name, MECHANISMS, "mechanism")


def checked(name: str | Mechanism, budget: Any) -> Mechanism:
    """The mechanism, where a budget is given if and only if it needs one.

    >>> checked("none", 0.98)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: The mechanism 'none' takes no budget, got 0.98. Leave the budget out.
    """
    mechanism = get_mechanism(name)
    if mechanism.distorts and budget is None:
        grid = mechanism.measure_kind.grid if mechanism.measure_kind else ()
        usual = f"{grid[-min(3, len(grid))]:g}" if grid else "1"  # neither the strictest nor the loosest
        raise ConfigError(
            f"The mechanism {mechanism.name!r} needs a budget.",
            f"Give one, for example --budget {usual}, or budget={usual} in Python.",
        )
    if not mechanism.distorts and budget is not None:
        raise ConfigError(f"The mechanism {mechanism.name!r} takes no budget, got {budget!r}.", "Leave the budget out.")
    return mechanism


def _refuse_taken(name: str, known: Mapping[str, Any], what: str) -> None:
    if name in known:
        raise ConfigError(f"The {what} {name!r} exists.", "Choose another name.")
