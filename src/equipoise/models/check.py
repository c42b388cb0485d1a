"""Whether a model can be trained for several sets of parameters at once, and if not, why, and what to do about it.

Only what a mechanism computes gradients with is asked this; noise alone needs no forward pass. Errors of a model's own
``forward`` or of a user's loss are told by type and place: their words may quote the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, place
from .batched import Batched
from .fault import Problem, fault_of, forward_problem, label_of, packed_problem, packs, words_of
from .inputs import Listed, called, listed, tensors_in
from .objective import Inputs, Loss, map_inputs
from .routes import SHARED, Name, default_route

MOST = 8
"""Reasons that one message gives; a deep network has the same one at every layer."""

SWITCHES = ("p", "dropout", "track_running_stats", "max_norm")
"""Of layers: they may be changed from call to call."""

_RECURRENT = (nn.RNNBase, nn.modules.rnn.RNNCellBase)


def check_model(
    model: nn.Module,
    inputs: Inputs,
    classes: int | None = None,
    *,
    loss: Loss | None = None,
    route: Name | None = None,
    takes_loss: bool = True,
) -> Name:
    """Refuse a model that cannot be trained for several sets of parameters at once, with all reasons.

    Args:
        model: in the mode in which it will be used.
        inputs: a small batch ``[B, ...]`` of the data it is for: a tensor, or several by place or by name.
        classes: how many outputs it must have for every record, if that is known.
        loss: of the user's; the model may return anything then.
        route: that its gradients must take; unless given, plain PyTorch serves where ``torch.func`` does not.
        takes_loss: whether the user could give a loss where this is asked: a run trains with cross-entropy alone.

    Returns:
        A route that serves.

    >>> check_model(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.zeros(2, 4))
    Traceback (most recent call last):
    equipoise.errors.ModelError: The model cannot be used: '1' (BatchNorm1d) keeps running statistics ...
    """
    problems = [*_layer_problems(model), *_parameter_problems(model)]
    if problems:
        raise _refusal(*problems)
    plain = _plain_outputs(model, inputs)
    if loss is None:
        _check_outputs(model, plain, len(listed(inputs)[0]), classes, takes_loss)
    _check_repeated(model, inputs, plain)
    found = route or default_route(model, loss, listed(inputs)[0].device, replicas=1)
    if found not in SHARED:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.func warns of slow fallbacks; speed is not the question here
        problem = _replica_problem(model, inputs, plain, found)
    if problem is None:
        return found
    if route is None:
        return "loop"
    raise _refusal(Problem(problem.reason, f"{problem.remedy} Or take the route 'loop', which runs any model."))


def loss_error(error: Exception, model: nn.Module, loss: Loss | None, inputs: Inputs, labels: Tensor) -> ModelError:
    """What to tell of an ``error`` in the loss, or its gradient, of a model that passed its check.

    Raise it ``from None``: what the error itself says may quote the batch.
    """
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in words_of(error):
        return ModelError(
            f"A gradient of this batch does not fit into the memory of {labels.device}.", "Use a smaller batch."
        )
    try:
        with torch.no_grad():
            (loss or nn.functional.cross_entropy)(called(model, inputs), labels)
    except Exception as plain:
        return ModelError(f"The loss of this batch cannot be computed: {place(plain)}.", _TRY_LOSS)
    if "does not require grad" in words_of(error):
        return ModelError(
            "The loss does not depend on the parameters by operations that autograd can follow.",
            "Take .detach(), .item(), numpy and torch.no_grad() out of model and loss.",
        )
    reason, remedy = _torch_func_problem(error, "the loss", model)
    return ModelError(f"The gradient of the loss cannot be computed: {reason}.", remedy)


def _refusal(*problems: Problem) -> ModelError:
    reasons, remedies = [p.reason for p in problems], dict.fromkeys(p.remedy for p in problems)
    more = [f"and {len(reasons) - MOST} more"] if len(reasons) > MOST else []
    return ModelError(f"The model cannot be used: {'; '.join([*reasons[:MOST], *more])}.", " ".join(remedies))


# -- what can be seen without running it ---------------------------------------------------------------------------


def _layer_problems(model: nn.Module) -> list[Problem]:
    """Layers that draw, or that change when they are called."""
    problems = []
    for name, part in model.named_modules():
        label, active = label_of(model, name), part.training
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and active and part.track_running_stats:
            problems.append(Problem(f"{label} {_STATISTICS}", "Replace BatchNorm by GroupNorm, or call eval() on it."))
        if isinstance(part, nn.modules.instancenorm._InstanceNorm) and active and part.track_running_stats:
            problems.append(Problem(f"{label} {_STATISTICS}", "Set track_running_stats=False, or call eval() on it."))
        if isinstance(part, nn.modules.dropout._DropoutNd) and active and part.p > 0:
            problems.append(Problem(f"{label} draws random numbers", "Call eval() on dropout, or set p=0."))
        if isinstance(part, nn.MultiheadAttention) and active and part.dropout > 0:
            problems.append(Problem(f"{label} draws random numbers", "Set the dropout of attention to 0.0."))
        if isinstance(part, nn.RNNBase) and active and part.dropout > 0 and part.num_layers > 1:
            reason = f"{label} draws random numbers between its layers"
            problems.append(Problem(reason, f"Set the dropout of {part.mode} to 0.0, or call eval() on it."))
        if isinstance(part, nn.RReLU) and active:
            problems.append(Problem(f"{label} draws random numbers", "Replace RReLU by LeakyReLU."))
    return problems


_STATISTICS = "keeps running statistics of the batch in train mode"


def _parameter_problems(model: nn.Module) -> list[Problem]:
    problems = []
    for name, tensor in model.named_parameters():
        if not tensor.is_floating_point():
            reason = f"parameter {name!r} is {tensor.dtype}, not floating point"
            problems.append(Problem(reason, "Make it a buffer, or convert it: .float()."))
        elif not torch.isfinite(tensor).all():
            remedy = "Load finite parameters, and train with a smaller learning rate."
            problems.append(Problem(f"parameter {name!r} is not finite", remedy))
    return problems


# -- its forward pass by itself ------------------------------------------------------------------------------------

_TRY_LOSS = (
    "Call loss(model(x), y) by itself to see the whole error; its words are left out here, as they may quote data."
)


def _plain_outputs(model: nn.Module, inputs: Inputs) -> Any:
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    try:
        with torch.no_grad():
            plain = called(model, inputs)
    except Exception as error:
        raise _refusal(forward_problem(error, model, inputs)) from None
    changed = [name for name, tensor in model.named_buffers() if not torch.equal(tensor, before[name])]
    if changed:
        reason = f"its forward changes the buffer(s) {', '.join(changed)}"
        raise _refusal(Problem(reason, "Change buffers outside of forward, or in train mode alone and call eval()."))
    return plain


def _check_outputs(model: nn.Module, plain: Any, count: int, classes: int | None, takes_loss: bool = False) -> None:
    """Without a loss of the user's, outputs are a tensor; ``classes`` is how many each of ``count`` records has."""
    if not isinstance(plain, Tensor):
        reason = f"its forward returns {type(plain).__name__}, not a tensor"
        raise _refusal(Problem(reason, _take(plain) if takes_loss else _derived(model, plain)))
    if classes is not None and plain.shape != (count, classes):
        reason = f"its output has shape {tuple(plain.shape)}, not {(count, classes)}"
        raise _refusal(Problem(reason, f"End it with a layer of {classes} outputs, one for each class."))


