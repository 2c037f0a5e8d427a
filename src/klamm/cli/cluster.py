"""`klamm cluster status`: brokers, controller, unhealthy partitions, and brokers whose metadata lags."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from klamm.cli.broker_metrics import LoginRefused, advertised_listeners, read_guarded_metrics
from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer, parse_address, parse_pairs, unreachable
from klamm.cli.cluster_control import Address, Control, find_controller, zookeeper_answers
from klamm.cli.cluster_partitions import (
    MOVING,
    OFFLINE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    PartitionStatus,
    ask_min_isrs,
    missing_brokers,
    notable_partitions,
)
from klamm.cli.cluster_problems import ZooKeeper, find_problems, zookeeper_of
from klamm.cli.cluster_state import BrokerStatus, ClusterStatus, document
from klamm.cli.command_config import current as command_config
from klamm.cli.failed_directories import failed_directories
from klamm.cli.output import fail, note, say, table
from klamm.cli.replica_problems import PROBLEM_METRIC, problem_row, replica_problems
from klamm.cli.right_advice import remedy
from klamm.cli.status_rights import ask_missing_rights, effect, lacks
from klamm.client.patience import QUICK_ANSWER
from klamm.model import TopicPartition

if TYPE_CHECKING:
    from klamm.client.missing_rights import MissingRight
    from klamm.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker

app = typer.Typer(help="Inspect a cluster as a whole.", no_args_is_help=True)

_LAG: Final = "klamm_controller_controllerchannelmanager_metadatalag"
_AGE: Final = "kafka_controller_controllerchannelmanager_oldestitemagems"
_EPOCH: Final = "klamm_server_metadatacache_controllerepoch"
_NEEDED: Final = (_LAG, _AGE, _EPOCH, PROBLEM_METRIC)
EXIT_OFFLINE: Final = 3
EXIT_UNDECIDED: Final = 4
EXIT_LIMITED: Final = 5
SHOWN_PARTITIONS: Final = 20
_UNREAD_METRICS: Final = (
    "No metrics of broker{}: damaged logs and replicas of another topic are not shown. "
    "Set klamm.metrics.port; 0 picks a free port. If metrics require TLS or a password, pass --command-config with "
    "ssl.truststore.location and klamm.metrics.basic.auth."
)
_UNTIL_ELECTED: Final = "no elections or topic changes until one is elected"
_ZOOKEEPER: Final = {True: "answers", False: "does not answer (no elections or topic changes until it does)", None: "-"}

PartitionView: TypeAlias = dict[tuple[str, int], tuple[int, int, frozenset[int]]]
"""Leader, leader epoch and ISR of every partition, as one broker knows them."""


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.callback()
def root() -> None:
    """Inspect a cluster as a whole."""


@app.command()
def status(
    metrics: Annotated[
        list[str],
        typer.Option(
            "--metrics",
            metavar="BROKER=HOST:PORT",
            help="Address of a broker's metrics; by default the broker reports it.",
        ),
    ] = [],  # noqa: B006
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for each broker.")] = 3.0,
    broker_config: Annotated[
        Path | None,
        typer.Option(
            "--broker-config",
            metavar="FILE",
            help="Configuration of a broker with its credentials for ZooKeeper: required to check znodes if ZooKeeper "
            "demands a login.",
        ),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show brokers, controller, unhealthy partitions, and how far each broker's metadata lags.

    Exit code 3: partitions are offline. 4: no elections or topic changes are possible, because the controller or
    ZooKeeper does not answer. 5: neither is known to be the case, but the user lacks rights to see all of the cluster.
    1: no broker answers.

    \b
    RIGHTS          a right that the user lacks, and what is not shown
                    because of it
    PROBLEM         a log directory that a broker took offline, a znode
                    that cannot be decoded, an internal topic that cannot
                    be created, acknowledged records that all replicas
                    lost; with the remedy
    MISSING         brokers that have replicas and are not alive
    ANSWERS         whether the broker answered within --timeout
    CONTROLLER      the controller in this broker's metadata
    EPOCH           the controller epoch of this broker's metadata (*)
    BEHIND          partitions whose state differs from the controller's
    UNACKNOWLEDGED  requests of the controller without a response (*)
    OLDEST MS       age of the oldest unacknowledged request (*)
    STATE           offline: no leader. under min ISR: fewer in-sync replicas
                    than min.insync.replicas; acks=all is rejected.
                    under-replicated: not all replicas are in sync, without
                    those that a move adds. moving: a move is in progress

    (*) from the brokers' metrics; `-` for brokers without klamm.metrics.port. Replicas with a damaged log or another
    topic's id are known from metrics too, and are not shown for such brokers.
    """
    zookeeper = None if broker_config is None else zookeeper_of(broker_config)
    metrics_of = _metrics_addresses(metrics)
    found = look(_addresses(bootstrap_server.split(",")), metrics_of, timeout, zookeeper)
    if found is None:
        fail(unreachable(bootstrap_server))
    _refuse_unknown(metrics_of, found)
    if as_json or format_ is Format.JSON:
        say(json.dumps(document(found), indent=2))
    else:
        _show(found)
    if found.offline_partitions:
        raise typer.Exit(EXIT_OFFLINE)
    if not found.can_decide:
        raise typer.Exit(EXIT_UNDECIDED)
    if found.missing_rights:
        raise typer.Exit(EXIT_LIMITED)


