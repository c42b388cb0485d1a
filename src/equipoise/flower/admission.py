"""Whether a message may lead to a release: the run's terms against the node's policy, and what was released before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from ..errors import ConfigError, LimitError, PolicyError, is_count
from ..ledger.account import Account
from ..ledger.reservation import Reservation
from ..mechanism.protection import ProtectionSettings
from .policy import Bounds, Policy, policy_of
from .run_config import Terms, read_terms
from .whole_run import asked_for, check_same, priced, release_settings

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
    _: KW_ONLY
    reservation: Reservation | None = None  # of the run, where the budget is for all of it
    place: int = 0  # which release of its run it is, by the node's own count

    @property
    def bounds(self) -> Bounds:
        return self.policy.mechanisms[self.terms.mechanism.name]

    @property
    def epsilon(self) -> float:
        """Of one release, where it has one; else 0."""
        mechanism = self.terms.mechanism
        single = mechanism.formal and not mechanism.whole_run
        return float(self.budget) if single and self.budget is not None else 0.0

    @property
    def noise_round(self) -> int:
        """The round whose noise the release gets.

        Where noise changes over a run that is reserved as a whole, that is the node's own count: a server that asks
        again and again for the round with the least noise gets the next one's.
        """
        return self.round_number if self.reservation is None else self.place

    def entry(self, kind: str, **more: Any) -> dict[str, Any]:
        """A line of the ledger."""
        mechanism = self.terms.mechanism
        run = {} if self.reservation is None else {"run": self.reservation.run}
        about = {"round": self.round_number, "mechanism": mechanism.name, "norm": mechanism.norm}
        return {"kind": kind, **run, "federation": 0, **about, "budget": self.budget, **more}


def admitted(msg: Message, context: Context, policy: Policy | None = None) -> Admission:
    """What the message asks for, if the node's policy, or the given one, allows it."""
    policy, terms = policy or policy_of(context.node_config), read_terms(context.run_config)
    client, round_number = _whole(context.node_config.get("partition-id", 0)), _round(msg)
    budget, mechanism, settings = terms.budget_of(round_number, client), terms.mechanism, terms.settings
    if mechanism.whole_run:
        policy.permit(terms, None, budget)
        assert budget is not None
        run = asked_for(mechanism.name, settings.gaussian, policy.bounds_of(mechanism), budget, str(context.run_id))
        return Admission(policy, terms, client, round_number, budget, settings, reservation=run)
    if mechanism.formal and mechanism.name in policy.mechanisms:
        settings = replace(settings, batch=int(policy.mechanisms[mechanism.name]["divisor"]))
    result = Admission(policy, terms, client, round_number, budget, settings)
    policy.permit(terms, settings.at(mechanism, budget, round_number, client), result.epsilon or None)
    return result


