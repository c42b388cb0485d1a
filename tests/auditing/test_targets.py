"""What is attacked: whose images, in which batches, and what they are to be told apart from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.auditing.options import AuditOptions
from equipoise.auditing.targets import Materials, Targets, build_targets, given_targets, label_sets, repeats
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.data.splits import Split
from equipoise.errors import DataError
from equipoise.statistics import auc, bootstrap, bootstrap_auc, ranks
from tests.auditing.small import QUICK, SHAPE, materials, part, server_of, targets_of

# --- images, by what they serve for --------------------------------------------------------------------------


def test_targets_are_public_unless_private(few: Dataset) -> None:
    for private, pool in ((False, few.public_pool), (True, few.train)):
        actual = Materials.of(few, private)
        for pair, expected in ((actual.attack, few.public_attack), (actual.pool, pool)):
            assert pair is not None
            assert torch.equal(pair[0], expected.inputs)
            assert torch.equal(pair[1], expected.labels)
        assert torch.equal(actual.to_pixels(few.train.inputs), few.pixels(few.train.inputs))


def test_data_without_public_images_have_no_targets(few: Dataset) -> None:
    parts = ((part.inputs, part.labels) for part in (few.train, few.test, few.validation))
    with pytest.raises(DataError, match="no public images"):
        Materials.of(from_tensors(*parts, classes=few.classes))


@pytest.mark.parametrize("public", [True, False])
def test_images_move_to_a_precision_and_labels_stay_whole_numbers(public: bool) -> None:
    given = materials() if public else replace(materials(), attack=None)
    result = given.to(torch.device("cpu"), torch.float64)
    assert (result.attack is None) == (not public)
    for pair in (result.attack, result.pool):
        if pair is not None:
            assert (pair[0].dtype, pair[1].dtype) == (torch.float64, torch.int64)


# --- targets of a federation ---------------------------------------------------------------------------------


def pool_of(each: int, classes: int = 4) -> Materials:
    """So many images of each label to play with."""
    return replace(materials(classes), pool=part(each * classes, 2, classes))


def check_parts(result: Targets, width: int, others: int) -> None:
    """What holds for all targets, given or not."""
    count, batch = result.labels.shape
    wide = width - 1 + max(Counter(row).most_common(1)[0][1] for row in result.labels.tolist())
    assert result.choices.shape == result.left_out.shape == (count, batch, wide)
    assert torch.equal(result.pool_labels[result.choices], result.labels.unsqueeze(2).expand(-1, -1, wide))
    assert result.asked.shape == result.member.shape == (count, batch + others)
    assert (result.candidates, result.others) == (width, others)
    assert not (result.place == result.impostor).any(), "chance is measured by another image"
    assert not (result.false == result.truth).any()
    for row in range(count):
        inside = set(result.truth[row].tolist())
        asked, member = result.asked[row], result.member[row]
        assert sorted(asked[member].tolist()) == sorted(result.truth[row].tolist())
        assert not set(asked[~member].tolist()) & inside, "no non-member is in the batch"
        assert set(result.pool_labels[asked[~member]].tolist()) <= set(result.labels[row].tolist())
        counted = result.counted(result.choices)
        assert torch.equal(counted.gather(2, result.column(result.place).unsqueeze(2)).squeeze(2), result.truth)
        assert torch.equal(counted.gather(2, result.column(result.impostor).unsqueeze(2)).squeeze(2), result.false)
        for image, choices in zip(result.truth[row].tolist(), counted[row].tolist(), strict=True):
            assert len(set(choices)) == len(choices) == width
            assert set(choices) & inside == {image}, "of the batch, the image alone counts at its place"
        for label in result.labels[row].unique():
            (one,) = {tuple(choices) for choices in result.choices[row][result.labels[row] == label].tolist()}
            assert inside & set(one) == set(result.truth[row][result.labels[row] == label].tolist())


@pytest.mark.parametrize("batch", [1, 3, 4, 6])
def test_every_image_is_among_decoys_and_no_other_of_the_batch_is_one(batch: int) -> None:
    """A batch of six has some labels twice: the second image of a label is no decoy of the first."""
    server, _ = server_of(batch=batch)
    result = build_targets(materials(), server, replace(QUICK, releases=10, label_sets=3))
    check_parts(result, 20, 6)
    assert len(result) == 10
    assert torch.equal(result.inputs, result.pool[result.truth])
    assert len({tuple(row) for row in result.labels.tolist()}) == result.label_sets
    assert torch.equal(result.labels, result.labels.sort(1).values)


@pytest.mark.parametrize(("batch", "steps"), [(4, 1), (16, 1), (4, 4)])
def test_the_lists_of_candidates_alone_tell_nothing(mnist: Dataset, batch: int, steps: int) -> None:
    """An attacker who looks at no release picks what no other example of the batch has in its list, or the most of."""
    server, _ = server_of(batch=batch)
    server = replace(server, local_steps=steps)
    found = {"rare": [], "often": []}  # type: dict[str, list[float]]
    for seed in range(3):
        result = build_targets(Materials.of(mnist), server, AuditOptions(releases=20, seed=seed))
        flat = result.choices.flatten(1)
        times = (result.choices.unsqueeze(3) == flat.view(len(flat), 1, 1, -1)).sum(3).double()
        for name, sign in (("rare", -1), ("often", 1)):
            first = ranks(result.counted(sign * times), result.column(result.place)).first
            found[name] += first.mean(1).tolist()
    for rates in found.values():
        low, high = bootstrap(torch.tensor(rates).numpy().reshape(-1, 1)) or (0.0, 1.0)
        assert low <= 1 / result.candidates + 1e-9, rates
        assert high >= 1 / result.candidates - 1e-9, rates


def check_distinct(result: Targets) -> None:
    outside = result.asked[~result.member].tolist()
    targets = result.truth.flatten().tolist()
    assert len({tuple(sorted(row)) for row in result.truth.tolist()}) == len(result), "no batch is dealt twice"
    assert len(set(targets)) == len(targets), "no image is a target twice"
    assert len(set(outside)) == len(outside), "nor a non-member"
    assert not set(targets) & set(outside), "nor both"
    assert not result.recurring
    assert not result.others_recurring


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_no_image_plays_a_part_twice(mnist: Dataset, private: bool, batch: int) -> None:
    server, _ = server_of(batch=batch)
    result = build_targets(Materials.of(mnist, private), server, AuditOptions())
    assert len(result) == 32
    check_distinct(result)
    check_parts(result, 100, 20)


@pytest.mark.parametrize("releases", [40, 80, 500])
def test_nor_where_more_is_asked_for_than_there_is(releases: int) -> None:
    result = targets_of(replace(QUICK, releases=releases))
    assert len(result) == min(releases, 50), "a target and a non-member of each of 100 images"
    check_distinct(result)


def test_all_digits_are_attacked_by_default(mnist: Dataset) -> None:
    server, _ = server_of(batch=4)
    for seed in range(5):
        result = build_targets(Materials.of(mnist), server, AuditOptions(seed=seed))
        assert result.label_sets == 3
        assert result.labels.unique().tolist() == list(range(10))
        assert int(result.labels.flatten().bincount().max()) <= 22, "two of three sets"


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batch", [1, 3, 4, 7, 10, 16, 25])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_every_label_is_about_as_often_in_the_label_sets(batch: int, count: int, steps: int) -> None:
    known = torch.tensor([0, 1, 2, 3, 5, 6, 7, 8, 9, 11])
    for seed in range(20):
        sets = label_sets(known, batch, steps, count, torch.Generator().manual_seed(seed))
        assert sets.shape == (count, steps * batch)
        often = Counter(sets.flatten().tolist())
        assert set(often) <= set(known.tolist())
        assert max(often.values()) - min(often[label] for label in known.tolist()) <= 1
        for step in sets.view(-1, batch).tolist():
            within = Counter(step)
            assert step == sorted(step)
            assert max(within.values()) - min(within[label] for label in known.tolist()) <= 1, "none twice before all"


def test_label_sets_differ_between_seeds() -> None:
    known = torch.arange(10)
    results = {
        tuple(label_sets(known, 4, 1, 1, torch.Generator().manual_seed(seed)).flatten().tolist()) for seed in range(20)
    }
    assert len(results) > 15


# --- exchangeable --------------------------------------------------------------------------------------------

SEEDS, EACH = 400, 10


@cache
def dealt_often() -> tuple[Targets, ...]:
    """Two releases of four images each with four non-members, of a pool of ten images for each of four labels."""
    server, _ = server_of(batch=4)
    options = replace(QUICK, releases=2, label_sets=1, candidates=5, others=4)
    return tuple(build_targets(pool_of(EACH), server, replace(options, seed=seed)) for seed in range(SEEDS))


def often(rows: list[Tensor], size: int) -> Tensor:
    return torch.cat([row.flatten() for row in rows]).bincount(minlength=size).double()


@pytest.mark.parametrize("role", ["member", "non-member", "decoy", "impostor"])
def test_every_image_of_the_pool_plays_every_part_equally_often(role: str) -> None:
    """In each of two releases, an image is the member of its label, or a non-member, with probability 1/10, a decoy
    with 9/10 times 4/9. Were members drawn from one part of the pool and decoys from another, some would never be.
    """
    parts = {
        "member": lambda one: one.truth, "non-member": lambda one: one.asked[~one.member],
        "decoy": lambda one: one.choices[one.choices != one.truth.unsqueeze(2)], "impostor": lambda one: one.false,
    }  # fmt: skip
    chance = 0.4 if role == "decoy" else 1 / EACH
    times = often([parts[role](one) for one in dealt_often()], 4 * EACH)
    draws = 2 * SEEDS
    assert float(times.mean()) == pytest.approx(draws * chance)
    spread = (draws * chance * (1 - chance)) ** 0.5
    assert float((times - draws * chance).abs().max()) < 4.5 * spread
    assert float(((times - draws * chance) / spread).square().mean()) < 2, "no more uneven than chance"


def test_a_decoy_is_the_target_of_another_release_as_often_as_any_image() -> None:
    """Of five images that serve, each is a decoy of the truth: whoever is the other release's target is one, too."""
    elsewhere = [
        (one.choices.flip(0) == one.truth.unsqueeze(2)).any(2).double().mean() for one in dealt_often()
    ]  # fmt: skip
    assert float(torch.stack(elsewhere).mean()) == 1


