"""The strongest attackers against recommended runs of gaussian-dp, beside what is proved that nobody exceeds.

``python studies/gaussian_dp/audit.py specs FOLDER [device]`` writes the SPECs, ``python -m equipoise.compute SPEC OUT``
(torch and numpy alone) plays each, several at a time where there is room, and
``python studies/gaussian_dp/audit.py table OUT...`` makes ``audit.json`` and fills the table of docs/guarantee.md,
which ``page`` does alone. ``python studies/gaussian_dp/audit.py planted`` plays single releases with too little noise,
half a minute on one core, and puts them into ``audit.json`` and the page.

========================  ==================================================================================
MODEL-releases            one release at each recommended snapshot: ``matched`` and ``membership``
MODEL-runs-DATASET        all releases of a run together: ``multi-round``
MODEL-quarter-of-noise    the same, epsilon 4 on MNIST, with a quarter of the noise that this epsilon takes
========================  ==================================================================================

Rules, fixed before any result:

* Models scatter-linear and lenet-zhu, MNIST and FMNIST, epsilon 1, 2, 4 and 8 of the whole run at delta 1e-5, unit
  record, add/remove; the settings that a user gets who names a budget alone, one seed, the recommended snapshots.
* The games are those of the proof. The attacker knows every other record, the weights, the clip and the noise that was
  really added. *Identification*: which one of 200 candidates, equally likely beforehand, was in the data. *Membership*:
  was the record in the data or was nothing in its place. 500 games in each cell, each with another public record as
  target and with noise of its own, so 500 distinct releases with the record and 500 without it.
* Limits are those of the noise that the *claimed* epsilon takes, computed from the claim when the table is made: code
  that adds less must show. A limit of one release is held against one release, one of a run against the whole run.
* ``above``: the exact one-sided lower bound of what was measured exceeds the limit. 5 % error for all comparisons of
  the table together (Bonferroni); ``equipoise.auditing.limit_comparison`` has the details. An area under the curve has
  an interval and is compared with nothing.
* Controls, in each cell: ``undistorted`` is what the same attacker gets of the same releases without noise, and a cell
  in which that is below 90 % says nothing (``control_failed``); ``impostor`` is what it gets for a wrong record.
* Expected: nothing above in the honest cells. Runs with a quarter of the noise must have identification above its
  limit; if one has not, this audit is too weak to say anything, and the table says ``"noticed": false``.
* Single releases with a quarter of the noise, at epsilon 8 and the first weights on MNIST, are a table of their own
  (``planted``), with 5 % error for its own comparisons. Identification must be above its limit there, and membership at
  10 % false positives; at 0.1 % and 1 % the bounds of 500 games are too wide to tell.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from equipoise.auditing.limit_comparison import IDENTIFICATION, RATES, compared
from equipoise.compute import compute_audit
from equipoise.engine.federation import Federation
from equipoise.engine.recommended import recommended
from equipoise.engine.settings import Settings, to_dict
from equipoise.privacy.gaussian import noise_multiplier
from equipoise.privacy.guarantee import percent_up

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "guarantee.md"
WORDS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST"}
HONEST, QUARTER = "as claimed", "a quarter of it"
SHARE = {HONEST: 1.0, QUARTER: 0.25}
SCOPES = {"run": "whole run", "release": "one release", "release_known": "one release"}
KEPT = (
    "attack", "measure", "fpr", "round", "rounds", "games", "candidates", "found", "false_alarms", "without",
    "measured", "low", "high", "chance", "limit", "fpr_upper", "limit_at_fpr_upper", "error_rate", "lower_bound",
    "noticed_from", "above", "undistorted", "impostor", "control_failed",
)  # fmt: skip


@dataclass(frozen=True)
class Design:
    """What is played."""

    models: Sequence[str] = ("scatter-linear", "lenet-zhu")
    datasets: Sequence[str] = ("mnist", "fmnist")
    epsilons: Sequence[float] = (1.0, 2.0, 4.0, 8.0)
    planted: tuple[str, float] = ("mnist", 4.0)  # where a quarter of the noise is added
    planted_release: tuple[str, float] = ("mnist", 8.0)  # likewise, where one release is attacked
    games: int = 500
    among: int = 200
    device: str = "cpu"
    change: dict[str, Any] = field(default_factory=dict)  # of the recommended settings

    def specs(self) -> dict[str, dict[str, Any]]:
        """By the name of their file."""
        effort, all_of_them = {"games": self.games, "among": self.among, "seed": 0}, {}
        for model in self.models:
            snapshots = self.settings(model).run.snapshots
            audit = {"attacks": ["matched", "membership"], "snapshots": snapshots, **effort}
            all_of_them[f"{model}-releases"] = {**self.spec(model, HONEST, *self.datasets), "audit": audit}
            for name in self.datasets:
                runs = self.spec(model, HONEST, name)
                all_of_them[f"{model}-runs-{Path(name).name}"] = {**runs, "multi_round": effort}
            all_of_them[f"{model}-quarter-of-noise"] = {**self.spec(model, QUARTER), "multi_round": effort}
        return all_of_them

    def release_specs(self) -> dict[str, dict[str, Any]]:
        """One release of every model with a quarter of the noise."""
        audit = {"attacks": ["matched", "membership"], "snapshots": [0]}
        audit |= {"games": self.games, "among": self.among, "seed": 0}
        own = replace(self, planted=self.planted_release)
        return {model: {**own.spec(model, QUARTER), "audit": audit} for model in self.models}

    def settings(self, model: str) -> Settings:
        keys = {**recommended("gaussian-dp", model), **self.change}
        return Settings.flat(**{**keys, "model": model, "device": self.device})

    def spec(self, model: str, noise: str, *datasets: str) -> dict[str, Any]:
        settings = self.settings(model).for_run()
        if noise == HONEST:
            cells = [(name, epsilon) for name in datasets for epsilon in self.epsilons]
            return to_dict(settings, [Federation(name, "gaussian-dp", epsilon, 1) for name, epsilon in cells])
        own, (name, epsilon) = settings.protection.gaussian, self.planted
        sigma = own.sigma(epsilon) * SHARE[noise]
        worth = own.epsilon(sigma)  # settings with too little noise for their epsilon are refused
        settings = settings.replace(gaussian=replace(own, sigmas=[[worth, sigma]]))
        spec = to_dict(settings, [Federation(name, "gaussian-dp", worth, 1)])
        spec["settings"]["gaussian"]["sigmas"].append([epsilon, own.sigma(epsilon)])  # what is claimed
        return spec


# -- the table ---------------------------------------------------------------------------------------------------------


def claimed(row: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """A row with the terms that the claimed epsilon promises, and how the noise that was added compares.

    What is claimed is the epsilon of the federation, unless the SPEC names one that no federation has.
    """
    settings, played = spec["settings"], {federation["budget"] for federation in spec["federations"]}
    own = settings["gaussian"]
    known = dict(map(tuple, own["sigmas"]))
    epsilon = next((other for other in known if other not in played), row["budget"])
    assert own["noise_schedule"] == 1.0, "one level of noise in all rounds"
    rounds = own["rounds"] or settings["rounds"]
    sigma = noise_multiplier(epsilon, own["delta"], rounds, own["sampling_rate"])
    added = known[row["budget"]]
    noise = min(SHARE, key=lambda name: abs(SHARE[name] - added / sigma))
    about = {"model": settings["model"], "budget": epsilon, "noise": noise}
    about |= {"sigma_claimed": sigma, "sigma_added": added}
    return {**row, **about, "terms": {**row["terms"], "sigma": sigma, "schedule": None}}


def table(folders: Sequence[Path]) -> dict[str, Any]:
    """All cells, compared together, and what came of them."""
    rows, sources = [], []
    for folder in folders:
        (file,) = (path for name in ("audit.json", "multi_round.json") if (path := folder / name).exists())
        content = json.loads(file.read_text())
        settings = content["spec"]["settings"]
        rows += [claimed(row, content["spec"]) for row in content["limits"]]
        about = {name: content[name] for name in ("seconds", "environment")}
        sources.append({"model": settings["model"], "rows": len(content["limits"]), **about})
    cells = [_cell(row) for row in compared(rows)]
    honest = [cell for cell in cells if cell["noise"] == HONEST]
    planted = [cell for cell in cells if cell["noise"] == QUARTER and cell["measure"] == IDENTIFICATION]
    return {
        "schema": 1, "rule": __doc__, "delta": 1e-5, "relation": "add/remove", "unit": "record", "experiment": "seeded",
        "claim": "the epsilon of the mechanism; a seeded run has none", "compared": sum(c["compared"] for c in cells),
        "honest_above": sum(bool(cell["above"]) for cell in honest),
        "honest_controls_failed": sum(cell["control_failed"] for cell in honest),
        "noticed": bool(planted) and all(cell["above"] for cell in planted), "sources": sources, "cells": cells,
    }  # fmt: skip


def planted(design: Design) -> dict[str, Any]:
    """Single releases with a quarter of the noise: their cells, and whether all that should be noticed is."""
    with TemporaryDirectory() as folder:
        for name, spec in design.release_specs().items():
            compute_audit(spec, Path(folder, name))
        content = table([Path(folder, name) for name in design.release_specs()])
    telling = [cell for cell in content["cells"] if cell["measure"] == IDENTIFICATION or cell["fpr"] == max(RATES)]
    noticed = all(cell["above"] for cell in telling)
    return {
        "compared": content["compared"],
        "noticed": noticed,
        "sources": content["sources"],
        "cells": content["cells"],
    }


def _cell(row: dict[str, Any]) -> dict[str, Any]:
    identified = row["measure"] == IDENTIFICATION
    return {
        "model": row["model"], "dataset": row["dataset"], "epsilon": row["budget"], "noise": row["noise"],
        "sigma_claimed": row["sigma_claimed"], "sigma_added": row["sigma_added"], "scope": SCOPES[row["scope"]],
        "game": "one of the candidates is in the data" if identified else "the record is in the data or nothing is",
        "compared": row["limit"] is not None,
        **{name: row.get(name) for name in KEPT},
    }  # fmt: skip


def lines(content: dict[str, Any]) -> list[str]:
    """Whole runs, and in each federation the release that got most of its limit: identification."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in content["cells"]:
        name = tuple(cell[key] for key in ("model", "dataset", "epsilon", "noise", "scope"))
        if cell["measure"] == IDENTIFICATION and cell["measured"] >= best.get(name, cell)["measured"]:
            best[name] = cell
    said = [
        f"{cell['model']:15} {cell['dataset']:6} eps {cell['epsilon']:g}, {cell['scope']:11}: {cell['measured']:.2%} "
        f"[{cell['low']:.2%}, {cell['high']:.2%}], limit {cell['limit']:.2%}"
        + (", ABOVE" if cell["above"] else "") + (f", noise {QUARTER}" if cell["noise"] == QUARTER else "")
        + (", control failed" if cell["control_failed"] else "")
        for cell in best.values()
    ]  # fmt: skip
    told = (
        f"{content['compared']} comparisons, {content['honest_above']} of honest runs above; noticed too little noise:"
    )
    return [*said, f"{told} {content['noticed']}"]


