"""Asks the table of authorization (tests/support/acl_table.py) of a broker of Apache Kafka.

tests/unit/security asks it of klamm: both must agree with the table.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from compat.mixed_cluster.cluster import MixedCluster

from klamm.client.blocking_connection import BlockingConnection, ask_once
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.protocol.schema import plan
from klamm.protocol.wire import Message
from tests.support.acl_rounds import AclRounds
from tests.support.acl_table import API_BY_NAME, rows
from tests.support.messages import build

TIMEOUT_MS: Final = 30_000
PASSWORD: Final = "alice-password"
SETTINGS: Final = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 1,
    "auto.create.topics.enable": "true",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'
    ),
}


class GuardedKafka(MixedCluster):
    """One broker of Apache Kafka with an authorizer: a listener for the broker and its super user, one for alice."""

    def __init__(self) -> None:
        self._sasl_port = ReservedPort()
        super().__init__({1: "kafka"}, configs=SETTINGS)

    def close(self) -> None:
        super().close()
        self._sasl_port.close()

    def _properties(self, broker_id: int) -> dict[str, object]:
        settings = super()._properties(broker_id)
        listeners = f"{settings['listeners']},SASL_PLAINTEXT://{LOOPBACK}:{self._sasl_port.number}"
        return settings | {"listeners": listeners}

    def connect(self, *, is_alice: bool) -> BlockingConnection:
        port = self._sasl_port.number if is_alice else self._ports[1].number
        connection = BlockingConnection((LOOPBACK, port), client_id="table", timeout_ms=TIMEOUT_MS)
        if is_alice:
            connection.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
            token = f"\0alice\0{PASSWORD}".encode()
            answer = connection.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 0)
            assert answer.error_code == 0, answer.error_message
        return connection

    def ask(self, name: str, request: Message, version: int, *, is_alice: bool = False) -> Any:
        """Over a connection of its own: some refusals close it."""
        with self.connect(is_alice=is_alice) as connection:
            return connection.ask(request, API_BY_NAME[name].response, version)

    @cache  # noqa: B019 - one cluster per run
    def versions(self, name: str) -> range:
        request = ApiVersionsRequest(client_software_name="table", client_software_version="1")
        with self.connect(is_alice=False) as connection:
            found = connection.ask(request, ApiVersionsResponse, 3)
        known = {api.api_key: range(api.min_version, api.max_version + 1) for api in found.api_keys}
        return known.get(API_BY_NAME[name].key, range(0))


class Shared:
    """A cluster of one klamm and one Kafka broker: each must follow the entries that the other writes."""

    CREATIONS: Final = (
        {"resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3, "operation": 3},
        {"resource_type": 2, "resource_name": "ord", "resource_pattern_type": 4, "operation": 4},
        {"resource_type": 5, "resource_name": "x", "resource_pattern_type": 3, "operation": 2},
    )

    def __init__(self, cluster: MixedCluster) -> None:
        self._cluster = cluster

    def _ask(self, broker_id: int, name: str, fields: dict[str, Any]) -> Any:
        api = API_BY_NAME[name]
        request = build(plan(api.request, 2), fields)
        return ask_once(self._cluster.answering()[broker_id], request, 2, api.response, TIMEOUT_MS / 1000)

    def _chosen(self, principal: str) -> dict[str, Any]:
        names = {"resource_name_filter": None, "principal_filter": principal, "host_filter": None}
        return {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1, **names}

    def _seen(self, broker_id: int, principal: str) -> set[tuple[Any, ...]]:
        response = self._ask(broker_id, "DescribeAcls", self._chosen(principal))
        return {
            (found.resource_type, found.resource_name, found.pattern_type, acl.operation)
            for found in response.resources
            for acl in found.acls
        }

    def check(self, writer: int, reader: int) -> None:
        principal = f"User:of-{writer}"
        other = {"principal": principal, "host": "*", "permission_type": 3}
        self._ask(writer, "CreateAcls", {"creations": [creation | other for creation in self.CREATIONS]})
        written = {tuple(creation.values()) for creation in self.CREATIONS}
        kinds = f"{self._cluster.kinds[reader]} follows {self._cluster.kinds[writer]}"
        self._cluster.wait(lambda: self._seen(reader, principal) == written, f"{kinds}: new entries")
        self._ask(reader, "DeleteAcls", {"filters": [self._chosen(principal)]})
        self._cluster.wait(lambda: not self._seen(writer, principal), f"{kinds}: removed entries")
        print(f"ok {kinds}", flush=True)


def run_shared() -> None:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "offsets.topic.replication.factor": 1,
    }
    with MixedCluster({1: "klamm", 2: "kafka"}, configs=settings) as cluster:
        cluster.start(1, 2)
        shared = Shared(cluster)
        shared.check(writer=1, reader=2)
        shared.check(writer=2, reader=1)


def known_differences() -> set[str]:
    lines = (Path(__file__).parent / "known-differences.txt").read_text().splitlines()
    return {line.split(" | ")[0].strip() for line in lines if line.strip() and not line.startswith("#")}


def run() -> int:
    known = known_differences()
    with GuardedKafka() as kafka:
        kafka.start(1)
        rounds = AclRounds(kafka.ask)
        rounds.prepare()
        for row in rows():
            name = f"{row.api} {row.what}"
            lines = rounds.differences(row, partial(kafka.ask, is_alice=True), kafka.versions)
            if lines and name not in known:
                print(f"not ok {name}: {len(lines)} outcomes differ", flush=True)
            else:
                print(f"ok {name}", flush=True)
            for line in lines:
                print(f"  {line}", flush=True)
    run_shared()
    return 0


if __name__ == "__main__":
    sys.exit(run())
