"""``equipoise train``: a sweep of federations into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import completion
from .arguments import Json, Set, pairs, print_json, split

if TYPE_CHECKING:
    from ..runs.config import Config
    from ..runs.run import Run

EXAMPLES = (
    "Examples: equipoise train --mechanism pl-learn,pl-identical --budget 0.96,0.98 --seed 1,2 --rounds 2000 "
    "--out runs/a   |   equipoise train --config sweep.toml --set eta=0.05"
)


def train(
    *,
    config: Annotated[Path | None, typer.Option(help=r"TOML file with settings and \[\[sweep]] blocks.")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="mnist, fmnist or a folder; comma-separated.", autocompletion=completion.datasets),
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="none, pl-learn, ...; comma-separated.", autocompletion=completion.mechanisms)
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Budgets; comma-separated.")] = None,
    seed: Annotated[str | None, typer.Option(help="Seeds; comma-separated.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds T.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", autocompletion=completion.devices)] = None,
    release_limit: Annotated[int | None, typer.Option(help="Most releases of a client; see docs/ledger.md.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<digest>.")] = None,
    settings: Set = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the run folder instead of resuming it.")] = False,
    as_json: Json = False,
) -> None:
    """Train a sweep of federations as one batch. Killed? Run the same command again: it goes on where it was."""
    from ..runs.config import resolve
    from . import display
    from .run_tables import not_claimed, refused_note, result_table, summary

    overrides = pairs(settings)
    flags = (("rounds", rounds), ("device", device), ("release_limit", release_limit))
    overrides |= {key: value for key, value in flags if value is not None}
    names = [("datasets", dataset), ("mechanisms", mechanism), ("budgets", budget), ("seeds", seed)]
    found_config = resolve(config, overrides, {key: split(text) for key, text in names})
    folder = out or Path("runs") / found_config.digest()[:12]
    if not as_json:
        display.console.print(summary(found_config, folder))
    result, _ = execute(found_config, folder, fresh, quiet=as_json)
    if as_json:
        print_json(result)
        return
    display.console.print(result_table(result["federations"]))
    display.errors.print(refused_note(result["federations"]), style="red", end="")
    display.console.print(f"[dim]{not_claimed(result)}[/]")
    display.console.print(f"results: {folder / 'result.json'}", markup=False)


def execute(config: Config, folder: Path, fresh: bool, quiet: bool) -> tuple[dict[str, Any], Run]:
    """Train with a bar and, interrupted, with a word on how to go on."""
    from ..runs.run import Run
    from . import display

    run = Run(folder, config, fresh)

    def started(at: int) -> None:
        if at and not quiet:
            display.console.print(f"resumed at round {at}")

    with display.progress(config.settings.rounds, "training", quiet) as on_round:
        try:
            return run.execute(started, on_round), run
        except KeyboardInterrupt:
            display.errors.print(
                f"interrupted at round {run.sweep.state.round}; run the same command again to go on", style="bold"
            )
            raise typer.Exit(130) from None
