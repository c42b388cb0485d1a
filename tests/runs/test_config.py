"""Settings from TOML and flags: every problem at once, and a configuration that survives being written down."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data.dataset import Dataset
from equipoise.data.splits import Split
from equipoise.engine.federation import Federation
from equipoise.engine.settings import GROUP_OF, Settings
from equipoise.errors import ConfigError, EquipoiseError
from equipoise.mechanism.protection import Leakage
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.runs.config import Config, SweepBlock, differing, literal, resolve, stored

NONE = {"mechanisms": ["none"]}


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return file


def problems_of(*arguments: Any, **named: Any) -> list[str]:
    """The lines of the one ``ConfigError`` that these arguments cause; the count in its head is right."""
    with pytest.raises(EquipoiseError) as caught:
        resolve(*arguments, **named)
    assert caught.value.remedy
    head, *lines = caught.value.cause.splitlines()
    if not lines:
        return [str(caught.value)]
    assert head == f"{len(lines)} problems in the settings:"
    assert all(line.startswith("  - ") for line in lines)
    return [line[4:] for line in lines]


# --- where values come from ---------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold_and_only_the_sweep_is_asked_for() -> None:
    config = resolve(sweep=NONE)
    assert config.settings == Settings()
    assert config.federations() == [Federation("mnist", "none", None, 1)]


def test_a_file_sets_keys_tables_and_sweeps(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        rounds = 20
        eta = 0.05
        sizes = [1, 2, 3, 4]
        [leakage]
        D = 60
        [[sweep]]
        datasets = ["fmnist"]
        mechanisms = ["pl-learn"]
        budgets = [0.96]
        seeds = [4]
        """,
    )
    config = resolve(file)
    assert config.settings == Settings.flat(rounds=20, eta=0.05, sizes=[1.0, 2.0, 3.0, 4.0], leakage=Leakage(D=60.0))
    assert config.federations() == [Federation("fmnist", "pl-learn", 0.96, 4)]


def test_overrides_win_over_the_file_and_reach_into_tables(tmp_path: Path) -> None:
    file = written(tmp_path, "rounds = 20\neta = 0.05\n[leakage]\nD = 60\np = 0.25\n")
    config = resolve(file, {"rounds": 30, "leakage.D": 70}, NONE)
    assert config.settings == Settings.flat(rounds=30, eta=0.05, leakage=Leakage(D=70.0, p=0.25))


def test_a_sweep_given_by_flags_completes_the_block_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[[sweep]]\nmechanisms = ["pl-learn"]\nbudgets = [0.96]\nseeds = [1, 2]\n')
    config = resolve(file, sweep={"budgets": [0.98], "seeds": []})  # an empty list: the flag was not given
    assert config.federations() == [Federation("mnist", "pl-learn", 0.98, seed) for seed in (1, 2)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.05", 0.05),
        (".96", 0.96),
        ("-.5", -0.5),
        ("+0.9", 0.9),
        ("+.5e1", 5.0),
        ("2.", 2.0),
        ("1e2", 100.0),
        (".", "."),
        ("./a", "./a"),
        ("5", 5),
        ("true", True),
        ("[1, 2.5]", [1, 2.5]),
        ("{rounds = [1], values = [0.1]}", {"rounds": [1], "values": [0.1]}),
        ('"5"', "5"),
        ("pl-learn", "pl-learn"),
        ("", ""),
        ("a = b", "a = b"),
    ],
)
def test_the_value_of_set_is_toml_where_it_parses_and_text_otherwise(text: str, value: Any) -> None:
    assert literal(text) == value
    assert type(literal(text)) is type(value)


@pytest.mark.parametrize("key", ["clip", "participants", "sizes"])
def test_none_is_written_as_a_word(tmp_path: Path, key: str) -> None:
    assert resolve(written(tmp_path, f'{key} = "none"\n'), sweep=NONE).settings.plain()[key] is None
    assert resolve(overrides={key: literal("none")}, sweep=NONE).settings.plain()[key] is None


def test_none_where_a_value_is_needed_is_an_error() -> None:
    for key in ("rounds", "eta", "model", "leakage", "gamma", "negative_norm"):
        assert any(key in line for line in problems_of(overrides={key: "none"}, sweep=NONE)), key