# -- the page ----------------------------------------------------------------------------------------------------------


def part(content: dict[str, Any]) -> str:
    """Identification by whole runs, for the page, between what was played and what came of it."""
    whole = [cell for cell in content["cells"] if (cell["scope"], cell["measure"]) == ("whole run", IDENTIFICATION)]
    (games,), (candidates,) = ({cell[name] for cell in whole} for name in ("games", "candidates"))
    design, delta = Design(), f"{content['delta']:.0e}".replace("e-0", "e-")
    before = (
        f"How often the strongest attack here picks the right one of {candidates} candidates (blindly: "
        f"{100 / candidates:g} %), from all releases of a recommended run and knowing all other records: {games} games "
        f"in each cell, with their 95 % intervals; epsilon and delta ({delta}) of the whole run, "
        f"{content['relation']}, unit {content['unit']}. The runs are seeded: {content['claim']}."
    )
    columns = [f"epsilon {epsilon:g}" for epsilon in design.epsilons]
    rows = [["model", "data", *columns]]
    for model in design.models:
        for dataset in design.datasets:
            rows.append([model, WORDS[dataset], *_got(whole, design.epsilons, model, dataset, HONEST)])
    limits = [max(cell["limit"] for cell in whole if cell["epsilon"] == epsilon) for epsilon in design.epsilons]
    rows.append(["**proved limit, any attacker**", "", *(f"**{percent_up(limit)}**" for limit in limits)])
    for model in design.models:
        planted = f"{model}, a quarter of the noise"
        rows.append(
            [planted, WORDS[design.planted[0]], *_got(whole, design.epsilons, model, design.planted[0], QUARTER)]
        )
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    after = [*textwrap.wrap(_verdict(content), 120), "", *textwrap.wrap(_releases(content["planted"]), 120)]
    return "\n".join([*textwrap.wrap(before, 120), "", *lines, "", *after])


