"""Threads that compute side by side, each with one thread for its kernels.

Kernels on the small images of many replicas are too short to share between threads: two workers with half of the
replicas each are done sooner than two threads in every kernel.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from threading import Barrier
from typing import TypeVar

import torch

MOST = 8
AHEAD = 2

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process, as threads do not outlive a fork, and number of workers."""


def count() -> int:
    """How many workers there are: as many as torch would give threads to a kernel.

    >>> 1 <= count() <= MOST
    True
    """
    return min(MOST, torch.get_num_threads())


def shares(total: int, least: int, multiple: int) -> list[slice]:
    """``total`` in equal runs for the workers, each of at least ``least`` and, but for the last, of such multiples.

    >>> shares(7, least=8, multiple=8)
    [slice(0, 7, None)]
    """
    parts = max(1, min(count(), total // least))
    each = -(-max(1, total) // parts // multiple) * multiple
    ends = [0, *range(each, total, each), total]
    return [slice(*part) for part in pairwise(ends)]


def mapped(task: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``task`` of every item, each on a worker: with one thread for its kernels, also where there is only one item.

    Of results that nobody has taken yet, there are at most ``AHEAD`` for every worker.

    >>> list(mapped(lambda item: (item * 2, torch.get_num_threads()), [1, 2, 3]))
    [(2, 1), (4, 1), (6, 1)]
    """
    if torch.get_num_threads() == 1:
        yield from map(task, items)
        return
    recording = torch.is_grad_enabled()

    def run(item: Item) -> Result:
        with torch.set_grad_enabled(recording):  # which every thread decides for itself
            return task(item)

    pool, most, waiting = _pool(), AHEAD * count(), deque[Future[Result]]()
    try:
        for item in items:
            if len(waiting) == most:
                yield waiting.popleft().result()
            waiting.append(pool.submit(run, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for one in waiting:
            one.cancel()
        wait(waiting)  # all have ended before an error is raised


def _pool() -> ThreadPoolExecutor:
    key = os.getpid(), count()
    if key not in _pools:
        before, together = torch.get_num_threads(), Barrier(key[1])
        pool = ThreadPoolExecutor(key[1], "equipoise", _one_thread)
        try:
            for one in [pool.submit(together.wait) for _ in range(key[1])]:  # all of them start now
                one.result()
        finally:
            torch.set_num_threads(before)  # a part of what a worker set holds for the whole process
        _pools[key] = pool
    return _pools[key]


def _one_thread() -> None:
    torch.get_num_threads()  # else the first kernel would set the number again
    torch.set_num_threads(1)
