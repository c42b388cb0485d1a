"""Which defence is attacked: that of the coming round, its static twins, and no defence at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.auditing import cells
from equipoise.auditing.cells import Cell, federation_cell, input_range, planned_cells, static_name, with_controls
from equipoise.data.dataset import from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import NO_PROTECTION, Protection
from equipoise.mechanism.pruning import PRUNING
from equipoise.mechanism.registry import MECHANISMS, Mechanism, get_mechanism
from equipoise.mechanism.release import observed_release
from equipoise.models.batched import Batched
from tests.auditing.small import CLASSES, QUICK, TWINS, images_of, materials, server_of

PUBLIC = materials().attack
assert PUBLIC is not None

# --- the attacker's position ---------------------------------------------------------------------------------


@pytest.mark.parametrize("moments", [(0.3, 0.5), ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))], ids=["shared", "per channel"])
def test_the_server_knows_the_range_of_normalised_pixels(moments: tuple[Any, Any]) -> None:
    mean, std = moments
    shape = (3, 4, 4)
    pixels = torch.rand(12, *shape, generator=torch.Generator().manual_seed(1))
    pixels[0], pixels[1] = 0.0, 1.0
    centre, spread = (torch.tensor(m).expand(3).view(3, 1, 1) for m in moments)
    pair = (pixels - centre) / spread, torch.arange(12) % 2
    dataset = from_tensors(pair, pair, pair, classes=2, mean=mean, std=std)
    server = cells.server_of(Settings.flat(batch=2, eta=0.3), dataset, None, NO_PROTECTION)  # type: ignore[arg-type]
    low, high = (torch.as_tensor(edge).expand(3, 1, 1) for edge in (server.low, server.high))
    assert torch.allclose(low, pair[0].amin((0, 2, 3)).view(3, 1, 1), atol=1e-5)
    assert torch.allclose(high, pair[0].amax((0, 2, 3)).view(3, 1, 1), atol=1e-5)
    assert (server.shape, server.classes, server.examples, server.eta) == (shape, 2, 2, 0.3)


# --- a federation's own mechanism ----------------------------------------------------------------------------

SCHEDULE = {"rounds": [1, 5], "values": [[0.96, 0.9, 0.9, 0.9], 0.98]}


EARLY, LATE = (15.99975, 0.1, 0.96), (7.99975, 0.3, 0.98)


@pytest.mark.parametrize(("after", "expected"), [(0, EARLY), (3, EARLY), (4, LATE), (9, LATE)])
def test_schedules_are_those_of_the_round_that_comes(after: int, expected: tuple[float, float, float]) -> None:
    """Weights after round t are what clients start round t + 1 from: its release is the one to be attacked.

    Budget and gamma change in round 5, so the releases from the weights after round 4 are the first of their kind.
    """
    settings = Settings.flat(gamma={"rounds": [1, 5], "values": [0.1, 0.3]}, steps=2)
    plain, weights = server_of()
    cell = federation_cell(settings, Federation("mnist", "pl-learn", SCHEDULE), after, weights, plain)
    own = cell.server.protection
    assert (own.scale, own.gamma, cell.about["promised_leakage"]) == pytest.approx(expected), "those of client 0"
    assert cell.about["client"] == 0, "the one with the least noise"
    assert own.steps == 2
    assert cell.about["round"] == after
    assert cell.weights is weights
    assert replace(cell.server, protection=plain.protection) == plain


@pytest.mark.parametrize(("name", "budget"), [("none", None), ("ls-static", 200)])
def test_only_a_budget_of_leakage_promises_a_score(name: str, budget: Any) -> None:
    cell = federation_cell(Settings(), Federation("mnist", name, budget, 3), 0, *reversed(server_of()))
    assert "promised_leakage" not in cell.about
    assert cell.about == {"dataset": "mnist", "mechanism": name, "budget": budget, "seed": 3, "round": 0}


@pytest.mark.parametrize(
    ("budget", "gamma", "client", "noisiest"),
    [
        ([0.9, 0.96, 0.98, 0.96], 0.1, 2, 0), ([0.98, 0.9, 0.9, 0.9], 0.1, 0, 1), ([0.9, 0.98, 0.98, 0.9], 0.1, 1, 0),
        (0.98, [0.1, 0.1, 0.1, 5.0], 0, 3), (0.98, 0.1, None, 0), ([0.98] * 4, 0.1, None, 0),
    ],
)  # fmt: skip
def test_the_client_with_the_least_noise_is_attacked(budget: Any, gamma: Any, client: Any, noisiest: int) -> None:
    """Client 0 alone would say nothing of a client that hides less."""
    settings, fed = Settings.flat(gamma=gamma), Federation("mnist", "pl-learn", budget)
    plain, weights = server_of()
    cell = federation_cell(settings, fed, 0, weights, plain)
    at = settings.protection.at("pl-learn", budget, 1, client or 0)
    assert cell.server.protection == at
    assert float(at.scale) <= float(settings.protection.at("pl-learn", budget, 1, noisiest).scale)
    assert cell.about.get("client") == client
    best = max(budget) if isinstance(budget, list) else budget
    assert cell.about["promised_leakage"] == best


def test_gamma_of_each_client_is_of_no_account_to_static_noise() -> None:
    settings = Settings.flat(gamma=[0.1, 0.2, 0.3, 0.4]).protection
    assert not cells.per_client(settings, Federation("mnist", "pl-identical", 0.98))
    schedule = {"rounds": [1, 3], "values": [0.9, [0.9, 0.98, 0.9, 0.9]]}
    fed = Federation("mnist", "pl-identical", schedule)
    assert [cells.loosest_client(settings, fed, number) for number in (1, 2, 3)] == [0, 0, 1]


# --- twins and controls --------------------------------------------------------------------------------------


def cell_of(name: str, scale: float = 0.5, **protection: Any) -> Cell:
    server, weights = server_of(name, scale, **protection)
    given = View(weights.expand(2, -1), weights.expand(2, -1) + 1)
    return Cell(weights, server, {"mechanism": name, "round": 4}, given)


@pytest.mark.parametrize(
    ("name", "roles"),
    [("none", ["own"]), ("gs-static", ["own", "undistorted"]), ("gs-learn", ["own", *TWINS, "undistorted"])],
)
def test_every_defence_is_set_beside_its_twins_and_none_at_all(name: str, roles: list[str]) -> None:
    own = cell_of(name)
    result = {cell.about["role"]: cell for cell in with_controls(own, materials(), QUICK)}
    assert list(result) == roles
    for role, cell in result.items():
        assert cell.about["control"] == ("positive" if role == "undistorted" else None)
        assert (cell.about["mechanism"], cell.about["round"]) == (name, 4)
        assert cell.view is (own.view if role == "own" else None), "what was given is the defence's own"
        assert cell.weights is own.weights
        assert replace(cell.server, protection=own.server.protection) == own.server
        assert (cell.server.protection == own.server.protection) == (role == "own")
    if "undistorted" in result:
        assert result["undistorted"].server.protection == NO_PROTECTION


@pytest.mark.parametrize("clips", [{"clips": True}, {"per_example": True}], ids=str)
def test_clipping_alone_is_a_defence_with_a_control_and_a_key_of_its_own(clips: dict[str, bool]) -> None:
    own, plain = cell_of("none", clip=1e-3), cell_of("none")
    protection = replace(own.server.protection, mechanism=Mechanism("clip-only", None, **clips))  # type: ignore
    own = replace(own, server=replace(own.server, protection=protection))
    assert [cell.about["role"] for cell in with_controls(own, materials(), QUICK)] == ["own", "undistorted"]
    other = replace(own, server=replace(own.server, protection=replace(protection, clip=1.0)))
    assert len({own.key(), plain.key(), other.key()}) == 3


def test_another_name_for_no_protection_is_its_own_control() -> None:
    own = cell_of("none")
    bare = replace(own.server.protection, mechanism=Mechanism("bare", None))
    planned = list(planned_cells(replace(own, server=replace(own.server, protection=bare)), materials(), QUICK))
    assert [one.about["role"] for one in planned] == ["own", "undistorted"]
    assert planned[0].key == planned[1].key, "attacked once"


def test_twins_can_be_left_out_and_need_public_images() -> None:
    for materials_, options in ((materials(), replace(QUICK, twins=False)), (replace(materials(), attack=None), QUICK)):
        cells = with_controls(cell_of("gs-learn"), materials_, options)
        assert [cell.about["role"] for cell in cells] == ["own", "undistorted"]


def mean_intensity(server: Server, weights: Tensor, count: int = 400) -> float:
    """Of the distortion itself, on target images with noise of their own."""
    labels = (torch.arange(4) % CLASSES).expand(count, -1)
    images = images_of(labels, 21)
    kind = server.protection.mechanism
    numbers = torch.rand(count, len(weights), generator=torch.Generator().manual_seed(3))
    objectives = [server.batched.at(images, labels)]
    noise = standard_noise(numbers, kind.noise)
    alpha = observed_release(objectives, weights.repeat(count, 1), noise, server.eta, server.protection)[1]
    return float(intensity(alpha, kind.norm).mean())


def static_twins(server: Server, weights: Tensor) -> dict[str, Protection]:
    cells = with_controls(Cell(weights, server, {}), materials(), QUICK)
    return {cell.about["role"]: cell.server.protection for cell in cells if cell.about["role"] in TWINS}


def test_a_cell_is_known_by_its_key_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an audit will do can be counted at once: no norm is simulated for that, and no key needs one."""
    server, weights = server_of("pl-learn", 0.5)
    cell = Cell(weights, server, {"round": 3})
    planned = list(planned_cells(cell, materials(), QUICK))
    made = list(with_controls(cell, materials(), QUICK))
    assert [one.about for one in planned] == [one.about for one in made]
    assert len({one.key for one in planned}) == 4
    for one, other in zip(planned, made, strict=True):
        assert (one.key == other.key()) == (other.about["role"] != TWINS[1])
    monkeypatch.setattr(cells, "SIMULATED", 0)  # whoever simulates now divides by zero
    assert [one.key for one in planned_cells(cell, materials(), QUICK)] == [one.key for one in planned]
    other = replace(server, protection=replace(server.protection, scale=0.6))
    assert not {one.key for one in planned_cells(replace(cell, server=other), materials(), QUICK)} & {
        one.key for one in planned[:3]
    }


