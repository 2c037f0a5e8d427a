"""Writes groups and offsets to `__consumer_offsets`: one batch per change, answered when the log has it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from klamm.clock import Clock
from klamm.coordinator.config import GroupConfig
from klamm.coordinator.deferred import Deferred, all_of
from klamm.coordinator.effects import Store, StoreAssignment
from klamm.coordinator.group_metadata import GroupMetadata
from klamm.coordinator.memory import Budget
from klamm.coordinator.offset_records import (
    NO_TIMESTAMP,
    GroupMetadataValue,
    MemberValue,
    OffsetAndMetadata,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from klamm.coordinator.offsets_log import (
    Appended,
    GroupLog,
    TransactionalProducer,
    group_store_error,
    offset_commit_error,
    transactional_commit_error,
)
from klamm.coordinator.ordered_appends import OrderedAppends, Send
from klamm.coordinator.transactional_offsets import OFFSETS_PER_SLICE, TransactionalAppend
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, build_batch

TOMBSTONES_PER_BATCH: Final = 2_000
"""Keeps a batch of tombstones well under the usual `max.message.bytes`."""
INLINE_BYTES: Final = 256 * 1024
"""Larger batches are built in a worker: the record of a group with 7 MB of assignments took 27 ms."""
ENTRY_COST: Final = 1_000
"""A member or an offset takes about as long to encode as this many bytes take to copy."""
_LONGEST_STRING_BYTES: Final = 32_767


@lazy_dataclass(frozen=True, slots=True)
class CheckedOffsets:
    """The offsets of one commit, divided by whether their metadata is accepted."""

    accepted: Mapping[TopicPartition, OffsetAndMetadata]
    refused: Mapping[TopicPartition, ErrorCode]
    metadata_bytes: int


class Target(NamedTuple):
    """A group by name: a TxnOffsetCommit may create it, but only after its transaction was verified."""

    group_id: str
    partition: int


class GroupWriter:
    """`spawn` runs a job in steps, with other work between them."""

    def __init__(
        self,
        log: GroupLog,
        order: OrderedAppends,
        clock: Clock,
        config: GroupConfig,
        metadata_budget: Budget,
        spawn: Callable[[Iterator[None]], None],
    ) -> None:
        self._metadata_budget = metadata_budget
        self._spawn = spawn
        self._log = log
        self._order = order
        self._clock = clock
        self._config = config

    def store_group(self, group: GroupMetadata, store: Store, now_ms: int) -> Deferred[ErrorCode]:
        """Write the current group, with the assignment of `store` or of its members."""
        assignment = store.assignment if isinstance(store, StoreAssignment) else None
        size = self._record_bytes(group, assignment)
        if size > self._config.record_max_bytes:
            return Deferred.of(group_store_error(ErrorCode.MESSAGE_TOO_LARGE))
        value = self._group_value(group, assignment, now_ms)
        build = partial(_group_batch, group.group_id, value, self._clock.now_ms(), self._codec)
        cost = size + ENTRY_COST * len(group.members)
        appended = self._append(group, build() if cost <= INLINE_BYTES else build)
        return appended.map(lambda done: group_store_error(done.error))

    def _record_bytes(self, group: GroupMetadata, assignment: Mapping[str, bytes] | None) -> int:
        """Estimate the size of the group's record: a record that is far too large must not be encoded."""
        protocol = group.protocol_name
        size = 0
        for member in group.members.values():
            size += 0 if protocol is None else len(member.metadata(protocol))
            size += len(member.assignment if assignment is None else assignment.get(member.member_id, b""))
        return size

    def _group_value(
        self, group: GroupMetadata, assignment: Mapping[str, bytes] | None, now_ms: int
    ) -> GroupMetadataValue:
        protocol = group.protocol_name
        members = tuple(
            MemberValue(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                b"" if protocol is None else m.metadata(protocol),
                m.assignment if assignment is None else assignment.get(m.member_id, b""),
            )
            for m in group.members.values()
        )
        since_ms = group.state_since_ms
        timestamp_ms = NO_TIMESTAMP if since_ms is None else self._clock.now_ms() - (now_ms - since_ms)
        return GroupMetadataValue(
            group.protocol_type or "", group.generation_id, protocol, group.leader_id, timestamp_ms, members
        )

    def check_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Generator[None, None, CheckedOffsets]:
        """Find the offsets whose metadata is too long, in slices."""
        accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        metadata_bytes = 0
        for number, (tp, value) in enumerate(offsets.items()):
            if number and number % OFFSETS_PER_SLICE == 0:
                yield
            if not value.metadata or self._metadata_fits(value.metadata):
                accepted[tp] = value
                metadata_bytes += len(value.metadata)
            else:
                refused[tp] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        return CheckedOffsets(accepted, refused, metadata_bytes)

    def commit(self, group: GroupMetadata, offsets: CheckedOffsets) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """Writes the accepted offsets as one batch; they count as committed once the log has them."""
        accepted = offsets.accepted
        if not accepted:
            return Deferred.of(dict(offsets.refused))
        committed: Deferred[dict[TopicPartition, ErrorCode]] = Deferred()

        def finish(appended: Appended) -> Iterator[None]:
            base_offset = appended.base_offset if appended.error is ErrorCode.NONE else None
            yield from group.offsets.completing(accepted, base_offset)
            errors = dict.fromkeys(accepted, offset_commit_error(appended.error))
            errors.update(offsets.refused)
            committed.complete(errors)

        cost = offsets.metadata_bytes + ENTRY_COST * len(accepted)
        build = partial(_offsets_batch, group.group_id, accepted, self._clock.now_ms(), self._codec)
        batch = build() if cost <= INLINE_BYTES else None
        group.offsets.prepare(accepted)  # last: offsets that cannot be encoded must not stay pending
        self._append(group, build if batch is None else batch).then(lambda appended: self.run(finish(appended)))
        return committed

    def commit_in_transaction(
        self,
        target: Target,
        offsets: CheckedOffsets,
        producer: TransactionalProducer,
        admit: Callable[[], GroupMetadata | ErrorCode],
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """Write the accepted offsets as one transactional batch; they wait for the end of the producer's transaction.

        `admit` returns the group if it accepts them, after the transaction was verified and directly before the append.
        """
        accepted = offsets.accepted
        if not accepted:
            return Deferred.of(dict(offsets.refused))
        committed: Deferred[dict[TopicPartition, ErrorCode]] = Deferred()
        begun: list[tuple[GroupMetadata, TransactionalAppend]] = []

        def begin() -> ErrorCode:
            group = admit()
            if isinstance(group, ErrorCode):
                return group
            begun.append((group, group.offsets.transactional.begin(producer.producer_id, accepted)))
            return ErrorCode.NONE

        def finish(appended: Appended) -> Iterator[None]:
            # With an error and an offset, the batch is in the log nevertheless, so it waits for its marker.
            appended_offset = appended.base_offset if appended.base_offset >= 0 else None
            for group, append in begun:
                yield from group.offsets.finish_append(append, appended_offset)
            errors = dict.fromkeys(accepted, transactional_commit_error(appended.error))
            errors.update(offsets.refused)
            committed.complete(errors)

        def send(batch: bytes) -> Deferred[Appended]:
            timeout_ms = self._config.offsets_commit_timeout_ms
            return self._log.append_transactional(target.partition, batch, timeout_ms, producer, begin)

        cost = offsets.metadata_bytes + ENTRY_COST * len(accepted)
        build = partial(_offsets_batch, target.group_id, accepted, self._clock.now_ms(), self._codec, producer)
        batch = build() if cost <= INLINE_BYTES else build
        self._send(target.partition, batch, send).then(lambda appended: self.run(finish(appended)))
        return committed

    def run(self, job: Iterator[None]) -> None:
        """Run the first step at once: most jobs have no other."""
        for _ in job:
            self._spawn(job)
            return

    def _metadata_fits(self, metadata: str) -> bool:
        """Kafka counts UTF-16 code units; the record's string must also fit its int16 length."""
        limit = self._config.offset_metadata_max_bytes
        if metadata.isascii():
            is_too_large = len(metadata) > min(limit, _LONGEST_STRING_BYTES)
        else:
            units = len(metadata.encode("utf-16-le", "surrogatepass")) // 2
            is_too_large = units > limit or len(metadata.encode()) > _LONGEST_STRING_BYTES
        if is_too_large:
            return False
        return self._metadata_budget.has_room(len(metadata), round(self._clock.monotonic() * 1000))

    def delete(
        self, group: GroupMetadata, partitions: Sequence[TopicPartition], *, with_group: bool
    ) -> Deferred[ErrorCode]:
        """Write tombstones, the group's own last, and drop the offsets; done when all are written."""
        known = group.offsets.known(partitions)
        chunks = [known[i : i + TOMBSTONES_PER_BATCH] for i in range(0, len(known), TOMBSTONES_PER_BATCH)]
        has_record = with_group and group.generation_id > 0
        if has_record and not chunks:
            chunks.append([])
        last = len(chunks) - 1
        writes = [
            self._delete_chunk(group, chunk, with_group=has_record and i == last) for i, chunk in enumerate(chunks)
        ]
        return all_of(writes).map(lambda errors: next((e for e in errors if e is not ErrorCode.NONE), ErrorCode.NONE))

    def _delete_chunk(
        self, group: GroupMetadata, chunk: Sequence[TopicPartition], *, with_group: bool
    ) -> Deferred[ErrorCode]:
        def on_appended(appended: Appended) -> ErrorCode:
            if appended.error is ErrorCode.NONE:
                group.offsets.remove(chunk, before_offset=appended.base_offset)
            return offset_commit_error(appended.error)

        build = partial(_tombstones, group.group_id, chunk, self._clock.now_ms(), self._codec, with_group=with_group)
        is_small = ENTRY_COST * len(chunk) <= INLINE_BYTES
        return self._append(group, build() if is_small else build).map(on_appended)

    @property
    def _codec(self) -> int:
        return self._config.offsets_topic_compression_codec

    def _append(self, group: GroupMetadata, batch: bytes | Callable[[], bytes]) -> Deferred[Appended]:
        timeout_ms = self._config.offsets_commit_timeout_ms
        return self._send(group.partition, batch, lambda built: self._log.append(group.partition, built, timeout_ms))

    def _send(self, partition: int, batch: bytes | Callable[[], bytes], send: Send) -> Deferred[Appended]:
        if isinstance(batch, bytes):
            return self._order.append(partition, batch, send)
        return self._order.build_and_append(partition, batch, send)


def _group_batch(group_id: str, value: GroupMetadataValue, timestamp_ms: int, codec: int) -> bytes:
    record = Record(timestamp=timestamp_ms, key=encode_group_key(group_id), value=encode_group_value(value))
    return build_batch([record], compression=codec)


def _offsets_batch(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    timestamp_ms: int,
    codec: int,
    producer: TransactionalProducer | None = None,
) -> bytes:
    records = [
        Record(timestamp=timestamp_ms, key=encode_offset_key(group_id, tp), value=encode_offset_value(value))
        for tp, value in offsets.items()
    ]
    if producer is None:
        return build_batch(records, compression=codec)
    return build_batch(
        records,
        compression=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )


def _tombstones(
    group_id: str, partitions: Sequence[TopicPartition], timestamp_ms: int, codec: int, *, with_group: bool
) -> bytes:
    keys = [encode_offset_key(group_id, tp) for tp in partitions]
    if with_group:
        keys.append(encode_group_key(group_id))
    return build_batch([Record(timestamp=timestamp_ms, key=key) for key in keys], compression=codec)
