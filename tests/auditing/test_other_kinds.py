"""Audits beyond pictures, end to end: tables and tokens, classes, values and yes-or-no labels, and what is refused.

An undistorted update of a small model gives its examples away whatever their kind; noise far above it gives nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from equipoise.auditing.attacker import Attacker
from equipoise.auditing.audit import Audit
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.run_audit import audit_run
from equipoise.auditing.sweep_audit import audit_sweep
from equipoise.auditing.update import Update
from equipoise.auditing.update_audit import audit
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.errors import ConfigError, DataError, EquipoiseError, ModelError
from equipoise.models.batched import Batched
from tests.audit_helpers import cheap, deployed
from tests.auditing.updates import State, gradient_of, own, refuse

RELEASES, BATCH, COLUMNS, LENGTH, WORDS = 24, 4, 12, 10, 40
UNITS = torch.logspace(-1, 1, COLUMNS)
"""Of the columns of the table."""
MIDDLING = AuditOptions(candidates=20, others=8, samples=300, around=64).plain()


class Text(nn.Module):
    """The mean embedding of the tokens that are no padding, and two layers."""

    def __init__(self, outputs: int = 3):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(WORDS, 12), nn.Linear(12, 24), nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens != 0).unsqueeze(-1).to(self.head.weight.dtype)
        mean = (self.embed(tokens) * there).sum(1) / there.sum(1).clamp_min(1)
        result: Tensor = self.head(torch.tanh(self.hidden(mean)))
        return result


def rows(count: int, seed: int) -> Tensor:
    return torch.randn(count, COLUMNS, generator=torch.Generator().manual_seed(seed)) * UNITS


def texts(count: int, seed: int) -> Tensor:
    local = torch.Generator().manual_seed(seed)
    there = torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (count, 1), generator=local)
    return torch.where(there, torch.randint(1, WORDS, (count, LENGTH), generator=local), 0)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return make()


def dense(outputs: int, *more: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(COLUMNS, 48), nn.Tanh(), nn.Linear(48, outputs), *more))


class Kind(NamedTuple):
    """A model, inputs for it, their labels, and the loss of its training."""

    model: Callable[[], nn.Module]
    inputs: Callable[[int, int], Tensor]
    labels: Callable[[Tensor], Tensor]
    loss: Any = cross_entropy


KINDS = {
    "table": Kind(lambda: dense(3), rows, lambda x: (x[:, 0] > 0).long() + (x[:, 1] > 0).long()),
    "tokens": Kind(lambda: seeded(Text), texts, lambda x: x[:, 0] % 3),
    "one value": Kind(lambda: dense(1, nn.Flatten(0)), rows, lambda x: x.sum(1) / 5, mse_loss),
    "two values": Kind(lambda: dense(2), rows, lambda x: x[:, :2] * 9, mse_loss),
    "yes-or-no": Kind(lambda: dense(4), rows, lambda x: (x[:, :4] > 0).float(), binary_cross_entropy_with_logits),
    "tokens, yes-or-no": Kind(
        lambda: seeded(lambda: Text(4)), texts,
        lambda x: torch.stack([(x % 4 == part).any(1) & (x[:, 0] % 3 != part) for part in range(4)], 1).float(),
        binary_cross_entropy_with_logits,
    ),
}  # fmt: skip
NO_CLASSES = [name for name in KINDS if name not in ("table", "tokens")]


class Sent(NamedTuple):
    """Updates of a kind, the truth behind them, and what the attacker knows."""

    kind: Kind
    model: nn.Module
    gradients: list[State]
    truth: tuple[Tensor, Tensor]
    public: tuple[Tensor, Tensor]

    def update(self, **change: Any) -> Update:
        loss = None if self.kind.loss is cross_entropy else self.kind.loss
        given: dict[str, Any] = {"gradient": self.gradients, "loss": loss, **change}
        return Update(self.model, self.model.state_dict(), **given)

    def audited(self, **change: Any) -> Audit:
        options = change.pop("options", None) or AuditOptions(**MIDDLING | {"attacks": None})
        given = {"public": self.public, **change.pop("attacker", {})}
        return audit(self.update(**change.pop("update", {})), attacker=Attacker(**given), options=options,
                     **{"truth": self.truth, **change})  # fmt: skip


@cache
def sent(name: str, noise: float = 0.0) -> Sent:
    kind = KINDS[name]
    model, inputs = kind.model(), kind.inputs(RELEASES * BATCH, 7).unflatten(0, (RELEASES, BATCH))
    labels = torch.stack([kind.labels(batch) for batch in inputs])
    local = torch.Generator().manual_seed(8)
    gradients = [
        {key: part + noise * torch.randn(part.shape, generator=local) for key, part in
         gradient_of(model, x, y, kind.loss).items()}
        for x, y in zip(inputs, labels, strict=True)
    ]  # fmt: skip
    known = kind.inputs(600, 9)
    return Sent(kind, model, gradients, (inputs, labels), (known, kind.labels(known)))


@cache
def usual(name: str, noise: float = 0.0) -> Audit:
    return sent(name, noise).audited()


def row(result: Audit, attack: str) -> dict[str, Any]:
    (found,) = [row for row in own(result) if row["attack"] == attack]
    return found


# --- what leaks, and what does not -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_an_undistorted_update_gives_its_examples_away(name: str) -> None:
    result = usual(name)
    found, members = row(result, "matched"), row(result, "membership")
    assert found["identification"] > (0.8 if name in ("table", "tokens") else 0.65), "a loss near 0 shows little"
    assert found["chance"] == "1 in 20"
    assert members["membership_auc"] > 0.9
    assert not found.get("control_failed")
    assert not members.get("control_failed")


@pytest.mark.parametrize("name", KINDS)
def test_noise_far_above_the_update_leaves_chance(name: str) -> None:
    result = usual(name, 1e4)
    found, members = row(result, "matched"), row(result, "membership")
    assert found["identification_low"] < 1 / 20 < found["identification_high"]
    assert members["membership_auc_low"] < 0.5 < members["membership_auc_high"]
    assert found["control_failed"], "what is held to be undistorted is not: low figures are no evidence"


@pytest.mark.parametrize("name", KINDS)
def test_the_negative_control_is_at_chance(name: str) -> None:
    (control,) = [r for r in usual(name).rows if r["attack"] == "matched" and r["control"] == "negative"]
    assert control["chance"] == "1 in 19"
    assert control["identification_low"] < 1 / 19 < control["identification_high"]


@pytest.mark.parametrize("name", NO_CLASSES)
def test_without_classes_candidates_bring_their_own_labels_and_none_is_granted(name: str) -> None:
    """Else the label alone would tell the candidate."""
    for one in usual(name).rows:
        assert one["labels_granted"] == (one["attack"] not in ("matched", "membership"))
    assert "labels granted" not in usual(name).summary()
    assert "labels granted" in usual("table").summary()


def test_the_label_of_an_example_alone_tells_nothing_of_it() -> None:
    """Releases that are noise, and labels that single out every example: whoever looked at them would find all."""
    assert len(sent("one value").truth[1].unique()) == RELEASES * BATCH
    assert row(usual("one value", 1e4), "matched")["identification_low"] < 1 / 20


@pytest.mark.parametrize("name", ["table", "tokens", "yes-or-no", "tokens, yes-or-no"])
def test_labels_are_told(name: str) -> None:
    found = row(usual(name), "labels")
    assert found["labels"] > 0.95
    (chance,) = [r for r in usual(name).rows if r["attack"] == "labels" and r["control"] == "negative"]
    assert chance["labels"] < 0.8
    assert row(usual(name, 1e4), "labels")["labels"] < 0.6


@pytest.mark.parametrize("name", ["two values", "tokens"])
def test_a_learned_mechanism_is_set_beside_its_static_twins(name: str) -> None:
    whole = sent(name)
    few = whole._replace(gradients=whole.gradients[:2], truth=(whole.truth[0][:2], whole.truth[1][:2]))
    options = cheap(attacks=["matched", "membership"])
    result = few.audited(update={"mechanism": "pl-learn", "budget": 0.98}, options=options)
    assert {one["role"] for one in result.rows} >= {"own", "static, equal lower bound", "undistorted"}


# --- reconstruction ----------------------------------------------------------------------------------------------


def test_rows_of_a_table_are_reconstructed_in_deviations_of_their_columns() -> None:
    found = row(usual("table"), "lti")
    assert found["error_sd"] < 0.9
    assert found["correlation"] > 0.4
    assert len(found["column_error_sd"]) == COLUMNS
    assert {"mse", "mse_pixel", "psnr", "ssim", "leakage"}.isdisjoint(found)
    guesses = usual("table").content["baselines"]["given"]
    assert guesses.keys() == {"middle", "noise", "column_mean", "another_record", "class_mean"}
    assert guesses["column_mean"]["error_sd"] == pytest.approx(1.0, abs=0.1)


def test_one_example_with_a_value_is_reconstructed_by_search() -> None:
    """A single example shows itself in the first layer, whatever the loss; its value is granted."""
    kind = KINDS["one value"]
    model, x, known = kind.model(), rows(1, 3) / UNITS, rows(50, 4) / UNITS
    y = kind.labels(x)
    update = Update(model, model.state_dict(), gradient=gradient_of(model, x, y, mse_loss), loss=mse_loss)
    options = cheap(attacks=["invgrad"], iterations=400, lr=0.1)
    result = audit(update, truth=(x, y), attacker=Attacker(public=(known, kind.labels(known))), options=options)
    assert row(result, "invgrad")["correlation"] > 0.95
    assert row(result, "invgrad")["labels_granted"]
    assert result.content["baselines"]["given"].keys() == {"middle", "noise", "column_mean", "another_record"}


def test_guesses_are_verified_whatever_the_kind() -> None:
    for name in ("tokens", "two values"):
        found = row(sent(name).audited(options=AuditOptions(**MIDDLING | {"attacks": ["verify"]})), "verify")
        assert found["verified"] == 1.0
        assert found["accepted_wrongly"] == 0.0


# --- what is said ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokens", {"lti": "needs inputs that are numbers: no reconstruction of token sequences is offered"}),
        ("yes-or-no", {"lti": "needs one class for each example, and these labels are yes-or-no labels"}),
        ("two values", {"lti": "needs one class for each example, and these labels are values",
                        "labels": "needs labels that can be counted, and these are values"}),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_left_out_with_a_sentence(name: str, words: dict[str, str], tmp_path: Path) -> None:
    result = usual(name)
    assert result.content["left_out"] == words
    flat = " ".join(result.summary().split())
    for attack, why in words.items():
        assert f"Left out: {attack} ({why})." in flat
    assert [path.name for path in result.save(tmp_path)] == ["audit.json"]
    text = (tmp_path / "audit.json").read_text()
    assert json.loads(text, parse_constant=refuse)["kind"] == ("tokens" if name == "tokens" else "table")
    assert "image" not in text.replace("distinct_images", "")
    assert "picture" not in text.replace('"pictures"', "")


@pytest.mark.parametrize(
    ("name", "attack", "words"),
    [
        *(("tokens", attack, "inputs that are numbers")
          for attack in ("invgrad", "dlg", "idlg", "likelihood", "unrolled", "lti")),
        ("one value", "dlg", "one class for each example"), ("yes-or-no", "idlg", "one class for each example"),
        ("one value", "labels", "labels that can be counted"),
    ],
)  # fmt: skip
def test_an_attack_that_is_named_and_cannot_run_is_refused(name: str, attack: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{attack} needs {words}") as caught:
        sent(name).audited(options=cheap(attacks=[attack]))
    assert caught.value.remedy == "Leave the attack out."


def test_tokens_without_public_ones_cannot_be_attacked() -> None:
    with pytest.raises(
        ConfigError, match=r"No attack can run: .*public inputs.* invgrad needs inputs that are numbers"
    ):
        sent("tokens").audited(attacker={"public": None})


REFUSED: list[tuple[str, dict[str, Any], type[EquipoiseError], str]] = [
    ("one value", {"update": {"loss": None}}, ConfigError, "cross-entropy, the usual loss"),
    ("one value", {"attacker": {"labels": "infer"}}, DataError, "are not inferred"),
    ("one value", {"update": {"loss": lambda out, y: (out - y) ** 2}}, ModelError, "expected one number"),
    ("two values", {"update": {"loss": lambda out, y: mse_loss(out, y[:, :5].view(-1, 5))}}, ModelError, "loss"),
    ("tokens", {"attacker": {"public": (rows(60, 1)[:, :LENGTH], torch.arange(60) % 3)}}, DataError, "tokens"),
    ("table", {"attacker": {"public": (texts(60, 1), torch.arange(60) % 3)}}, DataError, "tokens"),
]


@pytest.mark.parametrize(("name", "change", "error", "words"), REFUSED, ids=lambda value: "")
def test_what_does_not_fit_is_refused(name: str, change: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        sent(name).audited(**{**change, "options": cheap(attacks=["matched"])})


def test_a_row_beyond_the_range_of_public_ones_is_no_error_and_a_picture_is() -> None:
    few = sent("table")
    far = few.truth[0].clone()
    far[0, 0, 0] = 1e3
    assert few.audited(truth=(far, few.truth[1]), options=cheap(attacks=["matched"])).rows
    with pytest.raises(DataError, match="lies outside"):
        few.audited(truth=(far, few.truth[1]), attacker={"public": None}, options=cheap(attacks=["invgrad"]))


# --- runs --------------------------------------------------------------------------------------------------------


def dataset(name: str) -> Dataset:
    kind = KINDS[name]
    parts = [(kind.inputs(count, seed), kind.labels(kind.inputs(count, seed))) for count, seed in ((60, 1), (900, 2))]
    return from_tensors(parts[0], parts[0], public=parts[1], name=name)


@pytest.mark.parametrize("name", ["table", "tokens"])
def test_a_federation_on_other_data_is_attacked(name: str) -> None:
    data, model = dataset(name), KINDS[name].model()
    batched = Batched(model)
    weights = {0: batched.layout.flatten(model.state_dict()).unsqueeze(0)}
    attacks = ["matched", "membership", "labels", *(["lti"] if name == "table" else [])]
    options = AuditOptions(**MIDDLING | {"attacks": attacks, "releases": 20, "label_sets": 1})
    settings = Settings.flat(batch=4)
    found = audit_sweep(settings, [Federation(name, "pl-identical", 0.98)], {name: data}, batched, weights, options)
    plain = {one["attack"]: one for one in found.rows if one["control"] == "positive"}
    assert plain["matched"]["identification"] > 0.9
    assert plain["membership"]["membership_auc"] > 0.9
    assert ("lti" in plain) == (name == "table")
    assert all(one.pictures is None for one in found.outcomes)
    assert bool(found.baselines[name]) == (name == "table")


@pytest.mark.parametrize(("name", "thing"), [("table", "record"), ("tokens", "sequence")])
def test_a_deployment_on_other_data_is_spoken_of_in_its_own_words(name: str, thing: str, tmp_path: Path) -> None:
    kind, model = KINDS[name], KINDS[name].model()
    folder = deployed(tmp_path, {0: dict(model.state_dict()), 1: dict(model.state_dict())}, {"mean": 0.0, "std": 1.0})
    public = (kind.inputs(400, 2), kind.labels(kind.inputs(400, 2)))
    usually = AuditOptions(**{**cheap().plain(), "attacks": None})
    result = audit_run(folder, usually, snapshots=[0], public=public, model=model)
    assert result.content["kind"] == name
    assert (result.content["left_out"].keys() == {"lti"}) == (name == "tokens")
    assert f"of public {thing}s at" in result.content["attacked"]
    said = " ".join(result.content["verdict"])
    assert thing in said
    assert "image" not in said
    assert "picture" not in said
    if name == "tokens":
        with pytest.raises(ConfigError, match="lti needs inputs that are numbers"):
            audit_run(folder, cheap(attacks=["lti"]), snapshots=[0], public=public, model=model)
