"""What to do after an audit: only steps that fit its result, from what docs/results.md measured."""

from __future__ import annotations

from collections.abc import Iterator

from .cells import EQUAL_LOWER, static_name
from .comparison import JUDGED, MORE, Reading, strictness
from .results import ENOUGH, FEW
from .summary import GIVEN, Content


def next_steps(content: Content, every: list[Reading]) -> tuple[str, ...]:
    """Imperative clauses, the first the one that decides most."""
    given, deployed = content.get("targets") == GIVEN, bool(content.get("deployment"))
    flags = not (given or deployed)  # whether there is a command to give them to
    leaking = [one for one in every if one.above_chance]
    return tuple([
        *_evidence(content, given),
        *_protect(every, leaking, flags),
        *_static(every, flags, deployed),
        *_stricter(leaking, flags),
        *_pictures(content, every, given),
    ])  # fmt: skip


def _evidence(content: Content, given: bool) -> Iterator[str]:
    if not any(row.get("evidence") == FEW for row in content.get("attacks", [])):
        return
    if given:
        yield f"give a list of at least {ENOUGH} updates"
    elif content.get("options", {}).get("releases", 0) < ENOUGH:
        yield f"attack more releases (--targets {ENOUGH} or more)"
    else:
        yield "set more public images apart: there were too few for the releases that were asked for"


def _protect(every: list[Reading], leaking: list[Reading], flags: bool) -> Iterator[str]:
    if leaking and not any(one.distorts for one in every):
        how = "--mechanism gaussian-dp --budget 2" if flags else "protected_step"
        yield (
            f"protect the updates, first of all with gaussian-dp, whose budget limits every attack ({how}): static "
            "noise (pl-identical at 0.98) left a quarter to a third of the images identified in docs/results.md"
        )


def _static(every: list[Reading], flags: bool, deployed: bool) -> Iterator[str]:
    """Static noise of equal budget, where learned noise leaks more; with a damped server it trained better as well."""
    names = dict.fromkeys(one.own["mechanism"] for one in every if one.learns and one.against(EQUAL_LOWER) == MORE)
    static = dict.fromkeys(filter(None, map(static_name, names)))
    if not static:
        return
    how = "--set server_rate=auto" if flags else "FedAvgM, docs/deployment.md" if deployed else ""
    damped = f", with a damped server ({how}), more accurate over thousands of rounds in docs/results.md" if how else ""
    yield f"use static noise ({', '.join(static)}) instead of {', '.join(names)} at the same budget{damped}"


def _stricter(leaking: list[Reading], flags: bool) -> Iterator[str]:
    """More examples in a release, and a smaller budget unless the smallest leaked most here."""
    defended = [one for one in leaking if one.distorts]
    if not defended:
        return
    yield "use a larger batch" + (" (--set batch=...)" if flags else "")
    first = min((one.metric for one in defended), key=lambda metric: JUDGED.index(metric.name))
    worst = max((one for one in defended if one.metric == first), key=lambda one: one.value)
    alike = [one for one in defended if (one.metric, _kind(one)) == (worst.metric, _kind(worst))]
    strictest = min(alike, key=lambda one: strictness(one.own["mechanism"], one.own["budget"]))
    if len({one.defence.label for one in alike}) == 1 or strictest.defence.label != worst.defence.label:
        yield f"use a stricter budget than that of {worst.defence.label}"


def _kind(one: Reading) -> str:
    return str(one.own["mechanism"])


def _pictures(content: Content, every: list[Reading], given: bool) -> Iterator[str]:
    drawn = any(row.get("mse") is not None for row in content.get("attacks", []))
    if every and not drawn and not given:
        yield "for pictures, and only for these, add --attack invgrad"
