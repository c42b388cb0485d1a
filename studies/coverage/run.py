"""Do the intervals of an audit cover? ``python studies/coverage/run.py OUT.json [REPETITIONS]``.

Audits are simulated with the project's own targets, scores and intervals, and with attacks whose true power is known
because they are repeated a thousand times. A candidate x scores in release r

    strength * own_x * shared_r * [x is in the batch] + attraction_x + noise,

where own and attraction are an image's (some are easy to find; some look like members under any release), shared
belongs to the release (its examples succeed and fail together) and noise is fresh. Every repetition draws all of them
anew, and new targets every ``SAME`` repetitions. The truth is the mean over all repetitions (so a bias of the estimate
itself would not show); the figure is how often a repetition's 95 % interval holds it. *twice* is the control: every
batch is dealt a second time with the same images, as if it were another.

The rule, written before the figures were seen: 93 to 97 % where at least ten hits are expected, and at least 93 %
elsewhere (an interval of a rate cannot cover exactly 95 % where it is made of few hits). *twice* must fall below 93 %.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.attack.results import CandidateScores, MembershipScores
from equipoise.attack.view import Server, View
from equipoise.auditing.cells import Cell
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.results import summary
from equipoise.auditing.scoring import Case, Trace, score
from equipoise.auditing.targets import Materials, Targets, build_targets
from equipoise.environment import environment
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP

CLASSES, POOL, SAME = 10, 2500, 50
MEASURES = ("identification", "log_rank", "membership_auc", "membership_tpr")


@dataclass(frozen=True)
class Scenario:
    """An audit of so many releases of batches, and how strong the attack is."""

    releases: int
    batch: int
    others: int
    strength: float
    attraction: float  # standard deviation between images, where the noise has 1
    own: float = 0.5  # standard deviation of the log of the strength between images ...
    shared: float = 0.3  # ... and between releases
    twice: bool = False


SIZES = ((32, 4, 20), (200, 4, 8), (27, 44, 44))
SCENARIOS = [
    Scenario(*size, strength, attraction)
    for size in SIZES
    for strength in (0.0, 1.5, 2.5, 4.0)
    for attraction in (0.0, 0.5)
] + [Scenario(*size, 5.0, 0.0, own=0.1) for size in SIZES]  # areas near 1
SCENARIOS += [Scenario(200, 4, 8, 2.5, 0.5, own=1.5, twice=twice) for twice in (False, True)]


def targets_of(scenario: Scenario, seed: int) -> Targets:
    """Targets of the project, of images without content."""
    labels = torch.arange(POOL) % CLASSES
    pool = torch.zeros(POOL, 1, 1, 1), labels
    server = Server(Batched(MLP((1, 1, 1), CLASSES, hidden=2)), (1, 1, 1), CLASSES, scenario.batch)
    half = scenario.releases // (2 if scenario.twice else 1)
    options = AuditOptions(
        attacks=[],
        releases=half,
        others=scenario.others,
        candidates=200,
        label_sets=1 if scenario.batch > CLASSES else 5,
        seed=seed,
    )
    targets = build_targets(Materials(pool, pool, lambda x: x), server, options)
    if not scenario.twice:
        return targets
    rows = {name: getattr(targets, name).repeat(2, *[1] * (getattr(targets, name).dim() - 1))
            for name in ("labels", "choices", "left_out", "place", "impostor", "asked", "member")}  # fmt: skip
    return replace(targets, **rows)


def audited(scenario: Scenario, targets: Targets, random: torch.Generator) -> dict[str, Any]:
    """One simulated audit: its figures with intervals."""

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    count = len(targets)
    strength = scenario.strength * (scenario.shared * noise(count, 1)).exp()
    own = (scenario.own * noise(POOL)).exp()
    attraction = scenario.attraction * noise(POOL)
    at_place = torch.zeros(targets.choices.shape, dtype=torch.float64).scatter_(2, targets.place.unsqueeze(2), 1.0)
    choices = (
        attraction[targets.choices]
        + noise(*targets.choices.shape)
        + at_place * (strength * own[targets.truth]).unsqueeze(2)
    )
    asked = attraction[targets.asked] + noise(*targets.asked.shape) + targets.member * strength * own[targets.asked]
    blank = torch.zeros(count, 1)
    case = Case(
        Cell(blank[0], None, {}), "simulated", View(blank, blank, targets.labels), targets, None, AuditOptions(),  # type: ignore[arg-type]
        Trace(torch.zeros(*targets.labels.shape, 1), 1.0),
    )  # fmt: skip
    values = score(CandidateScores(choices), case).values | score(MembershipScores(asked), case).values
    seed = int(torch.randint(2**31, (1,), generator=random))
    return summary(values, seed, candidates=targets.candidates)


def covered(scenario: Scenario, repetitions: int, seed: int) -> list[dict[str, Any]]:
    """How often the intervals of every measure hold the mean over all repetitions."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(seed)
    results = []
    for repetition in range(repetitions):
        if repetition % SAME == 0:
            targets = targets_of(scenario, seed + repetition)
        results.append(audited(scenario, targets, random))
    rows = []
    for name in MEASURES:
        table = np.array([[one[name], one[f"{name}_low"], one[f"{name}_high"]] for one in results])
        truth = table[:, 0].mean()
        share = float(((table[:, 1] <= truth) & (truth <= table[:, 2])).mean())
        hits = truth * targets.truth.numel() if name in ("identification", "membership_tpr") else None
        rows.append({
            **vars(scenario), "dealt": targets.others, "measure": name, "true_value": float(truth), "covered": share,
            "standard_error": float(np.sqrt(0.95 * 0.05 / repetitions)), "repetitions": repetitions,
            "expected_hits": hits, "mean_width": float((table[:, 2] - table[:, 1]).mean()),
        })  # fmt: skip
    return rows


def main() -> None:
    repetitions = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    with multiprocessing.get_context("spawn").Pool() as workers:
        jobs = [(scenario, repetitions, 10_000 * number) for number, scenario in enumerate(SCENARIOS)]
        rows = [row for some in workers.starmap(covered, jobs, chunksize=1) for row in some]
    for row in rows:
        print(row, flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "schema": 1, "rows": rows, "command": f"python studies/coverage/run.py OUT.json {repetitions}",
        "commit": commit.stdout.strip(), "environment": environment(torch.device("cpu")),
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
