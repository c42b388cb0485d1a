"""Real SuperLink and SuperNode processes train an app with ``protect``; nodes are killed, misbehave, and come back.

The app is that of tests/flower/protect_app with small patches: clients also write their weights to files beside the
node, and the server keeps what it receives, so that the test can compare what neither side knows alone.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from equipoise.flower import init_policy
from equipoise.flower.client_guard import REFUSED
from equipoise.flower.fleet import Fleet
from equipoise.flower.new_app import TEMPLATE, new_app
from equipoise.flower.processes import marked
from equipoise.ledger.ledger import verify
from equipoise.mechanism.budget import LeakageBudget
from equipoise.runs.metrics_file import read_rows as rows
from tests.flower.policies import PROTECT_APP

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="stray processes are found by /proc, which Linux has"
    ),
]

HONEST, KILLED, UNPROTECTED, HOSTILE = (0, 1), 2, 3, 4
ROUNDS = 3
MECHANISM, BUDGET = "pl-identical", 0.98
PATIENCE = 120.0

PROTECT = "    arrays = protect(model, batches, msg, context)  # in place of ArrayRecord(model.state_dict())\n"
APP = "app = ClientApp(mods=[guard])  # nothing leaves that protect did not make for the same message\n"
CLIENT = """
    import time
    from pathlib import Path
    from flwr.app import ArrayRecord
    from safetensors.torch import save_file

    number, when = node["partition-id"], msg.content.config_records["config"]["server-round"]
    arrays = ArrayRecord(model.state_dict()) if number == UNPROTECTED else protect(model, batches, msg, context)
    both = {f"local/{name}": tensor for name, tensor in model.state_dict().items()}
    both |= {f"sent/{name}": tensor for name, tensor in arrays.to_torch_state_dict().items()}
    place = Path("FOLDER") / f"{when}-{number}-{time.time_ns()}"
    save_file(both, place.with_suffix(".partial"))
    place.with_suffix(".partial").rename(place.with_suffix(".safetensors"))
"""
MODS = """
import numpy as np
from flwr.app import Array, ArrayRecord


def corrupt(msg, context, call_next):
    # outside the guard: it changes what the guard has let through, and leaves the honest record in place
    reply = call_next(msg, context)
    if context.node_config["partition-id"] == HOSTILE:
        when, arrays = msg.content.config_records["config"]["server-round"], reply.content.array_records["arrays"]
        if when == 1:
            arrays["fc2.bias"] = Array(np.full(10, np.nan, dtype=np.float32))
        elif when == 2:
            arrays["fc2.bias"] = Array(np.ones(1, dtype=np.float32))
        else:
            reply.content.metric_records["metrics"]["num-examples"] = 10**12
    return reply


app = ClientApp(mods=[corrupt, guard])
"""
SERVER = """
class Kept(Validated):
    def aggregate_train(self, server_round, replies):
        import json
        from pathlib import Path
        from safetensors.torch import save_file

        replies = list(replies)
        for message in replies:
            place = Path("FOLDER") / f"{self._past + server_round}-{message.metadata.src_node_id}"
            if message.has_content():
                save_file(message.content.array_records["arrays"].to_torch_state_dict(), f"{place}.safetensors")
                place.with_suffix(".json").write_text(json.dumps(dict(message.content.metric_records["metrics"])))
        return super().aggregate_train(server_round, replies)


app = ServerApp()
"""


def patched(folder: Path, old: str, new: str) -> None:
    changed = [path for path in folder.rglob("*.py") if old in path.read_text()]
    assert len(changed) == 1, f"the template no longer holds {old!r}"
    changed[0].write_text(changed[0].read_text().replace(old, new))


def patched_app(folder: Path) -> Path:
    """The template, whose clients and server write what they see; the roles follow the partition id."""
    app, private, received = folder / "test-app", folder / "private", folder / "received"
    new_app(app, PROTECT_APP)
    for place in (private, received):
        place.mkdir()
    roles = {"UNPROTECTED": str(UNPROTECTED), "HOSTILE": str(HOSTILE)}
    client, mods = CLIENT.replace("FOLDER", str(private)), MODS
    for name, number in roles.items():
        client, mods = client.replace(name, number), mods.replace(name, number)
    patched(app, PROTECT, client)
    patched(app, APP, mods)
    patched(app, "app = ServerApp()\n", SERVER.replace("FOLDER", str(received)))
    patched(app, "strategy = Validated(", "strategy = Kept(")
    return app


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE} s"
        time.sleep(0.2)


def asked(run: Path, round_number: int) -> int:
    """How often clients were asked for a round, by the ledger."""
    path = run / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return sum(entry["kind"] == "asked" and entry["round"] == round_number for entry in entries)


def own_ledger(folder: Path) -> Callable[[int], dict[str, str]]:
    """Every node counts its own releases, with the exact intensities, which the server is told to two digits."""

    def policy(number: int) -> dict[str, str]:
        own = folder / f"node-{number}"
        if not own.exists():
            init_policy(own, f"data-{number}", MECHANISM, BUDGET)
        return {"equipoise.policy": str(own / "policy.toml")}

    return policy


def processes_with(home: Path) -> list[str]:
    """Command lines of processes whose environment or command names the fleet's folder."""
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(home).encode() in text:
            results.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return results


