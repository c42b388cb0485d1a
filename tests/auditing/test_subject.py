"""What of a folder is attacked: public data that the user names, and models and weights of deployments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.subject import Subject, subject_of
from equipoise.bounds.run import bounds_run
from equipoise.data.dataset import Dataset
from equipoise.data.loading import load_public
from equipoise.data.splits import mixed
from equipoise.errors import CheckpointError, ConfigError, DataError, ModelError
from equipoise.models.bundled import MLP
from equipoise.runs.folder import RunFolder
from tests.audit_helpers import SIDE, cheap, deployed, train_run, write_pictures
from tests.helpers import write_dataset

SHAPE, CLASSES = (1, SIDE, SIDE), 4
TOLD: dict[str, Any] = {"model": "mlp", "classes": CLASSES, "mean": 0.5, "std": 0.25}


def seeded(kind: Any, number: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return kind()


def mlp(number: int = 0) -> nn.Module:
    return seeded(lambda: MLP(SHAPE, CLASSES), number)


class Normed(nn.Module):
    """With a buffer, a statistic that counts in whole numbers, and a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1).eval()
        self.frozen = nn.Linear(SIDE * SIDE, 8).requires_grad_(False)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.frozen(self.norm(x).flatten(1))))
        return outputs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A deployment of a bundled model, as its server leaves it."""
    states = {number: dict(mlp(number).state_dict()) for number in (0, 1, 3)}
    return deployed(tmp_path / "run", states, TOLD)


def of(folder: Path, *arguments: Any, **named: Any) -> Subject:
    run = RunFolder(folder)
    return subject_of(run, run.snapshots(), *arguments, **named)


def only(subject: Subject) -> Dataset:
    (data,) = subject.datasets.values()
    return data


# --- deployments ----------------------------------------------------------------------------------------------


def test_a_deployment_is_attacked_at_the_weights_that_its_server_kept(run: Path, pictures: Path) -> None:
    subject = of(run, pictures)
    assert list(subject.weights) == [0, 1, 3]
    for number, weights in subject.weights.items():
        expected = subject.batched.layout.flatten(dict(mlp(number).state_dict()))
        assert torch.equal(weights, expected.unsqueeze(0))


def test_the_public_images_are_normalised_as_the_clients_do_it(run: Path, pictures: Path) -> None:
    data = only(of(run, pictures))
    raw = np.concatenate([np.load(pictures / f"{name}.npz")["images"] for name in ("train", "test")])
    assert data.public is not None
    assert len(data.public) == len(raw), "every image of the folder is public"
    assert (data.mean, data.std, data.classes) == (0.5, 0.25, CLASSES)
    assert float(data.public.inputs.min()) == pytest.approx((raw.min() / 255 - 0.5) / 0.25)


def test_a_deployment_is_audited_and_what_its_server_cannot_know_is_said(run: Path, pictures: Path) -> None:
    result = audit_run(run, cheap(attacks=["matched", "labels"]), public=pictures)
    assert {row["round"] for row in result.rows} == {0, 1, 3}
    assert {row["role"] for row in result.rows} >= {"own", "undistorted", "static, equal lower bound"}
    assert {row["dataset"] for row in result.rows} == {"deployment"}
    (note,) = result.content["notes"]
    assert "pl-learn @ 0.98, on releases of 1 local step of 2 examples at eta 0.1" in note
    assert "the server cannot know it" in note
    result.save(run)
    for name in ("audit.json", "config.toml"):
        assert str(pictures.parent) not in (run / name).read_text()


def test_an_unknown_normalisation_is_said(tmp_path: Path, pictures: Path) -> None:
    folder = deployed(tmp_path, {1: dict(mlp().state_dict())}, {"model": "mlp"})
    subject = of(folder, pictures)
    assert "does not say how its clients normalise" in subject.notes[1]
    images = only(subject).train.inputs
    assert float(images.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(images.std()) == pytest.approx(1.0, abs=1e-3)


def test_public_tensors_are_taken_as_they_are_and_bound_the_search(tmp_path: Path) -> None:
    folder = deployed(tmp_path, {1: dict(mlp().state_dict())}, {"model": "mlp"})
    images, labels = torch.linspace(-3.0, 5.0, 48 * SIDE * SIDE).view(48, *SHAPE), torch.arange(48) % CLASSES
    data = only(of(folder, (images, labels)))
    assert torch.equal(data.train.inputs, images)
    assert float(data.pixels(images).min()) == pytest.approx(0.0, abs=1e-6)
    assert float(data.pixels(images).max()) == pytest.approx(1.0, abs=1e-6)


def test_a_module_of_the_folder_is_not_imported_because_the_folder_says_so(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_of_test.py").write_text("raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    folder = deployed(tmp_path / "run", {1: dict(mlp().state_dict())}, {"model": "evil_of_test:Net"})
    with pytest.raises(ConfigError, match="is said to be 'evil_of_test:Net'; a folder's word is not enough") as caught:
        of(folder, pictures)
    assert "evil" not in caught.value.remedy, "nobody should paste what a folder says"
    untold = deployed(tmp_path / "other", {1: dict(mlp().state_dict())})
    with pytest.raises(ConfigError, match="was not told") as caught:
        of(untold, pictures)
    assert "--model my_app.task:Net" in caught.value.remedy


def test_buffers_and_frozen_layers_are_those_of_the_server(tmp_path: Path, pictures: Path) -> None:
    """The auditor's own model has others, which must not count."""
    server = seeded(Normed, 1)
    server.norm.running_mean.fill_(0.7)  # type: ignore[union-attr]
    server.norm.num_batches_tracked.fill_(9)  # type: ignore[union-attr]
    folder = deployed(tmp_path, {number: dict(server.state_dict()) for number in (0, 2)})
    subject = of(folder, pictures, lambda: seeded(Normed, 2))
    images = only(subject).train.inputs[:3]
    with torch.no_grad():
        expected = server(images)
    assert torch.allclose(subject.batched.outputs(subject.weights[2], images.unsqueeze(0))[0], expected, atol=1e-5)
    assert [slot.name for slot in subject.batched.layout.slots] == [
        "norm.weight",
        "norm.bias",
        "last.weight",
        "last.bias",
    ]


