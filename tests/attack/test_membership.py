"""Membership scores: certain without noise, as good as theory says with it, blind where nothing was released."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from equipoise.attack.attack import Hooks, Knowledge
from equipoise.attack.membership import MEMBERSHIP, REFERENCES, SCORES, membership
from equipoise.attack.simulate import Companions, respond
from equipoise.attack.view import Server, View
from equipoise.errors import DataError
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.statistics import auc

SHAPE, CLASSES = (1, 6, 6), 4


def linear() -> nn.Module:
    """Softmax regression without a bias, from zero: every class has the same probability."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=False))
    nn.init.zeros_(model[1].weight)
    return model


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return MLP(SHAPE, CLASSES, hidden=8)


def noise_of(count: int, size: int, family: str = "gaussian", seed: int = 6) -> Tensor:
    return standard_noise(torch.rand(count, size, generator=torch.Generator().manual_seed(seed)), family)


def images_of(count: int, seed: int) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Case:
    """Releases of one batch each, the members of which come first among the images."""

    server: Server
    view: View
    images: Tensor  # [N, K, ...]
    labels: Tensor  # [N, K]

    def scores(self, **options: Any) -> dict[str, Tensor]:
        return membership(self.server, self.view, self.images, self.labels, **options)

    def areas(self, **options: Any) -> dict[str, float]:
        result, members = self.scores(**options), self.server.examples
        return {name: auc(score[:, :members], score[:, members:]) for name, score in result.items()}


def case(
    model: nn.Module, images: Tensor, labels: Tensor, batch: int = 1, name: str = "none", scale: float = 0.0
) -> Case:
    """The first ``batch`` images of every row are what it was trained on."""
    kind = get_mechanism(name)
    server = Server(Batched(model), SHAPE, CLASSES, batch, protection=Protection(kind, scale, steps=3))
    weights = server.batched.layout.flatten(model.state_dict())
    drawn = noise_of(len(images), len(weights), kind.noise) if kind.distorts else None
    released = respond(server, weights, images[:, :batch], labels[:, :batch], drawn)
    return Case(server, View(weights.expand(len(images), -1), released), images, labels)


# --- known answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2])
def test_without_noise_members_of_a_linear_model_are_certain(batch: int) -> None:
    """Gradients are outer products with the image, and images of independent pixels are nearly orthogonal."""
    images = torch.randn(40, batch + 10, 36, generator=torch.Generator().manual_seed(1))
    images = (images / images.norm(dim=2, keepdim=True)).view(40, batch + 10, *SHAPE)
    labels = torch.randint(0, CLASSES, (40, batch + 10), generator=torch.Generator().manual_seed(2))
    result = case(linear(), images, labels, batch).areas()
    assert result["first"] == 1.0
    assert result["loss"] > 0.99
    assert result["last"] > 0.99


def pixels(count: int, others: int) -> Tensor:
    """Images of one bright pixel each, distinct within a row: their gradients are orthogonal and equally long."""
    orders = torch.stack(
        [torch.randperm(36, generator=torch.Generator().manual_seed(i))[: others + 1] for i in range(count)]
    )
    return 3 * nn.functional.one_hot(orders, 36).float().view(count, others + 1, *SHAPE)


