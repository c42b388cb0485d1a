"""The table of mechanisms and the measures behind their budgets: as data, and open to new rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, problems
from equipoise.errors import BudgetError, ConfigError
from equipoise.mechanism.budget import GaussianBudget, LaplaceBudget, LeakageBudget
from equipoise.mechanism.noise import NOISES, register_noise
from equipoise.mechanism.outpost import OUTPOST, OutpostBudget
from equipoise.mechanism.protect import protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.pruning import PRUNING, ShareBudget
from equipoise.mechanism.registry import MEASURES, MECHANISMS, MeasureKind, Mechanism, checked, get_mechanism, register
from equipoise.mechanism.run_budget import GaussianSettings, RunBudget
from tests.engine.sweeps import rows_of, small, sweep_of


@pytest.fixture
def registries() -> Iterator[None]:
    """What is registered here is gone afterwards, for everybody who holds the tables."""
    kept = dict(MECHANISMS), dict(MEASURES)
    yield
    for table, before in zip((MECHANISMS, MEASURES), kept, strict=True):
        table.clear()
        table.update(before)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reciprocal:
    """A user's own measure."""

    factor: float = 3.0
    bounds_draw: bool = False

    def leakage(self, intensity: float) -> float:
        return 1 / intensity

    def lower(self, budget: float) -> float:
        return 1 / budget


# --- the table ---------------------------------------------------------------------------------------------


def test_the_table_of_mechanisms() -> None:
    rows = {m.name: (m.measure, m.noise, m.norm, m.learns, m.clips) for m in MECHANISMS.values() if not m.per_example}
    assert rows == {
        "none": (None, "laplace", "l2", False, False),
        "pl-identical": ("leakage", "laplace", "l2", False, False),
        "pl-learn": ("leakage", "laplace", "l2", True, False),
        "ls-static": ("laplace", "laplace", "l1", False, True),
        "ls-learn": ("laplace", "laplace", "l1", True, True),
        "gs-static": ("gaussian", "gaussian", "l2", False, True),
        "gs-learn": ("gaussian", "gaussian", "l2", True, True),
        "pruning": ("share", "laplace", "l2", False, False),
        "outpost": ("outpost", "gaussian", "l2", False, False),
    }
    shapings = {m.name: m.shaping for m in MECHANISMS.values() if m.shaping is not None}
    assert shapings == {"pruning": PRUNING, "outpost": OUTPOST}
    assert {m.name for m in MECHANISMS.values() if not m.draws} == {"none", "pruning"}
    assert {m.name for m in MECHANISMS.values() if not m.adds} == {m.name for m in MECHANISMS.values() if m.learns} | {
        "pruning", "outpost"
    }  # fmt: skip
    formal = {"learns": False, "clips": False, "per_example": True}
    assert [m for m in MECHANISMS.values() if m.per_example] == [
        Mechanism("laplace-dp", "epsilon", noise="laplace", norm="l1", **formal),
        Mechanism("gaussian-dp", "epsilon-delta", noise="gaussian", norm="l2", **formal),
    ]
    assert {m.name for m in MECHANISMS.values() if m.on_sphere} == {"pl-identical", "pl-learn"}
    assert {m.name for m in MECHANISMS.values() if m.fixed_norm} == {"pl-identical"}
    assert {m.name for m in MECHANISMS.values() if not m.distorts} == {"none"}
    assert {m.name for m in MECHANISMS.values() if m.formal} == {"laplace-dp", "gaussian-dp"}
    assert {m.name for m in MECHANISMS.values() if m.whole_run} == {"gaussian-dp"}


def test_every_mechanism_is_calibrated_by_its_measure() -> None:
    gaussian = GaussianSettings(rounds=7, clip=2.0)
    settings = ProtectionSettings(sensitivity=4.0, factor=3.0, eta=0.2, clip=40.0, batch=8, gaussian=gaussian)
    expected = {
        "leakage": LeakageBudget(factor=3.0),
        "laplace": LaplaceBudget(4.0, 3.0),
        "gaussian": GaussianBudget(4.0, 3.0),
        "epsilon": LaplaceBudget(2 * 0.2 * 40 / 8, 3.0),
        "epsilon-delta": RunBudget(gaussian, 0.2),
        "share": ShareBudget(),
        "outpost": OutpostBudget(0.2, 1),
    }
    assert set(expected) == set(MEASURES)
    for name, kind in MEASURES.items():
        made = kind.build(settings)
        assert (type(made), made) == (type(expected[name]), expected[name])
        assert made.bounds_draw == kind.bounds_draw


