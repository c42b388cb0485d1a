"""One step of DP-SGD: a release of gaussian-dp beside the same step by Opacus.

    python benchmarks/gaussian_dp.py [--out benchmarks/results_gaussian_dp.json]

LeNetZhu, 256 records, all of them in the batch: the gradient of each is clipped, they are summed, and Gaussian noise of
the same size is added. *Release* is what a client does: integers on a grid, and noise that is exact, from the operating
system. *Floats* are the same gradients in float32 with torch's noise, which have no guarantee in the arithmetic of a
machine, and so are all of Opacus's steps: in each of its ways to get at the gradients of single records, and once with
its own loader, which draws the Poisson sample (with rate 1, all). *Drawn*: of four times as many records each is in the
batch with probability 1/4, drawn by the mechanism, or by Opacus's loader. *Plain* is SGD without any privacy. All take
turns in one process; seconds of the best repetition and of the middle one. *Run* is the recommended command for four
clients, a process of its own from start to end, with features still to be made and with those of before. Opacus is no
dependency of this package: without it (``pip install opacus``), only our own are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import CrossEntropyLoss
from torch.utils.data import DataLoader, TensorDataset

from equipoise.environment import environment
from equipoise.mechanism.call_slots import SLOTS
from equipoise.mechanism.protect import protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu

COMMAND = "python benchmarks/gaussian_dp.py --out benchmarks/results_gaussian_dp.json"
RECORDS, EPSILON, ETA = 256, 4.0, 0.1
RATE = 0.25
RUN = "train --mechanism gaussian-dp --budget 2 --set model=scatter-linear"
SETTINGS = ProtectionSettings(eta=ETA, gaussian=GaussianSettings(rounds=50, divisor=RECORDS, clip=1.0, delta=1e-5))
DRAWN = replace(
    SETTINGS, gaussian=GaussianSettings(rounds=50, divisor=RECORDS / RATE, clip=1.0, delta=1e-5, sampling_rate=RATE)
)
SIGMA = SETTINGS.gaussian.sigma(EPSILON)
WAYS = ("hooks", "functorch", "ew", "ghost")

Step = Callable[[], object]


def data(records: int = RECORDS) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(records, 1, 28, 28, generator=draw), torch.randint(0, 10, (records,), generator=draw)


def model() -> LeNetZhu:
    torch.manual_seed(0)
    return LeNetZhu()


# -- ours ----------------------------------------------------------------------------------------------------------


def release(settings: ProtectionSettings = SETTINGS) -> Step:
    own, batch = model(), data(int(settings.gaussian.divisor or 0))
    state = own.state_dict()

    def step() -> None:
        sent = protected_step(own, state, batch, "gaussian-dp", EPSILON, settings=settings, round_number=1)
        state.update(sent.parameters)

    return step


def floats(sigma: float = SIGMA) -> Step:
    own, (x, y) = model(), data()
    batched = Batched(own)
    weights = batched.layout.flatten(dict(own.named_parameters())).unsqueeze(0)

    def step() -> Tensor:
        total = torch.zeros_like(weights[0])
        for at in range(0, RECORDS, SLOTS):
            gradients = batched.each(weights, x[None, at : at + SLOTS], y[None, at : at + SLOTS])[0]
            factors = SETTINGS.gaussian.clip / gradients.norm(dim=1).clamp_min(SETTINGS.gaussian.clip)
            total += factors @ gradients
        total += torch.randn_like(total) * (sigma * SETTINGS.gaussian.clip)
        weights.sub_(total * (ETA / RECORDS))
        return weights[0]

    return step


def plain() -> Step:
    own, (x, y), loss = model(), data(), CrossEntropyLoss()
    optimizer = torch.optim.SGD(own.parameters(), lr=ETA)

    def step() -> None:
        optimizer.zero_grad()
        loss(own(x), y).backward()
        optimizer.step()

    return step


# -- Opacus --------------------------------------------------------------------------------------------------------


def opacus(
    way: str, sigma: float = SIGMA, loader: bool = False, records: int = RECORDS
) -> tuple[Step, torch.nn.Module]:
    """A step of Opacus's, and the model that it trains; with ``loader``, records come from its Poisson loader."""
    from opacus import PrivacyEngine

    own, (x, y), loss = model(), data(records), CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=own, optimizer=torch.optim.SGD(own.parameters(), lr=ETA), criterion=loss,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=RECORDS), noise_multiplier=sigma,
        max_grad_norm=SETTINGS.gaussian.clip, grad_sample_mode=way, poisson_sampling=True,
    )  # fmt: skip
    module, optimizer, batches = made[0], made[1], made[-1]
    criterion = made[2] if way == "ghost" else loss

    def step() -> None:
        for images, labels in islice(batches, 1) if loader else [(x, y)]:
            optimizer.zero_grad()
            criterion(module(images), labels).backward()
            optimizer.step()

    return step, own


