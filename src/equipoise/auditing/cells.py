"""Releases whose truth is known, attacked and scored: what ``audit`` and ``compute`` have in common.

A ``Cell`` is a defence at certain weights; all cells see the same targets (``targets.py``) and the same standard noise,
so their differences are paired. ``attack_cell`` runs the attacks on a cell and reduces what they found to numbers per
release.

Controls: every attacked set of weights gets a *positive* one (the same attack on undistorted releases: what it can do
at all), and every attack a *negative* one (its results held against images of another release: what chance does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attack import (
    Inversion,
    Server,
    View,
    dlg,
    idlg,
    infer_labels,
    invgrad,
    likelihood,
    lti,
    matched,
    membership,
    unrolled,
)
from ..attack.simulate import Companions, chunk, pieces, respond
from ..attack.simulate import noise as draw_noise
from ..mechanism.distortion import draw_bounds
from ..mechanism.intensity import intensity
from ..mechanism.protection import Protection
from ..randomness import experiment_key, uniform
from . import scores
from .results import Array, Outcome
from .targets import Materials, Options, Targets

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it, in seconds on a slow machine."""

INVERSIONS = {"invgrad": invgrad, "dlg": dlg, "idlg": idlg, "likelihood": likelihood, "unrolled": unrolled}


@dataclass(frozen=True)
class Cell:
    """A defence at certain weights, and what it is called in the results."""

    weights: Tensor  # [P]
    server: Server
    about: dict[str, Any]  # dataset, mechanism, budget, seed, round, role


def static_twins(server: Server, weights: Tensor, materials: Materials, options: Options) -> dict[str, Protection]:
    """For a learned mechanism, the same noise unlearned: of equal lower bound and of equal final norm.

    The final norm is the mean over simulated releases at these weights.
    """
    protection, kind = server.protection, server.protection.mechanism
    same = replace(protection, mechanism=replace(kind, name=f"{kind.name} unlearned", learns=False))
    count = 64
    key = experiment_key(options.seed, "audit/twins")
    pool = Companions(materials.attack, options.seed, "audit/twins")
    known = materials.attack[1].unique()
    labels = known[torch.arange(server.examples, device=known.device) % len(known)].expand(count, -1)
    first = final = 0.0
    for some in pieces(count, chunk(server, weights), weights.device):
        drawn = draw_noise(server, key, some, weights)
        assert drawn is not None
        batch = materials.attack[0][pool.draw(labels[some], some)]
        start = draw_bounds(drawn, protection)[0]
        unlearned = respond(replace(server, protection=same), weights, batch, labels[some], drawn)
        learned = respond(server, weights, batch, labels[some], drawn)
        first += float(intensity(start, kind.norm).double().sum())
        final += float(intensity(learned - (unlearned - start), kind.norm).double().sum())
    return {
        "static, equal lower bound": same,
        "static, equal final norm": replace(same, scale=float(protection.scale) * final / first),
    }


# -- one cell --------------------------------------------------------------------------------------------------


def released(cell: Cell, targets: Targets, options: Options) -> Tensor:
    """The releases ``[N, P]`` of all target batches, with noise that no attack draws."""
    key = experiment_key(options.seed, "audit/noise")
    parts = []
    for rows in pieces(len(targets.truth), chunk(cell.server, cell.weights), cell.weights.device):
        drawn = draw_noise(cell.server, key, rows, cell.weights)
        parts.append(respond(cell.server, cell.weights, targets.images[rows], targets.labels[rows], drawn))
    return torch.cat(parts)


def attack_cell(
    cell: Cell,
    targets: Targets,
    materials: Materials,
    options: Options,
    diameter: float = 56.0,
    progress: Progress | None = None,
    view: View | None = None,
) -> list[Outcome]:
    """All attacks that the options name on one cell: on the targets' releases, or on those of a given ``view``."""
    if view is None:
        view = View(cell.weights.expand(len(targets.truth), -1), released(cell, targets, options), targets.labels)
    found = []
    for attack in options.attacks:
        step = None if progress is None else _meter(progress, attack, cell)
        if attack in INVERSIONS:
            trace = Trace(targets.images, diameter)
            result = INVERSIONS[attack](cell.server, view, options.search(attack), trace.watch, step)
            found.append(_reconstructed(cell, attack, result, view, targets, materials, options, trace))
        elif attack == "lti":
            result = lti(cell.server, view, materials.attack, options.samples, options.seed, step)
            found.append(_reconstructed(cell, attack, result, view, targets, materials, options, None))
        elif attack == "matched":
            found.append(_matched(cell, view, targets, materials, options, step))
        elif attack == "membership":
            found.append(_membership(cell, view, targets, materials, options, step))
        else:
            found.append(_labels(cell, view, targets, materials, options, step))
    return found


