"""The mechanism with a guarantee: its clip, the sensitivity derived from it, its noise, and what it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, problems
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError, ModelError
from equipoise.mechanism import release as module
from equipoise.mechanism.clipping import clip_gradient, clipped_mean
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.protect import Protected, protect, protected_step
from equipoise.mechanism.protection import Protection, ProtectionSettings
from equipoise.mechanism.registry import MECHANISMS
from equipoise.mechanism.release import local_step, observed_release, release
from equipoise.models.batched import Batched, Objective
from equipoise.models.bundled import MLP, LeNetZhu, SmallCNN
from tests.helpers import entry_point

DP = MECHANISMS["laplace-dp"]
ERROR_RATE = 1e-6
SHAPE, CLASSES, BATCH, ETA, CLIP = (1, 6, 6), 3, 4, 0.3, 2.0
BOUND = 2 * ETA * CLIP / BATCH


def filled(model: nn.Module, seed: int = 0, spread: float = 0.5) -> nn.Module:
    local = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_((2 * torch.rand(tensor.shape, generator=local) - 1) * spread)
    return model


def images_of(*shape: int, seed: int = 1, classes: int = 10) -> tuple[Tensor, Tensor]:
    local = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, dtype=torch.float64, generator=local)
    return x, torch.randint(0, classes, shape[:2], generator=local)


# --- the gradient of every example, clipped ----------------------------------------------------------------


def by_hand(model: nn.Module, batched: Batched, params: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Examples one by one with plain autograd; the clip, the sum and the division written out."""
    twin = copy.deepcopy(model)
    twin.load_state_dict(batched.layout.unflatten(params))
    total = torch.zeros_like(params)
    for image, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(twin(image.unsqueeze(0)), label.unsqueeze(0))
        grads = torch.autograd.grad(loss, list(twin.parameters()))
        names = [name for name, _ in twin.named_parameters()]
        gradient = batched.layout.flatten(dict(zip(names, grads, strict=True)))
        size = float(gradient.abs().sum())
        total += gradient if size <= clip else gradient * (clip / size)
    return total / len(y)


WAYS: dict[str, Callable[[nn.Module], Batched]] = {
    "grouped": Batched,
    "patches": partial(Batched, device="cuda"),  # the layers of a GPU run on CPU tensors too
    "functional": partial(Batched, fast=False),
    "own loss": partial(Batched, loss=nn.functional.cross_entropy),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN])
@pytest.mark.parametrize("count", [1, 3])
def test_the_step_is_that_of_a_plain_loop(make: Callable[[], nn.Module], way: str, count: int) -> None:
    model = filled(make().double())
    batched, (x, y) = WAYS[way](model), images_of(count, 5, 1, 28, 28)
    params = torch.stack(
        [batched.layout.flatten(filled(make().double(), seed + 1).state_dict()) for seed in range(count)]
    )
    each = batched.at(x, y).per_example
    assert each is not None
    sizes = intensity(each(params), "l1")
    clip = float(sizes.median())
    protection = Protection(DP, 1.0, clip=clip)
    kept = params.clone(), x.clone()
    local, clipped = local_step([batched.at(x, y)], params, ETA, protection)
    assert torch.equal(kept[0], params)
    assert torch.equal(kept[1], x)
    for row in range(count):
        expected = params[row] - ETA * by_hand(model, batched, params[row], x[row], y[row], clip)
        assert float((local[row] - expected).abs().max()) < 1e-9
    torch.testing.assert_close(clipped, (sizes > clip).double().mean(1))
    assert 0 < float(clipped.mean()) < 1, "some examples are clipped, others not"


def test_a_large_clip_leaves_the_gradient_of_the_batch() -> None:
    batched, (x, y) = Batched(LeNetZhu().double()), images_of(2, 4, 1, 28, 28)
    params = torch.rand(2, batched.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) - 0.5
    objective = batched.at(x, y)
    local, clipped = local_step([objective], params, ETA, Protection(DP, 1.0, clip=1e12))
    torch.testing.assert_close(local, params - ETA * objective.gradient(params), rtol=0, atol=1e-12)
    assert not clipped.any()


@pytest.mark.parametrize("examples", [1, 3, 4])
@pytest.mark.parametrize("make", [LeNetZhu, MLP])
def test_no_bit_depends_on_how_clients_are_grouped(make: Callable[[], nn.Module], examples: int) -> None:
    batched, (x, y) = Batched(make()), images_of(11, examples, 1, 28, 28)
    params = torch.rand(11, batched.layout.size, generator=torch.Generator().manual_seed(3)) - 0.5

    def result(rows: slice) -> Tensor:
        each = batched.at(x[rows].float(), y[rows]).per_example
        assert each is not None
        return each(params[rows])

    whole = result(slice(0, 11))
    for size in (1, 2, 5):
        parts = [result(slice(start, start + size)) for start in range(0, 11, size)]
        assert torch.equal(torch.cat(parts), whole), size


