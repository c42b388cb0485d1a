"""Every federation at chosen rounds: roles, controls, pairing, and each cell attacked once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.attack.attack import Attack
from equipoise.attack.registry import register_attack
from equipoise.attack.results import Inversion
from equipoise.auditing import cells, sweep_audit
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.plan import Plan
from equipoise.auditing.results import Findings, Outcome, differences, mark_controls, rows_of
from equipoise.auditing.store import Store, unpacked
from equipoise.auditing.sweep_audit import audit_sweep, learned_against_static
from equipoise.engine.datasets import load_dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.mechanism.protection import Leakage
from equipoise.models.batched import Batched
from tests.audit_helpers import cheap, interrupt, write_pictures
from tests.auditing.small import TWINS

SETTINGS = Settings.flat(rounds=2, evaluate_every=2, model="mlp", init="torch", batch=2, steps=2, public_fraction=0.6)
Run = Callable[..., Findings]


@pytest.fixture(autouse=True)
def _twins_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps hardly learn: whatever their final norm, it has a cell of its own."""
    monkeypatch.setattr(cells, "NEAR", 0)


@pytest.fixture(scope="module")
def federations(pictures: Path) -> list[Federation]:
    data = str(pictures)
    return [Federation(data, "none"), Federation(data, "pl-identical", 0.98), Federation(data, "pl-learn", 0.98)]


@pytest.fixture(scope="module")
def run(federations: list[Federation]) -> Run:
    """``audit_sweep`` at the weights of a sweep, with all that it needs."""
    made: dict[tuple[Any, ...], tuple[Sweep, dict[int, torch.Tensor]]] = {}

    def call(
        options: AuditOptions,
        rounds: tuple[int, ...] = (0,),
        given: list[Federation] | None = None,
        settings: Settings = SETTINGS,
        **more: Any,
    ) -> Findings:
        feds = federations if given is None else given
        key = (rounds, *map(repr, feds))
        if key not in made:
            sweep, weights = Sweep(SETTINGS, feds), {}
            for round_number in rounds:
                sweep.train(round_number)
                weights[round_number] = sweep.models()
            made[key] = sweep, weights
        sweep, weights = made[key]
        return audit_sweep(settings, feds, sweep.datasets, sweep.batched, weights, options, **more)

    return call


def roles(result: Findings, name: str) -> list[str]:
    return list(dict.fromkeys(one.about["role"] for one in result.outcomes if one.about["mechanism"] == name))


def test_every_mechanism_has_its_roles(run: Run) -> None:
    result = run(cheap(attacks=["labels"]))
    assert roles(result, "none") == ["own"]
    assert roles(result, "pl-identical") == ["own", "undistorted"]
    assert roles(result, "pl-learn") == ["own", *TWINS, "undistorted"]
    assert roles(run(cheap(attacks=["labels"], twins=False)), "pl-learn") == ["own", "undistorted"]


@pytest.mark.parametrize(("near", "attacked"), [(0.01, 3), (0.0, 4)])
def test_twins_of_equal_noise_are_attacked_once(
    run: Run, federations: list[Federation], monkeypatch: pytest.MonkeyPatch, near: float, attacked: int
) -> None:
    calls = []
    monkeypatch.setattr(cells, "NEAR", near)
    monkeypatch.setattr(sweep_audit, "attack_cell", lambda *a, **b: [calls.append(a), attack_cell(*a, **b)])
    outcomes = {one.about["role"]: one for one in run(cheap(attacks=["labels"]), given=federations[2:]).outcomes}
    assert len(calls) == attacked
    lower, equal = (outcomes[role] for role in TWINS)
    assert (lower.about["lower"] == equal.about["lower"]) == (attacked == 3)
    assert equal.about["lower"] == pytest.approx(lower.about["lower"], rel=0.01)
    assert equal.about["role"] == TWINS[1]
    if attacked == 3:
        assert all(np.array_equal(lower.values[name], equal.values[name]) for name in lower.values)


def test_every_row_has_a_negative_control_and_the_role_undistorted_is_the_positive_one(run: Run) -> None:
    """What is undistorted by itself is a result, not a control."""
    result = run(cheap(attacks=["lti", "membership"]))
    cells: dict[Any, list[Any]] = {}
    for row in result.rows:
        cells.setdefault((row["mechanism"], row["role"], row["attack"]), []).append(row["control"])
    assert {name for name, role, _ in cells if role == "undistorted"} == {"pl-identical", "pl-learn"}
    for (_, role, _), controls in cells.items():
        assert controls == ["positive" if role == "undistorted" else None, "negative"]


