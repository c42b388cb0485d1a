"""Attacks meet releases whose truth is known: who wins, who is at chance, and what no attack gets to see."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.attack.attack import Attack, Hooks, Knowledge
from equipoise.attack.matched import MATCHED
from equipoise.attack.multi_round import Candidates, Observation, multi_round
from equipoise.attack.registry import ATTACKS
from equipoise.attack.results import Inversion
from equipoise.attack.view import Server, View
from equipoise.auditing.cells import Cell
from equipoise.auditing.examine import attack_cell, released
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.plan import work_of
from equipoise.auditing.results import Outcome, rows_of
from equipoise.auditing.scoring import baselines
from equipoise.auditing.targets import Targets, build_targets
from equipoise.randomness import uniform
from tests.auditing.small import QUICK, SHAPE, materials, server_of, targets_of
from tests.auditing.updates import Call

# --- known answers -------------------------------------------------------------------------------------------


@cache
def attacked(name: str, scale: float) -> tuple[list[Outcome], Targets]:
    server, weights = server_of(name, scale)
    targets = build_targets(materials(), server, QUICK)
    return attack_cell(Cell(weights, server, {"mechanism": name}), targets, materials(), QUICK), targets


def rows(name: str, scale: float) -> dict[tuple[str, str | None], dict[str, Any]]:
    outcomes, targets = attacked(name, scale)
    return {(row["attack"], row["control"]): row for one in outcomes for row in rows_of(one, targets)}


def test_attacks_win_without_protection() -> None:
    result = rows("none", 0.0)
    guess = baselines(attacked("none", 0.0)[1], materials(), server_of()[0])["class_mean"]["mse"].mean()
    assert result["lti", None]["mse"] < 0.7 * guess
    assert result["lti", None]["identification"] > 0.7
    assert result["matched", None]["identification"] > 0.95
    assert result["labels", None]["labels"] > 0.95
    assert result["membership", None]["membership_auc"] > 0.98
    assert result["membership", None]["membership_tpr"] > 0.9


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 1000.0)])
def test_negative_controls_are_near_chance(name: str, scale: float) -> None:
    """Images that were not in the release: 96 among 19 candidates each. Four labels of four are no secret."""
    result = rows(name, scale)
    chance = 1 / 19
    bound = chance + 4 * np.sqrt(chance * (1 - chance) / 96)
    assert result["lti", "negative"]["identification"] < bound
    assert result["matched", "negative"]["identification"] < bound
    assert abs(result["membership", "negative"]["membership_auc"] - 0.5) < 0.12
    assert result["labels", "negative"]["labels"] == 1


def test_large_noise_leaves_what_the_negative_control_shows() -> None:
    result = rows("gs-static", 1000.0)
    bound = 0.05 + 4 * np.sqrt(0.05 * 0.95 / 96)
    assert result["lti", None]["identification"] < bound
    assert result["matched", None]["identification"] < bound
    assert abs(result["membership", None]["membership_auc"] - 0.5) < 0.12


@pytest.mark.usefixtures("_short_searches")
def test_everything_follows_from_the_options() -> None:
    server, weights = server_of("pl-learn", 0.2)
    attacks = ["invgrad", "idlg", "lti", "matched", "membership", "labels"]
    options = replace(QUICK, attacks=attacks, releases=4, samples=20, around=4, trials=4, tuning=4)

    def once(options: AuditOptions) -> list[dict[str, Any]]:
        targets = build_targets(materials(), server, options)
        outcomes = attack_cell(Cell(weights, server, {}), targets, materials(), options)
        return [row for one in outcomes for row in rows_of(one, targets, options.seed)]

    first = once(options)
    assert once(options) == first
    assert once(replace(options, seed=1)) != first


@pytest.mark.parametrize("others", [[], ["labels"], ["matched"], ["matched", "labels", "lti"]])
def test_an_attack_finds_the_same_whoever_runs_beside_it(others: list[str]) -> None:
    """Attacks that ask about the same candidates share what they simulate, and nothing else."""
    server, weights = server_of("gs-static", 0.01)
    options = replace(QUICK, releases=6, samples=20)
    targets = build_targets(materials(), server, options)

    def found(attacks: list[str]) -> dict[str, Outcome]:
        result = attack_cell(Cell(weights, server, {}), targets, materials(), replace(options, attacks=attacks))
        return {one.attack: one for one in result}

    alone, beside = found(["membership"])["membership"], found([*others, "membership"])["membership"]
    for name, values in alone.values.items():
        np.testing.assert_allclose(beside.values[name], values, rtol=1e-4, atol=1e-4)


def test_attacks_that_share_candidates_simulate_them_once() -> None:
    server, weights = server_of("gs-static", 0.01)
    options = replace(QUICK, attacks=["matched", "membership"], releases=6)
    targets, told = build_targets(materials(), server, options), list[tuple[str, float]]()
    cell = Cell(weights, server, {})
    attack_cell(cell, targets, materials(), options, progress=lambda *what: told.append(what))
    assert {name for name, _ in told} == {"matched"}


# --- releases and their noise ---------------------------------------------------------------------------------


def test_releases_of_two_defences_share_their_noise() -> None:
    targets = build_targets(materials(), server_of()[0], QUICK)
    plain, weak, strong = (
        released(Cell(weights, server, {}), targets, QUICK)
        for server, weights in (server_of(), server_of("gs-static", 0.1), server_of("gs-static", 0.3))
    )
    torch.testing.assert_close((strong - plain) / 3, weak - plain, rtol=0, atol=1e-5)


def able(mechanism: str) -> list[str]:
    """All attacks but one that needs a fixed norm and finds none."""
    return [name for name in ATTACKS if name != "verify" or mechanism in ("none", "pl-identical")]


@pytest.mark.slow
@pytest.mark.usefixtures("_short_searches")
@pytest.mark.parametrize(
    ("mechanism", "condition_on"), [("gs-learn", "nothing"), ("gs-learn", "best"), ("pl-identical", "nothing")]
)
def test_no_attack_draws_the_noise_of_the_client(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, condition_on: str
) -> None:
    """Whoever shares the client's key could subtract its noise: every attack would look far stronger than it is."""
    drawn: list[Any] = []

    def recorded(keys: Any, *rest: Any) -> Tensor:
        drawn.extend(keys)
        return uniform(keys, *rest)

    attacks = [module for name, module in list(sys.modules.items()) if name.startswith("equipoise.attack.")]
    for module in attacks:
        if hasattr(module, "uniform"):
            monkeypatch.setattr(module, "uniform", recorded)
    server, weights = server_of(mechanism, 0.01)
    options = replace(QUICK, attacks=able(mechanism), releases=4, iterations=1, samples=20, condition_on=condition_on)
    targets = build_targets(materials(), server, options)
    cell = Cell(weights, server, {})
    drawn.clear()
    assert len(targets) == 4
    view = View(weights.expand(4, -1), released(cell, targets, options), targets.labels)
    clients = set(drawn)
    drawn.clear()
    attack_cell(replace(cell, view=view), targets, materials(), options)
    public = materials().attack
    assert public is not None
    present = torch.ones(1, dtype=torch.bool)
    held = Candidates(*public, torch.zeros(1, 2).long())
    multi_round(server, [Observation(1, weights, view.released[0], present, weights)], public, held)
    assert len(clients) == 1
    assert len(set(drawn)) > 10
    assert not clients & set(drawn)


