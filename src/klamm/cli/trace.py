"""`klamm trace`: prints traced requests as waterfalls, as they arrive."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer, addresses_by_answer, parse_address, unreachable
from klamm.cli.cluster import first_metadata
from klamm.cli.command_config import current as command_config
from klamm.cli.completion import topic_names
from klamm.cli.output import bold, dim, fail, note, red, say
from klamm.cli.right_advice import needs, on_topic
from klamm.cli.trace_switch import PREFIX, hold_signals, switched_on
from klamm.client.patience import FIRST_CONTACT, TRACE_TOPIC
from klamm.model import REQUEST_LOG_TOPIC
from klamm.server.log_format import on_one_line

if TYPE_CHECKING:
    from klamm.client.topic_reader import TopicReader
    from klamm.protocol.messages.metadata import MetadataResponse
    from klamm.request_log.waterfall import TraceFilter

_WIDTH: Final = 40
_OFF: Final = (
    f"There is no topic {REQUEST_LOG_TOPIC}: no trace was written. Pass --on 1 to trace while this command runs, "
    f"or set {PREFIX}sample and {PREFIX}topic.enable."
)


def trace(
    on: Annotated[
        int | None,
        typer.Option("--on", min=1, metavar="N", help="Trace one request in N on all brokers while this command runs."),
    ] = None,
    api: Annotated[list[str], typer.Option("--api", help="Only this API, such as Produce. Repeat for more.")] = [],  # noqa: B006
    client_id: Annotated[list[str], typer.Option("--client-id", help="Only this client; a name may end with *.")] = [],  # noqa: B006
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            help="Only this topic; a name may end with *.",
            autocompletion=topic_names,
        ),
    ] = [],  # noqa: B006
    slower_than: Annotated[
        float, typer.Option("--slower-than", min=0, metavar="MS", help="Only requests that took this long.")
    ] = 0.0,
    broker: Annotated[list[int], typer.Option("--broker", help="Only requests that this broker served.")] = [],  # noqa: B006
    last: Annotated[
        int, typer.Option("--last", min=0, metavar="N", help="Begin with the last N records of the topic.")
    ] = 0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many requests.")] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the current end; without --last, print all.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object per request.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print traced requests as waterfalls: phases, waits in purgatories, and the request that ended each wait.

    Traces come from the topic `__klamm_request_log`. Without --on the command changes nothing: it shows the requests
    that the brokers trace by their keys `klamm.request.trace.*`. With --on it sets these keys, with the filters, for
    each broker, and restores them when it ends. A second command with --on is refused meanwhile. If the command is
    killed, the keys stay set: `klamm config describe --broker ID` shows them.
    """
    from klamm.request_log.waterfall import TraceFilter

    wanted = TraceFilter(tuple(map(api_name, api)), tuple(client_id), tuple(topic), slower_than, tuple(broker))
    addresses = [parse_address(server) for server in bootstrap_server.split(",")]
    metadata = first_metadata(addresses, FIRST_CONTACT.request_s)
    if metadata is None:
        fail(unreachable(bootstrap_server))
    check_names(metadata, wanted)
    with _ended_by_signals(), ExitStack() as stack:
        reader = stack.enter_context(_open_reader(bootstrap_server))
        first = None if exit_at_end and not last else last
        with needs(on_topic("READ")(REQUEST_LOG_TOPIC)):
            is_open = reader.open(last=first)
        if not is_open and (on is None or exit_at_end):
            if exit_at_end:
                fail(_OFF)
            note(_OFF)
        if on is not None:
            stack.enter_context(switched_on(list(metadata.brokers), on, wanted))
        shown = 0
        for record in _records(reader, is_open=is_open, to_end=exit_at_end):
            if wanted.admits(record):
                say(json.dumps(record)) if json_ else show(record)
                shown += 1
            if count is not None and shown >= count:
                return


def api_name(given: str) -> str:
    """Return the name of an API as traces have it. A name that ends with * stands for several."""
    from klamm.protocol.messages import MODULES

    names = sorted(name for _, name in MODULES.values())
    start = given.removesuffix("*").lower()
    found = [
        name for name in names if name.lower() == start or (given.endswith("*") and name.lower().startswith(start))
    ]
    if not found:
        fail(f"There is no API {given}. There are: {', '.join(names)}.")
    return f"{found[0][: len(start)]}*" if given.endswith("*") else found[0]


