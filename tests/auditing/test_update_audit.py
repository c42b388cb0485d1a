"""``audit`` of updates of one's own: what they give away, with and without labels, truth and public data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.results import Inversion, LabelGuesses
from equipoise.attack.view import Server, View
from equipoise.auditing import update_audit
from equipoise.auditing.attacker import Attacker
from equipoise.auditing.options import USUAL
from equipoise.auditing.update import Update
from equipoise.auditing.update_audit import audit
from equipoise.errors import AttackError, ConfigError, DataError
from equipoise.mechanism.protect import protected_step
from equipoise.mechanism.protection import ProtectionSettings
from tests.audit_helpers import cheap
from tests.auditing.small import TWINS
from tests.auditing.updates import CLASSES, SHAPE, Call, gradient_of, moved, network, numbers, own, searched


def approx(row: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-3) -> None:
    assert row.keys() == other.keys()
    for name, value in row.items():
        if isinstance(value, float):
            assert other[name] == pytest.approx(value, rel=tolerance, abs=1e-6), name
        else:
            assert other[name] == value, name


Faced = list[tuple[Server, View]]


@pytest.fixture
def faced(stand_in: Any, batch: tuple[Tensor, Tensor]) -> Faced:
    """What attacks are handed, in their order; the one in the place of InvGrad finds the truth."""
    result: Faced = []

    def watching(server: Server, view: View, *rest: Any) -> Inversion:
        result.append((server, view))
        return Inversion(batch[0].unsqueeze(0), torch.zeros(1))

    stand_in(watching)
    return result


# --- what an update of one's own gives away ---------------------------------------------------------------------


def test_states_and_a_gradient_say_the_same(call: Call, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    by_gradient, by_states = call(), call(after=moved(model, gradient_of(model, *batch)))
    approx(by_gradient.rows[0], by_states.rows[0])
    assert torch.allclose(by_gradient.reconstructions["invgrad"], by_states.reconstructions["invgrad"], atol=1e-2)


@pytest.mark.parametrize("by", ["gradient", "after"])
def test_eta_is_that_of_the_settings(call: Call, model: nn.Module, batch: Any, faced: Faced, by: str) -> None:
    """It exists once: what the client trained with is what the attacker divides by."""
    gradient = gradient_of(model, *batch)
    largest = max(float(part.abs().max()) for part in gradient.values())
    for eta in (0.1, 0.01):
        sent = {"gradient": gradient} if by == "gradient" else {"after": moved(model, gradient, eta)}
        call(**sent, settings=ProtectionSettings(eta=eta))
        server, view = faced[-1]
        assert (server.eta, float(view.update.abs().max())) == (eta, pytest.approx(eta * largest, rel=1e-2))


@pytest.mark.slow
def test_an_update_with_another_eta_gives_away_as_much(call: Call, model: nn.Module, batch: Any) -> None:
    slow = moved(model, gradient_of(model, *batch), 0.01)
    right = call(after=slow, settings=ProtectionSettings(eta=0.01), options=cheap(attacks=["likelihood"]))
    wrong = call(after=slow, options=cheap(attacks=["likelihood"]))
    assert right.rows[0]["cost"] != wrong.rows[0]["cost"]


def test_the_noise_is_that_of_the_batch_that_was_sent(call: Call, faced: Faced) -> None:
    """The sensitivity of laplace-dp, 2 * eta * clip / batch, is that of two examples, not of the default four."""
    call(mechanism="laplace-dp", budget=100.0, settings=ProtectionSettings(clip=1.0))
    assert [server.protection.scale for server, _ in faced] == [pytest.approx(2 * 0.1 * 1.0 / 2 / 100), 0]


def test_labels_of_the_callers_own_are_granted(call: Call, faced: Faced) -> None:
    """Even wrong ones; the truth is scored against all the same."""
    (row,) = call(labels=torch.tensor([1, 1])).rows
    assert faced[0][1].labels.tolist() == [[1, 1]]
    assert row["labels_granted"]
    assert row["mse"] == 0


@pytest.mark.slow
def test_several_updates_are_what_each_is_alone(call: Call, model: nn.Module) -> None:
    pairs = [(numbers(2, *SHAPE, seed=seed), torch.tensor([seed % 2 * 2, 1])) for seed in (5, 6, 7)]
    updates = [gradient_of(model, *pair) for pair in pairs]
    truth, labels = (torch.stack(part) for part in zip(*pairs, strict=True))
    given: dict[str, Any] = {"bounds": (0.0, 1.0), "options": searched()}
    together = call(gradient=updates, truth=(truth, labels), **given)
    assert together.rows[0]["targets"] == 3
    assert together.reconstructions["invgrad"].shape == (3, 2, *SHAPE)
    for i, (x, y) in enumerate(pairs):
        alone = call(gradient=updates[i], truth=(x, y), **given)
        assert torch.allclose(together.reconstructions["invgrad"][i], alone.reconstructions["invgrad"][0], atol=0.05)
    each = call(before=[model.state_dict()] * 3, gradient=updates, truth=(truth, labels), **given)
    approx(together.rows[0], each.rows[0])


def test_an_undefended_image_is_recovered(call: Call, public: tuple[Tensor, Tensor], batch: Any) -> None:
    result = call(options=searched(), public=public)
    (row,) = own(result)
    guesses = result.content["baselines"]["given"]
    assert set(guesses) >= {"black", "class_mean", "noise"}
    assert row["mse"] < 0.01 * min(guess["mse"] for guess in guesses.values())
    assert row["identification"] == 1
    assert torch.allclose(result.reconstructions["invgrad"][0], batch[0], atol=0.05)
    (chance,) = [row for row in result.rows if row["control"] == "negative"]
    assert chance["mse"] > 10 * row["mse"]


def test_a_heavily_distorted_image_is_not(call: Call, model: nn.Module, batch: Any, public: Any) -> None:
    sent = protected_step(model, model.state_dict(), batch, "pl-identical", 0.98, experiment_seed=1).parameters
    result = call(after=sent, mechanism="pl-identical", budget=0.98, options=searched(), public=public)
    (row,) = own(result)
    assert (row["mechanism"], row["budget"]) == ("pl-identical", 0.98)
    assert row["mse"] > result.content["baselines"]["given"]["class_mean"]["mse"]


@pytest.mark.parametrize("known", [False, True])
def test_labels_are_inferred_where_they_are_not_granted(call: Call, public: Any, known: bool) -> None:
    more = {"public": public} if known else {}
    granted, inferred = call(options=searched(), **more), call(options=searched(), labels="infer", **more)
    assert granted.rows[0]["labels_granted"]
    assert not inferred.rows[0]["labels_granted"]
    assert inferred.rows[0]["mse"] == pytest.approx(granted.rows[0]["mse"], abs=1e-4)


def test_every_role_says_rightly_whether_its_labels_were_granted(
    call: Call, model: nn.Module, batch: Any, public: Any, stand_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins and the control are told apart from the update by its defence alone, not by what the attacker knows."""
    seen: list[Tensor] = []

    def watching(server: Any, view: Any, *rest: Any) -> Inversion:
        seen.append(view.labels)
        return Inversion(torch.full((1, 2, *SHAPE), 0.5), torch.zeros(1))

    stand_in(watching)
    monkeypatch.setattr(update_audit, "infer_labels", lambda *given: torch.tensor([[1, 1]]))  # wrong ones
    sent = protected_step(
        model, model.state_dict(), batch, "pl-learn", 0.98, settings=ProtectionSettings(steps=2)
    ).parameters
    result = call(
        after=sent,
        mechanism="pl-learn",
        budget=0.98,
        settings=ProtectionSettings(steps=2),
        public=public,
        labels="infer",
    )
    rows = [row for row in result.rows if row["control"] != "negative"]
    assert [row["role"] for row in rows] == ["own", *TWINS, "undistorted"]
    assert (
        [row["labels_granted"] for row in rows] == [bool((labels == batch[1]).all()) for labels in seen] == [False] * 4
    )


