"""What is computed for the artefacts: which federations, with what changed in the paper's settings, measured how.

Needs are sets, so that nothing is computed twice: artefacts that need the same federation share it, and what a folder
of raw records already holds is left out of the jobs. Torch and numpy alone, so the artefacts are not imported here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product, starmap
from typing import Any, NamedTuple

from ..engine.federation import Federation
from ..engine.settings import Settings, named_as_before
from ..environment import VERSION
from ..mechanism.registry import get_mechanism

SCHEMA = 1
DATASETS = ("mnist", "fmnist")
FAMILIES = {"LS": ("ls-static", "ls-learn"), "PL": ("pl-identical", "pl-learn")}
BUDGETS: dict[str, tuple[float, ...]] = {"LS": (80, 200, 400, 600, 800), "PL": (0.96, 0.97, 0.98, 0.99, 0.995)}
BELOW = {"LS": 60, "PL": 0.95}
"""Budgets below the paper's grid, at which it says that static noise does not train."""
SHOWN = {"LS": 200, "PL": 0.98}
"""Budgets of the figures on layers and reconstructions."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is computed."""

    name: str
    seeds: tuple[int, ...]
    rounds: int
    evaluate_every: int
    curve_every: int  # rounds between points of a client's curve
    gradient_every: int  # rounds between squared gradient norms
    full_every: int  # rounds between utility losses on clients' full data
    iterations: int  # of InvGrad
    attacked: int  # clients whose release is attacked, in every seed
    pictured: int  # public batches that are attacked for the picture
    inner_steps: tuple[int, ...]  # M other than the paper's 10
    inner_rates: tuple[float, ...]  # gamma other than the paper's 0.1
    baselines: bool  # whether the baselines that cost as much as learning are run


FULL = Scale(
    name="full", seeds=tuple(range(1, 9)), rounds=5000, evaluate_every=250, curve_every=100, gradient_every=50,
    full_every=250, iterations=1600, attacked=4, pictured=16, inner_steps=(1, 3, 30),
    inner_rates=(0.01, 0.03, 0.3, 1.0), baselines=True,
)  # fmt: skip
QUICK = Scale(
    name="quick", seeds=(1, 2), rounds=200, evaluate_every=100, curve_every=50, gradient_every=50, full_every=100,
    iterations=300, attacked=2, pictured=4, inner_steps=(1,), inner_rates=(0.01, 1.0), baselines=False,
)  # fmt: skip

Needs = dict[str, dict[Federation, set[str]]]
"""group -> federation -> measurements."""


class Need(NamedTuple):
    """A federation to be trained, and one thing to be measured on it."""

    federation: Federation
    measure: str  # a key of its record: accuracy, inversion, clients, tensors, pictures, utility or gradients
    group: str = "paper"


def grid(
    datasets: Iterable[str],
    mechanisms: Iterable[str],
    budgets: Iterable[float | None],
    seeds: Iterable[int],
    measure: str,
    group: str = "paper",
) -> Iterator[Need]:
    """The same measurement on every combination.

    >>> [need.federation.label() for need in grid(["mnist"], ["pl-learn"], [0.96, 0.98], [1], "accuracy")]
    ['mnist pl-learn @ 0.96 (seed 1)', 'mnist pl-learn @ 0.98 (seed 1)']
    """
    for federation in starmap(Federation, product(datasets, mechanisms, budgets, seeds)):
        yield Need(federation, measure, group)


GROUPS: dict[str, dict[str, Any]] = {
    "paper": {},
    "damped": {"server_rate": "auto"},
    "eleven-steps": {"local_steps": 11},
}
"""What a group of federations changes in the paper's settings."""
SWEPT: dict[str, tuple[str, type]] = {"M": ("steps", int), "gamma": ("gamma", float)}
"""The paper's letter -> the setting that a group such as ``M=30`` changes."""


def group_settings(group: str) -> dict[str, Any]:
    """What a group changes in the paper's settings.

    >>> group_settings("M=30"), group_settings("damped")
    ({'steps': 30}, {'server_rate': 'auto'})
    """
    letter, _, value = group.partition("=")
    if letter in SWEPT:
        setting, kind = SWEPT[letter]
        return {setting: kind(value)}
    return GROUPS[group]


def settings_of(scale: Scale, group: str, device: str) -> Settings:
    """The paper's settings at this scale, with what the group changes."""
    base = Settings.flat(rounds=scale.rounds, evaluate_every=scale.evaluate_every, snapshots=[], device=device)
    return base.replace(**group_settings(group))


# -- jobs ---------------------------------------------------------------------------------------------------------


def jobs(wanted: Needs, scale: Scale, device: str, commit: str | None = None) -> list[dict[str, Any]]:
    """One job per group: everything it trains runs as one batch."""
    results = []
    for group, federations in wanted.items():
        job = {
            "group": group,
            "settings": settings_of(scale, group, device).plain(),
            "federations": [asdict(federation) for federation in federations],
            "measures": [sorted(measures) for measures in federations.values()],
            "scale": json.loads(json.dumps(asdict(scale))),
            "version": VERSION,
            "commit": commit,
        }
        results.append({"name": f"{group.replace('=', '-')}-{digest(job)[:8]}", **job})
    return results


BY_THE_WAY = ("device", "threads", "chunk", "ledger", "release_limit")
"""Settings that no raw record depends on: where a job runs, and what a run folder would keep besides."""


def digest(job: dict[str, Any]) -> str:
    """Tells one job from another; where and from which commit it runs is no part of it."""
    settings = {k: value for k, value in named_as_before(job["settings"]).items() if k not in BY_THE_WAY}
    what = {**{key: job[key] for key in ("group", "federations", "measures", "scale", "version")}, "settings": settings}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def spec(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The SPEC that ``equipoise.compute`` runs."""
    return {"reproduction": {"schema": SCHEMA, "version": VERSION, "jobs": results}}


def without(wanted: Needs, done: Needs) -> Needs:
    """What is still to be computed; a federation that lacks one measurement is trained again for that one alone."""
    missing: Needs = {}
    for group, federations in wanted.items():
        for federation, measures in federations.items():
            rest = measures - done.get(group, {}).get(federation, set())
            if rest:
                missing.setdefault(group, {})[federation] = rest
    return missing


RATES = {"cpu": 5e3, "cuda": 2.1e5}
"""Mini-batch gradients a second, on two cores and on an H200: what the estimate of the time rests on."""


def estimated_seconds(results: list[dict[str, Any]], device: str) -> float:
    """A rough guess of how long the jobs take: gradients of training, and steps of the attack at twice the price."""
    total = 0.0
    for job in results:
        s = job["settings"]
        for federation, measures in zip(job["federations"], job["measures"], strict=True):
            each = s["local_steps"] + (s["steps"] if get_mechanism(federation["mechanism"]).learns else 0)
            total += s["clients"] * s["rounds"] * each
            batches = job["scale"]["attacked"] * ("inversion" in measures) + job["scale"]["pictured"] * (
                "pictures" in measures
            )
            total += 2 * batches * job["scale"]["iterations"]
    return total / RATES["cuda" if device.startswith("cuda") else "cpu"]
