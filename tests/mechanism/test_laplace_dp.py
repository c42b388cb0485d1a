"""The mechanism with a guarantee: its clip, the sensitivity derived from it, its noise, and what it refuses."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, problems
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError, ModelError
from equipoise.mechanism import release as module
from equipoise.mechanism.clipping import clip_gradient
from equipoise.mechanism.grid import Grid
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.protect import Protected, protect, protected_step
from equipoise.mechanism.protection import Protection, ProtectionSettings
from equipoise.mechanism.records import records
from equipoise.mechanism.registry import MECHANISMS
from equipoise.mechanism.release import local_step, observed_release, release
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu, SmallCNN
from equipoise.models.objective import Objective
from equipoise.privacy.discrete_laplace import discrete_laplace
from equipoise.randomness import Words, experiment_key, keyed_words
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
    "functional": partial(Batched, route="vmap"),
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
    sizes = intensity(torch.stack([*each(params)], 1), "l1")
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
        return torch.stack([*each(params[rows])], 1)

    whole = result(slice(0, 11))
    for size in (1, 2, 5):
        parts = [result(slice(start, start + size)) for start in range(0, 11, size)]
        assert torch.equal(torch.cat(parts), whole), size


# --- each record by itself ---------------------------------------------------------------------------------


class Gated(nn.Module):
    """Runs through torch.func: no sequence of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(784, 12), nn.Linear(784, 12)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.out(torch.tanh(self.one(flat)) * torch.sigmoid(self.two(flat)))


COMPANIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "others": lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(8)),
    "zeros": torch.zeros_like,
    "huge": lambda x: x * 1e30,
    "inf": lambda x: x * math.inf,
    "nan": lambda x: x * math.nan,
    "permuted": lambda x: x.flip(0),
}


def integers(batched: Batched, params: Tensor, x: Tensor, y: Tensor, alone: bool) -> Tensor:
    """``[B, P]``: what every record adds, computed as a client does (each alone), or as the engine does."""
    grid = Grid.of(ETA, CLIP, 5, batched.layout.size)
    objective = records(batched, x, y, 10) if alone else batched.at(x[None], y[None])
    assert objective.per_example is not None
    return torch.cat([grid.steps(gradient, ETA, CLIP, 5)[0] for gradient in objective.per_example(params)])


@pytest.mark.parametrize("alone", [True, False], ids=["client", "engine"])
@pytest.mark.parametrize("companions", COMPANIONS)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, Gated])
def test_the_integers_of_a_record_depend_on_that_record_alone(
    make: Callable[[], nn.Module], companions: str, alone: bool
) -> None:
    batched, (x, y) = Batched(filled(make())), images_of(5, 1, 1, 28, 28)
    x, y = x[:, 0].float(), y[:, 0]
    params = batched.layout.flatten(dict(batched.model.named_parameters())).detach().unsqueeze(0)
    before = integers(batched, params, x, y, alone)
    assert before[2].any()
    changed = COMPANIONS[companions](x)
    changed[2] = x[2]
    marks = y if companions != "permuted" else y.flip(0)
    assert torch.equal(integers(batched, params, changed, marks, alone)[2], before[2])


def test_a_record_is_the_same_whatever_the_number_of_its_companions() -> None:
    batched, (x, y) = Batched(filled(LeNetZhu())), images_of(9, 1, 1, 28, 28)
    x, y = x[:, 0].float(), y[:, 0]
    params = batched.layout.flatten(dict(batched.model.named_parameters())).detach().unsqueeze(0)
    whole = integers(batched, params, x, y, alone=True)
    for rows in ([3], [3, 8], [0, 2, 3, 5, 7]):
        assert torch.equal(integers(batched, params, x[rows], y[rows], alone=True), whole[rows])


# --- how far one example can move a release: record and replay ---------------------------------------------


@cache
def network() -> tuple[nn.Module, Batched]:
    model = filled(nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double(), spread=1.0)
    return model, Batched(model)


