"""Write the golden values anew: ``python -m tests.golden.record [SCENARIO ...]``, for the scenarios named, or for all.

Only for a change that is meant to alter numbers, in a commit of its own that says which and why.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.golden.scenarios import SCENARIOS, numbers

FILE = Path(__file__).with_name("values.json.gz")
ADDED = (
    "full_records", "mean_full_utility_loss", "final_full_utility_loss", "/options/games", "/options/among",
    "noise_to_update", "/public_inputs", "/non_members", "/log_rank_schedule_known",
    "/membership_tpr_schedule_known", "/membership_tpr_schedule_known_low", "/membership_tpr_schedule_known_high",
)  # fmt: skip
"""Keys of results that are younger than the recorded values; ``tests/engine/test_result.py`` and ``test_metrics.py``
test those of a run, ``tests/auditing/test_limits_audit.py`` and ``test_replay.py`` those of an audit."""


def machine() -> dict[str, str]:
    """What bits depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": names[0] if names else "",
    }


def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return result


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    result = stored()["scenarios"] if names else {}
    for name in names or SCENARIOS:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = numbers(SCENARIOS[name](Path(folder)))
            result[name] = {path: value for path, value in found if not path.endswith(ADDED)}
        print(f"{name}: {len(result[name])} values, {time.perf_counter() - started:.1f} s", flush=True)
    text = json.dumps({"machine": machine(), "scenarios": result}, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
