"""Any model: a round of the engine against a plain PyTorch loop, in time and memory, in one run.

    python benchmarks/models.py --out benchmarks/results_models.json [--device cuda] [--seconds 4] [--only resnet-gn]

Rows that the file has already, and that are not measured again, stay as they are, each with its commit.

Static noise and learned distortion: the plain loop is that of examples/basic_flow.py, which does the same work, replica
after replica: draws, noise, gradients, the learner's steps, the losses before and after, the mean. ``gaussian-dp``: the
same step by Opacus, client after client, on a CPU, where Opacus is installed. Both sides take turns, each in a process
of its own, as ours tells the C library to keep freed memory; a ratio is that of the plain loop's time to ours, above 1
where we are faster, with a bootstrap interval over the turns. Memory is what a side takes beyond what it starts with,
each in a process of its own; ours with the chunk of clients that the engine chooses, and with one client at a time, as
the plain loop has it. A client of ``gaussian-dp`` has as many records as the batch, all in every round. Learned
distortion has M = 10 steps, and 2 for the model of 2.8 million parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import basic_flow

from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment
from equipoise.models.bundled import build
from equipoise.models.residual import ResNetGN

Round = Callable[..., object]  # of a number of rounds
VOCABULARY, LENGTH = 1290, 24
MODELS: dict[str, tuple[str, Callable[[], nn.Module], int]] = {  # kind of data, model, M
    "lenet-zhu": ("picture", lambda: build("lenet-zhu", (1, 28, 28), 10), 10),
    "mlp": ("picture", lambda: build("mlp", (1, 28, 28), 10), 10),
    "resnet-gn": ("colour", lambda: build("resnet-gn", (3, 32, 32), 10), 10),
    "resnet-gn 2.8M": ("colour", lambda: ResNetGN((3, 32, 32), 10, width=96), 2),
    "transformer": ("tokens", lambda: build("transformer", (LENGTH,), 4, VOCABULARY), 10),
    "lstm": ("tokens", lambda: build("lstm", (LENGTH,), 4, VOCABULARY), 10),
}
MECHANISMS = {"pl-identical": 0.98, "pl-learn": 0.98, "gaussian-dp": 4.0}
TURN, LONGEST = 0.15, 20
"""Seconds and rounds of a turn: training draws its tables for up to 50 rounds at once."""
SCALE = 7.99975  # the norm that a PL budget of 0.98 asks for


def data_of(kind: str, records: int) -> Dataset:
    draw, some = torch.Generator().manual_seed(1), 64
    classes = 4 if kind == "tokens" else 10

    def pair(count: int) -> tuple[Tensor, Tensor]:
        shapes = {"picture": (1, 28, 28), "colour": (3, 32, 32)}
        labels = torch.arange(count) % classes
        if kind == "tokens":
            return torch.randint(1, VOCABULARY, (count, LENGTH), generator=draw), labels
        return torch.randn(count, *shapes[kind], generator=draw), labels

    extra: dict[str, Any] = {"vocabulary": VOCABULARY} if kind == "tokens" else {}
    return from_tensors(pair(records), pair(some), pair(some), classes=classes, name=kind, **extra)


# -- the two sides -------------------------------------------------------------------------------------------------


def ours(case: dict[str, Any], device: str, chunk: int = 0) -> Round:
    kind, make, steps = MODELS[case["model"]]
    torch.manual_seed(0)
    private = case["mechanism"] == "gaussian-dp"
    data = data_of(kind, case["clients"] * (case["batch"] if private else 64))
    settings = Settings.flat(
        rounds=20_000, clients=case["clients"], batch=4 if private else case["batch"], steps=steps, device=device,
        snapshots=[], evaluate_every=20_000, eta=0.1, chunk=chunk,
        **({"gaussian": {"rounds": 20_000, "divisor": case["batch"]}} if private else {}),
    )  # fmt: skip
    federation = Federation("made", case["mechanism"], MECHANISMS[case["mechanism"]])
    sweep = Sweep(settings, [federation], {"made": data}, make())
    case["route"] = sweep.batched.route
    length = 10 if device == "cuda" else 1

    def step(calls: int = 1) -> None:
        sweep.train(sweep.state.round + calls * length)

    step.rounds = length  # type: ignore[attr-defined]
    return step


def plain(case: dict[str, Any], device: str) -> Round:
    kind, make, basic_flow.M = MODELS[case["model"]]
    torch.manual_seed(0)
    data, model = data_of(kind, case["clients"] * 64).train, make().to(device)
    inputs, labels = data.inputs.to(device), data.labels.to(device)
    state = {"weights": [p.detach().clone() for p in model.parameters()]}
    unit = torch.distributions.Laplace(torch.zeros((), device=device), torch.ones((), device=device))

    def one() -> None:
        releases = []
        for client in range(case["clients"]):
            mine = (64 * client + torch.randperm(64)[: case["batch"]]).to(device)
            noise = [unit.sample(w.shape) for w in state["weights"]]
            batch = inputs[mine], labels[mine]
            releases.append(basic_flow.client(model, state["weights"], *batch, noise, case["mechanism"], SCALE)[0])
        state["weights"] = basic_flow.server(releases)

    return several(one)


def several(one: Callable[[], None]) -> Round:
    def step(calls: int = 1) -> None:
        for _ in range(calls):
            one()

    return step


def opacus(case: dict[str, Any], device: str) -> Round:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    kind, make, _ = MODELS[case["model"]]
    torch.manual_seed(0)
    data, loss, count = data_of(kind, case["clients"] * case["batch"]).train, nn.CrossEntropyLoss(), case["batch"]
    model = _for_opacus(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(data.inputs[:count], data.labels[:count]), batch_size=count)
    module, optimizer, _ = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    start = [p.detach().clone() for p in model.parameters()]

    def one() -> None:
        releases = []
        for client in range(case["clients"]):
            with torch.no_grad():
                for own, value in zip(model.parameters(), start, strict=True):
                    own.copy_(value)
            rows = slice(client * count, (client + 1) * count)
            optimizer.zero_grad()
            loss(module(data.inputs[rows]), data.labels[rows]).backward()
            optimizer.step()
            releases.append([p.detach().clone() for p in model.parameters()])
        start[:] = basic_flow.server(releases)

    return several(one)


def _for_opacus(model: nn.Module) -> nn.Module:
    """Recurrent layers by Opacus's own."""
    from opacus.layers import DPLSTM

    for name, part in list(model.named_children()):
        if isinstance(part, nn.LSTM):
            setattr(model, name, DPLSTM(part.input_size, part.hidden_size, batch_first=part.batch_first))
    return model


