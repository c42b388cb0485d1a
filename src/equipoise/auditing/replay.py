"""Replay a federation from its config and seed, and combine the releases of one client over all rounds.

The run's own code trains again; every release passes by once and is not kept. Examples of the client, which only a
replay knows, are the truth that the attacker looks for among public decoys: no image of theirs leaves this function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..attack import Observation, multi_round
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..engine.tables import LENGTH, Block
from ..errors import ConfigError
from ..mechanism.registry import mechanism
from . import scores
from .examination import materials_of, server_of


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
        for when, rows, (previous, released) in zip(window, batches, seen, strict=True):
            present = (rows.unsqueeze(0) == examples.unsqueeze(1)).any(1)
            yield Observation(when, previous, released, present)
            if on_round:
                on_round(when)


def _appearances(sweep: Sweep, client: int, rounds: int) -> Tensor:
    """How often every training image takes part in the client's rounds."""
    total = torch.zeros(len(sweep.labels), dtype=torch.int64, device=sweep.device)
    for start in range(1, rounds + 1, LENGTH):
        rows = sweep.tables(list(range(start, min(start + LENGTH, rounds + 1)))).batches[:, client].flatten()
        total += torch.bincount(rows, minlength=len(total))
    return total


def replayed(
    settings: Settings,
    federation: Federation,
    rounds: int,
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
    small = [f"{name}={value!r}" for name, value in numbers.items() if type(value) is not int or value < 1]
    if small or type(client) is not int or not 0 <= client < settings.clients or rounds > settings.rounds or around < 4:
        wrong = ", ".join(small) or f"rounds={rounds}, client={client}, around={around}"
        raise ConfigError(
            f"Impossible to combine releases with {wrong}.",
            f"Use positive whole numbers, around >= 4, rounds <= {settings.rounds}, client < {settings.clients}.",
        )
    if settings.participants not in (None, settings.clients):
        raise ConfigError(
            "Combining the releases of one client needs one that takes part in every round.",
            "Leave out multi-round, or train with all clients.",
        )
    for name, value in (("budget", federation.budget), ("lr", settings.lr), ("negative_norm", settings.negative_norm)):
        if value is not None and not isinstance(value, int | float):
            raise ConfigError(f"Combining releases needs one {name} for all rounds, got {value!r}.", "Use a number.")
    sweep = Sweep(settings, [federation])
    data = sweep.datasets[federation.dataset]
    part = sweep.parts[federation.dataset][client].to(sweep.device)
    known = sweep.labels[part].unique()[:labels]
    each = max(1, examples // len(known))
    often = _appearances(sweep, client, rounds)[part]
    part = part[often.argsort(descending=True, stable=True)]  # those that recur most
    rows = torch.cat([part[sweep.labels[part] == label][:each] for label in known])
    decoy_images, decoy_labels = (t.to(sweep.device) for t in materials_of(data).candidates)
    pools = [(decoy_labels == label).nonzero().flatten()[:decoys] for label in known.tolist()]
    width = min(len(pool) for pool in pools)
    order = torch.cat([pool[:width] for pool in pools])
    candidates = torch.cat([sweep.images[rows], decoy_images[order].to(sweep.dtype)])
    classes = torch.cat([sweep.labels[rows], decoy_labels[order]])
    place = torch.searchsorted(known, sweep.labels[rows])
    offset = len(rows) + place.unsqueeze(1) * width + torch.arange(width, device=rows.device)
    choices = torch.cat([torch.arange(len(rows), device=rows.device).unsqueeze(1), offset], dim=1)
    server = server_of(settings, data, sweep.batched, settings.at(federation.mechanism, federation.budget, 1))
    public = tuple(t.to(sweep.device) for t in materials_of(data).attack)
    found = multi_round(
        server, stream(sweep, client, rows, rounds, on_round), (public[0].to(sweep.dtype), public[1]),
        candidates, classes, choices, settings.batch * settings.local_steps / len(part), around, seed,
    )  # fmt: skip
    out: dict[str, Any] = {
        "attack": "multi-round", "dataset": federation.dataset, "mechanism": federation.mechanism,
        "budget": federation.budget, "seed": federation.seed, "rounds": found.seen, "targets": len(rows),
        "candidates": width + 1, "releases_per_example": float(found.rounds.double().mean()),
        "evidence": scores.verdict(len(rows)), "learns": mechanism(federation.mechanism).learns,
    }  # fmt: skip
    took = found.rounds > 0
    for name, table, who in (
        ("one_release", found.single, took), ("schedule_known", found.known, took),
        ("schedule_unknown", found.unknown, torch.ones_like(took)),
    ):  # fmt: skip
        ranking = scores.ranks(table[who])
        for kind, values in (("identification", ranking.first), ("log_rank", ranking.log)):
            array = values.cpu().numpy()
            interval = scores.bootstrap(array, seed=seed) if len(array) > 1 else None
            out[f"{kind}_{name}"] = float(array.mean()) if len(array) else None
            out[f"{kind}_{name}_low"], out[f"{kind}_{name}_high"] = interval or (None, None)
    return out