def test_buffers_that_differ_between_snapshots_are_audited_one_by_one(tmp_path: Path, pictures: Path) -> None:
    states = {0: dict(seeded(Normed, 1).state_dict()), 2: dict(seeded(Normed, 1).state_dict())}
    states[2]["norm.running_mean"] = torch.tensor([0.3])
    folder = deployed(tmp_path, states)
    with pytest.raises(ConfigError, match=r"'norm.running_mean'.* rounds 0 and 2") as caught:
        of(folder, pictures, Normed)
    assert "--snapshots 2" in caught.value.remedy
    assert subject_of(RunFolder(folder), [2], pictures, Normed).weights.keys() == {2}


def test_half_precision_is_audited_in_single(tmp_path: Path, pictures: Path) -> None:
    folder = deployed(tmp_path, {1: dict(mlp().half().state_dict())}, {"model": "mlp"})
    assert of(folder, pictures).weights[1].dtype == torch.float32


# --- refusals -------------------------------------------------------------------------------------------------


def test_a_deployment_without_public_data_is_refused(run: Path) -> None:
    with pytest.raises(DataError, match="its server has no data") as caught:
        audit_run(run, cheap())
    assert "--public PATH" in caught.value.remedy


@pytest.mark.parametrize("model", ["small-cnn", "lenet-zhu", lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 4))])
def test_another_model_is_refused(run: Path, pictures: Path, model: Any) -> None:
    with pytest.raises(ModelError, match="The snapshot of round 0 does not fit the model") as caught:
        of(run, pictures, model)
    assert "--model" in caught.value.remedy