# -- measuring -----------------------------------------------------------------------------------------------------


class Apart:
    """A process of its own, forked before any thread was started, that answers one question after the other."""

    def __init__(self, answers: Callable[[], Iterator[Any]]) -> None:
        (asked, self._ask), (self._answer, answer) = os.pipe(), os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._ask)
            os.close(self._answer)
            with os.fdopen(asked, "rb") as questions, os.fdopen(answer, "wb") as out:
                try:
                    values = answers()
                    while questions.readline() == b"next\n":
                        out.write(json.dumps(next(values)).encode() + b"\n")
                        out.flush()
                except Exception as error:
                    out.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}).encode() + b"\n")
            os._exit(0)
        os.close(asked)
        os.close(answer)
        self._lines = os.fdopen(self._answer, "rb")

    def ask(self) -> None:
        os.write(self._ask, b"next\n")

    def answer(self) -> Any:
        line = self._lines.readline()
        value = json.loads(line) if line else {"error": "ended without an answer"}
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(value["error"])
        return value

    def end(self) -> None:
        with suppress(BrokenPipeError):  # it has ended with an error
            os.write(self._ask, b"end\n")  # closing would not tell it: processes forked later have this end, too
        os.close(self._ask)
        self._lines.close()
        os.waitpid(self._child, 0)


def apart(*tasks: Callable[[], Any]) -> list[Any]:
    """What each task returns, side by side."""
    children = [Apart(partial(once, task)) for task in tasks]
    for child in children:
        child.ask()
    try:
        return [child.answer() for child in children]
    finally:
        for child in children:
            child.end()


def once(task: Callable[[], Any]) -> Iterator[Any]:
    yield task()


def turns(side: Callable[..., Round], case: dict[str, Any], device: str) -> Iterator[Any]:
    """First the route; then, for every turn, the seconds of a round: of some rounds if they are short."""
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    step = side(case, device)
    seconds(step, device)
    rounds = max(1, min(LONGEST, int(TURN / seconds(step, device)))) if device == "cpu" else 1
    yield case.get("route")
    while True:
        yield seconds(step, device, rounds)


def seconds(step: Round, device: str, calls: int = 1) -> float:
    started = time.perf_counter()
    step(calls)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / calls / getattr(step, "rounds", 1)


