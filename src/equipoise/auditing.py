"""What could the server see? ``audit_run`` attacks the snapshots of a run folder, ``audit`` an update of your own.

Both write the same ``audit.json``: a row per attack and defence with intervals, baselines that use no update, controls,
and what is proved, measured and not claimed; and a picture of originals and reconstructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import scores
from .attack import Server, View, infer_labels, last_layer_labels
from .attack.view import check_labels
from .budget import schedule
from .data import Dataset
from .environment import environment
from .errors import CheckpointError, ConfigError, DataError, ReleaseError
from .examination import OWN, Findings, examine
from .files import write_json, write_text
from .gradients import Batched, Loss, check_model
from .mechanisms import Mechanism, mechanism
from .models import build
from .picture import Row, Section, as_pixels, svg
from .release import Protection
from .replay import replayed
from .settings import Federation, Settings
from .trial import (
    INVERSIONS,
    Cell,
    Materials,
    Options,
    Outcome,
    Progress,
    Targets,
    attack_cell,
    baselines,
    rows_of,
    summary,
)  # fmt: skip

CLAIMS = {
    "proved": ["Every accepted release is finite and its distortion's norm lies within the bounds of its budget."],
    "measured": [
        "What these attacks got from these releases, with 95 % intervals by bootstrap over releases.",
        "A stronger attack may get more: nothing here is an upper bound.",
    ],
    "not claimed": [
        "(epsilon, delta) of any kind, or protection against attacks that were not run.",
        "That the constants of the paper's leakage score hold: what trivial guesses score stands beside it.",
    ],
}


@dataclass(frozen=True)
class Audit:
    """The content of ``audit.json``, and the picture."""

    found: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    reconstructions: dict[str, Tensor] = field(default_factory=dict)  # by attack, for updates of your own

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.found["attacks"]
        return rows

    def picture(self) -> str:
        """The originals and the reconstructions as SVG."""
        footer = f"{self.found['targets']} images. Means over all releases; baselines: " + ", ".join(
            f"{name.replace('_', ' ')} MSE {row['mse']:.2f}"
            for guesses in self.found["baselines"].values() for name, row in guesses.items()
        )  # fmt: skip
        return svg("What the server could see", self.sections, footer)

    def save(self, folder: Path | str) -> list[Path]:
        """``audit.json`` and, where there are pictures, ``audit.svg``; returns what was written."""
        folder = Path(folder)
        written = [folder / "audit.json"]
        write_json(written[0], self.found)
        if self.sections:
            written.append(folder / "audit.svg")
            write_text(written[1], self.picture())
        return written


# -- a run folder --------------------------------------------------------------------------------------------------


def audit_run(
    folder: Path | str,
    options: Options | None = None,
    rounds: Sequence[int] | None = None,
    private: bool = False,
    multi_rounds: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Attack every federation of a run at its own snapshots: first, early and last, unless ``rounds`` says otherwise.

    The targets are public images unless ``private``: then the clients' own images are attacked, and shown in the
    picture. ``multi_rounds`` > 0 also replays each federation so far and combines the releases of client 0.
    """
    from .config import resolve

    folder = Path(folder)
    options = options or Options()
    options.check()
    if not (folder / "config.toml").is_file():
        raise CheckpointError(f"{folder.name} is not a run folder: it has no config.toml.", "Train one first.")
    config = resolve(folder / "config.toml")
    settings, federations = config.settings, config.federations()
    datasets = {name: settings.load(name) for name in dict.fromkeys(fed.dataset for fed in federations)}
    sample = next(iter(datasets.values()))
    device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
    with torch.random.fork_rng(devices=[]):
        batched = Batched(build(settings.model, sample.shape, sample.classes).to(device, dtype), device=device)
    weights = {
        when: _snapshot(path, batched, len(federations)).to(device, dtype)
        for when, path in _chosen_snapshots(folder, rounds).items()
    }
    findings = examine(settings, federations, datasets, batched, weights, options, progress, private)
    found = _content(findings, options, "private" if private else "public")
    found["cap"] = _cap(folder, findings, federations)
    if multi_rounds:
        most = min(multi_rounds, settings.rounds)
        step = None if progress is None else (lambda when: progress("multi-round", 0.3))
        found["multi_round"] = [
            replayed(settings, fed, most, examples=24, labels=1, decoys=49, around=32, on_round=step)
            for fed in federations
        ]
    found["environment"] = environment(device)
    return Audit(found, _sections(findings, options, datasets))


