"""``bounds_run`` on small run folders: what it reports, what it refuses, and its numbers against plain autograd."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load
from torch import Tensor, nn

from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from equipoise.attack.view import View
from equipoise.auditing.cells import Cell, server_of
from equipoise.auditing.examination import materials_of, protection_of
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.options import Options
from equipoise.auditing.targets import build_targets
from equipoise.bounds import Bounds, BoundsOptions, bounds_run
from equipoise.bounds import convergence as outer
from equipoise.bounds import stationarity as inner
from equipoise.bounds.context import Scene
from equipoise.bounds.convergence import over_rounds
from equipoise.bounds.leakage import Listener, attack
from equipoise.bounds.page import bounds_notes, bounds_tables, checks, page
from equipoise.bounds.stationarity import subproblems
from equipoise.bounds.theory import StationarityBounds, leakage_step_bound
from equipoise.engine.sweep import Sweep
from equipoise.errors import CheckpointError, ConfigError
from equipoise.models.bundled import build
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.audit_helpers import SIDE, settings_for, train_run, write_pictures

RESULTS = {
    "distortion_stationarity", "convex_suboptimality", "one_step", "converge_rate", "privacy_leakage",
    "conditional_preservation",
}  # fmt: skip
STATUSES = {"applies", "does not apply", "not covered", "not checkable"}
OF_ASSUMPTIONS = {"held", "violated", "not checkable", "not covered"}
CHEAP = BoundsOptions(subproblems=4, repeats=3, samples=4, examples=16, power=3, short=2, targets=2, iterations=6)
MECHANISMS = ("pl-learn", "none", "ls-learn", "pl-identical")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smooth model, three rounds, settings of the paper otherwise: gamma and eta are too large for the theorems."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train_run(folder, pictures, MECHANISMS, model="lenet-zhu", init="uniform", full_every=1, snapshots=[0, 2])


@pytest.fixture(scope="module")
def found(run: Path) -> Bounds:
    return bounds_run(run, CHEAP)


def rows(found: Bounds, result: str, **where: Any) -> list[dict[str, Any]]:
    picked = [one for one in found.rows if one["result"] == result]
    return [one for one in picked if all(one[name] == value for name, value in where.items())]


def figures(value: Any) -> Iterator[dict[str, Any]]:
    """Everything that has a value and a count, wherever it is."""
    if isinstance(value, dict):
        if {"value", "count"} <= set(value):
            yield value
        for part in value.values():
            yield from figures(part)
    elif isinstance(value, list):
        for part in value:
            yield from figures(part)


def squared_gradient(weights: dict[str, Tensor], images: Tensor, labels: Tensor) -> float:
    """|grad F|^2 by autograd, in float64, from a state dict."""
    model = build("lenet-zhu", (1, SIDE, SIDE), 4).double()
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()})
    loss = nn.functional.cross_entropy(model(images.double()), labels)
    return sum(float(slope.square().sum()) for slope in torch.autograd.grad(loss, list(model.parameters())))


# --- what is reported -------------------------------------------------------------------------------------------


def test_every_federation_has_every_result(found: Bounds) -> None:
    assert found.found["schema"] == 1
    assert found.found["rounds"] == [0, 2, 3]
    for name in MECHANISMS:
        assert {one["result"] for one in found.rows if one["mechanism"] == name} == RESULTS
    order = list(dict.fromkeys(one["mechanism"] for one in found.rows))
    assert order == list(MECHANISMS)  # as configured, not as the sweep groups them
    for one in found.rows:
        assert one["status"] in STATUSES
        assert one["holds"] in (True, False, None)
        assert one["assumptions"], one["result"]
        assert {check["status"] for check in one["assumptions"]} <= OF_ASSUMPTIONS
        assert one["status"] != "applies" or all(check["status"] != "violated" for check in one["assumptions"])
        assert one["status"] == "applies" or one["reason"]
        assert one["bound"] is not None or one["holds"] is None


def test_every_number_has_a_count_and_every_mean_an_interval(found: Bounds) -> None:
    seen = list(figures(found.found))
    assert len(seen) > 200
    for one in seen:
        assert one["count"] >= 1
        if one["kind"] == "mean":
            assert one["count"] > 1
            assert one["error"] >= 0
            assert one["low"] <= one["value"] <= one["high"]


def test_claims_say_what_is_proved_measured_and_not_claimed(found: Bounds) -> None:
    assert set(found.found["claims"]) == {"proved", "measured", "not claimed"}
    words = (json.dumps(found.found) + page(found.found).split("<body>")[1].split("<script")[0]).lower()
    assert "epsilon" not in words


def test_twice_the_same(found: Bounds, run: Path) -> None:
    assert bounds_run(run, CHEAP).found == found.found


# --- the inner theorem ------------------------------------------------------------------------------------------


def test_a_gamma_too_large_gets_no_bound_and_a_smaller_one_does(found: Bounds) -> None:
    own = rows(found, "distortion_stationarity", mechanism="pl-learn", setting="as configured")
    assert len(own) == 6  # two quantities, three snapshots
    for one in own:
        limit = one["constants"]["largest gamma"]["value"]
        assert one["constants"]["gamma"]["value"] == pytest.approx(0.1)
        assert limit == pytest.approx(1 / one["constants"]["L_alpha"]["value"])
        assert limit < 0.1
        assert one["status"] == "does not apply"
        assert "gamma < 1/L_alpha" in one["reason"]
        assert (one["bound"], one["holds"], one["margin"]) == (None, None, None)
        assert one["measured"]["count"] == 4
    again = rows(found, "distortion_stationarity", mechanism="pl-learn", setting="gamma = 1/(2 L)")
    assert len(again) == 6
    for one in again:
        assert one["holds"] is True
        assert one["margin"] >= 1
        assert one["constants"]["gamma"]["value"] < one["constants"]["largest gamma"]["value"]
        assert one["exact_gradient_bound"]["value"] < one["bound"]["value"]
        assert len(one["curve"]["bound"]) == len(one["curve"]["measured"]) == 2


def test_a_bound_that_fails_is_said_to_fail(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner, "distortion_bounds", lambda *given: StationarityBounds(1e-9, 1e-9))
    monkeypatch.setattr(outer, "one_step_bound", lambda *given: -1e9)
    monkeypatch.setattr(outer, "gradient_norm_bound", lambda *given: 1e-9)
    found = bounds_run(run, replace(CHEAP, targets=0, rounds=[0]))
    for result, setting in (
        ("distortion_stationarity", "gamma = 1/(2 L)"), ("one_step", "eta = 1/(8 L)"),
        ("converge_rate", "eta = 1/(8 L), short"),
    ):  # fmt: skip
        own = rows(found, result, setting=setting)
        assert {one["holds"] for one in own} == {False}
        assert all(one["margin"] < 1 for one in own)


def test_steps_small_enough_are_taken_as_they_are(pictures: Path, tmp_path: Path) -> None:
    change = {"model": "lenet-zhu", "init": "uniform", "lr": 1e-3, "eta": 1e-4, "dtype": "float64", "snapshots": [3]}
    found = bounds_run(train_run(tmp_path / "run", pictures, ("pl-learn",), **change), replace(CHEAP, targets=0))
    for result in ("distortion_stationarity", "one_step"):
        own = rows(found, result)
        assert {one["setting"] for one in own} == {"as configured"}
        assert {one["status"] for one in own} == {"applies"}
        assert all(one["holds"] and one["bound"]["value"] >= one["measured"]["value"] for one in own)
    average, limit = rows(found, "converge_rate")
    assert average["holds"] is True
    assert average["source"] == "snapshots"
    assert limit["holds"] is None
    assert limit["bound"]["value"] > 0
    inner = rows(found, "distortion_stationarity")[0]["constants"]
    assert inner["nu_alpha"]["value"] == pytest.approx(0, abs=1e-12)  # float64 against float64
    assert {one["status"] for one in rows(found, "privacy_leakage")} == {"not checkable"}


def test_the_subproblems_are_the_clients_own(run: Path) -> None:
    """What is followed ends at the very releases that the sweep makes in the next round."""
    scene = scene_of(run)
    index = next(i for i, fed in enumerate(scene.sweep.federations) if fed.mechanism == "pl-learn")
    sweep = scene.at(2, scene.weights[2])
    seen: list[Tensor] = []
    sweep.watcher = lambda block, released: seen.append(released) if block.kind.name == "pl-learn" else None
    sweep.round(sweep.tables([3]), torch.tensor([0]), sweep.noise_table(3))
    problems = subproblems(scene, index, 2)
    last = problems.run(problems.lr).last
    assert torch.allclose(problems.local + last, torch.cat(seen), atol=1e-6)


@pytest.mark.parametrize("name", ["none", "ls-learn", "pl-identical"])
def test_what_the_inner_theorem_does_not_cover(found: Bounds, name: str) -> None:
    own = rows(found, "distortion_stationarity", mechanism=name)
    assert {one["status"] for one in own} == {"not covered"}
    assert {check["status"] for one in own for check in one["assumptions"]} == {"not covered"}
    assert ("radial" in own[0]["reason"]) == (name == "ls-learn")


def test_a_learner_that_stands_still_is_not_covered(pictures: Path, tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", pictures, ("pl-learn",), snapshots=[3], lr=[0.1, 0.0, 0.1, 0.1])
    own = rows(bounds_run(folder, replace(CHEAP, targets=0)), "distortion_stationarity")
    assert {one["status"] for one in own} == {"not covered"}
    assert "gamma is zero" in own[0]["reason"]


def test_no_run_meets_the_convex_corollary(found: Bounds) -> None:
    own = rows(found, "convex_suboptimality")
    assert {one["status"] for one in own} == {"not covered"}
    assert all("hole" in one["reason"] and "not convex" in one["reason"] for one in own)


def test_layers_with_kinks_are_not_smooth(pictures: Path, tmp_path: Path) -> None:
    found = bounds_run(train_run(tmp_path / "run", pictures, ("gs-learn", "pl-learn"), snapshots=[3]),
                       replace(CHEAP, targets=0))  # fmt: skip
    inner = rows(found, "distortion_stationarity", mechanism="pl-learn")
    smooth = [check for one in inner for check in one["assumptions"] if check["name"].startswith("smooth")]
    assert {check["status"] for check in smooth} == {"violated"}
    assert {one["status"] for one in inner} == {"does not apply"}
    gaussian = rows(found, "distortion_stationarity", mechanism="gs-learn")
    assert {one["status"] for one in gaussian} == {"not covered"}


# --- the outer results ------------------------------------------------------------------------------------------


def check_gradient_norms(found: Bounds, run: Path) -> None:
    config = resolve(run / "config.toml")
    data = config.settings.load(config.federations()[0].dataset)
    tensors = load((run / "snapshots" / "round-000002.safetensors").read_bytes())
    for place, fed in enumerate(config.federations()):
        head = f"federation-{place}/"
        mine = {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}
        squared = squared_gradient(mine, data.train.images, data.train.labels)
        where = {"mechanism": fed.mechanism, "seed": fed.seed, "round": 2, "setting": "as configured"}
        (one,) = rows(found, "one_step", **where)
        assert one["measured"]["value"] == pytest.approx(0.1 / 2 * squared, rel=1e-3)
        assert one["measured"]["count"] == len(data.train)


def test_gradient_norms_are_those_of_each_federation(found: Bounds, run: Path) -> None:
    check_gradient_norms(found, run)


def test_federations_that_the_sweep_reorders_keep_their_own_weights(pictures: Path, tmp_path: Path) -> None:
    blocks = [("pl-identical", 1), ("none", 1), ("pl-identical", 2)]
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings_for(model="lenet-zhu", init="uniform").items()]
    for name, seed in blocks:
        lines += ["[[sweep]]", f'datasets = ["{pictures}"]', f'mechanisms = ["{name}"]', f"seeds = [{seed}]"]
        lines += ["budgets = [0.98]"] if name != "none" else []
    (tmp_path / "sweep.toml").write_text("\n".join(lines))
    Run(tmp_path / "run", resolve(tmp_path / "sweep.toml")).execute()
    found = bounds_run(tmp_path / "run", replace(CHEAP, targets=0, rounds=[2]))
    assert list(dict.fromkeys((one["mechanism"], one["seed"]) for one in found.rows)) == blocks
    check_gradient_norms(found, tmp_path / "run")


def test_a_smaller_eta_is_the_one_that_is_taken(found: Bounds) -> None:
    for one in rows(found, "one_step", mechanism="none", setting="eta = 1/(8 L)"):
        fall = one["constants"]["F(W) - F(W_t)"]["value"]
        assert abs(fall) < 10 * one["measured"]["value"]  # about eta * |grad F|^2, twice what is measured


def test_the_average_comes_from_the_metrics_where_they_have_it(found: Bounds, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for name in MECHANISMS:
        mine = [line for line in lines if line["mechanism"] == name]
        one = rows(found, "converge_rate", mechanism=name, quantity="mean |grad F|^2", setting="as configured")[0]
        values = [line["gradient_norm_squared"] for line in mine]
        assert one["source"] == "metrics.jsonl"
        assert "3 of 3 rounds" in one["note"]
        assert one["measured"]["value"] == pytest.approx(sum(values) / 3)
        moved = sum(line["distortion_norm_squared"] for line in mine) / 3
        assert one["constants"]["|Delta|^2"]["value"] == pytest.approx(moved)


def test_an_eta_too_large_gets_no_bound_and_a_smaller_one_does(found: Bounds) -> None:
    for one in rows(found, "one_step", setting="as configured") + rows(found, "converge_rate", setting="as configured"):
        assert one["status"] == "does not apply"
        assert one["bound"] is None
        assert one["constants"]["largest eta"]["value"] < 0.1
    smaller = rows(found, "one_step", setting="eta = 1/(8 L)")
    assert len(smaller) == 4 * 3
    for one in smaller:
        assert one["holds"] is True
        assert one["constants"]["eta"]["value"] <= one["constants"]["largest eta"]["value"]
    short = rows(found, "converge_rate", setting="eta = 1/(8 L), short")
    assert len(short) == 4
    assert all(one["holds"] and one["measured"]["count"] == 2 for one in short)


def test_undistorted_rounds_have_no_distortion(found: Bounds) -> None:
    for one in rows(found, "one_step", mechanism="none"):
        assert one["constants"]["|Delta|^2"]["value"] == 0
    for one in rows(found, "one_step", mechanism="pl-identical"):
        assert 1 < one["constants"]["|Delta|^2"]["value"] <= 8.0**2


def test_values_stand_until_the_next_one() -> None:
    assert over_rounds({0: 10.0}, 5)["value"] == 10
    found = over_rounds({0: 10.0, 2: 4.0, 9: 99.0}, 8)
    assert found["value"] == pytest.approx((2 * 10 + 6 * 4) / 8)
    assert found["count"] == 2
    assert over_rounds({1: 3.0, 2: 6.0}, 3)["value"] == pytest.approx(4.0)  # what came before the first is like it


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampling": "passes"}, "without replacement"),
        ({"clip": 1e-3}, "clip acted"),
        ({"participants": 2, "sizes": [1.0, 2.0, 1.0, 2.0]}, "unequal size"),
    ],
)
def test_biased_gradients_are_named(pictures: Path, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = train_run(tmp_path / "run", pictures, ("ls-static",), snapshots=[3], **change)
    found = bounds_run(folder, replace(CHEAP, targets=0))
    checks = [c for one in rows(found, "one_step") for c in one["assumptions"] if c["name"].startswith("unbiased")]
    assert {check["status"] for check in checks} == {"violated"}
    assert all(words in check["note"] for check in checks)


def test_several_local_steps_are_not_covered(pictures: Path, tmp_path: Path) -> None:
    found = bounds_run(train_run(tmp_path / "run", pictures, ("pl-learn",), local_steps=2, snapshots=[3]), CHEAP)
    for result in ("one_step", "converge_rate", "privacy_leakage"):
        assert {one["status"] for one in rows(found, result)} == {"not covered"}
    assert rows(found, "distortion_stationarity", setting="gamma = 1/(2 L)")


def test_a_damped_server_takes_smaller_steps(pictures: Path, tmp_path: Path) -> None:
    plain, damped = (
        bounds_run(
            train_run(tmp_path / name, pictures, ("pl-identical",), snapshots=[0], rounds=1, server_rate=rate,
                      evaluate_every=1),
            replace(CHEAP, targets=0, rounds=[0]),
        )
        for name, rate in (("plain", 1.0), ("damped", 0.25))
    )  # fmt: skip
    one, other = (rows(found, "one_step", setting="as configured")[0] for found in (plain, damped))
    assert other["constants"]["eta"]["value"] == pytest.approx(0.025)
    assert other["constants"]["|Delta|^2"]["value"] == pytest.approx(one["constants"]["|Delta|^2"]["value"] / 16)
    assert other["measured"]["value"] == pytest.approx(one["measured"]["value"] / 4)


def test_schedules_stand_still_while_a_round_is_repeated(pictures: Path, tmp_path: Path) -> None:
    budgets = {"rounds": [1, 4], "values": [0.98, 0.9]}
    sweep = {"datasets": [str(pictures)], "mechanisms": ["pl-identical"], "budgets": [budgets]}
    given = settings_for(snapshots=[2], lr={"rounds": [1, 4], "values": [0.1, 0.2]})
    Run(tmp_path / "run", resolve(overrides=given, sweep=sweep)).execute()
    found = bounds_run(tmp_path / "run", replace(CHEAP, rounds=[2], targets=0))
    (one,) = rows(found, "one_step", setting="as configured")
    assert one["constants"]["|Delta|^2"]["value"] < 8.0**2  # at 0.9 it would be about 40^2 / 4


# --- leakage ----------------------------------------------------------------------------------------------------


def scene_of(folder: Path, options: BoundsOptions = CHEAP) -> Scene:
    from equipoise.bounds.run import _snapshots, _weights

    config = resolve(folder / "config.toml")
    sweep = Sweep(config.settings, config.federations())
    paths, last = _snapshots(folder, options.rounds)
    weights = {when: _weights(path, sweep) for when, path in paths.items()}
    return Scene(sweep, weights, (last, weights[last]), options)


def test_residuals_and_distances_are_those_of_the_attack(run: Path) -> None:
    """What is measured at a cell equals what an audit measures there."""
    scene = scene_of(run)
    name = next(iter(scene.sweep.datasets))
    s, batched, data = scene.sweep.settings, scene.sweep.batched, scene.sweep.datasets[name]
    options = Options(attacks=["invgrad"], releases=2, iterations=6, candidates=2, others=1)
    materials = materials_of(data).to(scene.sweep.device, scene.sweep.dtype)
    for index, fed in enumerate(scene.sweep.federations):
        found, weights = attack(scene, name, [(index, 2)]), scene.weights[2][index]
        server = server_of(s, data, batched, protection_of(s, fed.mechanism, fed.budget, 3))
        targets = build_targets(materials, server, options)
        (outcome,) = attack_cell(Cell(weights, server, {}), targets, materials, options, s.leakage.D)
        assert found.leakage.tolist() == pytest.approx(outcome.values["leakage"].tolist(), abs=1e-5)
        assert found.beyond.tolist() == pytest.approx(outcome.values["beyond_D"].tolist(), abs=1e-6)
        assert found.residuals.shape == (6, 2)
        assert bool((found.residuals > 0).all())
    both = attack(scene, name, [(0, 2), (1, 2)])
    alone = attack(scene, name, [(0, 2)])
    assert torch.allclose(both.leakage[both.of(0)], alone.leakage, atol=1e-6)
    assert torch.allclose(both.residuals[:, both.of(0)], alone.residuals, rtol=1e-5)


def test_the_listener_hears_every_iteration_of_every_chunk(run: Path) -> None:
    scene = scene_of(run)
    name = next(iter(scene.sweep.datasets))
    s, data, weights = scene.sweep.settings, scene.sweep.datasets[name], scene.weights[2][0]
    server = server_of(s, data, scene.sweep.batched, protection_of(s, "none", None, 1))
    images, labels = (part[:6].reshape(3, 2, *part.shape[1:]) for part in materials_of(data).targets)
    previous = weights.expand(3, -1).contiguous()
    view = View(previous, previous - 0.1 * server.batched.at(images, labels).gradient(previous), labels)
    listener, direct = Listener(server, view, 4), torch.zeros(4, 3).double()

    def watch(rows: Tensor, iteration: int, guess: Tensor) -> None:
        listener.watch(rows, iteration)
        slope = server.batched.at(guess, labels[rows]).gradient(previous[rows])
        direct[iteration - 1, rows] = (previous[rows] - s.eta * slope - view.released[rows]).norm(dim=1).double()

    invgrad(listener.server, view, Search(iterations=4, chunk=2), watch)
    assert torch.allclose(listener.residuals, direct, rtol=1e-4, atol=1e-6)


def test_beta_is_the_norm_of_the_distortion_alone(found: Bounds) -> None:
    for name, beta in (("none", 0.0), ("pl-identical", 7.99975)):
        for one in rows(found, "privacy_leakage", mechanism=name):
            assert one["constants"]["beta"]["value"] == pytest.approx(beta, rel=1e-4)


def test_the_lemma_is_reported_with_what_it_needs(found: Bounds) -> None:
    for one in rows(found, "privacy_leakage", mechanism="pl-learn", setting="as configured"):
        assert one["status"] == "does not apply"
        assert "residual envelope" in one["reason"]
        assert one["bound"]["value"] == pytest.approx(0.98, abs=0.01)
        checks = {check["name"]: check for check in one["assumptions"]}
        assert checks["beta >= threshold"]["status"] == "held"
        assert checks["bi-Lipschitz, c_b"]["status"] == "not checkable"
        assert checks["residual envelope"]["figures"]["limit"]["value"] == pytest.approx(0.01 * 6**0.5)
        assert one["constants"]["beta"]["value"] >= 7.99
    for one in rows(found, "privacy_leakage", setting="estimated"):
        assert one["status"] == "does not apply"  # the c_2 that these residuals take puts beta below the threshold
        assert one["bound"] is None
    for one in rows(found, "privacy_leakage", setting="step of the proof"):
        assert one["holds"] is True
        c, least = one["constants"], one["constants"]["c_a"]["value"]
        mean = leakage_step_bound(least, c["D"]["value"], c["beta"]["value"], c["mean r_i"]["value"])
        assert one["bound"]["value"] == pytest.approx(mean, rel=1e-6)


def test_budgets_that_are_no_leakage_score(found: Bounds) -> None:
    for name in ("ls-learn", "none"):
        (one, *_) = rows(found, "privacy_leakage", mechanism=name, setting="as configured")
        assert one["status"] == "not covered"
        assert one["bound"] is not None  # at the measured norm
        assert {other["status"] for other in rows(found, "conditional_preservation", mechanism=name)} == {"not covered"}
    for one in rows(found, "conditional_preservation", mechanism="pl-identical"):
        assert one["holds"] is True
        assert one["bound"]["value"] == 0.98
        assert one["measured"]["value"] <= 0.98 + 1e-4
        assert one["status"] == "does not apply"  # kept, but the lemma behind it does not apply


def test_without_public_images_no_attack_is_run(pictures: Path, tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", pictures, ("pl-identical",), snapshots=[3], public_fraction=0.0)
    (one,) = rows(bounds_run(folder, CHEAP), "privacy_leakage")
    assert one["status"] == "not checkable"
    assert "public" in one["reason"]


# --- files, tables, errors --------------------------------------------------------------------------------------


def test_files_are_whole_and_self_contained(found: Bounds, run: Path, tmp_path: Path) -> None:
    written = found.save(tmp_path)
    assert [path.name for path in written] == ["bounds.json", "bounds.html"]
    text = written[0].read_text()
    assert json.loads(text)["bounds"][0]["mechanism"] == "pl-learn"
    assert "NaN" not in text
    assert "Infinity" not in text
    html = written[1].read_text()
    assert "<script src=" not in html
    assert "http-equiv" not in html
    assert "Plotly.newPlot" in html
    assert "pl-identical" in html
    assert not list(tmp_path.glob(".*"))


def test_a_fresh_run_removes_older_bounds(pictures: Path, tmp_path: Path, found: Bounds) -> None:
    folder = train_run(tmp_path / "run", pictures, ("none",))
    found.save(folder)
    sweep = {"datasets": [str(pictures)], "mechanisms": ["none"]}
    Run(folder, resolve(overrides=settings_for(), sweep=sweep), fresh=True).execute()
    assert not list(folder.glob("bounds.*"))


def test_tables_can_be_read_at_a_hundred_columns(found: Bounds) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    for table in bounds_tables(found.found):
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    for word in ("inner loop", "gamma < 1/L_alpha", "violated", "does not apply", "not covered", "pl-learn"):
        assert word in text
    assert "radial" in bounds_notes(found.found)
    shown = {check["name"]: check for check in checks([one for one in found.rows if one["mechanism"] == "pl-learn"])}
    assert shown["beta >= threshold"]["status"] == "held"  # with the run's constants; with estimated ones it is not
    assert shown["eta <= 1/(4 L_F)"]["results"] == ["one_step", "converge_rate"]


def test_progress_is_told(run: Path) -> None:
    seen: list[tuple[str, float]] = []
    bounds_run(run, replace(CHEAP, rounds=[0]), lambda what, amount: seen.append((what, amount)))
    assert any("invgrad" in what for what, _ in seen)
    assert all(amount > 0 for _, amount in seen)


def test_what_is_no_run_folder_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run folder"):
        bounds_run(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with pytest.raises(ConfigError, match=r"No snapshot of round \[7\]"):
        bounds_run(copy, BoundsOptions(rounds=[0, 7]))
    (copy / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"Line 1 of metrics\.jsonl"):
        bounds_run(copy)
    (copy / "metrics.jsonl").write_text("{\n")
    with pytest.raises(CheckpointError, match="damaged"):
        bounds_run(copy)
    shutil.rmtree(copy / "snapshots")
    with pytest.raises(CheckpointError, match="no snapshots"):
        bounds_run(copy)
    assert not list(copy.glob("bounds.*"))


def test_a_run_without_metrics_leaves_the_whole_run_unchecked(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "metrics.jsonl").unlink()
    found = bounds_run(copy, replace(CHEAP, rounds=[0], targets=0))
    own = rows(found, "converge_rate", setting="as configured")
    assert {one["status"] for one in own} == {"not checkable"}
    assert all("0 of 3 rounds" in one["reason"] for one in own)


@pytest.mark.parametrize(
    "change",
    [
        {"subproblems": 1}, {"repeats": 0}, {"samples": "many"}, {"targets": 1}, {"targets": -1}, {"iterations": 1},
        {"rounds": []}, {"rounds": 3}, {"rounds": [True]}, {"power": math.nan}, {"short": True},
    ],
)  # fmt: skip
def test_impossible_options_are_refused(run: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        bounds_run(run, BoundsOptions(**change))