def test_the_score_is_the_inner_product_with_the_gradient() -> None:
    images = pixels(5, 3)
    labels = torch.full((5, 4), 2)
    actual = case(linear(), images, labels).scores()["first"]
    squared = 3**2 * (0.75**2 + 3 * 0.25**2)  # |p - y|^2 |x|^2 with p = 1/4
    expected = torch.tensor([[0.1 * squared, 0, 0, 0]]).expand(5, -1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("expected", [0.6, 0.75, 0.95])
def test_gaussian_noise_allows_the_area_that_theory_says(expected: float) -> None:
    """Members score N(eta |g|^2, s^2 |g|^2) and others N(0, s^2 |g|^2): the area is Phi(eta |g| / (s sqrt 2))."""
    count, others, eta = 1500, 6, 0.1
    size = 3 * math.sqrt(0.75**2 + 3 * 0.25**2)
    scale = eta * size / (math.sqrt(2) * float(norm.ppf(expected)))
    labels = torch.arange(count).unsqueeze(1).expand(-1, others + 1) % CLASSES
    known = case(linear(), pixels(count, others), labels, name="gs-static", scale=scale)
    deviation = math.sqrt(1 / 12 / count + 1 / 12 / (count * others))  # at most: that of equal distributions
    assert known.areas()["first"] == pytest.approx(expected, abs=4 * deviation)
    actual = known.scores()["first"]
    assert float(actual[:, 0].std()) == pytest.approx(scale * size, rel=0.08)
    assert float(actual[:, 0].mean()) == pytest.approx(eta * size**2, abs=4 * scale * size / math.sqrt(count))
    assert float(actual[:, 1:].mean()) == pytest.approx(0, abs=4 * scale * size / math.sqrt(count * others))


def large_noise(name: str) -> list[dict[str, float]]:
    """Areas with and without references where no response to an image is anywhere near the noise."""
    images, labels = images_of(300 * 8, 3).view(300, 8, *SHAPE), torch.arange(8).expand(300, -1) % CLASSES
    known = case(mlp(), images, labels, batch=4, name=name, scale=1000.0)
    return [known.areas(), known.areas(public=(images_of(200, 5), torch.arange(200) % CLASSES))]


@pytest.mark.parametrize("name", ["gs-static", "ls-static", "pl-identical"])
def test_large_noise_leaves_chance(name: str) -> None:
    for result in large_noise(name):
        assert set(result) == set(SCORES)
        assert all(abs(area - 0.5) < 0.05 for area in result.values())


@pytest.mark.parametrize("name", ["pl-learn", "gs-learn"])
def test_a_learner_gives_members_away_at_its_last_step_under_any_noise(name: str) -> None:
    """Its steps follow the members' gradients at the distorted weights, which the server sees."""
    for result in large_noise(name):
        assert abs(result["first"] - 0.5) < 0.05
        assert result["last"] > 0.6


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_release_of_nothing_says_nothing(calibrated: bool) -> None:
    images, labels = images_of(5 * 6, 3).view(5, 6, *SHAPE), torch.arange(6).expand(5, -1) % CLASSES
    known = case(mlp(), images, labels, batch=2)
    same = Case(known.server, View(known.view.previous, known.view.previous.clone()), images, labels)
    public = (images_of(80, 5), torch.arange(80) % CLASSES) if calibrated else None
    for score in same.scores(public=public).values():
        assert torch.equal(score, torch.zeros_like(score))
    assert set(same.areas(public=public).values()) == {0.5}


@pytest.mark.parametrize("name", ["none", "pl-learn"])
def test_the_scores_are_what_autograd_says(name: str) -> None:
    model = mlp().double()
    images = images_of(3 * 5, 3).view(3, 5, *SHAPE).double()
    labels = torch.tensor([[0, 1, 2, 3, 0]]).expand(3, -1)
    base = case(mlp(), images.float(), labels, batch=2, name=name, scale=0.3)
    server = Server(Batched(model), SHAPE, CLASSES, 2, protection=base.server.protection)
    view = View(base.view.previous.double(), base.view.released.double())
    actual = membership(server, view, images, labels)
    layout = server.batched.layout

    def loss_and_slope(flat: Tensor, row: int, place: int) -> tuple[Tensor, Tensor]:
        model.load_state_dict(layout.unflatten(flat))
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(images[row, place : place + 1]), labels[row, place : place + 1])
        loss.backward()
        slopes = {key: tensor.grad for key, tensor in model.named_parameters() if tensor.grad is not None}
        return loss.detach(), layout.flatten(slopes)

    for row in range(3):
        before, after = view.previous[row].clone(), view.released[row].clone()
        for place in range(5):
            (loss, first), (later, last) = (loss_and_slope(flat, row, place) for flat in (before, after))
            expected = {"loss": loss - later, "first": (before - after) @ first, "last": (before - after) @ last}
            for key, value in expected.items():
                assert float(actual[key][row, place]) == pytest.approx(float(value), rel=1e-9, abs=1e-12), key


# --- against public references -------------------------------------------------------------------------------


def test_a_score_is_set_against_public_images_of_its_label() -> None:
    images, labels = images_of(3 * 4, 3).view(3, 4, *SHAPE), torch.full((3, 4), 2)
    known = case(mlp(), images, labels, batch=2, name="gs-static", scale=0.05)
    public = images_of(120, 5), torch.arange(120) % CLASSES
    rows = torch.arange(3 * REFERENCES)
    chosen = Companions(public, 7, "membership").draw(torch.full((3 * REFERENCES, 1), 2), rows).view(3, REFERENCES)
    raw = known.scores()
    result = known.scores(public=public, seed=7)
    against = membership(known.server, known.view, public[0][chosen], public[1][chosen])
    for name in SCORES:
        mean, spread = against[name].mean(1, keepdim=True), against[name].std(1, keepdim=True)
        torch.testing.assert_close(result[name], (raw[name] - mean) / spread, rtol=1e-3, atol=1e-3)


