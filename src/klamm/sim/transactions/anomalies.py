"""Checkers of transactions: each is a function of the observations of a run that yields one sentence per anomaly.

The kinds are those of Jepsen's workload for Kafka. Kafka does not isolate writes of different transactional ids from
each other: their records interleave in a log by design. Transactions of one transactional id are serial, so their
writes have one order in all logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from klamm.model import TopicPartition
from klamm.sim.transactions.observations import NO_OFFSET, Observations, Outcome, Poll, Txn
from klamm.sim.violation import require

Graph = dict[int, set[int]]
_SEPARATOR: Final = " | "
"""Between the kinds of anomalies in the text of a Violation."""


def lost_writes(seen: Observations) -> Iterator[str]:
    """A committed transaction wrote a record that no reader finds."""
    for txn in seen.txns:
        if txn.outcome is Outcome.COMMITTED:
            for write in txn.writes:
                if write.value not in seen.places:
                    yield f"{txn} wrote {write.value!r} to {write.tp} at {write.offset}, and it is lost"


def misplaced_writes(seen: Observations) -> Iterator[str]:
    """A record is at another place than the one that was acknowledged."""
    for txn in seen.txns:
        for write in txn.writes:
            found = seen.places.get(write.value)
            if found is not None and (found[0] != write.tp or write.offset not in (NO_OFFSET, found[1])):
                message = f"{write.value!r} was acknowledged at {write.tp} {write.offset}"
                yield f"{message} and is at {found[0]} {found[1]}"


def dirty_writes(seen: Observations) -> Iterator[str]:
    """G0: the logs order the transactions of one transactional id in different ways, or not as they were made."""
    graph = write_order(seen)
    for cycle in cycles(graph):
        yield f"the writes of transactions {cycle} are ordered in a circle"


def aborted_reads(seen: Observations) -> Iterator[str]:
    """G1a: a reader was given a record of a transaction that did not commit."""
    for txn in seen.txns:
        for read in txn.reads:
            if read not in seen.committed:
                yield _aborted(seen, f"{txn} read", read.tp, read.offset, read.value)
    for reader, polls in seen.polls.items():
        for poll in polls:
            for offset, value in poll.records:
                if (poll.tp, offset, value) not in seen.committed:
                    yield _aborted(seen, f"{reader} was given", poll.tp, offset, value)
    for tp, log in seen.logs.items():
        for offset, value in log:
            writer = seen.writers.get(value)
            if writer is not None and writer.outcome is Outcome.ABORTED:
                yield f"{tp} has {value!r} at {offset}, which {writer} wrote"


def _aborted(seen: Observations, what: str, tp: TopicPartition, offset: int, value: bytes) -> str:
    return (
        f"{what} {value!r} at {tp} {offset}, written by {seen.writers.get(value)}; committed: {seen.places.get(value)}"
    )


def cyclic_information_flow(seen: Observations) -> Iterator[str]:
    """G1c: committed transactions read from each other in a circle, or a transaction read its own writes.

    Circles of writes alone are G0, and are reported only as such.
    """
    graph = write_order(seen)
    dirty = {number for circle in cycles(graph) for number in circle}
    for txn in seen.txns:
        for read in txn.reads:
            writer = seen.writers.get(read.value)
            if writer is not None and _has_effect(seen, txn) and seen.is_visible(writer):
                if writer.number == txn.number and txn.number not in dirty:
                    yield f"{txn} read its own write {read.value!r} before it committed"
                graph.setdefault(writer.number, set()).add(txn.number)
    for circle in cycles(graph):
        if not dirty.intersection(circle):
            yield f"transactions {circle} read from each other"


def _has_effect(seen: Observations, txn: Txn) -> bool:
    return txn.outcome is Outcome.COMMITTED or seen.is_visible(txn)


def torn_transactions(seen: Observations) -> Iterator[str]:
    """A part of a transaction is committed and a part is not."""
    for txn in seen.txns:
        missing = [write.value for write in txn.writes if write.value not in seen.places]
        if missing and seen.is_visible(txn):
            yield f"of {txn} {len(missing)} of {len(txn.writes)} records are missing: {missing}"


def skipped_polls(seen: Observations) -> Iterator[str]:
    """A reader passed a committed record without being given it."""
    for reader, polls in seen.polls.items():
        for poll in polls:
            given = {record.offset for record in poll.records}
            for offset, value in seen.logs.get(poll.tp, ()):
                if poll.start <= offset < poll.end and offset not in given:
                    yield f"{reader} went from {poll.start} to {poll.end} of {poll.tp} without {value!r} at {offset}"


def nonmonotonic_polls(seen: Observations) -> Iterator[str]:
    """A reader was given records out of order, or moved back."""
    for reader, polls in seen.polls.items():
        position: dict[TopicPartition, int] = {}
        for poll in polls:
            yield from (f"{reader}: {message}" for message in _disorder(poll))
            if poll.start != position.get(poll.tp, poll.start):
                yield f"{reader} was at {position[poll.tp]} of {poll.tp} and continued at {poll.start}"
            position[poll.tp] = poll.end


def _disorder(poll: Poll) -> Iterator[str]:
    at = poll.start
    for offset, value in poll.records:
        if offset < at:
            yield f"{value!r} at {offset} of {poll.tp} was given after position {at}"
        at = offset + 1
    if poll.end < at:
        yield f"the position in {poll.tp} went from {at} back to {poll.end}"


def duplicates(seen: Observations) -> Iterator[str]:
    """A record is committed twice."""
    counts = Counter(record.value for log in seen.logs.values() for record in log)
    for value, count in counts.items():
        if count > 1:
            yield f"{value!r} is committed {count} times"


def unstable_ends(seen: Observations) -> Iterator[str]:
    """ListOffsets with `read_committed` returned an end after records of a transaction that was open."""
    for txn in seen.txns:
        if txn.outcome is Outcome.COMMITTED:
            for end in txn.ends:
                if end.offset > end.first_write:
                    message = f"{end.tp} ended at {end.offset} for readers of committed records"
                    yield f"{message} while {txn} was open, which had written at {end.first_write}"


def wrong_copies(seen: Observations) -> Iterator[str]:
    """The copies of a group and its committed offset disagree, or copies of a partition are out of order."""
    for (group, tp), committed in seen.offsets.items():
        copies = _copies(seen, group, tp)
        counts = Counter(copies)
        end = max(committed, 0)
        for record in seen.logs.get(tp, ()):
            count = counts[record.offset]
            if record.offset < end and count != 1:
                yield f"{group} has committed {end} of {tp} and copied offset {record.offset} {count} times"
            if record.offset >= end and count:
                yield f"{group} has committed {end} of {tp} and copied offset {record.offset}"
        if copies != sorted(copies):
            yield f"{group} copied {tp} in the order {copies}"


def _copies(seen: Observations, group: str, tp: TopicPartition) -> list[int]:
    """Return the offsets of `tp` whose copies of `group` are committed, in the order of the copies."""
    sources = {
        write.value: write.source
        for txn in seen.txns
        if any(move.group == group for move in txn.moves)
        for write in txn.writes
    }
    found = []
    for log in seen.logs.values():
        for record in log:
            source = sources.get(record.value)
            if source is not None and source.tp == tp:
                found.append(source.offset)
    return found


def write_order(seen: Observations) -> Graph:
    """Return edges between committed transactions of one transactional id: the order in logs, and of each process."""
    graph: Graph = {}
    for log in seen.logs.values():
        last: dict[str, int] = {}
        for record in log:
            writer = seen.writers.get(record.value)
            if writer is not None:
                _follow(graph, last, writer.transactional_id, writer.number)
    last_of_process: dict[str, int] = {}
    for txn in sorted(seen.txns, key=lambda each: each.number):
        if seen.is_visible(txn):
            _follow(graph, last_of_process, f"{txn.transactional_id} {txn.process}", txn.number)
    return graph


def _follow(graph: Graph, last: dict[str, int], key: str, number: int) -> None:
    before = last.get(key, number)
    if before != number:
        graph.setdefault(before, set()).add(number)
    last[key] = number


def cycles(graph: Mapping[int, set[int]]) -> list[list[int]]:
    """Return the strongly connected components with more than one node, each sorted."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[list[int]] = []
    for root in sorted(graph):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        work = [(root, iter(sorted(graph[root])))]
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = stack[stack.index(node) :]
                    del stack[-len(members) :]
                    if len(members) > 1:
                        found.append(sorted(members))
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                work.append((target, iter(sorted(graph.get(target, ())))))
            elif target in stack:
                low[node] = min(low[node], index[target])
    return found


CHECKERS: Final[dict[str, Callable[[Observations], Iterator[str]]]] = {
    "lost write": lost_writes,
    "misplaced write": misplaced_writes,
    "dirty write (G0)": dirty_writes,
    "aborted read (G1a)": aborted_reads,
    "cyclic information flow (G1c)": cyclic_information_flow,
    "torn transaction": torn_transactions,
    "skipped poll": skipped_polls,
    "non-monotonic poll": nonmonotonic_polls,
    "duplicate": duplicates,
    "unstable end": unstable_ends,
    "copies and offsets disagree": wrong_copies,
}


def check_anomalies(seen: Observations) -> None:
    """Raise Violation with the first anomalies of each kind."""
    found = {kind: list(check(seen)) for kind, check in CHECKERS.items()}
    message = [f"{kind}: {'; '.join(texts[:2])}" for kind, texts in found.items() if texts]
    require(not message, _SEPARATOR.join(message))


def reported_kinds(error: str) -> set[str]:
    """Return the kinds of anomalies in the text of a Violation."""
    return {part.removeprefix("Violation: ").split(": ")[0] for part in error.split(_SEPARATOR)} & CHECKERS.keys()
