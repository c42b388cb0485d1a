"""The gain of learning at every budget, judged by its mean."""

from __future__ import annotations

from equipoise.reproduction.artefacts.registry import needs
from equipoise.reproduction.artefacts.trade_off import TRADE_OFF
from equipoise.reproduction.claims import Tables
from tests.reproduction.synthetic import SCALE, World, records_of, wobble


def test_the_trade_off_counts_higher_means() -> None:
    records = records_of(
        World(accuracy=lambda fed, group: 0.5 + (wobble(fed.seed, 0.1) + 0.01) * (fed.mechanism == "ls-learn"))
    )
    cells = TRADE_OFF.score(records)["cells"]
    assert len(cells) == 20
    assert {(cell["family"], cell["agrees"], cell["beyond_its_interval"]) for cell in cells} == {
        ("LS", True, False),  # one point more, with ten points between seeds
        ("PL", False, False),  # as much is not more
    }


def test_the_gains_are_those_of_the_tables(synthetic: Tables) -> None:
    tables = [(family, gain) for family in ("LS", "PL") for gain in synthetic[f"accuracy-{family.lower()}"]["gains"]]
    for cell, (family, gain) in zip(synthetic["trade-off"]["cells"], tables, strict=True):
        assert cell == {"family": family, **gain, "agrees": True, "beyond_its_interval": True}
    assert needs(["trade-off"], SCALE) == needs(["accuracy-ls", "accuracy-pl"], SCALE)


def test_the_table_sets_our_gain_beside_the_papers(synthetic: Tables) -> None:
    (table,) = TRADE_OFF.tables(synthetic["trade-off"])
    assert table.rows[0] == ["mnist", "LS", "80", "+42.12", "50.0 (50.0 to 50.0)", "agrees"]
