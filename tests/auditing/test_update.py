"""An update as the server got it, and the truth behind it: what they hold, and what they do not show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.view import Server, View
from equipoise.auditing.update import Truth, Update
from equipoise.errors import ConfigError, DataError, ModelError, ReleaseError
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.models.batched import Batched
from tests.auditing.updates import CLASSES, SHAPE, gradient_of, moved, network, numbers


def test_the_weights_are_those_of_the_states(model: nn.Module, batch: Any) -> None:
    gradient, batched, like = gradient_of(model, *batch), Batched(model), torch.zeros(1, dtype=torch.float64)
    start = batched.layout.flatten(model.state_dict()).double()
    for eta in (0.1, 0.02):
        after = moved(model, gradient, eta)
        by_states = Update(model, model.state_dict(), after).view(batched, like)
        assert torch.equal(by_states.previous, start.unsqueeze(0))
        assert torch.equal(by_states.released[0], batched.layout.flatten(after).double())
        by_gradient = Update(model, model.state_dict(), gradient=gradient, settings=ProtectionSettings(eta=eta))
        assert torch.allclose(by_gradient.view(batched, like).released, by_states.released, atol=1e-7)


def test_several_updates_have_a_row_each(model: nn.Module, batch: Any) -> None:
    gradient, batched, like = gradient_of(model, *batch), Batched(model), torch.zeros(1)
    one, three = (Update(model, model.state_dict(), gradient=given) for given in (gradient, [gradient] * 3))
    assert (one.several, three.several) == (False, True)
    assert three.view(batched, like).released.shape == (3, batched.layout.size)
    with pytest.raises(ReleaseError, match="2 states before 3 updates"):
        Update(model, [model.state_dict()] * 2, gradient=[gradient] * 3).view(batched, like)
    with pytest.raises(ReleaseError, match="no update"):
        Update(model, model.state_dict(), []).view(batched, like)


def test_the_protection_is_that_of_the_first_round_and_of_the_batch(model: nn.Module) -> None:
    state, budget = model.state_dict(), {"rounds": [1, 2], "values": [0.96, 0.98]}
    assert Update(model, state, state).protection(4).scale == 0
    assert Update(model, state, state, mechanism="pl-learn", budget=budget).protection(4).scale == pytest.approx(
        15.99975
    )
    formal = Update(model, state, state, mechanism="laplace-dp", budget=1.0, settings=ProtectionSettings(clip=2.0))
    assert [formal.protection(batch).scale for batch in (1, 4)] == [pytest.approx(0.4), pytest.approx(0.1)]


def test_an_update_shows_no_tensors(model: nn.Module) -> None:
    update = Update(model, model.state_dict(), model.state_dict(), mechanism="pl-learn", budget=0.98)
    assert repr(update) == "Update(mechanism='pl-learn', budget=0.98, settings=None)"
    assert repr(Truth.of((numbers(2, *SHAPE), torch.tensor([0, 1])))) == "Truth()"


def normalised(mean: float = 0.0) -> nn.Module:
    """A network whose first layer is a normalisation in eval mode, with a frozen bias."""
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), network()[1:]).eval()
    model[1].bias.requires_grad_(False)
    model[1].running_mean.fill_(mean)
    return model


def test_buffers_and_frozen_parameters_are_those_that_the_server_had_sent() -> None:
    model, sent = normalised(), normalised(0.7)
    update = Update(model, sent.state_dict(), model.state_dict())
    assert set(update.fixed()) == {
        f"1.{name}" for name in ("bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert torch.equal(update.fixed()["1.running_mean"], torch.full((36,), 0.7))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert Update(model, trained, trained).fixed() == {}
    assert Update(model, {**trained, "another": torch.zeros(1)}, trained).fixed() == {}, "a state dict may hold more"


def test_updates_that_started_from_other_buffers_are_refused() -> None:
    model, before = normalised(), [normalised(mean).state_dict() for mean in (0.0, 0.7)]
    with pytest.raises(ReleaseError, match=r"different values of '1\.running_mean'"):
        Update(model, before, before).fixed()
    assert Update(model, [before[1], before[1]], before).fixed()["1.running_mean"][0] == pytest.approx(0.7)


@pytest.mark.parametrize("before", [3, "state", [3], None])
def test_what_is_no_state_dict_is_refused(before: Any) -> None:
    with pytest.raises(ModelError, match="Expected a state dict"):
        Update(network(), before, network().state_dict()).fixed()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": None}, "torch.nn.Module, got NoneType"),
        ({"after": None}, "after= or gradient="),
        ({"gradient": {}}, "after= or gradient="),
        ({"mechanism": "pl-learn"}, "needs a budget"),
        ({"budget": 0.98}, "takes no budget"),
        ({"mechanism": "pl-lern", "budget": 0.98}, "Did you mean 'pl-learn'"),
        ({"settings": ProtectionSettings(eta=-1.0)}, "eta=-1.0"),
        ({"settings": "paper"}, "Expected the settings of a release, got str"),
    ],
    ids=str,
)
def test_what_is_no_update_is_refused_at_once(model: nn.Module, change: dict[str, Any], words: str) -> None:
    given = {"model": model, "before": model.state_dict(), "after": model.state_dict(), **change}
    with pytest.raises(ConfigError, match=words):
        Update(**given)


# --- the truth ----------------------------------------------------------------------------------------------------

X, Y = numbers(2, *SHAPE), torch.tensor([0, 2])


def position(model: nn.Module, count: int) -> tuple[Server, View]:
    batched = Batched(model)
    weights = torch.zeros(count, batched.layout.size)
    return Server(batched, SHAPE, CLASSES, 2), View(weights, weights)


@pytest.mark.parametrize(
    ("pair", "count"), [((X, Y), 1), ((X.double(), Y), 1), ((X.expand(3, 2, *SHAPE), Y), 3), ([X.unsqueeze(0), Y], 1)]
)
def test_the_truth_has_a_row_for_every_update(model: nn.Module, pair: Any, count: int) -> None:
    truth = Truth.of(pair).at(*position(model, count))
    assert torch.equal(truth.inputs, X.expand(count, 2, *SHAPE))
    assert truth.labels.tolist() == [[0, 2]] * count


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (X, "pair"), ((X, Y, Y), "pair"), ((X.int(), Y), "floating-point"), ((X[0, 0, 0], Y), r"\[E, \.\.\.\]"),
        ((X, 3), "labels"), ((X / 0, Y), "not finite"), ((X, Y + 1), "got 1..3"), ((X[:1], Y), "Expected a truth of"),
        ((X + 2, Y), r"outside 0\.\.1\. Give Attacker\(bounds="),
    ],
    ids=["tensor", "three", "integers", "pixels", "a label", "infinite", "labels", "one input", "range"],
)  # fmt: skip
def test_a_truth_that_cannot_be_is_refused(model: nn.Module, pair: tuple[Tensor, Tensor], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Truth.of(pair).at(*position(model, 1))
