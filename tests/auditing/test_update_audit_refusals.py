"""What ``audit`` of an update refuses, with words that say what to give instead."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.auditing import update_audit
from equipoise.auditing.attacker import Attacker
from equipoise.auditing.options import USUAL, AuditOptions
from equipoise.auditing.update import Update
from equipoise.auditing.update_audit import audit
from equipoise.errors import AttackError, ConfigError, DataError, EquipoiseError, ModelError, ReleaseError
from equipoise.mechanism.protection import ProtectionSettings
from tests.audit_helpers import cheap
from tests.auditing.updates import CLASSES, SHAPE, Call, gradient_of, numbers


def test_either_a_state_or_a_gradient_is_needed(call: Call, model: nn.Module) -> None:
    for more in ({}, {"shape": SHAPE}):
        with pytest.raises(ConfigError, match="after= or gradient="):
            call(after=model.state_dict(), gradient=model.state_dict(), **more)
        with pytest.raises(ConfigError, match="after= or gradient="):
            call(gradient=None, after=None, **more)


@pytest.mark.parametrize("which", ["before", "after", "gradient"])
def test_tensors_that_are_missing_or_of_another_shape_are_named(call: Call, model: nn.Module, which: str) -> None:
    state = model.state_dict()
    del state["1.bias"]
    with pytest.raises(ModelError, match=r"Missing tensors: 1\.bias"):
        call(**{which: state})
    state = model.state_dict()
    state["1.weight"] = state["1.weight"][:3]
    with pytest.raises(ModelError, match=r"1\.weight \(3, 36\) instead of \(12, 36\)"):
        call(**{which: state})


@pytest.mark.parametrize("which", ["before", "after", "gradient"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_refused(
    call: Call, model: nn.Module, public: Any, which: str, value: float
) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["3.bias"][1] = value
    for attack in ("invgrad", "lti", "matched", "membership", "labels"):
        with pytest.raises(ReleaseError, match="not finite"):
            call(**{which: state}, public=public, options=cheap(attacks=[attack]))
    with pytest.raises(ReleaseError, match="not finite"):
        call(**{which: state}, labels="infer")


def test_a_list_of_updates_is_refused_with_the_form_that_works(model: nn.Module, batch: Any) -> None:
    before, changed = model.state_dict(), gradient_of(model, *batch)
    after = {name: before[name] - 0.1 * slope for name, slope in changed.items()}
    several: Any = [Update(model, before, after)] * 2
    with pytest.raises(ConfigError, match="Expected an Update to audit, got list") as refused:
        audit(several)
    assert "Update(model, before, [after1, after2, ...])" in refused.value.remedy
    assert "truth=(inputs [N, E, ...], labels [N, E])" in refused.value.remedy
    inputs, labels = (part.expand(2, *part.shape) for part in batch)
    result = audit(Update(model, before, [after, after]), truth=(inputs, labels), options=cheap(attacks=["invgrad"]))
    assert result.rows[0]["targets"] == 2


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("beyond", [(-0.5, 1.0), (0.0, 3.0)], ids=["below", "above"])
def test_a_truth_outside_the_bounds_is_refused(
    call: Call, batch: Any, public: Any, known: bool, beyond: tuple[float, float]
) -> None:
    """The attacker does not know the range of the truth: it is not widened for it."""
    truth = beyond[0] + batch[0] * (beyond[1] - beyond[0])
    more: dict[str, Any] = {"public": public} if known else {}
    with pytest.raises(DataError, match=r"Part of the truth lies outside .*bounds="):
        call(truth=(truth, batch[1]), **more)
    assert call(truth=(truth, batch[1]), bounds=beyond, **more).rows


@pytest.mark.parametrize("known", [False, True])
def test_bounds_are_those_of_the_public_inputs_and_never_of_the_truth(
    call: Call, batch: Any, public: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    genuine = update_audit.attack_cell

    def watching(cell: Any, *rest: Any) -> Any:
        seen.append(cell.server)
        return genuine(cell, *rest)

    monkeypatch.setattr(update_audit, "attack_cell", watching)
    wide = 3 * public[0] - 1
    for truth in (batch[0], batch[0] / 2, torch.full_like(batch[0], 0.25)):
        call(truth=(truth, batch[1]), **({"public": (wide, public[1])} if known else {}))
    expected = (float(wide.min()), float(wide.max())) if known else (0.0, 1.0)
    assert [(server.low, server.high) for server in seen] == [expected] * 3


X, Y = numbers(2, *SHAPE), torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"labels": Y + 1}, DataError, r"0\.\.2, got 1\.\.3"),
        ({"labels": Y - 1}, DataError, r"0\.\.2, got -1\.\.1"),
        ({"labels": Y.int()}, DataError, "int64"),
        ({"labels": Y.float()}, DataError, "int64"),
        ({"labels": Y.expand(3, 2)}, DataError, "labels of shape"),
        ({"labels": [0, 2]}, DataError, "labels"),
        ({"labels": torch.tensor(1)}, DataError, "labels"),
        ({"labels": "guess"}, DataError, '"infer" or a tensor'),
        ({"labels": Y[:1]}, DataError, "disagree on the number of examples: 2, 1"),
        ({"examples": 3}, DataError, "disagree on the number of examples: 2, 2, 3"),
        ({"labels": Y[:0], "truth": None, "shape": SHAPE}, DataError, "how many examples are behind"),
        ({"truth": None, "shape": SHAPE}, DataError, r"Attacker\(examples=\)"),
        ({"truth": None, "shape": SHAPE, "examples": 0}, DataError, "examples=0"),
        ({"truth": None, "shape": SHAPE, "examples": 2.0}, DataError, "examples=2.0"),
        ({"truth": X}, DataError, r"a pair \(inputs, labels\)"),
        ({"truth": (X, None)}, DataError, "labels of the truth"),
        ({"truth": (X, [0, 2])}, DataError, "labels of the truth"),
        ({"truth": (X, Y + 1)}, DataError, r"0\.\.2, got 1\.\.3"),
        ({"truth": (X, Y.int())}, DataError, "int64"),
        ({"truth": (X, Y.expand(3, 2))}, DataError, "labels of shape"),
        ({"gradient": [], "shape": SHAPE}, ReleaseError, "no update"),
        ({"truth": (numbers(4, *SHAPE), Y)}, DataError, "Expected a truth of"),
        ({"truth": (numbers(2, 1, 5, 5), Y), "shape": SHAPE}, DataError, "Expected a truth of"),
        ({"truth": (numbers(2, 1, 5, 5), Y)}, EquipoiseError, r"\(2, 1, 5, 5\)"),
        ({"truth": (X * float("nan"), Y)}, DataError, "finite"),
        ({"truth": (X.numpy(), Y)}, DataError, "truth"),
        ({"truth": None, "labels": Y}, ConfigError, "shape of one input is not known"),
        ({"truth": None, "labels": Y, "shape": (1, 5, 5)}, ModelError, "forward failed"),
        ({"mechanism": "pl-learn"}, ConfigError, "'pl-learn' needs a budget"),
        ({"budget": 0.98}, ConfigError, "'none' takes no budget"),
        ({"mechanism": "pl-lern", "budget": 0.98}, ConfigError, "Did you mean 'pl-learn'"),
        ({"mechanism": "pl-learn", "budget": 1.2}, EquipoiseError, "budget"),
        ({"settings": ProtectionSettings(local_steps=3)}, DataError, "equal local steps"),
        ({"settings": ProtectionSettings(eta=0.0)}, ConfigError, "eta=0.0"),
        ({"settings": {"eta": 0.1}}, ConfigError, "settings of a release, got dict"),
        ({"model": "mlp"}, ConfigError, "got str"),
        ({"bounds": (1.0, 0.0)}, EquipoiseError, "bounds"),
        ({"bounds": (float("nan"), 1.0)}, EquipoiseError, "bounds"),
        ({"options": AuditOptions(attacks=["invgard"])}, ConfigError, "Did you mean 'invgrad'"),
        ({"options": AuditOptions(attacks=["lti"])}, ConfigError, "lti needs public"),
        ({"bounds": 1.0}, ConfigError, "bounds"),
        ({"options": AuditOptions(iterations=0)}, ConfigError, "iterations=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_audited_is_refused(
    call: Call, change: dict[str, Any], error: type[EquipoiseError], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(**change)


def test_an_update_that_did_not_move_is_refused(call: Call, model: nn.Module) -> None:
    """Whoever keeps the model's own state dict as the start has none to compare with."""
    with pytest.raises(AttackError, match=r"Release\(s\) 0 equal the weights they started from") as caught:
        call(after=model.state_dict())
    assert "copy state_dict() before training" in caught.value.remedy


