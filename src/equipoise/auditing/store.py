"""What attacks found, per release, on disk: compact, checked when it is read, never unpickled.

``packed`` turns outcomes into the bytes of an npz file and ``unpacked`` gets them back. ``Store`` keeps a file for each
attack on each cell in the folder ``audit`` of a run, written as soon as it is finished, so that an audit that was
killed goes on where it was. A file is named after all that its content depends on (``fingerprint``) and signed with the
user's key: what somebody else put into the folder is computed again.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..attack.attack import Attack
from ..attack.registry import OURS
from ..errors import CheckpointError, StorageError
from ..files import plain, read_json, refuse_link, storage_errors, write_bytes
from ..mechanism.noise import OURS as OUR_NOISES
from ..mechanism.registry import Mechanism
from ..statistics import Array
from .key import user_key
from .results import Outcome

SCHEMA = 1
"""Of the files; another one is not read."""
FOLDER = "audit"
SMALLER = (np.uint8, np.uint16, np.uint32, np.float32)
"""In which an array is kept if that loses nothing, the smallest first."""
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, RuntimeError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""What damaged bytes may raise in zipfile, numpy and json; RuntimeError also of an entry that is encrypted."""
MOST = 256 * 2**20
"""Bytes to which a file may grow when it is read."""
OWN_FOLDER = "Set XDG_CACHE_HOME to a folder that you can write to."
SIGNATURE = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Values:
    """What a file holds: outcomes without images beyond their ``pictures``, and arrays that go with them."""

    outcomes: list[Outcome]
    arrays: dict[str, Array] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)


def packed(values: Values) -> bytes:
    """The bytes of an npz file: numbers as small as loses nothing, the rest as JSON, and a digest of both.

    >>> one = Outcome({"round": 0}, "lti", {"mse": np.array([0.5, 0.25])}, {})
    >>> unpacked(packed(Values([one]))).outcomes[0].values["mse"].tolist()
    [0.5, 0.25]
    """
    arrays = {f"with/{name}": array for name, array in values.arrays.items()}
    rows = []
    for place, one in enumerate(values.outcomes):
        rows.append({"about": one.about, "attack": one.attack, "notes": one.notes})
        for kind, several in (("values", one.values), ("negative", one.negative)):
            arrays |= {f"{place}/{kind}/{name}": array for name, array in several.items()}
        if one.pictures is not None:
            arrays[f"{place}/pictures"] = one.pictures
    kinds = {name: array.dtype.str for name, array in arrays.items()}
    index = json.dumps({"schema": SCHEMA, "about": values.about, "outcomes": rows, "arrays": kinds})
    small = {name: _smallest(array) for name, array in arrays.items()}
    content = io.BytesIO()
    np.savez_compressed(content, index=np.array(index), digest=np.array(_digest(index, small)), **small)  # type: ignore[arg-type]
    return content.getvalue()


def thinned(outcome: Outcome, keep: Sequence[str]) -> Outcome:
    """Some of the values of an outcome, as small as loses nothing that a mean, a rank or an area is made of: scores of
    membership become their places among all scores, ties alike.

    >>> one = Outcome({}, "membership", {"members": np.array([[2.5]]), "others": np.array([[0.5, 2.5]])}, {})
    >>> [values.tolist() for values in thinned(one, ["members", "others"]).values.values()]
    [[[1.0]], [[0.0, 1.0]]]
    """

    def some(values: Mapping[str, Array]) -> dict[str, Array]:
        kept = {name: values[name] for name in keep if name in values}
        places = {}
        if {"members", "others"} <= kept.keys():  # from the scores themselves: rounded ones would tie
            joined = np.concatenate([kept[name].ravel() for name in ("members", "others")])
            place = np.unique(joined, return_inverse=True)[1].astype(np.float64)
            place = np.where(np.isfinite(joined), place, joined)  # whoever counts refuses these, then as now
            parts = np.split(place, [kept["members"].size])
            places = {
                name: part.reshape(kept[name].shape) for name, part in zip(("members", "others"), parts, strict=True)
            }
        rest = {name: kept[name].astype(np.float32).astype(np.float64) for name in kept.keys() - places}
        return {name: (places | rest)[name] for name in kept}

    return replace(outcome, values=some(outcome.values), negative=some(outcome.negative))


