"""Fill the tables of README.md and of the pages under docs/ and studies/ from the committed results.

    python scripts/fill_readme.py [--check]

``PAGES`` says which part of which page comes from what. ``--check`` writes nothing and exits with 1 when a part is not
what the results say.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

from equipoise.report import frontier_text
from equipoise.reproduction.agreement import State
from equipoise.reproduction.artefacts.accuracy import differing
from equipoise.reproduction.claims import RULE
from equipoise.reproduction.reproduce import status

ROOT = Path(__file__).parents[1]
FAMILIES = {"pl": ("pl-identical", "pl-learn"), "ls": ("ls-static", "ls-learn")}


def accuracy() -> str:
    """The accuracy artefacts as one table."""
    outcome = {family: read("reproduction", f"accuracy-{family}", "results.json") for family in FAMILIES}
    rows = []
    for family, (static, learned) in FAMILIES.items():
        result = outcome[family]
        cells = {(c["dataset"], c["mechanism"], c["budget"]): c for c in result["cells"]}
        simple = {(b["dataset"], b["budget"], b["baseline"], b["mechanism"]): b for b in result["baselines"]}
        for gain in result["gains"]:
            where = gain["dataset"], gain["budget"]
            one, other = (cells[where[0], name, where[1]] for name in (static, learned))
            low, high = gain["interval"]
            rows.append([
                where[0], f"{family.upper()} {where[1]:g}", spread(one), spread(other),
                f"{gain['mean']:+.1f} ({low:+.1f} to {high:+.1f})", f"{one['paper']:.1f}, {other['paper']:.1f}",
                *(spread(simple[*where, name, static]) for name in ("damped", "eleven-steps")),
            ])  # fmt: skip
    columns = (
        "data | budget | static | learned | learned - static (95 % interval) | paper: static, learned "
        "| static, damped server | static, eleven steps"
    )
    free = ", ".join(f"{name} {spread(cell)}" for name, cell in outcome["pl"]["without_protection"].items())
    return (
        f"{table(columns, rows)}\n\nTest accuracy in percent after 5,000 rounds, mean ± standard deviation of "
        f"{outcome['pl']['cells'][0]['seeds']} seeds; without protection: {free}. By the rule in "
        f"[reproduction.md](reproduction.md), {reproduced()['headline'][0]} eta, T, S and the initialisation were "
        "fitted to the paper's tables, because it does not state them; the subset of images was changed once after "
        "results were seen ([choices](choices.md))."
    )


def spread(cell: dict[str, Any]) -> str:
    return f"{cell['mean']:.1f} ± {cell['sd']:.1f}"


def speed() -> str:
    """Rounds per second, and how the time grows."""
    cpu, gpu, growth = (
        read("benchmarks", f"results_{name}.json") for name in ("throughput", "gpu_sweep_h200", "growth")
    )
    row = cpu[f"threads_{cpu['environment']['threads']}"]
    most, largest = growth["clients"][-1], growth["parameters"][-1]
    slopes = growth["slope_round_in_clients"], growth["slope_server_in_clients"], growth["slope_round_in_parameters"]
    kinds = {
        "one federation": ("one", row["one_federation_rounds_per_second"]),
        "twenty at once, each": ("twenty", row["twenty_federations_rounds_per_second_each_share"]),
    }
    told = table(
        " | rounds per second | against plain PyTorch | share of the matrix-multiply rate",
        [
            [what, f"{rate:.0f}", f"{row[f'ratio_{name}']:.1f}x", f"{row[f'share_of_matmul_rate_{name}']:.0%}"]
            for what, (name, rate) in kinds.items()
        ],
    )
    return (
        f"{told}\n\nOne H200: {gpu['federations']} federations x {gpu['rounds']:,} rounds in {gpu['seconds']:.0f} s. "
        f"{most['clients']:,} clients in one federation on 2 cores: {most['seconds_per_round']:.1f} s a round, "
        f"{most['mib_above_start']:.0f} MiB above the start. Growth on a log-log scale (1 is linear): round time "
        f"in clients {slopes[0]:.2f}, server time in clients {slopes[1]:.2f}, round time in parameters up to "
        f"{largest['parameters']:,} {slopes[2]:.2f} ([results](../benchmarks/results_growth.json))."
    )


CASES = [(4, 4), (16, 4), (4, 32), (16, 32)]
"""Clients and mini-batches of the benchmark of models."""


def any_model() -> str:
    """Rounds of other models against the plain loop, on two cores and on a GPU; very many clients and parameters."""
    growth, large = read("benchmarks", "results_growth.json"), read("benchmarks", "results_large_model.json")
    cpu, gpu = (read("benchmarks", f"results_models{where}.json") for where in ("", "_h200"))
    many = growth["sampled"][-1]
    biggest = max(row["parameters"] for row in large["rows"])
    one = {row["way"]: row for row in large["rows"] if row["parameters"] == biggest}
    loop, static = one["plain loop"], one["pl-identical"]
    return (
        f"On 2 cores:\n\n{_models(cpu['rows'])}\n\nOn one H200:\n\n{_models(gpu['rows'])}\n\n"
        f"{_misses(cpu['rows'] + gpu['rows'])} "
        f"{many['clients']:,} clients of a model of {many['parameters']} parameters, {many['participants']} of them in "
        f"a round, on 2 cores: {1e3 * many['seconds_per_round']:.0f} ms a round, {many['seconds_to_start']:.1f} s to "
        f"start, {many['mib_above_start']:.0f} MiB. {biggest:,} parameters, one client, static: "
        f"{static['seconds']:.1f} s and {static['mib_above_start']:.0f} MiB above the caller's model and state, where "
        f"torch's own noise without any check takes {loop['seconds']:.1f} s and {loop['mib_above_start']:.0f} MiB "
        "([models](../benchmarks/results_models.json), [H200](../benchmarks/results_models_h200.json), "
        "[clients](../benchmarks/results_growth.json), [parameters](../benchmarks/results_large_model.json))."
    )


def _models(rows: list[dict[str, Any]]) -> str:
    known = {(row["model"], row["mechanism"], row["clients"], row["batch"]): row for row in rows if "ratio" in row}
    kinds = dict.fromkeys((row["model"], row["mechanism"]) for row in rows)
    heads = [f"{clients} clients, batch {batch}" for clients, batch in CASES]

    def line(*kind: str) -> list[str]:
        own = [known.get((*kind, *case)) for case in CASES]
        ratios = (
            "-" if row is None else f"{row['ratio']:.2f} ({row['ratio_low']:.2f}-{row['ratio_high']:.2f})"
            for row in own
        )
        memory = max(row["one_client_mib"] / row["plain_memory_mib"] for row in own if row is not None)
        return [*kind, *ratios, f"{memory:.2f}"]

    return table(f"model | mechanism | {' | '.join(heads)} | memory", [line(*kind) for kind in kinds])


def _misses(rows: list[dict[str, Any]]) -> str:
    """Which entries are below what is aimed at: 0.95 by their interval, 0.5 for gaussian-dp."""
    rows = [row for row in rows if "ratio" in row]
    aims = [0.5 if row["mechanism"] == "gaussian-dp" else 0.95 for row in rows]
    below = [row for row, aim in zip(rows, aims, strict=True) if row["ratio_high"] < aim]
    unsure = sum(row["ratio_low"] < aim <= row["ratio_high"] for row, aim in zip(rows, aims, strict=True))
    names = "; ".join(
        f"{row['model']}, {row['mechanism']}, batch {row['batch']}, {row['clients']} clients: {row['ratio']:.2f}"
        for row in below
    )
    told = f"Of {len(rows)} entries {len(below)} are below 0.95 (gaussian-dp: 0.5) by their whole interval"
    return f"{told}{f' ({names})' if names else ''}, and the intervals of {unsure} more reach below."


LOWERS = {0.995: 2, 0.98: 8, 0.96: 16, 0.92: 32}
EQUAL, OWN, BARE = "static, equal lower bound", "own", "undistorted"
STATIC, LEARNED = "pl-identical", "pl-learn"
DAMPED = "batch-44, damped server"
DESIGNS = {
    "batch-4": "batch 4", "batch-44": "batch 44", DAMPED: "batch 44, damped server", "eleven-steps": "eleven steps",
}  # fmt: skip
TRAINED = {"own trajectory": "batch-4", "batch 44": "batch-44", "eleven steps": "eleven-steps"}
"""Designs by what the tables call the weights that static noise was trained to."""


def leakage_rows() -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows of the leakage study by design, dataset, attack, mechanism, budget, round and role."""
    return {
        (r["design"], r["dataset"], r["attack"], r["mechanism"], r["budget"], r["round"], r["role"]): r
        for r in read("studies", "leakage", "leakage.json")["rows"]
        if r["control"] != "negative"
    }