# --- every problem at once ------------------------------------------------------------------------------------


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        rouns = 3
        eta = -1
        batch = "many"
        sampling = "sometimes"
        zzz = 1
        [leakage]
        DD = 1
        c_a = "x"
        [[sweep]]
        mechanism = ["none"]
        mechanisms = ["pl-lern", "none"]
        budgets = [0.9]
        seeds = ["x"]
        [[sweep]]
        mechanisms = ["pl-learn"]
        budgets = [1.5]
        """,
    )
    actual = problems_of(file)
    expected = [
        ("Unknown key 'rouns'", "'rounds'"),
        ("Unknown key 'zzz'.", ""),
        ("Unknown key 'leakage.DD'", "'D'"),
        ("batch = 'many'", "integer"),
        ("sampling = 'sometimes'", "'uniform' or 'passes'"),
        ("leakage.c_a = 'x'", "number"),
        ("Unknown key 'sweep[0].mechanism'", "'mechanisms'"),
        ("sweep[0].seeds.0 = 'x'", "integer"),
        ("eta=-1", "> 0"),
        ("Unknown mechanism 'pl-lern'", "'pl-learn'"),
        ("budget=1.5", "< 1"),
    ]
    for start, more in expected:
        assert [line for line in actual if start in line and more in line], (start, actual)
    assert len(actual) == len(expected), actual


def test_the_nearest_key_is_suggested_and_nothing_for_a_stranger() -> None:
    (near,) = problems_of(overrides={"evaluate_evry": 3}, sweep=NONE)
    assert near == "Unknown key 'evaluate_evry'. Did you mean 'evaluate_every'?"
    for key, dotted in (("delta", "gaussian.delta"), ("sampling_rate", "gaussian.sampling_rate"), ("D", "leakage.D")):
        assert problems_of(overrides={key: 1}, sweep=NONE) == [f"Unknown key '{key}'. Did you mean '{dotted}'?"]
    (far,) = problems_of(overrides={"qqqqq": 3}, sweep=NONE)
    assert far == "Unknown key 'qqqqq'. Remove it."


def test_a_problem_shared_by_many_federations_is_reported_once() -> None:
    result = problems_of(sweep={"mechanisms": ["pl-learn"], "budgets": [1.5], "seeds": [1, 2, 3]})
    assert len(result) == 1
    assert "budget=1.5" in result[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 0),
        ("clients", 0),
        ("batch", 0),
        ("steps", -1),
        ("eta", 0.0),
        ("eta", float("nan")),
        ("eta", float("inf")),
        ("server_rate", -1.0),
        ("participants", 5),
        ("min_clients", 5),
        ("clip", 0.0),
        ("sizes", [1.0, 2.0]),
        ("model", "resnet"),
        ("snapshots", [-1]),
        ("gamma", -0.1),
        ("gamma", [0.1, 0.2]),
        ("gamma", {"rounds": [2], "values": [0.1]}),
        ("negative_norm", "much"),
        ("evaluate_every", 0),
        ("threads", -1),
        ("dtype", "float16"),
        ("partition", "random"),
        ("clip_norm", "l7"),
        ("rounds", True),
        ("sensitivity", float("inf")),
        ("factor", float("nan")),
        ("leakage.D", float("inf")),
        ("leakage.c_a", float("nan")),
    ],
)
def test_a_value_out_of_range_names_its_key(key: str, value: Any) -> None:
    result = problems_of(overrides={key: value}, sweep=NONE)
    assert all(key.removeprefix("leakage.") in line for line in result), result


@pytest.mark.parametrize(
    "text",
    [
        "sweep = 3",
        'sweep = "none"',
        "sweep = [3]",
        "gamma = {rounds = 5, values = 3}",
        'gamma = {rounds = [1, "a"], values = [1, 2]}',
        "gamma = {rounds = [1], values = [[]]}",
        "[[sweep]]\nbudgets = [1979-05-27]",
        "[[sweep]]\nbudgets = [[]]",
        "leakage = 3",
        "[rounds]\na = 1",
        "[[rounds]]\na = 1",
    ],
)
def test_a_value_of_a_strange_form_is_an_error_of_ours(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        resolve(written(tmp_path, text))
    with pytest.raises(ConfigError):
        resolve(written(tmp_path, text), sweep={"mechanisms": ["pl-learn"]})


def test_a_path_through_a_value_that_is_no_table() -> None:
    with pytest.raises(ConfigError, match=r"'rounds' in 'rounds\.x'"):
        resolve(overrides={"rounds": 3, "rounds.x": 1})


def test_bad_toml_names_the_file_and_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings\.toml is not valid TOML.*line 2"):
        resolve(written(tmp_path, "rounds = 3\nrounds == 4\n"))


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b"rounds = \xff\n")
    with pytest.raises(ConfigError, match=r"settings\.toml is not valid TOML"):
        resolve(file)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml.*No such file"):
        resolve(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Cannot read"):
        resolve(tmp_path)


# --- the sweep ------------------------------------------------------------------------------------------------


def test_a_block_is_the_product_of_its_lists() -> None:
    block = {"datasets": ["mnist", "fmnist"], "mechanisms": ["pl-learn", "pl-identical"], "budgets": [0.96, 0.98]}
    result = resolve(sweep={**block, "seeds": [1, 2, 3]}).federations()
    assert len(result) == len({repr(fed) for fed in result}) == 2 * 2 * 2 * 3
    assert result[:3] == [Federation("mnist", "pl-learn", 0.96, seed) for seed in (1, 2, 3)]


def test_none_takes_no_budget_and_occurs_once_per_seed() -> None:
    result = resolve(sweep={"mechanisms": ["none", "pl-learn"], "budgets": [0.96, 0.98], "seeds": [1, 2]}).federations()
    assert [fed for fed in result if fed.mechanism == "none"] == [Federation("mnist", "none", None, s) for s in (1, 2)]
    assert len([fed for fed in result if fed.mechanism == "pl-learn"]) == 4


def test_blocks_are_joined_and_duplicates_removed(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [[sweep]]
        mechanisms = ["none", "pl-learn"]
        budgets = [0.96, 0.96]
        [[sweep]]
        mechanisms = ["pl-learn", "none"]
        budgets = [0.96, 0.98]
        """,
    )
    assert resolve(file).federations() == [
        Federation("mnist", "none", None, 1),
        Federation("mnist", "pl-learn", 0.96, 1),
        Federation("mnist", "pl-learn", 0.98, 1),
    ]


