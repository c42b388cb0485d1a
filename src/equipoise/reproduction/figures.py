"""A figure for every artefact, from its results alone. matplotlib (the extra ``paper``) is imported here only."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from .plan import DATASETS, FAMILIES
from .tables import Found
from .trends import unpacked

STATIC, LEARNED, PAPER = "#d1495b", "#00798c", "#555555"
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
        raise ConfigError(
            "Figures need matplotlib, which is not installed.",
            "Install it with pip install 'equipoise[paper]', or use --no-figures.",
        ) from error


def draw(name: str, found: Found) -> str | None:
    """The figure of an artefact as SVG; None where there is nothing to draw."""
    if name not in FIGURES:
        return None
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        FIGURES[name](figure, found)
        if found["scale"] != "full":
            figure.suptitle("QUICK: not a result", color="#b00020")
        packed = io.StringIO()
        figure.savefig(packed, format="svg", metadata={"Date": None, "Creator": None})
    return packed.getvalue()


def _colour(mechanism: str) -> str:
    return LEARNED if mechanism.endswith("learn") else STATIC


def _kind(mechanism: str) -> str:
    return "learned" if mechanism.endswith("learn") else "static"


def _columns(figure: Any, rows: int, columns: int, width: float = 8.0, height: float = 2.8) -> Any:
    figure.set_size_inches(width, height * rows)
    return figure.subplots(rows, columns, squeeze=False)


def _errors(cells: list[Found]) -> list[float]:
    return [cell["sd"] or 0.0 for cell in cells]


def _curves(axis: Any, cells: list[Found], unit: str, title: str) -> None:
    """Ours with standard deviations and the paper's values, against evenly spaced budgets."""
    budgets = sorted({cell["budget"] for cell in cells})
    for name in dict.fromkeys(cell["mechanism"] for cell in cells):
        mine = sorted((cell for cell in cells if cell["mechanism"] == name), key=lambda cell: cell["budget"])
        place = range(len(mine))
        means = [cell["mean"] for cell in mine]
        axis.errorbar(place, means, _errors(mine), color=_colour(name), marker="o", ms=4, capsize=2, label=_kind(name))
        axis.plot(
            place, [c["paper"] for c in mine], "o", mfc="none", mec=_colour(name), ms=7, label=f"{_kind(name)}, paper"
        )
    axis.set_xticks(range(len(budgets)), [f"{budget:g}" for budget in budgets])
    axis.set_title(title)
    axis.set_xlabel("budget")
    axis.set_ylabel(unit)


def _accuracy(figure: Any, found: Found) -> None:
    axes = _columns(figure, 1, 2)[0]
    for axis, dataset in zip(axes, DATASETS, strict=True):
        _curves(axis, [c for c in found["cells"] if c["dataset"] == dataset], "test accuracy, %", dataset)
        simple = [b for b in found["baselines"] if b["dataset"] == dataset and not b["mechanism"].endswith("learn")]
        for group, line in (("damped", ":"), ("eleven-steps", "--")):
            mine = sorted((b for b in simple if b["baseline"] == group), key=lambda row: row["budget"])
            if mine:
                label = {"damped": "static, damped server", "eleven-steps": "static, eleven steps"}[group]
                axis.plot(range(len(mine)), [b["mean"] for b in mine], line, color=STATIC, label=label)
        axis.axhline(found["without_protection"][dataset]["mean"], color=PAPER, ls="-.", lw=1, label="no protection")
        axis.set_ylim(0, 100)
    axes[1].legend(fontsize=7, loc="lower right")


def _defence(figure: Any, found: Found) -> None:
    axes = _columns(figure, 2, 2)
    for row, (quantity, unit) in enumerate((("mse", "MSE"), ("ssim", "SSIM, %"))):
        for axis, dataset in zip(axes[row], DATASETS, strict=True):
            cells = [c for c in found["cells"] if (c["quantity"], c["dataset"]) == (quantity, dataset)]
            _curves(axis, cells, unit, dataset)
            black = found["guesses_without_an_update"][dataset]["black"][quantity]
            axis.axhline(black * (100 if quantity == "ssim" else 1), color=PAPER, ls="-.", lw=1, label="all black")
            axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    axes[0][0].legend(fontsize=7)


