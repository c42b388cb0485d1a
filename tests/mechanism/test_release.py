"""The only exit from a client: what leaves it, what is recorded of it, and that nothing else builds one."""

from __future__ import annotations

import ast
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import MECHANISMS, Mechanism
from equipoise.mechanism.release import Release, distort_given, local_step, observed_release, release
from equipoise.models.batched import Batched
from equipoise.models.objective import Objective

SOURCE = Path(equipoise.__file__).parent
R, P, ETA = 5, 12, 0.1
WHOLE = [m for m in MECHANISMS.values() if not m.per_example]  # the other one has a file of its own: test_laplace_dp
DISTORTING = [m for m in WHOLE if m.distorts]
BOUNDED = [m for m in DISTORTING if m.shaping is None]  # the others: test_shaping, test_pruning, test_outpost
STATIC = [m for m in BOUNDED if not m.learns]
LEARNING = [m for m in DISTORTING if m.learns]


def name(kind: Mechanism) -> str:
    return kind.name


def placed(objective: Objective) -> Objective:
    """With two tensors in its parameters."""
    objective.stretches = ((0, 8), (8, P))
    return objective


def bowl(goal: Tensor) -> Objective:
    """|w - goal|^2 / 2 for every row."""

    def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sub(params, goal, out=out)

    return placed(Objective(lambda params: ((params - goal) ** 2).sum(-1) / 2, gradient))


def broken(value: float, row: int) -> Objective:
    """As ``bowl(0)``, but one row's gradient and loss are not finite."""

    def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
        result = params.clone()
        result[row, 0] = value
        return result if out is None else out.copy_(result)

    def loss(params: Tensor) -> Tensor:
        result = (params**2).sum(-1) / 2
        result[row] = value
        return result

    return placed(Objective(loss, gradient))


@pytest.fixture
def start(generator: torch.Generator) -> Tensor:
    return torch.randn(R, P, dtype=torch.float64, generator=generator)


@pytest.fixture
def noise(generator: torch.Generator, start: Tensor) -> Tensor:
    """Standard noise; drawn after ``start``."""
    return torch.randn(R, P, dtype=torch.float64, generator=generator)


@pytest.fixture
def goals(generator: torch.Generator, noise: Tensor) -> list[Tensor]:
    return [torch.randn(R, P, dtype=torch.float64, generator=generator) for _ in range(3)]


def protect(kind: Mechanism, **change: Any) -> Protection:
    scale = torch.linspace(0.5, 3.0, R, dtype=torch.float64)
    return replace(Protection(kind, scale, clip=1e3), **change)


# --- what leaves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOUNDED, ids=name)
@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0])
def test_a_release_is_the_local_model_plus_a_distortion_within_its_bounds(
    kind: Mechanism, factor: float, start: Tensor, noise: Tensor, goals: list[Tensor]
) -> None:
    made, alpha = observed_release([bowl(goals[0])], start, noise, ETA, protect(kind, factor=factor))
    local = start - ETA * (start - goals[0])
    torch.testing.assert_close(made.parameters, local + alpha, rtol=0, atol=1e-14)
    record, size = made.record, intensity(alpha, kind.norm)
    torch.testing.assert_close(record.intensity, size)
    torch.testing.assert_close(record.upper, factor * record.lower)
    assert (size >= record.lower * (1 - 1e-12)).all()
    assert (size <= record.upper * (1 + 1e-12)).all()
    assert record.accepted.all()
    losses = [((w - goals[0]) ** 2).sum(-1) / 2 for w in (made.parameters, local)]
    torch.testing.assert_close(record.utility_loss, losses[0] - losses[1])


@pytest.mark.parametrize("kind", STATIC, ids=name)
def test_a_static_distortion_is_the_noise_at_its_lower_bound(
    kind: Mechanism, start: Tensor, noise: Tensor, goals: list[Tensor]
) -> None:
    protection = protect(kind)
    made, alpha = observed_release([bowl(goals[0])], start, noise, ETA, protection)
    assert isinstance(protection.scale, Tensor)
    scale = protection.scale.unsqueeze(-1)
    expected = noise * scale
    if kind.measure == "leakage":
        expected = expected / intensity(noise).unsqueeze(-1)
        torch.testing.assert_close(made.record.lower, protection.scale)
    torch.testing.assert_close(alpha, expected)
    torch.testing.assert_close(made.record.intensity, made.record.lower)


