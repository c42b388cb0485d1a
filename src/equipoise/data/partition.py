"""Split the rows of a dataset over clients: identical labels (the paper), iid, Dirichlet, shards.

Formal guarantees, for every scheme: the parts are disjoint, cover every row, are sorted, and none is
empty; the same arguments give the same parts, whatever the global random state.

=============  ==================================================================================
identical      no randomness; each class is cut into contiguous runs, so that two clients of equal
               size differ by at most one row in each class and, for equal sizes, in all
iid            rows at random, part sizes as equal (or as near ``sizes``) as whole numbers allow
dirichlet      each class is dealt in proportions drawn from Dir(dirichlet): a small value, skewed labels
shards         rows sorted by label, cut into ``clients * shards`` runs, ``shards`` runs each
=============  ==================================================================================

Where rows have groups (whose row it is), whole groups are dealt, by every scheme: a group counts as one row of the
class that it has most often, in the place of its first row. Equal sizes are then equal numbers of groups.

Another scheme is one function and its entry in ``SCHEMES``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DataError, closest
from .splits import units

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Request:
    """What a scheme may use: the arguments of ``partition``, checked."""

    labels: Rows
    shares: list[Fraction]  # of each client; they sum to 1, and are equal unless sizes were given
    dirichlet: float
    shards: int
    generator: np.random.Generator

    @property
    def clients(self) -> int:
        return len(self.shares)


@dataclass(frozen=True)
class Scheme:
    """A way to deal rows to clients, as a function from a request to the rows of each client."""

    deal: Callable[[Request], list[Rows]]
    takes_sizes: bool = False


def partition(
    labels: Tensor,
    clients: int,
    scheme: str = "identical",
    *,
    dirichlet: float = 0.5,
    shards: int = 2,
    sizes: Sequence[float] | None = None,
    seed: int = 0,
    groups: Tensor | None = None,
) -> list[Tensor]:
    """Deal rows to clients.

    Args:
        labels: of all rows, ``[N]``.
        clients: how many there are.
        scheme: ``identical``, ``iid``, ``dirichlet`` or ``shards``.
        dirichlet: concentration of the ``dirichlet`` scheme: the smaller, the more skewed.
        shards: per client, of the ``shards`` scheme.
        sizes: relative (``[1, 1, 2]``: the last client gets half), for ``identical`` and ``iid``.
        seed: of every scheme but ``identical``.
        groups: whose row it is, ``[N]`` integers: no group is divided between two clients. None: each row by itself.

    Returns:
        Row numbers of each client, int64.

    >>> import torch
    >>> partition(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), clients=2)
    [tensor([0, 1, 2, 3]), tensor([4, 5, 6, 7])]
    """
    if scheme not in SCHEMES:
        raise DataError(f"Unknown scheme {scheme!r}.{closest(scheme, [*SCHEMES])}", f"Known: {', '.join(SCHEMES)}.")
    clients, shards, seed = _whole("clients", clients, 1), _whole("shards", shards, 1), _whole("seed", seed, 0)
    values = _checked("labels", labels)
    unit, values = (None, values) if groups is None else _units(values, _checked("groups", groups))
    what = "rows" if groups is None else "groups"
    if len(values) < clients:
        raise DataError(f"Expected clients={clients} to be <= the {len(values)} {what}.", "Use fewer clients.")
    if sizes is not None and not SCHEMES[scheme].takes_sizes:
        those = " or ".join(repr(name) for name, known in SCHEMES.items() if known.takes_sizes)
        raise DataError(f"Scheme {scheme!r} takes no sizes.", f"Drop sizes, or use scheme {those}.")
    shares = _shares(sizes, clients)
    # Philox with its own seed: neither numpy's nor torch's global state is read or changed.
    generator = np.random.Generator(np.random.Philox(seed))
    parts = SCHEMES[scheme].deal(Request(values, shares, dirichlet, shards, generator))
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise DataError(
                f"Client {client} would get none of the {len(values)} {what} with sizes={sizes}.",
                f"Make the sizes less unequal, or give more {what}.",
            )
    if unit is not None:
        parts = [np.flatnonzero(np.isin(unit, part)) for part in parts]
    return [torch.from_numpy(np.sort(part)) for part in parts]


def weights(parts: Sequence[Tensor]) -> Tensor:
    """Each client's share of all rows, ``p_k = n_k / n``: the weights of the global mean, float64.

    >>> import torch
    >>> weights([torch.arange(1), torch.arange(1, 4)])
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    counts = torch.tensor([len(part) for part in parts], dtype=torch.float64)
    if counts.sum() == 0:
        raise DataError(f"Expected parts with at least one row, got {len(parts)} empty parts.", "Give some.")
    return counts / counts.sum()


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as problem:
        raise DataError(f"Expected {name}={value!r} to be a whole number.", f"Give {name} one.") from problem
    if number < least:
        raise DataError(f"Expected {name}={number} to be >= {least}.", f"Give {name} {least} or more.")
    return number


