"""Write docs/reference from the code: settings, mechanisms, and an index of the public names.

    python scripts/reference.py [--check]

``--check`` writes nothing and exits with 1 when a page is not what the code says. The meaning of a key is the comment
on its line in the source, unless ``MEANINGS`` has more to say.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from public_names import GENERATED, api_page, table

from equipoise.attack.registry import ATTACKS
from equipoise.auditing import options as audit_options
from equipoise.bounds.options import LEAST, BoundsOptions
from equipoise.cli.train import train
from equipoise.engine.settings import TABLES, Settings
from equipoise.flower import policy, run_config
from equipoise.mechanism import claims
from equipoise.mechanism.noise import NOISES
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.registry import MEASURES, MECHANISMS, MeasureKind, Mechanism
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.runs.config import SweepBlock

ROOT = Path(__file__).parents[1]

MEANINGS = {
    "clients": "clients of a federation, K",
    "batch": "examples in a mini-batch",
    "local_steps": "steps that a client trains before it releases",
    "steps": "steps of the learner in Algorithm 2, M",
    "negative_norm": "coefficient lambda of the negative norm: a number, one per client, or a schedule",
    "clip_norm": "the norm that `clip` bounds",
    "gaussian.delta": "the delta beside epsilon, of the whole run",
    "gaussian.rounds": "rounds that the budget is for; none: those of the run",
    "leakage.D": "the largest distance between an input and its reconstruction that is assumed",
    "leakage.c_a": "the lower bi-Lipschitz constant of Assumption D.1",
    "leakage.c_res": "stands for c_2 * c_b / c_a of Lemma D.1",
    "leakage.p": "growth of the residuals of Assumption D.2, in (0, 1)",
    "leakage.iterations": "iterations I of the assumed attack",
    "rounds": "rounds of training, T; fitted",
    "sampling": "mini-batches drawn uniformly (Alg. 1, l. 5), or passes without replacement",
    "model": "a bundled model: `lenet-zhu` (the paper's), `lenet-tanh`, `mlp`, `small-cnn`, `scatter-linear`",
    "init": "how weights start: all from U(-init_bound, init_bound), or as torch does",
    "init_bound": "of that uniform distribution; fitted",
    "min_clients": "a round with fewer accepted releases is void",
    "partition_seed": "of partitions that draw: iid, dirichlet, shards",
    "public_fraction": "of a folder's training files, set aside as public; bundled data have fixed splits",
    "evaluate_every": "rounds between evaluations",
    "device": "`cpu`, `cuda` or `cuda:N`",
    "dtype": "precision of parameters and data",
    "sweep.datasets": "`mnist`, `fmnist` or folders",
    "sweep.mechanisms": "names of [mechanisms](mechanisms.md)",
    "sweep.budgets": "numbers, lists with one per client, or schedules; a smaller one is stricter",
    "sweep.seeds": "one federation for each",
    "seed": "of all that is drawn here",
    "releases": "releases attacked per federation and snapshot",
    "label_sets": "different sets of labels among the attacked batches",
    "candidates": "images to choose from when an image is to be identified, the right one among them",
    "others": "images per release that were not in it, for membership",
    "iterations": "steps of the descent",
    "lr": "Adam's learning rate",
    "signed": "whether Adam gets the sign of the gradient",
    "tv": "weight of the total variation",
    "restarts": "starts of the descent; the one of least cost counts",
    "samples": "simulated releases to learn from",
    "condition_on": "what a candidate's response is conditioned on: nothing, the release, or the better of both",
    "pairs": "pairs of opposite noise per candidate, each with companions of its own",
    "anchors": "images around which the companions' covariance is estimated",
    "around": "pairs of simulated releases around each of them",
    "tuning": "public images among which the filter's settings are tried",
    "trials": "simulated releases for that",
    "companions": "draws of the rest of the batch, per candidate and release, when conditioned on the release",
    "nulls": "simulated releases without any candidate, when conditioned on the release",
}
"""Keys whose line in the source has no comment, or one that is too short for a page."""

READ_BY = {
    "ProtectionSettings": "`train`, `protect`, `protected_step`, `audit`, the Flower app",
    "DataSettings": "`train`, when it deals the data",
}
"""Who reads a group of settings; the others are for ``train`` alone."""


# -- what the source says about a key ------------------------------------------------------------------------------


@cache
def comments(cls: type) -> dict[str, str]:
    """The comment on the line of every field that a class itself defines."""
    source = inspect.getsource(cls)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    assigned = [node for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return {node.target.id: by_line.get(node.end_lineno, "") for node in assigned if isinstance(node.target, ast.Name)}


def home(cls: type, name: str) -> type:
    """The class that defines a field: ``cls`` or one that it extends."""
    return next(one for one in cls.__mro__ if name in vars(one).get("__annotations__", {}))


def keys(instance: Any, prefix: str = "") -> Iterator[tuple[type, str, str, Any, str]]:
    """(class, key, type, default, meaning) of every field; those of settings within settings lie side by side."""
    for part in fields(instance):
        value, own = getattr(instance, part.name), home(type(instance), part.name)
        if is_dataclass(value):
            grouped = type(value).__name__.endswith("Settings") and part.name not in TABLES
            yield from keys(value, prefix if grouped else f"{prefix}{part.name}.")
            continue
        key = f"{prefix}{part.name}"
        meaning = part.metadata.get("doc") or meant(type(instance), key) or comments(own)[part.name]
        yield own, key, str(part.type), value, meaning


def meant(cls: type, key: str) -> str:
    """What ``MEANINGS`` has for a key of settings; options of bounds share some of these names."""
    return "" if cls is BoundsOptions and key != "seed" else MEANINGS.get(key, "")


def code(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, float) and value == 1 / 6:
        return "`1/6`"
    words = {True: "true", False: "false", None: "none"}
    return f"`{words[value] if value is None or isinstance(value, bool) else repr(value)}`"


def rest_table(module: Any) -> list[list[str]]:
    """The rows of the (only) table in a module's docstring: two columns, the second may go on."""
    lines = inspect.cleandoc(module.__doc__).splitlines()
    first, last = (i for i, line in enumerate(lines) if re.match(r"={4,} +={4,}", line))
    width = lines[first].index(" ")
    return [[line[:width].strip(), line[width:].strip()] for line in lines[first + 1 : last]]


