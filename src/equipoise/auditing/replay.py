"""Replay a federation from its config and seed, and combine the releases of one client over all rounds.

The run's own code trains again; every release passes by once and is not kept. Examples of the client, which only a
replay knows, are the truth that the attacker looks for among public decoys: no image of theirs leaves this function.

Every result stands between two controls. *Positive*: the same attack on the same client's releases at the same weights
without their distortion. *Negative*: a random decoy in the truth's place, the truth left out. By a rule that was fixed
before any result, the positive control fails where the lower end of its interval is not above ``ABLE`` times chance; a
low result then says nothing about the protection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attack.multi_round import Candidates, Combined, Observation, Scores, Scoring, against_others, combine
from ..attack.simulate import respond_all, undistorted
from ..attack.view import Server
from ..data.dataset import Dataset
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..engine.tables import LENGTH, Block
from ..errors import ConfigError, is_whole
from ..mechanism.registry import get_mechanism
from ..models.named import Factory
from ..statistics import Ranking, bootstrap_auc, grouped_interval, ranks, tpr_at
from .cells import server_of
from .results import THINGS, evidence
from .targets import Materials

EXAMPLES, DECOYS, AROUND = 100, 24, 32
"""Images of the client, decoys for each of their labels, and batches of companions, unless told otherwise."""
GRADIENTS = 6000
"""Gradients of one image that a core computes in a second, with the bundled LeNet; an H200 about 350,000."""
ABLE = 10
"""How many times chance the lower end of a positive control has to exceed."""
OVER = "other {things} and decoys; all share the releases of one run, so not other runs, noise or clients"
"""What the intervals cover."""


Window = list[Observation]


def windows(
    sweep: Sweep,
    client: int,
    examples: Tensor,
    rounds: int,
    server: Server,
    on_round: Callable[[int], None] | None = None,
    *,
    every: bool = True,
) -> Iterator[list[Window]]:
    """The releases of one client in each federation of a sweep, with and without distortion, a few rounds at a time.

    ``examples`` are rows of the training images; without ``every``, rounds that hold none of them are left out. All
    federations have the same seed and data: their batches are the same.
    """
    seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in sweep.federations]
    plain = undistorted(server)

    def keep(block: Block, released: Tensor) -> None:
        if block.slots.start <= client < block.slots.stop:
            mine = released.view(*block.shape, -1)[:, client - block.slots.start]
            for place, sent in zip(range(block.federations.start, block.federations.stop), mine, strict=True):
                seen[place].append((sweep.state.params[place].clone(), sent.clone()))

    sweep.on_releases = keep
    for start in range(1, rounds + 1, LENGTH):
        window = list(range(start, min(start + LENGTH, rounds + 1)))
        batches = sweep.tables(window).batches[:, client]
        present = (batches.unsqueeze(1) == examples.view(1, -1, 1)).any(2)  # [rounds, X]
        wanted = [i for i, held in enumerate(present.any(1).tolist()) if every or held]
        for several in seen:
            several.clear()
        sweep.train(window[-1])
        yield [_window(plain, several, window, wanted, batches, present, sweep) for several in seen]
        if on_round:
            for round_number in window:
                on_round(round_number)


def _window(
    plain: Server, seen: list[tuple[Tensor, Tensor]], window: list[int], wanted: list[int], batches: Tensor,
    present: Tensor, sweep: Sweep,
) -> Window:  # fmt: skip
    """What one federation sent in the wanted rounds of a window."""
    if not wanted:
        return []
    started, rows = torch.stack([seen[i][0] for i in wanted]), batches[wanted]
    clean = respond_all(plain, started, sweep.inputs[rows], sweep.labels[rows])
    return [Observation(window[i], seen[i][0], seen[i][1], present[i], clean[place]) for place, i in enumerate(wanted)]


# -- whom the attacker looks for -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suspects:
    """Examples of one client, each at a random place among decoys of its label that no client has."""

    examples: Tensor  # [X]: rows of the training images
    candidates: Candidates  # the examples, then the decoys
    place: Tensor  # [X]: the column of the choices where the example itself stands
    never: int  # images of the client that took part in no round


def suspects(sweep: Sweep, dataset: str, client: int, rounds: int, examples: int, decoys: int, seed: int) -> Suspects:
    """Random examples among those that took part, as many of each label as there are; decoys are public."""
    generator = torch.Generator().manual_seed(seed)
    part = sweep.parts[dataset][client]
    took = part[_appearances(sweep, client, rounds).cpu()[part] > 0]
    rows = _balanced(took, sweep.labels.cpu()[took], examples, generator)
    labels = sweep.labels.cpu()[rows]
    known = labels.unique()
    images, classes = (t.cpu() for t in Materials.of(sweep.datasets[dataset]).pool)
    pools = [(classes == label).nonzero().flatten() for label in known.tolist()]
    width = min(decoys, *(len(pool) for pool in pools))
    if width < 1:
        raise ConfigError(
            "A label of the client's examples has no public one to serve as a decoy.",
            "Give public data of every label.",
        )
    order = torch.cat([pool[torch.randperm(len(pool), generator=generator)[:width]] for pool in pools])
    others = len(rows) + torch.searchsorted(known, labels).unsqueeze(1) * width + torch.arange(width)
    choices = torch.cat([torch.arange(len(rows)).unsqueeze(1), others], dim=1)  # the example first, then ...
    place = torch.randint(width + 1, (len(rows),), generator=generator)
    column = torch.arange(len(rows))
    choices[column, 0], choices[column, place] = choices[column, place], choices[column, 0].clone()
    device = sweep.device
    held = Candidates(
        torch.cat([sweep.inputs[rows.to(device)], images[order].to(sweep.inputs)]),
        torch.cat([labels, classes[order]]).to(device),
        choices.to(device),
    )
    return Suspects(rows.to(device), held, place.to(device), len(part) - len(took))


def _appearances(sweep: Sweep, client: int, rounds: int) -> Tensor:
    """How often every training image takes part in the client's rounds."""
    total = torch.zeros(len(sweep.labels), dtype=torch.int64, device=sweep.device)
    for start in range(1, rounds + 1, LENGTH):
        rows = sweep.tables(list(range(start, min(start + LENGTH, rounds + 1)))).batches[:, client].flatten()
        total += torch.bincount(rows, minlength=len(total))
    return total


