"""The command line: thin shells around the library. ``--json`` prints one JSON document and nothing else."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, EquipoiseError
from . import flower as cli_flower
from . import ledger as cli_ledger
from . import paper as cli_paper
from .interrupts import interruptible_imports

app = typer.Typer(
    name="equipoise",
    help="Federated learning in which every client distorts its update under a stated privacy budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
SETTINGS_HELP = "Any setting, e.g. --set eta=0.05 --set leakage.D=60; repeatable."


def _split(text: str | None) -> list[Any]:
    from ..runs.config import literal

    return [literal(part.strip()) for part in text.split(",") if part.strip()] if text else []


def _pairs(options: list[str]) -> dict[str, Any]:
    from ..runs.config import literal

    pairs = {}
    for option in options:
        key, found, value = option.partition("=")
        if not found or not key:
            raise ConfigError(f"Expected --set key=value, got {option!r}.", "Example: --set eta=0.05")
        pairs[key.strip()] = literal(value.strip())
    return pairs


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


@app.command(epilog="Example: equipoise demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and the plot; replaced.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = 480,
    as_json: Json = False,
) -> None:
    """Train MNIST without protection, with static and with learned distortion, then attack; in under a minute."""
    from ..auditing.options import Options
    from ..auditing.run_audit import audit_run
    from ..runs.config import resolve
    from . import display

    config = resolve(
        overrides={
            "rounds": rounds,
            "evaluate_every": max(1, rounds // 12),
            "sweep": [
                {"mechanisms": ["none"]},
                {"mechanisms": ["pl-identical", "pl-learn"], "budgets": [0.97, 0.99]},
            ],
        }
    )
    found, run = _execute(config, out, fresh=True, quiet=as_json)
    options = Options(attacks=["lti", "membership"], releases=24, label_sets=1, samples=400, pictures=1)
    with display.attack_progress(as_json) as progress:
        seen = audit_run(out, options, rounds=[0], progress=progress)
        seen.save(out)
    if not seen.found["complete"]:
        raise typer.Exit(130)
    plot = out / "accuracy.html"
    display.plot_curves(_metrics(out), plot, f"MNIST, 4 clients, {rounds} rounds, seed 1")
    if as_json:
        _print_json({**found, "plot": str(plot), "audit": seen.found, "picture": str(out / "audit.svg")})
        return
    display.console.print(display.result_table(found["federations"]))
    for table in display.audit_tables(seen.found):
        display.console.print(table)
    display.errors.print(display.refused_note(found["federations"]), style="red", end="")
    display.console.print(f"[dim]{display.NOT_CLAIMED}[/]")
    display.console.print("[dim]one seed and few rounds: a demonstration, not a result; see reproduction/ for those[/]")
    display.console.print(f"plot: {plot}   what the server sees: {out / 'audit.svg'}   run: {run.folder}", markup=False)


@app.command(
    epilog="Examples: equipoise train --mechanism pl-learn,pl-identical --budget 0.96,0.98 --seed 1,2 --rounds 2000 "
    "--out runs/a   |   equipoise train --config sweep.toml --set eta=0.05"
)
def train(
    config: Annotated[Path | None, typer.Option(help="TOML file with settings and [[sweep]] blocks.")] = None,
    dataset: Annotated[str | None, typer.Option(help="mnist, fmnist or a folder; comma-separated.")] = None,
    mechanism: Annotated[str | None, typer.Option(help="none, pl-learn, ...; comma-separated.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budgets; comma-separated.")] = None,
    seed: Annotated[str | None, typer.Option(help="Seeds; comma-separated.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds T.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    release_limit: Annotated[int | None, typer.Option(help="Most releases of a client; see docs/ledger.md.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<digest>.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SETTINGS_HELP)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the run folder instead of resuming it.")] = False,
    as_json: Json = False,
) -> None:
    """Train a sweep of federations as one batch. Killed? Run the same command again: it goes on where it was."""
    from ..runs.config import resolve
    from . import display

    overrides = _pairs(settings or [])
    flags = (("rounds", rounds), ("device", device), ("release_limit", release_limit))
    overrides |= {key: value for key, value in flags if value is not None}
    names = [("datasets", dataset), ("mechanisms", mechanism), ("budgets", budget), ("seeds", seed)]
    found_config = resolve(config, overrides, {key: _split(text) for key, text in names})
    folder = out or Path("runs") / found_config.digest()[:12]
    if not as_json:
        display.console.print(display.summary(found_config, folder))
    found, _ = _execute(found_config, folder, fresh, quiet=as_json)
    if as_json:
        _print_json(found)
        return
    display.console.print(display.result_table(found["federations"]))
    display.errors.print(display.refused_note(found["federations"]), style="red", end="")
    display.console.print(f"[dim]{display.NOT_CLAIMED}[/]")
    display.console.print(f"results: {folder / 'result.json'}", markup=False)


def _execute(config: Any, folder: Path, fresh: bool, quiet: bool) -> tuple[dict[str, Any], Any]:
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


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@app.command(
    epilog="Examples: equipoise audit runs/a   |   equipoise audit runs/a --attack lti,matched --targets 100 "
    "--rounds 0,200   |   equipoise audit runs/a --attack invgrad --set lr=0.1 --set signed=false"
)
def audit(
    run: Annotated[Path, typer.Argument(help="A run folder, as train writes it.")],
    attack: Annotated[
        str,
        typer.Option(help="invgrad, dlg, idlg, likelihood, unrolled, lti, matched, membership, labels, multi-round."),
    ] = "invgrad,lti,matched,membership,labels",
    targets: Annotated[int, typer.Option(help="Releases to attack; under 20 is insufficient evidence.")] = 32,
    rounds: Annotated[str | None, typer.Option(help="Snapshots to attack; default first, early and last.")] = None,
    multi_rounds: Annotated[int, typer.Option(help="Releases that the attack multi-round combines.")] = 300,
    private: Annotated[
        bool, typer.Option("--private", help="Attack the clients' own images, and SHOW them in the picture.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any attack option, e.g. --set samples=2000 --set given=best.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What could the server see? Attack a run's releases at its own snapshots; writes audit.json and audit.svg."""
    from ..auditing.run_audit import audit_run
    from ..files import locked
    from . import display

    names = [str(name) for name in _split(attack)]
    combined = "multi-round" in names
    options = _attack_options([name for name in names if name != "multi-round"], targets, _pairs(settings or []))
    if not names:
        raise ConfigError("No attack was named.", "For example --attack lti,matched.")
    wanted = None if rounds is None else _split(rounds)
    if wanted is not None and not all(isinstance(when, int) for when in wanted):
        raise ConfigError(f"Expected --rounds {rounds} to be whole numbers.", "For example --rounds 0,200.")
    if not run.is_dir():
        raise ConfigError(f"There is no folder {run.name}.", "Give a run folder: equipoise train --out RUN writes one.")
    if not as_json:
        said = f"{targets} releases of {'PRIVATE' if private else 'public'} images over {options.label_sets} label sets"
        display.console.print(f"auditing {run}: {', '.join(names)}; {said}", markup=False, highlight=False)
    with locked(run), display.attack_progress(as_json) as progress:
        found = audit_run(run, options, wanted, private, multi_rounds if combined else 0, progress)
        written = found.save(run)
    if as_json:
        _print_json(found.found)
    else:
        _show_audit(found.found, written)
    if not found.found["complete"]:
        raise typer.Exit(130)


