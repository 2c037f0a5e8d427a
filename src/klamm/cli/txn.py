"""`klamm txn list|describe|find-hanging|abort`, like kafka-transactions.sh."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer
from klamm.cli.completion import topic_names
from klamm.cli.output import Failure, fail, note, say, table
from klamm.cli.progress_line import ProgressLine
from klamm.cli.right_advice import needs, on_cluster, on_topic, on_transactional_id
from klamm.cli.rights import Listing, note_limits

if TYPE_CHECKING:
    from klamm.client.cluster_transactions import Transactions
    from klamm.client.transaction_views import Description, OpenTransaction

app = typer.Typer(help="Inspect transactions, and abort those that hang.", no_args_is_help=True)

_MINUTE_MS: Final = 60_000
_OUTCOMES: Final = {"Ongoing": "aborted", "PrepareAbort": "aborted", "PrepareCommit": "already committed"}
"""The outcome of a transaction in these states after its producer is fenced."""
Json = Annotated[bool, typer.Option("--json", help="Print all details as JSON.")]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait while coordinators or leaders move.")]
Topic = Annotated[str | None, typer.Option("--topic", "-t", help="The topic.", autocompletion=topic_names)]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="The partition of --topic.")]


@app.command("list")
def list_(
    state: Annotated[
        list[str],
        typer.Option("--state", help="Only transactions in this state, for example Ongoing; may be repeated."),
    ] = [],  # noqa: B006
    longer_than: Annotated[
        int | None, typer.Option("--longer-than-ms", min=0, help="Only transactions that run longer than this.")
    ] = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the transactional ids of all coordinators and the states of their transactions."""
    found = _transactions(bootstrap_server, timeout).listings(state, (), -1 if longer_than is None else longer_than)
    if as_json:
        say(json.dumps([asdict(listing) for listing in found], indent=1))
    else:
        table(
            ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"),
            [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found],
        )
    note_limits(bootstrap_server, Listing.TRANSACTIONS)