@pytest.mark.parametrize(("rounds", "cells"), [((0,), 4), ((2,), 7), ((0, 2), 11)])
def test_a_cell_that_occurs_twice_is_attacked_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, rounds: tuple[int, ...], cells: int
) -> None:
    """At round 0 all federations have the same weights: undistorted, static, learned and the louder static."""
    seen: list[Any] = []

    def counting(cell: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(cell)
        return genuine(cell, *arguments, **more)

    genuine = sweep_audit.attack_cell
    monkeypatch.setattr(sweep_audit, "attack_cell", counting)
    result = run(cheap(attacks=["labels"]), rounds)
    assert len(seen) == cells
    assert len(result.outcomes) == 7 * len(rounds), "and is reported wherever it occurs"


def test_the_static_twin_of_equal_lower_bound_is_the_static_mechanism(run: Run) -> None:
    result = run(cheap(attacks=["lti"]))
    rows = {(row["mechanism"], row["role"]): row for row in result.rows if row["control"] != "negative"}
    own, twin = rows["pl-identical", "own"], rows["pl-learn", TWINS[0]]
    assert {name: own[name] for name in ("lower", "mse", "identification")} == {
        name: twin[name] for name in ("lower", "mse", "identification")
    }
    assert rows["pl-learn", "own"]["lower"] == own["lower"] == pytest.approx(7.99975)
    assert own["lower"] <= rows["pl-learn", TWINS[1]]["lower"] <= 2 * own["lower"] * (1 + 1e-4)
    assert rows["none", "own"]["lower"] == rows["pl-learn", "undistorted"]["lower"] == 0


def test_differences_are_own_minus_static_on_the_same_releases(run: Run) -> None:
    result = run(cheap(attacks=["lti"]), (2,))
    assert [row["against"] for row in result.differences] == [*TWINS, "static, own trajectory"]
    rows = {(row["mechanism"], row["role"]): row for row in result.rows if row["control"] != "negative"}
    against = {
        **{name: rows["pl-learn", name] for name in TWINS},
        "static, own trajectory": rows["pl-identical", "own"],
    }
    for row in result.differences:
        gap = rows["pl-learn", "own"]["mse"] - against[row["against"]]["mse"]
        assert row["mse"] == pytest.approx(gap, abs=1e-6)
        assert row["mse_low"] - 1e-9 <= row["mse"] <= row["mse_high"] + 1e-9


def test_at_the_first_weights_there_is_no_other_trajectory(run: Run) -> None:
    """At round 0 all federations have the same weights: the static one's are those of the first twin."""
    result = run(cheap(attacks=["lti"]), (0, 2)).differences
    against = {
        round_number: [row["against"] for row in result if row["round"] == round_number] for round_number in (0, 2)
    }
    assert against == {0: TWINS, 2: [*TWINS, "static, own trajectory"]}


def test_a_learned_mechanism_alone_has_no_other_trajectory(run: Run, federations: list[Federation]) -> None:
    result = run(cheap(attacks=["lti"]), (2,), federations[2:])
    assert [row["against"] for row in result.differences] == TWINS


def test_static_mechanisms_have_no_differences(run: Run, federations: list[Federation]) -> None:
    assert run(cheap(attacks=["lti"]), (0,), federations[:2]).differences == []


def test_progress_is_told_with_the_federation_the_round_and_the_role(run: Run, federations: list[Federation]) -> None:
    """Of all cells at round 0; one that occurs twice is told of once, where it is attacked."""
    told: list[tuple[str, float]] = []
    plans: list[Plan] = []
    run(
        cheap(attacks=["lti", "matched", "membership"]), planned=plans.append,
        progress=lambda what, amount: told.append((what, amount)),
    )  # fmt: skip
    plain, static, learned = (federation.label() for federation in federations)
    cells = [f"{plain} at 0, own", f"{static} at 0, own", f"{learned} at 0, own", f"{learned} at 0, {TWINS[1]}"]
    expected = [f"{cell}: {attack}" for cell in cells for attack in ("lti", "matched", "membership")]
    assert list(dict.fromkeys(what for what, _ in told)) == expected
    assert sum(amount for _, amount in told) == pytest.approx(plans[0].seconds), "all of the plan, and no more"
    assert plans[0].seconds > 0


def test_the_plan_counts_each_cell_once_and_comes_before_the_first_attack(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    cells = interrupt(monkeypatch, 1)
    run(cheap(attacks=["lti", "labels"]), (0, 2), planned=lambda plan: plans.append(plan) or cells.clear())
    (plan,) = plans
    assert (plan.federations, plan.snapshots, plan.cells, plan.there) == (3, 2, 11, 0)
    assert (plan.attacks, plan.releases) == (["lti", "labels"], 2)
    assert len(cells) == 1


@pytest.mark.parametrize(("first", "second", "free"), [("dlg", "idlg", False), ("matched", "membership", True)])
def test_only_attacks_that_share_a_simulation_are_planned_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, first: str, second: str, free: bool
) -> None:
    """Two attacks may count their work alike and still each do all of it."""
    monkeypatch.setattr(sweep_audit.Stopwatch, "seconds", lambda *_: 1.0)
    plans: list[Plan] = []
    for attacks in ([first, second], [first], [second]):
        interrupt(monkeypatch, 1)
        run(cheap(attacks=attacks), planned=plans.append)
    both, one, other = (plan.seconds for plan in plans)
    assert min(one, other) > 0
    assert both == (one if free else one + other)


# --- what was finished before ----------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The role of every cell that is attacked from now on, and by which attacks."""
    seen: list[tuple[str, list[str]]] = []

    def counting(cell: Any, targets: Any, materials: Any, options: AuditOptions, *rest: Any, **more: Any) -> Any:
        seen.append((cell.about["role"], options.attacks))
        return genuine(cell, targets, materials, options, *rest, **more)

    genuine = sweep_audit.attack_cell
    monkeypatch.setattr(sweep_audit, "attack_cell", counting)
    return seen


@pytest.mark.slow
def test_what_was_finished_is_not_computed_again_and_gives_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, plans = cheap(attacks=["lti", "matched", "membership", "labels"]), list[Plan]()
    whole = run(options, (0, 2), store=Store(tmp_path))
    seen = counted(monkeypatch)
    again = run(options, (0, 2), store=Store(tmp_path), planned=plans.append)
    assert seen == []
    assert (plans[0].cells, plans[0].there, plans[0].seconds) == (11, 11, 0)
    assert again.rows == whole.rows
    assert again.differences == whole.differences
    for one, other in zip(whole.outcomes, again.outcomes, strict=True):
        assert (one.pictures is None) == (other.pictures is None)
        assert one.pictures is None or np.array_equal(one.pictures, other.pictures)


def test_an_interrupted_audit_goes_on_with_the_attack_that_was_under_way(
    run: Run, federations: list[Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the second attack on the second cell: of that cell the first attack is kept."""
    options = cheap(attacks=["lti", "labels"])
    whole = run(options, (2,))
    kept: list[str] = []

    class Interrupted(Store):
        def put(self, name: str, outcome: Outcome, probe: Any) -> None:
            super().put(name, outcome, probe)
            kept.append(outcome.attack)
            if len(kept) == 3:
                raise KeyboardInterrupt

    partial = run(options, (2,), store=Interrupted(tmp_path))
    assert not partial.complete
    assert partial.rows == whole.rows[: len(partial.rows)]
    seen, plans = counted(monkeypatch), list[Plan]()
    result = run(options, (2,), store=Store(tmp_path), planned=plans.append)
    assert (plans[0].there, plans[0].cells) == (1, 7)
    assert seen[0] == ("own", ["labels"])
    assert len(seen) == 6
    assert result.complete
    assert (result.rows, result.differences) == (whole.rows, whole.differences)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"samples": 21}, {"releases": 3}, {"candidates": 4}, {"label_sets": 1}, {"pictures": 2}],
    ids=str,
)
def test_other_options_are_another_result(
    run: Run, federations: list[Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    run(cheap(attacks=["lti"]), (0,), federations[:1], store=Store(tmp_path))
    seen = counted(monkeypatch)
    result = run(cheap(attacks=["lti"], **change), (0,), federations[:1], store=Store(tmp_path))
    assert len(seen) == 1
    assert result.rows == run(cheap(attacks=["lti"], **change), (0,), federations[:1]).rows


def test_options_of_other_attacks_change_nothing(
    run: Run, federations: list[Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(cheap(attacks=["lti"]), (0,), federations[:1], store=Store(tmp_path))
    seen = counted(monkeypatch)
    run(cheap(attacks=["lti", "labels"], around=5, iterations=3), (0,), federations[:1], store=Store(tmp_path))
    assert seen == [("own", ["labels"])]


def test_private_targets_other_settings_and_other_weights_are_another_result(
    run: Run, federations: list[Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = cheap(attacks=["lti"])
    run(options, (0,), federations[:1], store=Store(tmp_path))
    seen = counted(monkeypatch)
    run(options, (0,), federations[:1], store=Store(tmp_path), private=True)
    run(options, (0,), federations[:1], SETTINGS.replace(eta=0.2), store=Store(tmp_path))
    run(options, (0,), federations[:1], SETTINGS.replace(leakage=Leakage(D=10.0)), store=Store(tmp_path))
    run(options, (2,), federations[:1], store=Store(tmp_path))
    assert len(seen) == 4
    run(options, (2,), federations[:1], store=Store(tmp_path, fresh=True))
    assert len(seen) == 5, "and fresh overlooks what is there"


class Doubled(torch.nn.Module):
    """A model whose description, weights and trainable layers stay, whatever it does to its inputs."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model
        self.factor = 1.0
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images * self.factor + self.shift)  # type: ignore[no-any-return]


def other_code(model: Any) -> None:
    model.factor = 2.0


def other_buffer(model: Any) -> None:
    model.shift.fill_(0.1)


@pytest.mark.parametrize("change", [other_code, other_buffer])
def test_a_model_that_was_corrected_is_attacked_again(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    """Neither its description nor its weights tell."""
    federation = Federation(str(pictures), "pl-identical", 0.98)
    sweep, options = Sweep(SETTINGS, [federation]), cheap(attacks=["matched"])
    model = Doubled(sweep.batched.model)
    weights = {0: sweep.models()}
    seen = counted(monkeypatch)

    def attacked(store: Store | None) -> Findings:
        return audit_sweep(SETTINGS, [federation], sweep.datasets, Batched(model), weights, options, store=store)

    attacked(Store(tmp_path))
    again = attacked(Store(tmp_path))
    assert (len(seen), again.read, again.computed) == (2, 2, 0)
    change(model)
    corrected = attacked(Store(tmp_path))
    assert (len(seen), corrected.read, corrected.computed) == (4, 0, 2)
    assert corrected.rows == attacked(None).rows


def test_no_reconstruction_of_a_private_image_is_kept(run: Run, federations: list[Federation], tmp_path: Path) -> None:
    options, kept = cheap(attacks=["lti"]), Store(tmp_path)
    made = run(options, (0,), federations[:1], store=kept, private=True)
    assert made.outcomes[0].pictures is not None
    (path,) = kept.folder.iterdir()
    (stored,) = unpacked(path.read_bytes()).outcomes
    assert stored.pictures is None
    assert stored.about["private"] is True
    again = run(options, (0,), federations[:1], store=kept, private=True)
    assert (again.read, again.computed) == (1, 0)
    assert again.rows == made.rows


@pytest.mark.usefixtures("registries")
def test_an_attack_of_the_users_is_computed_each_time_and_that_is_said(
    run: Run, federations: list[Federation], tmp_path: Path
) -> None:
    strength = [0.0]

    def attack(server: Any, view: Any, *rest: Any) -> Inversion:
        return Inversion(torch.full((len(view), server.examples, *server.shape), sum(strength)), torch.zeros(len(view)))

    register_attack(Attack("mine", attack))
    options, plans = cheap(attacks=["mine", "labels"]), list[Plan]()
    first = run(options, (0,), federations[:1], store=Store(tmp_path), planned=plans.append)
    strength.append(3.0)
    second = run(options, (0,), federations[:1], store=Store(tmp_path), planned=plans.append)
    assert first.rows[0]["mse"] != second.rows[0]["mse"]
    assert (second.read, second.computed) == (1, 1)
    assert list(plans[1].remarks) == ["Computed each time, because the code is not this package's: attack mine."]


def test_without_a_key_all_is_computed_again_and_the_plan_says_why(
    run: Run, federations: list[Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, plans = cheap(attacks=["labels"]), list[Plan]()
    whole = run(options, (0,), federations[:1], store=Store(tmp_path))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    again = run(options, (0,), federations[:1], store=Store(tmp_path), planned=plans.append)
    assert (again.read, again.rows) == (0, whole.rows)
    assert "there is no key in your cache folder" in " ".join(plans[0].text().split())


# --- an interrupted audit ------------------------------------------------------------------------------------


def test_an_interrupted_audit_keeps_the_cells_that_were_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(cheap(attacks=["lti"]))
    assert whole.complete
    cells = interrupt(monkeypatch, 2)
    result = run(cheap(attacks=["lti"]))
    assert len(cells) == 2, "nothing is attacked after it"
    assert not result.complete
    assert result.rows == [row for row in whole.rows if row["mechanism"] == "none"]
    assert [one.about["mechanism"] for one in result.outcomes] == ["none"]
    assert result.differences == []
    assert result.baselines == whole.baselines


@pytest.mark.parametrize("last", [4, 5, 7])
def test_interrupted_differences_are_those_of_the_roles_that_were_finished(
    run: Run, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """At round 2: undistorted, static and its control, then the learned one, its twins and its control."""
    whole = run(cheap(attacks=["lti"]), (2,))
    interrupt(monkeypatch, last)
    result = run(cheap(attacks=["lti"]), (2,))
    assert not result.complete
    assert [{**row, "control_failed": None} for row in result.rows] == [
        {**row, "control_failed": None} for row in whole.rows[: 2 * (last - 1)]
    ]
    judged = ["control_failed" in row for row in result.rows if row["mechanism"] == "pl-learn"]
    assert not any(judged), "where the control was not reached, nothing is said of the attack"
    assert any("control_failed" in row for row in whole.rows if row["mechanism"] == "pl-learn")
    kept = {4: [], 5: ["static, own trajectory"], 7: [*TWINS, "static, own trajectory"]}[last]
    assert result.differences == [row for row in whole.differences if row["against"] in kept]
    assert len(result.differences) == len(kept)


# --- rounds and datasets -------------------------------------------------------------------------------------


def test_a_schedule_is_read_at_the_round_whose_releases_are_attacked(run: Run, pictures: Path) -> None:
    """Those that start from the weights after round 1 are the releases of round 2."""
    budget = {"rounds": [1, 2], "values": [0.96, 0.98]}
    result = run(cheap(attacks=["labels"]), (0, 1), [Federation(str(pictures), "pl-identical", budget)])
    own = [row for row in result.rows if row["role"] == "own" and row["control"] is None]
    assert [(row["round"], row["promised_leakage"]) for row in own] == [(0, 0.96), (1, 0.98)]
    assert [row["lower"] for row in own] == pytest.approx([15.99975, 7.99975])


def test_every_dataset_has_its_own_targets_and_baselines(run: Run, pictures: Path, tmp_path: Path) -> None:
    """At round 0 both start from the same weights; what was found on one is no answer for the other."""
    for path in write_pictures(tmp_path).iterdir():
        with np.load(path) as stored:
            arrays = {"images": 255 - stored["images"] // 2, "labels": stored["labels"]}
        np.savez(path, **arrays)
    both = [Federation(name, "none") for name in (str(pictures), str(tmp_path))]
    together = run(cheap(attacks=["lti"]), (0,), both)
    assert list(together.baselines) == list(together.targets) == [str(pictures), str(tmp_path)]
    alone = [run(cheap(attacks=["lti"]), (0,), [federation]) for federation in both]
    assert together.rows == [row for result in alone for row in result.rows]
    assert together.rows[0]["mse"] != pytest.approx(together.rows[2]["mse"], rel=1e-3)
    for name, result in zip((str(pictures), str(tmp_path)), alone, strict=True):
        assert together.baselines[name] == result.baselines[name]


def test_the_leakage_is_that_of_the_diameter_in_the_settings(run: Run, federations: list[Federation]) -> None:
    """One minus the mean distance over D: the same distances stand behind both."""
    narrow = SETTINGS.replace(leakage=Leakage(D=10.0))
    usual, other = (run(cheap(attacks=["invgrad"]), (0,), federations[:1], settings) for settings in (SETTINGS, narrow))
    pairs = [(usual.rows[0]["leakage"], other.rows[0]["leakage"])]
    for one, two in zip(usual.baselines.values(), other.baselines.values(), strict=True):
        pairs += [(one[guess]["leakage"], two[guess]["leakage"]) for guess in one]
    assert len(pairs) == 5
    for wide, close in pairs:
        assert (1 - wide) * 56 == pytest.approx((1 - close) * 10, rel=1e-5)


def test_intervals_follow_from_the_seed_of_the_options(run: Run, federations: list[Federation]) -> None:
    result = run(cheap(attacks=["lti"], releases=6, seed=3), (0,), federations[:1], private=True)
    (targets,), (outcome,) = result.targets.values(), result.outcomes
    for seed, same in ((3, True), (4, False)):
        rows = rows_of(outcome, targets, seed)
        mark_controls(rows)
        assert (result.rows == rows) == same


def test_private_targets_are_those_of_the_clients(run: Run, pictures: Path) -> None:
    train = {image.numpy().tobytes() for image in load_dataset(SETTINGS, str(pictures)).train.inputs}
    for private in (False, True):
        result = run(cheap(attacks=["labels"]), private=private)
        (targets,) = result.targets.values()
        assert [image.numpy().tobytes() in train for image in targets.inputs.flatten(0, 1)] == [private] * 4


def test_the_place_of_the_data_does_not_change_what_is_found(run: Run, tmp_path: Path) -> None:
    other = str(write_pictures(tmp_path / "elsewhere" / "pictures"))
    one, two = run(cheap(attacks=["lti"])), run(cheap(attacks=["lti"]), (0,), [Federation(other, "none")])
    assert one.rows[0]["mse"] == pytest.approx(two.rows[0]["mse"], rel=1e-5)


# --- learned against static ----------------------------------------------------------------------------------


def outcome(mse: float, attack: str = "lti") -> Outcome:
    return Outcome({}, attack, {"mse": np.full((3, 2), mse)}, {})


def test_a_learned_mechanism_is_compared_with_its_own_twins_and_its_own_sibling() -> None:
    """The sibling has the dataset, budget and seed of the learned one, at the same round; every number is distinct."""
    learned = Federation("a", "pl-learn", 0.98, 1)
    federations = [
        Federation("a", "pl-identical", 0.9, 1), Federation("a", "pl-identical", 0.98, 2),
        Federation("a", "pl-identical", 0.98, 1), Federation("a", "ls-static", 100, 1), learned,
    ]  # fmt: skip
    result = {
        (index, round_number, role): [outcome(10**index + round_number + 0.1 * place)]
        for index in range(5) for round_number in (0, 3) for place, role in enumerate(("own", *TWINS, "undistorted"))
    }  # fmt: skip
    rows = list(learned_against_static(federations, result, 0))
    assert [(row["round"], row["against"]) for row in rows] == [
        (0, TWINS[0]), (0, TWINS[1]), (3, TWINS[0]), (3, TWINS[1]), (3, "static, own trajectory"),
    ]  # fmt: skip
    assert [row["mse"] for row in rows] == pytest.approx([-0.1, -0.2, -0.1, -0.2, 10**4 - 10**2])
    assert all((row["mechanism"], row["budget"], row["seed"]) == ("pl-learn", 0.98, 1) for row in rows)
    assert {row["attack"] for row in rows} == {"lti"}


def test_attacks_are_compared_with_themselves() -> None:
    learned = Federation("a", "pl-learn", 0.98, 1)
    result = {
        (0, 0, "own"): [outcome(5.0, "invgrad"), outcome(7.0, "lti")],
        (0, 0, TWINS[0]): [outcome(1.0, "invgrad"), outcome(2.0, "lti")],
    }
    rows = list(learned_against_static([learned], result, 0))
    assert [(row["attack"], row["mse"]) for row in rows] == [("invgrad", 4.0), ("lti", 5.0)]


def test_intervals_of_differences_are_drawn_with_the_seed_of_the_audit(run: Run, federations: list[Federation]) -> None:
    one, two = (run(cheap(attacks=["lti"], releases=8, seed=seed), (0,), federations[2:]) for seed in (0, 1))
    for result, seed in ((one, 0), (two, 1)):
        own, twin = (next(o for o in result.outcomes if o.about["role"] == role) for role in ("own", TWINS[0]))
        gap = next(row for row in result.differences if row["against"] == TWINS[0])
        assert {name: gap[name] for name in differences(own, twin, seed)} == differences(own, twin, seed)
        assert differences(own, twin, seed) != differences(own, twin, 1 - seed)
