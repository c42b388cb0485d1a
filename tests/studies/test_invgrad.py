"""The study of inversions: its figures follow from the committed values of every release."""

from __future__ import annotations

import json
from pathlib import Path

from equipoise.auditing.store import unpacked
from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "invgrad"


def test_every_figure_follows_from_the_values_of_every_release() -> None:
    script, whole = load_script(HERE / "run.py"), json.loads((HERE / "invgrad.json").read_text())
    again = script.rows_of(unpacked((HERE / "values.npz").read_bytes()))
    assert json.loads(json.dumps(again)) == whole["rows"]
    assert [
        {name: row[name] for name in case} for case, row in zip(script.cases(), again, strict=True)
    ] == script.cases()
