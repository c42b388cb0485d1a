"""Seeded computations give the numbers they gave when ``values.json.gz`` was written, bit for bit.

Bits depend on the version of torch and on the processor. Where these are not the recorded ones, runs of three rounds
are compared to a tolerance, and the rest is left to the machines that match. So is what was learned over several
rounds: within three, learning makes a tenth of a loss out of the rounding of a gradient, 1e-7. Single learned releases
are compared.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.plan import FULL
from equipoise.reproduction.reproduce import reproduce
from tests.golden.record import ADDED, machine, stored
from tests.golden.scenarios import SCENARIOS, numbers

SHORT = ("every_mechanism", "two_datasets_two_seeds", "computed", "releases")
"""Three rounds at most: rounding has not grown yet."""
RENAMED: dict[str, str] = {"/options/rounds": "/options/snapshots"}
"""Recorded part of a path -> what it is called now."""
GONE = re.compile(r"/\w+ (none|\w+-static|pl-identical) given/record/utility_loss")
"""Recorded, and not given any more: what a client trained is distorted without a forward pass."""
REROUTED = re.compile(r"/residual .*")
"""Recorded by ``torch.func``; such models take plain PyTorch on a CPU now, which rounds otherwise."""


def renamed(path: str) -> str:
    for old, new in RENAMED.items():
        path = path.replace(old, new)
    return path


def differences(expected: dict[str, Any], actual: dict[str, Any], tolerance: float | None = None) -> list[str]:
    """Every path whose value is missing, new or another; with a tolerance, hashes and non-numbers are left out."""
    wrong = [f"{path}: {'missing' if path in expected else 'new'}" for path in expected.keys() ^ actual.keys()]
    for path in expected.keys() & actual.keys():
        old, new = expected[path], actual[path]
        if tolerance is not None and isinstance(old, float) and isinstance(new, float):
            same = math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
        elif tolerance is not None and isinstance(old, str):
            continue
        else:
            same = type(old) is type(new) and old == new
        if not same:
            wrong.append(f"{path}: {old!r} -> {new!r}")
    return sorted(wrong)


LEARNED: dict[str, tuple[int, ...]] = {
    "every_mechanism": (2, 4, 6), "two_datasets_two_seeds": (0, 1, 2, 3, 6, 7, 8, 9), "computed": (0,)
}  # fmt: skip
"""By scenario, the places of the federations that learn."""


def without_learned(values: dict[str, Any], name: str) -> dict[str, Any]:
    places = "|".join(map(str, LEARNED.get(name, ())))
    learned = re.compile(rf"/(metrics|result/federations|curves/\w+)/({places})/")
    return {path: value for path, value in values.items() if not learned.match(path)}


LONG = ("reproduced", "computed_audit", "local_steps", "two_datasets_two_seeds")
"""Slow tests: the jobs and audits that they are made of are in others."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SCENARIOS])
def test_the_numbers_are_the_recorded_ones(name: str, tmp_path: Path) -> None:
    golden = stored()
    exact = golden["machine"] == machine()
    if not exact and name not in SHORT:
        pytest.skip(f"recorded on another machine: {golden['machine']}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        actual = {path: new for path, new in numbers(SCENARIOS[name](tmp_path)) if not path.endswith(ADDED)}
    finally:
        torch.set_num_threads(threads)
    expected = {renamed(path): value for path, value in golden["scenarios"][name].items() if not GONE.fullmatch(path)}
    if not exact:
        expected, actual = without_learned(expected, name), without_learned(actual, name)
        assert len(expected) >= 30, "enough is left to compare"
    same = {path for path in expected.keys() | actual.keys() if exact and not REROUTED.fullmatch(path)}
    wrong = [
        *differences(*({path: one[path] for path in one if path in same} for one in (expected, actual))),
        *differences(*({path: one[path] for path in one if path not in same} for one in (expected, actual)), 5e-3),
    ]
    assert not wrong, f"{len(wrong)} of {len(expected)} differ:\n" + "\n".join(wrong[:20])


def test_the_committed_records_score_to_the_committed_pages(tmp_path: Path) -> None:
    """Tables, figures and pages, byte for byte."""
    committed = Path(__file__).parents[2] / "reproduction"
    reproduce(list(ARTEFACTS), FULL, tmp_path, "cpu", [committed / "raw"], True)
    files = sorted(path for path in committed.rglob("*") if path.is_file() and path.parent.name != "raw")
    names = {path.name for path in files}
    assert names == {"README.md", "results.json", "figure.svg", "index.html", "reproduction.json"}
    assert sum(path.name == "results.json" for path in files) == len(ARTEFACTS)
    for path in files:
        again = tmp_path / path.relative_to(committed)
        assert again.read_bytes() == path.read_bytes(), path.relative_to(committed)


def test_every_scenario_is_recorded() -> None:
    assert set(stored()["scenarios"]) == set(SCENARIOS)


def test_one_changed_bit_is_seen() -> None:
    old = {"/a": 1.0, "/b": "f" * 64, "/c": 3}
    assert not differences(old, dict(old))
    assert differences(old, {**old, "/a": math.nextafter(1.0, 2.0)})
    assert differences(old, {**old, "/b": "e" * 64})
    assert differences(old, {"/a": 1.0, "/b": "f" * 64})
    assert differences(old, {**old, "/c": 3.0})


def test_a_tolerance_forgives_rounding_alone() -> None:
    old = {"/a": 1.0, "/b": "f" * 64, "/c": 3}
    assert not differences(old, {"/a": 1.0001, "/b": "e" * 64, "/c": 3}, 5e-3)
    assert differences(old, {**old, "/a": 1.02}, 5e-3)
    assert differences(old, {**old, "/c": 4}, 5e-3)
