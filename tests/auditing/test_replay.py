"""A replayed federation: the bits of the run itself, who was present, and no image in what comes out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attack.multi_round import Combined, Observation
from equipoise.auditing import replay
from equipoise.auditing.replay import replayed, stream, suspects
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError

BUDGETS = {"none": None, "pl-identical": 0.98, "pl-learn": 0.98, "ls-static": 200, "gs-learn": 200}


def sweep_of(few: Dataset, mechanism: str = "pl-learn", **change: Any) -> Sweep:
    return Sweep(Settings.flat(**change), [Federation("few", mechanism, BUDGETS[mechanism])], {"few": few})


def watched(sweep: Sweep, rounds: int, client: int = 0, examples: Tensor | None = None) -> list[Observation]:
    rows = sweep.parts["few"][client] if examples is None else examples
    return list(stream(sweep, client, rows, rounds))


# --- the run itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", BUDGETS)
@pytest.mark.parametrize("chunk", [0, 1])
def test_a_replay_has_the_bits_of_the_run(few: Dataset, mechanism: str, chunk: int) -> None:
    replay, run = sweep_of(few, mechanism, chunk=chunk), sweep_of(few, mechanism)
    seen = watched(replay, 4, client=2)
    assert [one.round for one in seen] == [1, 2, 3, 4]
    for one in seen:
        assert torch.equal(one.previous, run.state.params[0]), f"before round {one.round}"
        run.train(one.round)
    assert torch.equal(replay.state.params, run.state.params)
    assert replay.state.round == 4


def test_a_replay_goes_on_over_several_stretches(few: Dataset) -> None:
    replay, run = sweep_of(few, "pl-identical"), sweep_of(few, "pl-identical")
    heard: list[int] = []
    seen = list(stream(replay, 0, replay.parts["few"][0], 53, heard.append))
    run.train(53)
    assert [one.round for one in seen] == heard == list(range(1, 54))
    assert torch.equal(replay.state.params, run.state.params)
    run = sweep_of(few, "pl-identical")
    run.train(51)
    assert torch.equal(seen[51].previous, run.state.params[0])


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_the_release_is_that_of_the_client(few: Dataset, chunk: int) -> None:
    """The mean of all clients' releases is the next global model."""
    seen = [watched(sweep_of(few, chunk=chunk), 3, client) for client in range(4)]
    for i in range(2):
        mean = torch.stack([mine[i].released for mine in seen]).double().mean(0)
        following = seen[0][i + 1].previous.double()
        torch.testing.assert_close(mean, following, rtol=1e-5, atol=1e-6)
    assert not torch.equal(seen[0][0].released, seen[1][0].released)
    assert torch.equal(seen[0][0].previous, seen[1][0].previous)


def test_observations_are_not_overwritten_by_later_rounds(few: Dataset) -> None:
    sweep = sweep_of(few)
    source = stream(sweep, 0, sweep.parts["few"][0], 3)
    first = next(source)
    before = first.previous.clone(), first.released.clone()
    list(source)
    assert torch.equal(first.previous, before[0])
    assert torch.equal(first.released, before[1])


# --- who was present -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["uniform", "passes"])
@pytest.mark.parametrize("client", [0, 3])
def test_presence_is_what_was_drawn(few: Dataset, sampling: str, client: int) -> None:
    sweep = sweep_of(few, "none", sampling=sampling)
    part = sweep.parts["few"][client]
    drawn = sweep.draws.batches([1, 2, 3], sweep.settings.protection.batch, sweep.parts["few"], sampling)[:, client]
    for one, rows in zip(watched(sweep, 3, client), drawn.tolist(), strict=True):
        assert one.present is not None
        assert one.present.tolist() == [row in rows for row in part.tolist()]
        assert int(one.present.sum()) == sweep.settings.protection.batch


def test_examples_of_another_client_are_never_present(few: Dataset) -> None:
    sweep = sweep_of(few, "none")
    seen = watched(sweep, 3, client=1, examples=sweep.parts["few"][0])
    assert not any(bool(one.present.any()) for one in seen if one.present is not None)


