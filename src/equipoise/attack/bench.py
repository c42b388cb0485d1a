"""The mechanism under the microscope: how likely is a release with a given candidate in it?

Every candidate's *response*, what it adds to a release, is taken from simulating the mechanism with it and public
companions, so the filter knows the learner. The likelihood is the Gaussian one around that response, whose covariance
has two parts, both estimated by simulation: the variation that the companions cause (low rank) and the noise of the
mechanism (diagonal). What makes it strong:

* noise comes in pairs of opposite sign, and all candidates share companions and noise, so that neither blurs the
  comparison;
* ``condition_on="release"`` takes each candidate's response under the noise that the release itself shows instead of
  the mean over fresh noise: a learner's gradients are those at the distorted weights, and the server sees these
  weights. Scores are then set against the candidate's scores on simulated releases that do not hold it;
* an update of which coordinates were withheld is also compared on those that it shows alone, with plain responses;
* updates are limited at a few noise scales (``limiter.py``);
* limit and floor of the noise, and where there are several the kind of response, are chosen on simulated releases
  of public *references*.

``matched.py`` ranks candidates by it; ``membership.py`` sets each against the references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..mechanism.distortion import draw_bounds
from ..randomness import experiment_key
from ..statistics import ranks
from .attack import Hooks, Knowledge, Option, Work, held
from .filter import Filter, Products
from .limiter import Limiter
from .records import Records as Records
from .simulate import Companions, chunk, gradients, noise, pieces, respond, signs, undistorted
from .view import Public, Server, View, check, check_public, groups

FLOORS = (1e-6, 1e-4, 1e-2, 1.0)
"""Noise that is added to the mechanism's, as a share of the companions' variance."""

AT_ONCE = 128
"""Updates whose likelihoods are computed together."""

Condition = Literal["nothing", "release", "best", "shown"]
Progress = Callable[[int], None]


OPTIONS = {
    "condition_on": Option("nothing", choices=("nothing", "release", "best")),  # what responses are conditioned on
    "pairs": Option(2, least=1),  # of opposite noise per candidate, each with companions of its own
    "anchors": Option(4, least=1),  # images around which the companions' covariance is estimated ...
    "around": Option(32, least=4),  # ... from this many pairs each
    "tuning": Option(16, least=2),  # public references, among which the filter's settings are tried
    "trials": Option(32, least=2),  # simulated releases for that
    "companions": Option(4, least=1),  # per candidate and release, for responses under the release's own noise
    "nulls": Option(16, least=2),  # simulated releases that hold no candidate, for those
}
"""Of the attacks that decide by these likelihoods: what is simulated for every group of releases and every label."""


@dataclass(frozen=True)
class Likelihoods:
    """How likely n releases are with each of U candidates of one label (or stratum) in one local step."""

    rows: Tensor  # [n]: the releases
    place: Tensor  # [n, E] bool: their examples of that label in that step
    label: int
    candidates: Tensor  # [U], ascending
    values: Tensor  # [n, U] log-likelihoods, up to a constant of the release
    references: Tensor  # [n, R] likewise, of public records


def likelihoods(
    server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks
) -> list[Likelihoods]:
    """For every group of releases, step and label, of all candidates that the knowledge lists.

    Where attacks share ``hooks.memory``, the first of them has all candidates scored that any may ask about: those of
    the ``knowledge`` in it, which is that of all of them.
    """
    memory = hooks.memory
    if memory is not None and "likelihoods" in memory:
        known: list[Likelihoods] = memory["likelihoods"]
        return known
    if memory is not None:
        knowledge = memory["knowledge"]
    view = server.stratified(view)
    check(server, view)
    public = check_public(server, held(knowledge, "public"), view.labels)
    suspects, result = Records(held(knowledge, "candidates"), held(knowledge, "candidate_labels")), []
    for rows, previous, labels, position, place, ids in _benches(server, view, knowledge):
        if not len(ids):  # nobody asks about this label
            continue
        bench = Bench(server, previous, public, labels, position, options, on_release=hooks.step)
        values, references = bench.scores(view.released[rows] - previous, suspects.rows(ids))
        result.append(Likelihoods(rows, place, int(labels[position]), ids, values, references))
    if memory is not None:
        memory["likelihoods"] = result
    return result


def _benches(
    server: Server, view: View, knowledge: Knowledge
) -> Iterator[tuple[Tensor, Tensor, Tensor, int, Tensor, Tensor]]:
    """Releases that one simulation serves, their weights and labels; for each local step and label in them the first
    position, the place of all, and the candidates."""
    for rows, previous, labels in groups(server, view):
        assert view.labels is not None
        mine = view.labels[rows]
        for start in range(0, server.examples, server.batch):
            step = slice(start, start + server.batch)
            for label in labels[step].unique().tolist():
                place = torch.zeros_like(mine, dtype=torch.bool)
                place[:, step] = mine[:, step] == label
                position = start + int((labels[step] == label).nonzero()[0])
                ids = _candidates(server, knowledge, rows, place, int(label))
                yield rows, previous, labels, position, place, ids


def _candidates(server: Server, knowledge: Knowledge, rows: Tensor, place: Tensor, label: int) -> Tensor:
    """Which candidates matter to releases: the choices for their examples, and those asked about with that label."""
    parts = []
    if knowledge.choices is not None:
        parts.append(knowledge.choices[rows][place].flatten())
    if knowledge.asked is not None:
        asked = knowledge.asked[rows].flatten()
        parts.append(asked[server.strata(held(knowledge, "candidate_labels"))[asked] == label])
    result: Tensor = torch.cat(parts).unique()
    return result


def work(server: Server, labels: Tensor, knowledge: Knowledge, options: Mapping[str, Any]) -> Work:
    """What all candidates of releases with ``labels`` ``[N, E]`` take; attacks that share a memory take it once."""
    weights = torch.zeros(1, 1, device=labels.device).expand(len(labels), -1)  # the same for all
    both, total = signs(server), 0
    for rows, *_, ids in _benches(server, View(weights, weights, server.strata(labels)), knowledge):
        total += options["anchors"] * options["around"] * both + options["trials"]
        total += (len(ids) + options["tuning"] + options["anchors"]) * pairs_of(server, options["pairs"]) * both
        if server.protection.mechanism.shaping is not None:  # and once more with nothing withheld
            total += options["anchors"] * (options["around"] + 1) + options["tuning"]
        if conditioned(server, options) != "nothing":
            nulls, each = options["nulls"], options["companions"]
            total += each * (len(rows) + options["trials"] + nulls) * options["tuning"] + nulls
            total += each * (len(rows) + nulls) * len(ids)
    return Work(total, gradients(server))


def conditioned(server: Server, options: Mapping[str, Any]) -> Condition:
    """What responses are conditioned on: only a learner's depend on the noise."""
    condition: Condition = options["condition_on"] if server.protection.mechanism.learns else "nothing"
    return condition


