"""Every API and the authorization it needs: the errors without entries, with each of them, and with a denial.

The same table is asked of klamm (tests/unit/security) and of Apache Kafka (compat/acl_table). A cluster has one broker
with id 1, the topic `t` with one partition and one record, the group `g` with an offset of `t`, the transactional id
`listed`, the transactional id `ongoing` with an open transaction on `t`, and topics and groups for rows that delete
them. Topics are created on demand. `User:alice` sends the requests from 127.0.0.1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from klamm import apis
from klamm.apis.api_declaration import Api
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.schema import plan
from klamm.protocol.wire import Message
from klamm.security.acl.bindings import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.support.messages import build, codes

ALICE: Final = "User:alice"
API_BY_NAME: Final = {api.name: api for api in apis.ALL}
_AUTHORIZATION: Final = {code.name for code in ErrorCode if code.name.endswith("_AUTHORIZATION_FAILED")}
_ERROR_FIELDS: Final = ("error_code", "partition_error_code")
BATCH: Final = build_batch([Record(timestamp=1_700_000_000_000, value=b"v")])
_IN_TRANSACTION: Final = build_batch(
    [Record(timestamp=1_700_000_000_000, value=b"v")],
    producer_id=7,
    producer_epoch=0,
    base_sequence=0,
    is_transactional=True,
)
_OLD_BODY: Final = struct.pack(">bbii", 0, 0, -1, 1) + b"v"
OLD_MESSAGE: Final = struct.pack(">qiI", 0, 4 + len(_OLD_BODY), zlib.crc32(_OLD_BODY)) + _OLD_BODY
"""One message of the format 0, for the versions of Produce that know no batches."""
_UNKNOWN_ID: Final = UUID(int=12345)
TO_DELETE: Final = ("deleted-by-name", "deleted-by-id")
GROUPS_TO_DELETE: Final = ("g-without-offset", "g-deleted")
"""Groups with an offset of `t`: one row deletes the offset of the first, another row the second."""
_NOT_SHOWN: Final = -(1 << 31)
"""The authorized operations of a resource that the client may not describe."""

NONE: Final = frozenset({"NONE"})
NO_TOPIC: Final = frozenset({"TOPIC_AUTHORIZATION_FAILED"})
NO_GROUP: Final = frozenset({"GROUP_AUTHORIZATION_FAILED"})
NO_CLUSTER: Final = frozenset({"CLUSTER_AUTHORIZATION_FAILED"})
NO_ID: Final = frozenset({"TRANSACTIONAL_ID_AUTHORIZATION_FAILED"})
UNKNOWN: Final = frozenset({"UNKNOWN_TOPIC_OR_PARTITION"})
NO_MEMBER: Final = frozenset({"UNKNOWN_MEMBER_ID"})
NOT_THE_PRODUCER: Final = frozenset({"INVALID_PRODUCER_ID_MAPPING"})
"""The transactional id does not have the producer id of the requests here."""
AUTHORIZED: Final = "authorized"
"""Any outcome but an authorization error, for outcomes that depend on time or that differ from Kafka's on purpose."""


class IdOf(NamedTuple):
    """Stands for the id of a topic, which is known only after the topic is created."""

    topic: str


class Grant(NamedTuple):
    """One access control entry for alice; with `permission`, also one that denies."""

    kind: ResourceType
    name: str
    operation: AclOperation
    pattern: PatternType = PatternType.LITERAL
    host: str = "*"
    permission: Permission = Permission.ALLOW

    def binding(self) -> AclBinding:
        return AclBinding(
            ResourcePattern(self.kind, self.name, self.pattern),
            AclEntry(ALICE, self.host, self.operation, self.permission),
        )

    def __str__(self) -> str:
        shown = f"{self.permission.name.lower()} {self.kind.title} {self.name} {self.operation.title}"
        return f"{shown} {self.pattern.name} from {self.host}"


def denied(grant: Grant) -> Grant:
    return grant._replace(permission=Permission.DENY)


def from_host(host: str, grant: Grant) -> Grant:
    return grant._replace(host=host)


def topic(name: str, operation: str, pattern: PatternType = PatternType.LITERAL) -> Grant:
    return Grant(ResourceType.TOPIC, name, AclOperation[operation], pattern)


def group(operation: str, name: str = "g") -> Grant:
    return Grant(ResourceType.GROUP, name, AclOperation[operation])


def cluster(operation: str) -> Grant:
    return Grant(ResourceType.CLUSTER, CLUSTER_NAME, AclOperation[operation])


def txn(operation: str) -> Grant:
    return Grant(ResourceType.TRANSACTIONAL_ID, "x", AclOperation[operation])


