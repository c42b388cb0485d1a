"""A SuperLink and its SuperNodes on the loopback of this machine, for the time of a ``with`` block.

    with Fleet(Path("logs"), nodes=4) as fleet:
        ended = fleet.run(Path("my-app"), {"num-server-rounds": 3, "equipoise.out": "/tmp/run"})

For demonstrations and tests: in a deployment each of these is a service on a machine of its own (docs/deployment.md).
Flower's own state lies in a temporary folder, the logs in the given one. When the block is left, by whatever way,
no process remains.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import ConfigError, FleetError
from . import processes
from .new_app import TEMPLATE
from .processes import program, spawn, tail

LINK = "fleet"
"""Name of the connection in Flower's configuration."""
ID = r"SuperNode ID: (\d+)"
"""How a SuperNode says in its log that it has been admitted."""
BRIEF = 60.0
"""Seconds that a command has that only asks or tells the SuperLink something."""


@dataclass(frozen=True)
class Ended:
    """A run that came to its end. ``status`` is Flower's; whether it trained, only its result files say."""

    run_id: int
    status: str
    details: str
    log: Path


class Fleet:
    """``nodes`` SuperNodes with the partition ids 0, 1, ...; with ``simulation`` there are none, only virtual ones.

    ``tls`` makes keys with the template's ``make_keys.py``, encrypts every connection to the SuperLink, and admits
    registered SuperNodes alone. ``node_config(number)`` is added to the node config of a SuperNode, ``variables`` to
    the environment of all processes.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 4,
        *,
        simulation: bool = False,
        tls: bool = False,
        node_config: Callable[[int], Mapping[str, Any]] = lambda number: {},
        variables: Mapping[str, str] | None = None,
    ):
        if nodes < 1:
            raise ConfigError(f"Expected nodes={nodes} to be >= 1.", "A federation needs a client.")
        self.folder, self.size, self.simulation, self.tls = folder.absolute(), nodes, simulation, tls
        self.node_config, self.variables = node_config, dict(variables or {})
        self.node_ids: dict[int, int] = {}  # partition id -> Flower's id
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    # -- coming up and going down ------------------------------------------------------------------------------

    def __enter__(self) -> Fleet:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = Path(tempfile.mkdtemp(prefix="equipoise-")).resolve()
        self.environment = {**_environment(self.home), **self.variables}
        self._watch = processes.spawn_watch(self.home)
        self.link: subprocess.Popen[bytes] | None = None
        try:
            self._start_link()
            for number in range(0 if self.simulation else self.size):
                self.start_node(number)
            for number in self.nodes:
                self._await_node(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, and remove Flower's temporary folder; the logs stay."""
        processes.end_groups([*self.nodes.values(), *([self.link] if self.link else [])])
        processes.end_watch(self._watch)
        left = processes.end_marked(self.home)
        if left:
            raise FleetError(f"Processes {left} could not be ended.", "End them by hand.")

    @property
    def keys(self) -> Path:
        return self.home / "keys"

    def _start_link(self) -> None:
        self.port = processes.free_port()
        options = ["--simulation"] if self.simulation else []
        connection: dict[str, Any] = {"address": f"127.0.0.1:{self.port}"}
        if self.tls:
            script, made = str(TEMPLATE / "make_keys.py"), [str(self.keys), "--nodes", str(self.size)]
            self._ask([sys.executable, script, *made], "make_keys")
            options += [f"--ssl-ca-certfile={self.keys / 'ca.crt'}", f"--ssl-certfile={self.keys / 'server.pem'}"]
            options += [f"--ssl-keyfile={self.keys / 'server.key'}", "--enable-supernode-auth"]
            connection["root-certificates"] = str(self.keys / "ca.crt")
        else:
            options, connection["insecure"] = ["--insecure", *options], True
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in connection.items())
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n{lines}', encoding="utf-8"
        )
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--disable-runtime-dependency-installation"]
        log = self._log("superlink")
        self.link = spawn([program("flower-superlink"), *place, *options], log, self.environment)
        processes.until(lambda: bool(_said("Uvicorn running", log)), self.link, "superlink", log)

    def start_node(self, number: int, private_key: Path | None = None) -> None:
        """Start the SuperNode of one partition; with authentication, registered unless it brings its own key."""
        told = _told({"partition-id": number, "num-partitions": self.size, **self.node_config(number)})
        options = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(processes.free_port()), "--node-config", told]
        if self.tls:
            if private_key is None:
                private_key = self.keys / f"node-{number}"
                self._flwr("supernode", "register", f"{private_key}.pub", LINK)
            options += ["--root-certificates", str(self.keys / "ca.crt")]
            options += ["--auth-supernode-private-key", str(private_key)]
        else:
            options += ["--insecure"]
        log = self._log(f"supernode-{number}")
        self.nodes[number] = spawn([program("flower-supernode"), *options], log, self.environment)

    def _await_node(self, number: int) -> None:
        log = self._log(f"supernode-{number}")
        processes.until(lambda: bool(_said(ID, log)), self.nodes[number], f"supernode {number}", log)
        self.node_ids[number] = int(_said(ID, log)[-1])

    def kill(self, number: int) -> None:
        """End a SuperNode at once, as a power cut would, with the apps that it runs."""
        processes.kill_group(self.nodes.pop(number))

    # -- runs --------------------------------------------------------------------------------------------------

    def run(
        self,
        app: Path,
        run_config: Mapping[str, Any] | None = None,
        *,
        timeout: float = 600.0,
        watch: Callable[[], None] = lambda: None,
    ) -> Ended:
        """Submit an app and follow it to its end; ``watch`` is called about once a second."""
        return self.follow(self.submit(app, run_config), timeout=timeout, watch=watch)

    def submit(self, app: Path, run_config: Mapping[str, Any] | None = None) -> int:
        """Start a run; returns its id."""
        options = ["--run-config", _told(run_config)] if run_config else []
        if self.simulation:
            options += ["--federation-config", f"num-supernodes={self.size}"]
        return int(self._flwr("run", str(app.absolute()), LINK, *options)["run-id"])

    def follow(self, run_id: int, *, timeout: float = 600.0, watch: Callable[[], None] = lambda: None) -> Ended:
        """Wait until a run has ended. A failed run is an error, with the end of its log."""
        log, limit = self._log(f"run-{run_id}"), time.monotonic() + timeout
        stream = spawn([program("flwr"), "log", str(run_id), LINK, "--stream"], log, self.environment)
        try:
            while stream.poll() is None and time.monotonic() < limit:
                if self.link is not None and self.link.poll() is not None:
                    raise FleetError(f"The SuperLink ended during run {run_id}.", tail(self._log("superlink")))
                watch()
                time.sleep(1.0)
        finally:
            processes.end_groups([stream], grace=1.0)
        watch()
        while not (result := self.status(run_id))["status"].startswith("finished"):  # the log may end a little early
            if time.monotonic() > limit:
                self._flwr("stop", str(run_id), LINK)
                raise FleetError(f"Run {run_id} took more than {timeout:g} s and was stopped.", tail(log))
            time.sleep(1.0)
        ended = Ended(run_id, result["status"], str(result.get("status-details", "")), log)
        if ended.status != "finished:completed":
            raise FleetError(f"Run {run_id} ended as {ended.status}: {ended.details}", tail(log))
        return ended

    def status(self, run_id: int) -> dict[str, Any]:
        """What the SuperLink says of a run."""
        (result,) = self._flwr("list", LINK, "--run-id", str(run_id))["runs"]
        return dict(result)

    def online(self) -> list[int]:
        """Flower's ids of the nodes that the SuperLink holds for online."""
        nodes = self._flwr("supernode", "list", LINK)["nodes"]
        return [int(node["node-id"]) for node in nodes if node["status"] == "online"]

    # -- programs ----------------------------------------------------------------------------------------------

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        said = self._ask([program("flwr"), *arguments, "--format", "json"], f"flwr {arguments[0]}")
        start = said.find("{")
        try:
            result: dict[str, Any] = json.JSONDecoder().raw_decode(said, max(start, 0))[0]
        except ValueError as error:
            raise FleetError(f"flwr {arguments[0]} answered: {said.strip()[-500:]}") from error
        if not result.get("success"):
            raise FleetError(f"flwr {arguments[0]} failed: {result.get('error-message', said.strip()[-500:])}")
        return result

    def _ask(self, command: list[str], name: str) -> str:
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=BRIEF, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise FleetError(f"{name} did not answer within {BRIEF:g} s.", tail(self._log("superlink"))) from error
        if done.returncode:
            raise FleetError(f"{name} failed: {(done.stdout + done.stderr).strip()[-800:]}")
        return done.stdout


def _environment(home: Path) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    if len(str(home)) <= 32:  # Ray puts sockets there, whose paths may not be long
        quiet["RAY_TMPDIR"] = str(home)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # Flower starts by name
    return {"OMP_NUM_THREADS": "1", **os.environ, **quiet, processes.MARK: str(home), "PATH": path}


def _told(config: Mapping[str, Any]) -> str:
    """A config as Flower's command line takes it."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def _said(pattern: str, log: Path) -> list[str]:
    """What a log has said so far that fits a pattern."""
    return re.findall(pattern, log.read_text(encoding="utf-8", errors="replace"))
