"""Do the intervals of membership cover with few non-members? ``python studies/coverage/few.py OUT.json [REPETITIONS]``.

The leakage study's batches of 4 have two non-members a release: more have no images of their own. Audits of that size
are simulated as in ``run.py``, under the rule that stands there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from paired import write
from run import Scenario, covered

SCENARIOS = [Scenario(200, 4, 2, strength, 0.5) for strength in (0.0, 1.5, 2.5, 4.0)]


def main() -> None:
    repetitions, started = int(sys.argv[2]) if len(sys.argv) > 2 else 1000, time.perf_counter()
    several = [covered(scenario, repetitions, 500_000 + 10_000 * i) for i, scenario in enumerate(SCENARIOS)]
    rows = [row for some in several for row in some if row["measure"].startswith("membership")]
    write("few.py", rows, repetitions, started)


if __name__ == "__main__":
    main()
