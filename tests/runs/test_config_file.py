"""What a configuration may hold before anything is known of its meaning, in a folder from elsewhere above all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from equipoise.errors import ConfigError
from equipoise.runs.config import SweepBlock, literal, resolve, stored

NONE = {"mechanisms": ["none"]}


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return file


HUGE = f"0x{'f' * 5000}"
"""A whole number that Python reads and refuses to print."""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"threads = {HUGE}", "threads"),
        (f"rounds = {HUGE}", "rounds"),
        ("rounds = 9223372036854775808", "rounds"),
        (f"snapshots = [0, {HUGE}]", "snapshots.1"),
        (f"[gaussian]\nrounds = {HUGE}", "gaussian.rounds"),
        (f"[[sweep]]\nseeds = [-{9 * 10**30}]", "sweep.0.seeds.0"),
        (f"[[sweep]]\nbudgets = [{{rounds = [1], values = [{HUGE}]}}]", "sweep.0.budgets.0.values.0"),
    ],
)
def test_whole_numbers_beyond_64_bits_are_refused_by_name(tmp_path: Path, text: str, name: str) -> None:
    file, words = written(tmp_path, text), f"^Expected {name} to be a whole number of at most 64 bits"
    with pytest.raises(ConfigError, match=words):
        stored(file)
    with pytest.raises(ConfigError, match=words):
        resolve(file)


def test_they_are_refused_on_the_command_line_too() -> None:
    with pytest.raises(ConfigError, match=r"Expected rounds to be .* at most 64 bits"):
        resolve(overrides={"rounds": literal(HUGE)}, sweep=NONE)
    with pytest.raises(ConfigError, match=r"Expected seeds\.0 to be .* at most 64 bits"):
        resolve(sweep={**NONE, "seeds": [2**63]})
    assert resolve(sweep={**NONE, "seeds": [2**63 - 1]}).federations()[0].seed == 2**63 - 1


@pytest.mark.parametrize("part", ["a", '"a"', "'.'", '"\\""', "a . b", '""'])
@pytest.mark.parametrize("start", ["", "gamma.", "'\"'.", 'x = """ " """"\n', "[deployment.", "[[", "x = {y."])
def test_long_keys_are_refused_before_they_are_read(tmp_path: Path, part: str, start: str) -> None:
    """The library takes the square of their length: for so many, a minute."""
    with pytest.raises(ConfigError, match="nests more than 20 deep"):
        stored(written(tmp_path, f"{start}{'.'.join([part] * 100_000)}"))


def test_what_nests_otherwise_is_refused(tmp_path: Path) -> None:
    for text in (f"gamma = {'[' * 30}{']' * 30}", f"gamma = {'{a=' * 30}1{'}' * 30}"):
        with pytest.raises(ConfigError, match=r"gamma.* is nested more than 20 deep"):
            stored(written(tmp_path, text))


def test_dots_elsewhere_are_no_keys(tmp_path: Path) -> None:
    dots = ".".join(["a"] * 50)
    text = f"# {dots}\nsizes = [{', '.join(['0.25'] * 50)}]\nmodel = '{dots}'\n"
    with pytest.raises(ConfigError) as caught:
        stored(written(tmp_path, text))
    assert f"Unknown model '{dots}'" in str(caught.value)


def test_a_product_of_lists_is_counted_before_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = f"budgets = {[0.5 + i / 10_000 for i in range(101)]}\nseeds = {list(range(100))}"
    for blocks in (f"[[sweep]]\n{lists}", f"[[sweep]]\nseeds = [1]\n[[sweep]]\n{lists}"):
        with monkeypatch.context() as patch:
            patch.setattr(SweepBlock, "federations", lambda block: pytest.fail("built"))
            with pytest.raises(ConfigError, match=r"come to 10,10\d federations; a run may have 10,000"):
                stored(written(tmp_path, f'{blocks}\nmechanisms = ["pl-identical"]'))
    assert SweepBlock(seeds=list(range(10_000))).most() == 10_000
    assert SweepBlock(budgets=[0.9, 0.98], seeds=[1, 2, 3]).most() == 6


def test_the_file_of_a_folder_is_plain_and_of_a_moderate_size(tmp_path: Path) -> None:
    there = written(tmp_path, "rounds = 3\n[[sweep]]\nmechanisms = ['none']")
    link = tmp_path / "config.toml"
    link.symlink_to(there)
    with pytest.raises(ConfigError, match=r"Cannot use config\.toml: .* is a link"):
        stored(link)
    assert resolve(link).settings.training.rounds == 3, "a file that the user named may be a link"
    there.write_text(f"# {'x' * 2**22}\n{there.read_text()}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"Cannot use settings\.toml: .* has 41943\d\d bytes"):
        stored(there)
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(ConfigError, match="no plain file"):
        stored(link)
