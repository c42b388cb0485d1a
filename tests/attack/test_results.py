"""What every attack comes to: one of six kinds of result, of the shapes that scoring relies on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.attack.attack import Hooks, Knowledge
from equipoise.attack.registry import ATTACKS
from equipoise.attack.results import CandidateScores, Inversion, LabelGuesses, MembershipScores, Result, Verification
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.models.batched import Batched
from tests.attack.inversions import seeded, short_searches, tanh_model

RELEASES, BATCH, SHAPE, CLASSES, CHOICES, ASKED = 3, 2, (1, 5, 5), 4, 5, 6
LITTLE = {
    "iterations": 1, "samples": 10, "pairs": 1, "anchors": 1, "around": 4, "tuning": 2, "trials": 2,
    "companions": 1, "nulls": 2,
}  # fmt: skip


@pytest.fixture
def result(request: pytest.FixtureRequest) -> Any:
    """What an attack finds that is given its own options, and no other."""
    attack, local = {**ATTACKS, **short_searches()}[request.param], torch.Generator().manual_seed(1)
    model = seeded(tanh_model)
    server = Server(Batched(model), SHAPE, CLASSES, BATCH)
    labels = torch.tensor([[0, 1], [2, 2], [3, 0]])
    weights = server.batched.layout.flatten(model.state_dict())
    released = respond(server, weights, torch.rand(RELEASES, BATCH, *SHAPE, generator=local), labels, None)
    public = torch.rand(40, *SHAPE, generator=local), torch.arange(40) % CLASSES
    knowledge = Knowledge(
        public, *public,
        choices=(labels.unsqueeze(2) + CLASSES * torch.arange(CHOICES)),  # candidates of the right label
        asked=torch.arange(RELEASES * ASKED).view(RELEASES, ASKED),
        companions=labels,
    )  # fmt: skip
    options = {name: LITTLE.get(name, option.default) for name, option in attack.options.items()}
    view = View(weights.expand(RELEASES, -1), released, labels)
    return attack.run(server, view, attack.granted(knowledge), {**options, "seed": 0}, Hooks())


@pytest.mark.parametrize("result", ATTACKS, indirect=True)
def test_every_attack_comes_to_a_result_that_is_scored(result: Any) -> None:
    assert isinstance(result, Result)


@pytest.mark.parametrize("result", ["invgrad", "dlg", "idlg", "likelihood", "unrolled", "lti"], indirect=True)
def test_an_inversion_has_inputs_and_a_cost_for_every_release(result: Inversion) -> None:
    assert isinstance(result, Inversion)
    assert result.images.shape == (RELEASES, BATCH, *SHAPE)
    assert result.cost.shape == (RELEASES,)
    assert result.stopped is None or (result.stopped.shape == (RELEASES,) and result.stopped.dtype == torch.int64)


@pytest.mark.parametrize("result", ["dlg", "idlg"], indirect=True)
def test_an_attack_that_had_to_find_the_labels_has_them(result: Inversion) -> None:
    assert result.labels is not None
    assert result.labels.shape == (RELEASES, BATCH)
    assert result.labels.dtype == torch.int64


@pytest.mark.parametrize("result", ["invgrad", "likelihood", "unrolled", "lti"], indirect=True)
def test_an_attack_that_was_granted_them_has_none(result: Inversion) -> None:
    assert result.labels is None


@pytest.mark.parametrize("result", ["matched"], indirect=True)
def test_candidates_are_scored_in_the_order_of_the_choices(result: CandidateScores) -> None:
    assert isinstance(result, CandidateScores)
    assert result.values.shape == (RELEASES, BATCH, CHOICES)


@pytest.mark.parametrize("result", ["verify"], indirect=True)
def test_guesses_are_checked_in_the_order_of_the_choices(result: Verification) -> None:
    assert isinstance(result, Verification)
    assert result.distance.shape == (RELEASES, BATCH, CHOICES)
    assert result.tolerance.shape == (RELEASES,)
    assert bool((result.distance >= 0).all())
    assert bool((result.tolerance > 0).all())


@pytest.mark.parametrize("result", ["membership"], indirect=True)
def test_membership_has_a_score_for_each_that_was_asked_about(result: MembershipScores) -> None:
    assert isinstance(result, MembershipScores)
    assert result.values.shape == (RELEASES, ASKED)
    assert torch.isfinite(result.values).all()


@pytest.mark.parametrize("result", ["labels"], indirect=True)
def test_guessed_labels_are_sorted(result: LabelGuesses) -> None:
    assert isinstance(result, LabelGuesses)
    assert result.values.shape == (RELEASES, BATCH)
    assert torch.equal(result.values, result.values.sort(1).values)
