"""Brokers with SASL_SSL between them and for clients, and one listener for certificates alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from klamm.security.client_security import ClientSecurity
from tests.support.broker_process import BrokerProcess, write_properties
from tests.support.certificates import TlsFiles, write_tls_files

ADMIN = ("admin", "admin-secret")
ALICE = ("alice", "alice-secret")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class SecuredCluster:
    """`brokers` are processes. Users of PLAIN: admin and alice; SCRAM users are created by tests."""

    def __init__(self, directory: Path, count: int, extra: Mapping[str, object]) -> None:
        self.files: TlsFiles = write_tls_files(directory)
        zookeeper_port = _free_port()
        users = "".join(f' user_{name}="{password}"' for name, password in (ADMIN, ALICE))
        jaas = f'{_PLAIN} required username="{ADMIN[0]}" password="{ADMIN[1]}"{users};'
        common: dict[str, object] = {
            "listeners": "SASL_SSL://localhost:0,SSL://localhost:0",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "klamm.sasl.oauthbearer.unsecured.tokens": "true",
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^.*CN=([a-z]+).*$/$1/L",
            "ssl.keystore.location": self.files.broker,
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": self.files.ca,
            "ssl.truststore.type": "PEM",
            "offsets.topic.replication.factor": min(count, 3),
            "zookeeper.session.timeout.ms": 6000,
            "klamm.metrics.port": 0,
            **extra,
        }
        self.brokers: list[BrokerProcess] = []
        for number in range(1, count + 1):
            own: dict[str, object] = {"broker.id": number, "log.dirs": directory / f"logs-{number}"}
            if number == 1:
                own["klamm.zookeeper.embedded.port"] = zookeeper_port
            else:
                own["zookeeper.connect"] = f"127.0.0.1:{zookeeper_port}"
            path = write_properties(directory / f"broker-{number}.properties", common | own)
            self.brokers.append(BrokerProcess(path))

    def bootstrap(self, listener: str = "SASL_SSL") -> str:
        return ",".join(f"localhost:{broker.ready['listeners'][listener]}" for broker in self.brokers)

    def librdkafka(self, user: tuple[str, str] = ALICE, mechanism: str = "PLAIN") -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap(),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.files.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user[0],
            "sasl.password": user[1],
        }

    def client_security(self, user: tuple[str, str] = ALICE, mechanism: str = "PLAIN") -> ClientSecurity:
        return ClientSecurity.from_properties(self.librdkafka(user, mechanism))


@contextmanager
def secured_cluster(
    directory: Path, count: int = 1, extra: Mapping[str, object] | None = None
) -> Iterator[SecuredCluster]:
    cluster = SecuredCluster(directory, count, extra or {})
    with ExitStack() as stack:
        for broker in cluster.brokers:
            stack.enter_context(broker)
        yield cluster


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
