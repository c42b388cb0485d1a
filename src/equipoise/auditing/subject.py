"""What of a run folder is attacked: the model, its weights after chosen rounds, and public data that fit it.

A run of the embedded engine names its own datasets and model. The folder of a deployment has neither data nor code: the
auditor names both, and what the server could not know is said in notes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.bundle import BUNDLED
from ..data.contents import Format, Reading
from ..data.dataset import Dataset
from ..data.formats import format_of
from ..data.loading import Public, load_public
from ..data.splits import Split, mixed, strangers
from ..engine.data_settings import LATER, DataSettings
from ..engine.datasets import load_datasets
from ..engine.settings import Settings
from ..errors import CheckpointError, ConfigError, DataError, EquipoiseError, ModelError, closest, raise_all
from ..mechanism.schedule import defence_label
from ..models.batched import Batched
from ..models.bundled import MODELS
from ..models.check import check_model
from ..models.inputs import placed
from ..models.named import Factory, Model, chosen, code_of, confirmed, model_of
from ..models.received import Received
from ..runs.deployment import Deployment
from ..runs.folder import RunFolder
from ..runs.typed import nulls, typed
from .results import THINGS
from .targets import FEWEST

NAME_PUBLIC = "Name public data: --public PATH, or public= in Python (a bundled dataset, a folder, an npz file)."
SAY = "--set target=COLUMN, --set drop=none and so on (reading= in Python)."
NAME_OTHER = "Name data that the run did not train on: --public PATH (public= in Python)."
OR_TRAIN = "Name public data with --public PATH (public= in Python), or train again with --set public_fraction=0.1."


@dataclass(frozen=True)
class Subject:
    """Model, weights by round ``[F, P]`` and datasets by name, with what to say of them."""

    datasets: dict[str, Dataset]
    batched: Batched
    weights: dict[int, Tensor]
    notes: list[str]
    code: nn.Module | Factory | None = None  # of the model, where it is not bundled: to train as the run did


def subject_of(
    run: RunFolder,
    rounds: Sequence[int],
    public: Public | None = None,
    model: Model | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Subject:
    """What of the folder is attacked at these rounds, with ``public`` data and a ``model`` where it names none.

    Where it names code, that is imported only if ``model`` says the same. A path of public data is read as the run's
    own files were, but for what ``reading`` says.
    """
    named = _described(run, public, reading or {})
    deployment = run.config.deployment
    if deployment is not None:
        return _deployed(run, deployment, rounds, named, model)
    settings = run.config.settings
    code = code_of(confirmed(settings.training.model, model))
    datasets = load_datasets(settings, [fed.dataset for fed in run.config.federations()])
    notes: list[str] = []
    if named is not None:
        datasets = {name: _with_public(data, named, notes) for name, data in datasets.items()}
    for data in datasets.values():
        if data.public is None:
            raise DataError(f"Dataset {data.name!r} has no public {THINGS[data.kind]}s to attack with.", OR_TRAIN)
    sample, (device, dtype) = next(iter(datasets.values())), _kind(settings)
    with torch.random.fork_rng(devices=[]):
        source = copy.deepcopy(code) if isinstance(code, nn.Module) else chosen(settings.training.model, code)
        module = model_of(source, sample.shape, sample.classes, sample.vocabulary)
    batched = Batched(module.to(device, dtype), device=device)
    weights = {number: run.weights(number, batched.layout).to(device, dtype) for number in rounds}
    return Subject(datasets, batched, weights, notes, code)


def _kind(settings: Settings) -> tuple[torch.device, torch.dtype]:
    return torch.device(settings.run.device), getattr(torch, settings.run.dtype)


@dataclass(frozen=True)
class _Named:
    """Public data as the auditor named them, and how they are read if they are files."""

    source: Public
    options: dict[str, Any]

    def load(self, mean: Any, std: Any, class_names: tuple[str, ...] = ()) -> tuple[Split, Any, Any]:
        try:
            return load_public(self.source, mean, std, class_names=class_names, **self.options)
        except DataError as error:
            if not self.options:
                raise
            told = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
            remedy = f"{error.remedy} Where they are unlike the run's own files, say how to read them: {SAY}"
            raise DataError(f"The public data, read with {told}: {error.cause}", remedy) from error


def _described(run: RunFolder, public: Public | None, reading: Mapping[str, Any]) -> _Named | None:
    """Public data and how to read them: as the run's own files, of what their kind takes, but for ``reading``."""
    known = [part.name for part in fields(Reading)]
    if unknown := [key for key in reading if key not in known]:
        raise ConfigError(
            f"Unknown option {unknown[0]!r} of public data.{closest(unknown[0], known)}", f"Known: {', '.join(known)}."
        )
    files = isinstance(public, Path) or (isinstance(public, str) and public not in BUNDLED)
    if reading and not files:
        raise ConfigError(
            f"{next(iter(reading))} says how files of public data are read, and no such file is named.",
            "Name one with --public PATH (public= in Python), or leave it out.",
        )
    if public is None:
        return None
    if not files or not os.path.exists(str(public)):  # of a name that is wrong the loader knows more
        return _Named(public, {})
    kind, problems = format_of(Path(str(public))), list[EquipoiseError]()
    settings = typed(DataSettings, nulls({**asdict(run.config.settings.data), **reading}), "", problems)
    raise_all(problems)
    likewise = set(kind.takes) - ({"scale"} if kind not in _formats(run) else set())  # it is that of one kind of files
    chosen = {key: getattr(settings, key) for key in known if key in likewise or key in reading}
    return _Named(public, {key: value for key, value in chosen.items() if value != LATER[key]})


