"""Theorem 5.1 of the paper (arXiv:2305.15148) on a problem with known constants: bound and measurement for every M.

    python examples/theorem.py

The objective is a quadratic on an annulus, so that L_alpha is its largest eigenvalue and the gradient is exact.
"""

import torch

from equipoise import distortion_bounds, follow

torch.manual_seed(0)
eigenvalues = torch.linspace(0.1, 2.0, 20, dtype=torch.float64)
centre = torch.randn(1, 20, dtype=torch.float64)
lower, upper = torch.tensor([1.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)


def loss(w: torch.Tensor) -> torch.Tensor:
    return 0.5 * (eigenvalues * (w - centre) ** 2).sum(-1)


def gradient(w: torch.Tensor) -> torch.Tensor:
    return eigenvalues * (w - centre)


start = torch.randn(1, 20, dtype=torch.float64)
start = start / start.norm()  # on the inner sphere, as Algorithm 2 begins
smoothness = float(eigenvalues.max())
gamma = 0.5 / smoothness
gap = float(loss(start))  # phi is never negative, so phi_inf >= 0

print("   M   mean |R|^2      bound   mean s^2      bound")
for steps in (1, 3, 10, 30, 100, 300):
    seen = follow(gradient, loss, torch.zeros_like(start), start, lower, upper, steps=steps, gamma=gamma)
    bound = distortion_bounds(gap, gamma, smoothness, steps)
    residual, distance = float(seen.residual.mean()), float(seen.stationarity.mean())
    print(f"{steps:4d} {residual:12.4g} {bound.residual:10.4g} {distance:10.4g} {bound.stationarity:10.4g}")
    assert residual <= bound.residual
    assert distance <= bound.stationarity
