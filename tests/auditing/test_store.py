"""Values per release on disk: lossless, compact, and never believed unchecked."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.attack.attack import Attack
from equipoise.attack.registry import find
from equipoise.auditing import store
from equipoise.auditing.results import Outcome
from equipoise.auditing.store import Store, Values, fingerprint, packed, set_aside, source_of, unpacked
from equipoise.errors import CheckpointError


def outcome(**change: Any) -> Outcome:
    numbers = np.random.default_rng(3)
    values = {
        "mse": numbers.random((40, 4), dtype=np.float32).astype(float), "identification": np.ones((40, 4)),
        "log_rank": np.log(numbers.integers(1, 200, (40, 4))), "cost": np.array([np.nan, np.inf, -np.inf, *[0.0] * 37]),
    }  # fmt: skip
    about = {
        "dataset": "/home/me/scans",
        "mechanism": "pl-learn",
        "budget": {"rounds": [1], "values": [0.9]},
        "lower": 8.0,
    }
    pictures = numbers.integers(0, 256, (2, 4, 1, 5, 5)).astype(np.uint8)
    made = Outcome(about, "lti", values, {"mse": values["mse"] + 1}, pictures=pictures, notes={"stopped": 2})
    return replace(made, **change)


def alike(mine: dict[str, Any], its: dict[str, Any]) -> bool:
    """The same arrays in the same order, bit for bit but for the payload of NaN."""
    pairs = zip(mine.values(), its.values(), strict=True)
    return list(mine) == list(its) and all(
        one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True) for one, other in pairs
    )


def same(one: Outcome, other: Outcome) -> bool:
    arrays = [
        (part.values, part.negative, {} if part.pictures is None else {"": part.pictures}) for part in (one, other)
    ]
    words = (one.about, one.attack, one.notes) == (other.about, other.attack, other.notes)
    return words and all(alike(mine, its) for mine, its in zip(*arrays, strict=True))


# --- to bytes and back ------------------------------------------------------------------------------------------------


def test_outcomes_come_back_as_they_were() -> None:
    several = [outcome(), outcome(attack="labels", values={}, negative={}, pictures=None, notes={})]
    arrays = {"mnist/truth": np.arange(12).reshape(3, 4), "mnist/member": np.array([True, False])}
    again = unpacked(packed(Values(several, arrays, {"study": "leakage"})))
    assert all(same(one, other) for one, other in zip(several, again.outcomes, strict=True))
    assert again.about == {"study": "leakage"}
    assert {name: (array.dtype, array.tolist()) for name, array in again.arrays.items()} == {
        name: (array.dtype, array.tolist()) for name, array in arrays.items()
    }


@given(st.lists(st.floats(width=64) | st.integers(-3, 70000).map(float), min_size=1, max_size=8))
def test_no_number_is_lost(numbers: list[float]) -> None:
    array = np.array(numbers)
    (again,) = unpacked(packed(Values([outcome(values={"x": array}, negative={})]))).outcomes
    assert np.array_equal(again.values["x"], array, equal_nan=True)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([0.0, 1.0, 255.0]), "u1"), (np.array([0.0, 256.0]), "u2"), (np.array([0.0, 0.5]), "f4"),
        (np.array([-1.0, np.nan]), "f4"), (np.array([0.1]), "f8"), (np.array([1e300]), "f8"),
        (np.arange(300), "u2"), (np.array([-1, 2]), "f4"), (np.array([True]), "b1"),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_take_as_few_bytes_as_lose_nothing(array: Any, kind: str) -> None:
    with np.load(io.BytesIO(packed(Values([], {"x": array}))), allow_pickle=False) as stored:
        assert stored["with/x"].dtype == np.dtype(kind)


def test_the_images_themselves_are_not_kept() -> None:
    small, large = (packed(Values([outcome(images=images)])) for images in (None, torch.rand(40, 4, 1, 28, 28)))
    assert small == large


def test_a_pickle_is_refused() -> None:
    content = io.BytesIO()
    np.savez(content, index=np.array([{}], dtype=object), digest=np.array("x"))
    with pytest.raises(CheckpointError, match="Object arrays cannot be loaded"):
        unpacked(content.getvalue())


def rewritten(change: Any) -> bytes:
    """The bytes of a file after ``change`` of its arrays, with the digest that was right before it."""
    with np.load(io.BytesIO(packed(Values([outcome()]))), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    change(arrays)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def edited(arrays: dict[str, Any]) -> None:
    arrays["0/values/mse"] = arrays["0/values/mse"] * 0.5


def other_attack(arrays: dict[str, Any]) -> None:
    arrays["index"] = np.array(str(arrays["index"]).replace("lti", "dlg"))


def lacking(arrays: dict[str, Any]) -> None:
    del arrays["0/values/mse"]


def newer(arrays: dict[str, Any]) -> None:
    index = json.dumps({**json.loads(str(arrays["index"])), "schema": 99})
    arrays["index"] = np.array(index)
    rest = {name: array for name, array in arrays.items() if name not in ("index", "digest")}
    arrays["digest"] = np.array(store._digest(index, rest))


@pytest.mark.parametrize("change", [edited, other_attack, lacking, newer])
def test_what_was_changed_is_refused(change: Any) -> None:
    unpacked(rewritten(lambda arrays: None))
    with pytest.raises(CheckpointError, match="its digest or schema is another"):
        unpacked(rewritten(change))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_what_was_cut_off_is_refused(share: float) -> None:
    content = packed(Values([outcome()]))
    with pytest.raises(CheckpointError, match="The cell cannot be read"):
        unpacked(content[: int(share * len(content))], "cell")


@given(st.data())
def test_a_byte_that_changed_is_noticed_or_changes_nothing(data: st.DataObject) -> None:
    content = bytearray(packed(Values([outcome()])))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        again = unpacked(bytes(content))
    except CheckpointError:
        return
    assert same(again.outcomes[0], outcome())


# --- cells of a run ---------------------------------------------------------------------------------------------------


def test_a_cell_is_found_under_its_own_name_alone(tmp_path: Path) -> None:
    kept, one, two = Store(tmp_path), "a" * 64, "b" * 64
    assert kept.get(one) is None
    kept.put(one, outcome())
    found = kept.get(one)
    assert found is not None
    assert same(found, outcome(about={key: value for key, value in outcome().about.items() if key != "dataset"}))
    assert b"/home/me" not in kept.path(one).read_bytes()
    kept.path(one).rename(kept.path(two))
    assert kept.get(two) is None, "another cell's file, renamed"
    assert Store(tmp_path, fresh=True).get(one) is None


@pytest.mark.parametrize("damage", [b"", b"PK", "cut", "folder"])
def test_a_damaged_cell_is_not_there_and_is_replaced(tmp_path: Path, damage: Any) -> None:
    kept, name = Store(tmp_path), "c" * 64
    kept.put(name, outcome())
    path = kept.path(name)
    content = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
        assert kept.get(name) is None
        return
    path.write_bytes(content[:-30] if damage == "cut" else damage)
    assert kept.get(name) is None
    kept.put(name, outcome())
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no half-written file is left"


def test_a_fingerprint_tells_tensors_and_tables_apart() -> None:
    base = torch.arange(6).float()
    parts = [
        base, base + 1, base.double(), base.view(2, 3), {"a": base}, {"b": base}, [base], [base, base], [[base], base],
        None, 0, 0.0, "0", {"a": 1, "b": 2}, {"a": 2, "b": 1}, Values([]), Values([], about={"a": 1}),
    ]  # fmt: skip
    assert len({fingerprint(part) for part in parts}) == len(parts)
    assert fingerprint(base.view(2, 3).T.contiguous().T) == fingerprint(base.view(2, 3)), "not by how it lies in memory"


def black(*arguments: Any) -> Any:
    raise NotImplementedError


def test_the_code_behind_an_attack_is_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = source_of(Attack("mine", black)), source_of(find("lti"))
    assert own != other
    assert source_of(Attack("mine", partial(black, 1))) == own
    assert source_of(find("lti")) == other
    monkeypatch.setattr(store, "_package", lambda: "changed")
    assert source_of(find("lti")) != other


# --- an earlier audit -------------------------------------------------------------------------------------------------


def content(attacks: tuple[str, ...] = ("lti",), rounds: tuple[int, ...] = (0,), **change: Any) -> dict[str, Any]:
    rows = [
        {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": number, "role": "own",
         "attack": attack, "control": control, "mse": float("nan")}
        for attack in attacks for number in rounds for control in (None, "negative")
    ]  # fmt: skip
    return {"attacks": rows, "targets": "public", "options": {"attacks": list(attacks), "releases": 32}, **change}


def put(folder: Path, value: dict[str, Any]) -> None:
    (folder / "audit.json").write_text(json.dumps(value).replace("NaN", "null"))
    (folder / "audit.svg").write_text("<svg/>")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (content(), content()), (content(), content(("lti", "labels"))), (content(), content(rounds=(0, 200))),
        (content(), content(complete=True)),
    ],
    ids=["the same again", "more attacks", "more rounds", "gone on with"],
)  # fmt: skip
def test_an_audit_that_has_all_of_the_earlier_one_replaces_it(tmp_path: Path, old: Any, new: Any) -> None:
    put(tmp_path, old)
    assert set_aside(tmp_path, new) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "audit.svg"]


@pytest.mark.parametrize(
    "new",
    [
        content(("labels",)), content(rounds=(200,)), content(targets="private"),
        content(options={"attacks": ["lti"], "releases": 20}),
    ],
    ids=["other attacks", "other rounds", "other images", "other options"],
)  # fmt: skip
def test_an_audit_that_lacks_something_of_the_earlier_one_leaves_it_beside(tmp_path: Path, new: Any) -> None:
    put(tmp_path, content(multi_round=[]))
    before = (tmp_path / "audit.json").read_bytes()
    assert set_aside(tmp_path, new) == tmp_path / "audit-1.json"
    assert (tmp_path / "audit-1.json").read_bytes() == before
    assert (tmp_path / "audit-1.svg").is_file()
    assert not (tmp_path / "audit.svg").exists()
    put(tmp_path, new)
    assert set_aside(tmp_path, content(("dlg",))) == tmp_path / "audit-2.json"


def test_what_was_replayed_is_not_lost_either(tmp_path: Path) -> None:
    put(
        tmp_path,
        content(multi_round=[{"attack": "multi-round", "dataset": "mnist", "mechanism": "none", "rounds": 300}]),
    )
    assert set_aside(tmp_path, content()) == tmp_path / "audit-1.json"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"attacks": 3, "options": {}, "targets": ""}'])
def test_a_damaged_audit_is_kept_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    assert set_aside(tmp_path, content()) == tmp_path / "audit-1.json"
    assert (tmp_path / "audit-1.json").read_text() == text


def test_where_there_was_no_audit_nothing_is_moved(tmp_path: Path) -> None:
    assert set_aside(tmp_path, content()) is None
    assert list(tmp_path.iterdir()) == []
