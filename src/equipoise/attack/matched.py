"""Matched filter: the attacker holds candidate images and asks which of them a release was trained on.

Candidates are ranked by how likely the release is with each of them in it; ``bench.py`` simulates that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .attack import Attack, Hooks, Knowledge, held
from .bench import OPTIONS, likelihoods, work
from .results import CandidateScores
from .view import Server, View


def matched(
    server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks
) -> CandidateScores:
    """Log-likelihoods ``[N, E, K]``, up to a constant, of the candidates in ``knowledge.choices``."""
    choices = held(knowledge, "choices")
    scores = view.released.new_empty(choices.shape)
    for part in likelihoods(server, view, knowledge, options, hooks):
        release, example = part.place.nonzero().unbind(1)
        column = torch.searchsorted(part.candidates, choices[part.rows[release], example])
        scores[part.rows[release], example] = part.values[release.unsqueeze(1), column]
    return CandidateScores(scores)


MATCHED = Attack("matched", matched, frozenset({"public", "candidates", "labels"}), OPTIONS, work)