def keyed(rows: int = 1, seed: int = 1) -> list[Words]:
    return [keyed_words(experiment_key(seed, "noise"), row, 1) for row in range(rows)]


GRID = Grid.of(ETA, CLIP, BATCH, 203)


def replayed(images: Tensor, labels: Tensor, start: Tensor) -> list[int]:
    """The integers of a release, noise included; the noise is the same in every call."""
    protection = Protection(DP, 0.7, clip=CLIP, batch=BATCH)
    made = release([network()[1].at(images[None], labels[None])], start, keyed(), ETA, protection, utility=False)
    assert made.record.accepted.all()
    steps = (made.parameters[0] - start[0]) / GRID.step
    assert float((steps - steps.round()).abs().max()) < 1e-3
    return steps.round().long().tolist()


def moved(seed: int, place: int, factor: float, others: float, label: int) -> int:
    """By how many steps, in L1, a release moves when one example is replaced."""
    local = torch.Generator().manual_seed(seed)
    images = others * torch.randn(BATCH, *SHAPE, dtype=torch.float64, generator=local)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=local)
    start = (torch.rand(1, network()[1].layout.size, dtype=torch.float64, generator=local) - 0.5) * 2
    twins, marks = images.clone(), labels.clone()
    twins[place] = factor * torch.randn(SHAPE, dtype=torch.float64, generator=local)
    marks[place] = label
    pair = zip(replayed(images, labels, start), replayed(twins, marks, start), strict=True)
    return sum(abs(one - other) for one, other in pair)


SCALES = st.sampled_from([0.0, 1e-6, 0.1, 1.0, 30.0, 1e6, 1e200, 1e308])
CASES = given(st.integers(0, 10_000), st.integers(0, BATCH - 1), SCALES, SCALES, st.integers(0, CLASSES - 1))


@CASES
def test_one_example_moves_a_release_by_at_most_the_derived_sensitivity(
    seed: int, place: int, factor: float, others: float, label: int
) -> None:
    """Exactly, as integers; and the sensitivity in steps is at most the one in real numbers."""
    assert moved(seed, place, factor, others, label) <= 2 * GRID.bound
    assert 2 * GRID.bound * Fraction(GRID.step) <= 2 * Fraction(ETA) * Fraction(CLIP) / BATCH


def unclipped(grid: Grid, gradients: Tensor, eta: float, clip: float, batch: int) -> tuple[Tensor, Tensor]:
    return (gradients * (-eta / batch / grid.step)).trunc().long(), gradients[:, 0] > 0


def in_the_wrong_norm(grid: Grid, gradients: Tensor, eta: float, clip: float, batch: int) -> tuple[Tensor, Tensor]:
    return unclipped(grid, clip_gradient(gradients, clip, "l2")[0], eta, clip, batch)


def not_divided(grid: Grid, gradients: Tensor, eta: float, clip: float, batch: int) -> tuple[Tensor, Tensor]:
    return unclipped(grid, clip_gradient(gradients, clip, "l1")[0], eta, clip, 1)


@pytest.mark.parametrize("broken", [unclipped, in_the_wrong_norm, not_divided])
def test_a_broken_clip_would_be_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grid, "steps", broken)
    assert max(moved(seed, 1, 30.0, 1.0, 2) for seed in range(5)) > 2 * GRID.bound


def test_the_derived_sensitivity_is_attained() -> None:
    """A linear model at zero: mirrored inputs have opposite gradients. Half the noise would not be enough."""
    batched = Batched(nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=False)).double())
    x, y = images_of(1, BATCH, *SHAPE, classes=CLASSES)
    x = 50 * x
    start = torch.zeros(1, batched.layout.size, dtype=torch.float64)
    mirrored = x.clone()
    mirrored[0, 2] *= -1
    protection = Protection(DP, 0.7, clip=CLIP, batch=BATCH)
    pair = [release([batched.at(images, y)], start, keyed(), ETA, protection).parameters for images in (x, mirrored)]
    settings = Settings.flat(eta=ETA, clip=CLIP, batch=BATCH)
    assert settings.protection.derived_sensitivity() == pytest.approx(BOUND, rel=1e-12)
    assert (1 - 1e-3) * BOUND < float((pair[0] - pair[1]).abs().sum()) <= BOUND