def test_given_releases_are_attacked_instead_of_simulated_ones(stand_in: Any) -> None:
    server, weights = server_of()
    targets, seen = targets_of(), list[Tensor]()

    def watching(server: Server, view: View, *rest: Any) -> Inversion:
        seen.append(view.released)
        return Inversion(targets.inputs, torch.zeros(len(view)))

    stand_in(watching)
    cell, options = Cell(weights, server, {}), replace(QUICK, attacks=["invgrad"])
    given = View(weights.expand(24, -1), weights.expand(24, -1) + 1, targets.labels)
    for view in (None, given):
        attack_cell(replace(cell, view=view), targets, materials(), options)
    assert torch.equal(seen[0], released(cell, targets, options))
    assert torch.equal(seen[1], given.released)


def test_an_attack_is_watched_through_all_its_iterations(stand_in: Any) -> None:
    """One that stands still at 0.2 beside each of 36 pixels: a distance of 1.2, of a diameter of 12."""
    (server, weights), targets = server_of(), targets_of()

    def still(server: Server, view: View, knowledge: Any, options: Any, hooks: Hooks) -> Inversion:
        assert hooks.watch is not None
        for iteration in (1, 2, 3):
            hooks.watch(torch.arange(len(view)), iteration, targets.inputs + 0.2)
        return Inversion(targets.inputs, torch.zeros(len(view)))

    stand_in(still)
    cell, options = Cell(weights, server, {}), replace(QUICK, attacks=["invgrad"])
    (result,) = attack_cell(cell, targets, materials(), options, diameter=12.0)
    assert result.values["leakage"] == pytest.approx(1 - 1.2 / 12, rel=1e-5)