def _bars(axis: Any, labels: list[str], ours: list[Found], theirs: list[float], unit: str) -> None:
    place = range(len(labels))
    axis.bar([p - 0.2 for p in place], [c["mean"] for c in ours], 0.4, yerr=_errors(ours), color=LEARNED, label="ours")
    axis.bar([p + 0.2 for p in place], theirs, 0.4, color="#bbbbbb", label="paper")
    axis.axhline(0, color="black", lw=0.6)
    axis.set_xticks(list(place), labels, fontsize=8)
    axis.set_ylabel(unit)
    axis.legend(fontsize=8)


def _gaps(figure: Any, found: Found) -> None:
    axes = _columns(figure, 1, 2)[0]
    for axis, (quantity, unit) in zip(axes, (("mse", "gap in MSE"), ("ssim", "gap in SSIM, points")), strict=True):
        cells = [cell for cell in found["cells"] if cell["quantity"] == quantity]
        _bars(axis, [f"{c['dataset']}\n{c['family']}" for c in cells], cells, [c["paper"] for c in cells], unit)


def _cap(figure: Any, found: Found) -> None:
    axis = _columns(figure, 1, 1, height=3.2)[0][0]
    cells = found["cells"]
    labels = [f"{c['dataset']}\n{c['mechanism']}" for c in cells]
    _bars(axis, labels, cells, [c["paper"] for c in cells], "CAP")


def _trade_off(figure: Any, found: Found) -> None:
    axes = _columns(figure, 1, 2)[0]
    for axis, family in zip(axes, FAMILIES, strict=True):
        for dataset, colour in zip(DATASETS, ("#1b4965", "#e07a1f"), strict=True):
            mine = [c for c in found["cells"] if (c["family"], c["dataset"]) == (family, dataset)]
            mine.sort(key=lambda cell: cell["budget"])
            axis.errorbar(range(len(mine)), [c["mean"] for c in mine], _errors(mine), color=colour, marker="o", ms=4,
                          capsize=2, label=f"{dataset}, ours")  # fmt: skip
            axis.plot(
                range(len(mine)),
                [c["paper"] for c in mine],
                "o",
                mfc="none",
                mec=colour,
                ms=7,
                label=f"{dataset}, paper",
            )
            axis.set_xticks(range(len(mine)), [f"{c['budget']:g}" for c in mine])
        axis.axhline(0, color="black", lw=0.6)
        axis.set_title(f"{family}: learned minus static")
        axis.set_xlabel("budget")
        axis.set_ylabel("points of accuracy")
    axes[0].legend(fontsize=7)


def _clients(figure: Any, found: Found) -> None:
    axes = _columns(figure, 2, 4, width=10.0, height=2.4)
    for row, family in enumerate(FAMILIES):
        for column, axis in enumerate(axes[row]):
            for curve in found["curves"]:
                if (curve["family"], curve["client"]) == (family, column + 1):
                    colour = _colour(curve["mechanism"])
                    axis.fill_between(curve["rounds"], curve["low"], curve["high"], color=colour, alpha=0.2, lw=0)
                    axis.plot(curve["rounds"], curve["mean"], color=colour, lw=1.2, label=curve["mechanism"])
            axis.set_title(f"client {column + 1}")
            axis.set_ylim(0, 80)
            axis.set_xlabel("round")
        axes[row][0].set_ylabel(f"{family}: test accuracy, %")
        axes[row][3].legend(fontsize=7, loc="lower right")


def _layers(figure: Any, found: Found) -> None:
    axes = _columns(figure, 2, 2, width=9.0)
    for row, (key, unit) in enumerate((("size", "mean |distortion|"), ("deviation", "standard deviation"))):
        for axis, family in zip(axes[row], FAMILIES, strict=True):
            mine = [c for c in found["cells"] if (c["family"], c["dataset"]) == (family, "mnist")]
            mine.sort(key=lambda cell: (cell["tensor"].split(".")[0], cell["tensor"].endswith("bias")))
            place = range(len(mine))
            axis.bar([p - 0.2 for p in place], [c[key][0] for c in mine], 0.4, color=STATIC, label="before learning")
            axis.bar([p + 0.2 for p in place], [c[key][1] for c in mine], 0.4, color=LEARNED, label="after")
            names = [c["tensor"].replace("weight", "w").replace("bias", "b") for c in mine]
            axis.set_xticks(list(place), names, fontsize=7)
            axis.set_title(f"{family}, mnist")
            axis.set_ylabel(unit)
            axis.set_ylim(0, 1.3 * max(max(c[key]) for c in mine))
    axes[0][0].legend(fontsize=7, loc="upper left", ncols=2)


