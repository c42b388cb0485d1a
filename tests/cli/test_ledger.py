"""``equipoise ledger``: what it prints, and its exit codes. What it says is the report's (tests/ledger)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli import display
from equipoise.errors import missing_package
from equipoise.flower.policy import read_policy
from equipoise.flower.policy_file import init_policy
from equipoise.ledger.account import Account
from equipoise.ledger.ledger import Ledger
from equipoise.ledger.report import ledger_report
from equipoise.privacy import accounting
from equipoise.privacy.gaussian import epsilon_of
from tests.helpers import Command, Done, entry_point, write_dataset
from tests.ledger.entries import (
    a_round,
    answered,
    asked,
    deployment,
    entry,
    formal,
    node,
    of_run,
    reservation,
    row,
    seeded,
)  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise ARGUMENTS`` by its entry point, in a folder of its own."""
    return entry_point(tmp_path, monkeypatch, capfd)


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    return deployment(tmp_path / "deployed")


def table_rows(out: str) -> list[list[str]]:
    """Of the table of releases: what stands above clients, and their counts."""
    lines = out.splitlines()
    start = next(place for place, line in enumerate(lines) if "──" in line) + 1
    end = next(place for place, line in enumerate(lines) if place > start and not line.strip())
    return [line.split() for line in lines[start:end]]


def test_a_deployment_is_shown_by_client(command: Command, deployed: Path) -> None:
    done = command("ledger", deployed)
    assert (done.code, done.err) == (0, "")
    assert table_rows(done.out) == [
        ["pl-learn", "@", "0.98"],
        ["a", "3", "2", "0", "8.5", "to", "12.5"],
        ["b", "3", "0", "1", "-"],
    ]
    text = " ".join(done.out.split())
    for kind, words in ledger_report(deployed)["claims"].items():
        assert f"{kind}: {' '.join(words)}" in text


def test_clients_that_differ_in_their_intensity_alone_share_a_row(command: Command, tmp_path: Path) -> None:
    folder = seeded(tmp_path / "run", a_round(1, clients=3), a_round(2, clients=2))
    assert table_rows(command("ledger", folder).out) == [
        ["pl-learn", "@", "0.98"],
        ["2", "clients", "2", "2", "0", "8.143", "to", "9.286"],
        ["2", "1", "1", "0", "10.14"],
    ]


def test_federations_are_told_apart(command: Command, tmp_path: Path) -> None:
    folder = seeded(tmp_path / "run", a_round(1), a_round(1, federation=1, clients=1))
    assert table_rows(command("ledger", folder).out) == [
        ["federation", "0,", "pl-learn", "@", "0.98"],
        ["2", "clients", "1", "1", "0", "8.143", "to", "9.143"],
        ["federation", "1,", "pl-learn", "@", "0.98"],
        ["0", "1", "1", "0", "8.143"],
    ]


