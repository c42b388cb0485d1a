"""``audit`` of updates of one's own, ``audit_run`` of a run folder, and what they write."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from equipoise.attack.results import Inversion
from equipoise.auditing import cells as trial
from equipoise.auditing import run_audit as auditing
from equipoise.auditing import update_audit as updates
from equipoise.auditing.audit import Audit
from equipoise.auditing.options import Options
from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.svg import as_pixels, png
from equipoise.auditing.update_audit import audit
from equipoise.engine.datasets import load_dataset
from equipoise.engine.settings import Settings
from equipoise.errors import CheckpointError, ConfigError, DataError, EquipoiseError, ModelError, ReleaseError
from equipoise.mechanism.protect import protect
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.audit_helpers import cheap, settings_for, train_run, write_pictures

SHAPE, CLASSES = (1, 6, 6), 3
State = dict[str, Tensor]
Call = Callable[..., Audit]


def network(seed: int = 1, inputs: int = 36) -> nn.Sequential:
    """A small sigmoid network; its parameters come from a generator of its own."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 12), nn.Sigmoid(), nn.Linear(12, CLASSES))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_((torch.rand(tensor.shape, generator=generator) - 0.5) / 2)
    return model


def gradient_of(model: nn.Module, x: Tensor, y: Tensor, loss: Any = nn.functional.cross_entropy) -> State:
    found = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
    return {name: part for (name, _), part in zip(model.named_parameters(), found, strict=True)}


def moved(model: nn.Module, gradient: State, eta: float = 0.1) -> State:
    return {name: tensor.detach() - eta * gradient[name] for name, tensor in model.named_parameters()}


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model() -> nn.Sequential:
    return network()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return numbers(2, *SHAPE), torch.tensor([0, 2])


@pytest.fixture
def public() -> tuple[Tensor, Tensor]:
    return numbers(60, *SHAPE, seed=4), torch.arange(60) % CLASSES


