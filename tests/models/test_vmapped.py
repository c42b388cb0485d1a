"""torch.func, for models with several inputs and outputs of any form."""

from __future__ import annotations

import torch

from equipoise.models.batched import Batched
from tests.models.odd_models import Pair, logits_loss, pair_batch


def test_several_inputs_and_a_dictionary_of_outputs() -> None:
    model = Pair().double()
    (inputs, labels), flat = pair_batch(3), torch.randn(3, 38, dtype=torch.float64)
    objective = Batched(model, logits_loss, route="vmap").at(inputs, labels)
    expected = Batched(model, logits_loss, route="loop").at(inputs, labels)
    torch.testing.assert_close(objective.gradient(flat), expected.gradient(flat))
    torch.testing.assert_close(objective.loss(flat), expected.loss(flat))
