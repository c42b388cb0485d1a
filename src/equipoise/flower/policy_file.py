"""Writing a policy with comments, and saying in plain words what one lets leave."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import BudgetError, ConfigError, LedgerError, PolicyError, closest, is_finite
from ..files import write_bytes
from ..ledger.account import Account
from ..ledger.account_report import CANDIDATES
from ..ledger.ledger import Summary, verify
from ..ledger.reservation import RELATION, SINGLE_RELATION, sums
from ..mechanism.protection import ProtectionSettings
from ..mechanism.registry import MECHANISMS, Mechanism, checked
from ..mechanism.shaping import Shaping
from .policy import VARIABLE, VERSION, Policy, needed, read_policy

POLICY, LEDGER = "policy.toml", "ledger.jsonl"
DEFAULT_BUDGETS = {"gaussian-dp": 2.0, "pl-identical": 0.98}

ABOUT = {
    "version": "of this format",
    "data": "what you call the data set: one policy and one ledger for each",
    "experiment": "reproducible noise, which protects nothing, may leave; no ledger is kept",
    "account": "of this node and data; the ledger's first line has it too",
    "ledger": "beside this file; a release is in it before anything is computed",
    "most-releases": "over all mechanisms and runs; what fails counts too",
    "weight": '"examples" tells how many a reply is of; a number tells nothing',
    "metrics": "of training, that may leave if a run asks for them; a loss is a function of your data",
    "verbose-errors": "true: this node's log quotes errors of the app, which may quote examples",
}
UNIT, RUNS = "record", 4
"""What a policy says unless edited: the unit, and how many runs of the largest epsilon all runs may come to."""
DELTAS = {"most-delta": 1e-5, "most-total-delta": 5e-5}
WHOLE_RUN = {
    "most-epsilon": "the largest epsilon of one run; all of it is reserved before the first release",
    "most-delta": "the largest delta of one run",
    "most-total-epsilon": "the largest sum of epsilons over all runs on this data, finished or not",
    "most-total-delta": "the largest sum of deltas over all runs on this data",
    "unit": 'whose presence is hidden: a "record", or a "group" of records of one person, say, which the app names',
    "divisor": "a round number of records that may be public: the exact number is private",
    "most-releases": "the most releases with this mechanism, over all runs",
}
"""Comments on a mechanism whose budget is for a whole run."""
COMMENTS = {
    "least-intensity": "the least L2 norm of the distortion of a release",
    "least-scale": "the least scale: of the noise in every coordinate, or of what shapes the update",
    "least-relative": "the least L2 norm of the noise over that of the update; a larger update is shortened",
    "most-gamma": "the largest step size of the learner: its gradients are of your examples",
    "most-steps": "the most steps of the learner",
    "most-factor": "the largest ratio of the upper to the lower bound",
    "most-epsilon": "the largest epsilon of one release",
    "most-total-epsilon": "the largest sum of epsilons over all releases of this data",
    "divisor": "the public number by which sums of gradients are divided, on every node the same",
    "most-releases": "the most releases with this mechanism, over all runs",
}


def init_policy(
    folder: Path,
    data: str,
    mechanism: str = "gaussian-dp",
    budget: float | None = None,
    releases: int = 1000,
    *,
    experiment: bool = False,
) -> Path:
    """Write ``policy.toml`` into a folder of the node's own, and begin its ledger; nothing there is replaced.

    Args:
        folder: made if it is not there, readable by its owner alone.
        data: what you call the data set. Releases are counted by the ledger: one policy for one data set.
        mechanism: the one that is allowed; others can be added by hand.
        budget: noise is asked for as this budget has it under the default constants; for ``gaussian-dp`` the epsilon
            of one run, 2 unless given; none for ``none``.
        releases: the most that may leave, over all runs.
        experiment: let reproducible noise leave too, and keep no ledger: for simulations.

    Returns:
        The file.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     init_policy(Path(folder) / "node", "scans", "pl-identical", 0.98).name
    'policy.toml'
    """
    budget = DEFAULT_BUDGETS.get(mechanism) if budget is None else budget
    kind = checked(mechanism, budget)
    if kind.whole_run and (not is_finite(budget) or budget <= 0):
        raise BudgetError(f"Expected budget={budget!r} to be an epsilon > 0.", "For example 2, for a whole run.")
    if not data.strip() or not data.isprintable():
        raise ConfigError(f"Expected data={data!r} to be a name.", "Name your data set: for example scans-2024.")
    if releases < 1:
        raise ConfigError(f"Expected releases={releases} to be >= 1.", "The most releases over all runs.")
    path = folder / POLICY
    if path.exists() or path.is_symlink():
        raise PolicyError(f"{path} exists: nothing was written.", "Edit it, or name another folder.")
    account = None if experiment else uuid.uuid4().hex
    text = policy_text(data, kind, budget, releases, account)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if account is not None:
        Account.create(folder / LEDGER, account)
    write_bytes(path, text.encode(), mode=0o600)
    return path


def policy_text(
    data: str,
    mechanism: Mechanism,
    budget: float | None,
    releases: int,
    account: str | None,
    limits: Mapping[str, float | str] | None = None,
) -> str:
    """The file, with comments; ``limits`` of the mechanism in place of those that the default constants make."""
    quoted = data.replace("\\", "\\\\").replace('"', '\\"')
    about = {"version": f"{VERSION}", "data": f'"{quoted}"'}
    if account is None:
        about["experiment"] = "true"
    else:
        about |= {"account": f'"{account}"', "ledger": f'"{LEDGER}"'}
    about |= {
        "most-releases": f"{releases}", "weight": "1.0" if mechanism.formal else '"examples"', "metrics": "[]",
        "verbose-errors": "false",
    }  # fmt: skip
    bounds = {key: _toml(value) for key, value in (limits or default_bounds(mechanism, budget, releases)).items()}
    judged = "the whole (epsilon, delta) of a run counts" if mechanism.whole_run else "a budget counts by its noise"
    comments = WHOLE_RUN if mechanism.whole_run else COMMENTS
    return f"""\
