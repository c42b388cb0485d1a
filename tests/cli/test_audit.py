"""``equipoise audit`` and the audit of ``equipoise demo``: one JSON document or a readable page, a line for errors."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from equipoise.attack.attack import Option
from equipoise.attack.registry import ATTACKS as REGISTERED
from equipoise.attack.registry import find, known_attacks
from equipoise.cli import audit as audit_command
from equipoise.cli import display
from equipoise.errors import ConfigError
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.audit_helpers import EFFORT, interrupt, train_run, write_pictures
from tests.helpers import Command, Done, contents, entry_point, equipoise, single_threaded

CHEAP = [word for key, value in EFFORT.items() for word in ("--set", f"{key}={value}")]
REMARKS = "The folder names data: |Pictures show public images of these|Computed each time, because the code is not "
ATTACKS = ["matched", "lti", "membership", "labels"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = write_pictures(tmp_path_factory.mktemp("data") / "pictures")
    return train_run(tmp_path_factory.mktemp("runs") / "run", data)


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise ARGUMENTS`` by its entry point, in a folder of its own."""
    return entry_point(tmp_path, monkeypatch, capfd)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def document(done: Done) -> Any:
    """The one JSON document on standard output; on standard error remarks, and progress where a machine is slow."""
    assert [line for line in done.err.splitlines() if not re.match(rf"\d+% after |{REMARKS}", line)] == []
    return json.loads(done.out, parse_constant=refuse)


def only_line(done: Done) -> str:
    assert done.out == ""
    (line,) = done.err.strip().splitlines()
    assert line.startswith("error: ")
    return line


def quick(*more: str, attack: str = "lti") -> list[str]:
    return ["audit", "run", "--attack", attack, "--targets", "2", "--snapshots", "0", *CHEAP, *more]


# --- what it prints and writes ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_json_is_one_document_and_the_file(command: Command, folder: Path) -> None:
    result = document(command("audit", "run", "--targets", "2", *CHEAP, "--set", "twins=false", "--json"))
    assert result == json.loads((folder / "audit.json").read_text(), parse_constant=refuse)
    assert list(dict.fromkeys(row["attack"] for row in result["attacks"])) == ATTACKS
    assert sorted({row["round"] for row in result["attacks"]}) == [0, 1, 3]
    assert result["options"]["releases"] == 2
    assert result["targets"] == "public"


def test_the_table_shows_defences_controls_and_what_is_not_claimed(command: Command, folder: Path) -> None:
    done = command(*quick(attack="lti,membership,labels"))
    assert done.code == 0
    text = " ".join(done.out.split())
    for words in ("none", "pl-identical @ 0.98", "pl-learn @ 0.98", "95 %", "static", "chance"):
        assert words in text
    for words in ("lti MSE", "lti SSIM", "membership AUC", "labels right"):
        assert words in text
    for words in (
        "proved:",
        "measured:",
        "not claimed: That these results imply (epsilon, delta)",
        "Insufficient evidence: 2 releases, and a result takes 20.",
    ):
        assert words in text
    for words in ("black: MSE", "class mean: MSE", "noise: MSE"):
        assert words in text
    assert "CAP of" not in text, "the accuracy is that of the last round, the error would be that of the first"
    assert "auditing run, public images over 2 label sets" in text
    assert "3 federations x 1 snapshot: 4 cells" in text
    assert re.search(r"each attacked by lti, membership, labels on 2 releases. The folder names data: .*", text)
    assert re.search(r"PATH. About \d+ s on this machine.", text)
    assert not re.search(r"(epsilon|delta)\s*[=<]\s*\d", text)
    ElementTree.parse(folder / "audit.svg")


def test_accuracy_times_error_is_shown_for_the_last_round(command: Command, folder: Path) -> None:
    done = command("audit", "run", "--attack", "lti", "--targets", "2", "--snapshots", "0,3", *CHEAP)
    assert done.code == 0
    text = " ".join(done.out.split())
    for name in ("none", "pl-identical", "pl-learn"):
        assert f"CAP of {name} against lti, round 3" in text
    assert text.count("CAP of") == 3


def test_private_images_are_announced(command: Command, folder: Path) -> None:
    done = command(*quick("--private"))
    assert done.code == 0
    assert "PRIVATE images" in done.out
    assert json.loads((folder / "audit.json").read_text())["targets"] == "private"


