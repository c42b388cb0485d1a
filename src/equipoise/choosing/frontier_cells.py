"""What a candidate at one strength came to: accuracy, cost, and leakage in every scope. Rules: ``frontier_plan``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from statistics import mean
from typing import Any

import numpy as np

from ..auditing.results import Outcome, able, interval_of
from ..auditing.store import Values
from ..engine.settings import Settings, present_names
from ..errors import CheckpointError
from ..mechanism.registry import get_mechanism
from ..models.bundled import build
from ..models.features import FeatureModel
from ..statistics import Array, bootstrap_tpr, interval, rate_interval, tpr_at
from .frontier_plan import STAGES, stages_by_round
from .frontier_store import PARTS

Row = dict[str, Any]
WHOLE = "run"
"""The scope beside the four stages."""
ATTACKS = ("matched", "lti")
"""Of single releases, in the order in which one of two alike is named."""
CHANCE = 1 / 200


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What makes a cell: everything but the seed and the scope."""

    dataset: str
    mechanism: str
    model: str
    server: str  # plain, damped, or momentum (that of gaussian-dp, tuned)
    budget: float | None
    batch: int | None  # None: all records of a client in every round
    local_steps: int
    clients: int
    partition: str
    rounds: int
    public: int | None = None  # public records that were trained on, and nothing else

    @classmethod
    def of(cls, spec: Row, federation: Row) -> Setting:
        s = spec["settings"]
        whole = get_mechanism(federation["mechanism"]).whole_run
        server = "damped" if s["server_rate"] == "auto" else "plain"
        return cls(
            dataset=federation["dataset"], mechanism=federation["mechanism"], model=s["model"],
            server="momentum" if s["server_momentum"] else server, budget=federation["budget"],
            batch=None if whole else s["batch"], local_steps=s["local_steps"], clients=s["clients"],
            partition=f"dirichlet {s['dirichlet']:g}" if s["partition"] == "dirichlet" else s["partition"],
            rounds=s["rounds"],
        )  # fmt: skip


@dataclass
class Found:
    """All that was measured in one setting."""

    spec: Row = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)  # by seed, after the last round
    outcomes: dict[tuple[str, int, str], dict[int, Outcome]] = field(default_factory=lambda: defaultdict(dict))
    """By attack, round and role; then by seed."""
    run: Row | None = None  # multi-round
    limits: list[Row] = field(default_factory=list)
    candidates: int = 200
    final: int = 0  # the round after which accuracy was taken


def collected(values: Values) -> dict[Setting, Found]:
    """By setting, in the order of the parts."""
    found: dict[Setting, Found] = defaultdict(Found)
    for part in values.about[PARTS].values():
        spec = part["spec"]
        if "public" in spec:
            continue
        for federation in spec["federations"]:
            found[Setting.of(spec, federation)].spec = spec
        last = spec["settings"]["rounds"]
        stages = part.get("accuracy", [])
        final = max((row["round"] for row in stages), default=last)
        for federation in spec["federations"]:
            found[Setting.of(spec, federation)].final = final if stages else found[Setting.of(spec, federation)].final
        for row in stages:
            if row["round"] == final:
                found[Setting.of(spec, row)].accuracy[row["seed"]] = row["accuracy"]
        for row in part.get("attacks", []):
            found[Setting.of(spec, row)].run = row
        for row in part.get("limits", []):
            found[Setting.of(spec, row)].limits.append(row)
    for one in values.outcomes:
        part = values.about[PARTS][one.about["part"]]
        mine = found[Setting.of(part["spec"], one.about)]
        mine.candidates = part["candidates"] or mine.candidates
        mine.outcomes[one.attack, one.about["round"], one.about["role"]][one.about["seed"]] = one
    return dict(found)


def cells(values: Values) -> list[Row]:
    """One row for every setting and scope."""
    rows = [row for setting, found in collected(values).items() for row in _cells(setting, found)]
    return [*rows, *_public_cells(values)]


def _cells(setting: Setting, found: Found) -> Iterator[Row]:
    about = {**_about(setting), **_accuracy(list(found.accuracy.values())), **_cost(setting, found.spec)}
    about["accuracy_round"] = found.final
    if get_mechanism(setting.mechanism).whole_run:
        for scope, rows in _limits(setting, found).items():
            yield {**about, "scope": scope, **rows}
        return
    for number in sorted({number for _, number, _ in found.outcomes}):
        yield {**about, "scope": _scope(setting, number), **_stage(found, number)}
    if found.run is not None:
        yield {**about, "scope": WHOLE, **_whole(found.run)}