@app.command()
def describe(
    ids: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL-ID...")],
    as_json: Json = False,
    timeout: Timeout = 30.0,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the producer, the state and the partitions of transactional ids.

    If a coordinator does not know one of them, or refuses to describe it, the others are shown before the error.
    """
    transactions = _transactions(bootstrap_server, timeout)
    found: list[Description] = []
    problems: list[str] = []
    for transactional_id in ids:
        try:
            found.append(_described(transactions, transactional_id))
        except Failure as failure:
            problems.append(str(failure))
    _show_descriptions(found, as_json=as_json)
    if problems:
        fail("\n".join(problems))


def _show_descriptions(found: list[Description], *, as_json: bool) -> None:
    """Print nothing for people if there are none."""
    if as_json:
        say(json.dumps([_as_json(description) for description in found], indent=1))
        return
    if not found:
        return
    now_ms = time.time() * 1000
    table(
        ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "EPOCH", "STATE", "TIMEOUT-MS", "AGE-MS", "PARTITIONS"),
        [
            (
                each.transactional_id,
                each.coordinator,
                each.producer_id,
                each.producer_epoch,
                each.state,
                each.timeout_ms,
                None if each.start_time_ms is None else round(max(now_ms - each.start_time_ms, 0)),
                ",".join(map(str, each.partitions)),
            )
            for each in found
        ],
    )


@app.command("find-hanging")
def find_hanging(
    topic: Topic = None,
    partition: Partition = None,
    broker_id: Annotated[
        int | None, typer.Option("--broker-id", help="Ask this broker about its replicas, instead of the leaders.")
    ] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            min=0,
            help="Minutes without a record after which an open transaction is suspect. Pass the brokers' "
            "transaction.max.timeout.ms in minutes.",
        ),
    ] = 15,
    as_json: Json = False,
    timeout: Timeout = 30.0,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that are open in a log although no coordinator will end them.

    Such a transaction stops consumers with isolation.level=read_committed, and the compaction of the partition.
    """
    if partition is not None and topic is None:
        fail("--partition requires --topic.")
    transactions = _transactions(bootstrap_server, timeout)
    limit_ms = max_transaction_timeout * _MINUTE_MS
    with ProgressLine(enabled=not as_json) as line, needs(on_topic("READ")(topic or "*")):
        is_open = transactions.open_transactions(topic, partition, broker_id, line.count("partitions"))
        now_ms = time.time() * 1000
        suspects = [each for each in is_open if now_ms - each.last_timestamp_ms > limit_ms]
        found = transactions.find_hanging(suspects, line.count("transactional ids"))
    if topic is None:
        note_limits(bootstrap_server, Listing.TOPICS)
    if as_json:
        say(json.dumps([_as_json(each) for each in found], indent=1))
        return
    if not found:
        note("No transaction hangs.")
        return
    table(
        ("TOPIC", "PARTITION", "PRODUCER-ID", "EPOCH", "COORDINATOR-EPOCH", "START-OFFSET", "LAST-RECORD-MS-AGO"),
        [
            (
                *each.partition,
                each.producer_id,
                each.producer_epoch,
                each.coordinator_epoch,
                each.start_offset,
                round(max(now_ms - each.last_timestamp_ms, 0)),
            )
            for each in found
        ],
    )
    note("To end one, pass its topic, partition and start offset to `klamm txn abort`.")


@app.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(metavar="[TRANSACTIONAL-ID]", help="The transaction's id, if a coordinator knows it."),
    ] = None,
    topic: Topic = None,
    partition: Partition = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", min=0, help="First offset of the hanging transaction in --topic, --partition."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write the marker even if a coordinator knows the transaction.")
    ] = False,
    timeout: Timeout = 30.0,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a transaction.

    By TRANSACTIONAL-ID, the coordinator aborts it everywhere and fences its producer. The producer is fenced even if it
    is healthy and has no open transaction: it can then write nothing more, and its program must be started again.

    By --topic, --partition and --start-offset, an abort marker is written to that partition alone: for transactions
    that hang, see find-hanging.
    """
    in_log = (topic, partition, start_offset)
    is_in_log = all(value is not None for value in in_log)
    is_mixed = transactional_id is not None and any(value is not None for value in in_log)
    if (transactional_id is None) == (not is_in_log) or is_mixed:
        fail("Pass a TRANSACTIONAL-ID, or --topic, --partition and --start-offset.")
    transactions = _transactions(bootstrap_server, timeout)
    if transactional_id is not None:
        description = _described(transactions, transactional_id)
        with needs(on_transactional_id("WRITE")(transactional_id)):
            epoch = transactions.fence(description)
        was = _OUTCOMES.get(description.state, "not open")
        say(f"The transaction of {transactional_id} was {was}; producers with an epoch below {epoch} are fenced.")
        return
    assert topic is not None and partition is not None
    _abort_in_log(transactions, topic, partition, start_offset, force=force)


def _abort_in_log(
    transactions: Transactions, topic: str, partition: int, start_offset: int | None, *, force: bool
) -> None:
    with needs(on_topic("READ")(topic)):
        is_open = transactions.open_transactions(topic, partition)
    found = next((each for each in is_open if each.start_offset == start_offset), None)
    if found is None:
        fail(f"{topic}-{partition} has no open transaction that starts at offset {start_offset}.")
    if not force and not transactions.find_hanging([found]):
        fail(
            f"The transaction at offset {start_offset} of {topic}-{partition} does not hang: its coordinator will end "
            "it. Abort it by its transactional id (`klamm txn list`), or pass --force."
        )
    with needs(on_cluster("ALTER")):
        transactions.write_abort_marker(found)
    say(f"Aborted the transaction of producer {found.producer_id} in {topic}-{partition}.")


def _transactions(servers: str, timeout_s: float) -> Transactions:
    from klamm.cli.broker_requests import cli_client_config
    from klamm.client.cluster_transactions import Transactions
    from klamm.client.patience import TRANSACTION_QUESTION, repeated_for

    return Transactions(cli_client_config(servers), repeated_for(TRANSACTION_QUESTION, int(timeout_s * 1000)))


def _described(transactions: Transactions, transactional_id: str) -> Description:
    with needs(on_transactional_id("DESCRIBE")(transactional_id)):
        description = transactions.describe(transactional_id)
    if description is None:
        fail(f"No coordinator knows the transactional id {transactional_id}. `klamm txn list` prints all.")
    return description


def _as_json(value: Description | OpenTransaction) -> dict[str, Any]:
    """Partitions as `topic-0`, as in the tables."""
    row = asdict(value)
    for name in ("partition", "partitions"):
        if name in row:
            raw = getattr(value, name)
            row[name] = str(raw) if name == "partition" else [str(tp) for tp in raw]
    return row
