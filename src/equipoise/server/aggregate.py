"""The server of the embedded engine: average the releases that ``release.py`` accepted, step.

``Total`` serves F federations and any number of clients, added part by part, so that memory does not grow with the
clients. Releases of unknown origin are checked one by one instead (``intake.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 1 << 16


class Total:
    """Running weighted sums over clients for F federations: ``sum_k p_k W_k`` and ``sum_k p_k``.

    Clients are added one after the other in float64, so the result does not depend on how they are grouped.

    >>> total = Total(torch.zeros(1, 2))
    >>> released, weights = torch.tensor([[[1.0, 2.0], [5.0, 6.0]]]), torch.tensor([[3.0, 1.0]])
    >>> total.add(slice(0, 1), released, torch.zeros(1, 2, 2), weights, torch.tensor([[True, True]]))
    >>> total.step(torch.zeros(1, 2), rate=1.0, min_clients=1)[0].tolist()
    [[2.0, 3.0]]
    """

    def __init__(self, like: Tensor):
        self.sum = torch.zeros_like(like, dtype=torch.float64)  # [F, P]
        self.distortion = torch.zeros_like(self.sum)  # sum_k p_k alpha_k
        self.mass = like.new_zeros(len(like), dtype=torch.float64)
        self.count = like.new_zeros(len(like), dtype=torch.int64)

    def add(self, where: slice, released: Tensor, distortion: Tensor, weights: Tensor, accepted: Tensor) -> None:
        """Add releases ``[f, k, P]`` of the federations ``where``; refused ones count for nothing."""
        share = torch.where(accepted, weights, 0.0).to(torch.float64)  # [f, k]
        whole = accepted.device.type == "cpu" and bool(accepted.all())  # a GPU would have to wait for the answer
        keep = None if whole else accepted.unsqueeze(-1)
        for total, values in ((self.sum[where], released), (self.distortion[where], distortion)):
            for columns in _columns(values):
                part = values[..., columns] if keep is None else torch.where(keep, values[..., columns], 0.0)
                for k in range(part.shape[1]):
                    total[:, columns] += part[:, k] * share[:, k, None]
        for k in range(share.shape[1]):
            self.mass[where] += share[:, k]
        self.count[where] += accepted.sum(1)

    def step(self, previous: Tensor, rate: Tensor | float, min_clients: int) -> tuple[Tensor, Tensor]:
        """Algorithm 1, l. 10: the new models (unchanged where too few were accepted) and ``|Delta_t|``.

        ``rate`` is 1 for the paper's plain mean; a number or one per federation ``[F]``.
        """
        valid = ((self.count >= min_clients) & (self.mass > 0)).unsqueeze(-1)
        mass = torch.where(valid[:, 0], self.mass, 1.0).unsqueeze(-1)
        rate = torch.as_tensor(rate, dtype=torch.float64, device=mass.device).view(-1, 1)
        means = mass.device.type == "cpu" and bool(valid.all()) and bool((rate == 1).all())
        new, sizes = torch.empty_like(previous), []
        for columns in _columns(previous):
            old, mean = previous[:, columns], self.sum[:, columns] / mass
            moved = mean if means else torch.where(rate == 1, mean, old + rate * (mean - old))
            new[:, columns] = moved if means else torch.where(valid, moved.to(old.dtype), old)
            sizes.append(torch.linalg.vector_norm(self.distortion[:, columns] / mass, dim=-1))
        size = sizes[0] if len(sizes) == 1 else torch.linalg.vector_norm(torch.stack(sizes), dim=0)
        return new, size.to(previous.dtype)


def _columns(values: Tensor) -> list[slice]:
    """Stretches of ``[..., P]`` that stay in a CPU's cache from one operation to the next; on a GPU all of it."""
    size = values.shape[-1]
    width = COLUMNS if values.device.type == "cpu" else max(size, 1)
    return [slice(start, start + width) for start in range(0, size, width)]
