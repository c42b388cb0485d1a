"""``audit_run``: a run folder attacked at its own snapshots, what it may show, and damaged folders."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from equipoise.attack.registry import ATTACKS, find
from equipoise.attack.view import Server
from equipoise.auditing.audit import Audit
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.run_audit import LOOSEST, audit_run
from equipoise.auditing.store import Store, packed, unpacked
from equipoise.auditing.svg import as_pixels, png
from equipoise.engine.datasets import load_dataset
from equipoise.engine.settings import Settings
from equipoise.errors import AttackError, CheckpointError, ConfigError, DataError, EquipoiseError, ModelError
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.audit_helpers import cheap, interrupt, settings_for, train_run, write_pictures
from tests.auditing.small import TWINS
from tests.auditing.updates import images_of, own, refuse
from tests.helpers import write_dataset


def test_the_first_an_early_and_the_last_snapshot_are_attacked(audited: Audit, trained: Path) -> None:
    assert len(list((trained / "snapshots").iterdir())) == 4
    assert sorted({row["round"] for row in audited.rows}) == [0, 1, 3]


def test_what_there_were_too_few_images_for_is_said(trained: Path) -> None:
    """Of the 96 public pictures 40 play a part, ten of each label: two of a batch, and one of these once more."""
    options = cheap(attacks=["membership"], releases=30, candidates=50, others=9)
    result = audit_run(trained, options, snapshots=[0])
    rows = result.rows
    assert {row["targets"] for row in rows} == {rows[0]["targets"]}
    count = rows[0]["targets"]
    assert 2 < count < 30
    assert result.content["attacked"].startswith(f"{count} releases of public images")
    releases, candidates, others = result.content["notes"]
    assert releases.startswith(f"{count} releases are attacked, not 30: ")
    assert candidates == "Each example is sought among 10 candidates, not 50: there are no more of its label."
    assert others.endswith("others, not 9: there are no more of their labels.")
    assert rows[0]["membership_auc_low"] is not None, "none plays a part twice"


def test_an_audit_that_lacks_nothing_has_no_notes(audited: Audit) -> None:
    assert audited.content["notes"] == []
    assert audited.content["attacked"].startswith("2 releases of public images")


def test_what_two_datasets_lack_is_said_by_their_names(tmp_path: Path, pictures: Path) -> None:
    other = write_pictures(tmp_path / "more", train=400)
    sweep: dict[str, list[Any]] = {"datasets": [str(pictures), str(other)], "mechanisms": ["none"]}
    Run(tmp_path / "run", resolve(overrides=settings_for(), sweep=sweep)).execute()
    result = audit_run(tmp_path / "run", cheap(attacks=["labels"], candidates=20), [0])
    (note,) = result.content["notes"]
    assert note.startswith(f"{pictures.name}: Each example is sought among 10 candidates, not 20")


def test_the_rounds_may_be_chosen(trained: Path) -> None:
    result = audit_run(trained, cheap(attacks=["labels"]), snapshots=[2, 0, 2])
    assert sorted({row["round"] for row in result.rows}) == [0, 2]


@pytest.mark.parametrize("snapshots", [[5], [0, 5], []])
def test_a_snapshot_that_is_not_there_is_refused_with_those_that_are(trained: Path, snapshots: list[int]) -> None:
    with pytest.raises(ConfigError, match="There are: 0, 1, 2, 3"):
        audit_run(trained, cheap(), snapshots=snapshots)


def test_a_learned_mechanism_has_every_role_and_control(audited: Audit) -> None:
    for attack in audited.content["options"]["attacks"]:
        for round_number in (0, 1, 3):
            mine = [
                (row["role"], row["control"]) for row in audited.rows
                if (row["mechanism"], row["attack"], row["round"]) == ("pl-learn", attack, round_number)
            ]  # fmt: skip
            expected = {(role, control) for role in ("own", *TWINS) for control in (None, "negative")}
            assert set(mine) == expected | {("undistorted", "positive"), ("undistorted", "negative")}
            assert len(mine) == len(set(mine)), "each once"


def test_the_rows_hold_what_the_schema_says(audited: Audit) -> None:
    kinds = {row["attack"]: row for row in audited.rows if row["role"] == "own" and row["control"] != "negative"}
    for row in audited.rows:
        assert {"attack", "mechanism", "budget", "seed", "round", "targets", "evidence", "control"} <= row.keys()
        assert (row["targets"], row["evidence"]) == (2, "insufficient evidence")
        assert row["budget"] == (None if row["mechanism"] == "none" else 0.98)
    places = {"identification", "identification_low", "identification_high"}
    assert {"mse", "mse_pixel", "psnr", "ssim", "leakage", *places} <= kinds["invgrad"].keys()
    assert {"mse", "mse_pixel", "psnr", "ssim", *places} <= kinds["lti"].keys()
    assert places <= kinds["matched"].keys()
    assert {"membership_auc", "membership_tpr"} <= kinds["membership"].keys()
    assert {"labels", "labels_exact"} <= kinds["labels"].keys()
    (guesses,) = audited.content["baselines"].values()
    assert {"black", "class_mean", "noise"} <= set(guesses)
    assert all({"mse", "mse_pixel", "psnr", "ssim", "leakage"} <= row.keys() for row in guesses.values())
    assert audited.content["schema"] == 1
    assert audited.content["complete"] is True
    assert audited.content["targets"] == "public"
    assert set(audited.content["claims"]) == {"proved", "measured", "not claimed"}


def test_learned_noise_is_compared_with_static(audited: Audit) -> None:
    result = audited.content["differences"]
    assert {row["mechanism"] for row in result} == {"pl-learn"}
    assert {(row["against"], row["round"]) for row in result} == {
        *((name, round_number) for name in TWINS for round_number in (0, 1, 3)),
        *(("static, own trajectory", round_number) for round_number in (1, 3)),
    }
    assert {row["attack"] for row in result} == {"invgrad", "lti", "matched", "labels"}


def test_accuracy_and_error_are_multiplied(audited: Audit, trained: Path) -> None:
    accuracy = json.loads((trained / "result.json").read_text())["federations"]
    names = [row["mechanism"] for row in accuracy]
    assert [(row["mechanism"], row["attack"]) for row in audited.content["cap"]] == [
        (name, attack) for name in names for attack in ("invgrad", "lti")
    ]
    for row in audited.content["cap"]:
        assert (row["round"], row["budgets"], row["seed"]) == (3, 1, 1)
        (mine,) = [
            one["mse"] for one in audited.rows
            if one["role"] == "own" and one["control"] != "negative" and one["round"] == 3
            and (one["mechanism"], one["attack"]) == (row["mechanism"], row["attack"])
        ]  # fmt: skip
        assert row["cap"] == pytest.approx(mine * accuracy[names.index(row["mechanism"])]["accuracy"])


def test_accuracy_and_error_are_averaged_over_budgets(tmp_path: Path, pictures: Path) -> None:
    """A row for every seed and attack; the error of an earlier round has no accuracy to go with it."""
    sweep: dict[str, list[Any]] = {
        "datasets": [str(pictures)],
        "mechanisms": ["pl-identical"],
        "budgets": [0.9, 0.98],
        "seeds": [1, 2],
    }
    Run(tmp_path / "run", resolve(overrides=settings_for(), sweep=sweep)).execute()
    result = audit_run(tmp_path / "run", cheap(attacks=["lti", "labels"]), [0, 3])
    assert [(row["seed"], row["attack"], row["round"], row["budgets"]) for row in result.content["cap"]] == [
        (1, "lti", 3, 2), (2, "lti", 3, 2),
    ]  # fmt: skip
    trained = json.loads((tmp_path / "run" / "result.json").read_text())["federations"]
    accuracy = {(row["seed"], row["budget"]): row["accuracy"] for row in trained}
    for cap in result.content["cap"]:
        products = [
            row["mse"] * accuracy[row["seed"], row["budget"]] for row in own(result)
            if (row["seed"], row["attack"], row["round"]) == (cap["seed"], "lti", 3)
        ]  # fmt: skip
        assert cap["cap"] == pytest.approx(sum(products) / 2)
        assert len(products) == 2
    assert audit_run(tmp_path / "run", cheap(attacks=["lti"]), [0]).content["cap"] == []


def test_a_run_that_is_not_finished_has_no_accuracy_to_multiply(folder: Path) -> None:
    (folder / "result.json").unlink()
    assert audit_run(folder, cheap(attacks=["lti"]), [3]).content["cap"] == []


def test_only_public_images_are_shown_by_default(audited: Audit, trained: Path, pictures: Path, tmp_path: Path) -> None:
    data = load_dataset(Settings.flat(public_fraction=0.6), str(pictures))
    private, targets = (
        {png(image) for image in as_pixels(data.pixels(part.inputs))} for part in (data.train, data.public_pool)
    )
    raw = np.load(pictures / "train.npz")["images"][:, None]
    assert private <= {png(image) for image in raw}, "pixels come back as they were stored"
    audited.save(tmp_path)
    drawn = images_of((tmp_path / "audit.svg").read_text())
    originals = [png(image) for section in audited.sections for image in section.rows[0].images]
    assert all(section.rows[0].caption == "original" for section in audited.sections)
    assert originals
    assert set(originals) <= targets & set(drawn)
    assert not set(drawn) & private
    assert "base64" not in (tmp_path / "audit.json").read_text()
    own = audit_run(trained, cheap(attacks=["lti"]), [0], private=True)
    assert own.content["targets"] == "private"
    shown = [png(image) for section in own.sections for image in section.rows[0].images]
    assert shown
    assert set(shown) <= private


def test_the_same_audit_of_a_run_finds_the_same(trained: Path) -> None:
    one, two = (audit_run(trained, cheap(), [3]) for _ in range(2))
    assert one.content == two.content
    assert one.picture() == two.picture()


def test_an_audit_changes_nothing_in_the_folder_until_it_is_saved(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = audit_run(folder, cheap(attacks=["lti"]), [0])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    result.save(folder)
    new = {path.name for path in folder.rglob("*") if path.is_file()} - {path.name for path in before}
    assert new == {"audit.json", "audit.svg"}
    json.loads((folder / "audit.json").read_text(), parse_constant=refuse)


def test_the_place_of_the_run_is_in_no_file(audited: Audit, trained: Path, tmp_path: Path) -> None:
    audited.save(tmp_path)
    text = (tmp_path / "audit.json").read_text() + (tmp_path / "audit.svg").read_text()
    assert str(trained) not in text


def test_a_dataset_folder_is_called_by_its_name_and_not_by_its_path(
    trained: Path, pictures: Path, tmp_path: Path
) -> None:
    result = audit_run(trained, cheap(attacks=["invgrad", "labels"]), snapshots=[3], multi_rounds=2)
    assert {row["dataset"] for row in (*result.rows, *result.content["multi_round"])} == {"pictures"}
    assert {row["dataset"] for part in ("differences", "cap") for row in result.content[part]} == {"pictures"}
    assert list(result.content["baselines"]) == ["pictures"]
    result.save(tmp_path)
    for path in tmp_path.iterdir():
        assert str(pictures.parent) not in path.read_text(encoding="utf-8"), path.name


def test_the_picture_names_the_dataset_and_not_its_place(audited: Audit, pictures: Path) -> None:
    """A picture is what people pass on: it need not say where on which machine the data lay."""
    assert str(pictures.parent) not in audited.picture()


def test_an_audit_in_which_no_attack_could_work_is_an_error(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hopeless(*arguments: Any, **more: Any) -> Any:
        raise AttackError("Nothing moves.", "Move it.")

    monkeypatch.setattr("equipoise.auditing.examine.run_attack", hopeless)
    with pytest.raises(AttackError, match=r"lti could not attack .*Nothing moves"):
        audit_run(trained, cheap(attacks=["lti"]), [0])


def test_global_random_state_is_left_alone_by_the_audit_of_a_run(trained: Path) -> None:
    torch.manual_seed(8)
    before = torch.get_rng_state()
    audit_run(trained, cheap(attacks=["lti"]), [0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("last", [1, 2])
def test_an_audit_in_which_nothing_was_finished_is_none(
    trained: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Interrupted in its first cell it leaves an earlier audit as it is; in its second there is something to write."""
    interrupt(monkeypatch, last)
    if last == 1:
        with pytest.raises(KeyboardInterrupt):
            audit_run(trained, cheap(attacks=["lti"]), [0])
        return
    result = audit_run(trained, cheap(attacks=["lti"]), [0], multi_rounds=2).content
    assert result["complete"] is False
    assert "multi_round" not in result, "whoever interrupts does not want to wait for it"
    lacking = ["pl-identical", "pl-learn", "multi-round"]
    assert result["unfinished"] == {"cells": 4, "finished": 1, "lacking": lacking, "rounds": []}
    assert result["verdict"][0] == (
        "Interrupted: 1 of 4 cells is finished; nothing yet on pl-identical, pl-learn, multi-round."
    )
    assert result["verdict"][-1] == "Next: run the same command again."


