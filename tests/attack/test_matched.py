"""Matched filter: exact where theory is, wins where it should, and sees nothing where there is nothing to see."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from equipoise.attack import limiter as limit
from equipoise.attack.attack import Hooks, Knowledge
from equipoise.attack.limiter import LIMITS, Limiter
from equipoise.attack.matched import MATCHED, Bench, Effort, Filter, Products, matched
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.errors import DataError
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import NO_PROTECTION, Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.statistics import ranks

SHAPE, CLASSES, CANDIDATES = (1, 6, 6), 4, 20
LITTLE = Effort(pairs=2, anchors=4, around=16, tuning=16, trials=32, companions=2, nulls=8)


def images_of(labels: Tensor, seed: int) -> Tensor:
    """Images with something of their class and much of their own."""
    patterns = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(77))
    own = torch.rand(*labels.shape, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return 0.3 * patterns[labels] + 0.7 * own


LABELS = torch.arange(320) % CLASSES
PUBLIC = (images_of(LABELS, 9), LABELS)


def found_by(scores: Tensor) -> float:
    """How often the truth, which comes first, has the best score."""
    return float(ranks(scores).first.mean())


@dataclass(frozen=True)
class Case:
    server: Server
    view: View
    candidates: Tensor  # [Q, ...]
    choices: Tensor  # [N, E, K]: the truth comes first

    def scores(self, **options: Any) -> Tensor:
        return matched(self.server, self.view, PUBLIC, self.candidates, self.choices, **{"effort": LITTLE, **options})

    def identified(self, **options: Any) -> float:
        result = self.scores(**options)
        assert torch.isfinite(result).all()
        return found_by(result)

    def chance(self, deviations: float = 4.0) -> float:
        """What guessing does not exceed."""
        p, n = 1 / CANDIDATES, self.choices[..., 0].numel()
        return p + deviations * math.sqrt(p * (1 - p) / n)


def case(
    batch: int,
    count: int,
    name: str = "none",
    scale: float = 0.0,
    labels: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Releases whose every example is hidden among 19 decoys of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = MLP(SHAPE, CLASSES, hidden=8).to(dtype)
    kind, local = get_mechanism(name), torch.Generator().manual_seed(6)
    server = Server(Batched(model), SHAPE, CLASSES, batch, protection=Protection(kind, scale, steps=3))
    labels = torch.arange(batch).expand(count, -1) % CLASSES if labels is None else labels
    weights = server.batched.layout.flatten(model.state_dict())
    numbers = torch.rand(count, len(weights), generator=local)
    drawn = standard_noise(numbers, kind.noise).to(dtype) if kind.distorts else None
    candidates = images_of(labels.unsqueeze(2).expand(-1, -1, CANDIDATES), 8).to(dtype)
    released = respond(server, weights, candidates[:, :, 0], labels, drawn)
    choices = torch.arange(labels.numel() * CANDIDATES).view(*labels.shape, CANDIDATES)
    return Case(server, View(weights.expand(count, -1), released, labels), candidates.flatten(0, 2), choices)


# --- known answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scale"), [("none", 0.0), ("gs-static", 1e-3), ("ls-static", 1e-3), ("pl-identical", 0.02)]
)
def test_candidates_are_told_apart_where_little_hides_them(name: str, scale: float) -> None:
    assert case(4, 15, name, scale).identified() > 0.95


@pytest.mark.parametrize("name", ["pl-learn", "ls-learn", "gs-learn"])
def test_a_learned_distortion_does_not_stop_the_filter(name: str) -> None:
    assert case(4, 15, name, 0.2 if name == "pl-learn" else 2e-3).identified() > 0.85


@pytest.mark.parametrize("name", ["gs-static", "ls-static", "pl-identical", "pl-learn", "gs-learn"])
def test_large_noise_leaves_chance(name: str) -> None:
    known = case(4, 40, name, 1000.0)
    assert known.identified() < known.chance()


@pytest.mark.parametrize("around", [4, 8, 16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_image_without_noise_is_identified(around: int, dtype: torch.dtype) -> None:
    """Nothing varies here: no companions, no noise. The covariance is zero, and the scores must still be numbers."""
    assert case(1, 10, dtype=dtype).identified(effort=replace(LITTLE, around=around)) == 1.0


def test_more_noise_identifies_less() -> None:
    result = [case(4, 25, "gs-static", scale).identified() for scale in (1e-3, 0.01, 0.1)]
    assert result == sorted(result, reverse=True)
    assert result[0] - result[2] > 0.7


# --- under the release's own noise ---------------------------------------------------------------------------


@pytest.mark.parametrize("condition_on", ["release", "best"])
def test_responses_under_the_noise_of_the_release_win_too(condition_on: str) -> None:
    assert case(4, 8, "pl-learn", 0.1).identified(condition_on=condition_on) > 0.85


@pytest.mark.parametrize("condition_on", ["release", "best"])
def test_they_lose_where_nothing_is_to_be_seen(condition_on: str) -> None:
    known = case(4, 8, "gs-learn", 1000.0)
    assert known.identified(condition_on=condition_on) < known.chance()


@pytest.mark.parametrize("name", ["none", "gs-static", "pl-identical"])
def test_without_a_learner_the_kind_of_response_makes_no_difference(name: str) -> None:
    known = case(4, 5, name, 0.01)
    plain = known.scores(condition_on="nothing")
    assert torch.equal(known.scores(condition_on="release"), plain)
    assert torch.equal(known.scores(condition_on="best"), plain)


def test_few_public_images_of_a_label_suffice() -> None:
    """Fewer than are asked for as anchors and for tuning together: none are left over for the nulls."""
    known = case(4, 4, "pl-learn", 0.05)
    few = PUBLIC[0][:64], LABELS[:64]
    result = matched(known.server, known.view, few, known.candidates, known.choices, LITTLE, condition_on="release")
    assert torch.isfinite(result).all()
    assert found_by(result) > 0.5


# --- theory --------------------------------------------------------------------------------------------------


def test_the_score_is_the_log_likelihood_under_gaussian_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image in static Gaussian noise: the response is known exactly, and so is the best statistic."""
    monkeypatch.setattr(limit, "LIMITS", (math.inf,))
    scale, known = 0.04, case(1, 60, "gs-static", 0.04)
    result = known.scores(effort=replace(LITTLE, anchors=8, around=256))[:, 0].double()
    quiet, weights = replace(known.server, protection=NO_PROTECTION), known.view.previous[0]
    labels = known.view.labels
    assert labels is not None
    each = labels.repeat_interleave(CANDIDATES, dim=0)
    means = (respond(quiet, weights, known.candidates.unsqueeze(1), each, None) - weights).double()
    means = means.view(60, CANDIDATES, -1)
    update = known.view.update.double().unsqueeze(1)
    exact = ((update * means).sum(2) - means.square().sum(2) / 2) / scale**2
    result, exact = (score - score.mean(1, keepdim=True) for score in (result, exact))
    assert 0.2 < found_by(exact) < 0.95, "neither certain nor hopeless"
    slope = float((result * exact).sum() / exact.square().sum())
    assert slope == pytest.approx(1, abs=0.05)
    assert float((result - exact).square().mean() / exact.square().mean()) < 0.02
    assert float((result.argmax(1) == exact.argmax(1)).double().mean()) > 0.9
    assert found_by(result) == pytest.approx(found_by(exact), abs=0.05)


