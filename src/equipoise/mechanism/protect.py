"""``protect`` and ``protected_step``: one client's release from your own PyTorch loop, by the code the engine runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError, EquipoiseError, ModelError, is_count, raise_all
from ..models.batched import Batched
from ..models.check import check_model, circumstances, loss_error
from ..models.inputs import listed
from ..models.objective import Inputs, Loss, map_inputs
from ..models.received import Received
from ..models.routes import Name
from .batch import Batch, check_labels, checked_batch, checked_pair
from .call_slots import slots_for
from .client_units import units_of
from .constants import warn_of_constants
from .intensity import intensity
from .learned_leak import warn_of_leak
from .protection import ProtectionSettings, check_buffers, step_problems
from .records import blank_record, neutral, no_records, of_units, records, rehearse
from .registry import Mechanism
from .release import check_trained_elsewhere, distort_given, release, shortened, updated_release
from .request import Request
from .schedule import Schedule
from .sent import Protected as Protected
from .sent import check_carries, flat, largest, ratio, sent
from .static import check_fitted, noised

_CHECKED: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Name]] = WeakKeyDictionary()
"""Circumstances under which a model passed its check, and the route that served; forgotten with the model."""


def protect(
    model: nn.Module,
    received: Mapping[str, Tensor],
    batch: Batch | None = None,
    mechanism: str | Mechanism | None = None,
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
        batch: the inputs and labels that a learned distortion is learned on: ``(x, y)``, of several inputs
            ``((x1, x2), y)`` or ``({"a": x1, "b": x2}, y)``. Other mechanisms need none, and look at none.
        mechanism: a name such as ``"pl-learn"``, or a ``Mechanism``; not ``laplace-dp``, see ``protected_step``.
        budget: the privacy budget: smaller is stricter. A number, one per client, or a schedule; none for ``"none"``.
        loss: ``loss(outputs, labels)``, the mean over the batch; cross-entropy unless given.
        settings: M, gamma, lambda, the constants behind a budget, and what becomes of buffers.
        client: which of the clients this is, for budgets and settings that differ between them.
        round_number: which round this is, for budgets and settings that follow a schedule.
        least_relative: the least that the L2 norm of the noise, as expected, may be in terms of that of the update; a
            larger update is shortened. 0: any.
        experiment_seed: reproducible noise keyed by (seed, client, round), for experiments only: whoever knows the
            seed can subtract the noise. Without it, noise is from the operating system's cryptographic generator.

    Returns:
        ``parameters``, with exactly the entries of ``received``, their types and devices: distorted ones for all that
        is trainable, the same values under every name of a tied weight; frozen parameters and buffers as received,
        whatever the model holds there (statistics fitted to private data, say), unless ``settings.buffers`` says
        otherwise. ``record`` stays with the client; without learning it has no utility loss. ``noise_to_update`` is the
        L2 norm of the noise over that of what was trained; None where nothing was.

    A mechanism that does not learn takes any module in any mode: no forward pass is run. docs/models.md has what the
    others need.

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
    >>> protect(model, received, mechanism="pl-identical", budget=0.98).record["norm"]
    'l2'
    """
    numbers = {"client": client, "round_number": round_number, "experiment_seed": experiment_seed}
    request = Request.checked(mechanism, budget, settings, least_relative, **numbers)
    check_trained_elsewhere(request.mechanism)
    check_buffers(request.settings, request.mechanism, step=False)
    if not request.mechanism.learns:
        return noised(model, received, request, own_loss=loss is not None)
    return _protected(model, received, batch, loss, request, step=False)


