"""Fixtures of the tests of audits: an update of one's own, and a run folder of three federations."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.registry import ATTACKS, find
from equipoise.auditing.attacker import Attacker
from equipoise.auditing.audit import Audit
from equipoise.auditing.options import USUAL
from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.update import Update
from equipoise.auditing.update_audit import audit
from tests.attack.inversions import short_searches
from tests.audit_helpers import cheap, train_run, write_pictures
from tests.auditing.updates import CLASSES, SHAPE, Call, gradient_of, network, numbers


@pytest.fixture(autouse=True)
def _attacks() -> Iterator[None]:
    """Whatever a test registers or replaces is as before after it."""
    before = dict(ATTACKS)
    yield
    ATTACKS.clear()
    ATTACKS.update(before)


@pytest.fixture
def stand_in() -> Callable[..., None]:
    """Puts a function in the place of an attack: what it needs and its options stay."""

    def put(run: Callable[..., Any], name: str = "invgrad") -> None:
        ATTACKS[name] = replace(find(name), run=run)

    return put


@pytest.fixture
def _short_searches() -> None:
    """One iteration for the attacks whose number of iterations is no option."""
    ATTACKS.update(short_searches())


# --- an update of one's own --------------------------------------------------------------------------------------


@pytest.fixture
def model() -> nn.Sequential:
    return network()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return numbers(2, *SHAPE), torch.tensor([0, 2])


@pytest.fixture
def public() -> tuple[Tensor, Tensor]:
    return numbers(60, *SHAPE, seed=4), torch.arange(60) % CLASSES


@pytest.fixture
def call(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Call:
    """``audit`` with all that it needs; what the update, the attacker and the call are made of is changed by name."""

    def run(**change: Any) -> Audit:
        given = {"model": model, "before": model.state_dict(), "truth": batch, "options": cheap(attacks=["invgrad"])}
        if not {"after", "gradient"} & change.keys():
            given["gradient"] = gradient_of(model, *batch)
        given |= change
        update, attacker = (
            {part.name: given.pop(part.name) for part in fields(kind) if part.name in given}
            for kind in (Update, Attacker)
        )
        return audit(Update(**update), attacker=Attacker(**attacker), **given)

    return run


# --- a run folder ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "run", pictures)


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="session")
def audited(trained: Path) -> Audit:
    """The usual attacks and InvGrad at three rounds: the one audit that tests of its content share."""
    return audit_run(trained, cheap(attacks=["invgrad", *USUAL]))
