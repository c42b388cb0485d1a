"""What attacks found, reduced to numbers per release: by the kind of result, never by the attack's name.

Every result is also held against records that were not in the release, the *negative* control: what chance does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ..attack.labels import decode
from ..attack.results import CandidateScores, Inversion, LabelCounts, LabelGuesses, MembershipScores, Verification
from ..attack.simulate import Companions
from ..attack.view import Server, View
from ..mechanism.protection import Leakage
from ..randomness import experiment_key, uniform
from ..statistics import Array, ranks
from . import image_scores as scores
from . import table_scores as tables
from .cells import Cell
from .options import AuditOptions
from .results import Outcome
from .targets import Materials, Targets


@dataclass(frozen=True)
class Case:
    """One attack on one cell, and what its result is scored by."""

    cell: Cell
    attack: str
    view: View
    targets: Targets
    materials: Materials
    options: AuditOptions
    trace: Trace

    def outcome(self, values: dict[str, Tensor], negative: dict[str, Tensor], **more: Any) -> Outcome:
        return Outcome(self.cell.about, self.attack, _arrays(values), _arrays(negative), **more)


def _arrays(values: dict[str, Tensor]) -> dict[str, Array]:
    return {name: value.double().cpu().numpy() for name, value in values.items()}


@singledispatch
def score(result: Any, case: Case) -> Outcome:
    """What a result is worth; a new kind of result registers its own function here: ``@score.register``."""
    raise TypeError(f"Nothing scores a {type(result).__name__}.")


@score.register
def _inversion(result: Inversion, case: Case) -> Outcome:
    targets, materials, view = case.targets, case.materials, case.view
    free = targets.labels
    if result.labels is not None or view.labels is None:
        free = torch.zeros_like(free)
    else:  # an inferred label binds no place
        free = torch.where((view.labels == free).all(1, keepdim=True), free, 0)
    pictured = case.cell.server.kind == "image"
    score = image_values if pictured else table_values
    guess, assigned = _arranged(result.images, targets.inputs, free, case)
    values = score(guess, targets, materials) | {"cost": result.cost}
    if case.trace.iterations and pictured:  # the leakage score has the diameter of pictures
        values["leakage"], values["beyond_D"] = case.trace.leakage(assigned)
    if result.labels is not None:
        values["labels_exact"] = (result.labels.sort(1).values == targets.labels.sort(1).values).all(1)
    other = _arranged(result.images, targets.pool[targets.false], free, case)[0]
    stopped = 0 if result.stopped is None else int((result.stopped > 0).sum())
    notes: dict[str, Any] = {"stopped": stopped} if stopped else {}
    return case.outcome(
        values, score(other, targets, materials, negative=True), images=guess,
        pictures=_drawn(guess, case) if pictured else None,
        notes=notes if pictured else notes | _each_column(guess, targets, materials),
    )  # fmt: skip


def _arranged(guess: Tensor, truth: Tensor, free: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    """Guesses in the order of the truths that they match best; columns of a table count alike whatever their unit."""
    if case.cell.server.kind == "image":
        return scores.arranged(guess, truth, free)
    columns = case.materials.columns
    assigned = scores.arranged(columns.standard(guess), columns.standard(truth), free)[1]
    return guess.gather(1, assigned.view(*assigned.shape, *[1] * (guess.dim() - 2)).expand_as(guess)), assigned


def _drawn(guess: Tensor, case: Case) -> Any:
    pixels = case.materials.to_pixels(guess[: case.options.pictures]).clamp(0, 1).mul(255).round().to(torch.uint8)
    return pixels.cpu().numpy()


def _each_column(guess: Tensor, targets: Targets, materials: Materials) -> dict[str, Any]:
    columns = materials.columns
    if len(columns.varies) > tables.LISTED:
        return {}
    return {"column_error_sd": tables.by_column(columns.standard(guess), columns.standard(targets.inputs), columns)}


@score.register
def _candidates(result: CandidateScores, case: Case) -> Outcome:
    values = (_places(result.values, case.targets, negative) for negative in (False, True))
    return case.outcome(*values, notes=_not_finite(result.values))


@score.register
def _membership(result: MembershipScores, case: Case) -> Outcome:
    values, member = result.values.double(), case.targets.member
    notes, values = _not_finite(values), _in_order(values)
    inside, outside = (values[which].view(len(values), -1) for which in (member, ~member))
    negative = {}
    if outside.shape[1] > 1:  # chance: some that were not in it against others that were not
        negative = {"members": outside[:, ::2], "others": outside[:, 1::2]}
    return case.outcome({"members": inside, "others": outside}, negative, notes=notes)


def _not_finite(values: Tensor) -> dict[str, int]:
    """How many scores are no finite numbers, if some are: a low figure may then be the attack's failure."""
    broken = int((~torch.isfinite(values)).sum())
    return {"not_finite": broken} if broken else {}


