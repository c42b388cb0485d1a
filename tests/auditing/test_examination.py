"""Every federation at chosen rounds: roles, controls, pairing, and each cell attacked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.auditing import examination
from equipoise.auditing.examination import Findings, examine, materials_of, server_of, static_name
from equipoise.auditing.targets import Options
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.datasets import load_dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import DataError
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import MECHANISMS, mechanism
from tests.audit_helpers import cheap, write_pictures

SETTINGS = Settings(rounds=2, evaluate_every=2, model="mlp", init="torch", batch=2, steps=2, public_fraction=0.6)
TWINS = ["static, equal lower bound", "static, equal final norm"]
Examine = Callable[..., Findings]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_pictures(tmp_path_factory.mktemp("data") / "pictures"))


@pytest.fixture(scope="module")
def federations(data: str) -> list[Federation]:
    return [Federation(data, "none"), Federation(data, "pl-identical", 0.98), Federation(data, "pl-learn", 0.98)]


@pytest.fixture(scope="module")
def run(federations: list[Federation]) -> Examine:
    """``examine`` at the weights of a sweep, with all that it needs."""
    made: dict[tuple[Any, ...], tuple[Sweep, dict[int, torch.Tensor]]] = {}

    def call(
        options: Options, rounds: tuple[int, ...] = (0,), given: list[Federation] | None = None, **more: Any
    ) -> Findings:
        feds = federations if given is None else given
        key = (rounds, *map(repr, feds))
        if key not in made:
            sweep = Sweep(SETTINGS, feds)
            place, weights = [sweep.order.index(i) for i in range(len(feds))], {}
            for when in rounds:
                sweep.train(when)
                weights[when] = sweep.state.params[place].clone()
            made[key] = sweep, weights
        sweep, weights = made[key]
        return examine(SETTINGS, feds, sweep.datasets, sweep.batched, weights, options, **more)

    return call


def roles(found: Findings, name: str) -> list[str]:
    return list(dict.fromkeys(one.about["role"] for one in found.outcomes if one.about["mechanism"] == name))


def test_every_mechanism_has_its_roles(run: Examine) -> None:
    found = run(cheap(attacks=["labels"]))
    assert roles(found, "none") == ["own"]
    assert roles(found, "pl-identical") == ["own", "undistorted"]
    assert roles(found, "pl-learn") == ["own", *TWINS, "undistorted"]
    assert roles(run(cheap(attacks=["labels"], twins=False)), "pl-learn") == ["own", "undistorted"]


def test_every_row_has_a_negative_control_and_the_role_undistorted_is_the_positive_one(run: Examine) -> None:
    """What is undistorted by itself is a result, not a control."""
    found = run(cheap(attacks=["lti", "membership"]))
    cells: dict[Any, list[Any]] = {}
    for row in found.rows:
        cells.setdefault((row["mechanism"], row["role"], row["attack"]), []).append(row["control"])
    assert {name for name, role, _ in cells if role == "undistorted"} == {"pl-identical", "pl-learn"}
    for (_, role, _), controls in cells.items():
        assert controls == ["positive" if role == "undistorted" else None, "negative"]


@pytest.mark.parametrize(("rounds", "cells"), [((0,), 4), ((2,), 7), ((0, 2), 11)])
def test_a_cell_that_occurs_twice_is_attacked_once(
    run: Examine, monkeypatch: pytest.MonkeyPatch, rounds: tuple[int, ...], cells: int
) -> None:
    """At round 0 all federations have the same weights: undistorted, static, learned and the louder static."""
    seen: list[Any] = []

    def counting(cell: Any, *arguments: Any) -> Any:
        seen.append(cell)
        return genuine(cell, *arguments)

    genuine = examination.attack_cell
    monkeypatch.setattr(examination, "attack_cell", counting)
    found = run(cheap(attacks=["labels"]), rounds)
    assert len(seen) == cells
    assert len(found.outcomes) == 7 * len(rounds), "and is reported wherever it occurs"


def test_the_static_twin_of_equal_lower_bound_is_the_static_mechanism(run: Examine) -> None:
    found = run(cheap(attacks=["lti"]))
    rows = {(row["mechanism"], row["role"]): row for row in found.rows if row["control"] != "negative"}
    own, twin = rows["pl-identical", "own"], rows["pl-learn", TWINS[0]]
    assert {name: own[name] for name in ("lower", "mse", "identification")} == {
        name: twin[name] for name in ("lower", "mse", "identification")
    }
    assert rows["pl-learn", "own"]["lower"] == own["lower"] == pytest.approx(7.99975)
    assert own["lower"] <= rows["pl-learn", TWINS[1]]["lower"] <= 2 * own["lower"] * (1 + 1e-4)
    assert rows["none", "own"]["lower"] == rows["pl-learn", "undistorted"]["lower"] == 0


def test_differences_are_own_minus_static_on_the_same_releases(run: Examine) -> None:
    found = run(cheap(attacks=["lti"]), (2,))
    assert [row["against"] for row in found.differences] == [*TWINS, "static, own trajectory"]
    rows = {(row["mechanism"], row["role"]): row for row in found.rows if row["control"] != "negative"}
    against = {
        **{name: rows["pl-learn", name] for name in TWINS},
        "static, own trajectory": rows["pl-identical", "own"],
    }
    for row in found.differences:
        gap = rows["pl-learn", "own"]["mse"] - against[row["against"]]["mse"]
        assert row["mse"] == pytest.approx(gap, abs=1e-6)
        assert row["mse_low"] - 1e-9 <= row["mse"] <= row["mse_high"] + 1e-9


def test_at_the_first_weights_there_is_no_other_trajectory(run: Examine) -> None:
    """At round 0 all federations have the same weights: the static one's are those of the first twin."""
    found = run(cheap(attacks=["lti"]), (0, 2)).differences
    against = {when: [row["against"] for row in found if row["round"] == when] for when in (0, 2)}
    assert against == {0: TWINS, 2: [*TWINS, "static, own trajectory"]}


