"""Entries for the tests of the ledger: rounds of an experiment and of a deployment, good lines, whole folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from equipoise.ledger.account import Account
from equipoise.ledger.ledger import Ledger
from equipoise.ledger.lines import NO_REPLY, START
from equipoise.ledger.reservation import Reservation

ROW = {"client": "0", "lower": 7.99975, "upper": 15.9995, "intensity": 9.0, "accepted": True}


def row(client: str, intensity: float | None = 9.0, **change: Any) -> dict[str, Any]:
    return {**ROW, "client": client, "intensity": intensity, **change}


def silent(client: str) -> dict[str, Any]:
    return {"client": client, "accepted": False, "reason": NO_REPLY}


def entry(kind: str, round_number: int, federation: int = 0, **more: Any) -> dict[str, Any]:
    about = {"kind": kind, "federation": federation, "round": round_number, "mechanism": "pl-learn", "budget": 0.98}
    return {**about, **more}


def a_round(round_number: int, federation: int = 0, clients: int = 2, **change: Any) -> dict[str, Any]:
    rows = [row(str(client), 8 + round_number / 7 + client) for client in range(clients)]
    return entry("round", round_number, federation, **{"norm": "l2", "releases": rows, **change})


def asked(round_number: int, clients: list[str], **change: Any) -> dict[str, Any]:
    return entry("asked", round_number, clients=clients, **change)


def answered(round_number: int, releases: list[dict[str, Any]]) -> dict[str, Any]:
    return entry("answered", round_number, releases=releases)


def formal(round_number: int, client: str = "0", budget: Any = 0.5, **more: Any) -> dict[str, Any]:
    """A release whose budget is an epsilon."""
    rows = [{"client": client, "lower": None, "upper": None, "scale": 0.1, "intensity": None, "accepted": True}]
    return entry("round", round_number, **{"mechanism": "laplace-dp", "budget": budget, "releases": rows, **more})


def chained(bodies: list[str]) -> bytes:
    """Lines with hashes that fit, whatever they say."""
    lines, previous = [], START
    for body in bodies:
        previous = hashlib.sha256((previous + body).encode()).hexdigest()
        lines.append(f'{body[:-1]},"hash":"{previous}"}}\n')
    return "".join(lines).encode()


def seeded(folder: Path, *entries: dict[str, Any]) -> Path:
    """The folder of an experiment."""
    Ledger.open(folder / "ledger.jsonl", "seeded").append(entries)
    return folder


def deployment(folder: Path) -> Path:
    """The folder of a deployment of two clients, one of which is late, refused, and asked twice."""
    ledger = Ledger.open(folder / "ledger.jsonl", None)
    ledger.append([asked(1, ["a", "b"]), answered(1, [row("a", 8.5), silent("b")])])
    ledger.append([asked(2, ["a", "b"])])  # then the server was killed
    refused = row("b", None, accepted=False, reason="tensor 'w': 1 of 9 numbers are not finite")
    ledger.append([asked(2, ["a", "b"]), answered(2, [row("a", 12.5), refused])])
    (folder / "result.json").write_text(json.dumps({"ledger": {"head": ledger.head, "entries": ledger.entries}}))
    return folder


def node(folder: Path, *entries: dict[str, Any], account: str = "5d1c0e77") -> Path:
    """The account of a node, and where it lies."""
    Account.create(folder / "ledger.jsonl", account)
    for one in entries:
        with Account.open(folder / "ledger.jsonl", account) as held:
            held.append(one)
    return folder / "ledger.jsonl"


HEADER = '{"n":0,"schema":1,"kind":"ledger","experiment":null,"note":"x"}'
ACCOUNT = '{"n":0,"schema":1,"kind":"account","account":"5d1c0e77","note":"x"}'
LINE = (
    '{"n":1,"kind":"round","federation":0,"round":1,"mechanism":"m","budget":1,"norm":null,"releases":'
    '[{"client":"0","lower":null,"upper":2.5,"scale":1,"intensity":0.1,"accepted":false,"reason":"r"}]}'
)
ASKED = (
    '{"n":1,"kind":"asked","federation":0,"round":1,"mechanism":"m","budget":[1,2],"norm":"l2","clients":["0"],"at":""}'
)
RESERVE = (
    '{"n":1,"kind":"reserve","run":"7","mechanism":"m","epsilon":2.0,"delta":1e-05,"relation":"add/remove","unit":"group",'
    '"sampling_rate":1.0,"sigma":3.5,"rounds":3,"noise_schedule":[[1.0,3]],"divisor":9,"at":""}'
)
RESET = '{"n":1,"kind":"reset","reason":"why","at":""}'


def reservation(run: str, **change: Any) -> Reservation:
    """What a run of three rounds reserves."""
    terms: dict[str, Any] = {
        "mechanism": "gaussian-dp", "epsilon": 2.0, "delta": 1e-5, "unit": "record", "sampling_rate": 1.0, "sigma": 3.5,
        "rounds": 3, "noise_schedule": ((1.0, 3),), "divisor": 1000,
    }  # fmt: skip
    return Reservation(run=run, **{**terms, **change})


def of_run(run: str, round_number: int = 1, **change: Any) -> dict[str, Any]:
    """A release of such a run, as the node counts it."""
    about = {"mechanism": "gaussian-dp", "budget": 2.0, "clients": ["0"], "run": run}
    return entry("asked", round_number, **{**about, **change})


OLD = """\
{"n":0,"schema":1,"kind":"account","account":"5d1c0e77","note":"A budget is per release. Budgets that are scores or \
noise scales do not compose: none of them bounds what several releases of one client tell together. Only those of \
laplace-dp compose.","hash":"e40b7187047f1a247077100c8353f2a888434bf81f62e2c2442dbc335dc04d9a"}
{"n":1,"kind":"asked","federation":0,"round":1,"mechanism":"laplace-dp","budget":0.5,"norm":"l1","clients":["0"],\
"at":"2026-01-02T03:04:05+00:00","hash":"967381555c0c986d50320cba14888df39f7e97f7ed1a9b55dd2f72f34d65561b"}
{"n":2,"kind":"answered","federation":0,"round":1,"mechanism":"laplace-dp","budget":0.5,"norm":"l1","releases":\
[{"client":"0","lower":null,"upper":null,"intensity":null,"accepted":true}],"at":"2026-01-02T03:04:06+00:00",\
"hash":"b3a9c14dcffad2ab8e82b59335c0f7c7ff3d7a5b696f9486fc7e34fb1f854dca"}
"""
"""An account as it was written before runs could be reserved."""