@dataclass(frozen=True)
class Seen:
    """What a deployment left."""

    folder: Path
    run: Path
    ids: dict[int, int]
    homes: list[Path]

    def result(self) -> dict[str, Any]:
        (outcome,) = json.loads((self.run / "result.json").read_text())["federations"]
        return dict(outcome)

    def received(self) -> dict[tuple[int, int], tuple[dict[str, Tensor], dict[str, float]]]:
        """Arrays and metrics of what reached the server, by round and partition id."""
        numbers = {str(node): number for number, node in self.ids.items()}
        result = {}
        for path in (self.folder / "received").glob("*.safetensors"):
            round_number, node = path.stem.split("-")
            result[int(round_number), numbers[node]] = (
                load_file(path),
                json.loads(path.with_suffix(".json").read_text()),
            )
        return result

    def private(self) -> dict[tuple[int, int, int], tuple[Tensor, Tensor]]:
        """Local and released weights of every training on a node, by round, partition id and time."""
        result = {}
        for path in (self.folder / "private").glob("*.safetensors"):
            round_number, number, at = map(int, path.stem.split("-"))
            result[round_number, number, at] = flat(part(path, "local/")), flat(part(path, "sent/"))
        return result

    def own(self, number: int) -> list[tuple[int, float]]:
        """Round and intensity of every release that a node's own ledger holds."""
        path = self.folder / f"node-{number}" / "ledger.jsonl"
        verify(path)
        entries = [json.loads(line) for line in path.read_text().splitlines()][1:]
        return [(entry["round"], release["intensity"]) for entry in entries for release in entry.get("releases", [])]

    def reasons(self) -> dict[int, dict[int, str]]:
        """Refusals of the result file, by round and partition id."""
        numbers = {str(node): number for number, node in self.ids.items()}
        refused = self.result()["refused"].items()
        return {
            int(round_number): {numbers[client]: why for client, why in reasons.items()}
            for round_number, reasons in refused
        }


def part(path: Path, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in load_file(path).items() if name.startswith(prefix)}


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


# -- a deployment with everything in it ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("deployed")
    app, run = patched_app(folder), folder / "run"
    config = {"num-server-rounds": ROUNDS, "local-epochs": 1, "equipoise.budget": BUDGET, "equipoise.out": str(run)}
    with Fleet(folder / "logs", nodes=5, node_config=own_ledger(folder)) as fleet:
        number = fleet.submit(app, config)
        wait_for(lambda: asked(run, 2) == 1, "round 2")
        fleet.kill(KILLED)
        fleet.follow(number, timeout=240)
        seen = Seen(folder, run, dict(fleet.node_ids), [fleet.home])
    return seen


def test_what_was_released_differs_from_what_was_trained_by_the_recorded_intensity(deployed: Seen) -> None:
    private, received = deployed.private(), deployed.received()
    honest = {(round_number, number) for round_number, number in received if number in HONEST}
    assert honest >= {(round_number, number) for round_number in range(1, ROUNDS + 1) for number in HONEST}
    lower = LeakageBudget().lower(BUDGET)
    for round_number, number in honest:
        (local,) = [local for (r, n, _), (local, _) in private.items() if (r, n) == (round_number, number)]
        arrays, metrics = received[round_number, number]
        realised = float((flat(arrays) - local).norm())
        assert realised == pytest.approx(dict(deployed.own(number))[round_number], rel=1e-5)
        assert lower * (1 - 1e-4) <= realised <= 2 * lower * (1 + 1e-4)
        assert metrics["equipoise.intensity"] == float(f"{realised:.2g}"), "the server is told two digits"


def test_the_model_got_better(deployed: Seen) -> None:
    result = {
        row["round"]: row["evaluation"]["accuracy"]
        for row in rows(deployed.run / "metrics.jsonl")
        if "evaluation" in row
    }
    assert sorted(result) == list(range(ROUNDS + 1))
    assert result[ROUNDS] > result[0] + 0.3
    assert deployed.result()["accuracy"] == pytest.approx(result[ROUNDS], abs=1e-6)


def test_a_killed_node_is_missed_and_training_goes_on(deployed: Seen) -> None:
    assert (1, KILLED) in deployed.received()
    assert (2, KILLED) not in deployed.received()
    assert KILLED not in deployed.reasons()[1]
    assert KILLED in deployed.reasons()[2]
    assert deployed.result()["rounds"] == ROUNDS


def test_nothing_of_an_unprotected_client_arrives(deployed: Seen) -> None:
    assert [number for _, number in deployed.received()].count(UNPROTECTED) == 0
    assert [number for _, number, _ in deployed.private()].count(UNPROTECTED) == ROUNDS, "it did train"
    for round_number in range(1, ROUNDS + 1):
        assert deployed.reasons()[round_number][UNPROTECTED] == f"failed: {REFUSED}"


