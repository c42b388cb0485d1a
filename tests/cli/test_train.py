"""``equipoise train``: settings, a table, one JSON document; resumed, interrupted, refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.engine.sweep import Sweep
from equipoise.mechanism import learned_leak
from tests.helpers import Command, contents, document, tiny_train, write_dataset


def test_train_prints_settings_table_and_place(command: Command, tiny: Path, tmp_path: Path) -> None:
    done = command(*tiny_train(tiny, "--mechanism", "none,pl-learn", "--budget", "0.98,0.99", "--seed", "1,2"))
    assert done.code == 0
    assert "6 federations" in done.out
    assert "a seeded experiment" in done.out
    assert "resumed" not in done.out
    rows = re.findall(r"^ *(none|pl-learn) +(\S+) +[\d.]+% ", done.out, re.MULTILINE)
    assert rows == [("none", "-"), ("pl-learn", "0.98"), ("pl-learn", "0.99")], "seeds are averaged"
    assert "proved: every accepted release is finite" in done.out
    assert "No (epsilon, delta) is claimed for it." in " ".join(done.out.split())
    assert "run/result.json" in done.out
    assert (tmp_path / "run" / "result.json").exists()


def test_train_warns_of_data_that_could_not_be_audited_afterwards(command: Command, tiny: Path) -> None:
    warning = "warning: tiny has no public images, so this run cannot be audited as it is."
    first = command(*tiny_train(tiny, "--mechanism", "none"))
    assert f"{warning} To set some apart: --set public_fraction=0.1" in first.out.splitlines(), "one line"
    done = command(*tiny_train(tiny, "--mechanism", "none", "--fresh", "--set", "public_fraction=0.3"))
    assert done.code == 0
    assert "warning" not in done.out
    document(command(*tiny_train(tiny, "--mechanism", "none", "--fresh", "--json")))


def test_mechanisms_that_take_different_records_are_not_set_beside_each_other_unsaid(
    command: Command, tiny: Path
) -> None:
    warning = "warning: mini-batches and all records of a client are not comparable at equal rounds; docs/gaussian_dp"
    shape = ("--budget", "2", "--set", "model=lenet-zhu")
    done = command(*tiny_train(tiny, "--mechanism", "none,gaussian-dp", *shape))
    assert [line for line in done.out.splitlines() if line.startswith(warning)], "one line"
    assert "every accepted release is finite" not in done.out, "nothing is distorted there"
    assert "proved of gaussian-dp: the epsilon of the mechanism" in done.out
    for mechanism in ("none", "gaussian-dp"):
        assert "not comparable" not in command(*tiny_train(tiny, "--fresh", "--mechanism", mechanism, *shape)).out


def test_the_bundled_data_can_be_audited(command: Command, small_mnist: None) -> None:
    done = command("train", "--mechanism", "none", "--rounds", "1", "--out", "run")
    assert done.code == 0
    assert "warning" not in done.out


def test_train_again_says_where_it_resumed_and_changes_nothing(command: Command, tiny: Path, tmp_path: Path) -> None:
    arguments = tiny_train(tiny, "--mechanism", "none")
    command(*arguments)
    before = contents(tmp_path / "run")
    done = command(*arguments)
    assert done.code == 0
    assert "resumed at round 3" in done.out
    assert contents(tmp_path / "run") == before
    assert "resumed" not in command(*arguments, "--fresh").out


def test_train_json_is_the_result_file(command: Command, tiny: Path, tmp_path: Path) -> None:
    result = document(command(*tiny_train(tiny, "--mechanism", "none", "--json")))
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["federations"][0]["mechanism"] == "none"
    assert document(command(*tiny_train(tiny, "--mechanism", "none", "--json"))) == result


def test_train_reads_a_file_and_flags_win(command: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        f'rounds = 9\neta = 0.2\n[[sweep]]\ndatasets = ["{tiny}"]\nmechanisms = ["none"]\n'
    )
    result = document(command("train", "--config", "s.toml", "--rounds", "2", "--set", "eta=0.3", "--json"))
    assert (result["federations"][0]["rounds"], result["federations"][0]["eta"]) == (2, 0.3)
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch("[0-9a-f]{12}", folder.name)
    assert (folder / "result.json").exists()


def test_a_flag_with_several_blocks_in_the_file_drops_none_of_them(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    block = f'[[sweep]]\ndatasets = ["{tiny}"]\nmechanisms = ["{{}}"]\nbudgets = [0.98]\n'
    (tmp_path / "s.toml").write_text("rounds = 1\n" + block.format("pl-learn") + block.format("pl-identical"))
    done = command("train", "--config", "s.toml", "--seed", "7", "--out", "run", "--json")
    if done.code == 0:  # or it is refused as ambiguous, with a message
        rows = document(done)["federations"]
        assert [(row["mechanism"], row["seed"]) for row in rows] == [("pl-learn", 7), ("pl-identical", 7)]
    else:
        assert done.code == 11


def test_refused_releases_are_counted_for_people_and_for_machines(command: Command, tiny: Path) -> None:
    arguments = tiny_train(tiny, "--mechanism", "pl-learn,none", "--budget", "0.98", "--set", "eta=1e38")
    done = command(*arguments)
    assert done.code == 0
    assert re.search(r"pl-learn 0\.98 seed 1: 12 of 12 releases refused", " ".join(done.err.split()))
    result = document(command(*arguments, "--json"))["federations"]
    assert result[0]["releases_refused"] == 12


def test_an_interruption_is_one_line_and_exit_code_130(
    command: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = tiny_train(tiny, "--mechanism", "none")
    genuine = Sweep.train

    def stopping(sweep: Sweep, until: int, on_round: Any = None) -> None:
        genuine(sweep, until, on_round)
        if until == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Sweep, "train", stopping)
        for more in ([], ["--json"]):
            done = command(*arguments, *more)
            assert done.code == 130
            (line,) = [line for line in done.err.splitlines() if line.strip()]
            assert "run the same command again to go on" in line
            assert not more or done.out == ""
    assert not (tmp_path / "run" / "result.json").exists()
    done = command(*arguments)
    assert done.code == 0
    assert "resumed at round 2" in done.out


@pytest.mark.parametrize("more", [["--dataset", "nowhere"], ["--device", "cuda"], ["--out", "taken"]])
def test_what_is_refused_is_refused_before_anything_is_printed(
    command: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.md").write_text("mine")
    done = command(*tiny_train(tiny, "--mechanism", "none"), *more)
    assert done.code > 10
    assert done.out == ""
    assert len(done.err.splitlines()) == 1


def test_a_file_gets_no_blank_lines(command: Command, tiny: Path) -> None:
    assert command(*tiny_train(tiny, "--mechanism", "none")).err == ""


def test_budgets_may_lack_their_zero(command: Command, tiny: Path) -> None:
    result = document(command(*tiny_train(tiny, "--mechanism", "pl-learn", "--budget", ".96,+0.98", "--json")))
    assert [row["budget"] for row in result["federations"]] == [0.96, 0.98]


def test_names_are_names_whatever_they_look_like(command: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "2024").symlink_to(tiny)
    result = document(command("train", "--dataset", "2024", "--mechanism", "none", "--rounds", "1", "--json"))
    assert result["federations"][0]["dataset"] == "2024"


# --- models of the user's own -----------------------------------------------------------------------------------

CODE = """
from pathlib import Path
from torch import nn
Path("imported").touch()
def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], classes))
"""
NAME = "code_of_test:make"
OTHER_OUTPUTS = """
class Net(nn.Sequential):
    def forward(self, x):
        return {"logits": super().forward(x)}
