"""Random numbers: one generator in two implementations, separate streams, and noise of the right scale.

The scale tests can fail in both directions: a Kolmogorov-Smirnov test accepts the stated scale and rejects
2/3 and 3/2 of it. Seeds are fixed, so the verdict is too; the rate is what a fresh seed would face.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from equipoise import randomness
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import ReleaseError
from equipoise.mechanism.budget import LaplaceBudget
from equipoise.mechanism.distortion import on_inner_sphere
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.noise import standard_noise
from equipoise.randomness import (
    BLOCK_BYTES,
    experiment_key,
    keyed_words,
    subset,
    system_uniform,
    system_words,
    uniform,
)

ERROR_RATE = 1e-6
DTYPES = (torch.float32, torch.float64)
FAMILIES = {"laplace": stats.laplace, "gaussian": stats.norm}
WRONG = (2 / 3, 3 / 2)
words = st.integers(0, 2**64 - 1)
KNOWN = [0.08938173842720432, 0.8038542694822277, 0.9094737653506245]


def p_value(sample: Tensor, family: str, scale: float = 1.0) -> float:
    return float(stats.kstest(sample.double().numpy(), FAMILIES[family](scale=scale).cdf).pvalue)


# --- the generator -----------------------------------------------------------------------------------------


def by_numpy(key: tuple[int, int], client: int, round_number: int, count: int, dtype: torch.dtype) -> Tensor:
    """The reference: numpy's own Philox, key and counter set as the module's docstring says."""
    bits = np.random.Philox(key=key[0] | key[1] << 64, counter=client << 64 | round_number << 128)
    kind = np.float32 if dtype == torch.float32 else np.float64
    return torch.from_numpy(np.random.Generator(bits).random(count, dtype=kind))


@settings(max_examples=80)
@given(
    st.tuples(words, words), words, words, st.sampled_from([1, 2, 3, 7, 8, 9, 100, 511, 512, 513]),
    st.sampled_from(DTYPES),
)  # fmt: skip
def test_every_path_gives_the_bits_of_numpys_philox(
    key: tuple[int, int], client: int, round_number: int, count: int, dtype: torch.dtype
) -> None:
    expected = by_numpy(key, client, round_number, count, dtype)
    assert torch.equal(uniform([key], [client], [round_number], count, dtype)[0, 0], expected)
    in_torch = randomness._uniform_torch([key], [client], [round_number], count, dtype, torch.device("cpu"))
    assert torch.equal(in_torch[0, 0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("big", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_big_client_and_round_numbers(dtype: torch.dtype, big: int) -> None:
    keys = [experiment_key(1, "noise"), (big, 2**64 - 1 - big)]
    in_torch = randomness._uniform_torch(keys, [big, 3], [big, 5], 601, dtype, torch.device("cpu"))
    for i, round_number in enumerate((big, 5)):
        for j, client in enumerate((big, 3)):
            assert torch.equal(in_torch[i, j], by_numpy(keys[j], client, round_number, 601, dtype))
    assert torch.equal(uniform(keys, [big, 3], [big, 5], 601, dtype), in_torch)


def test_the_known_answer_of_philox4x64() -> None:
    """Test vectors published with the generator (Random123, kat_vectors): counter and key all ones."""
    ones = torch.tensor(-1)
    out = randomness.philox((ones, ones), [ones] * 4)
    expected = [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]
    assert [int(word) % 2**64 for word in out] == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [300, 2000])
def test_numbers_lie_in_the_unit_interval_and_fill_it(dtype: torch.dtype, count: int) -> None:
    numbers = uniform([experiment_key(s, "noise") for s in range(10)], list(range(10)), [1, 2], count, dtype)
    assert numbers.shape == (2, 10, count)
    assert numbers.dtype == dtype
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers.double().flatten().numpy(), "uniform").pvalue > ERROR_RATE


def test_streams_differ_by_seed_purpose_client_and_round() -> None:
    streams = {}
    for seed, purpose, client, round_number in itertools.product((1, 2), ("noise", "batch"), (0, 1), (1, 2)):
        numbers = uniform([experiment_key(seed, purpose)], [client], [round_number], 64, torch.float64)[0, 0]
        streams[seed, purpose, client, round_number] = numbers
    for one, two in itertools.combinations(streams.values(), 2):
        assert len(np.intersect1d(one.numpy(), two.numpy())) == 0


def test_neighbouring_streams_are_uncorrelated() -> None:
    numbers = uniform([experiment_key(1, "noise")] * 8, list(range(8)), [1, 2, 3, 4], 4096, torch.float64)
    correlation = np.corrcoef(numbers.flatten(0, 1).numpy()) - np.eye(32)
    assert np.abs(correlation).max() < 6 / math.sqrt(4096)


def test_a_stream_does_not_depend_on_its_company() -> None:
    keys = [experiment_key(1, "noise"), experiment_key(2, "noise")]
    for count in (9, 600):
        together = uniform(keys, [4, 7], [3, 1, 2], count)
        assert torch.equal(together[1:2, 1:], uniform(keys[1:], [7], [1], count))
        assert torch.equal(together[..., :5], uniform(keys, [4, 7], [3, 1, 2], 5)), "nor on how much is drawn"


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 24), (torch.float64, 53)])
def test_numbers_of_the_operating_system(dtype: torch.dtype, bits: int) -> None:
    """No seed here, so the error rate is what a run faces: the bounds are set for one failure in 10^9 runs."""
    one, two = system_uniform(20_000, dtype), system_uniform(20_000, dtype)
    assert one.dtype == dtype
    assert one.shape == (20_000,)
    both = torch.cat([one, two])
    assert both.min() >= 0
    assert both.max() < 1
    steps = both.double() * 2.0**bits
    assert torch.equal(steps, steps.floor()), "on the same grid as the keyed numbers, which standard_noise expects"
    assert bool((steps % 2 == 1).any()), "and using all of it"
    assert stats.kstest(both.double().numpy(), "uniform").pvalue > 1e-9
    assert not torch.equal(one, two)


def test_words_of_the_operating_system_are_new_in_every_call_and_uniform_in_every_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = np.concatenate([system_words(count) for count in (1, 20_000, 0, 20_000)])
    assert drawn.dtype == np.uint64
    assert len(np.unique(drawn)) == 40_001
    ones = np.unpackbits(drawn.view(np.uint8)).reshape(len(drawn), 64).sum(0)
    assert stats.chisquare(np.stack([ones, len(drawn) - ones]), axis=0).pvalue.min() > 1e-10
    monkeypatch.setattr("os.urandom", lambda size: b"k" * size)
    assert np.array_equal(system_words(3), system_words(5)[:3]), "a function of that key and nothing else"


def test_keyed_words_are_the_generators_own() -> None:
    key = experiment_key(4, "noise")
    bits = np.random.Philox(key=key[0] | key[1] << 64, counter=7 << 64 | 9 << 128)
    source = keyed_words(key, 7, 9)
    assert np.array_equal(np.concatenate([source(5), source(2)]), bits.random_raw(7))
    numbers = uniform([key], [7], [9], 600, torch.float64)[0, 0].numpy()
    assert np.array_equal((keyed_words(key, 7, 9)(600) >> np.uint64(11)) * 2.0**-53, numbers)


# --- protective noise: no stream is ever repeated -------------------------------------------------------------------

DRAWS = """
import multiprocessing, os, random, threading
import numpy, torch
from equipoise.randomness import system_uniform

