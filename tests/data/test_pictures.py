"""Folders of pictures: what is read, in which order, and what is refused by name."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.data import pictures as module
from equipoise.data.formats import FORMATS, format_of
from equipoise.data.loading import load, load_public
from equipoise.errors import ConfigError, DataError
from tests.data.folders import write_pictures

TWO = {"train": {"cat": 12, "dog": 6}, "test": {"dog": 3, "cat": 3}}


def test_train_and_test_are_read_class_by_class(tmp_path: Path) -> None:
    data = load(write_pictures(tmp_path / "pets", TWO))
    assert (data.name, data.shape, data.class_names, data.classes) == ("pets", (3, 6, 5), ("cat", "dog"), 2)
    assert data.train.labels.tolist() == [0] * 10 + [1] * 5
    assert len(data.test) == 6
    first = np.asarray(Image.open(tmp_path / "pets" / "train" / "cat" / "000.png"))
    expected = torch.from_numpy(first.copy()).permute(2, 0, 1) / 255
    torch.testing.assert_close(data.pixels(data.train.inputs[0]), expected, atol=1e-6, rtol=0)


def test_one_tree_is_split_and_says_so(tmp_path: Path) -> None:
    data = load(write_pictures(tmp_path, {"": {"10": 12, "9": 12}}, mode="L"), public_fraction=0.2)
    assert data.class_names == ("9", "10"), "numbers in their order"
    assert data.shape == (1, 6, 5)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [14, 2, 4]
    assert any(guess.startswith("test part: the last 0.167") for guess in data.guessed)
    assert load_public(tmp_path)[0].inputs.shape == (24, 1, 6, 5)


def test_a_folder_without_test_is_split(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"train": {"a": 12, "b": 12}})
    assert len(load(tmp_path).test) == 4


def test_pictures_of_several_sizes_need_resize(tmp_path: Path) -> None:
    write_pictures(tmp_path, TWO)
    write_pictures(tmp_path, {"train": {"ape": 8}}, size=(7, 9))
    with pytest.raises(DataError, match=r"cat/000\.png has 6 x 5 pixels, .*ape/000\.png 7 x 9.*resize=32"):
        load(tmp_path)
    assert load(tmp_path, resize=4).shape == (3, 4, 4)
    assert load(tmp_path, resize=[4, 3]).shape == (3, 4, 3)


def test_resizing_is_that_of_pillow(tmp_path: Path) -> None:
    data = load(write_pictures(tmp_path, TWO), resize=(3, 4))
    image = Image.open(tmp_path / "train" / "cat" / "000.png").resize((4, 3), Image.Resampling.BILINEAR)
    expected = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    torch.testing.assert_close(data.pixels(data.train.inputs[0]), expected, atol=1e-6, rtol=0)


def test_grey_and_coloured_together_are_coloured_and_say_so(tmp_path: Path) -> None:
    write_pictures(tmp_path, TWO)
    write_pictures(tmp_path, {"train": {"ape": 6}}, mode="L")
    data = load(tmp_path)
    assert data.shape[0] == 3
    assert any("24 of 30 pictures are" in guess for guess in data.guessed)


@pytest.mark.parametrize("mode", ["1", "LA", "P", "RGBA", "CMYK"])
def test_other_modes_are_converted(tmp_path: Path, mode: str) -> None:
    write_pictures(tmp_path, {"": {"a": 12, "b": 12}})
    for path in tmp_path.rglob("*.png"):
        image = Image.open(path).convert("L" if mode in ("1", "LA") else "RGB").convert(mode)
        path.unlink()
        image.save(path.with_suffix(".jpg" if mode == "CMYK" else ".png"))
    assert load(tmp_path).shape == (1 if mode in ("1", "LA") else 3, 6, 5)


def test_photographs_stand_upright(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[274] = 6
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(8):
            pixels = np.zeros((8, 16, 3), np.uint8)
            pixels[:, 8:] = 255
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.jpeg", exif=turned, quality=95)
    data = load(tmp_path, mean=0.0, std=1.0)
    assert data.shape == (3, 16, 8)
    assert float(data.train.inputs[0, :, 8:].mean()) > 0.9 > 0.1 > float(data.train.inputs[0, :, :8].mean())


def bomb(side: int) -> bytes:
    """A PNG whose header says ``side`` by ``side``, with next to nothing behind it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def sixteen_bits() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((6, 5), np.uint16)).save(out, "PNG")
    return out.getvalue()


