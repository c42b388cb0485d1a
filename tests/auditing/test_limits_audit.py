"""Budgets of a whole run: audited beside others, kept, interrupted, and caught with too little noise."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.auditing import limits_audit
from equipoise.auditing.audit import Audit
from equipoise.auditing.limit_client import PlayedClient
from equipoise.auditing.limit_comparison import compared
from equipoise.auditing.limits_audit import replayed_limits, run_terms
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.store import Store
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.mechanism.protection import Protection, ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.audit_helpers import cheap, settings_for

SMALL = {"games": 40, "among": 20}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """An unprotected federation beside one with a guarantee."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    blocks = {"datasets": [str(pictures)], "mechanisms": ["none", "gaussian-dp"], "budgets": [8.0]}
    Run(folder, resolve(overrides=settings_for(), sweep=blocks)).execute()
    return folder


@pytest.fixture(scope="module")
def audited(run: Path) -> Audit:
    return audit_run(run, cheap(attacks=["matched", "membership", "labels"], **SMALL), snapshots=[0, 2], multi_rounds=3)


def test_each_federation_is_audited_its_own_way(audited: Audit) -> None:
    assert {row["mechanism"] for row in audited.rows} == {"none"}
    limits = audited.content["limits"]
    assert {row["mechanism"] for row in limits} == {"gaussian-dp"}
    assert {(row["attack"], row["round"]) for row in limits} == {
        ("matched", 0), ("matched", 2), ("membership", 0), ("membership", 2), ("multi-round", None)
    }  # fmt: skip
    assert {row["mechanism"] for row in audited.content["multi_round"]} == {"none"}
    assert {row["games"] for row in limits} == {40}


def test_an_honest_run_is_consistent_with_its_proof(audited: Audit) -> None:
    limits = audited.content["limits"]
    judged = [row for row in limits if row["limit"] is not None]
    assert len(judged) == 12
    assert not any(row["above"] or row["control_failed"] for row in judged)
    assert {row["scope"] for row in limits} == {"release_known", "run"}
    verdict = audited.content["verdict"]
    assert verdict[0].startswith("gaussian-dp @ 8: from all 3 releases of a run, an attacker who knows the mechanism")
    assert " of 40 games (" in verdict[0]
    assert any(line.startswith("None of 12 figures is significantly above its limit") for line in verdict)
    assert verdict[-1].startswith("Next: rely on the proved limits, not on what attacks got (guarantee.json, or ")
    assert "proved limit" in audited.summary()
    notes = audited.content["notes"]
    assert any(note.startswith("Not played on gaussian-dp, and compared with no limit: labels.") for note in notes)
    assert "a seeded run has none" in audited.content["claims"]["proved"][0]
    json.dumps(audited.content)


def _quartered(client: PlayedClient) -> PlayedClient:
    """The same claims, with a quarter of the noise."""

    def less(number: int) -> Protection:
        own = client.protection(number)
        return replace(own, scale=own.scale / 4)

    class Liar(PlayedClient):
        def releases(self, *arguments: Any) -> Any:
            return PlayedClient(self.pool, less, self.eta, self.seed).releases(*arguments)

    return Liar(client.pool, client.protection, client.eta, client.seed)


