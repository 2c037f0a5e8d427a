"""A log with random transactions shows its readers what a simple model shows, also after restarts and truncations.

The model is the list of all batches. From it follow the last stable offset, the aborted transactions and the records
that a reader of committed records sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, Log, LogConfig, ReadResult, append_as_leader
from klamm.log.verification_state import TransactionCheck
from klamm.model import TransactionVersion
from klamm.protocol.record_batch import batches, records
from tests.unit.log.harness import Bench, batch, close, marker

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=100)
PRODUCERS = (1, 2, 3)


@dataclass
class Row:
    """One batch as the model knows it. `producer_id` is -1 outside of transactions."""

    offset: int
    value: bytes
    producer_id: int = -1
    end: str = ""


@dataclass
class Model:
    rows: list[Row] = field(default_factory=list)
    high_watermark: int = 0
    log_start_offset: int = 0

    @property
    def log_end_offset(self) -> int:
        return len(self.rows)

    def transactions(self, start: int = 0) -> tuple[dict[int, int], list[tuple[int, int, int, bool]]]:
        """Open ones (producer -> first offset) and ended ones (producer, first offset, marker's offset, aborted)."""
        ongoing: dict[int, int] = {}
        ended: list[tuple[int, int, int, bool]] = []
        for row in self.rows[start:]:
            if row.end:
                if row.producer_id in ongoing:
                    ended.append((row.producer_id, ongoing.pop(row.producer_id), row.offset, row.end == "abort"))
            elif row.producer_id >= 0:
                ongoing.setdefault(row.producer_id, row.offset)
        return ongoing, ended

    def last_stable_offset(self, start: int = 0, noted_from: int = 0) -> int:
        """The first offset whose fate is not decided below the high watermark.

        `start`: earlier batches were deleted when the log was loaded. `noted_from`: the log does not know where
        transactions began that ended before. They were decided, but their markers may not be replicated: as in Kafka,
        a snapshot has only the open transactions.
        """
        ongoing, ended = self.transactions(start)
        first_noted = max(self.high_watermark, noted_from)
        undecided = [*ongoing.values(), *(first for _, first, last, _ in ended if last >= first_noted)]
        return max(min([self.high_watermark, *undecided]), self.log_start_offset)

    def committed(self, start: int, end: int) -> list[tuple[int, bytes]]:
        _, ended = self.transactions()
        hidden = [(producer_id, first, last) for producer_id, first, last, aborted in ended if aborted]
        return [
            (row.offset, row.value)
            for row in self.rows[start:end]
            if not row.end and not any(row.producer_id == p and f <= row.offset < last for p, f, last in hidden)
        ]

    def truncate_to(self, offset: int) -> None:
        del self.rows[offset:]
        self.high_watermark = min(self.high_watermark, offset)
        self.log_start_offset = min(self.log_start_offset, offset)


class Run:
    """One log and its model; producers of both versions of the protocol."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.bench = Bench(CONFIG)
        self.log = self.bench.open()
        self.model = Model()
        self.versions = {p: rng.choice((TransactionVersion.TV_1, TransactionVersion.TV_2)) for p in PRODUCERS}
        self.coordinator_epoch = 0
        self.starts = {0}
        """Where the log began when its producers were read from it."""
        self.rebuilt_at = 0
        """Where it ended then."""

    def epoch_of(self, producer_id: int) -> int:
        entry = self.log.producers.entries.get(producer_id)
        return entry.producer_epoch if entry is not None else 0

    def write(self) -> None:
        value = self.rng.randbytes(self.rng.randrange(1, 40))
        row = Row(self.model.log_end_offset, value, self.rng.choice((-1, *PRODUCERS)))
        if row.producer_id < 0:
            result = append_as_leader(self.log, batch(value), 0)
        else:
            entry = self.log.producers.entries.get(row.producer_id)
            epoch, sequence = self.epoch_of(row.producer_id), (entry.last_sequence if entry else -1) + 1
            guard = self.log.producers.begin_verification(row.producer_id, epoch, sequence, self.bench.clock.now_ms())
            data = batch(value, producer=(row.producer_id, epoch, sequence), transactional=True)
            assert not isinstance(guard, ErrorCode)
            check = TransactionCheck(self.versions[row.producer_id], guard)
            result = append_as_leader(self.log, data, 0, transaction=check)
        assert (result.error, result.base_offset) == (0, row.offset), result
        self.model.rows.append(row)

    def end(self) -> None:
        producer_id = self.rng.choice(PRODUCERS)
        version = self.versions[producer_id]
        is_open = producer_id in self.model.transactions()[0]
        repeats = not is_open and self.rng.random() < 0.5
        epoch = self.epoch_of(producer_id) + (version.bumps_epoch and not repeats)
        self.coordinator_epoch += self.rng.random() < 0.1
        row = Row(self.model.log_end_offset, b"", producer_id, self.rng.choice(("abort", "commit")))
        data = marker(producer_id, epoch, abort=row.end == "abort", coordinator_epoch=self.coordinator_epoch)
        check = TransactionCheck(version)
        result = append_as_leader(self.log, data, 0, origin=AppendOrigin.COORDINATOR, transaction=check)
        assert (result.error, result.base_offset) == (0, row.offset), result
        self.model.rows.append(row)

    def replicate(self) -> None:
        offset = self.rng.randint(self.model.high_watermark, self.model.log_end_offset)
        self.model.high_watermark = self.log.update_high_watermark(offset)
        assert self.model.high_watermark == offset

    def delete(self) -> None:
        offset = self.rng.randint(self.model.log_start_offset, self.model.high_watermark)
        self.log.increment_log_start_offset(offset)
        self.model.log_start_offset = offset

    def truncate(self) -> None:
        """As a follower does that diverges: never below the high watermark."""
        offset = self.rng.randint(self.model.high_watermark, self.model.log_end_offset)
        self.log.truncate_to(offset)
        self.model.truncate_to(offset)
        self.starts.add(self.model.log_start_offset)
        self.rebuilt_at = offset

    def restart(self) -> None:
        is_clean = self.rng.random() < 0.5
        if is_clean:
            close(self.log)
        start, point = self.model.log_start_offset, self.log.recovery_point
        self.log = self.bench.open(clean=is_clean, recovery_point=point, log_start_offset=start)
        self.log.update_high_watermark(self.model.high_watermark)
        self.starts.add(start)
        self.rebuilt_at = self.model.log_end_offset

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.log_start_offset, model.log_end_offset)
        stable = log.last_stable_offset
        highest = max(model.last_stable_offset(start, self.rebuilt_at) for start in self.starts)
        assert model.last_stable_offset() <= stable <= highest
        opened = [model.transactions(start)[0] for start in self.starts]
        for producer_id in PRODUCERS:
            entry = log.producers.entries.get(producer_id)
            first = entry.current_txn_first_offset if entry is not None else None
            assert first in {known.get(producer_id) for known in opened}
        start = self.rng.randint(model.log_start_offset, stable)
        assert read_committed(log, start, self.rng.choice((1, 200, 1 << 20))) == model.committed(start, stable)


def read_committed(log: Log, start: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """A consumer: fetches up to the last stable offset, and leaves out the aborted transactions of each answer."""
    found: list[tuple[int, bytes]] = []
    at = start
    while at < log.last_stable_offset:
        answer = log.read(at, max_bytes, max_offset=log.last_stable_offset, include_aborted=True)
        assert isinstance(answer, ReadResult)
        aborted = list(answer.aborted)
        assert aborted == sorted(aborted, key=lambda txn: txn.first_offset)
        hidden: set[int] = set()
        for each in batches(bytes(answer.records)):
            while aborted and aborted[0].first_offset <= each.last_offset:
                hidden.add(aborted.pop(0).producer_id)
            if each.is_control:
                hidden.discard(each.producer_id)
            elif each.producer_id not in hidden or not each.is_transactional:
                found += [(r.offset, r.value or b"") for r in records(each) if r.offset >= start]
            at = each.next_offset
    return found


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=120, deadline=None)
def test_readers_see_what_was_committed(seed: int) -> None:
    rng = Random(seed)
    run = Run(rng)
    steps = (*[run.write] * 10, *[run.end] * 5, *[run.replicate] * 5, run.delete, run.truncate, run.restart)
    for _ in range(rng.randint(1, 60)):
        rng.choice(steps)()
        run.check()
