"""The paper's claims in our words, each with the figures behind its verdict: it holds, it fails, or it is not shown.

``RULE`` is the rule of all of them; the docstring of each says what its cells and levels are. No interval is widened
for the number of cells of a claim, so where a true mean lies exactly at its level, one cell in forty contradicts by
chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from .agreement import Cell, State, above, between, rank_correlation, spread, together
from .artefacts.artefact import Results
from .paper import paper
from .plan import BELOW, BUDGETS, DATASETS, FAMILIES
from .tables import with_interval

Tables = dict[str, Results]
"""Results by the names of their artefacts."""
Verdict = tuple[State, str]

RULE = (
    "A claim holds where 95 % intervals show it in every cell that it speaks of, fails where at least one of them lies "
    "wholly on the other side, and is not shown otherwise"
)
COLLAPSED = 20.0
"""Percent: below twice chance a federation counts as not trained."""
SIMILAR = {"mse": 0.1, "ssim": 1.0}
"""Gaps whose whole 95 % interval lies within these count as similar; the paper's largest are 0.078 and 0.54 points."""
LITTLE = 0.1
"""A standard deviation that learning changes by less than this share changes little."""


def _cell(tables: Tables, family: str, dataset: str, mechanism: str, budget: float) -> Cell:
    table = tables[f"accuracy-{family.lower()}"]
    rows: list[Cell] = table["cells"] + table["below_the_grid"]
    return next(r for r in rows if (r["dataset"], r["mechanism"], r["budget"]) == (dataset, mechanism, budget))


def _reach(cells: Sequence[Cell], digits: int) -> str:
    """From the lowest to the highest end of some intervals, in words; empty where there are none."""
    ends = [end for cell in cells for end in cell["interval"] or ()]
    return f", intervals from {min(ends):.{digits}f} to {max(ends):.{digits}f}" if ends else ""


def better_everywhere(tables: Tables) -> Verdict:
    """Cells: the gain in accuracy (learned minus static, paired by seed) at every budget. Level: above 0."""
    cells = tables["trade-off"]["cells"]
    more, sure = sum(cell["mean"] > 0 for cell in cells), sum(cell["beyond_its_interval"] for cell in cells)
    least = min(cells, key=lambda cell: cell["mean"])
    where = f"{least['dataset']} {least['family']} {least['budget']:g}"
    text = f"higher mean in {more} of {len(cells)} cells, beyond the 95 % interval in {sure}"
    return together(between(cell, low=0) for cell in cells), (
        f"{text}; least gain {with_interval(least)} points at {where}"
    )


def larger_at_strict_budgets(tables: Tables) -> Verdict:
    """Cells: per dataset and family, the rank correlation of gain and strictness over budgets. Level: above 0.

    "Generally" is read as a trend: neighbouring budgets may be out of order.
    """
    told, states = [], []
    for family in FAMILIES:
        for dataset in DATASETS:
            gains = [g for g in tables[f"accuracy-{family.lower()}"]["gains"] if g["dataset"] == dataset]
            strict = [-g["budget"] for g in gains]
            each = spread([rank_correlation(strict, row) for row in zip(*(g["values"] for g in gains), strict=True)])
            states.append(between(each, low=0))
            if each["interval"] is not None:  # Student's interval knows no edge; a correlation does
                each["interval"] = tuple(max(-1.0, min(1.0, edge)) for edge in each["interval"])
            told.append(f"{dataset} {family} {with_interval(each, 2)}")
    return together(states), f"rank correlation of gain and strictness over five budgets: {', '.join(told)}"


def _trained(result: Cell) -> str:
    """How many seeds are above the line, where any is."""
    count = sum(value >= COLLAPSED for value in result["values"])
    return f" ({count} of {result['seeds']} seeds at {COLLAPSED:.0f} % or more)" if count else ""


