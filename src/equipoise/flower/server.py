"""The server's side: a strategy around any other that looks at every reply before it is averaged.

FedAvg would average a NaN, broadcast a shape of [1], count a weight of -1 or 1e12, and give up a round for one
wrong shape. ``Validated`` refuses each such reply by name and hands the rest to the strategy inside, which stays the
aggregator: FedAvg, the FedOpt family, or a robust one (FedMedian, Krum).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from ..errors import CheckpointError, ConfigError, LimitError
from ..ledger.lines import NO_REPLY
from ..mechanism.claims import of_budgets
from ..server.intake import MAX_WEIGHT, Intake, wrong_tensors
from .reply_checks import Reply, checked_reply, sound_evaluations
from .run_config import WEIGHT, read_terms
from .server_folder import ServerFolder

log = logging.getLogger("flwr.equipoise")

Evaluation = Callable[[int, ArrayRecord], MetricRecord | None]
_MEMORY = ("m_t", "v_t", "momentum_vector")  # what Flower's strategies carry from round to round
_STATE = (*_MEMORY, "current_arrays")


class Validated(Strategy):
    """``strategy``, given only replies that passed every check.

    ``run_config`` is the server context's: it holds the mechanism, the budget and the limit on releases. A round with
    fewer than ``min_clients`` good replies is void: the model stays as it was. With ``folder`` (or ``equipoise.out``)
    the run keeps a ledger, metrics, a checkpoint and what ``equipoise audit`` needs there, and ``start`` goes on from
    it. ``seeded`` accepts replies with reproducible noise: for experiments.
    """

    def __init__(
        self,
        strategy: Strategy,
        run_config: Mapping[str, Any],
        *,
        folder: Path | str | None = None,
        min_clients: int = 1,
        max_weight: float = MAX_WEIGHT,
        seeded: bool = False,
    ):
        if not isinstance(strategy, Strategy):
            raise ConfigError(
                f"Expected a Flower strategy, got {type(strategy).__name__}.", "Use Validated(FedAvg(), ...)."
            )
        if min_clients < 1 or not max_weight > 0:
            raise ConfigError("Expected min_clients >= 1 and max_weight > 0.", "1 and 1e7 are the defaults.")
        self.strategy, self.terms = strategy, read_terms(run_config)
        if getattr(strategy, "weighted_by_key", WEIGHT) != WEIGHT:
            raise ConfigError(
                f"The strategy weighs by {strategy.weighted_by_key!r}, expected {WEIGHT!r}.",  # type: ignore[attr-defined]
                "Leave weighted_by_key out.",
            )
        self.min_clients, self.max_weight, self.seeded = min_clients, max_weight, seeded
        where = Path(folder) if folder else self.terms.out
        self.folder = ServerFolder(where, self.terms, seeded, type(strategy).__name__)
        self.refused: dict[int, dict[str, str]] = {}
        self.stopped: str | None = None
        self._past = 0  # rounds of earlier servers
        self._trained = 0  # the last round that was not stopped
        self._clients: list[str] = []
        self._evaluators: set[str] = set()
        self._tensors: dict[str, Tensor] = {}

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
        self._clients = clients
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, refuse by name, and let the strategy average the rest."""
        round_number = self._past + server_round
        if self.stopped:
            return None, None
        messages, clients = _of_clients(replies), set(self._clients)
        intake = Intake(self._tensors, round_number, clients=clients, max_weight=self.max_weight, averages=False)
        result = [checked_reply(message, intake, self.terms, self.seeded) for message in messages]
        good = [(message, reply) for message, reply in zip(messages, result, strict=True) if reply.reason is None]
        silent = sorted(clients - {reply.client for reply in result})
        self._note(round_number, result, silent)
        arrays, metrics = self._average(round_number, good) if len(good) >= self.min_clients else (None, None)
        if arrays is not None:
            self._tensors = dict(arrays.to_torch_state_dict())
        else:
            log.warning("Round %d is void: %d of at least %d replies.", round_number, len(good), self.min_clients)
        refused = self.refused.get(round_number, {})
        row = {"round": round_number, "accepted": len(good), "refused": refused, "void": arrays is None}
        self.folder.metrics({**row, **(metrics or {})})
        self.folder.snapshot(self._tensors, round_number)
        self.folder.checkpoint({**_named("model", self._tensors), **self._memory()}, round_number)
        return arrays, metrics

    def _note(self, round_number: int, results: list[Reply], silent: list[str]) -> None:
        bad = [*((reply.client, reply.reason) for reply in results if reply.reason), *((c, NO_REPLY) for c in silent)]
        for client, reason in bad:
            log.warning("Round %d: refused client %s: %s", round_number, client, reason)
        if bad:
            self.refused[round_number] = {client: str(reason) for client, reason in bad}
        absent = [{"client": client, "accepted": False, "reason": NO_REPLY} for client in silent]
        self.folder.answered([*(reply.entry() for reply in results), *absent], round_number)

    def _average(
        self, round_number: int, good: list[tuple[Message, Reply]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's own aggregation, of messages rebuilt from what was checked; void if it makes no sense."""
        key = getattr(self.strategy, "arrayrecord_key", "arrays")
        for message, reply in good:
            ordered = ArrayRecord({name: reply.tensors[name] for name in self._tensors})  # some strategies go by place
            message.content = RecordDict({key: ordered, "metrics": MetricRecord(dict(reply.metrics))})
        before = {name: getattr(self.strategy, name) for name in _STATE if hasattr(self.strategy, name)}
        try:
            arrays, metrics = self.strategy.aggregate_train(round_number, [message for message, _ in good])
            new = None if arrays is None else self._sound(arrays)
        except Exception as error:  # a strategy may refuse as it likes; the round is void, the run goes on
            new = f"is none: {type(error).__name__}: {error}"
        if new is None or isinstance(new, str):
            log.error("Round %d: the result of %s %s", round_number, type(self.strategy).__name__, new or "is none")
            for name, value in before.items():  # nothing of a void round may stay
                setattr(self.strategy, name, value)
            return None, None
        return ArrayRecord(new), metrics

    def _sound(self, arrays: ArrayRecord) -> dict[str, Tensor] | str:
        """The strategy's result in the form of the model, or what is wrong with it or with what it remembers."""
        like = self._tensors
        new = {n: _like(t, like[n]) if n in like else t for n, t in arrays.to_torch_state_dict().items()}
        odd = [name for name, tensor in self._memory().items() if not torch.isfinite(tensor).all()]
        wrong = wrong_tensors(new, like, sum(tensor.nbytes for tensor in like.values()))
        return wrong or (f"comes with {odd[0]!r}, which is not finite" if odd else new)

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
        """Flower's own loop, from the checkpoint if there is one; ``num_rounds`` counts from the very first round."""
        try:
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
        last = done.evaluate_metrics_serverapp.get(rounds)
        about = {
            "rounds": rounds,
            "stopped": self.stopped,
            "refused": {str(round_number): reasons for round_number, reasons in self.refused.items()},
            **(dict(last) if last is not None else {}),
        }
        self.folder.result(dict(done.arrays.to_torch_state_dict()), about)
        return done

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
        good, refused = sound_evaluations(_of_clients(replies), self._evaluators, WEIGHT, self.max_weight)
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
        log.info("\t├──> At least %d good replies, weights up to %g", self.min_clients, self.max_weight)
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
