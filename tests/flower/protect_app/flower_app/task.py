"""What is yours: the model, the data, the training. Replace all of it; keep the signatures or change their callers."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from equipoise import load, partition


class Net(nn.Sequential):
    """A small convolutional network for 28 x 28 images. Any module does whose forward pass changes no state.

    A plain sequence of common layers is quickest: distortions are learned on it, and audits attack it, in batches.
    """

    def __init__(self) -> None:
        super().__init__(
            OrderedDict(
                conv1=nn.Conv2d(1, 16, 5, stride=2, padding=2),
                act1=nn.ReLU(),
                conv2=nn.Conv2d(16, 32, 5, stride=2, padding=2),
                act2=nn.ReLU(),
                flatten=nn.Flatten(),
                fc1=nn.Linear(32 * 7 * 7, 64),
                act3=nn.ReLU(),
                fc2=nn.Linear(64, 10),
            )
        )


def load_data(client: int, clients: int) -> TensorDataset:
    """This client's share of the bundled MNIST images. In your app: the data that only this machine has."""
    train = load("mnist").train
    mine = partition(train.labels, clients)[client]
    return TensorDataset(train.inputs[mine], train.labels[mine])


def train_model(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]], epochs: int, lr: float) -> None:
    """Plain SGD, in place."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def test_model(model: nn.Module) -> tuple[float, float]:
    """Accuracy and loss on the bundled test images, which no client has."""
    test = load("mnist").test
    with torch.no_grad():
        logits = model(test.inputs)
    accuracy = (logits.argmax(1) == test.labels).float().mean()
    return float(accuracy), float(functional.cross_entropy(logits, test.labels))
