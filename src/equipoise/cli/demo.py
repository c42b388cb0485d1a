"""``equipoise demo``: four ways to train, an attack on each, and what to take away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .arguments import Json, print_json
from .train import execute

if TYPE_CHECKING:
    from ..report.demo_ways import Way
    from ..runs.run import Run

EXAMPLES = "Example: equipoise demo --out demo"
BEGIN = (
    "MNIST over 4 clients, trained in four ways, and an attack on what is sent first; about a minute on two idle cores"
)


def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for runs, plot and picture; an earlier demo is replaced.")] = Path(
        "demo"
    ),
    rounds: Annotated[int, typer.Option(help="Rounds of the paper's mechanisms; gaussian-dp has its own.")] = 480,
    as_json: Json = False,
) -> None:
    """Train MNIST without protection, with the paper's noise and with a guarantee, then attack; in about a minute."""
    from ..mechanism.learned_leak import mark_leak_told
    from ..report import demonstration as shown
    from ..report.demo_ways import paper_ways, recommended_way, takeaway
    from ..runs.run import Run
    from . import display

    configs = shown.paper_config(rounds), shown.recommended_config()
    folders = shown.prepare(out)
    if not as_json:
        display.console.print(BEGIN, markup=False, highlight=False)
    paper, recommended = (Run(folder, config, fresh=True) for folder, config in zip(folders, configs, strict=True))
    mark_leak_told("pl-learn")  # the table has it
    results = execute(paper, quiet=as_json), execute(recommended, quiet=as_json)
    with display.attack_progress(as_json) as progress:
        audits = [shown.attack_paper(folders[0], progress).content]
        audits += [shown.play_recommended(folders[1], progress).content] if audits[0]["complete"] else []
    if not all(audit["complete"] for audit in audits):
        raise typer.Exit(130)
    records = records_of(paper)
    ways = paper_ways(paper.config.settings, results[0]["federations"], audits[0], records)
    ways.append(
        recommended_way(recommended.config.settings, results[1]["federations"][0], audits[1], records_of(recommended))
    )
    plot, picture = shown.demo_page(folders[0], rounds), folders[0] / "audit.svg"
    said = takeaway(ways)
    if as_json:
        told = [{**asdict(way), "proved": way.proved} for way in ways]
        parts = [{**result, "audit": audit} for result, audit in zip(results, audits, strict=True)]
        print_json(
            {
                "experiment": "seeded", "ways": told, "takeaway": said, "plot": str(plot), "picture": str(picture),
                "folders": [str(folder) for folder in folders], "paper": parts[0], "recommended": parts[1],
            }
        )  # fmt: skip
        return
    show(ways, records)
    for what, place in (("plot", plot), ("what the server sees", picture), ("runs", f"{folders[0]}   {folders[1]}")):
        display.console.print(f"{what}: {place}", markup=False, highlight=False)
    display.console.print(f"\n{said}", markup=False, highlight=False)


def records_of(run: Run) -> int:
    """Of one client."""
    return len(next(iter(run.sweep.datasets.values())).train) // run.config.settings.protection.clients


COLUMNS = ("test\naccuracy", "found", "95 %\ninterval", "proved\nlimit", "gradients\nof a client")


def show(ways: Sequence[Way], records: int) -> None:
    """The ways in words, and then in numbers."""
    from ..privacy.guarantee import percent_up
    from . import display

    for way in ways:
        display.console.print(way.words(records), markup=False, highlight=False)
    display.console.print()
    table = display.table(
        "accuracy, records identified in the first release, and what is proved", ("mechanism", *COLUMNS),
        numbers=COLUMNS,
    )  # fmt: skip
    for way in ways:
        limit = "none" if way.limit is None else percent_up(way.limit)
        display.add_row(table, way.label, f"{way.accuracy:.1%}", way.found, way.interval, limit, f"{way.gradients:,}")
    display.console.print(table)
    display.note("\n".join(notes(ways)))


def notes(ways: Sequence[Way]) -> list[str]:
    """What the columns hold, and what the numbers are not."""
    from ..auditing.summary import FAILED_WORDS
    from ..report.demo_ways import PAGE, attackers

    proved = [f"proved of {way.label}: from all releases {way.proved}." for way in ways if way.limit is not None]
    failed = [f"*: {FAILED_WORDS}"] if any(way.control_failed for way in ways) else []
    return [
        f"found: the share that the strongest attack picks rightly; {attackers(ways)}.",
        *failed,
        f"{' '.join(proved)} That is of the mechanism: a seeded run has no guarantee, as its noise can be repeated.",
        "gradients: of one record each, over the whole run. Accuracies of different models and gradients are no "
        "comparison of noise alone.",
        f"one seed and few rounds: a demonstration, not a result; {PAGE} has results",
    ]