_IMPLIED: Final = {
    AclOperation.READ: AclOperation.DESCRIBE,
    AclOperation.WRITE: AclOperation.DESCRIBE,
    AclOperation.ALTER: AclOperation.DESCRIBE,
    AclOperation.DELETE: AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
Grants = tuple[Grant, ...]
Outcome = Any
Read = Callable[[Any], Outcome]


class Row(NamedTuple):
    """One request. `steps` are grants and the outcome with exactly these; `read` finds the outcome in the response.

    `versions` limits the versions; by default it is sent at all.
    """

    api: str
    what: str
    fields: dict[str, Any]
    steps: tuple[tuple[Grants, Outcome], ...]
    versions: tuple[int, int] = (0, 99)
    read: Read | None = None
    changes: bool = False
    """The authorized request changes the cluster, so that nothing can be asked after it: it is the last step."""

    @property
    def declaration(self) -> Api[Any, Any]:
        return API_BY_NAME[self.api]

    def requests(self, topic_ids: Mapping[str, UUID]) -> Iterator[tuple[int, Message]]:
        """Yield the request at each version that klamm serves."""
        first, last = self.declaration.versions
        for version in range(max(first, self.versions[0]), min(last, self.versions[1]) + 1):
            yield version, build(plan(self.declaration.request, version), _with_ids(self.fields, topic_ids))

    def outcome(self, version: int, response: Any) -> Outcome:
        if self.read is not None:
            return self.read(response)
        found = codes(plan(self.declaration.response, version), response, fields=_ERROR_FIELDS)
        names = {ErrorCode(code).name for _, code in found}
        return frozenset(names - {"NONE"} or {"NONE"})

    def agrees(self, expected: Outcome, found: Outcome) -> bool:
        if expected == AUTHORIZED:
            return isinstance(found, frozenset) and not found & _AUTHORIZATION
        return bool(found == expected)

    def denials(self) -> Iterator[tuple[Grants, Grant, Outcome]]:
        """Yield grants, a denial that takes one away, and the outcome: that of the step without this grant.

        Denying an operation does not deny the one that it implies: nothing is yielded if the implied one suffices.
        Rows with `read` have denials of their own.
        """
        if self.read is not None:
            return
        if any(grant.permission is Permission.DENY for grants, _ in self.steps for grant in grants):
            return  # the row has denials of its own
        outcomes = {frozenset(grants): outcome for grants, outcome in self.steps}
        for grants, outcome in self.steps:
            for grant in grants:
                others = frozenset(grants) - {grant}
                without = outcomes.get(others)
                if without is not None and not self._implied_suffices(others, grant, outcome):
                    yield grants, denied(grant), without

    def _implied_suffices(self, others: frozenset[Grant], grant: Grant, outcome: Outcome) -> bool:
        """Whether the request succeeds with the operation that `grant` implies. Steps with that operation show it."""
        implied = _IMPLIED.get(grant.operation)
        if implied is None:
            return False
        weaker = grant._replace(operation=implied)
        if not any(weaker in grants for grants, _ in self.steps):
            return False
        outcomes = {frozenset(grants): found for grants, found in self.steps}
        return bool(outcomes.get(others | {weaker}, outcome) == outcome)


def _with_ids(value: Any, topic_ids: Mapping[str, UUID]) -> Any:
    if isinstance(value, IdOf):
        return topic_ids[value.topic]
    if isinstance(value, dict):
        return {name: _with_ids(each, topic_ids) for name, each in value.items()}
    return [_with_ids(each, topic_ids) for each in value] if isinstance(value, list) else value


def _steps(*steps: tuple[Grants, Outcome]) -> tuple[tuple[Grants, Outcome], ...]:
    return steps


def _one(name: str, **fields: Any) -> dict[str, Any]:
    partition = {"index": 0, "partition": 0, "partition_index": 0, **fields}
    partitions = {key: [partition] for key in ("partitions", "partition_data")}
    return {"name": name, "topic": name, **partitions}


def rows() -> Iterator[Row]:
    yield from _records()
    yield from _topics()
    yield from _groups()
    yield from _transactions()
    yield from _configs()
    yield from _administration()
    yield from _brokers()


def _for_topics(
    api: str, operation: str, fields: Callable[[str], dict[str, Any]], present: Outcome, **other: Any
) -> Iterator[Row]:
    """The topic that exists and one that does not: without the operation, both look alike."""
    also = {"READ": (), "DESCRIBE": ("READ", "WRITE", "ALTER", "DELETE"), "DESCRIBE_CONFIGS": ("ALTER_CONFIGS",)}
    for name, outcome in (("t", present), ("no", UNKNOWN)):
        implied = [((topic(name, implying),), outcome) for implying in also.get(operation, ())]
        steps = (
            ((), NO_TOPIC),
            ((topic(name, operation),), outcome),
            ((topic(name, "ALL"),), outcome),
            ((topic("*", operation),), outcome),
            ((topic(name[:1], operation, PatternType.PREFIXED),), outcome),
            ((topic("other", operation),), NO_TOPIC),
            *implied,
        )
        yield Row(api, f"topic {name}", fields(name), steps, **other)


def _records() -> Iterator[Row]:
    def produce(name: str, records: bytes = BATCH) -> dict[str, Any]:
        sent = _one(name, records=records)
        return {"acks": 1, "timeout_ms": 5000, "transactional_id": None, "topic_data": [sent]}

    yield from _for_topics("Produce", "WRITE", produce, NONE, versions=(3, 12))
    yield from (
        row._replace(what=f"{row.what}, old format")
        for row in _for_topics("Produce", "WRITE", partial(produce, records=OLD_MESSAGE), NONE, versions=(0, 2))
    )
    yield Row(
        "Produce",
        "transactional",
        {
            "acks": -1,
            "timeout_ms": 5000,
            "transactional_id": "x",
            "topic_data": [_one("t", records=_IN_TRANSACTION)],
        },
        _steps(
            ((), NO_ID),
            ((topic("t", "WRITE"),), NO_ID),
            ((txn("WRITE"),), NO_TOPIC),
            ((txn("WRITE"), topic("t", "WRITE")), NOT_THE_PRODUCER),
        ),
        versions=(3, 12),
    )

    def fetch(name: str, replica_id: int = -1) -> dict[str, Any]:
        asked = _one(name, current_leader_epoch=-1, partition_max_bytes=1000)
        return {
            "replica_id": replica_id,
            "max_bytes": 1000,
            "session_epoch": -1,
            "topics": [asked],
            "replica_state": {"replica_id": replica_id, "replica_epoch": -1},
        }

    def by_id(topic_id: UUID | IdOf, replica_id: int = -1) -> dict[str, Any]:
        asked = fetch("t", replica_id)
        return asked | {"topics": [one | {"topic_id": topic_id} for one in asked["topics"]]}

    yield from _for_topics("Fetch", "READ", fetch, NONE, versions=(0, 12))
    unknown = frozenset({"UNKNOWN_TOPIC_ID"})
    yield Row(
        "Fetch",
        "unknown id",
        by_id(_UNKNOWN_ID),
        _steps(((), unknown), ((topic("t", "READ"),), unknown)),
        versions=(13, 17),
    )
    yield Row(
        "Fetch",
        "known id",
        by_id(IdOf("t")),
        _steps(
            ((), NO_TOPIC),
            ((topic("t", "READ"),), NONE),
            ((topic("*", "READ"),), NONE),
            ((topic("t", "DESCRIBE"),), NO_TOPIC),
            ((cluster("CLUSTER_ACTION"),), NO_TOPIC),
        ),
        versions=(13, 17),
    )
    not_a_replica = frozenset({"NOT_LEADER_OR_FOLLOWER"})
    for fields, versions in ((fetch("t", replica_id=7), (0, 12)), (by_id(IdOf("t"), replica_id=7), (13, 17))):
        yield Row(
            "Fetch",
            f"follower, v{versions[0]} to v{versions[1]}",
            fields,
            _steps(((), NO_TOPIC), ((topic("t", "READ"),), NO_TOPIC), ((cluster("CLUSTER_ACTION"),), not_a_replica)),
            versions=versions,
        )

    def offsets(name: str) -> dict[str, Any]:
        return {"replica_id": -1, "topics": [_one(name, timestamp=-1, current_leader_epoch=-1, max_num_offsets=1)]}

    yield from _for_topics("ListOffsets", "DESCRIBE", offsets, NONE)

    def epochs(name: str) -> dict[str, Any]:
        return {"replica_id": -1, "topics": [_one(name, leader_epoch=0, current_leader_epoch=-1)]}

    yield from _for_topics("OffsetForLeaderEpoch", "DESCRIBE", epochs, NONE)
    yield Row(
        "OffsetForLeaderEpoch", "follower", epochs("t"), _steps(((), NO_TOPIC), ((cluster("CLUSTER_ACTION"),), NONE))
    )
    yield from _for_topics(
        "DeleteRecords", "DELETE", lambda name: {"timeout_ms": 5000, "topics": [_one(name, offset=0)]}, NONE
    )
    yield from _for_topics(
        "DescribeProducers", "READ", lambda name: {"topics": [{"name": name, "partition_indexes": [0]}]}, NONE
    )


def _bits(*operations: str) -> int:
    return sum(1 << AclOperation[operation] for operation in operations)


def _topics() -> Iterator[Row]:
    def named(name: str) -> dict[str, Any]:
        return {"topics": [{"name": name}], "allow_auto_topic_creation": False}

    yield from _for_topics("Metadata", "DESCRIBE", named, NONE, versions=(4, 12))
    all_topics = _steps(
        ((), ()),
        ((topic("t", "READ"),), ("t",)),
        ((topic("t", "CREATE"),), ()),
        ((topic("*", "DESCRIBE"),), ("t",)),
        (
            (topic("t", "READ"), denied(topic("t", "READ"))),
            ("t",),
        ),  # READ implies DESCRIBE, its denial does not deny it
        ((topic("t", "READ"), denied(topic("t", "DESCRIBE"))), ()),
        ((topic("*", "DESCRIBE"), denied(topic("t", "DESCRIBE"))), ()),
        ((topic("t", "DESCRIBE"), denied(topic("*", "ALL"))), ()),
        ((topic("*", "DESCRIBE"), denied(topic("other", "DESCRIBE"))), ("t",)),
    )
    yield Row(
        "Metadata",
        "all topics",
        {"topics": None, "allow_auto_topic_creation": False},
        all_topics,
        versions=(1, 12),
        read=lambda response: tuple(found.name for found in response.topics if found.name == "t"),
    )
    yield Row(
        "Metadata",
        "all topics, v0",
        {"topics": []},
        all_topics,
        versions=(0, 0),
        read=lambda response: tuple(found.name for found in response.topics if found.name == "t"),
    )
    yield Row(
        "Metadata",
        "topic t, which the request may create",
        named("t"),
        _steps(((), NO_TOPIC), ((topic("t", "DESCRIBE"),), NONE), ((topic("t", "CREATE"),), NO_TOPIC)),
        versions=(0, 3),
    )
    yield Row(
        "Metadata",
        "topic no, which the request may create",
        named("no"),
        _steps(((), NO_TOPIC), ((topic("no", "DESCRIBE"),), NO_TOPIC), ((topic("no", "CREATE"),), NO_TOPIC)),
        versions=(0, 3),
    )
    read = topic("t", "READ")
    yield Row(
        "Metadata",
        "hosts",
        named("t"),
        _steps(
            ((from_host("127.0.0.1", read),), NONE),
            ((from_host("127.0.0.2", read),), NO_TOPIC),
            ((from_host("127.0.0.2", read), from_host("127.0.0.1", topic("*", "READ"))), NONE),
            ((read, denied(from_host("127.0.0.1", topic("t", "DESCRIBE")))), NO_TOPIC),
            ((read, denied(from_host("127.0.0.2", topic("t", "DESCRIBE")))), NONE),
            ((from_host("127.0.0.1", read), denied(topic("t", "DESCRIBE"))), NO_TOPIC),
        ),
        versions=(4, 12),
    )
    yield Row(
        "Metadata",
        "known id",
        {"topics": [{"name": None, "topic_id": IdOf("t")}], "allow_auto_topic_creation": False},
        _steps(((), NO_TOPIC), ((topic("t", "DESCRIBE"),), NONE), ((topic("t", "READ"),), NONE)),
        versions=(12, 12),
    )
    yield Row(
        "Metadata",
        "unknown id",
        {"topics": [{"name": None, "topic_id": _UNKNOWN_ID}], "allow_auto_topic_creation": False},
        _steps(((), frozenset({"UNKNOWN_TOPIC_ID"}))),
        versions=(12, 12),
    )
    yield Row(
        "Metadata",
        "operations on a topic",
        {"topics": [{"name": "t"}], "include_topic_authorized_operations": True},
        _steps(
            ((topic("t", "READ"),), _bits("READ", "DESCRIBE")),
            (
                (topic("t", "WRITE"), topic("t", "ALTER_CONFIGS")),
                _bits("WRITE", "DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"),
            ),
            ((topic("t", "READ"), denied(topic("t", "READ"))), _bits("DESCRIBE")),
            ((topic("t", "READ"), denied(topic("t", "DESCRIBE"))), _NOT_SHOWN),
            ((topic("t", "READ"), denied(topic("*", "ALL"))), _NOT_SHOWN),
            (
                (topic("t", "WRITE"), topic("t", "ALTER_CONFIGS"), denied(topic("t", "DESCRIBE_CONFIGS"))),
                _bits("WRITE", "DESCRIBE", "ALTER_CONFIGS"),
            ),
            (
                (topic("t", "ALL"), denied(topic("t", "WRITE")), denied(topic("*", "CREATE"))),
                _bits("READ", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
            ),
            ((), _NOT_SHOWN),
        ),
        versions=(8, 12),
        read=lambda response: response.topics[0].topic_authorized_operations,
    )
    yield Row(
        "Metadata",
        "operations on the cluster",
        {"topics": [], "include_cluster_authorized_operations": True},
        _steps(
            ((), 0),
            ((cluster("CREATE"),), 0),
            ((cluster("CREATE"), cluster("ALTER")), _bits("CREATE", "ALTER", "DESCRIBE")),
            ((cluster("CREATE"), cluster("ALTER"), denied(cluster("CREATE"))), _bits("ALTER", "DESCRIBE")),
            ((cluster("CREATE"), cluster("ALTER"), denied(cluster("ALTER"))), _bits("CREATE", "DESCRIBE")),
            ((cluster("CREATE"), cluster("ALTER"), denied(cluster("DESCRIBE"))), 0),
            ((cluster("ALL"), denied(cluster("ALL"))), 0),
        ),
        versions=(8, 10),
        read=lambda response: response.cluster_authorized_operations,
    )
    for name, grants in (("auto-1", (topic("auto-1", "CREATE"),)), ("auto-2", (cluster("CREATE"),))):
        yield Row(
            "Metadata",
            f"auto creation of {name}",
            {"topics": [{"name": name}], "allow_auto_topic_creation": True},
            _steps(
                ((), NO_TOPIC),
                (grants, NO_TOPIC),
                ((topic(name, "DESCRIBE"),), NO_TOPIC),
                ((topic(name, "DESCRIBE"), *grants), AUTHORIZED),  # the leader may be known already, or not yet
            ),
            versions=(9, 9),
            changes=True,
        )

    def create(name: str) -> dict[str, Any]:
        created = {"name": name, "num_partitions": 1, "replication_factor": 1}
        return {"timeout_ms": 5000, "validate_only": True, "topics": [created]}

    yield Row(
        "CreateTopics",
        "a new topic",
        create("new"),
        _steps(
            ((), NO_TOPIC),
            ((topic("new", "CREATE"),), NONE),
            ((topic("n", "CREATE", PatternType.PREFIXED),), NONE),
            ((cluster("CREATE"),), NONE),
            ((topic("new", "WRITE"),), NO_TOPIC),
        ),
        versions=(1, 7),
    )
    yield Row(
        "CreateTopics",
        "an existing topic",
        create("t"),
        _steps(((), NO_TOPIC), ((cluster("CREATE"),), frozenset({"TOPIC_ALREADY_EXISTS"}))),
    )
    yield Row(
        "CreateTopics",
        "a new topic, v0",
        create("created-0"),
        _steps(((), NO_TOPIC), ((topic("created-0", "WRITE"),), NO_TOPIC), ((topic("created-0", "CREATE"),), NONE)),
        versions=(0, 0),
        changes=True,
    )
    yield Row(
        "CreateTopics",
        "settings of a new topic",
        create("new"),
        _steps(
            ((topic("new", "CREATE"),), (29, -1, False)),
            ((topic("new", "CREATE"), topic("new", "DESCRIBE_CONFIGS")), (0, 1, True)),
            ((topic("new", "CREATE"), topic("new", "ALTER_CONFIGS")), (0, 1, True)),
            (
                (topic("new", "CREATE"), topic("new", "DESCRIBE_CONFIGS"), denied(topic("new", "DESCRIBE_CONFIGS"))),
                (29, -1, False),
            ),
            (
                (topic("new", "CREATE"), topic("new", "ALTER_CONFIGS"), denied(topic("*", "DESCRIBE_CONFIGS"))),
                (29, -1, False),
            ),
            (
                (topic("new", "CREATE"), topic("new", "ALTER_CONFIGS"), denied(topic("new", "ALTER_CONFIGS"))),
                (0, 1, True),
            ),
        ),
        versions=(5, 7),
        read=lambda response: (
            response.topics[0].topic_config_error_code,
            response.topics[0].num_partitions,
            bool(response.topics[0].configs),
        ),
    )

    def delete(name: str) -> dict[str, Any]:
        return {"timeout_ms": 5000, "topic_names": [name], "topics": [{"name": name, "topic_id": ZERO_UUID}]}

    def delete_id(topic_id: UUID | IdOf) -> dict[str, Any]:
        return {"timeout_ms": 5000, "topics": [{"name": None, "topic_id": topic_id}]}

    yield from (row for row in _for_topics("DeleteTopics", "DELETE", delete, NONE) if row.what == "topic no")
    refused = _steps(
        ((), NO_TOPIC),
        ((topic("t", "DESCRIBE"),), NO_TOPIC),
        ((topic("t", "ALTER"),), NO_TOPIC),
        ((topic("t", "DELETE"), denied(topic("t", "DELETE"))), NO_TOPIC),
        ((topic("t", "ALL"), denied(topic("*", "DELETE"))), NO_TOPIC),
        ((topic("*", "DELETE"), denied(topic("t", "DELETE", PatternType.PREFIXED))), NO_TOPIC),
    )
    yield Row("DeleteTopics", "topic t without DELETE", delete("t"), refused)
    yield Row("DeleteTopics", "known id without DELETE", delete_id(IdOf("t")), refused, versions=(6, 6))
    by_name, by_id = TO_DELETE
    for name, fields, version in ((by_name, delete(by_name), 5), (by_id, delete_id(IdOf(by_id)), 6)):
        steps = _steps(((), NO_TOPIC), ((topic(name, "DESCRIBE"),), NO_TOPIC), ((topic(name, "DELETE"),), NONE))
        yield Row("DeleteTopics", name, fields, steps, versions=(version, version), changes=True)
    yield Row(
        "DeleteTopics",
        "unknown id",
        delete_id(_UNKNOWN_ID),
        _steps(((), frozenset({"UNKNOWN_TOPIC_ID"}))),
        versions=(6, 6),
    )
    yield from _for_topics(
        "CreatePartitions",
        "ALTER",
        lambda name: {
            "timeout_ms": 5000,
            "validate_only": True,
            "topics": [{"name": name, "count": 2, "assignments": None}],
        },
        NONE,
    )


def _groups() -> Iterator[Row]:
    who: dict[str, Any] = {"group_id": "g2", "member_id": "m", "generation_id": 1, "group_instance_id": None}
    join = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 1000,
        "protocol_type": "consumer",
        "reason": None,
        "protocols": [{"name": "range", "metadata": b""}],
    }
    for api, fields in (
        ("JoinGroup", who | join),
        ("SyncGroup", who | {"protocol_type": "consumer", "protocol_name": "range"}),
        ("Heartbeat", who),
        ("LeaveGroup", who | {"members": [{"member_id": "m", "group_instance_id": None, "reason": None}]}),
    ):
        yield Row(
            api,
            "group",
            fields,
            _steps(
                ((), NO_GROUP),
                ((group("READ", "g2"),), NO_MEMBER),
                ((group("DESCRIBE", "g2"),), NO_GROUP),
                ((group("READ", "*"),), NO_MEMBER),
            ),
        )
    commit: dict[str, Any] = {"group_id": "g", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    for name, outcome in (("t", NONE), ("no", UNKNOWN)):
        yield Row(
            "OffsetCommit",
            f"topic {name}",
            commit | {"topics": [_one(name, committed_offset=1, committed_metadata="")]},
            _steps(
                ((), NO_GROUP),
                ((topic(name, "READ"),), NO_GROUP),
                ((group("READ"),), NO_TOPIC),
                ((group("READ"), topic(name, "READ")), outcome),
            ),
        )
    for name, before in (("t", NONE), ("no", AUTHORIZED)):
        # A topic that does not exist has no offset, which is not an error. In Kafka it is one at v0, which klamm treats
        # like v1.
        asked = {"name": name, "partition_indexes": [0]}
        of_group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": [asked]}
        for what, versions, allowed in ((f"topic {name}", (1, 9), NONE), (f"topic {name}, v0", (0, 0), before)):
            yield Row(
                "OffsetFetch",
                what,
                {"group_id": "g", "topics": [asked], "groups": [of_group]},
                _steps(
                    ((), NO_GROUP),
                    ((group("DESCRIBE"),), NO_TOPIC),
                    ((group("READ"),), NO_TOPIC),
                    ((group("DESCRIBE"), topic(name, "DESCRIBE")), allowed),
                    ((group("READ"), topic(name, "DESCRIBE")), allowed),
                    ((group("DESCRIBE"), topic(name, "READ")), allowed),
                    ((topic(name, "DESCRIBE"),), NO_GROUP),
                ),
                versions=versions,
            )
    of_group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}
    shown = group("DESCRIBE"), topic("t", "DESCRIBE")
    yield Row(
        "OffsetFetch",
        "all topics",
        {"group_id": "g", "topics": None, "groups": [of_group]},
        _steps(
            ((), ("GROUP_AUTHORIZATION_FAILED", ())),
            ((topic("t", "DESCRIBE"),), ("GROUP_AUTHORIZATION_FAILED", ())),
            ((group("DESCRIBE"),), ("NONE", ())),
            (shown, ("NONE", ("t",))),
            ((*shown, denied(topic("t", "DESCRIBE"))), ("NONE", ())),
            ((*shown, denied(topic("*", "ALL"))), ("NONE", ())),
            ((*shown, denied(group("DESCRIBE"))), ("GROUP_AUTHORIZATION_FAILED", ())),
            ((group("READ"), topic("*", "READ"), denied(topic("t", "DESCRIBE"))), ("NONE", ())),
        ),
        versions=(2, 9),
        read=_error_and_offsets,
    )
    yield Row(
        "OffsetDelete",
        "topic no",
        {"group_id": "g", "topics": [_one("no")]},
        _steps(
            ((), NO_GROUP),
            ((group("DELETE"),), NO_TOPIC),
            ((group("DELETE"), topic("no", "READ")), UNKNOWN),
            ((topic("no", "READ"),), NO_GROUP),
        ),
    )
    without_offset, deleted = GROUPS_TO_DELETE
    may_delete = group("DELETE", without_offset)
    yield Row(
        "OffsetDelete",
        "topic t",
        {"group_id": without_offset, "topics": [_one("t")]},
        _steps(
            ((), NO_GROUP),
            ((topic("t", "READ"),), NO_GROUP),
            ((may_delete,), NO_TOPIC),
            ((may_delete, topic("t", "DESCRIBE")), NO_TOPIC),
            ((may_delete, topic("t", "READ")), NONE),
        ),
        changes=True,
    )
    for name in ("g", "g9"):  # a group that does not exist is described as dead, without an error
        described = _steps(
            ((), NO_GROUP),
            ((group("DESCRIBE", name),), NONE),
            ((group("READ", name),), NONE),
            ((group("DESCRIBE", "other"),), NO_GROUP),
        )
        yield Row("DescribeGroups", f"group {name}", {"groups": [name]}, described)
    yield Row(
        "DescribeGroups",
        "operations",
        {"groups": ["g"], "include_authorized_operations": True},
        _steps(
            ((), _NOT_SHOWN),
            ((group("DELETE"),), _bits("DELETE", "DESCRIBE")),
            ((group("ALL"),), _bits("READ", "DELETE", "DESCRIBE")),
            ((group("ALL"), denied(group("READ"))), _bits("DELETE", "DESCRIBE")),
            ((group("DELETE"), denied(group("DELETE"))), _bits("DESCRIBE")),
            ((group("DELETE"), denied(group("DESCRIBE"))), _NOT_SHOWN),
            ((group("ALL"), denied(group("ALL", "*"))), _NOT_SHOWN),
        ),
        versions=(3, 5),
        read=lambda response: response.groups[0].authorized_operations,
    )
    yield Row(
        "ListGroups",
        "groups",
        {},
        _steps(
            ((), ()),
            ((group("DESCRIBE"),), ("g",)),
            ((cluster("DESCRIBE"),), ("g",)),
            ((group("READ", "*"),), ("g",)),
            ((group("READ", "*"), denied(group("DESCRIBE"))), ()),
            ((group("DESCRIBE"), denied(group("ALL", "*"))), ()),
            ((cluster("DESCRIBE"), denied(cluster("DESCRIBE"))), ()),
            ((cluster("DESCRIBE"), denied(group("DESCRIBE"))), ("g",)),
        ),
        read=lambda response: tuple(found.group_id for found in response.groups if found.group_id == "g"),
    )
    yield Row(
        "DeleteGroups",
        "unknown group",
        {"groups_names": ["g9"]},
        _steps(
            ((), NO_GROUP),
            ((group("DESCRIBE", "g9"),), NO_GROUP),
            ((group("DELETE", "g9"),), frozenset({"GROUP_ID_NOT_FOUND"})),
        ),
    )
    yield Row(
        "DeleteGroups",
        "group g without DELETE",
        {"groups_names": ["g"]},
        _steps(
            ((), NO_GROUP),
            ((group("READ"),), NO_GROUP),
            ((group("DELETE"), denied(group("DELETE"))), NO_GROUP),
            ((group("ALL"), denied(group("DELETE", "*"))), NO_GROUP),
        ),
    )
    yield Row(
        "DeleteGroups",
        "a group",
        {"groups_names": [deleted]},
        _steps(((), NO_GROUP), ((group("DESCRIBE", deleted),), NO_GROUP), ((group("DELETE", deleted),), NONE)),
        versions=(2, 2),
        changes=True,
    )
    yield Row(
        "FindCoordinator",
        "group",
        {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
        _steps(((), NO_GROUP), ((group("READ"),), NONE), ((group("DESCRIBE"),), NONE)),
    )


def _transactions() -> Iterator[Row]:
    yield Row(
        "FindCoordinator",
        "transactional id",
        {"key": "x", "key_type": 1, "coordinator_keys": ["x"]},
        _steps(((), NO_ID), ((txn("DESCRIBE"),), NONE), ((txn("WRITE"),), NONE)),
        versions=(1, 6),
    )
    yield Row(
        "InitProducerId",
        "idempotent",
        {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
        _steps(
            ((), NO_CLUSTER),
            ((cluster("IDEMPOTENT_WRITE"),), NONE),
            ((topic("any", "WRITE"),), NONE),
            ((topic("an", "WRITE", PatternType.PREFIXED),), NONE),
            ((topic("*", "ALL"),), NONE),
            ((topic("any", "READ"),), NO_CLUSTER),
        ),
    )
    yield Row(
        "InitProducerId",
        "transactional",
        {"transactional_id": "x", "transaction_timeout_ms": 10_000, "producer_id": -1, "producer_epoch": -1},
        _steps(
            ((), NO_ID),
            ((txn("DESCRIBE"),), NO_ID),
            ((txn("WRITE"),), NONE),
            ((txn("DESCRIBE"), denied(txn("WRITE"))), NO_ID),
            ((txn("DESCRIBE"), txn("WRITE"), denied(txn("WRITE"))), NO_ID),
            ((txn("ALL"), denied(txn("WRITE"))), NO_ID),
            ((txn("WRITE"), denied(txn("DESCRIBE"))), NONE),
        ),
    )
    producer = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 0}
    old = {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": 7,
        "v3_and_below_producer_epoch": 0,
    }
    for name, outcome in (("t", NOT_THE_PRODUCER), ("no", UNKNOWN)):
        yield Row(
            "AddPartitionsToTxn",
            f"topic {name}",
            old | {"v3_and_below_topics": [{"name": name, "partitions": [0]}]},
            _steps(
                ((), NO_ID),
                ((topic(name, "WRITE"),), NO_ID),
                ((txn("WRITE"),), NO_TOPIC),
                ((txn("WRITE"), topic(name, "WRITE")), outcome),
            ),
            versions=(0, 3),
        )
    yield Row(
        "AddPartitionsToTxn",
        "of brokers",
        {"transactions": [producer | {"verify_only": True, "topics": [{"name": "t", "partitions": [0]}]}]},
        _steps(
            ((), NO_CLUSTER),
            ((txn("WRITE"), topic("t", "WRITE")), NO_CLUSTER),
            ((cluster("CLUSTER_ACTION"),), NOT_THE_PRODUCER),
        ),
        versions=(4, 5),
    )
    yield Row(
        "AddOffsetsToTxn",
        "group",
        producer | {"group_id": "g"},
        _steps(
            ((), NO_ID),
            ((group("READ"),), NO_ID),
            ((txn("WRITE"),), NO_GROUP),
            ((txn("WRITE"), group("READ")), NOT_THE_PRODUCER),
        ),
    )
    yield Row(
        "EndTxn",
        "transactional id",
        producer | {"committed": False},
        _steps(((), NO_ID), ((txn("WRITE"),), NOT_THE_PRODUCER)),
    )
    for name, outcome in (("t", NOT_THE_PRODUCER), ("no", UNKNOWN)):
        yield Row(
            "TxnOffsetCommit",
            f"topic {name}",
            producer
            | {"group_id": "g", "generation_id": -1, "group_instance_id": None}
            | {"topics": [_one(name, committed_offset=1, committed_metadata="")]},
            _steps(
                ((), NO_ID),
                ((txn("WRITE"),), NO_GROUP),
                ((txn("WRITE"), group("READ")), NO_TOPIC),
                ((txn("WRITE"), topic(name, "READ")), NO_GROUP),
                ((group("READ"), topic(name, "READ")), NO_ID),
                ((txn("WRITE"), group("READ"), topic(name, "READ")), outcome),
            ),
        )
    unknown = frozenset({"TRANSACTIONAL_ID_NOT_FOUND"})
    yield Row(
        "DescribeTransactions",
        "transactional id",
        {"transactional_ids": ["y"]},
        _steps(((), NO_ID), ((Grant(ResourceType.TRANSACTIONAL_ID, "y", AclOperation.DESCRIBE),), unknown)),
    )
    ongoing = Grant(ResourceType.TRANSACTIONAL_ID, "ongoing", AclOperation.DESCRIBE)
    yield Row(
        "DescribeTransactions",
        "topics of an open transaction",
        {"transactional_ids": ["ongoing"]},
        _steps(
            ((), ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", ())),
            ((topic("t", "DESCRIBE"),), ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", ())),
            ((ongoing,), ("NONE", ())),
            ((ongoing, topic("other", "DESCRIBE")), ("NONE", ())),
            ((ongoing, topic("t", "DESCRIBE")), ("NONE", ("t",))),
            ((ongoing, topic("t", "READ")), ("NONE", ("t",))),
            ((ongoing, topic("*", "DESCRIBE")), ("NONE", ("t",))),
            ((ongoing, topic("*", "DESCRIBE"), denied(topic("t", "DESCRIBE"))), ("NONE", ())),
        ),
        read=_error_and_topics,
    )
    listed = Grant(ResourceType.TRANSACTIONAL_ID, "listed", AclOperation.DESCRIBE)
    yield Row(
        "ListTransactions",
        "all",
        {"duration_filter": -1},
        _steps(
            ((), ()),
            ((listed,), ("listed",)),
            ((listed._replace(operation=AclOperation.WRITE),), ("listed",)),
            ((listed._replace(name="list", pattern=PatternType.PREFIXED),), ("listed",)),
            ((txn("DESCRIBE"),), ()),
            ((listed._replace(name="*"), denied(listed)), ()),
        ),
        read=lambda response: tuple(
            found.transactional_id for found in response.transaction_states if found.transactional_id == "listed"
        ),
    )
    marker = {"producer_id": 7, "coordinator_epoch": 0, "topics": [{"name": "no", "partition_indexes": [0]}]}
    yield Row(
        "WriteTxnMarkers",
        "marker",
        {"markers": [marker]},
        _steps(((), NO_CLUSTER), ((cluster("CLUSTER_ACTION"),), UNKNOWN), ((cluster("ALTER"),), UNKNOWN)),
    )


def _error_and_offsets(response: Any) -> Outcome:
    (found,) = response.groups or [response]
    return ErrorCode(found.error_code).name, tuple(each.name for each in found.topics if each.name == "t")


def _error_and_topics(response: Any) -> Outcome:
    (state,) = response.transaction_states
    return ErrorCode(state.error_code).name, tuple(found.topic for found in state.topics)


def _configs() -> Iterator[Row]:
    def described(kind: int, name: str) -> dict[str, Any]:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        return {"resources": [resource]}

    def altered(kind: int, name: str, key: str, value: str) -> dict[str, Any]:
        config = {"name": key, "value": value, "config_operation": 0}
        resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
        return {"resources": [resource], "validate_only": True}

    yield from _for_topics("DescribeConfigs", "DESCRIBE_CONFIGS", lambda name: described(2, name), NONE)
    for api in ("AlterConfigs", "IncrementalAlterConfigs"):
        yield from _for_topics(api, "ALTER_CONFIGS", lambda name: altered(2, name, "retention.ms", "1000"), NONE)
        yield Row(
            api,
            "a broker",
            altered(4, "1", "num.io.threads", "8"),
            _steps(((), NO_CLUSTER), ((cluster("ALTER_CONFIGS"),), NONE), ((cluster("ALTER"),), NO_CLUSTER)),
        )
    for kind, what in ((4, "a broker"), (8, "loggers")):
        yield Row(
            "DescribeConfigs",
            what,
            described(kind, "1"),
            _steps(((), NO_CLUSTER), ((cluster("DESCRIBE_CONFIGS"),), NONE), ((cluster("ALTER_CONFIGS"),), NONE)),
        )
    yield Row(
        "IncrementalAlterConfigs",
        "loggers",
        altered(8, "1", "root", "INFO"),
        _steps(((), NO_CLUSTER), ((cluster("ALTER_CONFIGS"),), NONE)),
    )
    yield Row(
        "DescribeClientQuotas",
        "all",
        {"components": [], "strict": False},
        _steps(((), NO_CLUSTER), ((cluster("DESCRIBE_CONFIGS"),), NONE)),
    )
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": "c"}],
        "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
    }
    yield Row(
        "AlterClientQuotas",
        "validate only",
        {"entries": [entry], "validate_only": True},
        _steps(((), NO_CLUSTER), ((cluster("ALTER_CONFIGS"),), NONE)),
    )


def _administration() -> Iterator[Row]:
    moved = {"name": "t", "partitions": [{"partition_index": 0, "replicas": None}]}
    elected = {"election_type": 0, "timeout_ms": 5000, "topic_partitions": [{"topic": "t", "partitions": [0]}]}
    log_dir = {"path": "/nowhere", "topics": [{"name": "t", "partitions": [0]}]}
    asked: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        (
            "AlterPartitionReassignments",
            "ALTER",
            {"timeout_ms": 5000, "topics": [moved]},
            "NO_REASSIGNMENT_IN_PROGRESS",
        ),
        ("ListPartitionReassignments", "DESCRIBE", {"timeout_ms": 5000, "topics": None}, "NONE"),
        ("ElectLeaders", "ALTER", elected, "ELECTION_NOT_NEEDED"),
        ("AlterReplicaLogDirs", "ALTER", {"dirs": [log_dir]}, "LOG_DIR_NOT_FOUND"),
        ("DescribeLogDirs", "DESCRIBE", {"topics": None}, "NONE"),
    )
    for api, operation, fields, outcome in asked:
        other = "DESCRIBE_CONFIGS"
        steps = _steps(((), NO_CLUSTER), ((cluster(operation),), frozenset({outcome})), ((cluster(other),), NO_CLUSTER))
        yield Row(api, "cluster", fields, steps, versions=(3 if api == "DescribeLogDirs" else 0, 99))
    yield Row(
        "DescribeLogDirs",
        "cluster, without an error code",
        {"topics": None},
        _steps(
            ((), False),
            ((cluster("DESCRIBE"),), True),
            ((cluster("ALTER"),), True),
            ((cluster("DESCRIBE_CONFIGS"),), False),
            ((cluster("ALL"), denied(cluster("DESCRIBE"))), False),
        ),
        versions=(0, 2),
        read=lambda response: bool(response.results),
    )
    acl: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "unused",
        "resource_pattern_type": 3,
        "principal": "User:zoe",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    chosen = {
        "resource_type_filter": 2,
        "resource_name_filter": "unused",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    requests: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("CreateAcls", "ALTER", {"creations": [acl]}),
        ("DescribeAcls", "DESCRIBE", chosen),
        ("DeleteAcls", "ALTER", {"filters": [chosen]}),
    )
    for api, operation, fields in requests:
        yield Row(api, "cluster", fields, _steps(((), NO_CLUSTER), ((cluster(operation),), NONE)))
    yield Row(
        "CreateAcls",
        "an invalid entry",
        {"creations": [acl | {"resource_type": 4}]},
        _steps(((cluster("ALTER"),), frozenset({"INVALID_REQUEST"}))),
    )
    for api, operation, fields in (
        ("DescribeUserScramCredentials", "DESCRIBE", {"users": [{"name": "nobody"}]}),
        ("AlterUserScramCredentials", "ALTER", {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []}),
    ):
        missing = frozenset({"RESOURCE_NOT_FOUND"})
        yield Row(api, "a user", fields, _steps(((), NO_CLUSTER), ((cluster(operation),), missing)))
    for api, fields in (("SaslHandshake", {"mechanism": "PLAIN"}), ("SaslAuthenticate", {"auth_bytes": b""})):
        yield Row(api, "out of place", fields, _steps(((), frozenset({"ILLEGAL_SASL_STATE"}))))
    yield Row("DescribeCluster", "brokers", {"endpoint_type": 1}, _steps(((), NONE)))
    yield Row(
        "DescribeCluster",
        "operations",
        {"endpoint_type": 1, "include_cluster_authorized_operations": True},
        _steps(
            ((), 0),
            ((cluster("DESCRIBE"),), _bits("DESCRIBE")),
            ((cluster("ALTER"), denied(cluster("DESCRIBE"))), 0),
            (
                (cluster("DESCRIBE"), cluster("ALTER_CONFIGS"), denied(cluster("DESCRIBE_CONFIGS"))),
                _bits("DESCRIBE", "ALTER_CONFIGS"),
            ),
        ),
        read=lambda response: response.cluster_authorized_operations,
    )
    yield Row(
        "ApiVersions", "all", {"client_software_name": "probe", "client_software_version": "1"}, _steps(((), NONE))
    )


def _brokers() -> Iterator[Row]:
    """Stale epochs: an authorized request must not change the cluster either."""
    stale = {"controller_id": 1, "controller_epoch": 0, "broker_epoch": 0, "broker_id": 77}
    stale_controller = frozenset({"STALE_CONTROLLER_EPOCH"})
    stale_broker = frozenset({"STALE_BROKER_EPOCH"})
    for api, versions, outcome in (
        ("LeaderAndIsr", (0, 1), stale_controller),
        ("LeaderAndIsr", (2, 99), stale_broker),
        ("StopReplica", (0, 0), stale_controller),
        ("StopReplica", (1, 99), stale_broker),
        ("UpdateMetadata", (0, 4), stale_controller),
        ("UpdateMetadata", (5, 99), stale_broker),
        ("ControlledShutdown", (0, 1), AUTHORIZED),  # klamm refuses versions without an epoch, with another error
        ("ControlledShutdown", (2, 99), frozenset({"UNKNOWN_SERVER_ERROR"})),
        ("AlterPartition", (0, 99), stale_broker),
        ("AllocateProducerIds", (0, 99), frozenset({"BROKER_ID_NOT_REGISTERED"})),
    ):
        steps = _steps(((), NO_CLUSTER), ((cluster("ALTER"),), NO_CLUSTER), ((cluster("CLUSTER_ACTION"),), outcome))
        yield Row(api, f"broker, from v{versions[0]}", stale, steps, versions)
