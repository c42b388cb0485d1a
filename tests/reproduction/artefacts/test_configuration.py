"""The paper's settings beside ours, from the defaults themselves."""

from __future__ import annotations

import pytest

from equipoise.engine.settings import Settings
from equipoise.reproduction.artefacts import configuration
from equipoise.reproduction.artefacts.configuration import CONFIGURATION
from equipoise.reproduction.records import Records


def rows() -> dict[str, dict[str, str]]:
    return {row["setting"]: row for row in CONFIGURATION.score(Records("full"))["rows"]}


def test_what_the_paper_states_is_used_here() -> None:
    for name in ("clients K", "local-batch update steps", "local batch size", "inner steps M", "inner step size gamma",
                 "attack iterations"):  # fmt: skip
        assert rows()[name]["ours"] == rows()[name]["paper"], name
        assert rows()[name]["status"] == "stated"


def test_what_was_fitted_is_named() -> None:
    fitted = {name for name, row in rows().items() if row["status"].startswith("fitted")}
    assert fitted == {"client learning rate eta", "rounds T", "initialisation", "LS sensitivity S"}
    assert all(rows()[name]["paper"] == "not stated" for name in fitted - {"LS sensitivity S"})


def test_ours_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows()["rounds T"]["ours"] == str(Settings().training.rounds)
    other = Settings.flat(rounds=17)
    monkeypatch.setattr(configuration, "Settings", lambda: other)
    assert rows()["rounds T"]["ours"] == "17"


def test_the_table_has_all_of_it_and_nothing_is_drawn() -> None:
    (table,) = CONFIGURATION.tables(CONFIGURATION.score(Records("full")))
    assert [row[0] for row in table.rows] == list(rows())
    assert (CONFIGURATION.needs, CONFIGURATION.draw, CONFIGURATION.judged) == (None, None, False)
