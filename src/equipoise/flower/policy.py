"""What the operator of a node lets leave it: one TOML file, whatever the run config says.

The node config (``flower-supernode --node-config 'equipoise.policy="/etc/equipoise/policy.toml"'``) or the environment
variable ``EQUIPOISE_POLICY`` names the file. Without one nothing leaves. ``equipoise flower policy init`` writes one.

A budget means what the constants of the run config make of it, so a policy does not speak of budgets. It bounds what
follows from them: the noise itself, and that beside the update. For each mechanism that it allows:

=====================  ==============================================================================================
least-intensity        PL: the least L2 norm of the distortion of a release
least-scale            LS, GS: the least scale of the noise, in every coordinate; of pruning the ratio
least-relative         the least L2 norm of the noise over that of the update; a larger update is shortened
most-gamma             learned: the largest step size of the learner, whose gradients are of the private batch
most-steps             learned: the most steps of the learner
most-factor            learned: the largest ratio of the upper to the lower bound
most-epsilon           laplace-dp: the largest epsilon of one release; gaussian-dp: of one run
most-delta             gaussian-dp: the largest delta of one run
most-total-epsilon     both: the largest sum of epsilons over all runs and releases of the data
most-total-delta       gaussian-dp: the largest sum of deltas over all runs on the data
unit                   gaussian-dp: whose presence is hidden, a "record" or a "group" of records
divisor                both: the public number that sums of gradients are divided by
most-releases          the most releases with this mechanism, over all runs
=====================  ==============================================================================================
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PolicyError, closest, is_count, is_finite
from ..ledger.reservation import UNITS, Reservation
from ..mechanism.protection import Protection
from ..mechanism.registry import MECHANISMS, Mechanism
from .run_config import PREFIX, Terms

VERSION = 1
VARIABLE = "EQUIPOISE_POLICY"
"""Of the environment, where the node config names no policy: simulated nodes have none of their own."""
MOST_BYTES = 1 << 20
EXAMPLES = "examples"
SHARED = ("least-relative", "most-releases")
COUNTS = ("most-steps", "most-releases", "divisor")
DELTAS = ("most-delta", "most-total-delta")
UNKNOWN = ("least-intensity", "least-scale", "most-gamma", "most-steps", "most-factor", *SHARED)
"""What may be said of a mechanism that is not installed here."""


def needed(mechanism: Mechanism) -> tuple[str, ...]:
    """What a policy must say of a mechanism: all that decides how much its release tells.

    >>> needed(MECHANISMS["pl-identical"])
    ('least-intensity', 'least-relative', 'most-releases')
    """
    if not mechanism.distorts:
        return ("most-releases",)
    if mechanism.whole_run:
        return (
            "most-epsilon", "most-delta", "most-total-epsilon", "most-total-delta", "unit", "divisor", "most-releases",
        )  # fmt: skip
    if mechanism.formal:
        return ("most-epsilon", "most-total-epsilon", "divisor", "most-releases")
    noise = "least-intensity" if mechanism.on_sphere else "least-scale"
    learner = ("most-gamma", "most-steps", "most-factor") if mechanism.learns else ()
    return (noise, *learner, *(SHARED if mechanism.shaping is None else ("most-releases",)))


Bounds = Mapping[str, Any]
"""By the keys of ``needed``: numbers, and the name of a unit."""


@dataclass(frozen=True)
class Evaluation:
    """Which metrics of an evaluation may leave, and from how many examples at least."""

    metrics: tuple[str, ...]
    least_examples: int


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One policy file. ``mechanisms`` has the bounds of each by the keys of ``needed``."""

    path: Path
    data: str
    mechanisms: Mapping[str, Bounds]
    most_releases: int
    account: str | None = None
    ledger: Path | None = None
    weight: float | None = None  # fixed; None: the number of examples
    metrics: tuple[str, ...] = ()
    evaluation: Evaluation | None = None
    experiment: bool = False
    verbose_errors: bool = False
    buffers: str = "received"  # "noised": a run may ask for fitted ones, under noise

    def bounds_of(self, mechanism: Mechanism) -> Bounds:
        """What the policy says of a mechanism; raise where it says nothing, or what fits another."""
        bounds = self.mechanisms.get(mechanism.name)
        if bounds is None:
            odd = [name for name in self.mechanisms if name not in MECHANISMS]
            hint = f" ({odd[0]!r} is no mechanism that is known here.)" if odd else ""
            raise PolicyError(
                f"The policy of this node does not allow the mechanism {mechanism.name!r}. It allows: "
                f"{', '.join(self.mechanisms) or 'nothing'}.{hint}",
                "Ask the coordinator for one of these, or allow it knowingly: a table [mechanisms.NAME].",
            )
        if set(bounds) != set(needed(mechanism)):
            raise PolicyError(
                f"The policy's bounds of {mechanism.name!r} are of another mechanism with this name.",
                "Write the keys that this one needs: " + ", ".join(needed(mechanism)) + ".",
            )
        return bounds

    def permit(self, terms: Terms, protection: Protection | None, epsilon: float | None) -> None:
        """Raise where the terms of a run contradict the policy: before anything is computed.

        ``protection`` is what the run's budget and constants make of one release of this client; None where the budget
        is for a whole run. ``epsilon`` is the guarantee of one release or of the run, if there is one.
        """
        mechanism = terms.mechanism
        asked: dict[str, float | None] = {"most-epsilon": epsilon}
        if mechanism.whole_run:
            asked["most-delta"] = terms.settings.gaussian.delta
        if protection is not None:
            asked |= _of_one_release(protection)
        for key, bound in self.bounds_of(mechanism).items():
            value = asked.get(key)
            if value is not None and not (value >= bound if key.startswith("least-") else value <= bound):
                raise PolicyError(
                    f"The policy of this node has {key} = {bound:g} for {mechanism.name!r}; the run asks for "
                    f"{value:.6g}.",
                    "Ask the coordinator to change the run config, or loosen the policy knowingly.",
                )
        if protection is not None and mechanism.learns:
            _permit_learner(mechanism, protection)
        self._permit_numbers(terms)

    def _permit_numbers(self, terms: Terms) -> None:
        """What is sent beside trained parameters: buffers, metrics, and the weight."""
        if terms.settings.buffers == "noised" != self.buffers:
            raise PolicyError(
                "The policy of this node keeps buffers, such as running statistics, as received; the run wants them.",
                'Take equipoise.buffers out of the run config, or set buffers = "noised" in the policy knowingly.',
            )
        other = [name for name in terms.metrics if name not in self.metrics]
        if other:
            raise PolicyError(
                f"The policy of this node does not let the metric {other[0]!r} leave.",
                "Take it out of equipoise.metrics, or name it in the policy's metrics.",
            )
        if terms.mechanism.formal and self.weight is None:
            raise PolicyError(
                f"With {terms.mechanism.name!r} the weight of a reply must not depend on the data: the policy has "
                'weight = "examples".',
                "Set a number there, the same on all nodes.",
            )

    def permit_releases(self, mechanism: Mechanism, ever: int, with_it: int, more: int = 1) -> None:
        """Raise unless ``more`` of them, after ``ever`` in all and ``with_it`` by this mechanism, are within limits."""
        bounds = self.mechanisms[mechanism.name]
        limits = ((self.most_releases, ever, "in all"), (bounds["most-releases"], with_it, f"by {mechanism.name}"))
        for most, count, what in limits:
            if count + more > most:
                raise PolicyError(
                    f"This node has released {count} times {what}; its policy has most-releases = {most:g}"
                    f"{'' if more == 1 else f', and the run has {more} rounds'}.",
                    "Budgets of single releases do not add up to a budget of all; raise it if you accept more.",
                )

    def permit_spending(self, mechanism: Mechanism, spent: tuple[float, float], more: tuple[float, float]) -> None:
        """Raise unless this much more, each an (epsilon, delta), is within what all runs may spend together."""
        bounds = self.mechanisms[mechanism.name]
        for name, had, new in zip(("epsilon", "delta"), spent, more, strict=True):
            most = bounds.get(f"most-total-{name}")
            if most is not None and new > 0 and had + new > most * (1 + 1e-12):
                raise PolicyError(
                    f"On {self.data!r} {name} {had:g} is spent or reserved; {new:g} more would pass "
                    f"most-total-{name} = {most:g}.",
                    "Nothing more can leave under this policy. Its operator may raise the limit knowingly.",
                )

    def permit_run(self, asked: Reservation, spent: tuple[float, float], units: set[str]) -> None:
        """Raise unless a whole run is within what all runs may spend together, in guarantees of one unit."""
        self.permit_spending(MECHANISMS[asked.mechanism], spent, (asked.epsilon, asked.delta))
        other = sorted(units - {asked.unit})
        if other:
            raise PolicyError(
                f"On {self.data!r} guarantees of the unit {other[0]!r} are reserved; the policy now has unit = "
                f"{asked.unit!r}, and these do not add up.",
                "Put the unit back, or let the operator reset the account knowingly.",
            )


