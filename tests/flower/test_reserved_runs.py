"""A node holds every run to what it reserved: before the app is called, across restarts, and when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from equipoise.errors import EquipoiseError
from equipoise.flower import protected_step
from equipoise.flower.admission import Admission, Counted, admitted, counting
from equipoise.ledger.account import reset_account
from equipoise.ledger.ledger import Summary
from tests.flower.messages import WHOLE_RUN, answered, asking, content, context, images, network
from tests.flower.policies import node, written
from tests.flower.whole_runs import NODE, App, accepted, ask, bounds, ledger
from tests.helpers import single_threaded


def test_what_a_run_may_spend_is_on_the_disk_before_the_app_is_called(own: dict[str, Any]) -> None:
    found: list[Summary] = []

    def train(msg: Message, context: Context) -> Message:
        found.append(ledger(own))
        return App()(msg, context)

    assert ask(own, run_id=9, app=train)
    (before,) = found
    run = before.runs["9"]
    assert (run.terms.epsilon, run.terms.delta, run.terms.rounds, run.terms.divisor) == (2.0, 1e-5, 3, 500)
    assert (run.terms.unit, run.terms.relation, run.used) == ("record", "add/remove", 1)
    assert before.entries == 3, "account, reserve, asked"


def test_the_run_that_would_pass_the_limit_is_refused_before_anything_is_computed(
    own: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []

    def train(msg: Message, context: Context) -> Message:
        called.append(context.run_id)
        raise RuntimeError("the app failed")

    for run_id in (1, 2):
        assert not ask(own, run_id, app=train)
    before = ledger(own)

    computed: list[Any] = []

    def noise(*terms: Any, **_: Any) -> float:
        computed.append(terms)
        return 10.0

    monkeypatch.setattr("equipoise.flower.whole_run.noise_multiplier", noise)
    assert not ask(own, 3, app=train)
    assert computed == [], "not even its noise"
    assert not ask(own, 2, app=train)
    assert computed == [], "what is reserved is not computed again"
    assert called == [1, 2, 2], "what stopped or failed stays reserved, and goes on"
    after = ledger(own)
    assert (after.entries, after.runs.keys()) == (before.entries + 1, before.runs.keys())
    reset_account(tmp_path / "l.jsonl", "all records are new")
    assert not ask(own, 3, app=train)
    assert len(computed) == 1, "where there is room it is computed"


def test_the_limit_holds_for_a_smaller_run_and_for_deltas_too(own: dict[str, Any], tmp_path: Path) -> None:
    assert ask(own, 1, budget=1.5)
    assert not ask(own, 2, budget=2.6)
    assert ask(own, 2, budget=2.5)
    assert not ask(own, 3, budget=0.1)
    written(tmp_path / "p.toml", mechanisms=bounds(most_total_delta=2.5e-5), **NODE)
    assert not ask(own, 4, budget=0.1)
    assert ask(own, 4, budget=0.1, **{"gaussian.delta": 1e-6})


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 1.0}, {"gaussian.delta": 1e-6}, {"gaussian.rounds": 4}, {"gaussian.rounds": 2},
        {"gaussian.sampling_rate": 0.5}, {"gaussian.noise_schedule": '{"rounds": [1, 2], "values": [1.0, 0.5]}'},
    ],
)  # fmt: skip
def test_a_run_cannot_change_its_terms(change: dict[str, Any], own: dict[str, Any]) -> None:
    assert ask(own)
    assert not ask(own, round_number=2, **change)
    assert ledger(own).runs["1"].used == 1
    assert ask(own, round_number=2)


def test_neither_can_the_policy_while_a_run_is_under_way(own: dict[str, Any], tmp_path: Path) -> None:
    assert ask(own)
    for change in ({"divisor": 501}, {"unit": "group"}):
        written(tmp_path / "p.toml", mechanisms=bounds(**change), **NODE)
        assert not ask(own, round_number=2)


def test_more_rounds_than_the_node_ever_releases_are_not_reserved(own: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path / "p.toml", mechanisms=bounds(most_releases=2), **NODE)
    assert not ask(own)
    assert ledger(own).runs == {}


def test_releases_are_made_with_the_noise_that_is_reserved_and_the_policys_divisor(
    own: dict[str, Any], made: list[dict[str, Any]]
) -> None:
    for number in (1, 2):
        assert ask(own, round_number=number)
    terms = ledger(own).runs["1"].terms
    for call in made:
        gaussian = call["settings"].gaussian
        assert (call["divisor"], gaussian.divisor, gaussian.rounds) == (500, 500, 3)
        assert [list(pair) for pair in gaussian.sigmas] == [[2.0, terms.sigma]]
        assert call["groups"] is None


def test_all_records_are_the_mechanisms_to_draw_from(own: dict[str, Any], made: list[dict[str, Any]]) -> None:
    def train(msg: Message, context: Context) -> Message:
        loader = iter([images(0), images(1)])
        return Message(content(protected_step(network(), loader, msg, context)), reply_to=msg)

    assert ask(own, app=train)
    x, y = made[0]["batch"]
    assert torch.equal(x, torch.cat([images(0)[0], images(1)[0]]))
    assert torch.equal(y, torch.cat([images(0)[1], images(1)[1]]))


def test_groups_come_from_the_app_if_and_only_if_they_are_the_unit(
    own: dict[str, Any], made: list[dict[str, Any]], tmp_path: Path
) -> None:
    people = torch.tensor([0, 0, 1, 1, 2, 2])

    def train(msg: Message, context: Context) -> Message:
        x, y = images()
        batch = {"img": x, "label": y, "person": people}
        keys = ("img", "label", "person")
        return Message(content(protected_step(network(), batch, msg, context, keys=keys)), reply_to=msg)

    assert not ask(own, app=train), "the unit is the record"
    reset_account(tmp_path / "l.jsonl", "another unit")
    written(tmp_path / "p.toml", mechanisms=bounds(unit="group"), **NODE)
    assert not ask(own, 2), "no groups"
    assert ask(own, 2, 2, app=train)
    assert torch.equal(made[-1]["groups"], people)


def test_guarantees_for_groups_and_for_records_do_not_meet_in_one_account(own: dict[str, Any], tmp_path: Path) -> None:
    assert ask(own, 1)
    written(tmp_path / "p.toml", mechanisms=bounds(unit="group"), **NODE)
    assert not ask(own, 2)
    reset_account(tmp_path / "l.jsonl", "from now on people")
    ask(own, 3)
    laplace = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 0.5}
    assert not accepted(answered(App(), asking(), context(laplace, own, 4)))


def test_single_releases_count_against_the_same_total(own: dict[str, Any], tmp_path: Path) -> None:
    laplace = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}
    assert accepted(answered(App(), asking(), context(laplace, own, 5)))
    assert ask(own, 1)
    assert not ask(own, 2), "1 + 2 + 2 is more than 4"
    assert ask(own, 2, budget=1.0)
    tight = bounds(most_total_epsilon=99.0)
    tight["laplace-dp"]["most-total-epsilon"] = 4.5
    written(tmp_path / "p.toml", mechanisms=tight, **NODE)
    assert not accepted(answered(App(), asking(round_number=2), context(laplace, own, 5)))


def test_without_a_ledger_a_run_is_held_to_its_terms_by_its_state(tmp_path: Path) -> None:
    own = node(tmp_path / "p.toml", mechanisms=bounds(most_total_epsilon=2.0), weight=1)
    about, called = context(dict(WHOLE_RUN), own), []

    def train(msg: Message, context: Context) -> Message:
        called.append(1)
        return App()(msg, context)

    for _ in range(3):
        assert accepted(answered(train, asking(), about))
    assert not accepted(answered(train, asking(), about))
    assert len(called) == 3, "refused before the app is called"
    about = context(dict(WHOLE_RUN), own)
    assert accepted(answered(App(), asking(), about))
    changed = Context(1, 101, own, about.state, {**WHOLE_RUN, "equipoise.budget": 1.0})
    assert not accepted(answered(App(), asking(), changed))


# --- planted bugs -------------------------------------------------------------------------------------------------


def test_a_reservation_after_the_release_would_be_noticed(own: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger itself takes no release of a run for which nothing is reserved."""
    real = Counted._reserved

    def late(self: Counted, admission: Admission, asked: Any) -> Admission:
        account, self.account = self.account, None
        result = real(self, admission, asked)
        self.account = account
        return replace(result, place=1)

    monkeypatch.setattr(Counted, "_reserved", late)
    about = context(dict(WHOLE_RUN), own)
    admission = admitted(asking(), about)
    with counting(admission, about) as counted, pytest.raises(EquipoiseError, match="nothing is reserved"):
        counted.charge(admission)


