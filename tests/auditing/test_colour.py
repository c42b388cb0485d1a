"""Pictures with three channels, from a folder: every channel has its own mean and standard deviation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.auditing import cells
from equipoise.auditing.audit import Audit
from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.store import Store
from equipoise.engine.datasets import load_dataset
from equipoise.runs.folder import RunFolder
from tests.audit_helpers import cheap, train_run

SIDE, EACH, NAMES = 12, 40, ("apple", "leaf", "sky")
ATTACKS = ["matched", "lti", "membership", "labels", "invgrad"]


def write_colours(folder: Path) -> Path:
    """Random pictures, each class with more of one colour, and red brighter and flatter in all of them."""
    rng = np.random.default_rng(5)
    for channel, name in enumerate(NAMES):
        (folder / name).mkdir(parents=True)
        for number in range(EACH):
            pixels = rng.integers(0, 160, (SIDE, SIDE, 3))
            pixels[..., channel] += 60
            pixels[..., 0] = pixels[..., 0] // 4 + 150
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("colours")
    return train_run(place / "run", write_colours(place / "data"), ("none", "pl-identical"))


@pytest.fixture(scope="module")
def found(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    store = Store(tmp_path_factory.mktemp("store") / "results")
    return audit_run(colours, cheap(attacks=ATTACKS), [0], store=store)


def test_a_run_on_pictures_in_colour_is_attacked(found: Audit) -> None:
    assert {row["attack"] for row in found.rows} == set(ATTACKS)
    assert all(row["mse"] is not None and "not_finite" not in row for row in found.rows if "mse" in row)
    assert {"none", "pl-identical"} == {row["mechanism"] for row in found.rows}


def test_its_pictures_are_in_the_colours_of_the_folder(found: Audit, colours: Path) -> None:
    """Normalisation is undone channel by channel: red is as bright and as flat as it was written."""
    (section,) = found.sections
    originals = section.rows[0].images
    assert originals.shape[1:] == (3, SIDE, SIDE)
    red = originals[:, 0]
    assert red.min() >= 150
    assert red.max() < 150 + 255 // 4


def test_the_range_of_inputs_is_that_of_each_channel(colours: Path) -> None:
    federation = RunFolder(colours).config.federations()[0]
    data = load_dataset(RunFolder(colours).config.settings, federation.dataset)
    assert isinstance(data.mean, tuple)
    assert len(data.mean) == 3
    low, high = cells.input_range(data)
    for edge, wanted in ((low, 0.0), (high, 1.0)):
        assert isinstance(edge, torch.Tensor)
        assert edge.shape == (3, 1, 1)
        torch.testing.assert_close(data.pixels(edge.unsqueeze(0)), torch.full((1, 3, 1, 1), wanted))