def _chosen_snapshots(folder: Path, rounds: Sequence[int] | None) -> dict[int, Path]:
    there = {
        int(path.stem.removeprefix("round-")): path
        for path in sorted((folder / "snapshots").glob("round-*.safetensors"))
    }
    if not there:
        raise CheckpointError(f"The run folder {folder.name} has no snapshots.", "Train it with snapshots=[0, 200].")
    known = sorted(there)
    wanted = sorted(set(rounds)) if rounds is not None else sorted({known[0], known[min(1, len(known) - 1)], known[-1]})
    missing = [when for when in wanted if when not in there]
    if missing or not wanted:
        raise ConfigError(f"No snapshot of round {missing}.", f"There are: {', '.join(map(str, known))}.")
    return {when: there[when] for when in wanted}


def _snapshot(path: Path, batched: Batched, federations: int) -> Tensor:
    """The weights ``[F, P]`` of all federations."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"The snapshot {path.name} cannot be read: {error}.", "Train the run again.") from error
    rows = []
    for place in range(federations):
        head = f"federation-{place}/"
        mine = {name.removeprefix(head): tensor for name, tensor in tensors.items() if name.startswith(head)}
        rows.append(batched.layout.flatten(mine))
    stacked = torch.stack(rows)
    if not bool(torch.isfinite(stacked).all()):
        raise CheckpointError(
            f"The snapshot {path.name} holds weights that are not finite.", "Train with a smaller eta."
        )
    return stacked


def _content(findings: Findings, options: Options, targets: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "experiment": "seeded",
        "claims": CLAIMS,
        "targets": targets,
        "attacks": findings.rows,
        "differences": findings.differences,
        "baselines": findings.baselines,
        "options": asdict(options),
    }


def _cap(folder: Path, findings: Findings, federations: list[Federation]) -> list[dict[str, Any]]:
    """Calibrated Averaged Performance: mean over budgets of accuracy times reconstruction error, by mechanism."""
    from .storage import read_json

    if not (folder / "result.json").exists():
        return []
    accuracy = [row["accuracy"] for row in read_json(folder / "result.json", "result")["federations"]]
    last = max(row["round"] for row in findings.rows)
    errors: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in findings.rows:
        if row["role"] == OWN and row["control"] != "negative" and row["round"] == last and "mse" in row:
            about = Federation(row["dataset"], row["mechanism"], row["budget"], row["seed"])
            place = federations.index(about)
            errors.setdefault((row["dataset"], row["mechanism"], row["attack"]), {})[place] = row["mse"]
    return [
        {
            "dataset": dataset, "mechanism": name, "attack": attack, "round": last, "federations": len(mine),
            "cap": scores.cap([accuracy[i] for i in mine], list(mine.values())),
        }
        for (dataset, name, attack), mine in errors.items()
    ]  # fmt: skip


def _sections(findings: Findings, options: Options, datasets: dict[str, Dataset]) -> list[Section]:
    """For every dataset, attack and round: the originals, then what was made of each defence's releases."""
    sections: dict[tuple[str, str, int], Section] = {}
    for one in findings.outcomes:
        if one.pictures is None or not len(one.pictures):
            continue
        name = one.about["dataset"]
        key = (name, one.attack, one.about["round"])
        if key not in sections:
            truth = datasets[name].pixels(findings.targets[name].images[: len(one.pictures)].cpu().float())
            title = f"{name}, round {one.about['round']}, {one.attack}"
            sections[key] = Section(title, [Row("original", "", as_pixels(truth.flatten(0, 1)))])
        row = Row(_caption(one), _remark(one), one.pictures.reshape(-1, *one.pictures.shape[2:]))
        if not any(other.caption == row.caption and other.remark == row.remark for other in sections[key].rows):
            sections[key].rows.append(row)
    return list(sections.values())