# --- killed -------------------------------------------------------------------------------------------------------

WORKER = """
import os, sys
from tests.flower.test_reserved_runs import serve
serve(sys.argv[1])
"""


def serve(policy: str) -> None:
    """For every line that comes in, answer one message in a process of its own, which says how far it came.

    With ``hold`` it stops when a release is made, between count and reply; else when it is sent. Then it waits to be
    killed.
    """
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        setattr(TaskIdentity, name, 1)
    own = {"equipoise.policy": policy}

    def answer(how: str) -> None:
        def train(msg: Message, context: Context) -> Message:
            reply = App()(msg, context)
            os.write(1, b"made\n")
            while how == "hold\n":
                time.sleep(1)
            return reply

        sent = ask(own, run_id=7, app=train, **{"gaussian.rounds": 100})
        os.write(1, b"sent\n" if sent else b"failed\n")

    os.write(1, b"ready\n")
    while sys.stdin.readline():
        child = os.fork()
        if child == 0:
            os.write(1, f"{os.getpid()}\n".encode())
            answer(sys.stdin.readline())
            while True:
                time.sleep(1)
        os.waitpid(child, 0)
        os.write(1, b"over\n")


@pytest.mark.slow
def test_killed_between_count_and_reply_nothing_goes_uncounted(own: dict[str, Any]) -> None:
    """20 processes are killed (-9) with a release at hand that has not left, 20 at some moment or other."""
    environment = {**single_threaded(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WORKER, own["equipoise.policy"]]
    made = sent = 0
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        said = iter(worker.stdout.readline, b"")
        assert next(said) == b"ready\n"
        for attempt in range(40):
            worker.stdin.write(b"answer\n")
            child = int(next(said))
            hold = attempt % 2 == 0
            worker.stdin.write(b"hold\n" if hold else b"go\n")
            lines = [next(said)] if hold else []
            time.sleep(0 if hold else 0.001 * attempt)  # most often while the ledger is read and written
            os.kill(child, signal.SIGKILL)
            lines += list(iter(lambda: next(said), b"over\n"))
            assert b"failed\n" not in lines
            assert not hold or lines == [b"made\n"], "killed between count and reply"
            made, sent = made + (b"made\n" in lines), sent + (b"sent\n" in lines)
            run = ledger(own).runs.get("7")
            used = 0 if run is None else run.used
            assert sent <= made <= used <= attempt + 1, "what was made is counted, and nothing twice"
            assert run is None or run.terms.epsilon == 2.0
        worker.stdin.close()
    assert worker.returncode == 0
    assert made >= 20
    assert ask(own, run_id=7, **{"gaussian.rounds": 100}), "and the run goes on"
