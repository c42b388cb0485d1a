"""What the run config says for whoever audits the run: ``[tool.flwr.app.config.equipoise.audit]``.

No release depends on it, and clients do not look at it. Without it an audit takes the defaults, and says so.

===================  ===============================================================================================
audit.model          a bundled name, or where the model is built: ``my_app.task:Net``
audit.classes        how many classes it tells apart; 0 for not said
audit.batch          examples of a mini-batch of the clients
audit.local_steps    local steps behind one release
audit.mean, .std     with which clients normalise their inputs; of several channels JSON in a string, ``"[0.5, 0.4]"``
audit.snapshots      rounds whose global weights are kept, ``"[0, 1]"``; the last is kept anyway
===================  ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, is_count
from ..mechanism.protection import ProtectionSettings, check_protection
from ..runs.deployment import Deployment

KEYS = ("model", "classes", "batch", "local_steps", "mean", "std", "snapshots")
SNAPSHOTS = (0, 1)
"""Before the first round and after it, unless told otherwise."""


@dataclass(frozen=True)
class AuditTerms:
    """What an auditor is told of the clients' training, and which rounds are kept for it."""

    batch: int = ProtectionSettings.batch
    local_steps: int = ProtectionSettings.local_steps
    snapshots: tuple[int, ...] = SNAPSHOTS
    deployment: Deployment = field(default_factory=Deployment)


def read_audit_terms(given: Mapping[str, Any]) -> AuditTerms:
    """The keys of ``audit``, with lists already read; what is left out, empty or 0 was not said.

    >>> read_audit_terms({"model": "lenet-zhu", "batch": 8, "classes": 0, "snapshots": [0, 5]})
    AuditTerms(batch=8, local_steps=1, snapshots=(0, 5), deployment=Deployment(model='lenet-zhu', classes=None, ...
    """
    said = {key: value for key, value in given.items() if value not in ("", None)}
    deployment = Deployment(
        model=said.get("model"), classes=said.get("classes") or None, mean=said.get("mean"), std=said.get("std")
    )
    deployment.check()
    snapshots = said.get("snapshots", list(SNAPSHOTS))
    if not isinstance(snapshots, list) or not all(is_count(round_number) for round_number in snapshots):
        raise ConfigError(f"Expected equipoise.audit.snapshots={snapshots!r} to be rounds.", 'For example "[0, 1]".')
    training = {key: said[key] for key in ("batch", "local_steps") if key in said}
    check_protection(ProtectionSettings(**training))
    return AuditTerms(**training, snapshots=tuple(snapshots), deployment=deployment)
