"""Layers whose kernels know no second set of parameters, in plain torch operations that do.

``torch.func`` cannot run torch's LSTM, GRU and RNN, nor the fast path that its attention layers take in eval mode.
``decomposed`` puts modules in their places that compute the same numbers to rounding, from the very same tensors under
the very same names: state dicts, tied weights and optimisers see no difference. A step in time is then a handful of
calls instead of a part of one, so that long sequences cost more than in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from ..errors import ModelError

State = tuple[Tensor, ...]
"""What a cell remembers, ``[B, ...]`` each: (output,), of an LSTM (output, memory)."""


def decomposed(model: nn.Module) -> nn.Module:
    """The model with every LSTM, GRU, RNN and attention layer in plain operations; itself where there is none.

    The copy shares all parameters and buffers with the model, and the model stays as it is. Layers of a class of the
    user's own are left alone.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.GRU(4, 2))
    >>> plain = decomposed(model)
    >>> [name for name, _ in plain.named_parameters()] == [name for name, _ in model.named_parameters()]
    True
    >>> plain[1].weight_hh_l0 is model[1].weight_hh_l0, type(model[1]).__name__
    (True, 'GRU')
    """
    return _plain(model, {})


def _plain(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """``made`` has those that were met before: a module with two names stays one module."""
    if id(module) not in made:
        made[id(module)] = _replaced(module, made)
    return made[id(module)]


def _replaced(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    if type(module) in _RECURRENT:
        return _RECURRENT[type(module)](module)
    parts = {name: None if part is None else _plain(part, made) for name, part in module._modules.items()}
    slow = type(module) in _ATTENTION and not module.training
    if not slow and all(part is module._modules[name] for name, part in parts.items()):
        return module
    result = _twin(type(module), module)
    result.__dict__["_modules"] = parts
    if slow:  # in train mode they run operation by operation; without dropout that is the same function
        result.training = True
        result.__dict__.update({"dropout": 0.0} if type(module) is nn.MultiheadAttention else {})
    return result


def _twin(kind: type[nn.Module], module: nn.Module) -> nn.Module:
    """A module with the attributes of another: the same parameters, buffers, hooks and settings."""
    result: nn.Module = kind.__new__(kind)
    result.__dict__.update(module.__dict__)
    return result


_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""What has a fast path in eval mode."""


# -- one step in time ------------------------------------------------------------------------------------------------


def _lstm(seen: Tensor, recalled: Tensor, state: State) -> State:
    enter, forget, candidate, out = (seen + recalled).chunk(4, -1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(candidate)
    return torch.sigmoid(out) * torch.tanh(memory), memory


def _gru(seen: Tensor, recalled: Tensor, state: State) -> State:
    (reset, update, new), (recalled_reset, recalled_update, recalled_new) = seen.chunk(3, -1), recalled.chunk(3, -1)
    candidate = torch.tanh(new + torch.sigmoid(reset + recalled_reset) * recalled_new)
    return (candidate + torch.sigmoid(update + recalled_update) * (state[0] - candidate),)


def _tanh(seen: Tensor, recalled: Tensor, state: State) -> State:
    return (torch.tanh(seen + recalled),)


def _relu(seen: Tensor, recalled: Tensor, state: State) -> State:
    return (torch.relu(seen + recalled),)


_STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": _lstm, "GRU": _gru, "RNN_TANH": _tanh, "RNN_RELU": _relu,
}  # fmt: skip
"""From what the input and the last output come to, ``[B, gates]`` each, and the state: the next state."""


# -- whole layers, with torch's own arguments and results --------------------------------------------------------------


