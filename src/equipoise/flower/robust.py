"""How many replies a robust strategy of Flower's needs to leave out a single wrong one.

With fewer, Flower goes on without a word, and the strategy is robust in name alone: the median of two replies is their
mean, a trimmed mean of four at ``beta=0.2`` trims none, and Krum takes the first of two whatever it holds. Such a round
is void instead.
"""

from __future__ import annotations

import math

from flwr.serverapp.strategy import Bulyan, FedMedian, FedTrimmedAvg, MultiKrum, Strategy


def least_replies(strategy: Strategy) -> int:
    """The fewest good replies with which a strategy keeps its promise; 1 where it makes none.

    >>> from flwr.serverapp.strategy import FedAvg, Krum
    >>> least_replies(FedAvg()), least_replies(FedMedian()), least_replies(Krum(num_malicious_nodes=1))
    (1, 3, 5)
    """
    if isinstance(strategy, MultiKrum):  # Krum too; n > 2f + 2 (Blanchard et al., arXiv:1703.02757)
        return 2 * strategy.num_malicious_nodes + 3
    if isinstance(strategy, Bulyan):  # n >= 4f + 3 (El Mhamdi et al., arXiv:1802.07927)
        return 4 * strategy.num_malicious_nodes + 3
    if isinstance(strategy, FedMedian):
        return 3
    if isinstance(strategy, FedTrimmedAvg) and strategy.beta > 0:
        least = math.ceil(1 / strategy.beta)  # it cuts int(beta * n) replies at each end
        return least if int(strategy.beta * least) else least + 1
    return 1