# --- how far one example can move a release ----------------------------------------------------------------


@cache
def network() -> tuple[nn.Module, Batched]:
    model = filled(nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double(), spread=1.0)
    return model, Batched(model)


def released(images: Tensor, labels: Tensor, start: Tensor, noise: Tensor) -> Tensor:
    protection = Protection(DP, 0.7, clip=CLIP)
    made = release([network()[1].at(images[None], labels[None])], start, noise, ETA, protection, utility=False)
    assert made.record.accepted.all()
    return made.parameters[0]


def moved(seed: int, place: int, factor: float, others: float, label: int) -> float:
    """By how much, in L1, a release moves when one example is replaced; the noise is the same."""
    local = torch.Generator().manual_seed(seed)
    size = network()[1].layout.size
    images = others * torch.randn(BATCH, *SHAPE, dtype=torch.float64, generator=local)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=local)
    start = (torch.rand(1, size, dtype=torch.float64, generator=local) - 0.5) * 2
    noise = torch.randn(1, size, dtype=torch.float64, generator=local)
    twins, marks = images.clone(), labels.clone()
    twins[place] = factor * torch.randn(SHAPE, dtype=torch.float64, generator=local)
    marks[place] = label
    pair = (released(images, labels, start, noise), released(twins, marks, start, noise))
    return float((pair[0] - pair[1]).abs().sum())


SCALES = st.sampled_from([0.0, 1e-6, 0.1, 1.0, 30.0, 1e6, 1e200, 1e308])
CASES = given(st.integers(0, 10_000), st.integers(0, BATCH - 1), SCALES, SCALES, st.integers(0, CLASSES - 1))


@CASES
def test_one_example_moves_a_release_by_at_most_the_derived_sensitivity(
    seed: int, place: int, factor: float, others: float, label: int
) -> None:
    assert moved(seed, place, factor, others, label) <= BOUND * (1 + 1e-9)


def mean_first(gradients: Tensor, bound: float, norm: Any) -> tuple[Tensor, Tensor]:
    """What other mechanisms do: the gradient of the whole mini-batch is clipped."""
    return clip_gradient(gradients.mean(1), bound, norm)


def in_the_wrong_norm(gradients: Tensor, bound: float, norm: Any) -> tuple[Tensor, Tensor]:
    return clipped_mean(gradients, bound, "l2")


def not_divided(gradients: Tensor, bound: float, norm: Any) -> tuple[Tensor, Tensor]:
    mean, acted = clipped_mean(gradients, bound, norm)
    return mean * gradients.shape[1], acted


@pytest.mark.parametrize("broken", [mean_first, in_the_wrong_norm, not_divided])
def test_a_broken_clip_would_be_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "clipped_mean", broken)
    assert max(moved(seed, 1, 30.0, 1.0, 2) for seed in range(5)) > BOUND * 1.1


def test_the_derived_sensitivity_is_attained() -> None:
    """A linear model at zero: mirrored inputs have opposite gradients. Half the noise would not be enough."""
    batched = Batched(nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=False)).double())
    x, y = images_of(1, BATCH, *SHAPE, classes=CLASSES)
    x = 50 * x
    start = torch.zeros(1, batched.layout.size, dtype=torch.float64)
    mirrored = x.clone()
    mirrored[0, 2] *= -1
    pair = [
        local_step([batched.at(images, y)], start, ETA, Protection(DP, 1.0, clip=CLIP))[0] for images in (x, mirrored)
    ]
    settings = Settings.flat(eta=ETA, clip=CLIP, batch=BATCH)
    assert settings.protection.derived_sensitivity() == pytest.approx(BOUND, rel=1e-12)
    assert float((pair[0] - pair[1]).abs().sum()) == pytest.approx(BOUND, rel=1e-9)


def test_a_release_comes_whatever_one_example_is() -> None:
    """Whether it comes at all would otherwise tell of that example."""
    batched = Batched(nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)).double())
    x, y = images_of(1, BATCH, *SHAPE, classes=CLASSES)
    x[0, 1] = 1e308
    start, noise = torch.ones(1, batched.layout.size, dtype=torch.float64), torch.ones(1, batched.layout.size).double()
    each = batched.at(x, y).per_example
    assert each is not None
    assert not torch.isfinite(each(start)).all()
    made = release([batched.at(x, y)], start, noise, ETA, Protection(DP, 0.7, clip=CLIP))
    assert made.record.accepted.tolist() == [True]


# --- the noise ---------------------------------------------------------------------------------------------


