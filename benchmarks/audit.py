"""How long ``equipoise audit`` takes on two cores: one learned federation, and the eight of docs/howto.md.

    python benchmarks/audit.py [--threads 2 ...] [--out benchmarks/results_audit.json]

Each run is trained first, which is not timed. Its audit is a process of its own with a key of its own, so that nothing
of an earlier one is taken for its work, from the start of Python to the last line; beside it, what the audit's plan
said before it began. Both processes are kept on two cores. ``--rounds`` and ``--quick`` are for trying this script: an
audit attacks three snapshots of a run, however long that was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from equipoise.environment import environment

CORES = 2
RUNS = {
    "one": ("--mechanism pl-learn --budget 0.98 --seed 1", 120),
    "eight": ("--mechanism pl-identical,pl-learn --budget 0.96,0.98 --seed 1,2", 600),
}
"""By name: what is trained, and the seconds that its audit may take."""


def called(arguments: str, *, threads: int, cache: Path) -> tuple[str, float]:
    """What ``equipoise`` printed, and how long it took."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "XDG_CACHE_HOME": str(cache)}
    command = [str(Path(sys.executable).with_name("equipoise")), *arguments.split()]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    return done.stdout, time.perf_counter() - started


def plan_of(told: str) -> str:
    """The sentences before the work began: how many cells, and about how long."""
    lines = told.split("\n")
    last = next(place for place, line in enumerate(lines) if line.startswith("About "))
    return " ".join(lines[1 : last + 1])


def measure(name: str, rounds: int, threads: int, quick: bool, folder: Path) -> dict[str, Any]:
    trained, target = RUNS[name]
    run, cache = folder / f"{name}-{threads}", folder / f"cache-{name}-{threads}"
    train, audit = f"train {trained} --set rounds={rounds}", "audit {}" + " --quick" * quick
    called(f"{train} --out {run}", threads=threads, cache=cache)
    told, seconds = called(audit.format(run), threads=threads, cache=cache)
    return {
        "run": name, "trained": f"equipoise {train}", "audited": f"equipoise {audit.format('RUN')}", "threads": threads,
        "plan": plan_of(told), "seconds": round(seconds, 1), "target_seconds": target, "within": seconds < target,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--threads", nargs="+", type=int, default=[CORES])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.runs:
            for threads in options.threads:
                rows.append(measure(name, options.rounds, threads, options.quick, Path(folder)))
                print(json.dumps(rows[-1]), flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "what": "seconds of an audit with its usual options, from the start of the process to its end",
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
        "command": " ".join(["python", "benchmarks/audit.py", *sys.argv[1:]]),
        "commit": commit.stdout.strip(),
        "environment": environment(),
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
