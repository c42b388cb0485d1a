"""Releases whose truth is known, attacked and scored: what ``audit`` and ``compute`` have in common.

A ``Cell`` is a defence at certain weights. ``Targets`` are batches of public images that play the private ones, with
the candidates and non-members they are told apart from; all cells see the same targets and the same standard noise, so
their differences are paired. ``attack_cell`` runs the attacks on a cell and reduces what they found to numbers per
release.

Controls: every attacked set of weights gets a *positive* one (the same attack on undistorted releases: what it can do
at all), and every attack a *negative* one (its results held against images of another release: what chance does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import scores
from .attack import (
    Effort,
    Inversion,
    Search,
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
)  # fmt: skip
from .attack.invert import DLG, MAP
from .attack.matched import Given
from .attack.simulate import Companions, chunk, pieces, respond
from .attack.simulate import noise as draw_noise
from .errors import ConfigError, closest
from .intensity import intensity
from .randomness import experiment_key, uniform
from .release import Protection, draw_bounds

Array = npt.NDArray[Any]
Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it, in seconds on a slow machine."""

INVERSIONS = {"invgrad": invgrad, "dlg": dlg, "idlg": idlg, "likelihood": likelihood, "unrolled": unrolled}
ATTACKS = (*INVERSIONS, "lti", "matched", "membership", "labels")


@dataclass(frozen=True)
class Options:
    """How hard to attack. The defaults suit two CPU cores and minutes."""

    attacks: list[str] = field(default_factory=lambda: ["invgrad", "lti", "matched", "membership", "labels"])
    releases: int = 32
    label_sets: int = 3
    candidates: int = 200  # for identification, the truth among them
    others: int = 20  # non-members per release
    seed: int = 0
    iterations: int = 1600  # of invgrad; as the paper
    lr: float = 1.0
    signed: bool = True
    tv: float = 1e-5
    restarts: int = 1
    samples: int = 500  # simulated releases per label set, for lti and labels
    given: Given = "nothing"  # what matched conditions its responses on
    pairs: int = 2
    anchors: int = 4
    around: int = 32
    tuning: int = 16
    trials: int = 32
    companions: int = 4
    nulls: int = 16
    twins: bool = True  # whether a learned mechanism is set beside static noise at the same weights
    pictures: int = 2  # releases whose reconstructions are kept

    def check(self) -> None:
        plain = Options()
        for part in fields(self):
            value, kind = getattr(self, part.name), type(getattr(plain, part.name))
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(
                    f"Expected {part.name}={value!r} to be of type {kind.__name__}.", "See trial.Options."
                )
        for name in self.attacks:
            if name not in ATTACKS:
                raise ConfigError(
                    f"Unknown attack {name!r}.{closest(name, list(ATTACKS))}", f"Known: {', '.join(ATTACKS)}."
                )
        small = [name for name in MINIMA if getattr(self, name) < MINIMA[name]]
        if small:
            wrong = ", ".join(f"{name}={getattr(self, name)} (at least {MINIMA[name]})" for name in small)
            raise ConfigError(f"Too small: {wrong}.", "Raise them, or leave them out.")
        if self.given not in ("nothing", "release", "best"):
            raise ConfigError(f"Expected given={self.given!r} to be nothing, release or best.", "See attack.matched.")

    def effort(self) -> Effort:
        names = ("pairs", "anchors", "around", "tuning", "trials", "nulls")
        return Effort(**{name: getattr(self, name) for name in names}, given=self.companions)

    def search(self, attack: str) -> Search:
        own = {"dlg": DLG, "idlg": DLG, "likelihood": MAP, "unrolled": MAP}.get(attack)
        if own is not None:
            return replace(own, restarts=self.restarts, seed=self.seed)
        names = ("iterations", "lr", "signed", "tv", "restarts", "seed")
        return Search(**{name: getattr(self, name) for name in names})