def test_the_order_of_the_truth_is_of_no_account_where_labels_are_inferred(call: Call, batch: Any) -> None:
    """The attacker does not know which image has which label: its reconstructions have no order to be held to."""
    one, two = (
        call(options=searched(), labels="infer", truth=truth).rows[0]["mse"]
        for truth in (batch, (batch[0].flip(0), batch[1].flip(0)))
    )
    assert two == pytest.approx(one, abs=1e-4)


def test_inferred_labels_are_not_scored_against_themselves(
    call: Call, model: nn.Module, batch: Any, public: Any
) -> None:
    """Labels from pure noise are right no more often than by chance, whatever the attacker inferred."""
    noise = {name: torch.randn(part.shape, generator=torch.Generator().manual_seed(9)) for name, part in
             model.named_parameters()}  # fmt: skip
    wrong = torch.tensor([0, 0])
    options = cheap(attacks=["labels"])
    result = [
        call(gradient=noise, truth=(batch[0], labels), labels="infer", public=public, options=options).rows[0]["labels"]
        for labels in (wrong, wrong + 1, wrong + 2)
    ]
    assert sum(result) == pytest.approx(1.0), "two guesses are right about two of the three"


def test_granted_labels_score_the_guess_of_labels(call: Call, public: Any) -> None:
    result = call(public=public, options=cheap(attacks=["labels"], samples=200))
    (row,) = own(result)
    assert 0 <= row["labels_exact"] <= row["labels"] <= 1