def _formats(run: RunFolder) -> list[Format]:
    """The kinds of files that a run trained on."""
    names = {fed.dataset for fed in run.config.federations()} - BUNDLED.keys()
    return [format_of(Path(name)) for name in names if os.path.exists(name)]


def _with_public(dataset: Dataset, public: _Named, notes: list[str]) -> Dataset:
    """The dataset with those of these public inputs that are not its own, normalised as its own are.

    The clients' own are private, whatever file they are named by: pictures would show them.
    """
    split, _, _ = public.load(dataset.mean, dataset.std, dataset.class_names)
    things = f"{THINGS[dataset.kind]}s"
    if split.inputs.is_floating_point() == (dataset.kind == "tokens"):
        given, here = ("numbers", "tokens") if dataset.kind == "tokens" else ("tokens", "numbers")
        raise DataError(f"The public data are {given}, those of the run {here}.", f"Give public {things}.")
    if tuple(split.inputs.shape[1:]) != dataset.shape:
        raise DataError(
            f"The public {things} have shape {tuple(split.inputs.shape[1:])}, those of the run {dataset.shape}.",
            f"Give public {things} of the shape that the clients train on.",
        )
    if dataset.vocabulary is not None and int(split.inputs.max()) >= dataset.vocabulary:
        raise DataError(
            f"The public tokens go up to {int(split.inputs.max())}, the model has the numbers below its vocabulary of "
            f"{dataset.vocabulary}.",
            "Number the tokens as those of the run, or leave out rows with others.",
        )
    own = torch.cat([_told_apart_by(dataset, part) for part in (dataset.train, dataset.validation, dataset.test)])
    left = split.take(strangers(_told_apart_by(dataset, split), own))
    if len(left) < len(split):
        known = f"{len(split) - len(left)} of {len(split)} public {things} are the run's own to train or test on"
        try:
            _check_classes(left, dataset.classes)
        except DataError as error:
            raise DataError(f"{known}. {error.cause}", f"{NAME_OTHER} {error.remedy}") from error
        notes.append(f"{known} ({dataset.name}), and were left out.")
    _check_classes(left, dataset.classes)
    return replace(dataset, public=mixed(left))


def _told_apart_by(dataset: Dataset, split: Split) -> Tensor:
    """By what two inputs are told to be the same: of pictures the pixels, as a file of bytes has them."""
    if dataset.kind != "image":
        return split.inputs
    return dataset.pixels(split.inputs).clamp(0, 1).mul(255).round().to(torch.uint8)


def _check_classes(split: Split, classes: int) -> None:
    """Every class needs examples to simulate with and others to be told apart from."""
    if len(split) and int(split.labels.max()) >= classes:
        raise DataError(
            f"The public labels go up to {int(split.labels.max())}, the model tells {classes} classes apart.",
            "Number the classes from 0, as the clients do.",
        )
    counts = torch.bincount(split.labels, minlength=classes)
    rare = (counts < FEWEST).nonzero().flatten().tolist()
    if rare:
        few = ", ".join(map(str, rare[:8])) + (", ..." if len(rare) > 8 else "")
        raise DataError(
            f"The public data have fewer than {FEWEST} examples of class {few}.",
            f"Give at least {FEWEST} of each of the {classes} classes.",
        )


# -- deployments -------------------------------------------------------------------------------------------------------


