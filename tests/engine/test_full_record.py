"""Full records: what the coming round will do to every client's loss on all of its data, checked model by model."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.full_record import full_record
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.models.bundled import LeNetZhu
from tests.engine.sweeps import BUDGETS, EVERY, first_rows, one_round, rows_of, small, sweep_of


def loss_of(model: nn.Module, sweep: Sweep, flat: Tensor, part: Tensor) -> Tensor:
    twin = copy.deepcopy(model).double()
    twin.load_state_dict(sweep.batched.layout.unflatten(flat.double()))
    return nn.functional.cross_entropy(twin(sweep.inputs[part].double()), sweep.labels[part])


def test_utility_losses_are_those_of_the_batch_and_of_all_a_clients_data(few: Dataset) -> None:
    federations = [Federation("few", name, BUDGETS[name]) for name in ("none", "pl-learn", "ls-static")]
    sweep = sweep_of(few, federations, small(), rounds=3, full_every=3, evaluate_every=3, dtype="float64")
    sweep.train(2)
    released, distortions = one_round(sweep, 3)
    examples = sweep.tables([3]).batches[0]
    rows = first_rows(sweep)
    for row in rows:
        f = [fed.mechanism for fed in sweep.federations].index(row["mechanism"])
        for k in range(4):
            models = released[f][k], released[f][k] - distortions[f][k]
            for name, part in (("utility_loss_last", examples[k]), ("full_utility_loss", sweep.parts["few"][k])):
                after, before = (loss_of(small(), sweep, flat, part).item() for flat in models)
                assert row[name][k] == pytest.approx(after - before, abs=1e-9)
        assert row["round"] == 3
    assert rows[0]["full_utility_loss"] == [0.0] * 4


def test_the_recorded_gradient_is_that_of_all_training_data_before_the_round(few: Dataset) -> None:
    federations = [Federation("few", "none", seed=s) for s in (1, 2)]
    sweep = sweep_of(few, federations, rounds=2, full_every=2, evaluate_every=2, dtype="float64")
    expected = []
    sweep.train(1)
    for flat in sweep.state.params:
        model = LeNetZhu().double()
        model.load_state_dict(sweep.batched.layout.unflatten(flat))
        loss = nn.functional.cross_entropy(model(few.train.inputs.double()), few.train.labels)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        expected.append(sum(float((g**2).sum()) for g in grads))
    rows = first_rows(sweep)
    assert [row["gradient_norm_squared"] for row in rows] == pytest.approx(expected, rel=1e-9)


def test_only_static_scale_mechanisms_have_an_expected_utility_loss(few: Dataset) -> None:
    sweep = sweep_of(few, EVERY, small(), rounds=2, full_every=2, evaluate_every=2, expected_draws=4)
    static = ["ls-static", "gs-static", "laplace-dp", "gaussian-dp"]
    for rows in rows_of(sweep):
        assert [row["mechanism"] for row in rows if "expected_utility_loss" in row] == static
        assert all("full_utility_loss" in row and "gradient_norm_squared" in row for row in rows)
        for row in rows:
            if "expected_utility_loss" in row:
                assert row["expected_draws"] == 4
                assert len(row["expected_utility_loss"]) == len(row["expected_utility_loss_error"]) == 4


@pytest.mark.parametrize("name", ["ls-static", "gs-static"])
def test_the_expected_utility_loss_is_a_mean_over_fresh_noise(few: Dataset, name: str) -> None:
    fed = Federation("few", name, [200, 100, 50, 25])
    sweep = sweep_of(few, [fed], small(), rounds=1, full_every=1, expected_draws=400, dtype="float64")
    released, distortions = one_round(sweep)
    row = first_rows(sweep)[0]
    local = torch.Generator().manual_seed(8)
    for k, scale in enumerate(sweep.settings.protection.scales(fed.mechanism, fed.budget, [1])[0]):
        base = released[0][k] - distortions[0][k]
        noise = torch.randn(400, len(base), dtype=torch.float64, generator=local)
        if name == "ls-static":
            signs = noise.sign()
            noise = torch.empty_like(noise).exponential_(generator=local) * signs
        part = sweep.parts["few"][k]
        objective = sweep.batched.at(
            sweep.inputs[part].expand(401, *sweep.inputs[part].shape), sweep.labels[part].expand(401, -1)
        )
        losses = objective.loss(torch.cat([base.unsqueeze(0), base + scale * noise]))
        gains = losses[1:] - losses[0]
        error = float(gains.std()) / 20
        assert row["expected_utility_loss_error"][k] == pytest.approx(error, rel=0.3)
        assert abs(row["expected_utility_loss"][k] - float(gains.mean())) < 5 * 1.5 * error


def test_full_records_come_exactly_where_the_settings_say(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "pl-identical", 0.98)], small(), rounds=11, evaluate_every=4, full_every=3)
    history = rows_of(sweep)
    assert [rows[0]["round"] for rows in history] == [1, 3, 4, 6, 8, 9, 11]
    full = [rows[0]["round"] for rows in history if "full_utility_loss" in rows[0]]
    assert full == sweep.settings.fully_recorded() == [1, 3, 6, 9, 11]


def test_a_full_record_looks_and_changes_nothing(few: Dataset) -> None:
    sweep = sweep_of(few, EVERY, small(), expected_draws=3)
    sweep.train(1)
    params, recent = sweep.state.params.clone(), sweep.state.tally.recent.clone()
    first = full_record(sweep)
    assert full_record(sweep) == first
    assert sweep.state.round == 1
    assert torch.equal(sweep.state.params, params)
    torch.testing.assert_close(sweep.state.tally.recent, recent, rtol=0, atol=0, equal_nan=True)


def test_every_federation_is_recorded_on_its_own_dataset(few: Dataset) -> None:
    inverted = replace(few, name="inverted", train=replace(few.train, inputs=-few.train.inputs))
    federations = [Federation(d, "pl-identical", 0.98) for d in ("few", "inverted")]
    both = Sweep(Settings.flat(rounds=2), federations, {"few": few, "inverted": inverted}, small())
    actual = full_record(both)
    for fed, row, data in zip(federations, actual, (few, inverted), strict=True):
        alone = Sweep(Settings.flat(rounds=2), [fed], {fed.dataset: data}, small())
        (expected,) = full_record(alone)
        assert row["full_utility_loss"] == pytest.approx(expected["full_utility_loss"], rel=1e-4)
        assert row["gradient_norm_squared"] == pytest.approx(expected["gradient_norm_squared"], rel=1e-4)
    assert actual[0]["gradient_norm_squared"] != pytest.approx(actual[1]["gradient_norm_squared"], rel=1e-2)


def test_the_losses_are_those_of_the_clients_that_will_take_part(few: Dataset) -> None:
    fed = [Federation("few", "pl-identical", 0.98, seed=5)]
    sweep = sweep_of(few, fed, small(), participants=2, partition="shards", dtype="float64", rounds=9)
    seen = set()
    for round_number in range(1, 6):
        released, distortions = one_round(sweep, round_number)
        who = sweep.draws.participants([round_number])[0, 0].tolist()
        seen.add(tuple(who))
        (row,) = full_record(sweep)
        for slot, client in enumerate(who):
            models = released[0][slot], released[0][slot] - distortions[0][slot]
            after, before = (loss_of(small(), sweep, flat, sweep.parts["few"][client]).item() for flat in models)
            assert row["full_utility_loss"][slot] == pytest.approx(after - before, abs=1e-9)
        sweep.train(round_number)
    assert len(seen) > 2, "not the same clients in every round"
