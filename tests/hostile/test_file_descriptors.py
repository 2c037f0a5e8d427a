"""Silent connections use up the file descriptors of a broker, but for those of its logs and of new clients.

They come to a listener, or to the ZooKeeper that the broker runs. One in a process of its own keeps its files, too.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.errors import ErrorCode
from klamm.zk.model.ops import Code
from tests.support import few_files_broker
from tests.support.broker_process import BrokerProcess, write_properties
from tests.support.raw_client import batch_of
from tests.unit.zk.raw_client import RawClient

LIMIT = 125
TOPICS = 40
"""More logs than the files that the connections leave."""


@pytest.mark.parametrize("attacked", ["listener", "zookeeper", "both"])
def test_silent_connections_leave_files_for_logs_and_for_other_clients(tmp_path: Path, attacked: str) -> None:
    config = {"broker.id": 1, "log.dirs": tmp_path / "logs", "listeners": "PLAINTEXT://127.0.0.1:0"}
    path = write_properties(tmp_path / "broker.properties", config)
    with contextlib.ExitStack() as held, BrokerProcess(path, program=[few_files_broker.__file__, str(LIMIT)]) as broker:
        client = broker.client()
        found = re.search(r"the embedded ZooKeeper .* answers on \S+:(\d+)", broker.log)
        assert found is not None
        listener, zookeeper = broker.ready["listeners"]["PLAINTEXT"], int(found[1])
        ports = {"listener": [listener], "zookeeper": [zookeeper], "both": [listener, zookeeper]}[attacked]
        for _ in range(2 * LIMIT):
            for port in ports:
                held.enter_context(socket.create_connection(("127.0.0.1", port)))
        for number in range(TOPICS):
            topic = f"t{number}"
            assert client.create_topic(topic) is ErrorCode.NONE
            assert client.produce(topic, batch_of([b"kept"])).error_code == ErrorCode.NONE
        assert client.read_all("t0") == [(0, b"kept")]
        with RawClient(zookeeper) as new:
            assert new.connect().exists("/brokers/ids/1").error == Code.OK
        assert ("PLAINTEXT is full" in broker.log) == (listener in ports)
        assert ("a new one needs its place" in broker.log) == (zookeeper in ports)
        assert len(broker.log) < 100_000
        assert "oo many open files" not in broker.log, broker.log[-4_000:]


FEW_FILES_ZOOKEEPER = """
import resource, sys
from klamm.zk.server.main import main

limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
sys.exit(main(sys.argv[2:]))
"""


def test_silent_connections_leave_files_for_a_zookeeper_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FEW_FILES_ZOOKEEPER, str(LIMIT), "--data-dir", str(tmp_path / "data")]
    log = tmp_path / "zookeeper.log"
    with log.open("wb") as written:
        server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, stderr=written)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(b":", 1)[1])
        with contextlib.ExitStack() as held:
            first = held.enter_context(RawClient(port)).connect()
            for _ in range(2 * LIMIT):
                held.enter_context(socket.create_connection(("127.0.0.1", port)))
            new = held.enter_context(RawClient(port)).connect()
            assert new.create("/new").error == first.exists("/new").error == Code.OK
        text = log.read_text()
        assert "a new one needs its place" in text and "oo many open files" not in text, text[-4_000:]
    finally:
        server.terminate()
        server.communicate(timeout=300)
    assert server.returncode == 0
