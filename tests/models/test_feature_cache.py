"""Features on disk: known again, for their owner alone, and never in the way."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models import feature_cache
from equipoise.models.feature_cache import cached_features
from equipoise.models.features import FeatureModel, zero_head
from equipoise.models.scattering import Scattering

IMAGES = torch.rand(3, 1, 2, 2, generator=torch.Generator().manual_seed(4))


class Scaled(nn.Module):
    """Counts the records that it saw; what it makes of them depends on a tensor and on an attribute."""

    def __init__(self, tensor: float = 1.0, attribute: float = 1.0) -> None:
        super().__init__()
        self.attribute, self.calls = attribute, 0
        self.register_buffer("scale", torch.tensor(tensor), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += len(x)
        return x.flatten(1) * self.scale * self.attribute


class Other(Scaled):
    pass


def model(**settings: Any) -> FeatureModel:
    return FeatureModel(Scaled(**settings), zero_head(4, 2))


def computed(m: FeatureModel, images: Tensor = IMAGES, **options: Any) -> bool:
    """Whether the records had to be computed with, beyond the three that are nobody's."""
    features: Any = m.features
    features.calls = 0
    assert torch.equal(cached_features(m, images, **options), images.flatten(1) * features.scale * features.attribute)
    return bool(features.calls > 3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "_warned", set())
    monkeypatch.setattr(feature_cache, "KEPT", (Scaled, Other))
    return tmp_path / "cache" / "features"


def test_features_are_computed_once(folder: Path) -> None:
    assert [computed(model()) for _ in range(3)] == [True, False, False]
    (file,) = folder.iterdir()
    with np.load(file, allow_pickle=False) as archive:
        assert np.array_equal(archive["features"], IMAGES.flatten(1).numpy())


