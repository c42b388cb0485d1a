"""The rows of an audit's picture: originals, what labels alone would show, then what was made of each defence.

A section holds one dataset at one round: the original, the mean of the class, no protection, and the defences from
strict to loose, static before learned. The one that leaks most is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..attack.view import Public
from ..data.dataset import Dataset
from ..engine.datasets import folder_name
from ..mechanism.schedule import defence_label
from .cells import EQUAL_LOWER, OWN, POSITIVE, static_name
from .comparison import strictness
from .results import Findings, Outcome, place_of
from .scoring import class_means
from .summary import FAILED, percent
from .svg import Row, Section, as_pixels

Place = tuple[Any, ...]
Rows = Sequence[Mapping[str, Any]]
"""Of ``audit.json``: chance, and whose control failed, stand there."""


@dataclass(frozen=True)
class Drawn:
    """What was attacked, as far as it is drawn: ``[n, E, ...]`` and ``[n, E]``, and public inputs of the same kind."""

    images: Tensor
    labels: Tensor
    public: Public | None
    to_pixels: Callable[[Tensor], Tensor]

    def rows(self, guesses: Mapping[str, Any]) -> list[Row]:
        """The originals, and the mean public image of each label: a guess that uses nothing but the labels."""
        rows = [Row("original", "", self._drawn(self.images))]
        if self.public is not None:
            means = class_means(*self.public, self.labels)
            error = f", MSE {guesses['class_mean']['mse']:.2f}" if "class_mean" in guesses else ""
            rows.append(Row("class mean", f"a guess from the labels alone{error}", self._drawn(means)))
        return rows

    def _drawn(self, images: Tensor) -> Any:
        return as_pixels(self.to_pixels(images).flatten(0, 1).cpu().float().numpy())


def run_sections(findings: Findings, datasets: Mapping[str, Dataset]) -> list[Section]:
    """A section for every dataset and round of which attacks made pictures."""
    places: dict[tuple[str, int], list[Outcome]] = {}
    for one in findings.outcomes:
        places.setdefault((one.about["dataset"], one.about["round"]), []).append(one)
    sections = []
    for (name, round_number), outcomes in sorted(places.items()):
        drawn = [one for one in outcomes if one.pictures is not None and len(one.pictures)]
        if not drawn:
            continue
        assert drawn[0].pictures is not None
        count, targets, public = len(drawn[0].pictures), findings.targets[name], datasets[name].public_attack
        known = public.inputs.to(targets.pool), public.labels.to(targets.labels)
        truth = Drawn(targets.inputs[:count], targets.labels[:count], known, datasets[name].pixels)
        rows = truth.rows(findings.baselines.get(name, {})) + defence_rows(outcomes, findings.rows)
        when = f"after {round_number:,} rounds" if round_number else "at the first round"
        attacks = " and ".join(dict.fromkeys(one.attack for one in drawn))
        title = f"{folder_name(name)} {when}, reconstructed by {attacks}"
        sections.append(Section(title, rows, failures(outcomes, findings.rows)))
    return sections


def defence_rows(outcomes: list[Outcome], table: Rows = (), own: str | None = None) -> list[Row]:
    """What was made of each defence's releases, each once; ``own`` names the only one there is."""
    shown, figures, failed = _shown(outcomes), _figures(outcomes, table), _failed(table)
    several = len({one.attack for one in shown}) > 1
    defended = [one for one in shown if _defends(one)]
    worst = max(defended, key=lambda one: _most(figures, one), default=None)
    most = ": leaks most" if len(set(map(_place, defended))) > 1 else ""
    rows = []
    for one in shown:
        assert one.pictures is not None
        marked = worst is not None and _place(one) == _place(worst) and _most(figures, one) > 0
        caption = f"{_caption(one, own)}{f', {one.attack}' if several else ''}{most if marked else ''}"
        images = one.pictures.reshape(-1, *one.pictures.shape[2:])
        said = remark(one, figures.get(_place(one), {}), failed=_of_row(one) in failed)
        rows.append(Row(caption, said, images, marked))
    return rows


@dataclass(frozen=True)
class Figure:
    """How often an attack found the original among candidates, with what chance gives ("1 in 100")."""

    rate: float
    chance: str | None = None
    failed: bool = False  # its control

    def __str__(self) -> str:
        """
        >>> str(Figure(0.95)), str(Figure(0.25, failed=True))
        ('95 %', '25 % *')
        """
        return percent(self.rate) + (f" {FAILED}" if self.failed else "")


