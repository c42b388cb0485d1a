"""Federated learning in which every client distorts its update under a stated privacy budget.

The rooms, in the order of the data; each imports only rooms before it (docs/architecture.md)::

    data -> models -> privacy -> mechanism (budget, intensity, distortion: Algorithm 2, release) -> ledger -> server
         -> engine (Algorithm 1) -> runs -> attack -> auditing -> bounds -> reproduction -> choosing
         -> flower -> report -> cli

From your own training loop, ``protect(model, start, batch, "pl-learn", 0.98)`` is all that is needed, and
``audit(Update(model, before, after), truth=(x, y)).summary()`` says what a server could see in an update. What is
proved, measured and not claimed is in docs/guarantees.md: a budget is a calibration of the distortion, never an
(epsilon, delta).
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
    from .attack.results import LabelGuesses as LabelGuesses
    from .attack.results import MembershipScores as MembershipScores
    from .auditing.attacker import Attacker as Attacker
    from .auditing.audit import Audit as Audit
    from .auditing.options import AuditOptions as AuditOptions
    from .auditing.run_audit import audit_run as audit_run
    from .auditing.update import Update as Update
    from .auditing.update_audit import audit as audit
    from .bounds.options import BoundsOptions as BoundsOptions
    from .bounds.run import bounds_run as bounds_run
    from .data.dataset import from_tensors as from_tensors
    from .data.loading import load as load
    from .engine.federation import Federation as Federation
    from .engine.settings import Settings as Settings
    from .engine.sweep import Sweep as Sweep
    from .errors import EquipoiseError as EquipoiseError
    from .mechanism.budget import GaussianBudget as GaussianBudget
    from .mechanism.budget import LaplaceBudget as LaplaceBudget
    from .mechanism.budget import LeakageBudget as LeakageBudget
    from .mechanism.distortion import learn_distortion as learn_distortion
    from .mechanism.intensity import scale_clip as scale_clip
    from .mechanism.protect import protect as protect
    from .mechanism.protection import ProtectionSettings as ProtectionSettings
    from .models.batched import Batched as Batched
    from .models.bundled import LeNetZhu as LeNetZhu

_HOMES = {
    "Attack": "attack.attack",
    "Attacker": "auditing.attacker",
    "Audit": "auditing.audit",
    "AuditOptions": "auditing.options",
    "Batched": "models.batched",
    "BoundsOptions": "bounds.options",
    "CandidateScores": "attack.results",
    "EquipoiseError": "errors",
    "Federation": "engine.federation",
    "GaussianBudget": "mechanism.budget",
    "Inversion": "attack.results",
    "LabelGuesses": "attack.results",
    "LaplaceBudget": "mechanism.budget",
    "LeNetZhu": "models.bundled",
    "LeakageBudget": "mechanism.budget",
    "MembershipScores": "attack.results",
    "Option": "attack.attack",
    "ProtectionSettings": "mechanism.protection",
    "Settings": "engine.settings",
    "Sweep": "engine.sweep",
    "Update": "auditing.update",
    "audit": "auditing.update_audit",
    "audit_run": "auditing.run_audit",
    "bounds_run": "bounds.run",
    "from_tensors": "data.dataset",
    "learn_distortion": "mechanism.distortion",
    "load": "data.loading",
    "protect": "mechanism.protect",
    "register_attack": "attack.registry",
    "scale_clip": "mechanism.intensity",
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
