"""Labels of any kind become numbers with a table of what they stand for; classes stay what they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from equipoise.auditing.attacker import Attacker
from equipoise.auditing.numbered import (
    CLASSES,
    VALUES,
    YES_OR_NO,
    label_kind,
    label_rank,
    looked_up,
    numbered,
    unsupported,
)  # fmt: skip
from equipoise.auditing.update import Truth
from equipoise.errors import ConfigError, DataError

X = torch.zeros(4, 3)
SEVERAL = torch.zeros(2, 4, 3)
NUMBERS, CLASS, HOT = torch.tensor([0.5, 2.0, 0.5, -1.0]), torch.tensor([0, 1, 1, 0]), torch.eye(4)[:, :3]


def of(labels: Tensor, inputs: Tensor = X, public: Tensor | None = None, granted: Any = None) -> Any:
    known = None if public is None else (torch.zeros(len(public), 3), public)
    attacker = Attacker(public=known, labels=granted)
    return numbered(attacker, Truth(inputs, labels), (3,), inputs.dim() == 3)


def test_classes_stay_what_they_are() -> None:
    result = of(CLASS, public=torch.arange(5))
    assert result.targets is None
    assert result.truth.labels is CLASS
    assert result.loss(None) is None


@pytest.mark.parametrize(("labels", "rows"), [(NUMBERS, 3), (HOT, 4), (HOT.bool(), 4), (HOT.long() + 4, 4)])
def test_every_number_stands_for_its_label_and_equal_labels_share_one(labels: Tensor, rows: int) -> None:
    public = labels.flip(0)
    result = of(labels, public=public, granted=labels)
    assert len(result.targets) == rows
    for ids, given in (
        (result.truth.labels, labels), (result.attacker.public[1], public), (result.attacker.labels, labels),
    ):  # fmt: skip
        assert ids.dtype == torch.int64
        assert torch.equal(result.targets[ids], given)


def test_the_loss_gets_what_a_number_stands_for() -> None:
    result = of(NUMBERS)
    outputs = torch.arange(4.0)
    assert result.loss(mse_loss)(outputs, result.truth.labels) == mse_loss(outputs, NUMBERS)
    batched = torch.func.vmap(looked_up(mse_loss, result.targets))
    both = batched(torch.stack([outputs, outputs + 1]), torch.stack([result.truth.labels] * 2))
    assert both.tolist() == [float(mse_loss(outputs, NUMBERS)), float(mse_loss(outputs + 1, NUMBERS))]


@pytest.mark.parametrize(
    ("labels", "inputs", "rank"),
    [
        (CLASS, X, 0), (NUMBERS, X, 0), (HOT, X, 1), (CLASS.expand(2, 4), SEVERAL, 0), (CLASS, SEVERAL, 0),
        (HOT.expand(2, 4, 3), SEVERAL, 1), (HOT, SEVERAL, 1), (CLASS.unsqueeze(0), X.unsqueeze(0), 0),
    ],
)  # fmt: skip
def test_the_axes_of_one_label_follow_from_the_inputs(labels: Tensor, inputs: Tensor, rank: int) -> None:
    assert label_rank(Attacker(), Truth(inputs, labels), 1, inputs.dim() == 3) == rank


@pytest.mark.parametrize(
    ("labels", "several", "rank"), [(CLASS, False, 0), (NUMBERS, False, 0), (HOT, False, 1), (HOT, True, 0)]
)
def test_without_a_truth_they_follow_from_what_is_granted(labels: Tensor, several: bool, rank: int) -> None:
    assert label_rank(Attacker(labels=labels), None, 1, several) == rank
    assert label_rank(Attacker(), None, 1, several) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": NUMBERS, "public": CLASS}, "public labels are classes"),
        ({"labels": CLASS, "public": NUMBERS}, "true labels are classes"),
        ({"labels": HOT, "public": torch.zeros(5, 2)}, r"public labels are torch.float32 of shape \(2,\)"),
        ({"labels": NUMBERS, "public": torch.zeros(5, 2)}, "for an example, the true ones"),
        ({"labels": NUMBERS, "public": NUMBERS.double()}, "torch.float64"),
        ({"labels": NUMBERS / 0}, "true labels are not finite"),
        ({"labels": NUMBERS, "granted": "infer"}, "are not inferred"),
    ],
)
def test_labels_that_do_not_fit_each_other_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        of(**change)


def test_public_values_alone_tell_no_labels_of_an_update() -> None:
    attacker = Attacker(public=(torch.zeros(4, 3), NUMBERS), examples=2)
    with pytest.raises(DataError, match="are not inferred"):
        numbered(attacker, None, (3,), False)


def test_labels_that_are_no_classes_need_a_loss() -> None:
    with pytest.raises(ConfigError, match="cross-entropy") as caught:
        of(NUMBERS).loss(None)
    assert "Update(loss=" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("targets", "kind", "lacks"),
    [(None, CLASSES, set()), (HOT, YES_OR_NO, {"classes"}), (NUMBERS, VALUES, {"classes", "counts"})],
)
def test_what_is_not_supported_is_said_by_kind(targets: Tensor | None, kind: str, lacks: set[str]) -> None:
    assert label_kind(targets) == kind
    said = unsupported(False, targets)
    assert said.keys() == lacks
    assert all(kind in words for words in said.values())
    assert unsupported(True, targets).keys() == lacks | {"numbers"}
