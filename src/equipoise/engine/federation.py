"""What may differ between the federations of one sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import printable
from ..mechanism.schedule import defence_label


@dataclass(frozen=True)
class Federation:
    """One federation of a sweep: whose data, protected how, and the seed behind all of its randomness."""

    dataset: str = "mnist"
    mechanism: str = "pl-learn"
    budget: Any = None  # a number, one per client, or a schedule; None for the mechanism "none"
    seed: int = 1

    @property
    def budgets(self) -> list[Any]:
        """That of each client, or the one that all of them have.

        >>> Federation(budget=0.98).budgets, Federation(budget=(80, 200)).budgets
        ([0.98], [80, 200])
        """
        return list(self.budget) if isinstance(self.budget, list | tuple) else [self.budget]

    def label(self) -> str:
        """
        >>> Federation("mnist", "pl-learn", 0.98).label()
        'mnist pl-learn @ 0.98 (seed 1)'
        """
        return f"{printable(self.dataset)} {defence_label(self.mechanism, self.budget)} (seed {self.seed})"
