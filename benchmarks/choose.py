"""`equipoise choose` beside a sweep of settings on the clients' own records, at the same limit.

    python benchmarks/choose.py [--datasets mnist,fmnist,breast-cancer] [--out benchmarks/results_choose.json]

*Choose* sees public records alone. *Sweep* trains every setting of ``SETTINGS`` on the real clients' training records
with three seeds and scores it on their test records, as nobody may: it is what could be reached by looking. The
settings stand here before anything is run, 60 for each kind of data; they run on the same engine and as many at a time.
*The best* has the highest mean on test records: a little too good, as it was picked on the records it is scored on. The
choice is then trained with the same seeds.

- ``lost``: accuracy of the best minus that of the choice on test records, in points, with a 95 % interval over seeds.
- ``share_of_time``: seconds of choosing over seconds of the sweep. Expected: at most 0.2, with at most 1 point lost.
- ``kept``: the chosen run is attacked by the attacker of the proof, who knows all other records and sees the whole run
  (``auditing.limits_audit.replayed_limits``), which played no part in choosing. No row may be above its proved limit,
  one error in twenty for all rows of a data set together.
- ``held``: whether the epsilon of the chosen run's noise is at most the limit, by ``privacy.gaussian``.

``--quick`` takes a sixth of the settings and a few games: to see that it works.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

from equipoise.auditing.limit_comparison import compared
from equipoise.auditing.limits_audit import replayed_limits
from equipoise.auditing.options import AuditOptions
from equipoise.choosing.candidates import Candidate, recipe
from equipoise.choosing.choose import choosing
from equipoise.choosing.decision import Decision
from equipoise.choosing.standins import StandIns
from equipoise.choosing.trials import Trial, Trials
from equipoise.data.dataset import Dataset
from equipoise.data.loading import load
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.environment import environment
from equipoise.privacy.gaussian import epsilon_of
from equipoise.statistics import interval

EPSILON, CLIENTS, SEEDS = 2.0, 4, 3
"""The limit; the federation; runs of every setting and of the choice."""
MULTIPLES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
DATASETS = ("mnist", "fmnist", "breast-cancer")


def around(model: str, rounds: Sequence[int], multiples: Sequence[float], clips: Sequence[float]) -> list[Candidate]:
    own = recipe(model)
    return [
        replace(own, rounds=count, multiplier=multiple, clip=clip)
        for count in rounds
        for multiple in multiples
        for clip in clips
    ]


PICTURES = [
    *around("scatter-linear", (25, 50, 100), MULTIPLES, (0.5, 1.0)),
    *around("lenet-tanh", (50, 100), (0.5, 1.0, 2.0), (0.5, 1.0)),
    *around("lenet-zhu", (50, 100), (0.5, 1.0, 2.0), (1.0,)),
]
TABLES = [
    *around("mlp", (25, 50, 100, 200), MULTIPLES, (0.5, 1.0)),
    *(replace(recipe("mlp"), rounds=count, momentum=0.5) for count in (25, 50, 100, 200)),
]
SETTINGS = {"image": PICTURES, "table": TABLES}
assert {len(settings) for settings in SETTINGS.values()} == {60}


def real_clients(data: Dataset) -> StandIns:
    """The clients themselves, tested on test records: what ``choose`` never sees."""
    each = len(data.train) // CLIENTS
    return StandIns({data.name: replace(data, public=None)}, each, each, CLIENTS, private=True)


def accuracies(trials: Trials, some: Sequence[Trial]) -> dict[Trial, list[float]]:
    """On test records, over the seeds."""
    found = trials.run(some, range(SEEDS))
    return {trial: [score.reporting[seed] for seed in range(SEEDS)] for trial, score in found.items()}


def attacked(found: Decision, data: Dataset, games: int) -> list[dict[str, Any]]:
    """What the attacker of the proof gets of the chosen run, beside its limits."""
    federation = Federation(data.name, "gaussian-dp", found.budget, found.seed)
    options = AuditOptions(games=games, among=200, seed=found.seed)
    rows = replayed_limits(
        found.settings, federation, found.settings.training.rounds, options, datasets={data.name: data}
    )
    kept = ("measure", "fpr", "games", "measured", "low", "high", "limit", "above", "undistorted", "control_failed")
    return [{key: row.get(key) for key in kept} for row in compared(rows)]


def one(name: str, quick: bool) -> dict[str, Any]:
    data, began = load(name), time.monotonic()
    found = choosing(data, epsilon=EPSILON, clients=CLIENTS, quick=True).run()
    seconds = time.monotonic() - began
    print(f"{name}: chosen in {seconds:.0f} s: {found.sentences()[0]}", file=sys.stderr, flush=True)
    settings, began = SETTINGS["image" if data.kind == "image" else "table"], time.monotonic()
    trials = Trials(real_clients(data), Settings.flat(clients=CLIENTS), most_behind=math.inf)
    swept = accuracies(trials, [Trial(candidate, EPSILON) for candidate in (settings[3::6] if quick else settings)])
    taken = time.monotonic() - began
    print(f"{name}: {len(swept)} settings in {taken:.0f} s", file=sys.stderr, flush=True)
    training, own = found.settings.training, found.settings.protection.gaussian
    chosen = Trial(
        Candidate(
            training.model, training.rounds, own.clip, training.server_momentum, rate=float(training.server_rate)
        ),
        found.budget,
    )
    reached = accuracies(trials, [chosen])[chosen]
    best = max(swept, key=lambda trial: mean(swept[trial]))
    lost = [100 * (a - b) for a, b in zip(swept[best], reached, strict=True)]
    assert found.sigma is not None
    rows = attacked(found, data, 50 if quick else 500)
    return {
        "dataset": name, "settings": len(swept), "choose_seconds": seconds, "sweep_seconds": taken,
        "share_of_time": seconds / taken, "chosen": {**asdict(chosen.candidate), "accuracies": reached},
        "best": {**asdict(best.candidate), "accuracies": swept[best]}, "lost": mean(lost),
        "lost_interval": interval(lost), "expected": asdict(found.expected), "sentences": found.sentences(),
        "held": epsilon_of(found.sigma, own.delta, training.rounds) <= EPSILON,
        "kept": not any(row["above"] for row in rows), "attacked": rows,
        "swept": [{**asdict(trial.candidate), "accuracies": values} for trial, values in swept.items()],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = "python benchmarks/choose.py" + (" --quick" if options.quick else "")
    results = []
    for name in options.datasets.split(","):
        results.append(one(name, options.quick))
        about = {key: results[-1][key] for key in ("lost", "lost_interval", "share_of_time", "held", "kept")}
        print(json.dumps({"dataset": name, **about}), flush=True)
    about = {"command": command, "machine": environment(), "epsilon": EPSILON, "seeds": SEEDS, "clients": CLIENTS}
    text = json.dumps({**about, "results": results}, indent=1) + "\n"
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
