"""Label inference: exact where nothing hides the labels, blind where noise hides them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.attack import Hooks, Knowledge
from equipoise.attack.labels import LABELS, count_labels, decode, infer_labels, last_layer, last_layer_labels
from equipoise.attack.results import LabelCounts
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.errors import DataError, ModelError
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP

SHAPE, CLASSES = (1, 6, 6), 5


def images_of(labels: Tensor, seed: int) -> Tensor:
    """Images with something of their class and much of their own."""
    patterns = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(77))
    own = torch.rand(*labels.shape, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return 0.5 * patterns[labels] + 0.5 * own


def public_of(count: int = 200, seed: int = 9) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % CLASSES
    return images_of(labels, seed), labels


def mlp() -> nn.Module:
    return MLP(SHAPE, CLASSES, hidden=8)


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Sigmoid(), nn.Linear(8, CLASSES, bias=False))


def all_convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, CLASSES, 4), nn.Flatten())


def case(
    batch: int,
    count: int,
    name: str = "none",
    scale: float = 0.0,
    make: Callable[[], nn.Module] = mlp,
    labels: Tensor | None = None,
) -> tuple[Server, View, Tensor]:
    """A server, releases without labels, and the sorted labels behind them."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = make()
    kind, local = get_mechanism(name), torch.Generator().manual_seed(6)
    server = Server(Batched(model), SHAPE, CLASSES, batch, protection=Protection(kind, scale, steps=3))
    if labels is None:
        labels = torch.randint(0, CLASSES, (count, batch), generator=local)
    weights = server.batched.layout.flatten(model.state_dict())
    drawn = standard_noise(torch.rand(count, len(weights), generator=local), kind.noise) if kind.distorts else None
    released = respond(server, weights, images_of(labels, 8), labels, drawn)
    return server, View(weights.expand(count, -1), released), labels.sort(1).values


def shared(result: Tensor, truth: Tensor) -> float:
    """The share of labels that are in both multisets."""
    counts = [nn.functional.one_hot(part, CLASSES).sum(1) for part in (result, truth)]
    return float(torch.minimum(*counts).sum(1).double().mean()) / truth.shape[1]


# --- learned from simulation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 1e-4), ("pl-learn", 0.01)])
def test_labels_are_found_where_little_hides_them(name: str, scale: float) -> None:
    server, view, truth = case(4, 60, name, scale)
    result = infer_labels(server, view, public_of(), samples=800)
    assert result.dtype == torch.int64
    assert float((result == truth).all(1).double().mean()) > 0.9


@pytest.mark.parametrize("name", ["gs-static", "ls-static", "pl-learn"])
def test_labels_are_not_found_under_large_noise(name: str) -> None:
    """Guessing 4 labels out of 5 at random shares somewhat more than half of the multiset."""
    count = 200
    server, view, truth = case(4, count, name, 1000.0)
    result = infer_labels(server, view, public_of(), samples=300)
    shuffled = truth[torch.randperm(count, generator=torch.Generator().manual_seed(1))]
    assert abs(shared(result, truth) - shared(result, shuffled)) < 0.06
    assert shared(result, truth) < 0.7
    assert float((result == truth).all(1).double().mean()) < 0.12


def test_found_labels_are_deterministic_and_sorted() -> None:
    server, view, _ = case(4, 10, "gs-static", 0.05)
    result = infer_labels(server, view, public_of(), samples=200)
    assert torch.equal(result, infer_labels(server, view, public_of(), samples=200))
    assert torch.equal(result, result.sort(1).values)
    assert result.shape == (10, 4)
    told: list[int] = []
    infer_labels(server, view, public_of(), samples=200, on_release=told.append)
    assert sum(told) == 200


def test_the_labels_of_the_view_are_not_looked_at() -> None:
    server, view, truth = case(4, 10, "gs-static", 0.05)
    wrong = View(view.previous, view.released, (truth + 1) % CLASSES)
    expected = infer_labels(server, view, public_of(), samples=200, seed=2)
    assert torch.equal(infer_labels(server, wrong, public_of(), samples=200, seed=2), expected)
    actual = LABELS.run(server, wrong, Knowledge(public_of()), {"samples": 200, "seed": 2}, Hooks())
    assert torch.equal(actual.values, expected), "nor in an audit"


def test_releases_from_several_weights_are_taken_apart() -> None:
    server, view, truth = case(4, 20)
    _, other, _ = case(4, 20)
    moved = view.previous[:1] * 0.5
    released = respond(server, moved[0], images_of(truth, 8), truth, None)
    both = View(
        torch.cat([view.previous, moved.expand(20, -1)])[torch.arange(40).view(2, 20).T.flatten()],
        torch.cat([other.released, released])[torch.arange(40).view(2, 20).T.flatten()],
    )
    result = infer_labels(server, both, public_of(), samples=500)
    assert float((result == truth.repeat_interleave(2, dim=0)).all(1).double().mean()) > 0.9


def test_public_data_must_fit() -> None:
    server, view, _ = case(4, 2)
    images, labels = public_of()
    with pytest.raises(DataError, match="shape"):
        infer_labels(server, view, (images[:, :, :5], labels))
    with pytest.raises(DataError, match="no public inputs"):
        infer_labels(server, view, (images[:0], labels[:0]))


# --- read off the last layer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mlp, without_bias])
def test_the_label_of_one_image_is_exact(make: Callable[[], nn.Module]) -> None:
    server, view, truth = case(1, 40, make=make)
    assert torch.equal(last_layer_labels(server, view), truth)


