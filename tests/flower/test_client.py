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
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn
from torch.utils.data import DataLoader

from equipoise.errors import ConfigError, DataError, LedgerError, LimitError, ModelError, PolicyError, ReleaseError
from equipoise.flower import protect, protected_step
from equipoise.flower.run_config import read_terms
from equipoise.ledger.account import Account
from equipoise.mechanism import learned_leak
from equipoise.mechanism import protect as core
from tests.flower.messages import (
    LOWER,
    RUN,
    answered,
    asking,
    content,
    context,
    distance,
    honest,
    images,
    network,
    start,
)
from tests.flower.policies import easy, node

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


def test_laplace_dp_makes_its_own_step_and_says_so(tmp_path: Path) -> None:
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0}
    own = node(tmp_path / "p.toml", weight=1)
    with pytest.raises(ConfigError, match="Call protected_step"):
        protect(network(), images(), asking(), context(run, own))
    assert list(protected_step(network(), images(), asking(), context(run, own))) == list(start())


def test_both_functions_have_one_signature() -> None:
    assert inspect.signature(protect) == inspect.signature(protected_step)
    one, other = (list(inspect.signature(function).parameters) for function in (core.protect, core.protected_step))
    assert [*one, "divisor", "groups"] == other


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError):
        protect(nn.Flatten(), images(), asking(), context())


def failing_loader() -> Iterator[Any]:
    raise KeyError("patient 4711")
    yield


def test_the_words_of_an_error_in_the_loader_are_not_quoted() -> None:
    with pytest.raises(DataError, match=r"The loader failed: KeyError at test_client.py:") as caught:
        protected_step(network(), failing_loader(), asking(), context())
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
        (lambda: (x, y), {}),
        (lambda: pairs, {}),
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
        protected_step(network(), data, asking(), context())
    assert words in str(caught.value)


@pytest.mark.parametrize("data", [None, 3, DataLoader([])])
def test_a_static_mechanism_needs_no_batch(data: Any) -> None:
    """RUN has one; what it cannot use it does not look at, and a learned one still needs it."""
    sent = protect(network(), data, asking(), context()).to_torch_state_dict()
    assert list(sent) == list(start())
    with pytest.raises(DataError):
        protect(network(), data, asking(), context({**RUN, "equipoise.mechanism": "pl-learn"}))