@pytest.mark.parametrize("kind", LEARNING, ids=name)
def test_a_learned_distortion_starts_there_and_costs_less_than_the_static_one(
    kind: Mechanism, start: Tensor, noise: Tensor, goals: list[Tensor]
) -> None:
    still, alpha = observed_release([bowl(goals[0])], start, noise, ETA, protect(kind, steps=0))
    static = MECHANISMS[{"pl-learn": "pl-identical"}.get(kind.name, kind.name.replace("learn", "static"))]
    assert torch.equal(alpha, observed_release([bowl(goals[0])], start, noise, ETA, protect(static))[1])
    made = release([bowl(goals[0])], start, noise, ETA, protect(kind))
    torch.testing.assert_close(made.record.lower, still.record.lower)
    assert (made.record.utility_loss < still.record.utility_loss).all()


@pytest.mark.parametrize("kind", LEARNING, ids=name)
def test_rows_have_their_own_step_size_and_coefficient(
    kind: Mechanism, start: Tensor, noise: Tensor, goals: list[Tensor]
) -> None:
    gamma = torch.tensor([0.0, 0.1, 0.1, 0.2, 0.0], dtype=torch.float64)
    coefficient = torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0], dtype=torch.float64)
    made = release([bowl(goals[0])], start, noise, ETA, protect(kind, gamma=gamma, negative_norm=coefficient))
    for i in range(R):
        one = slice(i, i + 1)
        scale = torch.linspace(0.5, 3.0, R, dtype=torch.float64)[one]
        alone = protect(kind, scale=scale, gamma=float(gamma[i]), negative_norm=float(coefficient[i]))
        single = release([bowl(goals[0][one])], start[one], noise[one], ETA, alone)
        torch.testing.assert_close(made.parameters[one], single.parameters, rtol=1e-12, atol=1e-12)


def test_none_leaves_the_local_model_untouched(start: Tensor, goals: list[Tensor]) -> None:
    made, alpha = observed_release([bowl(goals[0])], start, None, ETA, protect(MECHANISMS["none"], clip=1e-6))
    assert torch.equal(made.parameters, start - ETA * (start - goals[0])), "not even the clip acts"
    assert not alpha.any()
    record = made.record
    for part in (record.lower, record.upper, record.intensity, record.clipped, record.utility_loss):
        assert part.tolist() == [0.0] * R
    assert record.accepted.all()


@pytest.mark.parametrize("kind", WHOLE, ids=name)
def test_no_input_is_modified(kind: Mechanism, start: Tensor, noise: Tensor, goals: list[Tensor]) -> None:
    kept = start.clone(), noise.clone(), goals[0].clone()
    release([bowl(goals[0])], start, noise, ETA, protect(kind))
    assert all(torch.equal(a, b) for a, b in zip(kept, (start, noise, goals[0]), strict=True))


