"""What is measured of an attack: against an audit, against plain gradients, and on guesses made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from equipoise.attack.attack import Hooks
from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from equipoise.attack.view import Server, View
from equipoise.auditing.cells import Cell, server_of
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.targets import Materials, build_targets
from equipoise.bounds.attacked_releases import (
    AttackObserver,
    ResidualRecorder,
    _public_ratios,
    attack_releases,
)
from equipoise.bounds.context import BoundsContext
from equipoise.bounds.run import Bounds
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.mechanism.protection import NO_PROTECTION
from equipoise.mechanism.registry import get_mechanism
from tests.bounds.runs import CHEAP, rows, untrained


@pytest.fixture
def server(context: BoundsContext) -> Server:
    (data,) = context.sweep.datasets.values()
    return server_of(context.sweep.settings, data, context.sweep.batched, NO_PROTECTION)


@pytest.fixture
def view(context: BoundsContext, server: Server) -> tuple[View, Tensor]:
    """Three undistorted releases of two public images each, and these images."""
    (data,) = context.sweep.datasets.values()
    images, labels = (part[:6].reshape(3, 2, *part.shape[1:]) for part in Materials.of(data).pool)
    previous = context.weights[2][0].expand(3, -1).contiguous()
    released = previous - 0.1 * server.batched.at(images, labels).gradient(previous)
    return View(previous, released, labels), images


def test_what_is_measured_at_a_cell_equals_what_an_audit_measures_there(context: BoundsContext) -> None:
    ((name, data),) = context.sweep.datasets.items()
    s, batched = context.sweep.settings, context.sweep.batched
    options = AuditOptions(attacks=["invgrad"], releases=2, iterations=6, candidates=2, others=1)
    materials = Materials.of(data).to(context.sweep.device, context.sweep.dtype)
    for index, fed in enumerate(context.sweep.federations):
        result, weights = attack_releases(context, name, [(index, 2)]), context.weights[2][index]
        server = server_of(s, data, batched, s.protection.at(fed.mechanism, fed.budget, 3))
        targets = build_targets(materials, server, options)
        (outcome,) = attack_cell(Cell(weights, server, {}), targets, materials, options, s.protection.leakage.D)
        assert result.leakage.tolist() == pytest.approx(outcome.values["leakage"].tolist(), abs=1e-5)
        assert result.beyond.tolist() == pytest.approx(outcome.values["beyond_D"].tolist(), abs=1e-6)
        assert result.residuals.shape == (6, 2)
        assert bool((result.residuals > 0).all())


def test_cells_do_not_influence_each_other(context: BoundsContext) -> None:
    (name,) = context.sweep.datasets
    both, alone = attack_releases(context, name, [(0, 2), (1, 2)]), attack_releases(context, name, [(0, 2)])
    assert (both.of(0), both.of(1)) == (slice(0, 2), slice(2, 4))
    assert torch.allclose(both.leakage[both.of(0)], alone.leakage, atol=1e-6)
    assert torch.allclose(both.residuals[:, both.of(0)], alone.residuals, rtol=1e-5)
    assert torch.allclose(both.public[0], alone.public[0])
    assert both.alive.tolist() == [True] * 4


def test_the_recorder_hears_every_iteration_of_every_chunk(server: Server, view: tuple[View, Tensor]) -> None:
    seen, _ = view
    recorder, direct = ResidualRecorder(server, seen, 4), torch.zeros(4, 3).double()

    def watch(rows: Tensor, iteration: int, guess: Tensor) -> None:
        recorder.watch(rows, iteration)
        slope = server.batched.at(guess, seen.labels[rows]).gradient(seen.previous[rows])
        direct[iteration - 1, rows] = (seen.previous[rows] - 0.1 * slope - seen.released[rows]).norm(dim=1).double()

    invgrad(recorder.server, seen, Search(iterations=4, chunk=2), Hooks(watch))
    assert torch.allclose(recorder.values, direct, rtol=1e-4, atol=1e-6)


def test_distances_and_ratios_of_guesses_made_by_hand(server: Server, view: tuple[View, Tensor]) -> None:
    seen, truth = view
    observer = AttackObserver(server, seen, truth, D=10.0, iterations=16)
    assert observer.looks == [1, 2, 4, 6, 8, 10, 12, 14, 16]
    far, near = truth.clone(), truth.clone()
    far[:, 0, 0, 0, 0] += 3.0
    far[:, 1, 0, 0, :2] += 4.0  # |(4, 4)| = 5.66, the larger of the two
    near[:, 1, 0, 0, 0] += 1.0
    observer.watch(torch.tensor([0, 2]), 1, far[[0, 2]])
    observer.watch(torch.tensor([0, 2]), 3, near[[0, 2]])  # nearer, and at no iteration that is looked at
    assert observer.farthest.tolist() == pytest.approx([32**0.5, 0.0, 32**0.5])
    assert torch.isnan(observer.ratios[:, 1]).all()
    assert torch.isnan(observer.ratios[2:]).all()
    for example, apart in ((0, 3.0), (1, 32**0.5)):
        for release in (0, 2):
            previous, label = seen.previous[release : release + 1], seen.labels[release, example].view(1, 1)
            slopes = [
                server.batched.at(images[release, example].view(1, 1, *server.shape), label).gradient(previous).clone()
                for images in (truth, far)
            ]
            moved = 0.1 * float((slopes[0] - slopes[1]).norm())
            assert float(observer.ratios[example, release]) == pytest.approx(apart / moved, rel=1e-3)


def test_public_pairs_share_a_label(context: BoundsContext, server: Server) -> None:
    (data,) = context.sweep.datasets.values()
    materials = Materials.of(data)
    images, labels = (part[:7] for part in materials.pool)
    weights = context.weights[2][0]
    slopes = server.batched.at(images.unsqueeze(1), labels.unsqueeze(1)).gradient(weights.repeat(7, 1))
    allowed = [
        float((images[i] - images[j]).norm() / (0.1 * (slopes[i] - slopes[j]).norm()))
        for i in range(7) for j in range(i) if labels[i] == labels[j]
    ]  # fmt: skip
    result = _public_ratios(server, replace(materials, pool=(images, labels)), weights)
    assert len(result) == 7 - len(set(labels.tolist()))
    for ratio in result.tolist():
        assert min(abs(ratio / one - 1) for one in allowed) < 1e-3
    single = replace(materials, pool=(images[:2], torch.tensor([0, 1])))
    assert torch.isnan(_public_ratios(server, single, weights)).all()


def test_without_its_distortion_a_mechanism_still_clips() -> None:
    bare = get_mechanism("ls-learn").plain
    assert (bare.distorts, bare.learns, bare.clips) == (False, False, True)


def test_releases_are_protected_as_in_the_coming_round(few: Dataset) -> None:
    fed = Federation("few", "pl-identical", {"rounds": [1, 3], "values": [0.98, 0.96]})
    context = untrained(few, fed, snapshots=[1, 2], options=replace(CHEAP, iterations=2))
    result = attack_releases(context, "few", [(0, 1), (0, 2)])
    assert result.beta.tolist() == pytest.approx([7.99975, 7.99975, 15.99975, 15.99975], rel=1e-4)


def test_beta_is_the_norm_of_the_distortion_alone(result: Bounds) -> None:
    for name, beta in (("none", 0.0), ("pl-identical", 7.99975)):
        for one in rows(result, "privacy_leakage", mechanism=name):
            assert one["constants"]["beta"]["value"] == pytest.approx(beta, rel=1e-4)
