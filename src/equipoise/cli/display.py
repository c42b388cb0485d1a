"""What people see: summaries, progress, tables, the plot. Rich and plotly are imported here only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.tree import Tree

from ..files import write_text
from ..mechanism.registry import mechanism
from ..runs.config import Config

console = Console()
errors = Console(stderr=True)

NOT_CLAIMED = (
    "proved: every accepted release is finite and its intensity lies within its bounds\n"
    "measured: accuracy and utility loss, on these seeds; `equipoise audit` measures what attacks get\n"
    "not claimed: (epsilon, delta), or protection against an attacker who knows the mechanism"
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
        kind = mechanism(name)
        if not kind.distorts:
            protection.add("none")
            continue
        low = s.scales(kind, mine[0].budget, [1])[0][0]
        word = "lower bound" if kind.on_sphere else "noise scale"
        protection.add(f"{name} at budget {', '.join(budgets)} ({word} {low:.6g} at {budgets[0]})")
    protection.add(f"M {s.steps}, gamma {s.lr}, lambda {s.negative_norm}, upper = {s.factor} x lower")
    protection.add(
        f"clip of scale mechanisms: {s.clip or 'off'} ({s.clip_norm.upper()}); S = {s.sensitivity}, a setting"
    )
    run = tree.add("run")
    run.add(f"seeds {', '.join(dict.fromkeys(str(f.seed) for f in federations))}: a seeded experiment")
    run.add(f"{s.device}, {s.dtype}; evaluated every {s.evaluate_every} rounds; snapshots {s.snapshot_rounds()}")
    return tree


@contextmanager
def attack_progress(quiet: bool, doing: str = "attacking") -> Iterator[Any]:
    """A bar without an end: what runs, for how long; yields a function of (what, amount)."""
    if quiet:
        yield None
        return
    columns = (TextColumn(doing + ": {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda attack, amount: bar.update(task, description=attack, advance=amount)


@contextmanager
def job_progress(quiet: bool) -> Iterator[Any]:
    """A bar for work of several parts; yields a function of (what, done, total)."""
    if quiet:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task, current = bar.add_task("", total=None), ""

        def report(what: str, done: int, total: int) -> None:
            nonlocal current
            if what != current:
                current = what
                bar.reset(task, description=what, total=total)
            bar.update(task, completed=done, total=total)

        yield report


@contextmanager
def progress(total: int, what: str, quiet: bool) -> Iterator[Any]:
    """A bar with the time left; yields a function of the current round."""
    if quiet:
        yield lambda when: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda when: bar.update(task, completed=when)


def budget_text(budget: Any) -> str:
    """A budget as people write it; schedules and lists as they are."""
    if budget is None:
        return "-"
    return f"{budget:g}" if isinstance(budget, int | float) else str(budget)


def result_table(found: list[dict[str, Any]]) -> Table:
    """Mean and 95 % interval over seeds for every dataset, mechanism and budget."""
    datasets = list(dict.fromkeys(row["dataset"] for row in found))
    title = f"test accuracy of the global model, {', '.join(datasets)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    names = ("mechanism", "budget", "accuracy", "95 % interval", "best val.", "utility", "seeds")
    for name in names if len(datasets) == 1 else ("dataset", *names):
        table.add_column(name, justify="left" if name in ("dataset", "mechanism") else "right", no_wrap=True)
    for row in group(found):
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


AUDIT_METRICS = {
    "mse": ("MSE", "{:.2f}"),
    "ssim": ("SSIM", "{:.2f}"),
    "identification": ("found", "{:.1%}"),
    "membership_auc": ("AUC", "{:.2f}"),
    "labels": ("right", "{:.1%}"),
    "leakage": ("score", "{:.2f}"),
}


def audit_tables(found: dict[str, Any]) -> list[Table]:
    """A table per round: learned, static of equal lower bound and static of equal final norm side by side."""
    cells: dict[Any, dict[tuple[Any, ...], dict[str, dict[str, dict[str, Any]]]]] = {}
    for row in found["attacks"]:
        negative = row.get("control") == "negative"
        if negative and row["role"] != "own":
            continue
        fixed = (row.get("dataset"), row["mechanism"], str(row["budget"]), row.get("seed"))
        mine = cells.setdefault(row["round"], {}).setdefault(fixed, {}).setdefault(row["attack"], {})
        mine["negative" if negative else row["role"]] = row
    return [_audit_table(when, mine) for when, mine in cells.items()]


ROLES = ("static, equal lower bound", "static, equal final norm", "undistorted", "negative")


def _audit_table(when: Any, cells: dict[tuple[Any, ...], dict[str, dict[str, dict[str, Any]]]]) -> Table:
    title = "what the attacks got" + ("" if when is None else f" at the weights of round {when}")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for name in ("this", "95 %", "static\n= lower", "static\n= norm", "none", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    several = len({(dataset, seed) for dataset, _, _, seed in cells}) > 1
    for (dataset, name, budget, seed), attacks in cells.items():
        defence = name if budget == "None" else f"{name} @ {budget}"
        table.add_row(f"[bold]{escape(defence)}[/]" + (f" [dim]{dataset} {seed}[/]" if several else ""))
        for attack, mine in attacks.items():
            for metric, (word, form) in AUDIT_METRICS.items():
                own = mine.get("own", {})
                if own.get(metric) is None:
                    continue
                others = [_number(mine.get(role), metric, form) for role in ROLES]
                if name == "none":
                    others[2] = form.format(own[metric])
                table.add_row(f"  {attack} {word}", form.format(own[metric]), _interval(own, metric, form), *others)
    return table


def _number(row: dict[str, Any] | None, metric: str, form: str) -> str:
    return "-" if row is None or row.get(metric) is None else form.format(row[metric])


def _interval(row: dict[str, Any], metric: str, form: str) -> str:
    name = f"auc_{row['membership_score']}" if metric == "membership_auc" else metric
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return "-" if low is None or high is None else f"{form.format(low).removesuffix('%')}-{form.format(high)}"


def audit_notes(found: dict[str, Any]) -> str:
    """Baselines, evidence and claims, below the table."""
    lines: list[str] = []
    for dataset, guesses in found["baselines"].items():
        words = [
            f"{name.replace('_', ' ')}: MSE {row['mse']:.2f}"
            + (f", score {row['leakage']:.2f}" if "leakage" in row else "")
            for name, row in guesses.items()
        ]
        lines.append(f"guesses that use no update ({dataset}): " + "; ".join(words))
    promised = sorted({row["promised_leakage"] for row in found["attacks"] if "promised_leakage" in row})
    if promised and any("leakage" in row for row in found["attacks"]):
        lines.append(f"score promised by the budgets: at most {', '.join(f'{value:g}' for value in promised)}")
    for row in found.get("multi_round", []):
        shares = [row[f"identification_schedule_{kind}"] for kind in ("known", "unknown")]
        words = ["not measured" if share is None else f"{share:.0%}" for share in shares]
        lines.append(
            f"{row['mechanism']} @ {row['budget']}, {row['rounds']} releases combined: identified {words[0]} with the "
            f"schedule known, {words[1]} unknown ({row['targets']} examples, each among {row['candidates']})"
        )
    for row in found.get("cap", []):
        lines.append(f"CAP of {row['mechanism']} against {row['attack']}, round {row['round']}: {row['cap']:.3f}")
    if any(row["attack"] == "matched" for row in found["attacks"]):
        lines.append(f"matched took responses given {found['options']['given']}; given=best is stronger, and slower")
    if not found.get("complete", True):
        lines.append("interrupted: these are the cells that were finished")
    few = {row["targets"] for row in found["attacks"] if row.get("evidence") == "insufficient evidence"}
    if few:
        lines.append(f"insufficient evidence: {min(few)} release(s) are fewer than 20")
    lines += [f"{kind}: {' '.join(words)}" for kind, words in found["claims"].items()]
    return "\n".join(lines)


def refused_note(found: list[dict[str, Any]]) -> str:
    """A line on releases that were left out, or nothing."""
    lines = []
    for row in found:
        if row["releases_refused"]:
            total = row["releases_refused"] + row["releases_accepted"]
            lines.append(
                f"{row['dataset']} {row['mechanism']} {row['budget']} seed {row['seed']}: {row['releases_refused']} of "
                f"{total} releases refused (not finite or out of bounds)"
            )
    return "\n".join(lines)


def group(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds with a 95 % Student interval."""
    from statistics import mean

    from ..statistics import interval

    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in found:
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


