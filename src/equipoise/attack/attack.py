"""What an attack is: what it needs to be granted, which options it has, and a function from the server's view.

``registry.py`` lists all of them. The signature of ``Attack.run`` is the threat model: an attack is handed the server's
settings, the releases, and of their labels and the attacker's knowledge what it declares to need, as copies of its own.
It is trusted code: nothing stops one that searches its arguments' internals for the truth that it is scored by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from ..errors import ConfigError
from .results import Result
from .view import Public, Server, View

Watch = Callable[[Tensor, int, Tensor], None]
"""Called with (rows ``[R]``, iteration from 1, inputs ``[R, E, ...]``) after every iteration of the first restart."""


@dataclass(frozen=True)
class Knowledge:
    """What the attacker holds beside the server's settings and the releases."""

    public: Public | None = None  # inputs and labels that belong to no client
    candidates: Tensor | None = None  # [Q, ...]: inputs that it suspects
    candidate_labels: Tensor | None = None  # [Q]: their own, whatever their kind
    choices: Tensor | None = None  # [N, E, K]: the candidates that might be the e-th example of a release
    asked: Tensor | None = None  # [N, O]: the candidates of which it asks whether they were in a release
    companions: Tensor | None = None  # [N, E]: the candidates behind a release, for whom all but one are granted

    def copy(self) -> Knowledge:
        """The same in memory of its own."""

        def copied(value: Any) -> Any:
            return value.clone() if isinstance(value, Tensor) else value and tuple(map(copied, value))

        return Knowledge(*(copied(getattr(self, part.name)) for part in fields(self)))


@dataclass(frozen=True)
class Hooks:
    """Who looks on while an attack runs, and what it shares with others."""

    watch: Watch | None = None
    step: Callable[[int], None] | None = None  # called with the number of releases that made a step
    memory: dict[str, Any] | None = None  # what the attacks of ``bench.py`` share on the same releases; None: nothing


UNWATCHED = Hooks()


@dataclass(frozen=True)
class Option:
    """A setting of an attack: its default, and the least that it may be or the words that it may be.

    >>> Option("nothing", choices=("nothing", "release")).default
    'nothing'
    """

    default: Any
    least: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """What an attack will do, counted before it begins: steps of ``Hooks.step``, and what one of them takes."""

    steps: int
    gradients: float  # of one batch, for one step
    products: float = 0.0  # multiplications in matrices beside these, in all

    @property
    def total(self) -> float:
        """In gradients of one batch.

        >>> Work(steps=500, gradients=11).total
        5500
        """
        return self.steps * self.gradients


Count = Callable[[Server, Tensor, Knowledge, Mapping[str, Any]], Work]
"""(server, labels ``[N, E]``, knowledge, options) -> what an attack on these releases will do."""


NEEDS = ("labels", "inferred labels", "public", "candidates", "asked", "companions", "truth")
"""What an attack may need: labels that are granted; labels, inferred where they are not granted; public data;
candidates for each example (``choices``); candidates that may be in a release (``asked``); beside the candidates for
one example the others of its batch (``companions``: it must not look at the place of that one); a truth to be scored
by, which it is not handed."""
DATA = ("numbers", "classes", "counts")
"""What an attack may ask of the data: inputs that are numbers, which vary by degrees, and no tokens; labels that are
classes; labels that can be counted, classes or yes-or-no ones."""


@dataclass(frozen=True)
class Attack:
    """One attack. ``needs`` lists what must be there (``NEEDS``), and it is handed nothing else; ``data`` what inputs
    and labels must be (``DATA``). Whoever is among the candidates for an example and among those asked about was in the
    release: an attack gets one of the two.

    >>> from equipoise import Inversion
    >>> def black(server, view, knowledge, options, hooks):
    ...     return Inversion(torch.zeros(len(view), server.examples, *server.shape), cost=torch.zeros(len(view)))
    >>> Attack("black", black).needs
    frozenset()
    """

    name: str
    run: Callable[[Server, View, Knowledge, Mapping[str, Any], Hooks], Result]  # the options hold the seed, too
    needs: frozenset[str] = frozenset()
    options: Mapping[str, Option] = field(default_factory=dict)
    work: Count | None = None  # for the time left; None: its time is not foretold
    data: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for asked, known in ((self.needs, NEEDS), (self.data, DATA)):
            if unknown := sorted(asked - set(known)):
                raise ConfigError(
                    f"The attack {self.name!r} needs {unknown[0]!r}.", f"Known needs: {', '.join(known)}."
                )
        if {"candidates", "asked"} <= self.needs:
            raise ConfigError(
                f"The attack {self.name!r} needs candidates and asked, which together tell the members.",
                "Register two attacks, one for each.",
            )
        if "companions" in self.needs and "candidates" not in self.needs:
            raise ConfigError(
                f"The attack {self.name!r} needs companions, which are rows of the candidates.",
                "Let it need candidates, too.",
            )

    def granted(self, knowledge: Knowledge) -> Knowledge:
        """The part of the attacker's knowledge that this attack says it needs."""
        public = knowledge.public if "public" in self.needs else None
        companions = knowledge.companions if "companions" in self.needs else None
        known = replace(knowledge, public=public, companions=companions)
        if "candidates" in self.needs:
            return replace(known, asked=None)
        return replace(known, choices=None) if "asked" in self.needs else Knowledge(public)

    def seen(self, view: View) -> View:
        """The releases as this attack sees them: with labels if it says that it needs some."""
        return view if self.needs & {"labels", "inferred labels"} else replace(view, labels=None)


def held(knowledge: Knowledge, name: str) -> Any:
    """A part of the attacker's knowledge that ``Attack.needs`` has promised."""
    value = getattr(knowledge, name)
    assert value is not None, name
    return value
