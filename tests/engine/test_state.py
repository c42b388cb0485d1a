"""What a sweep is between rounds: a server's velocity included, saved and restored to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.metrics import Tally
from equipoise.engine.state import State
from equipoise.engine.sweep import Sweep
from tests.engine.sweeps import small, sweep_of

FEDERATIONS = [Federation("few", "none", None, seed=1), Federation("few", "pl-learn", 0.98, seed=2)]


def state(velocity: bool = True, federations: int = 2, fill: float = 0.0) -> State:
    params = torch.full((federations, 3), fill)
    return State(0, params, Tally.empty(federations, 4), torch.full_like(params, fill) if velocity else None)


def made(few: Dataset, **change: Any) -> Sweep:
    return sweep_of(few, FEDERATIONS, small(), rounds=6, steps=2, **change)


def copied(sweep: Sweep) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in sweep.state.tensors().items()}


# -- a server with momentum --------------------------------------------------------------------------------------------


def test_velocity_is_that_of_momentum(few: Dataset) -> None:
    """v <- m v + step, x <- x + v, with the step that the server would make without it."""
    sweep, momentum = made(few, server_momentum=0.7), 0.7
    velocity, params = torch.zeros_like(sweep.state.params), sweep.state.params.clone()
    for number in range(1, 4):
        plain = made(few)
        plain.state.params, plain.state.round = params.clone(), number - 1
        plain.train(number)
        velocity = momentum * velocity + (plain.state.params - params)
        params = params + velocity
        sweep.train(number)
        assert torch.allclose(sweep.state.params, params, atol=1e-6)
        assert sweep.state.velocity is not None
        assert torch.allclose(sweep.state.velocity, velocity, atol=1e-6)
    assert float(velocity.norm()) > 0.01


def test_a_server_without_momentum_has_no_velocity(few: Dataset) -> None:
    sweep = made(few)
    assert sweep.state.velocity is None
    assert "velocity" not in sweep.state.tensors()


def test_a_look_from_another_round_starts_at_rest_and_leaves_the_state_alone(few: Dataset) -> None:
    sweep = made(few, server_momentum=0.7)
    sweep.train(2)
    before = copied(sweep)
    other = sweep.at(2, torch.zeros_like(sweep.state.params))
    assert other.state.velocity is not None
    assert not other.state.velocity.any()
    other.train(3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in sweep.state.tensors().items())


# -- saved and restored ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_a_restored_sweep_goes_on_bit_for_bit(few: Dataset, momentum: float) -> None:
    through, again = made(few, server_momentum=momentum), made(few, server_momentum=momentum)
    through.train(3)
    kept = copied(through)
    through.train(6)
    again.state.restore(3, kept)
    again.train(6)
    assert again.state.round == 6
    for name, tensor in through.state.tensors().items():
        assert torch.equal(again.state.tensors()[name].nan_to_num(-1), tensor.nan_to_num(-1)), name


def test_everything_between_rounds_is_kept() -> None:
    names = {"params", "velocity", "rounds", "recent", "total", "last_utility", "last_intensity"}
    assert set(state().tensors()) == names | {"best_validation", "best_round", "best_accuracy"}
    new, given = state(), state(fill=5.0)
    given.tally.total += 3
    new.restore(9, given.tensors())
    assert new.round == 9
    assert new.velocity is not None
    assert float(new.params[0, 0]) == float(new.velocity[0, 0]) == 5
    assert float(new.tally.total[0, 0]) == 3


@pytest.mark.parametrize(
    "other",
    [state(velocity=False), state(federations=3), State(0, torch.zeros(2, 4), Tally.empty(2, 4), torch.zeros(2, 4))],
    ids=["no velocity", "federations", "parameters"],
)
def test_the_state_of_another_sweep_is_refused_and_changes_nothing(other: State) -> None:
    mine = state(fill=1.0)
    with pytest.raises(ValueError, match=r"^(it holds other federations|its model has 4 parameters, and this one 3)$"):
        mine.restore(4, other.tensors())
    with pytest.raises(ValueError, match=r"^(it holds other federations|its model has 3 parameters, and this one 4)$"):
        other.restore(4, mine.tensors())
    assert mine.round == other.round == 0
    assert bool((mine.params == 1).all())


def test_another_precision_is_refused() -> None:
    given = state().tensors()
    with pytest.raises(ValueError, match="it holds other federations"):
        state().restore(1, {**given, "params": given["params"].double()})
