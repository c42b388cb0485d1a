"""Data, model and training of a plain Flower app of the quickstart's shape, on random images."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 36, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def load_data(partition_id: int, num_partitions: int):
    draw = torch.Generator().manual_seed(partition_id)
    labels = torch.randint(3, (24,), generator=draw)
    images = torch.randn(24, 1, 8, 8, generator=draw) + labels.view(-1, 1, 1, 1)
    rows = [{"img": image, "label": label} for image, label in zip(images, labels, strict=True)]
    return DataLoader(rows, batch_size=8), DataLoader(rows, batch_size=8)


def train(net, trainloader, epochs, lr, device):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    total = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(batch["img"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))
