"""Every federation of a sweep, attacked at the weights of chosen rounds: needs torch and numpy alone.

For each federation and round: its own mechanism; for a learned one also its two static twins at the same weights (equal
lower bound, equal final norm); and undistorted releases as the positive control. A cell that occurs twice is attacked
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attack import Server
from ..data.dataset import Dataset
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..mechanism.budget import LeakageBudget
from ..mechanism.protection import NO_PROTECTION, Protection
from ..mechanism.registry import MECHANISMS, mechanism
from ..mechanism.schedule import schedule
from ..models.batched import Batched
from .cells import Cell, Progress, attack_cell, baselines, static_twins
from .results import Outcome, differences, rows_of, summary
from .targets import Materials, Options, Targets, build_targets

OWN, POSITIVE = "own", "undistorted"


@dataclass(frozen=True)
class Findings:
    """All that was found, ready to be written."""

    rows: list[dict[str, Any]]  # one per attack and cell, negative controls included
    differences: list[dict[str, Any]]  # learned against static
    baselines: dict[str, dict[str, Any]]  # by dataset, then by guess
    outcomes: list[Outcome]  # values per release, pictures
    targets: dict[str, Targets]
    complete: bool = True  # False: interrupted, and these are the cells that were finished


def materials_of(dataset: Dataset, private: bool = False) -> Materials:
    """The public parts of a dataset, by what they serve for in an audit; ``private`` targets are the clients' own."""
    targets = dataset.train if private else dataset.public_targets
    attack, candidates, held = (
        (part.images, part.labels) for part in (dataset.public_attack, dataset.public_candidates, targets)
    )
    return Materials(attack, candidates, held, dataset.pixels)


def server_of(settings: Settings, dataset: Dataset, batched: Batched, protection: Protection) -> Server:
    """The attacker's position in a federation with these settings."""
    blank = torch.zeros(1, *dataset.shape)
    scale = dataset.pixels(blank + 1) - dataset.pixels(blank)  # normalised = (pixel - offset) / scale
    low, high = ((edge - dataset.pixels(blank)) / scale for edge in (0.0, 1.0))
    return Server(
        batched=batched, shape=dataset.shape, classes=dataset.classes, batch=settings.batch,
        low=low[0, :, :1, :1], high=high[0, :, :1, :1],
        eta=settings.eta, protection=protection, local_steps=settings.local_steps,
    )  # fmt: skip


def examine(
    settings: Settings,
    federations: list[Federation],
    datasets: dict[str, Dataset],
    batched: Batched,
    weights: dict[int, Tensor],
    options: Options,
    progress: Progress | None = None,
    private: bool = False,
) -> Findings:
    """Attack all federations at ``weights``: round -> ``[F, P]``, in the order of ``federations``."""
    options.check()
    device, dtype = next(iter(weights.values())).device, next(iter(weights.values())).dtype
    materials = {name: materials_of(data, private).to(device, dtype) for name, data in datasets.items()}
    plain = {name: server_of(settings, data, batched, NO_PROTECTION) for name, data in datasets.items()}
    targets = {name: build_targets(materials[name], plain[name], options) for name in datasets}
    diameter = settings.leakage.D
    done: dict[Any, list[Outcome]] = {}
    found: dict[tuple[int, int, str], list[Outcome]] = {}

    def federation_at(index: int, federation: Federation, when: int, params: Tensor) -> None:
        name = federation.dataset
        server = replace(plain[name], protection=settings.at(federation.mechanism, federation.budget, when + 1))
        about = {**asdict(federation), "round": when}
        if isinstance(
            settings.measure(federation.mechanism), LeakageBudget
        ):  # the score that this budget promises not to exceed
            about["promised_leakage"] = schedule(federation.budget, [when + 1], settings.clients, "budget")[0][0]
        for role, protection in roles(server, params, materials[name], options):
            key = (name, hash(params.cpu().numpy().tobytes()), _description(protection))
            if key not in done:
                cell = Cell(params, replace(server, protection=protection), {})
                told = None if progress is None else partial(_tell, progress, f"{federation.label()} at {when}, {role}")
                done[key] = attack_cell(cell, targets[name], materials[name], options, diameter, told)
            control = "positive" if role == POSITIVE else None
            mine = about | {"role": role, "lower": float(protection.scale), "control": control}
            found[index, when, role] = [replace(one, about=mine) for one in done[key]]

    complete = True
    try:
        for when, params in weights.items():
            for index, federation in enumerate(federations):
                federation_at(index, federation, when, params[index])
    except KeyboardInterrupt:  # what was finished is worth keeping
        complete = False
    rows = [
        row for outcomes in found.values() for one in outcomes
        for row in rows_of(one, targets[one.about["dataset"]], options.seed)
    ]  # fmt: skip
    guesses = {
        name: {
            guess: summary(values)
            for guess, values in baselines(targets[name], materials[name], plain[name], diameter).items()
        }
        for name in datasets
    }
    outcomes = [one for several in found.values() for one in several]
    return Findings(rows, list(_differences(federations, found)), guesses, outcomes, targets, complete)


def _tell(progress: Progress, where: str, attack: str, amount: float) -> None:
    progress(f"{where}: {attack}", amount)


def roles(
    server: Server, weights: Tensor, materials: Materials | None, options: Options
) -> Iterator[tuple[str, Protection]]:
    """The defence itself, its static twins where it learns (these need public data), and no defence at all."""
    yield OWN, server.protection
    if server.protection.mechanism.learns and options.twins and materials is not None:
        yield from static_twins(server, weights, materials, options).items()
    if server.protection.mechanism.distorts:
        yield POSITIVE, server.undefended().protection


def _description(protection: Protection) -> tuple[Any, ...]:
    """What tells one protection from another; a mechanism that does not learn has no steps."""
    kind = protection.mechanism
    if not kind.distorts:
        return ()
    learner = (protection.steps, protection.lr, protection.negative_norm, protection.factor) if kind.learns else ()
    scale = float(f"{float(protection.scale):.9g}")
    clip = (protection.clip, protection.clip_norm) if kind.clips else ()
    return kind.noise, kind.norm, kind.on_sphere, kind.clips, clip, scale, learner


def static_name(name: str) -> str | None:
    """The static mechanism that a learned one is compared with: alike in all but the learning."""
    kind = mechanism(name)
    if not kind.learns:
        return None
    alike = (replace(other, name="") for other in MECHANISMS.values())
    same = [
        other for other, plain in zip(MECHANISMS, alike, strict=True) if plain == replace(kind, name="", learns=False)
    ]
    return same[0] if same else None


def _differences(
    federations: list[Federation], found: dict[tuple[int, int, str], list[Outcome]]
) -> Iterator[dict[str, Any]]:
    for (index, when, role), outcomes in found.items():
        federation = federations[index]
        if role != OWN or not mechanism(federation.mechanism).learns:
            continue
        against = {
            name: several
            for (i, w, name), several in found.items()
            if (i, w) == (index, when) and name.startswith("static")
        }
        sibling = replace(federation, mechanism=static_name(federation.mechanism) or "")
        if when > 0 and sibling in federations:  # at round 0 all federations of a seed have the same weights
            against["static, own trajectory"] = found.get((federations.index(sibling), when, OWN), [])
        for name, others in against.items():
            for one, other in zip(outcomes, others, strict=False):  # an interrupted audit lacks some
                gap = differences(one, other)
                if gap:
                    yield {**asdict(federation), "round": when, "attack": one.attack, "against": name, **gap}