def _show_audit(found: dict[str, Any], written: list[Path]) -> None:
    from . import display

    for table in display.audit_tables(found):
        display.console.print(table)
    display.console.print(display.audit_notes(found), markup=False, highlight=False, style="dim")
    display.console.print("written: " + ", ".join(str(path) for path in written), markup=False)


def _attack_options(names: list[str], targets: int, given: dict[str, Any]) -> Any:
    from ..auditing.options import Options
    from ..errors import closest

    known = [name for name in Options().plain() if name not in ("attacks", "releases")]
    for key in given:
        if key not in known:
            raise ConfigError(f"Unknown attack option {key!r}.{closest(key, known)}", f"Known: {', '.join(known)}.")
    options = Options(attacks=names, releases=targets, **given)
    options.check()
    return options


@app.command(
    epilog="Examples: equipoise calibrate --mechanism pl-learn --budget 0.96   |   equipoise calibrate --search "
    "--mechanism pl-learn,pl-identical --rounds 600"
)
def calibrate(
    mechanism: Annotated[str, typer.Option(help="Mechanism; with --search comma-separated.")] = "pl-learn",
    budget: Annotated[str | None, typer.Option(help="Budget; with --search a comma-separated grid.")] = None,
    sensitivity: Annotated[float | None, typer.Option(help="S of the scale mechanisms.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Find the strictest budget that trains, on public data.")
    ] = False,
    dataset: Annotated[str, typer.Option(help="Whose public part to search on.")] = "mnist",
    rounds: Annotated[int, typer.Option(help="Rounds of the search.")] = 600,
    seed: Annotated[str, typer.Option(help="Seeds of the search; comma-separated.")] = "1,2,3",
    keep: Annotated[
        float, typer.Option(help="Share of the unprotected gain over chance that counts as trained.")
    ] = 0.5,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SETTINGS_HELP)] = None,
    as_json: Json = False,
) -> None:
    """What a budget asks of the distortion; or, with --search, which budgets still train."""
    from ..runs.config import resolve

    overrides = _pairs(settings or [])
    overrides |= {} if sensitivity is None else {"sensitivity": sensitivity}
    names, budgets = _split(mechanism), _split(budget)
    if search:
        _search(names, budgets, dataset, _split(seed), keep, {**overrides, "rounds": rounds}, as_json)
        return
    if len(names) != 1 or len(budgets) != 1:
        raise ConfigError("Expected one --mechanism and one --budget.", "Or use --search for several.")
    config = resolve(overrides=overrides, sweep={"mechanisms": names, "budgets": budgets})
    found = _calibration(config, names[0], budgets[0])
    if as_json:
        _print_json(found)
        return
    _show_calibration(found)


