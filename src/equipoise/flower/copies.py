"""What an app gets in place of what came to its node, so that the node can go on reading what came.

Flower hands the app the very objects from which it then makes the reply and what it keeps of the node: whoever receives
a reply, under which group, by which policy the next message is judged, and how often this node has released.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message


def copy_message(msg: Message) -> Message:
    """The same message in other objects, down to the records; the bytes of arrays cannot be changed."""
    records = {
        name: copy_arrays(record) if isinstance(record, ArrayRecord) else record.copy()
        for name, record in msg.content.items()
    }
    return make_message(metadata=copy.copy(msg.metadata), content=RecordDict(records))


def copy_arrays(arrays: ArrayRecord) -> ArrayRecord:
    """Other objects around the same bytes."""
    return ArrayRecord({name: Array(a.dtype, tuple(a.shape), a.stype, bytes(a.data)) for name, a in arrays.items()})


def copy_context(context: Context, state: RecordDict, run_config: Mapping[str, Any]) -> Context:
    """The same context with this state and run config; what an app writes into its configs stays there."""
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=dict(context.node_config),
        state=state,
        run_config=dict(run_config),
        series_id=context.series_id,
    )


def state_with(state: RecordDict, name: str, record: ConfigRecord | None) -> RecordDict:
    """The records of a state, except that ``name`` is a copy of this one, or nothing.

    >>> before = RecordDict({"mine": ConfigRecord({"a": 1}), "count": ConfigRecord({"releases": 0})})
    >>> after = state_with(before, "count", ConfigRecord({"releases": 7}))
    >>> after["count"]["releases"], before["count"]["releases"], list(state_with(before, "count", None))
    (7, 0, ['mine'])
    """
    others = {key: value for key, value in state.items() if key != name}
    return RecordDict(others if record is None else {**others, name: record.copy()})
