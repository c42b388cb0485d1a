"""What could a server see in an update? Three updates of one model on the same batch, audited in one call each.

    python examples/audit_update.py [FOLDER]

Plain gradient, static noise, learned distortion: the numbers and, with FOLDER, pictures. One update is not evidence;
the rows say so. Give ``audit`` twenty or more, or use ``equipoise audit RUN``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from equipoise import LeNetZhu, audit, load, protect
from equipoise.auditing.options import Options


def main() -> None:
    torch.manual_seed(0)
    data = load("mnist")
    batch = data.public_targets.images[:4], data.public_targets.labels[:4]  # plays the private batch
    public = data.public_attack.images, data.public_attack.labels
    model = LeNetZhu()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    options = Options(attacks=["invgrad", "lti"], iterations=300, lr=0.1, samples=300, candidates=100)
    for mechanism, budget in (("none", None), ("pl-identical", 0.995), ("pl-learn", 0.995)):
        after = protect(model, before, batch, mechanism, budget).parameters
        result = audit(
            model, before, after, labels=batch[1], truth=batch[0], public=public, mechanism=mechanism, budget=budget,
            options=options, show=True,
        )  # fmt: skip
        for row in result.rows:
            if row["control"] != "negative":
                what = mechanism if row["role"] == "own" else f"  {row['role']}"
                print(f"{what:28} {row['attack']:8} MSE {row['mse']:.3f}  SSIM {row['ssim']:.3f}  {row['evidence']}")
        if len(sys.argv) > 1:
            result.save(Path(sys.argv[1]) / mechanism)
    black = result.content["baselines"]["given"]["black"]
    print(f"{'(black image)':37} MSE {black['mse']:.3f}  SSIM {black['ssim']:.3f}")


if __name__ == "__main__":
    main()
