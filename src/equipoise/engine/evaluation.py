"""What the models are worth: accuracy and loss per client, full losses, the full gradient.

F models on N examples are worked through in pieces of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..models.batched import Batched

PIECE = {"cpu": 4096, "cuda": 32768}
"""Images times models in one piece, by device."""


def _pieces(params: Tensor, examples: int) -> Iterator[tuple[slice, slice]]:
    models = len(params)
    rows = min(models, 64)
    step = max(1, PIECE[params.device.type] // rows)
    for first in range(0, models, rows):
        for start in range(0, examples, step):
            yield slice(first, min(first + rows, models)), slice(start, min(start + step, examples))


def score(batched: Batched, params: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Per-example correctness and loss of every model: ``[F, P]``, ``[N, ...]`` -> ``[F, N]`` twice."""
    correct = torch.empty(len(params), len(labels), dtype=torch.bool, device=params.device)
    loss = torch.empty(len(params), len(labels), dtype=params.dtype, device=params.device)
    for models, examples in _pieces(params, len(labels)):
        count = models.stop - models.start
        x = images[examples].expand(count, *images[examples].shape)
        y = labels[examples].expand(count, -1)
        outputs = batched.outputs(params[models], x)
        correct[models, examples] = outputs.argmax(-1) == y
        loss[models, examples] = nn.functional.cross_entropy(outputs.transpose(1, 2), y, reduction="none")
    return correct, loss


def by_client(values: Tensor, parts: list[Tensor]) -> Tensor:
    """Mean over every client's examples: ``[F, N]`` -> ``[F, K]``; ``[F, 0]`` where no client has any."""
    if not parts:
        return values.new_zeros(len(values), 0, dtype=torch.float64)
    return torch.stack([values[:, part.to(values.device)].to(torch.float64).mean(1) for part in parts], dim=1)


def full_loss(batched: Batched, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """The loss of R models, each on its own examples: ``[R, P]``, ``[R, n, ...]`` -> ``[R]``."""
    total = params.new_zeros(len(params))
    step = max(1, PIECE[params.device.type] // len(params))
    for start in range(0, labels.shape[1], step):
        y = labels[:, start : start + step]
        total += batched.at(images[:, start : start + step], y).loss(params) * (y.shape[1] / labels.shape[1])
    return total


def full_gradient(batched: Batched, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean loss over all N examples, for every model: ``[F, P]`` -> ``[F, P]``."""
    total = torch.zeros_like(params)
    for models, examples in _pieces(params, len(labels)):
        count, size = models.stop - models.start, examples.stop - examples.start
        x = images[examples].expand(count, *images[examples].shape)
        y = labels[examples].expand(count, -1)
        total[models] += batched.at(x, y).gradient(params[models]) * (size / len(labels))
    return total
