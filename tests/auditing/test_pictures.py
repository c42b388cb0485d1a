"""The rows of a picture: in order, each once, the class mean among them, and the one that leaks most marked."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.auditing.pictures import Figure, defence_rows, failures, remark, run_sections
from equipoise.auditing.results import Findings, Outcome, mark_controls
from equipoise.auditing.svg import as_pixels
from equipoise.data.dataset import Dataset
from tests.auditing.small import TWINS, targets_of
from tests.auditing.updates import SHAPE


def outcome(
    mechanism: str, budget: Any = None, role: str = "own", found: float = 0.25, attack: str = "lti", **about: Any
) -> Outcome:
    who = {"dataset": "data/few", "mechanism": mechanism, "budget": budget, "seed": 1, "round": 0, "role": role}
    values = {"mse": np.array([[1.0, 2.0]]), "identification": np.array([[found, found]])}
    drawn = None if attack == "matched" else np.zeros((1, 4, *SHAPE), dtype=np.uint8)
    return Outcome({**who, **about}, attack, values, {}, drawn)


SWEEP = [
    outcome("pl-learn", 0.995, found=0.9), outcome("pl-learn", 0.995, TWINS[0]), outcome("pl-learn", 0.995, TWINS[1]),
    outcome("pl-learn", 0.995, "undistorted"), outcome("pl-learn", 0.98, found=0.4),
    outcome("pl-identical", 0.995), outcome("pl-identical", 0.98), outcome("pl-identical", 0.98, "undistorted"),
    outcome("none"), outcome("pl-learn", 0.98, "undistorted"),
]  # fmt: skip


def captions(outcomes: list[Outcome]) -> list[str]:
    return [row.caption for row in defence_rows(outcomes)]


def test_no_protection_first_then_strict_to_loose_and_static_before_learned_each_once() -> None:
    ordered = [
        "no protection", "pl-identical @ 0.98", "pl-learn @ 0.98", "pl-identical @ 0.995",
        "pl-learn @ 0.995: leaks most",
    ]  # fmt: skip
    assert captions(SWEEP) == ordered
    assert captions([*SWEEP, *SWEEP, *(outcome("none", seed=2) for _ in range(2))]) == ordered


def test_a_twin_stands_in_for_a_static_federation_that_the_run_lacks() -> None:
    some = [one for one in SWEEP if one.about["mechanism"] == "pl-learn"]
    assert captions(some) == [
        "undistorted (control)", "pl-learn @ 0.98", "static noise @ 0.995", "pl-learn @ 0.995: leaks most",
    ]  # fmt: skip


def test_the_defence_that_leaks_most_is_marked_also_by_an_attack_without_pictures() -> None:
    assert [row.caption for row in defence_rows(SWEEP) if row.marked] == ["pl-learn @ 0.995: leaks most"]
    stronger = outcome("pl-identical", 0.98, found=0.95, attack="matched")
    rows = defence_rows([*SWEEP, stronger])
    assert [row.caption for row in rows if row.marked] == ["pl-identical @ 0.98: leaks most"]
    assert next(row.remark for row in rows if row.marked) == "identified: matched 95 %, lti 25 %\nMSE 1.50"
    assert not any(row.marked for row in defence_rows([outcome("none", found=1.0)])), "nothing defends there"
    assert not any(row.marked for row in defence_rows([outcome("pl-learn", 0.98, found=0.0)])), "nothing was found"


def test_several_attacks_are_rows_of_one_section() -> None:
    some = [outcome("pl-learn", 0.98, attack=name) for name in ("invgrad", "lti")]
    assert captions(some) == ["pl-learn @ 0.98, invgrad", "pl-learn @ 0.98, lti"]


def test_a_section_for_every_round_begins_with_originals_and_class_means(few: Dataset) -> None:
    targets, later = targets_of(), [outcome("pl-learn", 0.98, round=2000)]
    guesses = {"data/few": {"class_mean": {"mse": 0.664}}}
    found = Findings([], [], guesses, [*later, *SWEEP, outcome("none", attack="matched")], {"data/few": targets})
    sections = run_sections(found, {"data/few": few})
    assert [section.title for section in sections] == [
        "few at the first round, reconstructed by lti", "few after 2,000 rounds, reconstructed by lti",
    ]  # fmt: skip
    original, mean, *_ = sections[0].rows
    np.testing.assert_array_equal(original.images, as_pixels(few.pixels(targets.inputs[:1]).flatten(0, 1)))
    assert (original.caption, mean.caption) == ("original", "class mean")
    assert mean.remark == "a guess from the labels alone, MSE 0.66"
    public, label = few.public_attack, int(targets.labels[0, 0])
    own = few.pixels(public.inputs[public.labels == label].mean(0, keepdim=True))
    np.testing.assert_array_equal(mean.images[:1], as_pixels(own))


def test_a_remark_without_candidates_is_the_error() -> None:
    assert remark(outcome("none"), {}) == "MSE 1.50"


def test_chance_stands_beside_the_figures() -> None:
    figures = {"lti": Figure(0.25, "1 in 100", failed=True), "matched": Figure(0.95, "1 in 100")}
    assert remark(outcome("none"), figures) == "identified: matched 95 %, lti 25 % *\nchance 1 in 100; MSE 1.50"


# -- controls that failed ------------------------------------------------------------------------------------------


def table_of(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The rows of these outcomes, the undistorted ones as positive controls."""
    rows = [
        {
            **one.about, "attack": one.attack, "chance": "1 in 100",
            "identification": one.values["identification"].mean(),
            "control": "positive" if one.about["role"] == "undistorted" else None,
        }
        for one in outcomes
    ]  # fmt: skip
    mark_controls(rows)
    return rows


