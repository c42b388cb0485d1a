"""Models that are a linear head on features which nothing is learned for: the kind that suits differential privacy.

The features of a record are a function of that record alone, so they cost no privacy, and only the head's gradient is
clipped and noised. ``features_of`` computes them so that even the last bit is such a function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..errors import ModelError, place
from .scattering import Scattering, at_most_norm

Shape = tuple[int, int, int]
CHUNK = 16
"""Records that are computed together where that is allowed; on a CPU larger chunks are slower."""

log = logging.getLogger("equipoise")


class FeatureModel(nn.Module):
    """A linear ``head`` on ``features`` that stay as they are: frozen, in eval mode, and in no state dict.

    The head sees features of at most the Euclidean norm 8: longer ones are shortened to it.
    ``features`` is kept out of the modules that torch knows of: neither ``train()`` nor ``parameters()`` nor
    ``load_state_dict`` reaches it. It moves with the model all the same (``to``, ``double``).

    >>> model = FeatureModel(nn.Flatten(), nn.Linear(4, 2))
    >>> list(model.state_dict()), model(torch.zeros(3, 1, 2, 2)).shape
    (['head.weight', 'head.bias'], torch.Size([3, 2]))
    """

    features: nn.Module
    head: nn.Linear

    def __init__(self, features: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        object.__setattr__(self, "features", features.eval().requires_grad_(False))
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(at_most_norm(self.features(images).flatten(1)))
        return outputs

    def head_model(self) -> nn.Sequential:
        """The head by itself, for records that are features already: the same tensors under the same names.

        >>> list(FeatureModel(nn.Flatten(), nn.Linear(4, 2)).head_model().state_dict())
        ['head.weight', 'head.bias']
        """
        model = nn.Sequential()
        model.add_module("flatten", nn.Flatten())
        model.add_module("head", self.head)
        return model

    def extra_repr(self) -> str:
        return f"features={self.features}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.features._apply(fn, recurse)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def scatter_linear(shape: Shape = (1, 28, 28), classes: int = 10) -> FeatureModel:
    """A linear head, zero at first, on scattering features.

    >>> sum(p.numel() for p in scatter_linear().parameters())
    39700
    """
    features = Scattering(shape)
    return FeatureModel(features, zero_head(features.width, classes))


def zero_head(width: int, classes: int) -> nn.Linear:
    """A linear layer of zeros; no random number is drawn for it.

    >>> zero_head(3, 2).weight.tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    head: Any = nn.utils.skip_init(nn.Linear, width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head  # type: ignore[no-any-return]


def features_of(model: FeatureModel, images: Tensor, *, alone: bool = True) -> Tensor:
    """The features ``[N, F]`` of records ``[N, ...]``. Features that are not finite count as zeros.

    Args:
        model: whose features.
        images: the records, where the model's tensors are and in their precision.
        alone: each record is copied and has a call of its own, so that its features depend on it alone to
            the last bit. Where that call fails the features are zero, and the log says how many did, never which. For
            whatever training is private. Otherwise ``CHUNK`` records at a time, for evaluation.

    >>> features_of(FeatureModel(Scattering(), nn.Linear(3969, 10)), torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 3969])
    """
    blank = torch.zeros_like(images[:1] if len(images) else images.new_empty(1, *images.shape[1:]))
    with torch.no_grad():
        like = _tried(model, blank)  # what fails for every record is said at once, and tells of none
        result = torch.zeros(len(images), model.head.in_features, dtype=like.dtype, device=like.device)
        if alone:
            _one_by_one(model, images, result)
        else:
            for start in range(0, len(images), CHUNK):
                result[start : start + CHUNK] = _tried(model, images[start : start + CHUNK])
    return torch.where(torch.isfinite(result).all(1, keepdim=True), result, 0.0)


def _one_by_one(model: FeatureModel, images: Tensor, result: Tensor) -> None:
    failed: list[str] = []
    for row in range(len(images)):
        record = images[row : row + 1].clone(memory_format=torch.contiguous_format)
        try:
            result[row] = at_most_norm(model.features(record).flatten(1))[0]
            if not torch.isfinite(result[row]).all():
                failed.append("they are not finite")
        except Exception as error:  # whatever it is: that it came would tell of this record
            failed.append(place(error))
    if failed:
        log.warning("The features of %d of %d records count as zero: %s.", len(failed), len(images), failed[0])


def _tried(model: FeatureModel, images: Tensor) -> Tensor:
    try:
        outputs = at_most_norm(model.features(images).flatten(1))
    except Exception as error:
        raise ModelError(
            f"The features of a batch of shape {tuple(images.shape)} and type {images.dtype} cannot be computed: "
            f"{place(error)}.",
            "Call model.features(x) by itself to see the whole error; its words are left out, as they may quote data.",
        ) from None
    if outputs.shape != (len(images), model.head.in_features):
        raise ModelError(
            f"The features of {len(images)} records have shape {tuple(outputs.shape)}, and the head takes "
            f"{model.head.in_features}.",
            "Give images of the shape that the model was built for.",
        )
    return outputs