def _deployed(
    run: RunFolder, deployment: Deployment, rounds: Sequence[int], public: _Named | None, model: Model | None
) -> Subject:
    if public is None:
        raise DataError(f"The folder {run.path} is a deployment's, and its server has no data.", NAME_PUBLIC)
    mean, std = (tuple(m) if isinstance(m, list) else m for m in (deployment.mean, deployment.std))
    split, mean, std = public.load(mean, std)
    vocabulary = None if split.kind != "tokens" else public.options.get("vocabulary") or 1 + int(split.inputs.max())
    module, (device, dtype) = _module(deployment, split, model, vocabulary), _kind(run.config.settings)
    module = module.to(device, dtype)
    states = {number: _received(run, number, module) for number in rounds}
    classes = _classes(module, split)
    _check_classes(split, classes)
    batched = Batched(module, device=device, fixed=_fixed(states))
    (federation,) = run.config.federations()
    dataset = Dataset(
        name=federation.dataset, classes=classes, mean=mean, std=std, train=split, validation=split, test=split,
        public=mixed(split), vocabulary=vocabulary,
    )  # fmt: skip
    weights = {number: _weights(number, state, batched).to(device, dtype) for number, state in states.items()}
    return Subject({federation.dataset: dataset}, batched, weights, _notes(run, deployment))


def _module(deployment: Deployment, split: Split, model: Model | None, vocabulary: int | None) -> nn.Module:
    """The model that the auditor names, or the bundled one that the folder names."""
    if model is None and deployment.model not in MODELS:
        cause = f"is said to be {deployment.model!r}" if deployment.model else "was not told"
        raise ConfigError(
            f"The model of this deployment {cause}; a folder's word is not enough to run code.",
            "Give it, in the folder of its app: --model my_app.task:Net (model= in Python).",
        )
    classes = deployment.classes or 1 + int(split.labels.max())
    with torch.random.fork_rng(devices=[]):
        return model_of(model or str(deployment.model), tuple(split.inputs.shape[1:]), classes, vocabulary)


def _received(run: RunFolder, round_number: int, module: nn.Module) -> Received:
    try:
        return Received(module, run.state(round_number))
    except ModelError as error:
        cause = error.cause.replace(
            "The received state dict does not", f"The snapshot of round {round_number} does not"
        )
        raise ModelError(
            cause, "Give the run's own model with --model, and public data of the shape that its clients train on."
        ) from error


def _weights(round_number: int, state: Received, batched: Batched) -> Tensor:
    flat = batched.layout.flatten(state.trainable())
    if not bool(torch.isfinite(flat).all()):
        raise CheckpointError(
            f"The snapshot of round {round_number} holds weights that are not finite.", "Choose others: --snapshots."
        )
    return flat.unsqueeze(0)


def _fixed(states: Mapping[int, Received]) -> dict[str, Tensor]:
    """Buffers and frozen layers, which clients send back as they came: the same in every round."""
    (first, known), *others = ((number, state.fixed()) for number, state in states.items())
    for number, other in others:
        unlike = [name for name, tensor in known.items() if name not in other or not torch.equal(tensor, other[name])]
        if unlike:
            raise ConfigError(
                f"{unlike[0]!r}, which is not trained, differs between the snapshots of rounds {first} and {number}.",
                f"Audit them one by one: --snapshots {number}.",
            )
    return known


def _classes(module: nn.Module, split: Split) -> int:
    """The outputs of the model for one of the public inputs."""
    like = next(module.parameters())
    images = placed(split.inputs[:2], like.device, like.dtype)
    try:
        check_model(module, images)
        with torch.no_grad():
            outputs = module(images)
    except ModelError as error:
        shape = tuple(split.inputs.shape[1:])
        raise ModelError(f"With public inputs of shape {shape}: {error.cause}", error.remedy) from error
    if outputs.dim() != 2:
        raise ModelError(
            f"The model returns {tuple(outputs.shape)} for two inputs.", "An audit needs one output for each class."
        )
    return int(outputs.shape[1])


def _notes(run: RunFolder, deployment: Deployment) -> list[str]:
    """What the server could not know."""
    asked, (fed,) = run.config.settings.protection, run.config.federations()
    steps = f"{asked.local_steps} local step{'s' if asked.local_steps > 1 else ''} of {asked.batch} examples"
    notes = [
        f"Attacked is what the server asked for, {_defence(fed.mechanism, fed.budget)}, on releases of {steps} at eta "
        f"{asked.eta:g} with cross-entropy. Clients whose app trains longer or with another loss were not attacked as "
        "they are: the server cannot know it (equipoise.audit.batch, .local_steps and equipoise.eta tell it)."
    ]
    if deployment.mean is None:
        notes.append(
            "The run does not say how its clients normalise their inputs (equipoise.audit.mean and .std): the public "
            "data were taken in their own normalisation."
        )
    return notes


def _defence(mechanism: str, budget: Any) -> str:
    return "no distortion" if budget is None else defence_label(mechanism, budget)
