"""The release of ``gaussian-dp``: a sum and noise on one grid, divided by public numbers, on top of the weights.

Size, shape and independence of the noise, and that weights come last, are in ``test_gaussian_lies.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.mechanism import noised_sum as noised_sum_file
from equipoise.mechanism.l2_grid import L2Grid
from equipoise.mechanism.noised_sum import noised_sum, update_per_gradient
from equipoise.mechanism.protection import Protection, ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.mechanism.units import LARGEST_SUM, Records, Units
from equipoise.randomness import Words, experiment_key, keyed_words

P, CLIP, ETA = 20_000, 0.5, 0.3


class Fixed:
    """A pool whose sum is given, on a grid that stretches what a unit does."""

    def __init__(self, total: float, stretch: float = 1.0, count: int = 4):
        self.records = Records(torch.zeros(count, 1), torch.zeros(count, dtype=torch.int64))
        self.value, self.stretch, self.seen = total, stretch, list[int]()

    def grid(self, clip: float) -> L2Grid:
        return replace(L2Grid.of(clip, P), stretch=self.stretch)

    def total(self, rows: Sequence[Tensor], start: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        self.seen += [len(row) for row in rows]
        each = torch.tensor([self.value * len(row) for row in rows], dtype=torch.float64)
        return each.unsqueeze(1).expand(-1, start.shape[1]), torch.full((len(rows),), 0.25)


def protection(sigma: float = 2.0, divisor: float = 10.0, rate: float = 1.0) -> Protection:
    own = GaussianSettings(clip=CLIP, divisor=divisor, sampling_rate=rate, rounds=1, sigmas=[[1e6, sigma]])
    return ProtectionSettings(eta=ETA, gaussian=own).at("gaussian-dp", 1e6, 1)


def words(count: int = 1) -> list[Words]:
    return [keyed_words(experiment_key(5, "sum"), row, 1) for row in range(count)]


def released(pool: Fixed, start: Tensor, how: Protection, rows: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    everyone = [torch.arange(4)] * len(start) if rows is None else rows
    return noised_sum(Units(pool, everyone), start, words(len(start)), ETA, how)[:2]


zeros = torch.zeros(1, P, dtype=torch.float64)


@pytest.mark.parametrize("stretch", [1.0, 3.0])
@pytest.mark.parametrize(("divisor", "rate"), [(10.0, 1.0), (250.0, 1.0), (10.0, 0.5)])
def test_noise_on_an_update_is_sigma_times_what_a_unit_can_do(stretch: float, divisor: float, rate: float) -> None:
    """Also where a unit can do more than the clip, as its sum is rounded: 20,000 draws tell 2.5 % at 5 deviations."""
    noise = released(Fixed(0.0, stretch), zeros, protection(2.0, divisor, rate))[1]
    reach = ETA * CLIP / (rate * divisor) * stretch
    assert float(noise.std()) == pytest.approx(2.0 * reach, rel=0.025)
    assert abs(float(noise.mean())) < 5 * 2.0 * reach / math.sqrt(P)


def test_the_sum_is_divided_by_the_public_number_and_taken_off() -> None:
    steps = 4000.0
    release, noise = released(Fixed(steps), zeros, protection(divisor=10.0))
    step = L2Grid.of(CLIP, P).step
    assert torch.allclose(
        release - noise, torch.full_like(zeros, -4 * steps * step * ETA / 10.0), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("count", [0, 1, 4])
def test_neither_divisor_nor_noise_knows_how_many_units_there_are(count: int) -> None:
    row = torch.arange(count)
    usual = released(Fixed(0.0), zeros, protection())
    there = released(Fixed(7.0), zeros, protection(), [row])
    assert torch.equal(there[1], usual[1])
    step = L2Grid.of(CLIP, P).step * ETA / 10.0
    assert torch.allclose(there[0] - usual[0], torch.full_like(zeros, -7.0 * count * step), rtol=1e-9, atol=1e-15)


def test_an_empty_batch_releases_noise_all_the_same() -> None:
    release, noise = released(Fixed(5.0), zeros, protection(), [torch.tensor([], dtype=torch.int64)])
    assert torch.equal(release, noise)
    assert len(noise.unique()) > 1000


def test_releases_are_whole_steps_of_the_grid() -> None:
    own = protection(divisor=8.0)
    release = noised_sum(Units(Fixed(3.0), [torch.arange(4)]), zeros, words(), 1.0, own)[0]
    whole = release / (L2Grid.of(CLIP, P).step / 8.0)
    assert torch.equal(whole, whole.round())
    assert bool((whole.abs() % 2 == 1).any())


def test_every_row_has_its_own_scale_and_words() -> None:
    own = protection()
    scale = float(own.scale)
    own = replace(own, scale=torch.tensor([scale, 4 * scale, scale], dtype=torch.float64))
    noise = released(Fixed(0.0), zeros.expand(3, -1).contiguous(), own)[1]
    spread = noise.std(dim=1) / scale
    assert spread.tolist() == pytest.approx([1.0, 4.0, 1.0], rel=0.025)
    assert not torch.equal(noise[0], noise[2])
    alone = noised_sum(Units(Fixed(0.0), [torch.arange(4)]), zeros, words(3)[2:], ETA, protection())[1]
    assert torch.equal(noise[2], alone[0])


def test_units_are_sampled_before_anything_is_added() -> None:
    pool, how = Fixed(1.0, count=2000), protection(rate=0.5)
    released(pool, zeros, how, [torch.arange(2000)])
    assert 850 < pool.seen[0] < 1150
    pool.seen.clear()
    released(pool, zeros, replace(how, sampling_rate=1.0), [torch.arange(2000)])
    assert pool.seen == [2000]


def test_noise_is_drawn_from_words_that_sampling_did_not_use() -> None:
    """The words of a source come one after the other: those that chose the batch are gone."""
    used: list[int] = []

    def source(count: int) -> np.ndarray:  # type: ignore[type-arg]
        used.append(count)
        return np.full(count, 1 << 62, dtype=np.uint64)

    noised_sum(Units(Fixed(0.0), [torch.arange(4)]), zeros, [source], ETA, protection(rate=0.5))
    assert used[:2] == [4, P]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0.0, 1e30, -3e38])
def test_a_release_is_finite_and_of_the_type_of_the_weights(start: float, dtype: torch.dtype) -> None:
    release, noise = released(Fixed(1e300), torch.full((1, P), start, dtype=dtype), protection(divisor=1e-30))
    assert release.dtype == noise.dtype == dtype
    assert torch.isfinite(release).all()


def test_totals_beyond_what_is_exact_are_cut_off() -> None:
    with patch.object(noised_sum_file, "_added", lambda start, whole, *rest: whole):
        whole = released(Fixed(1e300), zeros, protection())[0]
    assert bool((whole == 2 * LARGEST_SUM).all())


def test_a_step_per_gradient_is_of_public_numbers() -> None:
    assert update_per_gradient(0.3, protection(divisor=10.0, rate=0.5)) == 0.3 / (0.5 * 10.0)


@pytest.mark.parametrize(("missing", "words_of_it"), [("clip", "needs a clip"), ("divisor", "divides by a public")])
def test_without_clip_or_divisor_nothing_is_released(missing: str, words_of_it: str) -> None:
    with pytest.raises(ConfigError, match=words_of_it):
        released(Fixed(0.0), zeros, replace(protection(), **{missing: None}))
