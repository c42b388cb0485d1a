"""What is proved and what is not claimed, in one place: every report says it with these words."""

from __future__ import annotations

from collections.abc import Iterable

from .registry import Mechanism, mechanism

PROVED = "every accepted release is finite and its distortion lies within its bounds"
NO_EPSILON = "(epsilon, delta) of any kind"


def sentence(words: str) -> str:
    """
    >>> sentence("every accepted release is finite")
    'Every accepted release is finite.'
    """
    return f"{words[0].upper()}{words[1:]}."


def of_budgets(mechanisms: Iterable[str | Mechanism]) -> str:
    """What the budgets of these mechanisms are worth.

    >>> of_budgets(["none", "pl-learn"])
    'A budget calibrates the distortion of one release. No (epsilon, delta) is claimed.'
    >>> of_budgets(["laplace-dp"])
    'The budget of laplace-dp is the epsilon of one release, for replacing one example of the client.'
    """
    kinds = list(dict.fromkeys(mechanism(name) for name in mechanisms))
    formal = [f"The budget of {kind.name} is {FORMAL}." for kind in kinds if kind.formal]
    scored = [kind for kind in kinds if not kind.formal]
    others = f"A budget{' of the others' if formal else ''} calibrates the distortion of one release. "
    return " ".join(
        formal + ([f"{others}No (epsilon, delta) is claimed{' for it' if formal else ''}."] if scored else [])
    )


FORMAL = "the epsilon of one release, for replacing one example of the client"
