"""A log whose tail was cut or damaged at any byte comes back as a prefix, with the state that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.log import AppendOrigin, Log, LogConfig, append_as_leader
from klamm.log.leader_epoch_cache import EpochEntry
from klamm.log.memory_files import MemoryFiles
from klamm.log.transaction_index import AbortedTxn
from klamm.protocol.record_batch import batches
from tests.unit.log.harness import DIR, NOW, Bench, batch, close, marker, read_batches

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


@dataclass
class Step:
    """One append as the model knows it."""

    base_offset: int
    next_offset: int
    epoch: int
    producer_id: int = -1
    last_sequence: int = -1
    transactional: bool = False
    marker: str = ""


@dataclass
class Model:
    """The log as a list of batches: what a log cut after any of them has to be."""

    steps: list[Step] = field(default_factory=list)

    def end(self) -> int:
        return self.steps[-1].next_offset if self.steps else 0

    def upto(self, offset: int) -> Model:
        return Model([s for s in self.steps if s.next_offset <= offset])

    def epochs(self) -> list[EpochEntry]:
        found: list[EpochEntry] = []
        for step in self.steps:
            if not found or step.epoch != found[-1].epoch:
                found.append(EpochEntry(step.epoch, step.base_offset))
        return found

    def last_sequences(self) -> dict[int, int]:
        return {s.producer_id: s.last_sequence for s in self.steps if s.producer_id >= 0 and not s.marker}

    def transactions(self) -> tuple[dict[int, int], list[AbortedTxn]]:
        """Open ones (producer -> first offset), and the aborted."""
        ongoing: dict[int, int] = {}
        aborted: list[AbortedTxn] = []
        for step in self.steps:
            if step.marker:
                first = ongoing.pop(step.producer_id)
                if step.marker == "abort":
                    stable = min(ongoing.values(), default=step.next_offset)
                    aborted.append(AbortedTxn(step.producer_id, first, step.base_offset, stable))
            elif step.transactional:
                ongoing.setdefault(step.producer_id, step.base_offset)
        return ongoing, aborted


def write(rng: Random, log: Log, count: int) -> Model:
    """Random appends: plain, idempotent, transactional with markers, over several leader epochs."""
    model = Model()
    epoch = 0
    sequences: dict[int, int] = {}
    while len(model.steps) < count:
        epoch += rng.random() < 0.1
        values = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randint(1, 4))]
        ongoing, _ = model.transactions()
        kind = rng.choice(("plain", "idempotent", "transactional", "end"))
        origin = AppendOrigin.CLIENT
        step = Step(log.log_end_offset, log.log_end_offset + len(values), epoch)
        if kind == "end" and ongoing:
            step.producer_id = rng.choice(sorted(ongoing))
            step.marker = rng.choice(("abort", "commit"))
            step.next_offset = step.base_offset + 1
            data = marker(step.producer_id, 0, abort=step.marker == "abort")
            origin = AppendOrigin.COORDINATOR
        elif kind in ("idempotent", "transactional"):
            step.transactional = kind == "transactional"
            step.producer_id = rng.randrange(3) + (10 if step.transactional else 0)
            sequence = sequences.get(step.producer_id, 0)
            step.last_sequence = sequence + len(values) - 1
            sequences[step.producer_id] = step.last_sequence + 1
            data = batch(*values, producer=(step.producer_id, 0, sequence), transactional=step.transactional)
        else:
            data = batch(*values, compression=rng.randrange(5), timestamp=NOW + rng.randrange(1000))
        result = append_as_leader(log, data, epoch, origin=origin)
        assert (result.error, result.base_offset, result.last_offset + 1) == (0, step.base_offset, step.next_offset)
        model.steps.append(step)
    return model


def check(log: Log, model: Model, written: list[bytes]) -> None:
    """`log` holds exactly the batches of `model`, and knows what follows from them."""
    found = read_batches(log)
    assert [bytes(b.view) for b in found] == written[: len(found)]
    assert len(found) == len(model.steps)
    assert log.log_end_offset == model.end()
    assert log.leader_epochs.entries == model.epochs()
    sequences = {p: e.last_sequence for p, e in log.producers.entries.items() if e.batches}
    assert sequences == model.last_sequences()
    ongoing, aborted = model.transactions()
    in_order = sorted(aborted, key=lambda txn: txn.first_offset)
    assert list(log.local.collect_aborted(0, 1 << 40)) == in_order
    assert [txn for segment in log.segments for txn in segment.txn_index.all()] == aborted
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == min(ongoing.values(), default=log.log_end_offset)
    for step in model.steps:
        assert read_batches(log, step.next_offset - 1)[0].base_offset == step.base_offset


def damage(rng: Random, files: MemoryFiles, log: Log) -> int:
    """Cuts or changes a random byte of the log; returns the offset before which nothing may be lost."""
    segment = rng.choice(list(log.segments))
    if not segment.size_bytes:
        return log.log_end_offset
    at = rng.randrange(segment.size_bytes)
    path = segment.path(".log")
    handle = files.open(path)
    start = max(p for p, _ in segment.batches() if p <= at)
    if rng.random() < 0.5:
        # a segment cut exactly between two batches looks like one that compaction made: its followers are kept
        handle.truncate(at if segment is log.segments.active else max(at, start + 1))
    elif at - start < 8 or 12 <= at - start < 16:
        # the checksum does not cover the base offset and the leader epoch: the format cannot notice this
        handle.truncate(start + 1)
    else:
        handle.pwrite((bytes([handle.pread(1, at)[0] ^ (1 << rng.randrange(8))]),), at)
    safe = segment.base_offset
    position = 0
    for b in batches(files.read_bytes(path)[: at if at else 0]):
        position += b.size_bytes
        if position <= at:
            safe = b.next_offset
    return safe


def hurt_the_rest(rng: Random, bench: Bench) -> None:
    """Indexes, snapshots and checkpoints may be missing or broken too.

    But for the transaction index: a segment without one is one without aborted transactions.
    """
    for name in bench.names():
        if not name.endswith((".log", ".txnindex")) and rng.random() < 0.3:
            path = f"{DIR}/orders-0/{name}"
            if rng.random() < 0.5 or name == "partition.metadata":
                bench.files.unlink(path)
            elif not name.endswith("checkpoint"):
                bench.files.write_atomic(path, rng.randbytes(rng.randrange(40)))


@example(1396363)  # the only segment was cut to nothing and its aborted transaction stayed
@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=300, deadline=None)
def test_a_damaged_log_recovers_to_a_prefix(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(CONFIG)
    log = bench.open()
    model = write(rng, log, rng.randint(1, 40))
    written = [bytes(b.view) for b in read_batches(log)]
    safe = damage(rng, bench.files, log)
    log.close_handles()
    if rng.random() < 0.5:
        hurt_the_rest(rng, bench)
    again = bench.open(recovery_point=rng.choice((0, rng.randint(0, safe))))
    assert safe <= again.log_end_offset <= model.end()
    check(again, model.upto(again.log_end_offset), written)
    more = write(rng, again, 0)
    assert more.steps == []
    append_as_leader(again, batch(b"after"), 1000)
    close(again)
    clean = bench.open(clean=True, recovery_point=again.recovery_point)
    assert [bytes(b.view) for b in read_batches(clean)] == [bytes(b.view) for b in read_batches(again)]


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=150, deadline=None)
def test_flushed_records_survive_a_power_cut(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(CONFIG)
    log = bench.open()
    model = write(rng, log, rng.randint(1, 30))
    written = [bytes(b.view) for b in read_batches(log)]
    if rng.random() < 0.3:
        log.flush()
    flushed = log.recovery_point
    after = Bench(CONFIG, bench.files.crash(rng))
    again = after.open(recovery_point=flushed)
    assert again.log_end_offset >= flushed
    check(again, model.upto(again.log_end_offset), written)


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=60, deadline=None)
def test_truncation_leaves_a_prefix(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(CONFIG)
    log = bench.open()
    model = write(rng, log, rng.randint(1, 40))
    written = [bytes(b.view) for b in read_batches(log)]
    step = rng.choice(model.steps)
    log.truncate_to(step.base_offset)
    check(log, model.upto(step.base_offset), written)
    check(bench.open(), model.upto(step.base_offset), written)
