"""``equipoise ledger``: what it verifies, counts, says and does not say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import ConfigError
from equipoise.ledger.ledger import NO_REPLY, Ledger
from equipoise.privacy import accounting
from tests.helpers import Command, Done, entry_point, write_dataset


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise ARGUMENTS`` by its entry point, in a folder of its own."""
    return entry_point(tmp_path, monkeypatch, capfd)


def row(client: str, intensity: float | None = 9.0, **change: Any) -> dict[str, Any]:
    return {"client": client, "lower": 7.99975, "upper": 15.9995, "intensity": intensity, "accepted": True, **change}


def silent(client: str) -> dict[str, Any]:
    return {"client": client, "accepted": False, "reason": NO_REPLY}


def entry(kind: str, when: int, federation: int = 0, **more: Any) -> dict[str, Any]:
    about = {"kind": kind, "federation": federation, "round": when, "mechanism": "pl-learn", "budget": 0.98}
    return {**about, **more}


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    """The folder of a deployment of two clients, one of which is late, refused, and asked twice."""
    folder = tmp_path / "deployed"
    ledger = Ledger.open(folder / "ledger.jsonl", None)
    ledger.append([entry("asked", 1, clients=["a", "b"]), entry("answered", 1, releases=[row("a", 8.5), silent("b")])])
    ledger.append([entry("asked", 2, clients=["a", "b"])])  # then the server was killed
    refused = row("b", None, accepted=False, reason="tensor 'w': 1 of 9 numbers are not finite")
    ledger.append([entry("asked", 2, clients=["a", "b"]), entry("answered", 2, releases=[row("a", 12.5), refused])])
    (folder / "result.json").write_text(json.dumps({"ledger": {"head": ledger.head, "entries": ledger.entries}}))
    return folder


def seeded(folder: Path, *entries: dict[str, Any]) -> Path:
    ledger = Ledger.open(folder / "ledger.jsonl", "seeded")
    ledger.append(entries)
    return folder


def formal(when: int, client: str = "0", budget: Any = 0.5, **more: Any) -> dict[str, Any]:
    rows = [{"client": client, "lower": None, "upper": None, "scale": 0.1, "intensity": None, "accepted": True}]
    return entry("round", when, mechanism="laplace-dp", budget=budget, releases=rows, **more)


def table_rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if re.match(r"\s+\d+\s", line)]


def test_a_deployment_is_counted_by_what_was_asked(command: Command, deployed: Path) -> None:
    done = command("ledger", deployed)
    assert (done.code, done.err) == (0, "")
    assert table_rows(done.out) == [
        ["0", "a", "pl-learn", "0.98", "3", "2", "0", "8.5", "-", "12.5"],
        ["0", "b", "pl-learn", "0.98", "3", "0", "1", "-"],
    ]
    text = " ".join(done.out.split())
    assert "proved: The chain of 6 lines is whole; its head is " in text
    assert "It leads to the head of result.json." in text
    assert "measured: 6 releases were asked for, 2 accepted and 1 refused. Intensities as the clients reported" in text
    assert "not claimed: Budgets of pl-learn are per release and do not compose: up to 3 releases of a client" in text
    assert "No (epsilon, delta) is claimed." in text


