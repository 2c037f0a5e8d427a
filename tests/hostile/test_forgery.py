"""Somebody who reaches a listener pretends to be the controller or a broker. Every request is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from klamm.errors import ErrorCode
from klamm.model import EPOCH_DURING_DELETE, ZERO_UUID
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from klamm.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from klamm.testing import LocalCluster
from klamm.zk.model import paths
from tests.support.calm import CALM
from tests.support.raw_client import TIMEOUT_S, RawClient, batch_of

FORGED_EPOCH = 1_000
TOPIC = "kept"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # Unproven peers are admitted here, so that forged requests meet the rules about epochs.
    with LocalCluster(brokers=1, broker_configs={"klamm.admit.unproven.peers": True}) as started:
        started.create_topic(TOPIC)
        yield started


@pytest.fixture(scope="module")
def zookeeper(cluster: LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start(TIMEOUT_S)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def broker(cluster: LocalCluster) -> RawClient:
    return RawClient(cluster.port(1))


AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": True,
}


@pytest.fixture(scope="module", params=[{}, AUTHORIZER], ids=["without an authorizer", "with an authorizer"])
def proving(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Brokers prove themselves to each other, as by default. An authorizer without entries allows everything else."""
    with LocalCluster(brokers=2, broker_configs=CALM | request.param) as started:
        started.create_topic(TOPIC, partitions=1, replication_factor=2)
        yield started


def test_without_a_proof_even_right_epochs_are_refused(proving: LocalCluster) -> None:
    client = KazooClient(proving.zookeeper_connect)
    client.start(TIMEOUT_S)
    try:
        controller_id = json.loads(client.get(paths.CONTROLLER)[0])["brokerid"]
        for broker_id in (1, 2):
            head = controller_id, controller_epoch(client), broker_epoch(client, broker_id)
            broker = RawClient(proving.port(broker_id))
            assert send_all(broker, *head) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 3
            shutdown = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=head[2])
            answer = broker.ask(shutdown, 3, ControlledShutdownResponse)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    finally:
        client.stop()
        client.close()


def test_a_fetch_in_the_name_of_a_follower_is_refused(proving: LocalCluster) -> None:
    first = RawClient(proving.port(1))
    assert first.produce(TOPIC, batch_of([b"first"])).error_code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for broker_id, follower in ((1, 2), (2, 1)):
        fetched = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1_000)
        request = FetchRequest(
            replica_id=follower,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1_000,
            session_epoch=-1,
            topics=[FetchTopic(topic=TOPIC, partitions=[fetched])],
        )
        answer = RawClient(proving.port(broker_id)).ask(request, 12, FetchResponse)
        refused = [partition.error_code for topic in answer.responses for partition in topic.partitions]
        assert (answer.error_code, refused) in (
            (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, []),
            (ErrorCode.NONE, [ErrorCode.TOPIC_AUTHORIZATION_FAILED]),  # of the authorizer
        )


def broker_epoch(zookeeper: KazooClient, broker_id: int = 1) -> int:
    """As anybody who reaches ZooKeeper can read it."""
    return int(zookeeper.get(paths.broker_path(broker_id))[1].czxid)


def controller_epoch(zookeeper: KazooClient) -> int:
    return int(zookeeper.get(paths.CONTROLLER_EPOCH)[0])


def foreign_cluster(controller_id: int, epoch: int, broker_epoch: int) -> UpdateMetadataRequest:
    """Clients of broker 1 are to be sent to another host."""
    endpoint = UpdateMetadataEndpoint(port=9, host="forger.example", listener="PLAINTEXT", security_protocol=0)
    return UpdateMetadataRequest(
        controller_id=controller_id,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        topic_states=(),
        live_brokers=[UpdateMetadataBroker(id_=1, endpoints=[endpoint])],
    )


def deletion(controller_id: int, epoch: int, broker_epoch: int) -> StopReplicaRequest:
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=EPOCH_DURING_DELETE, delete_partition=True)
    return StopReplicaRequest(
        controller_id=controller_id,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        delete_partitions=True,
        ungrouped_partitions=[StopReplicaPartitionV0(topic_name=TOPIC, partition_index=0)],
        topic_states=[StopReplicaTopicState(topic_name=TOPIC, partition_states=[state])],
    )