@pytest.mark.parametrize("known", [False, True])
def test_without_the_truth_there_are_reconstructions_and_no_scores(call: Call, public: Any, known: bool) -> None:
    attacks = ["invgrad", "lti"] if known else ["invgrad"]
    result = call(truth=None, shape=SHAPE, public=public if known else None, options=cheap(attacks=attacks), examples=2)
    assert list(result.reconstructions) == attacks
    assert all(images.shape == (1, 2, *SHAPE) for images in result.reconstructions.values())
    assert [row["attack"] for row in result.rows] == [*attacks, "labels"]
    assert result.rows[-1]["guess"] == [[0, 2]]
    assert not any(name in row for row in result.rows for name in ("mse", "identification", "evidence"))
    assert result.content["targets"] == "unknown"


def test_without_the_truth_the_options_reach_the_attack_too(call: Call, batch: Any, stand_in: Any) -> None:
    seen: list[Any] = []

    def watching(server: Any, view: Any, knowledge: Any, options: Any, hooks: Any) -> Inversion:
        seen.append((options["seed"], options["iterations"]))
        return Inversion(torch.zeros(1, 2, *SHAPE), torch.full((1,), 7.0))

    stand_in(watching)
    result = call(truth=None, labels=batch[1], shape=SHAPE, options=cheap(attacks=["invgrad"], seed=3))
    assert seen == [(3, 2)]
    assert result.rows[0]["cost"] == 7


def test_a_reconstruction_needs_no_truth(call: Call, batch: Any) -> None:
    result = call(truth=None, labels=batch[1], shape=SHAPE, options=searched())
    assert torch.allclose(result.reconstructions["invgrad"][0], batch[0], atol=0.05)


def test_all_attacks_run_by_default_where_all_is_given(
    call: Call, public: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_audit, "AuditOptions", cheap)
    usual = list(USUAL)
    for given, attacks in (
        ({}, ["invgrad"]),
        ({"public": public}, usual),
        ({"public": public, "truth": None, "labels": batch[1]}, ["lti"]),
        ({"public": public, "labels": "infer"}, ["lti", "membership", "labels"]),
    ):
        result = call(options=None, **given)
        assert list(dict.fromkeys(row["attack"] for row in result.rows)) == attacks
        assert list(result.content["left_out"]) == [name for name in usual if name not in attacks]
        assert all(words.startswith("needs ") for words in result.content["left_out"].values())


@pytest.mark.parametrize(("count", "candidates"), [(0, 0), (64, 12)])
def test_the_call_of_the_readme_works_with_its_defaults(batch: Any, count: int, candidates: int) -> None:
    """Whatever there is of public inputs: 100 candidates and 20 others are not there, and that is said."""
    model, (x, y) = network(), batch
    before = model.state_dict()
    after = moved(model, gradient_of(model, x, y))
    public = (numbers(count, *SHAPE, seed=4), torch.arange(count) % CLASSES) if count else None
    result = audit(Update(model, before, after), truth=(x, y), attacker=Attacker(public=public))
    attacks = list(USUAL) if count else ["invgrad"]
    assert list(dict.fromkeys(row["attack"] for row in result.rows)) == attacks
    assert (f"sought among {candidates} candidates, not 100" in " ".join(result.content["notes"])) == (count > 0)
    assert len(result.content["left_out"]) == (0 if count else 4)
    assert "Attacked: 1 update of 2 examples." in result.summary()


