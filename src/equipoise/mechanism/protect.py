"""``protect`` and ``protected_step``: one client's release from your own PyTorch loop, by the code the engine runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import ConfigError, EquipoiseError, ReleaseError, expected, is_count, is_finite, raise_all
from ..models.batched import Batched, Loss
from ..models.check import check_model, loss_error
from ..models.layout import Layout
from ..models.received import Received
from ..randomness import experiment_key, keyed_words, system_uniform, system_words, uniform
from .batch import check_labels, checked_batch, checked_pair
from .client_units import units_of
from .constants import warn_of_constants
from .intensity import intensity
from .noise import standard_noise
from .protection import Protection, ProtectionSettings, check_protection, step_problems
from .records import blank_record, neutral, no_records, of_units, records, rehearse
from .registry import Mechanism, checked
from .release import Noise, Release, check_trained_elsewhere, distort_given, release
from .schedule import Schedule

_CHECKED: WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""Circumstances under which a model passed its check; forgotten with the model."""


@dataclass(frozen=True)
class Protected:
    """``parameters`` may leave the client. ``record`` describes the release and stays with the client.

    The record's utility loss and clipping are exact functions of the private batch: sending them would undo part of
    what the distortion protects.

    >>> from equipoise import LeNetZhu, protected_step
    >>> model = LeNetZhu()
    >>> x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    >>> protected_step(model, model.state_dict(), (x, y), "ls-static", 200.0).record["norm"]
    'l1'
    """

    parameters: dict[str, Tensor]
    record: dict[str, Any]


def protect(
    model: nn.Module,
    received: Mapping[str, Tensor],
    batch: tuple[Tensor, Tensor],
    mechanism: str | Mechanism,
    budget: Schedule | None = None,
    *,
    loss: Loss | None = None,
    settings: ProtectionSettings | None = None,
    client: int = 0,
    round_number: int = 1,
    least_relative: float = 0.0,
    experiment_seed: int | None = None,
) -> Protected:
    """Distort what you trained, and return what may be sent.

    Args:
        model: holds the parameters that your training reached. It is left as it is.
        received: a copy of the state dict that came from the server, whole or with the trainable parameters alone.
        batch: the inputs and labels that a learned distortion is learned on.
        mechanism: a name such as ``"pl-learn"``, or a ``Mechanism``; not ``laplace-dp``, see ``protected_step``.
        budget: the privacy budget: smaller is stricter. A number, one per client, or a schedule; none for ``"none"``.
        loss: ``loss(outputs, labels)``, the mean over the batch; cross-entropy unless given.
        settings: M, gamma, lambda, and the constants behind a budget.
        client: which of the clients this is, for budgets and settings that differ between them.
        round_number: which round this is, for budgets and settings that follow a schedule.
        least_relative: the least that the L2 norm of the noise, as expected, may be in terms of that of the update; a
            larger update is shortened. 0: any.
        experiment_seed: reproducible noise keyed by (seed, client, round), for experiments only: whoever knows the
            seed can subtract the noise. Without it, noise is from the operating system's cryptographic generator.

    Returns:
        ``parameters``, with exactly the entries of ``received``, their types and devices: distorted ones for all that
        is trainable, the same values under every name of a tied weight; frozen parameters and buffers as received,
        whatever the model holds there (statistics fitted to private data, say). ``record`` stays with the client.

    Formal guarantees:
        The distortion lies within the bounds that the budget asks for, up to rounding (1e-4 relative in float32), or
        ``ReleaseError`` is raised and nothing is returned. Where ``received`` has a lower precision than the model,
        rounding to it may change the distortion by up to 5 % of the lower bound; more is refused. This is a
        calibration of the noise: no (epsilon, delta) follows from it.

    >>> from equipoise import LeNetZhu
    >>> model = LeNetZhu()
    >>> received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    >>> x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> torch.nn.functional.cross_entropy(model(x), y).backward()
    >>> optimizer.step()
    >>> sent = protect(model, received, (x, y), "pl-learn", 0.98)
    >>> 7.99 < sent.record["intensity"] < 16
    True
    >>> model.load_state_dict(sent.parameters)
    <All keys matched successfully>
    """
    numbers = {"client": client, "round_number": round_number, "experiment_seed": experiment_seed}
    request = _Request.checked(mechanism, budget, settings, least_relative, **numbers)
    check_trained_elsewhere(request.mechanism)
    return _protected(model, received, batch, loss, request, step=False)


