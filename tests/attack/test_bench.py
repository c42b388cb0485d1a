"""How likely a release is with a candidate in it: exact where theory is, step by step, and shared by attacks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attack import bench as module
from equipoise.attack import limiter as limit
from equipoise.attack.attack import Attack, Hooks
from equipoise.attack.bench import FLOORS, Bench, Likelihoods, Records, likelihoods, pairs_of
from equipoise.attack.filter import Filter, Products
from equipoise.attack.matched import MATCHED
from equipoise.attack.membership import MEMBERSHIP
from equipoise.errors import DataError
from tests.attack.candidates import CANDIDATES, CLASSES, LABELS, LITTLE, PUBLIC, Case, case, found_by


def bench_of(known: Case, position: int = 0, **options: Any) -> Bench:
    assert known.view.labels is not None
    given = {**LITTLE, **options}
    return Bench(known.server, known.view.previous[0], PUBLIC, known.view.labels[0], position, given)


def records(known: Case, rows: Any) -> Records:
    return Records(known.candidates[rows], known.candidate_labels[rows])


def all_of(known: Case, *attacks: Attack, hooks: Hooks | None = None) -> list[Likelihoods]:
    """With what one attack is granted, or with all that is known."""
    knowledge = known.knowledge()
    for attack in attacks:
        knowledge = attack.granted(knowledge)
    return likelihoods(known.server, known.view, knowledge, LITTLE, hooks or Hooks())


# --- theory --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_score_is_the_log_likelihood_under_gaussian_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image in static Gaussian noise: the response is known exactly, and so is the best statistic."""
    monkeypatch.setattr(limit, "LIMITS", (math.inf,))
    scale, known = 0.04, case(1, 60, "gs-static", 0.04)
    result = known.scores(anchors=8, around=256)[:, 0].double()
    means = known.responses(known.candidates, known.candidate_labels).double().view(60, CANDIDATES, -1)
    update = known.view.update.double().unsqueeze(1)
    exact = ((update * means).sum(2) - means.square().sum(2) / 2) / scale**2
    result, exact = (score - score.mean(1, keepdim=True) for score in (result, exact))
    assert 0.2 < found_by(exact) < 0.95, "neither certain nor hopeless"
    slope = float((result * exact).sum() / exact.square().sum())
    assert slope == pytest.approx(1, abs=0.05)
    assert float((result - exact).square().mean() / exact.square().mean()) < 0.02
    assert float((result.argmax(1) == exact.argmax(1)).double().mean()) > 0.9
    assert found_by(result) == pytest.approx(found_by(exact), abs=0.05)


def test_the_limit_is_tuned_to_the_family_of_the_noise() -> None:
    """Under Laplace noise of moderate size the bench cuts updates off."""
    known = case(4, 1, "ls-static", 0.01)
    bench = bench_of(known, pairs=4, around=32, tuning=32, trials=256)
    bench.scores(known.view.update, records(known, slice(CANDIDATES)))
    assert bench.chosen.condition_on == "nothing"
    assert bench.chosen.limit > 0


@pytest.mark.parametrize("name", ["none", "gs-static", "gs-learn"])
def test_updates_are_centred_on_all_companions_and_not_on_the_few_that_responses_share(name: str) -> None:
    """Those few would shift every release of a group by the same amount, which no covariance knows of."""
    known = case(4, 1, name, 0.0 if name == "none" else 1e-3)
    bench = bench_of(known, pairs=1, around=128)
    bench.scores(known.view.update, records(known, slice(CANDIDATES)))
    references = bench.known(bench.own[-bench.options["tuning"] :])
    truly = bench._simulated("fresh", references, 800)[0].mean(0)
    assert float((truly - bench.centre).norm()) < 0.5 * float((truly - bench.zero).norm())


@pytest.mark.parametrize(
    ("name", "steps", "pairs"), [("none", 1, 1), ("pl-identical", 1, 1), ("pl-learn", 1, 8), ("pl-identical", 2, 8)]
)
def test_one_pair_is_enough_only_where_an_update_is_a_mean_over_examples(name: str, steps: int, pairs: int) -> None:
    assert pairs_of(replace(case(4, 1, name).server, local_steps=steps), 8) == pairs