def drawn(*_):
    torch.manual_seed(5), numpy.random.seed(5), random.seed(5)
    return system_uniform(64, torch.float64).numpy().tobytes().hex()

def say(where):
    os.write(1, f"{where} {drawn()}\\n".encode())  # one write: lines of several processes do not mix

def forked(count):
    gate, opener = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(opener)
            os.read(gate, 1)  # returns in all children at once, when the parent closes its end
            say("fork"), say("fork")
            os._exit(0)
        children.append(child)
    os.close(opener)
    for child in children:
        os.waitpid(child, 0)

if __name__ == "__main__":
    torch.set_num_threads(1)
    forked(4)  # before the first draw
    say("parent"), say("parent")
    forked(4)  # and after it
    say("parent")
    threads = [threading.Thread(target=say, args=["thread"]) for _ in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for line in pool.map(drawn, range(6), chunksize=1):
            print("spawn", line, flush=True)
"""


@pytest.mark.slow
def test_no_process_fork_or_thread_repeats_a_number(tmp_path: Path) -> None:
    """All seeds are set to the same value before every draw, in every process."""
    (tmp_path / "draws.py").write_text(DRAWS)
    done = subprocess.run(
        [sys.executable, "draws.py"], cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "5"},
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    places = [where for where, _ in lines]
    assert [places.count(where) for where in ("fork", "parent", "thread", "spawn")] == [16, 3, 4, 6]
    numbers = np.concatenate([np.frombuffer(bytes.fromhex(text), dtype=np.float64) for _, text in lines])
    assert len(np.unique(numbers)) == 29 * 64, "two of 1,856 numbers are equal by chance once in 10^9 runs"


def test_no_part_of_a_draw_repeats_another() -> None:
    """Over several blocks, and with the last one cut: equal blocks would be 2^17 equal numbers."""
    for count in (3 * BLOCK_BYTES // 8 + 12_345, 3 * BLOCK_BYTES // 8):
        numbers = np.concatenate([system_uniform(count, torch.float64).numpy() for _ in range(2)])
        assert len(np.unique(numbers)) >= len(numbers) - 2, "one pair is a chance of 1 in 27,000, three never"


def test_two_hundred_draws_are_uncorrelated() -> None:
    draws = np.stack([system_uniform(4096, torch.float32).double().numpy() for _ in range(200)])
    correlation = np.corrcoef(draws) - np.eye(200)
    assert np.abs(correlation).max() < 8 / math.sqrt(4096)


def keystream(key: bytes, size: int) -> bytes:
    """The construction once more: SHAKE128 of the key and an 8-byte counter, a mebibyte at a time."""
    blocks = (hashlib.shake_128(key + i.to_bytes(8, "little")).digest(1 << 20) for i in range(1 + size // (1 << 20)))
    return b"".join(blocks)[:size]


def test_one_short_system_call_serves_a_whole_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fixed(count: int) -> bytes:
        calls.append(count)
        return bytes(range(count))

    monkeypatch.setattr(os, "urandom", fixed)
    halves = np.frombuffer(keystream(bytes(range(32)), 4 * 600_000), dtype="<u4")
    assert np.array_equal(system_uniform(600_000, torch.float32).numpy(), (halves >> 8).astype(np.float32) / 2**24)
    words = np.frombuffer(keystream(bytes(range(32)), 8 * 300_000), dtype="<u8")
    assert np.array_equal(system_uniform(300_000, torch.float64).numpy(), (words >> 11) / 2.0**53)
    assert calls == [32, 32]
    assert system_uniform(3, torch.float64).tolist() == KNOWN


def test_nothing_of_a_key_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is as it was, and a process that is copied right after a draw holds no key in it."""
    before = {name: repr(value) for name, value in vars(randomness).items()}
    keys: list[bytes] = []
    genuine = os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: keys.append(genuine(count)) or keys[-1])
    system_uniform(10, torch.float32)
    assert {name: repr(value) for name, value in vars(randomness).items()} == before
    assert [holder for holder in gc.get_referrers(keys[0]) if holder is not keys] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_no_other_precision_is_drawn(dtype: torch.dtype) -> None:
    with pytest.raises(ReleaseError, match="cannot be drawn"):
        system_uniform(10, dtype)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_numbers_or_none(count: int) -> None:
    assert system_uniform(count, torch.float32).shape == (count,)


