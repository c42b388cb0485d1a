"""What ``train`` and ``demo`` show: all settings before a run, a table of results after it."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from ..mechanism.claims import PROVED, of_budgets
from ..mechanism.registry import get_mechanism
from ..runs.config import Config
from ..statistics import interval
from .display import budget_text


def not_claimed(result: dict[str, Any]) -> str:
    """What a run proves and measures, what its budgets are worth, and what it does not claim."""
    mechanisms = [row["mechanism"] for row in result["federations"]]
    formal = all(get_mechanism(name).formal for name in mechanisms)
    return (
        f"proved: {PROVED}\n"
        "measured: accuracy and utility loss, on these seeds; `equipoise audit` measures what attacks get\n"
        f"budgets: {of_budgets(mechanisms, seeded=True)}\n"
        f"not claimed: protection against an attacker who knows the {'seed' if formal else 'mechanism'}"
    )


def summary(config: Config, folder: Path) -> Tree:
    """All settings, resolved, before a long run."""
    s, federations = config.settings, config.federations()
    own, rest = s.protection, s.training
    tree = Tree(f"[bold]{len(federations)} federation(s)[/] x {rest.rounds} rounds -> {escape(str(folder))}")
    data = tree.add("data")
    names = ", ".join(dict.fromkeys(fed.dataset for fed in federations))
    data.add(
        f"{names}; {s.data.partition} partition over {own.clients} clients, {rest.participants or 'all'} of them in a "
        "round"
    )
    data.add(f"{rest.sampling} mini-batches of {own.batch}, {own.local_steps} local step(s)")
    training = tree.add("training")
    training.add(f"{rest.model}, init {rest.init} {rest.init_bound if rest.init == 'uniform' else ''}".rstrip())
    training.add(f"eta {own.eta}, server rate {rest.server_rate}, at least {rest.min_clients} client(s)")
    protection = tree.add("protection")
    for name in dict.fromkeys(f.mechanism for f in federations):
        mine = [f for f in federations if f.mechanism == name]
        budgets = list(dict.fromkeys(budget_text(f.budget) for f in mine))
        mechanism = get_mechanism(name)
        if not mechanism.distorts:
            protection.add("none")
            continue
        low = own.scales(mechanism, mine[0].budget, [1])[0][0]
        word = "lower bound" if mechanism.on_sphere else "noise scale"
        protection.add(f"{name} at budget {', '.join(budgets)} ({word} {low:.6g} at {budgets[0]})")
    protection.add(f"M {own.steps}, gamma {own.gamma}, lambda {own.negative_norm}, upper = {own.factor} x lower")
    protection.add(
        f"clip of scale mechanisms: {own.clip or 'off'} ({own.clip_norm.upper()}); S = {own.sensitivity}, a setting"
    )
    run = tree.add("run")
    run.add(f"seeds {', '.join(dict.fromkeys(str(f.seed) for f in federations))}: a seeded experiment")
    run.add(
        f"{s.run.device}, {s.run.dtype}; evaluated every {s.run.evaluate_every} rounds; snapshots {s.snapshot_rounds()}"
    )
    return tree


def result_table(results: list[dict[str, Any]]) -> Table:
    """Mean and 95 % interval over seeds for every dataset, mechanism and budget."""
    datasets = list(dict.fromkeys(row["dataset"] for row in results))
    title = f"test accuracy of the global model, {', '.join(datasets)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    names = ("mechanism", "budget", "accuracy", "95 % interval", "best val.", "utility", "seeds")
    for name in names if len(datasets) == 1 else ("dataset", *names):
        table.add_column(name, justify="left" if name in ("dataset", "mechanism") else "right", no_wrap=True)
    for row in group(results):
        cells = [
            row["mechanism"],
            budget_text(row["budget"]),
            f"{row['accuracy']:.1%}",
            "-" if row["interval"] is None else "{:.1%} - {:.1%}".format(*row["interval"]),
            f"{row['best']:.1%}",
            f"{row['utility_loss']:+.4f}",
            str(row["seeds"]),
        ]
        table.add_row(*(cells if len(datasets) == 1 else [row["dataset"], *cells]))
    return table


def refused_note(results: list[dict[str, Any]]) -> str:
    """A line on releases that were left out, or nothing."""
    lines = []
    for row in results:
        if row["releases_refused"]:
            total = row["releases_refused"] + row["releases_accepted"]
            budget = "" if row["budget"] is None else f" {row['budget']}"
            lines.append(
                f"{row['dataset']} {row['mechanism']}{budget} seed {row['seed']}: {row['releases_refused']} of "
                f"{total} releases refused (not finite or out of bounds)"
            )
    return "\n".join(lines)


def group(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds with a 95 % Student interval."""
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in results:
        rows.setdefault((row["dataset"], row["mechanism"], str(row["budget"])), []).append(row)
    return [
        {
            **{name: same[0][name] for name in ("dataset", "mechanism", "budget")},
            "seeds": len(same),
            "accuracy": mean(row["accuracy"] for row in same),
            "interval": interval([row["accuracy"] for row in same]),
            "best": mean(row["accuracy_at_best_validation"] for row in same),
            "utility_loss": mean(row["mean_utility_loss"] for row in same),
        }
        for same in rows.values()
    ]