def trains_where_static_collapses(tables: Tables) -> Verdict:
    """Cells: accuracy at the strictest budgets. Levels: static below ``COLLAPSED``, learned above it."""
    told, states = [], []
    for family, (static, learned) in FAMILIES.items():
        for dataset in DATASETS:
            one, other = (_cell(tables, family, dataset, name, BUDGETS[family][0]) for name in (static, learned))
            states += [between(one, high=COLLAPSED), between(other, low=COLLAPSED)]
            at = f"{dataset} {family} {BUDGETS[family][0]:g}"
            told.append(f"{at}: {with_interval(one)} %{_trained(one)} and {with_interval(other)} %")
    return together(states), (
        f"static and learned at the strictest budgets: {'; '.join(told)}; collapsed below {COLLAPSED:.0f} %"
    )


def fails_below(family: str) -> Callable[[Tables], Verdict]:
    """Cells: static accuracy at the budget below the paper's grid, per dataset. Level: below ``COLLAPSED``."""

    def verdict(tables: Tables) -> Verdict:
        static, told, states = FAMILIES[family][0], [], []
        for dataset in DATASETS:
            one = _cell(tables, family, dataset, static, BELOW[family])
            edge = _cell(tables, family, dataset, static, BUDGETS[family][0])
            states.append(between(one, high=COLLAPSED))
            said = paper()["accuracy"][family][dataset]["identical"][0]
            at = f"at {BUDGETS[family][0]:g} already {edge['mean']:.1f} % (the paper's own table: {said} %)"
            told.append(f"{dataset}: {with_interval(one)} % at {BELOW[family]:g}{_trained(one)}, {at}")
        return together(states), "; ".join(told)

    return verdict


def similar_errors(tables: Tables) -> Verdict:
    """Cells: the gaps in MSE and SSIM (learned minus static, averaged over budgets). Levels: within +-``SIMILAR``.

    It takes a gap shown to be larger than its margin to refute similarity.
    """
    told, states = [], []
    for cell in tables["gaps"]["cells"]:
        margin = SIMILAR[cell["quantity"]]
        states.append(between(cell, -margin, margin))
        told.append(f"{cell['dataset']} {cell['family']} {cell['quantity'].upper()} {with_interval(cell, 2)}")
    margins = f"within {SIMILAR['mse']} and {SIMILAR['ssim']:g} points"
    return together(
        states
    ), f"learn minus identical, averaged over budgets, whole interval {margins}: {'; '.join(told)}"


def little_similarity(tables: Tables) -> Verdict:
    """Cells: the SSIM of every mechanism and budget. Level: below the highest of the paper's table of that family."""
    told, states = [], []
    for family in FAMILIES:
        cells = [cell for cell in tables[f"defence-{family.lower()}"]["cells"] if cell["quantity"] == "ssim"]
        most, ceiling = max(cells, key=lambda cell: cell["mean"]), paper()["ssim_at_most"][family]
        states += [between(cell, high=ceiling) for cell in cells]
        told.append(f"{family}: at most {with_interval(most)} % in the mean{_reach(cells, 1)} (paper {ceiling} %)")
    guesses = tables["defence-ls"]["guesses_without_an_update"]
    black = ", ".join(f"{name} {100 * guesses[name]['black']['ssim']:.1f} %" for name in guesses)
    return together(states), f"{'; '.join(told)}. For scale: an all-black image, which uses no update, has {black}"


def higher_cap(tables: Tables) -> Verdict:
    """Cells: by how many percent CAP is higher, per dataset and family. Level: above 0."""
    ups = tables["cap"]["up_percent"]
    told = [f"{up['dataset']} {up['family']} {with_interval(up)} % higher (paper {up['paper']} %)" for up in ups]
    return together(between(up, low=0) for up in ups), "; ".join(told)


