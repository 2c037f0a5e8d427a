"""UnwrittenBatches: which producers wait to send a batch again, because the log could not write it.

A producer sends several batches at once. If one of them cannot be written for lack of file descriptors, and the next
one can, the log must not take it: it would be out of order, which makes librdkafka start a new epoch and repeat records
of other partitions. From a producer that is unknown to the log it would even be accepted, and leave a gap. So the log
answers the same retriable error until it has written the first one, or its producer has given it up.
"""

from __future__ import annotations

from typing import Final

from klamm.errors import ErrorCode
from klamm.log.producer_entry import ProducerStateEntry
from klamm.log.producer_state import MAX_PRODUCERS, Refusal
from klamm.protocol.record_batch import RecordBatch

MAX_WAIT_S: Final = 120.0
"""A producer has given up a batch that it has not sent again within this time: the default of `delivery.timeout.ms`.

Then the rules of Kafka apply. A producer that skips a batch would get a retriable error for ever otherwise.
"""
_MESSAGE: Final = "an earlier batch of the producer could not be written; send it again first"


class UnwrittenBatches(dict[int, tuple[int, int, float]]):
    """Epoch and first sequence of the first unwritten batch, and when it was last refused, by producer id.

    The time is monotonic. Owner: the `Log`, as leader.
    """

    __slots__ = ()

    def note(self, batch: RecordBatch, now: float) -> None:
        this = batch.producer_epoch, batch.base_sequence
        known = self.get(batch.producer_id)
        if known is None or known[0] != this[0] or known[1] == this[1] or now - known[2] > MAX_WAIT_S:
            self[batch.producer_id] = *this, now
            if len(self) > MAX_PRODUCERS:
                del self[next(iter(self))]

    def written(self, producer_id: int) -> None:
        self.pop(producer_id, None)

    def refusal(
        self, batch: RecordBatch, refused: Refusal | None, entry: ProducerStateEntry | None, now: float
    ) -> Refusal | None:
        """Return the answer to a batch for which the producer state has decided `refused`; `entry` is that state."""
        epoch, sequence, refused_at = self.get(batch.producer_id, (None, None, now))
        if epoch != batch.producer_epoch or sequence == batch.base_sequence:
            return refused
        if now - refused_at > MAX_WAIT_S:
            del self[batch.producer_id]
            return refused
        is_known = entry is not None and entry.producer_epoch == epoch and bool(entry.batches)
        is_out_of_order = refused is not None and refused.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        is_gap = refused is None and not is_known
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, _MESSAGE) if is_out_of_order or is_gap else refused
