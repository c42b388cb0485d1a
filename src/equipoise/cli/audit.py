"""``equipoise audit``: what could the server see?"""

from __future__ import annotations

import textwrap
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ..errors import ConfigError
from . import completion
from .arguments import Json, existing_folder, pairs, print_json, whole_numbers, words

if TYPE_CHECKING:
    from ..auditing.audit import Audit
    from ..auditing.options import AuditOptions
    from ..auditing.plan import Plan

Public = Annotated[
    str | None, typer.Option(help="Public data to attack with: a bundled dataset, a folder, an npz file.")
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Of a deployment, or of a run whose model is code: bundled, or module:callable, which is imported.",
        autocompletion=completion.models,
    ),
]
EXAMPLES = (
    "Examples: equipoise audit runs/a   |   equipoise audit runs/a --quick   |   equipoise audit runs/a --attack "
    "lti,matched --targets 100 --snapshots 0,200   |   equipoise audit runs/a --attack invgrad --set lr=0.1"
)
ATTACKS = {
    "matched": "picks the example from a list",
    "lti": "learns to reconstruct the examples",
    "membership": "asks whether an example was in the batch",
    "labels": "counts the classes in the batch",
    "invgrad": "draws by matching the direction of the gradient",
    "dlg": "draws by matching the gradient, labels too",
    "idlg": "the same with labels read off first",
    "likelihood": "draws the images most probable under the noise",
    "unrolled": "the same through every step of learning",
    "verify": "checks a guess, granted the rest of the batch",
    "multi-round": "matched over many rounds together",
}
"""What each attack does, in few words."""
Attacks = Annotated[
    str | None,
    typer.Option(
        help="; ".join(f"{name}: {does}" for name, does in ATTACKS.items()) + ".",
        autocompletion=completion.attacks,
        show_default="matched,lti,membership,labels, as far as the data allow",
    ),
]
Releases = Annotated[
    int | None,
    typer.Option(help="Releases to attack; under 20 is insufficient evidence.", show_default="32; --quick: 20"),
]
Snapshots = Annotated[
    str | None, typer.Option(help="Rounds of the snapshots to attack; default first, early and last.")
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="A first look in less than half of the time: 20 releases over 1 label set, 50 candidates, fewer "
        "simulations for lti and labels. --targets and --set have the last word.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any attack option, e.g. --set samples=2000 --set condition_on=best; or how files of --public are read, "
        "where that differs from the run's own: --set target=COLUMN.",
        autocompletion=completion.attack_options,
    ),
]
GO_ON = "What is finished is kept: run the same command again to go on."
NOTHING = "Nothing was finished yet: the same command begins anew."


