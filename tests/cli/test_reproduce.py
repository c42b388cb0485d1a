"""``equipoise reproduce``: what it shows, computes, plans and refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise import compute
from equipoise.data.dataset import Dataset
from equipoise.environment import VERSION
from equipoise.reproduction import job as work
from equipoise.reproduction import plan
from equipoise.reproduction import reproduce as shell
from equipoise.reproduction.artefacts.registry import ARTEFACTS, needs
from equipoise.reproduction.claims import RULE
from equipoise.reproduction.plan import Scale
from tests.helpers import Command, Done, contents, document, entry_point

JUDGED = [name for name, artefact in ARTEFACTS.items() if artefact.judged]
FULL = Scale(
    name="full", seeds=(1, 2), rounds=2, evaluate_every=2, curve_every=2, gradient_every=2, full_every=2,
    iterations=2, attacked=1, pictured=2, inner_steps=(1,), inner_rates=(0.01,), baselines=False,
)  # fmt: skip
QUICK = Scale(
    name="quick", seeds=(1, 2), rounds=1, evaluate_every=1, curve_every=1, gradient_every=1, full_every=1,
    iterations=1, attacked=1, pictured=2, inner_steps=(1,), inner_rates=(0.01,), baselines=False,
)  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise reproduce ARGUMENTS`` by its entry point, in an empty folder."""
    equipoise = entry_point(tmp_path, monkeypatch, capfd)

    def run(*arguments: str | Path) -> Done:
        done = equipoise("reproduce", *arguments)
        assert not re.search(r"(epsilon|ε|delta|δ)\s*(=|:|of|≤|<=)\s*\d", done.out + done.err, re.IGNORECASE)
        return done

    return run


