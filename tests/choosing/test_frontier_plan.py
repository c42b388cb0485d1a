"""The plan of the frontier: every SPEC can be computed as it is, and asks for what the rules say."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from equipoise.attack.registry import ATTACKS
from equipoise.auditing.options import AuditOptions, attacked_rounds, kept_values
from equipoise.choosing import frontier_plan
from equipoise.choosing.frontier_plan import (
    AGAIN,
    CANDIDATES,
    DATASETS,
    KEPT,
    PL,
    PUBLIC_RATES,
    RECOMMENDED,
    STAGES,
    parts,
    quick,
    rounds_of,
)
from equipoise.choosing.public_alone import _check as check_public
from equipoise.compute import CHOICES, MULTI_ROUND, _attacked
from equipoise.data.loading import load
from equipoise.engine.settings import Settings, from_dict
from equipoise.mechanism.registry import get_mechanism

KINDS = ("audit", "multi_round", "public")


PARTS: dict[str, dict[str, Any]] = parts()
PLAN: dict[str, dict[str, Any]] = json.loads(json.dumps(PARTS))
"""As a file holds it."""
NAMES = list(PLAN)
STAGED, OVER_RUN, ALONE = ([name for name, part in PLAN.items() if kind in part] for kind in KINDS)


def mechanisms(part: dict[str, Any]) -> set[str]:
    return {federation["mechanism"] for federation in part["federations"]}


def whole_run(part: dict[str, Any]) -> bool:
    return any(get_mechanism(name).whole_run for name in mechanisms(part))


def checked(part: dict[str, Any]) -> tuple[Settings, list[Any]]:
    """Whatever compute refuses before it starts."""
    part = dict(part)
    (kind,) = [name for name in KINDS if name in part]
    raw = part.pop(kind)
    settings, federations = from_dict(part)
    assert settings.run.release_limit is None
    if kind == "audit":
        chosen = {name: raw[name] for name in CHOICES if name in raw}
        AuditOptions(**{name: raw[name] for name in raw if name not in (*CHOICES, "snapshots")}).check()
        _attacked(federations, chosen.get("seeds"))
        kept_values(chosen.get("keep"))
        attacked_rounds(raw["snapshots"], settings.training.rounds)
    elif kind == "multi_round":
        assert set(raw) <= set(MULTI_ROUND)
        AuditOptions(**{name: raw[name] for name in ("games", "among", "seed") if name in raw}).check()
        assert raw.get("rounds", 1) <= settings.training.rounds
    else:
        check_public(settings, federations, raw)
        assert max(raw) <= len(load(federations[0].dataset).public_attack)
    return settings, federations


# --- every SPEC can be computed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_is_accepted_as_it_is_and_in_its_quick_form(name: str) -> None:
    settings, federations = checked(PLAN[name])
    assert settings.run.device == "cuda"
    assert len({federation.dataset for federation in federations}) == 1
    short, same = checked(json.loads(json.dumps(quick(PARTS[name]))))
    assert short.run.device == "cpu"
    assert short.training.rounds == min(8, settings.training.rounds)
    assert same == federations


def test_names_are_folders_each_its_own() -> None:
    assert len(NAMES) == len({name.lower() for name in NAMES})
    for name in NAMES:
        assert re.fullmatch(r"f?mnist-[a-z0-9.-]+", name)
        assert Path(name).name == name
        assert PLAN[name]["federations"][0]["dataset"] == name.partition("-")[0]


def test_no_two_parts_are_alike() -> None:
    assert len({json.dumps(part, sort_keys=True) for part in PLAN.values()}) == len(NAMES)


def test_what_needs_accounting_is_in_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for compute may lack what finds a noise multiplier; the numbers travel with the SPEC."""
    few = [part for part in PLAN.values() if whole_run(part)]
    assert len(few) == 2 * (6 + 3 + 2 * (2 + 3)), "stages and runs, as they are and in two other conditions"

    def unavailable(*arguments: Any) -> float:
        raise AssertionError("noise was computed")

    monkeypatch.setattr("equipoise.mechanism.run_budget.noise_multiplier", unavailable)
    for part in few:
        settings, federations = from_dict({name: part[name] for name in ("settings", "federations")})
        gaussian = settings.protection.gaussian
        assert gaussian.rounds == settings.training.rounds
        assert [epsilon for epsilon, _ in gaussian.sigmas] == sorted({one.budget for one in federations})
        for epsilon, sigma in gaussian.sigmas:
            assert gaussian.epsilon(sigma) == pytest.approx(epsilon, rel=1e-3)
            assert gaussian.epsilon(sigma) <= epsilon * (1 + 1e-9)
            assert gaussian.sigma(epsilon) == sigma


def test_the_accounting_is_there_for_a_check_that_means_something() -> None:
    assert find_spec("dp_accounting") is not None, "without it a sigma of a sample is taken as it is"


