"""What a server, a clock, a disk or another process may do to a run that is reserved: nothing of it buys a release."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from equipoise.flower import protected_step
from equipoise.ledger import lines
from equipoise.ledger.account import reset_account
from equipoise.ledger.account_report import not_claimed
from tests.flower.messages import RUN, WHOLE_RUN, answered, asking, content, context, images, network
from tests.flower.policies import node, written
from tests.flower.whole_runs import NODE, App, accepted, ask, bounds, ledger, reply_of
from tests.helpers import single_threaded

# --- the data ---------------------------------------------------------------------------------------------------------


def test_neither_other_records_nor_another_name_reset_anything_and_a_recorded_reset_does(
    own: dict[str, Any], tmp_path: Path
) -> None:
    assert ask(own, 1, app=App(0))
    assert ask(own, 2, app=App(1))
    written(tmp_path / "p.toml", mechanisms=bounds(most_total_epsilon=4.0), data="other scans", **NODE)
    other = App(2)
    assert not ask(own, 3, app=other), "records that were never seen before"
    assert other.runs == [], "nobody even looked at them"
    reset_account(tmp_path / "l.jsonl", "all records are new")
    assert ask(own, 3, app=other)
    (reset,) = ledger(own).resets
    assert (reset.reason, reset.releases, reset.epsilon) == ("all records are new", 2, 4.0)


def test_a_reset_in_the_middle_of_a_run_makes_it_reserve_all_of_itself_again(
    own: dict[str, Any], tmp_path: Path
) -> None:
    assert ask(own, 1)
    reset_account(tmp_path / "l.jsonl", "all records are new")
    assert ledger(own).runs == {}
    assert ask(own, 1, round_number=2)
    assert (ledger(own).runs["1"].terms.epsilon, ledger(own).runs["1"].used) == (2.0, 1)


def test_a_release_without_a_guarantee_on_the_same_data_is_said(own: dict[str, Any]) -> None:
    assert ask(own, 1)
    assert not any("No guarantee" in words for words in not_claimed(ledger(own)))
    plain = {**RUN, "equipoise.metrics": ""}
    assert accepted(answered(App(), asking(), context(plain, own, 2)))
    words = "No guarantee holds for this data set as a whole: 1 releases by pl-identical have none."
    assert words in not_claimed(ledger(own))


@pytest.mark.parametrize("run", [WHOLE_RUN, {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}])
def test_noise_that_can_be_made_again_is_not_counted_as_a_guarantee(
    run: dict[str, Any], own: dict[str, Any], tmp_path: Path
) -> None:
    """Not even by a policy for experiments: the ledger would say an epsilon that does not hold."""
    written(tmp_path / "p.toml", mechanisms=bounds(), **{**NODE, "experiment": True})

    def seeded(msg: Message, context: Context) -> Message:
        return Message(content(protected_step(network(), images(), msg, context, experiment_seed=1)), reply_to=msg)

    assert not accepted(answered(seeded, asking(), context(dict(run), own)))
    assert accepted(answered(App(), asking(), context(dict(run), own)))
    free = node(tmp_path / "free.toml", weight=1)
    assert accepted(answered(seeded, asking(), context(dict(run), free))), "without a ledger it is an experiment"


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {}, {"gaussian.rounds": 4}, {"gaussian.rounds": 30}, {"gaussian.sampling_rate": 0.5}, {"budget": 0.5},
        {"gaussian.delta": 1e-6}, {"gaussian.noise_schedule": 2.0},
    ],
)  # fmt: skip
def test_the_number_of_a_finished_run_is_not_used_again(change: dict[str, Any], own: dict[str, Any]) -> None:
    assert all(ask(own, 5, number) for number in (1, 2, 2)), "a message again is another one"
    before, app = ledger(own), App()
    assert before.runs["5"].used == 3
    for number in (1, 3, 4):
        assert not ask(own, 5, number, app, **change)
    assert app.runs == []
    assert ledger(own).head == before.head, "nothing was written"


def test_round_numbers_are_the_servers_words_and_the_node_counts_for_itself(
    own: dict[str, Any], made: list[dict[str, Any]]
) -> None:
    schedule = '{"rounds": [1, 2], "values": [1.0, 0.5]}'
    numbers = (2, 10**12, 0, 2, 1)
    replies = [reply_of(own, 1, number, **{"gaussian.noise_schedule": schedule}) for number in numbers]
    answers = [accepted(reply) for reply in replies]
    assert answers == [True, True, True, False, False], "skipped, repeated or from before: three in all"
    assert [call["round_number"] for call in made] == [1, 2, 3], "and the noise is that of its place"
    assert [reply.content["equipoise"]["round"] for reply in replies[:3]] == [2, 10**12, 0], "as it was asked for"


def test_a_clip_that_changes_changes_the_noise_with_it(own: dict[str, Any], made: list[dict[str, Any]]) -> None:
    """The noise is so many clips, whatever a clip is: a server may choose it along the way."""
    for number, clip in enumerate((1.0, 1e-3, 1e6), start=1):
        assert ask(own, 1, number, **{"gaussian.clip": clip})
    sigma = ledger(own).runs["1"].terms.sigma
    for call, clip in zip(made, (1.0, 1e-3, 1e6), strict=True):
        release = call["settings"].at("gaussian-dp", 2.0, 1)
        assert float(release.scale) == pytest.approx(sigma * clip * call["settings"].eta / 500)
        assert release.clip == clip


@pytest.mark.parametrize("eta", [1e-310, 1e-31, 1e31])
def test_a_step_that_would_round_the_noise_is_refused(eta: float, own: dict[str, Any]) -> None:
    """Its product with the noise multiplier would keep few digits, or none."""
    app = App()
    assert not ask(own, app=app, eta=eta)
    assert app.runs == []
    assert ask(own, eta=1e-29)


@pytest.mark.parametrize("sampling_rate", [1.0, 0.5])
def test_a_server_cannot_set_the_noise_multiplier(sampling_rate: float, own: dict[str, Any]) -> None:
    about = {"gaussian.sampling_rate": sampling_rate}
    for key in ("gaussian.sigmas", "gaussian.sigma", "gaussian.divisor"):
        assert not ask(own, **about, **{key: "[[2.0, 0.001]]"})
    assert ledger(own).runs == {}
    assert ask(own, **about)


def test_runs_side_by_side_are_each_reserved_as_a_whole(own: dict[str, Any]) -> None:
    app = App()
    assert all(ask(own, run_id, number, app) for number in (1, 2, 3) for run_id in (1, 2))
    assert not any(ask(own, run_id, 4, app) for run_id in (1, 2))
    assert not any(ask(own, 3, number, app) for number in (1, 2, 3)), "one too many, in every round"
    assert app.runs == [1, 2] * 3, "the app is not called for it"
    assert {name: run.used for name, run in ledger(own).runs.items()} == {"1": 3, "2": 3}


# --- the clock and the disk -------------------------------------------------------------------------------------------


def test_a_clock_that_goes_back_changes_nothing(own: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    years = iter(range(2026, 1990, -1))

    class Backwards:
        @staticmethod
        def now(zone: Any) -> datetime:
            return datetime(next(years), 1, 1, tzinfo=UTC)

    monkeypatch.setattr(lines, "datetime", Backwards)
    assert ask(own, 1)
    assert ask(own, 1, 2)
    assert ask(own, 2)
    assert not ask(own, 3)
    text = (Path(own["equipoise.policy"]).parent / "l.jsonl").read_text()
    times = [json.loads(line).get("at", "9") for line in text.splitlines()]
    assert times == sorted(times, reverse=True), "it did go back"
    assert {name: run.used for name, run in ledger(own).runs.items()} == {"1": 2, "2": 1}


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """No file grows beyond this size, as on a full disk: what does not fit is half-written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 200, 450])
def test_on_a_full_disk_nothing_is_computed_and_nothing_forgotten(room: int, own: dict[str, Any]) -> None:
    """The reservation does not fit, or it does and the count of its first release does not."""
    path, app = Path(own["equipoise.policy"]).parent / "l.jsonl", App()
    with full_after(path.stat().st_size + room):
        assert not ask(own, 1, app=app)
    assert app.runs == []
    kept = ledger(own)
    assert sum(run.used for run in kept.runs.values()) == 0
    assert len(kept.runs) == (room > 400), "a reservation that was written stays, used or not"
    assert ask(own, 1, app=app), "with space again it goes on"
    assert (len(ledger(own).runs), ledger(own).runs["1"].used) == (1, 1)