def test_updates_of_one_batch_have_no_intervals_and_that_is_said(call: Call, model: nn.Module, batch: Any) -> None:
    """Three updates of the same two images are no evidence of other images; three of six are."""
    images = torch.stack([batch[0], *(numbers(2, *SHAPE, seed=seed) for seed in (5, 6))])
    words = "There are no intervals: an example is in several releases, so these are not independent."
    for truth, independent in ((images, True), (images[:1].expand_as(images), False)):
        labels = batch[1].expand(3, -1)
        sent = [gradient_of(model, x, y) for x, y in zip(truth, labels, strict=True)]
        result = call(gradient=sent, truth=(truth, labels))
        assert (own(result)[0]["mse_low"] is not None) == independent
        assert (words in result.content["notes"]) != independent


def test_few_others_leave_membership_alone_without_intervals(call: Call, model: nn.Module) -> None:
    """Four public inputs of a label: two are decoys, and five releases of two labels want a non-member each."""
    images, labels = numbers(5, 2, *SHAPE, seed=5), torch.tensor([[0, 2]] * 5)
    sent = [gradient_of(model, x, y) for x, y in zip(images, labels, strict=True)]
    public = numbers(4 * CLASSES, *SHAPE, seed=4), torch.arange(4 * CLASSES) % CLASSES
    options = cheap(attacks=["matched", "membership"])
    result = call(gradient=sent, truth=(images, labels), public=public, options=options)
    ranked, member = own(result)
    assert ranked["identification_low"] is not None
    assert member["membership_auc"] is not None
    assert member["membership_auc_low"] is None
    notes = " ".join(result.content["notes"])
    assert "Membership has no intervals" in notes
    assert "sought among 3 candidates, not 5" in notes
    assert "told from 1 other, not 3" in notes
    assert "releases are attacked" not in notes, "there are as many as were given"


