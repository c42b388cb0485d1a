"""What the shell completes: names of mechanisms, attacks, artefacts, datasets and settings.

Names are looked up when the shell asks for them, so that no command waits for an import it does not need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields


def last_of_list(incomplete: str, known: Iterable[str]) -> list[str]:
    """Completions of the last name in a comma-separated list; names that stand in it already are left out.

    >>> last_of_list("none,pl", ["none", "pl-learn", "pl-identical"])
    ['none,pl-learn', 'none,pl-identical']
    """
    head, mark, start = incomplete.rpartition(",")
    taken = head.split(",")
    return [f"{head}{mark}{name}" for name in known if name.startswith(start) and name not in taken]


def mechanisms(incomplete: str) -> list[str]:
    from ..mechanism.registry import MECHANISMS

    return last_of_list(incomplete, MECHANISMS)


def attacks(incomplete: str) -> list[str]:
    from ..attack.registry import ATTACKS

    return last_of_list(incomplete, [*ATTACKS, "multi-round"])


def datasets(incomplete: str) -> list[str]:
    from ..data.bundle import BUNDLED

    return last_of_list(incomplete, BUNDLED)


def models(incomplete: str) -> list[str]:
    from ..models.bundled import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


def models_or_best(incomplete: str) -> list[str]:
    return [*(["best"] if "best".startswith(incomplete) else []), *models(incomplete)]


def artefacts(incomplete: str) -> list[str]:
    from ..reproduction.artefacts.registry import ARTEFACTS

    return [name for name in ("all", *ARTEFACTS) if name.startswith(incomplete)]


def devices(incomplete: str) -> list[str]:
    return [name for name in ("cpu", "cuda") if name.startswith(incomplete)]


def units(incomplete: str) -> list[str]:
    from ..privacy.guarantee import UNITS

    return [name for name in UNITS if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Keys of the settings as ``--set`` takes them: those of a configuration file."""
    from ..engine.settings import TABLES, Settings

    plain = Settings().plain()
    inner = [f"{table}.{name}" for table in TABLES for name in plain.pop(table)]
    return _keys(incomplete, [*plain, *inner])


def attack_options(incomplete: str) -> list[str]:
    from ..attack.registry import options
    from ..auditing.options import OWN
    from ..data.contents import Reading

    return _keys(incomplete, [*OWN, *options(), *(part.name for part in fields(Reading))])


def bounds_options(incomplete: str) -> list[str]:
    from ..bounds.options import LEAST

    return _keys(incomplete, LEAST)


def _keys(incomplete: str, known: Iterable[str]) -> list[str]:
    return [f"{name}=" for name in known if name.startswith(incomplete)]
