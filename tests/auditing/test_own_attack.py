"""An attack of one's own is one file: registered, it is run by every audit, and its option is set and checked."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.attack.registry import ATTACKS
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.run_audit import audit_run
from equipoise.errors import ConfigError
from tests.audit_helpers import cheap
from tests.auditing.updates import Call, own

FILE = Path(__file__).with_name("own_attack.py")


@pytest.fixture(autouse=True)
def _class_mean() -> None:
    """Registered for one test: ``_attacks`` takes it away again."""
    assert "class-mean" not in ATTACKS
    runpy.run_path(str(FILE))


def test_it_is_short() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) < 40


def test_it_takes_part_in_the_audit_of_a_run(trained: Path) -> None:
    told: list[str] = []
    result = audit_run(
        trained, cheap(attacks=["class-mean", "labels"]), [0], progress=lambda what, _: told.append(what)
    )
    mine = [row for row in result.rows if row["attack"] == "class-mean"]
    assert [(row["mechanism"], row["role"], row["control"]) for row in mine if row["mechanism"] == "pl-identical"] == [
        ("pl-identical", role, control)
        for role, one in (("own", None), ("undistorted", "positive")) for control in (one, "negative")
    ]  # fmt: skip
    (guesses,) = result.content["baselines"].values()
    for row in mine:
        if row["control"] != "negative":
            assert row["mse"] == pytest.approx(guesses["class_mean"]["mse"], rel=1e-5), "it looks at no release"
    assert result.content["options"]["averaged"] == 100
    assert any(what.endswith(": class-mean") for what in told)
    assert any(section.title.endswith("class-mean") for section in result.sections)


def test_it_takes_part_in_the_audit_of_an_update(call: Call, public: Any) -> None:
    result = call(public=public, options=cheap(attacks=["class-mean"]))
    (row,) = own(result)
    assert row["mse"] == pytest.approx(result.content["baselines"]["given"]["class_mean"]["mse"], rel=1e-5)
    assert result.reconstructions["class-mean"].shape == (1, 2, 1, 6, 6)


def test_it_needs_no_truth_but_public_images(call: Call, public: Any) -> None:
    result = call(public=public, truth=None, examples=2, options=cheap(attacks=["class-mean"]))
    assert list(result.reconstructions) == ["class-mean"]
    with pytest.raises(ConfigError, match="class-mean needs public inputs"):
        call(options=cheap(attacks=["class-mean"]))


def test_its_option_reaches_it(call: Call, public: Any) -> None:
    """Half of the public images, label after label, serve the attacks: the first of a label is the first of all."""
    actual = call(public=public, options=cheap(attacks=["class-mean"], averaged=1)).reconstructions["class-mean"]
    images, labels = public
    expected = torch.stack([images[labels == label][0] for label in (0, 2)])
    assert torch.equal(actual[0], expected)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, r"averaged=0 \(at least 1\)"), ("all", "averaged='all' to be of type int"), (1.5, "of type int")],
)
def test_its_option_is_checked(value: Any, words: str) -> None:
    assert AuditOptions().settings["averaged"] == 100
    with pytest.raises(ConfigError, match=words):
        AuditOptions(averaged=value).check()


def test_without_it_its_name_and_its_option_are_unknown() -> None:
    ATTACKS.pop("class-mean")
    with pytest.raises(ConfigError, match="Unknown attack 'class-mean'"):
        AuditOptions(attacks=["class-mean"]).check()
    with pytest.raises(ConfigError, match="Unknown attack option 'averaged'"):
        AuditOptions(averaged=3).check()
