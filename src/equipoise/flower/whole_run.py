"""A run whose budget is for all of it: what it asks a node to reserve, and with which noise its releases are made.

The run config says epsilon, delta, the sampling rate, the rounds and how the noise changes over them; the policy says
the unit and the divisor. The noise multiplier is the node's own: it follows from these by ``noise_multiplier``, and no
run config can set it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import ConfigError, PolicyError, is_finite
from ..ledger.reservation import MOST_PARTS, Noise, Reservation
from ..mechanism.protection import ProtectionSettings
from ..mechanism.run_budget import GaussianSettings
from ..mechanism.schedule import schedule, schedule_starts
from ..privacy.gaussian import noise_multiplier

STEPS = (1e-30, 1e30)
"""Between these an eta keeps all digits of the noise that it is multiplied with; nobody trains with another."""


def check_whole_run(name: str, budget: Any, given: GaussianSettings, eta: float = 1.0) -> None:
    """Raise where the settings, each checked by itself, make no whole run with a budget; no noise is computed."""
    if not STEPS[0] <= eta <= STEPS[1]:
        raise ConfigError(
            f"With equipoise.eta={eta:g} the noise of {name!r} would be rounded.", "Choose it nearer to 1."
        )
    rounds = given.rounds
    if rounds is None:
        raise ConfigError(
            f"With {name!r} the budget is for a whole run, and equipoise.gaussian.rounds does not say of how many "
            "rounds.",
            "Set it to num-server-rounds, or higher if rounds may be repeated.",
        )
    epsilons = budget if isinstance(budget, list) else [budget]
    if not epsilons or not all(is_finite(epsilon) and epsilon > 0 for epsilon in epsilons):
        raise ConfigError(
            f"Expected equipoise.budget={budget!r} to be the epsilon of a whole run: a number > 0, or one per client.",
            "For example 2. It cannot change over the rounds; equipoise.gaussian.noise_schedule can.",
        )
    if len(noise_pairs(given.noise_schedule, rounds)) > MOST_PARTS:
        raise ConfigError("The noise schedule has too many parts.", f"Use at most {MOST_PARTS}.")


def noise_pairs(noise_schedule: Any, rounds: int) -> Noise:
    """A noise schedule as pairs (relative noise, number of rounds), for as many rounds as the run has.

    >>> noise_pairs({"rounds": [1, 26], "values": [1.0, 0.8]}, 50), noise_pairs(1.0, 50)
    (((1.0, 25), (0.8, 25)), ((1.0, 50),))
    """
    starts = [start for start in schedule_starts(noise_schedule) if start <= rounds]
    levels = [row[0] for row in schedule(noise_schedule, starts, 1, "equipoise.gaussian.noise_schedule")]
    ends = [*(start - 1 for start in starts[1:]), rounds]
    return tuple((level, end - start + 1) for level, start, end in zip(levels, starts, ends, strict=True))


def asked_for(
    mechanism: str, given: GaussianSettings, bounds: Mapping[str, Any], epsilon: float, run: str
) -> Reservation:
    """What a run asks to reserve; its noise multiplier is 0, which no ledger takes, until ``priced``."""
    assert given.rounds is not None  # ``check_whole_run``
    return Reservation(
        run=run, mechanism=mechanism, epsilon=float(epsilon), delta=float(given.delta),
        unit=str(bounds["unit"]), sampling_rate=float(given.sampling_rate), sigma=0.0, rounds=given.rounds,
        noise_schedule=noise_pairs(given.noise_schedule, given.rounds), divisor=int(bounds["divisor"]),
    )  # fmt: skip


def priced(terms: Reservation) -> Reservation:
    """With the noise multiplier that its (epsilon, delta) needs."""
    sigma = noise_multiplier(
        terms.epsilon, terms.delta, terms.rounds, terms.sampling_rate, schedule=terms.noise_schedule
    )
    return replace(terms, sigma=sigma)


def check_same(reserved: Reservation, asked: Reservation) -> None:
    """Raise where a later message of a run asks for other terms than those that are reserved."""
    other = reserved.differences(asked)
    if other:
        raise PolicyError(
            f"The run has changed its {other[0].replace('_', ' ')} since its first release on this node: "
            f"{getattr(reserved, other[0])!r} is reserved, {getattr(asked, other[0])!r} is asked for.",
            "The terms of a run are fixed before it begins; start another run for others.",
        )


def release_settings(settings: ProtectionSettings, reserved: Reservation) -> ProtectionSettings:
    """The settings of a release with the reserved noise, and the node's own divisor."""
    gaussian = replace(
        settings.gaussian, divisor=reserved.divisor, rounds=reserved.rounds, sigmas=[[reserved.epsilon, reserved.sigma]]
    )
    return replace(settings, gaussian=gaussian)
