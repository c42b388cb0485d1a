"""Records: rows and repetitions keep every input with its label."""

from __future__ import annotations

import torch

from equipoise.attack.records import Records

THREE = Records(torch.arange(6.0).view(3, 2), torch.tensor([7, 8, 9]))


def test_rows_keep_their_labels() -> None:
    some = THREE.rows(torch.tensor([2, 0]))
    assert some.inputs.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert some.labels.tolist() == [9, 7]


def test_repetitions_stand_beside_one_another() -> None:
    many = THREE.repeated(2)
    assert len(many) == 6
    assert many.labels.tolist() == [7, 7, 8, 8, 9, 9]
    assert many.inputs[:, 0].tolist() == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