def _got(whole: list[dict[str, Any]], epsilons: Sequence[float], model: str, dataset: str, noise: str) -> list[str]:
    """What a row says at every epsilon; nothing where nothing was played."""
    found = {
        cell["epsilon"]: f"{100 * cell['measured']:.1f} % ({100 * cell['low']:.1f}-{100 * cell['high']:.1f})"
        + (", noticed" if cell["above"] else "")
        for cell in whole if (cell["model"], cell["dataset"], cell["noise"]) == (model, dataset, noise)
    }  # fmt: skip
    return [found.get(epsilon, "") for epsilon in epsilons]


def _verdict(content: dict[str, Any]) -> str:
    above = content["honest_above"] or "none"
    noticed = "were noticed" if content["noticed"] else "were **not** all noticed, so this audit is too weak"
    return (
        f"Of {content['compared']} comparisons, those of single releases and of membership included, {above} with the "
        "noise that is claimed lies above its limit. *Above* was defined beforehand: the exact one-sided lower bound "
        "of what was measured exceeds the limit, with 5 % error for all comparisons together; a rate by itself may "
        f"pass a limit by chance. Runs that claim epsilon {Design().planted[1]:g} and add a quarter of its noise "
        f"{noticed}. ([audit.json](../studies/gaussian_dp/audit.json); one seed a run.)"
    )


