"""``bounds.html``: one self-contained page with every bound beside its measurement, and every assumption."""

from __future__ import annotations

import html
from typing import Any

from .conclusions import conclusions, headline, verdict
from .rows import Row
from .summary import CITATIONS, RESULTS, asked_by, checks_by_round, federation_label, figures_text, grouped

STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;font-size:.85rem;margin-bottom:2rem}th,td{text-align:left;padding:.2rem .7rem;"
    "border-bottom:1px solid #ddd}.violated{color:#b00020;font-weight:600}.held{color:#00695c}"
)
COLOURS = {"bound": "#d1495b", "measured": "#00798c"}


def page(outcome: dict[str, Any]) -> str:
    """One HTML file: bound against measured for every result, then every assumption."""
    said = conclusions(outcome["bounds"])
    lines = "".join(f"<li>{html.escape(one.sentence())}</li>" for one in said)
    parts = ["<h1>The paper's bounds, beside what was measured</h1>"]
    parts.append(f"<p>{html.escape(headline(said))}</p><ul>{lines}</ul>")
    plotly = True  # its script, once
    for result, rows in grouped(outcome["bounds"], lambda row: row["result"]).items():
        shown = [row for row in rows if row["measured"] or row["bound"]]
        parts.append(f"<h2>{CITATIONS[result]}: {html.escape(RESULTS[result])}</h2>")
        if shown:
            name = f"figure-{result}"
            parts.append(_figure(result, shown).to_html(include_plotlyjs=plotly, full_html=False, div_id=name))
            plotly = False
        else:
            parts.append(f"<p>{html.escape(rows[0]['status'])}: {html.escape(rows[0]['reason'])}.</p>")
    for label, rows in grouped(outcome["bounds"], federation_label).items():
        parts.append(f"<h2>Assumptions: {html.escape(label)}</h2>{_assumptions(rows)}")
    for kind, words in outcome["claims"].items():
        parts.append(f"<p><b>{html.escape(kind)}</b>: {html.escape(' '.join(words))}</p>")
    head = f"<meta charset='utf-8'><title>Bounds</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _figure(result: str, rows: list[Row]) -> Any:
    """Bound and measurement of every row, on one line each."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for side in COLOURS:
        _add(figure, side, [row for row in rows if row[side] and row[side]["value"] is not None])
    places = list(dict.fromkeys(map(_place, rows)))
    linear = result in ("privacy_leakage", "conditional_preservation")
    figure.update_layout(
        template="plotly_white", font={"family": "system-ui, sans-serif", "size": 13},
        height=130 + 40 * len(places), margin={"t": 40, "b": 50},
        xaxis={"type": "linear" if linear else "log", "title": rows[0]["quantity"] if linear else "value"},
        yaxis={"automargin": True, "autorange": "reversed", "categoryorder": "array", "categoryarray": places},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    )  # fmt: skip
    return figure


def _place(row: Row) -> str:
    round_text = "" if row["round"] is None else f", round {row['round']}"
    return f"{federation_label(row)}{round_text}<br>{row['quantity']}, {row['setting']}"


def _add(figure: Any, side: str, rows: list[Row]) -> None:
    values = [row[side]["value"] for row in rows]
    ahead, behind = (
        [0.0 if row[side][end] is None else abs(row[side][end] - row[side]["value"]) for row in rows]
        for end in ("high", "low")
    )
    figure.add_scatter(
        x=values, y=[_place(row) for row in rows], name=side, mode="markers",
        error_x={"type": "data", "symmetric": False, "array": ahead, "arrayminus": behind},
        marker={"color": COLOURS[side], "size": 10, "symbol": "line-ns-open" if side == "bound" else "circle",
                "line": {"width": 3}},
        text=[verdict([row]) for row in rows], hovertemplate="%{x:.4g} (%{text})",
    )  # fmt: skip


def _assumptions(rows: list[Row]) -> str:
    head = "<tr><th>assumption</th><th>of</th><th>round</th><th>status</th><th>figures</th><th>note</th></tr>"
    body = "".join(
        f"<tr><td>{html.escape(check['name'])}</td><td>{asked_by(check)}</td>"
        f"<td>{'all' if check['round'] is None else check['round']}</td>"
        f"<td class='{check['status']}'>{check['status']}</td><td>{html.escape(figures_text(check))}</td>"
        f"<td>{html.escape(check['note'])}</td></tr>"
        for check in checks_by_round(rows)
    )
    return f"<table>{head}{body}</table>"
