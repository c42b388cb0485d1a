"""An attack of your own: the mean public image of every label, whatever the release shows.

It needs public images and has one option, how many of them to average. Whoever imports this file has registered it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from equipoise.attack.attack import Attack, Hooks, Knowledge, Option, held
from equipoise.attack.registry import register_attack
from equipoise.attack.results import Inversion
from equipoise.attack.view import Server, View, check, check_public


def class_mean(server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks) -> Inversion:
    """The mean of the first ``averaged`` public images of the label of every example."""
    check(server, view)
    assert view.labels is not None
    images, labels = check_public(server, held(knowledge, "public"), view.labels)
    guess = images.new_empty(*view.labels.shape, *server.shape)
    for label in view.labels.unique():
        guess[view.labels == label] = images[labels == label][: options["averaged"]].mean(0)
    if hooks.step:
        hooks.step(len(view))
    return Inversion(guess, cost=torch.zeros(len(view)))


NEEDS = frozenset({"public", "inferred labels"})
register_attack(Attack("class-mean", class_mean, NEEDS, {"averaged": Option(100, least=1)}))
