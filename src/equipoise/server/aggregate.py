"""The server of the embedded engine: average the releases that ``release.py`` accepted, step.

``Total`` serves F federations and any number of clients, added part by part, so that memory does not grow with the
clients. Releases of unknown origin are checked one by one instead (``intake.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor


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
        share = torch.where(accepted, weights, 0.0)  # [f, k]
        keep = accepted.unsqueeze(-1)
        released, distortion = torch.where(keep, released, 0.0), torch.where(keep, distortion, 0.0)
        for k in range(released.shape[1]):
            weight = share[:, k, None].to(torch.float64)
            self.sum[where] += released[:, k] * weight
            self.distortion[where] += distortion[:, k] * weight
            self.mass[where] += weight[:, 0]
        self.count[where] += accepted.sum(1)

    def step(self, previous: Tensor, rate: Tensor | float, min_clients: int) -> tuple[Tensor, Tensor]:
        """Algorithm 1, l. 10: the new models (unchanged where too few were accepted) and ``|Delta_t|``.

        ``rate`` is 1 for the paper's plain mean; a number or one per federation ``[F]``.
        """
        valid = ((self.count >= min_clients) & (self.mass > 0)).unsqueeze(-1)
        mass = torch.where(valid[:, 0], self.mass, 1.0).unsqueeze(-1)
        mean = self.sum / mass
        rate = torch.as_tensor(rate, dtype=torch.float64, device=mean.device).view(-1, 1)
        moved = torch.where(rate == 1, mean, previous + rate * (mean - previous))
        size = torch.linalg.vector_norm(self.distortion / mass, dim=-1)
        return torch.where(valid, moved.to(previous.dtype), previous), size.to(previous.dtype)
