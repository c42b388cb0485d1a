"""The app that a user copies: equal to the example, named after its folder, and with keys that work."""

from __future__ import annotations

import ast
import json
import ssl
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from equipoise.cli import app as cli
from equipoise.errors import ConfigError, StorageError
from equipoise.flower.new_app import NAME, TEMPLATE, new_app, package_name, template_files
from tests.helpers import contents

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
PROGRAM = Path(sys.executable).with_name("flwr")


def without_caches(folder: Path) -> dict[str, bytes]:
    return {name: text for name, text in contents(folder).items() if "__pycache__" not in name}


def test_the_example_is_the_template() -> None:
    assert without_caches(EXAMPLE) == without_caches(TEMPLATE)
    assert {path.relative_to(TEMPLATE).as_posix() for path in template_files()} == set(without_caches(TEMPLATE))


def test_the_template_imports_public_names_alone() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in template_files() if path.suffix == ".py"]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules = {str(node.module) for node in nodes if str(node.module).startswith("equipoise")}
    assert modules == {"equipoise", "equipoise.flower"}


def test_a_new_app_is_named_after_its_folder(tmp_path: Path) -> None:
    files = new_app(tmp_path / "my-app")
    assert {path.relative_to(tmp_path / "my-app").as_posix() for path in files} == {
        "README.md", "make_keys.py", "my_app/__init__.py", "my_app/client_app.py", "my_app/server_app.py",
        "my_app/task.py", "policy.toml", "pyproject.toml",
    }  # fmt: skip
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert NAME not in text
        assert "flower-app" not in text
        if path.suffix == ".py":
            ast.parse(text)
    result = tomllib.loads((tmp_path / "my-app" / "pyproject.toml").read_text())
    assert result["project"]["name"] == "my-app"
    assert result["tool"]["flwr"]["app"]["components"]["clientapp"] == "my_app.client_app:app"
    assert result["tool"]["flwr"]["app"]["config"]["equipoise"]["mechanism"] == "gaussian-dp"


@pytest.mark.parametrize(
    ("folder", "name"), [("my-app", "my_app"), ("a/b/Site.2", "site_2"), ("two words", "two_words")]
)
def test_names_that_will_do(folder: str, name: str) -> None:
    assert package_name(Path(folder)) == name


@pytest.mark.parametrize("folder", ["2nd", "_x", "class", "match", "équipe", "a", "x-", "-"])
def test_names_that_no_package_can_have(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a Python package cannot be called") as caught:
        new_app(tmp_path / folder)
    assert "for example my-app" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["json", "Json", "torch", "flwr", "task", "numpy", "rich"])
def test_names_that_would_hide_a_module(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it would hide a module") as caught:
        new_app(tmp_path / folder)
    assert f"for example {folder.lower()}-app" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "task.py").write_text("mine")
    with pytest.raises(StorageError, match="not an empty folder"):
        new_app(tmp_path / "app")
    assert contents(tmp_path) == {"app/task.py": b"mine"}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="not an empty folder"):
        new_app(tmp_path / "file")


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    assert new_app(tmp_path / "app")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["equipoise", "flower", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "new", "my-app") == 0
    assert "flwr run my-app" in capsys.readouterr().out
    assert command(monkeypatch, "new", "my-app") == StorageError.exit_code
    assert "not an empty folder" in capsys.readouterr().err
    assert command(monkeypatch, "new", "other", "--json") == 0
    assert "pyproject.toml" in json.loads(capsys.readouterr().out)["files"]


def test_only_the_code_travels_to_the_nodes(tmp_path: Path) -> None:
    app = tmp_path / "my-app"
    new_app(app)
    (app / "keys").mkdir()
    for name in ("keys/ca.json", "secret.md", "ledger.jsonl", "run.toml"):  # endings that Flower would send along
        (app / name).write_text("{}")
    subprocess.run([PROGRAM, "build", "--app", app], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (built,) = tmp_path.glob("*.fab")
    names = {name for name in zipfile.ZipFile(built).namelist() if not name.startswith(".info")}
    assert names == {f"my_app/{name}.py" for name in ("__init__", "client_app", "server_app", "task")} | {
        "pyproject.toml"
    }


# -- keys ----------------------------------------------------------------------------------------------------------


def make_keys(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(TEMPLATE / "make_keys.py"), str(folder), *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "keys"
    done = make_keys(folder, "--nodes", "2", "--host", "link.example.org")
    assert done.returncode == 0, done.stderr
    return folder


def shaken_hands(keys: Path, authority: Path, host: str) -> bool:
    """A TLS handshake between a server with these keys and a client that trusts the authority and expects the host."""
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=authority)
    serving.load_cert_chain(keys / "server.pem", keys / "server.key")
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = serving.wrap_bio(up, down, server_side=True), asking.wrap_bio(down, up, server_hostname=host)
    done = 0
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return done > 1


def test_the_certificate_serves_its_host_and_this_machine_alone(keys: Path, tmp_path: Path) -> None:
    for host in ("link.example.org", "localhost", "127.0.0.1"):
        assert shaken_hands(keys, keys / "ca.crt", host)
    assert not shaken_hands(keys, keys / "ca.crt", "other.example.org")
    assert make_keys(tmp_path / "other").returncode == 0
    assert not shaken_hands(keys, tmp_path / "other" / "ca.crt", "localhost")


def test_private_keys_are_private_and_pairs_belong_together(keys: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    assert {path.name for path in keys.iterdir()} == {
        "ca.crt", "ca.key", "server.pem", "server.key", "node-0", "node-0.pub", "node-1", "node-1.pub", ".gitignore",
    }  # fmt: skip
    for name in ("ca.key", "server.key", "node-0", "node-1"):
        assert (keys / name).stat().st_mode & 0o777 == 0o600
    for number in range(2):
        private = load_ssh_private_key((keys / f"node-{number}").read_bytes(), None)
        public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        assert public == (keys / f"node-{number}.pub").read_bytes()
    assert (keys / "node-0.pub").read_bytes() != (keys / "node-1.pub").read_bytes()


def test_keys_are_never_overwritten(keys: Path) -> None:
    before = contents(keys)
    done = make_keys(keys)
    assert done.returncode != 0
    assert "nothing was written" in done.stderr
    assert contents(keys) == before
