"""Work dealt to threads: all of it, once, with one thread for each one's kernels, and no error lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.models import workers


@pytest.fixture
def two() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@given(total=st.integers(1, 500), least=st.integers(1, 40), multiple=st.sampled_from([1, 2, 8]))
def test_shares_cover_everything_once(total: int, least: int, multiple: int) -> None:
    parts = workers.shares(total, least, multiple)
    assert [place for start, stop in parts for place in range(start, stop)] == list(range(total))
    assert all((stop - start) % multiple == 0 for start, stop in parts[:-1])
    assert len(parts) <= max(1, min(workers.count(), total // least))


@pytest.mark.usefixtures("two")
def test_every_part_is_computed_side_by_side_with_one_kernel_thread_each() -> None:
    together = threading.Barrier(2, timeout=60)  # passes only if two parts are under way at once
    seen = []

    def task(start: int, stop: int) -> None:
        together.wait()
        seen.append((start, stop, torch.get_num_threads(), torch.is_grad_enabled()))

    with torch.no_grad():
        workers.deal(task, [(0, 8), (8, 12)])
    assert sorted(seen) == [(0, 8, 1, False), (8, 12, 1, False)]
    assert torch.get_num_threads() == 2, "the caller keeps its own number of threads"


@pytest.mark.usefixtures("two")
def test_an_error_is_raised_after_all_parts_have_ended() -> None:
    ended = []

    def task(start: int, stop: int) -> None:
        if start == 0:
            raise ValueError("the first part")
        ended.append(stop)

    with pytest.raises(ValueError, match="the first part"):
        workers.deal(task, [(0, 8), (8, 12)])
    assert ended == [12]


def test_a_single_part_needs_no_worker() -> None:
    here: list[threading.Thread] = []
    workers.deal(lambda start, stop: here.append(threading.current_thread()), [(0, 3)])
    assert here == [threading.current_thread()]


@pytest.mark.usefixtures("two")
def test_a_single_item_has_one_kernel_thread_too() -> None:
    """How many calls there are must not show in how one is computed: a guarantee rests on it."""
    assert workers.mapped(lambda item: (item, torch.get_num_threads()), [7]) == [(7, 1)]