def test_a_decoy_may_be_a_non_member_of_the_release() -> None:
    """Likewise the release's member and its non-member of that label are two of the five candidates."""
    shares = [
        (one.choices.flatten(1).unsqueeze(2) == one.asked.unsqueeze(1)).any(2).double().mean() for one in dealt_often()
    ]
    assert float(torch.stack(shares).mean()) == pytest.approx(2 / 5)


def test_the_place_of_the_truth_and_that_of_the_impostor_are_uniform() -> None:
    """The truth that always comes first would win by a tie, or by a list that an attack reads."""
    total = SEEDS * 2 * 4
    apart = [(one.impostor - one.place) % 5 for one in dealt_often()]
    for counts, width in ((often([one.place for one in dealt_often()], 5), 5), (often(apart, 5)[1:], 4)):
        assert int(counts.sum()) == total
        assert float((counts - total / width).abs().max()) < 4.5 * (total / width) ** 0.5
    assert not any((one.impostor == one.place).any() for one in dealt_often())


def test_members_stand_anywhere_among_those_asked_about() -> None:
    counts = torch.stack([one.member.double().sum(0) for one in dealt_often()]).sum(0)
    assert len(counts) == 8
    assert float((counts - SEEDS).abs().max()) < 4.5 * (2 * SEEDS / 4) ** 0.5, "each place half of the time"


