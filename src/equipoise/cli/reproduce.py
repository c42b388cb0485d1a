"""``equipoise reproduce``: the paper's tables and figures again, beside the paper's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from . import completion
from .arguments import Json, print_json

EXAMPLES = (
    "Examples: equipoise reproduce --status   |   equipoise reproduce all --quick   |   equipoise reproduce cap "
    "--device cuda   |   equipoise reproduce all --plan SPEC.json --device cuda; then, on a machine with torch and "
    "numpy alone, python -m equipoise.compute SPEC.json OUT/; then equipoise reproduce all --from OUT"
)


def reproduce(
    artefacts: Annotated[
        list[str] | None, typer.Argument(help="Artefacts by name, or 'all'.", autocompletion=completion.artefacts)
    ] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and seeds: minutes, and no results.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Compute nothing; say what the results folder holds.")
    ] = False,
    plan: Annotated[Path | None, typer.Option(help="Write what is to be computed to this file, and stop.")] = None,
    source: Annotated[list[Path] | None, typer.Option("--from", help="Folders with raw results; repeatable.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Results folder; default reproduced or reproduced-quick; with --status reproduction."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.", autocompletion=completion.devices)] = "cpu",
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Figures need the extra 'paper'.")] = True,
    as_json: Json = False,
) -> None:
    """Compute the paper's tables and figures again and set them beside it: paper, ours, difference, verdict."""
    from ..reproduction import reproduce as shell
    from ..reproduction.artefacts.registry import check_names
    from ..reproduction.plan import FULL, QUICK
    from . import display

    names, scale = check_names(artefacts or []), QUICK if quick else FULL
    if sum((status, plan is not None, bool(source))) > 1:
        raise ConfigError("--status, --plan and --from exclude each other.", "Give one of them.")
    if status or not (artefacts or quick or plan or source):
        _show_status(shell.status(out or shell.committed()), as_json)
        if not status and not as_json:
            display.console.print("nothing was computed: name artefacts, or 'all'; add --quick for minutes on a CPU")
        return
    folder = out or Path("reproduced-quick" if quick else "reproduced")
    if plan is not None:
        _write_plan(shell.plan(names, scale, device, folder), plan, as_json)
        return
    if not as_json:
        display.console.print(_summary(shell.plan(names, scale, device, folder), names, scale, folder, bool(source)))
    with display.job_progress(as_json) as report:
        try:
            result = shell.reproduce(names, scale, folder, device, source or [], figures, report)
        except KeyboardInterrupt:
            display.errors.print("interrupted; run the same command again to go on", style="bold")
            raise typer.Exit(130) from None
    _show_status(result, as_json)
    if not as_json:
        display.console.print(f"page: {folder / 'index.html'}   text: {folder / 'README.md'}", markup=False)


def _write_plan(spec: dict[str, Any], path: Path, as_json: bool) -> None:
    from ..files import write_json
    from . import display

    jobs = spec["reproduction"]["jobs"]
    if path.is_dir() or not path.name:
        raise ConfigError(f"Cannot write the SPEC to {str(path)!r}: it is a folder.", "Name a file, as SPEC.json.")
    write_json(path, spec)
    told = {"jobs": len(jobs), "federations": sum(len(job["federations"]) for job in jobs), "spec": str(path)}
    if as_json:
        print_json(told)
        return
    display.console.print(f"{told['federations']} federations in {told['jobs']} jobs: {path}", markup=False)
    display.console.print(f"next: PYTHONPATH=src python -m equipoise.compute {path} OUT/", markup=False)


def _summary(spec: dict[str, Any], names: list[str], scale: Any, folder: Path, given: bool) -> Any:
    """What is about to be computed, before it is."""
    from rich.markup import escape
    from rich.tree import Tree

    from ..reproduction.artefacts.registry import ARTEFACTS
    from ..reproduction.plan import estimated_seconds

    jobs = spec["reproduction"]["jobs"]
    what = "every artefact" if set(names) == set(ARTEFACTS) else ", ".join(names)
    tree = Tree(f"[bold]{escape(what)}[/] -> {escape(str(folder))}")
    tree.add(
        f"scale {scale.name}: {scale.rounds} rounds, {len(scale.seeds)} seeds, InvGrad {scale.iterations} iterations"
    )
    if given:
        tree.add("raw results are taken as given; nothing is trained here")
        return tree
    for job in jobs:
        tree.add(f"{job['group']}: {len(job['federations'])} federations on {job['settings']['device']}")
    if jobs:
        device = jobs[0]["settings"]["device"]
        minutes = max(1, round(estimated_seconds(jobs, device) / 60))
        where = "an H200" if device.startswith("cuda") else "two CPU cores"
        tree.add(f"training and attacks: roughly {minutes} min on {where}; killed, it goes on where it was")
    else:
        tree.add("everything is there already: scored and written anew")
    return tree


def _show_status(result: dict[str, Any], as_json: bool) -> None:
    from rich.markup import escape

    from ..reproduction.claims import RULE
    from . import display
    from .reproduce_tables import status_tables

    if as_json:
        print_json(result)
        return
    for line in result["headline"]:
        display.console.print(f"[bold]{escape(line)}[/]")
    for table in status_tables(result):
        display.console.print(table)
    display.console.print(
        f"[dim]{RULE}. Cells agree by stated rules (docs/reproduction.md); eta, T, S and the initialisation were "
        "fitted to the paper's tables; no (epsilon, delta) is claimed[/]"
    )