def test_presence_counts_every_local_step(few: Dataset) -> None:
    sweep = sweep_of(few, "none", local_steps=2)
    for one in watched(sweep, 2):
        assert one.present is not None
        assert int(one.present.sum()) == 8


# --- examples and decoys -------------------------------------------------------------------------------------


def rows_in(images: Tensor, pool: Tensor) -> list[bool]:
    """Which of the images are in a pool, pixel by pixel."""
    known = {image.numpy().tobytes() for image in pool}
    return [image.numpy().tobytes() in known for image in images]


@pytest.mark.parametrize("client", [0, 3])
def test_decoys_are_public_images_of_the_label_and_no_clients_images(few: Dataset, client: int) -> None:
    """Decoys that a client holds may have been trained on: to name one of them would count as a mistake."""
    sweep = sweep_of(few, "none")
    result = suspects(sweep, "few", client, rounds=3, examples=6, labels=2, decoys=9)
    count = len(result.examples)
    own, decoys = result.candidates[:count], result.candidates[count:]
    assert torch.equal(own, sweep.images[result.examples])
    assert rows_in(decoys, few.public_pool.images) == [True] * 18
    assert rows_in(decoys, few.train.images) == [False] * 18
    assert rows_in(decoys, few.public_attack.images) == [False] * 18, "nor images that the attack simulates with"
    assert result.choices.shape == (6, 10)
    assert result.choices[:, 0].tolist() == list(range(6)), "the example itself stands first"
    assert bool((result.choices[:, 1:] >= count).all())
    assert torch.equal(result.labels[result.choices], sweep.labels[result.examples].unsqueeze(1).expand(-1, 10))
    assert all(len(set(row)) == 10 for row in result.choices.tolist())


@pytest.mark.parametrize("client", [0, 3])
def test_the_examples_are_those_of_the_client_that_recur_most(few: Dataset, client: int) -> None:
    sweep = sweep_of(few, "none", sampling="uniform")
    part = sweep.parts["few"][client]
    drawn = sweep.draws.batches(list(range(1, 13)), sweep.settings.protection.batch, sweep.parts["few"], "uniform")[
        :, client
    ]
    often = {row: int((drawn == row).sum()) for row in part.tolist()}
    actual = suspects(sweep, "few", client, rounds=12, examples=6, labels=2, decoys=5)
    assert set(actual.examples.tolist()) <= set(part.tolist())
    kept = sweep.labels[actual.examples]
    assert kept.tolist() == [0] * 3 + [1] * 3, "as many of each of the first labels"
    for label in (0, 1):
        mine = [row for row in part.tolist() if int(sweep.labels[row]) == label]
        expected = sorted((often[row] for row in mine), reverse=True)[:3]
        assert [often[row] for row in actual.examples[kept == label].tolist()] == expected
    assert max(often.values()) > min(often.values())


def test_all_labels_have_as_many_decoys_as_the_rarest(few: Dataset) -> None:
    result = suspects(sweep_of(few, "none"), "few", 0, rounds=2, examples=4, labels=2, decoys=10_000)
    least = min(few.public_pool.labels.bincount()[:2].tolist())
    assert result.choices.shape == (4, 1 + least)


# --- what comes out ------------------------------------------------------------------------------------------


def quick(mechanism: str = "none", **change: Any) -> dict[str, Any]:
    options = {"examples": 6, "decoys": 9, "around": 8, **change}
    federation = Federation("mnist", mechanism, BUDGETS[mechanism])
    return replayed(Settings.flat(clients=40, partition="iid"), federation, 3, **options)


