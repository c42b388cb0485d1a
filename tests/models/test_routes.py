"""The rule for a route, and the measurement."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise import workers
from equipoise.models.bundled import LeNetZhu
from equipoise.models.routes import DEALT, NAMES, default_route, measured_route
from tests.models.odd_models import Sequence


def test_the_rule_is_of_model_device_and_mini_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "count", lambda: 2)
    other = nn.Sequential(nn.Linear(4, 2), nn.GELU())
    assert default_route(LeNetZhu()) == "layers"
    assert default_route(LeNetZhu(), loss=nn.functional.cross_entropy) == "threads"
    few = 2 * DEALT
    assert default_route(other) == default_route(other, batch=15, replicas=few) == "threads"
    assert default_route(other, batch=16, replicas=few) == "loop"
    assert default_route(other, batch=4, replicas=few - 1) == "loop", "a worker takes time to wake up"
    heavy = nn.Sequential(nn.Linear(1024, 1024), nn.Identity())
    assert default_route(heavy, batch=15, replicas=few) == "loop", "its kernels are long enough for several threads"
    monkeypatch.setattr(workers, "count", lambda: 1)
    assert default_route(other, batch=4, replicas=100) == "loop", "nobody to deal to"
    assert default_route(other, device="cuda") == "vmap"
    assert default_route(Sequence(), device="cuda") == "loop"
    assert default_route(Sequence().eval(), device="cuda") == "vmap", "cuDNN takes no gradient of these in eval mode"


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(3, 1, 2, 2), set(NAMES)),
        (nn.Sequential(nn.Linear(4, 2), nn.GELU()), torch.rand(3, 4), {"vmap", "loop", "threads"}),
        (Sequence(), torch.randint(7, (3, 5)), {"vmap", "loop", "threads"}),
    ],
    ids=["layers", "any", "recurrent"],
)
def test_routes_that_run_a_model_are_timed(model: nn.Module, inputs: torch.Tensor, expected: set[str]) -> None:
    chosen, took = measured_route(model, None, inputs, torch.tensor([0, 1, 0]), replicas=2, seconds=0.001)
    assert set(took) == expected
    assert took[chosen] == min(took.values()) > 0


def test_a_model_that_nothing_can_run_says_why() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measured_route(nn.Linear(4, 2), None, torch.rand(3, 5), torch.tensor([0, 1, 0]), replicas=2, seconds=0.001)
