"""A table whose rows belong to people, and hospitals that ask for different protection: from a CSV file to an audit.

    python examples/table_groups.py [FILE.csv TARGET GROUP]

Each client has a guarantee of its own for the whole run, and its unit is a person with all of their rows. Without a
file, made-up visits of made-up patients are written first.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from equipoise import AuditOptions, EquipoiseError, Run, audit_run, resolve

EPSILONS = [1.0, 2.0, 4.0, 8.0]


def write_visits(file: Path, patients: int) -> Path:
    """Made-up numbers: one to four visits each, and an outcome that follows from them."""
    local = torch.Generator().manual_seed(0)
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["patient", "age", "pressure", "pulse", "smoker", "outcome"])
        for patient in range(patients):
            usual, smokes = torch.randn(3, generator=local), int(torch.randint(2, (1,), generator=local))
            for _ in range(int(torch.randint(1, 5, (1,), generator=local))):
                a, b, c = (usual + 0.3 * torch.randn(3, generator=local)).tolist()
                numbers = [round(50 + 15 * a), round(130 + 15 * b), round(70 + 10 * c), "yes" if smokes else "no"]
                table.writerow([f"p{patient}", *numbers, "ill" if a + b + c + smokes > 0.5 else "well"])
    return file


def main(
    file: Path, out: Path, target: str, group: str, *, rounds: int = 50, options: AuditOptions | None = None
) -> None:
    config = resolve(
        overrides={
            "rounds": rounds,
            "target": target,
            "group": group,  # a person stays with one client, and is what the guarantee is about
            "public_fraction": 0.3,  # gives mean and standard deviation, and the attacker of the audit
        },
        sweep={"datasets": [str(file)], "mechanisms": ["gaussian-dp"], "budgets": [EPSILONS]},
    )
    run = Run(out, config)
    for data in run.sweep.datasets.values():
        print("\n".join(f"guessed {guess}" for guess in data.guessed))
    (result,) = run.execute()["federations"]
    print(f"test accuracy {result['accuracy']:.1%} at epsilons {EPSILONS} for {rounds} rounds together")
    print(audit_run(out, options or AuditOptions(attacks=["matched", "membership"])).summary())


if __name__ == "__main__":
    try:
        with TemporaryDirectory() as scratch:
            here = Path(scratch)
            if len(sys.argv) == 4:
                main(Path(sys.argv[1]), here / "run", *sys.argv[2:])
            else:
                main(write_visits(here / "visits.csv", 400), here / "run", "outcome", "patient")
    except EquipoiseError as error:
        sys.exit(f"error: {error}")
