"""What the frontier compares, by which rules, and the SPECs that compute it.

Rules, fixed before any result:

* **Candidates and strengths** are those of ``CANDIDATES``: nothing is tuned here. The paper's mechanisms have the
  settings that reproduce its tables; ``gaussian-dp`` has what a user gets who names an epsilon alone.
* **Accuracy** is that on test data after the last round, over ``SEEDS``, with Student's interval.
* **Leakage** is measured on the candidate's own trajectory: at its first weights, after 4 and 40 % of its rounds and at
  the end (*stages*), and over the whole run. *Identification* is the share of records that an attacker picks out of 200
  (chance 0.5 %), *log-rank* the mean logarithm of one plus the rank of the right one, *membership* the share of members
  that it recognises at 1 % false alarms.
* **Which attacks.** At a stage ``matched`` and, with batches of 4, ``lti``, on ``ATTACKED`` trajectories; over the run
  ``multi-round`` on one of them, told which releases hold the record. Against ``gaussian-dp`` the attacker of the proof
  instead, who knows every other record and the noise: it is granted more than the others, so its figures err to the
  disadvantage of ``gaussian-dp``. Whoever trained on public records alone has sent nothing, and is not attacked.
* **The strongest** attack of a cell is the one with the largest mean identification over the trajectories; of two alike
  the first named above. Taking the larger of two adds a little to both sides. Membership is that of ``membership``.
* **Intervals** of leakage are over releases (at a stage) or records (over the run), of 95 %, and correct for nothing.
  (Changed after the first results: where two trajectories were attacked, the ends are the outer ones of the intervals
  of both, because trajectories differ by more than releases do.)
* **Controls.** Each cell has the same attack on the undistorted releases, and an impostor in the truth's place; where
  the first does not exceed ten times chance the cell says ``control_failed``, and counts for no claim.
* **Equal accuracy.** For each of the paper's twenty cells: among the strengths of the recommended mechanism
  (``RECOMMENDED``) that are at least as accurate in the mean as the learner (as reproduced, ``reproduction/``), the one
  with the smallest epsilon. Where none is, the cell says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ..engine.federation import Federation
from ..engine.recommended import recommended
from ..engine.settings import Settings, to_dict

DATASETS = ("mnist", "fmnist")
SEEDS, ATTACKED, REPLAYED = (1, 2, 3, 4, 5), (1, 2), 2
"""Of training; those whose trajectories are attacked at stages; the one that is attacked over the whole run."""
ROUNDS = 5000
STAGES = (0, 4, 40, 100)
"""Percent of the rounds."""
PL, LS = (0.96, 0.97, 0.98, 0.99, 0.995), (80, 200, 400, 600, 800)
"""The paper's budgets."""
FEW = (0.96, 0.98, 0.995)
EPSILONS = (0.1, 0.2, 0.35, 0.5, 0.7, 1, 1.4, 2, 4, 8)
PUBLIC, PUBLIC_RATES = (200, 1000), (0.5, 2.0, 5.0, 10.0)
"""Public images, and rates of the head among which their own tuning images choose."""


@dataclass(frozen=True)
class Candidate:
    """One way to protect, at several strengths."""

    name: str
    words: str
    kinds: Sequence[tuple[str, Sequence[float | None]]]  # mechanisms with their strengths
    change: dict[str, Any] = field(default_factory=dict)  # of the paper's settings

    @property
    def model(self) -> str:
        return str(self.change.get("model", "lenet-zhu"))

    @property
    def whole_run(self) -> bool:
        return any(name == "gaussian-dp" for name, _ in self.kinds)

    def settings(self, **more: Any) -> Settings:
        keys: dict[str, Any] = recommended("gaussian-dp", self.model) if self.whole_run else {"rounds": ROUNDS}
        clients = more.get("clients", 4)
        if self.whole_run and clients != 4:  # the same 4,000 records, among more clients
            keys = {**keys, "gaussian": {**keys["gaussian"], "divisor": 4000 / clients}}
        return Settings.flat(**{**keys, **self.change, **more})

    def federations(self, dataset: str, seeds: Sequence[int]) -> list[Federation]:
        return [
            Federation(dataset, name, strength, seed)
            for seed in seeds for name, strengths in self.kinds for strength in strengths
        ]  # fmt: skip


