"""The client: one step on all of its data, with noise that gives a guarantee; it sends that alone."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.flower import guard, protected_step

from .task import Net, load_data

app = ClientApp(mods=[guard])  # nothing leaves that protected_step did not make for the same message


@app.train()
def train(msg: Message, context: Context) -> Message:
    """One round on this node. Before it is called, the node has counted it, and reserved the whole run's budget."""
    node = context.node_config

    arrays = protected_step(
        Net(),
        lambda: load_data(int(node["partition-id"]), int(node["num-partitions"])),  # what fails in there stays private
        msg,
        context,
    )

    return Message(content=RecordDict({"arrays": arrays}), reply_to=msg)