def test_a_quarter_of_the_noise_is_above_the_limit(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = limits_audit.Setting.client
    monkeypatch.setattr(limits_audit.Setting, "client", lambda self, seed: _quartered(honest(self, seed)))
    options = AuditOptions(attacks=["matched", "membership"], **SMALL)
    found = audit_run(run, options, snapshots=[0], multi_rounds=3)
    limits = found.content["limits"]
    for scope in ("run", "release_known"):  # all releases together, and one by itself
        assert any(row["above"] for row in limits if (row["measure"], row["scope"]) == ("identification", scope))
    one = {row["fpr"]: row for row in limits if (row["measure"], row["scope"]) == ("membership_tpr", "release_known")}
    assert one[0.1]["above"], "so few games cannot tell more at smaller rates, nor over a whole run"
    assert any("ABOVE ITS PROVED LIMIT" in line for line in found.content["verdict"])


def test_what_was_played_is_not_played_again(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    options = AuditOptions(attacks=["matched", "membership"], **SMALL)
    first = audit_run(folder, options, snapshots=[0], store=Store(folder))
    again = audit_run(folder, replace(options, attacks=["matched"]), snapshots=[0], store=Store(folder))
    assert again.content["results"]["read"] > 0
    one, other = (
        [row["measured"] for row in found.content["limits"] if row["attack"] == "matched"] for found in (first, again)
    )
    assert one == other
    more = audit_run(folder, replace(options, games=39), snapshots=[0], store=Store(folder))
    assert more.content["limits"][0]["games"] == 39


def test_no_game_is_played_where_no_attack_asks_for_one(run: Path) -> None:
    found = audit_run(run, cheap(attacks=["labels"]), snapshots=[0])
    assert found.content["limits"] == []


def test_an_interrupted_audit_keeps_what_was_played(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play, count = limits_audit.LimitCell.play, 0

    def stopped(self: Any, step: Any) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        return play(self, step)

    monkeypatch.setattr(limits_audit.LimitCell, "play", stopped)
    found = audit_run(run, AuditOptions(attacks=["matched"], **SMALL), snapshots=[0, 2])
    assert found.content["complete"] is False
    assert {row["round"] for row in found.content["limits"]} == {0}


def test_progress_adds_up_to_the_plan(run: Path) -> None:
    told: list[float] = []
    plans: list[Any] = []
    audit_run(
        run, replace(AuditOptions(attacks=["matched"], **SMALL)), snapshots=[0],
        progress=lambda what, seconds: told.append(seconds), planned=plans.append,
    )  # fmt: skip
    assert plans[0].limited == 1
    assert plans[0].games == 40
    assert "1 cell held against proved limits: 40 games each" in plans[0].text()
    assert sum(told) == pytest.approx(plans[0].seconds, rel=0.01)


def test_a_pool_that_is_too_small_is_said(run: Path) -> None:
    found = audit_run(run, AuditOptions(attacks=["matched"], games=500, among=200), snapshots=[0])
    games = found.content["limits"][0]["games"]
    assert games < 100
    assert any(f"Against proved limits: {games} games, not 500" in note for note in found.content["notes"])


def test_a_noise_schedule_has_the_limit_of_its_rounds() -> None:
    own = GaussianSettings(rounds=4, noise_schedule={"rounds": [1, 3], "values": [1.0, 0.5]}, sigmas=[[3.0, 6.0]])
    settings = ProtectionSettings(gaussian=own)
    client = PlayedClient(None, lambda number: settings.at("gaussian-dp", 3.0, number), settings.eta, 0)  # type: ignore[arg-type]
    terms = run_terms(client, 3)
    assert terms["sigma"] == pytest.approx(6.0)
    assert terms["schedule"] == [[0.5, 1], [1.0, 2]]
    assert terms["rounds"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("model", ["mlp", "scatter-linear"])
def test_a_run_is_replayed_with_its_own_weights(pictures: Path, model: str, rate: float) -> None:
    """Sampled and full batches, gradients written out and in factored form."""
    settings = Settings.flat(**{
        **settings_for(), "model": model, "rounds": 4, "gaussian": {"sampling_rate": rate, "divisor": 10.0}
    })  # fmt: skip
    heard: list[int] = []
    rows = replayed_limits(
        settings, Federation(str(pictures), "gaussian-dp", 8.0), 4, AuditOptions(**SMALL), on_round=heard.append
    )
    assert heard == [1, 2, 3, 4]
    assert {row["terms"]["sampling_rate"] for row in rows} == {rate}
    assert not any(row.get("above") for row in compared(rows))
    assert rows[0]["undistorted"] == 1.0