def _calibration(config: Any, name: str, budget: float) -> dict[str, Any]:
    from ..mechanism.budget import LeakageBudget
    from ..mechanism.registry import mechanism as find

    kind, measure = find(name), config.settings.measure(name)
    if measure is None:
        raise ConfigError("The mechanism 'none' has no budget to calibrate.", "Choose another mechanism.")
    low, draws = measure.lower(budget), measure.bounds_draw
    low, high = float(f"{low:.12g}"), float(f"{measure.factor * low:.12g}")  # without the last bits of 1 - budget
    return {
        "mechanism": name,
        "budget": budget,
        "lower": None if draws else low,
        "upper": None if draws else high,
        "scale": low if draws else None,
        "norm": kind.norm,
        "guesses": {name: guess_scores(name, config.settings.leakage.D) for name in ("mnist", "fmnist")}
        if isinstance(measure, LeakageBudget)
        else None,
        "claim": "the epsilon of one release, for replacing one example of the client (docs/laplace_dp.md)"
        if kind.formal
        else "a calibration of the distortion; no (epsilon, delta) is claimed",
    }


def _show_calibration(found: dict[str, Any]) -> None:
    from . import display

    print_, norm = display.console.print, found["norm"].upper()
    if found["scale"] is None:
        print_(f"every release is distorted by an {norm} norm of {found['lower']:.6g} to {found['upper']:.6g}")
    else:
        print_(f"noise is drawn with scale {found['scale']:.6g}; the {norm} bounds follow from each draw")
    for name, scores in (found["guesses"] or {}).items():
        print_(
            f"[dim]for scale: by the score that this budget keeps below {found['budget']}, guesses that use no update "
            f"reach {scores['black']:.2f} (black) and {scores['class_mean']:.2f} (class mean) on public {name}[/]"
        )
    print_(f"[dim]{found['claim']}[/]")