# --- what no attack gets to see -------------------------------------------------------------------------------


def tensors_in(*start: Any) -> Iterator[Tensor]:
    """Every tensor that is reached from what an attack is called with, models and settings included."""
    waiting, known = list(start), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif type(value).__module__.startswith(("equipoise.", "torch.nn.")):
            waiting.append(vars(value))


class Spy:
    """An attack that keeps what it was called with, and guesses grey."""

    def __init__(self, needs: frozenset[str] = frozenset()):
        self.seen: list[tuple[Any, ...]] = []
        ATTACKS["spy"] = Attack("spy", self.run, needs)

    def run(self, server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks) -> Any:
        self.seen.append((server, view, knowledge, options))
        return Inversion(torch.zeros(len(view), server.examples, *server.shape), torch.zeros(len(view)))

    def saw(self, images: Tensor) -> bool:
        """Whether any of the images was in anything that it was called with."""
        wanted = images.reshape(-1, 36)
        rows = [t.reshape(-1, 36) for t in tensors_in(*self.seen) if t.shape[-3:] == SHAPE and t.is_floating_point()]
        return any(bool((torch.cdist(row, wanted) == 0).any()) for row in rows)


@pytest.mark.parametrize(
    "needs",
    [
        frozenset(),
        frozenset({"labels"}),
        frozenset({"public", "truth"}),
        frozenset({"candidates"}),
        frozenset({"asked"}),
    ],
)
def test_an_attack_sees_the_truth_only_where_it_says_so(needs: frozenset[str]) -> None:
    """Among the candidates, that is; one that does not ask for them sees no image but public ones."""
    spy, targets = Spy(needs), targets_of()
    server, weights = server_of("gs-static", 0.1)
    attack_cell(Cell(weights, server, {}), targets, materials(), replace(QUICK, attacks=["spy"], seed=3))
    ((_, view, knowledge, options),) = spy.seen
    asks = bool(needs & {"candidates", "asked"})
    assert spy.saw(targets.inputs) == asks
    assert spy.saw(targets.pool) == asks
    assert (knowledge.public is not None) == ("public" in needs)
    assert (knowledge.choices is not None, knowledge.asked is not None) == ("candidates" in needs, "asked" in needs)
    assert (view.labels is not None) == ("labels" in needs)
    assert (options["seed"], options["samples"]) == (3, 200)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("mechanism", ["none", "pl-learn"])
def test_an_attack_on_an_update_of_ones_own_never_sees_the_inputs(
    call: Call, batch: Any, public: Any, known: bool, mechanism: str
) -> None:
    """Without public data the truth itself fills the places of the candidates, which no attack may look at."""
    spy = Spy()
    more: dict[str, Any] = {"public": public} if known else {}
    more |= {} if mechanism == "none" else {"mechanism": mechanism, "budget": 0.98}
    result = call(options=AuditOptions(attacks=["spy"]), **more)
    assert {row["attack"] for row in result.rows} == {"spy"}
    assert len(spy.seen) == (1 if mechanism == "none" else 4 if known else 2), "twins and control included"
    assert not spy.saw(batch[0])
    assert all(knowledge == Knowledge() for _, _, knowledge, _ in spy.seen)


def test_the_search_for_the_truth_can_find_it(call: Call, batch: Any) -> None:
    spy = Spy(frozenset({"candidates"}))
    call(options=AuditOptions(attacks=["spy"]))
    assert spy.saw(batch[0])


@pytest.mark.parametrize("name", ["none", "gs-static"])
def test_what_one_attack_writes_reaches_no_other(name: str) -> None:
    """Neither into the releases, nor into what it holds, nor into what others have simulated."""
    server, weights = server_of(name, 0.05)
    options, targets, memories = replace(QUICK, attacks=["matched", "membership"]), targets_of(), list[Any]()
    before = attack_cell(Cell(weights, server, {}), targets, materials(), options)

    def careless(server: Server, view: View, knowledge: Knowledge, options: Any, hooks: Hooks) -> Inversion:
        memories.append(hooks.memory)
        assert knowledge.public is not None
        for tensor in (view.released, knowledge.public[0], knowledge.candidates, knowledge.choices, view.labels):
            assert tensor is not None
            tensor.zero_()
        return Inversion(torch.zeros(len(view), server.examples, *server.shape), torch.zeros(len(view)))

    ATTACKS["spy"] = Attack("spy", careless, frozenset({"public", "candidates", "labels"}), work=MATCHED.work)
    options = replace(QUICK, attacks=["spy", "matched", "spy", "membership"])
    _, ranked, _, asked = attack_cell(Cell(weights, server, {}), targets, materials(), options)
    for one, other in zip(before, (ranked, asked), strict=True):
        for what, values in one.values.items():
            np.testing.assert_array_equal(values, other.values[what])
    assert memories == [None, None]


