"""What could the server see? ``audit_run`` attacks the snapshots of a run folder; ``updates.py`` an update of your own.

Both write the same ``audit.json``: a row per attack and defence with intervals, baselines that use no update, controls,
and what is proved, measured and not claimed; and a picture of originals and reconstructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..engine.datasets import load_datasets
from ..engine.federation import Federation
from ..environment import environment
from ..errors import CheckpointError, ConfigError
from ..files import storage_errors, write_json, write_text
from ..models.batched import Batched
from ..models.bundled import build
from ..runs.snapshot import snapshot_weights
from . import scores
from .cells import Progress
from .examination import OWN, Findings, examine
from .replay import replayed
from .results import Outcome
from .svg import Row, Section, as_pixels, svg
from .targets import Options

CLAIMS = {
    "proved": ["Every accepted release is finite and its distortion's norm lies within the bounds of its budget."],
    "measured": [
        "What these attacks got from these releases, with 95 % intervals by bootstrap over releases.",
        "A stronger attack may get more: nothing here is an upper bound.",
    ],
    "not claimed": [
        "(epsilon, delta) of any kind, or protection against attacks that were not run.",
        "That the constants of the paper's leakage score hold: what trivial guesses score stands beside it.",
    ],
}


@dataclass(frozen=True)
class Audit:
    """The content of ``audit.json``, and the picture."""

    found: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    reconstructions: dict[str, Tensor] = field(default_factory=dict)  # by attack, for updates of your own

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.found["attacks"]
        return rows

    def picture(self) -> str:
        """The originals and the reconstructions as SVG."""
        footer = f"{self.found['targets']} images. Means over all releases; baselines: " + ", ".join(
            f"{name.replace('_', ' ')} MSE {row['mse']:.2f}"
            for guesses in self.found["baselines"].values() for name, row in guesses.items()
        )  # fmt: skip
        return svg("What the server could see", self.sections, footer)

    def save(self, folder: Path | str) -> list[Path]:
        """``audit.json`` and, where there are pictures, ``audit.svg``; returns what was written."""
        folder = Path(folder)
        written = [folder / "audit.json"]
        write_json(written[0], self.found)
        picture = folder / "audit.svg"
        with storage_errors(picture):
            picture.unlink(missing_ok=True)  # an older one would show other results, perhaps private images
        if self.sections:
            written.append(picture)
            write_text(picture, self.picture())
        return written


# -- a run folder --------------------------------------------------------------------------------------------------


def audit_run(
    folder: Path | str,
    options: Options | None = None,
    rounds: Sequence[int] | None = None,
    private: bool = False,
    multi_rounds: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Attack every federation of a run at its own snapshots: first, early and last, unless ``rounds`` says otherwise.

    The targets are public images unless ``private``: then the clients' own images are attacked, and shown in the
    picture. ``multi_rounds`` > 0 also replays each federation so far and combines the releases of client 0.
    """
    from ..runs.config import resolve

    folder = Path(folder)
    options = options or Options()
    options.check()
    if not (folder / "config.toml").is_file():
        raise CheckpointError(f"{folder.name} is not a run folder: it has no config.toml.", "Train one first.")
    config = resolve(folder / "config.toml")
    settings, federations = config.settings, config.federations()
    datasets = load_datasets(settings, [fed.dataset for fed in federations])
    sample = next(iter(datasets.values()))
    device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
    with torch.random.fork_rng(devices=[]):
        batched = Batched(build(settings.model, sample.shape, sample.classes).to(device, dtype), device=device)
    weights = {
        when: snapshot_weights(path, batched.layout, len(federations)).to(device, dtype)
        for when, path in _chosen_snapshots(folder, rounds).items()
    }
    findings = Findings([], [], {}, [], {})
    if options.attacks:
        findings = examine(settings, federations, datasets, batched, weights, options, progress, private)
    if not findings.complete and not findings.rows:
        raise KeyboardInterrupt  # nothing was finished: an earlier audit stays as it is
    found = content(findings, options, "private" if private else "public")
    found["cap"] = _cap(folder, findings, federations, settings.rounds)
    if multi_rounds and findings.complete:
        most = min(multi_rounds, settings.rounds)
        step = None if progress is None else (lambda when: progress("multi-round", 0.3))
        found["multi_round"] = [
            replayed(settings, fed, most, examples=24, labels=1, decoys=49, around=32, on_round=step)
            for fed in federations
        ]
    found["environment"] = environment(device)
    return Audit(found, _sections(findings, options, datasets))


