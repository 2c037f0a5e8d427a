"""The records of `__transaction_state`, byte by byte as Kafka's TransactionLogKey and TransactionLogValue."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.coordinator.transaction.transaction_metadata import TransactionState, TransactionValue
from klamm.coordinator.transaction.transaction_records import (
    UnknownTransactionKey,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from klamm.errors import ProtocolError
from klamm.model import TopicPartition, TransactionVersion

TV_0, TV_1, TV_2 = TransactionVersion
ONGOING = TransactionValue(
    producer_id=0x0102030405060708,
    producer_epoch=0x1112,
    state=TransactionState.ONGOING,
    timeout_ms=60_000,
    partitions={TopicPartition("topic", 1): None, TopicPartition("topic", 2): None, TopicPartition("u", 0): None},
    start_timestamp_ms=0x2122232425262728,
    last_update_timestamp_ms=0x3132333435363738,
)
V0 = (
    "0000"  # version
    "0102030405060708"  # producer id
    "1112"  # producer epoch
    "0000ea60"  # timeout
    "01"  # state
    "00000002"  # topics
    "0005746f706963"
    "00000002"
    "00000001"
    "00000002"
    "000175"
    "00000001"
    "00000000"
    "3132333435363738"  # last update
    "2122232425262728"  # start
)
V1 = (
    "0001"
    "0102030405060708"
    "1112"
    "0000ea60"
    "01"
    "03"  # topics + 1
    "06746f706963"
    "03"
    "00000001"
    "00000002"
    "00"
    "0275"
    "02"
    "00000000"
    "00"
    "3132333435363738"
    "2122232425262728"
)


def test_the_key_is_the_transactional_id() -> None:
    assert encode_transaction_key("my-id").hex() == "0000" + "0005" + b"my-id".hex()
    assert decode_transaction_key(encode_transaction_key("ä")) == "ä"
    assert decode_transaction_key(bytes.fromhex("0007")) == UnknownTransactionKey(7)


def test_version_0_has_no_tagged_fields() -> None:
    assert encode_transaction_value(ONGOING, TV_0).hex() == V0
    assert decode_transaction_value(bytes.fromhex(V0)) == ONGOING
    empty = replace(ONGOING, state=TransactionState.EMPTY, partitions={})
    assert "00" + "ffffffff" in encode_transaction_value(empty, TV_0).hex()
    assert decode_transaction_value(encode_transaction_value(empty, TV_0)) == empty


def test_version_1_has_tagged_fields_for_producer_ids_and_the_version_of_the_client() -> None:
    assert encode_transaction_value(ONGOING, TV_1).hex() == V1 + "00"
    full = replace(ONGOING, previous_producer_id=5, next_producer_id=6, client_version=TV_2)
    tags = "03" + "00080000000000000005" + "01080000000000000006" + "02020002"
    assert encode_transaction_value(full, TV_2).hex() == V1 + tags
    assert decode_transaction_value(bytes.fromhex(V1 + tags)) == full
    empty = replace(full, state=TransactionState.EMPTY, partitions={})
    assert decode_transaction_value(encode_transaction_value(empty, TV_2)) == empty


def test_a_completed_transaction_has_an_empty_list_not_a_missing_one() -> None:
    done = replace(ONGOING, state=TransactionState.COMPLETE_COMMIT, partitions={})
    assert encode_transaction_value(done, TV_0)[17:21] == bytes(4)
    assert encode_transaction_value(done, TV_1)[17:18] == b"\x01"


def test_the_previous_id_is_stored_only_if_it_differs() -> None:
    same = replace(ONGOING, previous_producer_id=ONGOING.producer_id)
    assert encode_transaction_value(same, TV_2).hex() == V1 + "00"


def test_a_newer_brokers_tags_and_levels_are_read() -> None:
    tags = "02" + "02020009" + "6301ff"
    assert decode_transaction_value(bytes.fromhex(V1 + tags)) == replace(ONGOING, client_version=TV_2)


@pytest.mark.parametrize(
    "damage", ["0002", V0[:-2], V1 + "01", V0.replace("0000ea6001", "0000ea6009"), V1 + "010107ff"]
)
def test_damaged_values_are_refused(damage: str) -> None:
    with pytest.raises(ProtocolError):
        decode_transaction_value(bytes.fromhex(damage))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    for version in (b"\x00\x00", b"\x00\x01", b""):
        with contextlib.suppress(ProtocolError):
            decode_transaction_value(version + data)
        with contextlib.suppress(ProtocolError):
            decode_transaction_key(version + data)
