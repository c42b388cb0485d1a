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
    tree = Tree(f"[bold]{len(federations)} federation(s)[/] x {s.rounds} rounds -> {escape(str(folder))}")
    data = tree.add("data")
    names = ", ".join(dict.fromkeys(fed.dataset for fed in federations))
    data.add(f"{names}; {s.partition} partition over {s.clients} clients, {s.participants or 'all'} of them a round")
    data.add(f"{s.sampling} mini-batches of {s.batch}, {s.local_steps} local step(s)")
    training = tree.add("training")
    training.add(f"{s.model}, init {s.init} {s.init_bound if s.init == 'uniform' else ''}".rstrip())
    training.add(f"eta {s.eta}, server rate {s.server_rate}, at least {s.min_clients} client(s)")
    protection = tree.add("protection")
    for name in dict.fromkeys(f.mechanism for f in federations):
        mine = [f for f in federations if f.mechanism == name]
        budgets = list(dict.fromkeys(budget_text(f.budget) for f in mine))
        mechanism = get_mechanism(name)
        if not mechanism.distorts:
            protection.add("none")
            continue
        low = s.scales(mechanism, mine[0].budget, [1])[0][0]
        word = "lower bound" if mechanism.on_sphere else "noise scale"
        protection.add(f"{name} at budget {', '.join(budgets)} ({word} {low:.6g} at {budgets[0]})")
    protection.add(f"M {s.steps}, gamma {s.lr}, lambda {s.negative_norm}, upper = {s.factor} x lower")
    protection.add(
        f"clip of scale mechanisms: {s.clip or 'off'} ({s.clip_norm.upper()}); S = {s.sensitivity}, a setting"
    )
    run = tree.add("run")
    run.add(f"seeds {', '.join(dict.fromkeys(str(f.seed) for f in federations))}: a seeded experiment")
    run.add(f"{s.device}, {s.dtype}; evaluated every {s.evaluate_every} rounds; snapshots {s.snapshot_rounds()}")
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
            lines.append(
                f"{row['dataset']} {row['mechanism']} {row['budget']} seed {row['seed']}: {row['releases_refused']} of "
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