def test_updates_and_starts_must_pair(call: Call, model: nn.Module, batch: Any) -> None:
    update = gradient_of(model, *batch)
    with pytest.raises(ReleaseError, match="2 states before 3 updates"):
        call(before=[model.state_dict()] * 2, gradient=[update] * 3, shape=SHAPE)


def test_matched_needs_the_truth_to_look_for(call: Call, public: Any) -> None:
    with pytest.raises(ConfigError, match="truth="):
        call(truth=None, public=public, options=cheap(attacks=["matched"]))


@pytest.mark.parametrize(
    ("rows", "able", "words"),
    [
        ([0], ["invgrad"], "public inputs of every label"),
        ([0, 3, 6, 9, 12, 15], ["invgrad"], "public inputs of every label"),
        ([0, 2, 3, 6, 9], ["lti", "labels"], "4 public inputs of every label"),
        ([0, 3, 6, 9, 2, 5, 8], ["lti", "labels"], "4 public inputs of every label"),
        ([0, 3, 6, 9, 2, 5, 8, 11], list(USUAL), ""),
    ],
    ids=["one", "one label", "one of a label", "three of a label", "four of each"],
)
def test_with_few_public_inputs_of_a_label_attacks_are_left_out_or_refused(
    call: Call, public: Any, rows: list[int], able: list[str], words: str
) -> None:
    given = public[0][rows], public[1][rows]
    result = call(public=given, bounds=(0.0, 1.0), options=cheap(candidates=200, others=20))
    assert list(dict.fromkeys(row["attack"] for row in result.rows)) == able
    assert [name for name in USUAL if name not in able] == list(result.content["left_out"])
    unable = [name for name in USUAL if name not in able]
    if unable:
        assert re.search(words, result.content["left_out"]["matched"])
        with pytest.raises(ConfigError, match=f"{unable[0]} needs {words}"):
            call(public=given, bounds=(0.0, 1.0), options=cheap(attacks=list(USUAL)))
    else:
        assert "sought among 3 candidates, not 200" in result.content["notes"][0]
        assert "told from 4 others, not 20" in result.content["notes"][1]


