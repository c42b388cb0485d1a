"""Deep Leakage from Gradients: inputs and labels of undefended releases, and neither of them under noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attack.descent import Search
from equipoise.attack.dlg import SEARCH, dlg, idlg
from equipoise.attack.invgrad import invgrad
from equipoise.attack.view import Server, View
from equipoise.errors import ModelError
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from tests.attack.inversions import case, laplace, seeded


@pytest.mark.parametrize("attack", [dlg, idlg])
@pytest.mark.parametrize("batch", [1, 4])
def test_deep_leakage_wins_without_protection(attack: Any, batch: int) -> None:
    known = case(batch, 2)
    result = attack(known.server, replace(known.view, labels=None), replace(SEARCH, iterations=120))
    assert known.errors(result).max() < 0.05
    assert torch.equal(result.labels.sort(1).values, known.labels.sort(1).values)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("attack", [dlg, idlg])
def test_matching_gradients_loses_under_noise(attack: Any, batch: int) -> None:
    known = case(batch, 4, "pl-identical", 64.0)
    result = attack(known.server, known.view, replace(SEARCH, iterations=40))
    assert known.errors(result).mean() > known.black().mean()
    assert known.errors(result).mean() > known.flat().mean()


def test_idlg_reads_repeated_labels() -> None:
    """The bundled rows cycle through the ten classes."""
    known = case(4, 3, rows=(3, 13, 7, 1, 5, 15, 25, 35, 0, 9, 19, 10))
    assert known.labels.tolist() == [[3, 3, 7, 1], [5, 5, 5, 5], [0, 9, 9, 0]]
    result = idlg(known.server, replace(known.view, labels=None), replace(SEARCH, iterations=1))
    assert result.labels is not None
    assert result.labels.tolist() == [[1, 3, 3, 7], [5, 5, 5, 5], [0, 0, 9, 9]]


def test_idlg_finds_no_labels_under_noise() -> None:
    known = case(1, 10, "pl-identical", 64.0)
    result = idlg(known.server, replace(known.view, labels=None), replace(SEARCH, iterations=1))
    assert result.labels is not None
    assert (result.labels == known.labels).sum() <= 4


def picky(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared error, of whole labels alone."""
    return (outputs - torch.eye(3, dtype=outputs.dtype)[labels]).square().sum(1).mean()


def fussy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The same in other words, which fail differently on probabilities."""
    return -outputs.log_softmax(1).gather(1, labels.unsqueeze(1)).mean()


@pytest.mark.parametrize("loss", [picky, fussy])
def test_a_loss_that_takes_no_label_probabilities_is_refused_by_dlg(loss: Any) -> None:
    """It searches for labels too; attacks that are granted them can use such a loss."""
    model = seeded(lambda: MLP((1, 4, 4), 3, hidden=5))
    server = Server(Batched(model, loss), (1, 4, 4), 3, 2)
    previous = server.batched.layout.flatten(model.state_dict()).repeat(2, 1)
    moved = previous + 0.01 * laplace(tuple(previous.shape))
    view, search = View(previous, moved, torch.tensor([[0, 1], [2, 2]])), Search(iterations=1)
    with pytest.raises(ModelError, match="label probabilities, which dlg needs") as caught:
        dlg(server, view, search)
    assert len(caught.value.remedy) > 10
    assert torch.isfinite(invgrad(server, view, search).images).all()
