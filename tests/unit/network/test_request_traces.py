"""Traces of requests on real sockets: which are chosen, their phases, their waits, and what they never contain."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from klamm.errors import ErrorCode
from klamm.model import REQUEST_LOG_TOPIC, TopicPartition
from klamm.network import RequestContext
from klamm.network.request_names import MAX_SEEN, named_partitions
from klamm.network.request_tracer import RING_RECORDS, TraceSettings
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.purgatory import DelayedOperationPurgatory
from klamm.request_log import RequestRecord, to_json
from klamm.request_log.handling import HANDLED
from klamm.request_log.trace_records import MAX_CHARS, MAX_LISTED
from klamm.waiting import after
from tests.unit.network.harness import (
    ManualClock,
    RawClient,
    ScriptedApi,
    Server,
    api_versions_api,
    both_loops,
    control_api,
    echo,
    heartbeat,
    heartbeat_api,
    settled,
    until,
)

ALL = TraceSettings(sample=1)
PHASES = ("request_queue_ms", "local_ms", "remote_ms", "response_order_ms", "response_queue_ms", "send_ms")
SECRET = b"the contents of a record"


def produce(*topics: str, partition: int = 0) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=SECRET)]
    return ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=data) for topic in topics],
    )


def produce_api() -> ScriptedApi:
    return ScriptedApi(ProduceRequest, ProduceResponse, lambda _, r: ProduceResponse(responses=()))


async def beat(client: RawClient, *numbers: int) -> None:
    """Send heartbeats one after the other, and wait for each answer."""
    for number in numbers:
        client.send(heartbeat(number))
        await client.receive_heartbeat()


def records(server: Server) -> list[RequestRecord]:
    return list(server.network.tracer.records)


@both_loops
def test_while_tracing_is_off_nothing_is_kept_and_no_request_is_marked(run: Any) -> None:
    seen: list[object] = []

    def script(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        seen.append((ctx.trace, HANDLED.get()))
        return echo(request)

    async def scenario() -> None:
        async with Server(heartbeat_api(script)) as server:
            await beat(await server.client(), 0, 0)
            assert records(server) == [] and seen == [(None, None)] * 2

    run(scenario())


@both_loops
def test_every_phase_of_a_request_and_its_connection(run: Any) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), listeners=("FIRST", "SECOND")) as server:
            server.network.tracer.apply(ALL)
            before_ms = server.clock.now_ms()
            await beat(await server.client("SECOND"), 27)
            (record,) = records(server)
            assert (record.api, record.api_version, record.correlation_id) == ("Heartbeat", 1, 0)
            assert (record.client_id, record.principal) == ("tester", "User:ANONYMOUS")
            assert (record.listener, record.processor, record.plane) == ("SECOND", 1, "data")
            assert record.connection_id.startswith(f"127.0.0.1:{server.network.bound_port('SECOND')}-127.0.0.1:")
            assert (record.queue_size, record.control_queue_size, record.sequence) == (0, 0, 1)
            assert before_ms <= record.at_ms <= server.clock.now_ms()
            assert record.error == "REBALANCE_IN_PROGRESS" and record.errors == (("REBALANCE_IN_PROGRESS", 1),)
            assert record.outcome == "answered" and record.response_bytes > 0 and record.request_bytes > 20
            parts = [getattr(record, name) for name in PHASES]
            assert min(parts) >= 0 and sum(parts) == pytest.approx(record.total_ms)
            assert record.waits == () and record.partitions == ()

    run(scenario())


def test_requests_that_wait_in_the_queue_and_behind_earlier_responses() -> None:
    async def scenario() -> None:
        first: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        api = heartbeat_api(lambda _, r: first if r.generation_id == 1 else echo(r))
        async with Server(api, control_api(), started=False) as server:
            server.network.tracer.apply(ALL)
            server.accept_without_handlers()
            client = await server.client()
            for number in (1, 0, 0):
                client.send(heartbeat(number))
            await until(lambda: server.network.channel.data.size == 3)
            client.send(ControlledShutdownRequest(broker_id=1, broker_epoch=1), version=2)
            await until(lambda: server.network.channel.control.size == 1)
            server.network.handler_pool.start()
            await until(lambda: len(api.asked) == 3)
            await settled()
            assert records(server) == [], "the first response is not there, and the others wait for it"
            first.set_result(HeartbeatResponse(error_code=0))
            for _ in range(4):
                await client.receive()
            found = {record.correlation_id: record for record in records(server)}
            assert [found[number].queue_size for number in range(4)] == [0, 1, 2, 3]
            assert (found[3].plane, found[3].control_queue_size, found[0].plane) == ("control", 0, "data")
            assert found[0].remote_ms > 0 and found[0].response_order_ms == 0
            assert found[1].remote_ms == 0 and found[1].response_order_ms > 0
            assert all(record.request_queue_ms > 0 for record in found.values())

    asyncio.run(scenario())


@both_loops
def test_a_wait_in_a_purgatory_names_the_request_that_completed_it(run: Any) -> None:
    async def scenario() -> None:
        purgatory = DelayedOperationPurgatory("Test", asyncio.get_running_loop())
        key = TopicPartition("orders", 3)
        is_done = False

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            nonlocal is_done
            if request.generation_id == 1:
                done = purgatory.try_complete_else_watch([key], 60_000, lambda: 7 if is_done else None, lambda: 8)
                return after(done, lambda _: echo(heartbeat(0)))
            is_done = True
            purgatory.check_and_complete(key)
            return echo(request)

        async with Server(heartbeat_api(script)) as server:
            server.network.tracer.apply(ALL)
            waiting, completing = await server.client(), await server.client()
            waiting.send(heartbeat(1))
            await until(lambda: purgatory.size)
            await beat(completing, 0)
            await waiting.receive_heartbeat()
            other, record = sorted(records(server), key=lambda it: len(it.waits))
            (wait,) = record.waits
            assert (wait.purgatory, wait.outcome, wait.key) == ("Test", "completed", "orders-3")
            assert 0 < wait.duration_ms <= record.local_ms + record.remote_ms  # It begins before the handler returns.
            assert wait.start_ms >= record.request_queue_ms
            assert wait.by is not None
            assert (wait.by.api, wait.by.client_id, wait.by.correlation_id) == ("Heartbeat", "tester", 0)
            assert wait.by.connection_id == other.connection_id != record.connection_id
            assert other.waits == ()

    run(scenario())


@both_loops
def test_a_request_that_is_not_traced_is_named_as_the_cause_too(run: Any) -> None:
    """One in many is traced, but every request may complete one that is."""

    async def scenario() -> None:
        purgatory = DelayedOperationPurgatory("Test", asyncio.get_running_loop())

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            if request.generation_id == 1:
                done = purgatory.try_complete_else_watch(["k"], 60_000, lambda: None, lambda: 8, lambda key: 7)
                return after(done, lambda _: echo(heartbeat(0)))

            async def later() -> HeartbeatResponse:
                await asyncio.sleep(0)  # a task of the handler acts for the request, too
                purgatory.check_and_complete("k")
                return echo(request)

            return asyncio.get_running_loop().create_task(later())

        async with Server(heartbeat_api(script)) as server:
            server.network.tracer.apply(TraceSettings(sample=1_000_000))
            waiting, completing = await server.client(), await server.client()
            waiting.send(heartbeat(1))
            await until(lambda: purgatory.size)
            await beat(completing, 0)
            await waiting.receive_heartbeat()
            (record,) = records(server)
            (wait,) = record.waits
            assert wait.by is not None and wait.by.api == "Heartbeat"

    run(scenario())


def test_other_requests_are_marked_only_while_a_traced_request_waits() -> None:
    async def scenario() -> None:
        purgatory = DelayedOperationPurgatory("Test", asyncio.get_running_loop())
        seen: list[bool] = []

        def script(ctx: RequestContext, request: HeartbeatRequest) -> Any:
            handled: object = HANDLED.get()
            seen.append(handled is ctx)
            if request.generation_id == 1:
                done = purgatory.try_complete_else_watch(["k"], 60_000, lambda: None, lambda: 8, lambda key: 7)
                return after(done, lambda _: echo(heartbeat(0)))
            if request.generation_id == 2:
                purgatory.check_and_complete("k")
            return echo(heartbeat(0))

        async with Server(heartbeat_api(script)) as server:
            tracer = server.network.tracer
            tracer.apply(TraceSettings(sample=1_000_000))
            waiting, other = await server.client(), await server.client()
            waiting.send(heartbeat(1))  # the first request after a change of the settings is traced
            await until(lambda: purgatory.size)
            await beat(other, 0, 2)
            await waiting.receive_heartbeat()
            await until(lambda: tracer.waiting == 0)
            await beat(other, 0)
            waiting.send(heartbeat(1))  # not traced: its wait needs no names
            await until(lambda: purgatory.size)
            await beat(other, 0, 2)
            assert seen == [True, True, True, False, False, False, False]

    asyncio.run(scenario())


def test_a_connection_that_ends_during_a_wait_leaves_no_marks() -> None:
    async def scenario() -> None:
        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            done = purgatory.try_complete_else_watch(["k"], 60_000, lambda: None, lambda: 8, lambda key: 7)
            return after(done, lambda _: echo(heartbeat(0)))

        purgatory = DelayedOperationPurgatory("Test", asyncio.get_running_loop())
        async with Server(heartbeat_api(script)) as server:
            tracer = server.network.tracer
            tracer.apply(ALL)
            client = await server.client()
            client.send(heartbeat(1))
            await until(lambda: tracer.waiting == 1)
            await client.close()
            purgatory.check_and_complete("k")
            await until(lambda: tracer.waiting == 0)

    asyncio.run(scenario())


def test_a_later_slice_of_a_request_that_is_not_traced_is_named_as_the_cause() -> None:
    """The slices began before the wait, when there was no reason to mark the request."""

    async def scenario() -> None:
        purgatory = DelayedOperationPurgatory("Test", asyncio.get_running_loop())
        turns = 0

        def slices() -> Any:
            nonlocal turns
            while not purgatory.size:
                turns += 1
                yield
            purgatory.check_and_complete("k")
            return echo(heartbeat(0))

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            if request.generation_id == 1:
                done = purgatory.try_complete_else_watch(["k"], 60_000, lambda: None, lambda: 8, lambda key: 7)
                return after(done, lambda _: echo(heartbeat(0)))
            return slices()

        async with Server(heartbeat_api(script)) as server:
            server.network.tracer.apply(TraceSettings(sample=1_000_000))
            server.network.tracer.left = 2
            sliced, waiting = await server.client(), await server.client()
            sliced.send(heartbeat(0))
            await until(lambda: turns)
            waiting.send(heartbeat(1))
            await waiting.receive_heartbeat()
            await sliced.receive_heartbeat()
            (record,) = records(server)
            (wait,) = record.waits
            assert wait.by is not None and wait.by.connection_id != record.connection_id

    asyncio.run(scenario())


def test_waits_of_steps_that_follow_another_wait_belong_to_the_request() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        purgatory = DelayedOperationPurgatory("Test", loop)
        first: asyncio.Future[int] = loop.create_future()

        def park(_: int) -> Any:
            return purgatory.try_complete_else_watch(["k"], 20, lambda: None, lambda: 8)

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            return after(after(first, park), lambda _: echo(heartbeat(0)))

        async with Server(heartbeat_api(script)) as server:
            server.network.tracer.apply(ALL)
            client = await server.client()
            client.send(heartbeat(1))
            await until(lambda: server.network.channel.in_flight)
            await settled()
            first.set_result(1)
            await client.receive_heartbeat()
            (record,) = records(server)
            (wait,) = record.waits
            assert (wait.purgatory, wait.outcome, wait.by, wait.key) == ("Test", "expired", None, None)

    asyncio.run(scenario())


def test_a_task_that_outlives_its_request_does_not_act_for_it() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        purgatory = DelayedOperationPurgatory("Test", loop)
        go, tasks = asyncio.Event(), []

        async def background() -> None:
            await go.wait()
            purgatory.check_and_complete("k")

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            if request.generation_id == 1:
                done = purgatory.try_complete_else_watch(["k"], 60_000, lambda: None, lambda: 8, lambda key: 7)
                return after(done, lambda _: echo(heartbeat(0)))
            tasks.append(loop.create_task(background()))
            return echo(request)

        async with Server(heartbeat_api(script)) as server:
            server.network.tracer.apply(ALL)
            client = await server.client()
            await beat(client, 0)
            client.send(heartbeat(1))
            await until(lambda: purgatory.size)
            go.set()
            await client.receive_heartbeat()
            wait = records(server)[-1].waits[0]
            assert wait.outcome == "completed" and wait.by is None

    asyncio.run(scenario())


@both_loops
def test_one_in_n(run: Any) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            server.network.tracer.apply(TraceSettings(sample=10))
            client = await server.client()
            await beat(client, *[0] * 1000)
            found = [record.correlation_id for record in records(server)]
            assert 80 <= len(found) <= 120
            gaps = {b - a for a, b in itertools.pairwise(found)}
            assert len(gaps) > 5 and max(gaps) < 20, "requests that alternate are both seen"

    run(scenario())


def test_one_in_n_of_the_chosen_apis() -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), api_versions_api()) as server:
            server.network.tracer.apply(TraceSettings(sample=10, apis=("Heartbeat",)))
            client = await server.client()
            for _ in range(200):
                client.send(ApiVersionsRequest(), 0)
                await client.receive()
                await beat(client, 0)
            found = records(server)
            assert {record.api for record in found} == {"Heartbeat"} and 14 <= len(found) <= 26

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (TraceSettings(1, apis=("ApiVersions",)), ["ApiVersions"]),
        (TraceSettings(1, apis=("Prod*", "Heartbeat")), ["Heartbeat", "Produce", "Produce"]),
        (TraceSettings(1, client_ids=("tester",)), ["ApiVersions", "Heartbeat", "Produce", "Produce"]),
        (TraceSettings(1, client_ids=("test*",), apis=("Heartbeat",)), ["Heartbeat"]),
        (TraceSettings(1, client_ids=("another",)), []),
        (TraceSettings(1, topics=("orders",)), ["Produce"]),
        (TraceSettings(1, topics=("o*", "s*")), ["Produce", "Produce"]),
        (TraceSettings(1, slower_than_ms=600_000.0), []),
        (TraceSettings(0, topics=("orders",)), []),
    ],
)
def test_filters(settings: TraceSettings, kept: list[str]) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), api_versions_api(), produce_api()) as server:
            server.network.tracer.apply(settings)
            client = await server.client()
            await beat(client, 0)
            for request, version in ((ApiVersionsRequest(), 0), (produce("orders"), 9), (produce("sales"), 9)):
                client.send(request, version)
                await client.receive()
            assert sorted(record.api for record in records(server)) == kept

    asyncio.run(scenario())


def test_only_slow_requests() -> None:
    async def scenario() -> None:
        clock = ManualClock()

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            clock.seconds += request.generation_id / 1000
            return echo(request)

        async with Server(heartbeat_api(script), clock=clock) as server:
            server.network.tracer.apply(TraceSettings(1, slower_than_ms=50.0))
            await beat(await server.client(), 0, 51, 49, 400)
            assert [(record.correlation_id, round(record.total_ms)) for record in records(server)] == [
                (1, 51),
                (3, 400),
            ]

    asyncio.run(scenario())


def test_a_trace_has_partitions_and_no_contents() -> None:
    async def scenario() -> None:
        async with Server(produce_api()) as server:
            server.network.tracer.apply(ALL)
            client = await server.client()
            client.send(produce("orders", *(f"topic-{n}" for n in range(50)), "x" * 30_000, partition=4), 9)
            await client.receive()
            (record,) = records(server)
            assert record.partition_count == 52 and len(record.partitions) == MAX_LISTED
            assert record.partitions[0] == ("orders", 4)
            text = to_json(record, 7)
            assert SECRET not in text and len(text) < 3_000
            shown = json.loads(text)
            assert (shown["kind"], shown["broker_id"], shown["topic"], shown["partition"]) == (
                "request",
                7,
                "orders",
                4,
            )

    asyncio.run(scenario())


def test_long_names_are_cut_and_unknown_ones_do_no_harm() -> None:
    async def scenario() -> None:
        async with Server(produce_api()) as server:
            server.network.tracer.apply(ALL)
            client = await server.client()
            client.send(produce("x" * 30_000), 9)
            await client.receive()
            assert len(records(server)[0].partitions[0].topic) == MAX_CHARS

    asyncio.run(scenario())


def test_the_traffic_of_the_log_itself_is_not_traced() -> None:
    async def scenario() -> None:
        async with Server(produce_api()) as server:
            server.network.tracer.apply(ALL)
            client = await server.client()
            for topics in ((REQUEST_LOG_TOPIC,), (REQUEST_LOG_TOPIC, "orders")):
                client.send(produce(*topics), 9)
                await client.receive()
            assert [record.correlation_id for record in records(server)] == [1]

    asyncio.run(scenario())


def test_a_failed_handler_a_lost_connection_and_no_response() -> None:
    async def scenario() -> None:
        waiting: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            if request.generation_id == 1:
                raise KeyError("a bug")
            return waiting if request.generation_id == 2 else None

        async with Server(heartbeat_api(script)) as server:
            server.network.tracer.apply(ALL)
            failing, leaving, silent = [await server.client() for _ in range(3)]
            failing.send(heartbeat(1))
            await failing.receive_end()
            silent.send(heartbeat(3))
            leaving.send(heartbeat(2))
            await until(lambda: len(records(server)) == 2 and server.network.channel.in_flight == 1)
            await leaving.close()
            await until(lambda: server.connection_count == 1)
            waiting.set_result(HeartbeatResponse(error_code=0))
            await until(lambda: len(records(server)) == 3)
            assert [(record.outcome, record.error) for record in records(server)] == [
                ("closed", ErrorCode.UNKNOWN_SERVER_ERROR.name),
                ("no response", "NONE"),
                ("connection ended", "NONE"),
            ]

    asyncio.run(scenario())


def test_the_ring_is_bounded_and_settings_change_at_any_time() -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            tracer = server.network.tracer
            tracer.apply(ALL)
            client = await server.client()
            await beat(client, *[0] * (RING_RECORDS + 20))
            assert len(records(server)) == RING_RECORDS and tracer.recorded == RING_RECORDS + 20
            assert records(server)[-1].sequence == RING_RECORDS + 20
            tracer.apply(TraceSettings())
            await beat(client, 0, 0)
            assert tracer.recorded == RING_RECORDS + 20
            assert client.writer.transport.get_extra_info("peername") is not None

    asyncio.run(scenario())


def test_the_partitions_that_requests_name() -> None:
    assert list(named_partitions(produce("a", "b", partition=2))) == [("a", 2), ("b", 2)]
    assert list(named_partitions(MetadataRequest(topics=[MetadataRequestTopic(name="a")]))) == [("a", -1)]
    assert list(named_partitions(MetadataRequest(topics=None))) == []
    fetch = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchTopic(topic="a", partitions=[FetchPartition(partition=5, fetch_offset=0, partition_max_bytes=1)])],
    )
    assert list(named_partitions(fetch)) == [("a", 5)]
    offsets = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="a", partition_indexes=[0, 1])])
    assert list(named_partitions(offsets)) == [("a", 0), ("a", 1)]
    many = [PartitionProduceData(index=n, records=b"") for n in range(5_000)]
    wide = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="a", partition_data=many)])
    assert len(list(named_partitions(wide))) == MAX_SEEN
