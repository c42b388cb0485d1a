"""The grids of the search, in the order in which they were run, and the rule for the rate that came out of them.

A shape is a setting without its rate. Shapes are compared by their score: the mean over epsilon 1, 2, 4, 8 of the
validation accuracy, over both datasets, at the best rate of the grid.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from runs import Level, Setting, evaluate

MAIN, SMALL = [Level(e) for e in (1.0, 2.0, 4.0, 8.0)], [Level(e, 32, 125) for e in (1.0, 2.0, 4.0, 8.0)]
LARGE = [Level(e) for e in (16.0, 32.0, 64.0, 256.0)]
TOLERANCE = 0.3  # points: of shapes whose scores are this close, the one with fewer rounds is taken

Rows = list[dict[str, Any]]
Pairs = list[tuple[Setting, Level]]


def from_travel(travel: float, shape: Setting) -> Setting:
    """The setting in which clipped steps that all agree would move by ``travel``.

    rate * clip * scale * rounds / (1 - momentum): its best value hardly depends on clip, momentum and rounds.
    """
    rate = travel * (1 - shape.momentum) / (shape.clip * shape.scale * shape.rounds)
    return replace(shape, rate=float(f"{rate:.4g}"))


def curves(rows: Rows, key: str = "accuracies") -> dict[Setting, dict[Level, dict[float, float]]]:
    """Of every shape and level: accuracy, mean over both datasets, by rate."""
    found: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        shape = Setting(**{name: row[name] for name in Setting.__dataclass_fields__} | {"rate": 0.0})
        value = row[key]
        level = Level(row["epsilon"], row["clients"], row["divisor"])
        found[shape][level][row["rate"]].append(mean(value) if isinstance(value, list) else value)
    return {s: {n: {r: mean(v) for r, v in by.items()} for n, by in levels.items()} for s, levels in found.items()}


def scores(rows: Rows) -> dict[Setting, float]:
    return {shape: mean(max(by.values()) for by in levels.values()) for shape, levels in curves(rows).items()}


def chosen(rows: Rows) -> Setting:
    found = scores(rows)
    best = max(found.values())
    return min((s for s in found if found[s] >= best - TOLERANCE), key=lambda s: (s.rounds, -found[s]))


class Search:
    """Rows so far, written after every part, so that a command that ends early loses nothing."""

    def __init__(self, out: Path, device: str, tiny: bool):
        self.out, self.device, self.tiny = out, device, tiny
        self.rows: Rows = []

    def run(self, step: str, pairs: Pairs, folds: int, seeds: int) -> Rows:
        if self.tiny:
            pairs, folds, seeds = [(replace(s, rounds=2), level) for s, level in pairs[:2]], 1, 1
        before = time.perf_counter()
        rows = evaluate(pairs, folds, seeds, self.device)
        print(f"{step}: {len(pairs)} settings, {time.perf_counter() - before:.1f} s", flush=True)
        self.rows += [row | {"step": step} for row in rows]
        self.out.write_text(json.dumps(self.rows))
        for shape, score in sorted(scores(rows).items(), key=lambda item: -item[1])[:8]:
            print(f"  {score:.2f} {shape}", flush=True)
        return rows


def pairs_of(shapes: list[Setting], levels: list[Level], travels: tuple[float, ...]) -> Pairs:
    return [(from_travel(travel, s), level) for s in shapes for level in levels for travel in travels]


# --- one: all shapes of scatter-linear --------------------------------------------------------------------------------

LINEAR_TRAVELS = tuple(375.0 * 2 ** (k / 2) for k in range(10))
WIDE_TRAVELS = tuple(90.0 * 2 ** (k / 2) for k in range(17))


def linear_shape(rounds: int = 50, momentum: float = 0.8, scale: float = 8.0, relative: float = 0.25) -> Setting:
    """``relative``: the clip for features of norm 1; it grows like the largest gradient, sqrt(scale^2 + 1)."""
    clip = float(f"{relative * math.sqrt((scale**2 + 1) / 2):.4g}")
    return Setting("scatter-linear", rounds, clip, momentum, 0.0, scale=scale)


def grid(search: Search) -> None:
    """Every combination on five folds; then the best, with weight decay, and what differs from it in one number."""
    points = itertools.product((25, 50, 100), (0.8, 0.9, 0.95), (1.0, 2.0, 4.0, 8.0), (0.25, 0.5, 1.0))
    shapes = [linear_shape(*point) for point in points]
    best = chosen(search.run("scatter-linear grid", pairs_of(shapes, MAIN, LINEAR_TRAVELS), 5, 1))
    near = [best] + [replace(best, decay=decay / best.scale**2) for decay in (0.003, 0.01, 0.03)]
    names = ("rounds", "momentum", "scale", "clip")
    near += [s for s in shapes if sum(getattr(s, name) != getattr(best, name) for name in names) == 1]
    relative = round(best.clip / math.sqrt((best.scale**2 + 1) / 2), 3)
    near += [linear_shape(best.rounds, best.momentum, scale, relative) for scale in (1.0, 2.0, 4.0, 8.0)]
    near = list(dict.fromkeys(near))
    search.run("scatter-linear near", pairs_of(near, MAIN, LINEAR_TRAVELS), 5, 3)
    travels = (90.0, 130.0, 190.0, 265.0, *LINEAR_TRAVELS)
    search.run("scatter-linear 32 x 125", pairs_of([best], SMALL, travels), 5, 3)


# --- two: init and rounds of the convolutional nets -------------------------------------------------------------------

TRAVELS = {
    ("lenet-zhu", "half"): (100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0),
    ("lenet-zhu", "torch"): (400.0, 800.0, 1600.0, 3200.0, 6400.0),
    ("lenet-tanh", "torch"): (25.0, 50.0, 100.0, 200.0, 400.0, 800.0),
    ("lenet-tanh", "half"): (200.0, 400.0, 800.0, 1600.0),
}


def rounds(search: Search) -> None:
    """At clip 1 and momentum 0.9, on two folds."""
    for (model, init), travels in TRAVELS.items():
        lengths = (200,) if (model, init) == ("lenet-tanh", "half") else (100, 200, 400)
        shapes = [Setting(model, length, 1.0, 0.9, 0.0, init=init) for length in lengths]
        search.run(f"{model} {init} rounds", pairs_of(shapes, MAIN, travels), 2, 1)


# --- three: one number changed at a time ------------------------------------------------------------------------------

BEST = {"lenet-zhu": (200.0, 350.0, 600.0, 1000.0), "lenet-tanh": (55.0, 105.0, 200.0, 390.0)}
"""Travels that were best in step two at epsilon 1, 2, 4, 8."""


def star(search: Search) -> None:
    shapes = [linear_shape(), *[linear_shape(rounds=length) for length in (25, 100)]]
    shapes += [linear_shape(momentum=m) for m in (0.0, 0.5, 0.9)] + [linear_shape(scale=s) for s in (1.0, 4.0, 16.0)]
    shapes += [linear_shape(relative=c) for c in (0.125, 0.5)]
    for levels in (MAIN, SMALL):
        search.run("scatter-linear star", pairs_of(shapes, levels, WIDE_TRAVELS), 5, 3)
    near, low = (0.71, 1.0, 1.41), (0.18, 0.35, 0.71, 1.41)
    for model, init in (("lenet-zhu", "half"), ("lenet-tanh", "torch")):
        base = Setting(model, 100, 1.0, 0.9, 0.0, init=init)
        heads = ("zero", "torch") if init == "half" else ("zero",)
        steps = [(replace(base, init=f"{init}+{head}"), low) for head in heads]
        steps += [(s, near) for s in (base, *[replace(base, clip=c) for c in (0.3, 3.0)])]
        steps += [(replace(base, momentum=m), near) for m in (0.0, 0.8)]
        for shape, factors in steps:
            pairs = [(from_travel(b * f, shape), n) for b, n in zip(BEST[model], MAIN, strict=True) for f in factors]
            search.run(f"{model} star", pairs, 5, 1)


# --- four: the rule for the rate --------------------------------------------------------------------------------------

DISPLACEMENT = {"scatter-linear": 1.75, "lenet-zhu": 0.34, "lenet-tanh": 0.107}
"""How far the noise of the whole run may move an output's weight: its standard deviation, times the features' norm."""

CHOSEN = (
    Setting("scatter-linear", 50, 1.0, 0.8, 0.0, scale=8.0),
    Setting("lenet-zhu", 200, 1.0, 0.8, 0.0, init="half"),
    Setting("lenet-tanh", 100, 1.0, 0.8, 0.0, init="torch"),
)
"""The chosen shapes."""


def ruled(shapes: list[Setting], levels: list[Level], factors: tuple[float, ...]) -> Pairs:
    """Rates at which the noise moves every weight equally far whatever the level, times ``factors``."""
    return [
        (from_travel(f * DISPLACEMENT[s.model] * math.sqrt(s.rounds) / n.noise(s.rounds), s), n)
        for s in shapes
        for n in levels
        for f in factors
    ]


def final(search: Search) -> None:
    base, *nets = CHOSEN
    shapes = [
        base,
        *[replace(base, rounds=t) for t in (25, 100, 200)],
        *[replace(base, momentum=m) for m in (0.5, 0.9)],
    ]
    shapes += [replace(base, clip=c) for c in (0.5, 2.0)] + [replace(base, scale=s) for s in (1.0, 4.0, 16.0)]
    wide = (0.5, 0.71, 1.0, 1.41, 2.0)
    for levels in (MAIN, SMALL):
        search.run("scatter-linear final", ruled(shapes, levels, wide), 5, 3)
    search.run("scatter-linear large", ruled([base], LARGE, (0.05, 0.1, 0.18, 0.25, 0.35, *wide)), 5, 3)
    for net in (replace(net, rounds=100) for net in nets):
        near = (0.71, 1.0, 1.41)
        search.run(f"{net.model} final", ruled([net], MAIN, near), 5, 3)
        search.run(f"{net.model} final", ruled([replace(net, rounds=200)], MAIN, (1.0,)), 5, 3)
        search.run(f"{net.model} final", ruled([replace(net, rounds=400)], MAIN, (1.0,)), 5, 1)
        search.run(f"{net.model} final", ruled([net], SMALL, near), 5, 1)
        search.run(f"{net.model} large", ruled([net], LARGE[:2], (0.35, 0.71, 1.0)), 5, 1)


STEPS = {"grid": grid, "rounds": rounds, "star": star, "final": final}
