"""Every claim holds where intervals show it, fails where they contradict it, and is not shown where they do neither."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

from equipoise.engine.federation import Federation
from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.claims import CLAIMS, Tables, judge
from equipoise.reproduction.plan import BELOW
from tests.reproduction import synthetic as syn
from tests.reproduction.synthetic import World, records_of, wobble

EVERYWHERE = "The learned distortion is more accurate than the static one at every budget"
STRICT = "The gain is generally larger at stricter budgets"
COLLAPSE = "Learning trains where static noise collapses"
PL_BELOW = "PL-Identical does not train below a budget of 0.96"
LS_BELOW = "LS-Static does not train below a budget of 80"
SIMILAR = "InvGrad's error is similar for both"
SSIM = "SSIM is at most 6.3 % (LS) and 5.8 % (PL)"
UNRECOGNISABLE = "InvGrad's images are unrecognisable for both"
CAP = "CAP is higher for the learned distortion"
CLIENTS = "Every client converges better"
LAYERS = "Learning amplifies conv2.w and conv3.w, reduces conv1 and the biases of conv2 and conv3, keeps fc"
DEVIATIONS = "The standard deviations of the layers change little"
STEP_BATCH = "The step-wise utility loss is lower, on the mini-batch that the distortion was learned on"
STEP_FULL = "The step-wise utility loss is lower, on all data of the client"
GROWS = "The average squared gradient norm grows as the budget shrinks"
REBOUNDS = "The average squared gradient norm rebounds at 600"


def learns(federation: Federation) -> bool:
    return federation.mechanism.endswith("learn")


def is_(federation: Federation, dataset: str, mechanism: str, budget: float) -> bool:
    """One cell, in every seed."""
    return (federation.dataset, federation.mechanism, federation.budget) == (dataset, mechanism, budget)


# --- figures that are turned around, each in as few places as it takes -----------------------------------------------


def worse_in_one_cell(fed: Federation, group: str) -> float:
    return 0.69 if group == "paper" and is_(fed, "fmnist", "pl-learn", 0.99) else syn.accuracy(fed, group)


def larger_at_loose_budgets(fed: Federation, group: str) -> float:
    """The gains of MNIST under LS grow with the budget; static noise collapses and learning trains as before."""
    if group != "paper" or fed.dataset != "mnist" or fed.mechanism != "ls-learn" or syn.place(fed) < 0:
        return syn.accuracy(fed, group)
    at = syn.place(fed)
    return syn.STATIC[at] + (0.16, 0.17, 0.18, 0.19, 0.195)[at] + wobble(fed.seed)


def static_trains(fed: Federation, group: str) -> float:
    return 0.21 if is_(fed, "mnist", "pl-identical", 0.96) and group == "paper" else syn.accuracy(fed, group)


def learned_collapses(fed: Federation, group: str) -> float:
    return 0.19 if is_(fed, "mnist", "pl-learn", 0.96) and group == "paper" else syn.accuracy(fed, group)


def trains_below(family: str) -> Callable[[Federation, str], float]:
    static = {"LS": "ls-static", "PL": "pl-identical"}[family]
    return lambda fed, group: 0.21 if is_(fed, "fmnist", static, BELOW[family]) else syn.accuracy(fed, group)


def other_mse(gap: float, fed: Federation) -> float:
    return 2.0 + (gap if learns(fed) and fed.dataset == "fmnist" and fed.mechanism == "pl-learn" else 0.0)


def other_ssim(gap: float, fed: Federation) -> float:
    return syn.ssim(fed) + (gap if fed.mechanism == "ls-learn" and fed.dataset == "mnist" else 0.0)


def high_ssim(fed: Federation) -> float:
    """Above 5.8 % in one cell of either kind, so that the gap stays small."""
    return 0.0581 if fed.mechanism.startswith("pl") and fed.budget == 0.97 else 0.055


def lower_mse(fed: Federation) -> float:
    """So low for the learned distortion that its higher accuracy does not make up for it."""
    return 1.0 if fed.mechanism == "pl-learn" and fed.dataset == "mnist" else syn.mse(fed)


def clear_picture(ssim: float, fed: Federation) -> dict[str, Any]:
    result = syn.pictures(fed)
    return {**result, "ssim": [[ssim] * 4] * 3} if fed.mechanism == "pl-learn" else result


def one_slow_client(fed: Federation, client: int) -> list[float]:
    result = syn.curve(fed, client)
    if learns(fed) and client == 3 and fed.mechanism == "ls-learn":
        return [*result[:2], 0.4 + wobble(fed.seed)]  # ends below the static one
    return result


def late_client(fed: Federation, client: int) -> list[float]:
    result = syn.curve(fed, client)
    return [0.0, 0.0, result[2]] if fed.mechanism == "pl-learn" and client == 0 else result  # the area is lower


def other_layer(name: str, ratio: float, fed: Federation, which: str) -> dict[str, float]:
    result = syn.tensor(fed, which)
    return {**result, "size": ratio} if which == name and fed.dataset == "mnist" else result


def other_deviation(ratio: float, fed: Federation, which: str) -> dict[str, float]:
    result = syn.tensor(fed, which)
    return {**result, "deviation": ratio} if which == "fc.bias" and fed.dataset == "mnist" else result


def higher_on(where: str, fed: Federation) -> tuple[list[float], list[float]]:
    on_batch, full = syn.stepwise(fed)
    if learns(fed) and fed.dataset == "fmnist":
        if where == "batch":
            on_batch = [value + 0.31 for value in on_batch]
        else:
            full = [value + 0.31 for value in full]
    return on_batch, full


def falling(fed: Federation) -> tuple[list[int], list[float]]:
    """At 800 smaller than at 1000, in MNIST alone."""
    rounds, values = syn.gradients(fed)
    return rounds, [value - 1.1 for value in values] if fed.dataset == "mnist" and fed.budget == 800 else values


def no_rebound(fed: Federation) -> tuple[list[int], list[float]]:
    rounds, values = syn.gradients(fed)
    return rounds, [*values[:-1], values[0] - 0.1 - wobble(fed.seed)] if fed.dataset == "fmnist" else values


REVERSED: list[tuple[World, set[str]]] = [
    (World(accuracy=worse_in_one_cell), {EVERYWHERE}),
    (World(accuracy=larger_at_loose_budgets), {STRICT}),
    (World(accuracy=static_trains), {COLLAPSE}),
    (World(accuracy=learned_collapses), {COLLAPSE}),
    (World(accuracy=trains_below("PL")), {PL_BELOW}),
    (World(accuracy=trains_below("LS")), {LS_BELOW}),
    (World(mse=partial(other_mse, 0.11)), {SIMILAR}),
    (World(mse=partial(other_mse, -0.11)), {SIMILAR}),
    (World(ssim=partial(other_ssim, 0.011)), {SIMILAR}),
    (World(ssim=partial(other_ssim, -0.011)), {SIMILAR}),
    (World(ssim=high_ssim), {SSIM}),
    (World(mse=lower_mse), {CAP, SIMILAR}),
    (World(pictures=partial(clear_picture, 0.0581)), {UNRECOGNISABLE}),
    (World(curve=one_slow_client), {CLIENTS}),
    (World(curve=late_client), {CLIENTS}),
    (World(tensor=partial(other_layer, "conv2.weight", 1.04)), {LAYERS}),
    (World(tensor=partial(other_layer, "conv1.bias", 1.2)), {LAYERS}),
    (World(tensor=partial(other_layer, "fc.weight", 0.9)), {LAYERS}),
    (World(tensor=partial(other_deviation, 1.11)), {DEVIATIONS}),
    (World(tensor=partial(other_deviation, 0.89)), {DEVIATIONS}),
    (World(stepwise=partial(higher_on, "batch")), {STEP_BATCH}),
    (World(stepwise=partial(higher_on, "full")), {STEP_FULL}),
    (World(gradients=falling), {GROWS}),
    (World(gradients=no_rebound), {REBOUNDS}),
]
"""Figures, and the claims that fail with them: these and no others."""


@cache
def judged(world: World) -> list[dict[str, Any]]:
    records = records_of(world)
    return judge({name: artefact.score(records) for name, artefact in ARTEFACTS.items()})


def among(result: list[dict[str, Any]], verdict: str) -> set[str]:
    """The claims with one verdict."""
    return {claim["claim"] for claim in result if claim["verdict"] == verdict}


def test_there_are_sixteen_claims_on_the_papers_artefacts() -> None:
    assert len(CLAIMS) == 16
    assert set(CLAIMS) == set().union(*(failing for _, failing in REVERSED)), "every one is turned around below"
    assert {name for _, names in CLAIMS.values() for name in names} <= {
        name for name, artefact in ARTEFACTS.items() if artefact.judged
    }


def test_every_claim_holds_where_the_figures_support_it(synthetic: Tables) -> None:
    result = judge(synthetic)
    assert [claim["claim"] for claim in result] == list(CLAIMS)
    assert [claim["claim"] for claim in result if claim["verdict"] != "holds"] == []


@pytest.mark.parametrize(("world", "failing"), REVERSED, ids=[" and ".join(sorted(names)) for _, names in REVERSED])
def test_a_claim_fails_where_its_figures_are_turned_around(world: World, failing: set[str]) -> None:
    result = judged(world)
    assert among(result, "fails") == failing
    assert among(result, "not shown") == set()


@pytest.mark.parametrize(
    "world",
    [
        World(mse=partial(other_mse, 0.09)),
        World(ssim=partial(other_ssim, -0.009)),
        World(pictures=partial(clear_picture, 0.0579)),
        World(tensor=partial(other_layer, "conv2.weight", 1.051)),
        World(tensor=partial(other_layer, "fc.weight", 0.951)),
        World(tensor=partial(other_deviation, 1.09)),
    ],
)
def test_a_claim_still_holds_just_inside_of_its_margin(world: World) -> None:
    assert among(judged(world), "holds") == set(CLAIMS)


def test_seeds_that_contradict_each_other_support_no_claim_about_intervals() -> None:
    """The means are as before; single seeds lie on either side."""

    def noisy(fed: Federation) -> float:
        return 2.0 + (wobble(fed.seed, 1.0) if learns(fed) else 0.0)

    def lucky(fed: Federation, client: int) -> list[float]:
        return [value + (wobble(fed.seed, 0.3) if learns(fed) else 0.0) for value in syn.curve(fed, client)]

    def jumpy(fed: Federation) -> tuple[list[float], list[float]]:
        on_batch, full = syn.stepwise(fed)
        shift = wobble(fed.seed, 1.0) if learns(fed) else 0.0
        return [value + shift for value in on_batch], [value + shift for value in full]

    def wild(fed: Federation) -> tuple[list[int], list[float]]:
        rounds, values = syn.gradients(fed)
        return rounds, [v + wobble(fed.seed, 2.0) * (fed.budget == 600) * (i + 1) for i, v in enumerate(values)]

    def torn(fed: Federation, group: str) -> float:
        """Below 20 % in the mean, with one seed of three far above."""
        strict = fed.mechanism == "pl-identical" and (fed.budget == 0.96 or fed.budget == BELOW["PL"])
        return 0.1 + (0.28 if fed.seed == 3 else 0.0) if strict and group == "paper" else syn.accuracy(fed, group)

    def ragged(fed: Federation, which: str) -> dict[str, float]:
        result = syn.tensor(fed, which)
        return {key: value + wobble(fed.seed, 0.4) for key, value in result.items()}

    def blurred(fed: Federation) -> dict[str, Any]:
        return {**syn.pictures(fed), "ssim": [[-0.1] * 4, [0.02] * 4, [0.14] * 4]}

    def unsure(fed: Federation) -> float:
        return 0.02 + wobble(fed.seed, 0.05)

    result = judged(
        World(
            accuracy=torn, mse=noisy, ssim=unsure, curve=lucky, stepwise=jumpy, gradients=wild, tensor=ragged,
            pictures=blurred,
        )
    )  # fmt: skip
    assert among(result, "fails") == set()
    assert among(result, "holds") == {EVERYWHERE, STRICT, LS_BELOW}


def test_a_gain_that_is_higher_in_the_mean_alone_is_not_shown() -> None:
    def lucky(fed: Federation, group: str) -> float:
        base = syn.accuracy(fed, group)
        return base + wobble(fed.seed, 0.15) if is_(fed, "fmnist", "pl-learn", 0.995) and group == "paper" else base

    result = judged(World(accuracy=lucky))
    assert among(result, "not shown") == {EVERYWHERE}
    assert "higher mean in 20 of 20 cells, beyond the 95 % interval in 19" in result[0]["evidence"]


def test_one_seed_supports_no_claim_that_needs_an_interval() -> None:
    scale = replace(syn.SCALE, seeds=(2,))
    records = records_of(scale=scale)
    result = judge({name: artefact.score(records) for name, artefact in ARTEFACTS.items()})
    assert among(result, "holds") == {UNRECOGNISABLE}, "its intervals are over batches"
    assert among(result, "fails") == set()


def test_layers_are_judged_by_the_last_round_alone(synthetic: Tables) -> None:
    early = [
        {**cell, "deviation_ratio": {**cell["deviation_ratio"], "mean": 1.5}, "verdict": "kept", "agrees": False}
        for cell in synthetic["layers"]["earlier_rounds"]
    ]
    result = judge({"layers": {**synthetic["layers"], "earlier_rounds": early}})
    assert [(claim["claim"], claim["verdict"]) for claim in result] == [(LAYERS, "holds"), (DEVIATIONS, "holds")]
    assert "at the initial weights 0 of 32" in result[0]["evidence"]
    assert "1.500" in result[1]["evidence"], "and what was before it is told"


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(len(CLAIMS)), ids=list(CLAIMS))
def test_the_evidence_is_figures_of_this_very_verdict(synthetic: Tables, place: int) -> None:
    claim = judge(synthetic)[place]
    assert len(re.findall(r"\d+\.\d+", claim["evidence"])) >= 2
    world = next(world for world, failing in REVERSED if claim["claim"] in failing)
    assert judged(world)[place]["evidence"] != claim["evidence"]


def test_no_claim_speaks_of_differential_privacy(synthetic: Tables) -> None:
    for claim in judge(synthetic):
        text = f"{claim['claim']} {claim['evidence']}"
        assert not re.search(r"epsilon|delta\b|ε|δ|differential|\bDP\b", text, re.IGNORECASE), text


def test_a_claim_is_judged_only_where_all_its_artefacts_are(synthetic: Tables) -> None:
    assert judge({}) == []
    some = judge({name: synthetic[name] for name in ("accuracy-ls", "cap")})
    assert [claim["claim"] for claim in some] == [LS_BELOW, CAP]
    assert some[0]["artefacts"] == ["accuracy-ls"]
