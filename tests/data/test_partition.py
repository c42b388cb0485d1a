"""Partitions: disjoint, complete, never empty, repeatable; and each scheme's own promise."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.data.loading import load
from equipoise.data.partition import SCHEMES, Request, Rows, Scheme, partition, weights
from equipoise.errors import DataError

label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=120)


def histogram(labels: Tensor, part: Tensor) -> Tensor:
    return torch.bincount(labels[part], minlength=int(labels.max()) + 1)


def assert_complete(parts: list[Tensor], total: int) -> None:
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(total))
    for part in parts:
        assert part.dtype == torch.int64
        assert len(part) > 0
        assert torch.equal(part, part.sort().values)


@given(label_lists, st.integers(1, 9), st.sampled_from(list(SCHEMES)), st.integers(0, 2**64), st.floats(1e-4, 1e3))
@settings(max_examples=150, deadline=None)
def test_every_scheme_is_a_partition_and_repeats(
    values: list[int], clients: int, scheme: str, seed: int, dirichlet: float
) -> None:
    assume(len(values) >= clients * 2)
    labels = torch.tensor(values)
    parts = partition(labels, clients, scheme, dirichlet=dirichlet, seed=seed)
    assert len(parts) == clients
    assert_complete(parts, len(values))
    np.random.seed(1)  # the global state must not matter
    torch.manual_seed(1)
    before = torch.get_rng_state()
    again = partition(labels, clients, scheme, dirichlet=dirichlet, seed=seed)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one, two) for one, two in zip(parts, again, strict=True))


@given(label_lists, st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_identical_histograms_differ_by_at_most_one(values: list[int], clients: int) -> None:
    assume(len(values) >= clients)
    labels = torch.tensor(values)
    parts = partition(labels, clients)
    counts = torch.stack([histogram(labels, part) for part in parts])
    assert int((counts.max(0).values - counts.min(0).values).max()) <= 1
    assert int(counts.sum(1).max() - counts.sum(1).min()) <= 1


@pytest.mark.parametrize("name", ["mnist", "fmnist"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_identical_on_bundled_splits_gives_the_four_blocks(name: str, split: str) -> None:
    labels = getattr(load(name), split).labels
    size = len(labels) // 4
    for client, part in enumerate(partition(labels, 4)):
        assert torch.equal(part, torch.arange(client * size, (client + 1) * size))


def test_identical_takes_contiguous_occurrences_whatever_the_order() -> None:
    labels = torch.tensor([2, 2, 2, 2, 0, 0, 1, 1])
    assert [part.tolist() for part in partition(labels, 2)] == [[0, 1, 4, 6], [2, 3, 5, 7]]


@given(
    label_lists,
    st.lists(st.integers(1, 8) | st.floats(0.05, 20), min_size=1, max_size=6),
    st.sampled_from(["identical", "iid"]),
)
@settings(max_examples=150, deadline=None)
def test_every_size_is_its_quota_rounded_up_or_down(values: list[int], sizes: list[float], scheme: str) -> None:
    labels = torch.tensor(values)
    try:
        parts = partition(labels, len(sizes), scheme, sizes=sizes)
    except DataError:  # allowed only when a client's quota leaves room for no row at all
        classes = len(set(values)) if scheme == "identical" else 1
        assert len(values) < len(sizes) or len(values) * min(sizes) / sum(sizes) < classes
        return
    assert_complete(parts, len(values))
    exact = [Fraction(size) for size in sizes]
    for part, size in zip(parts, exact, strict=True):
        groups = [values.count(label) for label in range(7)] if scheme == "identical" else [len(values)]
        counts = [labels[part].tolist().count(label) for label in range(7)] if scheme == "identical" else [len(part)]
        for group, count in zip(groups, counts, strict=True):
            assert abs(count - group * size / sum(exact)) < 1


@pytest.mark.parametrize("scheme", ["identical", "iid"])
def test_whole_sizes_are_met_exactly(scheme: str) -> None:
    labels = torch.arange(490) % 10
    assert [len(part) for part in partition(labels, 3, scheme, sizes=[1, 2, 4])] == [70, 140, 280]
    assert [len(part) for part in partition(torch.zeros(49, dtype=torch.int64), 49, scheme)] == [1] * 49


def test_iid_is_equal_random_and_depends_on_the_seed() -> None:
    labels = torch.arange(1003) % 10
    parts = partition(labels, 4, "iid", seed=1)
    assert sorted(len(part) for part in parts) == [250, 251, 251, 251]
    assert not torch.equal(parts[0], partition(labels, 4, "iid", seed=2)[0])
    # 251 of 1003 rows drawn at random: the mean row is within 5 standard errors of the middle.
    assert abs(float(parts[0].double().mean()) - 501) < 5 * 290 / 251**0.5
    assert float(parts[0].diff().double().var()) > 1


def skew(dirichlet: float, seed: int) -> float:
    """Mean total variation between a client's labels and everyone's."""
    labels = torch.arange(4000) % 10
    parts = partition(labels, 8, "dirichlet", dirichlet=dirichlet, seed=seed)
    shares = torch.stack([histogram(labels, part) / len(part) for part in parts])
    return float((shares - 0.1).abs().sum(1).mean() / 2)


def test_dirichlet_is_the_more_skewed_the_smaller_alpha() -> None:
    small, middle, large = (np.mean([skew(dirichlet, seed) for seed in range(5)]) for dirichlet in (0.05, 0.5, 100.0))
    assert small > middle + 0.1 > large + 0.2
    assert large < 0.06


def test_dirichlet_proportions_have_the_right_moments() -> None:
    """A client's share of a class has mean 1/K and variance (K-1) / (K^2 (K dirichlet + 1)); each can fail."""
    labels, clients, dirichlet = torch.arange(100_000) % 1000, 4, 0.5
    parts = partition(labels, clients, "dirichlet", dirichlet=dirichlet, seed=3)
    shares = torch.stack([histogram(labels, part) for part in parts]).double() / 100  # [client, class]
    variance = (clients - 1) / (clients**2 * (clients * dirichlet + 1))
    assert float((shares.mean(1) - 1 / clients).abs().max()) < 4 * (variance / 1000) ** 0.5
    # The estimate's own deviation is near 0.02; dirichlet wrong by a third would move the ratio to 0.8 or 1.3.
    assert 0.9 < float(((shares - 1 / clients) ** 2).mean()) / variance < 1.1


