"""Every znode of the cluster: its path and its one writer. `klamm.zk.model.znodes` has their contents.

Paths are those of Kafka in ZooKeeper mode, so that klamm's brokers and JVM brokers can share a cluster. Paths do not
contain the chroot; the session adds it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKERS: Final = "/brokers"
BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE_ID: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CLUSTER_ID: Final = "/cluster/id"
ADMIN: Final = "/admin"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION: Final = "/admin/preferred_replica_election"
ISR_CHANGE_NOTIFICATION: Final = "/isr_change_notification"
ISR_CHANGE_PREFIX: Final = "isr_change_"
LOG_DIR_EVENT_NOTIFICATION: Final = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX: Final = "log_dir_event_"
CONFIG: Final = "/config"
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_CHANGE_PREFIX: Final = "config_change_"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
FEATURE: Final = "/feature"
MIGRATION: Final = "/migration"
CONSUMERS: Final = "/consumers"
PEER_SECRET: Final = "/klamm/peer_secret"
SETTLED_LEADERS: Final = "/klamm/settled_leaders"
LOST_RECORDS: Final = "/klamm/lost_records"
DEFAULT_ENTITY: Final = "<default>"
ACL: Final = "/kafka-acl"
ACL_EXTENDED: Final = "/kafka-acl-extended/prefixed"
ACL_CHANGES: Final = "/kafka-acl-changes"
ACL_EXTENDED_CHANGES: Final = "/kafka-acl-extended-changes"
ACL_CHANGE_PREFIX: Final = "acl_changes_"
_ACL_WRITER: Final = "brokers with an authorizer, asked by CreateAcls and DeleteAcls, compare-and-set on its version"
_INT32_MAX: Final = 0x7FFFFFFF
_INT32_DIGITS: Final = 10

PERSISTENT_PATHS: Final = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE_ID,
    ISR_CHANGE_NOTIFICATION,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)
"""Znodes that a broker creates at its start, with parents, if they are missing."""


class Mode(Enum):
    PERSISTENT = "persistent"
    EPHEMERAL = "ephemeral"
    SEQUENTIAL = "persistent, sequential"


class ZnodeRule(NamedTuple):
    """One kind of znode. `codec` names the encode/decode pair in `klamm.zk.model.znodes`; "null" and "none" need none.

    The pairs of `acl` and `acl_change` are in `klamm.security.acl.stored`.
    `fenced`: the controller writes it only in a multi that checks the version of /controller_epoch.
    """

    pattern: str
    mode: Mode
    codec: str
    writer: str
    fenced: bool = False

    @property
    def prefix(self) -> str:
        """The common prefix of its paths."""
        return self.pattern.partition("{")[0]


ZNODES: Final = (
    ZnodeRule(
        CONTROLLER, Mode.EPHEMERAL, "controller", "the broker that wins the election, in one multi with the epoch"
    ),
    ZnodeRule(CONTROLLER_EPOCH, Mode.PERSISTENT, "controller_epoch", "the broker that wins the election"),
    ZnodeRule(
        "/brokers/ids/{broker}",
        Mode.EPHEMERAL,
        "broker",
        "that broker; the controller removes its report of an unclean shutdown",
    ),
    ZnodeRule(BROKER_SEQUENCE_ID, Mode.PERSISTENT, "null", "a broker without an id: it takes the new version"),
    ZnodeRule("/brokers/topics/{topic}", Mode.PERSISTENT, "topic", "the controller", fenced=True),
    ZnodeRule("/brokers/topics/{topic}/partitions", Mode.PERSISTENT, "null", "the controller", fenced=True),
    ZnodeRule("/brokers/topics/{topic}/partitions/{partition}", Mode.PERSISTENT, "null", "the controller", fenced=True),
    ZnodeRule(
        "/brokers/topics/{topic}/partitions/{partition}/state",
        Mode.PERSISTENT,
        "partition_state",
        "the controller; leaders ask it by AlterPartition, or before 2.7 write the ISR themselves, unfenced",
        fenced=True,
    ),
    ZnodeRule(CLUSTER_ID, Mode.PERSISTENT, "cluster_id", "the first broker of the cluster"),
    ZnodeRule(
        "/admin/delete_topics/{topic}", Mode.PERSISTENT, "null", "DeleteTopics, tools; the controller removes it", True
    ),
    ZnodeRule(
        REASSIGN_PARTITIONS, Mode.PERSISTENT, "reassignment", "tools; the controller shrinks and removes it", True
    ),
    ZnodeRule(PREFERRED_REPLICA_ELECTION, Mode.PERSISTENT, "partitions", "tools; the controller removes it", True),
    ZnodeRule(
        "/isr_change_notification/isr_change_",
        Mode.SEQUENTIAL,
        "partitions",
        "leaders before 2.7, after they changed an ISR; the controller removes it",
        fenced=True,
    ),
    ZnodeRule(
        "/log_dir_event_notification/log_dir_event_",
        Mode.SEQUENTIAL,
        "log_dir_event",
        "a broker that lost a log directory; the controller removes it",
        fenced=True,
    ),
    ZnodeRule(
        "/config/{entity_type}/{entity}",
        Mode.PERSISTENT,
        "config",
        "the config APIs and tools; the controller with a new or deleted topic",
        fenced=True,
    ),
    ZnodeRule(
        "/config/changes/config_change_", Mode.SEQUENTIAL, "config_change", "the writer of a config, after it", True
    ),
    ZnodeRule(
        PRODUCER_ID_BLOCK,
        Mode.PERSISTENT,
        "producer_id_block",
        "the controller, compare-and-set on its version; every broker before 3.0, unfenced",
        fenced=True,
    ),
    ZnodeRule(FEATURE, Mode.PERSISTENT, "feature", "the controller", fenced=True),
    ZnodeRule(MIGRATION, Mode.PERSISTENT, "none", "a migration to KRaft; klamm neither reads nor writes it"),
    ZnodeRule(PEER_SECRET, Mode.PERSISTENT, "none", "the first klamm broker of the cluster"),
    ZnodeRule(
        SETTLED_LEADERS,
        Mode.PERSISTENT,
        "controller_epoch",
        "the controller, when all leaders that it elected have answered; the time of the write counts",
        fenced=True,
    ),
    ZnodeRule(
        "/klamm/lost_records/{loss}",
        Mode.PERSISTENT,
        "lost_records",
        "a leader that lacks acknowledged records; `klamm partition confirm-loss` removes it",
    ),
    ZnodeRule("/kafka-acl/{type}/{name}", Mode.PERSISTENT, "acl", _ACL_WRITER),
    ZnodeRule("/kafka-acl-extended/prefixed/{type}/{name}", Mode.PERSISTENT, "acl", _ACL_WRITER),
    ZnodeRule("/kafka-acl-changes/acl_changes_", Mode.SEQUENTIAL, "acl_change", "the writer of an ACL, after it"),
    ZnodeRule(
        "/kafka-acl-extended-changes/acl_changes_", Mode.SEQUENTIAL, "acl_change", "the writer of an ACL, after it"
    ),
    ZnodeRule(
        "/delegation_token/tokens/{id}", Mode.PERSISTENT, "none", "JVM brokers; klamm neither reads nor writes it"
    ),
    ZnodeRule("/consumers/{group}/offsets/{topic}/{partition}", Mode.PERSISTENT, "none", "consumers of the old kind"),
)
"""One row per kind of znode. The simulator checks `fenced` for every write of a controller."""


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def topic_partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def lost_records_path(topic: str, partition: int, start_offset: int, end_offset: int) -> str:
    """Return the path of one loss: it is the same one if the loss is reported again."""
    return f"{LOST_RECORDS}/{topic}-{partition}-{start_offset}-{end_offset}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def isr_change_path(name: str = ISR_CHANGE_PREFIX) -> str:
    """Return the path of a notification; without a name, the prefix for a sequential create."""
    return f"{ISR_CHANGE_NOTIFICATION}/{name}"


def log_dir_event_path(name: str = LOG_DIR_EVENT_PREFIX) -> str:
    return f"{LOG_DIR_EVENT_NOTIFICATION}/{name}"


def config_change_path(name: str = CONFIG_CHANGE_PREFIX) -> str:
    return f"{CONFIG_CHANGES}/{name}"


def config_entity_type_path(entity_type: str) -> str:
    return f"{CONFIG}/{entity_type}"


def config_entity_path(entity_type: str, entity: str) -> str:
    """`entity_type` is topics, brokers, clients, users or ips; names of clients and users come sanitized."""
    return f"{CONFIG}/{entity_type}/{entity}"


def config_path_of(entity_path: str) -> str:
    """Return the config znode that a change notification names, such as `topics/orders` or `users/a/clients/b`."""
    return f"{CONFIG}/{entity_path}"


def sequence_number(name: str) -> int:
    """Return the number at the end of a sequential znode's name or path. Raises ValueError if there is none."""
    digits = name[-10:]
    if len(digits) < 10 or not digits.isdecimal():
        raise ValueError(f"{name!r} does not end in the ten digits of a sequential znode")
    return int(digits)


def number_of(name: str) -> int | None:
    """Return the id of a broker or partition in a znode's name; None if Kafka would not write the number that way.

    Any client can create such a name. Numbers beyond int32 fit into no message, and Python refuses to parse very long
    ones.
    """
    if not (name.isascii() and name.isdecimal() and len(name) <= _INT32_DIGITS):
        return None
    number = int(name)
    return number if number <= _INT32_MAX and str(number) == name else None


_UNRESERVED: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


def sanitize(name: str) -> str:
    """Return a user or client name as in Kafka's paths: percent-encoded, including asterisks and blanks."""
    return "".join(chr(b) if b in _UNRESERVED else f"%{b:02X}" for b in name.encode())


def desanitize(name: str) -> str:
    from urllib.parse import unquote  # rarely needed, and slow to import

    return unquote(name, errors="strict")
