"""The server: checks every update, averages those that pass, goes on with momentum, evaluates on its own test data."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from equipoise.flower import Validated

from .task import Net, test_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The whole training; started again with the same equipoise.out, it goes on where it was."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    fedavg = FedAvgM(
        fraction_evaluate=0.0,  # accuracies on clients' data would leave without any protection
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        server_momentum=float(config["momentum"]),  # averages noise over rounds; what was released stays as it was
    )
    strategy = Validated(fedavg, config)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy and loss of the global model on test data that belongs to no client."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    accuracy, loss = test_model(model)
    return MetricRecord({"accuracy": accuracy, "loss": loss})
