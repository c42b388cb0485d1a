"""Without learning no model is run: any module, any mode, and the numbers that a forward pass would not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ConfigError, ReleaseError
from equipoise.mechanism.protect import noise_alone, protect, protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.registry import MECHANISMS
from equipoise.models.bundled import LeNetZhu

STATIC = {"none": None, "pl-identical": 0.98, "ls-static": 50.0, "gs-static": 50.0, "pruning": 0.3, "outpost": 1.25}
NOISED, REFUSED = ProtectionSettings(buffers="noised"), ProtectionSettings(buffers="refused")
X, Y = torch.rand(8, 6), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class Untouchable(nn.Module):
    """Nobody may run it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("a static mechanism needs no forward pass")


def test_these_are_all_that_do_not_learn() -> None:
    assert set(STATIC) == {name for name, kind in MECHANISMS.items() if not kind.learns and not kind.per_example}


@pytest.mark.parametrize("batch", [None, (X, Y), "anything"])
@pytest.mark.parametrize("name", STATIC)
def test_no_forward_pass_is_run_and_no_batch_is_looked_at(name: str, batch: Any) -> None:
    model = Untouchable()
    sent = protect(model, copied(model), batch, name, STATIC[name])
    assert list(sent.parameters) == ["fc.weight", "fc.bias"]
    assert "utility_loss" not in sent.record
    assert noise_alone(model, copied(model), name, STATIC[name]).record.keys() == sent.record.keys()


@pytest.mark.parametrize("name", [name for name in STATIC if MECHANISMS[name].shaping is None])
def test_the_noise_is_that_of_the_step_which_looks_at_the_batch(name: str) -> None:
    """The flat vector has one order for a model, whoever draws for it: seeded noise is the same."""
    model = LeNetZhu()
    batch = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    start, about = copied(model), {"client": 1, "round_number": 4, "experiment_seed": 3}
    slow = ProtectionSettings(eta=1e-12)
    step = protected_step(model, start, batch, name, STATIC[name], settings=slow, **about)
    given = protect(model, start, None, name, STATIC[name], **about)
    assert all(torch.allclose(given.parameters[key], step.parameters[key], atol=1e-6) for key in start)
    assert given.record.keys() == step.record.keys() - {"utility_loss"}
    for key in ("lower", "upper", "intensity", "clipped"):
        assert given.record[key] == pytest.approx(step.record[key], rel=1e-5)


def test_an_update_is_shortened_as_the_learned_mechanisms_shorten_it() -> None:
    model = nn.Linear(60, 30)
    start = copied(model)
    with torch.no_grad():
        model.weight += 10
    for name in ("pl-identical", "pl-learn"):  # without steps the second is static too
        sent = protect(
            model, start, (torch.zeros(2, 60), Y[:2]), name, 0.98, least_relative=2.0, experiment_seed=1,
            settings=ProtectionSettings(steps=0),
        )  # fmt: skip
        noise = protect(model, start, None, "pl-identical", 0.98, experiment_seed=1).parameters["weight"] - model.weight
        moved = sent.parameters["weight"] - start["weight"] - noise
        assert float(moved.detach().norm()) == pytest.approx(7.99975 / 2, rel=1e-2)


# --- buffers --------------------------------------------------------------------------------------------------------


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def trained(model: nn.Module) -> dict[str, Tensor]:
    """What was received, before a training that fits the statistics."""
    start = copied(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X + 3), Y).backward()
        optimizer.step()
    return start


def test_buffers_stay_as_received_unless_told_otherwise() -> None:
    model = normed()
    start = trained(model)
    sent = protect(model, start, None, "pl-identical", 0.98).parameters
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(sent[name], start[name])
        assert not torch.equal(model.state_dict()[name], start[name])


def test_noised_buffers_share_the_noise_of_the_whole() -> None:
    model = normed()
    start = trained(model)
    sent = protect(model, start, None, "pl-identical", 0.98, settings=NOISED, experiment_seed=2)
    now = model.state_dict()
    assert torch.equal(sent.parameters["1.num_batches_tracked"], start["1.num_batches_tracked"]), (
        "no float: as received"
    )
    names = [name for name in now if name != "1.num_batches_tracked"]
    parts = torch.cat([(sent.parameters[name] - now[name]).flatten() for name in names if name != "1.running_var"])
    assert float(parts.norm()) < 7.99975, "the variance has its share of the norm that the budget asks for"
    assert sent.record["intensity"] == pytest.approx(7.99975, rel=1e-5)
    assert float((sent.parameters["1.running_mean"] - now["1.running_mean"]).abs().max()) > 0.01
    model.load_state_dict(sent.parameters)


