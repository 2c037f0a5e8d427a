"""Brokers with SASL_SSL between them and for clients, and one listener for certificates alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from klamm.local.ports import ReservedPort
from klamm.security.client_security import ClientSecurity
from tests.support.broker_process import BrokerProcess, write_properties
from tests.support.certificates import TlsFiles, write_tls_files

ADMIN = ("admin", "admin-secret")
ALICE = ("alice", "alice-secret")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class SecuredCluster:
    """`brokers` are processes. Users of PLAIN: admin and alice; SCRAM users are created by tests."""

    def __init__(
        self, directory: Path, count: int, extra: Mapping[str, object], stores: str, program: Sequence[str] = ()
    ) -> None:
        self.files: TlsFiles = write_tls_files(directory, stores)
        self._zookeeper_port = ReservedPort()
        zookeeper_port = self._zookeeper_port.number
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
            **self.files.settings(),
            "offsets.topic.replication.factor": min(count, 3),
            "zookeeper.session.timeout.ms": 6000,
            "klamm.metrics.port": 0,
            **extra,
        }
        self.zookeeper_connect = f"127.0.0.1:{zookeeper_port}"
        self._directory = directory
        self.brokers: list[BrokerProcess] = []
        for number in range(1, count + 1):
            own: dict[str, object] = {"broker.id": number, "log.dirs": self.log_dir(number)}
            if number == 1:
                own["klamm.zookeeper.embedded.port"] = zookeeper_port
            else:
                own["zookeeper.connect"] = self.zookeeper_connect
            path = write_properties(directory / f"broker-{number}.properties", common | own)
            self.brokers.append(BrokerProcess(path, program=program))

    def close(self) -> None:
        """Nobody else gets the port of ZooKeeper before, also while it does not listen."""
        self._zookeeper_port.close()

    def log_dir(self, broker_id: int) -> Path:
        return self._directory / f"logs-{broker_id}"

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

    def socket_metric(self, name: str, listener: str = "SASL_SSL") -> int:
        """The value of a metric of one listener, from the endpoint of the first broker."""
        port = self.brokers[0].ready["metrics_port"]
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            text = answer.read().decode()
        found = re.search(rf'socket_server_metrics_{name}{{listener="{listener}"[^}}]*}} (\d+)', text)
        assert found is not None, f"there is no {name}"
        return int(found[1])

    def client_security(self, user: tuple[str, str] = ALICE, mechanism: str = "PLAIN") -> ClientSecurity:
        return ClientSecurity.from_properties(self.librdkafka(user, mechanism))


@contextmanager
def secured_cluster(
    directory: Path,
    count: int = 1,
    extra: Mapping[str, object] | None = None,
    stores: str = "PEM",
    program: Sequence[str] = (),
) -> Iterator[SecuredCluster]:
    """`stores` is the form of the brokers' keystores and truststores: PEM or PKCS12. `program` runs the brokers."""
    cluster = SecuredCluster(directory, count, extra or {}, stores, program)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        for broker in cluster.brokers:
            stack.enter_context(broker)
        yield cluster
