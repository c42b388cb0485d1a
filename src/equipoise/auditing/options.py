"""How hard to attack: what an audit asks of every attack, and the options of single attacks, by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..attack.attack import DATA, Option
from ..attack.registry import ATTACKS, find
from ..attack.registry import options as attack_options
from ..errors import ConfigError, closest

USUAL = ("matched", "lti", "membership", "labels")
OWN = {
    "releases": Option(32, least=2),
    "label_sets": Option(3, least=1),
    "candidates": Option(100, least=2),
    "others": Option(20, least=1),
    "seed": Option(0, least=0),
    "twins": Option(True),
    "pictures": Option(2, least=0),
    "games": Option(500, least=2),
    "among": Option(200, least=2),
}
"""What concerns the audit as a whole; every attack brings its own options along (``attack/registry.py``)."""
QUICK: dict[str, Any] = {
    "releases": 20, "label_sets": 1, "candidates": 50, "samples": 300, "iterations": 400, "games": 100
}  # fmt: skip
"""A preset for a first look, in less than half of the time: still as many releases as a result takes.

It spares the simulations behind the filter of ``matched``: with fewer, that attack misses much of what learning leaks.
"""
ALONE = "invgrad"
"""The attack that needs nothing but a release."""
NEEDS = (*DATA, "public", "truth", "candidates", "asked", "companions", "labels")
"""Of several that are not met, the first is named: what no giving would mend before all."""


@dataclass(frozen=True, init=False)
class AuditOptions:
    """How hard to attack. The defaults suit two CPU cores and minutes.

    Args:
        attacks: Names of attacks (``attack.registry.ATTACKS``). All of these must be able to run; of the usual ones,
            which are taken where none are named, those are left out that cannot; where none can, ``invgrad`` runs.
        **given: Any of the fields below, and any option of a single attack by its name, such as ``samples``.

    >>> AuditOptions(attacks=["lti"], samples=2000).settings["samples"]
    2000
    """

    attacks: list[str]
    releases: int
    label_sets: int
    candidates: int  # for identification, the truth among them
    others: int  # non-members per release
    seed: int
    twins: bool  # whether a learned mechanism is set beside static noise at the same weights
    pictures: int  # releases whose reconstructions are kept
    games: int  # with the record or without it, where a limit is proved
    among: int  # candidates in these, the truth among them
    settings: dict[str, Any]  # of single attacks
    named: bool = field(init=False, repr=False, compare=False)  # whether the attacks were asked for by name

    def __init__(self, attacks: Sequence[str] | None = None, **given: Any):
        whole = given.pop("settings") if isinstance(given.get("settings"), dict) else {}  # as dataclasses.replace does
        own = {name: given.pop(name, option.default) for name, option in OWN.items()}
        settings = {name: option.default for name, option in attack_options().items()} | whole | given
        listed = list(USUAL) if attacks is None else list(attacks) if isinstance(attacks, tuple) else attacks
        for name, value in {"attacks": listed, **own, "settings": settings, "named": attacks is not None}.items():
            object.__setattr__(self, name, value)

    def plain(self) -> dict[str, Any]:
        """All options by name: ``AuditOptions(**plain)`` is the same again."""
        return {"attacks": self.attacks, **{name: getattr(self, name) for name in OWN}, **self.settings}

    def possible(self, lacking: Mapping[str, str]) -> tuple[AuditOptions, dict[str, str]]:
        """The same with the attacks that can run, and why the others cannot; those that were named must be able to.

        Where none of the usual ones can, ``ALONE`` takes their place.
        ``lacking`` has what is not there of what attacks may need, with words that say how to give it.
        """
        unmet = {name: _unmet(name, lacking) for name in self.attacks}
        why = {name: f"needs {lacking[needs[0]]}" for name, needs in unmet.items() if needs}
        told = "; ".join(f"{name} {words}" for name, words in why.items()) + "."
        if why and self.named:
            lost = all(needs[0] in DATA for needs in unmet.values() if needs)
            raise ConfigError(told, "Leave the attack out." if lost else "Give it, or leave the attack out.")
        able = [name for name in self.attacks if name not in why]
        if not able and not self.named:
            if more := _unmet(ALONE, lacking):
                raise ConfigError(
                    f"No attack can run: {told} {ALONE} needs {lacking[more[0]]}.", "Give what one of them needs."
                )
            able = [ALONE]
        limited = AuditOptions(**{**self.plain(), "attacks": able})
        object.__setattr__(limited, "named", self.named)
        return limited, why

    def check(self) -> None:
        """Refuse unknown names, wrong types and values that no attack can work with."""
        if not isinstance(self.attacks, list):
            raise ConfigError(f"Expected attacks={self.attacks!r} to be a list.", f"Known: {', '.join(ATTACKS)}.")
        for name in self.attacks:
            find(name)
        if clash := sorted(OWN.keys() & attack_options().keys()):
            raise ConfigError(f"An attack's option {clash[0]!r} is one of every audit.", "Give it another name.")
        known, small = {**OWN, **attack_options()}, []
        for name, value in self.plain().items():
            if name == "attacks":
                continue
            if name not in known:
                raise ConfigError(
                    f"Unknown attack option {name!r}.{closest(name, list(known))}", f"Known: {', '.join(known)}."
                )
            _check(name, value, known[name])
            least = known[name].least
            if least is not None and not value >= least:
                small.append(f"{name}={value} (at least {least:g})")
        if small:
            raise ConfigError(f"Too small: {', '.join(small)}.", "Raise them, or leave them out.")


def _unmet(name: str, lacking: Mapping[str, str]) -> list[str]:
    attack = find(name)
    return [need for need in NEEDS if need in (attack.needs | attack.data) & lacking.keys()]


def _check(name: str, value: Any, option: Option) -> None:
    kind = type(option.default)
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(
            f"Expected {name}={value!r} to be of type {kind.__name__}.", f"Its default is {option.default!r}."
        )
    if isinstance(value, int) and not abs(value) < 2**63:
        raise ConfigError(f"Expected {name} to be below 2^63.", "Leave it out for the default.")
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"Expected {name}={value!r} to be a finite number.", "Leave it out for the default.")
    if option.choices and value not in option.choices:
        raise ConfigError(f"Expected {name}={value!r} to be one of {', '.join(option.choices)}.", "Use one of these.")


def attacked_rounds(snapshots: Any, last: int) -> list[int]:
    """The rounds at which releases are attacked, in order."""
    whole = isinstance(snapshots, list) and all(type(one) is int and 0 <= one <= last for one in snapshots)
    if not whole or not snapshots:
        raise ConfigError(
            f"Expected snapshots={snapshots!r} to be a list of rounds in 0..{last}.", "Attack rounds that are trained."
        )
    return sorted(snapshots)


def kept_values(keep: Any) -> list[str] | None:
    """The names of the values that are kept of every release; None: all."""
    if keep is not None and (not isinstance(keep, list) or not all(isinstance(name, str) for name in keep)):
        raise ConfigError(f"Expected keep={keep!r} to be a list of names of values.", 'For example ["log_rank"].')
    return keep
