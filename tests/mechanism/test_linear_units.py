"""The units of a linear head: exact sums, each unit's integers its own and no longer than the clip.

Sums are looked at on the grid on which they are exact, before ``coarser`` rounds them (``fine``); numbers are compared
as Python's integers and fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from equipoise.mechanism import linear_units
from equipoise.mechanism.exact_softmax import softmax
from equipoise.mechanism.l2_grid import FINENESS, SPARE, L2Grid
from equipoise.mechanism.linear_units import LinearRecords, on_head
from equipoise.mechanism.units import EachRecord, Records
from equipoise.models.batched import Batched
from equipoise.models.features import FeatureModel
from equipoise.models.layout import Layout
from equipoise.models.scattering import NORM

N, WIDTH, CLASSES = 11, 6, 3
SIZE = CLASSES * (WIDTH + 1)
CLIP = 0.8
GROUPS = torch.tensor([5, 5, -3, 9, 5, -3, 8, 8, 1, 2, 5])

HOSTILE = {
    "zero": 0.0, "usual": None, "2^24": 2.0**24, "1e30": 1e30, "float32's largest": 3.4e38, "1e300": 1e300,
    "1.7e308": 1.7e308, "subnormal": 1e-310, "nan": math.nan, "inf": math.inf, "-inf": -math.inf,
}  # fmt: skip
"""Weights that a server may send, beside usual ones in every second place."""


@pytest.fixture
def fine() -> Iterator[None]:
    """Sums as they are before they are rounded once more."""

    def same(self: L2Grid, clip: float, size: int, whole: Tensor | None = None) -> tuple[L2Grid, Tensor | None]:
        return self, whole

    with patch.object(L2Grid, "coarser", same):
        yield


def features(count: int = N, length: float = NORM) -> Tensor:
    rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True) * length


def pool_of(images: Tensor | None = None, groups: Tensor | None = None, labels: Tensor | None = None) -> LinearRecords:
    images = features() if images is None else images
    return LinearRecords(
        Records(images, torch.arange(len(images)) % CLASSES if labels is None else labels, groups), CLASSES
    )


def weights(what: str = "usual", rows: int = 1) -> Tensor:
    value, draw = HOSTILE[what], torch.Generator().manual_seed(9)
    result = torch.randn(rows, SIZE, generator=draw, dtype=torch.float64)
    if value is not None:
        result[:, ::2] = value * torch.randn(rows, SIZE, generator=draw, dtype=torch.float64)[:, ::2].sign()
    return result


def integers(total: Tensor) -> list[int]:
    assert torch.isfinite(total).all()
    assert all(value == int(value) for value in total.flatten().tolist())
    return [int(value) for value in total.flatten().tolist()]


def total(pool: LinearRecords, rows: list[int], start: Tensor, clip: float = CLIP) -> list[int]:
    return integers(pool.total([torch.tensor(rows, dtype=torch.int64)], start, clip)[0])


def members(groups: Tensor | None) -> list[list[int]]:
    if groups is None:
        return [[i] for i in range(N)]
    return [[i for i in range(N) if groups[i] == unit] for unit in dict.fromkeys(groups.tolist())]


def plus(*lists: list[int]) -> list[int]:
    return [sum(column) for column in zip(*lists, strict=True)]


# -- a unit's integers are its own -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])
def test_a_sum_is_exactly_that_of_its_units_whatever_the_weights(fine: None, groups: Tensor | None, what: str) -> None:
    pool, start, units = pool_of(groups=groups), weights(what), members(groups)
    alone = [total(pool, unit, start) for unit in units]
    assert total(pool, list(range(N)), start) == plus(*alone)
    for left_out in range(len(units)):
        rest = [i for number, unit in enumerate(units) for i in unit if number != left_out]
        expected = plus(*(part for number, part in enumerate(alone) if number != left_out), [0] * SIZE)
        assert total(pool, rest, start) == expected
    assert any(map(any, alone)) or what == "1.7e308"


@pytest.mark.parametrize("what", ["usual", "2^24", "1e30", "nan", "inf"])
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])
@pytest.mark.parametrize("value", [0.0, 1e-300, 1e30, 1.7e308, math.nan, math.inf])
def test_other_companions_change_no_bit_of_a_unit(fine: None, value: float, groups: Tensor | None, what: str) -> None:
    start, everyone, units = weights(what), list(range(N)), members(groups)
    before = pool_of(groups=groups)
    changed, images, labels = units[1], features(), torch.arange(N) % CLASSES
    images[changed], labels[changed] = value, 99
    after = pool_of(images, groups, labels)
    others = [total(before, unit, start) for number, unit in enumerate(units) if number != 1]
    assert [total(after, unit, start) for number, unit in enumerate(units) if number != 1] == others
    assert total(after, everyone, start) == plus(*others)


def test_the_order_of_records_changes_no_bit(fine: None) -> None:
    pool, start = pool_of(), weights()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1)).tolist()
    assert total(pool, order, start) == total(pool, list(range(N)), start)


@pytest.mark.parametrize("piece", [1, 3, N - 1, N])
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])
def test_more_records_than_are_looked_at_once_give_the_same_sums(
    piece: int, groups: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, start, everyone = pool_of(groups=groups), weights(rows=2), [torch.arange(N)] * 2
    whole, clipped = pool.total(everyone, start, CLIP)
    monkeypatch.setattr(linear_units, "PIECE", piece)
    again, share = pool.total(everyone, start, CLIP)
    assert torch.equal(again, whole)
    assert torch.equal(share, clipped)


def test_clients_are_summed_as_if_each_were_the_only_one() -> None:
    rows = [torch.tensor([0, 1, 2]), torch.tensor([], dtype=torch.int64), torch.arange(N), torch.tensor([0, 1, 2])]
    pool, start = pool_of(), weights(rows=4)
    together, share = pool.total(rows, start, CLIP)
    for r, row in enumerate(rows):
        alone, own = pool.total([row], start[r : r + 1], CLIP)
        assert torch.equal(together[r], alone[0])
        assert torch.equal(share[r], own[0])
    assert not together[1].any()
    assert not torch.equal(together[0], together[3]), "the same records, at other weights"


def test_features_kept_in_float32_are_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = pool_of().features
    monkeypatch.setattr(linear_units, "ROOM", 0)
    assert usual.dtype == torch.float64
    assert pool_of().features.dtype == torch.float32
    assert torch.equal(pool_of().features.double(), usual)


def test_features_that_float32_cannot_hold_are_kept_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a grid much finer than ours has such integers: that of some hundred million features."""
    monkeypatch.setattr(linear_units, "ROOM", 0)
    for fineness in (2**10, 2**22, 2**23, 2**24, 2**25):
        monkeypatch.setattr(linear_units, "FINENESS", fineness)
        pool = pool_of()
        assert (pool.features.dtype == torch.float32) == (NORM * 2.0**-pool._exponent <= 2**24)


