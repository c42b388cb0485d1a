"""What can be said of captured rounds without a GPU: when they serve, and that replaying gives the plain rounds.

The stand-ins for CUDA run at once what a GPU would queue, in the same order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equipoise.data.dataset import Dataset
from equipoise.engine.cuda_graph import NOISE_ROUNDS, RoundGraph, capturable, side_by_side
from equipoise.engine.federation import Federation
from equipoise.engine.tables import LENGTH, Tables
from tests.engine.sweeps import small, sweep_of


def fake(device: str = "cuda", noise_fits: bool = True, on_releases: Any = None, formal: bool = False) -> Any:
    return SimpleNamespace(device=torch.device(device), noise_fits=noise_fits, on_releases=on_releases, formal=formal)


def test_rounds_are_captured_on_a_gpu_with_their_noise_in_one_table_and_nobody_watching() -> None:
    rounds = list(range(1, LENGTH + 1))
    assert capturable(fake(), rounds)
    assert capturable(fake(), [7, 8])
    assert not capturable(fake(device="cpu"), rounds)
    assert not capturable(fake(noise_fits=False), rounds)
    assert not capturable(fake(formal=True), rounds), "integers are drawn on the CPU"
    assert not capturable(fake(on_releases=lambda *_: None), rounds), "a hook needs the releases of every round"
    assert not capturable(fake(), [1]), "one round is not worth it"
    assert not capturable(fake(), [*rounds, LENGTH + 1]), "longer than the tables"


def test_a_sweep_on_cpu_captures_nothing(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.engine.sweep.RoundGraph", lambda *_: pytest.fail("captured on a CPU"))
    sweep = sweep_of(few, [Federation("few", "none")], small())
    assert not capturable(sweep, [1, 2])
    sweep.train(3)


# --- tasks side by side ------------------------------------------------------------------------------------


class FakeStream:
    """Notes what it waits for."""

    def __init__(self, log: list[str], name: str):
        self.log, self.name = log, name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What CUDA would be asked to do; every graph that is captured replays by running the round."""
    seen: list[str] = []
    main, count = FakeStream(seen, "main"), iter(range(1000))

    @contextlib.contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        seen.append(f"on {stream.name}")
        yield
        seen.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: FakeStream(seen, f"stream {next(count)}"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    return seen


def test_each_task_has_a_stream_and_all_are_waited_for(log: list[str]) -> None:
    def task(name: str) -> Callable[[], str]:
        def run() -> str:
            log.append(name)
            return name.upper()

        return run

    assert side_by_side([task("a"), task("b")]) == ["A", "B"]
    assert log == [
        "stream 0 waits for main", "on stream 0", "a", "off stream 0",
        "stream 1 waits for main", "on stream 1", "b", "off stream 1",
        "main waits for stream 0", "main waits for stream 1",
    ]  # fmt: skip


# --- replayed rounds ---------------------------------------------------------------------------------------


class FakeGraph:
    """Replays by running the round that was captured."""

    def __init__(self) -> None:
        self.round: Callable[[], None] = lambda: pytest.fail("nothing was captured")

    def replay(self) -> None:
        self.round()


@pytest.fixture
def graphs(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())


FEDERATIONS = [Federation("few", "ls-learn", 200), Federation("few", "gs-static", 400, seed=2)]


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("numbers", [1, 20_000, 1 << 30])
def test_replayed_rounds_are_the_plain_ones_bit_for_bit(
    few: Dataset, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stretches, the second shorter; more rounds than there is noise in one table, and not a multiple of it."""
    monkeypatch.setattr("equipoise.engine.cuda_graph.NOISE_NUMBERS", numbers)
    monkeypatch.setattr("equipoise.engine.draws.DRAWN", numbers)
    count = NOISE_ROUNDS + 3
    stretches = [list(range(1, count + 1)), list(range(count + 1, count + 5))]
    plan: dict[str, Any] = {
        "gamma": {"rounds": [1, 4], "values": [0.1, 0.2]},
        "participants": 3,
        "rounds": 30,
        "steps": 2,
    }
    plain, sweep = (sweep_of(few, FEDERATIONS, small(), **plan) for _ in range(2))
    recorded: list[Tables] = []
    plain.on_tables = lambda rounds, done: recorded.append(done)

    start = sweep.state.params.clone()
    graph = RoundGraph(sweep, sweep.tables(stretches[0]))
    graph.graph.round = graph._round  # type: ignore[attr-defined]
    assert torch.equal(sweep.state.params, start), "warming up takes no step"
    seen: list[int] = []
    for rounds in stretches:
        plain.train(rounds[-1])
        done = graph.run(rounds, sweep.tables(rounds), seen.append)
        assert torch.equal(sweep.state.params, plain.state.params)
        assert len(done.accepted) == len(rounds)
        for name in ("utility_loss", "intensity", "clipped", "accepted", "distortion"):
            assert torch.equal(getattr(done, name), getattr(recorded[-1], name)), name
    assert seen == stretches[0] + stretches[1]


@pytest.mark.usefixtures("graphs")
def test_what_a_stretch_recorded_survives_the_next_one(few: Dataset) -> None:
    sweep = sweep_of(few, FEDERATIONS[:1], small(), rounds=8, steps=1)
    graph = RoundGraph(sweep, sweep.tables([1, 2, 3]))
    graph.graph.round = graph._round  # type: ignore[attr-defined]
    first = graph.run([1, 2, 3], sweep.tables([1, 2, 3]), None)
    kept = first.intensity.clone()
    graph.run([4, 5, 6], sweep.tables([4, 5, 6]), None)
    assert torch.equal(first.intensity, kept)
