"""What has to be computed for which artefact: federations, settings that differ from the paper's, measurements.

Needs are sets, so that nothing is computed twice: artefacts that need the same federation share it, and what a folder
of raw records already holds is left out of the jobs. Torch and numpy alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..engine.federation import Federation
from ..engine.settings import Settings
from ..environment import VERSION
from ..errors import ConfigError, closest

SCHEMA = 1
DATASETS = ("mnist", "fmnist")
FAMILIES = {"LS": ("ls-static", "ls-learn"), "PL": ("pl-identical", "pl-learn")}
BUDGETS: dict[str, tuple[float, ...]] = {"LS": (80, 200, 400, 600, 800), "PL": (0.96, 0.97, 0.98, 0.99, 0.995)}
BELOW = {"LS": 60, "PL": 0.95}
"""Budgets below the paper's grid, at which it says that static noise does not train."""
SHOWN = {"LS": 200, "PL": 0.98}
"""Budgets of the figures on layers and reconstructions."""
CURVES = {"LS": 200, "PL": 0.975}
"""Budgets of the figure on clients."""
GRADIENT_BUDGETS = (600, 800, 1000)

KINDS = {
    "accuracy-ls": "accuracy",
    "accuracy-pl": "accuracy",
    "defence-ls": "defence",
    "defence-pl": "defence",
    "gaps": "summary",
    "cap": "summary",
    "trade-off": "figure",
    "clients": "figure",
    "layers": "figure",
    "reconstructions": "figure",
    "stepwise": "figure",
    "gradient-norm": "figure",
}
"""The twelve artefacts of the paper."""
BESIDE = ("configuration", "sweeps")
"""What stands beside them: the configuration table, and M and gamma swept."""
NAMES = (*KINDS, *BESIDE)


@dataclass(frozen=True)
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


FULL = Scale("full", tuple(range(1, 9)), 5000, 250, 100, 50, 250, 1600, 4, 16, (1, 3, 30), (0.01, 0.03, 0.3, 1.0), True)
QUICK = Scale("quick", (1, 2), 200, 100, 50, 50, 100, 300, 2, 4, (1,), (0.01, 1.0), False)

Needs = dict[str, dict[Federation, set[str]]]
"""group (settings that differ from the paper's) -> federation -> measurements."""


def check_names(names: Iterable[str]) -> list[str]:
    """The artefacts that are meant; ``all`` and nothing mean every one."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in NAMES and name != "all":
            raise ConfigError(
                f"Unknown artefact {name!r}.{closest(name, [*NAMES, 'all'])}", f"Known: all, {', '.join(NAMES)}."
            )
    return chosen if chosen and "all" not in chosen else list(NAMES)


def group_settings(group: str) -> dict[str, Any]:
    """What a group changes in the paper's settings.

    >>> group_settings("M=30"), group_settings("damped")
    ({'steps': 30}, {'server_rate': 'auto'})
    """
    named: dict[str, dict[str, Any]] = {
        "paper": {},
        "damped": {"server_rate": "auto"},
        "eleven-steps": {"local_steps": 11},
    }
    name, _, value = group.partition("=")
    if name == "M":
        return {"steps": int(value)}
    if name == "gamma":
        return {"lr": float(value)}
    return named[group]


def settings_of(scale: Scale, group: str, device: str) -> Settings:
    """The paper's settings at this scale, with what the group changes."""
    base = Settings(rounds=scale.rounds, evaluate_every=scale.evaluate_every, snapshots=[], device=device)
    return replace(base, **group_settings(group))


def needs(names: Iterable[str], scale: Scale) -> Needs:
    """Everything that the artefacts need, each federation once."""
    found: Needs = {}
    for name in names:
        for group, federation, measure in _needs(name, scale):
            found.setdefault(group, {}).setdefault(federation, set()).add(measure)
    return found


Need = tuple[str, Federation, str]


def _needs(name: str, scale: Scale) -> Iterator[Need]:
    if name in ("accuracy-ls", "accuracy-pl", "defence-ls", "defence-pl"):
        yield from _table(name, scale)
    elif name == "trade-off":
        yield from (need for part in ("accuracy-ls", "accuracy-pl") for need in _table(part, scale))
    elif name in ("gaps", "cap"):
        yield from (need for part in ("defence-ls", "defence-pl") for need in _table(part, scale))
    elif name == "clients":
        for family, kinds in FAMILIES.items():
            yield from _each(("fmnist",), kinds, [CURVES[family]], scale.seeds, "clients")
    elif name == "layers":
        for family, (_, learned) in FAMILIES.items():
            yield from _each(DATASETS, [learned], [SHOWN[family]], scale.seeds, "tensors")
    elif name == "reconstructions":
        for family, kinds in FAMILIES.items():
            yield from _each(DATASETS, kinds, [SHOWN[family]], scale.seeds[:1], "pictures")
        yield from _each(DATASETS, ["none"], [None], scale.seeds[:1], "pictures")
    elif name == "stepwise":
        yield from _each(DATASETS, FAMILIES["LS"], [SHOWN["LS"]], scale.seeds, "utility")
    elif name == "gradient-norm":
        yield from _each(DATASETS, ["ls-learn"], GRADIENT_BUDGETS, scale.seeds, "gradients")
    elif name == "sweeps":
        yield from _sweeps(scale)


