"""Ten thousand inputs that nobody should send: each is accepted or refused by a typed error, soon; none is executed.

A case is a function of its name and its number, so a failure that names them can be run again. The limit of a case
is a second of this process's own time: a busy machine does not count.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import math
import os
import pickle
import random
import signal
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise import compute
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.run_audit import audit_run
from equipoise.data.formats import ROOM, read_idx
from equipoise.data.loading import load
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, from_dict, to_dict
from equipoise.environment import VERSION
from equipoise.errors import EquipoiseError
from equipoise.ledger.report import ledger_report
from equipoise.models.batched import Batched
from equipoise.models.bundled import build
from equipoise.runs.checkpoint import load_checkpoint, notes_digest, save_checkpoint, save_tensors
from equipoise.runs.config import Config, SweepBlock, literal, resolve
from equipoise.runs.run import Run
from equipoise.runs.snapshot import snapshot_weights
from equipoise.server.intake import Intake
from tests.helpers import contents, write_dataset

SECONDS = 1.0
COUNTS = {
    "releases": 3000, "replies": 800, "checkpoints": 1800, "resumed runs": 150, "audited folders": 500,
    "snapshots": 700, "ledgers": 600, "settings in TOML": 1200, "settings by flag": 700, "SPECs": 1000,
    "SPEC files": 300, "data folders": 700, "idx files": 400,
}  # fmt: skip


class Slow(BaseException):
    """Raised inside a case that takes too long."""


def _slow(*_: object) -> None:
    raise Slow


def fuzz(name: str, act: Callable[[random.Random], object], never_raises: bool = False) -> Counter[str]:
    """How often each outcome occurred; anything but success or a typed error fails, with the number of the case."""
    typed: Any = () if never_raises else EquipoiseError
    outcomes: Counter[str] = Counter()
    before = signal.signal(signal.SIGPROF, _slow)
    try:
        for case in range(COUNTS[name]):
            rng = random.Random(f"{name}/{case}")
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                outcomes[str(act(rng) or "accepted")] += 1
            except typed as error:
                outcomes["refused" if error.cause else "refused without a cause"] += 1
            except (Exception, Slow) as error:
                raise AssertionError(f"{name}, case {case}: {type(error).__name__}: {error}") from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert set(outcomes) <= {"accepted", "refused"}, outcomes
    return outcomes


def test_there_are_ten_thousand_cases() -> None:
    assert sum(count for name, count in COUNTS.items() if name != "replies") >= 10_000, "without Flower too"


# --- what goes in ---------------------------------------------------------------------------------------------------


class Bomb:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[bytes]]:
    """Pickles in all their wrappings. When all tests are done, none of them has gone off."""
    sign = tmp_path_factory.mktemp("bombs") / "exploded"
    bomb = Bomb(sign)
    pickle.loads(pickle.dumps(bomb))
    assert sign.exists(), "the bomb itself must work"
    sign.unlink()
    wrapped = [io.BytesIO() for _ in range(4)]
    torch.save({"params": bomb}, wrapped[0])
    torch.save({"params": bomb}, wrapped[1], _use_new_zipfile_serialization=False)
    np.savez(wrapped[2], images=np.array([bomb], dtype=object), labels=np.array([bomb], dtype=object))
    np.save(wrapped[3], np.array([bomb], dtype=object))
    yield [pickle.dumps(bomb), pickle.dumps(bomb, 0), *(buffer.getvalue() for buffer in wrapped)]
    assert not sign.exists(), "something was unpickled"


WORDS = [
    "", "none", "nan", "x" * 3000, "\0", "../../etc/passwd", "\ud800", "état \U0001f600", "mnist", "pl-learn", "-1",
    "1e999", "__class__", "\x1b[31m\r\n", "rounds", "{0}%s", "params", "0",
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 2, 7, 10, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**18, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.5, 1e-320,
    5e-324, 1e308, -1e308, math.nan, math.inf, -math.inf, True, False, 10**4000,
]  # fmt: skip


def junk(rng: random.Random, depth: int = 0) -> Any:
    """Plain values of every kind, nested or not; JSON can hold them."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return None
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4):
        return rng.choice(WORDS)
    if kind == 5:
        return [junk(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(WORDS): junk(rng, depth + 1) for _ in range(rng.randrange(4))}
    deep: Any = []
    for _ in range(rng.choice([5, 60])):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return deep


def changed(rng: random.Random, whole: Any) -> Any:
    """A copy with one to three places replaced, removed, renamed, added or wrapped."""
    root = [copy.deepcopy(whole)]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        holder, key = _place(rng, root)
        act = rng.randrange(6)
        if act == 0 and holder is not root:
            del holder[key]
        elif act == 1 and isinstance(holder, dict):
            holder[rng.choice(WORDS)] = holder.pop(key)
        elif act == 2 and isinstance(holder[key], dict):
            holder[key][rng.choice(WORDS)] = junk(rng)
        elif act == 3 and isinstance(holder[key], list):
            holder[key] *= rng.choice([0, 2, 3])
        elif act == 4:
            holder[key] = [holder[key]]
        else:
            holder[key] = junk(rng) if rng.random() < 0.5 else rng.choice([*NUMBERS, *WORDS])
    return root[0]


def _place(rng: random.Random, holder: Any) -> tuple[Any, Any]:
    """Somewhere in nested lists and dicts: the container and the key in it."""
    key: Any = 0
    while True:
        inner = holder[key]
        if not isinstance(inner, list | dict) or not inner or rng.random() < 0.2:
            return holder, key
        holder, key = inner, rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))


