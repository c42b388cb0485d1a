"""The whole method with nothing but PyTorch: Algorithms 1 and 2 for four clients, as one would first write it.

    python examples/basic_flow.py

Slow and plain on purpose. A test holds the library equal to this file to 1e-6 in float64.
"""

import torch
from torch import nn

from equipoise import LeNetZhu, load

K, BATCH, ETA = 4, 4, 0.1  # clients, mini-batch, local learning rate
M, GAMMA, LAMBDA = 10, 0.1, 1e-5  # inner steps, their learning rate, negative-norm coefficient
CLIP = 500.0  # gradient clip of the LS mechanisms


def set_parameters(model, tensors):
    with torch.no_grad():
        for parameter, tensor in zip(model.parameters(), tensors, strict=True):
            parameter.copy_(tensor)


def loss_and_gradient(model, tensors, x, y):
    set_parameters(model, tensors)
    loss = nn.functional.cross_entropy(model(x), y)
    return loss.item(), torch.autograd.grad(loss, list(model.parameters()))


def norm(tensors, order):
    return torch.linalg.vector_norm(torch.cat([t.flatten() for t in tensors]), order)


def scale_clip(alpha, lower, upper, order):
    size = norm(alpha, order)
    if size < lower:
        return [a * (lower / size) for a in alpha]
    if size > upper:
        return [a * (upper / size) for a in alpha]
    return alpha


def learn_distortion(model, local, x, y, noise, mechanism, scale):
    """Algorithm 2. ``noise`` is standard Laplace noise; ``scale`` the lower bound (PL) or Laplace scale (LS)."""
    if mechanism.startswith("pl"):
        order, lower, size = 2, scale, norm(noise, 2)
        alpha = [z * (lower / size) for z in noise]
    else:
        order, alpha = 1, [z * scale for z in noise]
        lower = norm(alpha, 1)
    if not mechanism.endswith("learn"):
        return alpha
    for _ in range(M):
        _, gradient = loss_and_gradient(model, [w + a for w, a in zip(local, alpha, strict=True)], x, y)
        size = norm(alpha, 2)
        alpha = [a - GAMMA * (g - LAMBDA * a / size) for a, g in zip(alpha, gradient, strict=True)]
        alpha = scale_clip(alpha, lower, 2 * lower, order)
    return alpha


def client(model, weights, x, y, noise, mechanism, scale):
    """Algorithm 1, l. 6-8: train, distort, release; also the utility loss of the distortion."""
    _, gradient = loss_and_gradient(model, weights, x, y)
    if mechanism.startswith("ls"):
        gradient = [g * min(1.0, CLIP / norm(gradient, 2)) for g in gradient]
    local = [w - ETA * g for w, g in zip(weights, gradient, strict=True)]
    alpha = learn_distortion(model, local, x, y, noise, mechanism, scale)
    released = [w + a for w, a in zip(local, alpha, strict=True)]
    with torch.no_grad():
        set_parameters(model, released)
        after = nn.functional.cross_entropy(model(x), y).item()
        set_parameters(model, local)
        before = nn.functional.cross_entropy(model(x), y).item()
    return released, after - before


def server(releases):
    """Algorithm 1, l. 10, for clients of equal size."""
    return [torch.stack(tensors).mean(0) for tensors in zip(*releases, strict=True)]


def main(rounds=500, mechanism="pl-learn", scale=7.99975):
    torch.manual_seed(1)
    data, model = load("mnist"), LeNetZhu()
    weights = [torch.rand_like(p) - 0.5 for p in model.parameters()]
    unit = torch.distributions.Laplace(0.0, 1.0)
    for t in range(1, rounds + 1):
        releases = []
        for k in range(K):
            mine = 1000 * k + torch.randperm(1000)[:BATCH]
            noise = [unit.sample(w.shape) for w in weights]
            x, y = data.train.inputs[mine], data.train.labels[mine]
            releases.append(client(model, weights, x, y, noise, mechanism, scale)[0])
        weights = server(releases)
        if t % 100 == 0:
            set_parameters(model, weights)
            with torch.no_grad():
                accuracy = (model(data.test.inputs).argmax(1) == data.test.labels).float().mean()
            print(f"round {t}: test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
