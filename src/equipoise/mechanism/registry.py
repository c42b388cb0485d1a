"""The named mechanisms, as data: what is drawn, what bounds it, and whether it is learned.

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
==============  ===========  ========  =========================================  ========  =====

``gs-*`` are not in the paper; they show that a mechanism is only a row of this table. Neither is ``laplace-dp``, the
one row whose budget is a guarantee rather than a score: it clips the gradient of each example, so that the sensitivity
of a release can be derived, and its budget is the epsilon of differential privacy of one release (docs/laplace_dp.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ConfigError, closest
from .budget import GaussianBudget, LaplaceBudget, LeakageBudget, Measure
from .intensity import Norm

MeasureName = Literal["leakage", "laplace", "gaussian", "epsilon"]


@dataclass(frozen=True)
class Mechanism:
    """One row of the table above."""

    name: str
    measure: MeasureName | Measure | None  # by name, configured through the settings; or an object of the user's
    noise: Literal["laplace", "gaussian"] = "laplace"
    norm: Norm = "l2"
    learns: bool = False
    clips: bool = False  # the gradient of a mini-batch
    per_example: bool = False  # clips the gradient of every example instead, in ``norm``; then exactly one local step

    def __post_init__(self) -> None:
        row = (self.noise, self.norm, self.learns, self.clips, self.per_example)
        if self.measure == "epsilon" and row != ("laplace", "l1", False, False, True):
            raise ConfigError(
                f"The measure 'epsilon' of {self.name!r} is proved for Laplace noise on L1-clipped gradients of each "
                "example, not learned, and for nothing else.",
                "Use noise='laplace', norm='l1', learns=False, clips=False, per_example=True; or another measure.",
            )

    @property
    def distorts(self) -> bool:
        return self.measure is not None

    @property
    def formal(self) -> bool:
        """Whether the budget is a guarantee of differential privacy rather than a score.

        What is said beside such a release must not undo the guarantee: no size of its noise, no metrics of its data.
        """
        return self.measure == "epsilon"

    @property
    def on_sphere(self) -> bool:
        """Whether the budget bounds the intensity itself (PL) rather than the scale of the draw (LS, GS)."""
        if self.measure is None or isinstance(self.measure, str):
            return self.measure == "leakage"
        return not self.measure.bounds_draw


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
    )
}


def register(new: Mechanism) -> Mechanism:
    """Add a mechanism of your own to those that sweeps and ``protect`` know by name.

    >>> register(Mechanism("mine", LaplaceBudget(sensitivity=2.0), norm="l1")).name in MECHANISMS
    True
    >>> _ = MECHANISMS.pop("mine")
    """
    if new.name in MECHANISMS:
        raise ConfigError(f"The mechanism {new.name!r} exists.", "Choose another name.")
    if new.measure is not None and not isinstance(new.measure, str | Measure):
        raise ConfigError(
            f"The measure of {new.name!r} lacks leakage, lower, factor or bounds_draw.", "See the Measure protocol."
        )
    MECHANISMS[new.name] = new
    return new


def mechanism(name: str | Mechanism) -> Mechanism:
    """Look a mechanism up by name.

    >>> mechanism("pl-learn").learns
    True
    """
    if isinstance(name, Mechanism):
        return name
    if not isinstance(name, str):
        raise ConfigError(f"Expected mechanism={name!r} to be a name.", f"Known: {', '.join(MECHANISMS)}.")
    if name not in MECHANISMS:
        known = list(MECHANISMS)
        raise ConfigError(f"Unknown mechanism {name!r}.{closest(name, known)}", f"Known: {', '.join(known)}.")
    return MECHANISMS[name]


def checked(name: str | Mechanism, budget: Any) -> Mechanism:
    """The mechanism, where a budget is given if and only if it needs one.

    >>> checked("none", 0.98)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: The mechanism 'none' takes no budget, got 0.98. Leave the budget out.
    """
    kind = mechanism(name)
    if kind.distorts and budget is None:
        raise ConfigError(f"The mechanism {kind.name!r} needs a budget.", "For example 0.98 for pl-*, 200 for ls-*.")
    if not kind.distorts and budget is not None:
        raise ConfigError(f"The mechanism {kind.name!r} takes no budget, got {budget!r}.", "Leave the budget out.")
    return kind


def measure(
    kind: MeasureName,
    *,
    leakage: LeakageBudget | None = None,
    sensitivity: float = 10.0,
    factor: float = 2.0,
) -> Measure:
    """The measure a mechanism is calibrated by. For "epsilon" the sensitivity must be a derived one.

    >>> measure("laplace", sensitivity=10).lower(80)
    0.125
    """
    if kind == "leakage":
        return leakage or LeakageBudget(factor=factor)
    kinds = {"laplace": LaplaceBudget, "gaussian": GaussianBudget, "epsilon": LaplaceBudget}
    return kinds[kind](sensitivity, factor)