@pytest.mark.parametrize("clip", [None, 0.2], ids=["unclipped", "clipped"])
@pytest.mark.parametrize(("name", "scale"), [("pl-learn", 0.5), ("ls-learn", 0.01), ("gs-learn", 0.02)])
def test_twins_have_the_noise_without_the_learner(name: str, scale: float, clip: float | None) -> None:
    server, weights = server_of(name, scale, gamma=1.0, steps=5, clip=clip)
    twins = static_twins(server, weights)
    assert set(twins) == {"static, equal lower bound", "static, equal final norm"}
    lower, final = twins["static, equal lower bound"], twins["static, equal final norm"]
    assert lower.scale == scale
    assert float(final.scale) > 1.02 * scale, "the learner made the distortion larger"
    for twin in (lower, final):
        kind = twin.mechanism
        assert not kind.learns
        assert replace(kind, name=name, learns=True) == server.protection.mechanism
        assert twin.clip == clip
    learned = mean_intensity(server, weights)
    assert mean_intensity(replace(server, protection=final), weights) == pytest.approx(learned, rel=0.02)
    assert mean_intensity(replace(server, protection=lower), weights) <= learned


def test_a_learner_that_stands_still_is_its_own_twin() -> None:
    server, weights = server_of("pl-learn", 0.5, steps=0)
    final = static_twins(server, weights)["static, equal final norm"]
    assert final.scale == 0.5, "to the bit: it is attacked once"
    labels = (torch.arange(4) % CLASSES).expand(3, -1)
    images, noise = images_of(labels, 5), torch.randn(3, len(weights), generator=torch.Generator().manual_seed(1))
    one = respond(server, weights, images, labels, noise)
    two = respond(replace(server, protection=final), weights, images, labels, noise)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