class PlainRecurrent(nn.Module):
    """``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` with the parameters of an existing one."""

    mode: str
    hidden_size: int
    num_layers: int
    proj_size: int
    dropout: float
    batch_first: bool
    bidirectional: bool

    @classmethod
    def of(cls, original: nn.Module) -> nn.Module:
        return _twin(cls, original)

    def flatten_parameters(self) -> None:
        """Nothing to do: that is a matter of torch's kernels."""

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if isinstance(input, PackedSequence):
            raise ModelError(f"A packed sequence has no batched form, and {self.mode} got one.", PADDED)
        if self.training and self.dropout > 0 and self.num_layers > 1:
            raise ModelError(f"{self.mode} draws random numbers between its layers.", "Set its dropout to 0.")
        alone = input.dim() == 2  # one sequence, without a batch
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if self.batch_first else input  # [L, B, F]
        last: list[State] = []
        directions = (False, True) if self.bidirectional else (False,)
        for layer in range(self.num_layers):
            runs = [self._run(x, layer, back, hx, alone) for back in directions]
            x = torch.cat([outputs for outputs, _ in runs], -1) if len(runs) > 1 else runs[0][0]
            last += [state for _, state in runs]
        outputs = x.squeeze(1) if alone else x.transpose(0, 1) if self.batch_first else x
        finals = [torch.stack(parts) for parts in zip(*last, strict=True)]  # [layers * directions, B, ...]
        finals = [part.squeeze(1) for part in finals] if alone else finals
        return outputs, tuple(finals) if self.mode == "LSTM" else finals[0]

    def _run(self, x: Tensor, layer: int, back: bool, hx: Any, alone: bool) -> tuple[Tensor, State]:
        """The outputs ``[L, B, H]`` of one layer in one direction, and its last state."""
        name = f"_l{layer}{'_reverse' if back else ''}"
        seen = linear(x, getattr(self, f"weight_ih{name}"), getattr(self, f"bias_ih{name}", None))  # all steps at once
        project = getattr(self, f"weight_hr{name}", None)
        weight, bias = getattr(self, f"weight_hh{name}"), getattr(self, f"bias_hh{name}", None)
        state = self._start(x, layer * (1 + self.bidirectional) + back, hx, alone)
        step, outputs = _STEPS[self.mode], []
        for now in reversed(seen.unbind(0)) if back else seen.unbind(0):
            state = step(now, linear(state[0], weight, bias), state)
            if project is not None:
                state = (linear(state[0], project), *state[1:])
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if back else outputs), state

    def _start(self, x: Tensor, place: int, hx: Any, alone: bool) -> State:
        """The state before the first step: the caller's, or zeros."""
        if hx is not None:
            given = hx if self.mode == "LSTM" else (hx,)
            return tuple(part[place].unsqueeze(0) if alone else part[place] for part in given)
        output = x.new_zeros(x.shape[1], self.proj_size or self.hidden_size)
        return (output, x.new_zeros(x.shape[1], self.hidden_size)) if self.mode == "LSTM" else (output,)


class PlainCell(nn.Module):
    """``nn.LSTMCell``, ``nn.GRUCell`` or ``nn.RNNCell`` with the parameters of an existing one."""

    hidden_size: int
    mode: str

    @classmethod
    def of(cls, original: nn.Module) -> nn.Module:
        result = _twin(cls, original)
        kind = type(original).__name__.removesuffix("Cell").upper()
        result.__dict__["mode"] = f"RNN_{original.nonlinearity}".upper() if kind == "RNN" else kind
        return result

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        state: State
        if hx is None:
            state = (input.new_zeros(*input.shape[:-1], self.hidden_size),) * (2 if self.mode == "LSTM" else 1)
        else:
            state = tuple(hx) if self.mode == "LSTM" else (hx,)
        seen = linear(input, self.weight_ih, self.bias_ih)  # type: ignore[arg-type]
        recalled = linear(state[0], self.weight_hh, self.bias_hh)  # type: ignore[arg-type]
        state = _STEPS[self.mode](seen, recalled, state)
        return state if self.mode == "LSTM" else state[0]


_RECURRENT: dict[type[nn.Module], Callable[[nn.Module], nn.Module]] = {
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), PlainRecurrent.of),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), PlainCell.of),
}
PADDED = (
    "Give it the padded tensor, and take the output at the last real place of each sequence: "
    "outputs[torch.arange(len(x)), lengths - 1]."
)
"""What to do instead of packing."""
