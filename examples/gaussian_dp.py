"""A federation with a proved guarantee, in your own loop: from data to (epsilon, delta) of the whole run.

    python examples/gaussian_dp.py            # 5 rounds, some seconds
    python examples/gaussian_dp.py 50         # the same epsilon, spread over 50 rounds

Every client hands all of its records to ``protected_step`` in every round. That clips the gradient of each, adds them
up as integers and adds noise from the operating system. The budget is for all rounds together, so their number is
stated before the first. What the server then does with the releases costs no privacy: here it has a momentum.
"""

import sys

import torch

import equipoise
from equipoise import GaussianSettings, Intake, ProtectionSettings, load, protected_step, scatter_linear

CLIENTS, EPSILON, DELTA = 4, 2.0, 1e-5
RECORDS = 1000  # the public stand-in for a client's number of records; how many it really has stays with it
MOMENTUM, DRIFT, LARGEST = 0.8, 0.22, 12.0  # of the server, as docs/tuning_gaussian_dp.md has them


def server_rate(sigma: float, rounds: int) -> float:
    """The rate with which the noise of all rounds moves each weight by a standard deviation of DRIFT."""
    noise = sigma / RECORDS * (rounds / CLIENTS) ** 0.5  # of the mean of all clients, over the run
    return min(LARGEST, DRIFT * (1 - MOMENTUM) / noise)


def train(rounds: int, seed: int | None = None) -> float:
    """Train, and return the accuracy on the test set. A seed makes the noise repeatable: no guarantee is left."""
    data, model = load("mnist"), scatter_linear()
    gaussian = GaussianSettings(delta=DELTA, clip=1.0, divisor=RECORDS, rounds=rounds)
    settings = ProtectionSettings(clients=CLIENTS, eta=1.0, gaussian=gaussian)
    rate = server_rate(gaussian.sigma(EPSILON), rounds)
    parts = list(zip(data.train.inputs.chunk(CLIENTS), data.train.labels.chunk(CLIENTS), strict=True))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}  # zeros: nothing was trained
    velocity = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for t in range(1, rounds + 1):
        intake = Intake(state, round_number=t)
        for k, records in enumerate(parts):
            about = {"settings": settings, "client": k, "round_number": t, "experiment_seed": seed}
            sent = protected_step(model, state, records, "gaussian-dp", EPSILON, **about)
            intake.offer(f"client {k}", sent.parameters, weight=1.0, round_number=t)  # equal weights tell nothing
        mean = intake.close().parameters
        for name, old in state.items():
            velocity[name] = MOMENTUM * velocity[name] + (mean[name] - old)
        state = {name: old + rate * velocity[name] for name, old in state.items()}
    model.load_state_dict(state)
    images, labels = data.test.inputs.split(500), data.test.labels.split(500)  # nobody's records: no privacy is spent
    with torch.no_grad():
        hits = [model(x).argmax(1) == y for x, y in zip(images, labels, strict=True)]
    return float(torch.cat(hits).float().mean())


def main(rounds: int = 5) -> None:
    print(f"test accuracy after {rounds} rounds: {train(rounds):.1%}\n\nFor every client's records:")
    for words in equipoise.guarantee(epsilon=EPSILON, delta=DELTA, rounds=rounds).sentences():
        print(words)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
