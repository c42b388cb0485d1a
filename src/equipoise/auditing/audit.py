"""What an audit came to: the content of ``audit.json``, and a picture of originals and reconstructions.

A row per attack and defence with intervals, baselines that use no update, controls, and what is proved, measured and
not claimed. ``run_audit.py`` makes one of a run folder, ``update_audit.py`` of an update of your own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.dataset import Dataset
from ..files import storage_errors, write_json, write_text
from ..mechanism.claims import NO_EPSILON, PROVED, sentence
from ..mechanism.schedule import defence_label
from .cells import OWN
from .options import AuditOptions
from .results import Findings, Outcome
from .summary import GIVEN, UNKNOWN, counted, headline, summary_text
from .svg import Row, Section, as_pixels, svg

DECLARED = "Nothing about these updates: their mechanism and budget are as you declared them."
NOT_CLAIMED = [
    f"That these results imply {NO_EPSILON}, or protection against attacks that were not run.",
    "That the constants of the paper's leakage score hold: what trivial guesses score stands beside it.",
]


@dataclass(frozen=True, repr=False, eq=False)
class Audit:
    """What the attacks got: ``summary()`` says it in words, ``content`` is what ``audit.json`` holds.

    >>> Audit({"attacks": [{"attack": "lti", "identification": 0.3}]}).rows[0]["identification"]
    0.3
    """

    content: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    reconstructions: dict[str, Tensor] = field(default_factory=dict)  # by attack, for updates of your own

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.content["attacks"]
        return rows

    def __repr__(self) -> str:
        attacks = counted(len({row["attack"] for row in self.content.get("attacks", [])}), "attack")
        return f"Audit({attacks} on {self.content.get('attacked', 'releases')}; {headline(self.content)})"

    def summary(self) -> str:
        """Plain sentences on the strongest attacks, a small table, and what is proved, measured and not claimed."""
        return summary_text(self.content)

    def picture(self) -> str:
        """The originals and the reconstructions as SVG."""
        footer = f"{self.content['targets']} images. Means over all releases; baselines: " + ", ".join(
            f"{name.replace('_', ' ')} MSE {row['mse']:.2f}"
            for guesses in self.content["baselines"].values() for name, row in guesses.items()
        )  # fmt: skip
        return svg("What the server could see", self.sections, footer)

    def save(self, folder: Path | str) -> list[Path]:
        """``audit.json`` and, where there are pictures, ``audit.svg``; returns what was written."""
        folder = Path(folder)
        written = [folder / "audit.json"]
        write_json(written[0], self.content)
        picture = folder / "audit.svg"
        with storage_errors(picture):
            picture.unlink(missing_ok=True)  # an older one would show other results, perhaps private images
        if self.sections:
            written.append(picture)
            write_text(picture, self.picture())
        return written


def claims(rows: list[dict[str, Any]], targets: str) -> dict[str, list[str]]:
    """What is proved, measured and not claimed: of updates that someone else made, nothing is proved.

    >>> claims([{"mse": 0.5, "mse_low": None}], "given")["measured"][0]
    'What these attacks got from these releases.'
    """
    intervals = any(name.endswith("_low") and value is not None for row in rows for name, value in row.items())
    got = "What these attacks got from these releases" + (", with 95 % intervals over releases." if intervals else ".")
    return {
        "proved": [DECLARED if targets in (GIVEN, UNKNOWN) else sentence(PROVED)],
        "measured": ["Nothing: no result was scored."]
        if targets == UNKNOWN
        else [got, "A stronger attack may get more: nothing here is an upper bound."],
        "not claimed": NOT_CLAIMED,
    }


def content(findings: Findings, options: AuditOptions, targets: str, attacked: str) -> dict[str, Any]:
    """The content of ``audit.json``; ``targets`` says whose images were attacked, ``attacked`` how much of what."""
    return {
        "schema": 1,
        "experiment": "seeded",
        "complete": findings.complete,
        "claims": claims(findings.rows, targets),
        "targets": targets,
        "attacked": attacked,
        "left_out": {},
        "notes": [],
        "attacks": findings.rows,
        "differences": findings.differences,
        "baselines": findings.baselines,
        "options": options.plain(),
    }


def run_sections(findings: Findings, datasets: Mapping[str, Dataset]) -> list[Section]:
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
    return defence_label(about["mechanism"] if about["role"] == OWN else about["role"], about["budget"])


def remark(one: Outcome) -> str:
    words = [f"MSE {one.values['mse'].mean():.2f}"]
    if "identification" in one.values:
        words.append(f"identified {one.values['identification'].mean():.0%}")
    return ", ".join(words)
