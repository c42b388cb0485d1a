"""The norm check: it confirms right guesses and hardly any wrong one, and only where a norm is known exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.attack.attack import Hooks, Knowledge
from equipoise.attack.results import Verification
from equipoise.attack.verify import VERIFY, expected_norms, precision, verify
from equipoise.errors import AttackError
from equipoise.statistics import ranks
from tests.attack.candidates import CANDIDATES, CLASSES, Case, case

STATIC = ("pl-identical", 2.0)


def known(one: Case) -> Knowledge:
    """The truth comes first among the choices."""
    return replace(one.knowledge(), companions=one.choices[..., 0])


def checked(one: Case, knowledge: Knowledge | None = None, hooks: Hooks | None = None) -> Verification:
    granted = VERIFY.granted(knowledge or known(one))
    result = VERIFY.run(one.server, one.view, granted, {"seed": 0}, hooks or Hooks())
    assert isinstance(result, Verification)
    return result


def picked(result: Verification) -> float:
    return float(ranks(-result.distance).first.mean())


def accepted(result: Verification, times: float = 1.0) -> tuple[float, float]:
    """The shares of right and of wrong guesses within the tolerance."""
    close = result.distance <= times * result.tolerance.view(-1, 1, 1)
    return float(close[..., 0].double().mean()), float(close[..., 1:].double().mean())


# --- known answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scale"), [STATIC, ("pl-identical", 20.0), ("none", 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_right_guesses_are_picked_and_accepted_and_wrong_ones_are_not(
    name: str, scale: float, dtype: torch.dtype
) -> None:
    result = checked(case(4, 12, name, scale, dtype=dtype))
    assert picked(result) > 0.97, "of 20 guesses at an image, one may have the same norm by chance"
    right, wrong = accepted(result)
    assert right == 1.0
    assert wrong < 0.01


def test_a_tolerance_a_hundred_times_larger_would_accept_wrong_guesses() -> None:
    """So the rule that was written down is tight: with more room the absolute test says less."""
    result = checked(case(4, 12, *STATIC))
    assert accepted(result)[1] < 0.005
    assert accepted(result, times=100)[1] > 0.03


def test_without_the_companions_it_is_blind() -> None:
    """Others of the same labels in their places: what is verified is a whole batch, and this one is wrong."""
    one = case(4, 40, *STATIC)
    elsewhere = replace(known(one), companions=one.choices[..., 0].roll(1, dims=0))
    result = checked(one, elsewhere)
    assert picked(result) < one.chance()
    assert accepted(result)[0] < 0.05


def test_the_place_of_the_example_itself_is_not_looked_at() -> None:
    """Companions name the whole batch: what stands where the guess goes must not matter."""
    one = case(4, 3, *STATIC)
    expected = checked(one).distance
    for place in range(4):
        other = known(one).companions
        assert other is not None
        other = other.clone()
        other[:, place] = one.choices[:, place, 7]
        assert torch.equal(checked(one, replace(known(one), companions=other)).distance[:, place], expected[:, place])


@pytest.mark.parametrize("name", ["pl-identical", "none"])
def test_several_local_steps_are_simulated(name: str) -> None:
    labels = torch.tensor([[0, 1, 2, 3]]).expand(8, -1)
    result = checked(case(2, 8, name, 2.0 if name != "none" else 0.0, labels, local_steps=2))
    assert picked(result) == 1.0
    assert accepted(result)[0] == 1.0


def test_a_whole_batch_of_one_needs_no_companions() -> None:
    assert picked(checked(case(1, 10, *STATIC))) == 1.0


# --- rounding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16])
def test_a_release_in_lower_precision_is_told_and_has_a_wider_tolerance(lower: torch.dtype) -> None:
    one = case(4, 12, *STATIC)
    rounded = replace(one, view=replace(one.view, released=one.view.released.to(lower).float()))
    assert (precision(one.view.released), precision(rounded.view.released)) == (torch.float32, lower)
    fine, coarse = checked(one), checked(rounded)
    assert float(coarse.tolerance.min()) > 50 * float(fine.tolerance.max())
    assert accepted(coarse)[0] > 0.9
    assert accepted(fine)[1] < accepted(coarse)[1] < 0.8, "what rounding moves along the noise, not all that it moves"


def test_the_tolerance_rests_on_noise_alone() -> None:
    """It is the same for other batches: no release decides what is accepted but by the size of its numbers."""
    one = case(4, 6, *STATIC)
    norm, tolerance = expected_norms(one.server, one.view, 0)
    assert torch.allclose(norm, torch.tensor(2.0, dtype=torch.float64), rtol=1e-6)
    assert float(tolerance.max()) < 2.0 * 2**-17, "rounding, and not more"
    eps, size = torch.finfo(torch.float32).eps, one.view.released.double().norm(dim=1)
    shared = tolerance - eps * size
    assert torch.allclose(shared, shared[0].expand_as(shared), rtol=1e-6, atol=1e-15)


# --- where it cannot work ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pl-learn", "ls-static", "gs-learn", "ls-learn", "gs-static"])
def test_a_norm_that_is_not_known_verifies_nothing(name: str) -> None:
    with pytest.raises(AttackError, match=f"The norm of the noise of {name} .*: no guess is verified by it") as caught:
        checked(case(4, 2, name, 0.1))
    assert "pl-identical" in caught.value.remedy
    assert ("between bounds" in caught.value.cause) == name.endswith("learn")


def test_one_guess_is_nothing_to_tell_apart() -> None:
    one = case(4, 2, *STATIC)
    with pytest.raises(AttackError, match="one guess at each example"):
        checked(one, replace(known(one), choices=one.choices[..., :1]))


def test_it_is_granted_candidates_and_companions_and_no_more() -> None:
    one = case(4, 2, *STATIC)
    granted = VERIFY.granted(known(one))
    assert (granted.public, granted.asked) == (None, None)
    assert granted.companions is not None
    assert VERIFY.seen(one.view).labels is None


def test_its_work_is_a_local_step_for_every_guess() -> None:
    one, told = case(4, 3, *STATIC), list[int]()
    result = checked(one, hooks=Hooks(step=told.append))
    assert VERIFY.work is not None
    assert one.view.labels is not None
    work = VERIFY.work(one.server, one.view.labels, known(one), {})
    assert sum(told) == work.steps == result.distance.numel() == 3 * 4 * CANDIDATES
    assert CLASSES == 4
    same = verify(one.server, one.view, known(one), {"seed": 0}, Hooks())
    assert torch.equal(same.distance, result.distance)