def _meter(progress: Progress, attack: str, cell: Cell) -> Callable[[int], None]:
    costs = {"lti": 1 / 450, "matched": 1 / 450, "labels": 1 / 450, "membership": 1 / 100, "unrolled": 1 / 100}
    each = costs.get(attack, 1 / 1700)
    return lambda count: progress(attack, count * each)


class Trace:
    """The distances that the paper's definition of privacy leakage averages, from the attack's own iterations."""

    def __init__(self, truth: Tensor, diameter: float):
        self.truth, self.diameter, self.iterations = truth.flatten(2), diameter, 0
        shape = (*truth.shape[:2], truth.shape[1])
        self.total = torch.zeros(shape, dtype=torch.float64, device=truth.device)  # [N, E guess, E truth]
        self.beyond = torch.zeros_like(self.total)

    def watch(self, rows: Tensor, iteration: int, images: Tensor) -> None:
        rows = rows.to(self.total.device)
        distance = torch.cdist(images.flatten(2), self.truth[rows])
        self.total[rows] += distance
        self.beyond[rows] += distance > self.diameter
        self.iterations = max(self.iterations, iteration)

    def leakage(self, assigned: Tensor) -> tuple[Tensor, Tensor]:
        """Leakage per release (``eq: defi_privacy_leakage``; 0 without iterations) and the share of distances beyond D.

        A distance beyond D makes the leakage negative; it is reported as it is.
        """
        if not self.iterations:
            return torch.zeros(len(self.total)), torch.zeros(len(self.total))

        def mean(table: Tensor) -> Tensor:
            own = table.gather(1, assigned.unsqueeze(1)).squeeze(1)
            return own.mean(1) / self.iterations

        return 1 - mean(self.total) / self.diameter, mean(self.beyond)


MOST_DECIBELS = 100.0
"""A perfect reconstruction has an infinite PSNR; means and intervals need a number."""


def image_values(guess: Tensor, targets: Targets, truth: Tensor, materials: Materials) -> dict[str, Array]:
    """Errors of matched guesses ``[N, E, ...]`` and the truth's place among the decoys by correlation."""
    images = targets.pool[truth]
    if images.dim() < 5:  # inputs that are not images: one row of pixels
        images, guess = (part.flatten(2).unflatten(2, (1, 1, -1)) for part in (images, guess))
    shown, real = (materials.to_pixels(part).clamp(0, 1) for part in (guess, images))
    found = {
        "mse": scores.mse(guess, images),
        "mse_pixel": scores.mse(shown, real),
        "psnr": scores.psnr(shown, real).clamp_max(MOST_DECIBELS),
    }
    if min(guess.shape[-2:]) >= 11:
        found["ssim"] = scores.ssim(shown, real)
    if targets.decoys.shape[2]:
        found |= _places(scores.ranks(_correlations(guess, targets, truth)))
    return {name: value.double().cpu().numpy() for name, value in found.items()}


def _correlations(guess: Tensor, targets: Targets, truth: Tensor) -> Tensor:
    """Of every guess with its truth (column 0) and the decoys: ``[N, E, K]``."""

    def centred(images: Tensor, batch: int) -> Tensor:
        flat = images.flatten(batch)
        scale = flat.norm(dim=-1, keepdim=True)
        flat = flat - flat.mean(-1, keepdim=True)
        length: Tensor = flat.norm(dim=-1, keepdim=True)
        return torch.where(length > 1e-5 * scale, flat / length.clamp_min(1e-30), 0)  # a constant resembles nothing

    pool, rows = centred(targets.pool, 1), centred(guess, 2)
    parts = []
    for some in range(len(guess)):  # a release at a time: the decoys of all at once would not fit
        choices = torch.cat([truth[some].unsqueeze(1), targets.decoys[some]], dim=1)
        parts.append((pool[choices] @ rows[some].unsqueeze(2)).squeeze(2))
    return torch.stack(parts)


def _places(ranking: scores.Ranking) -> dict[str, Tensor]:
    return {"identification": ranking.first, "log_rank": ranking.log}


def _reconstructed(
    cell: Cell,
    attack: str,
    result: Inversion,
    view: View,
    targets: Targets,
    materials: Materials,
    options: Options,
    trace: Trace | None,
) -> Outcome:
    assert view.labels is not None
    free = targets.labels
    if result.labels is not None:
        free = torch.zeros_like(free)
    else:  # an inferred label binds no place
        free = torch.where((view.labels == free).all(1, keepdim=True), free, 0)

    def arranged(truth: Tensor) -> tuple[Tensor, Tensor]:
        cost = torch.cdist(result.images.flatten(2), truth.flatten(2)).square() / cell.server.pixels
        assigned = scores.match(cost, free)
        wide = assigned.view(*assigned.shape, *[1] * (truth.dim() - 2)).expand_as(truth)
        return assigned, result.images.gather(1, wide)

    assigned, guess = arranged(targets.images)
    values = image_values(guess, targets, targets.truth, materials)
    values["cost"] = result.cost.double().cpu().numpy()
    if trace is not None:
        leakage, beyond = trace.leakage(assigned)
        values |= {"leakage": leakage.cpu().numpy(), "beyond_D": beyond.cpu().numpy()}
    if result.labels is not None:
        right = (result.labels.sort(1).values == targets.labels.sort(1).values).all(1)
        values["labels_exact"] = right.double().cpu().numpy()
    notes = {}
    if result.stopped is not None and bool((result.stopped > 0).any()):
        notes["stopped"] = int((result.stopped > 0).sum())
    pixels = materials.to_pixels(guess[: options.pictures]).clamp(0, 1).mul(255).round().to(torch.uint8)
    other = arranged(targets.pool[targets.impostor])[1]
    negative = image_values(other, targets, targets.impostor, materials)
    pictures = pixels.cpu().numpy() if pixels.dim() == 5 else None
    return Outcome(cell.about, attack, values, negative, pictures, guess, notes)