def test_a_number_is_the_same_budget_however_it_is_written() -> None:
    one, two = ({"mechanisms": ["ls-learn"], "budgets": budgets} for budgets in ([80], [80.0]))
    assert len(resolve(sweep={**one, "budgets": [80, 80.0]}).federations()) == 1
    assert resolve(sweep=one).digest() == resolve(sweep=two).digest()


def test_a_single_table_is_a_single_block(tmp_path: Path) -> None:
    file = written(tmp_path, '[sweep]\nmechanisms = ["none"]\nseeds = [3]\n')
    assert resolve(file).federations() == [Federation("mnist", "none", None, 3)]


def test_a_budget_is_needed_by_all_but_none() -> None:
    (lacking,) = problems_of()
    assert "mnist pl-learn: The mechanism 'pl-learn' needs a budget." in lacking
    (empty,) = problems_of(overrides={"sweep": [{"mechanisms": []}]})
    assert "sweep is empty" in empty


# --- written down and read back -------------------------------------------------------------------------------

SCHEDULE = {"rounds": [1, 500], "values": [0.96, [0.98, 0.98, 0.99, 0.99]]}
FULL = Config(
    Settings.flat(
        rounds=600,
        participants=3,
        sizes=[1.0, 2.0, 3.0, 4.0],
        gamma=[0.1, 0.2, 0.3, 0.4],
        negative_norm={"rounds": [1, 300], "values": [1e-5, 0.0]},
        clip=None,
        snapshots=[],
        leakage=Leakage(D=60.5, iterations=100),
        init_bound=0.1 + 0.2,
    ),
    [
        SweepBlock(["mnist", "fmnist"], ["pl-learn"], [0.96, [0.9, 0.91, 0.92, 0.93], SCHEDULE], [1, 2]),
        SweepBlock(mechanisms=["none"]),
    ],
)


def test_written_as_toml_it_is_read_back_equal(tmp_path: Path) -> None:
    again = resolve(written(tmp_path, FULL.to_toml()))
    assert again == FULL
    assert again.digest() == FULL.digest()
    assert again.to_toml() == FULL.to_toml()


