"""``bounds_run`` on small run folders: what it gathers, writes and refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.bounds.context import BoundsContext
from equipoise.bounds.options import BoundsOptions
from equipoise.bounds.page import page
from equipoise.bounds.run import Bounds, bounds_run, context_of
from equipoise.errors import CheckpointError, ConfigError
from equipoise.runs.config import resolve
from equipoise.runs.folder import RunFolder
from equipoise.runs.run import Run
from tests.audit_helpers import settings_for, train_run
from tests.bounds.runs import CHEAP, MECHANISMS, rows

RESULTS = {
    "distortion_stationarity", "convex_suboptimality", "one_step", "converge_rate", "privacy_leakage",
    "conditional_preservation",
}  # fmt: skip
STATUSES = {"applies", "applies in part", "does not apply", "not covered", "not checkable"}
OF_ASSUMPTIONS = {"held", "violated", "not checkable", "not covered"}


def figures(value: Any) -> Iterator[dict[str, Any]]:
    """Everything that has a value and a count, wherever it is."""
    if isinstance(value, dict):
        if {"value", "count"} <= set(value):
            yield value
        for part in value.values():
            yield from figures(part)
    elif isinstance(value, list):
        for part in value:
            yield from figures(part)


# --- what is reported -------------------------------------------------------------------------------------------


def test_every_federation_has_every_result(result: Bounds) -> None:
    assert result.content["schema"] == 1
    assert result.content["rounds"] == [0, 2, 3]
    assert all("/" not in row["dataset"] for row in result.content["bounds"]), "by its name, not by its path"
    for name in MECHANISMS:
        assert {one["result"] for one in result.rows if one["mechanism"] == name} == RESULTS
    order = list(dict.fromkeys(one["mechanism"] for one in result.rows))
    assert order == list(MECHANISMS)  # as configured, not as the sweep groups them
    for one in result.rows:
        assert one["status"] in STATUSES
        assert one["holds"] in (True, False, None)
        assert one["assumptions"], one["result"]
        assert {check["status"] for check in one["assumptions"]} <= OF_ASSUMPTIONS
        assert one["status"] != "applies" or all(check["status"] != "violated" for check in one["assumptions"])
        assert one["status"] == "applies" or one["reason"]
        assert one["bound"] is not None or one["holds"] is None


def test_rows_follow_the_paper_and_then_the_rounds(result: Bounds) -> None:
    mine = [one for one in result.rows if one["mechanism"] == "pl-learn"]
    assert list(dict.fromkeys(one["result"] for one in mine)) == [
        "distortion_stationarity", "convex_suboptimality", "one_step", "converge_rate", "privacy_leakage",
        "conditional_preservation",
    ]  # fmt: skip
    assert [one["round"] for one in mine if one["result"] == "one_step"] == [0, 0, 2, 2, 3, 3]


def test_every_number_has_a_count_and_every_mean_an_interval(result: Bounds) -> None:
    seen = list(figures(result.content))
    assert len(seen) > 200
    for one in seen:
        assert one["count"] >= 1
        if one["kind"] == "mean":
            assert (one["low"], one["high"]) == (None, None) or one["low"] <= one["value"] <= one["high"]
            assert (one["count"] == 1) == (one["low"] is None) == (one["error"] is None), "a single one has none"
    assert sum(one["kind"] == "mean" and one["count"] > 1 for one in seen) > 50


def test_claims_say_what_is_proved_measured_and_not_claimed(result: Bounds) -> None:
    assert set(result.content["claims"]) == {"proved", "measured", "not claimed"}
    words = (json.dumps(result.content) + page(result.content).split("<body>")[1].split("<script")[0]).lower()
    assert "epsilon" not in words


def test_no_path_of_the_data_is_kept(result: Bounds, pictures: Path) -> None:
    assert str(pictures) not in json.dumps(result.content)
    assert {one["dataset"] for one in result.rows} == {pictures.name}


def test_twice_the_same(result: Bounds, run: Path) -> None:
    assert bounds_run(run, CHEAP).content == result.content


def test_progress_is_told(run: Path) -> None:
    seen: list[tuple[str, float]] = []
    bounds_run(run, replace(CHEAP, snapshots=[0]), lambda what, amount: seen.append((what, amount)))
    assert any("invgrad" in what for what, _ in seen)
    assert all(amount > 0 for _, amount in seen)


# --- what is read -----------------------------------------------------------------------------------------------


def test_the_last_snapshot_is_read_whatever_is_asked_for(run: Path) -> None:
    context = context_of(RunFolder(run), replace(CHEAP, snapshots=[2, 0, 2]))
    assert (context.snapshots, sorted(context.weights), context.last) == ([0, 2], [0, 2, 3], 3)


def test_weights_follow_the_order_of_the_sweep(context: BoundsContext, run: Path) -> None:
    configured = RunFolder(run).config.federations()
    saved = RunFolder(run).weights(2, context.sweep.batched.layout)
    for index, fed in enumerate(context.sweep.federations):
        assert torch.equal(context.weights[2][index], saved[configured.index(fed)])


def test_what_is_no_run_folder_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run folder"):
        bounds_run(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with pytest.raises(ConfigError, match="There is no snapshot of round 7"):
        bounds_run(copy, BoundsOptions(snapshots=[0, 7]))
    (copy / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"Line 1 of metrics\.jsonl"):
        bounds_run(copy)
    (copy / "metrics.jsonl").write_text("{\n")
    with pytest.raises(CheckpointError, match="damaged"):
        bounds_run(copy)
    shutil.rmtree(copy / "snapshots")
    with pytest.raises(CheckpointError, match="no snapshots"):
        bounds_run(copy)
    assert not list(copy.glob("bounds.*"))


def test_impossible_options_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samples=1"):
        bounds_run(tmp_path, BoundsOptions(samples=1))


def test_a_run_without_metrics_leaves_the_whole_run_unchecked(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "metrics.jsonl").unlink()
    result = bounds_run(copy, replace(CHEAP, snapshots=[0], targets=0))
    own = rows(result, "converge_rate", setting="as configured")
    assert {one["status"] for one in own} == {"not checkable"}
    assert all("0 of 3 rounds" in one["reason"] for one in own)


# --- what is written --------------------------------------------------------------------------------------------


def test_files_are_whole(result: Bounds, tmp_path: Path) -> None:
    written = result.save(tmp_path)
    assert [path.name for path in written] == ["bounds.json", "bounds.html"]
    text = written[0].read_text()
    assert json.loads(text)["bounds"][0]["mechanism"] == "pl-learn"
    assert "NaN" not in text
    assert "Infinity" not in text
    assert "Plotly.newPlot" in written[1].read_text()
    assert not list(tmp_path.glob(".*"))


def test_a_fresh_run_removes_older_bounds(pictures: Path, tmp_path: Path, result: Bounds) -> None:
    folder = train_run(tmp_path / "run", pictures, ("none",))
    result.save(folder)
    sweep = {"datasets": [str(pictures)], "mechanisms": ["none"]}
    Run(folder, resolve(overrides=settings_for(), sweep=sweep), fresh=True).execute()
    assert not list(folder.glob("bounds.*"))
