"""Membership: certain without noise, as good as theory says with it, blind where nothing was released."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from equipoise.attack import limiter as limit
from equipoise.attack.attack import Hooks
from equipoise.attack.membership import MEMBERSHIP
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.auditing.cells import Cell
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.results import rows_of
from equipoise.auditing.targets import Materials, build_targets
from equipoise.data.dataset import Dataset
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu
from equipoise.statistics import auc
from tests.attack.candidates import CLASSES, LITTLE, PUBLIC, SHAPE, Case, case

# --- theory --------------------------------------------------------------------------------------------------


@pytest.fixture
def _without_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limit, "LIMITS", (math.inf,))
    return


def pixels(count: int, others: int, scale: float) -> Case:
    """Softmax regression from zero on images of one bright pixel each: gradients are orthogonal and equally long.

    The public images are black: without a bias their gradients are zero, so that nothing is the alternative.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=False))
    nn.init.zeros_(model[1].weight)
    kind = get_mechanism("gs-static")
    server = Server(Batched(model), SHAPE, CLASSES, 1, protection=Protection(kind, scale))
    weights = server.batched.layout.flatten(model.state_dict())
    labels = (torch.arange(count) % CLASSES).unsqueeze(1)
    orders = torch.stack(
        [torch.randperm(36, generator=torch.Generator().manual_seed(i))[: others + 1] for i in range(count)]
    )
    images = 3 * torch.eye(36).repeat(CLASSES, 1).view(-1, *SHAPE)  # every pixel once for every label
    asked = orders + 36 * labels
    numbers = torch.rand(count, len(weights), generator=torch.Generator().manual_seed(6))
    released = respond(server, weights, images[asked[:, :1]], labels, standard_noise(numbers, kind.noise))
    return Case(
        server, View(weights.expand(count, -1), released, labels), images,
        torch.arange(CLASSES).repeat_interleave(36), asked.unsqueeze(1), asked,
        public=(torch.zeros(80, *SHAPE), torch.arange(80) % CLASSES),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("expected", [0.6, 0.75, 0.95])
@pytest.mark.usefixtures("_without_limits")
def test_gaussian_noise_allows_the_area_that_theory_says(expected: float) -> None:
    """With d = eta |g| / s the log-likelihood ratio of members is N(d^2 / 2, d^2), that of others N(-d^2 / 2, d^2):
    the area is Phi(d / sqrt 2), and no test of Neyman and Pearson's has a larger one.
    """
    count, others, eta = 600, 6, 0.1
    size = 3 * math.sqrt(0.75**2 + 3 * 0.25**2)  # |p - y| |x| with p = 1/4
    d = math.sqrt(2) * float(norm.ppf(expected))
    known = pixels(count, others, scale=eta * size / d)
    result = known.ratios(pairs=1, around=256, tuning=4, trials=4)
    deviation = math.sqrt(1 / 12 / count + 1 / 12 / (count * others))  # at most: that of equal distributions
    assert auc(result[:, :1], result[:, 1:]) == pytest.approx(expected, abs=4 * deviation)
    inside, outside = result[:, 0], result[:, 1:]
    for part, middle in ((inside, d**2 / 2), (outside, -(d**2) / 2)):
        assert float(part.std()) == pytest.approx(d, rel=0.1)
        assert float(part.mean()) == pytest.approx(middle, abs=4 * d / math.sqrt(part.numel()) + 0.03 * d**2)


@pytest.mark.slow
@pytest.mark.usefixtures("_without_limits")
def test_the_score_is_the_likelihood_ratio_against_the_references() -> None:
    """One image in static Gaussian noise, and references that are known: both likelihoods are exact."""
    scale, known = 0.04, case(1, 60, "gs-static", 0.04)
    result = known.ratios(anchors=8, around=256)
    own = (PUBLIC[1] == 0).nonzero().flatten()
    own = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(0))][-LITTLE["tuning"] :]

    def exact(images: Tensor, labels: Tensor) -> Tensor:
        """``[N, U]``"""
        means, update = known.responses(images, labels).double(), known.view.update.double()
        return (update @ means.T - means.square().sum(1) / 2) / scale**2

    asked = known.asked[:, :6]
    base = exact(PUBLIC[0][own], PUBLIC[1][own]).logsumexp(1) - math.log(len(own))
    expected = exact(known.candidates, known.candidate_labels).gather(1, asked) - base.unsqueeze(1)
    assert 0.6 < auc(expected[:, :1], expected[:, 1:]) < 0.99, "neither certain nor hopeless"
    slope = float((result * expected).sum() / expected.square().sum())
    assert slope == pytest.approx(1, abs=0.05)
    assert float((result - expected).square().mean() / expected.square().mean()) < 0.02


