"""Scattering features: equal to kymatio's, and a function of one image alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.models.scattering import MAPS, Scattering, filter_bank, padded, reflected, scatter
from tests.models.scattering_reference import FILE, SHAPES, images, key, kymatio

TOLERANCE = 5e-6  # of the largest number of each map


def largest_error(actual: Tensor, expected: Tensor) -> float:
    """Relative to the largest number of each map: single numbers may be as near to zero as they like."""
    assert actual.shape == expected.shape
    size = expected.abs().amax((-2, -1), keepdim=True)
    return float(((actual - expected).abs() / size).max())


@pytest.fixture(scope="module")
def reference() -> dict[str, Tensor]:
    with np.load(FILE, allow_pickle=False) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


@pytest.mark.parametrize("shape", SHAPES, ids=key)
def test_the_maps_are_those_of_kymatio(reference: dict[str, Tensor], shape: tuple[int, int, int]) -> None:
    maps = Scattering(shape).maps(images(shape))
    assert maps.dtype == torch.float32
    assert maps.shape[1:3] == (shape[0], MAPS)
    assert largest_error(maps, reference[key(shape)]) < TOLERANCE


@pytest.mark.parametrize("shape", SHAPES, ids=key)
def test_the_maps_in_double_precision_are_those_of_kymatio(
    reference: dict[str, Tensor], shape: tuple[int, int, int]
) -> None:
    spread = images(shape)[:, :, reflected(shape[1])][..., reflected(shape[2])].double()
    maps = scatter(spread, filter_bank(padded(shape[1]), padded(shape[2])))
    assert maps.dtype == torch.float64
    assert largest_error(maps, reference[key(shape)].double()) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 31, 33), (2, 5, 7), (1, 64, 48)], ids=key)
def test_the_maps_are_those_of_an_installed_kymatio(shape: tuple[int, int, int]) -> None:
    try:
        transform = kymatio(shape)
    except ImportError:
        pytest.skip("kymatio is not installed; its outputs for four shapes are compared without it above")
    x = images(shape, count=3)
    assert largest_error(Scattering(shape).maps(x), transform(x)) < TOLERANCE


def test_filters_are_band_pass_and_the_average_keeps_grey() -> None:
    bank = filter_bank(36, 40)
    for wavelets in (bank.fine, bank.coarse):
        assert wavelets[:, 0, 0].abs().max() < 1e-12, "no answer to flat grey"
    rows = torch.einsum("ij,kl->ik", bank.rows, bank.columns)
    assert torch.allclose(rows, torch.ones_like(rows), rtol=1e-4), "flat grey stays as it is"


def test_a_filter_does_not_depend_on_how_often_it_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = filter_bank(12, 12)
    monkeypatch.setattr("equipoise.models.scattering.COPIES", range(-4, 5))
    for one, two in zip(usual, filter_bank(12, 12), strict=True):
        assert torch.allclose(one, two, atol=1e-9)


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 28, 31])
def test_borders_are_mirrored(side: int) -> None:
    places = reflected(side).tolist()
    before = (padded(side) - side) // 2
    assert places[before : before + side] == list(range(side))
    assert {abs(a - b) for a, b in itertools.pairwise(places)} <= ({0} if side == 1 else {1})


# -- the features --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*SHAPES, (2, 1, 5), (1, 3, 3)], ids=key)
def test_features_have_one_norm_and_normalised_groups(shape: tuple[int, int, int]) -> None:
    model = Scattering(shape)
    features = model(images(shape, count=2) + 0.1)
    assert features.shape == (2, model.width)
    assert features.dtype == torch.float32
    assert torch.allclose(features.norm(dim=1), torch.full((2,), 8.0))
    means = features.view(2, 27 * shape[0], -1).mean(-1)
    assert means.abs().max() < 8e-6, "27 groups of each channel, each of mean 0"


def test_the_groups_are_those_of_group_norm() -> None:
    model, x = Scattering((2, 13, 22)), images((2, 13, 22), count=3)
    for record, features in zip(x, model(x), strict=True):
        channels = [torch.nn.GroupNorm(27, 81, affine=False)(model.maps(record[None])[:, c]) for c in range(2)]
        expected = torch.cat(channels, 1).flatten()
        assert torch.allclose(features, 8 * expected / expected.norm(), atol=1e-5)


def test_zeros_give_zeros_and_flat_grey_is_finite() -> None:
    model = Scattering((1, 8, 8))
    assert torch.equal(model(torch.zeros(2, 1, 8, 8)), torch.zeros(2, model.width))
    for grey in (1e-30, 1e-3, 1.0, 1e6):
        assert torch.isfinite(model(torch.full((1, 1, 8, 8), grey))).all()


def test_a_record_has_the_same_features_in_any_company() -> None:
    model, x = Scattering(), images((1, 28, 28), count=5)
    whole = model(x)
    other = model(torch.cat([x[:2] * 100, x[2:3], x[3:] - 7]))
    assert torch.allclose(whole[2], other[2], atol=1e-7)
    assert torch.allclose(whole[2], model(x[2:3])[0], atol=1e-7)


def test_nothing_is_trained_and_nothing_saved() -> None:
    model = Scattering((1, 8, 8))
    assert list(model.parameters()) == []
    assert model.state_dict() == {}
    assert all(not tensor.requires_grad for tensor in model.buffers())
    assert len(list(model.buffers())) == 8, "they travel with .to(device)"