@pytest.mark.parametrize(
    ("options", "node", "words"),
    [
        ({"round_number": None}, {}, "The message names no round"),
        ({"round_number": True}, {}, "whole number >= 0"),
        ({"round_number": -1}, {}, "whole number >= 0"),
        ({"round_number": 1.0}, {}, "whole number >= 0"),
        ({}, {"partition-id": -1}, "whole number >= 0"),
        ({}, {"partition-id": "0"}, "whole number >= 0"),
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
    loosest = lower_of({"partition-id": 3}, budget=listed)
    assert loosest == pytest.approx(measure.lower(0.98)), "who has no number in the list has the loosest"


# --- what a node counts -------------------------------------------------------------------------------------


def counted(folder: Path, most: int = 1000, **changes: Any) -> dict[str, Any]:
    """A node config whose policy keeps a ledger."""
    if not (folder / "l.jsonl").exists():
        Account.create(folder / "l.jsonl", "a1b2")
    return node(folder / "p.toml", experiment=None, account="a1b2", ledger="l.jsonl", most_releases=most, **changes)


def test_a_client_of_the_list_is_held_to_its_own_budget(tmp_path: Path) -> None:
    run = {**RUN, "equipoise.budget": "[0.96, 0.98]"}
    bounds = {"pl-identical": {**easy("pl-identical")["pl-identical"], "least-intensity": 12.0}}
    own = node(tmp_path / "p.toml", mechanisms=bounds)
    protect(network(), images(), asking(), context(run, {**own, "partition-id": 0}))
    with pytest.raises(PolicyError, match=r"least-intensity = 12 .* the run asks for 7\.99975"):
        protect(network(), images(), asking(), context(run, {**own, "partition-id": 1}))


@pytest.mark.parametrize(
    ("run", "most", "error", "words"),
    [
        (0, 2, PolicyError, "released 2 times in all; its policy has most-releases = 2"),
        (2, 9, LimitError, "released 2 times in this run; the limit is 2"),
        (9, 2, PolicyError, "released 2 times in all"),
    ],
)
def test_a_client_stops_at_the_limit(run: int, most: int, error: type[Exception], words: str, tmp_path: Path) -> None:
    about = context({**RUN, "equipoise.release-limit": run}, counted(tmp_path, most))
    for round_number in (1, 2):
        protect(network(), images(), asking(round_number=round_number), about)
    with pytest.raises(error, match=words):
        protect(network(), images(), asking(round_number=3), about)


def test_the_limit_of_a_run_counts_that_run_alone(tmp_path: Path) -> None:
    """Releases of earlier runs are the node's business: its ledger has them, the run's limit leaves them out."""
    own, run = counted(tmp_path), {**RUN, "equipoise.release-limit": 2}
    for _ in range(2):
        about = context(run, own)
        for round_number in (1, 2):
            protect(network(), images(), asking(round_number=round_number), about)
    with pytest.raises(LimitError, match="released 2 times in this run; the limit is 2"):
        protect(network(), images(), asking(round_number=3), about)
    with Account.open(tmp_path / "l.jsonl", "a1b2") as account:
        assert account.releases == 4


def test_a_mechanism_has_a_limit_of_its_own(tmp_path: Path) -> None:
    bounds = easy("pl-identical", "pl-learn")
    bounds["pl-identical"]["most-releases"] = 1
    own = counted(tmp_path, mechanisms=bounds)
    protect(network(), images(), asking(), context(node=own))
    with pytest.raises(PolicyError, match="released 1 times by pl-identical"):
        protect(network(), images(), asking(), context(node=own))
    protect(network(), images(), asking(), context({**RUN, "equipoise.mechanism": "pl-learn"}, own))


def test_what_failed_is_charged_all_the_same(tmp_path: Path) -> None:
    """That it failed may tell of the data: a server could ask for nothing else, for ever."""
    about = context(node=counted(tmp_path, 1))
    with pytest.raises(DataError):
        protected_step(network(), DataLoader([]), asking(), about)
    with pytest.raises(PolicyError, match="released 1 times in all"):
        protect(network(), images(), asking(), about)


@pytest.mark.parametrize("function", [protect, protected_step])
@pytest.mark.parametrize("mechanism", ["pl-identical", "pl-learn", "ls-static", "gs-learn"])
def test_an_update_that_overflows_is_no_visible_refusal(function: Any, mechanism: str) -> None:
    """A server that chooses weights and step size could else read pixels off who refuses."""
    budget = 0.98 if mechanism.startswith("pl") else 200.0
    run = {
        "equipoise.mechanism": mechanism,
        "equipoise.budget": budget,
        "equipoise.eta": 1e38,
        "equipoise.clip": "none",
    }
    model, received = network(), {name: 100 * tensor for name, tensor in start().items()}
    if function is protect:
        with torch.no_grad():
            model[1].weight.fill_(float("inf"))  # what such a training reached
    batch = (1e6 * images()[0], images()[1])
    sent = dict(function(model, batch, asking(tensors=received), context(run)).to_torch_state_dict())
    assert all(torch.isfinite(tensor).all() for tensor in sent.values())
    if mechanism == "pl-identical":
        assert distance(sent, received) == pytest.approx(LOWER, rel=1e-2), "noise alone"


def test_weights_that_would_swallow_the_noise_are_refused_whatever_the_data() -> None:
    large = {name: torch.full_like(tensor, 1.5 * 2.0**25) for name, tensor in start().items()}
    with pytest.raises(ReleaseError, match=r"noise of 2\.07 would be rounded away"):
        protected_step(network(), images(), asking(tensors=large), context())


def test_the_nodes_own_ledger_counts_over_runs_and_restarts(tmp_path: Path) -> None:
    own = {**counted(tmp_path, 3), "partition-id": 7}
    for _ in range(3):
        protect(network(), images(), asking(), context(node=own))  # a context of its own: another run
    with pytest.raises(PolicyError, match="released 3 times in all"):
        protect(network(), images(), asking(), context(node=own))
    asked, entry = (json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()[-2:])
    assert (asked["kind"], asked["clients"]) == ("asked", ["7"])
    assert entry["releases"][0]["client"] == "7"
    assert entry["releases"][0]["intensity"] == pytest.approx(LOWER, rel=1e-5), "exact, and with the client"


def test_the_nodes_ledger_says_nothing_of_the_noise_of_a_formal_guarantee(tmp_path: Path) -> None:
    """The guarantee covers the release alone: the size of its noise beside it would undo it."""
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0}
    protected_step(network(), images(), asking(), context(run, counted(tmp_path, weight=1)))
    entry = json.loads((tmp_path / "l.jsonl").read_text().splitlines()[-1])
    assert entry["releases"] == [{"client": "0", "lower": None, "upper": None, "intensity": None, "accepted": True}]
    assert (entry["mechanism"], entry["budget"]) == ("laplace-dp", 200.0)


def test_the_sum_of_epsilons_ends_where_the_policy_says(tmp_path: Path) -> None:
    bounds = easy("laplace-dp")
    bounds["laplace-dp"]["most-total-epsilon"] = 2.5
    own = counted(tmp_path, weight=1, mechanisms=bounds)
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}
    for _ in range(2):
        protected_step(network(), images(), asking(), context(run, own))
    with pytest.raises(
        PolicyError, match=r"epsilon 2 is spent or reserved; 1 more would pass most-total-epsilon = 2\.5"
    ):
        protected_step(network(), images(), asking(), context(run, own))