# --- wins and loses where it should --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scale"), [("none", 0.0), ("gs-static", 1e-3), ("ls-static", 1e-3), ("pl-identical", 0.02)]
)
def test_members_are_told_from_others_where_little_hides_them(name: str, scale: float) -> None:
    assert case(4, 15, name, scale).area() > 0.98


@pytest.mark.parametrize("name", ["pl-learn", "ls-learn", "gs-learn"])
def test_a_learned_distortion_does_not_hide_them(name: str) -> None:
    assert case(4, 15, name, 0.2 if name == "pl-learn" else 2e-3).area() > 0.95


@pytest.mark.slow
def test_responses_under_the_noise_of_the_release_tell_them_too() -> None:
    assert case(4, 8, "pl-learn", 0.1).area(condition_on="release") > 0.9


@pytest.mark.parametrize("name", ["gs-static", "ls-static", "pl-identical", "pl-learn", "gs-learn"])
def test_large_noise_leaves_chance(name: str) -> None:
    """160 members and 800 others: the area of equal distributions varies by 0.025."""
    assert case(4, 40, name, 1000.0).area() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 0.01)])
def test_a_release_of_nothing_says_nothing(name: str, scale: float) -> None:
    """The weights came back as they were sent: whoever is taken for a member is so by the image alone."""
    known = case(4, 40, name, scale)
    still = replace(known, view=replace(known.view, released=known.view.previous.clone()))
    assert still.area() == pytest.approx(0.5, abs=0.1)


def test_more_noise_tells_less() -> None:
    result = [case(4, 25, "gs-static", scale).area() for scale in (1e-3, 0.02, 1.0)]
    assert result == sorted(result, reverse=True)
    assert result[0] - result[2] > 0.35


# --- steps and labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 1, 0, 1], [2, 2, 2, 2]])
def test_members_of_every_local_step_are_found(labels: list[int]) -> None:
    """Where both steps hold the label, a candidate may have been in either."""
    known = case(2, 15, labels=torch.tensor(labels).expand(15, -1), local_steps=2)
    result = known.ratios()
    for members in (result[:, :2], result[:, 2:4]):
        assert auc(members, result[:, 4:]) > 0.9


def test_a_label_in_two_steps_is_the_mean_of_both_likelihood_ratios() -> None:
    """Alike steps are no more evidence than one: with two that say the same, the ratio stays what it is."""
    known = case(1, 12, "gs-static", 0.02, torch.zeros(12, 2, dtype=torch.int64), local_steps=2, eta=1e-4)
    two = known.ratios(pairs=8, around=64)
    assert float(two.abs().max()) < 0.2, "steps that do next to nothing are evidence of nothing"


def test_a_label_that_no_example_has_is_the_least_likely_member() -> None:
    labels = torch.tensor([[0, 1, 1, 2]]).expand(6, -1)
    known = case(4, 6, "gs-static", 1e-3, labels)
    strange = known.candidate_labels.clone()
    strange[known.asked[:, -1]] = 3
    result = replace(known, candidate_labels=strange).ratios()
    assert torch.isfinite(result).all()
    assert bool((result[:, -1] < result[:, :-1].amin(1)).all())
    everyone = replace(known, candidate_labels=torch.full_like(strange, 3)).ratios
    assert everyone().unique().numel() == 1, "nor is anybody likelier if none of the labels occurs"


