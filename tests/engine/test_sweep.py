"""Algorithm 1, line by line, for a whole sweep; its hooks, and looking ahead without a step."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.engine import sweep as module
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.engine.tables import Block, Tables
from equipoise.errors import ConfigError, DataError, ModelError
from equipoise.mechanism.intensity import intensity
from equipoise.models.bundled import LeNetZhu
from equipoise.models.features import features_of
from equipoise.models.probe import linear_probe
from tests.engine.sweeps import BUDGETS, EVERY, assert_rows_agree, one_round, rows_of, small, sweep_of

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
    lowers = torch.tensor(
        sweep.settings.protection.scales(fed[0].mechanism, fed[0].budget, [1])[0], dtype=torch.float64
    )
    seen = set()
    for round_number in range(1, 7):
        who = sweep.draws.participants([round_number])[0, 0]
        seen |= set(who.tolist())
        released, distortions = one_round(sweep, round_number)
        assert released[0].shape[0] == 2
        torch.testing.assert_close(intensity(distortions[0]), lowers[who], rtol=1e-9, atol=0)
        p = sweep.shares["few"][who]
        sweep.train(round_number)
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
            nn.functional.cross_entropy(model(few.train.inputs[part].double()), few.train.labels[part]).backward()
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
    actual = intensities(few, Federation("few", "pl-identical", plan), 4)
    expected = [[15.99975] * 4] * 2 + [[7.99975, 7.99975, 3.99975, 1.99975]] * 2
    assert actual == [pytest.approx(row, rel=1e-5) for row in expected]


def test_a_schedule_equals_the_constant_until_it_departs(few: Dataset) -> None:
    plan = {"rounds": [1, 3], "values": [200, 400]}
    constant, planned = (sweep_of(few, [Federation("few", "ls-learn", b)], small()) for b in (200, plan))
    for round_number, same in ((2, True), (3, False)):
        constant.train(round_number)
        planned.train(round_number)
        assert torch.equal(constant.state.params, planned.state.params) == same


def test_a_step_size_of_zero_leaves_the_noise_where_it_is(few: Dataset) -> None:
    gamma = {"rounds": [1, 3], "values": [[0.5, 0.5, 0.0, 0.5], 0.0]}
    result = intensities(few, Federation("few", "pl-learn", 0.98), 3, gamma=gamma, negative_norm=0.5)
    for row in result[:2]:
        assert row[2] == pytest.approx(7.99975, rel=1e-6)
        assert all(abs(row[i] - 7.99975) > 1e-3 for i in (0, 1, 3))
    assert result[2] == pytest.approx([7.99975] * 4, rel=1e-6)


def test_the_negative_norm_coefficient_pushes_outwards_where_it_is_set(few: Dataset) -> None:
    plan = {"rounds": [1, 2], "values": [[0.0, 0.0, 0.0, 1e3], 0.0]}
    result = intensities(few, Federation("few", "pl-learn", 0.98), 2, negative_norm=plan, gamma=0.01)
    assert result[0][3] == pytest.approx(2 * 7.99975, rel=1e-5)
    assert all(size < 1.2 * 7.99975 for size in [*result[0][:3], *result[1]])


def test_the_factor_is_the_upper_bound(few: Dataset) -> None:
    for factor in (1.0, 3.0):
        result = intensities(few, Federation("few", "pl-learn", 0.98), 1, negative_norm=1e3, factor=factor)
        assert result[0] == pytest.approx([factor * 7.99975] * 4, rel=1e-5)


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
    with pytest.raises(ConfigError, match="2 problems"):
        sweep_of(few, [Federation("few", "pl-learn", 1.5)], rounds=0)


def test_datasets_side_by_side_do_not_mix(few: Dataset) -> None:
    """The second dataset's clients must see its own images and be scored on its own test set."""
    inverted = replace(
        few,
        name="inverted",
        train=replace(few.train, inputs=-few.train.inputs),
        validation=replace(few.validation, inputs=-few.validation.inputs),
        test=replace(few.test, inputs=-few.test.inputs),
    )
    federations = [Federation(d, m, BUDGETS[m]) for m in ("pl-learn", "none") for d in ("few", "inverted")]
    both = Sweep(Settings.flat(rounds=4), federations, {"few": few, "inverted": inverted})
    rows = rows_of(both)[-1]
    for fed, row in zip(federations, rows, strict=True):
        data = few if fed.dataset == "few" else inverted
        alone = Sweep(Settings.flat(rounds=4), [fed], {fed.dataset: data})
        assert_rows_agree(rows_of(alone)[-1], [row])
        place = both.federations.index(fed)
        assert torch.equal(both.state.params[place], alone.state.params[0])