def test_the_defaults_are_read_back_equal(tmp_path: Path) -> None:
    config = resolve(sweep=NONE)
    assert resolve(written(tmp_path, config.to_toml())) == config


@given(
    eta=st.floats(1e-300, 1e300),
    rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    clip=st.none() | st.floats(1e-9, 1e9),
    seeds=st.lists(st.integers(0, 2**62), min_size=1, max_size=3),
    budgets=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3),
    dataset=st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_any_numbers_and_names_are_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    eta: float,
    rate: float,
    clip: float | None,
    seeds: list[int],
    budgets: list[float],
    dataset: str,
) -> None:
    settings = Settings.flat(eta=eta, server_rate=rate, clip=clip)
    config = Config(settings, [SweepBlock([dataset], ["pl-learn"], budgets, seeds)])
    assert resolve(written(tmp_path_factory.getbasetemp(), config.to_toml())) == config


def test_what_differs_is_named_with_both_values(tmp_path: Path) -> None:
    file = written(tmp_path, FULL.to_toml())
    assert differing(file, FULL) == []
    other = FULL.settings.replace(eta=0.7, leakage=replace(FULL.settings.protection.leakage, D=61.0))
    assert differing(file, Config(other, FULL.sweep)) == [
        f"eta: {FULL.settings.protection.eta} there, 0.7 here",
        f"leakage.D: {FULL.settings.protection.leakage.D} there, 61.0 here"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budgets": [0.98]}, "budget: 0.96 there, 0.98 here"),
        ({"budgets": [0.96, [0.97, 0.98]]}, "budget: also per client 0.97, 0.98 here"),
        ({"seeds": [1]}, "seed: also 2 there"),
        ({"mechanisms": ["pl-identical"]}, "mechanism: pl-learn there, pl-identical here"),
        ({"datasets": ["fmnist"]}, "dataset: mnist there, fmnist here"),
    ],
)
def test_what_differs_in_a_sweep_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    block = SweepBlock(["mnist"], ["pl-learn"], [0.96], [1, 2])
    file = written(tmp_path, Config(Settings(), [block]).to_toml())
    assert differing(file, Config(Settings(), [replace(block, **change)])) == [words]


# --- the digest -----------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "rounds": 7, "clients": 5, "participants": 2, "batch": 5, "local_steps": 2, "sampling": "passes", "eta": 0.2,
    "model": "mlp", "init": "torch", "init_bound": 0.4, "partition": "iid", "dirichlet": 0.6, "shards": 3,
    "sizes": [1.0, 2.0, 3.0, 4.0], "partition_seed": 1,
    "validation_fraction": 0.2, "public_fraction": 0.1, "steps": 9, "gamma": 0.2, "negative_norm": 2e-5, "factor": 3.0,
    "sensitivity": 11.0, "clip": None, "clip_norm": "l1", "leakage": Leakage(D=57.0), "server_rate": 0.5,
    "min_clients": 2, "evaluate_every": 100, "full_every": 10, "expected_draws": 8, "snapshots": [0], "chunk": 3,
    "device": "cuda", "dtype": "float64", "threads": 1, "ledger": False, "release_limit": 5,
    "server_momentum": 0.9, "gaussian": GaussianSettings(clip=2.0), "route": "loop", "buffers": "noised",
    "test_fraction": 0.3, "target": "y", "group": "person", "text": "note", "drop": ["id"], "categorical": ["zip"],
    "categories": "codes", "vocabulary": 100, "text_length": 32, "resize": 32, "scale": 255.0, "mean": 0.5, "std": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("key", list(GROUP_OF))
def test_the_digest_ignores_where_and_how_fast_and_nothing_else(key: str) -> None:
    config = Config(Settings(), [SweepBlock(mechanisms=["none"])])
    other = replace(config, settings=config.settings.replace(**{key: OTHER[key]}))
    assert other.settings != config.settings
    assert (other.digest() == config.digest()) == (key in ("device", "chunk", "route", "ledger", "release_limit"))


