"""Matched filter: the attacker holds candidate records and asks which of them a release was trained on.

Candidates are ranked by how likely the release is with each of them in it; ``bench.py`` simulates that. They may be
pictures, rows of a table or token sequences: no gradient with respect to an input is taken. Where labels are classes,
all candidates of an example have its own. Where they are not, a candidate comes with the label that it has, and the
attacker is granted none: else the label would tell the candidate, and chance were not one of all.
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
