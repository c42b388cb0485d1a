"""Reduce the bounds.json of a run to bounds.json and figure.svg here: what each theorem says of it, over seeds.

equipoise train --config studies/bounds/run.toml --out RUN
equipoise bounds RUN --snapshots 200,2000 --targets 4 --set subproblems=8 --set repeats=8
python studies/bounds/summarise.py RUN COMMIT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from equipoise.files import write_json

HERE = Path(__file__).parent
Row = dict[str, Any]


def span(rows: list[Row], *names: str) -> list[float] | None:
    """Smallest and largest value of a constant, a bound or a measurement over the rows that have one."""
    values = []
    for row in rows:
        part: Any = row
        for name in names:
            part = None if part is None else part.get(name)
        if isinstance(part, dict):
            part = part["value"]
        if part is not None:
            values.append(part)
    return [min(values), max(values)] if values else None


def reduced(rows: list[Row]) -> list[Row]:
    """One row per mechanism, budget, round, result, quantity and setting."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        names = ("mechanism", "budget", "round", "result", "quantity", "setting")
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    results = []
    for key, several in groups.items():
        constants = {name: span(several, "constants", name) for name in several[0]["constants"]}
        violated = sorted({a["name"] for row in several for a in row["assumptions"] if a["status"] == "violated"})
        parts = [row["subproblems"] for row in several if "subproblems" in row]
        split = {name: sum(part[name] for part in parts) for name in ("count", "covered", "checked", "violated")}
        own = {name: [value for part in parts for value in part[name]] for name in ("L_alpha", "gamma")}
        results.append(
            {
                **dict(zip(("mechanism", "budget", "round", "result", "quantity", "setting"), key, strict=True)),
                "seeds": len(several),
                "status": sorted({row["status"] for row in several}),
                "holds": sorted({str(row["holds"]) for row in several}),
                "bound": span(several, "bound"),
                "measured": span(several, "measured"),
                "margin": span(several, "margin"),
                "constants": constants,
                "violated": violated,
                **({"subproblems": {**split, **own}} if parts else {}),
            }
        )
    return results


def figure(rows: list[Row]) -> None:
    """Bound and measured average over the first M steps, where gamma is small enough."""
    curves = [
        row for row in rows
        if row["result"] == "distortion_stationarity" and row["setting"] != "as configured" and "curve" in row
    ]  # fmt: skip
    style = {
        "svg.hashsalt": "equipoise",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.grid": True,
        "grid.color": "#e3e3e3",
    }
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        drawn = Figure(figsize=(8, 3), layout="constrained")
        for axis, quantity in zip(drawn.subplots(1, 2), ("mean |R_m|^2", "mean s(alpha)^2"), strict=True):
            for row in curves:
                if row["quantity"] == quantity and row["seed"] == 1 and row["round"] == max(r["round"] for r in curves):
                    steps = range(1, len(row["curve"]["measured"]) + 1)
                    colour = {0.96: "#b5179e", 0.98: "#4361ee", 0.995: "#2a9d8f"}[row["budget"]]
                    axis.plot(steps, row["curve"]["bound"], "--", color=colour, label=f"{row['budget']:g}: bound")
                    axis.plot(steps, row["curve"]["measured"], color=colour, label=f"{row['budget']:g}: measured")
            axis.set_yscale("log")
            axis.set_title(quantity)
            axis.set_xlabel("M")
        drawn.axes[0].legend(fontsize=7)
        drawn.savefig(HERE / "figure.svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    raw = json.loads((Path(sys.argv[1]) / "bounds.json").read_text())
    about = {
        "command": "equipoise bounds RUN --snapshots 200,2000 --targets 4 --set subproblems=8 --set repeats=8",
        "commit": sys.argv[2],
        "what": "smallest and largest over seeds; every row of a run has counts and intervals in its own bounds.json",
        "options": raw["options"],
        "environment": raw["environment"],
    }
    write_json(HERE / "bounds.json", {**about, "rows": reduced(raw["bounds"])})
    figure(raw["bounds"])


if __name__ == "__main__":
    main()