STATIC, LEARNED = "pl-identical", "pl-learn"
CANDIDATES = {
    one.name: one
    for one in (
        Candidate("paper-pl", "the paper's noise, PL budgets", [("none", [None]), (STATIC, PL), (LEARNED, PL)]),
        Candidate("paper-ls", "the paper's noise, LS budgets", [("ls-static", LS), ("ls-learn", LS)]),
        Candidate(
            "dp-scatter", "gaussian-dp, scatter-linear", [("gaussian-dp", EPSILONS)], {"model": "scatter-linear"}
        ),
        Candidate("damped", "with a damped server", [(STATIC, PL), (LEARNED, FEW)], {"server_rate": "auto"}),
        Candidate("batch-44", "batches of 44", [("none", [None]), (STATIC, FEW)], {"batch": 44}),
        Candidate("batch-44-damped", "batches of 44", [(STATIC, FEW)], {"batch": 44, "server_rate": "auto"}),
        Candidate("dp-lenet", "gaussian-dp, lenet-zhu", [("gaussian-dp", (1, 2, 4, 8))], {"model": "lenet-zhu"}),
        Candidate("eleven", "eleven local steps", [(STATIC, (0.98, 0.995))], {"local_steps": 11}),
        Candidate(
            "eleven-damped", "eleven local steps", [(STATIC, (0.98,))], {"local_steps": 11, "server_rate": "auto"}
        ),
        Candidate(
            "other", "defences of the literature", [("pruning", (0.001, 0.01, 0.1)), ("outpost", (0.125, 0.5, 1.25, 5))]
        ),
    )
}
"""In the order in which they are computed."""
RECOMMENDED = "dp-scatter"
WIDER: dict[str, dict[str, Any]] = {
    "clients-32": {"clients": 32},
    "dirichlet": {"partition": "dirichlet", "dirichlet": 0.3},
}
"""In which six candidates are looked at again: the same records among 32 clients, and labels by Dirichlet(0.3)."""
AGAIN = [
    Candidate("paper-pl", "", [("none", [None]), (STATIC, (0.98, 0.995)), (LEARNED, (0.98, 0.995))]),
    replace(CANDIDATES["batch-44-damped"], kinds=[(STATIC, (0.98, 0.995))]),
    replace(CANDIDATES["dp-lenet"], kinds=[("gaussian-dp", (2, 8))]),
    replace(CANDIDATES["dp-scatter"], kinds=[("gaussian-dp", (0.5, 2, 8))]),
]
AGAIN_SEEDS, AGAIN_ATTACKED = (1, 2, 3), (1,)

KEPT = ["identification", "log_rank", "members", "others"]
"""What is kept of every release."""
EFFORT: dict[str, Any] = {
    "candidates": 200, "tuning": 32, "trials": 64, "pictures": 0, "twins": False, "samples": 2000, "keep": KEPT,
    "releases": 200, "others": 8, "label_sets": 2, "pairs": 4, "anchors": 4, "around": 64,
}  # fmt: skip
"""Of attacks on releases of batches of 4."""
LARGE: dict[str, Any] = {"releases": 27, "others": 40, "label_sets": 1, "pairs": 1, "around": 96}
"""What differs for releases of 44 records: the pool has distinct ones for so many."""
RUN: dict[str, Any] = {"examples": 40, "decoys": 199, "around": 32, "pairs": 1, "unknown": False}
GAMES: dict[str, Any] = {"games": 500, "among": 200, "seed": 0}


def rounds_of(settings: Settings, whole_run: bool) -> list[int]:
    """After which rounds a release is attacked, stage by stage; a budget of a whole run has none after the last."""
    return list(stages_by_round(settings.training.rounds, whole_run))


