"""What went wrong in a model's ``forward``: the layer, the place, the shapes and a remedy, never the error's own words.

Those may quote the batch. Torch's words are read to tell causes apart, and not repeated.
"""

from __future__ import annotations

import inspect
from traceback import walk_tb
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ModelError, place
from .inputs import described, listed, tensors_in
from .objective import Inputs, arguments
from .recurrent import PADDED


class Problem(NamedTuple):
    reason: str
    remedy: str


_TRY_FORWARD = "Call model(x) by itself to see the whole error; its words are left out here, as they may quote data."
_FOR_TOKENS = (
    "Begin the model with nn.Embedding(vocabulary, width), name one for tokens (transformer, lstm), or use data of the "
    "kind that it is for."
)
_SIZES = (
    "in_features", "in_channels", "num_features", "normalized_shape", "num_channels", "input_size", "embed_dim",
    "num_embeddings",
)  # fmt: skip


def forward_problem(error: Exception, model: nn.Module, inputs: Inputs) -> Problem:
    """The remedy is guessed from what torch says of tensors that do not fit; none of it is quoted."""
    parts, words, fault = listed(inputs), words_of(error).lower(), fault_of(error, model)
    like = next(model.parameters(), parts[0])
    shapes = f", which {fault.shapes}" if fault.shapes else ""
    reason = f"its forward failed on a {described(inputs)}, in {fault.label}{shapes}: {place(error)}"
    if packs(error):
        return packed_problem(model)
    if isinstance(error, TypeError) and not _fits(model, inputs):
        takes = ", ".join(inspect.signature(model.forward).parameters)
        reason = f"its forward takes ({takes}), and the batch has another number of inputs or other names: {len(parts)}"
        return Problem(reason, "Pass all inputs: by place ((x1, x2), y), or by name ({'a': x1, 'b': x2}, y).")
    if isinstance(fault.module, nn.modules.batchnorm._BatchNorm) and len(parts[0]) == 1:
        return Problem(
            f"{fault.label} needs more than the one record that is looked at", "Replace BatchNorm by GroupNorm."
        )
    if any(part.device != like.device for part in parts) or "device" in words:
        where = f"; inputs are on {parts[0].device}, parameters on {like.device}"
        return Problem(reason + where, "Move both to one device: model.to(device), x.to(device).")
    wanted = _instead_of_tokens(model, fault, parts)
    if wanted:
        return Problem(f"{reason}; the data are token numbers, and the model is for {wanted}", _FOR_TOKENS)
    if any(part.is_floating_point() and part.dtype != like.dtype for part in parts) or "type" in words:
        return Problem(reason, f"Convert the inputs: to {like.dtype}, or to torch.int64 where embeddings come first.")
    if any(word in words for word in ("shape", "size", "channels", "dimension")):
        return Problem(reason, f"{fault.fitting}Check that inputs of this shape are what its layers are built for.")
    return Problem(reason, _TRY_FORWARD)


def _instead_of_tokens(model: nn.Module, fault: _Fault, parts: list[Tensor]) -> str:
    """What a model is for that has no embedding and is given token numbers; empty where that is not the matter."""
    kinds = {type(part) for part in model.modules()}
    if any(part.dtype != torch.int64 for part in parts) or kinds & {nn.Embedding, nn.EmbeddingBag}:
        return ""
    if nn.Conv2d in kinds:
        return "pictures"
    return "numbers" if fault.given is not None and fault.given.dtype == torch.int64 and _size(fault.module) else ""


def _fits(model: nn.Module, inputs: Inputs) -> bool:
    args, kwargs = arguments(inputs)
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


class _Fault(NamedTuple):
    label: str
    module: nn.Module
    given: Tensor | None = None
    """The first tensor that a layer of torch was called with."""

    @property
    def shapes(self) -> str:
        """What the layer is built for, and the shape that it got."""
        if self.given is None:
            return ""
        size = _size(self.module)
        built = f"has {size[0]}={size[1]} and " if size else ""
        return f"{built}was given shape {tuple(self.given.shape)}"

    @property
    def fitting(self) -> str:
        """How the layer would have to be built for what it got, where its shape tells that."""
        size, place = _size(self.module), -1
        if self.given is None or size is None or size[0] not in ("in_features", "in_channels", "input_size"):
            return ""
        if isinstance(self.module, nn.modules.conv._ConvNd):
            place = -1 - len(self.module.kernel_size)
            if self.given.dim() != 1 - place:
                return ""
        found = self.given.shape[place] if self.given.dim() else size[1]
        return "" if found == size[1] else f"Build {self.label} with {size[0]}={found}. "


def _size(layer: nn.Module) -> tuple[str, Any] | None:
    """The setting of a layer that says what inputs it is for."""
    return next(((name, getattr(layer, name)) for name in _SIZES if hasattr(layer, name)), None)


def fault_of(error: BaseException, model: nn.Module) -> _Fault:
    """The innermost module that was running; the copies that ``decomposed`` makes go by the name of the original."""
    frames = [(frame.f_code.co_name, frame.f_locals) for frame, _ in walk_tb(error.__traceback__)]
    names = {id(part._parameters): name for name, part in model.named_modules()}
    for _, known in reversed(frames):
        module = known.get("self")
        if isinstance(module, nn.Module) and id(module._parameters) in names:
            name = names[id(module._parameters)]
            return _Fault(label_of(model, name), model.get_submodule(name), _given(module, frames))
    return _Fault(label_of(model, ""), model)


def _given(module: nn.Module, frames: list[tuple[str, dict[str, Any]]]) -> Tensor | None:
    """The first tensor of the call; of layers of torch alone, whose inputs have public shapes."""
    if not type(module).__module__.startswith("torch.nn.") or isinstance(module, nn.Sequential):
        return None
    calls = [known for name, known in frames if name == "_call_impl" and known.get("self") is module]
    tensors = [tensor for known in calls for tensor in tensors_in([known.get("args"), known.get("kwargs")])]
    return tensors[0] if tensors else None


def packs(error: BaseException) -> bool:
    """Whether it came from packing sequences, or from what was packed."""
    return any(frame.f_code.co_filename == _PACKING for frame, _ in walk_tb(error.__traceback__)) or (
        isinstance(error, ModelError) and error.remedy == PADDED
    )


_PACKING = str(inspect.getsourcefile(nn.utils.rnn.pack_padded_sequence))


def packed_problem(model: nn.Module) -> Problem:
    layers = [label_of(model, name) for name, part in model.named_modules() if isinstance(part, nn.RNNBase)]
    return Problem(f"{', '.join(layers) or 'its forward'} gets packed sequences, which have no batched form", PADDED)


def label_of(network: nn.Module, name: str) -> str:
    return f"{name or 'model'!r} ({type(network.get_submodule(name)).__name__})"


def words_of(error: BaseException) -> str:
    """torch's own words, to tell causes apart; never shown. Those of other errors are not asked for."""
    return str(error) if isinstance(error, RuntimeError) else ""