def test_a_noised_variance_is_never_negative_and_otherwise_the_noise_stands() -> None:
    model = normed()
    start, negative, kept = trained(model), 0, 0
    for seed in range(8):
        drawn = protect(model, start, None, "gs-static", 5.0, settings=NOISED, experiment_seed=seed).parameters
        assert float(drawn["1.running_var"].min()) >= 0
        negative += int((drawn["1.running_var"] == 0).sum())
        kept += int((drawn["1.running_mean"] < 0).sum())
    assert negative > 3
    assert kept > 3


def test_noise_alone_covers_the_same_entries() -> None:
    """Whether an update was refused must not show in what is noised."""
    model = normed()
    start = trained(model)
    alone = noise_alone(model, start, "gs-static", 50.0, settings=NOISED, experiment_seed=1).parameters
    assert not torch.equal(alone["1.running_mean"], start["1.running_mean"])
    assert float((alone["1.running_mean"] - start["1.running_mean"]).norm()) < 3, "nothing that was fitted is in it"


def test_only_entries_that_came_are_noised() -> None:
    model = normed()
    start = {name: tensor for name, tensor in trained(model).items() if "running" not in name}
    assert list(protect(model, start, None, "pl-identical", 0.98, settings=NOISED).parameters) == list(start)


@pytest.mark.parametrize("name", ["pl-identical", "pl-learn"])
def test_refused_buffers_are_named_and_each_remedy_works(name: str) -> None:
    model = normed()
    start = trained(model)
    model.eval()
    with pytest.raises(ReleaseError, match=r"'1.running_mean', '1.running_var', '1.num_batches_tracked'") as caught:
        protect(model, start, (X, Y), name, 0.98, settings=REFUSED)
    assert "Call eval() on the layers" in caught.value.remedy
    careful = normed()
    careful[1].eval()
    start = trained(careful)
    protect(careful, start, (X, Y), name, 0.98, settings=REFUSED)
    grouped = nn.Sequential(nn.Linear(6, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))
    protect(grouped, trained(grouped), (X, Y), name, 0.98, settings=REFUSED)
    noise_alone(model, trained(model), name, 0.98, settings=REFUSED)  # of what was fitted it has nothing


@pytest.mark.parametrize("buffers", ["noised", "refused"])
def test_steps_and_guarantees_take_buffers_as_received_alone(buffers: Any) -> None:
    model, settings = normed().eval(), ProtectionSettings(buffers=buffers)
    for name, budget in (("pl-identical", 0.98), ("laplace-dp", 1.0), ("gaussian-dp", 1.0)):
        with pytest.raises(ConfigError, match=f"parameters alone, got buffers='{buffers}'"):
            protected_step(model, copied(model), (X, Y), name, budget, settings=settings, round_number=1)


def test_a_learned_distortion_cannot_hide_in_buffers() -> None:
    model = normed().eval()
    with pytest.raises(ConfigError, match="where the loss does not look") as caught:
        protect(model, copied(model), (X, Y), "pl-learn", 0.98, settings=NOISED)
    assert "'pl-identical'" in caught.value.remedy
    protect(model, copied(model), (X, Y), "pl-identical", 0.98, settings=NOISED)


def test_a_word_that_is_no_choice_is_refused() -> None:
    bad: Any = "sent"
    with pytest.raises(ConfigError, match="buffers='sent' to be one of received, noised, refused"):
        protect(normed(), {}, None, "none", settings=ProtectionSettings(buffers=bad))


# --- large models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pl-identical", "ls-static"])
def test_the_size_of_noise_in_many_parameters_is_measured_right(name: str) -> None:
    """Added up one by one in float32, 4 million numbers lose 0.1 % of their L1 norm."""
    model = nn.Linear(2048, 2048, bias=False)
    sent = protect(model, copied(model), None, name, STATIC[name], experiment_seed=0)
    noise = sent.parameters["weight"].double() - model.weight.double()
    order = 1 if name == "ls-static" else 2
    assert sent.record["intensity"] == pytest.approx(float(noise.detach().flatten().norm(order)), rel=2e-6)
