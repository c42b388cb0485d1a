"""Does the canary audit notice when ``gaussian-dp`` lies? Every planted bug, many times, and honest code beside them.

    python studies/gaussian_dp/canary.py [--out canary.json] [--workers 1]      # about an hour of one core in all

``equipoise.auditing.canary`` has the rule. A bug is planted in the package's own code for as long as an audit lasts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from equipoise.auditing.canary import Canary, canary_audit
from equipoise.environment import environment
from equipoise.files import write_json
from equipoise.mechanism import noised_sum as noised_sum_file
from equipoise.mechanism import release as release_file
from equipoise.mechanism import run_budget
from equipoise.mechanism import units as units_file
from equipoise.mechanism.l2_grid import L2Grid
from equipoise.mechanism.units import EachRecord, Records
from equipoise.privacy.poisson import included
from equipoise.privacy.rounded_gaussian import rounded_gaussians

HERE = Path(__file__).parent
HONEST, CAUGHT = 50, 20
"""Audits of honest code in every setting, and of each planted bug."""
SETTINGS: dict[str, Canary] = {
    "all records": Canary(),
    "sampled": Canary(sampling_rate=0.25),
    "alone": Canary(others=0),
    "three times the clip": Canary(length=3.0),
    "not a number": Canary(length=float("nan"), missing=math.inf),
    "sampled, alone": Canary(sampling_rate=0.25, others=0, missing=0.0),
    "hostile weights": Canary(weight=2.0**24 + 2, divisor=14.5, missing=math.inf),
    "a gradient of 1e30": Canary(length=1e30),
}
"""At weights of 2^24 + 2, float32 has steps of 2: what 15 records add there, divided by 14.5, is rounded up to a step,
and what 14 add is rounded away, as is noise of a fifth. Weights of 1e30 hide whatever is added to them, and those that
are not finite are refused."""


# -- the bugs ----------------------------------------------------------------------------------------------------------


def half_the_noise(scales: Sequence[float], *rest: Any) -> torch.Tensor:
    return rounded_gaussians([scale / 2 for scale in scales], *rest)


def no_clip(self: L2Grid, gradients: torch.Tensor, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    whole = (gradients.double() / self.step).trunc()
    return torch.where(torch.isfinite(whole), whole, 0.0), torch.zeros(gradients.shape[:-1], dtype=torch.bool)


def nan_kept(self: L2Grid, gradients: torch.Tensor, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    norms = gradients.double().norm(dim=-1, keepdim=True)
    whole = (gradients.double() * (clip / norms.clamp_min(clip)) / self.step).trunc()
    return whole, (norms > clip).squeeze(-1)


def overflown(self: L2Grid, gradients: torch.Tensor, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A norm in float32 that is not finite clips nothing."""
    norms = gradients.square().sum(-1, keepdim=True).sqrt()
    norms = torch.where(torch.isfinite(norms), norms, 0.0)
    whole = (gradients.double() * (clip / norms.clamp_min(clip)) / self.step).trunc()
    return whole, (norms > clip).squeeze(-1)


def twice_the_rate(words: Any, count: int, rate: float) -> Any:
    return included(words, count, min(1.0, 2 * rate))


def one_round_less(
    epsilon: float, delta: float, rounds: int, sampling_rate: float = 1.0, schedule: Any = None
) -> float:
    return TRUE_MULTIPLIER(epsilon, delta, rounds - 1, sampling_rate)


TRUE_MULTIPLIER, TRUE_SUM, TRUE_SAMPLED, TRUE_NOISE, TRUE_TOTAL = (
    run_budget.noise_multiplier, noised_sum_file.noised_sum, Records.sampled, noised_sum_file._noise, EachRecord.total
)  # fmt: skip


def watched(units: Any, start: torch.Tensor, words: Any, eta: float, protection: Any) -> tuple[Any, list[torch.Tensor]]:
    """What ``noised_sum`` gives, and the batches that it drew."""
    drawn: list[torch.Tensor] = []

    def sampled(self: Records, row: torch.Tensor, rate: float, source: Any) -> torch.Tensor:
        drawn.append(TRUE_SAMPLED(self, row, rate, source))
        return drawn[-1]

    with patch.object(Records, "sampled", sampled):
        return TRUE_SUM(units, start, words, eta, protection), drawn


