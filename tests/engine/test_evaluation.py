"""Scores, full losses and full gradients: those of the plain model, however the work is cut into pieces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.engine import evaluation as evaluate
from equipoise.models.batched import Batched

N, CLASSES = 23, 4


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, CLASSES)).double()


@pytest.fixture
def batched() -> Batched:
    return Batched(model())


@pytest.fixture
def params(batched: Batched, generator: torch.Generator) -> Tensor:
    """Three models of one shape."""
    return torch.randn(3, batched.layout.size, dtype=torch.float64, generator=generator)


@pytest.fixture
def data(generator: torch.Generator, params: Tensor) -> tuple[Tensor, Tensor]:
    images = torch.randn(N, 1, 6, 6, dtype=torch.float64, generator=generator)
    return images, torch.randint(0, CLASSES, (N,), generator=generator)


@pytest.fixture(params=[1, 2, 7, 16, 10_000])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(evaluate.PIECE, "cpu", request.param)
    return int(request.param)


def plain(batched: Batched, flat: Tensor) -> nn.Sequential:
    twin = model()
    twin.load_state_dict(batched.layout.unflatten(flat))
    return twin


@pytest.mark.usefixtures("piece")
def test_scores_are_those_of_the_plain_model(batched: Batched, params: Tensor, data: tuple[Tensor, Tensor]) -> None:
    correct, loss = evaluate.score(batched, params, *data)
    assert correct.dtype == torch.bool
    for f in range(3):
        outputs = plain(batched, params[f])(data[0])
        assert torch.equal(correct[f], outputs.argmax(1) == data[1])
        torch.testing.assert_close(loss[f], nn.functional.cross_entropy(outputs, data[1], reduction="none"))


@pytest.mark.usefixtures("piece")
def test_the_full_loss_of_every_model_on_its_own_examples(
    batched: Batched, params: Tensor, data: tuple[Tensor, Tensor]
) -> None:
    own = torch.stack([torch.arange(11), torch.arange(5, 16), torch.arange(12, 23)])
    result = evaluate.full_loss(batched, params, data[0][own], data[1][own])
    for f in range(3):
        outputs = plain(batched, params[f])(data[0][own[f]])
        torch.testing.assert_close(result[f], nn.functional.cross_entropy(outputs, data[1][own[f]]))


@pytest.mark.usefixtures("piece")
def test_the_full_gradient_is_that_of_the_mean_loss(
    batched: Batched, params: Tensor, data: tuple[Tensor, Tensor]
) -> None:
    result = evaluate.full_gradient(batched, params, *data)
    for f in range(3):
        twin = plain(batched, params[f])
        grads = torch.autograd.grad(nn.functional.cross_entropy(twin(data[0]), data[1]), list(twin.parameters()))
        for one, two in zip(batched.layout.unflatten(result[f]).values(), grads, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_more_models_than_one_piece_holds(batched: Batched, data: tuple[Tensor, Tensor]) -> None:
    local = torch.Generator().manual_seed(2)
    many = torch.randn(70, batched.layout.size, dtype=torch.float64, generator=local)
    correct, loss = evaluate.score(batched, many, *data)
    for f in (0, 63, 64, 69):
        alone = evaluate.score(batched, many[f : f + 1], *data)
        assert torch.equal(correct[f], alone[0][0])
        torch.testing.assert_close(loss[f], alone[1][0])


def test_means_by_client() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 1.0, 1.0]])
    parts = [torch.tensor([0]), torch.tensor([3, 1, 2])]
    assert evaluate.by_client(values, parts).tolist() == [[1.0, 3.0], [0.0, pytest.approx(2 / 3)]]
    assert evaluate.by_client(values > 2, parts).tolist() == [[0.0, pytest.approx(2 / 3)], [0.0, 0.0]]
