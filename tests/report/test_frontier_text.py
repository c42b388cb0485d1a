"""The frontier in words and tables: sentences follow the record."""

from __future__ import annotations

import re
from typing import Any

import pytest

from equipoise.choosing.frontier import committed, equal_accuracy, status
from equipoise.report.frontier_families import TITLES
from equipoise.report.frontier_text import (
    NAMES,
    accuracy,
    answer,
    cell,
    computed,
    equal_table,
    everything,
    family,
    headline,
    identified,
    limit,
    public_table,
    share,
    table,
)
from tests.choosing.frontier_parts import cell as planted
from tests.choosing.frontier_parts import scopes


def ours(epsilon: float = 1, **change: Any) -> list[dict[str, Any]]:
    return scopes(**{"mechanism": "gaussian-dp", "budget": epsilon, "accuracy": 0.8, **change})


def record(*rows: dict[str, Any], learners: int = 1, **more: Any) -> dict[str, Any]:
    """Cells, and the table at equal accuracy of the paper's first budgets."""
    of = [{"dataset": name, "mechanism": "pl-learn", "budget": 0.98, "accuracy": 0.75} for name in ("mnist", "fmnist")]
    return {"cells": list(rows), "equal_accuracy": equal_accuracy(rows, of[:learners]), **more}


def cells_of(text: str) -> list[list[str]]:
    return [[one.strip() for one in line.strip("|").split("|")] for line in text.splitlines()]


def equal_row(*rows: dict[str, Any]) -> dict[str, Any]:
    """The first row of the table at equal accuracy by column; of both ``members``, the learner's come first."""
    columns, _, row = cells_of(equal_table(record(*rows)))
    found = dict(zip(columns, row, strict=True))
    return {**found, "members": [one for name, one in zip(columns, row, strict=True) if name == "members"]}


# -- the headline ------------------------------------------------------------------------------------------------------


def test_the_headline_counts_what_is_met() -> None:
    rows = ours()
    rows[1] |= {"identification": 0.05}
    assert headline(record(*scopes(), *rows)) == [
        "At 1 of the paper's 1 budgets, gaussian-dp on scatter-linear is in the mean at least as accurate as the "
        "paper's learned noise on LeNetZhu, and attackers identify at most a fifth as many records, at each of four "
        "stages of the training and over all of it (at most 1/10).",
        "Over the whole run it was at most 1/25 as many (1/10 at the unfavourable ends of both intervals). At the "
        "epsilons that this takes (1 to 1) it is proved that an attacker who knows all other records picks the right "
        "one of 200 equally likely candidates with at most 3 %.",
    ]


def test_the_headline_names_what_is_missed() -> None:
    both = [*scopes(), *scopes(dataset="fmnist"), *ours(), *ours(4, dataset="fmnist", identification=0.3)]
    lines = headline(record(*both, learners=2))
    assert lines[0].startswith("At 1 of the paper's 2 budgets")
    assert lines[0].endswith("over all of it (at most 1/25)."), "of those that meet it"
    assert "at most 1/1 as many (1/10 at the unfavourable" in lines[1], "0.3 of 0.5; 0.04 of 0.4"
    assert "At the epsilons that this takes (1 to 4) it is" in lines[1]
    assert lines[2:] == ["Missed: Fashion-MNIST, pl-learn 0.98."]


def test_the_headline_where_none_is_as_accurate() -> None:
    lines = headline(record(*scopes(), *ours(accuracy=0.7)))
    assert lines[0].startswith("At 0 of the paper's 1 budgets")
    assert lines[0].endswith("over all of it."), "there is nothing that a largest share could be of"
    assert lines[1:] == ["Missed: MNIST, pl-learn 0.98."]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"identification": 0.0}, "it was at most 0 times as many (1/10 at"),
        ({"identification": 0.75}, "it was at most 1.5 times as many (1/10 at"),
        ({"identification": 0.5}, "it was at most 1/1 as many (1/10 at"),
        ({"identification_high": 0.0}, "it was at most 1/25 as many (0 times at the unfavourable ends"),
        ({"identification_high": 0.501}, "it was at most 1/25 as many (1.26 times at the unfavourable ends"),
        ({"identification_high": None}, "it was at most 1/25 as many (without limit at the unfavourable ends"),
        ({"proved_identification": None}, "candidates with at most 100 %."),
        ({"proved_identification": 0.01001}, "candidates with at most 1.01 %."),
    ],
)
def test_the_headline_says_what_is_there(change: dict[str, Any], said: str) -> None:
    assert said in headline(record(*scopes(), *ours(**change)))[1]


@pytest.mark.parametrize("low", [0.0, None])
def test_an_end_that_limits_nothing_is_not_passed_over(low: float | None) -> None:
    """Where the learner's interval reaches 0 or is not known, there is no factor at the unfavourable ends."""
    both = [*scopes(), *scopes(dataset="fmnist", identification_low=low), *ours(), *ours(dataset="fmnist")]
    assert "1/25 as many (without limit at the unfavourable" in headline(record(*both, learners=2))[1]
    assert "1/25 as many (1/10 at the unfavourable" in headline(record(*both, learners=1))[1]


