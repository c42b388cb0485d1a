"""``equipoise calibrate``: known bounds, guesses for scale, the search."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.data.dataset import Dataset
from tests.helpers import Command, document


def test_calibrate_gives_the_papers_bounds(command: Command) -> None:
    result = document(command("calibrate", "--mechanism", "pl-learn", "--budget", "0.96", "--json"))
    assert (result["lower"], result["upper"], result["scale"]) == (15.99975, 31.9995, None)
    assert (result["mechanism"], result["budget"], result["norm"]) == ("pl-learn", 0.96, "l2")
    result = document(command("calibrate", "--mechanism", "pl-identical", "--budget", "0.995", "--json"))
    assert (result["lower"], result["upper"], result["scale"]) == (1.99975, 1.99975, None)


def test_calibrate_gives_a_scale_where_bounds_follow_from_the_draw(command: Command) -> None:
    arguments = ("calibrate", "--mechanism", "ls-learn", "--budget", "80", "--sensitivity", "10", "--json")
    result = document(command(*arguments))
    assert (result["lower"], result["upper"], result["scale"], result["norm"]) == (None, None, 0.125, "l1")
    result = document(command("calibrate", "--mechanism", "gs-static", "--budget", "4", "--sensitivity", "1", "--json"))
    assert (result["lower"], result["upper"], result["scale"], result["norm"]) == (None, None, 0.25, "l2")


def test_calibrate_follows_the_settings(command: Command) -> None:
    more = ("--set", "leakage.D=28", "--set", "factor=3")
    result = document(command("calibrate", "--mechanism", "pl-learn", "--budget", "0.96", "--json", *more))
    assert result["lower"] == pytest.approx(0.04 * 4 * 28 / 0.56 - 0.01 / 40)
    assert result["upper"] == pytest.approx(3 * result["lower"])


@pytest.mark.parametrize("diameter", [56.0, 60.0])
def test_calibrate_compares_with_guesses_that_use_no_update(command: Command, mnist: Dataset, diameter: float) -> None:
    arguments = ("calibrate", "--mechanism", "pl-learn", "--budget", "0.96", "--set", f"leakage.D={diameter}")
    result = document(command(*arguments, "--json"))["guesses"]
    assert set(result) == {"mnist", "fmnist"}
    done = command(*arguments)
    assert done.code == 0
    text = " ".join(done.out.split())
    known, targets = mnist.public_attack, mnist.public_pool
    images = targets.inputs.flatten(1).numpy()
    means = np.stack([known.inputs[known.labels == c].flatten(1).numpy().mean(0) for c in range(10)])
    black = np.full_like(images, known.inputs.min())
    for name, guess in (("black", black), ("class_mean", means[targets.labels.numpy()])):
        score = 1 - np.linalg.norm(guess - images, axis=1).mean() / diameter
        assert result["mnist"][name] == pytest.approx(score, abs=1e-5)
        assert f"{score:.2f}" in text


def test_calibrate_for_people(command: Command) -> None:
    done = command("calibrate", "--mechanism", "pl-learn", "--budget", "0.96")
    assert "L2 norm of 15.9998 to 31.9995" in " ".join(done.out.split())
    done = command("calibrate", "--mechanism", "ls-learn", "--budget", "80")
    assert "scale 0.125; the L1 bounds of what is learned follow" in " ".join(done.out.split())
    done = command("calibrate", "--mechanism", "pl-identical", "--budget", "0.96")
    assert "L2 norm of 15.9998; nothing is learned" in " ".join(done.out.split())


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
    ],
    ids=" ".join,
)  # fmt: skip
def test_calibrate_refuses_what_cannot_be(command: Command, arguments: list[str]) -> None:
    done = command("calibrate", *arguments)
    assert done.code in (11, 14), done
    assert done.out == ""
    assert done.err.strip().startswith("error: ")


@pytest.mark.parametrize(
    "former", [["--search"], ["--search", "--rounds", "600"], ["--keep", "0.5"], ["--seed", "1,2"]]
)
def test_who_searches_is_sent_to_choose(command: Command, former: list[str]) -> None:
    done = command("calibrate", "--mechanism", "pl-learn", *former)
    assert (done.code, done.out) == (11, "")
    assert "equipoise choose" in " ".join(done.err.split())