def test_a_hostile_client_is_refused_by_name(deployed: Seen) -> None:
    why = {round_number: reasons[HOSTILE] for round_number, reasons in deployed.reasons().items()}
    assert "fc2.bias" in why[1]
    assert "finite" in why[1]
    assert "shape (1,)" in why[2]
    assert "weight" in why[3] or "1e+12" in why[3] or "1000000000000" in why[3]
    assert [number for _, number in deployed.received()].count(HOSTILE) == ROUNDS, "its replies did arrive"


def test_only_what_passed_was_averaged(deployed: Seen) -> None:
    last = [
        arrays
        for (round_number, number), (arrays, _) in deployed.received().items()
        if (round_number, number in HONEST) == (ROUNDS, True)
    ]
    mean = sum(flat(arrays) for arrays in last) / len(last)  # equal shares of the data: equal weights
    model = flat(load_file(deployed.run / "model.safetensors"))
    assert len(last) == len(HONEST)
    torch.testing.assert_close(model, mean, rtol=0, atol=1e-6)


def test_the_ledger_verifies_and_counts(deployed: Seen) -> None:
    told = json.loads((deployed.run / "result.json").read_text())["ledger"]
    result = verify(deployed.run / "ledger.jsonl", told["head"], told["entries"])
    counts = {int(client): count for (_, client), count in result.counts.items()}
    for number, node in deployed.ids.items():
        asked_for = 2 if number == KILLED else ROUNDS
        accepted = {KILLED: 1, UNPROTECTED: 0, HOSTILE: 0}.get(number, ROUNDS)
        assert (counts[node].asked, counts[node].accepted) == (asked_for, accepted), number


def test_no_process_is_left(deployed: Seen) -> None:
    for home in deployed.homes:
        assert processes_with(home) == []
        assert not home.exists()


# -- a crash of everything, with TLS and authentication ------------------------------------------------------------


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """All processes are killed at once in round 2; a second fleet, with new keys, goes on in the same folder."""
    folder = tmp_path_factory.mktemp("resumed")
    app, run = patched_app(folder), folder / "run"
    config = {"num-server-rounds": 2, "local-epochs": 1, "equipoise.budget": BUDGET, "equipoise.out": str(run)}
    homes = []
    with Fleet(folder / "logs-1", nodes=2, tls=True, node_config=own_ledger(folder)) as fleet:
        homes.append(fleet.home)
        fleet.submit(app, config)
        wait_for(lambda: bool(list((folder / "private").glob("2-*.safetensors"))), "a release in round 2")
        for pid in marked(fleet.home):
            os.kill(pid, signal.SIGKILL)
    assert not (run / "result.json").exists()
    with Fleet(folder / "logs-2", nodes=2, tls=True, node_config=own_ledger(folder)) as fleet:
        homes.append(fleet.home)
        keys = folder / "stranger"
        subprocess.run(
            [sys.executable, str(TEMPLATE / "make_keys.py"), str(keys), "--nodes", "1"], check=True, timeout=60
        )
        fleet.start_node(2, private_key=keys / "node-0")
        fleet.run(app, config, timeout=240)
        assert sorted(fleet.online()) == sorted(fleet.node_ids.values())
        seen = Seen(folder, run, dict(fleet.node_ids), homes)
    return seen


def test_a_deployment_goes_on_after_a_crash(resumed: Seen) -> None:
    evaluated = [row["round"] for row in rows(resumed.run / "metrics.jsonl") if "evaluation" in row]
    assert evaluated == [0, 1, 2]
    assert resumed.result()["rounds"] == 2
    assert [asked(resumed.run, round_number) for round_number in (1, 2)] == [1, 2], (
        "the lost round is counted, and made again"
    )
    verify(resumed.run / "ledger.jsonl")


def test_no_noise_is_used_twice(resumed: Seen) -> None:
    noises = {key: sent - local for key, (local, sent) in resumed.private().items()}
    again = [number for round_number, number, _ in noises if round_number == 2]
    assert len(again) > len(set(again)), "a client released twice in round 2"
    for number in (0, 1):
        assert len(resumed.own(number)) == sum(n == number for _, n, _ in noises), "a node counts the lost one too"
    for one, other in itertools.combinations(noises.values(), 2):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.5


def test_a_node_with_an_unregistered_key_does_not_join(resumed: Seen) -> None:
    log = (resumed.folder / "logs-2" / "supernode-2.log").read_text()
    assert "SuperNode ID" not in log
    assert "Failed to activate SuperNode" in log
    assert "No SuperNode found with the given public key" in (resumed.folder / "logs-2" / "superlink.log").read_text()
    assert {number for _, number, _ in resumed.private()} == {0, 1}


def test_no_process_is_left_after_a_crash(resumed: Seen) -> None:
    for home in resumed.homes:
        assert processes_with(home) == []
        assert not home.exists()
