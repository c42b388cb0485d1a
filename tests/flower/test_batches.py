"""No single record decides whether a release with a guarantee leaves, whatever it makes of the form of its batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.utils.data import DataLoader

from equipoise.errors import ConfigError, DataError, ModelError
from equipoise.flower import protected_step
from equipoise.flower.batches import Parts, all_records, read_batch, spared
from tests.flower.messages import WHOLE_RUN, answered, asking, content, context, images, network
from tests.flower.policies import easy, node
from tests.flower.whole_runs import accepted

LAPLACE = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}
KEYS = ("img", "label")
Calls = list[dict[str, Any]]


@pytest.fixture(params=[LAPLACE, WHOLE_RUN], ids=["laplace-dp", "gaussian-dp"])
def run(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def policy(tmp_path: Path) -> dict[str, Any]:
    return node(tmp_path / "p.toml", weight=1)


def leaves(run: dict[str, Any], policy: dict[str, Any], data: Any, model: nn.Module, **options: Any) -> bool:
    """Whether a node answers with a release, from this data."""
    came = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def train(msg: Message, context: Context) -> Message:
        return Message(content(protected_step(model, data, msg, context, **options)), reply_to=msg)

    return accepted(answered(train, asking(tensors=came), context(run, policy)))


def loader(labels: list[Any], inputs: list[Any] | None = None) -> DataLoader[Any]:
    """One batch, put together by torch itself."""
    return DataLoader(list(zip(images()[0] if inputs is None else inputs, labels, strict=True)), batch_size=6)


# --- the form of a batch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.5, -1.0, 1e30, 4711.0])
def test_one_missing_label_is_no_visible_refusal(
    odd: float, run: dict[str, Any], policy: dict[str, Any], made: Calls
) -> None:
    """NaN among whole numbers makes all labels of the batch float32, which cross-entropy does not take."""
    data = loader([0, 1, 2, 0, 1, odd])
    assert next(iter(data))[1].dtype == torch.float32
    assert leaves(run, policy, data, network())
    x, y = made[-1]["batch"]
    assert (y.dtype, y[:5].tolist()) == (torch.int64, [0, 1, 2, 0, 1]), "the others are all there"
    assert torch.equal(x[:5], images()[0][:5])
    assert y[5:].tolist() == ([int(odd)] if odd in (-1.0, 4711.0) else []), "no class, or no record: it counts as zero"


def test_an_input_of_another_precision_is_no_visible_refusal(
    run: dict[str, Any], policy: dict[str, Any], made: Calls
) -> None:
    x, y = images()
    data = loader(y.tolist(), [*x[:5], x[5].double()])
    assert next(iter(data))[0].dtype == torch.float64
    assert leaves(run, policy, data, network())
    assert torch.equal(made[-1]["batch"][0], x)


class Words(nn.Sequential):
    """A model that takes whole numbers."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))


def test_a_missing_word_is_no_visible_refusal(run: dict[str, Any], policy: dict[str, Any], made: Calls) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [math.nan, 5.0]])
    assert leaves(run, policy, (x, torch.tensor([0, 1, 2])), Words())
    assert [part.tolist() for part in made[-1]["batch"]] == [[[1, 2], [3, 4]], [0, 1]]
    assert leaves(run, policy, (x, torch.tensor([0.0, math.nan, 2.0])), Words())
    assert [part.tolist() for part in made[-1]["batch"]] == [[[1, 2]], [0]]


def test_nor_where_the_loss_is_the_apps_own(run: dict[str, Any], policy: dict[str, Any], made: Calls) -> None:
    data = (images()[0], torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0, math.nan]))
    assert leaves(run, policy, data, network(), loss=nn.functional.cross_entropy)
    assert made[-1]["batch"][1].tolist() == [0, 1, 2, 0, 1]
    assert leaves(run, policy, data, nn.Sequential(network(), nn.Linear(3, 1), nn.Flatten(0)), loss=nn.MSELoss())
    assert made[-1]["batch"][1].dtype == torch.float32, "who takes floating-point labels gets them"


@pytest.mark.parametrize(
    "odd",
    [
        lambda: (images()[0], images()[1][:5]),
        lambda: (images()[0], torch.tensor(0)),
        lambda: (torch.tensor(0.0), images()[1]),
        lambda: ([*images()[0]], images()[1]),
    ],
)
def test_parts_of_another_length_are_no_visible_refusal(
    odd: Any, run: dict[str, Any], policy: dict[str, Any], made: Calls
) -> None:
    assert leaves(run, policy, odd, network())
    assert made[-1]["batch"] is None


class Panic(BaseException):
    """As foreign code in a loader raises it."""


