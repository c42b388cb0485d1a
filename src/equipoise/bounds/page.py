"""Bounds as people see them: tables for a terminal, one self-contained page. Rich and plotly are imported inside."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]

WORDS = {
    "distortion_stationarity": "inner loop",
    "convex_suboptimality": "convex case",
    "one_step": "one round",
    "converge_rate": "whole run",
    "privacy_leakage": "leakage",
    "conditional_preservation": "budget kept",
}
"""What the results are about; docs/bounds.md explains each."""


def _label(one: Row) -> str:
    value = one["budget"]
    budget = "" if value is None else f" @ {value:g}" if isinstance(value, int | float) else f" @ {value}"
    return f"{Path(one['dataset']).name} {one['mechanism']}{budget} (seed {one['seed']})"


def _grouped(rows: Iterable[Row], key: Any) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for one in rows:
        groups.setdefault(key(one), []).append(one)
    return groups


def short(value: float, digits: int = 3) -> str:
    """A few digits, and no more of the exponent than it takes.

    >>> short(78923.0), short(1060.6), short(0.0001234), short(15.99975), short(0.0)
    ('7.89e4', '1061', '1.23e-4', '16', '0')
    """
    if 100 <= abs(value) < 10000:
        return f"{value:.0f}"
    small = 0 < abs(value) < 0.01
    text = f"{value:.{digits - 1}e}" if small else f"{value:.{digits}g}"
    head, mark, exponent = text.partition("e")
    return f"{head}e{int(exponent)}" if mark else head


def _span(values: list[float]) -> str:
    if not values:
        return "-"
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{short(min(values), 2)}..{short(max(values), 2)}"


def _values(rows: list[Row], name: str) -> list[float]:
    return [one[name]["value"] for one in rows if one[name] is not None and one[name]["value"] is not None]


def _verdict(rows: list[Row]) -> str:
    known = [one["holds"] for one in rows if one["holds"] is not None]
    if not known:
        return "-"
    return "yes" if all(known) else f"no ({known.count(False)}/{len(known)})"


def bounds_tables(found: dict[str, Any]) -> list[Table]:
    """For every federation a table of results, over all its rounds, and one of assumptions."""
    tables = []
    for label, rows in _grouped(found["bounds"], _label).items():
        tables += [_results(label, rows), _assumptions(rows)]
    return tables


def _table(title: str | None, *columns: str) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=title and escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1),
        collapse_padding=True,
    )  # fmt: skip
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in ("bound", "measured") else "left",
            no_wrap=name not in ("figures", "status", "with"),
        )
    return table


def _results(label: str, rows: list[Row]) -> Table:
    from rich.markup import escape

    table = _table(label, "result", "with", "bound", "measured", "holds", "status")
    for result, own in _grouped(rows, lambda one: one["result"]).items():
        table.add_row(f"[bold]{WORDS[result]}[/]")
        for (quantity, setting), several in _grouped(own, lambda one: (one["quantity"], one["setting"])).items():
            status = list(dict.fromkeys(one["status"] for one in several))
            table.add_row(
                f" {escape(quantity)}", escape(setting), _span(_values(several, "bound")),
                _span(_values(several, "measured")), _verdict(several), status[0] if len(status) == 1 else "differs",
            )  # fmt: skip
    return table


SEVERITY = ("held", "not covered", "not checkable", "violated")


def checks(rows: list[Row]) -> list[Row]:
    """Every assumption of the run as it was configured, once: its worst status, and the results that ask for it."""
    found: dict[str, list[Row]] = {}
    for one in rows:
        for check in one["assumptions"] if one["setting"] == "as configured" else []:
            found.setdefault(check["name"], []).append({**check, "result": one["result"], "round": one["round"]})
    worst = {name: sorted(several, key=_badness)[-1] for name, several in found.items()}
    return [
        {
            **worst[name],
            "results": list(dict.fromkeys(check["result"] for check in several)),
        }
        for name, several in found.items()
    ]


def _badness(check: Row) -> tuple[int, float]:
    """By status, then by how near a number came to its limit."""
    value, limit = (((check["figures"].get(name) or {}).get("value")) for name in ("value", "limit"))
    near = value / limit if value is not None and limit else 0.0
    return SEVERITY.index(check["status"]), near


def figures_text(check: Row) -> str:
    """``0.1 against 0.0057`` or the figures by name."""
    shown = {name: one["value"] for name, one in check["figures"].items() if one and one["value"] is not None}
    if set(shown) == {"value", "limit"}:
        return f"{short(shown['value'])} against {short(shown['limit'])}"
    return ", ".join(f"{name} {short(value)}" for name, value in shown.items())


def _of(check: Row) -> str:
    return ", ".join(WORDS[result] for result in check["results"])


def _assumptions(rows: list[Row]) -> Table:
    from rich.markup import escape

    table = _table(None, "assumption", "of", "status", "figures")
    for check in checks([one for one in rows if one["result"] != "convex_suboptimality"]):  # no run meets those
        mark = {"violated": "[red]violated[/]", "held": "[green]held[/]"}.get(check["status"], check["status"])
        table.add_row(escape(check["name"]), _of(check), mark, escape(figures_text(check) or check["note"]))
    return table


def bounds_notes(found: dict[str, Any]) -> str:
    """Why results do not apply, and what is claimed; below the tables."""
    lines = []
    for (result, reason), several in _grouped(
        [one for one in found["bounds"] if one["status"] in ("not covered", "not checkable")],
        lambda one: (one["result"], one["reason"]),
    ).items():
        names = ", ".join(dict.fromkeys(one["mechanism"] for one in several))
        lines.append(f"{WORDS[result]}, {several[0]['status']} ({names}): {reason}")
    lines += [f"{kind}: {' '.join(words)}" for kind, words in found["claims"].items()]
    return "\n".join(lines)


# -- the page ------------------------------------------------------------------------------------------------------

STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;font-size:.85rem;margin-bottom:2rem}th,td{text-align:left;padding:.2rem .7rem;"
    "border-bottom:1px solid #ddd}.violated{color:#b00020;font-weight:600}.held{color:#00695c}"
)
COLOURS = {"bound": "#d1495b", "measured": "#00798c"}


def page(found: dict[str, Any]) -> str:
    """One HTML file: bound against measured for every result, then every assumption."""
    import plotly.graph_objects as go

    parts = ["<h1>The paper's bounds, beside what was measured</h1>"]
    scripts: bool | str = True
    for result, rows in _grouped(found["bounds"], lambda one: one["result"]).items():
        shown = [one for one in rows if one["measured"] or one["bound"]]
        parts.append(f"<h2>{html.escape(WORDS[result])} ({html.escape(result)})</h2>")
        if not shown:
            parts.append(f"<p>{html.escape(rows[0]['status'])}: {html.escape(rows[0]['reason'])}.</p>")
            continue
        figure = go.Figure()
        for side in ("bound", "measured"):
            _add(figure, side, [one for one in shown if one[side] and one[side]["value"] is not None])
        places = list(dict.fromkeys(map(_place, shown)))
        linear = result in ("privacy_leakage", "conditional_preservation")
        figure.update_layout(
            template="plotly_white", font={"family": "system-ui, sans-serif", "size": 13},
            height=130 + 40 * len(places), margin={"t": 40, "b": 50},
            xaxis={"type": "linear" if linear else "log", "title": shown[0]["quantity"] if linear else "value"},
            yaxis={"automargin": True, "autorange": "reversed", "categoryorder": "array", "categoryarray": places},
            legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        )  # fmt: skip
        parts.append(figure.to_html(include_plotlyjs=scripts, full_html=False, div_id=f"figure-{result}"))
        scripts = False
    for label, rows in _grouped(found["bounds"], _label).items():
        parts.append(f"<h2>Assumptions: {html.escape(label)}</h2>{_html_table(rows)}")
    for kind, words in found["claims"].items():
        parts.append(f"<p><b>{html.escape(kind)}</b>: {html.escape(' '.join(words))}</p>")
    head = f"<meta charset='utf-8'><title>Bounds</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _place(one: Row) -> str:
    when = "" if one["round"] is None else f", round {one['round']}"
    return f"{_label(one)}{when}<br>{one['quantity']}, {one['setting']}"


def _add(figure: Any, side: str, rows: list[Row]) -> None:
    low = [one[side]["low"] for one in rows]
    high = [one[side]["high"] for one in rows]
    middle = [one[side]["value"] for one in rows]
    ahead, behind = ([abs(end - mid) if end is not None else 0.0 for end, mid in zip(ends, middle, strict=True)]
                     for ends in (high, low))  # fmt: skip
    figure.add_scatter(
        x=middle, y=[_place(one) for one in rows], name=side, mode="markers",
        error_x={"type": "data", "symmetric": False, "array": ahead, "arrayminus": behind},
        marker={"color": COLOURS[side], "size": 10, "symbol": "line-ns-open" if side == "bound" else "circle",
                "line": {"width": 3}},
        text=[one["status"] for one in rows], hovertemplate="%{x:.4g} (%{text})",
    )  # fmt: skip


def _html_table(rows: list[Row]) -> str:
    head = "<tr><th>assumption</th><th>of</th><th>status</th><th>figures</th><th>note</th></tr>"
    body = "".join(
        f"<tr><td>{html.escape(check['name'])}</td><td>{_of(check)}</td>"
        f"<td class='{check['status']}'>{check['status']}</td><td>{html.escape(figures_text(check))}</td>"
        f"<td>{html.escape(check['note'])}</td></tr>"
        for check in checks(rows)
    )
    return f"<table>{head}{body}</table>"
