"""Clients of Flower, a framework for federated learning, that train with poetc's C. Needs the extra `poetc[flower]`.

A Flower app names `client_app(...)` as its client. Its server starts with `initial_arrays` and `train_config`.
"""

from poetc.flower.app import Config, DataOf, client_app, initial_arrays, train_config
from poetc.flower.gateway import gateway_app
from poetc.flower.strategy import CheckedFedAvg, FedAvgOfChanges

__all__ = [
    "CheckedFedAvg",
    "Config",
    "DataOf",
    "FedAvgOfChanges",
    "client_app",
    "gateway_app",
    "initial_arrays",
    "train_config",
]
