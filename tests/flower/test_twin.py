"""The embedded engine and Flower do the same: seeded, same data, equal weights, for every mechanism."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.flower_twin import client_app, run_config, simulate
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, to_dict
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError
from equipoise.flower import Validated, init_policy
from equipoise.mechanism.registry import MECHANISMS
from tests.flower.messages import NODES, LocalGrid, context
from tests.helpers import single_threaded

ROOT = str(Path(__file__).parents[2])
BUDGETS = {
    "none": None,
    "pl-identical": 0.98,
    "pl-learn": 0.98,
    "ls-static": 200.0,
    "ls-learn": 200.0,
    "gs-static": 200.0,
    "gs-learn": 200.0,
    "laplace-dp": 200.0,
    "gaussian-dp": 8.0,
    "pruning": 0.1,
    "outpost": 1.25,
}
SCRIPT = """
import json, sys
from safetensors.torch import save_file
from benchmarks.flower_twin import simulate
from equipoise.engine.settings import from_dict

settings, federations = from_dict(json.loads(sys.argv[1]))
rounds = []
result = simulate(settings, federations[0], rounds.append)
assert rounds == list(range(settings.training.rounds + 1)), rounds
save_file(result, sys.argv[2])
"""


UNPROTECTED = """
import json, sys
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from equipoise.errors import FleetError
from equipoise.flower import Validated, guard

client, server, found = ClientApp(mods=[guard]), ServerApp(), {}

@client.train()
def train(msg, context):
    arrays = ArrayRecord({"w": torch.full((3,), 42.0)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)

@server.main()
def main(grid, context):
    config = {"equipoise.mechanism": "pl-learn", "equipoise.budget": 0.98}
    plain = FedAvg(fraction_evaluate=0.0)
    checked = Validated(FedAvg(fraction_evaluate=0.0), config)
    start = ArrayRecord({"w": torch.zeros(3)})
    found["bare"] = plain.start(grid, start, 1).arrays  # nothing arrives, so there is nothing to average
    try:
        checked.start(grid, start, 2)
    except FleetError as error:  # every round was void
        found["final"] = str(error)
    found["refused"] = checked.refused

run_simulation(server, client, 2)
open(sys.argv[2], "w").write(json.dumps([len(found["bare"]), found["final"], found["refused"]]))
"""


def settings(name: str, rounds: int) -> Settings:
    """Clients of different weight. Learned distortions in double precision: learning amplifies rounding without bound.

    In single precision two correct engines, which add in another order, end 3e-7 apart with one seed and 4e-2 with
    another.
    """
    precision = "float64" if MECHANISMS[name].learns else "float32"
    sizes = None if MECHANISMS[name].formal else [1.0, 2.0, 3.0, 4.0]  # whose weights the policy fixes
    return Settings.flat(rounds=rounds, sizes=sizes, dtype=precision)


def embedded(about: Settings, federation: Federation) -> dict[str, Tensor]:
    sweep = Sweep(about, [federation])
    sweep.train(about.training.rounds)
    return sweep.batched.layout.unflatten(sweep.state.params[0])


def simulated(about: Settings, federation: Federation, folder: Path) -> dict[str, Tensor]:
    return load_file(run(SCRIPT, json.dumps(to_dict(about, [federation])), folder))


def run(script: str, given: str, folder: Path) -> Path:
    """In a process of its own: Ray leaves open files behind, and what it starts must end with it."""
    target = folder / "found"
    home = {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    path = {"PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])}  # Ray's workers import it too
    process = subprocess.Popen(
        [sys.executable, "-c", script, given, str(target)],
        env={**single_threaded(), **home, **path}, cwd=folder, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-3000:]
    return target


def apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def test_every_mechanism_has_a_twin() -> None:
    assert set(BUDGETS) == set(MECHANISMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_flowers_simulation_ends_with_the_weights_of_the_embedded_engine(name: str, tmp_path: Path) -> None:
    federation = Federation("mnist", name, BUDGETS[name], seed=1)
    actual = simulated(settings(name, 5), federation, tmp_path)
    expected = embedded(settings(name, 5), federation)
    print(f"{name}: {apart(actual, expected):.1e} apart")
    assert apart(actual, expected) <= 1e-5
    begin = Sweep(settings(name, 5), [federation])
    assert apart(begin.batched.layout.unflatten(begin.state.params[0]), expected) > 1e-3, "something was learned"


@pytest.mark.slow
def test_in_rays_workers_the_guard_sends_nothing_that_was_not_protected(tmp_path: Path) -> None:
    averaged, final, refused = json.loads(run(UNPROTECTED, "", tmp_path).read_text())
    assert averaged == 0
    assert "No round was accepted, of 2 that were asked for: the model is as it was." in final
    assert {round_number: len(reasons) for round_number, reasons in refused.items()} == {"1": 2, "2": 2}
    for reasons in refused.values():
        assert all("The node refused or failed." in reason for reason in reasons.values())


@pytest.mark.parametrize("name", ["none", "pl-learn", "gs-learn", "gaussian-dp"])
def test_the_same_without_rays_processes(name: str, tmp_path: Path) -> None:
    """Client app, guard, protect, Validated and FedAvg as in the simulation; only the transport is missing."""
    about, federation = settings(name, 2), Federation("mnist", name, BUDGETS[name], seed=4)
    policy = init_policy(tmp_path / "node", "twin", name, BUDGETS[name], 100, experiment=True)
    own = {"equipoise.policy": str(policy)}
    contexts = {node: context({"lr": 0.1}, {"partition-id": place, **own}) for place, node in enumerate(NODES)}
    app = client_app()

    def answer(message: Message) -> list[Message]:
        return [app(message, contexts[message.metadata.dst_node_id])]

    begin = Sweep(about, [federation])
    start = ArrayRecord(begin.batched.layout.unflatten(begin.state.params[0]))
    spec = ConfigRecord({"spec": json.dumps(to_dict(about, [federation]))})
    checked = Validated(FedAvg(fraction_evaluate=0.0), run_config(about, federation), min_clients=4, seeded=True)
    result = checked.start(LocalGrid(answer), start, about.training.rounds, train_config=spec)
    assert not checked.refused
    assert apart(dict(result.arrays.to_torch_state_dict()), embedded(about, federation)) <= 1e-5
    other = embedded(about, Federation("mnist", name, BUDGETS[name], seed=5))
    assert apart(other, embedded(about, federation)) > 1e-3


@pytest.mark.parametrize("changed", [{"local_steps": 2}, {"participants": 2}])
def test_what_the_twin_cannot_do_is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="one local step with every client"):
        simulate(Settings.flat(rounds=1, **changed), Federation("mnist", "none"))


def test_the_twin_passes_on_every_setting_of_a_release() -> None:
    about = Settings.flat(rounds=1, clip=None, gamma=[0.1, 0.2, 0.3, 0.4], steps=3)
    result = run_config(about, Federation("mnist", "pl-learn", [0.96, 0.97, 0.98, 0.98]))
    assert result["equipoise.clip"] == "none"
    assert json.loads(result["equipoise.gamma"]) == [0.1, 0.2, 0.3, 0.4]
    assert json.loads(result["equipoise.budget"]) == [0.96, 0.97, 0.98, 0.98]
    assert Validated(FedAvg(), result).terms.settings.gamma == [0.1, 0.2, 0.3, 0.4]
