"""The folder of results: whose it is, what it says, and that nothing foreign is ever touched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.environment import VERSION
from equipoise.errors import CheckpointError, ConfigError, EquipoiseError
from equipoise.files import locked, write_json
from equipoise.reproduction import reproduce as shell
from equipoise.reproduction.artefacts.registry import ARTEFACTS, needs
from equipoise.reproduction.headline import headline
from equipoise.reproduction.plan import FULL, SCHEMA, Scale
from equipoise.reproduction.records import Records, read
from tests.helpers import contents
from tests.reproduction.conftest import Small, small_data
from tests.reproduction.synthetic import SCALE, content

KINDS = {name: artefact.kind for name, artefact in ARTEFACTS.items() if artefact.judged}
TINY = Scale(
    name="full", seeds=(1, 2), rounds=2, evaluate_every=2, curve_every=2, gradient_every=2, full_every=2,
    iterations=2, attacked=1, pictured=2, inner_steps=(1,), inner_rates=(0.01,), baselines=False,
)  # fmt: skip
SUMMARIES = ["gaps", "cap", "defence-ls"]
"""Artefacts that synthetic records of the group ``paper`` are enough for."""


def everything(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with its bytes: hidden files, locks and empty folders too."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a raw file of the scale SCALE, as ``compute`` leaves it."""
    folder = tmp_path_factory.mktemp("records") / "OUT"
    folder.mkdir()
    (folder / "paper-00000001.json").write_text(json.dumps(content("paper-00000001")))
    return folder


