"""The study of the norm check: its figures follow from the committed values, and say what the pages say of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from equipoise.auditing.store import unpacked
from equipoise.auditing.targets import Materials, build_targets
from equipoise.mechanism.protection import ProtectionSettings
from tests.attack.candidates import CLASSES, images_of, server_of
from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "norm"


@cache
def script() -> ModuleType:
    return load_script(HERE / "run.py")


@cache
def whole() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((HERE / "norm.json").read_text())
    return result


def rows(sent: str, rule: str = "norm check") -> list[dict[str, Any]]:
    found = [row for row in whole()["rows"] if (row["sent"], row["rule"]) == (sent, rule)]
    assert len(found) == 8, "two datasets, two budgets, two rounds"
    return found


def chance(row: dict[str, Any]) -> float:
    return 1 / int(whole()["candidates"][row["dataset"]])


def test_every_figure_follows_from_the_values_of_every_release() -> None:
    again = script().rows_of(unpacked((HERE / "values.npz").read_bytes()))
    assert json.loads(json.dumps(again)) == whole()["rows"]
    assert {row["releases"] for row in again} == {200}
    assert {row["right_guesses"] for row in again} == {800}
    for row in rows("float32"):
        assert row["lower"] == ProtectionSettings().at("pl-identical", row["budget"], 1).scale


def test_an_exact_norm_accepts_every_right_guess_and_hardly_a_wrong_one() -> None:
    for row in rows("float32"):
        assert row["accepted"] == 1.0
        assert row["accepted_wrongly"] < 0.01
        assert row["verified_low"] > 0.9


def test_the_controls_hold() -> None:
    """No noise hides nothing; an impostor is picked as often as chance has it, in nineteen of twenty intervals."""
    for row in rows("none"):
        assert (row["verified"], row["accepted"], row["accepted_wrongly"]) == (1.0, 1.0, 0.0)
    checked = [row for row in whole()["rows"] if row["rule"] == "norm check"]
    missed = [
        row for row in checked
        if not row["impostor_verified_low"] <= 1 / (1 / chance(row) - 1) <= row["impostor_verified_high"]
    ]  # fmt: skip
    assert (len(checked), len(missed) <= 4) == (40, True), missed
    assert all(row["impostor_verified_high"] < 0.05 for row in checked)


def test_nothing_that_was_tried_brings_it_down_to_chance() -> None:
    """The rule of the study: at chance where the interval holds 1 in K."""
    for sent in ("float16", "bfloat16", "random norm"):
        assert all(row["verified_low"] > chance(row) for row in rows(sent)), sent
        assert all(row["verified_low"] > chance(row) for row in rows(sent, "least norm")), sent


def test_a_norm_at_random_ends_certainty_alone() -> None:
    for exact, drawn in zip(rows("float32"), rows("random norm"), strict=True):
        assert drawn["accepted_high"] < 0.01
        assert drawn["verified_high"] < exact["verified_low"]


def test_the_norms_at_random_are_within_their_bounds() -> None:
    """The script draws them itself: no mechanism of the package does."""
    server, weights = server_of("pl-identical", 2.0)
    labels = torch.arange(320) % CLASSES
    materials = Materials(None, (images_of(labels, 5), labels), lambda x: x)
    targets = build_targets(materials, server, script().OPTIONS)
    quiet, _ = server_of("none")
    plain = script().released(quiet, weights, targets, "none")
    for sent, least, most in (("float32", 2.0, 2.0), ("random norm", 2.0, 4.0)):
        norms = (script().released(server, weights, targets, sent) - plain).norm(dim=1)
        assert least - 1e-5 <= float(norms.min()) <= float(norms.max()) <= most + 1e-5
        assert (float(norms.max() - norms.min()) > 1) == (sent == "random norm")
