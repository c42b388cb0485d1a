"""Every attack by its name. To add one: a file with an ``Attack``, and a place in this list or ``register_attack``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
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
from .verify import VERIFY

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (INVGRAD, DLG, IDLG, LIKELIHOOD, UNROLLED, LTI, MATCHED, MEMBERSHIP, LABELS, VERIFY)
}  # fmt: skip
SHARING = frozenset({MATCHED.name, MEMBERSHIP.name})
"""Attacks that ask about the same candidates: their likelihoods are simulated once (``Hooks.memory``)."""
OURS: Mapping[str, Attack] = MappingProxyType(dict(ATTACKS))
"""Those of this package, whatever is registered later or put in their place."""
MULTI_ROUND = "multi-round"
"""The attack of ``multi_round.py``: it needs a replay of a whole run, so it is no ``Attack`` on releases."""


def register_attack(attack: Attack) -> Attack:
    """Add an attack of your own to those that audits know by name.

    >>> from equipoise import Inversion
    >>> def black(server, view, knowledge, options, hooks):
    ...     return Inversion(torch.zeros(len(view), server.examples, *server.shape), cost=torch.zeros(len(view)))
    >>> register_attack(Attack("black", black, options={"shade": Option(0.0, least=0)})).name
    'black'
    """
    if attack.name in known_attacks():
        raise ConfigError(f"The attack {attack.name!r} exists.", "Choose another name.")
    for name, option in attack.options.items():
        if options().get(name, option) != option:
            raise ConfigError(
                f"The option {name!r} of {attack.name!r} means something else elsewhere.", "Choose another name."
            )
    ATTACKS[attack.name] = attack
    return attack


def known_attacks() -> list[str]:
    """The names of all attacks, those on single releases first."""
    return [*ATTACKS, MULTI_ROUND]


def find(name: Any) -> Attack:
    """An attack on single releases by its name."""
    if name == MULTI_ROUND:
        raise ConfigError(
            f"The attack {MULTI_ROUND!r} combines the releases of a whole run, not single ones.",
            "Use audit_run(folder, multi_rounds=300), or equipoise audit RUN --attack multi-round.",
        )
    if not isinstance(name, str) or name not in ATTACKS:
        near = closest(name, known_attacks()) if isinstance(name, str) else ""
        raise ConfigError(f"Unknown attack {name!r}.{near}", f"Known: {', '.join(known_attacks())}.")
    return ATTACKS[name]


def options() -> dict[str, Option]:
    """The options of all attacks, which share an option of the same name."""
    return {name: option for attack in ATTACKS.values() for name, option in attack.options.items()}
