"""What every artefact is: its title, what the paper claims by it, in our words, how a cell is judged and made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..attack.descent import Search
from ..engine.settings import Settings
from .records import Raw
from .tables import Found, accuracy, cap, defence, gaps
from .trends import clients, gradient_norm, layers, reconstructions, stepwise, sweeps, trade_off

AGREEMENT = (
    "A cell agrees when the paper's value lies in the 95 % prediction interval for one further seed, taken at least "
    "{least:g} and at most {most:g} {unit} to each side."
)


@dataclass(frozen=True)
class Artefact:
    """What is known of an artefact before anything is computed."""

    title: str
    claim: str
    rule: str


_ACCURACY = AGREEMENT.format(least=3, most=10, unit="points")
_DEFENCE = (
    f"{AGREEMENT.format(least=0.1, most=0.33, unit='(MSE, normalised units)')} For SSIM 1 and 3.3 points. A seed's "
    "value is the mean over the four images of the first mini-batch of each of its four clients, in the round after "
    "the last."
)
ARTEFACTS = {
    "accuracy-ls": Artefact(
        "Accuracy under the Laplace-scale calibration",
        "At every budget from 80 to 800 the learned distortion keeps more test accuracy than static Laplace noise, and "
        "at 80 it still trains where static noise does not.",
        _ACCURACY,
    ),
    "accuracy-pl": Artefact(
        "Accuracy under the privacy-leakage calibration",
        "The same for the budgets 0.96 to 0.995 of the leakage score, with distortions on an L2 annulus.",
        _ACCURACY,
    ),
    "defence-ls": Artefact(
        "InvGrad's errors under the Laplace-scale calibration",
        "InvGrad reconstructs about equally badly from learned and from static releases; SSIM is at most 6.3 %.",
        _DEFENCE,
    ),
    "defence-pl": Artefact(
        "InvGrad's errors under the privacy-leakage calibration",
        "The same for the budgets of the leakage score; SSIM is at most 5.8 %.",
        _DEFENCE,
    ),
    "gaps": Artefact(
        "Average gap in defence",
        "Averaged over the budgets, InvGrad's MSE and SSIM differ little between learned and static distortion.",
        AGREEMENT.format(least=0.1, most=0.33, unit="(MSE)") + " For SSIM 1 and 3.3 points.",
    ),
    "cap": Artefact(
        "Calibrated Averaged Performance",
        "Accuracy times reconstruction error, averaged over the budgets, is higher for the learned distortion.",
        AGREEMENT.format(least=0.1, most=0.33, unit="(accuracy as a fraction times MSE)"),
    ),
    "trade-off": Artefact(
        "Trade-off curves",
        "Accuracy against budget: the learned curve lies above the static one, most of all at strict budgets.",
        "A cell agrees when the learned distortion has the higher mean over seeds.",
    ),
    "clients": Artefact(
        "Training curves of the clients (Fashion-MNIST, LS 200 and PL 0.975)",
        "All four clients converge faster and further with the learned distortion.",
        "A cell agrees when the 95 % intervals of the gain in final accuracy and in mean accuracy over the curve both "
        "lie above zero.",
    ),
    "layers": Artefact(
        "Distortion of every tensor before and after learning (LS 200 and PL 0.98)",
        "Learning amplifies the distortion of conv2.w and conv3.w, reduces that of conv1.w, conv1.b, conv2.b and "
        "conv3.b and keeps that of fc; standard deviations change little. (The caption names conv3.b twice and conv3.w "
        "never; the amplified one is read as conv3.w. It names no budget.)",
        "A tensor is amplified or reduced when the mean absolute distortion changes by 5 % or more in the mean over "
        "seeds, at the weights after the last round, and kept otherwise; it agrees when that is the paper's word.",
    ),
    "reconstructions": Artefact(
        "InvGrad's reconstructions (LS 200 and PL 0.98)",
        "No recognisable image is reconstructed from either, and both look alike.",
        "A cell agrees when the mean SSIM is at most the highest of the paper's table. Public images, one trajectory.",
    ),
    "stepwise": Artefact(
        "Step-wise utility loss (LS 200)",
        "What one round's distortion adds to the loss is lower, and steadier, when it is learned.",
        "A cell agrees when the 95 % interval of learned minus static, averaged over rounds, lies below zero.",
    ),
    "gradient-norm": Artefact(
        "Average squared gradient norm of LS-Learn (600, 800, 1000)",
        "The smaller the budget, the larger the average squared gradient norm; at 600 it rebounds.",
        "A cell agrees when the 95 % interval of the difference lies above zero: of time averages between neighbouring "
        "budgets, and between the last tenth and the middle fifth of the rounds at 600.",
    ),
    "configuration": Artefact(
        "Configuration", "The paper's table of settings, beside the resolved configuration used here.", "No verdict."
    ),
    "sweeps": Artefact(
        "M and gamma swept (LS 200 and PL 0.98)",
        "The paper says that the number of inner steps M and their size gamma matter, and shows no sweep.",
        "No verdict: the paper has no values. M = 0 is static noise; M = 10 and gamma = 0.1 are the paper's.",
    ),
}


def configuration() -> Found:
    """The paper's configuration table beside the settings used here."""
    s, a = Settings(), Search()
    k = s.leakage
    paper_rows: list[tuple[str, str, Any, str]] = [
        ("backbone model", "LeNetZhu", f"{s.model}, 13,426 parameters", "stated"),
        ("clients K", "4", s.clients, "stated"),
        ("local-batch update steps", "1", s.local_steps, "stated"),
        ("local batch size", "4", s.batch, "stated"),
        ("optimiser", "FedSGD", "FedSGD: mean of the releases", "stated"),
        ("client learning rate eta", "not stated", s.eta, "fitted"),
        ("rounds T", "not stated", s.rounds, "fitted"),
        ("initialisation", "not stated", f"U(-{s.init_bound}, {s.init_bound})", "fitted"),
        ("LS sensitivity S", "clipping at 500 bounds it", s.sensitivity, "fitted; not a proved bound"),
        ("gradient clip C", "500", f"{s.clip:g} ({s.clip_norm.upper()})", "stated; the norm is a choice"),
        ("PL constants", "D 56, c_a 0.56, c_res 0.01, p 1/2, I 1600",
         f"D {k.D:g}, c_a {k.c_a}, c_res {k.c_res}, p {k.p}, I {k.iterations}", "stated"),
        ("inner steps M", "10", s.steps, "stated"),
        ("inner step size gamma", "0.1", s.lr, "stated"),
        ("inner optimiser", "SGD", "SGD on the round's own mini-batch", "stated"),
        ("negative norm lambda", "1e-5", f"{s.negative_norm:g}", "stated"),
        ("distortion range", "[l, u], u = 2 l", f"[l, {s.factor:g} l]", "stated"),
        ("attack", "InvGrad", "invgrad", "stated"),
        ("attack iterations", "1600", a.iterations, "stated"),
        ("attack optimiser, rate", "Adam, 1", f"{a.optimiser}, {a.lr:g}", "stated"),
        ("signed gradients, decay, box", "not stated", f"{a.signed}, {a.decay}, {a.boxed}", "choice: as published"),
        ("total variation", "1e-5", f"{a.tv:g}", "stated"),
        ("target batch", "4, the first of a converged round", "round T + 1, all clients", "round is a choice"),
        ("seed", "1", "1 to 8", "more seeds, for intervals"),
        ("training, validation, test images a client", "1K, 1.2K, 1.2K", "1,000, 1,250, 1,250", "by arithmetic"),
    ]  # fmt: skip
    rows = [{"setting": n, "paper": p, "ours": str(o), "status": t} for n, p, o, t in paper_rows]
    return {"rows": rows}


TABLES: dict[str, Callable[[Raw], Found]] = {
    "accuracy-ls": lambda raw: accuracy(raw, "LS"),
    "accuracy-pl": lambda raw: accuracy(raw, "PL"),
    "defence-ls": lambda raw: defence(raw, "LS"),
    "defence-pl": lambda raw: defence(raw, "PL"),
    "gaps": gaps,
    "cap": cap,
    "trade-off": trade_off,
    "clients": clients,
    "layers": layers,
    "reconstructions": reconstructions,
    "stepwise": stepwise,
    "gradient-norm": gradient_norm,
    "sweeps": sweeps,
}
"""How the cells of every artefact are made."""
