"""Raw records -> what the paper's figures show, and M and gamma swept: cells with verdicts, and their curves."""

from __future__ import annotations

import base64
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np

from .agreement import above, below, spread
from .plan import CURVES, DATASETS, FAMILIES, GRADIENT_BUDGETS, SHOWN
from .records import Raw, Record
from .tables import Found, accuracy, paper

KEPT_WITHIN = 0.05
"""A tensor's distortion counts as kept when learning changes its mean size by less than this share."""


def trade_off(raw: Raw) -> Found:
    """A cell per budget: whether the learned distortion has the higher mean accuracy."""
    cells = []
    for family in FAMILIES:
        for gain in accuracy(raw, family)["gains"]:
            cells.append({"family": family, **gain, "agrees": gain["mean"] > 0, "beyond_its_interval": above(gain)})
    return {"cells": cells}


def clients(raw: Raw) -> Found:
    """A cell per client: final accuracy and area under the curve of the learned distortion minus the static one."""
    cells, curves = [], []
    for family, kinds in FAMILIES.items():
        budget = CURVES[family]
        rows = {name: raw.records("fmnist", name, budget) for name in kinds}
        tables = {
            (name, key): np.array([[point[key] for point in row["clients"]["values"]] for row in rows[name]])
            for name in kinds
            for key in ("accuracy", "training_loss")
        }  # [seeds, rounds, clients]
        static, learned = kinds
        rounds = rows[static][0]["clients"]["rounds"]
        for client in range(tables[static, "accuracy"].shape[2]):
            gap = 100 * (tables[learned, "accuracy"] - tables[static, "accuracy"])[:, :, client]
            loss = (tables[learned, "training_loss"] - tables[static, "training_loss"])[:, -1, client]
            final, area = spread(gap[:, -1].tolist()), spread(gap.mean(1).tolist())
            cells.append(
                {
                    "family": family, "budget": budget, "client": client + 1, **final, "area": area,
                    "final_training_loss": spread(loss.tolist()), "agrees": above(final) and above(area),
                }
            )  # fmt: skip
            for name in kinds:
                own = tables[name, "accuracy"][:, :, client]
                curves.append(
                    {
                        "family": family, "client": client + 1, "mechanism": name, "rounds": rounds,
                        "mean": (100 * own.mean(0)).tolist(), "low": (100 * own.min(0)).tolist(),
                        "high": (100 * own.max(0)).tolist(),
                        "training_loss": tables[name, "training_loss"][:, :, client].mean(0).tolist(),
                    }
                )  # fmt: skip
    return {"cells": cells, "curves": curves}


def layers(raw: Raw) -> Found:
    """A cell per tensor: what learning does to the mean size of its distortion, and to its standard deviation."""
    said = {name: verdict for verdict in ("amplified", "reduced", "kept") for name in paper()["layers"][verdict]}
    cells: list[Found] = []
    earlier: list[Found] = []
    for family, (_, learned) in FAMILIES.items():
        for dataset in DATASETS:
            rows = raw.records(dataset, learned, SHOWN[family])
            for place, when in enumerate(rows[0]["tensors"]["rounds"]):
                last = place == len(rows[0]["tensors"]["rounds"]) - 1
                for name in said:
                    table = [row["tensors"]["values"][place][name] for row in rows]
                    about = {"family": family, "dataset": dataset, "tensor": name, "round": when, **_tensor(table)}
                    about |= {"paper": said[name], "agrees": about["verdict"] == said[name]}
                    (cells if last else earlier).append(about)
    return {"cells": cells, "earlier_rounds": earlier, "kept_within": KEPT_WITHIN}


def _tensor(table: list[Record]) -> Found:
    """Per seed, the mean over its clients; ratios are after / before."""
    values = {
        key: np.array([row[key] for row in table]) for key in ("size", "mean", "deviation")
    }  # [seeds, clients, 2]
    ratio = {
        key: spread((v[..., 1].mean(1) / v[..., 0].mean(1)).tolist()) for key, v in values.items() if key != "mean"
    }
    change = ratio["size"]["mean"] - 1
    verdict = "kept" if abs(change) < KEPT_WITHIN else "amplified" if change > 0 else "reduced"
    both = {key: [float(part) for part in v.mean((0, 1))] for key, v in values.items()}
    signed = [float(part) for part in np.abs(values["mean"]).mean((0, 1))]
    names = {"size_ratio": ratio["size"], "deviation_ratio": ratio["deviation"], "size": both["size"]}
    return {**names, "deviation": both["deviation"], "absolute_mean": signed, "verdict": verdict, "seeds": len(table)}


