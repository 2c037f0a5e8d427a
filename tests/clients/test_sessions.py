"""Sessions that end (KIP-368): librdkafka, klamm's own client and brokers renew them without losing a request."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.client.blocking_connection import BlockingConnection
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.raw_client import eventually
from tests.support.secured_cluster import ADMIN, secured_cluster

SESSIONS_MS = (2_500, 10_000, 40_000)
"""Clients renew a session after nine tenths of it. If the machine stood still for the last tenth, a longer session
follows.
"""


def test_clients_renew_their_sessions(tmp_path: Path) -> None:
    problems: list[object] = []
    for session_ms in SESSIONS_MS:
        problems = renew(tmp_path / str(session_ms), session_ms)
        if not problems:
            return
    raise AssertionError(problems)


def renew(directory: Path, session_ms: int) -> list[object]:
    """Use connections until their sessions were renewed; return the problems that clients and broker had."""
    directory.mkdir()
    with secured_cluster(directory, extra={"connections.max.reauth.ms": session_ms}) as cluster:
        admin = AdminClient(cluster.librdkafka(ADMIN))
        admin.create_topics([NewTopic("renewed", 1, 1)])["renewed"].result(120)
        errors: list[object] = []
        producer = Producer(cluster.librdkafka() | {"error_cb": errors.append})
        host, port = cluster.bootstrap().split(":")
        security = cluster.client_security()
        with BlockingConnection((host, int(port)), client_id="test", security=security) as connection:

            def use() -> bool:
                producer.produce("renewed", b"x", on_delivery=lambda error, _: errors.append(error) if error else None)
                producer.poll(0.05)
                connection.ask(MetadataRequest(topics=[]), MetadataResponse, 1)
                return cluster.socket_metric("successful_reauthentication_total") >= 6

            eventually(use, "the sessions were never renewed")
        assert producer.flush(120) == 0
        assert cluster.socket_metric("failed_reauthentication_total") == 0
        killed = cluster.socket_metric("expired_connections_killed_count")
        return [*errors, f"{killed} connections had an old session"] if errors or killed else []
