"""Settings from TOML and flags: every problem at once, with the nearest key for a misspelt one.

A file holds the keys of ``Settings`` and ``[[sweep]]`` blocks::

    rounds = 2000
    eta = 0.1
    [leakage]
    D = 56.0
    [[sweep]]
    datasets = ["mnist"]
    mechanisms = ["pl-learn", "pl-identical"]
    budgets = [0.96, 0.98]
    seeds = [1, 2]

TOML has no null: write ``"none"`` for "no value" (``clip = "none"`` turns the clip off).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from ..data.bundle import BUNDLED
from ..data.dataset import Dataset
from ..engine.data_settings import FILES
from ..engine.datasets import dataset_labels, load_dataset
from ..engine.federation import Federation
from ..engine.recommended import recommended_for, recommended_model
from ..engine.settings import (
    LATER,
    TABLES,
    Settings,
    check_settings,
    named_as_before,
    present_names,
    problems,
)
from ..errors import ConfigError, EquipoiseError, is_number, is_whole, raise_all
from ..mechanism.protection import ProtectionSettings
from ..mechanism.registry import MECHANISMS
from ..mechanism.schedule import schedule_text
from ..models.bundled import OWN_INIT
from ..models.inputs import Kind
from ..models.named import is_imported
from .config_file import read_given, read_kept, refuse_strange
from .deployment import Deployment
from .typed import nulls, typed, typed_settings

KNOWN_TO_A_SERVER = (
    *(part.name for part in fields(ProtectionSettings)),
    "rounds",
    "snapshots",
    "dtype",
    "release_limit",
)
"""The settings that the server of a deployment can write down; the others belong to the embedded engine."""


NO_MECHANISM = (
    "No --mechanism was given; the default, pl-learn, has no guarantee. For differential privacy: --mechanism "
    "gaussian-dp --budget 2 --set model={}."
)
MOST_FEDERATIONS = 10_000
"""Of one run: each is checked, and trained, in memory."""


@dataclass(frozen=True)
class SweepBlock:
    """A product of datasets, mechanisms, budgets and seeds. ``none`` takes no budget and occurs once per seed."""

    datasets: list[str] = field(default_factory=lambda: ["mnist"])
    mechanisms: list[str] = field(default_factory=lambda: ["pl-learn"])
    budgets: list[Any] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [1])

    def most(self) -> int:
        """The most federations that it can come to, counted without building any."""
        return len(self.datasets) * len(self.mechanisms) * max(1, len(self.budgets)) * len(self.seeds)

    def federations(self) -> list[Federation]:
        rows = []
        for dataset in self.datasets:
            for name in self.mechanisms:
                distorts = name not in MECHANISMS or MECHANISMS[name].distorts
                for budget in (self.budgets or [None]) if distorts else [None]:
                    rows += [Federation(dataset, name, _number(budget), seed) for seed in self.seeds]
        return rows


@dataclass(frozen=True)
class Config:
    """Resolved: what a run folder's config.toml holds.

    >>> config = resolve(sweep={"mechanisms": ["none", "pl-learn"], "budgets": [0.98]})
    >>> [federation.label() for federation in config.federations()]
    ['mnist none (seed 1)', 'mnist pl-learn @ 0.98 (seed 1)']
    """

    settings: Settings
    sweep: list[SweepBlock]
    deployment: Deployment | None = None  # None: a run of the embedded engine
    data: Dataset | None = field(default=None, repr=False, compare=False)  # read for its kind: a run reads it no more

    def federations(self) -> list[Federation]:
        return list({repr(fed): fed for block in self.sweep for fed in block.federations()}.values())

    def digest(self) -> str:
        """Identifies the experiment: everything but where and how fast it runs, and how its releases are counted.

        The chunk size does not show in the bits where the mini-batch is a multiple of 4 (see docs/architecture.md).
        """
        plain = named_as_before(self.settings.plain()) | {"device": "", "route": LATER["route"]}
        plain |= {"chunk": 0} if self.settings.protection.batch % 4 == 0 else {}
        unseen = ("ledger", "release_limit", *(key for key, value in LATER.items() if plain[key] == value))
        plain = {key: value for key, value in plain.items() if key not in unseen}
        text = json.dumps([plain, [asdict(fed) for fed in self.federations()]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_toml(self) -> str:
        plain = self.settings.plain()
        if self.deployment is not None:
            plain = {key: value for key, value in plain.items() if key in KNOWN_TO_A_SERVER}
        tables = {name: plain.pop(name) for name in TABLES}
        lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        for block in self.sweep:
            lines += ["", "[[sweep]]", *(f"{key} = {_toml(value)}" for key, value in asdict(block).items())]
        if self.deployment is not None:
            lines += ["", "[deployment]", *(f"{key} = {_toml(v)}" for key, v in self.deployment.told().items())]
        return "\n".join(lines) + "\n"


def resolve(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
) -> Config:
    """Settings from a file, then overrides, then a sweep.

    Args:
        file: TOML with settings and ``[[sweep]]`` blocks.
        overrides: flat keys, dotted ones (``leakage.D``) allowed.
        sweep: ``datasets``, ``mechanisms``, ``budgets``, ``seeds``: these replace what the blocks name.

    Returns:
        The configuration, checked: every problem is reported at once.

    >>> config = resolve(overrides={"rounds": 10}, sweep={"mechanisms": ["pl-learn"], "budgets": [0.98]})
    >>> config.settings.training.rounds, config.federations()[0].mechanism
    (10, 'pl-learn')
    """
    read: list[Dataset] = []
    config = _resolved(read_given(file) if file else {}, overrides, sweep, partial(_kind, read=read))
    raise_all(list(_unused(config)))
    return replace(config, data=read[0]) if read else config


MARK = "# Resolved settings of an equipoise run."
"""How the config.toml of a run begins."""

UNUSED = {
    "clip": "Leave it out; the bound on a record's gradient is gaussian.clip.",
    "batch": "Leave it out: all records take part in every round, or a share of them with gaussian.sampling_rate.",
}
"""Keys that someone could take for those of ``gaussian-dp``, which has its own."""


def _unused(config: Config) -> Iterator[ConfigError]:
    training = config.settings.training
    if is_imported(training.model) and training.init != "torch":
        cause = (
            f"The model {training.model!r} draws its own first weights, and init={training.init!r} is for bundled ones."
        )
        yield ConfigError(cause, "Leave init out.")
    if all(MECHANISMS[federation.mechanism].whole_run for federation in config.federations()):
        for name, remedy in UNUSED.items():
            if getattr(config.settings.protection, name) != getattr(ProtectionSettings(), name):
                yield ConfigError(f"{name} plays no part with gaussian-dp.", remedy)


def stored(file: Path, notes: list[str] | None = None) -> Config:
    """The configuration that a run folder holds; keys may have the names of schema 1.

    With ``notes``, a device and threads that this machine lacks are replaced, and said there: for whoever reads a
    folder from elsewhere.
    """
    raw = present_names(read_kept(file))
    if notes is not None:
        raw |= dict(_replaced(raw, notes))
    told = raw.pop("deployment", None)
    config = _resolved(raw, None, None, lambda settings, names: "image")  # a folder has all keys, or is a deployment's
    if told is None:
        return config
    problems: list[EquipoiseError] = []
    deployment = typed(Deployment, told, "deployment.", problems)
    raise_all(problems)
    deployment.check()
    if len(config.federations()) != 1:
        raise ConfigError(
            f"Expected one federation beside [deployment], got {len(config.federations())}.",
            "Leave one [[sweep]] block with one mechanism and budget: a deployment has no other.",
        )
    return replace(config, deployment=deployment)


def _replaced(raw: Mapping[str, Any], notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Settings that this machine cannot keep, with what it has."""
    device, threads, most = raw.get("device"), raw.get("threads"), os.cpu_count() or 1
    if isinstance(device, str) and device.startswith("cuda") and not torch.cuda.is_available():
        notes.append("The run was trained on a GPU; this machine has none, and its CPU was used.")
        yield "device", "cpu"
    if is_whole(threads) and threads > most:
        notes.append(f"The run had {threads} CPU threads; this machine has {most}.")
        yield "threads", most