def test_the_digest_of_a_run_without_a_ledger_is_what_it_always_was() -> None:
    """Folders are named by it, and checkpoints found by it."""
    config = Config(Settings(), [SweepBlock(budgets=[0.98])])
    assert config.digest() == "d696677d7620a5d784ca5603eecac29d9c2db656bf3ac5f818743d35fd31a8d0"


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("false", False)])
def test_a_flag_is_true_or_false(tmp_path: Path, text: str, expected: bool) -> None:
    config = resolve(written(tmp_path, f"ledger = {text}\n[[sweep]]\nmechanisms = ['none']"))
    assert config.settings.run.ledger is expected
    assert resolve(written(tmp_path, config.to_toml())) == config


@pytest.mark.parametrize("text", ["2", '"maybe"', '"none"', "[]"])
def test_a_flag_is_nothing_else(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="ledger"):
        resolve(written(tmp_path, f"ledger = {text}\n[[sweep]]\nmechanisms = ['none']"))


@pytest.mark.parametrize("part", [part.name for part in fields(Leakage)])
def test_the_digest_sees_every_constant_of_the_leakage_score(part: str) -> None:
    changed = Settings.flat(leakage=replace(Leakage(), **{part: 3}))
    assert Config(changed, []).digest() != Config(Settings(), []).digest()


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 1e-6}, {"clip": 2.0}, {"sampling_rate": 0.5}, {"divisor": 10.0}, {"rounds": 3},
        {"noise_schedule": {"rounds": [1], "values": [2.0]}}, {"sigmas": [[1.0, 2.0]]},
    ],
    ids=str,
)  # fmt: skip
def test_the_digest_sees_every_setting_of_gaussian_dp(change: dict[str, Any]) -> None:
    assert {part.name for part in fields(GaussianSettings)} >= set(change)
    changed = Settings.flat(gaussian=GaussianSettings(**change))
    assert Config(changed, []).digest() != Config(Settings(), []).digest()


def test_keys_that_came_later_count_unless_they_hold_their_defaults() -> None:
    """The digests of earlier versions, which had no such keys, still find their folders."""
    same = Settings.flat(server_momentum=0.0, gaussian=GaussianSettings())
    assert Config(same, []).digest() == Config(Settings(), []).digest()
    digests = [
        Config(Settings.flat(**change), []).digest()
        for change in ({}, {"server_momentum": 0.5}, {"gaussian": {"clip": 2.0}}, {"server_momentum": 0.9})
    ]
    assert len(set(digests)) == 4


def test_the_digest_sees_the_federations_and_not_how_they_are_written() -> None:
    one = Config(Settings(), [SweepBlock(mechanisms=["pl-learn"], budgets=[0.96, 0.98], seeds=[1])])
    two = [SweepBlock(mechanisms=["pl-learn"], budgets=[budget], seeds=[1]) for budget in (0.96, 0.98)]
    assert Config(Settings(), two).digest() == one.digest()
    for change in ({"datasets": ["fmnist"]}, {"mechanisms": ["pl-identical"]}, {"budgets": [0.96]}, {"seeds": [2]}):
        assert Config(Settings(), [replace(one.sweep[0], **change)]).digest() != one.digest(), change


# --- earlier names --------------------------------------------------------------------------------------------


def test_a_run_folder_of_schema_1_is_read_by_the_present_names(tmp_path: Path) -> None:
    before = FULL.to_toml().replace("gamma = ", "lr = ").replace("dirichlet = ", "alpha = ")
    assert "\nlr = [0.1" in before
    assert stored(written(tmp_path, before)) == FULL
    assert differing(written(tmp_path, before), FULL) == []


def test_both_names_of_a_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'lr' and 'gamma' are one setting\. Remove 'lr'"):
        stored(written(tmp_path, "lr = 9.0\ngamma = 0.1\n[[sweep]]\nmechanisms = ['none']"))


@pytest.mark.parametrize("damage", ["seeds = 1", "leakage = 3", "mechanisms = 5"])
def test_a_damaged_configuration_is_a_typed_error(tmp_path: Path, damage: str) -> None:
    with pytest.raises(ConfigError):
        differing(written(tmp_path, f"{damage}\n[[sweep]]\nmechanisms = ['none']"), FULL)


