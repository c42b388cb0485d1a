"""What was measured on private rows: named where it was, and not where it is stated, public or bundled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.bundle import BUNDLED
from equipoise.data.loading import load
from tests.data.folders import write_idx, write_npz, write_pictures
from tests.data.test_csv_files import write

AGES = [f"{30 + n % 7},{n % 3},{n // 3 % 2}" for n in range(60)]
COLUMNS = "mean and std of the columns (say mean=, std=, or set rows apart: public_fraction=)"
MOMENTS, RANGE = "mean and std (say mean=, std=)", "range of the pixels (say scale=)"


def people(folder: Path, *more: str) -> Path:
    return write(folder / "people.csv", [*AGES[:1], *more, *AGES[1:]], "age,level,state")


@pytest.mark.parametrize(
    ("options", "fitted"),
    [
        ({}, (COLUMNS,)),
        ({"mean": 30.0, "std": 5.0}, ()),
        ({"public_fraction": 0.2}, ()),
        ({"categorical": ["level"]}, ("categories of column 'level' (store them as numbers)", COLUMNS)),
    ],
)
def test_of_a_table(tmp_path: Path, options: dict[str, Any], fitted: tuple[str, ...]) -> None:
    assert load(people(tmp_path), **options).fitted == fitted  # type: ignore[arg-type]


def test_one_row_far_out_moves_all_others_unless_the_moments_are_stated(tmp_path: Path) -> None:
    alone, beside = people(tmp_path / "a"), people(tmp_path / "b", "9000,0,0")
    for options in ({}, {"mean": 30.0, "std": 5.0}):
        one, other = (load(path, **options) for path in (alone, beside))  # type: ignore[arg-type]
        same = torch.equal(one.train.inputs[0], other.train.inputs[0])
        assert same == (one.fitted == other.fitted == ())


def test_of_pictures(tmp_path: Path) -> None:
    floats = np.random.default_rng(1).random((36, 4, 4))
    for folder, options, fitted in (
        (write_pictures(tmp_path / "pets", {"": {"cat": 24, "dog": 24}}), {}, (MOMENTS,)),
        (tmp_path / "pets", {"mean": 0.5, "std": 0.2}, ()),
        (write_idx(tmp_path / "idx"), {}, (MOMENTS,)),
        (tmp_path / "idx", {"name": "mnist"}, ()),
        (write_npz(tmp_path / "npz"), {}, (MOMENTS,)),
        (write_npz(tmp_path / "floats", images=floats, labels=np.arange(36) % 3), {}, (RANGE, MOMENTS)),
        (tmp_path / "floats", {"name": "mnist"}, (RANGE,)),
        (tmp_path / "floats", {"scale": 2.0}, (MOMENTS,)),
        (tmp_path / "floats", {"mean": 0.5, "std": 0.2}, ()),
    ):
        assert load(folder, **options).fitted == fitted, (folder, options)  # type: ignore[arg-type]
    write_pictures(tmp_path / "pets", {"": {"eel": 9}}, mode="L")
    assert load(tmp_path / "pets").fitted[0] == "colours of the pictures (convert them to one kind)"


def test_of_tokens_and_text(tmp_path: Path) -> None:
    for side in ("train", "test"):
        np.savez(tmp_path / f"{side}.npz", tokens=np.arange(72).reshape(36, 2) + 1, labels=np.arange(36) % 3)
    assert load(tmp_path).fitted == ("the largest token (say vocabulary=)",)
    assert load(tmp_path, vocabulary=100).fitted == ()
    lone = write(tmp_path / "lone.csv", [f"sentence {n},{n % 2}" for n in range(60)], "words,label")
    assert load(lone).fitted == ("that column 'words' is text (say text=)",)
    assert load(lone, text="words").fitted == ()


def test_bundled_data_have_none() -> None:
    assert [load(name).fitted for name in BUNDLED] == [()] * len(BUNDLED)


def test_features_of_them_keep_it(tmp_path: Path) -> None:
    data = load(write_pictures(tmp_path / "pets", {"": {"cat": 24, "dog": 24}}))
    made = data.mapped(lambda images: images.mean(3))
    assert (made.fitted, made.guessed, made.class_names) == ((MOMENTS,), data.guessed, ("cat", "dog"))
