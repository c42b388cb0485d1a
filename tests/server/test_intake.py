"""The server's door: named reasons for whatever is malformed, the weighted mean of the rest, or a void round."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from equipoise.errors import ConfigError, ReleaseError
from equipoise.server.intake import Aggregate, Intake
from equipoise.server.limits import MAX_WEIGHT

Cohort = list[tuple[dict[str, Tensor], float]]
UNBOUNDED: Any = {"max_norm": math.inf, "max_weight_ratio": math.inf}
SHAPES = {"layer.weight": (2, 3), "layer.bias": (3,), "scale": ()}


@st.composite
def cohorts(draw: Any) -> Cohort:
    """Releases of three float32 tensors, and a positive weight each."""

    def tensor(shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(
            np.array(draw(arrays.arrays(np.float32, shape, elements=st.floats(-100, 100, width=32))))
        )

    clients = draw(st.integers(1, 7))
    return [({n: tensor(s) for n, s in SHAPES.items()}, draw(st.floats(1e-6, 1e6))) for _ in range(clients)]


def zeros(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=dtype) for name, shape in SHAPES.items()}


def closed(cohort: Cohort, rate: float = 1.0, previous: Mapping[str, Tensor] | None = None) -> Aggregate:
    """A round in which all of them are offered and accepted, at any size and weight."""
    intake = Intake(previous or zeros(), round_number=1, max_weight=1e12, **UNBOUNDED)
    for place, (update, weight) in enumerate(cohort):
        assert intake.offer(f"client-{place}", update, weight, 1) is None
    return intake.close(rate)


# --- the weighted mean --------------------------------------------------------------------------------------


@given(cohorts())
def test_the_mean_is_that_of_numpy_in_double_precision(cohort: Cohort) -> None:
    result = closed(cohort)
    for name, tensor in result.parameters.items():
        stacked = np.stack([update[name].double().numpy() for update, _ in cohort])
        expected = np.average(stacked, axis=0, weights=[weight for _, weight in cohort])
        assert tensor.double().numpy() == pytest.approx(expected, abs=1e-6, rel=1e-6)
        assert tensor.dtype == torch.float32
        assert tensor.shape == SHAPES[name]
    assert result.accepted == [f"client-{place}" for place in range(len(cohort))]
    assert not result.refused
    assert not result.void


@given(cohorts(), st.floats(0.01, 3.0))
def test_the_server_rate_is_a_step_towards_the_mean(cohort: Cohort, rate: float) -> None:
    exact = [({name: tensor.double() for name, tensor in update.items()}, weight) for update, weight in cohort]
    previous = {name: torch.full(shape, -1.5, dtype=torch.float64) for name, shape in SHAPES.items()}
    mean, moved = closed(exact, 1.0, previous), closed(exact, rate, previous)
    for name, old in previous.items():
        expected = old + rate * (mean.parameters[name] - old)
        torch.testing.assert_close(moved.parameters[name], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, "1", None])
def test_a_rate_that_is_no_step_is_an_error(rate: Any) -> None:
    with pytest.raises(ReleaseError, match="finite number > 0"):
        closed([(zeros(), 1.0)], rate)


@given(cohorts(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(cohort: Cohort, random: Any) -> None:
    shuffled = random.sample(cohort, len(cohort))
    torch.testing.assert_close(closed(cohort).parameters, closed(shuffled).parameters, rtol=1e-6, atol=1e-6)


@given(cohorts())
def test_the_scale_of_the_weights_does_not_matter(cohort: Cohort) -> None:
    scaled = [(update, 1024 * weight) for update, weight in cohort]
    for one, two in zip(closed(cohort).parameters.values(), closed(scaled).parameters.values(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("weight", [1e308, 5e-324, 2**1000])
def test_extreme_but_finite_weights_still_average(weight: float) -> None:
    intake = Intake({"w": torch.zeros(2)}, 1, max_weight=1.7e308)
    intake.offer("a", {"w": torch.tensor([1.0, 2.0])}, weight, 1)
    intake.offer("b", {"w": torch.tensor([3.0, 4.0])}, weight, 1)
    assert intake.close().parameters["w"].tolist() == [2.0, 3.0]


def test_the_largest_numbers_of_a_type_average_without_overflow() -> None:
    most = torch.finfo(torch.float32).max
    intake = Intake({"w": torch.zeros(2)}, 1, **UNBOUNDED)
    for place in range(50):
        intake.offer(str(place), {"w": torch.tensor([most, -most if place % 2 else most])}, MAX_WEIGHT, 1)
    result = intake.close().parameters["w"]
    assert result[0] == most
    assert abs(float(result[1])) < most * 1e-6


@pytest.mark.parametrize(("one", "two", "mean"), [(1.7e308, -1.7e308, 0.0), (1.7e308, 1.7e308, 1.7e308)])
def test_doubles_near_the_end_of_their_range_average_without_overflow(one: float, two: float, mean: float) -> None:
    """The difference of the first two is infinite, and so is the sum of the others."""
    intake = Intake({"w": torch.zeros(1, dtype=torch.float64)}, 1, **UNBOUNDED)
    for client, value in (("a", one), ("b", two)):
        assert intake.offer(client, {"w": torch.tensor([value], dtype=torch.float64)}, 3, 1) is None
    assert intake.close().parameters["w"].tolist() == [mean]


def test_a_step_that_leaves_the_precision_is_an_error_not_a_model_of_infinities() -> None:
    most = torch.finfo(torch.float32).max
    intake = Intake({"w": torch.zeros(1)}, 1, **UNBOUNDED)
    intake.offer("a", {"w": torch.tensor([most])}, 1, 1)
    with pytest.raises(ReleaseError, match="tensor 'w' is not finite"):
        intake.close(rate=2.0)


def test_inputs_are_not_modified_and_the_result_is_detached() -> None:
    previous = {"w": torch.zeros(2, requires_grad=True)}
    one, two = torch.ones(2, requires_grad=True), torch.tensor([3.0, 3.0])
    intake = Intake(previous, 1)
    intake.offer("a", {"w": one}, 1, 1)
    intake.offer("b", {"w": two}, 1, 1)
    results = intake.close().parameters["w"]
    assert results.tolist() == [2.0, 2.0]
    assert not results.requires_grad
    assert (previous["w"].tolist(), one.tolist(), two.tolist()) == ([0.0, 0.0], [1.0, 1.0], [3.0, 3.0])
    results += 1
    assert intake.previous["w"].tolist() == [0.0, 0.0]


def test_whole_numbers_such_as_the_counter_of_a_batch_norm_stay_whole() -> None:
    intake = Intake({"count": torch.tensor(7)}, 1)
    for place, weight in enumerate([3, 7, 11]):
        assert intake.offer(str(place), {"count": torch.tensor(7)}, weight, 1) is None
    assert torch.equal(intake.close().parameters["count"], torch.tensor(7))


@pytest.mark.parametrize(("ratio", "weights", "held"), [(10.0, 1, 20), (10.0, 4, 20), (math.inf, 4, 0)])
def test_with_any_weight_allowed_memory_does_not_grow_with_the_clients(ratio: float, weights: int, held: int) -> None:
    """Else releases are held in their own precision, since anyone may yet prove too heavy; never the caller's own."""
    intake = Intake({"w": torch.zeros(4)}, 1, max_weight_ratio=ratio)
    seen = []
    for place in range(20):
        update = torch.full((4,), float(place))
        seen.append(weakref.ref(update))
        intake.offer(str(place), {"w": update}, 1 + place % weights, 1)
        del update
    assert all(reference() is None for reference in seen)
    assert len(intake._held) == held
    expected = np.average(range(20), weights=[1 + place % weights for place in range(20)])
    assert intake.close().parameters["w"].tolist() == pytest.approx([expected] * 4)


