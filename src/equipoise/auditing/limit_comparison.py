"""What the attacker of the proof got, beside what is proved that nobody gets more than.

The rule, fixed before any result: a row is *above its proved limit* if the lower confidence bound of what was measured
exceeds the limit. Bounds are Clopper and Pearson's, exact and one-sided, at 5 % divided by the number of rows that are
compared (Bonferroni), so that an audit of an honest mechanism says so of any row with a probability of at most 5 %.

* Identification: successes of N independent games, against ``limit(1 / candidates)``.
* Membership: the threshold is taken from every second release without the record, so true alarms of all N releases
  with it and false alarms of the other half without it are independent of it. Half of the row's share of 5 % goes to
  the lower bound of the true positive rate, half to the upper bound of the false positive rate at which the limit is
  taken: the one that was realised, not the one that was aimed at.

Only these are compared, because only here do game, relation and scope match what is proved: with the record or without
it (add/remove), candidates that are exchangeable, one release or the whole run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..attack.matched import MATCHED
from ..attack.membership import MEMBERSHIP
from ..attack.registry import MULTI_ROUND
from ..errors import EquipoiseError
from ..privacy.limits import limit
from ..statistics import Array, auc, bootstrap_auc, bounded_interval
from .results import Outcome, evidence

LEVEL = 0.05
"""The probability with which an audit may accuse an honest mechanism, over all of its rows together."""
RATES = (0.001, 0.01, 0.1)
"""False positive rates at which membership is told."""
IDENTIFICATION, TPR, AUC = "identification", "membership_tpr", "membership_auc"
RELATION = "add/remove"
ABLE = 0.9
"""What identification without any noise must reach for a low figure to say anything."""
Row = dict[str, Any]


@lru_cache(maxsize=4096)
def lower_bound(found: int, trials: int, alpha: float) -> float:
    """The rate at which so many successes, or more, have a probability of ``alpha``; 0 for none.

    >>> round(lower_bound(5, 100, 0.025), 4), round(upper_bound(5, 100, 0.025), 4)
    (0.0164, 0.1128)
    """
    return 0.0 if found <= 0 else _root(lambda p: _at_least(found, trials, p) - alpha)


def upper_bound(found: int, trials: int, alpha: float) -> float:
    """The rate at which so many successes, or fewer, have a probability of ``alpha``; 1 if all are."""
    return 1 - lower_bound(trials - found, trials, alpha)


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises on [0, 1] crosses zero."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _at_least(found: int, trials: int, p: float) -> float:
    """P(at least ``found`` successes), summed over the shorter side."""
    if p <= 0 or p >= 1:
        return float(found <= 0 or p >= 1)
    below = found <= trials / 2
    k = np.arange(found) if below else np.arange(found, trials + 1)
    tail = float(np.exp(_log_choose(trials)[k] + k * math.log(p) + (trials - k) * math.log1p(-p)).sum())
    return 1 - tail if below else tail


@lru_cache
def _log_choose(trials: int) -> Array:
    """The logarithms of ``trials`` choose k, k = 0 .. trials."""
    factorials = np.array([math.lgamma(k + 1) for k in range(trials + 1)])
    result: Array = factorials[-1] - factorials - factorials[::-1]
    return result


# -- rows --------------------------------------------------------------------------------------------------------------


def rows_of(outcome: Outcome, terms: Mapping[str, Any], attacks: Sequence[str], seed: int = 0) -> list[Row]:
    """What one game came to, for those of the ``attacks`` that it answers: ``matched`` has identification,
    ``membership`` its rates at ``RATES`` and the area under its curve; over a whole run both are ``multi-round``.

    ``terms`` are what ``privacy.limits.limit`` wants beside kappa.
    """
    games = len(next(iter(outcome.values.values())))
    common = {
        **outcome.about, "relation": RELATION, "scope": terms["scope"], "games": games, "evidence": evidence(games),
        "terms": dict(terms), **outcome.notes,
    }  # fmt: skip
    one, other = (MULTI_ROUND, MULTI_ROUND) if terms["scope"] == "run" else (MATCHED.name, MEMBERSHIP.name)
    rows = [_identified(outcome, common)] if one in attacks else []
    named = [{**row, "attack": one} for row in rows]
    if other in attacks:
        rows = [_alarms(outcome, common, i) for i in range(len(RATES))] + [_area(outcome, common, seed)]
        named += [{**row, "attack": other} for row in rows]
    return named


def _identified(outcome: Outcome, common: Row) -> Row:
    values, games = outcome.values, common["games"]
    found, candidates = float(values[IDENTIFICATION].sum()), common["candidates"]
    ranks = bounded_interval(values["log_rank"], math.log(candidates)) or (None, None)
    able = float(outcome.values["undistorted"].mean())
    return {
        **common, "measure": IDENTIFICATION, "found": found, "measured": found / games, **_interval(found, games),
        "kappa": 1 / candidates, "chance": 1 / candidates, "log_rank": float(values["log_rank"].mean()),
        "log_rank_low": ranks[0], "log_rank_high": ranks[1], "undistorted": able,
        "impostor": float(outcome.negative[IDENTIFICATION].mean()), "control_failed": able < ABLE,
    }  # fmt: skip


def _alarms(outcome: Outcome, common: Row, place: int) -> Row:
    values, rate = outcome.values, RATES[place]
    alarms = {who: values[who] > values["thresholds"][:, place] for who in ("members", "others")}
    true, false = int(alarms["members"].sum()), alarms["others"][1::2]
    return {
        **common, "measure": TPR, "fpr": rate, "found": true, "measured": true / common["games"],
        **_interval(true, common["games"]), "kappa": rate, "chance": rate, "false_alarms": int(false.sum()),
        "without": len(false),
        "control_failed": _separated(values) < ABLE,
    }  # fmt: skip


def _area(outcome: Outcome, common: Row, seed: int) -> Row:
    members, others = (outcome.values[who].reshape(-1, 1) for who in ("members", "others"))
    low, high = (bootstrap_auc(members, others, seed=seed) or ((None, None),))[0]
    able = _separated(outcome.values)
    return {
        **common, "measure": AUC, "measured": auc(members, others), "low": low, "high": high, "kappa": None,
        "chance": 0.5, "undistorted": able, "impostor": auc(others[::2], others[1::2]) if len(others) > 1 else 0.5,
        "control_failed": able < ABLE,
    }  # fmt: skip


def _separated(values: Mapping[str, Array]) -> float:
    """The area without noise: the ratio is then half of the ``strength`` |u|^2 / sigma^2 with the record, and minus
    that without it."""
    return auc(values["strength"] / 2, -values["strength"] / 2)


def _interval(found: float, games: int) -> dict[str, float]:
    """Of 95 %, two-sided; of a tie that counts in part, the outer ends."""
    return {"low": lower_bound(math.floor(found), games, 0.025), "high": upper_bound(math.ceil(found), games, 0.025)}


# -- against the limits ------------------------------------------------------------------------------------------------


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows with their limits, and whether each is above: by the rule, which needs to know all of them.

    Where a limit cannot be computed, ``limit`` is None and ``no_limit`` says why: such a row is not compared.
    """
    limited = [{**row, **_limit(row)} for row in rows]
    share = LEVEL / max(1, sum(row["limit"] is not None for row in limited))
    return [row if row["limit"] is None else {**row, **_judged(row, share)} for row in limited]