# -- settings ------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    return "\n\n".join(
        [
            "# Settings and options",
            GENERATED,
            "Every key with its type, default and meaning. In TOML, in `--set key=value` and in JSON all keys of a run "
            "lie side by side. TOML has no null: write `none`. What the paper leaves open, and what was fitted, is in "
            "[choices.md](../choices.md).",
            *settings_sections(),
            "## Blocks of a sweep",
            "A `[[sweep]]` block is the product of its lists. `none` takes no budget and occurs once per seed.",
            table(["key", "type", "default", "flag", "meaning"], sweep_rows()),
            "## Options of audits",
            "Of `equipoise audit` (`--set`) and of the options that `audit` and `audit_run` take.",
            table(["option", "default", "least, or choices", "used by", "meaning"], audit_rows()),
            "## Options of bounds",
            "Of `equipoise bounds` (`--set`) and of `BoundsOptions`.",
            table(["option", "type", "default", "least", "meaning"], bounds_rows()),
            "## Flower: run config",
            "Under `[tool.flwr.app.config.equipoise]`, the same for all nodes. The run may set these settings "
            f"of a release: {', '.join(f'`{name}`' for name in run_config.OF_A_RELEASE)} and `leakage.*`.",
            table(["key", "meaning"], [[f"`{key}`", text] for key, text in rest_table(run_config)]),
            "## Flower: the policy of a node",
            "The node config (`flower-supernode --node-config`) has `partition-id`, the number of the client, and "
            "`equipoise.policy`, its operator's policy file. Its tables `[mechanisms.NAME]` have these keys; the "
            "others are in [deployment](../deployment.md#the-policy-of-a-node).",
            table(["key", "meaning"], [[f"`{key}`", text] for key, text in rest_table(policy)]),
        ]
    )


def settings_sections() -> Iterator[str]:
    flags = {name for name in inspect.signature(train).parameters}
    groups: dict[type, list[list[str]]] = {}
    owner: type = Settings
    for own, key, kind, default, meaning in keys(Settings()):
        owner = owner if "." in key else own  # constants of the leakage score stay with the group that holds them
        flag = f"`--{key.replace('_', '-')}`" if key in flags else ""
        groups.setdefault(owner, []).append([f"`{key}`", f"`{kind}`", code(default), flag, meaning])
    for group, rows in groups.items():
        yield f"## {group.__name__}"
        about = inspect.cleandoc(group.__doc__ or "").splitlines()[0]
        yield f"{about} Read by {READ_BY.get(group.__name__, '`train`')}."
        yield table(["key", "type", "default", "flag", "meaning"], rows)