def test_checking_alone_keeps_no_sums() -> None:
    intake = Intake({"w": torch.zeros(4)}, 1, averages=False)
    assert intake.offer("a", {"w": torch.ones(4)}, 1, 1) is None
    assert intake.offer("b", {"w": torch.ones(3)}, 1, 1) == "tensor 'w' has shape (3,), expected (4,)"
    assert intake.accepted == ["a"]


# --- refusals -----------------------------------------------------------------------------------------------

GOOD = torch.tensor([1.0, 2.0, 3.0])


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def named(tensor: Any) -> dict[str, Any]:
    return {"w": tensor}


BAD_UPDATES: dict[str, tuple[Any, str]] = {
    "nan": (named(torch.tensor([1.0, math.nan, 3.0])), "tensor 'w': 1 of 3 numbers are not finite"),
    "inf": (named(torch.tensor([math.inf, 1.0, -math.inf])), "tensor 'w': 2 of 3 numbers are not finite"),
    "short": (named(torch.zeros(2)), "tensor 'w' has shape (2,), expected (3,)"),
    "long": (named(torch.zeros(4)), "tensor 'w' has shape (4,), expected (3,)"),
    "broadcastable scalar": (named(torch.tensor(1.0)), "tensor 'w' has shape (), expected (3,)"),
    "broadcastable vector": (named(torch.ones(1)), "tensor 'w' has shape (1,), expected (3,)"),
    "broadcastable matrix": (named(torch.ones(1, 3)), "tensor 'w' has shape (1, 3), expected (3,)"),
    "transposed matrix": (named(torch.ones(3, 1)), "tensor 'w' has shape (3, 1), expected (3,)"),
    "no numbers": (named(torch.zeros(0)), "tensor 'w' has shape (0,), expected (3,)"),
    "double": (named(GOOD.double()), "tensor 'w' has dtype float64, expected float32"),
    "half": (named(GOOD.half()), "tensor 'w' has dtype float16, expected float32"),
    "brain": (named(GOOD.bfloat16()), "tensor 'w' has dtype bfloat16, expected float32"),
    "whole numbers": (named(torch.tensor([1, 2, 3])), "tensor 'w' has dtype int64, expected float32"),
    "complex": (named(GOOD.to(torch.complex64)), "tensor 'w' has dtype complex64, expected float32"),
    "yes and no": (named(GOOD > 1), "tensor 'w' has dtype bool, expected float32"),
    "sparse": (named(GOOD.to_sparse()), "tensor 'w' is not dense"),
    "without storage": (named(GOOD.to("meta")), "tensor 'w' is not dense"),
    "missing": ({"v": GOOD}, "lacks tensor 'w'"),
    "extra": ({"w": GOOD, "v": GOOD[:1]}, "has an extra tensor 'v'"),
    "more extra": ({"w": GOOD[:1], "v": GOOD[:1], "u": GOOD[:1]}, "has an extra tensor 'v' and 1 more"),
    "numbered": ({0: GOOD}, "lacks tensor 'w'"),
    "mixed names": ({"w": GOOD, 0: GOOD[:1]}, "has an extra tensor 0"),
    "endless name": ({"w": GOOD, 10**5000: GOOD[:1]}, "has an extra tensor a whole number of 16610 bits"),
    "forged line": ({"w": GOOD, "a\nb": GOOD[:1]}, "has an extra tensor 'a\\nb'"),
    "empty": ({}, "is empty"),
    "ten times the bytes": (named(torch.zeros(30)), "has 120 bytes, 12 are agreed"),
    "bytes in an extra tensor": ({"w": GOOD, "v": torch.zeros(27)}, "has 120 bytes, 12 are agreed"),
    "bytes that only a shape has": (
        named(torch.zeros(1).expand(10**12)),
        "has 4000000000000 bytes, 12 are agreed",
    ),
    "list": ([1.0, 2.0, 3.0], "is list, not named tensors"),
    "bare tensor": (GOOD, "is Tensor, not named tensors"),
    "nothing": (None, "is NoneType, not named tensors"),
    "text": ("weights", "is str, not named tensors"),
    "array inside": (named(np.ones(3, np.float32)), "holds something that is not a tensor: 'w' is ndarray"),
    "list inside": (named([1.0, 2.0, 3.0]), "holds something that is not a tensor: 'w' is list"),
    "nothing inside": (named(None), "holds something that is not a tensor: 'w' is NoneType"),
}
BAD_WEIGHTS: dict[str, tuple[Any, str]] = {
    "zero": (0, "0"),
    "zero as float": (0.0, "0.0"),
    "negative": (-1, "-1"),
    "negative fraction": (-0.5, "-0.5"),
    "nan": (math.nan, "nan"),
    "inf": (math.inf, "inf"),
    "negative inf": (-math.inf, "-inf"),
    "huge": (1e12, "1000000000000.0"),
    "just too much": (math.nextafter(MAX_WEIGHT, math.inf), "10000000.000000002"),
    "more than a float can say": (10**400, "a whole number of 1329 bits"),
    "yes": (True, "True"),
    "no": (False, "False"),
    "text": ("1", "'1'"),
    "nothing": (None, "None"),
    "list": ([1.0], "[1.0]"),
    "tensor": (torch.tensor(1.0), "tensor(1.)"),
    "complex": (1 + 0j, "(1+0j)"),
    "unprintable": (Unprintable(), "a Unprintable that cannot be shown (RuntimeError)"),
}
BAD_ROUNDS: dict[str, tuple[Any, str]] = {
    "stale": (3, "is for round 3, a stale one; round 4 is open"),
    "future": (5, "is for round 5, a future one; round 4 is open"),
    "negative": (-4, "is for round -4, a stale one; round 4 is open"),
    "none": (None, "names no round: None"),
    "yes": (True, "names no round: True"),
    "float": (4.0, "names no round: 4.0"),
    "text": ("4", "names no round: '4'"),
    "endless": (10**5000, "a future one; round 4 is open"),
}
BAD = (
    {f"update: {kind}": ((update, 5.0, 4), reason) for kind, (update, reason) in BAD_UPDATES.items()}
    | {f"weight: {kind}": ((named(9 * GOOD), weight, 4), said) for kind, (weight, said) in BAD_WEIGHTS.items()}
    | {f"round: {kind}": ((named(9 * GOOD), 5.0, when), reason) for kind, (when, reason) in BAD_ROUNDS.items()}
)