def test_rounds_that_an_interrupted_audit_has_nothing_on_are_named(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = interrupt(monkeypatch, 4)
    result = audit_run(trained, cheap(attacks=["labels"]), [0, 3]).content
    assert [cell.about["round"] for cell in seen] == [0, 0, 0, 3]
    assert result["unfinished"]["lacking"] == []
    assert result["unfinished"]["rounds"] == [3]


def test_whether_the_server_is_damped_is_told(audited: Audit, tmp_path: Path, pictures: Path) -> None:
    assert audited.content["server"] == "plain"
    assert "unfinished" not in audited.content
    train_run(tmp_path / "run", pictures, ("none",), server_rate="auto")
    assert audit_run(tmp_path / "run", cheap(attacks=["labels"]), [0]).content["server"] == "damped"


def test_releases_of_all_rounds_are_combined_on_request(trained: Path) -> None:
    result = audit_run(trained, cheap(attacks=["labels"]), [0], multi_rounds=9).content["multi_round"]
    assert [row["mechanism"] for row in result] == ["none", "pl-identical", "pl-learn"]
    assert all(row["rounds"] == 3 for row in result), "no more than were trained"


def test_combined_releases_may_be_all_that_is_asked_for(trained: Path) -> None:
    result = audit_run(trained, cheap(attacks=[]), [0], multi_rounds=2)
    assert result.rows == []
    assert len(result.content["multi_round"]) == 3


def test_combined_releases_alone_have_a_verdict(trained: Path) -> None:
    (words,) = audit_run(trained, cheap(attacks=[]), [0], multi_rounds=2).content["verdict"]
    assert words.startswith("Over 2 rounds of pl-")


def test_where_clients_differ_the_least_protected_one_is_attacked_and_named(tmp_path: Path, pictures: Path) -> None:
    budget = [0.5, 0.9999, 0.5, 0.5]
    sweep: dict[str, list[Any]] = {"datasets": [str(pictures)], "mechanisms": ["pl-identical"], "budgets": [budget]}
    Run(tmp_path / "run", resolve(overrides=settings_for(), sweep=sweep)).execute()
    content = audit_run(tmp_path / "run", cheap(attacks=["matched"]), [0]).content
    assert {row["client"] for row in content["attacks"]} == {1}
    own = next(row for row in content["attacks"] if row["role"] == "own")
    assert (own["promised_leakage"], own["lower"]) == (0.9999, pytest.approx(0.03975, rel=0.01))
    assert content["notes"][-1] == LOOSEST
    assert any("(client 1)" in words for words in content["verdict"])


def test_public_images_that_equal_another_are_left_out_and_counted(tmp_path: Path, pictures: Path) -> None:
    """Each of 60 images five times: nobody could tell an image from its copy."""
    Run(tmp_path / "run", resolve(overrides=settings_for(), sweep={"datasets": [str(pictures)], "mechanisms": ["none"]})
    ).execute()  # fmt: skip
    images = torch.rand(60, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    public = images.repeat(5, 1, 1, 1), (torch.arange(60) % 4).repeat(5)
    options = cheap(attacks=["matched"], candidates=20)
    few, often = (
        audit_run(tmp_path / "run", options, [0], public=some)
        for some in ((public[0][:60], public[1][:60]), public)
    )  # fmt: skip
    assert often.content["notes"][-1] == f"240 images that equal another were left out of {pictures.name}."
    assert [row["chance"] for row in often.rows] == [row["chance"] for row in few.rows]
    assert often.content["notes"][:-1] == few.content["notes"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, folder: Path) -> None:
    for empty in (tmp_path / "absent", tmp_path):
        with pytest.raises(CheckpointError, match=r"has no config\.toml"):
            audit_run(empty, cheap())
    shutil.rmtree(folder / "snapshots")
    with pytest.raises(CheckpointError, match="has no snapshots"):
        audit_run(folder, cheap())


@pytest.mark.parametrize("damage", ["cut off", "empty", "not safetensors"])
def test_a_damaged_snapshot_is_refused(folder: Path, damage: str) -> None:
    path = folder / "snapshots" / "round-000000.safetensors"
    content = path.read_bytes()
    path.write_bytes({"cut off": content[:-100], "empty": b"", "not safetensors": b"x" * 200}[damage])
    with pytest.raises(CheckpointError, match=r"round-000000\.safetensors cannot be read"):
        audit_run(folder, cheap(attacks=["lti"]))


def test_a_snapshot_without_the_weights_of_a_federation_is_refused(folder: Path) -> None:
    path = folder / "snapshots" / "round-000000.safetensors"
    tensors = load(path.read_bytes())
    path.write_bytes(save({name: part for name, part in tensors.items() if not name.startswith("federation-2/")}))
    with pytest.raises((CheckpointError, ModelError), match="Missing tensors"):
        audit_run(folder, cheap(attacks=["lti"]))


def test_a_snapshot_that_is_not_finite_is_refused(folder: Path) -> None:
    path = folder / "snapshots" / "round-000003.safetensors"
    tensors = load(path.read_bytes())
    tensors["federation-1/fc2.bias"][0] = float("nan")
    path.write_bytes(save(tensors))
    with pytest.raises(CheckpointError, match="not finite"):
        audit_run(folder, cheap(attacks=["lti"]))
    assert audit_run(folder, cheap(attacks=["labels"]), [0]).rows, "the others can still be audited"


def test_a_file_beside_the_snapshots_does_no_harm(folder: Path) -> None:
    path = folder / "snapshots" / "round-000000.safetensors"
    shutil.copy(path, path.with_name("round-000000 (copy).safetensors"))
    result = audit_run(folder, cheap(attacks=["labels"]), [0])
    assert {row["round"] for row in result.rows} == {0}


def test_data_without_public_images_cannot_be_audited(tmp_path: Path, pictures: Path) -> None:
    run = train_run(tmp_path / "run", pictures, ("none",), public_fraction=0.0)
    with pytest.raises(DataError, match="public"):
        audit_run(run, cheap())


def test_named_public_images_serve_the_replay_too(tmp_path: Path, pictures: Path) -> None:
    """Of a run that has none of its own; and of one that has, they take their place."""
    bare = train_run(tmp_path / "bare", pictures, ("none",), public_fraction=0.0)
    other = write_pictures(tmp_path / "other", train=400)
    result = audit_run(bare, cheap(attacks=["labels"]), [0], multi_rounds=2, public=str(other)).content
    assert result["multi_round"][0]["rounds"] == 2
    assert result["multi_round"][0]["candidates"] == 25


def test_which_public_images_were_used_is_told_apart(folder: Path, tmp_path: Path) -> None:
    other, options = write_pictures(tmp_path / "other", train=400), cheap(attacks=["labels"])
    audit_run(folder, options, [0]).save(folder)
    first = (folder / "audit.json").read_bytes()
    audit_run(folder, options, [0]).save(folder)
    assert not (folder / "audit-1.json").exists()
    audit_run(folder, options, [0], public=str(other)).save(folder)
    assert (folder / "audit-1.json").read_bytes() == first
    digests = [json.loads((folder / name).read_text())["public"] for name in ("audit.json", "audit-1.json")]
    assert digests[0].keys() == digests[1].keys()
    assert digests[0] != digests[1]


def test_results_that_somebody_put_into_the_folder_are_not_taken(folder: Path) -> None:
    """The names of the files and all that they hold but the signature are as an audit of this folder writes them."""
    options = cheap(attacks=["labels"])
    honest = audit_run(folder, options, [0], store=Store(folder))
    assert honest.content["results"]["read"] == 0
    files = sorted((folder / "audit").iterdir())
    assert files
    for path in files:
        kept = unpacked(path.read_bytes())
        nothing = {name: np.zeros_like(array) for name, array in kept.outcomes[0].values.items()}
        forged = packed(replace(kept, outcomes=[replace(kept.outcomes[0], values=nothing)]))
        path.write_bytes(forged + path.read_bytes()[-32:])
    again = audit_run(folder, options, [0], store=Store(folder))
    assert again.rows == honest.rows
    assert again.content["results"] == honest.content["results"]
    resumed = audit_run(folder, options, [0], store=Store(folder)).content
    assert resumed["results"] == {"read": len(files), "computed": 0}
    assert resumed["notes"][0].startswith(f"{len(files)} of {len(files)} results were read from the folder")


def test_that_private_pictures_are_not_kept_is_said(folder: Path) -> None:
    audit_run(folder, cheap(attacks=["lti"]), [0], private=True, store=Store(folder))
    again = audit_run(folder, cheap(attacks=["lti"]), [0], private=True, store=Store(folder))
    assert "Reconstructions of private images are not kept" in again.content["notes"][0]
    assert again.sections == []


def test_an_unknown_attack_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'matched'"):
        audit_run(tmp_path, AuditOptions(attacks=["mached"]))


@pytest.mark.parametrize("kind", [AttackError, ModelError])
def test_an_attack_that_cannot_work_on_one_cell_leaves_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type[EquipoiseError]
) -> None:
    """No release moves the weights, say, because the run diverged: that is said, and the audit goes on."""
    labels = find("labels")

    def run(server: Server, *rest: Any) -> Any:
        if server.protection.mechanism.learns:
            raise kind("No release moves the weights.", "Leave them out.")
        return labels.run(server, *rest)

    monkeypatch.setitem(ATTACKS, "labels", replace(labels, run=run))
    result = audit_run(folder, cheap(attacks=["labels"]), snapshots=[0])
    attacked = {(row["mechanism"], row["role"]) for row in result.rows}
    assert attacked > {("none", "own"), ("pl-learn", "undistorted")}
    assert ("pl-learn", "own") not in attacked
    said = " ".join(result.content["notes"])
    assert re.search(r"labels could not attack pl-learn[^:]* at round 0 \(own\): No release moves the weights", said)


def test_guesses_are_verified_where_a_norm_is_fixed_and_elsewhere_it_is_said_why_not(trained: Path) -> None:
    result = audit_run(trained, cheap(attacks=["verify", "labels"], releases=8), snapshots=[3])
    rows = {(row["mechanism"], row["control"]): row for row in result.rows if (row["attack"], row["role"]) == OWN}
    assert rows.keys() == {(name, control) for name in ("none", "pl-identical") for control in (None, "negative")}
    assert rows["pl-identical", None]["verified"] == rows["none", None]["verified"] == 1
    assert rows["pl-identical", None]["accepted"] == 1
    assert rows["pl-identical", "negative"]["accepted"] < 0.2
    (note,) = [note for note in result.content["notes"] if note.startswith("verify")]
    assert re.fullmatch(r"verify could not attack pl-learn @ 0.98 at round 3 \(own\): The norm of .* by it\.", note)
    assert any("It checks guesses, and searches for none." in line for line in result.content["verdict"])
    assert not result.content["differences"] or {row["attack"] for row in result.content["differences"]} == {"labels"}


OWN = ("verify", "own")


def test_a_run_that_has_no_fixed_norm_at_all_is_refused(tmp_path: Path, pictures: Path) -> None:
    run = train_run(tmp_path / "run", pictures, ("pl-learn",))
    with pytest.raises(AttackError, match="no guess is verified by it"):
        audit_run(run, cheap(attacks=["verify"], twins=False), snapshots=[0])


def planned_words(*arguments: Any, **named: Any) -> str:
    told: list[str] = []
    audit_run(*arguments, planned=lambda plan: told.append(plan.text()), **named)
    return " ".join(told[0].split())


def test_the_data_that_a_folder_names_are_told_before_it_is_attacked(
    trained: Path, pictures: Path, tmp_path: Path
) -> None:
    """Somebody else's folder may name what the auditor keeps to himself, and wait for its picture."""
    options, shown = cheap(attacks=["labels"]), "where the folder is not yours, name others with --public PATH"
    words = planned_words(trained, options, [0])
    told = f"The folder names data: {pictures}, public_fraction 0.6."
    assert told.replace(" ", "") in words.replace(" ", ""), "a long path is broken where the line ends"
    assert shown in words
    others = write_dataset(tmp_path / "others", 160, 16, seed=12, side=12, classes=4)
    for more in ({"public": others}, {"private": True}):
        words = planned_words(trained, options, [0], **more)
        assert "The folder names data: " in words
        assert shown not in words
    Run(tmp_path / "run", resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["none"]})).execute()
    assert "names data" not in planned_words(tmp_path / "run", options, [0])


@pytest.mark.parametrize("accuracy", ['"1\\u001b[31m"', "null", "1e999", "[1]", "true"])
def test_without_an_accuracy_there_is_no_averaged_performance(folder: Path, accuracy: str) -> None:
    result = json.loads((folder / "result.json").read_text())
    rows = json.dumps([{**row, "accuracy": 0.123456} for row in result["federations"]]).replace("0.123456", accuracy)
    (folder / "result.json").write_text(f'{{"federations": {rows}}}')
    assert audit_run(folder, cheap(attacks=["lti"]), [3]).content["cap"] == []


def test_a_run_of_a_gpu_is_audited_without_one_and_that_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "config.toml"
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "cuda"'))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    notes = audit_run(folder, cheap(attacks=["labels"]), [0]).content["notes"]
    assert any("its CPU was used" in note for note in notes)