def divided_by(number: Callable[[int, int, float], float]) -> Callable[..., Any]:
    """``noised_sum`` that divides by a number of records instead of the public one.

    ``number`` makes it of those in the batch, all records, and the sampling rate.
    """

    def lying(units: Any, start: torch.Tensor, words: Any, eta: float, protection: Any) -> Any:
        (released, noise, clipped), drawn = watched(units, start, words, eta, protection)
        rate, pairs = protection.sampling_rate, zip(drawn, units.rows, strict=True)
        divisors = [number(len(batch), len(row), rate) for batch, row in pairs]
        factor = torch.tensor([rate * protection.divisor / divisor for divisor in divisors]).unsqueeze(1)
        return start + (released - start) * factor, noise, clipped

    return lying


def silent_when_empty(*arguments: Any) -> Any:
    """Nothing is released where no record was drawn."""
    (released, noise, clipped), drawn = watched(*arguments)
    empty = torch.tensor([len(row) == 0 for row in drawn]).unsqueeze(1)
    return torch.where(empty, arguments[1], released), noise, clipped


def weights_first(units: Any, start: torch.Tensor, words: Any, eta: float, protection: Any) -> Any:
    """The sum is added to the received weights, in their precision, and the noise to what comes of it."""
    clip, per_unit = protection.clip, noised_sum_file.update_per_gradient(eta, protection)
    rate, grid = protection.sampling_rate, units.pool.grid(clip)
    rows = [units.pool.records.sampled(row, rate, source) for row, source in zip(units.rows, words, strict=True)]
    total, clipped = units.pool.total(rows, start, clip)
    noise = TRUE_NOISE(grid, [float(protection.scale) / per_unit] * len(start), words, start)
    local = noised_sum_file._added(start, total, grid, per_unit)
    return noised_sum_file._added(local, noise, grid, per_unit), noise, clipped


