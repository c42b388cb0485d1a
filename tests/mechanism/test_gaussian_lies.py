"""Tests that would catch ``gaussian-dp`` lying: each passes on the code as it is, and notices every bug that it is for.

The bugs are those of ``studies/gaussian_dp/canary.py``, planted in the package while a test lasts, and a few more.
Statistical ones have an error rate of 1e-6: a failure is no bad luck.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from equipoise.mechanism import noised_sum as noised_sum_file
from equipoise.mechanism import run_budget
from equipoise.mechanism.l2_grid import L2Grid
from equipoise.mechanism.linear_units import LinearRecords
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.records import of_units
from equipoise.mechanism.release import release
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.mechanism.units import EachRecord, Pool, Records, Units
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.privacy.gaussian import delta_of, epsilon_of
from equipoise.randomness import Words, experiment_key, keyed_words
from tests.helpers import load_script

ERROR_RATE = 1e-6
CLIP, ETA = 0.8, 0.5
BUDGET = 1e6  # for which any noise is enough, so that tests can choose it
Plant = Callable[[], AbstractContextManager[Any]]


@cache
def study() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "studies" / "gaussian_dp" / "canary.py")


def planted(name: str) -> Plant:
    return next(bug.plant for bug in study().BUGS if bug.name == name)


def frozen(seed: int, *key: int) -> Words:
    """Words whose n-th draw is the start of an n-th stream: one word more or less in a draw shifts no other."""
    calls = count()
    return lambda size: keyed_words(experiment_key(seed, f"frozen/{key}"), next(calls), 0)(size)


def settings_of(rate: float = 1.0, sigma: float = 3.0, divisor: float = 15.0) -> ProtectionSettings:
    own = GaussianSettings(clip=CLIP, sampling_rate=rate, divisor=divisor, rounds=8, sigmas=[[BUDGET, sigma]])
    return ProtectionSettings(eta=ETA, gaussian=own)


def sums(
    pool: Pool, rows: list[Tensor], start: Tensor, words: list[Words], settings: ProtectionSettings, number: int = 1
) -> Tensor:
    """What the clients release, turned back into noised sums of gradients ``[R, P]``, in units of the clip."""
    protection = settings.at("gaussian-dp", BUDGET, number)
    released = release([of_units(Units(pool, rows))], start, words, ETA, protection, utility=False).parameters
    own = settings.gaussian
    return (start - released).double() * (own.sampling_rate * own.divisor / ETA) / CLIP


def along(lengths: Tensor) -> tuple[Pool, Tensor]:
    """Records whose gradients are ``lengths`` times the clip along one axis, and weights for that."""
    images = torch.zeros(len(lengths), 4)
    images[:, 0] = (lengths.abs() * CLIP).sqrt()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return ((2 * labels - 1) * outputs.squeeze(-1).square() / 2).mean()

    records = Records(images, (lengths > 0).long())
    return EachRecord(Batched(nn.Linear(4, 1, bias=False), loss), records), torch.tensor([[1.0, 0.0, 0.0, 0.0]])


def linear_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The gradient of a record is the record, whatever the weights."""
    return outputs.mean()


def apart(size: int) -> Pool:
    """Records whose gradients are the clip along an axis of their own."""
    images, labels = torch.eye(size) * CLIP, torch.zeros(size, dtype=torch.int64)
    return EachRecord(Batched(nn.Linear(size, 1, bias=False), linear_loss), Records(images, labels))


# --- 1. record and replay ------------------------------------------------------------------------------------------


def moved(others: int, record: float, rate: float = 1.0) -> float:
    """How far, in terms of the clip, one record moves a release whose randomness is the same with it and without it."""
    lengths = torch.tensor([-1.0] * others + [record])
    pool, start = along(lengths)
    everyone = torch.arange(others + 1)
    rows, settings = [everyone, everyone[:-1]], settings_of(rate)
    largest = 0.0
    for seed in range(8):
        inside, outside = sums(pool, rows, start.expand(2, -1), [frozen(seed), frozen(seed)], settings)
        largest = max(largest, float(torch.nan_to_num((inside - outside).norm(), nan=torch.inf)))
    return largest


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("others", [0, 15])
@pytest.mark.parametrize("record", [1.0, 3.0, 1e30, float("nan"), float("inf")])
def test_one_record_moves_a_release_by_the_clip_at_most(record: float, others: int, rate: float) -> None:
    far = moved(others, record, rate)
    assert far <= 1 + 1e-5  # weights are float32
    assert (far > 0.99) == bool(np.isfinite(record))


