"""The frontier in words and Markdown tables, from its record alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..privacy.guarantee import percent_up
from .frontier_families import FAMILIES, TITLES, within

Row = Mapping[str, Any]
SCOPES = (0, 4, 40, 100, "run")
WORDS = {"0": "start", "4": "4 %", "40": "40 %", "100": "end", "run": "run"}
"""Of scopes, in tables."""


def headline(record: Row) -> list[str]:
    """What the twenty budgets came to."""
    equal = record["equal_accuracy"]
    met, chosen = [row for row in equal if row["met"]], [row for row in equal if row["choice"]]
    most = _largest(met)
    lines = [
        f"At {len(met)} of the paper's {len(equal)} budgets, gaussian-dp on scatter-linear is in the mean at least as "
        "accurate as the paper's learned noise on LeNetZhu, and attackers identify at most a fifth as many records, at "
        f"each of four stages of the training and over all of it{'' if most is None else f' (at most {_part(most)})'}."
    ]
    whole = _largest(chosen, "run")
    if whole is not None:
        epsilons = [row["epsilon"] for row in chosen]
        proved = percent_up(max(1.0 if row["proved"] is None else row["proved"] for row in chosen))
        lines.append(
            f"Over the whole run it was at most {_part(whole)} as many ({_unfavourable(chosen)} at the "
            "unfavourable ends of both intervals). At the epsilons that this takes "
            f"({min(epsilons):g} to {max(epsilons):g}) it is proved that an attacker who knows all other records picks "
            f"the right one of 200 equally likely candidates with at most {proved}."
        )
    lines += [f"Missed: {TITLES[row['dataset']]}, {row['cell']}." for row in equal if not row["met"]]
    return lines


def _largest(rows: Sequence[Row], scope: str | None = None) -> float | None:
    """The largest share of the learner's, where there is one."""
    found = [one["ratio"] for row in rows for name, one in row["by_scope"].items() if scope in (None, name)]
    return max((ratio for ratio in found if ratio is not None), default=None)


def _unfavourable(rows: Sequence[Row]) -> str:
    """Our upper end over the learner's lower, the largest; an end that is not known or 0 limits nothing."""
    ends = [row["by_scope"]["run"] for row in rows if row["by_scope"]["run"]["ratio"] is not None]
    if any(one["high"] is None or not one["learner_low"] for one in ends):
        return "without limit"
    return _part(max(one["high"] / one["learner_low"] for one in ends))


def _part(ratio: float) -> str:
    """As one over a whole number, rounded to our disadvantage.

    >>> _part(0.03), _part(2.5), _part(2.001), _part(0.0)
    ('1/33', '2.5 times', '2.01 times', '0 times')
    """
    return f"1/{int(1 / ratio)}" if 0 < ratio <= 1 else f"{math.ceil(100 * ratio - 1e-9) / 100:g} times"


def answer(record: Row) -> str:
    """The headline, and accuracy at the usual strengths."""
    best = [
        f"{TITLES[name]} " + ", ".join(
            f"{100 * row['accuracy']:.1f} % at ε {row['epsilon']:g}" for row in record["cells"]
            if _usual(row, name) and row["epsilon"] in (1, 2, 4, 8)
        ) for name in TITLES
    ]  # fmt: skip
    free = ", ".join(f"{TITLES[row['dataset']]} {100 * row['accuracy']:.1f} %" for row in _unprotected(record))
    bare = ", ".join(
        f"{TITLES[name]} {100 * value:.1f} %" for name, value in sorted(record["unprotected"].items())[::-1]
    )
    first = (
        "**Deploy `gaussian-dp` on `scatter-linear`** where pictures must be learned from private records: "
        f"{'; '.join(best)} (without protection {bare}; the paper's network without protection: {free})."
    )
    meant = (
        "Epsilon is that of the whole run of one client, at delta 1e-5, for one record added or removed. These are "
        "seeded experiments: the epsilon is the mechanism's, the runs have none."
    )
    return "\n\n".join([first, meant, *headline(record)])


def _usual(row: Row, dataset: str) -> bool:
    return (
        row["dataset"] == dataset and row["scope"] == "run" and row["model"] == "scatter-linear"
        and row["epsilon"] is not None and (row["clients"], row["partition"]) == (4, "identical")
    )  # fmt: skip


