"""``policy init`` writes what ``policy show`` says, a run with the same budget passes, and nothing is replaced."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from equipoise.cli import app as cli
from equipoise.errors import ConfigError, LedgerError, PolicyError
from equipoise.flower.policy import needed, read_policy
from equipoise.flower.policy_file import COMMENTS, WHOLE_RUN, default_bounds, init_policy, policy_text, show_policy
from equipoise.flower.run_config import read_terms
from equipoise.ledger.account import Account
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.registry import MECHANISMS
from equipoise.privacy.gaussian import noise_multiplier
from equipoise.privacy.guarantee import percent_up
from equipoise.privacy.limits import limit
from tests.helpers import contents
from tests.ledger.entries import reservation

BUDGETS = {"none": None, "laplace-dp": 0.5, "gaussian-dp": 2.0, "pruning": 0.1, "outpost": 1.25}


def budget_of(name: str) -> float | None:
    return BUDGETS.get(name, 0.98 if name.startswith("pl") else 200.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_policy_allows_the_run_that_it_was_written_for_and_nothing_looser(name: str, tmp_path: Path) -> None:
    budget = budget_of(name)
    policy = read_policy(init_policy(tmp_path / "node", "scans", name, budget, 7))
    assert set(policy.mechanisms[name]) == set(needed(MECHANISMS[name]))

    def ask(loosened: float) -> None:
        run = {"equipoise.mechanism": name, "equipoise.budget": "" if budget is None else budget * loosened}
        terms = read_terms(run | {"equipoise.gaussian.rounds": 7})
        whole = terms.mechanism.whole_run
        protection = None if whole else terms.settings.at(terms.mechanism, terms.budget, 1, 0)
        policy.permit(terms, protection, terms.budget if terms.mechanism.formal else None)

    ask(1.0)
    if budget is not None:
        with pytest.raises(PolicyError):
            ask(1.005 if name.startswith("pl") else 1.1)


def test_files_are_the_owners_alone_and_the_ledger_is_begun(tmp_path: Path) -> None:
    path = init_policy(tmp_path / "node", "scans", "pl-identical", 0.98)
    assert {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {
        "policy.toml": 0o600, "ledger.jsonl": 0o600, "ledger.jsonl.head": 0o600,
    }  # fmt: skip
    assert path.parent.stat().st_mode & 0o777 == 0o700
    policy = read_policy(path)
    assert policy.ledger is not None
    with Account.open(policy.ledger, str(policy.account)) as account:
        assert account.releases == 0


def test_two_nodes_have_two_accounts(tmp_path: Path) -> None:
    one, two = (read_policy(init_policy(tmp_path / name, "scans", "none", None)).account for name in "ab")
    assert one != two


@pytest.mark.parametrize("there", ["policy.toml", "ledger.jsonl"])
def test_nothing_is_replaced(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises((PolicyError, LedgerError)):
        init_policy(tmp_path, "scans", "pl-identical", 0.98)
    assert contents(tmp_path) == {there: b"mine"}


@pytest.mark.parametrize(
    ("data", "mechanism", "budget", "releases"),
    [
        ("", "pl-identical", 0.98, 1), ("a\nb", "pl-identical", 0.98, 1), ("d", "pl-lern", 0.98, 1),
        ("d", "none", 0.98, 1), ("d", "pl-learn", None, 1), ("d", "pl-learn", 0.98, 0),
    ],
)  # fmt: skip
def test_what_makes_no_policy_is_refused_and_nothing_is_written(
    data: str, mechanism: str, budget: float | None, releases: int, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        init_policy(tmp_path / "node", data, mechanism, budget, releases)
    assert not (tmp_path / "node").exists()


def test_names_with_quotes_are_read_back(tmp_path: Path) -> None:
    name = 'the "A" \\ scans'
    assert read_policy(init_policy(tmp_path, name, "none", None)).data == name


def test_an_experiment_keeps_no_ledger(tmp_path: Path) -> None:
    path = init_policy(tmp_path, "scans", "pl-learn", 0.98, experiment=True)
    assert list(contents(tmp_path)) == ["policy.toml"]
    assert read_policy(path).experiment
    assert "This is an experiment" in " ".join(show_policy(path))


def test_every_key_has_a_comment() -> None:
    assert {key for kind in MECHANISMS.values() if not kind.whole_run for key in needed(kind)} == set(COMMENTS)
    assert set(needed(MECHANISMS["gaussian-dp"])) == set(WHOLE_RUN)
    text = policy_text("d", MECHANISMS["pl-learn"], 0.98, 5, "abcd")
    assert all(f"# {COMMENTS[key]}" in text for key in needed(MECHANISMS["pl-learn"]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pl-identical", "noise of L2 norm 7.99 or more (what a PL budget of 0.98 asks for"),
        ("pl-learn", "in at most 10 steps of 0.1, up to 2 times that size: it leaks more than static noise"),
        ("ls-static", "noise of scale 0.05 or more in every coordinate"),
        (
            "laplace-dp",
            "all together at most 3.5 (replace one, unit: record); sums are divided by 4",
        ),
        ("gaussian-dp", "all runs together at most epsilon 8 and delta 5e-05 (add/remove, unit: record)"),
        ("gaussian-dp", "the right one of 200 equally likely candidates with at most 1.91 % (blindly: 0.5 %): proved"),
        ("none", "updates leave UNPROTECTED"),
    ],
)
def test_show_says_what_leaves_how_often_and_with_how_much_noise(name: str, words: str, tmp_path: Path) -> None:
    said = " ".join(show_policy(init_policy(tmp_path, "scans", name, budget_of(name), 7)))
    assert words in said
    assert f"{name}, at most 7 times" in said
    assert "So far 0 have left" in said
    assert "No evaluation on this node's data leaves." in said
    assert ("epsilon" in said) == name.endswith("-dp"), "of nothing else"
    assert ("no differential privacy" in said) == (not name.endswith("-dp") and name != "none")


def test_show_says_what_is_reserved_and_how_often_sums_were_reset(tmp_path: Path) -> None:
    path = init_policy(tmp_path, "scans")
    account = read_policy(path).account
    assert account is not None
    with Account.open(tmp_path / "ledger.jsonl", account) as held:
        held.reserve(reservation("7"))
        assert "Reserved for 1 run(s): epsilon 2, delta 1e-05 (add/remove)." in show_policy(path)
        held.reset("for the test")
    said = " ".join(show_policy(path))
    assert "Reserved" not in said
    assert "The sums were reset 1 time(s)" in said


def test_show_says_that_another_mechanism_takes_the_guarantee_away(tmp_path: Path) -> None:
    path = init_policy(tmp_path, "scans")
    path.write_text(path.read_text() + "\n[mechanisms.none]\nmost-releases = 1\n")
    assert any("once one left, none holds for this data as a whole" in line for line in show_policy(path))


def test_a_policy_has_a_guarantee_unless_told_otherwise(tmp_path: Path) -> None:
    policy = read_policy(init_policy(tmp_path, "scans"))
    assert dict(policy.mechanisms) == {
        "gaussian-dp": {
            "most-epsilon": 2.0, "most-delta": 1e-5, "most-total-epsilon": 8.0, "most-total-delta": 5e-5,
            "unit": "record", "divisor": 1000, "most-releases": 1000,
        }
    }  # fmt: skip
    assert policy.weight == 1.0


@pytest.mark.parametrize(("key", "value", "largest"), [("epsilon", 1.0, (1.0, 1e-5)), ("delta", 1e-6, (2.0, 1e-6))])
def test_show_warns_of_a_run_that_the_sums_never_let_start(
    key: str, value: float, largest: tuple[float, float], tmp_path: Path
) -> None:
    """And gives the limit of the largest run that can."""
    path = init_policy(tmp_path, "scans")
    said = " ".join(show_policy(path))
    assert "WARNING" not in said
    was = {"epsilon": "8.0", "delta": "5e-05"}[key]
    path.write_text(path.read_text().replace(f"most-total-{key} = {was}", f"most-total-{key} = {value}"))
    said = " ".join(show_policy(path))
    assert (
        "WARNING: a run with epsilon 2 and delta 1e-05 can never start, as all runs together may come to less" in said
    )
    assert f"the largest that can has epsilon {largest[0]:g} and delta {largest[1]:g}." in said
    most = percent_up(limit(1 / 200, noise_multiplier(*largest, 1), 1))
    assert f"equally likely candidates with at most {most} " in said


def test_show_says_of_a_misspelt_mechanism_that_it_is_none(tmp_path: Path) -> None:
    path = init_policy(tmp_path, "scans", "pl-identical", 0.98)
    path.write_text(path.read_text().replace("pl-identical", "pl-identicall"))
    said = " ".join(show_policy(path))
    assert "no mechanism that is known here Did you mean 'pl-identical'?" in said


def test_show_counts_what_has_left_and_notices_a_ledger_that_is_gone(tmp_path: Path) -> None:
    path = init_policy(tmp_path, "scans", "pl-identical", 0.98)
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError):
        show_policy(path)


def test_bounds_are_rounded_so_that_they_hold() -> None:
    for name, kind in MECHANISMS.items():
        bounds = default_bounds(kind, budget_of(name), 5)
        assert bounds["most-releases"] == 5


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["equipoise", "flower", "policy", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "init", "node", "--data", "scans") == 0
    said = capsys.readouterr().out
    assert "written: node/policy.toml" in said
    assert "equipoise.policy=" in said
    assert command(monkeypatch, "show", "node/policy.toml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["says"] == show_policy(Path("node/policy.toml"))
    assert command(monkeypatch, "init", "node", "--data", "scans") == PolicyError.exit_code
    assert "nothing was written" in capsys.readouterr().err
    assert command(monkeypatch, "show", "node", "--json") == 0, "the folder that init was given"
    assert json.loads(capsys.readouterr().out)["says"] == show_policy(Path("node/policy.toml"))
    assert command(monkeypatch, "show", "absent.toml") == PolicyError.exit_code


@pytest.mark.parametrize(("name", "said"), [("pruning", "compression ratio 10 "), ("outpost", "noise scale (risk 1) ")])
def test_of_what_shapes_the_update_a_policy_says_that_nothing_is_proved(name: str, said: str, tmp_path: Path) -> None:
    text = " ".join(show_policy(init_policy(tmp_path / "node", "scans", name, budget_of(name), 7)))
    assert f"updates are shaped, with {said}" in text
    assert "nothing is proved of what they tell" in text
    assert "UNPROTECTED" not in text


def test_a_policy_says_that_the_server_decides_how_much_the_noise_of_outpost_is(tmp_path: Path) -> None:
    """Its bound is met with nearly no noise beside the update, and with none where the weights are all alike."""
    kind = MECHANISMS["outpost"]
    told = {
        name: " ".join(show_policy(init_policy(tmp_path / name, "scans", name, budget_of(name), 7)))
        for name in ("outpost", "pruning", "ls-static")
    }
    assert "The server decides how much of this noise there is" in told["outpost"]
    assert "at least one coordinate of every tensor" in told["pruning"]
    assert "The server decides" not in told["ls-static"]
    bounds = read_policy(tmp_path / "outpost" / "policy.toml").mechanisms["outpost"]
    protection = ProtectionSettings(eta=100.0).at(kind, 1250, round_number=1)
    assert float(protection.scale) >= bounds["least-scale"], "so the words are needed"
    assert kind.shaping is not None
    update, scale = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([float(protection.scale)])
    shapes = [
        kind.shaping.shape(update, weights, torch.ones(1, 4), scale, ((0, 4),))
        for weights in (torch.full((1, 4), 0.5), torch.tensor([[1.0, -1.0, 1.0, -1.0]]))
    ]
    assert shapes[0].tolist() == [[4.0, 0.0, 0.0, 0.0]]
    assert shapes[1].tolist() != shapes[0].tolist()


@pytest.mark.parametrize(
    ("name", "said"), [("pruning", False), ("outpost", False), ("gaussian-dp", False), ("ls-static", True)]
)
def test_the_size_of_noise_is_named_where_it_leaves(name: str, said: bool, tmp_path: Path) -> None:
    text = " ".join(show_policy(init_policy(tmp_path / "node", "scans", name, budget_of(name), 7)))
    assert ("its mechanism and budget, the size of its noise" in text) == said
