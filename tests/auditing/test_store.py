"""Values per release on disk: lossless, compact, and never believed unchecked."""

from __future__ import annotations

import io
import json
import os
import zipfile
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
from equipoise.auditing.store import (
    Store,
    Values,
    fingerprint,
    packed,
    set_aside,
    source,
    thinned,
    unknown_code,
    unpacked,
)
from equipoise.errors import CheckpointError, DataError, StorageError
from equipoise.mechanism.noise import NOISES, register_noise
from equipoise.mechanism.registry import Mechanism, get_mechanism
from equipoise.statistics import auc, bootstrap_auc, tpr_at


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


def encrypted() -> bytes:
    """As the headers of its entries say."""
    content = bytearray(packed(Values([outcome()])))
    for mark, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        start = content.find(mark)
        while start >= 0:
            content[start + place] |= 1
            start = content.find(mark, start + 4)
    return bytes(content)


def wrongly_compressed() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("index.npy", np.random.default_rng(1).bytes(1000))
    changed = bytearray(content.getvalue())
    changed[43:60] = bytes(17)  # what the compression says of itself
    return bytes(changed)


@pytest.mark.parametrize("made", [encrypted, wrongly_compressed])
def test_what_zipfile_cannot_unpack_is_refused(made: Any) -> None:
    with pytest.raises(CheckpointError, match="The cell cannot be read"):
        unpacked(made(), "cell")


def test_what_would_fill_the_memory_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed(Values([], {"x": np.zeros(10**6)}))
    assert len(content) < 10**5
    unpacked(content)
    monkeypatch.setattr(store, "MOST", 10**5)
    with pytest.raises(CheckpointError, match="grows to more than 100000 bytes"):
        unpacked(content)


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


# --- less of it -------------------------------------------------------------------------------------------------------

BOTH = ["members", "others"]
SCORES = st.integers(-3, 3).map(float) | st.floats(allow_nan=False, allow_infinity=False) | st.floats(0.9999999, 1.0)
"""Ties, extremes, and numbers that float32 cannot tell apart."""


@st.composite
def scored(draw: st.DrawFn) -> dict[str, Any]:
    releases = draw(st.integers(2, 5))
    wide = {name: draw(st.integers(1, 4)) for name in BOTH}
    rows = {
        name: [draw(st.lists(SCORES, min_size=wide[name], max_size=wide[name])) for _ in range(releases)]
        for name in BOTH
    }
    return {name: np.array(values) for name, values in rows.items()}


@given(scored())
def test_places_tell_members_from_others_as_scores_do(values: dict[str, Any]) -> None:
    places = thinned(outcome(values=values), BOTH).values
    before, after = ([table[name] for name in BOTH] for table in (values, places))
    assert [array.shape for array in after] == [array.shape for array in before]
    assert auc(*after) == auc(*before)
    for fpr in (0.0, 0.01, 0.3, 0.5, 1.0):
        assert tpr_at(*after, fpr) == tpr_at(*before, fpr)
    assert bootstrap_auc(*after, draws=20) == bootstrap_auc(*before, draws=20), "the intervals, too"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_gets_no_place(wrong: float) -> None:
    """Counted, it is refused; a place would make it the best of all, or the worst."""
    values = {"members": np.array([[1.0], [wrong]]), "others": np.array([[0.0], [wrong]])}
    after = [thinned(outcome(values=values), BOTH).values[name] for name in BOTH]
    assert after[0][0, 0] == after[1][0, 0] + 1
    for array in after:
        assert np.array_equal(array[1], [wrong], equal_nan=True)
    with pytest.raises(DataError, match="finite"):
        auc(*after)


def test_places_take_two_bytes_a_score() -> None:
    numbers = np.random.default_rng(4)
    values = {"members": numbers.random((200, 4)), "others": numbers.random((200, 4))}
    small = packed(Values([thinned(outcome(values=values, negative={}, pictures=None), BOTH)]))
    with np.load(io.BytesIO(small), allow_pickle=False) as stored:
        assert {stored[f"0/values/{name}"].dtype.str for name in BOTH} == {"<u2"}


def test_only_what_is_asked_for_is_kept_of_both_controls() -> None:
    before = outcome(negative={"mse": np.array([0.1]), "log_rank": np.array([0.5])})
    after = thinned(before, ["log_rank", "identification", "members"])
    assert list(after.values) == ["log_rank", "identification"]
    assert list(after.negative) == ["log_rank"]
    assert np.array_equal(after.values["identification"], before.values["identification"])
    assert after.values["log_rank"] == pytest.approx(before.values["log_rank"], rel=1e-7)
    assert (after.about, after.attack, after.notes) == (before.about, before.attack, before.notes)
    assert thinned(before, []).values == {}


