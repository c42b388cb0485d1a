"""What an artefact is: a table or figure, from the federations it needs to the section that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..plan import Need, Scale
from ..records import Records
from ..tables import Table

Results = dict[str, Any]
"""What an artefact's ``results.json`` holds: ``cells``, and whatever else is drawn or shown."""
Kind = Literal["accuracy", "defence", "summary", "figure", "beside"]


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """A table or figure of the paper, or (kind "beside") something beside them that has no verdict.

    Each cell of ``score`` says whether it ``agrees`` with the paper, unless the kind is "beside". ``draw`` gets an
    empty matplotlib figure; what it and ``tables`` and ``notes`` show comes from the results alone.

    >>> words = {"title": "What guessing gets", "claim": "The paper does not guess.", "rule": "No verdict."}
    >>> shown = [Table("Accuracy in percent", ["guess"], [["10"]])]
    >>> guess = Artefact(name="guess", kind="beside", **words, score=lambda records: {}, tables=lambda result: shown)
    >>> guess.judged
    False
    """

    name: str  # also of its folder and of its place on the page
    kind: Kind
    title: str
    claim: str  # of the paper, in our words
    rule: str  # by which a cell is judged
    score: Callable[[Records], Results]
    tables: Callable[[Results], list[Table]]
    needs: Callable[[Scale], Iterable[Need]] | None = None
    draw: Callable[[Any, Results], None] | None = None
    notes: Callable[[Results], list[str]] | None = None

    @property
    def judged(self) -> bool:
        """Whether its cells have verdicts."""
        return self.kind != "beside"