def random_filter(noisy: bool) -> tuple[Filter, Tensor, Tensor, Tensor]:
    """A filter of 5 directions in 9 dimensions, updates, responses, and the scale of the coordinates."""
    local = torch.Generator().manual_seed(3)
    spread, updates, means = (
        torch.randn(shape, dtype=torch.float64, generator=local) for shape in ((5, 9), (4, 9), (4, 6, 9))
    )
    half = torch.randn(40, 9, dtype=torch.float64, generator=local) * torch.linspace(0.3, 2, 9) if noisy else None
    limiter = Limiter(half, spread[0])
    return Filter(spread, limiter, 3), updates, means, spread


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("floor", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("own_responses", [False, True])
def test_the_likelihood_is_that_of_a_gaussian(noisy: bool, floor: float, own_responses: bool) -> None:
    filter, updates, means, spread = random_filter(noisy)
    means = means if own_responses else means[:1]
    actual = filter.likelihood(filter.products(updates, means), 0, floor)
    sd = filter.limiter.sd
    assert (float((sd - 1).abs().max()) > 0.1) == noisy
    scaled = spread / sd
    variance = filter.limiter.limits[0][2] + floor * float(scaled.square().mean())
    covariance = scaled.T @ scaled / 3 + variance * torch.eye(9, dtype=torch.float64)
    covariance = sd.unsqueeze(1) * covariance * sd  # in the units of the updates
    expected = torch.tensor(
        [
            [multivariate_normal(mean.numpy(), covariance.numpy()).logpdf(update.numpy()) for mean in rows]
            for update, rows in zip(updates, means.expand(4, -1, -1), strict=True)
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(actual - actual[:, :1], expected - expected[:, :1], rtol=1e-6, atol=1e-6)


def test_products_of_some_updates_join_to_those_of_all() -> None:
    filter, updates, means, _ = random_filter(noisy=True)
    whole = filter.products(updates, means)
    joined = Products.joined([filter.products(updates[rows], means[rows]) for rows in (slice(1), slice(1, 4))])
    for which in range(len(LIMITS)):
        torch.testing.assert_close(filter.likelihood(joined, which, 0.01), filter.likelihood(whole, which, 0.01))


def test_the_limit_is_tuned_to_the_family_of_the_noise() -> None:
    """Under Laplace noise of moderate size the bench cuts updates off."""
    known = case(4, 1, "ls-static", 0.01)
    assert known.view.labels is not None
    effort = Effort(pairs=4, anchors=4, around=32, tuning=32, trials=256)
    bench = Bench(known.server, known.view.previous[0], PUBLIC, known.view.labels[0], 0, effort, 0)
    bench.scores(known.view.update, known.candidates[:CANDIDATES], "nothing")
    assert bench.chosen["condition_on"] == "nothing"
    assert bench.chosen["limit"] > 0


# --- order and repetition ------------------------------------------------------------------------------------


def test_permuted_labels_give_permuted_scores() -> None:
    known = case(4, 6, "gs-static", 3e-3)
    expected = known.scores()
    assert known.view.labels is not None
    order = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i)) for i in range(6)])
    rows = torch.arange(6).unsqueeze(1)
    turned = replace(
        known,
        view=replace(known.view, labels=known.view.labels.gather(1, order)),
        choices=known.choices[rows, order],
    )
    torch.testing.assert_close(turned.scores(), expected[rows, order], rtol=1e-4, atol=1e-3)