def other_bits(self: EachRecord, rows: Any, start: torch.Tensor, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A record counts a step more in every coordinate where an odd number of records is summed."""
    total, clipped = TRUE_TOTAL(self, rows, start, clip)
    return total + torch.tensor([len(row) * (len(row) % 2) for row in rows]).unsqueeze(1), clipped


@contextmanager
def noise_used_again() -> Iterator[None]:
    """The noise of the first round in every round."""
    kept: list[torch.Tensor] = []

    def lying(*arguments: Any) -> torch.Tensor:
        kept.append(TRUE_NOISE(*arguments)) if not kept else None
        return kept[0]

    with patch.object(noised_sum_file, "_noise", lying):
        yield


realised = divided_by(lambda batch, everyone, rate: max(1, batch))
expected = divided_by(lambda batch, everyone, rate: rate * max(1, everyone))


@dataclass(frozen=True)
class Bug:
    """Something to plant: where it shows, and how it is put there."""

    name: str
    setting: str
    plant: Callable[[], Any] = field(repr=False)
    meant: bool = True  # to be caught in this setting


def _patched(where: Any, what: str, by: Any) -> Callable[[], Any]:
    return lambda: patch.object(where, what, by)


BUGS = (
    Bug("noise halved", "all records", _patched(noised_sum_file, "rounded_gaussians", half_the_noise)),
    Bug("noise halved", "sampled", _patched(noised_sum_file, "rounded_gaussians", half_the_noise)),
    Bug("clip missing", "three times the clip", _patched(L2Grid, "whole", no_clip)),
    Bug("sampling rate doubled", "sampled", _patched(units_file, "included", twice_the_rate)),
    Bug("divided by the realised batch", "all records", _patched(release_file, "noised_sum", realised)),
    Bug("divided by the realised batch", "sampled", _patched(release_file, "noised_sum", realised), meant=False),
    Bug("divided by q times the number of records", "all records", _patched(release_file, "noised_sum", expected)),
    Bug("divided by q times the number of records", "sampled", _patched(release_file, "noised_sum", expected), False),
    Bug("no release on an empty batch", "alone", _patched(release_file, "noised_sum", silent_when_empty)),
    Bug("no release on an empty batch", "sampled, alone", _patched(release_file, "noised_sum", silent_when_empty)),
    Bug("no release on an empty batch", "sampled", _patched(release_file, "noised_sum", silent_when_empty), False),
    Bug("a gradient that is not a number is kept", "not a number", _patched(L2Grid, "whole", nan_kept)),
    Bug("a norm that overflows clips nothing", "a gradient of 1e30", _patched(L2Grid, "whole", overflown)),
    Bug("weights added before the noise", "hostile weights", _patched(release_file, "noised_sum", weights_first)),
    Bug("weights added before the noise", "all records", _patched(release_file, "noised_sum", weights_first), False),
    Bug("a removed record changes the others' bits", "all records", _patched(EachRecord, "total", other_bits), False),
    Bug("noise used again in every round", "all records", noise_used_again),
    Bug(
        "accountant given one round less",
        "all records",
        _patched(run_budget, "noise_multiplier", one_round_less),
        False,
    ),
)
"""Those that are not meant to be caught show how weak this audit is against them. Divisors are caught where all records
take part, and by replaying a release without one record; others' bits by sums with and without a record, which must
differ by that record to the last bit; the accountant by the exact test of its noise: all are in
tests/mechanism/test_gaussian_lies.py."""


def audit_of(task: tuple[str, int, int]) -> dict[str, Any]:
    """One audit: of honest code in a setting, or of the bug at a place in ``BUGS``; which of these, and the seed."""
    kind, place, seed = task
    if kind == "honest":
        return canary_audit(list(SETTINGS.values())[place], seed)
    with BUGS[place].plant():
        return canary_audit(SETTINGS[BUGS[place].setting], seed)


def row(setting: str, found: list[dict[str, Any]], **about: Any) -> dict[str, Any]:
    canary = SETTINGS[setting]
    return {
        **about, "setting": setting, "audits": len(found), "failed": sum(one["fails"] for one in found),
        "sigma": canary.sigma, "rounds": canary.rounds, "sampling_rate": canary.sampling_rate, "others": canary.others,
        "runs_a_side": canary.runs, "first": {key: value for key, value in found[0].items() if key != "threshold"},
    }  # fmt: skip


def main(
    out: Path = HERE / "canary.json", honest: int = HONEST, caught: int = CAUGHT, workers: int = 1
) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {"honest": [], "planted": []}
    with pool(workers) as mapped:
        for place, setting in enumerate(SETTINGS):
            found = list(mapped(audit_of, [("honest", place, seed) for seed in range(honest)]))
            rows["honest"].append(row(setting, found))
            print(setting, rows["honest"][-1]["failed"], "of", honest, flush=True)
        for place, bug in enumerate(BUGS):
            found = list(mapped(audit_of, [("planted", place, seed) for seed in range(1000, 1000 + caught)]))
            rows["planted"].append(row(bug.setting, found, bug=bug.name, meant_to_be_caught=bug.meant))
            print(bug.name, bug.setting, rows["planted"][-1]["failed"], "of", caught, flush=True)
    result = {
        "schema": 1, "epsilon": 4.0, "delta": 1e-5, "relation": "add/remove", "unit": "record",
        "rule": "fails if the lower bound of the TPR exceeds the proved limit at the upper bound of the FPR, each "
        "exact and one-sided at 2.5 %, on half of the runs, at a threshold that the other half chose",
        "most_false_alarms": 0.05, **rows, "environment": environment(torch.device("cpu")),
    }  # fmt: skip
    write_json(out, result)
    return result


@contextmanager
def pool(workers: int) -> Iterator[Callable[..., Any]]:
    """``map`` over so many processes, each with one thread: a bug is planted in one of them alone."""
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as several:
        yield several.map


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "canary.json")
    parser.add_argument("--workers", type=int, default=1)
    torch.set_num_threads(1)
    given = parser.parse_args()
    main(given.out, workers=given.workers)
