"""What the server knows and sees, and what is refused before any attack starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.descent import Search
from equipoise.attack.dlg import dlg, idlg
from equipoise.attack.invgrad import invgrad
from equipoise.attack.likelihood import likelihood
from equipoise.attack.unrolled import unrolled
from equipoise.attack.view import (
    Server,
    View,
    check,
    check_differentiable,
    check_labels,
    check_public,
    groups,
    groups_of_weights,
    restore_order,
)
from equipoise.errors import DataError, EquipoiseError, ModelError, ReleaseError
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched

SHAPE = (1, 4, 4)


def small(classes: int = 5) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, classes))


def server_of(model: nn.Module, **changes: Any) -> Server:
    return replace(
        Server(Batched(model), SHAPE, 5, 2, protection=Protection(get_mechanism("pl-learn"), 1.0)), **changes
    )


@pytest.fixture
def server() -> Server:
    return server_of(small())


@pytest.fixture
def view(server: Server, generator: torch.Generator) -> View:
    size = server.batched.layout.size
    previous, released = (torch.randn(4, size, generator=generator) for _ in range(2))
    return View(previous, released, torch.tensor([[0, 1], [4, 4], [2, 0], [3, 3]]))


def assert_helpful(caught: pytest.ExceptionInfo[Any]) -> None:
    """A cause and a remedy, both in the message."""
    error = caught.value
    assert isinstance(error, EquipoiseError)
    assert len(error.cause) > 10
    assert len(error.remedy) > 10
    assert error.remedy.endswith(".")
    assert error.remedy in str(error)
    assert error.cause in str(error)


# --- Server and View ---------------------------------------------------------------------------------------


def test_what_a_server_counts(server: Server) -> None:
    assert (server.examples, server.pixels) == (2, 16)
    assert replace(server, local_steps=3, shape=(3, 5, 7)).examples == 6
    assert replace(server, shape=(3, 5, 7)).pixels == 105


def test_the_update_is_what_a_release_adds(view: View) -> None:
    assert len(view) == 4
    assert torch.equal(view.update, view.released - view.previous)
    assert torch.equal(View(torch.ones(1, 3), torch.tensor([[1.0, 2.0, 4.0]])).update, torch.tensor([[0.0, 1.0, 3.0]]))


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2]),
        (torch.tensor([3, 0, 3]), [3, 0, 3]),
        (torch.tensor([False, True, False, True]), [1, 3]),
    ],
)
def test_rows_of_a_view(view: View, index: Any, expected: list[int]) -> None:
    actual = view.rows(index)
    assert len(actual) == len(expected)
    assert torch.equal(actual.previous, torch.stack([view.previous[i] for i in expected]))
    assert torch.equal(actual.released, torch.stack([view.released[i] for i in expected]))
    assert view.labels is not None
    assert actual.labels is not None
    assert actual.labels.tolist() == [view.labels[i].tolist() for i in expected]
    assert replace(view, labels=None).rows(index).labels is None


# --- check -------------------------------------------------------------------------------------------------


def test_a_sound_view_passes(server: Server, view: View) -> None:
    check(server, view)
    check(server, replace(view, previous=view.previous[:1].expand(4, -1)))
    check(server, replace(view, labels=None), needs_labels=False)
    check(replace(server, batch=1, local_steps=2), view)


@pytest.mark.parametrize("part", ["previous", "released"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_named(server: Server, view: View, part: str, value: float) -> None:
    getattr(view, part)[2, 7] = value
    with pytest.raises(ReleaseError, match=rf"{part} weights are not finite in release\(s\) 2\.") as caught:
        check(server, view)
    assert_helpful(caught)


def test_all_rows_that_are_not_finite_are_named_up_to_eight(server: Server) -> None:
    released = torch.zeros(12, server.batched.layout.size)
    released[[1, 3], 0] = float("nan")
    labels = torch.zeros(12, 2, dtype=torch.int64)
    with pytest.raises(ReleaseError, match=r"release\(s\) 1, 3\."):
        check(server, View(torch.zeros_like(released), released, labels))
    released[:, 5] = float("inf")
    with pytest.raises(ReleaseError, match=r"release\(s\) 0, 1, 2, 3, 4, 5, 6, 7\."):
        check(server, View(torch.zeros_like(released), released, labels))


BROKEN: dict[str, Callable[[Tensor], Any]] = {
    "a vector": lambda weights: weights[0],
    "one number too few": lambda weights: weights[:, :-1],
    "one number too many": lambda weights: torch.cat([weights, weights[:, :1]], 1),
    "three axes": lambda weights: weights.unsqueeze(0),
    "no rows": lambda weights: weights[:0],
    "a list": lambda weights: weights.tolist(),
    "nothing": lambda weights: None,
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("part", ["previous", "released"])
def test_weights_of_a_wrong_shape(server: Server, view: View, part: str, how: str) -> None:
    wrong: Any = BROKEN[how](getattr(view, part))
    shown = str(tuple(wrong.shape)) if isinstance(wrong, Tensor) else type(wrong).__name__
    with pytest.raises(ReleaseError, match=f"the {part} weights as") as caught:
        check(server, replace(view, **{part: wrong}))
    assert shown in str(caught.value)
    assert str(server.batched.layout.size) in str(caught.value)
    assert_helpful(caught)


def test_as_many_previous_weights_as_releases(server: Server, view: View) -> None:
    with pytest.raises(ReleaseError, match="3 sets of previous weights for 4 releases") as caught:
        check(server, replace(view, previous=view.previous[:3]))
    assert_helpful(caught)


@pytest.mark.parametrize("change", [{"batch": 0}, {"local_steps": 0}])
def test_a_release_of_no_examples(server: Server, view: View, change: dict[str, int]) -> None:
    with pytest.raises(DataError, match="no examples") as caught:
        check(replace(server, **change), replace(view, labels=torch.zeros(4, 0, dtype=torch.int64)))
    assert_helpful(caught)


def test_missing_labels(server: Server, view: View) -> None:
    with pytest.raises(DataError, match="granted the labels") as caught:
        check(server, replace(view, labels=None))
    assert "infer_labels" in str(caught.value)
    assert_helpful(caught)


def test_labels_that_are_there_are_checked_even_if_not_needed(server: Server, view: View) -> None:
    with pytest.raises(DataError, match=r"0\.\.4"):
        check(server, replace(view, labels=torch.full((4, 2), 5)), needs_labels=False)


# --- check_labels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (4, 3), (3, 2), (4, 2, 1), (0, 2)])
def test_labels_of_a_wrong_shape(server: Server, view: View, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"shape \(4, 2\)") as caught:
        check(server, replace(view, labels=torch.zeros(shape, dtype=torch.int64)))
    assert str(shape) in str(caught.value)
    assert_helpful(caught)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
def test_labels_of_a_wrong_type(dtype: torch.dtype) -> None:
    with pytest.raises(DataError, match=f"int64 labels.*{dtype}") as caught:
        check_labels(torch.zeros(4, 2, dtype=dtype), (4, 2), 5)
    assert_helpful(caught)


@pytest.mark.parametrize(("label", "shown"), [(-1, r"-1\.\.3"), (5, r"0\.\.5"), (1000, r"0\.\.1000")])
def test_labels_out_of_range(label: int, shown: str) -> None:
    labels = torch.tensor([[0, 1], [3, label]])
    with pytest.raises(DataError, match=rf"labels in 0\.\.4, got {shown}") as caught:
        check_labels(labels, (2, 2), 5)
    assert_helpful(caught)


def test_good_labels_pass() -> None:
    check_labels(torch.tensor([[0, 4], [2, 3]]), (2, 2), 5)
    check_labels(torch.zeros(0, 2, dtype=torch.int64), (0, 2), 5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_short_integers_are_taken_or_refused(server: Server, view: View, dtype: torch.dtype) -> None:
    """They are whole numbers: either an attack works on them as on int64, or it says what to give instead."""
    assert view.labels is not None
    search = Search(iterations=1)
    expected = invgrad(server, view, search)
    try:
        actual = invgrad(server, replace(view, labels=view.labels.to(dtype)), search)
    except DataError:
        return
    assert torch.equal(actual.images, expected.images)


# --- every attack checks its view --------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [invgrad, dlg, idlg, likelihood, unrolled])
def test_every_attack_refuses_a_broken_release(server: Server, view: View, attack: Any) -> None:
    view.released[1, 0] = float("nan")
    with pytest.raises(ReleaseError, match=r"release\(s\) 1\."):
        attack(server, view)


@pytest.mark.parametrize("attack", [invgrad, likelihood, unrolled])
def test_attacks_that_are_granted_the_labels_need_them(server: Server, view: View, attack: Any) -> None:
    with pytest.raises(DataError, match="granted the labels"):
        attack(server, replace(view, labels=None))


@pytest.mark.parametrize("attack", [dlg, idlg])
def test_attacks_that_find_the_labels_do_not_read_them(server: Server, view: View, attack: Any) -> None:
    search = Search(iterations=2)
    with_labels, without = attack(server, view, search), attack(server, replace(view, labels=None), search)
    assert torch.equal(with_labels.images, without.images)
    assert torch.equal(with_labels.labels, without.labels)


# --- check_differentiable ----------------------------------------------------------------------------------


class Through(nn.Module):
    """A linear model behind a function of its input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.function(x).flatten(1))