def test_no_share_of_a_learner_who_shows_none() -> None:
    """What is not above chance meets it, and is no share of 0."""
    (line,) = headline(record(*scopes(identification=0.0), *ours(identification_low=0.001)))
    assert line.startswith("At 1 of the paper's 1 budgets")
    assert line.endswith("over all of it.")


def test_the_answer_names_accuracies_of_the_usual_strengths() -> None:
    rows = [*scopes(), *ours(2, accuracy=0.9), *ours(0.5, accuracy=0.6), *ours(8, accuracy=0.95, clients=32)]
    rows += [*scopes(mechanism="none", budget=None, accuracy=0.99), *ours(4, accuracy=0.925)]
    rows += [*ours(1, accuracy=0.8, dataset="fmnist"), *ours(8, accuracy=0.99, model="lenet-zhu")]
    told = record(*rows, unprotected={"fmnist": 0.8765, "mnist": 0.955})
    said, meant, *rest = answer(told).split("\n\n")
    assert said == (
        "**Deploy `gaussian-dp` on `scatter-linear`** where pictures must be learned from private records: MNIST "
        "90.0 % at ε 2, 92.5 % at ε 4; Fashion-MNIST 80.0 % at ε 1 (without protection MNIST 95.5 %, Fashion-MNIST "
        "87.6 %; the paper's network without protection: MNIST 99.0 %)."
    )
    assert meant.startswith("Epsilon is that of the whole run of one client, at delta 1e-5, for one record added or")
    assert meant.endswith("These are seeded experiments: the epsilon is the mechanism's, the runs have none.")
    assert rest == headline(told)
    assert len(rest) == 2


# -- tables ------------------------------------------------------------------------------------------------------------


def test_the_row_of_equal_accuracy() -> None:
    theirs, lenet = scopes(), ours(4, model="lenet-zhu")
    theirs[0] |= {"identification": 0.45}
    told = equal_row(*theirs, *ours(), *lenet)
    assert list(told.items()) == [
        ("data", "MNIST"), ("the learner's budget", "PL 0.98"), ("its accuracy", "75.0 %"),
        ("identified: first release", "45.0 %"), ("whole run", "50.0 %"), ("(without its noise)", "90.0 %"),
        ("members", ["30.0 %", "5.0 %"]), ("gaussian-dp at", "ε 1"), ("accuracy", "80.0 %"),
        ("identified: whole run", "2.0 %"), ("proved", "3 %"), ("largest share of the learner's", "0.044 (start)"),
        ("on LeNetZhu it takes", "ε 4"),
    ]  # fmt: skip
    assert equal_row(*scopes(), *ours())["on LeNetZhu it takes"] == "more than ε 8"


def test_what_is_missed_is_said_in_its_row() -> None:
    rows = ours()
    rows[4] |= {"identification": 0.3}
    ratio = "largest share of the learner's"
    assert equal_row(*scopes(), *rows)[ratio] == "0.6 (run) **missed**"
    row = equal_row(*scopes(), *[{**row, "control_failed": True} for row in rows])
    unknown = ("identified: first release", "whole run", "(without its noise)", "identified: whole run")
    assert [row[name] for name in unknown] == ["-"] * 4
    assert (row["members"], row[ratio]) == (["-", "-"], "- **missed**")
    assert (row["gaussian-dp at"], row["proved"]) == ("ε 1", "3 %")
    assert equal_row(*scopes(), *ours(proved_identification=None))["proved"] == "-"


def test_where_none_is_as_accurate_the_row_says_so() -> None:
    row = cells_of(equal_table(record(*scopes(), *ours(accuracy=0.7), *ours(8, model="lenet-zhu"))))[2]
    unknown = [*["-"] * 5, "ε 8"]
    theirs = ["-", "50.0 %", "-", "-"]
    assert row == ["MNIST", "PL 0.98", "75.0 %", *theirs, "none is as accurate", *unknown]


def test_everything_has_a_row_for_every_setting_in_the_order_of_names() -> None:
    rows = [
        *scopes(), *scopes(budget=0.96), *ours(), *scopes(mechanism="new", budget=3), *scopes(clients=32, budget=0.97),
        *scopes(mechanism="none", public=200, clients=0, partition="none", budget=None, proved_identification=0.005),
        *scopes(dataset="fmnist", budget=0.99),
    ]  # fmt: skip
    found = cells_of(everything({"cells": rows}, "mnist"))
    assert [row[:2] for row in found[2:]] == [
        ["gaussian-dp on scattering features (proved)", "ε 1"], ["the paper's learned noise", "0.96"],
        ["the paper's learned noise", "0.98"], ["public images alone, LeNetZhu", "200"], ["new", "3"],
    ]  # fmt: skip
    assert {len(row) for row in found} == {len(found[0])}
    assert found[2][2:4] == ["80.0 (69.0-71.0)", "2.0 % (1-4)"]
    assert found[2][9:] == ["5.0 %", "3 %", "1,000", "159", "50"]
    assert found[3][9:] == ["30.0 %", "-", "44", "53.7", "5,000"]
    others = cells_of(everything({"cells": rows}, "mnist", clients=32))
    assert [row[:2] for row in others[2:]] == [["the paper's learned noise", "0.97"]]


