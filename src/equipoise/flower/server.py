"""The server's side: a strategy around any other that looks at every reply before it is averaged.

FedAvg would average a NaN or a 3e38, broadcast a shape of [1], count a weight of -1 or 1e12, and give up a round for
one wrong shape. ``Validated`` refuses each such reply by name and hands the rest to the strategy inside, which stays
the aggregator: FedAvg, the FedOpt family, or a robust one (FedMedian, FedTrimmedAvg, Krum).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from ..errors import CheckpointError, ConfigError, FleetError, LimitError
from ..ledger.lines import NO_REPLY
from ..mechanism.claims import of_budgets
from ..server.intake import Intake, wrong_tensors
from ..server.limits import MAX_WEIGHT, MAX_WEIGHT_RATIO, ROUNDING, Limits, largest_distortion, wrong_norm
from .reply_checks import Reply, checked_reply, settled, sound_evaluations
from .robust import least_replies
from .run_config import WEIGHT, read_terms
from .server_folder import ServerFolder

log = logging.getLogger("flwr.equipoise")

Evaluation = Callable[[int, ArrayRecord], MetricRecord | None]
_MEMORY = ("m_t", "v_t", "momentum_vector")  # what Flower's strategies carry from round to round
_STATE = (*_MEMORY, "current_arrays")


class Validated(Strategy):
    """``strategy``, given only replies that passed every check.

    ``run_config`` is the server context's: it holds the mechanism, the budget and the limit on releases. A round with
    fewer than ``min_clients`` good replies is void: the model stays as it was; likewise with fewer than a robust
    strategy needs. With ``folder`` (or ``equipoise.out``) the run keeps a ledger, metrics, the last checkpoints and
    what ``equipoise audit`` needs there, and ``start`` goes on from it. ``seeded`` accepts replies with reproducible
    noise: for experiments.

    The bounds, each a refusal by name: ``max_weight``; ``max_norm``, of the L2 norm of an update, by default 100 times
    (L2 norm of the model that the run began with + largest expected L2 norm of the distortion asked for + 1);
    ``max_weight_ratio``, of a weight to the lower median of the round's good replies. ``math.inf`` turns one off. A
    result of the strategy beyond ``max_norm`` makes the round void.
    """

    def __init__(
        self,
        strategy: Strategy,
        run_config: Mapping[str, Any],
        *,
        folder: Path | str | None = None,
        min_clients: int = 1,
        max_weight: float = MAX_WEIGHT,
        max_norm: float | None = None,
        max_weight_ratio: float = MAX_WEIGHT_RATIO,
        seeded: bool = False,
    ):
        if not isinstance(strategy, Strategy):
            raise ConfigError(
                f"Expected a Flower strategy, got {type(strategy).__name__}.", "Use Validated(FedAvg(), ...)."
            )
        if min_clients < 1:
            raise ConfigError(f"Expected min_clients={min_clients!r} to be >= 1.", "1 is the default.")
        self.limits = Limits(max_weight, max_norm, max_weight_ratio)
        self.strategy, self.terms = strategy, read_terms(run_config)
        key = getattr(strategy, "weighted_by_key", WEIGHT)
        if key != WEIGHT:
            raise ConfigError(
                f"The strategy weighs by {key!r}, and replies name their weight {WEIGHT!r}.",
                "Leave weighted_by_key as it is.",
            )
        self.min_clients, self.seeded = min_clients, seeded
        where = Path(folder) if folder else self.terms.out
        self.folder = ServerFolder(where, self.terms, seeded, type(strategy).__name__)
        self.refused: dict[int, dict[str, str]] = {}
        self.stopped: str | None = None
        self._past = 0  # rounds of earlier servers
        self._trained = 0  # the last round that was not stopped
        self._tried = self._good = 0  # rounds of this start: those that asked somebody, those that were not void
        self._reasons: Counter[str] = Counter()  # of this start: why replies were refused and rounds void
        self._clients: list[str] = []
        self._evaluators: set[str] = set()
        self._tensors: dict[str, Tensor] = {}
        self._first: dict[str, Tensor] = {}  # what a run begins with: its size is no client's doing

    # -- a round -----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the clients that the strategy chooses, unless one of them has reached its limit."""
        round_number = self._past + server_round
        self._tensors = dict(arrays.to_torch_state_dict())
        self._clients = []
        if self.stopped:
            return []
        messages = list(self.strategy.configure_train(round_number, arrays, config, grid))
        clients = [str(message.metadata.dst_node_id) for message in messages]
        try:
            self.folder.permit(clients, round_number)
        except LimitError as error:
            self.stopped = str(error)
            log.error("%s", error)
            return []
        self.folder.asked(clients, round_number)
        self._trained = round_number
        self._tried += bool(clients)
        self._clients = clients
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, refuse by name, and let the strategy average the rest."""
        round_number = self._past + server_round
        if self.stopped:
            return None, None
        clients, bounds = set(self._clients), asdict(self.limits)
        bounds["max_norm"] = self.limits.norm(self._first or self._tensors, self._distortion(round_number))
        intake = Intake(self._tensors, round_number, clients=clients, averages=False, **bounds)
        checked = [checked_reply(message, intake, self.terms, self.seeded) for message in _of_clients(replies)]
        result = settled(checked, intake)
        if len(result) < len(checked):
            log.warning("Round %d: %d refused replies were then repaired.", round_number, len(checked) - len(result))
        good = [reply for reply in result if reply.reason is None]
        self._note(round_number, result, sorted(clients - {reply.client for reply in result}))
        arrays, metrics = self._average(round_number, good, intake.max_norm)
        if arrays is not None:
            self._tensors = dict(arrays.to_torch_state_dict())
            self._good += 1
        refused = self.refused.get(round_number, {})
        row = {"round": round_number, "accepted": len(good), "refused": refused, "void": arrays is None}
        self.folder.metrics({**row, **(metrics or {})})
        self.folder.snapshot(self._tensors, round_number)
        state = {**_named("model", self._tensors), **self._memory()}
        self.folder.checkpoint(state, round_number, changed=arrays is not None)
        return arrays, metrics

    def _distortion(self, round_number: int) -> float:
        """The largest expected L2 norm of a distortion that this round asks for."""
        parameters = sum(t.numel() for t in self._tensors.values() if t.is_floating_point())
        budgets = self.terms.budgets(round_number)
        return largest_distortion(self.terms.settings, self.terms.mechanism, budgets, parameters)

    def _note(self, round_number: int, results: list[Reply], silent: list[str]) -> None:
        bad = [*((reply.client, str(reply.reason)) for reply in results if reply.reason)]
        bad += [(client, NO_REPLY) for client in silent]
        for client, reason in bad:
            log.warning("Round %d: refused client %s: %s", round_number, client, reason)
        if bad:
            self.refused[round_number] = dict(bad)
            self._reasons.update(self.refused[round_number].values())
        absent = [{"client": client, "accepted": False, "reason": NO_REPLY} for client in silent]
        self.folder.answered([*(reply.entry() for reply in results), *absent], round_number)

    def _average(
        self, round_number: int, good: list[Reply], max_norm: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's own aggregation, of messages rebuilt from what was checked; void if it makes no sense."""
        name, metrics, least = type(self.strategy).__name__, None, least_replies(self.strategy)
        before = {key: getattr(self.strategy, key) for key in _STATE if hasattr(self.strategy, key)}
        new: dict[str, Tensor] | str
        if len(good) < self.min_clients:
            new = f"{len(good)} of at least {self.min_clients} good replies"
        elif len(good) < least:
            new = f"{len(good)} good replies, and {name} needs {least} to leave out a wrong one"
        else:
            try:
                arrays, metrics = self.strategy.aggregate_train(round_number, self._rebuilt(good))
                new = f"{name} has no result" if arrays is None else self._sound(arrays, max_norm)
            except Exception as error:  # a strategy may refuse as it likes; the round is void, the run goes on
                new = f"{name} has no result: {type(error).__name__}: {str(error).rstrip('.')}"
        if not isinstance(new, str):
            return ArrayRecord(new), metrics
        log.error("Round %d is void: %s.", round_number, new)
        self._reasons[new] += 1
        for key, value in before.items():  # nothing of a void round may stay
            setattr(self.strategy, key, value)
        return None, None

    def _rebuilt(self, good: list[Reply]) -> list[Message]:
        """Messages that hold what was checked and nothing else."""
        key = getattr(self.strategy, "arrayrecord_key", "arrays")
        for reply in good:
            ordered = ArrayRecord({name: reply.tensors[name] for name in self._tensors})  # some strategies go by place
            reply.message.content = RecordDict({key: ordered, "metrics": MetricRecord(dict(reply.metrics))})
        return [reply.message for reply in good]

    def _sound(self, arrays: ArrayRecord, max_norm: float) -> dict[str, Tensor] | str:
        """The strategy's result in the form of the model, or what is wrong with it or with what it remembers."""
        like = self._tensors
        new = {n: _like(t, like[n]) if n in like else t for n, t in arrays.to_torch_state_dict().items()}
        odd = [name for name, tensor in self._memory().items() if not torch.isfinite(tensor).all()]
        wrong = wrong_tensors(new, like, sum(tensor.nbytes for tensor in like.values()))
        wrong = wrong or wrong_norm(new, like, max_norm * ROUNDING)
        wrong = wrong or (f"comes with {odd[0]!r}, which is not finite" if odd else None)
        return new if wrong is None else f"the result of {type(self.strategy).__name__} {wrong}"

    # -- the run -----------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluation | None = None,
    ) -> Result:
        """Flower's own loop, from the checkpoint if there is one; ``num_rounds`` counts from the very first round.

        A start of which every round was void ends with a ``FleetError``, after the result was written.
        """
        self._tried = self._good = 0
        self._reasons.clear()
        try:
            self._first = dict(initial_arrays.to_torch_state_dict())
            initial_arrays = self._resume(initial_arrays)
            Intake(dict(initial_arrays.to_torch_state_dict()), 0, averages=False)  # a broken model is an error at once
            self.folder.begin(initial_arrays.to_torch_state_dict(), self._past, num_rounds)
            evaluate = None if evaluate_fn is None else self._evaluated(evaluate_fn)
            left = max(0, num_rounds - self._past)
            done = super().start(grid, initial_arrays, left, timeout, train_config, evaluate_config, evaluate)
            if not done.arrays:  # no round changed the model
                done.arrays = initial_arrays
            return self._finish(done, self._trained if self.stopped else self._past + left)
        finally:
            self.folder.close()

    def _resume(self, initial: ArrayRecord) -> ArrayRecord:
        result = self.folder.open()
        if result is None:
            return initial
        tensors, notes = result
        self._past = self._trained = notes["round"]
        self.refused = self.folder.refusals()
        log.info("Going on after round %d.", self._past)
        model = _part("model", tensors)
        if {n: (t.shape, t.dtype) for n, t in model.items()} != {
            n: (t.shape, t.dtype) for n, t in initial.to_torch_state_dict().items()
        }:
            raise CheckpointError("The checkpoint holds another model.", "Use another folder, or the same model.")
        for name in _MEMORY:
            part = {key: tensor.numpy() for key, tensor in _part(name, tensors).items()}
            if part:
                listed = name == "momentum_vector"
                setattr(self.strategy, name, [part[str(i)] for i in range(len(part))] if listed else part)
        return ArrayRecord({name: model[name] for name in initial})

    def _memory(self) -> dict[str, Tensor]:
        results: dict[str, Tensor] = {}
        for name in _MEMORY:
            value = getattr(self.strategy, name, None)
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
            results |= {f"{name}/{key}": torch.from_numpy(np.array(array)) for key, array in pairs}
        return results

    def _evaluated(self, evaluate: Evaluation) -> Evaluation:
        def noted(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if self.stopped:
                return None
            result = evaluate(self._past + server_round, arrays)
            if result is not None:  # the row of the round that a resumed run begins with was cut off with its file
                self.folder.metrics({"round": self._past + server_round, "evaluation": dict(result)})
            return result

        return noted

    def _finish(self, done: Result, rounds: int) -> Result:
        """Rounds numbered from the very first; the result file."""
        for part in (done.train_metrics_clientapp, done.evaluate_metrics_clientapp, done.evaluate_metrics_serverapp):
            moved = {self._past + round_number: record for round_number, record in part.items()}
            part.clear()
            part.update(moved)
        last, failed = done.evaluate_metrics_serverapp.get(rounds), self._failure()
        about = {
            "rounds": rounds,
            "stopped": self.stopped,
            "failed": None if failed is None else failed.cause,
            "refused": {str(round_number): reasons for round_number, reasons in self.refused.items()},
            **(dict(last) if last is not None else {}),
        }
        self.folder.result(dict(done.arrays.to_torch_state_dict()), about)
        if failed is not None:
            raise failed
        return done

    def _failure(self) -> FleetError | None:
        """What to say of a start that asked for rounds and got none; a run must not end as if it had worked."""
        if self._good or not self._tried:
            return None
        often = "; ".join(f"{reason} ({times}x)" for reason, times in self._reasons.most_common(3))
        return FleetError(
            f"No round was accepted, of {self._tried} that were asked for: the model is as it was. Reasons: {often}.",
            "Look at the logs of the nodes: a node tells the server that it refused, and not why.",
        )

    # -- what is left to the strategy --------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does, until the run is stopped."""
        if self.stopped:
            return []
        messages = list(self.strategy.configure_evaluate(self._past + server_round, arrays, config, grid))
        self._evaluators = {str(message.metadata.dst_node_id) for message in messages}
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does, of the replies that make sense."""
        round_number = self._past + server_round
        good, refused = sound_evaluations(_of_clients(replies), self._evaluators, self.limits)
        for client, reason in refused.items():
            log.warning("Round %d: refused the evaluation of client %s: %s", round_number, client, reason)
        try:
            return self.strategy.aggregate_evaluate(round_number, good) if good else None
        except Exception as error:  # whatever a strategy may make of numbers that are single and finite
            log.error("Round %d: the strategy could not average the evaluations: %s", round_number, error)
            return None

    def summary(self) -> None:
        """What is asked, what is checked, and what is claimed."""
        mechanism, measure = self.terms.mechanism, self.terms.settings.measure(self.terms.mechanism)
        log.info("\t├──> Protection: %s, budget %s, norm %s", mechanism.name, self.terms.budget, mechanism.norm)
        if measure is not None and not mechanism.formal:  # there the scale follows from each client's batch
            bounds = sorted({measure.lower(budget) for budget in self.terms.budgets(self._past + 1)})
            what = "lower bound" if mechanism.on_sphere else "noise scale"
            log.info("\t├──> %s of the next round: %s", what, ", ".join(f"{bound:.6g}" for bound in bounds))
        limits = self.limits
        log.info("\t├──> At least %d good replies", max(self.min_clients, least_replies(self.strategy)))
        log.info("\t├──> Weights up to %g, and %g medians", limits.max_weight, limits.max_weight_ratio)
        most = "100 times that of model and noise" if limits.max_norm is None else f"{limits.max_norm:g}"
        log.info("\t├──> L2 norm of an update: at most %s", most)
        log.info("\t├──> Releases of a client: at most %s", self.terms.release_limit or "any number")
        if self.terms.release_limit:
            log.warning(
                "A client is counted by its node id: without SuperNode authentication a restart gives a new one"
            )
        log.info("\t├──> %s", of_budgets([mechanism], self.seeded))
        log.info("\t└──> Aggregation: %s", type(self.strategy).__name__)
        self.strategy.summary()


def _of_clients(replies: Iterable[Message]) -> list[Message]:
    """Without those of the SuperLink, which answers for a node that is lost: that is a client without a reply."""
    return [m for m in replies if not (m.has_error() and m.metadata.src_node_id == SUPERLINK_NODE_ID)]


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """A mean of equal whole numbers may end just below them."""
    whole = tensor.is_floating_point() and not other.is_floating_point()
    return (tensor.round() if whole else tensor).to(other.dtype)


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")}
