"""Mistakes that people make: what each is told, word for word, and its exit code.

``docs/mistakes.md`` is made from this table: ``python -m tests.cli.test_mistakes`` writes it anew.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import equipoise as package
from equipoise.errors import EquipoiseError
from tests.helpers import Command, entry_point, write_dataset

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
HERE = "HERE"
"""Stands for the folder that a command is run in."""


class Mistake(NamedTuple):
    """A command line or a call, the exit code or error, and the two parts of the message."""

    did: str
    ends: int | str
    cause: str
    remedy: str


NO_MECHANISM = (
    "No --mechanism was given; the default, pl-learn, has no guarantee. For differential privacy: --mechanism "
    "gaussian-dp --budget 2 --set model=scatter-linear."
)
MECHANISMS = (
    "none, pl-identical, pl-learn, ls-static, ls-learn, gs-static, gs-learn, laplace-dp, gaussian-dp, pruning, outpost"
)
BUNDLED = (
    "Bundled: mnist, fmnist, breast-cancer, generated-text. Otherwise give a path: docs/data.md has the kinds of files."
)
MISTAKES: dict[str, list[Mistake]] = {
    "Training": [
        Mistake(
            "equipoise trane", 2,
            "No such command 'trane'.", "Did you mean 'train'?",
        ),
        Mistake(
            "equipoise train --mechanisms none", 2,
            "No such option: --mechanisms", "Did you mean --mechanism?",
        ),
        Mistake(
            "equipoise train --rounds many", 2,
            "Invalid value for '--rounds': 'many' is not a valid integer.", "",
        ),
        Mistake(
            "equipoise train --rounds 3", 11,
            "mnist pl-learn: The mechanism 'pl-learn' needs a budget.",
            f"Give one, for example --budget 0.98, or budget=0.98 in Python. {NO_MECHANISM}",
        ),
        Mistake(
            "equipoise train --budget 2", 14,
            "mnist pl-learn: Expected budget=2.0 to be < 1.",
            "A leakage score is at most 1, and a smaller budget is stricter: choose one below 1, for example 0.98. "
            f"{NO_MECHANISM}",
        ),
        Mistake(
            "equipoise train --epsilon 2", 2,
            "No such option: --epsilon.",
            "The epsilon of gaussian-dp is its budget: --mechanism gaussian-dp --budget 2.",
        ),
        Mistake(
            "equipoise guarantee --mechanism gaussian-dp --epsilon 2 --rounds 50", 2,
            "No such option: --mechanism.", "A guarantee of a whole run is that of gaussian-dp, and of no other.",
        ),
        Mistake(
            "equipoise train --mechanism none --set lr=0.1", 11,
            "Unknown key 'lr'.",
            "The learning rate of a client is 'eta'; what folders of schema 1 call 'lr' is 'gamma', the step of "
            "learned noise.",
        ),
        Mistake(
            "equipoise train --mechanism gaussian-dp --budget 2 --set delta=1e-6", 11,
            "Unknown key 'delta'.", "Did you mean 'gaussian.delta'?",
        ),
        Mistake(
            "equipoise train --mechanism gaussian-dp --budget 2 --rounds 0", 11,
            "Expected rounds=0 to be >= 1.", "Give rounds 1 or more.",
        ),
        Mistake(
            "equipoise train --budget 0.98 --rounds -5", 11,
            "Expected rounds=-5 to be >= 1.", "Give rounds 1 or more.",
        ),
        Mistake(
            "equipoise train --mechanism pl-lern --budget 0.98", 11,
            "mnist pl-lern: Unknown mechanism 'pl-lern'.", f"Did you mean 'pl-learn'? Known: {MECHANISMS}.",
        ),
        Mistake(
            "equipoise train --mechanism pl-learn --budget 98", 14,
            "mnist pl-learn: Expected budget=98.0 to be < 1.",
            "A leakage score is at most 1, and a smaller budget is stricter: choose one below 1, for example 0.98.",
        ),
        Mistake(
            "equipoise train --mechanism pl-learn --budget -0.5", 14,
            "mnist pl-learn: Expected budget=-0.5 to be >= 0.",
            "Choose one between 0 and 1, for example 0.98: no reconstruction is assumed to lie farther away than D.",
        ),
        Mistake(
            "equipoise train --mechanism ls-learn --budget 0", 14,
            "mnist ls-learn: Expected budget=0.0 to be > 0.",
            "Choose a positive one: the paper's are 80 to 800, and a smaller one is stricter.",
        ),
        Mistake(
            "equipoise train --mechanism gs-static --budget -3", 14,
            "mnist gs-static: Expected budget=-3.0 to be > 0.",
            "Choose a positive one: the paper's are 80 to 800, and a smaller one is stricter.",
        ),
        Mistake(
            "equipoise train --mechanism gaussian-dp --budget 2 --set clip=2", 11,
            "clip plays no part with gaussian-dp.",
            "Leave it out; the bound on a record's gradient is gaussian.clip.",
        ),
        Mistake(
            "equipoise train --mechanism gaussian-dp --budget 2000", 14,
            "mnist gaussian-dp: Expected epsilon=2000 to be <= 1000: beyond that nothing is promised.",
            "Choose a smaller one: 1 to 8 are usual.",
        ),
        Mistake(
            "equipoise train --mechanism gaussian-dp --budget 2 --set local_steps=2", 11,
            "The mechanism 'gaussian-dp' makes exactly one local step, got 2.", "Use local_steps = 1.",
        ),
        Mistake(
            "equipoise train --mechanism laplace-dp --budget 1 --set clip=none", 11,
            "mnist laplace-dp: A sensitivity is derived for one local step with a clip, got local_steps=1 and "
            "clip=none.",
            "For laplace-dp set local_steps = 1 and a clip (the bound on the L1 norm of an example's gradient).",
        ),
        Mistake(
            "equipoise train --mechanism pl-learn --budget high", 11,
            "mnist pl-learn: Expected budget to be one finite number or one for each of 4 clients, got 'high'.",
            "Give a single number, or a list as long as the number of clients.",
        ),
        Mistake(
            "equipoise train --mechanism pl-learn --budget '[0.97, 0.98]'", 11,
            "mnist pl-learn: Expected budget to be one finite number or one for each of 4 clients, got [0.97, 0.98].",
            "Give a single number, or a list as long as the number of clients.",
        ),
        Mistake(
            "equipoise train --mechanism none --seed one", 11,
            "sweep[0].seeds.0 = 'one': input should be a valid integer, unable to parse string as an integer.",
            "Correct --seed, or the [[sweep]] block of the TOML file.",
        ),
        Mistake(
            "equipoise train --mechanism none --set rouns=3", 11,
            "Unknown key 'rouns'.", "Did you mean 'rounds'?",
        ),
        Mistake(
            "equipoise train --config misspelt.toml", 11,
            "2 problems in the settings:\n  - Unknown key 'evaluate_evry'. Did you mean 'evaluate_every'?\n"
            "  - Unknown key 'sweep[0].budget'. Did you mean 'budgets'?",
            "Correct each of them.",
        ),
        Mistake(
            "equipoise train --config broken.toml", 11,
            "broken.toml is not valid TOML: Invalid value (at line 1, column 10).", "Correct that line.",
        ),
        Mistake(
            "equipoise train --config missing.toml", 11,
            "Cannot read missing.toml: No such file or directory.", "Check the path.",
        ),
        Mistake(
            "equipoise train --config settings/missing.toml", 11,
            "Cannot read settings/missing.toml: No such file or directory.", "Check the path.",
        ),
        Mistake(
            "equipoise train --mechanism none --set eta", 11,
            "Expected --set key=value, got 'eta'.", "Example: --set eta=0.05",
        ),
        Mistake(
            "equipoise train --mechanism none --set eta=fast", 11,
            "eta = 'fast': input should be a valid number, unable to parse string as a number.",
            "Set eta to such a value (on the command line: --set eta=VALUE).",
        ),
        Mistake(
            "equipoise train --mechanism none --model resnet", 11,
            "Unknown model 'resnet'. Did you mean 'resnet-gn'?",
            "Known: lenet-zhu, lenet-tanh, small-cnn, scatter-linear, resnet-gn, mlp, transformer, lstm; or "
            "module:callable, for example my_app.task:Net.",
        ),
        Mistake(
            "equipoise train --mechanism none --model transformer", 11,
            "The model 'transformer' is for tokens, and the data are numbers of shape (1, 28, 28).",
            "Use mlp, lenet-zhu, lenet-tanh, small-cnn, scatter-linear or resnet-gn.",
        ),
        Mistake(
            "equipoise train --mechanism none --model absent.models:make", 11,
            "There is no module 'absent' to import 'absent.models:make' from, in the current folder or among the "
            "installed packages.",
            "Run this in the folder that holds it, or install it.",
        ),
        Mistake(
            "equipoise train --mechanism none --set participants=9", 11,
            "Expected participants=9 to be in 1..clients=4.",
            "Set participants to such a value (on the command line: --set participants=VALUE).",
        ),
        Mistake(
            "equipoise train --mechanism none --device cuda", 11,
            "The device 'cuda' is not available.", "Use --device cpu.",
        ),
        Mistake(
            "equipoise train --mechanism none --device gpu", 11,
            "Expected device='gpu' to be 'cpu', 'cuda' or 'cuda:N'.",
            "Set device to such a value (on the command line: --set device=VALUE).",
        ),
    ],
    "Data": [
        Mistake(
            "equipoise train --mechanism none --dataset mnits", 12,
            "'mnits' is neither a bundled dataset nor a folder nor a file. Did you mean 'mnist'?", BUNDLED,
        ),
        Mistake(
            "equipoise train --mechanism none --dataset notes.txt", 12,
            f"{HERE}/notes.txt is no file of a known kind.", "Give a .csv, .parquet or .npz file, or a folder.",
        ),
        Mistake(
            "equipoise train --mechanism none --dataset empty", 12,
            f"No train-images-idx3-ubyte in {HERE}/empty.",
            "Put train-images-idx3-ubyte, train-images-idx3-ubyte.gz, train-images.idx3-ubyte or "
            "train-images.idx3-ubyte.gz there, or train.npz and test.npz with arrays images and labels; docs/data.md "
            "has folders of pictures, tables and text.",
        ),
        Mistake(
            "equipoise train --mechanism none --dataset nan", 12,
            "Expected train images to be finite in float32, got nan in row 0.", "Remove or repair that image.",
        ),
        Mistake(
            "equipoise train --mechanism none --dataset unequal", 12,
            "Expected as many train labels as images, got 19 and 20.", "Give every image one.",
        ),
    ],
    "Folders": [
        Mistake(
            "equipoise train --dataset digits --mechanism none --rounds 3 --out notes.txt", 17,
            "Cannot write notes.txt: notes.txt is a file, not a folder.", "Choose another name, or move it away.",
        ),
        Mistake(
            "equipoise train --dataset digits --mechanism none --rounds 3 --out /proc/run", 17,
            "Cannot write run: No such file or directory.",
            "Choose another folder: this one was removed, or its file system takes no new files.",
        ),
        Mistake(
            "equipoise train --dataset digits --mechanism none --rounds 3 --out run/config.toml/new", 17,
            "Cannot write run/config.toml/new: config.toml is a file, not a folder.",
            "Choose another name, or move it away.",
        ),
        Mistake(
            "equipoise train --dataset digits --mechanism none --rounds 3 --out full/../full", 16,
            "The folder full/../full is not empty and not a run folder.", "Choose another --out.",
        ),
        Mistake(
            "equipoise train --dataset digits --mechanism none --rounds 3 --out full", 16,
            "The folder full is not empty and not a run folder.", "Choose another --out.",
        ),
        Mistake(
            "equipoise train --dataset digits --mechanism pl-learn --budget 0.96 --rounds 3 --out run", 16,
            "The folder run holds a run with other settings (budget: 0.98 there, 0.96 here).",
            "Use --fresh to replace it, or another --out.",
        ),
        Mistake(
            "equipoise train --dataset digits --mechanism pl-learn --budget 0.98 --rounds 3 --out damaged", 16,
            "The checkpoint file state-00000003.safetensors is damaged (SHA-256 differs).", "Use --fresh.",
        ),
    ],
    "Auditing and bounds": [
        Mistake(
            "equipoise audit nowhere", 11,
            "There is no folder nowhere.", "Give a run folder: equipoise train --out RUN writes one.",
        ),
        Mistake(
            "equipoise audit runs/nope", 11,
            "There is no folder runs/nope.", "Give a run folder: equipoise train --out RUN writes one.",
        ),
        Mistake(
            "equipoise audit full", 16,
            "full is not a run folder: it has no config.toml.", "Train one first.",
        ),
        Mistake(
            "equipoise audit run --attack lit", 11,
            "Unknown attack 'lit'. Did you mean 'lti'?",
            "Known: invgrad, dlg, idlg, likelihood, unrolled, lti, matched, membership, labels, verify, multi-round.",
        ),
        Mistake(
            "equipoise audit run --targets 1", 11,
            "Too small: releases=1 (at least 2).", "Raise them, or leave them out.",
        ),
        Mistake(
            "equipoise audit run --attack lti", 12,
            "Dataset 'digits' has no public images to attack with.",
            "Name public data with --public PATH (public= in Python), or train again with --set public_fraction=0.1.",
        ),
        Mistake(
            "equipoise audit run --public mnits", 12,
            "'mnits' is neither a bundled dataset nor a folder nor a file. Did you mean 'mnist'?",
            BUNDLED,
        ),
        Mistake(
            "equipoise audit run --public mnist --model mlp", 11,
            "The configuration of this run names its model, 'lenet-zhu', not 'mlp'.", "Leave the model out.",
        ),
        Mistake(
            "equipoise bounds run --snapshots 9", 11,
            "There is no snapshot of round 9.", "There are: 0, 3.",
        ),
        Mistake(
            "equipoise bounds run --snapshots last", 11,
            "Expected --snapshots last to be whole numbers.", "For example --snapshots 0,200.",
        ),
        Mistake(
            "equipoise bounds run --set sampels=8", 11,
            "Unknown option 'sampels'. Did you mean 'samples'?",
            "Known: subproblems, repeats, samples, examples, power, short, iterations, seed.",
        ),
        Mistake(
            "equipoise bounds run --targets 1", 11,
            "Expected targets=1 to be 0 or a whole number >= 2.",
            "Attack none or several: one release has no interval.",
        ),
    ],
    "Choosing and reproducing": [
        Mistake(
            "equipoise calibrate --mechanism none", 11,
            "The mechanism 'none' has no budget to calibrate.",
            f"Choose one that has: {MECHANISMS.removeprefix('none, ')}.",
        ),
        Mistake(
            "equipoise calibrate --mechanism ls-learn", 11,
            "The mechanism 'ls-learn' needs a budget.", "Give one, for example --budget 200, or budget=200 in Python.",
        ),
        Mistake(
            "equipoise calibrate --mechanism pl-learn,ls-learn --budget 0.98", 11,
            "Expected one --mechanism and one --budget.", "Run it once for each.",
        ),
        Mistake(
            "equipoise calibrate --model mlp --identification 0.001", 11,
            "Expected an identification rate of 0.001 to lie between chance, 1/100, and 1: so many public records of a "
            "class are candidates.",
            "Give one above 0.01, for example 0.015, or set more public records apart.",
        ),
        Mistake(
            "equipoise calibrate --model mlp --mechanism gaussian-dp --budget 2", 11,
            "What an attacker can get under 'gaussian-dp' is proved, and needs no measuring.",
            "Run equipoise guarantee, which shows the limits.",
        ),
        Mistake(
            "equipoise calibrate --search --mechanism pl-learn", 11,
            "calibrate does not search for settings.",
            "equipoise choose does, by training: for example equipoise choose --dataset mnist --epsilon 2.",
        ),
        Mistake(
            "equipoise choose --dataset digits --epsilon 2", 12,
            "The dataset 'digits' has no public images to choose on.",
            "Set some apart that belong to no client: --set public_fraction=0.2. Or tune on the clients' own training "
            "records, which no epsilon covers: --on-private-records.",
        ),
        Mistake(
            "equipoise choose --dataset mnist", 11,
            "No limit was given.",
            "Give --epsilon (for example 2), --identification (0.02) or --accuracy (0.9): just one of them.",
        ),
        Mistake(
            "equipoise reproduce gap", 11,
            "Unknown artefact 'gap'. Did you mean 'gaps'?",
            "Known: all, accuracy-ls, accuracy-pl, defence-ls, defence-pl, gaps, cap, trade-off, clients, layers, "
            "reconstructions, stepwise, gradient-norm, configuration, sweeps.",
        ),
        Mistake(
            "equipoise reproduce cap --plan full", 11,
            "Cannot write the SPEC to 'full': it is a folder.", "Name a file, as SPEC.json.",
        ),
        Mistake(
            "equipoise reproduce cap --status --plan SPEC.json", 11,
            "--status, --plan and --from exclude each other.", "Give one of them.",
        ),
    ],
    "Ledger, Flower, doctor": [
        Mistake(
            "equipoise ledger full", 19,
            "The folder full has no ledger.jsonl.", "Give a run folder that has one, or the file.",
        ),
        Mistake(
            "equipoise ledger runs/nope", 19,
            "There is no ledger runs/nope.", "Give a run folder that has one, or the file.",
        ),
        Mistake(
            "equipoise ledger tampered", 19,
            "Line 2 of the ledger was changed, or the one before it was: its hash does not follow.",
            "Restore the ledger from a copy; it proves nothing now.",
        ),
        Mistake(
            "equipoise ledger run --delta 2", 11,
            "Expected delta=2.0 to lie in [0, 1).", "For example 1e-5.",
        ),
        Mistake(
            "equipoise flower new json", 11,
            "'json' cannot be the name of an app: it would hide a module that Python has under 'json'.",
            "Choose another name, for example json-app.",
        ),
        Mistake(
            "equipoise flower new full", 17,
            "full is not an empty folder: nothing was written.", "Name a new one.",
        ),
        Mistake(
            "equipoise flower demo --nodes 1", 11,
            "Expected nodes=1 to be >= 2.", "Give nodes 2 or more.",
        ),
        Mistake(
            "equipoise flower demo --out full", 17,
            "full holds other things than a demo of before: nothing was touched.",
            "Name a folder that is new or empty, with --out.",
        ),
        Mistake(
            "equipoise doctor --fix", 2,
            "No such option: --fix", "",
        ),
    ],
    "In Python": [
        Mistake(
            'protect(model, received, (x, y), "pl-lern", 0.98)', "ConfigError",
            "Unknown mechanism 'pl-lern'. Did you mean 'pl-learn'?", f"Known: {MECHANISMS}.",
        ),
        Mistake(
            'protect(model, received, (x, y), "pl-learn")', "ConfigError",
            "The mechanism 'pl-learn' needs a budget.",
            "Give one, for example --budget 0.98, or budget=0.98 in Python.",
        ),
        Mistake(
            'protect(model, received, (x, y), "none", 0.98)', "ConfigError",
            "The mechanism 'none' takes no budget, got 0.98.", "Leave the budget out.",
        ),
        Mistake(
            'protect(model, received, (x, y), "pl-learn", 1.2)', "BudgetError",
            "Expected budget=1.2 to be < 1.",
            "A leakage score is at most 1, and a smaller budget is stricter: choose one below 1, for example 0.98.",
        ),
        Mistake(
            'protect(model, received, (x, y), "pl-learn", "0.98")', "ConfigError",
            "Expected budget to be one finite number or one for each of 1 clients, got '0.98'.",
            "Give a single number, or a list as long as the number of clients.",
        ),
        Mistake(
            'protect(model, received, x, "pl-learn", 0.98)', "DataError",
            "Expected the batch to be a pair of tensors (inputs, labels).",
            "Pass (x, y); of several inputs ((x1, x2), y), or ({'a': x1, 'b': x2}, y) with the names of forward.",
        ),
        Mistake(
            'protect(model, received, (x * float("nan"), y), "pl-learn", 0.98)', "DataError",
            "The inputs of the batch are not finite.", "Remove NaN and Inf before training.",
        ),
        Mistake(
            'protect(model, received, (x, y[:2]), "pl-learn", 0.98)', "DataError",
            "Expected as many inputs as labels, at least one, got shapes (4, 1, 28, 28) and (2,).",
            "Pass a full batch.",
        ),
        Mistake(
            'protect(model, received, (x, y.float()), "pl-learn", 0.98)', "DataError",
            "Expected labels [B] of type int64, got torch.float32 (4,).",
            "Convert them with labels.long(), or pass a loss= that takes them.",
        ),
        Mistake(
            'protect(model, received, (x, y + 10), "pl-learn", 0.98)', "DataError",
            "Expected labels in 0..9; at least one lies outside.",
            "Number the classes from 0, or give the model an output for each.",
        ),
        Mistake(
            'protect(model, received, (x, y), "laplace-dp", 1.0)', "ConfigError",
            "The mechanism 'laplace-dp' cannot distort a model that was trained elsewhere: how far one example could "
            "have moved it is not known.",
            "Call protected_step, which makes the local step itself.",
        ),
        Mistake(
            'protected_step(model, received, (x, y), "gaussian-dp", 2.0)', "ConfigError",
            "A budget of a whole run needs round_number.", "Number its releases 1 to gaussian.rounds.",
        ),
        Mistake(
            'protected_step(model, received, (x, y), "gaussian-dp", 2.0, round_number=1)', "ConfigError",
            "The budget of gaussian-dp is for a whole run, and its rounds are not known.", "Set gaussian.rounds.",
        ),
        Mistake(
            'protected_step(model, received, (x, y), "ls-static", 200, loss=nn.CrossEntropyLoss(reduction="none"))',
            "ModelError",
            "The loss returned shape (4,), expected one number.",
            "Return the mean over the batch: reduction='mean', or .mean().",
        ),
        Mistake(
            'protect(model, received, (x, y), "pl-learn", 0.98, settings=Settings())', "ConfigError",
            "Expected the settings of a release, got Settings.",
            "Pass ProtectionSettings, or the .protection of your Settings.",
        ),
        Mistake(
            "Settings.flat(lr=0.1)", "ConfigError",
            "Unknown key 'lr'.",
            "The learning rate of a client is 'eta'; what folders of schema 1 call 'lr' is 'gamma', the step of "
            "learned noise.",
        ),
        Mistake(
            "Update(model, received)", "ConfigError",
            "Expected either the state after the update or a gradient.", "Give after= or gradient=.",
        ),
        Mistake(
            "audit(Update(model, received, received), truth=x)", "DataError",
            "Expected the truth as a pair (inputs, labels).", "Give truth=(x, y).",
        ),
        Mistake(
            "audit(Update(model, received, received))", "ConfigError",
            "The shape of one input is not known.",
            "Give truth=(inputs, labels), or Attacker(shape=(channels, height, width)).",
        ),
        Mistake(
            'audit(Update(model, received, received), truth=(x, y), options=AuditOptions(attacks=["lti"]))',
            "ConfigError",
            "lti needs public inputs: Attacker(public=(inputs, labels)).", "Give it, or leave the attack out.",
        ),
        Mistake(
            'audit(Update(model, received, received), options=AuditOptions(attacks=["lit"]))', "ConfigError",
            "Unknown attack 'lit'. Did you mean 'lti'?",
            "Known: invgrad, dlg, idlg, likelihood, unrolled, lti, matched, membership, labels, verify, multi-round.",
        ),
        Mistake(
            "audit(Update(model, received, {}), truth=(x, y))", "ModelError",
            "Missing tensors: conv1.weight, conv1.bias, conv2.weight, conv2.bias, conv3.weight, conv3.bias, fc.weight, "
            "fc.bias.",
            "Give the state dict of the same model.",
        ),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what people have: data good and bad, runs whole and damaged, files of their own."""
    folder = tmp_path_factory.mktemp("world")
    before = Path.cwd()
    os.chdir(folder)
    try:
        make_world()
        yield folder
    finally:
        os.chdir(before)


