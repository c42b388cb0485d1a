"""The library against examples/basic_flow.py: the same method, written without any abstraction."""

from __future__ import annotations

import pytest
import torch

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.models.bundled import LeNetZhu
from examples import basic_flow

ROUNDS = 3
TOLERANCE = 1e-6  # the promise; in double precision the two differ by far less


def compare(few: Dataset, federation: Federation, settings: Settings, tolerance: float) -> list[list[float]]:
    """Feed the example the library's batches and noise, round by round; returns the intensities of each round."""
    sweep = Sweep(settings, [federation], {"few": few})
    layout, model = sweep.batched.layout, LeNetZhu().double()
    batches = sweep.tables(list(range(1, ROUNDS + 1))).batches
    scale = settings.protection.scales(federation.mechanism, federation.budget, [1])[0][0]
    weights = list(layout.unflatten(sweep.state.params[0].clone()).values())
    events, sizes = sweep.run(), []
    for t in range(1, ROUNDS + 1):
        noise = sweep.draw([t], "laplace")[0]
        releases, losses = [], []
        for k in range(basic_flow.K):
            x, y = sweep.inputs[batches[t - 1, k]], sweep.labels[batches[t - 1, k]]
            mine = list(layout.unflatten(noise[k]).values())
            released, loss = basic_flow.client(model, weights, x, y, mine, federation.mechanism, scale)
            releases.append(released)
            losses.append(loss)
        weights = basic_flow.server(releases)
        row = next(event.rows for event in events if event.rows)[0]
        assert row["round"] == t
        for (name, actual), expected in zip(layout.unflatten(sweep.state.params[0]).items(), weights, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
        assert row["utility_loss_last"] == pytest.approx(losses, abs=tolerance)
        sizes.append(row["intensity_last"])
    return sizes


CASES = [("pl-identical", 0.98), ("pl-learn", 0.98), ("pl-learn", 0.96), ("ls-static", 200), ("ls-learn", 200)]


@pytest.mark.parametrize(("mechanism", "budget"), CASES)
def test_the_library_equals_the_plain_example(few: Dataset, mechanism: str, budget: float) -> None:
    settings = Settings.flat(rounds=ROUNDS, evaluate_every=1, dtype="float64")
    compare(few, Federation("few", mechanism, budget, seed=11), settings, min(TOLERANCE, 1e-9))


@pytest.mark.parametrize(("mechanism", "budget"), [("pl-learn", 0.98), ("ls-learn", 200)])
def test_also_where_the_outer_bound_acts(
    few: Dataset, mechanism: str, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten large steps with a large coefficient end on the outer bound; the default ones stay near the inner one."""
    monkeypatch.setattr(basic_flow, "GAMMA", 1.0)
    monkeypatch.setattr(basic_flow, "LAMBDA", 50.0)
    settings = Settings.flat(rounds=ROUNDS, evaluate_every=1, dtype="float64", gamma=1.0, negative_norm=50.0)
    federation = Federation("few", mechanism, budget, seed=11)
    sizes = compare(few, federation, settings, TOLERANCE)
    if mechanism == "pl-learn":
        assert sizes == [pytest.approx([2 * 7.99975] * 4)] * ROUNDS


def test_the_example_clips_like_the_library(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clip so small that it acts on every gradient."""
    monkeypatch.setattr(basic_flow, "CLIP", 0.01)
    federation = Federation("few", "ls-static", 200, seed=12)
    settings = Settings.flat(rounds=1, dtype="float64", clip=0.01)
    sweep = Sweep(settings, [federation], {"few": few})
    layout, batches = sweep.batched.layout, sweep.tables([1]).batches[0]
    weights = list(layout.unflatten(sweep.state.params[0].clone()).values())
    noise = sweep.draw([1], "laplace")[0]
    releases = [
        basic_flow.client(
            LeNetZhu().double(), weights, sweep.inputs[batches[k]], sweep.labels[batches[k]],
            list(layout.unflatten(noise[k]).values()), "ls-static", 0.05,
        )[0]
        for k in range(4)
    ]  # fmt: skip
    sweep.train(1)
    assert float(sweep.tables([1]).scale[0, 0, 0]) == 0.05
    for actual, expected in zip(
        layout.unflatten(sweep.state.params[0]).values(), basic_flow.server(releases), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_the_examples_constants_are_the_librarys_defaults() -> None:
    s = Settings()
    assert (s.protection.clients, s.protection.batch, s.protection.eta) == (
        basic_flow.K,
        basic_flow.BATCH,
        basic_flow.ETA,
    )
    assert (s.protection.steps, s.protection.gamma, s.protection.negative_norm) == (
        basic_flow.M,
        basic_flow.GAMMA,
        basic_flow.LAMBDA,
    )
    assert s.protection.clip == basic_flow.CLIP


@pytest.mark.slow
def test_the_example_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        basic_flow.main(rounds=100, mechanism="ls-static", scale=0.0125)
    printed = capsys.readouterr().out
    assert printed.startswith("round 100: test accuracy ")
    assert float(printed.split()[-1].rstrip("%")) > 15