def packed(images: list[Any]) -> list[str]:
    """Images ``[C, H, W]`` of bytes, as text."""
    return [base64.b64encode(np.array(image, dtype=np.uint8).tobytes()).decode() for image in images]


def unpacked(image: str, side: int = 28) -> Any:
    """The grey image behind such a text.

    >>> unpacked(packed([[[[7, 8], [9, 0]]]])[0], side=2).tolist()
    [[7, 8], [9, 0]]
    """
    return np.frombuffer(base64.b64decode(image), dtype=np.uint8).reshape(-1, side)


def reconstructions(raw: Raw) -> Found:
    """A cell per mechanism: SSIM (percent) and MSE of InvGrad's images of public batches, and the images of one."""
    ceiling = paper()["ssim_at_most"]
    cells, images = [], []
    for dataset in DATASETS:
        images.append({"dataset": dataset, "row": "original", "pixels": packed(raw.originals[dataset]["pixels"])})
        shown = [(None, "none", None)] + [(f, name, SHOWN[f]) for f, kinds in FAMILIES.items() for name in kinds]
        for family, name, budget in shown:
            found = next(row["pictures"] for row in raw.records(dataset, name, budget) if "pictures" in row)
            errors = {key: np.mean(found[key], axis=1).tolist() for key in ("mse", "ssim")}  # per batch
            label = name if budget is None else f"{name} {budget:g}"
            images.append(
                {"dataset": dataset, "row": label, "pixels": packed(found["pixels"]), "mse": mean(errors["mse"])}
            )
            if family is None:
                continue
            ssim, error = spread([100 * v for v in errors["ssim"]]), spread(errors["mse"])
            batches = ssim.pop("seeds")
            error.pop("seeds")
            about = {"dataset": dataset, "family": family, "mechanism": name, "budget": budget, "batches": batches}
            about |= {"seeds": 1, "ssim": ssim, "mse": error, "paper": f"SSIM at most {ceiling[family]} %"}
            cells.append({**about, "agrees": ssim["mean"] <= ceiling[family]})
    guesses = {name: found["baselines"] for name, found in raw.originals.items()}
    return {"cells": cells, "images": images, "guesses_without_an_update": guesses}


