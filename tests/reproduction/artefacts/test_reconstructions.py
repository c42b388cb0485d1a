"""InvGrad's images of public batches, judged by the paper's highest SSIM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.engine.federation import Federation
from equipoise.reproduction.artefacts.reconstructions import RECONSTRUCTIONS, packed, unpacked
from equipoise.reproduction.artefacts.registry import needs
from equipoise.reproduction.claims import Tables
from tests.reproduction import synthetic as syn
from tests.reproduction.synthetic import SCALE, World, records_of


def test_reconstructions_are_judged_by_the_papers_highest_ssim() -> None:
    def pictures(fed: Federation) -> dict[str, Any]:
        return {**syn.pictures(fed), "ssim": [[0.0629] * 4, [0.0631] * 4, [0.06299] * 4]}  # between 5.8 and 6.3 %

    table = RECONSTRUCTIONS.score(records_of(World(pictures=pictures)))
    assert len(table["cells"]) == 8
    for cell in table["cells"]:
        assert cell["ssim"]["mean"] == pytest.approx(6.29967, abs=1e-4)
        assert cell["mse"]["mean"] == pytest.approx(2.01)
        assert (cell["batches"], cell["seeds"]) == (3, 1), "batches are no seeds"
        assert cell["agrees"] is (cell["family"] == "LS")
    rows = [image["row"] for image in table["images"] if image["dataset"] == "mnist"]
    assert rows == ["original", "none", "ls-static 200", "ls-learn 200", "pl-identical 0.98", "pl-learn 0.98"]
    for image in table["images"]:
        shade = syn.SHADES[image["dataset"], image["row"].split()[0]]
        assert [unpacked(one).tolist() for one in image["pixels"]] == [one[0] for one in syn.blank(shade)]


def test_a_picture_comes_back_as_it_was() -> None:
    image = np.random.default_rng(3).integers(0, 256, (1, 28, 28))
    (text,) = packed([image.tolist()])
    assert unpacked(text).tolist() == image[0].tolist()


def test_pictures_are_of_one_trajectory(synthetic: Tables) -> None:
    assert {fed.seed for fed in needs(["reconstructions"], SCALE)["paper"]} == {1}
    (table,) = RECONSTRUCTIONS.tables(synthetic["reconstructions"])
    assert table.caption.startswith("3 batches of public images at the weights of seed 1")
    assert "none" not in {row[1] for row in table.rows}, "without protection there is nothing to judge"
