"""Runs Kafka's DumpLogSegments and compares the rows that it prints with those that klamm reads in the same files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.kafka_distribution import FOLDER, libraries
from bench.kafka_tools import QUIET_LOG4J
from klamm.errors import KlammError
from klamm.log.producer_snapshots import decode_snapshot
from klamm.protocol.record_batch import RecordBatch, batches, records

TIMEOUT_S: Final = 300
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


def dump(files: list[Path], *options: str) -> dict[str, list[str]]:
    """Return the lines that DumpLogSegments prints for each file. Raises KlammError if it complains."""
    class_path = f"{libraries()}/*"
    log4j = FOLDER / "dump-log4j.properties"
    log4j.write_text(QUIET_LOG4J)
    java = ["java", "-Xmx256m", "-Duser.language=en", f"-Dlog4j.configuration=file:{log4j}", "-cp", class_path]
    names = ",".join(str(path) for path in files)
    command = [*java, "kafka.tools.DumpLogSegments", "--deep-iteration", *options, "--files", names]
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
            reported_markers = [(f[1], int(f[2])) for line in lines if (f := MARKER.search(line))]
            if reported_markers != list(markers_of(stored)):
                raise KlammError(f"{path.name}: markers {reported_markers}")
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
        raise KlammError(f"{path.name}: klamm has {expected}, DumpLogSegments reports {reported or lines[:3]}")
    return len(expected)


def _numbers(groups: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(int(text) if re.fullmatch(r"-?\d+", text) else text for text in groups)


def check(name: str, directory: Path) -> bool:
    """Dump and compare all files of a partition, and print the result."""
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = sorted(path for path in directory.iterdir() if path.suffix in kinds)

    def act() -> str:
        counts = dict.fromkeys(kinds, 0)
        dumped = dump(files)
        for path in files:
            counts[path.suffix] += compare(path, dumped[str(path)])
        if not (counts[".log"] and counts[".snapshot"]):
            raise KlammError(f"there are no batches or no producers in {[path.name for path in files]}")
        return f"{len(files)} files: " + ", ".join(f"{count} in {kind}" for kind, count in counts.items())

    return checked(name, act)


def checked(name: str, act: Callable[[], str]) -> bool:
    """Print whether the check passes, and then the text that it returns."""
    try:
        text = act()
    except (KlammError, KeyError) as error:
        print(f"not ok {name}: {' '.join(str(error).split())[:500]}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    print(f"  {text}", flush=True)
    return True
