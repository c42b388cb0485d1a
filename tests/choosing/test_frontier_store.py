"""The frontier's values on disk: taken over from finished parts, merged, written, read, and refused where damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.auditing.store import Values, packed
from equipoise.choosing import frontier as record
from equipoise.choosing import frontier_plan
from equipoise.choosing.frontier_store import FILE, PARTS, gathered, merged, read, refuse_other, write
from equipoise.errors import CheckpointError
from equipoise.files import DONE
from tests.choosing.frontier_parts import (
    accuracy,
    as_planned,
    everywhere,
    folder,
    formal_spec,
    found,
    game,
    outcome,
    part,
    run_row,
    spec,
    values,
)


def audited(path: Path, share: float = 0.4) -> Path:
    asked = {**spec(), "audit": {}}
    return folder(path, asked, everywhere(share), audit={"accuracy": accuracy(asked), "options": {}})


def test_a_part_keeps_what_the_frontier_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audited(tmp_path / "one")
    folder(tmp_path / "two", spec(), multi_round={"attacks": [run_row()], "notes": "long"})
    (tmp_path / "begun").mkdir()
    as_planned(monkeypatch, tmp_path)
    result = gathered(tmp_path)
    assert list(result.about[PARTS]) == ["one", "two"], "a part without its last file is not finished"
    one, two = result.about[PARTS].values()
    assert (one["commit"], one["seconds"], one["candidates"]) == ("abc", 3.0, 200)
    assert one["environment"] == {"device": "a machine"}
    assert len(one["accuracy"]) == 8
    assert "options" not in one
    assert two["attacks"] == [run_row()]
    assert "notes" not in two


def test_public_records_and_limits_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "alone", spec() | {"public": [200]}, public={"federations": [{"accuracy": 0.5}]})
    folder(tmp_path / "run", formal_spec(1), multi_round={"limits": game(None), "attacks": []})
    as_planned(monkeypatch, tmp_path)
    parts = gathered(tmp_path).about[PARTS]
    assert parts["alone"]["federations"] == [{"accuracy": 0.5}]
    assert parts["run"]["limits"] == game(None)
    assert "attacks" not in parts["run"], "an empty list says nothing"


def test_log_ranks_become_the_ranks_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves too, where two candidates are alike; from numbers that were rounded to float32."""
    ranks = np.concatenate([np.arange(0, 200), np.arange(0, 199) + 0.5]).reshape(-1, 1)
    one = outcome("matched", 0, {"identification": np.zeros((399, 1)), "rank": ranks}, impostor=[[0.5]])
    folder(tmp_path / "one", {**spec(), "audit": {}}, [one])
    as_planned(monkeypatch, tmp_path)
    (kept,) = gathered(tmp_path).outcomes
    assert kept.values["rank"].tolist() == ranks.tolist()
    assert set(kept.values) == {"identification", "rank"}
    assert kept.negative["identification"].tolist() == [[0.5]]
    assert kept.about == one.about, "and nothing that the SPEC says"