def clients_converge_better(tables: Tables) -> Verdict:
    """Cells: every client's gain in final accuracy, and in the area under its curve. Level: above 0, both."""
    cells = tables["clients"]["cells"]
    good = sum(cell["agrees"] for cell in cells)
    worse = sum(above(cell["final_training_loss"]) for cell in cells)
    gains = [cell["mean"] for cell in cells]
    return together(between(part, low=0) for cell in cells for part in (cell, cell["area"])), (
        f"final accuracy and area under the curve higher beyond their intervals for {good} of {len(cells)} clients "
        f"(final gain {min(gains):.1f} to {max(gains):.1f} points); yet the final training loss is higher, beyond its "
        f"interval, for {worse} of them"
    )


def layers_change_as_listed(tables: Tables) -> Verdict:
    """Cells: size after / before of every tensor at the last round. Levels: 1 plus or minus the share that is kept.

    A tensor listed as amplified must lie above the upper level, one listed as reduced below the lower one, and one
    listed as kept between them.
    """
    table = tables["layers"]
    cells, kept = table["cells"], table["kept_within"]
    levels = {
        "amplified": {"low": 1 + kept},
        "reduced": {"high": 1 - kept},
        "kept": {"low": 1 - kept, "high": 1 + kept},
    }
    states = [between(cell["size_ratio"], **levels[cell["paper"]]) for cell in cells]
    ratios: dict[str, list[float]] = {}
    for cell in cells:
        ratios.setdefault(cell["tensor"], []).append(cell["size_ratio"]["mean"])
    told = ", ".join(f"{name} {mean(values):.3f}" for name, values in ratios.items())
    early = [cell for cell in table["earlier_rounds"] if cell["round"] == 0]
    at_start = sum(cell["agrees"] for cell in early)
    counts = ", ".join(f"{sum(c['verdict'] == v for c in cells)} {v}" for v in ("amplified", "reduced", "kept"))
    return together(states), (
        f"of {len(cells)} (tensor, dataset, family) {states.count('holds')} are as listed by their intervals, "
        f"{states.count('fails')} are not, {states.count('not shown')} are undecided; mean size after / before: "
        f"{told}. By their means {counts}, {sum(cell['agrees'] for cell in cells)} as listed; at the initial weights "
        f"{at_start} of {len(early)}"
    )


def deviations_change_little(tables: Tables) -> Verdict:
    """Cells: standard deviation after / before of every tensor at the last round. Levels: 1 +- ``LITTLE``."""
    cells = [cell["deviation_ratio"] for cell in tables["layers"]["cells"]]
    late, early = (
        [cell["deviation_ratio"]["mean"] for cell in tables["layers"][key]] for key in ("cells", "earlier_rounds")
    )
    text = f"standard deviation after / before {min(late):.3f} to {max(late):.3f} in the mean{_reach(cells, 3)}"
    text += f"; little is less than {LITTLE:.0%}".replace("%", " %")
    if early:
        text += f"; at earlier rounds up to {max(early):.3f}"
    return together(between(cell, 1 - LITTLE, 1 + LITTLE) for cell in cells), text


def lower_stepwise_loss(where: str) -> Callable[[Tables], Verdict]:
    """Cells: the loss that one round adds, learned minus static, averaged over time, per dataset. Level: below 0."""

    def verdict(tables: Tables) -> Verdict:
        cells = [cell for cell in tables["stepwise"]["cells"] if cell["measured_on"] == where]
        told = []
        for cell in cells:
            static, learned = cell["ls-static"], cell["ls-learn"]
            later, swing = cell["from_a_twentieth_on"], [part["fluctuation"]["mean"] for part in (learned, static)]
            told.append(
                f"{cell['dataset']}: {with_interval(learned, 3)} against {with_interval(static, 3)}, difference "
                f"{with_interval(cell, 3)}, from a twentieth of the rounds on {with_interval(later, 3)}; "
                f"standard deviation over rounds {swing[0]:.3f} against {swing[1]:.3f}"
            )
        text = f"learned against static, over {cells[0]['rounds']} rounds: {'; '.join(told)}"
        return together(between(cell, high=0) for cell in cells), text

    return verdict