def _resolved(
    raw: dict[str, Any],
    overrides: Mapping[str, Any] | None,
    sweep: Mapping[str, Sequence[Any]] | None,
    kind: Callable[[Mapping[str, Any], Sequence[str]], Kind],
) -> Config:
    refuse_strange({**(overrides or {}), **(sweep or {})})
    for key, value in (overrides or {}).items():
        _assign(raw, key, value)
    blocks = raw.pop("sweep", [])
    if isinstance(blocks, Mapping):
        blocks = [blocks]
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise ConfigError(f"Expected sweep={blocks!r} to be [[sweep]] blocks.", "See examples/sweep.toml.")
    given = {key: list(values) for key, values in (sweep or {}).items() if values}
    if given:
        blocks = [{**block, **given} for block in blocks or [{}]]
    results: list[EquipoiseError] = []
    of_blocks: list[EquipoiseError] = []
    listed = [typed(SweepBlock, block, f"sweep[{i}].", of_blocks) for i, block in enumerate(blocks or [{}])]
    settings = typed_settings(nulls(_with_recommended(raw, [block for block in listed if block], kind)), results)
    results += of_blocks
    config = Config(settings, [block for block in listed if block is not None])
    _refuse_many(config.sweep)
    if len(config.sweep) == len(listed):
        results += problems(config.settings, config.federations())
    unnamed = not all("mechanisms" in block for block in blocks or [{}])
    if unnamed and results:
        what = kind(raw, [name for block in config.sweep for name in block.datasets])
        model = raw.get("model") or recommended_model(["gaussian-dp"], what)
        results = [_without_mechanism(result, str(model)) for result in results]
    raise_all(results)
    return config