def guess_scores(name: str, diameter: float) -> dict[str, float]:
    """The paper's leakage score of two guesses that use no update: black, and the mean of the class.

    Measured on the 500 public target images; the class means come from the other public images.
    """
    import torch

    from ..data.dataset import load

    data = load(name)
    targets, known = data.public_targets, data.public_attack
    centre = torch.stack([known.images[known.labels == label].mean(0) for label in range(data.classes)])
    black = known.images.min().expand_as(targets.images)

    def leakage(guess: torch.Tensor) -> float:
        return 1 - float((guess - targets.images).flatten(1).norm(dim=1).mean()) / diameter

    return {"black": leakage(black), "class_mean": leakage(centre[targets.labels])}


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
    with display.progress(config.settings.rounds, f"searching on public {dataset}", quiet=as_json) as on_round:
        found = search(
            load_dataset(config.settings, dataset), names, config.settings, budgets or None, seeds, keep, on_round
        )
    if as_json:
        _print_json(
            {"bar": found.bar, "strictest": found.strictest, "trials": [asdict(trial) for trial in found.trials]}
        )
        return
    from rich.table import Table

    table = Table(
        title=f"public {dataset}, {config.settings.rounds} rounds; a budget trains from {found.bar:.1%} on",
        title_justify="left",
    )
    for name in ("mechanism", "budget", "accuracy", "95 % interval", "seeds", "trains"):
        table.add_column(name)
    for trial in found.trials:
        interval = "-" if trial.interval is None else f"{trial.interval[0]:.1%} to {trial.interval[1]:.1%}"
        row = (trial.mechanism, "-" if trial.budget is None else str(trial.budget), f"{trial.accuracy:.1%}", interval)
        table.add_row(*row, str(trial.seeds), "yes" if trial.trains else "no")
    display.console.print(table)
    for name, value in found.strictest.items():
        tried = min(trial.budget for trial in found.trials if trial.mechanism == name and trial.budget is not None)
        edge = " (the strictest tried: the edge was not found)" if value == tried else ""
        found_word = "none of these" if value is None else f"{value}{edge}"
        display.console.print(f"strictest budget that trains with {name}: {found_word}")


@app.command(epilog="Example: equipoise doctor --json")
def doctor(as_json: Json = False) -> None:
    """Check the installation: versions, bundled data, arithmetic, disk, optional parts."""
    from ..engine.doctor import examine

    found = examine()
    if as_json:
        _print_json(found)
    else:
        from . import display

        for check in found["checks"]:
            mark = "[green]ok[/]  " if check["ok"] else "[red]FAIL[/]"
            display.console.print(f"{mark} {check['name']}: {check['detail']}")
    if not all(check["ok"] for check in found["checks"]):
        raise typer.Exit(1)


app.add_typer(cli_flower.app, name="flower")
app.command(epilog=cli_paper.BOUNDS_EXAMPLES)(cli_paper.bounds)
app.command(epilog=cli_paper.REPRODUCE_EXAMPLES)(cli_paper.reproduce)
app.command(epilog=cli_ledger.EXAMPLES)(cli_ledger.ledger)


def main() -> None:
    """Entry point: every expected error becomes one line and its own exit code."""
    wants_json = "--json" in sys.argv
    with interruptible_imports():
        _run(wants_json)


def _run(wants_json: bool) -> None:
    try:
        app()
    except EquipoiseError as error:
        if wants_json:
            _print_json({"error": {"type": type(error).__name__, "cause": error.cause, "remedy": error.remedy}})
        else:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