@pytest.mark.parametrize(
    ("bug", "others", "record"),
    [
        ("clip missing", 15, 3.0),
        ("divided by the realised batch", 15, 1.0),
        ("divided by q times the number of records", 15, 1.0),
        ("no release on an empty batch", 0, 1.0),
        ("a gradient that is not a number is kept", 15, float("nan")),
        ("a norm that overflows clips nothing", 15, 1e30),
    ],
)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_replay_notices(bug: str, others: int, record: float, rate: float) -> None:
    with planted(bug)():
        assert moved(others, record, rate) > 1.2


def pool_of(kind: str) -> tuple[Pool, Tensor]:
    generator = torch.Generator().manual_seed(4)
    if kind == "linear":
        features = torch.randn(40, 12, generator=generator)
        pool: Pool = LinearRecords(Records(features / features.norm(dim=1, keepdim=True), torch.arange(40) % 3), 3)
        return pool, torch.randn(1, 39, generator=generator)
    batched = Batched(MLP((1, 4, 4), 3, hidden=6))
    images = torch.randn(40, 1, 4, 4, generator=generator) * 3
    return EachRecord(batched, Records(images, torch.arange(40) % 3), 3), torch.randn(
        1, batched.layout.size, generator=generator
    )


def unlike(kind: str) -> float:
    """How far, in steps of the grid, a sum without a record is from the sum with it less the record by itself."""
    pool, start = pool_of(kind)
    everyone, worst = torch.arange(40), 0.0
    whole, _ = pool.total([everyone], start, CLIP)
    for record in range(0, 40, 7):
        rest, _ = pool.total([everyone[everyone != record]], start, CLIP)
        alone, _ = pool.total([everyone[record : record + 1]], start, CLIP)
        assert float(alone.norm()) * pool.grid(CLIP).step <= CLIP * pool.grid(CLIP).stretch
        worst = max(worst, float((whole - rest - alone).abs().max()))
    return worst


def test_a_sum_is_made_of_records_that_know_nothing_of_each_other() -> None:
    """To the last bit where gradients are written out; a linear head's sum is rounded once more."""
    assert unlike("each") == 0
    assert unlike("linear") <= 1


def test_records_whose_bits_follow_from_others_are_noticed() -> None:
    with planted("a removed record changes the others' bits")():
        assert unlike("each") > 1