def unpacked(content: bytes, what: str = "values file") -> Values:
    """What was packed; bytes that are damaged, cut off or of another schema raise ``CheckpointError``."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            if sum(part.file_size for part in stored.zip.infolist()) > MOST:
                raise ValueError(f"it grows to more than {MOST} bytes")
            small = {name: stored[name] for name in stored.files}
        index, digest = str(small.pop("index")), str(small.pop("digest"))
        whole = _digest(index, small) == digest
        table = json.loads(index)
        numbers = all(np.dtype(kind).kind in "biuf" for kind in table["arrays"].values())
        if not whole or not numbers or table["schema"] != SCHEMA or set(table["arrays"]) != set(small):
            raise ValueError("its digest or schema is another")
        arrays = {name: small[name].astype(kind) for name, kind in table["arrays"].items()}
        outcomes = [_outcome(place, row, arrays) for place, row in enumerate(table["outcomes"])]
        return Values(outcomes, _below("with/", arrays), table["about"])
    except UNREADABLE as error:
        raise CheckpointError(f"The {what} cannot be read: {error}.", "Restore it, or compute it again.") from error


def _outcome(place: int, row: Mapping[str, Any], arrays: Mapping[str, Array]) -> Outcome:
    values, negative = (_below(f"{place}/{kind}/", arrays) for kind in ("values", "negative"))
    pictures = arrays.get(f"{place}/pictures")
    return Outcome(row["about"], row["attack"], values, negative, pictures=pictures, notes=row["notes"])


def _below(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _smallest(array: Array) -> Array:
    """The same numbers in fewer bytes, where every one of them survives the way back."""
    number = array.dtype.kind in "iuf"
    for kind in SMALLER if number else ():
        with np.errstate(invalid="ignore", over="ignore"):
            small = array.astype(kind)
            back = small.astype(array.dtype)
        if small.itemsize < array.itemsize and np.array_equal(back, array, equal_nan=array.dtype.kind == "f"):
            return small
    return array


def _digest(index: str, arrays: Mapping[str, Array]) -> str:
    made = hashlib.sha256(index.encode())
    for name, array in sorted(arrays.items()):
        made.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


# -- cells that are finished -------------------------------------------------------------------------------------------


class Store:
    """Finished parts of audits in the folder of a run; ``fresh`` overlooks what is there."""

    def __init__(self, run: Path | str, *, fresh: bool = False):
        self.folder, self.fresh = Path(run) / FOLDER, fresh
        refuse_link(self.folder)
        self.refused = 0  # files that are damaged, or that another user's audit kept
        self.key, self.keyless = b"", ""
        try:
            self.key = user_key()
        except (StorageError, CheckpointError) as error:
            self.keyless = error.cause

    def path(self, name: str) -> Path:
        return self.folder / f"{name[:40]}.npz"

    def get(self, name: str, attack: str, releases: int, probe: Mapping[str, Array]) -> Outcome | None:
        """What this user kept under this name, of a model that answers ``probe`` alike; None if there is no such."""
        path = self.path(name)
        self.refused += path.is_dir()
        if self.fresh or not self.key or not path.is_file():
            return None
        try:
            content = path.read_bytes() if path.stat().st_size <= MOST else b""
            if not hmac.compare_digest(self._signature(content[:-SIGNATURE]), content[-SIGNATURE:]):
                raise CheckpointError("The signature is another.", "Compute it again.")
            values = unpacked(content[:-SIGNATURE], path.name)
        except (CheckpointError, OSError):
            self.refused += 1  # it is computed again, and replaced
            return None
        fits = values.about.get("name") == name and len(values.outcomes) == 1 and alike(values.arrays, probe)
        return values.outcomes[0] if fits and _whole(values.outcomes[0], attack, releases) else None

    def put(self, name: str, outcome: Outcome, probe: Mapping[str, Array]) -> None:
        """Keep it, as a whole or not at all; the path of a dataset stays where it is."""
        if not self.key:
            return
        about = {key: value for key, value in outcome.about.items() if key != "dataset"}
        if self.path(name).is_dir():  # no reason to lose what else is computed
            return
        content = packed(Values([replace(outcome, about=about)], dict(probe), {"name": name}))
        write_bytes(self.path(name), content + self._signature(content))

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self.key, content, "sha256")

    def remarks(self) -> list[str]:
        """What a user should know of what was found, or could not be looked for."""
        if self.keyless:
            why = "there is no key in your cache folder to sign it with"
            return [f"Nothing is kept for another time, and nothing kept is read: {why}. {self.keyless} {OWN_FOLDER}"]
        if self.refused:
            return [f"Kept results that are damaged or not of your making, and computed again: {self.refused}."]
        return []


def _whole(outcome: Outcome, attack: str, releases: int) -> bool:
    arrays = [*outcome.values.values(), *outcome.negative.values()]
    fits = all(array.shape[:1] == (releases,) for array in arrays)
    return bool(outcome.values) and fits and outcome.attack == attack and "lower" in outcome.about


ALIKE = 1e-4
"""How far two answers of a model may be apart, as a share of the largest: other threads and devices round otherwise."""


def alike(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Whether two tables of arrays are the same but for rounding.

    >>> alike({"a": np.array([1.0, 0.0])}, {"a": np.array([1.0, 1e-5])}), alike({}, {"a": np.array([1.0])})
    (True, False)
    """

    def close(mine: Array, its: Array) -> bool:
        most = np.abs(its[np.isfinite(its)]).max(initial=0.0)  # a model that diverged answers NaN
        return mine.shape == its.shape and np.allclose(mine, its, rtol=0, atol=ALIKE * most, equal_nan=True)

    return one.keys() == other.keys() and all(close(one[name], array) for name, array in other.items())


