"""``bounds_run`` reads a run folder and sets the paper's results beside it; ``Bounds`` is what it found.

For every federation and snapshot: each result's right-hand side with estimated constants, its left-hand side as
measured, whether the inequality holds, and what became of every assumption.

=================  =============================================================================================
applies            no assumption was seen to fail
applies in part    none was in some of the subproblems; ``subproblems`` counts them
does not apply     one was
not covered        the paper does not state the result for this mechanism
not checkable      what it takes is not there: no attack, no metrics
=================  =============================================================================================

An assumption is ``held`` (on the points visited), ``violated``, ``not checkable`` or ``not covered``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..engine.federation import Federation
from ..engine.sweep import Sweep
from ..environment import environment
from ..errors import ConfigError
from ..files import write_json, write_text
from ..models.named import Model, code_of, confirmed
from ..runs.folder import RunFolder
from .context import BoundsContext, Progress
from .convergence import convergence_rows
from .leakage import leakage_rows
from .options import BoundsOptions
from .rows import Row
from .stationarity import stationarity_rows
from .summary import RESULTS

METRICS = ("round", "rounds_averaged", "distortion_norm_squared", "accepted", "refused", "clipped_share")
"""What Theorem 5.2 takes from every line of metrics.jsonl."""
CLAIMS = {
    "proved": [
        "Each inequality, by the paper's proof, under its assumptions and with their true constants.",
        "phi and F are bounded below, since cross-entropy is never negative.",
    ],
    "measured": [
        "The constants, at the points visited: smoothness, gradient error, c_b and D from below, c_a from above.",
        "Both sides of each inequality, on the subproblems, rounds and releases counted beside them.",
    ],
    "not claimed": [
        "That an assumption holds at points that were not visited: held means not seen to fail.",
        "Anything about a run whose assumptions are violated: a bound shown for a smaller step is about that step.",
        "That the score bounds leakage where its envelope or its threshold is violated, or for other attacks.",
        "A differential-privacy guarantee of any kind.",
    ],
}


@dataclass(frozen=True)
class Bounds:
    """What ``bounds_run`` measured: the content of ``bounds.json``.

    >>> Bounds({"bounds": [{"result": "one_step", "holds": True}]}).rows[0]["holds"]
    True
    """

    content: dict[str, Any]

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = self.content["bounds"]
        return rows

    def save(self, folder: Path | str) -> list[Path]:
        """``bounds.json`` and ``bounds.html``; returns what was written."""
        from .page import page

        written = [Path(folder) / "bounds.json", Path(folder) / "bounds.html"]
        content = page(self.content)  # before anything is written
        write_json(written[0], self.content)
        write_text(written[1], content)
        return written


def bounds_run(
    folder: Path | str,
    options: BoundsOptions | None = None,
    progress: Progress | None = None,
    *,
    model: Model | None = None,
) -> Bounds:
    """Set every federation of a run against the paper's results, at all its snapshots or at ``options.snapshots``.

    The clients' own data are used to measure losses and gradients, as numbers only; the attack sees public images.

    Args:
        folder: a run folder, as ``equipoise train`` or ``Run`` writes it.
        options: how much is measured; ``BoundsOptions`` says what each costs.
        progress: called with (what, amount) while it works.
        model: of a run whose configuration names code, ``module:callable``: the same name again, or the code itself.

    Returns:
        ``rows``, one per result and place; ``save(folder)`` writes bounds.json and bounds.html.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import Run, resolve
    >>> config = resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["pl-identical"], "budgets": [0.98]})
    >>> with TemporaryDirectory() as folder:
    ...     _ = Run(Path(folder), config).execute()
    ...     bounds = bounds_run(
    ...         folder, BoundsOptions(subproblems=2, repeats=2, samples=2, examples=1, power=1, short=1, targets=0)
    ...     )
    >>> bounds.rows[0]["result"], bounds.rows[0]["status"]
    ('distortion_stationarity', 'not covered')
    """
    options = options or BoundsOptions()
    options.check()
    run = RunFolder(folder)
    if run.config.deployment is not None:
        raise ConfigError(
            f"The folder {run.path} is a deployment's: the bounds need the clients' data.",
            "Check them on a run of equipoise train.",
        )
    context, metrics = context_of(run, options, progress, model), run.metrics(METRICS)
    sweep, snapshots = context.sweep, context.snapshots
    places = [(index, number) for index in range(len(sweep.federations)) for number in snapshots]
    rows = [row for place in places for row in stationarity_rows(context, *place)]
    rows += convergence_rows(context, metrics)
    rows += leakage_rows(context)
    return Bounds(
        {
            "schema": 1,
            "experiment": "seeded",
            "claims": CLAIMS,
            "rounds": snapshots,
            "bounds": _ordered(rows, sweep),
            "options": asdict(options),
            "environment": environment(sweep.device),
        }
    )


def context_of(
    run: RunFolder, options: BoundsOptions, progress: Progress | None = None, model: Model | None = None
) -> BoundsContext:
    """A run's sweep with the weights of the snapshots asked for, and of the last one."""
    settings, federations = run.config.settings, run.config.federations()
    snapshots = run.chosen(options.snapshots)
    sweep = Sweep(settings, federations, model=code_of(confirmed(settings.training.model, model)))
    weights = {
        number: run.weights(number, sweep.batched.layout)[sweep.order].to(sweep.device, sweep.dtype)
        for number in sorted({*snapshots, run.snapshots()[-1]})
    }
    return BoundsContext(sweep, snapshots, weights, options, progress)


def _ordered(rows: Iterable[Row], sweep: Sweep) -> list[Row]:
    """Federations as configured; for each the results as the paper states them, round by round."""
    place = {str(sweep.about(fed)): sweep.order[i] for i, fed in enumerate(sweep.federations)}
    results = list(RESULTS)

    def key(row: Row) -> tuple[int, int, int]:
        fed = {part.name: row[part.name] for part in fields(Federation)}
        return place[str(fed)], results.index(row["result"]), -1 if row["round"] is None else row["round"]

    return sorted(rows, key=key)
