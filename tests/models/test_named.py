"""Models by name: bundled, imported, built by a function, or given as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from equipoise.errors import ConfigError, ModelError
from equipoise.models.named import chosen, code_of, confirmed, imported, model_of

TASK = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(4, 2))
def sized(width):
    return nn.Linear(width, 2)
def fitted(shape, *, classes, vocabulary=5):
    return nn.Linear(shape[0] + vocabulary, classes)
class Inside:
    Net = Net
def broken():
    raise ValueError("need at\\n least 5 channels \\x1b[2J")
def without():
    import not_there
def worded(shape, vocabulary):
    return nn.Linear(vocabulary, 2)
def chatty():
    raise ValueError("word " * 99)
def number():
    return 7
size = 7
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the present folder, as that of an app is."""
    (tmp_path / "task_of_test.py").write_text(TASK)
    (tmp_path / "torn_of_test.py").write_text("1 / 0")
    (tmp_path / "needy_of_test.py").write_text("import not_there")
    (tmp_path / "odd_of_test.py").write_text("import math\nmath.absent")
    monkeypatch.chdir(tmp_path)
    for name in ("task_of_test", "torn_of_test", "needy_of_test", "odd_of_test"):
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
        ("torn_of_test:Net", ConfigError, r"cannot be imported: ZeroDivisionError at torn_of_test.py:1: division by"),
        ("needy_of_test:Net", ConfigError, r"needy_of_test.py:1: No module named 'not_there'\. Install it"),
        ("task_of_test:size", ConfigError, "to be callable, got int"),
        ("task_of_test:sized", ModelError, r"built: it needs width\. It may take shape, classes and vocabulary"),
        ("task_of_test:broken", ModelError, r"ValueError at task_of_test.py:13: need at least 5 channels \?\["),
        ("task_of_test:without", ModelError, "task_of_test.py:15: No module named 'not_there'. Install it"),
        ("task_of_test:worded", ModelError, r"it needs vocabulary\. These data have no vocabulary\."),
        ("task_of_test:chatty", ModelError, r"ValueError at task_of_test.py:19: (word ){60}\(\.\.\.\)\."),
        ("task_of_test:number", ModelError, "returned int"),
    ],
)
@pytest.mark.usefixtures("task")
def test_what_is_no_model_is_told_by_name(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        built(name)


@pytest.mark.usefixtures("task")
def test_where_a_module_was_looked_for_is_told() -> None:
    with pytest.raises(ConfigError, match="current folder or among the installed packages"):
        built("absent_of_test.part:Net")
    with pytest.raises(ConfigError, match=r"AttributeError at odd_of_test.py:2: module 'math' has no attribute"):
        built("odd_of_test:Net")


def test_an_empty_module_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        imported(":Net")


@pytest.mark.usefixtures("task")
def test_a_function_gets_what_it_asks_for_by_name() -> None:
    for vocabulary, width in ((None, 12), (30, 37)):
        model = model_of("task_of_test:fitted", (7,), 3, vocabulary)
        assert (model.in_features, model.out_features) == (width, 3)


@pytest.mark.usefixtures("task")
def test_an_attribute_of_an_attribute_is_found() -> None:
    assert type(built("task_of_test:Inside.Net")).__name__ == "Net"


def test_the_word_of_settings_imports_nothing() -> None:
    with pytest.raises(ConfigError, match=r"'absent_of_test:Net' is code, .* --model absent_of_test:Net"):
        chosen("absent_of_test:Net", None)
    assert chosen("mlp", None) == "mlp"
    assert chosen("absent_of_test:Net", nn.Flatten) is nn.Flatten


def test_a_run_that_names_code_has_it_named_again() -> None:
    name = "absent_of_test:Net"
    assert confirmed(name, name) == name
    assert confirmed(name, nn.Flatten) is nn.Flatten
    assert confirmed("mlp", None) == confirmed("mlp", "mlp") == "mlp"
    with pytest.raises(ConfigError, match="is not enough to run it"):
        confirmed(name, None)
    with pytest.raises(ConfigError, match=r"names its model, 'absent_of_test:Net', not 'other:Net'.*--model absent"):
        confirmed(name, "other:Net")
    for given in ("other:Net", "lenet-zhu", nn.Flatten):
        with pytest.raises(ConfigError, match=r"Leave the model out\."):
            confirmed("mlp", given)


@pytest.mark.usefixtures("task")
def test_code_is_imported_and_a_bundled_name_is_left_to_the_settings() -> None:
    assert code_of("mlp") is None
    assert code_of(nn.Flatten) is nn.Flatten
    assert code_of("task_of_test:Net")().state_dict().keys() == {"1.weight", "1.bias"}
