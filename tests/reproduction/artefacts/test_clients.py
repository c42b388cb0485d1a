"""Every client's curve, learned minus static, and its reach over seeds."""

from __future__ import annotations

import pytest

from equipoise.engine.federation import Federation
from equipoise.reproduction.artefacts.clients import CLIENTS
from equipoise.reproduction.claims import Tables
from tests.reproduction import synthetic as syn
from tests.reproduction.synthetic import World, pick, records_of


def test_the_curves_of_clients(synthetic: Tables) -> None:
    table = synthetic["clients"]
    assert [(cell["family"], cell["budget"], cell["client"]) for cell in table["cells"]] == [
        *(("LS", 200, k) for k in (1, 2, 3, 4)), *(("PL", 0.975, k) for k in (1, 2, 3, 4))
    ]  # fmt: skip
    for cell in table["cells"]:
        assert cell["mean"] == pytest.approx(20)
        assert cell["area"]["mean"] == pytest.approx((10 + 20 + 20) / 3)
        assert cell["final_training_loss"]["mean"] == pytest.approx(-0.2)
        assert cell["agrees"] is True
    curve = pick(table["curves"], family="LS", client=3, mechanism="ls-learn")
    assert curve["rounds"] == [0, 2, 5]
    assert curve["mean"] == pytest.approx([20, 50, 62])
    assert curve["low"] == pytest.approx([19.95, 49.9, 61.9])
    assert curve["high"] == pytest.approx([20.05, 50.1, 62.1])
    assert curve["training_loss"] == pytest.approx([1.8, 1.5, 1.38])


def test_a_client_that_only_ends_higher_does_not_agree() -> None:
    """Below the static curve all the way, above it at the last point."""

    def late(fed: Federation, client: int) -> list[float]:
        result = syn.curve(fed, client)
        return [0.0, 0.0, result[2]] if fed.mechanism == "ls-learn" and client == 1 else result

    result = CLIENTS.score(records_of(World(curve=late)))
    assert [(c["family"], c["client"]) for c in result["cells"] if not c["agrees"]] == [("LS", 2)]
    (table,) = CLIENTS.tables(result)
    assert [row[-1] for row in table.rows] == ["agrees", "**differs**", *["agrees"] * 6]