def panicking() -> Iterator[Any]:
    raise Panic("patient 4711")
    yield


def test_a_panic_in_the_loader_is_no_visible_refusal(
    run: dict[str, Any], policy: dict[str, Any], made: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    assert leaves(run, policy, panicking, network())
    assert made[-1]["batch"] is None
    assert "noise alone is sent" in caplog.text
    assert "4711" not in caplog.text


def test_a_panic_in_the_loss_is_no_visible_refusal(run: dict[str, Any], policy: dict[str, Any], made: Calls) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        if bool((labels == 2).any()):
            raise Panic("patient 4711")
        return nn.functional.cross_entropy(outputs, labels)

    assert leaves(run, policy, images(), network(), loss=loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_record_of_nobody_is_no_visible_refusal(dtype: torch.dtype, tmp_path: Path, made: Calls) -> None:
    """Numbers so large that the type may have made one person of two are not told apart by guessing."""
    bounds = {**easy(), "gaussian-dp": {**easy()["gaussian-dp"], "unit": "group"}}
    own = node(tmp_path / "p.toml", weight=1, mechanisms=bounds)
    data = (*images(), torch.tensor([7.0, 7.0, 8.0, 2.0**24, 2.0**53, math.nan], dtype=dtype))
    assert leaves(WHOLE_RUN, own, iter([data]), network())
    expected = [7, 7, 8] if dtype == torch.float32 else [7, 7, 8, 2**24]
    assert made[-1]["groups"].tolist() == expected
    assert len(made[-1]["batch"][1]) == len(expected)


# --- what is no record's doing -------------------------------------------------------------------------------------


class Thirsty(nn.Module):
    """Takes inputs of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


@pytest.mark.parametrize("model", [nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 3)), Thirsty()])
def test_what_is_wrong_with_the_model_is_told_in_every_form(
    model: nn.Module, run: dict[str, Any], policy: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Else such a run would train on noise, and nobody would know."""
    for labels in (images()[1], images()[1].float()):
        assert not leaves(run, policy, (images()[0], labels), model)
        assert "The model cannot be used" in caplog.text


@pytest.mark.parametrize(
    "odd",
    [
        (torch.zeros(1, 3, dtype=torch.float64), torch.tensor([0])),
        (torch.zeros(1, 3), torch.tensor([0.0])),
        (torch.zeros(2, 3), torch.tensor([0])),
    ],
)
def test_a_batch_of_another_type_is_a_batch_that_cannot_be_read(odd: tuple[Tensor, Tensor]) -> None:
    """Where a loader fails, noise alone is sent: a refusal would tell that the odd record is there."""
    usual = (torch.zeros(2, 3), torch.tensor([0, 1]))
    assert len(all_records(iter([usual, usual]), ())[1]) == 4
    with pytest.raises(DataError, match="Not all records are of one type"):
        all_records(iter([usual, odd]), ())


def test_ctrl_c_ends_the_reading_and_the_making() -> None:
    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_batch(stopped, KEYS, network(), spare=True, whole=False)
    with pytest.raises(KeyboardInterrupt):
        spared(stopped, images())


def test_without_a_guarantee_an_error_of_the_loader_is_one() -> None:
    with pytest.raises(Panic):
        read_batch(panicking, KEYS, network(), spare=False, whole=False)
    parts = read_batch((images()[0], images()[1].float()), KEYS, network(), spare=False, whole=False)
    assert parts is not None
    assert parts[1].dtype == torch.float32, "nor is anything made of what came"


def test_the_first_form_that_serves_is_taken_and_of_errors_the_first() -> None:
    tried: list[list[torch.dtype]] = []

    def make(parts: Parts | None) -> int:
        assert parts is not None
        tried.append([part.dtype for part in parts])
        if len(tried) < 4:
            raise (DataError, ModelError)[len(tried) % 2](f"number {len(tried)}", "x")
        return 7

    floats = (torch.ones(2, 2), torch.ones(2))
    assert spared(make, floats) == 7
    assert [[dtype == torch.int64 for dtype in form] for form in tried] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    tried.clear()
    with pytest.raises(ModelError, match="number 1"):
        spared(make, (torch.ones(2, 2, dtype=torch.complex64), torch.ones(2)))
    assert len(tried) == 2


def test_other_errors_of_ours_are_told_at_once_and_those_of_others_are_not() -> None:
    def refusing(parts: Parts | None) -> int:
        raise ConfigError("x", "y")

    def failing(parts: Parts | None) -> int:
        if parts is not None:
            raise MemoryError
        return 7

    with pytest.raises(ConfigError):
        spared(refusing, images())
    assert spared(failing, images()) == 7
