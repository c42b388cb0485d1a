"""``equipoise choose``: from a dataset, a model, the number of clients and one limit to what can be deployed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, EquipoiseError, missing_extra
from . import completion
from .arguments import Json, Set, pairs, print_json

if TYPE_CHECKING:
    from ..choosing.choose import Choosing
    from ..choosing.decision import Decision
    from . import display

EXAMPLES = (
    "Examples: equipoise choose --dataset mnist --epsilon 2 --out choice   |   equipoise choose --data patients.csv "
    "--identification 0.02 --set public_fraction=0.2   |   equipoise choose --dataset breast-cancer --accuracy 0.85 "
    "--quick"
)


def choose(
    *,
    dataset: Annotated[
        str,
        typer.Option(
            "--dataset", "--data", help="A bundled dataset, or a path, as train takes it.",
            autocompletion=completion.datasets,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(help="A bundled model, module:callable, or best.", autocompletion=completion.models_or_best),
    ] = "best",
    clients: Annotated[int, typer.Option(help="How many clients there will be.")] = 4,
    records: Annotated[
        int | None, typer.Option(help="Records of a client: a number that may be public; default: from the dataset.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Limit: the epsilon of the whole run.")] = None,
    identification: Annotated[
        float | None, typer.Option(help="Limit: share of records that any attacker may pick out of 200, whole run.")
    ] = None,
    accuracy: Annotated[float | None, typer.Option(help="Limit: the least accuracy; epsilon is searched.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer candidates and seeds: under three minutes.")] = False,
    private: Annotated[
        bool,
        typer.Option("--on-private-records", help="Nothing public: tune on clients' own. No epsilon covers it."),
    ] = False,
    measured_only: Annotated[
        bool, typer.Option("--measured-only-ok", help="Accept noise of which nothing is proved, if it is better.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the search: the same seed, the same decision.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", autocompletion=completion.devices)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files that work as they are.")] = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """What to deploy under one limit, what accuracy to expect, and what was rejected; tried on public records alone."""
    from . import display
    from .choose_files import ready

    if out is not None:
        _need_flower(out)
    overrides: dict[str, Any] = pairs(settings)
    overrides |= {} if device is None else {"device": device}
    asked: dict[str, Any] = {"epsilon": epsilon, "identification": identification, "accuracy": accuracy, "model": model}
    asked |= {"clients": clients, "records": records, "quick": quick, "seed": seed, "settings": overrides}
    asked |= {"on_private_records": private, "measured_only": measured_only}
    with ready(out):
        with display.audit_progress(quiet=as_json) as progress:
            made = _asked(dataset, asked, _Folded(progress))
            try:
                found = made.run()
            except KeyboardInterrupt:
                progress.stop()
                told = made.so_far() or "interrupted before anything was trained"
                display.errors.print(told, markup=False, highlight=False)
                raise typer.Exit(130) from None
        _tell(found, out, as_json)
    if not found.met:
        raise typer.Exit(1)


class _Folded:
    """Progress whose plan is folded to the width of the terminal, between words."""

    def __init__(self, progress: display.AuditProgress):
        self.progress = progress

    def planned(self, text: str, seconds: float, remarks: Sequence[str] = ()) -> None:
        from . import display

        lines = [fill(line, display.console.width, break_on_hyphens=False) for line in text.splitlines()]
        self.progress.planned("\n".join(lines), seconds, remarks)

    def __call__(self, what: str, seconds: float) -> None:
        self.progress(what, seconds)


def _asked(dataset: str, asked: dict[str, Any], progress: Any) -> Choosing:
    from ..choosing.choose import Asked, choosing
    from ..models.named import code_of, is_imported

    model = asked["model"]
    code = code_of(model) if is_imported(model) else None
    if code is not None and not callable(code):
        raise ConfigError(f"Expected {model!r} to be a function that builds a model.", "Name a class or a function.")
    given: Asked = {**asked, "code": code, "progress": progress}  # type: ignore[typeddict-item]
    return choosing(dataset, **given)


def _need_flower(out: Path) -> None:
    """A node's policy is judged by the code that a node runs."""
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise missing_extra(f"Writing a run config and a policy to {out}", "flower")


def _tell(found: Decision, out: Path | None, as_json: bool) -> None:
    """The decision first: what took minutes to find is not lost where writing it fails."""
    from . import display
    from .choose_tables import show, show_written

    if not as_json:
        show(found, wanted=out is not None)
    try:
        written = [] if out is None else _written(found, out)
    except EquipoiseError:
        for sentence in found.sentences() if as_json else ():  # the one document is then that of the error
            display.errors.print(sentence, markup=False, highlight=False)
        raise
    if as_json:
        print_json({**found.plain(), "files": [path.name for path in written]})
    elif written:
        show_written(found, written)


def _written(found: Decision, out: Path) -> list[Path]:
    from .choose_files import write_files
    from .choose_tables import picture

    written = write_files(found, out)
    drawn = picture(found, out) if found.met else None
    return written if drawn is None else [*written, drawn]