def test_scores_without_their_others_stay_scores() -> None:
    values = {"members": np.array([[2.5, -1.0]])}
    assert thinned(outcome(values=values), BOTH).values["members"].tolist() == [[2.5, -1.0]]


# --- cells of a run ---------------------------------------------------------------------------------------------------


PROBE = {"outputs": np.array([[1.0, -2.0], [0.5, 0.0]]), "gradient": np.array([3.0])}


def got(kept: Store, name: str, *, attack: str = "lti", releases: int = 40, probe: Any = None) -> Outcome | None:
    return kept.get(name, attack, releases, PROBE if probe is None else probe)


def test_a_cell_is_found_under_its_own_name_alone(tmp_path: Path) -> None:
    kept, one, two = Store(tmp_path), "a" * 64, "b" * 64
    assert got(kept, one) is None
    kept.put(one, outcome(), PROBE)
    found = got(kept, one)
    assert found is not None
    assert same(found, outcome(about={key: value for key, value in outcome().about.items() if key != "dataset"}))
    assert b"/home/me" not in kept.path(one).read_bytes()
    kept.path(one).rename(kept.path(two))
    assert got(kept, two) is None, "another cell's file, renamed"
    assert got(Store(tmp_path, fresh=True), one) is None
    assert kept.remarks() == []


