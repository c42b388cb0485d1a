"""What an attack is handed: the part of the attacker's knowledge that it says it needs, and nothing beyond it."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import pytest
import torch

from equipoise.attack.attack import DATA, NEEDS, Attack, Hooks, Knowledge, held
from equipoise.attack.results import Inversion
from equipoise.attack.view import View
from equipoise.errors import ConfigError

KNOWLEDGE = Knowledge(
    public=(torch.rand(6, 2), torch.arange(6)),
    candidates=torch.rand(5, 2),
    candidate_labels=torch.arange(5),
    choices=torch.zeros(3, 1, 4, dtype=torch.int64),
    asked=torch.zeros(3, 2, dtype=torch.int64),
    companions=torch.zeros(3, 1, dtype=torch.int64),
)
POOL = {"candidates", "candidate_labels"}
"""What holds the truth among other things."""
SOME = [frozenset(some) for size in range(len(NEEDS)) for some in combinations(NEEDS, size)]
TWO_LISTS = {"candidates", "asked"}


def refused(needs: frozenset[str]) -> bool:
    """Both lists tell the members, and companions are rows of the candidates."""
    return needs >= TWO_LISTS or ("companions" in needs and "candidates" not in needs)


def attack(needs: frozenset[str] = frozenset()) -> Attack:
    return Attack("some", lambda *given: Inversion(torch.zeros(1, 1, 2), torch.zeros(1)), needs)


@pytest.mark.parametrize(
    "needs", [some for some in SOME if not refused(some)], ids=lambda needs: "+".join(sorted(needs)) or "nothing"
)
def test_an_attack_is_granted_what_it_needs_and_nothing_else(needs: frozenset[str]) -> None:
    granted = attack(needs).granted(KNOWLEDGE)
    lists = {"choices"} if "candidates" in needs else {"asked"} if "asked" in needs else set()
    expected = ({"public", "companions"} & needs) | lists | (POOL if lists else set())
    every = {"public", "choices", "asked", "companions", *POOL}
    assert {part.name for part in fields(Knowledge)} == every, "a new part must be granted on purpose"
    for part in fields(Knowledge):
        value = getattr(granted, part.name)
        assert value is (getattr(KNOWLEDGE, part.name) if part.name in expected else None), part.name


@pytest.mark.parametrize("needs", SOME, ids=lambda needs: "+".join(sorted(needs)) or "nothing")
def test_nobody_is_handed_both_lists_and_labels_go_to_those_who_ask(needs: frozenset[str]) -> None:
    """An image that may be the example and is asked about was in the release: no release is needed to see that."""
    if needs >= TWO_LISTS:
        with pytest.raises(ConfigError, match="together tell the members"):
            attack(needs)
        return
    if refused(needs):
        with pytest.raises(ConfigError, match="needs companions, which are rows of the candidates"):
            attack(needs)
        return
    view = View(torch.zeros(3, 7), torch.ones(3, 7), torch.zeros(3, 1, dtype=torch.int64))
    assert (attack(needs).seen(view).labels is not None) == bool(needs & {"labels", "inferred labels"})


def test_a_need_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'some' needs 'label'\. Known needs: labels, inferred labels, public"):
        attack(frozenset({"label"}))


def test_copies_share_no_memory() -> None:
    copy = KNOWLEDGE.copy()
    assert copy.public is not None
    assert KNOWLEDGE.public is not None
    for one, other in ((copy.asked, KNOWLEDGE.asked), (copy.candidates, KNOWLEDGE.candidates), *zip(
        copy.public, KNOWLEDGE.public, strict=True
    )):  # fmt: skip
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
    assert Knowledge().copy() == Knowledge()


def test_what_the_data_must_be_is_one_of_few_words() -> None:
    assert replace(attack(), data=frozenset(DATA)).data == {"numbers", "classes", "counts"}
    with pytest.raises(ConfigError, match="needs 'pixels'") as caught:
        replace(attack(), data=frozenset({"pixels"}))
    assert caught.value.remedy == "Known needs: numbers, classes, counts."


def test_an_attack_needs_nothing_unless_it_says_so() -> None:
    assert attack().data == frozenset()
    assert attack().needs == frozenset()
    assert attack().options == {}


def test_who_holds_nothing_is_granted_nothing() -> None:
    assert attack(frozenset({"public", "candidates"})).granted(Knowledge()) == Knowledge()


def test_what_needs_have_promised_is_there() -> None:
    assert held(KNOWLEDGE, "candidates") is KNOWLEDGE.candidates
    with pytest.raises(AssertionError, match="public"):
        held(Knowledge(), "public")


@pytest.mark.parametrize("value", [attack(), Knowledge(), Hooks()], ids=lambda value: type(value).__name__)
def test_none_of_it_can_be_changed_by_an_attack(value: Any) -> None:
    with pytest.raises(AttributeError):
        setattr(value, fields(value)[0].name, None)