# -- and no longer than the clip -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("clip", [1e-3, 0.3, 1.0, 1e4])
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])
def test_no_unit_is_longer_than_the_clip(fine: None, groups: Tensor | None, clip: float, what: str) -> None:
    images = features()
    images[::3] *= 1e20  # longer than NORM
    images[1::3] *= 1e-5
    pool, start = pool_of(images, groups), weights(what)
    most = (Fraction(clip) / Fraction(2) ** pool.grid(clip).exponent) ** 2
    squares = [sum(value**2 for value in total(pool, unit, start, clip)) for unit in members(groups)]
    assert max(squares) <= most
    if what == "usual" and clip < 1:
        assert max(squares) > most * Fraction(98, 100), "a unit that was clipped is hardly any shorter"


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])
def test_a_unit_moves_a_release_by_the_clip_and_the_stated_stretch(groups: Tensor | None) -> None:
    pool, everyone, start = pool_of(groups=groups), list(range(N)), weights()
    grid, whole = pool.grid(CLIP), total(pool, everyone, start)
    assert grid.stretch == 1 + 1 / SPARE
    for unit in members(groups):
        rest = total(pool, [i for i in everyone if i not in unit], start)
        moved = sum((a - b) ** 2 for a, b in zip(whole, rest, strict=True)) * Fraction(4) ** grid.exponent
        assert moved <= (Fraction(CLIP) * Fraction(grid.stretch)) ** 2


