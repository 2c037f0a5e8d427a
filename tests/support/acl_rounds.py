"""Sets the entries of each step of the ACL table and compares the outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from klamm.protocol.schema import plan
from klamm.protocol.wire import Message
from klamm.security.acl.bindings import AclBinding
from tests.support.acl_table import ALICE, API_BY_NAME, BATCH, GROUPS_TO_DELETE, TO_DELETE, Grants, Row
from tests.support.messages import build, codes

Ask = Callable[[str, Message, int], Any]
"""Sends a request of an API at a version and returns the response."""
PATIENCE_S: Final = 60.0


class AclRounds:
    """`admin` sends requests as a super user."""

    def __init__(self, admin: Ask) -> None:
        self._admin = admin
        self._topic_ids: Mapping[str, UUID] = {}

    def prepare(self) -> None:
        """Make the topic `t` with one record, groups with an offset of it, and the other things of the table."""
        created = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("t", *TO_DELETE)]
        self._until_worked("CreateTopics", {"timeout_ms": 20_000, "topics": created}, 5)
        partition = {"index": 0, "records": BATCH}
        sent = {"acks": -1, "timeout_ms": 9000, "topic_data": [{"name": "t", "partition_data": [partition]}]}
        self._until_worked("Produce", sent | {"transactional_id": None}, 7)
        self._until_worked("FindCoordinator", {"key": "g"}, 1)
        self._until_worked("FindCoordinator", {"key": "x", "key_type": 1}, 1)
        offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        for group in ("g", *GROUPS_TO_DELETE):
            commit = {"group_id": group, "generation_id_or_member_epoch": -1}
            self._until_worked("OffsetCommit", commit | {"topics": [{"name": "t", "partitions": [offset]}]}, 3)
        self._until_worked("InitProducerId", {"transactional_id": "listed", "transaction_timeout_ms": 10_000}, 1)
        self._open_transaction()
        asked = [{"name": name} for name in ("t", *TO_DELETE)]
        found = self._until_worked("Metadata", {"topics": asked, "allow_auto_topic_creation": False}, 10)
        self._topic_ids = {each.name: each.topic_id for each in found.topics}

    def _open_transaction(self) -> None:
        """Without records, so that it holds back no reader of `t`, and with a timeout that outlasts the table."""
        asked = {"transactional_id": "ongoing", "transaction_timeout_ms": 900_000}
        producer = self._until_worked("InitProducerId", asked, 1)
        added = {
            "v3_and_below_transactional_id": "ongoing",
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.producer_epoch,
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        }
        self._until_worked("AddPartitionsToTxn", added, 1)

    def _until_worked(self, name: str, fields: dict[str, Any], version: int) -> Any:
        api = API_BY_NAME[name]
        request = build(plan(api.request, version), fields)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            response = self._admin(name, request, version)
            found = {code for _, code in codes(plan(api.response, version), response)}
            if found <= {0, 36}:  # TOPIC_ALREADY_EXISTS
                return response
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} was not accepted within {PATIENCE_S:g} s: {found}")
            time.sleep(0.05)

    def differences(self, row: Row, ask: Ask, versions: Callable[[str], range] | None = None) -> list[str]:
        """Return a line per request of `User:alice` with another outcome than the table has."""
        lines = []
        for grants, denial, expected in row.denials():
            lines += self._compare(row, ask, (*grants, denial), expected, versions)
        for grants, expected in row.steps:
            lines += self._compare(row, ask, grants, expected, versions)
        return lines

    def _compare(
        self, row: Row, ask: Ask, grants: Grants, expected: Any, versions: Callable[[str], range] | None
    ) -> list[str]:
        what = "; ".join(map(str, grants)) or "no entries"
        self._set([grant.binding() for grant in grants])
        lines = []
        for version, request in row.requests(self._topic_ids):
            if versions is None or version in versions(row.api):
                found = row.outcome(version, ask(row.api, request, version))
                if not row.agrees(expected, found):
                    shown = [sorted(x) if isinstance(x, frozenset) else x for x in (expected, found)]
                    lines.append(f"{row.api} v{version} {row.what}, {what}: expected {shown[0]}, found {shown[1]}")
        return lines

    def _set(self, bindings: Iterable[AclBinding]) -> None:
        """Replace all entries of `User:alice`."""
        fields = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": ALICE,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        self._change("DeleteAcls", {"filters": [fields]})
        creations = [
            {
                "resource_type": resource.type,
                "resource_name": resource.name,
                "resource_pattern_type": resource.pattern,
                "principal": entry.principal,
                "host": entry.host,
                "operation": entry.operation,
                "permission_type": entry.permission,
            }
            for resource, entry in bindings
        ]
        if creations:
            self._change("CreateAcls", {"creations": creations})

    def _change(self, name: str, fields: dict[str, Any]) -> None:
        api = API_BY_NAME[name]
        version = 2
        response = self._admin(name, build(plan(api.request, version), fields), version)
        found = {code for _, code in codes(plan(api.response, version), response)}
        assert found <= {0}, f"{name} failed: {found}"
