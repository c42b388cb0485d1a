"""A reply is believed in nothing: every malformed one has a named reason, and its bytes cannot do anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from equipoise.flower.reply_checks import Reply, checked_reply, decoded, settled
from equipoise.flower.run_config import read_terms
from equipoise.server.intake import Intake
from tests.flower import messages as by_hand
from tests.flower.messages import BAD, LOWER, RUN, bad, handmade, header, npy, reply, start, update


def opened(**options: Any) -> Intake:
    return Intake(start(), 1, averages=False, **options)


def checked(message: Message, run: dict[str, Any] | None = None, seeded: bool = False, **options: Any) -> Reply:
    return checked_reply(message, opened(**options), read_terms({**RUN, **(run or {})}), seeded)


def read(data: bytes, **options: str) -> np.ndarray[Any, Any] | str:
    """What becomes of the bytes of an array: its numbers, or the reason."""
    like = start()
    result = decoded(ArrayRecord(handmade(data, **options)), like, 60)
    return result if isinstance(result, str) else result["1.weight"].numpy()


# --- what is refused, and why -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_reply_is_refused_with_its_reason(kind: str) -> None:
    result = checked(bad(kind, 101))
    assert result.client == "101"
    assert result.reason is not None
    assert BAD[kind][1] in result.reason
    entry = result.entry()
    assert (entry["client"], entry["accepted"], entry["reason"]) == ("101", False, result.reason)


def test_an_honest_reply_passes_with_exactly_its_numbers() -> None:
    result = checked(reply(101))
    assert result.reason is None
    assert all(torch.equal(result.tensors[name], tensor) for name, tensor in update(101).items())
    numbers = {"lower": LOWER, "upper": 2 * LOWER, "intensity": LOWER}
    assert result.entry() == {"client": "101", **numbers, "accepted": True}


def test_the_names_of_the_records_do_not_matter() -> None:
    message = reply(101)
    content = message.content
    message.content = RecordDict({"a": content["arrays"], "b": content["metrics"], "equipoise": content["equipoise"]})
    assert checked(message).reason is None


def test_the_reason_of_a_failure_is_one_short_line() -> None:
    result = checked(by_hand.failure(101, "out of\nmemory\r\n" + "x" * 1000))
    assert str(result.reason).startswith("failed: out of")
    assert str(result.reason).isprintable()
    assert len(str(result.reason)) < 250
    assert str(checked(by_hand.failure(101, "\x1b[2Jgone\x00")).reason).isprintable()


@pytest.mark.parametrize("key", ["mechanism", "budget"])
def test_what_a_claim_says_cannot_forge_a_line_of_the_log(key: str) -> None:
    result = checked(reply(101, claim={key: "x\nINFO : all is well\x1b[2J"}))
    assert str(result.reason).isprintable()
    long = checked(reply(101, claim={key: "x" * 10_000}))
    assert len(str(long.reason)) < 250


def test_reproducible_noise_passes_only_in_an_experiment() -> None:
    message = reply(101, claim={"experiment": "seeded"})
    assert checked(message, seeded=True).reason is None


def test_a_client_counts_once_and_only_if_asked() -> None:
    intake, terms = opened(clients={"101"}), read_terms(RUN)
    assert checked_reply(reply(101), intake, terms, False).reason is None
    second = checked_reply(reply(101), intake, terms, False).reason
    assert second == "sent a second release in this round; the first counts"
    assert checked_reply(reply(999), intake, terms, False).reason == "was not asked in this round"


def test_the_largest_weight_is_the_servers_choice() -> None:
    assert checked(reply(101, weight=50), max_weight=50).reason is None
    assert "<= 50" in str(checked(reply(101, weight=51), max_weight=50).reason)


def test_the_weight_has_one_name() -> None:
    assert "'seen'" in str(checked(reply(101, metrics={"seen": 3}, without=("num-examples",))).reason)


def settled_round(*messages: Message) -> list[Reply]:
    """What is left of all messages of a round, when they are there."""
    intake, terms = opened(), read_terms(RUN)
    return settled([checked_reply(message, intake, terms, False) for message in messages], intake)


def test_a_reply_that_was_refused_and_then_repaired_counts_once() -> None:
    for broken in (bad("nan", 101), by_hand.failure(101, "no"), bad("other budget", 101)):
        (left,) = settled_round(broken, reply(101))
        assert left.reason is None
        assert torch.equal(left.tensors["1.weight"], update(101)["1.weight"])


def test_a_repeated_reply_is_refused_as_the_second_whatever_it_holds() -> None:
    for again in (reply(101), bad("nan", 101), by_hand.failure(101, "no")):
        first, second = settled_round(reply(101), again)
        assert first.reason is None
        assert second.reason == "sent a second release in this round; the first counts"


def test_every_refusal_of_a_reply_that_was_never_repaired_is_kept() -> None:
    assert [str(r.reason)[:10] for r in settled_round(bad("nan", 101), bad("weight zero", 101))] == [
        "tensor '1.", "has weight",
    ]  # fmt: skip


def test_a_weight_out_of_all_proportion_is_refused_when_all_are_there() -> None:
    liar, *others = settled_round(reply(101, weight=10**6), reply(102), reply(103))
    assert liar.entry()["reason"] == "has weight 1e+06, more than 10 times the median of this round, 10"
    assert liar.entry()["accepted"] is False
    assert [other.reason for other in others] == [None, None]


# --- claims of intensity ------------------------------------------------------------------------------------


def claimed(run: dict[str, Any], budget: str, lower: float, size: float, upper: float) -> str | None:
    metrics = {"equipoise.lower": lower, "equipoise.intensity": size, "equipoise.upper": upper}
    claim = {"mechanism": run["equipoise.mechanism"], "budget": budget}
    return checked(reply(101, claim=claim, metrics=metrics), run).reason


def test_a_learned_distortion_may_lie_anywhere_between_its_bounds() -> None:
    run = {"equipoise.mechanism": "pl-learn"}
    for size in (LOWER, 1.5 * LOWER, 2 * LOWER, LOWER * (1 - 5e-5)):  # the last: rounding
        assert claimed(run, "0.98", LOWER, size, 2 * LOWER) is None
    for size in (LOWER * 0.9, 2.2 * LOWER, 0.0, -LOWER):
        assert "is outside its bounds" in str(claimed(run, "0.98", LOWER, size, 2 * LOWER))


def test_without_distortion_the_intensity_is_zero() -> None:
    run = {"equipoise.mechanism": "none", "equipoise.budget": ""}
    assert claimed(run, "null", 0.0, 0.0, 0.0) is None
    assert "is outside its bounds" in str(claimed(run, "null", 0.0, 1.0, 0.0))


def test_a_scale_mechanism_takes_its_bounds_from_the_draw() -> None:
    run = {"equipoise.mechanism": "ls-static", "equipoise.budget": 200.0}
    assert claimed(run, "200.0", 0.7, 0.7, 1.4) is None
    assert "is outside its bounds" in str(claimed(run, "200.0", 0.7, 0.6, 1.4))


def test_a_formal_guarantee_keeps_the_size_of_its_noise_to_itself() -> None:
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0, "equipoise.metrics": ""}
    claim = {"mechanism": "laplace-dp", "budget": "200.0"}
    numbers = ("equipoise.lower", "equipoise.upper", "equipoise.intensity")
    assert checked(reply(101, claim=claim, without=("loss", *numbers)), run).reason is None
    for told in numbers:
        others = tuple(name for name in numbers if name != told)
        telling = reply(101, claim=claim, without=("loss", *others))
        assert "would undo the guarantee" in str(checked(telling, run).reason)


@pytest.mark.parametrize(("name", "budget"), [("pruning", "0.1"), ("outpost", "1.25")])
def test_what_becomes_of_a_shaped_update_is_not_to_be_told(name: str, budget: str) -> None:
    run = {"equipoise.mechanism": name, "equipoise.budget": float(budget), "equipoise.metrics": ""}
    claim = {"mechanism": name, "budget": budget}
    numbers = ("equipoise.lower", "equipoise.upper", "equipoise.intensity")
    assert checked(reply(101, claim=claim, without=("loss", *numbers)), run).reason is None
    for told in numbers:
        others = tuple(name for name in numbers if name != told)
        assert "a function of the batch" in str(checked(reply(101, claim=claim, without=("loss", *others)), run).reason)


def test_any_budget_of_the_round_gives_a_lower_bound() -> None:
    run = {"equipoise.mechanism": "pl-identical", "equipoise.budget": "[0.96, 0.98]"}
    measure = read_terms({**RUN, **run}).settings.measure("pl-identical")
    assert measure is not None
    for budget in (0.96, 0.98):
        bound = measure.lower(budget)
        assert claimed(run, "[0.96, 0.98]", bound, bound, 2 * bound) is None
    bound = measure.lower(0.97)
    assert "says that its lower bound is" in str(claimed(run, "[0.96, 0.98]", bound, bound, 2 * bound))


# --- the bytes of an array ----------------------------------------------------------------------------------

NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("fortran", [False, True], ids=["C", "Fortran"])
def test_every_form_of_the_file_format_is_read_rightly(version: tuple[int, int], fortran: bool) -> None:
    data = npy(NUMBERS, version, fortran)
    result = read(data)
    assert isinstance(result, np.ndarray)
    assert np.array_equal(result, NUMBERS)
    assert np.array_equal(result, Array("float32", (3, 4), "numpy.ndarray", data).numpy()), "as Flower reads it"


def test_the_numbers_are_a_copy_that_can_be_changed() -> None:
    result = decoded(ArrayRecord(update(3)), start(), 60)
    assert isinstance(result, dict)
    result["1.weight"].add_(1)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    target = tmp_path / "made by a pickle"
    record = ArrayRecord(by_hand.bomb(target))
    assert "contradicts its description" in str(decoded(record, start(), 60))
    assert "contradicts its description" in str(checked(reply(101, by_hand.bomb(target))).reason)
    assert not target.exists()
    by_hand.detonate(record)
    assert target.exists(), "the bomb works, where it is loaded"


@pytest.mark.parametrize("descr", ["'O'", "'|O'", "[('a', '<f4')]", "'<f4, <f4'", "'S4'", "'M8[s]'", "'V4'", "'<f2'"])
def test_a_header_cannot_name_another_type(descr: str) -> None:
    result = read(header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (3, 4)}}", NUMBERS.tobytes()))
    assert isinstance(result, str)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data: bytes) -> None:
    assert isinstance(read(data), str)


@given(st.integers(0, 127), st.integers(0, 255))
def test_no_changed_byte_of_a_header_does_harm(place: int, value: int) -> None:
    data = bytearray(npy(NUMBERS))
    data[place] = value
    result = read(bytes(data))
    if not isinstance(result, str):
        right = NUMBERS if b"False" in data else NUMBERS.ravel().reshape(3, 4, order="F")
        assert np.array_equal(result, right), "spaces in a header mean nothing"


def test_metrics_that_are_no_numbers_do_not_reach_the_ledger() -> None:
    message = reply(101, metrics={"equipoise.intensity": [1.0, 2.0], "equipoise.lower": float("nan")})
    assert set(checked(message).entry()) == {"client", "upper", "accepted", "reason"}


def test_a_reply_of_other_kinds_of_records_is_refused() -> None:
    content = RecordDict({"arrays": ConfigRecord({"1.weight": b"x"}), "metrics": MetricRecord({"num-examples": 1})})
    message = Message(content, reply_to=by_hand.asking(101))
    assert str(checked(message).reason).startswith("has 0 and 1 records of arrays and metrics")