@pytest.mark.parametrize("damage", [b"", b"PK", "cut", "folder", "long"])
def test_a_damaged_cell_is_not_there_and_is_replaced(
    tmp_path: Path, damage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, name = Store(tmp_path), "c" * 64
    kept.put(name, outcome(), PROBE)
    path = kept.path(name)
    content = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
        assert got(kept, name) is None
        return
    if damage == "long":
        monkeypatch.setattr(store, "MOST", len(content) - 1)
    else:
        path.write_bytes(content[:-30] if damage == "cut" else damage)
    assert got(kept, name) is None
    assert "damaged or not of your making, and computed again: 1." in kept.remarks()[0]
    kept.put(name, outcome(), PROBE)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no half-written file is left"


def test_what_somebody_else_put_there_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They know the name, the format and the digest, but not the key."""
    kept, name = Store(tmp_path / "run"), "d" * 64
    planted = packed(Values([outcome()], PROBE, {"name": name}))
    kept.folder.mkdir(parents=True)
    for content in (planted, planted + bytes(32), planted + store.hashlib.sha256(planted).digest()):
        kept.path(name).write_bytes(content)
        assert got(kept, name) is None
    assert kept.refused == 3
    assert "not of your making, and computed again: 3." in kept.remarks()[0]
    with monkeypatch.context() as other:
        other.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
        Store(tmp_path / "run").put(name, outcome(), PROBE)
        assert got(Store(tmp_path / "run"), name) is not None
    assert got(Store(tmp_path / "run"), name) is None
    kept.put(name, outcome(), PROBE)
    assert got(Store(tmp_path / "run"), name) is not None


def test_without_a_key_nothing_is_kept_and_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path).put("e" * 64, outcome(), PROBE)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    kept = Store(tmp_path)
    assert got(kept, "e" * 64) is None
    kept.put("f" * 64, outcome(), PROBE)
    assert not kept.path("f" * 64).exists()
    assert "no key in your cache folder to sign it with. Cannot write equipoise: file is a file" in kept.remarks()[0]
    assert kept.remarks()[0].endswith("Set XDG_CACHE_HOME to a folder that you can write to.")


@pytest.mark.parametrize(
    "asked",
    [
        {"attack": "dlg"}, {"releases": 41}, {"probe": {}}, {"probe": {**PROBE, "outputs": PROBE["outputs"] + 1e-3}},
        {"probe": {**PROBE, "gradient": np.array([3.0, 0.0])}},
    ],
    ids=["attack", "releases", "no probe", "another model", "another layout"],
)  # fmt: skip
def test_a_result_of_something_else_is_not_taken(tmp_path: Path, asked: dict[str, Any]) -> None:
    kept, name = Store(tmp_path), "a" * 64
    kept.put(name, outcome(), PROBE)
    assert got(kept, name, probe={kind: array * (1 + 1e-6) for kind, array in PROBE.items()}), "rounding is no change"
    assert got(kept, name, **asked) is None


def test_a_model_that_diverged_is_known_again(tmp_path: Path) -> None:
    probe = {"outputs": np.array([np.nan, np.inf, -np.inf, 2.0])}
    kept, name = Store(tmp_path), "a" * 64
    kept.put(name, outcome(), probe)
    assert got(kept, name, probe=probe) is not None
    assert got(kept, name, probe={"outputs": np.array([1.0, np.inf, -np.inf, 2.0])}) is None


def without_lower() -> Outcome:
    return outcome(about={})


def without_values() -> Outcome:
    return outcome(values={})


def a_number() -> Outcome:
    return outcome(negative={"mse": np.array(1.0)})


@pytest.mark.parametrize("made", [without_lower, without_values, a_number])
def test_a_result_that_lacks_something_is_not_taken(tmp_path: Path, made: Any) -> None:
    kept, name = Store(tmp_path), "a" * 64
    kept.put(name, made(), PROBE)
    assert got(kept, name) is None


def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "audit").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="audit in the folder run is a link") as caught:
        Store(tmp_path / "run")
    assert "Remove the link" in caught.value.remedy


def test_a_fingerprint_tells_tensors_and_tables_apart() -> None:
    base = torch.arange(6).float()
    parts = [
        base, base + 1, base.double(), base.view(2, 3), {"a": base}, {"b": base}, [base], [base, base], [[base], base],
        None, 0, 0.0, "0", {"a": 1, "b": 2}, {"a": 2, "b": 1}, Values([]), Values([], about={"a": 1}),
    ]  # fmt: skip
    assert len({fingerprint(part) for part in parts}) == len(parts)
    assert fingerprint(base.view(2, 3).T.contiguous().T) == fingerprint(base.view(2, 3)), "not by how it lies in memory"


def black(*arguments: Any) -> Any:
    """Stands for an attack; it is described here, and never run."""


class Called:
    def __call__(self, *arguments: Any) -> Any:
        """Likewise."""


@pytest.mark.parametrize(
    "run",
    [black, partial(black, 1), lambda *arguments: None, Called(), find("lti").run],
    ids=["function", "partial", "lambda", "object", "ours by another name"],
)
def test_an_attack_of_the_users_has_no_version_that_could_be_named(run: Any) -> None:
    """Partials, closures, objects and functions of a notebook change without a trace in any file."""
    assert unknown_code(Attack("mine", run), get_mechanism("pl-learn")) == "attack mine"


@pytest.mark.usefixtures("registries")
def test_neither_has_an_attack_in_the_place_of_ours_or_a_noise_of_the_users() -> None:
    learned = get_mechanism("pl-learn")
    assert unknown_code(find("lti"), learned) is None
    assert unknown_code(replace(find("lti"), run=partial(find("lti").run)), learned) == "attack lti"
    assert unknown_code(find("lti"), Mechanism("mine", "leakage", noise="gaussian")) is None, "all of it is in its key"
    register_noise("mine", NOISES["laplace"])
    assert unknown_code(find("lti"), Mechanism("mine", "leakage", noise="mine")) == "noise mine"


def test_the_code_of_the_package_is_part_of_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(store, "__file__", str(tmp_path / "auditing" / "store.py"))
        elsewhere.setattr(store, "SOURCES", ("statistics.py",))
        for code in ("one = 1", "one = 2"):
            (tmp_path / "statistics.py").write_text(code)
            source.cache_clear()
            digests.add(source())
    source.cache_clear()
    assert len(digests) == 2


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
        content(options={"attacks": ["lti"], "releases": 20}), content(public={"mnist": "another digest"}),
    ],
    ids=["other attacks", "other rounds", "other images", "other options", "other public images"],
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


@pytest.mark.parametrize("written", ['{"targets": "private", ', "[]", "{}"])
def test_the_picture_of_an_audit_that_cannot_be_read_may_be_private(tmp_path: Path, written: str) -> None:
    (tmp_path / "audit.json").write_text(written)
    (tmp_path / "audit.svg").write_text("a client's image")
    assert set_aside(tmp_path, content()) == tmp_path / "audit-1.json"
    assert [path.name for path in tmp_path.iterdir()] == ["audit-1.json"]


def test_a_pipe_in_the_place_of_an_audit_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "audit.json")
    assert set_aside(tmp_path, content()) == tmp_path / "audit-1.json"


def test_a_folder_in_the_place_of_a_result_costs_that_result_alone(tmp_path: Path) -> None:
    store, one = Store(tmp_path), Outcome({"round": 0, "lower": 0.0}, "lti", {"mse": np.zeros(2)}, {})
    store.path("name").mkdir(parents=True)
    assert store.get("name", "lti", 2, {}) is None
    store.put("name", one, {})
    store.put("other", one, {})
    assert store.get("other", "lti", 2, {}) is not None
    assert store.remarks() == ["Kept results that are damaged or not of your making, and computed again: 1."]


def test_a_picture_of_private_images_is_not_set_aside(tmp_path: Path) -> None:
    put(tmp_path, content(targets="private"))
    assert set_aside(tmp_path, content()) == tmp_path / "audit-1.json"
    assert [path.name for path in tmp_path.iterdir()] == ["audit-1.json"]


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
