"""Partition states on the wire, encoded directly from the controller's values: a failover sends very many.

Only flexible versions are written here, those of the inter-broker protocols from 2.4 on. The output is byte for
byte that of the messages' own encoders, several times faster: a partition is one `Struct.pack`, made once for all
brokers that receive it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from klamm.controller.requests import EncodedStates, LeaderAndIsrPartition, UpdateMetadataPartition
from klamm.model import ZERO_UUID
from klamm.protocol.runtime import uvarint

FIRST_LEADER_AND_ISR: Final = 4
FIRST_UPDATE_METADATA: Final = 6
"""The first flexible versions."""
_LEADER_AND_ISR_WITH_IDS: Final = 5
_LEADER_AND_ISR_WITH_RECOVERY: Final = 6
_UPDATE_METADATA_WITH_IDS: Final = 7

STATES_PER_STEP: Final = 250
"""States that are encoded without giving the control loop back: half a millisecond."""

T = TypeVar("T")
EncodingSteps: TypeAlias = Generator[None, None, T]
Pack = Callable[..., bytes]
P = TypeVar("P", LeaderAndIsrPartition, UpdateMetadataPartition)


def _array(count: int) -> str:
    """A compact array of int32, with its length given as bytes."""
    return f"{len(uvarint(count + 1))}s{count}i"


@lru_cache(maxsize=4096)
def _leader_and_isr_pack(isr: int, replicas: int, adding: int, removing: int, has_recovery: bool) -> tuple[Any, ...]:
    counts = (isr, replicas, adding, removing)
    code = f">4i{_array(isr)}i{_array(replicas)}{_array(adding)}{_array(removing)}?{'b' if has_recovery else ''}x"
    return (Struct(code).pack, *(uvarint(count + 1) for count in counts))


def leader_and_isr_state(state: LeaderAndIsrPartition, version: int) -> bytes:
    it, adding, removing = state.leader_and_isr, state.adding_replicas, state.removing_replicas
    isr, replicas = it.isr, state.replicas
    has_recovery = version >= _LEADER_AND_ISR_WITH_RECOVERY
    pack, isr_n, replicas_n, adding_n, removing_n = _leader_and_isr_pack(
        len(isr), len(replicas), len(adding), len(removing), has_recovery
    )
    head = (state.partition.partition, state.controller_epoch, it.leader, it.leader_epoch, isr_n, *isr)
    lists = (it.partition_epoch, replicas_n, *replicas, adding_n, *adding, removing_n, *removing, state.is_new)
    packed: bytes = pack(*head, *lists, it.leader_recovery_state) if has_recovery else pack(*head, *lists)
    return packed


@lru_cache(maxsize=4096)
def _update_metadata_pack(isr: int, replicas: int, offline: int) -> tuple[Any, ...]:
    code = f">4i{_array(isr)}i{_array(replicas)}{_array(offline)}x"
    return (Struct(code).pack, uvarint(isr + 1), uvarint(replicas + 1), uvarint(offline + 1))


def update_metadata_state(state: UpdateMetadataPartition) -> bytes:
    isr, replicas, offline = state.isr, state.replicas, state.offline_replicas
    pack, isr_n, replicas_n, offline_n = _update_metadata_pack(len(isr), len(replicas), len(offline))
    packed: bytes = pack(
        state.partition.partition,
        state.controller_epoch,
        state.leader,
        state.leader_epoch,
        isr_n,
        *isr,
        state.zk_version,
        replicas_n,
        *replicas,
        offline_n,
        *offline,
    )
    return packed


def leader_and_isr_topics(
    states: Sequence[LeaderAndIsrPartition],
    topic_ids: dict[str, UUID],
    version: int,
    known: EncodedStates,
) -> EncodingSteps[bytes]:
    """Encode the array of topics. `known` caches the bytes of each state for the next brokers."""
    of_version = known.setdefault(version, {})

    def encoded(state: LeaderAndIsrPartition) -> bytes:
        key = state.partition, state.is_new
        found = of_version.get(key)
        if found is None:
            found = of_version[key] = leader_and_isr_state(state, version)
        return found

    ids = topic_ids if version >= _LEADER_AND_ISR_WITH_IDS else None
    return (yield from _topics(states, ids, encoded))


def update_metadata_topics(
    states: Sequence[UpdateMetadataPartition], topic_ids: Mapping[str, UUID], version: int
) -> EncodingSteps[bytes]:
    """The array of topics."""
    ids = topic_ids if version >= _UPDATE_METADATA_WITH_IDS else None
    return (yield from _topics(states, ids, update_metadata_state))


def _topics(
    states: Sequence[P], topic_ids: Mapping[str, UUID] | None, encode: Callable[[P], bytes]
) -> EncodingSteps[bytes]:
    """Group by topic in the order of first partitions; a topic's partitions need not be adjacent."""
    topics: dict[str, list[P]] = {}
    for topic, group in groupby(states, key=lambda state: state.partition.topic):
        topics.setdefault(topic, []).extend(group)
    if len(states) > STATES_PER_STEP:
        yield  # grouping very many takes as long as encoding a step of them
    parts = [uvarint(len(topics) + 1)]
    room = STATES_PER_STEP
    for topic, members in topics.items():
        name = topic.encode()
        parts += (uvarint(len(name) + 1), name)
        if topic_ids is not None:
            parts.append(topic_ids.get(topic, ZERO_UUID).bytes)
        parts.append(uvarint(len(members) + 1))
        for start in range(0, len(members), STATES_PER_STEP):
            if room <= 0:
                yield
                room = STATES_PER_STEP
            some = members[start : start + STATES_PER_STEP]
            parts += map(encode, some)
            room -= len(some)
        parts.append(b"\0")
    return b"".join(parts)