# --- a look without a step ---------------------------------------------------------------------------------


def kept(sweep: Sweep) -> tuple[Any, ...]:
    """The whole state of a sweep, for comparison."""
    state = sweep.state
    tally = [getattr(state.tally, part.name).clone() for part in fields(state.tally)]
    return state.round, state.params.clone(), tally, sweep.settings, list(sweep.federations), torch.get_rng_state()


def assert_kept(sweep: Sweep, before: tuple[Any, ...]) -> None:
    for one, two in zip(kept(sweep), before, strict=True):
        if isinstance(one, Tensor) or (isinstance(one, list) and isinstance(one[0], Tensor)):
            torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == two


def releases_of(sweep: Sweep, until: int) -> list[tuple[Block, Tensor]]:
    """What every block releases while the sweep trains, by its hook."""
    seen: list[tuple[Block, Tensor]] = []
    sweep.on_releases = lambda block, released: seen.append((block, released.clone()))
    sweep.train(until)
    sweep.on_releases = None
    return seen


LOOKS: list[dict[str, Any]] = [{}, {"chunk": 3}, {"participants": 3}, {"local_steps": 2}, {"sampling": "passes"}]


@pytest.mark.parametrize("table", [True, False], ids=["one table", "block by block"])
@pytest.mark.parametrize("change", LOOKS, ids=str)
def test_a_preview_is_what_the_round_then_does_bit_for_bit(
    few: Dataset, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], table: bool
) -> None:
    if not table:
        monkeypatch.setitem(module.NOISE_TABLE, "cpu", 0)
    every = [fed for fed in EVERY if "-dp" not in fed.mechanism or "local_steps" not in change]
    sweep = sweep_of(few, [*every, Federation("few", "pl-learn", 0.96, seed=2)], small(), **change)
    sweep.train(2)
    before = kept(sweep)
    seen = list(sweep.preview())
    again = list(sweep.preview())
    assert_kept(sweep, before)
    done = releases_of(sweep, 3)
    assert len(seen) == len(done) == len(sweep.blocks)
    for look, twin, (block, released) in zip(seen, again, done, strict=True):
        assert look.block is block
        assert torch.equal(look.released, released)
        assert torch.equal(look.released, twin.released)
        assert (look.noise is None) == (block.mechanism.name in ("none", "laplace-dp", "gaussian-dp", "pruning"))


def test_a_preview_says_whose_release_and_by_which_distortion(few: Dataset) -> None:
    plan = {"rounds": [1, 2], "values": [0.96, [0.96, 0.97, 0.98, 0.99]]}
    federations = [
        Federation("few", "none"),
        Federation("few", "pl-identical", plan),
        Federation("few", "none", seed=2),
    ]
    sweep = sweep_of(few, federations, small(), dtype="float64", chunk=3)
    sweep.train(1)
    released, distortions = one_round(sweep, 2)
    places = []
    for look in sweep.preview():
        for r, (federation, slot) in enumerate(look.rows()):
            places.append((federation, slot))
            assert torch.equal(look.released[r], released[federation][slot])
            assert torch.equal(look.distortion[r], distortions[federation][slot])
            if look.noise is not None:
                expected = look.noise[r] * (look.tables.scale[0, federation, slot] / intensity(look.noise[r]))
                torch.testing.assert_close(look.distortion[r], expected)
        assert look.tables.scale.shape == (1, 3, 4), "the tables of that round alone"
    assert sorted(places) == [(federation, slot) for federation in range(3) for slot in range(4)]
    assert look.tables.scale[0, sweep.federations.index(federations[1])].tolist() == pytest.approx(
        [15.99975, 11.99975, 7.99975, 3.99975]
    )


# --- the sweep as it would stand elsewhere -----------------------------------------------------------------


def test_a_sweep_put_elsewhere_goes_on_from_there_and_leaves_the_original_alone(few: Dataset) -> None:
    sweep = sweep_of(few, EVERY, small(), rounds=6)
    sweep.train(2)
    models = sweep.state.params.clone()
    sweep.train(4)
    before = kept(sweep)
    other = sweep.at(2, models)
    assert (other.state.round, sweep.state.round) == (2, 4)
    other.train(4)
    assert torch.equal(other.state.params, sweep.state.params), "the same rounds from the same models"
    other.train(6)
    assert_kept(sweep, before)
    sweep.train(6)
    assert torch.equal(other.state.params, sweep.state.params)