def _limit(row: Row) -> dict[str, Any]:
    if row["kappa"] is None:
        return {"limit": None}
    try:
        return {"limit": _proved(row, row["kappa"])}
    except EquipoiseError as error:  # a machine without dp-accounting
        return {"limit": None, "no_limit": error.cause}


def _proved(row: Row, kappa: float) -> float:
    terms = dict(row["terms"])
    if terms.get("schedule") is not None:  # JSON has lists
        terms["schedule"] = tuple((float(level), int(count)) for level, count in terms["schedule"])
    return float(limit(kappa, **terms))


def _judged(row: Row, share: float) -> dict[str, Any]:
    """Whether what was found is above the limit at an error rate of ``share``, and from which rate on it would be."""
    games = row["games"]
    if row["measure"] == TPR:
        share /= 2
        realised = upper_bound(row["false_alarms"], row["without"], share)
        most = _proved(row, realised)
        extra = {"fpr_upper": realised, "limit_at_fpr_upper": most}
    else:
        most, extra = row["limit"], {}
    bound = lower_bound(math.floor(row["found"]), games, share)
    least = bisect_left(range(games + 1), True, key=lambda n: lower_bound(n, games, share) > most)
    noticed = least / games if least <= games else None
    return {**extra, "error_rate": share, "lower_bound": bound, "above": bound > most, "noticed_from": noticed}
