"""``equipoise calibrate``: what a budget asks of the distortion, and what it means on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from . import completion
from .arguments import Json, Model, Set, pairs, print_json, split, words
from .calibrate_model import Wanted, on_model, show_model

EXAMPLES = (
    "Examples: equipoise calibrate --mechanism pl-learn --budget 0.96   |   equipoise calibrate --model mlp "
    "--mechanism pl-identical --budget 0.98 --identification 0.05"
)
Former = Annotated[str | None, typer.Option(hidden=True)]


def calibrate(
    *,
    mechanism: Annotated[str, typer.Option(help="Mechanism.", autocompletion=completion.mechanisms)] = "pl-learn",
    budget: Annotated[str | None, typer.Option(help="Its budget.")] = None,
    sensitivity: Annotated[float | None, typer.Option(help="S of the scale mechanisms.")] = None,
    search: Annotated[bool, typer.Option("--search", hidden=True)] = False,
    model: Model = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            "--data",
            help="Whose public part to measure on.",
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
    rounds: Former = None,
    seed: Former = None,
    keep: Former = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """What a budget asks of the distortion; with --model, --dataset, --run or --identification what that means on a
    model, measured on public data."""
    if search or any(given is not None for given in (rounds, seed, keep)):
        raise ConfigError(
            "calibrate does not search for settings.",
            "equipoise choose does, by training: for example equipoise choose --dataset mnist --epsilon 2.",
        )
    overrides = pairs(settings)
    flags = (("sensitivity", sensitivity), ("model", model))
    overrides |= {key: value for key, value in flags if value is not None}
    names, budgets = words(mechanism), split(budget)
    if len(names) != 1 or len(budgets) > 1:
        raise ConfigError("Expected one --mechanism and one --budget.", "Run it once for each.")
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