def test_dirichlet_leaves_no_client_empty() -> None:
    labels = torch.zeros(20, dtype=torch.int64)
    parts = partition(labels, 20, "dirichlet", dirichlet=1e-6)
    assert [len(part) for part in parts] == [1] * 20


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_give_few_labels_each(shards: int) -> None:
    labels = torch.arange(1000).flip(0) % 10
    parts = partition(labels, 10, "shards", shards=shards, seed=4)
    assert_complete(parts, 1000)
    for part in parts:
        assert len(part) == 100
        assert len(set(labels[part].tolist())) <= shards


def test_shards_depend_on_the_seed() -> None:
    labels = torch.arange(100) % 10
    draws = {tuple(partition(labels, 5, "shards", seed=seed)[0].tolist()) for seed in range(10)}
    assert len(draws) > 5


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_weights_are_shares(sizes: list[int]) -> None:
    result = weights([torch.zeros(size) for size in sizes])
    assert result.dtype == torch.float64
    assert result.tolist() == pytest.approx([size / sum(sizes) for size in sizes], abs=1e-15)
    assert float(result.sum()) == pytest.approx(1, abs=1e-12)


def test_weights_of_nothing_are_refused() -> None:
    for parts in ([], [torch.arange(0)]):
        with pytest.raises(DataError, match="at least one row"):
            weights(parts)


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"clients": 11}, "clients=11 to be <= the 10 rows"),
    ({"clients": 0}, "clients=0 to be >= 1"),
    ({"clients": 2.5}, "clients=2.5 to be a whole number"),
    ({"scheme": "dirichelt"}, "Unknown scheme 'dirichelt'. Did you mean 'dirichlet'"),
    ({"scheme": "dirichlet", "dirichlet": 0.0}, "dirichlet=0.0 to be finite and > 0"),
    ({"scheme": "dirichlet", "dirichlet": float("nan")}, "dirichlet=nan to be finite"),
    ({"scheme": "dirichlet", "dirichlet": float("inf")}, "dirichlet=inf to be finite"),
    ({"scheme": "dirichlet", "sizes": [1, 1]}, "'dirichlet' takes no sizes"),
    ({"scheme": "shards", "shards": 6}, r"clients \* shards = 2 \* 6 to be <= the 10 rows"),
    ({"scheme": "shards", "shards": 0}, "shards=0 to be >= 1"),
    ({"sizes": [1, 2, 3]}, "Expected 2 sizes, one per client, got 3"),
    ({"sizes": [1, 0]}, r"sizes\[1\]=0 to be finite and > 0"),
    ({"sizes": [float("inf"), 1]}, r"sizes\[0\]=inf to be finite"),
    ({"sizes": [1, 1000], "scheme": "iid"}, "Client 0 would get none of the 10 rows"),
    ({"seed": -1}, "seed=-1 to be >= 0"),
    ({"labels": [0, 1]}, "labels to be a torch tensor, got list"),
    ({"labels": torch.zeros(4)}, r"integers of shape \[N\], got torch.float32"),
    ({"labels": torch.zeros(4, 1, dtype=torch.int64)}, r"of shape \[4, 1\]"),
    ({"labels": torch.zeros(0, dtype=torch.int64)}, "to be <= the 0 rows"),
]


