"""Fill the tables of README.md from the committed results.

    python scripts/fill_readme.py [--check]

``--check`` writes nothing and exits with 1 when the table is not what the results say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FAMILIES = {"PL": ("pl-identical", "pl-learn"), "LS": ("ls-static", "ls-learn")}


def table(found: dict[str, Any]) -> str:
    cells = {(c["dataset"], c["mechanism"], c["budget"]): c for c in found["cells"]}
    damped = {(c["dataset"], c["mechanism"], c["budget"]): c for c in found["damped_server"]["cells"]}
    steps = {(c["dataset"], c["mechanism"], c["budget"]): c for c in found["static_eleven_steps"]["cells"]}
    gains = {(p["dataset"], p["family"], p["budget"]): p for p in found["learn_minus_identical"]}
    lines = [
        "| data | budget | static | learned | learned - static (95 % interval) | paper: static, learned "
        "| static, damped server | static, eleven steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dataset, family, budget in gains:
        static, learned = (cells[dataset, name, budget] for name in FAMILIES[family])
        gain, simple = gains[dataset, family, budget], damped[dataset, FAMILIES[family][0], budget]
        low, high = gain["interval"]
        lines.append(
            f"| {dataset} | {family} {budget:g} | {spread(static)} | {spread(learned)} | "
            f"{gain['mean']:+.1f} ({low:+.1f} to {high:+.1f}) | {static['paper']:.1f}, {learned['paper']:.1f} "
            f"| {spread(simple)} | {spread(steps[dataset, FAMILIES[family][0], budget])} |"
        )
    free = ", ".join(f"{name} {spread(cell)}" for name, cell in found["without_protection"].items())
    seeds, fewer = found["cells"][0]["seeds"], found["damped_server"]["cells"][0]["seeds"]
    lines += [
        "",
        f"Test accuracy in percent after 5,000 rounds, mean ± standard deviation of {seeds} seeds ({fewer} in the "
        f"last two columns); without protection: {free}. {found['agreement']} agree with the paper by the rule in "
        "[reproduction/accuracy](reproduction/accuracy/README.md). eta, T, S and the initialisation were fitted to the "
        "paper's tables, because it does not state them; the subset of images was changed once after results were "
        "seen ([choices](docs/choices.md)).",
    ]
    return "\n".join(lines)


def spread(cell: dict[str, Any]) -> str:
    return f"{cell['mean']:.1f} ± {cell['sd']:.1f}"


def speed(cpu: dict[str, Any], gpu: dict[str, Any], growth: dict[str, Any]) -> str:
    row = cpu[f"threads_{cpu['environment']['threads']}"]
    most, largest = growth["clients"][-1], growth["parameters"][-1]
    seconds = growth["slope_round_in_clients"], growth["slope_server_in_clients"], growth["slope_round_in_parameters"]
    return "\n".join(
        [
            "| | rounds per second | against plain PyTorch | share of the matrix-multiply rate |",
            "|---|---|---|---|",
            f"| one federation | {row['one_federation_rounds_per_second']:.0f} | {row['ratio_one']:.1f}x "
            f"| {row['share_of_matmul_rate_one']:.0%} |",
            f"| twenty at once, each | {row['twenty_federations_rounds_per_second_each_share']:.0f} "
            f"| {row['ratio_twenty']:.1f}x | {row['share_of_matmul_rate_twenty']:.0%} |",
            "",
            f"One H200: {gpu['federations']} federations x {gpu['rounds']:,} rounds in {gpu['seconds']:.0f} s. "
            f"{most['clients']:,} clients in one federation on 2 cores: {most['seconds_per_round']:.1f} s a round, "
            f"{most['mib_above_start']:.0f} MiB above the start. Growth on a log-log scale (1 is linear): round time "
            f"in clients {seconds[0]:.2f}, server time in clients {seconds[1]:.2f}, round time in parameters up to "
            f"{largest['parameters']:,} {seconds[2]:.2f} ([results](benchmarks/results_growth.json)).",
        ]
    )


LOWERS = {0.995: 2, 0.98: 8, 0.96: 16, 0.92: 32}
EQUAL = "static, equal lower bound"


def leakage(found: dict[str, Any], attacks: tuple[str, ...], own: bool) -> str:
    """What the attacks got from static and from learned distortion at the same weights, and on own trajectories."""
    rows = {
        (r["attack"], r["mechanism"], r["budget"], r["round"], r["role"]): r
        for r in found["rows"]
        if r["control"] != "negative"
    }
    titles = {"matched": "matched: found of 200", "lti": "lti: found of 200", "membership": "membership: best AUC"}
    lines = ["| lower bound | round |" + "".join(f" {titles[a]}: static | learned |" for a in attacks)]
    lines[0] += " matched, static on its own trajectory |" if own else ""
    lines.append("|---|---|" + "---|---|" * len(attacks) + ("---|" if own else ""))
    for budget, lower in LOWERS.items():
        for when in (0, 200, 2000):
            cells = []
            for attack in attacks:
                cells += [worth(rows[attack, "pl-learn", budget, when, role]) for role in (EQUAL, "own")]
            cells += [worth(rows["matched", "pl-identical", budget, when, "own"])] if own else []
            lines.append(f"| {lower} | {when} | " + " | ".join(cells) + " |")
    plain = [worth(rows["matched", "none", None, when, "own"]) for when in (0, 200, 2000)]
    releases = next(iter(rows.values()))["targets"]
    lines += [
        "",
        f"95 % intervals over {releases} releases in parentheses; static noise of equal lower bound at the learned "
        "federation's own weights, one trajectory (seed 1); chance is 0.5 % and 0.5. Undistorted releases of the "
        f"unprotected federation, matched: {', '.join(plain)} at rounds 0, 200, 2000.",
    ]
    return "\n".join(lines)


def worth(row: dict[str, Any]) -> str:
    if row["attack"] == "membership":
        name = f"auc_{row['membership_score']}"
        return f"{row[name]:.2f} ({row[name + '_low']:.2f}-{row[name + '_high']:.2f})"
    low, high = (100 * row[f"identification_{end}"] for end in ("low", "high"))
    return f"{100 * row['identification']:.1f} % ({low:.1f}-{high:.1f})"


def verdicts(found: dict[str, Any]) -> str:
    words = ("learned leaks more", "no clear difference", "static leaks more", "control failed")
    lines = [
        "| attack (measure), and what learned is set against | " + " | ".join(words) + " |",
        "|---|---|---|---|---|",
    ]
    for name, counts in found["counts"].items():
        lines.append(f"| {name} | " + " | ".join(str(counts.get(word, 0)) for word in words) + " |")
    return "\n".join(lines)


def invgrad(found: dict[str, Any]) -> str:
    lines = ["| init | lr | sign | defence | MSE | SSIM | found of 200 | leakage score | beyond D |", "|" + "---|" * 9]
    for row in found["rows"]:
        defence = "none" if row["budget"] is None else f"{row['mechanism']} {row['budget']}"
        low, high = (100 * row[f"identification_{end}"] for end in ("low", "high"))
        lines.append(
            f"| {row['init']} | {row['lr']:g} | {'yes' if row['signed'] else 'no'} | {defence} | {row['mse']:.3f} "
            f"({row['mse_low']:.3f}-{row['mse_high']:.3f}) | {row['ssim']:.3f} | {100 * row['identification']:.1f} % "
            f"({low:.1f}-{high:.1f}) | {row['leakage']:.3f} | {row['beyond_D']:.1%} |"
        )
    guesses = found["baselines"].items()
    words = [f"{n.replace('_', ' ')} {g['mse']:.2f}, {g['ssim']:.3f}, {g['leakage']:.2f}" for n, g in guesses]
    return "\n".join([*lines, "", "Guesses that use no update (MSE, SSIM, leakage score): " + "; ".join(words) + "."])


def attack_speed(cpu: dict[str, Any], gpu: dict[str, Any]) -> str:
    most = cpu["batched"]["32"]
    return (
        f"InvGrad at 32 targets on 2 cores: {most['ms']:.2f} ms an iteration and target, {most['times_faster']:.1f}x "
        f"the plain one-target implementation in the same run ([results](benchmarks/results_attack.json)). One H200: "
        f"{gpu['targets']} targets x {gpu['iterations']:,} iterations in {gpu['seconds']:.0f} s "
        "([results](benchmarks/results_gpu_invgrad_h200.json))."
    )


def read(*path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ROOT.joinpath(*path).read_text())
    return found


def filled_study(text: str) -> str:
    found = read("studies", "leakage", "leakage.json")
    table = leakage(found, ("matched", "lti", "membership"), own=True)
    return put(
        text,
        {
            "leakage": table
            + "\n\nIn how many cells (twelve at the same weights, eight on own trajectories):\n\n"
            + verdicts(found)
        },
    )


def put(text: str, parts: dict[str, str]) -> str:
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


def filled(text: str) -> str:
    parts = {
        "leakage": leakage(read("studies", "leakage", "leakage.json"), ("matched", "membership"), own=False),
        "attack speed": attack_speed(
            *(read("benchmarks", f"results_{name}.json") for name in ("attack", "gpu_invgrad_h200"))
        ),
        "results": table(read("reproduction", "accuracy", "accuracy.json")),
        "speed": speed(
            *(read("benchmarks", f"results_{name}.json") for name in ("throughput", "gpu_sweep_h200", "growth"))
        ),
    }
    return put(text, parts)


def filled_invgrad(text: str) -> str:
    return put(text, {"invgrad": invgrad(read("studies", "invgrad", "invgrad.json"))})


FILES = {
    "README.md": filled,
    "studies/leakage/README.md": filled_study,
    "studies/invgrad/README.md": filled_invgrad,
}


def main() -> int:
    differs = 0
    for name, fill in FILES.items():
        path = ROOT / name
        text = path.read_text()
        differs |= fill(text) != text
        if "--check" not in sys.argv:
            path.write_text(fill(text))
    return int(differs) if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