def protected_step(
    model: nn.Module,
    received: Mapping[str, Tensor],
    batch: Batch | None,
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
    request = Request.checked(mechanism, budget, settings, least_relative, **numbers)
    check_buffers(request.settings, request.mechanism, step=True)
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


def _protected(
    model: nn.Module, received: Any, batch: Any, loss: Loss | None, request: Request, step: bool
) -> Protected:
    """A release that takes gradients: of the local step, or of the learner."""
    mechanism, settings = request.mechanism, request.settings
    inputs, labels = _needed(batch, mechanism, step)
    _check_precision(model, mechanism)
    warn_of_constants(model, mechanism, request.budget, settings)
    warn_of_leak(mechanism)
    entries = Received(model, received)
    check_fitted(entries, settings.buffers)
    batched = _batched(model, inputs, labels, loss, alone=mechanism.per_example, fixed=entries.fixed())
    layout, like = batched.layout, next(p for p in model.parameters() if p.requires_grad)
    begin = flat("received", entries.trainable(), layout, like)
    own = replace(settings, batch=len(labels)).at(mechanism, request.budget, request.round_number, request.client)
    protection = replace(own, least_relative=request.least_relative)
    check_carries(largest("received", [begin], like), layout.size, protection)
    objective = batched.at(map_inputs(lambda part: part.unsqueeze(0), inputs), labels.unsqueeze(0))
    noise = request.noise(layout.size, like)
    try:
        if step:
            result, local = updated_release(objective, begin, noise, settings.eta, protection)
        else:
            trained = flat("model", dict(model.named_parameters()), layout, like)
            assert noise is None or isinstance(noise, Tensor)
            result = distort_given(objective, begin, trained, noise, protection)
            local = shortened(begin, trained, protection)
    except EquipoiseError:
        raise
    except Exception as error:
        raise loss_error(error, model, loss, inputs, labels) from None
    added, moved = (float(intensity(part)) for part in (result.parameters - local, local - begin))
    return sent(result, entries, layout, request, utility=True, relative=ratio(added, moved))


def _needed(batch: Any, mechanism: Mechanism, step: bool) -> Batch:
    if batch is None and not step:
        raise DataError(
            f"The mechanism {mechanism.name!r} learns its distortion on a batch, and there is none.",
            "Pass the last mini-batch (x, y), or use a static mechanism, such as 'pl-identical', which needs none.",
        )
    return checked_batch(batch)


def _check_precision(model: nn.Module, mechanism: Mechanism) -> None:
    """Gradients, and the exact sums of a guarantee, are made in single precision at least."""
    for name, tensor in model.named_parameters():
        if tensor.requires_grad and tensor.dtype in (torch.float16, torch.bfloat16):
            raise ModelError(
                f"Parameter {name!r} is {tensor.dtype}, too coarse for the gradients that {mechanism.name!r} takes.",
                "Convert a copy: copy.deepcopy(model).float(), and inputs likewise; what was received may stay as it "
                "is. Or train yourself and call protect with a static mechanism, such as 'pl-identical'.",
            )


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
    request = Request.checked(mechanism, budget, settings, 0.0, **numbers)
    check_trained_elsewhere(request.mechanism)
    return noised(model, received, request, update=False)


def _formal_step(
    model: nn.Module, received: Any, batch: Any, loss: Loss | None, request: Request, divisor: Any
) -> Protected:
    """A release whose coming, going and errors depend on public things alone: of the batch, on its shape and type."""
    inputs, labels = (None, None) if batch is None else checked_pair(batch)
    count = (0 if labels is None else len(labels)) if divisor is None else divisor
    if not is_count(count) or count == 0:
        raise ConfigError(
            f"Expected divisor={divisor!r} to be a whole number > 0, the public size of a batch.",
            "Set divisor, or pass a batch with examples.",
        )
    own = replace(request.settings, batch=count)
    protection = own.at(request.mechanism, request.budget, request.round_number, request.client)
    _check_precision(model, request.mechanism)
    entries = Received(model, received)
    batched, objective = Batched(model, loss, fixed=entries.fixed()), no_records()
    if inputs is not None and labels is not None:
        blank, plain = (map_inputs(blank_record, inputs), blank_record(labels)), neutral(model)
        # what can be wrong is public: neither W nor a record
        route = _batched(plain, *blank, loss, alone=True, fixed={}).route
        batched = Batched(model, loss, labels.device, route=route, fixed=entries.fixed())
        classes = rehearse(plain, *blank, loss, route)
        if route != "layers":  # a call with the user's own code
            slots_for(batched, *blank, classes, size=1)
        objective = records(batched, inputs, labels, classes)
    like = next(p for p in model.parameters() if p.requires_grad)
    begin = flat("received", entries.trainable(), batched.layout, like)
    noise = request.noise(batched.layout.size, like)
    result = release([objective], begin, noise, own.eta, protection, utility=False)
    return sent(result, entries, batched.layout, request, utility=False)


def _step_of_units(
    model: nn.Module, received: Any, batch: Any, loss: Loss | None, request: Request, divisor: Any, groups: Any
) -> Protected:
    """As ``_formal_step``, for a mechanism that takes all records and draws its own batch."""
    own = request.settings if divisor is None else request.settings.with_divisor(divisor)
    raise_all(list(step_problems(request.mechanism.name, own)))
    own.gaussian.check_round(request.round_number)
    protection = own.at(request.mechanism, request.budget, request.round_number, request.client)
    _check_precision(model, request.mechanism)
    entries = Received(model, received)
    expected = own.gaussian.sampling_rate * own.gaussian.divisor
    units, layout = units_of(model, entries.fixed(), batch, loss, groups, expected)
    like = next(p for p in model.parameters() if p.requires_grad)
    begin = flat("received", entries.trainable(), layout, like)
    result = release([of_units(units)], begin, request.noise(layout.size, like), own.eta, protection, utility=False)
    return sent(result, entries, layout, request, utility=False)


def _batched(
    model: nn.Module, inputs: Inputs, labels: Tensor, loss: Loss | None, *, alone: bool, fixed: Mapping[str, Tensor]
) -> Batched:
    """The model in batched form, checked again whenever something that matters has changed."""
    if loss is not None and not callable(loss):
        raise ConfigError(f"Expected loss to be a function, got {type(loss).__name__}.", "Pass loss(outputs, labels).")
    names = tuple(inputs) if isinstance(inputs, dict) else type(inputs)
    forms = tuple((part.dtype, str(part.device), tuple(part.shape[1:])) for part in listed(inputs))
    key = (circumstances(model), names, forms, alone, loss is None)
    passed = _CHECKED.setdefault(model, {})
    if key not in passed:
        some = map_inputs(lambda part: part[: 1 if alone else 2], inputs)
        passed[key] = check_model(model, some, loss=loss)
    if loss is None:
        check_labels(model, inputs, labels)
    return Batched(model, loss, labels.device, route=passed[key], fixed=fixed)