def _without_mechanism(problem: EquipoiseError, model: str) -> EquipoiseError:
    """The same of a federation that nobody asked for: whoever named no mechanism may have meant another."""
    (default,) = SweepBlock().mechanisms
    of_default = f" {default}: " in problem.cause
    return type(problem)(problem.cause, f"{problem.remedy} {NO_MECHANISM.format(model)}") if of_default else problem


def _refuse_many(blocks: Sequence[SweepBlock]) -> None:
    """A folder from elsewhere may hold short lists whose product fills the memory."""
    if (most := sum(block.most() for block in blocks)) > MOST_FEDERATIONS:
        raise ConfigError(
            f"The lists of the sweep come to {most:,} federations; a run may have {MOST_FEDERATIONS:,}.",
            "Name fewer datasets, mechanisms, budgets or seeds, or make several runs.",
        )


def _with_recommended(
    raw: dict[str, Any], blocks: Sequence[SweepBlock], kind: Callable[[Mapping[str, Any], Sequence[str]], Kind]
) -> dict[str, Any]:
    """The keys that are given, and those recommended for the data and mechanisms of the sweep where none is given."""
    mechanisms = [name for block in blocks for name in block.mechanisms]
    datasets = [name for block in blocks for name in block.datasets]
    what = cache(lambda: kind(raw, datasets))  # may read the data: only where it matters
    model = raw["model"] if "model" in raw else recommended_model(mechanisms, what())
    if not isinstance(model, str):
        return raw
    kept = recommended_for(mechanisms, model)
    if is_imported(model) or model in OWN_INIT or ("init" not in raw and model == "mlp" and what() == "table"):
        kept["init"] = "torch"
    tables = {key: {**kept[key], **raw[key]} for key in kept if key in TABLES and isinstance(raw.get(key), Mapping)}
    return {"model": model, **kept, **raw, **tables}


def _kind(raw: Mapping[str, Any], datasets: Sequence[str], read: list[Dataset]) -> Kind:
    """What the inputs of the first dataset are; pictures, where it cannot be read: whoever trains on it says why.

    Files that had to be ``read`` for it are added there.
    """
    if not datasets or datasets[0] in BUNDLED:
        return BUNDLED[datasets[0]].kind if datasets else "image"
    keys = {key: value for key, value in raw.items() if key in (*FILES, "validation_fraction", "public_fraction")}
    settings = Settings.flat(**nulls(keys))
    try:
        check_settings(settings)
        read.append(load_dataset(settings, datasets[0]))
        return read[0].kind
    except EquipoiseError:
        return "image"


def differing(folder_config: Path, config: Config) -> list[str]:
    """What differs between a stored configuration and this one, as in ``budget: 0.96 there, 0.98 here``."""
    there, here = _values(stored(folder_config)), _values(config)
    result = []
    for key in sorted(key for key in here if set(there[key]) != set(here[key])):
        lost, gained = (
            ", ".join(value for value in one if value not in two)
            for one, two in ((there[key], here[key]), (here[key], there[key]))
        )
        both = f"{lost} there, {gained} here"
        result.append(f"{key}: {both if lost and gained else f'also {lost} there' if lost else f'also {gained} here'}")
    return result


def _values(config: Config) -> dict[str, list[str]]:
    """Every value of a configuration as text, by a flat key; of a sweep, all that its blocks name, without paths."""
    plain = config.settings.plain()
    plain |= {f"{table}.{name}": value for table in TABLES for name, value in plain.pop(table).items()}
    swept = {part.name: [v for block in config.sweep for v in getattr(block, part.name)] for part in fields(SweepBlock)}
    swept["datasets"] = list(dataset_labels(swept["datasets"]).values())
    named = {name.removesuffix("s"): list(dict.fromkeys(map(schedule_text, values))) for name, values in swept.items()}
    return {key: [_toml(value)] for key, value in plain.items()} | named


def literal(text: str) -> Any:
    """The value of ``--set key=value``: TOML where it parses, else a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than Python takes
        return float(text) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?", text) else text  # .96 is no TOML


def _number(budget: Any) -> Any:
    """A whole number as a float, so that 200 and 200.0 are one budget; anything else as it is."""
    return float(budget) if is_whole(budget) and is_number(budget) else budget


def _assign(raw: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        raw = raw.setdefault(part, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"Expected {part!r} in {key!r} to be a table.", "Use a key of the settings.")
    raw[last] = value


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no surrogate pairs