def sent_noise(examples: int, budget: float, seed: int | None, **change: Any) -> Tensor:
    """What ``protected_step`` adds to the undistorted step."""
    model = filled(LeNetZhu().double(), 3)
    batched, (x, y) = Batched(model), images_of(1, examples, 1, 28, 28)
    settings = ProtectionSettings(**{"eta": 0.2, "clip": 40.0, "batch": 99, **change})
    start = model.state_dict()
    sent = protected_step(model, start, (x[0], y[0]), "laplace-dp", budget, settings=settings, experiment_seed=seed)
    flat = batched.layout.flatten(start)
    return batched.layout.flatten(sent.parameters) - flat + 0.2 * by_hand(model, batched, flat, x[0], y[0], 40.0)


@pytest.mark.parametrize("seed", [1, 2, None], ids=["seed 1", "seed 2", "system"])
@pytest.mark.parametrize(("examples", "budget"), [(5, 4.0), (2, 0.5)])
def test_the_scale_of_the_noise(examples: int, budget: float, seed: int | None) -> None:
    """b = 2 * eta * clip / (B * budget), B of the batch given; not two thirds of that, nor three halves."""
    noise = sent_noise(examples, budget, seed).numpy()
    scale = 2 * 0.2 * 40.0 / (examples * budget)

    def p_value(size: float) -> float:
        return float(stats.kstest(noise, stats.laplace(scale=size).cdf).pvalue)

    assert p_value(scale) > ERROR_RATE
    assert p_value(scale * 2 / 3) < ERROR_RATE
    assert p_value(scale * 3 / 2) < ERROR_RATE


def test_the_setting_sensitivity_plays_no_part_nor_does_the_norm_of_the_clip() -> None:
    noise = sent_noise(3, 1.0, 5)
    for change in ({"sensitivity": 1e-9}, {"clip_norm": "l1"}, {"clip_norm": "l2"}, {"batch": 1}, {"steps": 3}):
        assert torch.equal(noise, sent_noise(3, 1.0, 5, **change)), change
    for name in ("laplace-dp", DP):
        measure = Settings.flat(sensitivity=1e-9, eta=0.2, clip=40.0, batch=3).protection.measure(name)
        assert measure is not None
        assert measure.lower(2.0) == pytest.approx(2 * 0.2 * 40 / 3 / 2, rel=1e-12)
        assert measure.leakage(measure.lower(2.0)) == pytest.approx(2.0), "the score of a scale is its epsilon"


# --- the engine --------------------------------------------------------------------------------------------


def sweep_of(few: Dataset, **change: Any) -> Sweep:
    settings = Settings.flat(**{"rounds": 6, "batch": 3, "clip": 20.0, **change})
    federations = [Federation("few", "laplace-dp", 50, seed) for seed in (1, 2)]
    return Sweep(settings, [*federations, Federation("few", "laplace-dp", [10, 20, 40, 80], 1)], {"few": few})