@pytest.mark.parametrize("kind", WHOLE, ids=name)
def test_rows_do_not_influence_each_other(kind: Mechanism, start: Tensor, noise: Tensor, goals: list[Tensor]) -> None:
    whole = release([bowl(goals[0])], start, noise, ETA, protect(kind, scale=1.0))
    for i in range(R):
        one = slice(i, i + 1)
        alone = release([bowl(goals[0][one])], start[one], noise[one], ETA, protect(kind, scale=1.0))
        torch.testing.assert_close(whole.parameters[one], alone.parameters, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", WHOLE, ids=name)
def test_a_model_trained_elsewhere_is_distorted_alike(
    kind: Mechanism, start: Tensor, noise: Tensor, goals: list[Tensor]
) -> None:
    local = start - ETA * (start - goals[0])
    given = distort_given(bowl(goals[0]), start, local, noise, protect(kind))
    made = release([bowl(goals[0])], start, noise, ETA, protect(kind))
    torch.testing.assert_close(given.parameters, made.parameters)
    torch.testing.assert_close(given.record.utility_loss, made.record.utility_loss)
    assert given.record.accepted.all()
    assert not given.record.clipped.any()


def test_utility_is_measured_only_on_demand(start: Tensor, noise: Tensor, goals: list[Tensor]) -> None:
    kind = MECHANISMS["pl-learn"]
    with_it = release([bowl(goals[0])], start, noise, ETA, protect(kind))
    without = release([bowl(goals[0])], start, noise, ETA, protect(kind), utility=False)
    assert torch.isnan(without.record.utility_loss).all()
    assert without.record.accepted.all()
    assert torch.equal(with_it.parameters, without.parameters)


def test_the_first_few_of_several(start: Tensor, noise: Tensor, goals: list[Tensor]) -> None:
    made = release([bowl(goals[0])], start, noise, ETA, protect(MECHANISMS["ls-learn"]))
    head = made.first(2)
    assert torch.equal(head.parameters, made.parameters[:2])
    for part in fields(made.record):
        assert torch.equal(getattr(head.record, part.name), getattr(made.record, part.name)[:2])


# --- the gradient clip -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("kind", [m for m in WHOLE if m.distorts], ids=name)
def test_a_small_clip_acts_where_it_belongs_and_is_recorded(
    kind: Mechanism, norm: str, start: Tensor, noise: Tensor, goals: list[Tensor]
) -> None:
    gradient = start - goals[0]
    size = intensity(gradient, norm)  # type: ignore[arg-type]
    bound = float(size.median())
    protection = protect(kind, clip=bound, clip_norm=norm)
    made, alpha = observed_release([bowl(goals[0])], start, noise, ETA, protection)
    expected = gradient * (bound / size).clamp(max=1).unsqueeze(-1) if kind.clips else gradient
    torch.testing.assert_close(made.parameters - alpha, start - ETA * expected)
    acted = (size > bound).double() if kind.clips else torch.zeros(R, dtype=torch.float64)
    assert made.record.clipped.tolist() == acted.tolist()
    if kind.clips:
        assert 0 < acted.sum() < R
        moved = intensity((start - (made.parameters - alpha)) / ETA, norm)  # type: ignore[arg-type]
        assert (moved <= bound * (1 + 1e-9)).all()


def test_without_a_bound_nothing_is_clipped(start: Tensor, noise: Tensor, goals: list[Tensor]) -> None:
    made, alpha = observed_release(
        [bowl(1e6 * goals[0])], start, noise, ETA, protect(MECHANISMS["ls-static"], clip=None)
    )
    torch.testing.assert_close(made.parameters - alpha, start - ETA * (start - 1e6 * goals[0]))
    assert not made.record.clipped.any()


# --- several local steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MECHANISMS["pl-learn"], MECHANISMS["ls-learn"]], ids=name)
def test_several_local_steps_and_the_distortion_of_the_last_batch(
    kind: Mechanism, start: Tensor, noise: Tensor, goals: list[Tensor]
) -> None:
    seen: list[int] = []

    def watched(index: int) -> Objective:
        inner = bowl(goals[index])

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            seen.append(index)
            return inner.gradient(params, out=out)

        return Objective(inner.loss, gradient)

    protection = protect(kind, steps=4)
    made, alpha = observed_release([watched(i) for i in range(3)], start, noise, ETA, protection)
    assert seen == [0, 1, 2, 2, 2, 2, 2]
    local = start
    for goal in goals:
        local = local - ETA * (local - goal)
    torch.testing.assert_close(made.parameters - alpha, local)
    single, same = observed_release([bowl(goals[2])], local, noise, 0.0, protection)
    torch.testing.assert_close(alpha, same)
    torch.testing.assert_close(made.record.utility_loss, single.record.utility_loss)


def test_the_share_of_clipped_steps_is_a_share(start: Tensor, goals: list[Tensor]) -> None:
    objectives = [bowl(start + 1e-9), bowl(1e6 + goals[1]), bowl(-1e6 + goals[2])]
    _, clipped = local_step(objectives, start, 1e-3, protect(MECHANISMS["ls-static"], clip=1.0))
    torch.testing.assert_close(clipped, torch.full((R,), 2 / 3, dtype=torch.float64))


# --- refused rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WHOLE, ids=name)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_with_a_broken_objective_is_not_accepted_and_harms_no_other(
    kind: Mechanism, value: float, start: Tensor, noise: Tensor
) -> None:
    sick = release([broken(value, row=2)], start, noise, ETA, protect(kind))
    well = release([bowl(torch.zeros_like(start))], start, noise, ETA, protect(kind))
    assert sick.record.accepted.tolist() == [True, True, False, True, True]
    others = [0, 1, 3, 4]
    torch.testing.assert_close(sick.parameters[others], well.parameters[others])