def mangled(rng: random.Random, whole: bytes, bombs: list[bytes]) -> bytes:
    """Damaged bytes: cut, flipped, overwritten, repeated, replaced."""
    kind, at = rng.randrange(10), rng.randrange(len(whole) + 1)
    if kind == 0:
        return rng.randbytes(rng.randrange(300))
    if kind == 1:
        return whole[:at]
    if kind in (2, 3):
        out = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        return bytes(out)
    if kind == 4:
        return whole[:at] + rng.randbytes(rng.randint(1, 20)) + whole[at:]
    if kind == 5:
        return whole[:at] + whole[at // 2 :]
    if kind == 6:
        return rng.choice(bombs)
    if kind == 7:  # a length, where there is one
        at = rng.choice([0, at])
        size = rng.choice([2**63, 2**64 - 1, 10**18, 2**32, 0, 1])
        return whole[:at] + struct.pack("<Q", size) + whole[at + 8 :]
    if kind == 8:
        return json.dumps(junk(rng)).encode("utf-8", "surrogatepass")
    return rng.choice([b"", b"\0" * 100, b"[" * 100_000, b"9" * 5000, b'{"a":' * 20_000, b"\xff\xfe", b"NaN", b"null"])


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No waiting for the disk; and a checkpoint that asks for more threads does so here alone."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# --- releases offered to a server -------------------------------------------------------------------------------------

PREVIOUS = {"weight": torch.full((3, 4), 0.5), "bias": torch.zeros(4), "scale": torch.ones((), dtype=torch.float64)}
VALUES = [math.nan, math.inf, -math.inf, 1e38, -3e38, 1e-45, 0.0, -0.0, 1.0]
DTYPES = [
    torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64, torch.uint8,
    torch.float8_e4m3fn,
]  # fmt: skip


def tensors_of_all_kinds(rng: random.Random, like: Tensor) -> Any:
    kind = rng.randrange(9)
    if kind == 0:
        return torch.zeros([rng.choice([0, 1, 3, 4, 5]) for _ in range(rng.randrange(5))])
    if kind == 1:
        return torch.zeros(like.shape).to(rng.choice(DTYPES))
    if kind in (2, 3):
        out = like.clone().reshape(-1)
        out[rng.randrange(len(out))] = rng.choice(VALUES)
        return out.reshape(like.shape)
    if kind == 4:
        return torch.zeros(1).expand(*([10**6] * rng.randint(1, 3)))  # terabytes that take four bytes
    if kind == 5:
        return rng.choice([like.to_sparse(), torch.zeros(like.shape, device="meta"), like.numpy(), like.tolist()])
    if kind == 6:
        return like.repeat(rng.choice([11, 2]), *([1] * (like.dim() - 1))) if like.dim() else like.repeat(30)
    if kind == 7:
        return rng.choice([like.unsqueeze(0), like.t() if like.dim() == 2 else like])
    return junk(rng)


def update(rng: random.Random) -> Any:
    """A release of the right form, changed in up to two places."""
    result: dict[Any, Any] = {name: tensor + rng.random() for name, tensor in PREVIOUS.items()}
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        name, act = rng.choice(list(PREVIOUS)), rng.randrange(6)
        if act == 0:
            result.pop(name, None)
        elif act == 1:
            result[rng.choice([*WORDS, 3, None, (1, 2), 10**5000, b"weight", 2.5])] = torch.zeros(2)
        elif act == 2:
            return rng.choice([junk(rng), list(result.items()), b"bytes", result.keys(), torch.zeros(3), {}])
        else:
            result[name] = tensors_of_all_kinds(rng, PREVIOUS[name])
    return result


def odd_number(rng: random.Random, usual: int) -> Any:
    others = [*NUMBERS, 10**5000, 1e12, np.float32(3), np.int64(1), "4", None, [usual], torch.tensor(1), complex(1, 1)]
    return usual if rng.random() < 0.75 else rng.choice(others)


def usable(result: Any, weight: Any, round_number: Any) -> bool:
    """What a server may count, said once more and more slowly."""
    if (
        type(round_number) is not int
        or round_number != 3
        or isinstance(weight, bool)
        or not isinstance(weight, int | float)
    ):
        return False
    if not 0 < weight <= 1e7 or not isinstance(result, dict) or set(result) != set(PREVIOUS):
        return False
    for name, like in PREVIOUS.items():
        tensor = result[name]
        if not isinstance(tensor, Tensor) or tensor.shape != like.shape or tensor.dtype != like.dtype:
            return False
        if tensor.layout != torch.strided or tensor.is_meta or not bool(torch.isfinite(tensor).all()):
            return False
    return True


def test_releases(bombs: list[bytes]) -> None:
    def case(rng: random.Random) -> str:
        intake = Intake(PREVIOUS, round_number=3, max_norm=math.inf, max_weight_ratio=math.inf)  # form alone
        good = {name: tensor + 1 for name, tensor in PREVIOUS.items()}
        assert intake.offer("good", good, 5, 3) is None
        sent, weight, round_number = update(rng), odd_number(rng, 5), odd_number(rng, 3)
        if rng.random() < 0.02:
            sent = rng.choice(bombs)
        reason = intake.offer("other", sent, weight, round_number)
        assert (reason is None) == usable(sent, weight, round_number), reason
        expected, mean = good, intake.close().parameters
        if reason is None:
            share = weight / (5 + weight)
            expected = {n: ((1 - share) * t.double() + share * sent[n].double()).to(t.dtype) for n, t in good.items()}
        else:
            assert 0 < len(reason) < 300
            assert reason.isprintable(), "one line of a log"
        for name, tensor in expected.items():
            assert torch.allclose(mean[name], tensor, rtol=1e-6, atol=1e-38)
        return "accepted" if reason is None else "refused"

    outcomes = fuzz("releases", case, never_raises=True)
    assert min(outcomes["accepted"], outcomes["refused"]) > 300, outcomes


@pytest.mark.slow
def test_replies_through_flower(bombs: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the messages of a deployment: bytes of arrays, metrics and claims of any kind."""
    from flwr import app

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)
    from equipoise.flower.reply_checks import checked_reply
    from equipoise.flower.run_config import read_terms
    from tests.flower import messages

    terms, whole = read_terms(messages.RUN), messages.npy(np.ones((3, 4), np.float32))

    def records(rng: random.Random, kind: Any) -> Any:
        result = {}
        for _ in range(rng.randint(1, 3)):
            key = rng.choice(["num-examples", "loss", "equipoise.lower", "equipoise.upper", "round", "budget", *WORDS])
            result[key] = rng.choice([*NUMBERS, *WORDS, [1.5], [], [1, 2]])
        try:
            kind(result)
        except (TypeError, ValueError):  # Flower itself refuses it
            return {}
        return result

    def case(rng: random.Random) -> str:
        tensors = messages.handmade(mangled(rng, whole, bombs)) if rng.random() < 0.5 else None
        metrics, claim = records(rng, app.MetricRecord), records(rng, app.ConfigRecord)
        weights = [value for value in NUMBERS if not isinstance(value, bool)]
        message = messages.reply(
            101, tensors, 10 if rng.random() < 0.8 else rng.choice(weights),
            metrics=metrics if rng.random() < 0.5 else {}, claim=claim if rng.random() < 0.3 else {},
        )  # fmt: skip
        reply = checked_reply(message, Intake(messages.start(), 1), terms, seeded=False)
        json.dumps(reply.entry(), allow_nan=False)
        if reply.reason is None:
            assert all(bool(torch.isfinite(tensor).all()) for tensor in reply.tensors.values())
            return "accepted"
        assert reply.reason.isprintable()
        assert len(reply.reason) < 300
        return "refused"

    outcomes = fuzz("replies", case, never_raises=True)
    assert min(outcomes["accepted"], outcomes["refused"]) > 50, outcomes


# --- checkpoints, run folders, snapshots ------------------------------------------------------------------------------

BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "C64": 64, "U64": 64, "X9": 8,
}  # fmt: skip


def lying_tensors(rng: random.Random) -> bytes:
    """A safetensors file whose header says what it likes, true or not."""
    header: dict[str, Any] = {}
    at = 0
    for name in rng.sample(["params", "recent", "a", "federation-0/fc1.weight", "\0"], rng.randint(0, 4)):
        kind = rng.choice(list(BITS))
        shape = [rng.choice([1, 2, 3, 4, 8]) for _ in range(rng.randrange(4))]
        if rng.random() < 0.2:
            shape += [0, rng.choice([2**32, 10**18, 2**63, -1])]
        size = abs(math.prod(shape)) * BITS[kind] // 8 if rng.random() < 0.8 else rng.choice([0, 1, 24, 10**18])
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    if rng.random() < 0.3:
        header = changed(rng, header)
    encoded = json.dumps(header).encode()
    length = len(encoded) if rng.random() < 0.9 else 10**18
    return struct.pack("<Q", length) + encoded + bytes(at if at < 10**6 else 64)


def planted(folder: Path, content: bytes, notes: dict[str, Any]) -> None:
    """A checkpoint whose hashes are right, whatever it holds."""
    notes = {**notes, "sha256": hashlib.sha256(content).hexdigest()}
    notes.pop("notes_sha256", None)
    (folder / notes["file"]).write_bytes(content)
    (folder / "latest.json").write_text(json.dumps({**notes, "notes_sha256": notes_digest(notes)}))


def test_checkpoints(bombs: list[bytes], tmp_path: Path) -> None:
    tensors = {"params": torch.arange(6.0).view(2, 3), "recent": torch.ones(2, dtype=torch.float64)}
    save_checkpoint(tmp_path, tensors, {"round": 7, "digest": "d", "metrics_bytes": 12})
    whole = contents(tmp_path)
    (state,) = (name for name in whole if name.startswith("state"))
    notes = json.loads(whole["latest.json"])

    def case(rng: random.Random) -> str:
        for name, content in whole.items():
            (tmp_path / name).write_bytes(content)
        kind = rng.randrange(5)
        if kind < 2:
            name = rng.choice(list(whole))
            (tmp_path / name).write_bytes(mangled(rng, whole[name], bombs))
        elif kind == 2:
            (tmp_path / "latest.json").write_text(json.dumps(changed(rng, notes)))
        else:
            planted(tmp_path, mangled(rng, whole[state], bombs) if kind == 3 else lying_tensors(rng), notes)
        result = load_checkpoint(tmp_path)
        assert result is not None
        if kind < 3:
            assert all(torch.equal(result[0][name], tensor) for name, tensor in tensors.items())
            assert result[1] == {key: value for key, value in notes.items() if key != "notes_sha256"}
        return "accepted"

    outcomes = fuzz("checkpoints", case)
    assert outcomes["refused"] > 1000, outcomes
    assert outcomes["accepted"] > 10, outcomes


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    data = write_dataset(tmp_path_factory.mktemp("data") / "tiny", train=60, test=10)
    settings = Settings.flat(rounds=4, clients=2, batch=2, steps=1, evaluate_every=2, model="mlp", snapshots=[0, 2])
    return Config(settings, [SweepBlock([str(data)], ["pl-learn", "none"], [0.98])])


class Stop(Exception):
    """Ends a run in the middle."""


@pytest.fixture(scope="module")
def halves(config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of a run that was stopped after its second round, and of the whole run."""
    folder = tmp_path_factory.mktemp("halves") / "run"

    def stop(round_number: int) -> None:
        if round_number > 2:
            raise Stop

    with pytest.raises(Stop):
        Run(folder, config).execute(on_round=stop)
    half = contents(folder)
    Run(folder, config).execute()
    return half, contents(folder)


def lay_out(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def changed_tensors(rng: random.Random, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    name = rng.choice(list(tensors))
    old, act = tensors[name], rng.choice([0, 1, 1, 2, 3])
    if act == 0:
        return {key: tensor for key, tensor in tensors.items() if key != name}
    if act == 1:
        return {**tensors, name: old.to(rng.choice(DTYPES))}
    if act == 2:
        return {**tensors, name: torch.full(old.shape, rng.choice([-1, 0, 1, 2])).to(old.dtype)}
    new = old.double().flatten()
    new[rng.randrange(len(new))] = rng.choice(VALUES)
    return {**tensors, name: new.reshape(old.shape).to(old.dtype)}


@pytest.mark.slow
def test_resumed_runs(
    bombs: list[bytes], config: Config, halves: tuple[dict[str, bytes], dict[str, bytes]], tmp_path: Path
) -> None:
    half, whole = halves
    (state,) = (name for name in half if "state" in name)
    lay_out(tmp_path, half)
    result = load_checkpoint(tmp_path / "checkpoint")
    assert result is not None
    tensors, notes = result

    def case(rng: random.Random) -> str:
        lay_out(tmp_path, half)
        kind = rng.randrange(6)
        if kind < 2:
            name = rng.choice(list(half))
            (tmp_path / name).write_bytes(mangled(rng, half[name], bombs))
        elif kind == 2:
            planted(tmp_path / "checkpoint", half[state], {**changed_notes(rng, notes), "file": Path(state).name})
        elif kind < 5:
            planted(tmp_path / "checkpoint", save_tensors(changed_tensors(rng, tensors)), notes)
        else:
            planted(tmp_path / "checkpoint", mangled(rng, half[state], bombs), notes)
        Run(tmp_path, config).execute()
        if kind < 2 and "checkpoint" in name:
            assert contents(tmp_path)["model.safetensors"] == whole["model.safetensors"]
        return "accepted"

    outcomes = fuzz("resumed runs", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 20, outcomes


def changed_notes(rng: random.Random, notes: dict[str, Any]) -> dict[str, Any]:
    result = changed(rng, notes)
    return result if isinstance(result, dict) else {}


def test_audited_folders(
    bombs: list[bytes], config: Config, halves: tuple[dict[str, bytes], dict[str, bytes]], tmp_path: Path
) -> None:
    """All of an audit but the attacks: it reads the configuration, the snapshots and the results."""
    whole = {name: content for name, content in halves[1].items() if "checkpoint" not in name}
    lay_out(tmp_path, whole)
    public = torch.zeros(80, *load(config.federations()[0].dataset).shape), torch.arange(80) % 10

    def case(rng: random.Random) -> str:
        name = rng.choice(["config.toml", "result.json", "snapshots/round-000000.safetensors"])
        content = mangled(rng, whole[name], bombs)
        if name == "result.json" and rng.random() < 0.5:
            content = json.dumps(changed(rng, json.loads(whole[name]))).encode()
        (tmp_path / name).write_bytes(content)
        try:
            audit_run(tmp_path, AuditOptions(attacks=[]), public=public)
        finally:
            (tmp_path / name).write_bytes(whole[name])
        return "accepted"

    outcomes = fuzz("audited folders", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 20, outcomes


def test_snapshots(bombs: list[bytes], halves: tuple[dict[str, bytes], dict[str, bytes]], tmp_path: Path) -> None:
    layout = Batched(build("mlp", (1, 28, 28), 10)).layout
    path = tmp_path / "snapshot"
    path.write_bytes(halves[1]["model.safetensors"])
    whole = path.read_bytes()
    names = [f"federation-0/{slot.name}" for slot in layout.slots]

    def case(rng: random.Random) -> str:
        if rng.random() < 0.5:
            path.write_bytes(lying_tensors(rng) if rng.random() < 0.5 else mangled(rng, whole, bombs))
        else:
            tensors = {name: torch.zeros(slot.shape) for name, slot in zip(names, layout.slots, strict=True)}
            path.write_bytes(save_tensors(changed_tensors(rng, tensors)))
        weights = snapshot_weights(path, layout, 1)
        assert weights.shape == (1, layout.size)
        assert weights.dtype in (torch.float32, torch.float64)
        assert bool(torch.isfinite(weights).all())
        return "accepted"

    outcomes = fuzz("snapshots", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 50, outcomes


# --- ledgers --------------------------------------------------------------------------------------------------------

ENTRIES = [
    {"n": 0, "schema": 1, "kind": "ledger", "experiment": None, "note": "a note"},
    {"n": 1, "kind": "asked", "federation": 0, "round": 1, "mechanism": "laplace-dp", "budget": 0.5, "norm": "l1",
     "clients": ["a", "b"], "at": "2024-01-01T00:00:00+00:00"},
    {"n": 2, "kind": "answered", "federation": 0, "round": 1, "mechanism": "laplace-dp", "budget": 0.5, "norm": "l1",
     "releases": [{"client": "a", "lower": None, "upper": None, "scale": 1.5, "intensity": 9.25, "accepted": True},
                  {"client": "b", "accepted": False, "reason": "no reply"}], "at": "2024-01-01T00:00:09+00:00"},
    {"n": 3, "kind": "round", "federation": 0, "round": 2, "mechanism": "pl-learn", "budget": [0.96, 0.98],
     "norm": "l2", "releases": [{"client": "0", "lower": 8.0, "upper": 16.0, "intensity": 8.5, "accepted": True}]},
]  # fmt: skip


def chained(entries: list[Any]) -> bytes:
    """The lines of a ledger whose hashes are right, whatever it says."""
    lines, head = [], "0" * 64
    for entry in entries:
        body = json.dumps(entry, separators=(",", ":")).encode()
        head = hashlib.sha256(head.encode() + body).hexdigest()
        lines.append(body[:-1] + b',"hash":"' + head.encode() + b'"}\n')
    return b"".join(lines)


def test_ledgers(bombs: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    whole = chained(ENTRIES)
    path.write_bytes(whole)
    assert ledger_report(path)["entries"] == 4, "as it is, it is a ledger"

    def case(rng: random.Random) -> str:
        if rng.random() < 0.4:
            path.write_bytes(mangled(rng, whole, bombs))
        else:
            entries = changed(rng, ENTRIES)
            path.write_bytes(chained(entries if isinstance(entries, list) else [entries]))
        json.dumps(ledger_report(path))
        return "accepted"

    outcomes = fuzz("ledgers", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 20, outcomes


# --- settings -----------------------------------------------------------------------------------------------------

SETTINGS = to_dict(Settings.flat(rounds=5), [Federation("mnist", "pl-learn", 0.98), Federation("fmnist", "none")])
SWEEP = {"datasets": ["mnist"], "mechanisms": ["pl-learn", "none"], "budgets": [0.96, 0.98], "seeds": [1, 2]}
HUGE = [
    "9" * 5000,
    "[" * 3000,
    "{a=" * 3000,
    "[" * 60 + "]" * 60,
    "'''",
    "1979-05-27",
    "0x" + "f" * 300,
    "nan",
    "[nan]",
]


def toml(value: Any) -> str:
    """TOML of plain values, as a careless hand would write it."""
    if value is None:
        return '"none"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


def test_settings_in_toml(bombs: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    plain = {key: value for key, value in SETTINGS["settings"].items() if value is not None}
    whole = resolve(overrides={"rounds": 5}, sweep=SWEEP).to_toml()

    def case(rng: random.Random) -> str:
        kind = rng.randrange(4)
        if kind == 0:
            path.write_bytes(mangled(rng, whole.encode(), bombs))
        elif kind == 1:
            path.write_text(whole.replace(rng.choice(["5", "0.1", '"none"', "[0, 200, 2000]"]), rng.choice(HUGE), 1))
        else:
            result = changed(rng, {**plain, "sweep": [SWEEP, SWEEP]})
            lines = result.items() if isinstance(result, dict) else [("x", result)]
            words = "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in lines)
            path.write_bytes(words.encode("utf-8", "surrogatepass"))
        config = resolve(path)
        assert resolve(written(path, config)) == config, "what is accepted is written and read back unchanged"
        return "accepted"

    outcomes = fuzz("settings in TOML", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 50, outcomes


def written(path: Path, config: Config) -> Path:
    path.write_text(config.to_toml(), encoding="utf-8")
    config.digest()
    return path


def test_settings_by_flag() -> None:
    keys = [
        *SETTINGS["settings"],
        "leakage.D",
        "leakage.x",
        "leakage",
        "sweep",
        "sweep.seeds",
        "a.b.c",
        ".",
        "rounds.x",
    ]

    def case(rng: random.Random) -> str:
        value = rng.choice(HUGE + WORDS) if rng.random() < 0.3 else toml(junk(rng))
        overrides = {rng.choice(keys): literal(value)}
        if rng.random() < 0.3:
            overrides[rng.choice(WORDS + keys)] = literal(toml(junk(rng)))
        sweep = {rng.choice(["datasets", "mechanisms", "budgets", "seeds", "x"]): [literal(toml(junk(rng)))]}
        resolve(overrides=overrides, sweep=sweep if rng.random() < 0.3 else {**SWEEP})
        return "accepted"

    outcomes = fuzz("settings by flag", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 20, outcomes


def test_specs() -> None:
    def case(rng: random.Random) -> str:
        spec = json.loads(json.dumps(changed(rng, SETTINGS)))
        settings, federations = from_dict(spec)
        assert from_dict(json.loads(json.dumps(to_dict(settings, federations)))) == (settings, federations)
        return "accepted"

    outcomes = fuzz("SPECs", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 50, outcomes


def test_spec_files(bombs: list[bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whole SPECs that can never be run to the end: one line on standard error and an exit code, whatever they hold."""
    path = tmp_path / "spec.json"
    kinds = {
        "federations": ([], {}),
        "audit": ({"attacks": ["lti"], "releases": 4, "lr": 1.0, "condition_on": "nothing"}, {"snapshots": ["never"]}),
        "multi_round": ({"rounds": 2, "examples": 9, "pairs": 2, "around": 8, "client": 0, "seed": 1}, {"no": 1}),
        "reproduction": ({"schema": 1, "version": VERSION, "jobs": [{"name": "a", "scale": {}}]}, {"schema": 0}),
    }

    def case(rng: random.Random) -> str:
        key = rng.choice(list(kinds))
        entry, fault = kinds[key]
        result = changed(rng, entry)
        content = json.dumps({**SETTINGS, key: {**result, **fault} if isinstance(result, dict) else result}).encode()
        path.write_bytes(mangled(rng, content, bombs) if rng.random() < 0.4 else content)
        code = compute.main([str(path), str(tmp_path / "out")])
        assert code in (11, 12, 14), code
        said = capfd.readouterr().err
        assert said.startswith("error: "), said
        return "refused"

    fuzz("SPEC files", case, never_raises=True)


# --- data files -----------------------------------------------------------------------------------------------------


def npz(**arrays: Any) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def zip_of(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def npy(shape: Any, descr: str = "|u1", body: bytes = b"") -> bytes:
    """A numpy file whose header says what it likes."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) % 65536) + header + body


@pytest.fixture(scope="module")
def zip_bombs() -> list[bytes]:
    """Twice what a small file may grow to, in a thousandth of it, with and without a header that says so."""
    zeros = bytes(2 * ROOM)
    labels = npy((2 * ROOM >> 10,), body=bytes(2 * ROOM >> 10))
    return [
        zip_of({"images.npy": npy((2 * ROOM >> 10, 32, 32), body=zeros), "labels.npy": labels}),
        zip_of({"images.npy": npy((10**6, 10**6, 10**6), body=bytes(100)), "labels.npy": labels}),
        zip_of({"images.npy": npy((2**40, 28, 28), "<f8", body=bytes(100)), "labels.npy": labels}),
    ]


KINDS = ["u1", "i8", "u8", "f2", "f4", ">f8", "g", "c8", "?", "S3", "U2", "M8[s]", "V4", "u1,f4", ">i4", "O"]


def array_of_any_kind(rng: random.Random) -> Any:
    array = np.zeros([rng.choice([0, 1, 2, 20, 28]) for _ in range(rng.randrange(6))], dtype=rng.choice(KINDS))
    if array.dtype.kind in "iuf" and array.size:
        values = [0, 1, 9, 120, *([1e300, math.nan, math.inf, 0.5] if array.dtype.kind == "f" else [])]
        with np.errstate(over="ignore"):
            array.flat[rng.randrange(array.size)] = rng.choice(values)
    return array


def test_data_folders(bombs: list[bytes], zip_bombs: list[bytes], tmp_path: Path) -> None:
    write_dataset(tmp_path, train=60, test=20)
    whole = contents(tmp_path)
    arrays = dict(np.load(io.BytesIO(whole["train.npz"])))
    packed = zip_of(
        {f"{name}.npy": npy(array.shape, array.dtype.str, array.tobytes()) for name, array in arrays.items()}
    )

    def content(rng: random.Random) -> bytes:
        kind = rng.randrange(7)
        if kind == 0:
            return rng.choice([*bombs, *zip_bombs])
        if kind == 1:
            return npz(**{**arrays, rng.choice(["images", "labels"]): array_of_any_kind(rng)})
        if kind == 6:
            images = np.zeros((60, 28, 28) if rng.random() < 0.5 else (60, 1, 28, 28), rng.choice(KINDS[:7]))
            images.flat[::7] = 1
            return npz(images=images, labels=(np.arange(60) % 10).astype(rng.choice(["u1", ">i4", "u8", "i8", "f4"])))
        if kind == 2:
            name = rng.choice(["images.npy", "labels.npy", "images", "../images.npy", "labels"])
            files = {
                f"{part}.npy": npy(array.shape, array.dtype.str, array.tobytes()) for part, array in arrays.items()
            }
            shape = rng.choice([(60, 28, 28), (60,), (2**62, 8), (-1, 28, 28), (10**30,), "x", (60.0,), ()])
            return zip_of({**files, name: npy(shape, rng.choice(["|u1", "<f8", "|O", "x", "<i8"]), bytes(100))})
        if kind == 3:
            return zip_of({"images.npy": rng.randbytes(50), "labels.npy": rng.choice(bombs)})
        return mangled(rng, rng.choice([whole["train.npz"], packed]), bombs)

    def case(rng: random.Random) -> str:
        (tmp_path / "train.npz").write_bytes(content(rng))
        data = load(tmp_path)
        assert bool(torch.isfinite(data.train.inputs).all())
        assert int(data.train.labels.min()) >= 0
        return "accepted"

    outcomes = fuzz("data folders", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 20, outcomes


def test_idx_files(bombs: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "images-idx3-ubyte"
    whole = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, *range(24)])
    gzip_bomb = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2 * ROOM >> 10, 32, 32) + bytes(2 * ROOM))

    def case(rng: random.Random) -> str:
        packed = rng.random() < 0.4
        content = mangled(rng, whole, bombs)
        if rng.random() < 0.3:
            sizes = struct.pack(">3I", *(rng.choice([0, 1, 2, 3, 4, 2**32 - 1]) for _ in range(3)))
            content = bytes([0, 0, 8, rng.choice([3, 3, 0, 1, 255])]) + sizes + bytes(24)
        if packed:
            content = (
                gzip.compress(content, 1) if rng.random() < 0.5 else mangled(rng, gzip.compress(content, 1), bombs)
            )
            content = gzip_bomb if rng.random() < 0.05 else content
        file = path.with_suffix(".gz") if packed else path
        file.write_bytes(content)
        array = read_idx(file)
        assert array.dtype == np.uint8
        return "accepted"

    outcomes = fuzz("idx files", case)
    assert min(outcomes["accepted"], outcomes["refused"]) > 20, outcomes
