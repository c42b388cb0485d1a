"""What a decision says, and that it says no more than it may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.choosing.decision import Decision, Expected
from equipoise.choosing.limit import Limit
from equipoise.engine.settings import Settings


def decision(**more: object) -> Decision:
    settings = Settings.flat(model="mlp", rounds=50, server_rate=0.5, server_momentum=0.8)
    found = Decision(
        met=True, limit=Limit("epsilon", 2.0), dataset="mnist", settings=settings, mechanism="gaussian-dp", budget=2.0,
        sigma=14.09839, records=1000, expected=Expected(0.9, 0.88, 0.92, 6, 1500, "public records"), unprotected=0.95,
        identified=0.0190271, rejected=[],
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


def test_the_interval_holds_seeds_and_records() -> None:
    one = Expected.of([0.9], 100, "public records")
    assert one.high - one.accuracy == pytest.approx(1.96 * (0.9 * 0.1 / 100) ** 0.5, rel=1e-3)
    several = Expected.of([0.88, 0.9, 0.92], 100, "public records")
    assert several.high > one.high
    assert Expected.of([1.0, 1.0], 10, "public records").high == 1.0
    assert Expected.of([0.02, 0.0], 10, "public records").low == 0.0


def test_without_a_proof_no_epsilon_is_stated() -> None:
    words = " ".join(decision(mechanism="pl-identical", sigma=None).sentences())
    assert "delta" not in words
    assert "Proved" not in words
    assert "Nothing is proved" in words


def test_what_does_not_meet_the_limit_is_not_called_to_deploy() -> None:
    assert decision(met=False).sentences()[0].startswith("Nearest, not to be deployed")


def test_a_limit_is_rounded_up_where_it_is_told() -> None:
    assert "more than 1.91 %" in decision().sentences()[2]


def test_no_path_is_told() -> None:
    found = decision(dataset="/home/someone/scans")
    assert found.label == "scans"
    assert "someone" not in str(found.plain())
    assert "someone" not in " ".join(found.sentences())


def test_choosing_on_private_records_is_told_where_the_claim_is() -> None:
    assert "nor is the choice covered" in decision(private=True).sentences()[2]
    assert "nor is" not in decision().sentences()[2]