def leakage(attack: str) -> str:
    """What an attack got without protection, from static noise and from learned distortion, by round."""
    rows, title = leakage_rows(), {"membership": "AUC; share of members found at 1 % false alarms"}
    columns = [
        (f"{where}: {what}", design, name, role) for where, design, name, kinds in (
            ("same weights", "batch-4", LEARNED, {"no protection": BARE, "static": EQUAL, "learned": OWN}),
            *((where, design, STATIC, {"no protection": BARE, "static": OWN}) for where, design in TRAINED.items()),
        )
        for what, role in kinds.items()
    ]  # fmt: skip
    there = [one for one in columns if any(key[0] == one[1] and key[2] == attack for key in rows)]
    what = title.get(attack, "all labels right" if attack == "labels" else "right image picked out of 200")
    datasets = dict.fromkeys(key[1] for key in rows if key[2] == attack)
    told = []
    for dataset, (budget, lower), number in product(datasets, LOWERS.items(), (0, 200, 2000, 5000)):
        cells = [rows.get((design, dataset, attack, name, budget, number, role)) for _, design, name, role in there]
        if any(cells):
            told.append([dataset, lower, f"{number:,}", *map(worth, cells)])
    heads = [name for name, *_ in there]
    return table(f"data | lower bound | round | {attack} ({what}), {' | '.join(heads)}", told)


def worth(row: dict[str, Any] | None) -> str:
    """The figure of a row with its interval, if there is one; an asterisk where the attack fails without protection."""
    if row is None:
        return "-"
    failed = "*" if row.get("control_failed") else ""
    if row["attack"] == "membership":
        ends = f"{row['membership_auc_low']:.2f}-{row['membership_auc_high']:.2f}"
        return f"{row['membership_auc']:.2f} ({ends}; {100 * row['membership_tpr']:.0f} %){failed}"
    name = "labels_exact" if row["attack"] == "labels" else "identification"
    low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
    return f"{100 * row[name]:.1f} % ({low:.1f}-{high:.1f}){failed}"