def gif() -> bytes:
    out = io.BytesIO()
    Image.new("L", (5, 6)).save(out, "GIF")
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "999.png is not a readable PNG or JPEG picture"),
        (b"GIF89a", "999.png is not a readable PNG or JPEG picture"),
        (gif(), "999.png is not a readable PNG or JPEG picture"),
        (bomb(8_000), "999.png would unpack to 8000 x 8000 pixels"),
        (bomb(100_000), "999.png (would unpack to|is not a readable)"),
        (bomb(6), "999.png"),
        (sixteen_bits(), "999.png has pixels of kind 'I;16', not of 8 bits.*scale="),
    ],
    ids=["empty", "cut", "gif", "large", "huge", "short", "deep"],
)
def test_hostile_pictures_are_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    (write_pictures(tmp_path, TWO) / "train" / "dog" / "999.png").write_bytes(content)
    with pytest.raises(DataError, match=words):
        load(tmp_path)


def test_truncated_pictures_are_refused_by_name(tmp_path: Path) -> None:
    path = write_pictures(tmp_path, TWO) / "test" / "dog" / "001.png"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"test/dog/001\.png is not a readable PNG or JPEG picture: \w+\."):
        load(tmp_path)


def test_flipped_bytes_are_a_picture_or_a_data_error(tmp_path: Path) -> None:
    path = write_pictures(tmp_path, TWO) / "train" / "cat" / "000.png"
    content = path.read_bytes()
    for place in range(0, len(content), 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        with contextlib.suppress(DataError):
            load(tmp_path)


def test_all_pictures_together_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path, TWO)
    monkeypatch.setattr(module, "ROOM", 2000)
    monkeypatch.setattr(module, "EXPANSION", 0.01)
    with pytest.raises(DataError, match="24 pictures of 6 x 5 pixels would unpack to more than 2000"):
        load(tmp_path)


def add_link(folder: Path) -> None:
    (folder.parent / "secret.png").write_bytes((folder / "train" / "cat" / "000.png").read_bytes())
    (folder / "train" / "cat" / "link.png").symlink_to(folder.parent / "secret.png")


def add_folder_link(folder: Path) -> None:
    (folder.parent / "other" / "x").mkdir(parents=True)
    (folder.parent / "other" / "a.png").write_bytes((folder / "train" / "cat" / "000.png").read_bytes())
    (folder / "train" / "zebra").symlink_to(folder.parent / "other")


def add_class(folder: Path) -> None:
    write_pictures(folder, {"test": {"cow": 1}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add_link, r"link\.png is a link that leads out of pets"),
        (add_folder_link, "a link that leads out of pets"),
        (add_class, "cow is no class of the training pictures"),
        (lambda folder: (folder / "train" / "cow").mkdir(), "cow has no pictures"),
        (lambda folder: (folder / "train" / "cat" / "more").mkdir(), "more is not a PNG or JPEG file"),
        (lambda folder: (folder / "train" / "cat" / "a.bmp").touch(), r"a\.bmp is not a PNG or JPEG file"),
    ],
)
def test_what_does_not_belong_is_named(tmp_path: Path, change: Any, words: str) -> None:
    folder = write_pictures(tmp_path / "pets", TWO)
    change(folder)
    with pytest.raises(DataError, match=words):
        load(folder)


def test_links_within_and_hidden_files_do_no_harm(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "pets", TWO)
    (folder / "train" / "cat" / "again.png").symlink_to(folder / "train" / "cat" / "000.png")
    (folder / "train" / "cat" / ".DS_Store").touch()
    (folder / "train" / ".cache").mkdir()
    (folder / "README.md").touch()
    assert len(load(folder).train) == 16
    (tmp_path / "elsewhere").symlink_to(folder)
    assert len(load(tmp_path / "elsewhere").train) == 16


def test_only_folders_of_pictures_are_taken_for_such(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").touch()
    assert format_of(tmp_path) is FORMATS["idx"]
    write_pictures(tmp_path, {"": {"b": 1}})
    assert format_of(tmp_path) is FORMATS["pictures"]


def test_a_folder_of_pictures_has_no_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is read as 'pictures', which takes no group"):
        load(write_pictures(tmp_path, TWO), group="person")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path, TWO)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r"Reading pictures needs the extra 'data'"):
        load(tmp_path)