def make_world() -> None:
    from equipoise.runs.config import resolve
    from equipoise.runs.run import Run

    write_dataset(Path("digits"))
    sweep = {"datasets": ["digits"], "mechanisms": ["pl-learn"], "budgets": [0.98]}
    Run(Path("run"), resolve(overrides={"rounds": 3}, sweep=sweep)).execute()
    shutil.copytree("run", "damaged")
    (state,) = Path("damaged", "checkpoint").glob("*.safetensors")
    state.write_bytes(state.read_bytes()[:1000])
    shutil.copytree("run", "tampered")
    ledger = Path("tampered", "ledger.jsonl")
    ledger.write_text(ledger.read_text(encoding="utf-8").replace("0.98", "0.99"), encoding="utf-8")
    for name in ("full", "empty"):
        Path(name).mkdir()
    Path("full", "thesis.md").write_text("mine")
    Path("notes.txt").write_text("mine")
    Path("misspelt.toml").write_text('evaluate_evry = 5\n[[sweep]]\nmechanisms = ["none"]\nbudget = [0.98]\n')
    Path("broken.toml").write_text("rounds = \n")
    images = np.full((20, 28, 28), 0.5, dtype=np.float32)
    write_pairs("unequal", images, np.arange(19) % 10)
    images[0, 0, 0] = np.nan
    write_pairs("nan", images, np.arange(20) % 10)


