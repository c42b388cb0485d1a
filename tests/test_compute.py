"""``python -m equipoise.compute``: what it writes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.choosing.public_alone import public_alone
from equipoise.compute import CURVES, compute, compute_public, main
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, to_dict
from equipoise.engine.sweep import Sweep
from tests.audit_helpers import write_pictures

SETTINGS = Settings.flat(rounds=3, evaluate_every=2, model="mlp")
FEDERATIONS = [
    Federation("mnist", "pl-learn", 0.98),
    Federation("mnist", "none"),
    Federation("mnist", "ls-static", [200, 200, 1e-38, 200]),  # one client whose noise float32 cannot hold
]


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compute")
    (folder / "spec.json").write_text(json.dumps(to_dict(SETTINGS, FEDERATIONS)))
    assert main([str(folder / "spec.json"), str(folder / "deep" / "out")]) == 0
    return folder / "deep" / "out"


def test_only_results_and_curves_are_written(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == ["curves.npz", "result.json"]


def test_results_are_those_of_the_sweep(out: Path) -> None:
    result = json.loads((out / "result.json").read_text())
    assert result["schema"] == 1
    assert result["experiment"] == "seeded"
    assert result["spec"] == to_dict(SETTINGS, FEDERATIONS)
    assert result["seconds"] > 0
    rows = result["federations"]
    assert [(r["mechanism"], r["budget"]) for r in rows] == [(f.mechanism, f.budget) for f in FEDERATIONS]
    assert all(0 <= r["accuracy"] <= 1 for r in rows)
    assert [r["releases_refused"] for r in rows] == [0, 0, 3]
    last = [event.rows for event in Sweep(SETTINGS, FEDERATIONS[:2]).run() if event.rows][-1]
    assert [r["accuracy"] for r in rows[:2]] == [r["accuracy"] for r in last]


def test_curves_have_a_row_per_federation_and_a_column_per_evaluation(out: Path) -> None:
    curves = np.load(out / "curves.npz")
    assert curves["rounds"].tolist() == [2, 3]
    for name in CURVES:
        assert curves[name].shape == (3, 2)
    result = json.loads((out / "result.json").read_text())["federations"]
    assert curves["accuracy"][:, -1] == pytest.approx([r["accuracy"] for r in result])


def test_a_refused_release_does_not_make_the_file_unreadable(out: Path) -> None:
    """JSON has no NaN: a strict reader must be able to read what was written."""
    json.loads((out / "result.json").read_text(), parse_constant=refuse)


def test_nothing_is_named_after_the_machine(out: Path) -> None:
    text = (out / "result.json").read_text()
    assert str(Path.home()) not in text
    assert str(out) not in text


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 11, "Cannot read the SPEC"),
        ("{", 11, "Cannot read the SPEC"),
        ("[1, 2]", 11, ""),
        ('{"settings": {"rounds": 3}}', 11, "'federations'"),
        ('{"settings": {"rounds": 0}, "federations": [{"mechanism": "none"}]}', 11, "rounds=0"),
        ('{"settings": {"rounds": "many"}, "federations": [{"mechanism": "none"}]}', 11, "rounds='many'"),
        ('{"settings": {"runds": 3}, "federations": [{"mechanism": "none"}]}', 11, "runds"),
        ('{"settings": [3], "federations": [{"mechanism": "none"}]}', 11, ""),
        ('{"federations": [{"mechanism": "none", "sed": 1}]}', 11, "sed"),
        ('{"federations": [{"mechanism": "none", "dataset": "mnits"}]}', 12, "mnits"),
    ],
)
def test_a_bad_spec_ends_with_its_exit_code_and_one_line(
    content: str | None, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    if content is not None:
        spec.write_text(content)
    assert main([str(spec), str(tmp_path / "out")]) == code
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert words in printed


def test_the_usage_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: python -m equipoise.compute SPEC.json OUT/" in capsys.readouterr().err


def test_results_are_put_in_place_by_renaming(tmp_path: Path) -> None:
    """An earlier result is replaced as a whole, never overwritten: whoever has it open still reads all of it."""
    for name in ("result.json", "curves.npz"):
        (tmp_path / name).write_text("old")
        (tmp_path / f"held-{name}").hardlink_to(tmp_path / name)
    compute(to_dict(Settings.flat(rounds=1, model="mlp"), [Federation("mnist", "none")]), tmp_path)
    for name in ("result.json", "curves.npz"):
        assert (tmp_path / f"held-{name}").read_text() == "old"
        assert (tmp_path / name).stat().st_size > 3
    assert len(list(tmp_path.iterdir())) == 4, "no temporary file is left over"


def test_a_limit_on_releases_needs_a_ledger_and_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(to_dict(Settings.flat(rounds=3, release_limit=2), FEDERATIONS[:1])))
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "out")]) == 11
    assert "compute keeps no ledger" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- public records alone -----------------------------------------------------------------------------------------

ALONE = Settings.flat(rounds=3, evaluate_every=2, model="mlp", clients=1, public_fraction=0.6)


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, Any]:
    data = str(write_pictures(tmp_path / "data" / "pictures"))
    return {**to_dict(ALONE, [Federation(data, "none", None, seed) for seed in (1, 2)]), "public": [8, 30]}


def test_public_records_alone_give_one_file_without_the_path_of_the_data(alone: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(alone))
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "out")]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["public.json"]
    text = (tmp_path / "out" / "public.json").read_text()
    assert str(tmp_path) not in text
    result = json.loads(text, parse_constant=refuse)
    federations = [Federation(**row) for row in alone["federations"]]
    rows = public_alone(ALONE, federations, [8, 30])
    assert result["federations"] == [{**row, "dataset": "pictures"} for row in rows]
    assert [(row["seed"], row["public"]) for row in rows] == [(1, 8), (2, 8), (1, 30), (2, 30)]
    named = [{**row, "dataset": "pictures"} for row in alone["federations"]]
    assert result["spec"] == {**alone, "federations": named}
    assert (result["schema"], result["experiment"]) == (1, "seeded")
    assert result["seconds"] > 0
    assert "environment" in result


def test_the_spec_that_was_given_is_not_changed(alone: dict[str, Any], tmp_path: Path) -> None:
    before = json.dumps(alone)
    compute_public(alone, tmp_path / "out")
    assert json.dumps(alone) == before


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"public": []}, 11, "public=[]"),
        ({"public": {"count": 8}}, 11, "public="),
        ({"public": [10**6]}, 12, "fewer than 1000000"),
        ({"settings": {**ALONE.plain(), "clients": 4}}, 11, "one client and no protection"),
        ({"multi_round": {}, "public": [8]}, 11, "Unknown key 'public'"),
        ({"audit": {}, "public": [8]}, 11, "Unknown key 'public'"),
    ],
    ids=str,
)
def test_what_cannot_be_trained_on_public_records_alone_is_refused(
    alone: dict[str, Any], change: dict[str, Any], code: int, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps({**alone, **change}))
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "out")]) == code
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
