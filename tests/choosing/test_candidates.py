"""What is tried: recipes first, then what lies around them; what a user fixed stays."""

from __future__ import annotations

import pytest
from torch import nn

from equipoise.choosing.candidates import MULTIPLIERS, Candidate, candidates, models_for, recipe
from equipoise.data.dataset import Dataset
from equipoise.data.loading import load
from equipoise.engine.recommended import recommended
from equipoise.errors import ConfigError, DataError
from tests.choosing.toys import toy


def test_the_recipe_is_what_a_budget_alone_gives() -> None:
    for model in ("scatter-linear", "lenet-zhu", "lenet-tanh", "mlp"):
        own, known = recipe(model), recommended("gaussian-dp", model)
        assert own.recommended
        assert own.label() == f"{model}, recommended"
        assert (own.rounds, own.momentum, own.clip) == (
            known["rounds"], known["server_momentum"], known["gaussian"]["clip"]
        )  # fmt: skip


def test_every_model_is_tried_and_nothing_is_tried_twice() -> None:
    for quick in (True, False):
        found = candidates(["scatter-linear", "lenet-tanh", "lenet-zhu"], {}, quick=quick)
        assert len(set(found)) == len(found)
        assert {one.model for one in found} == {"scatter-linear", "lenet-tanh", "lenet-zhu"}
        assert sum(one.recommended for one in found) == (1 if quick else 3)
        assert found[0] == recipe("scatter-linear")
    assert {one.multiplier for one in found} == set(MULTIPLIERS)
    assert {one.rounds for one in found} == {25, 50, 100, 200}
    assert {(one.clip, one.momentum) for one in found} == {(c, m) for c in (0.5, 1.0) for m in (0.5, 0.8)}


def test_what_is_fixed_is_fixed_in_all() -> None:
    fixed = {"rounds": 7, "server_momentum": 0.1, "gaussian.clip": 2.0, "server_rate": 0.3}
    assert candidates(["mlp"], fixed, quick=False) == [Candidate("mlp", 7, 2.0, 0.1, 1.0, 0.3)]
    assert candidates(["mlp"], fixed, quick=False)[0].changes() == "7 rounds, rate 0.3, clip 2, momentum 0.1"


def test_best_means_the_models_that_fit(mnist: Dataset) -> None:
    assert models_for("best", mnist) == (["scatter-linear", "lenet-tanh", "lenet-zhu"], [])
    assert models_for("best", toy()) == (["mlp"], [])


def test_models_and_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown model 'lenet-tan'"):
        models_for("lenet-tan", toy())
    with pytest.raises(ConfigError, match="for pictures"):
        models_for("lenet-tanh", toy())
    with pytest.raises(DataError, match="tokens") as error:
        models_for("best", load("generated-text"))
    assert "pictures or a table" in error.value.remedy


def test_code_of_ones_own_is_built_for_the_data() -> None:
    assert models_for("app:net", toy(), lambda shape, classes: nn.Linear(shape[0], classes)) == (["app:net"], [])
