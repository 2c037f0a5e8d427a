"""`klamm cluster why TOPIC PARTITION`: the chain of causes and effects behind the last changes of a partition."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    addresses_by_answer,
    no_such_topic,
    unreachable,
)
from klamm.cli.cluster import ask_metadata, partition_view
from klamm.cli.command_config import current as command_config
from klamm.cli.completion import TopicName
from klamm.cli.output import bold, dim, fail, note, red, say
from klamm.cli.right_advice import needs, on_topic
from klamm.model import CONTROL_LOG_TOPIC

if TYPE_CHECKING:
    from klamm.control_log.chains import Chain

_NO_LOG: Final = (
    f"There is no topic {CONTROL_LOG_TOPIC}. Set klamm.control.log.enable=true; changes are recorded from then on."
)


def why(
    topic: TopicName,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="Number of changes to explain.")] = 1,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Explain the last changes of a partition's leader or ISR, from the cause to the last broker that knows it.

    The chain comes from the topic `__klamm_control_log`. Times are those of the brokers' clocks.
    """
    found = _find(bootstrap_server, topic, partition, last)
    if not found:
        fail(_nothing(bootstrap_server, topic, partition))
    if as_json:
        say(json.dumps([{"change": it.change, "steps": [asdict(step) for step in it.steps]} for it in found], indent=2))
        return
    for chain in found:
        _show(chain)


def _find(servers: str, topic: str, partition: int, last: int) -> list[Chain]:
    """Return the chains of the last changes. If an existing partition has none, its creation may not be written yet."""
    from klamm.client.patience import CONTROL_LOG_LAG, Deadline
    from klamm.clock import SystemClock
    from klamm.control_log.chains import chains

    deadline = Deadline(CONTROL_LOG_LAG, SystemClock())
    while True:
        found = chains(read_control_log(servers), topic, partition, last)
        if found or deadline.has_passed or partition not in _partitions(servers, topic):
            return found
        time.sleep(CONTROL_LOG_LAG.pause_s())


def _partitions(servers: str, topic: str) -> list[int]:
    """Return the partitions of a topic, none if it does not exist or no broker answers."""
    from klamm.client.patience import FIRST_CONTACT

    for address in addresses_by_answer(servers):
        if (view := ask_metadata(address, FIRST_CONTACT.request_s)) is not None:
            return sorted(number for name, number in partition_view(view) if name == topic)
    return []


def _nothing(servers: str, topic: str, partition: int) -> str:
    existing = _partitions(servers, topic)
    text = f"The control log has no change of {topic}-{partition}"
    if not existing:
        return f"{text}. {no_such_topic(topic)}"
    if partition not in existing:
        return f"{text}: the partitions of {topic} are 0 to {existing[-1]}."
    return f"{text}: it was created before klamm.control.log.enable=true, or its records have been deleted."


def _show(chain: Chain) -> None:
    first = chain.steps[0].at_ms
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first / 1000))
    say(bold(f"{when}  {chain.steps[0].text.partition(' (')[0]}"))
    for step in chain.steps:
        took = "" if step.duration_ms is None else f"  {_what(step.kind)} {step.duration_ms:.1f} ms"
        text = red(step.text) if step.kind == "refused" else bold(step.text) if step.kind == "decision" else step.text
        say(f"{step.at_ms - first:+8d} ms  {text}{dim(took)}")
    note(f"{chain.total_ms} ms from the first step to the last.")


def _what(kind: str) -> str:
    return "took" if kind == "znode" else "waited"


def read_control_log(servers: str) -> list[dict[str, Any]]:
    """Return all records of the control log up to its present end."""
    from klamm.client.cluster_client import ClusterClient
    from klamm.client.connection_pool import ClientConfig
    from klamm.client.patience import CONTROL_LOG_READ, FIRST_CONTACT
    from klamm.client.topic_reader import TopicReader

    addresses = tuple(addresses_by_answer(servers))
    if all(ask_metadata(address, FIRST_CONTACT.request_s) is None for address in addresses):
        fail(unreachable(servers))
    with ClusterClient(
        ClientConfig(addresses, client_id="klamm-cli", patience=CONTROL_LOG_READ, security=command_config.security)
    ) as client:
        reader = TopicReader(client, CONTROL_LOG_TOPIC)
        with needs(on_topic("READ")(CONTROL_LOG_TOPIC)):
            if not reader.open():
                fail(_NO_LOG)
            return [json.loads(value) for value in reader.to_end()]