def test_as_json_it_is_one_document_with_the_same_numbers(command: Command, deployed: Path) -> None:
    done = command("ledger", deployed, "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert found["schema"] == 1
    assert (found["experiment"], found["entries"], found["torn_bytes"], found["composed"]) == (None, 6, 0, [])
    assert found["bytes"] == (deployed / "ledger.jsonl").stat().st_size
    assert found["head"] == json.loads((deployed / "result.json").read_text())["ledger"]["head"]
    assert found["clients"] == [
        {
            "federation": 0, "client": "a", "mechanisms": ["pl-learn"], "budgets": [0.98], "releases": 3,
            "received": 2, "accepted": 2, "refused": 0, "intensity": [8.5, 12.5],
        },
        {
            "federation": 0, "client": "b", "mechanisms": ["pl-learn"], "budgets": [0.98], "releases": 3,
            "received": 1, "accepted": 0, "refused": 1, "intensity": [None, None],
        },
    ]  # fmt: skip
    assert set(found["claims"]) == {"proved", "measured", "not claimed"}


def test_a_run_is_verified_from_its_folder_and_from_its_file(command: Command, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    small = ("--rounds", 3, "--set", "evaluate_every=3", "--set", "steps=1", "--set", "threads=1")
    sweep = ("--mechanism", "none,pl-learn", "--budget", "0.98", "--dataset", data)
    assert command("train", *sweep, *small, "--out", "run", "--json").code == 0
    found = command("ledger", "run", "--json")
    assert found == command("ledger", "run/ledger.jsonl", "--json")
    document = json.loads(found.out)
    assert (found.code, document["experiment"], document["entries"]) == (0, "seeded", 7)
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


# --- heads --------------------------------------------------------------------------------------------------------


def test_a_head_that_was_noted_is_looked_for(command: Command, deployed: Path) -> None:
    path = deployed / "ledger.jsonl"
    heads = [json.loads(line)["hash"] for line in path.read_text().splitlines()]
    assert "It leads to the head of --head." in " ".join(command("ledger", path, "--head", heads[-1]).out.split())
    done = command("ledger", deployed, "--head", heads[1])
    assert "It leads to the head of --head, and 4 line(s) beyond it." in " ".join(done.out.split())
    done = command("ledger", path, "--head", "0" * 64)
    assert (done.code, done.out) == (19, "")
    assert f"does not lead to the head {'0' * 64}" in done.err


def test_lines_beyond_the_result_are_mentioned(command: Command, deployed: Path) -> None:
    Ledger.open(deployed / "ledger.jsonl", None).append([entry("asked", 3, clients=["a"])])
    done = command("ledger", deployed)
    assert done.code == 0
    assert "It leads to the head of result.json, and 1 line(s) beyond it." in " ".join(done.out.split())


def test_a_ledger_alone_says_that_nothing_vouches_for_its_head(command: Command, deployed: Path) -> None:
    (deployed / "result.json").unlink()
    assert "Nothing beside the ledger says what its head should be" in " ".join(command("ledger", deployed).out.split())


def test_a_line_whose_write_was_interrupted_is_mentioned(command: Command, deployed: Path) -> None:
    with (deployed / "ledger.jsonl").open("ab") as file:
        file.write(b'{"n":6,"kind"')
    done = command("ledger", deployed)
    assert done.code == 0
    assert "A last line of 13 bytes has no end" in " ".join(done.out.split())


@pytest.mark.parametrize(
    "result",
    ["", "{", "[" * 5000, '{"ledger": 1}', '{"ledger": {"head": 1, "entries": 6}}', '{"ledger": {"head": ""}}'],
)
def test_a_damaged_result_is_an_error(command: Command, deployed: Path, result: str) -> None:
    (deployed / "result.json").write_text(result)
    done = command("ledger", deployed)
    assert (done.code, done.out) == (19, "")
    assert "result.json" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("result", ["[]", "{}", "null"])
def test_a_result_without_a_ledger_vouches_for_nothing(command: Command, deployed: Path, result: str) -> None:
    (deployed / "result.json").write_text(result)
    assert "Nothing beside the ledger" in command("ledger", deployed).out


def test_where_there_is_no_ledger_one_line_says_so(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        done = command("ledger", name)
        assert (done.code, done.out) == (19, "")
        assert done.err.startswith("error: There is no ledger ")


# --- the formal mechanism -----------------------------------------------------------------------------------------


def test_releases_of_laplace_dp_are_composed(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[dict[float, int], float]] = []

    def composed(budgets: dict[float, int], delta: float) -> float:
        calls.append((dict(budgets), delta))
        return 1.25

    monkeypatch.setattr(accounting, "composed_epsilon", composed)
    both = [{"rounds": [1, 3], "values": [0.5, 0.25]}] * 4
    entries = [formal(when, client, budget) for when, budget in enumerate(both, 1) for client in "01"]
    folder = seeded(tmp_path / "run", *entries)
    found = json.loads(command("ledger", folder, "--json", "--delta", "1e-6").out)
    assert calls == [({0.5: 2, 0.25: 2}, 1e-6)], "once for clients with the same releases"
    numbers = {"releases": 4, "sum": 1.5, "delta": 1e-6, "epsilon": 1.25}
    assert found["composed"] == [{"federation": 0, "client": client, **numbers} for client in "01"]
    assert not any("do not compose" in line for line in found["claims"]["not claimed"])
    assert any("those who know the seed" in line for line in found["claims"]["not claimed"])
    done = command("ledger", folder)
    assert (
        "laplace-dp, federation 0, client 1: 4 releases, epsilon 1.5 at delta 0, epsilon 1.25 at delta 1e-05"
        in done.out
    )


def test_the_composed_epsilon_is_the_accountants(command: Command, tmp_path: Path) -> None:
    folder = seeded(tmp_path / "run", *(formal(when, budget=0.1) for when in range(1, 101)))
    (one,) = json.loads(command("ledger", folder, "--json").out)["composed"]
    assert one["epsilon"] == accounting.composed_epsilon({0.1: 100}, 1e-5)
    assert one["epsilon"] < one["sum"] == pytest.approx(10)


def test_without_the_extra_the_sum_is_there_and_how_to_get_more(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(budgets: dict[float, int], delta: float) -> float:
        raise ConfigError("Composing releases needs dp-accounting.", "pip install 'equipoise[dp]'")

    monkeypatch.setattr(accounting, "composed_epsilon", missing)
    folder = seeded(tmp_path / "run", formal(1), formal(2))
    done = command("ledger", folder)
    assert done.code == 0
    assert "2 releases, epsilon 1 at delta 0; not composed: pip install 'equipoise[dp]'" in done.out


def test_no_epsilon_is_named_for_any_other_mechanism(command: Command, tmp_path: Path) -> None:
    mixed = entry("round", 2, releases=[row("0")])
    other = entry("round", 1, federation=1, mechanism="ls-static", budget=80, releases=[row("0")])
    folder = seeded(tmp_path / "run", formal(1), mixed, other)
    found = json.loads(command("ledger", folder, "--json").out)
    assert found["composed"] == [], "the client released by another mechanism as well"
    words = " ".join(found["claims"]["not claimed"])
    assert "clients that released by laplace-dp and by other mechanisms too" in words
    assert "Budgets of ls-static, pl-learn are per release and do not compose: up to 1 releases" in words
    assert not re.search(r"epsilon,? -?\d", command("ledger", folder).out)


@pytest.mark.parametrize("delta", ["-1", "1", "nan", "2"])
def test_a_delta_out_of_range_is_a_config_error(command: Command, deployed: Path, delta: str) -> None:
    done = command("ledger", deployed, "--delta", delta)
    assert (done.code, done.out) == (11, "")
    assert "delta" in done.err


@pytest.mark.parametrize("budget", [None, -1, 0])
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