def test_features_of_a_users_network_are_never_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code may have changed since, and one record less would change whether a file fits."""
    monkeypatch.undo()
    monkeypatch.setenv("EQUIPOISE_CACHE", str(folder.parent))
    assert [computed(model()) for _ in range(2)] == [True, True]
    assert not folder.exists()
    assert (Scattering,) == feature_cache.KEPT


def test_a_folder_that_is_a_link_is_not_used(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    computed(model())
    assert not list((tmp_path / "elsewhere").iterdir())
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755
    assert "is a link" in caplog.text


@pytest.mark.parametrize(
    ("other", "images", "options"),
    [
        (model(tensor=2.0), IMAGES, {}),
        (model(attribute=2.0), IMAGES, {}),
        (FeatureModel(Other(), zero_head(4, 2)), IMAGES, {}),
        (model(), IMAGES.flip(0), {}),
        (model(), IMAGES[:2], {}),
        (model(), IMAGES.nextafter(torch.tensor(2.0)), {}),
        (model(), IMAGES, {"alone": False}),
        (model().double(), IMAGES.double(), {}),
    ],
    ids=["tensor", "attribute", "class", "order", "number", "last bit", "together", "precision"],
)
def test_whatever_features_depend_on_is_part_of_the_key(
    folder: Path, other: FeatureModel, images: Tensor, options: dict[str, Any]
) -> None:
    cached_features(model(), IMAGES)
    assert computed(other, images, **options)
    assert len(list(folder.iterdir())) == 2
    assert not computed(model()), "the first ones are still known"


def test_tensors_are_part_of_the_key_though_no_image_tried_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rare(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            self.calls += len(x)
            return x.flatten(1) * torch.where(x.flatten(1) > 1, self.scale, 1.0)

    monkeypatch.setattr(feature_cache, "KEPT", (Rare,))
    images = IMAGES / 10 + 1.1
    one, two = (cached_features(FeatureModel(Rare(size), zero_head(4, 2)), images) for size in (2.0, 3.0))
    assert torch.equal(one, images.flatten(1) * 2)
    assert torch.equal(two, images.flatten(1) * 3)


def test_versions_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    cached_features(model(), IMAGES)
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert computed(model())


def test_the_head_is_no_part_of_the_key() -> None:
    cached_features(model(), IMAGES)
    trained = model()
    nn.init.ones_(trained.head.weight)
    assert not computed(trained)


# -- for the owner alone -------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_and_file_are_for_their_owner_alone_from_the_first_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    before = os.umask(0)
    try:
        cached_features(model(), IMAGES)
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert [mode(file) for file in folder.iterdir()] == [0o600]


def test_an_open_folder_is_closed(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o777)
    folder.chmod(0o777)
    cached_features(model(), IMAGES)
    assert mode(folder) == 0o700


def damaged(file: Path) -> None:
    content = bytearray(file.read_bytes())
    place = content.index(IMAGES.numpy().tobytes()[:8])
    content[place] ^= 1
    file.write_bytes(content)


def save(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def forged(file: Path) -> None:
    """Other features in a sound archive, with the digest of the old ones."""
    with np.load(file) as archive:
        known = dict(archive)
    save(file, **{**known, "features": known["features"] + 1})


def of_another_shape(file: Path) -> None:
    with np.load(file) as archive:
        known = dict(archive)
    save(file, **{**known, "features": known["features"].reshape(4, 3)})


def linked(file: Path) -> None:
    file.rename(file.with_suffix(".elsewhere"))
    file.symlink_to(file.with_suffix(".elsewhere"))


@pytest.mark.parametrize(
    "change",
    [
        damaged,
        forged,
        of_another_shape,
        linked,
        lambda file: file.write_bytes(file.read_bytes()[:100]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"not an archive"),
        lambda file: save(file, something=np.zeros(3)),
        lambda file: file.chmod(0o622),
    ],
    ids=["bit", "forged", "shape", "link", "cut", "empty", "text", "entries", "open"],
)
def test_what_is_damaged_or_foreign_is_computed_again(folder: Path, change: Callable[[Path], object]) -> None:
    cached_features(model(), IMAGES)
    (file,) = folder.iterdir()
    change(file)
    assert computed(model())
    assert not computed(model()), "and replaced"
    assert mode(file) == 0o600
    assert not file.is_symlink()


def test_a_file_of_another_user_is_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_features(model(), IMAGES)
    (file,) = folder.iterdir()
    own = os.fstat

    def foreign(handle: int) -> os.stat_result:
        about = list(own(handle))
        about[4] = os.geteuid() + 1
        return os.stat_result(about)

    monkeypatch.setattr(os, "fstat", foreign)
    assert feature_cache._read(file, (3, 4)) is None
    monkeypatch.undo()
    assert feature_cache._read(file, (3, 4)) is not None


# -- never in the way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["off", "OFF"])
def test_it_can_be_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", word)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    features: Any = (m := model()).features
    for _ in range(2):
        features.calls = 0
        cached_features(m, IMAGES)
        assert features.calls == 4, "one blank and three records"
    assert list(tmp_path.iterdir()) == []
    assert not caplog.records


def test_the_usual_folder_is_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cached_features(model(), IMAGES)
    assert len(list((tmp_path / "xdg" / "equipoise" / "features").iterdir())) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cached_features(model(), IMAGES)
    assert len(list((tmp_path / "home" / ".cache" / "equipoise" / "features").iterdir())) == 1


def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EQUIPOISE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", missing)


def a_file_in_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")


def full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


def another_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache" / "features").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (no_home, "There is no home folder"),
        (a_file_in_the_way, "cache is a file, not a folder"),
        (full_disk, "No space left on device. Free some space"),
        (another_user, "belongs to another user"),
    ],
)
def test_where_nothing_can_be_kept_the_run_goes_on_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    trouble: Callable[..., None],
    cause: str,
) -> None:
    trouble(monkeypatch, tmp_path)
    with caplog.at_level(logging.WARNING, "equipoise"):
        assert [computed(model()) for _ in range(2)] == [True, True]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Features are not kept for the next time: ")
    assert cause in message


def test_a_race_between_two_writers_is_no_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = feature_cache.write_bytes

    def second(path: Path, content: bytes, mode: int) -> None:
        write(path, content, mode)
        raise feature_cache.StorageError("the other process was faster")

    monkeypatch.setattr(feature_cache, "write_bytes", second)
    assert computed(model())
    assert not caplog.records


def test_features_of_another_kind_are_computed_every_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rounded(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).bfloat16()

    monkeypatch.setattr(feature_cache, "KEPT", (Rounded,))
    m = FeatureModel(Rounded(), zero_head(4, 2))
    assert cached_features(m, IMAGES).dtype == torch.bfloat16
    assert list(folder.iterdir()) == []


def test_records_of_the_wrong_shape_are_a_typed_error() -> None:
    with pytest.raises(ModelError, match="the head takes 4"):
        cached_features(model(), torch.zeros(2, 1, 3, 3))
