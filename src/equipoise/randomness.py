"""Random numbers keyed by (seed, purpose, client, round), so that no result depends on batching.

The generator of seeded experiments is Philox4x64-10 (Salmon et al., SC'11), counter-based: key = (seed,
purpose), counter = (block, client, round, 0). Two streams with different clients or rounds can never overlap.
On CPU, long draws use numpy's compiled Philox; everything else uses the same function written in torch, which
gives the same bits on any device (a test holds the two equal).

Protective noise, outside of experiments, has no key that anyone keeps: see ``system_uniform`` and ``system_words``.

Mechanisms, budgets and datasets are not part of the key: federations that differ only in those see the
same mini-batches and the same standard noise, so their difference is a paired one. ``laplace-dp`` draws integers from
the same words.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import workers
from .errors import ReleaseError

Key = tuple[int, int]
Words = Callable[[int], NDArray[np.uint64]]
"""A source of independent, uniform 64-bit words: as many as are asked for, never the same again."""
KEY_BYTES = 32  # of a protective key: twice the 128 bits of security that SHAKE128 has
BLOCK_BYTES = 1 << 20
DEALT = 1 << 18
"""A worker draws at least so many numbers, as it takes time to wake up."""
_LOW = 0xFFFFFFFF


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def experiment_key(seed: int, purpose: str) -> Key:
    """The key of a seeded experiment. Anyone who knows the seed knows the noise: never for deployment.

    >>> experiment_key(1, "noise") == experiment_key(1, "noise") != experiment_key(2, "noise")
    True
    """
    digest = hashlib.sha256(f"equipoise/{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def system_uniform(count: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """``[count]`` uniform numbers in [0, 1) for protective noise; nobody can repeat or predict them.

    Every call takes a fresh 256-bit key from the operating system, in one system call, and expands it by SHAKE128,
    block by block over a counter. No state and no key is kept, so processes, forks and threads share nothing, and no
    seed plays a part. Philox is not used here: it is fast, but not built to resist someone who sees part of its
    output, and where a gradient is zero the server sees the noise itself.

    >>> bool(((u := system_uniform(1000, torch.float32)) >= 0).all() and (u < 1).all())
    True
    """
    if dtype not in (torch.float32, torch.float64):  # half precision rounds numbers to 1, noise to infinity
        raise ReleaseError(f"Protective noise cannot be drawn in {dtype}.", "Convert the model: model.float().")
    if dtype == torch.float64:
        return torch.from_numpy(_filled(np.empty(count), "<u8", 11)).to(device)
    return torch.from_numpy(_filled(np.empty(count, dtype=np.float32), "<u4", 8)).to(device)


def _filled(out: NDArray[Any], kind: str, spare: int) -> NDArray[Any]:
    """``out`` with uniform numbers, from words of a ``kind`` less ``spare`` bits: by blocks, without a second copy."""
    unit, start = out.dtype.type(2.0 ** (spare - 8 * out.itemsize)), 0
    for block in _blocks_of(os.urandom(KEY_BYTES), out.nbytes):
        words = np.frombuffer(block, dtype=kind)
        piece = out[start : start + len(words)]
        np.copyto(piece, words >> words.dtype.type(spare), casting="unsafe")  # exact
        piece *= unit
        start += len(words)
    return out


def system_words(count: int) -> NDArray[np.uint64]:
    """Protective ``Words``: as ``system_uniform`` has them, before anything is rounded.

    >>> len(system_words(3))
    3
    """
    words = b"".join(_blocks_of(os.urandom(KEY_BYTES), 8 * count))
    return np.frombuffer(words, dtype="<u8").astype(np.uint64, copy=False)


def keyed_words(key: Key, client: int, round_number: int) -> Words:
    """The ``Words`` of a seeded experiment: every call of this function starts the same sequence again.

    >>> first, again = (keyed_words(experiment_key(1, "noise"), 0, 1)(2).tolist() for _ in range(2))
    >>> first == again
    True
    """
    return _philox_bits(key, client, round_number).random_raw


def first_words(
    key: Key, clients: Sequence[int], round_number: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    """The first ``count`` of the ``keyed_words`` of several clients, computed on a device: int64 ``[clients, count]``.

    >>> key = experiment_key(1, "noise")
    >>> first_words(key, [0], 1, 2)[0].tolist() == keyed_words(key, 0, 1)(2).view(np.int64).tolist()
    True
    """
    return _blocks([key] * len(clients), clients, [round_number], -(-count // 4), torch.device(device))[0, :, :count]


def _philox_bits(key: Key, client: int, round_number: int) -> np.random.Philox:
    return np.random.Philox(key=key[0] | key[1] << 64, counter=client << 64 | round_number << 128)


def _blocks_of(key: bytes, size: int) -> Iterator[bytes]:
    """SHAKE128(key || counter), counter = 0, 1, ... as 8 bytes, for as many blocks as ``size`` bytes need."""
    for counter, start in enumerate(range(0, size, BLOCK_BYTES)):
        yield hashlib.shake_128(key + counter.to_bytes(8, "little")).digest(min(BLOCK_BYTES, size - start))


def _high_product(a: int, b: Tensor) -> Tensor:
    """The upper 64 bits of the unsigned product, from 32-bit halves."""
    a_low, a_high = a & _LOW, a >> 32
    b_low, b_high = b & _LOW, (b >> 32) & _LOW
    middle = b_low * a_high + ((b_low * a_low >> 32) & _LOW)
    other = b_high * a_low + (middle & _LOW)
    return b_high * a_high + ((middle >> 32) & _LOW) + ((other >> 32) & _LOW)


def philox(keys: tuple[Tensor, Tensor], counter: Sequence[Tensor]) -> list[Tensor]:
    """Philox4x64-10 on int64 tensors that hold unsigned words; returns the four output words."""
    c0, c1, c2, c3 = counter
    k0, k1 = keys
    for _ in range(10):
        high0, low0 = _high_product(_MULTIPLIERS[0], c0), c0 * _signed(_MULTIPLIERS[0])
        high1, low1 = _high_product(_MULTIPLIERS[1], c2), c2 * _signed(_MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _signed(_WEYL[0]), k1 + _signed(_WEYL[1])
    return [c0, c1, c2, c3]


def uniform(
    keys: Sequence[Key],
    clients: Sequence[int],
    rounds: Sequence[int],
    count: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """``[rounds, streams, count]`` uniform numbers in [0, 1); stream i has ``keys[i]`` and ``clients[i]``.

    >>> uniform([experiment_key(1, "noise")], [0], [1], 3).shape
    torch.Size([1, 1, 3])
    """
    device = torch.device(device)
    if device.type == "cpu" and count >= 512 and dtype in (torch.float32, torch.float64):
        return _uniform_numpy(keys, clients, rounds, count, dtype)
    return _uniform_torch(keys, clients, rounds, count, dtype, device)


def _uniform_numpy(
    keys: Sequence[Key], clients: Sequence[int], rounds: Sequence[int], count: int, dtype: torch.dtype
) -> Tensor:
    out = torch.empty(len(rounds), len(keys), count, dtype=dtype)
    rows = out.numpy()
    kind = np.float32 if dtype == torch.float32 else np.float64

    places = list(product(range(len(rounds)), range(len(keys))))

    def fill(part: slice) -> None:
        for i, j in places[part]:
            bits = _philox_bits(keys[j], clients[j], rounds[i])
            np.random.Generator(bits).random(out=rows[i, j], dtype=kind)

    parts = workers.shares(len(places), -(-DEALT // count), 1)
    for _ in workers.mapped(fill, parts) if len(parts) > 1 else map(fill, parts):
        pass
    return out


def _uniform_torch(
    keys: Sequence[Key],
    clients: Sequence[int],
    rounds: Sequence[int],
    count: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    out = _blocks(keys, clients, rounds, -(-count // (8 if dtype == torch.float32 else 4)), device)
    if dtype == torch.float32:
        halves = torch.stack([out & _LOW, (out >> 32) & _LOW], dim=-1)  # numpy's order: low half first
        numbers = (halves >> 8).to(torch.float32) * 2.0**-24
    else:
        numbers = ((out >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
    return numbers.reshape(len(rounds), len(keys), -1)[..., :count].to(dtype)


def _blocks(
    keys: Sequence[Key], clients: Sequence[int], rounds: Sequence[int], blocks: int, device: torch.device
) -> Tensor:
    """``[rounds, streams, 4 * blocks]`` words, as int64."""

    def words(values: Sequence[int], shape: tuple[int, ...]) -> Tensor:
        return torch.tensor([_signed(v) for v in values], dtype=torch.int64, device=device).view(shape)

    key = (words([k[0] for k in keys], (1, -1, 1)), words([k[1] for k in keys], (1, -1, 1)))
    block = torch.arange(1, blocks + 1, device=device).view(1, 1, -1)
    shape = (len(rounds), len(keys), blocks)
    client, round_number = words(clients, (1, -1, 1)), words(rounds, (-1, 1, 1))
    zero = torch.zeros((), dtype=torch.int64, device=device)
    four = [word.expand(shape) for word in philox(key, [block, client, round_number, zero])]
    return torch.stack(four, dim=-1).flatten(2)


def subset(numbers: Tensor, population: Tensor) -> Tensor:
    """Floyd's algorithm: ``[..., B]`` uniform numbers to B *distinct* indices below ``population`` ``[...]``.

    Every subset of size B is equally likely.

    >>> sorted(subset(torch.rand(1, 5, dtype=torch.float64), torch.tensor([5]))[0].tolist())
    [0, 1, 2, 3, 4]
    """
    size = numbers.shape[-1]
    chosen = torch.empty(numbers.shape, dtype=torch.int64, device=numbers.device)
    for i in range(size):
        top = population - size + i
        pick = (numbers[..., i] * (top + 1)).floor().to(torch.int64).minimum(top)
        taken = (chosen[..., :i] == pick.unsqueeze(-1)).any(-1)
        chosen[..., i] = torch.where(taken, top, pick)
    return chosen
