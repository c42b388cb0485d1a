"""What an attack is handed: the part of the attacker's knowledge that it says it needs, and nothing beyond it."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations
from typing import Any

import pytest
import torch

from equipoise.attack.attack import Attack, Hooks, Knowledge, held
from equipoise.attack.results import Inversion

KNOWLEDGE = Knowledge(
    public=(torch.rand(6, 2), torch.arange(6)),
    candidates=torch.rand(5, 2),
    candidate_labels=torch.arange(5),
    choices=torch.zeros(3, 1, 4, dtype=torch.int64),
    asked=torch.zeros(3, 2, dtype=torch.int64),
)
TRUTH = {"candidates", "candidate_labels", "choices", "asked"}
"""What holds the truth among other things, or says where it is."""
NEEDS = [
    frozenset(some) for size in range(5) for some in combinations(("labels", "public", "candidates", "truth"), size)
]


def attack(needs: frozenset[str] = frozenset()) -> Attack:
    return Attack("some", lambda *given: Inversion(torch.zeros(1, 1, 2), torch.zeros(1)), needs)


@pytest.mark.parametrize("needs", NEEDS, ids=lambda needs: "+".join(sorted(needs)) or "nothing")
def test_an_attack_is_granted_what_it_needs_and_nothing_else(needs: frozenset[str]) -> None:
    granted = attack(needs).granted(KNOWLEDGE)
    expected = ({"public"} if "public" in needs else set()) | (TRUTH if "candidates" in needs else set())
    assert {part.name for part in fields(Knowledge)} == {"public", *TRUTH}, "a new part must be granted on purpose"
    for part in fields(Knowledge):
        value = getattr(granted, part.name)
        assert value is (getattr(KNOWLEDGE, part.name) if part.name in expected else None), part.name


def test_an_attack_needs_nothing_unless_it_says_so() -> None:
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
