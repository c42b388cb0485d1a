"""How often an audit accuses an honest run: ``python studies/gaussian_dp/honest.py [AUDITS]``, into ``honest.json``.

The recommended run (scatter-linear, epsilon 2, MNIST, seed 1) is trained, and audited as often as asked (100) as
``equipoise audit --quick`` does it: 100 games at each of three rounds, with other targets, candidates and noise every
time, by seeds of the audit from 1000 on.

Rules, fixed before these results, though 60 such audits with other seeds had been looked at: an audit *accuses* if
any of its figures is above its proved limit. That may happen in 5 % of honest audits; the study says ``too_often`` if
the exact one-sided 95 % lower bound of the rate exceeds 5 %. The games of one round of all audits together are
independent, too: their rate of identification is above the limit of one release only where its own lower bound is, at
5 % for the three rounds together.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from equipoise import Run, audit_run, resolve
from equipoise.auditing.limit_comparison import IDENTIFICATION, lower_bound
from equipoise.auditing.options import AuditOptions
from equipoise.environment import environment

HERE = Path(__file__).parent
GAMES, FIRST, LEVEL = 100, 1000, 0.05
ROUNDS = (0, 2, 50)


def audited(folder: Path, seed: int) -> list[dict[str, Any]]:
    """What one audit holds against limits."""
    options = AuditOptions(attacks=["matched", "membership"], games=GAMES, seed=seed)
    rows: list[dict[str, Any]] = audit_run(folder, options, snapshots=ROUNDS).content["limits"]
    return rows


def table(audits: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """What all audits came to."""
    accused = [seed for seed, rows in enumerate(audits, FIRST) if any(row.get("above") for row in rows)]
    rounds = []
    for number in ROUNDS:
        rows = [row for rows in audits for row in rows if (row["measure"], row["round"]) == (IDENTIFICATION, number)]
        found, games = int(sum(row["found"] for row in rows)), sum(row["games"] for row in rows)
        bound, most = lower_bound(found, games, LEVEL / len(ROUNDS)), rows[0]["limit"]
        about = {"round": number, "found": found, "games": games, "identified": found / games}
        rounds.append({**about, "limit": most, "lower_bound": bound, "above": bound > most})
    least = lower_bound(len(accused), len(audits), LEVEL)
    return {
        "audits": len(audits), "figures": sum(row["limit"] is not None for row in audits[0]), "accused": len(accused),
        "seeds_that_accused": accused, "may_accuse": LEVEL, "too_often": least > LEVEL, "rounds": rounds,
    }  # fmt: skip


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with TemporaryDirectory() as name:
        folder = Path(name) / "run"
        sweep = {"mechanisms": ["gaussian-dp"], "budgets": [2.0], "seeds": [1]}
        Run(folder, resolve(overrides={"model": "scatter-linear"}, sweep=sweep)).execute()
        audits = [audited(folder, seed) for seed in range(FIRST, FIRST + count)]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    result = {
        "schema": 1, "command": "python studies/gaussian_dp/honest.py", "commit": commit.stdout.strip(),
        "environment": environment(), **table(audits),
    }  # fmt: skip
    (HERE / "honest.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("audits", "accused", "too_often", "rounds")}, indent=1))


if __name__ == "__main__":
    main()