def audit(
    run: Annotated[Path, typer.Argument(help="A run folder, as train or a deployment's server writes it.")],
    *,
    attack: Attacks = None,
    targets: Releases = None,
    snapshots: Snapshots = None,
    quick: Quick = False,
    multi_rounds: Annotated[int, typer.Option(help="Releases that the attack multi-round combines.")] = 300,
    private: Annotated[
        bool, typer.Option("--private", help="Attack the clients' own data, and SHOW pictures of them.")
    ] = False,
    public: Public = None,
    model: Model = None,
    settings: Set = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute all again, also what an earlier audit kept.")] = False,
    as_json: Json = False,
) -> None:
    """What could the server see? Attack a run's releases at its own snapshots; writes audit.json.

    With an attack that draws (lti, invgrad, dlg, idlg, likelihood, unrolled) also audit.svg, its pictures.

    Killed, or stopped with Ctrl-C? Run the same command again: finished parts are taken from the run folder.
    """
    from ..auditing.results import THINGS
    from ..auditing.run_audit import audit_run
    from ..auditing.store import Store, set_aside
    from ..auditing.summary import counted
    from ..files import locked
    from . import display

    names = None if attack is None else words(attack)
    if names == []:
        raise ConfigError("No attack was named.", "For example --attack lti,matched.")
    given, reading = _separated(pairs(settings))
    options = _attack_options(names, targets, quick, given)
    combined = names is not None and "multi-round" in names
    if combined and multi_rounds < 1:
        raise ConfigError(f"Expected --multi-rounds {multi_rounds} to be at least 1.", "Leave it out for 300.")
    wanted = whole_numbers(snapshots, "--snapshots")
    existing_folder(run)
    store = Store(run, fresh=fresh)
    with locked(run), display.audit_progress(as_json) as progress:

        def planned(plan: Plan) -> None:
            whose = f"{'PRIVATE' if private else 'public'} {THINGS[plan.kind]}s"
            sets = f" over {counted(options.label_sets, 'label set')}" if plan.cells else ""
            more = [line for line in [_reduced(options, plan)] if quick and line]
            text = "\n".join([f"auditing {run}, {whose}{sets}", *more, plan.text()])
            progress.planned(text, plan.seconds, plan.remarks)

        try:
            replays = multi_rounds if combined else 0
            result = audit_run(
                run, options, wanted, private, replays, progress,
                public=public, model=model, reading=reading, store=store, planned=planned,
            )  # fmt: skip
        except KeyboardInterrupt:
            _stopped(GO_ON if any(store.folder.glob("*.npz")) else NOTHING)
        drawn = (run / "audit.svg").exists()
        earlier = set_aside(run, result.content)
        removed = earlier is not None and drawn and not earlier.with_suffix(".svg").exists()
        written = result.save(run)
    _show(result, written, earlier, removed, as_json)


def _show(result: Audit, written: list[Path], earlier: Path | None, removed: bool, as_json: bool) -> None:
    from . import display
    from .audit_tables import show_audit

    if as_json:
        print_json(result.content)
    else:
        show_audit(result.content)
        display.console.print("written: " + ", ".join(str(path) for path in written), markup=False)
        if earlier is not None:
            gone = " Its picture showed private images, and was removed." if removed else ""
            display.note(f"The earlier audit.json has what this one lacks; it is kept as {earlier.name}.{gone}")
    if not result.content["complete"]:
        _stopped()


def _stopped(left: str = GO_ON) -> NoReturn:
    from . import display

    display.errors.print(f"interrupted. {left}", style="bold", soft_wrap=True)
    raise typer.Exit(130)


def _separated(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of attacks, and those that say how public data are read."""
    from ..attack.registry import options
    from ..data.contents import Reading

    names = {part.name for part in fields(Reading)} - options().keys()
    return (
        {key: value for key, value in given.items() if key not in names},
        {key: value for key, value in given.items() if key in names},
    )


def _attack_options(names: list[str] | None, targets: int | None, quick: bool, given: dict[str, Any]) -> AuditOptions:
    """``names`` may hold multi-round, which is none of them; None: the usual ones, as far as the data allow."""
    from ..auditing.options import QUICK, AuditOptions

    for key in ("attacks", "releases"):
        if key in given:
            raise ConfigError(f"Unknown attack option {key!r}.", "Use --attack and --targets.")
    releases = {} if targets is None else {"releases": targets, "games": max(2, targets)}
    attacks = None if names is None else [name for name in names if name != "multi-round"]
    options = AuditOptions(attacks=attacks, **{**(QUICK if quick else {}), **releases, **given})
    options.check()
    return options


def _reduced(options: AuditOptions, plan: Plan) -> str:
    """What ``--quick`` makes smaller than it would be, of what this audit uses, in words."""
    from ..auditing.options import QUICK, AuditOptions

    used = [name for name in QUICK if (plan.games if name == "games" else plan.cells)]
    usual, mine = AuditOptions().plain(), options.plain()
    less = [f"{name} {mine[name]} (usually {usual[name]})" for name in used if mine[name] != usual[name]]
    return "\n".join(textwrap.wrap("--quick: " + ", ".join(less), 80)) if less else ""
