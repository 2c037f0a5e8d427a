"""Invariants of transactions in a quiet cluster: none is open, and readers have all committed records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from klamm.protocol.record_batch import RecordBatch, batches
from klamm.sim.cluster import SimCluster
from klamm.sim.cluster_quiet import content
from klamm.sim.transactions.committed_reader import CommittedReader
from klamm.sim.violation import require


def check_stable(cluster: SimCluster, readers: Sequence[CommittedReader]) -> None:
    """Every log is stable up to its end on every replica: no transaction stays open."""
    ends = {}
    for node in cluster.nodes.values():
        require(node.broker is not None, f"broker {node.id} does not answer")
        assert node.broker is not None
        for tp, log in node.broker.logs.logs.items():
            stable, end = log.last_stable_offset, log.log_end_offset
            require(stable == end, f"{tp} of broker {node.id} is stable up to {stable} and ends at {end}")
            ends[tp] = end
    for reader in readers:
        end = ends[reader.tp]
        require(reader.offset == end, f"{reader.name} is at {reader.offset}, the log ends at {end}")


def check_logs(cluster: SimCluster) -> None:
    """Check the batches that clients wrote; call it when the replicas are known to be equal."""
    for node in cluster.nodes.values():
        assert node.broker is not None
        for tp in [tp for tp in cluster.partitions if tp in node.broker.logs.logs]:
            problems = list(broken_order(batches(content(node.broker, tp))))
            require(not problems, f"{tp} of broker {node.id}: {'; '.join(problems[:2])}")


def broken_order(log: Iterable[RecordBatch]) -> Iterator[str]:
    """Yield batches that a leader should have refused: a producer's epoch goes back, or its sequence has a gap."""
    epochs: dict[int, int] = {}
    sequences: dict[tuple[int, int], int] = {}
    for batch in log:
        producer = batch.producer_id
        if producer < 0:
            continue
        before = epochs.get(producer, batch.producer_epoch)
        if batch.producer_epoch < before:
            yield f"producer {producer} wrote at {batch.base_offset} in epoch {batch.producer_epoch} after {before}"
        epochs[producer] = batch.producer_epoch
        if batch.is_control or batch.base_sequence < 0:
            continue
        key = (producer, batch.producer_epoch)
        expected = sequences.get(key, 0)
        if batch.base_sequence != expected:
            yield f"producer {key} wrote sequence {batch.base_sequence} at {batch.base_offset}, expected: {expected}"
        sequences[key] = batch.last_sequence + 1
