"""What ``train`` shows: all settings before a run, a table of results after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from ..mechanism.registry import get_mechanism
from ..mechanism.schedule import schedule_text
from ..report.run_report import means_over_seeds, run_claims
from ..runs.config import Config
from . import display


def summary(config: Config, folder: Path, route_seconds: Mapping[Any, float] | None = None) -> Tree:
    """All settings, resolved, before a long run; and what was measured to choose a route."""
    s, federations = config.settings, config.federations()
    own, rest = s.protection, s.training
    tree = Tree(f"[bold]{_counted(len(federations), 'federation')}[/] x {rest.rounds} rounds -> {escape(str(folder))}")
    data = tree.add("data")
    names = ", ".join(dict.fromkeys(fed.dataset for fed in federations))
    data.add(
        f"{names}; {s.data.partition} partition over {own.clients} clients, {rest.participants or 'all'} of them in a "
        "round"
    )
    for line in taken_lines(config):
        data.add(line)
    training = tree.add("training")
    training.add(f"{rest.model}, init {rest.init} {rest.init_bound if rest.init == 'uniform' else ''}".rstrip())
    whole_run = all(get_mechanism(fed.mechanism).whole_run for fed in federations)
    rates = dict.fromkeys(f"{s.server_rates(fed, [1], 1)[0]:.3g}" for fed in federations if whole_run)
    tuned = f" ({', '.join(rates)})" if rates and rest.server_rate == "auto" else ""
    momentum = f" with momentum {rest.server_momentum:g}" if rest.server_momentum else ""
    server = f"server rate {rest.server_rate}{tuned}{momentum}"
    training.add(f"eta {own.eta}, {server}, at least {_counted(rest.min_clients, 'client')}")
    protection = tree.add("protection")
    for name in dict.fromkeys(f.mechanism for f in federations):
        mine = [f for f in federations if f.mechanism == name]
        budgets = list(dict.fromkeys(schedule_text(f.budget) for f in mine))
        mechanism = get_mechanism(name)
        if not mechanism.distorts:
            protection.add("none")
            continue
        if mechanism.whole_run:
            protection.add(whole_run_line(config, name, budgets))
            continue
        low = own.scales(mechanism, mine[0].budget, [1])[0][0]
        word = "lower bound" if mechanism.on_sphere else "noise scale"
        word = word if mechanism.shaping is None else mechanism.shaping.scale
        protection.add(f"{name} at budget {'; '.join(budgets)} ({word} {low:.6g} at {budgets[0]})")
    for line in _constants(config):
        protection.add(line)
    return _with_run(tree, config, route_seconds or {})


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def taken_lines(config: Config) -> list[str]:
    """What a release is made of: some mechanisms take a mini-batch, others all records of a client."""
    own, rest = config.settings.protection, config.settings.training
    rate, kinds = own.gaussian.sampling_rate, _by_kind(fed.mechanism for fed in config.federations())
    whole = "all records of a client in every round"
    if rate < 1:
        whole = f"a Poisson sample of a client's records in every round, at rate {rate:g}"
    taken = {True: whole, False: f"{rest.sampling} mini-batches of {own.batch}, {own.local_steps} local step(s)"}
    names = {kind: f"{', '.join(mine)}: " if len(kinds) > 1 else "" for kind, mine in kinds.items()}
    return [names[kind] + taken[kind] for kind in kinds]


def _by_kind(mechanisms: Iterable[str]) -> dict[bool, list[str]]:
    """The names of mechanisms, by whether their budget is that of a whole run."""
    kinds: dict[bool, list[str]] = {}
    for name in dict.fromkeys(mechanisms):
        kinds.setdefault(get_mechanism(name).whole_run, []).append(name)
    return kinds


def _constants(config: Config) -> Iterator[str]:
    """The constants of the paper's mechanisms, where one of the sweep uses them."""
    own = config.settings.protection
    used = [get_mechanism(name) for name in dict.fromkeys(fed.mechanism for fed in config.federations())]
    if any(mechanism.learns for mechanism in used):
        yield (
            f"learning: M {own.steps}, gamma {schedule_text(own.gamma)}, lambda {schedule_text(own.negative_norm)}, "
            f"upper = {own.factor} x lower"
        )
    if any(mechanism.clips for mechanism in used):
        yield f"clip {own.clip or 'off'} ({own.clip_norm.upper()}) of the gradient of a mini-batch"
    if any(mechanism.per_example and not mechanism.whole_run for mechanism in used):
        yield f"clip {own.clip or 'off'} (L1) of the gradient of every example"
    if any(mechanism.measure in ("laplace", "gaussian") for mechanism in used):
        yield f"S = {own.sensitivity}, a setting"


