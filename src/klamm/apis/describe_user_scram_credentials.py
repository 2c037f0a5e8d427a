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

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.config_resources import CHANGE_WAIT_S
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.scram_mechanisms import NUMBERS
from klamm.config.client_quotas import QuotaEntity
from klamm.errors import ErrorCode
from klamm.protocol.chunked import ChunkedList, pieces
from klamm.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from klamm.quota import quota_store
from klamm.security.acl.bindings import AclOperation
from klamm.security.sasl.scram_credential import parse_credential
from klamm.zk.model.ops import ZkError

_AT_ONCE: Final = 100
"""Users whose credentials are read without giving the loop back."""


def handle(
    broker: Broker, ctx: RequestContext, req: DescribeUserScramCredentialsRequest
) -> asyncio.Future[DescribeUserScramCredentialsResponse]:
    return broker.loop.create_task(_describe(broker, ctx, req))


async def _describe(
    broker: Broker, ctx: RequestContext, req: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    named: Counter[str] = Counter()
    found: dict[str, list[CredentialInfo]] = {}
    ctx.hold(named, found)
    names: list[str] = []
    for users in pieces(req.users or ()):
        named.update(user.name for user in users)
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(CHANGE_WAIT_S):
            if not named:
                found.update(await _read(broker, []))
            names = list(named)
            for start in range(0, len(names), _AT_ONCE):
                found.update(await _read(broker, names[start : start + _AT_ONCE]))
                await asyncio.sleep(0)
    except (ZkError, TimeoutError) as error:
        is_late = isinstance(error, TimeoutError)
        code = ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.UNKNOWN_SERVER_ERROR
        message = "ZooKeeper does not answer."
        return DescribeUserScramCredentialsResponse(error_code=code, error_message=message, results=[])
    names = names or sorted(user for user, infos in found.items() if infos)
    results: ChunkedList[DescribeUserScramCredentialsResult] = ChunkedList()
    for some in pieces(names):
        results.extend(_result(name, found.get(name, []), named[name]) for name in some)
        await asyncio.sleep(0)
    return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


async def _read(broker: Broker, names: list[str]) -> dict[str, list[CredentialInfo]]:
    if names:
        found = await quota_store.read_entities(broker.zk, [QuotaEntity(user=name) for name in names if name])
    else:
        found = await quota_store.read_all(broker.zk)
    return {
        entity.user: _infos(properties)
        for entity, properties in found.items()
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