def check_same() -> float:
    """The largest difference between weights after a step without noise, ours and Opacus's, in units of the step."""
    (step, own), layout = opacus("hooks", sigma=0.0), Batched(model()).layout
    before, after = layout.flatten(dict(own.named_parameters())).clone(), floats(sigma=0.0)()
    step()
    theirs = layout.flatten(dict(own.named_parameters()))
    assert isinstance(after, Tensor)
    difference = float((after - theirs).abs().max() / (theirs - before).abs().max())
    assert difference < 1e-4, f"not the same step: {difference}"
    return difference


# -- measuring -----------------------------------------------------------------------------------------------------


def measure(steps: dict[str, Step], threads: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 2):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if turn >= 2:  # the first ones build what is kept
                times[name].append(time.perf_counter() - started)
    rows = {name: {"best": min(each), "median": median(each)} for name, each in times.items()}
    result: dict[str, Any] = {"threads": threads, "repeats": repeats, "seconds": rows}
    result["release_over_floats"] = _ratio(rows, ["floats"])
    theirs = [name for name in steps if name.startswith("opacus") and not name.endswith("drawn")]
    if theirs:
        result["release_over_opacus_hooks"] = _ratio(rows, ["opacus hooks"])
        result["release_over_quickest_opacus"] = _ratio(rows, theirs)
        result["drawn_release_over_opacus"] = _ratio(rows, ["opacus hooks, drawn"], "release, drawn")
    return result


def _ratio(rows: dict[str, dict[str, float]], theirs: list[str], ours: str = "release") -> dict[str, float]:
    """Ours over the quickest of theirs: the best times, and the middle ones."""
    return {kind: rows[ours][kind] / min(rows[name][kind] for name in theirs) for kind in ("best", "median")}


def run() -> dict[str, Any]:
    """50 rounds of scatter-linear: seconds of the whole command, first with an empty cache of features."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        took = {}
        for name in ("first", "again"):
            command = [str(Path(sys.executable).with_name("equipoise")), *RUN.split(), "--out", f"{folder}/{name}"]
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=variables)
            took[name] = time.perf_counter() - started
        rounds = json.loads(Path(folder, "again", "result.json").read_text())["federations"][0]["rounds"]
    return {"command": f"equipoise {RUN}", "rounds": rounds, "clients": 4, "seconds": took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Opacus's, on its noise and its hooks
    steps = {"release": release(), "release, drawn": release(DRAWN), "floats": floats(), "plain": plain()}
    found: dict[str, Any] = {"opacus": None}
    try:
        found = {"opacus": version("opacus"), "difference_without_noise": check_same()}
        steps |= {f"opacus {way}": opacus(way)[0] for way in WAYS}
        steps["opacus hooks, its loader"] = opacus("hooks", loader=True)[0]
        steps["opacus hooks, drawn"] = opacus("hooks", loader=True, records=int(RECORDS / RATE))[0]
    except PackageNotFoundError:
        print("Opacus is not installed: only our own steps are measured.")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "command": COMMAND, "commit": commit.stdout.strip(), "model": "lenet-zhu", "records": RECORDS,
        "noise_multiplier": SIGMA, **found,
        "rows": [measure(steps, threads, options.repeats) for threads in (1, 2)], "run": run(),
        "environment": environment(),
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
