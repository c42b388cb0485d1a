"""The bundled table and the bundled generated text: fixed rows, known bytes, stated moments."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.data.bundle import BUNDLED, BUNDLED_FOLDER, SMALL_MANIFEST, SPLITS, read_bundled
from equipoise.data.dataset import Dataset
from equipoise.data.loading import load, load_public, load_with
from equipoise.errors import DataError

ROOT = Path(__file__).parents[2]
SMALL = {
    "breast-cancer": "9eb2a8dd6bde28b69c4c1b309604d3d2b1cb749d584fc7d6cff3a881cfac0721",
    "generated-text": "7057abb71f60240bc3b55f523910a5b44812f74dad7445c3f01450640191d33e",
}
SIZES = {
    "breast-cancer": {"train": 200, "validation": 69, "public": 200, "test": 100},
    "generated-text": {"train": 4000, "validation": 800, "test": 1000, "public": 1500},
}


def sizes(data: Dataset) -> dict[str, int]:
    return {split: len(getattr(data, split)) for split in SPLITS}


@pytest.mark.parametrize("name", SMALL)
def test_the_small_files_have_the_known_hashes_and_sizes(name: str) -> None:
    content = (BUNDLED_FOLDER / BUNDLED[name].file).read_bytes()
    entry = json.loads((BUNDLED_FOLDER / SMALL_MANIFEST).read_text())["files"][BUNDLED[name].file]
    assert hashlib.sha256(content).hexdigest() == entry["sha256"] == SMALL[name]
    assert len(content) < 300_000
    assert entry["splits"] == SIZES[name]
    assert sizes(load(name)) == SIZES[name]
    assert SMALL[name] in (ROOT / "NOTICE").read_text()
    assert load(name) is load(name)


def test_every_row_of_the_table_is_in_one_split() -> None:
    arrays = read_bundled(BUNDLED_FOLDER, "breast-cancer")
    rows = np.concatenate([arrays[f"{split}_index"] for split in SPLITS])
    assert sorted(rows.tolist()) == list(range(569))


def test_the_table_is_normalised_by_its_public_part() -> None:
    data = load("breast-cancer")
    assert data.public is not None
    assert (data.kind, data.shape, data.classes, data.class_names) == ("table", (30,), 2, ("malignant", "benign"))
    torch.testing.assert_close(data.public.inputs.mean(0), torch.zeros(30), atol=1e-4, rtol=0)
    torch.testing.assert_close(data.public.inputs.std(0, correction=0), torch.ones(30), atol=1e-4, rtol=0)
    arrays = read_bundled(BUNDLED_FOLDER, "breast-cancer")
    torch.testing.assert_close(data.pixels(data.train.inputs), torch.from_numpy(arrays["train_features"]))


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_of_the_table_has_the_classes_of_the_whole(split: str) -> None:
    labels = getattr(load("breast-cancer"), split).labels
    assert float((labels == 0).float().mean()) == pytest.approx(212 / 569, abs=0.02)


def test_the_generated_text_is_tokens_with_padding_at_the_end() -> None:
    data = load("generated-text")
    assert (data.kind, data.shape, data.classes, data.vocabulary) == ("tokens", (24,), 4, 400)
    seen = set()
    for split in SPLITS:
        tokens, labels = getattr(data, split).inputs, getattr(data, split).labels
        lengths = (tokens > 0).sum(1)
        assert tokens.dtype == torch.int64
        assert (int(lengths.min()), int(lengths.max())) == (6, 24)
        assert torch.equal(tokens > 0, torch.arange(24) < lengths[:, None])
        assert torch.equal(labels, torch.arange(len(labels)) % 4)
        seen |= {row.tobytes() for row in tokens.numpy()}
    assert len(seen) == 7300, "no sentence twice"


def test_topics_share_words_and_can_be_told_apart() -> None:
    """By the counts of words, with the public part to learn from: well above chance, and not without mistakes."""
    data = load("generated-text")
    assert data.public is not None

    def counts(tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(tokens), 400).scatter_add_(1, tokens, torch.ones(tokens.shape))[:, 1:]

    known = counts(data.public.inputs)
    rates = torch.stack([known[data.public.labels == label].sum(0) + 1 for label in range(4)])
    scores = counts(data.test.inputs) @ (rates / rates.sum(1, keepdim=True)).log().T
    accuracy = float((scores.argmax(1) == data.test.labels).float().mean())
    assert 0.85 < accuracy < 0.999
    assert int((rates > 1).all(0).sum()) > 100


def test_public_parts_of_the_small_sets() -> None:
    split, mean, std = load_public("breast-cancer")
    data = load("breast-cancer")
    assert data.public is not None
    assert (mean, std) == (data.mean, data.std)
    torch.testing.assert_close(split.inputs, data.public.inputs, atol=1e-4, rtol=0)
    tokens, *moments = load_public("generated-text")
    assert tokens.inputs.dtype == torch.int64
    assert moments == [0.0, 1.0]


def test_a_damaged_small_file_is_refused_with_its_script(tmp_path: Path) -> None:
    for file in ("breast-cancer.npz", SMALL_MANIFEST):
        shutil.copy(BUNDLED_FOLDER / file, tmp_path / file)
    (tmp_path / "breast-cancer.npz").write_bytes((tmp_path / "breast-cancer.npz").read_bytes() + b"x")
    with pytest.raises(DataError, match=r"Expected SHA-256 9eb2.*scripts/build_small_data\.py"):
        read_bundled(tmp_path, "breast-cancer")


def test_a_bundled_set_has_its_own_columns() -> None:
    with pytest.raises(DataError, match="'breast-cancer' takes no target"):
        load_with("breast-cancer", target="diagnosis")
