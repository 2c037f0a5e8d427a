"""Silent connections use up the file descriptors of a broker, but for those of its logs and of new clients."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from klamm.errors import ErrorCode
from tests.support import few_files_broker
from tests.support.broker_process import BrokerProcess, write_properties
from tests.support.raw_client import batch_of

LIMIT = 125
TOPICS = 40
"""More logs than the files that the connections leave."""


def test_silent_connections_leave_files_for_logs_and_for_other_clients(tmp_path: Path) -> None:
    config = {"broker.id": 1, "log.dirs": tmp_path / "logs", "listeners": "PLAINTEXT://127.0.0.1:0"}
    path = write_properties(tmp_path / "broker.properties", config)
    with contextlib.ExitStack() as held, BrokerProcess(path, program=[few_files_broker.__file__, str(LIMIT)]) as broker:
        client = broker.client()
        for _ in range(2 * LIMIT):
            held.enter_context(socket.create_connection(("127.0.0.1", broker.ready["listeners"]["PLAINTEXT"])))
        for number in range(TOPICS):
            topic = f"t{number}"
            assert client.create_topic(topic) is ErrorCode.NONE
            assert client.produce(topic, batch_of([b"kept"])).error_code == ErrorCode.NONE
        assert client.read_all("t0") == [(0, b"kept")]
        assert "PLAINTEXT is full" in broker.log
        assert "oo many open files" not in broker.log, broker.log[-4_000:]
