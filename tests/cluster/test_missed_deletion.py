"""A broker that stood still while a topic was deleted forgets it when it is back."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.testing import LocalCluster
from klamm.zk.model.paths import topic_path
from tests.support.raw_client import TIMEOUT_S, RawClient, eventually


def topics(cluster: LocalCluster, broker_id: int) -> set[str]:
    everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    found = RawClient(cluster.port(broker_id)).ask(everything, 7, MetadataResponse)
    return {topic.name for topic in found.topics if topic.name is not None and not topic.is_internal}


def brokers(cluster: LocalCluster, broker_id: int) -> set[int]:
    return {broker.node_id for broker in RawClient(cluster.port(broker_id)).metadata().brokers}


def is_deleted(cluster: LocalCluster, topic: str) -> bool:
    """To the end: until then every broker that returns learns of it."""
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start(TIMEOUT_S)
    try:
        return zookeeper.exists(topic_path(topic)) is None
    finally:
        zookeeper.stop()
        zookeeper.close()


@pytest.mark.long
def test_a_topic_deleted_during_a_pause() -> None:
    with LocalCluster(brokers=2) as cluster:
        cluster.create_topic("deleted")
        here = cluster.leader("deleted")
        other = 3 - here
        cluster.create_topic("kept")
        eventually(lambda: topics(cluster, other) == {"deleted", "kept"}, "the topics are not known everywhere")
        cluster.pause(other)
        eventually(lambda: brokers(cluster, here) == {here}, "the session of the broker that stands still never ended")
        cluster.delete_topic("deleted")
        eventually(lambda: is_deleted(cluster, "deleted"), "the topic is never deleted")
        cluster.resume(other)
        eventually(lambda: brokers(cluster, here) == {1, 2}, "it did not come back")
        eventually(lambda: topics(cluster, other) == {"kept"}, "it never learned of the deletion")
        assert (
            "1 topics were deleted while this broker was offline or lagging: deleted" in cluster.logs(other).read_text()
        )
