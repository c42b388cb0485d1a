"""A seeded federation of the embedded engine, run by Flower's simulation instead: same data, same draws, same weights.

It shows that the two engines do the same (``tests/flower/test_twin.py``), and what the transport costs
(``engines.py``, beside it). An experiment: its noise follows from the seed.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.simulation import run_simulation

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, from_dict, to_dict
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError
from equipoise.flower import Validated, guard, init_policy, protected_step
from equipoise.flower.policy import VARIABLE
from equipoise.flower.run_config import OF_A_RELEASE, PREFIX
from equipoise.mechanism.registry import get_mechanism

OF_A_WHOLE_RUN = ("delta", "clip", "sampling_rate", "rounds", "noise_schedule")


@lru_cache(maxsize=4)
def _sweep(spec: str) -> Sweep:
    """The embedded engine of a spec, for its data, partition and draws; built once per process."""
    return Sweep(*from_dict(json.loads(spec)))


def run_config(settings: Settings, federation: Federation) -> dict[str, Any]:
    """What an app would have under [tool.flwr.app.config.equipoise]."""
    plain = {name: getattr(settings.protection, name) for name in OF_A_RELEASE}
    plain |= {"mechanism": federation.mechanism, "budget": federation.budget}
    if get_mechanism(federation.mechanism).whole_run:
        gaussian = settings.for_run().protection.gaussian
        plain |= {f"gaussian.{name}": getattr(gaussian, name) for name in OF_A_WHOLE_RUN}
    result = {f"{PREFIX}{key}": "none" if value is None else value for key, value in plain.items()}
    return {key: value if isinstance(value, str | int | float) else json.dumps(value) for key, value in result.items()}


def _train(msg: Message, context: Context) -> Message:
    config = msg.content["config"]
    sweep, round_number = _sweep(str(config["spec"])), int(str(config["server-round"]))
    client = int(context.node_config["partition-id"])
    federation = sweep.federations[0]
    asking = copy.copy(context)  # run_simulation has no run config, and Flower lets nobody change one
    asking.run_config = run_config(sweep.settings, federation)
    parts = sweep.parts[federation.dataset]
    examples = _examples(sweep, parts, client, round_number)
    batch = (sweep.inputs[examples], sweep.labels[examples])
    arrays = protected_step(sweep.batched.model, batch, msg, asking, experiment_seed=federation.seed)
    metrics = MetricRecord({"num-examples": len(parts[client])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


def _examples(sweep: Sweep, parts: list[torch.Tensor], client: int, round_number: int) -> torch.Tensor:
    """All that a client has where the mechanism draws its own batch, else the engine's batch of the round."""
    if get_mechanism(sweep.federations[0].mechanism).whole_run:
        return parts[client]
    batch, sampling = sweep.settings.protection.batch, sweep.settings.training.sampling
    return sweep.draws.batches([round_number], batch, parts, sampling)[0, client]


def client_app() -> ClientApp:
    app = ClientApp(mods=[guard])
    app.train()(_train)
    return app


def _policy(federation: Federation) -> Path:
    """What may leave the simulated nodes: this federation, as an experiment."""
    budget = federation.budget
    loosest = max(budget) if isinstance(budget, list) else budget
    folder = Path(tempfile.mkdtemp(prefix="equipoise-policy-"))
    return init_policy(folder, "twin", federation.mechanism, loosest, 10**6, experiment=True)


def simulate(
    settings: Settings, federation: Federation, on_round: Callable[[int], None] | None = None
) -> dict[str, torch.Tensor]:
    """Train one federation by Flower's simulation engine; the final tensors by name."""
    if settings.protection.local_steps != 1 or settings.training.participants not in (
        None,
        settings.protection.clients,
    ):
        raise ConfigError(
            "The twin makes one local step with every client.", "Set local_steps = 1, participants = none."
        )
    spec = json.dumps(to_dict(settings, [federation]))
    sweep = _sweep(spec)
    start = sweep.batched.layout.unflatten(sweep.state.params[0])
    result: dict[str, Result] = {}

    def evaluate(round_number: int, arrays: ArrayRecord) -> None:
        if on_round is not None:
            on_round(round_number)

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=settings.protection.clients,
            min_available_nodes=settings.protection.clients,
        )
        checked = Validated(
            strategy, run_config(settings, federation), min_clients=settings.protection.clients, seeded=True
        )
        result["result"] = checked.start(
            grid, ArrayRecord(start), settings.training.rounds,
            train_config=ConfigRecord({"spec": spec}), evaluate_fn=evaluate,
        )  # fmt: skip
        if checked.refused:
            raise ConfigError(f"Replies were refused: {checked.refused}.", "The two engines disagree.")

    os.environ[VARIABLE] = str(_policy(federation))  # Ray's workers have it too
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client_app(), settings.protection.clients, backend_config=backend)
    if "result" not in result:
        raise ConfigError("Flower's simulation ended without a result.", "Its log, above, says why.")
    return dict(result["result"].arrays.to_torch_state_dict())