def open_round(**options: Any) -> Intake:
    return Intake({"w": torch.tensor([7.0, 8.0, 9.0])}, round_number=4, **options)


@pytest.mark.parametrize("kind", BAD_UPDATES)
def test_a_malformed_update_is_refused_with_its_reason(kind: str) -> None:
    update, reason = BAD_UPDATES[kind]
    assert open_round().offer("odd", update, 1, 4) == reason


@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_a_malformed_weight_is_refused_with_its_reason(kind: str) -> None:
    weight, said = BAD_WEIGHTS[kind]
    reason = open_round().offer("odd", named(GOOD), weight, 4)
    assert reason == f"has weight {said}, expected a number > 0 and <= 1e+07"


@pytest.mark.parametrize("kind", BAD_ROUNDS)
def test_a_release_of_another_round_is_refused_with_its_reason(kind: str) -> None:
    round_number, reason = BAD_ROUNDS[kind]
    result = open_round().offer("odd", named(GOOD), 1, round_number)
    assert result is not None
    assert result.endswith(reason)
    assert len(result) < 200


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("kind", BAD)
def test_what_is_refused_has_no_influence_on_the_mean(kind: str, first: bool) -> None:
    """Bitwise: the same round without it gives the same model."""
    without, beside = open_round(), open_round()
    good = [("a", named(GOOD), 3.0, 4), ("b", named(GOOD.sin()), 0.7, 4)]
    for offer in good:
        without.offer(*offer)
    for offer in [("odd", *BAD[kind][0]), *good] if first else [*good, ("odd", *BAD[kind][0])]:
        beside.offer(*offer)
    one, two = without.close(), beside.close()
    assert torch.equal(one.parameters["w"], two.parameters["w"])
    assert two.accepted == ["a", "b"]
    assert list(two.refused) == ["odd"]
    assert BAD[kind][1] in two.refused["odd"]
    assert not two.void


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_tensor_is_not_dense() -> None:
    update = named(torch.quantize_per_tensor(GOOD, 0.1, 0, torch.qint8))
    assert open_round().offer("odd", update, 1, 4) == "tensor 'w' is not dense"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_not_dense() -> None:
    update = named(torch.nested.nested_tensor([GOOD, GOOD]))
    assert open_round().offer("odd", update, 1, 4) == "tensor 'w' is not dense"


