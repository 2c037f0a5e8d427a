"""A control plane listener carries the controller's requests while the data plane of every broker is full."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial

from klamm.cli.up import CONTROL_PLANE
from klamm.local.ports import LOOPBACK
from klamm.protocol.frames import RequestHeader
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.testing import LocalCluster
from tests.support.frames import encode_request_frame
from tests.support.raw_client import eventually

QUEUED = 8
CONNECTIONS = 4
VICTIM = 3
SURVIVORS = (1, 2)
Metrics = dict[str, float]


def metrics(cluster: LocalCluster, broker_id: int) -> Metrics:
    with urllib.request.urlopen(f"http://{cluster.metrics_address(broker_id)}/metrics", timeout=120) as response:
        lines = response.read().decode().splitlines()
    named = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in named}


def queued_data(values: Metrics) -> float:
    return values["kafka_network_requestchannel_requestqueuesize"]


def is_full(cluster: LocalCluster, broker_id: int) -> bool:
    return queued_data(metrics(cluster, broker_id)) >= QUEUED


def leader_and_isrs(values: Metrics) -> float:
    return values['kafka_network_requestmetrics_localtimems_count{request="LeaderAndIsr"}']


def control_bytes(values: Metrics) -> float:
    name = 'kafka_server_socket_server_metrics_incoming_byte_total{listener="CONTROLLER"'
    return sum(value for key, value in values.items() if key.startswith(name))


@contextlib.contextmanager
def saturated(ports: list[int]) -> Iterator[None]:
    """Send Metadata requests for all topics to the data listeners, as many as the brokers read."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    frames = 50 * b"".join(encode_request_frame(RequestHeader(request.KEY, 9, 1, "load"), request))
    connections = [socket.create_connection((LOOPBACK, port), 120) for port in ports for _ in range(CONNECTIONS)]

    def send(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(frames)

    def discard(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(1 << 20):
                pass

    threads = [
        threading.Thread(target=work, args=(connection,)) for connection in connections for work in (send, discard)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.close()


def test_controller_requests_pass_a_full_data_plane() -> None:
    configs = {
        **CONTROL_PLANE,
        "klamm.metrics.port": 0,
        "queued.max.requests": QUEUED,
        "zookeeper.session.timeout.ms": 30_000,
    }
    with LocalCluster(3, broker_configs=configs) as cluster:
        cluster.create_topic("orders", partitions=100, replication_factor=3)
        before = {broker_id: metrics(cluster, broker_id) for broker_id in SURVIVORS}
        with saturated([cluster.port(broker_id) for broker_id in SURVIVORS]):
            for broker_id in SURVIVORS:
                eventually(partial(is_full, cluster, broker_id), "the data plane is not full")
            cluster.stop(VICTIM)
            for broker_id in SURVIVORS:

                def passed(broker_id: int = broker_id) -> bool:
                    """Whether one scrape shows both a full data queue and new requests of the controller."""
                    values, first = metrics(cluster, broker_id), before[broker_id]
                    is_new = leader_and_isrs(values) > leader_and_isrs(first)
                    return is_new and control_bytes(values) > control_bytes(first) and queued_data(values) >= QUEUED

                eventually(passed, f"broker {broker_id} received nothing over its control plane")
        assert all(cluster.leader("orders", partition) in SURVIVORS for partition in (0, 50, 99))