@pytest.fixture(scope="module")
def made(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder that was really computed."""
    out = tmp_path_factory.mktemp("made") / "reproduced"
    with small_data(small):
        shell.reproduce(["layers"], TINY, out, draw=False)
    return out


# --- status ----------------------------------------------------------------------------------------------------------


def test_the_status_of_the_committed_results(committed: Path) -> None:
    result = shell.status(committed)
    assert list(result) == ["headline", "artefacts", "claims"]
    assert result["headline"] == headline(shell.results(committed))
    assert [row["name"] for row in result["artefacts"]] == list(KINDS)
    for row in result["artefacts"]:
        assert list(row) == ["name", "kind", "cells", "agree"]
        assert row["kind"] == KINDS[row["name"]]
        assert type(row["cells"]) is type(row["agree"]) is int
        assert 0 <= row["agree"] <= row["cells"] > 0
    cells = {kind: sum(row["cells"] for row in result["artefacts"] if row["kind"] == kind) for kind in KINDS.values()}
    agree = {kind: sum(row["agree"] for row in result["artefacts"] if row["kind"] == kind) for kind in KINDS.values()}
    assert cells["accuracy"] == 40
    assert agree["accuracy"] >= 32
    assert cells["defence"] == 80
    assert len(result["claims"]) == 16
    for claim in result["claims"]:
        assert list(claim) == ["claim", "verdict", "evidence"]
        assert claim["verdict"] in ("holds", "fails", "not shown")
        assert claim["claim"]
        assert claim["evidence"]
    assert json.loads(json.dumps(result)) == result


def test_the_status_counts_the_results_themselves(committed: Path, tmp_path: Path) -> None:
    """Not a number that somebody wrote down: a verdict that changes in the results changes in the status."""
    folder = tmp_path / "reproduction"
    shutil.copytree(committed, folder, ignore=shutil.ignore_patterns("raw", "*.svg", "*.html"))
    path = folder / "gaps" / "results.json"
    result = json.loads(path.read_text())
    for cell in result["cells"]:
        cell["agrees"] = False
    path.write_text(json.dumps(result))
    before, after = shell.status(committed), shell.status(folder)
    assert next(row["agree"] for row in before["artefacts"] if row["name"] == "gaps") > 0
    assert next(row["agree"] for row in after["artefacts"] if row["name"] == "gaps") == 0
    shutil.rmtree(folder / "gaps")
    assert [row["name"] for row in shell.status(folder)["artefacts"]] == [name for name in KINDS if name != "gaps"]
    assert len(shell.status(folder)["claims"]) == 15


def test_reading_the_status_writes_nothing(committed: Path) -> None:
    before = everything(committed)
    shell.status(committed)
    assert everything(committed) == before


@pytest.mark.parametrize("mark", ["{", "[]", '{"schema": 1, "version": "9.9.9", "scale": "full"}', '{"schema": 1}'])
def test_a_folder_of_another_version_has_no_status(made: Path, tmp_path: Path, mark: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    (folder / shell.MARK).write_text(mark)
    with pytest.raises(CheckpointError):
        shell.status(folder)


def test_a_folder_without_results_has_no_status(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="There are no results in"):
            shell.status(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read"), ("[]", "cannot be read"), ("{}", "cannot be read"),
     ('{"schema": 1, "version": "0.1.0", "cells": [{}]}', "cannot be read"),
     ('{"schema": 1, "version": "9.9.9", "cells": []}', "version 9.9.9"),
     ('{"schema": 7, "version": "0.1.0", "cells": []}', "schema 7")],
)  # fmt: skip
def test_damaged_or_foreign_results_are_an_error(made: Path, tmp_path: Path, text: str, said: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    (folder / "layers" / "results.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        shell.status(folder)


# --- where the committed results are ---------------------------------------------------------------------------------


def test_the_committed_results_are_found_from_anywhere(committed: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert shell.committed() == committed
    (tmp_path / "reproduction").mkdir()
    assert shell.committed() == committed, "a folder of that name alone is not it"
    (tmp_path / "reproduction" / shell.MARK).write_text("{}")
    assert shell.committed() == Path("reproduction")


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shell, "checkout", lambda: None)
    assert shell.commit() is None
    monkeypatch.setattr(shell, "checkout", lambda: tmp_path)  # no repository
    assert shell.commit() is None

    def missing(*arguments: Any, **options: Any) -> Any:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert shell.commit() is None


# --- computing -------------------------------------------------------------------------------------------------------


def test_one_artefact_is_computed_scored_and_written(made: Path) -> None:
    result = contents(made)
    raw = [name for name in result if name.startswith("raw/")]
    assert len(raw) == 1
    assert set(result) - set(raw) == {"reproduction.json", "README.md", "index.html", "layers/README.md",
                                     "layers/results.json"}  # fmt: skip
    assert json.loads(result["reproduction.json"]) == {"schema": SCHEMA, "version": VERSION, "scale": "full"}
    results = json.loads(result["layers/results.json"])
    assert (results["schema"], results["version"], results["scale"]) == (SCHEMA, VERSION, "full")
    assert (results["name"], results["kind"]) == ("layers", "figure")
    assert results["command"] == "equipoise reproduce layers"
    assert len(results["cells"]) == 32
    (origin,) = results["origins"]
    assert origin["federations"] == len(needs(["layers"], TINY)["paper"]) == 8
    assert origin["environment"]["equipoise"] == VERSION
    assert read([made / "raw"], TINY).measured["paper"].keys() == needs(["layers"], TINY)["paper"].keys()
    assert [row["name"] for row in shell.status(made)["artefacts"]] == ["layers"]


def test_what_exists_is_not_computed_again(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "reproduced"
    shutil.copytree(made, folder)

    def refuse(*arguments: Any) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr(shell, "run", refuse)
    before = contents(folder)
    status = shell.reproduce(["layers"], TINY, folder, draw=False)
    assert contents(folder) == before
    assert status == shell.status(made)
    assert shell.plan(["layers"], TINY, "cpu", folder)["reproduction"]["jobs"] == []
    with pytest.raises(AssertionError, match="computed"):
        shell.reproduce(["stepwise"], TINY, folder, draw=False)


def test_a_plan_leaves_out_what_the_folder_holds(made: Path, tmp_path: Path) -> None:
    (job,) = shell.plan(["layers", "stepwise"], TINY, "cpu", made)["reproduction"]["jobs"]
    assert {tuple(names) for names in job["measures"]} == {("utility",)}
    (whole,) = shell.plan(["layers", "stepwise"], TINY, "cpu", tmp_path / "nowhere")["reproduction"]["jobs"]
    assert len(whole["federations"]) > len(job["federations"])
    assert not (tmp_path / "nowhere").exists()


def test_results_are_the_same_whichever_way_they_came(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "scored"
    status = shell.reproduce(["layers"], TINY, out, sources=[made / "raw"], draw=False)
    assert contents(out) == contents(made)
    assert status == shell.status(made)


def test_only_one_process_works_in_a_folder(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reproduced"
    shutil.copytree(made, folder)
    with locked(folder), pytest.raises(CheckpointError, match="Another process"):
        shell.reproduce(["layers"], TINY, folder, draw=False)


# --- from given records ----------------------------------------------------------------------------------------------


def test_given_records_are_scored_and_copied(records: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status = shell.reproduce(SUMMARIES, SCALE, out, sources=[records], draw=False)
    assert {row["name"] for row in status["artefacts"]} == set(SUMMARIES)
    assert contents(out / "raw") == contents(records)
    assert sorted(path.parent.name for path in out.glob("*/results.json")) == sorted(SUMMARIES)


def test_records_that_lack_federations_are_an_error_that_says_what(records: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        shell.reproduce(["all"], SCALE, tmp_path / "out", sources=[records], draw=False)
    lacking = {group: len(federations) for group, federations in needs(ARTEFACTS, SCALE).items() if group != "paper"}
    for group, count in lacking.items():
        assert f"{count} federations of {group!r}" in str(caught.value)
    assert "'paper'" not in str(caught.value)
    assert everything(tmp_path) == {}, "nothing was written"


def test_records_that_lack_a_measurement_are_an_error(records: Path, tmp_path: Path) -> None:
    folder = tmp_path / "OUT"
    folder.mkdir()
    result = json.loads((records / "paper-00000001.json").read_text())
    result["measures"] = [[name for name in names if name != "gradients"] for names in result["measures"]]
    (folder / "paper-00000001.json").write_text(json.dumps(result))
    shell.reproduce(["cap"], SCALE, tmp_path / "fine", sources=[folder], draw=False)
    with pytest.raises(ConfigError, match="lack 18 federations of 'paper'"):
        shell.reproduce(["gradient-norm"], SCALE, tmp_path / "lacking", sources=[folder], draw=False)


def test_what_the_folder_holds_counts_beside_what_is_given(records: Path, tmp_path: Path) -> None:
    out, more = tmp_path / "out", tmp_path / "more"
    shell.reproduce(["cap"], SCALE, out, sources=[records], draw=False)
    more.mkdir()
    (more / "damped-00000001.json").write_text(json.dumps(content("damped-00000001", group="damped")))
    (more / "eleven.json").write_text(json.dumps(content("eleven", group="eleven-steps")))
    shell.reproduce(["accuracy-ls"], SCALE, out, sources=[more], draw=False)
    assert set(contents(out / "raw")) == {"paper-00000001.json", "damped-00000001.json", "eleven.json"}


def test_another_file_of_the_same_name_is_not_replaced(records: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    shell.reproduce(["cap"], SCALE, out, sources=[records], draw=False)
    other.mkdir()
    (other / "paper-00000001.json").write_text(json.dumps({**content("paper-00000001"), "seconds": 1.0}))
    before = everything(out)
    with pytest.raises(CheckpointError, match=r"holds another paper-00000001\.json"):
        shell.reproduce(["cap"], SCALE, out, sources=[other], draw=False)
    assert everything(out) == before


# --- what is refused, with not one byte changed ----------------------------------------------------------------------


def other_mark(**change: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        mark = json.loads((folder / shell.MARK).read_text())
        (folder / shell.MARK).write_text(json.dumps({**mark, **change}))

    return apply


def foreign(folder: Path) -> None:
    shutil.rmtree(folder)
    (folder / "thesis").mkdir(parents=True)
    (folder / "thesis" / "chapter.tex").write_text("years of work")


def broken_mark(folder: Path) -> None:
    (folder / shell.MARK).write_text("{")


def lost_mark(folder: Path) -> None:
    (folder / shell.MARK).unlink()


def listed_mark(folder: Path) -> None:
    (folder / shell.MARK).write_text("[1]")


REFUSED: list[tuple[Callable[[Path], None], str]] = [
    (other_mark(version="0.0.9"), "version 0.0.9"),
    (other_mark(schema=SCHEMA + 1), f"schema {SCHEMA + 1}"),
    (other_mark(scale="quick"), "scale quick"),
    (foreign, "not empty and holds no readable"),
    (broken_mark, "not empty and holds no readable"),
    (lost_mark, "not empty and holds no readable"),
    (listed_mark, "not empty and holds no readable"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
@pytest.mark.parametrize("given", [True, False], ids=["scoring", "computing"])
def test_a_folder_of_something_else_is_refused_and_not_touched(
    made: Path, tmp_path: Path, change: Callable[[Path], None], said: str, given: bool
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns(".lock"))
    change(folder)
    before = everything(folder)
    with pytest.raises(CheckpointError, match=said) as caught:
        shell.reproduce(["layers"], TINY, folder, sources=[made / "raw"] if given else [], draw=False)
    assert "Choose another --out" in caught.value.remedy
    assert everything(folder) == before


def test_a_file_in_the_place_of_the_folder_is_refused(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(EquipoiseError):
        shell.reproduce(["layers"], TINY, path, sources=[made / "raw"], draw=False)
    assert path.read_text() == "mine"


def test_an_empty_folder_is_taken(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    shell.reproduce(["layers"], TINY, folder, sources=[made / "raw"], draw=False)
    assert shell.status(folder) == shell.status(made)


@pytest.mark.parametrize("change", [{"rounds": 3}, {"name": "quick"}, {"seeds": (1, 3)}])
def test_given_records_of_another_scale_are_refused_before_anything_is_written(
    made: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError, match="scale"):
        shell.reproduce(["layers"], replace(TINY, **change), tmp_path / "out", sources=[made / "raw"], draw=False)
    assert everything(tmp_path) == {}


def test_one_bad_file_among_the_given_ones_stops_everything(made: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(made / "raw", source)
    (source / "zzz.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"zzz\.json"):
        shell.reproduce(["layers"], TINY, tmp_path / "out", sources=[made / "raw", source], draw=False)
    assert not (tmp_path / "out").exists()


def test_an_unknown_artefact_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'layers'"):
        shell.reproduce(["layer"], TINY, tmp_path / "out")
    assert everything(tmp_path) == {}


@pytest.mark.parametrize("device", ["gpu", "cpu:0", "", "cuda:x"])
def test_an_unknown_device_is_an_error_before_anything_is_written(tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="device="):
        shell.reproduce(["layers"], TINY, tmp_path / "out", device=device, draw=False)
    with pytest.raises(ConfigError, match="device="):
        shell.plan(["layers"], TINY, device)
    assert everything(tmp_path) == {}


# --- without matplotlib ----------------------------------------------------------------------------------------------


def test_without_matplotlib_nothing_is_written_and_the_extra_is_named(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[paper\]'"):
        shell.reproduce(["cap"], SCALE, tmp_path / "out", sources=[records])
    assert everything(tmp_path) == {}


def test_without_figures_matplotlib_is_not_needed(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shell.reproduce(["cap"], SCALE, tmp_path / "out", sources=[records], draw=False)
    assert list((tmp_path / "out").rglob("*.svg")) == []
    assert "figure.svg" not in (tmp_path / "out" / "cap" / "README.md").read_text()
    assert "<svg" not in (tmp_path / "out" / "index.html").read_text()


def test_with_figures_they_are_drawn(records: Path, tmp_path: Path) -> None:
    shell.reproduce(["cap"], SCALE, tmp_path / "out", sources=[records])
    assert "<svg" in (tmp_path / "out" / "cap" / "figure.svg").read_text()
    assert "<svg" in (tmp_path / "out" / "index.html").read_text()


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_grows_with_the_folder(records: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for names in (["cap"], ["gaps"]):
        shell.reproduce(names, SCALE, out, sources=[records], draw=False)
    text = (out / "index.html").read_text()
    assert '<h2 id="cap">' in text
    assert '<h2 id="gaps">' in text
    assert text.index('<h2 id="gaps">') < text.index('<h2 id="cap">'), "in the order of the paper"


def test_the_head_says_seeds_commit_and_device(records: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shell.reproduce(["cap"], SCALE, out, sources=[records], draw=False)
    text = (out / "README.md").read_text()
    assert f"equipoise {VERSION}; 3 seeds; Computed at commit abc1234 on cpu: 12 s" in text


def test_quick_results_say_so_in_their_command_and_status(quick_page: Path, committed: Path) -> None:
    assert json.loads((quick_page / "cap" / "results.json").read_text())["command"].endswith("cap --quick")
    assert all(claim["evidence"].startswith("QUICK") for claim in shell.status(quick_page)["claims"])
    assert not any("QUICK" in claim["evidence"] for claim in shell.status(committed)["claims"])


def test_the_configuration_needs_no_records(tmp_path: Path) -> None:
    result = shell.reproduce(["configuration"], FULL, tmp_path / "out", draw=False)
    assert result == {"headline": [], "artefacts": [], "claims": []}
    written = json.loads((tmp_path / "out/configuration/results.json").read_text())
    assert len(written["rows"]) > 20
    assert "Nothing is computed for it." in (tmp_path / "out/configuration/README.md").read_text()


def test_only_what_is_computed_names_where(quick_page: Path) -> None:
    for name, artefact in ARTEFACTS.items():
        origins = json.loads((quick_page / name / "results.json").read_text())["origins"]
        assert bool(origins) == (artefact.needs is not None)


def test_a_figure_of_other_numbers_does_not_stay(tmp_path: Path, committed_records: Records) -> None:
    write_json(tmp_path / shell.MARK, {"schema": SCHEMA, "version": VERSION, "scale": "full"})
    shell.write(["cap"], committed_records, tmp_path, draw=True)
    assert (tmp_path / "cap" / "figure.svg").is_file()
    shell.write(["cap"], committed_records, tmp_path, draw=False)
    assert not (tmp_path / "cap" / "figure.svg").exists()
    assert "figure.svg" not in (tmp_path / "README.md").read_text()