def gradient_grows(tables: Tables) -> Verdict:
    """Cells: the time average at a budget minus that at the next larger one, per dataset. Level: above 0."""
    cells = [
        cell for cell in tables["gradient-norm"]["cells"] if "above" in cell["what"] and "rebound" not in cell["what"]
    ]
    told = [f"{cell['dataset']} {cell['what']} by {with_interval(cell, 3)}" for cell in cells]
    return together(between(cell, low=0) for cell in cells), f"time average: {'; '.join(told)}"


def gradient_rebounds(tables: Tables) -> Verdict:
    """Cells: at 600, the last tenth of the rounds minus the middle fifth, per dataset. Level: above 0."""
    cells = [cell for cell in tables["gradient-norm"]["cells"] if "rebound" in cell["what"]]
    told = [f"{cell['dataset']} {with_interval(cell, 3)}" for cell in cells]
    text = f"last tenth of the rounds minus the middle fifth: {'; '.join(told)}"
    return together(between(cell, low=0) for cell in cells), text


def unrecognisable(tables: Tables) -> Verdict:
    """Cells: the SSIM of each mechanism's images of public batches. Level: below the highest of the paper's table."""
    cells, ceiling = tables["reconstructions"]["cells"], paper()["ssim_at_most"]
    told = [
        f"{c['dataset']} {c['mechanism']} SSIM {with_interval(c['ssim'])} %, MSE {with_interval(c['mse'], 2)}"
        for c in cells
    ]
    return together(between(cell["ssim"], high=ceiling[cell["family"]]) for cell in cells), (
        f"{'; '.join(told)} (one trajectory, {cells[0]['batches']} public batches). The attacks of equipoise audit "
        "identify images in such releases all the same: studies/leakage"
    )


CLAIMS: dict[str, tuple[Callable[[Tables], Verdict], tuple[str, ...]]] = {
    "The learned distortion is more accurate than the static one at every budget": (better_everywhere, ("trade-off",)),
    "The gain is generally larger at stricter budgets": (larger_at_strict_budgets, ("accuracy-ls", "accuracy-pl")),
    "Learning trains where static noise collapses": (trains_where_static_collapses, ("accuracy-ls", "accuracy-pl")),
    "PL-Identical does not train below a budget of 0.96": (fails_below("PL"), ("accuracy-pl",)),
    "LS-Static does not train below a budget of 80": (fails_below("LS"), ("accuracy-ls",)),
    "InvGrad's error is similar for both": (similar_errors, ("gaps",)),
    "SSIM is at most 6.3 % (LS) and 5.8 % (PL)": (little_similarity, ("defence-ls", "defence-pl")),
    "InvGrad's images are unrecognisable for both": (unrecognisable, ("reconstructions",)),
    "CAP is higher for the learned distortion": (higher_cap, ("cap",)),
    "Every client converges better": (clients_converge_better, ("clients",)),
    "Learning amplifies conv2.w and conv3.w, reduces conv1 and the biases of conv2 and conv3, keeps fc": (
        layers_change_as_listed,
        ("layers",),
    ),
    "The standard deviations of the layers change little": (deviations_change_little, ("layers",)),
    "The step-wise utility loss is lower, on the mini-batch that the distortion was learned on": (
        lower_stepwise_loss("its mini-batch"),
        ("stepwise",),
    ),
    "The step-wise utility loss is lower, on all data of the client": (
        lower_stepwise_loss("all its data"),
        ("stepwise",),
    ),
    "The average squared gradient norm grows as the budget shrinks": (gradient_grows, ("gradient-norm",)),
    "The average squared gradient norm rebounds at 600": (gradient_rebounds, ("gradient-norm",)),
}


def judge(tables: Tables) -> list[dict[str, Any]]:
    """Every claim whose artefacts are there, with what the data say of it."""
    results = []
    for claim, (verdict, sources) in CLAIMS.items():
        if all(name in tables for name in sources):
            state, evidence = verdict(tables)
            results.append({"claim": claim, "verdict": state, "evidence": evidence, "artefacts": list(sources)})
    return results
