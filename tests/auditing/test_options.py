"""How hard to attack: options by name, those of the audit and those of single attacks, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from equipoise.attack.attack import Attack, Option
from equipoise.attack.invgrad import INVGRAD
from equipoise.attack.registry import ATTACKS, find
from equipoise.attack.registry import options as attack_options
from equipoise.auditing.options import OWN, QUICK, USUAL, AuditOptions
from equipoise.auditing.results import ENOUGH
from equipoise.errors import ConfigError


def test_what_is_not_set_is_as_the_attacks_have_it() -> None:
    options = AuditOptions()
    assert options.attacks == list(USUAL)
    for attack in ATTACKS.values():
        for name, option in attack.options.items():
            assert options.settings[name] == option.default
    for name, option in OWN.items():
        assert getattr(options, name) == option.default
    options.check()


def test_options_go_where_they_belong() -> None:
    options = AuditOptions(attacks=["lti"], releases=5, samples=20, tv=0.5)
    assert (options.attacks, options.releases) == (["lti"], 5)
    assert (options.settings["samples"], options.settings["tv"]) == (20, 0.5)
    assert "releases" not in options.settings


def test_options_are_the_same_again_from_their_plain_form() -> None:
    options = AuditOptions(attacks=["labels"], releases=5, seed=3, samples=20, condition_on="best")
    again = AuditOptions(**json.loads(json.dumps(options.plain())))
    assert again == options
    assert again != AuditOptions(**{**options.plain(), "samples": 30})


def test_a_change_leaves_the_rest_as_it_was() -> None:
    options = AuditOptions(releases=5, samples=20, around=7)
    assert replace(options, releases=9).plain() == {**options.plain(), "releases": 9}
    assert replace(options, samples=30).plain() == {**options.plain(), "samples": 30}
    assert replace(options, attacks=["lti"]).plain() == {**options.plain(), "attacks": ["lti"]}
    replace(options, releases=9).check()


def test_the_usual_attacks_are_taken_where_none_are_named() -> None:
    assert AuditOptions().attacks == AuditOptions(attacks=None).attacks == list(USUAL)
    assert AuditOptions() == AuditOptions(attacks=list(USUAL))


def test_quick_asks_for_less_of_what_there_is_and_still_for_enough_releases() -> None:
    usual, quick = AuditOptions(), AuditOptions(**QUICK)
    quick.check()
    assert all(quick.plain()[name] <= usual.plain()[name] for name in QUICK)
    assert quick.releases >= ENOUGH


def test_of_the_usual_attacks_those_that_cannot_run_are_left_out() -> None:
    """Where none of them can, the one that needs nothing takes their place."""
    limited, why = AuditOptions(samples=20).possible({"public": "public inputs", "labels": "labels"})
    assert (limited.attacks, limited.settings["samples"]) == (["invgrad"], 20)
    assert why == dict.fromkeys(["matched", "lti", "membership", "labels"], "needs public inputs")
    again, why = limited.possible({"candidates": "candidates"})
    assert (again.attacks, why) == (["invgrad"], {}), "which needs nothing, and is taken where nothing else can run"
    assert AuditOptions(attacks=[]).possible({"public": "p"})[0].attacks == [], "unless nothing was asked for"
    lacking = {"candidates": "more", "asked": "others"}
    assert AuditOptions().possible(lacking)[1] == {"matched": "needs more", "membership": "needs others"}


def test_attacks_that_are_asked_for_by_name_must_be_able_to_run() -> None:
    options = AuditOptions(attacks=["invgrad", "lti", "labels"])
    assert options.possible({"candidates": "candidates"}) == (options, {})
    with pytest.raises(ConfigError, match=r"lti needs p; labels needs p\. Give it, or leave the attack out\."):
        options.possible({"public": "p", "truth": "t"})
    with pytest.raises(ConfigError, match="lti needs p"):
        options.possible({"candidates": "candidates"})[0].possible({"public": "p"})


def test_options_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        AuditOptions().releases = 3  # type: ignore[misc]


def test_an_unknown_attack_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"Unknown attack 'machted'\. Did you mean 'matched'\?"):
        AuditOptions(attacks=["lti", "machted"]).check()
    AuditOptions(attacks=list(ATTACKS)).check()


@pytest.mark.parametrize("attacks", ["lti", 7, {"lti": 1}])
def test_attacks_are_a_list(attacks: Any) -> None:
    with pytest.raises(ConfigError, match="to be a list"):
        AuditOptions(attacks=attacks).check()


def test_all_that_is_too_small_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"releases=1 \(at least 2\), samples=9 \(at least 10\)"):
        AuditOptions(releases=1, samples=9).check()


@pytest.mark.parametrize(
    ("name", "least"), [(name, o.least) for name, o in {**OWN, **attack_options()}.items() if o.least is not None]
)
def test_the_least_is_allowed_and_less_is_not(name: str, least: float) -> None:
    kind = type({**OWN, **attack_options()}[name].default)
    AuditOptions(**{name: kind(least)}).check()
    less = kind(least - 1)
    with pytest.raises(ConfigError, match=rf"{name}={less!r} \(at least {least:g}\)"):
        AuditOptions(**{name: less}).check()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["lr", "tv"])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        AuditOptions(**{name: value}).check()


@pytest.mark.parametrize("given", [{"lr": 0.0}, {"lr": -1}, {"tv": -1e-9}])
def test_a_search_that_cannot_work_is_refused_before_it_begins(given: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="Too small"):
        AuditOptions(attacks=["invgrad"], **given).check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampels": 30}, "Unknown attack option 'sampels'. Did you mean 'samples'?"),
        ({"settings": 3}, "Unknown attack option 'settings'"),
        ({"condition_on": "everything"}, "Expected condition_on='everything' to be one of nothing, release, best."),
        ({"samples": "20"}, "Expected samples='20' to be of type int."),
        ({"samples": 2.5}, "to be of type int"),
        ({"samples": True}, "to be of type int"),
        ({"releases": 2.5}, "Expected releases=2.5 to be of type int."),
        ({"signed": 1}, "Expected signed=1 to be of type bool."),
        ({"twins": "yes"}, "Expected twins='yes' to be of type bool."),
        ({"tv": "0"}, "Expected tv='0' to be of type float."),
        ({"tv": False}, "to be of type float"),
        ({"seed": -1}, "Too small: seed=-1 (at least 0)."),
        ({"samples": 10**30}, "Expected samples to be below 2^63."),
    ],
    ids=str,
)
def test_what_no_attack_can_work_with_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AuditOptions(**change).check()
    assert words in caught.value.cause
    assert caught.value.remedy


def test_a_whole_number_is_a_number() -> None:
    AuditOptions(tv=0, lr=2).check()


@pytest.mark.parametrize("name", OWN)
def test_an_attack_may_not_have_an_option_of_the_audits_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever set it would set that of the audit, and the attack would never hear of it."""
    monkeypatch.setitem(ATTACKS, "mine", Attack("mine", INVGRAD.run, options={name: Option(5)}))
    assert find("mine").options
    with pytest.raises(ConfigError, match=f"An attack's option '{name}' is one of every audit"):
        AuditOptions(attacks=["mine"]).check()


def test_what_the_data_are_not_is_named_before_what_could_be_given() -> None:
    lacking = {"public": "public inputs", "numbers": "inputs that are numbers"}
    able, why = AuditOptions().possible({"numbers": lacking["numbers"]})
    assert able.attacks == ["matched", "membership", "labels"]
    assert why == {"lti": "needs inputs that are numbers"}
    with pytest.raises(ConfigError, match="No attack can run: matched needs public inputs; lti needs inputs that") as e:
        AuditOptions().possible(lacking)
    assert e.value.remedy == "Give what one of them needs."
    for attacks, remedy in (
        (["lti"], "Leave the attack out."),
        (["lti", "labels"], "Give it, or leave the attack out."),
    ):
        with pytest.raises(ConfigError, match="lti needs inputs that are numbers") as caught:
            AuditOptions(attacks=attacks).possible(lacking)
        assert caught.value.remedy == remedy