def test_a_release_comes_whatever_one_example_is() -> None:
    """Whether it comes at all would otherwise tell of that example."""
    batched = Batched(nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)).double())
    x, y = images_of(1, BATCH, *SHAPE, classes=CLASSES)
    x[0, 1] = 1e308
    start = torch.ones(1, batched.layout.size, dtype=torch.float64)
    each = batched.at(x, y).per_example
    assert each is not None
    assert not torch.isfinite(torch.stack([*each(start)])).all()
    made = release([batched.at(x, y)], start, keyed(), ETA, Protection(DP, 0.7, clip=CLIP, batch=BATCH))
    assert made.record.accepted.tolist() == [True]
    assert made.record.clipped.tolist() == [1.0], "the others are large, that one is not finite"


def test_a_release_is_the_step_and_the_noise_on_one_grid() -> None:
    batched = network()[1]
    images, labels = images_of(3, BATCH, *SHAPE, classes=CLASSES)
    start = torch.rand(3, batched.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    scale = torch.tensor([0.1, 0.7, 3.0], dtype=torch.float64)
    protection, objective = Protection(DP, scale, clip=CLIP, batch=BATCH, factor=3.0), batched.at(images, labels)
    kept = start.clone()
    made, alpha = observed_release([objective], start, keyed(3), ETA, protection)
    assert torch.equal(kept, start)
    local, clipped = local_step([objective], start, ETA, protection)
    torch.testing.assert_close(made.parameters - alpha, local, rtol=0, atol=BATCH * GRID.step)
    for row, words in enumerate(keyed(3)):
        drawn = discrete_laplace(GRID.noise_scale(float(scale[row])), batched.layout.size, words)
        assert torch.equal(alpha[row], torch.from_numpy(drawn).double() * GRID.step)
    record = made.record
    assert torch.equal(record.clipped, clipped)
    assert torch.equal(record.intensity, intensity(alpha, "l1"))
    assert torch.equal(record.lower, record.intensity)
    assert torch.equal(record.upper, 3 * record.lower)
    expected = objective.loss(made.parameters) - objective.loss(local)
    torch.testing.assert_close(record.utility_loss, expected, rtol=0, atol=1e-3)
    for row in range(3):
        part = slice(row, row + 1)
        own = replace(protection, scale=scale[part])
        alone = release([batched.at(images[part], labels[part])], start[part], keyed(3)[part], ETA, own)
        assert float((alone.parameters - made.parameters[part]).abs().max()) <= 2 * GRID.step, "rows are independent"


def test_only_parameters_that_are_not_finite_are_refused() -> None:
    """They are the server's own: a refusal tells nothing."""
    objective = Objective(lambda params: params.sum(1), bowl, lambda params: [torch.full_like(params, math.nan)])
    start = torch.tensor([[1.0, math.nan, 1.0], [1.0, 3e38, -3e38], [0.0, 1e-45, -0.0]])
    made = release([objective], start, keyed(3), 1e30, Protection(DP, 1e30, clip=1.0, batch=1), utility=False)
    assert made.record.accepted.tolist() == [False, True, True]
    assert torch.isfinite(made.parameters[1:]).all()


# --- the noise ---------------------------------------------------------------------------------------------


def sent_noise(examples: int, budget: float, seed: int | None, **change: Any) -> Tensor:
    """What ``protected_step`` adds to the undistorted step."""
    model = filled(LeNetZhu().double(), 3)
    batched, (x, y) = Batched(model), images_of(1, examples, 1, 28, 28)
    divisor = change.pop("divisor", None)
    settings = ProtectionSettings(**{"eta": 0.2, "clip": 40.0, "batch": 99, **change})
    start = model.state_dict()
    sent = protected_step(
        model, start, (x[0], y[0]), "laplace-dp", budget, settings=settings, experiment_seed=seed, divisor=divisor
    )
    flat = batched.layout.flatten(start)
    mean = by_hand(model, batched, flat, x[0], y[0], 40.0) * (examples / (divisor or examples))
    return batched.layout.flatten(sent.parameters) - flat + 0.2 * mean


@pytest.mark.parametrize("seed", [1, 2, None], ids=["seed 1", "seed 2", "system"])
@pytest.mark.parametrize(("examples", "budget", "divisor"), [(5, 4.0, None), (2, 0.5, None), (3, 1.0, 7), (9, 1.0, 7)])
def test_the_scale_of_the_noise(examples: int, budget: float, divisor: int | None, seed: int | None) -> None:
    """b = 2 * eta * clip / (B * budget), B of the batch given or the divisor; not two thirds of that, nor 3/2."""
    noise = sent_noise(examples, budget, seed, divisor=divisor).numpy()
    scale = 2 * 0.2 * 40.0 / ((divisor or examples) * budget)

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
            model, start, (sweep.inputs[rows], sweep.labels[rows]), "laplace-dp", federation.budget,
            settings=replace(sweep.settings.protection, batch=1), client=client, experiment_seed=federation.seed,
        )  # fmt: skip
        step = Grid.of(0.1, 20.0, 3, sweep.batched.layout.size).step  # gradients that differ by 1e-15 may be rounded
        assert float((sweep.batched.layout.flatten(sent.parameters) - expected).abs().max()) < 3.01 * step
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
    whole = Objective(lambda params: params.sum(1), bowl, lambda params: [params])
    start = torch.ones(2, 3)
    with pytest.raises(error, match=text):
        observed_release([whole] * objectives or [plain], start, keyed(2), ETA, Protection(DP, 1.0, clip=clip, batch=1))


