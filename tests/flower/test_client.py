"""``protect`` in a train function is the library's own, and keeps to the terms of the run and of the node."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader

from equipoise.errors import BudgetError, ConfigError, DataError, LimitError, ModelError, ReleaseError
from equipoise.flower import protect, protected_step
from equipoise.flower.run_config import read_terms
from equipoise.ledger.ledger import verify
from equipoise.mechanism import protect as core
from tests.flower.messages import LOWER, RUN, answered, asking, context, distance, honest, images, network, start

MECHANISMS: dict[str, Any] = {"none": "", "pl-identical": 0.98, "pl-learn": 0.98, "ls-static": 200.0, "ls-learn": 200.0}


@pytest.mark.parametrize("step", [True, False], ids=["paper's step", "own training"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_both_functions_are_the_librarys_own(name: str, step: bool) -> None:
    run = {"equipoise.mechanism": name, "equipoise.budget": MECHANISMS[name], "equipoise.steps": 4}
    model = network()
    with torch.no_grad():
        model[1].weight.add_(0.25)  # what the local training reached
    about = context(run, {"partition-id": 2})
    here, there = (protected_step, core.protected_step) if step else (protect, core.protect)
    actual = here(model, images(), asking(round_number=5), about, experiment_seed=11)
    expected = there(
        model, start(), images(), name, MECHANISMS[name] or None, settings=read_terms(run).settings,
        client=2, round_number=5, experiment_seed=11,
    )  # fmt: skip
    assert list(actual) == list(start())
    for key, tensor in actual.to_torch_state_dict().items():
        assert torch.equal(tensor, expected.parameters[key])


def test_the_realised_intensity_is_the_budgets() -> None:
    model = network()
    result = protect(model, images(), asking(), context())
    moved = distance(dict(result.to_torch_state_dict()), dict(model.state_dict()))
    assert moved == pytest.approx(LOWER, rel=1e-5)


def test_model_and_message_are_left_alone() -> None:
    model, msg = network(), asking()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    protect(model, images(), msg, context())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(t, start()[n]) for n, t in msg.content["arrays"].to_torch_state_dict().items())


def test_noise_is_new_every_time_and_from_no_seed() -> None:
    def once() -> dict[str, Tensor]:
        torch.manual_seed(1)
        np.random.seed(1)
        return dict(protect(network(), images(), asking(), context()).to_torch_state_dict())

    result = [once() for _ in range(4)]
    assert len({tuple(update["1.weight"].flatten().tolist()) for update in result}) == 4


class Mixed(nn.Module):
    """Buffers, a frozen layer, and one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.register_buffer("count", torch.tensor(3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.free = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.free(self.frozen(x.flatten(1) - self.mean))
        return result


def test_buffers_and_frozen_layers_are_sent_back_as_they_came() -> None:
    """What the client's copy holds there (running means of private data, say) stays with the client."""
    model = Mixed()
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.mean += 1
        model.count += 4
        model.frozen.weight.zero_()
    result = dict(protect(model, images(), asking(tensors=received), context()).to_torch_state_dict())
    assert list(result) == list(received)
    for name, tensor in received.items():
        assert torch.equal(result[name], tensor) != name.startswith("free")
        assert result[name].dtype == tensor.dtype


class Normalised(nn.Module):
    """Running statistics, with a counter that is no floating-point number, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.inner, self.outer, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.outer(self.inner(self.norm(x.flatten(1)))))
        return result


@pytest.mark.parametrize("function", [protect, protected_step])
def test_what_is_sent_loads_into_the_model_and_holds_no_local_statistics(function: Any) -> None:
    model = Normalised()
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(images()[0])  # in train mode: the statistics are those of private data now
    model.eval()
    result = dict(function(model, images(), asking(tensors=received), context()).to_torch_state_dict())
    assert list(result) == list(received)
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(result[name], received[name])
        assert not torch.equal(result[name], model.state_dict()[name])
    assert torch.equal(result["inner.weight"], result["outer.weight"])
    assert not torch.equal(result["inner.weight"], model.inner.weight)
    model.load_state_dict(result)


def test_laplace_dp_makes_its_own_step_and_says_so() -> None:
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0}
    with pytest.raises(ConfigError, match="Call protected_step"):
        protect(network(), images(), asking(), context(run))
    assert list(protected_step(network(), images(), asking(), context(run))) == list(start())


def test_both_functions_have_one_signature() -> None:
    assert inspect.signature(protect) == inspect.signature(protected_step)
    one, other = (list(inspect.signature(function).parameters) for function in (core.protect, core.protected_step))
    assert [*one, "divisor"] == other


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError):
        protect(nn.Flatten(), images(), asking(), context())


def failing_loader() -> Iterator[Any]:
    raise KeyError("patient 4711")
    yield


def test_the_words_of_an_error_in_the_loader_are_not_quoted() -> None:
    with pytest.raises(DataError, match=r"The loader failed: KeyError at test_client.py:") as caught:
        protect(network(), failing_loader(), asking(), context())
    assert "4711" not in "".join(traceback.format_exception(caught.value))


def test_a_batch_can_come_in_any_usual_form() -> None:
    x, y = images()
    pairs = DataLoader(list(zip(x, y, strict=True)), batch_size=6)
    named = [{"img": image, "label": label} for image, label in zip(x, y, strict=True)]
    forms: list[tuple[Any, dict[str, Any]]] = [
        ((x, y), {}),
        ([x, y], {}),
        ({"img": x, "label": y, "id": [1]}, {}),
        ({"x": x, "y": y}, {"keys": ("x", "y")}),
        (pairs, {}),
        (DataLoader(named, batch_size=6), {}),
        (iter([(x, y), "not looked at"]), {}),
    ]
    expected = protected_step(network(), (x, y), asking(), context(), experiment_seed=1)
    for data, options in forms:
        actual = protected_step(network(), data, asking(), context(), experiment_seed=1, **options)
        assert actual == expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader([]), "The loader is empty"),
        (iter([]), "The loader is empty"),
        (3, "Expected a mini-batch or a loader, got int"),
        (None, "Expected a mini-batch or a loader, got NoneType"),
        ({"image": 1, "label": 2}, "The batch has no 'img'; it has image, label"),
        ((1, 2), "Expected a mini-batch of two tensors"),
        ((torch.ones(1),), "Expected a mini-batch of two tensors"),
        (["a", "b"], "Expected a mini-batch of two tensors"),
        (iter([torch.ones(2, 4)]), "Expected a mini-batch of two tensors"),
        (iter([7]), "Expected a mini-batch of two tensors"),
    ],
)
def test_a_batch_of_no_use_is_an_error_that_names_it(data: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        protect(network(), data, asking(), context())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "node", "words"),
    [
        ({"round_number": None}, {}, "The message names no round"),
        ({"round_number": True}, {}, "whole number >= 0"),
        ({"round_number": -1}, {}, "whole number >= 0"),
        ({"round_number": 1.0}, {}, "whole number >= 0"),
        ({}, {"partition-id": -1}, "whole number >= 0"),
        ({}, {"partition-id": "0"}, "whole number >= 0"),
        ({}, {"equipoise.budget": 1.0}, "in the node config"),
    ],
)
def test_a_message_or_node_without_its_numbers_is_an_error(options: Any, node: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        protect(network(), images(), asking(**options), context(node=node))
    assert words in str(caught.value)


def test_exactly_one_model_is_received() -> None:
    msg = asking()
    msg.content["second"] = ArrayRecord(start())
    with pytest.raises(ReleaseError, match="Expected one set of arrays in the message, got 2"):
        protect(network(), images(), msg, context())
    del msg.content["second"], msg.content["arrays"]
    with pytest.raises(ReleaseError, match="got 0"):
        protect(network(), images(), msg, context())


def test_a_broken_global_model_is_not_trained_on() -> None:
    broken = {**start(), "1.bias": torch.tensor([1.0, float("nan"), 1.0])}
    with pytest.raises(ReleaseError, match="'received' are not finite"):
        protect(network(), images(), asking(tensors=broken), context())


def lower_of(node: dict[str, Any], round_number: int = 1, **run: Any) -> float:
    """The lower bound that a client tells."""
    config = {**RUN, **{f"equipoise.{key}": value for key, value in run.items()}}
    result = answered(honest, asking(round_number=round_number), context(config, node))
    return float(result.content["metrics"]["equipoise.lower"])


def test_budgets_differ_by_client_and_round() -> None:
    measure = read_terms(RUN).settings.measure("pl-identical")
    assert measure is not None
    listed = "[0.96, 0.98, 0.97]"
    for client, budget in enumerate((0.96, 0.98, 0.97)):
        assert lower_of({"partition-id": client}, budget=listed) == pytest.approx(measure.lower(budget))
    table = '{"rounds": [1, 3], "values": [0.96, 0.97]}'
    for round_number, budget in ((1, 0.96), (2, 0.96), (3, 0.97), (900, 0.97)):
        assert lower_of({}, round_number, budget=table) == pytest.approx(measure.lower(budget))
    with pytest.raises(ReleaseError):
        lower_of({"partition-id": 3}, budget=listed)


# --- what a node allows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ({"equipoise.mechanisms": "ls-learn,pl-learn"}, ConfigError),
        ({"equipoise.budget-at-most": 0.9}, BudgetError),
    ],
)
def test_a_node_keeps_to_its_own_terms(node: dict[str, Any], error: type[Exception]) -> None:
    about = context(node=node)
    with pytest.raises(error):
        protect(network(), images(), asking(), about)
    assert "equipoise" not in about.state, "nothing was released"


def test_a_client_of_the_list_is_held_to_its_own_budget() -> None:
    run = {**RUN, "equipoise.budget": "[0.96, 0.98]"}
    node = {"equipoise.budget-at-most": 0.97}
    protect(network(), images(), asking(), context(run, {**node, "partition-id": 0}))
    with pytest.raises(BudgetError, match=r"up to 0\.97, the run asks for 0\.98"):
        protect(network(), images(), asking(), context(run, {**node, "partition-id": 1}))


@pytest.mark.parametrize(
    ("run", "node", "where"), [(0, 2, "in all"), (2, 0, "in this run"), (2, 9, "in this run"), (9, 2, "in all")]
)
def test_a_client_stops_at_the_limit(run: int, node: int, where: str, tmp_path: Path) -> None:
    own = {"equipoise.release-limit": node, "equipoise.ledger": str(tmp_path / "releases.jsonl")}
    about = context({**RUN, "equipoise.release-limit": run}, own)
    for round_number in (1, 2):
        protect(network(), images(), asking(round_number=round_number), about)
    with pytest.raises(LimitError, match=f"released 2 times {where}; the limit is 2"):
        protect(network(), images(), asking(round_number=3), about)


def test_the_limit_of_a_run_counts_that_run_alone(tmp_path: Path) -> None:
    """Releases of earlier runs are the node's business: its ledger has them, the run's limit leaves them out."""
    node = {"equipoise.ledger": str(tmp_path / "releases.jsonl")}
    run = {**RUN, "equipoise.release-limit": 2}
    for _ in range(2):
        about = context(run, node)
        for round_number in (1, 2):
            protect(network(), images(), asking(round_number=round_number), about)
    with pytest.raises(LimitError, match="released 2 times in this run; the limit is 2"):
        protect(network(), images(), asking(round_number=3), about)
    assert verify(tmp_path / "releases.jsonl").counts[0, "0"].asked == 4


def test_what_failed_is_not_a_release(tmp_path: Path) -> None:
    about = context(node={"equipoise.release-limit": 1, "equipoise.ledger": str(tmp_path / "releases.jsonl")})
    with pytest.raises(DataError):
        protect(network(), DataLoader([]), asking(), about)
    protect(network(), images(), asking(), about)


def test_the_nodes_own_ledger_counts_over_runs_and_restarts(tmp_path: Path) -> None:
    path = tmp_path / "node" / "releases.jsonl"
    node = {"equipoise.ledger": str(path), "equipoise.release-limit": 3, "partition-id": 7}
    for _ in range(3):
        protect(network(), images(), asking(), context(node=node))  # a context of its own: another run
    with pytest.raises(LimitError, match="released 3 times in all; the limit is 3"):
        protect(network(), images(), asking(), context(node=node))
    result = verify(path)
    assert result.counts[0, "7"].asked == 3
    assert result.counts[0, "7"].low == pytest.approx(LOWER, rel=1e-5), "exact, and with the client"


def test_the_nodes_ledger_says_nothing_of_the_noise_of_a_formal_guarantee(tmp_path: Path) -> None:
    """The guarantee covers the release alone: the size of its noise beside it would undo it."""
    path = tmp_path / "releases.jsonl"
    about = context({"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0}, {"equipoise.ledger": str(path)})
    protected_step(network(), images(), asking(), about)
    entry = json.loads(path.read_text().splitlines()[-1])
    assert entry["releases"] == [{"client": "0", "lower": None, "upper": None, "intensity": None, "accepted": True}]
    assert (entry["mechanism"], entry["budget"]) == ("laplace-dp", 200.0)


def test_a_release_that_cannot_be_counted_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "releases.jsonl"
    node = {"equipoise.ledger": str(path)}
    protect(network(), images(), asking(), context(node=node))
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":2', 1))
    about = context(node=node)
    with pytest.raises(Exception, match="ledger"):
        protect(network(), images(), asking(), about)
    assert "equipoise" not in about.state
