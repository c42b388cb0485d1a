"""What the tests of run folders share: a small experiment, its comparison, and ways to stop it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from equipoise.runs.config import Config
from equipoise.runs.run import Run
from tests.helpers import contents

ROUNDS = 5


FEDERATIONS = [("pl-learn", 0.98), ("none", None), ("pl-learn", 0.99)]  # mechanisms mixed: the engine reorders them


def changed(config: Config, **change: Any) -> Config:
    return replace(config, settings=config.settings.replace(**change))


def assert_same(folder: Path, other: Path, what: str = "") -> None:
    one, two = contents(folder), contents(other)
    assert set(one) == set(two), what
    assert [name for name in one if one[name] != two[name]] == [], what


def strict(text: str) -> Any:
    """Parsed as JSON proper, which has no NaN and no Infinity."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def interrupted_in(folder: Path, config: Config, round_number: int) -> None:
    def stop(at: int) -> None:
        if at == round_number:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(folder, config).execute(on_round=stop)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [strict(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