def caption() -> str:
    rows = leakage_rows()
    sizes = {key[0]: row for key, row in rows.items() if key[2] == "matched"}
    told = ", ".join(f"{row['releases']} of {DESIGNS[name]}" for name, row in sizes.items())
    large = rows["batch-44", "mnist", "membership", STATIC, 0.995, 0, BARE]
    rate, least, most = (f"{100 * large[f'membership_tpr{end}']:.0f}" for end in ("", "_least", "_most"))
    return (
        f"Means of three trajectories (seeds 1 to 3; `lti` one); 95 % intervals over releases ({told}), which cover "
        "other images and noise. *Same weights*: those of the learned federation, *static* there with noise of equal "
        "lower bound; *own trajectory*, *batch 44* and *eleven steps*: weights of their own training with static "
        "noise; *no protection*: the same releases without it. Chance is 0.5 %, and 0.5. Shares of members at 1 % "
        f"false alarms have no interval, and trajectories differ in them: the {rate} % of batches of 44 at the first "
        f"round (MNIST, no protection) are {least} to {most} %. An asterisk: the attack fails without protection too "
        "(for labels, by the share of single labels, not of whole sets), so a low figure says nothing; a clear "
        "difference stands. A dash: not attacked.\n\n"
        f"{exceeding()}"
    )


def exceeding() -> str:
    """Where static noise was easier to attack than the same releases without it."""
    rows = read("studies", "leakage", "leakage.json")["beside_undistorted"]
    static = [
        row for row in rows if row["attack"] == "membership" and (row["mechanism"], row["role"]) != (LEARNED, OWN)
    ]
    found = [row for row in static if row["verdict"] == "leaks more"]
    places = [
        f"{row['dataset'].upper()}, lower bound {LOWERS[row['budget']]}, round {row['round']:,}"
        + (f" ({DESIGNS[row['design']]})" if row["design"] != "batch-4" else "")
        + f", by {row['gap']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        for row in found
    ]
    return (
        f"In {len(found)} of {len(static)} cells of membership static noise has a larger area (AUC) than undistorted "
        f"releases, by an interval that is not corrected for so many cells: {'; '.join(places)}. Noise that does not "
        "depend on the data adds no information, so undistorted figures are lower limits of what an attacker could "
        "find, not ceilings."
    )


def beside_undistorted() -> str:
    """In how many cells of the leakage study a mechanism leaks more than the same releases without distortion."""
    kinds = {(LEARNED, OWN): "learned", (LEARNED, EQUAL): "static, at the learned weights", (STATIC, OWN): "static"}
    words = ("leaks more", "no clear difference", "leaks less")
    told: dict[tuple[str, ...], list[str]] = {}
    for row in read("studies", "leakage", "leakage.json")["beside_undistorted"]:
        name = f"{row['attack']} ({row['measure']})", DESIGNS[row["design"]], kinds[row["mechanism"], row["role"]]
        told.setdefault(name, []).append(row["verdict"])
    order = sorted(told, key=lambda name: list(told).index(next(one for one in told if one[0] == name[0])))
    return table(
        f"attack (measure) | design | distortion | {' | '.join(words)}",
        [[*name, *(told[name].count(word) for word in words)] for name in order],
    )


def verdicts() -> str:
    """In how many cells of the leakage study which side leaks more."""
    result = read("studies", "leakage", "leakage.json")
    words = ("learned leaks more", "no clear difference", "static leaks more", "control failed")
    return table(
        f"attack (measure), and what learned is set against | {' | '.join(words)}",
        [[name, *(counts.get(word, 0) for word in words)] for name, counts in result["counts"].items()],
    )


def accuracies() -> str:
    """Test accuracy of every design after all rounds, from the study's own runs."""
    rows = [row for row in read("studies", "leakage", "leakage.json")["accuracy"] if row["round"] == 5000]
    told = []
    names = {"none": "none", STATIC: "static", LEARNED: "learned"}
    for row in sorted(
        rows, key=lambda r: (r["dataset"] != "mnist", -(r["budget"] or 1), list(DESIGNS).index(r["design"]))
    ):
        ends = "-".join(f"{100 * row[f'accuracy_{end}']:.1f}" for end in ("low", "high"))
        lower = "-" if row["budget"] is None else str(LOWERS[row["budget"]])
        reached = f"{100 * row['accuracy']:.1f} % ({ends})"
        told.append(
            [row["dataset"], DESIGNS[row["design"]], lower, names[row["mechanism"]], reached, len(row["values"])]
        )
    columns = "data | design | lower bound | distortion | accuracy after 5,000 rounds | seeds"
    return f"{table(columns, told)}\n\nStudent's 95 % intervals over so many seeds."


def combined() -> str:
    """What the releases of a whole run give away together."""
    rows = read("studies", "leakage", "leakage.json")["multi_round"]
    if not rows:
        return "Not computed at these settings yet."

    def share(row: dict[str, Any], name: str) -> str:
        value, low, high = (100 * row[f"identification_{name}{end}"] for end in ("", "_low", "_high"))
        return f"{value:.0f} % ({low:.0f}-{high:.0f}){'*' * row.get(f'control_failed_{name}', False)}"

    kinds = {"": "releases", "_undistorted": "without their distortion", "_decoy": "a decoy in the image's place"}
    words, tried = {LEARNED: "learned", STATIC: "static"}, ("one_release", "schedule_known", "schedule_unknown")
    told = table(
        "lower bound | distortion | what is attacked | one release | all that hold the image, schedule granted "
        "| all, schedule unknown",
        [
            [LOWERS[row["budget"]], words[row["mechanism"]], what, *(share(row, name + end) for name in tried)]
            for row in rows
            for end, what in kinds.items()
        ],
    )
    one = rows[0]
    held = (
        f"{one['releases_per_example']:.0f} ({one['releases_per_example_least']} to {one['releases_per_example_most']})"
    )
    return (
        f"{told}\n\n"
        f"{one['dataset'].upper()}, {one['rounds']:,} rounds of one client (seed {one['seed']}), {one['targets']} of "
        f"its images of all classes, each among {one['candidates']} candidates (chance {100 / one['candidates']:.0f} "
        f"%); an image is in {held} of the releases. 95 % intervals over labels, whose images share decoys: they cover "
        "other images and decoys, not other runs. An asterisk: the control failed, that is, the interval "
        f"without distortion does not lie wholly above ten times chance ({1000 / one['candidates']:.0f} %), so a low "
        "figure says nothing; a rate clearly above chance stands."
    )