def test_games_leave_no_values_of_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows say all; the members of a game are no candidates among 200."""
    asked = formal_spec(1) | {"audit": {"games": 500}}
    folder(tmp_path / "one", asked, everywhere(), audit={"limits": game(0)})
    as_planned(monkeypatch, tmp_path)
    assert gathered(tmp_path).outcomes == []


def test_a_folder_without_finished_parts_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="no finished parts"):
            gathered(path)


def test_a_quick_part_is_no_result(tmp_path: Path) -> None:
    """It has the name of a part that says something, and would take its place."""
    name, planned = next(iter(frontier_plan.parts("cpu").items()))
    folder(tmp_path / "quick" / name, frontier_plan.quick(planned))
    with pytest.raises(CheckpointError, match=r"8 rounds instead of 5000.*says nothing"):
        gathered(tmp_path / "quick")
    folder(tmp_path / "whole" / name, planned)
    assert list(gathered(tmp_path / "whole").about[PARTS]) == [name]


@pytest.mark.parametrize("name", ["spec", "seconds", "commit"])
def test_a_part_that_says_too_little_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = audited(tmp_path / "one") / DONE
    as_planned(monkeypatch, tmp_path)
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != name}))
    with pytest.raises(CheckpointError, match=f"part one is not what compute writes.*{name}"):
        gathered(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [(DONE, b"{"), (DONE, b"[]"), ("audit.json", b"{}"), ("audit.json", b"{"), ("audit.npz", b"PK")],
)
def test_a_damaged_part_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes) -> None:
    path = audited(tmp_path / "one") / name
    as_planned(monkeypatch, tmp_path)
    assert gathered(tmp_path).outcomes
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        gathered(tmp_path)


# -- what was planned --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned() -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(json.dumps(frontier_plan.parts()))
    return parts


def changed(part: dict[str, Any], *path: str, to: Any) -> dict[str, Any]:
    """A part with another value at a path of keys."""
    result = json.loads(json.dumps(part))
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return dict(result)


def test_a_part_may_be_computed_on_any_machine(tmp_path: Path, planned: dict[str, Any]) -> None:
    """And be planned on one: of a computed float the last digits may differ."""
    name = "mnist-dp-scatter"
    part = changed(changed(planned[name], "settings", "device", to="cpu"), "settings", "threads", to=7)
    eta = part["settings"]["eta"]
    folder(tmp_path / name, changed(part, "settings", "eta", to=eta * (1 + 1e-15)))
    assert list(gathered(tmp_path).about[PARTS]) == [name]
    (tmp_path / name / DONE).unlink()
    (tmp_path / name).rmdir()
    folder(tmp_path / name, changed(part, "settings", "eta", to=eta * (1 + 1e-6)))
    with pytest.raises(CheckpointError, match=r"differs in settings\.eta\."):
        gathered(tmp_path)


@pytest.mark.parametrize(
    ("path", "to", "where"),
    [
        (("settings", "batch"), 5, r"settings\.batch"), (("settings", "more"), 5, r"settings\.more"),
        (("audit", "snapshots"), [0], r"audit\.snapshots"), (("audit", "games"), 4, r"audit\.games"),
        (("federations",), [], "federations"), (("public",), [200], "public"),
    ],
    ids=str,
)  # fmt: skip
def test_a_part_of_another_spec_is_refused_by_its_name(
    tmp_path: Path, planned: dict[str, Any], path: tuple[str, ...], to: Any, where: str
) -> None:
    name = "mnist-paper-pl"
    folder(tmp_path / name, changed(planned[name], *path, to=to))
    with pytest.raises(CheckpointError, match=f"part {name} is of another SPEC than planned: it differs in {where}"):
        gathered(tmp_path)


def test_a_part_that_nobody_planned_is_refused_by_its_name(tmp_path: Path, planned: dict[str, Any]) -> None:
    folder(tmp_path / "mnist-paper-pk", planned["mnist-paper-pl"])
    with pytest.raises(CheckpointError, match=r"part mnist-paper-pk is not planned.*Did you mean 'mnist-paper-pl'"):
        gathered(tmp_path)


def test_the_committed_parts_are_those_that_are_planned(planned: dict[str, Any]) -> None:
    """None of them would be refused now."""
    parts = read(record.committed()).about[PARTS]
    assert parts
    for name, one in parts.items():
        refuse_other(name, one["spec"], planned)


# -- together ----------------------------------------------------------------------------------------------------------


def test_a_part_that_was_computed_again_takes_the_place_of_the_old() -> None:
    def of(name: str, share: float) -> Any:
        return outcome("matched", 0, found(share), part=name)

    old = values([of("one", 0.1), of("two", 0.2)], one=part(spec(), seconds=1), two=part(spec(), seconds=2))
    new = values([of("two", 0.3), of("three", 0.4)], two=part(spec(), seconds=20), three=part(spec(), seconds=3))
    both = merged(old, new)
    seconds = {name: one["seconds"] for name, one in both.about[PARTS].items()}
    assert seconds == {"one": 1, "two": 20, "three": 3}
    shares = {one.about["part"]: float(one.values["identification"].mean()) for one in both.outcomes}
    assert shares == pytest.approx({"one": 0.1, "two": 0.3, "three": 0.4})
    assert len(both.outcomes) == 3
    assert list(old.about[PARTS]) == ["one", "two"], "and the old ones are as they were"
    assert merged(None, new) is new


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path: Path) -> None:
    whole = values(everywhere(), one=part(spec()), two=part(spec()))
    write(whole, tmp_path)
    again = read(tmp_path)
    assert again.about == whole.about

    def told(some: Values) -> dict[str, Any]:
        return {
            json.dumps([one.about, one.attack], sort_keys=True): {
                name: table.tolist() for name, table in [*one.values.items(), *one.negative.items()]
            } for one in some.outcomes
        }  # fmt: skip

    assert told(again) == told(whole)
    assert len(told(again)) == 12


def test_the_order_of_computing_does_not_show(tmp_path: Path) -> None:
    write(values(everywhere(), one=part(spec()), two=part(spec())), tmp_path / "a")
    write(values(everywhere()[::-1], two=part(spec()), one=part(spec())), tmp_path / "b")
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no values\.npz in nowhere"):
        read(tmp_path / "nowhere")
    write(values(everywhere(), one=part(spec())), tmp_path)
    content = (tmp_path / FILE).read_bytes()
    for damaged in (content[:-100], b"", content[:109] + bytes([content[109] ^ 1]) + content[110:]):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cannot be read"):
            read(tmp_path)


@pytest.mark.parametrize("about", [{"schema": 2, PARTS: {}}, {"schema": 1}, {}])
def test_another_version_is_refused(tmp_path: Path, about: dict[str, Any]) -> None:
    (tmp_path / FILE).write_bytes(packed(Values([], {}, about)))
    with pytest.raises(CheckpointError, match="of another version"):
        read(tmp_path)