def _scope(setting: Setting, number: int) -> int:
    """The stage of a round, whatever else was attacked."""
    known = stages_by_round(setting.rounds, get_mechanism(setting.mechanism).whole_run)
    if number not in known:
        raise CheckpointError(
            f"Releases after round {number} of {setting.rounds} were attacked; stages: {', '.join(map(str, known))}.",
            "Compute a SPEC of equipoise frontier --plan.",
        )
    return known[number]


def _about(setting: Setting) -> Row:
    about = asdict(setting)
    formal = get_mechanism(setting.mechanism).whole_run
    return {
        **about, "epsilon": setting.budget if formal else None, "delta": 1e-5 if formal else None,
        "relation": "add/remove" if formal else None,
    }  # fmt: skip


def _accuracy(values: Sequence[float]) -> Row:
    low, high = interval(values) or (None, None)
    return {
        "seeds": len(values),
        "accuracy": mean(values) if values else None,
        "accuracy_low": low,
        "accuracy_high": high,
    }


def _cost(setting: Setting, spec: Row) -> Row:
    """Of one client in one round: gradients of one record, and bytes that it sends."""
    mechanism = get_mechanism(setting.mechanism)
    size = parameters(setting.model)
    records = 4000 // setting.clients if setting.batch is None else setting.batch * setting.local_steps
    steps = spec["settings"]["steps"] * (setting.batch or 0) if mechanism.learns else 0
    kept = 1.0
    if setting.mechanism == "pruning" and setting.budget is not None:  # a number and its place, where that is shorter
        kept = min(1.0, 2 * setting.budget)
    return {"gradients": records + steps, "bytes": math.ceil(4 * size * kept)}


@cache
def parameters(model: str) -> int:
    """How many numbers of a bundled model are trained, for pictures of 28 x 28."""
    network = build(model)
    network = network.head_model() if isinstance(network, FeatureModel) else network
    return sum(one.numel() for one in network.parameters())


# -- at a stage --------------------------------------------------------------------------------------------------------


def _stage(found: Found, number: int) -> Row:
    """The strongest attack on releases after a round, and membership."""
    tried = {
        name: _identified(found, name, number) for name in ATTACKS if found.outcomes.get((name, number, "own"))
    }  # fmt: skip
    strongest = max(tried, key=lambda name: (tried[name]["identification"], -ATTACKS.index(name)))
    others = {f"identification_{name}": row["identification"] for name, row in tried.items()}
    return {**tried[strongest], "attack": strongest, **_members(found, number), **others, "proved_identification": None}


def _identified(found: Found, attack: str, number: int) -> Row:
    own = found.outcomes[attack, number, "own"]
    table, ranks = (_joined(own.values(), name) for name in ("identification", "rank"))
    each = [interval_of("identification", one.values["identification"]) for one in own.values()]
    ends = list(zip(*(one for one in each if one is not None), strict=True)) if all(each) else None
    low, high = (None, None) if ends is None else (min(ends[0]), max(ends[1]))  # trajectories differ by more
    control = found.outcomes.get((attack, number, "undistorted")) or own
    shown = _joined(control.values(), "identification")
    least = (rate_interval(shown) or (None, None))[0]
    bar = {"identification": float(shown.mean()), "identification_low": least, "chance": f"1 in {found.candidates}"}
    return {
        "identification": float(table.mean()), "identification_low": low, "identification_high": high,
        "identification_each": [float(one.values["identification"].mean()) for one in own.values()],
        "log_rank": float(np.log1p(ranks).mean()), "trajectories": len(own), "releases": len(table),
        "candidates": found.candidates, "undistorted": float(shown.mean()),
        "impostor": mean(float(one.negative["identification"].mean()) for one in own.values()),
        "control_failed": not able(bar, None),
    }  # fmt: skip


def _joined(outcomes: Collection[Outcome], name: str) -> Array:
    """Values of all trajectories side by side, ``[N, ...]``: a release is drawn with all of them."""
    tables = [one.values[name].reshape(len(one.values[name]), -1) for one in outcomes]
    numbers = [len(table) for table in tables]
    if len(set(numbers)) > 1:
        about = next(iter(outcomes)).about
        raise CheckpointError(
            f"Trajectories of {about['mechanism']} {about['budget']} on {about['dataset']} after round "
            f"{about['round']} have different numbers of releases: {', '.join(map(str, numbers))}.",
            "Compute the part again: every trajectory is attacked on the same releases.",
        )
    return np.concatenate(tables, axis=1)


