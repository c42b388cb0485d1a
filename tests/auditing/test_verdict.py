"""The verdict in words: for a run without protection, with learned and with static noise, and where evidence lacks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from equipoise.auditing.summary import wrapped
from equipoise.auditing.verdict import verdict
from tests.auditing.findings import cell, combined, content, gap, row, study


def only(mechanism: str, budget: float | None) -> dict[str, Any]:
    found = study()
    rows = [one for one in found["attacks"] if (one["mechanism"], one["budget"]) == (mechanism, budget)]
    return {**found, "attacks": rows}


def test_without_protection_the_first_sentence_says_that_nothing_protects() -> None:
    said = verdict(only("none", None))
    assert said[0] == (
        "Nothing protects these updates: a server that follows the protocol and holds public images of the same kind "
        "(labels granted) picks the right image out of 200 in 100 % of cases (95 % interval 98 to 100; the largest of "
        "3 figures) from the first release."
    )
    assert said[-1].startswith("Next: protect the updates")
    assert "static" not in " ".join(said[:-1])


def test_a_learned_run_is_held_against_no_protection_and_static_noise() -> None:
    said = verdict(only("pl-learn", 0.98))
    assert said[0] == (
        "A server that follows the protocol, knows the mechanism and holds public images of the same kind (labels "
        "granted) picks the right image out of 200 in 90 % of cases (95 % interval 88 to 92) from the first release of "
        "pl-learn @ 0.98; without any protection it would be 100 %, with static noise of the same budget 33 %."
    )
    assert said[1].startswith("At equal budget and weights, learned noise leaks more than static noise in ")
    assert "use static noise (pl-identical) instead of pl-learn at the same budget" in said[-1]


def test_a_static_run_names_its_worst_round() -> None:
    said = verdict(only("pl-identical", 0.98))
    assert "41 % of cases (95 % interval 39 to 43; the largest of 3 figures) from a release of pl-iden" in said[0]
    assert "pl-identical @ 0.98 after 2,000 rounds" in said[0]
    assert said[0].endswith("; without any protection it would be 58 %.")
    assert "instead of" not in said[-1]
    assert "use a larger batch" in said[-1]


def test_a_sweep_is_grouped_and_ranked_in_few_sentences() -> None:
    said = verdict(study())
    assert len(said) <= 12
    assert len("\n".join(map(wrapped, said)).splitlines()) <= 28
    ranking = next(line for line in said if line.startswith("Images identified"))
    assert ranking == (
        "Images identified by the strongest attack, the largest of 3 to 6 figures each: at the first round none 100 %, "
        "pl-learn @ 0.995 100 %, pl-identical @ 0.995 91 %, pl-learn @ 0.98 90 %; after 200 rounds pl-learn @ 0.96 "
        "58 %, pl-identical @ 0.96 10 %; after 2,000 rounds pl-identical @ 0.98 41 %."
    )
    membership = next(line for line in said if line.startswith("Membership"))
    assert membership.startswith(
        "Membership: an AUC of 0.84 (the largest of 18 figures; 0.82 to 0.86; by chance 0.50; "
    )
    assert "20 % of members at 1 % false alarms" in membership
    assert "unprotected 0.99, static noise of equal budget 0.75" in membership


def test_the_ranking_goes_round_by_round() -> None:
    rows = [*cell("matched", 0.9, 1.0, round=60), *cell("matched", 0.8, 1.0, budget=0.96)]
    ranking = next(line for line in verdict(content(*rows)) if line.startswith("Images identified"))
    assert ranking.endswith(": at the first round pl-learn @ 0.96 80 %; after 60 rounds pl-learn @ 0.98 90 %.")


def test_what_is_worse_than_no_protection_comes_first() -> None:
    rows = [*cell("matched", 0.99, 1.0, 0.3, budget=0.995), *cell("matched", 0.7, 0.4, 0.3, round=60)]
    said = verdict(content(*rows))
    assert said[0].startswith("Worse than no protection: a server that")
    assert "70 % of cases" in said[0]
    assert "after 60 rounds; without any protection it would be 40 %" in said[0]


def test_more_than_the_unprotected_run_says_that_the_weights_differ() -> None:
    plain = row("matched", 0.3, mechanism="none", budget=None, round=60)
    said = verdict(content(plain, *cell("matched", 0.5, 0.9, mechanism="pl-identical", round=60)))
    assert said[2] == (
        "More than the unprotected run at that round, whose weights differ: pl-identical @ 0.98 after 60 rounds "
        "(identified images 50 % against 30 %)."
    )
    assert "Worse" not in " ".join(said)


def test_the_first_sentence_names_the_largest_figure_where_it_leads_with_another() -> None:
    gaps = [*cell("matched", 0.74, 1.0, 0.42), *cell("matched", 0.81, 1.0, 0.62, seed=2)]
    first = verdict(content(*gaps))[0]
    assert (
        "in 74 % of cases (95 % interval 72 to 76; the clearest difference; the largest figure is 81 %, pl-learn @ "
        "0.98 (seed 2)) from the first release of pl-learn @ 0.98 (seed 1); "
    ) in first
    later = [*cell("matched", 0.7, 0.4, 0.3, round=60), *cell("matched", 0.99, 1.0, 0.9, budget=0.995)]
    said = verdict(content(*later))
    assert said[0].startswith("Worse than no protection: a server")
    assert "the largest figure is 99 %, pl-learn @ 0.995 at the first round)" in said[0]
    assert "the largest figure" not in " ".join(said[1:]), "once is enough"
    assert "the largest figure" not in " ".join(verdict(content(*cell("matched", 0.74, 1.0, 0.42))))


def test_a_later_round_without_clear_protection_is_said() -> None:
    weak = cell("matched", 0.59, 0.6, mechanism="pl-identical", round=100)
    said = verdict(content(*cell("matched", 0.3, 1.0, mechanism="pl-identical"), *weak))
    assert (
        "After 100 rounds pl-identical @ 0.98 shows no clear difference from no protection (59 against 60 %)." in said
    )
    both = verdict(content(*weak, *cell("matched", 0.7, 0.71, mechanism="pl-identical", budget=0.995, round=2000)))
    assert (
        "No clear difference from no protection: pl-identical @ 0.98 after 100 rounds (59 against 60 %), "
        "pl-identical @ 0.995 after 2,000 rounds (70 against 71 %)."
    ) in both
    for other in (
        cell("matched", 0.5, 0.6, mechanism="pl-identical", round=100),  # clear
        cell("matched", 0.59, 0.6, mechanism="pl-identical"),  # the first round
        cell("matched", 0.02, 0.02, mechanism="pl-identical", round=100, failed=True),  # no evidence
        cell("lti", 0.59, 0.6, mechanism="pl-identical", round=100),
    ):
        assert "from no protection" not in " ".join(verdict(content(*other)))


def test_one_cell_is_not_called_the_largest() -> None:
    both = [*cell("matched", 0.5, 0.9, mechanism="pl-identical"), *cell("labels", 0.5, 0.9, mechanism="pl-identical")]
    assert "largest" not in " ".join(verdict(content(*both)))
    more = [*both, *cell("labels", 0.4, 0.9, mechanism="pl-identical", round=60)]
    assert "Labels: 50 % inferred (the largest of 2 figures; 48 to 52)" in " ".join(verdict(content(*more)))


def test_where_intervals_overlap_there_is_no_clear_difference() -> None:
    said = " ".join(verdict(content(*cell("matched", 0.52, 0.53, 0.51))))
    assert "without any protection it would be 53 % (no clear difference)" in said
    assert "with static noise of the same budget 51 % (no clear difference)" in said
    assert "there is no clear difference between learned and static noise (1 comparison)" in said
    assert "Worse" not in said
    assert "instead of" not in said


def test_paired_differences_decide_where_they_are_there() -> None:
    rows = cell("matched", 0.52, 1.0, 0.51)
    assert "in 1 of 1 comparisons" in " ".join(verdict(content(*rows, differences=[gap("matched", 0.01, 0.005)])))
    far = cell("matched", 0.9, 1.0, 0.3)
    assert "there is no clear difference" in " ".join(
        verdict(content(*far, differences=[gap("matched", 0.6, 0.7)]))
    )  # fmt: skip


def test_too_few_releases_are_the_first_thing_said() -> None:
    few = {"targets": 8, "evidence": "insufficient evidence"}
    said = verdict(content(*cell("matched", 0.9, 1.0, 0.3, **few), options={"releases": 8}))
    assert said[0] == "Insufficient evidence: 8 releases, and a result takes 20. Read the rest as examples."
    assert "; attack more releases (--targets 20 or more); " in said[-1]


def test_a_failed_control_is_no_evidence_of_protection() -> None:
    said = verdict(content(*cell("lti", 0.01, 0.02, failed=True, round=2000, mechanism="pl-identical")))
    assert "The control of lti failed there, so a low figure is no evidence of protection." in said[0]
    assert "Low figures of lti after 2,000 rounds are no evidence: its control, without distortion, failed too." in said
    assert "without any protection" not in said[0], "2 % says as little as 1 %"


def test_where_the_control_failed_a_clear_difference_is_said_and_the_others_are_counted() -> None:
    clear = cell("lti", 0.9, 0.02, 0.3, failed=True)
    said = verdict(content(*clear, *cell("lti", 0.02, 0.02, 0.01, failed=True, round=60)))
    assert said[0].startswith("Worse than no protection: ")
    assert said[0].endswith("so a low figure is no evidence of protection; a clear difference stands.")
    assert said[1].endswith("in 1 of 1 comparisons by identified images; 1 more is no evidence.")
    unclear = verdict(content(*cell("matched", 0.5, 1.0, 0.5), *cell("lti", 0.02, 0.02, 0.01, failed=True)))
    assert any("static noise (1 comparison; 1 more is no evidence)." in line for line in unclear)


def test_guessing_is_not_called_safe() -> None:
    (first, *_) = verdict(content(*cell("matched", 0.01, 1.0, mechanism="pl-identical")))
    assert "That is not clearly more than guessing, and no proof of safety: a stronger attack may get more." in first


def test_pictures_no_better_than_a_guess_are_said_to_show_nothing() -> None:
    said = " ".join(verdict(content(*cell("lti", 0.3, 0.9, mse=0.7))))
    assert "No picture comes closer to its original than the class mean (MSE 0.7 against 0.66)" in said
    said = " ".join(verdict(content(*cell("lti", 0.3, 0.9, mse=0.5))))
    assert "The closest pictures have an MSE of 0.5 (lti on pl-learn @ 0.98 at the first round); the class mean" in said


def test_of_an_update_of_ones_own_it_says_this_update() -> None:
    about = {"dataset": None, "seed": None, "round": None, "mechanism": "none", "budget": None, "targets": 1}
    found = content(row("invgrad", None, **about, labels_granted=False, mse=0.5), targets="given", baselines={})
    assert verdict(found) == [
        "Nothing protects this update: a server that follows the protocol reconstructs the inputs (invgrad) with an "
        "MSE of 0.5 from this update."
    ]  # fmt: skip
    guess = {"attack": "labels", "guess": [[1, 2]], "role": "own", "control": None, **about}
    assert verdict(content(guess, targets="unknown")) == [
        "Nothing is scored: no truth was given to hold the results against.",
        "The attacker takes the labels to be [[1, 2]].",
    ]


def test_one_update_is_too_few_to_tell() -> None:
    """It has no interval, so it is clear of nothing: neither "0 % of cases" nor "no clear difference" says a thing."""
    alone = {"targets": 1, "round": None, "evidence": "insufficient evidence", "half": 0.0}
    none = {f"{name}_{end}": None for name in ("identification", "labels") for end in ("low", "high")}
    rows = [one | none for attack in ("matched", "labels") for one in cell(attack, 0.0, 1.0, 0.0, **alone)]
    said = verdict(content(*rows, targets="given"))
    assert said[0].startswith("Insufficient evidence: 1 update, and a result takes 20.")
    assert said[1] == "One update is too few to tell whether learned noise leaks more than static noise."
    assert "in 0 % of cases (one update: too few to tell) from this update under pl-learn @ 0.98" in said[2]
    assert said[2].endswith("; without any protection it would be 100 %, with static noise of the same budget 0 %.")
    assert said[3].startswith("Labels: 0 % inferred (one update: too few to tell)")
    assert "clear" not in " ".join(said)


def test_labels_are_held_against_an_even_guess() -> None:
    """Which may well be right in all of an even batch: no chance in the usual sense."""
    decoy = row("labels", 1.0, mechanism="pl-identical", control="negative")
    said = verdict(content(*cell("labels", 0.98, 1.0, mechanism="pl-identical"), decoy))
    assert "98 % of the labels (95 % interval 96 to 100; an even guess 100 %)" in said[0]


def test_labels_that_guessing_gets_as_well_tell_nothing() -> None:
    """Even batches: an even guess is always right, so the attack is, with distortion and without."""
    decoy = row("labels", 1.0, mechanism="pl-identical", control="negative")
    labels, seen = (
        cell("labels", 1.0, 1.0, mechanism="pl-identical"),
        cell("matched", 0.5, 1.0, mechanism="pl-identical"),
    )
    said = verdict(content(*seen, *labels, decoy))
    assert "Labels tell nothing here: an even guess gets 100 % of them." in said
    assert "inferred" not in " ".join(said)
    failed = cell("labels", 1.0, 1.0, mechanism="pl-identical", failed=True)
    assert "Low figures" not in " ".join(verdict(content(*seen, *failed, decoy))), "said once"
    uneven = row("labels", 0.5, mechanism="pl-identical", control="negative")
    hidden = verdict(content(*seen, *cell("labels", 0.5, 1.0, mechanism="pl-identical"), uneven))
    once = verdict(content(*cell("matched", 0.5, 1.0, mechanism="pl-identical", round=1)))
    assert "after 1 round;" in once[0]
    assert any(line.startswith("Labels: 50 % inferred") for line in hidden), "the distortion hides them: that is news"


def test_a_cell_whose_control_worked_is_cited_before_one_whose_control_failed() -> None:
    """The larger figure is not lost: it is said whose control failed."""
    early = cell("lti", 0.06, 0.58, mechanism="pl-identical")
    bare = row("lti", 0.58, mechanism="none", budget=None)
    late = cell("lti", 0.19, 0.18, mechanism="pl-identical", round=150, failed=True)
    said = verdict(content(bare, *early, *late))
    assert (
        "6.0 % of cases (95 % interval 4.0 to 8.0; the largest where the control worked; the largest figure is "
        in (said[0])
    )
    assert "19 %, pl-identical @ 0.98 after 150 rounds, whose control failed) from the first release" in said[0]
    assert said[0].endswith("; without any protection it would be 58 %.")
    ranking = next(line for line in said if "identified by the strongest" in line)
    assert ranking.endswith("at the first round none 58 %, pl-identical @ 0.98 6.0 %.")


def test_membership_is_not_told_by_a_handful_of_others() -> None:
    few = cell("membership", 0.55, 0.6, mechanism="pl-identical", non_members=5, half=0.4)
    said = verdict(content(*cell("matched", 0.5, 1.0, mechanism="pl-identical"), *few))
    assert "Membership cannot be told: 5 non-members in all, and a result takes 20." in said
    assert "AUC" not in " ".join(said)
    assert "Membership cannot be told: 5 non-members in all, and a result takes 20." in verdict(content(*few))


def test_the_clearest_difference_is_cited_where_the_control_worked() -> None:
    sound, wide = cell("lti", 0.6, 0.3, 0.3), cell("lti", 0.9, 0.02, 0.3, round=60, failed=True)
    said = verdict(content(*sound, *wide))
    assert said[0].startswith("Worse than no protection: a server that follows the protocol")
    assert "60 % of cases" in said[0]
    assert "the largest figure is 90 %, pl-learn @ 0.98 after 60 rounds, whose control failed" in said[0]


def test_several_datasets_and_seeds_are_told_apart() -> None:
    rows = [
        one for name in ("mnist", "fmnist") for seed in (1, 2)
        for one in cell("matched", 0.5 + 0.1 * seed, 1.0, 0.3, dataset=name, seed=seed)
    ]  # fmt: skip
    said = " ".join(verdict(content(*rows)))
    assert "pl-learn @ 0.98 (fmnist, seed 2) 70 %" in said
    assert "seed 1) " not in said, "the worse of two seeds stands for both"


@pytest.mark.parametrize("found", [study(), only("none", None), content(*cell("matched", 0.01, 1.0))])
def test_no_epsilon_and_no_claim_of_safety(found: dict[str, Any]) -> None:
    said = " ".join(verdict(found))
    assert "epsilon" not in said
    assert not re.search(r"\b(is|are) (safe|private|protected)\b", said)


def test_what_many_rounds_tell_is_said_first() -> None:
    rows = cell("matched", 0.05, 1.0, mechanism="pl-identical")
    assert verdict(content(*rows, multi_round=[combined(0.9, unknown=0.6)]))[0] == (
        "Over 5,000 rounds of pl-learn @ 0.98, a server that combines releases picks the right image out of 25 in 90 % "
        "(85 to 95 %) of cases if it is granted which releases hold the image and in 60 % (55 to 65 %) of cases if it "
        "is not; from one release in 10 % (5.0 to 15 %)."
    )
    only = verdict(content(multi_round=[combined(0.01, unknown=0.6)]))
    assert "out of 25 in 60 % (55 to 65 %) of cases; from" in only[0]


def test_many_rounds_alone_are_a_verdict_whatever_they_tell() -> None:
    (quiet,) = verdict(content(multi_round=[combined(0.01)]))
    assert quiet.endswith(
        "That is not clearly more than guessing, and no proof of safety: a stronger attack may get more."
    )
    (failed,) = verdict(content(multi_round=[combined(0.01, failed=True, evidence="insufficient evidence")]))
    assert "(insufficient evidence). The control failed, so a low figure is no evidence of protection." in failed


def test_a_control_that_failed_under_one_schedule_is_said_of_that_one() -> None:
    failed = {"control_failed_schedule_unknown": True}
    (quiet,) = verdict(content(multi_round=[combined(0.01, **failed)]))
    assert quiet.endswith(
        "The control failed where the schedule is unknown, so a low figure is no evidence of protection."
    )
    (clear,) = verdict(content(multi_round=[combined(0.9, unknown=0.6, **failed)]))
    assert "in 60 % (55 to 65 %): the control failed where the schedule is unknown, which voids low figures" in clear
    (other,) = verdict(content(multi_round=[combined(0.9, unknown=0.01, **failed)]))
    assert "control" not in other, "what is told stands by itself"


def test_a_clear_rate_of_many_rounds_is_said_beside_its_failed_control() -> None:
    bare = {
        f"identification_schedule_unknown_undistorted{end}": value
        for end, value in (("", 0.05), ("_low", 0.01), ("_high", 0.12))
    }
    (said,) = verdict(content(multi_round=[combined(0.05, unknown=0.77, failed=True, **bare)]))
    assert said.endswith(
        "picks the right image out of 25 in 77 % (72 to 82 %) of cases; from one release in 10 % (5.0 to 15 %). "
        "Without distortion it does so in 5.0 % (1.0 to 12 %): the control failed, which voids low figures and no "
        "rate that is clearly above guessing."
    )


def test_scores_that_are_not_finite_are_no_evidence_of_protection() -> None:
    said = verdict(content(*cell("matched", 0.0, 1.0, mechanism="pl-identical", not_finite=7)))
    assert "Some of its scores were not finite, so a low figure is no evidence of protection." in said[0]
    assert "Low figures of matched at the first round are no evidence: 7 scores were not finite." in said


def test_the_client_that_was_attacked_is_named() -> None:
    said = verdict(content(*cell("matched", 0.5, 1.0, mechanism="pl-identical", budget=[0.9, 0.98], client=1)))
    assert "pl-identical @ per client 0.9, 0.98 (client 1)" in said[0]


def test_guesses_that_were_checked_are_said_to_be_no_search() -> None:
    rates = {"verified": 0.99, "verified_low": 0.98, "verified_high": 1.0, "accepted": 1.0, "accepted_wrongly": 0.0012}
    one = {**row("verify", mechanism="pl-identical"), **rates}
    assert verdict(content(one)) == [
        "Granted the other images of the batch, a server verifies guesses at the last one from the first release of "
        "pl-identical @ 0.98: by the norm of its noise it picks the right one out of 200 in 99 % of cases (95 % "
        "interval 98 to 100; chance 1 in 200), and accepts 100 % of right guesses and 0.12 % of wrong ones. It checks "
        "guesses, and searches for none."
    ]
    bare = verdict(content({**one, "mechanism": "none", "budget": None}))
    assert "from the first release: by recomputing the update it picks" in bare[0]
    low = verdict(content({**one, "verified": 0.006, "verified_low": 0.0}))
    assert low[0].endswith("searches for none. That is not clearly more than guessing.")
