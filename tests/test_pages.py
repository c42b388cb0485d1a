"""The code of the pages on guarantees runs as it stands there, and numbers in its comments are what it gives."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import GaussianSettings, ProtectionSettings, protected_step
from equipoise.engine.recommended import RECIPES
from equipoise.privacy.guarantee import guarantee, percent_up

DOCS = Path(__file__).parents[1] / "docs"
TOLD = re.compile(r"^(\S.*?)  # (-?\d[\d.]*)(?=[:;, ]|$)", re.MULTILINE)
"""A line of code whose comment begins with its value."""


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def values(code: str, names: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Expressions of a block with the number beside each, and what each gives, to as many digits."""
    found = [(line, told) for line, told in TOLD.findall(code) if _is_expression(line)]
    return [(line, float(told), round(float(eval(line, names)), _digits(told))) for line, told in found]


def _is_expression(line: str) -> bool:
    try:
        ast.parse(line, mode="eval")
    except SyntaxError:
        return False
    return True


def _digits(number: str) -> int:
    return len(number.rstrip(".").partition(".")[2])


def run(page: str) -> list[tuple[str, float, float]]:
    """All blocks of a page, one after the other, as a reader would type them."""
    names: dict[str, Any] = {}
    told = []
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)
        told += values(code, names)
    return told


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        ("gaussian_dp.md", 2),
        ("guarantee.md", 3),
        ("features.md", 0),
        ("from_opacus.md", 2),
        ("models.md", 0),
        ("data.md", 1),
    ],
)
def test_the_code_of_a_page_runs_and_gives_its_numbers(page: str, numbers: int) -> None:
    told = run(page)
    assert len(told) == numbers
    assert [(line, stated) for line, stated, _ in told] == [(line, given) for line, _, given in told]


def test_a_wrong_number_would_be_noticed() -> None:
    assert values("x = 1  # 3\n1 + 1  # 2.01: two\nx  # one\n", {"x": 1}) == [("1 + 1", 2.01, 2.0)]


def changed(page: str, name: str) -> str:
    """The file that a diff leads to: its unchanged lines and the new ones."""
    (body,) = re.findall(rf"```diff\n # {re.escape(name)}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    lines = body.splitlines()
    assert all(line[:1] in " +-" for line in lines if line)
    return "\n".join(line[1:] for line in lines if not line.startswith("-"))


def test_the_change_from_opacus_works() -> None:
    code = changed("from_opacus.md", "client.py")
    assert code.count("range(1, 101)") == 1
    names: dict[str, Any] = {}
    exec(code.replace("range(1, 101)", "range(99, 101)"), names)  # each of the hundred is like these
    assert names["sent"].keys() == names["model"].state_dict().keys()
    assert all(torch.isfinite(tensor).all() for tensor in names["sent"].values())
    assert not torch.equal(names["sent"]["1.weight"], names["received"]["1.weight"])
    assert names["gaussian"].sigma(2.0) == pytest.approx(5.149067)


def test_frozen_layers_are_passed_as_the_page_on_opacus_says() -> None:
    """Its expression, taken from the table, gives what protected_step takes and sends."""
    (row,) = re.findall(
        r"^\| layers with `requires_grad=False` .*$", (DOCS / "from_opacus.md").read_text(), re.MULTILINE
    )
    (expression,) = re.findall(r"`(\{.*?\})`", row)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    model[1].requires_grad_(False)
    received = eval(expression, {"model": model})
    settings = ProtectionSettings(eta=1.0, gaussian=GaussianSettings(rounds=5, divisor=10))
    batch = torch.rand(12, 2, 2), torch.arange(12) % 2
    sent = protected_step(model, received, batch, "gaussian-dp", 2.0, settings=settings, round_number=1).parameters
    assert sent.keys() == {"2.weight", "2.bias"}
    assert not torch.equal(sent["2.weight"], received["2.weight"])


def test_a_head_on_computed_features_sends_what_the_model_would() -> None:
    names: dict[str, Any] = {}
    for code in blocks("features.md"):
        exec(code, names)
    settings, labels = names["settings"], names["labels"]
    with_images, with_features = (
        protected_step(
            model, names["received"], (inputs, labels), "gaussian-dp", 2.0,
            settings=settings, round_number=1, experiment_seed=1,
        ).parameters
        for model, inputs in ((names["model"], names["images"]), (names["head"], names["computed"]))
    )  # fmt: skip
    assert with_images.keys() == with_features.keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(with_images[name], with_features[name]) for name in with_images)


def test_divisors_of_examples_are_not_the_number_of_records() -> None:
    names: dict[str, Any] = {}
    for code in (*blocks("gaussian_dp.md"), changed("from_opacus.md", "client.py").partition("sent = ")[0]):
        exec(code, names)
        divisor = (names.get("gaussian") or names["settings"].gaussian).divisor
        assert divisor != len(names["y"])
        assert divisor == pytest.approx(len(names["y"]), rel=0.1)


def test_delta_costs_the_noise_that_the_page_says() -> None:
    text = " ".join((DOCS / "guarantee.md").read_text(encoding="utf-8").split())
    first, second, third = (f"{GaussianSettings(rounds=50, delta=d).sigma(2.0):.1f}" for d in (1e-5, 1e-6, 1e-7))
    assert f"sigma is {first} for 1e-5, {second} for 1e-6 and {third} for 1e-7" in text


def test_the_recipe_is_the_one_that_was_chosen() -> None:
    """The table of values of the page on tuning."""
    page = (DOCS / "tuning_gaussian_dp.md").read_text(encoding="utf-8")
    for model, recipe in RECIPES.items():
        (row,) = re.findall(rf"^\| {model}\b[^|]*\|(.*)\|$", page.partition("## The values")[2][:900], re.MULTILINE)
        rounds, clip, momentum, _, drift, largest = (cell.strip() for cell in row.split("|"))
        stated = tuple(map(float, (rounds, clip, momentum, drift, largest)))
        assert stated == (recipe.rounds, recipe.clip, recipe.momentum, recipe.drift, recipe.largest_rate)


def test_tables_in_toml_are_toml() -> None:
    for page in DOCS.glob("*.md"):
        for text in blocks(page.name, "toml"):
            assert tomllib.loads(text)


def test_the_readme_names_the_limit_of_its_epsilon() -> None:
    text = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    found = guarantee(epsilon=2.0, delta=1e-5, rounds=50).identification
    assert f"one of 200 equally likely candidates with at most {percent_up(found.run)} (blindly: 0.5 %)" in text