# --- responses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 2])
def test_a_response_is_the_mean_update_with_the_image_at_its_place(position: int) -> None:
    """Without noise a batch's update is the mean over its examples: two images at one place differ by their own."""
    known = case(4, 1)
    assert known.view.labels is not None
    images = known.choices[0, position, :2]
    result = bench_of(known, position=position).responses(records(known, images))
    own = known.responses(known.candidates[images], known.candidate_labels[images]) / 4
    torch.testing.assert_close(result[0] - result[1], own[0] - own[1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("count", [1, 7, 20])
def test_what_an_image_scores_does_not_depend_on_the_others(count: int) -> None:
    known = case(4, 3, "gs-static", 0.01)
    alone, references = bench_of(known).scores(known.view.update, records(known, slice(count)))
    beside, same = bench_of(known).scores(known.view.update, records(known, slice(CANDIDATES)))
    torch.testing.assert_close(alone, beside[:, :count], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(references, same, rtol=1e-5, atol=1e-5)
    assert references.shape == (3, LITTLE["tuning"])


def test_references_are_scored_as_candidates_are() -> None:
    """A public reference among the candidates gets what it gets as a reference."""
    known = case(4, 3, "gs-static", 0.01)
    bench = bench_of(known)
    images = bench.known(bench.own[-LITTLE["tuning"] :])
    scores, references = bench.scores(known.view.update, images)
    torch.testing.assert_close(scores, references, rtol=1e-4, atol=1e-3)


def test_anchors_and_references_are_of_the_label() -> None:
    bench = bench_of(case(4, 1), position=3)
    assert set(LABELS[bench.own].tolist()) == {3}
    assert len(bench.own) == len(LABELS) // CLASSES


def test_a_setting_that_gives_no_numbers_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truth whose score is NaN has the worst rank, not the best."""
    known = case(4, 1, "gs-static", 0.01)
    likelihood = Filter.likelihood

    def broken(self: Filter, products: Products, which: int, floor: float) -> Tensor:
        score = likelihood(self, products, which, floor)
        return score * math.nan if floor != FLOORS[2] else score

    monkeypatch.setattr(Filter, "likelihood", broken)
    bench = bench_of(known)
    bench.scores(known.view.update, records(known, slice(CANDIDATES)))
    assert bench.chosen.floor == FLOORS[2]


def test_releases_without_a_candidate_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known, told = case(4, 1, "pl-learn", 0.1), list[str]()
    simulated = Bench._simulated

    def counting(self: Bench, purpose: str, images: Tensor, count: int) -> tuple[Tensor, Tensor]:
        told.append(purpose)
        return simulated(self, purpose, images, count)

    monkeypatch.setattr(Bench, "_simulated", counting)
    monkeypatch.setattr(module, "AT_ONCE", 4)
    bench_of(known, condition_on="release").scores(known.view.update, records(known, slice(9)))
    assert sorted(told) == ["nulls", "trials"]


# --- groups, steps and labels --------------------------------------------------------------------------------


def test_there_is_a_table_for_every_group_and_label() -> None:
    labels = torch.tensor([[0, 1, 2, 3], [2, 0, 2, 1], [3, 2, 1, 0]])
    result = all_of(case(4, 3, labels=labels))
    seen = {(tuple(part.rows.tolist()), part.label) for part in result}
    assert seen == {((0, 2), 0), ((0, 2), 1), ((0, 2), 2), ((0, 2), 3), ((1,), 0), ((1,), 1), ((1,), 2)}
    for part in result:
        assert torch.equal(part.place, labels[part.rows] == part.label)
        assert part.values.shape == (len(part.rows), len(part.candidates))
        assert part.candidates.tolist() == sorted(set(part.candidates.tolist()))


def test_every_local_step_has_tables_of_its_own() -> None:
    labels = torch.tensor([[0, 1, 1, 2]]).expand(3, -1)
    result = all_of(case(2, 3, labels=labels, local_steps=2))
    places = {(part.label, tuple(part.place[0].tolist())) for part in result}
    assert places == {
        (0, (True, False, False, False)), (1, (False, True, False, False)),
        (1, (False, False, True, False)), (2, (False, False, False, True)),
    }  # fmt: skip


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 1, 1, 2], [2, 2, 2, 2]])
def test_a_candidate_is_simulated_in_its_own_step(labels: list[int]) -> None:
    """The same label in another step is another place: there the candidate meets other weights."""
    known = case(2, 2, "gs-static", 1e-3, torch.tensor([labels] * 2), local_steps=2, eta=1.0)
    for part in all_of(known):
        (position, *_) = part.place[0].nonzero().flatten().tolist()
        expected, references = bench_of(known, position=position).scores(
            known.view.update, records(known, part.candidates)
        )
        assert torch.equal(part.values, expected)
        assert torch.equal(part.references, references)
        other = (position + 2) % 4
        if labels[other] == part.label:
            moved, _ = bench_of(known, position=other).scores(known.view.update, records(known, part.candidates))
            assert float((moved - expected).abs().max()) > 1


def test_candidates_are_the_choices_of_the_place_and_those_asked_about() -> None:
    known = case(4, 2)
    for attacks in ([MATCHED], [MEMBERSHIP], []):
        for part in all_of(known, *attacks):
            expected: set[int] = set()
            if attacks != [MEMBERSHIP]:
                expected |= set(known.choices[part.rows][part.place].flatten().tolist())
            if attacks != [MATCHED]:
                asked = known.asked.flatten()
                expected |= set(asked[known.candidate_labels[asked] == part.label].tolist())
            assert set(part.candidates.tolist()) == expected


def test_a_label_that_nobody_asks_about_has_no_table() -> None:
    """Labels may have been inferred, and wrong: none of the examples in question has label 3."""
    known = case(4, 2)
    kept = known.candidate_labels[known.asked[0]] != 3
    assert [part.label for part in all_of(replace(known, asked=known.asked[:, kept]), MEMBERSHIP)] == [0, 1, 2]


# --- shared by attacks ---------------------------------------------------------------------------------------


def test_whoever_shares_a_memory_finds_all_candidates_in_it() -> None:
    known, told = case(4, 2, "gs-static", 0.01), list[int]()
    hooks = Hooks(step=told.append, memory={"knowledge": known.knowledge()})
    first = all_of(known, MEMBERSHIP, hooks=hooks)
    steps = sum(told)
    assert steps > 0
    assert all_of(known, MATCHED, hooks=hooks) is first
    assert sum(told) == steps, "nothing is simulated again"
    for part, whole in zip(first, all_of(known), strict=True):
        assert torch.equal(part.candidates, whole.candidates)
        assert torch.equal(part.values, whole.values)


def test_without_a_memory_nothing_is_kept() -> None:
    known = case(4, 2)
    assert all_of(known) is not all_of(known)


# --- what is refused -----------------------------------------------------------------------------------------


def test_a_label_without_public_images_is_refused() -> None:
    known, kept = case(4, 2), LABELS != 1
    with pytest.raises(DataError, match="No public input has label 1"):
        all_of(replace(known, public=(PUBLIC[0][kept], LABELS[kept])))
    with pytest.raises(DataError, match="granted the labels"):
        all_of(replace(known, view=replace(known.view, labels=None)))


@pytest.mark.parametrize("part", ["anchors", "around", "companions", "nulls", "pairs"])
def test_each_part_of_the_effort_counts(part: str) -> None:
    known = case(4, 1, "pl-learn", 0.1)
    few = replace(known, choices=known.choices[..., :3])
    effort = {"pairs": 2, "anchors": 2, "around": 4, "tuning": 3, "trials": 3, "companions": 2, "nulls": 3}
    less = {"anchors": 1, "around": 5, "companions": 1, "nulls": 2, "pairs": 1}

    def scores(**change: int) -> Tensor:
        return few.scores(**effort | change, condition_on="release", seed=3)

    assert not torch.equal(scores(**{part: less[part]}), scores())
