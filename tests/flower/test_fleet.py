"""A SuperLink comes up, tells what goes wrong, and goes down with the process that began it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.errors import ConfigError, FleetError
from equipoise.flower import processes
from equipoise.flower.fleet import Fleet
from equipoise.flower.new_app import new_app
from equipoise.flower.processes import marked
from tests.flower.test_processes import wait_for

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="stray processes are found by /proc, which Linux has"
)

HELD = """
import sys, time
from pathlib import Path
from equipoise.flower.fleet import Fleet

with Fleet(Path(sys.argv[1]), nodes=1) as fleet:
    print(fleet.home, flush=True)
    time.sleep(60)
"""


def test_a_fleet_needs_a_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nodes=0"):
        Fleet(tmp_path, nodes=0)


@pytest.mark.slow
def test_a_port_that_is_taken_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(tmp_path, simulation=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(processes, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(FleetError, match=r"(?s)superlink ended with code.*address already in use"):
            fleet.__enter__()
    assert marked(fleet.home) == []
    assert not fleet.home.exists()


@pytest.mark.slow
def test_a_run_that_fails_is_an_error_although_flower_calls_it_none(tmp_path: Path) -> None:
    app = tmp_path / "broken"
    new_app(app)
    server = app / "broken" / "server_app.py"
    server.write_text(
        server.read_text().replace("    config = context.run_config\n", "    raise ValueError('on purpose')\n")
    )
    with Fleet(tmp_path / "logs", nodes=1) as fleet:
        with pytest.raises(FleetError, match=r"(?s)ended as finished:failed.*on purpose"):
            fleet.run(app, timeout=90)
        with pytest.raises(FleetError, match="flwr run failed"):
            fleet.run(tmp_path / "nothing")
        with pytest.raises(FleetError, match="flwr run failed"):
            fleet.run(app, {"no-such-key": 1})
    assert marked(fleet.home) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_fleet_ends_with_the_process_that_began_it(how: signal.Signals, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert parent.stdout is not None
    home = Path(parent.stdout.readline().strip())
    assert wait_for(lambda: len(marked(home)) >= 4), "SuperLink, SuperNode, and a SuperExec of each"
    parent.send_signal(how)
    parent.wait(30)
    assert wait_for(lambda: not marked(home) and not home.exists())
    assert (tmp_path / "superlink.log").stat().st_size > 0
    parent.stdout.close()
