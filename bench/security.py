"""The cost of TLS and SASL on one broker: `python -m bench.security [--peer kafka --warm-up 2000]`.

The figures of the first table are CPU time of the broker process per request or login, read from the system: the
client's share, and other programs on the machine, do not count. The other tables are wall-clock time and need a quiet
machine: the throughput of one connection, and the start of a `LocalCluster` of three brokers. Plain and secured sides
take turns; the tables show medians. The short form, without Kafka: `--rounds 1 --count 40 --starts 1 --print-only`.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench import report
from klamm.client.blocking_connection import BlockingConnection, ReceiveBuffer
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.mechanisms import SCRAM_SHA_512
from klamm.security.sasl.scram_credential import salted_password
from klamm.security.tls.contexts import client_context
from klamm.testing import LocalCluster
from tests.support.certificates import TlsFiles
from tests.support.secured_cluster import secured_cluster

KIB, MIB = 1 << 10, 1 << 20
TOPIC = "measured"


class Measured:
    """A broker under measurement and how to connect to its listeners."""

    def __init__(self, name: str, pid: int, addresses: Mapping[str, tuple[str, int]], files: TlsFiles) -> None:
        self.name = name
        self._pid = pid
        self._addresses = addresses
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
        return self._addresses[listener]

    def per_step_us(self, step: Callable[[], object], count: int) -> float:
        """Return the broker's CPU time per step, in microseconds."""
        before = self.cpu_s()
        for _ in range(count):
            step()
        return (self.cpu_s() - before) / count * 1e6


def produce_request() -> ProduceRequest:
    batch = build_batch([Record(value=bytes(16 * KIB - 100))])
    data = [PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)])


def fetch_request() -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=[FetchTopic(topic=TOPIC, partitions=[part])])


def request_step(connection: BlockingConnection, request: Message, version: int) -> Callable[[], object]:
    def step() -> None:
        connection.send(request, version)
        connection.receive()

    return step


class Stream:
    """Requests of one kind on one connection, several of them in flight."""

    def __init__(
        self, connection: BlockingConnection, request: Message, version: int, request_bytes: int, in_flight: int
    ) -> None:
        self._connection = connection
        self._request = request
        self._version = version
        self._request_bytes = request_bytes
        self._in_flight = in_flight
        self._buffer = ReceiveBuffer()

    def mb_per_s(self, count: int) -> float:
        """Return the rate of the records of `count` requests, in units of 1,000,000 bytes."""
        begun = time.perf_counter()
        for _ in range(min(self._in_flight, count)):
            self._connection.send(self._request, self._version)
        for number in range(count):
            self._connection.receive(buffer=self._buffer)
            if number + self._in_flight < count:
                self._connection.send(self._request, self._version)
        return self._request_bytes * count / (time.perf_counter() - begun) / 1e6


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


SCRAM: Final = ClientSecurity.from_properties(
    {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "bench",
        "sasl.password": "bench-secret",
    }
)
Step = Callable[[], object]


