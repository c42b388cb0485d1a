"""The command line: thin shells around the library. ``--json`` prints one JSON document and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..errors import EquipoiseError, printable
from . import (
    audit,
    bounds,
    calibrate,
    choose,
    data,
    demo,
    doctor,
    flower,
    frontier,
    guarantee,
    ledger,
    reproduce,
    train,
)
from .arguments import print_json
from .hints import Hinting
from .interrupts import interruptible_imports

app = typer.Typer(
    name="equipoise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command: contexts inherit it
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..environment import VERSION

        print(f"equipoise {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning in which every client distorts its update under a stated privacy budget."""


app.command(cls=Hinting, epilog=demo.EXAMPLES)(demo.demo)
app.command(cls=Hinting, epilog=train.EXAMPLES)(train.train)
app.command(cls=Hinting, epilog=audit.EXAMPLES)(audit.audit)
app.command(cls=Hinting, epilog=choose.EXAMPLES)(choose.choose)
app.command(cls=Hinting, epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.command(cls=Hinting, epilog=frontier.EXAMPLES)(frontier.frontier)
app.command(cls=Hinting, epilog=guarantee.EXAMPLES)(guarantee.guarantee)
app.command(cls=Hinting, epilog=doctor.EXAMPLES)(doctor.doctor)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")
app.command(cls=Hinting, epilog=bounds.EXAMPLES)(bounds.bounds)
app.command(cls=Hinting, epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command(cls=Hinting, epilog=ledger.EXAMPLES)(ledger.ledger)


def main() -> None:
    """Entry point: every expected error becomes one line and its own exit code."""
    wants_json = "--json" in sys.argv
    with interruptible_imports():
        _run(wants_json)


def _run(wants_json: bool) -> None:
    try:
        app(prog_name="equipoise")
    except EquipoiseError as error:
        _fail(error, wants_json)
    except OSError as error:  # a path that could not even be looked at
        from ..files import storage_error

        _fail(storage_error(error, Path(error.filename or "a file"), "use"), wants_json)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _fail(error: EquipoiseError, wants_json: bool) -> NoReturn:
    if wants_json:
        print_json({"error": {"type": type(error).__name__, "cause": error.cause, "remedy": error.remedy}})
    else:
        print("\n".join(map(printable, f"error: {error}".split("\n"))), file=sys.stderr)
    sys.exit(error.exit_code)
