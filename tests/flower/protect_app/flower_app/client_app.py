"""The client: trains on its own data, distorts the result, and sends that alone."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader

from equipoise.flower import guard, protect

from .task import Net, load_data, train_model

app = ClientApp(mods=[guard])  # nothing leaves that protect did not make for the same message


@app.train()
def train(msg: Message, context: Context) -> Message:
    """One round on this node."""
    config, node = context.run_config, context.node_config
    data = load_data(int(node["partition-id"]), int(node["num-partitions"]))
    batches = DataLoader(data, batch_size=int(config["batch-size"]), shuffle=True)
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    train_model(model, batches, epochs=int(config["local-epochs"]), lr=float(config["lr"]))

    arrays = protect(model, batches, msg, context)  # in place of ArrayRecord(model.state_dict())

    metrics = MetricRecord({"num-examples": len(data)})  # the weight of this update
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