@pytest.mark.parametrize("kind", BOUNDED, ids=name)
def test_noise_that_overflows_is_not_accepted(kind: Mechanism, start: Tensor, noise: Tensor) -> None:
    noise = noise.clone()
    noise[1, 3] = math.inf
    made = release([bowl(torch.zeros_like(start))], start, noise, ETA, protect(kind))
    assert made.record.accepted.tolist() == [True, False, True, True, True]


def test_a_distortion_outside_its_bounds_is_not_accepted(
    start: Tensor, noise: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the learner ever return something infeasible, the exit notices."""
    import equipoise.mechanism.release as module

    def careless(*arguments: Any, **_: Any) -> Tensor:
        scale = torch.tensor([1.0, 0.9, 2.1, 1.5, 2.0], dtype=torch.float64).unsqueeze(-1)
        return arguments[2] * scale

    monkeypatch.setattr(module, "learn_distortion", careless)
    for kind in LEARNING:
        made = release([bowl(torch.zeros_like(start))], start, noise, ETA, protect(kind))
        assert made.record.accepted.tolist() == [True, False, False, True, True]


@pytest.mark.parametrize("kind", DISTORTING, ids=name)
def test_single_precision_rounding_is_not_mistaken_for_a_violation(kind: Mechanism) -> None:
    local = torch.Generator().manual_seed(4)
    start, noise = (torch.randn(8, 13_426, generator=local) for _ in range(2))
    made = release([bowl(torch.zeros_like(start))], start, noise, ETA, Protection(kind, 15.99975, clip=1e9))
    assert made.record.accepted.all()


# --- a real model ------------------------------------------------------------------------------------------


def test_a_model_and_its_batch() -> None:
    """The same call with a network: one client of one federation, R = 1."""
    local = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    batched = Batched(model)
    x = torch.randn(1, 4, 1, 4, 4, dtype=torch.float64, generator=local)
    y = torch.tensor([[0, 1, 2, 1]])
    start = batched.layout.flatten(dict(model.named_parameters())).unsqueeze(0)
    noise = torch.randn(1, batched.layout.size, dtype=torch.float64, generator=local)
    objective = batched.at(x, y)
    made, alpha = observed_release([objective], start, noise, ETA, Protection(MECHANISMS["pl-learn"], 2.0))
    loss = nn.functional.cross_entropy(model(x[0]), y[0])
    grads = torch.autograd.grad(loss, list(model.parameters()))
    stepped = start[0] - ETA * batched.layout.flatten(dict(zip(dict(model.named_parameters()), grads, strict=True)))
    torch.testing.assert_close(made.parameters[0], stepped + alpha[0])
    assert 2.0 - 1e-9 <= float(made.record.intensity) <= 4.0 + 1e-9


# --- nothing else builds a Release -------------------------------------------------------------------------


def constructions(source: str, target: str) -> list[int]:
    """Lines on which ``target(...)`` is called, under its own name or an alias given on import."""
    tree = ast.parse(source)
    names = {target}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname for alias in node.names if alias.name == target and alias.asname}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            label = called.id if isinstance(called, ast.Name) else getattr(called, "attr", None)
            if label in names:
                lines.append(node.lineno)
    return lines


def test_only_release_py_constructs_a_release() -> None:
    result = {
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        if constructions(path.read_text(encoding="utf-8"), Release.__name__)
    }
    assert result == {"mechanism/release.py"}


@pytest.mark.parametrize(
    "source",
    ["Release(1, 2)", "release.Release(1, 2)", "from .release import Release as R\nR(1, 2)"],
)
def test_the_search_finds_a_construction(source: str) -> None:
    assert constructions(source, "Release")
