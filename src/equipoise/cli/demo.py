"""``equipoise demo``: three ways to train, then an attack on each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .arguments import Json, print_json
from .train import execute

EXAMPLES = "Example: equipoise demo --out demo"


def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for the run and the plot; replaced.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = 480,
    as_json: Json = False,
) -> None:
    """Train MNIST without protection, with static and with learned distortion, then attack; in under a minute."""
    from ..report.demonstration import demo_audit, demo_config, demo_page
    from ..runs.run import Run
    from . import display
    from .audit_tables import audit_tables, show_verdict
    from .run_tables import show_claims, show_results

    result = execute(Run(out, demo_config(rounds), fresh=True), quiet=as_json)
    with display.attack_progress(as_json) as progress:
        audited = demo_audit(out, progress).content
    if not audited["complete"]:
        raise typer.Exit(130)
    plot = demo_page(out, rounds)
    if as_json:
        print_json({**result, "plot": str(plot), "audit": audited, "picture": str(out / "audit.svg")})
        return
    show_results(result["federations"])
    show_verdict(audited)
    for table in audit_tables(audited):
        display.console.print(table)
    show_claims(result["federations"])
    display.note("one seed and few rounds: a demonstration, not a result; see reproduction/ for those")
    display.console.print(f"plot: {plot}   what the server sees: {out / 'audit.svg'}   run: {out}", markup=False)
