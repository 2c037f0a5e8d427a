"""Problems of a cluster that no partition shows: internal topics that cannot be created, undecodable znodes, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.config.entries import ConfigSource
from klamm.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse
    from klamm.zk.client.blocking import BlockingSession

_OFFSETS_FACTOR: Final = "offsets.topic.replication.factor"
_TRANSACTION_FACTOR: Final = "transaction.state.log.replication.factor"
_INTERNAL_TOPICS: Final = (
    (GROUP_METADATA_TOPIC, _OFFSETS_FACTOR, "consumer groups"),
    (TRANSACTION_STATE_TOPIC, _TRANSACTION_FACTOR, "transactions"),
)
_ZOOKEEPER: Final = "zookeeper.connect"
Address = tuple[str, int]


def find_problems(
    address: Address, broker_id: int, view: MetadataResponse, unwell: Iterable[TopicPartition], timeout_s: float
) -> list[str]:
    """Return one sentence per problem, with its remedy, from the broker at `address` and from ZooKeeper."""
    configs = _broker_configs(address, broker_id, timeout_s)
    found = _internal_topics(configs, view)
    if hosts := configs.get(_ZOOKEEPER):
        found += _znodes(hosts, [str(topic.name) for topic in view.topics], list(unwell), timeout_s)
    return found


def _broker_configs(address: Address, broker_id: int, timeout_s: float) -> dict[str, str]:
    from klamm.cli.broker_requests import broker_settings

    try:
        found = broker_settings(address, broker_id, (_OFFSETS_FACTOR, _TRANSACTION_FACTOR, _ZOOKEEPER), timeout_s)
    except OSError:
        return {}
    return {
        config.name: config.value or ""
        for config in found.configs
        if config.name != _TRANSACTION_FACTOR or config.config_source != ConfigSource.DEFAULT_CONFIG
    }


def _internal_topics(configs: Mapping[str, str], view: MetadataResponse) -> list[str]:
    """`configs` lacks a factor of transactions that is not set: it does not require anything (decision 0029)."""
    alive = len(view.brokers)
    existing = {topic.name for topic in view.topics}
    return [
        f"{topic} cannot be created, so there are no {missing}: {key} is {factor}, live brokers: {alive}. Start more "
        "brokers, or set a smaller factor."
        for topic, key, missing in _INTERNAL_TOPICS
        if topic not in existing and (factor := configs.get(key, "")).isdecimal() and int(factor) > alive
    ]


def _znodes(hosts: str, topics: list[str], unwell: list[TopicPartition], timeout_s: float) -> list[str]:
    """Check the control znodes, those of all topics, and the states of unhealthy partitions."""
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.model import paths, znodes
    from klamm.zk.model.ops import ZkError

    epoch = f"Set {paths.CONTROLLER_EPOCH} to a number that is at least the last controller epoch."
    lost = "Restore the znode; it held"
    checks: list[tuple[str, Callable[[bytes | None], Any], str]] = [
        (paths.CONTROLLER_EPOCH, znodes.decode_controller_epoch, epoch),
        (paths.CONTROLLER, znodes.decode_controller, f"Delete {paths.CONTROLLER}: the brokers elect a controller."),
        (paths.CLUSTER_ID, znodes.decode_cluster_id, f"{lost} the cluster id of meta.properties."),
        (paths.FEATURE, znodes.decode_feature, f"Delete {paths.FEATURE}: the next controller writes it."),
        (
            paths.PRODUCER_ID_BLOCK,
            znodes.decode_producer_id_block,
            f"{lost} the last block of producer ids; a higher block is safe.",
        ),
        (paths.REASSIGN_PARTITIONS, znodes.decode_reassignment, f"Delete {paths.REASSIGN_PARTITIONS}."),
    ]
    checks += [
        (paths.topic_path(name), partial(znodes.decode_topic, name), f"{lost} the assignment.") for name in topics
    ]
    checks += [
        (
            paths.partition_state_path(*tp),
            partial(znodes.decode_partition_state, tp, version=0),
            f"{lost} leader, ISR and epochs. Without it the controller elects no leader.",
        )
        for tp in unwell
    ]
    try:
        with BlockingSession(hosts, timeout_s) as session:
            found = session.read_many([path for path, _, _ in checks])
            problems = _losses(session)
    except ZkError:
        return []
    for (_, decode, remedy), node in zip(checks, found, strict=True):
        try:
            if node is not None:
                decode(node)
        except znodes.ZnodeFormatError as error:
            problems.append(f"{error}. {remedy}")
    return problems


def _losses(session: BlockingSession) -> list[str]:
    from klamm.cli.lost_records import read_losses, sentences
    from klamm.zk.model import znodes

    try:
        return sentences(read_losses(session))
    except znodes.ZnodeFormatError as error:
        return [f"{error}. Correct or delete the znode: it describes records that were lost."]


def zookeeper_hosts(address: Address, broker_id: int, timeout_s: float) -> str | None:
    """The ZooKeeper that the broker uses; None if the broker does not report it."""
    return _broker_configs(address, broker_id, timeout_s).get(_ZOOKEEPER) or None