def test_no_private_image_is_left_by_a_public_audit(command: Command, folder: Path) -> None:
    command(*quick("--private"))
    assert (folder / "audit.svg").exists()
    done = command(*quick(attack="labels"))
    text = " ".join(done.out.split())
    assert "it is kept as audit-1.json. Its picture showed private images, and was removed." in text
    assert [path.name for path in folder.glob("*.svg")] == []
    assert json.loads((folder / "audit-1.json").read_text())["targets"] == "private"


def test_what_was_read_and_not_computed_is_said(command: Command, folder: Path) -> None:
    first = document(command(*quick("--json")))
    second = document(command(*quick("--json")))
    assert first["results"]["read"] == second["results"]["computed"] == 0
    assert first["results"]["computed"] == second["results"]["read"] == 4
    (note,) = set(second["notes"]) - set(first["notes"])
    assert note.startswith("4 of 4 results were read from the folder, where an earlier audit of yours kept them")
    assert "--fresh computes them again" in note


def test_a_second_audit_keeps_what_it_lacks_of_the_first(command: Command, folder: Path) -> None:
    command(*quick(attack="lti"))
    first = contents(folder)
    done = command(*quick(attack="labels"))
    second = contents(folder)
    assert {row["attack"] for row in json.loads(second["audit.json"])["attacks"]} == {"labels"}
    assert second["audit-1.json"] == first["audit.json"]
    assert second["audit-1.svg"] == first["audit.svg"]
    assert "audit.svg" not in second, "no picture of another audit is left beside it"
    assert "it is kept as audit-1.json" in " ".join(done.out.split())
    for name in first.keys() - {"audit.json", "audit.svg"}:
        assert second[name] == first[name], f"{name} is the run's own"
    done = command(*quick(attack="labels,lti"))
    third = contents(folder)
    assert "kept as" not in done.out, "this one has all of the second"
    assert {name for name in third if name.startswith("audit") and "/" not in name} == {
        "audit.json", "audit.svg", "audit-1.json", "audit-1.svg",
    }  # fmt: skip
    assert "4 of 4 cells were already there." in done.out


def test_the_options_reach_the_attacks(command: Command, folder: Path) -> None:
    result = document(command(*quick("--set", "samples=30", "--set", "tv=0", "--set", "condition_on=best", "--json")))
    assert (result["options"]["samples"], result["options"]["tv"], result["options"]["condition_on"]) == (30, 0, "best")


@pytest.mark.parametrize("attack", ["labels,multi-round", "multi-round"])
def test_releases_of_all_rounds_can_be_combined(command: Command, folder: Path, attack: str) -> None:
    result = document(command(*quick("--json", attack=attack)))
    assert [row["mechanism"] for row in result["multi_round"]] == ["none", "pl-identical", "pl-learn"]
    done = command(*quick(attack=attack))
    assert done.code == 0
    assert "over 3 rounds: an image of the client is in" in " ".join(done.out.split())


