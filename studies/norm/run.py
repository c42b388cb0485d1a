"""Does the exact norm of static noise verify guesses at a batch? ``python studies/norm/run.py OUT/ COMMIT``.

``pl-identical`` on LeNetZhu, MNIST and Fashion-MNIST, budgets 0.98 and 0.995, at the first round and after 200 rounds
of each federation's own training. A server that is granted three of the four images of a release checks guesses at the
fourth, which stands among decoys of its label (``attack/verify.py``; its tolerance is fixed there). OUT gets
``norm.json`` and ``values.npz``, with the values of every release. *sent*, how a release arrives:

===============  ===================================================================================================
float32          as the mechanism makes it
float16          rounded to that precision before it is sent
bfloat16         likewise
random norm      float32, but the norm of each release is drawn uniformly from [lower, 2 * lower] instead of ``lower``
none             float32, no noise at all: the positive control
===============  ===================================================================================================

*rule*, by which the server decides: ``norm check`` takes the guess whose norm is nearest to ``lower``; ``least norm``
takes the guess with the least norm, and needs to know nothing of it: in 13,426 dimensions nearly all of a ball's volume
is near its surface, so that of two norms that are possible the smaller is by far the more likely.

Written before the figures were seen: verification is *at chance* where the 95 % interval of the share of right picks
holds 1 in K; anything else is said as it is. Nothing was tuned; these cells are all that was run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.attack.results import Verification
from equipoise.attack.simulate import chunk, noise, pieces, respond
from equipoise.attack.verify import expected_norms, guessed_steps
from equipoise.attack.view import Server, View
from equipoise.auditing.cells import Cell, server_of
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.results import Outcome, summary
from equipoise.auditing.scoring import Case, Trace, score
from equipoise.auditing.store import Values, packed
from equipoise.auditing.targets import Materials, Targets, build_targets
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment
from equipoise.mechanism.protection import NO_PROTECTION
from equipoise.randomness import experiment_key, uniform

MECHANISM, DATASETS, BUDGETS, ROUNDS = "pl-identical", ("mnist", "fmnist"), (0.98, 0.995), (0, 200)
SEED, AUDIT_SEED, FACTOR = 1, 0, 2.0
OPTIONS = AuditOptions(attacks=["verify"], releases=200, label_sets=5, candidates=100, others=1, seed=AUDIT_SEED)
LOWER_PRECISION = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SENT = ("float32", *LOWER_PRECISION, "random norm", "none")
RULES = ("norm check", "least norm")


def released(server: Server, weights: Tensor, targets: Targets, sent: str) -> Tensor:
    """The releases ``[N, P]`` as they arrive; all kinds have the same standard noise."""
    key, lower, parts = experiment_key(AUDIT_SEED, "study/norm"), float(server.protection.scale), []
    drawn = uniform([experiment_key(AUDIT_SEED, "study/norm/size")], [0], [0], len(targets), weights.dtype)[0, 0]
    sizes = lower * (1 + (FACTOR - 1) * drawn) if sent == "random norm" else torch.full_like(drawn, lower)
    for rows in pieces(len(targets), chunk(server, weights), weights.device):
        mine = replace(server, protection=replace(server.protection, scale=sizes[rows]))
        standard = noise(mine, key, rows, weights)
        parts.append(respond(mine, weights, targets.inputs[rows], targets.labels[rows], standard))
    result = torch.cat(parts)
    return result.to(LOWER_PRECISION[sent]).to(result) if sent in LOWER_PRECISION else result


def attacked(server: Server, weights: Tensor, targets: Targets, materials: Materials) -> Iterator[tuple[str, Outcome]]:
    """Every kind of release with the norms ``[N, E, K]`` of all guesses; the local steps are made once for all."""
    servers = {sent: replace(server, protection=NO_PROTECTION) if sent == "none" else server for sent in SENT}
    arrived = {sent: released(servers[sent], weights, targets, sent) for sent in SENT}
    norms = {sent: torch.empty(targets.choices.numel(), dtype=torch.float64) for sent in SENT}
    previous = weights.expand(len(targets), -1)
    for some, release, local in guessed_steps(server, previous, targets.knowledge(None)):
        for sent in SENT:
            norms[sent][some] = (arrived[sent][release].double() - local.double()).norm(dim=1)
    for sent in SENT:
        view = View(previous, arrived[sent], targets.labels)
        mine = norms[sent].view(targets.choices.shape)
        expected, tolerance = expected_norms(servers[sent], view, AUDIT_SEED)
        results = {"norm check": Verification((mine - expected.view(-1, 1, 1)).abs(), tolerance),
                   "least norm": Verification(mine, torch.zeros_like(tolerance))}  # fmt: skip
        for rule in RULES if sent != "none" else RULES[:1]:
            about = {"sent": sent, "rule": rule, "lower": float(servers[sent].protection.scale)}
            if rule == "norm check":
                about["tolerance"] = float(tolerance.max())
            case = Case(Cell(weights, server, about), "verify", view, targets, materials, OPTIONS, Trace(mine, 1.0))
            yield sent, score(results[rule], case)


def rows_of(values: Values) -> list[dict[str, Any]]:
    """The figures of every case, from what was measured on every release; the negative control beside each."""
    rows = []
    for one in values.outcomes:
        wanted = ("verified", "accepted", "accepted_wrongly") if one.about["rule"] == "norm check" else ("verified",)
        releases, examples = one.values["verified"].shape
        control = summary({"verified": one.negative["verified"]})
        rows.append({
            **one.about, "releases": releases, "right_guesses": releases * examples,
            "wrong_guesses": one.values["accepted_wrongly"].size,
            **summary({name: one.values[name] for name in wanted}),
            **{f"impostor_{name}": value for name, value in control.items()},
        })  # fmt: skip
    return rows


def measured(settings: Settings) -> tuple[list[Outcome], dict[str, int]]:
    federations = [Federation(dataset, MECHANISM, budget, SEED) for dataset in DATASETS for budget in BUDGETS]
    sweep = Sweep(settings, federations)
    materials = {name: Materials.of(sweep.datasets[name]) for name in DATASETS}
    outcomes, candidates = [], {}
    for round_number in ROUNDS:
        sweep.train(round_number)
        for federation, weights in zip(federations, sweep.models(), strict=True):
            name = federation.dataset
            protection = settings.protection.at(MECHANISM, federation.budget, round_number + 1)
            server = server_of(settings, sweep.datasets[name], sweep.batched, protection)
            targets = build_targets(materials[name], server, OPTIONS)
            candidates[name] = targets.candidates
            place = {"dataset": name, "budget": federation.budget, "round": round_number}
            for sent, one in attacked(server, weights, targets, materials[name]):
                outcomes.append(replace(one, about={**place, **one.about}))
                print(place, sent, one.about["rule"], float(one.values["verified"].mean()), flush=True)
    return outcomes, candidates


def main() -> None:
    out, commit = Path(sys.argv[1]), sys.argv[2]
    started = time.perf_counter()
    torch.set_num_threads(1)
    settings = Settings.flat(rounds=max(ROUNDS), snapshots=[], threads=1)
    outcomes, candidates = measured(settings)
    values = Values(outcomes)
    result = {
        "schema": 1, "command": "PYTHONPATH=src python studies/norm/run.py studies/norm COMMIT", "commit": commit,
        "environment": environment(torch.device("cpu")), "seconds": round(time.perf_counter() - started, 1),
        "model": "lenet-zhu", "mechanism": MECHANISM, "training_seed": SEED, "audit_seed": AUDIT_SEED,
        "candidates": candidates, "options": OPTIONS.plain(), "rows": rows_of(values),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "values.npz").write_bytes(packed(values))
    (out / "norm.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