def remark(one: Outcome, figures: Mapping[str, Figure], *, failed: bool = False) -> str:
    """How often the original was found among candidates, by the strongest attack first; below it chance and the error.

    What ``failed`` its control is marked, as in the table.
    """
    ranked = sorted(figures.items(), key=lambda part: -part[1].rate)
    found = [f"identified: {', '.join(f'{attack} {figure}' for attack, figure in ranked)}"] if ranked else []
    chances = dict.fromkeys(figure.chance for _, figure in ranked if figure.chance)
    error = f"MSE {one.values['mse'].mean():.2f}{f' {FAILED}' if failed else ''}"
    return "\n".join([*found, "; ".join([*(f"chance {chance}" for chance in chances), error])])


def failures(outcomes: list[Outcome], table: Rows) -> str:
    """Whose pictures are no evidence, because the attack draws as little without distortion; else nothing."""
    shown, failed = _shown(outcomes), _failed(table)
    attacks = dict.fromkeys(one.attack for one in shown)
    said = []
    for attack in attacks:
        mine = [_of_row(one) in failed for one in shown if one.attack == attack]
        where, whose = "here", "these" if len(attacks) == 1 else "its"
        if not all(mine):
            where, whose = f"where its figures have a {FAILED}", "those"
        if any(mine):
            said.append(f"{attack} failed its control {where}: {whose} pictures are no evidence")
    return "; ".join(said)


def _failed(table: Rows) -> set[Place]:
    return {place_of(row) for row in table if row.get("control_failed")}


def _of_row(one: Outcome) -> Place:
    """Where an outcome stands in the table; its controls stand there, too."""
    return place_of({**one.about, "attack": one.attack})


def _shown(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return _chosen([one for one in outcomes if one.pictures is not None and len(one.pictures)])


def _chosen(outcomes: list[Outcome]) -> list[Outcome]:
    """One seed; one row without protection; a static twin where the run has no static federation of that budget."""
    seeds = [one.about["seed"] for one in outcomes if one.about.get("seed") is not None]
    ordered = sorted((one for one in outcomes if not seeds or one.about["seed"] == min(seeds)), key=_order)
    there = {_defence(one) for one in ordered if one.about["role"] == OWN}
    kept: dict[Place, Outcome] = {}
    for one in ordered:
        role, name = one.about["role"], one.about["mechanism"]
        doubled = role == EQUAL_LOWER and (static_name(name), str(one.about["budget"])) in there
        if doubled or role not in (OWN, POSITIVE, EQUAL_LOWER):
            continue
        bare = role == POSITIVE or name == "none"
        kept.setdefault(("bare" if bare else (role, *_defence(one)), one.attack), one)
    return list(kept.values())


def _order(one: Outcome) -> tuple[Any, ...]:
    """No protection first, then strict to loose; of one budget static first."""
    role, name = one.about["role"], one.about["mechanism"]
    bare = role == POSITIVE or name == "none"
    kind, budget, learns = strictness(name, one.about["budget"])[1:4]
    return not bare, name != "none", kind, budget, learns and role == OWN, name


def _figures(outcomes: list[Outcome], table: Rows) -> dict[Place, dict[str, Figure]]:
    """How often each attack found the original, by defence; also attacks that make no pictures."""
    chances = {place_of(row): row["chance"] for row in table if "chance" in row and row.get("control") != "negative"}
    figures, failed = dict[Place, dict[str, Figure]](), _failed(table)
    for one in outcomes:
        if "identification" in one.values:
            rate, place = float(one.values["identification"].mean()), _of_row(one)
            figure = Figure(rate, chances.get(place), place in failed)
            figures.setdefault(_place(one), {})[one.attack] = figure
    return figures


def _most(figures: Mapping[Place, Mapping[str, Figure]], one: Outcome) -> float:
    return max((figure.rate for figure in figures.get(_place(one), {}).values()), default=0.0)


def _defends(one: Outcome) -> bool:
    return bool(one.about["role"] == OWN and one.about["mechanism"] != "none")


def _defence(one: Outcome) -> Place:
    return one.about["mechanism"], str(one.about["budget"])


def _place(one: Outcome) -> Place:
    return one.about["role"], *_defence(one), one.about.get("seed")


def _caption(one: Outcome, own: str | None) -> str:
    role, name, budget = one.about["role"], one.about["mechanism"], one.about["budget"]
    if role == POSITIVE:
        return "undistorted (control)"
    if role == EQUAL_LOWER:
        return defence_label("static noise", budget)
    return own or ("no protection" if name == "none" else defence_label(name, budget))
