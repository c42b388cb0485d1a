"""``equipoise frontier``: every way to protect on one chart, as it was computed."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from . import completion
from .arguments import Json, print_json

EXAMPLES = (
    "Examples: equipoise frontier --status   |   equipoise frontier --plan SPEC.json --device cuda; then, on a machine "
    "with torch and numpy alone, python -m equipoise.compute SPEC.json OUT/; then equipoise frontier --from OUT"
)
SECONDS = 270
"""Of one H200 in which a part is computed, on average, beside nine others; about 28 minutes for the usual setting."""


def frontier(
    *,
    status: Annotated[bool, typer.Option("--status", help="Compute nothing; say what the results say.")] = False,
    plan: Annotated[Path | None, typer.Option(help="Write what is to be computed to this file, and stop.")] = None,
    source: Annotated[list[Path] | None, typer.Option("--from", help="Folders that compute wrote; repeatable.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Make all figures anew from values.npz.")] = False,
    out: Annotated[Path | None, typer.Option(help="Results folder; default frontier.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="With --plan: seconds each, and no results.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.", autocompletion=completion.devices)] = "cpu",
    as_json: Json = False,
) -> None:
    """Accuracy against leakage of every mechanism at several strengths: what was found, and how to find it again."""
    from ..choosing import frontier as record

    if sum((status, plan is not None, bool(source), again)) > 1:
        raise ConfigError("--status, --plan, --from and --again exclude each other.", "Give one of them.")
    if quick and plan is None:
        raise ConfigError("--quick is for --plan.", "Leave it out, or add --plan SPEC.json.")
    if plan is not None:
        _write_plan(plan, device, quick, out or record.committed(), as_json)
        return
    folder = out or record.committed()
    if source or again:
        _score(source or [], folder)
    _show(record.status(folder), folder, as_json)


def _write_plan(path: Path, device: str, quick: bool, folder: Path, as_json: bool) -> None:
    from ..choosing import frontier_plan, frontier_store
    from ..files import write_json
    from ..reproduction.reproduce import commit
    from . import display

    if path.is_dir() or not path.name:
        raise ConfigError(f"Cannot write the SPEC to {str(path)!r}: it is a folder.", "Name a file, as SPEC.json.")
    parts = frontier_plan.parts(device)
    if quick:
        parts = {name: frontier_plan.quick(part) for name, part in parts.items()}
    elif (folder / frontier_store.FILE).is_file():
        there = frontier_store.read(folder).about[frontier_store.PARTS]
        parts = {name: part for name, part in parts.items() if name not in there}
    write_json(path, {"commit": commit(), "parts": parts})
    told = {"parts": len(parts), "spec": str(path)}
    if as_json:
        print_json(told)
        return
    minutes = max(1, round(len(parts) * SECONDS / 10 / 60))
    time = "seconds each" if quick else f"about {minutes} min on one H200 with ten processes, far more on a CPU"
    if not parts:
        display.console.print(f"nothing is left to compute: {path} has no parts", markup=False)
        return
    many = "1 part that is" if len(parts) == 1 else f"{len(parts)} parts that are"
    display.console.print(f"{many} not there yet ({time}): {path}", markup=False, soft_wrap=True)
    display.console.print(
        f"next, as often as there is room, side by side: PYTHONPATH=src python -m equipoise.compute {path} OUT/",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def _score(sources: list[Path], folder: Path) -> None:
    """Take over what was computed, if anything, and make all figures of it and what is there."""
    from ..choosing import frontier as record
    from ..choosing import frontier_store
    from ..files import locked, storage_errors, write_text
    from ..report.frontier_families import CAPTION, panels
    from ..report.frontier_picture import picture
    from ..reproduction.reproduce import committed

    if not sources:
        frontier_store.read(folder)  # or nothing can be made; refused before the folder is there
    found = [frontier_store.gathered(source) for source in sources]  # refused before the folder is there
    with locked(folder):
        there = [frontier_store.read(folder)] if (folder / frontier_store.FILE).is_file() else []
        values = reduce(frontier_store.merged, [*there, *found])
        result = record.record(values, committed().parent)
        shown = panels(result)
        drawn = {
            f"frontier{'-narrow' if narrow else ''}{'-dark' if dark else ''}.svg":
                picture(shown, dark=dark, narrow=narrow, caption=CAPTION) if shown else None
            for narrow in (False, True) for dark in (False, True)
        }  # fmt: skip
        # The record is away until all else is new: after a crash, nobody takes old and new for a whole.
        with storage_errors(folder / record.FILE):
            (folder / record.FILE).unlink(missing_ok=True)
        frontier_store.write(values, folder)
        for name, content in drawn.items():
            if content is not None:
                write_text(folder / name, content)
                continue
            with storage_errors(folder / name):  # an old one would be of other results
                (folder / name).unlink(missing_ok=True)
        write_text(folder / record.FILE, _lines(result))


def _lines(result: dict[str, Any]) -> str:
    """JSON with a line for each cell, so that a change shows where it is."""
    rows = {name: result[name] for name in ("cells", "equal_accuracy")}
    head = json.dumps({name: value for name, value in result.items() if name not in rows}, indent=1)[:-2]
    body = ",\n".join(
        f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in several) + "\n ]"
        for name, several in rows.items()
    )
    return f"{head},\n{body}\n}}\n"


def _show(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    from ..report.frontier_text import cell, headline, limit, share
    from . import display

    if as_json:
        print_json(result)
        return
    for line in headline(result):
        display.console.print(line, markup=False)
    title = "at equal accuracy: the learner, and gaussian-dp at epsilon; found: records identified over the whole run"
    learners, its = ("learner's\naccuracy", "learner's\nfound"), ("its\naccuracy", "its\nfound", "\nproved")
    table = display.table(
        title, ("\ndata", "\nbudget", *learners, "\nepsilon", *its), numbers=(*learners, "\nepsilon", *its)
    )
    for row in result["equal_accuracy"]:
        run, epsilon = row["by_scope"].get("run", row), "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
        theirs, ours = (share(run.get(name)) for name in ("learner_identification", "identification"))
        display.add_row(
            table, row["dataset"], cell(row), share(row["learner_accuracy"]), theirs, epsilon, share(row["accuracy"]),
            ours, limit(row["proved"]),
        )  # fmt: skip
    display.console.print(table)
    display.note(
        "seeded experiments; found is what our attacks got, a floor; proved is what no attack exceeds, on average: of "
        "the few hundred games that were played more may be found by chance"
    )
    drawn = f"{folder}/frontier.svg" if (folder / "frontier.svg").is_file() else "none until a setting is whole"
    display.console.print(f"pictures: {drawn}   page: docs/frontier.md", markup=False, soft_wrap=True)