# --- what the rules say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STAGED)
def test_stages_are_shares_of_the_rounds(name: str) -> None:
    part = PLAN[name]
    rounds, snapshots = part["settings"]["rounds"], part["audit"]["snapshots"]
    last = rounds - 1 if whole_run(part) else rounds  # there is no release after the last round of a budget
    assert snapshots == [0, rounds // 25, rounds * 2 // 5, last]
    assert STAGES == (0, 4, 40, 100)


def test_a_run_so_short_that_stages_coincide_is_seen() -> None:
    assert rounds_of(Settings.flat(rounds=50), False) == [0, 2, 20, 50]
    assert rounds_of(Settings.flat(rounds=50), True) == [0, 2, 20, 49]


@pytest.mark.parametrize("name", STAGED)
def test_all_seeds_are_trained_and_few_are_attacked(name: str) -> None:
    part, again = PLAN[name], bool(re.search("clients-32|dirichlet", name))
    seeds = (1, 2, 3) if again else (1, 2, 3, 4, 5)
    trained: dict[Any, list[int]] = {}
    for federation in part["federations"]:
        trained.setdefault((federation["mechanism"], federation["budget"]), []).append(federation["seed"])
    assert all(tuple(own) == seeds for own in trained.values())
    large = part["settings"]["batch"] * part["settings"]["local_steps"] > 4
    expected = [1] if again or large or whole_run(part) else [1, 2]
    assert part["audit"]["seeds"] == expected


@pytest.mark.parametrize("name", STAGED)
def test_the_attacks_are_those_of_the_rules(name: str) -> None:
    part = PLAN[name]
    audit, settings = part["audit"], part["settings"]
    large = settings["batch"] * settings["local_steps"] > 4
    assert audit["attacks"] == ["matched", "membership"] + ([] if large or whole_run(part) else ["lti"])
    assert set(audit["attacks"]) <= set(ATTACKS)
    if whole_run(part):
        assert (audit["games"], audit["among"]) == (500, 200)
        assert "keep" not in audit, "limits are told by thresholds that are kept beside the scores"
    else:
        assert audit["candidates"] == 200
        assert audit["keep"] == KEPT
        needed = settings["batch"] * settings["local_steps"] * audit["releases"] + audit["others"] * audit["releases"]
        assert needed <= 2500, "no record is a target or a non-member twice"


@pytest.mark.parametrize("name", OVER_RUN)
def test_a_whole_run_is_attacked_on_one_trajectory(name: str) -> None:
    part, again = PLAN[name], bool(re.search("clients-32|dirichlet", name))
    assert {federation["seed"] for federation in part["federations"]} == {1 if again else 2}
    assert len(mechanisms(part)) == 1
    effort = part["multi_round"]
    if whole_run(part):
        assert (effort["games"], effort["among"], effort["rounds"]) == (500, 200, part["settings"]["rounds"])
        assert len(part["federations"]) <= 2
    else:
        assert effort["unknown"] is False
        assert effort["decoys"] == 199, "200 candidates, as at a stage"
        large = part["settings"]["clients"] > 4 or part["settings"]["batch"] > 4
        assert effort["examples"] == (20 if large else 40)


def ways(names: list[str], pattern: str) -> dict[str, set[tuple[Any, ...]]]:
    """Of each dataset, the mechanisms and strengths in the parts whose names fit."""
    found: dict[str, set[tuple[Any, ...]]] = {dataset: set() for dataset in DATASETS}
    for name in names:
        dataset, _, rest = name.partition("-")
        if re.fullmatch(pattern, rest):
            found[dataset] |= {(row["mechanism"], row["budget"]) for row in PLAN[name]["federations"]}
    return found


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_candidate_is_attacked_at_stages_and_over_the_run_with_all_its_strengths(candidate: str) -> None:
    one = CANDIDATES[candidate]
    expected = {(mechanism, strength) for mechanism, strengths in one.kinds for strength in strengths}
    for names, pattern in ((STAGED, re.escape(candidate)), (OVER_RUN, rf"{re.escape(candidate)}-run-[a-z-]+(-\d+)?")):
        for dataset, found in ways(names, pattern).items():
            assert found == expected, dataset
    for name in (f"{dataset}-{candidate}" for dataset in DATASETS):
        settings = PLAN[name]["settings"]
        assert {key: settings[key] for key in one.change} == one.change
        assert (settings["clients"], settings["partition"]) == (4, "identical")


@pytest.mark.parametrize("change", [{"clients": 32}, {"partition": "dirichlet", "dirichlet": 0.3}], ids=str)
def test_six_ways_are_looked_at_again_under_other_conditions(change: dict[str, Any]) -> None:
    six = {
        ("none", "lenet-zhu", 4): [None], ("pl-identical", "lenet-zhu", 4): [0.98, 0.995],
        ("pl-learn", "lenet-zhu", 4): [0.98, 0.995], ("pl-identical", "lenet-zhu", 44): [0.98, 0.995],
        ("gaussian-dp", "lenet-zhu", 4): [2, 8], ("gaussian-dp", "scatter-linear", 4): [0.5, 2, 8],
    }  # fmt: skip
    for names in (STAGED, OVER_RUN):
        for dataset in DATASETS:
            found: dict[tuple[Any, ...], set[Any]] = {}
            for name in names:
                settings = PLAN[name]["settings"]
                if name.startswith(f"{dataset}-") and {key: settings[key] for key in change} == change:
                    for row in PLAN[name]["federations"]:
                        way = (row["mechanism"], settings["model"], settings["batch"])
                        found.setdefault(way, set()).add(row["budget"])
                    assert settings["server_rate"] == ("auto" if settings["batch"] == 44 or "dp" in name else 1.0)
            assert found == {way: set(strengths) for way, strengths in six.items()}
    assert {one.name for one in AGAIN} <= set(CANDIDATES)


def test_sums_are_divided_by_the_records_that_a_client_has() -> None:
    """The same 4,000 records, dealt to more clients: 125 each."""
    divisors = {
        (part["settings"]["clients"], part["settings"]["gaussian"]["divisor"])
        for part in PLAN.values() if whole_run(part)
    }  # fmt: skip
    assert divisors == {(4, 1000.0), (32, 125.0)}
    assert len(load("mnist").train) == 4000


def test_a_guarantee_is_trained_as_a_user_gets_it() -> None:
    for name, rounds in (("dp-scatter", 50), ("dp-lenet", 200)):
        settings = PLAN[f"mnist-{name}"]["settings"]
        assert (settings["rounds"], settings["server_rate"], settings["server_momentum"]) == (rounds, "auto", 0.8)
        assert settings["gaussian"]["sampling_rate"] == 1.0
    assert CANDIDATES[RECOMMENDED].whole_run
    assert max(len(strengths) for _, strengths in CANDIDATES[RECOMMENDED].kinds) == 10


def test_the_papers_budgets_have_the_papers_settings() -> None:
    settings, _ = checked(PLAN["mnist-paper-pl"])
    assert settings == Settings.flat(rounds=5000, device="cuda"), "the defaults, which reproduce its tables"
    assert PL == (0.96, 0.97, 0.98, 0.99, 0.995)
    assert CANDIDATES["paper-ls"].kinds == [(name, (80, 200, 400, 600, 800)) for name in ("ls-static", "ls-learn")]


def test_public_records_alone_are_trained_at_every_rate_with_all_of_them_in_a_round() -> None:
    assert len(ALONE) == 2 * 2 * 5
    for dataset in DATASETS:
        for count in (200, 1000):
            own = [PLAN[name] for name in ALONE if name.startswith(f"{dataset}-public-{count}-")]
            assert all(part["public"] == [count] for part in own)
            assert all(tuple(row["seed"] for row in part["federations"]) == (1, 2, 3, 4, 5) for part in own)
            heads = [part["settings"] for part in own if part["settings"]["model"] == "scatter-linear"]
            assert [settings["eta"] for settings in heads] == list(PUBLIC_RATES)
            assert all(settings["batch"] == count for settings in heads)
            (paper,) = [part["settings"] for part in own if part["settings"]["model"] == "lenet-zhu"]
            assert (paper["rounds"], paper["batch"], paper["eta"]) == (5000, 4, 0.1)


def test_the_most_important_parts_come_first() -> None:
    places = {name: place for place, name in enumerate(NAMES)}
    assert NAMES[0] == "mnist-paper-pl"
    order = [places[f"mnist-{candidate}"] for candidate in CANDIDATES]
    assert order == sorted(order)
    again = [places[name] for name in NAMES if re.search("clients-32|dirichlet", name)]
    assert min(again) > max(places[name] for name in ALONE) > max(order)


# --- the quick form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_part_is_small(name: str) -> None:
    part = quick(PARTS[name])
    assert part["settings"]["rounds"] <= 8
    audit, effort = part.get("audit"), part.get("multi_round")
    if audit and "games" in audit:
        assert (audit["games"], audit["among"]) == (4, 4)
    elif audit:
        assert (audit["releases"], audit["candidates"], audit["samples"], audit["trials"]) == (2, 10, 40, 2)
    if audit:
        assert set(audit["snapshots"]) <= set(range(9))
        assert audit["snapshots"][-1] == (7 if whole_run(part) else 8)
    if effort and "games" in effort:
        assert (effort["games"], effort["rounds"]) == (4, part["settings"]["rounds"])
    elif effort:
        assert (effort["examples"], effort["decoys"]) == (4, 9)


def test_the_plan_itself_is_not_changed_by_its_quick_form() -> None:
    before = PARTS["mnist-dp-scatter"]
    text = json.dumps(before)
    quick(before)
    assert json.dumps(before) == text


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_parts_are_for_the_device_that_is_asked_for(device: str) -> None:
    assert {part["settings"]["device"] for part in frontier_plan.parts(device).values()} == {device}
