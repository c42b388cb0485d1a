"""The mechanism as the attacker runs it: the client's own code on public records, with the attacker's own noise.

Nothing here knows a mechanism by name. ``respond`` calls ``release.release``, so every present and future mechanism is
simulated exactly as clients run it; but for formal ones, whose step and noise are simulated in floats, off their grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .. import workers
from ..mechanism.distortion import draw_bounds
from ..mechanism.noise import standard_noise
from ..mechanism.release import local_step, release
from ..randomness import Key, experiment_key, uniform
from .view import Public, Server, even

ROOM = {"cpu": 256 << 20, "cuda": 12 << 30}
"""Bytes that one chunk of simulated releases may take."""
LEAST = 16
"""Releases that are worth a worker."""


def respond(server: Server, previous: Tensor, images: Tensor, labels: Tensor, noise: Tensor | None) -> Tensor:
    """The releases ``[R, P]`` of R clients that start from ``previous`` ``[P]`` or ``[R, P]`` with ``[R, E, ...]``.

    On a CPU the clients are dealt to workers, where the model's kernels allow that. The numbers are the same.
    """
    start = previous.expand(len(images), -1)
    parts = workers.shares(len(images), LEAST, 8) if server.batched.thread_safe else []
    if len(parts) < 2:
        return _respond(server, start, images, labels, noise)

    def some(mine: slice) -> Tensor:
        drawn = None if noise is None else noise[mine]
        return _respond(server, start[mine], images[mine], labels[mine], drawn)

    return torch.cat(list(workers.mapped(some, parts)))


def _respond(server: Server, start: Tensor, images: Tensor, labels: Tensor, noise: Tensor | None) -> Tensor:
    count, start = len(images), start.contiguous()
    size, spare = server.batch, even(server, count) - count
    if spare:
        images, labels, start = (
            torch.cat([part, part[-1:].expand(spare, *part.shape[1:])]) for part in (images, labels, start)
        )
        noise = None if noise is None else torch.cat([noise, noise[-1:].expand(spare, -1)])
    steps = [slice(i * size, (i + 1) * size) for i in range(server.local_steps)]
    objectives = [server.batched.at(images[:, part], labels[:, part]) for part in steps]
    if server.protection.mechanism.formal:
        assert noise is not None
        local, _ = local_step(objectives, start, server.eta, server.protection)
        return (local + draw_bounds(noise, server.protection)[0])[:count]
    return release(objectives, start, noise, server.eta, server.protection, utility=False).parameters[:count]


def noise(server: Server, key: Key, rows: Tensor, like: Tensor, tag: int = 0) -> Tensor | None:
    """Standard noise ``[R, P]`` of the attacker's own, keyed by row: no result depends on the chunks."""
    mechanism = server.protection.mechanism
    if not mechanism.draws:
        return None
    size = server.batched.layout.size
    numbers = uniform([key] * len(rows), rows.tolist(), [tag], size, like.dtype, like.device)[0]
    return standard_noise(numbers, mechanism.noise)


def gradients(server: Server) -> int:
    """How many gradients of a batch one simulated release takes."""
    protection = server.protection
    return server.local_steps + (protection.steps if protection.mechanism.learns else 0)


def signs(server: Server) -> int:
    """How many releases make a pair of opposite noise: noise that is only added is the same whatever the batch."""
    mechanism = server.protection.mechanism
    return 2 if mechanism.draws and not mechanism.adds else 1


def undistorted(server: Server) -> Server:
    """The same clients, clipping and all, with nothing added to their updates."""
    return replace(server, protection=replace(server.protection, mechanism=server.protection.mechanism.plain))