def coverage() -> str:
    """How often the intervals of simulated audits hold the truth."""
    rows = read("studies", "coverage", "coverage.json")["rows"]
    names = {"identification": "identified", "log_rank": "log-rank", "membership_auc": "AUC", "membership_tpr": "TPR"}
    cells: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        place = tuple(row[key] for key in ("releases", "batch", "dealt", "strength", "attraction", "own", "twice"))
        cells.setdefault(place, {})[row["measure"]] = f"{100 * row['covered']:.1f} % of {row['true_value']:.3f}"
    told = []
    for (releases, batch, dealt, strength, attraction, own, twice), covered in cells.items():
        what = f"{releases} x {batch}, {dealt}{', images differ more' * (own > 1)}{', **twice**' * twice}"
        told.append([what, f"{strength:g}", f"{attraction:g}", *(covered[name] for name in names)])
    columns = f"releases x batch, non-members | strength | attraction | {' | '.join(names.values())}"
    return (
        f"{table(columns, told)}\n\nHow often the 95 % interval holds the true value beside it, over "
        f"{rows[0]['repetitions']:,} simulated audits (standard error {100 * rows[0]['standard_error']:.1f} points)."
    )


def few_coverage() -> str:
    """How often the intervals of membership hold the truth with as few non-members as the leakage study has."""
    result = read("studies", "coverage", "few.json")
    cells: dict[float, dict[str, str]] = {}
    for row in result["rows"]:
        cells.setdefault(row["strength"], {})[row["measure"]] = (
            f"{100 * row['covered']:.1f} % of {row['true_value']:.3f}"
        )
    told = [[f"{strength:g}", one["membership_auc"], one["membership_tpr"]] for strength, one in cells.items()]
    first = result["rows"][0]
    return (
        f"{table('strength | AUC | TPR', told)}\n\n{first['repetitions']:,} simulated audits (standard error "
        f"{100 * first['standard_error']:.1f} points) of {first['releases']} x {first['batch']} images with "
        f"{first['others']} non-members a release, attraction {first['attraction']:g}; commit {result['commit']}, one "
        f"CPU core, {result['seconds'] / 60:.0f} minutes."
    )


def paired_coverage() -> str:
    """How often the intervals hold the truth that the leakage study's verdicts are made of."""
    result = read("studies", "coverage", "paired.json")
    cells: dict[tuple[Any, ...], dict[tuple[str, str], str]] = {}
    for row in result["rows"]:
        place, share = tuple(row[key] for key in ("over", "strength", "other")), f"{100 * row['covered']:.1f} %"
        called = row["excludes_zero"]
        more = "" if called is None else f", called different in {100 * called:.1f} %"
        truth = round(row["true_value"], 3) + 0.0  # no -0.000
        cells.setdefault(place, {})[row["kind"], row["measure"]] = f"{share} of {truth:.3f}{more}"
    kinds = [(kind, name) for kind in ("difference", "figure") for name in ("identification", "membership_auc")]
    told = [
        [over, f"{one:g}", f"{other:g}", *(covered.get(kind, "-") for kind in kinds)]
        for (over, one, other), covered in cells.items()
    ]
    columns = (
        "interval over | strength | the other's | difference, identified | difference, AUC | mean of three, identified "
        "| mean of three, AUC"
    )
    first = result["rows"][0]
    return (
        f"{table(columns, told)}\n\n{first['repetitions']:,} repetitions (standard error "
        f"{100 * first['standard_error']:.1f} points) of {first['releases']} releases of {first['batch']} images on "
        f"three trajectories of both mechanisms; commit {result['commit']}, one CPU core, "
        f"{result['seconds'] / 60:.0f} minutes."
    )