COLOURS = {
    "none": "#666666",
    "pl-identical": "#d1495b",
    "pl-learn": "#00798c",
    "ls-static": "#d1495b",
    "ls-learn": "#00798c",
}
DASHES = ("solid", "dash", "dot", "dashdot")


def plot_curves(metrics: list[dict[str, Any]], path: Path, title: str) -> None:
    """Accuracy over rounds, a line per federation, as one self-contained HTML file."""
    import plotly.graph_objects as go

    lines: dict[tuple[str, str, str, int], list[dict[str, Any]]] = {}
    for row in metrics:
        lines.setdefault((row["dataset"], row["mechanism"], budget_text(row["budget"]), row["seed"]), []).append(row)
    budgets = list(dict.fromkeys(key[2] for key in lines if key[2] != "-"))
    figure = go.Figure()
    for (_, name, budget, seed), rows in lines.items():
        label = name if budget == "-" else f"{name}, budget {budget}"
        dash = DASHES[budgets.index(budget) % len(DASHES)] if budget in budgets else "solid"
        figure.add_scatter(
            x=[row["round"] for row in rows],
            y=[100 * row["accuracy"] for row in rows],
            name=f"{label} (seed {seed})",
            line={"color": COLOURS.get(name, "#444444"), "dash": dash, "width": 2.5},
            hovertemplate="round %{x}: %{y:.1f} %",
        )
    figure.update_layout(
        title=title, template="plotly_white", font={"family": "system-ui, sans-serif", "size": 15},
        xaxis={"title": "round"}, yaxis={"title": "test accuracy (%)", "range": [0, 100]},
    )  # fmt: skip
    write_text(path, figure.to_html(include_plotlyjs=True, full_html=True))


def status_tables(found: dict[str, Any]) -> list[Table]:
    """What ``reproduce --status`` shows: artefacts, then claims."""
    artefacts = Table(title="artefacts", title_justify="left", box=box.SIMPLE)
    for name in ("artefact", "kind", "cells", "agree"):
        artefacts.add_column(name)
    for row in found["artefacts"]:
        artefacts.add_row(row["name"], row["kind"], str(row["cells"]), str(row["agree"]))
    claims = Table(title="claims", title_justify="left", box=box.SIMPLE)
    for name in ("the paper's claim", "here", "figures"):
        claims.add_column(name)
    for row in found["claims"]:
        verdict = "[green]holds[/]" if row["holds"] else "[red]fails[/]"
        claims.add_row(escape(row["claim"]), verdict, escape(row["evidence"]))
    return [artefacts, claims]
