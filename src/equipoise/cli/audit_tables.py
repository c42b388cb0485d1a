"""What ``audit`` shows: a table per round, then baselines, evidence and claims."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from ..auditing.summary import defence

AUDIT_METRICS = {
    "mse": ("MSE", "{:.2f}"),
    "ssim": ("SSIM", "{:.2f}"),
    "identification": ("found", "{:.1%}"),
    "membership_auc": ("AUC", "{:.2f}"),
    "labels": ("right", "{:.1%}"),
    "leakage": ("score", "{:.2f}"),
}


def audit_tables(result: dict[str, Any]) -> list[Table]:
    """A table per round: learned, static of equal lower bound and static of equal final norm side by side."""
    cells: dict[Any, dict[tuple[Any, ...], dict[str, dict[str, dict[str, Any]]]]] = {}
    for row in result["attacks"]:
        negative = row.get("control") == "negative"
        if negative and row["role"] != "own":
            continue
        fixed = (row.get("dataset"), row["mechanism"], str(row["budget"]), row.get("seed"))
        mine = cells.setdefault(row["round"], {}).setdefault(fixed, {}).setdefault(row["attack"], {})
        mine["negative" if negative else row["role"]] = row
    return [_audit_table(round_number, mine) for round_number, mine in cells.items()]


ROLES = ("static, equal lower bound", "static, equal final norm", "undistorted", "negative")


def _audit_table(round_number: Any, cells: dict[tuple[Any, ...], dict[str, dict[str, dict[str, Any]]]]) -> Table:
    title = "what the attacks got" + ("" if round_number is None else f" at the weights of round {round_number}")
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


def audit_notes(result: dict[str, Any]) -> str:
    """Baselines, evidence and claims, below the table."""
    lines: list[str] = []
    for dataset, guesses in result["baselines"].items():
        words = [
            f"{name.replace('_', ' ')}: MSE {row['mse']:.2f}"
            + (f", score {row['leakage']:.2f}" if "leakage" in row else "")
            for name, row in guesses.items()
        ]
        lines.append(f"guesses that use no update ({dataset}): " + "; ".join(words))
    promised = sorted({row["promised_leakage"] for row in result["attacks"] if "promised_leakage" in row})
    if promised and any("leakage" in row for row in result["attacks"]):
        lines.append(f"score promised by the budgets: at most {', '.join(f'{value:g}' for value in promised)}")
    for row in result.get("multi_round", []):
        shares = [row[f"identification_schedule_{kind}"] for kind in ("known", "unknown")]
        words = ["not measured" if share is None else f"{share:.0%}" for share in shares]
        lines.append(
            f"{defence(row)}, {row['rounds']} releases combined: identified {words[0]} with the "
            f"schedule known, {words[1]} unknown ({row['targets']} examples, each among {row['candidates']})"
        )
    for row in result.get("cap", []):
        lines.append(f"CAP of {row['mechanism']} against {row['attack']}, round {row['round']}: {row['cap']:.3f}")
    if any(row["attack"] == "matched" for row in result["attacks"]):
        how = result["options"]["condition_on"]
        lines.append(f"matched conditioned its responses on {how}; condition_on=best is stronger, and slower")
    if not result.get("complete", True):
        lines.append("interrupted: these are the cells that were finished")
    few = {row["targets"] for row in result["attacks"] if row.get("evidence") == "insufficient evidence"}
    if few:
        lines.append(f"insufficient evidence: {min(few)} release(s) are fewer than 20")
    lines += [f"{kind}: {' '.join(words)}" for kind, words in result["claims"].items()]
    return "\n".join(lines)
