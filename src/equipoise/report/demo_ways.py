"""What came of each way to train that ``equipoise demo`` shows, in words, and what to take away from all of them.

No figure stands here: sentences follow from what was measured, whichever way it comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..auditing.cells import OWN
from ..auditing.limit_comparison import IDENTIFICATION
from ..auditing.limit_words import rate
from ..auditing.results import candidates_of
from ..auditing.summary import interval_of, percent
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..mechanism.registry import get_mechanism
from ..mechanism.schedule import defence_label
from ..privacy.guarantee import guarantee, percent_up

PAGE = "docs/frontier.md"
"""Where results are."""
NUMBER_WORDS = {2: "two", 3: "three", 4: "four"}
BATCH = "knows the labels of a batch of records, not the records, and looks for each among {} of its class"
PROOF = "knows every other record of the client, and looks for one among {}: the game of the proof"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train: what it costs, what an attack found in its first release, and what is proved."""

    mechanism: str
    budget: float | None
    model: str
    rounds: int
    gradients: int  # of one record each, by one client over the whole run
    accuracy: float
    attack: str  # the strongest
    game: str
    candidates: int
    identified: float
    low: float | None  # of a 95 % interval
    high: float | None
    control_failed: bool  # the attack does not work without noise either
    above: bool = False  # what was found contradicts the proof
    epsilon: float | None = None
    delta: float | None = None
    limit: float | None = None  # proved, for any attacker who sees the whole run

    @property
    def label(self) -> str:
        return defence_label(self.mechanism, self.budget)

    @property
    def protected(self) -> bool:
        return get_mechanism(self.mechanism).distorts

    @property
    def noise(self) -> str:
        """What kind of noise an attack looks behind."""
        return "the learned noise" if get_mechanism(self.mechanism).learns else "the static noise"

    @property
    def found(self) -> str:
        """What was found, marked where the attack fails without noise too."""
        return rate(self.identified) + (" *" if self.control_failed else "")

    @property
    def interval(self) -> str:
        if self.low is None or self.high is None:
            return "-"
        return f"{rate(self.low).removesuffix(' %')} to {rate(self.high)}"

    @property
    def proved(self) -> str:
        """What is proved that no attacker exceeds over the whole run, with its epsilon, relation and unit."""
        if self.limit is None:
            return "nothing"
        promised = f"epsilon {self.epsilon:g} at delta {self.delta:g}, add/remove of one record"
        most = percent_up(self.limit)
        return f"any attacker picks the right one of {self.candidates} in at most {most} of cases ({promised})"

    def words(self, records: int) -> str:
        """What it is, in a sentence; ``records`` of a client."""
        known = get_mechanism(self.mechanism)
        if known.whole_run:
            what = f"noise for an epsilon of the whole run, on fixed features ({self.model})"
            return f"{self.label}: {what}; {self.rounds} rounds of all {records:,} records of a client"
        what = "nothing is added to what is sent"
        if known.learns:
            what = "the paper's method: noise learned on the private batch, so that it does less harm"
        elif known.distorts:
            what = "static noise of the same budget, drawn without looking at data"
        return f"{self.label}: {what}; {self.model}, {self.rounds:,} rounds of small batches"


def gradients_of(settings: Settings, federation: Federation, records: int) -> int:
    """Gradients of one record that a client with so many ``records`` computes over a whole run, as expected.

    >>> from equipoise.engine.settings import Settings
    >>> gradients_of(Settings.flat(rounds=10), Federation("mnist", "none"), 1000)
    40
    """
    own, mechanism = settings.for_run().protection, get_mechanism(federation.mechanism)
    if mechanism.whole_run:
        return round(settings.training.rounds * own.gaussian.sampling_rate * records)
    steps = own.local_steps + (own.steps if mechanism.learns else 0)
    return settings.training.rounds * own.batch * steps


def paper_ways(
    settings: Settings, results: Sequence[Mapping[str, Any]], audit: Mapping[str, Any], records: int
) -> list[Way]:
    """The federations of the paper's sweep, each with the attack that identified the most in its first release."""
    found = []
    for row in results:
        mine = [
            one for one in audit["attacks"]
            if one["role"] == OWN and one.get("control") is None and one.get(IDENTIFICATION) is not None
            and (one["mechanism"], one["budget"]) == (row["mechanism"], row["budget"])
        ]  # fmt: skip
        best = max(mine, key=lambda one: (not one.get("control_failed"), one[IDENTIFICATION]))
        low, high = interval_of(best, IDENTIFICATION) or (None, None)
        found.append(
            Way(
                **_trained(settings, row, records), attack=best["attack"], game=BATCH, candidates=candidates_of(best),
                identified=best[IDENTIFICATION], low=low, high=high, control_failed=bool(best.get("control_failed")),
            )
        )  # fmt: skip
    return found


