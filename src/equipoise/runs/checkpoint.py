"""Checkpoints that are never half-believed.

A checkpoint is a safetensors file and a small JSON file that names it with its SHA-256; the JSON is renamed last, so at
every moment it names a complete checkpoint. Nothing here executes what it reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ..errors import CheckpointError
from ..files import plain, read_json, storage_errors, write_bytes, write_json
from .snapshot import TENSOR_FAULTS, first_line

SCHEMA = 1
Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors, and notes about them."""


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Make this the checkpoint; the previous one stays valid until the last moment."""
    state = write_state(folder, tensors, notes["round"])
    write_notes(folder / "latest.json", state, notes)
    tidy(folder, [state["file"]])


def write_state(folder: Path, tensors: dict[str, Tensor], round_number: int) -> dict[str, str]:
    """The tensors, in a file of their own; its name and SHA-256, for the notes."""
    content = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    name = f"state-{round_number:08d}.safetensors"
    write_bytes(folder / name, content)
    return {"file": name, "sha256": hashlib.sha256(content).hexdigest()}


def write_notes(path: Path, state: dict[str, str], notes: dict[str, Any]) -> None:
    """With this file a checkpoint begins to exist."""
    about = plain({"schema": SCHEMA, **state, **notes})
    write_json(path, {**about, "notes_sha256": notes_digest(about)})


def notes_digest(notes: dict[str, Any]) -> str:
    """Of the notes themselves: a flipped digit in them must not be believed either."""
    return hashlib.sha256(json.dumps(notes, sort_keys=True).encode()).hexdigest()


def tidy(folder: Path, kept: Collection[str]) -> None:
    """Remove superseded states, and what a process left that was killed while it wrote one."""
    with storage_errors(folder):
        for old in [*folder.glob("state-*.safetensors"), *folder.glob(".*.partial")]:
            if old.name not in kept:
                old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint, or None if there is none; a damaged one is an error, never a silent fresh start."""
    if not (folder / "latest.json").exists():
        return None
    notes = read_notes(folder / "latest.json")
    return read_state(folder, notes), notes


def read_notes(path: Path) -> dict[str, Any]:
    """The notes of a checkpoint, believed if they are whole."""
    notes = read_json(path, "checkpoint")
    if not isinstance(notes, dict) or notes.get("schema") != SCHEMA or not isinstance(notes.get("file"), str):
        raise CheckpointError("The checkpoint has an unknown form.", "It belongs to another version; use --fresh.")
    if notes.pop("notes_sha256", None) != notes_digest(notes):
        raise CheckpointError(f"The checkpoint's {path.name} is damaged (SHA-256 differs).", "Use --fresh.")
    return notes


def read_state(folder: Path, notes: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors that the notes name, believed if their hash is the one in the notes."""
    path = folder / Path(notes["file"]).name
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise CheckpointError(f"The checkpoint file {path.name!r} cannot be read: {error}.", "Use --fresh.") from error
    if hashlib.sha256(content).hexdigest() != notes.get("sha256"):
        raise CheckpointError(f"The checkpoint file {path.name} is damaged (SHA-256 differs).", "Use --fresh.")
    try:
        return load_tensors(content)
    except TENSOR_FAULTS as error:
        raise CheckpointError(
            f"The checkpoint {path.name} is not safetensors: {first_line(error)}.", "Use --fresh."
        ) from error
