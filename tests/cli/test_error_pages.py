"""The pages on errors show the messages as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import Command

PAGES = Path(__file__).parents[2] / "docs" / "errors"


def damaged_checkpoint(command: Command) -> None:
    command("train", "--mechanism", "none", "--rounds", "2", "--out", "run")
    (state,) = Path("run/checkpoint").glob("state-*.safetensors")
    state.write_bytes(state.read_bytes() + b"x")


def changed_ledger(command: Command) -> None:
    command("train", "--mechanism", "none", "--rounds", "2", "--out", "run")
    ledger = Path("run/ledger.jsonl")
    first, second, *rest = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join([first, second.replace('"round":1', '"round":9'), *rest]))


def file_in_the_way(_: Command) -> None:
    Path("notes.txt").write_text("x")


def nothing(_: Command) -> None:
    """The command fails by itself."""


TRAIN = ["train", "--mechanism", "none", "--rounds", "2", "--out", "run"]
CASES: dict[int, tuple[Callable[[Command], None], list[str]]] = {
    2: (nothing, ["train", "--bugdet", "0.98"]),
    11: (nothing, ["train", "--set", "roundz=3", "--mechanism", "pl-learn"]),
    12: (nothing, [*TRAIN, "--set", "clients=50"]),
    16: (damaged_checkpoint, TRAIN),
    17: (file_in_the_way, [*TRAIN, "--out", "notes.txt/run"]),
    19: (changed_ledger, ["ledger", "run"]),
    20: (nothing, [*TRAIN, "--rounds", "5", "--release-limit", "2"]),
}


@pytest.mark.parametrize("code", CASES)
def test_the_page_shows_what_is_printed(
    command: Command, small_mnist: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare, arguments = CASES[code]
    prepare(command)
    done = command(*arguments)
    assert done.code == code
    (shown,) = re.findall(r"```\n(.*?)```", (PAGES / f"{code}.md").read_text(encoding="utf-8"), re.DOTALL)
    printed = words(re.sub("[│╭╮╰╯─]", " ", done.err))
    assert any(words(message) in printed for message in re.split(r"\n(?=error:)", shown)), printed


def words(text: str) -> str:
    return " ".join(text.split())
