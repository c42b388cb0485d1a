"""``equipoise bounds``: the paper's theorems as numbers, beside what a run did."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, closest
from . import completion
from .arguments import Again, Json, existing_folder, pairs, print_json, whole_numbers

if TYPE_CHECKING:
    from ..bounds.options import BoundsOptions

EXAMPLES = (
    "Examples: equipoise bounds runs/a   |   equipoise bounds runs/a --snapshots 0,200 --targets 16   |   equipoise "
    "bounds runs/a --set iterations=400 --set repeats=32 --json"
)


def bounds(
    run: Annotated[Path, typer.Argument(help="A run folder, as train writes it.")],
    *,
    snapshots: Annotated[str | None, typer.Option(help="Rounds of the snapshots to look at; default all.")] = None,
    targets: Annotated[int, typer.Option(help="Releases that InvGrad attacks, for Lemma D.1; 0: none.")] = 8,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any other option, e.g. --set samples=128; see docs/bounds.md.",
            autocompletion=completion.bounds_options,
        ),
    ] = None,
    model: Again = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every row and every assumption, round by round.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The paper's theorems as numbers: every right-hand side beside what a run measured, and every assumption."""
    from ..bounds.run import bounds_run
    from ..files import locked
    from . import display
    from .bounds_tables import show_bounds

    options = _options(snapshots, targets, pairs(settings))
    existing_folder(run)
    with locked(run), display.attack_progress(as_json, "measuring", first=f"bounds of {run}") as progress:
        result = bounds_run(run, options, progress, model=model)
        written = result.save(run)
    if as_json:
        print_json(result.content)
        return
    show_bounds(result.content, everything)
    display.console.print("written: " + ", ".join(str(path) for path in written), markup=False)


def _options(snapshots: str | None, targets: int, given: dict[str, Any]) -> BoundsOptions:
    from ..bounds.options import BoundsOptions

    known = [part.name for part in fields(BoundsOptions) if part.name not in ("snapshots", "targets")]
    for key in given:
        if key not in known:
            raise ConfigError(f"Unknown option {key!r}.{closest(key, known)}", f"Known: {', '.join(known)}.")
    options = BoundsOptions(snapshots=whole_numbers(snapshots, "--snapshots"), targets=targets, **given)
    options.check()
    return options