def _take(plain: Any) -> str:
    """How to get at the outputs in what the model returns, by a loss."""
    loss = f"loss=lambda outputs, labels: torch.nn.functional.cross_entropy(outputs{_part(plain)}, labels)"
    return f"Wrap it in a module that returns the tensor of outputs alone, or pass a loss that takes it: {loss}."


def _derived(model: nn.Module, plain: Any) -> str:
    """The same where no loss of the user's is taken."""
    return (
        "Return the tensor of outputs alone, for cross-entropy: in forward, or in a class derived from "
        f"it:\n    class Outputs({type(model).__name__}):\n        def forward(self, *inputs):\n"
        f"            return super().forward(*inputs){_part(plain)}"
    )


def _part(plain: Any) -> str:
    if isinstance(plain, Mapping):
        return f"[{'logits' if 'logits' in plain else next(iter(plain), 0)!r}]"
    return "[0]" if isinstance(plain, tuple | list) else ".logits"


# -- features, one record at a time ----------------------------------------------------------------------------------


def check_features(network: nn.Module, images: Tensor) -> None:
    """Refuse a network whose outputs are no function of one image each, and name the module at fault.

    ``images`` is a small batch ``[B, ...]``, B > 1, of any pixels; the network is in the mode in which it will be used.

    >>> check_features(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), torch.rand(2, 1, 4, 4))
    Traceback (most recent call last):
    equipoise.errors.ModelError: The model cannot be used: its forward changes the buffer(s) 1.running_mean, ...
    """
    outputs = _plain_outputs(network, images)
    _check_outputs(network, outputs, len(images), None)
    if outputs.dim() < 1 or outputs.shape[0] != len(images) or not outputs.is_floating_point():
        reason = f"its output is {outputs.dtype} of shape {tuple(outputs.shape)} for {len(images)} images"
        raise _refusal(Problem(reason, "Let it return floating-point numbers, one row for each image."))
    together, again = _seen(network, images), _seen(network, images)
    fault = _first_difference(together, again, slice(None))
    if fault is not None:
        remedy = "Take randomness, and whatever changes from call to call, out of forward."
        raise _refusal(Problem(f"{label_of(network, fault)} gave other outputs for the same images", remedy))
    for row in range(len(images)):
        fault = _first_difference(together, _seen(network, images[row : row + 1]), slice(row, row + 1))
        if fault is not None:
            reason = f"{label_of(network, fault)} mixes the images of a batch: alone, one has other outputs"
            remedy = "Use a layer that looks at one image, such as GroupNorm, or BatchNorm with running statistics."
            raise _refusal(Problem(reason, remedy))