def _unprotected(record: Row) -> list[Row]:
    return [
        row for name in TITLES for row in record["cells"]
        if row["dataset"] == name and family(row) == "no protection" and row["scope"] == 0
        and (row["clients"], row["partition"]) == (4, "identical")
    ]  # fmt: skip


def public_table(record: Row) -> str:
    """What labelled public images alone give, beside the strictest gaussian-dp that beats them."""
    rows = []
    for row in (row for row in record["cells"] if row["public"] and row["scope"] == "run"):
        better = [
            other for other in record["cells"]
            if _usual(other, row["dataset"]) and other["accuracy"] > row["accuracy"]
        ]  # fmt: skip
        least = min(better, key=lambda other: other["epsilon"], default=None)
        model = "scatter-linear" if row["model"] == "scatter-linear" else "LeNetZhu"
        beaten = "none of these" if least is None else f"ε {least['epsilon']:g} ({accuracy(least)})"
        rows.append([TITLES[row["dataset"]], f"{row['public']:,}", model, accuracy(row), beaten])
    columns = ("data", "public images", "model", "accuracy", "gaussian-dp on 4 x 1,000 private ones is better from")
    return table(columns, rows)


def computed(record: Row) -> str:
    """How much of it is there, of which commits, on what, in how long."""
    parts, hours, machines = record["parts"], record["seconds"] / 3600, " and ".join(record["machines"])
    commits = ", ".join(f"{count} at {commit}" for commit, count in parts["by_commit"].items())
    said = (
        f"{parts['computed']} of {parts['planned']} parts are computed ({commits}) on {machines}: "
        f"{hours:.1f} hours process by process, up to ten of them side by side."
    )
    if not parts["missing"]:
        return said
    names = dict.fromkeys(name.split("-", 1)[1].split("-run")[0] for name in parts["missing"])
    return f"{said} Not there yet, in whole or in part: {', '.join(names)}."


def equal_table(record: Row) -> str:
    """The paper's twenty cells, and what the recommended mechanism gives for the same accuracy."""
    columns = (
        "data", "the learner's budget", "its accuracy", "identified: first release", "whole run", "(without its noise)",
        "members", "gaussian-dp at", "accuracy", "identified: whole run", "proved", "members",
        "largest share of the learner's", "on LeNetZhu it takes",
    )  # fmt: skip
    return table(columns, [_equal_row(row) for row in record["equal_accuracy"]])


def _equal_row(row: Row) -> list[str]:
    about = [TITLES[row["dataset"]], cell(row), share(row["learner_accuracy"])]
    on_its_own = "more than ε 8" if row["epsilon_on_its_model"] is None else f"ε {row['epsilon_on_its_model']:g}"
    if row["choice"] is None:
        theirs = ["-", share(row["learner_identification"]), "-", "-"]  # over the whole run
        return [*about, *theirs, "none is as accurate", *["-"] * 5, on_its_own]
    run, first = row["by_scope"]["run"], row["by_scope"]["0"]
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2g} ({WORDS[row['scope']]})"
    ratio += "" if row["met"] else " **missed**"
    return [
        *about, *(share(one.get("learner_identification")) for one in (first, run)),
        share(run.get("learner_undistorted")), share(run.get("learner_membership")),
        f"ε {row['epsilon']:g}", share(row["accuracy"]), share(run.get("identification")), limit(row["proved"]),
        share(run.get("membership")), ratio, on_its_own,
    ]  # fmt: skip


def cell(row: Row) -> str:
    """
    >>> cell({"cell": "pl-learn 0.96"})
    'PL 0.96'
    """
    family, budget = row["cell"].split()
    return f"{family[:2].upper()} {budget}"


def everything(record: Row, dataset: str, clients: int = 4, partition: str = "identical") -> str:
    """Every setting of a data set: accuracy, leakage in each scope, membership, what is proved, cost."""
    columns = (
        "", "strength", "accuracy", *(f"{scope} %" for scope in SCOPES[:-1]), "whole run", "members, most at a stage",
        "members, run", "proved, run", "gradients", "kB", "rounds",
    )  # fmt: skip
    groups: dict[tuple[Any, ...], dict[Any, Row]] = {}
    for row in record["cells"]:
        usual = (row["clients"], row["partition"]) == (clients, partition)
        if row["dataset"] == dataset and (
            usual or (row["public"] is not None and clients == 4 and partition == "identical")
        ):
            key = family(row), row["budget"] if row["public"] is None else row["public"], row["server"], row["model"]
            groups.setdefault(key, {})[row["scope"]] = row
    order = [name for name, *_ in NAMES]
    place = {name: order.index(name) if name in order else len(order) for name, *_ in groups}
    ranked = sorted(groups, key=lambda key: (place[key[0]], key[0], key[1] or 0))
    return table(columns, [_setting_row(key[0], groups[key]) for key in ranked])


