"""Attacks by name: what each is granted, one meaning for each option, and attacks of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from equipoise.attack.attack import Attack, Option
from equipoise.attack.invgrad import INVGRAD
from equipoise.attack.registry import ATTACKS, find, known_attacks, options, register_attack
from equipoise.errors import ConfigError

GRANTED = {
    "invgrad": {"inferred labels"},
    "dlg": set(),
    "idlg": set(),
    "likelihood": {"inferred labels"},
    "unrolled": {"inferred labels"},
    "lti": {"public", "inferred labels"},
    "matched": {"public", "candidates", "labels"},
    "membership": {"public", "asked", "inferred labels"},
    "labels": {"public", "truth"},
    "verify": {"candidates", "companions"},
}
"""As docs/threat_model.md has it: who changes this changes the threat model."""


ASKED_OF_THE_DATA = {
    **dict.fromkeys(("invgrad", "likelihood", "unrolled"), frozenset({"numbers"})),
    **dict.fromkeys(("dlg", "idlg", "lti"), frozenset({"numbers", "classes"})),
    "labels": {"counts"},
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Whatever a test registers is gone after it."""
    before = dict(ATTACKS)
    yield
    ATTACKS.clear()
    ATTACKS.update(before)


def own(name: str = "mine", **options: Option) -> Attack:
    return Attack(name, INVGRAD.run, options=options)


def test_every_attack_is_granted_what_the_threat_model_says() -> None:
    assert {name: set(attack.needs) for name, attack in ATTACKS.items()} == GRANTED


def test_only_attacks_that_reconstruct_or_count_ask_anything_of_the_data() -> None:
    assert {name: set(attack.data) for name, attack in ATTACKS.items() if attack.data} == ASKED_OF_THE_DATA


def test_an_attack_is_found_by_its_own_name() -> None:
    for name, attack in ATTACKS.items():
        assert find(name) is attack
        assert attack.name == name


@pytest.mark.parametrize("name", ["machted", "", None, 3, ["lti"]])
def test_an_unknown_attack_is_refused_with_those_that_are_known(name: Any) -> None:
    with pytest.raises(ConfigError, match="Unknown attack") as caught:
        find(name)
    assert caught.value.remedy == f"Known: {', '.join(GRANTED)}, multi-round."
    assert ("Did you mean 'matched'?" in caught.value.cause) == (name == "machted")


def test_the_attack_on_a_whole_run_is_known_and_is_none_on_single_releases() -> None:
    assert known_attacks() == [*GRANTED, "multi-round"]
    with pytest.raises(ConfigError, match=r"Did you mean 'multi-round'\?"):
        find("multiround")
    with pytest.raises(ConfigError, match=r"a whole run, not single ones\. Use audit_run\(folder, multi_rounds=300\)"):
        find("multi-round")
    with pytest.raises(ConfigError, match="'multi-round' exists"):
        register_attack(own("multi-round"))


def test_an_attack_of_ones_own_is_registered_once() -> None:
    mine = own(strength=Option(3, least=1))
    assert register_attack(mine) is mine
    assert find("mine") is mine
    assert options()["strength"] == Option(3, least=1)
    with pytest.raises(ConfigError, match="'mine' exists"):
        register_attack(own())
    with pytest.raises(ConfigError, match="'invgrad' exists"):
        register_attack(own("invgrad"))


@pytest.mark.parametrize(
    "other", [Option(400, least=10), Option(500), Option(500, least=10, choices=("a",)), Option("500")]
)
def test_two_attacks_may_not_give_one_option_two_meanings(other: Option) -> None:
    """An audit has one value for each name: whoever set it would set it for both."""
    with pytest.raises(ConfigError, match="'samples' of 'mine' means something else") as caught:
        register_attack(own(samples=other))
    assert caught.value.remedy == "Choose another name."
    assert "mine" not in ATTACKS
    register_attack(own(samples=Option(500, least=10)))  # that of lti and labels


def test_two_attacks_of_ones_own_may_not_either() -> None:
    register_attack(own("one", strength=Option(3)))
    with pytest.raises(ConfigError, match="'strength' of 'two'"):
        register_attack(own("two", strength=Option(4)))


def test_all_attacks_agree_on_the_options_that_they_share() -> None:
    for attack in ATTACKS.values():
        for name, option in attack.options.items():
            assert options()[name] == option
