"""``equipoise guarantee``: what a whole run of ``gaussian-dp`` promises, in plain words, and the proved limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..privacy import CANDIDATES
from . import completion
from .arguments import Json, print_json

if TYPE_CHECKING:
    from ..privacy.guarantee import Guarantee

EXAMPLES = (
    "Examples: equipoise guarantee --epsilon 2 --rounds 50   |   equipoise guarantee --epsilon 2 --delta 1e-6 --rounds "
    "500 --sampling-rate 0.25 --json   |   equipoise guarantee --sigma 4 --rounds 50 --picture limits.svg"
)


def guarantee(
    *,
    rounds: Annotated[int, typer.Option(help="Releases that a client makes in the whole run.")],
    epsilon: Annotated[float | None, typer.Option(help="Of the whole run, for adding or removing one unit.")] = None,
    delta: Annotated[float, typer.Option(help="Of the whole run.")] = 1e-5,
    sampling_rate: Annotated[
        float, typer.Option(help="Share of the units that a release is made of: 1 for all, less for Poisson sampling.")
    ] = 1.0,
    sigma: Annotated[
        float | None, typer.Option(help="Noise over clip norm, instead of --epsilon: what that noise is worth.")
    ] = None,
    candidates: Annotated[int, typer.Option(help="Equally likely records that an attacker picks one of.")] = CANDIDATES,
    unit: Annotated[
        str, typer.Option(help="What is protected: record, or group.", autocompletion=completion.units)
    ] = "record",
    picture: Annotated[Path | None, typer.Option(help="Draw the limits into this SVG file.")] = None,
    as_json: Json = False,
) -> None:
    """What gaussian-dp promises for a whole run, and the most that any attacker can make of all its releases."""
    from ..privacy.guarantee import guarantee as find

    found = find(
        rounds=rounds, epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, candidates=candidates, unit=unit,
        sigma=sigma,
    )  # fmt: skip
    if picture is not None:
        from ..files import write_text
        from ..report.guarantee_picture import guarantee_picture

        write_text(picture, guarantee_picture(found))
    if as_json:
        print_json(found.plain())
        return
    _show(found)
    if picture is not None:
        from . import display

        display.console.print(f"written: {picture}", markup=False, highlight=False)


def _show(found: Guarantee) -> None:
    from ..privacy.guarantee import percent_up
    from . import display

    for words in found.sentences():
        display.console.print(words + "\n", markup=False, highlight=False)
    columns = ("blind guess", "one release", "drawn for it", "whole run")
    shown = [place for place in range(len(columns)) if place != 2 or found.sampling_rate < 1]
    numbers = [columns[place] for place in shown]
    table = display.table("at most, for any attacker", ("limit", *numbers), numbers=numbers)
    for name, limits in _limits(found):
        display.add_row(table, name, *(percent_up(limits[place]) for place in shown))
    display.console.print(table)
    drawn = "drawn for it: one release, told that the unit was drawn for it. " if found.sampling_rate < 1 else ""
    display.note(
        f"noise multiplier: {found.sigma:.7g}; a release has Gaussian noise of that many clip norms. {drawn}Proved for "
        "the numbers that gaussian-dp sends and noise that nobody knows; limits are rounded up. Not said: anything "
        "about replacing a record, tuning on private data, or a seeded run. See docs/guarantee.md."
    )


def _limits(found: Guarantee) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Each limit for a blind guess, for one release, for one that the unit is known to be in, and for the whole run."""
    from ..privacy.guarantee import percent_up
    from ..privacy.limits import SCOPES, advantage, blind_success, limit

    one, run = found.identification, (found.sigma, found.rounds, found.sampling_rate)
    yield f"identified, 1 of {one.candidates:,}", (
        blind_success(one.candidates), one.release, one.release_known, one.run,
    )  # fmt: skip
    for name, most in found.membership_tpr.items():
        rate = float(name)
        of_one = (limit(rate, *run, scope) for scope in SCOPES[1:])
        yield f"hits at {percent_up(rate)} false alarms", (rate, *of_one, most)
    known = advantage(found.sigma, 1)  # of a release that the unit may be in: so much of it as that is likely
    yield "hits minus false alarms", (0.0, found.sampling_rate * known, known, found.advantage)
