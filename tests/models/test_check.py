"""Models that cannot be trained for several sets of parameters at once are refused, with all reasons."""

from __future__ import annotations

import re
import textwrap
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from equipoise.errors import ModelError
from equipoise.models import check
from equipoise.models.batched import Batched
from equipoise.models.check import check_features, check_model, circumstances, loss_error
from equipoise.models.routes import Name
from tests.models.reference import assert_first_order, batch, randomised

ROUTES: tuple[Name | None, ...] = (None, "vmap", "loop")
IMAGES = torch.linspace(-1, 1, 2 * 4 * 4).view(2, 1, 4, 4)


def refused(
    model: nn.Module, remedy: str, classes: int | None = 3, images: Any = IMAGES, route: Name | None = None
) -> ModelError:
    """The error, whose remedy is the one that fits: GroupNorm helps nobody who has no BatchNorm."""
    with pytest.raises(ModelError, match=r"^The model cannot be used: ") as caught:
        check_model(model, images, classes, route=route)
    assert remedy in caught.value.remedy
    assert ("GroupNorm" in caught.value.remedy) == ("BatchNorm" in caught.value.cause)
    return caught.value


def head(*body: nn.Module, features: int = 16) -> nn.Sequential:
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(features, 3))


def test_batch_norm_is_refused_in_train_mode_and_accepted_in_eval_mode() -> None:
    model = head(nn.BatchNorm2d(1))
    assert "'0' (BatchNorm2d) keeps running statistics" in refused(model, "GroupNorm, or call eval()").cause
    model[0].eval()
    check_model(model, IMAGES, 3)
    double = randomised(model)
    assert_first_order(Batched(double), double, *batch((1, 4, 4), classes=3))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(16), nn.SyncBatchNorm(16), nn.InstanceNorm1d(1, track_running_stats=True)]
)
def test_its_relatives_are_refused_too(layer: nn.Module) -> None:
    assert (
        f"({type(layer).__name__}) keeps running statistics"
        in refused(nn.Sequential(nn.Flatten(), layer), "call eval()").cause
    )


def test_dropout_is_refused_unless_it_does_nothing() -> None:
    assert "'0' (Dropout) draws random numbers" in refused(head(nn.Dropout(0.5)), "set p=0").cause
    check_model(head(nn.Dropout(0.0)), IMAGES, 3)
    check_model(head(nn.Dropout(0.5)).eval(), IMAGES, 3)


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.fc(x.flatten(1)), 0.5)


def test_dropout_hidden_in_forward_is_refused() -> None:
    for route in ROUTES:
        error = refused(FunctionalDropout(), "Take randomness, and whatever changes", route=route)
        assert "the same parameters and inputs gave different outputs" in error.cause


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x.flatten(1))


def test_a_forward_that_changes_a_buffer_is_refused_by_name() -> None:
    assert "changes the buffer(s) calls" in refused(Counting(), "outside of forward").cause


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x.flatten(1))
        return y if bool(y.sum() > 0) else -y


def test_control_flow_on_data_is_a_problem_of_torch_func_alone() -> None:
    error = refused(Branching(), "torch.where", route="vmap")
    assert "decides by the values in a tensor" in error.cause
    assert "Or take the route 'loop'" in error.remedy
    assert check_model(Branching(), IMAGES, 3, route="threads") == "threads"
    assert check_model(Branching(), IMAGES, 3) == "loop", "one set of parameters gains nothing by workers"