def write_pairs(folder: str, images: Any, labels: Any) -> None:
    Path(folder).mkdir()
    for split in ("train", "test"):
        np.savez(Path(folder, f"{split}.npz"), images=images, labels=labels)


@pytest.fixture
def equipoise(world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return entry_point(world, monkeypatch, capfd)


ALL = [mistake for mistakes in MISTAKES.values() for mistake in mistakes]
COMMANDS = [mistake for mistake in ALL if isinstance(mistake.ends, int)]
CALLS = [mistake for mistake in ALL if isinstance(mistake.ends, str)]


@pytest.mark.parametrize("mistake", COMMANDS, ids=lambda mistake: mistake.did)
def test_a_command_says_what_is_wrong_and_what_to_do(equipoise: Command, world: Path, mistake: Mistake) -> None:
    done = equipoise(*shlex.split(mistake.did)[1:])
    assert done.out == "", "nothing is printed before what is wrong"
    if mistake.ends == 2:  # in a box, by the library that parses
        text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.err).split())
        assert " ".join(part for part in (mistake.cause, mistake.remedy) if part) in text
    else:
        assert done.err.replace(str(world), HERE) == f"error: {EquipoiseError(mistake.cause, mistake.remedy)}\n"
        assert mistake.remedy
    assert done.code == mistake.ends


