"""Znode paths and contents: Kafka's own examples decode, and what we write is what Kafka writes."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from klamm.model import (
    BrokerEndPoints,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
    SecurityProtocol,
    TopicPartition,
)
from klamm.security.acl import stored
from klamm.zk.model import paths, znodes
from klamm.zk.model.broker_znode import decode_broker, encode_broker, without_unclean_shutdown
from klamm.zk.model.znodes import FeatureZnode, ProducerIdBlock, TopicZnode, ZnodeFormatError

T0 = TopicPartition("t", 0)
BROKER = BrokerEndPoints(
    1, (EndPoint("PLAINTEXT", "h", 9092), EndPoint("SECURE", "::1", 9093, SecurityProtocol.SSL)), "r1", 77
)


def test_paths_of_a_topic() -> None:
    assert paths.topic_path("t") == "/brokers/topics/t"
    assert paths.partition_state_path("t", 3) == "/brokers/topics/t/partitions/3/state"
    assert paths.broker_path(7) == "/brokers/ids/7"
    assert paths.config_entity_path("topics", "t") == paths.config_path_of("topics/t") == "/config/topics/t"
    assert paths.isr_change_path() == "/isr_change_notification/isr_change_"


def test_every_persistent_path_starts_at_a_known_znode() -> None:
    assert len(set(paths.PERSISTENT_PATHS)) == len(paths.PERSISTENT_PATHS) == 14
    assert all(rule.writer for rule in paths.ZNODES)


def test_every_codec_of_the_table_exists() -> None:
    for codec in {rule.codec for rule in paths.ZNODES} - {"null", "none", "broker"}:
        room = stored if codec.startswith("acl") else znodes
        assert hasattr(room, f"encode_{codec}") and hasattr(room, f"decode_{codec}")


def test_sequence_number() -> None:
    assert paths.sequence_number("config_change_0000000042") == 42
    with pytest.raises(ValueError, match="ten digits"):
        paths.sequence_number("config_change_42")


def test_names_are_sanitized_as_kafka_does() -> None:
    assert paths.sanitize("CN=a b*,O=ü~") == "CN%3Da%20b%2A%2CO%3D%C3%BC%7E"
    assert paths.desanitize(paths.sanitize("CN=a b*,O=ü~")) == "CN=a b*,O=ü~"


def test_controller() -> None:
    assert json.loads(znodes.encode_controller(3, 17)) == {
        "version": 2,
        "brokerid": 3,
        "timestamp": "17",
        "kraftControllerEpoch": -1,
    }
    assert json.loads(znodes.encode_controller(3, 17, version=1)) == {"version": 1, "brokerid": 3, "timestamp": "17"}
    assert znodes.decode_controller(b'{"brokerid":5}').broker_id == 5
    assert znodes.decode_controller_epoch(znodes.encode_controller_epoch(7)) == 7
    with pytest.raises(ZnodeFormatError, match=r"^znode /controller_epoch: 'seven' is not a number$"):
        znodes.decode_controller_epoch(b"seven")
    for data in (None, b"", b"\xff"):
        with pytest.raises(ZnodeFormatError, match="is not a number"):
            znodes.decode_controller_epoch(data)


@pytest.mark.parametrize(
    "text",
    [
        b'{"version":1,"partitions":{"1":[2,3],"0":[1,2]}}',
        b'{"version":2,"partitions":{"0":[1,2],"1":[2,3]},"adding_replicas":{},"removing_replicas":{}}',
    ],
)
def test_old_topic_versions_decode(text: bytes) -> None:
    topic = znodes.decode_topic("t", text)
    assert list(topic.assignment.items()) == [(0, ReplicaAssignment((1, 2))), (1, ReplicaAssignment((2, 3)))]
    assert topic.topic_id is None
    assert json.loads(znodes.encode_topic(topic))["version"] == 2


def test_topic_round_trip_keeps_unknown_keys() -> None:
    text = (
        b'{"version":3,"partitions":{"0":[1,2,3],"10":[1],"9":[2]},"adding_replicas":{"0":[3]},"removing_replicas":{"0":[1]},'
        b'"topic_id":"jKTRaM_TSNqocJeQI2aYOQ","from_the_future":{"a":1}}'
    )
    topic = znodes.decode_topic("t", text)
    assert list(topic.assignment) == [0, 9, 10]
    assert topic.assignment[0] == ReplicaAssignment((1, 2, 3), (3,), (1,))
    assert isinstance(topic.topic_id, UUID)
    assert json.loads(znodes.encode_topic(topic)) == json.loads(text)
    rewritten = TopicZnode({0: ReplicaAssignment((1,))}, topic.topic_id, topic.extra)
    assert json.loads(znodes.encode_topic(rewritten))["from_the_future"] == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"partitions":{"a":[1]}}',
        b'{"partitions":{"0":1}}',
        b"[" * 50_000,  # json raises a RecursionError
        b'{"partitions":{"0":[1e999]}}',  # and int an OverflowError
        b'{"partitions":{"0":[2147483648]}}',
        b'{"partitions":{"0":[-1]}}',
        b'{"partitions":{"99999999999":[1]}}',
        b'{"partitions":{"-1":[1]}}',
        b'{"partitions":{"0":[1],"1":[]}}',
        b'{"partitions":{"0":[1,1]}}',
        b'{"partitions":{"0":[]},"adding_replicas":{"0":[1]}}',
        b'{"partitions":{"0":[1]},"future":"\\ud800"}',
    ],
)
def test_broken_topics_name_themselves(text: bytes | None) -> None:
    with pytest.raises(ZnodeFormatError, match="/brokers/topics/t"):
        znodes.decode_topic("t", text)


def test_partition_state() -> None:
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 3, (1, 2), 5), 7)
    text = znodes.encode_partition_state(state)
    assert text == b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":3,"isr":[1,2]}'
    assert znodes.decode_partition_state(T0, text, 5) == state
    recovering = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 3, (1,), 0, LeaderRecoveryState.RECOVERING), 7)
    assert znodes.decode_partition_state(T0, znodes.encode_partition_state(recovering), 0) == recovering
    for former in ((), (1, 3)):
        held = LeaderIsrAndControllerEpoch(LeaderAndIsr(-1, 3, (2,), 0), 7, former)
        assert znodes.decode_partition_state(T0, znodes.encode_partition_state(held), 0) == held
    with pytest.raises(ZnodeFormatError, match="'isr' is missing"):
        znodes.decode_partition_state(T0, b'{"leader":1,"leader_epoch":1,"controller_epoch":1}', 0)


@pytest.mark.parametrize("broken", [{"leader": 1 << 31}, {"leader_epoch": 1 << 31}, {"isr": [1, 1 << 31]}])
def test_a_partition_state_with_numbers_beyond_the_protocol_is_broken(broken: dict[str, object]) -> None:
    value = {"version": 1, "leader": 1, "leader_epoch": 3, "isr": [1], "controller_epoch": 1, **broken}
    with pytest.raises(ZnodeFormatError, match="/brokers/topics/t/partitions/0/state"):
        znodes.decode_partition_state(TopicPartition("t", 0), json.dumps(value).encode(), 0)


def test_the_report_of_a_broken_znode_is_short() -> None:
    for text in (b"x" * 1_000_000, b"[" * 1_000_000, b'{"partitions":{"' + b"9" * 1_000_000 + b'":[]}}'):
        with pytest.raises(ZnodeFormatError) as caught:
            znodes.decode_topic("t", text)
        assert len(str(caught.value)) < 500


def test_partition_lists_and_reassignment() -> None:
    partitions = (TopicPartition("a", 1), T0)
    assert znodes.decode_partitions("/x", znodes.encode_partitions(reversed(partitions))) == partitions
    targets = {T0: (1, 2)}
    text = znodes.encode_reassignment(targets)
    assert text == b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
    assert znodes.decode_reassignment(text) == targets


def test_configs() -> None:
    text = znodes.encode_config({"b": "2", "a": "1"})
    assert text == b'{"version":1,"config":{"a":"1","b":"2"}}'
    assert znodes.decode_config("/config/topics/t", text) == {"a": "1", "b": "2"}
    assert znodes.decode_config("/config/topics/t", None) == znodes.decode_config("/x", b'{"version":1}') == {}
    assert znodes.decode_config_change("/c", znodes.encode_config_change("topics/t")) == "topics/t"
    assert znodes.decode_config_change("/c", b'{"version":1,"entity_type":"topics","entity_name":"t"}') == "topics/t"
    for bad in (b'{"version":3}', b'{"version":1,"entity_type":"users","entity_name":"u"}', b"{}"):
        with pytest.raises(ZnodeFormatError, match="/c"):
            znodes.decode_config_change("/c", bad)


def test_small_znodes() -> None:
    assert znodes.encode_cluster_id("abc") == b'{"version":"1","id":"abc"}'
    assert znodes.decode_cluster_id(b'{"version":"1","id":"abc"}') == "abc"
    assert znodes.decode_log_dir_event("/x", znodes.encode_log_dir_event(4)) == 4
    lost = znodes.LostRecords(TopicPartition("t", 3), UUID(int=7), 15, 20, broker_id=2)
    assert znodes.decode_lost_records("/x", znodes.encode_lost_records(lost)) == lost
    with pytest.raises(ZnodeFormatError, match="/x"):
        znodes.decode_lost_records("/x", b'{"version":1,"topic":"t"}')
    block = ProducerIdBlock(1, 0, 999)
    text = znodes.encode_producer_id_block(block)
    assert text == b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    assert znodes.decode_producer_id_block(text) == block
    assert znodes.decode_producer_id_block(b"") is None


def test_features() -> None:
    first = FeatureZnode(True, {"f": (1, 3)}, version=1)
    assert znodes.decode_feature(znodes.encode_feature(first)) == first
    second = FeatureZnode(False)
    assert znodes.encode_feature(second) == b'{"version":2,"status":0,"features":{}}'
    assert znodes.decode_feature(znodes.encode_feature(second)) == second
    for bad in (b'{"version":3,"status":1,"features":{}}', b'{"version":1,"features":{}}', b'{"version":1,"status":1}'):
        with pytest.raises(ZnodeFormatError, match="/feature"):
            znodes.decode_feature(bad)


def test_broker_registration() -> None:
    value = json.loads(encode_broker(BROKER, 17))
    assert value == {
        "features": {},
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT", "SECURE": "SSL"},
        "endpoints": ["PLAINTEXT://h:9092", "SECURE://[::1]:9093"],
        "jmx_port": -1,
        "port": 9092,
        "host": "h",
        "version": 5,
        "rack": "r1",
        "timestamp": "17",
    }
    assert "features" not in json.loads(encode_broker(BROKER, 17, version=4))
    assert decode_broker(1, encode_broker(BROKER, 17), 77).broker == BROKER


def test_a_broker_reports_an_unclean_shutdown_until_it_is_cleared() -> None:
    plain, reported = encode_broker(BROKER, 17), encode_broker(BROKER, 17, unclean_shutdown=True)
    assert not decode_broker(1, plain, 77).unclean_shutdown
    assert decode_broker(1, reported, 77).unclean_shutdown and decode_broker(1, reported, 77).broker == BROKER
    assert without_unclean_shutdown(1, reported) == plain == without_unclean_shutdown(1, plain)


def test_old_broker_registrations() -> None:
    first = decode_broker(1, b'{"version":1,"host":"h","port":9092,"jmx_port":-1}', 5)
    assert first.broker == BrokerEndPoints(1, (EndPoint("PLAINTEXT", "h", 9092),), None, 5)
    second = decode_broker(1, b'{"version":2,"jmx_port":9,"endpoints":["SSL://h:1"],"host":null,"port":-1}', 5)
    assert second.broker.endpoints == (EndPoint("SSL", "h", 1, SecurityProtocol.SSL),) and second.jmx_port == 9


@pytest.mark.parametrize(
    "text",
    [
        b'{"version":4,"jmx_port":-1}',
        b'{"version":3,"endpoints":["INTERNAL://h:1"]}',
        b'{"version":4,"endpoints":["h:1"],"listener_security_protocol_map":{}}',
        b'{"version":4,"endpoints":["SSL://h:1","SSL://g:1"],"listener_security_protocol_map":{"SSL":"SSL"}}',
        b"null",
        b'{"version":1,"host":"h","port":99999999999}',
        b'{"version":1,"host":"h","port":65536}',
        b'{"version":4,"endpoints":["SSL://h:99999"],"listener_security_protocol_map":{"SSL":"SSL"}}',
        b'{"version":1,"host":"' + b"h" * 40_000 + b'","port":1}',
        b'{"version":4,"endpoints":["PLAINTEXT://h:4294967296"],"listener_security_protocol_map":{}}',
        b'{"version":1,"host":"h","port":1,"rack":"\\udc00"}',
    ],
)
def test_broken_registrations_name_themselves(text: bytes) -> None:
    with pytest.raises(ZnodeFormatError, match="/brokers/ids/1"):
        decode_broker(1, text, 0)
