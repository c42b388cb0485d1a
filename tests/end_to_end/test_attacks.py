"""Whole attacks at the paper's settings, and the example that audits an update."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equipoise import load
from equipoise.auditing.cells import Cell, server_of
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.results import summary
from equipoise.auditing.scoring import baselines
from equipoise.auditing.targets import Materials, build_targets
from equipoise.engine.settings import Settings
from equipoise.mechanism.protection import NO_PROTECTION
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_invgrad_recovers_undefended_images_at_the_papers_settings() -> None:
    """PyTorch's default initialisation, 8 targets of 4, 1,600 iterations, lr 1, signed, one restart."""
    torch.manual_seed(1)
    data, model = load("mnist"), LeNetZhu()
    batched, materials = Batched(model), Materials.of(data)
    server = server_of(Settings(), data, batched, NO_PROTECTION)
    options = AuditOptions(attacks=["invgrad"], releases=8, label_sets=8, pictures=0)
    targets = build_targets(materials, server, options)
    weights = batched.layout.flatten(dict(model.named_parameters()))
    result = summary(attack_cell(Cell(weights, server, {}), targets, materials, options)[0].values)
    guesses = {name: summary(values) for name, values in baselines(targets, materials, server).items()}
    assert result["mse"] <= 0.06 < guesses["class_mean"]["mse"]
    assert result["ssim"] >= 0.8 > guesses["class_mean"]["ssim"]
    assert result["identification"] == 1.0
    assert result["leakage"] > guesses["class_mean"]["leakage"]


def test_the_example_audits_three_updates(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "audit_update.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = ["none", "pl-identical", "pl-learn"]
    assert re.findall(r"^=== (\S+) ===$", done.stdout, flags=re.M) == names
    errors = {}
    for name in names:
        assert (tmp_path / name / "audit.svg").read_text().count("<image") >= 12
        rows = json.loads((tmp_path / name / "audit.json").read_text())["attacks"]
        assert {row["role"] for row in rows} >= ({"own"} if name == "none" else {"own", "undistorted"})
        mine = [row for row in rows if (row["attack"], row["role"], row["control"]) == ("invgrad", "own", None)]
        errors[name] = mine[0]["mse"]
    assert errors["none"] < 0.1 < 1 < errors["pl-identical"]
