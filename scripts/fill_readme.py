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


def read(*path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ROOT.joinpath(*path).read_text())
    return found


def filled(text: str) -> str:
    parts = {
        "results": table(read("reproduction", "accuracy", "accuracy.json")),
        "speed": speed(
            *(read("benchmarks", f"results_{name}.json") for name in ("throughput", "gpu_sweep_h200", "growth"))
        ),
    }
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    if "--check" in sys.argv:
        return int(filled(text) != text)
    readme.write_text(filled(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
