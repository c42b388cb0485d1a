"""What a reconstruction of table rows is worth: errors in standard deviations of each column, and correlation.

A column has its own unit, so a mean squared error over all of them says nothing. Here every number is measured in
standard deviations of its column among records that the attacker may know; a guess of the mean of each column, which
takes no update, then has an error of about 1 and a correlation of 0. A column that does not vary is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LISTED = 100
"""Columns whose errors are listed one by one; a wider record has their mean alone."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Mean and standard deviation of every number of a record, as ``[F]``."""

    centre: Tensor
    spread: Tensor
    varies: Tensor  # [F] bool

    @classmethod
    def of(cls, inputs: Tensor) -> Columns:
        """Those of records ``[Q, ...]``.

        >>> Columns.of(torch.tensor([[0.0, 7.0], [2.0, 7.0]])).varies.tolist()
        [True, False]
        """
        flat = inputs.flatten(1)
        spread = flat.double().std(0, correction=0).to(flat.dtype)
        return cls(flat.mean(0), spread, spread > 0)

    def standard(self, inputs: Tensor, lead: int = 2) -> Tensor:
        """``[N, E, ...]`` in standard deviations from the mean, as ``[N, E, F]`` over the columns that vary."""
        flat = inputs.flatten(lead)[..., self.varies]
        return (flat - self.centre[self.varies]) / self.spread[self.varies]


def column_range(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Where a number of a table may lie: the range of ``inputs`` ``[Q, ...]`` and half as much on either side.

    >>> [edge.tolist() for edge in column_range(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))]
    [[-1.0, 5.0], [3.0, 5.0]]
    """
    low, high = inputs.amin(0), inputs.amax(0)
    return low - (high - low) / 2, high + (high - low) / 2


def error_sd(guess: Tensor, truth: Tensor) -> Tensor:
    """Root mean square error of standardised records: ``[..., F]`` -> ``[...]``.

    >>> error_sd(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(1.)
    """
    return (guess - truth).square().mean(-1).sqrt()


def correlation(guess: Tensor, truth: Tensor) -> Tensor:
    """How far standardised records lie on the same side of the means, -1 to 1; 0 for a guess that is the mean.

    >>> correlation(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([3.0, 0.0]))
    tensor([1., 0.])
    """
    size: Tensor = guess.norm(dim=-1) * truth.norm(dim=-1)
    return (guess * truth).sum(-1) / size.clamp_min(1e-30)


def by_column(guess: Tensor, truth: Tensor, columns: Columns) -> list[float | None]:
    """The error of every column over standardised records ``[N, E, F]``; None where one does not vary."""
    errors = iter((guess - truth).square().flatten(0, -2).mean(0).sqrt().tolist())
    return [round(next(errors), 4) if varies else None for varies in columns.varies.tolist()]


def nearness(guess: Tensor, pool: Tensor, choices: Tensor) -> Tensor:
    """Of every standardised guess ``[N, E, F]`` to its candidates, rows ``[N, E, K]`` of the pool: minus the error."""
    return torch.stack(
        [-error_sd(row.unsqueeze(1), pool[mine]) for mine, row in zip(choices, guess, strict=True)]
    )  # a release at a time: all at once would not fit
