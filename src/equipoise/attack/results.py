"""What an attack can come to. Whoever scores attacks needs to know these six, and no attack by name."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Inversion:
    """Inputs, reconstructed from N releases.

    >>> Inversion(torch.zeros(2, 4, 1, 28, 28), cost=torch.zeros(2)).images.shape
    torch.Size([2, 4, 1, 28, 28])
    """

    images: Tensor  # [N, E, ...]
    cost: Tensor  # [N]: of the final inputs, without the prior
    stopped: Tensor | None = None  # [N]: iteration at which the cost ceased to be finite; 0: never
    labels: Tensor | None = None  # [N, E]: where the attack had to find them


@dataclass(frozen=True)
class CandidateScores:
    """How well each candidate explains an example of a release; higher is better.

    >>> CandidateScores(torch.rand(2, 4, 200)).values.argmax(-1).shape
    torch.Size([2, 4])
    """

    values: Tensor  # [N, E, K], in the order of ``Knowledge.choices``


@dataclass(frozen=True)
class MembershipScores:
    """How much each example that was asked about looks like a member; higher for members.

    >>> MembershipScores(torch.rand(2, 24)).values.shape
    torch.Size([2, 24])
    """

    values: Tensor  # [N, O], in the order of ``Knowledge.asked``


@dataclass(frozen=True)
class LabelGuesses:
    """The labels behind every release.

    >>> LabelGuesses(torch.tensor([[0, 1, 1, 7]])).values.tolist()
    [[0, 1, 1, 7]]
    """

    values: Tensor  # [N, E], sorted


@dataclass(frozen=True)
class LabelCounts:
    """How many examples behind every release have each of k yes-or-no labels.

    >>> LabelCounts(torch.tensor([[2, 0, 4]])).values.tolist()
    [[2, 0, 4]]
    """

    values: Tensor  # [N, k]


@dataclass(frozen=True)
class Verification:
    """How far each guess at an example is from being confirmed, and how near is near enough.

    >>> Verification(torch.rand(2, 4, 200), tolerance=torch.full((2,), 1e-5)).distance.shape
    torch.Size([2, 4, 200])
    """

    distance: Tensor  # [N, E, K], in the order of ``Knowledge.choices``; the least is the guess that is picked
    tolerance: Tensor  # [N]: a guess within it is accepted


Result = Inversion | CandidateScores | MembershipScores | LabelGuesses | LabelCounts | Verification
