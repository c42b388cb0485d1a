"""The settings of a sweep that concern its data: how files are read, what is held out, and whose data is whose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from ..data import options
from ..data.contents import Reading
from ..data.partition import SCHEMES
from ..errors import ConfigError, expected, is_number
from ..mechanism import protection


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How files are read, and how training data is dealt to the clients."""

    partition: str = "identical"  # how training data is dealt to the clients: a scheme of ``data/partition.py``
    dirichlet: float = 0.5  # concentration of the Dirichlet partition: the smaller, the more skewed
    shards: int = 2  # per client, of the shards partition
    sizes: list[float] | None = None  # relative client sizes; None: equal
    partition_seed: int = 0
    validation_fraction: float = 1 / 6  # of a folder's training files; bundled data have fixed splits
    public_fraction: float = 0.0  # likewise
    test_fraction: float = 1 / 6  # of files without a test part
    target: str | None = None  # the column of the classes; None: guessed, as ``equipoise data check`` says
    group: str | None = None  # the column that says whose each row is: a person's rows stay together
    text: str | None = None  # a column of sentences, which become tokens
    drop: list[str] | None = None  # columns to leave out
    categorical: list[str] | None = None  # columns of numbers that are names, not amounts
    categories: Literal["one-hot", "codes"] = "one-hot"  # how names in a column become numbers
    vocabulary: int | None = None  # token numbers, padding included; of text, how many its words are hashed into
    text_length: int = 64  # tokens of a row: longer texts are cut, shorter ones padded
    resize: int | list[int] | None = None  # side, or height and width, that pictures get; None: they have one size
    scale: float | None = None  # by which values are divided before all else
    mean: float | list[float] | None = None  # that is subtracted: one, or one per channel or column; None: measured
    std: float | list[float] | None = None  # by which is divided after that; goes with ``mean``


FILES = (*(part.name for part in fields(Reading)), "test_fraction", "mean", "std")
"""Keys that concern the user's own files alone."""
LATER = {part.name: part.default for part in fields(DataSettings) if part.name in FILES}
"""Keys that came later: with these values a run is what it was without them."""

OPTIONS = (*FILES, "validation_fraction", "public_fraction")
"""Keys that are options of ``load``, which checks them."""

INTEGERS = {"shards": 1, "partition_seed": 0}
"""Whole numbers with the least that each may be."""
NUMBERS = ("dirichlet",)


def type_problems(s: Any) -> Iterator[ConfigError]:
    """What is of the wrong type, of keys that are attributes of ``s``."""
    if not isinstance(s.partition, str):
        yield expected("partition", s.partition, "a word")
    if s.sizes is not None and not (isinstance(s.sizes, list) and all(is_number(size) for size in s.sizes)):
        yield expected("sizes", s.sizes, "a list of numbers or none")
    yield from options.type_problems(_options(s))


def range_problems(s: Any) -> Iterator[ConfigError]:
    """What is out of range. Fractions and moments are held against the files when these are read."""
    yield from protection.not_positive(s, ("dirichlet",))
    if s.sizes is not None and (len(s.sizes) != s.clients or not all(0 < size < math.inf for size in s.sizes)):
        yield expected("sizes", s.sizes, f"one positive number for each of {s.clients} clients")
    if s.partition not in SCHEMES:
        yield expected("partition", s.partition, f"one of {', '.join(SCHEMES)}")
    yield from options.range_problems(_options(s))


def _options(s: Any) -> dict[str, Any]:
    return {name: getattr(s, name) for name in OPTIONS}
