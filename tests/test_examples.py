"""The examples with a guarantee do what they say when they are started as a user starts them."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from equipoise.mechanism import protect

EXAMPLE = Path(__file__).parents[1] / "examples" / "gaussian_dp.py"


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.slow
def test_gaussian_dp_trains_and_says_what_is_guaranteed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    step = protect.protected_step

    def seen(*args: object, **about: object) -> protect.Protected:
        asked.append((len(args[2][1]), args[4], about["settings"].gaussian.rounds, about["experiment_seed"]))  # type: ignore[index, attr-defined]
        return step(*args, **about)  # type: ignore[arg-type]

    monkeypatch.setattr(protect, "protected_step", seen)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "3"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    (accuracy,) = re.findall(r"test accuracy after 3 rounds: ([\d.]+)%", said)
    assert float(accuracy) > 50  # chance is 10
    assert "sees every one of the 3 releases" in said
    assert "epsilon 2 at delta 1e-05 for the whole run, relation add/remove, unit record" in said
    assert asked == [(1000, 2.0, 3, None)] * 12  # all records of four clients, each round, and nobody's seed
