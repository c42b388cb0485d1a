"""A leakage budget with the paper's constants on another model: said once, and only then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equipoise import LeNetZhu, Mechanism, Run, protect, protected_step, resolve
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.mechanism import constants
from equipoise.mechanism.budget import LaplaceBudget
from equipoise.mechanism.constants import constants_warning
from equipoise.mechanism.protection import Leakage, ProtectionSettings
from equipoise.models.bundled import MLP, LeNetTanh
from tests.engine.sweeps import rows_of, sweep_of


class Mine(nn.Sequential):
    """A model that can be imported from here."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 12))


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    before = set(constants._TOLD)
    constants._TOLD.clear()
    yield
    constants._TOLD.update(before)


def said(model: nn.Module | None = None, mechanism: str = "pl-learn", budget: Any = 0.98, **changed: Any) -> str | None:
    return constants_warning(model or MLP(), mechanism, budget, ProtectionSettings(**changed), "mlp")


def test_the_norm_and_the_command_are_named() -> None:
    text = said()
    assert text is not None
    assert text.startswith("a PL budget of 0.98 asks for a norm of 8 whatever the model")
    assert text.endswith("equipoise calibrate --model mlp --mechanism pl-learn --budget 0.98")


def test_a_budget_for_each_client_and_a_schedule_have_a_range() -> None:
    assert "asks for a norm of 4 to 16 whatever" in str(said(budget=[0.96, 0.98, 0.98, 0.99]))
    later = said(budget={"rounds": [1, 9], "values": [0.96, 0.98]})
    assert "asks for a norm of 8 to 16 whatever" in str(later)
    assert str(later).endswith("--mechanism pl-learn")


@pytest.mark.parametrize(
    "other",
    [
        {"model": LeNetZhu()},
        {"model": LeNetZhu(), "mechanism": "ls-static", "budget": 80.0},
        {"mechanism": "none", "budget": None},
        {"mechanism": "laplace-dp", "budget": 10.0},
        {"mechanism": "gaussian-dp", "budget": 2.0},
        {"leakage": Leakage(D=30.0)},
        {"mechanism": "gs-learn", "budget": 80.0, "sensitivity": 3.0},
    ],
    ids=str,
)
def test_nothing_is_said_of_the_papers_model_guarantees_and_constants_of_ones_own(other: dict[str, Any]) -> None:
    assert said(**other) is None


def test_a_measure_with_numbers_of_its_own_is_the_users() -> None:
    own = Mechanism("own", LaplaceBudget(sensitivity=2.0))
    assert constants_warning(MLP(), own, 80.0, ProtectionSettings()) is None


@pytest.mark.parametrize(("name", "kind", "variance"), [("ls-static", "an LS", 2.0), ("gs-learn", "a GS", 1.0)])
def test_a_scale_is_a_noise_in_every_coordinate(name: str, kind: str, variance: float) -> None:
    text = str(said(mechanism=name, budget=80.0))
    norm = 0.125 * (variance * 50890) ** 0.5
    assert text.startswith(
        f"{kind} budget of 80 asks for noise of scale 0.125 in every coordinate, a norm of about {norm:.3g} over the "
        "50,890 of this model"
    )
    assert text.endswith(f"equipoise calibrate --model mlp --mechanism {name} --budget 80")


def test_the_papers_architecture_for_other_pictures_is_another_model() -> None:
    for other in (LeNetZhu((3, 64, 64), 100), LeNetZhu((1, 28, 28), 62), LeNetZhu((3, 28, 28), 10)):
        assert "not of yours" in str(said(other))
    frozen = LeNetZhu()
    next(frozen.parameters()).requires_grad_(False)
    assert "not of yours with 13,126" in str(said(frozen))


def test_the_callers_randomness_is_left_alone() -> None:
    constants._lenet.cache_clear()
    model = LeNetZhu((3, 64, 64), 100)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    said(model)
    assert torch.equal(torch.get_rng_state(), before)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_protect_tells_the_log_once_for_every_layout(caplog: pytest.LogCaptureFixture) -> None:
    x, y = torch.rand(4, 1, 28, 28), torch.arange(4)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Linear(16, 10))
    models = [LeNetZhu(), LeNetTanh(), LeNetTanh(), nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), wide, wide, Mine()]
    for model in models:
        protected_step(model, model.state_dict(), (x, y), "pl-identical", 0.98)
        protect(model, model.state_dict(), None, "pl-identical", 0.98)
    assert [text.partition(":")[0] for text in warned(caplog)] == ["LeNetTanh", "Sequential", "Sequential", "Mine"]
    commands = [text.partition("calibrate --model ")[2].split()[0] for text in warned(caplog)]
    assert commands == ["lenet-tanh", "MODULE:FUNCTION", "MODULE:FUNCTION", f"{__name__}:Mine"], (
        "each names what is there"
    )
    protect(wide, wide.state_dict(), None, "ls-static", 80.0)
    assert "an LS budget of 80" in warned(caplog)[-1]
    assert len(warned(caplog)) == 5


def test_a_sweep_tells_the_log_once(few: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    federations = [Federation("few", name, budget) for name in ("pl-identical", "pl-learn") for budget in (0.96, 0.98)]
    for model in (LeNetZhu(), MLP(), MLP()):
        rows_of(sweep_of(few, federations, model, rounds=1))
    (text,) = warned(caplog)
    assert text.startswith("MLP: a PL budget of 0.96 asks for a norm of 16 whatever the model")


def test_a_run_tells_the_log_as_its_sweep_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sweep = {"mechanisms": ["gs-static"], "budgets": [80.0], "datasets": ["breast-cancer"]}
    config = resolve(overrides={"rounds": 1, "model": "mlp"}, sweep=sweep)
    Run(tmp_path / "run", config).execute()
    (text,) = warned(caplog)
    assert text.startswith("MLP: a GS budget of 80 asks for noise of scale 0.125 in every coordinate")
