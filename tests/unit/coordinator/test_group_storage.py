"""`__consumer_offsets`: record bytes, partitions, loading after an election."""

from __future__ import annotations

import logging

import pytest

from klamm.coordinator.offset_records import (
    GroupKey,
    GroupMetadataValue,
    MemberValue,
    OffsetAndMetadata,
    OffsetKey,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from klamm.coordinator.partitioning import java_string_hash, partition_for
from klamm.errors import ErrorCode, ProtocolError
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, build_batch
from tests.unit.coordinator.harness import GROUP, START_MS, Harness, MemoryOffsetsLog

T0 = TopicPartition("t", 0)

# Field by field from Kafka's schemas: int16 version, then the fields of that version.
OFFSET_KEY = "0001 0005 67726f7570 0005 746f706963 00000007"
OFFSET_V0 = "0000 000000000000002a 0002 6d64 0000018bcfe56800"
OFFSET_V1 = "0001 000000000000002a 0002 6d64 0000018bcfe56800 0000018bcfe56bff"
OFFSET_V2 = "0002 000000000000002a 0002 6d64 0000018bcfe56800"
OFFSET_V3 = "0003 000000000000002a 00000005 0002 6d64 0000018bcfe56800"
GROUP_KEY = "0002 0005 67726f7570"
GROUP_HEAD = "0008 636f6e73756d6572 00000003 0005 72616e6765 0004 6d2d3031"
MEMBER_ID, CLIENT = "0004 6d2d3031", "0002 6170 000a 2f3132372e302e302e31"
DATA = "00000003 737562 00000002 6173"
GROUP_V0 = f"0000 {GROUP_HEAD} 00000001 {MEMBER_ID} {CLIENT} 00002710 {DATA}"
GROUP_V1 = f"0001 {GROUP_HEAD} 00000001 {MEMBER_ID} {CLIENT} 0000ea60 00002710 {DATA}"
GROUP_V2 = f"0002 {GROUP_HEAD} 0000018bcfe56800 00000001 {MEMBER_ID} {CLIENT} 0000ea60 00002710 {DATA}"
GROUP_V3 = f"0003 {GROUP_HEAD} 0000018bcfe56800 00000001 {MEMBER_ID} 0001 69 {CLIENT} 0000ea60 00002710 {DATA}"
EMPTY_V3 = "0003 0008 636f6e73756d6572 00000004 ffff ffff 0000018bcfe56800 00000000"


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def member(**changes: object) -> MemberValue:
    fields = {
        "member_id": "m-01",
        "group_instance_id": "i",
        "client_id": "ap",
        "client_host": "/127.0.0.1",
        "rebalance_timeout_ms": 60_000,
        "session_timeout_ms": 10_000,
        "subscription": b"sub",
        "assignment": b"as",
    }
    return MemberValue(**{**fields, **changes})  # type: ignore[arg-type]


def test_keys() -> None:
    assert encode_offset_key("group", TopicPartition("topic", 7)) == raw(OFFSET_KEY)
    assert decode_key(raw(OFFSET_KEY)) == OffsetKey("group", TopicPartition("topic", 7))
    assert decode_key(b"\x00\x00" + raw(OFFSET_KEY)[2:]) == OffsetKey("group", TopicPartition("topic", 7))
    assert encode_group_key("group") == raw(GROUP_KEY)
    assert decode_key(raw(GROUP_KEY)) == GroupKey("group")
    assert decode_key(b"\x00\x03rest") == UnknownKey(3)


def test_offset_values_of_all_versions() -> None:
    plain = OffsetAndMetadata(42, -1, "md", 1_700_000_000_000)
    assert decode_offset_value(raw(OFFSET_V0)) == plain
    assert decode_offset_value(raw(OFFSET_V2)) == plain
    expiring = OffsetAndMetadata(42, -1, "md", 1_700_000_000_000, 1_700_000_001_023)
    assert decode_offset_value(raw(OFFSET_V1)) == expiring
    assert encode_offset_value(expiring) == raw(OFFSET_V1)
    with_epoch = OffsetAndMetadata(42, 5, "md", 1_700_000_000_000)
    assert decode_offset_value(raw(OFFSET_V3)) == with_epoch
    assert encode_offset_value(with_epoch) == raw(OFFSET_V3)


def test_group_values_of_all_versions() -> None:
    def value(timestamp_ms: int, member: MemberValue) -> GroupMetadataValue:
        return GroupMetadataValue("consumer", 3, "range", "m-01", timestamp_ms, (member,))

    dynamic = member(group_instance_id=None)
    assert decode_group_value(raw(GROUP_V0)) == value(-1, member(group_instance_id=None, rebalance_timeout_ms=10_000))
    assert decode_group_value(raw(GROUP_V1)) == value(-1, dynamic)
    assert decode_group_value(raw(GROUP_V2)) == value(1_700_000_000_000, dynamic)
    assert decode_group_value(raw(GROUP_V3)) == value(1_700_000_000_000, member())
    assert encode_group_value(value(1_700_000_000_000, member())) == raw(GROUP_V3)
    empty = GroupMetadataValue("consumer", 4, None, None, 1_700_000_000_000, ())
    assert encode_group_value(empty) == raw(EMPTY_V3)
    assert decode_group_value(raw(EMPTY_V3)) == empty


@pytest.mark.parametrize("whole", [OFFSET_KEY, GROUP_KEY])
def test_a_key_cut_short_is_a_protocol_error(whole: str) -> None:
    for size in range(len(raw(whole))):
        with pytest.raises(ProtocolError):
            decode_key(raw(whole)[:size])


@pytest.mark.parametrize("whole", [GROUP_V0, GROUP_V1, GROUP_V2, GROUP_V3, EMPTY_V3])
def test_a_group_cut_short_is_a_protocol_error(whole: str) -> None:
    for size in range(len(raw(whole))):
        with pytest.raises(ProtocolError):
            decode_group_value(raw(whole)[:size])


def test_values_that_announce_too_much_are_protocol_errors() -> None:
    with pytest.raises(ProtocolError, match="elements"):
        decode_group_value(raw(EMPTY_V3)[:-4] + b"\x7f\xff\xff\xff")
    with pytest.raises(ProtocolError, match="version 9"):
        decode_group_value(b"\x00\x09")
    with pytest.raises(ProtocolError, match="version 4"):
        decode_offset_value(b"\x00\x04")
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_key(raw("0002 0001 ff"))


def test_the_partition_of_a_group_is_javas_hash() -> None:
    assert java_string_hash("") == 0
    assert java_string_hash("hello") == 99162322
    assert java_string_hash("polygenelubricants") == -(1 << 31)
    assert java_string_hash("\N{GRINNING FACE}") == 1772899
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello", 50) == 22
    assert partition_for("console-consumer-12345", 50) == abs(java_string_hash("console-consumer-12345")) % 50


def test_records_of_a_rebalance_and_of_a_commit() -> None:
    harness = Harness().start()
    (member_id,), generation = harness.stable_group()
    harness.commit(42, member_id=member_id, generation_id=generation, metadata="md")
    group, offset = harness.log.records(0)
    assert decode_key(group.key or b"") == GroupKey(GROUP)
    assert decode_group_value(group.value or b"").generation == 1
    assert group.timestamp == START_MS
    assert decode_key(offset.key or b"") == OffsetKey(GROUP, T0)
    assert decode_offset_value(offset.value or b"") == OffsetAndMetadata(42, -1, "md", START_MS)


def test_groups_and_offsets_survive_a_change_of_coordinator() -> None:
    harness = Harness(partition_count=5).start()
    ids, generation = harness.stable_group(3)
    harness.commit(42, member_id=ids[0], generation_id=generation)
    for i in range(20):
        harness.commit(i, group_id=f"simple-{i}")
    reloaded = harness.restart()
    assert reloaded.committed() == 42
    assert [reloaded.committed(group_id=f"simple-{i}") for i in range(20)] == list(range(20))
    for member_id in ids:
        assert reloaded.heartbeat(member_id, generation) is ErrorCode.NONE
        assert reloaded.sync(member_id, generation).value.assignment == b"for " + member_id.encode()
    reloaded.pass_ms(9_999)
    assert reloaded.heartbeat(ids[1], generation) is ErrorCode.NONE
    reloaded.pass_ms(1)
    assert list(reloaded.group.members) == [ids[1]], "the others had a whole session to report"


def test_leader_epochs_order_elections_and_resignations() -> None:
    harness = Harness().start(epoch=5)
    harness.commit(1)
    harness.manager.on_resignation(0, 4)
    assert harness.committed() == 1, "an old resignation"
    harness.manager.on_election(0, 6)
    assert harness.committed() == 1, "still the leader: nothing to load"
    harness.manager.on_resignation(0, 7)
    harness.manager.on_election(0, 6)
    assert harness.committed() is ErrorCode.NOT_COORDINATOR, "an old election"
    harness.manager.on_election(0, 8)
    harness.scheduler.run_jobs()
    assert harness.committed() == 1


def test_only_the_offsets_topic_matters_to_the_coordinator() -> None:
    harness = Harness()
    harness.coordinator.startup()
    harness.coordinator.on_leadership_change([(T0, 0), (TopicPartition("__consumer_offsets", 0), 0)], [])
    harness.scheduler.run_jobs()
    harness.commit(1)
    harness.coordinator.on_leadership_change([], [(T0, 1)])
    assert harness.committed() == 1
    harness.coordinator.on_leadership_change([], [(TopicPartition("__consumer_offsets", 0), -2)])
    assert harness.committed() is ErrorCode.NOT_COORDINATOR


def test_a_resignation_ends_the_loading() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.manager.on_resignation(0, 1)
    harness.manager.on_election(0, 2)
    (job,) = harness.scheduler.jobs
    next(job)
    harness.manager.on_resignation(0, 3)
    harness.scheduler.run_jobs()
    assert harness.committed() is ErrorCode.NOT_COORDINATOR


def test_a_log_that_cannot_be_read_leaves_the_partition_without_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.manager.on_resignation(0, 1)
    harness.log.read_error = ErrorCode.KAFKA_STORAGE_ERROR
    harness.manager.on_election(0, 2)
    harness.scheduler.run_jobs()
    assert harness.committed() is ErrorCode.NOT_COORDINATOR
    assert "KAFKA_STORAGE_ERROR" in caplog.text


@pytest.mark.parametrize("damage", [b"\xff" * 80, b"\0" * 20], ids=["not a batch", "cut short"])
def test_a_log_that_is_not_batches_leaves_the_partition_without_coordinator(
    damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Served all the same, its groups would lose the offsets behind the damage, and consumers start over."""
    harness = Harness().start()
    harness.commit(1)
    harness.commit(2)
    harness.manager.on_resignation(0, 1)
    stored = harness.log.partitions[0]
    harness.log.read = lambda partition, offset, max_bytes: stored[0] + damage if offset == 0 else damage  # type: ignore[method-assign]
    harness.manager.on_election(0, 2)
    harness.scheduler.run_jobs()
    assert harness.committed() is ErrorCode.NOT_COORDINATOR
    assert "CORRUPT_MESSAGE" in caplog.text


def test_a_log_whose_end_was_compacted_away_is_loaded() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.log.end_offsets[0] += 5
    harness.manager.on_resignation(0, 1)
    harness.manager.on_election(0, 2)
    harness.scheduler.run_jobs()
    assert harness.committed() == 1


def test_loading_goes_in_slices() -> None:
    log = MemoryOffsetsLog()
    harness = Harness(log=log).start()
    for i in range(2_000):
        harness.commit(i, group_id=f"group-{i % 100}", metadata="x" * 1_000)
    harness.manager.on_resignation(0, 1)
    harness.manager.on_election(0, 2)
    (job,) = harness.scheduler.jobs
    slices = sum(1 for _ in job)
    assert slices >= 7
    assert harness.committed(group_id="group-99") == 1_999


def append(log: MemoryOffsetsLog, *records: tuple[bytes | None, bytes | None], **options: int | bool) -> None:
    rows = [Record(timestamp=START_MS, key=key, value=value) for key, value in records]
    log.append(0, build_batch(rows, **options), 0)  # type: ignore[arg-type]


def test_bad_records_are_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryOffsetsLog()
    good = encode_offset_key(GROUP, T0)
    append(
        log,
        (None, b"no key"),
        (b"\x00\x63new", b"unknown kind"),
        (encode_offset_key(GROUP, TopicPartition("bad", 0)), b"\x00\x63"),
        (encode_group_key("no-protocol"), raw(GROUP_V3).replace(b"\x00\x05range", b"\xff\xff")),
        (good, encode_offset_value(OffsetAndMetadata(7))),
    )
    with caplog.at_level(logging.WARNING):
        harness = Harness(log=log).start()
    assert harness.committed() == 7
    assert harness.manager.get("no-protocol") is None
    assert len(caplog.records) == 4


def test_transactional_offsets_wait_for_their_marker() -> None:
    log = MemoryOffsetsLog()
    key = encode_offset_key(GROUP, T0)

    def write(offset: int, producer_id: int) -> None:
        value = encode_offset_value(OffsetAndMetadata(offset))
        append(log, (key, value), producer_id=producer_id, producer_epoch=0, is_transactional=True)

    write(1, 10)
    log.append_marker(10, commit=True)
    write(2, 11)
    log.append_marker(11, commit=False)
    write(3, 12)
    harness = Harness(log=log).start()
    assert harness.committed() == 1
    unstable = harness.coordinator.fetch_offsets(GROUP, [T0], require_stable=True)
    assert isinstance(unstable, dict) and unstable[T0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    harness.end_transaction(12, commit=True)
    assert harness.committed() == 3
