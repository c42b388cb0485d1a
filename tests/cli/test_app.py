"""The command line: one JSON document or a readable page, one line and an own exit code for every error."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.main import get_command

import equipoise as equipoise_package
from equipoise import errors
from equipoise.cli import app as cli
from equipoise.engine import doctor
from equipoise.errors import EquipoiseError
from tests.helpers import Command, Done, document, equipoise, tiny_train

COMMANDS = sorted(get_command(cli.app).commands)  # type: ignore[attr-defined]
ERRORS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EquipoiseError)),
    key=lambda kind: kind.exit_code,
)


def test_the_installed_command_is_this_entry_point() -> None:
    (script,) = entry_points(group="console_scripts", name="equipoise")
    assert script.load() is cli.main


def test_every_command_of_today_is_listed(command: Command) -> None:
    done = command("--help")
    assert done.code == 0
    assert {"demo", "train", "calibrate", "doctor"} <= set(COMMANDS)
    assert all(name in done.out for name in COMMANDS)


def test_the_version_is_one_line(command: Command) -> None:
    assert command("--version") == Done(0, f"equipoise {equipoise_package.__version__}\n", "")


@pytest.mark.parametrize("name", ["", *COMMANDS, "flower new", "flower demo"])
def test_a_short_option_asks_for_help_too(command: Command, name: str) -> None:
    done = command(*name.split(), "-h")
    assert done == command(*name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert " ".join(["Usage: equipoise", *name.split()]) in done.out


def test_brackets_in_a_help_text_are_printed(command: Command) -> None:
    assert "[[sweep]]" in command("train", "--help").out


def test_completion_can_be_installed(command: Command) -> None:
    out = command("--help").out
    assert "--install-completion" in out
    assert "--show-completion" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_of_itself(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert done.code == 0
    assert re.search(rf"Examples?:\s+equipoise {name}\b", done.out)
    assert "--json" in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_a_usage_error(command: Command, name: str) -> None:
    done = command(name, "--nonsense")
    assert done.code == 2
    assert done.out == ""
    assert "No such option: --nonsense" in done.err


def test_an_unknown_command_is_a_usage_error(command: Command) -> None:
    done = command("trane")
    assert done.code == 2
    assert "trane" in done.err


# --- errors ----------------------------------------------------------------------------------------------------


def natural_errors(tiny: Path, folder: Path) -> dict[str, list[str]]:
    """For each kind of error that a command line can cause, one that does."""
    (folder / "file").write_text("x")
    return {
        "ConfigError": ["train", "--set", "rouns=3", "--mechanism", "none"],
        "DataError": ["train", "--dataset", "nowhere", "--mechanism", "none", "--rounds", "1"],
        "CheckpointError": tiny_train(tiny, "--mechanism", "none", "--set", "eta=0.7"),
        "StorageError": ["train", "--dataset", str(tiny), "--mechanism", "none", "--rounds", "1", "--out", "file/run"],
    }


@pytest.mark.parametrize("name", ["ConfigError", "DataError", "CheckpointError", "StorageError"])
def test_an_error_has_its_exit_code_and_says_what_to_do(
    command: Command, tiny: Path, tmp_path: Path, name: str
) -> None:
    command(*tiny_train(tiny, "--mechanism", "none"))  # the folder that the checkpoint error is about
    arguments = natural_errors(tiny, tmp_path)[name]
    code = getattr(errors, name).exit_code
    done = command(*arguments)
    assert done.code == code
    assert "Traceback" not in done.err
    result = command(*arguments, "--json")
    assert result.code == code
    assert set(document(result)) == {"error"}
    error = document(result)["error"]
    assert error["type"] == name
    assert error["cause"]
    assert done.err.strip() == f"error: {error['cause']} {error['remedy']}".strip()


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--mechanism", "none", "--rounds", "1", "--out", LONG],
        ["train", "--mechanism", "none", "--rounds", "1", "--dataset", LONG],
        ["audit", LONG],
        ["ledger", LONG],
        ["reproduce", "--status", "--out", LONG],
        ["flower", "new", LONG],
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_a_name_that_no_file_can_have_is_one_line(command: Command, arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.code >= EquipoiseError.exit_code
    assert "Traceback" not in done.err
    assert "Free some space" not in done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_reaches_the_shell_as_itself(
    command: Command, monkeypatch: pytest.MonkeyPatch, kind: type[EquipoiseError]
) -> None:
    def fail() -> None:
        raise kind("It is broken.", "Mend it.")

    monkeypatch.setattr(doctor, "examine", fail)
    assert command("doctor") == Done(kind.exit_code, "", "error: It is broken. Mend it.\n")
    result = command("doctor", "--json")
    assert result.code == kind.exit_code
    assert document(result) == {"error": {"type": kind.__name__, "cause": "It is broken.", "remedy": "Mend it."}}


def test_no_error_steers_the_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file of somebody else's says may be in an error; its lines are those of the message."""

    def fail(app: str) -> None:
        raise errors.DataError("\x1b[31mEVIL\x07\r.\n  - Two", "Check it\x9b.")

    monkeypatch.setattr(cli, "app", lambda prog_name: fail(prog_name))
    assert command("doctor").err == "error: ?[31mEVIL??.\n  - Two\nCheck it?.\n"


def test_every_error_has_an_exit_code_of_its_own_and_a_page_in_the_docs() -> None:
    codes = [kind.exit_code for kind in ERRORS]
    assert len(ERRORS) >= 8
    assert len(set(codes)) == len(codes)
    assert not {0, 1, 2, 130} & set(codes), "taken by success, Python, usage errors and Ctrl-C"
    folder = Path(__file__).parents[2] / "docs" / "errors"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for code, name in [
        (1, "doctor"),
        (2, "command line"),
        (130, "Interrupted"),
        *((k.exit_code, k.__name__) for k in ERRORS),
    ]:
        page = (folder / f"{code}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# Exit code {code}: "), code
        assert name in page.splitlines()[0]
        assert all(part in page for part in ("**Cause.**", "**Remedy.**", "**What is kept.**"))
        assert f"| [{code}]({code}.md) | {page.splitlines()[0].split(': ', 1)[1]} |" in index
    assert len(list(folder.glob("*.md"))) == len(ERRORS) + 4, "no page without a code"


def test_a_process_ends_with_the_code_and_keeps_the_streams_apart(tmp_path: Path) -> None:
    done = equipoise("train", "--set", "rouns=3", "--set", "eta=-1", "--mechanism", "none", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (11, "")
    assert done.stderr.startswith("error: 2 problems in the settings:\n")
    assert "Did you mean 'rounds'?" in done.stderr