def _matched(cell: Cell, view: View, targets: Targets, materials: Materials, options: Options, step: Any) -> Outcome:
    choices = torch.cat([targets.truth.unsqueeze(2), targets.impostor.unsqueeze(2), targets.decoys], dim=2)
    found = matched(
        cell.server,
        view,
        materials.attack,
        targets.pool,
        choices,
        options.effort(),
        options.given,
        options.seed,
        step,
    )
    decoys = found[..., 2:]
    values, negative = (
        {name: v.double().cpu().numpy() for name, v in _places(scores.ranks(torch.cat([one, decoys], 2))).items()}
        for one in (found[..., :1], found[..., 1:2])
    )
    return Outcome(cell.about, "matched", values, negative)


def _membership(cell: Cell, view: View, targets: Targets, materials: Materials, options: Options, step: Any) -> Outcome:
    rows = torch.cat([targets.truth, targets.impostor, targets.others], dim=1)
    asked = targets.pool[rows], targets.pool_labels[rows]
    found = membership(cell.server, view, *asked, materials.attack, options.seed, step)
    count = targets.truth.shape[1]
    broken = sum(int((~torch.isfinite(score)).sum()) for score in found.values())
    arrays = {name: torch.nan_to_num(score.double(), 0.0, 0.0, 0.0).cpu().numpy() for name, score in found.items()}
    values = {f"{name}_members": score[:, :count] for name, score in arrays.items()}
    negative = {f"{name}_members": score[:, count : 2 * count] for name, score in arrays.items()}
    others = {f"{name}_others": score[:, 2 * count :] for name, score in arrays.items()}
    notes = {"not_finite": broken} if broken else {}
    return Outcome(cell.about, "membership", values | others, negative | others, notes=notes)


def _labels(cell: Cell, view: View, targets: Targets, materials: Materials, options: Options, step: Any) -> Outcome:
    bare = View(view.previous, view.released)
    found = infer_labels(cell.server, bare, materials.attack, options.samples, options.seed, step)
    classes = cell.server.classes

    def right(guess: Tensor) -> dict[str, Array]:
        counts = [torch.nn.functional.one_hot(part, classes).sum(1) for part in (guess, targets.labels)]
        shared = torch.minimum(*counts).sum(1) / targets.labels.shape[1]
        return {"labels": shared.double().cpu().numpy(), "labels_exact": (shared == 1).double().cpu().numpy()}

    key = experiment_key(options.seed, "audit/label guess")
    numbers = uniform([key], [0], [0], found.numel(), torch.float64)[0, 0]
    blind = (numbers * classes).long().view(found.shape).to(found.device)
    return Outcome(cell.about, "labels", right(found), right(blind))


def baselines(
    targets: Targets, materials: Materials, server: Server, diameter: float = 56.0, public: bool = True
) -> dict[str, dict[str, Array]]:
    """What guesses score that use no update at all; two of them need ``public`` images."""
    truth = targets.images
    low, high = (torch.as_tensor(edge, dtype=truth.dtype, device=truth.device) for edge in (server.low, server.high))
    key = experiment_key(0, "audit/noise guess")
    numbers = uniform([key], [0], [0], truth.numel(), truth.dtype, truth.device)[0, 0].view(truth.shape)
    guesses = {"black": low.expand_as(truth), "noise": low + (high - low) * numbers}
    if public:
        images, labels = materials.attack
        means = torch.zeros(int(targets.labels.max()) + 1, *images.shape[1:], dtype=images.dtype, device=images.device)
        for label in targets.labels.unique().tolist():
            means[label] = images[labels == label].mean(0)
        rows = torch.arange(len(truth), device=truth.device)
        another = images[Companions(materials.attack, 0, "audit/another").draw(targets.labels, rows)]
        guesses |= {"class_mean": means[targets.labels], "another_image": another}
    found = {}
    for name, guess in guesses.items():
        found[name] = image_values(guess, targets, targets.truth, materials)
        distance = (guess - truth).flatten(2).norm(dim=2)
        found[name]["leakage"] = (1 - distance.mean(1) / diameter).double().cpu().numpy()
    return found
