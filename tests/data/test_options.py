"""What the options of ``load`` may be: one list of problems, for whoever gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.data.loading import load, load_public
from equipoise.data.options import NEEDED, OPTIONAL, FolderOptions, range_problems, refuse_wrong, type_problems
from equipoise.engine.settings import Settings, check_settings
from equipoise.errors import ConfigError, DataError
from tests.data.test_csv_files import write

WRONG: list[tuple[str, Any, str]] = [
    ("scale", "255", "scale='255' to be a number or none"),
    ("scale", float("inf"), "scale=inf to be finite and > 0"),
    ("resize", "a", "resize='a' to be a whole number, two of them"),
    ("resize", [1], "resize=.1. to be one size >= 1, or height and width"),
    ("text_length", "8", "text_length='8' to be a whole number"),
    ("text_length", 65_537, "text_length=65537 to be at most 65,536"),
    ("vocabulary", 10_000_001, "vocabulary=10000001 to be at most 10,000,000"),
    ("target", 3, "target=3 to be the name of a column"),
    ("drop", "x1", "drop='x1' to be a list of columns"),
    ("test_fraction", "a", "test_fraction='a' to be a number"),
    ("mean", "a", "mean='a' to be a finite number"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_what_is_wrong_is_said_alike_wherever_it_is_given(tmp_path: Path, name: str, value: Any, words: str) -> None:
    path = write(tmp_path / "people.csv")
    with pytest.raises(DataError, match=words) as loaded:
        load(path, **{name: value})  # type: ignore[misc]
    with pytest.raises(ConfigError, match=words) as checked:
        check_settings(Settings.flat(**{name: value}))
    assert str(loaded.value) == str(checked.value)
    if name not in ("test_fraction", "mean"):
        with pytest.raises(DataError, match=words):
            load_public(path, **{name: value})  # type: ignore[misc]


def test_a_name_is_a_word(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name=3 to be a name"):
        load(write(tmp_path / "people.csv"), name=3)  # type: ignore[typeddict-item]


def test_every_option_has_a_type() -> None:
    assert {*NEEDED, *OPTIONAL} == {*FolderOptions.__annotations__}


def test_what_is_right_is_taken() -> None:
    right = {"resize": (4, 5), "drop": ("a",), "scale": 255, "text_length": 65_536, "vocabulary": 10_000_000}
    more = {"categories": "codes", "mean": [0.5, 1], "std": 1.0, "target": None, "name": "a", "test_fraction": 0.5}
    refuse_wrong({**right, **more})
    assert not [*type_problems({}), *range_problems({})]
    assert len([*type_problems({"scale": "x", "drop": 3})]) == 2