def _of_one_release(protection: Protection) -> dict[str, float | None]:
    """What a policy bounds of one release, by its keys."""
    return {
        "least-intensity": float(protection.scale),
        "least-scale": float(protection.scale),
        "most-gamma": float(protection.gamma),
        "most-steps": protection.steps,
        "most-factor": protection.factor,
    }


def _permit_learner(mechanism: Mechanism, protection: Protection) -> None:
    if protection.steps < 1 or not float(protection.gamma) > 0 or not protection.factor > 1:
        raise PolicyError(
            f"With the steps, gamma or factor of the run {mechanism.name!r} learns nothing: its noise has an exact "
            "norm, which verifies guesses.",
            "Set steps >= 1, gamma > 0 and factor > 1, or ask for the static mechanism.",
        )


# -- reading -------------------------------------------------------------------------------------------------------


def policy_of(node_config: Mapping[str, Any]) -> Policy:
    """The policy that the node config or the environment names; without one nothing leaves."""
    other = [key for key in node_config if key.startswith(PREFIX) and key != f"{PREFIX}policy"]
    if other:
        raise PolicyError(
            f"Unknown key {other[0]!r} in the node config.",
            f"{PREFIX}policy names the policy file; all else is in it: `equipoise flower policy init` writes one.",
        )
    named = node_config.get(f"{PREFIX}policy", os.environ.get(VARIABLE))
    if not isinstance(named, str) or not named:
        raise PolicyError(
            "This node has no policy: nothing leaves it.",
            f"Write one with `equipoise flower policy init`, and name it in the node config ({PREFIX}policy) or in "
            f"{VARIABLE}.",
        )
    path = Path(named)
    if not path.is_absolute():
        raise PolicyError(
            f"The policy {named!r} is named by a path that is not absolute: an app that changes its folder, to its own "
            "say, would choose the policy.",
            "Name it from the root on: for example /etc/equipoise/policy.toml.",
        )
    return read_policy(path)