def test_a_sum_that_is_rounded_as_a_whole_is_noticed() -> None:
    """Gradients that are added up as floats, and then put onto the grid."""
    true, whole = EachRecord.total, L2Grid.whole

    def unrounded(self: L2Grid, gradients: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        norms = gradients.double().norm(dim=-1, keepdim=True)
        return gradients.double() * (clip / norms.clamp_min(clip)) / self.step, whole(self, gradients, clip)[1]

    def lying(self: EachRecord, rows: Any, start: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        total, clipped = true(self, rows, start, clip)
        return total.trunc(), clipped

    with patch.object(EachRecord, "total", lying), patch.object(L2Grid, "whole", unrounded):
        assert unlike("each") > 0


# --- 2. the noise --------------------------------------------------------------------------------------------------


def noise_of(runs: int, rounds: int, sigma: float, seed: int = 0) -> Tensor:
    """What releases hold beside the sum ``[rounds, runs, P]``, in units of the noise that is claimed."""
    pool, everyone = apart(16), torch.arange(16)
    result = []
    for number in range(1, rounds + 1):
        words = [keyed_words(experiment_key(seed, "lies"), run, number) for run in range(runs)]
        result.append(sums(pool, [everyone] * runs, torch.zeros(runs, 16), words, settings_of(sigma=sigma), number) - 1)
    return torch.stack(result) / sigma


def wrong_size(noise: Tensor) -> bool:
    """A chi-square test of the sum of squares. Of 16,000 numbers one standard deviation is 0.6 % of the noise."""
    total, freedom = float(noise.square().sum()), noise.numel()
    return not stats.chi2.ppf(ERROR_RATE / 2, freedom) < total < stats.chi2.isf(ERROR_RATE / 2, freedom)


def repeated(noise: Tensor) -> bool:
    """Whether two rounds, two runs or two coordinates have noise in common."""
    for table in ((noise / noise.std()).movedim(axis, 0).flatten(1) for axis in range(3)):
        products = table @ table.T / table.shape[1] ** 0.5
        pairs = products[~torch.eye(len(products), dtype=torch.bool)]
        if float(pairs.abs().max()) > stats.norm.isf(ERROR_RATE / (2 * len(pairs))) * 1.2:
            return True
    return False


@pytest.mark.parametrize("sigma", [0.7, 3.0, 40.0])
def test_noise_is_gaussian_of_the_claimed_size(sigma: float) -> None:
    noise = noise_of(runs=250, rounds=4, sigma=sigma)
    assert noise.numel() == 16_000
    assert not wrong_size(noise)
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > ERROR_RATE
    assert not repeated(noise)


@pytest.mark.parametrize("share", [0.5, 0.95, 1.05])
def test_noise_of_another_size_is_noticed(share: float) -> None:
    true = study().rounded_gaussians

    def lying(scales: Any, *rest: Any) -> Tensor:
        result: Tensor = true([scale * share for scale in scales], *rest)
        return result

    with patch.object(noised_sum_file, "rounded_gaussians", lying):
        assert wrong_size(noise_of(250, 4, 3.0))


def test_noise_that_is_used_again_is_noticed() -> None:
    with planted("noise used again in every round")():
        noise = noise_of(250, 4, 3.0)
    assert repeated(noise)


def test_noise_that_clients_share_is_noticed() -> None:
    true = noised_sum_file._noise

    def lying(*arguments: Any) -> Tensor:
        result = true(*arguments)
        return result[:1].expand_as(result)

    with patch.object(noised_sum_file, "_noise", lying):
        assert repeated(noise_of(250, 4, 3.0))


@pytest.mark.parametrize("start", [0.0, 0.1, 2.0**24, -1e30])
def test_weights_are_added_last(start: float) -> None:
    """A release is the received weights and a step that knows nothing of them, rounded once."""
    assert weights_last(start)


def weights_last(value: float) -> bool:
    pool, everyone, seen = apart(16), torch.arange(16), []
    true = noised_sum_file._added

    def watched(start: Tensor, whole: Tensor, grid: Any, per_unit: float) -> Tensor:
        seen.append((whole * grid.step * per_unit).clone())
        return true(start, whole, grid, per_unit)

    weights = torch.full((1, 16), value)
    protection = settings_of().at("gaussian-dp", BUDGET, 1)
    with patch.object(noised_sum_file, "_added", watched):
        objective = of_units(Units(pool, [everyone]))
        steps = [
            release([objective], w, [frozen(1)], ETA, protection).parameters for w in (torch.zeros(1, 16), weights)
        ]
    first, second = seen[0], seen[2]  # each release adds twice: to the weights, and the noise alone to zero
    return torch.equal(first, second) and torch.equal(steps[1], (weights.double() - first).float())


def test_weights_added_before_the_noise_are_noticed() -> None:
    with planted("weights added before the noise")():
        assert not all(weights_last(value) for value in (0.1, 2.0**24))


# --- 3. the batch --------------------------------------------------------------------------------------------------


def inclusions(rate: float, records: int = 12, releases: int = 1000) -> Tensor:
    """Who is in each of many releases ``[releases, records]``, read from releases with hardly any noise."""
    pool, everyone = apart(records), torch.arange(records)
    words = [keyed_words(experiment_key(3, "lies/batch"), run, 1) for run in range(releases)]
    settings = settings_of(rate, sigma=0.01)
    seen = sums(pool, [everyone] * releases, torch.zeros(releases, records), words, settings)
    assert float((seen - seen.round()).abs().max()) < 0.2
    return seen.round()


def not_poisson(there: Tensor, rate: float) -> bool:
    """Whether records are in too often or too rarely, or not independently of each other: at 1e-6 in all."""
    releases, records = there.shape
    if bool(((there != 0) & (there != 1)).any()):
        return True
    each = [stats.binomtest(int(found), releases, rate).pvalue for found in there.sum(0)]
    # two independent records are in together with probability rate^2: an exact test for each pair
    together = there.T @ there
    pairs = [stats.binomtest(int(together[i, j]), releases, rate**2).pvalue for i in range(records) for j in range(i)]
    sizes = there.sum(1)
    spread = float(((sizes - records * rate) ** 2).sum()) / (records * rate * (1 - rate))
    wide = not stats.chi2.ppf(ERROR_RATE, releases) * 0.8 < spread < stats.chi2.isf(ERROR_RATE, releases) * 1.2
    return min(each) < ERROR_RATE / records or min(pairs) < ERROR_RATE / len(pairs) or wide


@pytest.mark.parametrize("rate", [0.05, 0.25, 0.9])
def test_records_take_part_independently_of_each_other(rate: float) -> None:
    assert not not_poisson(inclusions(rate), rate)


def test_all_take_part_where_nothing_is_sampled() -> None:
    assert bool((inclusions(1.0, releases=50) == 1).all())


def doubled(words: Any, number: int, rate: float) -> Any:
    return study().twice_the_rate(words, number, rate)


def fixed_size(words: Any, number: int, rate: float) -> Any:
    return words(number).argsort().argsort() < round(rate * number)


def one_coin_for_all(words: Any, number: int, rate: float) -> Any:
    return np.repeat(words(1) < np.uint64(rate * 2**64), number)


@pytest.mark.parametrize("lie", [doubled, fixed_size, one_coin_for_all])
def test_a_batch_that_is_drawn_otherwise_is_noticed(lie: Any) -> None:
    with patch("equipoise.mechanism.units.included", lie):
        assert not_poisson(inclusions(0.25), 0.25)


# --- 4. the accounting ---------------------------------------------------------------------------------------------


def claimed(epsilon: float, rounds: int, rate: float, schedule: Any = 1.0) -> tuple[float, float]:
    """Epsilon at the stated delta, and delta at the stated epsilon, of the noise that releases really have."""
    own = GaussianSettings(rounds=rounds, sampling_rate=rate, noise_schedule=schedule, clip=CLIP)
    settings = ProtectionSettings(eta=ETA, gaussian=own)
    reach = ETA * CLIP / (rate * own.divisor)
    scales = [settings.at("gaussian-dp", epsilon, number).scale / reach for number in range(1, rounds + 1)]
    assert [row[0] / reach for row in settings.scales("gaussian-dp", epsilon, range(1, rounds + 1))] == scales
    used = tuple((float(scale) / float(scales[0]), 1) for scale in scales)
    given = (float(scales[0]), own.delta, rounds, rate, used)
    return epsilon_of(*given), delta_of(float(scales[0]), epsilon, *given[2:])


CASES = [(4.0, 8, 1.0, 1.0), (1.0, 50, 1.0, 1.0), (2.0, 4, 1.0, {"rounds": [1, 3], "values": [1.0, 0.7]})]


@pytest.mark.parametrize(("epsilon", "rounds", "rate", "schedule"), [*CASES, (4.0, 8, 0.25, 1.0)])
def test_the_noise_of_all_rounds_is_worth_the_epsilon_that_was_asked_for(
    epsilon: float, rounds: int, rate: float, schedule: Any
) -> None:
    at_delta, delta = claimed(epsilon, rounds, rate, schedule)
    assert at_delta <= epsilon * (1 + 1e-6)
    assert at_delta > epsilon * 0.99, "and not much less: that would waste accuracy"
    assert delta <= 1e-5 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("epsilon", "rounds", "rate"), [(4.0, 8, 1.0), (1.0, 50, 1.0), (8.0, 1000, 1.0), (4.0, 8, 0.25)]
)
def test_an_accountant_that_forgets_a_round_is_noticed(epsilon: float, rounds: int, rate: float) -> None:
    true = run_budget.noise_multiplier

    def lying(epsilon: float, delta: float, rounds: int, rate: float = 1.0, schedule: Any = None) -> float:
        return true(epsilon, delta, rounds - 1, rate)

    with patch.object(run_budget, "noise_multiplier", lying):
        at_delta, delta = claimed(epsilon, rounds, rate)
    assert at_delta > epsilon * (1 + 1e-5)
    assert delta > 1e-5 * (1 + 1e-5)