@pytest.fixture
def call(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Call:
    """``audit`` with all that it needs, to be changed by name."""

    def run(**change: Any) -> Audit:
        given = {"model": model, "before": model.state_dict(), "labels": batch[1], "truth": batch[0]}
        given |= {"options": cheap(attacks=["invgrad"])}
        if not {"after", "gradient"} & change.keys():
            given["gradient"] = gradient_of(model, *batch)
        return audit(**{**given, **change})

    return run


def own(found: Audit) -> list[dict[str, Any]]:
    """What the attacks got from the update itself: no static twin, no control."""
    return [row for row in found.rows if row["role"] == "own" and row["control"] is None]


def searched(iterations: int = 300, **change: Any) -> Options:
    return cheap(attacks=["invgrad"], iterations=iterations, **change)


def approx(row: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-3) -> None:
    assert row.keys() == other.keys()
    for name, value in row.items():
        if isinstance(value, float):
            assert other[name] == pytest.approx(value, rel=tolerance, abs=1e-6), name
        else:
            assert other[name] == value, name


# --- what an update of one's own gives away ---------------------------------------------------------------------


def test_states_and_a_gradient_say_the_same(call: Call, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    by_gradient, by_states = call(), call(after=moved(model, gradient_of(model, *batch)))
    approx(by_gradient.rows[0], by_states.rows[0])
    assert torch.allclose(by_gradient.reconstructions["invgrad"], by_states.reconstructions["invgrad"], atol=1e-2)


def test_several_updates_are_what_each_is_alone(call: Call, model: nn.Module) -> None:
    pairs = [(numbers(2, *SHAPE, seed=seed), torch.tensor([seed % 2 * 2, 1])) for seed in (5, 6, 7)]
    updates = [gradient_of(model, *pair) for pair in pairs]
    truth, labels = (torch.stack(part) for part in zip(*pairs, strict=True))
    given: dict[str, Any] = {"bounds": (0.0, 1.0), "options": searched()}
    together = call(gradient=updates, truth=truth, labels=labels, **given)
    assert together.rows[0]["targets"] == 3
    assert together.reconstructions["invgrad"].shape == (3, 2, *SHAPE)
    for i, (x, y) in enumerate(pairs):
        alone = call(gradient=updates[i], truth=x, labels=y, **given)
        assert torch.allclose(together.reconstructions["invgrad"][i], alone.reconstructions["invgrad"][0], atol=0.05)
    each = call(before=[model.state_dict()] * 3, gradient=updates, truth=truth, labels=labels, **given)
    approx(together.rows[0], each.rows[0])


def test_an_undefended_image_is_recovered(call: Call, public: tuple[Tensor, Tensor], batch: Any) -> None:
    found = call(options=searched(), public=public)
    (row,) = own(found)
    guesses = found.found["baselines"]["given"]
    assert set(guesses) >= {"black", "class_mean", "noise"}
    assert row["mse"] < 0.01 * min(guess["mse"] for guess in guesses.values())
    assert row["identification"] == 1
    assert torch.allclose(found.reconstructions["invgrad"][0], batch[0], atol=0.05)
    (chance,) = [row for row in found.rows if row["control"] == "negative"]
    assert chance["mse"] > 10 * row["mse"]


def test_a_heavily_distorted_image_is_not(call: Call, model: nn.Module, batch: Any, public: Any) -> None:
    sent = protect(model, model.state_dict(), batch, "pl-identical", 0.98, experiment_seed=1).parameters
    found = call(after=sent, mechanism="pl-identical", budget=0.98, options=searched(), public=public)
    (row,) = own(found)
    assert (row["mechanism"], row["budget"]) == ("pl-identical", 0.98)
    assert row["mse"] > found.found["baselines"]["given"]["class_mean"]["mse"]


@pytest.mark.parametrize("known", [False, True])
def test_labels_are_inferred_where_they_are_not_granted(call: Call, public: Any, known: bool) -> None:
    more = {"public": public} if known else {}
    granted, inferred = call(options=searched(), **more), call(options=searched(), grant_labels=False, **more)
    assert granted.rows[0]["labels_granted"]
    assert not inferred.rows[0]["labels_granted"]
    assert inferred.rows[0]["mse"] == pytest.approx(granted.rows[0]["mse"], abs=1e-4)


def test_every_role_says_rightly_whether_its_labels_were_granted(
    call: Call, model: nn.Module, batch: Any, public: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins and the control are told apart from the update by its defence alone, not by what the attacker knows."""
    seen: list[Tensor] = []

    def watching(server: Any, view: Any, *rest: Any) -> Inversion:
        seen.append(view.labels)
        return Inversion(torch.full((1, 2, *SHAPE), 0.5), torch.zeros(1))

    monkeypatch.setitem(trial.INVERSIONS, "invgrad", watching)
    monkeypatch.setattr(updates, "infer_labels", lambda *given: torch.tensor([[1, 1]]))  # wrong ones
    monkeypatch.setattr(trial, "infer_labels", lambda *given: torch.tensor([[1, 1]]))
    sent = protect(model, model.state_dict(), batch, "pl-learn", 0.98, settings=Settings(steps=2)).parameters
    found = call(
        after=sent, mechanism="pl-learn", budget=0.98, settings=Settings(steps=2), public=public, grant_labels=False
    )
    rows = [row for row in found.rows if row["control"] != "negative"]
    assert [row["role"] for row in rows] == ["own", "static, equal lower bound", "static, equal final norm",
                                             "undistorted"]  # fmt: skip
    assert [row["labels_granted"] for row in rows] == [bool((labels == batch[1]).all()) for labels in seen]


def test_the_order_of_the_truth_is_of_no_account_where_labels_are_inferred(call: Call, batch: Any) -> None:
    """The attacker does not know which image has which label: its reconstructions have no order to be held to."""
    one, two = (
        call(options=searched(), grant_labels=False, truth=truth, labels=labels).rows[0]["mse"]
        for truth, labels in (batch, (batch[0].flip(0), batch[1].flip(0)))
    )
    assert two == pytest.approx(one, abs=1e-4)


def test_inferred_labels_are_not_scored_against_themselves(call: Call, model: nn.Module, public: Any) -> None:
    """Labels from pure noise are right no more often than by chance, whatever the attacker inferred."""
    noise = {name: torch.randn(part.shape, generator=torch.Generator().manual_seed(9)) for name, part in
             model.named_parameters()}  # fmt: skip
    wrong = torch.tensor([0, 0])
    options = cheap(attacks=["labels"])
    found = [
        call(gradient=noise, labels=labels, grant_labels=False, public=public, options=options).rows[0]["labels"]
        for labels in (wrong, wrong + 1, wrong + 2)
    ]
    assert sum(found) == pytest.approx(1.0), "two guesses are right about two of the three"


def test_granted_labels_score_the_guess_of_labels(call: Call, public: Any) -> None:
    found = call(public=public, options=cheap(attacks=["labels"], samples=200))
    (row,) = own(found)
    assert 0 <= row["labels_exact"] <= row["labels"] <= 1


@pytest.mark.parametrize("known", [False, True])
def test_without_the_truth_there_are_reconstructions_and_no_scores(call: Call, public: Any, known: bool) -> None:
    attacks = ["invgrad", "lti"] if known else ["invgrad"]
    found = call(
        truth=None, shape=SHAPE, public=public if known else None, options=cheap(attacks=attacks), labels=None, batch=2
    )
    assert list(found.reconstructions) == attacks
    assert all(images.shape == (1, 2, *SHAPE) for images in found.reconstructions.values())
    assert [row["attack"] for row in found.rows] == [*attacks, "labels"]
    assert found.rows[-1]["guess"] == [[0, 2]]
    assert not any(name in row for row in found.rows for name in ("mse", "identification", "evidence"))
    assert found.found["targets"] == "unknown"


def test_a_reconstruction_needs_no_truth(call: Call, batch: Any) -> None:
    found = call(truth=None, shape=SHAPE, options=searched())
    assert torch.allclose(found.reconstructions["invgrad"][0], batch[0], atol=0.05)


def test_all_attacks_run_by_default_where_all_is_given(
    call: Call, public: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "Options", lambda: cheap(attacks=Options().attacks))
    for given, attacks in (
        ({}, ["invgrad"]),
        ({"public": public}, ["invgrad", "lti", "matched", "membership", "labels"]),
        ({"public": public, "truth": None}, ["invgrad", "lti"]),
    ):
        found = call(options=None, **given)
        assert list(dict.fromkeys(row["attack"] for row in found.rows)) == attacks


@pytest.mark.parametrize("known", [False, True])
def test_inputs_need_not_be_images(tmp_path: Path, known: bool) -> None:
    model, x, y = network(inputs=6), numbers(2, 6), torch.tensor([2, 0])
    more: dict[str, Any] = {"public": (numbers(60, 6, seed=4), torch.arange(60) % CLASSES)} if known else {}
    options = cheap(attacks=["invgrad", "lti", "matched", "membership", "labels"] if known else ["invgrad"])
    found = audit(
        model, model.state_dict(), gradient=gradient_of(model, x, y), labels=y, truth=x, options=options, show=True,
        **more,
    )  # fmt: skip
    assert found.reconstructions["invgrad"].shape == (1, 2, 6)
    assert [path.name for path in found.save(tmp_path)] == ["audit.json"], "there is nothing to draw"


@pytest.mark.parametrize("name", ["pl-learn", "ls-static"])
def test_a_mechanism_with_its_budget_is_simulated(
    call: Call, model: nn.Module, batch: Any, public: Any, name: str
) -> None:
    budget = 0.98 if name == "pl-learn" else 200
    settings = Settings(steps=2)
    sent = protect(model, model.state_dict(), batch, name, budget, settings=settings, experiment_seed=1).parameters
    found = call(after=sent, mechanism=name, budget=budget, settings=settings, public=public, options=cheap())
    assert {row["attack"] for row in found.rows} == {"invgrad", "lti", "matched", "membership", "labels"}
    assert {(row["mechanism"], row["budget"]) for row in found.rows} == {(name, budget)}
    roles = ["own", *sorted(TWINS)] if name == "pl-learn" else ["own"]
    expected = {(role, control) for role in roles for control in (None, "negative")}
    expected |= {("undistorted", "positive"), ("undistorted", "negative")}
    for attack in ("invgrad", "lti", "matched", "membership", "labels"):
        mine = [(row["role"], row["control"]) for row in found.rows if row["attack"] == attack]
        assert set(mine) == expected
        assert len(mine) == len(expected), "each once"
    membership = next(row for row in own(found) if row["attack"] == "membership")
    assert 0 <= membership["membership_auc"] <= 1


def test_an_undefended_update_needs_no_control(call: Call, public: Any) -> None:
    found = call(public=public, options=cheap(attacks=["invgrad", "lti"]))
    assert {(row["role"], row["control"]) for row in found.rows} == {("own", None), ("own", "negative")}


@pytest.mark.parametrize("change", [{}, {"twins": False}])
def test_twins_need_public_data_and_can_be_left_out(call: Call, public: Any, change: dict[str, Any]) -> None:
    """The undistorted control needs neither: it is computed from the truth."""
    given: dict[str, Any] = {"mechanism": "pl-learn", "budget": 0.98, "settings": Settings(steps=2)}
    more = {"public": public} if change else {}
    found = call(**given, **more, options=cheap(attacks=["invgrad"], **change))
    assert {row["role"] for row in found.rows} == {"own", "undistorted"}
    assert next(row["control"] for row in found.rows if row["role"] == "undistorted") == "positive"


def test_the_positive_control_shows_what_the_attack_can_do(
    call: Call, model: nn.Module, batch: Any, public: Any
) -> None:
    """The same search that fails on the distorted update recovers the same inputs where nothing distorts them."""
    sent = protect(model, model.state_dict(), batch, "pl-identical", 0.98, experiment_seed=1).parameters
    found = call(after=sent, mechanism="pl-identical", budget=0.98, options=searched(), public=public)
    (row,) = own(found)
    (control,) = [one for one in found.rows if one["control"] == "positive"]
    (plain,) = own(call(options=searched(), public=public))
    assert control["mse"] == pytest.approx(plain["mse"], abs=1e-4)
    assert control["mse"] < 0.01 * row["mse"]
    assert torch.equal(found.reconstructions["invgrad"], call(
        after=sent, mechanism="pl-identical", budget=0.98, options=searched(),
        public=public).reconstructions["invgrad"])  # fmt: skip
    distance = (found.reconstructions["invgrad"][0] - batch[0]).square().mean()
    assert float(distance) == pytest.approx(row["mse"], rel=1e-4), "the update's own, not the control's"


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - torch.eye(CLASSES)[labels]).square().sum(1).mean()


def test_a_loss_of_ones_own_is_the_one_that_is_inverted(call: Call, model: nn.Module, batch: Any) -> None:
    update = gradient_of(model, *batch, loss=squared)
    right, wrong = (call(gradient=update, loss=loss, options=searched()).rows[0] for loss in (squared, None))
    assert right["mse"] < 1e-3
    assert right["cost"] < 0.1 * wrong["cost"]


def test_a_model_of_double_precision_stays_so(batch: Any, public: Any) -> None:
    model = network().double()
    x, y = batch[0].double(), batch[1]
    options = cheap(attacks=["invgrad", "lti", "matched", "membership", "labels"])
    found = audit(model, model.state_dict(), gradient=gradient_of(model, x, y), labels=y, truth=batch[0],
                  public=public, options=options)  # fmt: skip
    assert all(images.dtype == torch.float64 for images in found.reconstructions.values())
    single = network()
    same = audit(single, single.state_dict(), gradient=gradient_of(single, *batch), labels=y, truth=batch[0],
                 public=public, options=cheap(attacks=["lti"]))  # fmt: skip
    lti = next(row for row in found.rows if row["attack"] == "lti")
    assert lti["mse"] == pytest.approx(same.rows[0]["mse"], rel=0.05)


@pytest.mark.parametrize("training", [False, True])
def test_nothing_of_the_caller_changes(call: Call, model: nn.Module, public: Any, training: bool) -> None:
    model.train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[union-attr]
    for more in ({}, {"grant_labels": False, "options": cheap(attacks=["invgrad", "lti", "labels"])}):
        call(**{"public": public, "options": cheap(), **more})
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[union-attr]
    assert random.getstate() == states[2]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(part.training == training for part in model.modules())
    assert all(tensor.requires_grad and tensor.grad is None for tensor in model.parameters())


def test_the_same_audit_finds_the_same(call: Call, public: Any) -> None:
    one, two = (call(public=public, options=cheap(), show=True) for _ in range(2))
    assert one.found == two.found
    assert one.picture() == two.picture()


@pytest.mark.parametrize(("count", "evidence"), [(19, "insufficient evidence"), (20, "ok")])
def test_few_releases_are_insufficient_evidence(
    call: Call, model: nn.Module, batch: Any, count: int, evidence: str
) -> None:
    x, y = batch
    found = call(gradient=[gradient_of(model, x, y)] * count, truth=x.expand(count, *x.shape))
    assert (found.rows[0]["targets"], found.rows[0]["evidence"]) == (count, evidence)


def test_public_data_may_be_sorted_by_label(call: Call, public: Any) -> None:
    order = public[1].argsort(stable=True)
    found = call(public=(public[0][order], public[1][order]), options=cheap())
    assert {row["attack"] for row in found.rows} == {"invgrad", "lti", "matched", "membership", "labels"}


def test_impostors_are_not_among_the_decoys(call: Call, public: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control that is also a decoy ties with itself, and chance looks smaller than it is."""
    seen: list[Any] = []
    genuine = updates.attack_cell

    def watching(cell: Any, targets: Any, *rest: Any) -> Any:
        seen.append(targets)
        return genuine(cell, targets, *rest)

    monkeypatch.setattr(updates, "attack_cell", watching)
    call(public=public, options=cheap(attacks=["invgrad"]))
    (targets,) = seen
    assert not bool((targets.decoys == targets.impostor.unsqueeze(2)).any())
    assert not bool((targets.decoys == targets.truth.unsqueeze(2)).any())
    assert not bool((targets.others.unsqueeze(2) == targets.truth.unsqueeze(1)).any())


# --- what is written --------------------------------------------------------------------------------------------


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def test_an_audit_is_saved_as_json_and_picture(call: Call, public: Any, tmp_path: Path) -> None:
    found = call(public=public, options=cheap(attacks=["invgrad", "lti"]), show=True)
    assert [path.name for path in found.save(tmp_path / "deep" / "place")] == ["audit.json", "audit.svg"]
    text = (tmp_path / "deep" / "place" / "audit.json").read_text(encoding="utf-8")
    stored = json.loads(text, parse_constant=refuse)
    assert (stored["schema"], stored["experiment"], stored["targets"]) == (1, "audit of given updates", "given")
    assert set(stored["claims"]) == {"proved", "measured", "not claimed"}
    assert stored["complete"] is True
    assert [row["attack"] for row in stored["attacks"]] == ["invgrad", "invgrad", "lti", "lti"]
    drawn = (tmp_path / "deep" / "place" / "audit.svg").read_text(encoding="utf-8")
    assert drawn == found.picture()
    assert len(images_of(drawn)) == 3 * 2, "originals and two reconstructions of a batch of two"
    for word in (str(tmp_path), str(Path.home()), str(Path(auditing.__file__).parents[2])):
        assert word not in text + drawn


def test_the_real_inputs_are_not_drawn_unless_asked_for(call: Call, public: Any, batch: Any, tmp_path: Path) -> None:
    options = cheap(attacks=["invgrad", "lti"])
    real = {png(image) for image in as_pixels(batch[0])}
    shown = call(public=public, options=options, show=True, bounds=(0.0, 1.0))
    assert [path.name for path in shown.save(tmp_path)] == ["audit.json", "audit.svg"]
    assert real <= set(images_of((tmp_path / "audit.svg").read_text()))
    hidden = call(public=public, options=options, bounds=(0.0, 1.0))
    assert [path.name for path in hidden.save(tmp_path)] == ["audit.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"], "nor is an older picture left"
    assert not real & set(images_of(hidden.picture()))
    assert hidden.found == shown.found


def test_numbers_that_json_does_not_know_are_null(call: Call, tmp_path: Path) -> None:
    found = call()
    found.rows[0] |= {"psnr": float("inf"), "cost": float("nan")}
    found.save(tmp_path)
    stored = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)
    assert (stored["attacks"][0]["psnr"], stored["attacks"][0]["cost"]) == (None, None)


def test_a_perfect_guess_is_written_with_a_finite_psnr(
    call: Call, batch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def perfect(server: Any, view: Any, *rest: Any) -> Inversion:
        return Inversion(batch[0].unsqueeze(0).clone(), torch.zeros(1))

    monkeypatch.setitem(trial.INVERSIONS, "invgrad", perfect)
    call().save(tmp_path)
    (row,) = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)["attacks"]
    assert (row["mse"], row["psnr"]) == (0, 100)
    assert "not_finite" not in row


def test_an_audit_without_truth_is_saved_too(call: Call, tmp_path: Path) -> None:
    found = call(truth=None, shape=SHAPE)
    found.save(tmp_path)
    stored = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)
    assert (stored["experiment"], stored["targets"]) == ("audit of given updates", "unknown")
    assert "environment" in stored


# --- refusals ---------------------------------------------------------------------------------------------------


def test_either_a_state_or_a_gradient_is_needed(call: Call, model: nn.Module) -> None:
    for more in ({}, {"shape": SHAPE}):
        with pytest.raises(ConfigError, match="after= or gradient="):
            call(after=model.state_dict(), gradient=model.state_dict(), **more)
        with pytest.raises(ConfigError, match="after= or gradient="):
            call(gradient=None, after=None, **more)


@pytest.mark.parametrize("which", ["before", "after", "gradient"])
def test_tensors_that_are_missing_or_of_another_shape_are_named(call: Call, model: nn.Module, which: str) -> None:
    state = model.state_dict()
    del state["1.bias"]
    with pytest.raises(ModelError, match=r"Missing tensors: 1\.bias"):
        call(**{which: state})
    state = model.state_dict()
    state["1.weight"] = state["1.weight"][:3]
    with pytest.raises(ModelError, match=r"1\.weight \(3, 36\) instead of \(12, 36\)"):
        call(**{which: state})


@pytest.mark.parametrize("which", ["before", "after", "gradient"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_refused(
    call: Call, model: nn.Module, public: Any, which: str, value: float
) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["3.bias"][1] = value
    for attack in ("invgrad", "lti", "matched", "membership", "labels"):
        with pytest.raises(ReleaseError, match="not finite"):
            call(**{which: state}, public=public, options=cheap(attacks=[attack]))
    with pytest.raises(ReleaseError, match="not finite"):
        call(**{which: state}, grant_labels=False)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("beyond", [(-0.5, 1.0), (0.0, 3.0)], ids=["below", "above"])
def test_a_truth_outside_the_bounds_is_refused(
    call: Call, batch: Any, public: Any, known: bool, beyond: tuple[float, float]
) -> None:
    """The attacker does not know the range of the truth: it is not widened for it."""
    truth = beyond[0] + batch[0] * (beyond[1] - beyond[0])
    more: dict[str, Any] = {"public": public} if known else {}
    with pytest.raises(DataError, match=r"Part of the truth lies outside .*bounds="):
        call(truth=truth, **more)
    assert call(truth=truth, bounds=beyond, **more).rows


@pytest.mark.parametrize("known", [False, True])
def test_bounds_are_those_of_the_public_inputs_and_never_of_the_truth(
    call: Call, batch: Any, public: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    genuine = updates.attack_cell

    def watching(cell: Any, *rest: Any) -> Any:
        seen.append(cell.server)
        return genuine(cell, *rest)

    monkeypatch.setattr(updates, "attack_cell", watching)
    wide = 3 * public[0] - 1
    for truth in (batch[0], batch[0] / 2, torch.full_like(batch[0], 0.25)):
        call(truth=truth, **({"public": (wide, public[1])} if known else {}))
    expected = (float(wide.min()), float(wide.max())) if known else (0.0, 1.0)
    assert [(server.low, server.high) for server in seen] == [expected] * 3


Y = torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"labels": Y + 1}, DataError, r"0\.\.2, got 1\.\.3"),
        ({"labels": Y - 1}, DataError, r"0\.\.2, got -1\.\.1"),
        ({"labels": Y.int()}, DataError, "int64"),
        ({"labels": Y.float()}, DataError, "int64"),
        ({"labels": Y.expand(3, 2)}, DataError, "labels of shape"),
        ({"labels": [0, 2]}, DataError, "labels"),
        ({"labels": torch.tensor(1)}, DataError, "labels"),
        ({"labels": Y[:0], "truth": None, "shape": SHAPE}, DataError, "no known examples"),
        ({"labels": None, "truth": None, "shape": SHAPE}, DataError, "batch="),
        ({"labels": None}, DataError, "needs its labels"),
        ({"labels": None, "truth": None, "shape": SHAPE, "batch": 0}, DataError, "no known examples"),
        ({"gradient": [], "shape": SHAPE}, ReleaseError, "no update"),
        ({"truth": numbers(4, *SHAPE)}, DataError, "Expected the truth as"),
        ({"truth": numbers(2, 1, 5, 5), "shape": SHAPE}, DataError, "Expected the truth as"),
        ({"truth": numbers(2, 1, 5, 5)}, EquipoiseError, r"\(2, 1, 5, 5\)"),
        ({"truth": numbers(2, *SHAPE) * float("nan")}, DataError, "finite"),
        ({"truth": numbers(2, *SHAPE).numpy()}, DataError, "truth"),
        ({"truth": None}, ConfigError, "shape of one input is not known"),
        ({"truth": None, "shape": (1, 5, 5)}, ModelError, "forward failed"),
        ({"mechanism": "pl-learn"}, ConfigError, "'pl-learn' needs a budget"),
        ({"budget": 0.98}, ConfigError, "'none' takes no budget"),
        ({"mechanism": "pl-lern", "budget": 0.98}, ConfigError, "Did you mean 'pl-learn'"),
        ({"mechanism": "pl-learn", "budget": 1.2}, EquipoiseError, "budget"),
        ({"settings": Settings(local_steps=3)}, DataError, "equal local steps"),
        ({"bounds": (1.0, 0.0)}, EquipoiseError, "bounds"),
        ({"bounds": (float("nan"), 1.0)}, EquipoiseError, "bounds"),
        ({"options": Options(attacks=["invgard"])}, ConfigError, "Did you mean 'invgrad'"),
        ({"options": Options(attacks=["lti"])}, ConfigError, "lti needs public"),
        ({"options": Options(iterations=0)}, ConfigError, "iterations=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_audited_is_refused(
    call: Call, change: dict[str, Any], error: type[EquipoiseError], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(**change)


def test_updates_and_starts_must_pair(call: Call, model: nn.Module, batch: Any) -> None:
    update = gradient_of(model, *batch)
    with pytest.raises(ReleaseError, match="2 states before 3 updates"):
        call(before=[model.state_dict()] * 2, gradient=[update] * 3, shape=SHAPE)


def test_matched_needs_the_truth_to_look_for(call: Call, public: Any) -> None:
    with pytest.raises(ConfigError, match="truth="):
        call(truth=None, public=public, options=cheap(attacks=["matched"]))


@pytest.mark.parametrize("rows", [[], [0], [0, 3, 6, 9, 12, 15]], ids=["none", "one", "one label"])
def test_public_data_that_lack_a_label_are_refused(call: Call, public: Any, rows: list[int]) -> None:
    with pytest.raises(DataError):
        call(public=(public[0][rows], public[1][rows]), options=cheap())


class Rounded(nn.Module):
    """Its gradient depends on the inputs in steps, of which every derivative is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc((4 * x.flatten(1)).round())
        return out


def test_a_model_that_cannot_be_differentiated_twice_is_refused(call: Call, batch: Any) -> None:
    model = Rounded()
    with pytest.raises(ModelError, match="use lti, matched or membership"):
        call(model=model, before=model.state_dict(), gradient=gradient_of(model, *batch))


def test_a_model_with_running_statistics_is_refused(call: Call) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, CLASSES))
    with pytest.raises(ModelError, match="BatchNorm1d"):
        call(model=model, before=model.state_dict(), gradient=model.state_dict())


def test_a_model_without_trainable_parameters_is_refused(call: Call, model: nn.Module, batch: Any) -> None:
    update = gradient_of(model, *batch)
    with pytest.raises(ModelError, match="no trainable parameters"):
        call(model=model.requires_grad_(False), gradient=update)


# --- a run folder -----------------------------------------------------------------------------------------------

TWINS = {"static, equal lower bound", "static, equal final norm"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "run", pictures)


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="module")
def audited(trained: Path) -> Audit:
    return audit_run(trained, cheap())


def images_of(drawn: str) -> list[bytes]:
    root = ElementTree.fromstring(drawn)
    found = root.iter("{http://www.w3.org/2000/svg}image")
    return [base64.b64decode(part.attrib["href"].partition("base64,")[2], validate=True) for part in found]


def test_the_first_an_early_and_the_last_snapshot_are_attacked(audited: Audit, trained: Path) -> None:
    assert len(list((trained / "snapshots").iterdir())) == 4
    assert sorted({row["round"] for row in audited.rows}) == [0, 1, 3]


def test_the_rounds_may_be_chosen(trained: Path) -> None:
    found = audit_run(trained, cheap(attacks=["labels"]), rounds=[2, 0, 2])
    assert sorted({row["round"] for row in found.rows}) == [0, 2]


@pytest.mark.parametrize("rounds", [[5], [0, 5], []])
def test_a_snapshot_that_is_not_there_is_refused_with_those_that_are(trained: Path, rounds: list[int]) -> None:
    with pytest.raises(ConfigError, match="There are: 0, 1, 2, 3"):
        audit_run(trained, cheap(), rounds=rounds)


def test_a_learned_mechanism_has_every_role_and_control(audited: Audit) -> None:
    for attack in audited.found["options"]["attacks"]:
        for when in (0, 1, 3):
            mine = [
                (row["role"], row["control"]) for row in audited.rows
                if (row["mechanism"], row["attack"], row["round"]) == ("pl-learn", attack, when)
            ]  # fmt: skip
            expected = {(role, control) for role in ("own", *TWINS) for control in (None, "negative")}
            assert set(mine) == expected | {("undistorted", "positive"), ("undistorted", "negative")}
            assert len(mine) == len(set(mine)), "each once"


def test_the_rows_hold_what_the_schema_says(audited: Audit) -> None:
    kinds = {row["attack"]: row for row in audited.rows if row["role"] == "own" and row["control"] != "negative"}
    for row in audited.rows:
        assert {"attack", "mechanism", "budget", "seed", "round", "targets", "evidence", "control"} <= row.keys()
        assert (row["targets"], row["evidence"]) == (2, "insufficient evidence")
        assert row["budget"] == (None if row["mechanism"] == "none" else 0.98)
    places = {"identification", "identification_low", "identification_high"}
    assert {"mse", "mse_pixel", "psnr", "ssim", "leakage", *places} <= kinds["invgrad"].keys()
    assert {"mse", "mse_pixel", "psnr", "ssim", *places} <= kinds["lti"].keys()
    assert places <= kinds["matched"].keys()
    assert {"membership_auc", "membership_score"} <= kinds["membership"].keys()
    assert {"labels", "labels_exact"} <= kinds["labels"].keys()
    (guesses,) = audited.found["baselines"].values()
    assert {"black", "class_mean", "noise"} <= set(guesses)
    assert all({"mse", "mse_pixel", "psnr", "ssim", "leakage"} <= row.keys() for row in guesses.values())
    assert audited.found["schema"] == 1
    assert audited.found["complete"] is True
    assert audited.found["targets"] == "public"
    assert set(audited.found["claims"]) == {"proved", "measured", "not claimed"}


def test_learned_noise_is_compared_with_static(audited: Audit) -> None:
    found = audited.found["differences"]
    assert {row["mechanism"] for row in found} == {"pl-learn"}
    assert {(row["against"], row["round"]) for row in found} == {
        *((name, when) for name in TWINS for when in (0, 1, 3)),
        *(("static, own trajectory", when) for when in (1, 3)),
    }
    assert {row["attack"] for row in found} == {"invgrad", "lti", "matched", "labels"}


def test_accuracy_and_error_are_multiplied(audited: Audit, trained: Path) -> None:
    accuracy = json.loads((trained / "result.json").read_text())["federations"]
    names = [row["mechanism"] for row in accuracy]
    assert [(row["mechanism"], row["attack"]) for row in audited.found["cap"]] == [
        (name, attack) for name in names for attack in ("invgrad", "lti")
    ]
    for row in audited.found["cap"]:
        assert (row["round"], row["budgets"], row["seed"]) == (3, 1, 1)
        (mine,) = [
            one["mse"] for one in audited.rows
            if one["role"] == "own" and one["control"] != "negative" and one["round"] == 3
            and (one["mechanism"], one["attack"]) == (row["mechanism"], row["attack"])
        ]  # fmt: skip
        assert row["cap"] == pytest.approx(mine * accuracy[names.index(row["mechanism"])]["accuracy"])


def test_accuracy_and_error_are_averaged_over_budgets(tmp_path: Path, pictures: Path) -> None:
    """A row for every seed and attack; the error of an earlier round has no accuracy to go with it."""
    sweep: dict[str, list[Any]] = {
        "datasets": [str(pictures)],
        "mechanisms": ["pl-identical"],
        "budgets": [0.9, 0.98],
        "seeds": [1, 2],
    }
    Run(tmp_path / "run", resolve(overrides=settings_for(), sweep=sweep)).execute()
    found = audit_run(tmp_path / "run", cheap(attacks=["lti", "labels"]), [0, 3])
    assert [(row["seed"], row["attack"], row["round"], row["budgets"]) for row in found.found["cap"]] == [
        (1, "lti", 3, 2), (2, "lti", 3, 2),
    ]  # fmt: skip
    trained = json.loads((tmp_path / "run" / "result.json").read_text())["federations"]
    accuracy = {(row["seed"], row["budget"]): row["accuracy"] for row in trained}
    for cap in found.found["cap"]:
        products = [
            row["mse"] * accuracy[row["seed"], row["budget"]] for row in own(found)
            if (row["seed"], row["attack"], row["round"]) == (cap["seed"], "lti", 3)
        ]  # fmt: skip
        assert cap["cap"] == pytest.approx(sum(products) / 2)
        assert len(products) == 2
    assert audit_run(tmp_path / "run", cheap(attacks=["lti"]), [0]).found["cap"] == []


def test_a_run_that_is_not_finished_has_no_accuracy_to_multiply(folder: Path) -> None:
    (folder / "result.json").unlink()
    assert audit_run(folder, cheap(attacks=["lti"]), [3]).found["cap"] == []


def test_only_public_images_are_shown_by_default(audited: Audit, trained: Path, pictures: Path, tmp_path: Path) -> None:
    data = load_dataset(Settings(public_fraction=0.6), str(pictures))
    private, targets = (
        {png(image) for image in as_pixels(data.pixels(part.images))} for part in (data.train, data.public_targets)
    )
    raw = np.load(pictures / "train.npz")["images"][:, None]
    assert private <= {png(image) for image in raw}, "pixels come back as they were stored"
    audited.save(tmp_path)
    drawn = images_of((tmp_path / "audit.svg").read_text())
    originals = [png(image) for section in audited.sections for image in section.rows[0].images]
    assert all(section.rows[0].caption == "original" for section in audited.sections)
    assert originals
    assert set(originals) <= targets & set(drawn)
    assert not set(drawn) & private
    assert "base64" not in (tmp_path / "audit.json").read_text()
    own = audit_run(trained, cheap(attacks=["lti"]), [0], private=True)
    assert own.found["targets"] == "private"
    shown = [png(image) for section in own.sections for image in section.rows[0].images]
    assert shown
    assert set(shown) <= private


def test_the_same_audit_of_a_run_finds_the_same(trained: Path) -> None:
    one, two = (audit_run(trained, cheap(), [3]) for _ in range(2))
    assert one.found == two.found
    assert one.picture() == two.picture()


def test_an_audit_changes_nothing_in_the_folder_until_it_is_saved(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = audit_run(folder, cheap(attacks=["lti"]), [0])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    found.save(folder)
    new = {path.name for path in folder.rglob("*") if path.is_file()} - {path.name for path in before}
    assert new == {"audit.json", "audit.svg"}
    json.loads((folder / "audit.json").read_text(), parse_constant=refuse)


def test_the_place_of_the_run_is_in_no_file(audited: Audit, trained: Path, tmp_path: Path) -> None:
    audited.save(tmp_path)
    text = (tmp_path / "audit.json").read_text() + (tmp_path / "audit.svg").read_text()
    assert str(trained) not in text


def test_the_picture_names_the_dataset_and_not_its_place(audited: Audit, pictures: Path) -> None:
    """A picture is what people pass on: it need not say where on which machine the data lay."""
    assert str(pictures.parent) not in audited.picture()


def test_global_random_state_is_left_alone_by_the_audit_of_a_run(trained: Path) -> None:
    torch.manual_seed(8)
    before = torch.get_rng_state()
    audit_run(trained, cheap(attacks=["lti"]), [0])
    assert torch.equal(torch.get_rng_state(), before)


def test_releases_of_all_rounds_are_combined_on_request(trained: Path) -> None:
    found = audit_run(trained, cheap(attacks=["labels"]), [0], multi_rounds=9).found["multi_round"]
    assert [row["mechanism"] for row in found] == ["none", "pl-identical", "pl-learn"]
    assert all(row["rounds"] == 3 for row in found), "no more than were trained"


def test_combined_releases_may_be_all_that_is_asked_for(trained: Path) -> None:
    found = audit_run(trained, cheap(attacks=[]), [0], multi_rounds=2)
    assert found.rows == []
    assert len(found.found["multi_round"]) == 3


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, folder: Path) -> None:
    for empty in (tmp_path / "absent", tmp_path):
        with pytest.raises(CheckpointError, match=r"has no config\.toml"):
            audit_run(empty, cheap())
    shutil.rmtree(folder / "snapshots")
    with pytest.raises(CheckpointError, match="has no snapshots"):
        audit_run(folder, cheap())


@pytest.mark.parametrize("damage", ["cut off", "empty", "not safetensors"])
def test_a_damaged_snapshot_is_refused(folder: Path, damage: str) -> None:
    path = folder / "snapshots" / "round-000000.safetensors"
    content = path.read_bytes()
    path.write_bytes({"cut off": content[:-100], "empty": b"", "not safetensors": b"x" * 200}[damage])
    with pytest.raises(CheckpointError, match=r"round-000000\.safetensors cannot be read"):
        audit_run(folder, cheap(attacks=["lti"]))


def test_a_snapshot_without_the_weights_of_a_federation_is_refused(folder: Path) -> None:
    path = folder / "snapshots" / "round-000000.safetensors"
    tensors = load(path.read_bytes())
    path.write_bytes(save({name: part for name, part in tensors.items() if not name.startswith("federation-2/")}))
    with pytest.raises((CheckpointError, ModelError), match="Missing tensors"):
        audit_run(folder, cheap(attacks=["lti"]))


def test_a_snapshot_that_is_not_finite_is_refused(folder: Path) -> None:
    path = folder / "snapshots" / "round-000003.safetensors"
    tensors = load(path.read_bytes())
    tensors["federation-1/fc2.bias"][0] = float("nan")
    path.write_bytes(save(tensors))
    with pytest.raises(CheckpointError, match="not finite"):
        audit_run(folder, cheap(attacks=["lti"]))
    assert audit_run(folder, cheap(attacks=["labels"]), [0]).rows, "the others can still be audited"


def test_a_file_beside_the_snapshots_does_no_harm(folder: Path) -> None:
    path = folder / "snapshots" / "round-000000.safetensors"
    shutil.copy(path, path.with_name("round-000000 (copy).safetensors"))
    found = audit_run(folder, cheap(attacks=["labels"]), [0])
    assert {row["round"] for row in found.rows} == {0}


def test_data_without_public_images_cannot_be_audited(tmp_path: Path, pictures: Path) -> None:
    run = train_run(tmp_path / "run", pictures, ("none",), public_fraction=0.0)
    with pytest.raises(DataError, match="public"):
        audit_run(run, cheap())


def test_an_unknown_attack_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'matched'"):
        audit_run(tmp_path, Options(attacks=["mached"]))
