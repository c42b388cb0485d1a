"""Convolutions of R sets of parameters at once: grouped on a CPU, by matrix products on a GPU. See ``layers.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .layout import Slot

Pair = tuple[int, int]

FEW = 3
"""Input channels up to which a grouped convolution's input gradient is summed tap by tap."""


class Conv:
    """``nn.Conv2d`` with groups = dilation = 1 and zero padding. Weights are stored ``[O, kh, kw, C]``."""

    def __init__(self, module: nn.Conv2d, weight: Slot, bias: Slot | None):
        assert not isinstance(module.padding, str)
        self.weight, self.bias = weight, bias
        self.kernel: Pair = (module.kernel_size[0], module.kernel_size[1])
        self.stride: Pair = (module.stride[0], module.stride[1])
        self.padding: Pair = (module.padding[0], module.padding[1])
        self.out_channels, self.in_channels = module.out_channels, module.in_channels
        self.taps: Pair = (-(-self.kernel[0] // self.stride[0]), -(-self.kernel[1] // self.stride[1]))

    def _each_bias(self, dy: Tensor, grad: Tensor) -> Tensor:
        """Write the bias's gradient of every example into ``grad`` ``[N, P]``; ``dy`` by example: ``[N, O, oh*ow]``."""
        slopes = dy.transpose(1, 2).flatten(0, 1).flatten(2)
        if self.bias is not None:
            self.bias.take(grad).copy_(slopes.sum(dim=2))
        return slopes


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Two ``[R, C, B, H, W]`` as one grouped image ``[B, R*2*C, H, W]``, channels last, in a single copy."""
    both = torch.cat([part.permute(2, 3, 4, 0, 1) for part in (first, second)], dim=-1)
    return both.flatten(3).permute(0, 3, 1, 2)


def _as_groups(x: Tensor) -> Tensor:
    """``[R, C, B, H, W]`` -> ``[1, R*B*C, H, W]``, channels last: every image a group."""
    r, c, b, h, w = x.shape
    out = x.new_empty(h, w, r, b, c)
    out.copy_(x.permute(3, 4, 0, 2, 1))
    return out.view(1, h, w, r * b * c).permute(0, 3, 1, 2)


class GroupedConv(Conv):
    """CPU: the replicas are the groups of one convolution."""

    def prepare(self, x: Tensor) -> Tensor:
        r, c, b, h, w = x.shape
        grouped = x.permute(2, 0, 1, 3, 4).reshape(b, r * c, h, w)
        if b == 1:  # any stride passes for contiguous there, and the grouped float64 kernel then reads the wrong ones
            return grouped.clone(memory_format=torch.channels_last)
        return grouped.contiguous(memory_format=torch.channels_last)

    def _split(self, x: Tensor, replicas: int) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, replicas, c // replicas, h, w).permute(1, 2, 0, 3, 4)

    def forward(self, params: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        r = params.shape[0]
        x = x if x.dim() == 4 else self.prepare(x)
        bias = None if self.bias is None else self.bias.take(params).flatten()
        weight = self.weight.take(params).flatten(0, 1).permute(0, 3, 1, 2)  # [R*O, C, kh, kw]
        y = torch.conv2d(x, weight, bias, self.stride, self.padding, groups=r)
        return self._split(y, r), (x, weight)

    def backward(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        r, (x, weight) = params.shape[0], kept
        dx, dw, db = torch.ops.aten.convolution_backward(
            self.prepare(dy), x, weight, (r * self.out_channels,), self.stride, self.padding,
            (1, 1), False, (0, 0), r, (not first, True, self.bias is not None),
        )  # fmt: skip
        self.weight.take(grad).copy_(dw.view(r, self.out_channels, *dw.shape[1:]).permute(0, 1, 3, 4, 2))
        if self.bias is not None:
            self.bias.take(grad).copy_(db.view(r, self.out_channels))
        return dy if first else self._split(dx, r)

    def each(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        r, (x, weight) = params.shape[0], kept
        h, w = x.shape[2:]
        slopes = self._each_bias(dy, grad)
        if self.stride == (1, 1) or self.in_channels <= FEW:
            self._each_as_groups(self._split(x, r), dy, grad)
        else:  # where strides make the grouped kernel slow
            self._each_by_rows(self._split(x, r), dy, slopes, grad)
        if first:
            return dy
        if self.stride != (1, 1):
            return self._input_gradient(params, dy, (h, w))
        dx = torch.ops.aten.convolution_backward(
            self.prepare(dy), x, weight, None, self.stride, self.padding,
            (1, 1), False, (0, 0), r, (True, False, False),
        )[0]  # fmt: skip
        return self._split(dx, r)

    def _each_as_groups(self, x: Tensor, dy: Tensor, grad: Tensor) -> None:
        """The kernel's gradient of every example, each a group of one image: ``[R, C, B, ...]`` into ``[R*B, P]``."""
        kernels = x.new_empty(len(grad) * self.out_channels, *self.kernel, self.in_channels)  # only their shape counts
        found = torch.ops.aten.convolution_backward(
            _as_groups(dy), _as_groups(x), kernels.permute(0, 3, 1, 2), None, self.stride, self.padding,
            (1, 1), False, (0, 0), len(grad), (False, True, False),
        )[1]  # fmt: skip
        self.weight.take(grad).copy_(found.permute(0, 2, 3, 1).unflatten(0, (-1, self.out_channels)))

    def _each_by_rows(self, x: Tensor, dy: Tensor, slopes: Tensor, grad: Tensor) -> None:
        """The same by matrix products, one for each row of the kernel: ``[R, C, B, ...]``, ``[N, O, oh*ow]`` into grad.

        Patches one row high are copied once for all rows of the kernel, which are views of them: rows of the image that
        lie a stride apart stand together.
        """
        (kh, kw), (sh, sw), (oh, ow), c = self.kernel, self.stride, dy.shape[3:], self.in_channels
        high = -(-(x.shape[3] + 2 * self.padding[0]) // sh)  # rows of one phase of the stride
        high = max(high, oh + (kh - 1) // sh)
        image = channels_last(x, self.padding, (high * sh, x.shape[4] + 2 * self.padding[1])).flatten(0, 1)
        count, step, (_, row, column, _) = len(grad), ow * kw * c, image.stride()
        strides = (row, image.stride(0), sh * row, sw * column, 1)
        seen = image.as_strided((sh, count, high, ow, kw * c), strides).contiguous()
        weight = self.weight.take(grad).flatten(3)  # [N, O, kh, kw*C]
        for i in range(kh):
            first = (i % sh) * count * high * step + (i // sh) * step
            rows = seen.as_strided((count, oh * ow, kw * c), (high * step, kw * c, 1), first)
            weight[:, :, i].copy_(torch.bmm(slopes, rows))

    def _input_gradient(self, params: Tensor, dy: Tensor, image: Pair) -> Tensor:
        """As of ``PatchConv``, where all phases of the stride are output channels of one convolution of stride 1."""
        (h, w), (sh, sw), (ph, pw), (jh, jw) = image, self.stride, self.padding, self.taps
        qh, qw, r = ph // sh, pw // sw, params.shape[0]
        nh, nw = (h - 1 + ph) // sh - qh + 1, (w - 1 + pw) // sw - qw + 1
        top, lead = jh - 1 - qh, jw - 1 - qw
        below, behind = nh - dy.shape[3] + qh, nw - dy.shape[4] + qw
        windows, padding = self.prepare(dy), (top, lead)
        if padding != (below, behind) or min(padding) < 0:
            windows, padding = nn.functional.pad(windows, (lead, behind, top, below)), (0, 0)
        phases = torch.conv2d(windows, self._by_phase(params), None, 1, padding, groups=r)
        grid = phases.permute(0, 2, 3, 1).reshape(-1, nh, nw, r, sh, sw, self.in_channels)
        grid = grid.permute(3, 0, 1, 4, 2, 5, 6).reshape(r, -1, sh * nh, sw * nw, self.in_channels)
        rows, columns = ph - sh * qh, pw - sw * qw
        return grid[:, :, rows : rows + h, columns : columns + w].permute(0, 4, 1, 2, 3)

    def _by_phase(self, params: Tensor) -> Tensor:
        """The flipped kernels, zero where a phase has fewer taps than others: ``[R*sh*sw*C, O, jh, jw]``."""
        (kh, kw), (sh, sw), (jh, jw) = self.kernel, self.stride, self.taps
        full = nn.functional.pad(self.weight.take(params), (0, 0, 0, jw * sw - kw, 0, jh * sh - kh))
        split = full.view(-1, self.out_channels, jh, sh, jw, sw, self.in_channels).flip(2, 4)
        return split.permute(0, 3, 5, 6, 2, 4, 1).flatten(0, 3).permute(0, 3, 1, 2)

    def tangent(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None) -> Tensor:
        r, x = params.shape[0], kept[0]
        turned = self.weight.take(along)
        bias = None if self.bias is None else self.bias.take(along).flatten()
        if dx is not None:  # W dx + V x as one convolution of twice the channels
            x, turned = _joined(self._split(x, r), dx), torch.cat([turned, self.weight.take(params)], dim=-1)
        return self._split(
            torch.conv2d(x, turned.flatten(0, 1).permute(0, 3, 1, 2), bias, self.stride, self.padding, groups=r), r
        )

    def pull(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None, up: Any, grad: Tensor | None) -> Tensor:
        r, (x, weight), (first, second) = params.shape[0], kept, up
        if self.in_channels <= FEW:
            back = self._scattered(params, along, x.shape, first, second)
        else:
            weights = torch.cat([self.weight.take(params), self.weight.take(along)], dim=1)  # [R, 2*O, kh, kw, C]
            grouped = torch.ops.aten.convolution_backward(
                _joined(first, second), x, weights.flatten(0, 1).permute(0, 3, 1, 2), None,
                self.stride, self.padding, (1, 1), False, (0, 0), r, (True, False, False),
            )[0]  # fmt: skip
            back = self._split(grouped, r)
        if grad is not None:
            self.backward(params, kept, first, grad, True)
            if dx is not None:
                moved = torch.empty_like(grad)
                self.backward(params, (self.prepare(dx), weight), second, moved, True)
                self.weight.take(grad).add_(self.weight.take(moved))
        return back

    def _scattered(self, params: Tensor, along: Tensor, shape: torch.Size, first: Tensor, second: Tensor) -> Tensor:
        """W^T first + V^T second for few input channels, where the library's grouped kernel is slow."""
        (kh, kw), (sh, sw), (ph, pw), c = self.kernel, self.stride, self.padding, self.in_channels
        r, _, b, oh, ow = first.shape
        weights = (self.weight.take(flat).flatten(2).transpose(1, 2) for flat in (params, along))  # [R, kh*kw*C, O]
        taps = torch.bmm(next(weights), first.flatten(2)).baddbmm_(next(weights), second.flatten(2))
        taps = taps.view(r, kh, kw, c, b, oh, ow)
        h, w = shape[2:]
        out = first.new_zeros(r, c, b, h + 2 * ph + sh, w + 2 * pw + sw)
        for i in range(kh):
            for j in range(kw):
                out[..., i : i + sh * oh : sh, j : j + sw * ow : sw] += taps[:, i, j]
        return out[..., ph : ph + h, pw : pw + w]


def patches(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """``[R, B, H, W, C]`` (padded, contiguous) -> ``[R, B*oh*ow, kh*kw*C]``."""
    r, b, h, w, c = x.shape
    (kh, kw), (sh, sw) = kernel, stride
    oh, ow = (h - kh) // sh + 1, (w - kw) // sw + 1
    steps = (x.stride(0), x.stride(1), sh * w * c, sw * c, w * c, 1)
    return x.as_strided((r, b, oh, ow, kh, kw * c), steps).reshape(r, b * oh * ow, kh * kw * c)


def channels_last(x: Tensor, corner: Pair, size: Pair) -> Tensor:
    """``[R, C, B, H, W]`` -> zeros ``[R, B, *size, C]`` with the image's corner at ``corner``.

    A negative corner crops; what lies outside ``size`` is dropped.
    """
    r, c, b, h, w = x.shape
    out = x.new_zeros(r, b, *size, c)
    top, lead = corner
    rows = slice(max(top, 0), min(top + h, size[0]))
    cols = slice(max(lead, 0), min(lead + w, size[1]))
    inner = x[..., rows.start - top : rows.stop - top, cols.start - lead : cols.stop - lead]
    out[:, :, rows, cols] = inner.permute(0, 2, 3, 4, 1)
    return out


class PatchConv(Conv):
    """GPU: one matrix product per replica on the patches of its input."""

    def __init__(self, module: nn.Conv2d, weight: Slot, bias: Slot | None):
        super().__init__(module, weight, bias)
        self._index, self._mask = self._phase_index()

    def prepare(self, x: Tensor) -> tuple[Tensor, Pair]:
        h, w = x.shape[3:]
        size = (h + 2 * self.padding[0], w + 2 * self.padding[1])
        return patches(channels_last(x, self.padding, size), self.kernel, self.stride), (h, w)

    def forward(self, params: Tensor, x: Any) -> tuple[Tensor, Any]:
        matrix, (h, w) = x if isinstance(x, tuple) else self.prepare(x)  # [R, N, kh*kw*C]
        weight, columns = self.weight.take(params).flatten(2), matrix.transpose(1, 2)
        if self.bias is None:
            y = torch.bmm(weight, columns)  # [R, O, N]
        else:
            y = torch.baddbmm(self.bias.take(params).unsqueeze(2), weight, columns)
        oh = (h + 2 * self.padding[0] - self.kernel[0]) // self.stride[0] + 1
        ow = (w + 2 * self.padding[1] - self.kernel[1]) // self.stride[1] + 1
        return y.view(*y.shape[:2], -1, oh, ow), (matrix, (h, w))

    def backward(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        matrix, image = kept
        flat = dy.flatten(2)  # [R, O, N]
        self.weight.take(grad).flatten(2).copy_(torch.bmm(flat, matrix))
        if self.bias is not None:
            self.bias.take(grad).copy_(flat.sum(dim=2))
        return dy if first else self._input_gradient(params, dy, image)

    def each(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        matrix, image = kept
        seen = matrix.view(len(grad), -1, matrix.shape[2])  # [R*B, oh*ow, K]
        self.weight.take(grad).flatten(2).copy_(torch.bmm(self._each_bias(dy, grad), seen))
        return dy if first else self._input_gradient(params, dy, image)

    def tangent(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None) -> Tensor:
        y = self.forward(along, kept)[0]
        if dx is None:
            return y
        columns = self.prepare(dx)[0].transpose(1, 2)
        return y.flatten(2).baddbmm_(self.weight.take(params).flatten(2), columns).view_as(y)

    def pull(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None, up: Any, grad: Tensor | None) -> Tensor:
        first, second = up
        if grad is not None:
            self.backward(params, kept, first, grad, True)
            if dx is not None:
                moved = torch.bmm(second.flatten(2), self.prepare(dx)[0])
                self.weight.take(grad).flatten(2).add_(moved)
        return self._input_gradient(params, first, kept[1]) + self._input_gradient(along, second, kept[1])

    def _input_gradient(self, params: Tensor, dy: Tensor, image: Pair) -> Tensor:
        # With i + padding = stride*q + phase, input row i receives the output rows q-j through the kernel
        # rows phase + stride*j: one stride-1 window of `taps` output rows serves every phase.
        (h, w), (sh, sw), (ph, pw), (jh, jw) = image, self.stride, self.padding, self.taps
        qh, qw = ph // sh, pw // sw
        nh, nw = (h - 1 + ph) // sh - qh + 1, (w - 1 + pw) // sw - qw + 1
        windows = channels_last(dy, (jh - 1 - qh, jw - 1 - qw), (nh + jh - 1, nw + jw - 1))
        matrix = patches(windows, self.taps, (1, 1))  # [R, B*nh*nw, jh*jw*O]
        r, b = dy.shape[0], dy.shape[2]
        dx = torch.bmm(self._phase_weight(params), matrix.transpose(1, 2))  # [R, C*sh*sw, B*nh*nw]
        grid = dx.view(r, self.in_channels, sh, sw, b, nh, nw).permute(0, 1, 4, 5, 2, 6, 3)
        grid = grid.reshape(r, self.in_channels, b, sh * nh, sw * nw)
        return grid[..., ph - sh * qh : ph - sh * qh + h, pw - sw * qw : pw - sw * qw + w]

    def _phase_index(self) -> tuple[Tensor, Tensor]:
        """Where each entry of the flipped kernel, split by stride phase, lies in the flat vector."""
        (kh, kw), (sh, sw), (jh, jw) = self.kernel, self.stride, self.taps
        place = torch.arange(self.weight.start, self.weight.stop)
        place = place.view(self.out_channels, kh, kw, self.in_channels)
        full = nn.functional.pad(place, (0, 0, 0, jw * sw - kw, 0, jh * sh - kh), value=-1)
        full = full.view(self.out_channels, jh, sh, jw, sw, self.in_channels).flip(1, 3)
        index = full.permute(5, 2, 4, 1, 3, 0).reshape(-1)
        return index.clamp_min(0), index >= 0

    def _phase_weight(self, params: Tensor) -> Tensor:
        """``[R, C*sh*sw, jh*jw*O]``"""
        if self._index.device != params.device:
            self._index, self._mask = self._index.to(params.device), self._mask.to(params.device)
        (sh, sw), (jh, jw) = self.stride, self.taps
        weight = params.index_select(1, self._index)
        if self.kernel != (jh * sh, jw * sw):  # some phases have fewer taps than others
            weight = weight * self._mask
        return weight.view(-1, self.in_channels * sh * sw, jh * jw * self.out_channels)
