"""Tied weights under all of their names."""

from __future__ import annotations

from torch import nn

from equipoise.models.tensors import every_name, places


def test_a_shared_module_and_a_tied_weight_have_all_their_names() -> None:
    first, last = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
    last.weight = first.weight
    model = nn.Sequential(first, nn.BatchNorm1d(3), first, last)
    names = every_name(model)
    assert {name for name, tensor in names.items() if tensor is first.weight} == {"0.weight", "2.weight", "3.weight"}
    assert "1.running_mean" in names
    held = places(model)
    assert held["2.weight"] == held["0.weight"] == ["0.weight", "3.weight"], "one for each module, not for each name"
    assert held["1.running_mean"] == ["1.running_mean"]
