"""The one-step lemma and theorem converge_rate_mt, on a run's global models.

From every snapshot the next round is repeated with fresh mini-batches and noise; the theorem is about the whole run.
Where eta is too large for both, they are also shown with eta = 1/(8*L_F): rounds repeated from the same snapshots, and
a short run from the first weights. A server rate s other than 1 turns eta into s*eta and Delta_t into s*Delta_t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..errors import DataError
from .context import Row, Scene, assumption, average, compared, figure, given, row
from .repeated_rounds import Outer, Repeats, Short, between, look, repeats, short_run
from .theory import gradient_norm_bound, gradient_norm_limit, one_step_bound

LEMMA, THEOREM, OWN = "one_step", "converge_rate", "as configured"
SMALLER, SHORT = "eta = 1/(8 L)", "eta = 1/(8 L), short"


def outer_rows(scene: Scene, metrics: list[Row]) -> list[Row]:
    """The rows of all federations, snapshot by snapshot; ``metrics`` are the lines of metrics.jsonl."""
    eta, first = scene.sweep.settings.eta, scene.sweep.state.params
    if scene.sweep.settings.local_steps > 1:
        why = "several local steps: the update is no single stochastic gradient"
        check = assumption("unbiased gradient sampling", "not covered", why)
        return [
            row(scene.about(i, None), name, QUANTITY[name], OWN, status="not covered", reason=why, assumptions=[check])
            for i in range(len(first)) for name in (LEMMA, THEOREM)
        ]  # fmt: skip
    outer = Outer()
    places = {0: first, scene.final[0]: scene.final[1], **scene.weights}
    for when, params in places.items():
        look(scene, outer, when, params)
    between(outer, places)
    found = {OWN: {when: repeats(scene, outer, when, eta) for when in scene.weights}}
    rates = _rates(scene, 1)
    limits = [_largest_eta(outer.smoothness(i)["value"]) for i in range(len(first))]
    too_large = [i for i in range(len(first)) if rates[i] * eta > limits[i]]
    short: Short | None = None
    if too_large:
        small = min(limits[i] / (2 * max(1.0, rates[i])) for i in range(len(first)))
        found[SMALLER] = {when: repeats(scene, outer, when, small) for when in scene.weights}
        short = short_run(scene, outer, small)
    rows = []
    for i in range(len(first)):
        for setting, several in found.items():
            if setting == OWN or i in too_large:
                step = eta if setting == OWN else small
                rows += [_lemma(scene, outer, i, when, step, one, setting) for when, one in several.items()]
        rows += _theorem(scene, outer, i, _mine(scene, i, metrics))
        if short is not None and i in too_large:
            rows.append(_short_theorem(scene, outer, i, short))
    return rows


QUANTITY = {LEMMA: "eta/2 |grad F|^2", THEOREM: "mean |grad F|^2"}


def _largest_eta(smoothness: float) -> float:
    return 1 / (4 * smoothness) if smoothness > 0 else math.inf


def _rates(scene: Scene, when: int) -> list[float]:
    sweep = scene.sweep
    size = sweep.batched.layout.size
    return [sweep.settings.server_rates(fed, [when], size)[0] for fed in sweep.federations]


# -- reporting -----------------------------------------------------------------------------------------------------


def _assumptions(scene: Scene, outer: Outer, index: int, eta: float, unbiased: Row) -> list[Row]:
    smoothness = outer.smoothness(index)
    limit = given(_largest_eta(smoothness["value"]))
    smooth = assumption(
        "L_F-Lipschitz gradient",
        "not checkable" if scene.smooth else "violated",
        "a network's gradient is Lipschitz on bounded sets only; L_F is an estimate from below, on the points visited"
        if scene.smooth
        else "a layer is not known to be smooth: no L_F need exist",
        L_F=smoothness,
    )
    return [
        assumption("F bounded below", "held", "cross-entropy is never negative", infimum=given(0.0)),
        smooth,
        compared("eta <= 1/(4 L_F)", given(eta), limit, strict=False,
                 note="L_F errs from below: a violation is certain, the contrary is not"),
        unbiased,
        assumption("bounded variance", "not checkable", "measured at the snapshots only"),
    ]  # fmt: skip


def _unbiased(scene: Scene, outer: Outer, index: int, when: int, clipped: float, refused: float, count: int) -> Row:
    """Whether mini-batch gradients are unbiased: by the way they are drawn, and by what was seen."""
    s, shares = scene.sweep.settings, scene.sweep.shares[scene.sweep.federations[index].dataset]
    broken = []
    if s.sampling != "uniform":
        broken.append("passes draw without replacement over rounds")
    if s.participants not in (None, s.clients) and float(shares.max() - shares.min()) > 1e-12:
        broken.append("some of several clients of unequal size take part, and their mean is a ratio")
    if clipped > 0:
        broken.append("the gradient clip acted")
    if refused > 0:
        broken.append("some releases were refused")
    note = "; ".join(broken) or "uniform mini-batches, no clip acted; the bias ratio is about 1 without bias"
    return assumption(
        "unbiased gradient sampling", "violated" if broken else "held", note,
        bias_ratio=figure(outer.bias[when][index], outer.variance[when][index]["count"], "ratio"),
        clipped_share=figure(clipped, count, "share"), refused_share=figure(refused, count, "share"),
    )  # fmt: skip


def _evaluated(bound: Callable[[], float], eta: float, smoothness: float) -> float | None:
    return bound() if eta <= _largest_eta(smoothness) else None


def _lemma(scene: Scene, outer: Outer, index: int, when: int, eta: float, seen: Repeats, setting: str) -> Row:
    step = eta * _rates(scene, when + 1)[index]
    smoothness, variance = outer.smoothness(index), outer.variance[when][index]
    fall, moved = seen.decrease[:, index], seen.distortion[:, index]
    left = step / 2 * outer.squared(when, index)
    count = scene.examples(scene.sweep.federations[index].dataset)
    unbiased = _unbiased(
        scene,
        outer,
        index,
        when,
        float(seen.clipped[:, index].mean()),
        float(seen.refused[:, index].mean()),
        len(moved),
    )
    right = None
    if step <= _largest_eta(smoothness["value"]):
        draws = zip(fall.tolist(), moved.tolist(), strict=True)
        known = (step, smoothness["value"], variance["value"])
        right = average(torch.tensor([one_step_bound(f, *known, m) for f, m in draws], dtype=torch.float64))
    return row(
        scene.about(index, when), LEMMA, QUANTITY[LEMMA], setting,
        bound=right, measured=figure(left, len(count), "exact"),
        holds=None if right is None else left <= right["value"],
        margin=None if right is None or left <= 0 else right["value"] / left,
        constants={
            "L_F": smoothness, "sigma_g^2": variance, "eta": given(step),
            "largest eta": given(_largest_eta(smoothness["value"])),
            "F(W) - F(W_t)": average(fall), "|Delta|^2": average(moved),
        },
        assumptions=_assumptions(scene, outer, index, step, unbiased),
    )  # fmt: skip


def _mine(scene: Scene, index: int, metrics: list[Row]) -> list[Row]:
    wanted = {name: value for name, value in scene.about(index, None).items() if name != "round"}
    return [line for line in metrics if all(line.get(name) == value for name, value in wanted.items())]


def over_rounds(values: dict[int, float], rounds: int) -> Row:
    """The average over W_0 .. W_{T-1} of what is known at some of them: each value stands until the next one.

    >>> over_rounds({0: 4.0, 1: 1.0}, 3)["value"]
    2.0
    """
    known = sorted(when for when in values if when < rounds)
    if not known:
        raise DataError("None of the values lies before the last round.", "Keep snapshot 0.")
    ends = [*known[1:], rounds]
    starts = [0, *known[1:]]
    value = sum(values[when] * (end - start) for when, start, end in zip(known, starts, ends, strict=True)) / rounds
    return figure(value, len(known), "mean over time")  # its values depend on each other: no interval


def _theorem(scene: Scene, outer: Outer, index: int, metrics: list[Row]) -> list[Row]:
    about, last = scene.about(index, None), scene.final[0]
    lines = [line for line in metrics if line["round"] <= last]
    covered = sum(line["rounds_averaged"] for line in lines)
    if last == 0 or covered != last:
        why = "no round was trained" if last == 0 else f"metrics.jsonl covers {covered} of {last} rounds"
        return [row(about, THEOREM, QUANTITY[THEOREM], OWN, status="not checkable", reason=why)]
    rates = set(scene.sweep.settings.server_rates(
        scene.sweep.federations[index], range(1, last + 1), scene.sweep.batched.layout.size
    ))  # fmt: skip
    if len(rates) > 1:
        why = "the server's rate changes, and the theorem has one step size"
        check = assumption("one step size", "not covered", why)
        return [row(about, THEOREM, QUANTITY[THEOREM], OWN, status="not covered", reason=why, assumptions=[check])]
    rate = rates.pop()
    step, smoothness = scene.sweep.settings.eta * rate, outer.smoothness(index)
    full = {line["round"] - 1: line["gradient_norm_squared"] for line in lines if "gradient_norm_squared" in line}
    source = "metrics.jsonl" if full else "snapshots"
    values = full or {when: outer.squared(when, index) for when in outer.loss if when < last}
    measured = over_rounds(values, last)
    moved = rate**2 * sum(line["distortion_norm_squared"] * line["rounds_averaged"] for line in lines) / last
    variance = max((outer.variance[when][index] for when in outer.variance), key=lambda one: float(one["value"]))
    releases = sum(line["accepted"] + line["refused"] for line in lines)
    clipped = sum(line["clipped_share"] * line["accepted"] for line in lines) / max(1, releases)
    refused = sum(line["refused"] for line in lines) / max(1, releases)
    unbiased = _unbiased(scene, outer, index, 0, clipped, refused, releases)
    fall = float(outer.loss[0][index] - outer.loss[last][index])
    bound = _evaluated(
        lambda: gradient_norm_bound(fall, last, step, smoothness["value"], variance["value"], moved),
        step, smoothness["value"],
    )  # fmt: skip
    constants = {
        "L_F": smoothness, "sigma_g^2": variance, "eta": given(step),
        "largest eta": given(_largest_eta(smoothness["value"])),
        "F(W_0) - F(W_T)": figure(fall, 1, "one run"), "T": given(last),
        "|Delta|^2": figure(moved, last, "over all rounds"),
    }  # fmt: skip
    held = _assumptions(scene, outer, index, step, unbiased)
    common: dict[str, Any] = {"constants": constants, "assumptions": held}
    note = f"{len(values)} of {last} rounds, from {source}; each stands until the next; one run, not an expectation"
    return [
        row(
            about, THEOREM, QUANTITY[THEOREM], OWN, measured=measured, **common, source=source, note=note,
            bound=None if bound is None else figure(bound, last, "formula"),
            holds=None if bound is None else measured["value"] <= bound,
            margin=None if bound is None else bound / max(measured["value"], 1e-300),
        ),
        _limit(scene, index, step, smoothness["value"], variance["value"], lines, rate, common),
    ]  # fmt: skip


def _limit(
    scene: Scene,
    index: int,
    step: float,
    smoothness: float,
    variance: float,
    lines: list[Row],
    rate: float,
    common: Any,
) -> Row:
    """The bound as T grows: rho is the largest mean over a stretch of rounds. No run has infinitely many."""
    most = rate**2 * max(line["distortion_norm_squared"] for line in lines)
    bound = _evaluated(lambda: gradient_norm_limit(step, smoothness, variance, most), step, smoothness)
    return row(
        scene.about(index, None), THEOREM, "limit of that mean", OWN, **common,
        bound=None if bound is None else figure(bound, len(lines), "formula"),
        note="a limit over rounds is never measured",
    )  # fmt: skip


def _short_theorem(scene: Scene, outer: Outer, index: int, short: Short) -> Row:
    step = short.eta * _rates(scene, 1)[index]
    smoothness, variance = outer.smoothness(index), outer.variance[0][index]
    measured, moved = average(short.squared[:, index]), average(short.distortion[:, index])
    fall, rounds = float(short.first[index] - short.last[index]), len(short.squared)
    bound = _evaluated(
        lambda: gradient_norm_bound(fall, rounds, step, smoothness["value"], variance["value"], moved["value"]),
        step, smoothness["value"],
    )  # fmt: skip
    unbiased = _unbiased(scene, outer, index, 0, float(short.clipped[index]), float(short.refused[index]), rounds)
    return row(
        scene.about(index, None), THEOREM, QUANTITY[THEOREM], SHORT,
        bound=None if bound is None else figure(bound, rounds, "formula"), measured=measured,
        holds=None if bound is None else measured["value"] <= bound,
        margin=None if bound is None else bound / max(measured["value"], 1e-300),
        constants={
            "L_F": smoothness, "sigma_g^2": variance, "eta": given(step), "|Delta|^2": moved, "T": given(rounds),
            "F(W_0) - F(W_T)": figure(fall, 1, "one run"),
        },
        assumptions=_assumptions(scene, outer, index, step, unbiased), source="short run",
        note="another run from the same first weights, with a smaller eta",
    )  # fmt: skip