class Counted:
    """The releases of this node, while one is being made: nobody else counts meanwhile."""

    def __init__(self, context: Context, account: Account | None):
        self.context, self.account = context, account
        kept = _kept(context)
        self.in_this_run, self.spent, self._own = kept.releases, kept.epsilon, kept.reservation

    def permit(self, admission: Admission) -> None:
        """Raise unless one more release is within the limits of the run and of the policy."""
        limit, mechanism, here = admission.terms.release_limit, admission.terms.mechanism, self.in_this_run
        if limit is not None and here >= limit:
            raise LimitError(
                f"This client has released {here} times in this run; the limit is {limit}.",
                "Budgets of single releases do not add up to a budget of all; raise the limit if you accept more.",
            )
        self._permit_releases(admission, 1)
        if admission.reservation is not None:
            self._permit_in_run(admission, admission.reservation)
            return
        if mechanism.formal:
            admission.policy.permit_spending(mechanism, self._spent(), (admission.epsilon, 0.0))
            if self.account is not None and self.account.units() - {"record"}:
                raise PolicyError(
                    f"Guarantees for groups are reserved on these data; {mechanism.name!r} has one for records alone.",
                    "Use a mechanism whose unit is the group.",
                )

    def _permit_in_run(self, admission: Admission, asked: Reservation) -> None:
        """Raise unless the run may be reserved, or keeps to what is."""
        reserved = self.reserved(asked.run)
        if reserved is None:
            self._permit_releases(admission, asked.rounds)  # a few words must not ask for a billion rounds
            units = set() if self.account is None else self.account.units()
            admission.policy.permit_run(asked, self._spent(), units)
            return
        check_same(reserved, asked)
        if self.used(asked.run) >= reserved.rounds:
            raise LimitError(
                f"All {reserved.rounds} rounds that are reserved for this run were used on this node.",
                "A message that is repeated counts as another round. Start another run for more.",
            )

    def _permit_releases(self, admission: Admission, more: int) -> None:
        mechanism, counts = admission.terms.mechanism, (self.in_this_run, self.in_this_run)
        if self.account is not None:
            counts = (self.account.releases, self.account.releases_of(mechanism.name))
        admission.policy.permit_releases(mechanism, *counts, more)

    def _spent(self) -> tuple[float, float]:
        """Epsilon and delta of all releases and runs so far; without a ledger, of this run."""
        return (self.spent, 0.0) if self.account is None else self.account.total()

    def reserved(self, run: str) -> Reservation | None:
        """What is reserved for the run: in the ledger, or without one, in Flower's state of the run."""
        return self._own if self.account is None else self.account.reservation(run)

    def used(self, run: str) -> int:
        """Releases of the run that were asked for."""
        return self.in_this_run if self.account is None else self.account.used(run)

    def charge(self, admission: Admission) -> Admission:
        """Count a release that is asked for, before anything is computed: that it then fails would tell of the data.

        The first release of a run that is reserved as a whole reserves it. Returns the admission with the noise that
        is reserved, and its place in the run.
        """
        self.permit(admission)
        result = admission if admission.reservation is None else self._reserved(admission, admission.reservation)
        if self.account is not None:
            self.account.append(result.entry("asked", clients=[str(result.client)]))
        self.in_this_run, self.spent = self.in_this_run + 1, self.spent + result.epsilon
        self._keep()
        return result

    def _reserved(self, admission: Admission, asked: Reservation) -> Admission:
        """The admission with what is reserved for its run; what is not yet, is now, and on the disk."""
        reserved = self.reserved(asked.run)
        if reserved is None:
            reserved = self._own = priced(asked)
            if self.account is not None:
                self.account.reserve(reserved)
        place = self.used(asked.run) + 1
        settings = release_settings(admission.settings, reserved)
        return replace(admission, settings=settings, reservation=reserved, place=place)

    def note(self, admission: Admission, record: Mapping[str, Any]) -> None:
        """Write down what was made, before it can leave."""
        if self.account is not None:
            formal = admission.terms.mechanism.formal
            numbers = {name: None if formal else record[name] for name in NUMBERS}  # a guarantee covers no norm
            release = {"client": str(admission.client), **numbers, "accepted": True}
            self.account.append(admission.entry("answered", releases=[release]))
            self._keep()

    def _keep(self) -> None:
        kept: dict[str, Any] = {"releases": self.in_this_run, "epsilon": self.spent}
        if self.account is not None:
            kept |= self.account.seen
        elif self._own is not None:
            kept["reserved"] = json.dumps(self._own.entry())
        self.context.state[RECORD] = ConfigRecord(kept)


@dataclass(frozen=True)
class _Kept:
    """What Flower keeps of this node for the time of the run; ``seen``: where the ledger was."""

    releases: int
    epsilon: float
    seen: dict[str, Any] | None
    reservation: Reservation | None


@contextmanager
def counting(admission: Admission, context: Context) -> Iterator[Counted]:
    """The node's count of its releases, locked: two runs may be under way on one node."""
    policy = admission.policy
    if policy.ledger is None or policy.account is None:
        yield Counted(context, None)
        return
    with Account.open(policy.ledger, policy.account, _kept(context).seen) as account:
        yield Counted(context, account)


def _kept(context: Context) -> _Kept:
    kept: Mapping[str, Any] = context.state.config_records.get(RECORD) or {}
    seen = {name: kept[name] for name in ("entries", "head") if name in kept}
    own = Reservation.of(json.loads(kept["reserved"])) if "reserved" in kept else None
    return _Kept(_whole(kept.get("releases", 0)), float(kept.get("epsilon", 0.0)), seen or None, own)


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