def test_every_learned_mechanism_has_a_static_one() -> None:
    assert static_name("pl-learn") == "pl-identical"
    for name, kind in MECHANISMS.items():
        result = static_name(name)
        assert (result is not None) == kind.learns
        if result is not None:
            assert replace(MECHANISMS[result], name="") == replace(kind, name="", learns=False)


# --- one defence and another ---------------------------------------------------------------------------------


def test_defences_at_the_same_weights_are_told_apart_by_what_clients_do() -> None:
    server, weights = server_of("gs-learn", 0.5, clip=2.0)
    plain, own = Cell(weights, server, {"role": "own"}), server.protection
    assert replace(plain, about={"role": "another"}).key() == plain.key(), "not by what they are called"
    others = [replace(plain, weights=weights + 1)]
    for change in (
        {"scale": 0.6}, {"steps": 4}, {"gamma": 0.2}, {"negative_norm": 0.1}, {"factor": 3.0}, {"clip": 1.0},
        {"clip_norm": "l1"}, {"mechanism": get_mechanism("gs-static")}, {"mechanism": get_mechanism("ls-learn")},
        {"mechanism": get_mechanism("pl-learn")}, {"mechanism": get_mechanism("none")},
        {"mechanism": replace(own.mechanism, noise="laplace")}, {"mechanism": replace(own.mechanism, norm="l1")},
        {"mechanism": replace(own.mechanism, clips=False)},
        {"mechanism": replace(own.mechanism, clips=False, per_example=True)},
        {"mechanism": replace(own.mechanism, clips=False, per_example=True), "clip": 1.0},
    ):  # fmt: skip
        others.append(replace(plain, server=replace(server, protection=replace(own, **change))))
    keys = [plain.key(), *(other.key() for other in others)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("change", [{"steps": 9}, {"gamma": 0.7}, {"negative_norm": 0.2}, {"factor": 5.0}])
def test_what_only_a_learner_reads_tells_no_static_defences_apart(change: dict[str, Any]) -> None:
    one, two = cell_of("gs-static"), cell_of("gs-static", **change)
    assert one.key() == two.key()
    assert cell_of("gs-learn").key() != cell_of("gs-learn", **change).key()


def test_undistorted_releases_are_one_defence_whatever_the_mechanism_was_set_to() -> None:
    assert cell_of("none", 0.0).key() == cell_of("none", 3.0, steps=9, clip=1.0).key()


def test_the_twin_of_equal_lower_bound_is_the_static_mechanism_of_the_registry() -> None:
    """So that it is attacked once where a sweep holds both."""
    own = cell_of("gs-learn")
    twin = static_twins(own.server, own.weights)["static, equal lower bound"]
    assert replace(own, server=replace(own.server, protection=twin)).key() == cell_of("gs-static").key()


# --- other data than pictures --------------------------------------------------------------------------------


def test_the_range_of_a_table_is_that_of_public_rows_and_half_as_much_on_either_side() -> None:
    labels = torch.arange(24) % 2
    rows, private = torch.arange(48.0).view(24, 2), torch.full((24, 2), 1e6)
    data = from_tensors((private, labels), (private, labels), public=(rows, labels))
    known = data.public_attack.inputs
    low, high = input_range(data)
    width = known.amax(0) - known.amin(0)
    torch.testing.assert_close(low, known.amin(0) - width / 2)
    torch.testing.assert_close(high, known.amax(0) + width / 2)


def test_the_range_of_tokens_is_the_vocabulary() -> None:
    pair = torch.tensor([[1, 6, 0], [2, 3, 4]] * 6), torch.arange(12) % 2
    data = from_tensors(pair, pair, public=pair)
    assert data.kind == "tokens"
    assert input_range(data) == (0.0, 6.0)
    server = cells.server_of(Settings.flat(batch=2), data, Batched(torch.nn.Embedding(7, 2)), NO_PROTECTION)
    assert server.kind == "tokens"


def test_the_norm_of_a_twin_is_simulated_with_labels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where labels are no classes, every public record is trained on what it stands for."""
    server, weights = server_of("pl-learn", 0.01)
    assert PUBLIC is not None
    images, numbers = PUBLIC[0][:40], torch.arange(40)
    seen = []

    def watched(*given: Any) -> Tensor:
        seen.append(bool((given[2] == images[given[3]]).all()))
        return respond(*given)

    monkeypatch.setattr(cells, "respond", watched)
    table = numbers % CLASSES
    batched = Batched(server.batched.model, lambda outputs, ids: torch.nn.functional.cross_entropy(outputs, table[ids]))
    cells.final_norm(replace(server, batched=batched, targets=table * 0.5), weights, (images, numbers), QUICK)
    assert seen
    assert all(seen)


# --- mechanisms that shape the update ------------------------------------------------------------------------


def test_two_shares_and_two_ways_of_shaping_are_different_defences() -> None:
    cells_of = [
        cell_of("pruning", 10.0),
        cell_of("pruning", 100.0),
        cell_of("outpost", 10.0),
        cell_of("gs-static", 10.0),
    ]
    other = cell_of("outpost", 10.0)
    kind = replace(other.server.protection.mechanism, shaping=PRUNING)
    protection = replace(other.server.protection, mechanism=kind)
    cells_of.append(replace(other, server=replace(other.server, protection=protection)))
    assert len({cell.key() for cell in cells_of}) == len(cells_of)
    assert cell_of("pruning", 10.0).key() == cell_of("pruning", 10.0, steps=7, gamma=3.0).key(), "nothing is learned"


@pytest.mark.parametrize("name", ["pruning", "outpost"])
def test_what_shapes_the_update_has_no_static_twin(name: str) -> None:
    result = [cell.about["role"] for cell in with_controls(cell_of(name, 10.0), materials(), QUICK)]
    assert result == ["own", "undistorted"]
    assert static_name(name) is None
