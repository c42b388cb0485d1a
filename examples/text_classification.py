"""Sentences in a CSV file, a small transformer, and what its updates give away: from data to audit.

    python examples/text_classification.py [FILE.csv TEXT TARGET]

Words are hashed into token numbers: nothing is fitted to private text. Without a file, made-up messages are written
first.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from equipoise import AuditOptions, EquipoiseError, Run, audit_run, resolve

TOPICS = {
    "billing": ["invoice", "refund", "card", "charged", "price", "receipt"],
    "delivery": ["parcel", "courier", "late", "address", "tracking", "box"],
    "account": ["password", "login", "email", "profile", "locked", "reset"],
}
COMMON = [
    "the", "my", "is", "a", "please", "was", "for", "with", "and", "about",
    "it", "not", "again", "today", "help", "you", "have", "this", "when", "i",
]  # fmt: skip


def write_messages(file: Path, count: int) -> Path:
    """Made-up messages of three topics that share most of their words."""
    local = Random(0)
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["message", "topic"])
        for number in range(count):
            topic = list(TOPICS)[number % len(TOPICS)]
            words = local.choices(COMMON, k=local.randint(6, 14)) + local.choices(TOPICS[topic], k=2)
            local.shuffle(words)
            table.writerow([" ".join(words), topic])
    return file


def main(
    file: Path, out: Path, text: str, target: str, *, rounds: int = 60, options: AuditOptions | None = None
) -> None:
    config = resolve(
        overrides={
            "rounds": rounds,
            "text": text,
            "target": target,
            "text_length": 20,
            "vocabulary": 512,
            "model": "transformer",
            "batch": 16,
            "public_fraction": 0.3,  # nobody's: what an attacker is assumed to hold, for the audit
        },
        sweep={"datasets": [str(file)], "mechanisms": ["none", "pl-identical"], "budgets": [0.995]},
    )
    for result in Run(out, config).execute()["federations"]:
        print(f"{result['mechanism']}: test accuracy {result['accuracy']:.1%}")
    # every candidate is tried by the gradient of a whole batch: half an hour of one core by default, a minute or two so
    options = options or AuditOptions(attacks=["matched"], releases=24, candidates=20, around=8, tuning=4)
    print(audit_run(out, options, snapshots=[0]).summary())


if __name__ == "__main__":
    try:
        with TemporaryDirectory() as scratch:
            here = Path(scratch)
            if len(sys.argv) == 4:
                main(Path(sys.argv[1]), here / "run", *sys.argv[2:])
            else:
                main(write_messages(here / "messages.csv", 3000), here / "run", "message", "topic")
    except EquipoiseError as error:
        sys.exit(f"error: {error}")
