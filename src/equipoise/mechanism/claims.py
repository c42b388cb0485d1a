"""What is proved and what is not claimed, in one place: every report says it with these words."""

from __future__ import annotations

from collections.abc import Iterable

from .registry import Mechanism, get_mechanism

PROVED = "every accepted release is finite and its distortion lies within its bounds"
NO_EPSILON = "(epsilon, delta) of any kind"


def sentence(words: str) -> str:
    """
    >>> sentence("every accepted release is finite")
    'Every accepted release is finite.'
    """
    return f"{words[0].upper()}{words[1:]}."


def of_budgets(mechanisms: Iterable[str | Mechanism], seeded: bool = False) -> str:
    """What the budgets of these mechanisms are worth; less in a ``seeded`` experiment, whose noise can be repeated.

    >>> of_budgets(["none", "pl-learn"])
    'A budget of pl-learn calibrates the distortion of one release. No (epsilon, delta) is claimed for it.'
    >>> of_budgets(["laplace-dp"])
    'The budget of laplace-dp is the epsilon of one release, for replacing one example of the client; ...'
    """
    kinds = list({mechanism.name: mechanism for mechanism in map(get_mechanism, mechanisms)}.values())
    against = "; a seeded run has none against those who know its seed" if seeded else ""
    said = [f"The budget of {mechanism.name} is {FORMAL}{against}." for mechanism in kinds if mechanism.formal]
    scored = [mechanism.name for mechanism in kinds if mechanism.distorts and not mechanism.formal]
    if scored:
        said.append(
            f"A budget of {', '.join(scored)} calibrates the distortion of one release. No (epsilon, delta) is claimed "
            "for it."
        )
    return " ".join(said) or "Nothing is distorted. No (epsilon, delta) is claimed."


FORMAL = "the epsilon of one release, for replacing one example of the client; those of several add up"
