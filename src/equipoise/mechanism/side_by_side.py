"""Calls of one shape on a CPU: each on one thread, as many at a time as torch may use.

Two threads inside every operation wait for each other hundreds of times a call; two calls side by side do not. And what
one call computes then does not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[int]:
    """torch computes on one thread here, and in threads that begin meanwhile; gives the number it had before."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield 1
        return
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``work`` on every item, in their order: each on one thread, several at a time. The first error is raised.

    >>> side_by_side(lambda item: (item * 2, torch.get_num_threads()), [1, 2, 3])
    [(2, 1), (4, 1), (6, 1)]
    """
    with one_thread() as threads:
        workers = min(threads, len(items))
        if workers < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(workers) as pool:  # its threads end here: none is left for a process that forks
            return list(pool.map(work, items))
