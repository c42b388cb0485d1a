"""``equipoise calibrate``: what a budget asks of the distortion, what it means on a model, or which still train."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from . import completion
from .arguments import Json, Model, Set, model_code, pairs, print_json, split, words
from .calibrate_model import Wanted, on_model, show_model

if TYPE_CHECKING:
    from ..choosing.search import SearchResult

EXAMPLES = (
    "Examples: equipoise calibrate --mechanism pl-learn --budget 0.96   |   equipoise calibrate --model mlp "
    "--mechanism pl-identical --budget 0.98 --identification 0.05   |   equipoise calibrate --search --mechanism "
    "pl-learn,pl-identical --rounds 600"
)


def calibrate(
    *,
    mechanism: Annotated[
        str, typer.Option(help="Mechanism; with --search comma-separated.", autocompletion=completion.mechanisms)
    ] = "pl-learn",
    budget: Annotated[str | None, typer.Option(help="Budget; with --search a comma-separated grid.")] = None,
    sensitivity: Annotated[float | None, typer.Option(help="S of the scale mechanisms.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Find the strictest budget that trains, on public data.")
    ] = False,
    model: Model = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            "--data",
            help="Whose public part to measure or search on.",
            show_default="mnist",
            autocompletion=completion.datasets,
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="A run folder: measure at its last weights instead of the first ones.")
    ] = None,
    identification: Annotated[
        float | None, typer.Option(help="Find the budget at which matched is expected to find this share.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of the search.")] = 600,
    seed: Annotated[str, typer.Option(help="Seeds of the search; comma-separated.")] = "1,2,3",
    keep: Annotated[
        float, typer.Option(help="Share of the unprotected gain over chance that counts as trained.")
    ] = 0.5,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """What a budget asks of the distortion; with --model, --dataset, --run or --identification what that means on a
    model, measured on public data; with --search, which budgets still train."""
    overrides = pairs(settings)
    flags = (("sensitivity", sensitivity), ("model", model))
    overrides |= {key: value for key, value in flags if value is not None}
    names, budgets = words(mechanism), split(budget)
    if search:
        _search(names, budgets, dataset or "mnist", split(seed), keep, {**overrides, "rounds": rounds}, as_json)
        return
    if len(names) != 1 or len(budgets) > 1:
        raise ConfigError("Expected one --mechanism and one --budget.", "Use --search to compare several.")
    measured = "model" in overrides or any(given is not None for given in (dataset, run, identification))
    value = budgets[0] if budgets else None
    result: dict[str, Any] = {}
    if measured and (value is not None or identification is not None):
        wanted = Wanted(names[0], value, identification, dataset, run)
        result["model"] = on_model(wanted, overrides, as_json)
    if value is not None or identification is None:
        result = {**_asked(names[0], value, overrides), **result}
    if as_json:
        print_json(result)
        return
    if "claim" in result:
        _show_calibration(result, guesses="model" not in result)
    if "model" in result:
        show_model(result["model"])


def _asked(name: str, budget: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    from ..choosing.calibration import calibration
    from ..runs.config import resolve

    settings = resolve(overrides=overrides, sweep={"mechanisms": ["none"]}).settings
    return calibration(settings.protection, name, budget)


def _show_calibration(result: dict[str, Any], guesses: bool) -> None:
    """``guesses``: with what guesses score on the bundled pictures, which tells nothing of other data."""
    from . import display

    norm = result["norm"].upper()
    if result["shaping"] is not None:
        said = f"the update itself is shaped, with {result['shaping']} {result['scale']:.6g}; nothing is learned"
    elif result["scale"] is not None:
        follows = (
            f"the {norm} bounds of what is learned follow from each draw" if result["learns"] else "nothing is learned"
        )
        said = f"noise is drawn with scale {result['scale']:.6g}; {follows}"
    elif result["learns"]:
        said = f"every release is distorted by an {norm} norm of {result['lower']:.6g} to {result['upper']:.6g}"
    else:
        said = f"every release is distorted by an {norm} norm of {result['lower']:.6g}; nothing is learned"
    display.console.print(said)
    for name, scores in ((result["guesses"] or {}) if guesses else {}).items():
        display.note(
            f"for scale: by the score that this budget keeps below {result['budget']}, guesses that use no update "
            f"reach {scores['black']:.2f} (black) and {scores['class_mean']:.2f} (class mean) on public {name}"
        )
    display.note(result["claim"])


def _search(
    names: list[str],
    budgets: list[float],
    dataset: str,
    seeds: list[int],
    keep: float,
    overrides: dict[str, Any],
    as_json: bool,
) -> None:
    from ..choosing.search import search
    from ..engine.datasets import load_dataset
    from ..runs.config import resolve
    from . import display

    config = resolve(overrides=overrides, sweep={"mechanisms": ["none"], "datasets": [dataset]})
    with display.progress(config.settings.training.rounds, f"searching on public {dataset}", quiet=as_json) as on_round:
        result = search(
            load_dataset(config.settings, dataset), names, config.settings, budgets or None, seeds, keep, on_round,
            model=model_code(config, named=True),
        )  # fmt: skip
    if as_json:
        print_json(
            {"bar": result.bar, "strictest": result.strictest, "trials": [asdict(trial) for trial in result.trials]}
        )
        return
    _show_search(result, f"public {dataset}, {config.settings.training.rounds} rounds")


def _show_search(result: SearchResult, what: str) -> None:
    from ..mechanism.schedule import schedule_text
    from . import display

    numbers = ("budget", "accuracy", "95 % interval", "seeds")
    table = display.table(
        f"{what}; a budget trains from {result.bar:.1%} on", ("mechanism", *numbers, "trains"), numbers=numbers
    )
    for trial in result.trials:
        display.add_row(
            table, trial.mechanism, schedule_text(trial.budget), f"{trial.accuracy:.1%}",
            display.share_range(*(trial.interval or (None, None))), str(trial.seeds), "yes" if trial.trains else "no",
        )  # fmt: skip
    display.console.print(table)
    for name, value in result.strictest.items():
        edge = " (the strictest tried: the edge was not found)" if result.at_edge(name) else ""
        best = "none of these" if value is None else f"{value:g}{edge}"
        display.console.print(f"strictest budget that trains with {name}: {best}")
