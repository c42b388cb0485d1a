"""How losses and gradients of R sets of parameters are computed: several routes to the same numbers.

=========  ======================================================================  ====================================
route      what it does                                                            for
=========  ======================================================================  ====================================
layers     hand-written kernels, all replicas in each (``layered.py``)             plain sequences of known layers
vmap       ``torch.func``, all replicas in each kernel (``vmapped.py``)            what torch.func can run
loop       plain PyTorch, replica after replica (``looped.py``)                    any model
threads    the same, replicas dealt to workers with one thread each                any model, small mini-batches, a CPU
=========  ======================================================================  ====================================

On a GPU the engine captures whole rounds of any route as a graph, so that launching their kernels costs nothing.
``default_route`` is a rule, so that seeded commands give equal bits; ``measured_route`` tries them all.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from .. import workers
from ..errors import ModelError
from . import layers
from .features import FeatureModel
from .layered import Layered
from .layout import Layout
from .looped import Looped
from .objective import Inputs, Loss, Objective, map_inputs
from .vmapped import Vmapped

Name = Literal["layers", "vmap", "loop", "threads"]
NAMES: tuple[Name, ...] = get_args(Name)
SHARED: tuple[Name, ...] = ("layers", "vmap")
"""Routes whose kernels see several replicas at once."""

SMALL, LIGHT, DEALT = 16, 1 << 20, 4
"""Kernels on fewer examples than ``SMALL``, of models with fewer parameters than ``LIGHT``, are too short for several
threads each; a worker takes ``DEALT`` replicas at least, as it takes time to wake up."""


class Route(Protocol):
    """One way to compute; inputs and labels are ``[R, B, ...]``, parameters ``[R, P]`` in the order of ``layout``."""

    layout: Layout

    def at(self, inputs: Inputs, labels: Tensor) -> Objective: ...

    def each(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor: ...

    def outputs(self, params: Tensor, inputs: Inputs) -> Tensor: ...

    def differentiable(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor: ...


def built(name: Name, model: nn.Module, loss: Loss | None, device: torch.device, fixed: Mapping[str, Tensor]) -> Route:
    """The route of that name for a model."""
    if name == "layers":
        known = _layers(model, loss, device)
        if known is None:
            raise ModelError(
                "The model is no plain sequence of layers that have hand-written kernels under cross-entropy.",
                "Leave route out, or set it to 'loop', which runs any model.",
            )
        return Layered(*known, model.features if isinstance(model, FeatureModel) else None)
    layout = Layout.of(model)
    if name == "vmap":
        return Vmapped(model, layout, loss, fixed)
    return Looped(model, layout, loss, fixed, threaded=name == "threads")


def default_route(
    model: nn.Module,
    loss: Loss | None = None,
    device: torch.device | str = "cpu",
    *,
    batch: int | None = None,
    replicas: int | None = None,
) -> Name:
    """The route by rule: for a model, a device, how large mini-batches are, and how many clients one federation has.

    None: small ones, and many. What else is trained beside that federation plays no part, so that it trains alike.
    Hand-written layers where there are some. Else on a GPU ``vmap``, if torch.func can run the model; on a CPU plain
    PyTorch, where vmap is slower on most models (docs/results.md has the measurements).

    >>> default_route(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), default_route(nn.Linear(4, 2), replicas=1)
    ('layers', 'loop')
    """
    device = torch.device(device)
    if _layers(model, loss, device) is not None:
        return "layers"
    if device.type == "cuda":
        recurrent = [part.training for part in model.modules() if isinstance(part, nn.RNNBase)]
        return "loop" if recurrent and all(recurrent) else "vmap"  # in eval mode cuDNN takes no gradient of them
    many = replicas is None or replicas >= DEALT * workers.count() > DEALT
    light = sum(parameter.numel() for parameter in model.parameters()) < LIGHT
    return "threads" if many and light and (batch or 1) < SMALL else "loop"


def measured_route(
    model: nn.Module,
    loss: Loss | None,
    inputs: Inputs,
    labels: Tensor,
    *,
    replicas: int,
    alone: bool = False,
    seconds: float = 0.3,
) -> tuple[Name, dict[Name, float]]:
    """The fastest route for gradients of this many replicas, and the seconds that each took.

    Args:
        model: in which state it is tried.
        loss: of a batch; cross-entropy unless given.
        inputs: one mini-batch ``[B, ...]``, where the model is.
        labels: its labels ``[B]``.
        replicas: how many sets of parameters are computed with at once.
        alone: whether it is gradients of single examples that are asked for.
        seconds: how long each route is tried.

    Returns:
        Its name, and the least time of one call by route; a route that cannot run the model is left out.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x, y = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])
    >>> "layers" in measured_route(model, None, x, y, replicas=2, seconds=0.01)[1]
    True
    """
    x, y = (map_inputs(lambda part: part.expand(replicas, *part.shape).contiguous(), part) for part in (inputs, labels))
    took: dict[Name, float] = {}
    for name in NAMES:
        if name == "threads" and labels.device.type != "cpu":
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch.func warns of slow fallbacks; here they are timed
                took[name] = _time(built(name, model, loss, labels.device, {}), model, x, y, seconds, alone)
        except Exception:  # this route does not run this model: plain PyTorch says what is wrong with it, if anything
            if name == "loop":
                raise
    return min(took, key=lambda name: took[name]), took


def _time(route: Route, model: nn.Module, inputs: Inputs, labels: Tensor, seconds: float, alone: bool) -> float:
    params = route.layout.flatten(dict(model.named_parameters())).repeat(len(labels), 1)
    gradient, least, end = route.at(inputs, labels).gradient, float("inf"), time.perf_counter() + seconds

    def task() -> Tensor:
        return route.each(params, inputs, labels) if alone else gradient(params)

    calls = 0
    while calls < 3 or time.perf_counter() < end:
        least, calls = min(least, _seconds(task, labels.device)), calls + 1
    return least


def _seconds(task: Callable[[], Tensor], device: torch.device) -> float:
    started = time.perf_counter()
    task()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _layers(model: nn.Module, loss: Loss | None, device: torch.device) -> tuple[list[layers.Layer], Layout] | None:
    trained = model.head_model() if isinstance(model, FeatureModel) else model
    return layers.build(trained, device) if loss is None else None
