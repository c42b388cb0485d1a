"""``equipoise flower demo``: a SuperLink and SuperNodes on this machine train the example app, and are stopped."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import FleetError, StorageError, raise_all, too_low
from ..files import storage_errors, write_text
from ..ledger.account_report import limit_sentence
from ..ledger.ledger import verify
from ..ledger.report import ledger_report
from ..runs.metrics_file import read_rows
from .fleet import Fleet
from .new_app import new_app
from .policy import VARIABLE, read_policy
from .policy_file import POLICY, init_policy
from .run_config import PREFIX

PARTS = ("flower_app", "logs", "run", "nodes")
"""What a demo leaves in its folder: the app as it was run, what the processes said, the server's run folder, and the
policy and ledger of every node."""
MARK = ".equipoise-demo"
"""The file by which a demo knows a folder that it made itself."""

MECHANISM, BUDGET = "gaussian-dp", 2.0
"""As the app's own configuration has them."""

Say = Callable[[str], None]


def demo(
    out: Path, nodes: int, rounds: int, say: Say, *, tls: bool = False, simulation: bool = False
) -> dict[str, Any]:
    """Train, say what happens as it happens, and return what the server's files hold afterwards."""
    least = (("rounds", rounds, 1), ("nodes", nodes, 2))
    raise_all(too_low(name, value, bound) for name, value, bound in least if value < bound)
    app, logs, run = prepare(out)
    began = time.monotonic()
    follower = Follower(run / "metrics.jsonl", say)
    policies = {} if simulation else node_policies(out / PARTS[3], nodes)
    with Fleet(
        logs, nodes, simulation=simulation, tls=tls, variables={VARIABLE: str((app / POLICY).absolute())},
        node_config=lambda number: {f"{PREFIX}policy": str(policies[number])},
    ) as fleet:  # fmt: skip
        say(f"{_what(fleet)} after {time.monotonic() - began:.0f} s; a round takes 10 to 30 s on two cores")
        settings = {
            "num-server-rounds": rounds, "equipoise.gaussian.rounds": rounds, "min-nodes": nodes,
            "equipoise.out": str(run),
        }  # fmt: skip
        ended = fleet.run(app, settings, timeout=120.0 + 120.0 * rounds, watch=follower.look)
        clients = {str(node): f"node {number}" for number, node in fleet.node_ids.items()}
    say(f"all processes are stopped, {time.monotonic() - began:.0f} s after the start")
    result = outcome(run, ended.log)
    result["refused"] = {
        round_number: {clients.get(client, client): reason for client, reason in reasons.items()}
        for round_number, reasons in result["refused"].items()
    }
    reserved = {f"node {number}": account_of(policy) for number, policy in policies.items()}
    return {**result, "reserved": reserved, "seconds": round(time.monotonic() - began, 1)}


def account_of(policy: Path) -> dict[str, Any]:
    """What a node has reserved, what is left under its policy, and in a sentence the limits that are proved."""
    own = read_policy(policy)
    assert own.ledger is not None
    result, summary = ledger_report(own.ledger, policy=own.mechanisms), verify(own.ledger)
    return {
        "total": result["total"], "left": result["left"][MECHANISM], "runs": result["reserved"]["runs"],
        "says": [limit_sentence(run) for run in summary.runs.values()],
    }  # fmt: skip


def node_policies(folder: Path, nodes: int) -> dict[int, Path]:
    """A policy for each node, as its operator would write it: the demo's epsilon for a run, and room for some runs."""
    return {
        number: init_policy((folder / str(number)).absolute(), f"mnist-{number}", MECHANISM, BUDGET)
        for number in range(nodes)
    }


def prepare(out: Path) -> tuple[Path, Path, Path]:
    """App, log and run folder in ``out``, all new. Only in a folder that an earlier demo made is anything replaced."""
    with storage_errors(out):
        there = {path.name for path in out.iterdir()} if out.is_dir() else set()
        if (out.exists() and not out.is_dir()) or there - {*PARTS, MARK} or (there and MARK not in there):
            raise StorageError(
                f"{out} holds other things than a demo of before: nothing was touched.",
                "Name a folder that is new or empty, with --out.",
            )
        for old in (out / name for name in PARTS if (out / name).exists()):
            shutil.rmtree(old)
        write_text(out / MARK, "Made by equipoise flower demo, which replaces what is in this folder.\n")
        new_app(out / PARTS[0])
    return out / PARTS[0], out / PARTS[1], (out / PARTS[2]).absolute()


class Follower:
    """Says each round's outcome once it is in the server's metrics."""

    def __init__(self, path: Path, say: Say):
        self.path, self.say, self.read = path, say, 0
        self.round: dict[str, Any] = {}

    def look(self) -> None:
        for row in read_rows(self.path)[self.read :]:
            self.read += 1
            if "evaluation" in row:
                self.say(_line(row, self.round))
            else:
                self.round = row


def _line(row: dict[str, Any], counts: dict[str, Any]) -> str:
    told = f"round {row['round']}: test accuracy {row['evaluation']['accuracy']:.1%}"
    if counts.get("round") != row["round"]:
        return f"{told} before training"
    told += f", {counts['accepted']} updates averaged, {len(counts['refused'])} refused"
    return f"{told}, intensity {counts['equipoise.intensity']:.2f}" if "equipoise.intensity" in counts else told


def outcome(run: Path, log: Path) -> dict[str, Any]:
    """Accuracy by round, what was refused, and what the verified ledger counts."""
    if not (run / "result.json").exists():
        raise FleetError("The run ended without a result.", f"See {log}.")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    (federation,) = result["federations"]
    evaluated = {
        row["round"]: row["evaluation"]["accuracy"] for row in read_rows(run / "metrics.jsonl") if "evaluation" in row
    }
    ledger = verify(run / "ledger.jsonl")
    return {
        "mechanism": federation["mechanism"],
        "budget": federation["budget"],
        "accuracy": {str(round_number): accuracy for round_number, accuracy in evaluated.items()},
        "refused": federation["refused"],
        "releases": {
            "asked": sum(count.asked for count in ledger.counts.values()),
            "accepted": sum(count.accepted for count in ledger.counts.values()),
            "clients": len(ledger.counts),
        },
        "run": str(run),
        "audit": f"equipoise audit {run} --public mnist --model {PARTS[0]}.task:Net",
        "claim": result["claim"],
    }


def _what(fleet: Fleet) -> str:
    if fleet.simulation:
        return f"a SuperLink with {fleet.size} simulated nodes is up"
    secured = " with TLS and authentication" if fleet.tls else ""
    return f"a SuperLink and {fleet.size} SuperNodes are up{secured}"