# What may leave this node, whatever a run asks for. What contradicts it is refused before anything is computed.
# `equipoise flower policy show` says it in plain words.
{_lines(about, ABOUT)}
# Evaluations on this node's data leave only with this table, and not beside a mechanism with a guarantee:
# [evaluation]
# metrics = ["accuracy"]
# least-examples = 100

# One table for each mechanism that is allowed; {judged}.
[mechanisms.{mechanism.name}]
{_lines(bounds, comments)}"""


def _toml(value: float | str) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _lines(values: Mapping[str, str], comments: Mapping[str, str]) -> str:
    """A line for each key, with its comment."""
    given = {key: f"{key} = {value}" for key, value in values.items()}
    width = max(len(line) for key, line in given.items() if key != "account")
    return "".join(f"{line:<{width}}  # {comments[key]}\n" for key, line in given.items())


def default_bounds(
    mechanism: Mechanism, budget: float | None, releases: int, settings: ProtectionSettings | None = None
) -> dict[str, float | str]:
    """What the default constants, or those of ``settings``, make of a budget, so that a run with these is allowed.

    >>> from equipoise import get_mechanism
    >>> default_bounds(get_mechanism("pl-identical"), 0.98, 100)
    {'least-intensity': 7.99, 'least-relative': 1.0, 'most-releases': 100}
    """
    settings = ProtectionSettings() if settings is None else settings
    if mechanism.whole_run:
        assert budget is not None
        own: dict[str, float | str] = {
            "most-epsilon": float(budget), "most-total-epsilon": float(f"{RUNS * budget:.6g}"), **DELTAS, "unit": UNIT,
            "divisor": int(settings.gaussian.divisor), "most-releases": releases,
        }  # fmt: skip
        return {key: own[key] for key in needed(mechanism)}
    protection = settings.at(mechanism, budget, round_number=1)
    scale = float(protection.scale)
    noise = _below(scale) if scale > 0 else 0.0
    epsilon = float(budget) if mechanism.formal and budget is not None else 0.0
    usual: dict[str, float | str] = {
        "least-intensity": noise, "least-scale": noise, "least-relative": 1.0, "most-gamma": float(protection.gamma),
        "most-steps": protection.steps, "most-factor": protection.factor, "most-epsilon": epsilon,
        "most-total-epsilon": float(f"{epsilon * releases:.6g}"), "divisor": settings.batch, "most-releases": releases,
    }  # fmt: skip
    return {key: usual[key] for key in needed(mechanism)}


def _below(value: float) -> float:
    """Three digits, not above ``value``."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / step) * step:.3g}")


