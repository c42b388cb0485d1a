"""What ``equipoise calibrate`` measures on a model, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError
from .arguments import existing_folder, model_code


class Wanted(NamedTuple):
    """What is asked of a model."""

    mechanism: str
    budget: Any
    identification: float | None
    dataset: str | None
    run: Path | None


def on_model(wanted: Wanted, overrides: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """Noise beside an update, what matched is expected to find, and the budget for the share that is wanted."""
    from ..choosing.model_calibration import CLAIM, STEPS, ModelCalibration
    from ..mechanism.registry import get_mechanism
    from ..models.named import confirmed
    from ..runs.config import resolve
    from ..runs.folder import RunFolder
    from . import display

    folder = None if wanted.run is None else RunFolder(existing_folder(wanted.run))
    file, dataset = None, wanted.dataset or "mnist"
    if folder is not None:
        if folder.config.deployment is not None:
            cause = f"The folder {folder.path.name} is a deployment's, and says little of how its clients train."
            raise ConfigError(cause, "Name --model, --dataset and --set eta=, batch= without --run.")
        overrides = {**overrides, "model": confirmed(folder.config.settings.training.model, overrides.get("model"))}
        file, dataset = folder.path / "config.toml", wanted.dataset or folder.config.federations()[0].dataset
    config = resolve(file, overrides, {"mechanisms": ["none"], "datasets": [dataset]})
    code = model_code(config, named=True)
    on = ModelCalibration.of(config.settings, dataset, wanted.mechanism, model=code, run=folder)
    result: dict[str, Any] = {
        "model": config.settings.training.model, "dataset": dataset, "weights": on.where, "claim": CLAIM,
        "mechanism": wanted.mechanism, "budget": wanted.budget,
    }  # fmt: skip
    if wanted.budget is not None:
        result["ratios"] = on.ratios(wanted.budget)
    seen = on.identification()
    result["candidates"] = seen.candidates
    if wanted.budget is not None:
        protection = config.settings.protection.at(wanted.mechanism, wanted.budget, 1)
        result["identification"] = seen.rate(protection)
    if wanted.identification is not None:
        steps = STEPS[get_mechanism(wanted.mechanism).learns]
        with display.progress(steps, "seeking a budget", quiet) as on_step:
            result["wanted"] = on.budget_for(wanted.identification, seen, on_step)
    return result


def show_model(result: dict[str, Any]) -> None:
    """The table of tensors, and sentences."""
    from . import display

    chance = f"chance finds {1 / result['candidates']:.1%}"
    if "ratios" in result:
        numbers = ("numbers", "update", "noise", "noise / update")
        title = f"{result['model']} on public {result['dataset']}, {result['weights']}: L2 norms"
        table = display.table(title, ("tensor", *numbers), numbers=numbers)
        for row in result["ratios"]:
            values = (f"{row['update']:.3g}", f"{row['noise']:.3g}", f"{row['ratio']:.3g}")
            display.add_row(table, row["tensor"], f"{row['numbers']:,}", *values)
        display.console.print(table)
        display.console.print(
            f"expected of matched: it finds {result['identification']:.1%} of examples among {result['candidates']} "
            f"candidates of their class ({chance})"
        )
    if "wanted" in result:
        found = result["wanted"]
        size = f"noise {found['times_update']:.3g} times as long as an update"
        said = f"{size}, for which no budget of {result['mechanism']} with these constants is strict enough"
        if found["budget"] is not None:
            said = f"budget {found['budget']:g}, {size}"
        display.console.print(f"for {found['wanted']:.1%} at most ({chance}): {said}")
    display.note(result["claim"])