@pytest.mark.parametrize("harm", ["deleted", "cut", "older", "other", "changed", "copied"])
def test_a_ledger_that_was_tampered_with_is_noticed_and_nothing_leaves(harm: str, tmp_path: Path) -> None:
    path, about = tmp_path / "l.jsonl", context(node=counted(tmp_path))
    protect(network(), images(), asking(), about)
    older = path.read_bytes()
    protect(network(), images(), asking(round_number=2), about)
    whole = path.read_bytes()
    if harm == "copied":
        Account.create(tmp_path / "other" / "l.jsonl", "b2c3")
        whole = (tmp_path / "other" / "l.jsonl").read_bytes()
    broken = {
        "deleted": None, "cut": whole[:-30], "older": older, "other": older.splitlines(keepends=True)[0],
        "changed": whole.replace(b'"round":1', b'"round":7', 1), "copied": whole,
    }[harm]  # fmt: skip
    path.unlink()
    if broken is not None:
        path.write_bytes(broken)
        path.chmod(0o600)
    with pytest.raises(LedgerError) as caught:
        protect(network(), images(), asking(round_number=3), about)
    assert "Others may read" not in str(caught.value), "what is noticed is the tampering"
    assert about.state["equipoise"]["releases"] == 2


def test_within_a_run_flowers_state_tells_of_a_ledger_that_went_back_with_all_that_is_beside_it(tmp_path: Path) -> None:
    about = context(node=counted(tmp_path))
    protect(network(), images(), asking(), about)
    before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    protect(network(), images(), asking(round_number=2), about)
    for file, old in before.items():
        file.write_bytes(old)
    with pytest.raises(LedgerError):
        protect(network(), images(), asking(round_number=3), about)


# --- what one example must not decide ------------------------------------------------------------------------


def test_a_clients_log_has_once_what_learned_noise_gives_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_leak, "_TOLD", set())
    for name in ("pl-identical", "pl-learn", "pl-learn"):
        about = context({**RUN, "equipoise.mechanism": name, "equipoise.budget": 0.98, "equipoise.steps": 2})
        protect(network(), images(), asking(), about)
    lines = [record.getMessage() for record in caplog.records if "private batch" in record.getMessage()]
    assert [line.split()[0] for line in lines] == ["pl-learn"]


def failing(*_: Any) -> Any:
    raise MemoryError("patient 4711")


@pytest.mark.parametrize(
    "data", [failing, failing_loader, lambda: 3, lambda: (torch.full((6, 1, 2, 2), 1e30), failing)]
)
def test_under_a_formal_guarantee_a_loader_that_fails_is_no_visible_refusal(
    data: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(msg: Message, context: Context) -> Message:
        return Message(content(protected_step(network(), data, msg, context)), reply_to=msg)

    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}
    reply = answered(train, about=context(run, node(tmp_path / "p.toml", weight=1)))
    assert not reply.has_error()
    assert not torch.equal(reply.content["arrays"].to_torch_state_dict()["1.weight"], start()["1.weight"])
    assert "noise alone is sent" in caplog.text
    assert "4711" not in caplog.text


def test_under_a_formal_guarantee_a_loss_that_fails_is_no_visible_refusal(tmp_path: Path) -> None:
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}
    about = context(run, node(tmp_path / "p.toml", weight=1))

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        if bool((labels == 2).any()):
            raise MemoryError("patient 4711")
        return nn.functional.cross_entropy(outputs, labels)

    sent = protected_step(network(), images(), asking(), about, loss=loss)
    assert not torch.equal(sent.to_torch_state_dict()["1.weight"], start()["1.weight"])
