"""Records as attacks try them: inputs with the labels that they are trained on."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Records:
    """Inputs ``[U, ...]`` with the labels ``[U]`` that they are trained on.

    >>> len(Records(torch.zeros(3, 2), torch.zeros(3)).repeated(2))
    6
    """

    inputs: Tensor
    labels: Tensor

    def rows(self, index: Tensor) -> Records:
        return Records(self.inputs[index], self.labels[index])

    def repeated(self, count: int) -> Records:
        """Each of them so many times, one after the other."""
        return Records(*(part.repeat_interleave(count, dim=0) for part in (self.inputs, self.labels)))

    def __len__(self) -> int:
        return len(self.labels)
