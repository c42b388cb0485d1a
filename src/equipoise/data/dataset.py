"""A dataset: four disjoint splits of pictures, tables or tokens, from tensors or, in ``loading.py``, from files.

``train`` and ``validation`` are what ``partition.py`` deals to the clients; ``public`` belongs to no client and is all
that an attacker may train on. An unusable input raises ``DataError`` before any of it is used, and the message names
rows, never a value or a label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .normalisation import Moment, as_moment, check_moments, undone
from .options import MOST_TOKENS
from .splits import Kind, Split, hold_out, mixed

Pair = tuple[Tensor, Tensor]
Grouped = tuple[Tensor, Tensor, Tensor]
"""Inputs, labels, and whose each row is."""

PUBLIC_PARTS = {"attack": 3000, "pool": 2500, "tuning": 500}
"""Of the bundled public split, in this order; that of another dataset is cut in the same proportions."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Four disjoint splits with the normalisation that was applied to them.

    >>> from equipoise import load
    >>> data = load("mnist")
    >>> data.shape, len(data.train), len(data.public_pool)
    ((1, 28, 28), 4000, 2500)
    """

    name: str
    classes: int
    mean: Moment
    std: Moment
    train: Split
    validation: Split
    test: Split
    public: Split | None
    vocabulary: int | None = None  # how many token numbers there are, padding included; None: no tokens
    class_names: tuple[str, ...] = ()  # where the files name them
    guessed: tuple[str, ...] = ()  # what nobody said when it was read, each with the setting that says it
    fitted: tuple[str, ...] = ()  # what was measured on private rows, each with what states it instead

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: channels, height and width of a picture, columns of a table, tokens of a sequence."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def kind(self) -> Kind:
        """``"image"``, ``"table"`` or ``"tokens"``, from type and rank of the inputs.

        >>> from equipoise import load
        >>> load("mnist").kind, load("breast-cancer").kind, load("generated-text").kind
        ('image', 'table', 'tokens')
        """
        return self.train.kind

    @property
    def public_attack(self) -> Split:
        """What an attacker trains on: half of ``public`` (3,000 bundled)."""
        return self._public_part("attack")

    @property
    def public_pool(self) -> Split:
        """What attacks are scored on: targets, decoys and non-members, 5 in 12 of ``public`` (2,500 bundled)."""
        return self._public_part("pool")

    @property
    def public_tuning(self) -> Split:
        """What the settings of an attack are chosen on: a twelfth of ``public`` (500 bundled)."""
        return self._public_part("tuning")

    def pixels(self, images: Tensor) -> Tensor:
        """Undo the normalisation: pictures come back to [0, 1], up to rounding, tables to the values of their columns.

        Tokens stay what they are. Values outside the range, as an attack may produce, stay outside; nothing is clamped.

        >>> from equipoise import load
        >>> data = load("mnist")
        >>> round(float(data.pixels(data.test.inputs).max()), 6)
        1.0
        """
        return undone(images, self.mean, self.std, len(self.shape) - 1) if images.is_floating_point() else images

    def mapped(
        self,
        function: Callable[[Tensor], Tensor],
        *,
        evaluation: Callable[[Tensor], Tensor] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The same rows with features in place of inputs: ``[N, ...]`` -> ``[N, F, 1, 1]``.

        Two axes of length 1 make them images like any other to all that trains and attacks. Labels and groups stay.

        Args:
            function: maps the inputs of a split to ``[N, ...]``, which is flattened.
            evaluation: the same for all splits but ``train``, where another way to compute it will do.
            name: of the new dataset; that of this one unless given.

        >>> from equipoise import load
        >>> load("mnist").mapped(lambda images: images.mean(-1)).shape
        (28, 1, 1)
        """
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        if self.public is not None:
            splits["public"] = self.public
        made = {
            what: _mapped(what, part, (what != "train" and evaluation) or function) for what, part in splits.items()
        }
        kept = {"class_names": self.class_names, "guessed": self.guessed, "fitted": self.fitted}
        return assembled(name or self.name, 0.0, 1.0, made, self.classes, **kept)

    def _public_part(self, part: str) -> Split:
        if self.public is None:
            raise DataError(
                f"Dataset {self.name!r} has no public {self.train.word}, so no public_{part}.",
                "Set some apart: public_fraction=0.1 with load, --set public_fraction=0.1 before training, "
                f"public=({self.train.word}, labels) with from_tensors.",
            )
        position, sizes, total = list(PUBLIC_PARTS).index(part), list(PUBLIC_PARTS.values()), len(self.public)
        start, stop = (total * sum(sizes[:end]) // sum(sizes) for end in (position, position + 1))
        if start == stop:
            raise DataError(
                f"Dataset {self.name!r} has only {total} public {self.train.word}: public_{part} would be empty.",
                "Give at least 12.",
            )
        return self.public.take(slice(start, stop))


def _mapped(what: str, split: Split, function: Callable[[Tensor], Tensor]) -> Split:
    values = function(split.inputs)
    if not isinstance(values, Tensor) or values.dim() < 2 or len(values) != len(split):
        got = f"shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise DataError(
            f"Expected a tensor of {len(split)} rows for the {what} {split.word}, got {got}.",
            "Return one row of features for each input.",
        )
    return Split(values.detach().flatten(1)[:, :, None, None], split.labels, split.groups)