def test_inferred_labels_that_are_wrong_leave_scores_that_are_finite(
    call: Call, public: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples have the labels 0 and 2; whoever believes in 1 asks about nobody of it."""
    monkeypatch.setattr(update_audit, "infer_labels", lambda server, view, *rest: torch.ones(len(view), 2).long())
    result = call(public=public, labels="infer", options=cheap(attacks=["membership"]))
    assert own(result)[0]["membership_auc"] == 0.5, "nobody is likelier than another"


@pytest.mark.parametrize("granted", [True, False])
def test_an_attack_that_fails_on_undistorted_releases_is_marked(
    call: Call, public: Any, stand_in: Any, granted: bool
) -> None:
    """Whether labels are granted or inferred: guesses of wrong labels fail, those of the right ones do not."""
    for guess, failed in (([1, 1], True), ([0, 2], False)):
        stand_in(lambda server, view, *rest, guess=guess: LabelGuesses(torch.tensor([guess] * len(view))), "labels")
        more: dict[str, Any] = {} if granted else {"labels": "infer"}
        options = cheap(attacks=["labels"])
        result = call(public=public, mechanism="pl-learn", budget=0.98, options=options, **more)
        assert len(result.rows) == 8, "itself, two twins and the control, each with its chance"
        for row in result.rows:
            expected = failed and row["control"] is None
            assert row.get("control_failed", False) == expected, (row["role"], row["control"])
            assert row["labels_granted"] == granted


@pytest.mark.parametrize("known", [False, True])
def test_inputs_need_not_be_images(tmp_path: Path, known: bool) -> None:
    model, x, y = network(inputs=6), numbers(2, 6), torch.tensor([2, 0])
    public = (numbers(60, 6, seed=4), torch.arange(60) % CLASSES) if known else None
    options = cheap(attacks=["invgrad", "lti", "matched", "membership", "labels"] if known else ["invgrad"])
    result = audit(
        Update(model, model.state_dict(), gradient=gradient_of(model, x, y)), truth=(x, y),
        attacker=Attacker(public=public), options=options, show=True,
    )  # fmt: skip
    assert result.reconstructions["invgrad"].shape == (1, 2, 6)
    assert [path.name for path in result.save(tmp_path)] == ["audit.json"], "there is nothing to draw"


@pytest.mark.parametrize("name", ["pl-learn", "ls-static"])
def test_a_mechanism_with_its_budget_is_simulated(
    call: Call, model: nn.Module, batch: Any, public: Any, name: str
) -> None:
    budget = 0.98 if name == "pl-learn" else 200
    settings = ProtectionSettings(steps=2)
    sent = protected_step(
        model, model.state_dict(), batch, name, budget, settings=settings, experiment_seed=1
    ).parameters
    actual = call(after=sent, mechanism=name, budget=budget, settings=settings, public=public, options=cheap())
    assert {row["attack"] for row in actual.rows} == set(USUAL)
    assert {(row["mechanism"], row["budget"]) for row in actual.rows} == {(name, budget)}
    roles = ["own", *TWINS] if name == "pl-learn" else ["own"]
    expected = {(role, control) for role in roles for control in (None, "negative")}
    expected |= {("undistorted", "positive"), ("undistorted", "negative")}
    for attack in USUAL:
        mine = [(row["role"], row["control"]) for row in actual.rows if row["attack"] == attack]
        assert set(mine) == expected
        assert len(mine) == len(expected), "each once"
    membership = next(row for row in own(actual) if row["attack"] == "membership")
    assert 0 <= membership["membership_auc"] <= 1


def test_a_schedule_is_read_at_its_first_round(call: Call, faced: Faced) -> None:
    """An update of one's own has no round: its budget is that of the first one."""
    call(mechanism="pl-identical", budget={"rounds": [1, 2], "values": [0.96, 0.98]})
    scales = [server.protection.scale for server, _ in faced]
    assert scales == [pytest.approx(15.99975), 0], "its own, and that of the undistorted control"


def test_updates_from_unlike_weights_have_no_simulated_controls(call: Call, model: nn.Module, batch: Any) -> None:
    """These are simulated at one set of weights, and there is none that would serve all."""
    starts = [model.state_dict(), network(seed=2).state_dict()]
    updates, truth = [gradient_of(model, *batch)] * 2, batch[0].expand(2, *batch[0].shape)
    given: dict[str, Any] = {
        "mechanism": "pl-identical",
        "budget": 0.98,
        "gradient": updates,
        "truth": (truth, batch[1]),
    }
    assert {row["role"] for row in call(before=starts, **given).rows} == {"own"}
    assert {row["role"] for row in call(**given).rows} == {"own", "undistorted"}


def test_without_public_data_there_is_nothing_to_show_chance_with(call: Call, public: Any) -> None:
    assert {row["control"] for row in call().rows} == {None}
    assert {row["control"] for row in call(public=public).rows} == {None, "negative"}


def test_an_undefended_update_needs_no_control(call: Call, public: Any) -> None:
    result = call(public=public, options=cheap(attacks=["invgrad", "lti"]))
    assert {(row["role"], row["control"]) for row in result.rows} == {("own", None), ("own", "negative")}


@pytest.mark.parametrize("change", [{}, {"twins": False}])
def test_twins_need_public_data_and_can_be_left_out(call: Call, public: Any, change: dict[str, Any]) -> None:
    """The undistorted control needs neither: it is computed from the truth."""
    given: dict[str, Any] = {"mechanism": "pl-learn", "budget": 0.98, "settings": ProtectionSettings(steps=2)}
    more = {"public": public} if change else {}
    result = call(**given, **more, options=cheap(attacks=["invgrad"], **change))
    assert {row["role"] for row in result.rows} == {"own", "undistorted"}
    assert next(row["control"] for row in result.rows if row["role"] == "undistorted") == "positive"


def test_the_positive_control_shows_what_the_attack_can_do(
    call: Call, model: nn.Module, batch: Any, public: Any
) -> None:
    """The same search that fails on the distorted update recovers the same inputs where nothing distorts them."""
    sent = protected_step(model, model.state_dict(), batch, "pl-identical", 0.98, experiment_seed=1).parameters
    result = call(after=sent, mechanism="pl-identical", budget=0.98, options=searched(), public=public)
    (row,) = own(result)
    (control,) = [one for one in result.rows if one["control"] == "positive"]
    (plain,) = own(call(options=searched(), public=public))
    assert control["mse"] == pytest.approx(plain["mse"], abs=1e-4)
    assert control["mse"] < 0.01 * row["mse"]
    assert torch.equal(result.reconstructions["invgrad"], call(
        after=sent, mechanism="pl-identical", budget=0.98, options=searched(),
        public=public).reconstructions["invgrad"])  # fmt: skip
    distance = (result.reconstructions["invgrad"][0] - batch[0]).square().mean()
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
    attacker = Attacker(public=public)
    update = Update(model, model.state_dict(), gradient=gradient_of(model, x, y))
    result = audit(update, truth=batch, attacker=attacker, options=options)
    assert all(images.dtype == torch.float64 for images in result.reconstructions.values())
    single = network()
    update = Update(single, single.state_dict(), gradient=gradient_of(single, *batch))
    same = audit(update, truth=batch, attacker=attacker, options=cheap(attacks=["lti"]))
    lti = next(row for row in result.rows if row["attack"] == "lti")
    assert lti["mse"] == pytest.approx(same.rows[0]["mse"], rel=0.05)


@pytest.mark.parametrize("training", [False, True])
def test_nothing_of_the_caller_changes(call: Call, model: nn.Module, public: Any, training: bool) -> None:
    model.train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[union-attr]
    for more in ({}, {"labels": "infer", "options": cheap(attacks=["invgrad", "lti", "labels"])}):
        call(**{"public": public, "options": cheap(), **more})
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[union-attr]
    assert random.getstate() == states[2]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(part.training == training for part in model.modules())
    assert all(tensor.requires_grad and tensor.grad is None for tensor in model.parameters())


def test_the_same_audit_finds_the_same(call: Call, public: Any) -> None:
    one, two = (call(public=public, options=cheap(), show=True) for _ in range(2))
    assert one.content == two.content
    assert one.picture() == two.picture()


@pytest.mark.parametrize(("count", "evidence"), [(19, "insufficient evidence"), (20, "ok")])
def test_few_releases_are_insufficient_evidence(
    call: Call, model: nn.Module, batch: Any, count: int, evidence: str
) -> None:
    x, y = batch
    result = call(gradient=[gradient_of(model, x, y)] * count, truth=(x.expand(count, *x.shape), y))
    assert (result.rows[0]["targets"], result.rows[0]["evidence"]) == (count, evidence)


def test_public_data_may_be_sorted_by_label(call: Call, public: Any) -> None:
    order = public[1].argsort(stable=True)
    result = call(public=(public[0][order], public[1][order]), options=cheap())
    assert {row["attack"] for row in result.rows} == set(USUAL)


def test_the_loss_is_taken_with_the_buffers_that_the_server_had_sent(public: Any, batch: Any) -> None:
    """As ``protect`` takes it: what the caller's model holds by now is of no account."""

    def normalised(mean: float) -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), network()[1:]).eval()
        model[1].running_mean.fill_(mean)
        return model

    sent, drifted = normalised(0.5), normalised(-2.0)
    received = {name: tensor.clone() for name, tensor in sent.state_dict().items()}
    after = protected_step(sent, received, batch, "none").parameters
    kind = {"truth": batch, "attacker": Attacker(public=public), "options": cheap(attacks=["lti", "matched"])}
    right, same = (audit(Update(model, sent.state_dict(), after), **kind) for model in (sent, drifted))
    assert right.rows == same.rows
    trained = dict(drifted.named_parameters())
    assert audit(Update(drifted, trained, after), **kind).rows != right.rows, "the model's own, where none were sent"


