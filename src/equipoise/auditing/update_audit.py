"""``audit``: what a server could see in an update of your own model, with no federation of ours behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attack.attack import Hooks, Knowledge
from ..attack.labels import infer_labels, last_layer_labels
from ..attack.registry import SHARING
from ..attack.results import Inversion
from ..attack.view import Public, Server, View, check, check_public
from ..data.splits import distinct
from ..environment import environment
from ..errors import AttackError, ConfigError, DataError, EquipoiseError, ModelError
from ..models.batched import Batched
from ..models.check import check_model, loss_error
from ..models.objective import Loss
from .attacker import Attacker
from .audit import Audit, content, with_verdict
from .cells import OWN, Cell, with_controls
from .examine import Progress, attack_cell, released, run_attack, steps
from .numbered import Numbered, label_kind, numbered, unsupported
from .options import AuditOptions
from .pictures import Drawn, defence_rows, failures
from .results import Findings, Outcome, mark_controls, repeated, rows_of, shortages, summary
from .scoring import baselines
from .summary import GIVEN, UNKNOWN, counted
from .svg import Section
from .targets import FEWEST, given_targets
from .update import Truth, Update

ONE_UPDATE = (
    "Use audit(Update(model, before, after), ...); several updates of one model are one Update, too: "
    "audit(Update(model, before, [after1, after2, ...]), truth=(inputs [N, E, ...], labels [N, E]))."
)


def audit(
    update: Update,
    *,
    truth: tuple[Tensor, Tensor] | None = None,
    attacker: Attacker | None = None,
    options: AuditOptions | None = None,
    show: bool = False,
    progress: Progress | None = None,
) -> Audit:
    """Attack an update of your own model, and say what the attacks got.

    Beside the update its control and, for a learned mechanism, its static twins are simulated on the same inputs, if
    all updates start from the same weights.

    Args:
        update: What was sent, and how it was trained and protected. Several updates of one model are one ``Update``
            of lists: ``Update(model, before, [after1, after2, ...])``.
        truth: The real inputs ``[E, ...]`` (or int64 tokens) and labels ``[E]`` to score against; ``[N, E, ...]`` and
            ``[N, E]`` for a list of updates. Labels are classes, or whatever the update's own ``loss`` takes: values
            of a regression, multi-hot rows ``[E, k]``. Without it there are reconstructions and no scores.
        attacker: What the attacker knows; by default nothing but the labels of the truth.
        options: Which attacks, and how hard. Of the usual attacks those are left out that cannot run on what is known;
            attacks that are asked for by name raise ``ConfigError`` instead.
        show: Whether the picture holds the real inputs: mind where it goes.
        progress: Called with the name of the attack and how many steps it has made since.

    Returns:
        The numbers with intervals, baselines, controls and claims; ``summary()`` says them in words, ``save(folder)``
        writes them.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
    >>> x, y = torch.rand(2, 1, 6, 6), torch.tensor([0, 2])
    >>> torch.nn.functional.cross_entropy(model(x), y).backward()
    >>> gradient = {name: p.grad for name, p in model.named_parameters()}
    >>> update = Update(model, model.state_dict(), gradient=gradient)
    >>> result = audit(update, truth=(x, y), options=AuditOptions(attacks=["invgrad"], iterations=5))
    >>> result.rows[0]["attack"], result.rows[0]["evidence"]
    ('invgrad', 'insufficient evidence')
    """
    if not isinstance(update, Update):
        raise ConfigError(f"Expected an Update to audit, got {type(update).__name__}.", ONE_UPDATE)
    if options is not None and not isinstance(options, AuditOptions):
        raise ConfigError(
            f"Expected options to be AuditOptions, got {type(options).__name__}.", "Use AuditOptions(iterations=300)."
        )
    case = _case(update, attacker or Attacker(), None if truth is None else Truth.of(truth), options or AuditOptions())
    if case.truth is None:
        return _unscored(case, progress)
    return _scored(case, case.truth, update.terms.leakage.D, show, progress)


@dataclass(frozen=True)
class _Case:
    """An update from the attacker's position, what is behind it, and the attacks that can run on it."""

    cell: Cell
    view: View  # of the updates, with labels as the attacker takes them to be
    truth: Truth | None
    public: Public | None
    options: AuditOptions
    left_out: dict[str, str]
    notes: list[str]

    def content(self, rows: list[dict[str, Any]], guesses: dict[str, Any], targets: str) -> dict[str, Any]:
        view, examples = self.view, self.cell.server.examples
        attacked = f"{counted(len(view), 'update')} of {counted(examples, 'example')}"
        server = self.cell.server
        found = Findings(rows, [], guesses, [], {})
        result = content(found, self.options, targets, attacked, server.kind, label_kind(server.targets))
        result |= {"experiment": "audit of given updates", "left_out": self.left_out, "notes": self.notes}
        return result | {"environment": environment(view.released.device)}


