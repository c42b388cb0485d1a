"""What a budget asks for, in numbers that are known."""

from __future__ import annotations

import pytest

from equipoise.choosing.calibration import calibration
from equipoise.errors import ConfigError
from equipoise.mechanism.protection import ProtectionSettings


def test_the_papers_bounds_with_the_guesses_beside_them() -> None:
    result = calibration(ProtectionSettings(), "pl-learn", 0.96)
    assert (result["lower"], result["upper"], result["scale"]) == (15.99975, 31.9995, None)
    assert set(result["guesses"]) == {"mnist", "fmnist"}
    assert result["guesses"]["mnist"]["black"] == pytest.approx(0.46, abs=0.01)
    assert result["claim"].endswith("No (epsilon, delta) is claimed for it.")


def test_a_scale_where_the_bounds_follow_from_the_draw() -> None:
    result = calibration(ProtectionSettings(), "ls-learn", 80)
    assert (result["lower"], result["scale"], result["norm"], result["guesses"]) == (None, 0.125, "l1", None)


def test_only_a_formal_budget_is_called_an_epsilon() -> None:
    assert "epsilon of one release" in calibration(ProtectionSettings(), "laplace-dp", 1.0)["claim"]
    assert "epsilon of one release" not in calibration(ProtectionSettings(), "ls-static", 1.0)["claim"]


def test_a_mechanism_that_learns_nothing_has_no_upper_bound_beyond_its_lower_one() -> None:
    result = calibration(ProtectionSettings(), "pl-identical", 0.995)
    assert (result["lower"], result["upper"], result["learns"]) == (1.99975, 1.99975, False)


def test_nothing_to_calibrate() -> None:
    for budget in (1.0, None):
        with pytest.raises(
            ConfigError, match=r"'none' has no budget to calibrate\. Choose one that has: pl-identical, "
        ):
            calibration(ProtectionSettings(), "none", budget)
    with pytest.raises(ConfigError, match=r"'ls-learn' needs a budget\. Give one, for example --budget 200"):
        calibration(ProtectionSettings(), "ls-learn", None)