def test_an_attack_that_failed_its_control_is_marked_and_its_pictures_are_called_no_evidence() -> None:
    some = [
        outcome("pl-learn", 0.98, found=0.03), outcome("pl-learn", 0.98, "undistorted", found=0.05),
        outcome("pl-learn", 0.98, found=0.6, attack="matched"),
        outcome("pl-learn", 0.98, "undistorted", found=0.9, attack="matched"),
    ]  # fmt: skip
    table = table_of(some)
    assert failures(some, table) == "lti failed its control here: these pictures are no evidence"
    control, own = defence_rows(some, table)
    assert own.remark == "identified: matched 60 %, lti 3.0 % *\nchance 1 in 100; MSE 1.50 *"
    assert control.remark == "identified: matched 90 %, lti 5.0 % *\nchance 1 in 100; MSE 1.50 *"


def test_where_the_control_worked_nothing_is_marked() -> None:
    some = [outcome("pl-learn", 0.98, found=0.03), outcome("pl-learn", 0.98, "undistorted", found=0.9)]
    assert failures(some, table_of(some)) == ""
    assert "*" not in " ".join(row.remark for row in defence_rows(some, table_of(some)))


def test_one_of_several_attacks_or_defences_may_have_failed() -> None:
    both = [outcome("none", found=0.01), outcome("none", found=0.9, attack="invgrad")]
    assert failures(both, table_of(both)) == "lti failed its control here: its pictures are no evidence"
    some = [outcome("none", found=0.9), outcome("pl-identical", 0.98, found=0.01), outcome("pl-learn", 0.98)]
    table = [{**row, "control_failed": row["mechanism"] == "pl-identical"} for row in table_of(some)]
    assert failures(some, table) == "lti failed its control where its figures have a *: those pictures are no evidence"


def test_a_section_warns_in_its_heading(few: Dataset) -> None:
    some = [outcome("none", found=0.01)]
    (section,) = run_sections(Findings(table_of(some), [], {}, some, {"data/few": targets_of()}), {"data/few": few})
    assert section.warning == "lti failed its control here: these pictures are no evidence"
