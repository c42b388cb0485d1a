"""The command line: one JSON document or a readable page, one line and an own exit code for every error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.main import get_command

from equipoise import errors
from equipoise.cli import app as cli
from equipoise.cli import display
from equipoise.data.dataset import Dataset
from equipoise.engine import doctor
from equipoise.engine.sweep import Sweep
from equipoise.errors import DataError, EquipoiseError
from tests.helpers import Command, Done, contents, entry_point, equipoise, write_dataset

CLAIMS = (
    r"(epsilon|ε|eps)\s*(=|:|of|≤|<=)\s*\d",
    r"(delta|δ)\s*(=|:|of|≤|<=)\s*\d",
    r"\(\s*\d+(\.\d+)?\s*,\s*(1e-\d+|10\^-\d+|0\.0\d*)\s*\)\s*-?\s*(dp|differential)",
)
COMMANDS = sorted(get_command(cli.app).commands)  # type: ignore[attr-defined]
ERRORS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EquipoiseError)),
    key=lambda kind: kind.exit_code,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: a second thread gains nothing, and waits where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise ARGUMENTS`` by its entry point, in a folder of its own. No output may claim a privacy loss."""
    equipoise = entry_point(tmp_path, monkeypatch, capfd, columns=80)

    def run(*arguments: str | Path) -> Done:
        done = equipoise(*arguments)
        for claim in CLAIMS:
            assert not re.search(claim, done.out + done.err, re.IGNORECASE), (claim, done.out + done.err)
        return done

    return run