def from_tensors(
    train: Pair | Grouped,
    test: Pair,
    validation: Pair | None = None,
    public: Pair | None = None,
    *,
    classes: int | None = None,
    vocabulary: int | None = None,
    name: str = "user",
    mean: Moment = 0.0,
    std: Moment = 1.0,
) -> Dataset:
    """A dataset from pairs ``(inputs [N, ...], labels [N] integer)``; the inputs stay as they are.

    Inputs are floats, of pictures ``[N, C, H, W]``, tables ``[N, F]`` or any other rank; or tokens ``[N, L]``, whole
    numbers of which 0 is padding.

    Args:
        train: what is dealt to the clients. A third tensor of integers ``[N]``, groups, may say whose each row is (a
            person's): rows of one group stay in one split, and with one client.
        test: what global models are scored on.
        validation: chooses the best round; the last sixth of each class of ``train`` unless given.
        public: belongs to no client and is all that an attacker may train on. It is put in an order that gives its four
            parts the same mix of classes.
        classes: their number; the largest label plus one unless given.
        vocabulary: of tokens: how many numbers there are; the largest plus one unless given.
        name: for messages and records.
        mean: of a normalisation that was already applied, for ``pixels`` to undo; one number, or one per channel.
        std: likewise.

    Returns:
        The dataset. What cannot be used raises ``DataError``, which names the row.

    >>> import torch
    >>> pair = torch.rand(12, 3, 8, 8), torch.arange(12) % 2
    >>> data = from_tensors(train=pair, test=pair)
    >>> data.classes, len(data.train), len(data.validation)
    (2, 10, 2)
    """
    training = checked("train", train)
    if validation is None:
        training, held_out, _ = hold_out(training, 1 / 6, 0.0)
    else:
        held_out = checked("validation", validation)
    splits = {"train": training, "validation": held_out, "test": checked("test", test)}
    if public is not None:
        splits["public"] = mixed(checked("public", public))
    mean, std = as_moment(mean), as_moment(std)
    check_moments(mean, std, training.inputs.shape[1])
    return assembled(name, mean, std, splits, classes, vocabulary=vocabulary)


def checked(what: str, given: Any) -> Split:
    """The tensors as a split, or a ``DataError`` that names the tensor and the row.

    Groups, a third tensor, are for what is dealt to the clients: ``train``.
    """
    word = "inputs"
    if isinstance(given, tuple | list) and given and isinstance(given[0], Tensor):
        word = "images" if given[0].ndim == 4 else "tokens" if _are_tokens(given[0]) else "rows"
    parts = (word, "labels", "groups") if what == "train" else (word, "labels")
    if not isinstance(given, tuple | list) or not 2 <= len(given) <= len(parts):
        number = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(
            f"Expected {what} to be a pair ({word}, labels), got {type(given).__name__}{number}.",
            "Give both; with train, groups may come third." if what == "train" else "Give these two.",
        )
    for part, value in zip(parts, given, strict=False):
        if not isinstance(value, Tensor):
            raise DataError(
                f"Expected {what} {part} to be a torch tensor, got {type(value).__name__}.",
                "Convert them with torch.as_tensor.",
            )
    inputs = (_checked_tokens if _are_tokens(given[0]) else _checked_values)(what, word, given[0])
    labels = _checked_labels(what, given[1])
    groups = _integers(what, "groups", given[2]) if len(given) == 3 else None
    for part, values in (("labels", labels), ("groups", groups)):
        if values is not None and len(inputs) != len(values):
            raise DataError(
                f"Expected as many {what} {part} as {word}, got {len(values)} and {len(inputs)}.",
                f"Give every {'image' if word == 'images' else 'row'} one.",
            )
    return Split(inputs, labels, groups)


def _are_tokens(inputs: Tensor) -> bool:
    """Bytes are pixels far more often than tokens: they are refused rather than guessed at."""
    return inputs.ndim == 2 and inputs.dtype in (torch.int16, torch.int32, torch.int64)