def protected_step(
    model: nn.Module,
    received: Mapping[str, Tensor],
    batch: tuple[Tensor, Tensor] | None,
    mechanism: str | Mechanism,
    budget: Schedule | None = None,
    *,
    loss: Loss | None = None,
    settings: ProtectionSettings | None = None,
    client: int = 0,
    round_number: int | None = None,
    least_relative: float = 0.0,
    experiment_seed: int | None = None,
    divisor: float | None = None,
    groups: Tensor | None = None,
) -> Protected:
    """Train one local step from ``received`` on ``batch``, distort the result, and return what may be sent.

    Args and Returns are those of ``protect``, except that the values of ``model`` play no part where ``received`` has
    its own: the step, of size ``settings.eta``, starts from ``received``. The only way to use ``gaussian-dp`` and
    ``laplace-dp``:

    ``batch``: for ``gaussian-dp`` all records of the client, in every round; the mechanism draws from them itself. It
    may be empty, or None where none could be loaded: noise alone is released, of the same scale. So may that of
    ``laplace-dp`` with a divisor.

    ``divisor``: the public number that a sum is divided by, a stand-in for all records (``gaussian-dp``, unless given
    ``settings.gaussian.divisor``) or for those of the batch (``laplace-dp``, unless given their number).

    ``groups``, for ``gaussian-dp``: whose each record is, whole numbers ``[N]``; a person's are clipped together.

    Formal guarantees:
        With ``gaussian-dp`` the releases of rounds 1 to ``settings.gaussian.rounds``, made with one budget and the same
        settings, are together (budget, ``settings.gaussian.delta``)-differentially private with respect to adding or
        removing one record, or all of one group, in the arithmetic of this machine. docs/gaussian_dp.md has the proof
        and what it does not cover. One release for each round: nothing here counts them, a node's ledger does.
        With ``laplace-dp`` the release is epsilon-differentially private with respect to replacing one example of the
        batch, in the arithmetic of this machine; with a divisor, epsilon/2-differentially private with respect to
        adding or removing one. No example, and no error in computing its gradient, makes it fail: such an example
        counts as zero, with a warning in the log. docs/laplace_dp.md has the theorem and what it does not cover. The
        model is taken as public: fit none of the entries that ``received`` leaves out to private data. With every other
        mechanism, what ``protect`` says holds.

    >>> from equipoise import LeNetZhu
    >>> model = LeNetZhu()
    >>> x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    >>> sent = protected_step(model, model.state_dict(), (x, y), "pl-learn", 0.98)
    >>> 7.99 < sent.record["intensity"] < 16
    True
    """
    number = 1 if round_number is None else round_number
    numbers = {"client": client, "round_number": number, "experiment_seed": experiment_seed}
    request = _Request.checked(mechanism, budget, settings, least_relative, **numbers)
    if request.mechanism.whole_run:
        if round_number is None:
            raise ConfigError(
                "A budget of a whole run needs round_number.", "Number its releases 1 to gaussian.rounds."
            )
        return _step_of_units(model, received, batch, loss, request, divisor, groups)
    for name, value in (("divisor", None if request.mechanism.formal else divisor), ("groups", groups)):
        if value is not None:
            raise ConfigError(f"The mechanism {request.mechanism.name!r} takes no {name}.", f"Leave {name} out.")
    if request.mechanism.formal:
        return _formal_step(model, received, batch, loss, request, divisor)
    return _protected(model, received, batch, loss, request, step=True)


@dataclass(frozen=True)
class _Request:
    """What one release is to be, apart from model and data."""

    mechanism: Mechanism
    budget: Any
    settings: ProtectionSettings
    client: int
    round_number: int
    seed: int | None
    least_relative: float

    @classmethod
    def checked(
        cls, mechanism: Any, budget: Any, settings: ProtectionSettings | None, least_relative: Any, **numbers: Any
    ) -> _Request:
        settings = settings or ProtectionSettings()
        check_protection(settings)
        for name, value in numbers.items():
            if not is_count(value) and (name != "experiment_seed" or value is not None):
                raise expected(name, value, "a whole number >= 0", "Number your clients and rounds.")
        if not is_finite(least_relative) or least_relative < 0:
            raise expected("least_relative", least_relative, "a finite number >= 0")
        client, round_number, seed = (numbers[name] for name in ("client", "round_number", "experiment_seed"))
        return cls(checked(mechanism, budget), budget, settings, client, round_number, seed, least_relative)

    def noise(self, size: int, like: Tensor) -> Noise:
        """Standard noise ``[1, P]`` of the mechanism's family; for a formal one, where its integers come from."""
        if not self.mechanism.distorts:
            return None
        if self.mechanism.formal:
            key = None if self.seed is None else experiment_key(self.seed, "noise")
            return [system_words if key is None else keyed_words(key, self.client, self.round_number)]
        if self.seed is None:
            numbers = system_uniform(size, like.dtype, like.device).unsqueeze(0)
        else:
            key, place = experiment_key(self.seed, "noise"), ([self.client], [self.round_number])
            numbers = uniform([key], *place, size, like.dtype, like.device)[0]
        return standard_noise(numbers, self.mechanism.noise)


