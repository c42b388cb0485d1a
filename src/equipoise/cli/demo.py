"""``equipoise demo``: three ways to train, then an attack on each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import Json, print_json
from .train import execute

EXAMPLES = "Example: equipoise demo --out demo"
ATTACK: dict[str, Any] = {
    "attacks": ["lti", "membership"],
    "releases": 24,
    "label_sets": 1,
    "samples": 400,
    "pictures": 1,
}


def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for the run and the plot; replaced.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = 480,
    as_json: Json = False,
) -> None:
    """Train MNIST without protection, with static and with learned distortion, then attack; in under a minute."""
    from ..auditing.options import Options
    from ..auditing.run_audit import audit_run
    from ..files import write_text
    from ..report.accuracy import accuracy_page
    from ..runs.config import resolve
    from ..runs.folder import RunFolder
    from . import display
    from .audit_tables import audit_tables
    from .run_tables import not_claimed, refused_note, result_table

    config = resolve(
        overrides={
            "rounds": rounds,
            "evaluate_every": max(1, rounds // 12),
            "sweep": [
                {"mechanisms": ["none"]},
                {"mechanisms": ["pl-identical", "pl-learn"], "budgets": [0.97, 0.99]},
            ],
        }
    )
    result, run = execute(config, out, fresh=True, quiet=as_json)
    options = Options(**ATTACK)
    with display.attack_progress(as_json) as progress:
        seen = audit_run(out, options, rounds=[0], progress=progress)
        seen.save(out)
    if not seen.content["complete"]:
        raise typer.Exit(130)
    plot = out / "accuracy.html"
    title = f"MNIST, 4 clients, {rounds} rounds, seed 1"
    write_text(plot, accuracy_page(RunFolder(out).metrics(), title))
    if as_json:
        print_json({**result, "plot": str(plot), "audit": seen.content, "picture": str(out / "audit.svg")})
        return
    display.console.print(result_table(result["federations"]))
    for table in audit_tables(seen.content):
        display.console.print(table)
    display.errors.print(refused_note(result["federations"]), style="red", end="")
    display.console.print(f"[dim]{not_claimed(result)}[/]")
    display.console.print("[dim]one seed and few rounds: a demonstration, not a result; see reproduction/ for those[/]")
    display.console.print(f"plot: {plot}   what the server sees: {out / 'audit.svg'}   run: {run.folder}", markup=False)
