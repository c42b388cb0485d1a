"""Algorithm 1, line by line, for a whole sweep; its hooks, and looking ahead without a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError, ModelError
from equipoise.mechanism.intensity import intensity
from equipoise.models.bundled import LeNetZhu
from tests.engine.sweeps import BUDGETS, assert_rows_agree, one_round, rows_of, small, sweep_of

# --- Algorithm 1, line by line -----------------------------------------------------------------------------


def test_the_step_is_the_weighted_mean_of_the_releases(few: Dataset) -> None:
    federations = [Federation("few", "pl-learn", 0.98), Federation("few", "ls-static", 200)]
    sweep = sweep_of(few, federations, sizes=[1.0, 1.0, 2.0, 4.0], dtype="float64")
    assert sweep.shares["few"].tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 2], abs=0.01)
    assert [len(part) for part in sweep.parts["few"]] == [20, 20, 40, 80]
    released, distortions = one_round(sweep)
    expected = [(sweep.shares["few"].unsqueeze(-1) * r).sum(0) for r in released]
    moved = [float(intensity((sweep.shares["few"].unsqueeze(-1) * d).sum(0))) for d in distortions]
    sweep = sweep_of(few, federations, sizes=[1.0, 1.0, 2.0, 4.0], dtype="float64", rounds=1)
    rows = rows_of(sweep)[0]
    for f in range(2):
        torch.testing.assert_close(sweep.state.params[f], expected[f], rtol=1e-12, atol=1e-12)
        assert rows[f]["distortion_norm"] == pytest.approx(moved[f], rel=1e-9)
        assert rows[f]["distortion_norm_squared"] == pytest.approx(moved[f] ** 2, rel=1e-9)


def test_sampled_participants_are_averaged_by_their_own_weights(few: Dataset) -> None:
    change: dict[str, Any] = {"participants": 2, "sizes": [1.0, 2.0, 3.0, 4.0], "dtype": "float64", "rounds": 6}
    fed = [Federation("few", "pl-identical", [0.96, 0.97, 0.98, 0.99], seed=5)]
    sweep = sweep_of(few, fed, small(), **change)
    lowers = torch.tensor(sweep.settings.scales(fed[0].mechanism, fed[0].budget, [1])[0], dtype=torch.float64)
    seen = set()
    for when in range(1, 7):
        who = sweep.draws.participants([when])[0, 0]
        seen |= set(who.tolist())
        released, distortions = one_round(sweep, when)
        assert released[0].shape[0] == 2
        torch.testing.assert_close(intensity(distortions[0]), lowers[who], rtol=1e-9, atol=0)
        p = sweep.shares["few"][who]
        sweep.train(when)
        expected = (p.unsqueeze(-1) * released[0]).sum(0) / p.sum()
        torch.testing.assert_close(sweep.state.params[0], expected, rtol=1e-12, atol=1e-12)
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize(("rate", "factor"), [(0.5, 0.5), ("auto", 1 / 7.99975)])
def test_the_server_rate_is_a_step_towards_the_mean(few: Dataset, rate: float | str, factor: float) -> None:
    fed = [Federation("few", "pl-learn", 0.98)]
    full = sweep_of(few, fed, dtype="float64")
    damped = sweep_of(few, fed, dtype="float64", server_rate=rate)
    start = full.state.params.clone()
    for sweep in (full, damped):
        sweep.train(1)
    expected = start + factor * (full.state.params - start)
    torch.testing.assert_close(damped.state.params, expected, rtol=1e-9, atol=1e-9)


def test_several_local_steps_are_that_many_batches_of_plain_sgd(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "none")], local_steps=3, dtype="float64", rounds=1, clients=2)
    examples = sweep.tables([1]).batches[0]  # [clients, 3 * 4]
    assert examples.shape == (2, 12)
    start, ends = sweep.state.params[0].clone(), []
    for rows in examples:
        assert len(set(rows.tolist())) == 12
        model = LeNetZhu().double()
        model.load_state_dict(sweep.batched.layout.unflatten(start))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for part in rows.split(4):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(few.train.images[part].double()), few.train.labels[part]).backward()
            optimiser.step()
        ends.append(sweep.batched.layout.flatten(dict(model.named_parameters())))
    sweep.train(1)
    torch.testing.assert_close(sweep.state.params[0], torch.stack(ends).mean(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bound", [0.5, 0.05])
def test_initial_weights_are_uniform_within_their_bound(few: Dataset, bound: float) -> None:
    params = sweep_of(few, [Federation("few", "none", seed=4)], init_bound=bound).state.params[0]
    assert float(params.abs().max()) <= bound
    assert float(params.abs().max()) > 0.99 * bound
    assert float(params.std()) == pytest.approx(bound / 3**0.5, rel=0.03)


def test_initial_weights_of_torch_follow_the_seed_and_leave_the_global_state_alone(few: Dataset) -> None:
    before = torch.get_rng_state()
    one, two = (sweep_of(few, [Federation("few", "none", seed=s)], init="torch").state.params for s in (4, 5))
    again = sweep_of(few, [Federation("few", "none", seed=4)], init="torch").state.params
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, two)


# --- schedules and settings of one client ---------------------------------------------------------------------


def intensities(few: Dataset, fed: Federation, rounds: int, **change: Any) -> list[list[float]]:
    history = rows_of(sweep_of(few, [fed], small(), rounds=rounds, evaluate_every=1, **change))
    return [rows[0]["intensity_last"] for rows in history]


def test_a_budget_schedule_changes_the_bounds_from_its_round_on(few: Dataset) -> None:
    plan = {"rounds": [1, 3], "values": [0.96, [0.98, 0.98, 0.99, 0.995]]}
    found = intensities(few, Federation("few", "pl-identical", plan), 4)
    expected = [[15.99975] * 4] * 2 + [[7.99975, 7.99975, 3.99975, 1.99975]] * 2
    assert found == [pytest.approx(row, rel=1e-5) for row in expected]


def test_a_schedule_equals_the_constant_until_it_departs(few: Dataset) -> None:
    plan = {"rounds": [1, 3], "values": [200, 400]}
    constant, planned = (sweep_of(few, [Federation("few", "ls-learn", b)], small()) for b in (200, plan))
    for when, same in ((2, True), (3, False)):
        constant.train(when)
        planned.train(when)
        assert torch.equal(constant.state.params, planned.state.params) == same


def test_a_step_size_of_zero_leaves_the_noise_where_it_is(few: Dataset) -> None:
    lr = {"rounds": [1, 3], "values": [[0.5, 0.5, 0.0, 0.5], 0.0]}
    found = intensities(few, Federation("few", "pl-learn", 0.98), 3, lr=lr, negative_norm=0.5)
    for row in found[:2]:
        assert row[2] == pytest.approx(7.99975, rel=1e-6)
        assert all(abs(row[i] - 7.99975) > 1e-3 for i in (0, 1, 3))
    assert found[2] == pytest.approx([7.99975] * 4, rel=1e-6)


def test_the_negative_norm_coefficient_pushes_outwards_where_it_is_set(few: Dataset) -> None:
    plan = {"rounds": [1, 2], "values": [[0.0, 0.0, 0.0, 1e3], 0.0]}
    found = intensities(few, Federation("few", "pl-learn", 0.98), 2, negative_norm=plan, lr=0.01)
    assert found[0][3] == pytest.approx(2 * 7.99975, rel=1e-5)
    assert all(size < 1.2 * 7.99975 for size in [*found[0][:3], *found[1]])


def test_the_factor_is_the_upper_bound(few: Dataset) -> None:
    for factor in (1.0, 3.0):
        found = intensities(few, Federation("few", "pl-learn", 0.98), 1, negative_norm=1e3, factor=factor)
        assert found[0] == pytest.approx([factor * 7.99975] * 4, rel=1e-5)


# --- models and datasets of the user's own ---------------------------------------------------------------------


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(784, 32)
        self.inner = nn.Linear(32, 32)
        self.norm = nn.GroupNorm(4, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.flatten(1)))
        return self.out(x + torch.tanh(self.norm(self.inner(x))))


def test_a_users_model_starts_from_its_own_weights_and_learns(few: Dataset) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Skip()
    weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    sweep = sweep_of(few, [Federation("few", "none"), Federation("few", "pl-learn", 0.995)], model, rounds=40)
    start = sweep.batched.layout.unflatten(sweep.state.params[0].clone())
    assert all(torch.equal(start[name], tensor) for name, tensor in weights.items())
    rows = rows_of(sweep)[-1]
    assert rows[0]["accuracy"] > 0.3
    assert all(row["refused"] == 0 for row in rows)
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, weights[name]), "the user's model itself is not trained"


def test_a_users_model_keeps_its_own_precision(few: Dataset) -> None:
    model = small().double()
    sweep_of(few, [Federation("few", "none")], model, dtype="float32").train(1)
    assert next(model.parameters()).dtype == torch.float64


def test_a_model_that_does_not_fit_is_refused_before_training(few: Dataset) -> None:
    with pytest.raises(ModelError, match="BatchNorm1d"):
        sweep_of(few, [Federation("few", "none")], nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10)))
    with pytest.raises(ModelError, match=r"its output has shape \(2, 7\), not \(2, 10\)"):
        sweep_of(few, [Federation("few", "none")], nn.Sequential(nn.Flatten(), nn.Linear(784, 7)))


def test_settings_are_checked_before_anything_else(few: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"2 problem\(s\)"):
        sweep_of(few, [Federation("few", "pl-learn", 1.5)], rounds=0)


def test_datasets_side_by_side_do_not_mix(few: Dataset) -> None:
    """The second dataset's clients must see its own images and be scored on its own test set."""
    inverted = replace(
        few,
        name="inverted",
        train=replace(few.train, images=-few.train.images),
        validation=replace(few.validation, images=-few.validation.images),
        test=replace(few.test, images=-few.test.images),
    )
    federations = [Federation(d, m, BUDGETS[m]) for m in ("pl-learn", "none") for d in ("few", "inverted")]
    both = Sweep(Settings(rounds=4), federations, {"few": few, "inverted": inverted})
    rows = rows_of(both)[-1]
    for fed, row in zip(federations, rows, strict=True):
        data = few if fed.dataset == "few" else inverted
        alone = Sweep(Settings(rounds=4), [fed], {fed.dataset: data})
        assert_rows_agree(rows_of(alone)[-1], [row])
        place = both.federations.index(fed)
        assert torch.equal(both.state.params[place], alone.state.params[0])


