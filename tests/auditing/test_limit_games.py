"""Games with the record or without it: who is dealt, what is subtracted, what an honest and a lying client come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.attack.known_others import Terms
from equipoise.auditing import limit_games
from equipoise.auditing.limit_comparison import compared, rows_of
from equipoise.auditing.limit_games import OTHERS, Play, deal
from equipoise.auditing.results import Outcome
from equipoise.errors import DataError
from tests.auditing.stand_in_client import SoftmaxClient, materials, weights

TERMS = Terms(clip=1.0, sigma=6.0, rate=0.05)


def play(
    terms: Terms = TERMS, rounds: int = 1, games: int = 150, among: int = 50, share: float = 1.0, clips: bool = True
) -> Outcome:
    game = deal(materials(), games, among, seed=0)
    running = Play(game, SoftmaxClient(game, terms, share, clips))
    for number in range(1, rounds + 1):
        running.add(weights(number), terms, number)
    return running.outcome({"round": None}, "multi-round")


def rows(outcome: Outcome, rounds: int, terms: Terms = TERMS) -> list[dict[str, Any]]:
    scope = "run" if rounds > 1 else "release"
    given = {"sigma": terms.sigma, "rounds": rounds, "sampling_rate": terms.sampling_rate, "scope": scope}
    return compared(rows_of(outcome, given, ["matched", "membership", "multi-round"]))


def test_targets_are_distinct_and_hidden_among_exchangeable_candidates() -> None:
    game = deal(materials(), 150, 50, seed=3)
    assert len(game) == len(game.truth.unique()) == 150
    assert game.candidates == 50
    assert torch.equal(game.choices.gather(1, game.place.unsqueeze(1)).squeeze(1), game.truth)
    assert all(len(row.unique()) == 50 for row in game.choices)
    assert bool((game.impostor != game.place).all())
    assert game.size == 150
    assert game.others.tolist() == list(range(150, 150 + OTHERS))
    counts = torch.bincount(game.choices.flatten(), minlength=150)  # 50 each on average: nobody is a decoy more often
    assert counts.min() > 25
    assert counts.max() < 75
    places = torch.bincount(game.place, minlength=50)
    assert places.max() < 12
    labels = game.labels[game.choices]
    assert bool((labels != game.labels[game.truth].unsqueeze(1)).any(1).all()), "candidates of all labels"


def test_a_small_pool_gives_fewer_games_and_candidates() -> None:
    game = deal(materials(pool=30), 500, 200, seed=0)
    assert (len(game), game.candidates) == (30, 30)
    with pytest.raises(DataError, match="too few public records"):
        deal(materials(pool=1), 500, 200, seed=0)


def test_without_noise_everyone_is_identified_and_told_apart() -> None:
    outcome = play(share=0.0)
    assert outcome.values["identification"].mean() == 1.0 == outcome.values["undistorted"].mean()
    assert (outcome.values["members"] > 0).all()
    assert (outcome.values["others"] < 0).all()
    assert outcome.negative["identification"].mean() < 0.1


def test_residuals_do_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are subtracted exactly: the same game with none of them ends alike."""
    many = play()
    monkeypatch.setattr(limit_games, "OTHERS", 0)
    alone = play()
    for name in ("members", "others"):
        torch.testing.assert_close(torch.tensor(alone.values[name]), torch.tensor(many.values[name]))


def test_no_result_depends_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play(rounds=2, games=40, among=10)
    monkeypatch.setattr(limit_games, "_rows", lambda like: 7)
    monkeypatch.setitem(limit_games.ROOM, "cpu", 1)
    parts = play(rounds=2, games=40, among=10)
    for name, values in whole.values.items():
        torch.testing.assert_close(torch.tensor(parts.values[name]), torch.tensor(values))


@pytest.mark.parametrize(("rate", "sigma"), [(1.0, 4.0), (0.5, 2.2)])
def test_an_honest_client_is_within_its_limits_and_a_quarter_of_the_noise_is_not(rate: float, sigma: float) -> None:
    terms, rounds = replace(TERMS, sigma=sigma, sampling_rate=rate), 12
    honest, quarter = (play(terms, rounds, share=share) for share in (1.0, 0.25))
    assert not any(row.get("above") for row in rows(honest, rounds, terms))
    accused = rows(quarter, rounds, terms)
    assert accused[0]["above"], "identification over the whole run"
    assert any(row["above"] for row in accused if row["measure"] == "membership_tpr")


def test_a_missing_clip_is_noticed() -> None:
    """Inputs ten times as long have gradients far beyond the clip that is claimed."""
    terms = replace(TERMS, clip=0.3)
    assert rows(play(terms, 12, clips=False), 12)[0]["above"]
    assert not rows(play(terms, 12), 12)[0]["above"]


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_thresholds_keep_their_false_positive_rate(rate: float) -> None:
    terms = replace(TERMS, sigma=1.5, sampling_rate=rate)
    outcome = play(terms, rounds=3, games=200)
    values = outcome.values
    assert (values["thresholds"][0] == values["thresholds"]).all()
    assert (np.diff(values["thresholds"][0]) < 0).all()
    assert abs((values["others"] > values["thresholds"][:, 2]).mean() - 0.1) < 0.065  # three standard deviations
    assert (values["members"] > values["thresholds"][:, 2]).mean() > 0.17


def test_thresholds_know_nothing_of_the_releases_they_are_held_against() -> None:
    game = deal(materials(), 40, 10, 0)
    one, other = (Play(game, SoftmaxClient(game, TERMS)) for _ in range(2))
    for running in (one, other):
        running.add(weights(), TERMS, 1)
    other.outside[1::2] += 100.0
    other.inside += 100.0
    assert np.array_equal(*(running.outcome({}, "matched").values["thresholds"] for running in (one, other)))
    other.outside[0] += 100.0
    assert not np.array_equal(*(running.outcome({}, "matched").values["thresholds"] for running in (one, other)))


def test_every_release_is_told_of() -> None:
    told: list[int] = []
    game = deal(materials(), 20, 5, 0)
    Play(game, SoftmaxClient(game, TERMS)).add(weights(), TERMS, 1, told.append)
    assert sum(told) == 20
