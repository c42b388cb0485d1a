"""Algorithm 1 for a whole sweep: no result depends on batching, everything recorded can be recomputed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.engine import sweep as federation
from equipoise.engine.federation import Federation
from equipoise.engine.result import results
from equipoise.engine.settings import Settings, scales
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError, ModelError
from equipoise.mechanism import registry as mechanisms
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.registry import MECHANISMS
from equipoise.models.bundled import LeNetZhu

Row = dict[str, Any]
BUDGETS = {"none": None, "pl-identical": 0.98, "pl-learn": 0.98} | dict.fromkeys(
    ("ls-static", "ls-learn", "gs-static", "gs-learn", "laplace-dp"), 200
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
    return Sweep(Settings(**{"rounds": 5, **change}), federations, {"few": few}, model)


def rows_of(sweep: Sweep) -> list[list[Row]]:
    """The rows of every evaluated round, after training to the end."""
    return [event.rows for event in sweep.run() if event.rows]


def first_rows(sweep: Sweep) -> list[Row]:
    return next(event.rows for event in sweep.run() if event.rows)


def assert_rows_agree(one: list[Row], two: list[Row]) -> None:
    """Up to the rounding of sums over many examples: evaluation may group models as it likes."""
    for a, b in zip(one, two, strict=True):
        assert set(a) == set(b)
        for name, value in a.items():
            numbers = isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float))
            assert b[name] == (pytest.approx(value, rel=1e-5, abs=1e-6) if numbers else value), name
        exact = ("accuracy", "client_accuracy", "utility_loss_last", "intensity_last")
        assert all(a[name] == b[name] for name in exact if name in a)


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


def one_round(sweep: Sweep, when: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    """Releases and distortions ``[F][K, P]`` of a round from the current state, without taking the step."""
    tables, noise = sweep.tables([when]), sweep.noise_table(when)
    released: list[list[Tensor]] = [[] for _ in sweep.federations]
    distortions: list[list[Tensor]] = [[] for _ in sweep.federations]
    for block in sweep.blocks:
        made, alpha = sweep.release(block, tables, torch.tensor([0]), sweep.block_noise(block, noise))
        shape = (*block.shape, -1)
        for place, f in enumerate(range(block.federations.start, block.federations.stop)):
            released[f] += list(made.parameters.view(shape)[place])
            distortions[f] += list(alpha.view(shape)[place])
    return [torch.stack(r) for r in released], [torch.stack(d) for d in distortions]


# --- grouping ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(few: Dataset) -> dict[str, Tensor]:
    """Every mechanism, one of them with two seeds, 20 rounds, as many clients at once as fit."""
    return trained(few, two_seeds(), 20)


def two_seeds() -> list[Federation]:
    return EVERY + [replace(fed, seed=2) for fed in EVERY if fed.mechanism == "pl-learn"]


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_the_chunk_size_changes_no_bit_in_twenty_rounds(few: Dataset, whole: dict[str, Tensor], chunk: int) -> None:
    found = trained(few, two_seeds(), 20, chunk=chunk)
    for label, params in found.items():
        assert float((params - whole[label]).abs().max()) <= 1e-5, f"{label}: more than rounding"
    assert_same(found, whole)


def test_nor_does_it_with_two_threads(few: Dataset) -> None:
    """The other tests run with one; the promise holds for any fixed number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        federations = [fed for fed in two_seeds() if "learn" in fed.mechanism]
        assert_same(trained(few, federations, 4, chunk=1), trained(few, federations, 4))
    finally:
        torch.set_num_threads(before)


def test_one_federation_at_a_time_gives_the_same_bits(few: Dataset, whole: dict[str, Tensor]) -> None:
    found: dict[str, Tensor] = {}
    for fed in two_seeds():
        found |= trained(few, [fed], 20)
    assert_same(found, whole)


def test_two_runs_give_the_same_bits_also_in_pieces(few: Dataset) -> None:
    first = trained(few, EVERY, 7)
    assert_same(trained(few, EVERY, 7), first)
    sweep = sweep_of(few, EVERY, rounds=7)
    for until in (1, 2, 6, 7):
        sweep.train(until)
    assert_same({f.label(): p for f, p in zip(sweep.federations, sweep.state.params, strict=True)}, first)


