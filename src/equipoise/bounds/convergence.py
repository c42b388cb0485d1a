"""Theorem 5.2 of Zhang et al. (arXiv:2305.15148): the average squared gradient norm over a whole run.

Lemma C.1, of which the theorem is the sum over rounds, is reported from here too (``one_step.py``). Where eta is too
large for both, they are also shown with eta = 1/(8*L_F): rounds repeated from the same snapshots, and a short run from
the first weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import DataError
from .context import BoundsContext
from .global_objective import GlobalObjective, Sampling, assumptions, largest_eta
from .one_step import LEFT_SIDE, LEMMA, one_step_row
from .repeated_rounds import ShortRun, repeat_round, short_run
from .rows import CONFIGURED, Row, average, figure, given, not_covered, result_row
from .theory import gradient_norm_bound, gradient_norm_limit

THEOREM, QUANTITY, LIMIT = "converge_rate", "mean |grad F|^2", "limit of that mean"
SMALLER, SHORT = "eta = 1/(8 L)", "eta = 1/(8 L), short"


def convergence_rows(context: BoundsContext, metrics: list[Row]) -> list[Row]:
    """The rows of all federations, the lemma's and the theorem's; ``metrics`` are the lines of metrics.jsonl."""
    sweep, eta = context.sweep, context.sweep.settings.protection.eta
    count = len(sweep.federations)
    if sweep.settings.protection.local_steps > 1:
        why = "several local steps: the update is no single stochastic gradient"
        results = ((LEMMA, LEFT_SIDE), (THEOREM, QUANTITY))
        return [
            not_covered(context.about(index, None), *result, "unbiased gradient sampling", why)
            for index in range(count) for result in results
        ]  # fmt: skip
    objective = GlobalObjective(context)
    weights = {0: sweep.state.params, **context.weights}
    for round_number, params in weights.items():
        objective.measure(round_number, params)
    objective.compare(weights)
    own = {round_number: repeat_round(objective, round_number, eta) for round_number in context.snapshots}
    rates = [context.server_rate(index, 1) for index in range(count)]
    limits = [largest_eta(objective.smoothness(index)["value"]) for index in range(count)]
    too_large = [index for index in range(count) if rates[index] * eta > limits[index]]
    smaller, short = {}, None
    if too_large:
        small = min(limits[index] / (2 * max(1.0, rates[index])) for index in range(count))
        smaller = {round_number: repeat_round(objective, round_number, small) for round_number in context.snapshots}
        short = short_run(objective, small)
    rows = []  # only now: L_F has learned from every round that was repeated
    for index in range(count):
        rows += [one_step_row(objective, index, at, eta, seen, CONFIGURED) for at, seen in own.items()]
        rows += theorem_rows(objective, index, metrics)
        if short is not None and index in too_large:
            rows += [one_step_row(objective, index, at, short.eta, seen, SMALLER) for at, seen in smaller.items()]
            rows.append(_short_row(objective, index, short))
    return rows


@dataclass(frozen=True)
class TrainedRounds:
    """T rounds of one federation with one step size, as the theorem sees them."""

    rounds: int  # T
    step: float  # eta, times the server's rate
    decrease: float  # F(W_0) - F(W_T)
    squared_gradient: Row  # the average of |grad F(W_{t-1})|^2
    distortion: Row  # that of |Delta_t|^2
    variance: Row  # sigma_g^2
    sampling: Sampling

    def constants(self, smoothness: Row) -> dict[str, Row]:
        return {
            "L_F": smoothness, "sigma_g^2": self.variance, "eta": given(self.step), "T": given(self.rounds),
            "F(W_0) - F(W_T)": figure(self.decrease, 1, "one run"), "|Delta|^2": self.distortion,
        }  # fmt: skip

    def sides(self, smoothness: float) -> Row:
        """Both sides of the inequality, and whether it holds; no bound for a step that the theorem does not cover."""
        measured = self.squared_gradient
        if self.step > largest_eta(smoothness):
            return {"measured": measured}
        variance, distortion = self.variance["value"], self.distortion["value"]
        bound = gradient_norm_bound(self.decrease, self.rounds, self.step, smoothness, variance, distortion)
        return {
            "measured": measured, "bound": figure(bound, self.rounds, "formula"),
            "holds": measured["value"] <= bound, "margin": bound / max(measured["value"], 1e-300),
        }  # fmt: skip


def theorem_rows(objective: GlobalObjective, index: int, metrics: list[Row]) -> list[Row]:
    """The theorem on the run as it was: its bound on the average, and the limit of that bound."""
    context, last = objective.context, objective.context.last
    about, fed = context.about(index, None), context.sweep.federations[index]
    lines = [line for line in metrics if line["round"] <= last and _is_about(line, about)]
    covered = sum(line["rounds_averaged"] for line in lines)
    if last == 0 or covered != last:
        why = "no round was trained" if last == 0 else f"metrics.jsonl covers {covered} of {last} rounds"
        return [result_row(about, THEOREM, QUANTITY, CONFIGURED, status="not checkable", reason=why)]
    rates = set(context.sweep.settings.server_rates(fed, range(1, last + 1), context.sweep.batched.layout.size))
    if len(rates) > 1:
        why = "the server's rate changes, and the theorem has one step size"
        return [not_covered(about, THEOREM, QUANTITY, "one step size", why)]
    rate = rates.pop()
    full = {line["round"] - 1: line["gradient_norm_squared"] for line in lines if "gradient_norm_squared" in line}
    source = "metrics.jsonl" if full else "snapshots"
    values = full or {at: objective.squared_gradient(at, index) for at in objective.loss if at < last}
    trained = _whole_run(objective, index, lines, rate, over_rounds(values, last))
    smoothness = objective.smoothness(index)
    common: dict[str, Any] = {
        "constants": trained.constants(smoothness) | {"largest eta": given(largest_eta(smoothness["value"]))},
        "assumptions": assumptions(objective, index, trained.step, 0, trained.sampling),
    }
    note = f"{len(values)} of {last} rounds, from {source}; each stands until the next; one run, not an expectation"
    sides = trained.sides(smoothness["value"])
    return [
        result_row(about, THEOREM, QUANTITY, CONFIGURED, **sides, **common, source=source, note=note),
        _limit_row(about, trained, smoothness["value"], lines, rate, common),
    ]


def _is_about(line: Row, about: Row) -> bool:
    return all(line.get(name) == value for name, value in about.items() if name != "round")


def _whole_run(
    objective: GlobalObjective, index: int, lines: list[Row], rate: float, squared_gradient: Row
) -> TrainedRounds:
    last = objective.context.last
    moved = rate**2 * sum(line["distortion_norm_squared"] * line["rounds_averaged"] for line in lines) / last
    releases = sum(line["accepted"] + line["refused"] for line in lines)
    clipped = sum(line["clipped_share"] * line["accepted"] for line in lines) / max(1, releases)
    refused = sum(line["refused"] for line in lines) / max(1, releases)
    return TrainedRounds(
        rounds=last, step=objective.context.sweep.settings.protection.eta * rate,
        decrease=float(objective.loss[0][index] - objective.loss[last][index]),
        squared_gradient=squared_gradient, distortion=figure(moved, last, "over all rounds"),
        variance=objective.largest_variance(index), sampling=Sampling(clipped, refused, releases),
    )  # fmt: skip


def _limit_row(
    about: Row, trained: TrainedRounds, smoothness: float, lines: list[Row], rate: float, common: dict[str, Any]
) -> Row:
    """The bound as T grows: rho is the largest mean over a stretch of rounds. No run has infinitely many."""
    bound = None
    if trained.step <= largest_eta(smoothness):
        most = rate**2 * max(line["distortion_norm_squared"] for line in lines)
        limit = gradient_norm_limit(trained.step, smoothness, trained.variance["value"], most)
        bound = figure(limit, len(lines), "formula")
    note = "a limit over rounds is never measured"
    return result_row(about, THEOREM, LIMIT, CONFIGURED, bound=bound, **common, note=note)


def _short_row(objective: GlobalObjective, index: int, short: ShortRun) -> Row:
    """The theorem on the short run with a smaller eta."""
    context, rounds = objective.context, len(short.squared_gradient)
    trained = TrainedRounds(
        rounds=rounds, step=short.eta * context.server_rate(index, 1), decrease=float(short.decrease[index]),
        squared_gradient=average(short.squared_gradient[:, index]), distortion=average(short.distortion[:, index]),
        variance=objective.variance[0][index],
        sampling=Sampling(float(short.clipped[index]), float(short.refused[index]), rounds),
    )  # fmt: skip
    smoothness = objective.smoothness(index)
    return result_row(
        context.about(index, None), THEOREM, QUANTITY, SHORT, **trained.sides(smoothness["value"]),
        constants=trained.constants(smoothness),
        assumptions=assumptions(objective, index, trained.step, 0, trained.sampling),
        source="short run", note="another run from the same first weights, with a smaller eta",
    )  # fmt: skip


def over_rounds(values: dict[int, float], rounds: int) -> Row:
    """The average over W_0 .. W_{T-1} of what is known at some of them: each value stands until the next one.

    >>> over_rounds({0: 4.0, 1: 1.0}, 3)["value"]
    2.0
    """
    known = sorted(number for number in values if number < rounds)
    if not known:
        raise DataError("None of the values lies before the last round.", "Keep snapshot 0.")
    starts, ends = [0, *known[1:]], [*known[1:], rounds]
    value = sum(values[at] * (end - start) for at, start, end in zip(known, starts, ends, strict=True)) / rounds
    return figure(value, len(known), "mean over time")  # its values depend on each other: no interval