def _in_order(values: Tensor) -> Tensor:
    """Infinite scores as finite ones beyond all others; NaN, which says nothing, as the least."""
    finite = values[torch.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    room = 1 + abs(low) + abs(high)
    return torch.nan_to_num(values, low - room, high + room, low - room)


@score.register
def _labels(result: LabelGuesses, case: Case) -> Outcome:
    labels, classes = case.targets.labels, case.cell.server.classes

    def right(guess: Tensor) -> dict[str, Tensor]:
        counts = [torch.nn.functional.one_hot(part, classes).sum(1) for part in (guess, labels)]
        shared = torch.minimum(*counts).sum(1) / labels.shape[1]
        return {"labels": shared, "labels_exact": shared == 1}

    key = experiment_key(case.options.seed, "audit/label guess")
    numbers = uniform([key], [0], [0], len(labels) * classes, torch.float64)[0, 0].view(len(labels), classes)
    even = (numbers + labels.shape[1] / classes).to(labels.device)  # as even as the labels of batches are dealt
    return case.outcome(right(result.values), right(decode(even, labels.shape[1])))


@score.register
def _label_counts(result: LabelCounts, case: Case) -> Outcome:
    """How many of the k counts are right; chance guesses the likeliest of each, from how common a label is in public.

    For n examples and a label that a share p has, that is the whole part of (n + 1) p.
    """
    table, labels = case.cell.server.indicators, case.targets.labels
    assert table is not None
    counts, examples = table[labels].sum(1), labels.shape[1]
    public = case.materials.attack
    known = table[case.targets.pool_labels if public is None else public[1]].double().mean(0)
    usual = ((examples + 1) * known).floor().clamp(0, examples)

    def right(guess: Tensor) -> dict[str, Tensor]:
        same = guess == counts
        return {"labels": same.double().mean(1), "labels_exact": same.all(1)}

    return case.outcome(right(result.values), right(usual.expand_as(counts)))


@score.register
def _verification(result: Verification, case: Case) -> Outcome:
    """How often the right guess is picked, and right and wrong ones accepted; of an impostor, the truth left out."""
    distance = case.targets.counted(result.distance)
    place, impostor = (case.targets.column(one) for one in (case.targets.place, case.targets.impostor))
    close = distance <= result.tolerance.view(-1, 1, 1)
    wrong = torch.ones_like(close).scatter(2, place.unsqueeze(2), False)

    def found(place: Tensor, among: Tensor) -> dict[str, Tensor]:
        scores = (-distance).masked_fill(~among, torch.nan)
        return {"verified": ranks(scores, place).first, "accepted": close.gather(2, place.unsqueeze(2)).squeeze(2)}

    values = found(place, torch.ones_like(wrong)) | {"accepted_wrongly": close[wrong].view(len(close), -1)}
    return case.outcome(values, found(impostor, wrong), notes=_not_finite(result.distance))


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
        """Leakage per release (the paper's definition; 0 without iterations) and the share of distances beyond D.

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


def image_values(guess: Tensor, targets: Targets, materials: Materials, *, negative: bool = False) -> dict[str, Tensor]:
    """Errors of matched guesses ``[N, E, ...]`` and the truth's place among the candidates by correlation."""
    images = targets.pool[targets.false if negative else targets.truth]
    shown, real = (materials.to_pixels(part).clamp(0, 1) for part in (guess, images))
    results = {
        "mse": scores.mse(guess, images),
        "mse_pixel": scores.mse(shown, real),
        "psnr": scores.psnr(shown, real).clamp_max(MOST_DECIBELS),
    }
    if min(guess.shape[-2:]) >= 11:
        results["ssim"] = scores.ssim(shown, real)
    if targets.candidates > 1:
        results |= _places(_correlations(guess, targets), targets, negative)
    return results


def table_values(guess: Tensor, targets: Targets, materials: Materials, *, negative: bool = False) -> dict[str, Tensor]:
    """Likewise of records that are no images, in standard deviations of each column."""
    columns = materials.columns
    mine, real = (
        columns.standard(part) for part in (guess, targets.pool[targets.false if negative else targets.truth])
    )
    results = {"error_sd": tables.error_sd(mine, real), "correlation": tables.correlation(mine, real)}
    if targets.candidates > 1:
        near = tables.nearness(mine, columns.standard(targets.pool, 1), targets.choices)
        results |= _places(near, targets, negative)
    return results


def _correlations(guess: Tensor, targets: Targets) -> Tensor:
    """Of every guess with its candidates: ``[N, E, W]``."""

    def centred(images: Tensor, batch: int) -> Tensor:
        flat = images.flatten(batch)
        scale = flat.norm(dim=-1, keepdim=True)
        flat = flat - flat.mean(-1, keepdim=True)
        length: Tensor = flat.norm(dim=-1, keepdim=True)
        return torch.where(length > 1e-5 * scale, flat / length.clamp_min(1e-30), 0)  # a constant resembles nothing

    pool, rows = centred(targets.pool, 1), centred(guess, 2)  # a release at a time: all at once would not fit
    return torch.stack(
        [(pool[mine] @ row.unsqueeze(2)).squeeze(2) for mine, row in zip(targets.choices, rows, strict=True)]
    )


def _places(values: Tensor, targets: Targets, negative: bool) -> dict[str, Tensor]:
    """The place of the truth among the candidates by their scores ``[N, E, W]``; of an impostor, the truth left out."""
    values, place = targets.counted(values), targets.column(targets.place)
    if negative:
        values = values.scatter(2, place.unsqueeze(2), torch.nan)
    ranking = ranks(values, targets.column(targets.impostor) if negative else place)
    return {"identification": ranking.first, "log_rank": ranking.log}


def class_means(images: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
    """The mean image of each of the ``wanted`` labels; zeros for a label that no image has.

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), torch.tensor([[1, 0]])).tolist()
    [[[5.0], [2.0]]]
    """
    result = torch.zeros(*wanted.shape, *images.shape[1:], dtype=images.dtype, device=images.device)
    for label in wanted.unique().tolist():
        if bool((labels == label).any()):
            result[wanted.to(images.device) == label] = images[labels == label].mean(0)
    return result


def baselines(
    targets: Targets, materials: Materials, server: Server, diameter: float = Leakage.D
) -> dict[str, dict[str, Array]]:
    """What guesses score that use no update at all; some of them need public records. Nobody guesses tokens."""
    if server.tokens:
        return {}
    truth, pictured = targets.inputs, server.kind == "image"
    low, high = (torch.as_tensor(edge, dtype=truth.dtype, device=truth.device) for edge in (server.low, server.high))
    key = experiment_key(0, "audit/noise guess")
    numbers = uniform([key], [0], [0], truth.numel(), truth.dtype, truth.device)[0, 0].view(truth.shape)
    plain = {"black": low} if pictured else {"middle": (low + high) / 2}
    guesses = {name: value.expand_as(truth) for name, value in plain.items()} | {"noise": low + (high - low) * numbers}
    if materials.attack is not None:
        guesses |= _public_guesses(targets, materials.attack, server)
    result = {}
    for name, guess in guesses.items():
        if not pictured:
            result[name] = _arrays(table_values(guess, targets, materials))
            continue
        distance = (guess - truth).flatten(2).norm(dim=2)
        values = image_values(guess, targets, materials)
        result[name] = _arrays(values | {"leakage": 1 - distance.mean(1) / diameter})
    return result


def _public_guesses(targets: Targets, public: tuple[Tensor, Tensor], server: Server) -> dict[str, Tensor]:
    """What may be guessed from public records: the mean of the class, or of all, and another one."""
    (inputs, labels), rows = public, torch.arange(len(targets), device=targets.labels.device)
    pool = Companions((inputs, server.strata(labels)), 0, "audit/another")
    another = inputs[pool.draw(server.strata(targets.labels), rows)]
    means = class_means(inputs, server.strata(labels), server.strata(targets.labels))
    if server.kind == "image":
        return {"class_mean": means, "another_image": another}
    guesses = {"column_mean": inputs.mean(0).expand_as(means), "another_record": another}
    return guesses if server.targets is not None else {**guesses, "class_mean": means}
