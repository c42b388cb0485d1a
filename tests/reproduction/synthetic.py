"""Raw records with known numbers, in which every claim of the paper holds; each of their parts can be replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from equipoise.engine.federation import Federation
from equipoise.environment import VERSION, environment
from equipoise.reproduction.artefacts.registry import ARTEFACTS, needs
from equipoise.reproduction.plan import BELOW, BUDGETS, SCHEMA, Scale, settings_of
from equipoise.reproduction.records import Records

SEEDS = (1, 2, 3)
CLIENTS = 4
SCALE = Scale(
    name="full", seeds=SEEDS, rounds=5, evaluate_every=2, curve_every=2, gradient_every=2, full_every=2, iterations=2,
    attacked=2, pictured=3, inner_steps=(1, 3), inner_rates=(0.01, 1.0), baselines=True,
)  # fmt: skip
TENSORS = {
    "conv1.weight": 0.8, "conv1.bias": 0.8, "conv2.weight": 1.2, "conv2.bias": 0.8,
    "conv3.weight": 1.2, "conv3.bias": 0.8, "fc.weight": 1.0, "fc.bias": 1.0,
}  # fmt: skip
"""What learning does to the size of every tensor, as the paper lists it."""
LEARNED = (0.60, 0.75, 0.80, 0.82, 0.85)
STATIC = (0.10, 0.40, 0.60, 0.70, 0.80)
GUESSES = {"black": {"mse": 1.2, "ssim": 0.09, "leakage": 0.4}, "noise": {"mse": 3.3, "ssim": 0.01, "leakage": 0.1}}


def wobble(seed: int, size: float = 1e-3) -> float:
    """A difference between seeds that has mean zero over SEEDS."""
    return size * (seed - 2)


def place(federation: Federation) -> int:
    """0 (strict) to 4; budgets outside of the paper's grid count as 2, those below it as -1."""
    if federation.budget in BELOW.values():
        return -1
    family = "LS" if federation.mechanism.startswith("ls") else "PL"
    return BUDGETS[family].index(federation.budget) if federation.budget in BUDGETS[family] else 2


def accuracy(federation: Federation, group: str) -> float:
    if federation.budget is None:
        return 0.92
    at = place(federation)
    if federation.mechanism.endswith("learn"):
        base = 0.30 if at < 0 else LEARNED[at]
    else:
        base = 0.09 if at < 0 else STATIC[at]
    return base + wobble(federation.seed) + {"damped": 0.02, "eleven-steps": 0.01}.get(group, 0.0)


def mse(federation: Federation) -> float:
    return 2.0 + (0.01 + wobble(federation.seed) if federation.mechanism.endswith("learn") else 0.0)


def ssim(federation: Federation) -> float:
    return 0.02 + wobble(federation.seed) / 10


def curve(federation: Federation, client: int) -> list[float]:
    """Accuracy on a client's images at rounds 0, 2 and 5."""
    gain = 0.2 + wobble(federation.seed) if federation.mechanism.endswith("learn") else 0.0
    return [0.1 + gain / 2, 0.3 + gain, 0.4 + gain + client / 100]


def tensor(federation: Federation, name: str) -> dict[str, float]:
    """After / before: the size as the paper lists it, the standard deviation nearly kept."""
    return {"size": TENSORS[name] + wobble(federation.seed), "deviation": 1.01 + wobble(federation.seed)}


def stepwise(federation: Federation) -> tuple[list[float], list[float]]:
    """The loss that the distortion adds: on the mini-batch in rounds 1 to 5, on all data in rounds 1, 3, 5, 6."""
    low = 0.3 if federation.mechanism.endswith("learn") else 0.0
    on_batch = [0.4 - low + wobble(federation.seed) * (round_number % 2) for round_number in range(1, 6)]
    return on_batch, [high - low + wobble(federation.seed) for high in (2.5, 0.5, 0.5, 0.5)]


def gradients(federation: Federation) -> tuple[list[int], list[float]]:
    """Larger at small budgets; constant but for a rise in the last tenth of the rounds."""
    level = {600: 3.0, 800: 2.0, 1000: 1.0}[federation.budget] + wobble(federation.seed)
    return [0, 1, 2, 3, 5], [level, level, level, level, level + 0.5]


def pictures(federation: Federation) -> dict[str, Any]:
    return {
        "mse": [[2.0 + batch / 100] * 4 for batch in range(3)],
        "ssim": [[0.02 + batch / 1000] * 4 for batch in range(3)],
        "leakage": [0.1] * 3,
        "pixels": blank(SHADES[federation.dataset, federation.mechanism]),
    }


KINDS = ("original", "none", "ls-static", "ls-learn", "pl-identical", "pl-learn")
SHADES = {(d, m): 100 * i + 10 * j for i, d in enumerate(("mnist", "fmnist")) for j, m in enumerate(KINDS)}
"""Images that no two rows of the figure share."""


