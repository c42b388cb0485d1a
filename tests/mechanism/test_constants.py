"""A leakage budget with the paper's constants on another model: said once, and only then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from equipoise import LeNetZhu, protected_step
from equipoise.mechanism import constants
from equipoise.mechanism.constants import constants_warning
from equipoise.mechanism.protection import Leakage, ProtectionSettings
from equipoise.models.bundled import LeNetTanh


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    before = set(constants._TOLD)
    constants._TOLD.clear()
    yield
    constants._TOLD.update(before)


def said(model: str = "mlp", mechanism: str = "pl-learn", budget: Any = 0.98, **changed: Any) -> str | None:
    return constants_warning(model, mechanism, budget, ProtectionSettings(**changed))


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
        {"model": "lenet-zhu"},
        {"mechanism": "ls-static", "budget": 80.0},
        {"mechanism": "none", "budget": None},
        {"leakage": Leakage(D=30.0)},
    ],
    ids=str,
)
def test_nothing_is_said_of_the_papers_model_other_measures_and_constants_of_ones_own(other: dict[str, Any]) -> None:
    assert said(**other) is None


def test_protect_tells_the_log_once_for_every_class(caplog: pytest.LogCaptureFixture) -> None:
    x, y = torch.rand(4, 1, 28, 28), torch.arange(4)
    models = [LeNetZhu(), LeNetTanh(), LeNetTanh(), nn.Sequential(nn.Flatten(), nn.Linear(784, 10))]
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        for model in models:
            protected_step(model, model.state_dict(), (x, y), "pl-identical", 0.98)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["LeNetTanh", "Sequential"]
