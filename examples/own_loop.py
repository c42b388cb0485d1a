"""A federation around ``protect`` with your own PyTorch code: your model, your loop, your server.

    python examples/own_loop.py

Each client trains as it likes (here: two plain SGD steps), then hands its model to ``protect`` and sends what
comes back. The server refuses malformed releases by name and averages the rest.
"""

import torch
from torch import nn

from equipoise import Intake, load, protect

CLIENTS, ROUNDS, BATCH = 4, 60, 16


class Net(nn.Module):
    """Any module whose forward is functional will do."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(784, 32), nn.GroupNorm(4, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.hidden(x.flatten(1)))))


def train_locally(model, state, batches):
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()


def main():
    torch.manual_seed(1)
    data, model = load("mnist"), Net()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for t in range(1, ROUNDS + 1):
        intake = Intake(state, round_number=t)
        for k in range(CLIENTS):
            rows = 1000 * k + torch.randint(1000, (2, BATCH))
            batches = [(data.train.inputs[i], data.train.labels[i]) for i in rows]
            train_locally(model, state, batches)
            sent = protect(model, state, batches[-1], "pl-learn", 0.997, client=k, round_number=t)
            reason = intake.offer(f"client {k}", sent.parameters, weight=1.0, round_number=t)
            if reason:
                print(f"round {t}: client {k} refused: {reason}")
        state = intake.close(rate=0.5).parameters
        if t % 20 == 0:
            model.load_state_dict(state)
            with torch.no_grad():
                accuracy = (model(data.test.inputs).argmax(1) == data.test.labels).float().mean()
            print(f"round {t}: test accuracy {accuracy:.1%}, last intensity {sent.record['intensity']:.3f}")


if __name__ == "__main__":
    main()