MINIMA = {
    "releases": 2, "label_sets": 1, "candidates": 2, "others": 1, "iterations": 1, "restarts": 1, "samples": 10,
    "pairs": 1, "anchors": 1, "around": 4, "tuning": 2, "trials": 2, "companions": 1, "nulls": 2, "pictures": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Materials:
    """Public images of one dataset, by what they serve for; labels alike. ``to_pixels`` undoes the normalisation."""

    attack: tuple[Tensor, Tensor]
    candidates: tuple[Tensor, Tensor]
    targets: tuple[Tensor, Tensor]
    to_pixels: Callable[[Tensor], Tensor]

    def to(self, device: torch.device, dtype: torch.dtype) -> Materials:
        def moved(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return pair[0].to(device, dtype), pair[1].to(device)

        return Materials(moved(self.attack), moved(self.candidates), moved(self.targets), self.to_pixels)


@dataclass(frozen=True)
class Targets:
    """N batches to be attacked. ``pool`` holds candidates and targets; the rest are its rows."""

    pool: Tensor  # [Q, ...]
    pool_labels: Tensor  # [Q]
    truth: Tensor  # [N, E]
    labels: Tensor  # [N, E]
    impostor: Tensor  # [N, E]: images of another batch with the same labels
    decoys: Tensor  # [N, E, K - 1]
    others: Tensor  # [N, O]: non-members of the same labels
    label_sets: int

    @property
    def images(self) -> Tensor:
        return self.pool[self.truth]


def build_targets(materials: Materials, server: Server, options: Options) -> Targets:
    """Batches of target images over several label sets, each with impostors, decoys and non-members."""
    images, labels = materials.targets
    known = labels.unique()
    generator = torch.Generator().manual_seed(options.seed)
    sets = []
    for _ in range(options.label_sets):
        if len(known) >= server.examples:  # distinct labels, where there are enough
            chosen = known.cpu()[torch.randperm(len(known), generator=generator)[: server.examples]]
        else:
            chosen = known.cpu()[torch.randint(len(known), (server.examples,), generator=generator)]
        sets.append(chosen.sort().values)
    asked = torch.stack([sets[i % len(sets)] for i in range(options.releases)]).to(images.device)
    rows = torch.arange(options.releases, device=images.device)
    offset = len(materials.candidates[0])
    truth = _dealt(labels, asked, generator) + offset
    impostor = _dealt(labels, asked, generator) + offset
    decoys = _decoys(materials.candidates[1], asked, options.candidates - 1, generator)
    spread = asked[:, torch.arange(options.others, device=asked.device) % server.examples]
    others = Companions(materials.candidates, options.seed, "audit/others").draw(spread, rows)
    pool = torch.cat([materials.candidates[0], images])
    pool_labels = torch.cat([materials.candidates[1], labels])
    impostor = _outside(impostor - offset, truth - offset, labels) + offset
    return Targets(pool, pool_labels, truth, asked, impostor, decoys, others, len({tuple(s.tolist()) for s in sets}))


def _dealt(labels: Tensor, asked: Tensor, generator: torch.Generator) -> Tensor:
    """Images with the labels ``asked`` ``[N, E]``: each once, in random order, before any is used again."""
    out = torch.empty_like(asked)
    for label in asked.unique().tolist():
        own = (labels == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator).to(own.device)]
        here = asked == label
        out[here] = own[torch.arange(int(here.sum()), device=own.device) % len(own)]
    return out


def _outside(rows: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
    """``rows`` ``[N, E]``, each moved on to the next image of its label until it is in no place of its ``batch``."""
    order = labels.argsort(stable=True)
    place, count = order.argsort(), torch.bincount(labels)
    start = (count.cumsum(0) - count)[labels[rows]]
    for _ in range(batch.shape[1]):
        inside = (rows.unsqueeze(2) == batch.unsqueeze(1)).any(2)
        following = order[start + (place[rows] - start + 1) % count[labels[rows]]]
        rows = torch.where(inside, following, rows)
    return rows


def _decoys(labels: Tensor, asked: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The same ``count`` random candidates for all targets of a label: ``[N, E, count]``, fewer if there are fewer."""
    most = int(torch.bincount(labels, minlength=int(asked.max()) + 1)[asked].min())
    if most < 1:
        raise ConfigError("A label of the targets has no candidate images.", "Give public data of every label.")
    table = torch.zeros(int(asked.max()) + 1, min(count, most), dtype=torch.int64, device=asked.device)
    for label in asked.unique().tolist():
        own = (labels == label).nonzero().flatten()
        order = torch.randperm(len(own), generator=generator).to(own.device)
        table[label] = own[order[: table.shape[1]]]
    return table[asked]


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


@dataclass(frozen=True)
class Outcome:
    """What one attack found in one cell, per release."""

    about: dict[str, Any]
    attack: str
    values: dict[str, Array]  # [N, ...]
    negative: dict[str, Array]  # the same against the impostors
    pictures: Array | None = None  # [n, E, C, H, W] uint8
    images: Tensor | None = None  # [N, E, ...]: the reconstructions themselves
    notes: dict[str, Any] = field(default_factory=dict)


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


# -- numbers with intervals ----------------------------------------------------------------------------------------

REPORTED = (
    "mse", "mse_pixel", "psnr", "ssim", "identification", "log_rank", "leakage", "beyond_D", "labels", "labels_exact",
    "cost",
)  # fmt: skip


def summary(values: dict[str, Array], seed: int = 0) -> dict[str, Any]:
    """Means with 95 % intervals by bootstrap over releases; membership as AUC and TPR at 1 % FPR, score by score."""
    found: dict[str, Any] = {}
    for name in REPORTED:
        if name not in values:
            continue
        per_release = values[name].reshape(len(values[name]), -1).mean(1)
        finite = per_release[np.isfinite(per_release)]
        if len(finite) < len(per_release):
            found["not_finite"] = max(found.get("not_finite", 0), len(per_release) - len(finite))
        found[name] = float(finite.mean()) if len(finite) else None
        interval = scores.bootstrap(finite, seed=seed) if len(finite) else None
        found[f"{name}_low"], found[f"{name}_high"] = interval if interval is not None else (None, None)
    for name in ("loss", "first", "last"):
        if f"{name}_members" not in values:
            continue
        members, others = values[f"{name}_members"], values[f"{name}_others"]
        areas, rates = scores.bootstrap_auc(members, others, seed=seed) or (None, None)
        found[f"auc_{name}"], found[f"tpr_{name}"] = scores.auc(members, others), scores.tpr_at(members, others)
        for kind, interval in (("auc", areas), ("tpr", rates)):
            low, high = interval if interval is not None else (None, None)
            found[f"{kind}_{name}_low"], found[f"{kind}_{name}_high"] = low, high
    return found


def rows_of(outcome: Outcome, targets: Targets, seed: int = 0) -> list[dict[str, Any]]:
    """The result of an attack and its negative control, as rows of ``audit.json``."""
    releases = len(targets.truth)
    rows = []
    for control, values in ((outcome.about.get("control"), outcome.values), ("negative", outcome.negative)):
        row = {**outcome.about, "attack": outcome.attack, "control": control, "targets": releases}
        row |= {"label_sets": targets.label_sets, "distinct_images": len(targets.truth.unique())}
        row |= {"evidence": scores.verdict(releases), **summary(values, seed)}
        if outcome.attack == "membership":
            best = max(("loss", "first", "last"), key=lambda name: row[f"auc_{name}"])
            row |= {"membership_auc": row[f"auc_{best}"], "membership_score": best}
        if control != "negative":
            row |= outcome.notes
        rows.append(row)
    return rows


def differences(one: Outcome, other: Outcome, seed: int = 0) -> dict[str, Any]:
    """``one - other`` on the same targets, release by release, with intervals."""
    found: dict[str, Any] = {}
    for name in ("mse", "ssim", "identification", "log_rank", "labels"):
        if name in one.values and name in other.values:
            gap = (one.values[name] - other.values[name]).reshape(len(one.values[name]), -1).mean(1)
            interval = scores.bootstrap(gap, seed=seed)
            found[name] = float(gap.mean())
            found[f"{name}_low"], found[f"{name}_high"] = interval if interval is not None else (None, None)
    return found
