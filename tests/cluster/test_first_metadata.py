"""A broker without metadata from a controller does not answer clients: it must not report an empty cluster."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.blocking_connection import BlockingConnection
from klamm.errors import ErrorCode
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.protocol.frames import RequestHeader, decode_response_header
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from klamm.protocol.wire import decode
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.client_mechanisms import SaslCredentials
from klamm.security.sasl.mechanisms import KLAMM_PEER
from klamm.security.secret import Secret
from klamm.zk.model import paths
from klamm.zk.model.znodes import encode_controller, encode_controller_epoch
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.broker_process import BrokerProcess, write_properties
from tests.support.frames import encode_request_frame
from tests.support.raw_client import TIMEOUT_S, eventually

ANOTHER = 99
EPOCH = 7
VERSION = 7


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[KazooClient]:
    """Somebody else is the controller: the test."""
    server = EmbeddedZooKeeperThread(tmp_path / "zookeeper", fsync=False).start()
    client = KazooClient(server.address, timeout=TIMEOUT_S)
    client.start()
    client.create("/controller_epoch", encode_controller_epoch(EPOCH))
    client.create("/controller", encode_controller(ANOTHER, 0), ephemeral=True)
    yield client
    client.stop()
    client.close()
    server.stop()


@contextlib.contextmanager
def launched(
    zookeeper: KazooClient, directory: Path, *, admits_unproven: bool = True
) -> Iterator[tuple[BrokerProcess, int]]:
    """A broker that has registered, and its port."""
    with ReservedPort() as port:
        properties = {
            "broker.id": 1,
            "zookeeper.connect": "{}:{}".format(*zookeeper.hosts[0]),
            "listeners": f"PLAINTEXT://{LOOPBACK}:{port.number}",
            "log.dirs": directory / "data",
            "controlled.shutdown.enable": "false",
            "zookeeper.connection.timeout.ms": 60_000,
            "klamm.admit.unproven.peers": str(admits_unproven).lower(),  # the test acts as the controller
        }
        broker = BrokerProcess(write_properties(directory / "broker.properties", properties))
        with broker.launched():
            eventually(lambda: zookeeper.exists("/brokers/ids/1") is not None, f"no registration:\n{broker.log}")
            yield broker, port.number


def ask_metadata(client: socket.socket) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="somewhere")], allow_auto_topic_creation=False)
    client.sendall(b"".join(encode_request_frame(RequestHeader(request.KEY, VERSION, 1, "test"), request)))


def read_metadata(client: socket.socket) -> MetadataResponse:
    with client.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        frame = stream.read(size)
    _, position = decode_response_header(MetadataRequest.KEY, VERSION, frame)
    answer, _ = decode(MetadataResponse, VERSION, frame, position)
    return answer


def update(port: int, broker_epoch: int) -> UpdateMetadataRequest:
    endpoint = UpdateMetadataEndpoint(port=port, host=LOOPBACK, listener="PLAINTEXT", security_protocol=0)
    return UpdateMetadataRequest(
        controller_id=ANOTHER,
        controller_epoch=EPOCH,
        broker_epoch=broker_epoch,
        live_brokers=[UpdateMetadataBroker(id_=1, endpoints=[endpoint])],
    )


def test_clients_wait_for_the_first_update(zookeeper: KazooClient, tmp_path: Path) -> None:
    with launched(zookeeper, tmp_path) as (_, port):
        with (
            socket.create_connection((LOOPBACK, port), TIMEOUT_S) as client,
            BlockingConnection((LOOPBACK, port), client_id="controller") as controller,
        ):
            ask_metadata(client)
            broker_epoch = zookeeper.exists("/brokers/ids/1").czxid
            # updates for an earlier life of this broker are refused, and show that the client's request has been read
            for _ in range(3):
                refused = controller.ask(update(port, broker_epoch=0), UpdateMetadataResponse, VERSION)
                assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH
            reported = controller.ask(update(port, broker_epoch), UpdateMetadataResponse, VERSION)
            assert reported.error_code == ErrorCode.NONE
            answer = read_metadata(client)
        assert [(each.node_id, each.port) for each in answer.brokers] == [(1, port)]
        assert answer.controller_id == ANOTHER


def test_a_controller_that_proves_itself_is_obeyed(zookeeper: KazooClient, tmp_path: Path) -> None:
    with launched(zookeeper, tmp_path, admits_unproven=False) as (_, port):
        request = update(port, zookeeper.exists("/brokers/ids/1").czxid)
        with (
            socket.create_connection((LOOPBACK, port), TIMEOUT_S) as client,
            BlockingConnection((LOOPBACK, port), client_id="stranger") as stranger,
        ):
            ask_metadata(client)
            refused = stranger.ask(request, UpdateMetadataResponse, VERSION)
            assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            secret = Secret(zookeeper.get(paths.PEER_SECRET)[0].decode())
            assert asyncio.run(prove_and_ask(port, secret, request)) == ErrorCode.NONE
            answer = read_metadata(client)
        assert [(each.node_id, each.port) for each in answer.brokers] == [(1, port)]


async def prove_and_ask(port: int, secret: Secret[str], request: UpdateMetadataRequest) -> int:
    security = ClientSecurity(peer=SaslCredentials(KLAMM_PEER, str(ANOTHER), secret))
    timeout_ms = int(TIMEOUT_S * 1000)
    connection = await BrokerConnection.connect(
        LOOPBACK, port, timeout_ms=timeout_ms, request_timeout_ms=timeout_ms, security=security
    )
    response = await connection.send(request, VERSION)
    connection.close()
    await connection.closed
    return int(response.error_code)


def test_a_broker_that_waits_for_its_first_update_can_be_stopped(zookeeper: KazooClient, tmp_path: Path) -> None:
    with launched(zookeeper, tmp_path) as (broker, port):
        with socket.create_connection((LOOPBACK, port), TIMEOUT_S) as client:
            ask_metadata(client)
            broker.stop()
        assert "Traceback" not in broker.log
