"""What is measured on a sweep beside its accuracy: one function each, on all federations of the sweep at once.

The lists that they return follow ``sweep.federations``. A round is looked at without taking it: its randomness is keyed
by seed, client and round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attack.attack import Hooks
from ..attack.descent import Search
from ..attack.invgrad import invgrad
from ..attack.view import Server, View
from ..auditing import image_scores as scores
from ..auditing.cells import Cell, server_of
from ..auditing.examine import released
from ..auditing.options import AuditOptions
from ..auditing.scoring import Trace, baselines
from ..auditing.targets import Materials, build_targets, given_targets
from ..engine.evaluation import by_client, full_loss, score
from ..engine.sweep import Sweep
from ..mechanism.distortion import draw_bounds
from ..mechanism.protection import NO_PROTECTION, Protection
from .plan import Scale

Report = Callable[[str, int, int], None]


def client_curves(sweep: Sweep) -> list[dict[str, list[float]]]:
    """For every federation: accuracy on every client's test images, and loss on its training images."""
    results: list[dict[str, list[float]]] = [{} for _ in sweep.federations]
    for name, data in sweep.datasets.items():
        mine = sweep.federations_on(name)
        if not mine:
            continue
        params = sweep.state.params[mine]
        tested = data.test.inputs.to(sweep.device, sweep.dtype), data.test.labels.to(sweep.device)
        correct = by_client(score(sweep.batched, params, *tested)[0], sweep.test_parts[name, ""])
        rows = sweep.examples(name)
        sizes = [len(part) for part in sweep.parts[name]]
        trained = score(sweep.batched, params, sweep.inputs[rows], sweep.labels[rows])[1]
        loss = torch.stack([part.double().mean(1) for part in trained.split(sizes, dim=1)], dim=1)
        for place, i in enumerate(mine):
            results[i] = {"accuracy": correct[place].tolist(), "training_loss": loss[place].tolist()}
    return results


def full_utility(sweep: Sweep) -> list[list[float]]:
    """For every federation and client: what the coming round's distortion does to the loss on *all* its data."""
    result = [[0.0] * sweep.settings.protection.clients for _ in sweep.federations]
    for seen in sweep.preview():
        rows = seen.rows()
        own = [sweep.parts[sweep.federations[f].dataset][k] for f, k in rows]
        count = min(len(part) for part in own)
        examples = torch.stack([part[:count] for part in own]).to(sweep.device)
        images, labels = sweep.inputs[examples], sweep.labels[examples]
        gap = full_loss(sweep.batched, seen.released, images, labels)
        gap = gap - full_loss(sweep.batched, seen.released - seen.distortion, images, labels)
        for (f, k), value in zip(rows, gap.tolist(), strict=True):
            result[f][k] = value
    return result


def tensor_sizes(sweep: Sweep) -> list[dict[str, dict[str, list[list[float]]]]]:
    """For every federation and tensor: mean size, mean and standard deviation, [before, after] learning, per client."""
    results: list[dict[str, dict[str, list[list[float]]]]] = [{} for _ in sweep.federations]
    for seen in sweep.preview():
        if not seen.block.mechanism.distorts:
            continue
        scale = seen.tables.scale[0, seen.block.federations, seen.block.slots].reshape(-1)
        start = seen.distortion  # of integers: as drawn
        if seen.noise is not None and seen.block.mechanism.shaping is None:
            start = draw_bounds(seen.noise, Protection(seen.block.mechanism, scale))[0]
        for r, (f, _) in enumerate(seen.rows()):
            before, after = (sweep.batched.layout.unflatten(alpha[r].double()) for alpha in (start, seen.distortion))
            for name in before:
                pair = before[name], after[name]
                sizes = results[f].setdefault(name, {"size": [], "mean": [], "deviation": []})
                sizes["size"].append([float(part.abs().mean()) for part in pair])
                sizes["mean"].append([float(part.mean()) for part in pair])
                sizes["deviation"].append([float(part.std()) for part in pair])
    return results


# -- inversions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attacked:
    """The coming round's releases that are attacked, of one dataset."""

    federations: list[int]  # [N]
    released: Tensor  # [N, P]
    examples: Tensor  # [N, E]: rows of the training images


def attacked_releases(sweep: Sweep, clients: int) -> dict[str, Attacked]:
    """What the first ``clients`` of every federation will release in the coming round, by dataset."""
    rows: dict[str, list[tuple[int, Tensor, Tensor]]] = {name: [] for name in sweep.datasets}
    for seen in sweep.preview():
        examples = seen.tables.batches[0].index_select(0, seen.block.data)
        for r, (f, k) in enumerate(seen.rows()):
            if k < clients:
                rows[sweep.federations[f].dataset].append((f, seen.released[r], examples[r]))
    return {
        name: Attacked(
            [f for f, _, _ in mine], torch.stack([w for _, w, _ in mine]), torch.stack([e for _, _, e in mine])
        )
        for name, mine in rows.items()
        if mine
    }