def test_repeated_labels_and_several_label_sets_win_too() -> None:
    labels = torch.tensor([[2, 0, 2, 1], [1, 2, 0, 2], [3, 3, 3, 0], [0, 1, 2, 3]]).repeat(4, 1)
    assert case(4, 16, "gs-static", 1e-3, labels).identified() > 0.9


def test_the_same_seed_gives_the_same_bits() -> None:
    known, told = case(4, 4, "pl-learn", 0.1), list[int]()
    result = known.scores(seed=2, on_release=told.append)
    assert torch.equal(known.scores(seed=2), result)
    assert not torch.equal(known.scores(seed=3), result)
    assert sum(told) > 0


def test_the_options_of_an_audit_reach_the_filter() -> None:
    """The scores are those of the same effort, and each part of it counts."""
    known = case(4, 1, "pl-learn", 0.1)
    few = replace(known, choices=known.choices[..., :3])
    effort = Effort(pairs=2, anchors=2, around=4, tuning=3, trials=3, companions=2, nulls=3)
    knowledge = Knowledge(PUBLIC, known.candidates, choices=few.choices)
    options = {**asdict(effort), "condition_on": "release", "seed": 3}
    result = MATCHED.run(known.server, known.view, knowledge, options, Hooks())
    assert torch.equal(result.values, few.scores(effort=effort, condition_on="release", seed=3))
    less = {"anchors": 1, "around": 5, "companions": 1, "nulls": 2, "pairs": 1, "condition_on": "nothing"}
    for change in ({name: value} for name, value in less.items()):
        other = MATCHED.run(known.server, known.view, knowledge, {**options, **change}, Hooks())
        assert not torch.equal(other.values, result.values), change


def test_a_label_without_public_images_is_refused() -> None:
    known, kept = case(4, 2), LABELS != 1
    with pytest.raises(DataError, match="No public input has label 1"):
        matched(known.server, known.view, (PUBLIC[0][kept], LABELS[kept]), known.candidates, known.choices)
    with pytest.raises(DataError, match="granted the labels"):
        replace(known, view=replace(known.view, labels=None)).scores()