def test_a_learned_mechanism_alone_has_no_other_trajectory(run: Examine, federations: list[Federation]) -> None:
    found = run(cheap(attacks=["lti"]), (2,), federations[2:])
    assert [row["against"] for row in found.differences] == TWINS


def test_static_mechanisms_have_no_differences(run: Examine, federations: list[Federation]) -> None:
    assert run(cheap(attacks=["lti"]), (0,), federations[:2]).differences == []


def test_progress_is_told_with_the_federation_the_round_and_the_role(
    run: Examine, federations: list[Federation]
) -> None:
    """Of all cells at round 0; one that occurs twice is told of once, where it is attacked."""
    told: list[tuple[str, float]] = []
    run(cheap(attacks=["lti", "labels"]), progress=lambda what, amount: told.append((what, amount)))
    plain, static, learned = (federation.label() for federation in federations)
    cells = [f"{plain} at 0, own", f"{static} at 0, own", f"{learned} at 0, own", f"{learned} at 0, {TWINS[1]}"]
    expected = [f"{cell}: {attack}" for cell in cells for attack in ("lti", "labels")]
    assert list(dict.fromkeys(what for what, _ in told)) == expected
    assert all(amount > 0 for _, amount in told)


def test_an_interrupted_examination_keeps_the_cells_that_were_finished(
    run: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(cheap(attacks=["lti"]))
    assert whole.complete
    cells: list[Any] = []

    def interrupted(cell: Any, *arguments: Any) -> Any:
        cells.append(cell)
        if len(cells) == 2:
            raise KeyboardInterrupt
        return genuine(cell, *arguments)

    genuine = examination.attack_cell
    monkeypatch.setattr(examination, "attack_cell", interrupted)
    found = run(cheap(attacks=["lti"]))
    assert len(cells) == 2, "nothing is attacked after it"
    assert not found.complete
    assert found.rows == [row for row in whole.rows if row["mechanism"] == "none"]
    assert [one.about["mechanism"] for one in found.outcomes] == ["none"]
    assert found.differences == []
    assert found.baselines == whole.baselines


@pytest.mark.parametrize("last", [4, 5, 7])
def test_interrupted_differences_are_those_of_the_roles_that_were_finished(
    run: Examine, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """At round 2: undistorted, static and its control, then the learned one, its twins and its control."""
    whole = run(cheap(attacks=["lti"]), (2,))
    seen: list[Any] = []

    def interrupted(cell: Any, *arguments: Any) -> Any:
        seen.append(cell)
        if len(seen) == last:
            raise KeyboardInterrupt
        return genuine(cell, *arguments)

    genuine = examination.attack_cell
    monkeypatch.setattr(examination, "attack_cell", interrupted)
    found = run(cheap(attacks=["lti"]), (2,))
    assert not found.complete
    assert found.rows == whole.rows[: 2 * (last - 1)]
    kept = {4: [], 5: ["static, own trajectory"], 7: [*TWINS, "static, own trajectory"]}[last]
    assert found.differences == [row for row in whole.differences if row["against"] in kept]
    assert len(found.differences) == len(kept)


def test_targets_are_public_unless_private(data: str) -> None:
    dataset = load_dataset(SETTINGS, data)
    assert torch.equal(materials_of(dataset).targets[0], dataset.public_targets.images)
    assert torch.equal(materials_of(dataset, private=True).targets[0], dataset.train.images)
    for private in (False, True):
        assert torch.equal(materials_of(dataset, private).attack[0], dataset.public_attack.images)
        assert torch.equal(materials_of(dataset, private).candidates[0], dataset.public_candidates.images)


def test_data_without_public_images_cannot_be_audited(few: Dataset) -> None:
    parts = ((part.images, part.labels) for part in (few.train, few.test, few.validation))
    private = from_tensors(*parts, classes=few.classes)
    with pytest.raises(DataError, match="no public images"):
        materials_of(private)


def test_a_schedule_is_read_at_the_round_that_is_attacked() -> None:
    settings = replace(SETTINGS, lr={"rounds": [1, 5], "values": [0.1, 0.3]})
    federation = Federation("mnist", "pl-learn", {"rounds": [1, 5], "values": [[0.96, 0.9, 0.9, 0.9], 0.98]})
    early, late = (settings.at(federation.mechanism, federation.budget, when) for when in (4, 5))
    assert (early.scale, late.scale) == (pytest.approx(15.99975), pytest.approx(7.99975))
    assert (early.lr, late.lr) == (0.1, 0.3)
    assert (early.steps, early.factor) == (2, 2.0)
    nothing = settings.at("none", None, 1)
    assert (nothing.scale, nothing.mechanism.distorts) == (0.0, False)
    assert settings.at(mechanism("pl-learn"), federation.budget, 4) == early, "by name or as it is"


@pytest.mark.parametrize("moments", [(0.3, 0.5), ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))], ids=["shared", "per channel"])
def test_the_server_knows_the_range_of_normalised_pixels(moments: tuple[Any, Any]) -> None:
    mean, std = moments
    shape = (3, 4, 4)
    pixels = torch.rand(12, *shape, generator=torch.Generator().manual_seed(1))
    pixels[0], pixels[1] = 0.0, 1.0
    centre, spread = (torch.tensor(m).expand(3).view(3, 1, 1) for m in moments)
    pair = (pixels - centre) / spread, torch.arange(12) % 2
    dataset = from_tensors(pair, pair, pair, classes=2, mean=mean, std=std)
    server = server_of(SETTINGS, dataset, None, Protection(mechanism("none"), 0.0))  # type: ignore[arg-type]
    low, high = (torch.as_tensor(edge).expand(3, 1, 1) for edge in (server.low, server.high))
    assert torch.allclose(low, pair[0].amin((0, 2, 3)).view(3, 1, 1), atol=1e-5)
    assert torch.allclose(high, pair[0].amax((0, 2, 3)).view(3, 1, 1), atol=1e-5)
    assert (server.shape, server.classes, server.examples) == (shape, 2, 2)


def test_every_learned_mechanism_has_a_static_one() -> None:
    assert static_name("pl-learn") == "pl-identical"
    for name, kind in MECHANISMS.items():
        found = static_name(name)
        assert (found is not None) == kind.learns
        if found is not None:
            assert replace(MECHANISMS[found], name="") == replace(kind, name="", learns=False)


def test_private_targets_are_those_of_the_clients(run: Examine, data: str) -> None:
    train = {image.numpy().tobytes() for image in load_dataset(SETTINGS, data).train.images}
    for private in (False, True):
        found = run(cheap(attacks=["labels"]), private=private)
        (targets,) = found.targets.values()
        assert [image.numpy().tobytes() in train for image in targets.images.flatten(0, 1)] == [private] * 4


def test_the_place_of_the_data_does_not_change_what_is_found(run: Examine, tmp_path: Path) -> None:
    other = str(write_pictures(tmp_path / "elsewhere" / "pictures"))
    one, two = run(cheap(attacks=["lti"])), run(cheap(attacks=["lti"]), (0,), [Federation(other, "none")])
    assert one.rows[0]["mse"] == pytest.approx(two.rows[0]["mse"], rel=1e-5)
