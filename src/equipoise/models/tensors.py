"""The tensors of a model under all of their names."""

from __future__ import annotations

from torch import Tensor, nn


def every_name(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under every name: tied weights and shared modules have several.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> list(every_name(nn.Sequential(layer, layer)))
    ['0.weight', '1.weight']
    """
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def places(model: nn.Module) -> dict[str, list[str]]:
    """For every name of a tensor, the places that hold it: one for each module, whatever its names.

    torch's own ``tie_weights`` puts a tensor twice into a module that has two names, and then leaves it there.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> places(nn.Sequential(layer, nn.ReLU(), layer))
    {'0.weight': ['0.weight'], '2.weight': ['0.weight']}
    """
    held: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():  # every module once, by its first name
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                held.setdefault(id(tensor), []).append(f"{prefix}.{name}" if prefix else name)
    return {name: held[id(tensor)] for name, tensor in every_name(model).items()}
