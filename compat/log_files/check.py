"""Writes a log with transactions and compares what Kafka's DumpLogSegments reads in its files with what klamm knows."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from bench.kafka_distribution import FOLDER, libraries
from bench.kafka_tools import QUIET_LOG4J
from klamm.errors import ErrorCode, KlammError
from klamm.log import AppendOrigin, Log, LogConfig, LogManager, append_as_leader
from klamm.log.producer_snapshots import decode_snapshot
from klamm.log.producer_state import marker_record_fields
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, RecordBatch, batches, build_batch, records

TP: Final = TopicPartition("orders", 0)
NOW: Final = 1_700_000_000_000
RETENTION_MS: Final = 1_000
TIMEOUT_S: Final = 300
CONFIG: Final = LogConfig(
    segment_bytes=4_000,
    index_interval_bytes=300,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=RETENTION_MS,
)
COMPLAINTS: Final = re.compile(r"mismatch|corrupt|invalid|non-secutive|exception|error|isvalid: false|not found", re.I)
BATCH: Final = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: -?\d+ producerId: (-?\d+) "
    r"producerEpoch: (-?\d+) partitionLeaderEpoch: (\d+) isTransactional: (\w+) isControl: (\w+) "
    r"deleteHorizonMs: OptionalLong(\.empty|\[\d+\])"
)
MARKER: Final = re.compile(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)")
ABORTED: Final = re.compile(
    r"^version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
)
PRODUCER: Final = re.compile(
    r"^producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+) "
    r"lastTimestamp: (-?\d+)"
)


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Writer:
    """Random producers: plain, idempotent and transactional ones, whose transactions overlap."""

    def __init__(self, rng: Random, log: Log) -> None:
        self.rng = rng
        self.log = log
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.open: dict[int, None] = {}

    def write(self) -> None:
        producer_id = self.rng.choice((-1, 100, 1, 2, 3))
        if producer_id in self.open and self.rng.random() < 0.4:
            self.end(producer_id)
            return
        keys = [b"key-%d" % self.rng.randrange(40) for _ in range(self.rng.randint(1, 5))]
        rows = [Record(timestamp=NOW, key=key, value=self._value()) for key in keys]
        is_transactional = producer_id in (1, 2, 3)
        sequence = self.sequences.get(producer_id, 0)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(rows)
        if is_transactional:
            self.open[producer_id] = None
        self._append(
            build_batch(
                rows,
                compression=self.rng.randrange(5),
                producer_id=producer_id,
                producer_epoch=self.epochs.get(producer_id, 0) if producer_id >= 0 else -1,
                base_sequence=sequence if producer_id >= 0 else -1,
                is_transactional=is_transactional,
            )
        )

    def end(self, producer_id: int) -> None:
        """Producer 3 has the bumped epochs of `transaction.version` 2, whose sequences start again."""
        del self.open[producer_id]
        if producer_id == 3:
            self.epochs[3] = self.epochs.get(3, 0) + 1
            self.sequences[3] = 0
        key, value = marker_record_fields(
            self.rng.random() < 0.5, self.rng.randrange(3) + 3 * (self.log.log_end_offset)
        )
        marker = build_batch(
            [Record(timestamp=NOW, key=key, value=value)],
            producer_id=producer_id,
            producer_epoch=self.epochs.get(producer_id, 0),
            is_control=True,
            is_transactional=True,
        )
        self._append(marker, AppendOrigin.COORDINATOR)

    def _value(self) -> bytes | None:
        return None if self.rng.random() < 0.1 else self.rng.randbytes(self.rng.randrange(60))

    def _append(self, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        result = append_as_leader(self.log, data, 0, origin=origin)
        if result.error != ErrorCode.NONE:
            raise KlammError(f"the log refuses its own test: {result}")


def dump(files: list[Path]) -> dict[str, list[str]]:
    """Return the lines that DumpLogSegments prints for each file. Raises KlammError if it complains."""
    log4j = FOLDER / "dump-log4j.properties"
    log4j.write_text(QUIET_LOG4J)
    java = ["java", "-Xmx256m", "-Duser.language=en", f"-Dlog4j.configuration=file:{log4j}", "-cp", f"{libraries()}/*"]
    names = ",".join(str(path) for path in files)
    command = [*java, "kafka.tools.DumpLogSegments", "--deep-iteration", "--files", names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    complaint = next((line for line in (done.stdout + done.stderr).splitlines() if COMPLAINTS.search(line)), None)
    if done.returncode != 0 or complaint is not None:
        raise KlammError(f"DumpLogSegments ended with {done.returncode}: {complaint or done.stderr[-1000:]}")
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            lines = found[line.removeprefix("Dumping ").strip()] = []
        elif line.strip() and not line.startswith(("Log starting offset", "Snapshot end offset")):
            lines.append(line.strip())
    return found


# --- what klamm knows, in the words of the tool --------------------------------------------------------------------


def batch_row(batch: RecordBatch) -> tuple[object, ...]:
    return (
        batch.base_offset,
        batch.last_offset,
        batch.record_count,
        batch.base_sequence,
        batch.producer_id,
        batch.producer_epoch,
        batch.partition_leader_epoch,
        str(batch.is_transactional).lower(),
        str(batch.is_control).lower(),
        _optional(batch.delete_horizon_ms),
    )


def _optional(value: int | None) -> str:
    return ".empty" if value is None else f"[{value}]"


def markers_of(found: list[RecordBatch]) -> Iterator[tuple[str, int]]:
    for batch in found:
        for record in records(batch) if batch.is_control else ():
            assert record.key is not None and record.value is not None
            yield ("COMMIT" if record.key[3] else "ABORT"), int.from_bytes(record.value[2:], "big")


def compare(path: Path, lines: list[str]) -> int:
    """Compare one file; return how many things it has. Raises KlammError at the first difference."""
    data = path.read_bytes()
    match path.suffix:
        case ".log":
            stored = list(batches(data))
            expected: list[object] = [batch_row(batch) for batch in stored]
            reported: list[object] = [_numbers(found.groups()) for line in lines if (found := BATCH.match(line))]
            told_markers = [(f[1], int(f[2])) for line in lines if (f := MARKER.search(line))]
            if told_markers != list(markers_of(stored)):
                raise KlammError(f"{path.name}: markers {told_markers}")
        case ".txnindex":
            rows = [data[at : at + 34] for at in range(0, len(data), 34)]
            expected = [tuple(int.from_bytes(r[at : at + 8], "big") for at in range(2, 34, 8)) for r in rows]
            reported = [_numbers(found.groups()) for line in lines if (found := ABORTED.match(line))]
        case ".snapshot":
            expected = [
                (
                    entry.producer_id,
                    entry.producer_epoch,
                    entry.coordinator_epoch,
                    f"OptionalLong{_optional(entry.current_txn_first_offset)}",
                    entry.last_timestamp,
                )
                for entry in decode_snapshot(data)
            ]
            reported = [_numbers(found.groups()) for line in lines if (found := PRODUCER.match(line))]
        case _:
            return len(lines)
    if expected != reported:
        raise KlammError(f"{path.name}: klamm has {expected}, DumpLogSegments says {reported or lines[:3]}")
    return len(expected)


def _numbers(groups: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(int(text) if re.fullmatch(r"-?\d+", text) else text for text in groups)


def check(name: str, directory: Path) -> bool:
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = sorted(path for path in directory.iterdir() if path.suffix in kinds)
    counts = dict.fromkeys(kinds, 0)
    try:
        dumped = dump(files)
        for path in files:
            counts[path.suffix] += compare(path, dumped[str(path)])
    except (KlammError, KeyError) as error:
        print(f"not ok {name}: {' '.join(str(error).split())[:500]}", flush=True)
        return False
    reported = ", ".join(f"{count} in {kind}" for kind, count in counts.items())
    is_complete = counts[".log"] > 0 and counts[".snapshot"] > 0
    print(f"{'ok' if is_complete else 'not ok'} {name}", flush=True)
    print(f"  {len(files)} files: {reported}", flush=True)
    return is_complete


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="klamm-log-files-") as folder:
        clock = Clock()
        manager = LogManager([folder], clock=clock, rng=Random(0), default_config=CONFIG)
        manager.load_logs()
        log = manager.get_or_create_log(TP)
        directory = Path(log.dir)
        writer = Writer(Random(12), log)
        for _ in range(400):
            writer.write()
        log.flush()
        results = [check("before compaction", directory)]
        for producer_id in list(writer.open):
            writer.end(producer_id)
        log.roll()
        writer.write()
        log.update_high_watermark(log.log_end_offset)
        any(manager.passes.compaction(clock.ms))
        log.flush()
        results.append(check("after compaction", directory))
        clock.ms += RETENTION_MS + 1
        for _ in range(60):
            writer.write()
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        any(manager.passes.compaction(clock.ms))
        log.flush()
        results.append(check("after the delete horizon", directory))
        manager.abandon()
        again = LogManager([folder], clock=clock, rng=Random(0), default_config=CONFIG)
        again.load_logs()
        again.logs[TP].open()
        results.append(check("after a recovery", directory))
        again.shutdown()
        results.append(check("after a clean shutdown", directory))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