def _each(
    datasets: Iterable[str],
    mechanisms: Iterable[str],
    budgets: Iterable[float | None],
    seeds: Iterable[int],
    measure: str,
    group: str = "paper",
) -> Iterator[Need]:
    for dataset in datasets:
        for mechanism in mechanisms:
            for budget in budgets:
                for seed in seeds:
                    yield group, Federation(dataset, mechanism, budget, seed), measure


def _table(name: str, scale: Scale) -> Iterator[Need]:
    """A table's twenty cells, no protection, and for accuracy the baselines and the budget below the grid."""
    kind, _, family = name.partition("-")
    family = family.upper()
    static, learned = FAMILIES[family]
    measure = "accuracy" if kind == "accuracy" else "inversion"
    yield from _each(DATASETS, (static, learned), BUDGETS[family], scale.seeds, measure)
    yield from _each(DATASETS, ["none"], [None], scale.seeds, measure)
    if kind != "accuracy":
        return
    yield from _each(DATASETS, (static, learned), [BELOW[family]], scale.seeds, measure)
    damped = (static, learned) if scale.baselines else (static,)
    yield from _each(DATASETS, damped, BUDGETS[family], scale.seeds, measure, "damped")
    if scale.baselines:
        yield from _each(DATASETS, [static], BUDGETS[family], scale.seeds, measure, "eleven-steps")


def _sweeps(scale: Scale) -> Iterator[Need]:
    groups = [f"M={steps}" for steps in scale.inner_steps] + [f"gamma={rate:g}" for rate in scale.inner_rates]
    for family, (static, learned) in FAMILIES.items():
        yield from _each(DATASETS, (static, learned), [SHOWN[family]], scale.seeds, "accuracy")
        for group in groups:
            yield from _each(DATASETS, [learned], [SHOWN[family]], scale.seeds, "accuracy", group)


# -- jobs ---------------------------------------------------------------------------------------------------------


def jobs(wanted: Needs, scale: Scale, device: str, commit: str | None = None) -> list[dict[str, Any]]:
    """One job per group: everything it trains runs as one batch."""
    found = []
    for group, federations in wanted.items():
        job = {
            "group": group,
            "settings": asdict(settings_of(scale, group, device)),
            "federations": [asdict(federation) for federation in federations],
            "measures": [sorted(measures) for measures in federations.values()],
            "scale": json.loads(json.dumps(asdict(scale))),
            "version": VERSION,
            "commit": commit,
        }
        found.append({"name": f"{group.replace('=', '-')}-{digest(job)[:8]}", **job})
    return found


BY_THE_WAY = ("device", "threads", "chunk", "ledger", "release_limit")
"""Settings that no raw record depends on: where a job runs, and what a run folder would keep besides."""


def digest(job: dict[str, Any]) -> str:
    """Tells one job from another; where and from which commit it runs is no part of it."""
    settings = {key: value for key, value in job["settings"].items() if key not in BY_THE_WAY}
    what = {**{key: job[key] for key in ("group", "federations", "measures", "scale", "version")}, "settings": settings}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def spec(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The SPEC that ``equipoise.compute`` runs."""
    return {"reproduction": {"schema": SCHEMA, "version": VERSION, "jobs": found}}


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


def estimated_seconds(found: list[dict[str, Any]], device: str) -> float:
    """A rough guess of how long the jobs take: gradients of training, and steps of the attack at twice the price."""
    total = 0.0
    for job in found:
        s = job["settings"]
        for federation, measures in zip(job["federations"], job["measures"], strict=True):
            each = s["local_steps"] + (s["steps"] if federation["mechanism"].endswith("learn") else 0)
            total += s["clients"] * s["rounds"] * each
            batches = job["scale"]["attacked"] * ("inversion" in measures) + job["scale"]["pictured"] * (
                "pictures" in measures
            )
            total += 2 * batches * job["scale"]["iterations"]
    return total / RATES["cuda" if device.startswith("cuda") else "cpu"]
