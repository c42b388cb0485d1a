"""What ``equipoise choose --out`` writes: a run, a Flower run config and a node's policy that work as they are."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StorageError
from ..files import locked, storage_errors, write_bytes, write_text
from ..mechanism.protection import ProtectionSettings

if TYPE_CHECKING:
    from ..choosing.decision import Decision

CONFIG, FLOWER, POLICY, RESULT, PICTURE = "choice.toml", "flower.toml", "policy.toml", "choice.json", "choice.svg"
LOCK = ".lock"  # that ``files.locked`` leaves


def check_folder(folder: Path) -> None:
    """Make the folder, and refuse one that holds anything, before anything is computed: a policy counts releases."""
    if folder.is_symlink() and not folder.exists():
        raise StorageError(f"{folder} is a link that leads nowhere.", "Remove the link, or name another folder.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    probe = folder / f".{uuid.uuid4().hex}"
    write_bytes(probe, b"")  # a search of minutes must not end at a folder that takes no files
    with storage_errors(folder):
        probe.unlink()
    _refuse_full(folder)


def _refuse_full(folder: Path) -> None:
    with storage_errors(folder):
        names = {path.name for path in folder.iterdir()} - {LOCK}
    if POLICY in names:
        raise StorageError(
            f"{folder} has the {POLICY} of another choice, whose ledger may count releases: nothing was written.",
            "Keep it, and name a new folder: --out choice-2.",
        )
    if names:
        raise StorageError(f"{folder} is not an empty folder: nothing was written.", "Name a new one: --out choice-2.")


@contextlib.contextmanager
def ready(folder: Path | None) -> Iterator[None]:
    """A folder that is checked before a search; what the search did not come to fill is taken away again."""
    if folder is None:
        yield
        return
    before = folder.exists()
    check_folder(folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # such as: it holds something
            if not before:
                folder.rmdir()
        raise


def write_files(found: Decision, folder: Path) -> list[Path]:
    """All files of a decision; of one that does not meet its limit only the record of what was tried.

    Another search may have had the same folder: what lies there is looked at again under a lock.
    """
    with locked(folder):
        _refuse_full(folder)
        result = json.dumps(found.plain(), indent=1) + "\n"
        if not found.met:
            write_text(folder / RESULT, result)
            return [folder / RESULT]
        texts = {RESULT: result, CONFIG: config_text(found), FLOWER: flower_text(found)}
        policy = _policy(found, folder)  # the ledger first: what it counts must not be begun twice
        for name, text in texts.items():
            write_text(folder / name, text)
        return [*(folder / name for name in texts), *policy]


def config_text(found: Decision) -> str:
    """For ``equipoise train --config``."""
    lines = ["# Chosen by equipoise choose. A seeded experiment: equipoise train --config choice.toml"]
    lines += [f"# {sentence}" for sentence in found.sentences()]
    return "\n".join([*lines, "", found.config().to_toml()])


def flower_text(found: Decision) -> str:
    """The tables of an app's pyproject.toml that ``equipoise flower new`` writes, with what was chosen."""
    training, own = found.settings.training, found.settings.protection
    lines = [
        "# Chosen by equipoise choose: put these tables in place of those of the same name in your app's "
        "pyproject.toml.",
        *(f"# {sentence}" for sentence in found.sentences()),
        "",
        "[tool.flwr.app.config]",
        f"num-server-rounds = {training.rounds}",
        f"momentum = {training.server_momentum}  # of the server",
        f"min-nodes = {own.clients}",
        "round-timeout = 600  # seconds after which a round goes on without those that have not answered",
    ]
    if not found.proved:
        rate = found.settings.server_rates(found.config().federations()[0], [1], _size(found))[0]
        lines.append(f"server-learning-rate = {rate:.6g}  # for FedAvgM: what the mean update is multiplied with")
    lines += ["", "[tool.flwr.app.config.equipoise]", *_pairs(_terms(found))]
    if found.proved:
        gaussian = {
            "rounds": training.rounds, "delta": own.gaussian.delta, "clip": own.gaussian.clip,
            "sampling_rate": own.gaussian.sampling_rate, "noise_schedule": own.gaussian.noise_schedule,
        }  # fmt: skip
        lines += ["", "[tool.flwr.app.config.equipoise.gaussian]", *_pairs(gaussian)]
    return "\n".join(lines) + "\n"


def _terms(found: Decision) -> dict[str, Any]:
    training, own = found.settings.training, found.settings.protection
    # A client of gaussian-dp takes the server's whole step: noise and gradient are both multiplied by eta.
    rate = training.server_rate if found.proved and not isinstance(training.server_rate, str) else 1.0
    terms: dict[str, Any] = {"mechanism": found.mechanism, "budget": found.budget, "eta": own.eta * rate, "metrics": ""}
    return {**terms, "out": "", **_constants(own)}


def _constants(own: ProtectionSettings) -> dict[str, Any]:
    """What of a release differs from the defaults, by the names that a run config has."""
    from ..flower.run_config import OF_A_RELEASE

    usual = ProtectionSettings()
    pairs = {name: (getattr(own, name), getattr(usual, name)) for name in OF_A_RELEASE if name != "eta"}
    pairs |= {
        f"leakage.{part.name}": (getattr(own.leakage, part.name), getattr(usual.leakage, part.name))
        for part in fields(own.leakage)
    }
    return {name: "none" if value is None else value for name, (value, default) in pairs.items() if value != default}


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(_flat(value))}" for key, value in values.items()]


def _flat(value: Any) -> Any:
    """A Flower config holds numbers and words: a schedule is JSON in a string."""
    return json.dumps(value) if isinstance(value, dict | list) else value


def _size(found: Decision) -> int:
    """Parameters of the chosen model."""
    from ..engine.datasets import load_dataset
    from ..models.bundled import build

    data = load_dataset(found.settings, found.dataset)
    model = build(found.settings.training.model, data.shape, data.classes)
    return sum(parameter.numel() for parameter in model.parameters())


def _policy(found: Decision, folder: Path) -> list[Path]:
    """A policy that lets one run of the choice leave, and the ledger that counts it."""
    from ..flower.policy_file import LEDGER, default_bounds, policy_text
    from ..ledger.account import Account
    from ..mechanism.registry import get_mechanism

    mechanism, account = get_mechanism(found.mechanism), uuid.uuid4().hex
    rounds = found.settings.training.rounds
    bounds = default_bounds(mechanism, found.budget, rounds, found.settings.protection)
    if mechanism.whole_run:
        delta = found.settings.protection.gaussian.delta
        bounds |= {"most-total-epsilon": float(found.budget), "most-delta": delta, "most-total-delta": delta}
        bounds |= {"divisor": found.records, "unit": found.unit}
    text = policy_text(found.label, mechanism, found.budget, rounds, account, bounds)
    told = (
        "# Chosen by equipoise choose, for one run. Every node has a policy, a ledger and an account of its own: on "
        "another\n"
        "# node run equipoise flower policy init, and take the bounds below over.\n"
    )
    Account.create(folder / LEDGER, account)
    write_bytes(folder / POLICY, (told + text).encode(), mode=0o600)
    return [folder / POLICY, folder / LEDGER]