def test_elsewhere_schedules_stand_still(few: Dataset) -> None:
    plan = {"rounds": [1, 3], "values": [0.96, [0.98, 0.98, 0.99, 0.995]]}
    rate = {"rounds": [1, 3], "values": [0.0, 0.2]}
    fed = Federation("few", "pl-learn", plan)
    sweep = sweep_of(few, [fed], small(), gamma=rate, negative_norm={"rounds": [1, 3], "values": [0.5, 0.0]})
    early, late = sweep.at(1, sweep.state.params), sweep.at(2, sweep.state.params)
    for other, budget, gamma, coefficient in (
        (early, [0.96] * 4, [0.0] * 4, [0.5] * 4),  # of round 2, the next one
        (late, [0.98, 0.98, 0.99, 0.995], [0.2] * 4, [0.0] * 4),  # of round 3
    ):
        assert other.federations == [replace(fed, budget=budget)]
        assert (other.settings.protection.gamma, other.settings.protection.negative_norm) == (gamma, coefficient)
        for rounds in ([1], [2, 3], [99]):
            tables = other.tables(rounds)
            assert torch.equal(tables.scale, other.tables([1]).scale.expand_as(tables.scale))
            torch.testing.assert_close(tables.gamma, torch.tensor(gamma).expand_as(tables.gamma))
    assert (sweep.federations, sweep.settings.protection.gamma) == ([fed], rate), "the original keeps its own"
    assert sweep.tables([3]).gamma.tolist() == [[[pytest.approx(0.2)] * 4]]


def test_elsewhere_the_local_learning_rate_may_be_another(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "none")], small(), dtype="float64")
    start = sweep.state.params
    (one,), (double,) = (
        [look.released - start for look in sweep.at(0, start, eta).preview()]
        for eta in (None, 2 * sweep.settings.protection.eta)
    )
    torch.testing.assert_close(double, 2 * one, rtol=1e-9, atol=1e-15)
    assert sweep.settings.protection.eta == 0.1


def test_elsewhere_nobody_watches(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "none")], small())
    seen: list[Any] = []
    sweep.on_releases, sweep.on_tables = (lambda *_: seen.append(_)), (lambda *_: seen.append(_))
    sweep.at(0, sweep.state.params).train(2)
    assert seen == []
    sweep.train(1)
    assert len(seen) == 2


# --- hooks and places --------------------------------------------------------------------------------------


