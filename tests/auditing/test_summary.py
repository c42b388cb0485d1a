"""An audit in words: the strongest attack with its interval and what guessing gets, a table, and the claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.auditing.audit import Audit, claims
from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.summary import MOST, WIDTH, headline, interval_of, summary_text, wrapped
from tests.audit_helpers import cheap
from tests.auditing.updates import SHAPE, Call, searched


def row(attack: str = "matched", role: str = "own", control: str | None = None, **values: Any) -> dict[str, Any]:
    about = {"mechanism": "pl-learn", "budget": 0.98, "round": None, "role": role, "control": control}
    return {**about, "attack": attack, "targets": 32, "evidence": "ok", **values}


def content(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "attacked": "32 updates of 4 examples", "targets": "given", "complete": True, "notes": [],
        "claims": claims(list(rows), "given"), "left_out": {}, "attacks": list(rows),
        "baselines": {"given": {"black": {"mse": 1.2}, "noise": {"mse": 2.0}}},
        **more,
    }  # fmt: skip


RATE = {"membership_tpr": 0.4, "membership_tpr_low": 0.3, "membership_tpr_high": 0.5}
FOUND = content(
    row("invgrad", mse=0.5, mse_low=0.4, mse_high=0.6, identification=0.25, chance="1 in 10"),
    row("lti", mse=0.7, mse_low=0.6, mse_high=0.8, identification=0.5, chance="1 in 10"),
    row("matched", identification=0.875, identification_low=0.8, identification_high=0.95, chance="1 in 10"),
    row("matched", control="negative", identification=0.1, chance="1 in 10"),
    row("matched", role="undistorted", control="positive", identification=1.0, chance="1 in 10"),
    row("matched", role="static, equal lower bound", identification=0.97, chance="1 in 10"),
    row("membership", membership_auc=0.83, membership_auc_low=0.75, membership_auc_high=0.9, **RATE),
    row("membership", control="negative", membership_auc=0.56),
    row("labels", labels=0.75, labels_low=0.7, labels_high=0.8),
    row("labels", control="negative", labels=0.1),
)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_verdict_stands_first_word_by_word() -> None:
    said = ["Something leaks 50 % of all.", "Next: stop it."]
    text = summary_text({**FOUND, "verdict": said})
    assert text.startswith("Something leaks 50 % of all.\nNext: stop it.\nAttacked: 32 updates of 4 examples.\n\n")


def test_the_table_has_every_measure_beside_the_control_and_guessing() -> None:
    lines = summary_text(FOUND).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("attack "))
    cells = [[part.strip() for part in line.split("  ") if part] for line in lines[head + 2 : head + 11]]
    assert cells[0] == ["pl-learn @ 0.98"]
    assert cells[1] == ["invgrad identified", "-", "25 %", "-", "-", "1 in 10"]
    assert cells[2] == ["invgrad MSE", "-", "0.5", "0.4 to 0.6", "-", "1.2"]
    assert cells[5] == ["matched identified", "-", "88 %", "80 to 95 %", "100 %", "1 in 10"]
    assert cells[6] == ["membership AUC", "-", "0.83", "0.75 to 0.90", "-", "0.56"]
    assert cells[7] == ["membership TPR@1%", "-", "40 %", "30 to 50 %", "-", "-"]
    assert cells[8] == ["labels right", "-", "75 %", "70 to 80 %", "-", "10 %"]


def test_the_claims_end_it() -> None:
    text = summary_text(FOUND)
    assert [part in text for part in ("\nProved: ", "\nMeasured: ", "\nNot claimed: ")] == [True] * 3
    assert text.index("attack ") < text.index("\nProved: ") < text.index("\nMeasured: ") < text.index("\nNot claimed: ")


def test_what_was_left_out_shrunk_or_cut_short_is_said() -> None:
    few = row(identification=1.0)
    left_out = {"lti": "needs public inputs", "labels": "needs public inputs"}
    text = one_line(summary_text(content(few, left_out=left_out, notes=["Among 3 candidates."], complete=False)))
    assert "Left out: lti, labels (needs public inputs)." in text
    assert "Among 3 candidates." in text


def test_of_many_defences_the_strongest_round_of_each_is_a_line_beside_the_undistorted_figure() -> None:
    sure = {"identification_low": 0.3, "identification_high": 0.95}
    rows = [
        row(mechanism=name, budget=budget, dataset="mnist", seed=1, round=number, identification=value, **sure)
        for name, budget, value in (("none", None, 0.9), ("pl-learn", 0.98, 0.4))
        for number, value in ((0, value), (200, value / 2))
    ]
    bare = row(role="undistorted", control="positive", dataset="mnist", seed=1, identification=0.7)
    text = summary_text(content(*rows, {**bare, "round": 0}, baselines={"mnist": {"black": {"mse": 1.2}}}))
    cells = [[part.strip() for part in line.split("  ") if part] for line in text.splitlines()]
    assert [line for line in cells if "matched identified" in line] == [
        ["matched identified", "0", "90 %", "30 to 95 %", "90 %", "-"],
        ["matched identified", "0", "40 %", "30 to 95 %", "70 %", "-"],
    ]
    assert cells.index(["none"]) < cells.index(["pl-learn @ 0.98"]), "each defence above its lines"
    assert "None" not in text


def test_defences_of_several_seeds_are_told_apart() -> None:
    rows = [row(dataset="mnist", seed=seed, identification=0.5) for seed in (1, 2)]
    text = summary_text(content(*rows))
    assert "pl-learn @ 0.98, seed 1\n" in text
    assert "pl-learn @ 0.98, seed 2\n" in text


def test_a_failed_control_is_marked_and_explained() -> None:
    text = summary_text(content(row(identification=0.01, control_failed=True)))
    assert "1.0 % *" in text
    assert "*: control failed: the attack gets little without distortion too" in one_line(text)
    assert "*" not in summary_text(FOUND)


def test_it_stays_narrow_and_short() -> None:
    schedule = {"rounds": [1, 500, 1000], "values": [[0.96, 0.97, 0.98, 0.99], 0.98, 0.99]}
    rows = [row(mechanism=f"m{i}", budget=schedule, round=200, identification=i / 50) for i in range(50)]
    text = summary_text(content(*rows))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert f"... and {100 - MOST} more: see rows." in text, "a line for each defence, and one for its attack"


def combined(*failed: str, **change: Any) -> dict[str, Any]:
    """A row of many rounds; ``failed`` are the schedules whose control failed."""
    row = {"mechanism": "none", "budget": None, "rounds": 5000, "targets": 100, "candidates": 50, "chance": "1 in 50"}
    row |= {"releases_per_example": 20.31, "releases_per_example_least": 8, "releases_per_example_most": 34}
    row |= {"evidence": "ok", "note": None, "interval_over": "other images, not other runs"}
    row |= {f"control_failed_schedule_{name}": name in failed for name in ("known", "unknown")}
    for i, name in enumerate(("one_release", "schedule_known", "schedule_unknown")):
        for j, what in enumerate(("", "_undistorted", "_decoy")):
            value = round(0.1 + 0.2 * i + 0.03 * j, 2)
            row |= {f"identification_{name}{what}{end}": value for end in ("", "_low", "_high")}
    return {**row, **change}


def test_combined_releases_say_how_many_hold_an_image_and_no_budget_is_not_printed() -> None:
    text = one_line(summary_text(content(multi_round=[combined()])))
    assert (
        "none, over 5000 rounds: an image of the client is in 20.3 releases on average (8 to 34). Among 50 candidates, "
        "100 images are identified in 10 % (10 to 10 %) of cases from one of these releases, in 30 % (30 to 30 %) from "
        "all that hold the image if the schedule is granted, and in 50 % (50 to 50 %) from all 5000 if it is not. "
        "Without distortion: 13 % (13 to 13 %), 33 % (33 to 33 %), 53 % (53 to 53 %). With a decoy in the image's "
        "place: 16 % (16 to 16 %), 36 % (36 to 36 %), 56 % (56 to 56 %); by chance 1 in 50." in text
    )
    assert "Intervals over combined releases cover other images, not other runs." in text
    assert "Control failed" not in text
    assert "None" not in text


def test_combined_releases_whose_control_failed_or_that_are_few_say_so() -> None:
    bare = {f"identification_schedule_known_{end}": None for end in ("low", "high")}
    row = combined("known", "unknown", note="Only 3 took part.", evidence="insufficient evidence", **bare)
    text = one_line(summary_text(content(multi_round=[row])))
    assert "if it is not (insufficient evidence)." in text
    assert "in 30 % from all that hold the image" in text, "no interval"
    assert "Control failed: without distortion this attack was not shown to work well enough" in text
    assert "Only 3 took part." in text


@pytest.mark.parametrize(("failed", "called"), [("known", "granted"), ("unknown", "unknown")])
def test_a_control_that_failed_under_one_schedule_is_told_of_that_one(failed: str, called: str) -> None:
    text = one_line(summary_text(content(multi_round=[combined(failed)])))
    assert f"Control failed where the schedule is {called}: without distortion" in text


def test_an_interval_is_that_of_its_number() -> None:
    found = {"membership_auc_low": 0.4, "membership_auc_high": 0.6, "mse_low": None, "mse_high": None}
    assert interval_of(found, "membership_auc") == (0.4, 0.6)
    assert interval_of(found, "mse") is None
    assert interval_of(found, "ssim") is None


def test_a_percent_sign_and_a_budget_stay_with_their_number() -> None:
    text = wrapped("of pl-identical @ 0.98 leak 50 % and more of it all.", 24)
    assert text.splitlines() == ["of pl-identical @ 0.98", "  leak 50 % and more of", "  it all."]
    assert wrapped("short", 24) == "short"


def test_the_headline_is_the_strongest_of_the_first_measure() -> None:
    assert headline(FOUND) == "matched identifies 88 % of the examples"
    assert headline(content(row("membership", membership_auc=0.7))).startswith("membership tells members")
    assert headline(content()) == "nothing scored"
    few = {**row(identification=1.0), "evidence": "insufficient evidence"}
    assert headline(content(few)) == "matched identifies 100 % of the examples (insufficient evidence)"


# --- of real audits -----------------------------------------------------------------------------------------------


def test_the_audit_of_an_update_says_what_it_is(call: Call, public: Any) -> None:
    result = call(options=searched(), public=public)
    assert repr(result) == (
        "Audit(1 attack on 1 update of 2 examples; invgrad identifies 100 % of the examples (insufficient evidence))"
    )
    assert one_line(result.summary()).startswith(
        "Insufficient evidence: 1 update, and a result takes 20. Read the rest as examples. Nothing protects this "
        "update: a server that follows the protocol (labels granted) reconstructs examples (invgrad) that point to the "
        "right one out of 5 in 100 % of cases (one update: too few to tell) from this update."
    )


def test_an_audit_shows_no_tensor_and_no_dictionary(call: Call) -> None:
    result = call()
    assert len(repr(result)) <= 120
    assert "tensor" not in repr(result) + result.summary()
    assert "{" not in repr(result) + result.summary()


def test_without_a_truth_nothing_is_scored_and_that_is_said(call: Call) -> None:
    result = call(truth=None, examples=2, shape=SHAPE)
    assert repr(result) == "Audit(2 attacks on 1 update of 2 examples; nothing scored)"
    assert "Nothing is scored: no truth was given" in one_line(result.summary())
    assert "The attacker takes the labels to be [[0, 2]]." in result.summary()


def test_a_run_has_a_summary_too(audited: Audit) -> None:
    assert repr(audited).startswith("Audit(5 attacks on 2 releases of public images at 3 snapshots of 3 federations; ")
    text = audited.summary()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "Insufficient evidence: 2 releases, and a result takes 20." in text
    assert "None" not in text


def test_a_run_with_nothing_but_combined_releases_has_one(trained: Path) -> None:
    result = audit_run(trained, cheap(attacks=[]), multi_rounds=2)
    assert "none, over 2 rounds: an image of the client is in " in one_line(result.summary())


GIVEN_AWAY = "The budget of pl-identical fixes the norm of its noise exactly"


def test_a_norm_that_is_given_away_is_said_unless_it_was_measured() -> None:
    static = row("labels", mechanism="pl-identical", labels=0.5)
    assert one_line(summary_text(content(static))).count(GIVEN_AWAY) == 1
    rates = {"verified": 1.0, "accepted": 1.0, "accepted_wrongly": 0.0, "chance": "1 in 10"}
    measured = content(static, row("verify", mechanism="pl-identical", **rates))
    assert GIVEN_AWAY not in one_line(summary_text(measured))
    assert "verify right guess" in summary_text(measured)
    for name in ("pl-learn", "ls-static", "none", "of one's own"):
        assert "fixes the norm" not in one_line(summary_text(content(row("labels", mechanism=name, labels=0.5)))), name


def test_who_only_checks_guesses_is_said_to_be_granted_the_rest() -> None:
    found = content(row("verify", verified=1.0, chance="1 in 10"))
    assert headline(found) == "verify verifies 100 % of the guesses, granted the other examples"


def test_an_area_of_a_handful_of_non_members_is_not_shown() -> None:
    area = {"membership_auc": 0.6, "membership_auc_low": 0.17, "membership_auc_high": 0.94}
    text = summary_text(content(row("membership", **area, non_members=5)))
    assert "too few" in text
    assert "0.17" not in text
    assert "0.17" in summary_text(content(row("membership", **area)))


def test_the_headline_is_of_a_row_whose_control_worked() -> None:
    able, failed = row(identification=0.06), row(identification=0.19, control_failed=True)
    assert headline(content(able, failed)) == "matched identifies 6.0 % of the examples"
    assert headline(content(failed)) == "matched identifies 19 % of the examples", "there is no other"
