"""Apache Kafka's kafka-transactions.sh on a klamm broker, `before` and `after` a restart: a line per check."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from bench.kafka_tools import run_tool
from klamm.errors import KlammError
from klamm.security.client_security import ClientSecurity
from tests.support.hanging_transaction import PRODUCER_ID, write_hanging_batch

TOPIC: Final = "transactions-tool"
TRANSACTIONAL_ID: Final = "compat-tool"
VERIFICATION: Final = "transaction.partition.verification.enable"
WAIT_S: Final = 60.0


class Tool:
    """Common options come before the verb."""

    def __init__(self, servers: str) -> None:
        self._common = ["--bootstrap-server", servers]
        if path := os.environ.get("KLAMM_JAVA_PROPERTIES"):
            self._common += ["--command-config", path]

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        """The table that a command prints, a row per line."""
        said = run_tool("TransactionsCommand", [*self._common, *arguments])
        lines = [line.split("\t") for line in said.splitlines() if line.strip()]
        if not lines:
            return []
        head = [name.strip() for name in lines[0]]
        return [dict(zip(head, (cell.strip() for cell in line), strict=False)) for line in lines[1:]]

    def run(self, *arguments: str) -> None:
        run_tool("TransactionsCommand", [*self._common, *arguments])


def client_settings() -> dict[str, str]:
    """The settings of security for librdkafka; none in the plain form."""
    path = os.environ.get("KLAMM_CLIENT_PROPERTIES")
    lines = Path(path).read_text().splitlines() if path else []
    return dict(line.split("=", 1) for line in lines)


def check(name: str, act: Callable[[], object]) -> None:
    try:
        act()
    except Exception as error:
        print(f"not ok {name}: {str(error).strip().splitlines()[0][:300]}", flush=True)
    else:
        print(f"ok {name}", flush=True)


def expect(found: object, expected: object) -> None:
    if found != expected:
        raise KlammError(f"expected {expected}, found {found}")


def before(servers: str) -> None:
    security = client_settings()
    admin = AdminClient({"bootstrap.servers": servers, **security})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(WAIT_S)
    tool = Tool(servers)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": TRANSACTIONAL_ID, **security})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, value=b"open", partition=0)
    producer.flush(WAIT_S)

    def list_() -> None:
        states = {row["TransactionalId"]: row["TransactionState"] for row in tool.rows("list")}
        expect(states.get(TRANSACTIONAL_ID), "Ongoing")

    def describe() -> None:
        (row,) = tool.rows("describe", "--transactional-id", TRANSACTIONAL_ID)
        expect((row["TransactionState"], row["TopicPartitions"]), ("Ongoing", f"{TOPIC}-0"))

    def producers() -> None:
        (row,) = tool.rows("describe-producers", "--topic", TOPIC, "--partition", "0")
        expect(row["CurrentTransactionStartOffset"], "0")

    def known_does_not_hang() -> None:
        expect(tool.rows("find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "0"), [])

    def abort() -> None:
        tool.run("abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0")
        (row,) = tool.rows("describe-producers", "--topic", TOPIC, "--partition", "0")
        expect(row["CurrentTransactionStartOffset"], "None")

    def hanging() -> None:
        set_verification(admin, is_on=False)
        old_ms = int(time.time() * 1000) - 3_600_000
        write_hanging_batch(
            servers, TOPIC, 1, timestamp_ms=old_ms, security=ClientSecurity.from_properties(client_settings())
        )
        set_verification(admin, is_on=True)
        (row,) = tool.rows("find-hanging", "--topic", TOPIC)
        expect((row["Partition"], row["ProducerId"]), ("1", str(PRODUCER_ID)))
        tool.run("abort", "--topic", TOPIC, "--partition", "1", "--start-offset", row["StartOffset"])
        expect(tool.rows("find-hanging", "--topic", TOPIC), [])

    check("list", list_)
    check("describe", describe)
    check("describe-producers", producers)
    check("find-hanging ignores what a coordinator knows", known_does_not_hang)
    check("abort", abort)
    check("find-hanging and abort", hanging)
    producer.abort_transaction(WAIT_S)


def after(servers: str) -> None:
    def list_() -> None:
        states = {row["TransactionalId"]: row["TransactionState"] for row in Tool(servers).rows("list")}
        expect(states.get(TRANSACTIONAL_ID) in ("CompleteAbort", "Empty"), True)

    check("list after a restart", list_)


def set_verification(admin: AdminClient, *, is_on: bool) -> None:
    entry = ConfigEntry(VERIFICATION, str(is_on).lower(), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(WAIT_S)


if __name__ == "__main__":
    {"before": before, "after": after}[sys.argv[1]](os.environ["KLAMM_BOOTSTRAP_SERVERS"])