def _seen(network: nn.Module, images: Tensor) -> list[tuple[str, Tensor]]:
    """Every tensor that a module returns, with its name, in the order in which they finish: parts before the whole."""
    seen: list[tuple[str, Tensor]] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen.append((name, output.detach().clone()))

        return hook

    handles = [part.register_forward_hook(keep(name)) for name, part in network.named_modules()]
    try:
        with torch.no_grad():
            network(images)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _first_difference(together: list[tuple[str, Tensor]], other: list[tuple[str, Tensor]], rows: slice) -> str | None:
    """The module whose output differs from its ``rows`` of that for the whole batch; None where none does."""
    count = together[-1][1].shape[0]
    for (name, whole), (_, part) in zip(together, other, strict=False):
        if whole.dim() and whole.shape[0] == count and not _alike(part, whole[rows]):
            return name
    return None if len(together) == len(other) else ""


def _alike(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or not (two.is_floating_point() or two.is_complex()):
        return torch.equal(one, two)
    size = float(two.abs().nan_to_num(0.0, 0.0, 0.0).max()) if two.numel() else 0.0
    return torch.allclose(one, two, rtol=1e-3, atol=1e-4 * size, equal_nan=True)


# -- its forward pass for two sets of parameters -------------------------------------------------------------------

_TORCH_FUNC = (
    (("data-dependent", ".item()", "dynamic shape"), "decides by the values in a tensor (if, .item(), a mask)",
     "Use torch.where, and shapes that do not depend on values."),
    (("randomness",), "draws random numbers", "Draw them before, or call eval(): the same inputs must give the same."),
    (("inplace", "in-place", "broadcast shape"), "changes a tensor in place",
     "Make new tensors: x = x + y instead of x += y, torch.stack instead of filling in."),
    (("data pointer",), "leaves torch", "Stay with torch operations: no numpy, no data_ptr."),
    (("batching rule",), "has an operation without a batched form", "Write that operation with other torch functions."),
)  # fmt: skip
"""Words of torch.func's own errors, what they mean, and what to do."""


def _torch_func_problem(error: Exception, what: str, model: nn.Module) -> Problem:
    words, fault = words_of(error).lower(), fault_of(error, model)
    if packs(error):
        return packed_problem(model)
    if isinstance(error, ModelError):
        return Problem(error.cause.removesuffix("."), error.remedy)
    if isinstance(fault.module, _RECURRENT):
        reason = f"{fault.label} is derived from a layer of torch and has no batched form"
        return Problem(reason, "Use the layer of torch itself (nn.LSTM, nn.GRU, nn.RNN or their cells).")
    what = what if fault.module is model else f"{what}, in {fault.label},"
    for signs, meaning, remedy in _TORCH_FUNC:
        if any(sign in words for sign in signs):
            return Problem(f"{what} {meaning}, which torch.func cannot run ({place(error)})", remedy)
    remedy = "Use torch operations alone, without changes in place, randomness or decisions by values."
    return Problem(f"torch.func cannot run {what} ({place(error)})", remedy)


def _check_repeated(model: nn.Module, inputs: Inputs, plain: Any) -> None:
    again = tensors_in(_plain_outputs(model, inputs))
    if not _all_close(again, tensors_in(plain)):
        reason = "the same parameters and inputs gave different outputs"
        raise _refusal(Problem(reason, "Take randomness, and whatever changes from call to call, out of forward."))


def _replica_problem(model: nn.Module, inputs: Inputs, plain: Any, route: Name) -> Problem | None:
    """Run two replicas by a route that takes them together, and compare with the model itself."""
    both = map_inputs(lambda part: part.repeat(2, *[1] * part.dim()), inputs)
    whole = Listed(model) if route == "vmap" else model
    batched = Batched(whole, device=listed(inputs)[0].device, route=route)
    params = batched.layout.flatten(dict(whole.named_parameters())).repeat(2, 1)
    try:
        outputs = batched.outputs(params, both)
    except Exception as error:
        return _torch_func_problem(error, "its forward", model)
    if _all_close([one[1] for one in ([outputs] if isinstance(outputs, Tensor) else outputs)], tensors_in(plain)):
        return None
    return Problem("its batched form gave other outputs than the model", "Report this, with the model.")


def _all_close(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(map(_alike, one, two))


def circumstances(model: nn.Module) -> tuple[Any, ...]:
    """All of a model that a check of it may depend on, but for its values: what it found holds until this changes."""

    def switches(part: nn.Module) -> tuple[Any, ...]:
        return tuple(value for key in SWITCHES if isinstance(value := getattr(part, key, None), bool | int | float))

    parts = tuple((name, type(part), part.training, *switches(part)) for name, part in model.named_modules())
    return parts, tuple(parameter.requires_grad for parameter in model.parameters())
