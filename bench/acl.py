"""The cost of access control: decisions over 10 and 10,000 rules, and a produce with and without an authorizer.

    python -m bench.acl [--quick] [--write]

Decisions and the guard of a produce are timed in this process, in CPU time. The whole produce is timed on three brokers
in turn: without an authorizer, with 10 rules and with 10,000; the figure is the CPU time of the broker per request.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from bench import frames, load, report
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
    """A produce through the guard, less the same call without it. The handler does nothing."""
    guard: Any = produce.API.guard
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


def produce_us(rounds: int, requests: int, counts: tuple[int, ...] = COUNTS) -> list[list[float]]:
    """The broker's CPU time per produce in us, per round: without an authorizer, then with each number of rules."""
    guarded = {
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": "User:nobody",
        "allow.everyone.if.no.acl.found": True,  # the cluster has no entries: this client may create some
    }
    found: list[list[float]] = [[] for _ in (None, *counts)]
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(LocalCluster(brokers=1, broker_configs=configs))
            for configs in ({}, *(guarded for _ in counts))
        ]
        for cluster in clusters:
            cluster.create_topic(TOPIC, partitions=CONNECTIONS)
        for cluster, count in zip(clusters[1:], counts, strict=True):
            load_rules(cluster, count)
        built = [frames.produce_frame(TOPIC, p, KIB * 1024).frame for p in range(CONNECTIONS)]
        turns = list(zip(clusters, found, strict=True))
        for turn in range(rounds + 1):
            first = turn % len(turns)  # each is first, in the middle and last equally often
            for cluster, times in turns[first:] + turns[:first]:
                broker = cluster.broker_ids[0]
                before = cpu_seconds(cluster.pid(broker))
                load.run(cluster.port(broker), built, in_flight=IN_FLIGHT, requests=requests)
                if turn:  # the first round warms up
                    times.append((cpu_seconds(cluster.pid(broker)) - before) / requests * 1e6)
    return found


def difference(plain: list[float], guarded: list[float]) -> str:
    """The median of the differences within the rounds, in percent: the speed of the machine changes between them."""
    return f"{statistics.median(b / a - 1 for a, b in zip(plain, guarded, strict=True)) * 100:+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.acl", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    args = parser.parse_args()
    load_at_start = report.load_average()
    rows = [
        (what, *(f"{value:.2f}" for value in values), unit)
        for what, values, unit in in_process(0.5 if args.quick else 2.0)
    ]
    plain, few, many = produce_us(3 if args.quick else 9, 8_000)
    without, with_few, with_many = (
        f"{statistics.median(times):.1f} us ({min(times):.1f} to {max(times):.1f})" for times in (plain, few, many)
    )
    share = float(rows[-1][2]) / statistics.median(plain) * 100
    lines = [
        "## Access control",
        "",
        f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
        "",
        report.table(HEADER, rows),
        "",
        f"A {KIB} KiB produce costs the broker {without} of CPU without an authorizer,",
        f"{with_few} with {COUNTS[0]:,} rules in force and {with_many} with {COUNTS[1]:,}:",
        f"medians and ranges of {len(plain)} rounds on three brokers in turn. Within the rounds, the median difference",
        f"from the broker without an authorizer is {difference(plain, few)} and {difference(plain, many)}.",
        f"The guard alone, with {COUNTS[1]:,} rules, is {share:.1f} % of a produce (goal: under 2 %).",
    ]
    text = "\n".join(lines)
    print(text)
    if args.write:
        report.write_section("acl", text)


if __name__ == "__main__":
    main()