def _reconstructions(figure: Any, found: Found) -> None:
    rows = [row["row"] for row in found["images"] if row["dataset"] == "mnist"]
    figure.set_size_inches(7.5, 0.95 * len(rows))
    axes = figure.subplots(len(rows), 8, squeeze=False)
    for half, dataset in enumerate(DATASETS):
        shown = [row for row in found["images"] if row["dataset"] == dataset]
        for line, row in enumerate(shown):
            for column, image in enumerate(row["pixels"]):
                axis = axes[line][4 * half + column]
                axis.imshow(unpacked(image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                axis.set_axis_off()
            if half == 0:
                axes[line][0].text(-0.15, 0.5, row["row"], transform=axes[line][0].transAxes, ha="right", va="center")
        axes[0][4 * half].set_title(dataset, loc="left")


def _stepwise(figure: Any, found: Found) -> None:
    axes = _columns(figure, 1, 2, height=3.2)[0]
    for axis, dataset in zip(axes, DATASETS, strict=True):
        for curve in found["curves"]:
            if curve["dataset"] == dataset:
                colour = _colour(curve["mechanism"])
                axis.plot(
                    curve["rounds"], curve["mean"], color=colour, lw=1, label=f"{curve['mechanism']}, its mini-batch"
                )
                axis.plot(curve["full_rounds"], curve["full"], ":", color=colour, marker="s", ms=3,
                          label=f"{curve['mechanism']}, all its data")  # fmt: skip
        axis.axhline(0, color="black", lw=0.6)
        axis.set_ylim(-1, 0.6)
        axis.set_title(f"{dataset} (early rounds reach below -1)")
        axis.set_xlabel("round")
        axis.set_ylabel("loss added by the distortion")
    axes[1].legend(fontsize=7, loc="lower left")


def _gradient_norm(figure: Any, found: Found) -> None:
    axes = _columns(figure, 1, 2, height=3.2)[0]
    colours = dict(zip(sorted({c["budget"] for c in found["curves"]}), ("#b5179e", "#4361ee", "#2a9d8f"), strict=False))
    for axis, dataset in zip(axes, DATASETS, strict=True):
        for curve in found["curves"]:
            if curve["dataset"] == dataset:
                colour = colours[curve["budget"]]
                axis.plot(curve["rounds"], curve["running"], color=colour, label=f"{curve['budget']}: average so far")
                axis.plot(
                    curve["rounds"],
                    curve["value"],
                    color=colour,
                    lw=0.7,
                    alpha=0.6,
                    label=f"{curve['budget']}: at the round",
                )
        axis.set_yscale("log")
        axis.set_title(dataset)
        axis.set_xlabel("round")
        axis.set_ylabel("squared gradient norm")
    axes[1].legend(fontsize=7)


def _sweeps(figure: Any, found: Found) -> None:
    axes = _columns(figure, 1, 2, height=3.2)[0]
    for axis, setting in zip(axes, ("M", "gamma"), strict=True):
        for family in FAMILIES:
            for dataset, colour in zip(DATASETS, ("#1b4965", "#e07a1f"), strict=True):
                mine = [
                    c for c in found["cells"]
                    if (c["family"], c["dataset"], c["setting"]) == (family, dataset, setting)
                ]  # fmt: skip
                mine.sort(key=lambda cell: cell["value"])
                line = "-" if family == "LS" else "--"
                look: Any = {"color": colour, "ls": line, "marker": "o", "ms": 4, "capsize": 2}
                axis.errorbar(
                    range(len(mine)), [c["mean"] for c in mine], _errors(mine), **look, label=f"{dataset}, {family}"
                )
                axis.set_xticks(range(len(mine)), [f"{c['value']:g}" for c in mine])
        axis.set_xlabel(setting)
        axis.set_ylabel("test accuracy, %")
    axes[0].legend(fontsize=7)


FIGURES: dict[str, Callable[[Any, Found], None]] = {
    "accuracy-ls": _accuracy,
    "accuracy-pl": _accuracy,
    "defence-ls": _defence,
    "defence-pl": _defence,
    "gaps": _gaps,
    "cap": _cap,
    "trade-off": _trade_off,
    "clients": _clients,
    "layers": _layers,
    "reconstructions": _reconstructions,
    "stepwise": _stepwise,
    "gradient-norm": _gradient_norm,
    "sweeps": _sweeps,
}
