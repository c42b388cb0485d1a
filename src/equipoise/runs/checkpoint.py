"""Checkpoints that are never half-believed, snapshots, and a lock.

A checkpoint is a safetensors file
and a small JSON file that names it with its SHA-256; the JSON is renamed last, so at every moment it names a
complete checkpoint. Nothing here executes what it reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ..errors import CheckpointError
from ..files import plain, storage_errors, write_bytes, write_json
from ..models.layout import Layout

SCHEMA = 1
TENSOR_FAULTS = (SafetensorError, ValueError, TypeError, KeyError, RuntimeError)
"""What bytes can do to safetensors and torch: a header may name types and sizes that torch does not have."""


def read_json(path: Path, what: str) -> Any:
    """JSON of our own making; anything else is a typed error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no {what} at {path.name}.", "Check the path.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"The {what} {path.name} cannot be read: {error}.", "Use --fresh.") from error


def save_snapshot(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Tensors as safetensors, with notes and a SHA-256 in the header; the same content gives the same bytes."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {**notes, "sha256": tensors_digest(kept)}
    header = {"equipoise": json.dumps(about, sort_keys=True)}  # one entry: the library writes several in any order
    write_bytes(path, save_tensors(kept, metadata=header))


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names, forms and numbers."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def _noted_digest(content: bytes) -> str | None:
    """The SHA-256 in the header of a snapshot; None where another program wrote it."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    notes = json.loads(header.get("__metadata__", {}).get("equipoise", "{}"))
    return notes.get("sha256") if isinstance(notes, dict) else None


def snapshot_weights(path: Path, layout: Layout, federations: int) -> Tensor:
    """The weights ``[F, P]`` of all federations of a run, from one of its snapshots."""
    try:
        content = path.read_bytes()
        tensors, noted = load_tensors(content), _noted_digest(content)
    except (OSError, RecursionError, *TENSOR_FAULTS) as error:
        raise CheckpointError(
            f"The snapshot {path.name} cannot be read: {_first_line(error)}.", "Train the run again."
        ) from error
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in (torch.float32, torch.float64)]
    if odd:
        raise CheckpointError(f"The snapshot {path.name} has weights of type {tensors[odd[0]].dtype}.", "Train again.")
    if noted is not None and noted != tensors_digest(tensors):
        raise CheckpointError(f"The snapshot {path.name} is damaged (SHA-256 differs).", "Train the run again.")
    rows = []
    for place in range(federations):
        head = f"federation-{place}/"
        mine = {name.removeprefix(head): tensor for name, tensor in tensors.items() if name.startswith(head)}
        rows.append(layout.flatten(mine))
    stacked = torch.stack(rows)
    if not bool(torch.isfinite(stacked).all()):
        raise CheckpointError(
            f"The snapshot {path.name} holds weights that are not finite.", "Train with a smaller eta."
        )
    return stacked


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Make this the checkpoint; the previous one stays valid until the last moment."""
    content = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    name = f"state-{notes['round']:08d}.safetensors"
    write_bytes(folder / name, content)
    digest = hashlib.sha256(content).hexdigest()
    about = plain({"schema": SCHEMA, "file": name, "sha256": digest, **notes})
    write_json(folder / "latest.json", {**about, "notes_sha256": notes_digest(about)})
    tidy(folder, name)


def notes_digest(notes: dict[str, Any]) -> str:
    """Of the notes themselves: a flipped digit in them must not be believed either."""
    return hashlib.sha256(json.dumps(notes, sort_keys=True).encode()).hexdigest()


def tidy(folder: Path, name: str) -> None:
    """Remove superseded checkpoints, and what a process left that was killed while it wrote one."""
    with storage_errors(folder):
        for old in [*folder.glob("state-*.safetensors"), *folder.glob(".*.partial")]:
            if old.name != name:
                old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint, or None if there is none; a damaged one is an error, never a silent fresh start."""
    if not (folder / "latest.json").exists():
        return None
    notes = read_json(folder / "latest.json", "checkpoint")
    if not isinstance(notes, dict) or notes.get("schema") != SCHEMA or not isinstance(notes.get("file"), str):
        raise CheckpointError("The checkpoint has an unknown form.", "It belongs to another version; use --fresh.")
    if notes.pop("notes_sha256", None) != notes_digest(notes):
        raise CheckpointError("The checkpoint's latest.json is damaged (SHA-256 differs).", "Use --fresh.")
    path = folder / Path(notes["file"]).name
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise CheckpointError(f"The checkpoint file {path.name!r} cannot be read: {error}.", "Use --fresh.") from error
    if hashlib.sha256(content).hexdigest() != notes.get("sha256"):
        raise CheckpointError(f"The checkpoint file {path.name} is damaged (SHA-256 differs).", "Use --fresh.")
    try:
        return load_tensors(content), notes
    except TENSOR_FAULTS as error:
        raise CheckpointError(
            f"The checkpoint {path.name} is not safetensors: {_first_line(error)}.", "Use --fresh."
        ) from error


def _first_line(error: Exception) -> str:
    """torch appends a trace of its own to some messages."""
    return f"{type(error).__name__} {str(error).splitlines()[0]}" if str(error) else type(error).__name__


@contextlib.contextmanager
def locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """One process at a time in a run folder; the lock goes with the process, however it ends."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    try:
        limit = time.monotonic() + wait
        while not _taken(handle):
            if time.monotonic() >= limit:
                raise CheckpointError(
                    f"Another process is using the run folder {folder.name}.", "Wait for it, or use another --out."
                )
            time.sleep(0.05)
        yield
    finally:
        handle.close()


def _taken(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