@pytest.fixture
def _tiny(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both scales take a moment."""
    monkeypatch.setattr("equipoise.engine.datasets.load_with", lambda name, **_: few)
    monkeypatch.setattr(plan, "FULL", FULL)
    monkeypatch.setattr(plan, "QUICK", QUICK)


@pytest.fixture
def _computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr(shell, "run", refuse)
    monkeypatch.setattr(work, "run", refuse)
    monkeypatch.setattr(shell, "write", refuse)


# --- where things stand ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_computes_nothing")
def test_the_status_as_json_is_the_documented_object(command: Command, tmp_path: Path) -> None:
    done = command("--status", "--json")
    assert done.code == 0
    result = document(done)
    assert list(result) == ["headline", "artefacts", "claims"]
    assert [row["name"] for row in result["artefacts"]] == JUDGED
    assert all(set(row) == {"name", "kind", "cells", "agree"} for row in result["artefacts"])
    assert all(set(row) == {"claim", "verdict", "evidence"} for row in result["claims"])
    assert result == shell.status(shell.committed())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_computes_nothing")
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_bare_reproduce_computes_nothing(command: Command, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.code == 0
    assert list(tmp_path.iterdir()) == []
    if arguments:
        assert document(done) == shell.status(shell.committed())
    else:
        assert "nothing was computed" in done.out


@pytest.mark.usefixtures("_computes_nothing")
def test_the_status_for_readers_names_every_artefact_and_verdict(command: Command) -> None:
    done = command("--status")
    assert done.code == 0
    assert all(name in done.out for name in JUDGED)
    assert sum(done.out.count(verdict) for verdict in ("holds", "fails", "not shown")) >= 16
    words = " ".join(done.out.split())
    assert all(line in words for line in shell.status(shell.committed())["headline"])
    assert " ".join(RULE.split()) in words
    assert "nothing was computed" not in done.out
    assert "no (epsilon, delta) is claimed" in " ".join(done.out.split())


@pytest.mark.usefixtures("_computes_nothing")
def test_the_status_of_a_folder_without_results_is_an_error(command: Command, tmp_path: Path) -> None:
    done = command("--status", "--out", tmp_path, "--json")
    assert done.code == 16
    assert json.loads(done.out)["error"]["type"] == "CheckpointError"


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_computes_nothing")
def test_an_unknown_artefact_is_an_error_of_its_own_code(command: Command, tmp_path: Path) -> None:
    done = command("layer")
    assert done.code == 11
    assert "Did you mean 'layers'?" in done.err
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []
    done = command("cap", "layer", "--json")
    assert done.code == 11
    error = json.loads(done.out)["error"]
    assert error["type"] == "ConfigError"
    assert "Did you mean 'layers'?" in error["cause"]
    assert all(name in error["remedy"] for name in ARTEFACTS)


@pytest.mark.usefixtures("_computes_nothing")
@pytest.mark.parametrize(
    "both",
    [
        ("--status", "--plan", "p.json"),
        ("--plan", "p.json", "--from", "OUT"),
        ("--status", "--from", "OUT"),
    ],
)
def test_status_plan_and_from_exclude_each_other(command: Command, tmp_path: Path, both: tuple[str, ...]) -> None:
    done = command("all", *both)
    assert done.code == 11
    assert "exclude each other" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_tiny")
def test_a_folder_of_something_else_is_an_error_of_its_own_code(command: Command, tmp_path: Path) -> None:
    (tmp_path / "reproduced").mkdir()
    (tmp_path / "reproduced" / "thesis.tex").write_text("years of work")
    done = command("layers", "--no-figures", "--json")
    assert done.code == 16
    assert json.loads(done.out)["error"]["type"] == "CheckpointError"
    assert contents(tmp_path) == {"reproduced/thesis.tex": b"years of work"}


@pytest.mark.usefixtures("_tiny")
def test_a_missing_matplotlib_is_named_before_anything_is_computed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = command("layers", "--json")
    assert done.code == 11
    assert "pip install -e '.[paper]'" in json.loads(done.out)["error"]["remedy"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_tiny")
def test_records_that_are_not_enough_are_an_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "OUT").mkdir()
    done = command("layers", "--from", "OUT", "--no-figures")
    assert done.code == 11
    assert "lack 8 federations of 'paper'" in done.err
    assert not (tmp_path / "reproduced").exists()


# --- planned here, computed elsewhere, scored here -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_a_plan_is_computed_elsewhere_and_scored_here(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = command("layers", "stepwise", "--plan", "SPEC.json", "--json")
    assert done.code == 0
    assert document(done) == {"jobs": 1, "federations": 12, "spec": "SPEC.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["SPEC.json"], "nothing was computed"
    spec = json.loads((tmp_path / "SPEC.json").read_text())
    assert list(spec) == ["reproduction"]
    assert (spec["reproduction"]["version"], spec["reproduction"]["schema"]) == (VERSION, plan.SCHEMA)

    assert compute.main([str(tmp_path / "SPEC.json"), str(tmp_path / "OUT")]) == 0
    assert "12 federations in" in capfd.readouterr().out
    (raw,) = (tmp_path / "OUT").iterdir()
    assert raw.name == f"{spec['reproduction']['jobs'][0]['name']}.json"
    before = contents(tmp_path / "OUT")
    assert compute.main([str(tmp_path / "SPEC.json"), str(tmp_path / "OUT")]) == 0
    assert contents(tmp_path / "OUT") == before, "a job whose file exists is not run again"

    done = command("layers", "stepwise", "--from", "OUT", "--no-figures", "--json")
    assert done.code == 0
    result = document(done)
    assert [row["name"] for row in result["artefacts"]] == ["layers", "stepwise"]
    assert result == shell.status(tmp_path / "reproduced")
    assert contents(tmp_path / "reproduced" / "raw") == before

    done = command("layers", "--out", "again", "--no-figures")  # all of it here
    assert done.code == 0
    one, two = (
        json.loads((tmp_path / folder / "layers/results.json").read_text()) for folder in ("reproduced", "again")
    )
    assert [(c["size"], c["verdict"]) for c in one["cells"]] == [
        (pytest.approx(c["size"], rel=1e-4), c["verdict"]) for c in two["cells"]
    ]

    done = command("layers", "--plan", "LESS.json", "--json")
    assert document(done)["jobs"] == 0, "the default folder holds it already"


@pytest.mark.usefixtures("_tiny")
def test_a_plan_for_readers_says_what_comes_next(command: Command) -> None:
    done = command("layers", "--plan", "SPEC.json", "--device", "cuda")
    assert done.code == 0
    assert "8 federations in 1 jobs: SPEC.json" in done.out
    assert "python -m equipoise.compute SPEC.json OUT/" in done.out
    (job,) = json.loads(Path("SPEC.json").read_text())["reproduction"]["jobs"]
    assert job["settings"]["device"] == "cuda"


@pytest.mark.usefixtures("_tiny", "_computes_nothing")
def test_a_plan_is_not_written_over_a_folder(command: Command, tmp_path: Path) -> None:
    done = command("layers", "--plan", tmp_path, "--json")
    assert done.code == 11
    assert "is a folder" in json.loads(done.out)["error"]["cause"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [{"version": "0.0.9"}, {"schema": 99}, {"jobs": None}, {"jobs": [{}]}],
    ids=["version", "schema", "no jobs", "no job"],
)
def test_compute_refuses_a_plan_of_another_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    spec = plan.spec(plan.jobs(needs(["layers"], FULL), FULL, "cpu"))
    spec["reproduction"].update(change)
    (tmp_path / "SPEC.json").write_text(json.dumps(spec))
    assert compute.main([str(tmp_path / "SPEC.json"), str(tmp_path / "OUT")]) == 11
    assert re.search(r"Write (it|the SPEC) again with (equipoise reproduce )?--plan", capsys.readouterr().err)
    assert not (tmp_path / "OUT").exists()


@pytest.mark.usefixtures("_tiny")
def test_compute_looks_at_every_job_before_it_runs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = plan.spec([*plan.jobs(needs(["layers"], FULL), FULL, "cpu"), {"name": "half"}])
    (tmp_path / "SPEC.json").write_text(json.dumps(spec))
    assert compute.main([str(tmp_path / "SPEC.json"), str(tmp_path / "OUT")]) == 11
    assert "lacks 'group'" in capsys.readouterr().err
    assert not (tmp_path / "OUT").exists()


# --- computed here ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_tiny")
def test_quick_results_go_into_a_folder_of_their_own_and_are_marked(command: Command, tmp_path: Path) -> None:
    done = command("layers", "--quick")
    assert done.code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["reproduced-quick"]
    assert "scale quick: 1 rounds, 2 seeds" in done.out
    assert "paper: 8 federations on cpu" in done.out
    assert "page: reproduced-quick/index.html" in done.out
    for name in ("index.html", "README.md", "layers/README.md", "layers/figure.svg"):
        assert "QUICK" in (tmp_path / "reproduced-quick" / name).read_text(), name
    before = contents(tmp_path)
    done = command("layers", "--out", "reproduced-quick", "--json")  # a full run into the same folder
    assert done.code == 16
    assert contents(tmp_path) == before


@pytest.mark.usefixtures("_tiny")
def test_a_run_prints_one_document_and_the_summary_says_when_all_is_there(command: Command, tmp_path: Path) -> None:
    done = command("layers", "--no-figures", "--json")
    assert done.code == 0
    assert document(done) == shell.status(tmp_path / "reproduced")
    done = command("layers", "--no-figures")
    assert done.code == 0
    assert "everything is there already" in done.out


@pytest.mark.usefixtures("_tiny")
def test_interrupted_it_says_how_to_go_on(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shell, "run", interrupt)
        done = command("layers", "--no-figures")
    assert done.code == 130
    assert "run the same command again" in done.err
    assert command("layers", "--no-figures", "--json").code == 0


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_an_error(command: Command, device: str) -> None:
    done = command("layers", "--no-figures", "--device", device, "--json")
    assert done.code == 11
    assert device in json.loads(done.out)["error"]["cause"]
    if device == "gpu":
        assert not Path("reproduced").exists()
