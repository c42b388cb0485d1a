"""Ranks, membership scores and bootstrap: known answers, resampling by hand, and intervals that cover."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise import statistics
from equipoise.errors import ConfigError, DataError
from equipoise.statistics import (
    auc,
    bootstrap,
    bootstrap_auc,
    bootstrap_tpr,
    bounded_interval,
    interval,
    ranks,
    rate_interval,
    share_interval,
    student,
    tpr_at,
)

Phi = NormalDist().cdf
NAN, INF = math.nan, math.inf

# --- ranks -------------------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.integers(0, 6), st.integers(0, 2**31))
def test_ranks_by_counting(size: int, truth: int, seed: int) -> None:
    truth %= size
    table = torch.randint(3, (5, size), generator=torch.Generator().manual_seed(seed)).float()
    ranking = ranks(table, truth)
    for row, rank, first in zip(table.tolist(), ranking.rank.tolist(), ranking.first.tolist(), strict=True):
        decoys = row[:truth] + row[truth + 1 :]
        places = [0.5 if decoy == row[truth] else float(decoy > row[truth]) for decoy in decoys]
        assert rank == sum(places)
        assert first == pytest.approx(0 if 1.0 in places else 1 / (1 + len([p for p in places if p == 0.5])))
    assert ranking.log.tolist() == pytest.approx(np.log(1 + ranking.rank.numpy()))


def test_every_row_may_have_its_truth_in_a_column_of_its_own(generator: torch.Generator) -> None:
    table, truth = torch.rand(4, 3, 6, generator=generator), torch.randint(6, (4, 3), generator=generator)
    ranking = ranks(table, truth)
    assert ranking.rank.shape == (4, 3)
    for row in range(4):
        for column in range(3):
            alone = ranks(table[row, column], int(truth[row, column]))
            assert ranking.rank[row, column] == alone.rank
            assert ranking.first[row, column] == alone.first


@pytest.mark.parametrize("size", [2, 5, 1000])
def test_a_constant_score_is_exactly_chance(size: int) -> None:
    ranking = ranks(torch.full((3, 4, size), 0.7))
    assert ranking.rank.tolist() == [[(size - 1) / 2] * 4] * 3
    assert float(ranking.first.mean()) == pytest.approx(1 / size, rel=1e-12)


@pytest.mark.parametrize("levels", [2, 4, 10**6])
def test_an_uninformative_score_is_chance_whatever_its_ties(levels: int, generator: torch.Generator) -> None:
    first = ranks(torch.randint(levels, (40_000, 5), generator=generator), truth=2).first
    error = float(first.std()) / 200
    assert error < 0.0025
    assert float(first.mean()) == pytest.approx(1 / 5, abs=3 * error)


@pytest.mark.parametrize("distance", [0.5, 1.0, 2.0])
def test_identification_through_a_gaussian_channel(distance: float, generator: torch.Generator) -> None:
    """Two candidates at distance d in unit noise: the best attacker is right with probability Phi(d / 2)."""
    count, size = 40_000, 6
    candidates = torch.randn(2, size, generator=generator, dtype=torch.float64)
    candidates[1] = candidates[0] + distance * torch.nn.functional.normalize(candidates[1], dim=0)
    release = candidates[0] + torch.randn(count, size, generator=generator, dtype=torch.float64)
    share = float(ranks(-torch.cdist(release, candidates)).first.mean())
    expected = Phi(distance / 2)
    assert share == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / count))


def test_nan_never_helps() -> None:
    table = torch.tensor([[NAN, 1.0, NAN], [NAN, NAN, NAN], [-INF, NAN, NAN], [0.0, NAN, 1.0], [INF, INF, NAN]])
    ranking = ranks(table)
    assert ranking.rank.tolist() == [2, 2, 0, 1, 0.5]
    assert ranking.first.tolist() == [0, 0, 1, 0, 0.5]


# --- membership --------------------------------------------------------------------------------------------

small = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(small, small)
def test_auc_by_comparing_every_pair(members: list[float], others: list[float]) -> None:
    wins = [0.5 if x == y else float(x > y) for x in members for y in others]
    assert auc(members, others) == pytest.approx(sum(wins) / len(wins))
    assert auc(members, others) + auc(others, members) == pytest.approx(1)


@given(small, small, st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0]))
def test_tpr_by_trying_every_threshold(members: list[float], others: list[float], fpr: float) -> None:
    thresholds = [-INF, *others]
    fine = [t for t in thresholds if sum(y > t for y in others) <= fpr * len(others) + 1e-9]
    expected = max(sum(x > t for x in members) / len(members) for t in fine)
    assert tpr_at(members, others, fpr) == pytest.approx(expected)


def test_known_areas() -> None:
    assert auc([3, 4], [1, 2]) == 1
    assert auc([1, 2], [3, 4]) == 0
    assert auc([1, 1], [1]) == 0.5
    assert auc(torch.tensor([1.0, 3.0]), np.array([2.0])) == 0.5


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0, 2.0])
def test_auc_of_two_gaussians(shift: float) -> None:
    random = np.random.default_rng(7)
    members, others = random.normal(shift, 1, 6000), random.normal(0, 1, 9000)
    above = np.searchsorted(np.sort(others), members) / 9000
    below = 1 - np.searchsorted(np.sort(members), others) / 6000
    error = math.sqrt(above.var() / 6000 + below.var() / 9000)  # DeLong
    assert error < 0.006
    assert auc(members, others) == pytest.approx(Phi(shift / math.sqrt(2)), abs=3 * error)


@pytest.mark.parametrize(("shift", "fpr"), [(0.0, 0.01), (1.0, 0.01), (2.0, 0.01), (2.0, 0.1)])
def test_tpr_of_two_gaussians(shift: float, fpr: float) -> None:
    count, cut, normal = 200_000, NormalDist().inv_cdf(1 - fpr), NormalDist()
    random = np.random.default_rng(11)
    actual = tpr_at(random.normal(shift, 1, count), random.normal(0, 1, count), fpr)
    expected = Phi(shift - cut)
    slope = normal.pdf(cut - shift) / normal.pdf(cut)  # how an error in the threshold moves the rate
    error = math.sqrt((expected * (1 - expected) + slope**2 * fpr * (1 - fpr)) / count)
    assert actual == pytest.approx(expected, abs=3 * error)


def test_the_rate_counts_exactly_as_many_others_as_allowed() -> None:
    others, members = np.arange(100.0), np.arange(100.0) + 0.5
    for allowed in range(101):  # 0.29 * 100 is below 29 in floating point
        assert tpr_at(members, others, allowed / 100) == pytest.approx(min(1, (allowed + 1) / 100))
    assert tpr_at([5.0, 7.0], np.full(10, 5.0), 0.01) == 0.5, "ties with the threshold are no hits"


def test_scores_that_mean_nothing_are_refused() -> None:
    for score in (auc, tpr_at):
        for value in (NAN, INF, -INF):
            with pytest.raises(DataError, match="members"):
                score([1.0, value], [1.0])
            with pytest.raises(DataError, match="others"):
                score([1.0], torch.tensor([value]))
        with pytest.raises(DataError, match="at least one"):
            score([], [1.0])
    for fpr in (-0.1, 1.1, NAN):
        with pytest.raises(ConfigError):
            tpr_at([1.0], [0.0], fpr)


# --- intervals ---------------------------------------------------------------------------------------------


def test_intervals_over_releases_cover_and_intervals_over_images_do_not() -> None:
    """Four images of one release share most of what they vary by: to count them as four promises too much."""
    random = np.random.default_rng(3)
    covered, wrongly, widths = 0, 0, []
    for repetition in range(300):
        images = 5 + random.normal(size=(60, 1)) + 0.5 * random.normal(size=(60, 4))
        low, high = bootstrap(images, draws=400, seed=repetition) or (NAN, NAN)
        narrow_low, narrow_high = bootstrap(images.ravel(), draws=400, seed=repetition) or (NAN, NAN)
        covered += low <= 5 <= high
        wrongly += narrow_low <= 5 <= narrow_high
        widths.append((narrow_high - narrow_low) / (high - low))
    assert 0.90 <= covered / 300 <= 0.99
    assert wrongly / 300 < 0.80
    # the standard errors are sqrt((1 + 0.25) / 240) and sqrt((1 + 0.25 / 4) / 60)
    assert np.mean(widths) == pytest.approx(math.sqrt(1.25 / 240 / (1.0625 / 60)), rel=0.05)


def test_the_mean_by_weights_is_the_mean_of_resamples() -> None:
    values = np.random.default_rng(0).gamma(1.0, size=(30, 2, 3))
    counts = np.random.Generator(np.random.PCG64(4)).multinomial(30, np.full(30, 1 / 30), size=300)
    means = np.array([values[np.repeat(np.arange(30), row)].mean() for row in counts])
    actual = bootstrap(values, draws=300, seed=4)
    assert actual == pytest.approx(statistics._percentiles(means, 30), rel=1e-12)
    assert bootstrap(values, draws=300, seed=5) != actual
    assert bootstrap(torch.from_numpy(values), draws=300, seed=4) == actual


def test_more_releases_have_a_narrower_interval() -> None:
    values = np.random.default_rng(1).normal(size=400)
    wide, narrow = (np.diff(bootstrap(values[:count])) for count in (100, 400))
    assert narrow / wide == pytest.approx(0.5, rel=0.2)


def test_one_release_has_no_interval() -> None:
    assert bootstrap([3.0]) is None
    assert bootstrap(np.zeros((1, 50))) is None
    assert bootstrap_auc(np.zeros((1, 4)), np.zeros((1, 20))) is None
    assert bootstrap([3.0, 3.0]) == (3.0, 3.0)


@pytest.mark.parametrize("others", [2, 5, 20])  # of whom 0, 1 and 5 may be above the threshold
@pytest.mark.parametrize("rounded", [False, True])
def test_weighted_auc_and_tpr_are_those_of_resamples(others: int, rounded: bool) -> None:
    random = np.random.default_rng(5)
    both = random.normal(size=(25, 3 + others)) + random.normal(size=(25, 1))
    both[:, :3] += 0.8
    if rounded:  # many ties
        both = both.round()
    actual = bootstrap_auc(both[:, :3], both[:, 3:], draws=200, seed=9)
    assert actual is not None
    counts = np.random.Generator(np.random.PCG64(9)).multinomial(25, np.full(25, 1 / 25), size=200)
    again = [both[np.repeat(np.arange(25), row)] for row in counts]
    for one, size, share in (
        (actual[0], 75, lambda x: auc(x[:, :3], x[:, 3:])), (actual[1], 75, lambda x: tpr_at(x[:, :3], x[:, 3:])),
    ):  # fmt: skip
        variance = float(np.var([share(rows) for rows in again]))
        assert one == pytest.approx(share_interval(share(both), variance, 25, size), abs=1e-9)


@pytest.mark.parametrize("others", [1, 2, 5, 20, 60])
@pytest.mark.parametrize("rounded", [False, True])
def test_the_interval_of_tpr_alone_is_the_one_beside_auc(others: int, rounded: bool) -> None:
    """Bit for bit, though it looks at the highest scores alone; where a few releases have them all it looks further."""
    random = np.random.default_rng(5)
    both = random.normal(size=(25, 3 + others)) + random.normal(size=(25, 1))
    both[:, :3] += 0.8
    both[:3] += 20
    if rounded:  # many ties
        both = both.round()
    whole = bootstrap_auc(both[:, :3], both[:, 3:], draws=200, seed=9)
    assert whole is not None
    assert bootstrap_tpr(both[:, :3], both[:, 3:], draws=200, seed=9) == whole[1]


def test_the_interval_of_tpr_alone_refuses_the_same() -> None:
    assert bootstrap_tpr(np.zeros((1, 4)), np.zeros((1, 20))) is None
    with pytest.raises(DataError, match="same N"):
        bootstrap_tpr(np.zeros((3, 2)), np.zeros((4, 2)))
    with pytest.raises(DataError, match="nan"):
        bootstrap_tpr([[1.0], [NAN]], [[1.0], [0.0]])


def test_the_interval_of_auc_covers() -> None:
    random = np.random.default_rng(13)
    covered = 0
    for repetition in range(300):
        # members and others of a release share an offset, which changes no single release's order
        offset = random.normal(size=(60, 1))
        members, others = 1 + offset + random.normal(size=(60, 2)), offset + random.normal(size=(60, 5))
        intervals = bootstrap_auc(members, others, draws=300, seed=repetition)
        assert intervals is not None
        covered += intervals[0][0] <= Phi(1 / 2) <= intervals[0][1]  # a difference of variance 4 between releases
    assert 0.90 <= covered / 300 <= 0.99


def test_values_without_an_interval_are_refused() -> None:
    with pytest.raises(DataError, match="inf"):
        bootstrap([1.0, INF])
    with pytest.raises(DataError, match="nan"):
        bootstrap_auc([[1.0], [NAN]], [[1.0], [0.0]])
    with pytest.raises(DataError, match="others"):
        bootstrap_auc([[1.0], [1.0]], [[1.0], [-INF]])
    with pytest.raises(DataError, match="same N"):
        bootstrap_auc(np.zeros((3, 2)), np.zeros((4, 2)))
    with pytest.raises(DataError, match="same N"):
        bootstrap_auc(np.zeros(3), np.zeros(3))


def test_pieces_of_a_bootstrap_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).normal(size=(12, 5))

    def everything() -> list[object]:
        return [bootstrap(values, draws=50), bootstrap_auc(values[:, :2], values[:, 2:], draws=50)]

    whole = everything()
    for room in (1, 30, 3000):
        monkeypatch.setattr(statistics, "ROOM", room)
        assert everything() == whole


# --- percentiles that make up for few releases ------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [5, 7, 19, 31, 500])
def test_the_quantile_is_students(freedom: int) -> None:
    assert student(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=1e-3)


@pytest.mark.parametrize("count", [8, 20, 60])
def test_a_bootstrap_interval_is_as_wide_as_students(count: int) -> None:
    """Of normal values: plain percentiles would be narrower by z / t and by sqrt(1 - 1 / n)."""
    random = np.random.default_rng(4)
    ratios = []
    for repetition in range(40):
        values = random.normal(size=count)
        low, high = bootstrap(values, draws=4000, seed=repetition) or (NAN, NAN)
        half = float(stats.t.ppf(0.975, count - 1)) * values.std(ddof=1) / math.sqrt(count)
        ratios.append((high - low) / (2 * half))
    assert np.mean(ratios) == pytest.approx(1, abs=0.04)


def test_few_releases_are_covered_too() -> None:
    """Plain percentiles of ten values hold the mean in 90 % of cases or fewer."""
    random = np.random.default_rng(5)
    covered = 0
    for repetition in range(600):
        low, high = bootstrap(random.normal(size=10), draws=400, seed=repetition) or (NAN, NAN)
        covered += low <= 0 <= high
    assert 0.93 <= covered / 600 <= 0.98


def test_two_releases_have_an_interval_from_one_to_the_other() -> None:
    assert bootstrap([3.0, 5.0], draws=100) == (3.0, 5.0)


# --- intervals of rates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.5, 0.97])
@pytest.mark.parametrize("shared", [0.0, 0.6])
def test_the_interval_of_a_rate_covers(rate: float, shared: float) -> None:
    """Of 32 releases with 4 examples each; with ``shared``, all examples of a release often have one fate."""
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(600):
        found = random.random((32, 4)) < rate
        alike = random.random((32, 1)) < shared
        found = np.where(alike, found[:, :1], found)
        low, high = rate_interval(found.astype(float)) or (NAN, NAN)
        covered += low <= rate <= high
    assert covered / 600 >= 0.92


def test_examples_that_share_a_fate_count_as_fewer() -> None:
    alone = np.zeros((40, 4))
    alone.reshape(-1)[::4] = 1
    alone = np.stack([np.roll(row, i) for i, row in enumerate(alone)])  # one of four in every release
    together = np.zeros((40, 4))
    together[:10] = 1
    narrow, wide = (rate_interval(values) or (NAN, NAN) for values in (alone, together))
    assert wide[1] - wide[0] > 1.8 * (narrow[1] - narrow[0])
    assert all(low < 0.25 < high for low, high in (narrow, wide))


def test_independent_examples_have_agresti_and_coulls_interval() -> None:
    """20 of 40, of a release each: 2.023 in the place of 1.96, since 40 releases tell their spread."""
    t = float(stats.t.ppf(0.975, 39))
    half = t * math.sqrt(0.25 / (40 + t**2))
    found = np.array([0.0, 1.0] * 20)
    low, high = rate_interval(found) or (NAN, NAN)
    assert (low, high) == (pytest.approx(0.5 - half, abs=5e-3), pytest.approx(0.5 + half, abs=5e-3))


@pytest.mark.parametrize("count", [5, 20, 500])
def test_nothing_and_all_have_an_interval(count: int) -> None:
    """No more than 3 in n at 500 releases of one example, the rule of three; t for z makes it a little wider."""
    low, high = rate_interval(np.zeros((count, 1))) or (NAN, NAN)
    assert low == 0
    assert 3 / count < high <= 1
    if count == 500:
        assert high < 5 / count
    assert rate_interval(np.ones((count, 1))) == (pytest.approx(1 - high), 1)


def test_a_rate_lies_in_its_interval_and_that_in_0_to_1() -> None:
    random = np.random.default_rng(3)
    for count in (2, 3, 10, 40):
        for _ in range(50):
            values = (random.random((count, 4)) < random.random()).astype(float)
            low, high = rate_interval(values) or (NAN, NAN)
            assert 0 <= low <= values.mean() <= high <= 1


def test_one_release_has_no_rate_and_what_is_not_finite_is_refused() -> None:
    assert rate_interval(np.ones((1, 50))) is None
    with pytest.raises(DataError, match="nan"):
        rate_interval([[1.0], [NAN]])
    values = np.array([[0.0, 0.5], [1.0, 0.25]])
    assert rate_interval(torch.from_numpy(values)) == rate_interval(values)


# --- Student's intervals over seeds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], (-0.484138, 4.484138)),  # 2 +- 4.302653 / sqrt(3)
        ([0.0, 1.0], (-5.853102, 6.853102)),  # 0.5 +- 12.706205 / 2
        ([5.0, 5.0, 5.0, 5.0], (5.0, 5.0)),
    ],
)
def test_known_answers(values: list[float], expected: tuple[float, float]) -> None:
    assert interval(values) == pytest.approx(expected, abs=1e-6)


def test_one_value_or_none_has_no_interval() -> None:
    assert interval([0.7]) is None
    assert interval([]) is None


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30).filter(lambda x: np.std(x) > 1e-3), st.floats(0.5, 0.999)
)
def test_it_is_scipys(values: list[float], level: float) -> None:
    expected = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert interval(values, level) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_it_covers_the_mean_as_often_as_it_says() -> None:
    """2,000 samples of 4: 95 % of the intervals, up to five deviations of that share; those of 80 % do not pass."""
    rng = np.random.default_rng(3)
    samples = rng.normal(7.0, 2.0, (2000, 4))

    def share(level: float) -> float:
        result = [interval(row.tolist(), level) for row in samples]
        return sum(low < 7.0 < high for low, high in filter(None, result)) / len(samples)

    slack = 5 * (0.95 * 0.05 / 2000) ** 0.5
    assert abs(share(0.95) - 0.95) < slack
    assert abs(share(0.80) - 0.95) > slack


def test_equal_numbers_have_an_interval_that_is_not_empty() -> None:
    """Rounding makes their variance tiny instead of zero; and a number beyond the end counts as the end."""
    for table, most in ((np.full((20, 1), np.log1p(5)), math.log(200)), (np.tile([1.0, 1.0, 0.0], (20, 1)), 1.0)):
        ends = bounded_interval(table, most)
        assert ends is not None
        assert ends[0] < table.mean() - 0.05
        assert ends[1] > table.mean() + 0.05
    beyond = bounded_interval(np.full((32, 8), math.log(10)), math.log(9))
    assert beyond is not None
    assert beyond[1] == pytest.approx(math.log(9))
