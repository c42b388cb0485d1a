"""What a sweep reports: means over what was accepted, the best round, scores that the model itself has."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from equipoise.data.dataset import Dataset
from equipoise.engine import metrics as module
from equipoise.engine.federation import Federation
from equipoise.engine.metrics import Tally, evaluate
from equipoise.engine.result import federation_results
from equipoise.engine.tables import Tables
from equipoise.models.bundled import LeNetZhu
from tests.engine.sweeps import BUDGETS, assert_rows_agree, one_round, rows_of, small, sweep_of


def test_rows_and_results_follow_the_callers_order(few: Dataset) -> None:
    order = ["pl-learn", "none", "ls-static", "pl-learn", "none", "pl-identical"]
    federations = [Federation("few", m, BUDGETS[m], seed) for seed, m in enumerate(order)]
    sweep = sweep_of(few, federations, small(), rounds=4, evaluate_every=2)
    history = rows_of(sweep)
    for rows in [*history, federation_results(sweep, history[-1])]:
        assert [(row["mechanism"], row["budget"], row["seed"]) for row in rows] == [
            (fed.mechanism, fed.budget, fed.seed) for fed in federations
        ]
    for place, fed in enumerate(federations):
        alone = sweep_of(few, [fed], small(), rounds=4, evaluate_every=2)
        mine = rows_of(alone)
        assert_rows_agree([rows[place] for rows in history], [rows[0] for rows in mine])
        assert_rows_agree(
            federation_results(sweep, history[-1])[place : place + 1], federation_results(alone, mine[-1])
        )


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
        final = federation_results(some, means[-1])[i]
        losses = [step[i]["utility_loss"] for step in each]
        assert final["mean_utility_loss"] == pytest.approx(sum(losses) / 7, rel=1e-12)
        assert final["final_utility_loss"] == pytest.approx(losses[-1], rel=1e-12)
        assert final["final_intensity"] == each[-1][i]["intensity_last"]


def test_accuracy_and_loss_are_those_of_the_model_itself(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "none"), Federation("few", "pl-learn", 0.98)], rounds=3)
    rows = rows_of(sweep)[-1]
    for row in rows:
        place = next(i for i, fed in enumerate(sweep.federations) if fed.mechanism == row["mechanism"])
        model = LeNetZhu()
        model.load_state_dict(sweep.batched.layout.unflatten(sweep.state.params[place]))
        for prefix, split in (("", few.test), ("validation_", few.validation)):
            with torch.no_grad():
                outputs = model(split.inputs)
            correct = (outputs.argmax(1) == split.labels).double()
            assert row[f"{prefix}accuracy"] == pytest.approx(correct.mean().item())
            loss = nn.functional.cross_entropy(outputs, split.labels).item()
            assert row[f"{prefix}loss"] == pytest.approx(loss, rel=1e-4)
            assert len(row[f"{prefix}client_accuracy"]) == 4
            assert sum(row[f"{prefix}client_accuracy"]) / 4 == pytest.approx(correct.mean().item(), abs=1e-9)


def test_the_clip_acts_and_is_recorded(few: Dataset) -> None:
    federations = [Federation("few", "ls-static", 200), Federation("few", "pl-identical", 0.98)]
    rows = rows_of(sweep_of(few, federations, clip=1e-3, rounds=2))[-1]
    assert [row["clipped_share"] for row in rows] == [1.0, 0.0]
    rows = rows_of(sweep_of(few, federations, clip=None, rounds=2))[-1]
    assert [row["clipped_share"] for row in rows] == [0.0, 0.0]


def test_a_federation_that_overflows_is_refused_and_recorded_and_harms_no_other(few: Dataset) -> None:
    """A budget this small asks for noise that float32 cannot hold: every one of its releases is infinite."""
    sick = Federation("few", "ls-static", 1e-38)
    others = [Federation("few", "ls-static", 200), Federation("few", "none"), Federation("few", "ls-learn", 200)]
    sweep = sweep_of(few, [others[0], sick, *others[1:]], small(), rounds=6, evaluate_every=3)
    start = sweep.state.params[0].clone()
    history = rows_of(sweep)
    assert [row["refused"] for row in history[0]] == [0, 12, 0, 0]
    final = federation_results(sweep, history[-1])
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
        assert math.isnan(row[f"{name}_last"][2])
        counted = [row[f"{name}_last"][k] for k in (0, 1, 3)]
        assert row[name] == pytest.approx(sum(counted) / 3, rel=1e-6)
    void = sweep_of(few, fed, small(), rounds=1, min_clients=4)
    start = void.state.params.clone()
    void.train(1)
    assert torch.equal(void.state.params, start), "three are too few where four are asked for"


# --- running sums, by hand ---------------------------------------------------------------------------------


def recorded(**parts: list[Any]) -> Tables:
    """Tables of two rounds of one federation with two clients; what no round writes is empty."""
    empty = dict.fromkeys((part.name for part in fields(Tables)), torch.empty(0))
    return Tables(**{**empty, **{name: torch.tensor(values) for name, values in parts.items()}})


ROUNDS = recorded(
    utility_loss=[[[1.0, 3.0]], [[5.0, math.inf]]],
    intensity=[[[2.0, 4.0]], [[6.0, math.nan]]],
    clipped=[[[0.0, 1.0]], [[0.5, 1.0]]],
    accepted=[[[True, True]], [[True, False]]],
    distortion=[[3.0], [4.0]],
)


def test_a_refused_release_counts_as_refused_and_as_nothing_else() -> None:
    tally = Tally.empty(federations=1, slots=2)
    tally.add(ROUNDS)
    sums = dict(zip(Tally.COLUMNS, tally.recent[0].tolist(), strict=True))
    assert sums == {
        "utility_loss": 9.0, "intensity": 12.0, "clipped_share": 1.5, "accepted": 3.0, "refused": 1.0,
        "distortion_norm": 7.0, "distortion_norm_squared": 25.0,
    }  # fmt: skip
    assert tally.total.tolist() == [[9.0, 3.0, 1.0]]
    assert int(tally.rounds) == 2
    for last, value in ((tally.last_utility, 5.0), (tally.last_intensity, 6.0)):
        assert last[0, 0] == value
        assert math.isnan(last[0, 1])


def test_how_rounds_are_grouped_does_not_show_in_the_sums() -> None:
    whole, parts = Tally.empty(1, 2), Tally.empty(1, 2)
    third = 1 / 3  # sums of it are rounded, so that their order matters
    many = recorded(
        utility_loss=[[[third * i, 1e6]] for i in range(9)], intensity=[[[third, 7.0]]] * 9,
        clipped=[[[0.0, 1.0]]] * 9, accepted=[[[True, i % 2 == 0]] for i in range(9)], distortion=[[third]] * 9,
    )  # fmt: skip
    whole.add(many)
    for start, stop in ((0, 1), (1, 4), (4, 9)):
        parts.add(Tables(**{part.name: getattr(many, part.name)[start:stop] for part in fields(many)}))
    for part in fields(whole):
        assert torch.equal(getattr(whole, part.name), getattr(parts, part.name)), part.name


def test_a_row_has_the_noise_beside_the_update_of_its_last_round(few: Dataset) -> None:
    names = ("none", "pl-identical", "ls-static", "laplace-dp")
    budgets = {**BUDGETS, "laplace-dp": 10.0}
    federations = [Federation("few", name, budgets[name]) for name in names]
    sweep = sweep_of(few, federations, rounds=2, evaluate_every=1)
    for number in (1, 2):
        start = sweep.state.params.clone()
        released, distortions = one_round(sweep, number)
        sweep.train(number)
        rows = evaluate(sweep, None)
        assert rows[0]["noise_to_update"] == 0.0
        assert rows[3]["noise_to_update"] is None, "a guarantee hides it"
        for i in (1, 2):
            update = released[i] - distortions[i] - start[i]
            ratio = (distortions[i].norm(dim=1) / update.norm(dim=1)).mean()
            assert rows[i]["noise_to_update"] == pytest.approx(float(ratio), rel=1e-4)


def test_the_noise_is_not_set_beside_the_update_in_rounds_that_nobody_sees(
    few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    measured = module.noise_to_update
    monkeypatch.setattr(module, "noise_to_update", lambda *given: asked.append(1) or measured(*given))
    rows_of(sweep_of(few, [Federation("few", "pl-identical", 0.98)], small(), rounds=7, evaluate_every=3))
    assert len(asked) == 3