@pytest.mark.parametrize("batch", [4, 6, 8, 16, 44])
def test_a_label_alone_does_not_tell_members_from_others(mnist: Dataset, batch: int) -> None:
    """Non-members that are no multiple of the batch once had more of the lowest labels: an AUC of up to 0.57."""
    server, _ = server_of(batch=batch)
    check_labels_tell_nothing(
        [build_targets(Materials.of(mnist), server, AuditOptions(seed=seed)) for seed in range(8)], 0.01
    )


@pytest.mark.parametrize("others", [3, 5, 9])
def test_nor_among_given_inputs(others: int) -> None:
    labels = torch.arange(48).view(8, 6).remainder(4).sort(1).values.tolist()
    several = [given(part(800, 6), labels, replace(OPTIONS, others=others, seed=seed))[2] for seed in range(40)]
    assert several[0].others == others
    check_labels_tell_nothing(several, 0.015)


def check_labels_tell_nothing(several: list[Targets], far: float) -> None:
    """The area of a score that is the label: within most intervals 0.5, and about that on average."""
    areas, within = [], 0
    for one in several:
        labels = one.pool_labels[one.asked].double()
        inside, outside = (labels[which].view(len(labels), -1).numpy() for which in (one.member, ~one.member))
        (low, high), _ = bootstrap_auc(inside, outside, seed=0) or ((0.0, 0.0), None)
        within += low <= 0.5 <= high
        areas.append(auc(inside, outside))
    assert within > len(several) / 2
    assert sum(areas) / len(areas) == pytest.approx(0.5, abs=far)


