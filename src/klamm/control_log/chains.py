"""The chain behind each change of a partition: session, event, decision, znode, requests, brokers that applied it.

A function of records as the control log's topic has them: JSON objects. Records of several brokers need not be sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.lazy_dataclass import lazy_dataclass

Record = Mapping[str, Any]
_CHANGES: Final = ("election", "leader_change", "isr_change")
_REQUESTS: Final = ("LeaderAndIsr", "UpdateMetadata", "StopReplica")


@lazy_dataclass(frozen=True, slots=True)
class ChainStep:
    """`at_ms` is the wall clock of the broker that recorded it; `duration_ms` is None for a moment."""

    at_ms: int
    kind: str
    text: str
    duration_ms: float | None = None


@lazy_dataclass(frozen=True, slots=True)
class Chain:
    change: Record
    steps: tuple[ChainStep, ...]

    @property
    def total_ms(self) -> int:
        """From the first step to the last broker that applied the change."""
        return max(step.at_ms for step in self.steps) - min(step.at_ms for step in self.steps)


@dataclass(slots=True)
class _Index:
    """The records by the keys that join them."""

    events: dict[tuple[int, int], list[Record]] = field(default_factory=dict)
    writes: dict[tuple[int, int], list[Record]] = field(default_factory=dict)
    registrations: dict[tuple[int, int], list[Record]] = field(default_factory=dict)
    sent: list[Record] = field(default_factory=list)
    answers: dict[tuple[int, int, int], Record] = field(default_factory=dict)
    applied: dict[tuple[int, int, int], Record] = field(default_factory=dict)
    changes: list[Record] = field(default_factory=list)


def change_text(change: Record) -> str:
    """Return one sentence about an election or another change of a partition."""
    name, isr = f"{change['topic']}-{change['partition']}", ",".join(map(str, change["isr"]))
    if change["kind"] == "isr_change":
        before = ",".join(map(str, change["previous_isr"]))
        return f"{name}: ISR {before} -> {isr}"
    if change["leader"] < 0:
        return f"{name}: no leader (was {change['previous_leader']}), ISR {isr}"
    how = f", {change['strategy']} election" if change.get("strategy") else ""
    was = f" (was {change['previous_leader']})" if change["previous_leader"] >= 0 else ""
    return f"{name}: leader {change['leader']}{was}, epoch {change['leader_epoch']}, ISR {isr}{how}"


def chains(records: Iterable[Record], topic: str, partition: int, limit: int) -> list[Chain]:
    """Return the last changes of a partition, oldest first, at most `limit`."""
    index = _index(records, topic, partition)
    return [_chain(change, index) for change in index.changes[-limit:]]


def _index(records: Iterable[Record], topic: str, partition: int) -> _Index:
    index = _Index()
    for record in sorted(records, key=lambda record: record["at_ms"]):
        kind, broker = record["kind"], record["broker_id"]
        if kind in _CHANGES and record["topic"] == topic and record["partition"] == partition:
            index.changes.append(record)
        elif kind in ("event_queued", "event_started", "event_done"):
            index.events.setdefault((broker, record["number"]), []).append(record)
        elif kind == "registration_changed":
            index.registrations.setdefault((broker, record["number"]), []).append(record)
        elif kind == "znodes_written":
            index.writes.setdefault((broker, record["number"]), []).append(record)
        elif kind == "request_sent":
            index.sent.append(record)
        elif kind == "request_acknowledged":
            index.answers[record["controller_epoch"], record["target"], record["correlation_id"]] = record
        elif kind in ("metadata_applied", "role_changed") and record["correlation_id"] is not None:
            index.applied.setdefault((record["controller_epoch"], broker, record["correlation_id"]), record)
    return index


def _chain(change: Record, index: _Index) -> Chain:
    key = change["broker_id"], change["number"]
    events = [it for it in index.events.get(key, ()) if it["event"] == change["event"]]
    sessions = _session_steps(change, events, index.registrations.get(key, ()))
    steps = [*sessions, *_event_steps(change, events), *_write_steps(change, index.writes.get(key, ()))]
    steps.append(ChainStep(change["at_ms"], "decision", change_text(change)))
    steps += _request_steps(change, index)
    return Chain(change, tuple(sorted(steps, key=lambda step: step.at_ms)))


def _session_steps(change: Record, events: Sequence[Record], found: Sequence[Record]) -> Iterable[ChainStep]:
    """The sessions whose end, or beginning, the event is about. ZooKeeper reported them when the event was queued."""
    queued = [it["at_ms"] for it in events if it["kind"] == "event_queued" and it["at_ms"] <= change["at_ms"]]
    for record in found:
        if queued and queued[-1] <= record["at_ms"] <= change["at_ms"]:
            how = "ended" if record["registration"] == "gone" else "established"
            text = f"session of broker {record['about_broker']} {how}: it is {record['registration']}"
            yield ChainStep(queued[-1], "session", text)


def _event_steps(change: Record, events: Sequence[Record]) -> Iterable[ChainStep]:
    """Numbers repeat in each process: of several events with one number, the last before the change counts."""
    queued = [it for it in events if it["kind"] == "event_queued" and it["at_ms"] <= change["at_ms"]]
    started = [it for it in events if it["kind"] == "event_started" and it["at_ms"] <= change["at_ms"]]
    if queued:
        about = queued[-1].get("about_broker")
        of = "" if about is None else f" about broker {about}"
        yield ChainStep(queued[-1]["at_ms"], "cause", f"{change['event']}{of} is queued (cause: {queued[-1]['cause']})")
    if started:
        waited = started[-1]["queue_ms"]
        text = (
            f"{change['event']} starts on broker {change['broker_id']}, controller epoch {change['controller_epoch']}"
        )
        yield ChainStep(started[-1]["at_ms"], "event", text, waited)


def _write_steps(change: Record, writes: Sequence[Record]) -> Iterable[ChainStep]:
    for write in writes:
        if write["event"] == change["event"] and change["at_ms"] - 60_000 <= write["at_ms"] <= change["at_ms"]:
            failed = "" if write["error"] == "NONE" else f" fails: {write['error']} {write['refused_path'] or ''}"
            text = f"ZooKeeper transaction of {write['operation_count']} operations{failed}"
            yield ChainStep(write["at_ms"], "znode", text, write["duration_ms"])


def _request_steps(change: Record, index: _Index) -> Iterable[ChainStep]:
    """The first request of each kind to each broker that carries the change, with its effect there.

    If the event of the change created requests, only these count, also if others were merged into them. A later event
    may repeat the state, for example to a broker that starts.
    """
    seen: set[tuple[str, int]] = set()
    carrying = [sent for sent in index.sent if _carries(sent, change)]
    own = [sent for sent in carrying if change["number"] in sent.get("event_numbers", ())]
    for sent in own or carrying:
        of = sent["api"], sent["target"]
        if of in seen:
            continue
        seen.add(of)
        key = sent["controller_epoch"], sent["target"], sent["correlation_id"]
        yield ChainStep(sent["at_ms"], "request", f"{sent['api']} to broker {sent['target']}", sent["queue_ms"])
        answer, applied = index.answers.get(key), index.applied.get(key)
        if answer is not None and answer["error"] != "NONE":
            yield ChainStep(
                answer["at_ms"], "refused", f"broker {sent['target']} refuses {sent['api']}: {answer['error']}"
            )
        elif applied is not None:
            yield ChainStep(applied["at_ms"], "applied", f"broker {sent['target']} has applied {sent['api']}")
        elif answer is not None:
            yield ChainStep(answer["at_ms"], "applied", f"broker {sent['target']} has answered {sent['api']}")


def _carries(sent: Record, change: Record) -> bool:
    """Whether the request has the partition's new state, or may have it beyond the end of its list."""
    if sent["at_ms"] < change["at_ms"] or sent["controller_epoch"] != change["controller_epoch"]:
        return False
    state = (change["topic"], change["partition"], change["leader_epoch"])
    carried = [(it["topic"], it["partition"], it["leader_epoch"]) for it in sent["partitions"]]
    return sent["api"] in _REQUESTS and (state in carried or sent["partition_count"] > len(carried))
