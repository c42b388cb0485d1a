"""What ``equipoise calibrate`` measures on a model, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigError
from .arguments import existing_folder, model_code

if TYPE_CHECKING:
    from ..choosing.identification import Identification
    from ..choosing.model_calibration import ModelCalibration


class Wanted(NamedTuple):
    """What is asked of a model."""

    mechanism: str
    budget: Any
    identification: float | None
    dataset: str | None
    run: Path | None


def on_model(wanted: Wanted, overrides: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """Noise beside an update, what matched is expected to find, and the budget for the share that is wanted."""
    from ..choosing.model_calibration import CLAIM, ModelCalibration
    from ..mechanism.constants import constants_warning
    from ..models.named import confirmed
    from ..runs.config import resolve
    from ..runs.folder import RunFolder

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
    seen, seconds = on.identification(), None
    result |= {"candidates": seen.candidates, "labels": len(seen.places)}
    if wanted.budget is not None:
        own, trained = config.settings.protection, on.sweep.batched.model
        result["constants"] = constants_warning(trained, wanted.mechanism, wanted.budget, own, None)
        result["ratios"] = on.ratios(wanted.budget)
        seconds = None if quiet else on.pace()
    _identify(wanted, on, seen, result, seconds, quiet)
    return result


def _identify(
    wanted: Wanted,
    on: ModelCalibration,
    seen: Identification,
    result: dict[str, Any],
    seconds: float | None,
    quiet: bool,
) -> None:
    """Add what matched is expected to find, and the budget for a share; say first how much is simulated for it."""
    from ..choosing.model_calibration import STEPS
    from ..mechanism.registry import get_mechanism
    from . import display

    learns = get_mechanism(wanted.mechanism).learns
    protection = on.settings.protection.at("none" if wanted.budget is None else wanted.mechanism, wanted.budget, 1)
    total = 0 if learns and wanted.budget is None else seen.cost(protection)
    if total and not quiet:
        took = "" if seconds is None else f", about {display.duration(seconds * total)}"
        text = f"simulating {total:,} updates of public {result['dataset']}, over {result['labels']} labels{took}"
        display.console.print(text, markup=False, highlight=False, soft_wrap=True)
    done = 0
    with display.progress(total, "simulating", quiet, "update") as tick:

        def released(count: int) -> None:
            nonlocal done
            done += count
            tick(min(done, total))

        seen.on_release = released
        if not learns:
            seen.prepare()
        if wanted.budget is not None:
            result["identification"] = seen.rate(protection)
    seen.on_release = None
    if wanted.identification is not None:
        with display.progress(STEPS[learns], "seeking a budget", quiet, "step") as on_step:
            result["wanted"] = on.budget_for(wanted.identification, seen, on_step)


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
            f"candidates of their class ({chance}), a mean over {result['labels']} labels"
        )
    if "wanted" in result:
        found = result["wanted"]
        size = f"noise {found['times_update']:.3g} times as long as an update"
        said = f"{size}, for which no budget of {result['mechanism']} with these constants is strict enough"
        if found["budget"] is not None:
            said = f"budget {found['budget']:g}, {size}"
        display.console.print(f"for {found['wanted']:.1%} at most ({chance}): {said}")
    if result.get("constants"):
        display.console.print(f"warning: {result['constants']}", markup=False, highlight=False, soft_wrap=True)
    display.note(result["claim"])