def check_names(metadata: MetadataResponse, wanted: TraceFilter) -> None:
    """Fail for a broker that is not part of the cluster. A topic may be created later, so a missing one is reported."""
    live = {node.node_id for node in metadata.brokers}
    replicas = {replica for topic in metadata.topics for part in topic.partitions for replica in part.replica_nodes}
    if unknown := [broker for broker in wanted.brokers if broker not in live | replicas]:
        fail(f"There is no broker {unknown[0]}. There are: {', '.join(map(str, sorted(live | replicas)))}.")
    topics = [str(topic.name) for topic in metadata.topics]
    for given in wanted.topics:
        start = given.removesuffix("*")
        if given not in topics and not (given.endswith("*") and any(name.startswith(start) for name in topics)):
            note(f"No topic is called {given} now; requests that name it are shown.")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the command like SIGINT. Only the first signal does: the brokers' settings are restored then.

    A SIGTERM that arrives at the end is ignored: Python would exit by SIGINT.
    """

    class Ended(BaseException):
        """Not KeyboardInterrupt: if that leaves `exec` or `eval` of a text, Python exits by SIGINT even if caught."""

    def end(*_: object) -> None:
        hold_signals()
        raise Ended

    before = signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    try:
        with suppress(Ended):
            yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, before)


@contextmanager
def _open_reader(servers: str) -> Iterator[TopicReader]:
    from klamm.client.cluster_client import ClusterClient
    from klamm.client.connection_pool import ClientConfig
    from klamm.client.topic_reader import TopicReader

    addresses = tuple(addresses_by_answer(servers))
    with ClusterClient(ClientConfig(addresses, client_id="klamm-trace", security=command_config.security)) as client:
        yield TopicReader(client, REQUEST_LOG_TOPIC)


def _records(reader: TopicReader, *, is_open: bool, to_end: bool) -> Iterator[Mapping[str, Any]]:
    with needs(on_topic("READ")(REQUEST_LOG_TOPIC)):
        if to_end:
            yield from map(json.loads, reader.to_end())
            return
        while not is_open:
            time.sleep(TRACE_TOPIC.pause_s())
            is_open = reader.open()
        while True:
            yield from map(json.loads, reader.read())


def show(record: Mapping[str, Any]) -> None:
    from klamm.request_log.waterfall import bars, drawn

    total_ms = record["total_ms"]
    for line in _head(record):
        say(line)
    block = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
    for bar in bars(record):
        name = "  " * bar.depth + bar.name
        graph = drawn(bar, total_ms, _WIDTH, block)
        text = f"  {dim(on_one_line(bar.text))}" if bar.text else ""
        say(f"  {name:<22} {bar.duration_ms:9.3f} ms  {graph.ljust(_WIDTH) if text else graph}{text}")


def _head(record: Mapping[str, Any]) -> Iterator[str]:
    at_ms = record["at_ms"]
    when = f"{time.strftime('%H:%M:%S', time.localtime(at_ms / 1000))}.{at_ms % 1000:03d}"
    error = "" if record["error"] == "NONE" else f"  {red(record['error'])}"
    if record["outcome"] != "answered":
        error += f"  {red(record['outcome'])}"
    names = on_one_line(", ".join(_name(named) for named in record["partitions"][:3]))
    more = record["partition_count"] - 3
    names += f" and {more} more" if more > 0 else ""
    title = bold(f"{record['api']} v{record['api_version']}")
    yield f"{when}  {title}  {record['total_ms']:.3f} ms{error}  {names}".rstrip()
    queues = f"queue {record['queue_size']}, control queue {record['control_queue_size']}"
    who = f"client {record['client_id']}, correlation id {record['correlation_id']}, {record['connection_id']}"
    where = (
        f"broker {record['broker_id']}, {record['listener']}, {record['plane']} plane, processor {record['processor']}"
    )
    yield dim(on_one_line(f"  {who}; {where}; {queues}"))


def _name(named: Mapping[str, Any]) -> str:
    return str(named["topic"]) if named["partition"] < 0 else f"{named['topic']}-{named['partition']}"