# --- it learns ------------------------------------------------------------------------------------------------


def test_undistorted_training_beats_chance_clearly(mnist: Dataset) -> None:
    settings = Settings(rounds=150, evaluate_every=150, model="mlp", init="torch")
    sweep = Sweep(settings, [Federation("mnist", "none", seed=1)], {"mnist": mnist})
    row = rows_of(sweep)[-1][0]
    assert row["accuracy"] > 0.8
    assert row["validation_accuracy"] > 0.8
    assert row["utility_loss"] == 0.0


def test_the_papers_model_learns_too(mnist: Dataset) -> None:
    sweep = Sweep(Settings(rounds=150, evaluate_every=150), [Federation("mnist", "none", seed=1)], {"mnist": mnist})
    assert rows_of(sweep)[-1][0]["accuracy"] > 0.5


def test_snapshots_are_announced_where_the_settings_ask_for_them(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "none")], small(), rounds=6, evaluate_every=4, snapshots=[0, 3])
    events = list(sweep.run())
    assert [event.round for event in events if event.snapshot] == [0, 3, 6]
    assert [event.round for event in events if event.rows] == [4, 6]


def test_every_round_is_reported_to_the_caller(few: Dataset) -> None:
    seen: list[int] = []
    sweep = sweep_of(few, [Federation("few", "none")], small(), rounds=60, evaluate_every=25)
    for _ in sweep.run(seen.append):
        pass
    assert seen == list(range(1, 61))
