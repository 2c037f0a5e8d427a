"""The partition of `__consumer_offsets` of a group: every broker and every client must agree."""

from __future__ import annotations

from functools import lru_cache


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode()`: over UTF-16 code units, in signed 32-bit arithmetic."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=4096)
def partition_for(group_id: str, partition_count: int) -> int:
    """Return abs(hash) % count, where -2^31, which has no absolute value in 32 bits, counts as 0."""
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
