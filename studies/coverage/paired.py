"""Do the intervals that decide verdicts cover? ``python studies/coverage/paired.py OUT.json [REPETITIONS]``.

The leakage study sets two mechanisms against each other on the same images, each on three trajectories. Its figures and
its verdicts are made here by its own functions (``studies/leakage/summarise.py``) of simulated attacks. A candidate x
scores in release r of mechanism m on trajectory t

    strength_m * way_mt * own_x * shared_r * [x is in the batch] + attraction_x + noise,

with the images of ``run.py`` and noise half of which (of its variance) is the same for all mechanisms and trajectories,
as the standard noise of the study is. What an interval claims to hold depends on what it resamples:

============  ========================================================================================================
over          what a repetition draws anew
============  ========================================================================================================
releases      images, releases and noise; the three ways stay and are those of both mechanisms (*at the same weights*),
              so the truth is that of these three trajectories
trajectories  the ways of each mechanism too (*own trajectories*), so the truth is that of all trajectories; the
              interval is Student's of three numbers
============  ========================================================================================================

Rows of kind ``figure`` are means over the three trajectories, those of ``difference`` one mechanism less the other.
The rule is that of ``run.py``, and was written before the figures were seen: 93 to 97 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "leakage"))  # what is tested is the study's own code

from run import POOL, SAME, Scenario, targets_of
from summarise import difference, figure

from equipoise.auditing.results import Outcome
from equipoise.auditing.targets import Targets
from equipoise.environment import environment
from equipoise.statistics import ranks

TRAJECTORIES = 3
MEASURES = {"matched": "identification", "membership": "membership_auc"}
Cells = dict[tuple[int, str], list[Outcome]]
"""By mechanism and attack, the outcomes of all trajectories."""
Effects = torch.Tensor
"""``[2, TRAJECTORIES]``: by what a mechanism's strength differs on a trajectory."""


@dataclass(frozen=True)
class Pair:
    """Two mechanisms on the same images, and how far trajectories differ."""

    audit: Scenario  # of the first mechanism
    other: float  # the strength of the second
    between: float  # standard deviation of the log of a mechanism's strength between trajectories
    over: str

    def about(self) -> dict[str, Any]:
        return {**vars(self.audit), "other": self.other, "between": self.between, "over": self.over}


STRENGTHS = ((2.5, 2.5, 0.5), (2.5, 1.5, 0.5), (5.0, 4.0, 0.1))
"""Of both mechanisms, and how far images differ: equal, different, and nearly all images found."""
PAIRS = [
    Pair(Scenario(200, 4, 8, one, 0.5, own=own), other, 0.2, over)
    for over in ("releases", "trajectories")
    for one, other, own in STRENGTHS
]


def ways(pair: Pair, random: torch.Generator) -> Effects:
    """Drawn for each mechanism, or, where both are attacked at the same weights, for both."""
    drawn = torch.randn(2, TRAJECTORIES, generator=random, dtype=torch.float64)
    return (pair.between * (drawn if pair.over == "trajectories" else drawn[:1].expand(2, -1))).exp()


def attacked(pair: Pair, targets: Targets, effects: Effects, random: torch.Generator) -> Cells:
    """What both attacks found in the releases of both mechanisms, on every trajectory."""

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    strength = (pair.audit.shared * noise(len(targets), 1)).exp()
    own, attraction = (pair.audit.own * noise(POOL)).exp(), pair.audit.attraction * noise(POOL)
    place = torch.zeros(targets.choices.shape, dtype=torch.float64).scatter_(2, targets.place.unsqueeze(2), 1.0)
    present = place * (strength * own[targets.truth]).unsqueeze(2), targets.member * strength * own[targets.asked]
    common = [attraction[part] + noise(*part.shape) / 2**0.5 for part in (targets.choices, targets.asked)]
    cells: Cells = {}
    for mechanism, strong in enumerate((pair.audit.strength, pair.other)):
        for way in effects[mechanism].tolist():
            choices, asked = (
                same + strong * way * signal + noise(*same.shape) / 2**0.5
                for same, signal in zip(common, present, strict=True)
            )
            members, others = (asked[who].view(len(asked), -1).numpy() for who in (targets.member, ~targets.member))
            found = {
                "matched": {"identification": ranks(choices, targets.place).first.numpy()},
                "membership": {"members": members, "others": others},
            }
            for attack, values in found.items():
                outcome = Outcome({"candidates": targets.candidates}, attack, values, {})
                cells.setdefault((mechanism, attack), []).append(outcome)
    return cells


def intervals(pair: Pair, cells: Cells) -> dict[tuple[str, str], Any]:
    """Of every measure the value and both ends of its interval, by the study's own rules."""
    result: dict[tuple[str, str], Any] = {}
    for attack, measure in MEASURES.items():
        one, other = cells[0, attack], cells[1, attack]
        each, ends = difference(one, other, measure, over_trajectories=pair.over == "trajectories")
        result["difference", measure] = float(np.mean(each)), *ends
        if pair.over == "releases":
            row = figure(one, measure)
            result["figure", measure] = [row[f"{measure}{end}"] for end in ("", "_low", "_high")]
    return result


def covered(pair: Pair, repetitions: int, seed: int) -> list[dict[str, Any]]:
    """How often the intervals hold the mean over all repetitions, and how often a difference is called one."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(seed)
    effects, tables = ways(pair, random), dict[tuple[str, str], list[tuple[float, float, float]]]()
    for repetition in range(repetitions):
        if repetition % SAME == 0:
            targets = targets_of(pair.audit, seed + repetition)
        if pair.over == "trajectories":
            effects = ways(pair, random)
        for name, one in intervals(pair, attacked(pair, targets, effects, random)).items():
            tables.setdefault(name, []).append(one)
    rows = []
    for (kind, measure), values in tables.items():
        table = np.array(values)
        truth = table[:, 0].mean()
        rows.append({
            **pair.about(), "kind": kind, "measure": measure, "true_value": float(truth),
            "covered": float(((table[:, 1] <= truth) & (truth <= table[:, 2])).mean()),
            "excludes_zero": float(((table[:, 1] > 0) | (table[:, 2] < 0)).mean()) if kind == "difference" else None,
            "mean_width": float((table[:, 2] - table[:, 1]).mean()), "repetitions": repetitions,
            "standard_error": float(np.sqrt(0.95 * 0.05 / repetitions)),
        })  # fmt: skip
    return rows


def write(script: str, rows: list[dict[str, Any]], repetitions: int, started: float) -> None:
    """The result, with how it was made, where the first argument says."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "schema": 1, "rows": rows, "command": f"python studies/coverage/{script} OUT.json {repetitions}",
        "commit": commit.stdout.strip(), "seconds": time.perf_counter() - started,
        "environment": environment(torch.device("cpu")),
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    repetitions, started, rows = int(sys.argv[2]) if len(sys.argv) > 2 else 500, time.perf_counter(), []
    for number, pair in enumerate(PAIRS):
        rows += covered(pair, repetitions, 10_000 * number)
        print(*rows[-2:], f"{time.perf_counter() - started:.0f} s", sep="\n", flush=True)
    write("paired.py", rows, repetitions, started)


if __name__ == "__main__":
    main()