def _protected(
    model: nn.Module, received: Any, batch: Any, loss: Loss | None, request: _Request, step: bool
) -> Protected:
    mechanism, settings = request.mechanism, request.settings
    warn_of_constants(model, mechanism, request.budget, settings)
    images, labels = checked_batch(batch)
    entries = Received(model, received)
    batched = _batched(model, images, labels, loss, alone=mechanism.per_example, fixed=entries.fixed())
    layout, like = batched.layout, next(p for p in model.parameters() if p.requires_grad)
    begin = _flat("received", entries.trainable(), layout, like)
    own = replace(settings, batch=len(images)).at(mechanism, request.budget, request.round_number, request.client)
    protection = replace(own, least_relative=request.least_relative)
    _check_carries(begin, protection)
    objective = batched.at(images.unsqueeze(0), labels.unsqueeze(0))
    noise = request.noise(layout.size, like)
    try:
        if step:
            result = release([objective], begin, noise, settings.eta, protection)
        else:
            trained = _flat("model", dict(model.named_parameters()), layout, like)
            assert noise is None or isinstance(noise, Tensor)
            result = distort_given(objective, begin, trained, noise, protection)
    except EquipoiseError:
        raise
    except Exception as error:
        raise loss_error(error, model, loss, images, labels) from None
    return _sent(result, entries, layout, request)


def noise_alone(
    model: nn.Module,
    received: Mapping[str, Tensor],
    mechanism: str | Mechanism,
    budget: Schedule | None,
    *,
    settings: ProtectionSettings | None = None,
    client: int = 0,
    round_number: int = 1,
    experiment_seed: int | None = None,
) -> Protected:
    """What was received, distorted as ``protect`` would, without any update: where to refuse would tell of the data."""
    numbers = {"client": client, "round_number": round_number, "experiment_seed": experiment_seed}
    request = _Request.checked(mechanism, budget, settings, 0.0, **numbers)
    check_trained_elsewhere(request.mechanism)
    entries = Received(model, received)
    batched = Batched(model, fixed=entries.fixed())
    like = next(p for p in model.parameters() if p.requires_grad)
    begin = _flat("received", entries.trainable(), batched.layout, like)
    protection = request.settings.at(request.mechanism, request.budget, round_number, client)
    _check_carries(begin, protection)
    noise = request.noise(batched.layout.size, like)
    assert noise is None or isinstance(noise, Tensor)
    result = distort_given(no_records(), begin, begin, noise, replace(protection, steps=0), utility=False)
    return _sent(result, entries, batched.layout, request)


def _formal_step(
    model: nn.Module, received: Any, batch: Any, loss: Loss | None, request: _Request, divisor: Any
) -> Protected:
    """A release whose coming, going and errors depend on public things alone: of the batch, on its shape and type."""
    images, labels = (None, None) if batch is None else checked_pair(batch)
    count = (0 if labels is None else len(labels)) if divisor is None else divisor
    if not is_count(count) or count == 0:
        raise ConfigError(
            f"Expected divisor={divisor!r} to be a whole number > 0, the public size of a batch.",
            "Set divisor, or pass a batch with examples.",
        )
    own = replace(request.settings, batch=count)
    protection = own.at(request.mechanism, request.budget, request.round_number, request.client)
    entries = Received(model, received)
    batched = Batched(model, loss, "cpu" if images is None else images.device, fixed=entries.fixed())
    like = next(p for p in model.parameters() if p.requires_grad)
    begin, objective = _flat("received", entries.trainable(), batched.layout, like), no_records()
    if images is not None and labels is not None:
        blank, plain = (blank_record(images), blank_record(labels)), neutral(model)
        _batched(plain, *blank, loss, alone=True, fixed={})  # what can be wrong is public: neither W nor a record
        objective = records(batched, images, labels, rehearse(plain, *blank, loss))
    noise = request.noise(batched.layout.size, like)
    result = release([objective], begin, noise, own.eta, protection, utility=False)
    return _sent(result, entries, batched.layout, request)


def _step_of_units(
    model: nn.Module, received: Any, batch: Any, loss: Loss | None, request: _Request, divisor: Any, groups: Any
) -> Protected:
    """As ``_formal_step``, for a mechanism that takes all records and draws its own batch."""
    own = request.settings if divisor is None else request.settings.with_divisor(divisor)
    raise_all(list(step_problems(request.mechanism.name, own)))
    own.gaussian.check_round(request.round_number)
    protection = own.at(request.mechanism, request.budget, request.round_number, request.client)
    entries = Received(model, received)
    units, layout = units_of(model, entries.fixed(), batch, loss, groups)
    like = next(p for p in model.parameters() if p.requires_grad)
    begin = _flat("received", entries.trainable(), layout, like)
    result = release([of_units(units)], begin, request.noise(layout.size, like), own.eta, protection, utility=False)
    return _sent(result, entries, layout, request)


