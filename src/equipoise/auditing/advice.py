"""What to do after an audit: only steps that fit its result, from what docs/results.md measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..mechanism.registry import MECHANISMS
from .cells import EQUAL_LOWER, static_name
from .comparison import JUDGED, MORE, Reading, strictness
from .results import ENOUGH, FEW
from .summary import GIVEN, Content, counted, thing_of

PUBLIC_INPUTS = "public_inputs"
"""In the content of an audit: how many the dataset with the fewest releases has, where targets come from them."""
AGAIN = "run the same command again"
PLAIN, DAMPED = "plain", "damped"
"""What ``server`` says: whether the server of a run takes smaller steps than the mean of the releases."""
FIRST = "lti"
"""The attack that draws pictures at the least cost."""


def next_steps(content: Content, every: list[Reading]) -> tuple[str, ...]:
    """Imperative clauses, the first the one that decides most."""
    if not content.get("complete", True):
        return (AGAIN,)
    given, deployed = content.get("targets") == GIVEN, bool(content.get("deployment"))
    flags = not (given or deployed)  # whether there is a command to give them to
    leaking = [one for one in every if one.above_chance]
    guarantee = list(_guarantee(every, leaking, flags))
    return tuple([
        *_limits(content, deployed),
        *_proved(every),
        *guarantee,
        *_evidence(content, given),
        *_static(every, content, flags, deployed),
        *_staying(_stricter(leaking, flags), leaking, bool(guarantee)),
        *_pictures(content, every, given),
    ])  # fmt: skip


def _limits(content: Content, deployed: bool) -> Iterator[str]:
    """Where figures were held against proved limits: these count, unless the code itself is in doubt."""
    rows = content.get("limits", [])
    if any(row.get("above") for row in rows):
        yield (
            "play again with another seed (--set seed=N) and more games; if a figure is above its limit again, do not "
            "rely on that epsilon: first suspect the noise, the clip and the divisor"
        )
        return
    if rows:
        where = "equipoise guarantee" if deployed else "guarantee.json, or equipoise guarantee"
        yield f"rely on the proved limits, not on what attacks got ({where})"
    if rows and not deployed and not any(row["scope"] == "run" for row in rows):
        yield (
            "to look for faults of the code play a whole run (--attack multi-round): one release of many shows little, "
            "and there too little noise would show"
        )


def _proved(every: list[Reading]) -> Iterator[str]:
    """Where a mechanism has a budget of a whole run: its limit is known without any attack."""
    for name in dict.fromkeys(_kind(one) for one in every if _whole_run(one)):
        yield (
            f"rely on the proved limit of {name}, which holds for every attacker and a whole run: "
            "guarantee(epsilon=..., rounds=...) has it"
        )


def _whole_run(one: Reading) -> bool:
    known = MECHANISMS.get(_kind(one))
    return known is not None and known.whole_run


def _evidence(content: Content, given: bool) -> Iterator[str]:
    if not any(row.get("evidence") == FEW for row in content.get("attacks", [])):
        return
    if given:
        yield f"give at least {ENOUGH} updates, as Update(model, before, [after1, after2, ...])"
    elif content.get("options", {}).get("releases", 0) < ENOUGH:
        yield f"attack more releases (--targets {ENOUGH} or more)"
    elif content.get("targets") != "private":
        yield f"set more public {thing_of(content)}s apart: {_gave(content)}"


def _gave(content: Content) -> str:
    """How many public inputs there were and how many it takes, about: releases grow as these do."""
    there = content.get(PUBLIC_INPUTS)
    if there is None:
        return "there were too few for the releases that were asked for"
    fewest = min(row["targets"] for row in content["attacks"] if row.get("evidence") == FEW)
    return f"{there:,} gave {counted(fewest, 'release')}, about {round_up(there * ENOUGH / fewest):,} give {ENOUGH}"


def round_up(count: float) -> int:
    """To two digits.

    >>> round_up(956), round_up(1250), round_up(7.2)
    (960, 1300, 8)
    """
    unit: int = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit


def _guarantee(every: list[Reading], leaking: list[Reading], flags: bool) -> Iterator[str]:
    """The mechanism whose budget limits every attack, unless all of these have a guarantee."""
    if all(one.formal for one in every):
        return
    how = "--mechanism gaussian-dp --budget 2" if flags else "protected_step"
    if not leaking or any(one.distorts for one in every):
        yield f"for a guarantee use gaussian-dp ({how})"
        return
    yield (
        f"protect the updates, first of all with gaussian-dp, whose budget limits every attack ({how}): static noise "
        "(pl-identical at 0.98) left 25 to 38 % of the examples of the first release (up to 42 % later) identified in "
        "docs/results.md"
    )


def _staying(steps: Iterator[str], leaking: list[Reading], other: bool) -> Iterator[str]:
    """Steps for whoever keeps the mechanisms there are; said so where an ``other`` was named before."""
    these = "these mechanisms" if len({_kind(one) for one in leaking if one.distorts}) > 1 else "this mechanism"
    for place, step in enumerate(steps):
        yield f"to stay with {these}: {step}" if other and not place else step


def _static(every: list[Reading], content: Content, flags: bool, deployed: bool) -> Iterator[str]:
    """Static noise of equal budget, where learned noise leaks more; with a damped server, unless there is one."""
    names = dict.fromkeys(one.own["mechanism"] for one in every if one.learns and one.against(EQUAL_LOWER) == MORE)
    static = dict.fromkeys(filter(None, map(static_name, names)))
    if not static:
        return
    damped = ""
    if deployed:
        damped = ", with a damped server (FedAvgM, docs/deployment.md)"
    elif flags and content.get("server") != DAMPED:
        damped = (
            ", with a damped server (--set server_rate=auto): in docs/results.md this was more accurate than learning "
            "with a plain server, and less accurate than learning with a damped one"
        )
    yield (
        f"without one use static noise ({', '.join(static)}) instead of {', '.join(names)} at the same budget{damped}"
    )


def _stricter(leaking: list[Reading], flags: bool) -> Iterator[str]:
    """More examples in a release, and a smaller budget unless the smallest leaked most here.

    Not where the budget is that of a whole run: its limit is proved, whatever was measured.
    """
    defended = [one for one in leaking if one.distorts and not _whole_run(one)]
    if not defended:
        return
    yield "use a larger batch" + (" (--set batch=...)" if flags else "")
    first = min((one.metric for one in defended), key=lambda metric: JUDGED.index(metric.name))
    worst = max((one for one in defended if one.metric == first), key=lambda one: one.value)
    alike = [one for one in defended if (one.metric, _kind(one)) == (worst.metric, _kind(worst))]
    strictest = min(alike, key=lambda one: strictness(one.own["mechanism"], one.own["budget"]))
    if len({one.defence.label for one in alike}) == 1 or strictest.defence.label != worst.defence.label:
        yield f"use a stricter (smaller) budget than that of {worst.defence.label}"


def _kind(one: Reading) -> str:
    return str(one.own["mechanism"])


def _pictures(content: Content, every: list[Reading], given: bool) -> Iterator[str]:
    drawn = any(row.get("mse") is not None for row in content.get("attacks", []))
    if every and not drawn and not given and content.get("kind", "image") == "image":
        tried = FIRST in content.get("options", {}).get("attacks", [])
        yield (
            "for pictures, and only for these, add --attack invgrad"
            if tried
            else f"no picture: add {FIRST} to --attack"
        )