def show_policy(path: Path) -> list[str]:
    """In plain words: what can leave, how often, with how much noise.

    Args:
        path: a policy file, or the folder that ``init_policy`` wrote it into.

    Returns:
        A sentence for each thing.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     show_policy(init_policy(Path(folder) / "node", "scans", "none", None))[2]
    'none, at most 1,000 times: updates leave UNPROTECTED.'
    """
    return list(_sentences(read_policy(path / POLICY if os.path.isdir(path) else path)))


def _sentences(policy: Policy) -> Iterator[str]:
    where = "in one run" if policy.ledger is None else "over all runs"
    yield f"Data: {policy.data}. At most {policy.most_releases:,} releases can leave under this policy, {where}."
    if policy.ledger is None:
        yield (
            "This is an experiment: reproducible noise, which protects nothing, may leave, and nothing is counted from "
            "one run to the next."
        )
    else:
        summary = verify(policy.ledger)
        if summary.account != policy.account:
            raise LedgerError(
                f"The ledger {policy.ledger.name} is of another account than the policy's.", "Name the right one."
            )
        yield f"So far {summary.total().asked:,} have left (ledger {policy.ledger.name}, verified)."
        yield from _so_far(summary)
    if policy.experiment and policy.ledger is not None:
        yield "Reproducible noise, which protects nothing, may leave."
    for name, bounds in policy.mechanisms.items():
        yield _mechanism(name, dict(bounds))
    others = [name for name, bounds in policy.mechanisms.items() if "most-epsilon" not in bounds]
    if others and len(others) < len(policy.mechanisms):
        yield f"A release by {', '.join(others)} has no guarantee: once one left, none holds for this data as a whole."
    if not policy.mechanisms:
        yield "No mechanism is allowed: nothing leaves."
    weight = "the number of examples trained on" if policy.weight is None else f"the fixed weight {policy.weight:g}"
    names = f", and the metrics {', '.join(policy.metrics)} if the run asks for them" if policy.metrics else ""
    sized = [name for name, bounds in policy.mechanisms.items() if "most-epsilon" not in bounds and not _shaping(name)]
    size = ", the size of its noise" if sized else ""
    yield f"With each release leave its mechanism and budget{size}, and {weight}{names}."
    if policy.buffers == "noised":
        yield "Buffers that were fitted here, such as running statistics, leave under the same noise if the run asks."
    if policy.evaluation is None:
        yield "No evaluation on this node's data leaves."
    else:
        told, least = ", ".join(policy.evaluation.metrics), policy.evaluation.least_examples
        yield f"Of evaluations leave {told}, from {least:,} examples or more; unprotected."
    yield "Everything else is refused before anything is computed, and the server learns that it was refused, no more."


def _so_far(summary: Summary) -> Iterator[str]:
    """What is reserved, and how often the operator let the sums begin again."""
    epsilon, delta = sums(summary.runs.values())
    if summary.runs:
        yield f"Reserved for {len(summary.runs)} run(s): epsilon {epsilon:g}, delta {delta:g} ({RELATION})."
    if summary.resets:
        yield f"The sums were reset {len(summary.resets)} time(s), last at {summary.resets[-1].at}."


def _whole_run(name: str, most: str, bounds: Mapping[str, Any]) -> str:
    """The words for a mechanism whose budget is for a whole run, with the limit that is proved of it.

    Where the sums over all runs allow less than a run does, the limit is that of the largest run that can start.
    """
    unit, epsilon, delta = bounds["unit"], bounds["most-epsilon"], bounds["most-delta"]
    of_all = bounds["most-total-epsilon"], bounds["most-total-delta"]
    said = (
        f"{name}, {most}: each run with epsilon {epsilon:g} and delta {delta:g} or less, all runs together at most "
        f"epsilon {of_all[0]:g} and delta {of_all[1]:g} ({RELATION}, unit: {unit}); sums are divided by "
        f"{bounds['divisor']:.0f}. A run is reserved as a whole before its first release, and stays reserved if it "
        "stops."
    )
    largest = min(epsilon, of_all[0]), min(delta, of_all[1])
    if largest != (epsilon, delta):
        said += (
            f" WARNING: a run with epsilon {epsilon:g} and delta {delta:g} can never start, as all runs together may "
            f"come to less; the largest that can has epsilon {largest[0]:g} and delta {largest[1]:g}."
        )
    runs = min(int(total / one * (1 + 1e-12)) for total, one in zip(of_all, largest, strict=True))
    return f"{said} {_limit(*largest, runs)}"


