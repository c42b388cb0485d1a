"""The settings of data: types and ranges, and runs from before they were there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from equipoise.data.contents import Reading
from equipoise.engine.data_settings import FILES, LATER, DataSettings
from equipoise.engine.settings import Settings, check_settings
from equipoise.errors import ConfigError
from equipoise.runs.config import resolve


def test_every_option_of_reading_is_a_setting_with_the_same_default() -> None:
    for part in fields(Reading):
        assert getattr(DataSettings(), part.name) == part.default, part.name
    assert set(LATER) == set(FILES)


def test_a_run_from_before_is_what_it_was() -> None:
    """The digest of a run without these keys, as it was before they came."""
    config = resolve(sweep={"mechanisms": ["none"]})
    assert (
        config.digest()
        == resolve(overrides={"target": "none", "scale": "none"}, sweep={"mechanisms": ["none"]}).digest()
    )
    assert config.digest() == "5fc444089a30291451b5602f7875692b2d048388a526d92def8b225262dc957a"
    assert config.digest() != resolve(overrides={"target": "y"}, sweep={"mechanisms": ["none"]}).digest()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("target", 3, "target=3 to be the name of a column"),
        ("group", ["a"], "to be the name of a column"),
        ("drop", "id", r"drop='id' to be a list of columns.*drop = \[\"id\"\]"),
        ("categorical", [1], "to be a list of columns"),
        ("categories", "hot", "categories='hot'"),
        ("vocabulary", 1.5, "vocabulary=1.5 to be a whole number"),
        ("vocabulary", 1, "vocabulary=1 to be >= 2"),
        ("text_length", 0, "text_length=0 to be >= 1"),
        ("resize", "big", "resize='big' to be a whole number"),
        ("resize", 0, "resize=0 to be one size"),
        ("resize", [1, 2, 3], "to be one size >= 1, or height and width"),
        ("resize", [3, 0], "to be one size >= 1, or height and width"),
        ("scale", "x", "scale='x' to be a number"),
        ("scale", -1.0, "scale=-1.0 to be finite and > 0"),
        ("mean", float("nan"), "mean=nan to be a finite number"),
        ("std", ["a"], "to be a finite number, a list of them"),
        ("test_fraction", "x", "test_fraction='x'"),
        ("partition", 3, "partition=3 to be a word"),
        ("partition", "fair", "partition='fair' to be one of identical"),
        ("sizes", [1.0], "sizes=.* to be one positive number for each of 4"),
    ],
)
def test_what_is_of_the_wrong_kind_is_told(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_settings(Settings.flat(**{key: value}))


def test_what_is_right_is_taken() -> None:
    keys: dict[str, Any] = {
        "target": "y", "group": "g", "drop": ["id"], "categorical": ["zip"], "categories": "codes", "vocabulary": 9,
        "text_length": 8, "resize": [4, 5], "scale": 255, "mean": [0.1, 0.2], "std": 2, "text": "note",
    }  # fmt: skip
    check_settings(Settings.flat(**keys))
    overrides = {**keys, "mean": [0.5, 1]}
    assert resolve(overrides=overrides, sweep={"mechanisms": ["none"]}).settings.data.drop == ["id"]