def engine(sweep: Sweep) -> Iterator[tuple[Federation, int, Tensor, Tensor]]:
    """(federation, client, parameters released, share clipped) of the first round."""
    tables, noise = sweep.tables([1]), sweep.noise_table(1)
    for block in sweep.blocks:
        made, _ = sweep.release(block, tables, torch.tensor([0]), sweep.block_noise(block, noise))
        for row, parameters in enumerate(made.parameters):
            federation = sweep.federations[block.federations.start + row // block.shape[1]]
            yield federation, block.slots.start + row % block.shape[1], parameters, made.record.clipped[row]


def test_the_engine_and_protect_release_the_same(few: Dataset) -> None:
    sweep, model = sweep_of(few, dtype="float64"), LeNetZhu().double()
    tables, shares = sweep.tables([1]), []
    for federation, client, expected, clipped in engine(sweep):
        place = sweep.federations.index(federation)
        start = sweep.batched.layout.unflatten(sweep.state.params[place])
        rows = tables.batches[0, sweep.draws.seeds.index(federation.seed) * 4 + client]
        sent: Protected = protected_step(
            model, start, (sweep.images[rows], sweep.labels[rows]), "laplace-dp", federation.budget,
            settings=replace(sweep.settings.protection, batch=1), client=client, experiment_seed=federation.seed,
        )  # fmt: skip
        assert float((sweep.batched.layout.flatten(sent.parameters) - expected).abs().max()) < 1e-9
        assert sent.record["clipped"] == pytest.approx(float(clipped))
        shares.append(float(clipped))
    assert len(shares) == 12
    assert max(shares) > 0, "the clip acted"


def test_the_chunk_size_changes_no_bit(few: Dataset) -> None:
    results = []
    for chunk in (0, 1, 3):
        sweep = sweep_of(few, chunk=chunk)
        sweep.train(6)
        results.append(sweep.state.params)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.isfinite(results[0]).all()


def test_many_examples_take_fewer_clients_at_once(few: Dataset) -> None:
    def blocks(name: str) -> int:
        federations = [Federation("few", name, 50, seed) for seed in range(1, 25)]
        return len(Sweep(Settings.flat(rounds=1, batch=40, model="small-cnn"), federations, {"few": few}).blocks)

    assert blocks("laplace-dp") > 2 * blocks("ls-static")


def test_no_step_depends_on_a_value() -> None:
    """Tensors without values run through, so a GPU can record the round once and replay it."""
    batched = Batched(LeNetZhu(), device="cuda")
    with FakeTensorMode(allow_non_fake_inputs=True):
        images, labels = torch.empty(3, 5, 1, 28, 28), torch.zeros(3, 5, dtype=torch.int64)
        start, scale = torch.empty(3, batched.layout.size), torch.empty(3)
        made = release([batched.at(images, labels)], start, start, ETA, Protection(DP, scale, clip=CLIP))
        assert made.parameters.shape == start.shape
        with pytest.raises(DataDependentOutputException):
            made.record.clipped.sum().item()


def test_calibrate_prints_the_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = entry_point(tmp_path, monkeypatch, capfd)
    done = command("calibrate", "--mechanism", "laplace-dp", "--budget", "1", "--json")
    assert done.code == 0
    result = json.loads(done.out)
    assert (result["lower"], result["upper"], result["scale"], result["norm"]) == (None, None, 25.0, "l1")


# --- what is refused ---------------------------------------------------------------------------------------


def call(model: nn.Module | None = None, settings: ProtectionSettings | None = None, **change: Any) -> Protected:
    model = model or filled(LeNetZhu())
    x, y = images_of(1, 4, 1, 28, 28)
    given = {"batch": (x[0].float(), y[0]), "mechanism": "laplace-dp", "budget": 1.0, "settings": settings}
    return protected_step(model, model.state_dict(), **{**given, **change})


def test_a_model_trained_elsewhere_is_refused_with_the_reason() -> None:
    model = filled(LeNetZhu())
    x, y = images_of(1, 4, 1, 28, 28)
    with pytest.raises(ConfigError, match=r"trained elsewhere: how far one example .* Call protected_step"):
        protect(model, model.state_dict(), (x[0].float(), y[0]), "laplace-dp", 1.0)


@pytest.mark.parametrize("change", [{"clip": None}, {"local_steps": 2}])
def test_settings_without_a_sensitivity_are_refused_by_every_way_in(few: Dataset, change: dict[str, Any]) -> None:
    settings, match = Settings.flat(**change), "laplace-dp set local_steps = 1 and a clip"
    with pytest.raises(ConfigError, match=match):
        call(settings=settings.protection)
    with pytest.raises(ConfigError, match=match):
        settings.protection.measure("laplace-dp")
    with pytest.raises(ConfigError, match=match):
        Sweep(settings, [Federation("few", "laplace-dp", 1.0)], {"few": few})
    (result,) = problems(settings, [Federation("few", "laplace-dp", 1.0), Federation("few", "ls-static", 200)])
    assert match in str(result)
    assert problems(settings, [Federation("few", "ls-static", 200)]) == []


def bowl(params: Tensor) -> Tensor:
    return params


@pytest.mark.parametrize(
    ("objectives", "clip", "error", "text"),
    [
        (2, 1.0, ConfigError, "exactly one local step, got 2"),
        (1, None, ConfigError, "needs a clip"),
        (0, 1.0, ModelError, "gradient of every example"),
    ],
)
def test_the_exit_itself_refuses_too(objectives: int, clip: float | None, error: type[Exception], text: str) -> None:
    """Whoever builds a ``Protection`` by hand."""
    plain = Objective(lambda params: params.sum(1), bowl)
    whole = Objective(lambda params: params.sum(1), bowl, lambda params: params.unsqueeze(1))
    start = torch.ones(2, 3)
    with pytest.raises(error, match=text):
        observed_release([whole] * objectives or [plain], start, start, ETA, Protection(DP, 1.0, clip=clip))


def test_layers_that_mix_the_examples_of_a_batch_are_refused(few: Dataset) -> None:
    """Alone, an example has no statistics to be normalised by."""
    parts = nn.Flatten(), nn.BatchNorm1d(784, track_running_stats=False), nn.Linear(784, 10)
    with pytest.raises(ModelError, match=r"forward failed on a batch of shape \(1, "):
        call(nn.Sequential(*parts))
    with pytest.raises(ModelError, match=r"forward failed on a batch of shape \(1, "):
        Sweep(Settings.flat(rounds=1), [Federation("few", "laplace-dp", 1.0)], {"few": few}, nn.Sequential(*parts))
    assert call(nn.Sequential(*parts), mechanism="ls-static").record["mechanism"] == "ls-static"
