"""``equipoise doctor``: is the installation sound?"""

from __future__ import annotations

import typer

from .arguments import Json, print_json

EXAMPLES = "Example: equipoise doctor --json"


def doctor(as_json: Json = False) -> None:
    """Check the installation: versions, bundled data, arithmetic, disk, optional parts."""
    from ..engine.doctor import examine

    result = examine()
    if as_json:
        print_json(result)
    else:
        from . import display

        for check in result["checks"]:
            mark = "[green]ok[/]  " if check["ok"] else "[red]FAIL[/]"
            display.console.print(f"{mark} {check['name']}: {check['detail']}")
    if not all(check["ok"] for check in result["checks"]):
        raise typer.Exit(1)
