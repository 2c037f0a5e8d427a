"""The current leader, reported to a client that asked the wrong broker (KIP-951)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from klamm.apis.api_declaration import Broker, RequestContext
from klamm.errors import ErrorCode
from klamm.model import EndPoint, TopicPartition

WRONG_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
T = TypeVar("T")


class LeaderHints:
    """Collects the endpoints of the leaders that one response names."""

    __slots__ = ("_broker", "_listener", "endpoints")

    def __init__(self, broker: Broker, ctx: RequestContext) -> None:
        self._broker = broker
        self._listener = ctx.listener_name
        self.endpoints: dict[int, tuple[EndPoint, str | None]] = {}

    def current_leader(self, tp: TopicPartition, make: Callable[..., T]) -> T | None:
        """Return the leader of the metadata in the response's structure; its endpoint is collected."""
        snapshot = self._broker.metadata.snapshot
        state = snapshot.partition(tp.topic, tp.partition)
        if state is None:
            return None
        node = snapshot.brokers.get(state.leader)
        if node is not None and (endpoint := node.endpoint(self._listener)) is not None:
            self.endpoints[state.leader] = (endpoint, node.rack)
        return make(leader_id=state.leader, leader_epoch=state.leader_epoch)

    def node_endpoints(self, make: Callable[..., T]) -> list[T]:
        """The endpoints of all leaders that were named."""
        return [
            make(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=rack)
            for node_id, (endpoint, rack) in self.endpoints.items()
        ]
