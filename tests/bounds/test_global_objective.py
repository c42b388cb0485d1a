"""The constants of Assumptions 5.2 and 5.3 on models small enough to know them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.bounds.context import BoundsContext
from equipoise.bounds.global_objective import GlobalObjective, Sampling, assumptions, gradient_deviations
from equipoise.bounds.rows import figure
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from tests.bounds.problems import numbers
from tests.bounds.runs import CHEAP, untrained

CLEAN = Sampling(0.0, 0.0, 12)


def linear(**settings: Any) -> BoundsContext:
    """A softmax regression on four pixels: fifteen weights, in float64."""
    labels = torch.arange(60) % 3
    images = numbers(60, 1, 2, 2, seed=1) + labels.view(-1, 1, 1, 1)
    toy = from_tensors((images, labels), (images, labels), classes=3, name="toy")
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    federations = Federation("toy", "none"), Federation("toy", "ls-static", 100.0, 2)
    sweep = Sweep(Settings.flat(dtype="float64", **settings), federations, {"toy": toy}, model)
    options = replace(CHEAP, power=80, examples=60, samples=5)
    return BoundsContext(sweep, [0], {0: numbers(2, 15, seed=2)}, options)


def loss_of(context: BoundsContext, weights: Tensor, rows: Tensor | None = None) -> Tensor:
    images, labels = context.sweep.inputs, context.sweep.labels
    chosen = slice(None) if rows is None else rows
    named = context.sweep.batched.layout.unflatten(weights)
    return nn.functional.cross_entropy(
        torch.func.functional_call(context.sweep.batched.model, named, images[chosen]), labels[chosen]
    )


def gradient_of(context: BoundsContext, weights: Tensor, rows: Tensor | None = None) -> Tensor:
    weights = weights.clone().requires_grad_()
    return torch.autograd.grad(loss_of(context, weights, rows), weights)[0]


def test_the_smoothness_of_a_softmax_regression_is_its_largest_eigenvalue() -> None:
    context = linear()
    objective, params = GlobalObjective(context), context.weights[0]
    objective.measure(0, params)
    for index in range(2):
        hessian = torch.autograd.functional.hessian(lambda weights: loss_of(context, weights), params[index])
        top = float(torch.linalg.eigvalsh(hessian).abs().max())
        assert objective.smoothness(index)["value"] == pytest.approx(top, rel=1e-3)
        assert objective.smoothness(index)["value"] <= top * (1 + 1e-6)
        assert objective.loss[0][index].item() == pytest.approx(float(loss_of(context, params[index])))
        squared = float(gradient_of(context, params[index]).square().sum())
        assert objective.squared_gradient(0, index) == pytest.approx(squared)


def test_the_variance_is_that_of_the_clients_weighted_mean() -> None:
    """The last client holds about four times the data of the first, and weighs as much."""
    context = linear(sizes=[1.0, 2.0, 3.0, 4.0], batch=3)
    objective, weights = GlobalObjective(context), context.weights[0][0]
    objective.measure(0, context.weights[0])
    full, means = gradient_of(context, weights), []
    shares = torch.tensor([len(part) for part in context.sweep.parts["toy"]]).double()
    assert 3 < float(shares[3] / shares[0]) < 5
    for number in range(1, 6):
        batches = context.sweep.tables([number]).batches[0, :4]
        each = torch.stack([gradient_of(context, weights, batch) for batch in batches])
        means.append(((shares / shares.sum()).unsqueeze(1) * each).sum(0))
    squares = (torch.stack(means) - full).square().sum(1)
    result = objective.variance[0][0]
    assert (result["value"], result["count"]) == (pytest.approx(float(squares.mean())), 5)
    bias = float((torch.stack(means).mean(0) - full).square().sum())
    assert objective.bias[0][0] == pytest.approx(5 * bias / float(squares.mean()))


def test_deviations_are_drawn_anew_in_every_round() -> None:
    context = linear(batch=3)
    weights = context.weights[0][0]
    full = gradient_of(context, weights)
    early, _ = gradient_deviations(context, 0, 0, weights, full)
    late, _ = gradient_deviations(context, 1, 0, weights, full)
    assert torch.allclose(early[1:], late[:-1])
    assert len(set(early.tolist())) == 5


def test_a_mechanism_that_clips_shows_clipped_gradients() -> None:
    context = linear(clip=1e-3)
    weights, full = context.weights[0][1], torch.zeros(15).double()
    squares, _ = gradient_deviations(context, 0, 1, weights, full)
    assert float(squares.max()) <= 1e-6 * (1 + 1e-9)
    assert float(gradient_deviations(context, 0, 0, weights, full)[0].max()) > 1e-3  # "none" does not clip


def test_snapshots_are_compared_pair_by_pair() -> None:
    objective = GlobalObjective(linear())
    places = {0: [[0.0, 0.0], [1.0, 1.0]], 2: [[3.0, 4.0], [1.0, 1.0]], 5: [[3.0, 5.0], [2.0, 1.0]]}
    slopes = {0: [[0.0, 0.0], [5.0, 0.0]], 2: [[10.0, 0.0], [0.0, 0.0]], 5: [[10.0, 7.0], [0.0, 3.0]]}
    objective.gradient = {number: torch.tensor(rows) for number, rows in slopes.items()}
    objective.compare({number: torch.tensor(rows) for number, rows in places.items()})
    assert len(objective.curvatures) == 3
    assert objective.smoothness(0)["value"] == pytest.approx(7.0)  # from 2 to 5; from 0 to 2 it is 10 over 5
    assert objective.smoothness(1)["value"] == pytest.approx(34**0.5)  # from 0 to 5; from 0 to 2 it did not move
    assert objective.smoothness(0)["count"] == 3


def known(context: BoundsContext) -> GlobalObjective:
    """Two rounds looked at, L_F = 2."""
    many = len(context.sweep.federations)
    return GlobalObjective(
        context, curvatures=[torch.full((many,), 2.0)], bias={0: [1.5] * many, 4: [0.5] * many},
        variance={0: [figure(3.0, 8, "mean")] * many, 4: [figure(7.0, 8, "mean")] * many,
                  9: [figure(5.0, 8, "mean")] * many},
    )  # fmt: skip


def test_the_variance_of_a_run_is_the_largest_seen(few: Dataset) -> None:
    objective = known(untrained(few, Federation("few", "none")))
    assert objective.largest_variance(0)["value"] == 7.0


# --- assumptions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sampling", "words"),
    [
        ({"sampling": "passes"}, CLEAN, "without replacement"),
        ({"participants": 2, "sizes": [1.0, 2.0, 1.0, 2.0]}, CLEAN, "unequal size"),
        ({}, replace(CLEAN, clipped=0.01), "clip acted"),
        ({}, replace(CLEAN, refused=0.01), "refused"),
    ],
)
def test_biased_gradients_are_named(few: Dataset, change: dict[str, Any], sampling: Sampling, words: str) -> None:
    objective = known(untrained(few, Federation("few", "none"), **change))
    (check,) = [c for c in assumptions(objective, 0, 0.1, 4, sampling) if c["name"].startswith("unbiased")]
    assert (check["status"], words in check["note"]) == ("violated", True)
    assert check["figures"]["bias_ratio"]["value"] == 0.5
    assert (check["figures"]["clipped_share"]["value"], check["figures"]["clipped_share"]["count"]) == (
        sampling.clipped, 12,
    )  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"participants": 2}, {"participants": 4, "sizes": [1.0, 2.0, 1.0, 2.0]}])
def test_uniform_batches_are_unbiased(few: Dataset, change: dict[str, Any]) -> None:
    objective = known(untrained(few, Federation("few", "none"), **change))
    (check,) = [c for c in assumptions(objective, 0, 0.1, 0, CLEAN) if c["name"].startswith("unbiased")]
    assert check["status"] == "held"


def test_the_step_and_the_layers_decide_the_other_assumptions(few: Dataset) -> None:
    def statuses(model: str, eta: float) -> dict[str, str]:
        objective = known(untrained(few, Federation("few", "none"), model=model))
        checks = assumptions(objective, 0, eta, 0, CLEAN)
        (lipschitz,) = [check for check in checks if check["name"].startswith("L_F")]
        assert ("no L_F need exist" in lipschitz["note"]) == (model == "mlp")
        return {check["name"]: check["status"] for check in checks}

    smooth, kinked = statuses("lenet-zhu", 0.125), statuses("mlp", 0.126)
    assert (smooth["L_F-Lipschitz gradient"], smooth["eta <= 1/(4 L_F)"]) == ("not checkable", "held")
    assert (kinked["L_F-Lipschitz gradient"], kinked["eta <= 1/(4 L_F)"]) == ("violated", "violated")
    assert (smooth["F bounded below"], smooth["bounded variance"]) == ("held", "not checkable")
    flat = replace(known(untrained(few, Federation("few", "none"))), curvatures=[torch.zeros(1)])
    (check,) = [c for c in assumptions(flat, 0, 1e9, 0, CLEAN) if c["name"].startswith("eta")]
    assert (check["status"], check["figures"]["limit"]["value"]) == ("held", math.inf)
