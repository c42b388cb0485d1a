"""What the attacker of an update knows beside the update itself and the settings of the training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from ..attack.view import Public, Server, check_labels, check_pair
from ..errors import ConfigError, DataError, is_whole
from ..models.inputs import placed
from .table_scores import column_range
from .targets import FEWEST
from .update import Truth


@dataclass(frozen=True, kw_only=True, eq=False)
class Attacker:
    """What the attacker knows. By default: the labels, where the truth has them, and nothing public.

    Args:
        public: Inputs ``[Q, ...]``, or int64 tokens, and labels ``[Q]`` or ``[Q, k]`` that belong to no client. With
            them it simulates the mechanism: ``lti``, ``matched``, ``membership`` and ``labels`` need that.
        labels: The labels behind an update. None: it is granted those of the truth, and infers them where there is no
            truth. ``"infer"``: it infers them in any case. A tensor ``[E]`` or ``[N, E]``: it is granted these. Labels
            that are no classes cannot be inferred, and attacks with candidates are never granted them.
        examples: How many examples are behind one update, where neither truth nor labels tell.
        shape: Of one input, where neither public inputs nor truth tell.
        bounds: The range of the inputs, of tokens that of their numbers; by default that of the public ones (of a table
            column by column, and wider by half), else 0 to 1. Never that of the truth, which nobody told the attacker.

    >>> Attacker(labels="infer", examples=4, shape=(1, 28, 28))
    Attacker(examples=4, shape=(1, 28, 28), bounds=None)
    """

    public: Public | None = field(default=None, repr=False)
    labels: Tensor | Literal["infer"] | None = field(default=None, repr=False)
    examples: int | None = None
    shape: tuple[int, ...] | None = None
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.public is not None:
            check_pair(self.public)
        wrong = self.labels != "infer" if isinstance(self.labels, str) else not isinstance(self.labels, Tensor | None)
        if wrong or (isinstance(self.labels, Tensor) and self.labels.dim() < 1):
            raise DataError(
                'Expected the labels to be None, "infer" or a tensor [E] or [N, E].', "Use torch.as_tensor(labels)."
            )
        if self.examples is not None and (not is_whole(self.examples) or self.examples < 1):
            raise DataError(
                f"Expected examples={self.examples!r} to be a whole number >= 1.",
                "Give the number of examples behind one update.",
            )
        if self.bounds is not None:
            _check_bounds(self.bounds)

    def count(self, truth: Truth | None, local_steps: int) -> int:
        """How many examples are behind one update."""
        known = (None if truth is None else truth.labels, self.granted(truth))
        told = [labels.shape[-1] for labels in known if labels is not None]
        told += [self.examples] if self.examples is not None else []
        if not told or told[0] < 1:
            raise DataError(
                "It is not known how many examples are behind the update.",
                "Give truth=(inputs, labels), or Attacker(examples=) their number.",
            )
        if len(set(told)) > 1:
            raise DataError(
                f"Truth, labels and examples disagree on the number of examples: {', '.join(map(str, told))}.",
                "Leave examples out, and give a label for every input.",
            )
        if told[0] % local_steps:
            raise DataError(
                f"{told[0]} examples do not make {local_steps} equal local steps.", "Check settings.local_steps."
            )
        return told[0]

    def input_shape(self, truth: Truth | None, several: bool) -> tuple[int, ...]:
        """The shape of one input."""
        if self.shape is not None:
            return tuple(self.shape)
        if self.public is not None:
            return tuple(self.public[0].shape[1:])
        if truth is None:
            raise ConfigError(
                "The shape of one input is not known.",
                "Give truth=(inputs, labels), or Attacker(shape=(channels, height, width)).",
            )
        return tuple(truth.inputs.shape[2 if several else 1 :])

    def tokens(self, truth: Truth | None) -> bool:
        """Whether inputs are whole numbers that stand for tokens."""
        given = [*([] if self.public is None else [self.public[0]]), *([] if truth is None else [truth.inputs])]
        if len({inputs.is_floating_point() for inputs in given}) > 1:
            raise DataError(
                "Of the public inputs and those of the truth, one are tokens (int64) and the other numbers.",
                "Give both as the model takes them.",
            )
        return bool(given) and not given[0].is_floating_point()

    def input_range(self, table: bool = False) -> tuple[Tensor, Tensor] | tuple[float, float]:
        """The range that the attacker keeps its guesses in; of a ``table`` that of each of its numbers."""
        if self.bounds is not None:
            return float(self.bounds[0]), float(self.bounds[1])
        if self.public is None:
            return 0.0, 1.0
        return column_range(self.public[0]) if table else (float(self.public[0].min()), float(self.public[0].max()))

    def granted(self, truth: Truth | None) -> Tensor | None:
        """The labels that it is granted, as they were given; None where it infers them."""
        if isinstance(self.labels, str):
            return None
        return self.labels if self.labels is not None or truth is None else truth.labels

    def granted_rows(self, truth: Truth | None, count: int, server: Server) -> Tensor | None:
        """Likewise ``[N, E]``, checked."""
        labels = self.granted(truth)
        if labels is None:
            return None
        labels = labels.expand(count, -1) if labels.dim() == 1 else labels
        check_labels(labels, (count, server.examples), server.label_numbers)
        return labels

    def to(self, like: Tensor) -> Attacker:
        """The same in the model's own precision, on its device."""
        public, labels = self.public, self.labels
        if public is not None:
            public = placed(public[0], like.device, like.dtype), public[1].to(like.device)
        return replace(self, public=public, labels=labels.to(like.device) if isinstance(labels, Tensor) else labels)

    def lacks(self, truth: Truth | None) -> dict[str, str]:
        """What attacks may need (``Attack.needs``) and this attacker does not have, with where it would be given."""
        lacking = {}
        if truth is None:
            real = ("truth", "candidates", "asked", "companions")
            lacking = dict.fromkeys(real, "the real examples: truth=(inputs, labels)")
        if self.granted(truth) is None:
            lacking["labels"] = "labels that are granted: truth= or Attacker(labels=)"
        if self.public is None:
            lacking["public"] = "public inputs: Attacker(public=(inputs, labels))"
        return lacking

    def lacks_of(self, labels: Tensor) -> dict[str, str]:
        """Likewise what public inputs are missing for updates that hold these classes."""
        if self.public is None:
            return {}
        fewest = min(int((self.public[1] == label).sum()) for label in labels.unique())
        if fewest == 0:  # which label it is would tell what the updates were trained on
            words = "public inputs of every label behind the updates"
            return dict.fromkeys(("public", "candidates", "asked"), words)
        words = f"{FEWEST} public inputs of every label behind the updates"
        return dict.fromkeys(("candidates", "asked"), words) if fewest < FEWEST else {}


def _check_bounds(bounds: Any) -> None:
    numbers = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(isinstance(b, int | float) for b in bounds)
    if not numbers or not (math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]):
        raise ConfigError(
            f"Expected bounds={bounds!r} to be two finite numbers, low < high.", "Give the range of the inputs."
        )
