"""The server's part of SecAgg+ for changes of weights: they need a smaller clipping range than the weights do."""

from __future__ import annotations

from typing import Any

from flwr.common import FitIns, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

from poetc.flower import _messages


class FedAvgOfChanges(FedAvg):  # type: ignore[misc]  # mypy reads no flwr
    """Flower's FedAvg of its older interface, for `SecAggPlusWorkflow`, with clients that send changes.

    Clients must all be of poetc. The average of the changes is added to the weights that the round began with.
    """

    _weights: Parameters

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        """The requests of a round, which ask for changes."""
        self._weights = parameters
        asked = super().configure_fit(server_round, parameters, client_manager)
        return [(proxy, FitIns(ins.parameters, {**ins.config, _messages.CHANGE: True})) for proxy, ins in asked]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """The weights after a round, from the average of the changes."""
        change, metrics = super().aggregate_fit(server_round, results, failures)
        if change is None:
            return None, metrics
        pairs = zip(parameters_to_ndarrays(self._weights), parameters_to_ndarrays(change), strict=True)
        return ndarrays_to_parameters([(before + by).astype(before.dtype) for before, by in pairs]), metrics
