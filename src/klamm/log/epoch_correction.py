"""Correct the leader epochs of a follower that has newer epochs than its leader.

Their file is damaged, or the epochs of the partition have gone back. The leader rejects such an epoch in every Fetch,
so the follower would retry for ever.
"""

from __future__ import annotations

from klamm.errors import ErrorCode
from klamm.log.local_log import LocalLog
from klamm.log.log import Log
from klamm.model import NO_EPOCH


def correct_epochs(log: Log, leader_epoch: int) -> ErrorCode:
    """Remove the epochs after `leader_epoch`, and the records whose epoch is unclear without them."""
    end = log.log_end_offset

    def correct() -> None:
        nonlocal end
        end = _correct(log.local, leader_epoch, end)

    return log.disk.done("correcting the leader epochs of", correct) or log.truncate_to(end)


def _correct(local: LocalLog, leader_epoch: int, log_end_offset: int) -> int:
    """Return where the log must end.

    The batches show the epoch of the records there. If it is not one that the leader can know, or not a single one, the
    follower must fetch these records again.
    """
    wrong = local.leader_epochs.truncate_after(leader_epoch)
    if wrong is None or wrong.start_offset >= log_end_offset:
        return log_end_offset
    written = local.written_epoch(wrong.start_offset)
    is_single = written == local.written_epoch(log_end_offset - 1)
    latest = NO_EPOCH if local.latest_epoch is None else local.latest_epoch
    if not is_single or written is None or not latest <= written <= leader_epoch:
        return wrong.start_offset
    local.assign_epoch(written, wrong.start_offset)
    return log_end_offset