def _releases(content: dict[str, Any]) -> str:
    """What single releases with too little noise came to, and where that cannot be told."""
    (epsilon,) = {cell["epsilon"] for cell in content["cells"]}
    told = []
    for model in dict.fromkeys(cell["model"] for cell in content["cells"]):
        own = {cell["fpr"]: cell for cell in content["cells"] if cell["model"] == model and cell["compared"]}
        picked, member = (f"{100 * own[fpr]['measured']:.1f} %" for fpr in (None, max(RATES)))
        limits = (percent_up(own[fpr]["limit"]) for fpr in (None, max(RATES)))
        told.append(f"{model} {picked} (limit {next(limits)}) and {member} ({next(limits)})")
    noticed = "All of these were noticed" if content["noticed"] else "**Not** all of these were noticed"
    return (
        f"The same by one release alone, which claims epsilon {epsilon:g} of the run and adds a quarter of the noise: "
        "how often the right candidate is picked, and how often the record is found at 10 % false positives: "
        f"{', '.join(told)}. {noticed}. At 0.1 % and 1 % false positives this audit has no such power: of 500 games so "
        "few are false alarms that the exact upper bound of their rate is several times as large, and what is proved "
        "at that rate is more than what was measured."
    )


def filled(page: str, content: dict[str, Any]) -> str:
    """The page with its table made anew."""
    begin, end = "<!-- audited: begin -->\n", "<!-- audited: end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}{part(content)}\n{end}{rest.split(end)[1]}"


def read() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((HERE / "audit.json").read_text())
    return content


def fill_page() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    if arguments[0] == "page":
        fill_page()
        return
    if arguments[0] == "specs":
        folder, design = Path(arguments[1]), Design()
        folder.mkdir(parents=True, exist_ok=True)
        for name, spec in replace(design, device=(*arguments[2:], "cpu")[0]).specs().items():
            (folder / f"{name}.json").write_text(json.dumps(spec))
        return
    if arguments[0] == "planted":
        content = {**read(), "rule": __doc__, "planted": planted(Design())}
    else:
        content = {**table([Path(name) for name in arguments[1:]]), "planted": read()["planted"]}
    (HERE / "audit.json").write_text(json.dumps(content, indent=1) + "\n")
    fill_page()
    print("\n".join(lines(content)))


if __name__ == "__main__":
    main(sys.argv[1:])