def stepwise(raw: Raw) -> Found:
    """Cells per dataset: the loss that one round's distortion adds, learned minus static, on two sets of images.

    The learner sees its mini-batch, every round; the paper defines the loss on all data of the client, which is
    sampled, densely at first, and averaged over time by trapezoids. Fluctuation is the standard deviation over rounds
    from a twentieth of the training on.
    """
    cells, curves = [], []
    static, learned = FAMILIES["LS"]
    for dataset in DATASETS:
        rows = {name: raw.records(dataset, name, SHOWN["LS"]) for name in (static, learned)}
        batch = {name: np.array([row["utility"]["values"] for row in rows[name]]) for name in rows}  # [seeds, rounds]
        full = {name: np.array([row["utility"]["full"] for row in rows[name]]).mean(2) for name in rows}
        sampled = np.array(rows[static][0]["utility"]["full_rounds"])
        every = np.arange(1, batch[static].shape[1] + 1)
        for where, table, when in (("its mini-batch", batch, every), ("all its data", full, sampled)):
            settled = when > every[-1] / 20
            mean_of = {name: _average(when, table[name]) for name in rows}
            gap = spread((mean_of[learned] - mean_of[static]).tolist())
            later = spread((table[learned] - table[static])[:, settled].mean(1).tolist())
            about = {"dataset": dataset, "budget": SHOWN["LS"], "measured_on": where, **gap, "agrees": below(gap)}
            about |= {"rounds": len(when), "from_a_twentieth_on": later}
            for name in rows:
                swing = spread(table[name][:, settled].std(1).tolist())
                about[name] = {**spread(mean_of[name].tolist()), "fluctuation": swing}
            cells.append(about)
        for name in rows:
            step = max(1, len(every) // 250)
            curve = batch[name].mean(0)[: len(every) // step * step].reshape(-1, step)
            curves.append(
                {
                    "dataset": dataset, "mechanism": name, "rounds": every[step - 1 :: step].tolist(),
                    "mean": curve.mean(1).tolist(), "full_rounds": sampled.tolist(),
                    "full": full[name].mean(0).tolist(),
                }
            )  # fmt: skip
    return {"cells": cells, "curves": curves}


def _average(rounds: Any, values: Any) -> Any:
    """The average over time of values at some rounds, by trapezoids."""
    if len(rounds) < 2:
        return values.mean(1)
    return np.trapezoid(values, rounds, axis=1) / (rounds[-1] - rounds[0])


def gradient_norm(raw: Raw) -> Found:
    """Cells per dataset: the average squared gradient norm grows as the budget shrinks, and rebounds at 600."""
    cells, curves, averages = [], [], []
    for dataset in DATASETS:
        found = {}
        for budget in GRADIENT_BUDGETS:
            rows = raw.records(dataset, "ls-learn", budget)
            rounds = np.array(rows[0]["gradients"]["rounds"])
            values = np.array([row["gradients"]["values"] for row in rows])  # [seeds, points]
            running = _running(rounds, values)
            found[budget] = rounds, values, running
            about = {"dataset": dataset, "budget": budget}
            late = values[:, rounds >= rounds[-1] / 2].mean(1)
            averages.append({**about, "average": spread(running[:, -1].tolist()), "second_half": spread(late.tolist())})
            curves.append(
                {
                    **about,
                    "rounds": rounds.tolist(),
                    "running": running.mean(0).tolist(),
                    "value": values.mean(0).tolist(),
                }
            )
        for smaller, larger in pairwise(GRADIENT_BUDGETS):
            gap = spread((found[smaller][2][:, -1] - found[larger][2][:, -1]).tolist())
            cells.append({"dataset": dataset, "what": f"{smaller} above {larger}", **gap, "agrees": above(gap)})
        rounds, values, _ = found[GRADIENT_BUDGETS[0]]
        parts = [values[:, (rounds > a * rounds[-1]) & (rounds <= b * rounds[-1])].mean(1) for a, b in MIDDLE_AND_END]
        gap = spread((parts[1] - parts[0]).tolist())
        cells.append(
            {"dataset": dataset, "what": "rebound at 600: last tenth above the middle", **gap, "agrees": above(gap)}
        )
    return {"cells": cells, "averages": averages, "curves": curves}


MIDDLE_AND_END = ((0.4, 0.6), (0.9, 1.0))


def _running(rounds: Any, values: Any) -> Any:
    """The average over time up to every sampled round, by trapezoids; at round 0 the value itself."""
    steps = np.diff(rounds) * (values[:, 1:] + values[:, :-1]) / 2
    area = np.concatenate([np.zeros((len(values), 1)), np.cumsum(steps, axis=1)], axis=1)
    return np.where(rounds > 0, area / np.maximum(rounds, 1), values)


def sweeps(raw: Raw) -> Found:
    """Accuracy with other M and other gamma than the paper's; M = 0 is static noise."""
    cells = []
    groups = sorted({key[0] for key in raw.cells if key[0].startswith(("M=", "gamma="))})
    for family, (static, learned) in FAMILIES.items():
        for dataset in DATASETS:
            budget = SHOWN[family]
            points = [("M", 0.0, raw.accuracies(dataset, static, budget))]
            for name, value in (("M", 10.0), ("gamma", 0.1)):
                points.append((name, value, raw.accuracies(dataset, learned, budget)))
            for group in groups:
                name, _, text = group.partition("=")
                points.append((name, float(text), raw.accuracies(dataset, learned, budget, group)))
            for name, value, values in sorted(points, key=lambda point: (point[0], point[1])):
                about = {"family": family, "dataset": dataset, "budget": budget, "setting": name, "value": value}
                cells.append({**about, **spread(values), "values": values, "paper": value in (10.0, 0.1)})
    return {"cells": cells}
