"""The cost of TLS and SASL on one broker: `python -m bench.security`.

The figures are CPU time of the broker process per request or login, read from the system: the client's share, and other
programs on the machine, do not count. Plain and secured connections take turns; the table shows medians.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import report
from klamm.client.blocking_connection import BlockingConnection
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.scram_credential import salted_password
from klamm.security.tls.contexts import client_context
from tests.support.secured_cluster import SecuredCluster, secured_cluster

KIB, MIB = 1 << 10, 1 << 20
TOPIC = "measured"


class Measured:
    """The broker under measurement and how to connect to its listeners."""

    def __init__(self, cluster: SecuredCluster) -> None:
        self.cluster = cluster
        self._pid = cluster.brokers[0].process.pid
        files = cluster.files
        tls = {"ssl.ca.location": str(files.ca), "ssl.certificate.location": str(files.client)}
        self.plain = ClientSecurity()
        self.tls = ClientSecurity.from_properties(
            {"security.protocol": "SSL", **tls, "ssl.key.location": str(files.client)}
        )

    def cpu_s(self) -> float:
        threads = Path(f"/proc/{self._pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def connect(self, listener: str, security: ClientSecurity) -> BlockingConnection:
        return BlockingConnection(self.address(listener), client_id="bench", security=security)

    def address(self, listener: str) -> tuple[str, int]:
        return "localhost", int(self.cluster.brokers[0].ready["listeners"][listener])

    def per_step_us(self, step: Callable[[], object], count: int) -> float:
        """Return the broker's CPU time per step, in microseconds."""
        step()
        before = self.cpu_s()
        for _ in range(count):
            step()
        return (self.cpu_s() - before) / count * 1e6


def produce_step(connection: BlockingConnection) -> Callable[[], object]:
    batch = build_batch([Record(value=bytes(16 * KIB - 100))])
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)])

    def step() -> None:
        connection.send(request, 9)
        connection.receive()

    return step


def fetch_step(connection: BlockingConnection) -> Callable[[], object]:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    topics = [FetchTopic(topic=TOPIC, partitions=[part])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=topics)

    def step() -> None:
        connection.send(request, 11)
        connection.receive()

    return step


def handshake_step(measured: Measured) -> Callable[[], object]:
    assert measured.tls.tls is not None
    context = client_context(measured.tls.tls)

    def step() -> None:
        plain = socket.create_connection(measured.address("SSL"))
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.do_handshake()

    return step


def login_step(measured: Measured, security: ClientSecurity) -> Callable[[], object]:
    return lambda: measured.connect("SASL_PLAINTEXT", security).close()


def connect_step(measured: Measured) -> Callable[[], object]:
    return lambda: measured.connect("PLAINTEXT", measured.plain).close()


def rows(measured: Measured, rounds: int, count: int) -> list[tuple[str, ...]]:
    with measured.connect("PLAINTEXT", measured.plain) as admin:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        admin.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse, 4)
    scram = ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "bench",
            "sasl.password": "bench-secret",
        }
    )
    plain, secured = measured.connect("PLAINTEXT", measured.plain), measured.connect("SSL", measured.tls)
    pairs = {
        "Produce, 16 KiB": (produce_step(plain), produce_step(secured), count),
        "Fetch, 1 MiB": (fetch_step(plain), fetch_step(secured), count // 2),
        "Connection, TLS handshake with certificates": (connect_step(measured), handshake_step(measured), count // 2),
        "Connection, SCRAM-SHA-256 login": (connect_step(measured), login_step(measured, scram), count // 2),
    }
    found: list[tuple[str, ...]] = []
    for name, (first, second, steps) in pairs.items():
        taken = [(measured.per_step_us(first, steps), measured.per_step_us(second, steps)) for _ in range(rounds)]
        one, two = (statistics.median(pair[side] for pair in taken) for side in (0, 1))
        per_s = f"{1e6 / two:,.0f}" if name.startswith("Connection") else ""
        found.append((name, f"{one:,.0f}", f"{two:,.0f}", f"{two / max(one, 1e-9):.2f}", per_s))
    return found


def set_up_user(measured: Measured) -> None:
    """Create the SCRAM user through the broker, with a password that is hashed here."""
    from klamm.protocol.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
        ScramCredentialUpsertion,
    )

    salt = b"salt of sixteen."
    salted = salted_password("SCRAM-SHA-256", "bench-secret", salt, 4096)
    upsertion = ScramCredentialUpsertion(name="bench", mechanism=1, iterations=4096, salt=salt, salted_password=salted)
    with measured.connect("PLAINTEXT", measured.plain) as admin:
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
        answer = admin.ask(request, AlterUserScramCredentialsResponse, 0)
        assert answer.results[0].error_code == 0, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400, help="requests per round")
    options = parser.parse_args()
    extra = {
        "listeners": "PLAINTEXT://localhost:0,SSL://localhost:0,SASL_PLAINTEXT://localhost:0",
        "security.inter.broker.protocol": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    load = report.load_average()
    with tempfile.TemporaryDirectory() as directory, secured_cluster(Path(directory), 1, extra) as cluster:
        measured = Measured(cluster)
        set_up_user(measured)
        found = rows(measured, options.rounds, options.count)
    head = ("", "plain, us", "secured, us", "ratio", "per second of CPU")
    text = (
        "## TLS and SASL\n\nCPU time of the broker process per request or connection; TLS 1.3, one connection. "
        f"Medians of {options.rounds} rounds.\n\n{report.machine()} {report.load_note(load)}\n\n"
        f"{report.table(head, found)}"
    )
    report.write_section("security", text)
    print(text)


if __name__ == "__main__":
    main()