def other_leader(controller_id: int, epoch: int, broker_epoch: int) -> LeaderAndIsrRequest:
    state = LeaderAndIsrPartitionState(
        topic_name=TOPIC,
        partition_index=0,
        controller_epoch=epoch,
        leader=2,
        leader_epoch=100,
        isr=(2,),
        partition_epoch=100,
        replicas=(1, 2),
    )
    topic = LeaderAndIsrTopicState(topic_name=TOPIC, topic_id=ZERO_UUID, partition_states=[state])
    return LeaderAndIsrRequest(
        controller_id=controller_id,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        live_leaders=(),
        ungrouped_partition_states=[state],
        topic_states=[topic],
    )


def send_all(broker: RawClient, controller_id: int, epoch: int, broker_epoch: int) -> list[ErrorCode]:
    head = (controller_id, epoch, broker_epoch)
    codes = [
        broker.ask(foreign_cluster(*head), 7, UpdateMetadataResponse).error_code,
        broker.ask(deletion(*head), 3, StopReplicaResponse).error_code,
        broker.ask(other_leader(*head), 4, LeaderAndIsrResponse).error_code,
    ]
    return [ErrorCode(code) for code in codes]


def check_intact(cluster: LocalCluster, broker: RawClient, zookeeper: KazooClient) -> None:
    """Clients are sent to the broker, the topic has its records, and the real controller is obeyed."""
    epoch = controller_epoch(zookeeper)
    found = broker.metadata(TOPIC)
    assert [(node.host, node.port) for node in found.brokers] == [("127.0.0.1", cluster.port(1))]
    assert found.topics[0].partitions[0].leader_id == 1
    assert broker.produce(TOPIC, batch_of([b"more"])).error_code == 0
    assert broker.read_all(TOPIC)[0] == (0, b"first")
    cluster.create_topic(cluster.unique_topic_name())
    assert controller_epoch(zookeeper) == epoch, "the controller was deposed"


@pytest.fixture(scope="module", autouse=True)
def _first_record(cluster: LocalCluster) -> None:
    assert RawClient(cluster.port(1)).produce(TOPIC, batch_of([b"first"])).error_code == 0


@pytest.mark.parametrize("controller_id", [1, 7])
def test_a_higher_controller_epoch(
    cluster: LocalCluster, broker: RawClient, zookeeper: KazooClient, controller_id: int
) -> None:
    refused = [ErrorCode.STALE_CONTROLLER_EPOCH] * 3
    assert send_all(broker, controller_id, FORGED_EPOCH, broker_epoch(zookeeper)) == refused
    check_intact(cluster, broker, zookeeper)


def test_the_controllers_epoch_with_another_id(
    cluster: LocalCluster, broker: RawClient, zookeeper: KazooClient
) -> None:
    codes = send_all(broker, 7, controller_epoch(zookeeper), broker_epoch(zookeeper))
    assert codes == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3
    check_intact(cluster, broker, zookeeper)


@pytest.mark.parametrize("distance", [-1, 1, None])
def test_the_controllers_id_and_epoch_with_another_broker_epoch(
    cluster: LocalCluster, broker: RawClient, zookeeper: KazooClient, distance: int | None
) -> None:
    forged = -1 if distance is None else broker_epoch(zookeeper) + distance
    assert send_all(broker, 1, controller_epoch(zookeeper), forged) == [ErrorCode.STALE_BROKER_EPOCH] * 3
    check_intact(cluster, broker, zookeeper)


def test_versions_without_a_broker_epoch_need_the_controllers_epoch_too(
    cluster: LocalCluster, broker: RawClient, zookeeper: KazooClient
) -> None:
    answers = [
        broker.ask(foreign_cluster(1, FORGED_EPOCH, -1), 4, UpdateMetadataResponse).error_code,
        broker.ask(deletion(1, FORGED_EPOCH, -1), 0, StopReplicaResponse).error_code,
        broker.ask(other_leader(1, FORGED_EPOCH, -1), 1, LeaderAndIsrResponse).error_code,
    ]
    assert answers == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3
    check_intact(cluster, broker, zookeeper)


@pytest.mark.parametrize("distance", [-1, 1, None])
def test_a_controlled_shutdown_that_the_broker_did_not_ask_for(
    broker: RawClient, zookeeper: KazooClient, distance: int | None
) -> None:
    forged = -1 if distance is None else broker_epoch(zookeeper) + distance
    request = ControlledShutdownRequest(broker_id=1, broker_epoch=forged)
    answer = broker.ask(request, 3, ControlledShutdownResponse)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
