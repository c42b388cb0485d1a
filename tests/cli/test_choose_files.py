"""The files of a decision work as they are: a run, a Flower run config, and a policy that admits just that."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.supercore.task_identity import TaskIdentity

from equipoise.choosing import choose as module
from equipoise.choosing.choose import choosing
from equipoise.choosing.decision import Decision
from equipoise.cli import choose_files
from equipoise.cli.choose_files import check_folder, config_text, flower_text, write_files
from equipoise.errors import CheckpointError, ConfigError, PolicyError, StorageError
from equipoise.files import locked
from equipoise.flower import run_config as run_config_module
from equipoise.flower.admission import admitted
from equipoise.flower.policy import read_policy
from equipoise.flower.policy_file import show_policy
from equipoise.flower.run_config import read_terms
from equipoise.runs.config import resolve
from tests.choosing.toys import chosen, toy
from tests.flower.messages import asking, context
from tests.helpers import Command, document, entry_point

ONE = {"server_rate": 0.3}


@pytest.fixture(scope="module")
def decision() -> Decision:
    return replace(chosen(toy(name="breast-cancer"), epsilon=8, settings=ONE), dataset="breast-cancer")


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower takes the ids of a message from its process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return entry_point(tmp_path, monkeypatch, capfd)


@pytest.fixture
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture's module, where it is not there yet."""
    stub = ModuleType("equipoise.report.frontier_picture")
    stub.Mark = stub.Panel = lambda **about: about  # type: ignore[attr-defined]
    stub.picture = lambda panels, **about: f"<svg>{panels}</svg>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stub.__name__, stub)


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """As Flower hands the tables of a run config to an app."""
    result: dict[str, Any] = {}
    for key, value in tables.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return result


def run_config(found: Decision) -> dict[str, Any]:
    return flat(tomllib.loads(flower_text(found))["tool"]["flwr"]["app"]["config"])


def test_train_runs_with_the_written_configuration(decision: Decision, tmp_path: Path, command: Command) -> None:
    write_files(decision, tmp_path / "choice")
    found = document(command("train", "--config", "choice/choice.toml", "--out", "run", "--json"))
    (row,) = found["federations"]
    assert (row["mechanism"], row["budget"], row["dataset"]) == ("gaussian-dp", 8.0, "breast-cancer")
    assert row["rounds"] == 3 if "rounds" in row else True
    read = resolve(tmp_path / "choice" / "choice.toml")
    assert read.settings == decision.settings
    assert read.settings.protection.gaussian.divisor == decision.records


def test_the_run_config_is_admitted_by_the_policy_and_refused_by_a_stricter_one(
    decision: Decision, tmp_path: Path
) -> None:
    write_files(decision, tmp_path / "choice")
    terms = read_terms(run_config(decision))
    assert (terms.mechanism.name, terms.budget) == ("gaussian-dp", 8.0)
    assert terms.settings.gaussian.rounds == run_config(decision)["num-server-rounds"] == 3
    assert terms.settings.eta == pytest.approx(decision.settings.training.server_rate)
    path = tmp_path / "choice" / "policy.toml"
    admission = admitted(asking(), context(run_config(decision)), read_policy(path))
    assert admission.reservation is not None
    assert (admission.reservation.epsilon, admission.reservation.divisor) == (8.0, decision.records)
    assert any("breast-cancer" in line for line in show_policy(path))
    for key, value in (("most-epsilon = 8.0", "most-epsilon = 7.9"), ("most-delta = 1e-05", "most-delta = 1e-06")):
        text = path.read_text()
        assert key in text
        stricter = path.with_name("stricter.toml")
        stricter.write_text(text.replace(key, value))
        stricter.chmod(0o600)
        with pytest.raises(PolicyError):
            admitted(asking(), context(run_config(decision)), read_policy(stricter))


def test_a_second_run_is_not_within_the_policy(decision: Decision, tmp_path: Path) -> None:
    write_files(decision, tmp_path / "choice")
    policy = read_policy(tmp_path / "choice" / "policy.toml")
    mechanism = read_terms(run_config(decision)).mechanism
    policy.permit_spending(mechanism, (0.0, 0.0), (8.0, 1e-5))
    with pytest.raises(PolicyError, match="most-total-epsilon"):
        policy.permit_spending(mechanism, (8.0, 1e-5), (8.0, 1e-5))