def sweep_rows() -> list[list[str]]:
    result = []
    for _, key, kind, default, meaning in keys(SweepBlock()):
        text = meaning or MEANINGS[f"sweep.{key}"]
        result.append([f"`{key}`", f"`{kind}`", code(default), f"`--{key.removesuffix('s')}`", text])
    return result


def audit_rows() -> list[list[str]]:
    (cls,) = (
        one for one in vars(audit_options).values() if is_dataclass(one) and one.__module__ == audit_options.__name__
    )
    said = comments(cls)  # type: ignore[arg-type]
    result = [
        [
            "`attacks`",
            code(list(audit_options.USUAL)),
            ", ".join(f"`{name}`" for name in ATTACKS),
            "every audit",
            "which",
        ]
    ]
    for name, option in audit_options.OWN.items():
        result.append([*option_cells(name, option), "every audit", MEANINGS.get(name) or said[name]])
    for name, option in audit_options.attack_options().items():
        users = ", ".join(f"`{attack.name}`" for attack in ATTACKS.values() if name in attack.options)
        result.append([*option_cells(name, option), users, MEANINGS[name]])
    return result


def option_cells(name: str, option: Any) -> list[str]:
    limits = ", ".join(f"`{word}`" for word in option.choices) or ("" if option.least is None else f"{option.least:g}")
    return [f"`{name}`", code(option.default), limits]


def bounds_rows() -> list[list[str]]:
    return [
        [f"`{key}`", f"`{kind}`", code(default), str(LEAST.get(key, "")), meaning]
        for _, key, kind, default, meaning in keys(BoundsOptions())
    ]


# -- mechanisms ----------------------------------------------------------------------------------------------------

PAPER_NAMES = {"pl-identical": "PL-Identical", "pl-learn": "PL-Learn", "ls-static": "LS-Static", "ls-learn": "LS-Learn"}
ROUNDS = 50
"""Of the run whose budget is an example."""
MEANT = {
    "leakage": "PL, privacy leakage: the most that the paper's leakage score (eq. 5) may be",
    "laplace": "LS, Laplace scale: the setting `sensitivity` divided by the noise scale (eq. 13)",
    "gaussian": "the same ratio for the standard deviation of Gaussian noise; not in the paper",
    "epsilon": "the epsilon of differential privacy of one release, with a derived sensitivity; not in the paper",
    "epsilon-delta": "the epsilon of differential privacy of a whole run, at `gaussian.delta`; not in the paper",
    "share": "the share of the coordinates of every tensor that is kept; not in the paper",
    "outpost": "one over the noise base of Outpost; not in the paper",
}


def mechanisms_page() -> str:
    return "\n\n".join(
        [
            "# Mechanisms and their budgets",
            GENERATED,
            "What is drawn, what bounds it, what is learned, and what that is worth. **A smaller budget is "
            "stricter, for every mechanism.**",
            "## Mechanisms",
            table(
                ["name", "in the paper", "noise", "norm", "budget", "bounds of the distortion", "learns", "clips"],
                [mechanism_row(mechanism) for mechanism in MECHANISMS.values()],
            ),
            "`factor` and `sensitivity` are [settings](settings.md). Where the budget sets a noise scale, each draw "
            "sets its own bounds.",
            known_norms(),
            measured_leak(),
            "## Budgets",
            table(
                ["budget", "means", "stricter", "strict example", "loose example"],
                [measure_row(kind) for kind in MEASURES.values()],
            ),
            f"Examples with the default settings; of a whole run with {ROUNDS} rounds.",
            "## What is proved",
            f"For every mechanism that distorts, but those that shape the update: {claims.PROVED}. Of these (pruning, "
            f"outpost): {claims.FINITE}. Beyond that:",
            table(
                ["name", "budget", "Theorem 5.1 (stationarity)"],
                [[f"`{m.name}`", claims.of_budgets([m]), theorem(m)] for m in MECHANISMS.values() if m.distorts],
            ),
            "[guarantees.md](../guarantees.md) has the rest: what was measured, and what is not claimed.",
            "## Families of noise",
            table(
                ["name", "variance at scale 1"],
                [[f"`{name}`", f"{noise.variance:g}"] for name, noise in NOISES.items()],
            ),
        ]
    )