def test_any_number_up_to_the_limit_is_a_weight() -> None:
    for weight in (1, 0.5, MAX_WEIGHT, 5e-324, int(MAX_WEIGHT)):
        assert open_round().refusal("a", named(GOOD), weight, 4) is None
    assert "<= 100" in str(open_round(max_weight=100).refusal("a", named(GOOD), 101, 4))


def test_asking_for_the_reason_changes_nothing() -> None:
    intake = open_round()
    assert intake.refusal("a", named(GOOD), 1, 4) is None
    assert intake.refusal("a", {}, 1, 4) == "is empty"
    assert (intake.accepted, intake.refused) == ([], {})
    assert intake.close().void


def test_the_second_release_of_a_client_does_not_count() -> None:
    intake = open_round()
    assert intake.offer("a", named(GOOD), 1, 4) is None
    assert intake.offer("a", named(100 * GOOD), 1e6, 4) == "sent a second release in this round; the first counts"
    assert torch.equal(intake.close().parameters["w"], GOOD)
    assert intake.accepted == ["a"]


def test_a_client_that_was_not_asked_does_not_count() -> None:
    intake = open_round(clients={"a", "b"})
    assert intake.offer("a", named(GOOD), 1, 4) is None
    assert intake.offer("c", named(100 * GOOD), 1, 4) == "was not asked in this round"
    result = intake.close()
    assert torch.equal(result.parameters["w"], GOOD)
    assert (result.accepted, list(result.refused)) == (["a"], ["c"])


