"""Which route a sweep takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.data.dataset import Dataset
from equipoise.engine import routing
from equipoise.engine.federation import Federation
from equipoise.models import routes
from tests.engine.sweeps import small, sweep_of


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"clients": 8}, "threads"),
        ({"clients": 8, "batch": 16}, "loop"),
        ({"clients": 7}, "loop"),
        ({"route": "vmap"}, "vmap"),
        ({"mechanism": "gaussian-dp", "budget": 2.0, "batch": 16}, "threads"),
    ],
)
def test_a_sweep_follows_the_rule_or_what_is_set(
    few: Dataset, change: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes.workers, "count", lambda: 2)
    about = {key: change.pop(key) for key in ("mechanism", "budget") if key in change}
    federation = Federation("few", **{"mechanism": "none", **about})
    assert sweep_of(few, [federation], small(), **change).batched.route == expected


def test_measured_takes_what_was_fastest(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measured(network: Any, loss: Any, inputs: torch.Tensor, labels: torch.Tensor, *, replicas: int) -> Any:
        asked.append((tuple(inputs.shape), replicas))
        return "vmap", {}

    monkeypatch.setattr(routing, "measured_route", measured)
    sweep = sweep_of(few, [Federation("few", "none", None, seed) for seed in (1, 2)], small(), route="measured")
    assert sweep.batched.route == "vmap"
    assert asked == [((4, 1, 28, 28), 8)]


@pytest.mark.parametrize("route", ["vmap", "loop", "threads"])
def test_all_routes_train_alike(few: Dataset, route: str) -> None:
    federations = [Federation("few", "pl-learn", 0.98), Federation("few", "pl-identical", 0.98)]
    change: dict[str, Any] = {"rounds": 3, "dtype": "float64"}
    expected, actual = (sweep_of(few, federations, small(), route=name, **change) for name in ("vmap", route))
    for sweep in (expected, actual):
        sweep.train(3)
    torch.testing.assert_close(actual.models(), expected.models())
