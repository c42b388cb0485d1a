"""What of an interrupted audit is finished, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.datasets import folder_name
from ..engine.federation import Federation
from ..mechanism.schedule import defence_label

INTERRUPTED = "Interrupted"
Place = tuple[Federation, int, bool]
"""A federation, a round, and whether its own cell there is finished."""


@dataclass(frozen=True)
class Unfinished:
    """How many cells are finished, and what has none that is.

    >>> Unfinished(38, 6, ["pl-learn"], [100]).sentence()
    'Interrupted: 6 of 38 cells are finished; nothing yet on pl-learn, nor on round 100.'
    """

    cells: int
    finished: int
    lacking: Sequence[str]  # datasets, mechanisms and, of other mechanisms, budgets; attacks on whole runs
    rounds: Sequence[int]

    def sentence(self) -> str:
        rounds = [f"round{'s' * (len(self.rounds) > 1)} {', '.join(map(str, self.rounds))}"] if self.rounds else []
        nothing = [*([", ".join(self.lacking)] if self.lacking else []), *rounds]
        lacks = f"; nothing yet on {', nor on '.join(nothing)}" if nothing else ""
        are = f"cell{'s' * (self.cells != 1)} {'is' if self.finished == 1 else 'are'}"
        return f"{INTERRUPTED}: {self.finished} of {self.cells} {are} finished{lacks}."


def unfinished(cells: int, finished: int, places: Sequence[Place]) -> Unfinished:
    """``places`` are the own cells of all federations, as they were planned."""

    def lacks(name: Callable[[Federation, int], Any], among: Iterable[Place]) -> list[Any]:
        done: dict[Hashable, bool] = {}
        for federation, number, there in among:
            called = name(federation, number)
            done[called] = done.get(called, False) or there
        return [called for called, there in done.items() if not there]

    datasets = lacks(lambda one, _: folder_name(one.dataset), places)
    mechanisms = lacks(lambda one, _: one.mechanism, places)
    others = [place for place in places if place[0].mechanism not in mechanisms]
    budgets = lacks(lambda one, _: defence_label(one.mechanism, one.budget), others)
    rounds = lacks(lambda _, number: number, places)
    return Unfinished(cells, finished, [*datasets, *mechanisms, *budgets], sorted(rounds))


def first_sentence(content: Mapping[str, Any]) -> list[str]:
    """How a verdict begins: with what is lacking, where anything is."""
    return [] if content.get("complete", True) else [Unfinished(**content["unfinished"]).sentence()]