def test_grids_hold_budgets_of_their_measure_from_strict_to_loose() -> None:
    for kind in MEASURES.values():
        measure = kind.build(ProtectionSettings(gaussian=GaussianSettings(rounds=50)))
        lowers = [measure.lower(budget) for budget in kind.grid]
        assert len(lowers) >= 5
        assert lowers == sorted(lowers, reverse=True)


def test_an_unknown_mechanism_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"Unknown mechanism 'pl-lern'. Did you mean 'pl-learn'\?") as caught:
        get_mechanism("pl-lern")
    assert "ls-static" in caught.value.remedy
    with pytest.raises(ConfigError, match="Expected mechanism=5 to be a name"):
        get_mechanism(5)  # type: ignore[arg-type]
    assert get_mechanism(MECHANISMS["none"]) is MECHANISMS["none"]


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_budget_is_given_if_and_only_if_the_mechanism_needs_one(name: str) -> None:
    needs = name != "none"
    assert checked(name, 0.98 if needs else None) is MECHANISMS[name]
    with pytest.raises(ConfigError, match=f"'{name}' needs a budget" if needs else "takes no budget, got 0.98"):
        checked(name, None if needs else 0.98)


def test_a_budget_of_zero_is_a_budget() -> None:
    assert checked("pl-learn", 0) is MECHANISMS["pl-learn"]
    with pytest.raises(ConfigError, match="takes no budget, got 0"):
        checked("none", 0)


# --- what a guarantee needs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (name, change)
        for name, other in (("laplace-dp", ("l2", "gaussian")), ("gaussian-dp", ("l1", "laplace")))
        for change in (
            {"per_example": False}, {"learns": True}, {"norm": other[0]}, {"noise": other[1]}, {"clips": True},
        )
    ],
)  # fmt: skip
def test_no_other_mechanism_can_borrow_the_guarantee(name: str, change: dict[str, Any]) -> None:
    dp = MECHANISMS[name]
    with pytest.raises(ConfigError, match=f"'{dp.measure}' of 'mine' is proved for"):
        replace(dp, name="mine", **change)
    assert replace(dp, name="mine").formal


@pytest.mark.usefixtures("registries")
def test_a_guarantee_of_the_users_own_is_refused() -> None:
    """Its epsilon would be printed and composed without a proof."""
    with pytest.raises(ConfigError, match="needs a proof"):
        register(MeasureKind("mine", lambda s: Reciprocal(), formal=True))


def test_what_a_proof_rests_on_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        MEASURES["epsilon"].proved_for["noise"] = "gaussian"  # type: ignore[index]
    with pytest.raises(TypeError):
        NOISES["laplace"] = NOISES["gaussian"]  # type: ignore[index]
    with pytest.raises(ConfigError, match="The noise 'laplace' exists"):
        register_noise("laplace", NOISES["gaussian"])


@pytest.mark.usefixtures("registries")
def test_a_kind_that_contradicts_its_measure_is_refused() -> None:
    register(MeasureKind("odd", lambda s: LaplaceBudget(s.sensitivity)))
    register(Mechanism("odd", "odd"))
    with pytest.raises(ConfigError, match="bounds_draw=True, its kind says False"):
        ProtectionSettings().measure("odd")


def test_a_missing_budget_is_an_error_and_not_no_noise() -> None:
    for name in ("pl-learn", "laplace-dp", "gaussian-dp"):
        with pytest.raises(ConfigError, match="budget"):
            ProtectionSettings().at(name, None, 1)
        with pytest.raises(ConfigError, match="budget"):
            ProtectionSettings().scales(name, None, [1])


# --- rows of the user's own --------------------------------------------------------------------------------


@pytest.mark.usefixtures("registries")
def test_a_mechanism_of_the_users_own_is_known_by_name() -> None:
    mine = register(Mechanism("half-distance", Reciprocal(), learns=True))
    assert get_mechanism("half-distance") is mine
    assert mine.on_sphere, "its budget bounds the intensity itself"
    assert not replace(mine, measure=Reciprocal(bounds_draw=True)).on_sphere
    assert not mine.formal
    assert mine.measure_kind is not None
    assert (mine.measure_kind.name, mine.measure_kind.grid) == ("Reciprocal", ())
    with pytest.raises(ConfigError, match="The mechanism 'half-distance' exists"):
        register(mine)