def steps(measured: Measured, count: int) -> dict[str, tuple[Step, Step, int]]:
    """Return the plain and the secured step of each row, and their number."""
    with measured.connect("PLAINTEXT", measured.plain) as admin:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        admin.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CreateTopicsResponse, 4)
    plain, secured = measured.connect("PLAINTEXT", measured.plain), measured.connect("SSL", measured.tls)
    produced, fetched = produce_request(), fetch_request()
    return {
        "Produce, 16 KiB": (request_step(plain, produced, 9), request_step(secured, produced, 9), count),
        "Fetch, 1 MiB": (request_step(plain, fetched, 11), request_step(secured, fetched, 11), count // 2),
        "Connection, TLS handshake with certificates": (connect_step(measured), handshake_step(measured), count // 2),
        "Connection, SCRAM-SHA-256 login": (connect_step(measured), login_step(measured, SCRAM), count // 2),
    }


def rows(sides: Sequence[Measured], rounds: int, count: int, warm_up: int) -> list[tuple[str, ...]]:
    """Measure the sides in turn. A JVM is faster after many steps, so each step is warmed up."""
    made = [steps(side, count) for side in sides]
    found: list[tuple[str, ...]] = []
    for name in made[0]:
        taken: dict[tuple[int, int], list[float]] = {}
        for turn in range(rounds + 1):
            for number, side in enumerate(sides):
                *both, repeats = made[number][name]
                for security, step in enumerate(both):
                    us = side.per_step_us(step, warm_up if turn == 0 else repeats)
                    if turn:
                        taken.setdefault((number, security), []).append(us)
        found.append((name, *cells(taken, len(sides), is_connection=name.startswith("Connection"))))
    return found


def cells(taken: Mapping[tuple[int, int], list[float]], sides: int, *, is_connection: bool) -> list[str]:
    """Return plain, secured, their ratio and connections per second of CPU per side; then klamm's by Kafka's figure."""
    out: list[str] = []
    medians = {key: statistics.median(values) for key, values in taken.items()}
    for number in range(sides):
        plain, secured = medians[number, 0], medians[number, 1]
        per_s = f"{1e6 / secured:,.0f}" if is_connection else ""
        out += [f"{plain:,.0f}", f"{secured:,.0f}", f"{secured / plain:.2f}" if plain >= 1 else "", per_s]
    return [*out, f"{medians[0, 1] / medians[1, 1]:.2f}"] if sides > 1 else out


def throughput_rows(sides: Sequence[Measured], rounds: int, count: int) -> list[tuple[str, ...]]:
    """Measure the rate of one connection. The topic is warm: `rows` has written and read it."""
    kinds: dict[str, tuple[Message, int, int, int, int]] = {
        "Produce, 16 KiB, 5 in flight": (produce_request(), 9, 16 * KIB, 5, 2 * count),
        "Fetch, 1 MiB, 2 in flight": (fetch_request(), 11, MIB, 2, count // 2),
    }
    found: list[tuple[str, ...]] = []
    for name, (request, version, request_bytes, in_flight, repeats) in kinds.items():
        taken: dict[tuple[int, int], list[float]] = {}
        with ExitStack() as stack:
            streams = {}
            for number, side in enumerate(sides):
                for security, (listener, how) in enumerate((("PLAINTEXT", side.plain), ("SSL", side.tls))):
                    connection = stack.enter_context(side.connect(listener, how))
                    streams[number, security] = Stream(connection, request, version, request_bytes, in_flight)
            for turn in range(rounds + 1):
                for key, stream in streams.items():
                    rate = stream.mb_per_s(repeats)
                    if turn:
                        taken.setdefault(key, []).append(rate)
        medians = {key: statistics.median(values) for key, values in taken.items()}
        row = [name]
        for number in range(len(sides)):
            plain, secured = medians[number, 0], medians[number, 1]
            row += [f"{plain:,.0f}", f"{secured:,.0f}", f"{secured / plain:.2f}"]
        found.append((*row, f"{medians[0, 1] / medians[1, 1]:.2f}") if len(sides) > 1 else tuple(row))
    return found


def start_row(starts: int) -> tuple[str, ...]:
    """Measure the start of a cluster of three, plain and secured in turn: until every broker is ready for clients."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(starts):
        for is_secured, taken in enumerate(seconds):
            begun = time.perf_counter()
            sasl = SCRAM_SHA_512 if is_secured else None
            with LocalCluster(3, tls=bool(is_secured), sasl=sasl, acls=bool(is_secured)):
                taken.append(time.perf_counter() - begun)
    plain, secured = map(statistics.median, seconds)
    return ("LocalCluster(3)", f"{plain:.2f}", f"{secured:.2f}", f"{secured / plain:.2f}")


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


LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT")
COMMON: Final = {"security.inter.broker.protocol": "PLAINTEXT", "sasl.enabled.mechanisms": "SCRAM-SHA-256"}


@contextmanager
def klamm_broker(directory: Path) -> Iterator[tuple[Measured, TlsFiles]]:
    extra = {"listeners": ",".join(f"{name}://localhost:0" for name in LISTENERS), **COMMON}
    with secured_cluster(directory, 1, extra) as cluster:
        broker = cluster.brokers[0]
        addresses = {name: ("localhost", int(broker.ready["listeners"][name])) for name in LISTENERS}
        yield Measured("klamm", broker.process.pid, addresses, cluster.files), cluster.files


@contextmanager
def kafka_broker(files: TlsFiles) -> Iterator[Measured]:
    from bench.clusters import KafkaCluster
    from klamm.local.ports import LOOPBACK, ReservedPort

    ports = {name: ReservedPort() for name in LISTENERS[1:]}
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    configs: dict[str, object] = {
        **COMMON,
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{module} required;",
        "ssl.keystore.location": files.broker,
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": files.ca,
        "ssl.truststore.type": "PEM",
    }
    cluster = KafkaCluster(1, configs)
    cluster.add_listeners({name: port.number for name, port in ports.items()})
    try:
        with cluster:
            addresses = {name: ("localhost", port.number) for name, port in ports.items()}
            yield Measured("Kafka", cluster.pid(1), {**addresses, "PLAINTEXT": (LOOPBACK, cluster.port(1))}, files)
    finally:
        for port in ports.values():
            port.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400, help="requests per round")
    parser.add_argument("--peer", choices=["kafka"], help="measure Apache Kafka in turn with klamm")
    parser.add_argument("--warm-up", type=int, default=50, help="requests of each kind before the first round")
    parser.add_argument("--starts", type=int, default=5, help="starts of a plain and of a secured cluster; 0: none")
    parser.add_argument("--print-only", action="store_true", help="leave RESULTS.md as it is")
    options = parser.parse_args()
    load = report.load_average()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        klamm, files = stack.enter_context(klamm_broker(directory))
        sides = [klamm, stack.enter_context(kafka_broker(files))] if options.peer else [klamm]
        for side in sides:
            set_up_user(side)
        costs = rows(sides, options.rounds, options.count, options.warm_up)
        rates = throughput_rows(sides, options.rounds, options.count)
    started = [start_row(options.starts)] if options.starts else []
    text = document(sides, costs, rates, started, options.rounds, options.warm_up, load)
    if not options.print_only:
        report.write_section("security", text)
    print(text)


def document(
    sides: Sequence[Measured],
    costs: list[tuple[str, ...]],
    rates: list[tuple[str, ...]],
    started: list[tuple[str, ...]],
    rounds: int,
    warm_up: int,
    load: float,
) -> str:
    """Return the section of RESULTS.md."""
    last = ["klamm / Kafka"] if len(sides) > 1 else []

    def head(*columns: str) -> list[str]:
        return ["", *(f"{side.name} {column}" for side in sides for column in columns), *last]

    def goal(sentence: str) -> str:
        return f" The last column is klamm's secured figure divided by Kafka's; the goal is {sentence}." if last else ""

    parts = [
        "## TLS and SASL",
        "CPU time of the broker process per request or connection; TLS 1.3, one connection. "
        f"Medians of {rounds} rounds, after {warm_up} requests of each kind. "
        f"`per s` is connections per second of CPU.{goal('at most 1')}",
        f"{report.machine()} {report.load_note(load)}",
        report.table(head("plain, us", "secured, us", "ratio", "per s"), costs),
        f"Throughput of one connection by the clock: records in MB/s, plain and with TLS.{goal('at least 1')}",
        report.table(head("plain, MB/s", "TLS, MB/s", "ratio"), rates),
    ]
    if started:
        parts.append(
            "The start of three brokers by the clock, until they are ready for clients: plain, and with "
            '`tls=True, sasl="SCRAM-SHA-512", acls=True`, which includes certificates and users.'
        )
        parts.append(report.table(["", "plain, s", "secured, s", "ratio"], started))
    return "\n\n".join(part.strip() for part in parts)


if __name__ == "__main__":
    main()
