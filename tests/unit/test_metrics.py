"""Metric kinds, their names for Prometheus, and the /metrics endpoint over a real socket."""

from __future__ import annotations

import asyncio
import math
import ssl
from base64 import b64encode
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from klamm.clock import SystemClock
from klamm.metrics import BrokerTopicStats, GaugeTable, MetricsRegistry, MetricsServer, SampleTable
from klamm.metrics.exposition import HISTOGRAMS, PIECE
from klamm.metrics.http import REQUEST_TIMEOUT_S, HttpConnection
from klamm.metrics.instruments import WINDOW, Histogram
from klamm.security.certificates.certificate_store import CertificateStore


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


def samples(registry: MetricsRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What Prometheus' own parser reads out of the exposition; it renames counters that do not end in `_total`."""
    return {
        (sample.name.replace("_count_total", "_count"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(registry.exposition())
        for sample in family.samples
    }


def types(registry: MetricsRegistry) -> dict[str, str]:
    lines = (line.split() for line in registry.exposition().splitlines() if line.startswith("# TYPE"))
    return {name: kind for _, _, name, kind in lines}


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_names_are_those_of_the_jmx_exporter_rules() -> None:
    clock = ManualClock()
    registry = MetricsRegistry(clock)
    registry.meter("kafka.network", "RequestMetrics", "RequestsPerSec", {"request": "Produce", "version": "9"}).mark(3)
    registry.histogram("kafka.network", "RequestMetrics", "TotalTimeMs", {"request": "Produce"}).update(7)
    registry.gauge("kafka.network", "RequestChannel", "RequestQueueSize", lambda: 12)
    registry.gauge("kafka.network", "Processor", "IdlePercent", lambda: 0.25, {"networkProcessor": "0"})
    registry.gauge("kafka.network", "SocketServer", "NetworkProcessorAvgIdlePercent", lambda: 0.5)
    registry.gauge("kafka.server", "KafkaServer", "ClusterId", lambda: "not a number")
    registry.gauge("kafka.server", "KafkaServer", "yammer-metrics-count", lambda: registry.size)
    registry.gauge("kafka.coordinator.group", "GroupMetadataManager", "NumGroups", lambda: 2)
    registry.gauge("kafka.controller", "ControllerChannelManager", "QueueSize", lambda: 1, {"broker-id": "3"})
    registry.gauge("kafka.cluster", "Partition", "UnderReplicated", lambda: True, {"topic": "t", "partition": "0"})
    registry.timer("kafka.controller", "ControllerStats", "TopicChangeRateAndTimeMs").update(1.5)
    registry.busy_ratio("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent").busy_seconds = 2.5
    acceptor = {"listener": "PLAINTEXT"}
    blocked = registry.busy_ratio("kafka.network", "Acceptor", "AcceptorBlockedPercent", acceptor, inverted=True)
    blocked.busy_seconds = 1.0
    clock.seconds += 10

    found = samples(registry)
    assert found[key("kafka_network_requestmetrics_requests_total", request="Produce", version="9")] == 3
    assert found[key("kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.99")] == 7
    assert found[key("kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.999")] == 7
    assert found[key("kafka_network_requestmetrics_totaltimems_count", request="Produce")] == 1
    assert found[key("kafka_network_requestchannel_requestqueuesize")] == 12
    assert found[key("kafka_network_processor_idlepercent", networkProcessor="0")] == 0.25
    assert found[key("kafka_network_socketserver_networkprocessoravgidlepercent")] == 0.5
    assert found[key("kafka_server_kafkaserver_yammer_metrics_count")] == registry.size
    assert found[key("kafka_coordinator_group_groupmetadatamanager_numgroups")] == 2
    assert found[key("kafka_controller_controllerchannelmanager_queuesize", broker_id="3")] == 1
    assert found[key("kafka_cluster_partition_underreplicated", topic="t", partition="0")] == 1
    assert found[key("kafka_controller_controllerstats_topicchangerateandtimems_count")] == 1
    assert found[key("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent")] == pytest.approx(0.75)
    assert found[key("kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count")] == 7.5e9
    assert found[key("kafka_network_acceptor_acceptorblockedpercent_count", **acceptor)] == 1e9
    assert not any("clusterid" in name for name, _ in found)


def test_the_kinds_are_declared() -> None:
    registry = MetricsRegistry(ManualClock())
    registry.meter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec")
    registry.histogram("kafka.network", "RequestMetrics", "LocalTimeMs", {"request": "Fetch"})
    assert types(registry) == {
        "kafka_server_brokertopicmetrics_messagesin_total": "counter",
        "kafka_network_requestmetrics_localtimems": "gauge",
        "kafka_network_requestmetrics_localtimems_count": "counter",
    }


def test_label_values_are_escaped_and_odd_numbers_written() -> None:
    registry = MetricsRegistry(ManualClock())
    strange = 'a"b\\c\nd'
    registry.gauge("kafka.server", "X", "Odd", lambda: math.nan, {"topic": strange})
    registry.gauge("kafka.server", "X", "Much", lambda: math.inf)
    found = samples(registry)
    assert math.isnan(found[key("kafka_server_x_odd", topic=strange)])
    assert found[key("kafka_server_x_much")] == math.inf


def test_meter_rates_follow_the_count() -> None:
    clock = ManualClock()
    meter = MetricsRegistry(clock).meter("kafka.server", "X", "YPerSec")
    for _ in range(120):
        clock.seconds += 5
        meter.mark(50)
        meter.rate()
    assert meter.count == 6_000
    assert meter.rate(1) == pytest.approx(10)
    clock.seconds += 600
    assert meter.rate(1) < 0.01
    assert meter.rate(1) < meter.rate(5) < meter.rate(15) < 10


def test_histogram_keeps_the_newest_samples_and_counts_all() -> None:
    histogram = MetricsRegistry(ManualClock()).histogram("kafka.network", "X", "Y")
    assert set(histogram.percentiles()) == {0.0}
    for value in range(10 * WINDOW):
        histogram.update(value)
    assert histogram.count == 10 * WINDOW
    assert len(histogram.samples) == WINDOW
    median, *_, last = histogram.percentiles()
    assert median == pytest.approx(9.5 * WINDOW, rel=0.01)
    assert last <= 10 * WINDOW - 1


def test_sample_table_gives_one_histogram_a_column() -> None:
    table = SampleTable()
    first, second = table.column(0), table.column(1)
    for value in range(100):
        table.append((value, -value))
    assert first.count == second.count == 100
    assert first.percentiles()[0] == pytest.approx(49.5)
    assert second.percentiles()[0] == pytest.approx(-49.5)
    table.append((1000, 0))
    assert first.percentiles()[-1] == 1000


def test_idle_ratio_forgets_the_distant_past() -> None:
    clock = ManualClock()
    ratio = MetricsRegistry(clock).busy_ratio("kafka.server", "Pool", "AvgIdlePercent")
    assert ratio.value == 1.0
    for _ in range(60):
        clock.seconds += 10
        ratio.busy_seconds += 9
        ratio.value  # noqa: B018 - reading moves the average
    assert ratio.value == pytest.approx(0.1)
    clock.seconds += 600
    assert ratio.value > 0.99


def test_removal_by_name_and_by_tag() -> None:
    registry = MetricsRegistry(ManualClock())
    stats = BrokerTopicStats(registry)
    before = registry.size
    stats.topic("orders").messages_in.mark(5)
    assert stats.topic("orders") is stats.topic("orders")
    registry.gauge(
        "kafka.cluster", "Partition", "InSyncReplicasCount", lambda: 1, {"topic": "orders", "partition": "0"}
    )
    assert samples(registry)[key("kafka_server_brokertopicmetrics_messagesin_total", topic="orders")] == 5
    stats.remove("orders")
    assert registry.size == before + 1
    registry.remove_tagged("topic", "orders")
    registry.remove_tagged("topic", "orders")
    assert registry.size == before
    assert "orders" not in registry.exposition()
    registry.remove("kafka.server", "BrokerTopicMetrics", "BytesInPerSec")
    assert registry.size == before - 1


def test_a_name_keeps_its_kind() -> None:
    registry = MetricsRegistry(ManualClock())
    meter = registry.meter("kafka.server", "X", "Y")
    assert registry.meter("kafka.server", "X", "Y") is meter
    with pytest.raises(ValueError, match="is a Meter, not a Histogram"):
        registry.histogram("kafka.server", "X", "Y")


async def _http(port: int, request: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def test_metrics_over_http() -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        registry.meter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", {"topic": "größe"}).mark(2)
        server = MetricsServer(registry, "127.0.0.1", 0)
        await server.start()
        head, body = await _http(server.port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert f"Content-Length: {len(body)}".encode() in head
        assert 'messagesin_total{topic="größe"} 2' in body.decode()
        assert (await _http(server.port, b"GET / HTTP/1.1\r\n\r\n"))[0].startswith(b"HTTP/1.1 404")
        assert (await _http(server.port, b"POST /metrics HTTP/1.1\r\n\r\n"))[0].startswith(b"HTTP/1.1 405")
        assert (await _http(server.port, b"HEAD /metrics HTTP/1.1\r\n\r\n"))[1] == b""
        assert (await _http(server.port, b"x" * 8193))[0].startswith(b"HTTP/1.1 431")
        await server.stop()

    asyncio.run(scenario())


def test_some_metrics_over_http() -> None:
    """`name[]` names exported metrics, as in Prometheus's own clients; a family comes whole."""

    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        registry.meter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec").mark(2)
        registry.histogram("kafka.network", "RequestMetrics", "TotalTimeMs", {"request": "Fetch"}).update(5)
        registry.gauge("kafka.server", "ReplicaManager", "LeaderCount", lambda: 3)
        registry.busy_ratio("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent")
        rows: dict[str, int] = registry.rows(
            "kafka.cluster", "Partition", {"AtMinIsr": int}, lambda key: {"topic": str(key)}
        )
        rows["t"] = 1
        server = MetricsServer(registry, "127.0.0.1", 0)
        await server.start()

        async def names(*chosen: str) -> set[str]:
            query = "&".join(f"name%5B%5D={name}" for name in chosen)
            _, body = await _http(server.port, f"GET /metrics?{query} HTTP/1.1\r\n\r\n".encode())
            return {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}

        messages, times = "kafka_server_brokertopicmetrics_messagesin_total", "kafka_network_requestmetrics_totaltimems"
        assert await names(messages) == {messages}
        assert await names(times) == await names(f"{times}_count") == {times, f"{times}_count"}
        assert await names("kafka_cluster_partition_atminisr") == {"kafka_cluster_partition_atminisr"}
        idle = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
        assert idle in await names(idle)
        assert await names("nothing") == set() and len(await names()) == 7
        await server.stop()

    asyncio.run(scenario())


def test_health_and_readiness_over_http() -> None:
    async def scenario() -> None:
        server = MetricsServer(MetricsRegistry(SystemClock()), "127.0.0.1", 0)
        await server.start()
        assert (await _http(server.port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0].startswith(b"HTTP/1.1 200")
        head, body = await _http(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and body == b"The broker is starting.\n"
        server.not_ready = None
        head, body = await _http(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and body == b"ok\n"
        await server.stop()

    asyncio.run(scenario())


def test_a_broken_gauge_is_reported_not_fatal() -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        registry.gauge("kafka.server", "X", "Y", lambda: 1 // 0)
        server = MetricsServer(registry, "127.0.0.1", 0)
        await server.start()
        head, _ = await _http(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500")
        await server.stop()

    asyncio.run(scenario())


def test_a_name_with_many_members_comes_in_pieces() -> None:
    """A broker has six gauges per partition: a scrape gives way to other work in between."""
    registry = MetricsRegistry(ManualClock())
    for number in range(2_500):
        registry.gauge("kafka.cluster", "Partition", "InSyncReplicasCount", lambda: 3, {"partition": str(number)})
        registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", {"topic": str(number)})
    pieces = list(registry.families())
    assert max(piece.count("\n") for piece in pieces) <= PIECE + 1 and len(pieces) >= 5_000 // PIECE
    assert "".join(pieces).count("# TYPE") == 2 and len(samples(registry)) == 5_000


def test_timers_of_many_brokers_have_their_heads_once() -> None:
    registry = MetricsRegistry(ManualClock())
    for number in range(PIECE + 1):
        registry.timer("kafka.controller", "ControllerChannelManager", "TimeMs", {"broker-id": str(number)})
    assert "".join(registry.families()).count("# TYPE") == 2


def test_the_samples_of_few_histograms_are_sorted_per_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one histogram per API and kind of time: sorting all of them would hold the loop."""
    computed: list[object] = []
    percentiles = Histogram.percentiles

    def noted(histogram: Histogram) -> tuple[float, ...]:
        computed.append(histogram)
        return percentiles(histogram)

    monkeypatch.setattr(Histogram, "percentiles", noted)
    registry = MetricsRegistry(ManualClock())
    for number in range(3 * PIECE):
        registry.histogram("kafka.network", "RequestMetrics", "TotalTimeMs", {"request": str(number)}).update(number)
    seen = 0
    pieces = []
    for piece in registry.families():
        assert len(computed) - seen <= HISTOGRAMS
        seen = len(computed)
        pieces.append(piece)
    assert seen == 3 * PIECE
    text = "".join(pieces)
    assert text.count("# TYPE") == 2
    assert text.index("totaltimems_count{") > text.rindex("totaltimems{")


def test_members_may_go_between_two_pieces() -> None:
    registry = MetricsRegistry(ManualClock())
    for number in range(3 * PIECE):
        registry.gauge("kafka.cluster", "Partition", "ReplicasCount", lambda: 3, {"partition": str(number)})
    pieces = registry.families()
    text = next(pieces)
    for number in range(PIECE, 2 * PIECE + 1):
        registry.remove("kafka.cluster", "Partition", "ReplicasCount", {"partition": str(number)})
    text += "".join(pieces)
    assert text.count("\n") == 2 * PIECE and text.count("# TYPE") == 1


def test_a_table_of_gauges_follows_its_mapping_and_comes_in_pieces() -> None:
    registry = MetricsRegistry(ManualClock())
    replicas = {number: number % 4 for number in range(3 * PIECE)}
    table = GaugeTable(replicas, lambda number: {"topic": "t", "partition": str(number)}, lambda count: count + 1)
    registry.gauge_table("kafka.cluster", "Partition", "ReplicasCount", table)
    assert registry.size == 3 * PIECE
    pieces = registry.families()
    text = next(pieces)
    for number in range(PIECE, 2 * PIECE + 1):
        del replicas[number]
    rest = list(pieces)
    text += "".join(rest)
    assert max(piece.count("\n") for piece in rest) <= PIECE
    assert text.count("\n") == 2 * PIECE and text.count("# TYPE kafka_cluster_partition_replicascount gauge\n") == 1
    replicas.clear()
    assert not registry.exposition() and registry.size == 0, "without entries there is no name either"


def unbound(registry: MetricsRegistry) -> MetricsServer:
    return MetricsServer(registry, "127.0.0.1", 0)


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


def test_a_large_scrape_is_written_in_pieces_as_fast_as_it_is_read() -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(ManualClock())
        for number in range(20 * PIECE):
            registry.gauge("kafka.cluster", "Partition", "ReplicasCount", lambda: 3, {"topic": str(number)})
        transport = RecordingTransport()
        connection = HttpConnection(asyncio.get_running_loop(), unbound(registry))
        connection.connection_made(transport)
        connection.data_received(b"GET /metrics HTTP/1.1\r\n\r\n")
        while len(transport.written) < 5:
            assert not transport.is_closed
            await asyncio.sleep(0)
        connection.pause_writing()
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(transport.written) <= 6, "it waits while the client does not read"
        connection.resume_writing()
        assert connection._answer is not None
        await connection._answer
        head, _, body = b"".join(transport.written).partition(b"\r\n\r\n")
        assert body.decode() == registry.exposition() and f"Content-Length: {len(body)}\r\n".encode() in head
        assert max(piece.count(b"\n") for piece in transport.written) <= PIECE + 1 and transport.is_closed
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_a_piece_is_freed_when_it_is_written() -> None:
    async def scenario() -> None:
        transport = RecordingTransport()
        connection = HttpConnection(asyncio.get_running_loop(), unbound(MetricsRegistry(ManualClock())))
        connection.connection_made(transport)
        pieces = [b"%d" % number for number in range(9)]
        sending = asyncio.ensure_future(connection._send(pieces, with_body=True))
        while not sending.done():
            await asyncio.sleep(0)
            assert len(transport.written) + len(pieces) == 10, "the head, and all pieces"
        assert b"".join(transport.written).endswith(b"\r\n\r\n012345678")
        connection.connection_lost(None)

    asyncio.run(scenario())


class StoppedTime(asyncio.SelectorEventLoop):
    """A loop whose time the test moves."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize("is_read", [True, False], ids=["by a client that reads", "by one that does not"])
def test_only_the_time_of_the_client_is_limited(is_read: bool) -> None:
    """A busy broker with very many partitions needs more than the limit for its own part."""
    loop = StoppedTime()

    async def scenario() -> None:
        registry = MetricsRegistry(ManualClock())
        for number in range(5 * PIECE):
            registry.gauge("kafka.cluster", "Partition", "ReplicasCount", lambda: 3, {"topic": str(number)})
        transport = RecordingTransport()
        connection = HttpConnection(loop, unbound(registry))
        connection.connection_made(transport)
        connection.data_received(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert connection._answer is not None
        while not connection._answer.done():
            loop.now_s += REQUEST_TIMEOUT_S
            await asyncio.sleep(0)
            if transport.written and not is_read:
                connection.pause_writing()
        assert transport.is_closed and transport.is_aborted is not is_read
        connection.connection_lost(None)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scenario())


def test_a_password_is_required(tmp_path: Path) -> None:
    """RFC 7617, over TLS; a wrong password and none get the same answer."""
    store = CertificateStore.create(tmp_path, 1)
    store.issue_broker("broker", (), 1)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(store.keystore_path("broker"))

    def get(port: int, login: str | None) -> int:
        request = Request(f"https://localhost:{port}/metrics")
        if login is not None:
            request.add_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
        try:
            with urlopen(request, timeout=30, context=ssl.create_default_context(cafile=store.ca_path)) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                assert error.headers["WWW-Authenticate"] == 'Basic realm="klamm"'
                return error.code

    async def scenario() -> list[int]:
        server = MetricsServer(MetricsRegistry(ManualClock()), "127.0.0.1", 0, tls=served, login="eva:s3cret")
        await server.start()
        try:
            return [await asyncio.to_thread(get, server.port, login) for login in (None, "eva:wrong", "eva:s3cret")]
        finally:
            await server.stop()

    assert asyncio.run(scenario()) == [401, 401, 200]