DEAD: dict[str, Callable[[Tensor], Tensor]] = {
    "round": torch.round,
    "sign": torch.sign,
    "floor": torch.floor,
    "detach": torch.detach,
    "compare": lambda x: (x > 0.5).to(x.dtype),
    "zero": lambda x: 0 * x,
}


@pytest.mark.parametrize("how", DEAD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_hides_its_input_is_refused(how: str, dtype: torch.dtype) -> None:
    server = server_of(Through(DEAD[how]).to(dtype))
    previous = torch.ones(1, server.batched.layout.size, dtype=dtype)
    with pytest.raises(ModelError, match="gradient") as caught:
        check_differentiable(server, previous)
    assert_helpful(caught)
    assert "lti" in caught.value.remedy


@pytest.mark.parametrize("attack", [invgrad, dlg, likelihood, unrolled])
def test_no_search_is_started_on_such_a_model(attack: Any) -> None:
    server = server_of(Through(torch.round))
    weights = torch.ones(2, server.batched.layout.size)
    with pytest.raises(ModelError, match="does not depend on its inputs"):
        attack(server, View(weights, weights + 0.1, torch.zeros(2, 2, dtype=torch.int64)))


def test_weights_that_pass_nothing_on_are_refused() -> None:
    server = server_of(small())
    with pytest.raises(ModelError, match="does not depend on its inputs"):
        check_differentiable(server, torch.zeros(1, server.batched.layout.size))


@pytest.mark.parametrize("model", [small(), Through(torch.tanh), Through(lambda x: x)])
def test_a_differentiable_model_passes(model: nn.Module) -> None:
    server = server_of(model)
    previous = server.batched.layout.flatten(dict(model.named_parameters()))
    check_differentiable(server, previous.repeat(3, 1))
    check_differentiable(server, previous.expand(3, -1))


# --- check_public ------------------------------------------------------------------------------------------


@pytest.fixture
def public(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.rand(10, *SHAPE, generator=generator), torch.arange(10) % 5


def test_good_public_data_passes(server: Server, view: View, public: tuple[Tensor, Tensor]) -> None:
    for labels in (None, view.labels):
        images, classes = check_public(server, public, labels)
        assert torch.equal(images, public[0])
        assert torch.equal(classes, public[1])


@pytest.mark.parametrize(
    "shape", [(10, 1, 4, 5), (10, 16), (10, 4, 4), (10, 3, 4, 4), (10,), (9, 1, 4, 4), (2, 5, 1, 4, 4)]
)
def test_public_images_of_a_wrong_shape(server: Server, public: tuple[Tensor, Tensor], shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="Expected public inputs") as caught:
        check_public(server, (torch.zeros(shape), public[1]), None)
    assert str(shape) in str(caught.value) or str(shape[1:]) in str(caught.value)
    assert_helpful(caught)


def test_no_public_images(server: Server, public: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(DataError, match="no public inputs") as caught:
        check_public(server, (public[0][:0], public[1][:0]), None)
    assert_helpful(caught)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_public_images_that_are_not_finite(server: Server, public: tuple[Tensor, Tensor], value: float) -> None:
    public[0][3, 0, 1, 1] = value
    with pytest.raises(DataError, match="not finite") as caught:
        check_public(server, public, None)
    assert_helpful(caught)


def test_public_labels_are_checked(server: Server, public: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(DataError, match=r"labels in 0\.\.4, got 1\.\.5"):
        check_public(server, (public[0], public[1] + 1), None)
    with pytest.raises(DataError, match="int64 labels"):
        check_public(server, (public[0], public[1].float()), None)


def test_a_label_without_a_public_image(server: Server, view: View, public: tuple[Tensor, Tensor]) -> None:
    images, classes = public
    kept = (classes != 3) & (classes != 4)
    with pytest.raises(DataError, match="No public input has label 3") as caught:
        check_public(server, (images[kept], classes[kept]), view.labels)
    assert_helpful(caught)
    check_public(server, (images[kept], classes[kept]), torch.tensor([[0, 1]]))
    check_public(server, (images[kept], classes[kept]), None)


# --- groups ------------------------------------------------------------------------------------------------


def rows_of(parts: list[Any]) -> list[list[int]]:
    return [part[0].tolist() for part in parts]


def test_releases_from_the_same_weights(generator: torch.Generator) -> None:
    weights = torch.randn(3, 6, generator=generator)
    picked = torch.tensor([2, 0, 2, 1, 0, 2])
    result = list(groups_of_weights(View(weights[picked], torch.zeros(6, 6))))
    assert sorted(rows_of(result)) == [[0, 2, 5], [1, 4], [3]]
    for rows, start in result:
        for row in rows.tolist():
            assert torch.equal(start, weights[picked[row]])


@pytest.mark.parametrize("how", ["expanded", "repeated"])
def test_one_set_of_weights_is_one_group(how: str, generator: torch.Generator) -> None:
    start = torch.randn(1, 6, generator=generator)
    previous = start.expand(5, -1) if how == "expanded" else start.repeat(5, 1)
    ((rows, result),) = groups_of_weights(View(previous, torch.zeros(5, 6)))
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(result, start[0])


def test_a_single_release_is_one_group(server: Server, generator: torch.Generator) -> None:
    view = View(torch.randn(1, 6, generator=generator), torch.zeros(1, 6), torch.tensor([[3, 1]]))
    ((rows, start, labels),) = groups(server, view)
    assert rows.tolist() == [0]
    assert torch.equal(start, view.previous[0])
    assert labels.tolist() == [1, 3]


def test_groups_share_weights_and_labels_in_any_order(server: Server) -> None:
    previous = torch.tensor([[1.0], [0.0], [1.0], [1.0], [0.0], [1.0], [1.0]]).repeat(1, 6)
    labels = torch.tensor([[2, 1, 1], [1, 2, 1], [1, 1, 2], [2, 2, 1], [0, 0, 0], [1, 2, 1], [2, 1, 2]])
    view = View(previous, torch.zeros(7, 6), labels)
    result = list(groups(server, view))
    assert sorted(rows_of(result)) == [[0, 2, 5], [1], [3, 6], [4]]
    for rows, start, shared in result:
        for row in rows.tolist():
            assert torch.equal(start, previous[row])
            assert shared.tolist() == sorted(labels[row].tolist())


def test_groups_with_expanded_weights(server: Server) -> None:
    labels = torch.tensor([[4, 0], [1, 1], [0, 4], [1, 1]])
    view = View(torch.ones(1, 6).expand(4, -1), torch.zeros(4, 6), labels)
    assert sorted(rows_of(list(groups(server, view)))) == [[0, 2], [1, 3]]


def test_every_row_is_in_exactly_one_group(server: Server, generator: torch.Generator) -> None:
    starts = torch.randn(4, 3, generator=generator)
    picked = torch.randint(0, 4, (60,), generator=generator)
    labels = torch.randint(0, 3, (60, 3), generator=generator)
    view = View(starts[picked], torch.zeros(60, 3), labels)
    rows = [row for part in groups(server, view) for row in part[0].tolist()]
    assert sorted(rows) == list(range(60))
    expected = {(int(p), *sorted(ls.tolist())) for p, ls in zip(picked, labels, strict=True)}
    assert len(list(groups(server, view))) == len(expected)


def test_labels_of_different_local_steps_are_not_mixed(server: Server) -> None:
    """Which example was trained on first matters: only within a step may labels change places."""
    labels = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [0, 2, 1, 3], [3, 2, 1, 0]])
    view = View(torch.ones(1, 6).expand(5, -1), torch.zeros(5, 6), labels)
    two = replace(server, local_steps=2)
    result = {tuple(shared.tolist()): rows.tolist() for rows, _, shared in groups(two, view)}
    assert result == {(0, 1, 2, 3): [0, 1], (2, 3, 0, 1): [2, 4], (0, 2, 1, 3): [3]}
    assert rows_of(list(groups(server, view))) == [[0, 1, 2, 3, 4]], "one step of four examples has no order"


# --- restore_order -----------------------------------------------------------------------------------------


def test_restore_order_by_hand(server: Server) -> None:
    images = torch.tensor([[10.0, 20.0, 30.0]]).view(1, 3, 1, 1, 1)  # made for labels 1, 2, 2
    assert restore_order(server, images, torch.tensor([[2, 1, 2]])).flatten().tolist() == [20, 10, 30]
    assert restore_order(server, images, torch.tensor([[2, 2, 1]])).flatten().tolist() == [20, 30, 10]
    assert restore_order(server, images, torch.tensor([[1, 2, 2]])).flatten().tolist() == [10, 20, 30]


@pytest.mark.parametrize("shape", [(1, 3, 2), (5,), ()])
def test_sorting_and_restoring_is_a_round_trip(
    server: Server, shape: tuple[int, ...], generator: torch.Generator
) -> None:
    labels = torch.randint(0, 4, (20, 6), generator=generator)  # of six labels some are equal
    images = torch.rand(20, 6, *shape, generator=generator)
    ordered = torch.stack([part[order] for part, order in zip(images, labels.argsort(dim=1, stable=True), strict=True)])
    assert not torch.equal(ordered, images)
    assert torch.equal(restore_order(server, ordered, labels), images)


def test_groups_and_restore_order_bring_every_image_home(server: Server, generator: torch.Generator) -> None:
    labels = torch.randint(0, 3, (12, 4), generator=generator)
    view = View(torch.ones(1, 2).expand(12, -1), torch.zeros(12, 2), labels)
    result = torch.full((12, 4, 1, 1, 1), float("nan"))
    for rows, _, shared in groups(server, view):
        guess = shared.float().view(1, 4, 1, 1, 1).expand(len(rows), -1, -1, -1, -1)  # an image shows its label
        result[rows] = restore_order(server, guess, labels[rows])
    assert torch.equal(result.view(12, 4), labels.float())


def test_restore_order_stays_within_a_local_step(server: Server) -> None:
    two = replace(server, local_steps=2)
    images = torch.tensor([[10.0, 20.0, 30.0, 40.0]]).view(1, 4, 1, 1, 1)
    for labels, order in (
        ([3, 2, 1, 0], [20, 10, 40, 30]), ([2, 3, 0, 1], [10, 20, 30, 40]), ([1, 1, 2, 0], [10, 20, 40, 30]),
    ):  # fmt: skip
        assert restore_order(two, images, torch.tensor([labels])).flatten().tolist() == order


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_the_round_trip_holds_for_several_local_steps(server: Server, steps: int, generator: torch.Generator) -> None:
    """Sorted by hand within every step and restored: each image is where it was, also among equal labels."""
    several = replace(server, local_steps=steps)
    labels = torch.randint(0, 3, (30, 6), generator=generator)
    images = torch.rand(30, 6, *SHAPE, generator=generator)
    view = View(torch.ones(1, 2).expand(30, -1), torch.zeros(30, 2), labels)
    result = torch.full_like(images, float("nan"))
    for rows, _, shared in groups(several, view):
        for row in rows.tolist():
            size = 6 // steps
            order = [
                i
                for at in range(0, 6, size)
                for i in sorted(range(at, at + size), key=labels[row].tolist().__getitem__)
            ]
            assert shared.tolist() == labels[row][order].tolist()
            result[row] = restore_order(several, images[row][order].unsqueeze(0), labels[row].unsqueeze(0))[0]
    assert torch.equal(result, images)


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_of_a_view_shares_no_memory_and_keeps_one_row_of_shared_weights(shared: bool) -> None:
    previous = torch.rand(1, 7).expand(3, -1) if shared else torch.rand(3, 7)
    view = View(previous, torch.rand(3, 7), torch.zeros(3, 2, dtype=torch.int64))
    copy = view.copy()
    assert copy.labels is not None
    assert view.labels is not None
    for one, other in ((copy.previous, previous), (copy.released, view.released), (copy.labels, view.labels)):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
    assert copy.previous.stride() == previous.stride()
    assert replace(view, labels=None).copy().labels is None


# --- kinds of inputs and labels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "tokens", "kind"),
    [((1, 4, 4), False, "image"), ((7,), False, "table"), ((5, 7), False, "table"), ((7,), True, "tokens")],
)
def test_the_kind_of_inputs_follows_from_type_and_rank(
    server: Server, shape: tuple[int, ...], tokens: bool, kind: str
) -> None:
    assert replace(server, shape=shape, tokens=tokens).kind == kind


def test_classes_are_their_own_strata_and_all_else_shares_one(server: Server, view: View) -> None:
    assert view.labels is not None
    assert server.strata(view.labels) is view.labels
    assert server.stratified(view) is view
    looked_up = replace(server, targets=torch.tensor([0.5, 2.0, 3.0]))
    assert looked_up.strata(view.labels).unique().tolist() == [0]
    for seen in (view, replace(view, labels=None)):
        assert looked_up.stratified(seen).labels.tolist() == [[0, 0]] * 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (None, None), (torch.tensor([0.5, 1.0]), None), (torch.tensor([0.0, 1.0]), [[0], [1]]),
        (torch.tensor([[True, False]]), [[1, 0]]), (torch.tensor([[0, 2]]), None),
    ],
)  # fmt: skip
def test_zeros_and_ones_are_yes_or_no_labels(server: Server, targets: Any, expected: Any) -> None:
    table = replace(server, targets=targets).indicators
    assert (None if table is None else table.long().tolist()) == expected


def test_label_numbers_end_where_the_table_of_targets_does(server: Server, view: View) -> None:
    check(replace(server, targets=torch.rand(5)), view)
    with pytest.raises(DataError, match=r"in 0\.\.3, got 0\.\.4"):
        check(replace(server, targets=torch.rand(4)), view)


def test_public_tokens_keep_their_type_and_numbers_get_that_of_the_weights(server: Server) -> None:
    labels = torch.arange(6) % 5
    tokens = replace(server, shape=(3,), tokens=True)
    assert check_public(tokens, (torch.ones(6, 3, dtype=torch.int64), labels), None)[0].dtype == torch.int64
    assert check_public(server, (torch.ones(6, *SHAPE, dtype=torch.float64), labels), None)[0].dtype == torch.float32


def test_public_values_serve_any_label_that_is_asked_for(server: Server) -> None:
    public, labels = (torch.rand(6, *SHAPE), torch.zeros(6, dtype=torch.int64)), torch.tensor([[3, 1]])
    check_public(replace(server, targets=torch.rand(5)), public, labels)
    with pytest.raises(DataError, match="No public input has label 1"):
        check_public(server, public, labels)