@pytest.mark.parametrize("mechanism", ["none", "pl-learn"])
def test_a_replay_yields_numbers_and_no_image(mechanism: str) -> None:
    heard: list[int] = []
    result = quick(mechanism, on_round=heard.append)
    assert heard == [1, 2, 3]
    assert all(value is None or isinstance(value, str | int | float) for value in result.values())
    assert len(json.dumps(result)) < 2000
    assert result["rounds"] == 3
    assert result["targets"] == 6
    assert result["candidates"] == 10
    assert result["evidence"] == "insufficient evidence"
    assert result["learns"] == (mechanism == "pl-learn")
    assert (result["mechanism"], result["budget"]) == (mechanism, BUDGETS[mechanism])
    assert 0 < result["releases_per_example"] <= 3
    for name in ("one_release", "schedule_known", "schedule_unknown"):
        value = result[f"identification_{name}"]
        assert 0 <= result[f"identification_{name}_low"] <= value <= result[f"identification_{name}_high"] <= 1
        assert result[f"log_rank_{name}"] >= 0


def test_a_replay_finds_examples_that_nothing_protects() -> None:
    result = quick(examples=10, around=32)
    assert result["identification_schedule_known"] > 0.5
    assert result["log_rank_schedule_known"] < 1.0


def test_a_replay_is_the_same_every_time() -> None:
    assert quick("pl-learn") == quick("pl-learn")


def test_what_comes_out_is_what_the_attack_found(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth, which stands first, wins with the schedule known, ties with all where it is not, and loses alone."""
    seen: dict[str, Any] = {}

    def result(
        server: Any, observations: Any, public: Any, candidates: Any, labels: Any, choices: Tensor, chance: float,
        **more: Any,
    ) -> Combined:  # fmt: skip
        seen.update(server=server, public=public, choices=choices, chance=chance, more=more)
        seen["rounds"] = [one.round for one in observations]
        wins = torch.zeros(choices.shape, dtype=torch.float64)
        wins[:, 0] = 1
        took = torch.arange(len(choices)) % 2  # half of the examples took part in one round each
        return Combined(wins, 0 * wins, -wins, took, seen=3)

    monkeypatch.setattr(replay, "multi_round", result)
    monkeypatch.setattr("equipoise.engine.datasets.load_with", lambda *given, **more: few)
    settings = Settings.flat(local_steps=2, batch=3, partition="iid")
    rows = replayed(settings, Federation("mnist", "pl-learn", 0.98), 3, examples=6, decoys=4, around=8, seed=5)
    assert [rows[f"identification_{name}"] for name in ("one_release", "schedule_known", "schedule_unknown")] == [
        0, 1, pytest.approx(1 / 5),
    ]  # fmt: skip
    assert (rows["log_rank_schedule_known"], rows["log_rank_one_release"]) == (0, pytest.approx(math.log(5)))
    assert (rows["releases_per_example"], rows["rounds"], rows["targets"], rows["candidates"]) == (0.5, 3, 6, 5)
    assert seen["rounds"] == [1, 2, 3]
    assert seen["chance"] == 2 * 3 / 40, "that of an example in all local steps"
    assert seen["more"] == {"around": 8, "seed": 5}
    assert float(seen["server"].protection.scale) == pytest.approx(7.99975)
    assert torch.equal(seen["public"][0], few.public_attack.images)


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"examples": 0}, "examples=0"),
        ({"decoys": True}, "decoys=True"),
        ({"labels": 1.5}, "labels=1.5"),
        ({"around": 3}, "around=3"),
        ({"client": 40}, "client=40"),
        ({"client": -1}, "client=-1"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        quick(**change)


def test_more_rounds_than_are_trained_are_refused() -> None:
    with pytest.raises(ConfigError, match="rounds=3"):
        replayed(Settings.flat(rounds=2), Federation("mnist", "none"), 3)


def test_a_client_that_may_be_absent_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes part in every round"):
        replayed(Settings.flat(clients=4, participants=2), Federation("mnist", "none"), 3)


@pytest.mark.parametrize("name", ["budget", "gamma", "negative_norm"])
def test_what_changes_over_rounds_is_refused(name: str) -> None:
    schedule = {"rounds": [1, 2], "values": [0.96, 0.98]}
    settings = Settings.flat(**({} if name == "budget" else {name: schedule}))
    federation = Federation("mnist", "pl-learn", schedule if name == "budget" else 0.98)
    with pytest.raises(ConfigError, match=f"needs one {name} for all rounds"):
        replayed(settings, federation, 3)