def recommended_way(settings: Settings, row: Mapping[str, Any], audit: Mapping[str, Any], records: int) -> Way:
    """The run with a proof: what the attacker of the proof found in its first release, and the limit of all of them."""
    (played,) = [one for one in audit["limits"] if one["measure"] == IDENTIFICATION]
    own = settings.for_run().protection.gaussian
    proved = guarantee(
        rounds=settings.training.rounds, epsilon=row["budget"], delta=own.delta, sampling_rate=own.sampling_rate,
        candidates=played["candidates"], schedule=own.noise(),
    )  # fmt: skip
    return Way(
        **_trained(settings, row, records), attack=played["attack"], game=PROOF, candidates=played["candidates"],
        identified=played["measured"], low=played["low"], high=played["high"],
        control_failed=bool(played["control_failed"]), above=bool(played.get("above")), epsilon=proved.epsilon,
        delta=proved.delta, limit=proved.identification.run,
    )  # fmt: skip


def _trained(settings: Settings, row: Mapping[str, Any], records: int) -> dict[str, Any]:
    federation = Federation(row["dataset"], row["mechanism"], row["budget"], row["seed"])
    return {
        "mechanism": row["mechanism"], "budget": row["budget"], "model": settings.training.model,
        "rounds": settings.training.rounds, "gradients": gradients_of(settings, federation, records),
        "accuracy": row["accuracy"],
    }  # fmt: skip


def attackers(ways: Sequence[Way]) -> str:
    """Who attacked which of them, and with what knowledge."""
    games: dict[str, list[Way]] = {}
    for way in ways:
        games.setdefault(way.game.format(way.candidates), []).append(way)
    said = []
    for game, some in games.items():
        names, used = ", ".join(way.mechanism for way in some), ", ".join(dict.fromkeys(way.attack for way in some))
        said.append(f"from {names} the attacker ({used}) {game}")
    return "; ".join(said)


# -- what to take away -------------------------------------------------------------------------------------------------


def takeaway(ways: Sequence[Way]) -> str:
    """The sentence that a user should keep, as it follows from what was measured here."""
    protected = [way for way in ways if way.protected]
    (proved,) = [way for way in protected if way.limit is not None]
    if proved.above:
        return (
            f"Take away: rely on nothing here. What was found behind {proved.mechanism} is above its proved limit, so "
            "this code may not do what the proof assumes."
        )
    rest = [way for way in protected if way is not proved]
    first = f"{_ranked(proved, rest)} with a proof"
    most = percent_up(proved.limit or 1.0)
    limit = f"nobody picks the right record of {proved.candidates} with a probability of more than {most}"
    return f"Take away: {first}: {limit}{_found(proved, rest)}"


def _ranked(proved: Way, rest: Sequence[Way]) -> str:
    """How accurate the one with a proof was among the protected."""
    name = f"{proved.mechanism} on fixed features"
    best = max(rest, key=lambda way: way.accuracy)
    count = NUMBER_WORDS.get(len(rest) + 1, str(len(rest) + 1))
    mine, other = (f"{100 * way.accuracy:.1f} %" for way in (proved, best))
    if mine == other:
        return f"{name} was as accurate here as {best.mechanism} ({mine}) and is the only one"
    if proved.accuracy > best.accuracy:
        return f"{name} was the most accurate of the {count} protected ways here ({mine}) and the only one"
    return (
        f"{best.mechanism} was the most accurate of the {count} protected ways here ({other}; {name} {mine}), and "
        f"{proved.mechanism} is the only one"
    )


def _found(proved: Way, rest: Sequence[Way]) -> str:
    """What the attack found behind noise without a proof; where that is not clearly more than the limit, so it says."""
    usable = sorted((way for way in rest if not way.control_failed), key=lambda way: -way.identified)
    if not usable:
        return ". What was found behind the others says nothing: the attack did not work without noise either."
    clear = [way for way in usable if way.low is not None and way.low > (proved.limit or 1.0)]
    if clear:
        return f", whereas the attack found {_listed(clear, usable)}."
    most = f"at most {percent(usable[0].identified)} behind the others"
    return f". The attack found {most}, not clearly more, which proves nothing: a stronger one may get more."


def _listed(clear: Sequence[Way], usable: Sequence[Way]) -> str:
    """What is clearly above the limit, the most first; with its number of candidates where these differ."""
    unlike = len({way.candidates for way in usable}) > 1
    return " and ".join(
        f"{percent(way.identified)}{f' of {way.candidates}' if unlike else ''} behind {way.noise} of {way.mechanism}"
        for way in clear
    )
