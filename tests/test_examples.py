"""The example with a guarantee trains, makes the releases that it says, and says what is guaranteed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.data.dataset import Dataset, from_tensors
from equipoise.mechanism.protect import Protected, protected_step
from examples import gaussian_dp

ROUNDS, RECORDS = 3, 200


def test_the_example_is_short() -> None:
    assert len(Path(gaussian_dp.__file__).read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.slow
def test_gaussian_dp_trains_and_says_what_is_guaranteed(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def seen(model: Any, state: Any, records: Any, mechanism: str, budget: float, **about: Any) -> Protected:
        gaussian = about["settings"].gaussian
        asked.append((len(records[1]), mechanism, budget, gaussian.rounds, gaussian.delta, about["experiment_seed"]))
        return protected_step(model, state, records, mechanism, budget, **about | {"experiment_seed": 1})

    train, test = ((part.inputs[: 4 * RECORDS], part.labels[: 4 * RECORDS]) for part in (mnist.train, mnist.test))
    monkeypatch.setattr(gaussian_dp, "load", lambda name: from_tensors(train, test, test, classes=10))
    monkeypatch.setattr(gaussian_dp, "protected_step", seen)
    monkeypatch.setattr(gaussian_dp, "RECORDS", RECORDS)
    gaussian_dp.main(ROUNDS)
    said = capsys.readouterr().out
    (accuracy,) = re.findall(r"test accuracy after 3 rounds: ([\d.]+)%", said)
    assert float(accuracy) > 25  # chance is 10
    assert "sees every one of the 3 releases" in said
    assert "epsilon 2 at delta 1e-05 for the whole run, relation add/remove, unit record" in said
    assert asked == [(RECORDS, "gaussian-dp", 2.0, ROUNDS, 1e-5, None)] * (4 * ROUNDS)  # all records, and nobody's seed
