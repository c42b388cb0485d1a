"""``audit``: what a server could see in an update of your own model, with no federation of ours behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attack.attack import Knowledge
from ..attack.labels import infer_labels, last_layer_labels
from ..attack.registry import find
from ..attack.results import Inversion
from ..attack.view import Server, View, check, check_labels
from ..environment import environment
from ..errors import ConfigError, DataError, ModelError, ReleaseError, is_whole
from ..mechanism.protection import ProtectionSettings, check_protection
from ..mechanism.registry import Mechanism, checked
from ..models.batched import Batched, Loss
from ..models.check import check_model
from .audit import Audit, content, remark
from .cells import OWN, Cell, with_controls
from .examine import Progress, attack_cell, released, run_attack
from .options import AuditOptions
from .results import Findings, Outcome, rows_of, summary
from .scoring import baselines
from .svg import Row, Section, as_pixels
from .targets import given_targets

State = Mapping[str, Tensor]
Public = tuple[Tensor, Tensor]


def audit(
    model: nn.Module,
    before: State | Sequence[State],
    after: State | Sequence[State] | None = None,
    *,
    gradient: State | Sequence[State] | None = None,
    labels: Tensor | None = None,
    grant_labels: bool = True,
    batch: int | None = None,
    shape: tuple[int, ...] | None = None,
    loss: Loss | None = None,
    eta: float = 0.1,
    mechanism: str | Mechanism = "none",
    budget: Any = None,
    settings: ProtectionSettings | None = None,
    truth: Tensor | None = None,
    public: Public | None = None,
    bounds: tuple[float, float] | None = None,
    show: bool = False,
    options: AuditOptions | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Attack the update from ``before`` to ``after``, or by a ``gradient``; several updates are lists of state dicts.

    ``truth`` ``[E, ...]`` (``[N, E, ...]`` for a list) are the real inputs to score against, with their ``labels``
    ``[E]`` or ``[N, E]``. The attacker is granted the labels unless ``grant_labels=False``: then it infers them, as it
    does where there are none and ``batch`` says how many examples an update holds. ``public`` (inputs, labels) lets it
    simulate the mechanism: lti, matched, membership and labels need that. ``bounds`` is the range of the inputs, by
    default that of the public ones, else 0 to 1. Beside the update its control and, for a learned mechanism, its static
    twins are simulated on the same inputs, if all updates start from the same weights. With ``show`` the picture holds
    the real inputs: mind where it goes.

    >>> from equipoise.models.bundled import MLP
    >>> model, x, y = MLP((1, 6, 6), 3, 8), torch.rand(2, 1, 6, 6), torch.tensor([0, 2])
    >>> grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    >>> gradient = {name: g for (name, _), g in zip(model.named_parameters(), grads)}
    >>> result = audit(model, model.state_dict(), gradient=gradient, labels=y, truth=x,
    ...               options=AuditOptions(attacks=["invgrad"], iterations=5))
    >>> result.rows[0]["attack"], result.rows[0]["evidence"]
    ('invgrad', 'insufficient evidence')
    """
    settings = settings or ProtectionSettings()
    check_protection(settings)
    if (after is None) == (gradient is None):
        raise ConfigError("Expected either the state after the update or a gradient.", "Give after= or gradient=.")
    if not 0 < eta < math.inf:
        raise ConfigError(f"Expected eta={eta!r} to be a positive number.", "Give the client's learning rate.")
    given, held = after if gradient is None else gradient, Held(labels, grant_labels, truth, public)
    options = held.attacks(options)
    examples = held.examples(batch, settings.local_steps)
    shape = shape or held.shape(several=not isinstance(given, Mapping))
    server, like = _server(model, loss, shape, examples // settings.local_steps, held.bounds(bounds))
    protected = settings.at(checked(mechanism, budget), budget, 1)
    server = replace(server, eta=eta, protection=protected, local_steps=settings.local_steps)
    view = _view(server.batched, before, given, None if gradient is None else eta, like)
    return _audited(server, view, held.to(like), budget, options, settings.leakage.D, show, progress)


def _audited(
    server: Server, view: View, held: Held, budget: Any, options: AuditOptions, diameter: float, show: bool,
    progress: Progress | None,
) -> Audit:  # fmt: skip
    check(server, view, needs_labels=False)
    real = held.real_labels(len(view), server)
    known = real if real is not None and held.grant_labels else _inferred(server, view, held.public, options)
    about = {
        "mechanism": server.protection.mechanism.name, "budget": budget, "round": None, "role": OWN, "control": None,
        "labels_granted": known is real,
    }  # fmt: skip
    cell = Cell(view.previous[0], server, about, replace(view, labels=known))
    if held.truth is None or real is None:
        return _unscored(cell, held.public, options, progress)
    images = _real_inputs(held.truth, (len(view), server.examples, *server.shape), server)
    return _scored(cell, images, real, held.public, options, diameter, show, progress)


def _server(
    model: nn.Module, loss: Loss | None, shape: tuple[int, ...], batch: int, bounds: tuple[float, float]
) -> tuple[Server, Tensor]:
    """The attacker's position, and a tensor of the model's own device and precision."""
    like = next((p for p in model.parameters() if p.requires_grad), None)
    if like is None:
        raise ModelError("The model has no trainable parameters.", "Set requires_grad on what was trained.")
    middle = torch.full((2, *shape), sum(bounds) / 2, dtype=like.dtype, device=like.device)
    check_model(model, middle)
    with torch.no_grad():
        classes = int(model(middle).shape[-1])
    return Server(Batched(model, loss, like.device), shape, classes, batch, *bounds), like


def _scored(
    own: Cell, images: Tensor, real: Tensor, public: Public | None, options: AuditOptions, diameter: float, show: bool,
    progress: Progress | None,
) -> Audit:  # fmt: skip
    """The update, its controls and its static twins, attacked and held against the real inputs."""
    assert own.view is not None
    server, view = own.server, own.view
    low, high = float(server.low), float(server.high)
    targets, materials = given_targets(images, real, public, low, high, options)
    alike = bool((view.previous == view.previous[0]).all())  # twins and control are simulated at one set of weights
    outcomes = []
    for cell in with_controls(own, materials, options) if alike else [own]:
        if cell.view is None:
            seen = View(view.previous, released(cell, targets, options), real)
            if not own.about["labels_granted"]:
                seen = replace(seen, labels=_inferred(cell.server, seen, public, options))
            cell = replace(cell, view=seen)
        outcomes += attack_cell(cell, targets, materials, options, diameter, progress)
    rows = [row for one in outcomes for row in rows_of(one, targets, options.seed)]
    if public is None:
        rows = [row for row in rows if row["control"] != "negative"]  # there is nothing else to hold results against
    guesses = {name: summary(values) for name, values in baselines(targets, materials, server, diameter).items()}
    result = _content(rows, {"given": guesses}, options, "given", view.released)
    mine = [one for one in outcomes if one.about["role"] == OWN]
    sections = _sections(mine, images, low, high, options) if show and len(server.shape) == 3 else []
    return Audit(result, sections, {one.attack: one.images for one in mine if one.images is not None})


def _unscored(cell: Cell, public: Public | None, options: AuditOptions, progress: Progress | None) -> Audit:
    """Reconstructions, and labels where they were inferred, without a truth to score them by."""
    view, made, rows = cell.view, {}, []
    assert view is not None
    assert view.labels is not None
    for name in options.attacks:
        result = run_attack(name, cell.server, view, Knowledge(public), options, progress)
        row = {**cell.about, "attack": name, "targets": len(view)}
        if isinstance(result, Inversion):
            made[name] = result.images
            row["cost"] = float(result.cost.mean())
        rows.append(row)
    if not cell.about["labels_granted"]:
        rows.append({**cell.about, "attack": "labels", "targets": len(view), "guess": view.labels.tolist()})
    return Audit(_content(rows, {}, options, "unknown", view.released), [], made)


# -- what was given --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What is known of the updates beside themselves: by the auditor, and, where it is granted, by the attacker."""

    labels: Tensor | None
    grant_labels: bool
    truth: Tensor | None
    public: Public | None

    def __post_init__(self) -> None:
        labels, truth, public = self.labels, self.truth, self.public
        if labels is not None and (not isinstance(labels, Tensor) or labels.dim() not in (1, 2)):
            raise DataError("Expected labels to be a tensor [E] or [N, E].", "Use torch.tensor(labels).")
        if truth is not None and (not isinstance(truth, Tensor) or not truth.is_floating_point()):
            raise DataError("Expected the truth to be a floating-point tensor.", "Use torch.as_tensor(truth).float().")
        if truth is not None and labels is None:
            raise DataError(
                "Scoring against the truth needs its labels.", "Give labels=; grant_labels=False hides them."
            )
        if truth is not None and not bool(torch.isfinite(truth).all()):
            raise DataError("The truth is not finite.", "Remove NaN and Inf.")
        pair = isinstance(public, tuple | list) and len(public) == 2
        if public is not None and not (pair and all(isinstance(part, Tensor) for part in public)):
            raise DataError("Expected public data as a pair of tensors (inputs, labels).", "Pass (x, y).")

    def to(self, like: Tensor) -> Held:
        """The same in the model's own precision, on its device."""
        return Held(
            None if self.labels is None else self.labels.to(like.device),
            self.grant_labels,
            None if self.truth is None else self.truth.to(like.device, like.dtype),
            None
            if self.public is None
            else (self.public[0].to(like.device, like.dtype), self.public[1].to(like.device)),
        )

    def attacks(self, options: AuditOptions | None) -> AuditOptions:
        """The attacks that can run on what is held; those asked for by name must be able to."""
        lacking = {
            need: words
            for need, there, words in (
                ("public", self.public is not None, "public=(inputs, labels)"),
                ("truth", self.truth is not None, "truth= and labels= to score against"),
                ("candidates", self.truth is not None, "truth= and labels= to score against"),
                ("labels", self.labels is not None and self.grant_labels, "the labels granted"),
            )
            if not there
        }
        wanted = options or AuditOptions()
        wanted.check()
        wrong = {
            name: f"{name} needs {lacking[need]}"
            for name in wanted.attacks for need in ("labels", "truth", "candidates", "public")
            if need in find(name).needs and need in lacking
        }  # fmt: skip
        if options is None:
            return wanted.limited_to([name for name in wanted.attacks if name not in wrong])
        if wrong:
            raise ConfigError("; ".join(wrong.values()) + ".", "Give it, or leave the attack out.")
        return options

    def examples(self, batch: Any, local_steps: int) -> int:
        """How many examples are behind one update."""
        examples = self.labels.shape[-1] if self.labels is not None else batch
        if not is_whole(examples) or examples < 1:
            raise DataError(
                "An update of no known examples cannot be attacked.", "Give labels=, or batch= their number."
            )
        if examples % local_steps:
            raise DataError(f"{examples} examples do not make {local_steps} equal local steps.", "Check the batch.")
        return examples

    def shape(self, several: bool) -> tuple[int, ...]:
        """The shape of one input."""
        if self.public is not None:
            return tuple(self.public[0].shape[1:])
        if self.truth is None:
            raise ConfigError("The shape of one input is not known.", "Give shape=(channels, height, width).")
        return tuple(self.truth.shape[2 if several else 1 :])

    def bounds(self, given: Any) -> tuple[float, float]:
        """The range that the attacker keeps its guesses in: never taken from the truth, which it does not know."""
        public = self.public
        if given is None:
            return (float(public[0].min()), float(public[0].max())) if public and public[0].numel() else (0.0, 1.0)
        low, high = given
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                f"Expected bounds={given!r} to be two finite numbers, low < high.", "Give the inputs' range."
            )
        return float(low), float(high)

    def real_labels(self, count: int, server: Server) -> Tensor | None:
        """The true labels ``[N, E]`` of all updates; None where they are not known."""
        if self.labels is None:
            return None
        labels = self.labels.expand(count, -1) if self.labels.dim() == 1 else self.labels
        check_labels(labels, (count, server.examples), server.classes)
        return labels


