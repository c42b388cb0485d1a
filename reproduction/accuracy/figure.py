"""Draw accuracy.svg from accuracy.json: accuracy against budget, learned and static, beside the paper's values.

python reproduction/accuracy/figure.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH, HEIGHT, LEFT, TOP = 350, 250, 48, 46
STYLE = {"static": "#d1495b", "learned": "#00798c"}


def panel(
    cells: list[dict[str, Any]], damped: list[dict[str, Any]], free: float, title: str, x0: int, y0: int
) -> list[str]:
    budgets = sorted({cell["budget"] for cell in cells})

    def x(budget: float) -> float:
        return x0 + LEFT + 18 + budgets.index(budget) * (WIDTH - LEFT - 50) / (len(budgets) - 1)

    def y(percent: float) -> float:
        return y0 + TOP + (100 - percent) * (HEIGHT - TOP - 40) / 100

    out = [f'<text x="{x0 + LEFT}" y="{y0 + 30}" class="title">{title}</text>']
    for tick in range(0, 101, 20):
        out.append(
            f'<line x1="{x0 + LEFT}" x2="{x0 + WIDTH - 14}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" class="grid"/>'
        )
        out.append(f'<text x="{x0 + LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for budget in budgets:
        out.append(f'<text x="{x(budget):.1f}" y="{y(0) + 20:.1f}" text-anchor="middle">{budget:g}</text>')
    out.append(f'<line x1="{x0 + LEFT}" x2="{x0 + WIDTH - 14}" y1="{y(free):.1f}" y2="{y(free):.1f}" class="free"/>')
    for kind, colour in STYLE.items():
        simple = [c for c in damped if c["mechanism"].endswith("learn") == (kind == "learned")]
        simple.sort(key=lambda c: c["budget"])
        points = " ".join(f"{x(c['budget']):.1f},{y(c['mean']):.1f}" for c in simple)
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-dasharray="2 4" stroke-width="2"/>'
        )
        mine = [cell for cell in cells if cell["mechanism"].endswith("learn") == (kind == "learned")]
        mine.sort(key=lambda cell: cell["budget"])
        points = " ".join(f"{x(c['budget']):.1f},{y(c['mean']):.1f}" for c in mine)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        for c in mine:
            px, low, high = x(c["budget"]), c["mean"] - c["sd"], c["mean"] + c["sd"]
            out.append(f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" stroke="{colour}"/>')
            out.append(f'<circle cx="{px:.1f}" cy="{y(c["mean"]):.1f}" r="3.5" fill="{colour}"/>')
            out.append(f'<circle cx="{px:.1f}" cy="{y(c["paper"]):.1f}" r="5" fill="none" stroke="{colour}"/>')
    return out


def main() -> None:
    found = json.loads((HERE / "accuracy.json").read_text())
    seeds = found["cells"][0]["seeds"]
    body: list[str] = []
    for column, (family, dataset) in enumerate((f, d) for f in ("PL", "LS") for d in ("mnist", "fmnist")):
        cells = [c for c in found["cells"] if (c["family"], c["dataset"]) == (family, dataset)]
        free = found["without_protection"][dataset]["mean"]
        known = {c["mechanism"] for c in cells}
        damped = [c for c in found["damped_server"]["cells"] if c["dataset"] == dataset and c["mechanism"] in known]
        title = f"{dataset.upper()}, {family}"
        body += panel(cells, damped, free, title, column % 2 * WIDTH, column // 2 * HEIGHT)
    legend = 2 * HEIGHT + 18
    for place, (kind, colour) in enumerate(STYLE.items()):
        at = 60 + 80 * place
        body.append(f'<circle cx="{at}" cy="{legend}" r="4" fill="{colour}"/>')
        body.append(f'<text x="{at + 10}" y="{legend + 4}">{kind}</text>')
    note = f"mean, s.d. of {seeds} seeds; open circles: the paper; dotted: damped server; grey: no protection"
    body.append(f'<text x="250" y="{legend + 4}" font-size="10">{note}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {2 * HEIGHT + 36}" font-family="sans-serif" '
        'font-size="12"><style>.grid{stroke:#e3e3e3}.free{stroke:#777;stroke-dasharray:5 4;stroke-width:1.5}'
        ".title{font-size:14px;font-weight:bold}text{fill:#222}</style>"
        f'<rect width="{2 * WIDTH}" height="{2 * HEIGHT + 36}" fill="white"/>'
    )
    (HERE / "accuracy.svg").write_text("\n".join([head, *body, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
