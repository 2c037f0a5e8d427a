"""The partition of a key is the one that Kafka's producers choose."""

from __future__ import annotations

import pytest

from klamm.client.record_producer import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafka(key: bytes, value: int) -> None:
    """Values of Kafka's own tests."""
    assert murmur2(key) == value


def test_a_partition_is_never_negative() -> None:
    assert {partition_of_key(str(number).encode(), 7) for number in range(500)} == set(range(7))