def _checked(what: str, numbers: Any) -> Rows:
    if not isinstance(numbers, Tensor):
        raise DataError(f"Expected {what} to be a torch tensor, got {type(numbers).__name__}.", "Use torch.as_tensor.")
    if numbers.ndim != 1 or numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise DataError(
            f"Expected {what} to be integers of shape [N], got {numbers.dtype} of shape {list(numbers.shape)}.",
            f"Give one {'class' if what == 'labels' else 'group'} number per row.",
        )
    values: Rows = numbers.detach().cpu().numpy().astype(np.int64)
    return values


def _units(labels: Rows, groups: Rows) -> tuple[Rows, Rows]:
    """The group of each row, by number, and the label of each group."""
    if len(groups) != len(labels):
        raise DataError(
            f"Expected as many groups as labels, got {len(groups)} and {len(labels)}.", "Give every row its group."
        )
    unit, values = units(torch.from_numpy(labels), torch.from_numpy(groups))
    return unit.numpy(), values.numpy()


def _shares(sizes: Sequence[float] | None, clients: int) -> list[Fraction]:
    """Exact fractions: with floats, a client owed exactly one row could get none."""
    if sizes is None:
        return [Fraction(1, clients)] * clients
    if len(sizes) != clients:
        raise DataError(f"Expected {clients} sizes, one per client, got {len(sizes)}.", "Give one per client.")
    for client, size in enumerate(sizes):
        if not (math.isfinite(size) and size > 0):
            raise DataError(f"Expected sizes[{client}]={size} to be finite and > 0.", "Give sizes like [1, 2].")
    exact = [Fraction(float(size)) for size in sizes]
    return [size / sum(exact) for size in exact]


def _apportion(total: int, shares: list[Fraction], owed: list[Fraction]) -> list[int]:
    """Counts that sum to ``total``, each ``total * share`` rounded down or up; updates what is still owed.

    Rounding up favours those owed most by earlier calls, so that errors cancel over the classes.
    """
    quotas = [total * share for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    inexact = [client for client, quota in enumerate(quotas) if quota != counts[client]]
    inexact.sort(key=lambda client: owed[client] + quotas[client] - counts[client], reverse=True)
    for client in inexact[: total - sum(counts)]:
        counts[client] += 1
    for client, quota in enumerate(quotas):
        owed[client] += quota - counts[client]
    return counts


def _cut(rows: Rows, counts: Sequence[int]) -> list[Rows]:
    return np.split(rows, np.cumsum(counts)[:-1])


def _identical(request: Request) -> list[Rows]:
    owed = [Fraction(0)] * request.clients
    runs = []
    for value in np.unique(request.labels):
        rows = np.flatnonzero(request.labels == value)
        runs.append(_cut(rows, _apportion(len(rows), request.shares, owed)))
    return [np.concatenate(part) for part in zip(*runs, strict=True)]


def _iid(request: Request) -> list[Rows]:
    total, nothing_owed = len(request.labels), [Fraction(0)] * request.clients
    return _cut(request.generator.permutation(total), _apportion(total, request.shares, nothing_owed))


def _dirichlet(request: Request) -> list[Rows]:
    dirichlet, clients, generator = request.dirichlet, request.clients, request.generator
    if not (math.isfinite(dirichlet) and dirichlet > 0):
        raise DataError(f"Expected dirichlet={dirichlet} to be finite and > 0.", "Try 0.5; smaller is more skewed.")
    runs = []
    for value in np.unique(request.labels):
        rows = generator.permutation(np.flatnonzero(request.labels == value))
        upto = np.cumsum(generator.dirichlet(np.full(clients, dirichlet)))
        runs.append(np.split(rows, np.rint(upto[:-1] * len(rows)).astype(np.int64)))
    parts = [np.concatenate(part) for part in zip(*runs, strict=True)]
    for client, part in enumerate(parts):
        if len(part) == 0:  # a client without data cannot train: the largest gives up one row
            donor = max(range(clients), key=lambda other: len(parts[other]))
            parts[donor], parts[client] = parts[donor][:-1], parts[donor][-1:]
    return parts


def _shards(request: Request) -> list[Rows]:
    labels, clients, shards = request.labels, request.clients, request.shards
    if clients * shards > len(labels):
        raise DataError(
            f"Expected clients * shards = {clients} * {shards} to be <= the {len(labels)} rows.", "Use fewer shards."
        )
    pieces = np.array_split(np.argsort(labels, kind="stable"), clients * shards)
    dealt = request.generator.permutation(clients * shards).reshape(clients, shards)
    return [np.concatenate([pieces[piece] for piece in hand]) for hand in dealt]


SCHEMES = {
    "identical": Scheme(_identical, takes_sizes=True),
    "iid": Scheme(_iid, takes_sizes=True),
    "dirichlet": Scheme(_dirichlet),
    "shards": Scheme(_shards),
}
