"""Which route a sweep takes."""

from __future__ import annotations

from dataclasses import replace
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
        ({"mechanism": "gaussian-dp", "budget": 2.0, "batch": 16}, "loop"),
    ],
)
def test_a_sweep_follows_the_rule_or_what_is_set(
    few: Dataset, change: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes.workers, "count", lambda: 2)
    about = {key: change.pop(key) for key in ("mechanism", "budget") if key in change}
    federation = Federation("few", **{"mechanism": "none", **about})
    assert sweep_of(few, [federation], small(), **change).batched.route == expected


def test_measured_takes_what_was_fastest_and_serves_and_measures_once(
    few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    seconds = {"vmap": 0.1, "loop": 0.2, "threads": 0.3}

    def measured(network: Any, loss: Any, inputs: torch.Tensor, labels: torch.Tensor, **about: Any) -> Any:
        asked.append((tuple(inputs.shape), about))
        return "vmap", seconds

    monkeypatch.setattr(routing, "measured_route", measured)
    monkeypatch.setattr(routing, "_MEASURED", {})
    federations = [Federation("few", "none", None, seed) for seed in (1, 2)]
    for _ in range(2):
        sweep = sweep_of(few, federations, small(), route="measured")
        assert (sweep.batched.route, sweep.route_seconds) == ("vmap", seconds)
    assert asked == [((4, 1, 28, 28), {"replicas": 4, "alone": False})]
    sweep_of(few, [Federation("few", "laplace-dp", 10.0)], small(), route="measured")
    assert asked[1][1]["alone"], "single examples are another question"
    monkeypatch.setattr(routing, "_MEASURED", {})
    monkeypatch.setattr(routing, "_serves", lambda name, network, inputs: name != "vmap")
    assert sweep_of(few, federations, small(), route="measured").batched.route == "loop"


@pytest.mark.parametrize("mechanism", ["pl-learn", "laplace-dp", "gaussian-dp"])
def test_a_federation_trains_to_the_same_bits_beside_others(
    few: Dataset, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads, where routes differ in bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        budget = {"pl-learn": 0.98, "laplace-dp": 50.0, "gaussian-dp": 2.0}[mechanism]
        first = Federation("few", mechanism, budget, 1)
        beside = [replace(first, seed=seed) for seed in (2, 3)]
        alone, among = (sweep_of(few, some, small(), rounds=2) for some in ([first], [first, *beside]))
        assert alone.batched.route == among.batched.route == "loop"
        for sweep in (alone, among):
            sweep.train(2)
        assert torch.equal(alone.models()[0], among.models()[0])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("route", ["loop", "threads"])
def test_all_routes_train_alike(few: Dataset, route: str) -> None:
    federations = [Federation("few", "pl-learn", 0.98), Federation("few", "pl-identical", 0.98)]
    change: dict[str, Any] = {"rounds": 3, "dtype": "float64"}
    expected, actual = (sweep_of(few, federations, small(), route=name, **change) for name in ("vmap", route))
    for sweep in (expected, actual):
        sweep.train(3)
    torch.testing.assert_close(actual.models(), expected.models())
