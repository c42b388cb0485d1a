"""Messages for the tests of the Flower side: a grid in this process, honest replies built by hand, every bad one."""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import Tensor, nn

from equipoise.engine.settings import Settings
from equipoise.flower import guard, protect, protected_step

NODES = [101, 102, 103, 104]
RUN = {"equipoise.mechanism": "pl-identical", "equipoise.budget": 0.98, "equipoise.metrics": "loss"}
WHOLE_RUN = {"equipoise.mechanism": "gaussian-dp", "equipoise.budget": 2.0, "equipoise.gaussian.rounds": 3}
"""A run of three rounds whose budget is for all of them."""
LOWER = Settings().protection.measure("pl-identical").lower(0.98)  # type: ignore[union-attr]
CLAIM = {"mechanism": "pl-identical", "budget": "0.98", "experiment": ""}
"""What an honest reply of such a run says of itself, besides its round."""


def network() -> nn.Sequential:
    """15 parameters, the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def start() -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network().state_dict().items()}


def update(number: float) -> dict[str, Tensor]:
    """Tensors of the agreed form, told apart by a number."""
    return {name: torch.sin(tensor * 7 + number) for name, tensor in start().items()}


def images(number: int = 0) -> tuple[Tensor, Tensor]:
    local = torch.Generator().manual_seed(number)
    return torch.randn(6, 1, 2, 2, generator=local), torch.tensor([0, 1, 2, 0, 1, 2])


def asking(
    node: int = 101, round_number: int | None = 1, kind: str = "train", tensors: dict[str, Tensor] | None = None
) -> Message:
    """A message as FedAvg sends it."""
    config = ConfigRecord({} if round_number is None else {"server-round": round_number})
    content = RecordDict({"arrays": ArrayRecord(tensors or start()), "config": config})
    return Message(content, dst_node_id=node, message_type=kind)


def context(run: dict[str, Any] | None = None, node: dict[str, Any] | None = None, run_id: int = 1) -> Context:
    return Context(run_id=run_id, node_id=101, node_config=node or {}, state=RecordDict(), run_config=run or dict(RUN))


def reply(
    node: int,
    tensors: dict[str, Any] | None = None,
    weight: Any = 10,
    round_number: Any = 1,
    *,
    claim: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    records: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> Message:
    """A reply built by hand. As it stands it is honest; every part can be overridden, or left out by name."""
    size = {"equipoise.lower": LOWER, "equipoise.upper": 2 * LOWER, "equipoise.intensity": LOWER}
    numbers = {"num-examples": weight, "loss": 0.5, **size, **(metrics or {})}
    about = {**CLAIM, "round": round_number, **(claim or {})}
    content: dict[str, Any] = {
        "arrays": ArrayRecord(update(node) if tensors is None else tensors),
        "metrics": MetricRecord({name: value for name, value in numbers.items() if name not in without}),
        "equipoise": ConfigRecord({name: value for name, value in about.items() if name not in without}),
        **(records or {}),
    }
    kept = {name: record for name, record in content.items() if name not in without}
    return Message(RecordDict(kept), reply_to=asking(node))


def failure(node: int, reason: str) -> Message:
    return Message(Error(code=0, reason=reason), reply_to=asking(node))


class LocalGrid(Grid):
    """A grid whose nodes are a function of this process; it keeps what was sent."""

    def __init__(
        self, answer: Callable[[Message], Iterable[Message]] = lambda message: [], nodes: Iterable[int] = NODES
    ):
        self.answer, self.nodes = answer, list(nodes)
        self.sent: list[tuple[str, int]] = []  # kind and round of every message: FedAvg's messages share one config

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        results: list[Message] = []
        for message in sorted(messages, key=lambda message: message.metadata.dst_node_id):
            self.sent.append((message.metadata.message_type, message.content["config"]["server-round"]))
            results += self.answer(message)
        return results

    def rounds(self) -> list[int]:
        """Of the train messages, in the order of sending, without repetition."""
        return list(dict.fromkeys(round_number for kind, round_number in self.sent if kind == "train"))

    set_run = run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]  # not used


def nodes(run: dict[str, Any] | None = None, seed: int | None = 3) -> LocalGrid:
    """Four honest nodes with data of their own: guard, ``protect``, the weight, a loss. They answer in order."""
    app = ClientApp(mods=[guard])
    contexts = {n: context(run, {"partition-id": place}) for place, n in enumerate(NODES)}

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = protected_step(network(), images(client), msg, context, experiment_seed=seed)
        metrics = MetricRecord({"num-examples": 10 + client, "loss": 0.5, "private": 0.123})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 5, "accuracy": 0.5})}), reply_to=msg)

    return LocalGrid(lambda message: [app(message, contexts[message.metadata.dst_node_id])])


# --- a client app -------------------------------------------------------------------------------------------

Train = Callable[[Message, Context], Message]


def answered(
    train: Train, msg: Message | None = None, about: Context | None = None, mods: list[Any] | None = None
) -> Message:
    """What a client app with the guard sends; the same function serves every kind of message."""
    app = ClientApp(mods=mods or [guard])
    for register in (app.train(), app.evaluate(), app.query(), app.train("special")):
        register(train)
    return app(msg or asking(), about or context())


def content(arrays: ArrayRecord | None, **others: Any) -> RecordDict:
    records = {"metrics": MetricRecord({"num-examples": 6, "loss": 0.5}), **others}
    return RecordDict(records if arrays is None else {"arrays": arrays, **records})


def honest(msg: Message, context: Context) -> Message:
    return Message(content(protect(network(), images(), msg, context)), reply_to=msg)


def distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    return float(torch.cat([(one[name].double() - two[name].double()).flatten() for name in one]).norm())


# --- arrays by hand -----------------------------------------------------------------------------------------


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0), fortran: bool = False) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asfortranarray(array) if fortran else array, version=version)
    return stream.getvalue()


def header(described: str, body: bytes) -> bytes:
    """The bytes of a file whose header says what one likes."""
    text = described.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def handmade(data: bytes, stype: str = "numpy.ndarray", dtype: str = "float32") -> dict[str, Array]:
    """Arrays of the agreed description; the first has these bytes."""
    first, *others = [(name, tensor) for name, tensor in update(1).items()]
    rest = {name: Array(tensor.numpy()) for name, tensor in others}
    return {first[0]: Array(dtype, tuple(first[1].shape), stype, data), **rest}


class Bomb:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def bomb(path: Path, shape: tuple[int, ...] = (3, 4)) -> dict[str, Array]:
    body = pickle.dumps(Bomb(path))
    return handmade(header(f"{{'descr': '|O', 'fortran_order': False, 'shape': {shape}}}", body))


def changed(name: str, tensor: Tensor) -> dict[str, Any]:
    """The parts of a reply in which one tensor is another."""
    return {"tensors": {**update(1), name: tensor}}


def cast(dtype: torch.dtype) -> dict[str, Any]:
    return {"tensors": {name: tensor.to(dtype) for name, tensor in update(1).items()}}


def numbers(value: float) -> dict[str, Any]:
    return {"metrics": {"equipoise.lower": value, "equipoise.upper": 2 * value, "equipoise.intensity": value}}


def raw(data: bytes, **options: str) -> dict[str, Any]:
    return {"tensors": handmade(data, **options)}


def shaped(shape: str, body: bytes = b"") -> dict[str, Any]:
    return raw(header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}", body))


_W = np.ones((3, 4), np.float32)
_NAN, _INF = torch.full((3, 4), math.nan), torch.full((3, 4), -math.inf)
_FINITE = "'1.weight': 12 of 12 numbers are not finite"
_WEIGHT = "expected a number > 0 and <= 1e+07"
_METRIC = "has a metric that is no finite number: "
_UNSAID = "does not say its intensity and its bounds"
_RECORDS = "records of arrays and metrics, expected one of each"
_CONTRADICTS = "'1.weight' has a header that contradicts its description"
_UNREADABLE = "'1.weight' has a header that cannot be read (ValueError)"

BAD: dict[str, tuple[dict[str, Any], str]] = {
    # the update
    "nan": (changed("1.weight", _NAN), _FINITE),
    "inf": (changed("1.weight", _INF), _FINITE),
    "finite monster": (changed("1.weight", 3e38 * torch.ones(3, 4)), "has an update of L2 norm 1.03923e+39, expected"),
    "short": (changed("1.bias", torch.ones(2)), "tensor '1.bias' has shape (2,), expected (3,)"),
    "broadcast [1]": (changed("1.bias", torch.ones(1)), "tensor '1.bias' has shape (1,), expected (3,)"),
    "broadcast scalar": (changed("1.bias", torch.tensor(1.0)), "tensor '1.bias' has shape (), expected (3,)"),
    "broadcast [1, P]": (changed("1.bias", torch.ones(1, 3)), "tensor '1.bias' has shape (1, 3), expected (3,)"),
    "double": (cast(torch.float64), "has dtype float64, expected float32"),
    "half": (cast(torch.float16), "has dtype float16, expected float32"),
    "whole": (cast(torch.int64), "has dtype int64, expected float32"),
    "yes and no": (cast(torch.bool), "has dtype bool, expected float32"),
    "complex": (cast(torch.complex64), "has dtype complex64, expected float32"),
    "missing": ({"tensors": {"1.weight": torch.ones(3, 4)}}, "lacks tensor '1.bias'"),
    "extra": (changed("more", torch.ones(1)), "has an extra tensor 'more'"),
    "empty": ({"tensors": {}}, "is empty"),
    "ten times the bytes": (changed("1.bias", torch.ones(300)), "bytes, 60 are agreed"),
    # the weight
    "weight zero": ({"weight": 0}, f"has weight 0, {_WEIGHT}"),
    "weight negative": ({"weight": -3}, f"has weight -3, {_WEIGHT}"),
    "weight nan": ({"weight": math.nan}, f"has weight nan, {_WEIGHT}"),
    "weight inf": ({"weight": math.inf}, f"has weight inf, {_WEIGHT}"),
    "weight 1e12": ({"weight": 1e12}, f"has weight 1000000000000.0, {_WEIGHT}"),
    "weight list": ({"weight": [1.0]}, f"has weight [1.0], {_WEIGHT}"),
    "weight beyond floats": ({"weight": 10**400}, f"has weight a whole number of 1329 bits, {_WEIGHT}"),
    "weight missing": ({"without": ("num-examples",)}, f"has weight None, {_WEIGHT}"),
    # the round
    "stale": ({"round_number": 0}, "is for round 0, a stale one; round 1 is open"),
    "future": ({"round_number": 2}, "is for round 2, a future one; round 1 is open"),
    "no round": ({"without": ("round",)}, "names no round: None"),
    "round yes": ({"round_number": True}, "names no round: True"),
    "round float": ({"round_number": 1.0}, "names no round: 1.0"),
    "round text": ({"round_number": "1"}, "names no round: '1'"),
    # what it says of its protection
    "unprotected": ({"without": ("equipoise",)}, "shows no record of protection"),
    "empty claim": ({"records": {"equipoise": ConfigRecord()}}, "shows no record of protection"),
    "claim as metrics": ({"records": {"equipoise": MetricRecord({"round": 1})}}, f"has 1 and 2 {_RECORDS}"),
    "other mechanism": (
        {"claim": {"mechanism": "none"}},
        "was protected by 'none' at '0.98', asked: pl-identical at 0.98",
    ),
    "other budget": ({"claim": {"budget": "0.99"}}, "was protected by 'pl-identical' at '0.99', asked: pl-identical"),
    "budget as number": ({"claim": {"budget": 0.98}}, "asked: pl-identical at 0.98"),
    "no mechanism": ({"without": ("mechanism",)}, "was protected by None at '0.98', asked: pl-identical at 0.98"),
    "seeded noise": ({"claim": {"experiment": "seeded"}}, "has reproducible noise, which protects nothing"),
    "too weak": ({"metrics": {"equipoise.intensity": LOWER / 2}}, "says that its intensity 3.99"),
    "too strong": ({"metrics": {"equipoise.intensity": LOWER * 2}}, "is outside its bounds, 7.99975 to 7.99975"),
    "other lower bound": (numbers(1.0), "says that its lower bound is 1, asked: 7.99975"),
    "other upper bound": ({"metrics": {"equipoise.upper": 3 * LOWER}}, "which do not belong together"),
    "not distorted": (numbers(0.0), "says that it was not distorted"),
    "no lower bound": ({"without": ("equipoise.lower",)}, _UNSAID),
    "no upper bound": ({"without": ("equipoise.upper",)}, _UNSAID),
    "no intensity": ({"without": ("equipoise.intensity",)}, _UNSAID),
    "intensity nan": (numbers(math.nan), _METRIC),
    "intensity list": ({"metrics": {"equipoise.lower": [LOWER]}}, f"{_METRIC}'equipoise.lower'"),
    "intensity beyond floats": ({"metrics": {"equipoise.upper": 10**400}}, f"{_METRIC}'equipoise.upper'"),
    # other metrics, other records
    "metric not asked for": ({"metrics": {"marker": 1.0}}, "has a metric that was not asked for: 'marker'"),
    "metric list": ({"metrics": {"loss": [0.5, 0.5]}}, f"{_METRIC}'loss'"),
    "metric nan": ({"metrics": {"loss": math.nan}}, f"{_METRIC}'loss'"),
    "metric missing": ({"without": ("loss",)}, "lacks the metric 'loss'"),
    "two metric records": ({"records": {"m": MetricRecord({"loss": 1.0})}}, f"has 1 and 2 {_RECORDS}"),
    "two array records": ({"records": {"a": ArrayRecord(update(1))}}, f"has 2 and 1 {_RECORDS}"),
    "no arrays": ({"without": ("arrays",)}, f"has 0 and 1 {_RECORDS}"),
    "no metrics": ({"without": ("metrics",)}, f"has 1 and 0 {_RECORDS}"),
    "no records": ({"without": ("arrays", "metrics", "equipoise")}, f"has 0 and 0 {_RECORDS}"),
    # the bytes of an array
    "header of a huge shape": (shaped("(1048576, 1048576)"), _CONTRADICTS),
    "header of a negative shape": (shaped("(-3, -4)", bytes(48)), _CONTRADICTS),
    "header of another shape": (raw(npy(_W.T.copy())), _CONTRADICTS),
    "header of another type": (raw(npy(_W.astype("<i4"))), _CONTRADICTS),
    "big-endian": (raw(npy(_W.astype(">f4"))), _CONTRADICTS),
    "header without end": (raw(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little")), _UNREADABLE),
    "header of code": (shaped("print('x')", bytes(48)), _UNREADABLE),
    "no bytes": (raw(b""), _UNREADABLE),
    "garbage": (raw(bytes(64)), _UNREADABLE),
    "truncated": (raw(npy(_W)[:-4]), "tensor '1.weight' has 44 bytes for 12 numbers"),
    "trailing bytes": (raw(npy(_W) + b"\x00"), "tensor '1.weight' has 49 bytes for 12 numbers"),
    "other serialisation": (raw(npy(_W), stype="pickle"), "'1.weight' is serialised as 'pickle', not as a numpy array"),
    "described as objects": (raw(npy(_W), dtype="object"), "has dtype object, expected float32"),
}


def bad(kind: str, node: int) -> Message:
    return reply(node, **BAD[kind][0])


def detonate(record: ArrayRecord) -> None:
    """What a careless reader would do."""
    np.load(io.BytesIO(record["1.weight"].data), allow_pickle=True)
