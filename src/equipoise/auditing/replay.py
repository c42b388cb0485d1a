"""Replay a federation from its config and seed, and combine the releases of one client over all rounds.

The run's own code trains again; every release passes by once and is not kept. Examples of the client, which only a
replay knows, are the truth that the attacker looks for among public decoys: no image of theirs leaves this function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attack.multi_round import Combined, Observation, multi_round
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..engine.tables import LENGTH, Block
from ..errors import ConfigError, is_whole
from ..mechanism.registry import get_mechanism
from ..statistics import bootstrap, ranks
from .cells import server_of
from .results import evidence
from .targets import Materials


def stream(
    sweep: Sweep, client: int, examples: Tensor, rounds: int, on_round: Callable[[int], None] | None = None
) -> Iterator[Observation]:
    """The releases of one client, as the server sees them; ``examples`` are rows of the training images."""
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(block: Block, released: Tensor) -> None:
        if block.slots.start <= client < block.slots.stop:
            seen.append((sweep.state.params[0].clone(), released[client - block.slots.start].clone()))

    sweep.on_releases = keep
    for start in range(1, rounds + 1, LENGTH):
        window = list(range(start, min(start + LENGTH, rounds + 1)))
        batches = sweep.tables(window).batches[:, client]
        seen.clear()
        sweep.train(window[-1])
        for round_number, rows, (previous, released) in zip(window, batches, seen, strict=True):
            present = (rows.unsqueeze(0) == examples.unsqueeze(1)).any(1)
            yield Observation(round_number, previous, released, present)
            if on_round:
                on_round(round_number)


def _appearances(sweep: Sweep, client: int, rounds: int) -> Tensor:
    """How often every training image takes part in the client's rounds."""
    total = torch.zeros(len(sweep.labels), dtype=torch.int64, device=sweep.device)
    for start in range(1, rounds + 1, LENGTH):
        rows = sweep.tables(list(range(start, min(start + LENGTH, rounds + 1)))).batches[:, client].flatten()
        total += torch.bincount(rows, minlength=len(total))
    return total


@dataclass(frozen=True)
class Suspects:
    """Examples of one client, each with decoys of its label that no client has."""

    examples: Tensor  # [X]: rows of the training images
    candidates: Tensor  # [Q, ...]: the examples, then the decoys
    labels: Tensor  # [Q]
    choices: Tensor  # [X, K]: rows of the candidates; the example itself stands first


def suspects(sweep: Sweep, dataset: str, client: int, rounds: int, examples: int, labels: int, decoys: int) -> Suspects:
    """Those examples of the client that recur most, of the first few labels; decoys are public candidates."""
    part = sweep.parts[dataset][client].to(sweep.device)
    known = sweep.labels[part].unique()[:labels]
    each = max(1, examples // len(known))
    often = _appearances(sweep, client, rounds)[part]
    part = part[often.argsort(descending=True, stable=True)]
    rows = torch.cat([part[sweep.labels[part] == label][:each] for label in known])
    images, classes = (t.to(sweep.device) for t in Materials.of(sweep.datasets[dataset]).pool)
    pools = [(classes == label).nonzero().flatten()[:decoys] for label in known.tolist()]
    width = min(len(pool) for pool in pools)
    order = torch.cat([pool[:width] for pool in pools])
    place = torch.searchsorted(known, sweep.labels[rows])
    offset = len(rows) + place.unsqueeze(1) * width + torch.arange(width, device=rows.device)
    return Suspects(
        rows,
        torch.cat([sweep.images[rows], images[order].to(sweep.dtype)]),
        torch.cat([sweep.labels[rows], classes[order]]),
        torch.cat([torch.arange(len(rows), device=rows.device).unsqueeze(1), offset], dim=1),
    )


def replayed(
    settings: Settings,
    federation: Federation,
    rounds: int,
    *,
    examples: int = 40,
    labels: int = 2,
    decoys: int = 199,
    around: int = 64,
    client: int = 0,
    seed: int = 0,
    on_round: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """How often examples of a client are found among decoys from its releases of all rounds, and from one alone."""
    numbers = {"rounds": rounds, "examples": examples, "labels": labels, "decoys": decoys, "around": around}
    _check(settings, federation, numbers, client)
    sweep = Sweep(settings, [federation])
    data = sweep.datasets[federation.dataset]
    asked = suspects(sweep, federation.dataset, client, rounds, examples, labels, decoys)
    server = server_of(
        settings, data, sweep.batched, settings.protection.at(federation.mechanism, federation.budget, 1)
    )
    public = Materials.of(data).to(sweep.device, sweep.dtype).attack
    assert public is not None
    chance = settings.protection.batch * settings.protection.local_steps / len(sweep.parts[federation.dataset][client])
    result = multi_round(
        server, stream(sweep, client, asked.examples, rounds, on_round), public,
        asked.candidates, asked.labels, asked.choices, chance, around=around, seed=seed,
    )  # fmt: skip
    count, width = asked.choices.shape
    about = {
        "attack": "multi-round", "dataset": federation.dataset, "mechanism": federation.mechanism,
        "budget": federation.budget, "seed": federation.seed, "rounds": result.seen, "targets": count,
        "candidates": width, "releases_per_example": float(result.rounds.double().mean()),
        "evidence": evidence(count), "learns": get_mechanism(federation.mechanism).learns,
    }  # fmt: skip
    return {**about, **_identified(result, seed)}


def _identified(result: Combined, seed: int) -> dict[str, Any]:
    """Identification and log-rank with intervals: from one release, and from all, the schedule known or not."""
    out: dict[str, Any] = {}
    took = result.rounds > 0
    for name, table, who in (
        ("one_release", result.single, took), ("schedule_known", result.known, took),
        ("schedule_unknown", result.unknown, torch.ones_like(took)),
    ):  # fmt: skip
        ranking = ranks(table[who])
        for kind, values in (("identification", ranking.first), ("log_rank", ranking.log)):
            array = values.cpu().numpy()
            interval = bootstrap(array, seed=seed) if len(array) > 1 else None
            out[f"{kind}_{name}"] = float(array.mean()) if len(array) else None
            out[f"{kind}_{name}_low"], out[f"{kind}_{name}_high"] = interval or (None, None)
    return out


def _check(settings: Settings, federation: Federation, numbers: dict[str, int], client: int) -> None:
    wrong = [f"{name}={value!r}" for name, value in numbers.items() if not is_whole(value) or value < 1]
    beyond = not wrong and (numbers["rounds"] > settings.training.rounds or numbers["around"] < 4)
    if wrong or beyond or not is_whole(client) or not 0 <= client < settings.protection.clients:
        words = ", ".join(wrong) or f"rounds={numbers['rounds']}, client={client}, around={numbers['around']}"
        raise ConfigError(
            f"Impossible to combine releases with {words}.",
            f"Use positive whole numbers, around >= 4, rounds <= {settings.training.rounds}, "
            f"client < {settings.protection.clients}.",
        )
    if settings.training.participants not in (None, settings.protection.clients):
        raise ConfigError(
            "Combining the releases of one client needs one that takes part in every round.",
            "Leave out multi-round, or train with all clients.",
        )
    for name, value in (
        ("budget", federation.budget),
        ("gamma", settings.protection.gamma),
        ("negative_norm", settings.protection.negative_norm),
    ):
        if value is not None and not isinstance(value, int | float):
            raise ConfigError(f"Combining releases needs one {name} for all rounds, got {value!r}.", "Use a number.")
