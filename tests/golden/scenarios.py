"""Small seeded computations that together pass through every part of the package; ``test_golden.py`` compares them.

Each scenario returns plain values: numbers by key, and SHA-256 of tensors. Everything runs on one CPU thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import (
    Attacker,
    AuditOptions,
    LeNetZhu,
    Settings,
    Update,
    audit,
    audit_run,
    bounds_run,
    protect,
    protected_step,
)
from equipoise.attack.descent import Search
from equipoise.attack.dlg import SEARCH as DLG
from equipoise.attack.dlg import dlg, idlg
from equipoise.attack.invgrad import invgrad
from equipoise.attack.likelihood import SEARCH as MAP
from equipoise.attack.likelihood import likelihood
from equipoise.attack.simulate import noise, respond
from equipoise.attack.unrolled import unrolled
from equipoise.attack.view import Server, View
from equipoise.auditing.results import REPORTED
from equipoise.auditing.store import unpacked
from equipoise.bounds.options import BoundsOptions
from equipoise.compute import compute, compute_audit, compute_multi_round
from equipoise.engine.federation import Federation
from equipoise.engine.settings import to_dict
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.reproduction.artefacts.registry import needs
from equipoise.reproduction.job import run as run_job
from equipoise.reproduction.plan import Scale, jobs
from equipoise.runs.checkpoint import load_checkpoint
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.audit_helpers import EFFORT, settings_for, write_pictures
from tests.helpers import write_dataset

BUDGETS = {
    "none": None, "pl-identical": 0.98, "pl-learn": 0.98, "ls-static": 200.0, "ls-learn": 200.0, "gs-static": 200.0,
    "gs-learn": 200.0, "laplace-dp": 100.0,
}  # fmt: skip


def sha256(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {
        name: hashlib.sha256(t.detach().cpu().contiguous().numpy().tobytes()).hexdigest() for name, t in tensors.items()
    }


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All numbers, flags and hashes below a value, by path; words are left out, machine and time too."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("environment", "seconds", "spec", "version", "commit"):
                yield from numbers(item, f"{path}/{Path(key).name}")  # a dataset is called by its folder
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from numbers(item, f"{path}/{i}")
    elif isinstance(value, bool | int | float) or value is None:
        yield path, value if not isinstance(value, float) or np.isfinite(value) else repr(value)
    elif isinstance(value, str) and len(value) == 64:
        yield path, value


# -- runs ----------------------------------------------------------------------------------------------------------


def run_folder(
    folder: Path, overrides: dict[str, Any], blocks: list[dict[str, Any]], stop: int | None = None
) -> dict[str, Any]:
    """Everything that a run writes; with ``stop`` it is interrupted after that round, and taken up again."""
    config = resolve(overrides={**overrides, "sweep": blocks, "threads": 1})

    def interrupt(round_number: int) -> None:
        if round_number == stop:
            raise KeyboardInterrupt

    if stop is not None:
        with contextlib.suppress(KeyboardInterrupt):
            Run(folder, config).execute(on_round=interrupt)
    result = Run(folder, config).execute()
    checkpoint = load_checkpoint(folder / "checkpoint")
    assert checkpoint is not None
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    snapshots = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.safetensors"))
        if path.parent.name != "checkpoint"
    }  # fmt: skip
    return {"result": result, "metrics": rows, "checkpoint": sha256(checkpoint[0]), "snapshots": snapshots}


def every_mechanism(folder: Path) -> dict[str, Any]:
    blocks = [{"mechanisms": [name], "budgets": [] if budget is None else [budget]} for name, budget in BUDGETS.items()]
    return run_folder(folder, {"rounds": 3, "snapshots": [0, 1]}, blocks)


def two_datasets_two_seeds(folder: Path) -> dict[str, Any]:
    block = {
        "datasets": ["mnist", "fmnist"],
        "mechanisms": ["pl-learn", "none"],
        "budgets": [0.96, 0.99],
        "seeds": [1, 2],
    }
    return run_folder(folder, {"rounds": 3, "snapshots": []}, [block])


def schedules(folder: Path) -> dict[str, Any]:
    """Budgets, rates and coefficients that change by client and round; some clients a round; a damped server."""
    data = write_dataset(folder / "data")
    overrides = {
        "rounds": 12, "clients": 4, "participants": 3, "batch": 3, "evaluate_every": 5, "full_every": 6,
        "expected_draws": 2, "server_rate": "auto", "partition": "dirichlet", "dirichlet": 5.0, "chunk": 2,
        "gamma": {"rounds": [1, 6], "values": [0.1, [0.1, 0.05, 0.2, 0.1]]}, "negative_norm": [1e-5, 1e-4, 1e-3, 0.0],
    }  # fmt: skip
    budget = {"rounds": [1, 4], "values": [0.96, [0.97, 0.98, 0.99, 0.995]]}
    blocks = [
        {"datasets": [str(data)], "mechanisms": ["pl-learn", "pl-identical"], "budgets": [budget], "seeds": [3, 4]},
        {
            "datasets": [str(data)],
            "mechanisms": ["ls-learn", "gs-static"],
            "budgets": [[80, 200, 400, 800]],
            "seeds": [3],
        },
    ]
    return run_folder(folder / "run", overrides, blocks)


def local_steps(folder: Path) -> dict[str, Any]:
    """Several local steps, passes over the data, a low clip, another model, float64; interrupted and taken up again."""
    data = write_dataset(folder / "data")
    overrides = {
        "rounds": 60, "local_steps": 2, "batch": 2, "sampling": "passes", "clip": 0.5, "clip_norm": "l1",
        "model": "mlp", "init": "torch", "dtype": "float64", "evaluate_every": 25, "sizes": [1, 1, 1, 2],
        "server_rate": 0.5, "factor": 3.0, "snapshots": [0, 50],
    }  # fmt: skip
    blocks = [{"datasets": [str(data)], "mechanisms": ["none", "ls-learn", "gs-learn", "pl-learn"], "budgets": [0.9]}]
    return run_folder(folder / "run", overrides, blocks, stop=55)


def whole_runs(folder: Path) -> dict[str, Any]:
    """Budgets of whole runs: all records and a linear head, interrupted; a Poisson sample, every record by itself."""
    data = str(write_dataset(folder / "data"))
    block = {"datasets": [data], "mechanisms": ["gaussian-dp"], "budgets": [8.0, [2.0, 4.0, 8.0, 16.0]]}
    linear = {"model": "scatter-linear", "rounds": 4, "gaussian.divisor": 16}
    sampled = {
        "model": "lenet-tanh", "rounds": 3, "gaussian.sampling_rate": 0.5, "gaussian.divisor": 16, "gaussian.clip": 0.7,
        "gaussian.noise_schedule": {"rounds": [1, 3], "values": [1.0, 0.8]}, "participants": 3,
    }  # fmt: skip
    return {
        "linear": run_folder(folder / "linear", linear, [block], stop=2),
        "sampled": run_folder(folder / "sampled", sampled, [{**block, "budgets": [8.0]}]),
    }


def limited(folder: Path) -> dict[str, Any]:
    """A limit on releases ends a run early."""
    from equipoise.errors import LimitError

    data = write_dataset(folder / "data")
    try:
        run_folder(
            folder / "run", {"rounds": 9, "participants": 2, "release_limit": 3, "evaluate_every": 2},
            [{"datasets": [str(data)], "mechanisms": ["pl-learn"], "budgets": [0.98], "seeds": [1, 2]}],
        )  # fmt: skip
    except LimitError:
        return dict(json.loads((folder / "run" / "result.json").read_text()))
    raise AssertionError("the limit did not end the run")


def computed(folder: Path) -> dict[str, Any]:
    settings = Settings.flat(rounds=3, evaluate_every=1, threads=1)
    spec = to_dict(settings, [Federation("mnist", "pl-learn", 0.98), Federation("mnist", "ls-static", 200.0, 2)])
    result = compute(spec, folder)
    with np.load(folder / "curves.npz") as curves:
        return {"result": result, "curves": {name: curves[name].tolist() for name in curves.files}}


# -- one release ---------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Outside the hand-written layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.last((x + self.second(x)).mean((2, 3)))


def seeded(model: Callable[[], nn.Module], seed: int = 5) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model()


def releases(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(9)
    for label, model, shape in (("lenet", seeded(LeNetZhu), (1, 28, 28)), ("residual", seeded(Residual), (1, 8, 8))):
        x, y = torch.randn(4, *shape, generator=generator), torch.tensor([0, 1, 2, 3])
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        local = {name: tensor + 0.01 for name, tensor in start.items()}
        for name, budget in BUDGETS.items():
            sent = protected_step(model, start, (x, y), name, budget, client=2, round_number=7, experiment_seed=11)
            result[f"{label} {name}"] = {"parameters": sha256(sent.parameters), "record": sent.record}
            if name != "laplace-dp":
                model.load_state_dict(local)
                sent = protect(model, start, (x, y), name, budget, experiment_seed=11)
                model.load_state_dict(start)
                result[f"{label} {name} given"] = {"parameters": sha256(sent.parameters), "record": sent.record}
    return result


# -- audits --------------------------------------------------------------------------------------------------------

ATTACKS = ["invgrad", "lti", "matched", "membership", "labels"]


def audited_run(folder: Path) -> dict[str, Any]:
    """Several mechanisms at two rounds, with schedules: what holds in round t + 1 matters."""
    data = write_pictures(folder / "data")
    budget = {"rounds": [1, 3], "values": [0.98, 0.96]}
    blocks = [
        {"datasets": [str(data)], "mechanisms": ["none", "pl-identical", "pl-learn"], "budgets": [budget]},
        {"datasets": [str(data)], "mechanisms": ["gs-learn"], "budgets": [50.0]},
    ]
    run_folder(folder / "run", settings_for(), blocks)
    options = AuditOptions(attacks=ATTACKS, releases=4, **{**EFFORT, "condition_on": "best"})
    return {"public": audit_run(folder / "run", options, snapshots=[0, 2]).content}


def audited_private(folder: Path) -> dict[str, Any]:
    data = write_pictures(folder / "data")
    blocks = [{"datasets": [str(data)], "mechanisms": ["pl-learn", "laplace-dp"], "budgets": [0.9]}]
    run_folder(folder / "run", settings_for(), blocks)
    options = AuditOptions(attacks=["invgrad", "matched", "membership"], releases=4, **EFFORT)
    result = audit_run(folder / "run", options, snapshots=[3], private=True, multi_rounds=3)
    return {**result.content, "picture": hashlib.sha256(result.picture().encode()).hexdigest()}


def audited_update(folder: Path) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    model = seeded(lambda: MLP((1, 6, 6), 3, 8))
    x, y = torch.rand(4, 1, 6, 6, generator=generator), torch.tensor([0, 2, 1, 2])
    public = torch.rand(60, 1, 6, 6, generator=generator), torch.arange(60) % 3
    start = model.state_dict()
    sent = protected_step(model, start, (x, y), "pl-learn", 0.98, experiment_seed=1)
    options = AuditOptions(attacks=ATTACKS, **EFFORT)
    update, attacker = Update(model, start, sent.parameters, mechanism="pl-learn", budget=0.98), Attacker(public=public)
    scored = audit(update, truth=(x, y), attacker=attacker, options=options)
    blind = audit(
        update, attacker=replace(attacker, examples=4), options=AuditOptions(attacks=["invgrad", "lti"], **EFFORT)
    )
    plain = protected_step(model, start, (x[:2], y[:2]), "none", experiment_seed=1)
    classic = audit(
        Update(model, start, plain.parameters), truth=(x[:2], y[:2]), attacker=attacker,
        options=AuditOptions(attacks=["dlg", "idlg", "likelihood", "unrolled"], **EFFORT),
    )  # fmt: skip
    images = sha256(scored.reconstructions) | sha256(classic.reconstructions)
    return {"scored": scored.content, "blind": blind.content, "classic": classic.content, "images": images}


def inverted(folder: Path) -> dict[str, Any]:
    """The attacks that descend on a cost, a few steps each, against every mechanism."""
    generator = torch.Generator().manual_seed(4)
    model = seeded(lambda: MLP((1, 6, 6), 3, 8))
    x, y = torch.rand(3, 4, 1, 6, 6, generator=generator), torch.tensor([[0, 1, 2, 2]] * 3)
    batched = Batched(model)
    start = batched.layout.flatten(dict(model.named_parameters())).expand(3, -1)
    outcome: dict[str, Any] = {}
    for name, budget in BUDGETS.items():
        server = Server(batched, (1, 6, 6), 3, 4, protection=ProtectionSettings(steps=3).at(name, budget, 1))
        view = View(start, respond(server, start, x, y, noise(server, (1, 2), torch.arange(3), start)), y)
        for attack, effort in ((invgrad, Search()), (dlg, DLG), (idlg, DLG), (likelihood, MAP), (unrolled, MAP)):
            result = attack(server, view, replace(effort, iterations=3, restarts=2))
            outcome[f"{name} {attack.__name__}"] = {"cost": result.cost.tolist(), **sha256({"images": result.images})}
    return outcome


def computed_audit(folder: Path) -> dict[str, Any]:
    """The bundled data and the paper's model."""
    settings = Settings.flat(rounds=2, threads=1)
    spec = to_dict(settings, [Federation("mnist", "pl-learn", 0.98)])
    effort = {**EFFORT, "samples": 40, "candidates": 20, "anchors": 2, "around": 8, "tuning": 8, "trials": 8}
    spec["audit"] = {
        "snapshots": [2],
        "attacks": ["invgrad", "lti", "matched", "membership", "labels"],
        "releases": 6,
    } | effort
    result = compute_audit(spec, folder)
    outcomes = unpacked((folder / "audit.npz").read_bytes()).outcomes
    values = {
        f"{place}/{name}": array.astype(np.float32).tolist()
        for place, one in enumerate(outcomes) for name, array in one.values.items() if name in REPORTED
    }  # fmt: skip
    return {"result": result, "values": values}


