"""Models that cannot be trained for several sets of parameters at once are refused, with all reasons."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.batched import Batched
from equipoise.models.check import check_features, check_model, loss_error
from tests.models.reference import assert_first_order, batch, randomised

IMAGES = torch.linspace(-1, 1, 2 * 4 * 4).view(2, 1, 4, 4)


def refused(model: nn.Module, remedy: str, classes: int | None = 3, images: Tensor = IMAGES) -> ModelError:
    """The error, whose remedy is the one that fits: GroupNorm helps nobody who has no BatchNorm."""
    with pytest.raises(ModelError, match=r"^The model cannot be used: ") as caught:
        check_model(model, images, classes)
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
    assert "draws random numbers" in refused(FunctionalDropout(), "call eval()").cause


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


def test_control_flow_on_data_is_refused() -> None:
    assert "decides by the values in a tensor" in refused(Branching(), "torch.where").cause


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x[:, 0])[0][:, -1]


def test_lstm_is_refused() -> None:
    assert "'rnn' (LSTM) has no batched form" in refused(Recurrent(), "nn.GRUCell").cause


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
    model = head(nn.BatchNorm2d(1), nn.Dropout(0.1), Recurrent())
    with torch.no_grad():
        model[4].bias[0] = float("nan")
    error = refused(model, "GroupNorm")
    cause = error.cause
    for part in ("'0' (BatchNorm2d)", "'1' (Dropout)", "'2.rnn' (LSTM)", "'4.bias' is not finite"):
        assert part in cause
    for part in ("GroupNorm", "dropout", "nn.GRUCell", "finite parameters"):
        assert part in error.remedy, "each with its own remedy"


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

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.then = nn.Linear(16, 3), then

    def forward(self, x: Tensor) -> Tensor:
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
        (lambda y: y + torch.rand(2, 3), "draws random numbers", "the same inputs must give the same"),
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
    assert cause in refused(Running(then), remedy, classes=None).cause


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


def test_recurrent_cells_do_what_the_remedy_says() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            state = x.new_zeros(len(x), 3)
            for place in range(4):
                state = self.cell(x[:, 0, place], state)
            return state

    check_model(Loop(), IMAGES, 3)


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

    error = refused(Running(picky), "Use torch operations alone")
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