def test_every_label_has_its_own_references() -> None:
    """A row may hold several labels, or one; public images of other labels do not matter."""
    images = images_of(4 * 3, 3).view(4, 3, *SHAPE)
    labels = torch.tensor([[2, 1, 0], [3, 3, 3], [1, 1, 0], [2, 2, 2]])
    known = case(mlp(), images, labels)
    public = images_of(120, 5), torch.arange(120) % CLASSES
    asked = torch.tensor([[0, 1, 2], [3, 3, 3], [0, 1, 0], [2, 2, 2]])  # the labels of a row, then the first again
    place = torch.tensor([[2, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]])  # where the label of an example stands
    rows = torch.arange(4 * REFERENCES)
    chosen = Companions(public, 0, "membership").draw(asked.repeat_interleave(REFERENCES, dim=0), rows)
    chosen = chosen.view(4, REFERENCES * 3)
    against = membership(known.server, known.view, public[0][chosen], public[1][chosen])
    raw, result = known.scores(), known.scores(public=public)
    for name in SCORES:
        others = against[name].view(4, REFERENCES, 3)
        mean, spread = others.mean(1).gather(1, place), others.std(1).gather(1, place)
        torch.testing.assert_close(result[name], (raw[name] - mean) / spread, rtol=1e-3, atol=1e-3)


def test_references_undo_an_offset_of_the_release() -> None:
    """Every release is moved along what all images of the label have in common, by an amount of its own."""
    count = 120
    images, labels = images_of(count * 6, 3).view(count, 6, *SHAPE), torch.full((count, 6), 1)
    known = case(mlp(), images, labels)
    public = images_of(300, 5), torch.ones(300, dtype=torch.int64)
    weights = known.view.previous[0]
    common = respond(known.server, weights, public[0].unsqueeze(1), public[1].unsqueeze(1), None).mean(0) - weights
    amount = 3 * torch.randn(count, 1, generator=torch.Generator().manual_seed(4))
    moved = Case(
        known.server, View(known.view.previous, known.view.released + amount * common), known.images, known.labels
    )
    plain, calibrated = moved.areas(), moved.areas(public=public)
    assert known.areas()["first"] > 0.8
    assert plain["first"] < 0.6
    for name in ("first", "loss", "last"):
        assert calibrated[name] > plain[name] + 0.1, name


# --- how and what ---------------------------------------------------------------------------------------------


def test_a_release_does_not_depend_on_the_others() -> None:
    images, labels = images_of(70 * 7, 3).view(70, 7, *SHAPE), torch.arange(7).expand(70, -1) % CLASSES
    known = case(mlp(), images, labels, batch=4, name="pl-learn", scale=0.5)
    told: list[int] = []
    whole = known.scores(on_release=told.append)
    assert sum(told) == 70
    rows = slice(33, 35)
    part = membership(known.server, known.view.rows(rows), images[rows], labels[rows])
    for name in SCORES:
        torch.testing.assert_close(part[name], whole[name][rows], rtol=1e-4, atol=1e-5)


def test_an_audit_asks_about_candidates_by_their_rows() -> None:
    known, told = small(), list[int]()
    public = images_of(120, 5), torch.arange(120) % CLASSES
    asked = torch.arange(12).view(3, 4).flip(1)
    knowledge = Knowledge(public, known.images.flatten(0, 1), known.labels.flatten(), asked=asked)
    actual = MEMBERSHIP.run(known.server, known.view, knowledge, {"seed": 7}, Hooks(None, told.append)).values
    expected = known.scores(public=public, seed=7)
    assert list(actual) == list(SCORES)
    for name in SCORES:
        torch.testing.assert_close(actual[name].flip(1), expected[name], rtol=1e-4, atol=1e-4)
    assert sum(told) == 3


def small() -> Case:
    images, labels = images_of(3 * 4, 3).view(3, 4, *SHAPE), torch.arange(4).expand(3, -1)
    return case(mlp(), images, labels)


def test_labels_that_do_not_fit_are_refused() -> None:
    known = small()
    with pytest.raises(DataError, match="int64 labels of shape"):
        membership(known.server, known.view, known.images, known.labels[:, :2])
    with pytest.raises(DataError, match="int64 labels of shape"):
        membership(known.server, known.view, known.images, known.labels.float())
    with pytest.raises(DataError, match=r"labels in 0\.\.3"):
        membership(known.server, known.view, known.images, known.labels + 1)


def test_references_without_one_of_the_labels_are_refused() -> None:
    known = small()
    with pytest.raises(DataError, match="No public input has label 3"):
        known.scores(public=(images_of(9, 5), torch.arange(9) % 3))


@pytest.mark.parametrize("count", [2, 4])
def test_examples_for_another_number_of_releases_are_refused(count: int) -> None:
    known = small()
    images = known.images.repeat(2, 1, 1, 1, 1)[:count]
    with pytest.raises(DataError):
        membership(known.server, known.view, images, known.labels.repeat(2, 1)[:count])


def test_examples_of_another_shape_are_refused() -> None:
    known = small()
    with pytest.raises(DataError):
        membership(known.server, known.view, known.images[..., :5], known.labels)
