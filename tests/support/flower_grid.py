"""Flower's server and its clients in one process: messages go to the client apps one after the other."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """Client apps by node, each with its node config. `run_config` is that of the run.

    `sent_bytes` and `received_bytes` add up the arrays of all messages to the clients and back.
    """

    def __init__(
        self,
        apps: Mapping[int, ClientApp],
        run_config: Mapping[str, Any] | None = None,
        node_configs: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # as Flower's runtime sets them
        self._apps, self._replies = dict(apps), dict[str, Message]()
        self._contexts = {
            node: Context(1, node, dict((node_configs or {}).get(node, {})), RecordDict(), dict(run_config or {}))
            for node in apps
        }
        self.sent_bytes = self.received_bytes = 0
        self.received_words = 0  # bytes of SecAgg+'s masked vectors
        self.errors: list[str] = []

    def replace(self, node: int, app: ClientApp) -> None:
        """Another app for one node."""
        self._apps[node] = app

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            name = message.metadata.__dict__["_message_id"] = f"message {len(self._replies)}"
            self.sent_bytes += _array_bytes(message)
            reply = self._apps[node](copy.deepcopy(message), self._contexts[node])
            if reply.has_error():
                self.errors.append(str(reply.error.reason))
            else:
                self.received_bytes += _array_bytes(reply)
                record = reply.content.config_records.get("secaggplus_configs", {})
                self.received_words += sum(map(len, record.get("masked_params", [])))  # type: ignore[arg-type]
            self._replies[name] = reply
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies[name] for name in message_ids]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return list(self.pull_messages(self.push_messages(messages)))


def _array_bytes(message: Message) -> int:
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