# --- pools that are too small --------------------------------------------------------------------------------


def small(each: int, **change: Any) -> Targets:
    server, _ = server_of(batch=4)
    options = replace(QUICK, **{"releases": 4, "others": 20, "candidates": 5, "label_sets": 1, **change})
    return build_targets(pool_of(each), server, options)


def test_first_there_are_fewer_non_members() -> None:
    """Four releases take 4 of 10 images of each label, and as many non-members; five of these would take 8."""
    result = small(10)
    assert (len(result), result.others, result.candidates) == (4, 4, 5)
    check_distinct(result)
    check_parts(result, 5, 4)


def test_then_fewer_releases() -> None:
    result = small(10, releases=32)
    assert (len(result), result.others, result.candidates) == (5, 4, 5)
    check_distinct(result)


def test_then_fewer_candidates() -> None:
    result = small(10, releases=32, candidates=200)
    assert (len(result), result.others, result.candidates) == (5, 4, 10)
    check_parts(result, 10, 4)


def test_a_large_pool_gives_what_is_asked_for() -> None:
    result = small(100)
    assert (len(result), result.others, result.candidates) == (4, 20, 5)


def test_the_smallest_pool_there_can_be_gives_one_release() -> None:
    result = small(2, releases=32)
    assert (len(result), result.others, result.candidates) == (1, 4, 2)
    check_distinct(result)
    with pytest.raises(DataError, match=r"too few public examples to play batches of 4.*one pool"):
        small(1)


@pytest.mark.parametrize("scarce", ["pool", "attack"])
def test_a_label_of_which_there_is_too_little_is_not_attacked(scarce: str) -> None:
    given, rare = materials(), 2
    images, labels = getattr(given, scarce)
    kept = (labels != rare) | (labels.eq(rare).cumsum(0) <= (1 if scarce == "pool" else 0))
    server, _ = server_of(batch=3)
    result = build_targets(replace(given, **{scarce: (images[kept], labels[kept])}), server, QUICK)
    assert result.labels.unique().tolist() == [0, 1, 3]


def test_labels_repeat_within_a_batch_where_there_are_few() -> None:
    server, _ = server_of(batch=4)
    result = build_targets(pool_of(40, classes=2), server, replace(QUICK, releases=5))
    assert result.labels.tolist() == [[0, 0, 1, 1]] * 5
    check_parts(result, 20, 6)
    check_distinct(result)


def test_every_local_step_has_a_batch_of_its_own() -> None:
    server, _ = server_of(batch=4)
    result = build_targets(materials(), replace(server, local_steps=3), replace(QUICK, releases=4))
    assert result.labels.tolist() == [[0, 1, 2, 3] * 3] * 4
    check_parts(result, 20, 6)
    check_distinct(result)


# --- of any targets ------------------------------------------------------------------------------------------