@pytest.mark.parametrize(("batch", "words"), [(None, True), (1, False)], ids=["no divisor", "float noise"])
def test_the_exit_wants_a_public_divisor_and_draws_its_own_noise(batch: int | None, words: bool) -> None:
    whole, start = Objective(lambda params: params.sum(1), bowl, lambda params: [params]), torch.ones(2, 3)
    noise = keyed(2) if words else torch.ones(2, 3)
    with pytest.raises(ConfigError, match="divides by a public number and draws its own noise"):
        release([whole], start, noise, ETA, Protection(DP, 1.0, clip=1.0, batch=batch))


def test_more_records_than_can_be_added_exactly_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Objective(lambda params: params.sum(1), bowl, lambda params: [params] * 3)
    monkeypatch.setattr(module, "LARGEST_SUM", 2 * Grid.of(ETA, 1.0, 1, 3).bound)
    with pytest.raises(ConfigError, match="3 examples of one batch cannot be added exactly"):
        release([whole], torch.ones(2, 3), keyed(2), ETA, Protection(DP, 1.0, clip=1.0, batch=1))


def test_layers_that_mix_the_examples_of_a_batch_are_refused(few: Dataset) -> None:
    """Alone, an example has no statistics to be normalised by."""
    parts = nn.Flatten(), nn.BatchNorm1d(784, track_running_stats=False), nn.Linear(784, 10)
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\) needs more than the one record"):
        call(nn.Sequential(*parts))
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\) needs more than the one record"):
        Sweep(Settings.flat(rounds=1), [Federation("few", "laplace-dp", 1.0)], {"few": few}, nn.Sequential(*parts))
    assert call(nn.Sequential(*parts), mechanism="ls-static").record["mechanism"] == "ls-static"