def test_public_inputs_that_equal_another_or_the_truth_are_left_out(call: Call, batch: Any, public: Any) -> None:
    """They would be decoys of themselves: the best attack would then find the truth half of the time at most."""
    options, (images, labels) = cheap(attacks=["matched"]), public
    more = torch.cat([images, images[:3], batch[0]]), torch.cat([labels, labels[:3], batch[1]])
    once, often = call(public=public, options=options), call(public=more, options=options)
    assert once.content["notes"] == often.content["notes"][1:]
    assert often.content["notes"][0] == "Public data: 5 images that equal another were left out."
    assert often.rows == once.rows
    with pytest.raises(DataError, match="Every public input equals one behind the updates"):
        call(public=batch, options=options)


def test_guesses_at_an_update_of_ones_own_are_verified(call: Call, public: tuple[Tensor, Tensor]) -> None:
    """The gradient of the batch, recomputed: no noise has the norm 0. Without decoys there is nothing to tell."""
    own = [row for row in call(public=public, options=cheap(attacks=["verify"])).rows if row["control"] is None]
    assert [(row["verified"], row["accepted"], row["accepted_wrongly"]) for row in own] == [(1.0, 1.0, 0.0)]
    with pytest.raises(AttackError, match="one guess at each example"):
        call(options=cheap(attacks=["verify"]))
    with pytest.raises(ConfigError, match="verify needs the real examples"):
        call(truth=None, labels=torch.tensor([0, 2]), public=public, options=cheap(attacks=["verify"]))