def test_targets_follow_from_the_seed() -> None:
    server, _ = server_of()
    one, two = (build_targets(materials(), server, replace(QUICK, seed=5)) for _ in range(2))
    other = build_targets(materials(), server, replace(QUICK, seed=6))
    for name in ("truth", "labels", "impostor", "choices", "asked", "member"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.truth, other.truth)


def test_an_attacker_is_not_told_which_of_them_are_members() -> None:
    result, public = targets_of(), materials().attack
    known = result.knowledge(public)
    assert known.public is public
    assert known.candidates is result.pool
    assert known.candidate_labels is result.pool_labels
    assert known.choices is result.choices
    assert known.asked is result.asked
    assert result.knowledge(None).public is None


def test_images_that_recur_are_noticed() -> None:
    known = targets_of()
    assert not known.recurring
    assert not known.others_recurring
    again = known.choices.clone()
    again[1] = again[0]
    twice = replace(known, choices=again, place=known.place[:1].expand_as(known.place))
    assert twice.recurring
    asked = known.asked.clone()
    asked[1][~known.member[1]] = asked[0][~known.member[0]]
    assert replace(known, asked=asked).others_recurring
    assert not replace(known, asked=asked).recurring


# --- targets around given inputs -----------------------------------------------------------------------------

OPTIONS = AuditOptions(candidates=6, others=5)
LABELS = ((0, 1), (2, 2), (1, 3))


def given(public: tuple[Tensor, Tensor] | None, labels: Any = LABELS, options: AuditOptions = OPTIONS) -> Any:
    asked = torch.tensor(labels)
    images = torch.rand(*asked.shape, *SHAPE, generator=torch.Generator().manual_seed(5))
    return images, asked, *given_targets(images, asked, public, 0.0, 2.0, options)


def test_given_inputs_are_told_apart_from_half_of_the_public_ones() -> None:
    images, labels, targets, result = given(part(64, 6))
    assert torch.equal(targets.inputs, images)
    assert torch.equal(targets.pool_labels[targets.truth], labels)
    check_parts(targets, 6, 5)
    check_distinct(targets)
    attack, decoys = (pair[0].flatten(1) for pair in (result.attack, result.pool))
    assert len(attack) == len(decoys) == 32
    assert not (torch.cdist(attack, decoys) == 0).any(), "no image serves twice"
    assert result.attack[1].bincount().tolist() == result.pool[1].bincount().tolist() == [8] * 4
    both = torch.cat([decoys, images.flatten(0, 1).flatten(1)])
    assert torch.equal(both.unique(dim=0), targets.pool.flatten(1).unique(dim=0)), "decoys and the inputs themselves"
    assert result.to_pixels(torch.tensor([0.0, 1.0, 2.0])).tolist() == [0, 0.5, 1]
    assert targets.label_sets == 3


def test_given_inputs_stand_anywhere_among_the_candidates() -> None:
    several = [given(part(64, 6), options=replace(OPTIONS, seed=seed))[2] for seed in range(100)]
    places = often([one.column(one.place) for one in several], 6)
    assert float((places - 100).abs().max()) < 45
    members = torch.stack([one.member.double().sum(0) for one in several]).sum(0)
    assert float((members - 600 / 7).abs().max()) < 40


def test_public_data_may_be_sorted_by_label() -> None:
    """Otherwise one half of them would hold the first labels, and the other the last."""
    images, labels = part(64, 6)
    order = labels.argsort(stable=True)
    _, asked, targets, result = given((images[order], labels[order]))
    assert result.attack[1].bincount().tolist() == result.pool[1].bincount().tolist() == [8] * 4
    assert torch.equal(targets.pool_labels[targets.false], asked)


def test_without_public_inputs_there_is_nothing_to_tell_them_apart_from() -> None:
    images, _, targets, result = given(None)
    assert result.attack is None
    assert torch.equal(targets.inputs, images)
    assert (targets.candidates, targets.others) == (1, 0)
    assert not targets.recurring


