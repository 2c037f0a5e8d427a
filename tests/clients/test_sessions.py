"""Sessions that end (KIP-368): librdkafka, klamm's own client and brokers renew them without losing a request."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.client.blocking_connection import BlockingConnection
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.raw_client import eventually
from tests.support.secured_cluster import ADMIN, SecuredCluster, secured_cluster


def count(cluster: SecuredCluster, name: str) -> int:
    """The value of a count of the SASL_SSL listener."""
    port = cluster.brokers[0].ready["metrics_port"]
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(rf'socket_server_metrics_{name}{{listener="SASL_SSL"[^}}]*}} (\d+)', text)
    assert found is not None, f"there is no {name}"
    return int(found[1])


def test_clients_renew_their_sessions(tmp_path: Path) -> None:
    with secured_cluster(tmp_path, extra={"connections.max.reauth.ms": 2500}) as cluster:
        admin = AdminClient(cluster.librdkafka(ADMIN))
        admin.create_topics([NewTopic("renewed", 1, 1)])["renewed"].result(30)
        errors: list[object] = []
        producer = Producer(cluster.librdkafka() | {"error_cb": errors.append})
        host, port = cluster.bootstrap().split(":")
        security = cluster.client_security()
        with BlockingConnection((host, int(port)), client_id="test", security=security) as connection:

            def use() -> bool:
                producer.produce("renewed", b"x", on_delivery=lambda error, _: errors.append(error) if error else None)
                producer.poll(0.05)
                connection.ask(MetadataRequest(topics=[]), MetadataResponse, 1)
                return count(cluster, "successful_reauthentication_total") >= 6

            eventually(use, "the sessions were never renewed")
        assert producer.flush(30) == 0 and not errors
        assert count(cluster, "failed_reauthentication_total") == 0
        assert count(cluster, "expired_connections_killed_count") == 0