def look(
    bootstrap: Iterable[Address],
    metrics: Mapping[int, Address],
    timeout_s: float,
    zookeeper: ZooKeeper | None = None,
    missing_rights: Sequence[MissingRight] | None = None,
) -> ClusterStatus | None:
    """Return the status of the cluster; None if no initial broker answers.

    `missing_rights` are those of an earlier call: views that are repeated do not ask for them each time.
    """
    first = first_metadata(bootstrap, timeout_s)
    if first is None:
        return None
    with ThreadPoolExecutor(max_workers=len(first.brokers) + 1) as pool:
        asked = {node.node_id: pool.submit(ask_metadata, (node.host, node.port), timeout_s) for node in first.brokers}
        views = {broker_id: answer for broker_id, future in asked.items() if (answer := future.result()) is not None}
        read = {
            n.node_id: pool.submit(read_guarded_metrics, n, metrics, timeout_s, _NEEDED)
            for n in first.brokers
            if n.node_id in views
        }
        listed = {
            n.node_id: pool.submit(advertised_listeners, n, timeout_s) for n in first.brokers if n.node_id in views
        }
        failed = [pool.submit(failed_directories, n, timeout_s) for n in first.brokers if n.node_id in views]
        # In parallel: while ZooKeeper is away, each of these waits until its time is up.
        asking = _controller_first(first, views, first.controller_id)
        answers = pool.submit(zookeeper_answers, _address(asking[0]), timeout_s) if asking else None
        control = find_controller(first, views, timeout_s)
        values, refusals = _read(read)
    truth = views.get(control.controller_id, first)
    answering = _controller_first(first, views, control.controller_id)
    whom = _address(answering[0]) if answering else None
    names = [str(topic.name) for topic in truth.topics]
    min_isrs = ask_min_isrs(whom, names, timeout_s) if whom is not None else {}
    result = _status(truth, views, values, min_isrs, control)
    for broker in result.brokers:
        broker.metrics_refusal = refusals.get(broker.id)
        broker.listeners = listed[broker.id].result() if broker.id in listed else []
    result.zookeeper_answers = None if answers is None else answers.result()
    if whom is not None:
        if missing_rights is None:
            knows_settings = bool(names) and len(min_isrs) == len(names)
            missing_rights = ask_missing_rights(whom, answering[0].node_id, knows_settings, timeout_s)
        result.missing_rights = list(missing_rights)
        unwell = [TopicPartition(each.topic, each.partition) for each in result.unwell_partitions]
        # If it does not answer the brokers, one quick attempt shows the reason.
        limit_s = min(timeout_s, QUICK_ANSWER.request_s) if result.zookeeper_answers is False else timeout_s
        result.problems, result.unchecked = find_problems(whom, answering[0].node_id, truth, unwell, limit_s, zookeeper)
        result.problems = [*(sentence for future in failed for sentence in future.result()), *result.problems]
        if zookeeper is None and lacks(result.missing_rights, "DESCRIBE_CONFIGS", "CLUSTER"):
            result.unchecked = None  # RIGHTS has the reason
    return result


def _read(
    asked: Mapping[int, Future[Mapping[str, float]]],
) -> tuple[dict[int, Mapping[str, float]], dict[int, str]]:
    """Return the metrics of each broker, and the reasons of those that refuse the login."""
    values: dict[int, Mapping[str, float]] = {}
    refusals: dict[int, str] = {}
    for broker_id, future in asked.items():
        try:
            values[broker_id] = future.result()
        except LoginRefused as refused:
            values[broker_id] = {}
            refusals[broker_id] = str(refused)
    return values, refusals


def _controller_first(
    first: MetadataResponse, views: Mapping[int, MetadataResponse], controller_id: int
) -> list[MetadataResponseBroker]:
    """Return the brokers that answer."""
    return sorted((node for node in first.brokers if node.node_id in views), key=lambda it: it.node_id != controller_id)


