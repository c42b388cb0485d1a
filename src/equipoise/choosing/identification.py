"""How often the matched filter would find an example behind one release, without an audit: by public gradients alone.

The attacker knows what every one of K candidates adds to an update (its *response* r), how the rest of the batch varies
(covariance C, estimated on other public examples) and the noise (variance v in every coordinate). With
S = C + v I, it ranks candidates by r' S^-1 x - r' S^-1 r / 2, the Gaussian log-likelihood of the update x. The truth t
leads another candidate c by a number that is normal with mean d^2 / 2 and variance d^2, where
d^2 = (r_t - r_c)' S^-1 (r_t - r_c): all depends on the size of the responses beside the noise.

* Noise that is only added: responses and the rest of the batch do not depend on it. They are computed once, and every
  noise scale is then tried by sums: x = r_t + rest + noise, where the rest comes from batches that C has not seen.
* A learner's response depends on its noise: releases of candidates are simulated, at each scale anew.

Both use the filter of ``attack/matched.py`` itself, limits and all. What they leave out is little: the attack meets
releases whose mean it has to estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..attack.bench import FLOORS, OPTIONS, Bench, Progress, Records, pairs_of
from ..attack.filter import Filter
from ..attack.limiter import ENOUGH, Limiter
from ..attack.simulate import Companions, noise, respond, signs, undistorted
from ..attack.view import Public, Server
from ..errors import DataError
from ..mechanism.distortion import draw_bounds
from ..mechanism.protection import Protection
from ..randomness import experiment_key
from ..statistics import ranks

ROOM = 1 << 30
"""Bytes that responses and batches may take; a large model has fewer candidates."""
FEWEST = 20
"""Candidates, and batches for the covariance, that there are at least."""
PLACES = 4
"""Labels that are looked at; half as many for a model so large that fewer batches are kept for the covariance."""
LEARNED_TRIALS = 32
"""Releases of a learner that are simulated in every place, rather than added up."""


@dataclass(frozen=True)
class _Parts:
    """What noise is added to: responses about their mean, and the rest of the batch in two halves."""

    means: Tensor  # [K, P]
    fit: Tensor  # [S, P] deviations that the covariance is estimated from
    held: Tensor  # [S, P] others
    freedom: int


@dataclass(frozen=True)
class _Place:
    """One label of a batch, and candidates that have it."""

    labels: Tensor  # [E]
    position: int
    images: Tensor  # [K, ...]

    @property
    def records(self) -> Records:
        """The candidates, all with the label of their place."""
        return Records(self.images, self.labels[self.position].expand(len(self.images)))


class Identification:
    """The share of examples that the matched filter would put first among ``candidates`` of their label.

    Args:
        server: the attacker's position; its protection plays no part.
        weights: ``[P]``, from which clients start.
        public: what the attacker simulates with.
        pool: other public examples, which play private ones.
        places: labels that are looked at, in batches of as many labels as there are; fewer for a large model, unless
            given.
        candidates: the truth among them; fewer for a large model.
        trials: releases for each place.
        seed: of batches and noise.
    """

    def __init__(
        self,
        server: Server,
        weights: Tensor,
        public: Public,
        pool: Public,
        *,
        places: int | None = None,
        candidates: int = 100,
        trials: int = 128,
        seed: int = 0,
    ):
        self.server, self.weights, self.public, self.trials, self.seed = server, weights, public, trials, seed
        rows = ROOM // (4 * weights.numel() * weights.element_size())
        self.around: int = max(FEWEST // 4, min(OPTIONS["around"].default, rows // 8)) * 2  # half of them to try with
        if places is None:
            places = PLACES if rows // 8 >= OPTIONS["around"].default else PLACES // 2
        self.places = list(self._places(pool, places, max(FEWEST, min(candidates, rows))))
        self.on_release: Progress | None = None  # told of every so many simulated releases

    @property
    def candidates(self) -> int:
        """Among how many an example is sought, at least: chance is one in so many."""
        return min(len(place.images) for place in self.places)

    def cost(self, protection: Protection) -> int:
        """How many releases a rate takes, at most; where noise is only added, those of the first rate serve all."""
        adds = protection.mechanism.adds
        server = undistorted(self.server) if adds else replace(self.server, protection=protection)
        given = {name: option.default for name, option in OPTIONS.items()}
        each, candidates = pairs_of(server, given["pairs"]) * signs(server), sum(len(one.images) for one in self.places)
        total: int = candidates * each + len(self.places) * given["anchors"] * self.around * signs(server)
        if not adds:  # and the settings of the filter are tried
            more = given["trials"] + min(self.trials, LEARNED_TRIALS)
            total += len(self.places) * ((given["tuning"] + given["anchors"]) * each + more)
        if protection.mechanism.shaping is not None:  # and once more with nothing withheld
            total += len(self.places) * (given["anchors"] * (self.around + 1) + given["tuning"])
        return total

    def prepare(self) -> None:
        """Simulate what serves every noise that is only added."""
        self._parts  # noqa: B018

    def rate(self, protection: Protection) -> float:
        """The expected share under a protection: 1 for no noise at all, down to chance."""
        server = replace(self.server, protection=protection)
        one = self._added if protection.mechanism.adds else self._simulated
        return sum(one(index, server) for index in range(len(self.places))) / len(self.places)

    def _places(self, pool: Public, count: int, most: int) -> list[_Place]:
        known = [label for label in range(self.server.classes) if int((pool[1] == label).sum()) > 1]
        if not known:
            raise DataError("No two public examples have the same label.", "Give more public data.")
        size, result = self.server.examples, []
        for index in range(count):
            labels = [known[(index * size + place) % len(known)] for place in range(size)]
            images = pool[0][pool[1] == labels[index % size]][:most]
            result.append(_Place(torch.tensor(labels, device=pool[1].device), index % size, images))
        return result

    def _bench(self, place: _Place, server: Server) -> Bench:
        options = {name: option.default for name, option in OPTIONS.items()}
        options |= {"seed": self.seed, "around": self.around}
        labels, position = place.labels, place.position
        return Bench(server, self.weights, self.public, labels, position, options, on_release=self.on_release)

    def _noise(self, server: Server, purpose: str, count: int) -> Tensor | None:
        rows = torch.arange(count, device=self.weights.device)
        return noise(server, experiment_key(self.seed, f"identification/{purpose}"), rows, self.weights)

    # -- noise that is only added ----------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> list[_Parts]:
        return [self._part(place) for place in self.places]

    def _part(self, place: _Place) -> _Parts:
        bench = self._bench(place, undistorted(self.server))
        means = bench.responses(place.records)
        spread = bench.filter.spread  # without noise its unit is 1
        fit = torch.arange(len(spread)) % self.around < self.around // 2
        return _Parts(means - means.mean(0), spread[fit], spread[~fit], max(1, int(fit.sum()) - len(bench.anchors)))

    def _added(self, index: int, server: Server) -> float:
        part, count = self._parts[index], self.trials
        drawn = self._noise(server, f"added/{index}", count + ENOUGH)
        added = None if drawn is None else draw_bounds(drawn, server.protection)[0]
        known = Filter(part.fit, Limiter(None if added is None else added[count:], self.weights), part.freedom)
        truth = torch.arange(count, device=self.weights.device) % len(part.means)
        rest = torch.arange(count, device=self.weights.device) % len(part.held)
        updates = part.means[truth] + part.held[rest] + (0.0 if added is None else added[:count])
        products = known.products(updates, part.means.unsqueeze(0))
        settings = [(limit, floor) for limit in range(len(known.limiter)) for floor in FLOORS]
        tried = [ranks(known.likelihood(products, *setting), truth) for setting in settings]
        best = min(tried, key=lambda ranking: float(ranking.log.mean()))  # as the attack chooses them
        return float(best.first.double().mean())

    # -- noise that is learned -------------------------------------------------------------------------------------

    def _simulated(self, index: int, server: Server) -> float:
        place, count = self.places[index], min(self.trials, LEARNED_TRIALS)
        bench, rows = self._bench(place, server), torch.arange(count, device=self.weights.device)
        companions = Companions(self.public, self.seed, f"identification/{index}")
        batch = self.public[0][companions.draw(place.labels.expand(count, -1), rows)]
        truth = rows % len(place.images)
        batch[:, place.position] = place.images[truth]
        drawn = self._noise(server, f"simulated/{index}", count)
        released = respond(server, self.weights, batch, place.labels.expand(count, -1), drawn)
        if self.on_release:
            self.on_release(count)
        scores = bench.scores(released - self.weights, place.records)[0]
        return float(ranks(scores, truth).first.double().mean())
