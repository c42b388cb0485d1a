"""Many runs of gaussian-dp at once, each with its own rate, momentum, clip and noise, for ``tune.py``.

A twin of the mechanism, written apart from it: with every record in every round, the mean of the clients' releases is
the mean of the clipped gradients plus one Gaussian, so a run needs neither clients nor exact arithmetic (on a GPU large
products are in TF32 or bfloat16). ``Linear`` trains the head of fixed features, ``Conv`` nets of three convolutions;
both give every run's mean clipped gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CLASSES = 10


@dataclass(frozen=True)
class Numbers:
    """What differs between the runs of a batch, one entry ``[R]`` a run; the rounds are common."""

    rate: Tensor
    momentum: Tensor
    clip: Tensor
    noise: Tensor  # standard deviation of the noise of the mean, in clips
    decay: Tensor  # of the weights towards zero in a round, relative to the rate


def train(runs: Linear | Conv, numbers: Numbers, rounds: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Validation accuracies ``[R]``: of the last weights, and of the mean over the last quarter of the rounds."""
    weights, tail = runs.start(generator), max(1, rounds // 4)
    velocity, mean = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    for number in range(rounds):
        gradients = runs.gradient(weights, numbers.clip)
        for w, v, m, g in zip(weights, velocity, mean, gradients, strict=True):
            noise = torch.randn(w.shape, generator=generator, device=w.device)
            g = g.add_(noise.mul_(runs.spread(numbers.noise * numbers.clip, w)))
            g.add_(w * runs.spread(numbers.decay, w))
            v.mul_(runs.spread(numbers.momentum, w)).add_(g)
            w.sub_(v * runs.spread(numbers.rate, w))
            if number >= rounds - tail:
                m.add_(w, alpha=1 / tail)
    return runs.accuracy(weights), runs.accuracy(mean)


class Linear:
    """Heads on common features ``[N, D]``, zero at the start; the run is the last dimension of every tensor.

    Args:
        features: of all records.
        labels: ``[N]``.
        validation: ``[N, R]``, True where a record is held out of a run.
        scale: ``[R]``, by which a run multiplies the features.
    """

    def __init__(self, features: Tensor, labels: Tensor, validation: Tensor, scale: Tensor):
        self.features, self.validation, self.scale = features, validation, scale
        self.labels, self.truth = labels, F.one_hot(labels, CLASSES).float().unsqueeze(-1)  # [N, 10, 1]
        self.size = torch.linalg.vector_norm(features, dim=1).unsqueeze(-1)  # [N, 1]
        self.share = (~validation).float() / (~validation).sum(0)  # [N, R]

    @staticmethod
    def spread(values: Tensor, like: Tensor) -> Tensor:
        return values

    def start(self, generator: torch.Generator) -> list[Tensor]:
        shape = (self.features.shape[1] + 1, CLASSES, len(self.scale))  # the bias is the last row
        return [torch.zeros(shape, device=self.features.device)]

    def logits(self, weights: Tensor) -> Tensor:
        product = self.features @ weights[:-1].flatten(1)
        return product.view(-1, *weights.shape[1:]).mul_(self.scale).add_(weights[-1])  # [N, 10, R]

    def gradient(self, weights: list[Tensor], clip: Tensor) -> list[Tensor]:
        """The mean over records of clipped gradients; |g| = |p - y| sqrt(|x|^2 + 1)."""
        error = torch.softmax(self.logits(weights[0]), 1).sub_(self.truth)
        norm = torch.linalg.vector_norm(error, dim=1).mul_((self.scale**2 * self.size**2 + 1).sqrt())  # [N, R]
        error.mul_(((clip / norm.clamp_min(1e-12)).clamp_(max=1.0) * self.share).unsqueeze(1))
        gradient = torch.empty_like(weights[0])
        torch.mm(self.features.T, error.flatten(1), out=gradient[:-1].view(-1, error[0].numel()))
        gradient[:-1].mul_(self.scale)
        gradient[-1] = error.sum(0)
        return [gradient]

    def accuracy(self, weights: list[Tensor]) -> Tensor:
        right = self.logits(weights[0]).argmax(1) == self.labels.unsqueeze(-1)
        return (right & self.validation).sum(0) / self.validation.sum(0)


def _patches(images: Tensor, side: int, stride: int, pad: int) -> Tensor:
    """``[M, H, W, C]`` to ``[M, places, side * side * C]``: what a convolution multiplies with its weights."""
    width, dtype = side * side * images.shape[-1], images.dtype
    images = F.pad(images, (0, 0, pad, pad, pad, pad))
    if images.shape[-1] * images.element_size() % 8 == 0:  # copied eight bytes at a time
        images = images.view(torch.int64)
    views = images.unfold(1, side, stride).unfold(2, side, stride)  # [M, h, w, C, side, side]
    copied = views.permute(0, 1, 2, 4, 5, 3).reshape(len(images), -1)
    return copied.view(dtype).view(len(images), -1, width)


def _many(left: Tensor, right: Tensor) -> Tensor:
    """``bmm`` in parts: there are more products than a kernel launch takes."""
    out = left.new_empty(len(left), left.shape[1], right.shape[2])
    for start in range(0, len(left), 60_000):
        part = slice(start, start + 60_000)
        torch.bmm(left[part], right[part], out=out[part])
    return out


class Conv:
    """LeNetZhu or its tanh form; the run is the first dimension, weights are ``[R, inputs, outputs]``.

    Args:
        images: ``[R, N, 28, 28]``, the training records of every run.
        labels: ``[R, N]``.
        held_out: validation images and labels likewise.
        activation: "sigmoid" or "tanh".
        init: "half" (uniform in [-0.5, 0.5]) or "torch" (uniform in 1 / sqrt(inputs)); of the linear layer alone after
            a plus, "zero" among them: "half+zero".
    """

    LAYERS = ((25, 12), (300, 12), (300, 12), (588, CLASSES))

    def __init__(self, images: Tensor, labels: Tensor, held_out: tuple[Tensor, Tensor], activation: str, init: str):
        self.dtype = torch.bfloat16 if images.is_cuda else torch.float32
        self.runs, self.records = labels.shape
        self.activation, self.init = activation, init
        self.first = self._first(images)
        self.truth = F.one_hot(labels, CLASSES).float()
        self.held_first, self.held_labels = self._first(held_out[0]), held_out[1]

    def _first(self, images: Tensor) -> Tensor:
        return _patches(images.flatten(0, 1).unsqueeze(-1), 5, 2, 2).to(self.dtype)  # [R N, 196, 25]

    @staticmethod
    def spread(values: Tensor, like: Tensor) -> Tensor:
        return values.view(-1, *[1] * (like.dim() - 1))

    def start(self, generator: torch.Generator) -> list[Tensor]:
        weights = []
        for inputs, outputs in self.LAYERS:
            bound = self.bound(inputs)
            for shape in ((self.runs, inputs, outputs), (self.runs, 1, outputs)):
                weights.append((torch.rand(shape, generator=generator, device=self.truth.device) * 2 - 1) * bound)
        return weights

    def bound(self, inputs: int) -> float:
        convolutions, _, head = self.init.partition("+")
        name = head if head and inputs == 588 else convolutions
        return {"half": 0.5, "torch": 1 / math.sqrt(inputs), "zero": 0.0}[name]

    def act(self, inputs: Tensor) -> Tensor:
        return torch.sigmoid(inputs) if self.activation == "sigmoid" else torch.tanh(inputs)

    def slope(self, values: Tensor) -> Tensor:
        return values * (1 - values) if self.activation == "sigmoid" else 1 - values * values

    def layer(self, patches: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """``[R N, places, inputs]`` to activations ``[R N, places, 12]``."""
        flat = patches.view(self.runs, -1, patches.shape[-1])
        return self.act(torch.baddbmm(bias.to(self.dtype), flat, weight.to(self.dtype))).view(len(patches), -1, 12)

    def forward(self, first: Tensor, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Patches and activations of the convolutions, and the logits ``[R, N, 10]``."""
        patches, values = [first], [self.layer(first, *weights[:2])]
        for number, (side, stride) in enumerate(((14, 2), (7, 1)), 1):
            patches.append(_patches(values[-1].view(-1, side, side, 12), 5, stride, 2))
            values.append(self.layer(patches[-1], *weights[2 * number : 2 * number + 2]))
        return patches, values, torch.baddbmm(weights[7], values[-1].reshape(self.runs, -1, 588).float(), weights[6])

    def gradient(self, weights: list[Tensor], clip: Tensor) -> list[Tensor]:
        patches, values, logits = self.forward(self.first, weights)
        last = values[2].reshape(self.runs, self.records, 588).float()
        error = torch.softmax(logits, -1).sub_(self.truth)  # [R, N, 10]
        square = error.square().sum(-1) * (last.square().sum(-1) + 1)  # of the linear layer's gradient
        deltas = self.backward(error, weights, values)
        examples: list[Tensor] = []  # gradients of every record [R, N, inputs, 12]
        for patch, delta in zip(patches, deltas, strict=True):
            of_weight = _many(patch.transpose(1, 2), delta).view(self.runs, self.records, -1)
            of_bias = delta.sum(1).view(self.runs, self.records, -1)
            square += sum(torch.linalg.vector_norm(g, dim=-1, dtype=torch.float32) ** 2 for g in (of_weight, of_bias))
            examples += [of_weight, of_bias]
        share = ((clip.view(-1, 1) / square.sqrt().clamp_min(1e-12)).clamp_(max=1.0) / self.records).unsqueeze(1)
        total = [torch.bmm(share.to(self.dtype), g).float() for g in examples]  # [R, 1, inputs * 12]
        total = [g.view(self.runs, -1, 12) for g in total]
        error.mul_(share.transpose(1, 2))
        return [*total, torch.bmm(last.transpose(1, 2), error), error.sum(1, keepdim=True)]

    def backward(self, error: Tensor, weights: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        """Derivatives with respect to what enters the activations, ``[R N, places, 12]`` a convolution."""
        third = torch.bmm(error, weights[6].transpose(1, 2)).to(self.dtype).view(-1, 49, 12)
        third = third * self.slope(values[2])
        # A convolution of stride 1 goes back as one with turned weights.
        turned = weights[4].view(-1, 5, 5, 12, 12).flip(1, 2).transpose(3, 4).reshape(-1, 300, 12)
        second = self.back(_patches(third.view(-1, 7, 7, 12), 5, 1, 2), turned).view(-1, 49, 12)
        second = second * self.slope(values[1])
        # One of stride 2: pixel 2 j + s of the input meets place j + d with the weight k = s + 2 - 2 d.
        kernel = weights[2].view(-1, 5, 5, 12, 12)
        parts = kernel.new_zeros(self.runs, 3, 3, 12, 2, 2, 12)  # d, d, output, s, s, input
        for d, s, k in taps():
            for e, t, m in taps():
                parts[:, d, e, :, s, t] = kernel[:, k, m].transpose(1, 2)
        neighbours = _patches(second.view(-1, 7, 7, 12), 3, 1, 1)
        first = self.back(neighbours, parts.view(self.runs, 108, 48)).view(-1, 7, 7, 2, 2, 12)
        first = first.transpose(2, 3).reshape(-1, 196, 12)
        return [first * self.slope(values[0]), second, third]

    def back(self, patches: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(patches.view(self.runs, -1, patches.shape[-1]), weight.to(self.dtype))

    def accuracy(self, weights: list[Tensor]) -> Tensor:
        logits = self.forward(self.held_first, weights)[2]
        return (logits.argmax(-1) == self.held_labels).float().mean(-1)


def taps() -> list[tuple[int, int, int]]:
    """Index of d in (-1, 0, 1), s and k of all pairs for which k is a place of the kernel."""
    return [(d + 1, s, s + 2 - 2 * d) for d in (-1, 0, 1) for s in (0, 1) if 0 <= s + 2 - 2 * d <= 4]