def _view(batched: Batched, before: Any, given: Any, eta: float | None, like: Tensor) -> View:
    """Weights before and after, one row per update; ``eta`` where the updates are gradients."""

    def flat(states: Any) -> Tensor:
        several = [states] if isinstance(states, Mapping) else list(states)
        if not several:
            raise ReleaseError("There is no update to audit.", "Give at least one state dict.")
        return torch.stack([batched.layout.flatten(state).to(like.device, like.dtype) for state in several])

    start, other = flat(before), flat(given)
    if len(start) not in (1, len(other)):
        raise ReleaseError(f"{len(start)} states before {len(other)} updates.", "Give one for each, or one for all.")
    start = start.expand(len(other), -1)
    return View(start, other if eta is None else start - eta * other)


def _real_inputs(truth: Tensor, shape: tuple[int, ...], server: Server) -> Tensor:
    low, high = float(server.low), float(server.high)
    truth = truth.unsqueeze(0) if truth.dim() == len(shape) - 1 else truth
    if tuple(truth.shape) != shape:
        raise DataError(f"Expected the truth as {shape}, got {tuple(truth.shape)}.", "Give one batch per update.")
    slack = 0.01 * (high - low)
    if float(truth.min()) < low - slack or float(truth.max()) > high + slack:
        raise DataError(
            f"Part of the truth lies outside {low:.3g}..{high:.3g}.",
            "Give bounds=(low, high): the range that the attacker takes the inputs to be in.",
        )
    return truth


def _inferred(server: Server, view: View, public: Public | None, options: AuditOptions) -> Tensor:
    if public is None:
        return last_layer_labels(server, view)
    return infer_labels(server, view, public, options.settings["samples"], options.seed)


# -- what was found --------------------------------------------------------------------------------------------------


def _content(
    rows: list[dict[str, Any]], guesses: dict[str, Any], options: AuditOptions, targets: str, like: Tensor
) -> dict[str, Any]:
    result = content(Findings(rows, [], guesses, [], {}), options, targets)
    return result | {"experiment": "audit of given updates", "environment": environment(like.device)}


def _sections(outcomes: list[Outcome], images: Tensor, low: float, high: float, options: AuditOptions) -> list[Section]:
    shown = (images[: options.pictures] - low) / max(high - low, 1e-30)
    rows = [Row("original", "", as_pixels(shown.flatten(0, 1).cpu().float().numpy()))]
    for one in outcomes:
        if one.pictures is not None and len(one.pictures):
            rows.append(Row(one.attack, remark(one), one.pictures.reshape(-1, *one.pictures.shape[2:])))
    return [Section("your update", rows)] if len(rows) > 1 else []
