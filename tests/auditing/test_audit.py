"""What an audit came to: the content of ``audit.json``, the picture, and what neither of them holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attack.results import Inversion
from equipoise.auditing.audit import DECLARED, Audit, claims, content, with_verdict
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.results import Findings
from equipoise.auditing.summary import FAILED_WORDS
from equipoise.auditing.svg import Row, Section, as_pixels, png
from equipoise.auditing.unfinished import Unfinished
from equipoise.mechanism.claims import FINITE, PROVED, sentence
from tests.audit_helpers import cheap
from tests.auditing.findings import cell, row
from tests.auditing.findings import content as content_of
from tests.auditing.updates import SHAPE, Call, images_of, refuse

# --- what is written --------------------------------------------------------------------------------------------


def test_an_audit_is_saved_as_json_and_picture(call: Call, public: Any, tmp_path: Path) -> None:
    result = call(public=public, options=cheap(attacks=["invgrad", "lti"]), show=True)
    assert [path.name for path in result.save(tmp_path / "deep" / "place")] == ["audit.json", "audit.svg"]
    text = (tmp_path / "deep" / "place" / "audit.json").read_text(encoding="utf-8")
    stored = json.loads(text, parse_constant=refuse)
    assert (stored["schema"], stored["experiment"], stored["targets"]) == (1, "audit of given updates", "given")
    assert set(stored["claims"]) == {"proved", "measured", "not claimed"}
    assert stored["complete"] is True
    assert [row["attack"] for row in stored["attacks"]] == ["invgrad", "invgrad", "lti", "lti"]
    drawn = (tmp_path / "deep" / "place" / "audit.svg").read_text(encoding="utf-8")
    assert drawn == result.picture()
    assert len(images_of(drawn)) == 4 * 2, "originals, class means and two reconstructions of a batch of two"
    for word in (str(tmp_path), str(Path.home()), str(Path(equipoise.__file__).parents[1])):
        assert word not in text + drawn


def test_the_real_inputs_are_not_drawn_unless_asked_for(call: Call, public: Any, batch: Any, tmp_path: Path) -> None:
    options = cheap(attacks=["invgrad", "lti"])
    real = {png(image) for image in as_pixels(batch[0])}
    shown = call(public=public, options=options, show=True, bounds=(0.0, 1.0))
    assert [path.name for path in shown.save(tmp_path)] == ["audit.json", "audit.svg"]
    assert real <= set(images_of((tmp_path / "audit.svg").read_text()))
    hidden = call(public=public, options=options, bounds=(0.0, 1.0))
    assert [path.name for path in hidden.save(tmp_path)] == ["audit.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"], "nor is an older picture left"
    assert not real & set(images_of(hidden.picture()))
    assert hidden.content == shown.content


def test_numbers_that_json_does_not_know_are_null(call: Call, tmp_path: Path) -> None:
    result = call()
    result.rows[0] |= {"psnr": float("inf"), "cost": float("nan")}
    result.save(tmp_path)
    stored = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)
    assert (stored["attacks"][0]["psnr"], stored["attacks"][0]["cost"]) == (None, None)


def test_a_perfect_guess_is_written_with_a_finite_psnr(call: Call, batch: Any, stand_in: Any, tmp_path: Path) -> None:
    def perfect(server: Any, view: Any, *rest: Any) -> Inversion:
        return Inversion(batch[0].unsqueeze(0).clone(), torch.zeros(1))

    stand_in(perfect)
    call().save(tmp_path)
    (row,) = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)["attacks"]
    assert (row["mse"], row["psnr"]) == (0, 100)
    assert "not_finite" not in row


def test_an_audit_without_truth_is_saved_too(call: Call, tmp_path: Path) -> None:
    result = call(truth=None, examples=2, shape=SHAPE)
    result.save(tmp_path)
    stored = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)
    assert (stored["experiment"], stored["targets"]) == ("audit of given updates", "unknown")
    assert "environment" in stored


# --- content and claims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("complete", [True, False])
def test_the_content_is_what_was_found_with_its_options_and_claims(complete: bool) -> None:
    left = None if complete else Unfinished(1, 0, [], [])
    findings = Findings([{"mse": 1.0}], [{"gap": 2.0}], {"a": {"black": {"mse": 3.0}}}, [], {}, unfinished=left)
    result = content(findings, AuditOptions(attacks=["lti"], samples=30), "public", "all there is")
    assert result == {
        "schema": 1, "experiment": "seeded", "complete": complete, "verdict": [], "targets": "public",
        "claims": claims(findings.rows, "public"), "attacked": "all there is", "left_out": {}, "notes": [],
        "attacks": findings.rows, "limits": [], "kind": "image", "labels": "classes",
        "differences": findings.differences, "baselines": findings.baselines,
        "options": AuditOptions(attacks=["lti"], samples=30).plain(),
    }  # fmt: skip
    assert Audit(result).rows == findings.rows


@pytest.mark.parametrize("change", [{}, {"mechanism": "pl-identical", "budget": 0.98}, {"truth": None}])
def test_of_an_update_that_someone_else_made_nothing_is_proved(call: Call, change: dict[str, Any]) -> None:
    """An undistorted step that is declared to be protected comes out like any other."""
    result = call(**change, **({"examples": 2, "shape": SHAPE} if "truth" in change else {}))
    assert result.content["claims"]["proved"] == [DECLARED]
    assert "as you declared them" in " ".join(result.summary().split())
    assert "bootstrap" not in str(result.content["claims"]), "one release has no interval"


def test_of_a_run_the_bounds_are_proved_and_intervals_are_claimed_where_there_are_some(audited: Audit) -> None:
    said = audited.content["claims"]
    assert said["proved"] == [sentence(PROVED)]
    assert "95 % intervals over releases" in said["measured"][0]
    assert claims([{"mechanism": "none"}], "public")["proved"] == ["Nothing: no release was distorted."]
    assert claims([{"mechanism": "none"}, {"mechanism": "pl-learn"}], "public")["proved"] == [sentence(PROVED)]
    assert claims([{"mechanism": "pl-learn"}, {"mechanism": "pruning"}], "public")["proved"] == [sentence(FINITE)]
    assert "bootstrap" not in str(claims([{"mse": 1.0, "mse_low": None, "mse_high": None}], "public"))


def test_without_a_score_nothing_is_measured(call: Call) -> None:
    assert call(truth=None, examples=2, shape=SHAPE).content["claims"]["measured"] == ["Nothing: no result was scored."]


def test_the_footer_says_whose_images_they_are_and_what_guesses_reach() -> None:
    black = np.zeros((1, 1, 2, 2), dtype=np.uint8)
    result = {"targets": "public", "baselines": {"a": {"black": {"mse": 1.234}, "class_mean": {"mse": 0.5}}}}
    section = [Section("one", [Row("original", "", black)])]
    drawn = Audit(
        {**result, "attacks": [{"attack": "lti"}], "verdict": ["Something leaks.", "More."]}, section
    ).picture()
    words = " ".join(re.findall(r">([^<]+)</text>", drawn))
    assert words.startswith("What the server could see (labels granted) Something leaks. one")
    assert (
        "Labels granted: the attacker was told the class of every image. A picture that looks like the class" in words
    )
    assert "Targets: public images" in words
    assert "MSE of guesses that use no update: black 1.23, class mean 0.50." in words
    assert "More." not in words
    assert len(images_of(drawn)) == 1
    inferred = {**result, "attacks": [{"attack": "lti", "labels_granted": False}]}
    assert "granted" not in Audit(inferred, section).picture()


def test_the_footer_says_that_a_picture_of_the_class_hides_nothing_where_matched_was_run() -> None:
    def words(*rows: dict[str, Any]) -> str:
        result = {"targets": "public", "baselines": {}, "attacks": list(rows), "differences": []}
        return " ".join(re.findall(r">([^<]+)</text>", Audit(result, [Section("one", [])]).picture()))

    hidden = "It does not mean that the image is hidden: matched draws no picture, and "
    assert f"{hidden}picks the image from the same release (chance 1 in 200)." in words(row("matched", 0.4))
    assert f"{hidden}looks for the image in the same release (chance 1 in 200)." in words(row("matched", 0.005))
    assert "hidden" not in words(row("lti", 0.4))
    assert "hidden" not in words({**row("matched", 0.4), "labels_granted": False})


def test_the_footer_explains_the_mark_of_a_failed_control() -> None:
    black = np.zeros((1, 1, 2, 2), dtype=np.uint8)
    for remark, marked in (("MSE 1.00 *", True), ("MSE 1.00", False)):
        drawn = Audit({"targets": "public", "baselines": {}}, [Section("one", [Row("none", remark, black)])]).picture()
        assert (FAILED_WORDS in " ".join(re.findall(r">([^<]+)</text>", drawn))) == marked


def test_too_few_releases_stand_above_the_picture_with_the_finding() -> None:
    said = ["Insufficient evidence: 2 releases, and a result takes 20.", "It leaks.", "More."]
    drawn = Audit({"targets": "public", "baselines": {}, "verdict": said}).picture()
    words = " ".join(re.findall(r">([^<]+)</text>", drawn))
    assert "a result takes 20. It leaks." in words
    assert "More." not in words


def test_an_interrupted_audit_says_so_first_and_above_the_picture_with_the_finding() -> None:
    whole = content_of(*cell("matched", 0.4, 0.9, mechanism="pl-identical"))
    left = {"cells": 38, "finished": 6, "lacking": ["pl-learn"], "rounds": [100]}
    result = with_verdict({**whole, "complete": False, "unfinished": left})
    first, second, *_ = result["verdict"]
    assert first == "Interrupted: 6 of 38 cells are finished; nothing yet on pl-learn, nor on round 100."
    assert second == with_verdict(whole)["verdict"][0]
    assert result["verdict"][-1] == "Next: run the same command again."
    words = " ".join(re.findall(r">([^<]+)</text>", Audit(result).picture()))
    assert f"{first} {second}" in words


def test_the_verdict_is_stored_and_opens_the_summary(audited: Audit) -> None:
    said = audited.content["verdict"]
    assert said == with_verdict(audited.content)["verdict"]
    assert said[0].startswith("Insufficient evidence: 2 releases")
    assert " ".join(audited.summary().split()).startswith(" ".join(said))
    assert "data/" not in " ".join(said), "datasets go by their names"