def test_two_lists_that_tell_the_members_give_nothing_to_one_attack() -> None:
    """Ranking by who is in both found every truth, whatever was released."""
    targets, server = targets_of(), server_of()
    spies = [Spy(frozenset({need})) for need in ("candidates", "asked")]
    for need, spy in zip(("candidates", "asked"), spies, strict=True):
        ATTACKS["spy"] = Attack("spy", spy.run, frozenset({need}))
        attack_cell(Cell(server[1], server[0], {}), targets, materials(), replace(QUICK, attacks=["spy"]))
        ((_, _, knowledge, _),) = spy.seen
        assert (knowledge.choices is None) != (knowledge.asked is None)


# --- progress -------------------------------------------------------------------------------------------------


def test_progress_is_told_of_every_attack() -> None:
    server, weights = server_of()
    told: list[tuple[str, float]] = []
    options = replace(QUICK, releases=2, samples=10, attacks=[*QUICK.attacks, "invgrad"])
    targets = build_targets(materials(), server, options)
    attack_cell(Cell(weights, server, {}), targets, materials(), options, progress=lambda *a: told.append(a))
    assert {name for name, _ in told} == set(options.attacks) - {"membership"}, "matched has simulated its share"
    assert all(amount > 0 for _, amount in told)


def test_steps_are_told_by_the_name_of_the_attack(stand_in: Any) -> None:
    targets, told = targets_of(), list[Any]()
    (server, weights), options = server_of(), replace(QUICK, attacks=["invgrad", "membership"])

    def stepping(server: Server, view: View, knowledge: Any, options: Any, hooks: Hooks) -> Inversion:
        assert hooks.step is not None
        hooks.step(3)
        return Inversion(targets.inputs, torch.zeros(len(view)))

    for name in options.attacks:
        stand_in(stepping, name)
    attack_cell(Cell(weights, server, {}), targets, materials(), options, progress=lambda *what: told.append(what))
    assert told == [("invgrad", 3), ("membership", 3)]


def test_every_outcome_is_handed_over_as_soon_as_there_is_one(stand_in: Any) -> None:
    targets, events = targets_of(), list[str]()
    (server, weights), options = server_of(), replace(QUICK, attacks=["invgrad", "labels"])

    def first(server: Server, view: View, *rest: Any) -> Inversion:
        events.append("invgrad runs")
        return Inversion(targets.inputs, torch.zeros(len(view)))

    def second(server: Server, view: View, *rest: Any) -> Inversion:
        events.append("labels runs")
        raise KeyboardInterrupt

    stand_in(first)
    stand_in(second, "labels")
    with pytest.raises(KeyboardInterrupt):
        attack_cell(
            Cell(weights, server, {}), targets, materials(), options, keep=lambda one: events.append(one.attack)
        )
    assert events == ["invgrad runs", "invgrad", "labels runs"]


@pytest.mark.usefixtures("_short_searches")
@pytest.mark.parametrize("condition_on", ["nothing", "release", "best"])
@pytest.mark.parametrize(("mechanism", "scale"), [("none", 0.0), ("gs-static", 0.1), ("gs-learn", 0.01)])
def test_every_attack_says_before_how_many_steps_it_makes(mechanism: str, scale: float, condition_on: str) -> None:
    """Within a tenth: the time left is a share of it."""
    server, weights = server_of(mechanism, scale)
    options = replace(
        QUICK, attacks=able(mechanism), releases=5, samples=20, around=4, anchors=2, tuning=3, trials=4, nulls=3,
        pairs=2, companions=2, iterations=3, restarts=2, condition_on=condition_on,
    )  # fmt: skip
    targets, steps = build_targets(materials(), server, options), dict.fromkeys(options.attacks, 0.0)

    def told(attack: str, count: float) -> None:
        steps[attack] += count

    attack_cell(Cell(weights, server, {}), targets, materials(), options, progress=told)
    assert steps.pop("membership") == 0, "matched has simulated what it needs"
    for name, made in steps.items():
        work = work_of(name, server, targets, materials(), options)
        most = name == "matched" and condition_on == "best"  # it may find that it needs less
        assert work.steps >= made if most else work.steps == pytest.approx(made, rel=0.1), name
        assert work.gradients > 0
