"""The cost of access control: decisions over 10 and 10,000 rules, and a produce with and without an authorizer.

    python -m bench.acl [--instructions] [--quick] [--write]

Decisions and the guard of a produce are timed in this process, in CPU time. The whole produce is measured in brokers
without an authorizer, with 10 rules and with 10,000, as the CPU time of the broker per request. Two processes with the
same settings differ by some percent, so there are several of each kind; they serve short slices of load in turn, and
the brokers without an authorizer show how far the method is to be trusted.

`--instructions` counts the instructions of a broker of each kind instead, with callgrind. The counts depend neither on
the load of the machine nor on where the kernel puts a process; they leave out the kernel.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from bench import frames, load, report
from bench.instructions import counted_cluster
from bench.processes import cpu_seconds
from klamm.apis import produce
from klamm.client.blocking_connection import ask_once
from klamm.config.authorizer_keys import ACL_AUTHORIZER
from klamm.errors import ErrorCode
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.security.acl.bindings import (
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from klamm.security.acl.rules import AclRules
from klamm.testing import LocalCluster

TOPIC: Final = "produce-16"
ANONYMOUS: Final = "User:ANONYMOUS"
HOST: Final = "127.0.0.1"
KIB: Final = 16
CONNECTIONS, IN_FLIGHT = 4, 5
COUNTS: Final = (10, 10_000)
HEADER: Final = ("", *(f"{count:,} rules" for count in COUNTS), "unit")
AT_ONCE: Final = 1_000
"""Entries in one CreateAcls; a broker accepts no more."""
LIMIT_S: Final = 300.0
NONE: Final = "without an authorizer"
KINDS: Final[Mapping[str, int]] = {NONE: 0, **{f"{count:,} rules": count for count in COUNTS}}
GUARDED: Final[Mapping[str, object]] = {
    "authorizer.class.name": ACL_AUTHORIZER,
    "super.users": "User:nobody",
    "allow.everyone.if.no.acl.found": True,  # the cluster has no entries: this client may create some
}
PRODUCE_HEADER: Final = ("a broker", "CPU per produce, us", "difference, median", "range of the processes")
INSTRUCTIONS_HEADER: Final = ("a broker", "thousand instructions per produce", "difference, median")
SLICE: Final = 400
"""Requests that a process serves before it is the turn of another."""
WARM_UP: Final = 2_000
AT_THE_SAME_TIME: Final = 3
"""Clusters that start together: each has two processes, and the machine may have two cores."""


def bindings(count: int) -> list[AclBinding]:
    """One rule that allows the produce; the others are of other principals, on this topic and on prefixes of it too."""
    needed = AclBinding(
        ResourcePattern(ResourceType.TOPIC, TOPIC), AclEntry(ANONYMOUS, "*", AclOperation.WRITE, Permission.ALLOW)
    )
    others = [
        AclBinding(
            ResourcePattern(
                ResourceType.TOPIC,
                (TOPIC, "prod", f"topic-{n}")[n % 3],
                PatternType.PREFIXED if n % 3 == 1 else PatternType.LITERAL,
            ),
            AclEntry(f"User:u{n}", "*", AclOperation.READ, Permission.DENY if n % 2 else Permission.ALLOW),
        )
        for n in range(count - 1)
    ]
    return [needed, *others]


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """The least CPU time of a call over several rounds."""
    count = 1000
    best = float("inf")
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = time.process_time()
        for _ in range(count):
            call()
        best = min(best, (time.process_time() - started) / count)
    return best * 1e6


class _Broker:
    """A broker, as far as the guard of Produce uses it."""

    def __init__(self, authorizer: AclAuthorizer) -> None:
        self.acls = self
        self.authorizer = authorizer


def in_process(seconds: float) -> Iterator[tuple[str, list[float], str]]:
    authorizers = []
    for count in COUNTS:
        authorizer = AclAuthorizer()
        authorizer.replace_rules(AclRules.of(bindings(count)))
        authorizers.append(authorizer)
    asked = ANONYMOUS, HOST, AclOperation.WRITE, ResourceType.TOPIC, TOPIC
    assert all(authorizer.is_allowed(*asked) for authorizer in authorizers)
    yield "A decision, remembered", [microseconds(partial(a.is_allowed, *asked), seconds) for a in authorizers], "us"
    yield "A decision, new", [microseconds(partial(a.rules.is_allowed, *asked), seconds) for a in authorizers], "us"
    yield "The guard of a produce", [guard_us(authorizer, seconds) for authorizer in authorizers], "us"


def guard_us(authorizer: AclAuthorizer, seconds: float) -> float:
    """A produce through the guard, less the same call without it. The handler does nothing.

    All of it is in the caches of the processor. In a broker, between other work, the guard takes several times as long.
    """
    declared: Any = produce.API.guard
    guard = declared.__call__
    data = PartitionProduceData(index=0, records=bytes(100))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
    )
    ctx = RequestContext(0, 9, channel=ChannelContext(client_host=HOST))
    broker: Any = _Broker(authorizer)

    def handle(ctx: RequestContext, req: Any) -> None:
        return None

    with_guard = microseconds(lambda: guard(broker, handle, ctx, request), seconds)
    return with_guard - microseconds(lambda: handle(ctx, request), seconds)


def load_rules(cluster: LocalCluster, count: int) -> None:
    """Create `count` entries and check that they allow the produce. They are in force when the broker has answered."""
    address = HOST, cluster.port(cluster.broker_ids[0])
    creations = [
        AclCreation(
            resource_type=resource.type,
            resource_name=resource.name,
            resource_pattern_type=resource.pattern,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for resource, entry in bindings(count)
    ]
    for start in range(0, count, AT_ONCE):
        request = CreateAclsRequest(creations=creations[start : start + AT_ONCE])
        answer = ask_once(address, request, 2, CreateAclsResponse, LIMIT_S)
        assert not any(result.error_code for result in answer.results), answer.results
    data = PartitionProduceData(index=0, records=frames.batch(KIB * 1024))
    sent = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])])
    produced = ask_once(address, sent, frames.PRODUCE_VERSION, ProduceResponse, LIMIT_S)
    assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NONE, produced


@dataclass(slots=True)
class Process:
    """A broker process, and the CPU time per produce of each slice of load that it has served."""

    kind: str
    pid: int
    port: int
    costs: list[float] = field(default_factory=list)

    def serve(self, built: list[bytes], requests: int) -> float:
        before = cpu_seconds(self.pid)
        load.run(self.port, built, in_flight=IN_FLIGHT, requests=requests)
        return (cpu_seconds(self.pid) - before) / requests * 1e6


def start(stack: ExitStack, kinds: Sequence[str]) -> list[Process]:
    """Start one broker for each element. Loading 10,000 rules takes ten seconds, so it is done side by side."""

    def one(kind: str) -> Process:
        cluster = LocalCluster(brokers=1, broker_configs=configs_of(kind))
        cluster.start_all()
        stack.callback(cluster.close)
        prepare(cluster, kind)
        broker = cluster.broker_ids[0]
        return Process(kind, cluster.pid(broker), cluster.port(broker))

    with ThreadPoolExecutor(AT_THE_SAME_TIME) as pool:
        return list(pool.map(one, kinds))


def configs_of(kind: str) -> Mapping[str, object]:
    return GUARDED if KINDS[kind] else {}


def prepare(cluster: LocalCluster, kind: str) -> None:
    cluster.create_topic(TOPIC, partitions=CONNECTIONS)
    if rules := KINDS[kind]:
        load_rules(cluster, rules)


def measure(of_each: int, rounds: int) -> list[Process]:
    """In every round, each process serves one short slice, in a random order."""
    built = [frames.produce_frame(TOPIC, p, KIB * 1024).frame for p in range(CONNECTIONS)]
    random = Random(1)
    with ExitStack() as stack:
        processes = start(stack, [kind for _ in range(of_each) for kind in KINDS])
        for one in processes:
            one.serve(built, WARM_UP)
        for _ in range(rounds):
            for one in random.sample(processes, len(processes)):
                one.costs.append(one.serve(built, SLICE))
        return processes


def produce_rows(processes: list[Process]) -> Iterator[tuple[str, ...]]:
    """One row per kind. The differences are from the other brokers without an authorizer, in the same round."""
    rounds = range(len(processes[0].costs))
    for kind in KINDS:
        of_kind = [one for one in processes if one.kind == kind]
        costs = [statistics.median(one.costs) for one in of_kind]
        percents = []
        for one in of_kind:
            plain = [other for other in processes if other.kind == NONE and other is not one]
            bases = [statistics.median(other.costs[n] for other in plain) for n in rounds]
            percents.append((statistics.median(one.costs[n] / bases[n] for n in rounds) - 1) * 100)
        yield (
            kind,
            f"{statistics.median(costs):.1f} ({min(costs):.1f} to {max(costs):.1f})",
            f"{statistics.median(percents):+.1f} %",
            f"{min(percents):+.1f} to {max(percents):+.1f} %",
        )


def count_instructions(kind: str, slices: int, requests: int) -> list[float]:
    """Return thousands of instructions per request, one request at a time. The broker reads its rules at its start."""
    with tempfile.TemporaryDirectory() as data_dir:
        configs = configs_of(kind)
        with LocalCluster(brokers=1, broker_configs=configs, data_dir=data_dir) as cluster:
            prepare(cluster, kind)
        with counted_cluster(1, configs, data_dir) as (cluster, counter):
            port = cluster.port(cluster.broker_ids[0])
            built = [frames.produce_frame(TOPIC, 0, KIB * 1024).frame]
            load.run(port, built, in_flight=1, requests=3 * requests)
            totals = [counter.total()]
            for _ in range(slices):
                load.run(port, built, in_flight=1, requests=requests)
                totals.append(counter.total())
            return [(after - before) / requests / 1e3 for before, after in pairwise(totals)]


def instruction_rows(slices: int) -> Iterator[tuple[str, ...]]:
    plain: float | None = None
    for kind in KINDS:
        counts = count_instructions(kind, slices, requests=500)
        middle = statistics.median(counts)
        plain = middle if plain is None else plain
        yield (
            kind,
            f"{middle:.1f} ({min(counts):.1f} to {max(counts):.1f})",
            f"{(middle / plain - 1) * 100:+.2f} %",
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.acl", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer processes and rounds")
    parser.add_argument("--instructions", action="store_true", help="count instructions with callgrind instead")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    args = parser.parse_args()
    section, text = instructions_text(args.quick) if args.instructions else times_text(args.quick)
    print(text)
    if args.write:
        report.write_section(section, text)


def times_text(is_quick: bool) -> tuple[str, str]:
    load_at_start = report.load_average()
    in_process_rows = list(in_process(0.5 if is_quick else 2.0))
    processes = measure(2 if is_quick else 5, 10 if is_quick else 60)
    of_each, rounds = len(processes) // len(KINDS), len(processes[0].costs)
    lines = [
        "## Access control",
        "",
        f"`python -m bench.acl`. Machine: {report.machine()}. {report.load_note(load_at_start)}",
        "",
        report.table(
            HEADER, [(what, *(f"{value:.2f}" for value in values), unit) for what, values, unit in in_process_rows]
        ),
        "",
        f"The CPU time of a broker per {KIB} KiB produce: {of_each} processes of each kind serve slices of {SLICE}",
        f"requests in turn, {rounds} each. The first column has the median of the processes of a kind and their range.",
        "The differences are from the median of the other brokers without an authorizer in the same round; the range",
        f'of the row "{NONE}" is what equal processes differ by. Goal: under 2 %.',
        "",
        report.table(PRODUCE_HEADER, produce_rows(processes)),
    ]
    return "acl", "\n".join(lines)


def instructions_text(is_quick: bool) -> tuple[str, str]:
    lines = [
        "## Access control: instructions",
        "",
        f"`python -m bench.acl --instructions`: the instructions of a broker per {KIB} KiB produce in user mode,",
        "counted by callgrind; one request at a time. Medians and ranges of slices of one process per kind.",
        "",
        f"Machine: {report.machine()}.",
        "",
        report.table(INSTRUCTIONS_HEADER, instruction_rows(3 if is_quick else 10)),
    ]
    return "acl-instructions", "\n".join(lines)


if __name__ == "__main__":
    main()