def fingerprint(*parts: Any) -> str:
    """SHA-256 of numbers, words, tensors, and of lists, tables and dataclasses of them.

    >>> fingerprint(1, "2") == fingerprint(1, 2), fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    (False, True)
    """
    return hashlib.sha256(_described(parts).encode()).hexdigest()


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().numpy()
        return f"{array.dtype.str} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    if is_dataclass(value) and not isinstance(value, type):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_described(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"({', '.join(map(_described, value))})"
    return repr(value)


SOURCES = ("attack", "mechanism", "models", "privacy", "auditing", "randomness.py", "statistics.py")
"""What the numbers of an attack come from; results of other code are not taken for those of this one."""


def unknown_code(attack: Attack, mechanism: Mechanism) -> str | None:
    """Whose code is not this package's: what it finds has no name, because nothing tells one version from the next."""
    if attack is not OURS.get(attack.name):
        return f"attack {attack.name}"
    return None if mechanism.noise in OUR_NOISES else f"noise {mechanism.noise}"


@cache
def source() -> str:
    """A digest of the package's code: what older code found is computed again."""
    here, made = Path(__file__).parents[1], hashlib.sha256()
    for name in SOURCES:
        for path in sorted((here / name).rglob("*.py")) or [here / name]:
            made.update(path.read_bytes())
    return made.hexdigest()


# -- an earlier audit --------------------------------------------------------------------------------------------------

ABOUT = ("dataset", "mechanism", "budget", "seed", "round", "role", "attack", "control", "rounds")
"""What tells one row of ``audit.json`` from another."""


def set_aside(folder: Path, content: Mapping[str, Any]) -> Path | None:
    """Keep the ``audit.json`` of a folder under another name, if the new content lacks any of its rows.

    Returns the name that it has now; None if there was none, or if the new one has all of its rows. A picture of
    private images is removed: nobody looks for them beside a public audit.
    """
    path = folder / "audit.json"
    if not path.exists() or _covered(path, content):
        return None
    number = next(n for n in count(1) if not any((folder / f"audit-{n}.{end}").exists() for end in ("json", "svg")))
    with storage_errors(path):
        if _private(path):
            (folder / "audit.svg").unlink(missing_ok=True)
        for end in ("svg", "json"):
            if (folder / f"audit.{end}").exists():
                (folder / f"audit.{end}").rename(folder / f"audit-{number}.{end}")
    return folder / f"audit-{number}.json"


def _covered(path: Path, content: Mapping[str, Any]) -> bool:
    try:
        old, new = read_json(path, "audit"), json.loads(json.dumps(plain(dict(content))))
        same = [
            {**one["options"], "attacks": [], "targets": one["targets"], "public": one.get("public")}
            for one in (old, new)
        ]
        return same[0] == same[1] and _rows(old) <= _rows(new)
    except (CheckpointError, *UNREADABLE):
        return False  # not one of ours, or damaged: it is kept as it is


def _private(path: Path) -> bool:
    try:
        return bool(read_json(path, "audit")["targets"] == "private")
    except (CheckpointError, *UNREADABLE):
        return True  # nobody can tell: what may show private images is removed


def _rows(content: Mapping[str, Any]) -> set[str]:
    rows = [*content["attacks"], *content.get("multi_round", []), *content.get("limits", [])]
    names = (*ABOUT, "scope", "measure", "fpr")
    return {json.dumps([row.get(name) for name in names], sort_keys=True) for row in rows}