@pytest.mark.parametrize("mistake", CALLS, ids=lambda mistake: mistake.did)
def test_a_call_says_what_is_wrong_and_what_to_do(mistake: Mistake) -> None:
    model = package.LeNetZhu()
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, y = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3])
    known = {
        **{name: getattr(package, name) for name in package.__all__},
        "nn": torch.nn,
        "model": model,
        "received": received,
        "x": x,
        "y": y,
    }
    with pytest.raises(EquipoiseError) as caught:
        eval(mistake.did, known)
    assert (caught.value.cause, caught.value.remedy) == (mistake.cause, mistake.remedy)
    assert type(caught.value).__name__ == mistake.ends
    assert mistake.remedy


def test_there_are_many_and_none_twice() -> None:
    assert len(ALL) >= 30
    assert len({mistake.did for mistake in ALL}) == len(ALL)
    commands = {mistake.did.split()[1] for mistake in COMMANDS}
    assert commands >= {"train", "audit", "calibrate", "bounds", "reproduce", "ledger", "flower", "doctor"}


# -- the page ------------------------------------------------------------------------------------------------------


def page() -> str:
    """``docs/mistakes.md``: what was done, what was said, what to do."""
    lines = [
        "# Mistakes that people make", "",
        "What a command or a call says to them, word for word, and its [exit code](errors/README.md). Made by "
        "`python -m tests.cli.test_mistakes` from the table that the tests hold; `HERE` is the folder of the command.",
    ]  # fmt: skip
    for area, mistakes in MISTAKES.items():
        lines += ["", f"## {area}", "", "| what you did | message | what to do |", "| --- | --- | --- |"]
        for mistake in mistakes:
            ends = f"exit code {mistake.ends}" if isinstance(mistake.ends, int) else mistake.ends
            remedy = mistake.remedy or f"`{' '.join(mistake.did.split()[:2])} --help` lists what there is."
            lines.append(f"| `{_cell(mistake.did)}` | {_cell(mistake.cause)} ({ends}) | {_cell(remedy)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n  - ", "<br>• ")


def test_the_page_is_made_from_this_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