def _checked_values(what: str, word: str, inputs: Tensor) -> Tensor:
    if inputs.ndim < 2:
        raise DataError(
            f"Expected {what} inputs to have shape [N, ...], got {list(inputs.shape)}.",
            "Give one row for each label: images [N, C, H, W], tables [N, F], tokens [N, L].",
        )
    if not inputs.is_floating_point():
        remedy = "images.float() / 255" if word == "images" else "float() for values, long() for tokens [N, L]"
        raise DataError(f"Expected {what} {word} to be float, got {inputs.dtype}.", f"Convert: {remedy}.")
    _check_some(what, word, inputs)
    inputs = inputs.detach().to(torch.float32)
    finite = torch.isfinite(inputs)
    if not bool(finite.all()):
        row = int((~finite).flatten(1).any(1).nonzero()[0])
        value = float(inputs[row][~finite[row]][0])
        raise DataError(
            f"Expected {what} {word} to be finite in float32, got {value} in row {row}.",
            f"Remove or repair that {word.removesuffix('s')}.",
        )
    return inputs


def _check_some(what: str, word: str, inputs: Tensor) -> None:
    if inputs.numel() == 0:
        one = word.removesuffix("s")
        raise DataError(f"Expected at least one {what} {one}, got shape {list(inputs.shape)}.", "Give some.")


def _checked_tokens(what: str, word: str, inputs: Tensor) -> Tensor:
    _check_some(what, word, inputs)
    inputs = inputs.detach().long()  # first: a small type cannot be compared with a large number
    for wrong, fault, remedy in (
        ((inputs < 0).any(1), "are negative", "Number the tokens from 1; 0 is padding."),
        ((inputs >= MOST_TOKENS).any(1), f"are not below {MOST_TOKENS:,}", "Number the tokens from 1, without gaps."),
        ((inputs == 0).all(1), "are all padding", "Leave that row out: it says nothing."),
    ):
        if bool(wrong.any()):
            raise DataError(f"The {what} tokens of row {int(wrong.nonzero()[0])} {fault}.", remedy)
    return inputs


def _checked_labels(what: str, labels: Tensor) -> Tensor:
    labels = _integers(what, "labels", labels)
    if bool((labels < 0).any()):
        row = int((labels < 0).nonzero()[0])
        raise DataError(f"Expected {what} labels to be >= 0; row {row} is negative.", "Number the classes from 0.")
    return labels


def _integers(what: str, part: str, values: Tensor) -> Tensor:
    if values.ndim != 1:
        raise DataError(f"Expected {what} {part} to have shape [N], got {list(values.shape)}.", "Give one per row.")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise DataError(f"Expected {what} {part} to be integers, got {values.dtype}.", f"Convert: {part}.long().")
    return values.long()


def assembled(
    name: str, mean: Moment, std: Moment, splits: dict[str, Split], classes: int | None, **more: Any
) -> Dataset:
    """The splits as a dataset, once they are seen to be alike. ``classes=None``: the largest label plus one.

    ``more``: the other fields of the dataset. A ``vocabulary`` of None is the largest token plus one.
    """
    if classes is None:
        largest, what = max((int(split.labels.max()), what) for what, split in splits.items())
        classes, most = 1 + largest, max(1000, len(splits["train"]))
        if classes > most:  # one wrong label would ask for a model of terabytes
            raise DataError(
                f"The {what} labels name more than {most} classes.", "Number the classes from 0, without gaps."
            )
    train = splits["train"]
    for what, split in splits.items():
        _check_alike(what, split, train)
        if bool((split.labels >= classes).any()):
            row = int((split.labels >= classes).nonzero()[0])
            raise DataError(
                f"Expected {what} labels to be < classes={classes}; row {row} is not.",
                "Raise classes or relabel the row.",
            )
    more["vocabulary"] = _vocabulary(splits, more.get("vocabulary"))
    public = splits.pop("public", None)
    made: dict[str, Any] = {**splits, **more}
    return Dataset(name=name, classes=classes, mean=mean, std=std, public=public, **made)


def _check_alike(what: str, split: Split, train: Split) -> None:
    if split.kind != train.kind:
        raise DataError(
            f"The {what} inputs are {_KINDS[split.kind]}, those of train {_KINDS[train.kind]}.", "Give one kind."
        )
    if split.inputs.shape[1:] != train.inputs.shape[1:]:
        raise DataError(
            f"Expected {what} {split.word} to have shape {list(train.inputs.shape[1:])} like the train {train.word}, "
            f"got {list(split.inputs.shape[1:])}.",
            "Resize or crop one of the two." if split.kind == "image" else "Give both the same columns or length.",
        )


_KINDS = {"image": "pictures", "table": "numbers", "tokens": "tokens"}


def _vocabulary(splits: dict[str, Split], vocabulary: int | None) -> int | None:
    if splits["train"].kind != "tokens":
        if vocabulary is not None:
            raise DataError(f"vocabulary={vocabulary} is for tokens, and the inputs are not.", "Leave it out.")
        return None
    if vocabulary is None:
        return 1 + max(int(split.inputs.max()) for split in splits.values())
    for what, split in splits.items():
        above = (split.inputs >= vocabulary).any(1)
        if bool(above.any()):
            raise DataError(
                f"Expected {what} tokens to be < vocabulary={vocabulary}; row {int(above.nonzero()[0])} is not.",
                "Raise vocabulary.",
            )
    return vocabulary