def test_a_reason_fits_one_line_of_a_log() -> None:
    for update in ({"w": GOOD, "\x1b[2J" * 500: GOOD[:1]}, {"w": GOOD, "a\r\n\x00": GOOD[:1]}, {"w\n" * 99: 3}):
        reason = str(open_round().offer("odd", update, 1, 4))
        assert reason.isprintable()
        assert len(reason) < 200


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)
dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.int32, torch.uint8, torch.bool, torch.complex64]
)
tensors = st.builds(
    lambda shape, dtype, kind: {"sparse": torch.zeros(shape, dtype=dtype).to_sparse}.get(
        kind, lambda: torch.zeros(shape, dtype=dtype, device=kind)
    )(),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    dtypes,
    st.sampled_from(["cpu", "meta", "sparse"]),
)
updates = junk | st.dictionaries(st.sampled_from(["w", "v", ""]) | st.integers(), tensors | junk, max_size=3)


@given(updates, junk, junk)
def test_offer_never_raises_and_refuses_what_is_not_of_the_agreed_form(
    update: Any, weight: Any, round_number: Any
) -> None:
    intake = Intake({"w": torch.zeros(2, 2)}, round_number=1)
    for offered in ((update, weight, round_number), (update, 1, 1), (named(torch.ones(2, 2)), weight, 1)):
        reason = intake.offer("odd", *offered)
        if reason is None:
            assert offered[0]["w"].shape == (2, 2)
            assert 0 < offered[1] <= MAX_WEIGHT
            intake = Intake({"w": torch.zeros(2, 2)}, round_number=1)
        else:
            assert reason.isprintable()
            assert len(reason) < 300


# --- the size of an update, and of a weight ------------------------------------------------------------------


def test_a_finite_monster_is_refused_and_the_round_goes_on() -> None:
    intake = open_round()
    norm = math.sqrt(7**2 + 8**2 + 9**2)
    assert intake.offer("a", named(GOOD), 1, 4) is None
    assert intake.offer("b", named(torch.tensor([1.0, 3e38, 1.0])), 1, 4) == (
        f"has an update of L2 norm 3e+38, expected at most {100 * (norm + 1):.6g}"
    )
    result = intake.close()
    assert torch.equal(result.parameters["w"], GOOD)
    assert (result.accepted, list(result.refused)) == (["a"], ["b"])


def test_the_distortion_that_was_asked_for_is_no_monster() -> None:
    loud = named(torch.tensor([1e5, 0.0, 0.0]))
    assert "expected at most" in str(open_round().offer("a", loud, 1, 4))
    assert open_round(distortion=1e3).offer("a", loud, 1, 4) is None


@pytest.mark.parametrize("beyond", [False, True])
def test_the_bound_on_an_update_is_the_servers_choice(beyond: bool) -> None:
    """A distance from the previous model, not from zero."""
    moved = named(torch.tensor([7.0, 8.0, 11.001 if beyond else 11.0]))
    reason = open_round(max_norm=2.0).offer("a", moved, 1, 4)
    assert reason == ("has an update of L2 norm 2.001, expected at most 2" if beyond else None)


def test_a_weight_out_of_all_proportion_is_refused_when_all_are_there() -> None:
    """The first to come is the one who lies: nobody knows, until the others have come."""
    intake, without = open_round(), open_round()
    assert intake.offer("liar", named(-GOOD), 1e6, 4) is None
    for place, weight in enumerate([10, 90, 12]):
        for one in (intake, without):
            assert one.offer(str(place), named(GOOD.sin() + place), weight, 4) is None
    result, expected = intake.close(), without.close()
    assert result.refused == {"liar": "has weight 1e+06, more than 10 times the median of this round, 12"}
    assert result.accepted == ["0", "1", "2"]
    assert torch.equal(result.parameters["w"], expected.parameters["w"])
    again = intake.close()
    assert (again.accepted, again.refused) == (result.accepted, result.refused)