def chunk(server: Server, like: Tensor) -> int:
    """How many releases to simulate at once."""
    each = like.element_size() * (12 * server.batched.layout.size + 60 * server.examples * server.pixels)
    most = 64 * workers.count() if like.device.type == "cpu" else 8192  # on CPU more would only leave the caches
    return max(8, min(most, ROOM[like.device.type] // each) // 8 * 8)


def pieces(total: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Row numbers ``0..total-1`` in chunks."""
    for start in range(0, total, size):
        yield torch.arange(start, min(start + size, total), device=device)


def respond_all(
    server: Server, previous: Tensor, images: Tensor, labels: Tensor,
    drawn: Callable[[Tensor], Tensor | None] = lambda rows: None,
) -> Tensor:  # fmt: skip
    """``respond`` in chunks, with the noise ``drawn`` for the rows of each."""
    start = previous.expand(len(images), -1)
    return torch.cat([
        respond(server, start[some], images[some], labels[some], drawn(some))
        for some in pieces(len(images), chunk(server, start), start.device)
    ])  # fmt: skip


class Companions:
    """Public records by label, drawn with random numbers keyed by row."""

    def __init__(self, public: Public, seed: int, purpose: str):
        labels = public[1]
        self.key = experiment_key(seed, f"attack/{purpose}")
        self.order = labels.argsort(stable=True)  # label after label
        self.counts = torch.bincount(labels, minlength=int(labels.max()) + 1)
        self.starts = self.counts.cumsum(0) - self.counts

    def draw(self, labels: Tensor, rows: Tensor) -> Tensor:
        """``[R, E]`` public rows with ``labels`` ``[R, E]``; distinct within a row, if there are enough of a label."""
        numbers = uniform([self.key] * len(rows), rows.tolist(), [0], labels.shape[1], torch.float64)[0]
        count, start = self.counts[labels], self.starts[labels]
        place = (numbers.to(labels.device) * count).long().minimum(count - 1)
        for here in range(1, labels.shape[1]):
            for _ in range(here):  # the next one, for as long as it was drawn before
                taken = ((start + place)[:, :here] == (start + place)[:, here : here + 1]).any(1)
                if not bool(taken.any()):
                    break
                place[:, here] = (place[:, here] + taken) % count[:, here]
        return self.order[start + place]


def simulate(
    server: Server,
    previous: Tensor,
    public: Public,
    labels: Tensor,
    seed: int,
    purpose: str,
    on_release: Callable[[int], None] | None = None,
    *,
    sign: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Updates ``[n, P]`` of public batches with ``labels`` ``[n, E]``, and the public rows ``[n, E]`` behind them.

    Where labels are no classes, these are strata (``Server.strata``), and every row has the label of its own.
    ``sign=-1`` repeats a simulation with all its noise negated.
    """
    pool = Companions((public[0], server.strata(public[1])), seed, purpose)
    key = experiment_key(seed, f"attack/{purpose}/noise")
    updates = previous.new_empty(len(labels), server.batched.layout.size)
    chosen = torch.empty_like(labels)
    for rows in pieces(len(labels), chunk(server, previous), previous.device):
        mine = labels[rows]
        chosen[rows] = pool.draw(mine, rows)
        drawn = noise(server, key, rows, previous)
        drawn = drawn if drawn is None else drawn * sign
        batch = public[0][chosen[rows]], public[1][chosen[rows]]
        updates[rows] = respond(server, previous, *batch, drawn) - previous
        if on_release:
            on_release(len(rows))
    return updates, chosen


def paired(
    server: Server,
    previous: Tensor,
    public: Public,
    labels: Tensor,
    seed: int,
    purpose: str,
    on_release: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Updates ``[n, P]`` without their noise, the noise, and the public rows ``[n, E]`` behind them.

    Where the noise depends on the batch: the mean of two releases under opposite noise, and half of their difference.
    The noise of the other mechanisms is added, whatever the batch, so that one release without any tells as much.
    """
    given = (previous, public, labels, seed, purpose, on_release)
    if not server.protection.mechanism.adds:
        if not server.protection.mechanism.draws:
            released, chosen = simulate(server, *given)
            return released, torch.zeros_like(released), chosen
        (one, chosen), (other, _) = simulate(server, *given), simulate(server, *given, sign=-1.0)
        return (one + other) / 2, (one - other) / 2, chosen
    clean, chosen = simulate(undistorted(server), *given)
    added = torch.zeros_like(clean)
    if server.protection.mechanism.draws:
        key = experiment_key(seed, f"attack/{purpose}/noise")
        for rows in pieces(len(labels), chunk(server, previous), previous.device):
            drawn = noise(server, key, rows, previous)
            assert drawn is not None
            added[rows] = draw_bounds(drawn, server.protection)[0]
    return clean, added, chosen
