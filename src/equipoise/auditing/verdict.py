"""The verdict of an audit in plain sentences: what leaks, to whom, against what, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..attack.registry import ATTACKS
from ..mechanism.schedule import defence_label
from . import statements as kinds
from .cells import EQUAL_LOWER, POSITIVE
from .comparison import LESS, MORE, NONE, STATIC, UNCLEAR, Reading
from .numbered import YES_OR_NO
from .phrases import all_of, aside, false_alarms, first_of, guess_name, interval, largest_of, lowered
from .results import ENOUGH, FEW, candidates_of
from .statements import Statement, found_in, statements
from .summary import (
    ERRORS,
    GIVEN,
    SCHEDULES,
    Content,
    Metric,
    best_guess,
    counted,
    failed_control,
    percent,
    share,
    thing_of,
    with_article,
)  # fmt: skip

LISTED = 8
"""Defences that are listed by name; the table has all."""
TOO_FEW = "one update: too few to tell"
BLIND = frozenset({"invgrad", "dlg", "idlg"})
"""Attacks that do not use what they know of the mechanism."""


def verdict(content: Content) -> list[str]:
    """Plain sentences, for ``audit.json`` and to be printed before any table."""
    speaker = Speaker(content)
    return [words for statement in statements(content) for words in speaker.say(statement)]


class Speaker:
    """Says the statements of one audit: who attacks is said once in full."""

    def __init__(self, content: Content):
        self.content = content
        self.said: set[Any] = set()  # readings that need no second mention
        self.known = False  # whether the attacker was described
        rows = content.get("attacks", [])
        self.several = [name for name in ("dataset", "seed") if len({row.get(name) for row in rows}) > 1]
        self.given = content.get("targets") == GIVEN
        self.thing = thing_of(content)

    def say(self, statement: Statement) -> Iterator[str]:
        saying: dict[str, Callable[[Statement], Iterator[str]]] = {
            kinds.TOO_FEW: self._too_few, kinds.UNSCORED: self._unscored, kinds.WORSE: self._worse,
            kinds.LEARNED: self._example, kinds.TALLY: self._tally, kinds.STRONGEST: self._example,
            kinds.RANKING: self._ranking, kinds.ALSO: self._also, kinds.PIXELS: self._pixels,
            kinds.CONTROL: self._control, kinds.BROKEN: self._broken, kinds.COMBINED: self._combined,
            kinds.UNPROTECTED: self._unprotected, kinds.VERIFIED: self._verified, kinds.NEXT: self._next,
            kinds.NO_BETTER: self._no_better, kinds.LACKING: self._lacking,
        }  # fmt: skip
        return saying[statement.kind](statement)

    # -- what there is to say --------------------------------------------------------------------------------------

    def _too_few(self, statement: Statement) -> Iterator[str]:
        fewest = min(row["targets"] for row in self.content["attacks"] if row.get("evidence") == FEW)
        what = counted(fewest, "update" if self.given else "release")
        yield f"{FEW.capitalize()}: {what}, and a result takes {ENOUGH}. Read the rest as examples."

    def _unscored(self, statement: Statement) -> Iterator[str]:
        yield "Nothing is scored: no truth was given to hold the results against."
        for row in self.content.get("attacks", []):
            if "guess" in row:
                yield f"The attacker takes the labels to be {row['guess']}."

    def _worse(self, statement: Statement) -> Iterator[str]:
        worst, *others = statement.readings
        yield f"Worse than no protection: {lowered(self._sentence(worst, largest=statement.largest))}"
        cases = list(dict.fromkeys(self._case(one) for one in others if self._case(one) != self._case(worst)))
        if cases:
            yield f"Worse than no protection as well: {first_of(cases)}."

    def _unprotected(self, statement: Statement) -> Iterator[str]:
        """What leaks more than the run's own unprotected federation: other weights, so no word on the distortion."""
        cases: dict[str, str] = {}
        for one in statement.readings:
            both = (one.metric.form(value) for value in (one.value, one.beside(NONE) or 0.0))
            cases.setdefault(self._case(one), f"{self._by(one.metric)} {' against '.join(both)}")
        listed = first_of([f"{case} ({figures})" for case, figures in cases.items()])
        yield f"More than the unprotected run at that round, whose weights differ: {listed}."

    def _no_better(self, statement: Statement) -> Iterator[str]:
        """What a later round shows to be no clear protection."""
        cases = [(one, _against(one, POSITIVE)) for one in statement.readings]
        if len(cases) == 1:
            one, figures = cases[0]
            words = _when(one)
            yield f"{words[0].upper()}{words[1:]} {self._name(one)} shows {UNCLEAR} from no protection ({figures})."
            return
        yield f"{UNCLEAR.capitalize()} from no protection: {first_of([f'{self._case(o)} ({f})' for o, f in cases])}."

    def _example(self, statement: Statement) -> Iterator[str]:
        """The worst reading in full, unless it has been said."""
        one = statement.readings[0]
        if one.key in self.said:
            return
        words = self._sentence(one, statement.cells, statement.largest)
        if not one.distorts:
            these = "this update" if self._single(one) else "these updates"
            words = f"Nothing protects {these}: {lowered(words)}"
        yield words

    def _tally(self, statement: Statement) -> Iterator[str]:
        """In how many comparisons learned noise leaks more than static noise: at the same weights, and at others."""
        every = tuple(one for one in statement.readings if one.against(EQUAL_LOWER))
        if all(map(self._single, every)):
            yield "One update is too few to tell whether learned noise leaks more than static noise."
            return
        void = len(statement.readings) - len(every)
        left = f"; {void} more {'is' if void == 1 else 'are'} no evidence" if void else ""
        if all(one.against(EQUAL_LOWER) == UNCLEAR for one in every):
            count = counted(len(every), "comparison")
            yield f"At equal budget and weights there is {UNCLEAR} between learned and static noise ({count}{left})."
            return
        own = [one for one in every if one.round and one.against(STATIC) and one.metric == every[0].metric]
        more = ""
        if own:  # at round 0 all federations of a seed have the same weights
            above = sum(one.against(STATIC) == MORE for one in own)
            more = f"; against the run's own static federations, at other weights, in {above} of {len(own)}"
        same = self._counts(every, EQUAL_LOWER)
        yield f"At equal budget and weights, learned noise leaks more than static noise {same}{left}{more}."

    def _counts(self, among: tuple[Reading, ...], role: str) -> str:
        """In how many comparisons it leaks more, and what became of the others, metric by metric."""
        parts: list[str] = []
        for metric in dict.fromkeys(one.metric for one in among):
            results = [one.against(role) for one in among if one.metric == metric]
            tail = [f"{word} in {results.count(word)}" for word in (LESS, UNCLEAR) if word in results]
            of = f"{results.count(MORE)} of {len(results)}" + ("" if parts else " comparisons")
            parts.append(f"in {of} by {self._by(metric)}{aside(tail)}")
        return all_of(parts)

    def _by(self, metric: Metric) -> str:
        words = {"identification": f"identified {self.thing}s", "membership_auc": "membership"}
        return words.get(metric.name, "labels")

    def _ranking(self, statement: Statement) -> Iterator[str]:
        """The worst round of each defence, round by round."""
        metric = statement.readings[0].metric
        what = {"identification": f"{self.thing.capitalize()}s identified", "membership_auc": "AUC of membership"}
        by_round: dict[str, list[str]] = {}
        for one in sorted(statement.readings[:LISTED], key=lambda one: one.round or 0):  # a stable sort: ranked within
            failed = " (control failed)" if one.own.get("control_failed") else " (not finite)" if one.failed else ""
            by_round.setdefault(_when(one), []).append(f"{self._name(one)} {metric.form(one.value)}{failed}")
        listed = "; ".join(f"{when} {', '.join(names)}".strip() for when, names in by_round.items())
        more = len(statement.readings) - LISTED
        rest = f"; and {more} more in the table" if more > 0 else ""
        at = "".join(f", {words} each" for words in largest_of(statement.cells))
        yield f"{what.get(metric.name, 'Labels inferred')} by the strongest attack{at}: {listed}{rest}."

    def _also(self, statement: Statement) -> Iterator[str]:
        """The worst by a further metric, in short."""
        one = statement.readings[0]
        if one.vacuous:
            yield f"Labels tell nothing here: an even guess gets {one.metric.form(one.chance or 0.0)} of them."
            return
        what = {"membership_auc": "Membership: an AUC of {}", "labels": "Labels: {} inferred"}
        few = [TOO_FEW] if self._single(one) else interval(one, "")
        sure = [*largest_of(statement.cells), *few, *self._guessing(one), *false_alarms(one)]
        where = f" for {self._case(one)}" if one.distorts or self.several else f" {_when(one)}".rstrip()
        said = f"{what[one.metric.name].format(one.metric.form(one.value))}{aside(sure)}{where}"
        yield f"{said}{self._otherwise(one, 'unprotected {}', 'static noise of equal budget {}')}."

    def _lacking(self, statement: Statement) -> Iterator[str]:
        """An AUC of a handful says nothing."""
        few = counted(statement.readings[0].too_few or 0, "non-member")
        yield f"Membership cannot be told: {few} in all, and a result takes {ENOUGH}."

    def _pixels(self, statement: Statement) -> Iterator[str]:
        """How close the best picture comes, beside the best guess: labels alone give the mean of a class."""
        one = statement.readings[0]
        best, drawn = best_guess(self.content, one.own), one.metric.name == "mse"
        error = "MSE" if drawn else "error in standard deviations"
        if best is not None and one.value >= best[1]:
            yield (
                f"No {'picture' if drawn else 'reconstruction'} comes closer to its original than "
                f"{guess_name(best[0])} ({error} {one.value:.3g} against {best[1]:.3g}): these attacks failed to "
                f"{'draw' if drawn else 'reconstruct'}, which does not make the {self.thing}s safe."
            )
        elif one.key not in self.said:
            beside = "" if best is None else f"; {guess_name(best[0])} has {best[1]:.3g}"
            closest = "pictures have an" if drawn else "reconstructions have an"
            yield f"The closest {closest} {error} of {one.value:.3g} ({one.attack} on {self._case(one)}){beside}."

    def _control(self, statement: Statement) -> Iterator[str]:
        for attack, where, _ in _by_attack(statement):
            yield f"Low figures of {attack}{where} are no evidence: its control, without distortion, failed too."

    def _broken(self, statement: Statement) -> Iterator[str]:
        for attack, where, readings in _by_attack(statement):
            count = sum({one.key[:3]: int(one.own["not_finite"]) for one in readings}.values())
            were = counted(count, "score") + (" was" if count == 1 else " were")
            yield f"Low figures of {attack}{where} are no evidence: {were} not finite."

    def _combined(self, statement: Statement) -> Iterator[str]:
        """What the releases of many rounds tell together, under the schedules that tell anything."""
        row = statement.combined
        assert row is not None
        told = found_in(row)
        words = f"if it is granted which releases hold the {self.thing}", "if it is not"
        granted = dict(zip(SCHEDULES, words, strict=True))
        rates = [f"in {share(row, name)} of cases {granted[name]}" for name in told or granted]
        if told == ["schedule_unknown"]:
            rates = [f"in {share(row, told[0])} of cases"]
        few = f" ({FEW})" if row["evidence"] == FEW else ""
        said = (
            f"Over {row['rounds']:,} rounds of {defence_label(row['mechanism'], row['budget'])}, a server that "
            f"combines releases picks the right {self.thing} out of {row['candidates']} {all_of(rates)}; from one "
            f"release in {share(row, 'one_release')}{few}."
        )
        failed = failed_control(row, told or tuple(SCHEDULES))
        if told and failed:
            bare = [share(row, f"{name}_undistorted") for name in told if row[f"control_failed_{name}"]]
            said += (
                f" Without distortion it does so in {all_of(bare)}: the {failed}, which voids low figures and no rate "
                "that is clearly above guessing."
            )
        elif not told:
            said += (
                f" The {failed}, so a low figure is no evidence of protection."
                if failed
                else " That is not clearly more than guessing, and no proof of safety: a stronger attack may get more."
            )
        yield said

    def _verified(self, statement: Statement) -> Iterator[str]:
        """What knowing the norm of the noise is worth to a server that knows all of a batch but one example."""
        one = statement.readings[0]
        sure = interval(one, "95 % interval ") + largest_of(statement.cells) + [f"chance {one.own['chance']}"]
        by = "the norm of its noise" if one.distorts else "recomputing the update"
        said = (
            f"Granted the other {self.thing}s of the batch, a server verifies guesses at the last one {self._from(one)}"
            f": by {by} it picks the right one out of {candidates_of(one.own)} in {one.metric.form(one.value)} of cases"
            f"{aside(sure)}, and accepts {percent(one.own['accepted'])} of right guesses and "
            f"{100 * one.own['accepted_wrongly']:.2g} % of wrong ones. It checks guesses, and searches for none."
        )
        yield said if one.above_chance else f"{said} That is not clearly more than guessing."

    def _next(self, statement: Statement) -> Iterator[str]:
        yield f"Next: {'; '.join(statement.steps)}."

    # -- parts of a sentence ---------------------------------------------------------------------------------------

    def _sentence(self, one: Reading, cells: tuple[int, ...] = (), largest: Reading | None = None) -> str:
        """Who gets what from which release, the largest of how many cells, and what it would be otherwise."""
        self.said.add(one.key)
        chosen = largest_of(cells) if largest is None else self._larger(one, largest, bool(cells))
        said = f"{self._who(one)} {self._does(one, chosen)} {self._from(one)}{self._otherwise(one)}."
        if one.own.get("control_failed"):
            clear = "; a clear difference stands" if one.against(POSITIVE) or one.against(EQUAL_LOWER) else ""
            said += f" The control of {one.attack} failed there, so a low figure is no evidence of protection{clear}."
        elif one.failed:
            said += " Some of its scores were not finite, so a low figure is no evidence of protection."
        elif not one.above_chance and not self._single(one):
            said += " That is not clearly more than guessing, and no proof of safety: a stronger attack may get more."
        return said

    def _larger(self, one: Reading, largest: Reading, ranked: bool) -> list[str]:
        """Said of the clearest difference, or of the largest figure of those that are evidence: what is larger."""
        where = self._name(largest) if largest.round == one.round else self._case(largest)
        doubt = ", whose control failed" if largest.own.get("control_failed") else ""
        first = "the largest where the control worked" if ranked else "the clearest difference"
        return [first, f"the largest figure is {largest.metric.form(largest.value)}, {where}{doubt}"]

    def _who(self, one: Reading) -> str:
        if self.known:
            return "The same server"
        self.known = True
        needs = ATTACKS[one.attack].needs if one.attack in ATTACKS else frozenset()
        labels = one.own.get("labels_granted", True) and needs & {"labels", "inferred labels"}
        knows = ["knows the mechanism"] if one.distorts and one.attack not in BLIND else []
        knows += [f"holds public {self.thing}s of the same kind"] if "public" in needs else []
        return f"A server that {all_of(['follows the protocol', *knows])}{' (labels granted)' if labels else ''}"

    def _does(self, one: Reading, largest: list[str]) -> str:
        value, name = one.metric.form(one.value), one.metric.name
        few = [TOO_FEW] if self._single(one) and name != "mse" else []  # an MSE is a fact of that update
        sure = few + interval(one, "95 % interval ") + largest
        if name == "identification":
            pool = f" out of {candidates_of(one.own)}" if "chance" in one.own else ""
            how = f"picks the right {self.thing}"
            if one.attack != "matched":
                how = f"reconstructs {self.thing}s ({one.attack}) that point to the right one"
            return f"{how}{pool} in {value} of cases{aside(sure)}"
        sure += self._guessing(one)
        if name in ERRORS:
            error = f"an MSE of {value}" if name == "mse" else f"an error of {value} standard deviations"
            return f"reconstructs the inputs ({one.attack}) with {error}{aside(sure)}"
        if name == "labels":
            what = "counts of the labels" if self.content.get("labels") == YES_OR_NO else "labels"
            return f"infers {value} of the {what}{aside(sure)}"
        asked = f"tells whether {with_article(self.thing)} was in the batch"
        return f"{asked} with an AUC of {value}{aside(sure + false_alarms(one))}"

    def _guessing(self, one: Reading) -> list[str]:
        if one.metric.name in ERRORS:
            best = best_guess(self.content, one.own)
            return [] if best is None else [f"{guess_name(best[0])} {best[1]:.3g}"]
        if one.chance is None:
            return []
        if one.metric.name == "labels":  # a guess that has each label as often, which even batches fit
            return [f"an even guess {one.metric.form(one.chance)}"]
        return [f"by chance {one.metric.form(one.chance)}"]

    def _from(self, one: Reading) -> str:
        if self.given:
            updates = "this update" if self._single(one) else "one of these updates"
            return f"from {updates}" + (f" under {one.defence.label}" if one.distorts else "")
        of = f" of {self._name(one)}" if one.distorts or self.several else ""
        return f"from a release{of} {_when(one)}" if one.round else f"from the first release{of}"

    def _otherwise(
        self,
        one: Reading,
        bare: str = "without any protection it would be {}",
        static: str = "with static noise of the same budget {}",
    ) -> str:
        """What it would be without protection and under static noise of equal budget, where that can be compared."""
        parts = []
        for role, words in ((POSITIVE, bare), (EQUAL_LOWER, static)) if one.distorts else ():
            value, result = one.beside(role), one.against(role)
            if value is not None and result is not None:
                unclear = f" ({UNCLEAR})" if result == UNCLEAR and not self._single(one) else ""
                parts.append(words.format(one.metric.form(value)) + unclear)
        return f"; {', '.join(parts)}" if parts else ""

    def _single(self, one: Reading) -> bool:
        """Whether it is of one update of one's own, which nothing can be clear of."""
        return self.given and bool(one.own["targets"] == 1)

    def _name(self, one: Reading) -> str:
        """A defence, with its dataset and seed where there are several."""
        said = {"dataset": one.defence.dataset, "seed": f"seed {one.defence.seed}"}
        client = [f"client {one.own['client']}"] if "client" in one.own else []
        extra = ", ".join([*(str(said[name]) for name in self.several), *client])
        return one.defence.label + (f" ({extra})" if extra else "")

    def _case(self, one: Reading) -> str:
        return f"{self._name(one)} {_when(one)}".strip()


def _by_attack(statement: Statement) -> Iterator[tuple[str, str, list[Reading]]]:
    """The readings of each attack, with the rounds that they are of."""
    for attack in dict.fromkeys(one.attack for one in statement.readings):
        readings = [one for one in statement.readings if one.attack == attack]
        rounds = [words for words in dict.fromkeys(map(_when, readings)) if words]
        yield attack, f" {all_of(rounds)}" if rounds else "", readings


def _when(one: Reading) -> str:
    """Rounds as people say them: "at the first round", "after 2,000 rounds"."""
    if one.round is None:
        return ""
    return f"after {one.round:,} round{'' if one.round == 1 else 's'}" if one.round else "at the first round"


def _against(one: Reading, role: str) -> str:
    """Two figures side by side: "59 against 66 %"."""
    mine, other = (one.metric.form(value) for value in (one.value, one.beside(role) or 0.0))
    return f"{mine.removesuffix(' %')} against {other}"
