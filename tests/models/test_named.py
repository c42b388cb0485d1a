"""Models by name: bundled, imported, built by a function, or given as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from equipoise.errors import ConfigError, ModelError
from equipoise.models.named import imported, model_of

TASK = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(4, 2))
def sized(width):
    return nn.Linear(width, 2)
def broken():
    raise ValueError("the password is swordfish")
def number():
    return 7
size = 7
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the present folder, as that of an app is."""
    (tmp_path / "task_of_test.py").write_text(TASK)
    (tmp_path / "torn_of_test.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    for name in ("task_of_test", "torn_of_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "task_of_test"


def built(model: Any) -> nn.Module:
    return model_of(model, (1, 2, 2), 3)


def test_a_bundled_model_is_built_for_the_images() -> None:
    assert built("mlp").fc2.out_features == 3
    with pytest.raises(ConfigError, match="Did you mean 'mlp'"):
        built("mpl")


def test_a_module_in_the_present_folder_is_found_and_the_path_is_as_before(task: str) -> None:
    before = list(sys.path)
    assert type(built(f"{task}:Net")).__name__ == "Net"
    assert sys.path == before


def test_functions_and_modules_are_taken_as_they_are() -> None:
    model = nn.Linear(4, 3)
    assert built(model) is model
    assert built(lambda: model) is model


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("absent_of_test:Net", ConfigError, "no module 'absent_of_test'"),
        ("task_of_test:Nest", ConfigError, "has no 'Nest'"),
        ("task_of_test:", ConfigError, "has no ''"),
        ("torn_of_test:Net", ConfigError, "cannot be imported: ZeroDivisionError"),
        ("task_of_test:size", ConfigError, "to be callable, got int"),
        ("task_of_test:sized", ModelError, "could not be built: TypeError"),
        ("task_of_test:broken", ModelError, "could not be built: ValueError"),
        ("task_of_test:number", ModelError, "returned int"),
    ],
)
@pytest.mark.usefixtures("task")
def test_what_is_no_model_is_told_by_name(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        built(name)
    assert "swordfish" not in str(caught.value)


def test_an_empty_module_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        imported(":Net")