@pytest.fixture
def small_mnist(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mnist`` is a few images of it, so that whole commands take a second."""
    monkeypatch.setattr("equipoise.engine.datasets.load", lambda name: few)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")


def document(done: Done) -> Any:
    """The one JSON document on standard output; nothing on standard error."""
    assert done.err == ""
    return json.loads(done.out)


# --- help and usage -------------------------------------------------------------------------------------------


def test_the_installed_command_is_this_entry_point() -> None:
    (script,) = entry_points(group="console_scripts", name="equipoise")
    assert script.load() is cli.main


def test_every_command_of_today_is_listed(command: Command) -> None:
    done = command("--help")
    assert done.code == 0
    assert {"demo", "train", "calibrate", "doctor"} <= set(COMMANDS)
    assert all(name in done.out for name in COMMANDS)


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


# --- calibrate --------------------------------------------------------------------------------------------------


def test_calibrate_gives_the_papers_bounds(command: Command) -> None:
    found = document(command("calibrate", "--mechanism", "pl-learn", "--budget", "0.96", "--json"))
    assert (found["lower"], found["upper"], found["scale"]) == (15.99975, 31.9995, None)
    assert (found["mechanism"], found["budget"], found["norm"]) == ("pl-learn", 0.96, "l2")
    found = document(command("calibrate", "--mechanism", "pl-identical", "--budget", "0.995", "--json"))
    assert (found["lower"], found["upper"], found["scale"]) == (1.99975, 3.9995, None)


def test_calibrate_gives_a_scale_where_bounds_follow_from_the_draw(command: Command) -> None:
    arguments = ("calibrate", "--mechanism", "ls-learn", "--budget", "80", "--sensitivity", "10", "--json")
    found = document(command(*arguments))
    assert (found["lower"], found["upper"], found["scale"], found["norm"]) == (None, None, 0.125, "l1")
    found = document(command("calibrate", "--mechanism", "gs-static", "--budget", "4", "--sensitivity", "1", "--json"))
    assert (found["lower"], found["upper"], found["scale"], found["norm"]) == (None, None, 0.25, "l2")


def test_calibrate_follows_the_settings(command: Command) -> None:
    more = ("--set", "leakage.D=28", "--set", "factor=3")
    found = document(command("calibrate", "--mechanism", "pl-learn", "--budget", "0.96", "--json", *more))
    assert found["lower"] == pytest.approx(0.04 * 4 * 28 / 0.56 - 0.01 / 40)
    assert found["upper"] == pytest.approx(3 * found["lower"])


@pytest.mark.parametrize("diameter", [56.0, 60.0])
def test_calibrate_compares_with_guesses_that_use_no_update(command: Command, mnist: Dataset, diameter: float) -> None:
    arguments = ("calibrate", "--mechanism", "pl-learn", "--budget", "0.96", "--set", f"leakage.D={diameter}")
    found = document(command(*arguments, "--json"))["guesses"]
    assert set(found) == {"mnist", "fmnist"}
    done = command(*arguments)
    assert done.code == 0
    text = " ".join(done.out.split())
    known, targets = mnist.public_attack, mnist.public_targets
    images = targets.images.flatten(1).numpy()
    means = np.stack([known.images[known.labels == c].flatten(1).numpy().mean(0) for c in range(10)])
    black = np.full_like(images, known.images.min())
    for name, guess in (("black", black), ("class_mean", means[targets.labels.numpy()])):
        score = 1 - np.linalg.norm(guess - images, axis=1).mean() / diameter
        assert found["mnist"][name] == pytest.approx(score, abs=1e-5)
        assert f"{score:.2f}" in text


def test_calibrate_for_people(command: Command) -> None:
    done = command("calibrate", "--mechanism", "pl-learn", "--budget", "0.96")
    assert "L2 norm of 15.9998 to 31.9995" in " ".join(done.out.split())
    done = command("calibrate", "--mechanism", "ls-learn", "--budget", "80")
    assert "scale 0.125" in " ".join(done.out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--mechanism", "pl-learn"],
        ["--mechanism", "pl-learn", "--budget", "0.96,0.98"],
        ["--mechanism", "pl-learn,pl-identical", "--budget", "0.96"],
        ["--mechanism", "none", "--budget", "0.96"],
        ["--mechanism", "pl-lern", "--budget", "0.96"],
        ["--mechanism", "pl-learn", "--budget", "1"],
        ["--mechanism", "pl-learn", "--budget", "nan"],
        ["--mechanism", "pl-learn", "--budget", "much"],
        ["--mechanism", "ls-learn", "--budget", "80", "--sensitivity", "-1"],
        ["--budget", "0.96", "--set", "leakage.d=1"],
        ["--budget", "0.96", "--set", "leakage"],
        ["--budget", "0.96", "--set", "=3"],
        ["--search", "--seed", "x"],
        ["--search", "--seed", "1.5"],
        ["--search", "--seed", ","],
        ["--search", "--budget", "2"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_calibrate_refuses_what_cannot_be(command: Command, arguments: list[str]) -> None:
    done = command("calibrate", "--rounds", "1", *arguments)
    assert done.code == 11, done
    assert done.out == ""
    assert done.err.strip().startswith("error: ")


def test_the_search_prints_trials_with_intervals(command: Command) -> None:
    arguments = ["calibrate", "--search", "--mechanism", "pl-identical,none", "--budget", "0.99,0.999"]
    arguments += ["--rounds", "40", "--set", "model=mlp", "--set", "init=torch", "--set", "batch=8"]
    found = document(command(*arguments, "--seed", "1,2", "--json"))
    assert set(found) == {"bar", "strictest", "trials"}
    assert [(trial["mechanism"], trial["budget"]) for trial in found["trials"]] == [
        ("none", None), ("pl-identical", 0.99), ("pl-identical", 0.999),
    ]  # fmt: skip
    assert all(trial["seeds"] == 2 and len(trial["interval"]) == 2 for trial in found["trials"])
    assert set(found["strictest"]) == {"pl-identical"}
    done = command(*arguments, "--seed", "1")
    assert done.code == 0
    assert "strictest budget that trains with pl-identical" in " ".join(done.out.split())


# --- train ------------------------------------------------------------------------------------------------------


def tiny_train(data: Path, *more: str) -> list[str]:
    return ["train", "--dataset", str(data), "--rounds", "3", "--set", "evaluate_every=2", "--out", "run", *more]


def test_train_prints_settings_table_and_place(command: Command, tiny: Path, tmp_path: Path) -> None:
    done = command(*tiny_train(tiny, "--mechanism", "none,pl-learn", "--budget", "0.98,0.99", "--seed", "1,2"))
    assert done.code == 0
    assert "6 federation(s)" in done.out
    assert "a seeded experiment" in done.out
    assert "resumed" not in done.out
    rows = re.findall(r"^ *(none|pl-learn) +(\S+) +[\d.]+% ", done.out, re.MULTILINE)
    assert rows == [("none", "-"), ("pl-learn", "0.98"), ("pl-learn", "0.99")], "seeds are averaged"
    assert display.NOT_CLAIMED.splitlines()[0].split(":")[0] in done.out
    assert "run/result.json" in done.out
    assert (tmp_path / "run" / "result.json").exists()


def test_train_again_says_where_it_resumed_and_changes_nothing(command: Command, tiny: Path, tmp_path: Path) -> None:
    arguments = tiny_train(tiny, "--mechanism", "none")
    command(*arguments)
    before = contents(tmp_path / "run")
    done = command(*arguments)
    assert done.code == 0
    assert "resumed at round 3" in done.out
    assert contents(tmp_path / "run") == before
    assert "resumed" not in command(*arguments, "--fresh").out


def test_train_json_is_the_result_file(command: Command, tiny: Path, tmp_path: Path) -> None:
    found = document(command(*tiny_train(tiny, "--mechanism", "none", "--json")))
    assert found == json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["federations"][0]["mechanism"] == "none"
    assert document(command(*tiny_train(tiny, "--mechanism", "none", "--json"))) == found


def test_train_reads_a_file_and_flags_win(command: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        f'rounds = 9\neta = 0.2\n[[sweep]]\ndatasets = ["{tiny}"]\nmechanisms = ["none"]\n'
    )
    found = document(command("train", "--config", "s.toml", "--rounds", "2", "--set", "eta=0.3", "--json"))
    assert (found["federations"][0]["rounds"], found["federations"][0]["eta"]) == (2, 0.3)
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch("[0-9a-f]{12}", folder.name)
    assert (folder / "result.json").exists()


def test_a_flag_with_several_blocks_in_the_file_drops_none_of_them(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    block = f'[[sweep]]\ndatasets = ["{tiny}"]\nmechanisms = ["{{}}"]\nbudgets = [0.98]\n'
    (tmp_path / "s.toml").write_text("rounds = 1\n" + block.format("pl-learn") + block.format("pl-identical"))
    done = command("train", "--config", "s.toml", "--seed", "7", "--out", "run", "--json")
    if done.code == 0:  # or it is refused as ambiguous, with a message
        rows = document(done)["federations"]
        assert [(row["mechanism"], row["seed"]) for row in rows] == [("pl-learn", 7), ("pl-identical", 7)]
    else:
        assert done.code == 11


def test_refused_releases_are_counted_for_people_and_for_machines(command: Command, tiny: Path) -> None:
    arguments = tiny_train(tiny, "--mechanism", "pl-learn,none", "--budget", "0.98", "--set", "eta=1e38")
    done = command(*arguments)
    assert done.code == 0
    assert re.search(r"pl-learn 0\.98 seed 1: 12 of 12 releases refused", " ".join(done.err.split()))
    found = document(command(*arguments, "--json"))["federations"]
    assert found[0]["releases_refused"] == 12


def test_an_interruption_is_one_line_and_exit_code_130(
    command: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = tiny_train(tiny, "--mechanism", "none")
    genuine = Sweep.train

    def stopping(sweep: Sweep, until: int, on_round: Any = None) -> None:
        genuine(sweep, until, on_round)
        if until == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Sweep, "train", stopping)
        for more in ([], ["--json"]):
            done = command(*arguments, *more)
            assert done.code == 130
            (line,) = [line for line in done.err.splitlines() if line.strip()]
            assert "run the same command again to go on" in line
            assert not more or done.out == ""
    assert not (tmp_path / "run" / "result.json").exists()
    done = command(*arguments)
    assert done.code == 0
    assert "resumed at round 2" in done.out


# --- errors -----------------------------------------------------------------------------------------------------


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
    found = command(*arguments, "--json")
    assert found.code == code
    assert set(document(found)) == {"error"}
    error = document(found)["error"]
    assert error["type"] == name
    assert error["cause"]
    assert done.err.strip() == f"error: {error['cause']} {error['remedy']}".strip()


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_reaches_the_shell_as_itself(
    command: Command, monkeypatch: pytest.MonkeyPatch, kind: type[EquipoiseError]
) -> None:
    def fail() -> None:
        raise kind("It is broken.", "Mend it.")

    monkeypatch.setattr(doctor, "examine", fail)
    assert command("doctor") == Done(kind.exit_code, "", "error: It is broken. Mend it.\n")
    found = command("doctor", "--json")
    assert found.code == kind.exit_code
    assert document(found) == {"error": {"type": kind.__name__, "cause": "It is broken.", "remedy": "Mend it."}}


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
    assert done.stderr.startswith("error: 2 problem(s) in the settings:\n")
    assert "Did you mean 'rounds'?" in done.stderr


# --- demo -------------------------------------------------------------------------------------------------------


class Resources(HTMLParser):
    """Everything a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        wanted = {"src", "srcset", "data", "poster", "action"} | ({"href"} if tag != "a" else set())
        self.fetched += [f"{tag} {key}={value}" for key, value in attrs if key in wanted]


@pytest.mark.usefixtures("small_mnist")
def test_the_demo_makes_a_table_and_a_plot_that_stands_alone(command: Command, tmp_path: Path) -> None:
    for _ in range(2):  # the second time it replaces the first
        done = command("demo", "--rounds", "5", "--out", tmp_path / "out")
        assert done.code == 0
        for name in ("none", "pl-identical", "pl-learn"):
            assert re.search(rf"^ *{name} ", done.out, re.MULTILINE), "nothing is cut off in a terminal of 80 columns"
        assert "…" not in done.out
        assert "accuracy.html" in done.out.replace("\n", "")
        assert "a demonstration, not a result" in " ".join(done.out.split())
    page = (tmp_path / "out" / "accuracy.html").read_text(encoding="utf-8")
    seen = Resources()
    seen.feed(page)
    assert seen.fetched == []
    assert "script" in seen.tags
    assert "Plotly.newPlot" in page
    assert len(page) > 1_000_000, "plotly itself is inside"
    for line in ("none", *(f"{name}, budget {b}" for name in ("pl-identical", "pl-learn") for b in (0.97, 0.99))):
        assert f"{line} (seed 1)" in page


@pytest.mark.usefixtures("small_mnist")
def test_the_demo_as_json(command: Command, tmp_path: Path) -> None:
    found = document(command("demo", "--rounds", "5", "--out", "out", "--json"))
    assert [row["mechanism"] for row in found["federations"]] == ["none"] + ["pl-identical"] * 2 + ["pl-learn"] * 2
    assert (tmp_path / found["plot"]).exists()


@pytest.mark.usefixtures("small_mnist")
def test_the_demo_refuses_impossible_arguments(command: Command, tmp_path: Path) -> None:
    assert command("demo", "--rounds", "0").code == 11
    (tmp_path / "file").write_text("x")
    done = command("demo", "--rounds", "1", "--out", "file/inner")
    assert (done.code, done.out) == (17, "")


# --- doctor -----------------------------------------------------------------------------------------------------


def test_the_doctor_finds_nothing_wrong_here(command: Command, tmp_path: Path) -> None:
    found = document(command("doctor", "--json"))
    assert [check["name"] for check in found["checks"] if not check["ok"]] == []
    assert {check["name"] for check in found["checks"]} == set(doctor.CHECKS)
    assert found["environment"]["equipoise"] == version("equipoise")
    assert contents(tmp_path) == {}, "the probe of the disk leaves nothing"


def test_the_doctor_names_what_is_wrong(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise DataError("mnist.npz is truncated.", "Reinstall.")

    monkeypatch.setattr(doctor, "CHECKS", {"versions": lambda: "fine", "bundled data": broken})
    done = command("doctor")
    assert done.code == 1
    assert "ok   versions: fine" in done.out
    assert "FAIL bundled data: mnist.npz is truncated. Reinstall." in done.out
    found = command("doctor", "--json")
    assert found.code == 1
    assert [check["ok"] for check in document(found)["checks"]] == [True, False]


# --- what people see --------------------------------------------------------------------------------------------


def test_rows_of_the_table_are_means_over_seeds_with_students_interval() -> None:
    def row(name: str, budget: Any, accuracy: float) -> dict[str, Any]:
        extra = {"accuracy_at_best_validation": accuracy + 0.01, "mean_utility_loss": -accuracy}
        return {"dataset": "mnist", "mechanism": name, "budget": budget, "accuracy": accuracy, **extra}

    one, two = display.group([row("a", 0.9, 0.5), row("b", None, 0.7), row("a", 0.9, 0.6), row("a", 0.9, 0.7)])
    assert (one["mechanism"], one["budget"], one["seeds"]) == ("a", 0.9, 3)
    assert one["accuracy"] == pytest.approx(0.6)
    assert one["best"] == pytest.approx(0.61)
    assert one["utility_loss"] == pytest.approx(-0.6)
    half = 4.302652729911275 * 0.1 / 3**0.5  # Student's quantile for 2 degrees of freedom
    assert one["interval"] == pytest.approx((0.6 - half, 0.6 + half))
    assert (two["seeds"], two["interval"]) == (1, None)