def test_the_median_of_an_even_number_is_the_lower_one() -> None:
    intake = open_round()
    intake.offer("a", named(GOOD), 1, 4)
    intake.offer("b", named(GOOD), 11, 4)
    assert intake.settle() == {"b": "has weight 11, more than 10 times the median of this round, 1"}
    assert intake.accepted == ["a"]


def test_refused_weights_are_no_part_of_the_median() -> None:
    intake = open_round()
    for place in range(5):
        intake.offer(f"bad {place}", named(torch.zeros(2)), 1, 4)
    for place in range(2):
        intake.offer(f"good {place}", named(GOOD), 1000, 4)
    assert intake.settle() == {}


def test_one_release_has_no_weight_to_be_compared_with() -> None:
    intake = open_round()
    intake.offer("a", named(GOOD), 1e7, 4)
    assert intake.close().accepted == ["a"]


def test_a_round_can_be_void_for_its_weights() -> None:
    intake = open_round()
    intake.offer("a", named(GOOD), 1, 4)
    intake.offer("b", named(GOOD), 1e6, 4)
    result = intake.close(min_clients=2)
    assert result.void
    assert torch.equal(result.parameters["w"], intake.previous["w"])


def test_any_proportion_can_be_allowed() -> None:
    intake = open_round(max_weight_ratio=math.inf)
    intake.offer("a", named(0 * GOOD), 1, 4)
    intake.offer("b", named(GOOD), 1e6, 4)
    result = intake.close()
    assert result.accepted == ["a", "b"]
    assert result.parameters["w"].tolist() == pytest.approx(GOOD.tolist(), rel=1e-5)


def test_a_step_beyond_the_bound_is_an_error() -> None:
    intake = open_round(max_norm=20.0)
    intake.offer("a", named(GOOD), 1, 4)
    assert not intake.close(rate=1.9).void  # the update has a norm of 10.4
    with pytest.raises(ReleaseError, match=r"The new model has an update of L2 norm 31\.\d+, expected at most 20"):
        intake.close(rate=3.0)


@pytest.mark.parametrize(
    "options",
    [{"max_norm": 0}, {"max_norm": math.nan}, {"max_norm": "1"}, {"max_weight_ratio": 0.5}, {"max_weight": 0}],
    ids=str,
)
def test_impossible_bounds_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"Expected {next(iter(options))}="):
        open_round(**options)


def test_a_release_that_was_refused_and_then_repaired_counts_once() -> None:
    intake = open_round()
    assert intake.offer("a", named(torch.full((3,), math.nan)), 1, 4) is not None
    assert intake.offer("a", named(GOOD), 1, 4) is None
    assert intake.offer("a", named(GOOD), 1, 4) == "sent a second release in this round; the first counts"
    again = open_round()
    for update in (torch.zeros(2), GOOD):
        again.offer("a", named(update), 1, 4)
    result = again.close()
    assert (result.accepted, result.refused) == (["a"], {})


# --- void rounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("good", "least", "void"), [(0, 1, True), (1, 1, False), (1, 2, True), (2, 2, False), (0, 0, True)]
)
def test_too_few_releases_leave_the_model_unchanged(good: int, least: int, void: bool) -> None:
    intake = open_round()
    for place in range(good):
        intake.offer(f"good-{place}", named(GOOD), 1, 4)
    intake.offer("bad", named(torch.full((3,), math.nan)), 1, 4)
    result = intake.close(rate=0.5, min_clients=least)
    assert result.void == void
    expected = torch.tensor([7.0, 8.0, 9.0]) if void else torch.tensor([4.0, 5.0, 6.0])
    assert torch.equal(result.parameters["w"], expected)
    assert len(result.accepted) == good
    assert list(result.refused) == ["bad"]


def test_second_releases_and_strangers_do_not_make_a_round_valid() -> None:
    intake = open_round(clients=["a"])
    for client in ("a", "a", "b"):
        intake.offer(client, named(GOOD), 1, 4)
    assert intake.close(min_clients=2).void


@pytest.mark.parametrize(
    "previous",
    [{}, {"w": torch.tensor([1.0, math.nan])}, {"w": torch.tensor(math.inf)}, {"w": [1.0, 2.0]}, {"w": None}],
    ids=["empty", "nan", "inf", "list", "nothing"],
)
def test_a_broken_global_model_is_an_error(previous: Any) -> None:
    with pytest.raises(ReleaseError, match="finite tensors"):
        Intake(previous, 1)
