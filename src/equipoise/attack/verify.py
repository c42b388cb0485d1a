"""Norm check: is this guess at one example of a batch right? Noise of a known norm gives it away.

A static mechanism on a sphere (``pl-identical``) rescales its noise to the lower bound, which follows from the public
budget. Whoever knows the other examples of a batch can make the local step with a guess in the place of the last one;
what the release adds to that has the lower bound as its norm if the guess is right, and another one if it is wrong.

This verifies guesses and searches for nothing: the other examples are granted. It cannot work where the norm is not
known exactly: learning moves it between its bounds, and noise "as drawn" has a norm of chance.

What is accepted was fixed before any result was seen. Rounding moves the norm a little, and by how much is simulated
with the client's own arithmetic, without any data: noise is drawn, rescaled, added to the weights that were sent, and
rounded as the release is. A guess is accepted if its norm is within twice the largest deviation of ``SIMULATED`` such
norms from their mean, plus one rounding of the release's own norm, in the precision of the model, for a gradient that
rounds differently elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import AttackError
from ..mechanism.distortion import draw_bounds
from ..randomness import experiment_key
from .attack import Attack, Hooks, Knowledge, Work, held
from .results import Verification
from .simulate import chunk, noise, pieces, respond, undistorted
from .view import Server, View, check, groups_of_weights

SIMULATED = 32
"""Draws of noise from which the effect of rounding on a norm is taken."""
LOWER_PRECISIONS = (torch.bfloat16, torch.float16)


def verify(server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks) -> Verification:
    """For every guess in ``knowledge.choices``: how far its norm ``[N, E, K]`` is from what it must be."""
    check(server, view, needs_labels=False)
    refuse_unknown_norm(server)
    if held(knowledge, "choices").shape[2] < 2:
        raise AttackError(
            "There is one guess at each example, and nothing to tell it from.",
            "Give public inputs, from which wrong guesses are taken.",
        )
    norm, tolerance = expected_norms(server, view, options["seed"])
    distance = (residual_norms(server, view, knowledge, hooks) - norm.view(-1, 1, 1)).abs()
    return Verification(distance, tolerance)


def refuse_unknown_norm(server: Server) -> None:
    """Refuse a mechanism whose noise has no norm that the server knows exactly; no noise at all has the norm 0."""
    mechanism = server.protection.mechanism
    if mechanism.distorts and not mechanism.fixed_norm:
        why = "lies between bounds, where learning leaves it" if mechanism.learns else "is that of the draw"
        why = why if mechanism.shaping is None else "depends on the update"
        raise AttackError(
            f"The norm of the noise of {mechanism.name} {why}: no guess is verified by it.",
            "Leave verify out, or give it a static mechanism with a fixed norm, such as pl-identical.",
        )


def residual_norms(server: Server, view: View, knowledge: Knowledge, hooks: Hooks) -> Tensor:
    """L2 norms ``[N, E, K]``, in float64, of what each release adds to a local step with a guess in it."""
    choices = held(knowledge, "choices")
    norms = torch.empty(choices.numel(), dtype=torch.float64, device=choices.device)
    for some, release, local in guessed_steps(server, view.previous, knowledge):
        norms[some] = (view.released[release].double() - local.double()).norm(dim=1)
        if hooks.step:
            hooks.step(len(some))
    return norms.view(choices.shape)


def guessed_steps(server: Server, previous: Tensor, knowledge: Knowledge) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All guesses in chunks: their places among ``[N * E * K]``, their releases, and the undistorted models ``[R, P]``.

    The e-th example of a release is replaced by each guess at it; those around it are the granted ones.
    """
    images, labels, choices, batch = (
        held(knowledge, name) for name in ("candidates", "candidate_labels", "choices", "companions")
    )
    clean, (_, examples, width) = undistorted(server), choices.shape
    for some in pieces(choices.numel(), chunk(server, previous), choices.device):
        release, example = some // (examples * width), some // width % examples
        guessed = batch[release].scatter(1, example.unsqueeze(1), choices.flatten()[some].unsqueeze(1))
        yield some, release, respond(clean, previous[release], images[guessed], labels[guessed], None)


def expected_norms(server: Server, view: View, seed: int) -> tuple[Tensor, Tensor]:
    """The norm that the noise of each release has after rounding, and how far from it a guess is still accepted."""
    dtype = precision(view.released)
    norm, tolerance = torch.empty(2, len(view), dtype=torch.float64, device=view.released.device)
    key = experiment_key(seed, "attack/verify")
    for rows, previous in groups_of_weights(view):
        drawn = noise(server, key, torch.arange(SIMULATED, device=previous.device), previous)
        added = torch.zeros_like(previous) if drawn is None else draw_bounds(drawn, server.protection)[0]
        arrived = (previous + added).to(dtype).double() - previous.double()
        norms = arrived.view(-1, previous.numel()).norm(dim=1)
        norm[rows] = norms.mean()
        tolerance[rows] = 2 * (norms - norms.mean()).abs().max()
    return norm, tolerance + torch.finfo(view.released.dtype).eps * view.released.double().norm(dim=1)


def precision(released: Tensor) -> torch.dtype:
    """The precision in which releases ``[N, P]`` were sent: the lower one that holds all their values, if one does.

    >>> precision(torch.tensor([[0.5, 0.1]])), precision(torch.tensor([[0.5, 0.1]]).half().float())
    (torch.float32, torch.float16)
    """
    return next((lower for lower in LOWER_PRECISIONS if torch.equal(released.to(lower).to(released), released)),
                released.dtype)  # fmt: skip


def _work(server: Server, labels: Tensor, knowledge: Knowledge, options: Mapping[str, Any]) -> Work:
    return Work(held(knowledge, "choices").numel(), server.local_steps)


VERIFY = Attack("verify", verify, frozenset({"candidates", "companions"}), work=_work)
