"""Attacks on the arithmetic of a formal release: certain of success on floats, at chance on integers.

The attacker is the server. It chooses the weights, knows every record but one, and knows that the last one is one of
two. The controls add the same noise to the same step in floats, as this package once did.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from equipoise.mechanism.clipping import clipped_mean
from equipoise.mechanism.grid import Grid
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import MECHANISMS
from equipoise.mechanism.release import release
from equipoise.models.objective import Objective
from equipoise.randomness import experiment_key, keyed_words, system_uniform

DP = MECHANISMS["laplace-dp"]
ETA, CLIP = 1.0, 1.0
TRIALS = 1000
HOSTILE = (2.0**24, 1e30, 1e-45, -0.0)
Clients = Callable[[Tensor, Tensor, float], Tensor]
"""The gradients [R, B, P] of R clients' records, the weights [P] that they received, epsilon -> releases [R, P]."""
BITS = torch.randint(0, 2, (TRIALS,), generator=torch.Generator().manual_seed(1))


def on_floats(gradients: Tensor, weights: Tensor, epsilon: float) -> Tensor:
    """What this package did: the step is rounded to the floats around the received weights before noise is added."""
    local = weights - ETA * clipped_mean(gradients, CLIP, "l1")[0]
    scale = 2 * ETA * CLIP / gradients.shape[1] / epsilon
    return local + scale * standard_noise(system_uniform(local.numel(), torch.float32).view_as(local), "laplace")


def on_integers(gradients: Tensor, weights: Tensor, epsilon: float) -> Tensor:
    count, batch, _ = gradients.shape
    objective = Objective(lambda params: params.sum(1), lambda params: params, lambda params: gradients.unbind(1))
    protection = Protection(DP, 2 * ETA * CLIP / batch / epsilon, clip=CLIP, batch=batch)
    words = [keyed_words(experiment_key(5, "noise"), row, 1) for row in range(count)]
    made = release([objective], weights.repeat(count, 1), words, ETA, protection, utility=False)
    assert made.record.accepted.all()
    return made.parameters


def at_chance(right: int, trials: int, epsilon: float) -> bool:
    """Whether a success rate can be that of a fair coin, and cannot exceed what epsilon allows."""
    limit = np.exp(epsilon) / (1 + np.exp(epsilon))
    fair = stats.binomtest(right, trials, 0.5).pvalue > 1e-3
    return bool(fair and stats.binomtest(right, trials, limit, alternative="greater").pvalue > 1e-3)


# --- a weight of 2^24 ----------------------------------------------------------------------------------------

BATCH, TARGET = 64, 0.02


def by_a_huge_weight(clients: Clients, bits: Tensor) -> int:
    """How often a bit of one record is read off a single coordinate, at epsilon 1.

    Below 2^24, float32 has the integers alone. The known records bring the step to exactly 1/2; there a fiftieth of
    what a record may do decides whether 2^24 - step is rounded to 2^24 or to the integer below. The noise, of scale
    1/32, is rounded away.
    """
    gradients = torch.zeros(len(bits), BATCH, 20)
    gradients[:, : BATCH // 2, 0] = CLIP  # known
    gradients[:, -1, 0] = TARGET * bits
    weights = torch.zeros(20)
    weights[: len(HOSTILE)] = torch.tensor(HOSTILE)
    return int(((clients(gradients, weights, 1.0)[:, 0] < 2.0**24) == bits).sum())


def test_a_huge_weight_told_a_bit_with_certainty_on_floats() -> None:
    assert by_a_huge_weight(on_floats, BITS[:150]) == 150


def test_a_huge_weight_tells_nothing_on_integers() -> None:
    right = by_a_huge_weight(on_integers, BITS)
    assert at_chance(right, TRIALS, epsilon=1.0), right


# --- low bits ------------------------------------------------------------------------------------------------

SIZE, FEW, EPSILON = 200, 4, 0.01


def candidates() -> Tensor:
    """``[2, B, P]``: two batches that differ in one record."""
    local = torch.Generator().manual_seed(3)
    batch = torch.randn(FEW, SIZE, generator=local) / SIZE
    other = batch.clone()
    other[1] = torch.randn(SIZE, generator=local) / SIZE
    return torch.stack([batch, other])


def all_noise(scale: float) -> NDArray[np.float32]:
    """Every number that float32 noise can be, ascending: there are 2^24 of them."""
    numbers = torch.arange(2**24, dtype=torch.float32) * 2.0**-24
    noise: NDArray[np.float32] = (scale * standard_noise(numbers, "laplace")).numpy()
    return noise


def explained(released: NDArray[np.float32], local: NDArray[np.float32], noise: NDArray[np.float32]) -> int:
    """How many coordinates are a sum of ``local`` and of a number that the noise can be."""
    near = np.searchsorted(noise, released - local)
    tried = np.stack([noise[np.clip(near + i, 0, len(noise) - 1)] for i in range(-3, 4)])
    return int((local + tried == released).any(0).sum())


def test_low_bits_told_neighbours_apart_on_floats() -> None:
    """Mironov, CCS 2012: a sum of the true step has low bits that the noise can have; one of another step has not."""
    noise, bits = all_noise(2 * ETA * CLIP / FEW / EPSILON), BITS[:20]
    steps = (-ETA * clipped_mean(candidates(), CLIP, "l1")[0]).numpy()
    sent = on_floats(candidates()[bits], torch.zeros(SIZE), EPSILON).numpy()
    guesses = [int(explained(row, steps[1], noise) > explained(row, steps[0], noise)) for row in sent]
    assert guesses == bits.tolist()


@pytest.mark.parametrize("weight", [0.0, *HOSTILE])
def test_low_bits_tell_nothing_on_integers(weight: float) -> None:
    """Every coordinate is explained by both candidates: only likelihoods are left, and epsilon bounds these."""
    grid = Grid.of(ETA, CLIP, FEW, SIZE)
    steps = sum(grid.steps(slot, ETA, CLIP, FEW)[0] for slot in candidates().unbind(1))
    assert isinstance(steps, Tensor)
    assert 0 < int((steps[0] - steps[1]).abs().sum()) <= 2 * grid.bound
    weights = torch.full((SIZE,), weight)
    sent = on_integers(candidates()[BITS], weights, EPSILON)
    seen = (sent.double() - weights.double()) / grid.step
    guesses = (seen - steps[1]).abs().sum(1) < (seen - steps[0]).abs().sum(1)
    right = int((guesses == BITS).sum())
    assert at_chance(right, TRIALS, EPSILON), right
    lowest = sent.view(torch.int32) & 3
    counts = [torch.bincount(lowest[bit == BITS].flatten(), minlength=4) + 1 for bit in (0, 1)]
    assert stats.chi2_contingency(torch.stack(counts).numpy()).pvalue > 1e-4, "the last two bits are alike"
