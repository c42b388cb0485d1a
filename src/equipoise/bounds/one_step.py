"""Lemma C.1 of Zhang et al. (arXiv:2305.15148), the one-step lemma: how one round's gradient is bounded.

Its expectations are means over the round after a snapshot, repeated with fresh mini-batches and noise.
"""

from __future__ import annotations

import torch

from .global_objective import GlobalObjective, Sampling, assumptions, largest_eta
from .repeated_rounds import RepeatedRound
from .rows import Row, average, figure, given, result_row
from .theory import one_step_bound

LEMMA, LEFT_SIDE = "one_step", "eta/2 |grad F|^2"


def one_step_row(
    objective: GlobalObjective, index: int, round_number: int, eta: float, repeated: RepeatedRound, setting: str
) -> Row:
    """The lemma for one federation at one snapshot."""
    context = objective.context
    step = eta * context.server_rate(index, round_number + 1)
    smoothness, variance = objective.smoothness(index), objective.variance[round_number][index]
    decrease, distortion = repeated.decrease[:, index], repeated.distortion[:, index]
    left = step / 2 * objective.squared_gradient(round_number, index)
    right = None
    if step <= largest_eta(smoothness["value"]):
        draws = zip(decrease.tolist(), distortion.tolist(), strict=True)
        bounds = [one_step_bound(d, step, smoothness["value"], variance["value"], moved) for d, moved in draws]
        right = average(torch.tensor(bounds, dtype=torch.float64))
    examples = context.sweep.examples(context.sweep.federations[index].dataset)
    sampling = Sampling(
        float(repeated.clipped[:, index].mean()), float(repeated.refused[:, index].mean()), len(distortion)
    )
    return result_row(
        context.about(index, round_number), LEMMA, LEFT_SIDE, setting,
        bound=right, measured=figure(left, len(examples), "exact"),
        holds=None if right is None else left <= right["value"],
        margin=None if right is None or left <= 0 else right["value"] / left,
        constants={
            "L_F": smoothness, "sigma_g^2": variance, "eta": given(step),
            "largest eta": given(largest_eta(smoothness["value"])),
            "F(W) - F(W_t)": average(decrease), "|Delta|^2": average(distortion),
        },
        assumptions=assumptions(objective, index, step, round_number, sampling),
    )  # fmt: skip
