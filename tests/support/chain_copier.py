"""A process that copies records from one topic to another exactly once, until it is killed or fenced.

`python -m tests.support.chain_copier PLAN`, where PLAN is a `Plan` as JSON. A plan with partitions has one task per
partition, each with a transactional producer of its own: a successor with the same id fences it. A plan without
partitions is a member of the group, and its producer is fenced with the member. Each task writes the name of the call
that it begins into a file, so that others see where it hangs.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

T = TypeVar("T")
FENCED: Final = 3
"""The exit code after a fatal error of the producer: another process has its id, or its transaction timed out."""
CALL_S: Final = 10.0
BATCH: Final = 25
ABORTED_SHARE: Final = 0.05
"""The share of transactions that are aborted although nothing has failed."""
CALLS_SUFFIX: Final = ".calls"


@dataclass(frozen=True)
class Plan:
    """`name` is the client id; the ids of transactional producers begin with `transactional_id`."""

    servers: str
    source: str
    target: str
    group: str
    name: str
    transactional_id: str
    transaction_timeout_ms: int
    partitions: tuple[int, ...]
    folder: str
    seed: int

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        return Plan(**{**fields, "partitions": tuple(fields["partitions"])})


class FencedError(Exception):
    """The producer cannot continue."""


class AbortError(Exception):
    """The transaction has to be aborted."""


def _checked_positions(found: Iterable[TopicPartition]) -> dict[int, int]:
    """The group has a position in every partition from the beginning: a missing one was lost."""
    positions = {}
    for tp in found:
        if tp.error is not None:
            raise KafkaException(tp.error)
        assert tp.offset >= 0, f"the group's position in partition {tp.partition} is lost"
        positions[tp.partition] = tp.offset
    return positions


class Task:
    """A consumer and a transactional producer. Without `partitions` the group assigns them."""

    def __init__(self, plan: Plan, name: str, transactional_id: str, partitions: tuple[int, ...]) -> None:
        self._plan = plan
        self._partitions = partitions
        self._random = Random(plan.seed)
        self._next: dict[int, int] = {}
        """The offset of the next record to copy, of each assigned partition."""
        calls = Path(plan.folder, name + CALLS_SUFFIX)
        self._calls = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        debug = os.environ.get("KLAMM_CHAIN_DEBUG")
        shared = {
            "bootstrap.servers": plan.servers,
            "client.id": plan.name,
            "socket.timeout.ms": 4_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 2_000,
            **({"log_level": 0} if debug is None else {"debug": debug}),
        }
        self._consumer = Consumer(
            {
                **shared,
                "group.id": plan.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "session.timeout.ms": 4_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
            }
        )
        self._producer = Producer(
            {
                **shared,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": plan.transaction_timeout_ms,
                "message.timeout.ms": plan.transaction_timeout_ms,
                "request.timeout.ms": 4_000,
                "linger.ms": 1,
            }
        )

    def run(self) -> None:
        """Copy until the producer is fenced."""
        self._transactionally("init_transactions", lambda: self._producer.init_transactions(CALL_S))
        if self._partitions:
            self._assign(self._consumer, [TopicPartition(self._plan.source, p) for p in self._partitions])
        else:
            self._consumer.subscribe([self._plan.source], on_assign=self._assign, on_revoke=self._revoke)
        while True:
            self._note("consume")
            batch = [message for message in self._consumer.consume(BATCH, 0.1) if self._is_next(message)]
            if batch:
                self._copy(batch)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        asked = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._next = self._committed(asked)
        consumer.assign([TopicPartition(self._plan.source, p, offset) for p, offset in self._next.items()])

    def _revoke(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        self._next.clear()
        consumer.unassign()

    def _is_next(self, message: Message) -> bool:
        """Records that the client had fetched before a seek are not the next ones."""
        error, partition = message.error(), message.partition()
        if error is not None:
            assert error.code() != KafkaError._AUTO_OFFSET_RESET, error
            return False
        assert partition is not None
        if self._next.get(partition) != message.offset():
            return False
        self._next[partition] += 1
        return True

    def _copy(self, batch: list[Message]) -> None:
        producer, consumer, plan = self._producer, self._consumer, self._plan
        partitions = {partition for message in batch if (partition := message.partition()) is not None}
        positions = [TopicPartition(plan.source, p, self._next[p]) for p in partitions]
        try:
            self._transactionally("begin_transaction", producer.begin_transaction)
            for message in batch:
                value = b"copy of " + (message.value() or b"")
                producer.produce(plan.target, value, partition=message.partition() or 0)
            if self._random.random() < ABORTED_SHARE:
                self._note("flush")
                producer.flush(CALL_S)
                raise AbortError("on purpose")
            metadata = consumer.consumer_group_metadata()
            self._transactionally(
                "send_offsets_to_transaction",
                lambda: producer.send_offsets_to_transaction(positions, metadata, CALL_S),
            )
            self._transactionally("commit_transaction", lambda: producer.commit_transaction(CALL_S))
        except AbortError as error:
            self._note(f"aborting: {error}")
            self._transactionally("abort_transaction", lambda: producer.abort_transaction(CALL_S))
            self._rewind(partitions)

    def _rewind(self, partitions: set[int]) -> None:
        """After an abort the consumer has read further than its group has committed."""
        found = self._committed([TopicPartition(self._plan.source, p) for p in partitions])
        for partition, offset in found.items():
            self._next[partition] = offset
            self._consumer.seek(TopicPartition(self._plan.source, partition, offset))

    def _committed(self, partitions: list[TopicPartition]) -> dict[int, int]:
        """The group's positions, when no open transaction can change them any longer."""
        self._note("committed")
        while True:
            try:
                return _checked_positions(self._consumer.committed(partitions, CALL_S))
            except KafkaException as error:
                self._note(f"committed again: {error}", is_new=False)

    def _transactionally(self, what: str, call: Callable[[], T]) -> T:
        """Repeat a call of the producer while its error allows this."""
        self._note(what)
        while True:
            try:
                return call()
            except KafkaException as raised:
                error = raised.args[0]
                if error.fatal():
                    raise FencedError(f"{what}: {error}") from raised
                if error.txn_requires_abort():
                    raise AbortError(f"{what}: {error}") from raised
                if not error.retriable():
                    raise
                self._note(f"{what} again: {error}", is_new=False)

    def _note(self, what: str, *, is_new: bool = True) -> None:
        """Lines that do not begin with `>` belong to the call before them."""
        os.write(self._calls, f"{'>' if is_new else ' '} {time.time():.3f} {what}\n".encode())


def _tasks(plan: Plan) -> list[Task]:
    if not plan.partitions:
        return [Task(plan, plan.name, plan.transactional_id, ())]
    return [Task(plan, f"{plan.name}-{p}", f"{plan.transactional_id}-{p}", (p,)) for p in plan.partitions]


def main(plan: Plan) -> int:
    """Run all tasks; return when the first one ends."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()

    def guarded(task: Task) -> None:
        try:
            task.run()
        except FencedError as error:
            print(f"{plan.name}: {error}", file=sys.stderr, flush=True)
            ended.put(FENCED)
        except BaseException:
            traceback.print_exc()
            ended.put(1)

    for task in _tasks(plan):
        threading.Thread(target=guarded, args=(task,), daemon=True).start()
    return ended.get()


if __name__ == "__main__":
    # Not sys.exit: the clients of other tasks would be closed, which can take long.
    os._exit(main(Plan.decode(sys.argv[1])))