@pytest.mark.parametrize("each", [1, 3])
def test_with_fewer_than_four_public_images_of_a_label_all_serve_the_attacks(each: int) -> None:
    images, labels = part(64, 6)
    kept = (labels != 2) | (labels.eq(2).cumsum(0) <= each)
    _, _, targets, result = given((images[kept], labels[kept]))
    assert torch.equal(result.attack[0], images[kept])
    assert (targets.candidates, targets.others) == (1, 0)
    _, _, targets, result = given((images[kept], labels[kept]), labels=((0, 1), (1, 3)))
    assert (targets.candidates, targets.others) == (6, 5), "nobody asked for the rare label"


def test_few_public_inputs_are_fewer_non_members_and_candidates() -> None:
    """Two of each label are decoys: enough for one non-member of either label in two releases."""
    options = AuditOptions(candidates=200, others=20)
    _, _, targets, _ = given(part(16, 6), labels=((0, 1), (0, 1)), options=options)
    check_parts(targets, 3, 2)
    check_distinct(targets)


def test_non_members_recur_where_even_one_for_each_release_is_too_many() -> None:
    _, _, targets, _ = given(part(16, 6), labels=((0, 1),) * 5)
    check_parts(targets, 3, 1)
    assert targets.others_recurring
    assert not targets.recurring


@pytest.mark.parametrize("public", [None, part(64, 6)])
def test_an_input_that_was_trained_on_twice_is_one_input(public: Any) -> None:
    """Updates of one batch are not independent; a label that differs makes it another example."""
    images = torch.rand(3, 2, *SHAPE, generator=torch.Generator().manual_seed(5))
    images[2, 1] = images[0, 0]
    for label, recurring in ((0, True), (1, False)):
        labels = torch.tensor([[0, 1], [2, 2], [1, label]])
        targets, _ = given_targets(images, labels, public, 0.0, 2.0, OPTIONS)
        assert torch.equal(targets.inputs, images)
        assert torch.equal(targets.pool_labels[targets.truth], labels)
        assert targets.recurring == recurring


def test_no_place_in_the_pool_tells_a_given_input() -> None:
    """At first they stood behind all decoys, so that the last of the candidates was the truth."""
    several = [given(part(64, 6), options=replace(OPTIONS, seed=seed))[2] for seed in range(40)]
    last = [float((one.truth.unsqueeze(2) >= one.choices).all(2).double().mean()) for one in several]
    assert abs(sum(last) / 40 - 1 / 6) < 0.1
    mean = torch.stack([one.truth.double().mean() for one in several]).mean()
    assert abs(float(mean) - 18.5) < 4, "of 32 decoys and 6 inputs"


def test_an_input_of_two_updates_is_in_the_pool_once() -> None:
    images = torch.rand(3, 2, *SHAPE, generator=torch.Generator().manual_seed(5))
    images[2, 1] = images[0, 0]
    targets, _ = given_targets(images, torch.tensor([[0, 1], [2, 2], [1, 0]]), part(64, 6), 0.0, 2.0, OPTIONS)
    assert len(targets.pool) == len(targets.pool.unique(dim=0)) == 32 + 5
    assert targets.truth[0, 0] == targets.truth[2, 1]


def test_public_images_that_equal_another_are_left_out(mnist: Dataset) -> None:
    """Otherwise an image would be its own decoy, and the best attack would find it half of the time."""
    few = mnist.public_pool.take(slice(0, 240))
    often = Split(few.inputs.repeat(3, 1, 1, 1), few.labels.repeat(3))
    data = replace(mnist, public=often, train=often)
    assert (repeats(data), repeats(data, private=True), repeats(mnist, private=True)) == (480, 960, 0)
    for private in (False, True):
        made = Materials.of(data, private)
        assert made.attack is not None
        both = made.pool[0] if private else torch.cat([made.pool[0], made.attack[0]])
        assert len(both) == len(both.flatten(1).unique(dim=0)) == (240 if private else 220)
        assert len(made.pool[1].unique()) == 10


def test_bundled_images_stay_as_they_are(mnist: Dataset) -> None:
    made = Materials.of(mnist)
    assert made.attack is not None
    assert torch.equal(made.pool[0], mnist.public_pool.inputs)
    assert torch.equal(made.attack[0], mnist.public_attack.inputs)