def _check_carries(begin: Tensor, protection: Protection) -> None:
    """Refuse parameters so large that their own precision would round the noise away; no data plays a part."""
    if protection.mechanism.distorts:
        largest = begin.abs().amax()
        gap = float(torch.nextafter(largest, torch.full_like(largest, torch.inf)) - largest)
        scale = protection.noise_norm(begin.shape[-1]) / begin.shape[-1] ** 0.5
        if not gap <= scale / 16:
            raise ReleaseError(
                f"The received parameters are as large as {float(largest):.3g}, where {begin.dtype} has steps of "
                f"{gap:.3g}: noise of {scale:.3g} would be rounded away.",
                "Nothing was released. Start from parameters of usual size.",
            )


def _flat(name: str, state: Mapping[str, Tensor], layout: Layout, like: Tensor) -> Tensor:
    """``[1, P]`` in the model's own precision, finite."""
    flat = layout.flatten(state).to(like.device, like.dtype)
    if not torch.isfinite(flat).all():
        raise ReleaseError(f"The parameters in {name!r} are not finite.", "Start from healthy parameters.")
    return flat.unsqueeze(0)


def _sent(result: Release, entries: Received, layout: Layout, request: _Request) -> Protected:
    record, mechanism = result.record, request.mechanism
    if not bool(record.accepted[0]):
        raise ReleaseError(
            f"The release of client {request.client} in round {request.round_number} is not finite or outside its "
            f"intensity bounds (realised {float(record.intensity[0]):.6g}, asked {float(record.lower[0]):.6g} to "
            f"{float(record.upper[0]):.6g}). Nothing was released.",
            "Use a smaller learning rate, and check the batch, the loss and the size of the weights.",
        )
    names = ("lower", "upper", "intensity", "clipped", "utility_loss")
    numbers = {name: float(getattr(record, name)[0]) for name in names}
    if mechanism.formal:  # it would take all records at once
        numbers.pop("utility_loss")
    trained = layout.unflatten(result.parameters[0])
    if mechanism.formal:
        most = {name: torch.finfo(old.dtype).max for name, old in entries.trainable().items()}
        trained = {name: tensor.double().clamp(-most[name], most[name]) for name, tensor in trained.items()}
    else:
        _check_rounding(result, entries, layout, mechanism)
    parameters = entries.filled(trained)
    about = {
        "mechanism": mechanism.name, "budget": request.budget, "norm": mechanism.norm, "client": request.client,
        "round": request.round_number,
    }  # fmt: skip
    return Protected(parameters, {**about, **numbers, "experiment": "seeded" if request.seed is not None else None})


def _check_rounding(result: Release, entries: Received, layout: Layout, mechanism: Mechanism) -> None:
    """Refuse a release whose distortion the types of ``received`` cannot carry."""
    released, types = result.parameters[0], {name: old.dtype for name, old in entries.trainable().items()}
    if set(types.values()) == {released.dtype}:
        return
    cast = {name: tensor.to(types[name]).to(released.dtype) for name, tensor in layout.unflatten(released).items()}
    arriving = layout.flatten(cast)
    lost = float(intensity((arriving - released).unsqueeze(0), mechanism.norm)[0])
    if not torch.isfinite(arriving).all() or (mechanism.distorts and lost > 0.05 * float(result.record.lower[0])):
        raise ReleaseError(
            f"The received parameters are {', '.join(sorted({str(t) for t in types.values()}))}: rounding to that "
            "would change the distortion. Nothing was released.",
            f"Send and receive the model as {released.dtype}.",
        )


def _batched(
    model: nn.Module, images: Tensor, labels: Tensor, loss: Loss | None, *, alone: bool, fixed: Mapping[str, Tensor]
) -> Batched:
    """The model in batched form, checked again whenever something that matters has changed."""
    modes = tuple((type(part), part.training) for part in model.modules())
    trained = tuple(parameter.requires_grad for parameter in model.parameters())
    circumstances = (images.dtype, str(images.device), tuple(images.shape[1:]), modes, trained, alone)
    passed = _CHECKED.setdefault(model, set())
    if circumstances not in passed:
        check_model(model, images[: 1 if alone else 2])
        passed.add(circumstances)
    if loss is None:
        check_labels(model, images, labels)
    elif not callable(loss):
        raise ConfigError(f"Expected loss to be a function, got {type(loss).__name__}.", "Pass loss(outputs, labels).")
    return Batched(model, loss, images.device, fixed=fixed)
