"""What a seeded run writes into its ledger, and where a limit on releases ends it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.data.dataset import Dataset
from equipoise.engine.draws import Draws
from equipoise.engine.federation import Federation
from equipoise.engine.tables import Tables
from equipoise.runs.config import Config, SweepBlock
from equipoise.runs.entries import last_round, round_entries
from equipoise.runs.run import Run
from tests.engine.sweeps import small, sweep_of
from tests.runs.small_run import FEDERATIONS, ROUNDS, changed, lines_of


def test_the_ledger_has_a_line_per_round_and_federation(whole: Path, config: Config) -> None:
    lines = lines_of(whole)
    assert lines[0]["experiment"] == "seeded"
    assert [(line["round"], line["federation"]) for line in lines[1:]] == [
        (round_number, federation) for round_number in range(1, ROUNDS + 1) for federation in range(len(FEDERATIONS))
    ]
    assert all(line["kind"] == "round" for line in lines[1:])
    for line in lines[1:]:
        name, budget = FEDERATIONS[line["federation"]]
        assert (line["mechanism"], line["budget"]) == (name, budget)
        assert line["norm"] == ("l2" if name == "pl-learn" else None)
        assert [row["client"] for row in line["releases"]] == ["0", "1", "2", "3"]
        low = {0.98: 7.99975, 0.99: 3.99975, None: 0.0}[budget]
        for row in line["releases"]:
            assert (row["lower"], row["upper"], row["accepted"]) == (low, 2 * low, True)
            assert low * (1 - 1e-4) <= row["intensity"] <= 2 * low * (1 + 1e-4)
    last = json.loads((whole / "result.json").read_text())["federations"]
    for line, result in zip(lines[-len(FEDERATIONS) :], last, strict=True):
        assert [row["intensity"] for row in line["releases"]] == pytest.approx(result["final_intensity"], rel=1e-6)


def test_drawn_noise_is_recorded_by_its_scale_and_a_guarantee_without_the_norm_of_its_noise(
    config: Config, tiny: Path, tmp_path: Path
) -> None:
    plan = {"rounds": [1, 2], "values": [80, [80, 100, 200, 400]]}
    data = [str(tiny)]
    blocks = [SweepBlock(data, ["ls-learn"], [plan]), SweepBlock(data, ["laplace-dp"], [1000.0])]
    Run(tmp_path, replace(changed(config, rounds=2, participants=3), sweep=blocks)).execute()
    lines = lines_of(tmp_path)[1:]
    assert [line["budget"] for line in lines] == [80.0, 1000.0, [80.0, 100.0, 200.0, 400.0], 1000.0]
    for line in lines:
        clients = [int(row["client"]) for row in line["releases"]]
        assert clients == sorted(set(clients))
        assert len(clients) == 3
        for row in line["releases"]:
            assert list(row) == ["client", "lower", "upper", "scale", "intensity", "accepted"]
            assert (row["lower"], row["upper"]) == (None, None)
            if line["mechanism"] == "laplace-dp":
                assert (row["scale"], row["intensity"]) == (0.025, None)
                continue
            budget = line["budget"] if line["round"] == 1 else line["budget"][int(row["client"])]
            assert row["scale"] == pytest.approx(10 / budget, rel=1e-6)
            assert 13000 * row["scale"] < row["intensity"] < 28000 * row["scale"]  # P = 13,426; up to twice the draw


def test_a_release_that_is_refused_is_in_the_ledger_with_its_reason(config: Config, tmp_path: Path) -> None:
    Run(tmp_path, changed(config, eta=1e38, rounds=2)).execute()
    rows = [(line["mechanism"], row) for line in lines_of(tmp_path)[1:] for row in line["releases"]]
    refused = [(name, row) for name, row in rows if not row["accepted"]]
    assert {name for name, _ in refused} == {"none", "pl-learn"}
    assert {row["reason"] for _, row in refused} <= {"not finite", "out of bounds"}
    assert all(row["reason"] == "not finite" for name, row in refused if name == "none")
    result = json.loads((tmp_path / "result.json").read_text())["federations"]
    assert sum(row["releases_refused"] for row in result) == len(refused)


def test_noise_that_was_lost_in_rounding_is_out_of_bounds(config: Config, tiny: Path, tmp_path: Path) -> None:
    blocks = [SweepBlock([str(tiny)], ["pl-identical"], [0.999])]
    Run(tmp_path, replace(changed(config, rounds=1, init_bound=1e9, model="mlp"), sweep=blocks)).execute()
    for row in lines_of(tmp_path)[1]["releases"]:
        assert (row["accepted"], row["reason"]) == (False, "out of bounds")
        assert row["intensity"] < row["lower"]


@pytest.mark.parametrize("participants", [None, 1, 2, 4])
@pytest.mark.parametrize("limit", [None, 1, 7, 20, 21])
def test_the_last_round_is_the_one_after_which_a_client_would_pass_the_limit(
    participants: int | None, limit: int | None
) -> None:
    draws = Draws([3, 8], 5, participants)
    counts, expected = torch.zeros(2, 5), 20
    for round_number in range(1, 21):
        for seed, clients in enumerate(draws.participants([round_number])[0]):
            counts[seed, clients] += 1
        if limit is not None and counts.max() > limit:
            expected = round_number - 1
            break
    assert last_round(draws, 20, limit) == expected


# --- one line, by hand -----------------------------------------------------------------------------------------


def table(federations: int, **change: Any) -> Any:
    """What one round recorded: scale 2, intensity 3 and acceptance of every client, but for ``change``."""
    filled = {"scale": 2.0, "intensity": 3.0, "accepted": True} | change
    full = {name: torch.as_tensor(value).expand(1, federations, 4) for name, value in filled.items()}
    empty = {part.name: torch.empty(0) for part in fields(Tables) if part.name not in full}
    return Tables(**full, **empty)


def test_entries_come_in_the_callers_order_with_the_round_they_are_of(few: Dataset) -> None:
    federations = [Federation("few", m, b) for m, b in (("pl-learn", 0.98), ("none", None), ("pl-learn", 0.96))]
    sweep = sweep_of(few, federations, small())
    lines = list(round_entries(sweep, [7], table(3)))
    assert [(line["federation"], line["round"]) for line in lines] == [(0, 7), (1, 7), (2, 7)]
    assert [(line["mechanism"], line["budget"]) for line in lines] == [
        ("pl-learn", 0.98), ("none", None), ("pl-learn", 0.96),
    ]  # fmt: skip
    assert json.loads(json.dumps(lines)) == lines, "plain values alone"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pl-learn", {"lower": 2.0, "upper": 5.0, "intensity": 3.0}),
        ("none", {"lower": 2.0, "upper": 2.0, "intensity": 3.0}),  # in a real round all of them are 0
        ("ls-static", {"lower": None, "upper": None, "scale": 2.0, "intensity": 3.0}),
        ("gs-learn", {"lower": None, "upper": None, "scale": 2.0, "intensity": 3.0}),
        ("laplace-dp", {"lower": None, "upper": None, "scale": 2.0, "intensity": None}),
    ],
)
def test_what_is_said_of_a_release(few: Dataset, name: str, expected: dict[str, Any]) -> None:
    budget = None if name == "none" else 0.9
    sweep = sweep_of(few, [Federation("few", name, budget)], small(), factor=2.5)
    (line,) = round_entries(sweep, [1], table(1))
    assert [row["client"] for row in line["releases"]] == ["0", "1", "2", "3"]
    for row in line["releases"]:
        assert {key: value for key, value in row.items() if key != "client"} == {**expected, "accepted": True}


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("pl-learn", 9.0, "out of bounds"),
        ("pl-learn", float("nan"), "not finite"),
        ("ls-static", float("inf"), "not finite"),
        ("none", 0.0, "not finite"),  # without a distortion there are no bounds
    ],
)
def test_a_refused_release_has_a_reason(few: Dataset, name: str, size: float, reason: str) -> None:
    sweep = sweep_of(few, [Federation("few", name, None if name == "none" else 0.9)], small())
    accepted = torch.tensor([True, False, True, True])
    (line,) = round_entries(sweep, [1], table(1, intensity=size, accepted=accepted))
    assert [row.get("reason") for row in line["releases"]] == [None, reason, None, None]
