"""What a ledger shows: counts, heads, composed epsilons, and what is not claimed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import BudgetError, ConfigError, LedgerError, missing_package
from equipoise.ledger.ledger import Ledger
from equipoise.ledger.report import alike, ledger_report, printable
from equipoise.mechanism import registry
from equipoise.mechanism.registry import Mechanism
from equipoise.privacy import accounting
from tests.ledger.entries import a_round, answered, asked, deployment, entry, formal, node, row, seeded


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    return deployment(tmp_path / "deployed")


def claims(folder: Path, kind: str, **options: Any) -> str:
    return " ".join(ledger_report(folder, **options)["claims"][kind])


def test_a_deployment_is_counted_by_what_was_asked(deployed: Path) -> None:
    result = ledger_report(deployed)
    assert result["schema"] == 1
    assert (result["experiment"], result["entries"], result["torn_bytes"], result["composed"]) == (None, 6, 0, [])
    assert result["bytes"] == (deployed / "ledger.jsonl").stat().st_size
    assert result["head"] == json.loads((deployed / "result.json").read_text())["ledger"]["head"]
    assert result["clients"] == [
        {
            "federation": 0, "client": "a", "mechanisms": ["pl-learn"], "budgets": [0.98], "releases": 3,
            "received": 2, "accepted": 2, "refused": 0, "intensity": [8.5, 12.5],
        },
        {
            "federation": 0, "client": "b", "mechanisms": ["pl-learn"], "budgets": [0.98], "releases": 3,
            "received": 1, "accepted": 0, "refused": 1, "intensity": [None, None],
        },
    ]  # fmt: skip
    assert result["claims"]["measured"] == [
        "6 releases were asked for, 2 accepted and 1 refused.",
        "Intensities as the clients reported them.",
    ]
    not_claimed = " ".join(result["claims"]["not claimed"])
    assert "Budgets of pl-learn are per release and do not compose: up to 3 releases of a client" in not_claimed
    assert "No (epsilon, delta) is claimed." in not_claimed
    assert "a restarted node has a new one" in not_claimed
    json.dumps(result, allow_nan=False)


def test_clients_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = seeded(tmp_path, a_round(1, federation=1, clients=11), a_round(1, clients=2))
    order = [(one["federation"], one["client"]) for one in ledger_report(folder)["clients"]]
    assert order == [(0, "0"), (0, "1"), *((1, str(client)) for client in range(11))]


# --- heads --------------------------------------------------------------------------------------------------------


def test_a_head_that_was_noted_is_looked_for(deployed: Path) -> None:
    path = deployed / "ledger.jsonl"
    heads = [json.loads(line)["hash"] for line in path.read_text().splitlines()]
    assert claims(path, "proved", head=heads[-1]).startswith(f"The chain of 6 lines is whole; its head is {heads[-1]}.")
    assert claims(path, "proved", head=heads[-1]).endswith("of result.json. It leads to the head of --head.")
    assert "the head of --head, and 4 line(s) beyond it." in claims(deployed, "proved", head=heads[1])
    with pytest.raises(LedgerError, match=f"does not lead to the head {'0' * 64}"):
        ledger_report(path, head="0" * 64)


def test_lines_beyond_the_result_are_mentioned_and_missing_ones_are_an_error(deployed: Path) -> None:
    path = deployed / "ledger.jsonl"
    content = path.read_bytes()
    Ledger.open(path, None).append([asked(3, ["a"])])
    assert "It leads to the head of result.json, and 1 line(s) beyond it." in claims(deployed, "proved")
    path.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="ends after 5 of 6 lines"):
        ledger_report(deployed)


def test_a_ledger_alone_says_that_nothing_vouches_for_its_head(deployed: Path) -> None:
    (deployed / "result.json").unlink()
    assert "Nothing beside the ledger says what its head should be" in claims(deployed, "proved")


def test_a_line_whose_write_was_interrupted_is_mentioned(deployed: Path) -> None:
    with (deployed / "ledger.jsonl").open("ab") as file:
        file.write(b'{"n":6,"kind"')
    assert "A last line of 13 bytes has no end" in claims(deployed, "proved")
    assert ledger_report(deployed)["torn_bytes"] == 13


@pytest.mark.parametrize(
    "result",
    ["", "{", "[" * 5000, '{"ledger": 1}', '{"ledger": {"head": 1, "entries": 6}}', '{"ledger": {"head": ""}}'],
)
def test_a_damaged_result_is_an_error(deployed: Path, result: str) -> None:
    (deployed / "result.json").write_text(result)
    with pytest.raises(LedgerError, match=r"result\.json"):
        ledger_report(deployed)


@pytest.mark.parametrize("result", ["[]", "{}", "null"])
def test_a_result_without_a_ledger_vouches_for_nothing(deployed: Path, result: str) -> None:
    (deployed / "result.json").write_text(result)
    assert "Nothing beside the ledger" in claims(deployed, "proved")


@pytest.mark.parametrize(
    ("name", "words"), [("empty", "empty has no ledger.jsonl"), ("missing", "missing. Give a run folder")]
)
def test_where_there_is_no_ledger_the_error_says_so(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LedgerError, match=re.escape(words)):
        ledger_report(tmp_path / name)


# --- composition --------------------------------------------------------------------------------------------------


def test_releases_of_a_formal_mechanism_are_composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[dict[float, int], float]] = []

    def composed(budgets: dict[float, int], delta: float) -> float:
        calls.append((dict(budgets), delta))
        return 1.25

    monkeypatch.setattr(accounting, "composed_epsilon", composed)
    plan = {"rounds": [1, 3], "values": [0.5, 0.25]}
    result = ledger_report(
        seeded(tmp_path, *(formal(round_number, client, plan) for round_number in (1, 2, 3, 4) for client in "01")),
        None,
        1e-6,
    )
    assert calls == [({0.5: 2, 0.25: 2}, 1e-6)], "once for clients with the same releases"
    numbers = {"releases": 4, "sum": 1.5, "delta": 1e-6, "epsilon": 1.25}
    assert result["composed"] == [{"federation": 0, "client": client, **numbers} for client in "01"]
    assert not any("do not compose" in line for line in result["claims"]["not claimed"])
    assert any("those who know the seed" in line for line in result["claims"]["not claimed"])


def test_the_composed_epsilon_is_the_accountants(tmp_path: Path) -> None:
    (one,) = ledger_report(seeded(tmp_path, *(formal(round_number, budget=0.1) for round_number in range(1, 101))))[
        "composed"
    ]
    assert one["epsilon"] == accounting.composed_epsilon({0.1: 100}, 1e-5)
    assert one["epsilon"] < one["sum"] == pytest.approx(10)


def test_without_dp_accounting_the_sum_is_there_and_how_to_get_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(budgets: dict[float, int], delta: float) -> float:
        raise missing_package("Composing releases", "dp-accounting")

    monkeypatch.setattr(accounting, "composed_epsilon", missing)
    (one,) = ledger_report(seeded(tmp_path, formal(1), formal(2)))["composed"]
    assert (one["sum"], one["epsilon"]) == (1.0, None)
    assert one["remedy"] == "Install it with pip install dp-accounting."


def test_no_epsilon_is_named_for_any_other_mechanism(tmp_path: Path) -> None:
    mixed = entry("round", 2, releases=[row("0")])
    other = entry("round", 1, federation=1, mechanism="ls-static", budget=80, releases=[row("0")])
    result = ledger_report(seeded(tmp_path, formal(1), mixed, other))
    assert result["composed"] == [], "the client released by another mechanism as well"
    words = " ".join(result["claims"]["not claimed"])
    assert "clients that released by laplace-dp and by other mechanisms too" in words
    assert "Budgets of ls-static, pl-learn are per release and do not compose: up to 1 releases" in words


def test_a_mechanism_that_is_not_installed_here_composes_to_nothing(tmp_path: Path) -> None:
    """Whoever wrote the ledger may have registered one; here nothing is known of its budgets."""
    theirs = entry("round", 1, mechanism="their-own", budget=3.0, releases=[row("0")])
    both = formal(2)
    result = ledger_report(seeded(tmp_path, theirs, both))
    assert result["clients"][0]["mechanisms"] == ["laplace-dp", "their-own"]
    assert result["composed"] == []
    words = " ".join(result["claims"]["not claimed"])
    assert "Budgets of their-own are per release and do not compose" in words
    assert "released by laplace-dp and by other mechanisms too" in words


def test_a_mechanism_says_itself_whether_it_is_formal_and_whether_it_distorts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))
    for module in ("account", "report"):
        monkeypatch.setattr(f"equipoise.ledger.{module}.MECHANISMS", registry.MECHANISMS)
    registry.register(Mechanism("exact", "epsilon", norm="l1", per_example=True))
    registry.register(Mechanism("plain", None))
    folder = seeded(
        tmp_path, formal(1), formal(2, mechanism="exact"),
        entry("round", 1, federation=1, mechanism="plain", budget=None, releases=[row("0")]),
    )  # fmt: skip
    result = ledger_report(folder, delta=0.0)
    assert result["composed"] == [
        {"federation": 0, "client": "0", "releases": 2, "sum": 1.0, "delta": 0.0, "epsilon": 1.0}
    ], "equal budgets of two mechanisms add up"
    words = " ".join(result["claims"]["not claimed"])
    assert "Releases of plain were not distorted at all." in words
    assert "do not compose" not in words
    assert "by other mechanisms too" not in words
    assert "An epsilon over several federations" in words


def test_a_client_that_was_never_asked_has_no_epsilon(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "ledger.jsonl", None).append([answered(1, [row("a")])])
    result = ledger_report(tmp_path)
    assert result["clients"][0]["releases"] == 0
    assert result["composed"] == []


@pytest.mark.parametrize("delta", [-1, 1, 2, float("nan")])
def test_a_delta_out_of_range_is_a_config_error(deployed: Path, delta: float) -> None:
    with pytest.raises(ConfigError, match="Expected delta="):
        ledger_report(deployed, delta=delta)


@pytest.mark.parametrize("budget", [None, -1, 0])
def test_a_budget_that_is_no_epsilon_is_a_typed_error(tmp_path: Path, budget: Any) -> None:
    with pytest.raises(BudgetError, match="Expected epsilon="):
        ledger_report(seeded(tmp_path, formal(1), formal(2, budget=budget)))


# --- the account of a node ----------------------------------------------------------------------------------------


def test_an_account_is_one_row_whatever_number_the_client_had(tmp_path: Path) -> None:
    path = node(tmp_path, formal(1, "0", 0.5), formal(1, "3", 0.25), formal(2, "0", 0.5))
    result = ledger_report(path, delta=0.0)
    assert (result["account"], result["experiment"], result["entries"]) == ("5d1c0e77", None, 4)
    (one,) = result["clients"]
    assert (one["client"], one["releases"], one["budgets"]) == ("this node", 3, [0.25, 0.5])
    assert [(row["releases"], row["sum"], row["epsilon"]) for row in result["composed"]] == [(3, 1.25, 1.25)]
    assert result["claims"]["measured"][1] == "Intensities as the node recorded them."
    words = " ".join(result["claims"]["not claimed"])
    assert "An epsilon for experiments, if the policy allows any" in words
    assert "That ledger and .head were not both put back to an older state" in words
    assert "a node id of Flower" not in words


def test_a_new_account_has_no_rows(tmp_path: Path) -> None:
    result = ledger_report(node(tmp_path))
    assert (result["clients"], result["composed"], result["entries"]) == ([], [], 1)


def test_an_account_is_compared_with_its_head_and_not_with_a_result(tmp_path: Path) -> None:
    path = node(tmp_path, a_round(1), a_round(2))
    (tmp_path / "result.json").write_text('{"ledger": {"head": "of a run", "entries": 9}}')
    assert "It leads to the head of ledger.jsonl.head." in claims(path, "proved")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="ends after 2 of 3 lines"):
        ledger_report(path)
    path.with_name("ledger.jsonl.head").write_text("{")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl\.head is damaged"):
        ledger_report(path)


def test_the_ledger_of_a_run_names_no_account(deployed: Path) -> None:
    assert ledger_report(deployed)["account"] is None


# --- names from a file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [("pl-learn", "pl-learn"), ("\x1b[2J", "'\\x1b[2J'"), ("a\nb", "'a\\nb'"), ("x" * 41, f"'{'x' * 40}'"), ("ä", "ä")],
)
def test_a_name_cannot_command_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_hostile_names_do_not_reach_a_claim(tmp_path: Path) -> None:
    folder = seeded(tmp_path, entry("round", 1, mechanism="\x1b]0;m\x07", releases=[row("0")]))
    assert all(line.isprintable() for line in ledger_report(folder)["claims"]["not claimed"])


def test_only_clients_that_follow_each_other_share_a_row() -> None:
    def one(client: str, releases: int, low: float | None) -> dict[str, Any]:
        return {"federation": 0, "client": client, "releases": releases, "intensity": [low, low]}

    rows = alike([one("0", 3, None), one("1", 3, 8.0), one("2", 4, None), one("3", 3, 9.0)])
    assert [row["clients"] for row in rows] == [["0", "1"], ["2"], ["3"]]
    assert [row["intensity"] for row in rows] == [[8.0, 8.0], [None, None], [9.0, 9.0]]
