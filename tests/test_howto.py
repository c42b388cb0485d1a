"""The examples of docs/howto.md that extend the package are run as they stand there, and what they add is used."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import Federation, LeNetZhu, Settings, Sweep, audit_run, protected_step
from equipoise.attack.registry import ATTACKS
from equipoise.auditing.options import AuditOptions
from equipoise.data.dataset import Dataset
from equipoise.errors import ConfigError
from equipoise.mechanism.registry import MEASURES, MECHANISMS, get_mechanism
from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.reproduce import reproduce
from tests.audit_helpers import train_run, write_pictures
from tests.reproduction.synthetic import SCALE, content

PAGE = Path(__file__).parents[1] / "docs" / "howto.md"
REGISTRIES: tuple[dict[str, Any], ...] = (MECHANISMS, MEASURES, ATTACKS, ARTEFACTS)


def example(heading: str) -> str:
    """The Python block below a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(block)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Whatever an example registers is forgotten again."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, known in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(known)


def run(heading: str, folder: Path) -> None:
    code, path = example(heading), folder / "example.py"
    assert len(code.splitlines()) < 40
    path.write_text(code, encoding="utf-8")
    runpy.run_path(str(path))


@pytest.mark.parametrize(
    ("heading", "name", "budget", "lower"),
    [("add a mechanism", "gaussian-annulus", 0.96, 15.99975), ("add a privacy measure", "snr-learn", 25.0, 2.0)],
)
def test_a_mechanism_or_measure_of_ones_own(
    few: Dataset, tmp_path: Path, heading: str, name: str, budget: float, lower: float
) -> None:
    run(heading, tmp_path)
    assert get_mechanism(name).learns
    model, x, y = LeNetZhu(), few.train.inputs[:4], few.train.labels[:4]
    sent = protected_step(model, model.state_dict(), (x, y), name, budget)
    assert sent.record["lower"] == pytest.approx(lower)
    assert sent.record["intensity"] >= lower * 0.999
    sweep = Sweep(Settings.flat(rounds=1), [Federation("few", name, budget)], {"few": few})
    (row,) = next(event.rows for event in sweep.run() if event.rows)
    assert lower * 0.999 <= row["intensity"] <= 2.001 * lower


def test_an_update_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("audit an update of my own", tmp_path)
    said = capsys.readouterr().out
    assert said.startswith("Insufficient evidence: 1 update")
    assert "Not claimed: " in said


def test_an_update_on_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        run("audit an update on a table or on text", tmp_path)
    said = capsys.readouterr().out
    assert "Left out: labels (needs labels that can be counted" in said
    assert "Each example is sought" not in said, "there are enough public rows"


def test_an_attack_of_ones_own(tmp_path: Path) -> None:
    run("add an attack", tmp_path)
    folder = train_run(tmp_path / "run", write_pictures(tmp_path / "data"), ("pl-learn",))
    options = AuditOptions(attacks=["class-means"], releases=2, label_sets=1, candidates=4, others=2, contrast=0.5)
    result = audit_run(folder, options, snapshots=[0])
    assert {row["attack"] for row in result.rows} == {"class-means"}
    assert all(row["mse"] > 0 for row in result.rows)
    assert result.content["options"]["contrast"] == 0.5
    with pytest.raises(ConfigError, match="contrast=-1"):
        AuditOptions(attacks=["class-means"], contrast=-1.0).check()


def test_an_artefact_of_ones_own(tmp_path: Path) -> None:
    run("add a reproduced artefact", tmp_path)
    (tmp_path / "paper.json").write_text(json.dumps(content("paper")))  # as compute would have written it
    reproduce(["gaussian"], SCALE, tmp_path / "out", sources=[tmp_path], draw=False)
    assert "| gs-learn | 80.0 ± 0.1 |" in (tmp_path / "out" / "README.md").read_text()


def test_nothing_of_an_example_stays() -> None:
    assert "gaussian-annulus" not in MECHANISMS
    assert "class-means" not in ATTACKS