def test_a_label_that_nobody_asks_about_changes_nothing() -> None:
    """Labels may have been inferred, and wrong: no example in question has label 3."""
    known = case(4, 6, "gs-static", 1e-3)
    kept = known.candidate_labels[known.asked[0]] != 3
    some = replace(known, asked=known.asked[:, kept])
    assert torch.equal(some.ratios(), known.ratios()[:, kept])


# --- how and what ---------------------------------------------------------------------------------------------


def test_scores_stand_in_the_order_of_what_was_asked() -> None:
    known = case(4, 4, "gs-static", 3e-3)
    order = torch.rand(known.asked.shape, generator=torch.Generator().manual_seed(1)).argsort(1)
    turned = replace(known, asked=known.asked.gather(1, order))
    assert torch.equal(turned.ratios(), known.ratios().gather(1, order))


def test_what_one_release_scores_does_not_depend_on_the_others() -> None:
    known = case(4, 6, "pl-learn", 0.1)
    one = replace(known, view=known.view.rows(slice(2, 3)), choices=known.choices[2:3], asked=known.asked[2:3])
    torch.testing.assert_close(one.ratios(), known.ratios()[2:3], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("first", ["matched", "membership"])
def test_shared_simulations_give_the_scores_of_running_alone(first: str) -> None:
    known = case(4, 5, "pl-learn", 0.1)
    hooks = Hooks(memory={"knowledge": known.knowledge()})
    ranked, asked = (
        (known.scores(hooks), known.ratios(hooks))
        if first == "matched"
        else tuple(reversed((known.ratios(hooks), known.scores(hooks))))
    )
    torch.testing.assert_close(ranked, known.scores(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(asked, known.ratios(), rtol=1e-4, atol=1e-3)


def test_the_same_seed_gives_the_same_bits() -> None:
    known, told = case(4, 4, "pl-learn", 0.1), list[int]()
    result = known.ratios(Hooks(step=told.append), seed=2)
    assert torch.equal(known.ratios(seed=2), result)
    assert not torch.equal(known.ratios(seed=3), result)
    assert sum(told) > 0


def test_it_is_granted_those_asked_about_and_public_images_and_may_do_with_inferred_labels() -> None:
    assert MEMBERSHIP.needs == {"public", "asked", "inferred labels"}
    assert set(LITTLE) - {"seed"} == set(MEMBERSHIP.options)


# --- the positive control of every audit ---------------------------------------------------------------------


def test_undistorted_releases_of_the_bundled_model_give_their_members_away(mnist: Dataset) -> None:
    """Round 0 of the paper's federations: LeNet-Zhu with weights in U(-0.5, 0.5), batches of 4 of MNIST."""
    batched = Batched(LeNetZhu())
    weights = torch.rand(batched.layout.size, generator=torch.Generator().manual_seed(1)) - 0.5
    pixels = mnist.train.inputs
    server = Server(batched, mnist.shape, 10, 4, float(pixels.min()), float(pixels.max()))
    options = AuditOptions(
        attacks=["membership"], releases=24, candidates=2, pairs=2, anchors=2, around=32, tuning=16, trials=16
    )
    materials = Materials.of(mnist)
    targets = build_targets(materials, server, options)
    assert len(targets) == 24
    (outcome,) = attack_cell(Cell(weights, server, {}), targets, materials, options)
    result, chance = rows_of(outcome, targets)
    assert result["membership_auc"] >= 0.98
    assert result["membership_tpr"] > 0.5
    assert abs(chance["membership_auc"] - 0.5) < 0.1
    assert np.isfinite(outcome.values["members"]).all()


# --- what is shaped ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scale", "least"), [("pruning", 20.0, 0.8), ("outpost", 0.1, 0.8)])
def test_members_are_told_from_others_by_what_a_shaped_update_shows(name: str, scale: float, least: float) -> None:
    assert case(4, 15, name, scale).area() > least
    assert case(4, 15, "outpost", 1e4).area() < 0.62
