"""Labels of any kind as numbers: classes as they are, all others as rows of a table of what they stand for.

Classes are whole numbers, one for each example. All else is looked up: values of a regression, yes-or-no labels
(multi-hot), a row of numbers for each example. Attacks see numbers in any case, and the loss what they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..attack.view import indicators_of
from ..errors import ConfigError, DataError
from ..models.inputs import placed
from ..models.objective import Loss
from .attacker import Attacker
from .update import Truth

GIVE_LOSS = "Give the loss of the training: Update(loss=torch.nn.functional.mse_loss), for example."
CLASSES, YES_OR_NO, VALUES = "classes", "yes-or-no labels", "values"
"""What labels are."""
NO_TOKENS = "inputs that are numbers: no reconstruction of token sequences is offered"


@dataclass(frozen=True, eq=False)
class Numbered:
    """What the attacker knows and what is true, with numbers for labels."""

    attacker: Attacker
    truth: Truth | None
    targets: Tensor | None  # [T, ...]: what each number stands for; None: they are classes

    def to(self, like: Tensor) -> Numbered:
        """The same with targets in the model's own precision, on its device."""
        return self if self.targets is None else replace(self, targets=placed(self.targets, like.device, like.dtype))

    def loss(self, given: Loss | None) -> Loss | None:
        """The loss of the training as a function of outputs and numbers."""
        if self.targets is None:
            return given
        if given is None:
            raise ConfigError("The labels are no classes, and cross-entropy, the usual loss, is for these.", GIVE_LOSS)
        return looked_up(given, self.targets)


def looked_up(loss: Loss, targets: Tensor) -> Loss:
    """``loss`` of label numbers: each stands for a row of ``targets``.

    >>> table = torch.tensor([0.5, 2.0])
    >>> float(looked_up(torch.nn.functional.mse_loss, table)(torch.zeros(2), torch.tensor([1, 1])))
    4.0
    """
    return lambda outputs, numbers: loss(outputs, targets[numbers])


def numbered(attacker: Attacker, truth: Truth | None, shape: Sequence[int], several: bool) -> Numbered:
    """The same with numbers for labels that are no classes; ``several``: of a list of updates."""
    rank = label_rank(attacker, truth, len(shape), several)
    given = {
        "public": None if attacker.public is None else attacker.public[1],
        "true": None if truth is None else truth.labels,
        "granted": attacker.labels if isinstance(attacker.labels, Tensor) else None,
    }
    labels = {whose: tensor for whose, tensor in given.items() if tensor is not None}
    kinds = {whose: rank == 0 and not (tensor.is_floating_point() or tensor.dtype == torch.bool)
             for whose, tensor in labels.items()}  # fmt: skip
    if all(kinds.values()):
        return Numbered(attacker, truth, None)
    _check(labels, kinds, rank)
    if isinstance(attacker.labels, str) or not {"true", "granted"} & labels.keys():
        raise DataError(
            "Labels that are no classes are not inferred.", "Give truth=(inputs, labels), or Attacker(labels=) them."
        )
    flat = [tensor.reshape(-1, *tensor.shape[tensor.dim() - rank :]) for tensor in labels.values()]
    targets, places = torch.unique(torch.cat(flat), dim=0, return_inverse=True)
    parts = places.split([len(part) for part in flat])
    ids = {
        whose: part.view(tensor.shape[: tensor.dim() - rank])
        for (whose, tensor), part in zip(labels.items(), parts, strict=True)
    }
    if attacker.public is not None:
        attacker = replace(attacker, public=(attacker.public[0], ids["public"]))
    if "granted" in ids:
        attacker = replace(attacker, labels=ids["granted"])
    return Numbered(attacker, None if truth is None else Truth(truth.inputs, ids["true"]), targets)


def label_rank(attacker: Attacker, truth: Truth | None, rank: int, several: bool) -> int:
    """How many axes one label has: 0 for a number, 1 for a row of them. ``rank`` is that of an input."""
    if attacker.public is not None:
        return attacker.public[1].dim() - 1
    labels = attacker.labels if truth is None else truth.labels
    if not isinstance(labels, Tensor):
        return 0
    if truth is None:
        return labels.dim() - (2 if several and labels.dim() > 1 else 1) if labels.is_floating_point() else 0
    lead = truth.inputs.dim() - rank  # 1 for [E, ...], 2 for [N, E, ...]
    if labels.shape[:lead] == truth.inputs.shape[:lead]:
        return max(0, labels.dim() - lead)
    shared = lead == 2 and labels.shape[0] == truth.inputs.shape[1]  # one batch of labels for all updates
    return labels.dim() - 1 if shared else max(0, labels.dim() - 2)


def _check(labels: dict[str, Tensor], kinds: dict[str, bool], rank: int) -> None:
    names = list(labels)
    if any(kinds.values()):
        one, other = next(name for name in names if kinds[name]), next(name for name in names if not kinds[name])
        raise DataError(
            f"The {one} labels are classes (int64), the {other} ones are not ({labels[other].dtype}).",
            "Give all of one kind: what the loss of the training takes.",
        )
    shapes = {name: tuple(tensor.shape[tensor.dim() - rank :]) for name, tensor in labels.items()}
    first, *others = names
    for name in others:
        if labels[name].dim() <= rank or shapes[name] != shapes[first] or labels[name].dtype != labels[first].dtype:
            raise DataError(
                f"The {first} labels are {labels[first].dtype} of shape {shapes[first]} for an example, the {name} ones"
                f" {labels[name].dtype} of shape {tuple(labels[name].shape)} in all.",
                "Give all of one kind: what the loss of the training takes.",
            )
    for name, tensor in labels.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"The {name} labels are not finite.", "Remove NaN and Inf.")


def unsupported(tokens: bool, targets: Tensor | None) -> dict[str, str]:
    """What attacks may ask of the data (``Attack.data``) and these data are not, in words.

    >>> unsupported(True, None)
    {'numbers': 'inputs that are numbers: no reconstruction of token sequences is offered'}
    """
    result = {"numbers": NO_TOKENS} if tokens else {}
    if targets is not None:
        kind = label_kind(targets)
        result["classes"] = f"one class for each example, and these labels are {kind}"
        if kind == VALUES:
            result["counts"] = f"labels that can be counted, and these are {kind}"
    return result


def label_kind(targets: Tensor | None) -> str:
    """What labels are that stand for ``targets``: classes, yes-or-no labels or values."""
    if targets is None:
        return CLASSES
    return VALUES if indicators_of(targets) is None else YES_OR_NO
