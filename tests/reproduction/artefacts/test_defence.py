"""InvGrad's errors as means over images and clients, beside the paper's values and guesses that use no update."""

from __future__ import annotations

import pytest

from equipoise.reproduction.artefacts.defence import LS, PL
from equipoise.reproduction.claims import Tables
from equipoise.reproduction.paper import paper
from equipoise.reproduction.plan import BUDGETS
from tests.reproduction import synthetic as syn


@pytest.mark.parametrize("family", ["LS", "PL"])
def test_defence_has_the_mean_over_images_and_clients(synthetic: Tables, family: str) -> None:
    table, said = synthetic[f"defence-{family.lower()}"], paper()
    assert len(table["cells"]) == 40
    for cell in table["cells"]:
        learned = cell["mechanism"].endswith("learn")
        theirs = said[cell["quantity"]][family][cell["dataset"]]["learn" if learned else "identical"]
        assert cell["paper"] == theirs[BUDGETS[family].index(cell["budget"])]
        ours, least = (2.01 if learned else 2.0, 0.1) if cell["quantity"] == "mse" else (2.0, 1.0)
        assert cell["mean"] == pytest.approx(ours)
        assert cell["agrees"] is bool(abs(ours - cell["paper"]) <= least)
    assert table["batches_per_cell"] == 2 * len(syn.SEEDS)
    assert all(row["mean"] == pytest.approx(0.3) for row in table["leakage"])
    assert table["without_protection"]["mnist"]["mse"]["mean"] == pytest.approx(2.0)
    assert table["guesses_without_an_update"]["fmnist"]["black"]["ssim"] == 0.09


def test_guesses_stand_in_the_units_of_the_cells(synthetic: Tables) -> None:
    errors, similarities, guesses = PL.tables(synthetic["defence-pl"])
    assert len(errors.rows) == len(similarities.rows) == 20
    assert guesses.rows[0] == ["mnist", "black", "1.20", "9.0", "0.40"]  # SSIM in percent
    assert guesses.rows[-1] == ["fmnist", "InvGrad without protection", "2.00 ± 0.00", "2.0", "0.30"]


def test_the_rule_names_the_limits_of_both_quantities() -> None:
    assert "at least 0.1 and at most 0.33 (MSE, normalised units)" in LS.rule
    assert "For SSIM 1 and 3.3 points." in LS.rule
    assert LS.rule == PL.rule


def test_the_note_says_how_much_leaked(synthetic: Tables) -> None:
    result = synthetic["defence-ls"]
    (note,) = LS.notes({**result, "leakage": [{"mean": 0.25}, {"mean": 0.5}, {"mean": 0.75}]})
    assert "leakage here is 0.25 to 0.75." in note