def timed(case: dict[str, Any], device: str, limit: float, least: int) -> dict[str, Any]:
    other = opacus if case["mechanism"] == "gaussian-dp" else plain
    sides = {name: Apart(partial(turns, side, dict(case), device)) for name, side in (("ours", ours), ("plain", other))}
    times: dict[str, list[float]] = {name: [] for name in sides}

    def turn(name: str) -> Any:
        sides[name].ask()
        return sides[name].answer()

    try:
        if device == "cuda":  # the other side starts meanwhile; on a CPU it would be in the way of the first rounds
            for side in sides.values():
                side.ask()
            route, _ = [side.answer() for side in sides.values()]
        else:
            route, _ = [turn(name) for name in sides]
        end = time.perf_counter() + limit
        while len(times["ours"]) < least or (time.perf_counter() < end and len(times["ours"]) < 200):
            for name in sides:
                times[name].append(turn(name))
    except RuntimeError as error:
        return {"error": str(error)}
    finally:
        for side in sides.values():
            side.end()
    return {"route": route, "turns": len(times["ours"]), **summary(times["ours"], times["plain"])}


def summary(mine: list[float], theirs: list[float]) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.tensor(mine, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
    rows = torch.randint(len(a), (2000, len(a)), generator=draw)
    ratios = b[rows].median(1).values / a[rows].median(1).values
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return {
        "ms": 1e3 * median(mine), "plain_ms": 1e3 * median(theirs), "ratio": median(theirs) / median(mine),
        "ratio_low": low, "ratio_high": high,
    }  # fmt: skip


def memory(case: dict[str, Any], device: str, side: Callable[..., Round]) -> float:
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = side(case, device)
    for _ in range(2):
        step()
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def measured(case: dict[str, Any], device: str, limit: float, least: int) -> dict[str, Any]:
    row = {**case, **timed(dict(case), device, limit, least)}
    if "error" in row:
        return row
    other = opacus if case["mechanism"] == "gaussian-dp" else plain
    sides = {"memory_mib": ours, "one_client_mib": partial(ours, chunk=1), "plain_memory_mib": other}
    tasks = [partial(memory, dict(case), device, side) for side in sides.values()]
    taken = apart(*tasks) if device == "cuda" else [apart(task)[0] for task in tasks]
    return row | dict(zip(sides, taken, strict=True))


def cases(device: str) -> list[dict[str, Any]]:
    mechanisms = [name for name in MECHANISMS if device == "cpu" or name != "gaussian-dp"]
    return [
        {"model": model, "mechanism": mechanism, "batch": batch, "clients": clients}
        for model in MODELS for mechanism in mechanisms for batch in (4, 32) for clients in (4, 16)
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--least", type=int, default=3)
    parser.add_argument("--only", help="models and mechanisms, with commas; all unless given")
    parser.add_argument("--commit", help="where git cannot tell it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # processes are forked from this one, and threads do not outlive that
    warnings.simplefilter("ignore")  # Opacus's, on its noise and its hooks
    known = json.loads(options.out.read_text())["rows"] if options.out and options.out.exists() else []
    rows = {key(row): row for row in known}
    commit = (
        options.commit or subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    )
    only = set(options.only.split(",")) if options.only else set()
    models, mechanisms = (only & {*known} or {*known} for known in (MODELS, MECHANISMS))
    for case in cases(options.device):
        if case["model"] not in models or case["mechanism"] not in mechanisms:
            continue
        row = measured(case, options.device, options.seconds, options.least) | {"commit": commit}
        rows[key(row)] = row
        what = f"{row['model']:>15} {row['mechanism']:>12} batch {row['batch']:>2} clients {row['clients']:>2}"
        told = row.get("error") or (
            f"{row['ms']:9.2f} ms, plain {row['plain_ms']:9.2f}, {row['ratio']:5.2f}x ({row['ratio_low']:.2f} to "
            f"{row['ratio_high']:.2f}) by {row['route']}; {row['memory_mib']:.0f}, {row['one_client_mib']:.0f} and "
            f"{row['plain_memory_mib']:.0f} MiB"
        )
        print(what, told, flush=True)
        if options.out:
            write(options, [rows[key(one)] for one in cases(options.device) if key(one) in rows])


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["mechanism"], row["batch"], row["clients"]


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    result = {
        "command": f"python benchmarks/models.py --device {options.device} --out {options.out.name}",
        "seconds": options.seconds,
        "rows": rows,
        "environment": apart(partial(environment, options.device))[0],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