@pytest.mark.parametrize(("arguments", "words"), PROBLEMS)
def test_impossible_requests_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        partition(**{"labels": torch.arange(10) % 2, "clients": 2, **arguments})


@pytest.mark.parametrize("takes_sizes", [True, False])
def test_another_scheme_is_one_entry(monkeypatch: pytest.MonkeyPatch, takes_sizes: bool) -> None:
    def in_turn(request: Request) -> list[Rows]:
        order = np.argsort(request.labels, kind="stable")[::-1]
        return [order[client :: request.clients] for client in range(request.clients)]

    monkeypatch.setitem(SCHEMES, "in-turn", Scheme(in_turn, takes_sizes))
    labels = torch.tensor([2, 1, 0, 1, 0])
    assert [part.tolist() for part in partition(labels, 2, "in-turn")] == [[0, 1, 2], [3, 4]]
    if takes_sizes:
        assert len(partition(labels, 2, "in-turn", sizes=[1, 2])) == 2
    else:
        with pytest.raises(DataError, match=r"takes no sizes\. Drop sizes, or use scheme 'identical' or 'iid'"):
            partition(labels, 2, "in-turn", sizes=[1, 2])


# -- groups --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 20)), min_size=1, max_size=120),
    st.integers(1, 5),
    st.sampled_from(list(SCHEMES)),
    st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_no_group_is_divided_between_clients(
    values: list[tuple[int, int]], clients: int, scheme: str, seed: int
) -> None:
    labels, groups = torch.tensor(values).T
    assume(len(groups.unique()) >= clients * 2)
    parts = partition(labels, clients, scheme, seed=seed, groups=groups)
    assert_complete(parts, len(values))
    owners = [set(groups[part].tolist()) for part in parts]
    assert sum(len(owned) for owned in owners) == len(set.union(*owners))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_groups_of_one_row_are_dealt_like_rows(scheme: str) -> None:
    labels = (torch.arange(60) * 7) % 5
    plain = partition(labels, 4, scheme, seed=3)
    groups = 1000 - torch.arange(60)
    assert all(
        torch.equal(one, two)
        for one, two in zip(plain, partition(labels, 4, scheme, seed=3, groups=groups), strict=True)
    )


def test_sizes_count_groups() -> None:
    groups = torch.arange(12).repeat_interleave(torch.arange(1, 13))
    parts = partition(torch.zeros(len(groups), dtype=torch.int64), 3, sizes=[1, 2, 3], groups=groups)
    assert [len(groups[part].unique()) for part in parts] == [2, 4, 6]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (torch.zeros(6, dtype=torch.int64), "clients=2 to be <= the 1 groups"),
        (torch.zeros(5, dtype=torch.int64), "as many groups as labels, got 5 and 6"),
        (torch.zeros(6), r"groups to be integers of shape \[N\], got torch.float32"),
        (torch.zeros(6, 1, dtype=torch.int64), r"groups to be integers of shape \[N\]"),
        ([0] * 6, "groups to be a torch tensor, got list"),
    ],
)
def test_groups_that_cannot_be_dealt_are_refused(groups: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        partition(torch.zeros(6, dtype=torch.int64), 2, groups=groups)
