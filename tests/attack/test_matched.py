"""Matched filter: wins where it should, and sees nothing where there is nothing to see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.attack.attack import Hooks
from equipoise.mechanism.protection import NO_PROTECTION
from tests.attack.candidates import LABELS, PUBLIC, case, found_by

# --- known answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scale"), [("none", 0.0), ("gs-static", 1e-3), ("ls-static", 1e-3), ("pl-identical", 0.02)]
)
def test_candidates_are_told_apart_where_little_hides_them(name: str, scale: float) -> None:
    assert case(4, 15, name, scale).identified() > 0.95


@pytest.mark.parametrize("name", ["pl-learn", "ls-learn", "gs-learn"])
def test_a_learned_distortion_does_not_stop_the_filter(name: str) -> None:
    assert case(4, 15, name, 0.2 if name == "pl-learn" else 2e-3).identified() > 0.85


SHAPED = [("pruning", 3.0, 0.85), ("pruning", 20.0, 0.5), ("pruning", 100.0, 0.35), ("outpost", 1e-2, 0.7)]


@pytest.mark.parametrize(("name", "scale", "least"), SHAPED)
def test_an_update_that_is_shaped_is_attacked_by_what_it_shows(name: str, scale: float, least: float) -> None:
    """Chance is 0.05. Without a distortion the very same examples are told apart, as the control shows."""
    assert case(4, 15, name, scale).identified() > least
    assert case(4, 15).identified() > 0.95


@pytest.mark.parametrize("scale", [20.0, 100.0])
def test_a_filter_that_takes_pruning_for_nothing_finds_less(scale: float) -> None:
    """Whoever knows that coordinates are withheld does not take them for zeros."""
    known = case(4, 15, "pruning", scale)
    blind = replace(known, server=replace(known.server, protection=NO_PROTECTION))
    assert known.identified() > blind.identified() + 0.1


def test_the_noise_of_outpost_hides_where_it_is_large() -> None:
    known = case(4, 40, "outpost", 1000.0)
    assert known.identified() < known.chance()


@pytest.mark.parametrize("name", ["gs-static", "ls-static", "pl-identical", "pl-learn", "gs-learn"])
def test_large_noise_leaves_chance(name: str) -> None:
    known = case(4, 40, name, 1000.0)
    assert known.identified() < known.chance()


@pytest.mark.parametrize("around", [4, 8, 16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_image_without_noise_is_identified(around: int, dtype: torch.dtype) -> None:
    """Nothing varies here: no companions, no noise. The covariance is zero, and the scores must still be numbers."""
    public = PUBLIC[0].to(dtype), LABELS
    known = replace(case(1, 10, dtype=dtype), public=public)
    assert known.identified(around=around) == 1.0


def test_more_noise_identifies_less() -> None:
    result = [case(4, 25, "gs-static", scale).identified() for scale in (1e-3, 0.01, 0.1)]
    assert result == sorted(result, reverse=True)
    assert result[0] - result[2] > 0.7


# --- under the release's own noise ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("condition_on", ["release", "best"])
def test_responses_under_the_noise_of_the_release_win_too(condition_on: str) -> None:
    assert case(4, 8, "pl-learn", 0.1).identified(condition_on=condition_on) > 0.85


@pytest.mark.slow
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


@pytest.mark.slow
def test_few_public_images_of_a_label_suffice() -> None:
    """Fewer than are asked for as anchors and for tuning together: none are left over for the nulls."""
    known = replace(case(4, 4, "pl-learn", 0.05), public=(PUBLIC[0][:64], LABELS[:64]))
    assert known.identified(condition_on="release") > 0.5


# --- several local steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 1e-3), ("pl-learn", 0.1)])
def test_examples_of_every_local_step_are_found(name: str, scale: float) -> None:
    """The second step has other labels than the first, and starts where that ended."""
    labels = torch.tensor([[0, 1, 2, 3]]).expand(12, -1)
    scores = case(2, 12, name, scale, labels, local_steps=2).scores()
    assert found_by(scores[:, :2]) > 0.9
    assert found_by(scores[:, 2:]) > 0.9


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


def test_scores_stand_in_the_order_of_the_choices() -> None:
    known = case(4, 4, "gs-static", 3e-3)
    order = torch.rand(known.choices.shape, generator=torch.Generator().manual_seed(1)).argsort(2)
    turned = replace(known, choices=known.choices.gather(2, order))
    assert torch.equal(turned.scores(), known.scores().gather(2, order))


def test_repeated_labels_and_several_label_sets_win_too() -> None:
    labels = torch.tensor([[2, 0, 2, 1], [1, 2, 0, 2], [3, 3, 3, 0], [0, 1, 2, 3]]).repeat(4, 1)
    assert case(4, 16, "gs-static", 1e-3, labels).identified() > 0.9


def test_the_same_seed_gives_the_same_bits() -> None:
    known, told = case(4, 4, "pl-learn", 0.1), list[int]()
    result = known.scores(Hooks(step=told.append), seed=2)
    assert torch.equal(known.scores(seed=2), result)
    assert not torch.equal(known.scores(seed=3), result)
    assert sum(told) > 0
