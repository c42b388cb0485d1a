"""The command behind ``equipoise reproduce``: compute what is missing, score, draw, write; or say where things stand.

A results folder holds ``reproduction.json`` (whose it is), ``raw/`` (records), a folder per artefact with
``README.md``, ``results.json`` and ``figure.svg``, and the page as ``README.md`` and ``index.html``. Nothing is written
into a folder that belongs to another version or scale, or that holds anything else.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engine.settings import Settings, check_settings
from ..environment import VERSION
from ..errors import CheckpointError, ConfigError
from ..files import locked, read_json, storage_errors, write_bytes, write_json, write_text
from . import figures
from .artefacts.artefact import Artefact, Results
from .artefacts.registry import ARTEFACTS, check_names, needs
from .claims import judge
from .headline import headline
from .job import Report, run
from .pages import artefact_text, page_html, page_text
from .plan import SCHEMA, Scale, jobs, spec, without
from .records import Records, read
from .sections import section

MARK = "reproduction.json"
QUICK_MARK = "QUICK, says nothing about the paper: "


def checkout() -> Path | None:
    """The source checkout that this package runs from, if it does."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "reproduction").is_dir() else None


def committed() -> Path:
    """The results that came with the source."""
    here, root = Path("reproduction"), checkout()
    if (here / MARK).is_file() or root is None:
        return here
    return root / "reproduction"


def commit() -> str | None:
    """The checkout's commit, marked where files differ from it."""
    root = checkout()
    if root is None:
        return None
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=root, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def plan(names: Sequence[str], scale: Scale, device: str, out: Path | None = None) -> dict[str, Any]:
    """The SPEC of everything that ``out`` does not hold yet."""
    check_settings(Settings.flat(device=device))
    wanted = needs(check_names(names), scale)
    if out is not None:
        check_folder(out, scale)
    if out is not None and (out / "raw").is_dir():
        wanted = without(wanted, read([out / "raw"], scale).measured)
    return spec(jobs(wanted, scale, device, commit()))


def check_folder(out: Path, scale: Scale) -> None:
    """Refuse a folder that holds something else."""
    if not out.exists() or (out.is_dir() and not any(path.name != ".lock" for path in out.iterdir())):
        return
    try:
        mark = json.loads((out / MARK).read_text(encoding="utf-8"))
        result = mark["schema"], mark["version"], mark["scale"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The folder {out} is not empty and holds no readable {MARK}.", "Choose another --out."
        ) from error
    if result != (SCHEMA, VERSION, scale.name):
        raise CheckpointError(
            f"The folder {out} holds results of version {result[1]}, schema {result[0]}, scale {result[2]}; these "
            f"would be {VERSION}, {SCHEMA}, {scale.name}.",
            "Choose another --out; nothing was changed.",
        )


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    device: str = "cpu",
    sources: Sequence[Path] = (),
    draw: bool = True,
    report: Report | None = None,
) -> dict[str, Any]:
    """Compute what is missing (or take it from ``sources``), write everything, return the status."""
    chosen = check_names(names)
    if draw:
        figures.check_available()
    check_folder(out, scale)
    check_settings(Settings.flat(device=device))
    if not sources:
        _check_available(device)
    taken = _given(sources, chosen, scale, out)
    with storage_errors(out):
        (out / "raw").mkdir(parents=True, exist_ok=True)
    with locked(out):
        write_json(out / MARK, {"schema": SCHEMA, "version": VERSION, "scale": scale.name})
        for path in taken:
            write_bytes(out / "raw" / path.name, path.read_bytes())
        missing = without(needs(chosen, scale), read([out / "raw"], scale).measured)
        for job in jobs(missing, scale, device, commit()):
            run(job, out / "raw", report)
        write(chosen, read([out / "raw"], scale), out, draw)
    return status(out)


def _check_available(device: str) -> None:
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"The device {device!r} is not available.", "Use --device cpu, or --plan and compute where there is one."
        )


def _given(sources: Sequence[Path], names: Sequence[str], scale: Scale, out: Path) -> list[Path]:
    """The raw files to take over; everything is checked before anything is written."""
    if not sources:
        return []
    here = [out / "raw"] if (out / "raw").is_dir() else []
    missing = without(needs(names, scale), read([*sources, *here], scale).measured)
    if missing:
        lacks = ", ".join(f"{len(federations)} federations of {group!r}" for group, federations in missing.items())
        raise ConfigError(
            f"The given results lack {lacks}.", "Compute these too, or leave out --from to compute them here."
        )
    taken = []
    for path in (path for source in sources for path in sorted(source.glob("*.json"))):
        own = out / "raw" / path.name
        if own.exists() and own.read_bytes() != path.read_bytes():
            raise CheckpointError(
                f"The folder {out} holds another {path.name}.", "Choose another --out; nothing was changed."
            )
        if not own.exists():
            taken.append(path)
    return taken