def whole_run_line(config: Config, name: str, budgets: list[str]) -> str:
    """What the noise of a mechanism with a budget for the whole run is."""
    own = config.settings.for_run().protection.gaussian
    sigmas = dict.fromkeys(
        own.sigma(float(value)) for fed in config.federations() if fed.mechanism == name for value in fed.budgets
    )
    return (
        f"{name} at epsilon {'; '.join(budgets)}, delta {own.delta:g}, for all {own.rounds} rounds together: sigma "
        f"{', '.join(f'{sigma:.4g}' for sigma in sigmas)}, clip {own.clip:g}, divisor {own.divisor:g}; add/remove"
    )


def _with_run(tree: Tree, config: Config, route_seconds: Mapping[Any, float]) -> Tree:
    s, federations = config.settings, config.federations()
    run = tree.add("run")
    run.add(f"seeds {', '.join(dict.fromkeys(str(f.seed) for f in federations))}: a seeded experiment")
    took = [
        f"{name} {1e3 * route_seconds[name]:.3g} ms" for name in sorted(route_seconds, key=route_seconds.__getitem__)
    ]
    every = s.run.evaluate_every
    evaluated = "at the end" if every > s.training.rounds else f"every {_counted(every, 'round')}"
    measured = f" (gradients of a round, measured: {', '.join(took)})" if took else ""
    run.add(
        f"{s.run.device}, {s.run.dtype}, route {s.run.route}{measured}; evaluated {evaluated}; "
        f"snapshots {s.snapshot_rounds()}"
    )
    return tree


def show_results(results: list[dict[str, Any]]) -> None:
    """The table, what its columns hold, and releases that were refused."""
    display.console.print(result_table(results))
    display.note(COLUMNS)
    if len(_by_kind(row["mechanism"] for row in results)) > 1:
        display.console.print(INCOMPARABLE, markup=False, highlight=False, soft_wrap=True)
    if refused := refused_note(results):
        display.errors.print(refused, style="red", markup=False)
    if diverged := diverged_note(results):
        display.errors.print(diverged, markup=False)


def show_claims(results: list[dict[str, Any]]) -> None:
    display.claims(run_claims(results))


COLUMNS = (
    "accuracy: on the test set, after the last round, mean over seeds. best validation: the same at the round of best "
    "validation accuracy. utility loss: by how much a distortion raised a client's loss, mean over releases; negative "
    "where it lowered it."
)


EXPLODED = 1000.0
"""A utility loss of this size is of no use, and its digits are of none."""
INCOMPARABLE = (
    "warning: mini-batches and all records of a client are not comparable at equal rounds; docs/gaussian_dp.md has "
    "gaussian-dp beside its unprotected twins."
)
"""Where only some mechanisms of a sweep take all records: it would look as if their noise helped."""


def result_table(results: list[dict[str, Any]]) -> Table:
    """Mean and 95 % interval over seeds for every dataset, mechanism and budget."""
    datasets = list(dict.fromkeys(row["dataset"] for row in results))
    numbers = ("accuracy", "95 % interval", "best\nvalidation", "utility\nloss", "seeds")
    table = display.table(
        f"test accuracy of the global model, {', '.join(datasets)}", ("mechanism", "budget", *numbers), numbers=numbers
    )
    rows = means_over_seeds(results)
    for dataset in datasets:
        if len(datasets) > 1:
            table.add_row(f"[bold]{escape(dataset)}[/]")
        for row in (row for row in rows if row["dataset"] == dataset):
            display.add_row(
                table,
                row["mechanism"],
                schedule_text(row["budget"]),
                f"{row['accuracy']:.1%}",
                display.share_range(*(row["interval"] or (None, None))),
                f"{row['accuracy_at_best_validation']:.1%}",
                _loss(row["utility_loss"]),
                str(row["seeds"]),
            )
    return table


def _loss(value: float | None) -> str:
    """
    >>> _loss(None), _loss(-0.25), _loss(-4513506833.4807)
    ('-', '-0.2500', '-4.514e+09')
    """
    if value is None:
        return "-"
    return f"{value:+.4f}" if abs(value) < EXPLODED else f"{value:+.4g}"


def diverged_note(results: list[dict[str, Any]]) -> str:
    """A line of advice where most releases were refused or a loss exploded, or nothing."""
    names = dict.fromkeys(
        row["mechanism"] for row in results
        if row["releases_refused"] > row["releases_accepted"] or abs(row["mean_utility_loss"] or 0.0) >= EXPLODED
    )  # fmt: skip
    if not names:
        return ""
    noisy = any(get_mechanism(name).distorts for name in names)
    more = ", a larger budget or a larger batch (--set batch=...)" if noisy else ""
    return f"{', '.join(names)} diverged: try a smaller eta (--set eta=...){more}."


def refused_note(results: list[dict[str, Any]]) -> str:
    """A line on releases that were left out, or nothing."""
    lines = []
    for row in results:
        if row["releases_refused"]:
            total = row["releases_refused"] + row["releases_accepted"]
            budget = "" if row["budget"] is None else f" {schedule_text(row['budget'])}"
            lines.append(
                f"{row['dataset']} {row['mechanism']}{budget} seed {row['seed']}: {row['releases_refused']} of "
                f"{total} releases refused (not finite or out of bounds)"
            )
    return "\n".join(lines)