def _members(found: Found, number: int) -> Row:
    own = found.outcomes.get(("membership", number, "own"))
    if not own:
        return {"membership_tpr_at_1pct": None, "membership_low": None, "membership_high": None}
    members, others = (_joined(own.values(), name) for name in ("members", "others"))
    low, high = bootstrap_tpr(members, others) or (None, None)
    return {"membership_tpr_at_1pct": tpr_at(members, others), "membership_low": low, "membership_high": high}


# -- over the run ------------------------------------------------------------------------------------------------------


def _whole(row: Row) -> Row:
    name, members = "identification_schedule_known", "membership_tpr_schedule_known"
    return {
        "attack": "multi-round", "identification": row[name], "identification_low": row[f"{name}_low"],
        "identification_high": row[f"{name}_high"], "log_rank": row["log_rank_schedule_known"],
        "membership_tpr_at_1pct": row[members], "membership_low": row[f"{members}_low"],
        "membership_high": row[f"{members}_high"], "trajectories": 1, "releases": row["targets"],
        "candidates": row["candidates"], "undistorted": row[f"{name}_undistorted"], "impostor": row[f"{name}_decoy"],
        "control_failed": row["control_failed"], "proved_identification": None,
    }  # fmt: skip


def _limits(setting: Setting, found: Found) -> dict[Any, Row]:
    """Games of ``gaussian-dp`` by scope, beside what is proved."""
    numbers = sorted({row["round"] for row in found.limits if row["round"] is not None})
    scopes: dict[Any, Any] = {number: _scope(setting, number) for number in numbers} | {None: WHOLE}
    result: dict[Any, Row] = {}
    for number, scope in scopes.items():
        own = [row for row in found.limits if row["round"] == number]
        which = next((row for row in own if row["measure"] == "identification"), None)
        if which is None:
            continue
        alarms = next(row for row in own if row["measure"] == "membership_tpr" and row["fpr"] == 0.01)
        result[scope] = {
            "attack": "known-others", "identification": which["measured"], "identification_low": which["low"],
            "identification_high": which["high"], "log_rank": which["log_rank"],
            "membership_tpr_at_1pct": alarms["measured"], "membership_low": alarms["low"],
            "membership_high": alarms["high"], "trajectories": 1, "releases": which["games"],
            "candidates": which["candidates"], "undistorted": which["undistorted"], "impostor": which["impostor"],
            "control_failed": which["control_failed"], "proved_identification": _proved(which),
            "above": any(row["above"] for row in (which, alarms)) if "above" in which else None,
        }  # fmt: skip
    return result


def _proved(row: Mapping[str, Any]) -> float | None:
    """The limit beside a row; where the machine that played had no accounting, from its terms."""
    if row.get("limit") is not None:
        return float(row["limit"])
    from ..auditing.limit_comparison import compared

    value = compared([dict(row)])[0]["limit"]
    return None if value is None else float(value)


# -- public records alone ----------------------------------------------------------------------------------------------


def _public_cells(values: Values) -> Iterator[Row]:
    """Nothing of anyone is sent: every attacker is left with chance. Of several rates the best on tuning records."""
    by_rate: dict[tuple[Any, ...], dict[float, list[Row]]] = defaultdict(lambda: defaultdict(list))
    specs: dict[tuple[Any, ...], Row] = {}
    for part in values.about[PARTS].values():
        spec = part["spec"]
        if "public" not in spec:
            continue
        for row in part["federations"]:
            key = row["dataset"], spec["settings"]["model"], row["public"]
            by_rate[key][spec["settings"]["eta"]].append(row)
            specs[key] = spec
    for key, rates in sorted(by_rate.items()):
        best = max(rates.values(), key=lambda rows: mean(row["tuning_accuracy"] for row in rows))
        settings = Settings.flat(**present_names(specs[key]["settings"]))
        setting = Setting(
            dataset=key[0], mechanism="none", model=key[1], server="plain", budget=None, local_steps=1, clients=0,
            batch=settings.protection.batch, partition="none", rounds=settings.training.rounds, public=key[2],
        )  # fmt: skip
        nothing = {"identification": CHANCE, "identification_low": None, "identification_high": None}
        about = {**_about(setting), **_accuracy([row["accuracy"] for row in best]), "gradients": 0, "bytes": 0}
        about["accuracy_round"] = setting.rounds
        for scope in (*STAGES, WHOLE):
            yield {
                **about, "scope": scope, "attack": None, **nothing, "log_rank": None, "membership_tpr_at_1pct": 0.01,
                "membership_low": None, "membership_high": None, "trajectories": 0, "releases": 0,
                "candidates": round(1 / CHANCE), "undistorted": None, "impostor": None, "control_failed": False,
                "proved_identification": CHANCE,
            }  # fmt: skip