@pytest.mark.parametrize("length", [8.01, 100.0, 1e30, 1e150])
def test_features_longer_than_the_norm_are_shortened(fine: None, length: float) -> None:
    axes = torch.eye(WIDTH, dtype=torch.float64)
    long, short = pool_of(axes * length), pool_of(axes * NORM)
    assert float((long.length**2).max()) <= NORM**2 + 1 + 1e-9
    steps = CLIP / long.grid(CLIP).step
    assert total(long, [0, 1], weights()) == pytest.approx(total(short, [0, 1], weights()), abs=steps / FINENESS)


def test_shorter_features_are_left_as_they_are(fine: None) -> None:
    short = pool_of(torch.eye(WIDTH, dtype=torch.float64) * 7.5)
    assert float((short.length.square() - 7.5**2 - 1).abs().max()) < 1e-12


@pytest.mark.parametrize("what", HOSTILE)
def test_logits_are_sums_that_float64_holds_in_any_order(what: str) -> None:
    """Even of absolute values no sum exceeds 2^53, so none of them is ever rounded."""
    images = features()
    images[:3] = NORM / math.sqrt(WIDTH)
    images[3:5] *= 1e30
    pool = pool_of(images)
    whole, steps = pool._weights(weights(what))
    products = pool.features.abs().tolist(), whole[0].abs().tolist()
    assert all(value == int(value) for row in products[1] for value in row)
    assert max(
        sum(int(a) * int(w) for a, w in zip(x, row, strict=True)) for x in products[0] for row in products[1]
    ) <= (2**53)
    assert all(math.frexp(float(step))[0] == 0.5 for step in steps), "a power of two"


def test_weights_that_are_not_finite_count_as_zero(fine: None) -> None:
    start = weights()
    start[0, 4] = 0.0
    expected = total(pool_of(), list(range(N)), start)
    for value in (math.nan, math.inf, -math.inf):
        start[0, 4] = value
        assert total(pool_of(), list(range(N)), start) == expected


# -- records that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7e308, -1e200])
@pytest.mark.parametrize("places", [slice(0, 1), slice(0, WIDTH)], ids=["one", "all"])
def test_features_without_a_length_count_as_zero(fine: None, value: float, places: slice) -> None:
    images, start = features(), weights()
    images[4, places] = value
    pool, rest = pool_of(images), [i for i in range(N) if i != 4]
    assert total(pool, [4], start) == [0] * SIZE
    assert total(pool, list(range(N)), start) == total(pool_of(), rest, start)


@pytest.mark.parametrize("label", [-1, CLASSES, 10**12, -(2**63)])
def test_labels_that_are_no_class_count_as_zero(fine: None, label: int) -> None:
    labels, start = torch.arange(N) % CLASSES, weights()
    labels[4] = label
    rest = [i for i in range(N) if i != 4]
    assert total(pool_of(labels=labels), list(range(N)), start) == total(pool_of(), rest, start)


# -- the right numbers -----------------------------------------------------------------------------------------------


def autograd(images: Tensor, label: int, start: Tensor) -> Tensor:
    """The gradient of one record by torch, in the order of a model's state dict."""
    model = FeatureModel(nn.Flatten(), nn.Linear(WIDTH, CLASSES)).double()
    model.load_state_dict(Layout.of(model).unflatten(start[0]))
    nn.functional.cross_entropy(model(images.unsqueeze(0)), torch.tensor([label])).backward()
    return Layout.of(model).flatten(
        {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
    )


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])
@pytest.mark.parametrize("clip", [0.5, 50.0])
def test_sums_are_those_of_torch_up_to_the_grid(clip: float, groups: Tensor | None) -> None:
    images, start, pool = features(), weights() / 3, pool_of(groups=groups)
    expected = torch.zeros(SIZE, dtype=torch.float64)
    for unit in members(groups):
        gradients = torch.stack([autograd(images[i], i % CLASSES, start) for i in unit])
        length = float(gradients.norm(dim=1).sum())  # a unit is bounded by the sum of its records' norms
        expected += gradients.sum(0) * min(1.0, clip / length)
    found, share = pool.total([torch.arange(N)], start, clip)
    far = float((found[0] * pool.grid(clip).step - expected).norm())
    assert far < clip * (N * 1.1 / FINENESS + 1 / SPARE)
    assert float(share) == (1.0 if clip < 1 else 0.0)