def read_policy(path: Path) -> Policy:
    """A policy file, every key checked; unknown ones are errors."""
    try:
        if not path.is_file():
            raise PolicyError(f"There is no policy at {path}.", "Correct the path, or write one: policy init.")
        with path.open("rb") as file:
            about, content = os.fstat(file.fileno()), file.read(MOST_BYTES + 1)
        if about.st_uid not in (0, os.geteuid()):
            raise PolicyError(
                f"The policy {path} belongs to another user.",
                "Let it belong to who runs the node, or to root.",
            )
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PolicyError(f"The policy {path} can be written by others than its owner.", f"chmod go-w {path}")
        if len(content) > MOST_BYTES:
            raise PolicyError(f"The policy {path} is larger than 1 MiB.", "Name a policy file.")
        folder = path.parent.stat().st_mode
        if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
            raise PolicyError(f"Anybody can replace the policy {path}.", f"chmod o-w {path.parent}")
    except OSError as error:
        raise PolicyError(
            f"Cannot read the policy {path}: {error.strerror}.", "Let it belong to the user that runs the node."
        ) from error
    try:
        given = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"The policy {path} is not TOML: {error}.", "Mend that line.") from error
    return _Reader(given, path).policy()


class _Reader:
    """One file's content, taken key by key."""

    def __init__(self, given: dict[str, Any], path: Path):
        self.given, self.path = given, path

    def policy(self) -> Policy:
        known = (
            "version", "data", "account", "ledger", "experiment", "weight", "metrics", "most-releases",
            "verbose-errors", "buffers", "evaluation", "mechanisms",
        )  # fmt: skip
        self._known(self.given, known, "")
        if self.given.get("version") != VERSION:
            raise self._wrong("version", self.given.get("version"), f"{VERSION}", f"Set version = {VERSION}.")
        experiment = self._flag("experiment")
        mechanisms, evaluation = self._table("mechanisms"), self._evaluation()
        formal = [name for name in mechanisms if name in MECHANISMS and MECHANISMS[name].formal]
        if evaluation is not None and formal:
            raise PolicyError(
                f"The policy {self.path} allows {formal[0]!r} and evaluations: its guarantee does not cover them.",
                "Take [evaluation] out, or the mechanism.",
            )
        account, ledger = self._ledger(experiment)
        return Policy(
            path=self.path, data=self._word("data"), account=account, ledger=ledger, experiment=experiment,
            mechanisms={name: self._bounds(name, bounds) for name, bounds in mechanisms.items()},
            most_releases=self._count("most-releases", self.given.get("most-releases")), weight=self._weight(),
            metrics=self._names("metrics", self.given.get("metrics", [])), evaluation=evaluation,
            verbose_errors=self._flag("verbose-errors"), buffers=self._buffers(),
        )  # fmt: skip

    def _ledger(self, experiment: bool) -> tuple[str | None, Path | None]:
        """Only what is an experiment can do without one."""
        if experiment and "ledger" not in self.given:
            return None, None
        return self._word("account"), self.path.parent / self._word("ledger")

    def _bounds(self, name: str, given: Any) -> Bounds:
        where, kind = f"mechanisms.{name}", MECHANISMS.get(name)
        if not isinstance(given, dict):
            raise self._wrong(where, given, "a table", f"Write [{where}].")
        known = needed(kind) if kind is not None else UNKNOWN  # an app may register it; what it is decides then
        self._known(given, known, f"{where}.")
        missing = [key for key in (known if kind is not None else SHARED) if key not in given]
        if missing:
            raise PolicyError(
                f"The policy {self.path} lacks {where}.{missing[0]}.",
                "A policy says it, or the run config would decide: `equipoise flower policy init` writes all of them.",
            )
        for key, value in given.items():
            if key in COUNTS:
                self._count(f"{where}.{key}", value)
            elif key == "unit":
                if value not in UNITS:
                    raise self._wrong(f"{where}.{key}", value, f"one of {', '.join(UNITS)}", 'For example "record".')
            elif key in DELTAS and is_finite(value) and value >= 1:
                raise self._wrong(f"{where}.{key}", value, "below 1", "For example 1e-5.")
            elif not is_finite(value) or not value > 0:
                raise self._wrong(f"{where}.{key}", value, "a finite number > 0", "For example 8.0.")
        return dict(given)

    def _buffers(self) -> str:
        value = self.given.get("buffers", "received")
        if value not in ("received", "noised"):
            raise self._wrong("buffers", value, '"received" or "noised"', "Leave it out for received.")
        return str(value)

    def _weight(self) -> float | None:
        value = self.given.get("weight", EXAMPLES)
        if value == EXAMPLES:
            return None
        if not is_finite(value) or not value > 0:
            raise self._wrong("weight", value, f'"{EXAMPLES}" or a number > 0', "For example weight = 1.")
        return float(value)

    def _evaluation(self) -> Evaluation | None:
        if "evaluation" not in self.given:
            return None
        given = self._table("evaluation")
        self._known(given, ("metrics", "least-examples"), "evaluation.")
        least = self._count("evaluation.least-examples", given.get("least-examples"))
        return Evaluation(self._names("evaluation.metrics", given.get("metrics")), least)

    def _known(self, given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in given:
            if key not in known:
                raise PolicyError(
                    f"Unknown key {where + key!r} in the policy {self.path}.{closest(key, list(known))}",
                    f"Known: {', '.join(known)}.",
                )

    def _wrong(self, key: str, value: Any, what: str, remedy: str) -> PolicyError:
        if value is None:
            return PolicyError(f"The policy {self.path} lacks {key}.", remedy)
        return PolicyError(f"Expected {key} = {value!r} in the policy {self.path} to be {what}.", remedy)

    def _table(self, key: str) -> dict[str, Any]:
        value = self.given.get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "a table", "`equipoise flower policy init` writes one.")
        return value

    def _flag(self, key: str) -> bool:
        value = self.given.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false", "Leave it out for false.")
        return value

    def _word(self, key: str) -> str:
        value = self.given.get(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, value, "a word", "`equipoise flower policy init` writes one.")
        return value

    def _count(self, key: str, value: Any) -> int:
        if not is_count(value) or value < 1:
            raise self._wrong(key, value, "a whole number >= 1", "For example 100.")
        return value

    def _names(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(name, str) and 0 < len(name) <= 40 for name in value):
            raise self._wrong(key, value, "a list of names", 'For example ["accuracy"].')
        return tuple(value)
