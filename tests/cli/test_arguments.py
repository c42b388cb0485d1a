"""Lists, pairs and folders as they are written on a command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.cli.arguments import existing_folder, pairs, split, whole_numbers
from equipoise.errors import ConfigError


def test_values_are_toml_where_they_can_be() -> None:
    assert split("0.96, 200,pl-learn") == [0.96, 200, "pl-learn"]
    assert split("0.96,.97") == [0.96, 0.97]
    assert split("[0.96, 0.98], {rounds = [1, 5], values = [1, 2]}, 3") == [
        [0.96, 0.98], {"rounds": [1, 5], "values": [1, 2]}, 3
    ]  # fmt: skip
    assert split(None) == split("") == split(" , ") == []


def test_pairs_keep_everything_behind_the_first_equals_sign() -> None:
    assert pairs(["eta=0.05", "leakage.D = 60", "model=a=b"]) == {"eta": 0.05, "leakage.D": 60, "model": "a=b"}
    assert pairs(None) == {}


def test_lists_may_go_without_brackets() -> None:
    assert pairs(["drop=note, city"]) == pairs(['drop=["note", "city"]']) == {"drop": ["note", "city"]}
    assert pairs(["drop=2024", "categorical=none"]) == {"drop": ["2024"], "categorical": "none"}
    assert pairs(["sizes=1,2.5", "mean=0.5", "snapshots=0,10"]) == {
        "sizes": [1, 2.5],
        "mean": 0.5,
        "snapshots": [0, 10],
    }
    assert pairs(["target=a,b"]) == {"target": "a,b"}, "no list"


@pytest.mark.parametrize("option", ["eta", "=3", ""])
def test_a_pair_needs_a_key_and_a_sign(option: str) -> None:
    with pytest.raises(ConfigError, match="Expected --set key=value"):
        pairs([option])


def test_rounds_are_whole_numbers() -> None:
    assert whole_numbers("0,200", "--snapshots") == [0, 200]
    assert whole_numbers(None, "--snapshots") is None
    with pytest.raises(ConfigError, match=r"Expected --snapshots 1\.5 to be whole numbers"):
        whole_numbers("1.5", "--snapshots")


def test_a_run_must_be_a_folder(tmp_path: Path) -> None:
    assert existing_folder(tmp_path) == tmp_path
    for named in (tmp_path / "nowhere", Path("runs", "nowhere")):
        with pytest.raises(ConfigError, match=f"There is no folder {re.escape(str(named))}\\."):
            existing_folder(named)
