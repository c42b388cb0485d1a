"""``equipoise audit``: what could the server see?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from . import completion
from .arguments import Json, existing_folder, pairs, print_json, whole_numbers, words

if TYPE_CHECKING:
    from ..auditing.options import AuditOptions

Public = Annotated[
    str | None, typer.Option(help="Public images to attack with: a bundled dataset, a folder, an npz file.")
]
Model = Annotated[
    str | None, typer.Option(help="Of a deployment: a bundled model, or module:callable, which is imported.")
]
EXAMPLES = (
    "Examples: equipoise audit runs/a   |   equipoise audit runs/a --attack lti,matched --targets 100 "
    "--snapshots 0,200   |   equipoise audit runs/a --attack invgrad --set lr=0.1 --set signed=false"
)


def audit(
    run: Annotated[Path, typer.Argument(help="A run folder, as train or a deployment's server writes it.")],
    *,
    attack: Annotated[
        str,
        typer.Option(
            help="invgrad, dlg, idlg, likelihood, unrolled, lti, matched, membership, labels, multi-round.",
            autocompletion=completion.attacks,
        ),
    ] = "invgrad,lti,matched,membership,labels",
    targets: Annotated[int, typer.Option(help="Releases to attack; under 20 is insufficient evidence.")] = 32,
    snapshots: Annotated[
        str | None, typer.Option(help="Rounds of the snapshots to attack; default first, early and last.")
    ] = None,
    multi_rounds: Annotated[int, typer.Option(help="Releases that the attack multi-round combines.")] = 300,
    private: Annotated[
        bool, typer.Option("--private", help="Attack the clients' own images, and SHOW them in the picture.")
    ] = False,
    public: Public = None,
    model: Model = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any attack option, e.g. --set samples=2000 --set condition_on=best.",
            autocompletion=completion.attack_options,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What could the server see? Attack a run's releases at its own snapshots; writes audit.json and audit.svg."""
    from ..auditing.run_audit import audit_run
    from ..files import locked
    from . import display
    from .audit_tables import show_audit

    names = words(attack)
    combined = "multi-round" in names
    options = _attack_options([name for name in names if name != "multi-round"], targets, pairs(settings))
    if not names:
        raise ConfigError("No attack was named.", "For example --attack lti,matched.")
    wanted = whole_numbers(snapshots, "--snapshots")
    existing_folder(run)
    whose = f"{targets} releases of {'PRIVATE' if private else 'public'} images over {options.label_sets} label sets"
    first = f"auditing {run}: {', '.join(names)}; {whose}"
    with locked(run), display.attack_progress(as_json, first=first) as progress:
        result = audit_run(
            run, options, wanted, private, multi_rounds if combined else 0, progress, public=public, model=model
        )
        written = result.save(run)
    if as_json:
        print_json(result.content)
    else:
        show_audit(result.content)
        display.console.print("written: " + ", ".join(str(path) for path in written), markup=False)
    if not result.content["complete"]:
        raise typer.Exit(130)


def _attack_options(names: list[str], targets: int, given: dict[str, Any]) -> AuditOptions:
    from ..auditing.options import AuditOptions

    for key in ("attacks", "releases"):
        if key in given:
            raise ConfigError(f"Unknown attack option {key!r}.", "Use --attack and --targets.")
    options = AuditOptions(attacks=names, releases=targets, **given)
    options.check()
    return options