def inversions(sweep: Sweep, scale: Scale, report: Report) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """InvGrad on the coming round's releases of the first clients; errors per client and image.

    All targets start from the same image of noise. The second value is what guesses score that use no update.
    """
    results: list[dict[str, Any]] = [{"mse": [], "ssim": [], "leakage": []} for _ in sweep.federations]
    guesses, search = {}, Search(iterations=scale.iterations, starts=1)
    for name, mine in attacked_releases(sweep, scale.attacked).items():
        truth, labels = sweep.inputs[mine.examples], sweep.labels[mine.examples]
        server, materials = server_and_materials(sweep, name)
        view = View(sweep.state.params[mine.federations], mine.released, labels)
        tell = partial(report, f"attacking {len(view)} releases on {name}")
        values = _inverted(server, view, truth, materials, search, sweep.settings.protection.leakage.D, tell)[1]
        for i, f in enumerate(mine.federations):
            for key, column in values.items():
                results[f][key].append(column[i].tolist())
        guesses[name] = _guesses(server, materials, truth, labels)
    return results, guesses


def server_and_materials(sweep: Sweep, name: str) -> tuple[Server, Materials]:
    """The attacker of one dataset's releases, who takes no defence into account, and the public images."""
    data = sweep.datasets[name]
    server = server_of(sweep.settings, data, sweep.batched, NO_PROTECTION)
    return server, Materials.of(data).to(sweep.device, sweep.dtype)


def errors(
    images: Tensor, truth: Tensor, labels: Tensor, materials: Materials
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Reconstructions in the order of the truth, their errors per image, and that order; same labels may swap."""
    guess, assigned = scores.arranged(images, truth, labels)
    shown, real = (materials.to_pixels(part).clamp(0, 1) for part in (guess, truth))
    return guess, {"mse": scores.mse(guess, truth), "ssim": scores.ssim(shown, real)}, assigned


def _inverted(
    server: Server,
    view: View,
    truth: Tensor,
    materials: Materials,
    search: Search,
    diameter: float,
    tell: Callable[[int, int], None],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Reconstructions ``[N, E, ...]`` in the order of the truth, and their errors; ``tell`` gets (steps, all)."""
    assert view.labels is not None
    trace, total, done = Trace(truth, diameter), len(view) * search.iterations, 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        tell(done, total)

    result = invgrad(server, view, search, Hooks(trace.watch, step))
    guess, values, assigned = errors(result.images, truth, view.labels, materials)
    return guess, {**values, "leakage": trace.leakage(assigned)[0]}


def _guesses(server: Server, materials: Materials, truth: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """Mean MSE and SSIM of guesses that use no update, on the distinct batches."""
    targets = given_targets(truth, labels, None, 0.0, 1.0, AuditOptions())[0]
    return {
        name: {key: float(values[key].mean()) for key in ("mse", "ssim", "leakage")}
        for name, values in baselines(targets, materials, server).items()
    }


def pictures(sweep: Sweep, scale: Scale, report: Report) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """InvGrad on releases of *public* images at every federation's weights; the first batch is kept as pixels."""
    options = AuditOptions(attacks=[], releases=scale.pictured, label_sets=min(4, scale.pictured), candidates=2)
    results: list[dict[str, Any]] = [{} for _ in sweep.federations]
    originals, search = {}, Search(iterations=scale.iterations, starts=1)
    for name in sweep.datasets:
        mine = sweep.federations_on(name)
        if not mine:
            continue
        server, materials = server_and_materials(sweep, name)
        targets = build_targets(materials, server, options)
        sent, previous = [], []
        for i in mine:
            federation, weights = sweep.federations[i], sweep.state.params[i]
            protection = sweep.settings.protection.at(federation.mechanism, federation.budget, sweep.state.round + 1)
            cell = Cell(weights, replace(server, protection=protection), {})
            sent.append(released(cell, targets, options))
            previous.append(weights.expand(len(targets), -1))
        count = len(targets)
        truth, labels = targets.inputs.repeat(len(mine), 1, 1, 1, 1), targets.labels.repeat(len(mine), 1)
        view = View(torch.cat(previous), torch.cat(sent), labels)
        tell = partial(report, f"attacking {len(view)} releases on {name}")
        guess, values = _inverted(server, view, truth, materials, search, sweep.settings.protection.leakage.D, tell)
        for place, i in enumerate(mine):
            own = slice(place * count, (place + 1) * count)
            results[i] = {key: column[own].tolist() for key, column in values.items()}
            results[i]["pixels"] = _pixels(materials, guess[place * count])
        originals[name] = {
            "pixels": _pixels(materials, targets.inputs[0]),
            "baselines": _guesses(server, materials, targets.inputs, targets.labels),
        }
    return results, originals


def _pixels(materials: Materials, images: Tensor) -> list[Any]:
    shown: list[Any] = materials.to_pixels(images).clamp(0, 1).mul(255).round().int().cpu().tolist()
    return shown
