"""The twin with which gaussian-dp was tuned clips what torch.func would clip, and its page says what was found."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

ROOT = Path(__file__).parents[2]
NAMES = ("trainers", "runs", "steps", "tune")


@pytest.fixture(scope="module")
def study() -> dict[str, ModuleType]:
    """The scripts, which import each other by their bare names, taken out of sys.modules again."""
    sys.path.insert(0, str(ROOT / "studies" / "gaussian_dp"))
    before = {name: sys.modules.pop(name, None) for name in NAMES}
    try:
        return {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.pop(0)
        for name in NAMES:
            sys.modules.pop(name, None)
            if before[name] is not None:
                sys.modules[name] = before[name]


def clipped_mean(gradients: tuple[Tensor, ...], clip: Tensor, count: int) -> list[Tensor]:
    norm = sum(g.flatten(1).square().sum(1) for g in gradients) ** 0.5
    share = (clip / norm).clamp(max=1.0) / count
    return [torch.einsum("n,n...->...", share, g) for g in gradients]


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
@pytest.mark.parametrize("clip", [0.3, 3.0, 100.0])
def test_convolutional_nets_clip_each_record(study: dict[str, ModuleType], activation: str, clip: float) -> None:
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(2, 3, 28, 28, generator=generator), torch.tensor([[0, 3, 9], [1, 1, 5]])
    runs = study["trainers"].Conv(images, labels, (images, labels), activation, "torch")
    weights = runs.start(generator)
    found = runs.gradient(weights, torch.tensor([clip, 2 * clip]))

    def loss(parameters: tuple[Tensor, ...], image: Tensor, label: Tensor) -> Tensor:
        values = image[None, None]
        for layer, stride in enumerate((2, 2, 1)):
            kernel = parameters[2 * layer].view(5, 5, -1, 12).permute(3, 2, 0, 1)
            outputs = F.conv2d(values, kernel, parameters[2 * layer + 1][0], stride=stride, padding=2)
            values = getattr(torch, activation)(outputs)
        logits = values.permute(0, 2, 3, 1).flatten(1) @ parameters[6] + parameters[7]
        return F.cross_entropy(logits, label[None])

    for run in range(2):
        parameters = tuple(weight[run] for weight in weights)
        gradients = vmap(grad(loss), (None, 0, 0))(parameters, images[run], labels[run])
        for mine, reference in zip(found, clipped_mean(gradients, torch.tensor(clip * (run + 1)), 3), strict=True):
            torch.testing.assert_close(mine[run], reference, rtol=1e-3, atol=1e-6)


def test_linear_heads_clip_each_record_outside_the_fold(study: dict[str, ModuleType]) -> None:
    generator = torch.Generator().manual_seed(1)
    features, labels = F.normalize(torch.randn(20, 7, generator=generator)), torch.arange(20) % 10
    held_out, scale = torch.rand(20, 3, generator=generator) < 0.3, torch.tensor([1.0, 2.0, 8.0])
    clip, weights = torch.tensor([0.1, 1.0, 50.0]), torch.randn(8, 10, 3, generator=generator)
    (found,) = study["trainers"].Linear(features, labels, held_out, scale).gradient([weights], clip)

    for run in range(3):
        inputs = torch.cat([scale[run] * features, torch.ones(20, 1)], 1)[~held_out[:, run]]
        gradients = vmap(grad(lambda w, x, y: F.cross_entropy((x @ w)[None], y[None])), (None, 0, 0))(
            weights[..., run], inputs, labels[~held_out[:, run]]
        )
        (reference,) = clipped_mean((gradients,), clip[run], len(inputs))
        torch.testing.assert_close(found[..., run], reference, rtol=1e-4, atol=1e-6)


def test_the_noise_is_that_of_the_level(study: dict[str, ModuleType]) -> None:
    """With a gradient of zero, the weights of a run end as far away as its noise alone moves them."""
    trainers, runs = study["trainers"], study["runs"]
    level = runs.Level(2.0, clients=4, divisor=1000)
    features = torch.zeros(2, 20_000)
    made = trainers.Linear(features, torch.tensor([0, 1]), torch.tensor([[True], [False]]), torch.ones(1))
    one = torch.ones(1)
    numbers = trainers.Numbers(one, 0 * one, 3 * one, level.noise(25) * one, 0 * one)
    ends: list[Tensor] = []
    made.accuracy = lambda weights: ends.append(weights[0][:-1].clone()) or one  # type: ignore[func-returns-value]
    trainers.train(made, numbers, 25, torch.Generator().manual_seed(1))

    expected = 5 * 3 * runs.noise_multiplier(2.0, 25) / (1000 * 2)  # sqrt(25) clip sigma / (divisor sqrt(clients))
    assert float(ends[0].std()) == pytest.approx(expected, rel=0.01)


def test_noise_multipliers_spend_the_budget(study: dict[str, ModuleType]) -> None:
    accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    for epsilon in (1.0, 8.0):
        accountant = pld.PLDAccountant()
        sigma = study["runs"].noise_multiplier(epsilon, 50)
        accountant.compose(accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(sigma), 50))
        assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-3)


def test_folds_hold_out_every_record_once_and_all_classes_evenly(study: dict[str, ModuleType]) -> None:
    folds = torch.stack([study["runs"].fold(number, "cpu") for number in range(5)])
    assert (folds.sum(0) == 1).all()
    for dataset in study["runs"].DATASETS:
        labels = study["runs"].images(dataset, "cpu")[1]
        assert all((labels[fold].bincount(minlength=10) == 60).all() for fold in folds)


def test_the_page_says_what_tuning_json_says(study: dict[str, ModuleType]) -> None:
    tune = study["tune"]
    page = tune.PAGE.read_text()
    assert tune.filled(page, tune.read()) == page
    for shape in study["steps"].CHOSEN:
        row = next(line for line in page.splitlines() if line.startswith(f"| {shape.model}") and "0.8" in line)
        displacement = study["steps"].DISPLACEMENT[shape.model] / shape.scale
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[2:5] == [f"{shape.rounds}", f"{shape.clip:g}", f"{shape.momentum:g}"]
        assert float(cells[6]) == pytest.approx(displacement, rel=0.01)