def _case(update: Update, attacker: Attacker, truth: Truth | None, options: AuditOptions) -> _Case:
    options.check()
    shape = attacker.input_shape(truth, update.several)
    given = numbered(attacker, truth, shape, update.several)
    attacker, truth = given.attacker, given.truth
    missing = attacker.lacks(truth) | unsupported(attacker.tokens(truth), given.targets)
    options, left_out = options.possible(missing)
    server, like = _server(update, given, shape)
    view, attacker = update.view(server.batched, like), attacker.to(like)
    check(server, view, needs_labels=False)
    _check_moved(view)
    real = None if truth is None else truth.at(server, view)
    labels = attacker.granted_rows(real, len(view), server)
    about = {
        "mechanism": server.protection.mechanism.name, "budget": update.budget, "round": None, "role": OWN,
        "control": None, "labels_granted": labels is not None,
    }  # fmt: skip
    if attacker.public is not None:
        check_public(server, attacker.public, None)
    attacker, notes = _distinct(attacker, real, server.kind)
    if labels is None:
        labels = _inferred(server, view, attacker.public, options)
    rare = _rare(server, attacker, labels if real is None else torch.cat([labels, real.labels]))
    options, more = options.possible(rare)
    view = replace(view, labels=labels)
    cell = Cell(view.previous[0], server, about, view)
    return _Case(cell, view, real, None if "public" in rare else attacker.public, options, left_out | more, notes)


def _rare(server: Server, attacker: Attacker, labels: Tensor) -> dict[str, str]:
    """What public inputs are missing for updates that hold these labels."""
    if server.targets is None:
        return attacker.lacks_of(labels)
    if attacker.public is None or len(attacker.public[1]) >= FEWEST:
        return {}
    return dict.fromkeys(("candidates", "asked"), f"{FEWEST} public inputs")


def _distinct(attacker: Attacker, truth: Truth | None, kind: str) -> tuple[Attacker, list[str]]:
    """The attacker without public inputs that equal another or a real one: these would be decoys of themselves."""
    if attacker.public is None:
        return attacker, []
    images, labels = attacker.public
    rows = distinct(images, None if truth is None else truth.inputs.flatten(0, 1).to(images.dtype))
    if len(rows) == len(images):
        return attacker, []
    if not len(rows):
        raise DataError("Every public input equals one behind the updates.", "Give others, or leave public out.")
    note = f"Public data: {repeated(len(images) - len(rows), kind)}."
    return replace(attacker, public=(images[rows], labels[rows])), [note]


def _check_moved(view: View) -> None:
    still = (view.update == 0).all(1).nonzero().flatten().tolist()
    if still:
        raise AttackError(
            f"Release(s) {', '.join(map(str, still[:8]))} equal the weights they started from.",
            "If they were trained, copy state_dict() before training: it shares memory. Else leave them out.",
        )


def _server(update: Update, given: Numbered, shape: tuple[int, ...]) -> tuple[Server, Tensor]:
    """The attacker's position, and a tensor of the model's own device and precision."""
    terms, model, attacker = update.terms, update.model, given.attacker
    like = next((p for p in model.parameters() if p.requires_grad), None)
    if like is None:
        raise ModelError("The model has no trainable parameters.", "Set requires_grad on what was trained.")
    batch, tokens = attacker.count(given.truth, terms.local_steps) // terms.local_steps, attacker.tokens(given.truth)
    low, high = (
        edge.to(like.device, like.dtype) if isinstance(edge, Tensor) else edge
        for edge in attacker.input_range(table=not tokens and len(shape) != 3)
    )
    some = torch.zeros(2, *shape, dtype=like.dtype, device=like.device) + (low + high) / 2
    some = torch.ones_like(some, dtype=torch.int64) if tokens else some  # 0 is often padding: nothing would be left
    outputs = _outputs(model, some, update.loss or torch.nn.functional.cross_entropy)
    given = given.to(like)
    batched = Batched(model, given.loss(update.loss), like.device, fixed=update.fixed())
    server = Server(
        batched, shape, int(outputs.shape[-1]) if outputs.dim() > 1 else 1, batch, low, high, eta=terms.eta,
        protection=update.protection(batch), local_steps=terms.local_steps, tokens=tokens, targets=given.targets,
    )  # fmt: skip
    if given.targets is not None and update.loss is not None:
        _check_loss(update, server, some, given.targets[:1].repeat_interleave(2, dim=0))
    return server, like


