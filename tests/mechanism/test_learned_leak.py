"""That learned noise gives records away: said once for each mechanism, and of no other kind."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from equipoise import LeNetZhu, Mechanism, Run, protect, protected_step, resolve
from equipoise.mechanism import learned_leak
from equipoise.mechanism.learned_leak import leak_warning, mark_leak_told, warn_of_leak
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.registry import MECHANISMS
from equipoise.mechanism.run_budget import GaussianSettings
from tests.helpers import write_dataset


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    before = set(learned_leak._TOLD)
    learned_leak._TOLD.clear()
    yield
    learned_leak._TOLD.update(before)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The names that the log begins its lines on this with."""
    assert all(record.name == "equipoise" for record in caplog.records)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [line.split()[0] for line in lines if " learns its noise on the private batch" in line]


def test_only_what_learns_is_warned_of() -> None:
    assert [name for name in MECHANISMS if leak_warning(name)] == ["pl-learn", "ls-learn", "gs-learn"]
    own = Mechanism("own", "leakage", noise="gaussian", learns=True)
    assert str(leak_warning(own)).startswith("own learns its noise")


def test_it_says_where_the_figures_are_and_holds_none() -> None:
    text = str(leak_warning("pl-learn"))
    assert "\n" not in text
    assert "docs/frontier.md" in text
    assert text.endswith("A guarantee has gaussian-dp.")
    assert not re.search(r"\d", text)


def test_the_library_says_it_once_for_every_mechanism(caplog: pytest.LogCaptureFixture) -> None:
    model, batch = LeNetZhu(), (torch.rand(4, 1, 28, 28), torch.arange(4))
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, budget in (("pl-identical", 0.98), ("pl-learn", 0.98), ("gs-learn", 80.0), ("pl-learn", 0.96)):
        protected_step(model, received, batch, name, budget)
        protect(model, received, batch, name, budget)
    whole = ProtectionSettings(gaussian=GaussianSettings(rounds=1))
    protected_step(model, received, batch, "gaussian-dp", 2.0, settings=whole, round_number=1)
    assert warned(caplog) == ["pl-learn", "gs-learn"]


def test_protect_alone_says_it(caplog: pytest.LogCaptureFixture) -> None:
    model, batch = LeNetZhu(), (torch.rand(4, 1, 28, 28), torch.arange(4))
    protect(model, model.state_dict(), batch, "pl-learn", 0.98)
    assert warned(caplog) == ["pl-learn"]


def test_what_a_command_has_said_is_not_said_again(caplog: pytest.LogCaptureFixture) -> None:
    mark_leak_told("pl-learn")
    warn_of_leak("pl-learn")
    warn_of_leak("ls-learn")
    assert warned(caplog) == ["ls-learn"]


def test_a_run_says_it_once_whatever_its_seeds_and_budgets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sweep = {
        "datasets": [str(write_dataset(tmp_path / "tiny"))], "mechanisms": ["none", "pl-identical", "pl-learn"],
        "budgets": [0.96, 0.98], "seeds": [1, 2],
    }  # fmt: skip
    for name in ("one", "two"):
        Run(tmp_path / name, resolve(overrides={"rounds": 2}, sweep=sweep)).execute()
    assert warned(caplog) == ["pl-learn"]