def test_an_attack_of_ones_own_is_called_by_its_name(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered before the command runs, as a plugin or a script of one's own would do it."""
    labels = find("labels")
    mine = replace(labels, name="mine", options={**labels.options, "extra": Option(3)})
    monkeypatch.setitem(REGISTERED, "mine", mine)
    result = document(command(*quick("--set", "extra=5", "--json", attack="mine")))
    assert {row["attack"] for row in result["attacks"]} == {"mine"}
    assert result["options"]["extra"] == 5
    error = document(command(*quick("--set", "extra=x", "--json")))["error"]
    assert "Expected extra='x' to be of type int" in error["cause"]


def test_help_has_a_phrase_for_every_attack_and_says_which_draw(command: Command) -> None:
    text = " ".join(command("audit", "--help").out.replace("│", " ").split())
    assert "With an attack that draws (lti, invgrad, dlg, idlg, likelihood, unrolled) also audit.svg" in text
    phrases = audit_command.ATTACKS
    assert set(phrases) == set(known_attacks())
    assert all(f"{name}: {does}" in text and len(does.split()) <= 9 for name, does in phrases.items())


def test_help_has_examples(command: Command) -> None:
    done = command("audit", "--help")
    assert done.code == 0
    assert re.search(r"Examples:\s+equipoise audit runs/a", done.out)
    for option in ("--attack", "--targets", "--snapshots", "--private", "--quick", "--fresh", "--set", "--json"):
        assert option in done.out


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "sampels=30"], "Did you mean 'samples'?"),
        (["--set", "samples=many"], "samples='many' to be of type int"),
        (["--set", "samples=2.5"], "to be of type int"),
        (["--set", "iterations=true"], "to be of type int"),
        (["--set", "signed=1"], "to be of type bool"),
        (["--set", "samples"], "--set key=value"),
        (["--set", "releases=3"], "Unknown attack option 'releases'"),
        (["--set", "condition_on=much"], "condition_on='much'"),
        (["--set", "samples=1"], "samples=1 (at least 10)"),
        (["--attack", "invgard"], "Did you mean 'invgrad'?"),
        (["--attack", "nope"], "labels, verify, multi-round."),
        (["--attack", "multiround"], "Did you mean 'multi-round'?"),
        (["--attack", ","], "attack"),
        (["--targets", "1"], "releases=1 (at least 2)"),
        (["--snapshots", "7"], "There are: 0, 1, 2, 3."),
        (["--snapshots", "x"], "x"),
        (["--snapshots", "1.5"], "1.5"),
        (["--snapshots", ","], "There are: 0, 1, 2, 3."),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line_and_exit_code_11(
    command: Command, folder: Path, more: list[str], words: str
) -> None:
    done = command(*quick("--json", *more))
    assert done.code == 11
    error = document(done)["error"]
    assert error["type"] == "ConfigError"
    assert words in error["cause"] + error["remedy"]
    assert not (folder / "audit.json").exists()


def test_a_mistake_for_people_is_one_line(command: Command, folder: Path) -> None:
    assert "Did you mean 'samples'?" in only_line(command("audit", "run", "--set", "sampels=30"))


def test_a_folder_that_is_no_run_is_one_line(command: Command, tmp_path: Path) -> None:
    done = command("audit", "absent")
    assert done.code == 11
    assert "There is no folder absent" in only_line(done)
    assert not (tmp_path / "absent").exists()
    (tmp_path / "other").mkdir()
    done = command("audit", "other", "--json")
    assert done.code == 16
    assert document(done)["error"]["type"] == "CheckpointError"
    assert "no config.toml" in document(done)["error"]["cause"]
    assert contents(tmp_path / "other") == {}


def test_without_a_folder_it_is_a_usage_error(command: Command) -> None:
    done = command("audit")
    assert (done.code, done.out) == (2, "")
    assert "RUN" in done.err


def test_an_audit_that_fails_leaves_the_earlier_one(command: Command, folder: Path) -> None:
    assert command(*quick("--json")).code == 0
    before = contents(folder)
    assert command(*quick("--snapshots", "7")).code == 11
    assert contents(folder) == before
    snapshot = folder / "snapshots" / "round-000001.safetensors"
    snapshot.write_bytes(b"damaged")
    done = command(*quick("--snapshots", "0,1", "--json"))
    assert done.code == 16
    assert "round-000001.safetensors" in document(done)["error"]["cause"]
    after = contents(folder)
    assert {name: after[name] for name in ("audit.json", "audit.svg")} == {
        name: before[name] for name in ("audit.json", "audit.svg")
    }


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the second cell is attacked."""
    interrupt(monkeypatch, 2)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_audit_writes_what_was_finished(command: Command, folder: Path) -> None:
    done = command(*quick())
    assert done.code == 130
    assert "Traceback" not in done.err
    text = " ".join(done.out.split())
    first = "Interrupted: 1 of 4 cells is finished; nothing yet on pl-identical, pl-learn. "
    assert text.index(first) < text.index("Next: run the same command again. ")
    assert "run/audit.json" in text
    stored = json.loads((folder / "audit.json").read_text(), parse_constant=refuse)
    assert stored["complete"] is False
    assert [(row["mechanism"], row["control"]) for row in stored["attacks"]] == [("none", None), ("none", "negative")]
    ElementTree.parse(folder / "audit.svg")


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_audit_says_how_to_go_on_and_does(command: Command, folder: Path) -> None:
    assert "run the same command again to go on" in " ".join(command(*quick()).err.split())
    done = command(*quick())  # the third cell that is attacked is not interrupted
    assert done.code == 0
    assert "1 of 4 cells were already there." in done.out
    assert json.loads((folder / "audit.json").read_text())["complete"] is True
    assert not (folder / "audit-1.json").exists(), "the partial one is part of the whole"


def test_interrupted_before_anything_is_finished_it_says_so_too(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 1)
    done = command(*quick())
    assert done.code == 130
    assert "interrupted. Nothing was finished yet: the same command begins anew." in " ".join(done.err.split())
    assert not (folder / "audit.json").exists()


@pytest.mark.parametrize("rounds", ["0", "-5"])
def test_no_releases_to_combine_are_refused_before_the_plan(command: Command, folder: Path, rounds: str) -> None:
    done = command("audit", str(folder), "--attack", "multi-round", "--multi-rounds", rounds)
    assert done.code == ConfigError.exit_code
    assert f"Expected --multi-rounds {rounds} to be at least 1" in " ".join(done.err.split())
    assert "replays" not in done.out
    assert not (folder / "audit.json").exists()


def test_a_file_is_not_taken_for_a_folder_that_is_missing(command: Command, folder: Path) -> None:
    done = command("audit", str(folder / "config.toml"))
    assert "config.toml is a file" in " ".join(done.err.split())


KILLED = """
import os, signal, sys
from equipoise.auditing.store import Store
from equipoise.cli.app import main
genuine, kept = Store.put, []
def put(self, name, outcome, probe):
    genuine(self, name, outcome, probe)
    kept.append(name)
    if len(kept) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Store.put = put
