"""Hugging Face datasets on disk: pictures, tokens, lists, text and tables; and what a hostile folder gets."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from equipoise.data.hugging_face import compressed
from equipoise.data.loading import load
from equipoise.data.pictures import Picture
from equipoise.data.tokens import BUCKETS, tokenized
from equipoise.errors import ConfigError, DataError
from tests.data.folders import write_arrow

LABELS = [n % 3 for n in range(36)]
NAMES = {"label": {"names": ["cat", "dog", "cow"], "_type": "ClassLabel"}}


def png(pixels: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(out, "PNG")
    return out.getvalue()


def pictures(count: int = 36, seed: int = 1) -> tuple[Any, pa.Table]:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 4, 5, 3), np.uint8)
    rows = [{"bytes": png(one), "path": None} for one in pixels]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pixels, pa.table({"image": pa.array(rows, kind), "label": LABELS[:count]})


def test_pictures_of_two_parts(tmp_path: Path) -> None:
    pixels, table = pictures()
    write_arrow(tmp_path / "train", table, NAMES, files=2)
    write_arrow(tmp_path / "test", pictures(9, 2)[1], NAMES)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = load(tmp_path)
    assert (data.shape, data.class_names, len(data.test)) == ((3, 4, 5), ("cat", "dog", "cow"), 9)
    expected = torch.from_numpy(pixels[:30]).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(data.pixels(data.train.inputs), expected, atol=1e-6, rtol=0)
    assert data.train.labels.tolist() == LABELS[:30]


def test_tokens_are_padded(tmp_path: Path) -> None:
    lists = [list(range(1, 2 + n % 7)) for n in range(36)]
    masks = [[1] * len(one) for one in lists]
    table = pa.table({"input_ids": lists, "attention_mask": masks, "note": ["x"] * 36, "labels": LABELS})
    data = load(write_arrow(tmp_path, table), text_length=5)
    assert data.kind == "tokens"
    assert data.vocabulary == 6
    assert data.train.inputs[:8].tolist() == [(one + [0] * 5)[:5] for one in lists[:8]]
    told = " ".join(data.guessed)
    assert "input: column 'input_ids'" in told
    assert "rows of up to 7 tokens are cut" in told
    assert "'note' are left out" in told
    assert load(tmp_path, vocabulary=50).vocabulary == 50


def test_lists_of_numbers_are_features_of_any_rank(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(36, 2, 3))
    table = pa.table({"x": values.tolist(), "label": LABELS, "who": [f"p{n // 3}" for n in range(36)]})
    data = load(
        write_arrow(tmp_path, table), group="who", mean=0.0, std=1.0, validation_fraction=0.3, test_fraction=0.3
    )
    assert data.shape == (2, 3)
    assert data.train.groups is not None
    rows = [values[3 * int(group)] for group in data.train.groups[::3]]
    np.testing.assert_allclose(data.train.inputs[::3].numpy(), rows, atol=1e-6)


def test_text_and_tables_go_by_their_columns(tmp_path: Path) -> None:
    said = [f"line {n} of many" for n in range(36)]
    data = load(write_arrow(tmp_path / "text", pa.table({"text": said, "label": LABELS}), NAMES))
    assert torch.equal(data.train.inputs[:1], tokenized(said[:1], BUCKETS, 64))
    assert data.class_names == ("cat", "dog", "cow")
    table = pa.table({"a": np.arange(36.0), "b": ["u", "v"] * 18, "label": LABELS})
    assert load(write_arrow(tmp_path / "table", table)).shape == (3,)
    both = pa.table({"input_ids": [[1, 2]] * 36, "text": said, "label": LABELS})
    chosen = load(write_arrow(tmp_path / "both", both), text="text")
    assert torch.equal(chosen.train.inputs[:1], tokenized(said[:1], BUCKETS, 64))
    assert any("'input_ids' are left out" in guess for guess in chosen.guessed)


def table(**changed: Any) -> pa.Table:
    return pa.table({"x": [[1.0, 2.0]] * 36, "label": LABELS} | changed)


@pytest.mark.timeout(20)
def test_a_text_for_bytes_is_not_opened_as_a_path(tmp_path: Path) -> None:
    planted = tmp_path / "elsewhere.png"
    planted.write_bytes(png(np.zeros((4, 4), np.uint8)))
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("elsewhere.png", "pipe.png"):
        kind = pa.struct({"bytes": pa.string(), "path": pa.string()})
        rows = pa.array([{"bytes": str(tmp_path / name), "path": None}] * 36, kind)
        folder = write_arrow(tmp_path / "set", pa.table({"image": rows, "label": np.arange(36) % 3}))
        with pytest.raises(DataError, match=r"of column 'image' of .* are of type string, not bytes"):
            load(folder)
    with pytest.raises(AssertionError):
        Picture("a picture", str(planted))  # type: ignore[arg-type]


def test_names_of_classes_without_end_are_refused(tmp_path: Path) -> None:
    names = {"label": {"names": [str(n) for n in range(1001)], "_type": "ClassLabel"}}
    table = pa.table({"x": np.arange(36.0), "label": LABELS})
    with pytest.raises(DataError, match="names 1001 classes for 36 rows"):
        load(write_arrow(tmp_path / "set", table, names))
    names["label"]["names"] = names["label"]["names"][:1000]
    assert load(write_arrow(tmp_path / "set", table, names)).classes == 1000


BROKEN = pa.array([{"bytes": None, "path": "/etc/passwd"}] * 36, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
DAMAGED = pa.array([{"bytes": b"no picture", "path": None}] * 36, BROKEN.type)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (table(x=BROKEN), "row 0, column 'x': the picture lies in a file elsewhere"),
        (table(x=DAMAGED), "row 0, column 'x' is not a readable PNG or JPEG picture"),
        (table(x=[[1.0]] * 35 + [[1.0, 2.0]]), "'x' of .* has rows of several shapes"),
        (table(x=[[1.0]] * 35 + [None]), "row 35, column 'x': the value is missing"),
        (table(x=[["a"]] * 36), "'x' of .* has elements that are no numbers"),
        (table(x=[[1.0, None]] * 36), "'x' of .* has elements that are no numbers"),
        (table(x=[{"a": 1}] * 36), "'x' of .* is of type struct"),
        (table(y=[[1.0]] * 36), r"2 columns that could be the input: 'x', 'y'.*drop=\['x'\]"),
        (table().drop_columns(["label"]), "no column of classes"),
        (table(label=pa.array([None] * 36, pa.int64())), "row 0, column 'label': the value is missing"),
        (table(x=[[-1]] * 36), "tokens of row 0 are negative"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, made: pa.Table, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        load(write_arrow(tmp_path, made))
    assert "passwd" not in str(caught.value)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not an object"),
        ("{}", "names no files"),
        ('{"_data_files": [{"filename": 3}]}', "names no files"),
        ('{"_data_files": [{"filename": "../../secret.arrow"}]}', "names a file outside"),
        ('{"_data_files": [{"filename": "link.arrow"}]}', "names a file outside"),
        ('{"_data_files": [{"filename": "absent.arrow"}]}', r"absent\.arrow is missing"),
    ],
)
def test_a_hostile_state_is_refused(tmp_path: Path, state: str, words: str) -> None:
    folder = write_arrow(tmp_path / "data", table())
    (tmp_path / "secret.arrow").write_bytes((folder / "data-00000-of-00001.arrow").read_bytes())
    (folder / "link.arrow").symlink_to(tmp_path / "secret.arrow")
    (folder / "state.json").write_text(state)
    with pytest.raises(DataError, match=words):
        load(folder)


def test_a_linked_description_is_refused(tmp_path: Path) -> None:
    folder = write_arrow(tmp_path / "data", table())
    (folder / "state.json").rename(tmp_path / "state.json")
    (folder / "state.json").symlink_to(tmp_path / "state.json")
    with pytest.raises(DataError, match="is a link that leads out of the folder"):
        load(folder)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("encoded", [False, True])
def test_compressed_arrow_is_refused_before_it_grows(tmp_path: Path, codec: str, encoded: bool) -> None:
    made = pa.table({"a": pa.array(["u", "v"] * 500), "label": np.zeros(1000, np.int64)})
    made = made.set_column(0, "a", made["a"].dictionary_encode()) if encoded else made
    folder = write_arrow(tmp_path, made.slice(0, 36))
    path = folder / "data-00000-of-00001.arrow"
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, made.schema, options=options) as writer:
        writer.write_table(made)
    with pytest.raises(DataError, match="is compressed"):
        load(folder)


def test_compression_is_read_from_the_metadata(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": np.zeros(1000)})
    for codec in (None, "lz4", "zstd"):
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_batch(batch)
        messages = [bytes(one.metadata) for one in pa.ipc.MessageReader.open_stream(sink.getvalue())]
        assert [compressed(one) for one in messages] == [False, codec is not None]


def test_compression_of_the_first_formats_is_read_from_what_a_message_adds() -> None:
    batch = pa.record_batch({"compression": np.zeros(1000)})
    found = []
    for more in (None, {"written": "today"}, {"ARROW:experimental_compression": "lz4"}):
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch, custom_metadata=more)
        *_, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
        found.append(compressed(bytes(message.metadata)))
    assert found == [False, False, True]


def test_damaged_arrow_is_refused(tmp_path: Path) -> None:
    path = write_arrow(tmp_path, table()) / "data-00000-of-00001.arrow"
    content = path.read_bytes()
    for damage in (b"", b"x" * 100, content[: len(content) // 2]):
        path.write_bytes(damage)
        with pytest.raises(DataError, match=r"is damaged|no column"):
            load(tmp_path)


def test_offsets_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    """Arrow itself would read behind the end of its buffer."""
    offsets = pa.py_buffer(np.array([0, 1 << 20, 3], np.int32))
    wrong = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(DataError, match="is damaged"):
        load(write_arrow(tmp_path, pa.table({"a": wrong, "label": [0, 1]})))


def test_flipped_bytes_are_data_or_a_data_error(tmp_path: Path) -> None:
    path = (
        write_arrow(tmp_path, pa.table({"input_ids": [[1, 2, 3]] * 36, "label": LABELS})) / "data-00000-of-00001.arrow"
    )
    content = path.read_bytes()
    for place in range(0, len(content), 31):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        with contextlib.suppress(DataError):
            load(tmp_path)


def test_parts_with_other_columns_are_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "train", table())
    write_arrow(tmp_path / "test", table(x=[[1]] * 36))
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match="has other columns than train"):
        load(tmp_path)
    (tmp_path / "train").rename(tmp_path / "training")
    with pytest.raises(DataError, match="has no part called train"):
        load(tmp_path)


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_arrow(tmp_path, table())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="Reading datasets of Hugging Face needs the extra 'data'"):
        load(folder)


def test_the_names_of_classes_may_be_missing(tmp_path: Path) -> None:
    folder = write_arrow(tmp_path, table())
    (folder / "dataset_info.json").unlink()
    assert load(folder).class_names == ("0", "1", "2")
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": {"names": "abc"}}}))
    assert load(folder, validation_fraction=0.2).class_names == ("0", "1", "2")