def test_the_label_of_one_image_survives_a_learned_distortion_that_is_tiny() -> None:
    server, view, truth = case(1, 40, "pl-learn", 1e-3)
    assert torch.equal(last_layer_labels(server, view), truth)


def test_several_labels_are_read_off_the_last_layer() -> None:
    server, view, truth = case(4, 60)
    assert float((last_layer_labels(server, view) == truth).all(1).double().mean()) > 0.9


def test_the_last_layer_shows_nothing_under_large_noise() -> None:
    server, view, truth = case(1, 200, "gs-static", 1000.0)
    right = float((last_layer_labels(server, view) == truth).double().mean())
    assert abs(right - 1 / CLASSES) < 4 * (0.2 * 0.8 / 200) ** 0.5


def test_a_model_without_a_last_linear_layer_is_refused() -> None:
    server, view, _ = case(2, 3, make=all_convolutions)
    with pytest.raises(ModelError, match="no last linear layer with 5 outputs"):
        last_layer_labels(server, view)
    with pytest.raises(ModelError, match="no last linear layer with 5 outputs"):
        infer_labels(server, view, public_of(), samples=20)


@pytest.mark.parametrize(("make", "biased"), [(mlp, True), (without_bias, False)])
def test_the_last_layer_is_found(make: Callable[[], nn.Module], biased: bool) -> None:
    server, _, _ = case(1, 1, make=make)
    weight, bias = last_layer(server)
    assert weight.shape == (CLASSES, 8)
    assert (bias is not None) == biased
    assert weight.stop == server.batched.layout.size - CLASSES * biased


# --- counts to labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "labels"),
    [
        ([0.0, 4.0, 0.0], [1, 1, 1, 1]),
        ([1.1, 0.9, 2.2], [0, 1, 2, 2]),
        ([2.6, 1.4, 0.0], [0, 0, 0, 1]),
        ([2.4, 1.6, 0.0], [0, 0, 1, 1]),
        ([-4.0, -1.0, -2.2], [1, 1, 2, 1]),
        ([0.5, 0.4, 0.3], [0, 1, 2, 0]),
    ],
)
def test_counts_become_the_nearest_labels(counts: list[float], labels: list[int]) -> None:
    given = torch.tensor([counts])
    assert decode(given, 4).tolist() == [sorted(labels)]
    assert given.tolist() == torch.tensor([counts]).tolist(), "the counts are left alone"


def test_every_row_of_counts_is_decoded_on_its_own() -> None:
    counts = torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.6, 1.4]])
    assert decode(counts, 3).tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 1]]


# --- yes-or-no labels ----------------------------------------------------------------------------------------


def yes_or_no(noise: float = 0.0, count: int = 40) -> tuple[Server, View, tuple[Tensor, Tensor], Tensor]:
    """A server, releases of batches whose images have any of three labels, public ones, and how many have each."""
    table = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)  # label number -> three of them

    def loss(outputs: Tensor, numbers: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, table[numbers])

    local = torch.Generator().manual_seed(3)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Sigmoid(), nn.Linear(8, 3))
    server = Server(Batched(model, loss), SHAPE, 3, 4, targets=table)
    weights = server.batched.layout.flatten(model.state_dict())
    numbers, known = torch.randint(8, (count, 4), generator=local), torch.randint(8, (300,), generator=local)
    images, public = (torch.rand(*part.shape, *SHAPE, generator=local) for part in (numbers, known))
    released = respond(server, weights, images, numbers, None)
    released = released + noise * torch.randn(released.shape, generator=local)
    return server, View(weights.expand(count, -1), released), (public, known), table[numbers].sum(1).long()


def test_how_many_examples_have_each_label_is_counted() -> None:
    server, view, public, truth = yes_or_no()
    guess = count_labels(server, view, public, samples=300)
    assert guess.shape == truth.shape
    assert float((guess == truth).double().mean()) > 0.95
    server, view, public, truth = yes_or_no(noise=10.0)
    guess = count_labels(server, view, public, samples=300)
    assert float((guess == truth).double().mean()) < 0.5
    assert 0 <= int(guess.min()) <= int(guess.max()) <= 4, "no more than there are examples"


def test_the_attack_counts_where_labels_are_no_classes() -> None:
    server, view, public, _ = yes_or_no(count=2)
    result = LABELS.run(server, view, Knowledge(public), {"samples": 20, "seed": 0}, Hooks())
    assert isinstance(result, LabelCounts)
    assert torch.equal(result.values, count_labels(server, view, public, samples=20))


def test_values_are_not_counted() -> None:
    server, view, public, _ = yes_or_no(count=2)
    with pytest.raises(DataError, match="labels are values") as caught:
        count_labels(replace(server, targets=torch.rand(8)), view, public, samples=20)
    assert caught.value.remedy == "Leave labels out."


def test_labels_of_tokens_are_read_off_the_last_layer_too() -> None:
    """What the bias shows is set against the chance of classes on tokens of their range."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, CLASSES))
    server = Server(Batched(model), (5,), CLASSES, 2, 0.0, 8.0, tokens=True)
    weights, labels = server.batched.layout.flatten(model.state_dict()), torch.tensor([[0, 1], [2, 2]])
    inputs = torch.randint(9, (2, 2, 5), generator=torch.Generator().manual_seed(1))
    released = respond(server, weights, inputs, labels, None)
    assert torch.equal(last_layer_labels(server, View(weights.expand(2, -1), released)), labels)
