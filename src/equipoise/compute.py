"""Run a SPEC with torch and numpy alone: ``python -m equipoise.compute SPEC.json OUT/``.

A SPEC is what ``settings.to_dict`` writes. OUT gets ``result.json`` (as in a run folder, plus seconds) and
``curves.npz`` (``rounds`` and ``[F, evaluations]`` arrays). Nothing else is written: no weights, no images.
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .environment import environment
from .errors import ConfigError, EquipoiseError
from .federation import Sweep
from .files import storage_errors, write_bytes, write_json
from .records import results
from .settings import from_dict

CURVES = (
    "accuracy", "validation_accuracy", "loss", "utility_loss", "intensity", "distortion_norm",
    "distortion_norm_squared", "clipped_share", "gradient_norm_squared",
)  # fmt: skip


def compute(spec: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train the sweep of ``spec``; write the results below ``out`` and return them."""
    settings, federations = from_dict(spec)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    sweep = Sweep(settings, federations)
    history: list[list[dict[str, Any]]] = []
    for event in sweep.run():
        if event.rows:
            history.append(event.rows)
            rate = event.round / (time.perf_counter() - started)
            print(f"round {event.round}/{settings.rounds}  {rate:.1f} rounds/s", flush=True)
    if sweep.device.type == "cuda":
        torch.cuda.synchronize()
    found = {
        "schema": 1,
        "experiment": "seeded",
        "federations": results(sweep, history[-1]),
        "seconds": time.perf_counter() - started,
        "environment": environment(sweep.device),
        "spec": spec,
    }
    write_json(out / "result.json", found)
    curves = {
        name: np.array([[row.get(name, np.nan) for row in rows] for rows in history], dtype=np.float32).T
        for name in CURVES
    }
    curves["rounds"] = np.array(settings.evaluated())
    packed = io.BytesIO()
    np.savez_compressed(packed, **curves)  # type: ignore[arg-type]
    write_bytes(out / "curves.npz", packed.getvalue())
    return found


def main(arguments: list[str]) -> int:
    """The entry point: two paths, no options."""
    if len(arguments) != 2:
        print("usage: python -m equipoise.compute SPEC.json OUT/", file=sys.stderr)
        return 2
    try:
        path = Path(arguments[0])
        try:
            spec = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"Cannot read the SPEC {path.name}: {error}.", "Give a JSON file.") from error
        found = compute(spec, Path(arguments[1]))
        print(f"{len(found['federations'])} federations in {found['seconds']:.1f} s")
    except EquipoiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
