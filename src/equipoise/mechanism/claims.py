"""What is proved and what is not claimed, in one place: every report says it with these words."""

from __future__ import annotations

from collections.abc import Iterable

from .registry import Mechanism, get_mechanism

PROVED = (
    "every accepted release is finite and its distortion lies within its bounds, because one that fails this check is "
    "not accepted"
)
NO_EPSILON = "(epsilon, delta) of any kind"


def sentence(words: str) -> str:
    """
    >>> sentence("every accepted release is finite")
    'Every accepted release is finite.'
    """
    return f"{words[0].upper()}{words[1:]}."


def of_budgets(mechanisms: Iterable[str | Mechanism], seeded: bool = False) -> str:
    """What the budgets of these mechanisms are worth; less in a ``seeded`` experiment, whose noise can be repeated.

    >>> of_budgets(["pl-learn"])
    'A budget of pl-learn calibrates the distortion of one release and does not compose. No (epsilon, delta) is ...'
    >>> of_budgets(["laplace-dp"])
    'The budget of laplace-dp is the epsilon of one release, for replacing one example of the client, ...'
    >>> of_budgets(["gaussian-dp"], seeded=True)
    'The budget of gaussian-dp is the epsilon of a whole run, ... This is the epsilon of the mechanism; a seeded ...'
    """
    used = list({mechanism.name: mechanism for mechanism in map(get_mechanism, mechanisms)}.values())
    formal = [mechanism.name for mechanism in used if mechanism.formal and not mechanism.whole_run]
    runs = [mechanism.name for mechanism in used if mechanism.whole_run]
    scored = [m.name for m in used if m.distorts and not m.formal and m.shaping is None]
    shaping = [mechanism.name for mechanism in used if mechanism.shaping is not None]
    said = []
    if formal:
        against = ", and nothing against those who know the seed of a seeded run" if seeded else ""
        said.append(f"The budget of {', '.join(formal)} is {FORMAL}{against}.")
    if runs:
        none = " This is the epsilon of the mechanism; a seeded run has none." if seeded else ""
        said.append(f"The budget of {', '.join(runs)} is {WHOLE_RUN}.{none}")
    if scored:
        said.append(f"A budget of {', '.join(scored)} {SCORED}. No (epsilon, delta) is claimed for it.")
    if shaping:
        said.append(f"A budget of {', '.join(shaping)} {SHAPED}. No (epsilon, delta) is claimed for it.")
    if not said:
        return "Nothing is distorted. No (epsilon, delta) is claimed."
    plain = [mechanism.name for mechanism in used if not mechanism.distorts]
    return " ".join([*said, f"Releases of {', '.join(plain)} are not distorted."] if plain else said)


FORMAL = (
    "the epsilon of one release, for replacing one example of the client, proved for the numbers that are sent; those "
    "of several add up. It covers the parameters sent and nothing else that a client sends"
)
WHOLE_RUN = (
    "the epsilon of a whole run, at its delta, for adding or removing one record of a client (or all records of one "
    "group), proved for the numbers that are sent. It covers the parameters sent and nothing else that a client sends"
)
FINITE = "every accepted release is finite, because one that is not is not accepted"
"""What is proved of a mechanism that shapes the update: it has no bounds."""
SHAPED = "says how the update is shaped before it leaves; nothing is proved of what the rest of it tells"
SCORED = "calibrates the distortion of one release and does not compose"