def _outputs(model: torch.nn.Module, inputs: Tensor, loss: Loss) -> Tensor:
    """What the model returns, which must be a tensor: attacks look at the outputs themselves, not at the loss alone."""
    check_model(model, inputs, loss=loss)
    with torch.no_grad():
        outputs = model(inputs)
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"The model returns {type(outputs).__name__}; an audit needs the tensor of its outputs, whatever the loss.",
            "Let a hook return it, which leaves the parameters their names: model.register_forward_hook(lambda module, "
            "inputs, outputs: outputs['logits']), or whatever part holds them. The loss of the update then gets that.",
        )
    return outputs


def _check_loss(update: Update, server: Server, inputs: Tensor, labels: Tensor) -> None:
    """Whether the loss takes these labels, also for several sets of parameters at once."""
    start = torch.stack([server.batched.layout.flatten(update.model.state_dict())] * 2)
    numbers = torch.zeros(2, len(inputs), dtype=torch.int64, device=inputs.device)
    try:
        server.batched.at(torch.stack([inputs] * 2), numbers).gradient(start)
    except EquipoiseError:
        raise
    except Exception as error:
        raise loss_error(error, update.model, update.loss, inputs, labels) from None


def _inferred(server: Server, view: View, public: Public | None, options: AuditOptions) -> Tensor:
    if public is None:
        return last_layer_labels(server, view)
    return infer_labels(server, view, public, options.settings["samples"], options.seed)


def _scored(case: _Case, real: Truth, diameter: float, show: bool, progress: Progress | None) -> Audit:
    """The update, its controls and its static twins, attacked and held against the real inputs."""
    own, view, public, options = case.cell, case.view, case.public, case.options
    server = own.server
    low, high = (float(server.low), float(server.high)) if server.kind == "image" else (0.0, 1.0)
    targets, materials = given_targets(real.inputs, real.labels, public, low, high, options, server.strata)
    alike = bool((view.previous == view.previous[0]).all())  # twins and control are simulated at one set of weights
    outcomes = []
    for cell in with_controls(own, materials, options) if alike else [own]:
        if cell.view is None:
            seen = View(view.previous, released(cell, targets, options), real.labels)
            if not own.about["labels_granted"]:
                seen = replace(seen, labels=_inferred(cell.server, seen, public, options))
            cell = replace(cell, view=seen)
        outcomes += attack_cell(cell, targets, materials, options, diameter, progress)
    rows = [row for one in outcomes for row in rows_of(one, targets, options.seed)]
    if server.targets is not None:  # candidates come with labels of their own, and nobody is told that of an example
        rows = [{**row, "labels_granted": row["labels_granted"] and row["attack"] not in SHARING} for row in rows]
    mark_controls(rows)
    if targets.candidates == 1:
        rows = [row for row in rows if row["control"] != "negative" or "labels" in row]  # nothing to hold them against
    guesses = {name: summary(values) for name, values in baselines(targets, materials, server, diameter).items()}
    result = case.content(rows, {GIVEN: guesses}, GIVEN)
    short = shortages(targets, options, given=True, classes=server.targets is None)
    result["notes"] = [*case.notes, *short]
    mine = [one for one in outcomes if one.about["role"] == OWN]
    shown = Drawn(real.inputs[: options.pictures], real.labels[: options.pictures], public, materials.to_pixels)
    sections = _sections(outcomes, rows, shown) if show and server.kind == "image" else []
    return Audit(with_verdict(result), sections, {one.attack: one.images for one in mine if one.images is not None})


def _unscored(case: _Case, progress: Progress | None) -> Audit:
    """Reconstructions, and labels where they were inferred, without a truth to score them by."""
    cell, view, made, rows = case.cell, case.view, {}, []
    assert view.labels is not None
    for name in case.options.attacks:
        hooks = Hooks(step=steps(name, progress))
        result = run_attack(name, cell.server, view, Knowledge(case.public), case.options, hooks)
        row = {**cell.about, "attack": name, "targets": len(view)}
        if isinstance(result, Inversion):
            made[name] = result.images
            row["cost"] = float(result.cost.mean())
        rows.append(row)
    if not cell.about["labels_granted"]:
        rows.append({**cell.about, "attack": "labels", "targets": len(view), "guess": view.labels.tolist()})
    return Audit(with_verdict(case.content(rows, {}, UNKNOWN)), [], made)


# -- what came of it ---------------------------------------------------------------------------------------------------


def _sections(outcomes: list[Outcome], table: list[dict[str, Any]], shown: Drawn) -> list[Section]:
    rows = defence_rows(outcomes, table, "your update")
    return [Section("your update", shown.rows({}) + rows, failures(outcomes, table))] if rows else []