def test_noise_without_a_proof_is_written_without_an_epsilon(decision: Decision, tmp_path: Path) -> None:
    keys = {"model": "mlp", "rounds": 5, "server_rate": "auto", "server_momentum": 0.0, "batch": 20}
    static = replace(
        decision, mechanism="pl-identical", budget=0.98, sigma=None, settings=decision.settings.replace(**keys)
    )
    write_files(static, tmp_path / "choice")
    assert "epsilon" not in flower_text(static).replace("any epsilon", "")
    found = admitted(asking(), context(run_config(static)), read_policy(tmp_path / "choice" / "policy.toml"))
    assert (found.terms.mechanism.name, found.budget) == ("pl-identical", 0.98)
    assert run_config(static)["server-learning-rate"] == pytest.approx(
        static.settings.server_rates(static.config().federations()[0], [1], 2114)[0], rel=1e-4
    )
    assert resolve(tmp_path / "choice" / "choice.toml").federations()[0].mechanism == "pl-identical"


def test_constants_of_a_release_are_those_of_the_run_config_and_of_the_policy(
    decision: Decision, tmp_path: Path
) -> None:
    keys = {"model": "mlp", "rounds": 5, "server_rate": "auto", "leakage": {"D": 90.0}, "factor": 3.0, "clip": None}
    settings = decision.settings.replace(**keys, server_momentum=0.0, batch=20)
    static = replace(decision, mechanism="pl-identical", budget=0.98, sigma=None, settings=settings)
    write_files(static, tmp_path / "choice")
    policy = read_policy(tmp_path / "choice" / "policy.toml")
    found = admitted(asking(), context(run_config(static)), policy)
    assert (found.terms.settings.leakage.D, found.terms.settings.factor, found.terms.settings.clip) == (90.0, 3.0, None)
    usual = static.settings.protection.at("pl-identical", 0.98, 1).scale
    assert policy.mechanisms["pl-identical"]["least-intensity"] == pytest.approx(usual, rel=0.01)
    assert usual > 1.1 * decision.settings.protection.at("pl-identical", 0.98, 1).scale
    assert "leakage" not in flower_text(decision), "defaults are not repeated"


@pytest.mark.parametrize("key", ["batch", "local_steps"])
def test_what_no_run_config_takes_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        choosing(toy(), identification=0.02, measured_only=True, settings={key: 2})


def test_the_unit_of_the_policy_is_that_of_the_choice(decision: Decision, tmp_path: Path) -> None:
    write_files(replace(decision, unit="group"), tmp_path / "groups")
    write_files(decision, tmp_path / "records")
    units = [
        read_policy(tmp_path / name / "policy.toml").mechanisms["gaussian-dp"]["unit"] for name in ("groups", "records")
    ]
    assert units == ["group", "record"]


def test_what_does_not_meet_its_limit_is_not_written_as_if_it_did(decision: Decision, tmp_path: Path) -> None:
    written = write_files(replace(decision, met=False), tmp_path / "choice")
    assert [path.name for path in written] == ["choice.json"]
    assert {path.name for path in (tmp_path / "choice").iterdir()} == {"choice.json", ".lock"}


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    check_folder(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="not an empty folder"):
        check_folder(tmp_path)
    (tmp_path / "policy.toml").write_text("mine")
    with pytest.raises(StorageError, match=r"has the policy\.toml of another choice") as error:
        check_folder(tmp_path)
    assert "--out choice-2" in error.value.remedy


def test_a_folder_that_cannot_be_is_refused_before_the_search(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "load_dataset", lambda own, name: pytest.fail("searched"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, said in (
        ("file", "is a file"),
        ("file/choice", "is a file"),
        ("dangling", "is a link that leads nowhere"),
    ):
        done = command("choose", "--dataset", "breast-cancer", "--epsilon", "8", "--out", name)
        assert done.code == 17
        assert said in done.err
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_link_to_a_folder_of_ones_own_is_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "choice").symlink_to(tmp_path / "disk")
    check_folder(tmp_path / "choice")


def test_a_folder_that_takes_no_files_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes, mode: int = 0o666) -> None:
        raise StorageError("Cannot write: no space.", "Free some.")

    monkeypatch.setattr(choose_files, "write_bytes", full)
    with pytest.raises(StorageError, match="no space"):
        check_folder(tmp_path / "new")