def _chosen_snapshots(folder: Path, rounds: Sequence[int] | None) -> dict[int, Path]:
    paths = sorted((folder / "snapshots").glob("round-*.safetensors"))
    there = {int(number): path for path in paths if (number := path.stem.removeprefix("round-")).isdecimal()}
    if not there:
        raise CheckpointError(f"The run folder {folder.name} has no snapshots.", "Train it with snapshots=[0, 200].")
    known = sorted(there)
    wanted = sorted(set(rounds)) if rounds is not None else sorted({known[0], known[min(1, len(known) - 1)], known[-1]})
    missing = [when for when in wanted if when not in there]
    if missing or not wanted:
        raise ConfigError(f"No snapshot of round {missing}.", f"There are: {', '.join(map(str, known))}.")
    return {when: there[when] for when in wanted}


def content(findings: Findings, options: Options, targets: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "experiment": "seeded",
        "complete": findings.complete,
        "claims": CLAIMS,
        "targets": targets,
        "attacks": findings.rows,
        "differences": findings.differences,
        "baselines": findings.baselines,
        "options": asdict(options),
    }


def _cap(folder: Path, findings: Findings, federations: list[Federation], last: int) -> list[dict[str, Any]]:
    """Calibrated Averaged Performance at the last round: mean over budgets of accuracy times reconstruction error."""
    from ..files import read_json

    if not (folder / "result.json").exists():
        return []
    result = read_json(folder / "result.json", "result")
    rows = result.get("federations") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or len(rows) != len(federations):
        return []
    errors: dict[tuple[str, str, int, str], dict[int, float]] = {}
    for row in findings.rows:
        if row["role"] == OWN and row["control"] != "negative" and row["round"] == last and "mse" in row:
            about = Federation(row["dataset"], row["mechanism"], row["budget"], row["seed"])
            key = (row["dataset"], row["mechanism"], row["seed"], row["attack"])
            errors.setdefault(key, {})[federations.index(about)] = row["mse"]
    return [
        {
            "dataset": dataset, "mechanism": name, "seed": seed, "attack": attack, "round": last, "budgets": len(mine),
            "cap": scores.cap([rows[i]["accuracy"] for i in mine], list(mine.values())),
        }
        for (dataset, name, seed, attack), mine in errors.items()
    ]  # fmt: skip


def _sections(findings: Findings, options: Options, datasets: dict[str, Dataset]) -> list[Section]:
    """For every dataset, attack and round: the originals, then what was made of each defence's releases."""
    sections: dict[tuple[str, str, int], Section] = {}
    for one in findings.outcomes:
        if one.pictures is None or not len(one.pictures):
            continue
        name = one.about["dataset"]
        key = (name, one.attack, one.about["round"])
        if key not in sections:
            truth = datasets[name].pixels(findings.targets[name].images[: len(one.pictures)].cpu().float())
            title = f"{Path(name).name}, round {one.about['round']}, {one.attack}"
            sections[key] = Section(title, [Row("original", "", as_pixels(truth.flatten(0, 1)))])
        row = Row(_caption(one), remark(one), one.pictures.reshape(-1, *one.pictures.shape[2:]))
        if not any(other.caption == row.caption and other.remark == row.remark for other in sections[key].rows):
            sections[key].rows.append(row)
    return list(sections.values())


def _caption(one: Outcome) -> str:
    about = one.about
    if about.get("control") == "positive":
        return "undistorted (control)"
    budget = "" if about.get("budget") is None else f" @ {about['budget']}"
    return f"{about['mechanism']}{budget}" if about["role"] == OWN else f"{about['role']}{budget}"


def remark(one: Outcome) -> str:
    words = [f"MSE {one.values['mse'].mean():.2f}"]
    if "identification" in one.values:
        words.append(f"identified {one.values['identification'].mean():.0%}")
    return ", ".join(words)