def pairs_of(server: Server, pairs: int) -> int:
    """How many pairs of noise a response is averaged over: one says all where the update is a mean over examples.

    Then companions and noise add the same to all candidates. A learner, a shaped update, a clipped gradient and a
    second local step make what a candidate adds depend on them.
    """
    mechanism = server.protection.mechanism
    return pairs if not mechanism.adds or mechanism.clips or mechanism.per_example or server.local_steps > 1 else 1


class Chosen(NamedTuple):
    """The settings of a filter that simulated releases of references showed to be the best."""

    condition_on: Condition
    limit: int
    floor: float


class Bench:
    """The mechanism under one label's microscope: responses, the companions' covariance, the noise."""

    def __init__(
        self,
        server: Server,
        previous: Tensor,
        public: Public,
        labels: Tensor,
        position: int,
        options: Mapping[str, Any],
        *,
        on_release: Progress | None = None,
    ):
        self.server, self.previous, self.public, self.labels, self.options = server, previous, public, labels, options
        self.position, label = position, int(labels[position])
        self.seed, self.on_release = options["seed"], on_release
        self.name = f"matched/{position // server.batch}/{label}"
        self.signs = signs(server)
        self.clean = undistorted(server) if server.protection.mechanism.adds else server  # noise is added, no more
        self.pairs = pairs_of(server, options["pairs"])
        self.most = chunk(server, previous)
        self.strata = server.strata(public[1])
        own = (self.strata == label).nonzero().flatten()
        self.own = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(self.seed)).to(own.device)]
        self.filter = self._filter()

    def known(self, rows: Tensor) -> Records:
        """Public records."""
        return Records(*self.public).rows(rows)

    def scores(self, updates: Tensor, candidates: Records) -> tuple[Tensor, Tensor]:
        """Log-likelihoods ``[n, U]`` of updates ``[n, P]`` under given candidates, and ``[n, R]`` under references.

        What one candidate scores does not depend on the others.
        """
        references = self.known(self.own[-self.options["tuning"] :])
        means = self._centred(references)
        trials, truth = self._simulated("trials", references, self.options["trials"])
        condition = conditioned(self.server, self.options)
        kinds: list[Condition] = ["nothing", "release"] if condition == "best" else [condition]
        kinds += ["shown"] if self.server.protection.mechanism.shaping is not None else []
        by_kind = {kind: self.plain.means if kind == "shown" else means for kind in kinds}
        tried = [self._tuned(kind, trials, truth, references, by_kind[kind]) for kind in kinds]
        best = min(range(len(kinds)), key=lambda i: tried[i][0])
        self.chosen = Chosen(kinds[best], *tried[best][1:])
        against = self._scored(updates, references, by_kind[self.chosen.condition_on])
        bench = self.plain if self.chosen.condition_on == "shown" else self
        parts = [
            self._scored(updates, candidates.rows(some), bench.responses(candidates.rows(some)) - bench.zero)
            for some in pieces(len(candidates), AT_ONCE, updates.device)
        ]
        return torch.cat(parts, dim=1), against

    def _centred(self, references: Records) -> Tensor:
        """Responses ``[R, P]`` about their mean; keeps these, and what updates lie about."""
        means = self.responses(references)
        self.zero = means.mean(0)
        # Responses share a few companions, which differ from those of a release by the same amount for all candidates.
        shared = self.responses(self.known(self.anchors)).mean(0)
        self.centre = self.zero + self.around - shared
        self.means = means - self.zero
        return self.means

    def _scored(self, updates: Tensor, candidates: Records, means: Tensor) -> Tensor:
        """``[n, U]``, with the settings that were chosen."""
        kind, limit, floor = self.chosen
        nulls = self._nulls(kind, candidates, means)
        parts = [
            self._score(kind, self._products(kind, updates[some], candidates, means), nulls, limit, floor)
            for some in pieces(len(updates), AT_ONCE, updates.device)
        ]
        return torch.cat(parts).to(updates.dtype)

    # -- simulation --------------------------------------------------------------------------------------------

    def _respond(self, server: Server, centre: Records, companions: Tensor, drawn: Tensor | None) -> Tensor:
        """Updates ``[R, P]`` of batches that hold the R records of ``centre`` at the label's position."""
        batch, labels = self.public[0][companions], self.public[1][companions]
        batch[:, self.position], labels[:, self.position] = centre.inputs, centre.labels
        drawn = drawn if server.protection.mechanism.draws else None
        result = respond(server, self.previous, batch, labels, drawn)
        if self.on_release:
            self.on_release(len(batch))
        return result.sub_(self.previous)

    def _drawn(self, purpose: str, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Companions and noise for the given rows."""
        pool = Companions((self.public[0], self.strata), self.seed, f"{self.name}/{purpose}")
        companions = pool.draw(self.labels.expand(len(rows), -1), rows)
        key = experiment_key(self.seed, f"{self.name}/{purpose}/noise")
        return companions, noise(self.server, key, rows, self.previous)

    def _pairs(self, purpose: str, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Likewise; where noise depends on the batch, neighbouring rows share companions and have opposite noise."""
        unique, place = torch.unique(rows // self.signs, return_inverse=True)
        companions, drawn = self._drawn(purpose, unique)
        if drawn is None or self.signs == 1:
            return companions[place], drawn
        return companions[place], drawn[place] * (1 - 2 * (rows % 2)).to(drawn).unsqueeze(1)

    def responses(self, records: Records) -> Tensor:
        """Mean update ``[U, P]`` of every record; all of them meet the same companions and the same noise."""
        each = self.pairs * self.signs
        total = self.previous.new_zeros(len(records), self.previous.numel())
        for part in pieces(each, self.most, self.previous.device):
            companions, drawn = self._pairs("responses", part)
            for some in pieces(len(records), max(1, self.most // len(part)), self.previous.device):
                again = None if drawn is None else drawn.repeat(len(some), 1)
                centre = records.rows(some).repeated(len(part))
                result = self._respond(self.clean, centre, companions.repeat(len(some), 1), again)
                total[some] += result.view(len(some), len(part), -1).sum(1)
        return total / each

    def responses_given(self, updates: Tensor, records: Records) -> Tensor:
        """Responses ``[n, U, P]`` about the centre under the noise that every update ``[n, P]`` shows."""
        protection, each = self.server.protection, self.options["companions"]
        shown = updates - self.centre  # the noise, as far as the mean response tells
        standard = shown if protection.mechanism.on_sphere else shown / float(protection.scale)
        first = draw_bounds(standard, protection)[0]
        companions = self._drawn("given", torch.arange(each, device=updates.device))[0]
        out = updates.new_empty(len(updates) * len(records), updates.shape[1])
        for some in pieces(len(out), max(1, self.most // each), updates.device):
            release, record = some // len(records), some % len(records)
            result = self._respond(
                self.server,
                records.rows(record).repeated(each),
                companions.repeat(len(some), 1),
                standard[release].repeat_interleave(each, dim=0),
            )
            out[some] = result.view(len(some), each, -1).mean(1) - first[release] - self.centre
        return out.view(len(updates), len(records), -1)

    def _filter(self) -> Filter:
        anchors = self.own[: self.options["anchors"]]
        each = self.options["around"] * self.signs
        clean, half = [], []
        for part in pieces(len(anchors) * each, self.most, self.previous.device):
            companions, drawn = self._pairs("covariance", part)
            result = self._respond(self.clean, self.known(anchors[part // each]), companions, drawn)
            result = result.view(-1, self.signs, self.previous.numel())
            clean.append(result.mean(1))
            if self.signs == 2:
                half.append((result[:, 0] - result[:, 1]) / 2)
            elif drawn is not None:
                half.append(draw_bounds(drawn, self.server.protection)[0])
        about = torch.cat(clean).view(len(anchors), self.options["around"], -1)
        self.anchors, self.around = anchors, about.mean((0, 1))
        spread = (about - about.mean(1, keepdim=True)).flatten(0, 1)  # [S, P]
        limiter = Limiter(torch.cat(half) if half else None, self.previous)
        return Filter(spread, limiter, max(1, len(spread) - len(anchors)))

    def _simulated(self, purpose: str, records: Records, count: int) -> tuple[Tensor, Tensor]:
        """Updates ``[n, P]`` of simulated releases that hold one of the records, and which."""
        truth = torch.arange(count, device=self.previous.device) % len(records)
        results = []
        for rows in pieces(count, self.most, self.previous.device):
            companions, drawn = self._drawn(purpose, rows)
            results.append(self._respond(self.server, records.rows(truth[rows]), companions, drawn))
        return torch.cat(results), truth

    # -- the choice of the filter ----------------------------------------------------------------------------------

    def _products(self, condition: Condition, updates: Tensor, records: Records, means: Tensor) -> Products:
        if condition == "nothing":
            return self.filter.products(updates - self.centre, means.unsqueeze(0))
        if condition == "shown":
            return self._shown(updates, means)
        width = max(1, self.most // (2 * len(records)))
        parts = [
            self.filter.products(updates[some] - self.centre, self.responses_given(updates[some], records))
            for some in pieces(len(updates), width, updates.device)
        ]
        return Products.joined(parts)

    @cached_property
    def plain(self) -> Bench:
        """The same clients with nothing withheld."""
        given = (self.previous, self.public, self.labels, self.position, self.options)
        bench = Bench(undistorted(self.server), *given, on_release=self.on_release)
        bench._centred(bench.known(bench.own[-self.options["tuning"] :]))
        return bench

    def _shown(self, updates: Tensor, means: Tensor) -> Products:
        """By plain responses, on the coordinates that an update shows: what was withheld is exactly 0."""
        plain, width = self.plain, max(1, self.most // (2 * len(means)))
        return Products.joined([
            plain.filter.products(updates[some] - plain.centre, means.unsqueeze(0), updates[some] != 0)
            for some in pieces(len(updates), width, updates.device)
        ])  # fmt: skip

    def _nulls(self, condition: Condition, records: Records, means: Tensor) -> Products | None:
        if condition != "release":
            return None  # the mean response does not depend on the noise: nothing to put right
        return self._products(condition, self.without, records, means)

    @cached_property
    def without(self) -> Tensor:
        """Updates ``[n, P]`` of simulated releases that hold no candidate."""
        middle = self.own[self.options["anchors"] : -self.options["tuning"]]
        middle = middle if len(middle) else self.own
        return self._simulated("nulls", self.known(middle), self.options["nulls"])[0]

    def _score(
        self, condition: Condition, result: Products, nulls: Products | None, limit: int, floor: float
    ) -> Tensor:
        score = self._filter_of(condition).likelihood(result, limit, floor)
        return score if nulls is None else score - self.filter.likelihood(nulls, limit, floor).mean(0)

    def _filter_of(self, condition: Condition) -> Filter:
        return self.plain.filter if condition == "shown" else self.filter

    def _tuned(
        self, condition: Condition, trials: Tensor, truth: Tensor, records: Records, means: Tensor
    ) -> tuple[float, int, float]:
        """The best mean log-rank on the trials, and the limit and floor that reach it."""
        result, nulls = self._products(condition, trials, records, means), self._nulls(condition, records, means)
        return min(
            (float(ranks(self._score(condition, result, nulls, limit, floor), truth).log.mean()), limit, floor)
            for limit in range(len(self._filter_of(condition).limiter)) for floor in FLOORS
        )  # fmt: skip
