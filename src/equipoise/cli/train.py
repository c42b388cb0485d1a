"""``equipoise train``: a sweep of federations into a run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import printable
from . import completion
from .arguments import Json, Model, Set, model_code, pairs, print_json, split, words

if TYPE_CHECKING:
    from ..runs.run import Run

EXAMPLES = (
    "Examples: equipoise train --mechanism gaussian-dp --budget 2 --set model=scatter-linear   |   equipoise train "
    "--mechanism pl-learn,pl-identical --budget 0.96,0.98 --seed 1,2 --rounds 2000 --out runs/a   |   equipoise train "
    "--config sweep.toml --set eta=0.05"
)


def train(
    *,
    config: Annotated[Path | None, typer.Option(help=r"TOML file with settings and \[\[sweep]] blocks.")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            "--data",
            help="mnist, fmnist, breast-cancer, generated-text, or a path; comma-separated.",
            autocompletion=completion.datasets,
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(help="gaussian-dp, pl-learn, none, ...; comma-separated.", autocompletion=completion.mechanisms),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Budgets, of gaussian-dp the epsilon of the whole run; comma-separated.")
    ] = None,
    model: Model = None,
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
    from ..runs.run import Run
    from . import display
    from .run_tables import show_claims, show_results

    overrides = pairs(settings)
    flags = (("model", model), ("rounds", rounds), ("device", device), ("release_limit", release_limit))
    overrides |= {key: value for key, value in flags if value is not None}
    sweep = {"datasets": words(dataset), "mechanisms": words(mechanism), "budgets": split(budget), "seeds": split(seed)}
    resolved = resolve(config, overrides, sweep)
    folder = out or Path("runs") / resolved.digest()[:12]
    run = Run(folder, resolved, fresh, model=model_code(resolved, "model" in overrides))
    del resolved  # and with it data that are trained on as features

    warned = [*constants_warnings(run), *leak_warnings(run)]
    result = execute(run, quiet=as_json, first=lambda: announce(run, warned))
    if as_json:
        print_json({**result, "warnings": warned} if warned else result)
        return
    show_results(result["federations"])
    show_claims(result["federations"])
    display.console.print(f"results: {folder / 'result.json'}", markup=False)


def announce(run: Run, warned: Sequence[str]) -> None:
    """What comes, with what was guessed of the data and what a user should know before it starts."""
    from ..runs.guarantees import not_covered
    from . import display
    from .run_tables import summary

    display.console.print(summary(run.config, run.folder, run.sweep.route_seconds))
    lines = [f"warning: {warning}" for warning in warned]
    for name, data in run.sweep.datasets.items():
        if not run.sweep.test_parts[name, ""]:
            rows = f"{len(data.test):,} rows to test on are fewer than the clients"
            lines.append(f"{data.name}: {rows}, so no client has an accuracy of its own")
        lines += [printable(f"{data.name}: guessed {guess}") for guess in data.guessed]
        if data.public is None:
            lines.append(
                f"warning: {data.name} has no public {data.train.word}, so this run cannot be audited as it is. To set "
                "some apart: --set public_fraction=0.1"
            )
    lines += [f"not covered by the guarantee: {what}" for what in not_covered(run.sweep)]
    for line in lines:
        display.console.print(line, markup=False, highlight=False, soft_wrap=True)


def constants_warnings(run: Run) -> list[str]:
    """What to say where the paper's constants meet another model: of the first budget of each kind that has them."""
    from ..mechanism.constants import constants_warning, mark_told
    from ..mechanism.registry import get_mechanism

    name, own, model = run.config.settings.training.model, run.config.settings.protection, run.sweep.batched.model
    said: dict[str, str] = {}
    for fed in run.config.federations():
        text = constants_warning(model, fed.mechanism, fed.budget, own, name)
        if text is not None:
            said.setdefault(str(get_mechanism(fed.mechanism).measure), text)
            mark_told(model, fed.mechanism)  # once will do
    return list(said.values())


def leak_warnings(run: Run) -> list[str]:
    """What to say of mechanisms that learn: once of each."""
    from ..mechanism.learned_leak import leak_warning, mark_leak_told

    said = []
    for name in dict.fromkeys(fed.mechanism for fed in run.config.federations()):
        text = leak_warning(name)
        if text is not None:
            said.append(text)
            mark_leak_told(name)  # once will do
    return said


def execute(run: Run, *, quiet: bool, first: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Train with a bar; interrupted, say how to go on. ``first`` shows what comes, once nothing can be refused."""
    from . import display

    def started(at: int) -> None:
        if not quiet:
            first()
            if at:
                display.console.print(f"resumed at round {at}")
        for warning in run.warnings:
            where = display.errors if quiet else display.console
            where.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)

    with display.progress(run.config.settings.training.rounds, "training", quiet) as on_round:
        try:
            return run.execute(started, on_round)
        except KeyboardInterrupt:
            display.errors.print(
                f"interrupted at round {run.sweep.state.round}; run the same command again to go on", style="bold"
            )
            raise typer.Exit(130) from None