def test_names_keep_their_lines_on_a_narrow_terminal(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node ids have up to 20 digits, and so have runs, which --guarantee takes."""
    monkeypatch.setattr(display.console, "width", 80)
    ids, run = ["13982648273648172635", "8273648172635139826"], "17263548190283746551"
    answers = [row(ids[0], 12.345), row(ids[1], 10.123, accepted=False, reason="why")]
    Ledger.open(tmp_path / "run" / "ledger.jsonl", None).append([asked(1, ids), answered(1, answers)])
    lines = command("ledger", tmp_path / "run").out.splitlines()
    assert [f" {name} " in " ".join(lines) for name in ids] == [True, True]
    account = node(tmp_path / "node", reservation(run, rounds=100, noise_schedule=((1.0, 100),)).entry(), of_run(run))
    lines += command("ledger", account).out.splitlines()
    (one,) = [line.split() for line in lines if line.startswith(f" {run} ")]
    assert one[:8] == [run, "2", "1e-05", "3.5", "1", "1", "of", "100"]
    assert any(line.startswith("reserved, by run (add/remove, mechanism: gaussian-dp, unit: record)") for line in lines)
    assert f"--guarantee {run}" in " ".join(lines)
    assert max(map(len, lines)) <= 80


def test_an_empty_account_has_no_table(command: Command, tmp_path: Path) -> None:
    init_policy(tmp_path / "node", "scans")
    out = command("ledger", tmp_path / "node" / "ledger.jsonl").out
    assert re.match(r"releases of a node, account \w+: no release yet\n", out)
    assert "──" not in out


def test_the_guarantee_of_a_trained_run_lies_in_its_folder(command: Command, tmp_path: Path) -> None:
    done = command("ledger", seeded(tmp_path / "run", a_round(1)), "--guarantee", "1")
    assert done.code == 19
    assert "Reserved: none; a run of equipoise train has guarantee.json in its folder." in " ".join(done.err.split())


def test_the_account_of_a_node_is_shown_with_its_identity(command: Command, tmp_path: Path) -> None:
    done = command("ledger", node(tmp_path / "node", a_round(1), a_round(2, clients=1)))
    assert (done.code, done.err) == (0, "")
    assert "releases of a node, account 5d1c0e77" in done.out
    assert table_rows(done.out)[1:] == [["this", "node", "3", "3", "0", "8.143", "to", "9.143"]]


def test_the_account_of_a_node_shows_what_is_reserved_and_left(command: Command, tmp_path: Path) -> None:
    policy = init_policy(tmp_path / "node", "scans")
    account = read_policy(policy).account
    ledger = tmp_path / "node" / "ledger.jsonl"
    assert account is not None
    with Account.open(ledger, account) as held:
        held.reserve(reservation("7"))
        held.append(of_run("7"))
    done = command("ledger", ledger, "--policy", policy)
    text = " ".join(done.out.split())
    assert (done.code, done.err) == (0, "")
    so_far = epsilon_of(3.5, 1e-5, 1)
    assert f"7 2 1e-05 3.5 1 1 of 3 {so_far:.3g}" in text
    assert "releases of the data set 'scans', account " in text
    assert "reserved, by run (add/remove, mechanism: gaussian-dp, unit: record)" in text
    assert "left under the policy for gaussian-dp: epsilon 6, delta 4e-05" in text
    document = json.loads(command("ledger", ledger, "--policy", policy, "--json").out)
    assert (document["left"]["gaussian-dp"]["epsilon"], document["reserved"]["runs"][0]["used"]) == (6.0, 1)
    assert (document["data"], document["reserved"]["runs"][0]["spent_so_far"]) == ("scans", so_far)
    other = init_policy(tmp_path / "other", "scans")
    assert "another account" in command("ledger", ledger, "--policy", other).err


def test_a_reset_is_recorded_and_shown(command: Command, tmp_path: Path) -> None:
    ledger = node(tmp_path / "node", reservation("7").entry(), of_run("7"))
    for options in (["--reset"], ["--reason", "x"]):
        assert "belong together" in command("ledger", ledger, *options).err
    assert json.loads(command("ledger", ledger, "--json").out)["total"]["epsilon"] == 2.0
    done = command("ledger", ledger, "--reset", "--reason", "new scans alone")
    assert (done.code, done.err) == (0, "")
    assert "'new scans alone'" in " ".join(done.out.split())
    again = json.loads(command("ledger", ledger, "--json").out)
    assert (again["total"]["epsilon"], len(again["resets"])) == (0.0, 1), "reading it resets nothing"


def test_as_json_it_is_the_report_and_nothing_else(command: Command, deployed: Path) -> None:
    done = command("ledger", deployed, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == ledger_report(deployed)


def test_a_run_is_verified_from_its_folder_and_from_its_file(command: Command, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    small = ("--rounds", 3, "--set", "evaluate_every=3", "--set", "steps=1", "--set", "threads=1")
    sweep = ("--mechanism", "none,pl-learn", "--budget", "0.98", "--dataset", data)
    assert command("train", *sweep, *small, "--out", "run", "--json").code == 0
    result = command("ledger", "run", "--json")
    assert result == command("ledger", "run/ledger.jsonl", "--json")
    document = json.loads(result.out)
    assert (result.code, document["experiment"], document["entries"]) == (0, "seeded", 7)
    assert [(one["federation"], one["client"]) for one in document["clients"]] == [
        (federation, client) for federation in (0, 1) for client in "0123"
    ]
    assert {one["releases"] for one in document["clients"]} == {3}
    assert any("Releases of none were not distorted" in line for line in document["claims"]["not claimed"])
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    done = command("ledger", "run")
    assert done == Done(19, "", "error: The ledger ends after 6 of 7 lines. Restore what was cut off.\n")


def test_the_limit_of_a_run_ends_it_with_its_own_exit_code(command: Command, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    sweep = ("train", "--mechanism", "none", "--dataset", data, "--rounds", 9, "--set", "threads=1", "--out", "run")
    for _ in range(2):
        done = command(*sweep, "--release-limit", 2)
        assert done.code == 20
        assert done.err.strip().startswith(
            "error: Client 0 of federation 0 was asked for 2 release(s); round 3 would pass the limit of 2. What was "
        )
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stopped"]["round"] == 2
    assert json.loads(command("ledger", "run", "--json").out)["clients"][0]["releases"] == 2
    assert command(*sweep, "--release-limit", 0).code == 11


def test_a_head_that_was_noted_is_looked_for(command: Command, deployed: Path) -> None:
    head = json.loads((deployed / "ledger.jsonl").read_text().splitlines()[1])["hash"]
    done = command("ledger", deployed, "--head", head)
    assert "It leads to the head of --head, and 4 line(s) beyond it." in " ".join(done.out.split())
    done = command("ledger", deployed, "--head", "0" * 64)
    assert (done.code, done.out) == (19, "")
    assert f"does not lead to the head {'0' * 64}" in done.err


@pytest.mark.parametrize("result", ["{", "[" * 5000, '{"ledger": 1}'])
def test_a_damaged_result_is_one_line(command: Command, deployed: Path, result: str) -> None:
    (deployed / "result.json").write_text(result)
    done = command("ledger", deployed)
    assert (done.code, done.out) == (19, "")
    assert "result.json" in done.err
    assert done.err.count("\n") == 1


def test_where_there_is_no_ledger_one_line_says_so(command: Command) -> None:
    done = command("ledger", "missing")
    assert (done.code, done.out) == (19, "")
    assert done.err.startswith("error: There is no ledger ")


def test_the_composed_epsilon_of_a_client_is_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "composed_epsilon", lambda budgets, delta: 1.25 + delta)
    folder = seeded(
        tmp_path / "run", *(formal(round_number, client, 0.375) for round_number in (1, 2, 3, 4) for client in "01")
    )
    assert (
        "laplace-dp, federation 0, client 1: 4 releases, epsilon 1.5 at delta 0, epsilon 1.25 at delta 1e-05\n"
        in command("ledger", folder).out
    )
    result = json.loads(command("ledger", folder, "--json", "--delta", "0.25").out)
    assert result["composed"][0]["epsilon"] == 1.5


def test_without_dp_accounting_it_says_how_to_get_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(budgets: dict[float, int], delta: float) -> float:
        raise missing_package("Composing releases", "dp-accounting")

    monkeypatch.setattr(accounting, "composed_epsilon", missing)
    done = command("ledger", seeded(tmp_path / "run", formal(1), formal(2)))
    assert done.code == 0
    told = "2 releases, epsilon 1 at delta 0; not composed: Install it with pip install dp-accounting."
    assert told in " ".join(done.out.split())


def test_no_epsilon_is_shown_for_any_other_mechanism(command: Command, tmp_path: Path) -> None:
    mixed = entry("round", 2, releases=[row("0")])
    other = entry("round", 1, federation=1, mechanism="of another installation", budget=80, releases=[row("0")])
    done = command("ledger", seeded(tmp_path / "run", formal(1), mixed, other))
    assert done.code == 0
    assert "of another installation" in done.out
    assert not re.search(r"epsilon,? -?\d", done.out)


@pytest.mark.parametrize("delta", ["-1", "nan"])
def test_a_delta_out_of_range_is_a_config_error(command: Command, deployed: Path, delta: str) -> None:
    done = command("ledger", deployed, "--delta", delta)
    assert (done.code, done.out) == (11, "")
    assert "delta" in done.err


@pytest.mark.parametrize("budget", [None, 0])
def test_a_budget_that_is_no_epsilon_is_a_typed_error(command: Command, tmp_path: Path, budget: Any) -> None:
    done = command("ledger", seeded(tmp_path / "run", formal(1), formal(2, budget=budget)))
    assert (done.code, done.out) == (14, "")


def test_names_from_a_file_cannot_command_the_terminal(command: Command, tmp_path: Path) -> None:
    hostile = "\x1b[2J\r[red]" + "x" * 99
    entries = [entry("round", 1, mechanism="\x1b]0;m\x07", releases=[row(hostile)])]
    done = command("ledger", seeded(tmp_path / "run", *entries))
    assert done.code == 0
    assert not set("\x1b\r\x07") & set(done.out)
    assert "x" * 50 not in done.out
