"""A request is checked as a whole, and its noise is the family's, piece by piece or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.mechanism import request as module
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.request import Request
from equipoise.randomness import experiment_key, uniform

NUMBERS: dict[str, Any] = {"client": 3, "round_number": 2, "experiment_seed": 5}
LIKE = torch.empty(0)


def request_for(mechanism: str, budget: Any = 50.0, **numbers: Any) -> Request:
    return Request.checked(mechanism, budget, None, 0.0, **{**NUMBERS, **numbers})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mechanism", ["ls-static", "gs-static"])
def test_noise_in_pieces_is_the_same_noise(mechanism: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    own = request_for(mechanism)
    numbers = uniform([experiment_key(5, "noise")], [3], [2], 1000, dtype)[0]
    expected = standard_noise(numbers, own.mechanism.noise)
    for piece in (1 << 20, 96):
        monkeypatch.setattr(module, "PIECE", piece)
        drawn = own.noise(1000, LIKE.to(dtype))
        assert isinstance(drawn, Tensor)
        assert torch.equal(drawn, expected)


def test_without_a_seed_no_noise_comes_twice_and_without_distortion_there_is_none() -> None:
    own = request_for("gs-static", experiment_seed=None)
    first, second = own.noise(500, LIKE), own.noise(500, LIKE)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert not torch.equal(first, second)
    assert request_for("none", None).noise(500, LIKE) is None


def test_a_formal_mechanism_gets_words_instead() -> None:
    drawn = request_for("laplace-dp").noise(10, LIKE)
    assert isinstance(drawn, list)
    assert len(drawn[0](4)) == 4


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"client": -1}, "client=-1"),
        ({"round_number": 1.5}, "round_number=1.5"),
        ({"experiment_seed": "x"}, "experiment_seed='x'"),
    ],
)
def test_numbers_that_are_none_are_refused(change: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        request_for("pl-learn", 0.98, **change)


def test_settings_and_the_ratio_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="steps=-1"):
        Request.checked("pl-learn", 0.98, ProtectionSettings(steps=-1), 0.0, **NUMBERS)
    with pytest.raises(ConfigError, match="least_relative=-1"):
        Request.checked("pl-learn", 0.98, None, -1, **NUMBERS)
