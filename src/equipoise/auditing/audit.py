"""What an audit came to: the content of ``audit.json``, and a picture of originals and reconstructions.

A row per attack and defence with intervals, baselines that use no update, controls, and what is proved, measured and
not claimed. ``run_audit.py`` makes one of a run folder, ``update_audit.py`` of an update of your own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..files import storage_errors, write_json, write_text
from ..mechanism.claims import FINITE, NO_EPSILON, PROVED, of_budgets, sentence
from ..mechanism.registry import MECHANISMS
from .cells import OWN
from .comparison import readings
from .limit_words import HEAD as LIMIT_HEAD
from .limit_words import limit_lines, limit_verdict
from .numbered import CLASSES
from .options import AuditOptions
from .results import FEW, Findings
from .store import set_aside
from .summary import FAILED, FAILED_WORDS, GIVEN, UNKNOWN, counted, drawn_table, headline, summary_text
from .svg import Section, svg
from .unfinished import INTERRUPTED, first_sentence
from .verdict import verdict

DECLARED = "Nothing about these updates: their mechanism and budget are as you declared them."
UNDISTORTED = "Nothing: no release was distorted."
TITLE = "What the server could see"
LABELS_GRANTED = (
    "Labels granted: the attacker was told the class of every image. A picture that looks like the class mean shows "
    "the class, not the image. "
)
MEASURED_GAMES = (
    "What the attacker with the most knowledge got in games that limits are proved for. A figure below its limit "
    "proves nothing: the limit is proved."
)
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
        """The verdict in plain sentences, a small table, and what is proved, measured and not claimed."""
        lines = limit_lines(self.content.get("limits", []))
        return summary_text(self.content, drawn_table(LIMIT_HEAD, lines) if lines else ())

    def picture(self) -> str:
        """The originals and the reconstructions as SVG, below the first sentence of the verdict."""
        guesses = [
            f"{name.replace('_', ' ')} {row['mse']:.2f}"
            for guesses in self.content["baselines"].values() for name, row in guesses.items()
        ]  # fmt: skip
        granted = any(row.get("labels_granted", True) for row in self.content.get("attacks", []))
        title, first = (f"{TITLE} (labels granted)", LABELS_GRANTED) if granted else (TITLE, "")
        if granted:
            first += _not_hidden(self.content)
        footer = f"{first}Targets: {self.content['targets']} images; figures are means over all releases. "
        said = self.content.get("verdict", [])
        before = sum(words.startswith((FEW.capitalize(), INTERRUPTED)) for words in said)
        footer += f"MSE of guesses that use no update: {', '.join(guesses)}."
        if any(FAILED in row.remark for section in self.sections for row in section.rows):
            footer += f"\n{FAILED}: {FAILED_WORDS}"
        return svg(title, self.sections, footer, " ".join(said[: before + 1]))

    def save(self, folder: Path | str) -> list[Path]:
        """``audit.json`` and, where there are pictures, ``audit.svg``; returns what was written.

        An earlier one with rows that this one lacks is kept beside it as ``audit-1.json``, with its picture.
        """
        folder = Path(folder)
        set_aside(folder, self.content)
        written = [folder / "audit.json"]
        write_json(written[0], self.content)
        picture = folder / "audit.svg"
        with storage_errors(picture):
            picture.unlink(missing_ok=True)  # an older one would show other results, perhaps private images
        if self.sections:
            written.append(picture)
            write_text(picture, self.picture())
        return written


def _not_hidden(content: dict[str, Any]) -> str:
    """That a picture of the class says nothing of an attack that draws none, where that attack was run."""
    asked = [row for row in content.get("attacks", []) if row["attack"] == "matched" and row.get("chance")]
    own = [row for row in asked if row.get("role") == OWN and row.get("control") is None]
    if not own:
        return ""
    chance = " or ".join(dict.fromkeys(row["chance"] for row in own))
    found = any(one.above_chance for one in readings(content, ("identification",)) if one.attack == "matched")
    does = "picks the image from" if found else "looks for the image in"
    return (
        f"It does not mean that the image is hidden: matched draws no picture, and {does} the same release "
        f"(chance {chance}). "
    )


def claims(rows: list[dict[str, Any]], targets: str, kind: str = "image") -> dict[str, list[str]]:
    """What is proved, measured and not claimed: of updates that someone else made, nothing is proved.

    >>> claims([{"mse": 0.5, "mse_low": None}], "given")["measured"][0]
    'What these attacks got from these releases.'
    """
    bare = bool(rows) and all(row.get("mechanism") == "none" for row in rows)
    shaped = any(row.get("mechanism") in MECHANISMS and MECHANISMS[row["mechanism"]].shaping for row in rows)
    kept = FINITE if shaped else PROVED  # the weaker of the two is true of all
    intervals = any(name.endswith("_low") and value is not None for row in rows for name, value in row.items())
    got = "What these attacks got from these releases" + (", with 95 % intervals over releases." if intervals else ".")
    return {
        "proved": [DECLARED if targets in (GIVEN, UNKNOWN) else UNDISTORTED if bare else sentence(kept)],
        "measured": ["Nothing: no result was scored."]
        if targets == UNKNOWN
        else [got, "A stronger attack may get more: nothing here is an upper bound."],
        "not claimed": NOT_CLAIMED if kind == "image" else NOT_CLAIMED[:1],  # the leakage score is of pictures
    }


def with_verdict(content: dict[str, Any]) -> dict[str, Any]:
    """The same with its verdict, and with what is claimed of limits: once all that both rest on is there."""
    limited = [row["mechanism"] for row in content.get("limits", [])]
    if limited:
        budgets = of_budgets(limited, content.get("experiment") == "seeded")
        own = (
            content["claims"] if content["attacks"] else {"proved": [], "measured": [], "not claimed": NOT_CLAIMED[:1]}
        )
        proved, measured = [budgets, *own["proved"]], [MEASURED_GAMES, *own["measured"]]
        content = {**content, "claims": {**own, "proved": proved, "measured": measured}}
    said = [*first_sentence(content), *limit_verdict(content.get("limits", [])), *verdict(content)]
    return {**content, "verdict": said}


def content(
    findings: Findings, options: AuditOptions, targets: str, attacked: str, kind: str = "image", labels: str = CLASSES
) -> dict[str, Any]:
    """The content of ``audit.json``; ``targets`` says whose inputs were attacked, ``attacked`` how much of what.

    ``kind`` is that of the inputs (``Server.kind``), ``labels`` that of the labels.
    """
    return {
        "schema": 1,
        "experiment": "seeded",
        "complete": findings.complete,
        "verdict": [],
        "claims": claims(findings.rows, targets, kind),
        "targets": targets,
        "kind": kind,
        "labels": labels,
        "attacked": attacked,
        "left_out": {},
        "notes": [],
        "attacks": findings.rows,
        "limits": findings.limits,
        "differences": findings.differences,
        "baselines": findings.baselines,
        "options": options.plain(),
    }