def test_images_of_another_shape_are_refused(run: Path) -> None:
    other = torch.rand(48, 1, 6, 6), torch.arange(48) % CLASSES
    with pytest.raises(ModelError, match="does not fit the model") as caught:
        of(run, other)
    assert "public data of the shape that its clients train on" in caught.value.remedy
    with pytest.raises(ModelError, match=r"With public inputs of shape \(1, 6, 6\)") as caught:
        of(run, other, mlp())
    assert "inputs of this shape" in caught.value.remedy


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.arange(48) % 3, "fewer than 4 examples of class 3"),
        (torch.tensor([0, 1, 2, *[3] * 45]), "fewer than 4 examples of class 0, 1, 2"),
        (torch.arange(48) % 5, "labels go up to 4, the model tells 4 classes apart"),
    ],
)
def test_public_data_need_every_class_of_the_model(run: Path, labels: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        of(run, (torch.rand(48, *SHAPE), labels))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, pictures: Path) -> None:
    states = {number: dict(mlp().state_dict()) for number in (0, 1)}
    states[1]["fc1.bias"] = torch.full((64,), float("nan"))
    folder = deployed(tmp_path, states, TOLD)
    with pytest.raises(CheckpointError, match="round 1 holds weights that are not finite"):
        of(folder, pictures)


def test_what_only_clients_have_is_not_asked_of_a_deployment(run: Path, pictures: Path) -> None:
    with pytest.raises(ConfigError, match="nothing of its clients' data") as caught:
        audit_run(run, cheap(), private=True, public=pictures)
    assert caught.value.remedy == "Leave out --private."
    with pytest.raises(ConfigError, match="which multi-round replays"):
        audit_run(run, cheap(), multi_rounds=3, public=pictures)
    with pytest.raises(ConfigError, match="the bounds need the clients' data"):
        bounds_run(run)


def test_a_model_without_a_row_of_classes_is_refused(tmp_path: Path, pictures: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3))
    folder = deployed(tmp_path, {0: dict(model.state_dict()), 1: dict(model.state_dict())})
    with pytest.raises(ModelError, match="for two inputs"):
        of(folder, pictures, model)