def mechanism_row(m: Mechanism) -> list[str]:
    name = f"`{m.name}`"
    if not m.distorts:
        return [name, "", "-", "-", "-", "-", "no", "no"]
    if m.shaping is not None:
        noised = m.noise if m.draws else "-"
        return [name, PAPER_NAMES.get(m.name, "not in it"), noised, "-", str(m.measure), "none", "no", "no"]
    if m.on_sphere:
        bounds = "from `lower` to `factor` x `lower`" if m.learns else "fixed at `lower`"
    else:
        bounds = "from the drawn norm to `factor` x that" if m.learns else "as drawn"
    clips = f"every example, in {m.norm.upper()}" if m.per_example else "the mini-batch gradient" if m.clips else "no"
    return [
        name, PAPER_NAMES.get(m.name, "not in it"), m.noise, m.norm.upper(), str(m.measure), bounds,
        "yes" if m.learns else "no", clips,
    ]  # fmt: skip


def known_norms() -> str:
    """Where the norm of the noise is public, and what follows."""
    names = ", ".join(f"`{m.name}`" for m in MECHANISMS.values() if m.fixed_norm)
    return (
        f"**A known weakness of {names}**, which is as the paper has it: the norm of its noise is exactly `lower`, "
        "which follows from the public budget. So whoever knows the other examples of a batch can verify any guess at "
        "one ([measured](../../studies/norm/README.md)); `equipoise audit --attack verify` does. A lower precision or "
        "a norm drawn at random makes that less certain, and does not end it."
    )


def measured_leak() -> str:
    """What attacks got from the paper's mechanisms and the others, where it was measured: the range over strengths."""
    cells = [
        row for row in json.loads((ROOT / "frontier" / "frontier.json").read_text())["cells"]
        if (row["clients"], row["partition"]) == (4, "identical") and row["server"] in ("plain", "momentum")
        and row["batch"] in (4, None) and row["local_steps"] == 1 and not row["control_failed"]
    ]  # fmt: skip
    rows = []
    for name in MECHANISMS:
        found = {
            scope: [row["identification"] for row in cells if row["mechanism"] == name and row["scope"] == scope]
            for scope in (0, "run")
        }  # fmt: skip
        if any(found.values()):
            rows.append([f"`{name}`", *(spread(found[scope]) for scope in (0, "run"))])
    return "\n\n".join([
        "**Measured leak**: the share of records that the strongest attack picks out of 200, over both bundled data "
        "sets and all strengths on [the frontier](../frontier.md), which has intervals, controls, and what is not "
        "measured yet:",
        table(["name", "from a first release", "from a whole run"], rows),
    ])  # fmt: skip


def spread(shares: list[float]) -> str:
    if not shares:
        return "-"
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


def measure_row(kind: MeasureKind) -> list[str]:
    measure = kind.build(ProtectionSettings(gaussian=GaussianSettings(rounds=ROUNDS)))
    strict, loose = kind.grid[0], kind.grid[-1]
    if not measure.lower(strict) > measure.lower(loose):
        raise AssertionError(f"A smaller budget of {kind.name!r} is not stricter: say so on the page.")
    what = "noise scale" if kind.bounds_draw else "norm at least"
    examples = [f"{budget:g}: {what} {measure.lower(budget):.3g}" for budget in (strict, loose)]
    return [kind.name, MEANT.get(kind.name, ""), "smaller", *examples]


def theorem(m: Mechanism) -> str:
    if not m.learns:
        return "nothing is learned"
    if not m.on_sphere:
        return "not covered: each draw sets its own bounds" + ("" if m.norm == "l2" else ", and L1 is no projection")
    return "covered, if gamma < 1/L_alpha ([bounds.md](../bounds.md))"


# -- the pages -----------------------------------------------------------------------------------------------------

PAGES = {
    "docs/reference/settings.md": settings_page,
    "docs/reference/mechanisms.md": mechanisms_page,
    "docs/reference/api.md": api_page,
}


def main() -> int:
    differs = False
    for name, make in PAGES.items():
        path, text = ROOT / name, make() + "\n"
        differs |= not path.is_file() or path.read_text(encoding="utf-8") != text
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(differs and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
