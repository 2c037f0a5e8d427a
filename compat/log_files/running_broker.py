"""Dumps segments of a running cluster with Kafka's DumpLogSegments, `__transaction_state` with Kafka's decoder.

Java clients 3.9 and 4.4 commit and abort transactions, the second one with the bumped epochs of `transaction.version`
2, and a third transaction is open. The dumped rows must be those that klamm reads in the same files.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from compat.log_files.dumps import MARKER, check, checked, compare, dump

from klamm.coordinator.transaction.transaction_records import decode_transaction_key, decode_transaction_value
from klamm.errors import KlammError
from klamm.model import TRANSACTION_STATE_TOPIC
from klamm.protocol.record_batch import batches, records
from klamm.testing import LocalCluster
from tests.support.java_clients import JavaSession, compiled

VERSIONS: Final = ("3.9.2", "4.4.0")
OUTCOMES: Final = ("Commit", "Abort") * 3 + ("Abort",)
"""Of the scenario `isolation`. The records of its aborted transactions are written."""
PARTITIONS: Final = 3
BROKER: Final = 1
"""All brokers have all replicas."""
OPEN: Final = "still-open"
STATE: Final = re.compile(
    r"key: transaction_metadata::transactionalId=(\S+) payload: producerId:(\d+),producerEpoch:(-?\d+),state=(\w+),"
    r"partitions=\[(.*)\],txnLastUpdateTimestamp=(-?\d+),txnTimeoutMs=(\d+)$"
)


def run() -> bool:
    with tempfile.TemporaryDirectory(prefix="klamm-java-") as folder, LocalCluster(brokers=3) as cluster:
        classes = compiled("KlammTransactions.java", Path(folder), VERSIONS[0])
        for version in VERSIONS:
            with JavaSession("KlammTransactions", classes, version, cluster.bootstrap_servers) as java:
                java.run("isolation", _name(version))
                if version == VERSIONS[-1]:
                    java.run("open", OPEN)
        _wait_for_files(cluster)
        data_dir = cluster.data_dir / f"broker-{BROKER}"
        results = [
            checked("data segments of a running broker", lambda: _check_data(data_dir)),
            checked("transaction states of a running broker", lambda: _check_states(data_dir)),
        ]
        cluster.stop(BROKER)
        results += [check(f"after its shutdown, {it}", data_dir / f"{it}-0") for it in (*map(_name, VERSIONS), OPEN)]
        results.append(checked("transaction states after its shutdown", lambda: _check_states(data_dir)))
        return all(results)


def _name(version: str) -> str:
    """Return the transactional id, and the topic of the same name."""
    return f"client-{version}"


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def _data_folders() -> list[str]:
    return [f"{topic}-{part}" for topic in (*map(_name, VERSIONS), OPEN) for part in range(PARTITIONS)]


def _wait_for_files(cluster: LocalCluster) -> None:
    """Wait until the transactions are complete and all replicas have the same bytes."""
    brokers = [cluster.data_dir / f"broker-{it}" for it in cluster.broker_ids]
    names = [*_data_folders(), *(path.name for path in brokers[0].glob(f"{TRANSACTION_STATE_TOPIC}-*"))]

    def content(folder: Path) -> bytes:
        return b"".join(path.read_bytes() for path in _segments(folder))

    def are_complete() -> bool:
        states = [row.state for path in _state_segments(brokers[0]) for row in _decoded(path)]
        ended = sum(state.startswith("Complete") for state in states)
        are_equal = all(len({content(broker / name) for broker in brokers}) == 1 for name in names)
        return are_equal and ended == len(OUTCOMES) * len(VERSIONS)

    cluster.wait_for(are_complete, what="The end of the transactions, and equal replicas")


def _state_segments(data_dir: Path) -> list[Path]:
    folders = sorted(data_dir.glob(f"{TRANSACTION_STATE_TOPIC}-*"))
    return [path for folder in folders for path in _segments(folder)]


def _check_data(data_dir: Path) -> str:
    """All batches and markers are those in the files; the markers are those of the transactions."""
    files = [path for name in _data_folders() for path in _segments(data_dir / name)]
    dumped = dump(files)
    found = sum(compare(path, dumped[str(path)]) for path in files)
    for version in VERSIONS:
        for partition in range(PARTITIONS):
            paths = _segments(data_dir / f"{_name(version)}-{partition}")
            markers = [it[1] for path in paths for line in dumped[str(path)] if (it := MARKER.search(line))]
            if markers != [outcome.upper() for outcome in OUTCOMES]:
                raise KlammError(f"{_name(version)}-{partition} has the markers {markers}")
    return f"{len(files)} files: {found} batches"


def _check_states(data_dir: Path) -> str:
    """All states are those that klamm decodes; each transaction is complete, except the open one."""
    files = _state_segments(data_dir)
    dumped = dump(files, "--transaction-log-decoder")
    states: dict[str, list[str]] = {}
    for path in files:
        reported = [_row(found) for line in dumped[str(path)] if (found := STATE.search(line))]
        if reported != (expected := _decoded(path)):
            shown = reported or dumped[str(path)][:3]
            raise KlammError(f"{path}: klamm has {expected}, DumpLogSegments reports {shown}")
        for row in reported:
            states.setdefault(row.transactional_id, []).append(row.state)
    ends = {it: [state for state in found if state.startswith("Complete")] for it, found in states.items()}
    if ends != {**{_name(it): [f"Complete{end}" for end in OUTCOMES] for it in VERSIONS}, OPEN: []}:
        raise KlammError(f"transactions ended with {ends}")
    if states[OPEN][-1] != "Ongoing":
        raise KlammError(f"{OPEN} is {states[OPEN]}")
    return f"{len(files)} files: {sum(map(len, states.values()))} states"


class Row(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    partitions: frozenset[str]
    last_update_ms: int
    timeout_ms: int


def _row(found: re.Match[str]) -> Row:
    name, producer_id, epoch, state, partitions, updated, timeout = found.groups()
    return Row(
        name,
        int(producer_id),
        int(epoch),
        state,
        frozenset(filter(None, partitions.split(","))),
        int(updated),
        int(timeout),
    )


def _decoded(path: Path) -> list[Row]:
    found = []
    for batch in batches(path.read_bytes()):
        for record in records(batch):
            assert record.key is not None and record.value is not None
            name, value = decode_transaction_key(record.key), decode_transaction_value(record.value)
            partitions = frozenset(f"{topic}-{partition}" for topic, partition in value.partitions)
            found.append(
                Row(
                    str(name),
                    value.producer_id,
                    value.producer_epoch,
                    value.state.title,
                    partitions,
                    value.last_update_timestamp_ms,
                    value.timeout_ms,
                )
            )
    return found
