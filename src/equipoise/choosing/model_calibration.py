"""What a budget means on one model: its noise beside an update, and what an attacker would get from one release.

A budget of the leakage score asks for a norm, and one of a scale for a noise in every coordinate, whatever the model:
on a small one the same label is far more noise. Everything here is measured on public data, at the weights given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attack.simulate import simulate, undistorted
from ..attack.view import Server
from ..auditing.cells import server_of
from ..auditing.targets import Materials
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..errors import ConfigError, DataError
from ..mechanism.protection import NO_PROTECTION, Protection
from ..mechanism.registry import checked, get_mechanism
from ..models.named import Factory
from ..runs.folder import RunFolder
from .identification import Identification

BATCHES = 32
"""Public batches over which norms are averaged."""
LARGEST = 1e5
"""Noise over update up to which a budget is sought."""
STEPS = {False: 12, True: 6}
"""Halvings in that search; a learner has to be simulated for each."""
CLAIM = (
    "Measured on public data for one release at these weights, against one attack; up to 0.14 above what an audit with "
    "matched finds on the paper's model. It is no bound; later rounds and other attacks may do better."
)


@dataclass(frozen=True)
class ModelCalibration:
    """One mechanism on one model and dataset."""

    settings: Settings
    mechanism: str
    sweep: Sweep
    weights: Tensor  # [P]
    where: str  # which weights these are
    seed: int = 0

    @classmethod
    def of(
        cls,
        settings: Settings,
        dataset: str,
        mechanism: str,
        *,
        model: nn.Module | Factory | None = None,
        run: RunFolder | None = None,
        seed: int = 1,
    ) -> ModelCalibration:
        """At the first weights of a seed, or at those of a run's last snapshot.

        >>> from equipoise.runs.config import resolve
        >>> settings = resolve(overrides={"model": "mlp"}, sweep={"mechanisms": ["none"]}).settings
        >>> ModelCalibration.of(settings, "mnist", "pl-identical").ratios(0.98)[-1]["tensor"]
        'whole'
        """
        if not get_mechanism(mechanism).distorts:
            raise ConfigError(f"The mechanism {mechanism!r} has no budget to calibrate.", "Choose one that has.")
        if get_mechanism(mechanism).whole_run:
            raise ConfigError(
                f"What an attacker can get under {mechanism!r} is proved, and needs no measuring.",
                "Run equipoise guarantee, which shows the limits.",
            )
        sweep = Sweep(settings, [Federation(dataset, "none", None, seed)], model=model)
        if sweep.datasets[dataset].public is None:
            raise DataError(
                f"The dataset {dataset!r} has no public part to measure on.",
                "Set some of it apart: --set public_fraction=0.1.",
            )
        if run is None:
            return cls(settings, mechanism, sweep, sweep.models()[0], f"the first weights of seed {seed}")
        last = run.snapshots()[-1]
        weights = run.weights(last, sweep.batched.layout)[0].to(sweep.device, sweep.dtype)
        return cls(settings, mechanism, sweep, weights, f"the weights of {run.path.name} after round {last}")

    @property
    def _materials(self) -> Materials:
        (data,) = self.sweep.datasets.values()
        return Materials.of(data).to(self.sweep.device, self.sweep.dtype)

    def _server(self, protection: Protection) -> Server:
        (data,) = self.sweep.datasets.values()
        return server_of(self.settings, data, self.sweep.batched, protection)

    def _at(self, scale: float) -> Protection:
        """The protection whose noise has this scale, whatever budget that is."""
        plain, measure = self.settings.protection.at("none", None, 1), self.settings.protection.measure(self.mechanism)
        assert measure is not None  # what has none was refused
        return replace(plain, mechanism=get_mechanism(self.mechanism), scale=scale, factor=measure.factor)

    def ratios(self, budget: float) -> list[dict[str, Any]]:
        """For every tensor, and for all of them: the L2 norms of update and noise, means over public batches."""
        checked(self.mechanism, budget)
        server = self._server(self.settings.protection.at(self.mechanism, budget, 1))
        updates = self._updates(undistorted(server))
        noises = self._updates(server) - updates
        slots = [(slot.name, slice(slot.start, slot.stop)) for slot in self.sweep.batched.layout.slots]
        rows = []
        for name, part in [*slots, ("whole", slice(None))]:
            update, noise = (float(values[:, part].double().norm(dim=1).mean()) for values in (updates, noises))
            size = updates[:, part].shape[1]
            ratio = noise / update if update > 0 else math.inf
            rows.append({"tensor": name, "numbers": size, "update": update, "noise": noise, "ratio": ratio})
        return rows

    def _updates(self, server: Server) -> Tensor:
        """Updates ``[n, P]`` of public batches, as the mechanism of this server's clients makes them."""
        public = self._materials.attack
        assert public is not None
        generator = torch.Generator().manual_seed(self.seed)
        rows = torch.randint(len(public[1]), (BATCHES, server.examples), generator=generator)
        labels = public[1][rows.to(public[1].device)]
        return simulate(server, self.weights, public, labels, self.seed, "calibration")[0]

    def pace(self) -> float:
        """Seconds of one update that is simulated, where some have been: the first ones take longer."""
        began = time.monotonic()
        self._updates(undistorted(self._server(NO_PROTECTION)))
        return (time.monotonic() - began) / BATCHES

    def identification(self, **options: Any) -> Identification:
        """How often one release of a candidate would be found, at any noise; ``options`` are its own."""
        materials = self._materials
        assert materials.attack is not None
        return Identification(self._server(NO_PROTECTION), self.weights, materials.attack, materials.pool, **options)

    def budget_for(
        self, wanted: float, seen: Identification, progress: Callable[[int], None] = lambda step: None
    ) -> dict[str, Any]:
        """The loosest budget found at which at most a share ``wanted`` of examples is expected to be found.

        Noise scales are halved between none that is worth trying and far too much. A scale that no budget has, since
        the constants behind it end before, has ``budget`` None.
        """
        if get_mechanism(self.mechanism).shaping is not None:
            raise ConfigError(
                f"A budget is searched among sizes of noise, and {self.mechanism!r} shapes the update instead.",
                "Give a budget; equipoise frontier and equipoise audit compare several.",
            )
        if not 1 / seen.candidates < wanted < 1:
            count, chance = seen.candidates, 1 / seen.candidates
            raise ConfigError(
                f"Expected an identification rate of {wanted!r} to lie between chance, 1/{count}, and 1: so many "
                "public records of a class are candidates.",
                f"Give one above {chance:.3g}, for example {1.5 * chance:.2g}, or set more public records apart.",
            )
        unit, learns = self._unit(), get_mechanism(self.mechanism).learns
        low, high = math.log(1e-2 * unit), math.log(LARGEST * unit)
        for step in range(STEPS[learns]):
            middle = (low + high) / 2
            if seen.rate(self._at(math.exp(middle))) > wanted:
                low = middle
            else:
                high = middle
            progress(step + 1)
        scale = math.exp(high)
        return {"wanted": wanted, "budget": self._budget(scale), "scale": scale, "times_update": scale / unit}

    def _unit(self) -> float:
        """The noise scale whose noise is as long as an update."""
        updates = self._updates(undistorted(self._server(NO_PROTECTION)))
        return float(updates.norm(dim=1).mean()) / self._at(1.0).noise_norm(updates.shape[1])

    def _budget(self, scale: float) -> float | None:
        """The budget that asks for a scale, rounded to a stricter one; None where there is none so strict."""
        measure = self.settings.protection.measure(self.mechanism)
        assert measure is not None  # what has none was refused
        score = measure.leakage(scale)
        if score <= 0:
            return None
        digit = 10.0 ** (math.floor(math.log10(score)) - 3)
        return float(f"{math.floor(score / digit) * digit:.12g}")
