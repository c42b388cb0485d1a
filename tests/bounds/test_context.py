"""F over a sweep's federations against plain autograd, and where a federation's draws are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from equipoise.bounds.context import BoundsContext
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from tests.bounds.runs import CHEAP, untrained

FEDERATIONS = [
    Federation("one", "pl-learn", 0.98, 1), Federation("two", "none", None, 2), Federation("one", "pl-learn", 0.98, 2),
]  # fmt: skip


@pytest.fixture
def two(few: Dataset) -> BoundsContext:
    """Two datasets, two seeds and two mechanisms, so that the sweep orders the federations anew."""
    images, labels = few.train.inputs[:80], few.train.labels[:80]
    other = from_tensors((images, labels), (images, labels), classes=10, name="two")
    settings = Settings.flat(model="mlp", init="torch", server_rate="auto")
    sweep = Sweep(settings, FEDERATIONS, {"one": few, "two": other})
    return BoundsContext(sweep, [0], {0: sweep.state.params, 7: sweep.state.params}, replace(CHEAP, examples=10))


def test_losses_and_gradients_are_those_of_each_federations_own_data(two: BoundsContext) -> None:
    sweep, params = two.sweep, two.sweep.state.params
    losses, gradients = two.losses(params), two.gradients(params)
    for index, fed in enumerate(sweep.federations):
        data = sweep.datasets[fed.dataset].train
        weights = params[index].clone().requires_grad_()
        named = sweep.batched.layout.unflatten(weights)
        outputs = torch.func.functional_call(sweep.batched.model, named, data.inputs.to(sweep.dtype))
        loss = nn.functional.cross_entropy(outputs, data.labels)
        assert losses[index].item() == pytest.approx(loss.item(), rel=1e-5)
        assert torch.allclose(gradients[index], torch.autograd.grad(loss, weights)[0], atol=1e-6)


def test_losses_may_be_taken_over_some_examples(two: BoundsContext) -> None:
    drawn = two.drawn_examples(3)
    assert {name: len(rows) for name, rows in drawn.items()} == {"one": 10, "two": 10}
    assert set(drawn["two"].tolist()) <= set(two.sweep.examples("two").tolist())
    assert len(set(drawn["one"].tolist())) == 10
    assert not torch.equal(drawn["one"], two.drawn_examples(4)["one"])
    params = two.sweep.state.params
    each = torch.stack([two.losses(params, {name: rows[i : i + 1] for name, rows in drawn.items()}) for i in range(10)])
    assert torch.allclose(each.mean(0), two.losses(params, drawn))
    assert not torch.allclose(two.losses(params), two.losses(params, drawn))


def test_mini_batches_and_noise_are_found_where_the_sweep_has_them(two: BoundsContext) -> None:
    sweep = two.sweep
    for index in range(3):
        rows, streams = [], []
        for block in sweep.blocks:
            for place, (federation, _) in enumerate(
                (f, k) for f in range(block.federations.start, block.federations.stop)
                for k in range(block.slots.start, block.slots.stop)
            ):  # fmt: skip
                if federation == index:
                    rows.append(int(block.data[place]))
                    streams.append(int(block.rows[place]))
        assert (two.batch_rows(index), two.streams(index)) == (rows, streams)
    batches = sweep.tables([1]).batches[0]
    for index, fed in enumerate(sweep.federations):
        for client, row in enumerate(two.batch_rows(index)):
            assert set(batches[row].tolist()) <= set(sweep.parts[fed.dataset][client].tolist())


def test_server_rates_are_each_federations_own(two: BoundsContext) -> None:
    rates = [two.server_rate(index, 1) for index in range(3)]
    named = {fed.mechanism: rate for fed, rate in zip(two.sweep.federations, rates, strict=True)}
    assert named["none"] == 1.0
    assert named["pl-learn"] == pytest.approx(1 / 7.99975)


def test_the_last_round_is_that_of_the_last_snapshot_asked_for_or_not(two: BoundsContext) -> None:
    assert (two.snapshots, two.last) == ([0], 7)
    assert two.about(0, None) == {"dataset": "one", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": None}


def test_only_layers_known_to_be_smooth_are(few: Dataset) -> None:
    fed = Federation("few", "none")
    assert untrained(few, fed, model="lenet-zhu").smooth
    assert not untrained(few, fed, model="mlp").smooth  # ReLU


def test_the_double_is_the_same_model_in_float64(two: BoundsContext) -> None:
    images, labels = two.sweep.inputs[:4].unsqueeze(0), two.sweep.labels[:4].unsqueeze(0)
    params = two.sweep.state.params[:1]
    exact = two.double.at(images.double(), labels).loss(params.double())
    assert exact.dtype == torch.float64
    assert torch.allclose(exact, two.sweep.batched.at(images, labels).loss(params).double(), rtol=1e-5)


def test_progress_is_told_where_somebody_listens(two: BoundsContext) -> None:
    two.tell("nobody hears", 1.0)
    heard: list[tuple[str, float]] = []
    replace(two, progress=lambda what, amount: heard.append((what, amount))).tell("this", 2.0)
    assert heard == [("this", 2.0)]
