"""Do the intervals of membership cover with few non-members? ``python studies/coverage/few.py OUT.json [REPETITIONS]``.

The leakage study's batches of 4 have two non-members a release: more have no images of their own. Audits of that size
are simulated as in ``run.py``, under the rule that stands there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from run import Scenario, covered

from equipoise.environment import environment

SCENARIOS = [Scenario(200, 4, 2, strength, 0.5) for strength in (0.0, 1.5, 2.5, 4.0)]


def main() -> None:
    repetitions, started = int(sys.argv[2]) if len(sys.argv) > 2 else 1000, time.perf_counter()
    several = [covered(scenario, repetitions, 500_000 + 10_000 * i) for i, scenario in enumerate(SCENARIOS)]
    rows = [row for some in several for row in some if row["measure"].startswith("membership")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "schema": 1, "rows": rows, "command": f"python studies/coverage/few.py OUT.json {repetitions}",
        "commit": commit.stdout.strip(), "seconds": time.perf_counter() - started,
        "environment": environment(torch.device("cpu")),
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