def _address(node: MetadataResponseBroker) -> Address:
    return node.host, node.port


def _status(
    truth: MetadataResponse,
    views: Mapping[int, MetadataResponse],
    values: Mapping[int, Mapping[str, float]],
    min_isrs: Mapping[str, int],
    control: Control,
) -> ClusterStatus:
    known, reported = partition_view(truth), values.get(control.controller_id, {})
    result = ClusterStatus(truth.cluster_id, control.controller_id, topics=len(truth.topics), partitions=len(known))
    result.controller_problem = control.problem
    result.missing_brokers = missing_brokers(truth)
    notable = notable_partitions(truth, min_isrs, control.adding)
    result.unwell_partitions = [each for each in notable if each.is_unwell]
    result.moving_partitions = [each for each in notable if MOVING in each.states]
    counts = Counter(state for each in notable for state in each.states)
    result.offline_partitions = counts[OFFLINE]
    result.under_min_isr_partitions = counts[UNDER_MIN_ISR]
    result.under_replicated_partitions = counts[UNDER_REPLICATED]
    for node in sorted(truth.brokers, key=lambda node: node.node_id):
        broker = BrokerStatus(node.node_id, node.host, node.port, node.rack)
        if (view := views.get(broker.id)) is not None:
            broker.answers, broker.controller_id = True, view.controller_id
            theirs = partition_view(view)
            broker.partitions_behind = sum(theirs.get(tp) != state for tp, state in known.items())
            broker.partitions_behind += sum(tp not in known for tp in theirs)
            broker.controller_epoch = _whole(values[broker.id].get(_EPOCH))
        broker.unacknowledged_requests = _whole(reported.get(f'{_LAG}{{broker_id="{broker.id}"}}'))
        broker.oldest_request_ms = reported.get(f'{_AGE}{{broker_id="{broker.id}"}}')
        result.brokers.append(broker)
    result.controller_epoch = _whole(reported.get(_EPOCH))
    result.replica_problems = replica_problems(values)
    return result


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def partition_view(view: MetadataResponse) -> PartitionView:
    return {
        (str(topic.name), p.partition_index): (p.leader_id, p.leader_epoch, frozenset(p.isr_nodes))
        for topic in view.topics
        for p in topic.partitions
    }


# --- asking ----------------------------------------------------------------------------------------------------------


def ask_metadata(address: Address, timeout_s: float) -> MetadataResponse | None:
    from klamm.cli.broker_requests import ask
    from klamm.client.blocking_connection import LINE_ENDS
    from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse

    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    try:
        return ask(address, request, 9, MetadataResponse, timeout_s, LINE_ENDS)
    except OSError:
        return None


def first_metadata(addresses: Iterable[Address], timeout_s: float) -> MetadataResponse | None:
    """Return the metadata of the first broker that answers; None if there is none.

    The next broker is asked when one fails, or is silent for half a second: a paused broker must not delay the others.
    Raises KlammError if none answers and one refuses the client.
    """
    command_config.security  # noqa: B018  # load it once, before threads need it
    answers: SimpleQueue[MetadataResponse | Exception | None] = SimpleQueue()

    def ask_one(address: Address) -> None:
        try:
            answers.put(ask_metadata(address, timeout_s))
        except Exception as error:  # raised below, in the thread of the caller
            answers.put(error)

    left = list(addresses)
    waiting = 0
    problem: Exception | None = None
    while left or waiting:
        if left:
            # A daemon, so that the command does not wait at its end for a broker that stays silent.
            threading.Thread(target=ask_one, args=(left.pop(0),), daemon=True).start()
            waiting += 1
        try:
            answer = answers.get(timeout=QUICK_ANSWER.request_s if left else None)
        except Empty:
            continue
        waiting -= 1
        if isinstance(answer, Exception):
            problem = problem or answer
        elif answer is not None:
            return answer
    if problem is not None:
        raise problem
    return None


def _addresses(servers: Iterable[str]) -> list[Address]:
    return [parse_address(server) for server in servers]


def _metrics_addresses(pairs: Iterable[str]) -> dict[int, Address]:
    parsed = parse_pairs(pairs, "--metrics")
    if wrong := [broker for broker in parsed if not broker.isdecimal()]:
        fail(f"--metrics {wrong[0]}: expected the number of a broker.")
    return {int(broker): parse_address(server) for broker, server in parsed.items()}


