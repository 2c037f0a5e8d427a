"""`klamm cluster metadata --broker N`: the cluster as one broker knows it, beside the controller's view."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer, parse_address, unreachable
from klamm.cli.cluster import PartitionView, ask_metadata, first_metadata, partition_view
from klamm.cli.cluster_control import find_controller
from klamm.cli.output import fail, note, say, table

_COLUMNS: Final = ("PARTITION", "LEADER", "EPOCH", "ISR", "CONTROLLER HAS")


@dataclass(frozen=True, slots=True)
class PartitionBelief:
    """A partition as the broker knows it, and as the controller does; None where one of them does not know it."""

    topic: str
    partition: int
    broker: tuple[int, int, list[int]] | None
    controller: tuple[int, int, list[int]] | None

    @property
    def differs(self) -> bool:
        return self.broker != self.controller


def metadata(
    broker: Annotated[int, typer.Option("--broker", min=0, metavar="ID", help="The broker to ask.")],
    all_: Annotated[bool, typer.Option("--all", help="Show all partitions, not only those that differ.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for each broker.")] = 3.0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show what a broker's metadata cache knows, and where it differs from the controller's view.

    Clients of the broker get these leaders. A lasting difference means that the controller's requests do not reach the
    broker: `klamm cluster status` shows how many are unacknowledged. Exit code 3: the views differ.
    """
    addresses = [parse_address(server) for server in bootstrap_server.split(",")]
    first = first_metadata(addresses, timeout)
    if first is None:
        fail(unreachable(bootstrap_server))
    nodes = {node.node_id: (node.host, node.port) for node in first.brokers}
    if broker not in nodes:
        fail(f"There is no live broker {broker}. There are: {', '.join(map(str, sorted(nodes)))}.")
    views = {broker_id: answer for broker_id, at in nodes.items() if (answer := ask_metadata(at, timeout)) is not None}
    if broker not in views:
        fail(f"Broker {broker} does not answer at {nodes[broker][0]}:{nodes[broker][1]} within {timeout:g} s.")
    control = find_controller(first, views, timeout)
    if control.controller_id not in views:
        fail(f"The controller {control.problem or 'does not answer'}: there is nothing to compare with.")
    compared = compare(partition_view(views[broker]), partition_view(views[control.controller_id]))
    _show(broker, control.controller_id, compared, all_, json_)
    if any(belief.differs for belief in compared):
        raise typer.Exit(3)


def compare(mine: PartitionView, controllers: PartitionView) -> list[PartitionBelief]:
    """Return every partition that one of the two views has, in order."""
    return [
        PartitionBelief(topic, partition, _state(mine, topic, partition), _state(controllers, topic, partition))
        for topic, partition in sorted({*mine, *controllers})
    ]


def _state(
    view: Mapping[tuple[str, int], tuple[int, int, frozenset[int]]], topic: str, partition: int
) -> tuple[int, int, list[int]] | None:
    found = view.get((topic, partition))
    return None if found is None else (found[0], found[1], sorted(found[2]))


def _show(broker: int, controller: int, compared: list[PartitionBelief], all_: bool, json_: bool) -> None:
    shown = [belief for belief in compared if all_ or belief.differs]
    if json_:
        rows = [{**asdict(belief), "differs": belief.differs} for belief in shown]
        say(json.dumps({"broker": broker, "controller": controller, "partitions": rows}, indent=2))
        return
    if shown:
        table(_COLUMNS, [_row(belief) for belief in shown])
    different = sum(belief.differs for belief in compared)
    same = f"Broker {broker} knows {len(compared)} partitions as the controller, broker {controller}, does."
    note(f"{different} of {len(compared)} partitions differ from the controller's view." if different else same)


def _row(belief: PartitionBelief) -> list[object]:
    name = f"{belief.topic}-{belief.partition}"
    mine = ("unknown", None, None) if belief.broker is None else (*belief.broker[:2], _isr(belief.broker[2]))
    return [name, *mine, _described(belief)]


def _described(belief: PartitionBelief) -> str:
    if not belief.differs:
        return "the same"
    if belief.controller is None:
        return "no such partition"
    leader, epoch, isr = belief.controller
    return f"leader {leader} epoch {epoch} ISR {_isr(isr)}"


def _isr(members: list[int]) -> str:
    return ",".join(map(str, members))
