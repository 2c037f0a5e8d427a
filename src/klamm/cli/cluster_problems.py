"""Problems of a cluster that no partition shows: internal topics that cannot be created, undecodable znodes, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.cli.output import fail
from klamm.config.entries import ConfigSource
from klamm.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.client.zk_security import ZkSecurity
    from klamm.zk.model.ops import ZkError

_OFFSETS_FACTOR: Final = "offsets.topic.replication.factor"
_TRANSACTION_FACTOR: Final = "transaction.state.log.replication.factor"
_INTERNAL_TOPICS: Final = (
    (GROUP_METADATA_TOPIC, _OFFSETS_FACTOR, "consumer groups"),
    (TRANSACTION_STATE_TOPIC, _TRANSACTION_FACTOR, "transactions"),
)
_ZOOKEEPER: Final = "zookeeper.connect"
Address = tuple[str, int]


class ZooKeeper(NamedTuple):
    """Where ZooKeeper is, and how a client proves itself to it."""

    hosts: str
    security: ZkSecurity


class Problems(NamedTuple):
    """One sentence per problem, with its remedy; and why the znodes were not checked, None if they were."""

    sentences: list[str]
    unchecked: str | None


def find_problems(
    address: Address,
    broker_id: int,
    view: MetadataResponse,
    unwell: Iterable[TopicPartition],
    timeout_s: float,
    zookeeper: ZooKeeper | None,
) -> Problems:
    """Look for problems in the settings of the broker at `address` and in ZooKeeper.

    `zookeeper` is the one to ask, with a login; without it the broker reports the address, which gets no login.
    """
    configs = _broker_configs(address, broker_id, timeout_s)
    found = _internal_topics(configs, view)
    hosts, security = zookeeper or (configs.get(_ZOOKEEPER), None)
    if not hosts:
        reason = (
            f"broker {broker_id} does not report {_ZOOKEEPER}. `klamm zk check` checks an embedded ZooKeeper's files."
        )
        return Problems(found, f"Znodes were not checked: {reason}")
    znodes = _znodes(hosts, [str(topic.name) for topic in view.topics], list(unwell), timeout_s, security)
    return Problems(found, znodes) if isinstance(znodes, str) else Problems(found + znodes, None)


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


def _znodes(
    hosts: str, topics: list[str], unwell: list[TopicPartition], timeout_s: float, security: ZkSecurity | None
) -> list[str] | str:
    """Check the control znodes, those of all topics, and the states of unhealthy partitions.

    A string is the reason why they could not be read.
    """
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.client.zk_security import UNSECURED
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
        with BlockingSession(hosts, timeout_s, None, security or UNSECURED) as session:
            found = session.read_many([path for path, _, _ in checks])
            problems = _losses(session)
    except ZkError as error:
        return _unreadable(hosts, error)
    for (_, decode, remedy), node in zip(checks, found, strict=True):
        try:
            if node is not None:
                decode(node)
        except znodes.ZnodeFormatError as error:
            problems.append(f"{error}. {remedy}")
    return problems


def _unreadable(hosts: str, error: ZkError) -> str:
    from klamm.zk.model.ops import AuthFailed, NoAuth

    if isinstance(error, AuthFailed | NoAuth):
        remedy = "Pass --broker-config with the file of a broker."
        return f"Znodes were not checked: ZooKeeper at {hosts} requires a login. {remedy}"
    return f"Znodes were not checked: ZooKeeper at {hosts}: {error}."


def _losses(session: BlockingSession) -> list[str]:
    from klamm.cli.lost_records import read_losses, sentences
    from klamm.zk.model import znodes

    try:
        return sentences(read_losses(session))
    except znodes.ZnodeFormatError as error:
        return [f"{error}. Correct or delete the znode: it describes records that were lost."]


def zookeeper_hosts(address: Address, broker_id: int, timeout_s: float) -> str | None:
    """Return the ZooKeeper that the broker uses; None if the broker does not report it."""
    return _broker_configs(address, broker_id, timeout_s).get(_ZOOKEEPER) or None


def zookeeper_of(broker_config: Path) -> ZooKeeper:
    """Return the ZooKeeper that a broker's file names, and the credentials. Raises ConfigError.

    The credentials belong to this ZooKeeper: they are never sent to an address that a broker reports.
    """
    from klamm.config import KafkaConfig
    from klamm.server import zookeeper_security

    config = KafkaConfig.from_file(broker_config)
    if not config.zookeeper_connect and not config.klamm_zookeeper_embedded_port:
        fail(f"{broker_config} has neither {_ZOOKEEPER} nor klamm.zookeeper.embedded.port.")
    embedded = f"{config.klamm_zookeeper_embedded_host}:{config.klamm_zookeeper_embedded_port}"
    return ZooKeeper(config.zookeeper_connect or embedded, zookeeper_security.client(config))