def test_the_clipped_share_counts_units() -> None:
    """Of two persons with eight records and one, the first alone is clipped."""
    pool = pool_of(groups=torch.tensor([0] * 8 + [1]), images=features(9))
    share = pool.total([torch.arange(9)], torch.zeros(1, SIZE, dtype=torch.float64), 10.0)[1]
    assert share.tolist() == [0.5]


def test_grid_and_sums_belong_together() -> None:
    pool, start = pool_of(), weights()
    exact = pool._fine(CLIP)
    coarse = pool.grid(CLIP)
    assert coarse.exponent > exact.exponent, "the test would be empty"
    with patch.object(L2Grid, "coarser", lambda self, clip, size, whole=None: (self, whole)):
        before = total(pool, list(range(N)), start)
    after = total(pool, list(range(N)), start)
    assert after == [value // 2 ** (coarse.exponent - exact.exponent) for value in before]


# -- the steps on the way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["usual", "2^24", "1e30"])
def test_residuals_are_the_exact_softmax_of_exact_logits(what: str) -> None:
    pool, start = pool_of(labels=torch.zeros(N, dtype=torch.int64)), weights(what) / 5
    whole, steps = pool._weights(start)
    step, rows = Fraction(float(steps[0])), whole[0].tolist()

    def logit(x: list[float], row: list[float]) -> float:
        return float(sum(int(a) * int(w) for a, w in zip(x, row, strict=True)) * step)

    logits = [[logit(x, row) for row in rows] for x in pool.features.tolist()]
    expected = softmax(torch.tensor(logits, dtype=torch.float64)) - torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    found = pool._residuals(torch.arange(N), start, None)[:, 0]
    assert torch.equal(found, expected)


def test_residuals_are_cut_towards_zero() -> None:
    pool, clip = pool_of(), 50.0
    residuals = pool._residuals(torch.arange(N), weights(), None)
    whole, _ = pool._clipped(torch.arange(N), [residuals], clip)
    assert torch.equal(whole, (residuals / 2.0 ** pool._residual_exponent(clip)).trunc())


def test_a_unit_right_at_the_clip_is_shortened_by_the_margin() -> None:
    """Sums of a million norms are rounded too: what the clip allows exactly is more than a record may take."""
    pool = pool_of(torch.zeros(1, WIDTH, dtype=torch.float64))
    residual = torch.tensor([[[1.0, 0.0, 0.0]]], dtype=torch.float64)
    whole, _ = pool._clipped(torch.tensor([0]), [residual], 1.0)
    used = Fraction(float(whole.amax())) * Fraction(2) ** pool._residual_exponent(1.0)
    assert float(pool.length) == 1
    assert 1 - Fraction(1, 1000) < used < 1 - Fraction(1, 2**31)


@pytest.mark.parametrize(
    ("bias", "frozen", "kind"),
    [
        (True, (), LinearRecords),
        (False, (), EachRecord),
        (True, ("bias",), EachRecord),
        (True, ("weight",), EachRecord),
    ],
)
def test_a_head_that_lacks_a_part_is_summed_like_any_model(bias: bool, frozen: tuple[str, ...], kind: type) -> None:
    head = nn.Linear(WIDTH, CLASSES, bias=bias).double()
    for name in frozen:
        getattr(head, name).requires_grad_(False)
    batched = Batched(FeatureModel(nn.Flatten(), head).head_model())
    pool = on_head(batched, Records(features(), torch.arange(N) % CLASSES), CLASSES)
    assert type(pool) is kind
    found, _ = pool.total([torch.arange(N)], torch.zeros(1, batched.layout.size, dtype=torch.float64), CLIP)
    assert found.shape == (1, batched.layout.size)
    assert found.any()