def test_what_is_no_measure_is_refused() -> None:
    with pytest.raises(ConfigError, match="lacks leakage, lower, factor or bounds_draw"):
        Mechanism("broken", object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Unknown measure 'lekage'\. Did you mean 'leakage'"):
        Mechanism("broken", "lekage")
    with pytest.raises(ConfigError, match="The measure 'leakage' exists"):
        register(MeasureKind("leakage", lambda s: Reciprocal()))
    assert MEASURES["leakage"].build(ProtectionSettings()) == LeakageBudget()


def first_intensities(few: Dataset, federation: Federation, **change: Any) -> list[float]:
    (rows,) = rows_of(sweep_of(few, [federation], small(), rounds=1, **change))
    return list(rows[0]["intensity_last"])


@pytest.mark.usefixtures("registries")
def test_a_measure_of_the_users_own_calibrates_a_sweep(few: Dataset) -> None:
    register(Mechanism("mine", Reciprocal()))
    register(Mechanism("mine-outwards", Reciprocal(), learns=True))
    budgets = [0.5, 0.25, 0.2, 0.1]
    result = first_intensities(few, Federation("few", "mine", budgets))
    assert result == pytest.approx([2.0, 4.0, 5.0, 10.0], rel=1e-5)
    result = first_intensities(few, Federation("few", "mine-outwards", budgets), negative_norm=1e4)
    assert result == pytest.approx([6.0, 12.0, 15.0, 30.0], rel=1e-5), "its own factor"


@pytest.mark.usefixtures("registries")
def test_a_kind_of_measure_of_the_users_own_serves_sweeps_and_protect(few: Dataset) -> None:
    """Registered by name, it takes its constants from the settings, and is one of the mechanisms everywhere."""
    register(MeasureKind("reciprocal", lambda s: Reciprocal(factor=s.factor), grid=(0.5, 1.0)))
    register(Mechanism("mine", "reciprocal"))
    register(Mechanism("mine-outwards", "reciprocal", learns=True))
    settings: dict[str, Any] = {"negative_norm": 1e4, "factor": 4.0}
    actual = first_intensities(few, Federation("few", "mine-outwards", [0.5, 0.25, 0.2, 0.1]), **settings)
    assert actual == pytest.approx([8.0, 16.0, 20.0, 40.0], rel=1e-5), "the factor of the settings"

    model, batch = small(), (few.train.inputs[:4], few.train.labels[:4])
    for name, expected in (("mine", 4.0), ("mine-outwards", 16.0)):
        sent = protected_step(model, model.state_dict(), batch, name, 0.25, settings=ProtectionSettings(**settings))
        assert sent.record["intensity"] == pytest.approx(expected, rel=1e-5)
        assert (sent.record["lower"], sent.record["upper"]) == (4.0, 16.0)
    with pytest.raises(ConfigError, match="'mine' needs a budget"):
        protected_step(model, model.state_dict(), batch, "mine")


@pytest.mark.usefixtures("registries")
def test_a_kind_that_bounds_the_draw_fixes_the_scale_of_the_noise(few: Dataset) -> None:
    register(MeasureKind("drawn", lambda s: Reciprocal(s.factor, bounds_draw=True), bounds_draw=True))
    mine = register(Mechanism("mine-drawn", "drawn", norm="l1"))
    assert not mine.on_sphere
    result = first_intensities(few, Federation("few", "mine-drawn", 20.0))
    theirs = first_intensities(few, Federation("few", "ls-static", 200.0), sensitivity=10.0)
    assert result == theirs, "a scale of 1/20 either way, and the same noise"


@pytest.mark.usefixtures("registries")
def test_budgets_of_a_measure_of_the_users_own_are_checked_by_it() -> None:
    class Strict(Reciprocal):
        def lower(self, budget: float) -> float:
            raise BudgetError(f"Expected budget={budget!r} to be something else.")

    register(MeasureKind("strict", lambda s: Strict()))
    register(Mechanism("mine", "strict"))
    (result,) = problems(Settings(), [Federation("mnist", "mine", 0.5)])
    assert "Expected budget=0.5 to be something else." in str(result)


# --- mechanisms that shape the update ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"measure": None}, {"measure": "leakage"}, {"learns": True}, {"per_example": True}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_shapes_the_update_cannot_do_all_else_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'mine' shapes the update"):
        Mechanism("mine", **{"measure": "share", **wrong}, shaping=PRUNING)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_plain_one_distorts_nothing_and_keeps_its_clip(name: str) -> None:
    plain, own = MECHANISMS[name].plain, MECHANISMS[name]
    assert (plain.distorts, plain.learns, plain.draws, plain.adds) == (False, False, False, True)
    assert (plain.clips, plain.per_example) == (own.clips, own.per_example)