NAMES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("no protection", {"mechanism": "none", "public": None, "batch": 4}),
    ("no protection, batches of 44", {"mechanism": "none", "public": None, "batch": 44}),
    *((name, common) for name, _, common in FAMILIES if common["mechanism"] not in ("none", "pl-identical")),
    ("static noise, eleven local steps", {"mechanism": "pl-identical", "local_steps": 11, "server": "plain"}),
    ("static noise, eleven local steps, damped server",
     {"mechanism": "pl-identical", "local_steps": 11, "server": "damped"}),
    ("static noise, batches of 44", {"mechanism": "pl-identical", "server": "plain", "batch": 44}),
    ("static noise, batches of 44, damped server", {"mechanism": "pl-identical", "server": "damped", "batch": 44}),
    ("static noise", {"mechanism": "pl-identical", "server": "plain"}),
    ("static noise, damped server", {"mechanism": "pl-identical", "server": "damped"}),
    ("learned noise, LS", {"mechanism": "ls-learn"}),
    ("static noise, LS", {"mechanism": "ls-static"}),
    ("public images alone, scatter-linear", {"mechanism": "none", "clients": 0, "model": "scatter-linear"}),
    ("public images alone, LeNetZhu", {"mechanism": "none", "clients": 0}),
)  # fmt: skip
"""What every cell is called: the first that fits, or else the mechanism's own name."""


def family(row: Row) -> str:
    """What a cell is called.

    >>> family({"mechanism": "pl-learn", "server": "plain"})
    "the paper's learned noise"
    """
    fits = (name for name, common in NAMES if all(row.get(key) == value for key, value in common.items()))
    return next(fits, row["mechanism"])


def _setting_row(name: str, scopes: Mapping[Any, Row]) -> list[str]:
    first = next(iter(scopes.values()))
    stages = [scopes[scope] for scope in SCOPES[:-1] if scope in scopes]
    members = [row["membership_tpr_at_1pct"] for row in stages if row["membership_tpr_at_1pct"] is not None]
    run = scopes.get("run")
    strength = f"{first['public']:,}" if first["public"] else "-" if first["budget"] is None else f"{first['budget']:g}"
    return [
        name, f"ε {strength}" if first["epsilon"] is not None else strength, accuracy(first),
        *(identified(scopes.get(scope)) for scope in SCOPES), share(max(members)) if members else "-",
        share(run["membership_tpr_at_1pct"]) if run else "-",
        limit(run["proved_identification"] if run else None),
        f"{first['gradients']:,}", f"{first['bytes'] / 1000:.3g}", f"{first['rounds']:,}",
    ]  # fmt: skip


def accuracy(row: Row) -> str:
    if row["accuracy"] is None:
        return "-"
    if row["accuracy_low"] is None:
        return f"{100 * row['accuracy']:.1f}"
    low, high = within((row["accuracy_low"], row["accuracy_high"]))
    return f"{100 * row['accuracy']:.1f} ({100 * low:.1f}-{100 * high:.1f})"


def identified(row: Row | None) -> str:
    """Identification with its interval; an asterisk where the control failed."""
    if row is None:
        return "-"
    if row["identification_low"] is None:
        return share(row["identification"])
    ends = f"{100 * row['identification_low']:.2g}-{100 * row['identification_high']:.3g}"
    return f"{share(row['identification'])} ({ends}){'*' if row['control_failed'] else ''}"


def share(value: float | None) -> str:
    """
    >>> share(0.0059), share(0.854), share(None)
    ('0.6 %', '85.4 %', '-')
    """
    return "-" if value is None else f"{100 * value:.1f} %"


def limit(value: float | None) -> str:
    """A proved limit, which is rounded up.

    >>> limit(0.00609), limit(None)
    ('0.609 %', '-')
    """
    return "-" if value is None else percent_up(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
