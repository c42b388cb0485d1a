"""What is said to options that a command lacks; every hint is of a command that there is, and lacks that option."""

from __future__ import annotations

import pytest

from equipoise.cli.hints import MEANT
from tests.helpers import Command


@pytest.mark.parametrize(("name", "option"), MEANT)
def test_what_is_meant_is_said_and_no_similar_name(command: Command, name: str, option: str) -> None:
    done = command(name, option, "2")
    text = " ".join(done.err.replace("│", " ").split())
    assert f"No such option: {option}. {MEANT[name, option]}" in text
    assert "Did you mean" not in text
    assert done.code == 2


def test_other_options_are_told_as_before(command: Command) -> None:
    assert "Did you mean --mechanism?" in command("train", "--mechanisms", "none").err