def make(shape, classes):
    return Net(nn.Flatten(), nn.Linear(shape[1] * shape[2], classes))
def other"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the present folder; the path that is returned exists once the module has been imported."""
    (tmp_path / "code_of_test.py").write_text(CODE)
    monkeypatch.delitem(sys.modules, "code_of_test", raising=False)
    return tmp_path / "imported"


def forget(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "code_of_test", raising=False)
    code.unlink(missing_ok=True)


def test_model_is_short_for_a_setting(command: Command, tiny: Path, tmp_path: Path) -> None:
    assert command(*tiny_train(tiny, "--mechanism", "none", "--model", "mlp")).code == 0
    assert 'model = "mlp"' in (tmp_path / "run" / "config.toml").read_text()
    assert "resumed at round 3" in command(*tiny_train(tiny, "--mechanism", "none", "--set", "model=mlp")).out


def test_code_is_trained_where_the_user_names_it_and_never_because_a_file_does(
    command: Command, tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = write_dataset(tmp_path / "tiny", train=400, classes=4)
    arguments = tiny_train(tiny, "--mechanism", "none", "--set", "public_fraction=0.4", "--set", "snapshots=[0, 3]")
    assert command(*arguments, "--model", NAME).code == 0
    config = (tmp_path / "run" / "config.toml").read_text()
    assert f'model = "{NAME}"' in config
    assert 'init = "torch"' in config
    assert "resumed at round 3" in command(*arguments, "--set", f"model={NAME}").out
    (tmp_path / "mine.toml").write_text(f'model = "{NAME}"')
    assert "resumed at round 3" in command(*arguments, "--config", "mine.toml", "--model", NAME).out
    forget(code, monkeypatch)
    attacked = ("audit", "run", "--attack", "membership", "--targets", "2", "--set", "label_sets=1")
    measured = ("bounds", "run", "--targets", "0", "--snapshots", "3", "--set", "samples=2", "--set", "subproblems=2")
    for refused in (
        (*tiny_train(tiny), "--config", "run/config.toml"),
        (*arguments, "--config", "mine.toml"),
        attacked,
        measured,
        (*attacked, "--model", "other_of_test:make"),
        (*measured, "--model", "mlp"),
    ):
        done = command(*refused)
        assert done.code == 11
        assert f"--model {NAME}" in " ".join(done.err.split())
        assert not code.exists(), "nothing was imported"
    assert command(*tiny_train(tiny), "--config", "run/config.toml", "--model", NAME).code == 0
    assert command(*attacked, "--model", NAME).code == 0
    assert command(*measured, "--model", NAME).code == 0


def test_another_model_does_not_continue_a_run(command: Command, tiny: Path, code: Path) -> None:
    assert command(*tiny_train(tiny, "--mechanism", "none", "--model", NAME)).code == 0
    done = command(*tiny_train(tiny, "--mechanism", "none", "--model", "mlp"))
    assert done.code != 0
    assert f'model: "{NAME}" there, "mlp" here' in " ".join(done.err.split())


def test_a_warning_says_that_the_code_of_a_model_changed(
    command: Command, tiny: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = tiny_train(tiny, "--mechanism", "none", "--model", NAME)
    assert "warning: the model" not in command(*arguments).out
    source = code.parent / "code_of_test.py"
    source.write_text(source.read_text() + "\n# another line\n")
    forget(code, monkeypatch)
    warning = "warning: the model's code, code_of_test.py, has changed since the checkpoint; --fresh begins anew"
    assert command(*arguments, "--json").err.splitlines() == [warning]
    done = command(*arguments)
    assert done.out.splitlines().count(warning) == 1


def test_code_that_does_not_build_a_model_is_told_by_name(command: Command, tiny: Path, code: Path) -> None:
    done = command(*tiny_train(tiny, "--mechanism", "none", "--model", "code_of_test:nothing"))
    assert done.code == 11
    assert "has no 'nothing'" in done.err


def test_a_model_with_other_outputs_is_told_what_a_run_can_take(command: Command, tiny: Path, code: Path) -> None:
    source = code.parent / "code_of_test.py"
    source.write_text(source.read_text().replace("def make", OTHER_OUTPUTS))
    done = command(*tiny_train(tiny, "--mechanism", "none", "--model", NAME))
    assert done.code == 13
    assert "loss" not in done.err
    assert "class Outputs(Net):" in done.err
    assert done.err.endswith("return super().forward(*inputs)['logits']\n")


@pytest.mark.parametrize(("dataset", "model"), [("breast-cancer", "mlp"), ("generated-text", "transformer")])
def test_without_a_mechanism_the_model_proposed_is_for_the_data(command: Command, dataset: str, model: str) -> None:
    done = command("train", "--dataset", dataset)
    assert done.err.endswith(f"--mechanism gaussian-dp --budget 2 --set model={model}.\n")
    assert command("train", "--dataset", dataset, "--model", "lstm").err.endswith("--set model=lstm.\n")


def test_columns_to_drop_are_named_with_commas(command: Command, tmp_path: Path) -> None:
    rows = "\n".join(f"{n % 7},{n},{'ab'[n % 2]},{n % 2}" for n in range(120))
    (tmp_path / "rows.csv").write_text(f"age,note,city,ill\n{rows}\n")
    done = command(*tiny_train(tmp_path / "rows.csv", "--mechanism", "none", "--set", "drop=note,city"))
    assert done.code == 0, done.err
    assert 'drop = ["note", "city"]' in (tmp_path / "run" / "config.toml").read_text()


# --- the paper's constants ------------------------------------------------------------------------------------------


def test_one_line_says_where_the_papers_constants_meet_another_model(command: Command, tiny: Path) -> None:
    budgets = ("--mechanism", "pl-identical", "--budget", "0.96,0.98")
    done = command(*tiny_train(tiny, *budgets, "--model", "mlp"))
    lines = [line for line in done.out.splitlines() if "whatever the model" in line]
    assert len(lines) == 1
    assert lines[0].startswith("warning: a PL budget of 0.96 asks for a norm of 16 whatever the model")
    assert "equipoise calibrate --model mlp --mechanism pl-identical --budget 0.96" in lines[0]
    assert "whatever" not in command(*tiny_train(tiny, *budgets, "--fresh")).out
    more = ("--model", "mlp", "--set", "leakage.D=30", "--fresh")
    assert "whatever" not in command(*tiny_train(tiny, *budgets, *more)).out


def test_each_kind_of_budget_is_warned_of_and_json_has_it_too(
    command: Command, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    budgets = ("--mechanism", "pl-identical", "--budget", "0.98", "--model", "mlp")
    done = command(*tiny_train(tiny, *budgets, "--json"))
    (text,) = document(done)["warnings"]
    assert text.startswith("a PL budget of 0.98")
    scales = ("--mechanism", "ls-static,gs-static", "--budget", "80", "--model", "mlp", "--fresh")
    lines = [line for line in command(*tiny_train(tiny, *scales)).out.splitlines() if "in every coordinate" in line]
    assert [line.partition(" budget")[0] for line in lines] == ["warning: an LS", "warning: a GS"]
    assert not caplog.records, "the log does not say it again"


# --- what learning gives away ---------------------------------------------------------------------------------------


@pytest.fixture
def untold() -> Iterator[None]:
    """As in a process that has said nothing yet."""
    before = set(learned_leak._TOLD)
    learned_leak._TOLD.clear()
    yield
    learned_leak._TOLD.update(before)


@pytest.mark.usefixtures("untold")
def test_one_line_says_that_learned_noise_gives_records_away(
    command: Command, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = command(*tiny_train(tiny, "--mechanism", "pl-identical,pl-learn", "--budget", "0.96,0.98", "--seed", "1,2"))
    (line,) = [line for line in done.out.splitlines() if "private batch" in line]
    assert line.startswith("warning: pl-learn learns its noise on the private batch")
    assert done.out.index(line) < done.out.index("test accuracy"), "before training"
    assert not caplog.records, "the log does not say it again"


@pytest.mark.usefixtures("untold")
def test_json_has_what_learned_noise_gives_away_too(
    command: Command, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learned = tiny_train(tiny, "--mechanism", "pl-learn,gs-learn", "--budget", "0.98", "--json")
    assert [text.split()[0] for text in document(command(*learned))["warnings"]] == ["pl-learn", "gs-learn"]
    assert not caplog.records
    for name, budget in (("pl-identical", "0.98"), ("laplace-dp", "10"), ("none", "")):
        asked = ["--mechanism", name, *(["--budget", budget] if budget else []), "--fresh", "--json"]
        assert "warnings" not in document(command(*tiny_train(tiny, *asked)))
