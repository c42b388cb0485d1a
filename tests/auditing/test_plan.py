"""What an audit says before it begins: counted work, times a measured pace."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.attack.registry import ATTACKS, find
from equipoise.attack.view import Server
from equipoise.auditing import plan
from equipoise.auditing.plan import Plan, Stopwatch, rough, work_of
from equipoise.models.batched import Batched
from tests.auditing.small import QUICK, materials, server_of, targets_of

LONG = [*ATTACKS, "an-attack-of-my-own", "another-attack-of-my-own"]


def test_what_will_be_done_fits_80_columns() -> None:
    most = Plan(
        federations=1200,
        snapshots=12,
        cells=14400,
        there=11111,
        attacks=LONG,
        releases=5000,
        seconds=1e6,
        replayed=5000,
    )
    text = most.text()
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    for part in ("1200 federations x 12 snapshots: 14400 cells", "on 5000 releases", "About 277.8 h on this machine"):
        assert part in words
    assert "11111 of 14400 cells were already there." in words
    assert "multi-round replays 5000 rounds of each federation" in words


def test_of_what_was_not_there_nothing_is_said() -> None:
    text = Plan(federations=1, snapshots=1, cells=1, attacks=["lti"], releases=20).text()
    assert "already" not in text
    assert "multi-round" not in text
    assert text.startswith("1 federation x 1 snapshot: 1 cell (")
    assert "releases" not in Plan(federations=1, snapshots=1, replayed=3).text()


def test_a_replay_has_its_time_and_refers_to_nothing_that_is_not_there() -> None:
    alone = Plan(federations=1, snapshots=1, replayed=50, seconds=200).text()
    assert alone == "multi-round replays 50 rounds of each federation.\nAbout 3 min on this machine."
    both = Plan(federations=1, snapshots=1, cells=1, attacks=["lti"], releases=2, replayed=50, seconds=200).text()
    assert both.endswith("of each federation.\nAbout 3 min on this machine, that replay included.")


def test_a_rough_time_is_no_promise_of_seconds() -> None:
    assert [rough(seconds) for seconds in (0, 7, 89, 91, 7100, 7300)] == [
        "5 s",
        "10 s",
        "90 s",
        "2 min",
        "118 min",
        "2.0 h",
    ]


def test_an_attack_that_does_not_count_its_work_counts_as_nothing() -> None:
    ATTACKS["mine"] = replace(find("labels"), name="mine", work=None)
    server, _ = server_of()
    assert work_of("mine", server, targets_of(), materials(), QUICK).total == 0
    assert work_of("labels", server, targets_of(), materials(), QUICK).total == QUICK.settings["samples"]


def test_the_learner_and_pairs_of_noise_are_counted() -> None:
    """Of 200 samples for each of two label sets: one gradient each; of a learner two, and three more steps in each."""
    works = [
        work_of("lti", server_of(name, 0.1)[0], targets_of(), materials(), QUICK)
        for name in ("none", "gs-static", "gs-learn")
    ]
    sets = targets_of().label_sets
    assert [(work.steps, work.gradients) for work in works] == [(200 * sets, 1), (200 * sets, 1), (400 * sets, 4)]


def test_the_pace_is_measured_once_for_each_kind_of_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    """And three times: the best counts, for a busy machine only makes it longer."""
    clock, simulated = iter([0.0, 9.0, 10.0, 16.4, 20.0, 28.0, 30.0, 43.2, 50.0, 64.0, 70.0, 90.0]), list[int]()
    monkeypatch.setattr(plan.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(plan, "respond", lambda server, weights, images, *rest: simulated.append(len(images)))
    monkeypatch.setattr(plan, "chunk", lambda server, weights: 32)
    watch = Stopwatch()
    for _ in range(2):
        server, weights = server_of("gs-static", 0.1)
        assert watch.seconds(server, weights) == pytest.approx(6.4 / 32)
        server, weights = server_of("gs-learn", 0.1)
        assert watch.seconds(server, weights) == pytest.approx(13.2 / (32 * 4))
    assert simulated == 2 * [32, 32, 32, 32], "each after a first one that prepares kernels"


def test_few_steps_of_a_long_learner_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may ask for any number: its pace is that of a gradient, whatever their number."""
    timed = []
    monkeypatch.setattr(plan, "respond", lambda server, *rest: timed.append(server.protection.steps))
    server, weights = server_of("gs-learn", 0.1)
    for steps in (10, 10**8):
        Stopwatch().seconds(replace(server, protection=replace(server.protection, steps=steps)), weights)
    assert timed == [10] * 4 + [50] * 4


@pytest.mark.parametrize("name", ["none", "gs-learn", "pl-learn"])
def test_a_real_pace_is_a_time(name: str) -> None:
    assert 0 < Stopwatch().seconds(*server_of(name, 0.1)) < 5


def test_the_pace_of_tokens_is_measured_with_tokens() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten(), torch.nn.Linear(6, 3))
    server = Server(Batched(model), (3,), 3, 4, tokens=True)
    assert 0 < Stopwatch().seconds(server, server.batched.layout.flatten(model.state_dict())) < 5


def test_what_cannot_be_kept_is_said_in_short_lines() -> None:
    why = "Nothing is kept for another time, and nothing kept is read: there is no key in your cache folder."
    words = Plan(federations=1, snapshots=1, cells=1, attacks=["lti"], releases=2, remarks=[why]).text()
    assert why in " ".join(words.split("\n"))
    assert max(map(len, words.split("\n"))) <= 80
