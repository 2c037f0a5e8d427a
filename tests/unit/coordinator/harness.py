"""A group coordinator without an event loop: virtual time, a log in memory, jobs that run when the test says so."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from klamm.apis.api_declaration import at_once
from klamm.coordinator.config import GroupConfig
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.effects import JoinGroupResult, SyncGroupResult
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.coordinator.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.join import JoinGroup
from klamm.coordinator.membership import MemberIdentity, SyncGroup
from klamm.coordinator.metrics import GroupMetrics
from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.coordinator.offsets_log import Appended, TransactionalProducer
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import TopicPartition, TransactionVersion
from klamm.protocol.record_batch import Record, batches, build_batch, records
from tests.support.record_batches import assign_offsets

GROUP = "g"
START_MS = 1_700_000_000_000


class ManualClock:
    def __init__(self) -> None:
        self.elapsed_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.elapsed_ms

    def monotonic(self) -> float:
        return (5_000 + self.elapsed_ms) / 1000


@dataclass
class MemoryOffsetsLog:
    """Survives its coordinators. `holds` keeps appends back until `release`; `error` refuses them.

    `verification` is the transaction coordinator's answer; `holds_verification` keeps it back until `verify`.
    """

    partitions: dict[int, list[bytes]] = field(default_factory=dict)
    end_offsets: dict[int, int] = field(default_factory=dict)
    holds: bool = False
    error: ErrorCode = ErrorCode.NONE
    read_error: ErrorCode = ErrorCode.NONE
    held: list[tuple[Deferred[Appended], Appended]] = field(default_factory=list)
    behind_held: list[Deferred[ErrorCode]] = field(default_factory=list)
    """Waits for the replication of the batches in `held`."""
    holds_builds: bool = False
    builds: list[tuple[Deferred[bytes | None], Callable[[], bytes]]] = field(default_factory=list)
    """Batches that a worker has yet to build, while `holds_builds`."""
    verification: ErrorCode = ErrorCode.NONE
    holds_verification: bool = False
    verifying: list[Callable[[], None]] = field(default_factory=list)
    is_doubtful: bool = False
    """Its followers may follow another leader by now."""

    def is_confirmed(self, partition: int) -> bool:
        return not self.is_doubtful

    def append(self, partition: int, batch: bytes, timeout_ms: int) -> Deferred[Appended]:
        if self.error is not ErrorCode.NONE:
            return Deferred.of(Appended(self.error))
        base_offset = self.end_offsets.get(partition, 0)
        stored = bytearray(batch)
        assign_offsets(stored, base_offset, 0)
        self.partitions.setdefault(partition, []).append(bytes(stored))
        self.end_offsets[partition] = base_offset + next(batches(batch)).record_count
        appended = Appended(ErrorCode.NONE, base_offset)
        if not self.holds:
            return Deferred.of(appended)
        deferred: Deferred[Appended] = Deferred()
        self.held.append((deferred, appended))
        return deferred

    def await_replication(self, partition: int, timeout_ms: int) -> Deferred[ErrorCode]:
        if not self.held:
            return Deferred.of(ErrorCode.NONE)
        self.behind_held.append(Deferred())
        return self.behind_held[-1]

    def append_transactional(
        self,
        partition: int,
        batch: bytes,
        timeout_ms: int,
        producer: TransactionalProducer,
        admit: Callable[[], ErrorCode],
    ) -> Deferred[Appended]:
        appended: Deferred[Appended] = Deferred()

        def on_verified() -> None:
            error = self.verification or admit()
            if error is not ErrorCode.NONE:
                appended.complete(Appended(error))
            else:
                self.append(partition, batch, timeout_ms).then(appended.complete)

        self.verifying.append(on_verified)
        if not self.holds_verification:
            self.verify()
        return appended

    def verify(self) -> None:
        verifying, self.verifying = self.verifying, []
        for on_verified in verifying:
            on_verified()

    def append_marker(self, producer_id: int, *, commit: bool, partition: int = 0) -> Deferred[Appended]:
        key = struct.pack(">hh", 0, commit)
        record = Record(timestamp=START_MS, key=key, value=b"\x00\x00\x00\x00\x00\x00")
        batch = build_batch([record], producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True)
        return self.append(partition, batch, 0)

    def build(self, work: Callable[[], bytes]) -> Deferred[bytes | None]:
        built: Deferred[bytes | None] = Deferred()
        self.builds.append((built, work))
        if not self.holds_builds:
            self.finish_builds()
        return built

    def finish_builds(self, *, fails: bool = False) -> None:
        builds, self.builds = self.builds, []
        for built, work in builds:
            built.complete(None if fails else work())

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        held, self.held = self.held, []
        for deferred, appended in held:
            deferred.complete(appended if error is ErrorCode.NONE else Appended(error))
        behind, self.behind_held = self.behind_held, []
        for replicated in behind:
            replicated.complete(error)

    def bounds(self, partition: int) -> tuple[int, int] | ErrorCode:
        return 0, self.end_offsets.get(partition, 0)

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes | ErrorCode:
        if self.read_error is not ErrorCode.NONE:
            return self.read_error
        found = bytearray()
        for raw in self.partitions.get(partition, []):
            if next(batches(raw)).next_offset <= offset:
                continue
            if found and len(found) + len(raw) > max_bytes:
                break
            found += raw
        return bytes(found)

    def records(self, partition: int) -> list[Record]:
        return [r for raw in self.partitions.get(partition, []) for batch in batches(raw) for r in records(batch)]


class ManualScheduler:
    def __init__(self) -> None:
        self.deadline_ms: int | None = None
        self.jobs: list[Iterator[None]] = []

    def wake_at(self, deadline_ms: int) -> None:
        if self.deadline_ms is None or deadline_ms < self.deadline_ms:
            self.deadline_ms = deadline_ms

    def spawn(self, job: Iterator[None]) -> None:
        self.jobs.append(job)

    def stop(self) -> None:
        self.deadline_ms = None
        self.jobs = []

    def run_jobs(self) -> None:
        while self.jobs:
            jobs, self.jobs = self.jobs, []
            for job in jobs:
                for _ in job:
                    pass


class Harness:
    """One broker that leads `owned` (all by default) of `partition_count` offsets partitions."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        *,
        log: MemoryOffsetsLog | None = None,
        clock: ManualClock | None = None,
        partition_count: int = 1,
        id_prefix: str = "id",
    ) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.log = log or MemoryOffsetsLog()
        self.clock = clock or ManualClock()
        self.scheduler = ManualScheduler()
        self.registry = MetricsRegistry(self.clock)
        self.partition_count = partition_count
        self.last_connection = 0
        self._ids = 0
        self._id_prefix = id_prefix
        metrics = GroupMetrics(self.registry)
        self.manager = GroupMetadataManager(
            self.log,
            self.clock,
            self.config,
            self.scheduler,
            metrics,
            lambda: self.partition_count,
            lambda: self.last_connection,
        )
        self.coordinator = GroupCoordinator(self.manager, self.config, self.scheduler, metrics, self._new_uuid)

    def _new_uuid(self) -> str:
        self._ids += 1
        return f"{self._id_prefix}{self._ids}"

    def start(self, epoch: int = 0) -> Harness:
        self.coordinator.startup()
        for index in range(self.partition_count):
            self.manager.on_election(index, epoch)
        self.scheduler.run_jobs()
        return self

    def restart(self, id_prefix: str = "new") -> Harness:
        """Another broker takes over: the same log and clock, nothing else."""
        self.coordinator.shutdown()
        return Harness(
            self.config,
            log=self.log,
            clock=self.clock,
            partition_count=self.partition_count,
            id_prefix=id_prefix,
        ).start()

    def pass_ms(self, duration_ms: int) -> None:
        """Time passes; everything that is due on the way is done at its time."""
        end_ms = self.clock.elapsed_ms + duration_ms
        while True:
            deadline_ms = self.scheduler.deadline_ms
            if deadline_ms is None or deadline_ms - 5_000 > end_ms:
                break
            self.clock.elapsed_ms = max(self.clock.elapsed_ms, deadline_ms - 5_000)
            self.scheduler.deadline_ms = None
            self.coordinator.advance()
            self.scheduler.run_jobs()
        self.clock.elapsed_ms = end_ms

    @property
    def group(self) -> GroupMetadata:
        group = self.manager.get(GROUP)
        assert group is not None
        return group

    def state(self) -> GroupState:
        return self.group.state

    # --- requests ------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        client_id: str = "c",
        protocols: Sequence[tuple[str, bytes]] = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        group_id: str = GROUP,
    ) -> Deferred[JoinGroupResult]:
        request = JoinGroup(
            member_id,
            instance,
            client_id,
            "/127.0.0.1",
            rebalance_ms,
            session_ms,
            protocol_type,
            tuple(protocols),
            require_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
        )
        return self.coordinator.join_group(group_id, request)

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Deferred[SyncGroupResult]:
        request = SyncGroup(generation_id, member_id, instance, protocol_type, protocol_name, assignments or {})
        return self.coordinator.sync_group(GROUP, request)

    def heartbeat(self, member_id: str, generation_id: int, instance: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat(GROUP, member_id, generation_id, instance)

    def commit(
        self,
        offset: int,
        *,
        tp: TopicPartition | None = None,
        member_id: str = "",
        generation_id: int = -1,
        instance: str | None = None,
        metadata: str = "",
        group_id: str = GROUP,
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        value = OffsetAndMetadata(offset, -1, metadata, self.clock.now_ms())
        tp = tp or TopicPartition("t", 0)
        return at_once(self.coordinator.commit_offsets(group_id, member_id, instance, generation_id, {tp: value}))

    def commit_all(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], group_id: str = GROUP
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        return at_once(self.coordinator.commit_offsets(group_id, "", None, -1, offsets))

    def commit_in_transaction(
        self,
        offset: int,
        producer_id: int = 7,
        *,
        tp: TopicPartition | None = None,
        member_id: str = "",
        generation_id: int = -1,
        instance: str | None = None,
        metadata: str = "",
        group_id: str = GROUP,
        connection: int | None = None,
        version: TransactionVersion = TransactionVersion.TV_0,
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        value = OffsetAndMetadata(offset, -1, metadata, self.clock.now_ms())
        offsets = {tp or TopicPartition("t", 0): value}
        member = MemberIdentity(member_id, instance)
        producer = TransactionalProducer("tx", producer_id, 3, version, connection)
        return at_once(
            self.coordinator.commit_offsets_in_transaction(group_id, member, generation_id, producer, offsets)
        )

    def end_transaction(self, producer_id: int = 7, *, commit: bool, partition: int = 0) -> None:
        """Write the transaction's marker; the coordinator learns of it when the log acknowledges it."""

        def on_appended(appended: Appended) -> None:
            self.coordinator.on_transaction_completed(producer_id, {partition: appended.base_offset}, commit=commit)

        self.log.append_marker(producer_id, commit=commit, partition=partition).then(on_appended)

    def is_unstable(self, tp: TopicPartition | None = None, group_id: str = GROUP) -> bool:
        tp = tp or TopicPartition("t", 0)
        fetched = self.coordinator.fetch_offsets(group_id, [tp], require_stable=True)
        assert isinstance(fetched, dict)
        return fetched[tp].error is ErrorCode.UNSTABLE_OFFSET_COMMIT

    def delete_offsets(
        self, partitions: Sequence[TopicPartition], group_id: str = GROUP
    ) -> Deferred[dict[TopicPartition, ErrorCode] | ErrorCode]:
        return at_once(self.coordinator.delete_offsets(group_id, partitions))

    def committed(self, tp: TopicPartition | None = None, group_id: str = GROUP) -> int | ErrorCode | None:
        tp = tp or TopicPartition("t", 0)
        fetched = self.coordinator.fetch_offsets(group_id, [tp])
        if isinstance(fetched, ErrorCode):
            return fetched
        value = fetched[tp].value
        return None if value is None else value.offset

    # --- whole walks ---------------------------------------------------------------------------------------------

    def dynamic_member(self, **options: str) -> tuple[str, Deferred[JoinGroupResult]]:
        """The two steps of a v4+ client without an instance id."""
        member_id = self.join(**options).value.member_id  # type: ignore[arg-type]
        return member_id, self.join(member_id, **options)  # type: ignore[arg-type]

    def stable_group(self, size: int = 1, *, session_ms: int = 10_000) -> tuple[list[str], int]:
        """Members ids, the leader first, of a group that has its assignment."""
        joins = [self.join(version=0, session_ms=session_ms) for _ in range(size)]
        self.pass_ms(self.config.initial_rebalance_delay_ms)
        ids = [join.value.member_id for join in joins if join.done]
        while len(ids) < size:
            ids = self.rejoin_all()
        return self.sync_all(ids)

    def rejoin_all(self) -> list[str]:
        group = self.group
        joins = [self.join(m.member_id, protocols=m.protocols) for m in list(group.members.values())]
        return [join.value.member_id for join in joins if join.done]

    def sync_all(self, ids: list[str]) -> tuple[list[str], int]:
        group = self.group
        leader = group.leader_id
        assert leader is not None
        ids = [leader, *(i for i in ids if i != leader)]
        for member_id in ids:
            assignments = {i: b"for " + i.encode() for i in ids} if member_id == leader else None
            self.sync(member_id, group.generation_id, assignments)
        return ids, group.generation_id