@pytest.mark.parametrize(
    ("public", "words"),
    [
        (X, "pair of tensors"), ((X, [0, 2]), "pair of tensors"), ((X[:0], Y[:0]), "no public inputs"),
        (((X * 255).byte(), Y), "floating point"), ((X, Y[:1]), r"labels \[Q\]"), ((X, Y.int()), "int64 labels"),
        ((X * float("inf"), Y), "not finite"), ((X[:, :, :5], Y), "forward failed"), ((X, Y + 1), "got 1..3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_public_data_that_are_none_are_refused(call: Call, public: Any, words: str) -> None:
    with pytest.raises(EquipoiseError, match=words):
        call(public=public)


def test_only_an_update_is_audited(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"audit\(Update\(model, before, after\)"):
        audit(model)  # type: ignore[arg-type]


class Rounded(nn.Module):
    """Its gradient depends on the inputs in steps, of which every derivative is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc((4 * x.flatten(1)).round())
        return out


def test_a_model_that_cannot_be_differentiated_twice_is_refused(call: Call, batch: Any) -> None:
    model = Rounded()
    with pytest.raises(ModelError, match="use lti, matched or membership"):
        call(model=model, before=model.state_dict(), gradient=gradient_of(model, *batch))


class Named(nn.Module):
    """Returns its outputs by name, as many models of text do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.fc(x.flatten(1))}


@pytest.mark.parametrize("loss", [None, lambda outputs, labels: nn.functional.cross_entropy(outputs["logits"], labels)])
def test_a_model_whose_outputs_are_no_tensor_is_refused_and_the_remedy_works(call: Call, batch: Any, loss: Any) -> None:
    model = Named()
    gradient = gradient_of(model, *batch, lambda outputs, y: nn.functional.cross_entropy(outputs["logits"], y))
    with pytest.raises(ModelError, match="returns dict; an audit needs the tensor of its outputs") as caught:
        call(model=model, before=model.state_dict(), gradient=gradient, loss=loss)
    assert "outputs: outputs['logits'])" in caught.value.remedy
    model.register_forward_hook(lambda module, inputs, outputs: outputs["logits"])
    assert call(model=model, before=model.state_dict(), gradient=gradient).rows


def test_a_model_with_running_statistics_is_refused(call: Call) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, CLASSES))
    with pytest.raises(ModelError, match="BatchNorm1d"):
        call(model=model, before=model.state_dict(), gradient=model.state_dict())


def test_a_model_without_trainable_parameters_is_refused(call: Call, model: nn.Module, batch: Any) -> None:
    update = gradient_of(model, *batch)
    with pytest.raises(ModelError, match="no trainable parameters"):
        call(model=model.requires_grad_(False), gradient=update)


def test_labels_that_were_not_granted_are_not_told_by_what_is_missing(model: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = {name: tensor + 0.01 for name, tensor in before.items()}
    attacker = Attacker(public=(numbers(8, *SHAPE), torch.zeros(8, dtype=torch.int64)), labels="infer")
    result = audit(
        Update(model, before, after), truth=(X, torch.tensor([2, 2])), attacker=attacker,
        options=AuditOptions(attacks=["invgrad"], iterations=2),
    )  # fmt: skip
    assert "label 2" not in json.dumps(result.content) + result.summary()


def test_options_that_are_none_are_refused_by_type(call: Call) -> None:
    with pytest.raises(ConfigError, match="Expected options to be AuditOptions, got dict"):
        call(options={"iterations": 5})