def test_a_federation_does_not_notice_its_neighbours(few: Dataset, whole: dict[str, Tensor]) -> None:
    mine = next(fed for fed in EVERY if fed.mechanism == "ls-learn")
    others = [Federation("few", "ls-learn", b, s) for b, s in ((80, 1), (800, 7), (200, 3))]
    found = trained(few, [others[0], Federation("few", "pl-learn", 0.96), mine, *others[1:]], 20)
    assert torch.equal(found[mine.label()], whole[mine.label()])


def test_noise_drawn_block_by_block_gives_the_same_bits(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is for models whose noise does not fit into one table."""
    federations = [*EVERY, Federation("few", "pl-learn", 0.96, seed=2), Federation("few", "pl-learn", 0.99, seed=1)]
    change: dict[str, Any] = {"chunk": 8, "participants": 3}
    expected = trained(few, federations, 3, **change)
    monkeypatch.setitem(federation.NOISE_TABLE, "cpu", 0)
    assert not sweep_of(few, federations, **change).noise_fits
    assert_same(trained(few, federations, 3, **change), expected)


def test_evaluating_and_recording_on_the_way_changes_no_bit(few: Dataset, whole: dict[str, Tensor]) -> None:
    fed = next(fed for fed in EVERY if fed.mechanism == "ls-static")
    sweep = sweep_of(few, [fed], rounds=20, evaluate_every=7, full_every=10)
    rows_of(sweep)
    assert torch.equal(sweep.state.params[0], whole[fed.label()])


def test_seeds_and_budgets_matter(whole: dict[str, Tensor]) -> None:
    values = list(whole.values())
    for i, one in enumerate(values):
        for two in values[i + 1 :]:
            assert not torch.equal(one, two)


def test_recorded_numbers_do_not_depend_on_the_chunk_size_either(few: Dataset) -> None:
    found = [
        rows_of(sweep_of(few, EVERY, rounds=4, chunk=chunk, evaluate_every=2, full_every=2, model=small()))
        for chunk in (1, 3, 64)
    ]
    for other in found[1:]:
        assert other == found[0]


@pytest.mark.parametrize("change", [{"participants": 3}, {"local_steps": 2}, {"sampling": "passes"}, {"clients": 5}])
def test_chunks_with_other_settings(few: Dataset, change: dict[str, Any]) -> None:
    federations = [fed for fed in EVERY if fed.mechanism in ("none", "pl-learn", "ls-learn")]
    assert_same(trained(few, federations, 6, chunk=2, **change), trained(few, federations, 6, **change))


# --- order and bookkeeping ---------------------------------------------------------------------------------


def test_rows_and_results_follow_the_callers_order(few: Dataset) -> None:
    order = ["pl-learn", "none", "ls-static", "pl-learn", "none", "pl-identical"]
    federations = [Federation("few", m, BUDGETS[m], seed) for seed, m in enumerate(order)]
    sweep = sweep_of(few, federations, small(), rounds=4, evaluate_every=2)
    history = rows_of(sweep)
    for rows in [*history, results(sweep, history[-1])]:
        assert [(row["mechanism"], row["budget"], row["seed"]) for row in rows] == [
            (fed.mechanism, fed.budget, fed.seed) for fed in federations
        ]
    for place, fed in enumerate(federations):
        alone = sweep_of(few, [fed], small(), rounds=4, evaluate_every=2)
        mine = rows_of(alone)
        assert_rows_agree([rows[place] for rows in history], [rows[0] for rows in mine])
        assert_rows_agree(results(sweep, history[-1])[place : place + 1], results(alone, mine[-1]))


def test_the_best_validation_round_is_the_first_best_one(few: Dataset) -> None:
    federations = [Federation("few", "none", seed=s) for s in (1, 2, 3)]
    sweep = sweep_of(few, federations, rounds=40, evaluate_every=4, model=None, init="torch")
    history = rows_of(sweep)
    final = results(sweep, history[-1])
    for i, found in enumerate(final):
        rows = [step[i] for step in history]
        best = max(row["validation_accuracy"] for row in rows)
        first = next(row for row in rows if row["validation_accuracy"] == best)
        assert found["best_validation_round"] == first["round"]
        assert found["accuracy_at_best_validation"] == first["accuracy"]
        assert found["accuracy"] == rows[-1]["accuracy"]
        assert found["rounds"] == 40


def test_rows_hold_means_since_the_last_evaluation(few: Dataset) -> None:
    federations = [Federation("few", "pl-learn", 0.98), Federation("few", "ls-static", 200)]
    each = rows_of(sweep_of(few, federations, small(), rounds=7, evaluate_every=1))
    some = sweep_of(few, federations, small(), rounds=7, evaluate_every=3)
    means = rows_of(some)
    assert [rows[0]["round"] for rows in means] == [3, 6, 7]
    assert [rows[0]["rounds_averaged"] for rows in means] == [3, 3, 1]
    for i in range(2):
        for rows, span in zip(means, (slice(0, 3), slice(3, 6), slice(6, 7)), strict=True):
            for name in ("utility_loss", "intensity", "distortion_norm", "distortion_norm_squared", "clipped_share"):
                single = [step[i][name] for step in each[span]]
                assert rows[i][name] == pytest.approx(sum(single) / len(single), rel=1e-12)
            assert rows[i]["utility_loss_last"] == each[rows[i]["round"] - 1][i]["utility_loss_last"]
        final = results(some, means[-1])[i]
        losses = [step[i]["utility_loss"] for step in each]
        assert final["mean_utility_loss"] == pytest.approx(sum(losses) / 7, rel=1e-12)
        assert final["final_utility_loss"] == pytest.approx(losses[-1], rel=1e-12)
        assert final["final_intensity"] == each[-1][i]["intensity_last"]


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


def test_accuracy_and_loss_are_those_of_the_model_itself(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "none"), Federation("few", "pl-learn", 0.98)], rounds=3)
    rows = rows_of(sweep)[-1]
    for row in rows:
        place = next(i for i, fed in enumerate(sweep.federations) if fed.mechanism == row["mechanism"])
        model = LeNetZhu()
        model.load_state_dict(sweep.batched.layout.unflatten(sweep.state.params[place]))
        for prefix, split in (("", few.test), ("validation_", few.validation)):
            with torch.no_grad():
                outputs = model(split.images)
            correct = (outputs.argmax(1) == split.labels).double()
            assert row[f"{prefix}accuracy"] == pytest.approx(correct.mean().item())
            loss = nn.functional.cross_entropy(outputs, split.labels).item()
            assert row[f"{prefix}loss"] == pytest.approx(loss, rel=1e-4)
            assert len(row[f"{prefix}client_accuracy"]) == 4
            assert sum(row[f"{prefix}client_accuracy"]) / 4 == pytest.approx(correct.mean().item(), abs=1e-9)


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
    lowers = torch.tensor(scales(sweep.settings, fed[0], [1])[0], dtype=torch.float64)
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


def test_the_clip_acts_and_is_recorded(few: Dataset) -> None:
    federations = [Federation("few", "ls-static", 200), Federation("few", "pl-identical", 0.98)]
    rows = rows_of(sweep_of(few, federations, clip=1e-3, rounds=2))[-1]
    assert [row["clipped_share"] for row in rows] == [1.0, 0.0]
    rows = rows_of(sweep_of(few, federations, clip=None, rounds=2))[-1]
    assert [row["clipped_share"] for row in rows] == [0.0, 0.0]


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


# --- schedules and per-client settings ---------------------------------------------------------------------


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


def test_a_measure_of_the_users_own_calibrates_a_sweep(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "MECHANISMS", dict(MECHANISMS))
    mechanisms.register(mechanisms.Mechanism("mine", Reciprocal()))
    mechanisms.register(mechanisms.Mechanism("mine-outwards", Reciprocal(), learns=True))
    found = intensities(few, Federation("few", "mine", [0.5, 0.25, 0.2, 0.1]), 1)
    assert found[0] == pytest.approx([2.0, 4.0, 5.0, 10.0], rel=1e-5)
    found = intensities(few, Federation("few", "mine-outwards", [0.5, 0.25, 0.2, 0.1]), 1, negative_norm=1e4)
    assert found[0] == pytest.approx([6.0, 12.0, 15.0, 30.0], rel=1e-5), "its own factor"


@dataclass(frozen=True)
class Reciprocal:
    factor: float = 3.0
    bounds_draw: bool = False

    def leakage(self, intensity: float) -> float:
        return 1 / intensity

    def lower(self, budget: float) -> float:
        return 1 / budget


# --- refused releases --------------------------------------------------------------------------------------


def test_a_federation_that_overflows_is_refused_and_recorded_and_harms_no_other(few: Dataset) -> None:
    """A budget this small asks for noise that float32 cannot hold: every one of its releases is infinite."""
    sick = Federation("few", "ls-static", 1e-38)
    others = [Federation("few", "ls-static", 200), Federation("few", "none"), Federation("few", "ls-learn", 200)]
    sweep = sweep_of(few, [others[0], sick, *others[1:]], small(), rounds=6, evaluate_every=3)
    start = sweep.state.params[0].clone()
    history = rows_of(sweep)
    assert [row["refused"] for row in history[0]] == [0, 12, 0, 0]
    final = results(sweep, history[-1])
    assert [row["releases_refused"] for row in final] == [0, 24, 0, 0]
    place = sweep.federations.index(sick)
    assert torch.equal(sweep.state.params[place], start), "no release, no step"
    alone = rows_of(sweep_of(few, others, small(), rounds=6, evaluate_every=3))
    for rows, expected in zip(history, alone, strict=True):
        assert_rows_agree(rows[:1] + rows[2:], expected)


def test_one_refused_client_is_left_out_of_the_mean(few: Dataset) -> None:
    fed = [Federation("few", "ls-static", [200, 200, 1e-38, 200])]
    sweep = sweep_of(few, fed, small(), rounds=1, dtype="float32")
    released, _ = one_round(sweep)
    assert [bool(torch.isfinite(r).all()) for r in released[0]] == [True, True, False, True]
    row = rows_of(sweep)[0][0]
    torch.testing.assert_close(sweep.state.params[0], released[0][[0, 1, 3]].mean(0), rtol=1e-6, atol=1e-6)
    assert (row["accepted"], row["refused"]) == (3, 1)
    for name in ("utility_loss", "intensity"):  # means over what was counted
        counted = [row[f"{name}_last"][k] for k in (0, 1, 3)]
        assert row[name] == pytest.approx(sum(counted) / 3, rel=1e-6)
    void = sweep_of(few, fed, small(), rounds=1, min_clients=4)
    start = void.state.params.clone()
    void.train(1)
    assert torch.equal(void.state.params, start), "three are too few where four are asked for"


# --- full records ------------------------------------------------------------------------------------------


def loss_of(model: nn.Module, sweep: Sweep, flat: Tensor, part: Tensor) -> Tensor:
    twin = copy.deepcopy(model).double()
    twin.load_state_dict(sweep.batched.layout.unflatten(flat.double()))
    return nn.functional.cross_entropy(twin(sweep.images[part].double()), sweep.labels[part])


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
        loss = nn.functional.cross_entropy(model(few.train.images.double()), few.train.labels)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        expected.append(sum(float((g**2).sum()) for g in grads))
    rows = first_rows(sweep)
    assert [row["gradient_norm_squared"] for row in rows] == pytest.approx(expected, rel=1e-9)


def test_only_static_scale_mechanisms_have_an_expected_utility_loss(few: Dataset) -> None:
    sweep = sweep_of(few, EVERY, small(), rounds=2, full_every=2, evaluate_every=2, expected_draws=4)
    static = ["ls-static", "gs-static", "laplace-dp"]
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
    for k, scale in enumerate(scales(sweep.settings, fed, [1])[0]):
        base = released[0][k] - distortions[0][k]
        noise = torch.randn(400, len(base), dtype=torch.float64, generator=local)
        if name == "ls-static":
            signs = noise.sign()
            noise = torch.empty_like(noise).exponential_(generator=local) * signs
        part = sweep.parts["few"][k]
        objective = sweep.batched.at(
            sweep.images[part].expand(401, *sweep.images[part].shape), sweep.labels[part].expand(401, -1)
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


# --- models and datasets of the user's own -----------------------------------------------------------------


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


# --- it learns ---------------------------------------------------------------------------------------------


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
