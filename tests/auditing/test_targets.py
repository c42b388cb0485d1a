"""What is attacked: whose images, in which batches, and what they are to be told apart from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.auditing.options import AuditOptions
from equipoise.auditing.targets import Materials, build_targets, given_targets
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.errors import ConfigError, DataError
from tests.auditing.small import QUICK, SHAPE, materials, part, server_of, targets_of

# --- images, by what they serve for --------------------------------------------------------------------------


def test_targets_are_public_unless_private(few: Dataset) -> None:
    for private, targets in ((False, few.public_targets), (True, few.train)):
        actual = Materials.of(few, private)
        for pair, expected in (
            (actual.attack, few.public_attack), (actual.candidates, few.public_candidates), (actual.targets, targets),
        ):  # fmt: skip
            assert pair is not None
            assert torch.equal(pair[0], expected.images)
            assert torch.equal(pair[1], expected.labels)
        assert torch.equal(actual.to_pixels(few.train.images), few.pixels(few.train.images))


def test_data_without_public_images_have_no_targets(few: Dataset) -> None:
    parts = ((part.images, part.labels) for part in (few.train, few.test, few.validation))
    with pytest.raises(DataError, match="no public images"):
        Materials.of(from_tensors(*parts, classes=few.classes))


@pytest.mark.parametrize("public", [True, False])
def test_images_move_to_a_precision_and_labels_stay_whole_numbers(public: bool) -> None:
    given = materials() if public else replace(materials(), attack=None)
    result = given.to(torch.device("cpu"), torch.float64)
    assert (result.attack is None) == (not public)
    for pair in (result.attack, result.candidates, result.targets):
        if pair is not None:
            assert (pair[0].dtype, pair[1].dtype) == (torch.float64, torch.int64)


# --- targets of a federation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_targets_have_labels_impostors_decoys_and_others(batch: int) -> None:
    options = replace(QUICK, releases=30, label_sets=3)
    server, _ = server_of(batch=batch)
    result, offset = build_targets(materials(), server, options), len(materials().candidates[0])
    assert torch.equal(result.pool_labels[result.truth], result.labels)
    assert torch.equal(result.pool_labels[result.impostor], result.labels)
    assert bool((result.truth >= offset).all())
    assert bool((result.impostor >= offset).all())
    assert not (result.impostor == result.truth).any()
    assert result.decoys.shape == (30, batch, 19)
    assert torch.equal(result.pool_labels[result.decoys], result.labels.unsqueeze(2).expand(-1, -1, 19))
    assert bool((result.decoys < offset).all()), "decoys come from the candidates, truths from the targets"
    assert all(len(set(row)) == 19 for row in result.decoys.flatten(0, 1).tolist())
    assert result.others.shape == (30, 6)
    for row in range(30):
        assert not set(result.others[row].tolist()) & set(result.truth[row].tolist())
        assert set(result.pool_labels[result.others[row]].tolist()) <= set(result.labels[row].tolist())
        assert len(set(result.truth[row].tolist())) == batch
    assert torch.equal(result.images, result.pool[result.truth])
    assert len({tuple(row) for row in result.labels.tolist()}) == result.label_sets


def test_label_sets_are_distinct_labels_where_there_are_enough() -> None:
    server, _ = server_of(batch=3)
    result = build_targets(materials(), server, replace(QUICK, label_sets=5))
    assert all(len(set(row)) == 3 for row in result.labels.tolist())
    assert torch.equal(result.labels, result.labels.sort(1).values)
    assert result.label_sets > 1


def test_impostors_are_outside_the_batch_even_where_labels_repeat() -> None:
    """Four examples of two labels: an impostor may be neither the example in its place nor another of the batch."""
    server, _ = server_of(batch=4)
    given = replace(materials(2), targets=part(40, 3, 2))  # 20 images of each label
    result = build_targets(given, server, replace(QUICK, releases=60))
    for truth, impostor in zip(result.truth.tolist(), result.impostor.tolist(), strict=True):
        assert not set(truth) & set(impostor)


@pytest.mark.parametrize("batch", [1, 4])
def test_every_target_image_is_used_before_any_is_used_again(batch: int) -> None:
    """40 images of each label: releases * examples of a label, dealt like cards."""
    server, _ = server_of(batch=batch)
    for releases in (10, 40, 100):
        result = build_targets(materials(), server, replace(QUICK, releases=releases, label_sets=3))
        images, uses = result.truth.unique(return_counts=True)
        labels = result.pool_labels[images]
        for label in result.labels.unique().tolist():
            asked, mine = int((result.labels == label).sum()), uses[labels == label]
            assert len(mine) == min(asked, 40), "as many different images as there can be"
            assert int(mine.max()) - int(mine.min()) <= 1
            assert int(mine.max()) == -(-asked // 40)


def test_no_image_is_twice_in_a_batch_of_equal_labels() -> None:
    """Labels repeat within a batch where there are few; the images need not."""
    server, _ = server_of(batch=4)
    given = replace(materials(2), targets=part(14, 3, 2))  # 7 images of each label
    result = build_targets(given, server, replace(QUICK, releases=50, label_sets=4))
    for row in result.truth.tolist():
        assert len(set(row)) == 4


def test_fewer_candidates_than_asked_for_are_all_decoys() -> None:
    server, _ = server_of()
    result = build_targets(materials(), server, replace(QUICK, candidates=1000))
    assert result.decoys.shape[2] == 60


@pytest.mark.parametrize("missing", [1, 3])
def test_a_label_without_candidates_is_refused(missing: int) -> None:
    images, labels = materials().candidates
    given = replace(materials(), candidates=(images[labels != missing], labels[labels != missing]))
    server, _ = server_of()
    with pytest.raises(ConfigError, match="no candidate images"):
        build_targets(given, server, QUICK)


def test_targets_follow_from_the_seed() -> None:
    server, _ = server_of()
    one, two = (build_targets(materials(), server, replace(QUICK, seed=5)) for _ in range(2))
    other = build_targets(materials(), server, replace(QUICK, seed=6))
    for name in ("truth", "labels", "impostor", "decoys", "others"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.truth, other.truth)


# --- what the attacker knows of them -------------------------------------------------------------------------


def test_the_truth_stands_first_among_the_choices_and_an_impostor_second() -> None:
    result, public = targets_of(), materials().attack
    known = result.knowledge(public)
    assert known.public is public
    assert known.candidates is result.pool
    assert known.candidate_labels is result.pool_labels
    assert known.choices is not None
    assert known.asked is not None
    assert torch.equal(known.choices[..., 0], result.truth)
    assert torch.equal(known.choices[..., 1], result.impostor)
    assert torch.equal(known.choices[..., 2:], result.decoys)
    assert torch.equal(known.asked, torch.cat([result.truth, result.impostor, result.others], dim=1))
    assert result.knowledge(None).public is None


# --- targets around given inputs -----------------------------------------------------------------------------

OPTIONS = AuditOptions(candidates=6, others=5)


def given(public: tuple[Tensor, Tensor] | None, labels: Any = ((0, 1), (2, 2), (1, 3))) -> Any:
    asked = torch.tensor(labels)
    images = torch.rand(*asked.shape, *SHAPE, generator=torch.Generator().manual_seed(5))
    return images, asked, *given_targets(images, asked, public, 0.0, 2.0, OPTIONS)


def test_given_inputs_are_told_apart_from_half_of_the_public_ones() -> None:
    public = part(64, 6)
    images, labels, targets, result = given(public)
    assert torch.equal(targets.images, images)
    assert torch.equal(targets.pool_labels[targets.truth], labels)
    for rows in (targets.impostor.unsqueeze(2), targets.decoys):
        assert torch.equal(targets.pool_labels[rows], labels.unsqueeze(2).expand_as(rows))
    assert targets.decoys.shape == (3, 2, 5), "six candidates, one of which serves as impostor"
    assert targets.others.shape == (3, 5)
    attack, decoys = (result.attack[0].flatten(1), result.candidates[0].flatten(1))
    assert len(attack) == len(decoys) == 32
    assert not (torch.cdist(attack, decoys) == 0).any(), "no image serves twice"
    assert result.attack[1].bincount().tolist() == result.candidates[1].bincount().tolist() == [8] * 4
    assert result.to_pixels(torch.tensor([0.0, 1.0, 2.0])).tolist() == [0, 0.5, 1]
    assert targets.label_sets == 3


def test_no_impostor_is_a_decoy_and_no_other_is_the_truth() -> None:
    """A negative control that is also a decoy ties with itself, and chance looks smaller than it is."""
    _, _, targets, _ = given(part(64, 6))
    assert not (targets.decoys == targets.impostor.unsqueeze(2)).any()
    assert not (targets.decoys == targets.truth.unsqueeze(2)).any()
    assert not (targets.others.unsqueeze(2) == targets.truth.unsqueeze(1)).any()


def test_public_data_may_be_sorted_by_label() -> None:
    """Otherwise one half of them would hold the first labels, and the other the last."""
    images, labels = part(64, 6)
    order = labels.argsort(stable=True)
    _, asked, targets, result = given((images[order], labels[order]))
    assert result.attack[1].bincount().tolist() == result.candidates[1].bincount().tolist() == [8] * 4
    assert torch.equal(targets.pool_labels[targets.impostor], asked)


def test_without_public_inputs_there_is_nothing_to_tell_them_apart_from() -> None:
    images, _, targets, result = given(None)
    assert result.attack is None
    assert torch.equal(targets.images, images)
    assert targets.decoys.shape == (3, 2, 0)
    assert targets.others.shape == (3, 0)


@pytest.mark.parametrize("each", [1, 3])
def test_with_fewer_than_four_public_images_of_a_label_all_serve_the_attacks(each: int) -> None:
    images, labels = part(64, 6)
    kept = (labels != 2) | (labels.eq(2).cumsum(0) <= each)
    _, _, targets, result = given((images[kept], labels[kept]))
    assert torch.equal(result.attack[0], images[kept])
    assert targets.decoys.shape == (3, 2, 0)
    _, _, targets, result = given((images[kept], labels[kept]), labels=((0, 1), (1, 3)))
    assert targets.decoys.shape == (2, 2, 5), "nobody asked for the rare label"
