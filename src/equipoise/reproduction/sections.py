"""The text of every artefact: what the paper claims, how it is judged, and its tables, ready for any page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .artefacts import ARTEFACTS, Artefact
from .claims import interval
from .tables import Found


@dataclass(frozen=True)
class Table:
    caption: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Section:
    """One artefact on a page."""

    name: str
    about: Artefact
    verdict: str
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plus_minus(found: Found, digits: int = 1) -> str:
    """Mean ± standard deviation."""
    if found["sd"] is None:
        return f"{found['mean']:.{digits}f}"
    return f"{found['mean']:.{digits}f} ± {found['sd']:.{digits}f}"


def _yes(value: bool) -> str:
    return "agrees" if value else "**differs**"


def _accuracy(found: Found) -> tuple[list[Table], list[str]]:
    head = ["data", "budget", "mechanism", "paper", "ours", "difference", "at best validation", "verdict"]
    rows = [
        [
            cell["dataset"], f"{cell['budget']:g}", cell["mechanism"], f"{cell['paper']:.2f}", plus_minus(cell),
            f"{cell['difference']:+.1f}", plus_minus(cell["at_best_validation"]), _yes(cell["agrees"]),
        ]
        for cell in found["cells"]
    ]  # fmt: skip
    simple = {(row["dataset"], row["budget"], row["baseline"], row["mechanism"]): row for row in found["baselines"]}
    gains = []
    for gain in found["gains"]:
        row = [gain["dataset"], f"{gain['budget']:g}", f"{gain['paper']:+.2f}", interval(gain)]
        for group, learns in (("damped", False), ("eleven-steps", False), ("damped", True)):
            key = next(
                (
                    k
                    for k in simple
                    if k[:3] == (gain["dataset"], gain["budget"], group) and k[3].endswith("learn") == learns
                ),
                None,
            )
            row.append("not run" if key is None else plus_minus(simple[key]))
        gains.append(row)
    below = ", ".join(
        f"{row['dataset']} {row['mechanism']} {row['budget']:g}: {plus_minus(row)}" for row in found["below_the_grid"]
    )
    free = ", ".join(f"{name} {plus_minus(cell)}" for name, cell in found["without_protection"].items())
    return [
        Table(f"Test accuracy in percent, mean ± standard deviation of {found['cells'][0]['seeds']} seeds", head, rows),
        Table(
            "Learned minus static in points (95 % interval, paired by seed), beside simple baselines (percent)",
            ["data", "budget", "paper", "learned - static", "static, damped server", "static, eleven steps",
             "learned, damped server"],
            gains,
        ),
    ], [f"Below the paper's grid: {below}.", f"Without protection: {free}.", *differing(found["cells"])]  # fmt: skip


def differing(cells: list[Found]) -> list[str]:
    """What can be said about every cell that does not agree."""
    notes = []
    for cell in cells:
        if cell["agrees"]:
            continue
        values, side = cell["values"], "above" if cell["difference"] > 0 else "below"
        best = cell["at_best_validation"]
        also = "it agrees" if best["agrees"] else "it differs too"
        notes.append(
            f"{cell['dataset']} {cell['mechanism']} {cell['budget']:g} differs: ours is {abs(cell['difference']):.1f} "
            f"points {side} the paper's one seed, where {cell['reach']:.1f} are allowed; our seeds range from "
            f"{min(values):.1f} to {max(values):.1f}; at the best-validation round ({best['mean']:.1f}) {also}."
        )
    return notes


def _defence(found: Found) -> tuple[list[Table], list[str]]:
    head = ["data", "budget", "mechanism", "paper", "ours", "difference", "verdict"]

    def rows(quantity: str, digits: int) -> list[list[str]]:
        return [
            [
                cell["dataset"], f"{cell['budget']:g}", cell["mechanism"], f"{cell['paper']:.{digits}f}",
                plus_minus(cell, digits), f"{cell['difference']:+.{digits}f}", _yes(cell["agrees"]),
            ]
            for cell in found["cells"] if cell["quantity"] == quantity
        ]  # fmt: skip

    guesses = [
        [name, guess.replace("_", " "), f"{row['mse']:.2f}", f"{100 * row['ssim']:.1f}", f"{row['leakage']:.2f}"]
        for name, table in found["guesses_without_an_update"].items()
        for guess, row in table.items()
    ]
    for name, row in found["without_protection"].items():
        numbers = plus_minus(row["mse"], 2), f"{100 * row['ssim']['mean']:.1f}", f"{row['leakage']['mean']:.2f}"
        guesses.append([name, "InvGrad without protection", *numbers])
    scores = [cell["mean"] for cell in found["leakage"]]
    batches = f"{found['batches_per_cell']} batches of four a cell, {found['cells'][0]['seeds']} seeds"
    return [
        Table(f"MSE in normalised units, {batches}", head, rows("mse", 2)),
        Table(f"SSIM in percent (Gaussian window, sigma 1.5), {batches}", head, rows("ssim", 1)),
        Table("For scale: guesses that use no update", ["data", "guess", "MSE", "SSIM %", "leakage score"], guesses),
    ], [
        f"By the paper's definition (D = 56) InvGrad's leakage here is {min(scores):.2f} to {max(scores):.2f}. Compare "
        "the guesses that use no update. MSE near that of noise says that the optimiser saturated, not that an "
        "attacker learns nothing: see studies/leakage."
    ]  # fmt: skip


def _gaps(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [c["dataset"], c["family"], c["quantity"].upper(), f"{c['paper']:+.3f}", interval(c, 3), _yes(c["agrees"])]
        for c in found["cells"]
    ]
    head = ["data", "calibration", "quantity", "paper", "ours (95 % interval)", "verdict"]
    return [Table("Learn minus identical, averaged over budgets; SSIM in points", head, rows)], []


def _cap(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [
            c["dataset"], c["family"], c["mechanism"], f"{c['paper']:.2f}", f"{c['paper_recomputed']:.3f}",
            plus_minus(c, 2), _yes(c["agrees"]),
        ]
        for c in found["cells"]
    ]  # fmt: skip
    ups = [
        [u["dataset"], u["family"], f"{u['paper']:.1f}", f"{u['paper_recomputed']:.1f}", interval(u)]
        for u in found["up_percent"]
    ]
    return [
        Table(
            "CAP", ["data", "calibration", "mechanism", "paper", "from the paper's own tables", "ours", "verdict"], rows
        ),
        Table(
            "Learned above static, in percent",
            ["data", "calibration", "paper", "from the paper's own tables", "ours (95 % interval)"],
            ups,
        ),
    ], ["Rerr is the MSE in normalised units. The paper's printed CAP differs from its own tables by up to 0.04."]


def _trade_off(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [c["dataset"], c["family"], f"{c['budget']:g}", f"{c['paper']:+.2f}", interval(c), _yes(c["agrees"])]
        for c in found["cells"]
    ]
    head = ["data", "calibration", "budget", "paper", "learned - static (95 % interval)", "verdict"]
    return [Table("Gain in accuracy, in points", head, rows)], []


def _clients(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [
            c["family"], f"{c['budget']:g}", str(c["client"]), interval(c), interval(c["area"]),
            interval(c["final_training_loss"], 2), _yes(c["agrees"]),
        ]
        for c in found["cells"]
    ]  # fmt: skip
    head = [
        "calibration",
        "budget",
        "client",
        "final accuracy",
        "mean over the curve",
        "final training loss",
        "verdict",
    ]
    return [
        Table("Learned minus static (95 % interval); accuracy in points on the client's test images", head, rows)
    ], []


def _layers(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [
            c["family"], c["dataset"], c["tensor"], f"{c['size'][0]:.4f}", f"{c['size'][1]:.4f}",
            interval(c["size_ratio"], 3), interval(c["deviation_ratio"], 3), c["paper"], c["verdict"],
        ]
        for c in found["cells"]
    ]  # fmt: skip
    head = [
        "calibration",
        "data",
        "tensor",
        "before",
        "after",
        "after / before",
        "deviation: after / before",
        "paper",
        "ours",
    ]
    early = [
        [c["family"], c["dataset"], c["tensor"], str(c["round"]), interval(c["size_ratio"], 3), c["verdict"]]
        for c in found["earlier_rounds"]
    ]
    return [
        Table("Mean absolute distortion and its standard deviation, after the last round (95 % intervals)", head, rows),
        Table("Earlier in the training", ["calibration", "data", "tensor", "round", "after / before", "ours"], early),
    ], []


def _reconstructions(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [c["dataset"], c["mechanism"], f"{c['budget']:g}", interval(c["mse"], 2), interval(c["ssim"]), c["paper"],
         _yes(c["agrees"])]
        for c in found["cells"]
    ]  # fmt: skip
    head = ["data", "mechanism", "budget", "MSE", "SSIM %", "paper", "verdict"]
    caption = f"{found['cells'][0]['batches']} batches of public images at the weights of seed 1 (95 % intervals)"
    return [Table(caption, head, rows)], []


def _stepwise(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [
            c["dataset"], c["measured_on"], interval(c["ls-static"], 3), interval(c["ls-learn"], 3), interval(c, 3),
            ", ".join(f"{c[name]['fluctuation']['mean']:.2f}" for name in ("ls-static", "ls-learn")), _yes(c["agrees"]),
        ]
        for c in found["cells"]
    ]  # fmt: skip
    head = ["data", "measured on", "static", "learned", "difference", "s.d. over rounds: static, learned", "verdict"]
    return [Table("Loss that one round's distortion adds (95 % intervals)", head, rows)], []


def _gradient_norm(found: Found) -> tuple[list[Table], list[str]]:
    rows = [[c["dataset"], c["what"], interval(c, 3), _yes(c["agrees"])] for c in found["cells"]]
    averages = [
        [a["dataset"], str(a["budget"]), plus_minus(a["average"], 3), plus_minus(a["second_half"], 3)]
        for a in found["averages"]
    ]
    return [
        Table("Differences (95 % interval, paired by seed)", ["data", "what", "difference", "verdict"], rows),
        Table(
            "Squared norm of the full gradient", ["data", "budget", "average over all rounds", "second half"], averages
        ),
    ], []


def _sweeps(found: Found) -> tuple[list[Table], list[str]]:
    rows = [
        [c["family"], c["dataset"], c["setting"], f"{c['value']:g}", plus_minus(c), interval(c)] for c in found["cells"]
    ]
    head = ["calibration", "data", "setting", "value", "accuracy, mean ± s.d.", "95 % interval"]
    return [Table(f"Test accuracy in percent, {found['cells'][0]['seeds']} seeds", head, rows)], []


def _configuration(found: Found) -> tuple[list[Table], list[str]]:
    rows = [[row["setting"], row["paper"], row["ours"], row["status"]] for row in found["rows"]]
    return [Table("Every setting", ["setting", "paper", "ours", ""], rows)], [
        "Fitted: chosen because the paper does not state it and the value reproduces its tables. The reproduction "
        "therefore cannot confirm it."
    ]


SHOWS: dict[str, Callable[[Found], tuple[list[Table], list[str]]]] = {
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
    "configuration": _configuration,
    "sweeps": _sweeps,
}


def section(name: str, found: Found) -> Section:
    """An artefact's results, ready for a page."""
    tables, notes = SHOWS[name](found)
    judged = [cell for cell in found.get("cells", []) if "agrees" in cell]
    agree = sum(cell["agrees"] for cell in judged)
    verdict = f"{agree} of {len(judged)} cells agree." if judged else "Beside the paper's artefacts; no verdict."
    if found["scale"] != "full":
        verdict = f"QUICK: fewer rounds and seeds than the paper's protocol; says nothing about the paper. {verdict}"
    return Section(name, ARTEFACTS[name], verdict, tables, notes)
