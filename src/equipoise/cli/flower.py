"""The commands about Flower: ``equipoise flower new`` and ``equipoise flower demo``; ``app.py`` registers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import Json, print_json

app = typer.Typer(
    help="Protected federations on Flower: on one machine, or on many.",
    epilog="Examples: equipoise flower new my-app   |   equipoise flower demo --json",
    no_args_is_help=True,
)


@app.command(epilog="Example: equipoise flower new my-app")
def new(
    folder: Annotated[Path, typer.Argument(help="A folder that is new or empty; the app is named after it.")],
    *,
    as_json: Json = False,
) -> None:
    """Write a complete Flower app with protection, to copy and edit."""
    from ..flower.new_app import new_app

    files = new_app(folder)
    if as_json:
        print_json({"folder": str(folder), "files": [str(path.relative_to(folder)) for path in files]})
        return
    task = next(path for path in files if path.name == "task.py")
    print(f"{len(files)} files in {folder}")
    print(f"next: put your model and data into {task}, and try it on simulated nodes")
    print(f"(name the connection 'simulation' first, as {folder / 'README.md'} shows):")
    print(f"  export EQUIPOISE_POLICY={(folder / 'policy.toml').absolute()}")
    print("  flower-superlink --insecure --simulation --disable-runtime-dependency-installation --port 8010")
    print(f"  flwr run {folder} simulation --stream --federation-config num-supernodes=4")


@app.command(epilog="Examples: equipoise flower demo   |   equipoise flower demo --rounds 5 --tls")
def demo(
    *,
    nodes: Annotated[int, typer.Option(help="SuperNodes to start.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds to train; the budget is for all of them.")] = 5,
    tls: Annotated[bool, typer.Option("--tls", help="With TLS and SuperNode authentication.")] = False,
    simulation: Annotated[bool, typer.Option("--simulation", help="Simulated nodes instead of SuperNodes.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for app, logs and run; an earlier demo is replaced.")] = Path(
        "flower-demo"
    ),
    as_json: Json = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, train the example app on them, stop them all."""
    from ..flower import demo as shell
    from . import display

    def say(text: str) -> None:
        if not as_json:
            display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    result = shell.demo(out, nodes, rounds, say, tls=tls, simulation=simulation)
    if as_json:
        print_json(result)
        return
    accuracy, releases = list(result["accuracy"].values()), result["releases"]
    say(f"{result['mechanism']} at budget {result['budget']:g}: test accuracy {accuracy[0]:.1%} -> {accuracy[-1]:.1%}")
    for round_number, reasons in result["refused"].items():
        for client, reason in reasons.items():
            say(f"refused in round {round_number}: {client}: {reason}")
    if not result["refused"]:
        say("refused: none")
    say(f"ledger: verified; {releases['accepted']} of {releases['asked']} releases by {releases['clients']} clients")
    say(f"run: {result['run']}   logs: {out / 'logs'}   app: {out / shell.PARTS[0]}")
    say(f"what could its server see? in the folder of the app: {result['audit']}")
    for line in _guarantees(result["reserved"]):
        say(line)
    say(result["claim"])


def _guarantees(reserved: dict[str, Any]) -> Iterator[str]:
    """What each node reserved, and what that proves."""
    if not reserved:
        yield "reserved: nothing, as simulated nodes keep no ledger"
        return
    for node, own in reserved.items():
        total, left = own["total"], own["left"]
        yield (
            f"{node} has reserved epsilon {total['epsilon']:g}, delta {total['delta']:g} ({total['relation']}, unit: "
            f"{', '.join(total['units'])}) for the whole run; its policy leaves epsilon {left['epsilon']:g}, delta "
            f"{left['delta']:g} for other runs"
        )
    for sentence in dict.fromkeys(sentence for own in reserved.values() for sentence in own["says"]):
        yield f"proved, for any attacker: {sentence}"


policy = typer.Typer(
    help="What may leave a node: its operator's own file, whatever a run asks for.",
    epilog="Examples: equipoise flower policy init node --data scans   |   equipoise flower policy show policy.toml",
    no_args_is_help=True,
)
app.add_typer(policy, name="policy")


@policy.command(epilog="Example: equipoise flower policy init node --data scans --budget 2")
def init(
    folder: Annotated[Path, typer.Argument(help="A folder of the node's own; made if it is not there.")],
    *,
    data: Annotated[str, typer.Option(help="What you call the data set: its releases are counted together.")],
    mechanism: Annotated[str, typer.Option(help="The mechanism to allow; add others in the file.")] = "gaussian-dp",
    budget: Annotated[
        float | None,
        typer.Option(help="Of gaussian-dp the epsilon of one run (2); else ask for the noise of this budget."),
    ] = None,
    releases: Annotated[int, typer.Option(help="The most releases of the data, over all runs.")] = 1000,
    experiment: Annotated[
        bool, typer.Option("--experiment", help="For simulations: allow reproducible noise, keep no ledger.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a policy with comments, and begin the node's ledger."""
    from ..flower.policy_file import init_policy, remedy

    path = init_policy(folder, data, mechanism, budget, releases, experiment=experiment)
    if not as_json:
        print(f"written: {path}")
    _say(path, as_json)
    if not as_json:
        print(f"next: read and edit it, then name it: {remedy(path)}")


@policy.command(epilog="Example: equipoise flower policy show node/policy.toml")
def show(
    file: Annotated[Path, typer.Argument(help="A policy file, or the folder that policy init made.")],
    *,
    as_json: Json = False,
) -> None:
    """Say in plain words what can leave, how often, and with how much noise."""
    _say(file, as_json)


def _say(file: Path, as_json: bool) -> None:
    from ..flower.policy_file import show_policy

    says = show_policy(file)
    if as_json:
        print_json({"policy": str(file), "says": says})
    else:
        print("\n".join(says))
