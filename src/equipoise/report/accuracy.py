"""Accuracy over rounds as one self-contained HTML page."""

from __future__ import annotations

from typing import Any

from ..mechanism.registry import MECHANISMS

GREY, STATIC, LEARNED = "#666666", "#d1495b", "#00798c"
DASHES = ("solid", "dash", "dot", "dashdot")


def accuracy_page(metrics: list[dict[str, Any]], title: str) -> str:
    """A line per federation, from the rows of ``metrics.jsonl``."""
    import plotly.graph_objects as go

    lines: dict[tuple[str, str, str, int], list[dict[str, Any]]] = {}
    for row in metrics:
        lines.setdefault((row["dataset"], row["mechanism"], str(row["budget"]), row["seed"]), []).append(row)
    budgets = list(dict.fromkeys(key[2] for key in lines if key[2] != "None"))
    figure = go.Figure()
    for (_, name, budget, seed), rows in lines.items():
        label = f"{name}, budget {budget}" if budget in budgets else name
        dash = DASHES[budgets.index(budget) % len(DASHES)] if budget in budgets else "solid"
        figure.add_scatter(
            x=[row["round"] for row in rows],
            y=[100 * row["accuracy"] for row in rows],
            name=f"{label} (seed {seed})",
            line={"color": _colour(name), "dash": dash, "width": 2.5},
            hovertemplate="round %{x}: %{y:.1f} %",
        )
    figure.update_layout(
        title=title, template="plotly_white", font={"family": "system-ui, sans-serif", "size": 15},
        xaxis={"title": "round"}, yaxis={"title": "test accuracy (%)", "range": [0, 100]},
    )  # fmt: skip
    page: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return page


def _colour(name: str) -> str:
    mechanism = MECHANISMS.get(name)
    return GREY if mechanism is None or not mechanism.distorts else LEARNED if mechanism.learns else STATIC