def blank(shade: int) -> list[Any]:
    """Four images, each of one shade: this one and the next three."""
    return [[[[shade + i] * 28] * 28] for i in range(4)]


def originals() -> dict[str, Any]:
    return {name: {"pixels": blank(SHADES[name, "original"]), "baselines": GUESSES} for name in ("mnist", "fmnist")}


@dataclass(frozen=True)
class World:
    """What every federation is found to do."""

    accuracy: Callable[[Federation, str], float] = accuracy
    mse: Callable[[Federation], float] = mse
    ssim: Callable[[Federation], float] = ssim
    curve: Callable[[Federation, int], list[float]] = curve
    tensor: Callable[[Federation, str], dict[str, float]] = tensor
    stepwise: Callable[[Federation], tuple[list[float], list[float]]] = stepwise
    gradients: Callable[[Federation], tuple[list[int], list[float]]] = gradients
    pictures: Callable[[Federation], dict[str, Any]] = pictures

    def record(self, federation: Federation, group: str, measures: set[str]) -> dict[str, Any]:
        """What ``job`` would write about a federation."""
        right = self.accuracy(federation, group)
        result: dict[str, Any] = {**asdict(federation), "accuracy": right, "accuracy_at_best_validation": right + 0.01}
        if "inversion" in measures:
            each = {"mse": self.mse(federation), "ssim": self.ssim(federation)}
            # two clients with four images each: means over both are what was asked for
            result["inversion"] = {key: [[v - 0.01] * 4, [v + 0.01] * 4] for key, v in each.items()}
            result["inversion"]["leakage"] = [0.2, 0.4]
        if "clients" in measures:
            rows = [self.curve(federation, client) for client in range(CLIENTS)]
            points = [
                {"accuracy": [row[t] for row in rows], "training_loss": [2.0 - row[t] for row in rows]}
                for t in range(3)
            ]
            result["clients"] = {"rounds": [0, 2, 5], "values": points}
        if "tensors" in measures:
            result["tensors"] = {"rounds": [0, 5], "values": [self._tensors(federation)] * 2}
        if "utility" in measures:
            values, full = self.stepwise(federation)
            result["utility"] = {
                "values": values, "full_rounds": [1, 3, 5, len(values) + 1], "full": [[v - 0.1, v + 0.1] for v in full],
            }  # fmt: skip
        if "gradients" in measures:
            result["gradients"] = dict(zip(("rounds", "values"), self.gradients(federation), strict=True))
        if "pictures" in measures:
            result["pictures"] = self.pictures(federation)
        return result

    def _tensors(self, federation: Federation) -> dict[str, Any]:
        result = {}
        for name in TENSORS:
            ratio = self.tensor(federation, name)
            sizes = {key: [[0.1, 0.1 * ratio[key]], [0.3, 0.3 * ratio[key]]] for key in ratio}  # two clients
            result[name] = {**sizes, "mean": [[0.01, -0.02], [-0.03, 0.04]]}
        return result


def content(name: str, world: World | None = None, scale: Scale = SCALE, group: str = "paper") -> dict[str, Any]:
    """A raw file with everything that the artefacts of a group need."""
    world, wanted = world or World(), needs(ARTEFACTS, scale)[group]
    return {
        "schema": SCHEMA, "experiment": "seeded", "name": name, "group": group, "version": VERSION, "commit": "abc1234",
        "scale": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(scale).items()},
        "settings": settings_of(scale, group, "cpu").plain(),
        "measures": [sorted(measures) for measures in wanted.values()],
        "federations": [world.record(federation, group, measures) for federation, measures in wanted.items()],
        "baselines": {name: GUESSES for name in ("mnist", "fmnist")},
        "originals": originals(),
        "environment": environment(), "seconds": 12.3,
    }  # fmt: skip


def records_of(world: World | None = None, scale: Scale = SCALE) -> Records:
    """All records, as ``records.read`` gives them."""
    world, result = world or World(), Records(scale.name)
    for group, federations in needs(ARTEFACTS, scale).items():
        for federation, measures in federations.items():
            key = (group, federation.dataset, federation.mechanism, federation.budget)
            result.cells.setdefault(key, {})[federation.seed] = world.record(federation, group, measures)
            result.measured.setdefault(group, {})[federation] = {*measures, "accuracy"}
    result.baselines = {name: GUESSES for name in ("mnist", "fmnist")}
    result.originals = originals()
    about = {"name": "paper-00000000", "group": "paper", "commit": "abc1234", "version": VERSION, "seconds": 12.3}
    result.origins = [{**about, "environment": environment(), "federations": 1}]
    return result


def pick(rows: list[dict[str, Any]], **about: Any) -> dict[str, Any]:
    """The one row of which all of this is true."""
    (result,) = (row for row in rows if all(row[key] == value for key, value in about.items()))
    return result
