"""``equipoise calibrate`` on a model: tables, sentences, one JSON document, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from equipoise.choosing.model_calibration import ModelCalibration
from equipoise.runs.config import resolve
from tests.helpers import Command, document

CODE = """
from torch import nn
def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], classes))
"""
STATIC = ("calibrate", "--mechanism", "pl-identical")


@pytest.fixture(autouse=True)
def _small(small_mnist: None) -> None:
    """The public part of a few images will do."""


def told(command: Command, *arguments: str) -> str:
    done = command(*arguments)
    assert done.code == 0, done
    return " ".join(done.out.split())


def test_the_ratio_and_what_matched_is_expected_to_find(command: Command) -> None:
    arguments = (*STATIC, "--model", "mlp", "--budget", "0.98")
    result = document(command(*arguments, "--json"))
    assert result["lower"] == 7.99975
    on = result["model"]
    assert (on["model"], on["dataset"], on["candidates"]) == ("mlp", "mnist", 25)
    assert on["ratios"][-1]["tensor"] == "whole"
    text = told(command, *arguments)
    assert f"{on['ratios'][-1]['ratio']:.3g}" in text
    assert (
        f"it finds {on['identification']:.1%} of examples among 25 candidates of their class (chance finds 4.0%)"
        in text
    )
    assert "It is no bound" in text
    assert "guesses that use no update" not in text, "which are of pictures that may be other ones"
    assert "simulating 1,124 updates of public mnist, over 4 labels, about" in text
    assert "warning: a PL budget of 0.98 asks for a norm of 8 whatever the model" in text
    assert on["constants"].endswith("not of yours with 50,890"), "and no advice to do what is being done"


def test_the_share_that_is_found_is_that_of_the_budget(command: Command) -> None:
    """At a budget at which neither all nor none are found."""
    settings = resolve(overrides={"model": "mlp"}, sweep={"mechanisms": ["none"]}).settings
    seen = ModelCalibration.of(settings, "mnist", "pl-identical").identification()
    rate = seen.rate(settings.protection.at("pl-identical", 0.5, 1))
    assert 1 / seen.candidates < rate < 1
    result = document(command(*STATIC, "--model", "mlp", "--budget", "0.5", "--json"))
    assert result["model"]["identification"] == pytest.approx(rate, abs=1e-6)


def test_the_budget_for_a_wanted_share_needs_no_budget(command: Command) -> None:
    arguments = (*STATIC, "--model", "mlp", "--identification", "0.3", "--set", "init=torch")
    result = document(command(*arguments, "--json"))
    assert set(result) == {"model"}
    found = result["model"]["wanted"]
    assert 0 < found["budget"] < 1
    assert f"for 30.0% at most (chance finds 4.0%): budget {found['budget']:g}, noise" in told(command, *arguments)


def test_a_share_that_no_budget_reaches_is_said(command: Command) -> None:
    text = told(command, *STATIC, "--model", "mlp", "--identification", "0.3", "--set", "leakage.D=0.001")
    assert "for which no budget of pl-identical with these constants is strict enough" in text


def test_a_dataset_alone_is_measured_on_its_default_model_and_its_constants_are_its_own(command: Command) -> None:
    result = document(command(*STATIC, "--dataset", "mnist", "--budget", "0.98", "--json"))
    assert result["model"]["model"] == "lenet-zhu"
    assert result["model"]["constants"] is None


def test_the_weights_of_a_run_with_its_settings(command: Command, tmp_path: Path) -> None:
    assert command("train", "--mechanism", "none", "--rounds", "2", "--model", "mlp", "--out", "run").code == 0
    result = document(command(*STATIC, "--run", "run", "--budget", "0.98", "--json"))["model"]
    assert (result["model"], result["weights"]) == ("mlp", "the weights of run after round 2")
    again = document(command(*STATIC, "--run", "run", "--set", "eta=0.01", "--budget", "0.98", "--json"))["model"]
    assert again["ratios"][-1]["ratio"] == pytest.approx(10 * result["ratios"][-1]["ratio"], rel=1e-3)


def test_code_of_the_users_own_and_of_a_run_that_names_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net_of_test.py").write_text(CODE)
    monkeypatch.delitem(sys.modules, "net_of_test", raising=False)
    named = ("--model", "net_of_test:make")
    assert document(command(*STATIC, *named, "--budget", "0.98", "--json"))["model"]["ratios"][-1]["numbers"] == 7850
    assert command("train", "--mechanism", "none", "--rounds", "1", *named, "--out", "run").code == 0
    done = command(*STATIC, "--run", "run", "--budget", "0.98")
    assert done.code == 11
    assert "Name it yourself: --model net_of_test:make" in " ".join(done.err.split())
    assert command(*STATIC, "--run", "run", *named, "--budget", "0.98").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "mlp", "--identification", "0.01"], "to lie between chance, 1/25, and 1"),
        (["--model", "mpl", "--budget", "0.98"], "Did you mean 'mlp'"),
        (["--run", "absent", "--budget", "0.98"], "There is no folder absent"),
        (["--model", "mlp"], "needs a budget"),
        (["--model", "mlp", "--mechanism", "gaussian-dp", "--budget", "2"], "equipoise guarantee"),
    ],
)
def test_what_cannot_be_measured_is_refused(command: Command, arguments: list[str], words: str) -> None:
    done = command(*STATIC, *arguments)
    assert done.code in (11, 14)
    assert words in " ".join(done.err.split())


def test_data_is_another_name_of_dataset(command: Command) -> None:
    found = document(command(*STATIC, "--data", "mnist", "--budget", "0.98", "--json"))["model"]
    assert (found["dataset"], found["labels"]) == ("mnist", 4)


def test_what_is_simulated_is_told_while_it_is(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.cli.display.EVERY", 0.0)
    done = command(*STATIC, "--model", "mlp", "--budget", "0.98")
    assert "simulating: update 1124 of 1124 after" in done.err
    assert " left" in done.err
