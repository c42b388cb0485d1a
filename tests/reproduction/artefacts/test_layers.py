"""What learning does to a tensor's distortion, judged after the last round."""

from __future__ import annotations

import pytest

from equipoise.reproduction.artefacts.layers import KEPT_WITHIN, LAYERS
from equipoise.reproduction.claims import Tables
from tests.reproduction.synthetic import World, pick, records_of, wobble


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (1.2, "amplified"), (1.0501, "amplified"), (1.0499, "kept"), (1.0, "kept"), (0.9501, "kept"),
        (0.9499, "reduced"), (0.5, "reduced"),
    ],
)  # fmt: skip
def test_five_percent_is_what_counts_as_a_change(ratio: float, verdict: str) -> None:
    records = records_of(World(tensor=lambda fed, name: {"size": ratio + wobble(fed.seed), "deviation": 1.0}))
    table = LAYERS.score(records)
    assert table["kept_within"] == KEPT_WITHIN == 0.05
    assert {cell["verdict"] for cell in table["cells"]} == {verdict}
    for cell in table["cells"]:
        assert cell["agrees"] is (cell["paper"] == verdict)
        assert cell["size_ratio"]["mean"] == pytest.approx(ratio)


def test_layers_are_judged_after_the_last_round(synthetic: Tables) -> None:
    table = synthetic["layers"]
    assert len(table["cells"]) == len(table["earlier_rounds"]) == 8 * 2 * 2
    assert {cell["round"] for cell in table["cells"]} == {5}
    assert {cell["round"] for cell in table["earlier_rounds"]} == {0}
    assert all(cell["agrees"] for cell in table["cells"])
    cell = pick(table["cells"], family="PL", dataset="fmnist", tensor="conv2.weight")
    assert cell["size"] == pytest.approx([0.2, 0.24])  # means over two clients and three seeds
    assert cell["deviation"] == pytest.approx([0.2, 0.202])
    assert cell["absolute_mean"] == pytest.approx([0.02, 0.03]), "clients do not cancel"
    assert cell["deviation_ratio"]["mean"] == pytest.approx(1.01)
    assert (cell["paper"], cell["seeds"]) == ("amplified", 3)


def test_the_tables_tell_the_last_round_from_earlier_ones(synthetic: Tables) -> None:
    last, early = LAYERS.tables(synthetic["layers"])
    assert last.rows[0][:5] == ["LS", "mnist", "conv2.weight", "0.2000", "0.2400"]
    assert last.rows[0][-2:] == ["amplified", "amplified"]
    assert {row[3] for row in early.rows} == {"0"}
    assert len(last.rows) == len(early.rows) == 32