def write(names: Sequence[str], records: Records, out: Path, draw: bool = True) -> None:
    """Results, figures and texts of the named artefacts, then the page of all that the folder holds."""
    for name in names:
        _write_artefact(ARTEFACTS[name], records, out / name, draw)
    _write_page(out)


def _write_artefact(artefact: Artefact, records: Records, folder: Path, draw: bool) -> None:
    command = f"equipoise reproduce {artefact.name}{' --quick' if records.quick else ''}"
    result: Results = {
        "schema": SCHEMA, "version": VERSION, "scale": records.scale,
        **{key: getattr(artefact, key) for key in ("name", "kind", "title", "claim", "rule")},
        "command": command, "origins": records.origins if artefact.needs else [], **artefact.score(records),
    }  # fmt: skip
    write_json(folder / "results.json", result)
    figure = figures.svg(artefact, result) if draw else None
    if figure is not None:
        write_text(folder / "figure.svg", figure)
    else:  # an older one would show other numbers
        with storage_errors(folder):
            (folder / "figure.svg").unlink(missing_ok=True)
    text = artefact_text(section(artefact, result), command, _origin_line(result["origins"]), figure is not None)
    write_text(folder / "README.md", text)


def _origin_line(origins: list[dict[str, Any]]) -> str:
    if not origins:
        return "Nothing is computed for it."
    commits = sorted({str(origin["commit"]) for origin in origins})
    devices = sorted({str(origin["environment"]["device"]) for origin in origins})
    seconds = sum(origin["seconds"] for origin in origins)
    return (
        f"Computed at commit {', '.join(commits)} on {', '.join(devices)}: {seconds:.0f} s for all artefacts together."
    )


def results(out: Path) -> dict[str, Results]:
    """Everything that a results folder holds, in the order of the paper."""
    if not (out / MARK).is_file():
        raise CheckpointError(
            f"There are no results in {out.name}.", "Run in the source checkout, or give the folder with --out."
        )
    mark = read_json(out / MARK, "mark of the results", "Restore it, or use another --out.")
    if not isinstance(mark, dict) or (mark.get("schema"), mark.get("version")) != (SCHEMA, VERSION):
        raise CheckpointError(
            f"The folder {out} holds results of another version; this is {VERSION}, schema {SCHEMA}.",
            "Use the version that made them, or choose another --out.",
        )
    paths = {name: out / name / "results.json" for name in ARTEFACTS}
    return {name: _load(ARTEFACTS[name], path) for name, path in paths.items() if path.is_file()}


def _load(artefact: Artefact, path: Path) -> Results:
    name = f"{artefact.name}/results.json"
    try:
        result: Results = json.loads(path.read_text(encoding="utf-8"))
        version = result["schema"], result["version"]
        if artefact.judged:
            [cell["agrees"] for cell in result["cells"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{name} cannot be read: {error}.", "Write it again.") from error
    if version != (SCHEMA, VERSION):
        raise CheckpointError(
            f"{name} is of version {version[1]}, schema {version[0]}; this is {VERSION}, {SCHEMA}.",
            "Use the version that made it, or compute it again into another --out.",
        )
    return result


def status(out: Path) -> dict[str, Any]:
    """Where things stand, from the results themselves: a headline, artefacts with cells that agree, claims."""
    tables = results(out)
    artefacts = []
    for name, result in tables.items():
        if ARTEFACTS[name].judged:
            agree = sum(bool(cell["agrees"]) for cell in result["cells"])
            row = {"name": name, "kind": ARTEFACTS[name].kind, "cells": len(result["cells"]), "agree": agree}
            artefacts.append(row)
    mark = QUICK_MARK if any(table["scale"] != "full" for table in tables.values()) else ""
    claims = [
        {"claim": claim["claim"], "verdict": claim["verdict"], "evidence": mark + claim["evidence"]}
        for claim in judge(tables)
    ]
    return {"headline": [mark + line for line in headline(tables)], "artefacts": artefacts, "claims": claims}


def _write_page(out: Path) -> None:
    tables = results(out)
    sections = [section(ARTEFACTS[name], table) for name, table in tables.items()]
    drawn = {name: out / name / "figure.svg" for name in tables}
    shown = {name: path.read_text(encoding="utf-8") for name, path in drawn.items() if path.is_file()}
    claims = judge(tables)
    quick = any(table["scale"] != "full" for table in tables.values())
    scored = next((table for table in tables.values() if table["origins"]), None)
    seeds = max((cell.get("seeds", 0) for table in tables.values() for cell in table.get("cells", [])), default=0)
    head = [f"equipoise {VERSION}; {seeds} seeds; {_origin_line(scored['origins'] if scored else [])}"]
    head += headline(tables)
    write_text(out / "README.md", page_text(head, sections, claims, shown, quick))
    write_text(out / "index.html", page_html(head, sections, claims, shown, quick))
