"""Work dealt to threads: all of it, once, with one thread for each one's kernels, and no error lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import workers


@pytest.fixture
def two() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@given(total=st.integers(1, 500), least=st.integers(1, 40), multiple=st.sampled_from([1, 2, 8]))
def test_shares_cover_everything_once(total: int, least: int, multiple: int) -> None:
    parts = workers.shares(total, least, multiple)
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(total))
    assert all((part.stop - part.start) % multiple == 0 for part in parts[:-1])
    assert len(parts) <= max(1, min(workers.count(), total // least))


@pytest.mark.usefixtures("two")
def test_every_part_is_computed_side_by_side_with_one_kernel_thread_each() -> None:
    together = threading.Barrier(2, timeout=60)  # passes only if two parts are under way at once
    seen = []

    def task(item: int) -> None:
        together.wait()
        seen.append((item, torch.get_num_threads(), torch.is_grad_enabled()))

    with torch.no_grad():
        list(workers.mapped(task, [0, 8]))
    assert sorted(seen) == [(0, 1, False), (8, 1, False)]
    assert torch.get_num_threads() == 2, "the caller keeps its own number of threads"


@pytest.mark.usefixtures("two")
def test_an_error_is_raised_after_all_that_had_begun_have_ended() -> None:
    ended, both = [], threading.Barrier(2, timeout=60)

    def task(item: int) -> None:
        both.wait()
        if item == 0:
            raise ValueError("the first part")
        time.sleep(0.2)
        ended.append(item)

    with pytest.raises(ValueError, match="the first part"):
        list(workers.mapped(task, [0, 8]))
    assert ended == [8]


@pytest.mark.usefixtures("two")
def test_a_single_item_has_one_kernel_thread_too() -> None:
    """How many calls there are must not show in how one is computed: a guarantee rests on it."""
    assert list(workers.mapped(lambda item: (item, torch.get_num_threads()), [7])) == [(7, 1)]


@pytest.mark.usefixtures("two")
def test_few_results_wait_however_many_items_there_are() -> None:
    begun = []
    for taken, result in enumerate(workers.mapped(lambda item: begun.append(item) or item, range(50))):
        assert result == taken
        assert len(begun) <= taken + 1 + workers.AHEAD * workers.count()
    assert sorted(begun) == list(range(50))


@pytest.mark.usefixtures("two")
def test_what_was_not_begun_never_is_once_nobody_wants_it() -> None:
    begun, go = [], threading.Event()

    def task(item: int) -> int:
        begun.append(item)
        return item if item == 0 else go.wait(60)

    results = workers.mapped(task, range(4))
    assert next(results) == 0
    threading.Timer(0.2, go.set).start()
    results.close()
    assert len(begun) < 4
