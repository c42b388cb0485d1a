"""Membership: was this example part of the update? A likelihood-ratio test that simulates the mechanism.

The score of a candidate is the log-likelihood of the release with the candidate in it (``bench.py``), minus that of the
release with another example of its label in its place: the mean likelihood over public references. Where several
local steps hold the label, the candidate may be in any of them. A candidate whose label no example has is the least
likely member of its release. Where labels are no classes, "of its label" is any: see ``view.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from .attack import Attack, Hooks, Knowledge, held
from .bench import OPTIONS, likelihoods, work
from .results import MembershipScores
from .view import Server, View


def membership(
    server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks
) -> MembershipScores:
    """Log-likelihood ratios ``[N, O]`` of the candidates in ``knowledge.asked``."""
    asked = held(knowledge, "asked")
    labels = server.strata(held(knowledge, "candidate_labels")[asked])
    scores = torch.full(asked.shape, -torch.inf, dtype=torch.float64, device=asked.device)
    steps = torch.zeros_like(asked)
    for part in likelihoods(server, view, knowledge, options, hooks):
        release, place = (labels[part.rows] == part.label).nonzero().unbind(1)
        column = torch.searchsorted(part.candidates, asked[part.rows[release], place])
        base = part.references.double().logsumexp(1) - math.log(part.references.shape[1])
        ratio = part.values.double()[release, column] - base[release]
        rows = part.rows[release]
        scores[rows, place] = torch.logaddexp(scores[rows, place], ratio)
        steps[rows, place] += 1
    scores = scores - steps.clamp_min(1).log()
    missing = steps == 0
    least = scores.masked_fill(missing, torch.inf).amin(1, keepdim=True)
    return MembershipScores(torch.where(missing, least.masked_fill(least == torch.inf, 0) - 1, scores))


MEMBERSHIP = Attack("membership", membership, frozenset({"public", "asked", "inferred labels"}), OPTIONS, work)