def combined(folder: Path) -> dict[str, Any]:
    spec = to_dict(
        Settings.flat(rounds=3, threads=1),
        [Federation("mnist", "pl-learn", 0.98), Federation("mnist", "ls-static", 200.0)],
    )
    spec["multi_round"] = {"rounds": 3, "examples": 4, "decoys": 9, "around": 8}
    return compute_multi_round(spec, folder)


# -- bounds, search, reproduction ----------------------------------------------------------------------------------


def bounded(folder: Path) -> dict[str, Any]:
    data = write_pictures(folder / "data")
    blocks = [{"datasets": [str(data)], "mechanisms": ["none", "pl-learn", "ls-learn"], "budgets": [0.98]}]
    run_folder(folder / "run", settings_for(init="uniform"), blocks)
    options = BoundsOptions(subproblems=4, repeats=3, samples=4, examples=16, power=3, short=2, targets=2, iterations=4)
    return bounds_run(folder / "run", options).content


def reproduced(folder: Path) -> dict[str, Any]:
    """The measurements of the reproduction, on a scale that says nothing."""
    scale = Scale(
        name="golden", seeds=(1,), rounds=3, evaluate_every=3, curve_every=2, gradient_every=2, full_every=2,
        iterations=2, attacked=1, pictured=1, inner_steps=(1,), inner_rates=(0.01,), baselines=True,
    )  # fmt: skip
    wanted = needs(["clients", "layers", "reconstructions", "stepwise", "gradient-norm"], scale)
    (job,) = [one for one in jobs(wanted, scale, "cpu", None) if one["group"] == "paper"]
    keep = [i for i, fed in enumerate(job["federations"]) if fed["dataset"] == "fmnist"]
    job = {
        **job,
        "name": "golden",
        "federations": [job["federations"][i] for i in keep],
        "measures": [sorted(job["measures"][i]) + ["inversion"] * (i == keep[0]) for i in keep],
    }
    result = json.loads(run_job(job, folder).read_text())
    for row in [*result["federations"], result]:
        for key in ("pictures", "originals"):
            if key in row:
                row[key] = hashlib.sha256(json.dumps(row[key], sort_keys=True).encode()).hexdigest()
    del result["settings"], result["scale"], result["digest"]
    return dict(result)


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    scenario.__name__: scenario
    for scenario in (
        every_mechanism, two_datasets_two_seeds, schedules, local_steps, whole_runs, limited, computed, releases,
        audited_run, audited_private, audited_update, inverted, computed_audit, combined, bounded, reproduced,
    )
}  # fmt: skip
