"""``equipoise choose``: the plan first, three sentences, what was rejected, JSON, exit codes, Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.choosing import choose as module
from equipoise.choosing.chooser import Chooser
from tests.choosing.toys import toy
from tests.helpers import Command, document, entry_point

FAST = (
    "--quick",
    "--set",
    "rounds=2",
    "--set",
    "server_rate=0.3",
    "--set",
    "server_momentum=0.5",
    "--set",
    "gaussian.clip=1",
)
"""One candidate of two rounds."""
CHOOSE = ("choose", "--dataset", "breast-cancer", *FAST)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise ARGUMENTS`` by its entry point, in a folder of its own; this one may state an epsilon."""
    return entry_point(tmp_path, monkeypatch, capfd, columns=80)


@pytest.fixture(autouse=True)
def _toy_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """``breast-cancer`` is a table that is learned in two rounds."""
    real = module.load_dataset
    monkeypatch.setattr(
        module, "load_dataset", lambda own, name: toy(name=name) if name == "breast-cancer" else real(own, name)
    )


def test_the_plan_comes_first_then_three_sentences_the_trade_off_and_what_was_rejected(command: Command) -> None:
    done = command(*CHOOSE, "--epsilon", "8")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    order = [
        "Wanted: epsilon at most 8", "This takes about", "Deploy gaussian-dp with epsilon 8", "Expect an accuracy of",
        "Proved", "Not claimed", "the same settings at other budgets", "chosen", "rejected", "no epsilon can be stated",
        "no protection at all", "--out FOLDER",
    ]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert max(map(len, done.out.splitlines())) <= 80


def test_json_is_one_document(command: Command) -> None:
    plain = document(command(*CHOOSE, "--epsilon", "8", "--json"))
    assert plain["met"] is True
    assert plain["chosen"]["budget"] == 8.0
    assert plain["files"] == []
    again = document(command(*CHOOSE, "--epsilon", "8", "--json"))
    assert {**plain, "seconds": 0} == {**again, "seconds": 0}


@pytest.mark.slow
def test_where_nothing_meets_the_limit_the_exit_code_says_so(command: Command) -> None:
    done = command(*CHOOSE, "--accuracy", "0.999")
    assert done.code == 1
    text = " ".join(done.out.split())
    assert "Nothing meets the limit. No epsilon up to 8" in text
    assert "Nearest, not to be deployed" in text
    assert "chosen" not in text
    assert "--out FOLDER" not in text
    assert command(*CHOOSE, "--accuracy", "0.999", "--json").code == 1


def test_ctrl_c_says_what_leads(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(own: Chooser, chosen: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Chooser, "curve", interrupted)
    done = command(*CHOOSE, "--epsilon", "8", "--out", "choice")
    assert done.code == 130
    assert "best so far, not decided: gaussian-dp with epsilon 8" in " ".join(done.err.split())
    assert not Path("choice").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 11, "No limit was given"),
        (["--epsilon", "2", "--accuracy", "0.9"], 11, "Expected one limit, got 2"),
        (["--epsilon", "0"], 14, "epsilon=0"),
        (["--epsilon", "-3"], 14, "epsilon=-3"),
        (["--epsilon", "nan"], 11, "finite"),
        (["--accuracy", "1.5"], 11, "accuracy=1.5"),
        (["--identification", "0.001"], 11, "chance"),
        (["--epsilon", "2", "--model", "lenet-tanh"], 11, "for pictures"),
        (["--epsilon", "2", "--model", "lenet-tan"], 11, "Did you mean 'lenet-tanh'?"),
        (["--epsilon", "2", "--clients", "0"], 11, "clients"),
        (["--epsilon", "2", "--clients", "40"], 12, "too few to choose on"),
        (["--epsilon", "2", "--dataset", "generated-text"], 12, "tokens"),
        (["--epsilon", "2", "--dataset", "nowhere.csv"], 12, "nowhere.csv"),
        (["--epsilon", "2", "--set", "gaussian.delta=2"], 11, "gaussian.delta"),
        (["--epsilon", "2", "--model", "json:loads"], 13, "could not be built"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_with_a_remedy(command: Command, arguments: list[str], code: int, said: str) -> None:
    done = command("choose", "--dataset", "breast-cancer", "--quick", *arguments)
    assert (done.code, done.out) == (code, "")
    text = " ".join(done.err.split())
    assert text.startswith("error: ")
    assert said in text
    assert text.count(". ") >= 1, "cause and remedy"


def test_targets_that_are_amounts_are_refused(command: Command) -> None:
    lines = ["size,price,label"] + [f"{i},{i * 2},{i * 1.37 + 0.5}" for i in range(400)]
    Path("prices.csv").write_text("\n".join(lines))
    done = command("choose", "--data", "prices.csv", "--epsilon", "2", "--set", "public_fraction=0.5")
    assert done.code in (11, 12)
    assert done.out == ""
    assert "error: " in done.err


def test_ones_own_table_without_a_public_part_names_both_ways_out(command: Command) -> None:
    lines = ["a,b,label"] + [f"{i % 7},{i % 5},{i % 2}" for i in range(400)]
    Path("own.csv").write_text("\n".join(lines))
    done = command("choose", "--data", "own.csv", "--epsilon", "8", *FAST)
    assert done.code == 12
    assert "public_fraction" in done.err
    assert "--on-private-records" in done.err
    done = command("choose", "--data", "own.csv", "--epsilon", "100", *FAST, "--on-private-records")
    text = " ".join(done.out.split())
    assert "warning: this tunes on clients' own training records" in text
    assert done.code in (0, 1)
    assert "nor is the choice covered" in text
