"""Client quotas on running brokers: real clients are throttled, restarts keep quotas, every broker learns of them."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from klamm.cli.main import main
from klamm.client.blocking_connection import ask_once, connected
from klamm.config.client_quotas import format_quota
from klamm.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.long_form import short_for
from tests.support.raw_client import LATEST, RawClient, batch_of, eventually

WAIT_S = 60.0
EXCEEDED = 89


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """With short windows, so that throttle times are short as well."""
    configs = {**CALM, "klamm.metrics.port": 0, "quota.window.num": 3}
    with LocalCluster(brokers=2, broker_configs=configs) as running:
        yield running


def address(cluster: LocalCluster, broker_id: int) -> tuple[str, int]:
    return "127.0.0.1", cluster.port(broker_id)


def set_quota(
    cluster: LocalCluster, client_id: str | None, quotas: Mapping[str, float | None], broker_id: int = 1
) -> None:
    """Sets quotas of a client id, removes those that are None, and waits until all brokers apply them."""
    ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
    entity = [EntityData(entity_type="client-id", entity_name=client_id)]
    request = AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=ops)], validate_only=False)
    answer = ask_once(address(cluster, broker_id), request, 1, AlterClientQuotasResponse, WAIT_S).entries[0]
    assert answer.error_code == 0, answer.error_message
    for key, value in quotas.items():
        now = "no longer set" if value is None else f"now {format_quota(key, value)}"
        news = f"Quota of client id {client_id or '<default>'}: {key} is {now}"
        for each in (1, 2):
            cluster.wait_for(lambda each=each, news=news: news in cluster.logs(each).read_text(), WAIT_S, what=news)  # type: ignore[misc]


def led_by(cluster: LocalCluster, broker_id: int) -> str:
    """A new topic whose one partition that broker leads."""
    while True:
        topic = cluster.unique_topic_name("quota")
        cluster.create_topic(topic, partitions=1, replication_factor=1)
        if cluster.leader(topic, 0) == broker_id:
            return topic


def produce_request(topic: str, size: int) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch_of([b"x" * size]))
    return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def fetch_request(topic: str, offset: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )


def metrics_of(cluster: LocalCluster, broker_id: int) -> str:
    ready = json.loads((cluster.data_dir / f"broker-{broker_id}.ready").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{ready['metrics_port']}/metrics", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def test_every_broker_throttles_a_producer_and_a_restart_keeps_the_quota(cluster: LocalCluster) -> None:
    topics = {broker_id: led_by(cluster, broker_id) for broker_id in (1, 2)}
    set_quota(cluster, "writer", {"producer_byte_rate": 1000}, broker_id=1)

    def throttle_time(broker_id: int, client_id: str) -> int:
        request = produce_request(topics[broker_id], 20_000)
        response = ask_once(address(cluster, broker_id), request, 9, ProduceResponse, WAIT_S, client_id=client_id)
        assert response.responses[0].partition_responses[0].error_code == 0, "throttled requests succeed"
        return int(response.throttle_time_ms)

    for broker_id in (1, 2):
        assert throttle_time(broker_id, "writer") > 5_000
        assert throttle_time(broker_id, "another") == 0
    cluster.stop(2)
    cluster.start(2)
    RawClient(cluster.port(2)).offset(topics[2], LATEST)  # it leads the partition again
    assert throttle_time(2, "writer") > 5_000
    assert 'kafka_server_produce_byte_rate{user="",client_id="writer"}' in metrics_of(cluster, 2)
    set_quota(cluster, "writer", {"producer_byte_rate": None}, broker_id=2)
    for broker_id in (1, 2):
        assert throttle_time(broker_id, "writer") == 0


def test_a_throttled_connection_is_read_later_than_another_one(cluster: LocalCluster) -> None:
    topic = led_by(cluster, 1)
    set_quota(cluster, "muted", {"producer_byte_rate": 1000})
    beat = HeartbeatRequest(group_id="none", generation_id=1, member_id="m")
    with connected(address(cluster, 1), WAIT_S, client_id="muted") as muted:
        first = muted.ask(produce_request(topic, 4_000), ProduceResponse, 9)
        assert 1_000 < first.throttle_time_ms < 5_000
        muted.send(beat, 4)
        other = ask_once(address(cluster, 1), beat, 4, HeartbeatResponse, WAIT_S, client_id="muted")
        assert other.throttle_time_ms == 0, "the quota is on bytes of producers"
        assert muted.in_flight == 1
        late = muted.receive()
        assert isinstance(late, HeartbeatResponse) and late.error_code, "answered after the throttle time"


def test_a_consumer_over_its_quota_gets_an_empty_response_and_reads_everything_in_the_end(
    cluster: LocalCluster,
) -> None:
    topic = led_by(cluster, 1)
    for _ in range(6):
        ask_once(address(cluster, 1), produce_request(topic, 2_000), 9, ProduceResponse, WAIT_S)
    set_quota(cluster, "reader", {"consumer_byte_rate": 3000})
    offset, withheld = 0, 0
    while offset < 6 or not withheld:
        if offset >= 6:  # the machine was so slow that this was below the quota: once more
            offset = 0
        response = ask_once(
            address(cluster, 1), fetch_request(topic, offset), 11, FetchResponse, WAIT_S, client_id="reader"
        )
        if response.throttle_time_ms and not response.responses:
            withheld += 1
            continue
        for part in response.responses[0].partitions:
            assert part.error_code == 0
            offset += len(part.records or b"") // 2_000
    assert withheld > 0
    assert 'kafka_server_fetch_throttle_time{user="",client_id="reader"}' in metrics_of(cluster, 1)


def test_a_request_quota_counts_every_api(cluster: LocalCluster) -> None:
    set_quota(cluster, "busy", {"request_percentage": 0.0001})
    beat = HeartbeatRequest(group_id="none", generation_id=1, member_id="m")

    def throttle_time(client_id: str) -> int:
        answer = ask_once(address(cluster, 1), beat, 4, HeartbeatResponse, WAIT_S, client_id=client_id)
        return int(answer.throttle_time_ms)

    cluster.wait_for(lambda: throttle_time("busy") > 0, WAIT_S, what="A throttle time")
    assert throttle_time("busy") <= 1000
    assert throttle_time("idle") == 0


def test_topics_beyond_the_mutation_quota_are_refused_and_can_be_created_later(cluster: LocalCluster) -> None:
    set_quota(cluster, "admin", {"controller_mutation_rate": 0.1})  # minutes pass until it is used up no longer
    names = [cluster.unique_topic_name(f"many-{number}") for number in range(3)]

    def create(name: str, version: int) -> tuple[int, int]:
        topic = CreatableTopic(name=name, num_partitions=12, replication_factor=1, assignments=(), configs=())
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
        where = address(cluster, cluster.controller_id)
        answer = ask_once(where, request, version, CreateTopicsResponse, WAIT_S, client_id="admin")
        return answer.topics[0].error_code, answer.throttle_time_ms

    assert create(names[0], 7) == (0, 0)
    code, throttle_time_ms = create(names[1], 7)
    assert code == EXCEEDED and throttle_time_ms > 0
    code, throttle_time_ms = create(names[2], 5)
    assert code == 0 and throttle_time_ms > 0, "older clients are only throttled"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "unlimited"})
    admin.create_topics([NewTopic(names[1], 1, 1)])[names[1]].result(WAIT_S)


@pytest.mark.parametrize("library", short_for(["confluent-kafka"], ["confluent-kafka", "kafka-python"]))
def test_real_clients_report_throttle_times_and_lose_nothing(
    cluster: LocalCluster, library: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = led_by(cluster, 1)
    client_id = f"app-{library}"
    set_quota(cluster, client_id, {"producer_byte_rate": 40_000, "consumer_byte_rate": 40_000})
    values = [b"%04d" % number + b"x" * 2_000 for number in range(80)]
    send, receive = {
        "confluent-kafka": (confluent_send, confluent_receive),
        "kafka-python": (python_send, python_receive),
    }[library]
    sent: list[bytes] = []

    def is_throttled() -> bool:
        """A slow machine may send all values below the quota."""
        longest = send(cluster.bootstrap_servers, topic, client_id, values)
        sent.extend(values)
        return longest > 0 or "ProduceResponse throttled by broker" in caplog.text

    eventually(is_throttled, "no throttle time is reported")
    assert receive(cluster.bootstrap_servers, topic, client_id, len(sent)) == sent
    text = metrics_of(cluster, 1)
    for kind in ("produce", "fetch"):
        assert f'kafka_server_{kind}_byte_rate{{user="",client_id="{client_id}"}}' in text


def confluent_send(servers: str, topic: str, client_id: str, values: list[bytes]) -> float:
    """Returns the longest throttle time that the client reported."""
    longest = 0.0

    def on_throttle(event: object) -> None:
        nonlocal longest
        longest = max(longest, event.throttle_time)  # type: ignore[attr-defined]

    config = {"bootstrap.servers": servers, "client.id": client_id, "linger.ms": 0, "throttle_cb": on_throttle}
    producer = Producer({**config, "batch.size": 5_000})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0
    return longest


def confluent_receive(servers: str, topic: str, client_id: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "client.id": client_id, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < count:
        for message in consumer.consume(100, 1.0):
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    return found


def python_send(servers: str, topic: str, client_id: str, values: list[bytes]) -> float:
    """The client reports throttle times in its log only."""
    producer = KafkaProducer(bootstrap_servers=servers, client_id=client_id, batch_size=5_000, linger_ms=0)
    futures = [producer.send(topic, value, partition=0) for value in values]
    for future in futures:
        future.get(WAIT_S)
    producer.close()
    return 0.0


def python_receive(servers: str, topic: str, client_id: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(topic, bootstrap_servers=servers, client_id=client_id, auto_offset_reset="earliest")
    found: list[bytes] = []
    while len(found) < count:
        for records in consumer.poll(1000).values():
            found += [record.value for record in records]
    consumer.close()
    return found


@pytest.fixture
def klamm(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    def run(*arguments: str, fails: bool = False) -> tuple[str, str]:
        monkeypatch.setenv("KLAMM_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
        monkeypatch.setattr(sys, "argv", ["klamm", "quota", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert (ended.value.code or 0) == (1 if fails else 0), err
        return out, err

    return run


def test_commands(klamm: Callable[..., tuple[str, str]]) -> None:
    assert klamm("set", "-u", "cli user", "-c", "x", "producer_byte_rate=1000", "request_percentage=12.5") == (
        "Set producer_byte_rate, request_percentage of user cli user, client id x.\n",
        "",
    )
    klamm("set", "--user", "cli user", "--default-client-id", "consumer_byte_rate=5")
    listed, _ = klamm("list")
    assert "cli user  <default>" in listed and "cli user  x" in listed
    found = {json.dumps(each["entity"]): each["quotas"] for each in json.loads(klamm("list", "--json")[0])}
    assert found['{"user": "cli user", "client-id": null}'] == {"consumer_byte_rate": 5}
    lines = klamm("describe", "--user", "cli user", "--client-id", "x")[0].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["producer_byte_rate"] == ["1000", *["user", "cli", "user,", "client", "id", "x"]]
    assert rows["consumer_byte_rate"] == ["5", *["user", "cli", "user,", "client", "id", "<default>"]]
    assert rows["controller_mutation_rate"] == ["unlimited", "-"]
    applied = json.loads(klamm("describe", "--user", "cli user", "--client-id", "x", "--json")[0])
    assert applied["request_percentage"] == {"value": 12.5, "entity": {"user": "cli user", "client-id": "x"}}
    klamm("remove", "--user", "cli user", "--client-id", "x", "producer_byte_rate")
    klamm("remove", "--user", "cli user", "--client-id", "x", "--all")
    klamm("remove", "--user", "cli user", "--default-client-id", "--all")
    assert "cli user" not in klamm("list")[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("set", "producer_byte_rate=1"), "Pass --user NAME, --default-user, --client-id ID or --default-client-id."),
        (("set", "-c", "x", "producer_byte_rate=1.5"), "producer_byte_rate is 1.5: expected a whole number up to"),
        (("set", "-c", "x", "producer_byte_rate"), "quota 'producer_byte_rate' is not key=value."),
        (("set", "-c", "x", "rate=1"), "Invalid configuration key rate: expected producer_byte_rate,"),
        (("set", "-c", "x", "request_percentage=many"), "request_percentage=many is not a number."),
        (("set", "-u", "a", "--default-user", "request_percentage=1"), "Pass a name or the default, not both."),
        (("set", "-c", "", "request_percentage=1"), "A name is empty: use --default-user or --default-client-id"),
        (("remove", "-c", "x"), "Pass the quotas to remove, or --all."),
        (("remove", "-c", "nobody", "--all"), "There is no quota of client id nobody"),
        (("remove", "-c", "nobody", "request_percentage"), "request_percentage of client id nobody is not set"),
    ],
)
def test_errors_of_commands(klamm: Callable[..., tuple[str, str]], arguments: tuple[str, ...], sentence: str) -> None:
    assert klamm(*arguments, fails=True)[1].startswith(f"Error: {sentence}")
