"""What an interrupted audit says of itself: how much is finished, and on what there is nothing."""

from __future__ import annotations

from equipoise.auditing.unfinished import Unfinished, first_sentence, unfinished
from equipoise.engine.federation import Federation

STRICT, LOOSE = Federation("mnist", "pl-identical", 0.96, 1), Federation("mnist", "pl-identical", 0.98, 1)
LEARNED = [Federation("mnist", "pl-learn", budget, 1) for budget in (0.96, 0.98)]


def test_mechanisms_and_rounds_without_anything_are_named() -> None:
    first = [(STRICT, 0, True), (LOOSE, 0, True), *((one, 0, False) for one in LEARNED)]
    left = unfinished(38, 6, [*first, *((one, 100, False) for one, _, _ in first)])
    assert left.sentence() == "Interrupted: 6 of 38 cells are finished; nothing yet on pl-learn, nor on round 100."


def test_of_a_mechanism_that_was_begun_the_budgets_are_named() -> None:
    left = unfinished(9, 1, [(STRICT, 0, True), (LOOSE, 0, False), (LEARNED[0], 0, False)])
    assert left.sentence() == "Interrupted: 1 of 9 cells is finished; nothing yet on pl-learn, pl-identical @ 0.98."


def test_a_dataset_goes_by_its_name_and_another_seed_is_enough() -> None:
    places = [(STRICT, 0, True), (Federation("mnist", "pl-identical", 0.96, 2), 0, False)]
    assert unfinished(2, 1, places) == Unfinished(2, 1, [], [])
    other = [(Federation("/home/me/scans", "pl-identical", 0.96, 1), 0, False), *((STRICT, n, False) for n in (5, 60))]
    assert unfinished(9, 2, [*places, *other]) == Unfinished(9, 2, ["scans"], [5, 60])
    assert Unfinished(9, 2, ["scans"], [5, 60]).sentence().endswith("nothing yet on scans, nor on rounds 5, 60.")


def test_where_only_controls_are_lacking_nothing_is_named() -> None:
    assert unfinished(4, 3, [(STRICT, 0, True)]).sentence() == "Interrupted: 3 of 4 cells are finished."


def test_only_an_interrupted_audit_begins_with_it() -> None:
    left = {"cells": 4, "finished": 3, "lacking": [], "rounds": []}
    assert first_sentence({"complete": False, "unfinished": left}) == ["Interrupted: 3 of 4 cells are finished."]
    assert first_sentence({"complete": True}) == first_sentence({}) == []