def stages_by_round(rounds: int, whole_run: bool) -> dict[int, int]:
    """Which stage, in percent, an attack after a round belongs to.

    >>> stages_by_round(50, whole_run=True)
    {0: 0, 2: 4, 20: 40, 49: 100}
    """
    return {min(rounds * stage // 100, rounds - 1 if whole_run else rounds): stage for stage in STAGES}


def parts(device: str = "cuda") -> dict[str, dict[str, Any]]:
    """Every SPEC by its name, the most important first."""
    result: dict[str, dict[str, Any]] = {}
    for one in CANDIDATES.values():
        for dataset in DATASETS:
            result |= stages(one, dataset, one.settings(device=device), SEEDS, ATTACKED, one.name)
            result |= whole_runs(one, dataset, one.settings(device=device), one.name)
    result |= alone(device)
    for name, change in WIDER.items():
        for one in AGAIN:
            for dataset in DATASETS:
                settings = one.settings(device=device, **change)
                result |= stages(one, dataset, settings, AGAIN_SEEDS, AGAIN_ATTACKED, f"{one.name}-{name}")
                result |= whole_runs(one, dataset, settings, f"{one.name}-{name}", AGAIN_ATTACKED[0])
    return result


def stages(
    one: Candidate, dataset: str, settings: Settings, seeds: Sequence[int], attacked: Sequence[int], name: str
) -> dict[str, dict[str, Any]]:
    """Trained with all seeds, attacked at every stage on some of them."""
    large = settings.protection.batch * settings.protection.local_steps > 4
    attacks = ["matched", "membership"] + ([] if large or one.whole_run else ["lti"])
    audit = {
        **EFFORT,
        **(LARGE if large else {}),
        "attacks": attacks,
        "seeds": list(attacked[:1] if large else attacked),
    }
    if one.whole_run:
        audit = {**GAMES, "attacks": attacks, "seeds": [attacked[0]]}
    audit["snapshots"] = rounds_of(settings, one.whole_run)
    return {f"{dataset}-{name}": {**to_dict(settings, one.federations(dataset, seeds)), "audit": audit}}


def whole_runs(
    one: Candidate, dataset: str, settings: Settings, name: str, seed: int = REPLAYED
) -> dict[str, dict[str, Any]]:
    """All releases of a client together, for one mechanism at a time."""
    result: dict[str, dict[str, Any]] = {}
    for mechanism, strengths in one.kinds:
        for place, few in enumerate(_few(strengths, 2 if one.whole_run else 5)):
            federations = replace(one, kinds=[(mechanism, few)]).federations(dataset, [seed])
            effort: dict[str, Any] = {**GAMES, "rounds": settings.training.rounds} if one.whole_run else dict(RUN)
            large = settings.protection.clients > 4 or settings.protection.batch > 4
            if large and not one.whole_run:  # a record is in far more releases
                effort["examples"] = 20
            part = f"{dataset}-{name}-run-{mechanism}{f'-{place + 1}' if one.whole_run else ''}"
            result[part] = {**to_dict(settings, federations), "multi_round": effort}
    return result


def _few(strengths: Sequence[float | None], most: int) -> list[Sequence[float | None]]:
    return [strengths[start : start + most] for start in range(0, len(strengths), most)]


def alone(device: str) -> dict[str, dict[str, Any]]:
    """Public images alone: as the paper trains, or the head on features with all images in every round."""
    result = {}
    recipe = recommended("gaussian-dp", "scatter-linear")
    head = {name: recipe[name] for name in ("rounds", "init", "server_momentum")}
    for dataset, count in product(DATASETS, PUBLIC):
        ways: list[dict[str, Any]] = [{"model": "lenet-zhu", "rounds": ROUNDS}]
        ways += [{"model": "scatter-linear", **head, "batch": count, "eta": rate} for rate in PUBLIC_RATES]
        for keys in ways:
            settings = Settings.flat(**keys, clients=1, device=device)
            federations = [Federation(dataset, "none", None, seed) for seed in SEEDS]
            name = "-".join(map(str, (dataset, "public", count, keys["model"], keys.get("eta", 0.1))))
            result[name] = {**to_dict(settings, federations), "public": [count]}
    return result


def quick(part: dict[str, Any]) -> dict[str, Any]:
    """A part that shows in seconds that everything runs, and says nothing."""
    rounds = min(8, part["settings"]["rounds"])
    settings = {**part["settings"], "rounds": rounds, "device": "cpu"}
    if settings["gaussian"]["rounds"]:
        settings["gaussian"] = {**settings["gaussian"], "rounds": rounds, "sigmas": []}
    result = {**part, "settings": settings}
    if "audit" in part:
        last = [number * rounds // max(1, part["settings"]["rounds"]) for number in part["audit"]["snapshots"]]
        small = {"releases": 2, "label_sets": 1, "candidates": 10, "others": 2, "samples": 40, "pairs": 1, "around": 4}
        small |= {"tuning": 2, "trials": 2, "anchors": 1} if "games" not in part["audit"] else {}
        small = small if "games" not in part["audit"] else {"games": 4, "among": 4}
        result["audit"] = {**part["audit"], **small, "snapshots": sorted(set(last))}
    if "multi_round" in part:
        small = {"games": 4, "among": 4, "rounds": rounds} if "games" in part["multi_round"] else {}
        small = small or {"examples": 4, "decoys": 9, "around": 4}
        result["multi_round"] = {**part["multi_round"], **small}
    return result
