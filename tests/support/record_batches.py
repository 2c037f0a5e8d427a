"""Changes of encoded record batches."""

from __future__ import annotations

from klamm.protocol.record_batch import OFFSET_AND_LENGTH, PREFIX


def assign_offsets(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set the offset of a batch and its leader epoch. The checksum stays valid."""
    length = OFFSET_AND_LENGTH.unpack_from(batch)[1]
    PREFIX.pack_into(batch, 0, base_offset, length, leader_epoch)
