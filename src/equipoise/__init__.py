"""Federated learning in which every client distorts its update under a stated privacy budget.

The rooms, in the order of the data; each imports only rooms before it (docs/architecture.md)::

    data -> models -> privacy -> mechanism (budget, intensity, distortion: Algorithm 2, release) -> ledger -> server
         -> engine (Algorithm 1) -> runs -> attack -> auditing -> bounds -> reproduction -> choosing
         -> flower -> report -> cli

With a guarantee, ``protected_step(model, received, records, "gaussian-dp", 2.0, settings=...)`` is one release of a run
that is (epsilon, delta)-differentially private as a whole, and ``guarantee(epsilon=2.0, rounds=50)`` says what that is
worth. ``protect(model, received, batch, "pl-identical", 0.98)`` distorts what you trained, without one, and
``audit(Update(model, before, after), truth=(x, y)).summary()`` says what a server could see in an update. What is
proved, measured and not claimed is in docs/guarantees.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attack.attack import Attack as Attack
    from .attack.attack import Option as Option
    from .attack.registry import register_attack as register_attack
    from .attack.results import CandidateScores as CandidateScores
    from .attack.results import Inversion as Inversion
    from .attack.results import LabelCounts as LabelCounts
    from .attack.results import LabelGuesses as LabelGuesses
    from .attack.results import MembershipScores as MembershipScores
    from .attack.view import Server as Server
    from .attack.view import View as View
    from .auditing.attacker import Attacker as Attacker
    from .auditing.audit import Audit as Audit
    from .auditing.options import AuditOptions as AuditOptions
    from .auditing.run_audit import audit_run as audit_run
    from .auditing.update import Update as Update
    from .auditing.update_audit import audit as audit
    from .bounds.options import BoundsOptions as BoundsOptions
    from .bounds.run import Bounds as Bounds
    from .bounds.run import bounds_run as bounds_run
    from .bounds.theory import distortion_bounds as distortion_bounds
    from .bounds.trajectory import follow as follow
    from .choosing.choose import choose as choose
    from .choosing.decision import Decision as Decision
    from .data.dataset import Dataset as Dataset
    from .data.dataset import from_tensors as from_tensors
    from .data.loading import load as load
    from .data.partition import partition as partition
    from .data.torch_data import from_torch as from_torch
    from .engine.federation import Federation as Federation
    from .engine.settings import Settings as Settings
    from .engine.sweep import Sweep as Sweep
    from .errors import AttackError as AttackError
    from .errors import BudgetError as BudgetError
    from .errors import CheckpointError as CheckpointError
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import EquipoiseError as EquipoiseError
    from .errors import FleetError as FleetError
    from .errors import LedgerError as LedgerError
    from .errors import LimitError as LimitError
    from .errors import ModelError as ModelError
    from .errors import PolicyError as PolicyError
    from .errors import ReleaseError as ReleaseError
    from .errors import StorageError as StorageError
    from .ledger.ledger import Ledger as Ledger
    from .ledger.report import ledger_report as ledger_report
    from .mechanism.budget import GaussianBudget as GaussianBudget
    from .mechanism.budget import LaplaceBudget as LaplaceBudget
    from .mechanism.budget import LeakageBudget as LeakageBudget
    from .mechanism.distortion import learn_distortion as learn_distortion
    from .mechanism.intensity import scale_clip as scale_clip
    from .mechanism.noise import NoiseFamily as NoiseFamily
    from .mechanism.noise import register_noise as register_noise
    from .mechanism.protect import protect as protect
    from .mechanism.protect import protected_step as protected_step
    from .mechanism.protection import ProtectionSettings as ProtectionSettings
    from .mechanism.registry import MeasureKind as MeasureKind
    from .mechanism.registry import Mechanism as Mechanism
    from .mechanism.registry import get_mechanism as get_mechanism
    from .mechanism.registry import register as register
    from .mechanism.run_budget import GaussianSettings as GaussianSettings
    from .mechanism.sent import Protected as Protected
    from .models.batched import Batched as Batched
    from .models.bundled import LeNetZhu as LeNetZhu
    from .models.features import FeatureModel as FeatureModel
    from .models.features import features_of as features_of
    from .models.features import scatter_linear as scatter_linear
    from .models.probe import linear_probe as linear_probe
    from .models.scattering import Scattering as Scattering
    from .privacy.accounting import basic_epsilon as basic_epsilon
    from .privacy.accounting import composed_epsilon as composed_epsilon
    from .privacy.guarantee import Guarantee as Guarantee
    from .privacy.guarantee import guarantee as guarantee
    from .runs.config import Config as Config
    from .runs.config import resolve as resolve
    from .runs.folder import RunFolder as RunFolder
    from .runs.run import Run as Run
    from .server.intake import Aggregate as Aggregate
    from .server.intake import Intake as Intake

_HOMES = {
    "Aggregate": "server.intake",
    "Attack": "attack.attack",
    "AttackError": "errors",
    "Attacker": "auditing.attacker",
    "Audit": "auditing.audit",
    "AuditOptions": "auditing.options",
    "Batched": "models.batched",
    "Bounds": "bounds.run",
    "BoundsOptions": "bounds.options",
    "BudgetError": "errors",
    "CandidateScores": "attack.results",
    "CheckpointError": "errors",
    "Config": "runs.config",
    "ConfigError": "errors",
    "DataError": "errors",
    "Dataset": "data.dataset",
    "Decision": "choosing.decision",
    "EquipoiseError": "errors",
    "Federation": "engine.federation",
    "FeatureModel": "models.features",
    "FleetError": "errors",
    "GaussianBudget": "mechanism.budget",
    "GaussianSettings": "mechanism.run_budget",
    "Guarantee": "privacy.guarantee",
    "Intake": "server.intake",
    "Inversion": "attack.results",
    "LabelCounts": "attack.results",
    "LabelGuesses": "attack.results",
    "LaplaceBudget": "mechanism.budget",
    "LeNetZhu": "models.bundled",
    "LeakageBudget": "mechanism.budget",
    "Ledger": "ledger.ledger",
    "LedgerError": "errors",
    "LimitError": "errors",
    "MeasureKind": "mechanism.registry",
    "Mechanism": "mechanism.registry",
    "MembershipScores": "attack.results",
    "ModelError": "errors",
    "NoiseFamily": "mechanism.noise",
    "Option": "attack.attack",
    "Protected": "mechanism.sent",
    "ProtectionSettings": "mechanism.protection",
    "PolicyError": "errors",
    "ReleaseError": "errors",
    "Run": "runs.run",
    "RunFolder": "runs.folder",
    "Scattering": "models.scattering",
    "Server": "attack.view",
    "Settings": "engine.settings",
    "StorageError": "errors",
    "Sweep": "engine.sweep",
    "Update": "auditing.update",
    "View": "attack.view",
    "audit": "auditing.update_audit",
    "audit_run": "auditing.run_audit",
    "basic_epsilon": "privacy.accounting",
    "bounds_run": "bounds.run",
    "choose": "choosing.choose",
    "composed_epsilon": "privacy.accounting",
    "distortion_bounds": "bounds.theory",
    "features_of": "models.features",
    "follow": "bounds.trajectory",
    "from_tensors": "data.dataset",
    "from_torch": "data.torch_data",
    "get_mechanism": "mechanism.registry",
    "guarantee": "privacy.guarantee",
    "learn_distortion": "mechanism.distortion",
    "ledger_report": "ledger.report",
    "linear_probe": "models.probe",
    "load": "data.loading",
    "partition": "data.partition",
    "protect": "mechanism.protect",
    "protected_step": "mechanism.protect",
    "register": "mechanism.registry",
    "register_attack": "attack.registry",
    "register_noise": "mechanism.noise",
    "resolve": "runs.config",
    "scale_clip": "mechanism.intensity",
    "scatter_linear": "models.features",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module(".environment", __name__).VERSION
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