def _balanced(rows: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """At most ``count`` of the rows at random: one of every label in turn, for as long as there are some."""
    rows, labels = (t[order] for order in [torch.randperm(len(rows), generator=generator)] for t in (rows, labels))
    turn = torch.zeros_like(labels)
    for label in labels.unique().tolist():
        own = labels == label
        turn[own] = torch.arange(int(own.sum()))
    return rows[turn.argsort(stable=True)[:count]]  # the first of each label, in random order, then the second ...


# -- the replay ----------------------------------------------------------------------------------------------------


def replayed(
    settings: Settings,
    federation: Federation,
    rounds: int,
    *,
    on_round: Callable[[int], None] | None = None,
    **how: Any,
) -> dict[str, Any]:
    """How often examples of a client are found among decoys from the releases that hold them, and from all.

    See ``replayed_all``, which takes several federations.
    """
    return replayed_all(settings, [federation], rounds, on_round=on_round, **how)[0]


def replayed_all(
    settings: Settings,
    federations: Sequence[Federation],
    rounds: int,
    *,
    examples: int = EXAMPLES,
    decoys: int = DECOYS,
    around: int = AROUND,
    pairs: int = 1,
    client: int = 0,
    seed: int = 0,
    unknown: bool = True,
    on_round: Callable[[int], None] | None = None,
    datasets: dict[str, Dataset] | None = None,
    model: nn.Module | Factory | None = None,
) -> list[dict[str, Any]]:
    """Likewise for federations with one seed and one dataset, which are trained together.

    Args:
        settings: those of the run.
        federations: which of its federations.
        rounds: how many of its rounds, from the first.
        examples: how many images of the client to look for, over all labels; fewer where fewer took part.
        decoys: how many public images of its label each is hidden among; those of a label share them.
        around: batches of public images from which the companions' covariance is taken in every round.
        pairs: pairs of opposite noise under which a learner is simulated.
        client: whose releases.
        seed: of examples, decoys and whatever the attacker draws.
        unknown: whether to attack with an unknown schedule too, for which every release counts: several times as long.
        on_round: called after every round.
        datasets: by name, with the public images to attack with; not given: they are loaded as the run did.
        model: a function that builds it, where it is not bundled.

    Returns:
        A row of numbers and words for each: identification with intervals, both controls, how many releases hold an
        example; and which were identified, from which ``rates`` makes the numbers.
    """
    numbers = {"rounds": rounds, "examples": examples, "decoys": decoys, "around": around, "pairs": pairs}
    for federation in federations:
        _check(settings, federation, numbers, client)
    if len({(federation.seed, federation.dataset) for federation in federations}) != 1:
        raise ConfigError("Federations that are replayed together need one seed and one dataset.", "Replay them apart.")
    sweep = Sweep(settings, federations, datasets, model)
    name = federations[0].dataset
    data = sweep.datasets[name]
    asked = suspects(sweep, name, client, rounds, examples, decoys, seed)
    servers = [
        server_of(settings, data, sweep.batched, settings.protection.at(fed.mechanism, fed.budget, 1))
        for fed in sweep.federations
    ]
    public = Materials.of(data).to(sweep.device, sweep.dtype).attack
    assert public is not None
    scoring = [
        Scoring(server, public, asked.candidates, around=around, pairs=pairs, seed=seed, every=unknown)
        for server in servers
    ]
    for several in windows(sweep, client, asked.examples, rounds, servers[0], on_round, every=unknown):
        for one, window in zip(scoring, several, strict=True):
            one.add(window)
    size = len(sweep.parts[name][client])
    counts = _counts(_appearances(sweep, client, rounds)[asked.examples], rounds, asked, size, examples, data.kind)
    rows = [
        {**_about(fed), **counts, **_found(one.scores(), asked, servers[0].examples / size, seed, unknown)}
        for fed, one in zip(sweep.federations, scoring, strict=True)
    ]
    return sweep.in_order(rows)


def _about(federation: Federation) -> dict[str, Any]:
    return {
        "attack": "multi-round", "dataset": federation.dataset, "mechanism": federation.mechanism,
        "budget": federation.budget, "seed": federation.seed, "learns": get_mechanism(federation.mechanism).learns,
    }  # fmt: skip


def _found(scores: Scores, asked: Suspects, chance: float, seed: int, unknown: bool) -> dict[str, Any]:
    how = (scores.present, asked.candidates.choices, chance)
    own = combine(scores.own, scores.learned, *how, seed=seed)
    plain = combine(scores.undistorted, None, *how, seed=seed)
    return {**_rates(own, plain, asked, seed, unknown), **_membership(own.known, asked.place, seed)}


def _membership(known: Tensor, place: Tensor, seed: int) -> dict[str, Any]:
    """Whether a record was in these releases, with the schedule that it would have had: its log-likelihood against the
    mean over decoys of its label. Decoys play those that were not, each against the other decoys."""
    mine, count = place.unsqueeze(1), known.shape[1] - 1
    if count < 2:
        return {}
    decoys = known[torch.ones_like(known, dtype=torch.bool).scatter(1, mine, False)].view(-1, count).double()
    member = known.gather(1, mine).double() - (decoys.logsumexp(1, keepdim=True) - math.log(count))
    others = against_others(decoys)
    scores = member.cpu().numpy(), others.cpu().numpy()
    ends = bootstrap_auc(*scores, seed=seed)
    low, high = (None, None) if ends is None else ends[1]
    name = "membership_tpr_schedule_known"
    return {name: tpr_at(*scores), f"{name}_low": low, f"{name}_high": high}


def planned(
    settings: Settings,
    federation: Federation,
    rounds: int,
    *,
    classes: int,
    size: int,
    examples: int = EXAMPLES,
    decoys: int = DECOYS,
    around: int = AROUND,
    pairs: int = 1,
) -> int:
    """About how many gradients of one image ``replayed`` will compute: nearly all of its time.

    ``size`` is how many images the client has. Divided by ``GRADIENTS`` the result is the seconds on one core.

    >>> static, learned = (Federation("mnist", name, 0.98) for name in ("pl-identical", "pl-learn"))
    >>> [planned(Settings(), fed, 5000, classes=10, size=1000) for fed in (static, learned)]
    [8160000, 24625000]
    """
    own = settings.protection
    batch, learning = own.batch * own.local_steps, own.steps * own.batch
    simulated = (2 * around + examples + decoys * classes) * batch
    trained = own.clients * batch
    if get_mechanism(federation.mechanism).learns:
        took = 1 - (1 - batch / size) ** rounds  # the share of the client's images that take part at all ...
        slots = batch * min(1.0, examples / max(1.0, took * size))  # ... and examples looked for, in a round
        held = 1 - (1 - slots / batch) ** batch
        candidates = min(classes, slots / max(held, 1e-9)) * (decoys + examples / classes)
        simulated += int(held * (2 * around + candidates) * 2 * pairs * (batch + learning))
        trained += own.clients * learning
    return rounds * (trained + simulated)


# -- the row -------------------------------------------------------------------------------------------------------


def _counts(often: Tensor, rounds: int, asked: Suspects, size: int, wanted: int, kind: str = "image") -> dict[str, Any]:
    """How much there was to find, and in how many releases."""
    things = f"{THINGS[kind]}s"
    count, width = asked.candidates.choices.shape
    notes = []
    if count < wanted:
        notes.append(f"Only {count} of the client's {size} {things} took part, where {wanted} were asked for.")
    labels = asked.candidates.kinds.tolist()
    if len(set(labels)) < 6:
        notes.append(f"{things.capitalize()} of a label share decoys, and fewer than six labels give no interval.")
    if width <= ABLE:
        notes.append(f"{ABLE} times chance is out of reach of any control with {width} candidates: give more decoys.")
    return {
        "rounds": rounds, "targets": count, "labels": labels, "candidates": width,
        "chance": f"1 in {width}", "client_images": size, "client_images_in_no_release": asked.never,
        "releases_per_example": float(often.double().mean()), "releases_per_example_least": int(often.min()),
        "releases_per_example_most": int(often.max()), "evidence": evidence(int((often > 0).sum())),
        "interval_over": OVER.format(things=things), "note": " ".join(notes) or None,
    }  # fmt: skip


def _rates(own: Combined, plain: Combined, asked: Suspects, seed: int, unknown: bool) -> dict[str, Any]:
    """Identification with intervals: the result, both controls, and what failed by the rule."""
    found: dict[str, Ranking] = {}
    ways = [("one_release", own.single, plain.single), ("schedule_known", own.known, plain.known)]
    for name, table, control in [*ways, ("schedule_unknown", own.unknown, plain.unknown)] if unknown else ways:
        found[name] = ranks(table, asked.place)
        found[f"{name}_undistorted"] = ranks(control, asked.place)
        found[f"{name}_decoy"] = decoy_ranks(table, asked.place, seed)
    if unknown:
        found["other_releases"] = ranks(own.elsewhere, asked.place)
    named = {name: ranking.first.tolist() for name, ranking in found.items()}
    return {
        **rates(named, asked.candidates.kinds.tolist(), asked.candidates.choices.shape[1]), "identified": named,
        "log_rank_schedule_known": float(found["schedule_known"].log.mean()),
    }  # fmt: skip


def rates(found: dict[str, list[float]], labels: list[int], candidates: int) -> dict[str, Any]:
    """All that follows from which examples were identified (a tie counts in part) and their labels.

    Examples of a label share their decoys, so intervals are over labels.
    """
    result: dict[str, Any] = {}
    for name, first in found.items():
        result[f"identification_{name}"] = sum(first) / len(first)
        ends = grouped_interval(first, labels) or (None, None)
        result[f"identification_{name}_low"], result[f"identification_{name}_high"] = ends
    for name in (way for way in ("schedule_known", "schedule_unknown") if way in found):
        low = result[f"identification_{name}_undistorted_low"]
        result[f"control_failed_{name}"] = low is None or not low > ABLE / candidates
    return {**result, "control_failed": result["control_failed_schedule_known"]}


def decoy_ranks(table: Tensor, place: Tensor, seed: int) -> Ranking:
    """Where a random decoy comes by the scores ``[X, K]``, the truth in the columns ``place`` ``[X]`` left out."""
    count, width = table.shape
    drawn = torch.randint(width - 1, (count,), generator=torch.Generator().manual_seed(seed + 1)).to(table.device)
    return ranks(table.scatter(1, place.unsqueeze(1), torch.nan), (place + 1 + drawn) % width)


def _check(settings: Settings, federation: Federation, numbers: dict[str, int], client: int) -> None:
    wrong = [f"{name}={value!r}" for name, value in numbers.items() if not is_whole(value) or value < 1]
    beyond = not wrong and (numbers["rounds"] > settings.training.rounds or numbers["around"] < 4)
    if wrong or beyond or not is_whole(client) or not 0 <= client < settings.protection.clients:
        words = ", ".join(wrong) or f"rounds={numbers['rounds']}, client={client}, around={numbers['around']}"
        raise ConfigError(
            f"Impossible to combine releases with {words}.",
            f"Use positive whole numbers, around >= 4, rounds <= {settings.training.rounds}, "
            f"client < {settings.protection.clients}.",
        )
    if settings.training.participants not in (None, settings.protection.clients):
        raise ConfigError(
            "Combining the releases of one client needs one that takes part in every round.",
            "Leave out multi-round, or train with all clients.",
        )
    for name, value in (
        ("budget", federation.budget),
        ("gamma", settings.protection.gamma),
        ("negative_norm", settings.protection.negative_norm),
    ):
        if value is not None and not isinstance(value, int | float):
            raise ConfigError(f"Combining releases needs one {name} for all rounds, got {value!r}.", "Use a number.")