def test_where_torch_func_cannot_run_a_model_plain_pytorch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the rule has vmap for most models."""
    monkeypatch.setattr(check, "default_route", lambda *_, **__: "vmap")
    assert check_model(Branching(), IMAGES, 3) == "loop"
    assert check_model(Recurrent(), IMAGES, 3) == "vmap"


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **form: Any) -> None:
        super().__init__()
        self.rnn = kind(4, 3, batch_first=True, **form)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x[:, 0])[0][:, -1]


def test_an_lstm_is_no_problem() -> None:
    check_model(Recurrent(), IMAGES, 3)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.fc(x.flatten(1))
        return y, y


def test_outputs_of_the_wrong_kind_or_size_are_refused() -> None:
    assert "its forward returns tuple, not a tensor" in refused(Pair(), "returns the tensor of outputs alone").cause
    assert "its output has shape (2, 3), not (2, 10)" in refused(head(), "10 outputs", classes=10).cause
    assert "its output has shape (2, 1, 4, 3), not (2, 3)" in refused(nn.Sequential(nn.Linear(4, 3)), "3 outputs").cause
    check_model(head(), IMAGES)


def test_a_model_for_other_images_is_refused_with_their_shape() -> None:
    assert (
        "its forward failed on a batch of shape (2, 1, 4, 4)"
        in refused(head(features=784), "inputs of this shape").cause
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_parameter_is_refused_by_name(bad: float) -> None:
    model = head()
    with torch.no_grad():
        model[1].weight[0, 0] = bad
    assert "parameter '1.weight' is not finite" in refused(model, "Load finite parameters").cause


def test_all_reasons_come_at_once() -> None:
    model = head(nn.BatchNorm2d(1), nn.Dropout(0.1), Recurrent(num_layers=2, dropout=0.1))
    with torch.no_grad():
        model[4].bias[0] = float("nan")
    error = refused(model, "GroupNorm")
    cause = error.cause
    for part in ("'0' (BatchNorm2d)", "'1' (Dropout)", "'2.rnn' (LSTM)", "'4.bias' is not finite"):
        assert part in cause
    for part in ("GroupNorm", "Call eval() on dropout", "the dropout of LSTM", "finite parameters"):
        assert part in error.remedy, "each with its own remedy"


def test_a_deep_network_names_a_few_of_its_layers() -> None:
    error = refused(head(*(nn.BatchNorm2d(1) for _ in range(11))), "GroupNorm")
    assert "'7' (BatchNorm2d)" in error.cause
    assert "'8'" not in error.cause
    assert error.cause.endswith("; and 3 more.")


def test_checking_leaves_a_good_model_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 5, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_model(model, torch.randn(2, 1, 6, 7, generator=torch.Generator().manual_seed(1)), 4)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training


# -- each cause has its own remedy ---------------------------------------------------------------------------------


class Running(nn.Module):
    """A linear layer, and whatever a test puts behind it."""

    def __init__(self, then: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.then = nn.Linear(16, 3), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.fc(x.flatten(1)))


def filled_in(y: Tensor) -> Tensor:
    result = torch.zeros(2, 3)
    result[:] = y
    return result


def added(y: Tensor) -> Tensor:
    result = torch.zeros(2, 3)
    result += y
    return result


CALLS = iter(range(1000))


@pytest.mark.parametrize(
    ("then", "cause", "remedy"),
    [
        (lambda y: y + torch.rand(2, 3), "gave different outputs", "Take randomness, and whatever changes"),
        (lambda y: y * y.sum().item(), "decides by the values", "torch.where"),
        (lambda y: y[y > 0], "decides by the values", "torch.where"),
        (filled_in, "changes a tensor in place", "instead of filling in"),
        (added, "changes a tensor in place", "x = x + y instead of x += y"),
        (lambda y: torch.from_numpy(y.detach().numpy()), "leaves torch", "no numpy"),
        (
            lambda y: y + next(CALLS),
            "the same parameters and inputs gave different outputs",
            "changes from call to call",
        ),
    ],
    ids=["randomness", "item", "mask", "assignment", "addition", "numpy", "state"],
)
def test_what_torch_func_cannot_run_is_told_apart(then: Callable[[Tensor], Tensor], cause: str, remedy: str) -> None:
    assert cause in refused(Running(then), remedy, classes=None, route="vmap").cause


@pytest.mark.parametrize(
    ("images", "remedy"),
    [
        (IMAGES.double(), "Convert the inputs: to torch.float32"),
        (IMAGES.byte(), "Convert the inputs: to torch.float32"),
        (IMAGES.to("meta"), "Move both to one device"),
        (IMAGES[:, :, :3], "inputs of this shape"),
    ],
    ids=["float64", "bytes", "device", "shape"],
)
def test_inputs_of_the_wrong_form_are_told_apart(images: Tensor, remedy: str) -> None:
    refused(head(), remedy, images=images)


def test_floats_for_an_embedding_are_told_to_be_whole_numbers() -> None:
    refused(nn.Sequential(nn.Embedding(4, 3)), "torch.int64", images=torch.zeros(2, 2))


def test_a_parameter_that_is_no_floating_point_number_is_refused_by_name() -> None:
    model = head()
    model.counts = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    assert "parameter 'counts' is torch.int64" in refused(model, "a buffer").cause


# -- the remedy for a module works on that module --------------------------------------------------------------------


def part_of(model: nn.Module, cause: str) -> Any:
    """The module that an error names."""
    return model.get_submodule(re.search(r"'([\w.]+)' \(", cause)[1])  # type: ignore[index]


def no_dropout(part: Any) -> None:
    part.dropout = 0.0


@pytest.mark.parametrize(
    ("layer", "remedy", "apply"),
    [
        (nn.BatchNorm2d(1), "call eval() on it", lambda part: part.eval()),
        (nn.InstanceNorm2d(1, track_running_stats=True), "call eval() on it", lambda part: part.eval()),
        (nn.Dropout(0.5), "Call eval() on dropout", lambda part: part.eval()),
        (nn.Dropout(0.5), "set p=0", lambda part: setattr(part, "p", 0.0)),
        (Recurrent(num_layers=2, dropout=0.2), "Set the dropout of LSTM to 0.0", no_dropout),
        (Recurrent(nn.GRU, num_layers=2, dropout=0.2), "Set the dropout of GRU to 0.0", no_dropout),
        (Recurrent(nn.GRU, num_layers=2, dropout=0.2), "call eval() on it", lambda part: part.eval()),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_the_remedy_for_a_layer_that_draws_or_remembers(
    layer: nn.Module, remedy: str, apply: Callable[[Any], Any]
) -> None:
    model = head(layer, features=3 if isinstance(layer, Recurrent) else 16)
    part = part_of(model, refused(model, remedy).cause)
    apply(part)
    check_model(model, IMAGES, 3)


def test_a_random_slope_is_replaced() -> None:
    assert "'0' (RReLU) draws random numbers" in refused(head(nn.RReLU()), "Replace RReLU by LeakyReLU").cause
    check_model(head(nn.LeakyReLU()), IMAGES, 3)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, 0]
        return self.out(self.attention(y, y, y, need_weights=False)[0].mean(1))


def test_the_remedy_for_attention_with_dropout() -> None:
    model = Attentive()
    cause = refused(model, "Set the dropout of attention to 0.0").cause
    assert "'attention' (MultiheadAttention) draws random numbers" in cause
    no_dropout(part_of(model, cause))
    check_model(model, IMAGES, 3)
    model.attention.dropout = 0.2
    check_model(model.eval(), IMAGES, 3)


class OwnLSTM(nn.LSTM):
    """Derived from torch's: it may do anything."""


