"""Where the leader is now, told to a client that came to the wrong broker (KIP-951)."""

from __future__ import annotations

from typing import Final

from klamm.apis.registry import Broker, RequestContext
from klamm.errors import ErrorCode
from klamm.metadata import PartitionState
from klamm.model import EndPoint, TopicPartition

WRONG_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class LeaderHints:
    """Collects the endpoints of the leaders that one response names."""

    __slots__ = ("_broker", "_listener", "endpoints")

    def __init__(self, broker: Broker, ctx: RequestContext) -> None:
        self._broker = broker
        self._listener = ctx.listener_name
        self.endpoints: dict[int, tuple[EndPoint, str | None]] = {}

    def leader_of(self, tp: TopicPartition) -> PartitionState | None:
        """The partition as the metadata has it; its leader's endpoint is noted."""
        snapshot = self._broker.metadata.snapshot
        state = snapshot.partition(tp.topic, tp.partition)
        if state is None:
            return None
        node = snapshot.brokers.get(state.leader)
        if node is not None and (endpoint := node.endpoint(self._listener)) is not None:
            self.endpoints[state.leader] = (endpoint, node.rack)
        return state
