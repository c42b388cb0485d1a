"""Algorithm 1 (PPFA) of Zhang et al. (arXiv:2305.15148), for one federation or for a whole sweep in one batch.

``Sweep.round`` is the algorithm in straight-line code. Federations with the same mechanism are worked on
together, ``chunk`` clients at a time; on a CPU no result depends on that grouping. On a GPU the round is captured once
and replayed (``cuda_graph.py``), and rounding depends on the size of the batch.

A sweep is a seeded experiment: all its randomness follows from the seeds (``randomness.py``), so its whole
state between rounds is the global parameters and a few running sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..data.partition import weights
from ..errors import ConfigError
from ..mechanism.constants import warn_of_each
from ..mechanism.records import of_units
from ..mechanism.registry import Mechanism, get_mechanism
from ..mechanism.release import Noise, Release, observed_release
from ..mechanism.schedule import schedule
from ..mechanism.units import Pool, Records, Units
from ..models.batched import Batched
from ..models.features import FeatureModel
from ..models.inputs import placed
from ..models.named import Factory, chosen, model_of
from ..models.routes import SHARED
from ..randomness import experiment_key, uniform
from ..server.aggregate import Total
from . import metrics
from .cuda_graph import MOST_STREAMS, RoundGraph, capturable, side_by_side
from .datasets import alike, dataset_labels, dealt, load_dataset
from .draws import Draws
from .feature_data import joined_groups, on_features, pool_of
from .federation import Federation
from .full_record import full_record
from .memory import keep_freed_memory
from .routing import route_of
from .settings import Settings, check
from .state import Event, Preview, State
from .tables import LENGTH, Block, Tables, blocks, build_tables, default_chunk

NOISE_TABLE = {"cpu": 32 << 20, "cuda": 2 << 30}
"""Bytes up to which the noise of a round is drawn once for all blocks rather than block by block."""

Progress = Callable[[int], None]
T = TypeVar("T")


class Sweep:
    """All federations of a sweep, trained together.

    >>> sweep = Sweep(Settings.flat(rounds=2), [Federation("mnist", "pl-learn", 0.98)])
    >>> [row["round"] for event in sweep.run() for row in event.rows]
    [2]
    """

    def __init__(
        self,
        settings: Settings,
        federations: Sequence[Federation],
        datasets: dict[str, Dataset] | None = None,
        model: nn.Module | Factory | None = None,
    ):
        """
        Args:
            settings: shared by all federations; their ``model`` is a bundled one unless ``model`` is given.
            federations: what differs between them.
            datasets: by the names that federations have for them; the others are loaded.
            model: a module, whose weights all federations start from; or a function that builds one, with ``shape``,
                ``classes`` and ``vocabulary`` where it takes these: it is called for every seed, under that seed, and
                the weights that it gives are the first ones.
        """
        check(settings, list(federations))
        keep_freed_memory()
        settings = settings.for_run()
        if settings.run.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"The device {settings.run.device!r} is not available.", "Use --device cpu.")
        self.settings, self.device = settings, torch.device(settings.run.device)
        self.dtype: torch.dtype = getattr(torch, settings.run.dtype)
        mechanisms = list(dict.fromkeys(fed.mechanism for fed in federations))
        self.order = sorted(range(len(federations)), key=lambda i: mechanisms.index(federations[i].mechanism))
        self.federations = [federations[i] for i in self.order]  # one mechanism after the other
        names = dict.fromkeys(fed.dataset for fed in federations)
        self.datasets = {name: (datasets or {}).get(name) or load_dataset(settings, name) for name in names}
        self.dataset_labels = dataset_labels(self.datasets)
        sample = alike(self.datasets)
        self._build: Callable[[], nn.Module] = partial(
            model_of, chosen(settings.training.model, model), sample.shape, sample.classes, sample.vocabulary
        )
        with torch.random.fork_rng(devices=[]):  # the weights drawn here are not used: leave the caller's state alone
            network = copy.deepcopy(model) if isinstance(model, nn.Module) else self._build()
        self._own_init = model is not None or settings.training.init == "torch"
        self.given_model = model if isinstance(model, nn.Module) else None
        self.on_features = isinstance(network, FeatureModel)
        if isinstance(network, FeatureModel):  # the head is trained, on features that are made once
            self.datasets = {name: on_features(network, data) for name, data in self.datasets.items()}
            self.given_model = None if self.given_model is None else network.head_model()
            network, sample = network.head_model(), next(iter(self.datasets.values()))
        self._place_data()
        self._place_model(network, sample, [get_mechanism(name) for name in mechanisms])
        self.state = self._initial_state()
        self.relative = torch.full((len(federations), self.draws.slots), torch.nan, device=self.device)
        self._evaluated, self._watched = set(settings.evaluated()), self.device.type == "cuda"  # replayed as captured
        self._graph: RoundGraph | None = None
        self.on_releases: Callable[[Block, Tensor], None] | None = None  # sees the releases [R, P] of every block
        self.on_tables: Callable[[list[int], Tables], None] | None = None  # sees what some rounds recorded, and which

    # -- the run ---------------------------------------------------------------------------------------------

    def run(self, on_round: Progress | None = None) -> Iterator[Event]:
        """Train to the end. Yields after every few rounds; the state is whole whenever it does."""
        s, full = self.settings, set(self.settings.fully_recorded())
        warn_of_each(self.batched.model, [(fed.mechanism, fed.budget) for fed in self.federations], s.protection)
        evaluated, snapshots = set(s.evaluated()), set(s.snapshot_rounds())
        marks = sorted(evaluated | snapshots | {round_number - 1 for round_number in full})
        if self.state.round == 0 and 0 in snapshots:
            yield Event(0, [], snapshot=True)
        while self.state.round < s.training.rounds:
            extra = full_record(self) if self.state.round + 1 in full else None
            stop = min(next(mark for mark in marks if mark > self.state.round), self.state.round + LENGTH)
            self.train(stop, on_round)
            rows = metrics.evaluate(self, extra) if stop in evaluated else []
            yield Event(stop, self.in_order(rows) if rows else [], stop in snapshots)

    def train(self, until: int, on_round: Progress | None = None) -> None:
        """Train up to and including round ``until``, without evaluating."""
        while self.state.round < until:
            rounds = list(range(self.state.round + 1, min(until, self.state.round + LENGTH) + 1))
            done = self._train_rounds(rounds, self.tables(rounds), on_round)
            self.state.round = rounds[-1]
            self.state.tally.add(done)
            if self.on_tables is not None:
                self.on_tables(rounds, done)

    def _train_rounds(self, rounds: list[int], tables: Tables, on_round: Progress | None) -> Tables:
        if self._graph is None and capturable(self, rounds):
            self._graph = RoundGraph(self, self.tables(list(range(rounds[0], rounds[0] + LENGTH))))
        if self._graph is not None and self.on_releases is None:
            return self._graph.run(rounds, tables, on_round)
        for i, round_number in enumerate(rounds):
            step, self._watched = torch.tensor([i], device=self.device), round_number in self._evaluated
            self.state.params = self.round(tables, step, self.noise_table(round_number))
            if on_round:
                on_round(round_number)
        return tables

    def round(self, tables: Tables, step: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Algorithm 1, l. 4-10, for all federations; ``step`` ``[1]`` is the round's row of the tables."""
        total = Total(self.state.params)
        for block, (released, distortion) in self._releases(tables, step, noise):  # l. 4-8: clients in parallel
            f, k, shape, record = block.federations, block.slots, block.shape, released.record
            share = tables.weights.index_select(0, step)[0, f, k]
            parameters, distortion = released.parameters.view(*shape, -1), distortion.view(*shape, -1)
            total.add(f, parameters, distortion, share, record.accepted.view(shape))
            if self.on_releases is not None:
                self.on_releases(block, released.parameters)
            if self._watched:
                self.relative[f, k] = metrics.noise_to_update(self.state.params[f], parameters, distortion)
            for name in ("utility_loss", "intensity", "clipped", "accepted"):
                getattr(tables, name)[:, f, k].index_copy_(0, step, getattr(record, name).view(1, *shape))
        rate = tables.server_rate.index_select(0, step)[0]
        new, size = total.step(self.state.params, rate, self.settings.training.min_clients)  # l. 10
        tables.distortion.index_copy_(0, step, size.unsqueeze(0))
        if self.state.velocity is None:
            return new
        self.state.velocity.mul_(self.settings.training.server_momentum).add_(new - self.state.params)
        return self.state.params + self.state.velocity

    def _releases(
        self, tables: Tables, step: Tensor, noise: dict[str, Tensor]
    ) -> Iterator[tuple[Block, tuple[Release, Tensor]]]:
        def task(block: Block) -> Callable[[], tuple[Release, Tensor]]:
            return lambda: self.release(block, tables, step, self.block_noise(block, noise))

        some = len(self.blocks) <= MOST_STREAMS and not self.settings.run.chunk  # one that is set bounds the memory
        if some and self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            yield from zip(self.blocks, side_by_side([task(block) for block in self.blocks]), strict=True)
        else:
            yield from ((block, task(block)()) for block in self.blocks)  # memory is that of one block

    def release(self, block: Block, tables: Tables, step: Tensor, noise: Noise) -> tuple[Release, Tensor]:
        """Algorithm 1, l. 5-8, for the clients of one block; also the distortion behind each release."""
        s, (f, k) = self.settings, (block.federations, block.slots)
        if block.mechanism.whole_run:
            return self._release_of_units(block, tables, step, noise)
        examples = tables.batches.index_select(0, step)[0].index_select(0, block.even(block.data))  # l. 5: [R, L*B]
        x, y = self.inputs[examples], self.labels[examples]
        steps = [slice(i * s.protection.batch, (i + 1) * s.protection.batch) for i in range(s.protection.local_steps)]
        objectives = [self.batched.at(x[:, part], y[:, part]) for part in steps]
        start = block.start(self.state.params)

        def rows(table: Tensor) -> Tensor:
            return block.even(table.index_select(0, step)[0, f, k].reshape(-1))

        protection = s.protection.of_rows(
            block.mechanism, rows(tables.scale), rows(tables.gamma), rows(tables.negative_norm)
        )
        noise = block.even(noise) if isinstance(noise, Tensor) else noise
        released, distortion = observed_release(objectives, start, noise, s.protection.eta, protection)
        return released.first(len(block.rows)), distortion[: len(block.rows)]

    def _release_of_units(self, block: Block, tables: Tables, step: Tensor, noise: Noise) -> tuple[Release, Tensor]:
        """Clients whose mechanism draws its own batch from all that they have."""
        s, (f, k) = self.settings, (block.federations, block.slots)
        clients = tables.clients.index_select(0, step)[0, f, k].tolist()
        parts = [self.parts[fed.dataset] for fed in self.federations[f]]
        rows = [part[client] for part, mine in zip(parts, clients, strict=True) for client in mine]
        scale = tables.scale.index_select(0, step)[0, f, k].reshape(-1)
        start = self.state.params[f].repeat_interleave(block.shape[1], dim=0)
        protection = s.protection.of_rows(block.mechanism, scale, 0.0, 0.0)
        return observed_release([of_units(Units(self.pool, rows))], start, noise, s.protection.eta, protection)

    @cached_property
    def pool(self) -> Pool:
        """All records, for a mechanism that sums over units."""
        records = Records(self.inputs, self.labels, joined_groups(list(self.datasets.values())))
        return pool_of(self.batched, records, alike(self.datasets).classes, self.settings.protection, self.on_features)

    # -- a look without a step -------------------------------------------------------------------------------

    def preview(self) -> Iterator[Preview]:
        """What every client will do in the coming round, block by block; nothing changes.

        The round's randomness is keyed by seed, client and round, so looking at it here does not use it up.
        """
        round_number = self.state.round + 1
        tables, step = self.tables([round_number]), torch.zeros(1, dtype=torch.int64, device=self.device)
        table = self.noise_table(round_number)
        for block in self.blocks:
            noise = self.block_noise(block, table)
            released, distortion = self.release(block, tables, step, noise)
            standard = noise if isinstance(noise, Tensor) else None
            yield Preview(block, released.parameters, distortion, standard, tables)

    def at(self, round_number: int, params: Tensor, eta: float | None = None) -> Sweep:
        """This sweep as it would stand after a round at ``params`` ``[F, P]``, to look at rounds from there.

        Schedules hold still at what they are in the next round; ``eta`` may be another one. Data and draws are shared,
        the state is not.
        """
        other, s, coming = copy.copy(self), self.settings, round_number + 1

        def now(value: Any) -> Any:
            return schedule(value, [coming], s.protection.clients)[0] if isinstance(value, Mapping) else value

        own = s.protection
        other.settings = s.replace(
            eta=own.eta if eta is None else eta, gamma=now(own.gamma), negative_norm=now(own.negative_norm)
        )
        other.federations = [replace(fed, budget=now(fed.budget)) for fed in self.federations]
        velocity = None if self.state.velocity is None else torch.zeros_like(params)
        other.state = State(round_number, params, copy.deepcopy(self.state.tally), velocity)
        other.relative, other._watched = torch.full_like(self.relative, torch.nan), self.device.type == "cuda"
        other._graph, other.on_releases, other.on_tables = None, None, None
        return other

    # -- randomness ------------------------------------------------------------------------------------------

    @property
    def formal(self) -> bool:
        """Whether a mechanism draws integers, which a GPU cannot record and replay."""
        return any(block.mechanism.formal for block in self.blocks)

    @property
    def noise_fits(self) -> bool:
        size = self.draws.streams * self.batched.layout.size * torch.finfo(self.dtype).bits // 8
        return size <= NOISE_TABLE[self.device.type]

    def draw(
        self, rounds: list[int], family: str, streams: list[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Standard noise ``[rounds, streams, P]``, written into ``out`` where one is given."""
        rows, size = list(range(self.draws.streams)) if streams is None else streams, self.batched.layout.size
        if out is None and self.device.type == "cpu":
            return self.draws.noise(rounds, rows, size, family, self.dtype, self.device)
        out = torch.empty(len(rounds), len(rows), size, dtype=self.dtype, device=self.device) if out is None else out
        return self.draws.fill(out, rounds, rows, family, max(len(block.rows) for block in self.blocks))

    def noise_table(self, round_number: int) -> dict[str, Tensor]:
        """Noise ``[streams, P]`` by family; the round, for blocks to draw by: where it is too large, or of integers."""
        mechanisms = [block.mechanism for block in self.blocks if block.mechanism.draws]
        if not self.noise_fits:
            return {"round": torch.tensor(round_number)}
        families = dict.fromkeys(mechanism.noise for mechanism in mechanisms if not mechanism.formal)
        table = {family: self.draw([round_number], family)[0] for family in families}
        return table | {"round": torch.tensor(round_number)} if self.formal else table

    def block_noise(self, block: Block, noise: dict[str, Tensor]) -> Noise:
        if not block.mechanism.draws:
            return None
        if block.mechanism.formal:
            rows = (block.rows if block.mechanism.whole_run else block.even(block.rows)).tolist()
            return self.draws.words(int(noise["round"]), rows)
        if block.mechanism.noise in noise:
            return block.noise(noise[block.mechanism.noise])
        streams, place = torch.unique(block.rows, return_inverse=True)
        drawn = self.draw([int(noise["round"])], block.mechanism.noise, streams.tolist())[0]
        return drawn if block.span else drawn.index_select(0, place)

    # -- set-up and accounts -----------------------------------------------------------------------------------

    def tables(self, rounds: list[int]) -> Tables:
        """The tables of the given rounds."""
        return build_tables(
            rounds, self.settings, self.federations, self.draws, parts=self.parts, shares=self.shares,
            parameters=self.batched.layout.size, dtype=self.dtype, device=self.device,
        )  # fmt: skip

    def in_order(self, values: Sequence[T]) -> list[T]:
        """Values that follow ``federations``, in the order in which the caller named these."""
        return [values[self.order.index(i)] for i in range(len(self.order))]

    def models(self) -> Tensor:
        """The global models ``[F, P]`` in the caller's order."""
        return self.state.params[self.in_order(range(len(self.order)))]

    def about(self, federation: Federation) -> dict[str, Any]:
        """A federation as records describe it: its dataset by label, never by a path."""
        return {**asdict(federation), "dataset": self.dataset_labels[federation.dataset]}

    def federations_on(self, dataset: str) -> list[int]:
        """The federations that train on a dataset, as places in ``federations``."""
        return [i for i, fed in enumerate(self.federations) if fed.dataset == dataset]

    def examples(self, dataset: str) -> Tensor:
        """Rows of all training examples of a dataset, client after client."""
        return torch.cat(self.parts[dataset]).to(self.device)

    def _place_data(self) -> None:
        s = self.settings
        self.parts: dict[str, list[Tensor]] = {}
        self.shares: dict[str, Tensor] = {}
        self.test_parts: dict[tuple[str, str], list[Tensor]] = {}
        offset = 0
        for name, dataset in self.datasets.items():
            parts, held = dealt(s, dataset)
            self.parts[name] = [part + offset for part in parts]
            self.shares[name] = weights(parts)
            self.test_parts |= {(name, prefix): rows for prefix, rows in held.items()}
            offset += len(dataset.train)
        sets = [dataset.train for dataset in self.datasets.values()]
        self.inputs = placed(torch.cat([part.inputs for part in sets]), self.device, self.dtype)
        self.labels = torch.cat([part.labels for part in sets]).to(self.device)

    def _place_model(self, network: nn.Module, sample: Dataset, used: Sequence[Mechanism]) -> None:
        """The model in batched form, and the clients in blocks that fit into memory."""
        s = self.settings
        alone = any(mechanism.per_example for mechanism in used)  # every example by itself
        seeds = list(dict.fromkeys(fed.seed for fed in self.in_order(self.federations)))
        self.draws = Draws(seeds, s.protection.clients, s.training.participants)
        network.to(self.device, self.dtype)
        route, self.route_seconds = route_of(s, network, sample, clients=self.draws.slots, alone=alone)
        self.batched = Batched(network, device=self.device, route=route)
        at_once = any(mechanism.per_example and not mechanism.whole_run for mechanism in used)
        pixels = self.inputs[0].numel() * s.protection.batch * s.protection.local_steps
        size = self.batched.layout.size * (s.protection.batch if at_once else 1)
        shared = self.batched.route in SHARED
        chunk = s.run.chunk or default_chunk(size, pixels, self.dtype, self.device, shared)
        paired = shared and self.device.type == "cpu"
        self.blocks = list(blocks(self.federations, list(self.datasets), self.draws, chunk, self.device, paired))

    def _initial_state(self) -> State:
        starts = {seed: self._initial_params(seed) for seed in self.draws.seeds}
        params = torch.stack([starts[fed.seed] for fed in self.federations]).to(self.device)
        velocity = torch.zeros_like(params) if self.settings.training.server_momentum else None
        return State(0, params, metrics.Tally.empty(len(self.federations), self.draws.slots), velocity)

    def _initial_params(self, seed: int) -> Tensor:
        layout = self.batched.layout
        if self.given_model is not None:
            return layout.flatten(dict(self.given_model.named_parameters())).to("cpu", self.dtype)
        if not self._own_init:
            numbers = uniform([experiment_key(seed, "init")], [0], [0], layout.size, torch.float64)[0, 0]
            return ((2 * numbers - 1) * self.settings.training.init_bound).to(self.dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return layout.flatten(dict(self._build().named_parameters())).to(self.dtype)
