"""Whether a message may lead to a release: the run's terms against the node's policy, and what was released before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from ..errors import ConfigError, LimitError, is_count
from ..ledger.account import Account
from ..mechanism.protection import ProtectionSettings
from .policy import Policy, policy_of
from .run_config import Terms, read_terms

RECORD = "equipoise"
"""Key of the config record that says how a reply was protected, and of what a node keeps of a run."""
NUMBERS = ("lower", "upper", "intensity")
"""What a reply says of its release. Utility loss and clipping stay with the client."""


@dataclass(frozen=True)
class Admission:
    """One release that the policy allows, as far as it can be told without counting."""

    policy: Policy
    terms: Terms
    client: int
    round_number: int
    budget: float | None
    settings: ProtectionSettings

    @property
    def bounds(self) -> Mapping[str, float]:
        return self.policy.mechanisms[self.terms.mechanism.name]

    @property
    def epsilon(self) -> float:
        """Of one release, where it has one; else 0."""
        return float(self.budget) if self.terms.mechanism.formal and self.budget is not None else 0.0

    def entry(self, kind: str, **more: Any) -> dict[str, Any]:
        """A line of the ledger."""
        mechanism = self.terms.mechanism
        about = {"round": self.round_number, "mechanism": mechanism.name, "norm": mechanism.norm}
        return {"kind": kind, "federation": 0, **about, "budget": self.budget, **more}


def admitted(msg: Message, context: Context, policy: Policy | None = None) -> Admission:
    """What the message asks for, if the node's policy, or the given one, allows it."""
    policy, terms = policy or policy_of(context.node_config), read_terms(context.run_config)
    client, round_number = _whole(context.node_config.get("partition-id", 0)), _round(msg)
    budget, mechanism, settings = terms.budget_of(round_number, client), terms.mechanism, terms.settings
    if mechanism.formal and mechanism.name in policy.mechanisms:
        settings = replace(settings, batch=int(policy.mechanisms[mechanism.name]["divisor"]))
    result = Admission(policy, terms, client, round_number, budget, settings)
    policy.permit(terms, settings.at(mechanism, budget, round_number, client), result.epsilon or None)
    return result


class Counted:
    """The releases of this node, while one is being made: nobody else counts meanwhile."""

    def __init__(self, context: Context, account: Account | None):
        self.context, self.account = context, account
        self.in_this_run, self.spent, _ = _kept(context)

    def permit(self, admission: Admission) -> None:
        """Raise unless one more release is within the limits of the run and of the policy."""
        limit, mechanism, here = admission.terms.release_limit, admission.terms.mechanism, self.in_this_run
        if limit is not None and here >= limit:
            raise LimitError(
                f"This client has released {here} times in this run; the limit is {limit}.",
                "Budgets of single releases do not add up to a budget of all; raise the limit if you accept more.",
            )
        counts = (here, here, self.spent)
        if self.account is not None:
            counts = (self.account.releases, self.account.releases_of(mechanism.name), self.account.epsilon())
        admission.policy.permit_releases(mechanism, *counts, admission.epsilon)

    def charge(self, admission: Admission) -> None:
        """Count a release that is asked for, before anything is computed: that it then fails would tell of the data."""
        self.permit(admission)
        if self.account is not None:
            self.account.append(admission.entry("asked", clients=[str(admission.client)]))
        self.in_this_run, self.spent = self.in_this_run + 1, self.spent + admission.epsilon
        self._keep()

    def note(self, admission: Admission, record: Mapping[str, Any]) -> None:
        """Write down what was made, before it can leave."""
        if self.account is not None:
            formal = admission.terms.mechanism.formal
            numbers = {name: None if formal else record[name] for name in NUMBERS}  # a guarantee covers no norm
            release = {"client": str(admission.client), **numbers, "accepted": True}
            self.account.append(admission.entry("answered", releases=[release]))
            self._keep()

    def _keep(self) -> None:
        seen: dict[str, Any] = {} if self.account is None else dict(self.account.seen)
        self.context.state[RECORD] = ConfigRecord({"releases": self.in_this_run, "epsilon": self.spent, **seen})


@contextmanager
def counting(admission: Admission, context: Context) -> Iterator[Counted]:
    """The node's count of its releases, locked: two runs may be under way on one node."""
    policy = admission.policy
    if policy.ledger is None or policy.account is None:
        yield Counted(context, None)
        return
    with Account.open(policy.ledger, policy.account, _kept(context)[2]) as account:
        yield Counted(context, account)


def _kept(context: Context) -> tuple[int, float, dict[str, Any] | None]:
    """What Flower keeps of this node for the time of the run: releases, their epsilons, and where the ledger was."""
    kept: Mapping[str, Any] = context.state.config_records.get(RECORD) or {}
    seen = {name: kept[name] for name in ("entries", "head") if name in kept}
    return _whole(kept.get("releases", 0)), float(kept.get("epsilon", 0.0)), seen or None


def _round(msg: Message) -> int:
    for record in msg.content.config_records.values():
        if "server-round" in record:
            return _whole(record["server-round"])
    raise ConfigError("The message names no round.", "Send it as 'server-round' in a config record, as FedAvg does.")


def _whole(value: Any) -> int:
    if not is_count(value):
        raise ConfigError(
            f"Expected a whole number >= 0 for client, round or releases, got {value!r}.", "Check the node config."
        )
    return value
