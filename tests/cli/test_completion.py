"""What the shell completes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from equipoise.cli import completion
from tests.helpers import COMMAND


def test_the_last_name_of_a_list_is_completed() -> None:
    assert completion.mechanisms("ls-") == ["ls-static", "ls-learn"]
    assert completion.mechanisms("none,pl-learn,pl") == ["none,pl-learn,pl-identical"]
    assert completion.attacks("lti,mu") == ["lti,multi-round"]
    assert completion.datasets("") == ["mnist", "fmnist", "breast-cancer", "generated-text"]


def test_single_names_are_completed() -> None:
    assert "cap" in completion.artefacts("ca")
    assert completion.artefacts("al") == ["all"]
    assert completion.devices("cu") == ["cuda"]
    assert completion.units("g") == ["group"]
    assert completion.models_or_best("be") == ["best"]
    assert completion.models_or_best("scatter") == ["scatter-linear"]


def test_keys_of_settings_and_options_are_completed() -> None:
    assert completion.settings("local") == ["local_steps="]
    assert completion.settings("leakage.it") == ["leakage.iterations="]
    assert completion.settings("gaussian.del") == ["gaussian.delta="]
    assert completion.settings("sweep") == []
    assert completion.attack_options("rel") == ["releases="]
    assert completion.attack_options("targ") == ["target="]
    assert completion.bounds_options("rep") == ["repeats="]
    assert completion.bounds_options("targets") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "word"),
    [("equipoise train --mechanism none,pl-l", "none,pl-learn"), ("equipoise reproduce ca", "cap")],
)  # fmt: skip
def test_bash_gets_its_completions(tmp_path: Path, line: str, word: str) -> None:
    environment = {**os.environ, "_EQUIPOISE_COMPLETE": "complete_bash", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(line.split()) - 1)
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert word in done.stdout.split(), done.stderr
