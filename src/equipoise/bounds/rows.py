"""What is reported: figures with what they were made from, assumptions with what became of them, and rows of both.

A row is a plain dictionary, as ``bounds.json`` holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from ..statistics import interval
from .estimates import mean_of

Status = Literal["held", "violated", "not checkable", "not covered"]
Row = dict[str, Any]

CONFIGURED = "as configured"
"""The setting of a row that is about the run as it was; other settings name the smaller step they are about."""
IN_PART = "applies in part"
"""The status of a row on several subproblems, of which some violate an assumption and the others were not seen to."""


# -- figures -------------------------------------------------------------------------------------------------------


def figure(value: float | None, count: int, kind: str, error: float | None = None) -> Row:
    """A number with what it was made from."""
    return {"value": value, "count": count, "kind": kind, "error": error, "low": None, "high": None}


def average(values: Tensor) -> Row:
    """The mean of independent numbers with its standard error and Student's 95 % interval."""
    result = mean_of(values)
    low, high = interval(values.detach().double().flatten().tolist()) or (None, None)
    return figure(result.value, result.count, "mean", result.error) | {"low": low, "high": high}


def largest(values: Tensor) -> Row:
    return figure(float(values.max()), values.numel(), "largest")


def smallest(values: Tensor) -> Row:
    return figure(float(values.min()), values.numel(), "smallest")


def given(value: float | None) -> Row:
    """A setting, or what follows from settings by arithmetic."""
    return figure(value, 1, "given")


# -- assumptions and results ---------------------------------------------------------------------------------------


def assumption(name: str, status: Status, note: str = "", **figures: Row | None) -> Row:
    return {"name": name, "status": status, "note": note, "figures": figures}


def compared(name: str, value: Row, limit: Row, strict: bool, note: str = "") -> Row:
    """The assumption that a number is below a limit (``strict``), or at most that."""
    low, high = value["value"], limit["value"]
    status: Status = "held" if low < high or (not strict and low == high) else "violated"
    return assumption(name, status, note, value=value, limit=limit)


def for_each(name: str, held: Tensor, note: str = "", **figures: Row | None) -> Row:
    """An assumption on each of R subproblems, ``held`` ``[R]``: violated where one violates it, and in how many."""
    check = assumption(name, "held" if bool(held.all()) else "violated", note, **figures)
    return {**check, "subproblems": len(held), "violated": int((~held).sum())}


def result_row(
    about: Row,
    result: str,
    quantity: str,
    setting: str,
    *,
    status: str | None = None,
    reason: str = "",
    bound: Row | None = None,
    measured: Row | None = None,
    holds: bool | None = None,
    margin: float | None = None,
    constants: dict[str, Row] | None = None,
    assumptions: Sequence[Row] = (),
    **more: Any,
) -> Row:
    """One result at one place: ``status`` follows from the assumptions unless given.

    ``margin`` is the smallest ratio of bound to measurement, and the bound holds where it is at least 1.
    """
    broken = [check["name"] for check in assumptions if check["status"] == "violated"]
    return {
        **about, "result": result, "quantity": quantity, "setting": setting,
        "status": status or ("does not apply" if broken else "applies"),
        "reason": reason or ("violated: " + "; ".join(broken) if broken else ""),
        "bound": bound, "measured": measured, "holds": holds, "margin": margin,
        "constants": constants or {}, "assumptions": list(assumptions), **more,
    }  # fmt: skip


def not_covered(about: Row, result: str, quantity: str, name: str, reason: str) -> Row:
    """A result that the paper does not state for this run, for want of the assumption ``name``."""
    check = assumption(name, "not covered", reason)
    return result_row(
        about, result, quantity, CONFIGURED, status="not covered", reason=reason, assumptions=[check]
    )  # fmt: skip
