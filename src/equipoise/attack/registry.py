"""Every attack by its name. To add one: a file with an ``Attack``, and its place here, or ``register_attack``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import ConfigError, closest
from .attack import Attack, Option
from .dlg import DLG, IDLG
from .invgrad import INVGRAD
from .labels import LABELS
from .likelihood import LIKELIHOOD
from .lti import LTI
from .matched import MATCHED
from .membership import MEMBERSHIP
from .unrolled import UNROLLED

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (INVGRAD, DLG, IDLG, LIKELIHOOD, UNROLLED, LTI, MATCHED, MEMBERSHIP, LABELS)
}  # fmt: skip


def register_attack(attack: Attack) -> Attack:
    """Add an attack of your own to those that audits know by name.

    >>> register_attack(Attack("mine", INVGRAD.run)).name in ATTACKS
    True
    >>> _ = ATTACKS.pop("mine")
    """
    if attack.name in ATTACKS:
        raise ConfigError(f"The attack {attack.name!r} exists.", "Choose another name.")
    for name, option in attack.options.items():
        if options().get(name, option) != option:
            raise ConfigError(
                f"The option {name!r} of {attack.name!r} means something else elsewhere.", "Choose another name."
            )
    ATTACKS[attack.name] = attack
    return attack


def find(name: Any) -> Attack:
    """An attack by its name."""
    if not isinstance(name, str) or name not in ATTACKS:
        near = closest(name, list(ATTACKS)) if isinstance(name, str) else ""
        raise ConfigError(f"Unknown attack {name!r}.{near}", f"Known: {', '.join(ATTACKS)}.")
    return ATTACKS[name]


def options(attacks: Iterable[Attack] | None = None) -> dict[str, Option]:
    """The options of the given attacks, or of all; attacks share an option of the same name."""
    chosen = ATTACKS.values() if attacks is None else attacks
    return {name: option for attack in chosen for name, option in attack.options.items()}