def norm() -> str:
    """How many guesses the norm of static noise verifies, by how a release is sent and what the server goes by."""
    result = read("studies", "norm", "norm.json")
    rows = {(*(row[key] for key in ("dataset", "budget", "round", "sent", "rule")),): row for row in result["rows"]}

    def share(row: dict[str, Any], name: str) -> str:
        value, low, high = (100 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
        digits = 2 if name == "accepted_wrongly" and value < 1 else 1
        return f"{value:.{digits}f} % ({low:.{digits}f}-{high:.{digits}f})"

    def accepted(row: dict[str, Any]) -> str:
        return f"{share(row, 'accepted')} / {share(row, 'accepted_wrongly')}"

    checked, told, more = "norm check", [], []
    for place in dict.fromkeys(key[:3] for key in rows):
        name = [{"mnist": "MNIST", "fmnist": "Fashion-MNIST"}[place[0]], f"{place[1]:g}", str(place[2])]
        sent = {kind: rows[*place, kind, checked] for kind in ("float32", "float16", "bfloat16", "random norm", "none")}
        told.append([*name, share(sent["float32"], "verified"), accepted(sent["float32"]),
                     share(rows[*place, "float32", "least norm"], "verified"),
                     share(sent["random norm"], "verified"), accepted(sent["random norm"])])  # fmt: skip
        more.append([*name, *(words for kind in ("float16", "bfloat16")
                              for words in (share(sent[kind], "verified"), accepted(sent[kind]))),
                     share(sent["none"], "verified"), share(sent["float32"], "impostor_verified")])  # fmt: skip
    first = next(iter(rows.values()))
    columns = (
        "data | budget | round | exact norm: right one picked | right / wrong guesses accepted | "
        "by the least norm: picked | norm at random: picked | right / wrong accepted"
    )
    others = (
        "data | budget | round | float16: picked | right / wrong accepted | bfloat16: picked | right / wrong accepted "
        "| no noise: picked | an impostor: picked"
    )
    count = "/".join(str(number) for number in dict.fromkeys(result["candidates"].values()))
    return (
        f"{table(columns, told)}\n\n{table(others, more)}\n\n{first['releases']} releases of four images a row, so "
        f"{first['right_guesses']} right and {first['wrong_guesses']:,} wrong guesses; 95 % intervals over releases. "
        f"*Picked*: the right one of {count} guesses, by chance 1 in {count}. *An impostor*: another guess in the "
        f"truth's place, the truth left out. Commit {result['commit']}, one CPU core, {result['seconds'] / 60:.0f} "
        "minutes."
    )


def invgrad() -> str:
    """InvGrad's errors by start, rate and sign."""
    result = read("studies", "invgrad", "invgrad.json")
    rows = []
    for row in result["rows"]:
        defence = "none" if row["budget"] is None else f"{row['mechanism']} {row['budget']}"
        search = (f"{row['lr']:g}", "yes" if row["signed"] else "no") if "lr" in row else "--"
        low, high = (100 * row[f"identification_{end}"] for end in ("low", "high"))
        rows.append([
            row.get("attack", "invgrad"), row["init"], *search, defence,
            f"{row['mse']:.3f} ({row['mse_low']:.3f}-{row['mse_high']:.3f})", f"{row['ssim']:.3f}",
            f"{100 * row['identification']:.1f} % ({low:.1f}-{high:.1f})", f"{row['leakage']:.3f}",
            f"{row['beyond_D']:.1%}",
        ])  # fmt: skip
    columns = "attack | init | lr | sign | defence | MSE | SSIM | found of 200 | leakage score | beyond D"
    guesses = result["baselines"].items()
    words = [f"{n.replace('_', ' ')} {g['mse']:.2f}, {g['ssim']:.3f}, {g['leakage']:.2f}" for n, g in guesses]
    return f"{table(columns, rows)}\n\nGuesses that use no update (MSE, SSIM, leakage score): {'; '.join(words)}."


def attack_speed() -> str:
    """How long InvGrad takes."""
    cpu, gpu = (read("benchmarks", f"results_{name}.json") for name in ("attack", "gpu_invgrad_h200"))
    most = cpu["batched"]["32"]
    return (
        f"InvGrad at 32 targets on 2 cores: {most['ms']:.2f} ms an iteration and target, {most['times_faster']:.1f}x "
        "the plain one-target implementation in the same run ([results](../benchmarks/results_attack.json)). "
        f"One H200: {gpu['targets']} targets x {gpu['iterations']:,} iterations in {gpu['seconds']:.0f} s "
        "([results](../benchmarks/results_gpu_invgrad_h200.json))."
    )


def audit_time() -> str:
    """How long audits take, beside what they are to take at most."""
    if not ROOT.joinpath("benchmarks", "results_audit.json").exists():
        return "[benchmarks/audit.py](../benchmarks/audit.py) times this audit, and that of one learned federation."
    found = read("benchmarks", "results_audit.json")
    words = {"one": "one learned federation", "eight": "these eight"}
    told = "; ".join(
        f"{words[row['run']]} {row['seconds'] / 60:.1f} minutes with {row['threads']} threads" for row in found["rows"]
    )
    return f"On {found['cores']} cores ([results](../benchmarks/results_audit.json)): {told}."


def step_time() -> str:
    """A release of gaussian-dp beside steps of Opacus."""
    found = read("benchmarks", "results_gaussian_dp.json")
    rows = []
    for row in found["rows"]:
        best, middle = ({name: one[kind] for name, one in row["seconds"].items()} for kind in ("best", "median"))
        quickest = min((name for name in best if name.startswith("opacus") and "," not in name), key=best.__getitem__)
        names = ("release", "floats", quickest, "opacus hooks, its loader", "plain")
        for what, each in (("best", best), ("middle", middle)):
            drawn = (each["release, drawn"], each["opacus hooks, drawn"])
            ratios = (each["release"] / each["floats"], each[quickest] / each["release"], drawn[1] / drawn[0])
            times = (f"{1000 * one:.0f} ms" for one in (*(each[name] for name in names), *drawn))
            rows.append([row["threads"], what, *times, *(f"{ratio:.2f}x" for ratio in ratios)])
    columns = (
        "threads | of all turns | release | float noise | Opacus, quickest way | Opacus, its loader | no privacy | "
        "release, a quarter of 1,024 drawn | Opacus, the same | "
        "release / float noise | Opacus / release | the same, drawn"
    )
    run = found["run"]
    return (
        f"One step of LeNetZhu on {found['records']} records, all of them in the batch; the best and the middle one of "
        f"{found['rows'][0]['repeats']} turns, in one process ([results](../benchmarks/results_gaussian_dp.json)):\n\n"
        + table(columns, rows)
        + f"\n\nA whole run of {run['rounds']} rounds with {run['clients']} clients (`{run['command']}`) took "
        f"{run['seconds']['first']:.0f} s with features still to be made, and {run['seconds']['again']:.0f} s after."
    )


@cache
def read(*path: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(ROOT.joinpath(*path).read_text())
    return result


@cache
def reproduced() -> dict[str, Any]:
    """What became of the paper's artefacts and claims."""
    return status(ROOT / "reproduction")


def table(columns: str, rows: Iterable[Iterable[Any]]) -> str:
    """In Markdown; bars part the names of the columns."""
    lines = [f"| {line} |".replace("|  |", "| |") for line in (columns, *(" | ".join(map(str, row)) for row in rows))]
    return "\n".join([lines[0], "|" + "---|" * len(columns.split(" | ")), *lines[1:]])


def study() -> str:
    """The leakage study's tables and its verdicts."""
    parts = [leakage(name) for name in ("matched", "membership", "lti", "labels")]
    trained = [accuracies()] if read("studies", "leakage", "leakage.json")["accuracy"] else []
    bare = "Against undistorted releases at the same weights, in how many cells (rule set after an earlier run):"
    counted = ["In how many cells:", verdicts(), bare, beside_undistorted()]
    return "\n\n".join([*parts, caption(), *counted, *trained])


def put(text: str, parts: dict[str, str]) -> str:
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


def variants() -> str:
    """Mean MSE over seeds of every variant of InvGrad, beside the paper's table."""
    result = read("studies", "invgrad", "variants.json")
    said = read("src", "equipoise", "reproduction", "paper.json")["mse"]["PL"]
    cells: dict[tuple[str, str, str, float], list[float]] = {}
    for row in result["rows"]:
        cells.setdefault((row["variant"], row["dataset"], row["mechanism"], row["budget"]), []).append(row["mse"])
    columns = list(dict.fromkeys(key[1:] for key in cells))
    key = {"pl-identical": "identical", "pl-learn": "learn"}
    paper = [said[d][key[m]][said["budgets"].index(b)] for d, m, b in columns]
    rows = [["the paper's table", *(f"{value:.2f}" for value in paper), ""]]
    for name in dict.fromkeys(key[0] for key in cells):
        values = [cells[name, *column] for column in columns]
        gap = mean(abs(mean(v) - p) for v, p in zip(values, paper, strict=True))
        rows.append([name, *(f"{mean(v):.2f} ± {stdev(v):.2f}" for v in values), f"{gap:.2f}"])
    seeds = len(next(iter(cells.values())))
    names = " | ".join(f"{d} {m} {b:g}" for d, m, b in columns)
    return (
        f"{table(f'InvGrad | {names} | mean distance to the paper', rows)}\n\n"
        f"MSE, mean ± standard deviation of {seeds} seeds, each the mean of four batches of four images."
    )


def claims(short: bool = False) -> str:
    """Every claim of the paper with its verdict, from the committed results."""
    result = reproduced()["claims"]
    if short:
        claimed = {
            verdict: [f"*{c['claim']}*" for c in result if c["verdict"] == verdict] for verdict in get_args(State)
        }
        return (
            f"Of {len(result)} claims of the paper {len(claimed['holds'])} hold in this reproduction. "
            f"{len(claimed['fails'])} fail: {'; '.join(claimed['fails'])}. {len(claimed['not shown'])} are not shown, "
            f"because intervals lie on neither side: {'; '.join(claimed['not shown'])}."
        )
    lines = [f"{RULE}. Intervals are in parentheses.", ""]
    lines += [f"- *{c['claim']}*: **{c['verdict']}**; {c['evidence']}." for c in result]
    return "\n".join(lines)


def attack_and_claims() -> str:
    """What agrees beside accuracy, and what became of the claims."""
    return f"{reproduced()['headline'][1]}\n{claims(short=True)}"


IN_THE_PAPER = {
    "accuracy-ls": "Table 2", "accuracy-pl": "Table 3", "gaps": "Table 4a", "cap": "Table 4b", "defence-ls": "Table 5",
    "defence-pl": "Table 6", "trade-off": "Figure 2", "clients": "Figure 3", "layers": "Figure 4",
    "reconstructions": "Figure 5", "stepwise": "Figure 6", "gradient-norm": "Figure 7",
}  # fmt: skip


def agreement() -> str:
    """How much of the paper agrees, as the command says it, and what became of its claims."""
    return "\n".join(f"- {line}" for line in [*reproduced()["headline"], claims(short=True)])


def artefacts() -> str:
    """Every artefact with the number of its cells that agree, and the jobs behind them."""
    agreeing = [
        [f"[{row['name']}](../reproduction/{row['name']}/README.md)", IN_THE_PAPER[row["name"]], row["kind"],
         row["cells"], row["agree"]]
        for row in reproduced()["artefacts"]
    ]  # fmt: skip
    jobs = [
        [one["group"], one["federations"], f"{one['seconds']:.0f}", one["commit"], one["environment"]["device"]]
        for one in read("reproduction", "cap", "results.json")["origins"]
    ]
    one = table("artefact | in the paper | kind | cells | agree", agreeing)
    return one + "\n\n" + table("job | federations | seconds | commit | machine", jobs)


def differing_cells() -> str:
    """The cells of test accuracy that do not agree with the paper."""
    cells = (read("reproduction", f"accuracy-{family}", "results.json")["cells"] for family in FAMILIES)
    return "\n".join(f"- {note}" for some in cells for note in differing(some))


def defence() -> str:
    """How far the attack's cells are from the paper's."""
    rows = []
    for family in FAMILIES:
        result = read("reproduction", f"defence-{family}", "results.json")["cells"]
        for quantity, digits in (("mse", 2), ("ssim", 1)):
            for dataset in ("mnist", "fmnist"):
                cells = [c for c in result if (c["quantity"], c["dataset"]) == (quantity, dataset)]
                gaps = [c["difference"] for c in cells]
                words = ", ".join(f"{value:+.{digits}f}" for value in (min(gaps), mean(gaps), max(gaps)))
                agree = sum(c["agrees"] for c in cells)
                rows.append([f"{family.upper()} {quantity.upper()}", dataset, len(cells), agree, words])
    return table(" | data | cells | agree | ours - paper: least, mean, most", rows)


def span(values: list[float] | None, digits: int = 3) -> str:
    if values is None:
        return "-"
    low, high = (f"{value:.{digits}g}" for value in values)
    return low if low == high else f"{low} to {high}"


def bounds() -> str:
    """What the theorems say of the study's runs, over seeds."""
    result = read("studies", "bounds", "bounds.json")
    rows = {(r["mechanism"], r["budget"], r["round"], r["quantity"], r["setting"]): r for r in result["rows"]}
    learning, checks, training, leaking = [], [], [], []
    for (mechanism, budget, round_number, quantity, setting), own in rows.items():
        if quantity == "mean |R_m|^2" and setting == "as configured" and "subproblems" in own:
            small = rows[mechanism, budget, round_number, quantity, "gamma <= 1/(2 L)"]
            about = own["subproblems"]
            least, most = min(about["L_alpha"]), max(about["L_alpha"])
            learning.append([
                mechanism, f"{budget:g}", round_number, span([least, most]), span([1 / most, 1 / least]),
                f"{about['count'] - about['covered']} of {about['count']}",
                f"{span(small['measured'])}, {span(small['bound'])}", span(small["margin"]),
            ])  # fmt: skip
    split = [(r["setting"], r["subproblems"]) for r in result["rows"] if "subproblems" in r]
    for setting in dict.fromkeys(setting for setting, _ in split):
        parts = [part for own, part in split if own == setting]
        covered, count, checked, violated = (
            sum(part[key] for part in parts) for key in ("covered", "count", "checked", "violated")
        )
        words = f"{setting[0].upper()}{setting[1:]}: no assumption was seen to fail in {covered // 2} of {count // 2}"
        checks.append(f"{words} subproblems; the two inequalities were violated in {violated} of {checked} checks.")
    for (mechanism, budget, _, quantity, setting), own in rows.items():
        if quantity == "mean |grad F|^2" and setting == "as configured":
            short = rows[mechanism, budget, None, quantity, "eta = 1/(8 L), short"]
            training.append([
                mechanism, f"{budget:g}", span(own["constants"]["largest eta"]), span(own["measured"]),
                f"{span(short['measured'])}, {span(short['bound'])}",
            ])  # fmt: skip
    for (mechanism, budget, round_number, quantity, setting), own in rows.items():
        if quantity == "invgrad" and setting == "as configured":
            parts = [span(own["constants"][name]) for name in ("mean r_i", "p (fitted)", "c_a", "c_b", "D seen")]
            promised = span(own["bound"]) if mechanism.startswith("pl") else "not covered"
            leaking.append([mechanism, f"{budget:g}", round_number, *parts, f"{span(own['measured'])}, {promised}"])
    columns = (
        "mechanism | budget | round | L_alpha of a subproblem | gamma allowed below | gamma = 0.1 is too large in "
        "| measured mean \\|R\\|^2 with gamma <= 1/(2 L), bound | smallest bound / measured",
        "mechanism | budget | eta allowed up to | average \\|grad F\\|^2 of the run "
        "| short run with eta = 1/(8 L): measured, bound",
        "mechanism | budget | round | mean residual r_i | fitted p | c_a seen (0.56 set) | c_b seen "
        "| farthest (D = 56) | leakage: measured, promised",
    )
    return "\n\n".join([
        table(columns[0], learning), *checks, table(columns[1], training), table(columns[2], leaking),
        f"Smallest to largest over {result['rows'][0]['seeds']} seeds; commit {result['commit']}, one CPU core.",
    ])  # fmt: skip


def private_accuracy() -> str:
    """What gaussian-dp costs with the model to start with: one point of the README."""
    result = read("studies", "gaussian_dp", "accuracy.json")
    own = [cell for cell in result["cells"] if cell["model"] == "scatter-linear"]
    parts = []
    for dataset, word in (("mnist", "MNIST"), ("fmnist", "Fashion-MNIST")):
        right = {cell["epsilon"]: f"{100 * cell['accuracy']:.1f}" for cell in own if cell["dataset"] == dataset}
        parts.append(f"{word} {', '.join(right[epsilon] for epsilon in (1, 2, 4, 8))} (unprotected: {right[None]})")
    (seeds,) = {cell["seeds"] for cell in own}
    return (
        f"- **Test accuracy at epsilon 1, 2, 4, 8**, in percent: {'; '.join(parts)}. Epsilon is of the whole "
        f"run, for one record added or removed; means of {seeds} seeded experiments (the epsilon is the mechanism's), "
        "4 clients with 1,000 records each ([intervals, other models](docs/gaussian_dp.md))."
    )


def both_axes() -> str:
    """Accuracy and identification rate at equal budget."""
    accuracy, attacked = read("reproduction", "accuracy-pl", "results.json"), leakage_rows()
    mnist = {(c["budget"], c["mechanism"]): c for c in accuracy["cells"] if c["dataset"] == "mnist"}
    damped = {
        (b["budget"], b["mechanism"]): b
        for b in accuracy["baselines"] if (b["dataset"], b["baseline"]) == ("mnist", "damped")
    }  # fmt: skip
    trained = {
        (r["design"], r["budget"]): "{:.1f} ({:.1f}-{:.1f})".format(
            *(100 * r[f"accuracy{end}"] for end in ("", "_low", "_high"))
        )  # without a budget: of training without distortion
        for r in read("studies", "leakage", "leakage.json")["accuracy"]
        if (r["dataset"], r["round"]) == ("mnist", 5000)
    }  # fmt: skip
    free = accuracy["without_protection"]["mnist"]

    def identified(design: str, mechanism: str, budget: float | None) -> list[str]:
        places = [(design, "mnist", "matched", mechanism, budget, number, OWN) for number in (0, 5000)]
        return [worth(attacked.get(place)) for place in places]

    rows = [["-", "none", with_interval(free), "-", *identified("batch-4", "none", None)]]
    told = [trained[design, None] for design in ("batch-44", DAMPED)]
    rows.append(["-", "none, batch 44", *told, *identified("batch-44", "none", None)])
    for budget in (0.995, 0.98):
        for mechanism, word in ((STATIC, "static"), (LEARNED, "learned")):
            told = [with_interval(kind[budget, mechanism]) for kind in (mnist, damped)]
            rows.append([f"{budget:g}", word, *told, *identified("batch-4", mechanism, budget)])
        told = [trained[design, budget] for design in ("batch-44", DAMPED)]
        rows.append([f"{budget:g}", "static, batch 44", *told, *identified("batch-44", STATIC, budget)])
    columns = (
        "PL budget | distortion | accuracy | accuracy, damped server | image identified, first release "
        "| image identified, round 5,000"
    )
    return (
        f"{table(columns, rows)}\n\n"
        f"MNIST, percent, 95 % intervals: of accuracy after 5,000 rounds over {free['seeds']} seeds; of the others "
        "over releases, means of 3 runs with a plain server. *Identified*: the attack `matched`, which simulates the "
        "mechanism, picks the right one of 200 images (chance 0.5 %). First releases share their weights; later each "
        "row has its own. A round of static noise on 44 images costs as many gradients as one of learning on 4."
    )


def with_interval(cell: dict[str, Any]) -> str:
    low, high = cell["interval"]
    return f"{cell['mean']:.1f} ({low:.1f}-{high:.1f})"


def leakage_pages() -> str:
    """The two attacks that decide, for the page of results."""
    return "\n\n".join([leakage("matched"), leakage("membership"), caption()])


def frontier() -> dict[str, Any]:
    return read("frontier", "frontier.json")


def everything() -> str:
    """Every setting of the frontier, by data set."""
    return "\n\n".join(
        f"## {title}\n\n{frontier_text.everything(frontier(), name)}" for name, title in frontier_text.TITLES.items()
    )


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/frontier.md": {
        "frontier answer": lambda: frontier_text.answer(frontier()),
        "frontier equal": lambda: frontier_text.equal_table(frontier()),
        "frontier public": lambda: frontier_text.public_table(frontier()),
        "frontier computed": lambda: frontier_text.computed(frontier()),
    },
    "frontier/README.md": {"everything": everything},
    "README.md": {
        "frontier answer": lambda: "- " + " ".join(frontier_text.headline(frontier())),
        "private accuracy": private_accuracy,
    },
    "docs/results.md": {
        "both axes": both_axes,
        "results": accuracy,
        "claims": attack_and_claims,
        "leakage": leakage_pages,
        "speed": speed,
        "any model": any_model,
        "attack speed": attack_speed,
    },
    "docs/from_opacus.md": {"step time": step_time},
    "docs/howto.md": {"audit time": audit_time},
    "docs/reproduction.md": {
        "summary": agreement,
        "artefacts": artefacts,
        "claims": claims,
        "differing": differing_cells,
        "defence": defence,
    },
    "studies/leakage/README.md": {"leakage": study, "whole run": combined},
    "studies/coverage/README.md": {"coverage": coverage, "few": few_coverage, "pairs": paired_coverage},
    "studies/norm/README.md": {"norm": norm},
    "studies/invgrad/README.md": {"invgrad": invgrad, "variants": variants},
    "studies/bounds/README.md": {"bounds": bounds},
}
"""The parts of every page, by the name between their markers, and what makes each."""


def filled(name: str, text: str) -> str:
    """The text of a page with its parts as the committed results have them."""
    return put(text, {part: wrapped(make()) for part, make in PAGES[name].items()})


def wrapped(text: str) -> str:
    """Sentences in lines of 120 columns; rows of tables stay as they are."""
    lines = []
    for line in text.split("\n"):
        hang = "  " if line.startswith("- ") else ""
        folded = textwrap.wrap(line, 120, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)
        lines += [line] if line.startswith("|") else folded or [""]
    return "\n".join(lines)


def main() -> int:
    differs = False
    for name in PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new = filled(name, text)
        differs |= new != text
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    return int(differs and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
