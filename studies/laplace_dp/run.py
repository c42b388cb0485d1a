"""What a guarantee costs: laplace-dp over the epsilon of a release and the clip, beside ls-static of the same noise.

``python studies/laplace_dp/run.py`` trains LeNetZhu on the bundled MNIST (four clients, batches of four, the default
settings but for the clip and the rounds), writes ``results.json`` and the table of the README. Nothing is tuned: the
grid below is all there is.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment
from equipoise.privacy.accounting import basic_epsilon, composed_epsilon
from equipoise.statistics import interval

HERE = Path(__file__).parent
ROUNDS, SEEDS, DELTA = 300, (1, 2, 3), 1e-5
CLIPS, EPSILONS = (5.0, 50.0, 500.0), (0.1, 1.0, 10.0, 100.0, 1000.0)


def settings_of(clip: float) -> Settings:
    return Settings.flat(rounds=ROUNDS, clip=clip, evaluate_every=ROUNDS, snapshots=[], threads=1)


def scale_of(clip: float, epsilon: float) -> float:
    """The scale of the Laplace noise, b = 2 * eta * clip / (B * epsilon)."""
    return float(f"{settings_of(clip).protection.derived_sensitivity() / epsilon:.9g}")


def train(settings: Settings, federations: list[Federation]) -> list[dict[str, Any]]:
    sweep = Sweep(settings, federations)
    said = time.perf_counter()
    for event in sweep.run():
        if event.rows or time.perf_counter() - said > 10:
            said = time.perf_counter()
            print(f"  round {event.round} of {ROUNDS}, {len(federations)} federations", flush=True)
    return event.rows


def cell(rows: list[dict[str, Any]], name: str, budget: float | None) -> dict[str, Any]:
    mine = [row for row in rows if (row["mechanism"], row["budget"]) == (name, budget)]
    accuracies = [row["accuracy"] for row in mine]
    return {
        "accuracy": mean(accuracies),
        "interval": interval(accuracies),
        "accuracies": accuracies,
        "clipped_share": mean(row["clipped_share"] for row in mine) if name == "laplace-dp" else None,
    }


def measured() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    scales = sorted({scale_of(clip, epsilon) for clip in CLIPS for epsilon in EPSILONS})
    default = Settings()
    budgets = {scale: default.protection.sensitivity / scale for scale in scales}  # of ls-static with that scale
    static = [Federation("mnist", "ls-static", budget, seed) for budget in budgets.values() for seed in SEEDS]
    print(f"none, and ls-static at {len(scales)} scales", flush=True)
    plain = train(settings_of(500.0), [*(Federation("mnist", "none", None, seed) for seed in SEEDS), *static])
    rows = []
    for clip in CLIPS:
        print(f"laplace-dp with clip {clip:g}", flush=True)
        federations = [Federation("mnist", "laplace-dp", epsilon, seed) for epsilon in EPSILONS for seed in SEEDS]
        result = train(settings_of(clip), federations)
        for epsilon in EPSILONS:
            scale = scale_of(clip, epsilon)
            rows.append(
                {
                    "clip": clip,
                    "epsilon": epsilon,
                    "scale": scale,
                    "sum": basic_epsilon({epsilon: ROUNDS}),
                    "composed": composed_epsilon({epsilon: ROUNDS}, DELTA),
                    **cell(result, "laplace-dp", epsilon),
                    "ls_static": cell(plain, "ls-static", budgets[scale]),
                }
            )
    return rows, cell(plain, "none", None)


def percent(result: dict[str, Any]) -> str:
    low, high = result["interval"]
    return f"{100 * result['accuracy']:.1f} ({100 * max(low, 0):.1f} to {100 * min(high, 1):.1f})"


def rounded_up(epsilon: float) -> float:
    return math.ceil(100 * epsilon) / 100


def table(rows: list[dict[str, Any]], none: dict[str, Any]) -> str:
    head = (
        "| clip | epsilon of a release | noise scale b | all releases, delta = 0 | delta = 1e-5 | examples clipped | "
        "accuracy % | ls-static, same b: accuracy % |"
    )
    lines = [
        f"| {r['clip']:g} | {r['epsilon']:g} | {r['scale']:g} | {r['sum']:,.0f} | {rounded_up(r['composed']):,.2f} | "
        f"{100 * r['clipped_share']:.0f} % | {percent(r)} | {percent(r['ls_static'])} |"
        for r in rows
    ]
    return "\n".join([head, "|---" * 8 + "|", *lines, "", f"Without protection: {percent(none)} %."])


def main() -> None:
    started, busy = time.perf_counter(), time.process_time()
    torch.set_num_threads(1)
    rows, none = measured()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "command": "python studies/laplace_dp/run.py",
        "commit": commit.stdout.strip(),
        "environment": environment(),
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - busy, 1),
        "rounds": ROUNDS,
        "releases_per_client": ROUNDS,
        "seeds": SEEDS,
        "delta": DELTA,
        "none": none,
        "rows": rows,
    }
    (HERE / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    fill_readme(result)


def fill_readme(result: dict[str, Any]) -> None:
    before, rest = (HERE / "README.md").read_text().split("<!-- table: begin -->\n")
    after = rest.split("<!-- table: end -->")[1]
    about = f"Commit {result['commit']}, one CPU core, {result['cpu_seconds']:.0f} s of it."
    outcome = f"{table(result['rows'], result['none'])} {about}\n"
    (HERE / "README.md").write_text(f"{before}<!-- table: begin -->\n{outcome}<!-- table: end -->{after}")
    print(outcome)


if __name__ == "__main__":
    main()
