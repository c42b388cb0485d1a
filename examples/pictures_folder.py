"""Pictures from a folder with a class per folder, on clients of unequal size whose classes differ: from data to audit.

    python examples/pictures_folder.py [FOLDER]

FOLDER holds train/<class>/*.png and test/<class>/*.png, or one tree <class>/*.png. Without one, a small folder is
written from bundled pictures first. Needs the extra ``data`` (Pillow).
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from equipoise import AuditOptions, EquipoiseError, Run, audit_run, load, resolve

CLASSES = ["top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]


def write_folder(folder: Path, each: int) -> Path:
    """The first pictures of every class, as a camera or an export would leave them."""
    data = load("fmnist")
    pixels = data.pixels(data.train.inputs).clamp(0, 1).mul(255).round().byte()
    for label, name in enumerate(CLASSES):
        place = folder / name
        place.mkdir(parents=True)
        for number, row in enumerate((data.train.labels == label).nonzero().flatten()[:each].tolist()):
            Image.fromarray(pixels[row, 0].numpy()).save(place / f"{number}.png")
    return folder


def main(folder: Path, out: Path, rounds: int = 300, options: AuditOptions | None = None) -> None:
    config = resolve(
        overrides={
            "rounds": rounds,
            "model": "small-cnn",
            "partition": "dirichlet",  # every client has another mix of classes, and another number of pictures
            "dirichlet": 0.3,
            "public_fraction": 0.4,  # nobody's: what an attacker is assumed to hold, for the audit
            "server_rate": 0.3,  # smaller steps of the server, as clients differ and updates are noisy
        },
        sweep={"datasets": [str(folder)], "mechanisms": ["none", "pl-identical"], "budgets": [0.98]},
    )
    run = Run(out, config)
    for part in run.sweep.parts.values():
        print("pictures of each client:", ", ".join(str(len(rows)) for rows in part))
    for federation in run.execute()["federations"]:
        print(f"{federation['mechanism']}: test accuracy {federation['accuracy']:.1%}")
    print(audit_run(out, options or AuditOptions(attacks=["matched", "membership"])).summary())


if __name__ == "__main__":
    try:
        with TemporaryDirectory() as scratch:
            given = [Path(name) for name in sys.argv[1:2]]
            main(given[0] if given else write_folder(Path(scratch) / "pictures", 300), Path(scratch) / "run")
    except EquipoiseError as error:
        sys.exit(f"error: {error}")
