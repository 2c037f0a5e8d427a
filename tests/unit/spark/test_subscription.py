"""Which topics a query reads and where its timestamps begin and end, by what a broker answers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.model import TopicPartition
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.spark.source.planner import Planner
from klamm.spark.source.read_options import OptionError, parse_read_options

TP = TopicPartition("orders", 0)


class OneBroker:
    """Answers as a leader of every topic, with a transaction that is open from offset 5 on."""

    names = ("my-orders", "orders", "orders-eu", "users", "__consumer_offsets", "__klamm_control_log")
    is_closed = False
    in_flight = 0
    timeout_ms = 0.0

    def ask(self, request: Any, answer: Any, **_: Any) -> Any:
        if isinstance(request, ListOffsetsRequest):
            return self._offsets(request)
        names = self.names if request.topics is None else [topic.name for topic in request.topics]
        partition = MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        topics = [
            MetadataResponseTopic(error_code=0, name=name, is_internal=name.startswith("__"), partitions=[partition])
            for name in names
        ]
        return MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)], topics=topics)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked = request.topics[0].partitions[0].timestamp
        end = 5 if request.isolation_level == 1 else 9
        offset = {-2: 0, -1: end}.get(asked, asked if asked < end else -1)
        part = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=request.topics[0].name, partitions=[part])])


def planner(**options: str) -> Planner:
    """Of a client whose only broker is `OneBroker`."""
    client = ClusterClient(ClientConfig(bootstrap=(("h", 1),)), connect=lambda *_: cast(Any, OneBroker()))
    return Planner(parse_read_options({"kafka.bootstrap.servers": "h:1", **options}, streaming=False), client)


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders", ["my-orders", "orders", "orders-eu"]),
        ("^orders$", ["orders"]),
        ("^orders", ["orders", "orders-eu"]),
        (".*", ["my-orders", "orders", "orders-eu", "users"]),
        ("_", []),
    ],
)
def test_a_pattern_is_found_anywhere_in_a_name_but_in_no_internal_topic(pattern: str, topics: list[str]) -> None:
    assert [tp.topic for tp in planner(subscribePattern=pattern).partitions()] == topics


@pytest.mark.parametrize(
    "options", [{"subscribe": "__klamm_control_log"}, {"assign": '{"__klamm_control_log":[0]}'}], ids=str
)
def test_an_internal_topic_is_read_when_it_is_named(options: dict[str, str]) -> None:
    assert planner(**options).partitions() == (TopicPartition("__klamm_control_log", 0),)


def test_timestamps_are_looked_up_among_committed_records() -> None:
    """The timestamp of a record is its offset here; those from 5 on are of a transaction that is open."""
    of = {"subscribe": "orders", "endingTimestamp": "8", "startingOffsetsByTimestampStrategy": "latest"}
    committed = {"kafka.isolation.level": "read_committed"}
    assert planner(**of, startingTimestamp="3").batch_ranges() == [(TP, 3, 8)]
    assert planner(**of, **committed, startingTimestamp="3").batch_ranges() == [(TP, 3, 5)]
    assert planner(**of, **committed, startingTimestamp="7").starting((TP,)) == {TP: 5}
    assert planner(**of, **committed, startingTimestamp="7").batch_ranges() == []
    del of["startingOffsetsByTimestampStrategy"]
    with pytest.raises(OptionError, match="no record at or after timestamp 7"):
        planner(**of, **committed, startingTimestamp="7").starting((TP,))
