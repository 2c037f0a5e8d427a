"""The cost of access control: decisions over 10 and 10,000 rules, and a produce with and without an authorizer.

    python -m bench.acl [--quick] [--write]

Decisions and the guard of a produce are timed in this process, in CPU time. The whole produce is timed on two brokers
in turn, one of them with an authorizer; the figure is the CPU time of the broker per request.
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
from klamm.config.authorizer_keys import ACL_AUTHORIZER
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
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
HEADER: Final = ("", "10 rules", "10,000 rules", "unit")


def rules(count: int) -> AclRules:
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
    return AclRules.of([needed, *others])


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
    for count in (10, 10_000):
        authorizer = AclAuthorizer()
        authorizer.replace_rules(rules(count))
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


def produce_us(rounds: int, requests: int) -> tuple[list[float], list[float]]:
    """The broker's CPU time per produce in us, per round: without an authorizer and with one."""
    guarded = {
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": "User:nobody",
        "allow.everyone.if.no.acl.found": True,
    }
    found: tuple[list[float], list[float]] = [], []
    with ExitStack() as stack:
        clusters = [stack.enter_context(LocalCluster(brokers=1, broker_configs=configs)) for configs in ({}, guarded)]
        for cluster in clusters:
            cluster.create_topic(TOPIC, partitions=CONNECTIONS)
        built = [frames.produce_frame(TOPIC, p, KIB * 1024).frame for p in range(CONNECTIONS)]
        for turn in range(rounds + 1):
            for cluster, times in zip(clusters, found, strict=True):
                broker = cluster.broker_ids[0]
                before = cpu_seconds(cluster.pid(broker))
                load.run(cluster.port(broker), built, in_flight=IN_FLIGHT, requests=requests)
                if turn:  # the first round warms up
                    times.append((cpu_seconds(cluster.pid(broker)) - before) / requests * 1e6)
    return found


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
    plain, guarded = produce_us(3 if args.quick else 9, 8_000)
    ranges = [f"{statistics.median(times):.1f} us ({min(times):.1f} to {max(times):.1f})" for times in (plain, guarded)]
    share = float(rows[-1][2]) / statistics.median(plain) * 100
    lines = [
        "## Access control",
        "",
        f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
        "",
        report.table(HEADER, rows),
        "",
        f"A {KIB} KiB produce costs the broker {ranges[0]} of CPU without an authorizer and {ranges[1]} with one:",
        f"medians and ranges of {len(plain)} rounds in turn. The guard alone is {share:.1f} % of it (goal: under 2 %).",
    ]
    text = "\n".join(lines)
    print(text)
    if args.write:
        report.write_section("acl", text)


if __name__ == "__main__":
    main()
