"""``equipoise data check``: what a dataset is to a run, and what was guessed, before anything is trained."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import printable
from . import completion
from .arguments import Json, Set, pairs, print_json

EXAMPLES = (
    "Examples: equipoise data check patients.csv --set target=diagnosis --set group=patient   |   "
    "equipoise data check photos --set resize=32 --set clients=8 --json"
)
app = typer.Typer(
    help="Look at a dataset, a bundled one or files of yours; with --json for machines.",
    epilog="Example: equipoise data check patients.csv --json",
    no_args_is_help=True,
)
MOST = 8
"""Classes and clients that a line shows."""


@app.command(epilog=EXAMPLES)
def check(
    *,
    path: Annotated[
        str, typer.Argument(help="A folder or file, or a bundled dataset.", autocompletion=completion.datasets)
    ],
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Shapes, classes, clients, groups, normalisation, and what was guessed: as train would read PATH."""
    from ..engine.overview import overview
    from ..runs.config import resolve

    config = resolve(overrides=pairs(settings), sweep={"mechanisms": ["none"], "datasets": [path]})
    found = overview(config.settings, path)
    if as_json:
        print_json(found)
        return
    from . import display

    for line in lines(found):
        display.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def lines(found: dict[str, Any]) -> list[str]:
    """What was found, in words, a line each; the last say what was guessed, and what measured on private rows."""
    rows = ", ".join(f"{count:,} {what}" for what, count in found["rows"].items())
    public = "" if "public" in found["rows"] else "; no public rows, so no audit (say public_fraction=0.1)"
    classes = [f"{one['name']} ({one['train']:,})" for one in found["classes"]]
    dealt = [f"{count:,}" for count in found["clients"]["rows"]]
    hint = " (say group= where a person has several rows)" if found["group_column"] else ""
    groups = f"none{hint}" if found["groups"] is None else f"{found['groups']:,}"
    fitted = [f"measured on private rows: {'; '.join(found['fitted'])}"] if found["fitted"] else []
    return [
        f"{found['name']}: {_shape(found)}; {rows}{public}",
        f"classes, of train: {_some(classes)}",
        f"clients, dealt by {found['clients']['partition']}: {len(dealt)} with {_some(dealt)} rows; groups: {groups}",
        f"normalisation: {_normalisation(found)}",
        "guessed: " + ("; ".join(found["guessed"]) or "nothing"),
        *fitted,
    ]


def _shape(found: dict[str, Any]) -> str:
    size = " x ".join(map(str, found["shape"]))
    if found["kind"] == "tokens":
        return f"sequences of {size} tokens, {found['vocabulary']:,} token numbers with padding"
    return f"pictures of {size} (channels, height, width)" if found["kind"] == "image" else f"{size} numbers a row"


def _some(words: list[str]) -> str:
    return ", ".join(words[:MOST]) + (f" and {len(words) - MOST} more" if len(words) > MOST else "")


def _normalisation(found: dict[str, Any]) -> str:
    if found["kind"] == "tokens":
        return "none, as these are tokens"

    def told(moment: Any) -> str:
        return _some([f"{value:.4g}" for value in (moment if isinstance(moment, tuple | list) else [moment])])

    return f"mean {told(found['mean'])}; std {told(found['std'])}"
