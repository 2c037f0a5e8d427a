"""Effects, events and requests as readable lines, for the simulator's traces and the transcript tests."""

from __future__ import annotations

from dataclasses import fields

from klamm.controller.effects import (
    ActiveControllerChanged,
    AddChannel,
    AskLogEnds,
    AskSessionId,
    BrokerRegistered,
    CancelScheduled,
    CloseAllChannels,
    CloseChannel,
    Effect,
    Enqueue,
    LeadershipChanged,
    Note,
    Pause,
    RegistrationsChanged,
    Reply,
    Schedule,
    Send,
    ZkMulti,
    ZkRead,
)
from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.errors import ErrorCode
from klamm.zk.model.ops import Check, Create, Delete, Exists, GetChildren, GetData, ReadOp, SetData, WriteOp


def show_read(op: ReadOp) -> str:
    verb = {GetData: "get", GetChildren: "ls", Exists: "exists"}[type(op)]
    return f"{verb} {op.path}{' (watch)' if op.watch else ''}"


def show_write(op: WriteOp) -> str:
    match op:
        case Check(path, version):
            return f"check {path} v{version}"
        case Create(path, data):
            kind = "ephemeral " if op.ephemeral else ""
            return f"create {kind}{path}{_data(data)}"
        case SetData(path, data, version):
            return f"set {path} v{version}{_data(data)}"
        case Delete(path):
            return f"delete {path}"


def _data(data: bytes | None) -> str:
    return f" {data.decode()}" if data else ""


def _lair(state: LeaderAndIsrPartition) -> str:
    it = state.leader_and_isr
    new = " new" if state.is_new else ""
    moving = f" adding={list(state.adding_replicas)}" if state.adding_replicas else ""
    moving += f" removing={list(state.removing_replicas)}" if state.removing_replicas else ""
    return (
        f"{state.partition} leader={it.leader} e{it.leader_epoch} isr={list(it.isr)} v{it.partition_epoch} "
        f"replicas={list(state.replicas)}{moving}{new}"
    )


def _umr(state: UpdateMetadataPartition) -> str:
    offline = f" offline={list(state.offline_replicas)}" if state.offline_replicas else ""
    return (
        f"{state.partition} leader={state.leader} e{state.leader_epoch} isr={list(state.isr)} "
        f"v{state.zk_version}{offline}"
    )


def show_request(request: ControlRequest) -> str:
    head = f"epoch {request.head.controller_epoch} broker epoch {request.head.broker_epoch}"
    match request:
        case LeaderAndIsrRequest(partitions=states):
            return f"LeaderAndIsr {head}: " + "; ".join(map(_lair, states))
        case UpdateMetadataRequest(body=body):
            live = [broker.id for broker in body.live_brokers]
            what = "; ".join(map(_umr, body.partitions)) or "no partitions"
            return f"UpdateMetadata {head} live={live}: {what}"
        case StopReplicaRequest(partitions=stops):
            what = "; ".join(f"{s.partition} e{s.leader_epoch}{' delete' if s.delete else ''}" for s in stops)
            return f"StopReplica {head}: {what}"


def show_value(value: object) -> str:
    """Format a frozen value without fields at their default."""
    shown = []
    for field in fields(value):  # type: ignore[arg-type]
        item = getattr(value, field.name)
        if item != field.default:
            shown.append(f"{field.name}={_item(item)}")
    return f"{type(value).__name__}({', '.join(shown)})"


def _item(item: object) -> str:
    if isinstance(item, ErrorCode):
        return item.name
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return str(item)
    if isinstance(item, tuple):
        return "[" + ", ".join(map(_item, item)) + "]"
    if hasattr(item, "__dataclass_fields__"):
        return show_value(item)
    return str(item)


_WITHOUT_DETAILS: dict[type[Effect], str] = {
    CloseAllChannels: "close all channels",
    AskSessionId: "ask for the id of the session",
    CancelScheduled: "cancel scheduled events",
    Pause: "pause",
}


def show_effect(effect: Effect) -> str:
    """Return one line per effect."""
    match effect:
        case ZkRead(ops):
            return "zk " + "; ".join(map(show_read, ops))
        case ZkMulti(ops):
            return "zk " + "; ".join(map(show_write, ops))
        case Send(broker, request):
            return f"send {broker} {show_request(request)}"
        case AskLogEnds(broker, partitions):
            return f"ask {broker.id} for the log ends of {', '.join(f'{tp} e{epoch}' for tp, epoch in partitions)}"
        case AddChannel(broker):
            return f"add channel to {broker.id} (broker epoch {broker.epoch})"
        case CloseChannel(broker_id):
            return f"close channel to {broker_id}"
        case Reply(value):
            return f"reply {show_value(value)}"
        case Enqueue(event):
            return f"enqueue {show_value(event)}"
        case Schedule(delay_ms, event):
            return f"schedule {show_value(event)} in {delay_ms} ms"
        case CloseAllChannels() | AskSessionId() | CancelScheduled() | Pause():
            return _WITHOUT_DETAILS[type(effect)]
        case BrokerRegistered() | ActiveControllerChanged() | LeadershipChanged() | RegistrationsChanged() | Note():
            return _show_report(effect)


def _show_report(
    effect: BrokerRegistered | ActiveControllerChanged | LeadershipChanged | RegistrationsChanged | Note,
) -> str:
    match effect:
        case BrokerRegistered(epoch):
            return f"registered with broker epoch {epoch}"
        case ActiveControllerChanged(controller, epoch):
            return f"the controller is {controller} (epoch {epoch})"
        case LeadershipChanged(changes):
            return "record " + ", ".join(f"{it.partition} {it.strategy or 'ISR change'}" for it in changes)
        case RegistrationsChanged(gone, registered):
            return f"record registrations: gone {[b for b, _ in gone]}, registered {[b for b, _ in registered]}"
        case Note(text):
            return f"note {text}"
