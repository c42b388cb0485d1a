"""Write spec.json: every accuracy cell of the paper's two tables, and no protection, with eight seeds.

python reproduction/accuracy/make_spec.py
PYTHONPATH=src python -m equipoise.compute reproduction/accuracy/spec.json OUT/     # on a GPU: torch and numpy alone
python reproduction/accuracy/summarise.py OUT/ --commit HASH
"""

import json
from dataclasses import replace
from pathlib import Path

from equipoise.settings import Federation, Settings, to_dict

PL, LS = (0.96, 0.97, 0.98, 0.99, 0.995), (80, 200, 400, 600, 800)
CELLS = [(m, b) for m in ("pl-identical", "pl-learn") for b in PL]
CELLS += [(m, b) for m in ("ls-static", "ls-learn") for b in LS] + [("none", None)]


def write(name: str, settings: Settings, cells: list[tuple[str, float | None]], seeds: range) -> None:
    federations = [
        Federation(dataset, mechanism, budget, seed)
        for dataset in ("mnist", "fmnist")
        for mechanism, budget in cells
        for seed in seeds
    ]
    text = json.dumps(to_dict(settings, federations), indent=1) + "\n"
    Path(__file__).with_name(name).write_text(text)


def main() -> None:
    paper = replace(Settings(), evaluate_every=100, device="cuda")  # everything else is the default
    write("spec.json", paper, CELLS, range(1, 9))
    # as many gradients as learning spends, on static noise
    steps = [cell for cell in CELLS if cell[0] in ("pl-identical", "ls-static")]
    write("spec_steps.json", replace(paper, evaluate_every=500, local_steps=11), steps, range(1, 6))
    # the simplest baseline: the same releases, with a server that takes smaller steps when they are noisier
    write("spec_damped.json", replace(paper, evaluate_every=500, server_rate="auto"), CELLS[:-1], range(1, 6))


if __name__ == "__main__":
    main()
