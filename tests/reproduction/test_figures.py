"""Every figure is drawn from results alone, is well-formed SVG, and says when it is no result."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import ConfigError
from equipoise.reproduction import figures
from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.claims import Tables
from tests.reproduction.synthetic import SCALE, records_of

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = [name for name in ARTEFACTS if name != "configuration"]


def words(svg: str) -> list[str]:
    """What a reader reads: texts are kept as text."""
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_artefact_of_the_paper_has_a_figure() -> None:
    assert [name for name, artefact in ARTEFACTS.items() if artefact.draw] == DRAWN
    assert figures.svg(ARTEFACTS["configuration"], {"scale": "full"}) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_quick_figure_is_well_formed_and_marked(quick_page: Path, name: str) -> None:
    svg = (quick_page / name / "figure.svg").read_text()
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    assert "QUICK: not a result" in words(svg)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("accuracy-ls", {"mnist", "fmnist", "budget", "80", "800", "learned", "static, paper", "no protection"}),
        ("accuracy-pl", {"0.96", "0.995", "static, eleven steps", "static, damped server"}),
        ("gaps", {"gap in MSE", "ours", "paper"}),
        ("clients", {"client 1", "client 4", "pl-learn"}),
        ("layers", {"conv1.w", "fc.b", "before learning", "after"}),
        ("reconstructions", {"original", "none", "ls-learn 200", "pl-identical 0.98", "mnist", "fmnist"}),
        ("stepwise", {"ls-static, its mini-batch", "ls-learn, all its data"}),
        ("gradient-norm", {"600: average so far", "1000: at the round"}),
        ("sweeps", {"M", "gamma", "0.01"}),
    ],
)
def test_a_figure_names_what_it_shows(quick_page: Path, name: str, said: set[str]) -> None:
    assert said <= set(words((quick_page / name / "figure.svg").read_text()))


@pytest.mark.parametrize("name", ["cap", "gaps"])
def test_a_full_figure_is_not_marked_and_is_drawn_alike_twice(synthetic: Tables, name: str) -> None:
    one, two = (figures.svg(ARTEFACTS[name], {**synthetic[name], "scale": "full"}) for _ in range(2))
    assert one is not None
    assert one == two, "no dates, no random identifiers"
    assert "QUICK" not in one


def test_figures_follow_the_numbers(synthetic: Tables) -> None:
    result = {**synthetic["cap"], "scale": "full"}
    other = {**result, "cells": [{**cell, "mean": cell["mean"] / 2} for cell in result["cells"]]}
    assert figures.svg(ARTEFACTS["cap"], result) != figures.svg(ARTEFACTS["cap"], other)


def test_a_missing_matplotlib_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    figures.check_available()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"-e '\.\[paper\]'.*--no-figures"):
        figures.check_available()


def test_one_seed_is_drawn_without_a_deviation() -> None:
    records = records_of(scale=replace(SCALE, seeds=(1,)))
    result: dict[str, Any] = {**ARTEFACTS["cap"].score(records), "scale": "full"}
    assert result["cells"][0]["sd"] is None
    assert figures.svg(ARTEFACTS["cap"], result)