def test_the_decision_is_shown_though_writing_it_fails(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*about: Any) -> None:
        raise StorageError("Cannot write: no space.", "Free some.")

    monkeypatch.setattr(module, "load_dataset", lambda own, name: toy(name=name))
    monkeypatch.setattr(choose_files, "write_files", full)
    fast = ("--quick", "--set", "rounds=2", "--set", "server_rate=0.3", "--set", "server_momentum=0.5")
    asked = ("choose", "--dataset", "breast-cancer", "--epsilon", "8", *fast, "--out", "choice")
    done = command(*asked)
    assert done.code == 17
    assert "Deploy gaussian-dp with epsilon 8" in " ".join(done.out.split())
    assert "written to" not in done.out
    assert not (tmp_path / "choice").exists(), "what holds nothing is taken away again"
    done = command(*asked, "--json")
    assert done.code == 17
    assert json.loads(done.out)["error"]["type"] == "StorageError", "one document"
    assert "Deploy gaussian-dp with epsilon 8" in " ".join(done.err.split())


def test_two_searches_do_not_mix_their_choices(decision: Decision, tmp_path: Path) -> None:
    folder = tmp_path / "choice"
    check_folder(folder)
    check_folder(folder)  # the second search begins before the first has written anything
    write_files(decision, folder)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StorageError, match="of another choice"):
        write_files(replace(decision, budget=4.0), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    with locked(tmp_path / "busy"), pytest.raises(CheckpointError, match="Another process"):
        write_files(decision, tmp_path / "busy")
    assert [path.name for path in (tmp_path / "busy").iterdir()] == [".lock"]


def test_the_ledger_comes_first(decision: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: str) -> None:
        raise StorageError("Cannot write: no space.", "Free some.")

    monkeypatch.setattr(choose_files, "write_text", full)
    with pytest.raises(StorageError):
        write_files(decision, tmp_path / "choice")
    assert (tmp_path / "choice" / "ledger.jsonl").exists()


def test_the_claims_stand_in_the_files(decision: Decision) -> None:
    for text in (config_text(decision), flower_text(decision)):
        assert all(sentence in text for sentence in decision.sentences())


@pytest.mark.usefixtures("_drawn")
def test_the_command_writes_them_all(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_dataset", lambda own, name: toy(name=name))
    fast = ("--quick", "--set", "rounds=2", "--set", "server_rate=0.3", "--set", "server_momentum=0.5")
    asked = ("choose", "--dataset", "breast-cancer", "--epsilon", "8", *fast, "--out", "choice")
    done = command(*asked)
    assert done.code == 0, done
    names = {"choice.json", "choice.toml", "flower.toml", "policy.toml", "ledger.jsonl", "choice.svg"}
    assert names <= {path.name for path in (tmp_path / "choice").iterdir()}
    assert "try it: equipoise train --config choice/choice.toml" in done.out
    assert "'chosen': True" in (tmp_path / "choice" / "choice.svg").read_text()
    assert command(*asked).code == 17, "nothing is written over"


def test_the_tables_may_stand_in_place_of_those_of_a_new_app(decision: Decision) -> None:
    """The app reads its run config by name: none of its keys may be lost with the tables that are replaced."""
    template = Path(run_config_module.__file__).parent / "template"
    app = tomllib.loads((template / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    ours = tomllib.loads(flower_text(decision))["tool"]["flwr"]["app"]["config"]
    read = set(re.findall(r'config\["([a-z-]+)"\]', (template / "flower_app" / "server_app.py").read_text()))
    assert read <= ours.keys()
    assert {name for name, value in app.items() if not isinstance(value, dict)} <= ours.keys()


def test_a_file_is_named_so_that_the_choice_works_from_anywhere(decision: Decision) -> None:
    own = replace(decision, dataset="mine.csv")
    (named,) = tomllib.loads(config_text(own))["sweep"][0]["datasets"]
    assert Path(named).is_absolute()
    assert tomllib.loads(config_text(replace(decision, dataset="mnist")))["sweep"][0]["datasets"] == ["mnist"]
