"""The network's metrics are correct, and a scrape of them is well-formed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from klamm.metrics import HistogramColumn
from klamm.network import RequestContext, SocketServerConfig
from klamm.network.request_metrics import COLUMNS, error_code_reader
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.unit.network.harness import (
    Answer,
    ManualClock,
    Server,
    control_api,
    echo,
    heartbeat,
    heartbeat_api,
    until,
)

HEARTBEAT = {"request": "Heartbeat"}


def median(server: Server, column: str, request: str = "Heartbeat") -> float:
    metric = server.registry.find("kafka.network", "RequestMetrics", column, {"request": request})
    assert isinstance(metric, HistogramColumn)
    return metric.percentiles()[0]


def test_every_part_of_the_time_is_measured() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        loop = asyncio.get_running_loop()
        delayed: asyncio.Future[HeartbeatResponse] = loop.create_future()

        def script(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
            clock.seconds += 0.02
            ctx.throttle(1)
            return delayed

        async with Server(heartbeat_api(script), clock=clock, started=False) as server:
            server.accept_without_handlers()
            client = await server.client()
            client.send(heartbeat(1))
            await until(lambda: server.network.channel.in_flight)
            assert server.value("RequestChannel", "RequestQueueSize") == 1
            clock.seconds += 0.01
            server.network.handler_pool.start()
            await until(lambda: server.value("RequestChannel", "RequestQueueSize") == 0)
            clock.seconds += 0.03
            delayed.set_result(HeartbeatResponse(error_code=27))
            await client.receive()
            assert median(server, "RequestQueueTimeMs") == pytest.approx(10)
            assert median(server, "LocalTimeMs") == pytest.approx(20)
            assert median(server, "RemoteTimeMs") == pytest.approx(30)
            assert median(server, "ThrottleTimeMs") == 1
            assert median(server, "ResponseOrderTimeMs") == pytest.approx(0)
            assert median(server, "ResponseQueueTimeMs") == pytest.approx(0)
            assert median(server, "ResponseSendTimeMs") == pytest.approx(0)
            assert median(server, "TotalTimeMs") == pytest.approx(60)
            assert median(server, "RequestBytes") == 26
            assert server.value("RequestMetrics", "RequestsPerSec", request="Heartbeat", version="1") == 1
            tags = {"request": "Heartbeat", "error": "REBALANCE_IN_PROGRESS"}
            assert server.value("RequestMetrics", "ErrorsPerSec", **tags) == 1
            await client.close()

    asyncio.run(scenario())


def test_the_wait_for_earlier_responses_is_not_a_wait_for_the_network() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        first: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            return first if request.generation_id == 1 else echo(request)

        async with Server(heartbeat_api(script), clock=clock) as server:
            client = await server.client()
            client.send(heartbeat(1))
            client.send(heartbeat(2))
            await until(lambda: server.value("RequestChannel", "ResponseQueueSize") == 1)
            clock.seconds += 3.0
            first.set_result(HeartbeatResponse(error_code=1))
            assert [await client.receive_heartbeat() for _ in range(2)] == [(0, 1), (1, 2)]
            waits = server.registry.find("kafka.network", "RequestMetrics", "ResponseOrderTimeMs", HEARTBEAT)
            assert isinstance(waits, HistogramColumn)
            assert waits.percentiles()[-1] == pytest.approx(3000)
            queued = server.registry.find("kafka.network", "RequestMetrics", "ResponseQueueTimeMs", HEARTBEAT)
            assert isinstance(queued, HistogramColumn)
            assert queued.percentiles()[-1] == pytest.approx(0)
            await client.close()

    asyncio.run(scenario())


def test_idle_percent_is_the_share_of_time_not_handling() -> None:
    async def scenario() -> None:
        clock = ManualClock()

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            clock.seconds += 3.0
            return echo(request)

        async with Server(heartbeat_api(script), control_api(), clock=clock) as server:
            client = await server.client()
            client.send(heartbeat(1))
            await client.receive()
            clock.seconds += 1.0
            pool = {"group": "kafka.server", "type_": "KafkaRequestHandlerPool"}
            assert server.value(name="RequestHandlerAvgIdlePercent", **pool) == pytest.approx(0.25)
            assert server.value(name="ControlPlaneRequestHandlerAvgIdlePercent", **pool) == pytest.approx(1.0)
            assert server.value("SocketServer", "NetworkProcessorAvgIdlePercent") == pytest.approx(1.0)
            await client.close()

    asyncio.run(scenario())


def test_the_catalogue_is_complete_and_parses() -> None:
    async def scenario() -> None:
        async with Server(
            heartbeat_api(), control_api(), listeners=("DATA", "CONTROL"), control_plane_listener="CONTROL"
        ) as server:
            client = await server.client("DATA")
            client.send(heartbeat(0))
            await client.receive()
            families = {f.name for f in text_string_to_metric_families(server.registry.exposition())}
            expected = {
                *(f"kafka_network_requestmetrics_{column.lower()}" for column in COLUMNS),
                *(
                    f"kafka_network_requestchannel_{prefix}{name}"
                    for prefix in ("", "controlplane")
                    for name in ("requestqueuesize", "responsequeuesize")
                ),
                *(
                    f"kafka_network_socketserver_{prefix}{name}"
                    for prefix in ("", "controlplane")
                    for name in ("networkprocessoravgidlepercent", "expiredconnectionskilledcount")
                ),
                "kafka_network_requestmetrics_requests",
                "kafka_network_requestmetrics_errors",
                "kafka_network_socketserver_memorypoolavailable",
                "kafka_network_socketserver_memorypoolused",
                "kafka_network_processor_idlepercent",
                "kafka_network_acceptor_acceptorblockedpercent_count",
                "kafka_network_acceptor_controlplaneacceptorblockedpercent_count",
                "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
                "kafka_server_kafkarequesthandlerpool_controlplanerequesthandleravgidle_percent",
                "kafka_server_socket_server_metrics_connection_count",
            }
            assert expected <= families
            await client.close()

    asyncio.run(scenario())


def test_a_split_api_is_measured_under_both_names() -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        api.metric_name = lambda r: "HeartbeatOdd" if r.generation_id % 2 else "HeartbeatEven"
        async with Server(api) as server:
            client = await server.client()
            for number in range(3):
                client.send(heartbeat(number))
                await client.receive()
            counts = {
                n: server.value("RequestMetrics", "TotalTimeMs", request=f"Heartbeat{n}") for n in ("Odd", "Even", "")
            }
            assert counts == {"Odd": 1, "Even": 2, "": 3}
            await client.close()

    asyncio.run(scenario())


def test_a_request_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), config=SocketServerConfig(num_io_threads=1)) as server:
            client = await server.client()
            client.send(heartbeat(0))
            await client.receive()
            await client.close()

    with caplog.at_level(logging.DEBUG, logger="klamm.request"):
        asyncio.run(scenario())
    (record,) = [r for r in caplog.records if r.name == "klamm.request"]
    assert "api=Heartbeat version=1 correlationId=0 clientId=tester" in record.getMessage()


def test_error_codes_are_found_by_their_name() -> None:
    partitions = [
        PartitionProduceResponse(index=i, error_code=c, base_offset=0, log_append_time_ms=-1)
        for i, c in enumerate((0, 6))
    ]
    produce = ProduceResponse(
        responses=[
            TopicProduceResponse(name="a", partition_responses=partitions),
            TopicProduceResponse(name="b", partition_responses=partitions[:1]),
        ]
    )
    assert error_code_reader(ProduceResponse)(produce) == [0, 6, 0]
    assert error_code_reader(HeartbeatResponse)(HeartbeatResponse(error_code=25)) == [25]
    empty: Any = MetadataResponse(brokers=[], topics=[])
    assert error_code_reader(MetadataResponse)(empty) == []