def test_scopes_that_are_not_there_have_no_figure() -> None:
    rows = [row for row in scopes(membership_tpr_at_1pct=None) if row["scope"] in (0, 100)]
    found = cells_of(everything({"cells": rows}, "mnist"))[2]
    assert found[3:11] == ["50.0 % (40-60)", "-", "-", "50.0 % (40-60)", "-", "-", "-", "-"]


def test_members_are_the_most_at_a_stage_and_those_of_the_run() -> None:
    rows = scopes()
    rows[1]["membership_tpr_at_1pct"] = 0.7
    rows[4]["membership_tpr_at_1pct"] = 0.9
    assert cells_of(everything({"cells": rows}, "mnist"))[2][8:10] == ["70.0 %", "90.0 %"]


def test_public_records_are_held_against_the_strictest_that_beats_them() -> None:
    public = scopes(mechanism="none", public=200, clients=0, partition="none", budget=None, accuracy=0.85)
    text = public_table(record(*public, *ours(1, accuracy=0.8), *ours(4, accuracy=0.9), *ours(2, accuracy=0.86)))
    assert cells_of(text)[2:] == [["MNIST", "200", "LeNetZhu", "85.0 (69.0-71.0)", "ε 2 (86.0 (69.0-71.0))"]]
    assert cells_of(public_table(record(*public, *ours())))[2][4] == "none of these"


def test_what_is_computed_is_counted_and_what_is_missing_named() -> None:
    parts = {
        "computed": 2,
        "planned": 4,
        "by_commit": {"abc": 2},
        "missing": ["mnist-other-run-outpost", "mnist-other"],
    }
    said = computed({"parts": parts, "seconds": 5400, "machines": ["one", "two"]})
    assert said == (
        "2 of 4 parts are computed (2 at abc) on one and two: 1.5 hours process by process, up to ten of them side by "
        "side. Not there yet, in whole or in part: other."
    )
    assert "Not there" not in computed({"parts": {**parts, "missing": []}, "seconds": 1, "machines": []})


# -- names and numbers -------------------------------------------------------------------------------------------------


def test_every_cell_of_the_committed_record_has_a_name() -> None:
    told = status(committed())
    assert {family(row) for row in told["cells"]} <= {name for name, _ in NAMES}
    for name in TITLES:
        assert len(everything(told, name).splitlines()) > 30


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "the paper's learned noise"),
        ({"server": "damped"}, "learned noise, damped server"),
        ({"mechanism": "pl-identical"}, "static noise"),
        ({"mechanism": "pl-identical", "batch": 44}, "static noise, batches of 44"),
        ({"mechanism": "pl-identical", "batch": 44, "server": "damped"}, "static noise, batches of 44, damped server"),
        ({"mechanism": "pl-identical", "local_steps": 11}, "static noise, eleven local steps"),
        ({"mechanism": "ls-learn"}, "learned noise, LS"),
        ({"mechanism": "ls-static"}, "static noise, LS"),
        ({"mechanism": "pruning"}, "gradient pruning"),
        ({"mechanism": "outpost"}, "Outpost"),
        ({"mechanism": "none"}, "no protection"),
        ({"mechanism": "none", "batch": 44}, "no protection, batches of 44"),
        ({"mechanism": "none", "batch": 7}, "none"),
        ({"mechanism": "none", "public": 200, "clients": 0}, "public images alone, LeNetZhu"),
        ({"mechanism": "gaussian-dp", "budget": 1, "model": "lenet-zhu"}, "gaussian-dp on LeNetZhu (proved)"),
        ({"mechanism": "somebody's"}, "somebody's"),
    ],
)
def test_families_have_names(change: dict[str, Any], name: str) -> None:
    """A mechanism that is not listed has its own name, and none is taken for public images alone."""
    assert family(planted(**change)) == name


def test_names_are_told_apart() -> None:
    names = [name for name, _ in NAMES]
    assert len(set(names)) == len(names)


def test_shares_are_shown_with_their_ends() -> None:
    assert identified(None) == "-"
    assert identified(planted()) == "50.0 % (40-60)"
    assert identified(planted(control_failed=True)) == "50.0 % (40-60)*"
    assert identified(planted(identification_low=None)) == "50.0 %"
    assert accuracy(planted(accuracy=0.995, accuracy_low=0.98, accuracy_high=1.01)) == "99.5 (98.0-100.0)"
    assert (accuracy(planted(accuracy=None)), accuracy(planted(accuracy_low=None))) == ("-", "70.0")
    assert (share(0.0059), limit(0.005066), limit(None)) == ("0.6 %", "0.507 %", "-")
    assert cell({"cell": "ls-learn 80"}) == "LS 80"


def test_tables_are_markdown() -> None:
    text = table(["a", "b"], [["1", "2"]])
    assert text == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    for row in everything(status(committed()), "mnist").splitlines():
        assert re.fullmatch(r"\|( [^|]* \|)+", row)