def test_what_differs_names_a_folder_without_its_path(tmp_path: Path) -> None:
    here = Config(Settings(), [SweepBlock(["mnist"], ["none"])])
    there = Config(Settings(), [SweepBlock(["/home/someone/ward-7"], ["none"])])
    assert differing(written(tmp_path, there.to_toml()), here) == ["dataset: ward-7 there, mnist here"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("lr", "The learning rate of a client is 'eta'; what folders of schema 1 call 'lr' is 'gamma', the step of"),
        ("alpha", "It is called 'dirichlet' now"),
    ],
)
def test_an_earlier_name_of_a_key_is_refused_with_its_present_one(tmp_path: Path, key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown key '{key}'. {words}"):
        resolve(written(tmp_path, f"{key} = 0.3\n[[sweep]]\nmechanisms = ['none']"))


@pytest.mark.parametrize(("key", "words"), [("clip", r"gaussian\.clip"), ("batch", r"gaussian\.sampling_rate")])
def test_keys_that_someone_could_take_for_those_of_gaussian_dp_are_refused(key: str, words: str) -> None:
    sweep = {"mechanisms": ["gaussian-dp"], "budgets": [2.0]}
    with pytest.raises(ConfigError, match=f"{key} plays no part with gaussian-dp.*{words}"):
        resolve(overrides={key: 7}, sweep=sweep)
    both = resolve(overrides={key: 7}, sweep={"mechanisms": ["gaussian-dp", "none"], "budgets": [2.0]})
    assert getattr(both.settings.protection, key) == 7, "the other mechanism has a use for it"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dataset but the bundled pictures is a table of five columns."""
    split = Split(torch.rand(8, 5), torch.arange(8) % 2)
    data = Dataset(name="rows", classes=2, mean=0.0, std=1.0, train=split, validation=split, test=split, public=None)
    monkeypatch.setattr("equipoise.engine.datasets.load_with", lambda name, **_: data)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(("mechanism", "budget"), [("pl-learn", 0.98), ("gaussian-dp", 2.0)])
def test_a_table_has_a_model_for_tables_with_its_own_initialisation(mechanism: str, budget: float) -> None:
    sweep = {"datasets": ["rows"], "mechanisms": [mechanism], "budgets": [budget]}
    training = resolve(sweep=sweep).settings.training
    assert (training.model, training.init) == ("mlp", "torch")
    assert resolve(overrides={"model": "mlp"}, sweep=sweep).settings.training.init == "torch"
    assert resolve(overrides={"init": "uniform"}, sweep=sweep).settings.training.init == "uniform"


def test_pictures_keep_the_papers_model_and_initialisation() -> None:
    for model in ("lenet-zhu", "lenet-tanh", "small-cnn", "mlp"):
        assert resolve(overrides={"model": model}, sweep=NONE).settings.training.init == "uniform"
    assert resolve(overrides={"model": "resnet-gn"}, sweep=NONE).settings.training.init == "torch"
    given = {"model": "resnet-gn", "init": "uniform"}
    assert resolve(overrides=given, sweep=NONE).settings.training.init == "uniform"


def test_data_that_cannot_be_read_are_left_to_whoever_trains_on_them() -> None:
    assert resolve(sweep={"datasets": ["nowhere/at/all"], **NONE}).settings.training.model == "lenet-zhu"


def test_code_may_be_named_and_draws_its_own_first_weights() -> None:
    training = resolve(overrides={"model": "absent_of_test:Net"}, sweep=NONE).settings.training
    assert (training.model, training.init) == ("absent_of_test:Net", "torch")
    with pytest.raises(ConfigError, match=r"draws its own first weights.* Leave init out\."):
        resolve(overrides={"model": "absent_of_test:Net", "init": "uniform"}, sweep=NONE)


@pytest.mark.parametrize("name", ["a:", ":b", "a b:c", "a:b()", "../a:b", "a:b;c", "a::b", "a.:b", "ä:b"])
def test_what_is_no_name_of_code_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Unknown model"):
        resolve(overrides={"model": name}, sweep=NONE)


def test_gaussian_dp_trains_the_model_that_suits_it_unless_another_is_named() -> None:
    sweep = {"mechanisms": ["none", "gaussian-dp"], "budgets": [2.0]}
    assert resolve(sweep=sweep).settings.training.model == "scatter-linear"
    assert resolve(overrides={"model": "lenet-tanh"}, sweep=sweep).settings.training.model == "lenet-tanh"
    assert resolve(sweep={"mechanisms": ["pl-learn"], "budgets": [0.98]}).settings.training.model == "lenet-zhu"