def _refuse_unknown(metrics: Mapping[int, Address], found: ClusterStatus) -> None:
    known = sorted({*(each.id for each in found.brokers), *(each.id for each in found.missing_brokers)})
    if unknown := [broker for broker in metrics if broker not in known]:
        fail(f"--metrics {unknown[0]}: there is no broker {unknown[0]}. There are: {', '.join(map(str, known))}.")


# --- showing ---------------------------------------------------------------------------------------------------------


def _show(found: ClusterStatus) -> None:
    say(f"Cluster     {found.cluster_id or '-'}")
    say(f"Controller  {_controller(found)}")
    say(f"ZooKeeper   {_ZOOKEEPER[found.zookeeper_answers]}")
    say(
        f"Partitions  {found.partitions} of {found.topics} topics{_shown(found)}, {found.under_replicated_partitions} "
        f"under-replicated, {_under_min_isr(found)} under min ISR, {found.offline_partitions} offline, "
        f"{len(found.moving_partitions)} moving"
    )
    for right in found.missing_rights:
        say(f"Rights      the user lacks {right}: {effect(right)}")
    for problem in found.problems:
        say(f"Problem     {problem}")
    for broker in found.missing_brokers:
        say(f"Missing     broker {broker.id}, which has {broker.replicas} replica{'' if broker.replicas == 1 else 's'}")
    say()
    columns = ("BROKER", "ADDRESS", "RACK", "ANSWERS", "CONTROLLER", "EPOCH", "BEHIND", "UNACKNOWLEDGED", "OLDEST MS")
    table(columns, map(_row, found.brokers))
    moving = [each for each in found.moving_partitions if not each.is_unwell]
    if notable := [*found.unwell_partitions, *moving]:
        say()
        _show_partitions(notable)
    if found.replica_problems:
        say()
        table(("BROKER", "PARTITION", "PROBLEM", "REMEDY"), map(problem_row, found.replica_problems))
    if found.unchecked is not None:
        note(found.unchecked)
    unread = [broker for broker in found.brokers if broker.answers and broker.controller_epoch is None]
    silent = [broker.id for broker in unread if broker.metrics_refusal is None]
    if silent and not lacks(found.missing_rights, "DESCRIBE_CONFIGS", "CLUSTER"):
        note(_UNREAD_METRICS.format(_numbers(silent)))
    for reason in dict.fromkeys(broker.metrics_refusal for broker in unread if broker.metrics_refusal is not None):
        refusing = [broker.id for broker in unread if broker.metrics_refusal == reason]
        note(f"The metrics of broker{_numbers(refusing)} refuse the login: {reason}.")
    if found.missing_rights:
        note(f"This is not the state of the whole cluster. {remedy(found.missing_rights)}")


def _numbers(ids: Sequence[int]) -> str:
    return f"{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def _shown(found: ClusterStatus) -> str:
    """Return which topics are counted, if they are not all."""
    return " that the user may describe" if lacks(found.missing_rights, "DESCRIBE", "TOPIC") else ""


def _under_min_isr(found: ClusterStatus) -> str:
    is_unknown = lacks(found.missing_rights, "DESCRIBE_CONFIGS", "TOPIC")
    return "an unknown number" if is_unknown else str(found.under_min_isr_partitions)


def _controller(found: ClusterStatus) -> str:
    if found.controller_id < 0:
        return f"none ({_UNTIL_ELECTED})"
    if found.controller_problem is not None:
        return f"broker {found.controller_id}, which {found.controller_problem} ({_UNTIL_ELECTED})"
    return f"broker {found.controller_id}" + (
        "" if found.controller_epoch is None else f", epoch {found.controller_epoch}"
    )


def _show_partitions(unwell: Sequence[PartitionStatus]) -> None:
    rows = (
        (
            f"{each.topic}-{each.partition}",
            ", ".join(each.states),
            each.leader if each.leader >= 0 else "none",
            ",".join(map(str, each.replicas)),
            ",".join(map(str, each.isr)),
            each.min_isr,
        )
        for each in unwell[:SHOWN_PARTITIONS]
    )
    table(("PARTITION", "STATE", "LEADER", "REPLICAS", "ISR", "MIN ISR"), rows)
    if len(unwell) > SHOWN_PARTITIONS:
        say(f"and {len(unwell) - SHOWN_PARTITIONS} more: --json has all of them")


def _row(broker: BrokerStatus) -> tuple[object, ...]:
    return (
        broker.id,
        f"{broker.host}:{broker.port}",
        broker.rack,
        "yes" if broker.answers else "no",
        broker.controller_id,
        broker.controller_epoch,
        broker.partitions_behind,
        broker.unacknowledged_requests,
        None if broker.oldest_request_ms is None else round(broker.oldest_request_ms),
    )
