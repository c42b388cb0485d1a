"""An artefact's results -> its figure as SVG; and what several figures share.

matplotlib (the extra ``paper``) is imported when something is drawn, and nowhere else.
"""

from __future__ import annotations

import io
from typing import Any

from ..errors import ConfigError, missing_extra
from ..mechanism.registry import get_mechanism
from .agreement import Cell
from .artefacts.artefact import Artefact, Results

STATIC, LEARNED, REFERENCE = "#d1495b", "#00798c", "#555555"
DATASET_COLOURS = {"mnist": "#1b4965", "fmnist": "#e07a1f"}
STYLE: Any = {
    "svg.hashsalt": "equipoise",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def check_available() -> None:
    """A typed error where matplotlib is missing, before anything is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        problem = missing_extra("Drawing figures", "paper")
        raise ConfigError(problem.cause, f"{problem.remedy} Or use --no-figures.") from error


def svg(artefact: Artefact, result: Results) -> str | None:
    """The figure of an artefact as SVG; None where there is nothing to draw."""
    if artefact.draw is None:
        return None
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        artefact.draw(figure, result)
        if result["scale"] != "full":
            figure.suptitle("QUICK: not a result", color="#b00020")
        packed = io.StringIO()
        figure.savefig(packed, format="svg", metadata={"Date": None, "Creator": None})
    return packed.getvalue()


# -- shared by several figures ------------------------------------------------------------------------------------


def colour_of(name: str) -> str:
    """Of a mechanism."""
    return LEARNED if get_mechanism(name).learns else STATIC


def panels(figure: Any, rows: int, columns: int, width: float = 8.0, height: float = 2.8) -> Any:
    """Axes ``[rows][columns]``; ``height`` is that of a row."""
    figure.set_size_inches(width, height * rows)
    return figure.subplots(rows, columns, squeeze=False)


def deviations(cells: list[Cell]) -> list[float]:
    """Standard deviations for error bars; none is 0."""
    return [cell["sd"] or 0.0 for cell in cells]


def against_budgets(axis: Any, cells: list[Cell], unit: str, title: str) -> None:
    """Ours with standard deviations and the paper's values, against evenly spaced budgets."""
    budgets = sorted({cell["budget"] for cell in cells})
    for name in dict.fromkeys(cell["mechanism"] for cell in cells):
        mine = sorted((cell for cell in cells if cell["mechanism"] == name), key=lambda cell: cell["budget"])
        place, means, colour = range(len(mine)), [cell["mean"] for cell in mine], colour_of(name)
        label = "learned" if get_mechanism(name).learns else "static"
        axis.errorbar(place, means, deviations(mine), color=colour, marker="o", ms=4, capsize=2, label=label)
        axis.plot(place, [c["paper"] for c in mine], "o", mfc="none", mec=colour, ms=7, label=f"{label}, paper")
    axis.set_xticks(range(len(budgets)), [f"{budget:g}" for budget in budgets])
    axis.set_title(title)
    axis.set_xlabel("budget")
    axis.set_ylabel(unit)


def bars(axis: Any, cells: list[Cell], labels: list[str], unit: str) -> None:
    """A pair of bars per cell: ours with its standard deviation, and the paper's value."""
    place, means = range(len(cells)), [cell["mean"] for cell in cells]
    axis.bar([p - 0.2 for p in place], means, 0.4, yerr=deviations(cells), color=LEARNED, label="ours")
    axis.bar([p + 0.2 for p in place], [cell["paper"] for cell in cells], 0.4, color="#bbbbbb", label="paper")
    axis.axhline(0, color="black", lw=0.6)
    axis.set_xticks(list(place), labels, fontsize=8)
    axis.set_ylabel(unit)
    axis.legend(fontsize=8)