# --- runs of the engine ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("private")
    return train_run(place / "run", write_pictures(place / "data"), ("none",), public_fraction=0.0)


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Pictures that no run trained on."""
    return write_dataset(tmp_path / "others", 160, 16, seed=12, side=SIDE, classes=CLASSES)


def test_a_run_without_a_public_part_is_audited_with_data_that_the_user_names(
    without_public: Path, others: Path
) -> None:
    with pytest.raises(DataError, match="no public images to attack with") as caught:
        audit_run(without_public, cheap(attacks=["labels"]))
    assert "--public PATH" in caught.value.remedy
    result = audit_run(without_public, cheap(attacks=["labels"]), [0], public=others / "train.npz")
    assert result.content["notes"] == []
    assert result.rows


def test_images_that_the_run_trained_on_are_not_public_whatever_names_them(without_public: Path, others: Path) -> None:
    """Pictures draw public images: those of the clients would get there without --private."""
    data = without_public.parent / "data"
    for named in (data, data / "train.npz", data / "test.npz"):
        with pytest.raises(DataError, match="public images are the run's own to train or test on") as caught:
            subject_of(RunFolder(without_public), [0], public=named)
        assert "--public PATH" in caught.value.remedy
    parts = [np.load(folder / "train.npz") for folder in (others, data)]
    both = {name: np.concatenate([part[name] for part in parts]) for name in ("images", "labels")}
    both["images"] = (both["images"] / 255).astype(np.float32)  # the same pixels in another form
    np.savez(others / "both.npz", **both)
    subject = subject_of(RunFolder(without_public), [0], public=others / "both.npz")
    alone = subject_of(RunFolder(without_public), [0], public=others / "train.npz")
    assert subject.notes == [
        "160 of 320 public images are the run's own to train or test on (data), and were left out."
    ]
    found, expected = only(subject).public, only(alone).public
    assert found is not None
    assert expected is not None
    assert torch.allclose(found.inputs, expected.inputs, atol=1e-6)


def test_pictures_show_no_image_that_the_run_trained_on(tmp_path: Path, others: Path) -> None:
    """Of a run with a public part of its own, that is what is left of the file it trained on."""
    run = train_run(tmp_path / "run", write_pictures(tmp_path / "data"), ("none",))
    data = only(subject_of(RunFolder(run), [0], public=tmp_path / "data" / "train.npz"))
    own = only(subject_of(RunFolder(run), [0]))
    assert data.public is not None
    assert own.public is not None
    found, expected = (sorted(part.inputs.sum((1, 2, 3)).tolist()) for part in (data.public, own.public))
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_run_keeps_its_own_normalisation_and_training_data(without_public: Path, others: Path) -> None:
    run = RunFolder(without_public)
    plain = subject_of(run, [0], public=others)
    data = only(plain)
    pixels = np.load(others / "train.npz")["images"]
    assert data.public is not None
    assert len(data.train) < len(pixels)
    assert float(data.pixels(data.public.inputs).max()) == pytest.approx(1.0, abs=1e-5)


def test_public_data_of_a_run_must_fit_it(without_public: Path) -> None:
    run = RunFolder(without_public)
    with pytest.raises(DataError, match=r"shape \(1, 6, 6\), those of the run \(1, 12, 12\)"):
        subject_of(run, [0], (torch.rand(48, 1, 6, 6), torch.arange(48) % CLASSES))
    with pytest.raises(DataError, match="fewer than 4 examples of class 3"):
        subject_of(run, [0], (torch.rand(48, *SHAPE), torch.arange(48) % 3))


def test_a_run_of_the_engine_names_its_own_model(without_public: Path, others: Path) -> None:
    with pytest.raises(ConfigError, match="names its model"):
        subject_of(RunFolder(without_public), [0], others, "lenet-zhu")
    assert subject_of(RunFolder(without_public), [0], others, "mlp").code is None, "its name again does no harm"


# --- how public files are read --------------------------------------------------------------------------------


def table(path: Path, seed: int, count: int = 200, sick: tuple[str, ...] = ("no", "yes"), **also: str) -> Path:
    """Rows of two numbers, with a class by their sum, and a last column that looks like one of classes."""
    path.parent.mkdir(exist_ok=True, parents=True)
    local = torch.Generator().manual_seed(seed)
    rows = [f"{','.join([*also, 'sick'])},x1,x2,flag"]
    for place, (one, other) in enumerate((torch.randn(count, 2, generator=local) * 3).tolist()):
        name = sick[int(one + other > 0) % len(sick)]
        rows.append(f"{','.join([*also.values(), name])},{one:.4f},{other:.4f},{place % 2}")
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def of_a_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("table")
    return train_run(
        place / "run", table(place / "people.csv", 1, city="Ulm"), ("none",), rounds=1, snapshots=[0],
        public_fraction=0.0, target="sick", drop=["city"],
    )  # fmt: skip


def test_public_files_are_read_as_the_run_read_its_own(of_a_table: Path, tmp_path: Path) -> None:
    other = table(tmp_path / "other.csv", 2, city="Bonn")
    run = RunFolder(of_a_table)
    data = only(subject_of(run, [0], other))
    expected, *_ = load_public(other, data.mean, data.std, target="sick", drop=["city"])
    assert data.public is not None
    assert torch.equal(data.public.inputs, mixed(expected).inputs)
    assert torch.equal(data.public.labels, mixed(expected).labels)


def test_what_differs_in_public_files_can_be_said(of_a_table: Path, tmp_path: Path) -> None:
    bare = table(tmp_path / "bare.csv", 2)
    run = RunFolder(of_a_table)
    with pytest.raises(DataError, match=r"read with target='sick', drop=\['city'\]: .* no column 'city'") as caught:
        subject_of(run, [0], bare)
    assert "--set drop=none" in caught.value.remedy
    data = only(subject_of(run, [0], bare, reading={"drop": "none"}))
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(bare.read_text().replace("sick", "ill"))
    again = only(subject_of(run, [0], renamed, reading={"drop": None, "target": "ill"}))
    assert data.public is not None
    assert again.public is not None
    assert torch.equal(data.public.inputs, again.public.inputs)


def test_classes_of_public_files_have_the_numbers_that_the_run_gave_them(tmp_path: Path) -> None:
    """A file numbers the classes that it holds, in their order: without the first, each is one too low."""
    own = table(tmp_path / "own.csv", 1, sick=("none", "some"))
    run = RunFolder(train_run(tmp_path / "run", own, ("none",), rounds=1, snapshots=[0], target="sick"))
    names = only(subject_of(run, [0])).class_names
    assert names == ("none", "some")
    with pytest.raises(DataError, match="fewer than 4 examples of class 0"):
        subject_of(run, [0], table(tmp_path / "half.csv", 2, sick=("some",)))
    with pytest.raises(DataError, match=r"have the classes 'a lot', which .* have not: these have 'none', 'some'"):
        subject_of(run, [0], table(tmp_path / "other.csv", 2, sick=("none", "a lot")))


def texts(path: Path, seed: int, most: int = 40) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    local = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, most, (200, 6), generator=local).numpy()
    np.savez(path, tokens=tokens, labels=np.arange(200) % 2)
    return path


def test_tokens_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    run = RunFolder(
        train_run(tmp_path / "run", texts(tmp_path / "own.npz", 1), ("none",), rounds=1, snapshots=[0],
                  model="transformer", vocabulary=50)
    )  # fmt: skip
    assert only(subject_of(run, [0], texts(tmp_path / "fits.npz", 2))).vocabulary == 50
    large = texts(tmp_path / "large.npz", 3, 60)
    with pytest.raises(DataError, match=r"tokens go up to 59, .* vocabulary of 50") as caught:
        subject_of(run, [0], large)
    assert "leave out rows" in caught.value.remedy
    with np.load(large) as arrays, pytest.raises(DataError, match="tokens go up to 59"):
        subject_of(run, [0], (torch.from_numpy(arrays["tokens"]), torch.from_numpy(arrays["labels"])))


def test_a_scale_is_that_of_one_kind_of_files(tmp_path: Path) -> None:
    own = write_pictures(tmp_path / "own")
    for part in ("train", "test"):
        with np.load(own / f"{part}.npz") as arrays:
            np.savez(own / f"{part}.npz", images=arrays["images"].astype(np.uint16) * 257, labels=arrays["labels"])
    run = RunFolder(train_run(tmp_path / "run", own, ("none",), rounds=1, snapshots=[0], scale=65535.0))
    others = write_dataset(tmp_path / "others", 160, 16, seed=12, side=SIDE, classes=CLASSES)
    with np.load(others / "train.npz") as arrays:
        for place, (image, label) in enumerate(zip(arrays["images"], arrays["labels"], strict=True)):
            (tmp_path / "png" / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.squeeze()).save(tmp_path / "png" / str(label) / f"{place}.png")
    data = only(subject_of(run, [0], tmp_path / "png"))
    assert data.public is not None
    assert float(data.pixels(data.public.inputs).max()) == pytest.approx(1.0, abs=1e-2)


def test_the_public_files_of_a_deployment_are_read_as_the_auditor_says(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    folder = deployed(tmp_path / "run", {0: dict(model.state_dict()), 1: dict(model.state_dict())})
    public = table(tmp_path / "public.csv", 2, city="Bonn")
    reading = {"target": "sick", "drop": ["city"]}
    data = only(subject_of(RunFolder(folder), [0], public, model, reading))
    expected, *_ = load_public(public, target="sick", drop=["city"])
    assert torch.equal(data.train.labels, expected.labels)
    assert torch.equal(data.train.inputs, expected.inputs)


@pytest.mark.parametrize(
    ("public", "reading", "words"),
    [
        (None, {"target": "sick"}, "no such file is named"),
        ("mnist", {"target": "sick"}, "no such file is named"),
        ((torch.zeros(2, 1), torch.zeros(2)), {"target": "sick"}, "no such file is named"),
        ("people.csv", {"tagret": "sick"}, "Unknown option 'tagret' of public data. Did you mean 'target'"),
        ("people.csv", {"target": 5}, "target = 5"),
    ],
)
def test_what_is_said_of_public_files_must_concern_them(
    of_a_table: Path, public: Any, reading: dict[str, Any], words: str
) -> None:
    public = of_a_table.parent / public if public == "people.csv" else public
    with pytest.raises(ConfigError, match=words):
        subject_of(RunFolder(of_a_table), [0], public, reading=reading)