def _caption(one: Outcome) -> str:
    about = one.about
    if about.get("control") == "positive":
        return "undistorted (control)"
    budget = "" if about.get("budget") is None else f" @ {about['budget']}"
    return f"{about['mechanism']}{budget}" if about["role"] == OWN else f"{about['role']}{budget}"


def _remark(one: Outcome) -> str:
    words = [f"MSE {one.values['mse'].mean():.2f}"]
    if "identification" in one.values:
        words.append(f"identified {one.values['identification'].mean():.0%}")
    return ", ".join(words)


# -- an update of your own -------------------------------------------------------------------------------------------

State = Mapping[str, Tensor]


def audit(
    model: nn.Module,
    before: State | Sequence[State],
    after: State | Sequence[State] | None = None,
    *,
    gradient: State | Sequence[State] | None = None,
    labels: Tensor | None = None,
    batch: int | None = None,
    shape: tuple[int, ...] | None = None,
    loss: Loss | None = None,
    eta: float = 0.1,
    mechanism: str | Mechanism = "none",
    budget: Any = None,
    settings: Settings | None = None,
    truth: Tensor | None = None,
    public: tuple[Tensor, Tensor] | None = None,
    bounds: tuple[float, float] | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Audit:
    """What the server could see in an update: state dicts before and after, or a gradient. No federation is needed.

    Several updates are lists of state dicts; one ``before`` serves all. ``labels`` ``[E]`` or ``[N, E]`` are granted to
    the attacker; without them ``batch`` says how many examples an update holds, and they are inferred. ``truth``
    ``[E, ...]``, or ``[N, E, ...]`` for a list of updates, are the real inputs, to score against. ``public`` (inputs,
    labels) lets the attacker simulate the mechanism: lti, matched and membership need it. ``bounds`` is the range of
    the inputs.

    >>> from equipoise.models import MLP
    >>> model, x, y = MLP((1, 6, 6), 3, 8), torch.rand(2, 1, 6, 6), torch.tensor([0, 2])
    >>> grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    >>> gradient = {name: g for (name, _), g in zip(model.named_parameters(), grads)}
    >>> found = audit(model, model.state_dict(), gradient=gradient, labels=y, truth=x,
    ...               options=Options(attacks=["invgrad"], iterations=5))
    >>> found.rows[0]["attack"], found.rows[0]["evidence"]
    ('invgrad', 'insufficient evidence')
    """
    settings, options = settings or Settings(), _options_for(options, public, truth)
    inputs = truth if truth is not None else public[0] if public is not None else None
    examples = labels.shape[-1] if labels is not None else batch
    if shape is None:
        if inputs is None:
            raise ConfigError("The shape of one input is not known.", "Give shape=(channels, height, width).")
        several = inputs is truth and not isinstance(after if gradient is None else gradient, Mapping)
        shape = tuple(inputs.shape[2 if several else 1 :])
    if not isinstance(examples, int) or examples < 1:
        raise DataError(
            "An update of no known examples cannot be attacked.", "Give labels=, or batch= for their number."
        )
    like = next(p for p in model.parameters() if p.requires_grad)
    low, high = bounds or ((float(inputs.min()), float(inputs.max())) if inputs is not None else (0.0, 1.0))
    check_model(model, torch.full((2, *shape), (low + high) / 2, dtype=like.dtype, device=like.device))
    batched = Batched(model, loss, like.device)
    with torch.no_grad():
        classes = int(model(torch.full((1, *shape), low, dtype=like.dtype, device=like.device)).shape[-1])
    view = _view(batched, before, after, gradient, eta, like)
    count = len(view)
    if settings.local_steps > 1 and examples % settings.local_steps:
        raise DataError(
            f"{examples} examples do not make {settings.local_steps} equal local steps.", "Check the batch."
        )
    server = Server(
        batched, shape, classes, examples // settings.local_steps, low, high, eta,
        _protection(mechanism, budget, settings), settings.local_steps,
    )  # fmt: skip
    if public is not None:
        public = (public[0].to(like.device, like.dtype), public[1].to(like.device))
    granted = labels is not None
    if labels is None:
        infer = (
            last_layer_labels(server, view) if public is None else infer_labels(server, view, public, options.samples)
        )
    else:
        infer = labels.to(like.device).expand(count, -1) if labels.dim() == 1 else labels.to(like.device)
        check_labels(infer, (count, examples), classes)
    view = replace(view, labels=infer)
    about = {
        "mechanism": server.protection.mechanism.name, "budget": budget, "round": None, "role": OWN, "control": None,
        "labels_granted": granted,
    }  # fmt: skip
    cell = Cell(view.previous[0], server, about)
    if truth is None:
        return _unscored(cell, view, public, options, progress)
    images = truth.to(like.device, like.dtype)
    images = images.unsqueeze(0) if images.dim() == len(shape) + 1 else images
    if tuple(images.shape) != (count, examples, *shape):
        raise DataError(
            f"Expected the truth as {(count, examples, *shape)}, got {tuple(images.shape)}.", "One batch per update."
        )
    targets, materials = _given_targets(images, infer, public, low, high, options)
    outcomes = attack_cell(cell, targets, materials, options, settings.leakage.D, progress, view)
    rows = [
        row for one in outcomes for row in rows_of(one, targets) if row["control"] != "negative" or public is not None
    ]
    guesses = {} if public is None else {
        name: summary(values) for name, values in baselines(targets, materials, settings.leakage.D).items()
    }  # fmt: skip
    found = _content(Findings(rows, [], {"given": guesses} if guesses else {}, outcomes, {}), options, "given")
    found["experiment"], found["environment"] = "audit of given updates", environment(like.device)
    sections = _given_sections(outcomes, images, low, high, options) if len(shape) == 3 else []
    made = {one.attack: one.images for one in outcomes if one.images is not None}
    return Audit(found, sections, made)


def _options_for(options: Options | None, public: Any, truth: Any) -> Options:
    if options is None:
        attacks = ["invgrad"] if public is None else ["invgrad", "lti"] if truth is None else [
            "invgrad", "lti", "matched", "membership", "labels"
        ]  # fmt: skip
        options = Options(attacks=attacks)
    options.check()
    need = {"lti", "matched", "membership", "labels"} if public is None else set()
    need |= {"matched", "membership"} if truth is None else set()
    missing = [name for name in options.attacks if name in need]
    if missing:
        raise ConfigError(
            f"The attack(s) {', '.join(missing)} need {'public data' if public is None else 'the truth to look for'}.",
            "Give public=(inputs, labels)." if public is None else "Give truth=.",
        )
    return options


def _view(batched: Batched, before: Any, after: Any, gradient: Any, eta: float, like: Tensor) -> View:
    if (after is None) == (gradient is None):
        raise ConfigError("Expected either the state after the update or a gradient.", "Give after= or gradient=.")

    def flat(states: Any) -> Tensor:
        several = [states] if isinstance(states, Mapping) else list(states)
        if not several:
            raise ReleaseError("There is no update to audit.", "Give at least one state dict.")
        return torch.stack([batched.layout.flatten(state).to(like.device, like.dtype) for state in several])

    start, other = flat(before), flat(after if gradient is None else gradient)
    if len(start) not in (1, len(other)):
        raise ReleaseError(f"{len(start)} states before {len(other)} updates.", "Give one for each, or one for all.")
    start = start.expand(len(other), -1)
    return View(start, other if gradient is None else start - eta * other)


def _protection(name: str | Mechanism, budget: Any, settings: Settings) -> Protection:
    kind = mechanism(name)
    if kind.distorts == (budget is None):
        raise ConfigError(
            f"The mechanism {kind.name!r} {'needs a' if kind.distorts else 'takes no'} budget.",
            "See equipoise calibrate.",
        )
    measure = settings.measure(kind)

    def first(value: Any, what: str) -> float:
        return schedule(value, [1], settings.clients, what)[0][0]

    return Protection(
        kind,
        0.0 if measure is None else measure.lower(first(budget, "budget")),
        settings.factor if measure is None else measure.factor,
        settings.steps, first(settings.lr, "lr"), first(settings.negative_norm, "negative_norm"),
        settings.clip, settings.clip_norm,
    )  # fmt: skip


def _given_targets(
    images: Tensor, labels: Tensor, public: Any, low: float, high: float, options: Options
) -> tuple[Targets, Materials]:
    """Targets around given inputs; half of the public data serve as decoys and non-members, half for the attacks."""
    count, examples = labels.shape
    flat, place = images.flatten(0, 1), torch.arange(count * examples, device=labels.device).view(count, examples)

    def to_pixels(values: Tensor) -> Tensor:
        return (values - low) / max(high - low, 1e-30)

    if public is None:
        none = place.unsqueeze(2)[..., :0]
        sets = len(labels.sort(1).values.unique(dim=0))
        targets = Targets(flat, labels.flatten(), place, labels, place, none, place[:, :0], sets)
        return targets, Materials(
            (flat, labels.flatten()), (flat, labels.flatten()), (flat, labels.flatten()), to_pixels
        )
    half = len(public[1]) // 2
    attack, decoys = (public[0][:half], public[1][:half]), (public[0][half:], public[1][half:])
    own = [(decoys[1] == label).nonzero().flatten() for label in range(int(labels.max()) + 1)]
    width = min(min(len(own[label]) for label in labels.unique().tolist()), options.candidates - 1)
    if width < 1:
        raise DataError(
            "The public data lack a label that an update was trained on.", "Give some images of every label."
        )
    table = torch.stack([rows[:width] if len(rows) >= width else rows.new_zeros(width) for rows in own])
    offset = len(decoys[0])
    spread = table[labels].flatten(1)[:, : max(options.others, 1)]
    targets = Targets(
        torch.cat([decoys[0], flat]), torch.cat([decoys[1], labels.flatten()]), place + offset, labels,
        table[labels][..., 0], table[labels], spread, len(labels.sort(1).values.unique(dim=0)),
    )  # fmt: skip
    return targets, Materials(attack, decoys, (flat, labels.flatten()), to_pixels)


def _unscored(cell: Cell, view: View, public: Any, options: Options, progress: Progress | None) -> Audit:
    """Reconstructions without a truth to score them by."""
    from .attack import lti

    made, rows = {}, []
    for attack in options.attacks:
        step: Callable[[int], None] | None = None if progress is None else (lambda n, a=attack: progress(a, n / 1700))
        if attack in INVERSIONS:
            result = INVERSIONS[attack](cell.server, view, options.search(attack), None, step)
        elif attack == "lti":
            result = lti(cell.server, view, public, options.samples, options.seed, step)
        else:
            continue
        made[attack] = result.images
        rows.append({**cell.about, "attack": attack, "targets": len(view), "cost": float(result.cost.mean())})
    assert view.labels is not None
    if "labels" in options.attacks or not cell.about["labels_granted"]:
        rows.append({**cell.about, "attack": "labels", "targets": len(view), "guess": view.labels.tolist()})
    found = _content(Findings(rows, [], {}, [], {}), options, "unknown")
    return Audit(found, [], made)


def _given_sections(
    outcomes: list[Outcome], images: Tensor, low: float, high: float, options: Options
) -> list[Section]:
    shown = ((images[: options.pictures] - low) / max(high - low, 1e-30)).flatten(0, 1).cpu().float().numpy()
    rows = [Row("original", "", as_pixels(shown))]
    for one in outcomes:
        if one.pictures is not None and len(one.pictures):
            rows.append(Row(one.attack, _remark(one), one.pictures.reshape(-1, *one.pictures.shape[2:])))
    return [Section("your update", rows)] if len(rows) > 1 else []