# --- noise as released -------------------------------------------------------------------------------------


def released_distortions(few: Dataset, name: str, budget: object, rounds: int) -> Tensor:
    """``[rounds, clients, P]``: what the federation's clients add to their models, round by round."""
    settings = Settings.flat(rounds=rounds, sensitivity=10.0)
    sweep = Sweep(settings, [Federation("few", name, budget, seed=3)], {"few": few})
    tables = sweep.tables(list(range(1, rounds + 1)))
    results = []
    for i in range(rounds):
        noise = sweep.noise_table(i + 1)
        for block in sweep.blocks:
            results.append(sweep.release(block, tables, torch.tensor([i]), sweep.block_noise(block, noise))[1])
    return torch.cat(results).view(rounds, settings.protection.clients, -1)


@pytest.mark.parametrize(("name", "family"), [("ls-static", "laplace"), ("gs-static", "gaussian")])
def test_released_noise_has_scale_sensitivity_over_budget(few: Dataset, name: str, family: str) -> None:
    budgets = [80, 200, 400, 800]
    noise = released_distortions(few, name, budgets, rounds=2)
    for client, budget in enumerate(budgets):
        scale = LaplaceBudget(10.0).lower(budget)
        sample = noise[:, client].flatten()
        assert p_value(sample, family, scale) > ERROR_RATE
        for wrong in WRONG:
            assert p_value(sample, family, scale * wrong) < ERROR_RATE


