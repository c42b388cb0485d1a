"""What could a server see in an update? Three updates of one model on the same batch, audited in one call each.

    python examples/audit_update.py [FOLDER]

Plain gradient, static noise, learned distortion: the numbers and, with FOLDER, pictures. One update is not evidence;
the rows say so. Give twenty or more as one ``Update(model, before, [after1, after2, ...])``, with
``truth=(inputs, labels)`` of shapes ``[N, E, ...]`` and ``[N, E]``, or use ``equipoise audit RUN``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from equipoise import Attacker, AuditOptions, LeNetZhu, Update, audit, load, protected_step


def main() -> None:
    torch.manual_seed(0)
    data = load("mnist")
    batch = data.public_pool.inputs[:4], data.public_pool.labels[:4]  # plays the private batch
    attacker = Attacker(public=(data.public_attack.inputs, data.public_attack.labels))
    model = LeNetZhu()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    options = AuditOptions(attacks=["invgrad", "lti"], iterations=300, lr=0.1, samples=300, candidates=100)
    for mechanism, budget in (("none", None), ("pl-identical", 0.995), ("pl-learn", 0.995)):
        after = protected_step(model, before, batch, mechanism, budget).parameters
        update = Update(model, before, after, mechanism=mechanism, budget=budget)
        result = audit(update, truth=batch, attacker=attacker, options=options, show=True)
        print(f"=== {mechanism} ===\n{result.summary()}\n")
        if len(sys.argv) > 1:
            result.save(Path(sys.argv[1]) / mechanism)


if __name__ == "__main__":
    main()
