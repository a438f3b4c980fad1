"""A fleet of Flower that trains the digits model: the client is poetc's C, the server averages the weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import poetc
from poetc.flower import CheckedFedAvg, client_app, initial_arrays, train_config


def directory_of(context: Context) -> str:
    """The solved directory of this device: its own, or that of the whole run."""
    return str(context.node_config.get("directory", context.run_config["directory"]))


def data_of(context: Context) -> Sequence[Any]:
    """The samples of this device: in a simulation, each has an equal share of one file."""
    number, count = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    with np.load(str(context.run_config["data"])) as arrays:
        return [arrays["train_x"][number::count], arrays["train_y"][number::count]]


client = client_app(directory_of, data_of, validation_split=0.2, normalize="0..255")
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and write the ONNX file with the weights of the last one."""
    directory = str(context.run_config["directory"])
    result = CheckedFedAvg(fraction_evaluate=0.5).start(
        grid=grid,
        initial_arrays=initial_arrays(directory),
        num_rounds=int(context.run_config["rounds"]),
        train_config=train_config(directory),
        evaluate_config=train_config(directory),
    )
    if not result.arrays:
        raise SystemExit("no client has trained: the lines above have the reason of each")
    weights = {name: array.numpy() for name, array in result.arrays.items()}
    poetc.open_solution(directory).export(weights, str(context.run_config["out"]), force=True)