sys.argv = ["equipoise", *sys.argv[1:]]
main()
"""


def test_an_audit_that_was_killed_between_two_cells_goes_on(
    command: Command, folder: Path, tmp_path: Path, trained: Path
) -> None:
    """kill -9 after the second cell; then one of the two is damaged, and half of another was being written."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *quick()], cwd=tmp_path, env=single_threaded(), capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "audit.json").exists()
    kept = sorted((folder / "audit").iterdir())
    assert len(kept) == 2
    (folder / "audit" / ".half.npz.partial").write_bytes(kept[0].read_bytes()[:50])
    kept[0].write_bytes(kept[0].read_bytes()[:-40])
    second = command(*quick())
    assert second.code == 0
    assert "1 of 4 cells were already there." in second.out
    went_on = json.loads((folder / "audit.json").read_text())
    shutil.copytree(trained, tmp_path / "whole")
    assert command("audit", "whole", *quick()[2:]).code == 0
    whole = json.loads((tmp_path / "whole" / "audit.json").read_text())
    assert (went_on.pop("results"), whole.pop("results")) == ({"read": 1, "computed": 3}, {"read": 0, "computed": 4})
    assert went_on["notes"].pop(0).startswith("1 of 4 results were read from the folder")
    assert went_on == whole
    assert (folder / "audit.svg").read_bytes() == (tmp_path / "whole" / "audit.svg").read_bytes()


def test_fresh_computes_all_again(command: Command, folder: Path) -> None:
    assert command(*quick()).code == 0
    before = contents(folder)
    done = command(*quick("--fresh"))
    assert done.code == 0
    assert "already there" not in done.out
    assert contents(folder) == before, "and comes to the same"


def test_quick_says_what_it_reduces_and_explicit_options_win(command: Command, folder: Path) -> None:
    effort = [word for word in CHEAP if not word.startswith(("--set", "samples", "candidates"))]
    more = [part for word in effort for part in ("--set", word)]
    done = command("audit", "run", "--attack", "labels", "--snapshots", "0", "--quick", "--targets", "3", *more)
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "--quick: releases 3 (usually 32)" in text
    assert max(map(len, done.out.partition("About")[0].splitlines())) <= 80
    assert "candidates 50 (usually 100)" in text
    stored = json.loads((folder / "audit.json").read_text())["options"]
    assert (stored["releases"], stored["samples"], stored["around"]) == (3, 300, 4)
    help_text = " ".join(command("audit", "--help").out.replace("│", " ").split())
    assert "20 releases over 1 label set" in help_text


