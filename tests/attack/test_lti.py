"""Learning to invert: wins where releases show images, knows when they do not, keeps the order of the labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from equipoise.attack.attack import Hooks, Knowledge
from equipoise.attack.lti import LTI, PENALTIES, Regression, learn, lti
from equipoise.attack.results import Inversion
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.auditing.image_scores import mse
from equipoise.errors import AttackError, DataError
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import NO_PROTECTION, Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.statistics import ranks
from tests.attack.candidates import CLASSES, SHAPE, images_of

DECOYS = 19
LABELS = torch.arange(480) % CLASSES
PUBLIC = (images_of(LABELS, 9), LABELS)
MEANS = torch.stack([PUBLIC[0][label == LABELS].mean(0) for label in range(CLASSES)])


@dataclass(frozen=True)
class Case:
    server: Server
    view: View
    truth: Tensor  # [N, E, ...]

    @property
    def labels(self) -> Tensor:
        assert self.view.labels is not None
        return self.view.labels

    def error(self, result: Inversion) -> float:
        return float(mse(result.images, self.truth).mean())

    def class_mean(self) -> float:
        """The error of guessing the mean public image of the right class."""
        return float(mse(MEANS[self.labels], self.truth).mean())

    def identified(self, result: Inversion) -> float:
        """How often the guess is nearer to the truth than to 19 decoys of its own."""
        decoys = images_of(self.labels.unsqueeze(2).expand(-1, -1, DECOYS), 11)
        candidates = torch.cat([self.truth.unsqueeze(2), decoys], dim=2)
        return float(ranks(-mse(result.images.unsqueeze(2), candidates)).first.mean())


def case(batch: int, count: int, name: str = "none", scale: float = 0.0, labels: Tensor | None = None) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = MLP(SHAPE, CLASSES, hidden=8)
    kind, local = get_mechanism(name), torch.Generator().manual_seed(6)
    server = Server(Batched(model), SHAPE, CLASSES, batch, protection=Protection(kind, scale, steps=3))
    labels = torch.arange(batch).expand(count, -1) % CLASSES if labels is None else labels
    weights = server.batched.layout.flatten(model.state_dict())
    drawn = standard_noise(torch.rand(count, len(weights), generator=local), kind.noise) if kind.distorts else None
    truth = images_of(labels, 8)
    return Case(server, View(weights.expand(count, -1), respond(server, weights, truth, labels, drawn), labels), truth)


# --- known answers -------------------------------------------------------------------------------------------


def test_one_image_is_found_without_protection() -> None:
    known = case(1, 40)
    result = lti(known.server, known.view, PUBLIC, samples=300)
    assert known.error(result) < 0.03 * known.class_mean()
    assert known.identified(result) == 1.0


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 1e-4), ("ls-static", 1e-4)])
def test_four_images_are_found_where_little_hides_them(name: str, scale: float) -> None:
    known = case(4, 30, name, scale)
    result = lti(known.server, known.view, PUBLIC, samples=400)
    assert known.error(result) < 0.6 * known.class_mean()
    assert known.identified(result) > 0.9


@pytest.mark.parametrize("name", ["gs-static", "ls-static", "pl-identical", "pl-learn", "gs-learn"])
def test_nothing_is_found_under_large_noise(name: str) -> None:
    """The guess falls back on the class mean, and its place among 20 candidates is that of chance."""
    known = case(4, 40, name, 1000.0)
    result = lti(known.server, known.view, PUBLIC, samples=200)
    assert 0.97 * known.class_mean() < known.error(result) < 1.05 * known.class_mean()
    assert known.identified(result) < 0.05 + 4 * (0.05 * 0.95 / 160) ** 0.5


def test_the_attack_adapts_to_the_learner() -> None:
    """An attacker who knows the learned distortion beats one who takes the release for an undistorted one."""
    known = case(4, 30, "pl-learn", 0.1)
    aware = lti(known.server, known.view, PUBLIC, samples=400)
    unaware = lti(replace(known.server, protection=NO_PROTECTION), known.view, PUBLIC, samples=400)
    assert known.error(aware) < 0.8 * known.class_mean()
    assert known.error(aware) < 0.8 * known.error(unaware)
    assert known.identified(aware) > 0.5


@pytest.mark.parametrize("each", [500, 40])
def test_the_cost_is_the_error_on_releases_that_were_held_out(each: int) -> None:
    """It predicts the error on targets, which the attack never saw, however few public images of a label there are."""
    labels = torch.arange(each * CLASSES) % CLASSES
    public = images_of(labels, 9), labels
    for scale in (1e-4, 0.01, 1000.0):
        known = case(4, 60, "gs-static", scale)
        result = lti(known.server, known.view, public, samples=400)
        assert len(result.cost.unique()) == 1
        assert float(result.cost[0]) == pytest.approx(known.error(result), rel=0.12)


def test_reconstructions_lie_in_the_range_of_the_inputs() -> None:
    known = case(4, 8)
    narrow = replace(known.server, low=0.4, high=torch.tensor(0.6))
    result = lti(narrow, known.view, PUBLIC, samples=50).images
    assert float(result.min()) == pytest.approx(0.4)
    assert float(result.max()) == pytest.approx(0.6)


def test_the_same_seed_gives_the_same_bits() -> None:
    known = case(4, 5, "pl-learn", 0.1)
    told: list[int] = []
    result = lti(known.server, known.view, PUBLIC, samples=50, seed=3, on_release=told.append)
    assert torch.equal(result.images, lti(known.server, known.view, PUBLIC, samples=50, seed=3).images)
    assert not torch.equal(result.images, lti(known.server, known.view, PUBLIC, samples=50, seed=4).images)
    assert sum(told) == 100  # each with its opposite


def test_the_options_of_an_audit_reach_the_simulation() -> None:
    known, told = case(4, 3, "pl-learn", 0.1), list[int]()
    result = LTI.run(known.server, known.view, Knowledge(PUBLIC), {"samples": 30, "seed": 3}, Hooks(None, told.append))
    assert torch.equal(result.images, lti(known.server, known.view, PUBLIC, samples=30, seed=3).images)
    assert sum(told) == 60


# --- the order of the labels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "pl-learn"])
def test_permuted_labels_give_permuted_reconstructions(name: str) -> None:
    known = case(4, 6, name, 0.05)
    expected = lti(known.server, known.view, PUBLIC, samples=100).images
    order = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i)) for i in range(6)])
    turned = replace(known.view, labels=known.labels.gather(1, order))
    actual = lti(known.server, turned, PUBLIC, samples=100).images
    assert torch.equal(actual, expected[torch.arange(6).unsqueeze(1), order])


def test_repeated_labels_are_reconstructed_in_the_order_of_the_view() -> None:
    labels = torch.tensor([[2, 0, 2, 1], [1, 2, 0, 2], [3, 3, 3, 0], [0, 1, 2, 3]]).repeat(8, 1)
    known = case(4, 32, labels=labels)
    result = lti(known.server, known.view, PUBLIC, samples=300)
    for label in range(CLASSES):
        own = labels == label
        error = mse(result.images[own], known.truth[own]).mean()
        others = torch.stack([mse(MEANS[other], known.truth[own]).mean() for other in range(CLASSES)])
        assert error < others.min(), "better than the mean of the right class, and of every other"
    assert result.cost.unique().shape == (3,), "one regression for each multiset of labels"
    single = labels[:, :3].eq(labels[:, 3:]).sum(1).eq(0)  # the last label occurs once
    assert float(mse(result.images[single][:, 3], known.truth[single][:, 3]).mean()) < 0.6 * known.class_mean()


def test_a_release_does_not_depend_on_the_others() -> None:
    labels = torch.tensor([[2, 0, 2, 1], [0, 1, 2, 3], [2, 0, 2, 1], [3, 3, 3, 0]])
    known = case(4, 4, "gs-static", 1e-3, labels)
    whole = lti(known.server, known.view, PUBLIC, samples=100).images
    for row in range(4):
        alone = lti(known.server, known.view.rows(slice(row, row + 1)), PUBLIC, samples=100).images
        torch.testing.assert_close(alone[0], whole[row], rtol=0, atol=1e-4)


# --- what is refused -----------------------------------------------------------------------------------------


def test_too_few_samples_are_refused() -> None:
    known = case(4, 2)
    with pytest.raises(AttackError, match="at least 10 simulated releases, got 9"):
        lti(known.server, known.view, PUBLIC, samples=9)
    assert lti(known.server, known.view, PUBLIC, samples=10).images.shape == (2, 4, *SHAPE)


def test_a_label_without_public_images_is_refused() -> None:
    known = case(4, 2)
    kept = LABELS != 2
    with pytest.raises(DataError, match="No public input has label 2"):
        lti(known.server, known.view, (PUBLIC[0][kept], LABELS[kept]), samples=10)


def test_a_view_without_labels_is_refused() -> None:
    known = case(4, 2)
    with pytest.raises(DataError, match="granted the labels"):
        lti(known.server, replace(known.view, labels=None), PUBLIC, samples=10)


def test_simulations_that_are_not_finite_are_refused() -> None:
    known = case(4, 2)
    with pytest.raises(AttackError, match="not finite"):
        lti(replace(known.server, eta=1e39), known.view, PUBLIC, samples=20)


# --- the regression ------------------------------------------------------------------------------------------


def problem(rows: int, features: int, targets: int) -> tuple[Tensor, Tensor, Tensor]:
    local = torch.Generator().manual_seed(1)
    x, new = (torch.randn(n, features, dtype=torch.float64, generator=local) for n in (rows, 7))
    return x, torch.randn(rows, targets, dtype=torch.float64, generator=local) + 3, new


@pytest.mark.parametrize(("rows", "features"), [(30, 8), (8, 30)])
@pytest.mark.parametrize("penalty", [1e-5, 1e-2, 10.0])
def test_the_linear_regression_is_ridge_regression(rows: int, features: int, penalty: float) -> None:
    x, y, new = problem(rows, features, 3)
    regression = Regression(x, y, "linear")
    actual = regression.against(new) @ regression.solve(penalty) + regression.mean
    unit = x.square().sum(1).mean()  # the kernel's mean diagonal
    inner = x.T @ x + penalty * unit * torch.eye(features, dtype=torch.float64)
    expected = new @ torch.linalg.solve(inner, x.T @ (y - y.mean(0))) + y.mean(0)
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("penalty", [1e-5, 1.0])
def test_the_kernel_regression_is_the_closed_form(penalty: float) -> None:
    x, y, new = problem(20, 5, 2)
    regression = Regression(x, y, "rbf")
    result = regression.against(new) @ regression.solve(penalty) + regression.mean
    width = 2 * x.square().sum(1).mean()
    gram, rows = ((-torch.cdist(a, x).square() / width).exp() for a in (x, new))
    weights = torch.linalg.solve(gram + penalty * torch.eye(20, dtype=torch.float64), y - y.mean(0))
    torch.testing.assert_close(result, rows @ weights + y.mean(0), rtol=1e-7, atol=1e-7)


def test_a_singular_kernel_is_solved_with_a_larger_penalty() -> None:
    x, y, _ = problem(10, 4, 2)
    same = Regression(torch.cat([x] * 20) * 1e8, torch.cat([y] * 20), "linear")
    assert torch.isfinite(same.solve(1e-30)).all()


def test_penalties_span_from_none_to_the_class_mean() -> None:
    """The largest penalty leaves nothing of the update: the guess is the mean of the simulated batches."""
    known = case(4, 10, "gs-static", 1000.0)
    predict, _ = learn(known.server, known.view.previous[0], PUBLIC, known.labels[0], 100, 0)
    guess = predict(known.view.update)
    assert float((guess - guess.mean(0)).std()) < 0.02
    assert PENALTIES[0] < 1e-6
    assert PENALTIES[-1] >= 1e3
