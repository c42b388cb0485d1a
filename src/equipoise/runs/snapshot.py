"""Snapshots: the global models of a run after one round, as safetensors with a SHA-256 in the header.

Nothing here executes what it reads, and no tensor is believed whose hash differs.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ..errors import CheckpointError, StorageError
from ..files import read_plain, refuse_link, write_bytes
from ..models.layout import Layout

TENSOR_FAULTS = (SafetensorError, ValueError, TypeError, KeyError, RuntimeError)
"""What bytes can do to safetensors and torch: a header may name types and sizes that torch does not have."""

MOST = 2**33
"""Bytes of a snapshot that are read."""


def snapshot_path(folder: Path, round_number: int) -> Path:
    """Where a run folder keeps the weights after a round."""
    return folder / "snapshots" / f"round-{round_number:06d}.safetensors"


def snapshot_rounds(folder: Path) -> list[int]:
    """The rounds of which a run folder keeps the weights, sorted; files of other names are passed over."""
    refuse_link(folder / "snapshots")
    found = ((path, path.stem.removeprefix("round-")) for path in (folder / "snapshots").glob("round-*.safetensors"))
    rounds = (int(name) for path, name in found if name.isdecimal() and path == snapshot_path(folder, int(name)))
    return sorted(rounds)


def save_snapshot(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Tensors as safetensors, with notes and a SHA-256 in the header; the same content gives the same bytes."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {**notes, "sha256": tensors_digest(kept)}
    header = {"equipoise": json.dumps(about, sort_keys=True)}  # one entry: the library writes several in any order
    write_bytes(path, save_tensors(kept, metadata=header))


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names, forms and numbers."""
    result = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        result.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        result.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())  # numpy lacks bfloat16
    return result.hexdigest()


def _noted_digest(content: bytes) -> str | None:
    """The SHA-256 in the header of a snapshot; None where another program wrote it."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    notes = json.loads((header.get("__metadata__") or {}).get("equipoise", "{}"))
    return notes.get("sha256") if isinstance(notes, dict) else None


def snapshot_states(path: Path, federations: int) -> list[dict[str, Tensor]]:
    """The tensors of every federation of a run, from one of its snapshots, as they were saved."""
    try:
        content = read_plain(path, MOST)
        tensors, noted = load_tensors(content), _noted_digest(content)
    except StorageError as error:
        raise CheckpointError(f"The snapshot cannot be read: {error.cause}", error.remedy) from error
    except (OSError, RecursionError, MemoryError, *TENSOR_FAULTS) as error:
        raise CheckpointError(
            f"The snapshot {path.name} cannot be read: {first_line(error)}.", "Train the run again."
        ) from error
    if noted is not None and noted != tensors_digest(tensors):
        raise CheckpointError(f"The snapshot {path.name} is damaged (SHA-256 differs).", "Train the run again.")
    heads = [f"federation-{place}/" for place in range(federations)]
    return [{name.removeprefix(head): t for name, t in tensors.items() if name.startswith(head)} for head in heads]


def snapshot_weights(path: Path, layout: Layout, federations: int) -> Tensor:
    """The weights ``[F, P]`` of all federations of a run, from one of its snapshots."""
    states = snapshot_states(path, federations)
    odd = [t.dtype for state in states for t in state.values() if t.dtype not in (torch.float32, torch.float64)]
    if odd:
        raise CheckpointError(f"The snapshot {path.name} has weights of type {odd[0]}.", "Train again.")
    stacked = torch.stack([layout.flatten(state) for state in states])
    if not bool(torch.isfinite(stacked).all()):
        raise CheckpointError(
            f"The snapshot {path.name} holds weights that are not finite.", "Train with a smaller eta."
        )
    return stacked


def first_line(error: Exception) -> str:
    """torch appends a trace of its own to some messages."""
    return f"{type(error).__name__} {str(error).splitlines()[0]}" if str(error) else type(error).__name__
