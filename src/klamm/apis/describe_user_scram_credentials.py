"""DescribeUserScramCredentials (50): the SCRAM mechanisms of users and their iterations, not the keys (KIP-554).

v0. It needs DESCRIBE on the cluster. Without users the answer has all of them. A user without credentials is
RESOURCE_NOT_FOUND (91), one that is named twice DUPLICATE_RESOURCE (92). The answer comes from ZooKeeper; if it does
not answer within seconds, the whole request is REQUEST_TIMED_OUT (7).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.deadlines import Deadline
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.scram_mechanisms import NUMBERS
from klamm.apis.slices import each, pause
from klamm.apis.zookeeper_waits import CHANGE_WAIT_MS, read_in_time
from klamm.config.client_quotas import QuotaEntity
from klamm.errors import ErrorCode
from klamm.protocol.chunked import pieces
from klamm.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from klamm.quota import quota_store
from klamm.security.acl.bindings import AclOperation
from klamm.security.sasl.scram_credential import parse_credential
from klamm.waiting import Steps, begin, result_of

_AT_ONCE: Final = 100
"""Users whose credentials are read without giving the loop back."""
_Stored = dict[QuotaEntity, dict[str, str]]


def handle(
    broker: Broker, ctx: RequestContext, req: DescribeUserScramCredentialsRequest
) -> Answer[DescribeUserScramCredentialsResponse]:
    return begin(_describe(broker, ctx, req))


def _describe(
    broker: Broker, ctx: RequestContext, req: DescribeUserScramCredentialsRequest
) -> Steps[DescribeUserScramCredentialsResponse]:
    named: Counter[str] = Counter()
    found: dict[str, list[CredentialInfo]] = {}
    ctx.hold(named, found)
    for users in pieces(req.users or ()):
        named.update(user.name for user in users)
        yield from pause(users)
    names = list(named)
    deadline = Deadline(broker.loop, CHANGE_WAIT_MS)
    for start in range(0, max(len(names), 1), _AT_ONCE):
        if start:
            yield
        stored = yield from result_of(_read(broker, names[start : start + _AT_ONCE], deadline.remaining_ms))
        if isinstance(stored, ErrorCode):
            message = "ZooKeeper does not answer."
            return DescribeUserScramCredentialsResponse(error_code=stored, error_message=message, results=[])
        found.update(_infos_of_users(stored))
    names = names or sorted(user for user, infos in found.items() if infos)
    results = yield from each(names, lambda name: _result(name, found.get(name, []), named[name]))
    return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


def _read(broker: Broker, names: list[str], timeout_ms: int) -> asyncio.Future[_Stored | ErrorCode]:
    """Read the znodes of these users, or of all."""
    if names:
        reading = quota_store.read_entities(broker.zk, [QuotaEntity(user=name) for name in names if name])
    else:
        reading = quota_store.read_all(broker.zk)
    return read_in_time(broker, reading, timeout_ms, lambda error: error)


def _infos_of_users(stored: _Stored) -> dict[str, list[CredentialInfo]]:
    return {
        entity.user: _infos(properties)
        for entity, properties in stored.items()
        if entity.user and entity.client_id is None
    }


def _infos(properties: Mapping[str, str]) -> list[CredentialInfo]:
    infos: list[CredentialInfo] = []
    for name, number in NUMBERS.items():
        if name in properties:
            try:
                iterations = parse_credential(properties[name]).iterations
            except ValueError:
                continue
            infos.append(CredentialInfo(mechanism=number, iterations=iterations))
    return infos


def _result(name: str, infos: list[CredentialInfo], times: int) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.NONE, None
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not infos:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return DescribeUserScramCredentialsResult(
        user=name, error_code=code, error_message=message, credential_infos=infos if code == ErrorCode.NONE else []
    )


_GUARD: Final = needs_cluster(
    AclOperation.DESCRIBE,
    lambda ctx, req, error: DescribeUserScramCredentialsResponse(
        error_code=error, error_message=NOT_AUTHORIZED, results=()
    ),
)
API = Api(
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    versions=(0, 0),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
    guard=_GUARD,
)