def _limit(epsilon: float, delta: float, runs: int) -> str:
    """What any attacker reaches at most in runs with all records in each round: the rounds play no part then."""
    from ..privacy.gaussian import noise_multiplier
    from ..privacy.guarantee import percent_up
    from ..privacy.limits import limit

    sigma = noise_multiplier(epsilon, delta, 1)
    found, of_all = (limit(1 / CANDIDATES, sigma, count) for count in (1, max(1, runs)))
    more = f" Whoever sees {runs} such runs, for which there is room: at most {percent_up(of_all)}." if runs > 1 else ""
    return (
        f"Whoever sees such a run, with all records in every round, and knows all other records picks the right one of "
        f"{CANDIDATES} equally likely candidates with at most {percent_up(found)} (blindly: "
        f"{percent_up(1 / CANDIDATES)}): proved, for any attacker.{more}"
    )


def _mechanism(name: str, bounds: dict[str, Any]) -> str:
    most = f"at most {bounds['most-releases']:,.0f} times"
    if name not in MECHANISMS:
        most += f" (no mechanism that is known here{closest(name, list(MECHANISMS))}; it counts only if an app has it)"
    if "most-delta" in bounds:
        return _whole_run(name, most, bounds)
    if "most-epsilon" in bounds:
        return (
            f"{name}, {most}: each release with epsilon {bounds['most-epsilon']:g} or less, all together at most "
            f"{bounds['most-total-epsilon']:g} ({SINGLE_RELATION}); sums are divided by {bounds['divisor']:.0f}."
        )
    shaping = _shaping(name)
    if shaping is not None:
        least = f"{shaping.scale} {bounds['least-scale']:g} or more"
        return (
            f"{name}, {most}: updates are shaped, with {least}; nothing is proved of what they tell. {shaping.caution}"
        )
    if "least-relative" not in bounds:
        return f"{name}, {most}: updates leave UNPROTECTED."
    noise = (
        f"noise of L2 norm {bounds['least-intensity']:g} or more ({_as_budget(bounds['least-intensity'])})"
        if "least-intensity" in bounds
        else f"noise of scale {bounds['least-scale']:g} or more in every coordinate"
    )
    learned = (
        f" The noise is learned on the examples, in at most {bounds['most-steps']:.0f} steps of "
        f"{bounds['most-gamma']:g}, up to {bounds['most-factor']:g} times that size: it leaks more than static noise, "
        "and with weights of the server's choosing it can be the gradient itself."
        if "most-gamma" in bounds
        else ""
    )
    return (
        f"{name}, {most}: {noise}, and at least {bounds['least-relative']:g} times that of the update that it hides (a "
        f"larger update is shortened).{learned} That is no differential privacy: nothing bounds what an attack reads "
        "out of it, and what leaks adds up over releases."
    )


def _shaping(name: str) -> Shaping | None:
    return MECHANISMS[name].shaping if name in MECHANISMS else None


def _as_budget(intensity: float) -> str:
    """
    >>> _as_budget(7.99)
    'what a PL budget of 0.98 asks for with the default constants; 0.96 to 0.995 were measured'
    """
    measure = ProtectionSettings().measure("pl-identical")
    assert measure is not None
    budget = f"{measure.leakage(intensity):.3g}"
    return f"what a PL budget of {budget} asks for with the default constants; 0.96 to 0.995 were measured"


def remedy(path: Path) -> str:
    """How a node is told of the file."""
    return (
        f"flower-supernode --node-config 'equipoise.policy=\"{path.absolute()}\"'   (or {VARIABLE}={path.absolute()})"
    )