def test_a_recurrent_layer_of_ones_own_is_named_and_torchs_own_serves() -> None:
    model = Recurrent(OwnLSTM)
    error = refused(model, "Use the layer of torch itself", route="vmap")
    assert "'rnn' (OwnLSTM) is derived from a layer of torch" in error.cause
    check_model(Recurrent(nn.LSTM), IMAGES, 3, route="vmap")
    check_model(model, IMAGES, 3)


class Reader(nn.Module):
    """The last real output of sequences of tokens, 0 is padding: packed, or as the remedy says."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed, self.words, self.rnn = packed, nn.Embedding(5, 4), nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths, seen = (x != 0).sum(1), self.words(x)
        if self.packed:
            return self.rnn(pack_padded_sequence(seen, lengths, batch_first=True, enforce_sorted=False))[1][0]
        return self.rnn(seen)[0][torch.arange(len(x)), lengths - 1]


def test_packed_sequences_are_refused_by_name_and_padded_ones_serve() -> None:
    tokens, blank = torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.zeros(1, 3, dtype=torch.int64)
    for x, route in ((tokens, "vmap"), (blank, None)):  # a blank record, as a guarantee tries it, cannot be packed
        error = refused(Reader(True), "padded tensor", images=x, route=route)
        assert "'rnn' (GRU) gets packed sequences" in error.cause
    check_model(Reader(True), tokens, 3)
    check_model(Reader(False), blank, 3)
    packed, padded = Reader(True), Reader(False)
    padded.load_state_dict(packed.state_dict())
    check_model(padded, tokens, 3, route="vmap")
    assert torch.allclose(packed(tokens), padded(tokens))


def test_batch_norm_without_statistics_of_its_own_needs_more_than_one_record() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16, track_running_stats=False), nn.Linear(16, 3))
    check_model(model, IMAGES, 3)
    assert "'1' (BatchNorm1d) needs more than the one record" in refused(model, "GroupNorm", images=IMAGES[:1]).cause
    model[1] = nn.GroupNorm(4, 16)
    check_model(model, IMAGES[:1], 3)


def test_what_torch_func_cannot_run_is_placed_in_its_module() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Unflatten(1, (1, 4, 4)), Branching())
    assert "in '3' (Branching), decides by the values" in refused(model, "torch.where", route="vmap").cause
    assert "in '1' (Linear), which has in_features=17" in refused(head(features=17), "inputs of this shape").cause


# -- several inputs, and outputs of any kind -------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self, form: str = "tensor") -> None:
        super().__init__()
        self.fc, self.form = nn.Linear(16, 3), form

    def forward(self, image: Tensor, shift: Tensor) -> Any:
        logits = self.fc(image.flatten(1)) + shift.unsqueeze(1)
        kinds = {"tensor": logits, "dict": {"logits": logits, "size": logits.norm()}, "tuple": (logits, shift)}
        return kinds[self.form]


SHIFT = torch.tensor([0.5, -1.0])


def test_inputs_by_place_and_by_name() -> None:
    for inputs in ((IMAGES, SHIFT), {"shift": SHIFT, "image": IMAGES}):
        check_model(Two(), inputs, 3)


@pytest.mark.parametrize("inputs", [IMAGES, (IMAGES,), {"image": IMAGES}, {"image": IMAGES, "move": SHIFT}])
def test_inputs_that_are_not_those_of_forward_are_told(inputs: Any) -> None:
    cause = refused(Two(), "Pass all inputs: by place", images=inputs).cause
    assert "its forward takes (image, shift)" in cause


def test_other_outputs_need_a_loss_and_the_remedy_has_one() -> None:
    for form, part in (("dict", "outputs['logits']"), ("tuple", "outputs[0]")):
        model = Two(form)
        remedy = refused(model, part, None, (IMAGES, SHIFT)).remedy
        loss = eval(remedy.partition("loss=")[2].removesuffix("."), {"torch": torch})
        check_model(model, (IMAGES, SHIFT), loss=loss)
        gradient = (
            Batched(model, loss).at((IMAGES[None], SHIFT[None]), torch.tensor([[0, 1]])).gradient(torch.zeros(1, 51))
        )
        assert gradient.abs().sum() > 0


def test_where_no_loss_is_taken_the_remedy_is_a_class_that_returns_the_outputs() -> None:
    for form, part in (("dict", "['logits']"), ("tuple", "[0]")):
        with pytest.raises(ModelError) as caught:
            check_model(Two(form), (IMAGES, SHIFT), 3, takes_loss=False)
        assert "loss=" not in caught.value.remedy
        known = {"Two": Two}
        exec(textwrap.dedent(caught.value.remedy.partition("\n")[2]), known)
        assert f"{part}" in caught.value.remedy
        check_model(known["Outputs"](form), (IMAGES, SHIFT), 3, takes_loss=False)


def test_randomness_in_any_output_is_found() -> None:
    model = Running(lambda y: {"logits": y, "state": y + next(CALLS)})
    with pytest.raises(ModelError, match="gave different outputs"):
        check_model(model, IMAGES, loss=lambda outputs, labels: outputs["logits"].mean())


# -- errors of the user's own code ---------------------------------------------------------------------------------

MARKER = "patient 4711"


def careless(y: Tensor) -> Tensor:
    raise ValueError(f"cannot use the record of {MARKER}")


def test_the_words_of_an_error_in_forward_are_not_quoted() -> None:
    error = refused(Running(careless), "Call model(x) by itself")
    assert "ValueError at test_check.py:" in error.cause
    assert MARKER not in "".join(traceback.format_exception(error))


def test_the_words_of_an_error_under_torch_func_alone_are_not_quoted() -> None:
    def picky(y: Tensor) -> Tensor:
        return careless(y) if torch._C._functorch.is_functorch_wrapped_tensor(y) else y

    error = refused(Running(picky), "Use torch operations alone", route="vmap")
    assert "ValueError at test_check.py:" in error.cause
    assert MARKER not in "".join(traceback.format_exception(error))


def test_an_error_of_the_loss_is_told_by_its_cause() -> None:
    def failing(outputs: Tensor, labels: Tensor) -> Tensor:
        return careless(outputs)

    labels, model = torch.tensor([0, 1]), head()
    raised = RuntimeError(f"vmap: data-dependent {MARKER}")
    cases = [
        (failing, raised, "cannot be computed: ValueError at test_check.py:", "Call loss(model(x), y) by itself"),
        (None, raised, "the loss decides by the values", "torch.where"),
        (None, KeyError(MARKER), "torch.func cannot run the loss (KeyError)", "torch operations alone"),
        (None, RuntimeError("element 0 does not require grad"), "that autograd can follow", "Take .detach()"),
        (None, torch.OutOfMemoryError(MARKER), "does not fit into the memory of cpu", "Use a smaller batch"),
    ]
    for loss, error, cause, remedy in cases:
        result = loss_error(error, model, loss, IMAGES, labels)
        assert cause in result.cause
        assert remedy in result.remedy
        assert MARKER not in str(result)


# -- features ------------------------------------------------------------------------------------------------------


class Then(nn.Module):
    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(x)


@pytest.mark.parametrize(
    ("then", "cause"),
    [
        (lambda x: x - x.mean(0), r"'1' \(Then\) mixes the images of a batch"),
        (lambda x: x.flip(0), r"'1' \(Then\) mixes the images of a batch"),
        (lambda x: x * 1e-9 * len(x), r"'1' \(Then\) mixes the images of a batch"),
        (lambda x: torch.cat([x.flip(0), x * torch.inf], 1), r"'1' \(Then\) mixes the images of a batch"),
        (lambda x: x.flatten(1).cumsum(0), r"'1' \(Then\) mixes the images of a batch"),
        (lambda x: x + torch.rand_like(x), r"'1' \(Then\) gave other outputs for the same images"),
        (lambda x: x.mean((0, 2, 3)), r"its output is torch.float32 of shape \(2,\) for 3 images"),
        (lambda x: x.argmax(1), r"its output is torch.int64 of shape \(3, 4, 4\)"),
        (lambda x: (x, x), r"its forward returns tuple, not a tensor"),
        (lambda x: careless(x), r"ValueError at test_check.py"),
    ],
)
def test_features_that_are_no_function_of_one_image_are_refused(then: Callable[[Tensor], Tensor], cause: str) -> None:
    network, pixels = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), Then(then)), torch.rand(3, 1, 4, 4)
    with pytest.raises(ModelError, match=cause) as caught:
        check_features(network, pixels)
    assert MARKER not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.BatchNorm2d(1), nn.Dropout()).eval(),
        nn.Sequential(nn.InstanceNorm2d(1), nn.Flatten()),
        Then(lambda x: x / 0),
        Then(lambda x: torch.cat([x, x * torch.nan], 1)),
        Then(lambda x: x.flatten(1)[:, :0]),
        Then(lambda x: torch.fft.fft2(x).abs()),
        nn.Sequential(Then(torch.fft.fft2), Then(torch.abs)),
        nn.Sequential(Then(lambda x: x > 0.5), Then(lambda x: x.float())),
    ],
)
def test_features_of_one_image_each_are_accepted_and_nothing_is_left_behind(network: nn.Module) -> None:
    check_features(network, torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
    assert not any(part._forward_hooks for part in network.modules())


class Pooling(nn.Module):
    """A learned exponent, as of a generalised mean: a tensor by a name that layers have numbers by."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(1))


def test_what_a_check_depends_on_is_everything_but_values() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LSTM(4, 4, 2, dropout=0.1), nn.Embedding(3, 4), Pooling()
    )
    norm, dropout, recurrent, embedding, pooling = model
    known = [circumstances(model)]

    def changed() -> bool:
        known.append(circumstances(model))
        hash(known[-1])
        return known[-1] not in known[:-1]

    with torch.no_grad():
        pooling.p.fill_(3)
        norm.weight.fill_(2)
    assert not changed()
    for part, name, value in (
        (norm, "track_running_stats", False), (dropout, "p", 0.0), (recurrent, "dropout", 0.0),
        (embedding, "max_norm", 1.0), (norm, "training", False), (norm.weight, "requires_grad", False),
    ):  # fmt: skip
        setattr(part, name, value)
        assert changed(), name
    model[1] = nn.AlphaDropout(0.0)
    assert changed()


class Faint(nn.Module):
    """Its outputs are small, and half of them random."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 1e-6 * self.last(x.flatten(1)) + 1e-6 * torch.randn(len(x), 3)


def test_outputs_are_compared_at_their_own_size() -> None:
    error = refused(Faint(), "Take randomness", images=IMAGES)
    assert "gave different outputs" in error.cause