def test_a_reservation_that_is_written_stays_when_its_mark_cannot_be(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    app = App()
    with monkeypatch.context() as patch:
        patch.setattr("equipoise.ledger.account._write_head", full)
        assert not ask(own, 1, app=app)
    assert app.runs == []
    assert list(ledger(own).runs) == ["1"]
    assert ask(own, 2)
    assert not ask(own, 3), "what nobody used is reserved all the same"
    assert ask(own, 1)


# --- two processes at once --------------------------------------------------------------------------------------------

RACE = """
import sys
from tests.flower.test_hostile_runs import race
race(sys.argv[1], int(sys.argv[2]))
"""


def race(policy: str, processes: int) -> None:
    """Processes that each ask for a run of their own at the same moment; each prints whether it was answered."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        setattr(TaskIdentity, name, 1)
    torch.set_num_threads(1)
    start, go = os.pipe()
    children = []
    for run_id in range(1, processes + 1):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)  # until the parent closes its end
            os.write(1, f"{run_id} {ask({'equipoise.policy': policy}, run_id)}\n".encode())
            os._exit(0)
        children.append(child)
    os.close(go)
    for child in children:
        os.waitpid(child, 0)


@pytest.mark.slow
def test_of_many_processes_at_once_no_more_are_answered_than_there_is_room_for(own: dict[str, Any]) -> None:
    environment = {**single_threaded(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RACE, own["equipoise.policy"], "8"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert len(answers) == 8
    granted = {run_id for run_id, answer in answers.items() if answer == "True"}
    assert len(granted) == 2
    assert {name: run.used for name, run in ledger(own).runs.items()} == dict.fromkeys(granted, 1)
