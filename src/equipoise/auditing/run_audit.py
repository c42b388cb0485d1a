"""``audit_run``: attack the releases of a run at its own snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..attack.registry import MULTI_ROUND
from ..data.bundle import BUNDLED
from ..data.dataset import Dataset
from ..data.loading import Public
from ..engine.datasets import dataset_labels
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..environment import environment
from ..errors import AttackError, ConfigError, is_finite, printable
from ..mechanism.registry import get_mechanism
from ..mechanism.schedule import defence_label
from ..models.named import Model
from ..runs.folder import RunFolder
from . import image_scores as scores
from . import replay
from .advice import DAMPED, PLAIN, PUBLIC_INPUTS
from .audit import Audit, content, with_verdict
from .cells import OWN, per_client
from .examine import Progress
from .limit_comparison import compared
from .limit_words import left_out
from .limits_audit import PLAYED, replayed_limits, seconds_per_game, setting_of
from .numbered import unsupported
from .options import AuditOptions
from .pictures import run_sections
from .plan import Plan
from .results import FAILED, THINGS, Findings, renamed, repeated, shortages
from .store import Store, fingerprint
from .subject import Subject, subject_of
from .summary import counted
from .sweep_audit import audit_sweep
from .targets import repeats

Step = Callable[[int], None]
OF_CLIENTS = ("labels", "identified")
"""What a replay tells of single images of a client: it stays out of the folder."""
LISTS = ("attacks", "limits", "differences", "cap", "multi_round")
"""The parts of a result that are rows, each with its dataset."""
LOOSEST = (
    "Where clients have a budget, gamma or lambda of their own, the client with the least noise in the coming round is "
    "attacked, the first of several: rows say which. The others are not."
)


def audit_run(
    folder: Path | str,
    options: AuditOptions | None = None,
    snapshots: Sequence[int] | None = None,
    private: bool = False,
    multi_rounds: int = 0,
    progress: Progress | None = None,
    *,
    public: Public | None = None,
    model: Model | None = None,
    reading: Mapping[str, Any] | None = None,
    store: Store | None = None,
    planned: Callable[[Plan], None] = lambda plan: None,
) -> Audit:
    """Attack every federation of a run at its own snapshots: first, early and last, unless ``snapshots`` lists others.

    Args:
        folder: a run folder, as ``equipoise train``, ``Run`` or the server of a deployment writes it.
        options: which attacks, and how hard; see ``AuditOptions``.
        snapshots: the rounds to attack; the run kept the weights of each.
        private: attack the clients' own inputs, and show pictures of them, instead of public ones.
        multi_rounds: if > 0, also replay each federation for so many rounds and combine those releases of client 0
            that hold the same example.
        progress: called with (what, seconds of the plan that this took) while it works.
        public: data that belong to no client, where the run has no public part and for deployments: the name of a
            bundled dataset, a folder, an npz file, or tensors (inputs, labels) normalised as the clients do.
        reading: how files of ``public`` are read, as ``load`` takes it (``target``, ``drop``, ...), where that differs
            from how the run read its own.
        model: of a deployment: a bundled name, ``module:callable``, a function that builds it, or the module itself. Of
            a run whose configuration names code: the same name again, or the code; a folder's word runs none.
        store: where finished parts are kept, and taken from: ``Store(folder)``. Without one nothing is written.
        planned: called with what will be done, before it begins.

    Returns:
        What the attacks got: ``summary()`` in words, ``rows`` with intervals, ``save(folder)`` for audit.json.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import Run, resolve
    >>> config = resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["none"]})
    >>> options = AuditOptions(attacks=["membership"], releases=2, label_sets=1)
    >>> with TemporaryDirectory() as folder:
    ...     _ = Run(Path(folder), config).execute()
    ...     audit_run(folder, options, snapshots=[0]).rows[0]["attack"]
    'membership'
    """
    options = options or AuditOptions()
    options.check()
    run = RunFolder(folder)
    settings, federations = run.config.settings, run.config.federations()
    _check_deployed(run, private, multi_rounds)
    chosen = run.chosen(_usual(run.snapshots()) if snapshots is None else snapshots)
    subject = subject_of(run, chosen, public, model, reading)
    datasets = subject.datasets
    kind = next(iter(datasets.values())).kind
    options, skipped = options.possible(unsupported(kind == "tokens", None))
    most = min(multi_rounds, settings.training.rounds)
    if most and isinstance(subject.code, nn.Module):
        raise ConfigError("A replay starts from the model's first weights.", "Give a function that builds the model.")
    replays = [_replay_seconds(run, subject, fed, most, options) for fed in federations] if most else []
    named = _named_data(run, kind, private or public is not None)
    limited = most > 0 and any(get_mechanism(fed.mechanism).whole_run for fed in federations)

    def with_replays(plan: Plan) -> None:
        seconds, games = plan.seconds + sum(replays), plan.games or options.games * limited
        planned(replace(plan, replayed=most, games=games, seconds=seconds, remarks=[*named, *plan.remarks]))

    findings = Findings([], [], {}, [], {})
    if options.attacks:
        findings = audit_sweep(
            settings, federations, datasets, subject.batched, subject.weights, options, progress,
            private=private, store=store, planned=with_replays,
        )  # fmt: skip
    else:
        with_replays(Plan(federations=len(federations), snapshots=len(chosen), kind=kind))
    if not findings.complete and not findings.rows and not findings.limits:
        raise KeyboardInterrupt  # nothing was finished: an earlier audit stays as it is
    whose = "private" if private else "public"
    places = f"{counted(len(chosen), 'snapshot')} of {counted(len(federations), 'federation')}"
    attacked = f"{_attacked(findings, options)} of {whose} {THINGS[kind]}s at {places}"
    result = content(findings, options, whose, attacked, kind) | _about(run, findings, datasets, replays=bool(most))
    result["left_out"] = skipped
    result["notes"] += _notes(findings, options, datasets, private=private, forgiving=bool(most))
    if most and findings.complete:
        steps = [_step(progress, seconds / most) for seconds in replays]
        _replay(result, settings, federations, most, options, steps, subject)
    result["limits"] = compared(result["limits"])
    loosest = [LOOSEST] if any(per_client(settings.protection, fed) for fed in federations) else []
    result["notes"] += [*_left_out(federations, options), *_fewer(result["limits"], options)]
    result["notes"] += [*subject.notes, *run.notes, *loosest]
    result["environment"] = environment(subject.batched.device)
    return Audit(with_verdict(_without_paths(result, federations)), run_sections(findings, datasets))


def _notes(
    findings: Findings, options: AuditOptions, datasets: dict[str, Dataset], *, private: bool, forgiving: bool
) -> list[str]:
    drawn = private and any(data.kind == "image" for data in datasets.values())
    short = [*_read(findings, drawn), *_shortages(findings, options), *_repeats(datasets, private)]
    return [*short, *_failures(findings, forgiving=forgiving)]


def _about(run: RunFolder, findings: Findings, datasets: dict[str, Dataset], *, replays: bool) -> dict[str, Any]:
    """What kind of run was audited, and what an interrupted audit lacks: ``replays`` come last."""
    training, left = run.config.settings.training, findings.unfinished
    about = {
        "deployment": run.config.deployment is not None,
        "server": PLAIN if training.server_rate == 1 else DAMPED,
        "results": {"read": findings.read, "computed": findings.computed},
        "public": {name: _public(data) for name, data in datasets.items()},
        "cap": _cap(run.results(), findings, run.config.federations(), training.rounds),
    }
    if findings.targets:
        fewest = min(findings.targets, key=lambda name: len(findings.targets[name]))
        about[PUBLIC_INPUTS] = len(datasets[fewest].public or ())
    if left is None:
        return about
    return {**about, "unfinished": {**asdict(left), "lacking": [*left.lacking, *[MULTI_ROUND] * replays]}}


def _named_data(run: RunFolder, kind: str, chosen: bool) -> list[str]:
    """Which files the folder names: it may be somebody else's, who would like to see what they hold.

    ``chosen``: the auditor said whose inputs are attacked, and shown where they are pictures.
    """
    if run.config.deployment is not None:
        return []
    part = f"public_fraction {run.config.settings.data.public_fraction:g}"
    names = dict.fromkeys(fed.dataset for fed in run.config.federations() if fed.dataset not in BUNDLED)
    told = [f"The folder names data: {printable(name)}, {part}." for name in names]
    shown = (
        "Pictures show public images of these" if kind == "image" else f"Public {THINGS[kind]}s are taken from these"
    )
    shown += ": where the folder is not yours, name others with --public PATH."
    return [*told, *([shown] if told and not chosen else [])]


def _public(data: Dataset) -> str:
    """A digest of the public images and labels that an attack may use."""
    return fingerprint(
        *({"images": part.inputs, "labels": part.labels} for part in (data.public_attack, data.public_pool))
    )


def _check_deployed(run: RunFolder, private: bool, multi_rounds: int) -> None:
    if run.config.deployment is not None and (private or multi_rounds):
        asked = "data" if private else "training, which multi-round replays"
        raise ConfigError(
            f"The folder of a deployment holds nothing of its clients' {asked}.",
            "Leave out --private." if private else "Leave out multi-round.",
        )


def _attacked(findings: Findings, options: AuditOptions) -> str:
    """Of what there is how much: releases that are attacked, games that are played."""
    releases = max((len(targets) for targets in findings.targets.values()), default=options.releases)
    games = max((row["games"] for row in findings.limits), default=0)
    played = [f"{games} games with the record and without it"] if games else []
    return " and ".join([*([f"{releases} releases"] if findings.targets or not games else []), *played])


def _replay_seconds(
    run: RunFolder, subject: Subject, federation: Federation, rounds: int, options: AuditOptions
) -> float:
    """How long a replay takes on one core, about."""
    settings, data = run.config.settings, subject.datasets[federation.dataset]
    if get_mechanism(federation.mechanism).whole_run:
        setting = setting_of(settings, federation, subject.batched, data, options)
        weights = next(iter(subject.weights.values()))[0]
        return rounds * len(setting.game) * seconds_per_game(setting, weights, options.seed)
    size = len(data.train) // settings.protection.clients
    return replay.planned(settings, federation, rounds, classes=data.classes, size=size) / replay.GRADIENTS


def _replay(
    result: dict[str, Any], settings: Settings, federations: list[Federation], rounds: int, options: AuditOptions,
    steps: Sequence[Step], subject: Subject,
) -> None:  # fmt: skip
    """Add what many rounds together tell: of a budget of a whole run beside its limits."""
    rows, datasets, model = [], subject.datasets, subject.code
    for fed, step in zip(federations, steps, strict=True):
        if get_mechanism(fed.mechanism).whole_run:
            result["limits"] += replayed_limits(
                settings, fed, rounds, options, datasets=datasets, model=model, on_round=step
            )
        else:
            rows.append(replay.replayed(settings, fed, rounds, on_round=step, datasets=datasets, model=model))
    if rows:
        result["multi_round"] = [{key: row[key] for key in row if key not in OF_CLIENTS} for row in rows]


def _left_out(federations: list[Federation], options: AuditOptions) -> list[str]:
    """Which attacks were not held against any limit, and why."""
    whole = [fed.mechanism for fed in federations if get_mechanism(fed.mechanism).whole_run]
    attacks = [name for name in options.attacks if name not in PLAYED]
    return [left_out(attacks, whole)] if whole and attacks else []


def _fewer(rows: Sequence[Mapping[str, Any]], options: AuditOptions) -> list[str]:
    """What there were too few records for in games against limits."""
    notes = []
    for name, wanted, what in (("games", options.games, "games"), ("candidates", options.among, "candidates in each")):
        fewest = min((row[name] for row in rows), default=wanted)
        if fewest < wanted:
            notes.append(f"Against proved limits: {fewest} {what}, not {wanted}; there are no more public records.")
    return notes


def _step(progress: Progress | None, seconds: float) -> Step:
    """Tells of every round that was combined."""
    return lambda round_number: None if progress is None else progress("multi-round", seconds)


def _read(findings: Findings, private: bool) -> list[str]:
    """What was taken from an earlier audit; of ``private`` images without their reconstructions."""
    if not findings.read:
        return []
    note = (
        f"{findings.read} of {findings.read + findings.computed} results were read from the folder, where an earlier "
        "audit of yours kept them, and not computed now: --fresh computes them again."
    )
    if private:
        note += " Reconstructions of private images are not kept: the picture lacks those of results that were read."
    return [note]


def _shortages(findings: Findings, options: AuditOptions) -> list[str]:
    """What there were too few records for, by dataset where there are several."""
    names, several = dataset_labels(findings.targets), len(findings.targets) > 1
    return [
        f"{names[name]}: {note}" if several else note
        for name, targets in findings.targets.items()
        for note in shortages(targets, options)
    ]


def _repeats(datasets: Mapping[str, Dataset], private: bool) -> list[str]:
    """How many records were left out because they equal another: nobody could tell these two apart."""
    return [
        f"{repeated(count, data.kind)} of {data.name}."
        for data in datasets.values()
        if (count := repeats(data, private))
    ]


def _failures(findings: Findings, *, forgiving: bool) -> list[str]:
    """Which attacks could not work where, and why; where none could work on any defence itself, that is an error."""
    places: dict[tuple[str, str], list[str]] = {}
    for one in findings.outcomes:
        if FAILED in one.notes:
            label = defence_label(one.about["mechanism"], one.about["budget"])
            where = f"{label} at round {one.about['round']} ({one.about['role']})"
            places.setdefault((one.attack, one.notes[FAILED]), []).append(where)
    told = [
        f"{attack} could not attack {', '.join(dict.fromkeys(where))}: {why}" for (attack, why), where in places.items()
    ]
    own = [one for one in findings.outcomes if one.about["role"] == OWN]
    if told and not forgiving and all(FAILED in one.notes for one in own):
        raise AttackError(" ".join(told), "Change what it names. Nothing was written.")
    return told


def _usual(snapshots: list[int]) -> list[int]:
    """The first snapshot, an early one and the last."""
    return sorted({snapshots[0], snapshots[min(1, len(snapshots) - 1)], snapshots[-1]})


def _without_paths(result: dict[str, Any], federations: list[Federation]) -> dict[str, Any]:
    """The same with a dataset folder's name for its path."""
    names = dataset_labels(fed.dataset for fed in federations)
    parts = {name: renamed(rows, names) for name, rows in result.items() if name in LISTS}
    tables = {part: {names[name]: rows for name, rows in result[part].items()} for part in ("baselines", "public")}
    return {**result, **parts, **tables}


def _cap(
    results: list[dict[str, Any]], findings: Findings, federations: list[Federation], last: int
) -> list[dict[str, Any]]:
    """Calibrated Averaged Performance at the last round: mean over budgets of accuracy times reconstruction error."""
    if not results or not all(is_finite(row.get("accuracy")) for row in results):  # a deployment need not evaluate
        return []
    errors: dict[tuple[str, str, int, str], dict[int, float]] = {}
    for row in findings.rows:
        if row["role"] == OWN and row["control"] != "negative" and row["round"] == last and "mse" in row:
            about = Federation(row["dataset"], row["mechanism"], row["budget"], row["seed"])
            key = (row["dataset"], row["mechanism"], row["seed"], row["attack"])
            errors.setdefault(key, {})[federations.index(about)] = row["mse"]
    return [
        {
            "dataset": dataset, "mechanism": name, "seed": seed, "attack": attack, "round": last, "budgets": len(mine),
            "cap": scores.cap([results[i]["accuracy"] for i in mine], list(mine.values())),
        }
        for (dataset, name, seed, attack), mine in errors.items()
    ]  # fmt: skip