def test_released_noise_differs_between_clients_and_rounds(few: Dataset) -> None:
    noise = released_distortions(few, "ls-static", 80, rounds=2).flatten(0, 1).numpy()
    correlation = np.corrcoef(noise) - np.eye(len(noise))
    assert np.abs(correlation).max() < 6 / math.sqrt(noise.shape[1])


def test_pl_distortions_lie_on_the_inner_sphere(few: Dataset) -> None:
    settings = Settings()
    distortions = released_distortions(few, "pl-identical", [0.96, 0.97, 0.98, 0.995], rounds=2)
    measure = settings.protection.measure("pl-identical")
    assert measure is not None
    lower = torch.tensor([measure.lower(b) for b in (0.96, 0.97, 0.98, 0.995)])
    torch.testing.assert_close(intensity(distortions.double()).float(), lower.expand(2, 4), rtol=1e-5, atol=0)


def test_pl_distortions_prefer_no_direction() -> None:
    """Mean zero, and every coordinate with the same share of the squared norm (signs and order are exchangeable)."""
    count, size, lower = 4000, 50, 3.0
    numbers = uniform([experiment_key(5, "noise")] * count, list(range(count)), [1], size, torch.float64)[0]
    init, _, _ = on_inner_sphere(standard_noise(numbers, "laplace"), torch.full((count,), lower, dtype=torch.float64))
    torch.testing.assert_close(intensity(init), torch.full((count,), lower, dtype=torch.float64))
    z = init.mean(0) / (init.std(0) / math.sqrt(count))
    assert stats.chi2.sf(float((z**2).sum()), size) > ERROR_RATE
    share = init**2 / lower**2
    z = (share.mean(0) - 1 / size) / (share.std(0) / math.sqrt(count))
    assert float(z.abs().max()) < 6
    assert z.std() < 2


# --- subsets -----------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 2**31))
def test_a_subset_is_distinct_and_in_range(size: int, more: int, seed: int) -> None:
    numbers = torch.rand(20, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    chosen = subset(numbers, torch.full((20,), size + more))
    assert chosen.min() >= 0
    assert chosen.max() < size + more
    assert all(len(set(row)) == size for row in chosen.tolist())
    if more == 0:
        assert all(sorted(row) == list(range(size)) for row in chosen.tolist())


def test_every_subset_is_equally_likely() -> None:
    keys, draws = [experiment_key(1, "batch")], 30_000
    numbers = uniform(keys, [0], list(range(1, draws + 1)), 3, torch.float64)[:, 0]
    chosen = subset(numbers, torch.full((draws,), 6)).sort(-1).values
    codes, counts = torch.unique(chosen, dim=0, return_counts=True)
    assert len(codes) == math.comb(6, 3)
    assert stats.chisquare(counts.numpy()).pvalue > ERROR_RATE


def test_the_extreme_numbers_stay_in_range() -> None:
    for value in (0.0, 1 - 2**-53):
        chosen = subset(torch.full((1, 4), value, dtype=torch.float64), torch.tensor([1000]))
        assert len(set(chosen[0].tolist())) == 4
        assert 0 <= int(chosen.min()) <= int(chosen.max()) < 1000


def test_populations_may_differ_from_row_to_row() -> None:
    chosen = subset(torch.full((2, 2), 0.999, dtype=torch.float64), torch.tensor([2, 50]))
    assert sorted(chosen[0].tolist()) == [0, 1]
    assert chosen[1].tolist() == [48, 49]


def test_streams_that_are_dealt_to_workers_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, clients, rounds = [experiment_key(seed, "noise") for seed in (1, 2, 2)], [0, 1, 2], [4, 9]
    alone = uniform(keys, clients, rounds, 700)
    dealt = []
    mapped = randomness.workers.mapped
    monkeypatch.setattr(randomness, "DEALT", 700)
    monkeypatch.setattr(randomness.workers, "count", lambda: 2)
    monkeypatch.setattr(randomness.workers, "mapped", lambda task, items: mapped(task, dealt.append(items) or items))
    assert torch.equal(uniform(keys, clients, rounds, 700), alone)
    assert [len(items) for items in dealt] == [2]