def test_what_rounds_recorded_is_passed_on_once_and_in_order(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LENGTH", 2)
    sweep = sweep_of(few, [Federation("few", "pl-identical", 0.98)], small())
    seen: list[tuple[list[int], Tables]] = []
    sweep.on_tables = lambda rounds, done: seen.append((rounds, done))
    sweep.train(5)
    assert [rounds for rounds, _ in seen] == [[1, 2], [3, 4], [5]]
    for rounds, done in seen:
        assert done.accepted.shape == (len(rounds), 1, 4)
        assert done.accepted.all()
        torch.testing.assert_close(done.intensity, torch.full_like(done.intensity, 7.99975))


def test_values_and_models_come_in_the_callers_order(few: Dataset) -> None:
    order = ["pl-learn", "none", "ls-static", "pl-learn", "none"]
    federations = [Federation("few", m, BUDGETS[m], seed) for seed, m in enumerate(order)]
    sweep = sweep_of(few, federations, small())
    assert sweep.federations != federations, "worked on one mechanism after the other"
    assert sweep.in_order(sweep.federations) == federations
    sweep.train(1)
    for fed, params in zip(federations, sweep.models(), strict=True):
        assert torch.equal(params, sweep.state.params[sweep.federations.index(fed)])


def test_a_dataset_knows_its_federations_and_examples(few: Dataset) -> None:
    federations = [Federation(d, m, BUDGETS[m]) for m in ("none", "pl-learn") for d in ("a", "b")]
    sweep = Sweep(
        Settings.flat(rounds=1, partition="iid"), federations, {"a": few, "b": replace(few, name="b")}, small()
    )
    assert [sweep.federations[i].dataset for i in sweep.federations_on("b")] == ["b", "b"]
    assert sorted(sweep.federations_on("a") + sweep.federations_on("b")) == [0, 1, 2, 3]
    assert sweep.examples("a").sort().values.tolist() == list(range(160))
    assert sweep.examples("b").sort().values.tolist() == list(range(160, 320)), "rows of all images together"
    assert torch.equal(sweep.examples("b")[: len(sweep.parts["b"][0])], sweep.parts["b"][0]), "client after client"


def test_a_device_that_is_not_there_is_refused(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="The device 'cuda' is not available"):
        sweep_of(few, [Federation("few", "none")], device="cuda")


def test_datasets_that_are_not_alike_do_not_share_a_sweep(few: Dataset) -> None:
    other = replace(few, name="other", classes=9)
    with pytest.raises(DataError, match=r"'other' has shape .*, 9 classes, the first one .*, 10"):
        Sweep(
            Settings.flat(rounds=1),
            [Federation("few", "none"), Federation("other", "none")],
            {"few": few, "other": other},
        )


# --- it learns ------------------------------------------------------------------------------------------------


def test_undistorted_training_beats_chance_clearly(mnist: Dataset) -> None:
    settings = Settings.flat(rounds=150, evaluate_every=150, model="mlp", init="torch")
    sweep = Sweep(settings, [Federation("mnist", "none", seed=1)], {"mnist": mnist})
    row = rows_of(sweep)[-1][0]
    assert row["accuracy"] > 0.8
    assert row["validation_accuracy"] > 0.8
    assert row["utility_loss"] == 0.0


def test_the_papers_model_learns_too(mnist: Dataset) -> None:
    sweep = Sweep(
        Settings.flat(rounds=150, evaluate_every=150), [Federation("mnist", "none", seed=1)], {"mnist": mnist}
    )
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


# --- groups and features -----------------------------------------------------------------------------------


def test_no_person_is_divided_between_clients(few: Dataset) -> None:
    people = torch.arange(160) // 3
    train = replace(few.train, groups=people)
    validation = replace(few.validation, groups=torch.arange(80) // 5 + 1000)
    sweep = sweep_of(replace(few, train=train, validation=validation), [Federation("few", "none")], small())
    for parts, groups in ((sweep.parts["few"], people), (sweep.test_parts["few", "validation_"], validation.groups)):
        assert groups is not None
        owners = [set(groups[part].tolist()) for part in parts]
        assert sum(len(part) for part in owners) == len(groups.unique())
    assert sweep.shares["few"].tolist() == [len(part) / 160 for part in sweep.parts["few"]]


def test_a_head_trains_on_features_as_it_does_in_its_model(few: Dataset) -> None:
    model = linear_probe(nn.AvgPool2d(4), few.classes, few.shape)
    mapped = few.mapped(partial(features_of, model), evaluation=partial(features_of, model, alone=False))
    federations = [Federation("few", "pl-identical", 0.98, seed=1), Federation("few", "none", seed=1)]
    whole, head = sweep_of(few, federations, model), sweep_of(mapped, federations, model.head_model())
    assert head.batched.layout.slots == whole.batched.layout.slots
    (whole_rows,), (head_rows,) = rows_of(whole), rows_of(head)
    torch.testing.assert_close(head.state.params, whole.state.params, rtol=0, atol=1e-6)
    assert head.state.params.abs().max() > 1e-3
    assert [row["accuracy"] for row in head_rows] == [row["accuracy"] for row in whole_rows]


# --- models of the user's own ---------------------------------------------------------------------------------


def head(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[-1] * shape[-2], classes))


def test_a_function_builds_the_model_for_the_data_and_every_seed_draws_its_own_weights(few: Dataset) -> None:
    federations = [Federation("few", "none", None, seed) for seed in (1, 2)]
    federations.append(Federation("few", "pl-identical", 0.98, 2))
    before = torch.get_rng_state()
    sweep = Sweep(Settings(), federations, {"few": few}, head)
    assert torch.equal(torch.get_rng_state(), before)
    assert sweep.batched.layout.size == 7850
    first, second, third = sweep.models()
    assert not torch.equal(first, second)
    assert torch.equal(second, third), "one seed, one set of first weights"
    torch.manual_seed(2)
    alone = sweep.batched.layout.flatten(dict(head((1, 28, 28), 10).named_parameters()))
    assert torch.equal(second, alone), "its own initialisation, whatever init says"
    torch.set_rng_state(before)


def test_settings_that_name_code_import_nothing(few: Dataset) -> None:
    federations, settings = [Federation("few", "none")], Settings.flat(model="absent_of_test:Net")
    with pytest.raises(ConfigError, match="is code, and the word of settings is not enough"):
        Sweep(settings, federations, {"few": few})
    assert Sweep(settings, federations, {"few": few}, head).batched.layout.size == 7850
