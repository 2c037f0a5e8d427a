"""Problems of a cluster that no partition shows: internal topics that cannot be created, undecodable znodes, losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.cli.output import fail
from klamm.cli.settings_problems import access_checks, check_topic_settings, setting_checks
from klamm.cli.znode_checks import RESTORE, Check, children, failed_checks
from klamm.config.entries import ConfigSource
from klamm.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.client.zk_security import ZkSecurity
    from klamm.zk.model.ops import ZkError
    from klamm.zk.model.znodes import TopicZnode

_OFFSETS_FACTOR: Final = "offsets.topic.replication.factor"
_TRANSACTION_FACTOR: Final = "transaction.state.log.replication.factor"
_INTERNAL_TOPICS: Final = (
    (GROUP_METADATA_TOPIC, _OFFSETS_FACTOR, "consumer groups"),
    (TRANSACTION_STATE_TOPIC, _TRANSACTION_FACTOR, "transactions"),
)
_ZOOKEEPER: Final = "zookeeper.connect"
MAX_STATES: Final = 1000
"""Partitions whose states are all checked. With more, only those of unhealthy partitions are."""
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
    znodes = _znodes(hosts, view, list(unwell), timeout_s, security)
    return Problems(found + znodes.sentences, znodes.unchecked)


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
    hosts: str, view: MetadataResponse, unwell: list[TopicPartition], timeout_s: float, security: ZkSecurity | None
) -> Problems:
    """Check the control znodes, those of all brokers, topics and settings, and the states of partitions."""
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.client.zk_security import UNSECURED
    from klamm.zk.model import paths
    from klamm.zk.model.ops import NoAuth, ZkError

    unchecked: str | None = None
    partitions = [
        TopicPartition(str(topic.name), each.partition_index) for topic in view.topics for each in topic.partitions
    ]
    known = {str(topic.name) for topic in view.topics}
    try:
        with BlockingSession(hosts, timeout_s, None, security or UNSECURED) as session:
            topics = known.union(children(session, paths.TOPICS))
            problems = _losses(session) + _block_of_producer_ids(session)
            problems += failed_checks(session, [*_control_checks(), *_broker_checks(session)])
            try:
                problems += failed_checks(session, [*setting_checks(session), *access_checks(session)])
            except NoAuth as error:  # With zookeeper.set.acl, these are readable by brokers only.
                unchecked = _unreadable(hosts, error)
            found: dict[str, TopicZnode] = {}
            problems += failed_checks(session, _topic_checks(sorted(topics), found))
            # A broker that has started since then does not know a topic whose znodes it could not decode.
            for name in found.keys() - known:
                partitions += [TopicPartition(name, each) for each in found[name].assignment]
            chosen = unwell if len(partitions) > MAX_STATES else partitions
            problems += failed_checks(session, [_state_check(tp) for tp in dict.fromkeys([*unwell, *chosen])])
    except ZkError as error:
        return Problems([], _unreadable(hosts, error))
    return Problems(problems, unchecked)


def _control_checks() -> list[Check]:
    from klamm.zk.model import paths, znodes

    epoch = f"Set {paths.CONTROLLER_EPOCH} to a number that is at least the last controller epoch."
    return [
        (paths.CONTROLLER_EPOCH, znodes.decode_controller_epoch, epoch),
        (paths.CONTROLLER, znodes.decode_controller, f"Delete {paths.CONTROLLER}: the brokers elect a controller."),
        (paths.CLUSTER_ID, znodes.decode_cluster_id, f"{RESTORE} the cluster id of meta.properties."),
        (paths.FEATURE, znodes.decode_feature, f"Delete {paths.FEATURE}: the next controller writes it."),
        (paths.REASSIGN_PARTITIONS, znodes.decode_reassignment, f"Delete {paths.REASSIGN_PARTITIONS}."),
    ]


def _block_of_producer_ids(session: BlockingSession) -> list[str]:
    """Its stat is needed: brokers create it empty, and one that was emptied or created again is damaged."""
    from klamm.zk.model import paths, znodes
    from klamm.zk.model.ops import NoNode

    try:
        data, stat = session.get_with_stat(paths.PRODUCER_ID_BLOCK)
        epoch_czxid = session.get_with_stat(paths.CONTROLLER_EPOCH)[1].czxid
        znodes.decode_producer_id_block(data, stat.version, czxid=stat.czxid, epoch_czxid=epoch_czxid)
    except NoNode:
        return []
    except znodes.ZnodeFormatError as error:
        return [f"{error}. {RESTORE} the last block of producer ids; a higher block is safe."]
    return []


def _broker_checks(session: BlockingSession) -> list[Check]:
    """Registrations. The controller ignores names that are not broker ids."""
    from klamm.zk.model import paths
    from klamm.zk.model.broker_znode import decode_broker

    ids = [each for each in map(paths.number_of, children(session, paths.BROKER_IDS)) if each is not None]
    remedy = "Delete the znode: a running broker registers again."
    return [(paths.broker_path(each), partial(decode_broker, each, epoch=0), remedy) for each in sorted(ids)]


def _topic_checks(topics: Iterable[str], found: dict[str, TopicZnode]) -> list[Check]:
    """Assignments and settings; `found` gets the assignments."""
    from klamm.zk.model import paths, znodes

    def assignment(name: str, data: bytes | None) -> None:
        found[name] = znodes.decode_topic(name, data)

    checks: list[Check] = []
    for name in topics:
        config = paths.config_entity_path("topics", name)
        checks.append((paths.topic_path(name), partial(assignment, name), f"{RESTORE} the assignment."))
        checks.append((config, partial(check_topic_settings, name, config), ""))
    return checks


def _state_check(tp: TopicPartition) -> Check:
    from klamm.zk.model import paths, znodes

    remedy = f"{RESTORE} leader, ISR and epochs. Without it the controller elects no leader."
    return paths.partition_state_path(*tp), partial(znodes.decode_partition_state, tp, version=0), remedy


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
