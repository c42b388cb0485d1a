"""A guarantee in numbers and in words: what JSON has, and sentences that never promise more than is proved."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise
from equipoise.errors import BudgetError, ConfigError
from equipoise.privacy.gaussian import epsilon_of, noise_multiplier
from equipoise.privacy.guarantee import Guarantee, guarantee, percent_up, share_up
from equipoise.privacy.limits import advantage, limit


def test_the_document_is_exactly_this() -> None:
    found = equipoise.guarantee(
        epsilon=2.0, delta=1e-5, rounds=50, sampling_rate=1.0, candidates=200, unit="record"
    ).plain()
    assert found == {
        "epsilon": 2.0, "delta": 1e-5, "relation": "add/remove", "unit": "record", "sampling_rate": 1.0,
        "sigma": 14.09839, "rounds": 50,
        "identification": {
            "candidates": 200,
            "run": limit(1 / 200, 14.09839, 50),
            "release": limit(1 / 200, 14.09839, 50, scope="release"),
            "release_known": limit(1 / 200, 14.09839, 50, scope="release_known"),
        },
        "membership_tpr": {rate: limit(float(rate), 14.09839, 50) for rate in ("0.001", "0.01", "0.1")},
        "advantage": advantage(14.09839, 50),
    }  # fmt: skip
    assert json.loads(json.dumps(found)) == found
    assert [type(found[key]) for key in ("epsilon", "sigma", "rounds")] == [float, float, int]


def test_poisson_sampling_and_a_schedule() -> None:
    schedule = ((1.0, 50), (0.8, 50))
    found = guarantee(epsilon=4, rounds=100, sampling_rate=0.25, candidates=10, unit="group", schedule=schedule)
    sigma = noise_multiplier(4.0, 1e-5, 100, 0.25, schedule)
    assert (found.sigma, found.unit, found.sampling_rate) == (sigma, "group", 0.25)
    one = found.identification
    assert one.run == limit(0.1, sigma, 100, 0.25, "run", schedule)
    assert one.release == limit(0.1, sigma, 100, 0.25, "release", schedule)
    assert one.release_known == limit(0.1, sigma, 100, 0.25, "release_known", schedule)
    assert 0.1 < one.release < one.release_known < one.run
    assert found.advantage == advantage(sigma, 100, 0.25, schedule)


def test_the_noise_may_be_given_instead() -> None:
    found = guarantee(sigma=4, rounds=50, delta=1e-6)
    assert found.epsilon == epsilon_of(4.0, 1e-6, 50)
    assert found.sigma == 4.0
    assert "That is epsilon 9.482192 at delta 1e-06" in found.sentences()[-1]
    assert 9.482191 < found.epsilon <= 9.482192, "rounded up"


def test_it_cannot_be_changed() -> None:
    found = guarantee(epsilon=2.0, rounds=50)
    with pytest.raises(FrozenInstanceError):
        found.epsilon = 1.0  # type: ignore[misc]
    assert isinstance(found, Guarantee)


@pytest.mark.parametrize(
    ("wrong", "kind", "told"),
    [({"epsilon": 0.0}, BudgetError, "epsilon="), ({"epsilon": None}, ConfigError, "epsilon or sigma"),
     ({"sigma": 3.0}, ConfigError, "not both"), ({"unit": "person"}, ConfigError, "unit='person'"),
     ({"candidates": 1}, ConfigError, "candidates=1"), ({"rounds": 0}, ConfigError, "rounds=0"),
     ({"delta": 1.0}, BudgetError, "delta="), ({"sampling_rate": 1.5}, ConfigError, "sampling_rate=")],
)  # fmt: skip
def test_what_is_refused(wrong: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        guarantee(**{"epsilon": 2.0, "rounds": 50, **wrong})


# --- in words ----------------------------------------------------------------------------------------------


def test_the_sentences_of_a_run_of_full_batches() -> None:
    assert guarantee(epsilon=2.0, rounds=50).sentences() == [
        "An attacker who knows all other records and sees every one of the 50 releases picks the right one of 200 "
        "equally likely candidates with a probability of at most 1.91 %. Without any release it is 0.5 %.",
        "One release alone gives the attacker at most 0.613 %.",
        "Asked whether the record was in the data at all, and allowed false alarms in 1 % of the cases where it was "
        "not, it notices the record in at most 3.41 % of those where it was. However many false alarms it is allowed, "
        "hits exceed them by at most 19.9 %.",
        "That is epsilon 2 at delta 1e-05 for the whole run, relation add/remove, unit record: adding or removing one "
        "record makes no outcome more than 7.39 times as likely, up to a probability of 1 in 100,000.",
    ]


def test_the_sentences_of_groups_and_poisson_sampling() -> None:
    said = guarantee(sigma=1.2, rounds=100, sampling_rate=0.25, unit="group", delta=0.05).sentences()
    assert said[0].startswith("An attacker who knows all records of the other groups")
    assert said[1].endswith("if told that the group was drawn for it.")
    assert "adding or removing all records of one group" in said[3]
    assert said[3].endswith("up to a probability of 0.05.")


@given(st.floats(1e-9, 1.0))
def test_a_printed_limit_is_a_limit(share: float) -> None:
    text = percent_up(share)
    assert re.fullmatch(r"[\d.e-]+ %", text)
    shown = float(text.removesuffix(" %")) / 100
    assert share * (1 - 1e-9) <= shown <= min(1.0, share * 1.0101)
    assert percent_up(0.0) == "0 %"


@given(st.floats(0.0, 1.0))
def test_a_limit_to_three_digits_is_the_printed_one(share: float) -> None:
    """Also of those that have fewer digits as floats: they end at 1e-300."""
    up = share_up(share)
    assert share * (1 - 1e-9) <= up <= max(min(1.0, share * 1.0101), 2 * share if share < 1e-297 else 0, 1e-300)
    assert (up == 0) is (share == 0)
    assert float(f"{up:.3g}") == up
    assert float(percent_up(share).removesuffix(" %")) == pytest.approx(100 * up, rel=1e-12, abs=0)


@pytest.mark.parametrize(("share", "told"), [(5e-324, "1e-298 %"), (1e-300, "1e-298 %"), (2.5e-9, "2.5e-07 %")])
def test_the_least_limits_are_printed(share: float, told: str) -> None:
    assert percent_up(share) == told


def test_a_printed_factor_is_rounded_up() -> None:
    for epsilon in (0.1, 0.5, 1.0, 3.3):
        told = guarantee(epsilon=epsilon, rounds=5).sentences()[-1]
        (factor,) = re.findall(r"no outcome more than ([\d.,]+) times", told)
        assert math.exp(epsilon) <= float(factor.replace(",", "")) < math.exp(epsilon) + 0.0101
    assert "e^20 times" in guarantee(epsilon=20.0, rounds=5).sentences()[-1]


def test_the_page_has_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantee.md").read_text(encoding="utf-8")
    two, eight = (guarantee(epsilon=epsilon, rounds=50) for epsilon in (2.0, 8.0))
    release, run = percent_up(two.identification.release), percent_up(two.identification.run)
    assert f"| picks the right one of 200 | 0.5 % | {release} | {run} |" in page
    hits = f"{percent_up(limit(0.01, two.sigma, 50, scope='release'))} | {percent_up(two.membership_tpr['0.01'])}"
    assert f"| true positives at 1 % false ones | 1 % | {hits} |" in page
    gaps = f"{percent_up(advantage(two.sigma, 1))} | {percent_up(two.advantage)}"
    assert f"| true minus false positives (advantage) | 0 % | {gaps} |" in page
    assert f"sigma = {two.sigma}, mu = sqrt(50) / {two.sigma} = {math.sqrt(50) / two.sigma:.4f}" in page
    hits = percent_up(eight.membership_tpr["0.01"])
    assert f"{percent_up(eight.identification.run)} of 200 candidates, {hits} true positives" in page
    assert f"advantage {percent_up(eight.advantage)}" in page
    assert f"is {percent_up(limit(0.01, eight.sigma / 2, 50))}, not {hits}" in page, "replace: twice the distance"