@pytest.mark.parametrize(("attack", "told"), [("matched", True), ("multi-round", True), ("labels", False)])
def test_quick_says_only_what_plays_a_part(command: Command, tmp_path: Path, attack: str, told: bool) -> None:
    data = write_pictures(tmp_path / "pictures")
    sweep = {"datasets": [str(data)], "mechanisms": ["gaussian-dp"], "budgets": [2.0]}
    overrides = {"rounds": 1, "model": "mlp", "public_fraction": 0.6}
    Run(tmp_path / "run", resolve(overrides=overrides, sweep=sweep)).execute()
    done = command("audit", "run", "--attack", attack, "--snapshots", "0", "--quick", "--set", "games=4")
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if line.startswith("--quick")]
    assert lines == ["--quick: games 4 (usually 500)"] * told
    assert done.out.startswith("auditing run, public images\n"), "no label sets in these games"


def test_how_public_files_are_read_can_be_said(command: Command, tmp_path: Path) -> None:
    def table(name: str, header: str, first: str, start: float) -> str:
        rows = [f"{first}{'no' if n % 3 else 'yes'},{start + n * 0.01:.2f},{n % 2}" for n in range(160)]
        (tmp_path / name).write_text("\n".join([header, *rows]))
        return str(tmp_path / name)

    own = table("own.csv", "id,sick,x,flag", "7,", 0)
    train_run(tmp_path / "run", own, ("none",), rounds=1, snapshots=[0], target="sick", drop=["id"])
    public = table("other.csv", "ill,x,flag", "", 2)
    line = only_line(command(*quick("--public", public, attack="labels")))
    assert "read with target='sick', drop=['id']" in line
    assert "--set target=COLUMN" in line
    done = command(*quick("--public", public, "--set", "target=ill", "--set", "drop=none", "--json", attack="labels"))
    assert json.loads(done.out)["complete"]


def test_a_run_without_public_images_is_refused_with_what_helps(command: Command, tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "pictures")
    train_run(tmp_path / "run", data, ("none",), public_fraction=0.0)
    done = command("audit", "run")
    assert done.code == 12
    line = only_line(done)
    assert "Dataset 'pictures' has no public images" in line
    assert (
        "Name public data with --public PATH (public= in Python), or train again with --set public_fraction=0.1."
        in line
    )
    assert not (tmp_path / "run" / "audit").exists()


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_audit_as_json_is_one_document_and_exit_code_130(command: Command, folder: Path) -> None:
    done = command(*quick("--json"))
    result = json.loads(done.out, parse_constant=refuse)
    assert result == json.loads((folder / "audit.json").read_text(), parse_constant=refuse)
    assert result["complete"] is False
    assert done.code == 130
    assert "run the same command again to go on" in " ".join(done.err.split()), "standard output is the document alone"


def test_as_json_progress_is_told_on_standard_error_as_in_a_pipe(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "EVERY", 0.0)
    done = command(*quick("--json"))
    assert json.loads(done.out, parse_constant=refuse)["complete"] is True
    lines = [line for line in done.err.splitlines() if not re.match(REMARKS, line)]
    assert lines
    assert all(re.match(r"\d+% after \d+ s, ", line) for line in lines)


def test_as_json_the_data_that_the_folder_names_is_told_on_standard_error(command: Command, folder: Path) -> None:
    told, shown = [line for line in command(*quick("--json")).err.splitlines() if re.match(REMARKS, line)]
    assert re.fullmatch(r"The folder names data: .*pictures, public_fraction [\d.]+\.", told)
    assert shown.endswith("name others with --public PATH.")


def test_an_audit_that_was_not_interrupted_is_complete(command: Command, folder: Path) -> None:
    assert document(command(*quick("--json")))["complete"] is True


def test_a_run_folder_in_use_is_left_alone(command: Command, folder: Path) -> None:
    from equipoise.files import locked

    with locked(folder):
        done = command(*quick("--json"))
    assert done.code == 16
    assert "Another process" in document(done)["error"]["cause"]


@pytest.mark.slow
def test_a_process_of_its_own_keeps_the_streams_apart(folder: Path, tmp_path: Path) -> None:
    done = equipoise(*quick("--json"), cwd=tmp_path)
    assert document(Done(done.returncode, done.stdout, done.stderr))["attacks"]
    assert done.returncode == 0
    done = equipoise("audit", "run", "--set", "sampels=3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (11, "")
    assert "Traceback" not in done.stderr
