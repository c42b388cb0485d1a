"""Small sweeps, and what they record: shared by the tests of the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.mechanism.registry import MECHANISMS

Row = dict[str, Any]


BUDGETS = (
    {"none": None, "pl-identical": 0.98, "pl-learn": 0.98}
    | dict.fromkeys(("ls-static", "ls-learn", "gs-static", "gs-learn", "laplace-dp"), 200)
    | {"gaussian-dp": 8.0, "pruning": 0.1, "outpost": 1.25}
)


EVERY = [Federation("few", name, BUDGETS[name], seed=1) for name in MECHANISMS]


def small() -> nn.Module:
    """A user's model: 790 trainable numbers, so that full records cost nothing."""
    local = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.AvgPool1d(4), nn.Linear(196, 4), nn.Tanh(), nn.Linear(4, 10))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.rand(tensor.shape, generator=local) - 0.5)
    return model


def sweep_of(few: Dataset, federations: list[Federation], model: nn.Module | None = None, **change: Any) -> Sweep:
    return Sweep(Settings.flat(**{"rounds": 5, **change}), federations, {"few": few}, model)


def rows_of(sweep: Sweep) -> list[list[Row]]:
    """The rows of every evaluated round, after training to the end."""
    return [event.rows for event in sweep.run() if event.rows]


def first_rows(sweep: Sweep) -> list[Row]:
    return next(event.rows for event in sweep.run() if event.rows)


def trained(few: Dataset, federations: list[Federation], rounds: int, **change: Any) -> dict[str, Tensor]:
    """Global parameters by label; every release was accepted."""
    sweep = sweep_of(few, federations, rounds=rounds, **change)
    sweep.train(rounds)
    return {fed.label(): params for fed, params in zip(sweep.federations, sweep.state.params, strict=True)}


def assert_same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert set(one) == set(two)
    for label, params in one.items():
        assert torch.isfinite(params).all()
        assert torch.equal(params, two[label]), f"{label}: {float((params - two[label]).abs().max())}"


def assert_rows_agree(one: list[Row], two: list[Row]) -> None:
    """Up to the rounding of sums over many examples: evaluation may group models as it likes."""
    for a, b in zip(one, two, strict=True):
        assert set(a) == set(b)
        for name, value in a.items():
            numbers = isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float))
            assert b[name] == (pytest.approx(value, rel=1e-5, abs=1e-6) if numbers else value), name
        exact = ("accuracy", "client_accuracy", "utility_loss_last", "intensity_last")
        assert all(a[name] == b[name] for name in exact if name in a)


def one_round(sweep: Sweep, round_number: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    """Releases and distortions ``[F][K, P]`` of a round from the current state, without taking the step."""
    tables, noise = sweep.tables([round_number]), sweep.noise_table(round_number)
    released: list[list[Tensor]] = [[] for _ in sweep.federations]
    distortions: list[list[Tensor]] = [[] for _ in sweep.federations]
    for block in sweep.blocks:
        made, alpha = sweep.release(block, tables, torch.tensor([0]), sweep.block_noise(block, noise))
        shape = (*block.shape, -1)
        for place, f in enumerate(range(block.federations.start, block.federations.stop)):
            released[f] += list(made.parameters.view(shape)[place])
            distortions[f] += list(alpha.view(shape)[place])
    return [torch.stack(r) for r in released], [torch.stack(d) for d in distortions]
